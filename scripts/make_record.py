#!/usr/bin/env python3
"""Makes a record in docs/results/ of a study and its last report.

    rpr report runs/small_table2
    scripts/make_record.py runs/small_table2 docs/results/small_table2
    scripts/make_results_page.py

A record has the tables and figures of the report, those of other test sets and tokenizers, and
runs.tar.xz: the finished runs without checkpoints, from which a study goes on anywhere. Text that
must not be passed on stays out with --without_text, after a report with --sample_translations=0.
"""
import argparse
import io
import os
import re
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rpr.report.plots import TITLES
from rpr.report.results import RECORD_FILE, StudyResults, load_record
from rpr.utils.errors import UserError

TABLES = (RECORD_FILE, "results.csv", "results.tex")
ARCHIVE = "runs.tar.xz"
FIGURES = tuple(f"plots/{name}.png" for name in sorted(TITLES))
RUN_FILES = ("config.gin", "data.json", "environment.json", "status.json", "metrics*.jsonl",
             "scores*.json", "hypotheses.*.txt", "losses.*.jsonl", "model/hparams.json",
             "model/rpr.json", "dev/metrics.jsonl", "dev/scores.*.json", "dev/hypotheses.*.txt")
TEXT_FILES = ("source.*.txt", "reference*.txt", "documents.*.txt")


def main() -> int:
    """Makes the record; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path, help="directory of a study that has a report")
    parser.add_argument("record", type=Path, help="directory to make, such as docs/results/NAME; "
                        "one that exists is replaced")
    parser.add_argument("--without_text", action="store_true", help="leave out the test text")
    args = parser.parse_args()
    try:
        make_record(args.study, args.record, args.without_text)
    except UserError as error:
        print(f"make_record.py: {error}", file=sys.stderr)
        return 1
    return 0


def make_record(study: Path, record: Path, without_text: bool) -> None:
    """Copies the report, and packs the finished runs.

    Args:
      study: its directory.
      record: the directory to make or replace.
      without_text: leave out sources and references.

    Raises:
      UserError: there is no report; with `without_text`, a report has sample sentences; the newest
        report has a run from outside the study; or `record` has files of something else.
    """
    if not (study / RECORD_FILE).exists():
        raise UserError(f"{study} has no {RECORD_FILE}: rpr report {study} writes it")
    reports = [study, *(path.parent for path in sorted(study.glob(f"reports/*/{RECORD_FILE}")))]
    results = [load_record(str(report)) for report in reports]
    for report, result in zip(reports, results, strict=True):
        if without_text and result.samples:
            raise UserError(f"--without_text: {report / RECORD_FILE} has sample sentences; make "
                            "the report again with --sample_translations=0")
    for arm in results[0].arms:
        for run in arm.all_runs:
            if ".." in Path(run.path).parts:
                raise UserError(f"{study / RECORD_FILE} has a run from outside the study, "
                                f"{arm.name}: make the report again without --against")
    if record.exists() and not record.is_dir():
        raise UserError(f"{record} is a file: name a directory to make, or the record to replace")
    for path in sorted(record.iterdir()) if record.exists() else ():
        if path.name not in (*TABLES, ARCHIVE, "README.md", "plots", "reports"):
            raise UserError(f"{record} is not a record, since it has {path.name}: name a directory "
                            "to make, or the record to replace")
    record.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=record.parent, prefix=".record") as folder:
        made = Path(folder, record.name)
        for report in reports:
            for name in (*TABLES, *(FIGURES if report == study else ())):
                if (report / name).exists():
                    target = made / report.relative_to(study) / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    content = (report / name).read_bytes()
                    cut = {RECORD_FILE: cut_paths, "results.tex": cut_paths_of_notes}.get(name)
                    target.write_bytes(cut(content.decode()).encode() if cut else content)
        pack_runs(study, results[0], made / ARCHIVE, without_text)
        if record.exists():
            os.rename(record, Path(folder, "replaced"))
        os.rename(made, record)


def pack_runs(study: Path, results: StudyResults, archive: Path, without_text: bool) -> None:
    """Writes runs.tar.xz: the finished runs and study.json, by which `rpr report` finds them.

    It holds no owners, times and paths of this machine.
    """
    names = [path / name for path in sorted(Path(run.path) for arm in results.arms
                                            for run in arm.all_runs if run.state == "done")
             for name in files_of(study / path, without_text)]
    names += [Path(path.name) for path in study.glob("study.json")]
    with tarfile.open(archive, "w:xz") as tar:
        for name in names:
            content = (study / name).read_bytes()
            if name.suffix in (".json", ".gin"):
                content = cut_paths(content.decode()).encode()
            member = tarfile.TarInfo(str(name))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def files_of(run: Path, without_text: bool) -> Iterator[Path]:
    """The files of a run that a report or a continued study reads, relative to the run."""
    for pattern in RUN_FILES if without_text else (*RUN_FILES, *TEXT_FILES):
        for path in sorted(run.glob(pattern)):
            yield path.relative_to(run)


def cut_paths(text: str) -> str:
    """JSON or a gin file in which only the last part of each absolute path is left.

    Paths are looked for where quotes or an equals sign begin them, and anywhere in the note of a
    run, which says why it failed.
    """
    text = re.sub(r'(?<=["=])/[^"]*/(?=[^"/]*")', "", text)
    text = re.sub(r"(?<=')/[^'\n]*/(?=[^'/\n]*')", "", text)
    return cut_paths_of_notes(text, r'"note": ".*"')


def cut_paths_of_notes(text: str, notes: str = "(?m)^%.*") -> str:
    """LaTeX, or text with other `notes`, in whose comments only the last part of each path is left.
    """
    return re.sub(notes, lambda note: re.sub(r"(?<![\w.])/\S*/(?=\S)", "", note[0]), text)


if __name__ == "__main__":
    sys.exit(main())
