"""`rpr train` (t2t-trainer): trains a model."""
import contextlib
import dataclasses
import os
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from absl.flags import FlagValues
from tensor2tensor.bin import t2t_trainer  # noqa: F401  defines the flags
from tensor2tensor.utils import registry, trainer_lib

from rpr.cli import launcher
from rpr.inference import file_checks
from rpr.models import pretrained_embeddings
from rpr.problems import datagen, download, translation
from rpr.problems.checks import check_data
from rpr.t2t import checkpoints, preflight, registration, trained_model
from rpr.training import averaging, devices, trainer
from rpr.training.trainer import TrainingRequest
from rpr.utils import files, locks, metrics_log
from rpr.utils.console import keep_log, say
from rpr.utils.errors import InvalidPath, InvalidValue, UserError
from rpr.utils.interfaces import HParams, ModelRequest


def main(argv: list[str]) -> None:
    """`rpr train`, with the flags of t2t-trainer and those of `_define_flags`."""
    _define_flags()
    flags, rest = launcher.parse(argv, "rpr train (t2t-trainer)",
                                 "decode_|eval_timeout|eval_use_test_set|worker_id")
    if flags.registry_help:
        print(registry.help_string())
        return
    model = _model(flags, rest)
    hparams = trained_model.build_hparams(model)
    if flags.xla_compile and "use_pad_remover" in hparams:
        # Else the number of words is the size of tensors, and each number has its own program.
        hparams.use_pad_remover = False
    trainer_lib.set_random_seed(flags.random_seed)
    request = _request(flags, model, hparams)
    output_dir = request.output_dir
    is_chief = request.devices.is_chief
    is_new = not os.path.isdir(output_dir)
    with contextlib.ExitStack() as held:
        if not is_new:
            _lock(request, held)
        repaired = checkpoints.repair_state(output_dir) if is_chief else None
        if repaired:                                  # whatever a power cut left
            say(f"rpr train: the newest checkpoint was damaged or not recorded; resuming from "
                f"{repaired}")
        warm_start = flags.warm_start_from
        start = _check_start(flags, model, hparams)
        launcher.set_t2t_flags({"warm_start_from": start})

        def prepare() -> None:
            """Once the graph is built: creates a new directory, and writes the log there."""
            if is_new:
                os.makedirs(output_dir, exist_ok=True)
                _lock(request, held)
            machines = request.devices.machines
            process = f".worker{machines.index}" if machines and machines.index else ""
            keep_log(os.path.join(output_dir, f"train{process}.log"))
            if start and is_chief and not checkpoints.newest(output_dir):
                _say_what_starts_anew(start)

        try:
            trainer.run(request, hparams, prepare)
        except ValueError as error:
            line = warm_start and checkpoints.explain(error)
            if line:
                raise InvalidPath(warm_start, line) from None
            raise
        except OSError as error:                      # a failed write does not say where
            error.filename = error.filename or output_dir
            raise
    checkpoint = checkpoints.newest(output_dir)
    if checkpoint and is_chief:
        say(f"{checkpoint}{_losses(request.metrics_file)}")


def _model(flags: FlagValues, rest: Sequence[str]) -> ModelRequest:
    """The model to train: that of the flags, with --hp_NAME VALUE among its hparams."""
    launcher.need(flags, "output_dir", "data_dir")
    data_dir, output_dir = map(os.path.expanduser, (flags.data_dir, flags.output_dir))
    files.refuse_unusable(output_dir)
    files.refuse_unusable(data_dir)
    if len(rest) % 2 or not all(name.startswith("--hp_") and "=" not in name for name in rest[::2]):
        raise UserError(f"{' '.join(rest)[:80]!r}: rpr train takes flags only; hparams are "
                        "--hparams=NAME=VALUE,... or --hp_NAME VALUE")
    given = [flags.hparams, *(f"{name.removeprefix('--hp_')}={value}"
                              for name, value in zip(rest[::2], rest[1::2], strict=True))]
    if flags.gpu_automatic_mixed_precision:
        given.append("gpu_automatic_mixed_precision=True")
    registration.check_registered("model", flags.model)
    registration.find_problem(flags.problem)
    return dataclasses.replace(ModelRequest.of(flags), data_dir=data_dir, output_dir=output_dir,
                               hparams=",".join(filter(None, given)))


