"""Starts a command that uses T2T (`launch`), and parses T2T's flags for it (`parse`)."""
import os
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

from absl import flags as absl_flags
from absl.flags import FLAGS, FlagValues

from rpr.t2t import compat
from rpr.utils import console
from rpr.utils.errors import InvalidValue, UserError, nearest, resource_error
from rpr.utils.processes import visible_gpus
from rpr.utils.settings import Setting

METRICS_FILE = "metrics.jsonl"
# Flags that T2T declares without a range: a default only gives the type, `help` ends the message.
_RANGES = {setting.name: setting for setting in (
    *(Setting(name, 0, minimum=1, or_none=True) for name in (
        "train_steps", "eval_steps", "iterations_per_loop", "local_eval_frequency",
        "log_step_count_steps", "keep_checkpoint_every_n_hours", "decode_shards", "n")),
    *(Setting(name, 0, minimum=0) for name in (
        "keep_checkpoint_max", "save_checkpoints_secs", "eval_throttle_seconds", "wait_minutes",
        "stop_at_step")),
    *(Setting(name, 0, minimum=0, maximum=1024) for name in (
        "inter_op_parallelism_threads", "intra_op_parallelism_threads")),
    Setting("eval_timeout_mins", 0, minimum=-1),
    Setting("max_loss_rise", 0.0, minimum=0),
    Setting("worker_gpu", 0, minimum=0, maximum=1024),
    Setting("bleu_variant", "", choices=("both", "cased", "uncased")),
    Setting("schedule", "", choices=("train", "continuous_train_and_eval"), help=(
        "; rpr evaluate evaluates (--wait: each new checkpoint), TF_CONFIG joins machines")),
    Setting("worker_gpu_memory_fraction", 0.0, above=0, maximum=1),
    Setting("random_seed", 0, minimum=0, maximum=2**32 - 1, or_none=True))}
# {how absl says that a value is of another kind: what is allowed}
_ALLOWED = {r"\('Non-boolean argument": "true or false",
            "invalid literal for int": "a whole number",
            "could not convert string to float": "a number"}
# {beginnings of T2T's flags that no command takes: why}. No help shows them.
_REFUSED = {
    "autotune_|cloud_|dbgprofile|export_saved_|hparams_range|job-dir|tfdbg|tpu_|use_tpu|xla_jit":
        "T2T's code for it needs TensorFlow 1",
    "master|ps_|std_server_|sync|worker_job|worker_replicas":
        "T2T's parameter servers do not work on TensorFlow 2; start the same command on every "
        "machine with a TF_CONFIG (scripts/train_on_hosts writes it)",
    "gpu_order": "T2T ignores it in some modes; CUDA_VISIBLE_DEVICES=1,0 puts GPUs in an order",
    "eval_early_stopping_": "T2T's code for it stops no training; --train_steps and "
                            "--max_loss_rise do",
    "enable_graph_rewriter|env_problem_|eval_run_autoregressive|max_cases|num_shards|source$|"
    "task_id|use_guarantee_": "nothing reads it"}
# Those that only a training uses.
TRAINING = ("eval_throttle_|generate_data|gpu_automatic_|iterations_per_loop|keep_checkpoint_|"
            "local_eval_|log_step_|optionally_use_|profile|registry_help|save_checkpoints_|"
            "schedule|tmp_dir|train_steps|warm_start_|xla_compile")


