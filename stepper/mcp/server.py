"""The MCP server on the official SDK: what it offers, on standard input and output or, for `--http`, on loopback."""

from __future__ import annotations

import os
import re
from secrets import token_hex
from typing import Any

import anyio
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)

from stepper import __version__
from stepper.mcp import calls
from stepper.mcp.daemon import Daemon
from stepper.mcp.stops import Context
from stepper.mcp.tools import INSTRUCTIONS, TOOLS

SESSION_HEADER = "mcp-session-id"


class Face:
    """One server: a project's daemon, asked in the name of each session of a client's."""

    def __init__(self, project: str) -> None:
        self.project = project
        # In Claude Code the hooks know the session by this name: its current notebook is the same for both.
        self.session = (
            re.sub(r"[^a-zA-Z0-9-]", "", os.environ.get("CLAUDE_CODE_SESSION_ID", "")) or f"mcp-{token_hex(6)}"
        )

    def daemon(self, ctx: Context) -> Daemon:
        """Return the daemon as the request's session asks it."""
        told = ctx.request.headers.get(SESSION_HEADER, "") if ctx.request is not None else ""
        session = f"mcp-{re.sub(r'[^a-zA-Z0-9-]', '', told)[:40]}" if told else self.session
        return Daemon(self.project, session)

    async def list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        """Return the tools."""
        return ListToolsResult(
            tools=[
                Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.about,
                    input_schema=tool.schema,
                    output_schema=tool.output,
                    annotations=ToolAnnotations(
                        read_only_hint=tool.reads, destructive_hint=tool.destroys, open_world_hint=False
                    ),
                )
                for tool in TOOLS.values()
            ]
        )

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> calls.Result:
        """Do a call."""
        return await calls.call(self.daemon(ctx), ctx, params)

    def server(self) -> Server[Any]:
        """Return the SDK's server of it."""
        return Server(
            "stepper",
            version=__version__,
            title="stepper: Jupyter notebooks, one cell at a time",
            instructions=INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )


def serve(project: str) -> None:
    """Serve a client on standard input and output until it closes them."""
    os.chdir(project)

    async def main() -> None:
        server = Face(project).server()
        async with stdio_server() as (reads, writes):
            await server.run(reads, writes, server.create_initialization_options(NotificationOptions()))

    anyio.run(main)
