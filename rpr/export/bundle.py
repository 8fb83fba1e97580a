"""What an export has in common: a new directory, weights, vocabulary, settings, a program.

docs/export.md has the table of the names and shapes of weights.
"""
import contextlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr.export import translator
from rpr.t2t.trained_model import TrainedModel
from rpr.utils.files import atomic_path, check_new_directory, write_atomically
from rpr.utils.interfaces import HParams

# T2T's names of variables -> plain names, in this order.
_NAMES = (
    (r"^body/", ""),
    (r"layer_(\d+)/", r"\1/"),
    (r"multihead_attention/(q|k|v)/kernel$", r"\1"),
    (r"multihead_attention/output_transform/kernel$", "output"),
    (r"multihead_attention/", ""),
    (r"encdec_attention/", "cross_attention/"),
    (r"dot_product_attention_relative/relative_positions_(keys|values)/embeddings$",
     r"relative_\1"),
    (r"layer_prepostprocess/layer_norm/layer_norm_", "norm/"),
    (r"layer_postprocess/layer_norm/layer_norm_", "post_norm/"),
    (r"layer_norm/layer_norm_", ""),
    (r"/", "."))
_TABLE = re.compile(r"^symbol_modality_(\d+)_\d+/(shared|input_emb|target_emb|softmax)/"
                    r"weights_(\d+)$")


class Search(NamedTuple):
    """The search of an exported model; see `rpr.inference.model_session.ModelSession`."""
    beam_size: int = 4
    alpha: float = 0.6
    extra_length: int = 100


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[str]:
    """A directory to fill, which becomes `path` when the block ends without an error.

    A path that is there and not an empty directory, or a link to one, is refused. After an error
    the parents that were missing are missing again.
    """
    check_new_directory(path)
    path = os.path.realpath(path)
    temporary, made = f"{path}.{os.getpid()}.tmp", list[str]()
    parent = os.path.dirname(path)
    while not os.path.exists(parent):
        made.append(parent)
        parent = os.path.dirname(parent)
    try:
        os.makedirs(temporary)
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):        # not empty: it holds `path` now
                os.rmdir(parent)


def symbols(hparams: HParams, side: str) -> list[str] | None:
    """The sub-words of a vocabulary of T2T, "" for ids beyond it; None: it is of another kind.

    The side is `inputs` or `targets`.
    """
    names = getattr(hparams.problem_hparams.vocabulary.get(side), "_all_subtoken_strings", None)
    if names is None:
        return None
    return [*names, *[""] * (_table_size(hparams, side) - len(names))]


def _table_size(hparams: HParams, side: str) -> int:
    """The rows of a side's embedding table."""
    size = hparams.problem_hparams.vocab_size[side]
    return size + -size % hparams.get("vocab_divisor", 1)


def add_translator(trained: TrainedModel, directory: str, search: Search, kind: str,
                   longest: int | None) -> bool:
    """Writes translate.py and its settings; see `rpr.export.translator`.

    `kind` is the format, "ctranslate2" or "saved_model", `longest` the most symbols of a sentence;
    None: no limit. Returns False, and writes nothing, if the model has no sub-word vocabularies.
    """
    source, target = (symbols(trained.hparams, side) for side in ("inputs", "targets"))
    if source is None or target is None:
        return False
    write_atomically(os.path.join(directory, translator.SETTINGS), json.dumps(
        {"format": kind, **search._asdict(), "longest": longest, "source": source,
         "target": target}))
    shutil.copyfile(translator.__file__, os.path.join(directory, "translate.py"))
    return True


def named_weights(checkpoint: str, model: str, hparams: HParams) -> dict[str, np.ndarray]:
    """The weights of a checkpoint (path without suffix) by name, without the optimizer's variables.

    `source_embedding`, `target_embedding` and `softmax` [symbols, hidden] are always there, and are
    the same array where the model shares its tables.
    """
    reader = tf.train.load_checkpoint(checkpoint)
    scope = getattr(registry.model(model), "scope", model) + "/"
    shards: dict[tuple[int, str], dict[int, np.ndarray]] = {}
    weights = {}
    for variable in sorted(reader.get_variable_to_shape_map()):
        if not variable.startswith(scope):
            continue
        name, value = variable.removeprefix(scope), reader.get_tensor(variable)
        table = _TABLE.match(name)
        if table:
            shards.setdefault((int(table[1]), table[2]), {})[int(table[3])] = value
            continue
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        weights[name] = value
    tables = {key: np.concatenate([parts[number] for number in sorted(parts)])
              for key, parts in shards.items()}
    for name, side, kind in (("source_embedding", "inputs", "input_emb"),
                             ("target_embedding", "targets", "target_emb"),
                             ("softmax", "targets", "softmax")):
        if hparams.problem_hparams.vocab_size.get(side) is not None:
            size = _table_size(hparams, side)
            table = tables.get((size, kind), tables.get((size, "shared")))
            if table is not None:
                weights[name] = table
    return weights


def save_safetensors(trained: TrainedModel, directory: str) -> None:
    """Writes `model.safetensors` with the weights, and the hparams as its metadata.

    `target_embedding` is left out where it equals `source_embedding`, and `softmax` where it
    equals `target_embedding`.
    """
    from safetensors.numpy import save_file
    weights = named_weights(trained.checkpoint, trained.name, trained.hparams)
    for name, same in (("softmax", "target_embedding"), ("target_embedding", "source_embedding")):
        if name in weights and weights[name] is weights.get(same):
            del weights[name]
    with atomic_path(os.path.join(directory, "model.safetensors")) as path:
        save_file(weights, path, metadata(trained))


def metadata(trained: TrainedModel) -> dict[str, str]:
    """What a reader of the weights needs: names, the hparams as JSON, the target space."""
    values = {name: value for name, value in trained.hparams.values().items()
              if isinstance(value, str | int | float | bool | None)
              and name not in ("data_dir", "model_dir")}
    return {"model": trained.name, "problem": trained.request.problem,
            "hparams": json.dumps(values, sort_keys=True),
            "target_space_id": str(trained.hparams.problem_hparams.target_space_id)}
