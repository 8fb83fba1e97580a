"""The registered sets against the papers: every setting, and parameters counted from the graph."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.utils import learning_rate, registry

from rpr.models import seq2seq, transformer

VOCABULARY = 32768
# Shaw et al. 2018, sections 4.1 to 4.3 and tables 1 to 3, and Vaswani et al. 2017.
SHARED = dict(
    num_hidden_layers=6, num_encoder_layers=0, num_decoder_layers=0, attention_key_channels=0,
    attention_value_channels=0, layer_preprocess_sequence="none",
    layer_postprocess_sequence="dan", attention_dropout=0.0, relu_dropout=0.0, label_smoothing=0.1,
    shared_embedding_and_softmax_weights=True, optimizer_adam_beta1=0.9, optimizer_adam_beta2=0.98,
    optimizer_adam_epsilon=1e-9, learning_rate_warmup_steps=4000, weight_decay=0.0,
    clip_grad_norm=0.0, batch_size=4096, pos="none", self_attention_type="dot_product",
    relative_keys=True, relative_values=True, position="relative")
BASE = dict(SHARED, hidden_size=512, num_heads=8, filter_size=1024, max_relative_position=16,
            heads_share_relative_embedding=False, layer_prepostprocess_dropout=0.1)
BIG_ENDE = dict(SHARED, hidden_size=1024, num_heads=16, filter_size=4096, max_relative_position=8,
                heads_share_relative_embedding=True, layer_prepostprocess_dropout=0.3)
BIG_ENFR = dict(BIG_ENDE, layer_prepostprocess_dropout=0.1)
SETS = {
    "rpr_base": BASE,
    "rpr_base_absolute": dict(BASE, position="sinusoid"),
    "rpr_base_relative_and_absolute": dict(BASE, position="relative+sinusoid"),
    **{f"rpr_base_k{k}": dict(BASE, max_relative_position=k) for k in (0, 1, 2, 4, 16, 64, 256)},
    "rpr_base_keys_only": dict(BASE, relative_values=False),
    "rpr_base_values_only": dict(BASE, relative_keys=False),
    "rpr_base_no_relations": dict(BASE, relative_keys=False, relative_values=False),
    "rpr_big_ende": BIG_ENDE,
    "rpr_big_ende_absolute": dict(BIG_ENDE, position="sinusoid"),
    "rpr_big_enfr": BIG_ENFR,
    "rpr_big_enfr_absolute": dict(BIG_ENFR, position="sinusoid"),
}
LAPTOP = ("rpr_small", "rpr_tiny", "rpr_multi30k")


@pytest.mark.parametrize("name", SETS)
def test_every_setting_is_the_papers(name):
    values = registry.hparams(name).values()
    assert {key: values[key] for key in SETS[name]} == SETS[name]


@pytest.mark.parametrize("name", ["rpr_base", "rpr_big_ende"])
def test_the_learning_rate_is_vaswanis(name):
    """Section 5.3: d^-0.5 min(step^-0.5, step warmup^-1.5), counted from 1."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        values = registry.hparams(name)
        rate = learning_rate.learning_rate_schedule(values)
        session.run(tf.global_variables_initializer())
        for at in (1, 100, 4000, 4001, 100000):
            step.load(at - 1, session)
            expected = values.hidden_size ** -0.5 * min(at ** -0.5, at * 4000 ** -1.5)
            assert session.run(rate) == pytest.approx(expected, rel=1e-5)


def test_no_set_is_missing_or_untested():
    ours = {name for name in registry.list_hparams() if name.startswith("rpr_")}
    assert ours == {*SETS, *LAPTOP, *(f"{name}_absolute" for name in LAPTOP)}
    functions = registry.Registries.hparams._registry
    descriptions = [functions[name].__doc__.splitlines()[0] for name in ours]
    assert all(len(line) > 20 for line in descriptions) and len({*descriptions}) == len(ours)


@pytest.mark.parametrize("name", ["rpr_base", "rpr_big_ende", "rpr_big_enfr", *LAPTOP])
def test_absolute_and_relative_differ_in_position_alone(name):
    relative, absolute = (registry.hparams(n).values() for n in (name, f"{name}_absolute"))
    assert {key for key in relative if relative[key] != absolute[key]} == {"position"}
    assert (relative["position"], absolute["position"]) == ("relative", "sinusoid")


def parameters(hparams):
    """Counted by hand from Vaswani et al. 2017, section 3, and Shaw et al. 2018, section 3.2."""
    d, f, n = hparams.hidden_size, hparams.filter_size, hparams.num_hidden_layers
    projections, norm, feed_forward = 4 * d * d, 2 * d, d * f + f + f * d + d
    encoder = n * (projections + feed_forward + 2 * norm)
    decoder = n * (2 * projections + feed_forward + 3 * norm)
    last_norms = 2 * norm if hparams.layer_preprocess_sequence == "n" else 0
    embedding, target_space = VOCABULARY * d, 32 * d         # T2T has an embedding of the problem
    tables = 0
    if "learned" in hparams.position.split("+"):
        tables += 2 * hparams.max_length * d
    if "relative" in hparams.position.split("+"):
        table = (2 * hparams.max_relative_position + 1) * d // hparams.num_heads
        heads = 1 if hparams.heads_share_relative_embedding else hparams.num_heads
        tables += 2 * n * heads * table * (hparams.relative_keys + hparams.relative_values)
    return embedding + target_space + encoder + decoder + last_norms + tables


def counted(hparams):
    """Counted from the graph."""
    with tf.Graph().as_default():
        model = tiny_models.make(hparams, "eval", vocabulary=VOCABULARY)
        ids = tf.zeros([2, 3, 1, 1], tf.int32)
        model({"inputs": ids, "targets": ids, "target_space_id": tf.constant(1)})
        return sum(np.prod(v.shape.as_list()) for v in tf.trainable_variables())


@pytest.mark.parametrize("name", [
    "rpr_base", "rpr_base_absolute", "rpr_base_relative_and_absolute", "rpr_base_k0",
    "rpr_base_keys_only", "rpr_base_values_only", "rpr_base_no_relations", "rpr_big_ende",
    "rpr_big_ende_absolute", *LAPTOP])
def test_parameters_of_the_graph(name):
    """All layers of one set. One of the others: their layers are alike, as many as SETS says."""
    hparams = registry.hparams(name)
    if name != "rpr_small":
        hparams.num_hidden_layers = 1
    assert counted(hparams) == parameters(hparams)


def test_the_papers_models_are_as_large_as_its_authors_say():
    """Vaswani et al. 2017, table 3: 213 million in the big model, with a vocabulary of 37,000."""
    big = registry.hparams("rpr_big_ende_absolute")
    theirs = parameters(big) + (37000 - VOCABULARY) * big.hidden_size
    assert theirs == pytest.approx(213e6, rel=0.01)


@pytest.mark.parametrize("model, hparams_set, words", [
    (transformer.RprTransformer, "qkv_seq2seq_tiny", "needs an hparams_set of a Transformer"),
    (seq2seq.QkvSeq2seq, "rpr_tiny", "needs an hparams_set such as qkv_seq2seq_base"),
])
def test_the_set_of_another_model_is_refused(model, hparams_set, words):
    with pytest.raises(ValueError, match=words):
        model.check_hparams(registry.hparams(hparams_set))
