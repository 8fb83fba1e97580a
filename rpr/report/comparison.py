"""Scores the translations of all runs and compares the arms with each other."""
import itertools
import math
import statistics
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rpr.evaluation import ALL_METRICS, LOSS_METRICS, designs, looks, significance
from rpr.evaluation.looks import Plan, Verdict
from rpr.evaluation.metrics import Metric
from rpr.evaluation.ratio_metrics import loss_counts, make_metric, make_metrics, read_losses
from rpr.evaluation.scoring import sentence_statistics
from rpr.evaluation.significance import Comparison, RunScores
from rpr.experiments import gin_files
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory
from rpr.report import model_analysis, test_texts
from rpr.report.results import (
    BEYOND,
    DEFAULT_METRICS,
    MIN_SENTENCES,
    ArmPair,
    Sample,
    StudyResults,
    make_buckets,
)
from rpr.report.study_reader import run_directory_of
from rpr.utils import files, metrics_log
from rpr.utils.console import say
from rpr.utils.errors import InvalidValue, UserError

MOST_RANKED_ARMS = 30                                 # with more, a ranking cannot be read
MOST_LETTERS = 200                                    # so many take a second to find
SAMPLES, SAMPLE_WORDS, MOST_SAMPLED_ARMS = 6, (4, 40), 12


class Measure(NamedTuple):
    """What is scored, and how."""
    # One of `run.test_sets`; empty: the runs' own test set; `test_texts.ALL`: all sentences of
    # these, unless a test set has that name.
    test_set: str = ""
    tokenize: str | None = None                       # of BLEU, as in `rpr score --tokenize`
    language_pair: str = ""                           # such as en-de; empty: that of the runs


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
    run_dirs = {run.path: run_directory_of(path, run) for run in results.all_runs
                if run.state == "done"}
    if not run_dirs:
        return
    for each in results.all_runs:
        each.scores = {}                              # as recorded, perhaps of other tokens
    if results.looks:
        verdicts = look({arm.name: [(run.state, run_directory_of(path, run)) for run in arm.runs]
                         for arm in results.arms}, results.baseline,
                        Plan(tuple(results.looks), results.margin))[0]
        for arm in results.arms:
            if verdict := verdicts.get(arm.name):
                arm.looked = verdict.seeds
                arm.answer = {True: "yes", False: "no", None: "open"}[verdict.answer]
    runs = {name: gin_files.load_run(run_dir.config) for name, run_dir in run_dirs.items()}
    kinds = {run.is_language_model: run_dirs[name].path for name, run in runs.items()}
    if len(kinds) > 1:
        raise UserError(f"{kinds[True]} is a language model and {kinds[False]} is not: report them "
                        "separately")
    if len({run.metrics or DEFAULT_METRICS for run in runs.values()}) > 1:
        say("run.metrics differs between the runs; all are scored by "
            f"{', '.join(results.metrics)}", style="yellow")
    names = test_texts.test_sets_of(runs, measure.test_set)
    if measure.test_set:
        _leave_own_test_set(results, run_dirs, names)
    results.title = ", ".join(filter(None, (
        results.title, measure.test_set if len(names) == 1 else " + ".join(
            name or test_texts.OWN for name in names), measure.tokenize)))
    if results.metric in LOSS_METRICS:
        if measure.tokenize:
            raise InvalidValue("tokenize", measure.tokenize,
                               "these runs are language models, which translate nothing")
        if len(names) > 1:
            raise InvalidValue("test_set", measure.test_set, "of language models, one at a time: "
                               f"{', '.join(names[1:])}")
        _score_losses(results, runs, run_dirs, names[0])
        return
    texts = [test_texts.read_test_set(runs, run_dirs, name) for name in names]
    source, references, hypotheses, documents = test_texts.joined(texts, names)
    results.sentences, results.documents = len(source), len(set(documents or ()))
    lengths = _fill_buckets(results, source, run_dirs)
    run = next(iter(runs.values()))
    own_test_set, language_pair = test_texts.sacrebleu_name(run, names)
    language_pair = measure.language_pair or language_pair
    metrics = make_metrics(results.metrics, len(references), measure.tokenize, language_pair)
    statistics_of = sentence_statistics(metrics, hypotheses, references)
    for metric in metrics:
        counts = statistics_of[metric.name]
        _fill_scores(results, metric, counts, documents)
        if metric.name == "bleu":
            _fill_word_counts(results, counts)
        results.signatures[ALL_METRICS[metric.name]] = metric.signature(
            test=own_test_set, lang=own_test_set and language_pair)
    for done in results.done:
        done.empty = sum(not line.strip() for line in hypotheses[done.path])
    _fill_lengths(results, metrics[0], statistics_of[results.metric], lengths, documents)
    if len(names) > 1:
        _fill_test_sets(results, metrics[0], statistics_of[results.metric], {
            name or test_texts.OWN: len(text.source)
            for name, text in zip(names, texts, strict=True)})
    _fill_samples(results, source, references[0], hypotheses, samples)


