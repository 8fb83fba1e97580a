"""Which checkpoint to read, whether it is whole, and what TensorFlow's errors about one mean.

A checkpoint is PREFIX.index and PREFIX.data-*; paths here are PREFIX, without suffix. The state
file `checkpoint` of a directory names the newest one. A power cut can leave it empty, or with the
name of a damaged checkpoint. In a copied directory, absolute paths in it are those of the original.
"""
import contextlib
import glob
import os
import re
import shutil
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from tensor2tensor.utils import registry

from rpr.utils.errors import InvalidPath
from rpr.utils.files import refuse_unusable, write_atomically

STATE_FILE = "checkpoint"
# Each save takes other random names.
_TEMPORARY = re.compile(r"model\.ckpt-\d+(_temp|\..+\.tempstate\d+)|checkpoint\.tmp[0-9a-f]{32}")


def find_checkpoint(path_or_dir: str, model: str) -> str:
    """The path of the checkpoint to read; of a directory, the newest complete one.

    Refuses one that is damaged, or that is not of `model`, a registered name. The variables of a
    T2T model begin with its name; those of rpr_transformer begin with `transformer`, so that both
    read each other's checkpoints.
    """
    path = path_or_dir
    if os.path.isdir(path):
        every = by_step(path)
        found = newest(path) or (every[-1] if every else None)
        if found is None:
            raise InvalidPath(path, f"there is no checkpoint in it{_hint(path)}")
        path = found
    elif not os.path.exists(path + ".index"):
        raise InvalidPath(path, "no such directory, and no checkpoint of that name (no "
                          f"{path}.index)")
    refuse_unusable(path)
    problem = damage(path)
    if problem:
        raise InvalidPath(path_or_dir, f"the checkpoint cannot be read: {problem}")
    names = [name for name, _ in tf.train.list_variables(path)]
    scopes = {name.split("/")[0] for name in names if "/body/" in name} - {"training"}
    scope = getattr(registry.model(model), "scope", model)
    if scopes and scope not in scopes:
        raise InvalidPath(path, f"is a checkpoint of model={sorted(scopes)[0]}, not of "
                          f"model={model}")
    return path


def _hint(directory: str) -> str:
    """Where the checkpoints of a run directory are."""
    inner = [name for name in ("model", "average") if newest(os.path.join(directory, name))]
    return (f"; it is a run directory, whose checkpoints are in {' and '.join(inner)}: give "
            f"{os.path.join(directory, inner[0])}, or name the run alone") if inner else ""


def newest(directory: str) -> str | None:
    """The checkpoint that the state file names; if it is gone, the newest complete one."""
    named = _named(directory)
    return named if named and os.path.exists(named + ".index") else newest_complete(directory)


def newest_complete(directory: str) -> str | None:
    """The complete checkpoint of the most steps, or None."""
    return next((path for path in reversed(by_step(directory)) if not damage(path)), None)


def repair_state(directory: str) -> str | None:
    """Makes the state file name a complete checkpoint, so that a training resumes from it.

    Also removes TensorFlow's temporary files of a save that was killed. Only the training in the
    directory may call this. Returns the checkpoint if the state file had named none, a damaged one,
    or one of another directory. Refuses a directory whose checkpoints are all incomplete.
    """
    for leftover in glob.glob(os.path.join(glob.escape(directory), "*")):
        if _TEMPORARY.fullmatch(os.path.basename(leftover)):
            remove = shutil.rmtree if os.path.isdir(leftover) else os.unlink
            remove(leftover)
    named = _named(directory)
    if named and damage(named):
        named = None
    if named:
        # In a copied directory TensorFlow finds that of the original, or none.
        found = tf.train.latest_checkpoint(directory)
        if found and os.path.samefile(found + ".index", named + ".index"):
            return None
    every, path = by_step(directory), named or newest_complete(directory)
    if path is None:
        if every:
            raise InvalidPath(directory, f"holds no complete checkpoint ({damage(every[-1])}); "
                              "remove its model.ckpt-* to train from the start")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, STATE_FILE))
        return None
    write_state(directory, [other for other in every
                            if step_of(other) < step_of(path) and not damage(other)] + [path])
    return path


def write_state(directory: str, paths: Sequence[str]) -> None:
    """Writes the state file of a directory: the names of these checkpoints, the newest last."""
    names = [os.path.basename(path) for path in paths]
    write_atomically(os.path.join(directory, STATE_FILE), "".join(
        [f'model_checkpoint_path: "{names[-1]}"\n',
         *(f'all_model_checkpoint_paths: "{name}"\n' for name in names)]))


