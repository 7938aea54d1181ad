"""The MCP server on the official SDK: what it offers, on standard input and output or, for `--http`, on loopback."""

from __future__ import annotations

import hashlib
import os
import re
from secrets import token_hex
from typing import Any

import anyio
from mcp.server.caching import CacheableMethod, CacheHint
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    CallToolRequestParams,
    EmptyResult,
    GetPromptRequestParams,
    GetPromptResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SubscribeRequestParams,
    Tool,
    ToolAnnotations,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from stepper import __version__
from stepper.common.errors import StepperError
from stepper.mcp import mcp_wording, prompts, resources, tool_calls
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.elicitation import Context
from stepper.mcp.tools import INSTRUCTIONS, TOOLS

UNCHANGING: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/templates/list",
)
HOUR_MS = 3_600_000
SESSION_HEADER = "mcp-session-id"


class Face:
    """One server: a project's daemon, asked in the name of each session of a client's."""

    def __init__(self, project: str) -> None:
        self.project = project
        # In Claude Code the hooks know the session by this name: its current notebook
        # is the same for both.
        given = re.sub(
            r"[^a-zA-Z0-9-]", "", os.environ.get("CLAUDE_CODE_SESSION_ID", "")
        )
        self.session = given or f"mcp-{token_hex(6)}"
        self.changes = resources.Changes(Daemon(project, self.session))

    def daemon(self, ctx: Context) -> Daemon:
        """Return the daemon as the request's session asks it."""
        return Daemon(
            self.project,
            self._over_http(ctx.request, ctx) if ctx.request else self.session,
        )

    def _over_http(self, request: Any, ctx: Context) -> str:
        """Return the session of a request: by its header, in the era without one by what the client tells of itself."""
        if told := request.headers.get(SESSION_HEADER, ""):
            return f"mcp-{re.sub(r'[^a-zA-Z0-9-]', '', told)[:40]}"
        # a connection tells nothing: a client has several, and they come and go
        known = ctx.session.client_params
        about = [known.client_info.name, known.client_info.version] if known else []
        marks = [*about, request.headers.get("user-agent", ""), request.url.query]
        return f"{self.session}-{hashlib.sha256(repr(marks).encode()).hexdigest()[:12]}"

    async def list_tools(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """Return the tools."""
        return ListToolsResult(
            tools=[
                Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.schema,
                    output_schema=tool.output_schema,
                    annotations=ToolAnnotations(
                        read_only_hint=tool.reads,
                        destructive_hint=tool.destroys,
                        idempotent_hint=tool.reads,
                        open_world_hint=tool.open_world,
                    ),
                )
                for tool in TOOLS.values()
            ]
        )

    async def call_tool(
        self, ctx: Context, params: CallToolRequestParams
    ) -> tool_calls.Result:
        """Do a call."""
        try:
            return await tool_calls.call(self.daemon(ctx), ctx, params)
        finally:
            self.changes.moved.set()

    async def list_resources(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        """Return the resources there are now."""
        try:
            found = await resources.every(self.daemon(ctx))
        except StepperError as error:
            raise MCPError(INTERNAL_ERROR, mcp_wording.translate(str(error))) from None
        if ctx.request is None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            self.changes.tell(self.session, "", ctx.session)  # as `serve` declares
        return ListResourcesResult(resources=found)

    async def list_templates(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """Return the patterns of URIs."""
        return ListResourceTemplatesResult(resource_templates=resources.TEMPLATES)

    async def read_resource(
        self, ctx: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        """Return a resource's content."""
        return await resources.read(self.daemon(ctx), params.uri, ctx.protocol_version)

    async def subscribe(
        self, ctx: Context, params: SubscribeRequestParams
    ) -> EmptyResult:
        """Tell the session of a resource's changes."""
        self.changes.tell(self.daemon(ctx).session, params.uri, ctx.session)
        return EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Tell it no more."""
        self.changes.untell(self.daemon(ctx).session, params.uri)
        return EmptyResult()

    async def list_prompts(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        """Return the prompts."""
        return ListPromptsResult(prompts=prompts.every())

    async def get_prompt(
        self, ctx: Context, params: GetPromptRequestParams
    ) -> GetPromptResult:
        """Return a prompt."""
        try:
            return await prompts.get(
                self.daemon(ctx), params.name, params.arguments or {}
            )
        except StepperError as error:
            raise MCPError(INTERNAL_ERROR, mcp_wording.translate(str(error))) from None

    def server(self) -> Server[Any]:
        """Return the SDK's server of it."""
        server: Server[Any] = Server(
            "stepper",
            version=__version__,
            title="stepper: Jupyter notebooks, one cell at a time",
            instructions=INSTRUCTIONS,
            cache_hints=dict.fromkeys(UNCHANGING, CacheHint(HOUR_MS, "public")),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.unsubscribe,
            on_subscriptions_listen=self.changes.listen,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
        )
        return server


def serve(project: str) -> None:
    """Serve a client on standard input and output until it closes them."""
    os.chdir(project)

    async def main() -> None:
        server = Face(project).server()
        async with stdio_server() as (reads, writes):
            told = server.create_initialization_options(
                NotificationOptions(resources_changed=True)
            )
            await server.run(reads, writes, told)

    anyio.run(main)