def look(arms: Mapping[str, Sequence[tuple[str, RunDirectory]]], baseline: str, plan: Plan
         ) -> tuple[dict[str, Verdict], dict[str, int]]:
    """What the finished runs decide; see `looks.decide`.

    They are judged by the first of their metrics on their own test set. `arms` are {arm: (state,
    directory) of its runs in the order of the seeds}.
    """
    done = {arm: [run_dir for _, run_dir in runs[:_done_at_first(state for state, _ in runs)]]
            for arm, runs in arms.items()}
    failed = [arm for arm, runs in arms.items()
              if len(done[arm]) < len(runs) and runs[len(done[arm])][0] == "failed"]
    run_dirs = {run_dir.path: run_dir for found in done.values() for run_dir in found}
    scores: dict[str, RunScores] = {}
    if run_dirs and all(len(found) >= plan.seeds[0] for arm, found in done.items()
                        if arm not in failed):
        scores = _first_scores(run_dirs)
    return looks.decide({arm: [scores[run_dir.path] for run_dir in found if scores]
                         for arm, found in done.items()}, baseline, plan, failed)


def _done_at_first(states: Iterable[str]) -> int:
    """How many of an arm's runs are done before the first that is not: those that looks count."""
    return len(list(itertools.takewhile("done".__eq__, states)))


def _first_scores(run_dirs: Mapping[str, RunDirectory]) -> dict[str, RunScores]:
    """{path: score in the first metric on the runs' own test set}."""
    runs = {name: gin_files.load_run(run_dir.config) for name, run_dir in run_dirs.items()}
    run = next(iter(runs.values()))
    if run.metric in LOSS_METRICS:
        counts = {path: loss_counts(read_losses(run_dir.losses_file()))
                  for path, run_dir in run_dirs.items()}
        metric, documents = make_metric(run.metric), None
    else:
        texts = test_texts.read_test_set(runs, run_dirs, "")
        metric = make_metric(run.metric, len(texts.references),
                             language_pair=test_texts.sacrebleu_name(run, [""])[1])
        documents = texts.documents
        counts = sentence_statistics([metric], texts.hypotheses, texts.references)[metric.name]
    return {path: significance.run_scores(metric, each, documents)
            for path, each in counts.items()}


def _leave_own_test_set(results: StudyResults, run_dirs: Mapping[str, RunDirectory],
                        names: Sequence[str]) -> None:
    """Replaces what was recorded for the runs' own test set by what is known of these."""
    for arm in results.arms:
        arm.paper_bleu = arm.exact = None
    for run in (run for run in results.all_runs if run.path in run_dirs):
        cut = []
        for name in names:
            run_dirs[run.path].refuse_links(name)
            metrics = run_dirs[run.path].record_of("metrics.jsonl", name)
            cut.append(metrics_log.last(metrics).get("decode", {}).get("cut"))
        run.exact = None
        run.cut = None if None in cut else sum(number or 0 for number in cut)


def _fill_buckets(results: StudyResults, source: Sequence[str],
                  run_dirs: Mapping[str, RunDirectory]) -> np.ndarray:
    """Fills in the length buckets; returns the source lengths, int [sentences]."""
    trained = _shared(files.read_json(run_dir.data, {"trained_length?": int}).get("trained_length")
                      for run_dir in run_dirs.values())
    if trained is not None:
        results.trained_length, results.length_unit = trained, "tokens"
        lengths = np.array([len(line.split()) for line in source])
    else:
        lengths, results.length_unit = model_analysis.source_lengths(source, run_dirs.values())
    results.buckets = make_buckets(lengths, results.length_buckets)
    longest = _max_length(run_dirs)
    if results.length_unit == "sub-words":
        results.trained_length = longest
    return lengths


def _max_length(run_dirs: Mapping[str, RunDirectory]) -> int | None:
    """The hparam max_length, if all models share it."""
    return _shared(files.read_json(run_dir.file("model", "hparams.json"), {
        "max_length?": (int, None)}).get("max_length") for run_dir in run_dirs.values())


