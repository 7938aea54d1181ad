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
    `stopped` (the notebook is stopped), `refused` (nothing was written), `not run` (the
    cells were written, but did not run), `running` (still running after `wait_seconds`;
    `status` waits for the end) or `nothing to run` (Markdown, an empty cell or `run:
    false`).
    """

    notebook: str
    # The cell of the report: the last one that ran; '' if nothing was written.
    cell_id: str
    state: str
    text: str  # the report, as hooks send it
    line: str  # the report in one line, for the user
    # The paths of the figures of these runs, in order.
    figures: Sequence[str] = ()
    call: str = ""  # its ID, if it keeps running
    cells: Sequence[str] = ()  # the IDs of the written cells, in order


@dataclass(frozen=True)
class CellChangeResponse:
    """The cells that were changed (not deleted ones) and all cells, by ID."""

    notebook: str
    changed: Sequence[str]
    cells: Sequence[str]
    count: int = 0  # of the cells in the request
    follows: str = ""  # lines on stale cells
    unchanged: bool = False  # the cells to move were already there


@dataclass(frozen=True)
class CellReadResponse:
    """A page of a notebook's cells, also as text (10,000 characters at most)."""

    notebook: str
    cells: Sequence[CellRead]
    page: int
    pages: int  # at most 20 more than requested are counted
    text: str


@dataclass(frozen=True)
class ResourceUsage:
    """CPU and memory use of a kernel or a machine; None if unknown.

    `cpu_percent` is relative to all cores.
    """

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """The use of a GPU."""

    name: str
    used_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True)
class Resources:
    """Resource use of the machine and of the kernel, if there is one."""

    kernel: ResourceUsage | None = None
    machine: ResourceUsage = field(default_factory=ResourceUsage)
    cores: int = 1
    gpus: Sequence[GpuUsage] = ()
