"""T2T's small programs: `rpr datagen`, `rpr average` and `rpr bleu`."""
import os
from collections.abc import Iterable

from absl.flags import FLAGS, FlagValues

from rpr.cli.launcher import need, parse, set_t2t_flags
from rpr.t2t.registration import find_problem, registered_names
from rpr.utils import files, metrics_log
from rpr.utils.console import keep_log, say
from rpr.utils.errors import InvalidPath, InvalidValue, UserError


def datagen(argv: list[str]) -> None:
    """`rpr datagen` (t2t-datagen): generates the vocabulary and the TFRecords of problems."""
    from tensor2tensor.bin import t2t_datagen

    from rpr.problems import checks, download, translation
    from rpr.problems.datagen import generate_with_t2t
    FLAGS.set_default("tmp_dir", download.default_directory())
    flags, _ = parse(argv, "rpr datagen (t2t-datagen)", example="--problem=NAME")
    names = _problem_names(flags)
    if flags.only_list:
        print("\n".join(names))
        return
    need(flags, "data_dir")
    data_dir, tmp_dir = map(os.path.expanduser, (flags.data_dir, flags.tmp_dir))
    files.refuse_unusable(data_dir)
    for path in (data_dir, tmp_dir):
        if os.path.exists(path) and not os.path.isdir(path):
            raise InvalidPath(path, "is a file; expected a directory")
    problems = {name: find_problem(name) for name in names}
    for name, problem in problems.items():
        if isinstance(problem, translation.TranslationProblem):
            _refuse(flags, ("random_seed", "num_concurrent_processes"), f"{name} does not use it")
    for name, problem in problems.items():
        if isinstance(problem, translation.TranslationProblem):
            problem.generate_data(data_dir, tmp_dir)    # T2T would create the directory first
        else:
            def make(directory: str, name: str = name) -> None:
                set_t2t_flags({"problem": name, "tmp_dir": tmp_dir, "data_dir": directory})
                t2t_datagen.main(None)

            generate_with_t2t(problem, data_dir, make)
        say(checks.summary(problem, data_dir))
    if os.access(data_dir, os.W_OK):
        keep_log(os.path.join(data_dir, "datagen.log"))


def _problem_names(flags: FlagValues) -> list[str]:
    """The names of --problem: one, several separated by commas, or all with a prefix (PREFIX*).

    Those with a part of --exclude_problems are left out. The suffixes _rev and _copy are dropped:
    such problems share the data of the plain one.
    """
    from tensor2tensor.utils import registry
    if (flags.problem or "").endswith("*"):
        prefix = flags.problem[:-1]
        names = sorted(name for name in registered_names("problem", prefix)
                       if name.startswith(prefix))
        if not names:
            raise UserError(f"--problem={flags.problem}: no problem's name begins with '{prefix}'")
    else:
        names = []
        for name in list(filter(None, (flags.problem or "").split(","))) or [""]:
            find_problem(name)
            names.append(registry.parse_problem_name(name).base_name)
    excluded = list(filter(None, flags.exclude_problems.split(",")))
    names = [name for name in names if not any(part in name for part in excluded)]
    if not names:
        raise InvalidValue("exclude_problems", flags.exclude_problems,
                           f"excludes all of --problem={flags.problem}")
    return names


def _refuse(flags: FlagValues, names: Iterable[str], reason: str) -> None:
    """Refuses flags with another value than their default."""
    for name in names:
        if flags[name].value != flags[name].default:
            raise InvalidValue(name, flags[name].value, reason)


def average(argv: list[str]) -> None:
    """`rpr average` (t2t-avg-all): averages checkpoints."""
    from tensor2tensor.bin import t2t_avg_all  # noqa: F401  defines the flags
    from tensor2tensor.utils import bleu_hook

    from rpr.t2t import checkpoints
    from rpr.training import averaging
    flags, _ = parse(argv, "rpr average (t2t-avg-all)", example="--model_dir=DIR")
    need(flags, "model_dir", "output_dir")
    model_dir, output_dir = map(os.path.expanduser, (flags.model_dir, flags.output_dir))
    files.refuse_unusable(model_dir)
    files.refuse_unusable(output_dir)
    if os.path.realpath(model_dir) == os.path.realpath(output_dir):
        raise UserError(f"--output_dir={output_dir}: averages would replace the checkpoints of "
                        "--model_dir; take another directory")
    if os.path.exists(os.path.join(output_dir, metrics_log.CHECKSUMS)):
        raise UserError(f"--output_dir={output_dir}: averages would replace the checkpoints of the "
                        "training in it; take another directory")
    min_steps = max(flags.min_steps, 1)               # the checkpoint at step 0 is not trained
    found = (list(bleu_hook.stepfiles_iterator(model_dir, 0, min_steps))
             if os.path.isdir(model_dir) else [])
    for each in found:
        problem = checkpoints.damage(each.filename)
        if problem:
            raise UserError(f"--model_dir={model_dir}: {each.filename} cannot be read: {problem}")
    if len(found) < flags.n and not flags.wait_minutes:      # T2T would succeed and write nothing
        raise UserError(f"--n={flags.n}: --model_dir={flags.model_dir} holds {len(found)} "
                        f"checkpoints from step {min_steps} on")
    if found:
        averaging.averaged_variables([each.filename for each in found])
    averaging.check_output(model_dir, output_dir)
    keep_log(os.path.join(output_dir, "average.log"))
    for path in averaging.average_all(model_dir, output_dir, flags.n, min_steps,
                                      flags.wait_minutes):
        say(f"{path}: mean of {flags.n} checkpoints of {model_dir}")


def bleu(argv: list[str]) -> None:
    """`rpr bleu` (t2t-bleu): T2T's approximate BLEU. `rpr score` computes the one to publish."""
    from tensor2tensor.bin import t2t_bleu
    from tensor2tensor.utils import bleu_hook

    from rpr.evaluation.test_sets import read_lines
    from rpr.t2t import compat
    flags, _ = parse(argv, "rpr bleu (t2t-bleu)", example="--translation=FILE")
    if flags.translations_dir:
        if flags.translation:
            raise InvalidValue("translations_dir", flags.translations_dir,
                               "not together with --translation")
        if not os.path.isdir(flags.translations_dir):
            raise InvalidPath(flags.translations_dir, "no such directory")
        need(flags, "reference", "event_dir")
        read_lines(flags.reference)
        if os.path.isfile(flags.event_dir):
            raise InvalidPath(flags.event_dir, "is a file; expected a directory")
        if not flags.wait_minutes and not any(bleu_hook.stepfiles_iterator(
                flags.translations_dir, path_suffix="")):
            raise InvalidPath(flags.translations_dir, "no file in it ends in -STEP, as "
                              "out-200 does")
    else:
        need(flags, "translation", "reference")
        _refuse(flags, ("event_dir", "min_steps", "report_zero", "tag_suffix", "wait_minutes"),
                "only with --translations_dir")
    compat.read_bleu_texts_with(read_lines)
    t2t_bleu.main(None)
    if flags.translations_dir:
        print(f"scores as TensorBoard events: {flags.event_dir}")