def _named(directory: str) -> str | None:
    """The checkpoint of this directory that the state file names, which may not exist, or None."""
    try:
        state = tf.train.get_checkpoint_state(directory)
    except (tf.errors.OpError, ValueError):           # also UnicodeDecodeError: not a state file
        return None
    return state and os.path.join(directory, os.path.basename(state.model_checkpoint_path))


def by_step(directory: str) -> list[str]:
    """All checkpoints of a directory, complete or not, by step."""
    return sorted((path.removesuffix(".index") for path in glob.glob(
        os.path.join(glob.escape(directory), "model.ckpt-*.index"))), key=step_of)


def step_of(path: str) -> int:
    """The step in the name of a checkpoint; -1 for other names, such as model.ckpt-best."""
    digits = path.rpartition("-")[2]
    return int(digits) if digits.isdecimal() else -1


def damage(path: str) -> str | None:
    """What is wrong with the files of a checkpoint; None if they are whole.

    Only sizes are compared. TensorFlow tests checksums when it reads the values.
    """
    if not os.path.exists(path + ".index"):
        return f"{path}.index is missing"
    try:
        reader = tf.train.load_checkpoint(path)
        shapes = reader.get_variable_to_shape_map()
        types = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, ValueError) as error:
        return f"{path}.index: {str(error).strip().splitlines()[0][:200]}"
    shards = glob.glob(glob.escape(path) + ".data-?????-of-?????")
    counts = {name.rpartition("-of-")[2] for name in shards}
    if not shards or len(counts) > 1 or len(shards) != int(counts.pop()):
        return f"a file {path}.data-* is missing"
    values = sum(types[name].size * int(tf.TensorShape(shape).num_elements())
                 for name, shape in shapes.items() if types[name] != tf.string)
    held = sum(map(os.path.getsize, shards))
    if held < values:
        return f"{path}.data-* has {held:,} bytes of {values:,}"
    return None


_OTHER_MODEL = "it was trained with another model or other hparams"
_OTHER_HPARAMS = "it was trained with other hparams or another vocabulary"
_CAUSES = (
    (r"Key (\S+) not found in checkpoint",
     "it has no variable {}: " + _OTHER_MODEL),
    (r"tensor_name = (\S+); expected dtype (\w+) does not equal original dtype (\w+)",
     "{0} is {2} there, not {1}: " + _OTHER_MODEL),
    (r"Assign requires shapes of both tensors to match\. lhs shape= ?(\[[\d,]*\]) "
     r"rhs shape= ?(\[[\d,]*\])",
     "a variable of shape {} has shape {} there: " + _OTHER_HPARAMS),
    (r"tensor shape (\S+) does not match|Shape of variable (\S+)",
     "the shape of {} differs: " + _OTHER_HPARAMS),
    (r"((?:Checksum does not match|Read (?:less|fewer) bytes|TensorBundle)[^\n]*)",
     "its data is damaged ({}); take another checkpoint"),
)


def saver(path: str, scope: str = "") -> tf.train.Saver:
    """A Saver for the variables of a graph; those of a `scope` have their names in it.

    Refuses a checkpoint in which a variable is missing, or has another shape or type. Restoring one
    does not always fail: some variables then have the shape of the checkpoint.
    """
    reader = tf.train.load_checkpoint(path)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    variables = {variable.op.name.removeprefix(scope): variable
                 for variable in tf.global_variables(scope)}
    for name, variable in variables.items():
        shape, kind = variable.shape.as_list(), variable.dtype.base_dtype
        if name not in shapes:
            raise InvalidPath(path, f"it has no variable {name}: {_OTHER_MODEL}")
        if shapes[name] != shape or types[name] != kind:
            raise InvalidPath(path, f"{name} is {types[name].name} {shapes[name]} there, not "
                              f"{kind.name} {shape}: {_OTHER_HPARAMS}")
    return tf.train.Saver(variables)


def explain(error: BaseException) -> str | None:
    """Explains an error of TensorFlow about a checkpoint in one line; None for other errors."""
    text = str(error).partition("Original stack trace")[0]
    if not isinstance(error, tf.errors.OpError | ValueError | IndexError) or not re.search(
            r"checkpoint|save/|restore|TensorBundle", text, re.IGNORECASE):
        return None
    for pattern, meaning in _CAUSES:
        match = re.search(pattern, text)
        if match:
            return "the checkpoint cannot be read: " + meaning.format(
                *(group for group in match.groups() if group))
    return None
