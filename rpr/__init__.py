"""Relative-position Transformers on tensor2tensor (T2T).

`--t2t_usr_dir=rpr` makes T2T's programs know the models `rpr_transformer` and `qkv_seq2seq`, the
hparams sets and the problems of this project. In a program of your own call `rpr.register()`
before tensor2tensor is imported. A plain `import rpr` loads neither TensorFlow nor T2T: the
functions of `rpr.nn` and `rpr.positions` also work in an eager program.
"""
import importlib
import os
import sys

from rpr.utils.errors import UserError

__version__ = "0.1.0"


def register() -> None:
    """Makes T2T run on this TensorFlow; registers this project's models, hparams and problems.

    Raises:
      rpr.t2t.compat.ImportOrderError: tensor2tensor was imported before.
      UserError: another package named `problems` or `hparams` hides ours.
    """
    from rpr.t2t import compat
    compat.install()
    for name in ("hparams", "problems"):
        _import_own(name)
    from rpr.models import seq2seq, transformer  # noqa: F401


def _import_own(name: str) -> None:
    """Imports a top-level package of this project; refuses a package of the same name."""
    own = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), name)
    module = importlib.import_module(name)
    paths = [os.path.abspath(path) for path in getattr(module, "__path__", [])]
    if os.path.realpath(own) not in map(os.path.realpath, paths):
        place = paths[0] if paths else module.__file__
        raise UserError(f"{place} hides this project's package '{name}': rename it, or start "
                        "Python in another directory (or with -P)")


if "tensor2tensor" in sys.modules:
    register()
