"""Which checkpoints are evaluated: the steps alone decide."""
from rpr.training import hooks
from rpr.utils import metrics_log


def evaluated(path, steps, frequency, restarts=()):
    """The steps that are evaluated; a training that was killed goes on from a checkpoint."""
    found = []

    def evaluate():
        metrics_log.append(path, "eval", step=step, loss=1.0)
        found.append(step)

    def start():
        return hooks.EvaluationListener(path, frequency, steps[-1], evaluate)

    listener = start()
    for before, step in zip((0, *steps), steps, strict=False):
        for number in range(before + 10, step + 1, 10):      # as many events as a training writes
            metrics_log.append(path, "train", step=number, loss=1.0, steps_per_second=4.0,
                               source_tokens_per_second=1234.5, target_tokens_per_second=1234.5)
        listener.after_save(None, step)
        listener = start() if step in restarts else listener
    return found


def test_evaluations_are_far_apart_and_a_restart_changes_nothing(tmp_path):
    steps = range(1000, 21000, 1000)
    for restarts in ((), (3000, 5000, 9000)):
        path = str(tmp_path / f"{len(restarts)}.jsonl")
        assert evaluated(path, steps, 5000, restarts) == [5000, 10000, 15000]


def test_steps_that_are_trained_again_are_evaluated_again(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    assert evaluated(path, range(1000, 4001, 1000), 1000) == [1000, 2000, 3000]
    again = []
    listener = hooks.EvaluationListener(path, 1000, 4000, lambda: again.append(True))
    metrics_log.forget_after(path, 1000)              # the training goes back to this step
    listener.after_save(None, 2000)
    assert again == [True]
