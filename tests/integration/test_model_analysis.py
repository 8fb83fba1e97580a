"""Tables of relative positions read from a real checkpoint."""
import json

import numpy as np

from rpr.experiments.run_directory import RunDirectory
from rpr.inference import inspector
from rpr.report import model_analysis


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


def test_lengths_of_other_sources_are_not_used(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "scores.json").write_text("{}")
    source = ["one two", "three"]
    np.savez(run / "learned.npz", source_lengths=np.array([7, 8]),
             source_sha256=np.array(model_analysis._digest(source)))
    run_dirs = [RunDirectory(str(run))]
    lengths, unit = model_analysis.source_lengths(source, run_dirs)
    assert (lengths.tolist(), unit) == ([7, 8], "sub-words")
    lengths, unit = model_analysis.source_lengths(["other", "text of two"], run_dirs)
    assert (lengths.tolist(), unit) == ([1, 3], "words")
    for arrays in ({}, {"source_lengths": np.array([7])}):
        np.savez(run / "learned.npz", **arrays,
                 source_sha256=np.array(model_analysis._digest(source)))
        lengths, unit = model_analysis.source_lengths(source, run_dirs)
        assert (lengths.tolist(), unit) == ([2, 1], "words")
