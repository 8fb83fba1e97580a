"""The ways into T2T: datagen, train, evaluate, average, bleu, and a list of its registry.

Each takes T2T's own flags. A way in is: prepare TensorFlow (`compat`), import only what translation
needs, register this project's model, hparams sets and problems and those of --t2t_usr_dir, check
the input (`preflight`), then T2T's own code.
"""
import os
import re
import sys
import textwrap
from typing import NamedTuple

from rpr.t2t import compat
from rpr.utils import console
from rpr.utils.errors import UserError, out_of_room

METRICS_FILE = "metrics.jsonl"


def launch(verb, argv, call=None):
    """Runs a verb with T2T's flags.

    Args:
      verb: "datagen", "train", "evaluate", "average", "bleu" or "list", or whatever `call` does.
      argv: flags, without the program's name.
      call: a function of argv and the logs, for a verb of a higher floor.

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
        (call or _VERBS[verb])(argv, logs)
    except (UserError, KeyboardInterrupt, SystemExit):
        if logs:
            logs.end()
        raise
    except BaseException as error:
        line = out_of_room(error)
        longer = re.search(r"position=\w+ has rows for .*? or relative\b", str(error))
        if longer:                                    # said by the graph, in the midst of a run
            line = longer.group()
        if logs:
            logs.end(keep=not line)
        if line:
            raise UserError(line) from error
        if logs:
            print(f"rpr {verb} failed; the logs are in {logs.path}", file=sys.stderr)
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
    register(flags.FLAGS["t2t_usr_dir"].value if "t2t_usr_dir" in flags.FLAGS else None)
    if "worker_gpu" in flags.FLAGS and flags.FLAGS.worker_gpu == 1:
        import tensorflow.compat.v1 as tf
        if not tf.config.list_physical_devices("GPU"):
            flags.FLAGS.worker_gpu = 0                # T2T's word for the CPU; no GPU to ask for
    return flags.FLAGS, rest


def register(usr_dir=None):
    """Registers this project's names and those of a --t2t_usr_dir."""
    import rpr
    rpr.register()
    if not usr_dir:
        return
    from tensor2tensor.utils import usr_dir as t2t_usr_dir
    path = os.path.abspath(os.path.expanduser(usr_dir.rstrip("/")))
    name = os.path.basename(path)
    if name == "rpr":
        return                                        # registered above
    if not os.path.exists(path):
        raise UserError(f"--t2t_usr_dir={usr_dir}: there is no such directory")
    loaded = sys.modules.get(name)
    if loaded and os.path.dirname(os.path.abspath(getattr(loaded, "__file__", None) or "")) != path:
        raise UserError(f"--t2t_usr_dir={usr_dir}: a module named '{name}' is loaded already; "
                        "rename the directory")
    t2t_usr_dir.import_usr_dir(path)


def _known(kind, name):
    """The registered names; T2T's whole lists are imported when a name is not among the first."""
    from tensor2tensor.utils import registry
    lists = {"model": registry.list_models, "problem": registry.list_base_problems,
             "hparams": registry.list_hparams}
    if name and name not in lists[kind]():
        _import_all_of_t2t(kind)
    return lists[kind]()


def _import_all_of_t2t(kind):
    """Registers all problems, or all models and hparams sets, that still import."""
    import contextlib
    import importlib
    import io
    import pkgutil
    if kind == "problem":
        from tensor2tensor.data_generators import all_problems
        names = all_problems.ALL_MODULES
    else:
        import tensor2tensor.models
        names = [module.name for module in pkgutil.walk_packages(
            tensor2tensor.models.__path__, "tensor2tensor.models.")
            if not module.name.endswith("_test")]
    for name in names:
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            importlib.import_module(name)


def find_problem(name):
    """The problem of --problem; T2T's suffixes _rev and _copy are understood."""
    from tensor2tensor.utils import registry

    from rpr.t2t import preflight
    base = registry.parse_problem_name(name).base_name if name else name
    preflight.one_of("problem", "problem", base, _known("problem", base))
    return registry.problem(name)


def _need(flags, *names):
    for name in names:
        if not flags[name].value:
            raise UserError(f"--{name} is missing")


def build_hparams(flags, decoding=False):
    """The one place that builds T2T hparams: registered set, then --hparams.

    In an output directory that holds a model they must be those it was made with; when decoding,
    its hparams.json counts and --hparams may add what concerns decoding alone.
    """
    from tensor2tensor.utils import hparams_lib

    from rpr.t2t import preflight
    _known("hparams", flags.hparams_set)
    hparams = preflight.registered_hparams(flags.hparams_set)
    named = preflight.parse_hparams(hparams, flags.hparams)
    output_dir = flags.output_dir and os.path.expanduser(flags.output_dir)
    if output_dir:
        preflight.same_hparams(output_dir, named if decoding else hparams.values(), decoding)
    if decoding and output_dir and preflight.saved_hparams(output_dir):
        hparams = hparams_lib.create_hparams_from_json(
            os.path.join(output_dir, "hparams.json"), hparams)
        hparams.parse(flags.hparams)
    preflight.served(flags.model, hparams)
    return hparams


