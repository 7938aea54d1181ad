"""Messages about cells whose outputs differ from the outputs recorded before a run."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import clean, format_count, one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.rerun_comparison import ChangedOutput

MAX_QUOTED_CELLS = 5  # cells with quoted lines
MAX_NAMED_CELLS = 20  # further cells, named by number


def format_changed_outputs(changes: Sequence[ChangedOutput]) -> list[str]:
    """Return the lines on changed outputs; the list is empty if no output changed."""
    if not changes:
        return []
    cells = format_count(len(changes), "cell")
    lines = [f"The outputs of {cells} differ from those recorded before:"]
    for change in changes[:MAX_QUOTED_CELLS]:
        colon = ":" if change.lines else ""
        lines.append(f"cell {change.cell}: {one_line(change.difference, 200)}{colon}")
        lines += [f"| {clean(line)}" for line in change.lines]
    numbers = [str(change.cell) for change in changes[MAX_QUOTED_CELLS:]]
    if numbers:
        shown = numbers[:MAX_NAMED_CELLS]
        if len(numbers) > MAX_NAMED_CELLS:
            shown.append("…")
        lines.append(
            f"and {format_count(len(numbers), 'more cell')}: {', '.join(shown)}"
        )
    return lines


def format_verify_hint(notebook: str) -> str:
    """Return the sentence on the command that checks the new outputs."""
    verify = CommandLines(notebook).shell("verify")
    return f"To check whether a new kernel reproduces the new outputs, run: `{verify}`"
