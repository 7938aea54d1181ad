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
    """The user's choice."""

    answer: str


class EmptyForm(BaseModel):
    """A form without fields."""


def picture() -> ImageContent:
    """Return a small red picture."""
    data = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(data, "PNG")
    return ImageContent(
        type="image",
        data=base64.b64encode(data.getvalue()).decode(),
        mime_type="image/png",
    )


@server.tool()
def run_cell(source: str) -> CallToolResult:
    """Return text and a picture, or an error if the source requests it."""
    content = TextContent(type="text", text=f"Cell 1 ran: {source}")
    return CallToolResult(content=[content, picture()], is_error="error" in source)


@server.tool()
def list_notebooks() -> CallToolResult:
    """Return data, and a text that differs from it."""
    return CallToolResult(
        content=[TextContent(type="text", text="as text")],
        structured_content={"text": "as data"},
    )


@server.tool()
async def lift_stop(ctx: Context, form: bool = True) -> CallToolResult:
    """Ask the user."""
    try:
        response = await ctx.elicit("Lift it?", Choice if form else EmptyForm)
        outcome = response.action
    except Exception as error:  # noqa: BLE001 - the client's refusal is what is looked for
        outcome = f"not asked: {error}"
    return CallToolResult(content=[TextContent(type="text", text=outcome)])


if __name__ == "__main__":
    server.run()
