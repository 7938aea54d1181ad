"""MCP resources (notebooks, outputs, status) and notifications of their changes.

While a client is subscribed, the server checks for changes every second and after each
tool call.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
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
from stepper.common.text import format_count
from stepper.mcp import data_rendering, mcp_wording
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.elicitation import Context
from stepper.mcp.tool_calls import get_current_status

NOTEBOOKS = "stepper://notebooks"
STATUS = "stepper://status"
PLAIN = "text/plain"
JSON = "application/json"
NOT_FOUND = -32002  # for protocol versions until 2025; later: INVALID_PARAMS
MAX_PAGES = 20  # pages of a resource
URI_LIMIT = 300  # characters of a URI in an error
POLL_SECONDS = 1.0
# The interval for clients that only listed the resources.
LIST_POLL_SECONDS = 5.0
TEMPLATES = [
    ResourceTemplate(
        name="notebook",
        title="The cells of a notebook",
        uri_template=NOTEBOOKS + "/{name}",
        description="The cells with their outputs, as in read_notebook. NAME is the"
        " path in list_notebooks.",
        mime_type=PLAIN,
    ),
    ResourceTemplate(
        name="output",
        title="The output of a cell",
        uri_template=NOTEBOOKS + "/{name}/cells/{id}/output",
        description="The full text output of the code cell with this id or number.",
        mime_type=PLAIN,
    ),
]
URI = re.compile(re.escape(NOTEBOOKS) + r"/(.+?)(?:/cells/([^/]+)/output)?")
# Values that change if a notebook or its state changes, by the notebook's name.
Snapshot = dict[str, object]


class Content(NamedTuple):
    """The content of a resource."""

    mime_type: str
    text: str


class CellAddress(NamedTuple):
    """A notebook and the id or number of one of its cells; both may be empty."""

    notebook: str
    cell: str


def make_uri(notebook: str) -> str:
    """Return the URI of a notebook. Its path is percent-encoded, including slashes."""
    return f"{NOTEBOOKS}/{quote(notebook, safe='')}"


def parse_uri(uri: str) -> CellAddress:
    """Return the notebook and the cell that a URI identifies.

    Both parts are empty if the URI does not identify a notebook or an output. Slashes
    in the path of the notebook may be percent-encoded.
    """
    match = URI.fullmatch(uri)
    if match is None:
        return CellAddress("", "")
    return CellAddress(unquote(match[1]), unquote(match[2] or ""))


async def list_resources(daemon: Daemon) -> list[Resource]:
    """Return the resources: the list of notebooks, the status and the first notebooks.

    There are at most MAX_ROWS resources of single notebooks.
    """
    notebooks = await daemon.ask("list", {})
    resources = [
        Resource(
            name="notebooks", title="All notebooks", uri=NOTEBOOKS, mime_type=JSON
        ),
        Resource(
            name="status",
            title="Status of the current notebook",
            uri=STATUS,
            mime_type=PLAIN,
        ),
    ]
    for notebook in notebooks[: data_rendering.MAX_ROWS]:
        name = notebook["notebook"]
        resource = Resource(
            name=name,
            uri=make_uri(name),
            mime_type=PLAIN,
            description=notebook["state"],
        )
        resources.append(resource)
    return resources


async def read_resource(daemon: Daemon, uri: str, version: str) -> ReadResourceResult:
    """Return the content of a resource.

    `version` is the version of the protocol.

    Raises:
        MCPError: The resource does not exist or can't be read.
    """
    try:
        content = await _read_content(daemon, uri)
    except StepperError as error:
        is_modern = version in MODERN_PROTOCOL_VERSIONS
        code = INVALID_PARAMS if is_modern else NOT_FOUND
        message = mcp_wording.translate(error.message)
        raise MCPError(code, f"{uri[:URI_LIMIT]}: {message}", {"uri": uri}) from None
    mime_type, text = content
    if mime_type == PLAIN:
        text = mcp_wording.translate(text)
    contents = TextResourceContents(uri=uri, mime_type=mime_type, text=text)
    return ReadResourceResult(contents=[contents])


async def _read_content(daemon: Daemon, uri: str) -> Content:
    """Return the content of a resource.

    Raises:
        StepperError: The resource does not exist or can't be read.
    """
    if uri == NOTEBOOKS:
        notebooks = mcp_wording.translate_data(await daemon.ask("list", {}))
        return Content(JSON, json.dumps(notebooks, indent=1, ensure_ascii=False))
    if uri == STATUS:
        details = await get_current_status(daemon)
        return Content(PLAIN, data_rendering.format_status(*details))
    notebook, cell = parse_uri(uri)
    if not notebook:
        raise StepperError("there is no such resource")
    if cell:
        request = {"notebook": notebook, "cell": cell}
        return Content(PLAIN, await _read_output(daemon, request))
    page_request = {"notebook": notebook, "outputs": "full", "many": MAX_PAGES}
    response = await daemon.ask("cell read", page_request)
    text = response["text"]
    if response["pages"] > MAX_PAGES:
        next_page = MAX_PAGES + 1
        text += f"\n… more pages: read_notebook(outputs=full, page={next_page})"
    return Content(PLAIN, text)


async def _read_output(daemon: Daemon, request: Mapping[str, Any]) -> str:
    """Return the first MAX_PAGES pages of a cell's output."""
    first_page = await daemon.ask("output", {**request, "page": 1})
    page_count = first_page["pages"]
    texts = [first_page["text"]]
    for number in range(2, min(page_count, MAX_PAGES) + 1):
        page = await daemon.ask("output", {**request, "page": number})
        texts.append(page["text"])
    if page_count > MAX_PAGES:
        omitted_pages = format_count(page_count - MAX_PAGES, "more page")
        texts.append(f"… {omitted_pages}")
    return "\n".join(texts)


