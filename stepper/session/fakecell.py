"""A cell that runs in the fake kernel, or did: what it shows, how it ended."""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.model import Fault, Frame, Outcome

ATTRIBUTES = ("errno", "code", "status", "name", "filename", "lineno")


class Died(BaseException):
    """The cell ended its kernel."""


@dataclass
class Running:
    """A cell that runs, or did. Nothing of it belongs to the event loop: a daemon may die and another one ask."""

    request: str
    number: int
    code: str
    outputs: list[dict[str, Any]] = field(default_factory=list)
    displays: dict[str, list[int]] = field(default_factory=dict)
    unsaid: list[str] = field(default_factory=list)  # what it says once it is over
    outcome: Outcome = Outcome.OK
    fault: Fault | None = None
    died: str = ""
    over: threading.Event = field(default_factory=threading.Event)
    thread: int | None = None

    def write(self, name: str, text: str) -> None:
        """Add to a stream."""
        if self.outputs and self.outputs[-1].get("name") == name:
            self.outputs[-1]["text"] += text
        else:
            self.outputs.append({"output_type": "stream", "name": name, "text": text})

    def show(self, content: dict[str, Any], mark: str) -> None:
        """Add a display."""
        if mark:
            self.displays.setdefault(mark, []).append(len(self.outputs))
        self.outputs.append({"output_type": "display_data", **content})

    def sample(self) -> None:
        """Note where it is, for a cell that is interrupted there."""
        frames = _own(traceback.extract_stack(sys._current_frames().get(self.thread or 0)))
        self.fault = Fault("", "", (), frames[0].line, frames) if frames else None

    def fails(self, error: BaseException) -> None:
        """Take what the cell raised."""
        frames = _own(traceback.extract_tb(error.__traceback__))
        line = error.lineno if isinstance(error, SyntaxError) else frames[0].line if frames else None
        classes = tuple(
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
            for kind in type(error).__mro__
        )
        attributes = {name: value for name in ATTRIBUTES if isinstance(value := getattr(error, name, None), int | str)}
        told = "".join(traceback.format_exception(error))
        self.outcome = Outcome.ERROR
        self.fault = Fault(type(error).__name__, str(error), classes, line, frames, attributes, told)
        self.outputs.append({"output_type": "error", "ename": type(error).__name__, "evalue": str(error),
                             "traceback": told.splitlines()})  # fmt: skip


def _own(stack: traceback.StackSummary) -> tuple[Frame, ...]:
    """Return the entries that are cells' own."""
    own = [entry for entry in stack if entry.filename.startswith("<cell ")]
    return tuple(Frame(int(entry.filename[6:-1]), entry.lineno or 0, entry.name) for entry in own)
