"""`rpr study`: all runs of a study, on this machine or as jobs of a cluster."""
import argparse
import contextlib
import os
import shutil

from rpr.cli import report
from rpr.cli.arguments import CORES_HELP, Parser, number
from rpr.cli.run import check_new_runs
from rpr.experiments import gin_files, local_pool, progress, provenance, scheduler, slurm, studies
from rpr.experiments.config import Run, Study, describe
from rpr.experiments.run_directory import RunDirectory, new_test_sets
from rpr.utils import files, locks
from rpr.utils.console import for_tables, say, terminal
from rpr.utils.errors import InvalidValue, UserError

_SMOKE_LINES = 8                                      # of each test set


def main(argv: list[str]) -> None:
    """`rpr study GIN [FLAGS]`, `rpr study --status DIR`."""
    args = main_parser().parse_args(argv)
    if args.submitit_option and not args.cluster:
        raise InvalidValue("submitit_option", args.submitit_option[0], "only with --cluster")
    if args.status:
        others = [args.gin if name == "gin" else f"--{name}" for name, value in vars(args).items()
                  if value and name != "status"]
        if others:
            raise UserError(f"--status={args.status}: shows a study and starts nothing; leave out "
                            f"{', '.join(others)}")
        runs = studies.load(args.status)
        progress.show(runs)
        line = studies.data_line(runs, args.status)
        if line:
            say(line)
        return
    if not args.gin:
        raise UserError("name the gin file of a study, or a study's directory with --status")
    if args.smoke and (args.cluster or args.dry_run):
        raise UserError("--smoke runs on this machine: leave out --cluster and --dry_run")
    study, run = gin_files.load_study(args.gin, args.set)
    run = provenance.with_usr_dir(run, args.t2t_usr_dir, args.gin)
    study_dir = os.path.abspath(args.study_dir or gin_files.default_directory(args.gin))
    files.refuse_unusable(study_dir)
    smoke_dir = f"{study_dir}-smoke"
    if args.smoke:
        study, run = studies.shortened(study, run)
        data_dir, study_dir = os.path.join(study_dir, "data"), smoke_dir
    runs = studies.study_runs(study, run, study_dir)
    settings = [study_run.run for study_run in runs]
    machine = None if args.cluster else local_pool.this_machine(args.devices, args.cores)
    if machine:
        machine.check(settings)
    max_parallel = machine.max_parallel(settings) if machine else len(runs)
    check_new_runs((study_run.run, study_run.run_dir) for study_run in runs)
    if args.smoke:
        os.makedirs(os.path.dirname(smoke_dir), exist_ok=True)
    with locks.locked(smoke_dir) if args.smoke else contextlib.nullcontext():
        if args.smoke:
            _begin_smoke_test(smoke_dir, data_dir)
        for study_run in runs:
            provenance.check_corpus(study_run.run, study_run.run_dir)
        studies.check(run, runs, study_dir)
        if args.dry_run:
            # A smoke test of other settings has other directories.
            measured = (studies.study_runs(*studies.shortened(study, run), smoke_dir)
                        if studies.is_study(smoke_dir) else [])
            table, line = progress.plan(runs, max_parallel, measured, args.retry_failed)
            for_tables(terminal).print(table)
            say(line + ("; fewer runs if study.looks stops arms" if study.looks else ""))
            return
        _complete(args, study, run, runs, machine, max_parallel)


def _complete(args: argparse.Namespace, study: Study, run: Run, planned: list[studies.StudyRun],
              machine: local_pool.Machine | None, max_parallel: int) -> None:
    """Runs what is not finished of the `planned` runs, and makes the report."""
    study_dir = planned[0].study_dir
    workers = local_pool.Pool(machine) if machine else slurm.Cluster(
        args.cluster, os.path.join(study_dir, "jobs"), args.submitit_option)
    is_new = not studies.is_study(study_dir)
    studies.restore_test_texts(planned, study_dir)    # which `study.looks` compares
    runs = studies.prepare(study, run, study_dir, _needed(study, planned, args.retry_failed))
    outside = studies.runs_outside(study_dir, [study_run.directory for study_run in planned])
    if outside:
        say(f"{len(outside)} runs are outside this study, which leaves their arms, seeds or steps "
            f"out: {', '.join(outside)}", style="yellow")
    try:
        studies.make_data([] if args.cluster else studies.unfinished(runs, args.retry_failed),
                          study_dir)
    except UserError:
        if is_new:                                    # a corrected study may take its place
            studies.discard(runs, study_dir)
        raise
    if args.smoke:
        studies.cut_test_texts(runs, _SMOKE_LINES)
    _note_missing_curves(runs)
    # On a cluster the first job makes the data of the others.
    flags = ["--skip_datagen"] if machine else []
    rest = scheduler.run_all(runs, workers, max_parallel, flags, args.retry_failed)
    # Runs that another command had under way get their further test sets now.
    while len(needed := _needed(study, planned)) > len(runs) or any(
            new_test_sets(study_run.run, study_run.run_dir) for study_run in needed):
        runs = studies.prepare(study, run, study_dir, needed)
        rest = scheduler.run_all(runs, workers, max_parallel, flags, retry_failed=False)
    if rest:
        names = ", ".join(study_run.name for study_run in rest)
        raise UserError(f"{len(rest)} of {len(runs)} runs are not done: {names}; the same command "
                        "resumes those that were killed, with --retry_failed also those that "
                        "failed")
    report.main([study_dir, "--skip_model_analysis"])
    say(f"{study_dir}: done" + ("; all stages work, and the scores mean nothing" if args.smoke
                                else ""), style="bold green")