def _shared(values: Iterable[int | None]) -> int | None:
    """The value that all have."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _score_losses(results: StudyResults, runs: Mapping[str, Run],
                  run_dirs: Mapping[str, RunDirectory], test_set: str) -> None:
    """Fills in the scores of language models, by position in the text too."""
    texts = len(test_texts.shared_test_set(runs, run_dirs, test_set)[0])
    losses = {name: read_losses(run_dir.losses_file(test_set))
              for name, run_dir in run_dirs.items()}
    first, sizes = next((name, list(map(len, rows))) for name, rows in losses.items())
    for name, rows in losses.items():
        if len(rows) != texts or list(map(len, rows)) != sizes:
            raise UserError(f"{run_dirs[name].path} was scored on other tokens than {first}")
    results.sentences, results.length_unit = texts, "tokens"
    results.trained_length = _max_length(run_dirs)
    results.buckets = make_buckets(np.concatenate([np.arange(1, size + 1) for size in sizes]),
                                   results.length_buckets)
    for metric in map(make_metric, results.metrics):
        _fill_scores(results, metric, {name: loss_counts(rows) for name, rows in losses.items()})
        results.signatures[ALL_METRICS[metric.name]] = metric.signature()
    metric = make_metric(results.metric)
    for arm in results.arms:
        for run in arm.done:
            run.by_length = [metric.corpus_score(loss_counts(losses[run.path], bucket.low,
                                                             bucket.high))[0]
                             for bucket in results.buckets]
        arm.by_length = [statistics.fmean(scores) for scores in zip(
            *(run.by_length for run in arm.done), strict=True)]
    longest = results.trained_length or max(sizes)
    if sum(size > longest for size in sizes) >= MIN_SENTENCES:
        _fill_scores(results, metric, {
            name: loss_counts([row for row in rows if len(row) > longest], longest + 1)
            for name, rows in losses.items()}, None, BEYOND)


def _fill_scores(results: StudyResults, metric: Metric, counts: Mapping[str, np.ndarray],
                 documents: Sequence[str] | None = None, name: str = "") -> None:
    """Fills in a metric's scores, under another name if given, and how the arms differ in it."""
    name = name or metric.name
    scores: dict[str, list[RunScores]] = {}
    for arm in results.arms:
        of_run: dict[str, RunScores] = {}
        for run in (run for run in arm.all_runs if run.path in counts):
            of_run[run.path] = score = significance.run_scores(metric, counts[run.path], documents)
            run.scores[name] = score.score
        if not arm.done:
            continue
        scores[arm.name] = [of_run[run.path] for run in arm.done]
        arm.scores[name] = significance.arm_score(scores[arm.name])
        if arm.tried:
            scores[arm.name] = designs.with_choice(
                [[of_run[run.path] for run in group] for group in arm.tried],
                [[run.loss or 0.0 for run in group] for group in arm.tried])
    _compare(results, name, scores)


def _compare(results: StudyResults, metric: str, scores: Mapping[str, Sequence[RunScores]]) -> None:
    """Compares the arms, and ranks them by the first metric; Holm's correction covers all pairs.

    Where there are too many arms to rank, it covers the pairs with the baseline. Arms of one seed
    have no p-value. Where all scores are equal, as of untrained models, nothing is compared.
    """
    if len({run.score for runs in scores.values() for run in runs}) < 2:
        return
    several = [name for name in sorted(scores, key=lambda name: name != results.baseline)
               if len(scores[name]) > 1]
    if results.looks:                                 # with the seeds of each arm's last look
        differences = looks.compare(
            {arm.name: scores.get(arm.name, [])[:_done_at_first(run.state for run in arm.runs)]
             for arm in results.arms}, results.baseline,
            Plan(tuple(results.looks), results.margin if metric == results.metric else 0.0),
            {arm.name: Verdict(arm.looked, None) for arm in results.arms if arm.looked})
    else:
        pairs = list(itertools.combinations(several, 2) if len(several) <= MOST_RANKED_ARMS else ())
        if results.baseline in scores:
            pairs += [(results.baseline, name) for name in scores
                      if name != results.baseline and (results.baseline, name) not in pairs]
        spread = significance.estimate_spread(scores.values()) if several else None
        compared = dict(zip(pairs, significance.correct([
            significance.compare(scores[first], scores[second], spread)
            for first, second in pairs]), strict=True))
        differences = {name: found for (first, name), found in compared.items()
                       if first == results.baseline}
        if metric == results.metric and 2 <= len(several) <= MOST_RANKED_ARMS:
            _rank(results, {pair: found for pair, found in compared.items()
                            if set(pair) <= set(several)})
    for arm in results.arms:
        if arm.name in differences:
            arm.differences[metric] = differences[arm.name]


