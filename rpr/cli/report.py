"""`rpr report`: compares the runs of a study in tables, figures and one HTML page."""
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rpr.cli.arguments import Parser, number
from rpr.evaluation import LOSS_METRICS, test_sets
from rpr.experiments import gin_files, studies
from rpr.experiments.config import file_name
from rpr.utils import files
from rpr.utils.console import for_tables, say
from rpr.utils.errors import InvalidValue, UserError

if TYPE_CHECKING:
    from rpr.report.comparison import Measure
    from rpr.report.results import ArmResult, StudyResults

MOST_MODELS = 10                                      # drawn unless --plot_model names some
MOST_SAMPLES = 1000                                   # a page with more opens slowly


def main(argv: list[str]) -> None:
    """`rpr report DIR [FLAGS]`."""
    args = main_parser().parse_args(argv)
    from rich.console import Console

    from rpr.report import columns, comparison, html_page, study_reader, tables
    from rpr.report.results import load_record
    if args.language_pair:
        if not args.tokenize:
            raise UserError(f"--language_pair={args.language_pair}: only with --tokenize")
        test_sets.check_language_pair(args.language_pair)
    if len(set(args.dirs)) < len(args.dirs):
        raise UserError(f"{' '.join(args.dirs)}: a directory is given twice")
    if "" in (*args.dirs, args.against):
        raise UserError("DIR or --against is empty; name a directory")
    path, *others = args.dirs
    is_record = any(map(_is_record, args.dirs))
    measure = comparison.Measure(args.test_set, args.tokenize, args.language_pair)
    target = _directory_of(path, measure)
    samples = args.sample_translations
    if args.plot_model and target != path and not is_record:
        raise InvalidValue("plot_model", args.plot_model[0], "not with --test_set or --tokenize, "
                           "whose reports draw no models")
    if is_record:
        if any((others, args.arms, args.baseline, args.against, *measure, args.plot_model,
                samples is not None)):
            raise UserError(f"{next(filter(_is_record, args.dirs))} holds a record without its "
                            "runs: several directories, --arms, --baseline, --against, --test_set, "
                            "--tokenize, --plot_model and --sample_translations need the runs")
        results, arms = load_record(path), []
    else:
        results = study_reader.read_study(path, args.baseline, args.against, others, args.arms)
        outside = studies.runs_outside(
            path, [run.path for arm in results.arms for run in arm.all_runs])
        if outside and not args.arms:
            say("not in this report, since the study leaves their arms or seeds out: "
                f"{', '.join(outside)}", style="yellow")
        if target != path and not results.done:
            raise UserError(f"{path}: no run is done yet, so --test_set and --tokenize have "
                            "nothing to score")
        results.arms = _without_copies(results)
        arms = [] if target != path else _arms_to_draw(results, args.plot_model)
        if arms and not args.skip_model_analysis:
            from rpr.report import model_analysis
            model_analysis.analyse_models(
                [study_reader.run_directory_of(path, arm.done[0]) for arm in arms],
                args.t2t_usr_dir)
        comparison.score_runs(results, path, measure,
                              comparison.SAMPLES if samples is None else samples)
        os.makedirs(target, exist_ok=True)
    chosen = columns.choose(results, args.columns.split(",")) if args.columns else []
    console = for_tables(Console())
    tables.write_tables(results, target, chosen)
    page = html_page.write_page(results, target, arms)
    if not is_record and target == path:
        tables.write_events(results, path)
    # Printed last: a reader that closes the pipe then loses no file.
    tables.print_tables(console, results)
    console.print(f"report: {page}", highlight=False, markup=False, soft_wrap=True)


