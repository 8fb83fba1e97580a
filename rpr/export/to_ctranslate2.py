"""A trained model for CTranslate2, which translates more than twice as fast.

CTranslate2 has one table of relative positions per layer, for all heads. Terms that differ between
heads get channels of their own: the query of a head is extended by C_h q, its keys by zeros, and
row r of the table is B_r, so that B_r . (C_h q) is the term of distance r. B and C come from a
singular value decomposition, so these channels are few: 2k for a table per head, one per head for
a bias. Weighted sums are extended in the same way, and the output transform reads the extension.
"""
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tensor2tensor.utils import decoding

from rpr.export import bundle, position_terms
from rpr.export.position_terms import Stack, Terms
from rpr.export.translator import END, Translator, symbol_names
from rpr.t2t.trained_model import TrainedModel
from rpr.utils.errors import InvalidValue, UserError
from rpr.utils.interfaces import DecodeHParams, HParams
from rpr.utils.processes import temporary_directory

_TOLERANCE = 1e-6                                     # of the largest term
# T2T's decode hparams that `decoder` reads, or that concern files and not the search.
_SEARCH = {"beam_size", "alpha", "batch_size", "extra_length", "return_beams", "write_beam_scores",
           "delimiter", "log_results", "skip_eos_postprocess", "decode_to_file", "shards",
           "shard_id", "shards_start_offset", "shard_google_format"}
Weights = dict[str, np.ndarray]


