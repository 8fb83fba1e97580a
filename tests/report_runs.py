"""Run and study directories with invented translations, for tests of the report."""
import json
import random

from rpr.report import comparison, study_reader

SENTENCES = ["Der Hund bellt laut im Garten.", "Die Katze schläft auf dem Sofa.",
             "Es regnet heute nicht.", "Wir gehen morgen ins Kino.",
             "Das Buch liegt auf dem Tisch."]
REFERENCE = [f"{line} {number}" for number, line in enumerate(SENTENCES * 12)]
SOURCE = [" ".join(["word"] * (1 + number % 30)) for number in range(len(REFERENCE))]


def damage(lines, share, seed):
    """Lines without a share of their words."""
    dice = random.Random(seed)
    return [" ".join(word for word in line.split() if dice.random() > share) or "."
            for line in lines]


def write_run(folder, name, share=0.2, seed=1, done=True, status=None, hypotheses=None, cut=0,
              config="", **hparams):
    """A run directory whose translations lack a share of the reference's words.

    `config` are more lines of its config.gin.
    """
    run = folder / name
    (run / "model").mkdir(parents=True)
    (run / "config.gin").write_text(
        f"run.problem = 'p'\nrun.hparams_set = 'h'\nrun.train_steps = 1000\nrun.seed = {seed}\n"
        + config)
    (run / "status.json").write_text(json.dumps(
        status or {"train": {"state": "done", "seconds": 120.0},
                   "score": {"state": "done", "started": 1.6e9, "seconds": 1.0}}))
    events = [{"event": "start", "step": 0, "parameters": 1234567, "time": 0.0}]
    events += [{"event": "train", "step": step, "loss": 900 / (step + 99) + share,
                "steps_per_second": 4.0 - share, "time": 1.0} for step in range(10, 1001, 10)]
    events += [{"event": "eval", "step": step, "loss": 900 / (step + 99)} for step in (500, 1000)]
    events += [{"event": "decode", "sentences": len(REFERENCE), "cut": cut}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "model" / "hparams.json").write_text(json.dumps(
        {"relative_keys": True, "max_length": 20, "position": "relative", **hparams}))
    if done:
        for kind, lines in (("source", SOURCE), ("reference", REFERENCE),
                            ("hypotheses", hypotheses or damage(REFERENCE, share, seed))):
            (run / f"{kind}.test.txt").write_text("".join(line + "\n" for line in lines))
        (run / "scores.json").write_text(
            '{"step": 1000, "exact": 25.0, "ter": {"score": 60.0}}')
    return run


def unchanged(seeds):
    """The arms of `write_study` for {arm: number of seeds}, with runs ARM-SEED."""
    return {arm: ({}, None, {seed: f"{arm}-{seed}" for seed in range(1, count + 1)})
            for arm, count in seeds.items()}


def write_study(folder, arms, baseline, **fields):
    """study.json for {arm: (changes, paper's BLEU, {seed: run's directory})}."""
    folder.mkdir(exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"baseline": baseline, **fields, "arms": [
        {"name": name, "changes": changes, "paper_bleu": paper,
         "runs": [{"seed": seed, "directory": run} for seed, run in runs.items()]}
        for name, (changes, paper, runs) in arms.items()]}))
    (folder / "study.gin").write_text("study.baseline = '<k>'\n")


def read_scored(folder, baseline=None, against=None, measure=None):
    """The results of a study, scored."""
    results = study_reader.read_study(str(folder), baseline, against and str(against))
    comparison.score_runs(results, str(folder), measure)
    return results


def write_clipping_study(folder):
    """A study of k with two seeds per arm: k = 2 is half done, k = 4 failed."""
    arms = {}
    for k, share in ((16, 0.1), (0, 0.4), (1, 0.11), (2, 0.2), (4, 0.3)):
        for seed in (1, 2):
            failed = {"train": {"state": "failed", "code": 1, "seconds": 9.0,
                                "reason": "Traceback\nNaN in step 30_0"}}
            write_run(folder, f"runs/k{k}-{seed}", share, seed, max_relative_position=k,
                      done=not (k == 4 or (k, seed) == (2, 2)),
                      status=failed if k == 4 else None)
            (folder / f"runs/k{k}-{seed}/.lock").touch()
        arms[f"max_relative_position={k}"] = (
            {"max_relative_position": k}, 25.5 if k else None,
            {seed: f"runs/k{k}-{seed}" for seed in (1, 2)})
    write_study(folder, arms, "max_relative_position=16")


def write_pair(folder, name, shares, **fields):
    """A study of two arms with two seeds each, and a setting of runs that the second changes."""
    arms, baseline = {}, next(iter(shares))
    for arm, share in shares.items():
        changes = fields if arm != baseline else {}
        for seed in (1, 2):
            write_run(folder / name, f"runs/{arm}-{seed}", share, seed, config="".join(
                f"run.{field} = {value!r}\n" for field, value in changes.items()))
        arms[arm] = (changes, None, {seed: f"runs/{arm}-{seed}" for seed in (1, 2)})
    write_study(folder / name, arms, baseline)
    return str(folder / name)
