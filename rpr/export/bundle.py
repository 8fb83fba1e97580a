"""What goes along with an exported model: a new directory, vocabulary, settings, a program."""
import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from typing import NamedTuple

from rpr.export import translator
from rpr.t2t.trained_model import TrainedModel
from rpr.utils.errors import InvalidPath
from rpr.utils.files import write_atomically
from rpr.utils.interfaces import HParams


class Search(NamedTuple):
    """The search of an exported model; see `rpr.inference.model_session.ModelSession`."""
    beam_size: int = 4
    alpha: float = 0.6
    extra_length: int = 100


@contextlib.contextmanager
def new_directory(path: str) -> Iterator[str]:
    """A directory to fill, which becomes `path` when the block ends without an error.

    Raises:
      UserError: `path` is there and not an empty directory.
    """
    path = os.path.abspath(path)
    if os.path.lexists(path) and (not os.path.isdir(path) or os.listdir(path)):
        raise InvalidPath(path, "is there already; name a new directory")
    temporary = f"{path}.{os.getpid()}.tmp"
    os.makedirs(temporary)
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def symbols(hparams: HParams, side: str) -> list[str] | None:
    """The sub-words of a T2T vocabulary, "" for ids beyond it; None: it is of another kind.

    Args:
      hparams: with the hparams of the problem.
      side: `inputs` or `targets`.
    """
    problem = hparams.problem_hparams
    names = getattr(problem.vocabulary.get(side), "_all_subtoken_strings", None)
    if names is None:
        return None
    size = problem.vocab_size[side]
    size += -size % hparams.get("vocab_divisor", 1)
    return [*names, *[""] * (size - len(names))]


def add_translator(trained: TrainedModel, directory: str, search: Search, kind: str,
                   longest: int | None) -> bool:
    """Writes translate.py and its settings; see `rpr.export.translator`.

    Args:
      trained: the model.
      directory: of its files.
      search: the settings of the search.
      kind: the format, "ctranslate2" or "saved_model".
      longest: the most symbols of a sentence; None: no limit.

    Returns:
      False if the model has no sub-word vocabularies; nothing is written then.
    """
    source, target = (symbols(trained.hparams, side) for side in ("inputs", "targets"))
    if source is None or target is None:
        return False
    write_atomically(os.path.join(directory, translator.SETTINGS), json.dumps(
        {"format": kind, **search._asdict(), "longest": longest, "source": source,
         "target": target}))
    shutil.copyfile(translator.__file__, os.path.join(directory, "translate.py"))
    return True
