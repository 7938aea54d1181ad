"""The agent's copies of a run's pictures: PNG files in a folder of the notebook's own, small enough to be read.

Pillow is imported with the first picture: a daemon that sees none does not pay for it.
"""

from __future__ import annotations

import base64
import io
import os
import re
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stepper.common import private_files
from stepper.diagnosis.figure_summary import MANY, Saved
from stepper.kernels.output_images import LOOKED_AT, key, picture_in

if TYPE_CHECKING:
    from PIL.Image import Image

KEPT = 200  # files of a notebook
LONG_EDGE = 1568  # pixels: the client would make it smaller than this anyway
LARGEST = 50_000_000  # pixels; unpacked they take 200 MB
COUNTED = 20_000_000  # pixels of a picture whose colours are looked at
OURS = re.compile(r"\d{4,}-(?:plotly-)?\d+\.png")
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")  # no other decoder sees what a cell displayed


class UnreadableError(Exception):
    """A picture that can't be shown, and why."""


class Figures:
    """The pictures of one notebook, in its folder under `.stepper/figures/`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def save(self, outputs: Sequence[Mapping[str, Any]], run: int) -> list[Saved]:
        """Save the first eight pictures of a run's outputs; return what became of each, never raise for one.

        A picture that is shown again is the same `Saved` again.
        """
        saved: dict[int, Saved] = {}
        texts = [text for text in map(picture_in, outputs) if text]
        for text in texts:
            mark = key(text)
            if mark not in saved and len(saved) < LOOKED_AT:
                saved[mark] = self._one(text, mark, f"{run:04d}-{len(saved) + 1}.png")
        if saved:
            with suppress(OSError):
                self._prune()
        return [
            saved.get(mark) or Saved(why=MANY, key=mark) for mark in map(key, texts)
        ]

    def of(self, run: int) -> list[str]:
        """Return the paths of the pictures that are kept of a run, in order; raise OSError."""
        names = [f"{run:04d}-{number}.png" for number in range(1, LOOKED_AT + 1)]
        return [
            path
            for path in (os.path.join(self.folder, name) for name in names)
            if os.path.exists(path)
        ]

    def _one(self, text: str, mark: int, name: str) -> Saved:
        try:
            width, height, single, content = looked_at(text)
        except UnreadableError as error:
            return Saved(why=str(error), key=mark)
        path, why = os.path.join(self.folder, name), ""
        try:
            private_files.replace(path, content)
        except OSError as error:
            path, why = "", f"it can't be written: {error.strerror}"
        return Saved(path, width, height, single, why, mark)

    def _prune(self) -> None:
        now = time.time_ns()
        found = [
            (about.st_mtime_ns, name)
            for name, about in private_files.list_files(self.folder)
            if OURS.fullmatch(name)
        ]
        # What is of the future was saved before the clock was set back.
        for _, name in sorted(
            (when if when <= now else 0, name) for when, name in found
        )[:-KEPT]:
            private_files.remove(os.path.join(self.folder, name))


def looked_at(text: str) -> tuple[int, int, bool, bytes]:
    """Return a picture's size, whether it is of one colour, and the PNG for the agent; raise UnreadableError."""
    from PIL import Image

    try:
        data = base64.b64decode(text)
    except ValueError as error:
        raise UnreadableError("it is not base64") from error
    if data.startswith(b"RIFF"):  # Image.open knows the others' decoders
        from PIL import WebPImagePlugin  # noqa: F401
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > LARGEST:
            raise Image.DecompressionBombError
        image.load()  # all of it: a client that is given a broken picture stops
        single = width * height <= COUNTED and is_single_coloured(image)
        small = max(width, height) <= LONG_EDGE
        return (
            width,
            height,
            single,
            data if small and image.format == "PNG" else as_png(image),
        )
    except Image.DecompressionBombError as error:
        raise UnreadableError("too large to look at") from error
    except Exception as error:  # the decoders raise whatever they stumble over
        raise UnreadableError(
            f"it can't be decoded ({type(error).__name__})"
        ) from error


def is_single_coloured(image: Image) -> bool:
    """Whether every pixel has the same colour, or none can be seen."""
    extremes: Any = image.convert("RGBA").getextrema()
    return extremes[3][1] == 0 or all(low == high for low, high in extremes)


def as_png(image: Image) -> bytes:
    """Return a picture as PNG, at most LONG_EDGE pixels on its long edge."""
    from PIL.Image import Resampling

    if image.mode.startswith("I"):  # 16 bits, which a mere conversion would clip
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    elif image.mode not in ("L", "RGB", "RGBA"):
        image = image.convert(
            "RGBA" if "A" in image.mode or "transparency" in image.info else "RGB"
        )
    image.thumbnail((LONG_EDGE, LONG_EDGE), Resampling.LANCZOS)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
