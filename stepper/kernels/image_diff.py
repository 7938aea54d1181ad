"""How far two pictures differ, pixel by pixel. Pillow is imported with the first two that are not the same bytes."""

from __future__ import annotations

import base64
import io
import warnings

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # no other decoder sees what a cell displayed
# of 255 what another machine's rounding makes of a colour, and of how many pixels
UNSEEN, EDGES = 3, 0.01
LARGEST = 50_000_000  # pixels


def differing(one: str, other: str) -> float | None:
    """Return the share of pixels by which two pictures (base64) differ; None where they move or can't be decoded."""
    from PIL import Image, ImageChops

    if one == other:
        return 0.0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            data = [io.BytesIO(base64.b64decode(text)) for text in (one, other)]
            images = [Image.open(each, formats=FORMATS) for each in data]
        if images[0].size != images[1].size:
            return 1.0
        moving = any(getattr(image, "n_frames", 1) > 1 for image in images)
        if moving or images[0].width * images[0].height > LARGEST:
            return None
        before, after = (image.convert("RGBA") for image in images)
        bands = ImageChops.difference(before, after).split()
    except Exception:  # noqa: BLE001  # the decoders raise whatever they stumble over
        return None
    most = bands[0]
    for band in bands[1:]:
        most = ImageChops.lighter(most, band)
    counts, pixels = most.histogram(), before.width * before.height
    faint, seen = sum(counts[1 : UNSEEN + 1]), sum(counts[UNSEEN + 1 :])
    return (seen + (faint if faint > EDGES * pixels else 0)) / pixels
