"""Ten public bugs of attention with positions, each in a small function, and what finds it."""
import math

import numpy as np
import pytest
import tiny_models  # noqa: F401

from rpr.conformance.foreign import check_attention
from rpr.utils.errors import UserError


def alibi_slopes(heads):
    return np.array([2 ** (-8 * (head + 1) / heads) for head in range(heads)])


def places_of(padding):
    return np.maximum(np.cumsum(~padding, axis=1) - 1, 0)


def attend(q, k, v, bias, padding):
    """Causal attention of the last words; bias [batch|1, heads, queries, keys]."""
    queries, keys = q.shape[2], k.shape[2]
    logits = q @ k.swapaxes(2, 3) / math.sqrt(q.shape[3]) + bias
    seen = np.tri(queries, keys, keys - queries, dtype=bool) & ~padding[:, None, None]
    weights = np.exp(np.where(seen, logits, -1e9) - logits.max(axis=3, keepdims=True))
    return weights / weights.sum(axis=3, keepdims=True) @ v


def right_alibi(q, k, v, offset, padding, heads):
    first, count, total = heads
    at = places_of(padding)
    distance = at[:, None, offset:, None] - at[:, None, None]
    slopes = alibi_slopes(total)[first:first + count, None, None]
    return attend(q, k, v, -slopes * distance, padding)


def no_bias_in_a_cached_step(q, k, v, offset, padding):
    """keras-hub 2862: the bias is made for the length of the query, which is 1."""
    n = q.shape[2]
    distance = np.arange(n)[:, None] - np.arange(k.shape[2]) if n > 1 else np.zeros([1, 1])
    return attend(q, k, v, -alibi_slopes(4)[None, :, None, None] * distance, padding)


def bias_without_the_memory(q, k, v, offset, padding):
    """x-transformers 242: queries are counted from 0, though a memory comes before them."""
    distance = np.abs(np.arange(q.shape[2])[:, None] - np.arange(k.shape[2]))
    return attend(q, k, v, -alibi_slopes(4)[None, :, None, None] * distance, padding)


def slopes_of_the_rank(q, k, v, offset, padding, heads):
    """flashinfer 5101: each device computes the slopes of its own number of heads."""
    at = places_of(padding)
    distance = at[:, None, offset:, None] - at[:, None, None]
    return attend(q, k, v, -alibi_slopes(heads[1])[:, None, None] * distance, padding)


def t5_bias(at_queries, at_keys, table):
    """[queries, heads, keys]: buckets of 32 up to a distance of 128, causal."""
    distance = np.maximum(np.asarray(at_queries)[:, None] - np.asarray(at_keys), 0)
    far = 16 + np.log(np.maximum(distance, 1) / 16) / math.log(128 / 16) * 16
    bucket = np.where(distance < 16, distance, np.minimum(far + 1e-9, 31)).astype(int)
    return table[bucket].transpose(2, 0, 1)[None]


def right_t5(q, k, v, offset, variables):
    table, keys = variables["t5_bias/embeddings"], k.shape[2]
    return attend(q, k, v, t5_bias(np.arange(offset, keys), np.arange(keys), table),
                  np.zeros([len(q), keys], bool))


def t5_bias_lost_with_a_cache(q, k, v, offset, variables):
    """TensorRT-LLM 13870: the bias is left out once there is a cache."""
    table, keys = variables["t5_bias/embeddings"], k.shape[2]
    bias = t5_bias(np.arange(keys), np.arange(keys), table) if not offset else 0.0
    return attend(q, k, v, bias, np.zeros([len(q), keys], bool))


def t5_bias_of_the_wrong_query(q, k, v, offset, variables):
    """candle 899: with a cache, the query is taken for the first word."""
    table, keys = variables["t5_bias/embeddings"], k.shape[2]
    return attend(q, k, v, t5_bias(np.arange(q.shape[2]), np.arange(keys), table),
                  np.zeros([len(q), keys], bool))


