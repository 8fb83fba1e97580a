"""Files of lines `run.NAME = VALUE` and `study.NAME = VALUE`.

A user's own file is read by gin and may use all of gin: `include`, macros, references. The
`config.gin` and `study.gin` that we write into run and study directories are data: other people's
directories must not be able to run code (gin can import modules and call functions), so only
`name = literal` is accepted there. The same holds for the overrides of `--set`.
"""
import ast
import contextlib
import dataclasses
import glob
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
from rpr.experiments.config import Run, Study, declarations, shown, with_tuple
from rpr.utils import files
from rpr.utils.errors import InvalidValue, UserError, nearest

RUN_FILE, STUDY_FILE = "config.gin", "study.gin"      # in the directory of a run, of a study

_LARGEST = 1 << 20                                    # bytes of a file that we wrote
_SETTINGS = {each.name: each for kind, prefix in ((Run, "run"), (Study, "study"))
             for _, each in declarations(kind, prefix)}

_configured_run = gin.external_configurable(Run, name="run")
_configured_study = gin.external_configurable(Study, name="study")
PREFIX = "recipe:"


def load_run(path: str, overrides: Sequence[str] = ()) -> Run:
    """The run that a gin file describes, in lines `run.NAME = VALUE` with the fields of `Run`.

    `overrides` are the values of `--set`, each `run.NAME=LITERAL`; they override the file.
    """
    return _load(path, overrides, is_study=False)[0]


def load_study(path: str, overrides: Sequence[str] = ()) -> tuple[Study, Run]:
    """The study that the lines `study.NAME` of a gin file describe, and its base run."""
    run, study = _load(path, overrides, is_study=True)
    assert study is not None
    return study, run


def as_gin(settings: Run | Study) -> str:
    """Settings as gin lines with literal values."""
    prefix = "run" if isinstance(settings, Run) else "study"
    return "".join(f"{prefix}.{field} = {value!r}\n"
                   for field, value in dataclasses.asdict(settings).items())


def is_record(path: str) -> bool:
    """Whether a file is a record in a run or study directory, by its name."""
    return os.path.basename(path) in (RUN_FILE, STUDY_FILE)


def default_directory(path: str) -> str:
    """Where a file's run or study belongs: the directory of a record, else runs/ and its name."""
    folder, name = os.path.split(path)
    if is_record(path) and any(os.path.exists(os.path.join(folder, record))
                               for record in ("status.json", "study.json",
                                              f"../../{STUDY_FILE}")):
        return os.path.abspath(folder)
    return os.path.abspath(os.path.join("runs", os.path.splitext(name)[0]))


