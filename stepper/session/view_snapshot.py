"""The state of a notebook that only the daemon knows, for the live view.

This state is the running cell, the kernel and the stale cells. Viewers read everything
else from the journal and the notebook. Taking a snapshot needs no lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepper.common.errors import NotebookError
from stepper.messages.stale_cells import Mark
from stepper.policy.commands import cli_commands
from stepper.policy.undo.requested_undo import UndoReach
from stepper.session import responses, stale_cells, status_queries
from stepper.session.session import Session
from stepper.session.session_state.notebook_language import PYTHON_LANGUAGES

MAX_CHARACTERS = 40_000  # of a text output; longer outputs lose their beginning


@dataclass(frozen=True)
class ViewSnapshot:
    """A snapshot for the live view.

    `outputs` is None if no cell is running, or if the outputs are unchanged.
    """

    run: int  # the number of the current run, or 0 if no cell is running
    changes: int  # the number of changes of the outputs so far
    outputs: Sequence[Mapping[str, Any]] | None
    running: responses.RunningCell | None
    waits: str  # the reason why the kernel is queued
    kernel: responses.KernelStatus
    # The kernels of all notebooks that have one, by the name of the notebook.
    kernels: Mapping[str, responses.KernelStatus] = field(default_factory=dict)
    stale: Sequence[Mark] | None = None  # only if `marks` were requested
    hidden: Sequence[Mark] | None = None
    indirect: Sequence[Mark] | None = None  # cells that read from a stale cell
    undo: UndoReach | None = None  # the reach of undo; only if `marks` were requested


async def take_snapshot(
    session: Session, others: Sequence[Session], request: cli_commands.Snapshot
) -> ViewSnapshot:
    """Return a snapshot of a notebook for the live view.

    The snapshot includes the kernels of `others`. It includes outputs only if they
    changed since the snapshot that `request` names. It includes the marks and the reach
    of undo only if marks were requested and the notebook can be read. The marks also
    require that the language is Python.
    """
    kernel = await session.kernel_manager.find_or_attach()
    running = session.state.running
    run = running.run if running else 0
    partial_output = kernel.partial_output if kernel else None
    change_count = partial_output.change_count if partial_output else 0
    outputs = None
    is_new = (run, change_count) != (request.run, request.changes)
    if running is not None and partial_output is not None and is_new:
        outputs = [_truncate(output) for output in partial_output.get_outputs()]
    running_cell = status_queries.get_running(session)
    queue_status = session.kernel_manager.queue_status
    queue_text = queue_status.text if queue_status else ""
    marks = _ViewMarks()
    if request.marks:
        marks = _collect_marks(session)
    # The cell may finish while the statuses of the kernels are determined.
    kernels = {}
    for other in others:
        if other.kernel_manager.kernel:
            kernels[other.name] = await other.kernel_manager.get_status()
    kernel_status = await session.kernel_manager.get_status()
    return ViewSnapshot(
        run=run,
        changes=change_count,
        outputs=outputs,
        running=running_cell,
        waits=queue_text,
        kernel=kernel_status,
        kernels=kernels,
        stale=marks.stale,
        hidden=marks.hidden,
        indirect=marks.indirect,
        undo=marks.undo,
    )


class _ViewMarks(NamedTuple):
    """The marks of cells and the reach of undo; a value is None if it is unknown."""

    stale: Sequence[Mark] | None = None
    hidden: Sequence[Mark] | None = None
    indirect: Sequence[Mark] | None = None
    undo: UndoReach | None = None


def _collect_marks(session: Session) -> _ViewMarks:
    """Return the marks of the cells; all are None if the notebook cannot be read."""
    try:
        document = session.file.read_uncached()
    except NotebookError:
        return _ViewMarks()
    undo = status_queries.find_undo_reach(session, document.cells)
    if document.language not in PYTHON_LANGUAGES:
        return _ViewMarks(undo=undo)
    marks = stale_cells.collect_marks(session, document.cells)
    return _ViewMarks(marks.stale, marks.hidden, marks.indirect, undo)


def _truncate(output: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an output with at most MAX_CHARACTERS of text, from its end."""
    text = output.get("text")
    if not isinstance(text, str) or len(text) <= MAX_CHARACTERS:
        return output
    return {**output, "text": text[-MAX_CHARACTERS:]}