def rotated(x, at, rates, factor=1.0):
    angles = at[:, None, :, None] * rates
    half = x.shape[3] // 2
    a, b = x[..., :half], x[..., half:]
    return factor * np.concatenate([a * np.cos(angles) - b * np.sin(angles),
                                    a * np.sin(angles) + b * np.cos(angles)], axis=3)


RATES = 10000.0 ** (-np.arange(4) / 4)


def right_rotary(q, k, v, offset, padding):
    at = places_of(padding)
    return attend(rotated(q, at[:, offset:], RATES), rotated(k, at, RATES), v, 0.0, padding)


def rotary_of_cache_positions(q, k, v, offset, padding):
    """unsloth 4078: the new word has its index in the cache, the cached ones were counted without
    padding."""
    at = places_of(padding)
    own = at[:, offset:] if offset == 0 else np.arange(offset, k.shape[2]) + 0 * at[:, offset:]
    return attend(rotated(q, own, RATES), rotated(k, at, RATES), v, 0.0, padding)


def fire_with_padding_counted(q, k, v, offset, padding, variables):
    return fire(q, k, v, offset, np.tile(np.arange(k.shape[2]), [len(k), 1]), padding, variables)


def right_fire(q, k, v, offset, padding, variables):
    return fire(q, k, v, offset, places_of(padding), padding, variables)


def fire(q, k, v, offset, at, padding, get):
    """transformers 22161 counts padding before the words as words. Relative distances do not show
    it; a scheme that reads the position of the query does."""
    def psi(x):
        return np.log1p(abs(get["fire/c"]) * x)

    distance = np.maximum(at[:, offset:, None] - at[:, None], 0)
    most = np.maximum(at[:, offset:, None], 2.0 * abs(get["fire/threshold_factor"]))
    x = (psi(distance) / (psi(most) + 1e-6))[..., None]
    hidden = np.maximum(x @ get["fire/hidden/kernel"] + get["fire/hidden/bias"], 0)
    bias = hidden @ get["fire/output/kernel"] + get["fire/output/bias"]
    return attend(q, k, v, bias.transpose(0, 3, 1, 2), padding)


def right_pope(q, k, v, offset, padding, variables):
    def turned(x, at, phase):
        angles = at[:, None, :, None] * 10000.0 ** (-np.arange(8) / 8) + phase
        x = np.logaddexp(0, x)
        return np.concatenate([x * np.cos(angles), x * np.sin(angles)], axis=3)

    at, phase = places_of(padding), np.clip(variables["pope/phase"], -2 * np.pi, 0)
    q, k = turned(q, at[:, offset:], 0.0), turned(k, at, phase)
    return attend(q * 2 ** 0.5, k, v, 0.0, padding)          # `attend` divides by the double depth


def yarn(pairs_kept, factor):
    """Rotary positions with YaRN's frequencies: 4 pairs, scaled by 8 from a length of 64."""
    def function(q, k, v, offset, padding):
        kept = pairs_kept()
        rates, at = RATES * (kept + (1 - kept) / 8), places_of(padding)
        return attend(rotated(q, at[:, offset:], rates, factor), rotated(k, at, rates, factor), v,
                      0.0, padding)
    return function


def bounds(times):
    return 8 * math.log(64 / (times * 2 * math.pi)) / (2 * math.log(10000.0))


def ramp(low, high):
    return 1 - np.clip((np.arange(4) - low) / max(high - low, 0.001), 0, 1)


def right_pairs():
    return ramp(max(math.floor(bounds(32)), 0), min(math.ceil(bounds(1)), 7))


TEMPERATURE = 0.1 * math.log(8) + 1
YARN = "rotary_scaling=yarn,rotary_scaling_factor=8,rotary_trained_length=64"
RIGHT = {
    "alibi": (right_alibi, "alibi", ""), "t5": (right_t5, "t5_bias", ""),
    "rotary": (right_rotary, "rotary", ""), "pope": (right_pope, "pope", ""),
    "fire": (right_fire, "fire", "fire_threshold=2.0"),
    "yarn": (yarn(right_pairs, TEMPERATURE), "rotary", YARN)}