def decoder(trained: TrainedModel, search: DecodeHParams, processes: int = 1
            ) -> Callable[[Sequence[str]], Iterator[dict[str, np.ndarray]]]:
    """A function that decodes sentences with CTranslate2; its first call exports the model.

    It yields `inputs`, `outputs` and `scores` of each sentence as the Estimator of T2T's decoder
    does: int [length], or int [beams, length] with return_beams. `processes` share the cores of
    this machine. A search that CTranslate2 does not have is refused at once, a model that it cannot
    compute, or a sentence that is too long, by the function.
    """
    default = decoding.decode_hparams().values()
    for name, value in search.values().items():
        if name not in _SEARCH and value != default[name]:
            raise InvalidValue("decode_hparams", f"{name}={value}",
                               "CTranslate2's search does not read it")

    @functools.cache
    def translator() -> Translator:
        import ctranslate2
        directory = temporary_directory("ctranslate2")
        longest = save(trained, directory)
        bundle.add_translator(trained, directory, bundle.Search(
            search.beam_size, search.alpha, search.extra_length), "ctranslate2", longest)
        return Translator(
            directory, device="cuda" if ctranslate2.get_cuda_device_count() else "cpu",
            intra_threads=max(1, len(os.sched_getaffinity(0)) // processes))

    def decode(sentences: Sequence[str]) -> Iterator[dict[str, np.ndarray]]:
        for first in range(0, len(sentences), search.batch_size):
            batch = [[*translator().source.encode(sentence), END]
                     for sentence in sentences[first:first + search.batch_size]]
            most, longest = max(map(len, batch)), translator().settings["longest"]
            if most > longest:
                raise UserError(f"a sentence has {most:,} sub-words; the exported model has "
                                f"{longest:,} positions")
            for ids, hypotheses in zip(batch, translator().search(batch), strict=True):
                outputs = np.zeros([search.beam_size, max(len(each.ids) for each in hypotheses)],
                                   np.int32)
                for row, hypothesis in zip(outputs, hypotheses, strict=False):
                    row[:len(hypothesis.ids)] = hypothesis.ids
                yield {"inputs": np.array(ids),
                       "outputs": outputs if search.return_beams else outputs[0],
                       "scores": np.array([each.score for each in hypotheses])}

    return decode


def save(trained: TrainedModel, directory: str, quantization: str = "float32") -> int:
    """Writes `model.bin`, `config.json` and the vocabularies.

    `quantization` is the type of the weights, one of `rpr.export.QUANTIZATIONS`. A model that
    CTranslate2 cannot compute is refused. Returns the most symbols of a sentence.
    """
    from ctranslate2.specs import transformer_spec
    check(trained)
    hparams = trained.hparams
    weights = bundle.named_weights(trained.checkpoint, trained.name, hparams)
    stacks = {name: _read_stack(trained, name) for name in ("encoder", "decoder")}
    options = {"num_heads": hparams.num_heads, "pre_norm": _is_pre_norm(hparams),
               "layernorm_embedding": hparams.get("norm_after_embedding", False)}
    spec = transformer_spec.TransformerSpec(
        transformer_spec.TransformerEncoderSpec(0, **options),
        transformer_spec.TransformerDecoderSpec(0, **options))
    for name, part, side in (("encoder", spec.encoder, "inputs"),
                             ("decoder", spec.decoder, "targets")):
        _fill_stack(part, name, stacks[name], weights, hparams)
        if options["layernorm_embedding"]:
            _fill_norm(part.layernorm_embedding, weights, f"{side}_embedding_norm")
    scale = hparams.hidden_size ** 0.5 if hparams.multiply_embedding_mode == "sqrt_depth" else 1.0
    table = weights["source_embedding"] * np.float32(scale)
    if "target_space_embedding.kernel" in weights:
        table += weights["target_space_embedding.kernel"][hparams.problem_hparams.target_space_id]
    spec.encoder.embeddings[0].weight, spec.encoder.scale_embeddings = table, False
    spec.decoder.embeddings.weight = weights["target_embedding"]
    spec.decoder.scale_embeddings = np.float32(scale)
    spec.decoder.projection.weight = weights["softmax"]
    spec.decoder.start_from_zero_embedding = True
    source, target = (symbol_names(bundle.symbols(hparams, side) or ())
                      for side in ("inputs", "targets"))
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    start, end = target[:2]
    for token in ("unk_token", "bos_token", "decoder_start_token"):
        setattr(spec.config, token, start)
    spec.config.eos_token, spec.config.layer_norm_epsilon = end, hparams.norm_epsilon
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(directory)
    return min(stack.longest for stack in stacks.values())


def check(trained: TrainedModel) -> None:
    """Refuses a model that CTranslate2 cannot compute, before its weights are read."""
    hparams = trained.hparams
    if "inputs" not in hparams.problem_hparams.modality:
        raise InvalidValue("problem", hparams.problem.name, "has no source text, which CTranslate2 "
                           "needs; the format safetensors exports such a model")
    if trained.name != "rpr_transformer":
        raise _refusal("model", trained.name, "rpr_transformer, which also reads checkpoints of "
                       "T2T's transformer")
    for name, allowed in (("norm_type", ("layer", "layer_without_scale")),
                          ("compatibility", ("dot_product", None)),
                          ("cross_position", ("", "none", None)),
                          ("answer_symbol", (0, None)), ("decoder_only", (False, None)),
                          ("prepend_mode", ("none", None)),
                          ("sampling_method", ("argmax", None)),
                          ("unidirectional_encoder", (False, None))):
        if hparams.get(name) not in allowed:
            raise _refusal(name, hparams.get(name), f"{name}={allowed[0]}")
    if _norms(hparams) not in (("n", "a"), ("", "an")):
        raise _refusal("layer_preprocess_sequence", hparams.layer_preprocess_sequence,
                       "normalization only before (n, da) or only after (none, dan) a sub-layer")
    if any(bundle.symbols(hparams, side) is None for side in ("inputs", "targets")):
        raise _refusal("problem", hparams.problem.name, "sub-word vocabularies")
    if hparams.problem_hparams.get("edges_in_text", False):
        raise _refusal("problem", hparams.problem.name, "sentences without edges")


def _refusal(name: str, value: object, works: str) -> UserError:
    return UserError(f"{name}={value}: CTranslate2 cannot compute it; it can with {works}. "
                     "TensorFlow can compute every model (the format saved_model, or the engine "
                     "tensorflow)")


def _norms(hparams: HParams) -> tuple[str, str]:
    """The sequences before and after a sub-layer, without dropout."""
    before, after = (sequence.replace("none", "").replace("d", "") for sequence in (
        hparams.layer_preprocess_sequence, hparams.layer_postprocess_sequence))
    return before, after


def _is_pre_norm(hparams: HParams) -> bool:
    return _norms(hparams)[0] == "n"


def _read_stack(trained: TrainedModel, name: str) -> Stack:
    try:
        return position_terms.read_terms(trained, "inputs" if name == "encoder" else "targets")
    except ValueError:
        hparams = trained.hparams
        own = hparams.get(f"{name}_position")
        raise _refusal(f"{name}_position" if own else "position", own or hparams.position,
                       "relative, unscaled rotary, sinusoid, learned, t5_bias, alibi (not with "
                       "alibi_directions=heads) and sums of these") from None


def _fill_stack(spec: Any, name: str, stack: Stack, weights: Weights, hparams: HParams) -> None:
    """Adds the layers, positions and the last normalization of the encoder or the decoder."""
    from ctranslate2.specs import transformer_spec
    make = getattr(transformer_spec, f"Transformer{name.capitalize()}LayerSpec")
    norm = "norm" if _is_pre_norm(hparams) else "post_norm"
    for number, (terms, rotated) in enumerate(zip(stack.layers, stack.rotated, strict=True)):
        scope, heads = f"{name}.{number}", hparams.num_heads
        extended = _extended(_by_head(weights, f"{scope}.self_attention", heads), terms)
        layer = make(relative_position="key_table" in extended, head_dim=1,
                     rotary_dim=rotated or None, rotary_interleave=False,
                     rotary_base=hparams.get("rotary_base", 0.0))
        _fill_attention(layer.self_attention, extended)
        _fill_norm(layer.self_attention.layer_norm, weights, f"{scope}.self_attention.{norm}")
        if name == "decoder":
            _fill_attention(layer.attention, _by_head(weights, f"{scope}.cross_attention", heads))
            _fill_norm(layer.attention.layer_norm, weights, f"{scope}.cross_attention.{norm}")
        for linear, conv in ((layer.ffn.linear_0, "conv1"), (layer.ffn.linear_1, "conv2")):
            linear.weight = weights[f"{scope}.ffn.{conv}.kernel"].T
            linear.bias = weights[f"{scope}.ffn.{conv}.bias"]
        _fill_norm(layer.ffn.layer_norm, weights, f"{scope}.ffn.{norm}")
        spec.layer.append(layer)
    attention = vars(spec.layer[0].self_attention)
    is_relative = "relative_position_keys" in attention or "rotary_dim" in attention
    if is_relative and stack.embedded is not None:
        # A first layer with relative positions would switch off those of the embedded words.
        spec.layer.insert(0, _empty_layer(make, name, hparams))
    if stack.embedded is not None or not is_relative:
        spec.position_encodings.encodings = (
            np.zeros([stack.longest, hparams.hidden_size], np.float32)
            if stack.embedded is None else stack.embedded)
    if _is_pre_norm(hparams):
        _fill_norm(spec.layer_norm, weights, f"{name}.norm")


def _empty_layer(make: Any, name: str, hparams: HParams) -> Any:
    """A layer that returns its input: all that it adds to it is zero."""
    from ctranslate2.specs.common_spec import LayerNormSpec
    size, heads = hparams.hidden_size, hparams.num_heads
    layer = make(pre_post_layer_norm=True, head_dim=1, **(
        {"external_pre_post_encoder_layers": True} if name == "decoder" else {}))
    zeros = np.zeros([size, heads, 1], np.float32)
    for attention in (layer.self_attention, getattr(layer, "attention", None)):
        if attention is not None:
            _fill_attention(attention, {"q": zeros, "k": zeros, "v": zeros,
                                        "output": zeros.transpose(1, 2, 0)})
    layer.ffn.linear_0.weight = np.zeros([1, size], np.float32)
    layer.ffn.linear_1.weight = np.zeros([size, 1], np.float32)
    for part in vars(layer).values():
        if isinstance(part, LayerNormSpec):
            part.gamma, part.beta = np.ones(size, np.float32), np.zeros(size, np.float32)
    return layer


def _by_head(weights: Weights, scope: str, heads: int) -> Weights:
    """The projections of an attention layer by head, q scaled.

    {"q", "k", "v": [hidden, heads, depth], "output": [heads, depth, hidden]}.
    """
    q, k, v = (weights[f"{scope}.{name}"] for name in "qkv")
    q, k, v = (kernel.reshape(len(kernel), heads, -1) for kernel in (q, k, v))
    output = weights[f"{scope}.output"]
    return {"q": q * q.shape[2] ** -0.5, "k": k, "v": v,
            "output": output.reshape(heads, -1, output.shape[1])}


def _extended(kernels: Weights, terms: Terms) -> Weights:
    """The projections with the channels for the terms of the position schemes.

    If there are terms, they come with `q_bias` [heads, depth], `output_bias` [hidden], `key_table`
    and `value_table` [2k + 1, depth].
    """
    if not any(array.any() for array in terms):
        return kernels
    q, output, clip = kernels["q"], kernels["output"], terms.bias.shape[1] // 2
    shared = [(array == array[:1]).all() for array in (terms.keys, terms.values)]
    # A constant of all distances cancels in the softmax.
    own = terms.bias[:, :, None] - terms.bias[:, clip, None, None]
    if not shared[0]:
        own = np.concatenate([terms.keys - terms.keys[:, clip, None], own], axis=2)
    table, factors = _factorized(own)                        # [heads, channels, depth + 1]
    q_bias = factors[:, :, -1]
    if not shared[0]:
        q = np.concatenate([q, np.einsum("xhd,hmd->xhm", q, factors[:, :, :-1])], axis=2)
    else:
        q = np.pad(q, ((0, 0), (0, 0), (0, factors.shape[1])))
    key_table = np.concatenate([terms.keys[0] * shared[0], table], axis=1)
    # The weights of a query sum to 1, so that a constant of all distances is a bias.
    constant = terms.values[:, clip] * (not shared[1])
    table, factors = _factorized((terms.values - constant[:, None]) * (not shared[1]))
    return {"q": q, "q_bias": np.concatenate([terms.query_bias, q_bias], axis=1),
            "k": _deeper(kernels["k"], q.shape[2]), "key_table": key_table,
            "v": _deeper(kernels["v"], output.shape[1] + table.shape[1]),
            "value_table": np.concatenate([terms.values[0] * shared[1], table], axis=1),
            "output": np.concatenate([output, np.einsum("hmd,hdx->hmx", factors, output)], axis=1),
            "output_bias": np.einsum("hd,hdx->x", constant, output)}


def _factorized(terms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """B [rows, channels] and C [heads, channels, depth] with B C = terms [heads, rows, depth]."""
    heads, rows, depth = terms.shape
    matrix = terms.transpose(1, 0, 2).reshape(rows, -1)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    most = _TOLERANCE * np.abs(matrix).max()
    # The error of an entry is at most that of the matrix, the first singular value left out.
    count = int((values > most).sum())
    root = np.sqrt(values[:count])
    factors = (root[:, None] * right[:count]).reshape(count, heads, depth)
    return left[:, :count] * root, factors.transpose(1, 0, 2)


def _deeper(x: np.ndarray, depth: int) -> np.ndarray:
    """The array with zeros as further channels on its last axis."""
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, depth - x.shape[-1])])


