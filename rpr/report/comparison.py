"""Scores the translations of all runs and compares each arm with the baseline."""
import statistics
from collections.abc import Mapping

import numpy as np

from rpr.evaluation import scoring, significance, test_sets
from rpr.experiments import gin_files
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory
from rpr.report import length_buckets, model_analysis
from rpr.report.results import StudyResults
from rpr.report.study_reader import run_directory_of
from rpr.utils import files
from rpr.utils.console import Task
from rpr.utils.errors import UserError

METRICS = ("bleu", "chrf")


def score_runs(results: StudyResults, path: str) -> None:
    """Fills in scores, differences and their significance; unfinished runs get no scores.

    Args:
      results: as `study_reader.read_study` returns it; changed in place.
      path: the study's directory.

    Raises:
      UserError: runs were scored on different text, or text is missing.
    """
    run_dirs = {run.path: run_directory_of(path, run) for arm in results.arms for run in arm.done}
    if not run_dirs:
        return
    runs = {name: gin_files.load_run(run_dir.config) for name, run_dir in run_dirs.items()}
    for arm in results.arms:
        arm.steps = next((runs[run.path].train_steps for run in arm.done), None)
    source, references = _shared_test_set(runs, run_dirs)
    hypotheses = {name: _read_hypotheses(run_dir, len(source))
                  for name, run_dir in run_dirs.items()}
    results.sentences = len(source)
    lengths, results.length_unit = model_analysis.source_lengths(source, run_dirs.values())
    results.buckets = length_buckets.make_buckets(lengths)
    longest = {files.read_json(run_dir.file("model", "hparams.json")).get("max_length")
               for run_dir in run_dirs.values()}
    if results.length_unit == "sub-words" and len(longest) == 1:
        results.trained_length = longest.pop()
    run = next(iter(runs.values()))
    count = 0
    with Task("bootstrap", len(METRICS) * len(hypotheses), "scores") as task:
        for metric in METRICS:
            scorer = significance.Scorer(metric, references, run.test_set, run.language_pair)
            resampled: dict[str, list[np.ndarray]] = {}
            for arm in results.arms:
                by_length = []
                for run_result in arm.done:
                    counts = scorer.statistics(hypotheses[run_result.path])
                    setattr(run_result, metric, scorer.score(counts))
                    resampled.setdefault(arm.name, []).append(scorer.resampled(counts))
                    by_length.append([scorer.score(counts[bucket.contains(lengths)])
                                      for bucket in results.buckets])
                    count += 1
                    task.update(count)
                if arm.done:
                    setattr(arm, metric, significance.estimate(
                        [getattr(run, metric) for run in arm.done], resampled[arm.name]))
                    if metric == "bleu":
                        arm.bleu_by_length = [statistics.fmean(column) for column
                                              in zip(*by_length, strict=True)]
            _compare_with_baseline(results, metric, resampled)
            results.signatures[scoring.METRICS[metric]] = scorer.signature()


def _compare_with_baseline(results: StudyResults, metric: str,
                           resampled: Mapping[str, list[np.ndarray]]) -> None:
    """Fills in one metric's differences from the baseline and their p-values."""
    baseline = results.baseline_arm
    arms = [arm for arm in results.arms if arm is not baseline and arm.done]
    if not baseline.done:
        return
    for arm in arms:
        significance.compare(getattr(arm, metric), resampled[arm.name],
                             getattr(baseline, metric), resampled[results.baseline])
    corrected = significance.holm([getattr(arm, metric).p for arm in arms])
    for arm, p in zip(arms, corrected, strict=True):
        getattr(arm, metric).p_holm = p


def _shared_test_set(runs: Mapping[str, Run], run_dirs: Mapping[str, RunDirectory]
                     ) -> tuple[list[str], dict[str, list[str]]]:
    """The source lines and the references {name: lines} that all runs share."""
    (first, run), *rest = runs.items()
    if run.test_set:
        for name, other_run in rest:
            if (other_run.test_set, other_run.language_pair) != (run.test_set, run.language_pair):
                raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
        return (test_sets.test_set_source(run.test_set, run.language_pair),
                test_sets.test_set_references(run.test_set, run.language_pair))
    lines = test_sets.read_lines(run_dirs[first].reference)
    for name, other_run in rest:
        if other_run.test_set or test_sets.read_lines(run_dirs[name].reference) != lines:
            raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
    return test_sets.read_lines(run_dirs[first].source), {run_dirs[first].reference: lines}


def _read_hypotheses(run_dir: RunDirectory, sentences: int) -> list[str]:
    """The translations of a run, one per source sentence."""
    lines = test_sets.read_lines(run_dir.hypotheses)
    if len(lines) != sentences:
        raise UserError(f"{run_dir.hypotheses} has {len(lines):,} lines, its source has "
                        f"{sentences:,}")
    return lines
