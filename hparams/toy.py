"""Models for generated problems that are learned in minutes on one core."""
from rpr.hparams.base import shaw2018, variant
from rpr.hparams.small import SHORT_TRAINING

toy_reverse = variant(
    "toy_reverse", shaw2018, "A model of 2+2 layers, width 128, 8 heads, sinusoids, that learns "
    "toy_reverse_repeats.", position="sinusoid", num_hidden_layers=2, hidden_size=128,
    num_heads=8, filter_size=256, symbol_modality_num_shards=1, norm_after_embedding=True,
    label_smoothing=0.0, batch_size=32, use_fixed_batch_size=True,           # 32 sequences
    learning_rate_warmup_steps=400, optimizer_adam_epsilon=1e-5, clip_grad_norm=5.0)
toy_graph = variant(
    "toy_graph", shaw2018, "A model of 4+2 layers, width 64, edges between its inputs, that learns "
    "graph_paths.", **SHORT_TRAINING, position="graph", max_relative_position=8,
    num_edge_labels=9,                                       # none, and four in both directions
    num_encoder_layers=4, num_decoder_layers=2, hidden_size=64, num_heads=4, filter_size=128,
    layer_prepostprocess_dropout=0.0,                        # no example is seen twice
    label_smoothing=0.0, batch_size=64, use_fixed_batch_size=True)           # 64 graphs
# From github.com/google-deepmind/randomized_positional_encodings: Adam with rate 1e-3, gradients
# clipped to norm 1, 128 sequences. Sums of layers have dropout 0.1.
ruoss2023 = variant(
    "ruoss2023", shaw2018, "The encoder of Ruoss et al. 2023 without a decoder: 5 layers, width "
    "64, 8 heads, post-norm.", position="none", answer_symbol=2,             # _ of the tasks
    num_encoder_layers=5, hidden_size=64, num_heads=8, filter_size=256,
    symbol_modality_num_shards=1, label_smoothing=0.0, batch_size=128,
    use_fixed_batch_size=True, max_length=2048,              # positions that are drawn from
    learning_rate_schedule="constant", learning_rate_constant=0.001, clip_grad_norm=1.0,
    optimizer_adam_beta2=0.999, optimizer_adam_epsilon=1e-8)
