"""A decoder that reads the source before the target."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models

from rpr.models import live_hparams, transformer

LENGTHS, EXTRA = [5, 2, 7], 4
# One of each way to use positions: added, read by pairs, functions of the words, and of the ids.
SCHEMES = ["sinusoid", "relative", "rotary", "transformer_xl", "forgetting", "path", "cope",
           "bipe+rotary", "rotary@1:none"]


def values(position, **more):
    return tiny_models.hparams("rpr_tiny", decoder_only=True, decoder_position=position,
                               max_length=40, num_hidden_layers=1 + ("@" in position), **more)


def sources(padding=0):
    """Random sources with the end mark: int32 [3, longest + padding, 1, 1]."""
    ids = tiny_models.sentences(LENGTHS, padding=padding)
    for row, length in zip(ids, LENGTHS, strict=True):
        row[length - 1] = 1
    return ids


@pytest.mark.parametrize("position", SCHEMES)
def test_it_is_a_language_model_of_source_and_target_and_its_search_agrees(position):
    inputs, targets = sources(padding=1), tiny_models.sentences([4, 6, 3], seed=2)
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values(position))
        logits, _ = model(tiny_models.features(inputs, targets))
        text, modality = tf.placeholder(tf.int32, [None, None, 1, 1]), (
            model._problem_hparams.modality)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            source = modality.pop("inputs")                  # a language model now
            of_text, _ = model({"targets": text})
            modality["inputs"] = source
            model.set_mode("infer")
            found = [model.infer(tiny_models.features(sources(padding), targets), beam_size=beams,
                                 top_beams=beams, decode_length=EXTRA, alpha=0.6)
                     for beams, padding in ((1, 0), (1, 3), (3, 0), (3, 2))]
        assert not [v.name for v in tf.trainable_variables()
                    if "/encoder/" in v.name or "encdec" in v.name]
        tiny_models.lively(session, seed=3)
        logits, found = session.run([logits, found])

        def scored(source, target):
            """Log probabilities of a target's symbols: [symbols of the target, all symbols]."""
            ids = np.concatenate([source, target]).astype(np.int32)[None, :, None, None]
            rows = session.run(of_text, {text: ids})[0, len(source):, 0, 0]
            return rows - np.log(np.exp(rows).sum(axis=-1, keepdims=True)), rows

        for row, (source, length) in enumerate(zip(inputs[:, :, 0, 0], LENGTHS, strict=True)):
            source, target = source[:length], targets[row, :, 0, 0]
            count = np.count_nonzero(target)
            np.testing.assert_allclose(logits[row, :count, 0, 0], scored(source, target)[1][:count],
                                       rtol=1e-4, atol=1e-4)
            limit = length + EXTRA
            for beams, result, padded in ((1, *found[:2]), (3, *found[2:])):
                hypotheses = result["outputs"][row].reshape(beams, -1)
                scores = result["scores"][row].reshape(beams)
                for ids, score in zip(hypotheses, scores, strict=True):
                    if score < -1e6:                         # fewer ended than beams
                        continue
                    ends = np.flatnonzero(ids == 1)
                    ids = ids[:ends[0] + 1] if len(ends) else ids[:limit]
                    chances = scored(source, ids)[0][np.arange(len(ids)), ids].sum()
                    norm = ((5 + len(ids)) / 6) ** 0.6 if len(ends) and beams > 1 else 1
                    assert score == pytest.approx(chances / norm, rel=1e-3, abs=1e-3)
                    if beams == 1:
                        assert ids.tolist() == scored(source, ids)[1].argmax(axis=1).tolist()
                    assert len(ends) or len(ids) == limit
                width = min(hypotheses.shape[-1], padded["outputs"].shape[-1])
                other = padded["outputs"][row].reshape(beams, -1)
                np.testing.assert_array_equal(hypotheses[0, :width], other[0, :width])
                np.testing.assert_allclose(scores[0], padded["scores"][row].reshape(beams)[0],
                                           rtol=1e-4)


def test_hypotheses_end_where_the_decoder_has_no_more_positions():
    """12 positions, a start and sources of 5, 2 and 7 symbols."""
    with tf.Graph().as_default(), tf.Session() as session:
        hparams = values("learned")
        hparams.max_length = 12
        model = tiny_models.make(hparams, "infer")
        found = model.infer(tiny_models.features(sources(), sources()), beam_size=1,
                            decode_length=50)["outputs"]
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            too_long = model.infer(tiny_models.features(sources(padding=5), sources()), beam_size=1,
                                   decode_length=50)["outputs"]
        session.run(tf.global_variables_initializer())
        assert session.run(found).shape[1] <= 12 - min(LENGTHS)
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows for max_length=12"):
            session.run(too_long)


@pytest.mark.parametrize("position", ["learned", "relative_unclipped"])
def test_padding_needs_no_positions(position):
    """Sources and targets of 8 and 3 symbols: rows of 16 with their padding, of 11 without."""
    with tf.Graph().as_default(), tf.Session() as session:
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        hparams = values(position)
        hparams.max_length = 11
        logits, _ = tiny_models.make(hparams)(
            {"inputs": inputs, "targets": targets, "target_space_id": tf.constant(1)})
        tiny_models.lively(session)
        pair = [tiny_models.sentences(lengths) for lengths in ([8, 3], [3, 8])]
        together = session.run(logits, dict(zip((inputs, targets), pair, strict=True)))
        for row, (n, m) in enumerate(((8, 3), (3, 8))):
            alone = session.run(logits, {inputs: pair[0][row:row + 1, :n],
                                         targets: pair[1][row:row + 1, :m]})
            np.testing.assert_allclose(together[row, :m], alone[0], rtol=1e-4, atol=1e-4)
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows for max_length=11"):
            session.run(logits, {inputs: pair[0], targets: pair[0]})


def test_a_language_model_has_no_source_to_read():
    with tf.Graph().as_default(), tf.Session() as session:
        model = tiny_models.make(values("relative"), "infer")
        del model._problem_hparams.modality["inputs"]
        found = model.infer({"targets": tf.constant(sources()[:, :0])}, beam_size=1,
                            decode_length=3)["outputs"]
        session.run(tf.global_variables_initializer())
        assert session.run(found).shape[0] == 3


def test_settings_of_an_encoder_have_no_effect():
    hparams = values("relative")
    dead = live_hparams.without_effect("rpr_transformer", hparams)
    for name in ("encoder_position", "cross_position", "num_encoder_layers"):
        assert dead[name] == "with decoder_only=True"
    assert dead["position"] == "with decoder_position" and "decoder_position" not in dead


@pytest.mark.parametrize("more, message", [
    ({"answer_symbol": 2}, "answer_symbol=2 with decoder_only=True: "),
    ({"pack_dataset": True}, "decoder_only=True with pack_dataset=True: "),
    ({"shared_embedding_and_softmax_weights": False}, "decoder_only=True: .* one table")])
def test_what_it_cannot_be_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        transformer.checked_hparams(values("relative", **more))


def test_two_vocabularies_prompts_and_sampling_are_refused():
    with tf.Graph().as_default():
        model = tiny_models.make(values("relative"))
        model._problem_hparams.vocab_size["inputs"] = 12
        with pytest.raises(ValueError, match="one vocabulary; the problem has 12 and 11 symbols"):
            model(tiny_models.features(sources(), sources()))
    with tf.Graph().as_default(), pytest.raises(ValueError, match="decoder_only=True: such a mod"):
        tiny_models.make(values("relative", sampling_method="random"), "infer").infer(
            tiny_models.features(sources(), sources()), beam_size=1)
