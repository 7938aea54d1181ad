"""The lines on cells whose outputs differ from those recorded before a run."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import clean, format_count, one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.recorded_outputs import ChangedOutput

QUOTED_CELLS = 5  # cells of which lines are quoted
NAMED_CELLS = 20  # cells that are named by their numbers below these


def lines(changed: Sequence[ChangedOutput]) -> list[str]:
    """Return the lines on changed outputs; none if there are none."""
    if not changed:
        return []
    cells = format_count(len(changed), "cell")
    found = [f"The outputs of {cells} differ from those recorded before:"]
    for each in changed[:QUOTED_CELLS]:
        colon = ":" if each.lines else ""
        found.append(f"cell {each.cell}: {one_line(each.difference, 200)}{colon}")
        found += [f"| {clean(line)}" for line in each.lines]
    rest = [str(each.cell) for each in changed[QUOTED_CELLS:]]
    if rest:
        shown = ", ".join([*rest[:NAMED_CELLS], *["…"] * (len(rest) > NAMED_CELLS)])
        found.append(f"and {format_count(len(rest), 'more cell')}: {shown}")
    return found


def check(notebook: str) -> str:
    """Return the line on how to find out whether the new outputs are reproducible."""
    verify = CommandLines(notebook).shell("verify")
    return (
        f"To check whether a fresh kernel gives the new outputs again, run: `{verify}`"
    )
