"""Datagen that is killed, repeated, or finds foreign data; what check_data refuses."""
import glob
import json
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import time

import pytest
import tensorflow.compat.v1 as tf
from conftest import rpr_command, without_text
from tensor2tensor.utils import registry

import rpr.problems  # noqa: F401
from rpr.problems import checks, datagen
from rpr.utils.errors import UserError

NAME = "translate_text_files"


@pytest.fixture(scope="module", autouse=True)
def environment(text, tmp_path_factory):
    """Other text. `text` comes first: its variables must be set again afterwards."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        without_text(patch)
        patch.setenv("RPR_TEXT_VOCAB_SIZE", "150")
        for side, word in (("SOURCE", "sentence number"), ("TARGET", "Satz Nummer")):
            path = folder / side
            path.write_text("".join(f"{word} {number}\n" for number in range(400)))
            patch.setenv(f"RPR_TEXT_{side}", str(path))
        yield


def generate(data_dir):
    problem = registry.problem(NAME)
    problem.generate_data(str(data_dir), str(data_dir) + ".tmp")
    return problem


def content(data_dir):
    """{name: bytes} of all files but locks and logs."""
    return {path.name: path.read_bytes() for path in pathlib.Path(data_dir).iterdir()
            if not path.name.endswith((".lock", ".log"))}


@pytest.fixture(scope="module")
def undisturbed(environment, tmp_path_factory):
    data_dir = tmp_path_factory.mktemp("undisturbed") / "data"
    generate(data_dir)
    return data_dir


@pytest.fixture
def made(undisturbed, tmp_path):
    """A copy of finished data, to be damaged."""
    return registry.problem(NAME), shutil.copytree(undisturbed, tmp_path / "data")


COMMAND = ("import rpr.t2t.compat; rpr.t2t.compat.install(); import problems, sys; "
           "from tensor2tensor.utils import registry; "
           f"registry.problem('{NAME}').generate_data(sys.argv[1], sys.argv[1] + '.tmp')")


def start(data_dir, seed):
    return subprocess.Popen([sys.executable, "-c", COMMAND, str(data_dir)],
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                            env={**os.environ, "PYTHONHASHSEED": str(seed)})


def test_two_at_once_make_the_same_bytes_as_one(undisturbed, tmp_path):
    both = [start(tmp_path / "data", seed) for seed in (1, 2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert content(tmp_path / "data") == content(undisturbed)


def test_a_real_kill_9(undisturbed, tmp_path):
    data_dir = tmp_path / "data"
    process = start(data_dir, 3)
    staging = data_dir / f".{NAME}.datagen"
    deadline = time.time() + 120
    while not staging.exists() and time.time() < deadline and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL and staging.exists()
    with pytest.raises(UserError, match="datagen did not finish there"):
        checks.check_data(registry.problem(NAME), str(data_dir), ["train"])
    generate(data_dir)
    assert content(data_dir) == content(undisturbed)


def test_data_that_cannot_be_made_leaves_no_files_behind(environment, tmp_path, monkeypatch):
    def fails(*_):
        raise UserError("no samples")

    with monkeypatch.context() as patch, pytest.raises(UserError, match="no samples"):
        patch.setattr(type(registry.problem(NAME)), "generate_samples", fails)
        generate(tmp_path / "data")
    assert content(tmp_path / "data") == {}


class Killed(BaseException):
    pass


def generate_killed(data_dir, survives):
    """Dies when so many files have moved into place."""
    calls, replace = [], os.replace

    def dying_replace(*paths):
        if os.path.dirname(paths[1]) == str(data_dir):
            calls.append(paths)
            if len(calls) > survives:
                raise Killed
        replace(*paths)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(os, "replace", dying_replace)
        generate(data_dir)


def test_text_that_changes_after_a_kill_does_not_meet_the_old_vocabulary(tmp_path, monkeypatch):
    generate_killed(tmp_path / "data", 17)            # all but the record
    other = tmp_path / "other"
    other.write_text("".join(f"another sentence {number}\n" for number in range(400)))
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(other))
    with pytest.raises(UserError, match="train source changed"):
        generate(tmp_path / "data")


@pytest.mark.parametrize("survives", range(0, 18, 6))
def test_a_kill_while_files_move_into_place(undisturbed, tmp_path, survives):
    generate_killed(tmp_path / "data", survives)
    with pytest.raises(UserError, match="did not finish"):
        checks.check_data(registry.problem(NAME), str(tmp_path / "data"), ["train"])
    generate(tmp_path / "data")
    assert content(tmp_path / "data") == content(undisturbed)


def test_finished_data_is_not_made_again(made, monkeypatch):
    problem, data_dir = made
    monkeypatch.setattr(datagen, "_generate", lambda *_: pytest.fail("made again"))
    staging = checks.staging_path(problem, str(data_dir))
    os.mkdir(staging)                                 # killed after it had moved the record
    problem.generate_data(str(data_dir), str(data_dir) + ".tmp")
    assert not os.path.exists(staging)


def test_other_text_or_settings_are_refused(made, monkeypatch, tmp_path):
    problem, data_dir = made
    before = content(data_dir)
    monkeypatch.setenv("RPR_TEXT_VOCAB_SIZE", "160")
    with pytest.raises(UserError, match="approx_vocab_size was 150, now it is 160"):
        generate(data_dir)
    monkeypatch.setenv("RPR_TEXT_VOCAB_SIZE", "150")
    other = tmp_path / "other"
    other.write_text("".join(f"another sentence {number}\n" for number in range(400)))
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(other))
    with pytest.raises(UserError, match="train source changed"):
        generate(data_dir)
    path = pathlib.Path(data_dir, f"{problem.dataset_filename()}.datagen.json")
    record = json.loads(path.read_text())
    record["sources"] = {**problem.sources(str(tmp_path)), "dev source": "0" * 64}
    path.write_text(json.dumps(record))               # made with a development set of its own
    with pytest.raises(UserError, match=r"\(dev source is missing\)"):
        generate(data_dir)
    path.write_bytes(before[path.name])
    assert content(data_dir) == before


def test_data_of_characters_does_not_depend_on_a_number_of_sub_words(tmp_path, monkeypatch):
    problem = registry.problem("lm_text_files_characters")
    problem.generate_data(str(tmp_path), str(tmp_path))
    path = tmp_path / f"{problem.name}.datagen.json"
    record = json.loads(path.read_text())
    assert "approx_vocab_size" not in record["settings"]
    record["settings"]["approx_vocab_size"] = 8192    # as it was recorded once
    path.write_text(json.dumps(record))
    monkeypatch.setenv("RPR_TEXT_VOCAB_SIZE", "many")
    problem.generate_data(str(tmp_path), str(tmp_path))


@pytest.mark.parametrize("suffix", ["", "_rev"])
def test_sources_of_a_given_set_that_are_in_the_training_text_are_counted(
        tmp_path, monkeypatch, capsys, suffix):
    side, other = ("SOURCE", "TARGET") if not suffix else ("TARGET", "SOURCE")
    words = {"SOURCE": "sentence number", "TARGET": "Satz Nummer"}[side]
    lines = [f"{words} 7", "not there", f"{words} 7", f"{words} 399"]
    (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    (tmp_path / other).write_text("sentence number 1\nSatz Nummer 1\nneither\nneither\n")
    for name in (side, other):
        monkeypatch.setenv(f"RPR_TEXT_TEST_{name}", str(tmp_path / name))
    registry.problem(NAME + suffix).generate_data(str(tmp_path / "data"), str(tmp_path / "tmp"))
    said = [line for line in capsys.readouterr().err.splitlines() if "training text" in line]
    assert said == [f"{NAME}: the training text has 3 of the 4 sources of the test split"]


def test_a_read_only_place_gets_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for place, says in (("file/data", "cannot be created: Not a directory$"),
                        ("link", "is a link to a directory that does not exist$")):
        with pytest.raises(UserError, match=says) as caught:
            generate(tmp_path / place)
        assert "\n" not in str(caught.value)


def test_what_has_to_be_mended_first_is_said(tmp_path):
    (tmp_path / f".{NAME}.datagen.lock").mkdir()
    with pytest.raises(UserError, match="Is a directory.*; once that is mended, the same command"):
        generate(tmp_path)


def test_finished_data_may_lie_where_one_cannot_write(made, monkeypatch):
    problem, data_dir = made
    for lock in data_dir.glob(".*.lock"):
        lock.unlink()
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: (
        path != str(data_dir) and access(path, mode)))
    before = set(os.listdir(data_dir))
    problem.generate_data(str(data_dir), str(data_dir) + ".new")
    assert set(os.listdir(data_dir)) == before and not os.path.exists(f"{data_dir}.new")


# check_data, on data with a record.

def shard(data_dir, split="train"):
    return sorted(data_dir.glob(f"{NAME}-{split}-*"))[0]


def cut(path):
    os.truncate(path, path.stat().st_size - 5)


@pytest.mark.parametrize(("damage", "says"), [
    (lambda d: cut(shard(d)), r"train-00000-of-00010 is damaged: .* bytes, .* were written"),
    (lambda d: shard(d, "dev").write_bytes(b""), "dev-00000-of-00001 is damaged: 0 bytes"),
    (lambda d: shard(d).unlink(), "train-00000-of-00010 is missing"),
    (lambda d: (d / f"vocab.{NAME}.subwords").unlink(), "the vocabulary vocab.* is missing"),
    (lambda d: cut(d / f"vocab.{NAME}.subwords"), "is not the vocabulary that the data"),
    (lambda d: (d / f"{NAME}.datagen.json").write_text("{"), r"datagen\.json is damaged"),
    (lambda d: (d / f"{NAME}.test.source.txt").unlink(), "test.source.txt is missing since"),
    (lambda d: cut(d / f"{NAME}.dev.reference.txt"), "dev.reference.txt has changed since the"),
    (lambda d: shutil.rmtree(d), "no such directory"),
])
@pytest.mark.parametrize("verb", ["check", "datagen"])
def test_damage_is_found(made, damage, says, verb):
    problem, data_dir = made
    checks.check_data(problem, str(data_dir), ["train", "dev", "test"])
    damage(data_dir)
    if verb == "datagen" and "no such directory" in says:
        problem.generate_data(str(data_dir), str(data_dir) + ".tmp")
        checks.check_data(problem, str(data_dir), ["train", "dev", "test"])
        return
    if verb == "check" and "since" in says:           # training reads no text
        checks.check_data(problem, str(data_dir), ["train", "dev"])
        return
    with pytest.raises(UserError, match=says) as caught:
        if verb == "datagen":
            problem.generate_data(str(data_dir), str(data_dir) + ".tmp")
        else:
            checks.check_data(problem, str(data_dir), ["train", "dev"])
    assert "\n" not in str(caught.value)


def test_records_without_texts_are_valid(made):
    problem, data_dir = made
    path = data_dir / f"{NAME}.datagen.json"
    record = json.loads(path.read_text())
    assert set(record.pop("texts")) == {f"{NAME}.{split}.{kind}.txt" for split in ("dev", "test")
                                        for kind in ("source", "reference")}
    path.write_text(json.dumps(record))
    (data_dir / f"{NAME}.test.source.txt").unlink()
    problem.generate_data(str(data_dir), str(data_dir) + ".tmp")


def test_only_what_is_asked_for_is_needed(made):
    problem, data_dir = made
    shard(data_dir).unlink()
    checks.check_data(problem, str(data_dir), ["dev", "test"])
    checks.check_data(problem, str(data_dir), [])
    with pytest.raises(UserError, match="missing"):
        checks.check_data(problem, str(data_dir), ["train"])


def test_records_are_counted_by_their_frames(made):
    _, data_dir = made
    path = str(shard(data_dir))
    assert checks.count_records(path) == sum(1 for _ in tf.io.tf_record_iterator(path)) > 20
    with open(path, "ab") as out:
        out.write(struct.pack("<Q", 10**12) + b"0000")
    with pytest.raises(UserError, match="cut off"):
        checks.count_records(path)


class Packed(type(registry.problem(NAME))):
    """Several sentences an example, as T2T packs them."""

    name = "packed"
    packed_length = 40


def test_examples_can_be_packed(made, tmp_path):
    problem, data_dir = made
    packed = Packed()
    packed.generate_data(str(tmp_path / "packed"), str(tmp_path / "tmp"))
    checks.check_data(packed, str(tmp_path / "packed"), checks.SPLITS)

    def tokens(problem, data_dir):
        for path in glob.glob(problem.filepattern(str(data_dir), checks.SPLITS["train"])):
            for record in tf.io.tf_record_iterator(path):
                yield list(tf.train.Example.FromString(record).features.feature["targets"]
                           .int64_list.value)

    plain, together = list(tokens(problem, data_dir)), list(tokens(packed, tmp_path / "packed"))
    assert sorted(sum(together, [])) == sorted(sum(plain, []))
    assert len(together) < len(plain) / 2 and max(map(len, together)) <= 40


# A vocabulary that lies there before.

def test_a_given_vocabulary_is_used_if_it_is_whole(undisturbed, tmp_path):
    name = f"vocab.{NAME}.subwords"
    (tmp_path / "data").mkdir()
    given = (undisturbed / name).read_bytes() + b"'Nummer_'\n'sentence_'\n"
    (tmp_path / "data" / name).write_bytes(given)
    problem = generate(tmp_path / "data")
    assert (tmp_path / "data" / name).read_bytes() == given
    checks.check_data(problem, str(tmp_path / "data"), checks.SPLITS)


@pytest.mark.parametrize("keep", [0, 10, 0.95])
def test_a_cut_vocabulary_is_not_used(undisturbed, tmp_path, keep):
    name = f"vocab.{NAME}.subwords"
    (tmp_path / "data").mkdir()
    whole = (undisturbed / name).read_bytes()
    size = keep if isinstance(keep, int) else int(keep * len(whole))
    (tmp_path / "data" / name).write_bytes(whole[:size])
    with pytest.raises(UserError, match="vocabulary is (empty|cut off)"):
        generate(tmp_path / "data")
    assert not glob.glob(str(tmp_path / "data" / f"{NAME}-*"))


# Through the command line.

def test_the_command_ends_with_what_it_made_and_where(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for _ in range(2):                                # generated, then found
        done = rpr_command("datagen", "--problem=toy_reverse_repeats_5_rev",
                           f"--data_dir={tmp_path}/made")
        assert done.stderr.splitlines()[-1] == (
            "toy_reverse_repeats_5: 5,000 training, 500 development, 1,000 test examples in "
            f"{tmp_path}/made")
        assert "tensor2tensor" not in done.stderr
    assert (tmp_path / "cache" / "rpr").is_dir()      # and not a directory that all users share
