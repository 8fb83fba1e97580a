#!/usr/bin/env python3
"""Compares a study with what was predicted before its runs.

    rpr report runs/length_ruoss/even_pairs
    scripts/verdicts.py docs/predictions/length_ruoss.csv runs/length_ruoss/even_pairs

Reads results.json of each study or record, and prints a Markdown table for each. A prediction is
right if the mean over seeds is in its range. The last column says whether the published figure, if
there is one, is inside the 95% interval of the mean over seeds (Student's t), or what the figure
is for if that differs from what was measured.
"""
import argparse
import csv
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy import special


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("predictions", type=Path,
                        help="CSV with problem, arm, published, low, high and perhaps "
                             "published_for")
    parser.add_argument("studies", type=Path, nargs="+", help="directories with results.json")
    args = parser.parse_args()
    try:
        print_tables(args.predictions, args.studies)
    except KeyError as error:
        sys.exit(f"verdicts.py: {error} is missing")
    except (OSError, ValueError) as error:
        sys.exit(f"verdicts.py: {error}")


def print_tables(predictions_file: Path, studies: Sequence[Path]) -> None:
    """Prints the table of each study."""
    with predictions_file.open(encoding="utf-8") as text:
        predictions = list(csv.DictReader(text))
    for study in studies:
        results = json.loads((study / "results.json").read_text(encoding="utf-8"))
        problem, arms = results["problem"], {arm["name"]: arm for arm in results["arms"]}
        rows = [row for row in predictions if row["problem"] == problem]
        if not rows:
            raise ValueError(f"{predictions_file} predicts nothing of {problem}")
        print(f"{problem}:\n\n" + "\n".join(table(rows, arms)) + "\n")


def table(predictions: Sequence[Mapping[str, str]], arms: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a Markdown table of the predicted arms.

    Args:
      predictions: rows with `arm`, `published`, `low`, `high` and perhaps `published_for`.
      arms: the arms of results.json by name.
    """
    yield ("| arm | published | predicted | measured [95%] | seeds | largest | prediction "
           "| published is |")
    yield "| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for row in predictions:
        shown = f"| {row['arm']} | {row['published']} | {row['low']}–{row['high']} "
        runs = [run["scores"]["beyond"] for run in arms.get(row["arm"], {"runs": ()})["runs"]
                if "beyond" in run["scores"]]
        if not runs:
            yield shown + "| not run | 0 |  |  |  |"
            continue
        mean = statistics.mean(runs)
        right = float(row["low"]) <= mean <= float(row["high"])
        interval, place = "", "one seed"
        if len(runs) > 1:
            half = (-special.stdtrit(len(runs) - 1, 0.025) * statistics.stdev(runs)
                    / len(runs) ** 0.5)
            interval = f" [{mean - half:.1f}, {mean + half:.1f}]"
            place = "inside" if abs(float(row["published"] or "nan") - mean) <= half else "outside"
        yield (shown + f"| {mean:.1f}{interval} | {len(runs)} | {max(runs):.1f} "
               f"| {'right' if right else 'wrong'} "
               f"| {row.get('published_for') or place if row['published'] else ''} |")


if __name__ == "__main__":
    main()
