import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import rpr_command

TRAIN, EVAL, PREDICT = (tf.estimator.ModeKeys.TRAIN, tf.estimator.ModeKeys.EVAL,
                        tf.estimator.ModeKeys.PREDICT)
INPUTS, TARGETS = tiny_models.sentences([6, 3], seed=1), tiny_models.sentences([4, 5], seed=2)
# What a user of stock T2T trains: its set, and what he changes in it. One of them has two layers.
STOCK = {
    "absolute, after each sub-layer": ("transformer_base_v1", {}),
    "relative, before each sub-layer": ("transformer_relative", {"max_relative_position": 3}),
    "relative, after each sub-layer": ("transformer_relative", {
        "max_relative_position": 3, "num_hidden_layers": 2, "layer_preprocess_sequence": "none",
        "layer_postprocess_sequence": "dan"}),
    "learned": ("transformer_base_v1", {"pos": "emb", "max_length": 20}),
}


def stock_hparams(name, overrides):
    return tiny_models.hparams(name, **{
        "num_hidden_layers": 1, "hidden_size": 32, "filter_size": 64, "num_heads": 2,
        "learning_rate_warmup_steps": 10, **overrides})


def logits_of(values, model, checkpoint, inputs=INPUTS, targets=TARGETS):
    """Logits of a checkpoint restored into a fresh graph, and the graph's variables."""
    with tf.Graph().as_default(), tf.Session() as session:
        logits, _ = tiny_models.make(values, EVAL, model)(tiny_models.features(inputs, targets))
        tf.train.Saver().restore(session, checkpoint)
        return session.run(logits), {v.op.name: v.shape.as_list() for v in tf.global_variables()}


@pytest.mark.parametrize("case", STOCK)
def test_a_checkpoint_of_stock_t2t_gives_the_same_logits(case, tmp_path):
    values = stock_hparams(*STOCK[case])
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        model = tiny_models.make(values, TRAIN, "transformer")
        _, losses = model(tiny_models.features(INPUTS, TARGETS))
        train = model.optimize(losses["training"])
        session.run(tf.global_variables_initializer())
        before = session.run(losses["training"])
        for _ in range(20):
            loss, _ = session.run([losses["training"], train])
        assert loss < before                                 # it was really trained
        checkpoint = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        trained = {v.op.name for v in tf.global_variables()}
    stock, stock_variables = logits_of(values, "transformer", checkpoint)
    own, own_variables = logits_of(values, "rpr_transformer", checkpoint)
    np.testing.assert_allclose(own, stock, atol=1e-4)
    assert own_variables == stock_variables and set(own_variables) <= trained


def test_own_hparams_read_a_stock_checkpoint_and_its_training_goes_on(tmp_path):
    """The way through the registered sets, and the optimizer's variables besides."""
    values = tiny_models.hparams(num_hidden_layers=1, max_relative_position=3,
                                 heads_share_relative_embedding=True)
    stock = stock_hparams("transformer_relative", {
        "max_relative_position": 3, "symbol_modality_num_shards": 1})
    names = []
    for hparams, model in ((stock, "transformer"), (values, "rpr_transformer")):
        with tf.Graph().as_default(), tf.Session() as session:
            built = tiny_models.make(hparams, TRAIN, model)
            _, losses = built(tiny_models.features(INPUTS, TARGETS))
            train = built.optimize(losses["training"])
            if model == "transformer":
                session.run(tf.global_variables_initializer())
                checkpoint = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
            else:
                tf.train.Saver().restore(session, checkpoint)
            session.run(train)
            names.append({v.op.name for v in tf.global_variables()})
    assert names[0] == names[1]
    np.testing.assert_allclose(logits_of(values, "rpr_transformer", checkpoint)[0],
                               logits_of(stock, "transformer", checkpoint)[0], atol=1e-4)


