"""`rpr report`: compares the runs of a study in tables, figures and one HTML page."""
import argparse
import os


def main(argv: list[str]) -> None:
    """`rpr report DIR [--baseline=NAME] [--skip_model_analysis]`."""
    parser = argparse.ArgumentParser(
        prog="rpr report", description="Compares the runs of a study, or all runs in a directory. "
        "Writes into DIR: results.{md,tex,csv,json} with scores and significance, "
        "plots/*.{png,svg}, report.html with all of them, and event files for TensorBoard's "
        "HParams plugin. Runs that are not finished are listed without scores.")
    parser.add_argument("dir", help="a study's directory, or a directory of run directories")
    parser.add_argument("--baseline", help="the arm that the others are compared with (default: "
                        "the study's baseline); in a directory of runs, the name of a run")
    parser.add_argument("--skip_model_analysis", action="store_true", help="do not analyse models "
                        "(relative position tables, attention, lengths in sub-words); the analysis "
                        "takes about ten seconds per arm and is cached")
    args = parser.parse_args(argv)
    from rich.console import Console

    from rpr.report import comparison, html_page, model_analysis, study_reader, tables, tensorboard
    from rpr.utils import files
    results = study_reader.read_study(args.dir, args.baseline)
    if not args.skip_model_analysis:
        model_analysis.analyse_models([study_reader.run_directory_of(args.dir, arm.done[0])
                                       for arm in results.arms if arm.done])
    comparison.score_runs(results, args.dir)
    console = Console()
    if not console.is_terminal:
        console.width = 200                           # a file or pipe gets every column unwrapped
    tables.print_tables(console, results)
    for suffix, render in (("json", tables.to_json), ("csv", tables.to_csv),
                           ("md", tables.to_markdown), ("tex", tables.to_latex)):
        files.write_atomically(os.path.join(args.dir, f"results.{suffix}"), render(results))
    page = html_page.write_page(results, args.dir)
    tensorboard.write_events(results, args.dir)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)
