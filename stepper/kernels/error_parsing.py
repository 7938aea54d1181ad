"""Errors of the kernel as `Fault` values, limited in size and without terminal colors.

The helper's message is preferred to the kernel's own error message, because it has the
lines of the cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from stepper.common import json_decode
from stepper.policy.model import Fault, Frame

MAX_TEXT = 20_000  # characters of a traceback or a message
# Before escapes are removed, which may be most of a text.
MAX_RAW_TEXT = 20 * MAX_TEXT
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # terminal colors and the like
STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-")


class _Call(NamedTuple):
    """A call in a stack sample that is in the code of a cell."""

    file: str
    line: int
    function: str


def parse_stack_sample(stack: str, count: int | None) -> Fault | None:
    """Return the running cell's line in a stack sample as a fault, or None without one.

    The outermost frame of cell code is the running cell's. Other cells are known only
    by their file names. `count` is the execution count.
    """
    for thread in stack.split("\n\n"):
        calls = _list_cell_calls(thread)
        if not calls:
            continue
        outermost = calls[-1]
        if outermost.function != "<module>":
            continue
        # The kernel of a cell that blocks all threads has not sent its number.
        cell = count or 0
        frames = [Frame(cell, outermost.line, outermost.function)]
        own_calls = [call for call in calls if call.file == outermost.file]
        innermost = own_calls[0]
        frames.append(Frame(cell, innermost.line, innermost.function))
        return Fault("", "", (), outermost.line, tuple(frames))
    return None


def _list_cell_calls(thread: str) -> list[_Call]:
    """Return the calls of a thread that are in cells, innermost first."""
    calls = []
    for file, line, function in STACK_LINE.findall(thread):
        if CELL_FILE.search(file):
            calls.append(_Call(file, int(line), function))
    return calls


def cut_middle(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text without the middle if it is too long for the journal."""
    if len(text) <= limit:
        return text
    half = limit // 2
    head = text[:half]
    tail = text[-half:]
    return f"{head}\n…\n{tail}"


def clean_error(error: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an error message, limited in size and without escapes."""
    lines = error.get("traceback") or []
    traceback = "\n".join(map(str, lines))
    return {
        "ename": _clean_text(error.get("ename")),
        "evalue": _clean_text(error.get("evalue")),
        "traceback": _clean_text(traceback),
    }


def _clean_text(value: Any) -> str:
    text = cut_middle(str(value), MAX_RAW_TEXT)
    plain = ESCAPES.sub("", text)
    return cut_middle(plain)


def build_fault(
    facts: dict[str, Any], error: dict[str, Any] | None, count: int | None
) -> Fault | None:
    """Return the fault in the helper's message, else in the kernel's own, or None.

    `error` is the result of `clean_error`, `count` the execution count.
    """
    traceback = error["traceback"] if error else ""
    faults = list(json_decode.decode_valid_items(Fault, [facts.get("fault")]))
    if faults:
        fault = faults[0]
        line = _find_line(fault, count)
        return replace(fault, line=line, traceback=traceback)
    if error is None:
        return None
    name = error["ename"] or "Error"  # bash sends only an exit status
    return Fault(name, error["evalue"], (), traceback=traceback)


def _find_line(fault: Fault, count: int | None) -> int | None:
    """Return the line of the running cell at which a fault was raised."""
    own_cells = {count}
    # A scratch execution has a negative number of its own.
    scratch = min((frame.cell for frame in fault.frames), default=0)
    if scratch < 0:
        own_cells.add(scratch)
    for frame in fault.frames:
        if frame.cell in own_cells:
            return frame.line
    if "SyntaxError" in fault.mro:
        return fault.attributes.get("lineno")
    return None
