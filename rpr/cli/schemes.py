"""`rpr list`, and for position schemes `rpr check-scheme` and `rpr benchmark`."""
import argparse
import dataclasses
import lzma
import os
import re
import shutil
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rpr.cli import study
from rpr.cli.arguments import CORES_HELP, Parser, number
from rpr.experiments import gin_files, local_pool, studies
from rpr.experiments.config import Run, Study
from rpr.utils import files
from rpr.utils.console import printable, say
from rpr.utils.errors import InvalidPath, InvalidValue, UserError
from rpr.utils.settings import Setting

if TYPE_CHECKING:
    from rpr.conformance.checks import Result

_RECIPE = "recipe:small_schemes"
_RECORDS = Path(__file__).parents[2] / "docs" / "results"
_KINDS = ("models", "hparams", "problems", "schemes")


def list_names(args: argparse.Namespace) -> None:
    """`rpr list [models|hparams|problems|schemes] [--hparams_set=SET] [--all] ...`."""
    from rpr.t2t.registration import import_all_of_t2t, register
    if args.kinds and args.hparams_set:
        raise InvalidValue("hparams_set", args.hparams_set, f"not with {args.kinds[0]}")
    register(args.t2t_usr_dir)
    if args.all:
        import_all_of_t2t("problem")
        import_all_of_t2t("model")
    if args.hparams_set:
        _print_hparams(args.hparams_set)
        return
    from tensor2tensor.utils import registry

    from rpr import positions
    for kind in args.kinds or _KINDS:
        known: Any = (positions.SCHEMES if kind == "schemes"
                      else getattr(registry.Registries, kind)._registry)
        entries = [(name, entry) for name, entry in sorted(known.items())
                   if args.all or not entry.__module__.startswith("tensor2tensor.")]
        width = max((len(name) for name, _ in entries), default=0)
        print(kind)
        for name, entry in entries:
            meaning = (entry.__doc__ or "").strip().split("\n")[0]
            print(printable(f"  {name:<{width}}  {meaning}".rstrip()))
            if kind == "schemes":
                for line in (*(_describe(setting, setting.default) for setting in entry.settings),
                             *(f"{name}: T2T's hparam, with the default of the hparams set"
                               for name in entry.t2t_settings)):
                    print(printable(f"  {'':<{width}}    {line}"))


def list_names_parser() -> Parser:
    """The flags of `rpr list`."""
    parser = Parser(prog="rpr list", description="Models, hparams sets, problems and position "
                    "schemes, one per line.")
    parser.add_argument("kinds", nargs="*", metavar="KIND", type=_kind,
                        help=f"{', '.join(_KINDS)} (default: all of them)")
    parser.add_argument("--hparams_set", metavar="SET", help="the hparams of this set instead: "
                        "value, meaning and allowed values")
    parser.add_argument("--all", action="store_true", help="also list T2T's own")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="also list those in this directory")
    return parser


def _kind(text: str) -> str:
    if text not in _KINDS:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: must be one of {', '.join(_KINDS)}")
    return text


def _print_hparams(name: str) -> None:
    from rpr.models.declarations import declared
    from rpr.t2t.registration import registered_hparams
    hparams = registered_hparams(name)
    others = hparams.values()
    print(f"{name}: hparams whose values are checked")
    for setting in declared(hparams):
        print(printable(f"  {_describe(setting, others.pop(setting.name, None))}"))
    print("others, which are T2T's")
    for other, value in sorted(others.items()):
        print(printable(f"  {other}={value}"))


def _describe(setting: Setting, value: Any) -> str:
    meaning = f"{setting.help} ({setting.allowed()})" if setting.help else setting.allowed()
    return f"{setting.name}={value}: {meaning}"


def check_scheme(args: argparse.Namespace) -> int:
    """`rpr check-scheme NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    _overrides(args)
    return int(any(result.problem for result in _show_checks(args)))


def check_scheme_parser() -> Parser:
    """The flags of `rpr check-scheme`."""
    return _parser("check-scheme", "Checks that a position scheme is exact with a cache, sees no "
                   "later word, is not changed by padding, batches and packing, and more. The "
                   "exit code is 1 if a check finds a counter-example.")


def _parser(command: str, description: str) -> Parser:
    """A parser with the arguments that name a scheme."""
    parser = Parser(prog=f"rpr {command}", description=description)
    parser.add_argument("scheme", help="a value of the hparam position, such as alibi+rotary")
    parser.add_argument("--t2t_usr_dir", metavar="DIR", help="directory of your own scheme")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                        help="an hparam; may be repeated")
    return parser


def _overrides(args: argparse.Namespace) -> dict[str, Any]:
    """Registers the user's own schemes; returns {hparam: value} of --set, checked."""
    from rpr.t2t.registration import register, registered_hparams
    register(args.t2t_usr_dir)
    from rpr.conformance.layer import HPARAMS_SET
    from rpr.t2t.preflight import parse_hparams
    return parse_hparams(registered_hparams(HPARAMS_SET), ",".join(args.set), "set")


