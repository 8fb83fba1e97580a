#!/usr/bin/env python3
"""Measures a training step and the start, against stock tensor2tensor (T2T).

Four models take the same batches in one process, in turn, round after round. Each updates its own
weights. Their hparams are equal except for positions:

  absolute      rpr_transformer with sinusoids
  relative      rpr_transformer with relative positions, k = 16, a table per layer and head
  t2t           T2T's `transformer` with sinusoids
  t2t_relative  T2T's `transformer` with `dot_product_relative`, k = 20 as in its own set; its heads
                share one table
  relative_stateful  relative with dropout keys from TensorFlow's generator with state, as T2T draws
                them, instead of keys from the seed, the batch and the place in the model; not among
                the defaults. `relative` / `relative_stateful` is the cost of reproducible masks
  torch, torch_compiled  the absolute model in plain PyTorch (scripts/torch_step.py), eager and with
                torch.compile, in a process of --torch_python; not among the defaults
  rotary, fire, ...  any other value of the hparam `position`; a side on which it cannot be used has
                relative positions
  absolute_xla, relative_xla, t2t_xla, ...  the same, compiled as by `rpr train --xla_compile`

Shapes: `base:N` is rpr_base with 32,768 symbols and sentences of up to N words, `big:N` is
rpr_big_ende with as many symbols, `small:N` rpr_small with 4,096, `tiny:N` rpr_tiny with 64. A
batch has --words positions, of which 4% of the targets and 13% of the inputs are padding, as in
T2T's batches of the embedded corpus.

`CPU ms` is the median CPU time of all cores together; on a busy machine it is more reliable than
wall-clock time. `of peak` is the rate of the step's matrix products, relative to the rate of one
large product that is measured in the same rounds. The products are counted in the graph that
TensorFlow runs, with the shapes that it reports; for compiled steps and PyTorch's they are the
model FLOPs. `MFU` is the share of model FLOPs per second (rpr.training.model_flops) in the dense
peak of the card, by a table of names or --peak.

Start: wall-clock seconds from the command to the first training step of rpr_small, for `rpr train`
and for T2T's main program with the patches without which it does not start.

  scripts/bench_step.py                                              in under 10 minutes
  scripts/bench_step.py --shapes=small:30 --starts=0
"""
import argparse
import concurrent.futures
import contextlib
import functools
import gzip
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")    # PyTorch's process needs memory too

import rpr  # noqa: E402

rpr.register()

import numpy as np  # noqa: E402
import step_trace  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from tensor2tensor.data_generators import problem_hparams  # noqa: E402
from tensor2tensor.models import transformer  # noqa: E402
from tensor2tensor.utils import registry, trainer_lib  # noqa: E402

from rpr import positions  # noqa: E402
from rpr.cli.arguments import number, output_file  # noqa: E402
from rpr.nn.dropout import reproducible_masks  # noqa: E402
from rpr.training import devices, model_flops  # noqa: E402
from rpr.utils import files, processes  # noqa: E402

VARIANTS = ("absolute", "relative", "t2t", "t2t_relative")
STATEFUL = "relative_stateful"
OTHERS = (STATEFUL, "torch", "torch_compiled")        # not among the defaults
XLA = "_xla"                                          # how the names of compiled variants end
TORCH_HPARAMS = ("hidden_size", "filter_size", "num_heads", "num_hidden_layers", "label_smoothing",
                 "layer_preprocess_sequence", "layer_prepostprocess_dropout")
SETS = {"big": ("rpr_big_ende", 32768), "base": ("rpr_base", 32768), "small": ("rpr_small", 4096),
        "tiny": ("rpr_tiny", 64)}
PADDING = {"inputs": 0.26, "targets": 0.08}       # by how much the shortest is shorter
CORPUS = pathlib.Path(__file__).parent.parent / "problems" / "libreoffice_help"
STOCK_TRAINER = """
import sys
from rpr.t2t import compat
for name in ("_unicode_tables", "_no_autograph", "_no_graph_as_text", "_examples_in_place",
             "_ordered_input"):
    setattr(compat, name, lambda: None)
import rpr
rpr.register()
from tensor2tensor.bin import t2t_trainer
import tensorflow.compat.v1 as tf
tf.app.run(t2t_trainer.main, argv=sys.argv)
"""


