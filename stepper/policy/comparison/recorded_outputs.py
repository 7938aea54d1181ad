"""The outputs of a run compared with those that were recorded before it, by the rules of `stepper verify`.

`verify` settles doubt by further fresh runs. A run has none: times, durations and the order of sets
are recognized by rules instead (`clock_values`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import filterfalse
from typing import Any

from stepper.common.text import format_count
from stepper.policy.comparison import clock_values
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.output_comparison import (
    PICTURE,
    Difference,
    Pixels,
    Shown,
    compare,
)
from stepper.policy.model import Cell

# source that opens a pager
PAGER = re.compile(
    r"^\s*(?:\?|%(?:pinfo2?|pdoc|psource|pdef|page)\b)|\?\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class ChangedOutput:
    """A cell whose outputs differ from the recorded ones; some lines, `- ` as recorded and `+ ` as they are now."""

    cell: int
    cell_id: str
    difference: str
    lines: Sequence[str] = ()


def difference(
    then: Shown, now: Shown, run: RunTime, pixels: Pixels, redrawn: bool = False
) -> Difference | None:
    """Return how a run's outputs differ from the recorded ones, None if only by what differs in each run."""
    if _without_counts(then.outputs) == _without_counts(now.outputs):
        return None
    found = compare(then, now, (), pixels, redrawn)
    if found.verdict.reproduces:
        return None
    outputs = clock_values.with_recorded_times(then.outputs, now.outputs, run)
    if outputs != now.outputs:
        found = compare(then, replace(now, outputs=outputs), (), pixels, redrawn)
    is_set = found.doubtful and all("{" in line for line in found.lines)
    return None if found.verdict.reproduces or is_set else found


def _without_counts(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        {name: value for name, value in output.items() if name != "execution_count"}
        for output in outputs
    ]


def changed_output(cell: Cell, found: Difference) -> ChangedOutput:
    """Return a cell's difference, as it is reported."""
    lines = tuple(line for line in found.lines if line[2:] != PICTURE)
    return ChangedOutput(cell.number, cell.id, _described(found, bool(lines)), lines)


def _described(found: Difference, has_text: bool) -> str:
    if not has_text:
        return "; ".join(found.figures) or "a figure differs"
    if found.removed == found.added:
        counts = f"{format_count(found.added, 'line')} {_verb(found.added)}"
    elif not found.removed:
        counts = f"{format_count(found.added, 'line')} more"
    elif not found.added:
        counts = f"{format_count(found.removed, 'line')} less"
    else:
        counts = f"{format_count(found.removed, 'line')} became {found.added:,}"
    order = ["the same words in another order"] if found.doubtful else []
    return "; ".join([counts, *order, *found.figures])


def _verb(count: int) -> str:
    return "differs" if count == 1 else "differ"


def without_pages(
    source: str, recorded: Sequence[Mapping[str, Any]], shown: Shown
) -> Shown:
    """Return outputs without a pager's text if the cell opens one and the recorded outputs have none of it."""
    if not PAGER.search(source) or any(map(_is_page, recorded)):
        return shown
    return replace(shown, outputs=[*filterfalse(_is_page, shown.outputs)])


def _is_page(output: Mapping[str, Any]) -> bool:
    return output.get("output_type") == "display_data" and [
        *output.get("data", ())
    ] == ["text/plain"]
