"""Registered names: this project's, T2T's, and those of a --t2t_usr_dir."""
import contextlib
import difflib
import importlib
import io
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable

from tensor2tensor.utils import registry
from tensor2tensor.utils import usr_dir as t2t_usr_dir

from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams, Problem


def check_choice(kind: str, flag: str, name: str | None, names: Iterable[str]) -> None:
    """Refuses a name that is not registered, and suggests the nearest ones.

    Args:
      kind: what the name stands for, for the message.
      flag: the flag that gave the name.
      name: the value of the flag.
      names: the registered names.

    Raises:
      UserError: the name is missing or not registered.
    """
    if not name:
        raise UserError(f"--{flag} is missing: the {kind} to use (rpr list shows them)")
    if name not in names:
        near = difflib.get_close_matches(name, names, n=4, cutoff=0.5)
        raise UserError(f"--{flag}={name}: no such {kind}; "
                        + (f"nearest: {', '.join(near)}; " if near else "") + "rpr list shows all")


def check_model(name: str | None) -> None:
    """Refuses the name of a model that is not registered."""
    check_choice("model", "model", name, registered_names("model", name))


def registered_hparams(name: str | None) -> HParams:
    """The hparams of a registered set; an unknown name is refused."""
    check_choice("hparams set", "hparams_set", name, registered_names("hparams", name))
    return registry.hparams(name)


def find_problem(name: str | None) -> Problem:
    """The problem of --problem, which may have T2T's suffixes _rev and _copy.

    An unknown name is refused.
    """
    base = registry.parse_problem_name(name).base_name if name else name
    check_choice("problem", "problem", base, registered_names("problem", base))
    return registry.problem(name)


def register(usr_dir: str | None = None) -> None:
    """Registers this project's names and those of a --t2t_usr_dir.

    Raises:
      UserError: there is no such directory, or a module of the same name is loaded.
    """
    for name in ("hparams", "problems", "models.seq2seq", "models.transformer"):
        importlib.import_module(f"rpr.{name}")
    if not usr_dir:
        return
    path = os.path.abspath(os.path.expanduser(usr_dir))
    name = os.path.basename(path)
    if name == "rpr":
        return                                        # registered above
    if not os.path.isdir(path):
        raise UserError(f"--t2t_usr_dir={usr_dir}: there is no such directory")
    if not os.path.exists(os.path.join(path, "__init__.py")):
        raise UserError(f"--t2t_usr_dir={usr_dir}: it has no __init__.py, which imports your code")
    loaded = sys.modules.get(name)
    if loaded and os.path.dirname(os.path.abspath(getattr(loaded, "__file__", None) or "")) != path:
        raise UserError(f"--t2t_usr_dir={usr_dir}: a module named '{name}' is loaded already; "
                        "rename the directory")
    try:
        t2t_usr_dir.import_usr_dir(path)
    except Exception as error:
        raise UserError(f"--t2t_usr_dir={usr_dir}: {_place_in(path, error)}"
                        f"{type(error).__name__}: {error}") from error


def _place_in(path: str, error: Exception) -> str:
    """FILE, line N, of the user's own code that raised an error."""
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno))
    own = [f"{os.path.relpath(file, path)}, line {line}: " for file, line in places
           if os.path.abspath(file).startswith(path + os.sep)]
    return own[-1] if own else ""


def registered_names(kind: str, name: str | None) -> list[str]:
    """The registered names of a kind.

    Args:
      kind: `model`, `problem` or `hparams`.
      name: the wanted name. T2T's complete lists take seconds to import, so they are imported only
        if this name is not registered yet.
    """
    names = {"model": registry.list_models, "problem": registry.list_base_problems,
             "hparams": registry.list_hparams}[kind]
    if name and name not in names():
        import_all_of_t2t(kind)
    return names()


def import_all_of_t2t(kind: str) -> None:
    """Registers all problems (`problem`), or all models and hparams sets, that can be imported."""
    if kind == "problem":
        from tensor2tensor.data_generators import all_problems
        modules = all_problems.ALL_MODULES
    else:
        import tensor2tensor.models
        modules = [module.name for module in pkgutil.walk_packages(
            tensor2tensor.models.__path__, "tensor2tensor.models.")
            if not module.name.endswith("_test")]
    for module in modules:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(module)
