"""The state of a notebook that only the daemon knows, for the live view.

It contains the running cell, the kernel and the stale cells. Viewers read everything
else from the journal and the notebook. Taking a snapshot needs no lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.common.errors import NotebookError
from stepper.messages.stale_cells import Mark
from stepper.policy.commands import cli_commands
from stepper.session import responses, stale_cells, status_queries
from stepper.session.session import LANGUAGES, Session

MOST = 40_000  # characters of a text that is on its way: its end


@dataclass(frozen=True)
class ViewSnapshot:
    """A snapshot for the live view; `outputs` is None if there are no new ones."""

    run: int  # that is under way, 0 for none
    changes: int
    outputs: Sequence[Mapping[str, Any]] | None
    running: responses.RunningCell | None
    waits: str  # for what, in a queue
    kernel: responses.KernelStatus
    # of all notebooks that have one
    kernels: Mapping[str, responses.KernelStatus] = field(default_factory=dict)
    stale: Sequence[Mark] | None = None  # where `marks` were asked for
    hidden: Sequence[Mark] | None = None


async def take_snapshot(
    session: Session, others: Sequence[Session], told: cli_commands.Snapshot
) -> ViewSnapshot:
    """Return the running cell of a notebook and its new outputs.

    An unreadable notebook raises no error; its marks are left out.
    """
    kernel = await session.kernel_manager.find()
    begun, coming = session.state.running, kernel.partial_output if kernel else None
    run, changes = begun.run if begun else 0, coming.change_count if coming else 0
    news = (
        begun is not None
        and coming is not None
        and (run, changes) != (told.run, told.changes)
    )
    stale, hidden = None, None
    with contextlib.suppress(NotebookError):
        if (
            told.marks
            and (document := session.file.read_uncached()).language in LANGUAGES
        ):
            stale, hidden = stale_cells.format_marks(session, document.cells)
    queued = session.kernel_manager.queue_status
    return ViewSnapshot(
        run,
        changes,
        [_tail(output) for output in coming.outputs()] if news and coming else None,
        status_queries.get_running(session),
        queued.text if queued else "",
        await session.kernel_manager.get_status(),
        {
            each.name: await each.kernel_manager.get_status()
            for each in others
            if each.kernel_manager.kernel
        },
        stale,
        hidden,
    )


def _tail(output: Mapping[str, Any]) -> Mapping[str, Any]:
    text = output.get("text")
    return (
        {**output, "text": text[-MOST:]}
        if isinstance(text, str) and len(text) > MOST
        else output
    )
