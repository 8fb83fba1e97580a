"""A model trained in half precision goes through every command, in either precision."""
import gpu_kernels
import numpy as np
import pytest
from conftest import refused, rpr_command, train

from rpr.inference import inspector
from rpr.t2t import registration, trained_model
from rpr.utils.interfaces import ModelRequest


@pytest.fixture(scope="module")
def half(text, tmp_path_factory):
    """A tiny model trained with bfloat16 activations for 20 steps, evaluated at the end."""
    output_dir = tmp_path_factory.mktemp("half") / "model"
    train(text, output_dir, "--hparams=activation_dtype=bfloat16,num_hidden_layers=1",
          "--schedule=continuous_train_and_eval", "--eval_steps=1")
    return output_dir


def flags_of(text, output_dir):
    return [*text.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
            f"--output_dir={output_dir}"]


def test_it_is_averaged_decoded_and_evaluated(text, half, trained, tmp_path):
    rpr_command("average", f"--model_dir={half}", f"--output_dir={tmp_path}/averaged", "--n=2")
    for name, model in (
            ("average", [*flags_of(text, half),
                         f"--checkpoint_path={tmp_path}/averaged/model.ckpt-20"]),
            ("ensemble", [f"--ensemble={half},{trained.output_dir}",
                          f"--data_dir={text.data_dir}"])):
        rpr_command("decode", *model, f"--decode_from_file={text.folder}/test.en",
                    f"--decode_to_file={tmp_path}/{name}")
        assert len((tmp_path / name).read_text(encoding="utf-8").splitlines()) == 12
    evaluated = rpr_command("evaluate", *flags_of(text, half), "--eval_steps=1")
    assert "neg_log_perplexity" in evaluated.stdout


@pytest.mark.parametrize("dtype", ["", "float16"])
def test_it_is_inspected(text, half, dtype):
    registration.register()
    model = inspector.Inspector(trained_model.find_trained_model(ModelRequest(
        model="rpr_transformer", problem=text.problem, hparams_set="rpr_tiny",
        hparams=dtype and f"activation_dtype={dtype}", data_dir=str(text.data_dir),
        output_dir=str(half))), beam_size=2, extra_length=3)
    source = model.encode("Click the button.")
    translation = model.translate("Click the button.")
    weights = model.attention([source], [translation.ids])
    assert np.isfinite(translation.score)
    for kind in weights:                                     # encoder, decoder, cross
        assert kind.dtype == np.float32
        np.testing.assert_allclose(kind.sum(axis=-1), 1, atol=0.02)


def test_training_and_evaluation_have_gpu_kernels(half):
    assert gpu_kernels.lacking_in(half) == gpu_kernels.lacking_in(half / "eval") == []


def test_training_goes_on_only_in_its_own_precision(text, half):
    line = refused("train", *flags_of(text, half), "--train_steps=30")
    assert "activation_dtype=float32 (there: bfloat16)" in line