def _show_checks(args: argparse.Namespace) -> "list[Result]":
    """Runs the checks and prints a line for each."""
    from rpr.conformance.checks import check_scheme
    results = []
    try:
        for result in check_scheme(args.scheme, ",".join(args.set)):
            outcome = f"FAILED: {result.problem}" if result.problem else result.note or "pass"
            print(f"{result.side:<9}{result.check:<34}{printable(outcome)}", flush=True)
            results.append(result)
    except InvalidValue as error:
        raise InvalidValue("set", error.value, error.problem) from None
    except ValueError as error:
        from rpr.positions.registry import SCHEMES, names_in
        is_known = args.t2t_usr_dir or names_in(args.scheme) <= SCHEMES.keys()
        hint = "" if is_known else "; a scheme of your own needs --t2t_usr_dir=DIR"
        raise UserError(f"{error}{hint}") from None
    return results


def benchmark(args: argparse.Namespace) -> None:
    """`rpr benchmark NAME [--t2t_usr_dir=DIR] [--set NAME=VALUE ...]`."""
    local_pool.this_machine(cores=args.cores)         # checks the number
    recipe = Path(args.recipe).stem
    of_recipe = "" if gin_files.PREFIX + recipe == _RECIPE else f"{recipe}-"
    study_dir = args.study_dir or os.path.join(
        "runs", re.sub(r"[^A-Za-z0-9._]+", "-", f"benchmark-{of_recipe}{_label(args)}"))
    files.refuse_unusable(study_dir)
    record = args.record or str(_RECORDS / recipe / "runs.tar.xz")
    recorded = _recorded(record)
    overrides = _overrides(args)
    results = _show_checks(args)
    failed = sum(bool(result.problem) for result in results)
    if failed:
        raise UserError(f"{args.scheme}: {failed} checks failed, so no model was trained")
    settings = _study(args, overrides, {result.side for result in results}, set(recorded))
    runs = studies.study_runs(*settings, study_dir)
    studies.check(settings[1], runs, study_dir)       # before anything is written
    _unpack(record, recorded, runs)
    checks = {"checks": [dataclasses.asdict(result) for result in results]}
    files.write_json(os.path.join(study_dir, "checks.json"), checks)
    gin = os.path.join(study_dir, "benchmark.gin")
    files.write_atomically(gin, "".join(gin_files.as_gin(part) for part in settings[::-1]))
    flags = {"study_dir": study_dir, "cores": args.cores, "t2t_usr_dir": args.t2t_usr_dir}
    study.main([gin, *(f"--{name}={value}" for name, value in flags.items() if value)])


def benchmark_parser() -> Parser:
    """The flags of `rpr benchmark`."""
    parser = _parser("benchmark", "Checks a position scheme, trains it with "
                     "the settings of gin/small_schemes.gin, and compares it with the recorded "
                     "runs of the other schemes. Run the same command again to resume.")
    parser.add_argument("--study_dir", type=os.path.expanduser,
                        help="default: runs/benchmark-NAME, of another recipe "
                        "runs/benchmark-RECIPE-NAME")
    parser.add_argument("--cores", type=number(1), help=CORES_HELP)
    parser.add_argument("--recipe", type=gin_files.resolve, default=gin_files.resolve(_RECIPE),
                        metavar="GIN", help="the study of the recorded runs (default: "
                        f"{_RECIPE})")
    parser.add_argument("--record", metavar="FILE", type=os.path.expanduser, help="archive of the "
                        "recorded runs (default: docs/results/RECIPE/runs.tar.xz)")
    return parser


def _study(args: argparse.Namespace, overrides: dict[str, Any], sides: set[str],
           recorded: set[str]) -> tuple[Study, Run]:
    """The study of the recorded arms and the scheme, which is its baseline.

    The seeds are those with which the recipe's own baseline is recorded. Arms that are not
    recorded with all of them are left out.
    """
    recipe, run = gin_files.load_study(args.recipe)
    changes = overrides | ({"position": args.scheme} if {"encoder", "decoder"} <= sides else {
        f"{side}_position": args.scheme if side in sides else "relative"
        for side in ("encoder", "decoder")})
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
    same = studies.resolve(run, changes, 0)
    name = next((arm for arm, own in arms.items() if studies.resolve(run, own, 0) == same), "")
    if not name:
        label = _label(args)
        name = f"position={label}" if label in arms else label     # another arm has that name
    return Study(name, arms={name: changes} | arms, seeds=tuple(sorted(used))), run


def _label(args: argparse.Namespace) -> str:
    """The scheme and the settings of --set, as one reads them."""
    return ",".join([args.scheme, *args.set])


def _digest(name: str) -> str:
    """The end of the name of a run's directory, which identifies its configuration and seed."""
    return name.rpartition("-")[2]


def _recorded(record: str) -> dict[str, str]:
    """{digest: name} of the runs in an archive."""
    try:
        with tarfile.open(record) as tar:
            paths = [name.split("/") for name in tar.getnames()]
    except FileNotFoundError:
        hint = "; the records come with the repository, not with the package"
        raise InvalidPath(record, "no such record" + (
            hint if Path(record).is_relative_to(_RECORDS) else "")) from None
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError):
        raise InvalidPath(record, "not an archive of runs") from None
    return {_digest(path[1]): path[1] for path in paths if path[0] == "runs" and len(path) > 2}


def _unpack(record: str, recorded: dict[str, str], runs: list[studies.StudyRun]) -> None:
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
