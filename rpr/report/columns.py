"""The columns of the result tables, the notes that explain them, and how to show any text safely.

Names of arms, settings and directories, failure reasons, translations and sub-words come from
files that somebody else may have written. The page's template escapes HTML (`html_page`).
"""
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rpr.evaluation import ALL_METRICS, DIGITS, LOSS_METRICS
from rpr.evaluation.designs import MOST_SEEDS, is_test_set_too_small, may_be_small
from rpr.evaluation.significance import ArmScore, p_text
from rpr.report.results import BEYOND, DEFAULT_METRICS, MIN_SENTENCES, ArmResult, StudyResults
from rpr.utils.console import printable
from rpr.utils.errors import InvalidValue

# The paper's symbols for settings.
SYMBOLS = {"max_relative_position": "k", "relative_keys": "a^K", "relative_values": "a^V"}
# Columns of the costs: key, field of an arm, format, heading (empty: the key).
_COSTS = (("parameters", "parameters", ",", ""), ("steps", "steps", ",", ""),
          ("steps_per_second", "steps_per_second", ".2f", "steps/s"),
          ("model_tflops", "model_tflops", ".3g", "TFLOP/s"), ("mfu", "mfu", ".3f", "MFU"),
          ("speed", "relative_speed", ".2f", ""), ("minutes", "train_minutes", ".1f", ""))
# A spreadsheet evaluates cells that start so; some take ";" for the end of a cell.
_FORMULA = re.compile("(^|;[ \"']*)(?=[=+\\-@\t\r\uff1d\uff0b\uff0d\uff20])")
_LATEX = {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}",
          "`": r"\textasciigrave{}", '"': "{''}", "±": r"$\pm$", "×": r"$\times$", "≤": r"$\le$",
          "|": r"\textbar{}\allowbreak{}", "<": r"\textless{}", ">": r"\textgreater{}",
          **{sign: "\\" + sign for sign in "&%$#_{}"}}


class Column(NamedTuple):
    """A column with one text per arm, empty where there is no value."""
    key: str                                          # as in --columns
    heading: str
    cells: list[str]
    group: str              # arm, result, difference, test set, length, tuned or cost


class Note(NamedTuple):
    """A sentence about the columns with these keys."""
    keys: tuple[str, ...]
    text: str


def columns(results: StudyResults) -> list[Column]:
    """The columns of the results, without empty ones.

    An arm of a grid is identified by its settings alone, as in the paper's table 2.
    """
    is_grid = all(arm.name == ",".join(f"{name}={value}" for name, value in arm.settings.items())
                  for arm in results.arms)
    return [column for column in _all_columns(results)
            if (not is_grid if column.key == "model" else any(column.cells))]


def _all_columns(results: StudyResults) -> list[Column]:
    """All columns, also empty ones."""
    arms, metric, digits = results.arms, results.metric, results.digits
    found = [_models(results)]

    def add(key: str, group: str, cell: Callable[..., Any], heading: str = "") -> None:
        found.append(_column(results, key, heading or key, group, cell))

    for name in results.setting_names:
        key = "run.model" if name == "model" else name       # unlike the arms' names
        add(key, "arm", lambda arm, name=name: setting_text(arm.settings.get(name)),
            SYMBOLS.get(name, ""))
    several = any(len(arm.runs) > 1 for arm in arms)
    add("seeds", "result", lambda arm: several and (
        str(len(arm.done)) if len(arm.done) == len(arm.runs) else
        f"{len(arm.done)} of {len(arm.runs)}"))
    add(metric, "result", lambda arm: _mean(arm.scores.get(metric), digits), ALL_METRICS[metric])
    add("paper", "result", lambda arm: arm.paper_bleu is not None and f"{arm.paper_bleu:.1f}")
    found += _difference_columns(results, metric, "difference", "")
    add("rank", "difference", lambda arm: arm.letters)
    add("answer", "difference", lambda arm: arm.answer and f"{arm.answer} ({arm.looked} seeds)")
    for name in dict.fromkeys(name for arm in arms for name in arm.by_test_set):
        add(f"{metric} {name}", "test set",
            lambda arm, name=name: _of_test_set(arm, results.baseline_arm, name),
            f"{ALL_METRICS[metric]} {name}")
    for name in results.metrics[1:]:
        add(name, "result", lambda arm, name=name: _mean(arm.scores.get(name), DIGITS.get(name, 1)),
            ALL_METRICS[name])
    if "accuracy" not in results.metrics:
        add("exact", "result", lambda arm: arm.exact is not None and f"{arm.exact:.1f}%")
    add("loss", "result", lambda arm: arm.loss is not None and f"{arm.loss:.2f}")
    for key, field, style, heading in _COSTS:
        add(key, "cost", lambda arm, field=field, style=style: (
            value := getattr(arm, field)) is not None and format(value, style), heading)
    return found


