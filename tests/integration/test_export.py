"""`rpr export`: the exported model gives what the model gives."""
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tiny_models
from conftest import refused, rpr_command

from rpr.export import bundle, position_terms, to_ctranslate2, translator
from rpr.export.bundle import Search, add_translator
from rpr.inference.batches import until_end
from rpr.inference.model_session import ModelSession
from rpr.positions.layout import Layout
from rpr.t2t import trained_model
from rpr.utils.errors import UserError
from rpr.utils.interfaces import ModelRequest

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
LINES = ["Click the button.", "", "Opens the dialog _x\\ and costs 5$ or 6€ a year.", "日本"]


@pytest.fixture(scope="module")
def request_of(trained, lively):
    return ModelRequest(model="rpr_transformer", hparams_set="rpr_tiny",
                        problem=trained.text.problem, data_dir=str(trained.text.data_dir),
                        output_dir=str(trained.output_dir), checkpoint_path=lively)


@pytest.fixture(scope="module")
def model(request_of):
    """The model, and its session with greedy search."""
    found = trained_model.find_trained_model(request_of)
    return found, ModelSession(found.name, found.hparams, found.checkpoint, beam_size=1)


def flags(request):
    return [f"--{name}={value}" for name, value in vars(request).items() if value]


def test_the_reader_of_the_page_computes_the_logits(model, tmp_path):
    found, session = model
    bundle.save_safetensors(found, str(tmp_path))
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"),
                      re.MULTILINE | re.DOTALL)[-1]
    space: dict = {}
    exec(compile(code, str(PAGE), "exec"), space)
    reader = space["Model"](tmp_path / "model.safetensors")
    source, target = [5, 6, 7, 5, 9, 8, 11, 6, 30, 1], [8, 5, 12, 9, 20, 1]
    np.testing.assert_allclose(reader.logits(source, target),
                               session.logits([source], [target])[0], atol=2e-4)


def test_subwords_are_those_of_t2t(model):
    found, _ = model
    vocabulary = found.hparams.problem_hparams.vocabulary["inputs"]
    subwords = translator.Subwords(vocabulary._all_subtoken_strings)
    random = np.random.RandomState(0)
    letters = list("ab _\\u;9.,-'é€日\t\u00a0")
    for line in [*LINES, *("".join(random.choice(letters, 30)) for _ in range(50))]:
        assert subwords.encode(line) == vocabulary.encode(line.strip())
        ids = random.randint(2, vocabulary.vocab_size, 20)
        assert subwords.decode(ids) == re.sub("[\r\n]", " ", vocabulary.decode(ids))


def lively_model(model, hparams, tmp_path):
    """A session with random weights, and the model that reads them from a checkpoint."""
    found, _ = model
    values = tiny_models.hparams("rpr_tiny").parse(f"num_hidden_layers=1,{hparams}")
    values.problem, values.problem_hparams = found.hparams.problem, found.hparams.problem_hparams
    session = ModelSession("rpr_transformer", values, beam_size=1)
    with session._session.graph.as_default():
        tiny_models.lively(session._session)
        checkpoint = tf.train.Saver().save(session._session, str(tmp_path / "model.ckpt-1"))
    return session, found._replace(hparams=values, checkpoint=checkpoint)


@pytest.mark.parametrize("hparams", [
    "position=relative,max_relative_position_right=2,heads_share_relative_embedding=True,"
    "vocab_divisor=16",
    "position=relative+sinusoid,relative_values=False,layer_preprocess_sequence=none,"
    "layer_postprocess_sequence=dan,norm_after_embedding=True,num_decoder_layers=1",
    "encoder_position=t5_bias+sandwich,decoder_position=relative@heads1-1:alibi,relative_keys=False,"
    "use_target_space_embedding=False,shared_embedding_and_softmax_weights=False",
    "encoder_position=rotary+sinusoid,decoder_position=learned",
    "position=rotary,rotary_base=100.0"])                 # its first answer is empty
def test_ctranslate2_computes_the_model(model, hparams, tmp_path):
    pytest.importorskip("ctranslate2")
    session, other = lively_model(model, hparams, tmp_path)
    longest = to_ctranslate2.save(other, str(tmp_path))
    add_translator(other, str(tmp_path), Search(beam_size=1), "ctranslate2", longest)
    exported = translator.Translator(str(tmp_path), intra_threads=1)
    random = np.random.RandomState(0)
    sources = [[*random.randint(2, 300, length), 1] for length in (3, 1, 20, 9)]
    ids, scores = session.search(sources)
    for row, score, (best, *_) in zip(ids, scores, exported.search(sources), strict=True):
        assert best.ids == until_end(row).tolist()
        assert best.score == pytest.approx(score, rel=1e-4)    # also of those that are cut


