"""Edges between words: attention against the paper's equations, and the way to the model."""
import collections
import functools
import random
import runpy

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import ROOT, Text, python_script, refused, rpr_command, train, without_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.utils import registry

from rpr.inference import inspector, model_session
from rpr.nn import attention
from rpr.positions import pairs
from rpr.problems import graphs, toy
from rpr.utils.errors import UserError


def row(table, head, label):
    return (table[head] if table.ndim == 3 else table)[label]


def naive(q, k, v, keys, values, edges, bias, dz):
    """Equations (3) and (4) with the rows of edges, and their derivatives by q, k, v and tables."""
    batch, heads, n, depth = q.shape
    z, grads = np.zeros_like(q), [np.zeros_like(x) for x in (q, k, v, keys, values)]
    dq, dk, dv, dkeys, dvalues = grads
    for b in range(batch):
        for h in range(heads):
            for i in range(n):
                key = np.array([k[b, h, j] + row(keys, h, edges[b, i, j]) for j in range(n)])
                value = np.array([v[b, h, j] + row(values, h, edges[b, i, j]) for j in range(n)])
                e = key @ q[b, h, i] / np.sqrt(depth) + bias[b, 0, 0]
                a = np.exp(e - e.max()) / np.exp(e - e.max()).sum()
                z[b, h, i] = a @ value
                da = value @ dz[b, h, i]
                de = a * (da - a @ da) / np.sqrt(depth)
                dq[b, h, i] = de @ key
                for j in range(n):
                    dk[b, h, j] += de[j] * q[b, h, i]
                    dv[b, h, j] += a[j] * dz[b, h, i]
                    row(dkeys, h, edges[b, i, j])[:] += de[j] * q[b, h, i]
                    row(dvalues, h, edges[b, i, j])[:] += a[j] * dz[b, h, i]
    return z, grads


@settings(max_examples=15)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 7), st.integers(1, 5), st.booleans(),
       st.integers(0, 2**31))
def test_attention_and_its_gradient_are_the_equations(batch, heads, n, labels, shared, seed):
    dice = np.random.RandomState(seed)
    q, k, v, dz = dice.randn(4, batch, heads, n, 4)
    keys, values = dice.randn(2, *([] if shared else [heads]), labels, 4)
    edges = dice.randint(0, labels + 2, [batch, n, n])       # two labels have no row
    bias = np.where(np.arange(n) < dice.randint(1, n + 1, [batch, 1, 1, 1]), 0.0, -1e9)
    with tf.Graph().as_default(), tf.Session() as session:
        at = [tf.constant(x) for x in (q, k, v, keys, values)]
        to = tf.constant(edges, tf.int32)
        z = attention.attention(
            *at[:3], tf.constant(bias),
            lambda q, k: tf.matmul(q, k, transpose_b=True) + pairs.score_term(q, at[3], to),
            lambda w, v: tf.matmul(w, v) + pairs.value_term(w, at[4], to))
        got = session.run([z, *tf.gradients(z, at, tf.constant(dz))])
    tables = (np.concatenate([x, np.zeros([*x.shape[:-2], 2, 4])], axis=-2) for x in (keys, values))
    z, (*expected, dkeys, dvalues) = naive(q, k, v, *tables, edges, bias, dz)
    expected += [dkeys[..., :labels, :], dvalues[..., :labels, :]]
    for found, right in zip(got, [z, *expected], strict=True):
        np.testing.assert_allclose(found, right, atol=1e-10)


@pytest.mark.parametrize("shared", [True, False])
def test_additive_compatibility_has_zero_vectors_for_labels_beyond_the_table(shared):
    dice = np.random.RandomState(0)
    table, edges = dice.randn(*([] if shared else [3]), 4, 5), dice.randint(-1, 7, [2, 6, 6])
    with tf.Graph().as_default(), tf.Session() as session:
        vectors = session.run(
            pairs.pair_vectors(tf.constant(table), tf.constant(edges, tf.int32)))
    assert vectors.shape == (2, 1 if shared else 3, 6, 6, 5)
    for b, h, i, j in np.ndindex(vectors.shape[:4]):
        label = edges[b, i, j]
        expected = row(table, h, label) if 0 <= label < 4 else np.zeros(5)
        np.testing.assert_array_equal(vectors[b, h, i, j], expected)