def launch(command: Callable[[list[str]], Any], argv: list[str]) -> Any:
    """Prepares T2T and the logs, then calls a command, and returns what it returns.

    With --verbose there are no logs: TensorFlow and T2T write to the terminal. An error of
    TensorFlow that one line can explain becomes a `UserError`.
    """
    verbose = "--verbose" in argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "1")
    logs, keeps_log = None if verbose else console.QuietLogs(), False
    try:
        compat.install()
        return command([arg for arg in argv if arg != "--verbose"])
    except (UserError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        from rpr.t2t import checkpoints  # imports T2T, which is prepared by now
        # The graph raises these while it runs, see `rpr.positions.scheme.check_length`; T2T reads
        # lines in it, too.
        raised = re.search(r"(position=(?:\S+ has rows for .*? or relative\b|\w+: \w+=\d+ is too "
                           r"small for .*?; raise it))|(?m:^UserError: (.*))", str(error))
        line = (raised[1] or raised[2] if raised
                else resource_error(error) or checkpoints.explain(error))
        if line:
            raise UserError(line) from error
        keeps_log = True
        raise
    finally:
        if logs:
            logs.end(keeps_log)


def parse(argv: list[str], program: str, hidden: str = "$", example: str = ""
          ) -> tuple[FlagValues, list[str]]:
    """Parses the flags that the modules imported so far define; registers names with T2T.

    `program` is the beginning of --help, `hidden` a regular expression of the beginnings of flags
    that it does not use, `example` a flag, for a command that takes flags only. Returns the flags,
    and the other arguments: words, and T2T's `--hp_name value`.
    """
    if any(arg in ("-h", "--help", "-help", "--helpfull") for arg in argv):
        print("\n".join([program, "", "Flags, besides --verbose:", *_shown(hidden).values()]))
        raise SystemExit(0)
    try:
        rest = FLAGS([program, *argv], known_only=True)[1:]
    except absl_flags.Error as error:
        line = str(error).removeprefix("flag ")
        for reason, allowed in _ALLOWED.items():
            line = re.sub(f": {reason}.*", f": must be {allowed}", line, flags=re.DOTALL)
        raise UserError(line) from None
    for name, setting in _RANGES.items():
        if name in FLAGS and not setting.accepts(FLAGS[name].value):
            raise UserError(f"--{setting.error(FLAGS[name].value)}{setting.help}")
    command = " ".join(program.split()[:2])
    refused = _REFUSED | {hidden: f"{command} does not use it"}
    for name, flag in FLAGS._flags().items():
        for names, reason in refused.items():
            if flag.present and flag.value != flag.default and re.match(names, name):
                raise InvalidValue(name, flag.value, reason)
    unknown = [arg for arg in rest if re.match(r"-(?!-hp_|[.\d])", arg)]     # nor a number
    if unknown:
        near = nearest(unknown[0].partition("=")[0], [f"--{name}" for name in _shown(hidden)])
        raise UserError(f"{unknown[0]}: no such flag{near}; --help lists them")
    if rest and example:
        raise UserError(f"{rest[0]!r}: {command} takes flags only, such as {example}")
    from rpr.t2t.registration import register  # imports T2T
    register(FLAGS["t2t_usr_dir"].value if "t2t_usr_dir" in FLAGS else None)
    import tensorflow.compat.v1 as tf
    from tensorflow.python.framework.config import is_op_determinism_enabled
    # TF_DETERMINISTIC_OPS=1 refuses to build a graph without a seed, even one that draws nothing.
    if "random_seed" in FLAGS and is_op_determinism_enabled():
        FLAGS.set_default("random_seed", 1)
    if "worker_gpu" in FLAGS and FLAGS.worker_gpu == 1 and (
            not tf.config.list_physical_devices("GPU")):
        set_t2t_flags({"worker_gpu": 0})              # T2T then uses the CPU
        named = visible_gpus()
        if named:
            console.say(f"TensorFlow finds no GPU, though there should be {len(named)} (GPU "
                        f"{', '.join(named)}): using the CPU. `scripts/setup gpu` installs "
                        "TensorFlow for GPUs.", "yellow")
    return FLAGS, rest


def t2t_flags() -> dict[str, Any]:
    """The values of all flags that T2T defines."""
    return {flag.name: flag.value
            for module, defined in FLAGS.flags_by_module_dict().items()
            if module.startswith("tensor2tensor") for flag in defined}


def set_t2t_flags(values: Mapping[str, Any]) -> None:
    """Sets flags of T2T to what a request decided, for T2T's own functions, which read them.

    They are create_run_config, generate_data and the functions of t2t_decoder. Nothing else sets
    flags. Our own code reads the request, and flags only to record them.
    """
    for name, value in values.items():
        FLAGS[name].value = value


def _shown(hidden: str) -> dict[str, str]:
    """{name: lines of help} of the flags that work, with defaults and ranges."""
    shown = {}
    for module, defined in sorted(FLAGS.flags_by_module_dict().items()):
        for flag in sorted(defined, key=lambda flag: flag.name):
            if not module.startswith(("tensor2tensor", "rpr")) or re.match(
                    "|".join([*_REFUSED, hidden]), flag.name):
                continue
            text = flag.help.replace("\t", "\\t")           # of a line of --score_file
            if flag.name in _RANGES:
                text += f" ({_RANGES[flag.name].allowed()})"
            elif flag.name == "hparams":
                text += " rpr list --hparams_set=SET shows them with their ranges."
            default = (flag.default_as_str or "").strip("'")
            shown[flag.name] = (f"  --{flag.name}={default}\n"
                                + textwrap.indent(textwrap.fill(text), " " * 6))
    return shown


def need(flags: FlagValues, *names: str) -> None:
    """Refuses a command line on which one of these flags is missing."""
    for name in names:
        if not flags[name].value:
            raise InvalidValue(name, None)
