"""Images in outputs, and the key that identifies an image."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

# If an output has several of these types, the first is used.
RASTER_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_SAVED_IMAGES = 8  # of one run


def get_image(output: Mapping[str, Any]) -> str:
    """Return the base64 text of the image in an output, or an empty string."""
    data = output.get("data")
    if not isinstance(data, dict):
        return ""
    for mime_type in RASTER_TYPES:
        content = data.get(mime_type)
        if content:
            return join_content(content)
    return ""


def get_image_key(text: str) -> int:
    """Return a checksum of an image, given its base64 or SVG text.

    The helper in the kernel computes the same key for the images that it describes.
    """
    compact_text = "".join(text.split())
    return zlib.crc32(compact_text.encode("utf-8", "replace"))


def join_content(content: Any, separator: str = "") -> str:
    """Return the content of a MIME type, or a field of an error, as one string.

    A list of lines is joined, and any other value is formatted as JSON.
    """
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(line, str) for line in content):
        return separator.join(content)
    return json.dumps(content, default=str)
