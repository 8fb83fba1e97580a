"""Scores the translations of all runs and compares the arms with each other."""
import itertools
import os
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rpr.evaluation import significance, test_sets
from rpr.evaluation.length_checks import brevity_penalty
from rpr.evaluation.metrics import METRICS, Metric
from rpr.evaluation.scoring import sentence_statistics
from rpr.evaluation.significance import Comparison, RunScores
from rpr.experiments import gin_files
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory, sacrebleu_test_set
from rpr.report import model_analysis
from rpr.report.results import ArmPair, Sample, StudyResults, make_buckets
from rpr.report.study_reader import run_directory_of
from rpr.utils import files, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import InvalidValue, UserError

SCORED = ("bleu", "chrf")                             # of `evaluation.metrics.METRICS`
MOST_RANKED_ARMS = 30                                 # with more, a ranking cannot be read
MANY_RUNS = 50                                        # scoring takes long enough to say so
SAMPLES, SAMPLE_WORDS, MOST_SAMPLED_ARMS = 6, (4, 40), 12


class Measure(NamedTuple):
    """What is scored, and how.

    Attributes:
      test_set: one of `run.test_sets`; empty: the runs' own test set.
      tokenize: of BLEU, as in `rpr score --tokenize`; None: sacreBLEU's choice.
      language_pair: such as en-de; empty: that of the runs.
    """
    test_set: str = ""
    tokenize: str | None = None
    language_pair: str = ""


def score_runs(results: StudyResults, path: str, measure: Measure | None = None,
               samples: int = SAMPLES) -> None:
    """Fills in scores, differences and their significance; unfinished runs get no scores.

    Args:
      results: as `study_reader.read_study` returns it; changed in place.
      path: the study's directory.
      measure: what to score and how; None: the runs' test set, with sacreBLEU's tokens.
      samples: the number of test sentences that are shown with their translations.

    Raises:
      UserError: runs were scored on different text, or text is missing.
    """
    measure = measure or Measure()
    run_dirs = {run.path: run_directory_of(path, run) for arm in results.arms for run in arm.done}
    if not run_dirs:
        return
    runs = {name: gin_files.load_run(run_dir.config) for name, run_dir in run_dirs.items()}
    if measure.test_set:
        _leave_own_test_set(results, run_dirs, measure.test_set)
    results.title = ", ".join(filter(None, (results.title, measure.test_set, measure.tokenize)))
    source, references = _shared_test_set(runs, run_dirs, measure.test_set)
    hypotheses = {name: _read_lines(run_dir.test_files(measure.test_set or "test")[2],
                                    len(source)) for name, run_dir in run_dirs.items()}
    documents = _shared_documents(next(iter(runs.values())), run_dirs, measure.test_set,
                                  len(source))
    results.sentences, results.documents = len(source), len(set(documents or ()))
    lengths = _fill_buckets(results, source, run_dirs)
    run = next(iter(runs.values()))
    own_test_set, own_pair = sacrebleu_test_set(run, measure.test_set)
    language_pair = measure.language_pair or own_pair or run.language_pair
    metrics = [Metric(name, len(references), measure.tokenize if name == "bleu" else None,
                      language_pair) for name in SCORED]
    if len(hypotheses) > MANY_RUNS:
        say(f"scoring {len(hypotheses):,} runs")
    statistics_of = sentence_statistics(metrics, hypotheses, references)
    for metric in metrics:
        name = metric.name
        counts = statistics_of[name]
        _fill_scores(results, metric, counts, documents)
        if name == "bleu":
            _fill_lengths(results, metric, counts, hypotheses, lengths)
        results.signatures[METRICS[name]] = metric.signature(
            test=own_test_set, lang=language_pair)
    _fill_samples(results, source, references[0], hypotheses, samples)


def _leave_own_test_set(results: StudyResults, run_dirs: Mapping[str, RunDirectory],
                        test_set: str) -> None:
    """Replaces what was recorded for the runs' own test set by what is known of another one."""
    for arm in results.arms:
        arm.paper_bleu = arm.exact = None
        for run in arm.done:
            run_dirs[run.path].refuse_links(test_set)
            metrics = run_dirs[run.path].record_of("metrics.jsonl", test_set)
            run.exact, run.cut = None, metrics_log.last(metrics).get("decode", {}).get("cut")