BUGS = {
    "keras-hub 2862": (no_bias_in_a_cached_step, "alibi", "", "one word after a cache"),
    "TensorRT-LLM 13870": (t5_bias_lost_with_a_cache, "t5_bias", "", "one word after a cache"),
    "candle 899": (t5_bias_of_the_wrong_query, "t5_bias", "", "one word after a cache"),
    "transformers 22161": (fire_with_padding_counted, "fire", "fire_threshold=2.0",
                           "padding before the words"),
    "unsloth 4078": (rotary_of_cache_positions, "rotary", "",
                     "one word after a cache with padding"),
    "x-transformers 242": (bias_without_the_memory, "alibi", "", "several words after a cache"),
    "flashinfer 5101": (slopes_of_the_rank, "alibi", "", "heads on several devices"),
    # YaRN's formulas, wrong in three ways: the bounds swapped, no temperature, the ramp inverted.
    "tvm 18576": (yarn(lambda: ramp(max(math.floor(bounds(1)), 0), min(math.ceil(bounds(32)), 7)),
                       TEMPERATURE), "rotary", YARN, "whole sentences"),
    "aprender 2161": (yarn(right_pairs, 1.0), "rotary", YARN, "whole sentences"),
    "mlxcel 1324": (yarn(lambda: 1 - right_pairs(), TEMPERATURE), "rotary", YARN,
                    "whole sentences")}


@pytest.mark.parametrize("name", RIGHT)
def test_right_attention_passes(name):
    function, position, hparams = RIGHT[name]
    results = check_attention(function, position, hparams)
    assert len(results) >= 3 and not [result for result in results if result.problem]


def test_one_head_is_not_on_several_devices():
    checks = [result.check for result in check_attention(slopes_of_the_rank, "none", heads=1)]
    assert checks and "heads on several devices" not in checks


@pytest.mark.parametrize("bug", BUGS)
def test_the_audit_finds_the_bug(bug):
    function, position, hparams, check = BUGS[bug]
    problems = {result.check: result.problem for result in check_attention(
        function, position, hparams)}
    assert "is" in problems[check] and " and not " in problems[check]


@pytest.mark.parametrize("arguments, says", [
    ((3, "alibi"), "function=3: must be a function with a signature"),
    ((max, "alibi"), "function=<built-in function max>: must be a function with a signature"),
    ((right_alibi, None), "position is missing: must be text"),
    ((right_alibi, "alibbi"), "no scheme is called 'alibbi'; nearest: alibi"),
    ((right_alibi, "fire", "fire_treshold=2"), "hparams=fire_treshold=2: Unknown hyperparameter"),
    ((right_alibi, "fire", 5), "hparams=5: must be text"),
    ((right_alibi, "forgetting"), "position=forgetting: reads the words; only what depends on"),
    ((right_alibi, "sinusoid+alibi"), "position=sinusoid.alibi: reads the words"),
    ((right_alibi, "coupling"), "position=coupling: reads the words"),
    ((right_alibi, "alibi@1:none"), "leave out 'none', which no head has .num_heads=4, layers: 1"),
    ((right_alibi, "none@2:alibi"), "leave out 'none@2', which no head has"),
    ((right_alibi, "alibi", "num_hidden_layers=2"), "=2: num_hidden_layers must be 1 here"),
    ((right_alibi, "alibi", "compatibility=additive"), "=additive: compatibility must be 'dot_pro"),
    ((right_alibi, "alibi", "num_heads=2"), "hparams=num_heads=2: num_heads must be 4 here"),
    ((right_alibi, "relative", "max_relative_position=-1"), "max_relative_position=-1: must be"),
    ((right_alibi, "alibi", "", 0), "heads=0: must be a whole number, at least 1"),
    ((right_alibi, "alibi", "", 4, 2.5), "depth=2.5: must be a whole number, at least 1")])
def test_bad_arguments_raise_one_line(arguments, says):
    with pytest.raises(UserError, match=says):
        check_attention(*arguments)
