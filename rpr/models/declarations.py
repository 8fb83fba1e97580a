"""Declarations of hyperparameters: our own with their defaults, and the ranges of T2T's.

`add_position_hparams` adds ours to an hparams set of T2T. `check_ranges` refuses a value that is
out of range, before anything is built or written.
"""
from typing import Any

from tensor2tensor.utils import misc_utils, registry

from rpr import positions
from rpr.models.live_hparams import FACTORS
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

# The hparams of single schemes are declared in their classes, see `rpr.positions.Scheme.settings`.
POSITION_HPARAMS = (
    Setting("position", "none", "position scheme(s), joined by + (rpr list schemes)"),
    Setting("encoder_position", "", "position scheme(s) of the encoder; empty: position"),
    Setting("decoder_position", "", "position scheme(s) of the decoder; empty: position"),
    Setting("cross_position", "", "position scheme(s) of the decoder's attention to the encoder"),
    Setting("compatibility", "dot_product", "compatibility function of self-attention",
            choices=("dot_product", "additive")),
)
MODEL_HPARAMS = (
    Setting("norm_after_embedding", False, "layer normalization of the embedded words"),
    Setting("pretrained_source_embeddings", "", "file of word vectors for the source; not trained"),
    Setting("pretrained_target_embeddings", "", "file of word vectors for the target; not trained"),
    Setting("masked_softmax", False, "softmax over the unmasked keys only; a fully masked query "
            "attends to nothing"),
    Setting("loss_per_sentence", False, "each sentence has the same weight in the loss"),
    Setting("decoder_only", False, "no encoder: the decoder reads the source and then the target"),
    Setting("answer_symbol", 0, "without a decoder: symbol of the source in whose places the "
            "encoder answers; 0: with a decoder", minimum=0),
    Setting("learning_rate_restart_steps", 1000, "steps until the first restart of cosine_restarts",
            minimum=1),
    Setting("learning_rate_restart_t_mul", 2.0, "factor of the period after each restart",
            minimum=1),
    Setting("learning_rate_restart_m_mul", 1.0, "factor of the learning rate after each restart",
            minimum=0),
    Setting("learning_rate_restart_alpha", 0.0, "learning rate at the end of a period, as a "
            "fraction of that at its start", minimum=0, maximum=1),
)
SEQ2SEQ_HPARAMS = (
    Setting("encoder", "birnn", "encoder of qkv_seq2seq", choices=("birnn", "cnn")),
    Setting("attention_flavour", "dot", "attention from decoder to encoder",
            choices=("dot", "bilinear", "mlp")),
    Setting("position", "none", "none, sinusoid, scaled_sinusoid or learned"),
    Setting("encoder_position", "", "position scheme of the encoder; empty: position"),
    Setting("decoder_position", "", "position scheme of the decoder; empty: position"),
    Setting("num_encoder_layers", 2, "encoder layers", minimum=0, maximum=1000),
    Setting("num_decoder_layers", 2, "decoder layers", minimum=0, maximum=1000),
)


def _each(*names: str, default: float = 0, **bounds: Any) -> tuple[Setting, ...]:
    return tuple(Setting(name, default, **bounds) for name in names)


