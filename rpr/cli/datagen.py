"""rpr.cli.datagen"""
import os

from rpr.t2t.launcher import parse
from rpr.t2t.registration import find_problem, known


def main(argv, logs):
    from tensor2tensor.bin import t2t_datagen
    flags, _ = parse(argv, "t2t-datagen")
    name = flags.problem
    if name and "," not in name and not name.endswith("*"):
        known("problem", name)
        if name not in t2t_datagen._SUPPORTED_PROBLEM_GENERATORS:
            find_problem(name)
    if logs and flags.data_dir:
        logs.keep(os.path.join(os.path.expanduser(flags.data_dir), "datagen.log"))
    t2t_datagen.main(None)