def main_parser() -> Parser:
    """The flags of `rpr report`."""
    parser = Parser(
        prog="rpr report", description="Compares the runs of studies, or all runs in a directory. "
        "Writes into DIR: results.{md,tex,csv,json} with scores and significance, "
        "plots/*.{png,svg}, report.html with all of them, and event files for TensorBoard's "
        "HParams plugin. Runs that are not finished are listed without scores. A directory that "
        "has only the results.json of an earlier report is shown again.")
    parser.add_argument("dirs", nargs="+", metavar="DIR", help="a study's directory, or a "
                        "directory of run directories; with several, all arms are compared, and "
                        "the report is written into the first one")
    parser.add_argument("--arms", action="append", default=[], metavar="NAME,...",
                        help="compare only these arms; may be repeated")
    parser.add_argument("--baseline", help="the arm that the others are compared with (default: "
                        "the study's baseline); in a directory of runs, the name of a run")
    parser.add_argument("--against", metavar="DIR", help="a finished run, or a study, "
                        "scored on the same text: its arms join, and it gives the baseline")
    parser.add_argument("--test_set", default="", metavar="NAME", help="score another of the test "
                        "sets in run.test_sets, or all: one test over the sentences of all test "
                        "sets; the report goes to DIR/reports/NAME")
    parser.add_argument("--tokenize", metavar="NAME", help="tokenizer for BLEU, as in rpr score; "
                        "the report goes to DIR/reports/NAME")
    parser.add_argument("--language_pair", default="", metavar="PAIR", help="such as en-de; for "
                        "--tokenize (default: that of the test set)")
    parser.add_argument("--columns", metavar="NAME,...", help="columns of results.md and "
                        "results.tex, such as model,bleu,difference,p_holm (default: all; in "
                        "results.tex those that fit)")
    parser.add_argument("--sample_translations", type=number(0, MOST_SAMPLES), metavar="N",
                        help="show N test sentences with their translations in report.html and "
                        "results.json (default: 6); 0 if the text must not be passed on")
    parser.add_argument("--plot_model", action="append", metavar="ARM", help="draw the model of "
                        f"this arm; may be repeated (default: the baseline and the best, "
                        f"{MOST_MODELS} arms at most)")
    parser.add_argument("--skip_model_analysis", action="store_true", help="do not analyse models "
                        "(relative position tables, attention, lengths in sub-words); the analysis "
                        "takes about ten seconds per arm and is cached")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="your own problems, models and "
                        "position schemes; the analysis of models needs them")
    return parser


def _directory_of(path: str, measure: "Measure") -> str:
    """The directory of a report: that of the study, or for a test set or tokenizer its own.

    Refuses symbolic links that lead it, or its plots, out of the study's directory.
    """
    name = file_name("-".join(filter(None, (measure.test_set, measure.tokenize))))
    target = os.path.join("reports", name) if name else ""
    files.below(path, os.path.join(target, "plots"))
    return files.below(path, target) if name else path


def _is_record(path: str) -> bool:
    """Whether a directory has results.json and no runs."""
    from rpr.report.results import RECORD_FILE
    if not os.path.isfile(os.path.join(path, RECORD_FILE)):
        return False
    return not os.path.exists(os.path.join(path, "study.json")) and not any(
        os.path.exists(os.path.join(path, name, gin_files.RUN_FILE)) for name in os.listdir(path))


def _without_copies(results: "StudyResults") -> "list[ArmResult]":
    """The arms without those whose runs are all copies of an arm's of another directory.

    Tests take all runs for independent. The baseline stays, else the first arm. Runs are copies if
    their losses and scores are: the same configuration may have been trained with other data.
    """
    known: dict[str, ArmResult] = {}
    copies = []
    for arm in sorted(results.arms, key=lambda arm: arm.name != results.baseline):
        runs = sorted(repr((run.seed, run.train_losses, run.scores)) for run in arm.done)
        same = known.setdefault(repr(runs), arm)
        folders = {os.path.dirname(run.path) for run in (*same.done, *arm.done)}
        if same is not arm and len(folders) > 1 and all(run.train_losses for run in arm.done):
            copies.append(arm.name)
            say(f"{arm.name} is left out: its runs are those of {same.name}", style="yellow")
    return [arm for arm in results.arms if arm.name not in copies]


def _arms_to_draw(results: "StudyResults", names: Sequence[str]) -> "list[ArmResult]":
    """The finished arms whose models are analysed and drawn; none of language models."""
    if results.metric in LOSS_METRICS:
        if names:
            raise InvalidValue("plot_model", names[0], "these runs are language models, which are "
                               "not drawn")
        return []
    if not names:
        return results.featured(MOST_MODELS)
    done = {arm.name: arm for arm in results.arms if arm.done}
    for name in names:
        if name not in done:
            raise UserError(f"--plot_model={name}: "
                            + (f"one of {', '.join(done)}" if done else "no run is done yet"))
    return [done[name] for name in names]