def test_a_model_with_additive_compatibility_reads_labels_beyond_the_table():
    edges = random_edges(6)
    (logits,), _ = encoded((INPUTS, edges), compatibility="additive", num_edge_labels=2)
    assert np.isfinite(logits).all()


def flat(words, edges):
    return words + [1] + [2 + number for edge in edges for number in edge] + [1] * bool(edges)


@functools.cache
def split_edges():
    """A function of ids, [sentences, length], that gives words and edges."""
    with tf.Graph().as_default():
        ids = tf.placeholder(tf.int32, [None, None])
        return tf.Session().make_callable(graphs.split_edges(ids), [ids])


@settings(max_examples=25)
@given(st.data())
def test_words_and_edges_come_apart(data):
    rows = []
    for _ in range(data.draw(st.integers(1, 4))):
        words = data.draw(st.lists(st.integers(2, 9), min_size=1, max_size=6))
        place = st.integers(0, len(words) - 1)
        edges = data.draw(st.dictionaries(st.tuples(place, place), st.integers(1, 5), max_size=8))
        rows.append((words, [(*at, label) for at, label in edges.items()]))
    length = max(len(words) for words, _ in rows) + 1
    ids = [flat(*row) for row in rows]
    ids = np.array([row + [0] * (max(map(len, ids)) - len(row)) for row in ids], np.int32)
    matrices = np.zeros([len(rows), length, length], int)
    for matrix, (_, edges) in zip(matrices, rows, strict=True):
        for i, j, label in edges:
            matrix[i, j] = label
    words, edges = split_edges()(ids)
    np.testing.assert_array_equal(edges, matrices)
    for found, (expected, _) in zip(words, rows, strict=True):
        assert list(found) == expected + [1] + [0] * (length - len(expected) - 1)


INPUTS, TARGETS = tiny_models.sentences([6, 3], seed=1), tiny_models.sentences([4, 5], seed=2)


def encoded(*batches, **overrides):
    """The logits of one model with random weights for each of (inputs, edges); its variables.

    Edges are in all batches, or None in all.
    """
    values = tiny_models.hparams(**{"position": "graph", "num_edge_labels": 4,
                                    "num_hidden_layers": 1, **overrides})
    with tf.Graph().as_default(), tf.Session() as session:
        inputs = tf.placeholder(tf.int32, [None, None, 1, 1])
        edges = tf.placeholder(tf.int32, [None, None, None])
        features = {"inputs": inputs, "targets": tf.constant(TARGETS), "target_space_id": 1}
        if batches[0][1] is not None:
            features["edges"] = edges
        logits, _ = tiny_models.make(values)(features)
        tiny_models.lively(session)
        names = [v.op.name for v in tf.trainable_variables()]
        return [session.run(logits, {inputs: batch[0]} | (
            {} if batch[1] is None else {edges: batch[1]})) for batch in batches], names


def random_edges(length, seed=0):
    return np.random.RandomState(seed).randint(0, 4, [2, length, length])


def test_with_edges_the_order_of_the_words_does_not_matter():
    edges = random_edges(6)
    order = np.array([3, 5, 0, 1, 4, 2])
    inputs = INPUTS.copy()
    inputs[1, 3:] = 7                                         # both of six words
    (one, other, turned), names = encoded(
        (inputs, edges), (inputs[:, order], edges[:, order][:, :, order]),
        (inputs, edges.transpose([0, 2, 1])))
    np.testing.assert_allclose(one, other, atol=1e-4)
    assert np.abs(one - turned).max() > 1e-2                  # the direction does
    assert sum("graph/edge_" in name for name in names) == 2
    assert {"decoder" in name for name in names if "relative_positions" in name} == {True}


