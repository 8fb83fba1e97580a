"""The ways into T2T: datagen, train, evaluate, average, bleu, and a list of its registry.

Each takes T2T's own flags. A way in is: prepare TensorFlow (`compat`), import only what translation
needs, register this project's model, hparams sets and problems and those of --t2t_usr_dir, check
the input (`preflight`), then T2T's own code.
"""
import os
import re
import sys
import textwrap

from rpr.t2t import compat
from rpr.utils import console
from rpr.utils.errors import UserError, resource_error

METRICS_FILE = "metrics.jsonl"


def launch(verb, argv, call):
    """Runs a verb with T2T's flags.

    Args:
      verb: its name, for messages.
      argv: flags, without the program's name.
      call: the command: a function of argv and the logs.

    Raises:
      UserError: bad input; nothing was written.
    """
    argv = list(argv)
    verbose = "--verbose" in argv or "--decode_interactive" in argv
    argv = [arg for arg in argv if arg != "--verbose"]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "0" if verbose else "1")
    logs = None if verbose else console.QuietLogs()
    try:
        compat.install()
        call(argv, logs)
    except (UserError, KeyboardInterrupt, SystemExit):
        if logs:
            logs.end()
        raise
    except BaseException as error:
        from rpr.t2t import checkpoints               # imports T2T, which is prepared by now
        line = resource_error(error) or checkpoints.explain(error)
        longer = re.search(r"position=\w+ has rows for .*? or relative\b", str(error))
        if longer:                                    # said by the graph, in the midst of a run
            line = longer.group()
        if logs:
            logs.end(keep=not line)
        if line:
            raise UserError(line) from error
        raise
    if logs:
        logs.end()


def parse(argv, program):
    """Parses the flags that the modules imported so far define.

    Returns:
      FLAGS, and the `--hp_name value` arguments that T2T's trainer also takes.
    """
    from absl import flags
    if any(arg in ("-h", "--help", "-help", "--helpfull") for arg in argv):
        print(f"{program}: --verbose, and")
        for module, defined in sorted(flags.FLAGS.flags_by_module_dict().items()):
            if module.startswith(("tensor2tensor", "rpr")):
                for flag in sorted(defined, key=lambda flag: flag.name):
                    print(f"  --{flag.name}={(flag.default_as_str or '').strip(chr(39))}\n"
                          f"{textwrap.indent(textwrap.fill(flag.help), ' ' * 6)}")
        raise SystemExit(0)
    try:
        rest = flags.FLAGS([program, *argv], known_only=True)[1:]
    except flags.Error as error:
        raise UserError(str(error)) from None
    unknown = [arg for arg in rest if arg.startswith("-") and not arg.startswith("--hp_")]
    if unknown:
        raise UserError(f"{unknown[0]}: no such flag (--help lists them)")
    from rpr.t2t.registration import register        # imports T2T
    register(flags.FLAGS["t2t_usr_dir"].value if "t2t_usr_dir" in flags.FLAGS else None)
    if "worker_gpu" in flags.FLAGS and flags.FLAGS.worker_gpu == 1:
        import tensorflow.compat.v1 as tf
        if not tf.config.list_physical_devices("GPU"):
            flags.FLAGS.worker_gpu = 0                # T2T's word for the CPU; no GPU to ask for
    return flags.FLAGS, rest


def need(flags, *names):
    for name in names:
        if not flags[name].value:
            raise UserError(f"--{name} is missing")
