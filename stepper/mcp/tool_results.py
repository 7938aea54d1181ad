"""What a tool answers: the report as text with its figures as images, data with the same as text, an error."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from stepper.common.errors import StepperError
from stepper.common.text import one_line
from stepper.mcp.mcp_wording import translate, translate_data

LONGEST = 10_000  # characters of a result's text
REST = 60  # … that the sentence on the rest may take
LARGEST = 700_000  # bytes of a picture: 940 kB as base64
# Of data that are longer than a result may be: how many rows of a list, and characters
# of a text, are kept.
SHORTER = ((40, 1_000), (20, 500), (10, 200), (5, 100), (2, 50))
NAMES = ("notebook", "cell_id")  # never cut
ELSEWHERE = "The result's text content has it."
QUALITIES = (90, 75, 60, 40)
# How a call ended without running what it was given: nothing else is an error.
NOTHING_RAN = ("refused", "stopped", "not run")


def text(told: str, figures: Sequence[str] = (), error: bool = False) -> CallToolResult:
    """Return a text with figures, given by their paths; an error has none: Gemini makes text of them."""
    return translated_text(translate(told), figures, error)


def translated_text(
    told: str, figures: Sequence[str] = (), error: bool = False
) -> CallToolResult:
    """Return a text that is in the terms of MCP already, with figures."""
    images = [image for path in figures if not error and (image := picture(path))]
    return CallToolResult(
        content=[TextContent(text=cut(told)), *images], is_error=error
    )


def data(
    told: Mapping[str, Any], said: str, more: Sequence[ContentBlock] = ()
) -> CallToolResult:
    """Return data, and the same as text: in a field too, because some clients show that part alone.

    As JSON the data are no longer than a text may be: the text's field is left out first, then rows; `truncated` tells.
    """
    said = bounded(said)
    return CallToolResult(
        content=[TextContent(text=said), *more],
        structured_content=fitting(translate_data(told), said),
    )


def fitting(told: Mapping[str, Any], said: str) -> dict[str, Any]:
    """Return data with their text, or as much of them as a result may have."""
    whole = {**told, "text": said}
    if size(whole) <= LONGEST:
        return whole
    whole["text"] = ELSEWHERE
    if size(whole) <= LONGEST:
        return whole
    for rows, width in SHORTER:
        cut = {**shortened(whole, rows, width), "truncated": True}
        if size(cut) <= LONGEST:
            return cut
    return cut


def size(told: Mapping[str, Any]) -> int:
    """Return how many characters data have as JSON."""
    return len(json.dumps(told, ensure_ascii=False))


def shortened(value: Any, rows: int, width: int) -> Any:
    """Return data of which each list and object has so many rows, and each text so many characters."""
    if isinstance(value, str) and len(value) > width:
        return f"{value[:width]}…"
    if isinstance(value, list | tuple):
        return [shortened(each, rows, width) for each in value[:rows]]
    if isinstance(value, dict):
        kept = [*value.items()][: max(rows, 40)]
        return {
            name: each if name in NAMES else shortened(each, rows, width)
            for name, each in kept
        }
    return value


def ran(told: Mapping[str, Any]) -> CallToolResult:
    """Return what came of a cell; the last line names its notebook."""
    state = str(told.get("state", ""))
    said = str(told["text"]) or state
    if notebook := told.get("notebook"):
        line = f"\nNotebook: {one_line(notebook)}"
        said = bounded(said, LONGEST - len(line)) + line
    else:
        said = translate(said)
    return translated_text(said, told.get("figures", ()), state in NOTHING_RAN)


def with_undelivered(result: CallToolResult, told: str) -> CallToolResult:
    """Return a result that begins with what the agent has not read yet; its data have that under `unheard`."""
    told = translate(told)
    first, *more = result.content
    if isinstance(first, TextContent):
        room = LONGEST - len(told) - 1
        first = TextContent(text=f"{told}\n{cut(first.text, max(room, REST + 1))}")
    data = result.structured_content
    if data is not None:
        data = {**data, "unheard": told}
    changed = {"content": [first, *more], "structured_content": data}
    return result.model_copy(update=changed)


def failed(error: StepperError) -> CallToolResult:
    """Return why nothing was done, and what to do about it."""
    lines = [f"stepper: {error.message}"]
    hint = translate(error.hint)
    if hint.startswith("`"):  # a tool alone
        hint = f"To fix this, call {hint}"
    if hint:
        lines.append(hint)
    return text("\n".join(lines), error=True)


def bounded(told: str, limit: int = LONGEST) -> str:
    """Return a text in the terms of MCP that is not longer than a result may be."""
    return cut(translate(told), limit)


def cut(told: str, limit: int = LONGEST) -> str:
    """Return a text that is not longer than a result may be."""
    if len(told) <= limit:
        return told
    room = limit - REST
    return f"{told[:room]}\n… {len(told) - room:,} more characters are left out"


def picture(path: str) -> ImageContent | None:
    """Return the agent's copy of a picture, made smaller where it must be; None where it is gone or unreadable."""
    kind = "image/png"
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if len(content) > LARGEST:
            kind, content = "image/jpeg", smaller(content)
    except (OSError, ValueError):
        # gone, or not a picture: the report names the path all the same
        return None
    return ImageContent(data=base64.b64encode(content).decode(), mime_type=kind)


def smaller(content: bytes) -> bytes:
    """Return a picture as a JPEG of at most `LARGEST` bytes."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGBA")
    paper = Image.new("RGB", image.size, "white")
    paper.paste(image, mask=image.getchannel("A"))
    while True:
        for quality in QUALITIES:
            file = io.BytesIO()
            paper.save(file, "JPEG", quality=quality)
            if file.tell() <= LARGEST:
                return file.getvalue()
        paper.thumbnail((paper.width * 3 // 4, paper.height * 3 // 4))
