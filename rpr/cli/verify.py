"""`rpr verify`: repeats the first steps of a run and compares them bit for bit."""
from rpr.cli.arguments import Parser, whole_number
from rpr.experiments.provenance import with_usr_dir
from rpr.experiments.run_directory import RunDirectory, find_model
from rpr.experiments.verification import repeat_training
from rpr.utils import files
from rpr.utils.console import say


def main(argv: list[str]) -> int:
    """`rpr verify RUN_DIR [FLAGS]`; returns the exit code, 1 if anything differs."""
    args = _parser().parse_args(argv)
    files.refuse_unusable(args.run_dir)
    run, request = find_model(args.run_dir, args.data_dir, args.t2t_usr_dir)
    run_dir = RunDirectory(args.run_dir, request.data_dir)
    run = with_usr_dir(run, args.t2t_usr_dir, run_dir.config)
    result = repeat_training(run, run_dir, args.steps)
    compared = (f"{result.losses} losses, and {result.tensors} tensors at steps "
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


def _parser() -> Parser:
    parser = Parser(
        prog="rpr verify", description="Repeats the first steps of a run's training in a temporary "
        "directory and compares\nlosses and weights bit for bit with those of the run.")
    parser.add_argument("run_dir", help="the directory of the run")
    parser.add_argument("--steps", type=whole_number(1),
                        help="how many steps (default: up to the first checkpoint after the start)")
    parser.add_argument("--data_dir", help="vocabulary and TFRecords (default: where rpr run and "
                        "rpr study put them)")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="the user's own code")
    return parser