class TrainedModel(NamedTuple):
    """What a trained model is read from.

    Attributes:
      name: the registered model.
      hparams: with `data_dir`, `model_dir` and those of the problem, its vocabularies among them.
      checkpoint: path without suffix.
    """
    name: str
    hparams: object
    checkpoint: str


def trained_model(flags):
    """Finds and checks the trained model that T2T's flags name.

    Args:
      flags: has model, problem, hparams_set, hparams, data_dir, output_dir, and checkpoint_path or
        None in it (then the last checkpoint of output_dir counts).

    Raises:
      UserError: a flag is missing, or what they name does not fit together.
    """
    from tensor2tensor.utils import trainer_lib

    from problems.checks import check_data
    from rpr.t2t import preflight
    for name in ("output_dir", "data_dir"):
        if not getattr(flags, name):
            raise UserError(f"--{name} is missing")
    output_dir, data_dir = map(os.path.expanduser, (flags.output_dir, flags.data_dir))
    preflight.one_of("model", "model", flags.model, _known("model", flags.model))
    problem = find_problem(flags.problem)
    hparams = build_hparams(flags, decoding=True)
    check_data(problem, data_dir, ())
    preflight.same_training(output_dir, {"hparams_set": flags.hparams_set,
                                         "vocabulary": preflight.vocabularies(problem, data_dir)})
    flag = "checkpoint_path" if flags.checkpoint_path else "output_dir"
    checkpoint = preflight.checkpoint(flags.checkpoint_path or output_dir, flags.model, flag)
    hparams.add_hparam("data_dir", data_dir)
    hparams.add_hparam("model_dir", output_dir)
    trainer_lib.add_problem_hparams(hparams, problem)
    return TrainedModel(flags.model, hparams, checkpoint)