def _request(flags: FlagValues, model: ModelRequest, hparams: HParams) -> TrainingRequest:
    """The training that the flags ask for, checked, after making the data with --generate_data."""
    problem = registration.find_problem(model.problem)
    on_devices = devices.DeviceRequest(
        flags.cpu_devices or flags.worker_gpu, flags.cpu_devices, flags.optionally_use_dist_strat,
        flags.intra_op_parallelism_threads, flags.inter_op_parallelism_threads,
        devices.training_cluster(), flags.xla_compile)
    devices.check(on_devices, hparams, flags.save_checkpoints_secs)
    _check_combinations(flags, bool(on_devices.machines))
    if flags.generate_data:
        tmp_dir = os.path.expanduser(flags.tmp_dir)
        # As in `rpr datagen`, NAME_rev and NAME_copy share the data of NAME.
        plain = registry.problem(registry.parse_problem_name(model.problem).base_name)
        if isinstance(plain, translation.TranslationProblem):
            plain.generate_data(model.data_dir, tmp_dir)
        else:
            os.makedirs(tmp_dir, exist_ok=True)
            datagen.generate_with_t2t(plain, model.data_dir, lambda directory: plain.generate_data(
                directory, tmp_dir))
    check_data(problem, model.data_dir,
               ("train",) if flags.schedule == "train" else ("train", "dev"))
    made_with = {"model": model.model, "problem": model.problem, "hparams_set": model.hparams_set,
                 "random_seed": flags.random_seed, "xla_compile": flags.xla_compile,
                 "vocabulary": preflight.vocabularies(problem, model.data_dir)}
    preflight.check_same_training(model.output_dir, model.data_dir, made_with)
    resumed = checkpoints.newest_complete(model.output_dir)
    if resumed and averaging.is_average(resumed):
        raise InvalidPath(model.output_dir, "holds averages or kept weights, from which no "
                          "training resumes; give them as --warm_start_from of another one")
    metrics_file = _metrics_file(flags.metrics_file, model.output_dir)
    made_with["metrics_file"] = os.path.relpath(      # so that both may be moved
        os.path.realpath(metrics_file), os.path.realpath(model.output_dir))
    launcher.set_t2t_flags({"hparams": model.hparams, "worker_gpu": on_devices.per_machine})
    return TrainingRequest(
        output_dir=model.output_dir, data_dir=model.data_dir, made_with=made_with,
        metrics_file=metrics_file, devices=on_devices, seed=flags.random_seed,
        evaluates=flags.schedule != "train",
        train_steps=flags.train_steps, stop_at_step=flags.stop_at_step,
        eval_frequency=flags.eval_frequency, keep_frequency=flags.keep_checkpoint_every_n_steps,
        max_loss_rise=flags.max_loss_rise, log_batches=flags.log_batches, profile=flags.profile)


def _metrics_file(given: str | None, output_dir: str) -> str:
    """The file for the records of a training; refuses one other than those it has records in."""
    default = os.path.join(output_dir, launcher.METRICS_FILE)
    path = os.path.expanduser(given or default)
    is_default = os.path.realpath(path) == os.path.realpath(default)
    if not is_default:
        file_checks.check_output(path, of_json=True)
    earlier = preflight.trained_with(output_dir)
    if not earlier:
        if not is_default and metrics_log.last(path):
            raise InvalidValue("metrics_file", given, "holds the records of another training; name "
                               "another file or move it")
        return path
    known = earlier.get("metrics_file")               # not that of an older training
    if not known and metrics_log.last(default).keys() - {"decode"}:    # which `rpr decode` adds
        known = launcher.METRICS_FILE
    records = os.path.join(output_dir, known or "")
    if os.path.isfile(records) and os.path.realpath(records) != os.path.realpath(path):
        raise InvalidValue("metrics_file", given, "the records of this training are in "
                           f"{os.path.normpath(records)}")
    return path


def _check_combinations(flags: FlagValues, on_machines: bool) -> None:
    """Refuses flags that another flag, or a training on several machines, leaves without effect."""
    by_time, unevaluated = flags.save_checkpoints_secs, flags.schedule == "train"
    every = max(flags.local_eval_frequency, flags.iterations_per_loop)
    evaluations = ("eval_frequency", "eval_throttle_seconds")
    for name, useless, why in (
            *((name, unevaluated, "--schedule=train does not evaluate")
              for name in (*evaluations, "eval_steps")),
            *((name, on_machines, "a training on several machines evaluates once, at its end")
              for name in evaluations),
            ("eval_throttle_seconds", flags.eval_frequency, "--eval_frequency takes its place"),
            ("worker_gpu", flags.cpu_devices and flags.worker_gpu > 1,
             "--cpu_devices takes its place"),
            ("local_eval_frequency", by_time, "--save_checkpoints_secs takes its place"),
            ("keep_checkpoint_every_n_steps", by_time,
             "it needs checkpoints at known steps; use --local_eval_frequency in place of "
             "--save_checkpoints_secs"),
            ("keep_checkpoint_every_n_steps", flags.keep_checkpoint_every_n_steps % every,
             f"must be a multiple of {every}, the steps between checkpoints (the larger of "
             "--local_eval_frequency and --iterations_per_loop)")):
        if useless and flags[name].present and flags[name].value != flags[name].default:
            raise InvalidValue(name, flags[name].value, why)
    if flags["local_eval_frequency"].present and flags.local_eval_frequency < every:
        say(f"rpr train: checkpoints are {every} steps apart (--iterations_per_loop), not "
            f"{flags.local_eval_frequency}", style="yellow")


