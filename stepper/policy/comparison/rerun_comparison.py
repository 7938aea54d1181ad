"""Compare the outputs of a run with the outputs that were recorded before the run.

The rules of `stepper verify` apply, but there is no second fresh run that would reveal
nondeterministic values. Therefore, this module ignores times and durations (see
`clock_values`), and the order of a set's elements.
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
    PixelComparison,
    compare_outputs,
)
from stepper.policy.comparison.output_items import CellOutputs, list_types
from stepper.policy.model import Cell

# A line of source that opens a pager, such as `df.head?`, but not a comment.
PAGER = re.compile(
    r"^\s*(?:\?|%(?:pinfo2?|pdoc|psource|pdef|page)\b)|^[^#\n]*\?\s*$", re.MULTILINE
)


@dataclass(frozen=True)
class ChangedOutput:
    """A cell whose outputs differ from the recorded ones (a JSON response).

    `lines` are some of the lines that differ: recorded lines start with `- `, fresh
    lines with `+ `.
    """

    cell: int
    cell_id: str
    difference: str
    lines: Sequence[str] = ()


def find_difference(
    recorded: CellOutputs,
    fresh: CellOutputs,
    run: RunTime,
    compare_pixels: PixelComparison,
    *,
    is_redrawn: bool = False,
) -> Difference | None:
    """Return the difference between the recorded outputs and the outputs of a run.

    Return None if the outputs are equal or close, or if they differ only in values that
    depend on the clock or in the order of a set's elements. See `compare_outputs` for
    `is_redrawn`.
    """
    old_outputs = _remove_execution_counts(recorded.outputs)
    new_outputs = _remove_execution_counts(fresh.outputs)
    if old_outputs == new_outputs:
        return None
    difference = compare_outputs(
        recorded, fresh, (), compare_pixels, is_redrawn=is_redrawn
    )
    if difference.verdict.reproduces:
        return None
    outputs = clock_values.restore_recorded_values(recorded.outputs, fresh.outputs, run)
    if outputs != fresh.outputs:
        restored_outputs = replace(fresh, outputs=outputs)
        difference = compare_outputs(
            recorded, restored_outputs, (), compare_pixels, is_redrawn=is_redrawn
        )
    if difference.verdict.reproduces or _is_set_order(difference):
        return None
    return difference


def _is_set_order(difference: Difference) -> bool:
    """Return whether outputs probably differ only in the order of a set's elements.

    In this case, the same words are in another order, and all quoted lines contain a
    brace.
    """
    if not difference.is_doubtful:
        return False
    return all("{" in line for line in difference.lines)


def _remove_execution_counts(
    outputs: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the outputs without their execution counts."""
    return [
        {name: value for name, value in output.items() if name != "execution_count"}
        for output in outputs
    ]


def describe_changed_output(cell: Cell, difference: Difference) -> ChangedOutput:
    """Return the cell and a description of the difference, for a report."""
    lines = tuple(line for line in difference.lines if line[2:] != PICTURE)
    text = _describe(difference, has_text=bool(lines))
    return ChangedOutput(cell.number, cell.id, text, lines)


def _describe(difference: Difference, *, has_text: bool) -> str:
    """Return a short description of how the outputs of two runs differ.

    `has_text` says whether lines of text differ; otherwise, only figures differ.
    """
    if not has_text:
        return "; ".join(difference.figures) or "a figure differs"
    removed = difference.removed
    added = difference.added
    if removed == added:
        verb = "differs" if added == 1 else "differ"
        counts = f"{format_count(added, 'line')} {verb}"
    elif not removed:
        counts = f"{format_count(added, 'line')} more"
    elif not added:
        counts = f"{format_count(removed, 'line')} fewer"
    else:
        counts = f"{format_count(removed, 'line')} became {added:,}"
    order = ["the same words in another order"] if difference.is_doubtful else []
    return "; ".join([counts, *order, *difference.figures])


def remove_pager_text(
    source: str, recorded: Sequence[Mapping[str, Any]], fresh: CellOutputs
) -> CellOutputs:
    """Return the fresh outputs without the text of a pager if none was recorded.

    Not every editor saves the text of a pager (`df.head?`) in the notebook. `source` is
    the source of the cell.
    """
    if not PAGER.search(source) or any(map(_is_pager_text, recorded)):
        return fresh
    return replace(fresh, outputs=[*filterfalse(_is_pager_text, fresh.outputs)])


def _is_pager_text(output: Mapping[str, Any]) -> bool:
    """Return whether an output may be the text of a pager: a display of plain text."""
    is_display = output.get("output_type") == "display_data"
    return is_display and list_types([output]) == {"text/plain"}