def main(argv: Sequence[str] | None = None) -> list[dict]:
    """Prints the tables; returns the records."""
    args = arguments(argv)
    records, seconds = [], args.seconds / len(args.shapes)
    print(f"{'shape':10} {'variant':13} {'ms':>8} {'middle half':>17} {'CPU ms':>8} "
          f"{'/absolute':>9} {'/t2t':>6} {'GFLOP':>7} {'of peak':>7} {'MFU':>5}")
    for name in dict.fromkeys(shape.split(":")[0] for shape in args.shapes):
        steps = {variant: _step(args, variant, *SETS[name]) for variant in args.variants}
        for shape in args.shapes:
            if shape.split(":")[0] == name:
                records += _steps(args, shape, steps, seconds)
        for step in steps.values():
            step.close()
    if args.json:
        files.write_json(args.json, records)                 # a start may fail
    if args.starts:
        records += _starts(args)
        if args.json:
            files.write_json(args.json, records)
    print(f"{args.words} positions, {args.precision}, {args.device}, TensorFlow {tf.VERSION}, "
          f"{len(os.sched_getaffinity(0))} CPU cores")
    return records


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The parsed flags."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=lambda x: x.split(","),
                        default="small:30,base:28,base:128,base:256")
    parser.add_argument("--variants", type=lambda x: x.split(","), default=",".join(VARIANTS))
    parser.add_argument("--words", type=number(1), default=1024, help="positions in a batch")
    parser.add_argument("--seconds", type=float, default=240, help="for all training steps")
    parser.add_argument("--starts", type=number(0), default=1, help="of each program; 0: none")
    parser.add_argument("--device", choices=["cpu", "gpu"], default="cpu")
    parser.add_argument("--precision", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--peak", type=float, help="dense peak of the device in TFLOP/s, for MFU")
    parser.add_argument("--torch_python", default=sys.executable,
                        help="the Python that has PyTorch (this one)")
    parser.add_argument("--json", type=output_file, help="file for the records")
    args = parser.parse_args(argv)
    for value in args.variants:
        name = value.removesuffix(XLA)
        if value not in OTHERS and name not in VARIANTS and not sides(
                registry.hparams("rpr_small"), name):
            parser.error(f"--variants={value}: allowed are {', '.join(OTHERS)}; and, also with "
                         f"{XLA}, {', '.join(VARIANTS)} and position schemes (rpr list schemes)")
        if value.startswith("torch") and not has_torch(args.torch_python):
            parser.error(f"--variants={value}: {args.torch_python} has no PyTorch; see "
                         "--torch_python")
    for shape in args.shapes:
        name, _, length = shape.partition(":")
        if name not in SETS or not length.isdigit() or int(length) < 4:
            parser.error(f"--shapes={shape}: allowed are " + ", ".join(f"{size}:N" for size in SETS)
                         + "; N of 4 or more")
    return args


@functools.cache
def has_torch(python: str) -> bool:
    """Whether there is such a Python and it can import PyTorch."""
    return bool(shutil.which(python)) and not subprocess.run(
        [python, "-c", "import torch"], capture_output=True).returncode


def _step(args, variant, name, symbols):
    """A function of a batch that is a training step of a variant."""
    return (TorchStep if variant.startswith("torch") else TrainingStep)(
        args, variant, name, symbols, args.precision)


def sides(hparams, position):
    """{the hparam of a side: position} for the sides on which it can be used."""
    found = {}
    hparams.position = position
    for side, name in (("inputs", "encoder_position"), ("targets", "decoder_position")):
        with contextlib.suppress(ValueError):
            positions.build(hparams, side)
            found[name] = position
    return found


def _hparams(variant, name):
    """The hparams of a variant: those of the registered set, in T2T's words for T2T's model."""
    variant = variant.removesuffix(XLA)
    if variant not in (*VARIANTS, *OTHERS):
        hparams = registry.hparams(name)
        hparams.override_from_dict(sides(registry.hparams(name), variant))
        return hparams
    is_relative = variant in ("relative", STATEFUL)
    hparams = registry.hparams(name if is_relative else f"{name}_absolute")
    if variant.startswith("t2t"):
        hparams.pos = "timing" if variant == "t2t" else "none"
        if variant == "t2t_relative":
            hparams.self_attention_type = "dot_product_relative"
            hparams.max_relative_position = 20
    return hparams


def build_model(variant, name, symbols, mode, precision="float32"):
    hparams = _hparams(variant, name)
    hparams.activation_dtype = precision
    problem = problem_hparams.test_problem_hparams(symbols, symbols, hparams)
    cls = (transformer.Transformer if variant.startswith("t2t")
           else registry.model("rpr_transformer"))
    return cls(hparams, mode, problem)


class TrainingStep:
    """One model with its graph and session; a call is one training step."""

    def __init__(self, args, variant, name, symbols, precision="float32"):
        config, is_compiled = trainer_lib.create_session_config(), variant.endswith(XLA)
        if is_compiled:
            devices.compile_with_xla(config)
        with tf.Graph().as_default(), tf.variable_scope(
                tf.get_variable_scope(), use_resource=is_compiled):
            tf.set_random_seed(1)
            with tf.device(f"/{args.device}:0"):
                self.ids = {side: tf.placeholder(tf.int32, [None, None, 1, 1]) for side in PADDING}
                model = build_model(variant, name, symbols, tf.estimator.ModeKeys.TRAIN, precision)
                batch = tf.train.create_global_step()        # each step is a batch of its own
                with contextlib.nullcontext() if variant == STATEFUL else reproducible_masks(
                        1, tf.identity(batch)):
                    _, losses = model(dict(self.ids, target_space_id=tf.constant(1)))
                train = model.optimize(losses["training"])
            self.fetches = [losses["training"], train]
            self.session = tf.Session(config=config)
            self.session.run(tf.global_variables_initializer())

    def __call__(self, batch: dict[str, np.ndarray]) -> tuple[float, float]:
        """Wall-clock and CPU seconds of a step."""
        wall, work = time.perf_counter(), time.process_time()
        loss, _ = self.session.run(self.fetches, self._feed(batch))
        assert math.isfinite(loss)
        return time.perf_counter() - wall, time.process_time() - work

    def close(self) -> None:
        """Releases weights and threads."""
        self.session.close()

    def _feed(self, batch):
        return {self.ids[side]: batch[side] for side in batch}

    def trace(self, batch):
        """The metadata of one traced step, see scripts/step_trace.py."""
        return step_trace.trace(self.session, self.fetches, self._feed(batch))


class TorchStep:
    """A model of scripts/torch_step.py, in a process of its own; a call is one training step."""

    def __init__(self, args, variant, name, symbols, precision):
        hparams = _hparams("absolute", name)
        self._folder = tempfile.TemporaryDirectory()
        self._batch, self._number = None, 0           # what the process was last given
        self._process = subprocess.Popen(
            [args.torch_python, pathlib.Path(__file__).with_name("torch_step.py"), json.dumps({
                "hparams": {key: hparams.get(key) for key in TORCH_HPARAMS}, "symbols": symbols,
                "device": args.device, "compiled": variant == "torch_compiled",
                "half": precision == "bfloat16"})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, batch: dict[str, np.ndarray]) -> tuple[float, float]:
        """Wall-clock and CPU seconds of a step."""
        if batch is not self._batch:
            self._batch, self._number = batch, self._number + 1
            np.savez(f"{self._folder.name}/{self._number}.npz", **batch)
        print(f"{self._folder.name}/{self._number}.npz", file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"scripts/torch_step.py ended with {self._process.wait()}")
        wall, work = map(float, answer.split())
        return wall, work

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate()
        self._folder.cleanup()


def random_batch(shape: str, words: int) -> dict[str, np.ndarray]:
    """Random ids of T2T's lengths: {side: int32 [sentences, n, 1, 1]}, zeros after each end."""
    name, _, longest = shape.partition(":")
    longest, random = int(longest), np.random.RandomState(0)
    batch = {}
    for side, shorter in PADDING.items():
        ids = random.randint(2, SETS[name][1], [max(1, words // longest), longest, 1, 1])
        lengths = (longest * (1 - shorter * random.rand(len(ids)))).round().astype(int)
        lengths[0] = longest
        ids[np.arange(longest) >= lengths[:, None]] = 0
        batch[side] = ids.astype(np.int32)
    return batch


def _steps(args, shape, steps, seconds):
    batch, peak = random_batch(shape, args.words), step_trace.product_rate(args.device)
    name, symbols = SETS[shape.split(":")[0]]
    needed = model_flops.model_flops(_hparams("absolute", name), symbols, len(batch["inputs"]),
                                     *(batch[side].shape[1] for side in PADDING))
    flops = {variant: needed if variant.startswith("torch") or variant.endswith(XLA)
             else step_trace.product_flops(step.trace(batch)) for variant, step in steps.items()}
    dense = args.peak * 1e12 if args.peak else model_flops.dense_peak(args.precision == "bfloat16")
    peak()
    with concurrent.futures.ThreadPoolExecutor() as pool:     # first steps compile
        for variant, (first, _) in zip(
                steps, pool.map(lambda step: step(batch), steps.values()), strict=True):
            if first > 2:
                print(f"{shape:10} {variant:13} first step took {first:.0f} s", flush=True)
    once = sum(step(batch)[0] for step in steps.values())
    times, work, peaks = {variant: [] for variant in steps}, {variant: [] for variant in steps}, []
    for _ in range(min(50, max(3, int(seconds / once) - 2))):
        peaks.append(peak())
        for variant, step in steps.items():
            wall, cpu = step(batch)
            times[variant].append(wall)
            work[variant].append(cpu)
    medians = {variant: statistics.median(values) for variant, values in times.items()}
    peak, records = statistics.median(peaks), []
    for variant, values in times.items():
        median = medians[variant]
        low, high = np.percentile(values, [25, 75]) * 1e3
        record = {
            "what": "training step", "shape": shape, "variant": variant, "words": args.words,
            "seconds": median, "cpu_seconds": statistics.median(work[variant]),
            "ratio_to_absolute": _ratio(medians, variant, "absolute"),
            "ratio_to_t2t": _ratio(medians, variant, "t2t"), "flop": flops[variant],
            "peak_flop_per_second": peak, "share_of_peak": flops[variant] / median / peak,
            "model_flop": needed, "mfu": needed / median / dense if dense else None}
        records.append(record)
        ratios = [format(record[name], ".2f") if record[name] else "-"
                  for name in ("ratio_to_absolute", "ratio_to_t2t", "mfu")]
        print(f"{shape:10} {variant:13} {median * 1e3:8.1f} {f'{low:.1f}..{high:.1f}':>17} "
              f"{record['cpu_seconds'] * 1e3:8.1f} {ratios[0]:>9} {ratios[1]:>6} "
              f"{flops[variant] / 1e9:7.1f} {record['share_of_peak']:7.2f} {ratios[2]:>5}",
              flush=True)
    print(f"{shape:10} peak {peak / 1e9:.0f} GFLOP/s")
    return records


def _ratio(medians, variant, base):
    return medians[variant] / medians[base] if base in medians else None


def _first_step(command, environment):
    """Seconds from a command to the line that TensorFlow logs of the first training step."""
    start, line = time.perf_counter(), b""
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE) as process:
        for line in process.stderr:
            if b"loss = " in line:
                seconds = time.perf_counter() - start
                process.kill()
                return seconds
    raise SystemExit(f"no training step came of {' '.join(command[2:])}: {line.decode()}")


def text_files(folder: pathlib.Path, lines: int | None) -> tuple[dict[str, str], list[str]]:
    """Writes the first lines of the embedded corpus (None: all) as text files.

    Returns:
      the environment and the flags with which `rpr datagen` and `rpr train` read them.
    """
    environment = dict(os.environ)
    for language, side in (("en", "SOURCE"), ("de", "TARGET")):
        for split in ("train", "dev", "test"):
            path = folder / f"{split}.{language}"
            with gzip.open(CORPUS / f"{split}.en-de.{language}.gz", "rb") as packed:
                path.write_bytes(b"".join(packed.readlines()[:lines]))
            prefix = "" if split == "train" else f"{split.upper()}_"
            environment[f"RPR_TEXT_{prefix}{side}"] = str(path)
    return environment, [f"--data_dir={folder}/data", "--problem=translate_text_files"]


def _starts(args):
    """Seconds from the command to the first training step, ours and T2T's."""
    records = []
    with tempfile.TemporaryDirectory() as folder:
        environment, problem = text_files(pathlib.Path(folder), lines=200)
        environment["RPR_TEXT_VOCAB_SIZE"] = "300"
        subprocess.run(processes.command(["datagen", *problem, f"--tmp_dir={folder}/tmp"]),
                       env=environment, check=True, capture_output=True)
        for turn in range(args.starts):
            for variant, program, model in (
                    ("absolute", processes.command(["train", "--verbose"]), "rpr_transformer"),
                    ("t2t", [sys.executable, "-P", "-c", STOCK_TRAINER], "transformer")):
                seconds = _first_step([
                    *program, *problem, f"--model={model}", "--train_steps=2",
                    "--hparams_set=rpr_small_absolute", "--schedule=train",
                    f"--output_dir={folder}/{variant}-{turn}", "--worker_gpu=0"], environment)
                records.append({"what": "start", "variant": variant, "seconds": seconds})
                print(f"start      {variant:13} {seconds:8.1f} s")
    return records


if __name__ == "__main__":
    main()
