"""The results of tools: texts with figures, data with a text, and errors."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent

from stepper.common.errors import StepperError
from stepper.common.text import one_line
from stepper.mcp.mcp_wording import translate, translate_data

Data = Mapping[str, Any]
MAX_CHARACTERS = 10_000  # of a result's text, or of its data as JSON
NOTICE_CHARACTERS = 60  # reserved for the notice of omitted characters
MAX_IMAGE_SIZE = 700_000  # bytes: 940 kB as base64
MIN_KEYS = 40  # keys of an object that are always kept
WHOLE_KEYS = ("notebook", "cell_id")  # their values are never shortened
TEXT_IN_CONTENT = "See the text content of this result."
JPEG_QUALITIES = (90, 75, 60, 40)
# The states of calls without the result of a cell: their results are errors.
ERROR_STATES = ("refused", "stopped", "not run", "unknown")


class DataLimit(NamedTuple):
    """The maximum rows of a list or object, and the maximum characters of a text."""

    rows: int
    characters: int


# These limits are tried in order until the data are short enough.
DATA_LIMITS = (
    DataLimit(40, 1_000),
    DataLimit(20, 500),
    DataLimit(10, 200),
    DataLimit(5, 100),
    DataLimit(2, 50),
)


def create_text_result(
    text: str, figures: Sequence[str] = (), is_error: bool = False
) -> CallToolResult:
    """Return a result with a translated text and figures.

    `figures` are paths. An error result has no figures, because Gemini CLI would
    convert them to text.
    """
    return create_translated_result(translate(text), figures, is_error)


def create_translated_result(
    text: str, figures: Sequence[str] = (), is_error: bool = False
) -> CallToolResult:
    """Return a result with a text that is already translated, and figures.

    Figures that can't be read are left out; an error result has no figures.
    """
    content: list[ContentBlock] = [TextContent(text=truncate(text))]
    if is_error:
        return CallToolResult(content=content, is_error=True)
    for path in figures:
        image = load_image(path)
        if image is not None:
            content.append(image)
    return CallToolResult(content=content)


def create_data_result(
    data: Data, text: str, images: Sequence[ContentBlock] = ()
) -> CallToolResult:
    """Return a result with data, a text with the same content, and images.

    The data also contain the text, because some clients show only the data. If the data
    are longer than MAX_CHARACTERS, this text is left out. If they are still too long,
    lists and texts are shortened and `truncated` is set to true.
    """
    text = translate_and_truncate(text)
    translated_data = translate_data(data)
    return CallToolResult(
        content=[TextContent(text=text), *images],
        structured_content=_limit_data(translated_data, text),
    )


def _limit_data(data: Data, text: str) -> dict[str, Any]:
    """Return data and their text, shortened to MAX_CHARACTERS characters of JSON."""
    limited = {**data, "text": text}
    if _is_short(limited):
        return limited
    limited["text"] = TEXT_IN_CONTENT
    if _is_short(limited):
        return limited
    shortened: dict[str, Any] = {}
    for limit in DATA_LIMITS:
        shortened = _shorten_object(limited, limit)
        shortened["truncated"] = True
        if _is_short(shortened):
            break
    return shortened


def _is_short(data: Data) -> bool:
    """Return whether data have at most MAX_CHARACTERS characters as JSON."""
    text = json.dumps(data, ensure_ascii=False)
    return len(text) <= MAX_CHARACTERS


def _shorten(value: Any, limit: DataLimit) -> Any:
    """Return a value with shorter lists, objects and texts."""
    if isinstance(value, str) and len(value) > limit.characters:
        return f"{value[: limit.characters]}…"
    if isinstance(value, list | tuple):
        rows = value[: limit.rows]
        return [_shorten(row, limit) for row in rows]
    if isinstance(value, dict):
        return _shorten_object(value, limit)
    return value


def _shorten_object(value: Data, limit: DataLimit) -> dict[str, Any]:
    """Return an object with shorter values and a limited number of keys."""
    max_keys = max(limit.rows, MIN_KEYS)
    shortened = {}
    for name in list(value)[:max_keys]:
        item = value[name]
        if name not in WHOLE_KEYS:
            item = _shorten(item, limit)
        shortened[name] = item
    return shortened


def create_run_result(response: Data) -> CallToolResult:
    """Return the result of running cells, with the notebook's name in the last line."""
    state = str(response.get("state", ""))
    text = str(response["text"]) or state
    notebook = response.get("notebook")
    if notebook:
        last_line = f"\nNotebook: {one_line(notebook)}"
        limit = MAX_CHARACTERS - len(last_line)
        text = translate_and_truncate(text, limit) + last_line
    else:
        text = translate(text)
    figures = response.get("figures", ())
    is_error = state in ERROR_STATES
    return create_translated_result(text, figures, is_error)