def _fill_attention(spec: Any, kernels: Weights) -> None:
    """Sets the projections and tables of an attention layer; all depths become the same."""
    depth = max(kernels["q"].shape[2], kernels["v"].shape[2])
    spec.head_dim, spec.queries_scale = np.int32(depth), np.float32(1)
    q, k, v = (_deeper(kernels[name], depth).reshape(len(kernels[name]), -1).T for name in "qkv")
    bias = _deeper(kernels.get("q_bias", np.zeros(kernels["q"].shape[1:2] + (1,))), depth).ravel()
    groups = [[q, k, v]] if len(spec.linear) == 2 else [[q], [k, v]]
    for linear, group in zip(spec.linear, groups, strict=False):
        linear.weight = np.concatenate(group).astype(np.float32)
    if bias.any():
        spec.linear[0].bias = _deeper(bias, len(spec.linear[0].weight)).astype(np.float32)
    output = _deeper(kernels["output"].swapaxes(1, 2), depth)        # [heads, hidden, depth]
    spec.linear[-1].weight = output.transpose(1, 0, 2).reshape(output.shape[1], -1).astype("f")
    if kernels.get("output_bias", np.zeros(1)).any():
        spec.linear[-1].bias = kernels["output_bias"].astype(np.float32)
    for kind in ("key", "value"):
        if f"{kind}_table" in kernels:
            setattr(spec, f"relative_position_{kind}s",
                    _deeper(kernels[f"{kind}_table"], depth).astype(np.float32))


def _fill_norm(spec: Any, weights: Weights, scope: str) -> None:
    spec.beta = weights[f"{scope}.bias"]
    spec.gamma = weights.get(f"{scope}.scale", np.ones_like(spec.beta))
