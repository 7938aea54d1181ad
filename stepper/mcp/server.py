"""The MCP server of a project, with the official SDK, over standard I/O.

`ProjectServer` has a handler for each method of the protocol. `http_server` serves the
same handlers over HTTP.
"""

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
from stepper.mcp import mcp_wording, prompts, resources, tool_calls, tools
from stepper.mcp.daemon_client import Daemon
from stepper.mcp.elicitation import Context

CACHEABLE: tuple[CacheableMethod, ...] = (
    "tools/list",
    "prompts/list",
    "resources/templates/list",
)
HOUR_MS = 3_600_000
SESSION_HEADER = "mcp-session-id"
MAX_SESSION_ID = 40  # characters
DIGEST_LENGTH = 12  # hexadecimal digits
NOT_IN_SESSION_ID = re.compile("[^a-zA-Z0-9-]")


class ProjectServer:
    """The handlers of an MCP server for one project.

    Each session of a client has its own current notebook and its own reports.
    """

    def __init__(self, project: str) -> None:
        self.project = project
        # In Claude Code, the hooks use the same session id, so hooks and tools have the
        # same current notebook.
        claude_session = os.environ.get("CLAUDE_CODE_SESSION_ID", "")
        session_name = NOT_IN_SESSION_ID.sub("", claude_session)
        self.session = session_name or f"mcp-{token_hex(6)}"
        self.subscriptions = resources.Subscriptions(Daemon(project, self.session))

    def get_daemon(self, ctx: Context) -> Daemon:
        """Return the connection to the daemon for the session of a request."""
        session = self.session
        if ctx.request:
            session = self._identify_http_session(ctx.request, ctx)
        return Daemon(self.project, session)

    def _identify_http_session(self, request: Any, ctx: Context) -> str:
        """Return the session of a request over HTTP.

        Protocol versions until 2025 have a header for the session. Since 2026, the
        session is derived from the client's name, version, user agent and query. A
        connection does not identify a client, because clients use several connections.
        """
        header = request.headers.get(SESSION_HEADER, "")
        if header:
            session_name = NOT_IN_SESSION_ID.sub("", header)
            return f"mcp-{session_name[:MAX_SESSION_ID]}"
        properties = []
        params = ctx.session.client_params
        if params:
            properties = [params.client_info.name, params.client_info.version]
        properties.append(request.headers.get("user-agent", ""))
        properties.append(request.url.query)
        digest = hashlib.sha256(repr(properties).encode()).hexdigest()
        return f"{self.session}-{digest[:DIGEST_LENGTH]}"

    async def list_tools(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        """Return all tools with their schemas and hints."""
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
                for tool in tools.TOOLS.values()
            ]
        )

    async def call_tool(
        self, ctx: Context, params: CallToolRequestParams
    ) -> tool_calls.Result:
        """Call a tool, and then check the notebooks for changes."""
        try:
            return await tool_calls.call(self.get_daemon(ctx), ctx, params)
        finally:
            self.subscriptions.check_now()

    async def list_resources(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        """Return the available resources.

        Over standard I/O, this also subscribes a client with a protocol version until
        2025 to changes of the list.

        Raises:
            MCPError: The daemon can't list the notebooks.
        """
        try:
            result = await resources.list_resources(self.get_daemon(ctx))
        except StepperError as error:
            raise MCPError(INTERNAL_ERROR, mcp_wording.translate(str(error))) from None
        if ctx.request is None and ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # `serve` declares that these clients are notified of changes of the list.
            self.subscriptions.add_list_listener(self.session, ctx.session)
        return ListResourcesResult(resources=result)

    async def list_templates(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        """Return the URI templates of the resources."""
        return ListResourceTemplatesResult(resource_templates=resources.TEMPLATES)

    async def read_resource(
        self, ctx: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        """Return the content of a resource."""
        daemon = self.get_daemon(ctx)
        return await resources.read_resource(daemon, params.uri, ctx.protocol_version)

    async def subscribe(
        self, ctx: Context, params: SubscribeRequestParams
    ) -> EmptyResult:
        """Subscribe the session to changes of a resource."""
        session = self.get_daemon(ctx).session
        self.subscriptions.add(session, params.uri, ctx.session)
        return EmptyResult()

    async def unsubscribe(
        self, ctx: Context, params: UnsubscribeRequestParams
    ) -> EmptyResult:
        """Unsubscribe the session from changes of a resource."""
        session = self.get_daemon(ctx).session
        self.subscriptions.remove(session, params.uri)
        return EmptyResult()

    async def list_prompts(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        """Return all prompts, without their texts."""
        return ListPromptsResult(prompts=prompts.list_prompts())

    async def get_prompt(
        self, ctx: Context, params: GetPromptRequestParams
    ) -> GetPromptResult:
        """Return the text of a prompt as a message of the user.

        Raises:
            MCPError: The name or an argument is wrong, or the daemon can't return the
                status.
        """
        daemon = self.get_daemon(ctx)
        try:
            return await prompts.get_prompt(daemon, params.name, params.arguments or {})
        except StepperError as error:
            raise MCPError(INTERNAL_ERROR, mcp_wording.translate(str(error))) from None

    def create_server(self) -> Server[Any]:
        """Return a server of the SDK with these handlers."""
        server: Server[Any] = Server(
            "stepper",
            version=__version__,
            title="stepper: Jupyter notebooks, one cell at a time",
            instructions=tools.INSTRUCTIONS,
            cache_hints=dict.fromkeys(CACHEABLE, CacheHint(HOUR_MS, "public")),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_subscribe_resource=self.subscribe,
            on_unsubscribe_resource=self.unsubscribe,
            on_subscriptions_listen=self.subscriptions.listen,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
        )
        return server


def serve(project: str) -> None:
    """Serve a client on standard input and output until the client closes them.

    This changes the working directory of the process to the project.
    """
    os.chdir(project)

    async def main() -> None:
        """Run the server until standard input is closed."""
        server = ProjectServer(project).create_server()
        async with stdio_server() as (read_stream, write_stream):
            options = server.create_initialization_options(
                NotificationOptions(resources_changed=True)
            )
            await server.run(read_stream, write_stream, options)

    anyio.run(main)
