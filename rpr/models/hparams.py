"""rpr.models.hparams"""


# A set of T2T's own says its positions in `pos` and `self_attention_type`.
T2T_POSITIONS = {"timing": "sinusoid", "emb": "learned", "none": "none", None: "none"}


def add_position_hparams(hparams, position, max_relative_position, heads_share_relative_embedding):
    """Gives a hparams set of T2T's own the hparams that this model reads, changing nothing else.

    Args:
      hparams: HParams without `position`; changed in place.
      position: scheme name(s), joined by `+`.
      max_relative_position: the clipping distance k.
      heads_share_relative_embedding: one table per layer (True), or per layer and head (False).

    Returns:
      the same hparams.
    """
    hparams.add_hparam("position", position)
    hparams.add_hparam("encoder_position", "")               # empty: position
    hparams.add_hparam("decoder_position", "")
    hparams.add_hparam("relative_keys", True)
    hparams.add_hparam("relative_values", True)
    hparams.add_hparam("max_relative_position_left", -1)     # -1: max_relative_position
    hparams.add_hparam("max_relative_position_right", -1)
    hparams.add_hparam("compatibility", "dot_product")       # of self-attention; or additive
    hparams.add_hparam("t5_num_buckets", 32)
    hparams.add_hparam("t5_max_distance", 128)
    hparams.add_hparam("t5_share_layers", True)
    hparams.add_hparam("rotary_base", 10000.0)
    hparams.add_hparam("rotary_fraction", 1.0)
    hparams.add_hparam("deberta_num_buckets", 32)
    hparams.add_hparam("deberta_max_distance", 128)
    hparams.add_hparam("norm_after_embedding", False)
    hparams.add_hparam("num_edge_labels", 1)
    hparams.add_hparam("pretrained_source_embeddings", "")              # files of word vectors that stay as
    hparams.add_hparam("pretrained_target_embeddings", "")              # they are, see rpr.models.pretrained_embeddings
    hparams.add_hparam("masked_softmax", False)              # see rpr.nn.attention.masked_softmax
    hparams.add_hparam("loss_per_sentence", False)           # see rpr.models.losses.weights_per_sentence
    hparams.add_hparam("learning_rate_restart_steps", 1000)  # see rpr.models.learning_rate.cosine_restarts
    hparams.add_hparam("learning_rate_restart_t_mul", 2.0)
    hparams.add_hparam("learning_rate_restart_m_mul", 1.0)
    hparams.add_hparam("learning_rate_restart_alpha", 0.0)
    hparams.max_relative_position = max_relative_position
    hparams.heads_share_relative_embedding = heads_share_relative_embedding
    hparams.pos = "none"                                     # else T2T's decoding loop would add it
    return hparams
