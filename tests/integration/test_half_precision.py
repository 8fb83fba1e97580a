"""Training in half precision, beside float32: numbers, weights, and the scale of the loss."""
import gpu_kernels
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.utils import optimize
from tensorflow.core.protobuf import config_pb2, device_properties_pb2
from tensorflow.python.grappler import cluster, tf_optimizer

from rpr.models import seq2seq as _seq2seq  # noqa: F401  registers qkv_seq2seq
from rpr.training import devices

STEPS = 20
IDS = tiny_models.sentences([7, 9, 5, 12] * 4)


@pytest.fixture(autouse=True)
def only_here():
    """T2T switches the rewriting of graphs on for the whole process."""
    yield
    tf.train.experimental.disable_mixed_precision_graph_rewrite()


def rewritten(graph, fetches, monkeypatch):
    """The graph as TensorFlow rewrites it for a GPU; CPUs have kernels for all of it."""
    for name, value in devices.FLOAT32_OPS.items():
        monkeypatch.setenv(name, value)
    # TensorFlow without CUDA does not believe that a GPU is fast at it.
    monkeypatch.setenv("TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE", "1")
    for fetch in fetches:
        tf.add_to_collection(tf.GraphKeys.TRAIN_OP, fetch)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers.append("auto_mixed_precision")
    options.auto_mixed_precision = options.ON
    options.min_graph_nodes = -1
    kinds = {"GPU": {"architecture": "8.0"}, "CPU": {}}
    machine = cluster.Cluster(devices=[
        device_properties_pb2.NamedDevice(
            name=f"/job:localhost/replica:0/task:0/device:{kind}:0",
            properties=device_properties_pb2.DeviceProperties(
                type=kind, num_cores=8, frequency=1000, environment=environment))
        for kind, environment in kinds.items()])
    return tf_optimizer.OptimizeGraph(
        config, tf.train.export_meta_graph(graph=graph, clear_devices=True), cluster=machine)


def train(monkeypatch, **overrides):
    """Trains a tiny model of lively weights, all of them the same ones.

    Returns:
      the losses, the global step, and the graph that was run.
    """
    hparams = tiny_models.hparams(layer_prepostprocess_dropout=0.0, num_hidden_layers=1,
                                  **overrides)
    with tf.Graph().as_default() as graph:
        fed = tf.placeholder(tf.int32, [None, None, 1, 1], name="ids")
        _, losses = tiny_models.make(hparams, "train")(
            {"inputs": fed, "targets": fed, "target_space_id": tf.constant(1)})
        loss, step = losses["training"], tf.identity(tf.train.get_or_create_global_step())
        update = optimize.optimize(loss, tf.constant(0.001), hparams)
        variables = tf.trainable_variables()
        assert {variable.dtype.base_dtype for variable in variables} == {tf.float32}
        values = [tf.placeholder(tf.float32, variable.shape) for variable in variables]
        start = tf.group(*map(tf.assign, variables, values))
        fetches = [tf.global_variables_initializer(), start, loss, update, step]
        definition = graph.as_graph_def()
        if hparams.gpu_automatic_mixed_precision:
            definition = rewritten(graph, fetches, monkeypatch)
    random = np.random.RandomState(1)
    weights = {value.name: random.randn(*value.shape) * 2 * value.shape.as_list()[0] ** -0.5
               + ("layer_norm_scale" in variable.name)
               for value, variable in zip(values, variables, strict=True)}
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(definition, name="")
        assert gpu_kernels.lacking(graph) == []
        initialize, start, loss, update, step = (fetch.name for fetch in fetches)
        session.run(initialize)
        session.run(start, weights)
        found = [session.run([loss, update], {"ids:0": IDS})[0] for _ in range(STEPS)]
        return np.array(found), session.run(step), definition


def kinds(definition, *ops):
    """The dtypes that operations of these types compute in."""
    return {tf.as_dtype(node.attr["T"].type) for node in definition.node if node.op in ops}


PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2")
PRECISE = ("Softmax", "SoftmaxCrossEntropyWithLogits", "Rsqrt", "Square", "ResourceApplyAdam")


def test_half_precision_trains_as_float32_does(monkeypatch):
    """Adam, until the loss has fallen by 0.3 nats and more: to 0.01 in float16, whose rounding is
    5e-4, to 0.05 in bfloat16, whose is 4e-3."""
    exact, _, _ = train(monkeypatch)
    assert exact[-1] < exact[0] - 0.3
    half, steps, graph = train(monkeypatch, gpu_automatic_mixed_precision=True)
    np.testing.assert_allclose(half, exact, atol=0.01)
    assert steps == STEPS and not np.array_equal(half, exact)
    assert tf.float16 in kinds(graph, *PRODUCTS) and kinds(graph, *PRECISE) == {tf.float32}
    half, steps, graph = train(monkeypatch, activation_dtype="bfloat16")
    np.testing.assert_allclose(half, exact, atol=0.05)
    assert tf.bfloat16 in kinds(graph, *PRODUCTS) and kinds(graph, *PRECISE) == {tf.float32}


def test_the_normalization_of_embedded_words_is_computed_in_float32():
    hparams = tiny_models.hparams(activation_dtype="bfloat16", norm_after_embedding=True,
                                  num_hidden_layers=1)
    with tf.Graph().as_default() as graph:
        tiny_models.make(hparams, "eval")(features_of({}, "inputs", "targets"))
        assert kinds(graph.as_graph_def(), "Rsqrt") == {tf.float32}


