"""Messages of a kernel, read many at a time: jupyter_client's own reading costs a poll and two dates each."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import orjson

LONG_INTEGER = re.compile(rb"[:,\[]\s*-?\d{19}")
# bytes of a stream's text that are read in pieces: fresh memory is dearer than reading
LARGE, PIECE = 1 << 20, 1 << 18
STREAM = re.compile(rb'\{"name": ?"(stdout|stderr)", ?"text": ?"')
HIGH = re.compile(rb"\\u[dD][89abAB]")
Message = dict[str, Any]


def read(parts: list[bytes]) -> Message | None:
    """Return a message from its frames (header, parent, metadata, content, buffers), None where they say nothing."""
    try:
        header, parent = loads(parts[0]), loads(parts[1])
        kind = header["msg_type"]
        stream = (
            STREAM.match(parts[3])
            if kind == "stream" and len(parts[3]) > LARGE
            else None
        )
        content = (
            {"name": stream[1].decode(), "text": ""} if stream else loads(parts[3])
        )
        data = content.get("data")
        nested = isinstance(data, dict) and not all(
            isinstance(part, str) for part in data.values()
        )
        if nested and LONG_INTEGER.search(parts[3]):
            # orjson makes floats of them
            content = json.loads(parts[3].decode("utf-8", "replace"))
        size = len(parts[3]) + sum(map(len, parts[4:]))
        return {
            "header": header,
            "msg_type": kind,
            "parent_header": parent,
            "content": content,
            "buffers": parts[4:],
            "size": size,
        }
    except (
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        RecursionError,
    ):
        return None


def in_pieces(message: Message, parts: list[bytes]) -> Iterator[Message]:
    """Yield a message that was read from these frames, a stream's long text in several."""
    if message["msg_type"] != "stream" or len(parts[3]) <= LARGE:
        yield message
        return
    for text in pieces(parts[3]):
        yield {**message, "content": {**message["content"], "text": text}}


def pieces(content: bytes) -> Iterator[str]:
    """Yield the text of a stream's content, as JSON, in pieces: no escape and no character is cut in two."""
    stream = STREAM.match(content)
    if stream is None:
        yield loads(content)["text"]
        return
    at, end = stream.end(), content.rindex(b'"')
    while at < end:
        cut = min(at + PIECE, end)
        if cut < end:
            slash = content.rfind(b"\\", cut - 6, cut)
            if slash >= 0:
                run = 1
                while content[slash - run : slash - run + 1] == b"\\":
                    run += 1
                # an escape begins there, or one has just ended
                cut = slash if run % 2 else slash + 1
                cut -= 6 * bool(HIGH.match(content, cut - 6))
            while content[cut] & 0xC0 == 0x80:
                cut -= 1
        yield loads(b'"' + content[at:cut] + b'"')
        at = cut


def loads(data: bytes) -> Any:
    """Return what JSON says, also where it holds NaN or bytes that are no UTF-8."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data.decode("utf-8", "replace"))
