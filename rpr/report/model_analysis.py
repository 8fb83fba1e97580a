"""What a finished run's model learned, in RUN/learned.npz: a cache that may be removed.

    encoder_keys, encoder_values,       [layers, tables, 2k + 1, depth]: a^K and a^V; one table
    decoder_keys, decoder_values        where the heads share it
    encoder_attention,                  [layers, heads, 2 * FARTHEST + 1]:
    decoder_attention                   `inspection.attention_by_distance`
    source_lengths                      [sentences]: of the test set, in sub-words with the end mark

TensorFlow's graphs are process-wide, so each model is looked into by a process of its own:
`python -m rpr.report.model_analysis RUN DATA_DIR`.
"""
import os
import re
import subprocess
import sys

import numpy as np

from rpr.evaluation import scoring
from rpr.experiments import config
from rpr.experiments import run as experiment
from rpr.utils import processes
from rpr.utils.console import Task, terminal
from rpr.utils.errors import UserError

FARTHEST = 16
SIDES = ("encoder", "decoder")
KINDS = ("keys", "values")
_TABLE = re.compile(r"[^/]+/body/(encoder|decoder)/layer_(\d+)/self_attention/.*"
                    r"/relative_positions_(keys|values)/embeddings$")


def _cache(where):
    return where.file("learned.npz")


def load(where):
    """{array's name: array} of a run's `experiment.Directory`; empty while it was not looked into.

    What is older than the run's scores counts as not there.
    """
    path = _cache(where)
    if not os.path.exists(path) or os.path.getmtime(path) < os.path.getmtime(where.scores):
        return {}
    with np.load(path) as arrays:
        return dict(arrays)


def look(places):
    """Looks into the models of finished runs, those that were not yet.

    Args:
      places: `experiment.Directory`s.

    What cannot be looked into is said in a line, and left out.
    """
    todo = [where for where in places if not load(where)]
    with Task("looking into the models", len(todo), "models") as task:
        for number, where in enumerate(todo, 1):
            done = subprocess.run(
                [sys.executable, "-P", "-m", "rpr.report.model_analysis", where.path, where.data_dir],
                capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                preexec_fn=processes.with_parent())
            if done.returncode:
                lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                terminal.print(f"{where.path}: not looked into: {lines[-1]}", style="yellow",
                               highlight=False, markup=False, soft_wrap=True)
            task.update(number)


def tables(checkpoint):
    """The tables of relative positions of a checkpoint: {"encoder_keys": array, ...}.

    Args:
      checkpoint: the path's prefix.
    """
    import tensorflow as tf
    reader = tf.train.load_checkpoint(checkpoint)
    found = {}
    for name in reader.get_variable_to_shape_map():
        match = _TABLE.match(name)
        if match:
            side, layer, kind = match.groups()
            found.setdefault(f"{side}_{kind}", {})[int(layer)] = reader.get_tensor(name)
    return {name: np.stack([layers[layer].reshape(-1, *layers[layer].shape[-2:])
                            for layer in sorted(layers)]).astype(np.float32)
            for name, layers in found.items()}


def _look(where):
    """All arrays of a run."""
    import rpr
    rpr.register()
    from rpr.inference import inspector
    from rpr.t2t import launcher
    run = config.load_run(where.config)
    arrays = tables(where.checkpoint(run))
    source = (scoring.test_set_source(run.test_set, run.language_pair) if run.test_set
              else scoring.read_lines(where.source))
    encoder = launcher.find_problem(run.problem).feature_encoders(where.data_dir)["inputs"]
    arrays["source_lengths"] = np.array([len(encoder.encode(line)) + 1 for line in source])
    try:
        attention = inspector.attention_by_distance(where.path, where.data_dir, farthest=FARTHEST)
    except UserError as error:                        # a model that does not record it
        print(error, file=sys.stderr)
        attention = {}
    return arrays | {f"{side}_attention": shares.astype(np.float32)
                     for side, shares in attention.items()}


def main(run_directory, data_dir):
    """Writes RUN/learned.npz."""
    where = experiment.Directory(run_directory, data_dir)
    arrays = _look(where)
    with open(_cache(where) + ".part", "wb") as out:
        np.savez(out, **arrays)
    os.replace(_cache(where) + ".part", _cache(where))


if __name__ == "__main__":
    main(*sys.argv[1:])
