"""A full disk and a read-only directory: one line, and nothing corrupted."""
import os
import shutil
import subprocess

import pytest
from conftest import refused, rpr_command, train

from rpr.utils import metrics_log


@pytest.fixture
def disk(tmp_path):
    """A file system of its own, of 1 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
                             capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("mount is not allowed here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def remount(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", disk], check=True)


@pytest.mark.parametrize("argv", [
    ["study", "{gin}/small_table3.gin", "--study_dir={disk}/study"],
    ["run", "{gin}/quickstart_absolute.gin", "--run_dir={disk}/run"],
    ["score", "{gin}/small_table3.gin", "--reference={gin}/small_table3.gin",
     "--json={disk}/scores.json"],
    ["datagen", "--problem=translate_ende_libreoffice", "--data_dir={disk}/d", "--tmp_dir={disk}"],
], ids=lambda argv: argv[0])
def test_a_read_only_directory_is_named_in_one_line(disk, argv, request):
    remount(disk, "ro")
    gin = request.config.rootpath.parent / "gin"
    line = refused(*(arg.format(disk=disk, gin=gin) for arg in argv))
    assert "Read-only file system" in line or "cannot be written" in line
    assert str(disk) in line
    assert os.listdir(disk) == []


def test_a_model_in_a_read_only_directory_is_decoded_and_evaluated(disk, trained, tmp_path):
    remount(disk, "size=60m")
    shutil.copytree(trained.output_dir, disk / "model")
    remount(disk, "ro")
    there = sorted(os.listdir(disk / "model"))
    (tmp_path / "in").write_text("Click the button.\n")
    flags = [*trained.flags, f"--output_dir={disk}/model"]
    decode = ["decode", *flags, f"--input={tmp_path}/in", "--decode_hparams=extra_length=5"]
    rpr_command(*decode, f"--output={tmp_path}/out")
    assert (tmp_path / "out").exists()
    rpr_command(*decode)                              # T2T writes beside the input
    assert list(tmp_path.glob("in.*.decodes"))
    assert "--decode_reference=" in refused(
        *decode, f"--output={tmp_path}/out", f"--decode_reference={tmp_path}/in")
    assert "loss" in rpr_command("evaluate", *flags, "--eval_steps=1").stdout
    assert sorted(os.listdir(disk / "model")) == there


def test_a_training_on_a_full_disk_goes_on_when_there_is_room(disk, text):
    done = train(text, disk / "model", check=False)
    assert done.returncode == 1 and len(done.stderr.strip().splitlines()) == 1
    assert f"{disk}/model" in done.stderr and "No space left on device" in done.stderr
    remount(disk, "size=60m")
    train(text, disk / "model")
    steps = [event["step"] for event in metrics_log.read(str(disk / "model" / "metrics.jsonl"))
             if event["event"] == "train"]
    assert steps == [10, 20]
    rpr_command("average", f"--model_dir={disk}/model", f"--output_dir={disk}/average", "--n=2")
