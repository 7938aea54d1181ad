"""Which cells do marimo and ipyflow run again after a change of one cell?

    PYTHON benchmarks/reactive_tools.py (marimo|ipyflow) FOLDER

`stale_cells.py` runs it with the Python of an environment that has the tools and the
packages of the notebooks, and nothing of stepper. It reads a JSON object from standard
input: `sources`, the index `cell` of the changed cell, and its changed `source`. The
answer is JSON with indexes of cells; an `error` instead says why there is none.

marimo: the notebook is converted as `marimo convert` does, which gives names that
several cells bind another name in each. The answer `after` has the cells that depend on
the changed cell in marimo's graph; marimo runs no code for it. `refused` are the cells
that marimo does not run after the conversion, because its checks find errors in them.

ipyflow: the cells run in IPython with ipyflow. Then the changed source is reported as
JupyterLab does. `before` has the cells that run with the changed cell in reactive mode,
as the extension for JupyterLab computes them. Then the changed cell alone runs, and
`after` has the cells that ipyflow calls ready or waiting.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

os.environ["MPLBACKEND"] = "Agg"

CELL_SECONDS = 60  # of processor time
CELL_NAME = re.compile(r"cell_(\d+)")

Answer = dict[str, Any]


def list_names(sources: Iterable[str]) -> set[str]:
    """Return the names that several cells bind, as marimo finds them."""
    from marimo._ast.compiler import compile_cell
    from marimo._runtime.dataflow import DirectedGraph

    graph = DirectedGraph()
    for index, source in enumerate(sources):
        with contextlib.suppress(SyntaxError):
            graph.register_cell(str(index), compile_cell(source, str(index)))
    return {str(name) for name in graph.get_multiply_defined()}


def ask_marimo(sources: list[str], changed: int) -> Answer:
    """Return the cells that depend on a changed cell in marimo's graph."""
    from marimo._ast.compiler import compile_cell
    from marimo._convert.converters import MarimoConvert
    from marimo._lint.validate_graph import check_for_errors
    from marimo._runtime.dataflow import DirectedGraph

    cells = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {"marimo": {"name": f"cell_{index}"}},
            "outputs": [],
            "execution_count": None,
        }
        for index, source in enumerate(sources)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    converted = MarimoConvert.from_ipynb(json.dumps(notebook)).to_ir()
    graph = DirectedGraph()
    invalid = []
    indexes = {}
    for number, cell in enumerate(converted.cells):
        match = CELL_NAME.fullmatch(cell.name)
        cell_id = f"added{number}"
        if match:
            cell_id = match[1]
            indexes[cell_id] = int(match[1])
        try:
            graph.register_cell(cell_id, compile_cell(cell.code, cell_id))
        except SyntaxError:
            invalid.append(cell_id)
    marked = graph.descendants(str(changed)) if str(changed) in graph.cells else set()
    refused = {*check_for_errors(graph), *invalid}
    return {
        "after": sorted(indexes[cell] for cell in marked if cell in indexes),
        "refused": sorted(indexes[cell] for cell in refused if cell in indexes),
        "several_binders": sorted(list_names(sources)),
    }


class Closure:
    """The cells that ipyflow's extension for JupyterLab runs with one cell.

    This is `computeRawTransitiveClosure` of the extension (version 0.0.231), in
    Python. `schedule` is the answer of the kernel to `compute_exec_schedule`.
    """

    def __init__(self, schedule: Mapping[str, Any]) -> None:
        self.schedule = schedule
        self.settings = schedule["settings"]
        self.outdated = {*schedule["ready_cells"], *schedule["waiting_cells"]}
        self.executed = {*schedule["executed_cells"]}
        # A dict keeps the order of insertion, as a JavaScript set does.
        self.cells: dict[str, None] = {}

    def find(self, cell_id: str) -> set[str]:
        """Return the cells that run with a cell, without the cell itself."""
        self.cells = {cell_id: None}
        pending = [cell_id]
        while True:
            for cell in pending:
                self._add_related(cell, "cell_children", pulls=False, is_first=True)
            if not self.settings.get("pull_reactive_updates"):
                break
            self._pull_parents()
            is_complete = len(pending) == len(self.cells)
            if is_complete or not self.settings.get("push_reactive_updates_to_cousins"):
                break
            pending = [*self.cells]
        return {*self.cells} - {cell_id}

    def _pull_parents(self) -> None:
        visited = set[str]()
        while not self.cells.keys() <= visited:
            for cell in [*self.cells]:
                if cell not in visited:
                    visited.add(cell)
                    self._add_related(cell, "cell_parents", pulls=True, is_first=True)

    def _add_related(
        self, cell: str, edges: str, pulls: bool, is_first: bool = False
    ) -> None:
        if not is_first and cell in self.cells:
            return
        if not pulls:
            self.cells.setdefault(cell)
        related = self.schedule[edges].get(cell)
        if related is None:
            return
        count = len(self.cells)
        for other in related:
            self._add_related(other, edges, pulls)
        if not pulls:
            return
        is_new = len(self.cells) > count or cell not in self.executed
        if is_new or cell in self.outdated:
            self.cells.setdefault(cell)
        if cell in self.cells:
            self._add_stale_parents(cell, edges, related)

    def _add_stale_parents(self, cell: str, edges: str, related: list[str]) -> None:
        stale = self.schedule["stale_parents"].get(cell, [])
        by_executed = self.schedule["stale_parents_by_executed_cell_by_child"]
        by_child = self.schedule["stale_parents_by_child_by_executed_cell"]
        for parent in dict.fromkeys([*related, *stale]):
            if parent in self.cells:
                continue
            is_stale = parent in stale or any(
                executed in self.cells and parent in parents
                for executed, parents in by_executed.get(cell, {}).items()
            )
            if is_stale:
                self.cells.setdefault(parent)
                self._add_related(parent, edges, pulls=True, is_first=True)
        for child, parents in by_child.get(cell, {}).items():
            if child not in self.cells:
                continue
            for parent in parents:
                is_parent = parent in self.schedule[edges].get(child, ())
                if parent not in self.cells and is_parent:
                    self.cells.setdefault(parent)
                    self._add_related(parent, edges, pulls=True, is_first=True)


