"""Resources: notebooks, their cells' outputs, the status, and notifications of changes.

While a client has subscribed, changes are searched every second, and after each call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from typing import Any
from urllib.parse import quote, unquote

from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from stepper.common.errors import StepperError
from stepper.mcp import data_rendering, mcp_wording
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.elicitation import Context
from stepper.mcp.tool_calls import get_current_status

NOTEBOOKS, STATUS = "stepper://notebooks", "stepper://status"
PLAIN, JSON = "text/plain", "application/json"
NOT_FOUND = -32002  # in the era of 2025; since then INVALID_PARAMS
MAX_PAGES = 20  # pages of a resource
POLL_SECONDS = 1.0
# For clients that only listed the resources once, as many do.
LIST_POLL_SECONDS = 5.0
TEMPLATES = [
    ResourceTemplate(
        name="notebook",
        title="A notebook's cells",
        uri_template=NOTEBOOKS + "/{name}",
        description="Its cells with their outputs, as in read_notebook; NAME as in"
        " list_notebooks.",
        mime_type=PLAIN,
    ),
    ResourceTemplate(
        name="output",
        title="A cell's output",
        uri_template=NOTEBOOKS + "/{name}/cells/{id}/output",
        description="The whole output of the code cell with that id or number.",
        mime_type=PLAIN,
    ),
]
URI = re.compile(re.escape(NOTEBOOKS) + r"/(.+?)(?:/cells/([^/]+)/output)?")
Rows = dict[str, object]


def uri(notebook: str) -> str:
    """Return a notebook's URI: its path is one part of it."""
    return f"{NOTEBOOKS}/{quote(notebook, safe='')}"


async def every(daemon: Daemon) -> list[Resource]:
    """Return the resources there are now."""
    rows = await daemon.ask("list", {})
    return [
        Resource(
            name="notebooks", title="All notebooks", uri=NOTEBOOKS, mime_type=JSON
        ),
        Resource(
            name="status",
            title="Where the current notebook stands",
            uri=STATUS,
            mime_type=PLAIN,
        ),
        *(
            Resource(
                name=row["notebook"],
                uri=uri(row["notebook"]),
                mime_type=PLAIN,
                description=row["state"],
            )
            for row in rows[: data_rendering.MAX_ROWS]
        ),
    ]


async def read(daemon: Daemon, which: str, version: str) -> ReadResourceResult:
    """Return what a URI names; raise MCPError where there is no such thing."""
    try:
        kind, text = await _content(daemon, which)
    except StepperError as error:
        number = INVALID_PARAMS if version in MODERN_PROTOCOL_VERSIONS else NOT_FOUND
        raise MCPError(
            number,
            f"{which[:300]}: {mcp_wording.translate(error.message)}",
            {"uri": which},
        ) from None
    if kind == PLAIN:
        text = mcp_wording.translate(text)
    return ReadResourceResult(
        contents=[TextResourceContents(uri=which, mime_type=kind, text=text)]
    )


async def _content(daemon: Daemon, which: str) -> tuple[str, str]:
    if which == NOTEBOOKS:
        rows = mcp_wording.translate_data(await daemon.ask("list", {}))
        return JSON, json.dumps(rows, indent=1, ensure_ascii=False)
    if which == STATUS:
        return PLAIN, data_rendering.format_status(*await get_current_status(daemon))
    notebook, cell = named(which)
    if not notebook:
        raise StepperError("there is no such resource")
    if cell:
        return PLAIN, await _pages(
            daemon, "output", {"notebook": notebook, "cell": cell}
        )
    read = await daemon.ask(
        "cell read", {"notebook": notebook, "outputs": "full", "many": MAX_PAGES}
    )
    rest = (
        f"\n… more pages: read_notebook(outputs=full, page={MAX_PAGES + 1})"
        if read["pages"] > MAX_PAGES
        else ""
    )
    return PLAIN, read["text"] + rest


