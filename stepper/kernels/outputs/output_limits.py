"""One output of a cell, within a size limit in bytes.

The beginning and the end of a long text are stored. A display that is too large is
replaced by a line that reports its size.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from stepper.common.text import TRUNCATED, format_count
from stepper.kernels.outputs.output_images import get_image, join_content
from stepper.kernels.outputs.stream_text import (
    OMITTED_CHARACTERS,
    BoundedText,
    StreamText,
)
from stepper.policy.model import NOTHING_OMITTED, OmittedOutput

# Bytes in the notebook file, as Jupyter writes it.
OUTPUT_BYTES = 110  # of an output without its content
LINE_BYTES = 9  # of a line without its text
# Above this number of characters, escape sequences are not counted: that would block
# the daemon for too long.
MAX_ENCODED = 8 << 20
MAX_CHARACTER_BYTES = 6  # of an escaped character
NAME_CHARACTERS = 200  # of the name of an error that is too large
Output = dict[str, Any]  # as in nbformat


@dataclass(slots=True)
class Entry:
    """One output in an output area.

    `size` is the size of the output in the notebook, in bytes. `text` is the growing
    text of a stream. `image` is the complete output if it contains an image, even if
    the output is too large for the notebook. `removed` counts the outputs, characters
    and bytes that were removed from an output that is not a stream.
    """

    output: Output
    size: int
    text: StreamText | None = None
    image: Output | None = None
    removed: OmittedOutput = NOTHING_OMITTED

    @classmethod
    def from_output(cls, output: Output, text: StreamText | None = None) -> Entry:
        """Return the entry of a complete output. `text` is set for a stream."""
        image = output if get_image(output) else None
        return cls(output, measure_output(output), text, image)

    @property
    def omitted(self) -> OmittedOutput:
        """The omissions in the entry, compared with the output that the kernel sent."""
        if self.text is None:
            return self.removed
        return OmittedOutput(self.text.omitted_characters)

    @property
    def total(self) -> OmittedOutput:
        """The omissions in the notebook if the whole entry is dropped."""
        if self.removed.outputs:
            return self.removed
        characters = self.omitted.characters + self._count_characters()
        return OmittedOutput(characters, outputs=1, bytes=self.size)

    def _count_characters(self) -> int:
        """Return the number of characters in a stream or an error, 0 for a display."""
        if self.text is not None:
            return self.text.head_size + self.text.tail_size
        texts = get_error_texts(self.output)
        return sum(len(OMITTED_CHARACTERS.sub("", text)) for text in texts)

    @property
    def held_bytes(self) -> int:
        """The number of bytes that the entry takes in memory."""
        image = self.image
        if image is None or image is self.output:
            return self.size
        return self.size + len(get_image(image))

    def shorten(self, limit: int) -> Entry:
        """Return an entry for the notebook with at most `limit` bytes."""
        if self.text is not None:
            return self._shorten_stream(self.text, limit)
        # An output that was shortened before reports what was removed.
        if self.size <= limit or self.removed:
            return self
        is_error = self.output["output_type"] == "error"
        if is_error and "data" not in self.output:
            return self._shorten_error(limit)
        return self._replace_display()

    def _shorten_stream(self, text: StreamText, limit: int) -> Entry:
        """Return the entry of a stream with at most `limit` bytes.

        Several attempts may be needed, because characters differ in size.
        """
        output = self.output | {"text": text.render()}
        size = measure_output(output)
        while size > limit and text.half > 1:
            characters = text.head_size + text.tail_size
            max_characters = 0.95 * characters * limit / size
            text = text.shorten(int(max_characters))
            output["text"] = text.render()
            size = measure_output(output)
        return Entry(output, size, text)

    def _replace_display(self) -> Entry:
        """Return an entry with a note in place of the display.

        The note lists the MIME types of the display and their sizes. An output of an
        unknown type, without MIME types, is described by its size.
        """
        descriptions = []
        total = 0
        data = self.output.get("data") or {}
        for mime_type, content in data.items():
            text = join_content(content)
            byte_count = len(text.encode("utf-8", "replace"))
            descriptions.append(f"{mime_type} of {format_count(byte_count, 'byte')}")
            total += byte_count
        if not descriptions:
            descriptions.append(f"output of {format_count(self.size, 'byte')}")
            total = self.size
        note = build_omission_note(", ".join(descriptions))
        omission = OmittedOutput(outputs=1, bytes=total)
        size = measure_output(note)
        return Entry(note, size, image=self.image, removed=omission)

    def _shorten_error(self, limit: int) -> Entry:
        """Return the entry of an error with a shortened name, message and traceback."""
        texts = get_error_texts(self.output)
        max_characters = limit // MAX_CHARACTER_BYTES
        name = BoundedText(NAME_CHARACTERS)
        name.add(join_content(self.output.get("ename", "")))
        message = BoundedText(max_characters // 4)
        message.add(texts[0])
        traceback = BoundedText(max_characters // 2)
        traceback.add(texts[1])
        output = {
            **self.output,
            "ename": name.render(),
            "evalue": message.render(),
            "traceback": traceback.render().split("\n"),
        }
        removed_count = sum(
            text.omitted_characters for text in (name, message, traceback)
        )
        size = measure_output(output)
        return Entry(output, size, removed=OmittedOutput(removed_count))


def get_error_texts(output: Output) -> list[str]:
    """Return the message and the traceback of an error.

    Return an empty list for other outputs.
    """
    if output["output_type"] != "error":
        return []
    message = join_content(output.get("evalue", ""), "\n")
    traceback = join_content(output.get("traceback", ""), "\n")
    return [message, traceback]


def measure_output(output: Output) -> int:
    """Return the approximate size of an output in the notebook file, in bytes."""
    contents = [
        output.get("text"),
        output.get("ename"),
        output.get("evalue"),
        output.get("traceback"),
    ]
    data = output.get("data")
    if data:
        contents += data.values()
    size = OUTPUT_BYTES
    for content in contents:
        if content:
            size += _measure_content(content)
    return size


def _measure_content(content: Any) -> int:
    """Return the approximate size of a value in the notebook file, in bytes."""
    line_bytes = 0
    if isinstance(content, str):
        if len(content) > MAX_ENCODED:
            return len(content)
        line_bytes = LINE_BYTES * content.count("\n")
    try:
        return len(orjson.dumps(content)) + line_bytes
    except TypeError:  # lone surrogates, or integers of more than 64 bits
        return len(json.dumps(content)) + line_bytes


def build_omission_note(description: str) -> Output:
    """Return an output with a line that describes what was omitted."""
    return {
        "output_type": "stream",
        "name": "stderr",
        "text": f"… {description} {TRUNCATED}\n",
    }
