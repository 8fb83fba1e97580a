#!/usr/bin/env python3
"""Times the core of relative attention, forward and backward, against other implementations.

Directions: causal (a decoder), bidirectional (an encoder), and cached (one step of decoding: one
query at the end of n keys, forward only, with a dynamic length).

All variants run in one process, round-robin, over the same queries, keys, values and mask. The
output and the gradients by q, k, v and the tables are fetched, so that nothing is pruned. The table
shows medians, the middle half of the times, and ratios of medians.

  ours       rpr.positions.relative
  absolute   the same attention without a position scheme
  t2t        tensor2tensor's dot_product_attention_relative, whose table all heads share
  t5_bias, alibi, ...    that position scheme with its default hparams, as one layer uses it, in the
             directions in which it works; graph with a random label, one of 2k + 1, for each pair
             of words; not forgetting and path, which read the words, nor pope with cached keys
  additive   relative with compatibility=additive

Peak memory is measured at --memory_lengths with the first of --clips. On a CPU it is the growth of
the resident memory of a fresh process in one step (VmHWM minus VmRSS before the step, inputs
excluded), on a GPU the largest peak that the allocator reports in one step, inputs included.

  scripts/bench_attention.py                                         in under 10 minutes
  scripts/bench_attention.py --lengths=256 --clips=16 --directions=causal --memory_lengths=
  scripts/bench_attention.py --lengths=256 --clips=16 --variants=absolute,t2t,t5_bias,rotary
"""
import argparse
import functools
import logging
import multiprocessing
import os
import re
import statistics
import time
import warnings
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
warnings.simplefilter("ignore")
logging.getLogger("tensorflow").setLevel(logging.ERROR)

import rpr.t2t.compat  # noqa: E402

rpr.t2t.compat.install()

import numpy as np  # noqa: E402
import step_trace  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.layers import common_attention  # noqa: E402
from tensor2tensor.utils import registry  # noqa: E402

import rpr.hparams  # noqa: E402
from rpr import positions  # noqa: E402
from rpr.cli.arguments import number, output_file  # noqa: E402
from rpr.nn import attention  # noqa: E402
from rpr.nn.attention import additive_logits  # noqa: E402
from rpr.positions import relative  # noqa: E402
from rpr.positions.layout import Layout  # noqa: E402
from rpr.positions.registry import works_in  # noqa: E402
from rpr.utils import files  # noqa: E402

VARIANTS = ("ours", "absolute", "t2t")
OF_WORDS = ("forgetting", "path")    # read the input of the layer, and there is none here
SCHEMES = ("additive", *(name for name in positions.SCHEMES if name not in ("none", *OF_WORDS)))
DIRECTIONS = ("causal", "bidirectional", "cached")
TOKENS, SENTENCES = 2048, 32         # largest batch, unless one sentence is longer


def main(argv: Sequence[str] | None = None) -> list[dict]:
    """Prints the table; returns the records."""
    args = _arguments(argv)
    memory = {(direction, length): _memory(args, direction, length)
              for length in args.memory_lengths for direction in args.directions
              if direction != "cached"}
    shapes = [(direction, length, clip, shared) for length in args.lengths for clip in args.clips
              for shared in args.tables for direction in args.directions]
    shapes += [(direction, length, args.clips[0], args.tables[0]) for direction, length in memory
               if length not in args.lengths]
    records, end = [], time.time() + args.seconds
    print(f"{'direction':13} {'batch':>5} {'n':>5} {'k':>4} {'table':8} {'variant':9} {'ms':>9} "
          f"{'middle half':>17} {'/absolute':>9} {'/t2t':>6} {'peak MB':>8} {'/absolute':>9}")
    for done, (direction, length, clip, shared) in enumerate(shapes):
        shape = {"direction": direction, "batch": _batch(direction, length), "length": length,
                 "max_relative_position": clip, "heads_share_relative_embedding": shared}
        times = {}
        if length in args.lengths:
            times = _times(args, shape, (end - time.time()) / (len(shapes) - done))
        first = (clip, shared) == (args.clips[0], args.tables[0])
        peaks = memory.get((direction, length), {}) if first else {}
        for variant in [variant for variant in args.variants if variant in {**times, **peaks}]:
            records.append(_record(variant, shape, times, peaks))
            _print(records[-1], times.get(variant), peaks.get(variant))
    if args.json:
        files.write_json(args.json, records)
    print(f"{args.heads} heads of depth {args.depth}, float32, {args.device}, "
          f"TensorFlow {tf.VERSION}, {os.cpu_count()} CPU cores")
    return records


