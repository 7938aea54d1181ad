"""Decoding of kernel messages.

jupyter_client polls once and parses two dates for each message, which is too slow for
cells that print a lot. orjson is fast but converts integers of more than 64 bits to
floats, so messages with such integers are decoded by `json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")
# The text of a stream message above LARGE bytes is decoded in chunks of PIECE bytes,
# because allocating memory costs more than decoding.
LARGE = 1 << 20
PIECE = 1 << 18
STREAM = re.compile(rb'\{"name": ?"(stdout|stderr)", ?"text": ?"')
HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]")
SURROGATE_LENGTH = 6
MAX_CONTINUATION_BYTES = 3  # of a character in UTF-8, after its first byte
DECODE_ERRORS = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    RecursionError,
)
Message = dict[str, Any]


def read_message(frames: list[bytes]) -> Message | None:
    """Return the message in these frames, or None if they cannot be decoded.

    The frames are the header, the parent header, the metadata, the content and the
    buffers. If a stream message is large, the returned message has no text: use
    `split_message` to get the text in pieces.
    """
    try:
        return _decode_frames(frames)
    except DECODE_ERRORS:
        return None


def _decode_frames(frames: list[bytes]) -> Message:
    """Return the message in these frames.

    Raise one of DECODE_ERRORS if the frames are not valid.
    """
    header = decode_json(frames[0])
    parent_header = decode_json(frames[1])
    if not isinstance(parent_header, dict):
        raise TypeError("the parent header is not an object")
    raw_content = frames[3]
    message_type = header["msg_type"]
    stream = None
    if message_type == "stream" and len(raw_content) > LARGE:
        stream = STREAM.match(raw_content)
    if stream:
        content = {"name": stream[1].decode(), "text": ""}
    else:
        content = decode_json(raw_content)
    data = content.get("data")
    is_nested = isinstance(data, dict) and not all(
        isinstance(value, str) for value in data.values()
    )
    # orjson converts long integers to floats, so the content is decoded again.
    if is_nested and LONG_INTEGER.search(raw_content):
        content = json.loads(raw_content.decode("utf-8", "replace"))
    return {
        "header": header,
        "msg_type": message_type,
        "parent_header": parent_header,
        "content": content,
        "buffers": frames[4:],
        "size": len(raw_content) + sum(map(len, frames[4:])),
    }


def split_message(message: Message, frames: list[bytes]) -> Iterator[Message]:
    """Yield a decoded message, or several messages for a large stream message.

    Raise one of DECODE_ERRORS if the text of a large message is not valid.
    """
    if message["msg_type"] != "stream" or len(frames[3]) <= LARGE:
        yield message
        return
    for text in split_stream_text(frames[3]):
        content = {**message["content"], "text": text}
        yield {**message, "content": content}


def split_stream_text(content: bytes) -> Iterator[str]:
    """Yield the text of a stream message in pieces, without splitting characters.

    `content` is the JSON of the message's content. Escape sequences of JSON are not
    split either. Raise one of DECODE_ERRORS if the content is not valid.
    """
    stream = STREAM.match(content)
    if stream is None:
        yield decode_json(content)["text"]
        return
    start = stream.end()
    end = content.rindex(b'"')
    while start < end:
        cut = min(start + PIECE, end)
        if cut < end:
            cut = _find_boundary(content, cut)
        yield decode_json(b'"' + content[start:cut] + b'"')
        start = cut


def _find_boundary(content: bytes, cut: int) -> int:
    """Return an index that is not within a character or an escape.

    The index is `cut`, or a few bytes before it.
    """
    slash = content.rfind(b"\\", cut - SURROGATE_LENGTH, cut)
    if slash >= 0:
        cut = slash if _begins_escape(content, slash) else slash + 1
        # The two escapes of a surrogate pair are one character.
        first_half = cut - SURROGATE_LENGTH
        is_surrogate = HIGH_SURROGATE.match(content, first_half)
        if is_surrogate and _begins_escape(content, first_half):
            cut = first_half
    for _ in range(MAX_CONTINUATION_BYTES):
        if content[cut] & 0xC0 != 0x80:
            break
        cut -= 1
    return cut


def _begins_escape(content: bytes, slash: int) -> bool:
    """Return whether the backslash at an index begins an escape sequence of JSON.

    The backslash begins an escape if the number of backslashes directly before it is
    even, because each pair of them is an escaped backslash.
    """
    first = slash
    while content[first - 1 : first] == b"\\":
        first -= 1
    return (slash - first) % 2 == 0


def decode_json(data: bytes) -> Any:
    """Return a decoded JSON value, accepting NaN and replacing invalid UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))
