"""Registered hparams sets; importing the package registers all of them."""
from rpr.hparams import base, seq2seq, small, toy

__all__ = ["base", "seq2seq", "small", "toy"]