def _column(results: StudyResults, key: str, heading: str, group: str,
            cell: Callable[..., Any]) -> Column:
    return Column(key, heading, [cell(arm) or "" for arm in results.arms], group)


def _models(results: StudyResults) -> Column:
    return _column(results, "model", "model", "arm", lambda arm: arm.name)


def _difference_columns(results: StudyResults, metric: str, group: str, prefix: str
                        ) -> list[Column]:
    """The comparison with the baseline in a metric: difference and p-values."""
    def difference(arm: ArmResult) -> str:
        found = arm.differences.get(metric)
        if arm.name == results.baseline or not found:
            return "baseline" if arm.name == results.baseline else ""
        digits = results.digits
        return f"{found.difference:+.{digits}f}" + (
            "" if found.low is None else f" [{found.low:+.{digits}f}, {found.high:+.{digits}f}]")

    return [_column(results, f"{prefix}difference", "difference [95%]", group, difference), *(
        _column(results, prefix + key, heading, group, lambda arm, key=key: p_text(
            getattr(arm.differences.get(metric), key, None)))
        for key, heading in (("p", "p"), ("p_holm", "p (Holm)")))]


def more_tables(results: StudyResults) -> Iterator[tuple[str, list[Column]]]:
    """(title, columns) of the tables by source length, and of what was tried of `study.tune`."""
    metric = ALL_METRICS[results.metric]
    if found := length_columns(results):
        yield f"{metric} by {results.axis}" + (
            f"; > has longer ones than training ({results.trained_length})"
            if results.trained_length else ""), found
    settings = {repr(run.tuned): run.tuned for run in results.all_runs if run.tuned}
    if settings:
        found = [_models(results)]
        for key, tuned in sorted(settings.items(), key=lambda setting: [
                (isinstance(value, (int, float)) and value, str(value))
                for value in setting[1].values()]):
            heading = ", ".join(f"{name}={value}" for name, value in tuned.items())
            found.append(_column(results, f"tuned {heading}", heading, "tuned",
                                 lambda arm, key=key: _tried(arm, key, results)))
        yield f"tuning: loss on the development set ({metric})", found


def _tried(arm: ArmResult, tuned: str, results: StudyResults) -> str:
    """Mean loss and score of a setting over the seeds that count, or that it failed."""
    runs = [run for run in arm.all_runs if repr(run.tuned) == tuned]
    if any(run.has_failed for run in runs):
        return "failed"
    counting = [run for run in runs if run.seed in [each.seed for each in arm.runs]]
    losses = [run.loss for run in counting if run.loss is not None]
    scores = [score for run in counting if (score := run.scores.get(results.metric)) is not None]
    if not losses or not scores:
        return ""
    text = f"{statistics.fmean(losses):.3f} ({statistics.fmean(scores):.{results.digits}f})"
    return f"chosen: {text}" if any(run in arm.runs for run in runs) else text


