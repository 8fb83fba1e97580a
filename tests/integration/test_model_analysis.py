"""Tables of relative positions read from a real checkpoint."""
import json

import numpy as np

from rpr.report import model_analysis


def test_tables_are_read_from_a_checkpoint(trained):
    import tensorflow as tf
    checkpoint = tf.train.latest_checkpoint(str(trained.output_dir))
    tables = model_analysis.relative_tables(checkpoint)
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
