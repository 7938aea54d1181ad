"""Copies of a run's images for the agent: PNG files in a folder of the notebook.

The copies are small enough for a client to read. Pillow is imported with the first
image, because a daemon without images does not need it.
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
from stepper.session.diagnosis_protocol import FigureRequest

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FILES = 200  # of one notebook
UNKNOWN_RUN = 0  # in the name of a file that contains the image's key
NOT_SAVED_YET = "read the notebook again to save it"
LONG_EDGE = 1568  # pixels: clients scale larger images down to this anyway
MAX_PIXELS = 50_000_000  # of an image: 200 MB in memory
MAX_COLOR_PIXELS = 20_000_000  # of an image whose colors are checked
FILE_NAME = re.compile(r"\d{4,}-(?:plotly-)?\d+\.png")
# Only these of Pillow's decoders read content that a cell displayed.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP")


class UnreadableError(Exception):
    """Raised for an image that cannot be shown. The message is the reason."""


class PreparedImage(NamedTuple):
    """An image for the agent: its original size in pixels, and its content as PNG."""

    width: int
    height: int
    is_single_color: bool
    png: bytes


class SavedImages:
    """The saved images of one notebook, in a folder below `.stepper/figures/`."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def save(self, outputs: Sequence[Mapping[str, Any]], run: int) -> list[SavedImage]:
        """Save the first images of a run, and return an entry for each image.

        `run` is the number of the run. An image that is shown twice has equal entries.
        If an image cannot be saved, its entry contains the reason.
        """
        saved: dict[int, SavedImage] = {}
        keys = []
        for output in outputs:
            text = get_image(output)
            if not text:
                continue
            key = get_image_key(text)
            keys.append(key)
            if key not in saved and len(saved) < MAX_SAVED_IMAGES:
                name = _format_name(run, len(saved) + 1)
                saved[key] = self._save_image(text, key, name)
        if saved:
            with suppress(OSError):
                self._remove_old_files()
        images = []
        for key in keys:
            skipped = SavedImage(reason=NOT_SAVED, key=key)
            image = saved.get(key, skipped)
            images.append(image)
        return images

    def list_paths(self, run: int) -> list[str]:
        """Return the paths of the saved images of a run, in order."""
        paths = []
        for number in range(1, MAX_SAVED_IMAGES + 1):
            name = _format_name(run, number)
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                paths.append(path)
        return paths

    def find_or_save(
        self,
        outputs: Sequence[Mapping[str, Any]],
        run: int | None,
        request: FigureRequest,
    ) -> list[SavedImage]:
        """Return an entry for each image among the recorded outputs of a cell.

        The files of the run with the number `run` are used if they exist. Other images
        are saved in files with the keys of the images in their names. `request` limits
        the time and the number of files: its `max_files` is decreased for each distinct
        image.
        """
        images = []
        saved: dict[int, SavedImage] = {}
        for output in outputs:
            text = get_image(output)
            if not text:
                continue
            key = get_image_key(text)
            has_room = len(saved) < MAX_SAVED_IMAGES and request.max_files > 0
            if key not in saved and not has_room:
                images.append(SavedImage(reason=NOT_SAVED, key=key))
                continue
            if key not in saved:
                path = ""
                if run is not None:
                    name = _format_name(run, len(saved) + 1)
                    path = os.path.join(self.folder, name)
                saved[key] = self._find_or_save(text, key, path, request.deadline)
                request.max_files -= 1
            images.append(saved[key])
        return images

    def _find_or_save(
        self, text: str, key: int, path: str, deadline: float
    ) -> SavedImage:
        """Return the entry of an image.

        `path` is the image's file in its run, or empty if the run is unknown. If this
        file does not exist, the image gets a file with its key in the name, which is
        saved unless it exists or the deadline has passed. Old files are then removed.
        """
        if path and os.path.exists(path):
            return SavedImage(path=path, key=key)
        name = _format_name(UNKNOWN_RUN, key)
        key_path = os.path.join(self.folder, name)
        if os.path.exists(key_path):
            return SavedImage(path=key_path, key=key)
        if time.monotonic() > deadline:
            return SavedImage(reason=NOT_SAVED_YET, key=key)
        image = self._save_image(text, key, name)
        with suppress(OSError):
            self._remove_old_files()
        return image

    def _save_image(self, text: str, image_key: int, name: str) -> SavedImage:
        """Save a base64 image in the file `name`, and return the entry of the image.

        If the image cannot be saved, the entry contains the reason.
        """
        try:
            image = prepare_image(text)
        except UnreadableError as error:
            return SavedImage(reason=str(error), key=image_key)
        path = os.path.join(self.folder, name)
        reason = ""
        try:
            secure_files.replace(path, image.png)
        except OSError as error:
            path = ""
            reason = f"cannot write the file: {error.strerror or error}"
        return SavedImage(
            path=path,
            width=image.width,
            height=image.height,
            single_color=image.is_single_color,
            reason=reason,
            key=image_key,
        )

    def _remove_old_files(self) -> None:
        """Remove the oldest images if there are more than MAX_FILES."""
        now = time.time_ns()
        files = []
        for name, status in secure_files.list_files(self.folder):
            if not FILE_NAME.fullmatch(name):
                continue
            modified = status.st_mtime_ns
            # A file from the future was saved before the clock was set back.
            if modified > now:
                modified = 0
            files.append((modified, name))
        files.sort()
        for _, name in files[:-MAX_FILES]:
            path = os.path.join(self.folder, name)
            secure_files.remove(path)


