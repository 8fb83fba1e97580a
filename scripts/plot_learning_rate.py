#!/usr/bin/env python3
"""Draws the learning rate of an hparams set against the steps.

  scripts/plot_learning_rate.py OUT.png --hparams_set=europarl_lite [--hparams=name=value,...]
    [--steps=100000]
"""
import argparse
import os
import sys
from collections.abc import Iterable
from typing import Any

from rpr.cli.arguments import number

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

POINTS = 1000


def learning_rates(hparams: Any, steps: Iterable[int]) -> list[float]:
    """The learning rate after each of these numbers of optimizer steps."""
    import tensorflow.compat.v1 as tf

    from rpr.models import transformer
    tf.logging.set_verbosity(tf.logging.ERROR)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        rate = transformer.learning_rate(hparams)
        session.run(tf.global_variables_initializer())
        rates = []
        for count in steps:
            step.load(int(count), session)
            rates.append(float(session.run(rate)))
        return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", help="PNG file to write")
    parser.add_argument("--hparams_set", required=True)
    parser.add_argument("--hparams", default="", help="name=value,...")
    parser.add_argument("--steps", type=number(1), default=100000, help="last step (%(default)s)")
    options = parser.parse_args()

    import rpr
    rpr.register()
    import numpy as np
    from matplotlib.figure import Figure

    from rpr.models.declarations import check_ranges
    from rpr.t2t import preflight, registration
    from rpr.utils.errors import UserError
    try:
        if os.path.isfile(options.out):
            with open(options.out, "rb") as old:
                if old.read(4) not in (b"", b"\x89PNG"):
                    raise UserError(f"{options.out} is not a PNG file; choose another name")
        hparams = registration.registered_hparams(options.hparams_set)
        preflight.parse_hparams(hparams, options.hparams)
        check_ranges(hparams)
    except (UserError, ValueError, OSError) as error:
        sys.exit(f"plot_learning_rate.py: {error}")
    hparams.add_hparam("train_steps", options.steps)
    steps = np.unique(np.linspace(0, options.steps, POINTS).astype(int))
    figure = Figure((7, 3), dpi=110, layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, learning_rates(hparams, steps))
    axes.set(xlabel="steps", ylabel="learning rate", title=options.hparams_set, ylim=(0, None))
    axes.grid(alpha=0.3)
    try:
        figure.savefig(options.out, format="png")
    except OSError as error:
        sys.exit(f"plot_learning_rate.py: {error}")


if __name__ == "__main__":
    main()
