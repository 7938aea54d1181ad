"""Change one number in public notebooks: which cells are reported as stale?

    python benchmarks/stale_cells.py                  # 30 notebooks: minutes
    python benchmarks/stale_cells.py --notebooks 60 -v --json FILE
    python benchmarks/stale_cells.py --folder FOLDER  # the notebooks of a folder
    python benchmarks/stale_cells.py --tools          # marimo and ipyflow, too

The notebooks are those of source distributions on the package index
(`tests/dataflow/score.py`); they are downloaded at run time. Each runs twice, and once
with each changed number. Numbers in assignments to names that occur in later cells come
first. A change counts if the changed cell has another effect.

A cell is affected if its output, a figure or a value that it binds differs. Facts that
differ between the two equal runs do not count. If a cell has such facts and the others
do not differ, it is not judged. A cell is overwritten if the changed cell, as it runs
out of order, replaces the last value of a name that this cell binds: it must run again,
although it is not affected.

The reported cells are those that are stale and those that are indirectly stale: before
the changed cell has run, and after it.

With `--tools`, `reactive_tools.py` asks marimo and ipyflow about the same changes, and
the table compares the answers on the same judged cells. Changes that one of them cannot
answer are left out of the comparison.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
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
    list_number_changes,
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
ASK_TOOL = ROOT / "benchmarks" / "reactive_tools.py"
FORKED_SCRIPTS = ROOT / "benchmarks" / "forked_scripts.py"
# Modules that many notebooks import.
PRELOADED = (
    "numpy",
    "pandas",
    "matplotlib.pyplot",
    "IPython.core.interactiveshell",
    "cloudpickle",
    "scipy.stats",
    "geopandas",
    "libpysal",
    "seaborn",
    "control",
    "lmfit",
    "mesa",
    "mapclassify",
    "splot",
    "esda",
    "giddy",
    "spreg",
    "spaghetti",
    "pointpats",
)
TOOLS = ("marimo-base==0.25.2", "ipyflow-core==0.0.231")
TOOL_SECONDS = 90  # ipyflow traces the cells
MIN_CELLS = 5
MAX_CELLS = 40
# The processor time of a run of all cells. Slower notebooks are left out.
MAX_SECONDS = 10
MAX_CHANGED_SECONDS = 25  # with a change
MAX_TRIES = 3  # changes of numbers to try
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
MAGIC_LINE = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)

HEADER = """\
| reported | wanted cells | reported cells | precision | recall |
| --- | --- | --- | --- | --- |"""

Record = dict[str, Any]


@dataclass
class Result:
    """The affected and the reported cells of one notebook, by index."""

    notebook: str
    edit: str
    judged: list[int] = field(default_factory=list)
    affected: list[int] = field(default_factory=list)
    overwritten: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    # The answers of other tools; see `reactive_tools.py`.
    marimo: Record = field(default_factory=dict)
    ipyflow: Record = field(default_factory=dict)

    @property
    def is_compared(self) -> bool:
        """Whether both other tools answered."""
        return "after" in self.marimo and "after" in self.ipyflow

    @property
    def marimo_after(self) -> set[int]:
        """The judged cells that marimo would run again."""
        return {*self.marimo["after"]} & {*self.judged}

    @property
    def ipyflow_before(self) -> set[int]:
        """The judged cells that ipyflow runs with the changed cell."""
        return {*self.ipyflow["before"]} & {*self.judged}

    @property
    def ipyflow_after(self) -> set[int]:
        """The judged cells that ipyflow marks after the changed cell ran."""
        return {*self.ipyflow["after"]} & {*self.judged}


class ScriptRunner:
    """Runs scripts with the Python of an environment, in forks of one process.

    Answers are kept in the folder `cache`, if there is one. So the figures can be
    computed again when rules have changed.
    """

    def __init__(self, python: str, cache: Path | None) -> None:
        self.cache = cache
        self.lock = threading.Lock()
        self.process = subprocess.Popen(
            [python, str(FORKED_SCRIPTS), *PRELOADED],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(
        self,
        script: Path,
        arguments: Sequence[str],
        text: str,
        seconds: float,
        label: str = "",
    ) -> str | None:
        """Return what a script prints, or None if it takes too long.

        `text` is its standard input, and the last of the arguments a folder. `seconds`
        is the limit of its processor time. Answers with another `label` are kept apart.
        """
        *options, folder = arguments
        parts = [script.name, *options, Path(folder).name, label, text]
        key = hash_source("\n".join(part for part in parts if part))
        file = self.cache / key if self.cache else None
        if file is not None and file.exists():
            return file.read_text() or None
        request = {
            "script": str(script),
            "arguments": [*arguments],
            "input": text,
            "seconds": seconds,
        }
        with self.lock:
            assert self.process.stdin and self.process.stdout
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
        output = answer["output"] if answer["is_done"] else None
        if file is not None:
            file.write_text(output or "")
        return output

    def replay(
        self, folder: Path, sources: Sequence[str], seconds: float
    ) -> list[Record] | None:
        """Return a record for each source, or None if they take too long."""
        output = self.run(REPLAYER, [str(folder)], json.dumps(sources), seconds)
        return json.loads(output) if output else None

    def replay_again(self, folder: Path, sources: Sequence[str]) -> list[Record] | None:
        """Return the records of a second run of the same sources."""
        text = json.dumps(sources)
        output = self.run(
            REPLAYER, [str(folder)], text, MAX_CHANGED_SECONDS, label="again"
        )
        return json.loads(output) if output else None

    def ask_tool(
        self, tool: str, folder: Path, sources: Sequence[str], edit: Edit
    ) -> Record:
        """Return the answer of marimo or ipyflow about an edit."""
        request = {"sources": [*sources], "cell": edit.cell, "source": edit.source}
        arguments = [tool, str(folder)]
        text = json.dumps(request)
        output = self.run(ASK_TOOL, arguments, text, TOOL_SECONDS)
        if output:
            return json.loads(output)
        return {"error": "no answer"}


@dataclass
class CellEffects:
    """The effects of a cell's run, and the hashes of all values after it."""

    is_ok: bool
    outputs: list[str]  # the text, then the figures
    bound: set[str]
    values: dict[str, str]