def _arguments(argv):
    def several(kind):
        return lambda text: [kind(x) for x in text.split(",") if x]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=several(number(1)), default="32,64,128,256,512,1024")
    parser.add_argument("--clips", type=several(number(0)), default="16,2,64,256",
                        help="clipping distances k (max_relative_position)")
    parser.add_argument("--directions", type=several(str), default=",".join(DIRECTIONS))
    parser.add_argument("--tables", default="shared", choices=["shared", "per_head", "both"])
    parser.add_argument("--variants", type=several(str), default=",".join(VARIANTS))
    parser.add_argument("--heads", type=number(1), default=8)
    parser.add_argument("--depth", type=number(1), default=64)
    parser.add_argument("--memory_lengths", type=several(number(1)), default="1024,2048")
    parser.add_argument("--seconds", type=float, default=400, help="for all measurements together")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--json", type=output_file, help="write the records to this file")
    args = parser.parse_args(argv)
    for name, allowed in (("directions", DIRECTIONS), ("variants", (*VARIANTS, *SCHEMES))):
        for value in set(getattr(args, name)) - set(allowed):
            parser.error(f"--{name}={value}: allowed are {', '.join(allowed)}")
    if not args.clips:
        parser.error("--clips: at least one clipping distance")
    args.tables = {"shared": [True], "per_head": [False], "both": [True, False]}[args.tables]
    return args


