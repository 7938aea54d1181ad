"""Warnings on a successful run: at most three lines, the most important first.

The sentences come from the helper in the user's process, so each is cut to one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.json_decode import decode_valid_items
from stepper.common.text import one_line

# The number of warnings that the helper counted but did not keep.
MORE = re.compile(r"(\d{1,9})( or more)?")
MAX_WARNINGS = 3
MAX_LENGTH = 160
# From the most to the least important.
KINDS = ("swallowed", "multiplied", "emptied", "empty", "blank", "warning")


@dataclass(frozen=True)
class RunWarning:
    """A warning as the helper reports it."""

    kind: str
    text: str


def format_warnings(facts: list[Any], first: Sequence[str] = ()) -> list[str]:
    """Return at most three warnings, one line each, and the number of further ones.

    The lines `first` come before those of the helper.
    """
    reported = decode_valid_items(RunWarning, facts)
    warnings = [warning for warning in reported if warning.kind in KINDS]
    warnings.sort(key=lambda warning: KINDS.index(warning.kind))
    texts = [*first, *(one_line(warning.text, MAX_LENGTH) for warning in warnings)]
    left_out = max(0, len(texts) - MAX_WARNINGS)
    uncounted, is_lower_bound = _count_unreported(reported)
    left_out += uncounted
    shown = texts[:MAX_WARNINGS]
    if left_out:
        or_more = " or" if is_lower_bound else ""
        plural = "s" if left_out > 1 else ""
        shown.append(f"… and {left_out:,}{or_more} more warning{plural}")
    return shown


def _count_unreported(reported: Iterable[RunWarning]) -> tuple[int, bool]:
    """Return how many warnings the helper left out, and whether there may be more."""
    total = 0
    is_lower_bound = False
    for warning in reported:
        match = MORE.fullmatch(warning.text) if warning.kind == "more" else None
        if match:
            total += int(match[1])
            is_lower_bound = bool(match[2])
    return total, is_lower_bound
