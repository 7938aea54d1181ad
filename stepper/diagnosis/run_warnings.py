"""Warnings on a successful run: at most three lines, the most important first.

The sentences come from the helper in the user's process, so each is cut to one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from stepper.common.dataclass_decode import decode_valid_items
from stepper.common.text import one_line

# The number of warnings that the helper counted but did not report.
MORE = re.compile(r"(\d{1,9})( or more)?")
MAX_WARNINGS = 3
MAX_LENGTH = 160
# From the most to the least important.
KINDS = ("swallowed", "multiplied", "emptied", "empty", "blank", "warning")


@dataclass(frozen=True)
class RunWarning:
    """A warning as reported by the helper. `kind` is one of KINDS or "more"."""

    kind: str
    text: str


class UnreportedWarnings(NamedTuple):
    """The number of warnings that the helper left out, or a lower bound."""

    total: int
    is_lower_bound: bool


def format_warnings(facts: list[Any], first: Sequence[str] = ()) -> list[str]:
    """Return lines with at most three warnings, and a line with the number of others.

    `facts` are the helper's warnings. The lines in `first` precede them and count
    toward the three.
    """
    kernel_warnings = decode_valid_items(RunWarning, facts)
    warnings = [warning for warning in kernel_warnings if warning.kind in KINDS]
    warnings.sort(key=lambda warning: KINDS.index(warning.kind))
    texts = list(first)
    for warning in warnings:
        text = one_line(warning.text, MAX_LENGTH)
        texts.append(text)
    shown = texts[:MAX_WARNINGS]
    unreported = _count_unreported(kernel_warnings)
    other_count = len(texts) - len(shown) + unreported.total
    if other_count:
        amount = "or more" if unreported.is_lower_bound else "more"
        noun = "warning" if other_count == 1 else "warnings"
        shown.append(f"… and {other_count:,} {amount} {noun}")
    return shown


def _count_unreported(reported: Iterable[RunWarning]) -> UnreportedWarnings:
    """Return the number of warnings that the helper left out, or a lower bound."""
    total = 0
    is_lower_bound = False
    for warning in reported:
        if warning.kind != "more":
            continue
        match = MORE.fullmatch(warning.text)
        if match:
            total += int(match[1])
            is_lower_bound = is_lower_bound or match[2] is not None
    return UnreportedWarnings(total, is_lower_bound)