def _load(path: str, overrides: Sequence[str], is_study: bool) -> tuple[Run, Study | None]:
    if not os.path.exists(path):
        name = os.path.basename(path).removesuffix(".gin")
        hint = f"; {PREFIX}{name} is the one that ships with rpr" if name in _paths() else ""
        raise UserError(f"{path}: no such gin file{hint}")
    if os.path.isdir(path):
        raise UserError(f"{path}: is a directory; expected a gin file")
    files.refuse_pipe(path)
    changes = dict(_override(text, is_study) for text in overrides)
    try:
        load = _load_data if is_record(path) else _load_with_gin
        run, study = load(path, changes, is_study)
        if is_study and run.seed != Run.seed:
            raise UserError(f"run.seed = {run.seed}: the seeds of a study are study.seeds")
        return run, study
    except Exception as error:                        # gin raises whatever the text provokes
        if isinstance(error, OSError) and error.errno is not None:
            raise                                     # the disk; gin's own have no number
        raise UserError(f"{path}{' with overrides' if changes else ''}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    text = str(error).strip() or type(error).__name__
    token = re.search(r"Failed to parse token ('.*')(.*)", text)
    if token:                                         # the first line quotes Python's parser
        quoted = token[1] if len(token[1]) <= 80 else f"{token[1][:77]}..."
        return f"{quoted} is not a number, True, False, None or a quoted string{token[2]}"
    missing = re.search(r"(Run|Study)\.__init__\(\) missing .*?'(\w+)'", text)
    if missing:
        return f"{missing[1].lower()}.{missing[2]} is missing"
    unknown = re.search(r"Configurable '(run|study)' doesn't have a parameter named '(\w+)'", text)
    if unknown:
        return _unknown(".".join(unknown.groups()))
    return text.splitlines()[0].strip().removesuffix(" in config string:")


def _unknown(name: str) -> str:
    return f"no setting {shown(name)[1:-1]}{nearest(name, _SETTINGS)}"


def _override(text: str, is_study: bool) -> tuple[str, Any]:
    """The name (`run.NAME` or `study.NAME`) and the value of a `--set`."""
    settings = {name: declared for name, declared in _SETTINGS.items()
                if is_study or name.startswith("run.")}
    name, equals, value = (part.strip() for part in text.partition("="))
    typed = shown(text)[1:-1]
    if not equals or name not in settings:
        raise InvalidValue("set", typed, f"must be run.NAME{' or study.NAME' if is_study else ''}="
                           f"VALUE, NAME being a setting{nearest(name, settings)}")
    declared = settings[name]
    try:
        literal = with_tuple(ast.literal_eval(value), declared)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        if not isinstance(declared.default, str) or value[:1] in ("'", '"'):
            raise InvalidValue("set", typed, f"must be {declared.allowed()}, as a Python literal"
                               ) from None
        literal = value                               # text, whose quotes the shell took
    if not declared.accepts(literal):
        raise InvalidValue("set", typed, declared.required(literal))
    return name, literal


def _load_with_gin(path: str, changes: Mapping[str, Any], is_study: bool
                   ) -> tuple[Run, Study | None]:
    gin.clear_config()
    folder = os.path.dirname(os.path.abspath(path))
    with _included_from(folder), open(path, encoding="utf-8-sig") as file:
        gin.parse_config(file)
    _check_macros()
    for name, value in changes.items():
        gin.bind_parameter(name, value)
    text = gin.config_str()
    scoped = re.search(r"^[\w/.]+/((?:run|study)\.\w+) =", text, re.MULTILINE)
    if scoped:
        raise UserError(f"{shown(scoped[0].removesuffix(' ='))}: gin's scopes have no effect; the "
                        f"setting is {scoped[1]}")
    gin.finalize()
    _check_kind("\nstudy." in text, is_study)
    return _configured_run(), _configured_study() if is_study else None


@contextlib.contextmanager
def _included_from(folder: str) -> Iterator[None]:
    """Makes gin look for included files in a folder, then in the working directory.

    gin can only add folders, behind those of files that were read before. It logs an error for each
    one that lacks the file.
    """
    handler = logging.NullHandler()                   # or logging.error adds one that prints
    logging.getLogger().addHandler(handler)
    gin.config._LOCATION_PREFIXES.insert(0, folder)
    try:
        yield
    finally:
        gin.config._LOCATION_PREFIXES.remove(folder)
        logging.getLogger().removeHandler(handler)


def _check_macros() -> None:
    """Refuses a macro that nothing uses: gin defines one where `run.` is left out."""
    text = gin.config_str()
    for name in re.findall(r"^([\w/]+) =", text, re.MULTILINE):
        if not re.search(rf"%{name}\b", text):
            value = gin.query_parameter(f"{name}/gin.macro.value")
            raise UserError(f"{name} = {shown(value)} has no effect: nothing uses %{name}"
                            f"{nearest(name, _SETTINGS)}")


def _check_kind(describes_study: bool, is_study: bool) -> None:
    if describes_study and not is_study:
        raise UserError("it describes a study: use rpr study")
    if is_study and not describes_study:
        raise UserError("it describes a single run: use rpr run")


def _load_data(path: str, changes: Mapping[str, Any], is_study: bool
               ) -> tuple[Run, Study | None]:
    with files.open_regular(path) as file:
        text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise UserError("larger than any file that rpr writes")
    values = {**dict(_literals(text.decode())), **changes}
    for name in values:
        if name not in _SETTINGS:
            raise UserError(_unknown(name))
    _check_kind(any(name.startswith("study.") for name in values), is_study)

    def of(kind: str) -> dict[str, Any]:
        return {name.removeprefix(kind): value for name, value in values.items()
                if name.startswith(kind)}

    return Run(**of("run.")), Study(**of("study.")) if is_study else None


def _literals(text: str) -> Iterator[tuple[str, Any]]:
    """("run.NAME" or "study.NAME", value) of lines `name = literal`."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise UserError(f"{f'line {line}: ' if line else ''}only lines `name = literal` are "
                        "allowed here") from None
    for statement in statements:
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="run" | "study" as kind),
                                                   attr=name)], value=value):
                pass
            case _:
                raise UserError(f"line {statement.lineno}: only lines `run.NAME = literal` and "
                                "`study.NAME = literal` are allowed here: gin's features work in a "
                                "gin file of your own, under another name")
        try:
            yield f"{kind}.{name}", ast.literal_eval(value)
        except (ValueError, TypeError, MemoryError, RecursionError):
            raise UserError(f"line {statement.lineno}: {kind}.{name} needs a literal value"
                            ) from None


def resolve(path: str) -> str:
    """The path of a gin file that may be named as `recipe:NAME`, or with a `~`."""
    if not path.startswith(PREFIX):
        return os.path.expanduser(path)
    paths = _paths()
    name = path.removeprefix(PREFIX).removesuffix(".gin")
    if name not in paths:
        raise UserError(f"{path}: no such recipe"
                        f"{nearest(name, paths) or '; there are ' + ', '.join(paths)}")
    return paths[name]


def _paths() -> dict[str, str]:
    """{name: path} of all recipes."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folder = os.path.join(package, "recipes")         # in a wheel
    if not os.path.isdir(folder):
        folder = os.path.join(os.path.dirname(package), "gin")
    return {os.path.basename(path).removesuffix(".gin"): path
            for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.gin")))}
