"""The word-level problems and their recipe: words, vocabularies, vectors, a run from end to end."""
import gzip
import itertools
import json
import re
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from conftest import CORPUS, python_script, rpr_command
from tensor2tensor.utils import registry

import rpr
from rpr.models import pretrained_embeddings
from rpr.problems import checks, europarl, vectors
from rpr.t2t import registration
from rpr.utils.errors import UserError

rpr.register()

EUROPARL, HELP = "translate_deen_europarl_words", "translate_deen_libreoffice_words"


def corpus(folder, pairs):
    """Writes pairs as the two files of Europarl."""
    folder.mkdir(exist_ok=True)
    for side, language in enumerate(("de", "en")):
        (folder / f"europarl-v7.de-en.{language}").write_text(
            "".join(pair[side] + "\n" for pair in pairs), encoding="utf-8")
    return str(folder)


def test_a_line_of_words_is_taken_as_it_is():
    line = "portugal , spanien und österreich ."
    assert europarl.words(line, "de") == line.split() and europarl.words("  ", "de") == []


def test_spacys_tokens_of_letters_and_two_marks_are_kept_in_lower_case():
    assert europarl.words("Portugal, Spanien (und 3 Länder) z. B. gehören dazu!", "de") == [
        "portugal", ",", "spanien", "und", "länder", "gehören", "dazu"]
    assert europarl.words("I don't know, mother-in-law.", "en") == [
        "i", "do", "know", ",", "mother", "in", "law", "."]
    pairs = list(itertools.islice(registry.problem(HELP).text_pairs("train", ""), 200))
    assert len(pairs) == 200
    for pair in pairs:                                       # as words they stay what they are
        for line, language in zip(pair, ("de", "en"), strict=True):
            assert line and " ".join(europarl.words(line, language)) == line


def test_without_spacy_a_line_says_how_to_install_it(monkeypatch):
    europarl.tokenizer.cache_clear()
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[words\]'"):
        europarl.words("Ein Satz.", "de")
    europarl.tokenizer.cache_clear()


def test_sets_are_disjoint_and_nothing_empty_is_left(tmp_path, monkeypatch):
    pairs = [(f"satz {'x' * number}", f"sentence {'y' * number}") for number in range(1, 400)]
    folder = corpus(tmp_path / "text", [*pairs, ("", "nothing"), ("nichts", "")])
    found = {split: list(registry.problem(EUROPARL).text_pairs(split, folder))
             for split in checks.SPLITS}
    assert sorted(sum(found.values(), [])) == sorted(pairs)
    assert all(8 <= len(found[split]) <= 40 for split in ("dev", "test"))
    monkeypatch.setenv("RPR_MIRROR", folder)                 # or there
    assert list(registry.problem(EUROPARL).text_pairs("dev", str(tmp_path))) == found["dev"]
    monkeypatch.setenv("RPR_MIRROR", str(tmp_path))
    with pytest.raises(UserError, match="there is no training-parallel-europarl-v7.tgz"):
        list(registry.problem(EUROPARL).text_pairs("dev", str(tmp_path)))


def test_a_vocabulary_is_the_most_frequent_words_that_have_a_vector(tmp_path, monkeypatch):
    folder = corpus(tmp_path / "text", [("a b c d", "v w"), ("a b d e", "v"), ("a", "w x")] * 40)
    vectors.write(str(tmp_path / "de.vec"), 2, [
        ("z", "9 9"), ("D", "1 2"), ("</s>", "5 5"), ("b", "3 4"), ("d", "9 9"), ("a", "5 6"),
        ("c", "7 8"), ("e", "0 1")])
    monkeypatch.setenv("RPR_VECTORS_DE", str(tmp_path / "de.vec"))
    monkeypatch.setenv("RPR_VECTORS_ROWS", "7")              # not the last
    monkeypatch.setenv("RPR_WORDS_VOCAB_SIZE", "3")
    problem = registry.problem(EUROPARL)
    source, target = problem.get_or_create_vocab(str(tmp_path), folder)
    path = tmp_path / f"vocab.{EUROPARL}.de.words"
    assert path.read_text().split() == ["<pad>", "<EOS>", "<unk>", "a", "b", "d"]
    assert source.encode("d a e") == [5, 3, 2] and source.decode([3, 2]) == "a <unk>"
    assert source.vocab_size == 6
    assert target.decode_list(range(6)) == ["<pad>", "<EOS>", "<unk>", "v", "w", "x"]
    of_the_words = str(tmp_path / f"vectors.{EUROPARL}.de.vec")
    assert [row[1:] for row in vectors.read(of_the_words)] == [
        ("d", "1 2"), ("</s>", "5 5"), ("b", "3 4"), ("a", "5 6")]
    assert checks.vocabulary_files(problem) == [path.name, f"vocab.{EUROPARL}.en.words"]
    assert registry.problem(EUROPARL).feature_encoders(str(tmp_path))["inputs"].encode("b") == [4]
    assert "vectors de" in problem.sources(folder) and problem.vector_rows == 7
    monkeypatch.setenv("RPR_VECTORS_EN", "nowhere.vec")
    with pytest.raises(UserError, match="RPR_VECTORS_EN=nowhere.vec: no such file"):
        problem.sources(folder)


@pytest.mark.parametrize("variable, value", [("RPR_WORDS_VOCAB_SIZE", "0"),
                                             ("RPR_VECTORS_ROWS", "many")])
