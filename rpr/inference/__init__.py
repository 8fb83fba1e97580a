"""Inference: decoding files, ensembles, and a look into trained models."""
