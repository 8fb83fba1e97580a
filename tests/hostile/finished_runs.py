"""Small finished runs and studies, written by hand: what commands read of them."""
import json

from rpr.experiments import config, gin_files, studies
from rpr.utils import metrics_log

RUN = config.Run("translate_text_files", "rpr_tiny", 20, checkpoint_steps=10, eval_steps=1)
ARMS = {"absolute": {"position": "sinusoid"}, "relative": {"position": "relative"}}


class Makers:
    """Directories that cases copy.

    Args:
      folder: where they are made.
      request: of pytest, for the fixture with a data directory.
    """

    def __init__(self, folder, request):
        self._folder, self._request = folder, request

    def make(self, name):
        """The directory "data", "run" or "study"; made on first use."""
        if name == "data":
            return self._request.getfixturevalue("text").data_dir
        path = self._folder / name
        if not path.exists():
            {"run": write_run, "study": write_study}[name](path)
        return path


def write_run(path, run=RUN, shift=0):
    """A finished run whose translations differ from the references in some lines."""
    path.mkdir(parents=True)
    (path / "config.gin").write_text(gin_files.as_gin(run))
    stages = ("datagen", "train", "decode", "score")
    (path / "status.json").write_text(json.dumps({
        name: {"state": "done", "input": "0" * 16, "started": 1.0, "attempts": 1, "seconds": 2.0}
        for name in stages}))
    metrics_log.append(str(path / "metrics.jsonl"), "start", step=0, parameters=1000, time=1.0)
    for step in (10, 20):
        metrics_log.append(str(path / "metrics.jsonl"), "train", step=step, loss=5.0 - step / 10,
                           steps_per_second=2.0, time=float(step))
    metrics_log.append(str(path / "metrics.jsonl"), "eval", step=20, loss=3.0)
    lines = [f"this is sentence number {number} of the test set" for number in range(12)]
    for name in ("source", "reference", "hypotheses"):
        content = [line if name != "hypotheses" or (number + shift) % 3 else "another sentence here"
                   for number, line in enumerate(lines)]
        (path / f"{name}.test.txt").write_text("".join(line + "\n" for line in content))
    (path / "scores.json").write_text(json.dumps({
        "bleu": {"score": 60.0 + shift, "signature": "nrefs:1"}, "exact": 60.0, "step": 20,
        "parameters": 1000, "lines": 12, "seconds": {name: 2.0 for name in stages}}))


def write_study(path):
    """A finished study of two arms."""
    study = config.Study("absolute", arms=ARMS)
    for shift, member in enumerate(studies.prepare(study, RUN, str(path))):
        run_dir = path / member.directory
        (run_dir / "config.gin").unlink()
        run_dir.rmdir()
        write_run(run_dir, member.run, shift)
