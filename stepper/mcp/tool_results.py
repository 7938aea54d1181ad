"""The results of tools: text with figures, data with the same as text, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from stepper.common.errors import StepperError
from stepper.common.text import one_line
from stepper.mcp.mcp_wording import translate, translate_data

MAX_CHARACTERS = 10_000  # of a result's text
GAP_CHARACTERS = 60  # reserved for the sentence on omitted characters
MAX_IMAGE_SIZE = 700_000  # bytes: 940 kB as base64
# The rows of a list and the characters of a text that are kept if the data are too
# long: the first limits that suffice.
SHORTER = ((40, 1_000), (20, 500), (10, 200), (5, 100), (2, 50))
MIN_KEYS = 40  # of an object that are kept
WHOLE_KEYS = ("notebook", "cell_id")  # their values are never shortened
TEXT_IN_CONTENT = "The result's text content has it."
JPEG_QUALITIES = (90, 75, 60, 40)
# The states of calls that ran nothing, which are errors.
NOTHING_RAN = ("refused", "stopped", "not run")


def create_text_result(
    text: str, figures: Sequence[str] = (), is_error: bool = False
) -> CallToolResult:
    """Return a text with the figures at these paths.

    An error has no figures, because Gemini CLI converts them to text.
    """
    return create_translated_result(translate(text), figures, is_error)


def create_translated_result(
    text: str, figures: Sequence[str] = (), is_error: bool = False
) -> CallToolResult:
    """Return a text that is already in terms of MCP, with figures."""
    content: list[ContentBlock] = [TextContent(text=cut(text))]
    if not is_error:
        content += filter(None, map(load_image, figures))
    return CallToolResult(content=content, is_error=is_error)


def create_data_result(
    data: Mapping[str, Any], text: str, more: Sequence[ContentBlock] = ()
) -> CallToolResult:
    """Return data, and the same as text.

    The text is also a field of the data, because some clients show only the data. As
    JSON, the data are no longer than a text may be: first the text field is left out,
    then rows. `truncated` says so.
    """
    text = limit_text(text)
    return CallToolResult(
        content=[TextContent(text=text), *more],
        structured_content=_fit(translate_data(data), text),
    )


def _fit(data: Mapping[str, Any], text: str) -> dict[str, Any]:
    """Return data with their text, or as much of them as a result may have."""
    whole = {**data, "text": text}
    if _measure(whole) <= MAX_CHARACTERS:
        return whole
    whole["text"] = TEXT_IN_CONTENT
    if _measure(whole) <= MAX_CHARACTERS:
        return whole
    shortened: dict[str, Any] = {}
    for max_rows, max_characters in SHORTER:
        shortened = _shorten(whole, max_rows, max_characters)
        shortened["truncated"] = True
        if _measure(shortened) <= MAX_CHARACTERS:
            break
    return shortened


def _measure(data: Mapping[str, Any]) -> int:
    """Return the number of characters of data as JSON."""
    return len(json.dumps(data, ensure_ascii=False))


def _shorten(value: Any, max_rows: int, max_characters: int) -> Any:
    """Return data with shorter lists, objects and texts."""
    if isinstance(value, str) and len(value) > max_characters:
        return f"{value[:max_characters]}…"
    if isinstance(value, list | tuple):
        return [_shorten(item, max_rows, max_characters) for item in value[:max_rows]]
    if not isinstance(value, dict):
        return value
    shortened = {}
    for name in list(value)[: max(max_rows, MIN_KEYS)]:
        item = value[name]
        if name not in WHOLE_KEYS:
            item = _shorten(item, max_rows, max_characters)
        shortened[name] = item
    return shortened


def create_run_result(response: Mapping[str, Any]) -> CallToolResult:
    """Return the result of cells that ran; the last line names their notebook."""
    state = str(response.get("state", ""))
    text = str(response["text"]) or state
    notebook = response.get("notebook")
    if notebook:
        line = f"\nNotebook: {one_line(notebook)}"
        text = limit_text(text, MAX_CHARACTERS - len(line)) + line
    else:
        text = translate(text)
    figures = response.get("figures", ())
    return create_translated_result(text, figures, state in NOTHING_RAN)


def add_undelivered(result: CallToolResult, text: str) -> CallToolResult:
    """Return a result with undelivered reports before its text.

    Its data contain them as `unheard`.
    """
    text = translate(text)
    first, *others = result.content
    if isinstance(first, TextContent):
        room = MAX_CHARACTERS - len(text) - 1
        limited = cut(first.text, max(room, GAP_CHARACTERS + 1))
        first = TextContent(text=f"{text}\n{limited}")
    data = result.structured_content
    if data is not None:
        data = {**data, "unheard": text}
    changes = {"content": [first, *others], "structured_content": data}
    return result.model_copy(update=changes)


def create_error_result(error: StepperError) -> CallToolResult:
    """Return why nothing was done, and how to fix it."""
    lines = [f"stepper: {error.message}"]
    hint = translate(error.hint)
    if hint.startswith("`"):  # only the name of a tool
        hint = f"To fix this, call {hint}"
    if hint:
        lines.append(hint)
    return create_text_result("\n".join(lines), is_error=True)


def limit_text(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return a text in terms of MCP that is not longer than a result may be."""
    return cut(translate(text), limit)


def cut(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Return a text that is not longer than a result may be."""
    if len(text) <= limit:
        return text
    room = limit - GAP_CHARACTERS
    omitted = len(text) - room
    return f"{text[:room]}\n… {omitted:,} more characters are left out"


def load_image(path: str) -> ImageContent | None:
    """Return a figure, made smaller if necessary; None if it cannot be read."""
    mime_type = "image/png"
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if len(content) > MAX_IMAGE_SIZE:
            mime_type = "image/jpeg"
            content = _compress(content)
    except (OSError, ValueError):
        # Deleted, or not an image: the report names the path anyway.
        return None
    data = base64.b64encode(content).decode()
    return ImageContent(data=data, mime_type=mime_type)


def _compress(content: bytes) -> bytes:
    """Return an image as a JPEG of at most MAX_IMAGE_SIZE bytes."""
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(content)).convert("RGBA")
    opaque = Image.new("RGB", image.size, "white")
    opaque.paste(image, mask=image.getchannel("A"))
    while True:
        for quality in JPEG_QUALITIES:
            buffer = io.BytesIO()
            opaque.save(buffer, "JPEG", quality=quality)
            if buffer.tell() <= MAX_IMAGE_SIZE:
                return buffer.getvalue()
        smaller_size = (opaque.width * 3 // 4, opaque.height * 3 // 4)
        opaque.thumbnail(smaller_size)
