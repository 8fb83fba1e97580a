"""Registered hparams sets; importing the package registers all of them."""
from rpr.hparams import base, seq2seq, small, toy  # noqa: F401
