"""What a kernel says of an error, as a fault: bounded, without terminal colours."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from stepper.common import json_decode
from stepper.policy.model import Fault, Frame

TEXT_CHARACTERS = 20_000  # of a traceback or a message
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # terminal colours and the like
CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
OF_CELL = re.compile(r"[/\\]ipykernel_\d+[/\\]\d+\.py$|^<ipython-input-")


def sampled(stack: str, count: int | None) -> Fault | None:
    """Return the line of the running cell that a sample of stacks shows, as a fault; None where it shows none.

    The outermost frame of a cell's code is the running cell's; those of other cells are only known by file name.
    """
    for thread in stack.split("\n\n"):
        calls = [
            (file, int(line), name)
            for file, line, name in CALL.findall(thread)
            if OF_CELL.search(file)
        ]
        if calls and calls[-1][2] == "<module>":
            own = [call for call in reversed(calls) if call[0] == calls[-1][0]]
            # A cell that never lets the kernel's other threads run has not even told
            # its number.
            frames = tuple(
                Frame(count or 0, line, name) for _, line, name in (own[0], *own[-1:])
            )
            return Fault("", "", (), own[0][1], frames)
    return None


def cut(text: str, limit: int = TEXT_CHARACTERS) -> str:
    """Return a text with its middle left out where it is very long: the journal keeps it for each run."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}\n…\n{text[-half:]}"


def bounded(error: dict[str, Any]) -> dict[str, Any]:
    """Return an error's content without escapes, each part cut: escapes may be most of a text."""
    said = {**error, "traceback": "\n".join(map(str, error.get("traceback") or []))}
    parts = {
        name: cut(str(said.get(name)), 20 * TEXT_CHARACTERS)
        for name in ("ename", "evalue", "traceback")
    }
    return {name: cut(ESCAPES.sub("", text)) for name, text in parts.items()}


def fault_of(
    told: dict[str, Any], error: dict[str, Any] | None, count: int | None
) -> Fault | None:
    """Return the fault: from the helper's message, else from the kernel's own (`bounded`), else None."""
    found = [*json_decode.decode_valid_items(Fault, [told.get("fault")])]
    if not found:
        if error is None:
            return None
        name = error["ename"] or "Error"  # bash's has none, only its exit status
        return Fault(name, error["evalue"], (), traceback=error["traceback"])
    fault = found[0]
    # `stepper eval` has a number below 0 of its own
    numbers = (count, min((frame.cell for frame in fault.frames), default=0))
    own = [
        frame.line
        for frame in fault.frames
        if frame.cell in numbers and (frame.cell == count or frame.cell < 0)
    ]
    line = (
        own[0]
        if own
        else fault.attributes.get("lineno")
        if "SyntaxError" in fault.mro
        else None
    )
    return replace(fault, line=line, traceback=error["traceback"] if error else "")
