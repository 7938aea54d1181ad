"""Conversion of kernel errors to `Fault` values, without terminal colors.

If the helper in the kernel has described the error, its message is used, because it
contains line numbers of cells. Otherwise, the kernel's own error message is used.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

from stepper.common import dataclass_decode
from stepper.policy.model import Fault, Frame

MAX_TEXT = 20_000  # characters of a traceback or a message
# Before escapes are removed, which may be most of a text.
MAX_RAW_TEXT = 20 * MAX_TEXT
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # terminal colors and the like
STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-")


class _Call(NamedTuple):
    """A call in a stack sample whose code is in a cell."""

    file: str
    line: int
    function: str


def parse_stack_sample(stack: str, count: int | None) -> Fault | None:
    """Return a fault with the line that a running cell was executing.

    `stack` is in faulthandler's format, and `count` is the execution count of the cell.
    The frames of the fault are the cell's outermost and innermost frames. Return None
    if no thread is executing a cell.
    """
    for thread in stack.split("\n\n"):
        calls = _list_cell_calls(thread)
        if not calls:
            continue
        outermost = calls[-1]
        if outermost.function != "<module>":
            continue
        # The count is unknown if the cell keeps ipykernel's threads from sending it.
        cell = count or 0
        own_calls = [call for call in calls if call.file == outermost.file]
        innermost = own_calls[0]
        frames = (
            Frame(cell, outermost.line, outermost.function),
            Frame(cell, innermost.line, innermost.function),
        )
        return Fault("", "", line=outermost.line, frames=frames)
    return None


def _list_cell_calls(thread: str) -> list[_Call]:
    """Return the calls of a thread whose code is in cells, innermost first."""
    calls = []
    for file, line, function in STACK_LINE.findall(thread):
        if CELL_FILE.search(file):
            calls.append(_Call(file, int(line), function))
    return calls


def cut_middle(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text, without its middle if the text is longer than `limit`."""
    if len(text) <= limit:
        return text
    half = limit // 2
    head = text[:half]
    tail = text[-half:]
    return f"{head}\n…\n{tail}"


def clean_error(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error's name, message and traceback, shortened and without escapes.

    `error` is the content of a kernel's error message.
    """
    raw_error = convert_error(error)
    traceback = "\n".join(raw_error["traceback"])
    return {
        "ename": _clean_text(raw_error["ename"]),
        "evalue": _clean_text(raw_error["evalue"]),
        "traceback": _clean_text(traceback),
    }


def convert_error(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error's name, message and traceback with the types of nbformat.

    `error` is the content of a kernel's error message, which may lack fields. The
    traceback is a list of strings.
    """
    traceback = error.get("traceback") or []
    if isinstance(traceback, str):
        traceback = [traceback]
    return {
        "ename": _convert_to_text(error.get("ename")),
        "evalue": _convert_to_text(error.get("evalue")),
        "traceback": [str(line) for line in traceback],
    }


def _convert_to_text(value: Any) -> str:
    """Return a value as text, and an empty string for None."""
    if value is None:
        return ""
    return str(value)


def _clean_text(value: str) -> str:
    """Return a text without escapes, shortened to MAX_TEXT characters."""
    text = cut_middle(value, MAX_RAW_TEXT)
    plain_text = ESCAPES.sub("", text)
    return cut_middle(plain_text)


def build_fault(
    facts: dict[str, Any], error: dict[str, Any] | None, count: int | None
) -> Fault | None:
    """Return the fault described by the helper, or else by the kernel's error message.

    `facts` is the content of the helper's message, `error` a result of `clean_error`,
    and `count` the execution count. Return None if there was no error.
    """
    traceback = error["traceback"] if error else ""
    faults = list(dataclass_decode.decode_valid_items(Fault, [facts.get("fault")]))
    if faults:
        fault = faults[0]
        line = _find_line(fault, count)
        return replace(fault, line=line, traceback=traceback)
    if error is None:
        return None
    name = error["ename"] or "Error"  # bash sends only an exit status
    return Fault(name, error["evalue"], (), traceback=traceback)


def _find_line(fault: Fault, count: int | None) -> int | None:
    """Return the line of the running cell that raised an error, or None if unknown."""
    own_numbers = {count}
    # Scratch executions are numbered -1, -2, and so on: a running one has the lowest.
    lowest_number = min((frame.cell for frame in fault.frames), default=0)
    if lowest_number < 0:
        own_numbers.add(lowest_number)
    for frame in fault.frames:
        if frame.cell in own_numbers:
            return frame.line
    if "SyntaxError" in fault.mro:
        line = fault.attributes.get("lineno")
        # The cell may have set the attribute to any value.
        if isinstance(line, int):
            return line
    return None
