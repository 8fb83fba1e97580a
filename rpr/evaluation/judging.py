"""The test of arms on scores that were computed elsewhere: one number for each arm and seed."""
import contextlib
import csv
import dataclasses
import io
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rpr.evaluation import significance
from rpr.evaluation.significance import Comparison, RunScores
from rpr.utils import files
from rpr.utils.errors import InvalidPath, InvalidValue

MOST_BYTES = 100_000_000
LARGEST = 1e50                                        # score; squares must stay finite
LEAST_DEVIATION = 1e-12                               # of the largest score; less is rounding

# {name of a table: {arm: {seed: mean score}}}
Scores = dict[str, dict[str, dict[str, float]]]


class Pair(NamedTuple):
    """Two arms of a table."""
    table: str                                        # its name
    first: str
    second: str
    comparison: Comparison                            # second minus first; Holm: of the table
    p_all: float | None = None                        # Holm: over the pairs of all tables


def read_scores(path: str, arm: str, seed: str, score: str, tables: Sequence[str] = ()) -> Scores:
    """Reads a CSV file with a header and a row per run, or several, which are averaged.

    Args:
      path: the file.
      arm, seed, score: names of its columns.
      tables: columns whose values name a table of their own, such as the task.

    Raises:
      InvalidPath: the file is too large or no CSV, or runs of a table have unequal numbers of rows.
      InvalidValue: it lacks a column, one occurs or is named twice, or a score is not a number.
    """
    with files.open_regular(path) as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise InvalidPath(path, f"larger than {MOST_BYTES:,} bytes")
    if not content.strip():
        raise InvalidPath(path, "is empty")
    found: dict[tuple[str, str, str], list[float]] = {}
    rows = None
    try:
        rows = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        columns = rows.fieldnames or []
        if len(columns) == 1 and re.search("[;\t]", columns[0]):
            raise InvalidPath(path, "the header is one column; separate columns by commas")
        used: dict[str, str] = {}
        for name, column in (("arm", arm), ("seed", seed), ("score", score),
                             *(("tables", column) for column in tables)):
            if column not in columns:
                raise InvalidValue(name, column, f"must be a column of {path}: "
                                   f"{', '.join(columns)}")
            if columns.count(column) > 1:
                raise InvalidValue(name, column, f"occurs twice in the header of {path}")
            if column in used:
                raise InvalidValue(name, column, f"is also the column of {used[column]}")
            used[column] = name
        for row in rows:
            if None in row:                           # such as a decimal comma
                raise ValueError("more fields than columns")
            if None in [row[column] for column in used]:
                raise ValueError("fewer fields than columns")
            names = [row[column] for column in tables]
            key = (", ".join(repr(name) if ", " in name else name for name in names), row[arm],
                   row[seed])
            for column in (arm, seed):
                if not row[column].strip():
                    raise ValueError(f"column {column} is empty")
            value = math.nan
            with contextlib.suppress(ValueError):
                value = float(row[score])
            if not abs(value) <= LARGEST:             # or NaN
                raise InvalidValue("score", score, f"{row[score][:80]!r} in line {rows.line_num} "
                                   f"of {path} is not a number from {-LARGEST:g} to {LARGEST:g}")
            found.setdefault(key, []).append(value)
    except (csv.Error, ValueError) as error:          # UnicodeDecodeError is one
        raise InvalidPath(path, (f"line {rows.line_num}: " if rows else "") + str(error)) from None
    if not found:
        raise InvalidPath(path, "no rows")
    return _mean_scores(path, found)


def _mean_scores(path: str, found: Mapping[tuple[str, str, str], Sequence[float]]) -> Scores:
    """The mean of the rows of each run; refuses a run with fewer or more than its table has.
    """
    counts: dict[str, list[int]] = {}
    for (table, _, _), values in found.items():
        counts.setdefault(table, []).append(len(values))
    usual = {table: max(statistics.multimode(rows)) for table, rows in counts.items()}
    scores: Scores = {}
    for (table, name, number), values in found.items():
        if len(values) != usual[table]:
            rows = "row" if len(values) == 1 else "rows"
            raise InvalidPath(path, f"{table and f'table {table}: '}arm {name} with seed {number} "
                              f"has {len(values)} {rows} where others have {usual[table]}; name "
                              "the columns of conditions or remove the run")
        scores.setdefault(table, {}).setdefault(name, {})[number] = statistics.fmean(values)
    return scores


def judge(scores: Scores) -> list[Pair]:
    """Compares all arms of each table that have two seeds or more.

    Only other seeds are accounted for: the examples of a test set are not in the scores. Two arms
    whose scores do not vary between seeds are compared only if they have equally many, and other
    arms in the table vary. The scores of a table are first divided by the largest, because the
    squares of very small numbers are 0.
    """
    pairs = []
    for table, arms in scores.items():
        unit = max(abs(score) for seeds in arms.values() for score in seeds.values()) or 1.0
        runs = {name: _runs([score / unit for score in seeds.values()])
                for name, seeds in arms.items() if len(seeds) > 1}
        if len(runs) < 2:
            continue
        spread = significance.estimate_spread(runs.values())
        compared = {both: significance.compare(runs[both[0]], runs[both[1]], spread)
                    for both in itertools.combinations(runs, 2)}
        varied = [both for both in compared if compared[both].seed_variance]
        corrected = significance.correct([compared[both] for both in varied])
        pairs += [Pair(table, *both, _times(comparison, unit))
                  for both, comparison in zip(varied, corrected, strict=True)]
    overall = significance.correct([pair.comparison for pair in pairs])
    return [pair._replace(p_all=comparison.p_holm)
            for pair, comparison in zip(pairs, overall, strict=True)]


def _runs(scores: Sequence[float]) -> list[RunScores]:
    """The runs of an arm; each has the mean score if scores differ by rounding alone."""
    if statistics.stdev(scores) < LEAST_DEVIATION:
        scores = [statistics.fmean(scores)] * len(scores)
    return [RunScores(score, np.full(2, score)) for score in scores]


def _times(comparison: Comparison, unit: float) -> Comparison:
    """A comparison of scores that were divided by `unit`."""
    scales = {"difference": unit, "low": unit, "high": unit, "seed_variance": unit ** 2}
    return dataclasses.replace(comparison, **{
        name: getattr(comparison, name) * scale for name, scale in scales.items()})


def outcomes(pairs: Sequence[Pair], p: str) -> Mapping[tuple[str, str], list[int]]:
    """{(first, second): [tables where the second is ahead, behind, undecided]} at p <= 0.05.

    `p` says which p counts: `p`, `p_holm` (of the table) or `p_all` (of all tables).
    """
    counts: dict[tuple[str, str], list[int]] = {}
    for pair in pairs:
        value = pair.p_all if p == "p_all" else getattr(pair.comparison, p)
        decided = value is not None and value <= significance.LEVEL
        place = (0 if pair.comparison.difference > 0 else 1) if decided else 2
        both = pair.first, pair.second
        if both[::-1] in counts:                      # of a table that lists them the other way
            both, place = both[::-1], (1, 0, 2)[place]
        counts.setdefault(both, [0, 0, 0])[place] += 1
    return counts
