#!/usr/bin/env python3
"""Checks and measures what needs a GPU, after `scripts/setup gpu`.

  scripts/gpu_check.py                         writes gpu_check.json, prints a Markdown table
  scripts/gpu_check.py --parts=kernels,exactness
  scripts/gpu_check.py --device=cpu            a small version, to test this program

Each part runs in a separate process with a time limit: the first three 10 minutes together, all 63.
If one fails, its error is recorded and the others go on; the exit code is then 1. The parts of each
scheme end before their time is up, and a row says how many schemes they did. The file is written
again after each part. The table is for docs/gpus.md.

  versions    driver, GPUs, libraries
  half        steps of base in bfloat16, 16,384 positions, with and without XLA, and PyTorch's
  short, big  the same of base with 4,096 positions, of big with 16,384
  full        float32, base with 4,096 positions: the same and T2T's
  compiled    `rpr train --xla_compile` in bfloat16, twice: the second finds compiled programs
  kernels     traced training and beam-search steps of each scheme: what runs on the host and what
              is copied between host and device; whether tests/data lists the right GPU kernels
  exactness   log probabilities and gradients of each scheme in float32, TF32, bfloat16 and float16,
              against float32 on the CPU; for comparison, what rounding the weights again changes
  attention   bench_attention.py: absolute, relative, T2T's relative
  memory      of a training step of base and big
  training, bfloat16, float16    200 steps of base through `rpr train`, in float32 and the others
  decoding    bench_decoding.py: beam search, sentences per second
  devices     with two GPUs: towers and mirrored replicas, which all-reduce through NCCL
"""
import argparse
import functools
import json
import math
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import bench_attention  # noqa: E402
import bench_decoding  # noqa: E402
import bench_step  # noqa: E402
import gpu_placement  # noqa: E402
import numpy as np  # noqa: E402
import step_trace  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402
from gpu_parts import Result, in_time, run_part  # noqa: E402
from tensor2tensor.data_generators import problem_hparams  # noqa: E402
from tensor2tensor.utils import registry, trainer_lib  # noqa: E402

from rpr import positions  # noqa: E402
from rpr.cli.arguments import output_file  # noqa: E402
from rpr.utils import files, metrics_log, processes  # noqa: E402

PRECISIONS = {"float32": ("float32", False), "TF32": ("float32", True),
              "bfloat16": ("bfloat16", False), "float16": ("float16", False)}
ROUNDED = "weights changed by 2^-24, on the CPU,"
TABLE = pathlib.Path(__file__).parent.parent / "tests" / "data" / (
    f"gpu_kernels-{tf.__version__}.json")
BATCH, LENGTH, VOCABULARY = 4, 40, 64


def versions(options: argparse.Namespace) -> Result:
    """Driver, devices and libraries."""
    records: dict[str, Any] = {
        "python": platform.python_version(), "tensorflow": tf.__version__, "numpy": np.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} CPU cores",
        "build": {name: str(value) for name, value in tf.sysconfig.get_build_info().items()}}
    if options.device == "gpu":
        records["gpus"] = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"],
            capture_output=True, text=True, check=True).stdout.strip().splitlines()
        if not tf.config.list_physical_devices("GPU"):
            raise RuntimeError("nvidia-smi lists GPUs, but TensorFlow finds none")
    build = records["build"]
    return Result([("devices", "; ".join(records.get("gpus", [records["machine"]]))),
                   ("TensorFlow, CUDA, cuDNN", ", ".join([tf.__version__] + [
                       build.get(f"{name}_version", "-") for name in ("cuda", "cudnn")]))], records)


