"""The line on a notebook that was changed by other means than the client's edits, for agent and person."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import one_line, shell_quote
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Cell

NAMED = 6  # cells


def changed(
    name: str, cells: Sequence[Cell], new: Sequence[Cell], stale: Sequence[Cell]
) -> str:
    """Return which cells of a notebook changed or are new and have not run, whose outputs are stale, what runs them."""
    run = f"What runs what has not run: {CommandLines(name).shell('run')}"
    # a file may be as it was committed: that a cell never ran is all that is known
    if not cells:
        verb = "has" if len(new) == 1 else "have"
        return f"stepper: {one_line(name)}: {_cells(new)} {verb} NOT run here. {run}"
    parts = [f"{_cells(cells)} changed"]
    if new:
        parts.append(f"{_cells(new)} never ran here")
    outputs = f"; the outputs of {_cells(stale)} are stale" if stale else ""
    which = f"{', '.join(parts)}; NOT run here{outputs}"
    return f"stepper: {one_line(name)} was changed outside the notebook tools: {which}. {run}"


def renamed(name: str, former: str, has_kernel: bool) -> str:
    """Return that a notebook looks like one that was renamed, and how to go on under either name."""
    new, old = shell_quote(name), shell_quote(former)
    what = "kernel and history are" if has_kernel else "history is"
    ways = [
        f"{one_line(name)} looks like the renamed {one_line(former)} (same cell ids), whose {what} still under the old"
        f" name. To go on there, give the file its old name: mv {new} {old}",
        f"To go on here, with a new kernel, run: {CommandLines(name).shell('run --all')}",
    ]
    if has_kernel:
        shutdown = CommandLines(former).shell("shutdown")
        ways.append(f"To end the old kernel, run: {shutdown}")
    return ". ".join(ways)


def followed(
    name: str, former: str, has_kernel: bool, is_stopped: bool, folder: str
) -> str:
    """Return that a notebook was renamed and what followed; `folder` is where its kernel still works, if elsewhere."""
    what = ["kernel", "plan", "history"] if has_kernel else ["plan", "history"]
    if is_stopped:
        what.append("stop")
    listed = f"{', '.join(what[:-1])} and {what[-1]}"
    told = f"{one_line(former)} was renamed to {one_line(name)}: its {listed} continue under the new name"
    if folder:
        told += f". Until the kernel is restarted, its working directory is {one_line(folder)}"
    return told


def rename_failed(name: str, why: str) -> str:
    """Return that a notebook was renamed and that its session could not follow."""
    return f"{one_line(name)} was renamed, but its kernel and history stay under this name: .stepper/renamed.json can't be written ({why})"


def renamed_to_uncovered(name: str, former: str) -> str:
    """Return that a notebook that no pattern covers looks like a renamed one, and how to go on."""
    new, old = shell_quote(name), shell_quote(former)
    return (
        f"{one_line(name)} looks like the renamed {one_line(former)}, whose kernel and history stay under the old name"
        f" until {one_line(name)} is covered or renamed back: mv {new} {old}"
    )


def replaced(name: str, error: str) -> str:
    """Return that the stop of a notebook ended because another notebook has its path now."""
    why = f"{one_line(name)} was replaced by another notebook"
    return (
        f"stepper: {why}; the earlier stop ({one_line(error, 200)}) no longer applies."
    )


def unreadable(name: str, why: str) -> str:
    """Return that a notebook was changed into what can't be read."""
    return f"stepper: {one_line(name)} was changed outside the notebook tools: {one_line(why)}"


def _cells(cells: Sequence[Cell]) -> str:
    """Return cells by number and id; many by their numbers."""
    if len(cells) == 1:
        return cells[0].label
    if len(cells) <= NAMED:
        told = [f"{cell.number} (id {one_line(cell.id, 40)})" for cell in cells]
        return f"cells {', '.join(told[:-1])} and {told[-1]}"
    return f"{len(cells)} cells, {cells[0].number} to {cells[-1].number},"
