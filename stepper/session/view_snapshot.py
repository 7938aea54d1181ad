"""What only the daemon knows of a notebook, for those who look on (`stepper/web`): what runs, its kernel, stale cells.

All else they read from the journal and the notebook by themselves. A look takes no lock, is told to no agent, and asks
for little: outputs where more came, marks where they may have changed.
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
    """What a look finds; `outputs` is None where nothing came since the `run` and `changes` that were told."""

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
    """Return what runs in a notebook and what came of it since it was told last; raise nothing of the notebook's."""
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
