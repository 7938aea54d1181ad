"""Run the same scripts in the real Claude Code, with the harness of `tests/realclient`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.realclient.model import Block, Message, text, texts, tool

from .models import Call, Result, Turn, get_turn

PREFIX = "mcp__stepper__"


def turns(*script: Turn) -> list[Callable[[list[Message]], list[Block]]]:
    """Return the script as turns of the Messages API."""
    return [
        lambda messages, turn=turn: _blocks(turn, find_results(messages))
        for turn in script
    ]  # type: ignore[misc]


def _blocks(turn: Turn, results: Sequence[Result]) -> list[Block]:
    message = get_turn(turn, results)
    return (
        [tool(PREFIX + message.tool, message.arguments)]
        if isinstance(message, Call)
        else [text(message)]
    )


def find_results(messages: Sequence[Message]) -> list[Result]:
    """Return the results of all calls in these messages, oldest first."""
    blocks = (
        block
        for m in messages
        if isinstance(m["content"], list)
        for block in m["content"]
    )
    return [
        _result(block.get("content"))
        for block in blocks
        if block["type"] == "tool_result"
    ]


def _result(content: Any) -> Result:
    images = (
        sum(block["type"] == "image" for block in content)
        if isinstance(content, list)
        else 0
    )
    return Result("\n".join(texts(content)), images)
