"""Pictures among outputs: which they are, and by what one is known again."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

# in the order in which one of an output's is taken
RASTER = ("image/png", "image/jpeg", "image/gif", "image/webp")
LOOKED_AT = 8  # pictures of a run


def picture_in(output: Mapping[str, Any]) -> str:
    """Return the base64 text of an output's picture, or ''."""
    data = output.get("data")
    return (
        content_text(next((data[kind] for kind in RASTER if data.get(kind)), ""))
        if isinstance(data, dict)
        else ""
    )


def key(text: str) -> int:
    """Return what a picture's facts are found by: the helper told the same of the text (base64, SVG) that it saw."""
    return zlib.crc32("".join(text.split()).encode("utf-8", "replace"))


def content_text(content: Any, between: str = "") -> str:
    """Return what a mime bundle or an error holds, which may be lines or JSON, as one text."""
    if isinstance(content, str):
        return content
    lines = isinstance(content, list) and all(isinstance(line, str) for line in content)
    return between.join(content) if lines else json.dumps(content, default=str)
