"""One output within a limit: a text keeps head and tail, what is too large is replaced by a line that says so."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from typing import Any

import orjson

from stepper.kernel.pictures import picture_in
from stepper.session.ports import NOTHING, LeftOut

EACH = 110  # bytes that an output takes besides what it holds, as Jupyter writes it
LINE = 9  # … and each line of a text
LARGE = 8 << 20  # characters whose escapes are not counted
RESULT = "execute_result"
WHY = "left out by stepper (max_output_bytes) …"
GAP = re.compile(rf"\n… ([\d,]+) characters {re.escape(WHY)}\n")
GAPS = re.compile(rf"… ([\d,]+) outputs \(([\d,]+) bytes\) {re.escape(WHY)}\n")


class Text:
    """A stream's text, bounded while it arrives: the head and the tail stay, the middle is counted."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head: list[str] = []
        self.head_size = 0
        self.tail: deque[str] = deque()
        self.tail_size = 0
        self.left_out = 0

    @classmethod
    def of(cls, value: str, limit: int, cut: bool = False) -> Text:
        """Return a text as the notebook holds it; where it was `cut`, a line in it says how much was left out."""
        made, gap = cls(limit), GAP.search(value) if cut else None
        if gap is None:
            made.add(value)
        else:
            head, tail = value[: gap.start()], value[gap.end() :]
            made.head, made.head_size, made.tail, made.tail_size = [head], len(head), deque([tail]), len(tail)
            made.left_out = number(gap[1])
        return made

    def add(self, text: str) -> None:
        """Take the next piece."""
        begin = 0
        if self.head_size < self.half and not self.tail and not self.left_out:
            begin = min(len(text), self.half - self.head_size)
            self.head.append(text[:begin])
            self.head_size += begin
        self.left_out += max(0, len(text) - begin - self.half)
        text = text[max(begin, len(text) - self.half) :]
        if text:
            self.tail.append(text)
            self.tail_size += len(text)
        while self.tail_size > self.half:
            over = self.tail_size - self.half
            first = self.tail.popleft()
            if len(first) > over:
                self.tail.appendleft(first[over:])
            cut = min(len(first), over)
            self.tail_size -= cut
            self.left_out += cut

    def within(self, limit: int) -> Text:
        """Return the same text with a smaller limit."""
        less = Text(limit)
        for piece in self.head:
            less.add(piece)
        less.left_out += self.left_out  # from here on nothing goes to the head
        for piece in self.tail:
            less.add(piece)
        return less

    def value(self) -> str:
        """Return the text, with a line that says how much was left out."""
        gap = f"\n… {self.left_out:,} characters {WHY}\n" if self.left_out else ""
        return "".join(self.head) + gap + "".join(self.tail)


@dataclass
class Entry:
    """One output. A stream's text grows, a display is replaced; `picture` also holds one too large for the notebook."""

    output: dict[str, Any]
    size: int
    text: Text | None = None
    picture: dict[str, Any] | None = None
    cut: LeftOut = NOTHING  # of what is no stream

    @property
    def missing(self) -> LeftOut:
        """What was left out of it."""
        return LeftOut(self.text.left_out) if self.text is not None else self.cut

    @property
    def whole(self) -> LeftOut:
        """What is left out with it."""
        if self.cut.outputs:
            return self.cut
        texts = [self.text] if self.text is not None else self.of_error()
        return LeftOut(sum(text.left_out + text.head_size + text.tail_size for text in texts), 1, self.size)

    def of_error(self) -> list[Text]:
        """Return an error's message and traceback; nothing where it is none."""
        said = [self.output.get("evalue"), self.output.get("traceback")]
        texts = [text_of(part) for part in said] if self.output["output_type"] == "error" else []
        return [Text.of(text, 2 * len(text), bool(self.cut)) for text in texts]

    def within(self, limit: int) -> Entry:
        """Return it, or the next best, within `limit` bytes, rendered for the notebook."""
        return _stream(self.output["name"], self.text, limit) if self.text is not None else shortened(self, limit)

    @property
    def result(self) -> bool:
        """Whether it is what the cell's last line was worth."""
        return bool(self.output["output_type"] == RESULT)

    @property
    def held(self) -> int:
        """How many bytes it takes here."""
        apart = self.picture is not None and self.picture is not self.output
        return self.size + (len(picture_in(self.picture or {})) if apart else 0)


def size(output: dict[str, Any]) -> int:
    """Return how many bytes an output takes in the notebook, near enough."""
    held = [output.get("text"), output.get("evalue"), output.get("traceback"), *(output.get("data") or {}).values()]
    return EACH + sum(_taken(content) for content in held if content)


def left_out(what: str) -> dict[str, Any]:
    """Return an output that says what is not there."""
    return {"output_type": "stream", "name": "stderr", "text": f"… {what} {WHY}\n"}


def number(text: str) -> int:
    """Return a number that was written for people."""
    return int(text.replace(",", ""))


def _stream(name: str, text: Text, limit: int) -> Entry:
    """Return a stream's output within `limit` bytes: what a character takes is only known of the whole text."""
    output = {"output_type": "stream", "name": name, "text": text.value()}
    while (taken := size(output)) > limit and text.half > 1:
        text = text.within(int(0.95 * (text.head_size + text.tail_size) * limit / taken))
        output["text"] = text.value()
    return Entry(output, taken, text)


def shortened(entry: Entry, limit: int) -> Entry:
    """Return an output that is no stream, or the next best within `limit` bytes."""
    output = entry.output
    if entry.size <= limit or output["output_type"] == "stream":  # which says already what was left out
        return entry
    data = output.get("data")
    if data is not None:
        sizes = {mime: len(text_of(content)) for mime, content in data.items()}
        made = left_out(", ".join(f"{mime} of {taken:,} bytes" for mime, taken in sizes.items()))
        return Entry(made, size(made), None, entry.picture, LeftOut(0, 1, sum(sizes.values())))
    # characters of at most 6 bytes
    parts = [text.within(room) for text, room in zip(entry.of_error(), (limit // 24, limit // 12), strict=True)]
    made = {**output, "evalue": parts[0].value(), "traceback": parts[1].value().split("\n")}
    return Entry(made, size(made), None, None, LeftOut(sum(part.left_out for part in parts)))


def text_of(content: Any, between: str = "\n") -> str:
    """Return what a mime bundle or an error holds as text."""
    if isinstance(content, str):
        return content
    lines = isinstance(content, list) and all(isinstance(line, str) for line in content)
    return between.join(content) if lines else json.dumps(content)


def _taken(content: Any) -> int:
    if isinstance(content, str) and len(content) > LARGE:
        return len(content)
    try:
        lines = LINE * content.count("\n") if isinstance(content, str) else 0
        return len(orjson.dumps(content)) + lines
    except TypeError:  # lone surrogates
        return len(json.dumps(content))
