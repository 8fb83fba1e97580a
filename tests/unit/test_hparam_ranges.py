"""Values of hparams that are out of range are refused in one line, before anything is built."""
import typing

import numpy as np
import pytest
import tiny_models
from hypothesis import given
from hypothesis import strategies as st
from tensor2tensor.utils import registry

from rpr.models import seq2seq as _seq2seq  # noqa: F401  registers qkv_seq2seq
from rpr.models.declarations import MODEL_HPARAMS, POSITION_HPARAMS, SEQ2SEQ_HPARAMS, T2T_HPARAMS
from rpr.t2t import preflight
from rpr.utils.errors import UserError
from rpr.utils.interfaces import HParams
from rpr.utils.settings import Setting

SETTINGS = {setting.name: setting
            for setting in (*SEQ2SEQ_HPARAMS, *T2T_HPARAMS, *POSITION_HPARAMS, *MODEL_HPARAMS)}
REFUSED = [
    ("num_heads=3", "num_heads=3: must divide hidden_size=32"),
    ("num_heads=0", "num_heads=0: must be a whole number, at least 1"),
    ("attention_key_channels=31", "num_heads=2: must divide attention_key_channels=31"),
    ("attention_value_channels=-4", "attention_value_channels=-4: must be"),
    ("hidden_size=0", "hidden_size=0: must be a whole number from 1 to 65,536"),
    ("filter_size=0", "filter_size=0: must be"),
    ("num_hidden_layers=0", "num_hidden_layers=0: must be"),
    ("num_encoder_layers=-1", "num_encoder_layers=-1: must be"),
    ("num_hidden_layers=100000", "num_hidden_layers=100000: must be .* to 1,000"),
    ("min_length=1000", "min_length=1000: must be at most max_length, .* which is 256"),
    ("batch_size=0", "batch_size=0: must be"),
    ("max_length=1", "max_length=1: must be 0 .batch_size is the limit. or at least 2"),
    ("label_smoothing=1", "label_smoothing=1.0: must be a number, at least 0 and below 1"),
    ("label_smoothing=-0.1", "label_smoothing=-0.1: must be"),
    ("label_smoothing=nan", "label_smoothing=nan: must be"),
    ("layer_prepostprocess_dropout=1", "layer_prepostprocess_dropout=1.0: must be"),
    ("attention_dropout=-1", "attention_dropout=-1.0: must be"),
    ("relu_dropout=1e999", "relu_dropout=inf: must be"),
    ("symbol_dropout=2", "symbol_dropout=2.0: must be"),
    ("dropout=1.5", "dropout=1.5: must be"),
    ("max_relative_position=-1", "max_relative_position=-1: must be"),
    ("max_relative_position=1000000000", "max_relative_position=1000000000: must be .*100,000"),
    ("max_relative_position_left=-2", "max_relative_position_left=-2: must be"),
    ("optimizer=foo", "optimizer=foo: must be one of .*adafactor"),
    ("learning_rate_schedule=foo", "no factor is called 'foo'; factors, joined by [*], are const"),
    ("learning_rate_decay_scheme=foo", "learning_rate_decay_scheme=foo: must be one of none, noam"),
    ("learning_rate_warmup_steps=0", "learning_rate_warmup_steps=0: linear_warmup needs"),
    ("learning_rate_schedule=constant*rsqrt_decay,learning_rate_warmup_steps=0",
     "learning_rate_warmup_steps=0: rsqrt_decay needs"),
    ("learning_rate_schedule=rsqrt_normalized_decay,learning_rate_warmup_steps=0",
     "learning_rate_warmup_steps=0: rsqrt_normalized_decay needs"),
    ("learning_rate_decay_scheme=piecewise", "the hparams set has no learning_rate_boundaries"),
    ("learning_rate_decay_scheme=cyclelinear10x", "must be one of none, noam"),
    ("optimizer=adam_w", "optimizer=adam_w: must be one of .*adafactor"),
    ("scheduled_sampling_warmup_schedule=foo", "must be one of exp, linear, sigmoid"),
    ("layer_prepostprocess_dropout_broadcast_dims=x", "dims=x: must be numbers of axes from -3"),
    ("relu_dropout_broadcast_dims=3", "dims=3: must be numbers of axes from -3 to 2"),
    ("attention_dropout_broadcast_dims=-5", "dims=-5: must be numbers of axes from -4 to 3"),
    ("learning_rate_warmup_steps=-1", "learning_rate_warmup_steps=-1: must be"),
    ("learning_rate_constant=nan", "learning_rate_constant=nan: must be"),
    ("learning_rate_decay_steps=0", "learning_rate_decay_steps=0: must be"),
    ("learning_rate_restart_steps=0", "learning_rate_restart_steps=0: must be"),
    ("learning_rate_restart_t_mul=0.5", "learning_rate_restart_t_mul=0.5: must be"),
    ("learning_rate_restart_alpha=2", "learning_rate_restart_alpha=2.0: must be"),
    ("initializer=foo", "initializer=foo: must be one of orthogonal"),
    ("initializer_gain=0", "initializer_gain=0.0: must be a number above 0"),
    ("norm_type=foo", "norm_type=foo: must be one of layer, layer_without_scale"),
    ("norm_epsilon=-1", "norm_epsilon=-1.0: must be"),
    ("layer_preprocess_sequence=xyz", "layer_preprocess_sequence=xyz: must be 'none' or letters"),
    ("layer_preprocess_sequence=na", "layer_preprocess_sequence=na: must be 'none' or letters"),
    ("layer_postprocess_sequence=dax", "layer_postprocess_sequence=dax: must be 'none' or letters"),
    ("symbol_modality_num_shards=0", "symbol_modality_num_shards=0: must be"),
    ("vocab_divisor=0", "vocab_divisor=0: must be"),
    ("optimizer_adam_beta1=1", "optimizer_adam_beta1=1.0: must be"),
    ("optimizer_multistep_accumulate_steps=-1", "optimizer_multistep_accumulate_steps=-1: must"),
    ("clip_grad_norm=-1", "clip_grad_norm=-1.0: must be"),
    ("weight_decay=-1", "weight_decay=-1.0: must be"),
    ("activation_dtype=float8", "activation_dtype=float8: must be one of float32, bfloat16"),
    ("weight_dtype=bfloat16", "weight_dtype=bfloat16: must be one of float32"),
    ("length_bucket_step=1", "length_bucket_step=1.0: must be a number above 1"),
    ("min_length_bucket=0", "min_length_bucket=0: must be"),
    ("scheduled_sampling_prob=0.5", "scheduled_sampling_prob=0.5: must be one of 0.0, 1.0"),
    ("sampling_method=foo", "sampling_method=foo: must be one of argmax"),
    ("loss_per_sentence=True,pack_dataset=True", "loss_per_sentence=True with pack_dataset=True"),
    ("pack_dataset=True", "use_custom_ops=True with pack_dataset=True: .* use_custom_ops=False"),
    ("answer_symbol=2,pack_dataset=True", "answer_symbol=2 with pack_dataset=True"),
    ("position=graph,pack_dataset=True", "position=graph with pack_dataset=True: .* no edges"),
    ("decoder_position=randomized+alibi,pack_dataset=True,max_length=513",
     "randomized_length=512: a packed row has max_length=513 positions"),
    ("position=randomized+learned", "randomized_length=512 must be at most the 256 positions"),
    ("answer_symbol=-1", "answer_symbol=-1: must be"),
    ("sampling_temp=-1", "sampling_temp=-1.0: must be"),
    ("sampling_method=random_per_example,sampling_temp=0", "sampling_temp=0.0 with"),
    ("sampling_keep_top_k=0", "sampling_keep_top_k=0: must be -1 .* or at least 1"),
    ("compatibility=foo", "compatibility=foo: must be one of dot_product, additive"),
    ("position=t5_bias,t5_num_buckets=3", "t5_num_buckets=3"),
    ("position=t5_bias,t5_max_distance=0", "t5_max_distance=0: must be"),
    ("position=rotary,rotary_fraction=0", "rotary_fraction=0.0: must be"),
    ("position=rotary,rotary_base=1", "rotary_base=1.0: must be"),
    ("position=deberta,deberta_num_buckets=0", "deberta_num_buckets=0: must be"),
    ("position=graph,num_edge_labels=0", "num_edge_labels=0: must be"),
]
SEQ2SEQ_REFUSED = [
    ("hidden_size=33", "hidden_size=33: qkv_seq2seq needs an even number"),
    ("encoder=rnn", "encoder=rnn: must be one of birnn, cnn"),
    ("attention_flavour=cosine", "attention_flavour=cosine: must be one of dot, bilinear, mlp"),
    ("num_decoder_layers=-1", "num_decoder_layers=-1: must be"),
    ("dropout=1", "dropout=1.0: must be"),
    ("kernel_width=0", "kernel_width=0: must be"),
    ("position=rotary", "position=rotary: rotary is a scheme of self-attention"),
    ("position=alibi@1:none", "position=alibi@1:none: alibi is a scheme of self-attention"),
    ("position=sinusoid@1:none", "position=sinusoid@1:none: qkv_seq2seq has one scheme per side"),
    ("position=sinusoid:none", "position=sinusoid:none: qkv_seq2seq has one scheme per side"),
    ("pack_dataset=True", "pack_dataset=True: qkv_seq2seq supports only False"),
    ("learning_rate_schedule=constant*cosine_restarts", "only rpr_transformer has cosine_restarts"),
    ("prepend_mode=prepend_inputs_full_attention", "qkv_seq2seq supports only none"),
]