def test_a_hypothesis_that_is_cut_is_that_of_the_sentence_alone(model, tmp_path):
    pytest.importorskip("ctranslate2")
    session, other = lively_model(model, "position=relative", tmp_path)
    longest = to_ctranslate2.save(other, str(tmp_path))
    add_translator(other, str(tmp_path), Search(3, extra_length=5), "ctranslate2", longest)
    exported = translator.Translator(str(tmp_path), intra_threads=1)
    random = np.random.RandomState(0)
    sources = [[*random.randint(2, 300, length), 1] for length in (3, 1, 9)]
    cut = 0
    for source, hypotheses in zip(sources, exported.search(sources), strict=True):
        alone, = exported.search([source])
        assert [each.ids for each in hypotheses] == [each.ids for each in alone]
        for each in hypotheses:
            row, = session.log_probabilities([source], [each.ids], found=True)
            penalty = ((5 + len(each.ids)) / 6) ** 0.6 if each.ids[-1] == 1 else 1
            assert each.score == pytest.approx(row.sum() / penalty, rel=1e-4)
            cut += each.ids[-1] != 1 and len(each.ids) == len(source) + 5
    assert cut > 3                                   # not only of the longest


def test_beam_search_is_scored_as_by_the_model(request_of, model, tmp_path):
    pytest.importorskip("ctranslate2")
    found, _ = model
    done = rpr_command("export", *flags(request_of), "--format=ctranslate2", "--beam_size=3",
                       f"--to={tmp_path / 'out'}")
    assert "translate.py" in done.stderr
    session = ModelSession(found.name, found.hparams, found.checkpoint, 3)
    exported = translator.Translator(str(tmp_path / "out"), intra_threads=1)
    sources = [[*exported.source.encode(line), 1] for line in LINES if line]
    ids, scores = session.search(sources)
    pairs = list(zip(ids, scores, exported.search(sources), strict=True))
    same = [(score, best.score) for row, score, (best, *_) in pairs
            if best.ids == until_end(row).tolist()]
    assert exported.translate([""]) == [("", 0)]
    assert exported.search([[1]])[0][0].ids == [1]    # it ends: it was not cut at the limit
    assert same and all(a == pytest.approx(b, rel=1e-3) for a, b in same)
    assert f"--to={tmp_path}: is there already" in refused(
        "export", *flags(request_of), "--format=ctranslate2", f"--to={tmp_path}")


def test_a_saved_model_needs_only_tensorflow(request_of, trained, tmp_path):
    folder = tmp_path / "out"
    rpr_command("export", *flags(request_of), "--format=saved_model", f"--to={folder}",
                "--beam_size=2", "--alpha=1", "--extra_length=9")
    code = ("import sys, runpy; sys.argv = ['translate.py', '--scores']; "
            f"runpy.run_path({str(folder / 'translate.py')!r}, run_name='__main__'); "
            "assert not {'rpr', 'tensor2tensor'} & set(sys.modules)")
    (tmp_path / "input").write_text("".join(line + "\n" for line in LINES), encoding="utf-8")
    with open(tmp_path / "input") as lines:
        done = subprocess.run([sys.executable, "-P", "-c", code], stdin=lines, cwd=tmp_path,
                              capture_output=True, text=True, check=True,
                              env={**os.environ, "PYTHONUTF8": "1"})
    expected = rpr_command("translate", *flags(request_of), "--beam_size=2", "--alpha=1", "--json",
                           stdin="".join(line + "\n" for line in LINES)).stdout.splitlines()
    for line, record in zip(done.stdout.splitlines(), map(json.loads, expected), strict=True):
        text, score = line.split("\t")
        assert len(record["tokens"]) > 9 or (text == record["translation"] and float(
            score) == pytest.approx(record["score"], rel=1e-3))


@pytest.mark.parametrize(("given", "line"), [
    (["--to=out"], "--format"), (["--format=saved_model"], "--to"),
    (["--format=safetensors", "--to=out", "--beam_size=7"], "--beam_size=7: the format safetens"),
    (["--format=saved_model", "--to=out", "--quantization=int8"], "--quantization=int8: the form"),
    (["--format=saved_model", "--to=."], "--to=.: is there already")])
def test_flags_are_checked_before_tensorflow_is_loaded(given, line, tmp_path):
    (tmp_path / "file").touch()                     # in --to=.
    code = ("import sys; from rpr import cli; code = cli.main(sys.argv[1:]); "
            "sys.exit('tensorflow is loaded' if 'tensorflow' in sys.modules else code)")
    done = subprocess.run([sys.executable, "-c", code, "export", "runs/x", *given], cwd=tmp_path,
                          capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(PAGE.parents[1])})
    assert done.returncode == 1 and line in done.stderr and done.stderr.count("\n") == 1


