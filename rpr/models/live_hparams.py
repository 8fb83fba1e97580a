"""Which hparams have an effect: T2T's sets hold 178 of them, and a training reads about half.

An hparam may be read by one learning-rate schedule, optimizer or position scheme only. Then a
value that is set for another one changes nothing, and an experiment over it compares a model with
itself.
"""
from collections.abc import Iterable

from tensor2tensor.utils import misc_utils, registry

from rpr.positions.registry import declared_settings, names_in, unused_settings
from rpr.problems.checks import has_one_example_per_record
from rpr.utils.interfaces import HParams, Problem

_DECAY = ("learning_rate_decay_steps", "learning_rate_decay_staircase", "learning_rate_decay_rate")
# {factor of learning_rate_schedule: the hparams that it reads}
FACTORS: dict[str, tuple[str, ...]] = {
    "constant": ("learning_rate_constant",),
    "linear_warmup": ("learning_rate_warmup_steps",),
    "linear_decay": ("learning_rate_decay_steps",),
    "cosdecay": ("learning_rate_warmup_steps", "learning_rate_decay_steps"),
    "single_cycle_cos_decay": ("learning_rate_warmup_steps",),
    "multi_cycle_cos_decay": ("learning_rate_warmup_steps", "learning_rate_decay_steps"),
    "rsqrt_decay": ("learning_rate_warmup_steps",),
    "rsqrt_normalized_decay": ("learning_rate_warmup_steps",),
    "exp_decay": ("learning_rate_warmup_steps", *_DECAY),
    "rsqrt_hidden_size": (),
    "legacy": ("learning_rate", "learning_rate_decay_scheme", "learning_rate_warmup_steps"),
    "cosine_restarts": tuple(f"learning_rate_restart_{name}"
                             for name in ("steps", "t_mul", "m_mul", "alpha")),
}
# {learning_rate_decay_scheme, read by the factor `legacy`: what it reads}
_DECAY_SCHEMES = {"exp": _DECAY, "cosine": ("learning_rate_cosine_cycle_steps",),
                  "piecewise": ("learning_rate_boundaries", "learning_rate_multiples")}
_ADAM = tuple(f"optimizer_adam_{name}" for name in ("beta1", "beta2", "epsilon"))
_ADAFACTOR = tuple(f"optimizer_adafactor_{name}" for name in (
    "beta1", "beta2", "clipping_threshold", "decay_type", "factored", "memory_exponent",
    "multiply_by_parameter_scale"))
_OPTIMIZERS = {
    "adam": _ADAM, "true_adam": _ADAM, "adafactor": _ADAFACTOR,
    "multistep_adam": (*_ADAM, "optimizer_multistep_accumulate_steps"),
    "momentum": ("optimizer_momentum_momentum", "optimizer_momentum_nesterov"),
    "yellow_fin": ("optimizer_momentum_momentum",)}
_SCHEDULED_SAMPLING = tuple(f"scheduled_sampling_{name}" for name in (
    "method", "warmup_steps", "gold_mixin_prob", "num_passes", "warmup_schedule"))
# Hparams of other models of T2T. {name: what has the effect that the name promises}
_NEVER = dict.fromkeys((
    "area_key_mode", "area_value_mode", "compress_steps", "conv_first_kernel",
    "gumbel_noise_weight", "kernel_height", "learning_rate_minimum", "max_area_height",
    "max_area_width", "memory_height", "mixed_precision_optimizer_init_loss_scale",
    "mixed_precision_optimizer_loss_scaler", "mlperf_mode", "moe_hidden_sizes", "moe_k",
    "moe_loss_coef", "moe_num_experts", "moe_overhead_eval", "moe_overhead_train",
    "nbr_decoder_problems", "parameter_attention_key_channels",
    "parameter_attention_value_channels", "position_features", "pretrained_model_dir",
    "tpu_enable_host_call", "video_num_input_frames", "video_num_target_frames"), "")
# {model: the same, of this model alone}
_NEVER_IN = {
    "rpr_transformer": {
        "add_relative_to_values": "relative_values", "kernel_width": "",
        "dropout": "layer_prepostprocess_dropout, attention_dropout and relu_dropout"},
    "qkv_seq2seq": {
        "num_hidden_layers": "num_encoder_layers and num_decoder_layers",
        "layer_prepostprocess_dropout": "dropout",
        **dict.fromkeys(("add_relative_to_values", "heads_share_relative_embedding",
                         "layer_postprocess_sequence", "layer_preprocess_sequence",
                         "layer_prepostprocess_dropout_broadcast_dims", "max_relative_position",
                         "norm_epsilon", "norm_type", "num_area_layers"), "")}}
_DROPOUTS = ("attention_dropout", "layer_prepostprocess_dropout", "relu_dropout")
# Those of an encoder, and those of a source text.
_OF_ENCODER = ("unidirectional_encoder", "use_target_space_embedding")
_OF_SOURCE = ("decoder_only", "max_input_seq_length", "pretrained_source_embeddings")
_OWN = ("position", "encoder_position", "decoder_position", "cross_position", "compatibility")


