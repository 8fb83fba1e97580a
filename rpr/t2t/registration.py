"""Registered names: this project's, T2T's, and those of the user's directory."""
import contextlib
import importlib
import io
import os
import pkgutil
import sys

from tensor2tensor.data_generators import multi_problem, multi_problem_v2
from tensor2tensor.utils import hparam, registry
from tensor2tensor.utils import usr_dir as t2t_usr_dir

from rpr.utils.errors import InvalidPath, InvalidValue, nearest, places
from rpr.utils.interfaces import HParams, Problem


def check_registered(kind: str, name: str | None) -> None:
    """Refuses a `model`, `problem` or `hparams_set` (the kind) that is missing or not registered.

    The name of a problem comes without T2T's suffixes _rev and _copy.
    """
    meaning = kind.replace("_", " ")
    if not name:
        raise InvalidValue(kind, None, f"the {meaning} to use (rpr list shows them)")
    names = registered_names(kind.removesuffix("_set"), name)
    if name not in names:
        raise InvalidValue(kind, name, f"no such {meaning}{nearest(name, names)}; rpr list shows "
                           "all")


def registered_hparams(name: str | None) -> HParams:
    """The hparams of a registered set; refuses unknown names."""
    check_registered("hparams_set", name)
    hparams = registry.hparams(name)
    if not isinstance(hparams, hparam.HParams):
        raise InvalidValue("hparams_set", name, f"returns {type(hparams).__name__}, not HParams")
    return hparams


def find_problem(name: str | None) -> Problem:
    """The problem of a name, which may end in T2T's _rev and _copy; refuses unknown names."""
    check_registered("problem", registry.parse_problem_name(name).base_name if name else name)
    problem = registry.problem(name)
    if isinstance(problem, multi_problem.MultiProblem | multi_problem_v2.MultiProblemV2):
        raise InvalidValue("problem", name, "it mixes several problems, which is not supported; "
                           "train on one of them")
    return problem


def register(usr_dir: str | None = None) -> None:
    """Registers this project's names and those of the user's directory."""
    import rpr.hparams
    import rpr.models.seq2seq
    import rpr.models.transformer
    import rpr.problems  # noqa: F401  importing them registers their names
    if not usr_dir:
        return
    path = os.path.abspath(os.path.expanduser(usr_dir))
    name = os.path.basename(path)
    if name == "rpr" and (not os.path.isdir(path)
                          or os.path.samefile(path, os.path.dirname(rpr.__file__))):
        return                                        # registered above
    if not os.path.isdir(path):
        raise InvalidPath(usr_dir, "no such directory")
    if not os.path.exists(os.path.join(path, "__init__.py")):
        raise InvalidPath(usr_dir, "it has no __init__.py, which imports your code")
    loaded = sys.modules.get(name)
    if loaded and os.path.dirname(os.path.abspath(getattr(loaded, "__file__", None) or "")) != path:
        raise InvalidPath(usr_dir, f"a module named '{name}' is loaded already; rename the "
                          "directory")
    try:
        t2t_usr_dir.import_usr_dir(path)
    except (Exception, SystemExit) as error:
        own = [f"{os.path.relpath(file, path)}, line {line}: " for file, line in places(error)
               if os.path.abspath(file).startswith(path + os.sep)]
        raise InvalidValue("t2t_usr_dir", usr_dir, f"{own[-1] if own else ''}"
                           f"{type(error).__name__}: {error}") from error


def registered_names(kind: str, name: str | None) -> list[str]:
    """The registered names of a kind, `model`, `problem` or `hparams`.

    The complete lists of T2T take seconds to import. They are imported only if `name`, which is
    looked for, is not registered yet.
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