def _needed(study: Study, planned: list[studies.StudyRun], retry_failed: bool = False
            ) -> list[studies.StudyRun]:
    """The runs that are finished or that `study.looks` needs next; without looks, all."""
    if not study.looks:
        return planned
    from rpr.evaluation.looks import Plan
    from rpr.report.comparison import look
    states = {study_run.name: study_run.state() for study_run in planned}
    arms: dict[str, list[tuple[str, RunDirectory]]] = {}
    for study_run in planned:
        state = states[study_run.name]
        arms.setdefault(study_run.arm, []).append((
            "waiting" if state == "failed" and retry_failed else state, study_run.run_dir))
    verdicts, seeds = look(arms, study.baseline, Plan(study.looks, study.margin))
    if verdicts:
        say("study.looks: " + ", ".join(
            f"{arm} {'open' if verdict.answer is None else 'decided'} after {verdict.seeds} seeds"
            for arm, verdict in verdicts.items()))
    return [study_run for study_run in planned if states[study_run.name] == "done"
            or study_run.run.seed in study.seeds[:seeds[study_run.arm]]]


def _begin_smoke_test(smoke_dir: str, data_dir: str) -> None:
    """Empties the directory of a smoke test, which shares the data of the study."""
    if studies.is_study(smoke_dir):
        there = gin_files.load_study(os.path.join(smoke_dir, gin_files.STUDY_FILE))
        if studies.shortened(*there) != there:
            raise UserError(f"--smoke: {smoke_dir} holds a study that is not a smoke test; take "
                            "another --study_dir")
        # First: without its study.gin, a run that is left would seem to be done already.
        shutil.rmtree(os.path.join(smoke_dir, "runs"), ignore_errors=True)
        shutil.rmtree(smoke_dir)
    for path in (smoke_dir, data_dir):
        os.makedirs(path, exist_ok=True)
    link = os.path.join(smoke_dir, "data")
    if not os.path.lexists(link):
        os.symlink(os.path.relpath(data_dir, smoke_dir), link)


def _note_missing_curves(runs: list[studies.StudyRun]) -> None:
    """Says which finished runs have no learning curve of BLEU: no checkpoint of them was kept."""
    names = [study_run.name for study_run in runs if study_run.run.bleu_frequency
             and study_run.state() == "done" and not study_run.run_dir.read_dev_bleu()]
    if names:
        say("run.bleu_frequency came too late for these finished runs, or they took the training "
            f"of another one: {', '.join(names)}", style="yellow")


def main_parser() -> Parser:
    """The flags of `rpr study`."""
    parser = Parser(
        prog="rpr study", epilog=describe([("study", Study), ("run", Run)]),
        description="All runs of a study, on the GPUs or cores of this machine. It can be stopped "
        "at any\ntime: the same command resumes; finished runs are not repeated.")
    parser.add_argument("gin", nargs="?", type=gin_files.resolve,
                        help="the file that describes the study, or recipe:NAME of one in gin/")
    parser.add_argument("--study_dir", type=os.path.expanduser, help="default: that of the gin "
                        "file if it is a study's own, else runs/ and its name")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting (run.NAME or study.NAME) that overrides the file; may be "
                        "repeated")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--devices", type=number(1), help="GPUs to use at most (default: all)")
    where.add_argument("--cores", type=number(1), help=CORES_HELP)
    parser.add_argument("--retry_failed", action="store_true", help="try failed runs again")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="overrides run.usr_dir")
    where.add_argument("--cluster", choices=["slurm", "local"], help="queue a job for each run "
                       "through submitit, and follow them; Ctrl-C leaves them queued. local: "
                       "submitit's stand-in for Slurm on this machine, to try it out; Ctrl-C ends "
                       "its jobs")
    parser.add_argument("--submitit_option", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter of submitit, such as timeout_min=1440 or "
                        "slurm_partition=gpu; may be repeated")
    parser.add_argument("--dry_run", action="store_true", help="list arms, runs and hours; write "
                        "nothing")
    parser.add_argument("--smoke", action="store_true", help="try all stages of all arms, with a "
                        f"few steps, one seed and {_SMOKE_LINES} test sentences, in "
                        "STUDY_DIR-smoke")
    parser.add_argument("--status", metavar="DIR", type=os.path.expanduser,
                        help="show how far the study in DIR is; start nothing")
    return parser
