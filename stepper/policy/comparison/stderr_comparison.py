"""Describe differences of stderr, which do not affect the verdict on a cell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepper.common.text import format_count
from stepper.policy.comparison import ignored_differences
from stepper.policy.comparison.output_items import join_stream

Outputs = Sequence[Mapping[str, Any]]
# Warnings of the module warnings, and records of a logger.
WARNING = re.compile(r"\b(?:\w*Warning: |WARNING|ERROR|CRITICAL)\S*.*|\b[Ww]arning: .*")


def describe(recorded: Outputs, fresh: Outputs) -> str:
    """Return a note if stderr differs, or an empty string.

    The note quotes the first new warning, if there is any.
    """
    warnings = list_new_warnings(recorded, fresh)
    if warnings:
        return f"new on stderr: {warnings[0]}"
    before = ignored_differences.normalize_lines(join_stream(recorded, "stderr"))
    after = ignored_differences.normalize_lines(join_stream(fresh, "stderr"))
    if before == after:
        return ""
    return (
        f"stderr differs ({format_count(len(before), 'line')} recorded, {len(after)}"
        " now); this does not affect the verdict"
    )


def list_new_warnings(recorded: Outputs, fresh: Outputs) -> tuple[str, ...]:
    """Return the warnings on stderr that were not recorded, without their locations."""
    new_warnings = Counter(_list_warnings(fresh)) - Counter(_list_warnings(recorded))
    return tuple(new_warnings)


def _list_warnings(outputs: Outputs) -> list[str]:
    """Return the warnings on stderr, without the location at the start of a line."""
    text = join_stream(outputs, "stderr")
    if "arning" not in text and not re.search("WARNING|ERROR|CRITICAL", text):
        return []
    lines = ignored_differences.normalize_lines(text)
    matches = map(WARNING.search, lines)
    return [match[0] for match in matches if match]
