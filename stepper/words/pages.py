"""The text of a cell's outputs in pages, for `stepper output`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepper.ground.text import clean, last_state
from stepper.words.report import texts_of, whole

PAGE = 8000  # characters


def paged(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Return all text of a cell's outputs behind `| `, in pages of at most `PAGE` characters, cut at lines."""
    told: list[str] = []
    for output in outputs:
        if output.get("output_type") == "error":
            said = output.get("traceback") or f"{output.get('ename')}: {output.get('evalue')}"
            told.append(whole(said, "\n") + "\n")
        told += texts_of(output)
    text = "".join(told).replace("\r\n", "\n")
    lines = [
        f"| {line[at : at + PAGE // 2]}"
        for line in clean("\n".join(map(last_state, text.split("\n")))).rstrip("\n").split("\n")
        for at in range(0, max(1, len(line)), PAGE // 2)
    ]
    found: list[list[str]] = [[]]
    room = PAGE
    for line in lines:
        if len(line) + 1 > room and found[-1]:
            found.append([])
            room = PAGE
        found[-1].append(line)
        room -= len(line) + 1
    return ["\n".join(page) for page in found] if lines != ["| "] else ["(no text output)"]
