"""rpr.cli.report"""
import argparse
import os

from rpr.report.html_page import write_page
from rpr.utils import files


def main(argv):
    """`rpr report DIR [--baseline=NAME] [--quick]`."""
    parser = argparse.ArgumentParser(
        prog="rpr report", description="The runs of a study, or all runs below DIR, as tables with "
        "significance (results.{md,tex,csv,json}), plots (plots/*.{png,svg}) and one page that "
        "holds them all (report.html), in DIR; and for TensorBoard's HParams view. A study in "
        "progress has a report too.")
    parser.add_argument("dir", help="a study's directory, or a directory of run directories")
    parser.add_argument("--baseline", help="the arm that the others are compared with (default: "
                        "the study's); of a directory of runs, the name of one")
    parser.add_argument("--quick", action="store_true", help="do not look into models that were "
                        "not looked into yet (learned positions, attention, lengths in sub-words), "
                        "which takes some ten seconds of a core an arm, once")
    args = parser.parse_args(argv)
    from rich.console import Console

    from rpr.report import model_analysis, results, tables
    found = results.read(args.dir, args.baseline)
    if not args.quick:
        model_analysis.look([results.where(args.dir, arm.done[0]) for arm in found.arms if arm.done])
    results.score(found, args.dir)
    console = Console()
    if not console.is_terminal:
        console.width = 200                           # a file takes the columns as they are
    tables.print_to(console, found)
    for name, view in (("json", tables.as_json), ("csv", tables.as_csv),
                       ("md", tables.as_markdown), ("tex", tables.as_latex)):
        files.write_atomically(os.path.join(args.dir, f"results.{name}"), view(found))
    page = write_page(found, args.dir)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
