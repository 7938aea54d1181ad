"""Messages about notebooks that were changed outside the agent's edit tools."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import one_line, shell_quote
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Cell

MAX_CELLS = 6  # cells that are named with their ids


def format_changed(
    name: str,
    changed_cells: Sequence[Cell],
    new_cells: Sequence[Cell],
    outdated_cells: Sequence[Cell],
) -> str:
    """Return the message on cells that were changed outside the edit tools.

    `changed_cells` ran with another source, and `new_cells` never ran; at least one of
    the two is not empty. `outdated_cells` are the changed cells that still show the
    outputs of their earlier source.
    """
    command = CommandLines(name).shell("run")
    # Nobody may have changed the file: its cells may only be new to stepper.
    if not changed_cells:
        verb = "was" if len(new_cells) == 1 else "were"
        cells = format_cells(new_cells)
        return (
            f"stepper: {one_line(name)}: {cells} {verb} NOT run by stepper."
            f" To run the cells that have not run: {command}"
        )
    parts = [f"{format_cells(changed_cells)} changed"]
    if new_cells:
        parts.append(f"{format_cells(new_cells)} never ran")
    outputs = ""
    if outdated_cells:
        outputs = f"; the outputs of {format_cells(outdated_cells)} are stale"
    return (
        f"stepper: {one_line(name)} was changed outside the notebook tools:"
        f" {', '.join(parts)}. stepper did NOT run these cells{outputs}."
        f" To run the cells that have not run: {command}"
    )


def format_maybe_renamed(name: str, former: str, has_kernel: bool) -> str:
    """Return a message on a notebook that seems to have been renamed.

    `former` is the old name. `has_kernel` says whether the former name has a kernel.
    """
    new_path = shell_quote(name)
    old_path = shell_quote(former)
    subject = "kernel and history are" if has_kernel else "history is"
    run_all = CommandLines(name).shell("run --all")
    sentences = [
        f"{one_line(name)} seems to be {one_line(former)} under a new name (same cell"
        f" ids). The {subject} still under the old name. To continue there, rename the"
        f" file back: `mv {new_path} {old_path}`",
        f"To continue here with a new kernel, run: `{run_all}`",
    ]
    if has_kernel:
        shutdown = CommandLines(former).shell("shutdown")
        sentences.append(f"To shut down the old kernel, run: `{shutdown}`")
    return ". ".join(sentences)


def format_renamed(
    name: str, former: str, folder: str, *, has_kernel: bool, is_stopped: bool
) -> str:
    """Return a message on a renamed notebook, whose plan and history are kept.

    The kernel and the stop are kept, too, if the notebook has them. `folder` is the
    kernel's working directory if the rename changed the directory of the notebook, or
    an empty string.
    """
    parts = ["plan", "history"]
    if has_kernel:
        parts.insert(0, "kernel")
    if is_stopped:
        parts.append("stop")
    subjects = f"{', '.join(parts[:-1])} and {parts[-1]}"
    text = (
        f"{one_line(former)} was renamed to {one_line(name)}: its {subjects} continue"
        " under the new name"
    )
    if folder:
        text += (
            ". Until the kernel is restarted, its working directory is"
            f" {one_line(folder)}"
        )
    return text


def format_rename_failed(name: str, reason: str) -> str:
    """Return a message on a rename that could not be recorded."""
    return (
        f"{one_line(name)} was renamed, but its kernel and history keep the old name:"
        f" .stepper/renamed.json can't be written ({reason})"
    )


def format_renamed_outside(name: str, former: str) -> str:
    """Return a message on a notebook that seems to have been renamed to `name`.

    `notebooks:` in the configuration does not include the new name.
    """
    new_path = shell_quote(name)
    old_path = shell_quote(former)
    return (
        f"{one_line(name)} seems to be {one_line(former)} under a new name. The kernel"
        f" and the history stay under the old name until `notebooks:` includes"
        f" {one_line(name)} or you rename it back: mv {new_path} {old_path}"
    )


def format_replaced(name: str, error: str) -> str:
    """Return a message on a stop that was cleared when its notebook was replaced."""
    return (
        f"stepper: {one_line(name)} was replaced by another notebook; the earlier stop"
        f" ({one_line(error, 200)}) no longer applies."
    )


def format_unreadable(name: str, reason: str) -> str:
    """Return a message on a changed notebook that can't be read."""
    return (
        f"stepper: {one_line(name)} was changed outside the notebook tools, and can't"
        f" be read: {one_line(reason)}"
    )


def format_cells(cells: Sequence[Cell]) -> str:
    """Return a phrase that names one or more cells by number and id.

    For more than MAX_CELLS cells, the phrase contains only the first and the last
    number.
    """
    if len(cells) == 1:
        return cells[0].label
    if len(cells) <= MAX_CELLS:
        names = [f"{cell.number} (id {one_line(cell.id, 40)})" for cell in cells]
        return f"cells {', '.join(names[:-1])} and {names[-1]}"
    return (
        f"{len(cells)} cells (from cell {cells[0].number} to cell {cells[-1].number})"
    )
