"""`rpr datagen` (t2t-datagen): generates the vocabulary and the TFRecords of problems."""
import os
from typing import Any

from absl.flags import FlagValues

from rpr.cli.launcher import need, parse, set_t2t_flags
from rpr.t2t.registration import find_problem, registered_names
from rpr.utils import files
from rpr.utils.console import QuietLogs, say
from rpr.utils.errors import InvalidPath, InvalidValue, UserError


def main(argv: list[str], logs: QuietLogs | None) -> None:
    """`rpr datagen`, with the flags of t2t-datagen."""
    from tensor2tensor.bin import t2t_datagen
    from tensor2tensor.utils import registry

    from rpr.problems import checks, download, translation
    from rpr.problems.datagen import record_data_of_t2t
    flags, _ = parse(argv, "rpr datagen (t2t-datagen)", example="--problem=NAME")
    names = _problem_names(flags, t2t_datagen._SUPPORTED_PROBLEM_GENERATORS)
    if flags.only_list:
        print("\n".join(names))
        return
    need(flags, "data_dir")
    tmp_dir = download.private_directory(flags.tmp_dir)
    data_dir = os.path.expanduser(flags.data_dir)
    files.refuse_unusable(data_dir)
    for path in (data_dir, tmp_dir):
        if os.path.exists(path) and not os.path.isdir(path):
            raise InvalidPath(path, "is a file; expected a directory")
    registered = [name for name in names if name not in t2t_datagen._SUPPORTED_PROBLEM_GENERATORS]
    if flags.num_shards and registered:
        raise InvalidValue("num_shards", flags.num_shards,
                           f"the number of files of {registered[0]} is fixed")
    for name in names:
        problem = registry.problem(name) if name in registered else None
        if isinstance(problem, translation.TranslationProblem):
            problem.generate_data(data_dir, tmp_dir)    # T2T would create the directory first
        elif problem is not None and checks.read_record(problem, data_dir) is not None:
            checks.check_data(problem, data_dir, ("train", "dev"))
        else:
            if problem is None or type(problem).__module__.startswith("tensor2tensor."):
                say(f"{name} is a problem of tensor2tensor itself: what it downloads, often over "
                    "http, is neither verified nor unpacked safely")
            set_t2t_flags({"problem": name, "tmp_dir": tmp_dir})
            t2t_datagen.main(None)
            if problem is not None and checks.is_parallel_text(problem):
                record_data_of_t2t(problem, data_dir)
        if problem is not None:
            say(checks.summary(problem, data_dir))
    if logs:
        logs.keep(os.path.join(data_dir, "datagen.log"))


def _problem_names(flags: FlagValues, generators: dict[str, Any]) -> list[str]:
    """The names of --problem: one, several separated by commas, or all with a prefix (PREFIX*).

    The suffixes _rev and _copy are dropped: such problems share the data of the plain one.
    """
    from tensor2tensor.utils import registry
    if (flags.problem or "").endswith("*"):
        prefix = flags.problem[:-1]
        names = [name for name in sorted([*generators, *registered_names("problem", prefix)])
                 if name.startswith(prefix)]
        if not names:
            raise UserError(f"--problem={flags.problem}: no problem's name begins with '{prefix}'")
        excluded = list(filter(None, flags.exclude_problems.split(",")))
        return [name for name in names if not any(part in name for part in excluded)]
    names = []
    for name in (flags.problem or "").split(","):
        if name not in generators:
            find_problem(name)
            name = registry.parse_problem_name(name).base_name
        names.append(name)
    return names
