#!/usr/bin/env python3
"""Lists the numbers of the documentation that no record in docs/results has.

    scripts/check_numbers.py            # exit code 1 if there are any

Looks at decimals in the text and the tables of `PAGES`. A number is found if a results.json has it,
rounded as the page rounds it, among the scores, intervals, p-values, losses and speeds of its arms.
In a section whose heading names a record, only the records that it names count, with their runs,
checkpoints, and differences of these. Nearly every number below 5 with one decimal, and more than
half of those from 20 to 45, are found by chance, so this finds pages whose records have changed
rather than single slips. `KNOWN` lists figures that are published, or printed by other scripts.
"""
import argparse
import itertools
import json
import re
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / "docs" / "results"
PAGES = ("README.md", *(f"docs/{name}.md" for name in (
    "results", "discussion", "reproduction", "which_scheme")))
KNOWN = {
    "README.md": {"41.02"},                           # Wu et al. 2021
    "reproduction.md": {
        "26.5", "26.8", "29.2", "38.2", "38.7",       # Shaw et al. 2018
        "41.02",                                      # Wu et al. 2021
        "28.2",                                       # the author of gin/wmt15_enfr_cnn_rnn.gin
        "1.96", "6.28", "27.7", "55.5", "221.8"}}     # scripts/cost.py and docs/gpus.md
_NUMBER = re.compile(r"(?<![\w.,/^:-])[-+]?(\d[\d,]*\.\d+)(?![\w.]*\d)")
# Code blocks, links, the generated part, and numbers that are names.
_NO_TEXT = re.compile(
    r"<!-- Generated.*?<!-- End of the generated part. -->|```.*?```|^    .*?$|\]\([^)\n]*\)|"
    r"(?:[Ss]ections?|Python|TensorFlow|CUDA|NumPy|arXiv:)\s+\d+\.\d+[\d.]*(?: and \d+\.\d+)?",
    re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")


def of_arms(results: dict[str, Any]) -> Iterator[float]:
    """Means, deviations, differences, intervals, p-values, losses and speeds of arms and pairs."""
    for arm in results["arms"]:
        parts = [*arm["scores"].values(), *arm["differences"].values()]
        parts.append({name: arm[name] for name in ("loss", "exact", "relative_speed")})
        yield from (value for part in filter(None, parts) for value in part.values()
                    if isinstance(value, int | float))
    for pair in results["pairs"]:
        yield from (pair["comparison"][name] or 0.0
                    for name in ("difference", "low", "high", "p", "p_holm"))


def of_runs(results: dict[str, Any]) -> Iterator[float]:
    """Scores and losses of runs and checkpoints; differences of runs, means and checkpoints."""
    columns: list[list[dict[float, float]]] = [[], [], [], [], []]
    for arm in results["arms"]:
        runs = [run | {"bleu": run["scores"].get("bleu")} for run in arm["runs"]]
        for number, name in enumerate(("bleu", "loss", "brevity_penalty")):
            columns[number].append({run["seed"]: run[name] for run in runs
                                    if run[name] is not None})
        for number, name in enumerate(("dev_bleu", "dev_losses"), 3):
            curves = [dict(run[name]) for run in arm["runs"] if run[name]]
            steps = set.intersection(*map(set, curves)) if curves else ()
            mean = {step: statistics.fmean(curve[step] for curve in curves)
                    for step in sorted(steps)}
            columns[number].append(mean)
            for curve in (*curves, mean):
                yield from (*curve.values(), *(later - earlier for earlier, later in
                                               itertools.pairwise(list(curve.values()))))
                yield from (later - earlier for earlier, later
                            in zip(list(curve.values()), list(curve.values())[2:], strict=False))
    for found in columns:
        yield from (value for column in found for value in column.values())
        for one, other in itertools.combinations(filter(None, found), 2):
            yield statistics.fmean(one.values()) - statistics.fmean(other.values())
            yield from (one[key] - other[key] for key in one.keys() & other.keys())
    yield from (value for arm in results["arms"] for value in arm.get("by_test_set", {}).values())


def recorded(values: Callable[[dict[str, Any]], Iterable[float]]) -> dict[str, set[float]]:
    """{record: its numbers, without signs}, with those of its further test sets."""
    found: dict[str, set[float]] = {}
    for path in sorted(RECORDS.rglob("results.json")):
        of_record = found.setdefault(path.relative_to(RECORDS).parts[0], set())
        of_record |= set(map(abs, values(json.loads(path.read_text(encoding="utf-8")))))
    return found


def missing(page: Path, arms: dict[str, set[float]], runs: dict[str, set[float]]) -> list[str]:
    """A line for each number of a page that is neither recorded nor known."""
    text = _NO_TEXT.sub(" ", page.read_text(encoding="utf-8").replace("\\", ""))
    lines = []
    for section in re.split(r"^(?=## |### )", text, flags=re.MULTILINE):
        heading = section.partition("\n")[0]
        named = [name for name in arms if f"`{name}`" in section] if "`" in heading else []
        values = sorted(set().union(*(arms[name] | runs[name] for name in named)) if named
                        else set().union(*arms.values()))
        plain = _CODE.sub(lambda match: " " * len(match[0]), section)
        for match in _NUMBER.finditer(plain):
            shown = match[1].replace(",", "")
            if shown not in KNOWN.get(page.name, ()) and not is_among(shown, values):
                around = " ".join(section[max(match.start() - 40, 0):match.end() + 30].split())
                lines.append(f"{page.name}: {match[0]}: ... {around} ...")
    return lines


def is_among(shown: str, values: list[float]) -> bool:
    """Whether a number is one of the values, rounded to as many digits."""
    half = 0.5 * 10.0 ** -len(shown.partition(".")[2]) * 1.0001
    return any(abs(value - float(shown)) <= half for value in values)


def main(argv: list[str] | None = None) -> int:
    """Prints the numbers without a record; returns the exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.
                            RawDescriptionHelpFormatter).parse_args(argv)
    arms, runs = recorded(of_arms), recorded(of_runs)
    lines = [line for page in PAGES for line in missing(ROOT / page, arms, runs)]
    for line in lines:
        print(line)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
