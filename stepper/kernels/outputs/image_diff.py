"""Comparison of two images by their pixels.

Pillow is imported only when two different images are compared for the first time.
"""

from __future__ import annotations

import base64
import io
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image

# A cell may display anything, so no other decoders get its data.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
MAX_PIXELS = 50_000_000
# Another machine may round colors differently. Differences of up to ROUNDING_ERROR (of
# 255) are ignored if at most MAX_ROUNDED_SHARE of the pixels have them.
ROUNDING_ERROR = 3
MAX_ROUNDED_SHARE = 0.01


def compare_pixels(first: str, second: str) -> float | None:
    """Return the fraction of pixels in which two base64-encoded images differ.

    Return 1.0 if the images have different sizes, or None if an image is animated, too
    large or cannot be decoded.
    """
    if first == second:
        return 0.0
    try:
        return _compare_images(_open_image(first), _open_image(second))
    except Exception:  # noqa: BLE001  # decoders raise exceptions of many types
        return None


def _open_image(text: str) -> Image.Image:
    """Open a base64-encoded image."""
    from PIL import Image

    data = base64.b64decode(text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        return Image.open(io.BytesIO(data), formats=FORMATS)


def _compare_images(first: Image.Image, second: Image.Image) -> float | None:
    """Return the fraction of pixels that differ, or None if they cannot be compared."""
    from PIL import ImageChops

    if first.size != second.size:
        return 1.0
    if _is_animated(first) or _is_animated(second):
        return None
    pixel_count = first.width * first.height
    if pixel_count > MAX_PIXELS:
        return None
    before = first.convert("RGBA")
    after = second.convert("RGBA")
    bands = ImageChops.difference(before, after).split()
    # The largest difference of each pixel's red, green, blue and alpha.
    largest_differences = bands[0]
    for band in bands[1:]:
        largest_differences = ImageChops.lighter(largest_differences, band)
    counts = largest_differences.histogram()
    first_visible = ROUNDING_ERROR + 1
    different_count = sum(counts[first_visible:])
    rounded_count = sum(counts[1:first_visible])
    if rounded_count > MAX_ROUNDED_SHARE * pixel_count:
        different_count += rounded_count
    return different_count / pixel_count


def _is_animated(image: Image.Image) -> bool:
    """Return whether an image has several frames."""
    return getattr(image, "n_frames", 1) > 1
