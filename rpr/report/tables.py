"""The record as tables: on a terminal, in Markdown, LaTeX, HTML, CSV and JSON."""
import csv
import dataclasses
import html
import io
import json
import re
from typing import NamedTuple

from rpr.evaluation import significance

# What the paper calls a setting.
SYMBOLS = {"max_relative_position": "k", "relative_keys": "a^K", "relative_values": "a^V"}


class Column(NamedTuple):
    """Attributes:
      name: the heading.
      cells: a text for each arm, empty where there is nothing to say.
      of: "arm", "result", "difference" or "cost".
    """
    name: str
    cells: list
    of: str


def columns(record):
    """The columns of a record; those that would be empty are left out.

    An arm of a grid is named by its settings alone, as in the paper's table 2.
    """
    arms = record.arms
    found = []
    spelled = all(arm.name == ",".join(f"{name}={value}" for name, value in arm.settings.items())
                  for arm in arms)
    if not spelled:
        found.append(Column("model", [arm.name for arm in arms], "arm"))
    found += [Column(SYMBOLS.get(name, name), [_setting(arm.settings[name]) for arm in arms], "arm")
              for name in arms[0].settings]

    def add(name, of, cell):
        cells = [cell(arm) or "" for arm in arms]
        if any(cells):
            found.append(Column(name, cells, of))

    if any(len(arm.runs) > 1 for arm in arms):
        add("seeds", "result", _seeds)
    add("BLEU", "result", lambda arm: arm.bleu and _spread(arm.bleu))
    add("paper", "result", lambda arm: arm.paper is not None and f"{arm.paper:.1f}")
    add("difference [95%]", "difference", lambda arm: arm.bleu and _difference(arm.bleu))
    add("p", "difference", lambda arm: "baseline" if arm.name == record.baseline
        else arm.bleu and arm.bleu.p is not None and f"{arm.bleu.p:.4f}")
    if len(arms) > 2:
        add("p (Holm)", "difference", lambda arm: arm.bleu and arm.bleu.p_holm is not None
            and f"{arm.bleu.p_holm:.4f}")
    add("chrF", "result", lambda arm: arm.chrf and _spread(arm.chrf))
    add("exact", "result", lambda arm: arm.exact is not None and f"{arm.exact:.1f}%")
    add("loss", "result", lambda arm: arm.loss is not None and f"{arm.loss:.2f}")
    add("parameters", "cost", lambda arm: arm.parameters and f"{arm.parameters:,}")
    add("steps", "cost", lambda arm: arm.steps and f"{arm.steps:,}")
    add("steps/s", "cost", lambda arm: arm.steps_per_second and f"{arm.steps_per_second:.2f}")
    add("speed", "cost", lambda arm: arm.relative_speed and f"{arm.relative_speed:.2f}")
    add("minutes", "cost", lambda arm: arm.train_minutes is not None
        and f"{arm.train_minutes:.1f}")
    return found


def _setting(value):
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _seeds(arm):
    return f"{len(arm.done)}" if len(arm.done) == len(arm.runs) else (
        f"{len(arm.done)} of {len(arm.runs)}")


def _spread(found):
    return f"{found.mean:.1f}" + (f" ± {found.deviation:.1f}" if found.deviation is not None
                                  else "")


def _difference(found):
    if found.difference is None:
        return ""
    return (f"{found.difference:+.1f} "
            f"[{found.difference_low:+.1f}, {found.difference_high:+.1f}]")


def notes(record):
    """Lines that say what the columns of `columns` are."""
    if not record.signatures:
        return []
    lines = []
    if any(len(arm.done) > 1 for arm in record.arms):
        lines.append("BLEU, chrF: mean ± standard deviation over the seeds.")
    baseline = next(arm for arm in record.arms if arm.name == record.baseline)
    if any(arm.bleu and arm.bleu.p is not None for arm in record.arms):
        lines.append(f"difference: BLEU above {record.baseline}, with the 95% interval, and p of "
                     f"the paired bootstrap over the {record.sentences:,} sentences of the test "
                     f"set; least p possible: {1 / (significance.SAMPLES + 1):.4f}.")
    if not baseline.done:
        lines.append(f"Nothing is compared yet: the baseline, {record.baseline}, is not done.")
    if sum(arm.bleu is not None and arm.bleu.p_holm is not None for arm in record.arms) > 1:
        lines.append("p (Holm): corrected over the arms.")
    if any(arm.exact is not None for arm in record.arms):
        lines.append("exact: lines that equal their reference.")
    if any(arm.loss is not None for arm in record.arms):
        lines.append("loss: of the last evaluation on the development set, nats a sub-word.")
    lines.append(f"speed: steps/s as a multiple of {record.baseline}'s; it compares arms only as "
                 "far as their machines were alike and equally busy.")
    if any(arm.paper is not None for arm in record.arms):
        lines.append("paper: Shaw et al. 2018, its own data, model size and BLEU script.")
    return lines


def signatures(record):
    """A line for each metric."""
    return [f"{name} {signature}" for name, signature in record.signatures.items()]


def _rows(chosen):
    """The cells of columns, a list for each arm."""
    return zip(*(column.cells for column in chosen), strict=True)


def parts(record):
    """The columns as tables of some 80 characters: (title, columns) for each that is not empty."""
    found = columns(record)
    for title, of in (("results", "result"), (f"against {record.baseline}", "difference"),
                      ("cost", "cost")):
        if any(column.of == of for column in found):
            yield title, [column for column in found if column.of in ("arm", of)]


