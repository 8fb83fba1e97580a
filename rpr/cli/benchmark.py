"""`rpr check-scheme`, the conformance checks of a position scheme, and `rpr benchmark`."""
import argparse
import dataclasses
import json
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.cli.arguments import Parser, number
from rpr.experiments import gin_files
from rpr.experiments.config import Run, Study
from rpr.t2t.registration import register, registered_hparams
from rpr.utils import files
from rpr.utils.console import printable, say
from rpr.utils.errors import InvalidPath, UserError

if TYPE_CHECKING:
    from rpr.conformance.checks import Result
    from rpr.experiments.studies import StudyRun

_RECIPE = "recipe:small_schemes"
_RECORDS = Path(__file__).parents[2] / "docs" / "results"
# What the other side has, where a scheme works on one side only.
_OTHER_SIDE = "relative"


def check_scheme(argv: list[str]) -> int:
    """`rpr check-scheme NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    parser = _parser("check-scheme", "Checks that a position scheme is exact with a cache, sees no "
                     "later word, is not changed by padding, batches and packing, and more. The "
                     "exit code is 1 if a check finds a counter-example.")
    return int(any(result.problem for result in _show_checks(parser.parse_args(argv))))


def _parser(command: str, description: str) -> Parser:
    """A parser with the arguments that name a scheme."""
    parser = Parser(prog=f"rpr {command}", description=description)
    parser.add_argument("scheme", help="a value of the hparam position, such as alibi+rotary")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="directory of your own scheme")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="an hparam; may be repeated")
    return parser


def _show_checks(args: argparse.Namespace) -> "list[Result]":
    """Runs the checks and prints a line for each."""
    register(args.t2t_usr_dir)
    from rpr.conformance.checks import HPARAMS_SET, check_scheme
    from rpr.t2t.preflight import parse_hparams
    parse_hparams(registered_hparams(HPARAMS_SET), ",".join(args.set), "set")
    results = []
    try:
        for result in check_scheme(args.scheme, ",".join(args.set)):
            outcome = f"FAILED: {result.problem}" if result.problem else result.note or "pass"
            print(f"{result.side:<9}{result.check:<34}{printable(outcome)}", flush=True)
            results.append(result)
    except ValueError as error:
        raise UserError(str(error)) from None
    return results


def main(argv: list[str]) -> None:
    """`rpr benchmark NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    parser = _parser("benchmark", "Checks a position scheme, trains it as "
                     "the runs of the other schemes in the record of gin/small_schemes.gin were "
                     "trained, and reports it beside them. The same command resumes it.")
    parser.add_argument("--study_dir", help="default: runs/benchmark-NAME")
    parser.add_argument("--cores", type=number(1), help="without a GPU: cores to use at "
                        "most, one for each run (default: all)")
    parser.add_argument("--recipe", type=gin_files.resolve, default=gin_files.resolve(_RECIPE),
                        metavar="GIN", help="the study of the recorded runs (default: "
                        f"{_RECIPE})")
    parser.add_argument("--record", metavar="FILE", help="archive of the recorded runs (default: "
                        "docs/results/NAME/runs.tar.xz, NAME being that of the recipe)")
    args = parser.parse_args(argv)
    from rpr.cli import study
    from rpr.experiments import studies
    study_dir = args.study_dir or os.path.join(
        "runs", "benchmark-" + re.sub(r"[^A-Za-z0-9._]+", "-", ",".join([args.scheme, *args.set])))
    files.refuse_unusable(study_dir)
    record = args.record or str(_RECORDS / Path(args.recipe).stem / "runs.tar.xz")
    recorded = _recorded(record)
    results = _show_checks(args)
    failed = sum(bool(result.problem) for result in results)
    if failed:
        raise UserError(f"{args.scheme}: {failed} checks failed, so no model was trained")
    settings = _study(args, {result.side for result in results}, set(recorded))
    _unpack(record, recorded, studies.study_runs(*settings, study_dir))
    checks = {"checks": [dataclasses.asdict(result) for result in results]}
    files.write_atomically(os.path.join(study_dir, "checks.json"),
                           json.dumps(checks, indent=1) + "\n")
    gin = os.path.join(study_dir, "benchmark.gin")
    files.write_atomically(gin, "".join(gin_files.as_gin(part) for part in settings[::-1]))
    flags = {"study_dir": study_dir, "cores": args.cores, "t2t_usr_dir": args.t2t_usr_dir}
    study.main([gin, *(f"--{name}={value}" for name, value in flags.items() if value)])


def _study(args: argparse.Namespace, sides: set[str], recorded: set[str]) -> tuple[Study, Run]:
    """The study of the recorded arms and the scheme, which is its baseline.

    The seeds are those with which the recipe's own baseline is recorded. Arms that are not
    recorded with all of them are left out.
    """
    from rpr.experiments import studies
    recipe, run = gin_files.load_study(args.recipe)
    changes: dict[str, Any] = dict(pair.split("=", 1) for pair in args.set)
    changes |= {"position": args.scheme} if len(sides) == 2 else {
        f"{side}_position": args.scheme if side in sides else _OTHER_SIDE
        for side in ("encoder", "decoder")}
    seeds: dict[str, set[int]] = {arm: set() for arm in recipe.changes()}
    for study_run in studies.study_runs(recipe, run, ""):
        if _digest(study_run.name) in recorded:
            seeds[study_run.arm].add(study_run.run.seed)
    used = seeds[recipe.baseline]
    if not used:
        raise UserError(f"the record has no run of {recipe.baseline}")
    arms = {arm: own for arm, own in recipe.changes().items() if used <= seeds[arm]}
    left_out = ", ".join(arm for arm in recipe.changes() if arm not in arms)
    if left_out:
        say(f"not recorded with all of the seeds {sorted(used)}: {left_out}")
    name = next((arm for arm, own in arms.items() if own == changes),
                ",".join([args.scheme, *args.set]))
    return Study(name, arms={name: changes} | arms, seeds=tuple(sorted(used))), run


def _digest(name: str) -> str:
    """The end of the name of a run's directory, which identifies its configuration and seed."""
    return name.rpartition("-")[2]


def _recorded(record: str) -> dict[str, str]:
    """{digest: name} of the runs in an archive."""
    try:
        with tarfile.open(record) as tar:
            paths = [name.split("/") for name in tar.getnames()]
    except FileNotFoundError:
        raise InvalidPath(record, "there is no such record; the repository has it") from None
    except (OSError, tarfile.TarError) as error:
        raise InvalidPath(record, f"not an archive of runs ({error})") from None
    return {_digest(path[1]): path[1] for path in paths if path[0] == "runs" and len(path) > 2}


def _unpack(record: str, recorded: dict[str, str], runs: "list[StudyRun]") -> None:
    """Unpacks the recorded runs of a study that are not in its directory."""
    missing = {recorded[_digest(run.name)]: run.run_dir.path for run in runs
               if _digest(run.name) in recorded and not os.path.exists(run.run_dir.path)}
    begun = {path: f"{path}.unpacked" for path in missing.values()}
    for path in begun.values():                       # of an attempt that was killed
        shutil.rmtree(path, ignore_errors=True)
    with tarfile.open(record) as tar:
        for member in tar:
            folder, _, rest = member.name.removeprefix("runs/").partition("/")
            if folder in missing and rest:
                tar.extract(member.replace(name=rest), begun[missing[folder]], filter="data")
    for path, unpacked in begun.items():
        os.rename(unpacked, path)
