"""Model FLOPs by formula: those of the products of a step, in metrics.jsonl and against a peak."""
import math

import numpy as np
import pytest
import step_trace
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.utils import registry

from rpr.training import hooks, model_flops, seeding
from rpr.training.input_pipeline import BATCH_NUMBER

SENTENCES, SOURCE, TARGET = 3, 7, 5


def described(model="rpr_transformer", source=True, **overrides):
    """Hparams with a problem of symbols, as a training has them."""
    values = tiny_models.hparams("rpr_tiny_absolute", use_pad_remover=False, **overrides)
    if model == "transformer":
        values.pos = "timing"
    values.problem_hparams = problem_hparams.test_problem_hparams(
        tiny_models.VOCABULARY, tiny_models.VOCABULARY, values)
    if not source:
        del values.problem_hparams.modality["inputs"], values.problem_hparams.vocab_size["inputs"]
    return values


def counted(model, values):
    """FLOPs of the matrix products of a training step without padding, as TensorFlow runs it."""
    random, sides = np.random.RandomState(0), {"inputs": SOURCE, "targets": TARGET}
    with tf.Graph().as_default(), tf.Session() as session:
        features = {side: tf.constant(random.randint(2, tiny_models.VOCABULARY, [
            SENTENCES, length, 1, 1]), tf.int32) for side, length in sides.items()
            if side in values.problem_hparams.modality}
        cls = tiny_models.t2t_transformer.Transformer if model == "transformer" else (
            registry.model(model))
        _, losses = cls(values, "train", values.problem_hparams)(
            {**features, "target_space_id": tf.constant(1)})
        gradients = [gradient for gradient in tf.gradients(
            losses["training"], tf.trainable_variables()) if gradient is not None]
        session.run(tf.global_variables_initializer())
        return step_trace.product_flops(step_trace.trace(session, gradients))


# By hand, in multiplications: positions times weights, and pairs of positions times channels. The
# width is 32, that of the feed-forward layers 64. In the narrow layers keys have 16 channels.
LAYER = {length: length * (2 * 32 * (32 + 32) + 2 * 32 * 64) + length ** 2 * (32 + 32)
         for length in (SOURCE, TARGET, SOURCE + TARGET)}
NARROW = {length: length * (2 * 32 * (16 + 32) + 2 * 32 * 64) + length ** 2 * (16 + 32)
          for length in (SOURCE, TARGET)}
CROSS = TARGET * 2 * 32 * 32 + SOURCE * 2 * 32 * 32 + SOURCE * TARGET * (32 + 32)
NARROW_CROSS = (TARGET + SOURCE) * 32 * (16 + 32) + SOURCE * TARGET * (16 + 32)


@pytest.mark.parametrize("model, layers, changes", [
    ("rpr_transformer", 2 * LAYER[SOURCE] + 2 * (LAYER[TARGET] + CROSS), {}),
    ("transformer", 2 * LAYER[SOURCE] + 2 * (LAYER[TARGET] + CROSS), {}),
    ("rpr_transformer", NARROW[SOURCE] + 3 * (NARROW[TARGET] + NARROW_CROSS), {
        "num_encoder_layers": 1, "num_decoder_layers": 3, "attention_key_channels": 16}),
    ("rpr_transformer", 2 * LAYER[TARGET], {"source": False}),
    ("rpr_transformer", 2 * LAYER[SOURCE], {"answer_symbol": 2}),
    ("rpr_transformer", 2 * LAYER[SOURCE + TARGET], {"decoder_only": True})],
    ids=["encoder-decoder", "t2t", "layers and channels", "decoder", "encoder", "one sequence"])
def test_the_formula_counts_the_products_of_a_step(model, layers, changes):
    values = described(model, **changes)
    flops = model_flops.of_batches(model, values)(SENTENCES, SOURCE, TARGET)
    symbols = tiny_models.VOCABULARY + -tiny_models.VOCABULARY % values.vocab_divisor
    assert flops == 6 * SENTENCES * (layers + TARGET * symbols * 32)
    # The loss of rpr_transformer has one row more than there are words.
    extra = 6 * symbols * 32 if model == "rpr_transformer" else 0
    assert counted(model, values) == flops + extra


