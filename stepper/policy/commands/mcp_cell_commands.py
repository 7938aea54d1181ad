"""The commands on cells that only MCP tools use, not the command line.

A reference to a cell is its id, its number among the code cells (from 1, as in
reports), `cell-N` (its index among all cells, from 0), or a negative index (-1 is the
last cell).
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from stepper.policy.commands.cli_commands import (
    CELL_TYPE_HELP,
    CELL_TYPES,
    DEFAULT_WAIT_SECONDS,
    NOTEBOOK_HELP,
    List,
    NewCell,
    declare_timeout,
    declare_wait,
)
from stepper.policy.commands.command_schema import MCP, Arguments, hidden

CELL_REFERENCE = (
    "by its id, its number among the code cells, `cell-N` (N from 0, among all cells)"
    " or a negative index (-1: the last cell)"
)
AFTER_HELP = (
    f'The cell above the new position, {CELL_REFERENCE}, or "top" (above all cells).'
    " Default: the last cell."
)
ACTIONS = ("delete", "move", "clear_output")
OUTPUT_AMOUNTS = ("none", "brief", "full")


def declare_notebook() -> Any:
    """Declare the argument `notebook`."""
    return hidden(NOTEBOOK_HELP, min_length=1)


def declare_call_id() -> Any:
    """Declare the argument `call`, the id of a tool call."""
    return hidden(
        "The id of this call. If a call is repeated with the same id, the cell does not"
        " run again: the call returns the result of the first run."
    )


class CellEditArguments(Arguments):
    """Base class of the commands that change cells."""


class CellRun(CellEditArguments, name="cell run", runs_code=True, interface=MCP):
    """Write a cell, run it and return the report. `source` alone adds a new cell.

    With `cell_id`, `source` replaces the source of that cell. `old_string` and
    `new_string` edit the cell `cell_id` or, without it, the only cell that contains
    `old_string`. `cell_id` alone runs the cell again. `cell_type` changes the type of
    the cell. Markdown and raw cells are only written. If the cell may not run, nothing
    is written.
    """

    source: str | None = hidden("The whole source of the cell.")
    old_string: str | None = hidden(
        "The text to replace. It must occur exactly once.", min_length=1
    )
    new_string: str | None = hidden("The text that replaces `old_string`.")
    cell_id: str | int | None = hidden(
        f"The cell to change or to run again, {CELL_REFERENCE}. Default: a new cell."
    )
    after: str | int | None = hidden(AFTER_HELP)
    cell_type: str | None = hidden(CELL_TYPE_HELP, choice=CELL_TYPES)
    expected_source_hash: str | None = hidden(
        "The hash of the source of the cell, from read_notebook. If the cell now has"
        " another source, nothing is written and the response contains that source.",
        min_length=1,
    )
    notebook: str | None = declare_notebook()
    call: str | None = declare_call_id()
    timeout_seconds: float | None = declare_timeout()
    wait_seconds: float = declare_wait(DEFAULT_WAIT_SECONDS)


class CellAdd(CellEditArguments, name="cell add", runs_code=True, interface=MCP):
    """Write several new cells, then run the code cells in order.

    The run stops at the first cell that fails: the cells below it are written, but do
    not run.
    """

    cells: list[Any] = hidden(
        "The new cells, in order.", MISSING, items=NewCell, min_length=1
    )
    after: str | int | None = hidden(AFTER_HELP)
    run: bool = hidden("Whether to run the code cells.", default=True)
    notebook: str | None = declare_notebook()
    call: str | None = declare_call_id()
    timeout_seconds: float | None = declare_timeout()
    wait_seconds: float = declare_wait(DEFAULT_WAIT_SECONDS)


class CellChange(CellEditArguments, name="cell change", interface=MCP):
    """Delete cells, move them below another cell, or clear their outputs.

    Moved cells are in the order in which they are given. No cell runs, and the kernel
    keeps its variables.
    """

    action: str = hidden(
        "The change. `after` applies to `move` only.", MISSING, choice=ACTIONS
    )
    cell_ids: list[str | int] = hidden(
        f"The cells to change, each {CELL_REFERENCE}.", MISSING, min_length=1
    )
    after: str | int | None = hidden(AFTER_HELP)
    expected_source_hashes: list[str] | None = hidden(
        "The hashes of the sources of these cells, from read_notebook, in the same"
        " order. If one of the cells now has another source, no cell changes."
    )
    notebook: str | None = declare_notebook()


class CellUndelivered(Arguments, name="cell undelivered", interface=MCP):
    """Show the reports and user messages that the agent has not read yet.

    Each of them is shown once.
    """

    notebook: str | None = declare_notebook()


class CellRead(Arguments, name="cell read", interface=MCP):
    """Show the status of a notebook and its cells, in pages of 10,000 characters.

    Each cell has its id, number, tags, execution count, step, state, duration and
    source hash, its whole source, its shortened outputs, and the paths of its figures.
    """

    notebook: str | None = declare_notebook()
    cells: list[str | int] | None = hidden(
        f"The cells to show, each {CELL_REFERENCE}; a text such as `3-5` is a range of"
        " numbers. Default: all."
    )
    outputs: str = hidden(
        "How much of the outputs to show. brief: shortened.",
        default="brief",
        choice=OUTPUT_AMOUNTS,
    )
    page: int = hidden("The number of the page, from 1.", default=1, minimum=1)
    many: int = hidden("The number of pages.", default=1, minimum=1)


class ListPage(List):
    """The arguments of the tool that lists notebooks.

    The MCP server selects the notebooks and the page; the daemon returns all.
    """

    filter: str | None = hidden(
        "Show only notebooks with this text in their path. Default: all."
    )
    page: int = hidden("The number of the page, from 1.", default=1, minimum=1)
