"""`rpr study`: all runs of a study, on this machine or as jobs of a cluster."""
import argparse
import os

from rpr.cli import report
from rpr.cli.arguments import Parser, whole_number
from rpr.cli.preflight import check_new_runs
from rpr.experiments import (
    config,
    gin_files,
    local_pool,
    progress,
    provenance,
    scheduler,
    slurm,
    studies,
)
from rpr.experiments.config import Run, Study
from rpr.utils import files
from rpr.utils.console import say
from rpr.utils.errors import UserError


def main(argv: list[str]) -> None:
    """`rpr study GIN [FLAGS]`, `rpr study --status DIR`."""
    args = _parser().parse_args(argv)
    if args.status:
        runs = studies.load(args.status)
        progress.show(runs)
        line = studies.data_line(runs, args.status)
        if line:
            say(line)
        return
    if not args.gin:
        raise UserError("name the gin file of a study, or a study's directory with --status")
    study, run = gin_files.load_study(args.gin, args.set)
    run = provenance.with_usr_dir(run, args.t2t_usr_dir, args.gin)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    study_dir = os.path.abspath(args.study_dir or os.path.join("runs", name))
    files.refuse_pattern(study_dir)
    runs = studies.study_runs(study, run, study_dir)
    workers, max_parallel, flags = _workers(args, runs, study_dir)
    check_new_runs((study_run.run, study_run.run_dir) for study_run in runs)
    for study_run in runs:
        provenance.check_corpus(study_run.run, study_run.run_dir)
    is_new = not studies.is_study(study_dir)
    runs = studies.prepare(study, run, study_dir)
    outside = studies.runs_outside(study_dir, [study_run.directory for study_run in runs])
    if outside:
        say(f"{len(outside)} runs are outside this study, which leaves their arms, seeds or steps "
            f"out: {', '.join(outside)}", style="yellow")
    lacking = studies.without_test_text(runs)
    # On a cluster the first job makes the data of the others.
    unfinished = [] if args.cluster else studies.unfinished(runs, args.retry_failed)
    try:
        studies.make_data([*unfinished, *lacking], study_dir)
    except UserError:
        if is_new:                                    # a corrected study may take its place
            studies.discard(runs, study_dir)
        raise
    studies.restore_test_texts(lacking)
    _note_missing_curves(runs)
    rest = scheduler.run_all(runs, workers, max_parallel, flags, args.retry_failed)
    if rest:
        names = ", ".join(study_run.name for study_run in rest)
        raise UserError(f"{len(rest)} of {len(runs)} runs are not done: {names}; the same command "
                        "resumes those that were killed, with --retry_failed also those that "
                        "failed")
    report.main([study_dir, "--skip_model_analysis"])
    say(f"{study_dir}: done", style="bold green")


def _workers(args: argparse.Namespace, runs: list[studies.StudyRun], study_dir: str
             ) -> tuple[scheduler.Workers, int, list[str]]:
    """Where the runs run, how many at the same time, and further flags of `rpr run`."""
    if args.cluster:                                  # the first job makes the data
        return (slurm.Cluster(args.cluster, os.path.join(study_dir, "jobs"), args.submitit_option),
                len(runs), [])
    settings = [study_run.run for study_run in runs]
    machine = local_pool.this_machine(args.devices, args.cores)
    machine.check(settings)
    return local_pool.Pool(machine), machine.max_parallel(settings), ["--skip_datagen"]


def _note_missing_curves(runs: list[studies.StudyRun]) -> None:
    """Says which finished runs have no learning curve of BLEU: their checkpoints are gone."""
    names = [study_run.name for study_run in runs if study_run.run.bleu_frequency
             and study_run.state() == "done" and not study_run.run_dir.read_dev_bleu()]
    if names:
        say("run.bleu_frequency came too late for these finished runs, whose checkpoints are gone: "
            f"{', '.join(names)}", style="yellow")


def _parser() -> Parser:
    parser = Parser(
        prog="rpr study", epilog=config.describe([("study", Study), ("run", Run)]),
        description="All runs of a study, on the GPUs or cores of this machine. It can be stopped "
        "at any\ntime: the same command resumes; finished runs are not repeated.")
    parser.add_argument("gin", nargs="?", type=gin_files.resolve,
                        help="the file that describes the study, or recipe:NAME of one in gin/")
    parser.add_argument("--study_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting (run.NAME or study.NAME) that overrides the file; may be "
                        "repeated")
    parser.add_argument("--devices", type=whole_number(1), help="GPUs to use at most (default: "
                        "all)")
    parser.add_argument("--cores", type=whole_number(1), help="without a GPU: cores to use at "
                        "most, one for each run (default: all)")
    parser.add_argument("--retry_failed", action="store_true", help="try failed runs again")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="overrides run.usr_dir")
    parser.add_argument("--cluster", choices=["slurm", "local"], help="queue a job for each run "
                        "through submitit, and follow them; Ctrl-C leaves them queued. local: "
                        "submitit's stand-in for Slurm on this machine, to try it out")
    parser.add_argument("--submitit_option", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter of submitit, such as timeout_min=1440 or "
                        "slurm_partition=gpu; may be repeated")
    parser.add_argument("--status", metavar="DIR", help="show how far the study in DIR is; start "
                        "nothing")
    return parser