def _fill_buckets(results: StudyResults, source: Sequence[str],
                  run_dirs: Mapping[str, RunDirectory]) -> np.ndarray:
    """Fills in the length buckets; returns the source lengths, int [sentences]."""
    lengths, results.length_unit = model_analysis.source_lengths(source, run_dirs.values())
    results.buckets = make_buckets(lengths)
    longest = {files.read_json(run_dir.file("model", "hparams.json"), {"max_length?": (int, None)}
                               ).get("max_length") for run_dir in run_dirs.values()}
    if results.length_unit == "sub-words" and len(longest) == 1:
        results.trained_length = longest.pop()
    return lengths


def _fill_scores(results: StudyResults, metric: Metric, counts: Mapping[str, np.ndarray],
                 documents: Sequence[str] | None) -> None:
    """Fills in one metric's scores and how the arms differ in it."""
    scores: dict[str, list[RunScores]] = {}
    for arm in results.arms:
        for run in arm.done:
            score = significance.run_scores(metric, counts[run.path], documents)
            setattr(run, metric.name, score.score)
            scores.setdefault(arm.name, []).append(score)
        if arm.done:
            setattr(arm, metric.name, significance.arm_score(scores[arm.name]))
    _compare(results, metric.name, scores)


def _compare(results: StudyResults, metric: str, scores: Mapping[str, Sequence[RunScores]]) -> None:
    """Compares the arms, and ranks them by BLEU; Holm's correction covers all pairs of a metric.

    Where there are too many arms to rank, it covers the pairs with the baseline. Arms of one seed
    have no p-value.
    """
    several = [name for name in sorted(scores, key=lambda name: name != results.baseline)
               if len(scores[name]) > 1]
    pairs = (list(itertools.combinations(several, 2)) if len(several) <= MOST_RANKED_ARMS else [])
    if results.baseline in scores:
        pairs += [(results.baseline, name) for name in scores
                  if name != results.baseline and (results.baseline, name) not in pairs]
    spread = significance.estimate_spread(scores.values()) if several else None
    compared = dict(zip(pairs, significance.correct([
        significance.compare(scores[first], scores[second], spread) for first, second in pairs]),
        strict=True))
    for arm in results.arms:
        setattr(arm, f"{metric}_difference", compared.get((results.baseline, arm.name)))
    if metric == "bleu" and 2 <= len(several) <= MOST_RANKED_ARMS:
        _rank(results, {pair: found for pair, found in compared.items()
                        if set(pair) <= set(several)})


def _rank(results: StudyResults, compared: Mapping[tuple[str, str], Comparison]) -> None:
    """Fills in the pairs, the letters of the arms, and how many seeds would be needed."""
    results.pairs = [ArmPair(*pair, comparison) for pair, comparison in compared.items()]
    comparisons, units = list(compared.values()), results.documents or results.sentences
    results.seeds_needed = significance.seeds_needed(comparisons, units)
    low, high = (significance.seeds_needed(comparisons, units, quantile=quantile)
                 for quantile in (0.1, 0.9))
    results.seeds_range = [low, high] if low and high else []
    tested = {name for pair in compared for name in pair}
    means = {arm.name: arm.bleu.mean for arm in results.arms if arm.bleu and arm.name in tested}
    letters = letters_of(means, [
        pair for pair, found in compared.items()
        if found.p_holm is not None and found.p_holm <= significance.LEVEL])
    for arm in results.arms:
        arm.letters = letters.get(arm.name, "")


def _fill_lengths(results: StudyResults, metric: Metric, counts: Mapping[str, np.ndarray],
                  hypotheses: Mapping[str, Sequence[str]], lengths: np.ndarray) -> None:
    """Fills in BLEU by source length, and what is known of the hypotheses' lengths."""
    for arm in results.arms:
        by_length = []
        for run in arm.done:
            run_counts = counts[run.path]
            by_length.append([metric.corpus_score(run_counts[bucket.contains(lengths)])[0]
                              for bucket in results.buckets])
            run.empty = sum(not line.strip() for line in hypotheses[run.path])
            run.brevity_penalty = round(brevity_penalty(*run_counts[:, :2].sum(axis=0)), 4)
            tokens, expected = run_counts[:, :2].T
            run.short = int(np.count_nonzero((tokens > 0) & (2 * tokens < expected)))
        arm.bleu_by_length = [statistics.fmean(column) for column in zip(*by_length, strict=True)]


