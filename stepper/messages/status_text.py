"""The text of a notebook's status and plan, for all interfaces.

The functions take the responses of `session/responses.py` as mappings with the keys of
`--json`. Some keys are optional: a step in a status, for example, has no criterion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepper.common.text import format_count, format_steps_done, one_line
from stepper.messages.marks import STALE_MARK, get_mark
from stepper.messages.quoted_output import format_location, format_running
from stepper.policy.commands.command_lines import PROGRAM, CommandLines

Document = Mapping[str, Any]

# Sizes in characters.
TEXT_LIMIT = 200  # of a title, a criterion or a reason
ID_LIMIT = 100
NO_LIMIT = 1 << 30  # rows

# The statuses that a mark does not explain.
STATUS_NOTES = {
    "interrupted": "interrupted",
    "changed": "changed since it ran",
    "doubted": "its criterion is false",
    "skipped": "skipped",
}
CELL_NOTES = {**STATUS_NOTES, "pending": "not run"}
# The names of outcomes of runs in texts, by `Outcome`.
OUTCOME_NAMES = {
    "error": "failed",
    "timeout": "timed out",
    "memory": "out of memory",
    "kernel_died": "kernel died",
    "cancelled": "interrupted",
}
REASON_LABELS = {"done": "confirmed", "skipped": "skipped"}


def get_outcome_name(outcome: str) -> str:
    """Return the name of a run's `Outcome` for a text."""
    return OUTCOME_NAMES.get(outcome, outcome)


def format_no_notebook(program: str = PROGRAM) -> str:
    """Return the text for a project without notebooks.

    `program` is the name of stepper in the user's shell.
    """
    return f'There is no notebook yet. To create one, run: {program} new "PROBLEM"'


def format_created(created: Document, max_rows: int = NO_LIMIT) -> str:
    """Return the text on a new notebook, with at most `max_rows` steps of its plan."""
    notebook = one_line(created["notebook"])
    lines = [f"Created {notebook}. It is now the current notebook."]
    steps = []
    for step in created["steps"]:
        step_id = step["id"]
        title = one_line(step["title"], TEXT_LIMIT)
        steps.append(f"  {step_id}. {title}")
    lines += limit_lines(steps, "steps", max_rows)
    unfinished = one_line(created["unfinished"] or "")
    if unfinished:
        lines.append(f"{unfinished} is unfinished and was left unchanged.")
    cwd = one_line(created["kernel_cwd"])
    folder = cwd
    if cwd in ("notebook", "project"):
        folder = f"the {cwd}'s folder"
    lines.append(
        f"The kernel's working directory is {folder}: paths in cells are relative to"
        " this folder."
    )
    return "\n".join(lines)


def format_plan(plan: Document, max_rows: int = NO_LIMIT) -> str:
    """Return the notebook's name, followed by a line for each step of the plan."""
    steps = list(map(format_step, plan["steps"]))
    lines = [one_line(plan["notebook"]), *limit_lines(steps, "steps", max_rows)]
    if not steps:
        lines.append("  no plan")
    return "\n".join(lines)


def format_step(step: Document, stale_reason: str = "") -> str:
    """Return the line of a step: mark, id, title, and details in parentheses.

    `stale_reason` says why the step's cell is stale or has hidden state; an empty
    string means that the cell has neither.
    """
    details = []
    criterion = one_line(step.get("criterion") or "", TEXT_LIMIT)
    if criterion:
        details.append(f"criterion: {criterion}")
    kind = step.get("kind", "step")
    if kind != "step":
        details.append(kind)
    if step.get("long"):
        details.append("long")
    retries = step.get("retries")
    if retries:
        details.append(f"retries: {retries}")
    explanation = _explain_status(step)
    details.append(explanation)
    reason = one_line(stale_reason)
    details.append(reason)
    step_id = step["id"]
    title = one_line(step["title"], TEXT_LIMIT)
    mark = get_mark(step["status"])
    suffix = _format_details(details)
    return f"  {mark} {step_id}. {title}{suffix}"