def test_the_scale_of_the_loss_falls_and_grows_and_steps_are_left_out():
    """As T2T sets it up: 2^15 at first; halved, and the step left out, where a gradient is not
    finite; doubled after 2,000 that are."""
    hparams = tiny_models.hparams(gpu_automatic_mixed_precision=True, optimizer="momentum",
                                  optimizer_momentum_momentum=0.0)
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("weight", [2], initializer=tf.zeros_initializer(),
                                 use_resource=True)
        factor = tf.placeholder(tf.float32, [2])
        update = optimize.optimize(tf.reduce_sum(weight * factor), tf.constant(0.5), hparams)
        scale, = (v for v in tf.global_variables() if v.name.startswith("current_loss_scale"))
        session.run(tf.global_variables_initializer())

        def state():
            return *session.run(weight), session.run(tf.train.get_global_step())

        assert session.run(scale) == 2 ** 15
        session.run(update, {factor: [1, 2]})
        assert state() == (-0.5, -1, 1)
        for times, bad in enumerate((np.inf, np.nan, 1e35), 1):      # 1e35 only when scaled
            session.run(update, {factor: [1, bad]})
            assert state() == (-0.5, -1, 1) and session.run(scale) == 2 ** (15 - times)
        for _ in range(1999):
            session.run(update, {factor: [0, 0]})
        assert session.run(scale) == 2 ** 12
        session.run(update, {factor: [0, 0]})
        assert session.run(scale) == 2 ** 13 and state() == (-0.5, -1, 2001)


# Each scheme's layer by itself: tests/unit/test_positions_half_precision.py. Here are whole models.
SCHEMES = [dict(position="relative"), dict(position="deberta"), dict(position="learned+alibi"),
           dict(position="graph", num_edge_labels=4),
           dict(position="relative", compatibility="additive")]
SEQ2SEQ = [dict(encoder="birnn", attention_flavour="mlp"), dict(encoder="cnn")]
CASES = [("rpr_transformer", "rpr_tiny", {"num_hidden_layers": 1, **case}) for case in SCHEMES] + [
    ("qkv_seq2seq", "qkv_seq2seq_tiny", case) for case in SEQ2SEQ]
# The precision, size of the beam, and tolerance of a case.
HALVES = (("bfloat16", 3, 0.5), ("float16", 1, 0.1))
IN_HALF = [(*case, *HALVES[number % 2]) for number, case in enumerate(CASES)]
SENTENCES = tiny_models.sentences([12, 7, 9], seed=3)


def case_name(value):
    return ",".join(map(str, value.values())) if isinstance(value, dict) else None


def features_of(overrides, *names):
    """Sentences, and edges between their words where the scheme reads them."""
    values = {name: tf.constant(SENTENCES) for name in names} | {"target_space_id": tf.constant(1)}
    if overrides.get("position") == "graph":
        values["edges"] = tf.constant(np.random.RandomState(0).randint(0, 4, [3, 12, 12]), tf.int32)
    return values


@pytest.mark.parametrize("model, hparams_set, overrides, half, beams, tolerance", IN_HALF,
                         ids=case_name)
def test_weights_of_float32_decode_in_half_precision(model, hparams_set, overrides, half, beams,
                                                     tolerance):
    """Beam search in bfloat16, greedy search in float16; the scores are those of float32, to
    rounding. All of it would run on a GPU, with no large copy between host and device."""
    found = {}
    for precision in ("float32", half):
        hparams = tiny_models.hparams(hparams_set, activation_dtype=precision, **overrides)
        with tf.Graph().as_default() as graph, tf.Session() as session:
            built = tiny_models.make(hparams, "eval", model)
            logits, _ = built(features_of(overrides, "inputs", "targets"))
            scores = tf.nn.log_softmax(tf.cast(logits, tf.float32))
            fetches = {"whole": scores}
            if precision == half:
                with tf.variable_scope(tf.get_variable_scope(), reuse=True):
                    built.set_mode(tf.estimator.ModeKeys.PREDICT)
                    fetches["decoded"] = built.infer(features_of(overrides, "inputs"),
                                                     decode_length=2, beam_size=beams)["outputs"]
            assert gpu_kernels.lacking(graph) == []
            assert gpu_kernels.large_copies(graph, SENTENCES.size, len(SENTENCES)) == []
            session.run(tf.global_variables_initializer())
            tiny_models.lively(session)
            found[precision] = session.run(fetches)
    np.testing.assert_allclose(found[half]["whole"], found["float32"]["whole"], atol=tolerance)
    assert found[half]["decoded"].shape[0] == len(SENTENCES)


def test_decoding_without_a_cache_works_in_half_precision():
    """The slow greedy search runs the whole model at each step and finds the same words."""
    hparams = tiny_models.hparams(activation_dtype="bfloat16", num_hidden_layers=1)
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(hparams, tf.estimator.ModeKeys.PREDICT)
        features = model.prepare_features(features_of({}, "inputs"))
        slow = model._slow_greedy_infer(features, 2)["outputs"]
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            fast = model.infer(features_of({}, "inputs"), decode_length=2, beam_size=1)["outputs"]
        session.run(tf.global_variables_initializer())
        tiny_models.lively(session)
        fast, slow = session.run([fast, slow])
    # Ours stops each sentence at a limit of its own; T2T goes on to that of the longest.
    found = fast != 0
    assert found.any(axis=1).all()
    np.testing.assert_array_equal(slow[:, :fast.shape[1], 0, 0][found], fast[found])
