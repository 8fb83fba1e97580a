"""Tables of relative positions read from a real checkpoint."""
import json

import numpy as np
import pytest

import rpr
from rpr.evaluation import test_sets
from rpr.experiments.run_directory import RunDirectory
from rpr.inference import inspector
from rpr.report import model_analysis
from rpr.utils.errors import UserError


def test_tables_are_read_from_a_checkpoint(trained):
    import tensorflow as tf
    checkpoint = tf.train.latest_checkpoint(str(trained.output_dir))
    tables = inspector.relative_tables(checkpoint)
    hparams = json.loads((trained.output_dir / "hparams.json").read_text())
    shape = tables["encoder_keys"].shape
    assert set(tables) == {f"{side}_{kind}" for side in model_analysis.SIDES
                           for kind in model_analysis.KINDS}
    assert (shape[0], shape[2]) == (hparams["num_hidden_layers"],
                                    2 * hparams["max_relative_position"] + 1)
    name = ("rpr_transformer/body/decoder/layer_0/self_attention/multihead_attention/"
            "dot_product_attention_relative/relative_positions_values/embeddings")
    reader = tf.train.load_checkpoint(checkpoint)
    if name not in reader.get_variable_to_shape_map():
        name = name.replace("rpr_", "")
    np.testing.assert_array_equal(tables["decoder_values"][0].ravel(),
                                  reader.get_tensor(name).ravel())


@pytest.mark.parametrize(("position", "heads"), [
    ("relative@heads1:relative", 2), ("relative@heads2:alibi", 1), ("relative@2:alibi", 2),
    ("relative@1:relative@2@heads1:none", None)])
def test_tables_of_some_heads_and_layers_are_found(position, heads, tmp_path):
    import tensorflow.compat.v1 as tf
    network = rpr.build("rpr_tiny", f"position={position},max_relative_position=3",
                        vocabulary_size=11)
    with network._session.graph.as_default():
        checkpoint = tf.train.Saver().save(network._session, str(tmp_path / "model"))
        values = {variable.name: network._session.run(variable)
                  for variable in tf.global_variables() if "encoder" in variable.name
                  and "relative_positions_keys" in variable.name}
    if heads is None:
        with pytest.raises(UserError, match="_(keys|values): layers have 2, 1 tables"):
            inspector.relative_tables(checkpoint)
        return
    tables = inspector.relative_tables(checkpoint)["encoder_keys"]
    assert tables.shape[1] == heads
    np.testing.assert_array_equal(
        tables.reshape(-1, 7, 16),
        np.concatenate([values[name] for name in sorted(values)]))


def test_lengths_of_other_sources_are_not_used(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "scores.json").write_text("{}")
    source = ["one two", "three"]
    np.savez(run / "learned.npz", source_lengths=np.array([7, 8]),
             source_sha256=np.array(test_sets.digest([source])))
    run_dirs = [RunDirectory(str(run))]
    lengths, unit = model_analysis.source_lengths(source, run_dirs)
    assert (lengths.tolist(), unit) == ([7, 8], "sub-words")
    lengths, unit = model_analysis.source_lengths(["other", "text of two"], run_dirs)
    assert (lengths.tolist(), unit) == ([1, 3], "words")
    for arrays in ({}, {"source_lengths": np.array([7])}):
        np.savez(run / "learned.npz", **arrays,
                 source_sha256=np.array(test_sets.digest([source])))
        lengths, unit = model_analysis.source_lengths(source, run_dirs)
        assert (lengths.tolist(), unit) == ([2, 1], "words")
