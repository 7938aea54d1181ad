"""Load the corpus of failing cells and run it in real kernels and notebooks."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from examples import demo
from stepper import diagnosis
from stepper.diagnosis import ipython_syntax
from stepper.diagnosis.agent_images import SavedImages
from stepper.diagnosis.diagnoser import Diagnoser
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.kernels.backends.local.available_memory import get_memory_usage
from stepper.kernels.backends.local.local_launcher import LocalLauncher
from stepper.kernels.outputs.late_outputs import LateOutputs
from stepper.messages.run_report import Report
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.execution_result import Execution
from stepper.policy.model import CellEdit, Limits, Outcome
from stepper.session import notebook_commands
from stepper.session.caller import Caller
from stepper.session.cells.agent_edits import run_edited_cell
from stepper.session.protocols import Kernel, LaunchConfig
from stepper.session.run_recovery import recover_run
from stepper.session.session import Session

HERE = Path(__file__).parent
PACKAGES = (
    "ipykernel",
    "numpy",
    "pandas",
    "matplotlib",
    "scikit-learn",
    "requests",
    "vega_datasets",
)
# Removes names, project modules and figures of the previous case from the kernel.
FRESH = """
import os as _os, sys as _sys, gc as _gc
_os.chdir({folder!r})
for _name in [n for n, m in list(_sys.modules.items()) if str(getattr(m, "__file__", None) or "").startswith({root!r})]:
    del _sys.modules[_name]