def length_columns(results: StudyResults) -> list[Column]:
    """The table by source length: mean ± deviation over seeds; empty if nothing is known.

    With a training length, the last columns are about all sources that are longer.
    """
    trained = results.trained_length
    if len(results.buckets) < 2 or not any(run.by_length for run in results.done):
        return []
    found = [_models(results)]
    for index, bucket in enumerate(results.buckets):
        mark = " >" if trained and bucket.high > trained else ""
        found.append(_column(
            results, f"length_{bucket.low}", f"{bucket.low}–{bucket.high}{mark}", "length",
            lambda arm, index=index: _over_seeds(
                [run.by_length[index] for run in arm.done if run.by_length], results.digits)))
    if any(arm.scores.get(BEYOND) for arm in results.arms):
        found.append(_column(results, BEYOND, f"all > {trained}", "length",
                             lambda arm: _mean(arm.scores.get(BEYOND), results.digits)))
        found += [column for column in _difference_columns(results, BEYOND, "length", "beyond_")
                  if column.key != "beyond_p"]
    return [column for column in found if any(column.cells)]


def choose(results: StudyResults, keys: Sequence[str]) -> list[Column]:
    """The columns with these keys, in this order, without empty ones; refuses unknown keys."""
    available = {column.key: column for column in _all_columns(results)}
    for key in keys:
        if key not in available:
            raise InvalidValue("columns", key, f"one of {', '.join(available)}")
    chosen = [available[key] for key in keys if any(available[key].cells)]
    if not chosen:
        raise InvalidValue("columns", ",".join(keys), "no arm has a value there")
    return chosen


def setting_text(value: Any) -> str:
    """The value of a setting; empty if it is None."""
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _mean(score: ArmScore | None, digits: int = 1) -> str:
    return "" if score is None else _with_deviation(score.mean, score.deviation, digits)


def _over_seeds(scores: Sequence[float], digits: int) -> str:
    deviation = statistics.stdev(scores) if len(scores) > 1 else None
    return _with_deviation(statistics.fmean(scores), deviation, digits) if scores else ""


