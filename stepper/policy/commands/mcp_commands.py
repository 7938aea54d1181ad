"""The rows of the commands on cells, which other agents give through MCP; no shell shows them.

A cell is named by its id, its number among the code cells (from 1, as reports name it), `cell-N` (its index among all
cells, from 0), or a negative index (-1 is the last cell).
"""

from __future__ import annotations

from typing import Any

from stepper.policy.commands.cli_commands import WHICH
from stepper.policy.commands.command_schema import Arguments, unshown

CELL = (
    "The cell: its id, its number among the code cells, `cell-N`, or a negative index."
)
AFTER = "The cell below which it goes; 'top' for above all. At the end when not given."
TIMEOUT = "The deadline of each cell that the call runs, in seconds; it comes before the one in a cell's first line."
WAIT = "For how many seconds the answer waits for the end; then it says `running`, and the cells go on."
TYPES = ("code", "markdown", "raw")
ACTIONS = ("delete", "move", "clear_output")
OUTPUTS = ("none", "brief", "full")


class Cells(Arguments):
    """What is done to cells."""


class CellRun(Cells, name="cell run", runs_code=True, face="mcp"):
    """Write a cell and run it at once, as an edit of Claude Code's does; a cell that may not run is not written.

    `source` alone: a new cell. `cell_id` and `source`: that cell's source replaced. `old_string` and `new_string`: an
    edit of the cell (of the notebook, without `cell_id`), where the old one stands exactly once. `cell_id` alone: run
    again as it stands, `cell_type` with it: made that. A text cell is written, nothing runs.
    """

    notebook: str | None = unshown(WHICH)
    source: str | None = unshown("The cell's whole source.")
    old_string: str | None = unshown("What is to be replaced in it.")
    new_string: str | None = unshown("What takes its place.")
    cell_id: str | int | None = unshown(CELL)
    after: str | int | None = unshown(AFTER)
    cell_type: str | None = unshown(
        "What it is; without it what it was, a new cell `code`.", choice=TYPES
    )
    expected_source_hash: str | None = unshown(
        "The hash of the source that the cell is expected to have."
    )
    call: str | None = unshown(
        "The id of this call, under which it is known and may be asked for again."
    )
    timeout_seconds: float | None = unshown(TIMEOUT, positive=True)
    wait_seconds: float = unshown(WAIT, default=60)


class CellAdd(Cells, name="cell add", runs_code=True, face="mcp"):
    """Write new cells, in order and in one go, and run the code cells among them to the first that fails."""

    cells: list[Any] = unshown(
        "Objects with `source` and `cell_type` (`code` when not given).", default=()
    )
    notebook: str | None = unshown(WHICH)
    after: str | int | None = unshown(AFTER)
    run: bool = unshown("Whether they run.", default=True)
    call: str | None = unshown("The id of this call.")
    timeout_seconds: float | None = unshown(TIMEOUT, positive=True)
    wait_seconds: float = unshown(WAIT, default=60)


class CellChange(Cells, name="cell change", face="mcp"):
    """Delete cells, move them (in the order given) below another one, or take their outputs away; nothing runs."""

    action: str = unshown("What is done.", default="", choice=ACTIONS)
    cell_ids: list[Any] = unshown("The cells.", default=())
    expected_source_hashes: list[Any] | None = unshown(
        "The hashes of their sources, in the same order."
    )
    notebook: str | None = unshown(WHICH)
    after: str | int | None = unshown(AFTER)


class CellUndelivered(Arguments, name="cell undelivered", face="mcp"):
    """Show what the agent has not read yet of a notebook, such as the user's words in a terminal: once."""

    notebook: str | None = unshown(WHICH)


class CellRead(Arguments, name="cell read", face="mcp"):
    """Show cells with their sources and outputs, in pages of at most 10,000 characters."""

    notebook: str | None = unshown(WHICH)
    cells: list[Any] | None = unshown("The cells; all when not given.")
    outputs: str = unshown(
        "How much of their outputs: `none`, the beginning and end, all.",
        default="brief",
        choice=OUTPUTS,
    )
    page: int = unshown("Which page.", default=1)
    many: int = unshown("How many pages, from that one on.", default=1)
