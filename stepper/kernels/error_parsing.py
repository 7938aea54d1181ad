"""Errors of the kernel as `Fault` values, limited in size and without terminal colors.

The helper's message is preferred to the kernel's own error message, because it has the
lines of the cells.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from stepper.common import json_decode
from stepper.policy.model import Fault, Frame

MAX_TEXT = 20_000  # characters of a traceback or a message
# Before escapes are removed, which may be most of a text.
MAX_RAW_TEXT = 20 * MAX_TEXT
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # terminal colors and the like
STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
CELL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-")


def parse_stack_sample(stack: str, count: int | None) -> Fault | None:
    """Return the running cell's line in a stack sample as a fault, None without one.

    The outermost frame of cell code is the running cell's. Other cells are known only
    by their file names. `count` is the execution count.
    """
    for thread in stack.split("\n\n"):
        calls = []
        for file, line, name in STACK_LINE.findall(thread):
            if CELL_FILE.search(file):
                calls.append((file, int(line), name))
        if not calls:
            continue
        cell_file, _, outermost_name = calls[-1]
        if outermost_name == "<module>":
            own = [call for call in reversed(calls) if call[0] == cell_file]
            # The kernel of a cell that blocks all threads has not sent its number.
            cell = count or 0
            frames = [Frame(cell, line, name) for _, line, name in (own[0], own[-1])]
            return Fault("", "", (), own[0][1], tuple(frames))
    return None


def cut_middle(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text without the middle if it is too long for the journal."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n…\n{text[-half:]}"


def clean_error(error: dict[str, Any]) -> dict[str, Any]:
    """Return the content of an error message, limited in size and without escapes."""
    lines = map(str, error.get("traceback") or [])
    parts = {**error, "traceback": "\n".join(lines)}
    cleaned = {}
    for name in ("ename", "evalue", "traceback"):
        text = cut_middle(str(parts.get(name)), MAX_RAW_TEXT)
        cleaned[name] = cut_middle(ESCAPES.sub("", text))
    return cleaned


def build_fault(
    facts: dict[str, Any], error: dict[str, Any] | None, count: int | None
) -> Fault | None:
    """Return the fault in the helper's message, else in the kernel's own, else None.

    `error` is the result of `clean_error`, `count` the execution count.
    """
    faults = [*json_decode.decode_valid_items(Fault, [facts.get("fault")])]
    if not faults:
        if error is None:
            return None
        name = error["ename"] or "Error"  # bash sends only an exit status
        return Fault(name, error["evalue"], (), traceback=error["traceback"])
    fault = faults[0]
    line = _find_line(fault, count)
    return replace(fault, line=line, traceback=error["traceback"] if error else "")


def _find_line(fault: Fault, count: int | None) -> int | None:
    """Return the line of the running cell at which a fault was raised."""
    # A scratch execution has a negative number of its own.
    scratch = min((frame.cell for frame in fault.frames), default=0)
    for frame in fault.frames:
        if frame.cell == count or (frame.cell == scratch and frame.cell < 0):
            return frame.line
    if "SyntaxError" in fault.mro:
        return fault.attributes.get("lineno")
    return None
