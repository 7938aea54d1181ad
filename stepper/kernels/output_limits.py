"""One output within a limit: a text keeps head and tail, what is too large is replaced by a line that says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import orjson

from stepper.kernels.output_images import content_text, picture_in
from stepper.kernels.stream_text import GAP, WHY, Stream, Text
from stepper.policy.model import NOTHING_OMITTED, OmittedOutput

EACH = 110  # bytes that an output takes besides what it holds, as Jupyter writes it
LINE = 9  # … and each line of a text
# characters whose escapes are not counted: it would take as long as the daemon has for
# others
LARGE = 8 << 20


@dataclass(slots=True)
class Entry:
    """One output. A stream's text grows, a display is replaced; `picture` also holds one too large for the notebook."""

    output: dict[str, Any]
    size: int
    text: Stream | None = None
    picture: dict[str, Any] | None = None
    cut: OmittedOutput = NOTHING_OMITTED  # of what is no stream

    @classmethod
    def of(cls, output: dict[str, Any], text: Stream | None = None) -> Entry:
        """Return an output, whole."""
        return cls(output, size(output), text, output if picture_in(output) else None)

    @property
    def missing(self) -> OmittedOutput:
        """What was left out of it."""
        return OmittedOutput(self.text.left_out) if self.text is not None else self.cut

    @property
    def whole(self) -> OmittedOutput:
        """What is left out with it."""
        if self.cut.outputs:
            return self.cut
        if self.text is not None:
            shown = self.text.head_size + self.text.tail_size
        else:
            shown = sum(len(GAP.sub("", text)) for text in error_texts(self.output))
        return OmittedOutput(self.missing.characters + shown, 1, self.size)

    @property
    def held(self) -> int:
        """How many bytes it takes here."""
        apart = None if self.picture is self.output else self.picture
        return self.size + len(picture_in(apart or {}))

    def within(self, limit: int) -> Entry:
        """Return it, or the next best, within `limit` bytes, rendered for the notebook."""
        if self.text is not None:
            return self._stream(self.text, limit)
        if self.size <= limit or self.cut:  # which says already what was left out
            return self
        if "data" in self.output:
            sizes = {
                mime: len(content_text(content))
                for mime, content in self.output["data"].items()
            }
            made = left_out(
                ", ".join(f"{mime} of {taken:,} bytes" for mime, taken in sizes.items())
            )
            return Entry(
                made,
                size(made),
                None,
                self.picture,
                OmittedOutput(0, 1, sum(sizes.values())),
            )
        # characters of at most 6 bytes
        rooms = zip(error_texts(self.output), (limit // 24, limit // 12), strict=False)
        parts = [Text.of(text, room, cut=False) for text, room in rooms]
        made = {
            **self.output,
            "evalue": parts[0].value(),
            "traceback": parts[1].value().split("\n"),
        }
        return Entry(
            made,
            size(made),
            None,
            None,
            OmittedOutput(sum(part.left_out for part in parts)),
        )

    def _stream(self, text: Stream, limit: int) -> Entry:
        """Return a stream's output within `limit` bytes: what a character takes is only known of the whole text."""
        output = {**self.output, "text": text.value()}
        while (taken := size(output)) > limit and text.half > 1:
            text = text.within(
                int(0.95 * (text.head_size + text.tail_size) * limit / taken)
            )
            output["text"] = text.value()
        return Entry(output, taken, text)


def error_texts(output: dict[str, Any]) -> list[str]:
    """Return an error's message and traceback; nothing where it is none."""
    if output["output_type"] != "error":
        return []
    return [content_text(output.get(part), "\n") for part in ("evalue", "traceback")]


def size(output: dict[str, Any]) -> int:
    """Return how many bytes an output takes in the notebook, near enough."""
    held = [
        output.get("text"),
        output.get("evalue"),
        output.get("traceback"),
        *(output.get("data") or {}).values(),
    ]
    return EACH + sum(_taken(content) for content in held if content)


def _taken(content: Any) -> int:
    if isinstance(content, str) and len(content) > LARGE:
        return len(content)
    lines = LINE * content.count("\n") if isinstance(content, str) else 0
    try:
        return len(orjson.dumps(content)) + lines
    except TypeError:  # lone surrogates
        return len(json.dumps(content)) + lines


def left_out(what: str) -> dict[str, Any]:
    """Return an output that says what is not there."""
    return {"output_type": "stream", "name": "stderr", "text": f"… {what} {WHY}\n"}
