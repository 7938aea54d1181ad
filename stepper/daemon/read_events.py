"""The daemon's work before and after Claude Code reads a notebook.

After a read, the agent gets a digest instead of the notebook. If the notebook is too
large for Claude Code, a slim copy takes its place during the read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Sequence

from stepper.common.errors import NotebookError
from stepper.daemon import claude_code_json, pre_tool_use
from stepper.daemon.claude_code_json import Event
from stepper.daemon.workspace.project_notebooks import Workspace
from stepper.messages.digest import notebook_digest
from stepper.notebooks import slim_copies
from stepper.notebooks.notebook_document import Document
from stepper.policy.model import Cell
from stepper.session.caller import Caller
from stepper.session.cells import notebook_reading
from stepper.session.session import Session

DIGEST = "digest"
# If the read does not follow within this time, the notebook is put back.
RESTORE_SECONDS = 3.0
# The maximum time for saving images, because the hook gives up after 2 s. The next read
# saves the other images.
FIGURE_SECONDS = 0.5
TOO_LARGE = "exceeds maximum allowed size"  # part of Claude Code's error


async def handle_before_read(
    workspace: Workspace, event: Event, caller: Caller
) -> bytes:
    """Prepare the read of a notebook, and return the output of `handle_read`.

    If the notebook is too large for Claude Code, a slim copy takes its place.
    """
    path = workspace.resolve(event.read_path)
    limits = workspace.config.load_limits()
    if limits.read == DIGEST:
        await _place_slim_copy(workspace, path, caller)
    return await pre_tool_use.handle_read(workspace, event)


async def _place_slim_copy(workspace: Workspace, path: str, caller: Caller) -> None:
    """Put a slim copy in the place of a notebook if the notebook is too large.

    Unless `handle_after_read` puts the notebook back earlier, a timer does so after
    RESTORE_SECONDS. If the copy can't be placed, add the path to `unplaced`.
    """
    copies = workspace.slim_copies
    copies.unplaced.discard(path)
    if not os.path.exists(path):
        return
    session = workspace.open_session(path)
    document = await asyncio.to_thread(slim_copies.read_large_file, session.file)
    if document is None or caller.disconnected.is_set():
        return  # the hook process gave up, and the client reads the notebook as it is
    if not await asyncio.to_thread(copies.place, session.file.path, document):
        copies.unplaced.add(path)
        return
    _cancel_restore(workspace, path)  # of an earlier read
    loop = asyncio.get_running_loop()
    workspace.restore_timers[path] = loop.call_later(
        RESTORE_SECONDS, copies.restore, session.file.path
    )


def _cancel_restore(workspace: Workspace, path: str) -> None:
    """Cancel the timer that would put a notebook back, if there is one."""
    timer = workspace.restore_timers.pop(path, None)
    if timer is not None:
        timer.cancel()


async def handle_after_read(
    workspace: Workspace, event: Event, caller: Caller
) -> bytes:
    """Put the notebook that Claude Code has read back, and return its digest.

    The output is empty if the agent should see the notebook itself.
    """
    path = workspace.resolve(event.read_path)
    _cancel_restore(workspace, path)
    document = workspace.slim_copies.restore_read(path)
    limits = workspace.config.load_limits()
    if limits.read != DIGEST:
        return claude_code_json.SILENT
    session = workspace.open_session(path)
    offset, limit = event.read_lines
    digest = await _read_digest(workspace, session, event, document)
    part = notebook_digest.select_lines(digest, offset, limit)
    return claude_code_json.format_read(event.read_path, part)


async def _read_digest(
    workspace: Workspace, session: Session, event: Event, document: Document | None
) -> notebook_digest.Digest:
    """Return the digest of a notebook, preceded by problems with its slim copy.

    `document` is the contents of the notebook, or None if they must be read.
    """
    if document is None:
        document = await notebook_reading.read_document(session)
    offset, limit = event.read_lines
    digest, _, _ = await notebook_reading.read_notebook(
        session,
        event.session,
        document,
        max_size=notebook_digest.CLIENT_LIMIT,
        is_partial=offset > 1 or limit is not None,
        figure_seconds=FIGURE_SECONDS,
    )
    problems = workspace.slim_copies.take_problems()
    lines = [f"stepper: {problem}." for problem in problems]
    return notebook_digest.Digest([*lines, *digest.head], digest.blocks)


async def handle_failed_read(
    workspace: Workspace, event: Event, caller: Caller
) -> bytes:
    """Restore the notebook, and explain how to continue if it was too large."""
    path = workspace.resolve(event.read_path)
    _cancel_restore(workspace, path)
    copies = workspace.slim_copies
    copies.restore(path)
    if TOO_LARGE not in event.tool_error:
        return claude_code_json.SILENT
    session = workspace.open_session(path)
    limits = workspace.config.load_limits()
    can_retry = path not in copies.unplaced
    cells: Sequence[Cell] = ()
    if not can_retry:
        # Another program may be writing the notebook: the advice is valid anyway.
        with contextlib.suppress(NotebookError):
            document = await notebook_reading.read_document(session)
            cells = document.cells
    text = notebook_digest.format_failed_read(
        session.name,
        is_raw=limits.read != DIGEST,
        can_retry=can_retry,
        cells=cells,
        commands=session.state.commands,
    )
    return claude_code_json.format_text("PostToolUseFailure", text)


EVENTS: dict[str, Callable[[Workspace, Event, Caller], Awaitable[bytes]]] = {
    "BeforeRead": handle_before_read,
    "AfterRead": handle_after_read,
    "ReadFailed": handle_failed_read,
}