def test_a_wrong_number_is_named(tmp_path, monkeypatch, variable, value):
    folder = corpus(tmp_path / "text", [("a b", "c d")] * 9)
    vectors.write(str(tmp_path / "de.vec"), 1, [("a", "1")])
    monkeypatch.setenv("RPR_VECTORS_DE", str(tmp_path / "de.vec"))
    monkeypatch.setenv(variable, value)
    with pytest.raises(UserError, match=f"{variable}={value}: a whole number from 1 to"):
        registry.problem(EUROPARL).get_or_create_vocab(str(tmp_path), folder)


def test_every_setting_is_the_recipes():
    recipe = dict(
        hidden_size=300, position="scaled_sinusoid", layer_preprocess_sequence="n",
        layer_postprocess_sequence="da", norm_type="layer_without_scale", masked_softmax=True,
        layer_prepostprocess_dropout_broadcast_dims="1", loss_per_sentence=True,
        optimizer="momentum", optimizer_momentum_nesterov=True,
        learning_rate_schedule="constant*cosine_restarts",
        shared_embedding_and_softmax_weights=False,
        pretrained_source_embeddings=f"vectors.{EUROPARL}.de.vec",
        pretrained_target_embeddings=f"vectors.{EUROPARL}.en.vec")
    sizes = {
        "europarl_lite": dict(num_hidden_layers=2, num_heads=4, filter_size=600,
                              attention_key_channels=200, attention_value_channels=200),
        "europarl_full": dict(num_hidden_layers=6, num_heads=8, filter_size=2048,
                              attention_key_channels=512, attention_value_channels=512)}
    for name, size in sizes.items():
        values = registry.hparams(name).values()
        expected = {**recipe, **size}
        assert {key: values[key] for key in expected} == expected


def test_a_learning_rate_is_drawn(tmp_path):
    out = tmp_path / "rate.png"
    done = python_script("plot_learning_rate.py", out, "--hparams_set=europarl_lite")
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")


def some_words(language, count):
    """Lines of the embedded corpus as words, roughly: spaCy may not be there."""
    with gzip.open(CORPUS / f"train.en-de.{language}.gz", "rt", encoding="utf-8") as lines:
        for line in itertools.islice(lines, count):
            yield " ".join(re.findall(r"[^\W\d_]+|[.,]", line.lower()))


def test_a_run_from_text_and_vectors_to_a_translation(tmp_path, monkeypatch):
    """Europarl's own files, 1,000 pairs of the embedded corpus in their place."""
    text = corpus(tmp_path / "text", list(zip(some_words("de", 1000), some_words("en", 1000),
                                              strict=True)))
    done = python_script("small_vectors.py", tmp_path / "vectors", f"--problem={EUROPARL}",
                         f"--tmp_dir={text}", "--dimension=20")
    assert done.returncode == 0, done.stderr
    for language in ("de", "en"):
        monkeypatch.setenv(f"RPR_VECTORS_{language.upper()}", f"{tmp_path}/vectors/{language}.vec")
    monkeypatch.setenv("RPR_MIRROR", text)
    monkeypatch.setenv("RPR_WORDS_VOCAB_SIZE", "400")
    small = ("num_hidden_layers=1,hidden_size=20,attention_key_channels=24,"
             "attention_value_channels=24,filter_size=40,batch_size=1024")
    gin = tmp_path / "words.gin"
    gin.write_text("".join(f"run.{name} = {value!r}\n" for name, value in {
        "problem": EUROPARL, "hparams_set": "europarl_lite", "hparams": small, "train_steps": 20,
        "checkpoint_steps": 20, "eval_steps": 1, "average_checkpoints": 1, "beam_size": 2,
        "decode_batch_size": 100}.items()))
    run = tmp_path / "runs" / "words"
    rpr_command("run", gin, f"--run_dir={run}")
    data = run.parent / "data"
    scores = json.loads((run / "scores.json").read_text())
    assert scores["lines"] == len((data / f"{EUROPARL}.test.source.txt").read_text().splitlines())

    for side, language in (("input", "de"), ("target", "en")):
        reader = tf.train.load_checkpoint(str(run / "model" / "model.ckpt-20"))
        name, = (name for name in reader.get_variable_to_shape_map() if f"{side}_emb" in name)
        words = (data / f"vocab.{EUROPARL}.{language}.words").read_text().split()
        path = data / f"vectors.{EUROPARL}.{language}.vec"
        assert len(words) == 403
        np.testing.assert_array_equal(reader.get_tensor(name)[3:],
                                      vectors.table(str(path), words[3:]))
        path.unlink()                                        # nothing needs it any more
    done = rpr_command("translate", run, "das dialogfeld , und so weiter .", "--one_line")
    assert re.fullmatch(r"([^\W\d_]+|<unk>|[., ])*\[0\.\d{3}( [01]\.\d{3})*\] "
                        r"Score: -\d+\.\d{3}\n", done.stdout)


def test_vectors_of_another_size_are_refused_before_anything_is_written(tmp_path, monkeypatch):
    folder = corpus(tmp_path / "text", [("a b", "c d")] * 9)
    for name in ("DE", "EN"):
        vectors.write(str(tmp_path / "x.vec"), 1, [(word, "1") for word in "abcd"])
        monkeypatch.setenv(f"RPR_VECTORS_{name}", str(tmp_path / "x.vec"))
    problem = registry.problem(EUROPARL)
    problem.get_or_create_vocab(str(tmp_path), folder)
    hparams = registration.registered_hparams("europarl_lite")
    with pytest.raises(UserError, match="the vectors have 1 dimensions; hidden_size=300"):
        pretrained_embeddings.check(hparams, problem, str(tmp_path))
    hparams.hidden_size = 1
    pretrained_embeddings.check(hparams, problem, str(tmp_path))