def _batch(direction, length):
    return SENTENCES if direction == "cached" else max(1, min(SENTENCES, TOKENS // length))


def _record(variant, shape, times, peaks):
    """One record of the JSON file; None for values that were not measured."""
    def ratio(values, other):
        return values[variant] / values[other] if {variant, other} <= set(values) else None

    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    return {"variant": variant, **shape, "seconds": medians.get(variant),
            "ratio_to_absolute": ratio(medians, "absolute"), "ratio_to_t2t": ratio(medians, "t2t"),
            "peak_memory_ratio": ratio(peaks, "absolute")}


def _print(record, seconds, peak):
    def cell(form, value):
        return format("-", re.sub(r"\..*", "", form)) if value is None else format(value, form)

    low, high = np.percentile(seconds, [25, 75]) * 1e3 if seconds else (0, 0)
    middle = f"{low:.1f}..{high:.1f}" if seconds else None
    median = record["seconds"] and record["seconds"] * 1e3
    table = "shared" if record["heads_share_relative_embedding"] else "per head"
    print(f"{record['direction']:13} {record['batch']:5} {record['length']:5} "
          f"{record['max_relative_position']:4} {table:8} {record['variant']:9} "
          f"{cell('>9.2f', median)} {cell('>17', middle)} "
          f"{cell('>9.2f', record['ratio_to_absolute'])} {cell('>6.2f', record['ratio_to_t2t'])} "
          f"{cell('>8.0f', peak and peak / 2 ** 20)} "
          f"{cell('>9.2f', record['peak_memory_ratio'])}", flush=True)


def _times(args, shape, seconds):
    """Times of the steps of each variant: {variant: [seconds]}."""
    with tf.Graph().as_default(), tf.Session() as session:
        steps = {}
        with tf.device(f"/{args.device}:0"):
            inputs = _inputs(args, shape)
            for variant in args.variants:
                if _supports(variant, args, shape):
                    steps[variant] = session.make_callable(_fetches(variant, args, shape, inputs))
        session.run(tf.global_variables_initializer())
        for _ in range(2):                                   # warm-up
            start = time.perf_counter()
            for step in steps.values():
                step()
            once = time.perf_counter() - start
        times = {variant: [] for variant in steps}
        for _ in range(min(50, max(5, int(seconds / once) - 4))):
            for variant, step in steps.items():
                start = time.perf_counter()
                step()
                times[variant].append(time.perf_counter() - start)
    return times


def _inputs(args, shape):
    """q, k, v and the gradient of the output, [batch, heads, n, depth], and the bias."""
    batch, n = shape["batch"], shape["length"]
    random = np.random.RandomState(0)
    vectors = [tf.Variable(random.randn(batch, args.heads, n, args.depth).astype(np.float32))
               for _ in range(4)]
    bias = np.zeros([batch, 1, 1, n], np.float32)
    if shape["direction"] == "causal":
        bias = np.triu(np.full([1, 1, n, n], -1e9, np.float32), 1)
    return [*vectors, tf.Variable(bias)]


def _supports(variant, args, shape):
    """Whether a variant runs on this direction and clipping distance."""
    is_cached = shape["direction"] == "cached"
    if variant == "graph" or variant == "pope" and is_cached:    # which caches deeper keys
        return shape["direction"] == "bidirectional"
    if variant in SCHEMES:
        hparams = _hparams(variant, args, shape)
        return works_in(hparams.position, hparams, _side(shape))
    return shape["max_relative_position"] > 0 or variant != "t2t"


def _side(shape):
    return "inputs" if shape["direction"] == "bidirectional" else "targets"


def _hparams(variant, args, shape):
    hparams, clip = registry.hparams("rpr_base"), shape["max_relative_position"]
    hparams.override_from_dict({
        "position": "relative" if variant == "additive" else variant, "num_heads": args.heads,
        "hidden_size": args.heads * args.depth, "max_length": shape["length"],
        "max_relative_position": clip, "num_edge_labels": 2 * clip + 1,
        "heads_share_relative_embedding": shape["heads_share_relative_embedding"]})
    return hparams


def _fetches(variant, args, shape, inputs):
    """The output and all gradients; of the cached direction the output of one query at the end."""
    q, k, v, dz, bias = inputs
    n, clip = shape["length"], shape["max_relative_position"]
    cached, causal = (shape["direction"] == kind for kind in ("cached", "causal"))
    layout = Layout(n, n, causal=causal)
    if cached:
        q, bias, step = q[:, :, -1:], bias[..., -1:, :], tf.placeholder_with_default(n - 1, [])
        layout = Layout(1, step + 1, step, causal=True)
    before = len(tf.global_variables())
    with tf.variable_scope(variant):
        if variant == "absolute":
            z = attention.attention(q, k, v, bias)
        elif variant == "ours":
            outer = [] if shape["heads_share_relative_embedding"] else [args.heads]
            keys, values = (tf.get_variable(name, [*outer, 2 * clip + 1, args.depth])
                            for name in ("keys", "values"))
            z = attention.attention(q, k, v, bias,
                                    lambda q, k: relative.add_scores(
                                        tf.matmul(q, k, transpose_b=True), q, keys, layout),
                                    lambda w, v: relative.weighted_values(w, v, values, layout))
        elif variant in SCHEMES:
            if variant == "graph":
                labels = np.random.RandomState(0).randint(
                    0, 2 * clip + 1, [shape["batch"], n, n], np.int32)
                layout = layout.replace(
                    edges=tf.placeholder_with_default(labels, labels.shape))
            z = _scheme(variant, args, shape, q, k, v, bias, layout)
        else:
            z = common_attention.dot_product_attention_relative(
                q * args.depth ** -0.5, k, v, bias, clip, make_image_summary=False, cache=cached)
    if cached:
        return [z]
    gradients = tf.gradients(z, [q, k, v, *tf.global_variables()[before:]], dz)
    return [z, *map(tf.convert_to_tensor, gradients)]        # dense, also for T2T's tables


def _scheme(variant, args, shape, q, k, v, bias, layout):
    scheme = positions.build(_hparams(variant, args, shape), _side(shape))
    q = scheme.rotate(q, layout.query_positions(), layout, "query")
    if shape["direction"] != "cached":                       # cached keys are rotated already
        k = scheme.rotate(k, layout.key_positions(), layout, "key")
    layout, scale = layout.replace(mask=bias), args.depth ** -0.5    # `rotate` may change the depth
    scores = functools.partial(scheme.scores, layout=layout)
    if variant == "additive":
        vector, scale = tf.get_variable("vector", [args.heads, args.depth]), 1.0

        def scores(q, k):
            return additive_logits(q, k, vector, scheme.pair_vectors(layout, q.dtype.base_dtype))
    return attention.attention(
        q, k, v, bias, scores, functools.partial(scheme.weighted_values, layout=layout),
        functools.partial(scheme.normalize, layout=layout), scale=scale)


def _memory(args, direction, length):
    """Peak memory of one step of each TensorFlow variant: {variant: bytes}."""
    shape = {"direction": direction, "batch": 1, "length": length,
             "max_relative_position": args.clips[0],
             "heads_share_relative_embedding": args.tables[0]}
    peaks = {}
    for variant in args.variants:
        if _supports(variant, args, shape):
            # This process has no session yet, so it can be forked.
            with multiprocessing.get_context("fork").Pool(1) as pool:
                peaks[variant] = pool.apply(_peak, (variant, args, shape))
    return peaks


def _peak(variant, args, shape):
    with tf.Graph().as_default(), tf.Session() as session:
        with tf.device(f"/{args.device}:0"):
            fetches = _fetches(variant, args, shape, _inputs(args, shape))
        session.run(tf.global_variables_initializer())
        if args.device == "gpu":
            return step_trace.peak_bytes(step_trace.trace(session, fetches), "gpu")
        before = _resident("VmRSS")
        session.run(fetches)
        return _resident("VmHWM") - before


def _resident(field):
    with open("/proc/self/status", encoding="ascii") as file:
        return int(re.search(rf"{field}:\s+(\d+) kB", file.read()).group(1)) * 1024


if __name__ == "__main__":
    main()
