"""A study whose processes are killed at random moments ends as one that was left alone.

All tensors of the last checkpoints and all hypotheses are equal, bit for bit. The environment
variable RPR_DRILL_KILLS is the number of kills: 5 by default, at least 4.
"""
import itertools
import json
import os
import random
import signal
import time

from conftest import rpr_command, server, started
from test_experiment import nothing_outlives_it, status
from test_study import runs, write_study

from rpr.utils import metrics_log

KILLS = int(os.environ.get("RPR_DRILL_KILLS", "5"))
LET_PASS = KILLS // 5
VERBS = ("datagen", "train", "average", "decode", "score")
KINDS = ("train", "run", "study", "average", "decode", "score")
# Which kill is of a kind that is given: all but every seventh.
AIMED = {number: KINDS[number % 7 - 1] for number in range(KILLS) if number % 7}
ARMS = {"relative": {}}


def study(gin, study_dir):
    return started("study", gin, f"--study_dir={study_dir}", "--cores=1")


def family(process):
    """[(pid, verb)] of a study's process and those below it, the study first."""
    rows, found = server().processes(), [(process.pid, "study")]
    for above, _ in found:                            # grows while it is walked through
        found += [(pid, name.removeprefix("rpr ")) for pid, parent, name in rows
                  if parent == above]
    return found


def kill_one(process, dice, typical, killed):
    """Waits for a stage to begin, then for a random moment in it, and kills one of the processes:
    of the kind that it is aimed at, or of one that is not among those `killed`, where there is one.

    Returns:
      what was killed; None where the study ended before a stage began.
    """
    aim = AIMED.get(len(killed))
    known = {pid for pid, _ in family(process)}
    while process.poll() is None:
        for pid, verb in family(process):
            if verb in VERBS and pid not in known and (aim not in VERBS or verb == aim):
                time.sleep(dice.random() * 0.8 * typical[verb])
                there = family(process)
                if aim:
                    there = [one for one in there if one[1] == aim]
                    if not there:                     # it ended just now: the next one then
                        break
                victim, name = dice.choice([one for one in there if one[1] not in killed] or there)
                try:
                    os.kill(victim, signal.SIGKILL)
                except ProcessLookupError:            # it ended just now: the next stage then
                    break
                return name
        time.sleep(0.05)
    return None


def finished(study_dir):
    """{run: {stage: its entry}} of what is done."""
    return {name: {stage: entry for stage, entry in status(path).items()
                   if entry["state"] == "done"}
            for name, path in runs(study_dir).items() if (path / "status.json").exists()}


def stage_states(study_dir):
    """The states of all stages; `failed` only if the study does not try the run again."""
    entries = [entry for path in study_dir.glob("runs/*/status.json")
               for entry in json.loads(path.read_text()).values()]
    return {entry["state"] for entry in entries if entry.get("code", 1) >= 0}


def results(study_dir):
    """The report's record, without what it took."""
    rpr_command("report", study_dir, "--skip_model_analysis")
    record = json.loads((study_dir / "results.json").read_text())
    took = {"steps_per_second", "model_tflops", "mfu", "relative_speed", "train_minutes", "seconds",
            "environment", "cut"}
    for entry in [*record["arms"], *(run for arm in record["arms"] for run in arm["runs"])]:
        for name in took & set(entry):
            del entry[name]
    return {**record, "title": "", "date": "", "environments": [], "study_gin": ""}


def names(study_dir):
    """The files and directories of a study, but TensorBoard's, whose names hold the time."""
    return {str(path.relative_to(study_dir)) for path in study_dir.rglob("*")
            if ".tfevents." not in path.name}


def last_checksums(run_dir):
    """{tensor: checksum} of the last checkpoint."""
    checkpoints = metrics_log.read_checksums(str(run_dir / "model"))
    return checkpoints[max(checkpoints)]


def test_killed_at_random_moments_it_ends_as_if_undisturbed(text, tmp_path):
    gin = write_study(tmp_path / "drill.gin", ARMS, checkpoint_steps=5, average_checkpoints=2,
                      eval_frequency=10)
    whole = tmp_path / "whole"
    folders = (tmp_path / f"killed{number}" for number in itertools.count())
    study_dir = next(folders)
    began = time.time()
    assert study(gin, whole).wait() == 0
    typical = {stage: entry["seconds"] for stage, entry in status(runs(whole)["relative"]).items()}
    typical["datagen"] = time.time() - began - sum(
        entry["seconds"] for name in ARMS for entry in status(runs(whole)[name]).values())

    dice = random.Random(20)
    passes = set(dice.sample(range(KILLS), LET_PASS))
    killed, seen, process = [], {}, None

    def ended():
        """What must hold of a study that came to its end in spite of it all."""
        for run, stages in seen.items():
            for stage, entry in stages.items():
                assert status(runs(study_dir)[run])[stage] == entry, "a finished stage ran again"
        for name in ARMS:
            for file in ("hypotheses.test.txt", "config.gin"):
                assert (runs(study_dir)[name] / file).read_bytes() == (
                    runs(whole)[name] / file).read_bytes()
            assert last_checksums(runs(study_dir)[name]) == last_checksums(runs(whole)[name])
        assert names(study_dir) == names(whole)
        assert results(study_dir) == results(whole)

    while len(killed) < KILLS:
        if process is not None and process.poll() == 0:   # the dice missed: another one
            ended()
            print(f"{len(killed)} kills so far, {study_dir.name} is as the undisturbed study",
                  flush=True)
            study_dir, seen, process = next(folders), {}, None
        if process is None or process.poll() is not None:
            assert process is None or process.returncode in (1, -signal.SIGKILL)
            assert "failed" not in stage_states(study_dir), "a killed stage counts as failed"
            nothing_outlives_it()
            process = study(gin, study_dir)
        if len(killed) in passes:                     # lets a stage end first
            before = sum(map(len, finished(study_dir).values())) if seen else 0
            while process.poll() is None and (study_dir / "study.json").exists() and (
                    sum(map(len, finished(study_dir).values())) <= before):
                time.sleep(0.05)
            passes.discard(len(killed))
            continue
        name = kill_one(process, dice, typical, killed)
        if name is None:
            process.wait()
            continue
        killed.append(name)
        if name == "study":
            process.wait()
        for run, stages in (finished(study_dir) if (study_dir / "study.json").exists()
                            else {}).items():
            seen.setdefault(run, {}).update(stages)
    if process.poll() is None:
        process.kill()
    assert study(gin, study_dir).wait() == 0
    print("killed:", killed)
    ended()
