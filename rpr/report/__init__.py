"""`rpr report`: runs beside each other, with significance, as tables, plots and one page.

`record` holds what is said; `tables`, `plots`, `page` and `tensorboard` are views of it;
`significance` and `lengths` compute, `learned` looks into the models.
"""
import argparse
import os

from rpr.utils import metrics_log


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
        metrics_log.write_atomically(os.path.join(args.dir, f"results.{name}"), view(found))
    page = write_page(found, args.dir)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def write_page(found, path):
    """Draws the plots, and writes report.html and what TensorBoard reads.

    Args:
      found: a `record.Record`.
      path: the report's directory.

    Returns:
      the page's path.
    """
    from rpr.report import html_page as page
    from rpr.report import plots, tensorboard
    from rpr.utils.console import Task
    pictures = []
    with Task("plots", None, "plots") as task:
        for plot in plots.draw_all(found, path):
            target = os.path.join(path, "plots", plot.name)
            pictures.append(page.Picture(plot.title, f"{target}.svg", plot.arm, plot.wide))
            plots.save(plot.figure, target)
            task.update(len(pictures))
    study = os.path.join(path, "study.gin")
    text = ""
    if os.path.exists(study):
        with open(study, encoding="utf-8") as lines:
            text = lines.read()
    target = os.path.join(path, "report.html")
    metrics_log.write_atomically(target, page.as_html(found, pictures, text))
    tensorboard.write(found, path)
    return target