def without_effect(model: str, hparams: HParams, problem: Problem | None = None
                   ) -> dict[str, str]:
    """The hparams that a training of a model, by its registered name, does not read.

    The values are valid. For models that are not of this project only the learning rate, the
    optimizer and, if they are T2T's, the schemes are considered. Without a `problem`
    there is a source. Returns {name: why, in words that continue "... has no effect"}.
    """
    factors = [name.strip() for name in hparams.learning_rate_schedule.split("*") if name.strip()]
    read = [name for factor in factors for name in FACTORS.get(factor, ())]
    if "legacy" in factors:
        read += _DECAY_SCHEMES.get(hparams.learning_rate_decay_scheme, ())
    of_rates = [*FACTORS.values(), *_DECAY_SCHEMES.values()]
    dead = _others(of_rates, read, f"learning_rate_schedule={hparams.learning_rate_schedule}")
    optimizer = misc_utils.camelcase_to_snakecase(hparams.optimizer)
    if optimizer in _OPTIMIZERS:
        dead |= _others(_OPTIMIZERS.values(), _OPTIMIZERS[optimizer], f"optimizer={optimizer}")
    if problem and has_one_example_per_record(problem, hparams):
        dead["batch_shuffle_size"] = "with this problem, whose batches come in random order"
    if model in _NEVER_IN:
        dead |= {name: f"with {model}" + (f"; it has {instead}" if instead else "")
                 for name, instead in (_NEVER | _NEVER_IN[model]).items()} | _switched_off(hparams)
    if model == "rpr_transformer":
        dead |= _positions(hparams, getattr(problem, "has_inputs", True))
    elif model == "qkv_seq2seq":
        if hparams.encoder != "cnn":
            dead["kernel_width"] = f"with encoder={hparams.encoder}"
        if hparams.encoder_position and hparams.decoder_position:
            dead["position"] = "with encoder_position and decoder_position"
    elif registry.model(model).__module__.startswith("tensor2tensor."):
        dead |= dict.fromkeys((*_OWN, *(setting.name for setting in declared_settings())),
                              f"with {model}, a model of T2T")
    return {name: why for name, why in dead.items() if name in hparams}


def _others(groups: Iterable[Iterable[str]], read: Iterable[str], setting: str) -> dict[str, str]:
    read = tuple(dict.fromkeys(read))
    why = f"with {setting}" + (f", which reads {', '.join(read)}" if read else "")
    return {name: why for group in groups for name in group if name not in read}


def _switched_off(hparams: HParams) -> dict[str, str]:
    """The details of what is not switched on."""
    return {name: why for names, useless, why in (
        (_SCHEDULED_SAMPLING, not hparams.scheduled_sampling_prob,
         "with scheduled_sampling_prob=0"),
        *(((f"{dropout}_broadcast_dims",), not hparams.get(dropout), f"with {dropout}=0")
          for dropout in _DROPOUTS),
        (("split_targets_max_chunks", "split_targets_strided_training"),
         not hparams.get("split_targets_chunk_length"), "with split_targets_chunk_length=0"),
        (("use_custom_ops",), not hparams.get("pack_dataset"), "with pack_dataset=False"),
        (("shared_embedding",), hparams.shared_embedding_and_softmax_weights,
         "with shared_embedding_and_softmax_weights=True"),
        (("initializer_gain",), hparams.get("initializer") in ("", "xavier"),
         f"with initializer={hparams.get('initializer')}"),
    ) if useless for name in names}


def _positions(hparams: HParams, has_source: bool) -> dict[str, str]:
    """The settings of schemes that neither side uses, or that another setting makes useless."""
    missing = {side: f"with {name}={hparams.get(name)}" for side, name in (
        ("encoder", "decoder_only"), ("decoder", "answer_symbol")) if hparams.get(name)}
    if not has_source:
        missing = {"encoder": "in a language model"}
    stacks = [side for side in ("encoder", "decoder") if side not in missing]
    names = [f"{side}_position" for side in stacks]
    sides = [hparams.get(name) or hparams.position for name in names]
    cross = "none" if missing else hparams.get("cross_position") or "none"
    unused = set.intersection(*map(unused_settings, [*sides, cross]))
    why = f"with position={' and '.join(dict.fromkeys(sides))}"
    dead = dict.fromkeys(unused, why)
    for side, why in missing.items():
        dead |= dict.fromkeys((f"{side}_position", "cross_position", f"num_{side}_layers"), why)
    if "encoder" in missing:
        dead |= dict.fromkeys(_OF_ENCODER, missing["encoder"])
    if not has_source:
        dead |= dict.fromkeys(_OF_SOURCE, missing["encoder"])
    if not (hparams.get("relative_keys") or hparams.get("relative_values")):
        others = set().union(*map(names_in, [*sides, cross])) - {"relative", "graph"}
        idle = unused_settings("+".join(others or ["none"])) - {"relative_keys", "relative_values"}
        dead = dict.fromkeys(idle, "with relative_keys=False and relative_values=False") | dead
    if all(map(hparams.get, names)):
        dead["position"] = f"with {' and '.join(names)}"
    encoder = set() if "encoder" in missing else names_in(sides[0])
    clips = ("max_relative_position_left", "max_relative_position_right")
    scaling = hparams.get("rotary_scaling")
    layers = [f"num_{side}_layers" for side in stacks]
    return {name: why for name, useless, why in (
        ("rotary_trained_length", scaling in ("none", "linear", "ntk"),
         f"with rotary_scaling={scaling}"),
        ("rotary_long_factors", scaling != "longrope", f"with rotary_scaling={scaling}"),
        ("alibi_directions", "alibi" not in encoder, "in a decoder"),
        ("coupling_lowest_first", "coupling" not in encoder, "in a decoder"),
        ("num_edge_labels", "graph" not in encoder, "in a decoder, which has no edges"),
        ("max_relative_position", -1 not in map(hparams.get, clips), f"with {' and '.join(clips)}"),
        ("num_hidden_layers", all(map(hparams.get, layers)), f"with {' and '.join(layers)}"),
    ) if useless} | dead