def check(runs):
    """Refuses runs that name a model, problem, hparams set or hparam that does not exist.

    Args:
      runs: `experiment.Run`s.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    logs = console.QuietLogs()
    try:
        compat.install()
        register(None)
        from rpr.t2t import preflight
        for run in runs:
            preflight.one_of("model", "model", run.model, _known("model", run.model))
            find_problem(run.problem)
            _known("hparams", run.hparams_set)
            hparams = preflight.registered_hparams(run.hparams_set)
            preflight.parse_hparams(hparams, run.hparams)
            preflight.served(run.model, hparams)
    finally:
        logs.end()


def _datagen(argv, logs):
    from tensor2tensor.bin import t2t_datagen
    flags, _ = parse(argv, "t2t-datagen")
    name = flags.problem
    if name and "," not in name and not name.endswith("*"):
        _known("problem", name)
        if name not in t2t_datagen._SUPPORTED_PROBLEM_GENERATORS:
            find_problem(name)
    if logs and flags.data_dir:
        logs.keep(os.path.join(os.path.expanduser(flags.data_dir), "datagen.log"))
    t2t_datagen.main(None)


def _train(argv, logs):
    import tensorflow.compat.v1 as tf
    from absl import flags as absl_flags
    from tensor2tensor.bin import t2t_trainer
    from tensor2tensor.utils import trainer_lib

    from problems.checks import check_data
    from rpr.models import pretrained_embeddings
    from rpr.t2t import preflight
    from rpr.training import devices, trainer
    absl_flags.DEFINE_string("metrics_file", None, "Where loss, speed and evaluations are written, "
                             "a JSON object a line (default: metrics.jsonl in --output_dir).")
    absl_flags.DEFINE_float("max_loss_rise", 2.0, "A training ends whose loss stays so far, in "
                            "nats a token, above its best (medians of 50 steps); 0: none does.")
    flags, rest = parse(argv, "t2t-trainer")
    if flags.cloud_mlengine or flags.use_tpu:
        raise UserError("--cloud_mlengine and --use_tpu need TensorFlow 1: not on TensorFlow 2.15")
    if flags.registry_help:
        from tensor2tensor.utils import registry
        print(registry.help_string())
        return
    _need(flags, "output_dir", "data_dir")
    t2t_trainer.set_hparams_from_args(rest)
    preflight.one_of("model", "model", flags.model, _known("model", flags.model))
    problem = find_problem(flags.problem)
    if flags.gpu_automatic_mixed_precision:
        flags.hparams = ",".join(filter(None, (flags.hparams,
                                               "gpu_automatic_mixed_precision=True")))
    hparams = build_hparams(flags)
    trainer_lib.set_random_seed(flags.random_seed)
    data_dir, output_dir = (os.path.expanduser(flags[name].value) for name in ("data_dir",
                                                                              "output_dir"))
    if flags.generate_data:
        t2t_trainer.generate_data()
    check_data(problem, data_dir, ("train",) if flags.schedule == "train" else ("train", "dev"))
    asked = {"model": flags.model, "problem": flags.problem, "hparams_set": flags.hparams_set,
             "vocabulary": preflight.vocabularies(problem, data_dir)}
    preflight.same_training(output_dir, asked)
    devices.check(flags, hparams, problem)
    if tf.train.latest_checkpoint(output_dir):
        preflight.checkpoint(output_dir, flags.model, "output_dir")
    else:
        pretrained_embeddings.check(hparams, problem, data_dir)

    if logs:
        machines = devices.cluster()
        who = f".worker{machines.index}" if machines and machines.index else ""
        logs.keep(os.path.join(output_dir, f"train{who}.log"))
    trainer.run(flags, hparams, asked, flags.metrics_file or os.path.join(output_dir,
                                                                           METRICS_FILE))


def _evaluate(argv, logs):
    from tensor2tensor.bin import t2t_eval

    from problems.checks import check_data
    from rpr.t2t import preflight
    flags, _ = parse(argv, "t2t-eval")
    _need(flags, "output_dir", "data_dir")
    preflight.one_of("model", "model", flags.model, _known("model", flags.model))
    problem = find_problem(flags.problem)
    build_hparams(flags)
    check_data(problem, os.path.expanduser(flags.data_dir),
               ("test",) if flags.eval_use_test_set else ("dev",))
    if logs:
        logs.keep(os.path.join(os.path.expanduser(flags.output_dir), "evaluate.log"))
    t2t_eval.main(None)


def _average(argv, logs):
    from tensor2tensor.bin import t2t_avg_all  # noqa: F401  defines the flags
    from tensor2tensor.utils import bleu_hook

    from rpr.training import averaging
    flags, _ = parse(argv, "t2t-avg-all")
    _need(flags, "model_dir")
    model_dir, output_dir = map(os.path.expanduser, (flags.model_dir, flags.output_dir))
    found = 0
    if os.path.isdir(model_dir):
        found = sum(1 for _ in bleu_hook.stepfiles_iterator(model_dir, 0, flags.min_steps))
    if found < flags.n and not flags.wait_minutes:    # T2T then ends well and writes nothing
        raise UserError(f"--n={flags.n}: --model_dir={flags.model_dir} holds {found} checkpoints "
                        f"from step {flags.min_steps} on")
    if logs:
        logs.keep(os.path.join(output_dir, "average.log"))
    averaging.average_all(model_dir, output_dir, flags.n, flags.min_steps, flags.wait_minutes)


def _bleu(argv, logs):
    del logs
    from tensor2tensor.bin import t2t_bleu
    flags, _ = parse(argv, "t2t-bleu")
    for name in ("translation", "reference"):
        path = flags[name].value
        if path and not os.path.exists(path):
            raise UserError(f"--{name}={path}: there is no such file")
    t2t_bleu.main(None)


def _list(argv, logs):
    """`rpr list [models|hparams|problems|schemes] [--all]`."""
    del logs
    from rich.console import Console
    from rich.table import Table
    kinds = ["models", "hparams", "problems", "schemes"]
    whole = "--all" in argv
    asked = [arg for arg in argv if arg != "--all"] or kinds
    for kind in asked:
        if kind not in kinds:
            raise UserError(f"'{kind}': one of {', '.join(kinds)}, and --all for T2T's own too")
    register()
    from tensor2tensor.utils import registry

    from rpr import positions
    if whole:
        _import_all_of_t2t("problem")
        _import_all_of_t2t("model")
    for kind in asked:
        if kind == "schemes":
            entries = positions.SCHEMES
        else:
            entries = getattr(registry.Registries, kind)._registry
            if not whole:
                entries = {name: entry for name, entry in entries.items()
                           if entry.__module__.split(".")[0] in ("rpr", "problems", "hparams")}
        table = Table(title=kind, title_justify="left", show_header=False, box=None)
        for name, entry in sorted(entries.items()):
            table.add_row(name, (entry.__doc__ or "").strip().split("\n")[0])
        Console().print(table)


_VERBS = {"datagen": _datagen, "train": _train, "evaluate": _evaluate,
          "average": _average, "bleu": _bleu, "list": _list}
