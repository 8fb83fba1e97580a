"""Checks new runs before anything is written, in a process of its own: TensorFlow stays there."""
import dataclasses
import multiprocessing
import os
from collections.abc import Iterable
from concurrent import futures

from rpr.evaluation import test_sets
from rpr.experiments import gin_files, provenance
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory, sacrebleu_test_set
from rpr.utils.console import QuietLogs, say
from rpr.utils.errors import InvalidValue, UserError, own_code_error
from rpr.utils.interfaces import ModelRequest, Problem
from rpr.utils.processes import with_parent


def check_new_runs(runs: Iterable[tuple[Run, RunDirectory]]) -> None:
    """Refuses new runs that name a model, problem, hparams set, hparam or text that does not exist.

    A run is not new if its directory has its configuration.
    """
    runs = list(runs)
    new = [run for run, run_dir in runs if not os.path.exists(run_dir.config)
           or gin_files.load_run(run_dir.config) != run]
    for run in new:
        provenance.text_files(run)
    if new:
        context = multiprocessing.get_context("fork")
        with futures.ProcessPoolExecutor(1, context, with_parent()) as process:
            read = process.submit(_check, new).result()
        _say_which_are_the_same(runs, new, read)


def _say_which_are_the_same(runs: Iterable[tuple[Run, RunDirectory]], new: list[Run],
                            read: list[str]) -> None:
    """Names runs whose trainings would be the same: their arms are one model."""
    directories = {id(run): os.path.basename(run_dir.path) for run, run_dir in runs}
    names: dict[tuple[Run, str], list[str]] = {}
    for run, hparams in zip(new, read, strict=True):
        same = dataclasses.replace(run, hparams="", hparams_set="any")
        names.setdefault((same, hparams), []).append(directories[id(run)])
    for same_runs in names.values():
        if len(same_runs) > 1:
            say(f"{', '.join(same_runs)} are the same training: they differ only in hparams that "
                "it does not read", style="yellow")


def _check(runs: list[Run]) -> list[str]:
    """See `check_new_runs`; returns the hparams that each training reads, as text."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    logs = QuietLogs()
    try:
        from rpr.t2t import compat
        compat.install()                              # before anything imports T2T
        from rpr.t2t import preflight, registration
        read = preflight.check_runs([
            ModelRequest(run.model, run.problem, run.hparams_set, run.hparams,
                         t2t_usr_dir=run.usr_dir) for run in runs])
        from rpr.problems import checks, translation
        for run in runs:
            problem = registration.find_problem(run.problem)
            if not isinstance(problem, translation.TranslationProblem) and (
                    not checks.is_parallel_text(problem)
                    or problem.dataset_filename() != run.problem):
                raise UserError(f"run.problem = {run.problem}: a run translates, and this problem "
                                "has no pairs of texts, packs them, or uses another one's data; "
                                "rpr datagen and rpr train take it")
            if run.is_language_model == problem.has_inputs:
                raise UserError(
                    f"run.problem = {run.problem} has a source text: run.metrics = "
                    f"{run.metrics} are of language models" if problem.has_inputs else
                    f"run.problem = {run.problem} is a language model: set run.metrics = "
                    '("perplexity", "token_loss")')
            _check_test_sets(run, problem)
    except Exception as error:                        # a traceback would not reach the parent
        own = None if isinstance(error, UserError) else own_code_error(error)
        if own:
            raise UserError(own) from None
        raise
    finally:
        logs.end()
    return [repr(sorted(hparams.items())) for hparams in read]


def _check_test_sets(run: Run, problem: Problem) -> None:
    """Refuses test sets that neither the problem nor sacreBLEU has."""
    if run.test_set:
        test_sets.check_test_set(run.test_set, run.language_pair)
    of_problem = getattr(problem, "extra_test_sets", ())
    for test_set in run.test_sets:
        name, pair = sacrebleu_test_set(run, test_set)
        if pair:
            try:
                test_sets.check_test_set(name, pair)
            except InvalidValue as error:
                raise UserError(error.spelled("run.test_sets", " = ")) from None
        elif test_set not in of_problem:
            raise UserError(f"run.test_sets: {run.problem} has no test set {test_set} "
                            f"({', '.join(of_problem) or 'it has none'}); sacreBLEU's are written "
                            "NAME:PAIR, such as wmt21:en-de")
