"""Cells run and fail without the diagnosis; errors are reported like Python prints them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepper.kernels.backends.local.local_launcher import LocalLauncher
from stepper.kernels.outputs.late_outputs import LateOutputs
from stepper.messages.run_report import Report
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.model import CellEdit, Limits
from stepper.session.caller import Caller
from stepper.session.cells.agent_edits import run_edited_cell
from stepper.session.diagnosis_protocol import NoDiagnosis
from stepper.session.protocols import LaunchConfig
from stepper.session.run_recovery import recover_run
from stepper.session.session import Session
from tests.test_kernel_helper import environment


@pytest.mark.nightly
def test_cells_run_and_fail_without_diagnosis(tmp_path: Path) -> None:
    sources = ["x = 1\nprint('hello')", "x / 0", "del nowhere", "y = (", "print(x)"]
    cells = [
        {
            "cell_type": "code",
            "id": f"c{n}",
            "source": text,
            "metadata": {},
            "execution_count": None,
            "outputs": [],
        }
        for n, text in enumerate(sources)
    ]
    path = tmp_path / "n.ipynb"
    launch_config = LaunchConfig(
        environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4"),
        str(tmp_path),
        dict(os.environ),
    )
    kernels = LocalLauncher(str(tmp_path / "kernel.json"), str(tmp_path))
    session = Session(
        "n.ipynb",
        file := IpynbFile(str(path)),
        LateOutputs(file),
        JournalFile(str(tmp_path / "journal.jsonl")),
        kernels,
        Limits,
        lambda environ, kernel: launch_config,
        NoDiagnosis(),
        recover_run,
    )

    async def play() -> list[Report | None]:
        reports = []
        for number, cell in enumerate(cells):
            path.write_text(
                json.dumps(
                    {
                        "cells": cells[: number + 1],
                        "metadata": {},
                        "nbformat": 4,
                        "nbformat_minor": 5,
                    }
                )
            )
            edit = CellEdit(
                str(path),
                str(cell["id"]),
                None,
                "code",
                "insert",
                sources[number],
                None,
                "s",
                "default",
            )
            reports.append(await run_edited_cell(session, edit, Caller()))
            cells[number] = json.loads(path.read_text())["cells"][number]
        await session.kernel_manager.kernel.shutdown()
        return reports

    first, *failed, last = asyncio.run(play())
    assert first and first.ok and "| hello" in first.text
    for report, name in zip(
        failed, ("ZeroDivisionError", "NameError", "SyntaxError"), strict=True
    ):
        assert (
            report
            and not report.ok
            and name in report.text
            and "Suggestion" not in report.text
        )
    assert failed[0] and "| →   1  x / 0" in failed[0].text
    assert last and last.ok and "| 1" in last.text


def test_main_path_imports_no_diagnosis() -> None:
    code = "import sys, stepper.session.cells.agent_edits, stepper.kernels.backends.local.local_process; print([n for n in sys.modules if n.startswith(('stepper.diagnosis.diagnoser', 'stepper.diagnosis.in_kernel'))])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