_MOST_LAYERS = 1000                                   # more would take hours to build
_LARGEST_WIDTH = 2**16
# T2T declares these without a range. The defaults here only give the types: T2T's sets have theirs.
T2T_HPARAMS = (
    *_each("num_heads", "batch_size", "min_length_bucket", "learning_rate_decay_steps",
           "learning_rate_cosine_cycle_steps", minimum=1),
    *_each("num_hidden_layers", "symbol_modality_num_shards", "kernel_width",
           minimum=1, maximum=_MOST_LAYERS),
    *_each("hidden_size", "filter_size", "vocab_divisor", minimum=1, maximum=_LARGEST_WIDTH),
    *_each("num_encoder_layers", "num_decoder_layers", minimum=0, maximum=_MOST_LAYERS),
    *_each("attention_key_channels", "attention_value_channels", minimum=0,
           maximum=_LARGEST_WIDTH),
    *_each("max_length", "min_length", "max_input_seq_length", "max_target_seq_length",
           "learning_rate_warmup_steps", "split_to_length",
           "optimizer_multistep_accumulate_steps", minimum=0),
    Setting("max_relative_position", 0, minimum=0, maximum=positions.relative.MAX_CLIP),
    *_each("dropout", "attention_dropout", "layer_prepostprocess_dropout", "relu_dropout",
           "symbol_dropout", "label_smoothing", "optimizer_adam_beta1", "optimizer_adam_beta2",
           default=0.0, minimum=0, below=1),
    Setting("optimizer_momentum_momentum", 0.0, minimum=0, maximum=1),
    Setting("scheduled_sampling_prob", 0.0, choices=(0.0, 1.0)),
    Setting("scheduled_sampling_gold_mixin_prob", 0.0, minimum=0, maximum=1),
    Setting("scheduled_sampling_warmup_schedule", None, choices=("exp", "linear", "sigmoid")),
    *_each("initializer_gain", "norm_epsilon", default=0.0, above=0),
    *_each("learning_rate", "learning_rate_constant", "learning_rate_decay_rate",
           "optimizer_adam_epsilon", "clip_grad_norm", "weight_decay", "weight_noise",
           "grad_noise_scale", "sampling_temp", default=0.0, minimum=0),
    Setting("length_bucket_step", 0.0, above=1),
    Setting("initializer", None, choices=("orthogonal", "uniform", "normal_unit_scaling",
                                          "uniform_unit_scaling", "xavier", "")),
    Setting("norm_type", None, choices=("layer", "layer_without_scale", "noam", "l2", "none")),
    Setting("learning_rate_decay_scheme", None, choices=(
        "none", "noam", "exp", "piecewise", "cosine", "sqrt", "")),
    Setting("activation_dtype", None, choices=("float32", "bfloat16", "float16")),
    Setting("weight_dtype", None, choices=("float32",)),     # T2T's bfloat16 weights do not run
    Setting("sampling_method", None, choices=("argmax", "random", "random_per_example")),
    Setting("multiply_embedding_mode", None, choices=("sqrt_depth", "none", "")),
)

# How T2T's own hparams sets name their position signal, in `pos`, as a value of `position`.
T2T_POSITIONS: dict[str | None, str] = {
    "timing": "sinusoid", "emb": "learned", "none": "none", None: "none"}


def add_hparams(hparams: HParams, settings: tuple[Setting, ...]) -> None:
    """Adds declared hparams with their defaults to T2T's HParams, or resets them."""
    for setting in settings:
        if setting.name in hparams:
            hparams.set_hparam(setting.name, setting.default)
        else:
            hparams.add_hparam(setting.name, setting.default)


def add_position_hparams(hparams: HParams, position: str, max_relative_position: int,
                         heads_share_relative_embedding: bool) -> HParams:
    """Adds the hparams of `rpr_transformer`, in place, to a set of T2T without `position`."""
    taken = {setting.name for setting in (*POSITION_HPARAMS, *MODEL_HPARAMS)}
    for setting in positions.declared_settings():
        if setting.name in hparams or setting.name in taken:
            raise UserError(f"a position scheme declares the hparam {setting.name}, which the "
                            "model has already: give it another name")
    add_hparams(hparams, _transformer_settings())
    hparams.position = position
    hparams.max_relative_position = max_relative_position
    hparams.heads_share_relative_embedding = heads_share_relative_embedding
    hparams.pos = "none"                     # else T2T's decoding loop would add its own signal
    return hparams


def sides(hparams: HParams) -> tuple[str, ...]:
    """The stacks of a model, as `positions.build` takes them: encoder, decoder, or both."""
    if hparams.get("answer_symbol"):
        return ("inputs",)
    return ("targets",) if hparams.get("decoder_only") else ("inputs", "targets")


def _transformer_settings() -> tuple[Setting, ...]:
    return (*POSITION_HPARAMS, *positions.declared_settings(), *MODEL_HPARAMS)


