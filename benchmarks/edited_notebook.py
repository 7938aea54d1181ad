"""A notebook that a benchmark edits as Claude Code does."""

from __future__ import annotations

import base64
import json
import random
import secrets
import subprocess
import threading
import time
import uuid
from typing import Any

from common import (
    BrokenStepError,
    ProcessResult,
    Project,
    measure_elapsed_ms,
    measure_peak,
    spawn,
)

from stepper.hook import daemon_client

SESSION = "00000000-0000-4000-8000-000000000000"
MESSAGE = "00000000-0000-4000-8000-000000000001"
# A large namespace: 160 names, a quarter of them frames if pandas is installed.
NAMES = """
try:
    import pandas as pd
except ImportError:
    pass
for number in range(40):
    globals()[f"number{number}"] = number
    globals()[f"list{number}"] = list(range(50))
    globals()[f"dict{number}"] = {str(key): key / 7 for key in range(50)}
    columns = {"a": range(100), "b": list("xy") * 50, "c": [n / 7 for n in range(100)]}
    globals()[f"frame{number}"] = pd.DataFrame(columns) if "pd" in globals() else columns
"""


def create_output(size: int, number: int, rng: random.Random) -> dict[str, Any]:
    """Return an output of `size` bytes: lines for even numbers, else a picture."""
    if number % 2:
        picture = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
        data = {"image/png": picture, "text/plain": ["<Figure>"]}
        return {"data": data, "metadata": {}, "output_type": "display_data"}
    lines: list[str] = []
    remaining = size
    while remaining > 0:
        line = f'{rng.random():.12f}  "column {rng.randrange(100)}"  {rng.random():.12f}\té\n'
        lines.append(line)
        remaining -= len(line) + 8  # indent, quotes, comma
    return {"name": "stdout", "output_type": "stream", "text": lines}


