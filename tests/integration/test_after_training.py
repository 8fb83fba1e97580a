"""What changes after training, or may not: settings in decoding, schemes, the file of records."""
import json
import re

import pytest
from conftest import refused, rpr_command, train

from rpr.cli.train import _metrics_file
from rpr.utils.errors import UserError


@pytest.fixture(scope="module")
def started(trained, tmp_path_factory):
    """A model with rotary positions that starts from the trained model, which has relative ones."""
    output_dir = tmp_path_factory.mktemp("started") / "model"
    made = train(trained.text, output_dir, f"--warm_start_from={trained.output_dir}",
                 "--hparams=position=rotary+t5_bias,t5_num_buckets=8", steps=1)
    return trained.text, output_dir, made.stderr


def loss(text, output_dir, tmp_path, *more):
    path = tmp_path / "json"
    rpr_command("evaluate", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
                f"--output_dir={output_dir}", "--eval_steps=1", f"--json={path}", *more)
    return json.loads(path.read_text())["loss"]


def test_a_warm_start_with_another_scheme_names_the_new_variables(started):
    _, _, errors = started
    assert re.search(r"2 variables are not in .*model.ckpt-20 and start anew: "
                     r"transformer/body/encoder/layer_0/.*t5_bias/embeddings", errors)


def test_a_resumed_training_names_what_it_does_not_do(started, trained):
    text, output_dir, _ = started
    made = train(text, output_dir, f"--warm_start_from={trained.output_dir}",
                 "--hparams=position=rotary+t5_bias,t5_num_buckets=8", "--stop_at_step=1", steps=2)
    assert re.search("resuming from .*model.ckpt-1; --warm_start_from", made.stderr)
    assert re.search("nothing is trained, as .*model.ckpt-1 has reached --stop_at_step=1",
                     made.stderr)


def test_evaluation_and_decoding_take_settings_that_may_change_after_training(started, tmp_path):
    text, output_dir, _ = started
    plain = loss(text, output_dir, tmp_path)
    assert loss(text, output_dir, tmp_path, "--hparams=rotary_base=20.0") != plain
    assert "other hparams: requested t5_num_buckets=16 (there: 8)" in refused(
        "evaluate", *text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
        f"--output_dir={output_dir}", "--hparams=t5_num_buckets=16")


def test_a_model_of_a_t2t_set_is_trained_on(trained, tmp_path):
    flags = ["--hparams_set=transformer_relative_tiny", "--hparams=hidden_size=32,filter_size=32"]
    train(trained.text, tmp_path / "model", *flags, steps=1)
    made = train(trained.text, tmp_path / "more", *flags,
                 f"--warm_start_from={tmp_path}/model", steps=1)
    assert (tmp_path / "more" / "model.ckpt-1.index").exists()
    assert "start anew" not in made.stderr


def test_a_training_keeps_its_records_in_one_file(tmp_path):
    model, named, other = (str(tmp_path / name) for name in ("model", "a.jsonl", "b.jsonl"))
    (tmp_path / "model").mkdir()
    (tmp_path / "b.jsonl").write_text('{"event": "train", "step": 10, "loss": 5.5}\n')
    assert _metrics_file(named, model) == named
    with pytest.raises(UserError, match="b.jsonl: holds the records of another training"):
        _metrics_file(other, model)
    (tmp_path / "model" / "rpr.json").write_text("{}")         # of an older training
    assert _metrics_file(named, model) == named
    (tmp_path / "model" / "rpr.json").write_text('{"metrics_file": "../a.jsonl"}')
    assert _metrics_file(named, model) == named
    (tmp_path / "a.jsonl").touch()
    for given in (other, None):
        with pytest.raises(UserError, match="the records of this training are in .*/a.jsonl$"):
            _metrics_file(given, model)
    assert _metrics_file(named, model) == named