def _schemes(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """{name: hparams} of the schemes to check; `relative` also with the algorithm for a large k."""
    names = options.schemes or (["relative"] if options.device == "cpu" else positions.SCHEMES)
    schemes = {name: bench_step.sides(registry.hparams("rpr_base"), name) for name in names}
    return schemes if options.schemes or options.device == "cpu" else schemes | {
        "relative, k = 128": {"max_relative_position": 128},
        "relative, additive": {"compatibility": "additive"}}


def _model(options: argparse.Namespace, mode: str, scheme: dict[str, Any], dtype: str) -> Any:
    hparams = registry.hparams("rpr_tiny" if options.device == "cpu" else "rpr_base")
    hparams.override_from_dict({"num_hidden_layers": 1, "activation_dtype": dtype, **scheme})
    problem = problem_hparams.test_problem_hparams(VOCABULARY, VOCABULARY, hparams)
    return registry.model("rpr_transformer")(hparams, mode, problem)


def _features(*names: str) -> dict[str, tf.Tensor]:
    ids = np.random.RandomState(0).randint(2, VOCABULARY, [BATCH, LENGTH, 1, 1])
    return {name: tf.constant(ids, tf.int32) for name in names} | {
        "target_space_id": tf.constant(1)}


def kernels(options: argparse.Namespace) -> Result:
    """What a training step and a beam search run on the host, and what they copy."""
    rows, records, schemes = [], {}, _schemes(options)
    dtypes = ("float32",) if options.device == "cpu" else ("float32", "bfloat16")
    table = gpu_placement.registered_kernels()
    if options.device == "gpu" and TABLE.exists():
        is_same = json.loads(TABLE.read_text(encoding="utf-8")) == table
        rows.append((f"{TABLE.name} lists the kernels of this installation", str(is_same)))
    for name, scheme in in_time(schemes, options):
        for dtype in dtypes:
            with tf.Graph().as_default() as graph, tf.device(f"/{options.device}:0"):
                model = _model(options, "train", scheme, dtype)
                _, losses = model(_features("inputs", "targets"))
                step = model.optimize(losses["training"])
                model.set_mode("infer")
                with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                    search = model.infer(_features("inputs"), 4, 4, 1, 0.6)["outputs"]
                with tf.Session(config=trainer_lib.create_session_config()) as session:
                    session.run(tf.global_variables_initializer())
                    traces = {"training": step_trace.trace(session, step),
                              "beam search": step_trace.trace(session, search)}
            records[f"{name}, {dtype}"] = {
                "operations without GPU kernel": gpu_placement.lacking(graph, table),
                **{what: {"on the host": step_trace.ops_on_host(trace),
                          "copies": step_trace.copies(trace)[:20]}
                   for what, trace in traces.items()}}
    largest = max((copy.size, name, copy.name) for name, record in records.items()
                  for what in traces for copy in [*record[what]["copies"],
                                                  step_trace.Copy("none", 0)])
    without = sorted({op for record in records.values()
                      for op in record["operations without GPU kernel"]})
    rows += [("largest copy between host and device in a step", f"{largest[0]:,} bytes "
              f"({largest[1]}: {largest[2]})"),
             ("operations without GPU kernel", ", ".join(without) or "none"
              if options.device == "gpu" else "-"),
             ("kernels", f"{len(records) // len(dtypes)} of {len(schemes)} schemes")]
    return Result(rows, records)


def _precisions(options: argparse.Namespace) -> list[str]:
    return [name for name in PRECISIONS if options.device == "gpu" or name != "TF32"]


def _outputs(options: argparse.Namespace, device: str, scheme: dict[str, Any], precision: str,
             change: float = 0.0) -> tuple[np.ndarray, float]:
    """Log probabilities, [batch, length, symbols], and the norm of the gradient of their sum, with
    weights multiplied by 1 + `change` times a normal variate."""
    dtype, tf32 = PRECISIONS[precision]
    tf.config.experimental.enable_tensor_float_32_execution(tf32)
    with tf.Graph().as_default(), tf.device(f"/{device}:0"):
        features = _features("inputs", "targets")
        logits, _ = _model(options, "eval", scheme, dtype)(features)
        log_probs = tf.nn.log_softmax(tf.cast(logits[:, :, 0, 0], tf.float32))
        chosen = tf.gather(log_probs, features["targets"][:, :, 0, 0], batch_dims=2)
        norm = tf.linalg.global_norm([gradient for gradient in tf.gradients(
            tf.reduce_mean(chosen), tf.trainable_variables()) if gradient is not None])
        with tf.Session(config=trainer_lib.create_session_config()) as session:
            session.run(tf.global_variables_initializer())
            random, other_random = np.random.RandomState(0), np.random.RandomState(1)
            for variable in sorted(tf.trainable_variables(), key=lambda variable: variable.name):
                shape = variable.shape.as_list()
                value = random.randn(*shape) * (shape or [1])[0] ** -0.5
                value += "layer_norm_scale" in variable.name
                variable.load(value * (1 + change * other_random.randn(*shape)), session)
            return session.run([log_probs, norm])


def exactness(options: argparse.Namespace) -> Result:
    """Largest differences from float32 on the CPU."""
    records: dict[str, dict[str, list[float]]] = {}
    schemes = _schemes(options)
    for name, scheme in in_time(schemes, options):
        expected, expected_norm = _outputs(options, "cpu", scheme, "float32")
        outputs = {precision: _outputs(options, options.device, scheme, precision)
                   for precision in _precisions(options)}
        outputs[ROUNDED] = _outputs(options, "cpu", scheme, "float32", change=2 ** -24)
        records[name] = {what: [float(np.abs(values - expected).max()),
                                float(abs(norm - expected_norm) / expected_norm)]
                         for what, (values, norm) in outputs.items()}
    rows = [(f"{what} against float32 on the CPU: log probabilities, norm of the gradient",
             "at most {:.1e}, {:.1e}".format(*np.max(
                 [record[what] for record in records.values()], axis=0)))
            for what in [*_precisions(options), ROUNDED]]
    rows.append(("exactness", f"{len(records)} of {len(schemes)} schemes"))
    return Result(rows, records)


def attention(options: argparse.Namespace) -> Result:
    """bench_attention.py."""
    small = options.device == "cpu"
    records = bench_attention.main([
        f"--device={options.device}", "--variants=absolute,ours,t2t", "--clips=16",
        f"--lengths={'8' if small else '64,256,1024'}", f"--seconds={0 if small else 20}",
        "--directions=causal,bidirectional", f"--memory_lengths={'' if small else '1024'}"])
    return Result([(f"attention, {record['direction']}, n = {record['length']}: {name} / absolute",
                    f"{record['ratio_to_absolute']:.2f}")
                   for record in records for name in [record["variant"]] if name != "absolute"
                   and record["ratio_to_absolute"]], records)


def training_step(shape: str, words: int, precision: str, options: argparse.Namespace) -> Result:
    """Training steps by bench_step.py; PyTorch's in half precision, T2T's in float32."""
    others = ("t2t,t2t_relative" if precision == "float32" else
              "torch,torch_compiled" if bench_step.has_torch(options.torch_python) else "")
    variants = ",".join(filter(None, ("absolute,relative,absolute_xla,relative_xla", others)))
    records = bench_step.main([
        f"--device={options.device}", "--starts=0", f"--precision={precision}",
        f"--torch_python={options.torch_python}",
        *(["--shapes=tiny:6", "--words=24", "--seconds=0", "--variants=relative"]
          if options.device == "cpu" else
          [f"--shapes={shape}", f"--words={words}", "--seconds=15", f"--variants={variants}"])])
    return Result([(f"step, {record['shape']}, {record['words']:,} positions, {precision}, "
                    f"{record['variant']}", f"{record['seconds'] * 1e3:.1f} ms, MFU "
                    f"{record['mfu'] or math.nan:.3f}") for record in records], records)


def memory(options: argparse.Namespace) -> Result:
    """Peak memory of a training step, all tensors of the allocator."""
    shapes, words = (["tiny:6"], 24) if options.device == "cpu" else (["base:32", "big:32"], 4096)
    records = {}
    for shape in shapes:
        step = bench_step.TrainingStep(options, "relative", *bench_step.SETS[shape.split(":")[0]])
        records[shape] = step_trace.peak_bytes(step.trace(bench_step.random_batch(shape, words)),
                                               options.device)
        step.session.close()
    return Result([(f"memory, {shape}, relative, {words:,} positions", f"{size / 1e9:.3g} GB")
                   for shape, size in records.items()], records)


def _train(options: argparse.Namespace, name: str, *flags: str) -> list[dict[str, Any]]:
    """The `train` events of a training through `rpr train`, with seconds since its start as `time`;
    the data is generated before the first one."""
    small = options.device == "cpu"
    folder = pathlib.Path(options.folder)
    environment, problem = bench_step.text_files(folder, lines=200 if small else None)
    environment |= {"RPR_TEXT_VOCAB_SIZE": "300" if small else "8000"}
    commands = [] if (folder / "data").exists() else [["datagen", *problem, f"--tmp_dir={folder}"]]
    commands += [["train", *problem, "--model=rpr_transformer", f"--output_dir={folder}/{name}",
                  f"--hparams_set={'rpr_tiny' if small else 'rpr_base'}", "--schedule=train",
                  f"--train_steps={10 if small else 200}", *flags,
                  *(["--hp_num_hidden_layers", "1"] if small else [])]]
    for command in commands:
        start = time.time()
        process = processes.spawn(command, env=environment, stderr=subprocess.PIPE, text=True)
        _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"rpr {' '.join(command)}: {errors.strip()[-2000:]}")
    return [event | {"time": event["time"] - start} for event in metrics_log.read(
        str(folder / name / "metrics.jsonl")) if event["event"] == "train"]