def list_effects(records: Sequence[Record]) -> list[CellEffects]:
    """Return the effects of the cells of a notebook, in their order."""
    values: dict[str, str] = {}
    effects = []
    for record in records:
        values = values | record["values"]
        text, *figures = record["output"]
        outputs = [ADDRESS.sub("0x", text), *figures]
        effects.append(CellEffects(record["ok"], outputs, {*record["values"]}, values))
    return effects


def find_differences(one: CellEffects, other: CellEffects) -> set[str]:
    """Return the parts of a cell's effects that differ between two runs.

    A name that only one run bound may have the same value in both.
    """
    outputs = itertools.zip_longest(one.outputs, other.outputs)
    differences = {
        f"output {number}" for number, (a, b) in enumerate(outputs) if a != b
    }
    differences |= {
        name
        for name in one.bound | other.bound
        if one.values.get(name) != other.values.get(name)
    }
    if one.is_ok != other.is_ok:
        differences.add("success")
    return differences


def find_overwritten(changed: Sequence[CellEffects], edited_cell: int) -> set[int]:
    """Return the later cells with last values that the edited cell replaces."""
    edited = changed[edited_cell]
    return {
        max(index for index, effects in enumerate(changed) if name in effects.bound)
        for name in edited.bound
        if edited.values[name] != changed[-1].values[name]
    }


def list_assigned_edits(sources: Sequence[str]) -> Iterator[Edit]:
    """Yield changes of numbers in assignments to names that occur in later cells."""
    middle = len(sources) // 2
    order = sorted(range(len(sources) - 1), key=lambda n: abs(n - middle))
    for index in order:
        later = "\n".join(sources[index + 1 :])
        yield from itertools.islice(list_cell_edits(index, sources[index], later), 1)


def list_cell_edits(index: int, source: str, later: str) -> Iterator[Edit]:
    """Yield changes of numbers in a cell's assignments to names in `later`."""
    try:
        tree = ast.parse(MAGIC_LINE.sub(r"\1pass", source))
    except SyntaxError:
        return
    lines = source.splitlines(keepends=True)
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(
            node.targets[0], ast.Name
        ):
            continue
        if not re.search(rf"\b{node.targets[0].id}\b", later):
            continue
        head = "".join(lines[: node.lineno - 1])
        statement = "".join(lines[node.lineno - 1 : node.end_lineno])
        tail = "".join(lines[node.end_lineno or 0 :])
        for edit in list_number_changes(index, statement, True):
            yield Edit(index, head + edit.source + tail, edit.text)