class IpyflowSession:
    """A notebook whose cells run in IPython with ipyflow."""

    def __init__(self, sources: list[str]) -> None:
        import ipyflow
        from IPython.core.interactiveshell import InteractiveShell

        self.shell = InteractiveShell.instance()
        self.sources = [*sources]
        ipyflow.load_ipython_extension(self.shell)
        self.flow = ipyflow.flow()
        self.flow.initialize(
            interface="jupyterlab", cell_metadata_by_id=self.describe_cells()
        )
        self.errors: list[Any] = []
        self.shell._showtraceback = lambda *message: self.errors.append(message)

    def describe_cells(self) -> dict[str, dict[str, Any]]:
        """Return the cells as the extension for JupyterLab sends them."""
        return {
            f"cell{index}": {"index": index, "content": source, "type": "code"}
            for index, source in enumerate(self.sources)
        }

    def run(self, index: int) -> bool:
        """Run a cell; return whether it succeeded."""
        # the inline backend would need a kernel
        source = re.sub(r"(?m)^(\s*)%matplotlib.*$", r"\1pass", self.sources[index])
        self.errors.clear()
        signal.setitimer(signal.ITIMER_PROF, CELL_SECONDS)
        try:
            with (
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()),
            ):
                result = self.shell.run_cell(
                    source, store_history=True, cell_id=f"cell{index}"
                )
            return bool(result.success) and not self.errors
        except BaseException:  # noqa: BLE001  # cells can raise anything
            return False
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            pyplot = sys.modules.get("matplotlib.pyplot")
            if pyplot is not None:
                pyplot.close("all")

    def compute_schedule(self) -> dict[str, Any]:
        """Return the kernel's answer after an edit or a run."""
        schedule = self.flow.comm_manager.handle_compute_exec_schedule(
            {
                "type": "compute_exec_schedule",
                "cell_metadata_by_id": self.describe_cells(),
                "is_reactively_executing": False,
            }
        )
        if not schedule or not schedule.get("success", True):
            raise ValueError(f"no schedule: {schedule}")
        return schedule


def list_indexes(cell_ids: Iterable[str]) -> list[int]:
    """Return the indexes of cells by their ids."""
    return sorted(int(cell_id.removeprefix("cell")) for cell_id in cell_ids)


def ask_ipyflow(sources: list[str], changed: int, changed_source: str) -> Answer:
    """Return the cells that run with a changed cell, and those that wait after it."""

    def stop(*_: Any) -> None:
        raise TimeoutError("too long")

    signal.signal(signal.SIGPROF, stop)
    session = IpyflowSession(sources)
    failed = []
    for index in range(len(sources)):
        if not session.run(index):
            failed.append(index)
        session.compute_schedule()
    session.sources[changed] = changed_source
    schedule = session.compute_schedule()
    before = Closure(schedule).find(f"cell{changed}")
    session.run(changed)
    schedule = session.compute_schedule()
    after = {*schedule["ready_cells"], *schedule["waiting_cells"]}
    return {
        "before": list_indexes(before),
        "after": list_indexes(after - {f"cell{changed}"}),
        "failed": failed,
    }


def main() -> None:
    """Answer the request on standard input."""
    tool, folder = sys.argv[1:3]
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    warnings.simplefilter("ignore")
    os.chdir(folder)
    sys.path.insert(0, str(Path(folder).resolve()))  # notebooks import their modules
    sources = request["sources"]
    changed = request["cell"]
    try:
        if tool == "marimo":
            edited = [*sources]
            edited[changed] = request["source"]
            answer = ask_marimo(edited, changed)
        else:
            answer = ask_ipyflow(sources, changed, request["source"])
    except Exception as error:  # noqa: BLE001  # the tools can raise anything
        answer = {"error": f"{type(error).__name__}: {error}"[:300]}
    json.dump(answer, out)
    out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