_sys.path[:] = [p for p in _sys.path if p == "" or (p.startswith("/") and not p.startswith({root!r}))]
_sys.path_importer_cache.clear()
get_ipython().run_line_magic("reset", "-f -s")
import os as _os, gc as _gc
_gc.collect()
"""


@dataclass(frozen=True)
class Case:
    """A failing cell. `fact` is a regular expression that the report must match."""

    name: str
    ename: str
    fact: str
    cell: str
    prepare: tuple[str, ...] = ()
    unrun: tuple[str, ...] = ()  # cells above it that have not run
    files: Mapping[str, Any] = field(default_factory=dict)
    timeout: float | None = None
    needs: str = ""
    group: str = ""
    # Earlier steps of the notebook in order, instead of `prepare` (see `Bench.step`).
    story: tuple[Mapping[str, Any], ...] = ()
    at: int = 0  # the position of the cell; 0: the last
    replaces: int = 0  # the cell that it replaces
    absent: str = ""  # a regular expression for false statements: no report matches it


@dataclass(frozen=True)
class CaseResult:
    """What stepper reported for a case."""

    case: Case
    report: Report
    ename: str
    evalue: str
    stopped: tuple[str, ...]  # preparing cells that did not run ok
    warnings: tuple[str, ...]  # about preparing cells
    helper_seconds: float  # the inspection in the kernel
    blocked: bool  # did not run (preflight check)
    swallowed: tuple[str, ...] = ()  # errors in the helper

    @property
    def passed(self) -> bool:
        """Whether the report contains the fact and no false statement."""
        text = self.report.text
        false = bool(self.case.absent and re.search(self.case.absent, text))
        return bool(re.search(self.case.fact, text)) and not false

    @property
    def word_count(self) -> int:
        return len(self.report.text.split())


def load(names: tuple[str, ...] = (), folder: str = ".") -> dict[str, list[Case]]:
    """Return the cases by class, of the named classes or of all."""
    functions = {}
    for path in sorted((HERE / folder).glob("*.yaml")):
        if names and path.stem not in names:
            continue
        items = yaml.safe_load(path.read_text("utf-8"))
        functions[path.stem] = [
            Case(
                **{
                    **item,
                    "prepare": tuple(item.get("prepare") or ()),
                    "unrun": tuple(item.get("unrun") or ()),
                    "story": tuple(item.get("story") or ()),
                },
                group=path.stem,
            )
            for item in items
        ]
    return functions


def examples() -> list[Case]:
    """Return the example notebooks as cases whose cells must run without warnings."""
    _, files = json.loads(
        subprocess.run(
            [python(), "-c", demo.PROBE], capture_output=True, check=True
        ).stdout
    )
    data, results = Path(files[0]).read_text("utf-8"), []
    for path in sorted((HERE.parent.parent / "notebooks").glob("*.ipynb")):
        cells = [
            cell
            for cell in json.loads(path.read_text("utf-8"))["cells"]
            if cell["cell_type"] == "code"
        ]
        sources = ["".join(cell["source"]) for cell in cells]
        results.append(
            Case(
                path.stem,
                "",
                "",
                sources[-1],
                tuple(sources[:-1]),
                files={demo.DATA: data},
                group="examples",
            )
        )
    return results


class ReusedKernel:
    """A kernel manager that gives each session the same kernel."""

    queue_status = None

    def __init__(self, kernels: LocalLauncher) -> None:
        self.kernels, self.kernel, self.last = kernels, None, Execution(Outcome.OK)
        self.swallowed: list[str] = []  # errors of the helper that it suppressed

    async def start(self, config: LaunchConfig) -> Kernel:
        if self.kernel is None or await self.kernel.check_death() is not None:
            self.kernel = await self.kernels.start(config)
            execute = self.kernel.execute

            async def watched(*values: Any, **options: Any) -> Execution:
                self.last = await execute(*values, **options)
                if self.last.diagnosis_data.get("swallowed"):
                    self.swallowed.append(str(self.last.diagnosis_data["swallowed"]))
                return self.last

            self.kernel.execute = watched
        return self.kernel

    async def cancel_request(self) -> None:
        pass

    async def attach(self) -> None:
        return None


class Bench:
    """Runs cases in one kernel, each in a project of its own."""

    def __init__(self, python: str, preflight: bool = True) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="faults"))
        self.loop = asyncio.new_event_loop()
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.lower().endswith("_proxy")
        }
        self.launch_config = LaunchConfig(
            python,
            str(self.root),
            {**environ, "MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        )
        self.provider = ReusedKernel(
            LocalLauncher(
                str(self.root / "kernel.json"), str(self.root), diagnosis.PARTS
            )
        )
        self.preflight = preflight

    def run(self, case: Case) -> CaseResult:
        """Write the files of a case, run its preparing cells and its failing cell."""
        return self.loop.run_until_complete(self._run(case))

    async def _run(self, case: Case) -> CaseResult:
        project = self.root / uuid.uuid4().hex[:8]
        folder = project / "notebooks"
        folder.mkdir(parents=True)
        for name, content in case.files.items():
            path = project / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                bytes.fromhex(content["hex"])
                if isinstance(content, dict)
                else content.encode()
            )
        limits = Limits(
            cell_timeout_seconds=case.timeout or 30,
            max_memory_percent=99,
            preflight=self.preflight,
        )
        notebook = folder / "fault.ipynb"
        launch_config = replace(self.launch_config, cwd=str(folder))
        session = Session(
            "notebooks/fault.ipynb",
            file := IpynbFile(str(notebook)),
            LateOutputs(file),
            JournalFile(str(project / ".stepper" / "journal.jsonl")),
            self.provider,
            lambda: limits,
            lambda environ, kernel: launch_config,
            Diagnoser(
                str(notebook),
                ProjectEnvironment(str(project)),
                SavedImages(str(project / ".stepper" / "figures")),
                ipython_syntax.get_transformer(),
            ),
            recover_run,
        )
        cells: list[dict[str, Any]] = []
        kernel = await self.provider.start(launch_config)
        self.provider.swallowed.clear()
        await kernel.execute(
            FRESH.format(folder=str(folder), root=str(self.root)),
            30,
            Limits(),
            scratch=True,
        )
        stopped, warnings = [], []
        for source in case.unrun:
            self.add(notebook, cells, source)
        for number, source in enumerate(case.prepare):
            report = await run_edited_cell(
                session, self.add(notebook, cells, source), Caller()
            )
            warnings += (
                [
                    line
                    for line in report.text.splitlines()
                    if line.startswith("Warning: ")
                ]
                if report
                else []
            )
            if report is None or not report.ok:
                stopped.append(
                    f"preparing cell {number + 1}: {report.text if report else 'did not run'}"
                )
        for number, step in enumerate(case.story, 1):
            problem = await self.step(session, notebook, cells, step)
            stopped += [f"step {number}: {problem}"] if problem else []
        if case.ename == "MemoryLimit":  # exceeded if the kernel allocates 120 MB
            memory = get_memory_usage(kernel.describe().pid)
            limits = replace(
                limits,
                max_memory_percent=min(
                    99.0, 100 * (memory.used + 120e6) / memory.total
                ),
            )
        before = len(session.state.runs)
        if case.replaces:
            edit = self.replace(notebook, cells, case.replaces, case.cell)
        else:
            edit = self.add(notebook, cells, case.cell, case.at)
        report = await run_edited_cell(session, edit, Caller())
        blocked = len(session.state.runs) == before
        fault = self.fault(session, "held" if blocked else "run") or {}
        return CaseResult(
            case,
            report or Report(""),
            fault.get("ename", ""),
            fault.get("evalue", ""),
            tuple(stopped),
            tuple(warnings),
            self.provider.last.diagnosis_data.get("seconds", 0.0),
            blocked,
            tuple(self.provider.swallowed),
        )

    @staticmethod
    def fault(session: Session, event: str) -> dict[str, Any] | None:
        """Return the fault of the last event of this kind in the journal."""
        events = session.journal.load_events()
        return next(
            (line["fault"] for line in reversed(events) if line["event"] == event), None
        )

    async def step(
        self,
        session: Session,
        notebook: Path,
        cells: list[dict[str, Any]],
        step: Mapping[str, Any],
    ) -> str:
        """Do one step of a case's story; return what is unexpected, or ''.

        `run`, `fail`: add a cell and run it; it must succeed or fail. `unrun`: add a
        cell by an external change, so it does not run. `text`: add a Markdown cell.
        `redo`: replace the source of cell N by `to` and run it (`fails`: it must fail).
        `edit`: replace it by an external change. `delete`: delete cell N. `eval`:
        execute code outside the cells. `restart`: restart the kernel.
        """
        if "text" in step:
            self.add(notebook, cells, step["text"])
            cells[-1] = {
                "cell_type": "markdown",
                "id": cells[-1]["id"],
                "source": step["text"],
                "metadata": {},
            }
            self.write(notebook, cells)
            return ""
        if "unrun" in step:
            self.add(notebook, cells, step["unrun"])
            return ""
        if "edit" in step:
            self.replace(notebook, cells, step["edit"], step["to"])
            return ""
        if "delete" in step:
            del cells[step["delete"] - 1]
            self.write(notebook, cells)
            return ""
        if "eval" in step:
            await notebook_commands.evaluate(session, step["eval"], Caller())
            return ""
        if "restart" in step:
            await notebook_commands.restart(session, Caller())
            return ""
        if "redo" in step:
            edit = self.replace(notebook, cells, step["redo"], step["to"])
            fails = bool(step.get("fails"))
        else:
            fails = "fail" in step
            edit = self.add(notebook, cells, step["fail" if fails else "run"])
        before = len(session.state.runs)
        report = await run_edited_cell(session, edit, Caller())
        if report is not None and report.ok is not fails:
            has_run = len(session.state.runs) > before
            return "" if has_run else f"did not run: {report.text}"
        return report.text if report else "did not run"

    @staticmethod
    def write(notebook: Path, cells: list[dict[str, Any]]) -> None:
        """Write the notebook."""
        raw = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        notebook.write_text(json.dumps(raw))

    @staticmethod
    def add(
        notebook: Path, cells: list[dict[str, Any]], source: str, position: int = 0
    ) -> CellEdit:
        """Add a code cell to the notebook and write it; return the edit."""
        source = source.rstrip("\n")
        cell = {
            "cell_type": "code",
            "id": uuid.uuid4().hex[:8],
            "source": source,
            "metadata": {},
            "execution_count": None,
            "outputs": [],
        }
        cells.insert(position - 1 if position else len(cells), cell)
        return Bench.edit(notebook, cells, cell, "insert")

    @staticmethod
    def replace(
        notebook: Path, cells: list[dict[str, Any]], number: int, source: str
    ) -> CellEdit:
        """Replace the source of a cell and write the notebook; return the edit."""
        cell = cells[number - 1]
        cell["source"] = source.rstrip("\n")
        return Bench.edit(notebook, cells, cell, "replace")

    @staticmethod
    def edit(
        notebook: Path, cells: list[dict[str, Any]], cell: dict[str, Any], mode: str
    ) -> CellEdit:
        """Write the notebook; return the edit of a cell."""
        Bench.write(notebook, cells)
        edit_fields = (str(notebook), cell["id"], None, "code", mode, cell["source"])
        return CellEdit(*edit_fields, None, "s", "default")

    def close(self) -> None:
        """Shut down the kernel."""
        if self.provider.kernel is not None:
            self.loop.run_until_complete(self.provider.kernel.shutdown())
        self.loop.close()
        shutil.rmtree(self.root, ignore_errors=True)


def run_corpus(
    python: str, names: tuple[str, ...] = (), folder: str = ".", preflight: bool = True
) -> Iterator[CaseResult]:
    """Run the corpus, with one kernel per class."""
    for cases in load(names, folder).values():
        bench = Bench(python, preflight)
        try:
            for case in cases:
                yield bench.run(case)
        finally:
            bench.close()


def python() -> str:
    """Return the interpreter of the corpus's environment."""
    from tests.test_kernel_helper import environment

    return environment(sys.executable, *PACKAGES)
