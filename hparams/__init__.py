"""Registered hparams sets, one file a family; importing this package registers them all."""
from hparams import base, big, small

__all__ = ["base", "big", "small"]