def test_with_edges_and_distances_both_matter():
    inputs, edges = INPUTS.copy(), random_edges(6)
    inputs[1, 3:] = 7
    (one, other, turned), names = encoded(
        (inputs, edges), (inputs[:, ::-1], edges[:, ::-1, ::-1]),
        (inputs, edges.transpose([0, 2, 1])),
        encoder_position="graph+relative", decoder_position="relative")
    encoder = [name for name in names if "encoder" in name]
    assert sum("graph/edge_" in name for name in encoder) == 2
    assert sum("relative_positions" in name for name in encoder) == 2
    assert np.abs(one - other).max() > 1e-2
    assert np.abs(one - turned).max() > 1e-2


def test_padding_changes_nothing():
    edges = random_edges(6)
    edges[1, 3:] = edges[1, :, 3:] = 0
    (short, padded), _ = encoded(
        (INPUTS, edges), (np.pad(INPUTS, [(0, 0), (0, 2), (0, 0), (0, 0)]),
                          np.pad(edges, [(0, 0), (0, 2), (0, 2)])))
    np.testing.assert_allclose(short, padded, atol=1e-4)


@pytest.mark.parametrize("position", ["graph", "graph+relative"])
def test_without_edges_it_is_relative(position):
    (one,), names = encoded((INPUTS, None), position=position)
    assert not any("graph/" in name for name in names)
    assert sum("relative_positions" in name for name in names) == 4
    values = tiny_models.hparams(position="relative", num_hidden_layers=1)
    with tf.Graph().as_default(), tf.Session() as session:
        logits, _ = tiny_models.make(values)(tiny_models.features(INPUTS, TARGETS))
        tiny_models.lively(session)
        np.testing.assert_allclose(session.run(logits), one, atol=1e-5)


@pytest.mark.parametrize("position", ["graph", "relative"])
def test_a_session_reads_words_and_edges_from_one_row(position):
    values = tiny_models.hparams(position=position, num_edge_labels=5, num_hidden_layers=1)
    problem = problem_hparams.test_problem_hparams(tiny_models.VOCABULARY, tiny_models.VOCABULARY,
                                                   values)
    problem.add_hparam("edges_in_text", True)
    values.add_hparam("problem_hparams", problem)
    model = model_session.ModelSession("rpr_transformer", values, beam_size=1, extra_length=3)
    with model._session.graph.as_default():
        tiny_models.lively(model._session)
    source = flat([4, 5, 6, 7], [(0, 1, 1), (1, 0, 3)])
    ids, scores = model.search([source])
    target = inspector.until_end(ids[0])
    # The teacher-forced graph sees what the search saw.
    np.testing.assert_allclose(model.log_probabilities([source], [target]).sum(), scores[0],
                               atol=1e-4)
    assert model.attention([source], [target]).encoder.shape[-2:] == (5, 5)
    other = model.log_probabilities([flat([4, 5, 6, 7], [(0, 1, 2)])], [target]).sum()
    assert (abs(other - scores[0]) > 1e-3) == (position == "graph")


# Lines of words and edges.

def encoder(labels=("x", "y")):
    return graphs.GraphEncoder(toy.Tokens("abc"), labels)


def test_a_line_becomes_words_and_edges_in_both_directions():
    words, edges = encoder().words_and_edges("a c b\t0 1 y\t1 2 x\t2 1 y\n")
    assert words == [2, 4, 3]
    assert sorted(edges) == [(0, 1, 2), (1, 0, 4), (1, 2, 1), (2, 1, 2)]
    flat_ids = encoder().encode("a c b\t0 1 y")
    assert flat_ids == [2, 4, 3, 1, 2, 3, 4, 3, 2, 6]
    assert encoder().encode("a c") == [2, 4] and encoder().num_edge_labels == 5


def test_an_edge_of_a_word_is_one_of_all_its_pieces():
    class Letters:
        def encode(self, word):
            return [ord(letter) for letter in word]

    words, edges = graphs.GraphEncoder(Letters(), ["x"]).words_and_edges("ab c de\t0 2 x")
    assert len(words) == 5
    assert sorted(edges) == [(0, 3, 1), (0, 4, 1), (1, 3, 1), (1, 4, 1),
                             (3, 0, 2), (3, 1, 2), (4, 0, 2), (4, 1, 2)]


