"""Change one number in public notebooks: which cells are reported as stale?

    python benchmarks/stale_cells.py                  # 30 notebooks: minutes
    python benchmarks/stale_cells.py --notebooks 60 -v --json FILE

The notebooks are those of source distributions on the package index
(`tests/dataflow/score.py`); they are downloaded at run time. Each runs twice, and once
with a changed number. A cell is affected if its output, a figure or a value that it
binds differs. Cells that differ between the two equal runs do not count.

The reported cells are those that are stale and those that are indirectly stale: before
the changed cell has run, and after it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.edit_stories import (  # noqa: E402
    UNSUITABLE,
    Edit,
    list_edits,
    read_code_cells,
)
from stepper.diagnosis import ipython_syntax  # noqa: E402
from stepper.policy.changed_cells import hash_source  # noqa: E402
from stepper.policy.dataflow import cell_dependencies, name_analysis  # noqa: E402
from stepper.policy.dataflow.run_history import History  # noqa: E402
from stepper.policy.journal_events import RunEnded  # noqa: E402
from stepper.policy.model import Cell, Outcome, Verdict  # noqa: E402
from tests.dataflow.score import NEEDED, unpack_notebooks  # noqa: E402
from tests.environments import environment  # noqa: E402

REPLAYER = ROOT / "tests" / "dataflow" / "replayer.py"
MIN_CELLS = 5
MAX_SECONDS = 100.0  # of one run of all cells
MAX_EDITS = 3  # changes of numbers to try

Record = dict[str, Any]


@dataclass
class Result:
    """The affected and the reported cells of one notebook, by index."""

    notebook: str
    edit: str
    affected: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)


def replay(python: str, folder: Path, sources: Sequence[str]) -> list[Record] | None:
    """Return a record for each source, or None if they take too long."""
    try:
        process = subprocess.run(
            [python, str(REPLAYER), str(folder)],
            input=json.dumps(sources),
            capture_output=True,
            text=True,
            timeout=MAX_SECONDS,
            check=False,
        )
        return json.loads(process.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None


def is_different(one: Record, other: Record) -> bool:
    """Return whether two runs of a cell had different effects."""
    keys = ("ok", "output", "values")
    return any(one[key] != other[key] for key in keys)


class Session:
    """The runs of a notebook as stepper records them."""

    def __init__(self, sources: Sequence[str]) -> None:
        transformer = ipython_syntax.get_transformer()
        self.sources = [*sources]
        self.runs: list[RunEnded] = []
        self.by_hash: dict[str, str] = {}
        self.history = History(
            lambda source: name_analysis.analyze_source(source, transformer)
        )

    def list_cells(self) -> list[Cell]:
        return [
            Cell(f"cell{index}", index, index + 1, "code", source)
            for index, source in enumerate(self.sources)
        ]

    def run(self, index: int, record: Record) -> None:
        """Record the run of a cell."""
        source = self.sources[index]
        source_hash = hash_source(source)
        self.by_hash[source_hash] = source
        self.runs.append(
            RunEnded(
                run=len(self.runs) + 1,
                cell_id=f"cell{index}",
                number=index + 1,
                index=index,
                step=None,
                key=f"cell{index}",
                source_hash=source_hash,
                started_at="2026-01-01T00:00:00Z",
                duration_s=0.0,
                outcome=Outcome.OK if record["ok"] else Outcome.ERROR,
                verdict=Verdict.FINE if record["ok"] else Verdict.RECOVERABLE,
                kernel="kernel",
                bound=record["bound"],
            )
        )

    def list_reported(self) -> set[int]:
        """Return the indexes of the stale and the indirectly stale cells."""
        self.history.catch_up(self.runs, self.by_hash)
        dependencies = cell_dependencies.find_dependencies(
            self.list_cells(), self.history
        )
        marked = [*dependencies.stale, *dependencies.indirect]
        return {entry.cell.index for entry in marked}


def compare(
    name: str,
    sources: Sequence[str],
    edit: Edit,
    records: tuple[list[Record], list[Record], list[Record]],
) -> Result:
    """Return the affected and the reported cells after an edit.

    `records` are those of two equal runs, and of the run with the edit.
    """
    first, second, changed = records
    session = Session(sources)
    for index, record in enumerate(first):
        session.run(index, record)
    judged = {
        index
        for index, record in enumerate(first)
        if index != edit.cell
        and record["ok"]
        and changed[index]["ok"]
        and not is_different(record, second[index])
    }
    affected = {index for index in judged if is_different(first[index], changed[index])}
    session.sources[edit.cell] = edit.source
    before = session.list_reported()
    session.run(edit.cell, changed[edit.cell])
    after = session.list_reported()
    return Result(
        name,
        edit.text,
        sorted(affected),
        sorted(before & judged),
        sorted(after & judged),
    )


def measure(python: str, path: Path) -> Result | None:
    """Return the result of a notebook, or None if no change has an effect here."""
    sources = read_code_cells(path)
    first = replay(python, path.parent, sources)
    if first is None or sum(record["ok"] for record in first) < MIN_CELLS:
        return None
    second = replay(python, path.parent, sources)
    for _, edit in zip(range(MAX_EDITS), list_edits(sources), strict=False):
        if not first[edit.cell]["ok"]:
            continue
        edited = [*sources]
        edited[edit.cell] = edit.source
        changed = replay(python, path.parent, edited)
        if second is None or changed is None or not changed[edit.cell]["ok"]:
            continue
        result = compare(path.name, sources, edit, (first, second, changed))
        if result.affected or is_different(first[edit.cell], changed[edit.cell]):
            return result
    return None


def is_suitable(path: Path) -> bool:
    """Return whether a notebook has enough code cells and needs nothing from outside."""
    try:
        sources = read_code_cells(path)
    except (ValueError, KeyError, UnicodeDecodeError):
        return False
    return len(sources) >= MIN_CELLS and not UNSUITABLE.search("\n".join(sources))


def format_row(title: str, results: Sequence[Result], which: str) -> str:
    """Return a row of the table: precision and recall of the reported cells."""
    hits = 0
    reported_count = 0
    affected_count = 0
    for result in results:
        reported = {*getattr(result, which)}
        affected = {*result.affected}
        hits += len(reported & affected)
        reported_count += len(reported)
        affected_count += len(affected)
    precision = hits / max(1, reported_count)
    recall = hits / max(1, affected_count)
    counts = f"{affected_count} | {reported_count}"
    return f"| {title} | {len(results)} | {counts} | {precision:.3f} | {recall:.3f} |"


def main() -> None:
    """Measure public notebooks and print a table."""
    parser = argparse.ArgumentParser(description="Count correctly reported cells.")
    parser.add_argument("--notebooks", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the results to a file")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    python = environment(sys.executable, *NEEDED)
    results: list[Result] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ThreadPoolExecutor(arguments.jobs) as pool,
    ):
        paths = [*filter(is_suitable, unpack_notebooks(sys.executable, Path(folder)))]
        paths.sort(key=lambda path: hash_source(path.name))
        while paths and len(results) < arguments.notebooks:
            chosen = paths[: arguments.jobs]
            paths = paths[arguments.jobs :]
            for result in pool.map(lambda path: measure(python, path), chosen):
                if result is None:
                    continue
                results.append(result)
                if arguments.verbose:
                    sys.stderr.write(f"{result}\n")
                if arguments.json:
                    documents = [asdict(each) for each in results]
                    arguments.json.write_text(json.dumps(documents, indent=1))
    print("| reported | notebooks | affected | reported | precision | recall |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(format_row("before the changed cell runs", results, "before"))
    print(format_row("after the changed cell ran", results, "after"))


if __name__ == "__main__":
    main()
