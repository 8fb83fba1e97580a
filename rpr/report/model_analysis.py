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

from rpr.evaluation import test_sets
from rpr.experiments import config
from rpr.experiments.run_directory import Directory, find_trained_model
from rpr.inference.inspector import Inspector
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
    from rpr.t2t import registration
    run = config.load_run(where.config)
    arrays = tables(where.checkpoint(run))
    source = (test_sets.test_set_source(run.test_set, run.language_pair) if run.test_set
              else test_sets.read_lines(where.source))
    encoder = registration.find_problem(run.problem).feature_encoders(where.data_dir)["inputs"]
    arrays["source_lengths"] = np.array([len(encoder.encode(line)) + 1 for line in source])
    try:
        attention = attention_by_distance(where.path, where.data_dir, farthest=FARTHEST)
    except UserError as error:                        # a model that does not record it
        print(error, file=sys.stderr)
        attention = {}
    return arrays | {f"{side}_attention": shares.astype(np.float32)
                     for side, shares in attention.items()}


def main(path, data_dir):
    """Writes RUN/learned.npz."""
    where = Directory(path, data_dir)
    arrays = _look(where)
    with open(_cache(where) + ".part", "wb") as out:
        np.savez(out, **arrays)
    os.replace(_cache(where) + ".part", _cache(where))


if __name__ == "__main__":
    main(*sys.argv[1:])


def attention_by_distance(run_directory, data_dir, sentences=64, farthest=16):
    """How far the heads of a run's model look, over sentences of its test set.

    Teacher-forced over the references, so that the models of a study read the same text.

    Args:
      run_directory: as `rpr run` makes it.
      data_dir: its vocabulary and TFRecords.
      sentences: how many of the test set, at equal intervals; those that are longer than the
        model's max_length are left out.
      farthest: the distance from which on all count as one.

    Returns:
      {"encoder": a, "decoder": a}, each float64 [layers, heads, 2 * farthest + 1]: the share of its
      attention that a query i gives to the keys j at distance j - i = -farthest ... farthest, mean
      over all queries that are not padding. The shares of a head sum to 1.
    """
    import rpr
    rpr.register()
    from rpr.evaluation import test_sets
    from rpr.t2t import trained_model
    run, flags = find_trained_model(run_directory, data_dir)
    trained = trained_model.trained_model(flags)
    if run.test_set:
        source = test_sets.test_set_source(run.test_set, run.language_pair)
        target = next(iter(test_sets.test_set_references(run.test_set, run.language_pair).values()))
    else:
        where = Directory(run_directory, data_dir)
        source, target = map(test_sets.read_lines, (where.source, where.reference))
    model = Inspector(trained, beam_size=1)
    if not model.attends_to_itself:
        raise UserError(f"{run_directory}: a model {trained.name} has no self-attention")
    pairs = list(zip(source, target, strict=True))
    chosen = [pairs[place] for place in
              np.linspace(0, len(pairs) - 1, min(sentences, len(pairs))).astype(int)]
    encoded = [(model.encode(one), model.encode(other, "targets")) for one, other in chosen]
    encoded = sorted((pair for pair in encoded
                      if max(map(len, pair)) <= trained.hparams.max_length),
                     key=lambda pair: max(map(len, pair)))
    if not encoded:
        raise UserError(f"{run_directory}: no test sentence of at most max_length="
                        f"{trained.hparams.max_length} tokens")
    totals = {"encoder": 0.0, "decoder": 0.0}
    queries = dict.fromkeys(totals, 0)
    with Task("attention by distance", len(encoded), "sentences") as task:
        for first in range(0, len(encoded), 8):
            some = encoded[first:first + 8]
            weights = model.attention(*zip(*some, strict=True))
            for row, lengths in enumerate([tuple(map(len, pair)) for pair in some]):
                for side, length in zip(totals, lengths, strict=True):
                    real = getattr(weights, side)[:, row, :, :length, :length]
                    totals[side] = totals[side] + by_distance(real, farthest)
                    queries[side] += length
            task.update(first + len(some))
    return {side: totals[side] / queries[side] for side in totals}


def by_distance(weights, farthest):
    """Attention summed over all queries, by clipped distance.

    Args:
      weights: [layers, heads, n, n].
      farthest: the distance from which on all count as one.

    Returns:
      float64 [layers, heads, 2 * farthest + 1], for the distances j - i = -farthest ... farthest.
    """
    place = np.arange(weights.shape[-1])
    distance = np.clip(place - place[:, None], -farthest, farthest) + farthest
    sums = [np.bincount(distance.ravel(), head.ravel().astype(np.float64), 2 * farthest + 1)
            for layer in weights for head in layer]
    return np.reshape(sums, [*weights.shape[:2], -1])
