"""A minimal MCP server with stepper's name and some of its tools.

Tests use it to find out what each client does with each kind of response.
"""

from __future__ import annotations

import base64
import io

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import CallToolResult, ImageContent, TextContent
from PIL import Image
from pydantic import BaseModel

server = MCPServer("stepper", instructions="Cells run with run_cell.")


class Choice(BaseModel):
    """What the person chooses."""

    answer: str


class Nothing(BaseModel):
    """A form without fields."""


def picture() -> ImageContent:
    """A small red picture."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(data, "PNG")
    return ImageContent(
        type="image",
        data=base64.b64encode(data.getvalue()).decode(),
        mime_type="image/png",
    )


@server.tool()
def run_cell(source: str) -> CallToolResult:
    """Text and a picture; an error where the source says so."""
    content = TextContent(type="text", text=f"Cell 1 ran: {source}")
    return CallToolResult(content=[content, picture()], is_error="error" in source)


@server.tool()
def list_notebooks() -> CallToolResult:
    """Data, and a text that is another one."""
    return CallToolResult(
        content=[TextContent(type="text", text="as text")],
        structured_content={"text": "as data"},
    )


@server.tool()
async def lift_stop(ctx: Context, form: bool = True) -> CallToolResult:
    """Ask the person."""
    try:
        response = await ctx.elicit("Lift it?", Choice if form else Nothing)
        told = response.action
    except Exception as error:  # noqa: BLE001 - the client's refusal is what is looked for
        told = f"not asked: {error}"
    return CallToolResult(content=[TextContent(type="text", text=told)])


if __name__ == "__main__":
    server.run()
