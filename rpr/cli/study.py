"""rpr.cli.study"""
import argparse
import os

from rpr.experiments import config, local_pool, progress, slurm
from rpr.experiments.study import check, load, make_data, members, prepare, run_all, unfinished
from rpr.utils.console import terminal
from rpr.utils.errors import UserError


def main(argv):
    """`rpr study GIN [FLAGS]`, `rpr study --status DIR`."""
    parser = argparse.ArgumentParser(
        prog="rpr study", description="All runs of a study, on the GPUs or cores of this machine. "
        "Stop it when you like: the same command goes on; what is finished is not repeated.")
    parser.add_argument("gin", nargs="?", help="the file that describes the study (gin/*.gin)")
    parser.add_argument("--study_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting (run.NAME or study.NAME) that wins over the file; may be "
                        "repeated")
    parser.add_argument("--devices", type=int, help="GPUs to use at most (default: all)")
    parser.add_argument("--cores", type=int, help="without a GPU: cores to use at most, one for "
                        "each run (default: all)")
    parser.add_argument("--retry_failed", action="store_true", help="try failed runs again")
    parser.add_argument("--cluster", choices=["slurm", "local"], help="queue a job for each run "
                        "through submitit, and follow them; Ctrl-C leaves them queued. local: "
                        "submitit's stand-in for Slurm on this machine, to try it out")
    parser.add_argument("--submitit_option", action="append", default=[], metavar="NAME=VALUE",
                        help="a parameter of submitit, such as timeout_min=1440 or "
                        "slurm_partition=gpu; may be repeated")
    parser.add_argument("--status", metavar="DIR", help="show how far the study in DIR is, and "
                        "start nothing")
    args = parser.parse_args(argv)
    if args.status:
        progress.show(load(args.status))
        return
    if not args.gin:
        raise UserError("name the gin file of a study, or a study's directory with --status")
    study, run = config.load_study(args.gin, args.set)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    study_dir = os.path.abspath(args.study_dir or os.path.join("runs", name))
    found = members(study, run, study_dir)
    runs = [member.run for member in found]
    if args.cluster:
        workers = slurm.Cluster(args.cluster, os.path.join(study_dir, "jobs"), args.submitit_option)
        max_parallel, more_flags = len(runs), []           # the jobs make the data, the first of them
    else:
        machine = local_pool.this_machine(args.devices, args.cores)
        machine.check(runs)
        workers, max_parallel, more_flags = local_pool.Pool(machine), machine.max_parallel(runs), ["--skip_datagen"]
    check(found)
    found = prepare(study, run, study_dir)
    if not args.cluster:
        make_data(unfinished(found, args.retry_failed))
    rest = run_all(found, workers, max_parallel, more_flags, args.retry_failed)
    if rest:
        names = ", ".join(member.name for member in rest)
        raise UserError(f"{len(rest)} of {len(found)} runs did not come to their end: {names}; the "
                        "same command goes on with those that were killed, with --retry_failed "
                        "also with those that failed")
    terminal.print(f"{study_dir}: done", style="bold green", highlight=False)