def _explain_status(step: Document) -> str:
    """Return a note on a step's status, or an empty string if the mark is enough."""
    status = step["status"]
    note = STATUS_NOTES.get(status, "")
    reason = one_line(step.get("reason") or "", TEXT_LIMIT)
    if not reason:
        return note
    if status == "doubted":  # the reason names the criterion and its values
        return reason
    label = REASON_LABELS.get(status)
    if label:
        return f"{label}: {reason}"
    return note


def _format_details(details: Sequence[str]) -> str:
    """Return the details that are not empty, in parentheses."""
    text = "; ".join(filter(None, details))
    return f"  ({text})" if text else ""


def limit_lines(lines: list[str], noun: str, max_rows: int) -> list[str]:
    """Return at most `max_rows` lines, followed by the number of hidden lines.

    `noun` is the plural noun for the lines, such as `steps`.
    """
    hidden_count = len(lines) - max_rows
    if hidden_count <= 0:
        return lines
    hidden = format_count(hidden_count, f"more {noun.removesuffix('s')}")
    return [*lines[:max_rows], f"… and {hidden}"]


def format_status(status: Document) -> str:
    """Return the text of `stepper status`.

    The text shows the progress, the stop, the last verification, Jupyter, a renamed
    file, the kernel, the reach of undo, the daemon and undelivered reports.
    """
    if status["notebook"] is None:
        return format_no_notebook()
    lines = format_progress(status, NO_LIMIT)
    for details in (status["stop"], status["verified"]):
        if details:
            lines.append(details["text"])
    lines += [status["jupyter"], status["renamed"], format_kernel(status)]
    lines.append(format_undo(status["undo"]))
    daemon = status["daemon"]
    if daemon:
        pid = daemon["pid"]
        version = daemon["version"]
        lines.append(f"daemon: pid {pid}, version {version}")
    lines.append(status["unheard"])
    return "\n".join(filter(None, lines))


def format_progress(status: Document, max_rows: int) -> list[str]:
    """Return the lines on the notebook, its running cell, its steps and its cells.

    Each list has at most `max_rows` rows.
    """
    lines = [format_headline(status)]
    if status["running"]:
        lines.append(format_running_cell(status["running"]))
    # The reasons why cells are stale or have hidden state, by cell ID. If a cell has
    # several marks, the first one counts.
    reasons = {}
    for cell in reversed(list_marked_cells(status)):
        reasons[cell["cell_id"]] = one_line(cell["why"])
    steps = []
    for step in status["steps"]:
        reason = reasons.get(step["cell_id"], "")
        steps.append(format_step(step, reason))
    cells = []
    for cell in status["cells"]:
        reason = reasons.get(cell["cell_id"], "")
        cells.append(_format_cell(cell, [reason]))
    off_plan = []
    for cell in status["off_plan"]:
        reason = reasons.get(cell["cell_id"], "")
        note = CELL_NOTES.get(cell["status"], cell["status"])
        off_plan.append(_format_cell(cell, [reason, f"outside the plan, {note}"]))
    lines += limit_lines(steps, "steps", max_rows)
    for rows in (cells, off_plan, _list_other_marked_cells(status)):
        lines += limit_lines(rows, "cells", max_rows)
    return lines


def format_running_cell(running: Document) -> str:
    """Return the line on the running cell of a status."""
    return format_running(
        one_line(running["name"]),
        running["seconds"],
        running["timeout"],
        one_line(running["line"]),
        running["left_seconds"],
    )


def list_marked_cells(status: Document) -> list[Document]:
    """Return the marks of a status: of stale cells, and of cells with hidden state."""
    marks = []
    for kind in ("stale", "hidden", "indirect"):
        marks += status[kind]
    return marks


