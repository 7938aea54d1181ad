"""Response models of the MCP commands on cells.

The field names are the JSON keys: do not rename them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepper.messages.mcp_cells import CellRead


@dataclass(frozen=True)
class CellRunResponse:
    """The result of writing and running cells.

    `state` is `ok`, `failed`, `cancelled` (interrupted by the user or the client),
    `stopped` (the notebook is stopped), `refused` (nothing was written), `not run` (a
    cell did not run), `unknown` (a cell was sent to its kernel, but its result is not
    known yet), `running` (still running after `wait_seconds`; `status` waits for the
    result) or `nothing to run` (Markdown, an empty cell or `run: false`).
    """

    notebook: str
    # The ID of the last cell that ran. If no cell ran, the ID of the first written cell
    # or an empty string.
    cell_id: str
    state: str
    text: str  # the report, as hooks send it
    line: str  # the report in one line, for the user
    # The paths of the figures of the runs, in order.
    figures: Sequence[str] = ()
    call: str = ""  # the ID of the call if its cells are still running
    cells: Sequence[str] = ()  # the IDs of the written cells, in order


@dataclass(frozen=True)
class CellChangeResponse:
    """The IDs of the changed cells and of all cells, after cells were changed.

    Deleted cells are in neither list.
    """

    notebook: str
    changed: Sequence[str]
    cells: Sequence[str]
    count: int = 0  # the number of cells in the request
    follows: str = ""  # lines on restored values and stale cells
    unchanged: bool = False  # the cells to move were already there


@dataclass(frozen=True)
class CellReadResponse:
    """One or more pages of a notebook's digest.

    `text` contains the same pages, with at most 10,000 characters per page. `head` is
    the text on the notebook above the first cell; it is empty on other pages.
    """

    notebook: str
    cells: Sequence[CellRead]
    page: int  # the number of the first page
    pages: int  # the number of pages, counted up to 20 after the requested pages
    text: str
    head: str = ""


@dataclass(frozen=True)
class ResourceUsage:
    """The CPU and memory use of a kernel or a machine.

    `cpu_percent` is relative to all cores. A value is None if it is unknown.
    """

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """The utilization and memory use of a GPU; a value is None if it is unknown."""

    name: str
    used_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True)
class Resources:
    """The resource use of the machine and of the kernel, if there is a kernel."""

    kernel: ResourceUsage | None = None
    machine: ResourceUsage = field(default_factory=ResourceUsage)
    cores: int = 1
    gpus: Sequence[GpuUsage] = ()
