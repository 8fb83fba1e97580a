"""Reads the test sets that runs share, one by one or all of them as one text."""
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rpr.evaluation import test_sets
from rpr.experiments.config import Run
from rpr.experiments.run_directory import RunDirectory, sacrebleu_test_set
from rpr.utils import files
from rpr.utils.errors import InvalidValue, UserError

ALL = "all"                                           # all test sets in one test
OWN = "test"                                          # how the runs' own test set is called there
_SCORED = {"references_sha256?": str}


def test_sets_of(runs: Mapping[str, Run], test_set: str) -> list[str]:
    """The test sets to be scored, empty for the runs' own; with `ALL` those that all runs share."""
    sets = [run.test_sets for run in runs.values()]
    if test_set != ALL or any(ALL in each for each in sets):
        return [test_set]
    shared = [name for name in sets[0] if all(name in each for each in sets)]
    if not shared:
        raise InvalidValue("test_set", ALL, "the runs share no test set in run.test_sets")
    return ["", *shared]


def sacrebleu_name(run: Run, names: Sequence[str]) -> tuple[str, str]:
    """The name of a single test set of sacreBLEU, else "", and the language pair."""
    known = [sacrebleu_test_set(run, name) for name in names]
    pairs = {pair for _, pair in known if pair}
    if len(pairs) > 1:
        raise UserError(f"the test sets have different language pairs: {', '.join(sorted(pairs))}")
    return known[0][0] if len(names) == 1 else "", "".join(pairs) or run.language_pair


class Texts(NamedTuple):
    """The texts of a test set."""
    source: list[str]
    references: list[list[str]]                       # the lines of each
    hypotheses: dict[str, list[str]]                  # {path of a run: lines}
    documents: list[str] | None                       # of each sentence


def read_test_set(runs: Mapping[str, Run], run_dirs: Mapping[str, RunDirectory], name: str
                  ) -> Texts:
    """The texts of a test set, empty for the runs' own.

    Raises:
      UserError: runs were scored on different text, or text is missing.
    """
    source, references = shared_test_set(runs, run_dirs, name)
    hypotheses = {path: _read_lines(run_dir.test_files(name)[2], len(source))
                  for path, run_dir in run_dirs.items()}
    return Texts(source, references, hypotheses, _shared_documents(
        next(iter(runs.values())), run_dirs, name, len(source)))


def joined(texts: Sequence[Texts], names: Sequence[str]) -> Texts:
    """One text after the other; where some have documents, a sentence of the others is one.

    Raises:
      UserError: their numbers of references differ, or two of them are one text.
    """
    for (first, text), (second, other) in itertools.combinations(zip(names, texts, strict=True), 2):
        if (text.source, text.references) == (other.source, other.references):
            raise InvalidValue("test_set", ALL, f"{first or OWN} and {second} are the same text, "
                               "which would count twice")
    if len({len(text.references) for text in texts}) > 1:
        raise UserError("the test sets have different numbers of references: " + ", ".join(
            f"{name or OWN} {len(text.references)}"
            for name, text in zip(names, texts, strict=True)))
    documents = None
    if any(text.documents for text in texts):
        documents = [f"{name}:{document}" for name, text in zip(names, texts, strict=True)
                     for document in text.documents or range(len(text.source))]

    def join(parts: Iterable[list[str]]) -> list[str]:
        return list(itertools.chain.from_iterable(parts))

    return Texts(join(text.source for text in texts),
                  list(map(join, zip(*(text.references for text in texts), strict=True))),
                  {path: join(text.hypotheses[path] for text in texts)
                   for path in texts[0].hypotheses}, documents)


def shared_test_set(runs: Mapping[str, Run], run_dirs: Mapping[str, RunDirectory],
                    test_set: str) -> tuple[list[str], list[list[str]]]:
    """The source lines of the first run, and the lines of each reference, which all runs share.

    The runs' sources may differ, such as those with the edges of a graph from those without.
    """
    for name, run in runs.items():
        if test_set and test_set not in run.test_sets:
            raise InvalidValue("test_set", test_set, f"{run_dirs[name].path} was not scored on it "
                               f"(run.test_sets: {', '.join(run.test_sets) or 'none'})")
    (first, run), *rest = runs.items()
    of_sacrebleu = sacrebleu_test_set(run, test_set)
    for name, other_run in rest:
        if sacrebleu_test_set(other_run, test_set) != of_sacrebleu:
            raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
    if any(of_sacrebleu):
        references = list(test_sets.test_set_references(*of_sacrebleu).values())
        digest = test_sets.digest(references)
        for run_dir in run_dirs.values():             # a registered one may have been replaced
            scored = files.read_json(run_dir.record_of("scores.json", test_set), _SCORED)
            if scored.get("references_sha256", digest) != digest:
                raise UserError(f"{run_dir.path} was scored on other text than is now the test set "
                                f"{':'.join(of_sacrebleu)}: restore it, or score the runs on a "
                                "test set of another name")
        return test_sets.test_set_source(*of_sacrebleu), references
    source, reference, _ = run_dirs[first].test_files(test_set)
    source_lines = test_sets.read_lines(source)
    lines = _read_lines(reference, len(source_lines))
    for name, _ in rest:
        if test_sets.read_lines(run_dirs[name].test_files(test_set)[1]) != lines:
            raise UserError(f"{run_dirs[name].path} was scored on other text than {first}")
    return source_lines, [lines]


def _shared_documents(run: Run, run_dirs: Mapping[str, RunDirectory], test_set: str, sentences: int
                      ) -> list[str] | None:
    """The document of each sentence; None where nothing or a single document is known."""
    of_sacrebleu = sacrebleu_test_set(run, test_set)
    if any(of_sacrebleu):
        return test_sets.test_set_documents(*of_sacrebleu)
    paths = [run_dir.documents_file(test_set) for run_dir in run_dirs.values()]
    names = {path: _read_lines(path, sentences) for path in paths if os.path.exists(path)}
    for path, lines in names.items():
        if lines != next(iter(names.values())):
            raise UserError(f"{path} names other documents than {next(iter(names))}")
    return test_sets.several_documents(next(iter(names.values()))) if names else None


def _read_lines(path: str, sentences: int) -> list[str]:
    """The lines of a file that has one per source sentence."""
    lines = test_sets.read_lines(path)
    if len(lines) != sentences:
        raise UserError(f"{path} has {len(lines):,} lines, its source has {sentences:,}")
    return lines