def test_a_stock_run_is_decoded_through_the_command_line(text, tmp_path):
    """What a T2T user types: the same set and directory, --model=rpr_transformer, nothing else."""
    (tmp_path / "source").write_text("Click the button.\nSave the file\n", encoding="utf-8")
    flags = [*text.flags, "--hparams_set=transformer_relative_tiny",
             "--hparams=num_hidden_layers=1,hidden_size=32,filter_size=64,num_heads=2,"
             "learning_rate_warmup_steps=5"]
    stock = f"--output_dir={tmp_path}/stock"
    rpr_command(*flags, "--schedule=train", "--train_steps=10", "--model=transformer", stock,
                launcher="t2t-trainer")
    for model in ("transformer", "rpr_transformer"):
        rpr_command("decode", *flags, f"--model={model}", stock, "--decode_hparams=beam_size=2",
                    f"--decode_from_file={tmp_path}/source", f"--decode_to_file={tmp_path}/{model}")
    assert (tmp_path / "transformer").read_text() == (tmp_path / "rpr_transformer").read_text()


def run(values, *batches):
    """Logits of several batches in one lively model, built once for each set of features."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values)
        built = {}
        for batch in batches:
            if tuple(batch) not in built:
                fed = {name: tf.placeholder(tf.int32, [None, None, 1, 1][:value.ndim])
                       for name, value in batch.items()}
                with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
                    logits, _ = model({**fed, "target_space_id": tf.constant(1)})
                built[tuple(batch)] = fed, logits[:, :, 0, 0]
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        results = []
        for batch in batches:
            fed, logits = built[tuple(batch)]
            results.append(session.run(logits, {fed[name]: batch[name] for name in batch}))
        return results


@pytest.mark.parametrize("position", ["none", "learned", "relative+sinusoid"])
def test_padding_and_packing_change_nothing_and_positions_do(position):
    """Packed: two pairs in one row, kept apart by segment, against the two in rows of their own."""
    short = dict(inputs=INPUTS, targets=TARGETS)
    long = dict(inputs=tiny_models.sentences([6, 3], seed=1, padding=4),
                targets=tiny_models.sentences([4, 5], seed=2, padding=2))
    # The same words in another order, but not in reverse: symmetric ALiBi is blind to that.
    turned = dict(inputs=INPUTS[:, [1, 0, *range(2, INPUTS.shape[1])]], targets=TARGETS)
    lengths = ((4, 3), (6, 5))                               # (inputs, targets) of each pair
    alone = dict(inputs=tiny_models.sentences([4, 6], seed=1),
                 targets=tiny_models.sentences([3, 5], seed=2))
    alone["targets"][0, 2] = 0          # a packed sentence begins after the last word before it;
    packed = {}                         # this one is the zero that begins a row
    for side, at in (("inputs", 0), ("targets", 1)):
        rows = [alone[side][i, :lengths[i][at]] for i in range(2)]
        packed[side] = np.concatenate([*rows, np.zeros([1, 1, 1], np.int32)])[None]
        sizes = [len(row) for row in rows] + [1]
        packed[f"{side}_segmentation"] = np.repeat([1, 2, 0], sizes)[None].astype(np.int32)
        packed[f"{side}_position"] = np.concatenate([np.arange(n) for n in sizes])[None].astype(
            np.int32)

    values = tiny_models.hparams(position=position, max_length=20, num_hidden_layers=1)
    plain, padded, reordered, single, together = run(values, short, long, turned, alone, packed)
    np.testing.assert_allclose(padded[:, :5], plain, atol=1e-4)
    if position == "none":
        np.testing.assert_allclose(reordered, plain, atol=1e-4)
    else:
        assert np.abs(reordered - plain).max() > 0.01
    np.testing.assert_allclose(together[0, :3], single[0, :3], atol=1e-4)
    np.testing.assert_allclose(together[0, 3:8], single[1, :5], atol=1e-4)


def test_every_variable_has_a_gradient_with_dropout_on():
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(tiny_models.hparams(
            attention_dropout=0.1, attention_dropout_broadcast_dims="0,1", num_hidden_layers=1),
            TRAIN)
        _, losses = model(tiny_models.features(INPUTS, TARGETS))
        variables = tf.trainable_variables()
        gradients = tf.gradients(losses["training"], variables)
        session.run(tf.global_variables_initializer())
        for variable, gradient in zip(variables, session.run(gradients), strict=True):
            gradient = getattr(gradient, "values", gradient)
            assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, variable.name


@pytest.mark.parametrize("overrides, message", [
    (dict(ffn_layer="conv_relu_conv"), "ffn_layer=conv_relu_conv: .* only dense_relu_dense"),
    (dict(proximity_bias=True), "proximity_bias=True: .* only False"),
    (dict(causal_decoder_self_attention=False), "causal_decoder_self_attention=False"),
    (dict(attention_variables_3d=True), "attention_variables_3d=True"),
    (dict(hard_attention_k=2), "hard_attention_k=2"),
    (dict(num_area_layers=1), "num_area_layers=1"),
    (dict(prepend_mode="prepend_inputs_full_attention"), "prepend_mode=prepend_inputs_full"),
    (dict(self_attention_type="dot_product_relative"), "self_attention_type=dot_product_relative"),
    (dict(pos="timing"), "pos=timing: .* positions are given by the hparam position"),
])
def test_what_t2t_would_honour_and_this_model_cannot_is_refused(overrides, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tiny_models.make(tiny_models.hparams(**overrides))


@pytest.mark.parametrize("overrides, message", [
    (dict(pos="timing_from_features"), "pos=timing_from_features"),
    (dict(self_attention_type="dot_product_relative_v2"), "self_attention_type=dot_product_rel"),
])
def test_a_set_of_t2ts_own_that_has_no_counterpart_is_refused(overrides, message):
    with tf.Graph().as_default(), pytest.raises(ValueError, match=message):
        tiny_models.make(stock_hparams("transformer_base", overrides))


def test_a_model_leaves_the_hparams_it_was_given_alone():
    values = stock_hparams("transformer_relative", {"max_relative_position": 3})
    before = values.values()
    with tf.Graph().as_default():
        model = tiny_models.make(values)
    assert values.values() == before and "position" not in values
    assert model.hparams.position == "relative" and model.hparams.heads_share_relative_embedding


def test_attention_weights_are_kept_for_visualisation_and_never_in_training():
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(tiny_models.hparams(num_hidden_layers=1))
        features = tiny_models.features(INPUTS, TARGETS)
        with tf.variable_scope(tf.get_variable_scope(), reuse=tf.AUTO_REUSE):
            model.set_mode(TRAIN)
            model(features)
            assert not model.attention_weights
            model.set_mode(EVAL)
            model(features)
        session.run(tf.global_variables_initializer())
        weights = session.run(model.attention_weights)
    # The names under which T2T's visualisation looks for them.
    layer = "transformer/body/{}/layer_0/{}/multihead_attention/dot_product_attention"
    for name, shape in ((layer.format("encoder", "self_attention"), (2, 2, 6, 6)),
                        (layer.format("decoder", "self_attention"), (2, 2, 5, 5)),
                        (layer.format("decoder", "encdec_attention"), (2, 2, 5, 6))):
        assert weights[name].shape == weights[name + "/logits"].shape == shape
        np.testing.assert_allclose(weights[name].sum(axis=3), 1, atol=1e-5)
    assert len(weights) == 2 * 3
    assert weights[layer.format("encoder", "self_attention")][1, :, :, 3:].max() == 0


def test_an_evaluation_has_no_slow_operation_of_onednn():
    """Without gradients TensorFlow makes one operation of a product and the sum with a mask."""
    with tf.Graph().as_default(), tf.Session(config=tf.ConfigProto()) as session:
        ids = {side: tf.placeholder(tf.int32, [None, None, 1, 1]) for side in ("inputs", "targets")}
        logits, _ = tiny_models.make(tiny_models.hparams("rpr_tiny_absolute"), EVAL)(
            {**ids, "target_space_id": tf.constant(1)})
        session.run(tf.global_variables_initializer())
        metadata = tf.RunMetadata()
        session.run(logits, {ids["inputs"]: INPUTS, ids["targets"]: TARGETS},
                    tf.RunOptions(output_partition_graphs=True), metadata)
    operations = {node.op for graph in metadata.partition_graphs for node in graph.node}
    assert any("BatchMatMul" in name for name in operations)
    assert not any("Fused" in name for name in operations)
