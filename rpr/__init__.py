"""Relative-position Transformers on tensor2tensor (T2T).

`--t2t_usr_dir=rpr` makes T2T's programs know the models `rpr_transformer` and `qkv_seq2seq`, the
hparams sets and the problems of this project. In your own program call `rpr.register()` before
tensor2tensor is imported. `import rpr` loads neither TensorFlow nor T2T.
"""
import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpr.api import build, check_attention, curves, load, results, run, study

__all__ = ["build", "check_attention", "curves", "load", "register", "results", "run", "study"]

__version__ = "0.1.0"


def register() -> None:
    """Makes T2T run on this TensorFlow; registers this project's models, hparams and problems.

    Raises:
      rpr.t2t.compat.ImportOrderError: tensor2tensor was imported before.
    """
    from rpr.t2t import compat
    compat.install()
    from rpr.t2t import registration
    registration.register()


def __getattr__(name: str) -> Any:
    """The functions of `rpr.api`, imported when they are first used."""
    if name in __all__:
        return getattr(importlib.import_module("rpr.api"), name)
    raise AttributeError(f"module 'rpr' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Includes the functions of `__getattr__`, for completion and `help`."""
    return sorted({*globals(), *__all__})


if "tensor2tensor" in sys.modules:
    register()
