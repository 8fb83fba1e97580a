"""The columns of the result tables, and the notes that explain them."""
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from rpr.evaluation import significance
from rpr.evaluation.significance import Estimate
from rpr.report.results import ArmResult, StudyResults

# The paper's symbols for settings.
SYMBOLS = {"max_relative_position": "k", "relative_keys": "a^K", "relative_values": "a^V"}


class Column(NamedTuple):
    """Attributes:
      name: the heading.
      cells: one text per arm, empty if there is no value.
      group: "arm", "result", "difference" or "cost".
    """
    name: str
    cells: list[str]
    group: str


def columns(results: StudyResults) -> list[Column]:
    """The columns of the results, without empty ones.

    An arm of a grid is identified by its settings alone, as in the paper's table 2.
    """
    arms = results.arms
    all_columns = []
    named_by_settings = all(
        arm.name == ",".join(f"{name}={value}" for name, value in arm.settings.items())
        for arm in arms)
    if not named_by_settings:
        all_columns.append(Column("model", [arm.name for arm in arms], "arm"))
    all_columns += [Column(SYMBOLS.get(name, name),
                           [_setting(arm.settings[name]) for arm in arms], "arm")
                    for name in arms[0].settings]

    def add(name: str, group: str, cell: Callable[[ArmResult], Any]) -> None:
        cells = [cell(arm) or "" for arm in arms]
        if any(cells):
            all_columns.append(Column(name, cells, group))

    if any(len(arm.runs) > 1 for arm in arms):
        add("seeds", "result", _seeds)
    add("BLEU", "result", lambda arm: arm.bleu and _mean(arm.bleu))
    add("paper", "result", lambda arm: arm.paper_bleu is not None and f"{arm.paper_bleu:.1f}")
    add("difference [95%]", "difference", lambda arm: arm.bleu and _difference(arm.bleu))
    add("p", "difference", lambda arm: "baseline" if arm.name == results.baseline
        else arm.bleu and arm.bleu.p is not None and f"{arm.bleu.p:.4f}")
    if len(arms) > 2:
        add("p (Holm)", "difference", lambda arm: arm.bleu and arm.bleu.p_holm is not None
            and f"{arm.bleu.p_holm:.4f}")
    add("chrF", "result", lambda arm: arm.chrf and _mean(arm.chrf))
    add("exact", "result", lambda arm: arm.exact is not None and f"{arm.exact:.1f}%")
    add("loss", "result", lambda arm: arm.loss is not None and f"{arm.loss:.2f}")
    add("parameters", "cost", lambda arm: arm.parameters and f"{arm.parameters:,}")
    add("steps", "cost", lambda arm: arm.steps and f"{arm.steps:,}")
    add("steps/s", "cost", lambda arm: arm.steps_per_second and f"{arm.steps_per_second:.2f}")
    add("speed", "cost", lambda arm: arm.relative_speed and f"{arm.relative_speed:.2f}")
    add("minutes", "cost", lambda arm: arm.train_minutes is not None
        and f"{arm.train_minutes:.1f}")
    return all_columns


def _setting(value: Any) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _seeds(arm: ArmResult) -> str:
    return f"{len(arm.done)}" if len(arm.done) == len(arm.runs) else (
        f"{len(arm.done)} of {len(arm.runs)}")


def _mean(estimate: Estimate) -> str:
    deviation = f" ± {estimate.deviation:.1f}" if estimate.deviation is not None else ""
    return f"{estimate.mean:.1f}{deviation}"


def _difference(estimate: Estimate) -> str:
    if estimate.difference is None:
        return ""
    return (f"{estimate.difference:+.1f} "
            f"[{estimate.difference_low:+.1f}, {estimate.difference_high:+.1f}]")


def notes(results: StudyResults) -> list[str]:
    """Lines that explain the columns."""
    if not results.signatures:
        return []
    arms = results.arms
    lines = []
    if any(len(arm.done) > 1 for arm in arms):
        lines.append("BLEU, chrF: mean ± standard deviation over the seeds.")
    if any(arm.bleu and arm.bleu.p is not None for arm in arms):
        lines.append(f"difference: BLEU minus that of {results.baseline}, with its 95% interval; "
                     f"p: paired bootstrap over the {results.sentences:,} test sentences; smallest "
                     f"possible p: {1 / (significance.SAMPLES + 1):.4f}.")
    if not results.baseline_arm.done:
        lines.append(f"No differences yet: the baseline, {results.baseline}, is not done.")
    if sum(arm.bleu is not None and arm.bleu.p_holm is not None for arm in arms) > 1:
        lines.append("p (Holm): corrected for the number of arms.")
    if any(arm.exact is not None for arm in arms):
        lines.append("exact: hypotheses that equal their reference.")
    if any(arm.loss is not None for arm in arms):
        lines.append("loss: last evaluation on the development set, nats per sub-word.")
    lines.append(f"speed: steps/s divided by those of {results.baseline}; meaningful only if the "
                 "machines were alike and equally busy.")
    if any(arm.paper_bleu is not None for arm in arms):
        lines.append("paper: Shaw et al. 2018; other data, model size and BLEU script.")
    return lines


def signatures(results: StudyResults) -> list[str]:
    """A line per metric."""
    return [f"{name} {signature}" for name, signature in results.signatures.items()]


def rows(some_columns: list[Column]) -> Iterator[tuple[str, ...]]:
    """The cells of columns, a tuple per arm."""
    return zip(*(column.cells for column in some_columns), strict=True)


def tables(results: StudyResults) -> Iterator[tuple[str, list[Column]]]:
    """The columns as (title, columns) of tables of about 80 characters, without empty ones."""
    all_columns = columns(results)
    for title, group in (("results", "result"), (f"compared with {results.baseline}", "difference"),
                         ("cost", "cost")):
        if any(column.group == group for column in all_columns):
            yield title, [column for column in all_columns if column.group in ("arm", group)]