def free_after_training() -> set[str]:
    """The names of hparams of which decoding and evaluation may give a model another value."""
    return {setting.name for setting in _transformer_settings() if setting.after_training}


def declared(hparams: HParams) -> list[Setting]:
    """The declarations of the hparams in a set: ours, then those of T2T's that have a range."""
    ours = SEQ2SEQ_HPARAMS if "attention_flavour" in hparams else _transformer_settings()
    return [setting for setting in (*ours, *T2T_HPARAMS) if setting.name in hparams]


def check_ranges(hparams: HParams) -> None:
    """Refuses values out of range: a ValueError with the hparam, its value and what is allowed."""
    for setting in declared(hparams):
        error = setting.error(hparams.get(setting.name))
        if error:
            raise ValueError(error)
    _check_names(hparams)
    longest = hparams.max_length or hparams.batch_size
    if hparams.min_length > longest:
        raise ValueError(f"min_length={hparams.min_length}: must be at most max_length, else "
                         f"batch_size, which is {longest}")
    if hparams.get("max_length", 0) == 1:
        raise ValueError("max_length=1: must be 0 (batch_size is the limit) or at least 2, since "
                         "every sentence ends in an end-of-sentence symbol")
    keep = hparams.get("sampling_keep_top_k", -1)
    if keep != -1 and keep < 1:
        raise ValueError(f"sampling_keep_top_k={keep}: must be -1 (all symbols) or at least 1")
    if hparams.sampling_method == "random_per_example" and hparams.sampling_temp == 0:
        raise ValueError("sampling_temp=0.0 with sampling_method=random_per_example: must be above "
                         "0; sampling_method=argmax takes the most probable symbol")


def _check_names(hparams: HParams) -> None:
    """Checks hparams that name optimizers, learning-rate factors and steps of a sub-layer."""
    optimizers = [name for name in registry.list_optimizers() if name != "adam_w"]   # T2T's fails
    if misc_utils.camelcase_to_snakecase(hparams.optimizer) not in optimizers:   # as T2T does
        raise ValueError(f"optimizer={hparams.optimizer}: must be one of "
                         f"{', '.join(sorted(optimizers))}")
    schedule = hparams.learning_rate_schedule
    factors = [name.strip() for name in schedule.split("*") if name.strip()]
    for name in factors:
        if name not in FACTORS:
            raise ValueError(f"learning_rate_schedule={schedule}: no factor is called '{name}'; "
                             f"factors, joined by *, are {', '.join(FACTORS)}")
    for name in ("linear_warmup", "rsqrt_decay", "rsqrt_normalized_decay"):
        if name in factors and hparams.learning_rate_warmup_steps == 0:
            raise ValueError(f"learning_rate_warmup_steps=0: {name} needs at least 1")
    if (hparams.get("learning_rate_decay_scheme") == "piecewise"
            and "learning_rate_boundaries" not in hparams):
        raise ValueError("learning_rate_decay_scheme=piecewise: the hparams set has no "
                         "learning_rate_boundaries")
    if "cosine_restarts" in factors and "learning_rate_restart_steps" not in hparams:
        raise ValueError(f"learning_rate_schedule={schedule}: only rpr_transformer has "
                         "cosine_restarts")
    for name, rank in (("attention_dropout_broadcast_dims", 4), ("relu_dropout_broadcast_dims", 3),
                       ("layer_prepostprocess_dropout_broadcast_dims", 3)):
        axes = [axis.strip() for axis in (hparams.get(name) or "").split(",") if axis.strip()]
        if not set(axes) <= set(map(str, range(-rank, rank))):
            raise ValueError(f"{name}={hparams.get(name)}: must be numbers of axes from {-rank} to "
                             f"{rank - 1}, separated by commas")
    for name, steps in (("layer_preprocess_sequence", "nd"), ("layer_postprocess_sequence",
                                                              "nadz")):
        sequence = hparams.get(name)
        if sequence not in (None, "none") and set(sequence) - set(steps):
            raise ValueError(f"{name}={sequence}: must be 'none' or letters of '{steps}' "
                             "(n normalize, d dropout, a add the residual, z add it gated)")
