"""rpr.cli.run"""
import argparse
import os

from rpr.experiments.run import complete_run
from rpr.experiments.run_directory import RunDirectory
from rpr.utils.console import terminal


def main(argv):
    """`rpr run GIN [--run_dir=DIR] [--data_dir=DIR] [--set run.NAME=VALUE ...]`."""
    parser = argparse.ArgumentParser(
        prog="rpr run", description="One run: datagen, train, average, decode, score. Stop it when "
        "you like: the same command goes on from the last checkpoint.")
    parser.add_argument("gin", help="the file that describes the run (gin/*.gin)")
    parser.add_argument("--run_dir", help="default: runs/ and the name of the gin file")
    parser.add_argument("--data_dir", help="vocabulary and TFRecords; default: data/ beside the "
                        "run's directory, so that runs beside each other share it")
    parser.add_argument("--set", action="append", default=[], metavar="run.NAME=VALUE",
                        help="a setting that wins over the file; may be repeated")
    parser.add_argument("--skip_datagen", action="store_true", help="do not start datagen where "
                        "its record is: rpr study ran it")
    args = parser.parse_args(argv)
    from rpr.experiments import config
    run = config.load_run(args.gin, args.set)
    name = os.path.splitext(os.path.basename(args.gin))[0]
    run_dir = os.path.abspath(args.run_dir or os.path.join("runs", name))
    data_dir = os.path.abspath(args.data_dir or os.path.join(os.path.dirname(run_dir), "data"))
    complete_run(run, RunDirectory(run_dir, data_dir), args.skip_datagen)
    terminal.print(f"{run_dir}: done", style="bold green", highlight=False)