class Subscriptions:
    """The clients that are notified of changes, for all protocol versions.

    While a client is subscribed, a task compares the notebooks with their last state.
    """

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        # Subscriptions with protocol versions until 2025, by session and URI. The URI
        # is empty for a session that is only notified of changes of the list.
        self.sessions: dict[tuple[str, str], ServerSession] = {}
        # Subscriptions since 2026: streams, and the URIs of each stream.
        self.bus = InMemorySubscriptionBus()
        self.stream_handler = ListenHandler(self.bus)
        self.stream_uris: list[list[str]] = []
        self.check_requested = asyncio.Event()
        self.polling: asyncio.Task[None] | None = None

    async def listen(
        self, ctx: Context, params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        """Send notifications of changes to a client until the client disconnects."""
        uris = list(params.notifications.resource_subscriptions or ())
        self.stream_uris.append(uris)
        self._start_polling()
        try:
            return await self.stream_handler(ctx, params)
        finally:
            self.stream_uris.remove(uris)

    def add(self, session_name: str, uri: str, session: ServerSession) -> None:
        """Subscribe a session to changes of a resource and of the list of resources."""
        self.sessions[session_name, uri] = session
        self.check_now()
        self._start_polling()

    def add_list_listener(self, session_name: str, session: ServerSession) -> None:
        """Subscribe a session to changes of the list of resources."""
        self.add(session_name, "", session)

    def remove(self, session_name: str, uri: str) -> None:
        """Unsubscribe a session from changes of a resource."""
        self.sessions.pop((session_name, uri), None)

    def check_now(self) -> None:
        """Check for changes immediately instead of with the next poll."""
        self.check_requested.set()

    def _start_polling(self) -> None:
        """Start the task that checks for changes, unless it is running."""
        if self.polling is None or self.polling.done():
            self.polling = asyncio.create_task(self._poll())

    async def _poll(self) -> None:
        """Notify the subscribed clients of changes while there are any clients.

        While no daemon is running, the notebooks count as unchanged: a notification
        could make the client start a daemon again.
        """
        before = await self._take_snapshot()
        while self.stream_uris or self.sessions:
            has_uris = any(uri for _, uri in self.sessions)
            interval = LIST_POLL_SECONDS
            if self.stream_uris or has_uris:
                interval = POLL_SECONDS
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.check_requested.wait(), interval)
            self.check_requested.clear()
            after = await self._take_snapshot()
            if after is None:
                continue
            if before is None:
                before = after
                continue
            if before.keys() != after.keys():
                await self._send_list_changed()
            changed_notebooks = {
                name
                for name in {*before, *after}
                if before.get(name) != after.get(name)
            }
            if changed_notebooks:
                await self._send_updated(changed_notebooks)
            before = after

    async def _send_list_changed(self) -> None:
        """Notify all clients that notebooks were added or removed."""
        await self.bus.publish(ResourcesListChanged())
        # A session may have several subscriptions.
        sessions = {id(session): session for session in self.sessions.values()}
        for session in sessions.values():
            await session.send_resource_list_changed()

    async def _send_updated(self, notebooks: Collection[str]) -> None:
        """Notify clients that are subscribed to resources of changed notebooks."""
        stream_uris = {uri for uris in self.stream_uris for uri in uris}
        for uri in stream_uris:
            if _is_affected(uri, notebooks):
                await self.bus.publish(ResourceUpdated(uri))
        for (_, uri), session in list(self.sessions.items()):
            if _is_affected(uri, notebooks):
                await session.send_resource_updated(uri)

    async def _take_snapshot(self) -> Snapshot | None:
        """Return the current state of the notebooks, or None without a daemon.

        Also return None if the daemon can't list the notebooks.
        """
        try:
            notebooks = await self.daemon.ask("list", {}, launch=False)
        except StepperError:
            return None
        if notebooks is None:
            return None
        snapshot: Snapshot = {}
        for notebook in notebooks:
            path = os.path.join(self.daemon.paths.project, notebook["notebook"])
            snapshot[notebook["notebook"]] = _summarize(notebook, path)
        return snapshot


def _is_affected(uri: str, notebooks: Collection[str]) -> bool:
    """Return whether a resource changes if these notebooks change."""
    return uri in (NOTEBOOKS, STATUS) or parse_uri(uri).notebook in notebooks


def _summarize(notebook: Mapping[str, Any], path: str) -> object:
    """Return the values of a notebook that change if its resources change.

    `path` is the path of the file.
    """
    values = dict(notebook)
    del values["age_s"]
    # Other values of the kernel, such as its memory, change constantly.
    values["kernel"] = notebook["kernel"]["state"]
    with contextlib.suppress(OSError):
        # Not the mtime, which a writer may preserve.
        values["changed_at"] = os.stat(path).st_ctime_ns
    return values