class EditedNotebook:
    """A notebook in which one cell is replaced repeatedly.

    Each source prints another word.
    """

    def __init__(
        self, project: Project, name: str, cells: int, output_bytes: int = 0
    ) -> None:
        self.project, self.path = project, project.root / "notebooks" / f"{name}.ipynb"
        rng = random.Random(name)
        raw_cells = []
        for number in range(cells):
            outputs = (
                [create_output(output_bytes // cells, number, rng)]
                if output_bytes
                else []
            )
            source = [f"value_{number} = {number}\n", f"print(value_{number})"]
            raw_cells.append(
                {
                    "cell_type": "code",
                    "execution_count": number + 1,
                    "id": f"cell{number:04}",
                    "metadata": {},
                }
                | {"outputs": outputs, "source": source}
            )
        self.cell_id = f"cell{cells // 2:04}"
        metadata = {
            "kernelspec": {
                "display_name": "Python 3",
                "language": "python",
                "name": "python3",
            }
        }
        self.save(
            {
                "cells": raw_cells,
                "metadata": metadata,
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )

    def save(self, notebook: dict[str, Any]) -> str:
        """Write the notebook in place with one space of indentation, as Claude Code.

        Return the text.
        """
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        self.path.write_text(text)
        return text

    def cell(self, notebook: dict[str, Any]) -> dict[str, Any]:
        """Return the raw cell that is edited."""
        raw_cell: dict[str, Any] = next(
            cell for cell in notebook["cells"] if cell["id"] == self.cell_id
        )
        return raw_cell

    def format_payload(self, event: str, **extra: Any) -> bytes:
        """Return a hook's payload with the keys and order of Claude Code 2.1.330."""
        common_fields = {
            "session_id": SESSION,
            "transcript_path": str(self.project.root / "transcript.jsonl"),
            "cwd": str(self.project.root),
            "prompt_id": MESSAGE,
            "permission_mode": "bypassPermissions",
            "effort": {"level": "high"},
            "hook_event_name": event,
        }
        return (
            json.dumps(
                {**common_fields, **extra}, ensure_ascii=False, separators=(",", ":")
            )
            + "\n"
        ).encode()

    def format_call(self, source: str) -> dict[str, Any]:
        """Return the tool's name and input of an edit."""
        tool_input = {
            "notebook_path": str(self.path),
            "cell_id": self.cell_id,
            "new_source": source,
            "edit_mode": "replace",
        }
        return {"tool_name": "NotebookEdit", "tool_input": tool_input}

    def edit(self, first: str = "") -> tuple[bytes, str]:
        """Replace the cell on disk; return the payload and the word that it prints.

        `first` is code that the cell runs before it prints.
        """
        marker = secrets.token_hex(8)
        source = f"{first}print('{marker}')"
        before = self.path.read_text()
        notebook = json.loads(before)
        cell = self.cell(notebook)
        old_source = "".join(cell["source"])
        cell |= {"source": source, "execution_count": None, "outputs": []}
        after = self.save(notebook)
        tool_response = {
            "new_source": source,
            "old_source": old_source,
            "cell_type": "code",
            "language": "python",
            "edit_mode": "replace",
            "cell_id": self.cell_id,
            "error": "",
            "notebook_path": str(self.path),
            "original_file": before,
            "updated_file": after,
        }
        extra = {
            "tool_response": tool_response,
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
            "duration_ms": 3,
        }
        return self.format_payload(
            "PostToolUse", **self.format_call(source), **extra
        ), marker

    def ask(self) -> float:
        """Run the PreToolUse hook of an edit; return its milliseconds."""
        fields = self.format_call(f"print('{secrets.token_hex(8)}')")
        payload = self.format_payload(
            "PreToolUse", **fields, tool_use_id=f"toolu_{uuid.uuid4().hex}"
        )
        result = spawn(self.project.build_hook_command("PreToolUse"), payload)
        if result.output:
            raise BrokenStepError(
                f"{self.path.name}: the edit was not accepted: {result.output.decode()}"
            )
        return result.ms

    def end_message(self) -> ProcessResult:
        """Run the PostToolBatch hook, as Claude Code does after each message."""
        call = {
            **self.format_call("1"),
            "tool_use_id": "toolu_1",
            "tool_response": f"Updated cell {self.cell_id} with 1",
        }
        return spawn(
            self.project.build_hook_command("PostToolBatch"),
            self.format_payload("PostToolBatch", tool_calls=[call]),
        )

    def step(self, command: list[str] | None = None) -> float:
        """Edit the cell, run the hook, check the result.

        Return the hook's milliseconds.
        """
        return self.message(command)[0]

    def message(
        self, command: list[str] | None = None, first: str = ""
    ) -> tuple[float, float]:
        """Do a step and end its message; return the milliseconds of both hooks."""
        payload, marker = self.edit(first)
        result = spawn(
            command or self.project.build_hook_command("PostToolUse"), payload
        )
        self.check(result.output, marker)
        return result.ms, self.end_message().ms

    def step_with_waker(self) -> float:
        """Do a step while the hook that may notify the agent later runs, too."""
        payload, marker = self.edit()
        waker = subprocess.Popen(
            self.project.build_hook_command("Wake"), stdin=subprocess.PIPE
        )
        assert waker.stdin
        feeder = threading.Thread(target=waker.communicate, args=(payload,))
        feeder.start()
        result = spawn(self.project.build_hook_command("PostToolUse"), payload)
        self.check(result.output, marker)
        self.end_message()
        feeder.join()
        if waker.returncode:
            raise BrokenStepError(
                f"the waiting hook exited with code {waker.returncode}, but nothing had to be reported"
            )
        return result.ms

    def answer(self) -> float:
        """Do a step by asking the daemon from this process; return the milliseconds."""
        payload, marker = self.edit()
        started_at = time.perf_counter()
        out = daemon_client.send_request(
            self.project.paths, b"hook PostToolUse", payload
        )
        duration_ms = measure_elapsed_ms(started_at)
        self.check(out or b"", marker)
        self.end_message()
        return duration_ms

    def check(self, out: bytes, marker: str) -> None:
        """Raise BrokenStepError unless report and notebook contain the word."""
        report = (
            json.loads(out)["hookSpecificOutput"]["additionalContext"]
            if out
            else "nothing"
        )
        if "ran ok" not in report or f"| {marker}" not in report:
            raise BrokenStepError(f"{self.path.name}: the report is: {report}")
        outputs = self.cell(json.loads(self.path.read_text()))["outputs"]
        if [(output["name"], "".join(output["text"])) for output in outputs] != [
            ("stdout", f"{marker}\n")
        ]:
            raise BrokenStepError(f"{self.path.name}: the notebook contains: {outputs}")

    def peak_mb(self, command: list[str] | None = None) -> float:
        """Return the peak memory of a step's hook process in MiB."""
        payload, marker = self.edit()
        mib, out = measure_peak(
            self.project,
            command or self.project.build_hook_command("PostToolUse"),
            payload,
        )
        self.check(out, marker)
        self.end_message()
        return mib
