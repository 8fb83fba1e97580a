"""What `rpr decode` reads, and the lines it writes for hypotheses."""
import contextlib
import os
import types

import numpy as np
import pytest
from tensor2tensor.data_generators import text_encoder
from tensor2tensor.utils import decoding

import rpr.problems  # noqa: F401  registers them
from rpr.inference import file_checks, file_decoder
from rpr.inference.batches import Batches, one_line
from rpr.utils.errors import UserError

BYTES = text_encoder.ByteTextEncoder()


def make_line(prediction, **decode_hparams):
    """The line of a prediction whose ids are bytes."""
    vocabulary = {"inputs": BYTES, "targets": BYTES}
    hparams = types.SimpleNamespace(problem=types.SimpleNamespace(name="toy_reverse_repeats"),
                                    problem_hparams=types.SimpleNamespace(vocabulary=vocabulary))
    settings = dict(log_results=False, skip_eos_postprocess=False, return_beams=False,
                    write_beam_scores=False, beam_size=1)
    return file_decoder.line_maker(hparams, types.SimpleNamespace(**settings | decode_hparams))(
        prediction | {"inputs": np.array(BYTES.encode("source"))})


def ids_of(*texts, length=8):
    """[beams * length], each with an end mark and padding; None: padding only."""
    rows = np.zeros([len(texts), length], int)
    for row, text in zip(rows, texts, strict=True):
        if text is not None:
            ids = [*BYTES.encode(text), text_encoder.EOS_ID]
            row[:len(ids)] = ids
    return rows.ravel()


@pytest.mark.parametrize(("token", "expected"), [
    (r"a\10;b_", "a b"), (r"a\13;b_", "a b"), (r"\8364;_", "€"), (r"\55357;_", "\ufffd"),
    (r"\128512;_", "😀")])
def test_a_hypothesis_is_one_line_of_utf8(token, expected):
    text = text_encoder._unescape_token(token)
    assert one_line(text) == expected and one_line(text).encode()


def test_a_hypothesis_with_a_newline_stays_on_its_line():
    assert make_line({"outputs": ids_of("a\nb")}) == "a b"


def test_beams_that_the_search_never_filled_are_not_written():
    beams = dict(return_beams=True, beam_size=4)
    prediction = {"outputs": ids_of("ab", "", "a\tb", None),
                  "scores": np.array([-1.0, -2.0, -3.0, -1e7])}
    assert make_line(prediction, **beams) == "ab\t\ta b"
    assert make_line(prediction, **beams, write_beam_scores=True) == (
        "ab\t-1.00\t\t-2.00\ta b\t-3.00")


def estimator_of(*outputs, **more):
    """Stands for an Estimator that predicts these outputs."""
    return types.SimpleNamespace(config=None, model_dir=None, predict=lambda *_, **__: iter(
        [{"outputs": np.array(ids), **more} for ids in outputs]))


@pytest.mark.parametrize("outputs", [
    [[[[5]], [[6]], [[1]], [[0]]], [[[5]], [[6]], [[7]], [[8]]]],    # T2T's loop without a cache
    [[5, 6, 1, 9, 1], [5, 6, 7, 8]]])                        # T2T's loop with one goes on
def test_tokens_of_t2ts_greedy_loops_count_up_to_the_end(tmp_path, outputs):
    search = decoding.decode_hparams("beam_size=1,batch_size=2")
    hparams = types.SimpleNamespace(problem_hparams=types.SimpleNamespace(
        vocabulary={"inputs": BYTES}))
    found = file_decoder.estimator_search(estimator_of(*outputs), hparams, search, None)
    batches = Batches(str(tmp_path / "out"), ["a", "b"], 2, [])
    with batches.prepared():
        batches.save([0], found(["a", "b"]), lambda prediction: "")
    counted = file_decoder.ProgressEstimator(estimator_of(*outputs), search)
    assert len(list(counted.predict())) == 2
    assert batches.tokens([0]) == counted.tokens == 7 and batches.count_cut() == 1


@pytest.mark.parametrize("search, is_refused", [
    ("return_beams=True,write_beam_scores=True", True), ("return_beams=True", False),
    ("write_beam_scores=True", False)])
def test_scores_that_a_search_does_not_give_are_refused(search, is_refused):
    search = decoding.decode_hparams(f"beam_size=1,{search}")
    for more in ({}, {"scores": -1.0}):
        counted = file_decoder.ProgressEstimator(estimator_of([[[5]], [[1]]], **more), search)
        with pytest.raises(UserError, match="write_beam_scores=True: .* no scores; take beam_size="
                           ) if is_refused and not more else contextlib.nullcontext():
            list(counted.predict())


@pytest.mark.parametrize("text, lines", [
    ("a\n   ", ["a", ""]), ("a\n   \n", ["a", ""]), ("a\n\n", ["a", ""]), ("a", ["a"]),
    ("\ufeff \r\nb c\r\n", ["", "b c"]), ("\ufeff", []),
    ("c b a\nd\ne f\n", ["c b a", "d", "e f"])])
def test_every_line_is_decoded_most_words_first(tmp_path, text, lines):
    (tmp_path / "in").write_bytes(text.encode())
    sentences, positions = file_decoder.sorted_lines(str(tmp_path / "in"), "\n")
    assert [sentences[positions[number]] for number in range(len(lines))] == lines
    words = [len(sentence.split()) for sentence in sentences]
    assert len(sentences) == len(lines) and words == sorted(words, reverse=True)


def test_an_empty_delimiter_is_refused():
    search = decoding.decode_hparams("beam_size=4,delimiter=")
    with pytest.raises(UserError, match="decode_hparams=delimiter=: must not be empty"):
        file_checks.check_search(search)


def test_a_pipe_is_refused_as_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="/pipe: is a pipe or a device"):
        file_checks.check_input(str(tmp_path / "pipe"))


@pytest.mark.parametrize("content, is_ours", [
    ("", True), ('{"event": "train"}\n{"event": "tr', True), ('[\n {"bleu": 1}\n]\n', True),
    ("{}\n", True), ("[1] A note.\n", False), ("{draft}\n", False), ("[" * 10**5, False),
    ("A note.\n", False)])
def test_only_json_is_replaced_by_json(tmp_path, content, is_ours):
    (tmp_path / "x").write_text(content)
    with contextlib.nullcontext() if is_ours else pytest.raises(UserError, match="other than JSON"):
        file_checks.check_output(str(tmp_path / "x"), of_json=True)