def test_a_no_break_space_belongs_to_a_word():
    class Lengths:
        def encode(self, word):
            return [len(word)]

    words, edges = graphs.GraphEncoder(Lengths(), ["x"]).words_and_edges("a\xa0! bcd\t0 1 x\n")
    assert words == [3, 3] and sorted(edges) == [(0, 1, 1), (1, 0, 2)]


@pytest.mark.parametrize("line, message", [
    ("a b\t0 2 x", "'0 2 x' is outside the line's 2 words"),
    ("a b\t0 1", "'0 1' is not two positions and a label"),
    ("a b\t-1 1 x", "'-1 1 x' is not two positions and a label"),
    ("a b\t0 1 z", "'0 1 z' has an unknown label; known: x, y"),
    ("a b\t0 1 x\t0 1 y", "two edges from 0 to 1"),
    ("a d\t0 1 x", "'d' is not a token of this problem"),
])
def test_what_is_no_graph_is_said(line, message):
    with pytest.raises(UserError, match=message):
        encoder().encode(line)


def path_of(source):
    """All paths between the marked nodes, found by walking along the edges."""
    words, *edges = source.split("\t")
    words, leaving = words.split(), {}
    for start, end, label in map(str.split, edges):
        leaving.setdefault(int(start), []).append((int(end), label))
    found, ways = [], [(words.index("from"), [])]
    while ways:
        node, labels = ways.pop()
        if words[node] == "to":
            found.append(labels)
        ways += [(end, labels + [label]) for end, label in leaving.get(node, [])]
    return found


def test_the_target_is_the_only_path_and_the_test_graphs_are_larger():
    problem = registry.problem("graph_paths")
    for split, count in (("test", 1000), ("dev", 500)):
        pairs = list(problem.text_pairs(split, ""))
        assert pairs == list(problem.text_pairs(split, "")) and len(pairs) == count
        lengths = collections.Counter()
        for source, target in pairs:
            found = path_of(source)
            assert [target] == ([" ".join(path) for path in found] or ["none"])
            lengths[len(found[0]) if found else 0] += 1
            nodes = source.split("\t")[0].split()
            assert sorted(set(nodes) - {"node"}) == ["from", "to"]
            assert problem.nodes[split][0] <= len(nodes) <= problem.nodes[split][1]
        assert all(lengths[length] > 0.12 * count for length in range(5)), lengths
    assert problem.nodes["train"][1] < problem.nodes["test"][0]


def test_edges_go_into_the_tfrecords_and_come_back_as_matrices(tmp_path, monkeypatch):
    problem = registry.problem("graph_paths")
    monkeypatch.setattr(type(problem), "sizes", {"train": 64, "dev": 8, "test": 8})
    problem.generate_data(str(tmp_path), str(tmp_path))
    problem.get_feature_encoders(str(tmp_path))
    values = tiny_models.hparams("toy_graph", batch_size=8)
    with tf.Graph().as_default(), tf.Session() as session:
        batch = problem.input_fn(tf.estimator.ModeKeys.EVAL, values, str(tmp_path))
        batch = batch.make_one_shot_iterator().get_next()
        features = session.run(batch[0] if isinstance(batch, tuple) else batch)
    expected = [source for source, _ in problem.text_pairs("dev", "")]
    assert features["edges"].shape[0] == 8
    words = problem.feature_encoders(None)["inputs"]
    for ids, edges, line in zip(features["inputs"][:, :, 0, 0], features["edges"], expected,
                                strict=True):
        right, triples = words.words_and_edges(line)
        assert list(ids[:len(right) + 1]) == [*right, 1]
        assert {(i, j, edges[i, j]) for i, j in np.argwhere(edges)} == set(triples)
    with pytest.raises(UserError, match="num_edge_labels=8: the problem graph_paths needs 9"):
        registry.problem("graph_paths").get_hparams(tiny_models.hparams("toy_graph",
                                                                        num_edge_labels=8))