def print_to(console, record):
    """The tables, signatures and notes on a rich console."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table
    for title, chosen in parts(record):
        table = Table(title=escape(f"{record.title}: {title}"), title_justify="left",
                      box=box.SIMPLE_HEAD, pad_edge=False)
        for column in chosen:
            # In a narrow terminal the arms' names are folded, and no number is cut.
            arm = column.of == "arm"
            table.add_column(escape(column.name), no_wrap=not arm, overflow="fold",
                             justify="left" if arm else "right")
        for arm, cells in zip(record.arms, _rows(chosen), strict=True):
            table.add_row(*map(escape, cells), style=None if arm.done else "dim")
        console.print(table)
    for line in signatures(record) + notes(record):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in record.unfinished:
        console.print(line, style="yellow", highlight=False, markup=False, soft_wrap=True)


def as_markdown(record):
    """One table, with the signatures and notes below it."""
    def row(cells):
        return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
    found = columns(record)
    lines = [row(column.name for column in found),
             row("---" if column.of == "arm" else "---:" for column in found),
             *map(row, _rows(found)), "",
             *(f"`{line}`  " for line in signatures(record))]
    for block in (notes(record), [f"- {line}" for line in record.unfinished]):
        lines += ["", *block] if block else []
    return "\n".join(lines) + "\n"


def as_html(record):
    """The tables as HTML fragments, each in a block that scrolls by itself."""
    made = []
    for title, chosen in parts(record):
        head = "".join(f'<th class="{column.of}">{_html(column.name)}</th>' for column in chosen)
        body = ""
        for arm, cells in zip(record.arms, _rows(chosen), strict=True):
            kind = ("baseline" if arm.name == record.baseline else "") if arm.done else "unfinished"
            body += f'<tr class="{kind}">' + "".join(
                f'<td class="{column.of}">{_html(cell)}</td>'
                for column, cell in zip(chosen, cells, strict=True)) + "</tr>\n"
        made.append(f'<div class="table"><table><caption>{_html(title)}</caption>\n'
                    f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n")
    return "".join(made)


def _html(text):
    """Text with a^K as a superscript; differences with a minus sign."""
    text = html.escape(text).replace(" [-", " [−").replace(", -", ", −")
    text = "−" + text[1:] if text.startswith("-") else text
    return re.sub(r"\^(\w)", r"<sup>\1</sup>", text)


def as_latex(record):
    """A table for \\usepackage{booktabs}: results, and the speed."""
    chosen = [column for column in columns(record)
              if column.of != "cost" or column.name in ("parameters", "speed")]
    align = "".join("l" if column.of == "arm" else "r" for column in chosen)
    lines = [r"\begin{table}", r"  \centering", rf"  \begin{{tabular}}{{{align}}}",
             r"    \toprule",
             "    " + " & ".join(_latex(column.name) for column in chosen) + r" \\",
             r"    \midrule"]
    lines += ["    " + " & ".join(map(_latex, cells)) + r" \\" for cells in _rows(chosen)]
    caption = " ".join([*notes(record), *(f"{line}." for line in signatures(record))])
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_latex(caption)}}}",
              r"\end{table}"]
    return "".join(f"% not done: {' '.join(line.split())}\n"
                   for line in record.unfinished) + "\n".join(lines) + "\n"


_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
          "±": r"$\pm$", "|": r"\textbar{}\allowbreak{}", "<": r"\textless{}",
          ">": r"\textgreater{}", **{sign: "\\" + sign for sign in "&%$#_{}"}}


def _latex(text):
    """Text escaped for LaTeX; symbols and signed numbers in mathematics."""
    if text in SYMBOLS.values() or text == "p":
        return f"${text}$"
    escaped = "".join(_LATEX.get(sign, sign) for sign in text)
    return re.sub(r"(?<![\w.-])[-+](?=\d)", lambda sign: f"${sign[0]}$", escaped)


def as_json(record):
    """Everything, unrounded."""
    return json.dumps(record.as_dict(), indent=1) + "\n"


def as_csv(record):
    """A line for each arm, unrounded; a list of runs' scores is joined by semicolons."""
    out = io.StringIO()
    metrics = [f"{metric}_{field.name}" for metric in ("bleu", "chrf")
               for field in dataclasses.fields(significance.Estimate)]
    settings = list(record.arms[0].settings)
    names = ["name", *(name for name in settings if name != "name"), "runs", "done", "paper",
             "parameters", "steps", "steps_per_second", "relative_speed", "train_minutes", "exact",
             "loss", *metrics, "bleu_runs", "chrf_runs"]
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    for arm in record.arms:
        row = {**arm.settings, "name": arm.name, "runs": len(arm.runs), "done": len(arm.done)}
        row |= {name: getattr(arm, name) for name in ("paper", "parameters", "steps",
                "steps_per_second", "relative_speed", "train_minutes", "exact", "loss")}
        for metric in ("bleu", "chrf"):
            if getattr(arm, metric):
                row |= {f"{metric}_{name}": value for name, value
                        in dataclasses.asdict(getattr(arm, metric)).items()}
            row[f"{metric}_runs"] = ";".join(str(getattr(run, metric)) for run in arm.done)
        writer.writerow(row)
    return out.getvalue()
