"""`rpr run`, an experiment from data to scores, and `rpr verify`, which repeats its first steps."""
import argparse
import dataclasses
import multiprocessing
import os
from collections.abc import Iterable
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool

from rpr.cli.arguments import Parser, number
from rpr.evaluation import test_sets
from rpr.experiments import gin_files, local_pool, provenance, studies, verification
from rpr.experiments.config import Run, describe
from rpr.experiments.pipeline import complete_run
from rpr.experiments.run_directory import RunDirectory, find_model, sacrebleu_test_set
from rpr.utils import files
from rpr.utils.console import QuietLogs, say
from rpr.utils.errors import InvalidValue, UserError, own_code_error
from rpr.utils.interfaces import ModelRequest, Problem
from rpr.utils.processes import die_with


def main(argv: list[str]) -> None:
    """`rpr run GIN [--run_dir=DIR] [--data_dir=DIR] [--set run.NAME=VALUE ...]`."""
    args = main_parser().parse_args(argv)
    run = gin_files.load_run(args.gin, args.set)
    run = provenance.with_usr_dir(run, args.t2t_usr_dir, args.gin)
    run_dir_path = os.path.abspath(args.run_dir or gin_files.default_directory(args.gin))
    files.refuse_unusable(run_dir_path)
    folder = os.path.dirname(run_dir_path)            # of a study's run: STUDY/runs
    if studies.is_study(os.path.dirname(folder)):
        folder = os.path.dirname(folder)
    data_dir = os.path.abspath(args.data_dir or os.path.join(folder, "data"))
    files.refuse_unusable(data_dir)
    local_pool.this_machine().check([run])
    run_dir = RunDirectory(run_dir_path, data_dir)
    if not args.skip_datagen:                         # of a study, which has checked the run
        check_new_runs([(run, run_dir)])
    complete_run(run, run_dir, args.skip_datagen,
                 args.training_of and os.path.abspath(args.training_of))
    say(f"{run_dir.path}: done", style="bold green")


def main_parser() -> Parser:
    """The flags of `rpr run`."""
    parser = Parser(
        prog="rpr run", epilog=describe([("run", Run)]),
        description="One run: datagen, train, average, decode, score. It can be stopped at any "
        "time:\nthe same command resumes from the last checkpoint.")
    parser.add_argument("gin", type=gin_files.resolve,
                        help="the file that describes the run, or recipe:NAME of one in gin/")
    parser.add_argument("--run_dir", type=os.path.expanduser, help="default: that of the gin file "
                        "if it is a run's own, else runs/ and its name")
    parser.add_argument("--data_dir", type=os.path.expanduser, help="vocabulary and TFRecords; "
                        "default: data/ next to the run's directory, shared by the runs there; of "
                        "a study's run: the study's")
    parser.add_argument("--set", action="append", default=[], metavar="run.NAME=VALUE",
                        help="a setting that overrides the file; may be repeated")
    parser.add_argument("--training_of", metavar="DIR", type=os.path.expanduser,
                        help="a finished run with the same training, of as many or fewer steps: "
                        "begin with its checkpoints")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="overrides run.usr_dir")
    parser.add_argument("--skip_datagen", action="store_true", help=argparse.SUPPRESS)
    return parser


def verify(argv: list[str]) -> int:
    """`rpr verify RUN_DIR [FLAGS]`; returns the exit code, 1 if anything differs."""
    args = verify_parser().parse_args(argv)
    files.refuse_unusable(args.run_dir)
    run, request = find_model(args.run_dir, args.data_dir, args.t2t_usr_dir)
    run_dir = RunDirectory(args.run_dir, request.data_dir)
    run = provenance.with_usr_dir(run, args.t2t_usr_dir, run_dir.config)
    result = verification.repeat_training(run, run_dir, args.steps)
    compared = f"{result.losses} losses"
    if result.checkpoints:
        compared += (f", and {result.tensors} tensors at steps "
                     f"{', '.join(map(str, result.checkpoints))}")
    if result.difference:
        environment = files.read_json(run_dir.file("environment.json"))
        on_gpus = environment.get("gpus") and not environment.get("deterministic_ops")
        note = "; on GPUs only trainings with TF_DETERMINISTIC_OPS=1 are equal" if on_gpus else ""
        say(f"{args.run_dir}: differs: {result.difference} (compared: {compared}){note}",
            "bold red")
        return 1
    say(f"{args.run_dir}: equal bit for bit: {compared}", "bold green")
    return 0


def verify_parser() -> Parser:
    """The flags of `rpr verify`."""
    parser = Parser(
        prog="rpr verify", description="Repeats the first steps of a run's training in a temporary "
        "directory and compares\nlosses and weights bit for bit with those of the run.")
    parser.add_argument("run_dir", help="the directory of the run")
    parser.add_argument("--steps", type=number(1),
                        help="how many steps (default: up to the first checkpoint after the start)")
    parser.add_argument("--data_dir", help="vocabulary and TFRecords (default: where rpr run and "
                        "rpr study put them)")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="directory of your own code")
    return parser


def check_new_runs(runs: Iterable[tuple[Run, RunDirectory]]) -> None:
    """Refuses new runs that name a model, problem, hparams set, hparam or text that does not exist.

    Refuses those that name their own test set among the further ones, too. A run is not new if its
    directory has its configuration. If all are new, hparams that none of the trainings reads are
    refused, too. Names runs that would be one training.
    """
    runs = list(runs)
    new = [(run, run_dir) for run, run_dir in runs if not os.path.exists(run_dir.config)
           or gin_files.load_run(run_dir.config) != run]
    if not new:
        return
    for run, _ in new:
        provenance.text_files(run)
        own = f"{run.test_set}:{run.language_pair}"
        if own in run.test_sets:                      # a report of older runs refuses `all` instead
            raise UserError(f"run.test_sets: {own} is run.test_set already")
    context = multiprocessing.get_context("fork")     # TensorFlow stays in a process of its own
    try:
        with futures.ProcessPoolExecutor(1, context, die_with, (os.getpid(),)) as process:
            read, unread = process.submit(_check, [run for run, _ in new]).result()
    except BrokenProcessPool:
        raise UserError("the process that checks runs was killed (out of memory?)") from None
    if unread and len(new) == len(runs):
        raise UserError(f"hparams: {unread[0]}; leave it out, or take another model or "
                        "hparams set")
    names: dict[tuple[Run, str], list[str]] = {}
    for (run, run_dir), hparams in zip(new, read, strict=True):
        same = dataclasses.replace(run, hparams="", hparams_set="any")
        names.setdefault((same, hparams), []).append(os.path.basename(run_dir.path))
    for same_runs in names.values():
        if len(same_runs) > 1:
            say(f"{', '.join(same_runs)} are the same training: they differ only in hparams that "
                "it does not read", style="yellow")


def _check(runs: list[Run]) -> tuple[list[str], list[str]]:
    """See `check_new_runs`; returns what `preflight.check_runs` does, the hparams as text."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    logs = QuietLogs()
    try:
        from rpr.t2t import compat
        compat.install()                              # before anything imports T2T
        from rpr.t2t import preflight, registration
        read, unread = preflight.check_runs([
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
    return [repr(sorted(hparams.items())) for hparams in read], unread


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