def add_undelivered(result: CallToolResult, text: str) -> CallToolResult:
    """Return a result with undelivered reports above its text.

    The data of the result contain the reports as `unheard`.
    """
    text = translate(text)
    first_content, *other_contents = result.content
    if isinstance(first_content, TextContent):
        # The reports are not shortened. If they are long, only the notice of the
        # result's omitted characters is left.
        remaining_length = MAX_CHARACTERS - len(text) - len("\n")
        limit = max(remaining_length, NOTICE_CHARACTERS + 1)
        shortened_text = truncate(first_content.text, limit)
        first_content = TextContent(text=f"{text}\n{shortened_text}")
    data = result.structured_content
    if data is not None:
        data = {**data, "unheard": text}
    changes = {"content": [first_content, *other_contents], "structured_content": data}
    return result.model_copy(update=changes)


def create_error_result(error: StepperError) -> CallToolResult:
    """Convert an error to an error result with its message and hint."""
    lines = [translate(f"stepper: {error.message}")]
    hint = translate(error.hint)
    if hint.startswith("`"):  # the hint is only the name of a tool
        hint = f"To fix this, call {hint}"
    if hint:
        lines.append(hint)
    return create_translated_result("\n".join(lines), is_error=True)


def translate_and_truncate(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Translate a text and shorten the result to at most `limit` characters."""
    return truncate(translate(text), limit)


def truncate(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Shorten a text to `limit` characters, with a notice of omitted characters."""
    if len(text) <= limit:
        return text
    length = limit - NOTICE_CHARACTERS
    omitted_count = len(text) - length
    return f"{text[:length]}\n… {omitted_count:,} more characters were left out"


def load_image(path: str) -> ImageContent | None:
    """Return a figure, compressed if it is large, or None if it can't be read."""
    mime_type = "image/png"
    try:
        with open(path, "rb") as stream:
            content = stream.read()
        if len(content) > MAX_IMAGE_SIZE:
            mime_type = "image/jpeg"
            content = _compress(content)
    except (OSError, ValueError):
        # The file was deleted, is not an image, or is too large. The report contains
        # its path.
        return None
    data = base64.b64encode(content).decode()
    return ImageContent(data=data, mime_type=mime_type)


def _compress(content: bytes) -> bytes:
    """Return an image as a JPEG of at most MAX_IMAGE_SIZE bytes.

    The image is shrunk if a lower quality is not enough.

    Raises:
        OSError: The content is not an image.
        ValueError: The image has too many pixels.
    """
    import io

    from PIL import Image

    stream = io.BytesIO(content)
    try:
        image = Image.open(stream).convert("RGBA")
    except Image.DecompressionBombError as error:
        raise ValueError("the image has too many pixels") from error
    opaque = Image.new("RGB", image.size, "white")
    alpha = image.getchannel("A")
    opaque.paste(image, mask=alpha)
    while True:
        for quality in JPEG_QUALITIES:
            buffer = io.BytesIO()
            opaque.save(buffer, "JPEG", quality=quality)
            if buffer.tell() <= MAX_IMAGE_SIZE:
                return buffer.getvalue()
        width = opaque.width * 3 // 4
        height = opaque.height * 3 // 4
        opaque.thumbnail((width, height))