def _rank(results: StudyResults, compared: Mapping[tuple[str, str], Comparison]) -> None:
    """Fills in the pairs, the letters of the arms, and how many seeds would be needed."""
    results.pairs = [ArmPair(*pair, comparison) for pair, comparison in compared.items()]
    comparisons = list(compared.values())
    results.seeds_needed = designs.seeds_needed(comparisons)
    low, high = (designs.seeds_needed(comparisons, quantile) for quantile in (0.1, 0.9))
    results.seeds_range = [low, high] if low else []
    letters = letters_of(results.ranked, [
        pair for pair, found in compared.items()
        if found.p_holm is not None and found.p_holm <= significance.LEVEL])
    for arm in results.arms:
        arm.letters = letters.get(arm.name, "")


def _fill_word_counts(results: StudyResults, counts: Mapping[str, np.ndarray]) -> None:
    """Fills in what BLEU's counts tell about the hypotheses' lengths."""
    for run in results.done:
        tokens, expected = counts[run.path][:, :2].T
        length, wanted = tokens.sum(), expected.sum()
        run.brevity_penalty = round(math.exp(min(0.0, 1 - wanted / length)), 4) if length else 0.0
        run.short = int(np.count_nonzero((tokens > 0) & (2 * tokens < expected)))


def _fill_lengths(results: StudyResults, metric: Metric, counts: Mapping[str, np.ndarray],
                  lengths: np.ndarray, documents: Sequence[str] | None) -> None:
    """Fills in the first metric by source length, and for sources longer than in training."""
    inside = [bucket.contains(lengths) for bucket in results.buckets]
    names = [None if documents is None else np.array(documents)[some] for some in inside]
    for arm in results.arms:
        scores = [[significance.run_scores(metric, counts[run.path][some], units)
                   for some, units in zip(inside, names, strict=True)] for run in arm.done]
        for run, by_length in zip(arm.done, scores, strict=True):
            run.by_length = [score.score for score in by_length]
        means = [significance.arm_score(some) for some in zip(*scores, strict=True)]
        arm.by_length = [score.mean for score in means]
        arm.interval_by_length = [[score.low, score.high] for score in means]
    longer = lengths > (results.trained_length or math.inf)
    if MIN_SENTENCES <= longer.sum() < len(longer):
        units = None if documents is None else np.array(documents)[longer]
        _fill_scores(results, metric, {path: rows[longer] for path, rows in counts.items()},
                     units, BEYOND)


def _fill_test_sets(results: StudyResults, metric: Metric, counts: Mapping[str, np.ndarray],
                    sentences: Mapping[str, int]) -> None:
    """Fills in the first metric of each of several test sets, {name: number of sentences}."""
    ends = np.cumsum(list(sentences.values()))[:-1]
    for arm in results.arms:
        scores = [[metric.corpus_score(part)[0] for part in np.split(counts[run.path], ends)]
                  for run in arm.done]
        arm.by_test_set = {name: statistics.fmean(column) for name, column
                                in zip(sentences, zip(*scores, strict=True), strict=bool(scores))}


def _fill_samples(results: StudyResults, source: Sequence[str], reference: Sequence[str],
                  hypotheses: Mapping[str, Sequence[str]], samples: int) -> None:
    """Chooses evenly spaced test sentences of medium length, with the arms' translations."""
    medium = [index for index, line in enumerate(source) if SAMPLE_WORDS[0] <= len(
        line.split()) <= SAMPLE_WORDS[1]] or list(range(len(source)))
    chosen = [medium[place] for place in
              np.linspace(0, len(medium) - 1, min(samples, len(medium))).astype(int)]
    arms = results.featured(MOST_SAMPLED_ARMS)
    results.samples = [Sample(source[index], reference[index],
                              {arm.name: hypotheses[arm.done[0].path][index] for arm in arms})
                       for index in chosen]


def letters_of(means: Mapping[str, float], different: Iterable[tuple[str, str]]) -> dict[str, str]:
    """{arm: its letters in alphabetical order}; the best arm has an "a".

    There is a letter for each largest set of arms that do not differ. In rare cases their number
    grows exponentially; with more than `MOST_LETTERS` the result is empty. `means` are {arm: mean
    score}, `different` the pairs of arms that differ significantly.
    """
    groups: list[frozenset[str]] = [frozenset(means)]
    for first, second in different:
        split = [group - {name} for group in groups if {first, second} <= group
                 for name in (first, second)]
        found = dict.fromkeys(
            [group for group in groups if not {first, second} <= group] + split)
        groups = [group for group in found if not any(group < larger for larger in found)]
        if len(groups) > MOST_LETTERS:
            return {}
    best_first = sorted(means, key=lambda name: -means[name])
    groups.sort(key=lambda group: [name not in group for name in best_first])
    letters = [*string.ascii_letters, *(f"({number})" for number in range(52, len(groups)))]
    return {name: "".join(letter for letter, group in zip(letters, groups, strict=False)
                          if name in group) for name in means}