def _list_other_marked_cells(status: Document) -> list[str]:
    """Return lines on marked cells that are in no list of steps or cells.

    A marked cell is stale or has hidden state.
    """
    listed_ids = set()
    for row in [*status["steps"], *status["cells"], *status["off_plan"]]:
        listed_ids.add(row["cell_id"])
    lines = []
    for cell in list_marked_cells(status):
        if cell["cell_id"] not in listed_ids:
            name = _format_cell_name(cell)
            reason = one_line(cell["why"])
            lines.append(f"  {STALE_MARK} {name}: {reason}")
    return lines


def format_headline(status: Document) -> str:
    """Return the notebook's name and state, and the number of finished steps."""
    name = one_line(status["notebook"])
    state = status["state"]
    headline = f"{name}: {state}"
    statuses = [step["status"] for step in status["steps"]]
    if not statuses:
        return headline
    done = statuses.count("done")
    skipped = statuses.count("skipped")
    progress = format_steps_done(done, skipped, len(statuses), "step")
    return f"{headline}, {progress}"


def _format_cell(cell: Document, details: Sequence[str]) -> str:
    """Return the line of a code cell: mark, number, ID, title and details."""
    name = _format_cell_name(cell)
    title = one_line(cell["title"], TEXT_LIMIT)
    mark = get_mark(cell["status"])
    return f"  {mark} {name}: {title}{_format_details(details)}"


def _format_cell_name(cell: Document) -> str:
    """Return the number and the id of a code cell, such as `cell 3 (id 0e968c97)`."""
    cell_id = one_line(cell["cell_id"], ID_LIMIT)
    return f"cell {cell['cell']} (id {cell_id})"


def format_kernel(status: Document) -> str:
    """Return the line on the kernel, with the reason if its variables were lost."""
    kernel = status["kernel"]
    state = kernel["state"]
    parts = [f"kernel: {state}"]
    pid = kernel["pid"]
    if pid:
        parts.append(f"pid {pid}")
    memory = kernel["rss_bytes"]
    if memory:
        size = format_bytes(memory)
        parts.append(size)
    python = kernel["python"]
    if pid and python:
        shown_python = one_line(python)
        parts.append(shown_python)
    location = format_kernel_location(kernel)
    parts.append(location)
    text = ", ".join(filter(None, parts))
    reason = one_line(status["lost"] or "")
    if reason:
        commands = CommandLines(status["notebook"])
        restore = commands.shell("restore")
        text += f"; state lost: {reason} (to restore the variables, run: {restore})"
    return text


def format_undo(reach: Document | None) -> str:
    """Return the line on the reach of undo, or an empty string.

    `reach` has the keys of `UndoReach`; it is None if no run can be undone.
    """
    if reach:
        return f"undo: {describe_undo(reach)}"
    return ""


def describe_undo(reach: Document) -> str:
    """Return the reach of undo, with the number of runs and the memory.

    `reach` has the keys of `UndoReach`. A run is undone completely if all its values
    can be restored.
    """
    count = reach["runs"]
    complete_count = reach["complete_runs"]
    details = [format_count(count, "run")]
    if complete_count == 0:
        details.append("none of them completely")
    elif complete_count < count:
        details.append(f"only the last {complete_count} completely")
    if reach["has_other_code"]:
        details.append("except for changes by scratch executions and other clients")
    size = f"{format_bytes(reach['bytes'])} of {format_bytes(reach['memory'])}"
    return f"back to cell {reach['cell']} ({', '.join(details)}; {size})"


def format_kernel_location(kernel: Document) -> str:
    """Return the location of a remote kernel and the reason if it is unreachable.

    Return an empty string for a local kernel.
    """
    if not kernel["where"] and not kernel["trouble"]:
        return ""
    return format_location(kernel["where"], kernel["left_seconds"], kernel["trouble"])


def format_bytes(count: int) -> str:
    """Return a number of bytes in MB, or in GB if there are at least a billion."""
    if count < 1e9:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB"