def choose_edits(sources: Sequence[str]) -> list[Edit]:
    """Return the changes of numbers to try, at most one per source."""
    edits = {
        edit.source: edit
        for edit in (*list_assigned_edits(sources), *list_edits(sources))
    }
    return [*edits.values()][:MAX_TRIES]


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
    effects = list_effects(first)
    changed_effects = list_effects(changed)
    unstable = [*map(find_differences, effects, list_effects(second))]
    differences = [*map(find_differences, effects, changed_effects)]
    session = Session(sources)
    for index, record in enumerate(first):
        session.run(index, record)
    judged = {
        index
        for index, record in enumerate(first)
        if index != edit.cell
        and record["ok"]
        and changed[index]["ok"]
        and (differences[index] - unstable[index] or not unstable[index])
    }
    affected = {index for index in judged if differences[index] - unstable[index]}
    session.sources[edit.cell] = edit.source
    before = session.list_reported()
    session.run(edit.cell, changed[edit.cell])
    after = session.list_reported()
    return Result(
        name,
        edit.text,
        sorted(judged),
        sorted(affected),
        sorted(find_overwritten(changed_effects, edit.cell) & judged),
        sorted(before & judged),
        sorted(after & judged),
    )


def is_effective(
    edit: Edit, first: list[Record], second: list[Record], changed: list[Record]
) -> bool:
    """Return whether an edit changes what the edited cell does."""
    original, again, edited = (
        list_effects(records)[edit.cell] for records in (first, second, changed)
    )
    unstable = find_differences(original, again)
    return bool(find_differences(original, edited) - unstable)


def measure(
    runner: ScriptRunner, path: Path, max_edits: int, has_tools: bool
) -> list[Result]:
    """Return the results of changes in a notebook that have an effect."""
    sources = read_code_cells(path)
    first = runner.replay(path.parent, sources, MAX_SECONDS)
    if first is None or sum(record["ok"] for record in first) < MIN_CELLS:
        return []
    second = runner.replay_again(path.parent, sources)
    results: list[Result] = []
    for edit in choose_edits(sources):
        if second is None or not first[edit.cell]["ok"]:
            continue
        edited = [*sources]
        edited[edit.cell] = edit.source
        changed = runner.replay(path.parent, edited, MAX_CHANGED_SECONDS)
        if changed is None or not changed[edit.cell]["ok"]:
            continue
        result = compare(path.name, sources, edit, (first, second, changed))
        if not result.affected and not is_effective(edit, first, second, changed):
            continue
        if has_tools:
            arguments = (path.parent, sources, edit)
            result.marimo = runner.ask_tool("marimo", *arguments)
            result.ipyflow = runner.ask_tool("ipyflow", *arguments)
        results.append(result)
        if len(results) == max_edits:
            break
    return results


def measure_notebooks(
    python: str, paths: Sequence[Path], arguments: argparse.Namespace
) -> list[Result]:
    """Return the results of notebooks, until enough of them have some."""
    found: dict[int, list[Result]] = {}
    pending = [*enumerate(paths)]
    pending.reverse()

    def work() -> None:
        runner = ScriptRunner(python, arguments.cache)
        while pending and len(found) < arguments.notebooks:
            index, path = pending.pop()
            results = measure(runner, path, arguments.edits, arguments.tools)
            if not results:
                continue
            found[index] = results
            if arguments.verbose:
                for result in results:
                    sys.stderr.write(f"{result}\n")
            if arguments.json:
                documents = [asdict(each) for each in list_results(found)]
                arguments.json.write_text(json.dumps(documents, indent=1))
        runner.process.communicate()

    with ThreadPoolExecutor(arguments.jobs) as pool:
        tasks = [pool.submit(work) for _ in range(arguments.jobs)]
    for task in tasks:
        task.result()
    return list_results(found)


def list_results(found: Mapping[int, Sequence[Result]]) -> list[Result]:
    """Return the results in the order of the notebooks."""
    return [result for _, results in sorted(found.items()) for result in results]


def is_suitable(path: Path) -> bool:
    """Return whether a notebook has enough code cells and needs nothing from outside."""
    try:
        sources = read_code_cells(path)
    except (ValueError, KeyError, UnicodeDecodeError):
        return False
    has_suitable_size = MIN_CELLS <= len(sources) <= MAX_CELLS
    return has_suitable_size and not UNSUITABLE.search("\n".join(sources))


