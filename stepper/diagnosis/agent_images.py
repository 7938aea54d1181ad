"""Copies of a run's images for the agent: PNG files in a folder of the notebook.

They are small enough for a client to read. Pillow is imported with the first image, so
that a daemon without images does not pay for it.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from stepper.common import secure_files
from stepper.diagnosis.figure_summary import NOT_SAVED, SavedImage
from stepper.kernels.outputs.output_images import (
    MAX_SAVED_IMAGES,
    get_image,
    get_image_key,
)

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FILES = 200  # of one notebook
LONG_EDGE = 1568  # pixels: clients scale larger images down to this anyway
MAX_PIXELS = 50_000_000  # of an image: 200 MB in memory
MAX_COLOR_PIXELS = 20_000_000  # of an image whose colors are checked
FILE_NAME = re.compile(r"\d{4,}-(?:plotly-)?\d+\.png")
# Content that a cell displayed reaches no other decoder.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


class UnreadableError(Exception):
    """An image that cannot be shown; the message is the reason."""


class PreparedImage(NamedTuple):
    """The size of an image in pixels, and its PNG for the agent."""

    width: int
    height: int
    is_single_color: bool
    png: bytes


class SavedImages:
    """The images of one notebook, in its folder below `.stepper/figures/`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def save(self, outputs: Sequence[Mapping[str, Any]], run: int) -> list[SavedImage]:
        """Save the first eight images of a run and return an entry for each image.

        No exception is raised for an image. One that is shown twice has equal entries.
        """
        saved: dict[int, SavedImage] = {}
        texts = [text for text in map(get_image, outputs) if text]
        for text in texts:
            image_key = get_image_key(text)
            if image_key not in saved and len(saved) < MAX_SAVED_IMAGES:
                name = f"{run:04d}-{len(saved) + 1}.png"
                saved[image_key] = self._save_image(text, image_key, name)
        if saved:
            with suppress(OSError):
                self._remove_old_files()
        images = []
        for image_key in map(get_image_key, texts):
            skipped = SavedImage(why=NOT_SAVED, key=image_key)
            images.append(saved.get(image_key, skipped))
        return images

    def list_paths(self, run: int) -> list[str]:
        """Return the paths of the saved images of a run, in order. Raise OSError."""
        names = [f"{run:04d}-{number}.png" for number in range(1, MAX_SAVED_IMAGES + 1)]
        paths = [os.path.join(self.folder, name) for name in names]
        return [path for path in paths if os.path.exists(path)]

    def _save_image(self, text: str, image_key: int, name: str) -> SavedImage:
        try:
            image = prepare_image(text)
        except UnreadableError as error:
            return SavedImage(why=str(error), key=image_key)
        path = os.path.join(self.folder, name)
        reason = ""
        try:
            secure_files.replace(path, image.png)
        except OSError as error:
            path = ""
            reason = f"cannot write the file: {error.strerror}"
        return SavedImage(
            path, image.width, image.height, image.is_single_color, reason, image_key
        )

    def _remove_old_files(self) -> None:
        now = time.time_ns()
        files = []
        for name, status in secure_files.list_files(self.folder):
            if FILE_NAME.fullmatch(name):
                modified = status.st_mtime_ns
                # A file from the future was saved before the clock was set back.
                if modified > now:
                    modified = 0
                files.append((modified, name))
        for _, name in sorted(files)[:-MAX_FILES]:
            secure_files.remove(os.path.join(self.folder, name))


def prepare_image(text: str) -> PreparedImage:
    """Decode a base64 image and return its PNG for the agent. Raise UnreadableError."""
    from PIL import Image

    try:
        data = base64.b64decode(text)
    except ValueError as error:
        raise UnreadableError("the output is not valid base64") from error
    if data.startswith(b"RIFF"):
        # Image.open() loads the other decoders itself.
        from PIL import WebPImagePlugin  # noqa: F401
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise Image.DecompressionBombError
        # Load all of it: a client fails on a broken image.
        image.load()
        is_small = width * height <= MAX_COLOR_PIXELS
        single_color = is_small and is_single_color(image)
        fits = max(width, height) <= LONG_EDGE
        png = data if fits and image.format == "PNG" else convert_to_png(image)
        return PreparedImage(width, height, single_color, png)
    except Image.DecompressionBombError as error:
        raise UnreadableError("the image is too large") from error
    except Exception as error:  # decoders raise any class of exception
        name = type(error).__name__
        raise UnreadableError(f"the image cannot be decoded ({name})") from error


def is_single_color(image: Image) -> bool:
    """Whether all pixels have the same color or are transparent."""
    extremes: Any = image.convert("RGBA").getextrema()
    is_transparent = extremes[3][1] == 0
    return is_transparent or all(low == high for low, high in extremes)


def convert_to_png(image: Image) -> bytes:
    """Return an image as PNG with at most LONG_EDGE pixels on its long edge."""
    from PIL.Image import Resampling

    if image.mode.startswith("I"):
        # 16 bits, which convert() alone would clip.
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    elif image.mode not in ("L", "RGB", "RGBA"):
        has_alpha = "A" in image.mode or "transparency" in image.info
        image = image.convert("RGBA" if has_alpha else "RGB")
    image.thumbnail((LONG_EDGE, LONG_EDGE), Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
