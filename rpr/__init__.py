"""Relative-position Transformers on tensor2tensor.

Named as `--t2t_usr_dir=rpr` it registers the models `rpr_transformer` and `qkv_seq2seq`, the
hparams sets and the problems with T2T.
In a program of your own call `rpr.register()` before tensor2tensor is imported; a plain
`import rpr` loads neither TensorFlow nor T2T, so that the functions of `rpr.nn.attention` and
`rpr.positions` serve an eager program as it is.
"""
import sys

__version__ = "0.1.0"


def register():
    """Makes T2T run on this TensorFlow; registers this project's models, hparams and problems.

    Raises:
      rpr.t2t.compat.ImportOrderError: tensor2tensor was imported before.
    """
    from rpr.t2t import compat
    compat.install()
    import hparams  # noqa: F401
    import problems  # noqa: F401
    from rpr.models import seq2seq, transformer  # noqa: F401


if "tensor2tensor" in sys.modules:
    register()