def named(which: str) -> tuple[str, str]:
    """Return the notebook and the cell that a URI names, '' for none; a path's slashes may be as they are."""
    found = URI.fullmatch(which)
    return (unquote(found[1]), unquote(found[2] or "")) if found else ("", "")


async def _pages(
    daemon: Daemon, verb: str, asked: dict[str, Any], most: int = MAX_PAGES
) -> str:
    """Return all pages of a command's answer, up to so many."""
    first = await daemon.ask(verb, {**asked, "page": 1})
    pages = [first["text"]]
    for page in range(2, min(first["pages"], most) + 1):
        pages.append((await daemon.ask(verb, {**asked, "page": page}))["text"])
    rest = [f"… {first['pages'] - most} more pages"] if first["pages"] > most else []
    return "\n".join([*pages, *rest])


class Changes:
    """Who is told of changes, in both eras; looks for them while there is somebody."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        # by session and URI: the era of 2025
        self.subscribed: dict[tuple[str, str], ServerSession] = {}
        self.bus = InMemorySubscriptionBus()  # the streams of 2026 …
        self.streams = ListenHandler(self.bus)
        self.listening: list[list[str]] = []  # … and which URIs each is for
        self.moved = asyncio.Event()
        self.looking: asyncio.Task[None] | None = None

    async def listen(
        self, ctx: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Tell a stream of changes until its client leaves."""
        asked = list(params.notifications.resource_subscriptions or ())
        self.listening.append(asked)
        self._look()
        try:
            return await self.streams(ctx, params)
        finally:
            self.listening.remove(asked)

    def tell(self, name: str, which: str, session: ServerSession) -> None:
        """Tell a session of 2025 of a resource's changes, and of the list's; of these alone where `which` is ''."""
        self.subscribed[name, which] = session
        self.moved.set()
        self._look()

    def untell(self, name: str, which: str) -> None:
        """Tell it no more."""
        self.subscribed.pop((name, which), None)

    def _look(self) -> None:
        if self.looking is None or self.looking.done():
            self.looking = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        before = await self._rows()
        while self.listening or self.subscribed:
            with contextlib.suppress(asyncio.TimeoutError):
                asked = self.listening or any(which for _, which in self.subscribed)
                await asyncio.wait_for(
                    self.moved.wait(), POLL_SECONDS if asked else LIST_POLL_SECONDS
                )
            self.moved.clear()
            now = await self._rows()
            changed = {
                name for name in {*before, *now} if before.get(name) != now.get(name)
            }
            if {*before} != {*now}:
                await self.bus.publish(ResourcesListChanged())
                for session in {
                    id(each): each for each in self.subscribed.values()
                }.values():
                    await session.send_resource_list_changed()
            if changed:
                await self._updated(changed)
            before = now

    async def _updated(self, notebooks: set[str]) -> None:
        for which in {which for asked in self.listening for which in asked}:
            if which in (NOTEBOOKS, STATUS) or named(which)[0] in notebooks:
                await self.bus.publish(ResourceUpdated(which))
        for (_, which), session in list(self.subscribed.items()):
            if which in (NOTEBOOKS, STATUS) or named(which)[0] in notebooks:
                await session.send_resource_updated(which)

    async def _rows(self) -> Rows:
        """Return what of each notebook tells that something about it changed."""
        try:
            rows = await self.daemon.ask("list", {}, launch=False) or []
        except StepperError:  # the daemon makes way for another one
            return {}
        return {row["notebook"]: _mark(self.daemon.paths.project, row) for row in rows}


def _mark(project: str, row: dict[str, Any]) -> object:
    with contextlib.suppress(OSError):
        # writes may keep the mtime
        row = {**row, "at": os.stat(os.path.join(project, row["notebook"])).st_ctime_ns}
    return {
        name: value for name, value in row.items() if name not in ("age_s", "kernel")
    }, row["kernel"]["state"]