@pytest.mark.parametrize("model, changes", [
    ("qkv_seq2seq", {}), ("lstm_seq2seq", {}), ("transformer", {"answer_symbol": 2}),
    ("transformer", {"ffn_layer": "sru"})])
def test_it_applies_to_no_other_model(model, changes):
    assert model_flops.of_batches(model, described(**changes)) is None


def test_images_have_no_model_flops():
    values = described()
    values.problem_hparams.modality["inputs"] = "image"
    assert model_flops.of_batches("rpr_transformer", values) is None


@pytest.fixture
def gpu(monkeypatch):
    """A function that makes TensorFlow tell of GPUs with a name."""
    def tell(name, count=1):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["gpu"] * count)
        monkeypatch.setattr(tf.config.experimental, "get_device_details",
                            lambda device: {"device_name": name})
    return tell


@pytest.mark.parametrize("name, teraflops", [
    ("NVIDIA H100 80GB HBM3", 495), ("NVIDIA H100 PCIe", 378), ("NVIDIA A100-SXM4-40GB", 156),
    ("NVIDIA H200 NVL", None), ("NVIDIA L4", 60), ("NVIDIA L40S", None), ("", None),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None)])
def test_a_card_is_known_by_its_name(gpu, name, teraflops):
    gpu(name)
    assert model_flops.dense_peak(False) == (teraflops and teraflops * 1e12)


def test_the_peak_is_that_of_all_gpus_in_the_precision_of_the_training(gpu):
    assert model_flops.peak_of(described(), 2) is None                # no GPU here
    gpu("NVIDIA H200", 2)
    assert model_flops.peak_of(described(), 2) == 2 * 495e12
    assert model_flops.peak_of(described(activation_dtype="bfloat16"), 1) == 989e12
    assert model_flops.peak_of(described(gpu_automatic_mixed_precision=True), 1) == 989e12
    assert model_flops.peak_of(described(), 0) is None                # GPUs that are not used


@pytest.mark.parametrize("peak", [None, 5e6])
def test_an_event_has_the_flops_of_all_batches_and_their_share_of_the_peak(tmp_path, peak):
    shapes = [(2, 7, 5), (4, 3, 6)]
    with tf.Graph().as_default(), tf.Session() as session:
        features = {side: tf.placeholder(tf.int32, [None, None, 1, 1])
                    for side in ("inputs", "targets")}
        model = seeding.seeded(lambda features, **kwargs: features["targets"], 1)
        for _ in range(2):                                            # two devices
            model({**features, BATCH_NUMBER: tf.constant(0, tf.int64)}, None, "train", {}, None)
        counter = hooks.Throughput(str(tmp_path), lambda *shape: 10 ** 6 * math.prod(shape), peak)
        for sentences, *lengths in shapes:
            counter.add(session.run(counter.fetches, {
                features[side]: np.ones([sentences, length, 1, 1], np.int32)
                for side, length in zip(features, lengths, strict=True)}))
        found = counter.report(10, 4.0)
        assert "model_tflops" not in counter.report(20, 1.0)
    rate = 2 * 1e6 * (2 * 7 * 5 + 4 * 3 * 6) / 4
    assert found["model_tflops"] == pytest.approx(rate / 1e12, abs=1e-6)
    assert found.get("mfu") == (peak and pytest.approx(rate / peak, abs=1e-4))


def test_a_batch_of_a_language_model_has_no_source(tmp_path):
    seen = []
    with tf.Graph().as_default(), tf.Session() as session:
        model = seeding.seeded(lambda features, **kwargs: features["targets"], 1)
        model({"targets": tf.ones([3, 4, 1, 1], tf.int32), BATCH_NUMBER: tf.constant(0, tf.int64)},
              None, "train", {}, None)
        counter = hooks.Throughput(str(tmp_path), lambda *shape: seen.append(shape) or 1)
        counter.add(session.run(counter.fetches))
        assert seen == [(3, 0, 4)]
        assert counter.report(1, 1.0)["padding"] == 0