def _with_deviation(mean: float, deviation: float | None, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def _of_test_set(arm: ArmResult, baseline: ArmResult, name: str) -> str:
    """The score of one of several test sets, and the difference from the baseline."""
    score, base = (each.by_test_set.get(name) for each in (arm, baseline))
    if score is None:
        return ""
    return f"{score:.1f}" + ("" if base is None or arm is baseline else f" ({score - base:+.1f})")


def notes(results: StudyResults) -> Iterator[Note]:
    """Explains the columns."""
    if not results.signatures:
        return
    arms = results.arms
    if any(len(arm.done) > 1 for arm in arms):
        names = ", ".join(ALL_METRICS[name] for name in results.metrics)
        yield Note(tuple(results.metrics),
                   f"{names}: mean ± standard deviation over the seeds.")
    yield from _notes_on_differences(results)
    if any(arm.letters for arm in arms):
        yield Note(("rank",), "rank: arms that share a letter do not differ significantly "
                   "(p (Holm) ≤ 0.05).")
    elif results.pairs:
        yield Note(("difference",), "The ranking has no letters: the arms would need more of them "
                   "than anybody can read.")
    if any(arm.exact is not None for arm in arms) and "accuracy" not in results.metrics:
        yield Note(("exact",), "exact: hypotheses that equal their reference.")
    if any(arm.loss is not None for arm in arms):
        yield Note(("loss",), "loss: last evaluation on the development set, nats per token."
                   + (" Empty where that of a run is missing or not finite."
                      if any(run.loss is None for run in results.done) else ""))
    if any(arm.relative_speed for arm in arms):
        yield Note(("speed",), f"speed: steps/s divided by those of {results.baseline}, for runs "
                   "on the same machines; meaningful if these were equally busy.")
    if any(arm.model_tflops for arm in arms):
        yield Note(("model_tflops", "mfu"), "TFLOP/s: of the model, by the formula of Chowdhery et "
                   "al. 2022, appendix B." + (" MFU: their share of the dense peak of the GPUs."
                                              if any(arm.mfu for arm in arms) else ""))
    if any(arm.paper_bleu is not None for arm in arms):
        yield Note(("paper",), "paper: Shaw et al. 2018; other data, model size and BLEU script.")
    yield from _notes_on_lengths(results)


def _notes_on_lengths(results: StudyResults) -> Iterator[Note]:
    """Why there is no table by length, or no columns for all that is longer than in training."""
    whole, parts = ("texts", "positions") if results.metric in LOSS_METRICS else ("sources",) * 2
    trained, buckets = results.trained_length, results.buckets
    if results.length_buckets and len(buckets) == 1:
        yield Note((results.metric,), f"study.length_buckets: all {parts} fall into one length "
                   f"bucket (lengths are in {results.length_unit}), so there is no table by "
                   "length.")
    elif (trained and length_columns(results) and trained < buckets[-1].high
          and not any(arm.scores.get(BEYOND) for arm in results.arms)):
        yield Note((results.metric,), "By length: the arms are not compared beyond the training "
                   f"({trained} {results.length_unit}): fewer than {MIN_SENTENCES} {whole} are "
                   "longer, or all are.")


def _notes_on_differences(results: StudyResults) -> Iterator[Note]:
    """What the intervals and p-values account for."""
    metric = ALL_METRICS[results.metric]
    found = {arm.name: each for arm in results.arms
             if (each := arm.differences.get(results.metric))}
    bases = {each.basis for each in found.values()}
    scores = [score.mean for arm in results.arms if (score := arm.scores.get(results.metric))]
    if not results.baseline_arm.done or len(scores) == 1 < len(results.arms):
        yield Note((results.metric,), f"No differences yet: the baseline, {results.baseline}, "
                   f"{'alone is' if results.baseline_arm.done else 'is not'} done.")
        return
    if not bases:
        if len(scores) > 1 == len(set(scores)):
            yield Note((results.metric,), f"All arms have {scores[0]:.{results.digits}f} {metric} "
                       "and are not compared.")
        elif results.looks:
            yield Note((results.metric,), f"No differences yet: the first look needs "
                       f"{results.looks[0]} seeds of the baseline, {results.baseline}, and of each "
                       "other arm without a failed run. Runs after a failed one do not count.")
        return
    unit = metric if results.metric in DEFAULT_METRICS else f"points of {metric}"
    units, text = units_of_test_set(results), size_of_test_set(results)
    if results.documents:
        text = f"{results.documents:,} {units} of the test set ({results.sentences:,} sentences)"
    text += ", all test sets together" if results.baseline_arm.by_test_set else ""
    several = [arm.name for arm in results.arms if len(arm.done) > 1]
    whose = ("per arm" if not several else
             "of each other arm" if results.baseline in several else "of the baseline")
    yield Note(("difference", "p"), f"difference: {metric} of the arm minus that of the baseline "
               f"({results.baseline}), with a 95% interval" + (
                   f"; p: two-sided test. Both account for other seeds and other test {units} "
                   f"({text})." if "seeds" in bases else f" over the {text}. With one seed {whose} "
                   "the spread between seeds is unknown, so there is no p-value."))
    if "seeds" not in bases and not results.pairs:
        return
    if len(bases) > 1:
        yield Note(("difference", "p"), "An arm with one seed has an interval over test "
                   f"{units} and no p-value.")
    if same := [name for name, each in found.items() if each.basis == "seeds" and each.p is None]:
        yield Note(("difference", "p"), f"{', '.join(same)} and the baseline differ by the "
                   f"same amount in all seeds and {units}, so there is no interval and no p-value.")
    if noisy := [name for name, each in found.items() if each.stands_out]:
        yield Note(("difference", "p"), f"Over seeds, {', '.join(noisy)} and the baseline vary "
                   "more than the other arms, so their own variances are used.")
    if any(arm.tried for arm in results.arms):
        yield Note(("difference", "p"), "Each arm has the setting of study.tune with the least "
                   "loss on the development set. The interval and p account for this choice.")
    if results.looks:
        more = f"by more than {results.margin:g} {unit} " if results.margin else ""
        yield Note(("difference", "p", "answer"), f"answer: whether an arm differs {more}from the "
                   "baseline, and at how many seeds of both this was decided. Difference, interval "
                   "and p are those of that look, adjusted for the looks planned at "
                   f"{', '.join(map(str, results.looks))} seeds."
                   + (f" p: of a difference of just {results.margin:g}." if more else ""))
        yield Note(("p_holm",), "p (Holm): corrected for all arms.")
        return
    yield Note(("p_holm", "rank"), "p (Holm): corrected for all " + (
        "pairs of arms." if results.pairs else "comparisons with the baseline."))
    if results.metric in LOSS_METRICS:                # half a point is much
        return
    if results.seeds_needed:
        yield Note(("difference",), f"Between arms whose difference may be 0.5 {unit} or less, "
                   f"detecting 0.5 {unit} with a power of 0.8 needs {results.seeds_needed:,} seeds "
                   "per arm at the variance observed"
                   + (" (80% interval: {} to {}).".format(*(
                       f"more than {MOST_SEEDS:,}" if seeds is None else f"{seeds:,}"
                       for seeds in results.seeds_range)) if results.seeds_range else "."))
    elif is_test_set_too_small([pair.comparison for pair in results.pairs]):
        yield Note(("difference",), f"The test set is too small for a difference of 0.5 {unit}: no "
                   "number of seeds detects it with a power of 0.8.")
    elif any(may_be_small(pair.comparison) for pair in results.pairs):
        yield Note(("difference",), "The seeds of an arm differ too much for a difference of 0.5 "
                   f"{unit}: detecting it with a power of 0.8 needs more than {MOST_SEEDS:,} seeds "
                   "per arm.")


def size_of_test_set(results: StudyResults) -> str:
    """Such as "60 test sentences"; of language models, "60 test texts"; empty if not known."""
    unit = "text" if results.metric in LOSS_METRICS else "sentence"
    plural = "s" * (results.sentences != 1)
    return f"{results.sentences:,} test {unit}{plural}" if results.sentences else ""


def units_of_test_set(results: StudyResults) -> str:
    """What intervals are over: "sentences", "texts", or "documents" where they are known."""
    if results.documents:
        together = results.baseline_arm.by_test_set
        return "documents or single sentences" if together else "documents"
    return "texts" if results.metric in LOSS_METRICS else "sentences"


def signatures(results: StudyResults) -> list[str]:
    """A line per metric."""
    return [f"{name} {signature}" for name, signature in results.signatures.items()]


def rows(some_columns: Sequence[Column]) -> Iterator[tuple[str, ...]]:
    """The cells of columns, a tuple per arm."""
    return zip(*(column.cells for column in some_columns), strict=True)


def tables(results: StudyResults) -> Iterator[tuple[str, list[Column]]]:
    """The columns as (title, columns) of tables of about 80 characters, without empty ones."""
    all_columns = columns(results)
    for title, group in (("results", "result"), (f"compared with {results.baseline}", "difference"),
                         ("each test set", "test set"), ("cost", "cost")):
        if any(column.group == group for column in all_columns):
            yield title, [column for column in all_columns if column.group in ("arm", group)]
    yield from more_tables(results)


def plain(text: str) -> str:
    """Text without control codes and without code points that UTF-8 cannot encode."""
    return printable(text).encode("utf-8", "replace").decode()


def csv_text(value: object) -> object:
    """A cell that no spreadsheet takes for a formula; values other than text stay as they are."""
    return _FORMULA.sub(r"\1'", plain(value)) if isinstance(value, str) else value


def markdown_text(text: str) -> str:
    """Text of a Markdown paragraph or table cell: no link, no HTML, no emphasis, no new column.

    An underscore inside a word has no meaning there and is kept, as most settings have one.
    """
    text = re.sub(r"([\\`*\[\]|~!])", r"\\\1", plain(text))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latex_text(text: str) -> str:
    r"""Text of LaTeX's text mode, also after `\\`, where `[` and `*` would begin an argument."""
    escaped = "".join(_LATEX.get(sign, sign) for sign in plain(text))
    return re.sub(r"^([\[*])", r"{\1}", escaped)