# The example for a user's own relations.

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "expression_graphs.py"))


def test_the_example_is_what_it_says():
    assert SCRIPT["with_edges"]("( a + b ) * c") == (
        "( a + b ) * c\t2 1 left\t2 3 right\t5 2 left\t5 6 right")
    assert SCRIPT["postfix"]("( a + b ) * c") == "a b + c *"


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(0, 6))
def test_an_operators_edges_lead_to_its_operands(seed, operators):
    code = SCRIPT["expression"](random.Random(seed), operators)
    words, *edges = SCRIPT["with_edges"](code).split("\t")
    words, below = words.split(), {}
    for operator, operand, side in map(str.split, edges):
        assert words[int(operator)] in "+-*/"
        below.setdefault(int(operator), {})[side] = int(operand)

    def walk(place):
        sides = below.get(place)
        return [words[place]] if not sides else [
            *walk(sides["left"]), *walk(sides["right"]), words[place]]

    roots = set(below) - {end for sides in below.values() for end in sides.values()}
    assert len(roots) == bool(operators)
    assert " ".join(walk(roots.pop() if roots else 0)) == SCRIPT["postfix"](code)


def test_own_relations_go_through_the_command_line(tmp_path, monkeypatch):
    assert python_script("expression_graphs.py", tmp_path / "text", "300").returncode == 0
    without_text(monkeypatch)
    monkeypatch.setenv("RPR_TEXT_SOURCE", str(tmp_path / "text" / "source"))
    monkeypatch.setenv("RPR_TEXT_TARGET", str(tmp_path / "text" / "target"))
    monkeypatch.setenv("RPR_TEXT_VOCAB_SIZE", "60")
    small = Text(tmp_path, tmp_path / "data", "graph_text_files")
    rpr_command("datagen", *small.flags, f"--tmp_dir={tmp_path}/tmp")
    labels = tmp_path / "data" / "vocab.graph_text_files.labels"
    assert labels.read_text() == "left\nright\n"
    train(small, tmp_path / "model", "--hparams=position=graph,num_edge_labels=5", steps=10)
    lines = (tmp_path / "data" / "graph_text_files.test.source.txt").read_text().splitlines()[:6]
    lines[1] = lines[1].split("\t")[0]                        # one without edges
    (tmp_path / "lines").write_text("".join(line + "\n" for line in lines))
    decode = ["decode", *small.flags, "--model=rpr_transformer", "--hparams_set=rpr_tiny",
              f"--output_dir={tmp_path}/model", f"--decode_to_file={tmp_path}/out"]
    rpr_command(*decode, f"--decode_from_file={tmp_path}/lines",
                "--decode_hparams=beam_size=2,batch_size=4,extra_length=5")
    assert len((tmp_path / "out").read_text().splitlines()) == 6
    done = rpr_command("translate", *small.flags, "--model=rpr_transformer",
                       "--hparams_set=rpr_tiny", f"--output_dir={tmp_path}/model",
                       f"--show_attention={tmp_path}/attention", lines[0])
    assert done.stdout.count("\t") == 2
    assert (tmp_path / "attention" / "1.encoder.png").stat().st_size
    (tmp_path / "lines").write_text("a + b\t1 7 left\n")
    assert "outside the line's 3 words" in refused(*decode, f"--decode_from_file={tmp_path}/lines")
    written = (tmp_path / "out").read_text()
    (tmp_path / "lines").write_text("a + b + c\na + b\t1 7 left\n")       # in the second batch
    assert "outside the line's 3 words" in refused(
        *decode, f"--decode_from_file={tmp_path}/lines", "--decode_hparams=batch_size=1")
    assert (tmp_path / "out").read_text() == written and not (tmp_path / "out.parts").exists()
    assert "outside the line's 3 words" in refused(
        *decode[:-1], "--decode_interactive", "--decode_hparams=beam_size=1,extra_length=1",
        stdin="a + b\na + b\t1 7 left\n")
