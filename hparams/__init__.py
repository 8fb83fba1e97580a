"""Registered hparams sets, one file per family; importing the package registers all of them."""
from rpr.hparams import base, big, europarl, multi30k, seq2seq, small, toy

__all__ = ["base", "big", "europarl", "multi30k", "seq2seq", "small", "toy"]
