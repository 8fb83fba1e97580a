"""Models for small machines: for small corpora, for trying things out, with word vectors."""
from rpr.hparams.base import absolute_variant, shaw2018, variant

# A short training needs a high learning rate, which pre-norm tolerates.
SHORT_TRAINING = {
    "layer_preprocess_sequence": "n", "layer_postprocess_sequence": "da",
    "learning_rate_schedule": "constant*linear_warmup*rsqrt_decay",
    "learning_rate_constant": 0.1, "learning_rate_warmup_steps": 400,
    "symbol_modality_num_shards": 1}

# The learning rate, at most 0.005, has the smallest development loss with absolute positions; with
# relative positions 0.2 is as good: gin/small_tuning.gin, gin/small_table1_tuned.gin.
rpr_small = variant(
    "rpr_small", shaw2018, "A model of 3+3 layers, width 128, k=16, that learns a small corpus in "
    "minutes on a laptop.", **SHORT_TRAINING, num_hidden_layers=3, hidden_size=128,
    filter_size=512, num_heads=4, batch_size=2048)
absolute_variant(rpr_small)
absolute_variant(variant(
    "rpr_tiny", rpr_small, "A model of 2+2 layers, width 32, k=4, for tests; it learns toy "
    "problems.", num_hidden_layers=2, hidden_size=32, filter_size=64, num_heads=2,
    max_relative_position=4, batch_size=512, learning_rate_constant=0.2))    # peak: 0.01

# The small Transformer of Wu et al. 2021 (Good for Misconceived Reasons).
absolute_variant(variant(
    "rpr_multi30k", rpr_small, "A model of 4+4 layers, width 128, k=16, dropout 0.3, about 2.6 "
    "million parameters.", num_hidden_layers=4, filter_size=256, layer_prepostprocess_dropout=0.3,
    attention_dropout=0.0, relu_dropout=0.0, batch_size=4096, learning_rate_warmup_steps=2000,
    learning_rate_constant=0.2236))                          # peak: 0.005

europarl_lite = variant(
    "europarl_lite", shaw2018, "A model of 2+2 layers, width 300, 4 heads of 50, fixed word "
    "vectors, Nesterov momentum.", position="scaled_sinusoid",
    num_hidden_layers=2, filter_size=600, num_heads=4, hidden_size=300,      # of the word vectors
    attention_key_channels=200, attention_value_channels=200,
    pretrained_source_embeddings="vectors.translate_deen_europarl_words.de.vec",
    pretrained_target_embeddings="vectors.translate_deen_europarl_words.en.vec",
    shared_embedding_and_softmax_weights=False, symbol_modality_num_shards=1,
    masked_softmax=True, norm_type="layer_without_scale",
    layer_preprocess_sequence="n", layer_postprocess_sequence="da",
    layer_prepostprocess_dropout_broadcast_dims="1",         # one mask for all positions
    loss_per_sentence=True, clip_grad_norm=1.0, optimizer="momentum",
    optimizer_momentum_momentum=0.9, optimizer_momentum_nesterov=True,
    learning_rate_schedule="constant*cosine_restarts", learning_rate_constant=0.5,
    learning_rate_restart_steps=10000, learning_rate_restart_t_mul=2.0,
    learning_rate_restart_m_mul=0.9, learning_rate_restart_alpha=0.01)
variant("europarl_full", europarl_lite, "europarl_lite with the base model's 6+6 layers, 8 heads "
        "of 64 and feed-forward of 2,048.", num_hidden_layers=6, filter_size=2048, num_heads=8,
        attention_key_channels=512, attention_value_channels=512)