def _speed(events: list[dict[str, Any]]) -> float:
    """Steps per second, the median without the first quarter."""
    return statistics.median(event["steps_per_second"] for event in events[len(events) // 4:])


def training(precision: str, options: argparse.Namespace) -> Result:
    """Steps per second of a whole training, input pipeline included."""
    flags = {"float32": [], "bfloat16": ["--hparams=activation_dtype=bfloat16"],
             "float16": ["--gpu_automatic_mixed_precision"]}[precision]
    events = _train(options, f"training-{precision}", *flags)
    model = "tiny" if options.device == "cpu" else "base"
    return Result([(f"rpr train, {model}, {precision}", f"{_speed(events):.2f} steps/s, "
                    f"{events[-1]['target_tokens_per_second']:,.0f} target tokens/s, "
                    f"loss {events[-1]['loss']:.2f} after {events[-1]['step']} steps")], events)


def compiled(options: argparse.Namespace) -> Result:
    """Trainings with --xla_compile, without and with the programs of an earlier one."""
    cache, records = pathlib.Path(options.folder) / "programs", {}
    cache.mkdir(mode=0o700)
    os.environ["TF_XLA_FLAGS"] = (f"--tf_xla_persistent_cache_directory={cache} "
                                  "--tf_xla_persistent_cache_device_types=GPU")
    for name in ("cold", "warm"):
        events = _train(options, name, "--xla_compile", "--hparams=activation_dtype=bfloat16")
        records[name] = f"{_speed(events):.2f} steps/s, step 10 after {events[0]['time']:.0f} s"
    return Result([(f"rpr train --xla_compile, base, bfloat16, {name} cache", speed)
                   for name, speed in records.items()], records)


def decoding(options: argparse.Namespace) -> Result:
    """bench_decoding.py."""
    small = options.device == "cpu"
    records = bench_decoding.main([
        f"--device={options.device}", f"--size={'tiny' if small else 'base'}",
        f"--sentences={3 if small else 256}", f"--more={1 if small else 10}",
        f"--variants={'relative' if small else 'absolute,relative,t2t'}"])
    return Result([(f"beam search, {record['size']}, {record['variant']}",
                    f"{record['sentences_per_second']:.1f} sentences/s") for record in records],
                  records)


def devices(options: argparse.Namespace) -> Result:
    """Towers and mirrored replicas on two GPUs."""
    if (count := len(tf.config.list_physical_devices("GPU"))) < 2:
        return Result([("towers, mirrored", f"not measured: {count} GPUs")], {"gpus": count})
    records = {name: _train(options, f"devices-{name}", "--worker_gpu=2", *flags)
               for name, flags in (("towers", ()), ("mirrored", ("--optionally_use_dist_strat",)))}
    return Result([(f"rpr train, base, two GPUs, {name}", f"{_speed(events):.2f} steps/s")
                   for name, events in records.items()], records)


# {name: (function, seconds)}, in the order of what they are worth
PARTS: dict[str, tuple[Callable[[argparse.Namespace], Result], int]] = {
    "versions": (versions, 20),
    "half": (functools.partial(training_step, "base:32", 16384, "bfloat16"), 300),
    "short": (functools.partial(training_step, "base:32", 4096, "bfloat16"), 240),
    "big": (functools.partial(training_step, "big:32", 16384, "bfloat16"), 300),
    "full": (functools.partial(training_step, "base:32", 4096, "float32"), 240),
    "compiled": (compiled, 600), "exactness": (exactness, 700), "kernels": (kernels, 600),
    "attention": (attention, 60), "memory": (memory, 80), "decoding": (decoding, 130),
    "training": (functools.partial(training, "float32"), 150),
    "bfloat16": (functools.partial(training, "bfloat16"), 120),
    "float16": (functools.partial(training, "float16"), 120), "devices": (devices, 90)}

# Left out on the CPU: they would repeat another part, or measure nothing.
GPU_ONLY = ("short", "big", "full", "compiled", "bfloat16", "float16", "devices")


def table(results: dict[str, dict[str, Any]]) -> str:
    """The Markdown table of all parts."""
    lines = ["| | |", "| --- | --- |"]
    for name, result in results.items():
        rows = result.get("rows") or [(name, f"failed: {result['error'].splitlines()[0]}")]
        lines += [f"| {what} | {value} |".replace("\n", " ") for what, value in rows]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["gpu", "cpu"], default="gpu")
    parser.add_argument("--torch_python", default=sys.executable, help="one that has PyTorch")
    parser.add_argument("--schemes", type=lambda x: x.split(","), help="of exactness, kernels")
    parser.add_argument("--out", default="gpu_check.json", type=output_file,
                        help="the file to write (%(default)s)")
    parser.add_argument("--parts", type=lambda x: x.split(","), help=", ".join(PARTS) + " (all)")
    options = parser.parse_args(argv)
    options.parts = options.parts or [name for name in PARTS
                                      if options.device == "gpu" or name not in GPU_ONLY]
    for flag, names, known in (("parts", options.parts, PARTS),
                               ("schemes", options.schemes or (), positions.SCHEMES)):
        for name in set(names) - set(known):
            parser.error(f"--{flag}={name}: allowed are {', '.join(known)}")
    options.folder = processes.temporary_directory("gpu-check")
    results: dict[str, dict[str, Any]] = {}
    for name in options.parts:
        print(f"== {name}", flush=True)
        function, seconds = PARTS[name]
        results[name] = run_part(function, seconds, options)
        files.write_atomically(options.out, json.dumps(
            {"device": options.device, "parts": results}, indent=1) + "\n")
    print(f"\n{table(results)}")
    return int(any("error" in result for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
