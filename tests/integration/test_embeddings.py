"""Embedded words from a file: what they are, that they stay so, and that decoding needs no file."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from tensor2tensor.data_generators import text_encoder

from rpr.models import pretrained_embeddings
from rpr.problems import vectors
from rpr.utils.errors import UserError

WORDS = [f"w{number}" for number in range(tiny_models.VOCABULARY - 3)]
TOKENS = (*text_encoder.RESERVED_TOKENS, vectors.UNKNOWN, *WORDS)
HIDDEN = 32


@pytest.fixture
def file(tmp_path):
    """A file with the vectors of all words and of others; the vectors."""
    values = np.random.RandomState(0).randn(len(WORDS) + 1, HIDDEN).astype("f")
    vectors.write(str(tmp_path / "x.vec"), HIDDEN, [
        (word, " ".join(map(repr, row.tolist())))
        for word, row in zip(["other", *WORDS], values, strict=True)])
    return str(tmp_path / "x.vec"), values[1:]


def hparams(path, **more):
    return tiny_models.hparams(
        pretrained_source_embeddings=path, pretrained_target_embeddings=path, num_hidden_layers=1,
        shared_embedding_and_softmax_weights=False, learning_rate_constant=1.0, **more)


def make(values, mode):
    model = tiny_models.make(values, mode)
    encoder = text_encoder.TokenTextEncoder(None, vocab_list=list(TOKENS))
    model._problem_hparams.vocabulary = {"inputs": encoder, "targets": encoder}
    return model


def test_the_table_of_a_vocabulary(file):
    path, values = file
    found = pretrained_embeddings.table(path, TOKENS)
    np.testing.assert_array_equal(found[3:], values)
    assert not found[0].any()
    np.testing.assert_allclose(found[2], values.mean(axis=0), rtol=1e-4, atol=1e-6)
    assert np.isfinite(found).all() and 0.5 < found[1].std() < 1.5
    np.testing.assert_array_equal(found, pretrained_embeddings.table.__wrapped__(path, TOKENS))


def test_the_end_mark_is_fasttexts_where_it_has_one(tmp_path):
    vectors.write(str(tmp_path / "x.vec"), 2, [("</s>", "5 6"), ("a", "1 2"), ("<unk>", "9 9")])
    found = pretrained_embeddings.table(str(tmp_path / "x.vec"), ("<pad>", "<EOS>", "<unk>", "a"))
    np.testing.assert_array_equal(found, [[0, 0], [5, 6], [1, 2], [1, 2]])


def test_they_stay_in_training_and_decoding_needs_no_file(file, tmp_path):
    path, _ = file
    inputs, targets = tiny_models.sentences([6, 3]), tiny_models.sentences([4, 5], seed=2)
    tables = ["transformer/symbol_modality_11_32/" + name + "/weights_0"
              for name in ("input_emb", "target_emb")]
    with tf.Graph().as_default(), tf.Session() as session:
        model = make(hparams(path), tf.estimator.ModeKeys.TRAIN)
        _, losses = model(tiny_models.features(inputs, targets))
        train = model.optimize(losses["training"])
        trained = {v.op.name for v in tf.trainable_variables()}
        everything = {v.op.name for v in tf.global_variables()}
        session.run(tf.global_variables_initializer())
        for _ in range(3):
            session.run(train)
        checkpoint = tf.train.Saver().save(session, str(tmp_path / "model.ckpt"))
        found = session.run([next(v for v in tf.global_variables() if v.op.name == name)
                             for name in tables])
    for table in found:
        np.testing.assert_array_equal(table, pretrained_embeddings.table(path, TOKENS))
    assert "transformer/symbol_modality_11_32/softmax/weights_0" in trained
    assert not trained & {*tables}
    assert not [name for name in everything - {*tables} if "_emb/" in name]  # no optimizer's slot
    chosen = {}
    for beams in (1, 2):
        with tf.Graph().as_default(), tf.Session() as session:
            model = make(hparams("/nowhere/x.vec"), tf.estimator.ModeKeys.PREDICT)
            out = model.infer({"inputs": tf.constant(inputs), "target_space_id": tf.constant(1)},
                              decode_length=4, beam_size=beams)["outputs"]
            tf.train.Saver().restore(session, checkpoint)
            chosen[beams] = session.run(out)
    assert all(ids.shape[0] == 2 for ids in chosen.values())


def test_a_vector_of_zeros_is_refused(tmp_path):
    path = tmp_path / "zero.vec"
    path.write_text("2 2\none 0 0\ntwo 1 0\n")
    with pytest.raises(UserError, match="the vector of one is zero"):
        pretrained_embeddings.table(str(path), ("one", "two"))


def test_what_cannot_be_is_refused(file, tmp_path):
    path, _ = file
    with pytest.raises(UserError, match="2 of 10 words of the vocabulary have no vector in it: "
                                        "new, words$"):
        pretrained_embeddings.table(path, (*TOKENS, "new", "words"))
    for more, said in (({"hidden_size": 64}, "the vectors have 32 dimensions; hidden_size=64"),
                       ({"pretrained_source_embeddings": "y.vec"},
                        f"y.vec: there is no {tmp_path}/y.vec")):
        values = hparams(path)
        values.override_from_dict(more)
        with pytest.raises(UserError, match="pretrained_source_embeddings=.*" + said):
            pretrained_embeddings._checked_table(values, "inputs", text_encoder.TokenTextEncoder(
                None, vocab_list=list(TOKENS)), str(tmp_path))
    for more, said in (({"shared_embedding_and_softmax_weights": True},
                        "shared_embedding_and_softmax_weights=False"),
                       ({"symbol_modality_num_shards": 2}, "symbol_modality_num_shards=1")):
        values = hparams(path)
        values.override_from_dict(more)
        with pytest.raises(UserError, match=said):
            make(values, tf.estimator.ModeKeys.TRAIN)
