"""rpr.cli.evaluate"""
import os

from rpr.t2t.launcher import need, parse
from rpr.t2t.registration import find_problem, known
from rpr.t2t.trained_model import build_hparams


def main(argv, logs):
    from tensor2tensor.bin import t2t_eval

    from problems.checks import check_data
    from rpr.t2t import registration
    flags, _ = parse(argv, "t2t-eval")
    need(flags, "output_dir", "data_dir")
    registration.check_choice("model", "model", flags.model, known("model", flags.model))
    problem = find_problem(flags.problem)
    build_hparams(flags)
    check_data(problem, os.path.expanduser(flags.data_dir),
               ("test",) if flags.eval_use_test_set else ("dev",))
    if logs:
        logs.keep(os.path.join(os.path.expanduser(flags.output_dir), "evaluate.log"))
    t2t_eval.main(None)
