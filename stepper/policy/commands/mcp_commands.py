"""The commands on cells that MCP tools call; the command line does not have them.

A reference to a cell is its id, its number among the code cells (from 1, as in
reports), `cell-N` (its index among all cells, from 0), or a negative index (-1 is the
last cell).
"""

from __future__ import annotations

from typing import Any

from stepper.policy.commands.cli_commands import NOTEBOOK_HELP
from stepper.policy.commands.command_schema import MCP, Arguments, hidden

CELL_HELP = (
    "The cell: its id, its number among the code cells, `cell-N`, or a negative index."
)
AFTER_HELP = (
    "The cell above the new position, or 'top' for above all cells. Default: the end."
)
TIMEOUT_HELP = (
    "The deadline in seconds of each cell that the call runs. It takes precedence over"
    " a deadline in the first line of a cell."
)
WAIT_HELP = (
    "How many seconds to wait for the cells. Then the response is `running`, and the"
    " cells keep running."
)
CELL_TYPES = ("code", "markdown", "raw")
ACTIONS = ("delete", "move", "clear_output")
OUTPUT_AMOUNTS = ("none", "brief", "full")
DEFAULT_WAIT_SECONDS = 60


class CellEditArguments(Arguments):
    """Base of the commands that change cells."""


class CellRun(CellEditArguments, name="cell run", runs_code=True, interface=MCP):
    """Write a cell and run it at once; a cell that may not run is not written.

    `source` alone adds a new cell. `cell_id` with `source` replaces a cell's source.
    `old_string` and `new_string` edit a cell (without `cell_id`, the only cell that
    contains `old_string`). `cell_id` alone runs the cell again, with `cell_type` it
    also changes the type. Text cells are written, but do not run.
    """

    notebook: str | None = hidden(NOTEBOOK_HELP)
    source: str | None = hidden("The whole source of the cell.")
    old_string: str | None = hidden("The text to replace.")
    new_string: str | None = hidden("The text that replaces it.")
    cell_id: str | int | None = hidden(CELL_HELP)
    after: str | int | None = hidden(AFTER_HELP)
    cell_type: str | None = hidden(
        "The type of the cell. Default: unchanged; for a new cell, `code`.",
        choice=CELL_TYPES,
    )
    expected_source_hash: str | None = hidden(
        "The hash of the cell's source that the caller has read."
    )
    call: str | None = hidden("The id of this call, to request its result again.")
    timeout_seconds: float | None = hidden(TIMEOUT_HELP, positive=True)
    wait_seconds: float = hidden(WAIT_HELP, default=DEFAULT_WAIT_SECONDS)


class CellAdd(CellEditArguments, name="cell add", runs_code=True, interface=MCP):
    """Write new cells at once, then run the code cells up to the first failure."""

    cells: list[Any] = hidden(
        "Objects with `source` and `cell_type` (default: `code`).", default=()
    )
    notebook: str | None = hidden(NOTEBOOK_HELP)
    after: str | int | None = hidden(AFTER_HELP)
    run: bool = hidden("Whether to run the cells.", default=True)
    call: str | None = hidden("The id of this call, to request its result again.")
    timeout_seconds: float | None = hidden(TIMEOUT_HELP, positive=True)
    wait_seconds: float = hidden(WAIT_HELP, default=DEFAULT_WAIT_SECONDS)


class CellChange(CellEditArguments, name="cell change", interface=MCP):
    """Delete cells, move them below another cell, or clear their outputs.

    Moved cells are in the order in which they are given. Nothing runs.
    """

    action: str = hidden("What to do with the cells.", default="", choice=ACTIONS)
    cell_ids: list[Any] = hidden("The cells.", default=())
    expected_source_hashes: list[Any] | None = hidden(
        "The hashes of their sources, in the same order."
    )
    notebook: str | None = hidden(NOTEBOOK_HELP)
    after: str | int | None = hidden(AFTER_HELP)


class CellUndelivered(Arguments, name="cell undelivered", interface=MCP):
    """Show what the agent has not read yet, such as the user's words in a terminal.

    Each text is shown once.
    """

    notebook: str | None = hidden(NOTEBOOK_HELP)


class CellRead(Arguments, name="cell read", interface=MCP):
    """Show cells with sources and outputs, in pages of at most 10,000 characters."""

    notebook: str | None = hidden(NOTEBOOK_HELP)
    cells: list[Any] | None = hidden("The cells. Default: all.")
    outputs: str = hidden(
        "How much of the outputs: `none`, the beginning and end (`brief`), or `full`.",
        default="brief",
        choice=OUTPUT_AMOUNTS,
    )
    page: int = hidden("The number of the first page.", default=1)
    many: int = hidden("The number of pages.", default=1)
