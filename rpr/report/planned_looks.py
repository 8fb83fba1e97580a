"""What the finished runs of a study with planned looks decide (study.looks)."""
import itertools
from collections.abc import Mapping, Sequence

from rpr.evaluation import LOSS_METRICS, looks, significance
from rpr.evaluation.looks import Plan, Verdict
from rpr.evaluation.ratio_metrics import loss_counts, make_metric, read_losses
from rpr.evaluation.scoring import sentence_statistics
from rpr.evaluation.significance import RunScores
from rpr.experiments import gin_files
from rpr.experiments.run_directory import RunDirectory
from rpr.report import test_texts
from rpr.report.results import StudyResults
from rpr.report.study_reader import run_directory_of


def look(arms: Mapping[str, Sequence[tuple[str, RunDirectory]]], baseline: str, plan: Plan
         ) -> tuple[dict[str, Verdict], dict[str, int]]:
    """What the finished runs decide; see `looks.decide`.

    They are judged by the first of their metrics on their own test set. `arms` are {arm: (state,
    directory) of its runs in the order of the seeds}.
    """
    done = {arm: [run_dir for _, run_dir in itertools.takewhile(
        lambda entry: entry[0] == "done", runs)] for arm, runs in arms.items()}
    failed = [arm for arm, runs in arms.items()
              if len(done[arm]) < len(runs) and runs[len(done[arm])][0] == "failed"]
    run_dirs = {run_dir.path: run_dir for found in done.values() for run_dir in found}
    scores: dict[str, RunScores] = {}
    if run_dirs and all(len(found) >= plan.seeds[0] for arm, found in done.items()
                        if arm not in failed):
        scores = _first_scores(run_dirs)
    return looks.decide({arm: [scores[run_dir.path] for run_dir in found if scores]
                         for arm, found in done.items()}, baseline, plan, failed)


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


def fill_verdicts(results: StudyResults, path: str) -> None:
    """Fills in what the looks decided."""
    verdicts = look({arm.name: [(run.state, run_directory_of(path, run)) for run in arm.runs]
                     for arm in results.arms}, results.baseline,
                    Plan(tuple(results.looks), results.margin))[0]
    for arm in results.arms:
        if verdict := verdicts.get(arm.name):
            arm.looked = verdict.seeds
            arm.answer = {True: "yes", False: "no", None: "open"}[verdict.answer]
