"""What the commands on cells answer to other agents; like `answers`, whose documents these go beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepper.messages.mcp_cells import CellRead


@dataclass(frozen=True)
class CellRunResponse:
    """What came of cells that were written to be run.

    `state`: `ok`, `failed`, `cancelled` (a person or the client interrupted it), `stopped` (the notebook is, by this or
    from before), `refused` (a gate: nothing was written), `not run` (written, but it did not run: the person has not
    accepted it, it would only repeat itself, there is no kernel), `running` (after `wait_seconds`; it goes on, `status`
    waits for it), `nothing to run` (text, an empty cell, `run: false`).
    """

    notebook: str
    # the cell that the report is about: the last that ran; '' where nothing was written
    cell_id: str
    state: str
    text: str  # the report, exactly as hooks tell it
    line: str  # the same in one line, for people
    # the paths of the pictures that these runs showed, in order
    figures: Sequence[str] = ()
    call: str = ""  # its id, where it runs on
    cells: Sequence[str] = ()  # the ids of the cells that were written, in order


@dataclass(frozen=True)
class CellChangeResponse:
    """The ids of the cells an action was about (of those deleted none), and of all in order, as they are now."""

    notebook: str
    changed: Sequence[str]
    cells: Sequence[str]
    count: int = 0  # how many it was about
    follows: str = ""  # what no longer follows after it: lines
    unchanged: bool = False  # the cells to move were in their place already


@dataclass(frozen=True)
class CellReadResponse:
    """A page of a notebook's cells, and the same as text (at most 10,000 characters)."""

    notebook: str
    cells: Sequence[CellRead]
    page: int
    pages: int  # of many those that were counted: as far as some beyond this one
    text: str


@dataclass(frozen=True)
class ResourceUsage:
    """What a kernel or a machine has of each: CPU in percent of all its cores, memory in bytes; None where unknown."""

    cpu_percent: float | None = None
    memory_bytes: int | None = None
    memory_total_bytes: int | None = None


@dataclass(frozen=True)
class GpuUsage:
    """A GPU of the machine."""

    name: str
    used_percent: float | None
    memory_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True)
class Resources:
    """What a notebook's kernel (None where there is none) and the machine have."""

    kernel: ResourceUsage | None = None
    machine: ResourceUsage = field(default_factory=ResourceUsage)
    cores: int = 1
    gpus: Sequence[GpuUsage] = ()
