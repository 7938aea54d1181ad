"""A notebook in which a benchmark edits cells as Claude Code does, with the payloads that its hooks get."""

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

from common import BrokenStepError, Project, RunSummary, peak, since, spawn

from stepper.hook import daemon_client

SESSION = "00000000-0000-4000-8000-000000000000"
MESSAGE = "00000000-0000-4000-8000-000000000001"
# What a notebook may have bound: 160 names, a quarter of them frames where pandas is
# there.
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


def some_output(size: int, number: int, rng: random.Random) -> dict[str, Any]:
    """Return an output of `size` bytes: printed lines or a picture, by turns."""
    if number % 2:
        picture = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
        shown = {"image/png": picture, "text/plain": ["<Figure>"]}
        return {"data": shown, "metadata": {}, "output_type": "display_data"}
    lines, left = [], size
    while left > 0:
        line = f'{rng.random():.12f}  "column {rng.randrange(100)}"  {rng.random():.12f}\té\n'
        lines.append(line)
        left -= len(line) + 8  # indent, quotes, comma
    return {"name": "stdout", "output_type": "stream", "text": lines}


class Subject:
    """A notebook in which one cell is replaced again and again, each time by a source that prints another word."""

    def __init__(
        self, project: Project, name: str, cells: int, output_bytes: int = 0
    ) -> None:
        self.project, self.path = project, project.root / "notebooks" / f"{name}.ipynb"
        rng = random.Random(name)
        made = []
        for number in range(cells):
            outputs = (
                [some_output(output_bytes // cells, number, rng)]
                if output_bytes
                else []
            )
            source = [f"value_{number} = {number}\n", f"print(value_{number})"]
            made.append(
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
            {"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
        )

    def save(self, notebook: dict[str, Any]) -> str:
        """Write the notebook as Claude Code does: in place, one space of indent; return the text."""
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        self.path.write_text(text)
        return text

    def cell(self, notebook: dict[str, Any]) -> dict[str, Any]:
        """Return the raw cell that is edited."""
        found: dict[str, Any] = next(
            cell for cell in notebook["cells"] if cell["id"] == self.cell_id
        )
        return found

    def told(self, event: str, **more: Any) -> bytes:
        """Return what Claude Code 2.1.330 hands to a hook: its keys, in its order, one line of UTF-8."""
        about = {
            "session_id": SESSION,
            "transcript_path": str(self.project.root / "transcript.jsonl"),
            "cwd": str(self.project.root),
            "prompt_id": MESSAGE,
            "permission_mode": "bypassPermissions",
            "effort": {"level": "high"},
            "hook_event_name": event,
        }
        return (
            json.dumps({**about, **more}, ensure_ascii=False, separators=(",", ":"))
            + "\n"
        ).encode()

    def call(self, source: str) -> dict[str, Any]:
        """Return the tool's name and input of an edit."""
        given = {
            "notebook_path": str(self.path),
            "cell_id": self.cell_id,
            "new_source": source,
            "edit_mode": "replace",
        }
        return {"tool_name": "NotebookEdit", "tool_input": given}

    def edit(self, first: str = "") -> tuple[bytes, str]:
        """Replace the cell on disk; return what Claude Code hands to the hook, and the word that the cell prints.

        `first` is what the cell does before it prints.
        """
        word = secrets.token_hex(8)
        source = f"{first}print('{word}')"
        before = self.path.read_text()
        notebook = json.loads(before)
        cell = self.cell(notebook)
        old, cell["source"], cell["execution_count"], cell["outputs"] = (
            cell["source"],
            source,
            None,
            [],
        )
        after = self.save(notebook)
        answered = {
            "new_source": source,
            "old_source": "".join(old),
            "cell_type": "code",
            "language": "python",
            "edit_mode": "replace",
            "cell_id": self.cell_id,
            "error": "",
            "notebook_path": str(self.path),
            "original_file": before,
            "updated_file": after,
        }
        more = {
            "tool_response": answered,
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
            "duration_ms": 3,
        }
        return self.told("PostToolUse", **self.call(source), **more), word

    def ask(self) -> float:
        """Tell of an edit to come, as Claude Code does before each; return the hook's milliseconds."""
        asked = self.call(f"print('{secrets.token_hex(8)}')")
        data = self.told("PreToolUse", **asked, tool_use_id=f"toolu_{uuid.uuid4().hex}")
        ended = spawn(self.project.hook("PreToolUse"), data)
        if ended.out:
            raise BrokenStepError(
                f"{self.path.name}: the edit is not let through: {ended.out.decode()}"
            )
        return ended.ms

    def end_message(self) -> RunSummary:
        """Tell that all calls of the message are through, as Claude Code does after each message."""
        call = {
            **self.call("1"),
            "tool_use_id": "toolu_1",
            "tool_response": f"Updated cell {self.cell_id} with 1",
        }
        return spawn(
            self.project.hook("PostToolBatch"),
            self.told("PostToolBatch", tool_calls=[call]),
        )

    def step(self, command: list[str] | None = None) -> float:
        """Edit, run the hook, check that the cell ran, end the message; return the hook's milliseconds."""
        return self.message(command)[0]

    def message(
        self, command: list[str] | None = None, first: str = ""
    ) -> tuple[float, float]:
        """Edit as in `step` and end the message; return the milliseconds of both hooks."""
        data, word = self.edit(first)
        ended = spawn(command or self.project.hook("PostToolUse"), data)
        self.check(ended.out, word)
        return ended.ms, self.end_message().ms

    def beside(self) -> float:
        """Step as the client has it: the hook that may wake the agent later is begun at the same time."""
        data, word = self.edit()
        waker = subprocess.Popen(self.project.hook("Wake"), stdin=subprocess.PIPE)
        assert waker.stdin
        feeding = threading.Thread(target=waker.communicate, args=(data,))
        feeding.start()
        ended = spawn(self.project.hook("PostToolUse"), data)
        self.check(ended.out, word)
        self.end_message()
        feeding.join()
        if waker.returncode:
            raise BrokenStepError(
                f"the hook that wakes ended with {waker.returncode}: nothing was to be told"
            )
        return ended.ms

    def answer(self) -> float:
        """Edit as in `step`, ask the daemon from this process; return the milliseconds until it answered."""
        data, word = self.edit()
        began = time.perf_counter()
        out = daemon_client.send_request(self.project.paths, b"hook PostToolUse", data)
        took = since(began)
        self.check(out or b"", word)
        self.end_message()
        return took

    def check(self, out: bytes, word: str) -> None:
        """Raise BrokenStepError unless report and notebook both hold what the cell printed."""
        report = (
            json.loads(out)["hookSpecificOutput"]["additionalContext"]
            if out
            else "nothing"
        )
        if "ran ok" not in report or f"| {word}" not in report:
            raise BrokenStepError(f"{self.path.name}: the report is: {report}")
        outputs = self.cell(json.loads(self.path.read_text()))["outputs"]
        if [(output["name"], "".join(output["text"])) for output in outputs] != [
            ("stdout", f"{word}\n")
        ]:
            raise BrokenStepError(f"{self.path.name}: the notebook holds: {outputs}")

    def peak_mb(self, command: list[str] | None = None) -> float:
        """Return the peak of the resident memory of a step's hook process."""
        data, word = self.edit()
        mib, out = peak(self.project, command or self.project.hook("PostToolUse"), data)
        self.check(out, word)
        self.end_message()
        return mib