def format_row(title: str, results: Sequence[Result], which: str, *wanted: str) -> str:
    """Return a row of the table: precision and recall of the reported cells.

    `which` and `wanted` are names of the lists of cells in the results.
    """
    hits = 0
    reported_count = 0
    wanted_count = 0
    for result in results:
        reported = {*getattr(result, which)}
        cells = {cell for name in wanted for cell in getattr(result, name)}
        hits += len(reported & cells)
        reported_count += len(reported)
        wanted_count += len(cells)
    precision = hits / max(1, reported_count)
    recall = hits / max(1, wanted_count)
    counts = f"{wanted_count} | {reported_count}"
    return f"| {title} | {counts} | {precision:.3f} | {recall:.3f} |"


def print_table(results: Sequence[Result]) -> None:
    """Print the numbers of notebooks and changes, and the table."""
    print_counts(results)
    print(HEADER)
    print(format_row("before the changed cell runs", results, "before", "affected"))
    print(format_row("after the changed cell ran", results, "after", "affected"))
    wanted = ("affected", "overwritten")
    print(format_row("the same, with overwritten cells", results, "after", *wanted))


def print_counts(results: Sequence[Result]) -> None:
    """Print the numbers of notebooks, changes and cells."""
    notebooks = len({result.notebook for result in results})
    effective = sum(bool(result.affected) for result in results)
    judged = sum(len(result.judged) for result in results)
    print(
        f"{notebooks} notebooks, {len(results)} changes, {effective} of them with an"
        f" effect on other cells, {judged} cells judged"
    )


def print_comparison(results: Sequence[Result]) -> None:
    """Print the table with marimo and ipyflow, and what they cannot do."""
    compared = [result for result in results if result.is_compared]
    print_counts(compared)
    print(HEADER)
    rows = (
        ("stepper, before the changed cell runs", "before", ["affected"]),
        ("stepper, after it ran", "after", ["affected"]),
        ("the same, with overwritten cells", "after", ["affected", "overwritten"]),
        ("marimo", "marimo_after", ["affected"]),
        ("ipyflow, before the changed cell runs", "ipyflow_before", ["affected"]),
        ("ipyflow, after it ran", "ipyflow_after", ["affected"]),
        (
            "the same, with overwritten cells",
            "ipyflow_after",
            ["affected", "overwritten"],
        ),
    )
    for title, which, wanted in rows:
        print(format_row(title, compared, which, *wanted))
    for result in results:
        for tool, answer in (("marimo", result.marimo), ("ipyflow", result.ipyflow)):
            if "error" in answer:
                print(f"{result.notebook}: {tool}: {answer['error']}")
    several = {each.notebook for each in compared if each.marimo["several_binders"]}
    refused = {each.notebook for each in compared if each.marimo["refused"]}
    failed = sum(len({*each.ipyflow["failed"]} & {*each.judged}) for each in compared)
    print(f"{len(several)} notebooks bind a name in several cells")
    print(f"{len(refused)} notebooks have cells that marimo refuses to run")
    print(f"{failed} judged cells fail only with ipyflow")


def main() -> None:
    """Measure public notebooks and print a table."""
    parser = argparse.ArgumentParser(description="Count correctly reported cells.")
    parser.add_argument("--notebooks", type=int, default=30)
    parser.add_argument("--edits", type=int, default=2, help="per notebook")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="has the notebooks")
    parser.add_argument("--python", help="has the packages that they need")
    parser.add_argument("--cache", type=Path, help="a folder for the replays")
    parser.add_argument("--tools", action="store_true", help="ask marimo and ipyflow")
    parser.add_argument("--json", type=Path, help="write the results to a file")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    needed = (*NEEDED, *TOOLS) if arguments.tools else NEEDED
    python = arguments.python or environment(sys.executable, *needed)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.folder:
            paths = [*arguments.folder.rglob("*.ipynb")]
        else:
            paths = unpack_notebooks(sys.executable, Path(folder))
        unique_paths = {path.read_bytes(): path for path in paths}.values()
        paths = [*filter(is_suitable, unique_paths)]
        paths.sort(key=lambda path: hash_source(path.name))
        results = measure_notebooks(python, paths, arguments)
    print_table(results)
    if arguments.tools:
        print_comparison(results)


if __name__ == "__main__":
    main()
