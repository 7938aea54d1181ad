"""Doubts about a run that ended well, in a few lines, the weightiest first.

The sentences come from the kernel's helper, and so from the user's process: each is one line, and bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.json_decode import decode_valid_items
from stepper.common.text import one_line

# doubts that the helper counted and did not keep
MORE = re.compile(r"(\d{1,9})( or more)?")
SHOWN, LINE = 3, 160
# the weightiest first
KINDS = ("swallowed", "multiplied", "emptied", "empty", "blank", "warning")


@dataclass(frozen=True)
class Doubt:
    """What the helper tells of a doubt."""

    kind: str
    text: str


def lines(facts: list[Any], first: Sequence[str] = ()) -> list[str]:
    """Return at most three doubts, one line each, and how many there are more; `first` go before them."""
    found = decode_valid_items(Doubt, facts)
    doubts = [doubt for doubt in found if doubt.kind in KINDS]
    doubts.sort(key=lambda doubt: KINDS.index(doubt.kind))
    texts = [*first, *(one_line(doubt.text, LINE) for doubt in doubts)]
    left = max(0, len(texts) - SHOWN)
    open_end = ""
    for counted in (
        MORE.fullmatch(doubt.text) for doubt in found if doubt.kind == "more"
    ):
        if counted:
            left += int(counted[1])
            open_end = " or" if counted[2] else ""
    return texts[:SHOWN] + (
        [f"… and {left:,}{open_end} more warning{'s' if left > 1 else ''}"]
        if left
        else []
    )