def test_a_refused_export_leaves_no_directory(request_of, tmp_path):
    for more in ("--hparams_set=transformer_tiny", f"--to={tmp_path}/p/q/[1]"):
        refused("export", *flags(request_of), "--format=saved_model", f"--to={tmp_path}/p/q/r",
                more)
        assert not list(tmp_path.iterdir())
    for error in (ZeroDivisionError, None):
        with contextlib.suppress(ZeroDivisionError), \
                bundle.new_directory(str(tmp_path / "p" / "q" / "r")):
            if error:
                raise error
        assert [path.name for path in tmp_path.rglob("*")] == ([] if error else ["p", "q", "r"])


def test_a_link_to_an_empty_directory_leads_to_the_export(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with bundle.new_directory(str(tmp_path / "link")) as directory:
        Path(directory, "model").touch()
    assert (tmp_path / "link").is_symlink() and os.listdir(tmp_path / "there") == ["model"]
    with pytest.raises(UserError, match="link: is there already"), \
            bundle.new_directory(str(tmp_path / "link")):
        pass


@pytest.mark.parametrize(("hparams", "line"), [
    ("position=rotary,rotary_scaling=ntk,rotary_scaling_factor=2.0", "position=rotary: CTransl"),
    ("decoder_position=randomized", "decoder_position=randomized: "),
    ("encoder_position=alibi,alibi_directions=heads", "encoder_position=alibi: "),
    ("decoder_only=True", "decoder_only=True: CTranslate2 cannot compute it"),
    ("cross_position=alibi", "cross_position=alibi: "),
    ("compatibility=additive", "compatibility=additive: "),
    ("sampling_method=random", "sampling_method=random: "),
    ("layer_preprocess_sequence=n,layer_postprocess_sequence=dan", "layer_preprocess_sequence=n")])
def test_what_ctranslate2_lacks_is_refused(model, hparams, line, tmp_path):
    pytest.importorskip("ctranslate2")
    found, _ = model
    values = tiny_models.hparams("rpr_tiny").parse(f"num_hidden_layers=1,{hparams}")
    values.problem, values.problem_hparams = found.hparams.problem, found.hparams.problem_hparams
    with pytest.raises(UserError, match=re.escape(line)):
        to_ctranslate2.save(found._replace(hparams=values), str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_scheme_that_is_by_distance_only_near_the_start_is_refused(model, tmp_path):
    _, other = lively_model(model, "encoder_position=axial_t5_bias,axial_width=32", tmp_path)
    with pytest.raises(ValueError, match="^$"):
        position_terms.read_terms(other, "inputs")


def test_a_scheme_with_few_positions_is_read(model, tmp_path):
    _, other = lively_model(model, "encoder_position=relative_unclipped,max_length=16", tmp_path)
    assert position_terms.read_terms(other, "inputs").longest == 16


def test_a_line_longer_than_the_positions_is_named(model, tmp_path):
    session, other = lively_model(model, "encoder_position=learned,max_length=16", tmp_path)
    session.save(str(tmp_path / "saved"))
    add_translator(other, str(tmp_path / "saved"), Search(), "saved_model", session.longest_source)
    done = subprocess.run([sys.executable, tmp_path / "saved" / "translate.py"],
                          input="Yes.\n" + "a b " * 20, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert re.search(r"^translate.py: line 2: \d+ sub-words; the model has 16 positions$",
                     done.stderr, re.MULTILINE)


def test_a_source_leaves_a_position_for_the_answer_after_it(model, tmp_path):
    session, _ = lively_model(model, "decoder_only=True,position=learned,max_length=16", tmp_path)
    with pytest.raises(UserError, match="max_length=16"):
        session.search([[5] * session.longest_source + [5]])
    assert session.longest_source == 15


def test_a_saved_model_where_tensorflow_cannot_read_it_is_refused(request_of, tmp_path):
    assert "TensorFlow takes [ in a path for a pattern" in refused(
        "export", *flags(request_of), "--format=saved_model", f"--to={tmp_path / '[1]'}")


def test_terms_that_are_not_those_of_the_scheme_are_refused():
    random = np.random.RandomState(0)
    q, k, v = (random.randn(1, 2, 5, 3) for _ in range(3))
    weights = np.full([1, 2, 5, 5], 0.2)
    terms = position_terms.Terms(*(np.zeros(shape) for shape in (
        [2, 1, 3], [2, 1], [2, 3], [2, 1, 3])))
    scores = q @ k.swapaxes(2, 3)
    position_terms._compare(terms, Layout(5, 5), q, k, weights, v, scores + 1, weights @ v)
    for wrong in ((scores * 1.01, weights @ v), (scores, weights @ v + 0.01)):
        with pytest.raises(ValueError, match="^$"):
            position_terms._compare(terms, Layout(5, 5), q, k, weights, v, *wrong)
