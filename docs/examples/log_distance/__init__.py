"""A position scheme of your own: a logarithmic penalty of the distance."""
import tensorflow.compat.v1 as tf

from rpr import positions


@positions.register("log_distance")
class LogDistance(positions.Scheme):
    """-c log(1 + |i - j|), added to the logits of every head."""
    settings = (
        positions.Setting("log_distance_c", 1.0, "slope of the logarithmic bias", minimum=0),
    )

    def bias(self, layout, dtype):
        distances = tf.cast(tf.abs(layout.relative_positions()), dtype)
        return -self.hparams.log_distance_c * tf.math.log(1 + distances)    # [1, 1, queries, keys]
