"""Query-key-value attention on recurrent and convolutional encoders (`rpr.models.seq2seq`)."""
from tensor2tensor.layers import common_hparams
from tensor2tensor.utils.hparam import HParams

from rpr.hparams.base import variant
from rpr.models.declarations import SEQ2SEQ_HPARAMS, add_hparams


def _with_falling_rate() -> HParams:
    """T2T's basic hparams and ours, and the learning rate of the recipe's author.

    It is 5e-4, times 0.9 every 5,000 steps, 5e-5 from step 110,000. T2T multiplies learning_rate by
    0.002 for Adam. A list of multiples is needed since its exponential decay has no minimum.
    """
    hparams = common_hparams.basic_params1()
    add_hparams(hparams, SEQ2SEQ_HPARAMS)
    hparams.learning_rate = 0.25
    hparams.learning_rate_warmup_steps = 0
    hparams.learning_rate_decay_scheme = "piecewise"
    hparams.add_hparam("learning_rate_boundaries", [5000 * drop for drop in range(1, 23)])
    hparams.add_hparam("learning_rate_multiples", [max(0.9 ** drop, 0.1) for drop in range(1, 23)])
    return hparams


# Width, optimizer, schedule, weight decay and clipping are those of the recipe's author. Layers,
# dropout and label smoothing are this project's.
qkv_seq2seq_base = variant(
    "qkv_seq2seq_base", _with_falling_rate, "Sequence to sequence, width 512, recurrent or "
    "convolutional, for WMT 2015 English-French.", hidden_size=512, kernel_width=3, dropout=0.1,
    label_smoothing=0.1, shared_embedding_and_softmax_weights=True, symbol_modality_num_shards=1,
    initializer="uniform_unit_scaling", initializer_gain=1.0, batch_size=4096, max_length=256,
    optimizer_adam_beta1=0.9, optimizer_adam_beta2=0.999, optimizer_adam_epsilon=1e-8,
    weight_decay=1e-8, clip_grad_norm=1.0)
qkv_seq2seq_small = variant(
    "qkv_seq2seq_small", qkv_seq2seq_base, "qkv_seq2seq of width 128 that learns a small corpus in "
    "minutes on a laptop.", hidden_size=128, batch_size=2048,
    # A short training needs a higher rate, which falls within it.
    learning_rate_schedule="constant*linear_warmup*rsqrt_decay", learning_rate_warmup_steps=400,
    learning_rate_constant=0.1)                              # peak: 0.005
variant("qkv_seq2seq_tiny", qkv_seq2seq_small, "qkv_seq2seq of one layer per side, width 32, for "
        "tests.", num_encoder_layers=1, num_decoder_layers=1, hidden_size=32, batch_size=512)