def _check_start(flags: FlagValues, model: ModelRequest, hparams: HParams) -> str | None:
    """Checks what the training starts from; returns the checkpoint of --warm_start_from, if any."""
    if checkpoints.newest(model.output_dir):
        resumed = checkpoints.find_checkpoint(model.output_dir, model.model)
        ends = (flags.train_steps, "train_steps"), (flags.stop_at_step, "stop_at_step")
        last, name = min(end for end in ends if end[0])
        if last <= checkpoints.step_of(resumed):
            say(f"rpr train: nothing is trained, as {resumed} has reached --{name}={last}",
                style="yellow")
        if flags.warm_start_from:
            say(f"rpr train: resuming from {resumed}; --warm_start_from is for a new --output_dir",
                style="yellow")
        return flags.warm_start_from
    second = hparams.get("warm_start_from_second")    # T2T's hparam
    if second:
        checkpoints.find_checkpoint(second, model.model)
    pretrained_embeddings.check(hparams, registration.find_problem(model.problem), model.data_dir)
    return flags.warm_start_from and checkpoints.find_checkpoint(
        os.path.expanduser(flags.warm_start_from), model.model)


def _say_what_starts_anew(checkpoint: str) -> None:
    """Names the trainable variables of the graph that a warm start does not find."""
    found = dict(tf.train.list_variables(checkpoint))
    new = [variable.op.name for variable in tf.trainable_variables()
           if variable.op.name not in found]
    if new:
        say(f"rpr train: {len(new)} variables are not in {checkpoint} and start anew: "
            f"{', '.join(new[:3])}{', ...' if len(new) > 3 else ''}", style="yellow")


def _lock(request: TrainingRequest, held: contextlib.ExitStack) -> None:
    """Locks the output directory if this process writes to it."""
    if request.devices.is_chief:
        held.enter_context(locks.lock(os.path.join(request.output_dir, ".train.lock"), wait=False))
        files.remove_temporary_files(request.output_dir)


def _losses(metrics_file: str) -> str:
    """The last losses of a training, for its closing line."""
    last = metrics_log.last(metrics_file)
    losses = [f"{meaning} {metrics_log.loss_of(last[event]):.3f} at step {last[event]['step']:,}"
              for event, meaning in (("train", "training loss"), ("eval", "development loss"))
              if "loss" in last.get(event, {})]
    return ": " + ", ".join(losses) if losses else ""


def _define_flags() -> None:
    from absl import flags
    flags.FLAGS.set_default("random_seed", 1)
    flags.FLAGS.set_default("tmp_dir", download.default_directory())
    # T2T's texts are about TPUs and evaluations.
    flags.FLAGS["iterations_per_loop"].help = "Least number of steps between checkpoints."
    flags.FLAGS["local_eval_frequency"].help = (
        "Save a checkpoint after this many steps, or --iterations_per_loop steps if that is more.")
    flags.DEFINE_string("metrics_file", None, "The file for losses, speed and evaluations, one "
                        "JSON object per line (default: metrics.jsonl in --output_dir).")
    flags.DEFINE_float("max_loss_rise", 2.0, "Stop a training whose loss stays this far above "
                       "its best for 150 steps, in nats per token; 0: never.")
    flags.DEFINE_integer("stop_at_step", 0, "Stop at this step, before --train_steps, on which "
                         "learning rates may depend; 0: do not.")
    flags.DEFINE_integer("eval_frequency", None, "Evaluate the first checkpoint at or after each "
                         "multiple of this many steps, and the last one (default: T2T's way, by "
                         "the clock: --eval_throttle_seconds).", lower_bound=1)
    flags.DEFINE_integer("keep_checkpoint_every_n_steps", 0, "Keep the weights of the checkpoints "
                         "at multiples of this step in kept/ below --output_dir, without the "
                         "optimizer's variables; 0: of none.", lower_bound=0)
    flags.DEFINE_integer("cpu_devices", 0, "Without GPUs: divide the CPU into this many devices, "
                         "to try out what --worker_gpu does on as many GPUs.", lower_bound=0,
                         upper_bound=64)
    flags.DEFINE_bool("log_batches", False, "Write a hash of each batch to the metrics file.")
