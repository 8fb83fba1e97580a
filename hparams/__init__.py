"""Registered hparams sets, one file a family; importing this package registers them all."""
from hparams import base, big, europarl, seq2seq, small, toy

__all__ = ["base", "big", "europarl", "seq2seq", "small", "toy"]
