"""rpr.t2t.registration"""
import difflib
import os
import sys

from tensor2tensor.utils import registry

from rpr.utils.errors import UserError


def check_choice(kind, flag, name, known):
    """Refuses a name that is not registered, with the nearest that are.

    Args:
      kind: what is named, for the message.
      flag: the flag that named it.
      name: the value of the flag.
      known: the registered names.
    """
    if not name:
        raise UserError(f"--{flag} is missing: the {kind} to use (rpr list shows them)")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
        raise UserError(f"--{flag}={name}: no such {kind}; "
                        + (f"nearest: {', '.join(near)}; " if near else "") + "rpr list shows all")


def registered_hparams(name):
    """A registered set's hparams; refuses an unknown name."""
    check_choice("hparams set", "hparams_set", name, registry.list_hparams())
    return registry.hparams(name)


def register(usr_dir=None):
    """Registers this project's names and those of a --t2t_usr_dir."""
    import rpr
    rpr.register()
    if not usr_dir:
        return
    from tensor2tensor.utils import usr_dir as t2t_usr_dir
    path = os.path.abspath(os.path.expanduser(usr_dir.rstrip("/")))
    name = os.path.basename(path)
    if name == "rpr":
        return                                        # registered above
    if not os.path.exists(path):
        raise UserError(f"--t2t_usr_dir={usr_dir}: there is no such directory")
    loaded = sys.modules.get(name)
    if loaded and os.path.dirname(os.path.abspath(getattr(loaded, "__file__", None) or "")) != path:
        raise UserError(f"--t2t_usr_dir={usr_dir}: a module named '{name}' is loaded already; "
                        "rename the directory")
    t2t_usr_dir.import_usr_dir(path)


def known(kind, name):
    """The registered names; T2T's whole lists are imported when a name is not among the first."""
    from tensor2tensor.utils import registry
    lists = {"model": registry.list_models, "problem": registry.list_base_problems,
             "hparams": registry.list_hparams}
    if name and name not in lists[kind]():
        import_all_of_t2t(kind)
    return lists[kind]()


def import_all_of_t2t(kind):
    """Registers all problems, or all models and hparams sets, that still import."""
    import contextlib
    import importlib
    import io
    import pkgutil
    if kind == "problem":
        from tensor2tensor.data_generators import all_problems
        names = all_problems.ALL_MODULES
    else:
        import tensor2tensor.models
        names = [module.name for module in pkgutil.walk_packages(
            tensor2tensor.models.__path__, "tensor2tensor.models.")
            if not module.name.endswith("_test")]
    for name in names:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)


def find_problem(name):
    """The problem of --problem; T2T's suffixes _rev and _copy are understood."""
    from tensor2tensor.utils import registry

    base = registry.parse_problem_name(name).base_name if name else name
    check_choice("problem", "problem", base, known("problem", base))
    return registry.problem(name)
