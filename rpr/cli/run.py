"""`rpr run`: one experiment from data to scores."""
import argparse
import os

from rpr.cli.arguments import Parser
from rpr.cli.preflight import check_new_runs
from rpr.experiments import config, gin_files, local_pool, provenance
from rpr.experiments.config import Run
from rpr.experiments.pipeline import complete_run
from rpr.experiments.run_directory import RunDirectory
from rpr.utils import files
from rpr.utils.console import say


def main(argv: list[str]) -> None:
    """`rpr run GIN [--run_dir=DIR] [--data_dir=DIR] [--set run.NAME=VALUE ...]`."""
    args = _parser().parse_args(argv)
    run = gin_files.load_run(args.gin, args.set)
    run = provenance.with_usr_dir(run, args.t2t_usr_dir, args.gin)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    run_dir_path = os.path.abspath(args.run_dir or os.path.join("runs", name))
    files.refuse_unusable(run_dir_path)
    data_dir = os.path.abspath(args.data_dir or os.path.join(os.path.dirname(run_dir_path), "data"))
    files.refuse_unusable(data_dir)
    local_pool.this_machine().check([run])
    run_dir = RunDirectory(run_dir_path, data_dir)
    if not args.skip_datagen:                         # of a study, which has checked the run
        check_new_runs([(run, run_dir)])
    complete_run(run, run_dir, args.skip_datagen, args.training_of)
    say(f"{run_dir.path}: done", style="bold green")


def _parser() -> Parser:
    parser = Parser(
        prog="rpr run", epilog=config.describe([("run", Run)]),
        description="One run: datagen, train, average, decode, score. It can be stopped at any "
        "time:\nthe same command resumes from the last checkpoint.")
    parser.add_argument("gin", type=gin_files.resolve,
                        help="the file that describes the run, or recipe:NAME of one in gin/")
    parser.add_argument("--run_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--data_dir", help="vocabulary and TFRecords; default: data/ next to the "
                        "run's directory, shared by the runs there")
    parser.add_argument("--set", action="append", default=[], metavar="run.NAME=VALUE",
                        help="a setting that overrides the file; may be repeated")
    parser.add_argument("--training_of", metavar="DIR", help="a finished run with the same "
                        "training, of as many or fewer steps: begin with its checkpoints")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="overrides run.usr_dir")
    parser.add_argument("--skip_datagen", action="store_true", help=argparse.SUPPRESS)
    return parser