def check(model, hparams_set, overrides):
    hparams = tiny_models.hparams(hparams_set)
    preflight.parse_hparams(hparams, overrides)
    preflight.check_supported(model, hparams)


@pytest.mark.parametrize("model, hparams_set, overrides, line", [
    *(("rpr_transformer", "rpr_tiny", *case) for case in REFUSED),
    *(("qkv_seq2seq", "qkv_seq2seq_tiny", *case) for case in SEQ2SEQ_REFUSED)])
def test_a_value_out_of_range_is_refused_in_one_line(model, hparams_set, overrides, line):
    with pytest.raises(UserError, match=line) as error:
        check(model, hparams_set, overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("hparams_set, setting", [
    ("transformer_wikitext103_l4k_memory_v0", "memory_type=transformer_xl"),
    ("universal_transformer_tiny", "recurrence_type=basic")])
def test_recurrence_is_refused(hparams_set, setting):
    from tensor2tensor.models.research import universal_transformer  # noqa: F401  registers its set
    with pytest.raises(UserError, match=f"{setting}: .* supports only None"):
        check("rpr_transformer", hparams_set, "")


@pytest.mark.parametrize("overrides", [
    "max_length=0", "max_length=2", "label_smoothing=0", "label_smoothing=0.999", "dropout=0",
    "max_relative_position=0", "max_relative_position=100000", "num_heads=1", "num_heads=32",
    "optimizer=adafactor", "optimizer=momentum", "learning_rate_schedule=legacy",
    "learning_rate_schedule=constant*cosine_restarts", "layer_postprocess_sequence=dza",
    "layer_preprocess_sequence=none", "norm_type=l2", "activation_dtype=bfloat16",
    "activation_dtype=float16", "attention_key_channels=2", "vocab_divisor=8",
    "position=randomized+learned,randomized_length=256",
    "attention_dropout_broadcast_dims=2", "layer_prepostprocess_dropout_broadcast_dims=-1"])
def test_a_value_in_range_is_accepted(overrides):
    check("rpr_transformer", "rpr_tiny", overrides)


def test_the_declared_types_of_hparams_are_those_of_the_sets():
    sets = [tiny_models.hparams(), registry.hparams("qkv_seq2seq_tiny")]
    of_t2t = {"problem", "problem_hparams", "data_dir", "model_dir", "mode"}      # added later
    for name, kind in typing.get_type_hints(HParams).items():
        values = [values.get(name) for values in sets if name in values]
        assert bool(values) != (name in of_t2t), name
        assert all(isinstance(value, typing.get_origin(kind) or kind) for value in values), name


def test_every_registered_set_of_ours_is_in_range():
    sets = {name for name, entry in registry.Registries.hparams._registry.items()
            if entry.__module__.startswith("rpr.hparams.")}
    assert len(sets) > 20
    for name in sets:
        model = "qkv_seq2seq" if name.startswith("qkv_") else "rpr_transformer"
        preflight.check_supported(model, registry.hparams(name))


@given(st.sampled_from(sorted(SETTINGS)),
       st.one_of(st.integers(), st.floats(), st.text(), st.booleans(), st.none()))
def test_a_declaration_accepts_or_describes_any_value(name, value):
    setting = SETTINGS[name]
    line = setting.error(value)
    assert (line is None) == setting.accepts(value)
    if line:
        assert line.startswith(f"{name}=") and line.endswith(f"must be {setting.allowed()}")


@given(st.floats(allow_nan=True), st.floats(-10, 10), st.floats(-10, 10))
def test_the_range_of_a_setting_is_what_it_says(value, first, second):
    low, high = sorted((first, second))
    assert Setting("x", 0.0, minimum=low, maximum=high).accepts(value) == (low <= value <= high)
    assert Setting("x", 0.0, above=low, below=high).accepts(value) == (low < value < high)


def test_numbers_of_numpy_are_numbers_in_the_python_api():
    for value in (np.int64(3), np.int32(3), np.float32(2.5)):
        Setting("x", 1.0, minimum=1).check(value)
    Setting("x", 1, minimum=1).check(np.int64(3))
    for wrong in (np.float32(3), np.int64(0), np.array([3]), np.bool_(True)):
        with pytest.raises(UserError, match="x="):
            Setting("x", 1, minimum=1).check(wrong)


def test_every_default_of_ours_is_accepted():
    for setting in (*POSITION_HPARAMS, *MODEL_HPARAMS, *SEQ2SEQ_HPARAMS):
        assert setting.accepts(setting.default) and setting.help