def _format_name(run: int, number: int) -> str:
    """Return the file name of an image.

    `number` is the number of the image in the run, from 1, or the key of the image if
    `run` is UNKNOWN_RUN.
    """
    return f"{run:04d}-{number}.png"


def prepare_image(text: str) -> PreparedImage:
    """Decode a base64 image, and return it as PNG for the agent.

    Raise UnreadableError if the image is too large or cannot be decoded.
    """
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
            stream = io.BytesIO(data)
            image: Image.Image = Image.open(stream, formats=FORMATS)
        width, height = image.size
        pixel_count = width * height
        if pixel_count > MAX_PIXELS:
            raise Image.DecompressionBombError
        # Decode the whole image, because a client fails on a broken image.
        image.load()
        is_small = pixel_count <= MAX_COLOR_PIXELS
        has_single_color = is_small and is_single_color(image)
        fits = max(width, height) <= LONG_EDGE
        png = data
        if not fits or image.format != "PNG":
            png = convert_to_png(image)
        return PreparedImage(width, height, has_single_color, png)
    except Image.DecompressionBombError as error:
        raise UnreadableError("the image is too large") from error
    except Exception as error:  # decoders raise any class of exception
        name = type(error).__name__
        raise UnreadableError(f"the image cannot be decoded ({name})") from error


def is_single_color(image: Image) -> bool:
    """Return whether all pixels have the same color, or all are fully transparent."""
    extremes: Any = image.convert("RGBA").getextrema()
    _, max_opacity = extremes[3]
    if max_opacity == 0:
        return True
    return all(low == high for low, high in extremes)


def convert_to_png(image: Image) -> bytes:
    """Return an image as PNG with at most LONG_EDGE pixels on its long edge."""
    from PIL.Image import Resampling

    if image.mode.startswith("I"):
        # 16 bits, which convert() alone would clip.
        wide_image = image.convert("I")
        image = wide_image.point(lambda value: value / 256).convert("L")
    elif image.mode not in ("L", "RGB", "RGBA"):
        has_alpha = "A" in image.mode or "transparency" in image.info
        mode = "RGBA" if has_alpha else "RGB"
        image = image.convert(mode)
    image.thumbnail((LONG_EDGE, LONG_EDGE), Resampling.LANCZOS)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