def _fill_samples(results: StudyResults, source: Sequence[str], reference: Sequence[str],
                  hypotheses: Mapping[str, Sequence[str]], samples: int) -> None:
    """Chooses evenly spaced test sentences of medium length, with the arms' translations."""
    medium = [index for index, line in enumerate(source)
              if SAMPLE_WORDS[0] <= len(line.split()) <= SAMPLE_WORDS[1]]
    medium = medium or list(range(len(source)))
    chosen = [medium[place] for place in
              np.linspace(0, len(medium) - 1, min(samples, len(medium))).astype(int)]
    arms = results.featured(MOST_SAMPLED_ARMS)
    results.samples = [Sample(source[index], reference[index],
                              {arm.name: hypotheses[arm.done[0].path][index] for arm in arms})
                       for index in chosen]


def _shared_test_set(runs: Mapping[str, Run], run_dirs: Mapping[str, RunDirectory],
                     test_set: str) -> tuple[list[str], list[list[str]]]:
    """The source lines, and the lines of each reference, that all runs share."""
    for name, run in runs.items():
        if test_set and test_set not in run.test_sets:
            raise InvalidValue("test_set", test_set, f"{run_dirs[name].path} was not scored on it "
                               f"(run.test_sets: {', '.join(run.test_sets) or 'none'})")
    (first, run), *rest = runs.items()
    of_sacrebleu = sacrebleu_test_set(run, test_set)
    for name, other_run in rest:
        if sacrebleu_test_set(other_run, test_set) != of_sacrebleu:
            raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
    if any(of_sacrebleu):
        references = test_sets.test_set_references(*of_sacrebleu)
        return test_sets.test_set_source(*of_sacrebleu), list(references.values())
    source, reference, _ = run_dirs[first].test_files(test_set or "test")
    source_lines = test_sets.read_lines(source)
    lines = _read_lines(reference, len(source_lines))
    for name, _ in rest:
        if test_sets.read_lines(run_dirs[name].test_files(test_set or "test")[1]) != lines:
            raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
    return source_lines, [lines]


def _shared_documents(run: Run, run_dirs: Mapping[str, RunDirectory], test_set: str, sentences: int
                      ) -> list[str] | None:
    """The document of each sentence; None where nothing or a single document is known."""
    of_sacrebleu = sacrebleu_test_set(run, test_set)
    if any(of_sacrebleu):
        return test_sets.test_set_documents(*of_sacrebleu)
    paths = [run_dir.documents_file(test_set or "test") for run_dir in run_dirs.values()]
    names = {path: _read_lines(path, sentences) for path in paths if os.path.exists(path)}
    for path, lines in names.items():
        if lines != next(iter(names.values())):
            raise UserError(f"{path} names other documents than {next(iter(names))}")
    return test_sets.several_documents(next(iter(names.values()))) if names else None


def _read_lines(path: str, sentences: int) -> list[str]:
    """The lines of a file that has one per source sentence."""
    lines = test_sets.read_lines(path)
    if len(lines) != sentences:
        raise UserError(f"{path} has {len(lines):,} lines, its source has {sentences:,}")
    return lines


def letters_of(means: Mapping[str, float], different: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The letters of each arm; the best arm has an "a".

    Args:
      means: {arm: mean score}.
      different: pairs of arms that differ significantly.

    Returns:
      {arm: letters in alphabetical order}.
    """
    groups: list[frozenset[str]] = [frozenset(means)]
    for first, second in different:
        split = [group - {name} for group in groups if {first, second} <= group
                 for name in (first, second)]
        groups = [group for group in groups if not {first, second} <= group] + split
        groups = _absorb(groups)
    best_first = sorted(means, key=lambda name: -means[name])
    groups.sort(key=lambda group: [name not in group for name in best_first])
    return {name: "".join(_letter(number) for number, group in enumerate(groups) if name in group)
            for name in means}


def _absorb(groups: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """The groups that are not contained in another one."""
    unique = list(dict.fromkeys(groups))
    return [group for group in unique if not any(group < larger for larger in unique)]


def _letter(number: int) -> str:
    """a to z, then A to Z, then numbers in parentheses."""
    letters = string.ascii_letters
    return letters[number] if number < len(letters) else f"({number})"
