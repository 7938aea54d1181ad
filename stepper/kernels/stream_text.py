"""The text of a stream as it arrives: bounded, and redrawn where carriage returns and the like go back in it.

What is left is what JupyterLab shows: `\r` goes to the line's beginning, `\b` a character back, and what comes then is
written over what stood there. Other than there, a line with colours is written anew as a whole, and a cursor that goes
up (several bars of tqdm's) does so.
"""

from __future__ import annotations

import re
from collections import deque
from itertools import islice
from typing import TypeVar

from stepper.common.text import TRUNCATED

WHY = TRUNCATED
GAP = re.compile(rf"\n… ([\d,]+) characters {re.escape(WHY)}\n")
UP = re.compile(r"\x1b\[(\d{0,3})A")
LINE, ROWS = 1 << 16, 100  # how many characters, and lines, can be gone back
# characters at once, with moves of a cursor or without: none is a bar, and to
LARGE, TOO_LARGE = 1 << 18, 1 << 23
# draw them would take the time that the daemon has for others
Same = TypeVar("Same", bound="Text")


class Text:
    """A text, bounded while it arrives: the head and the tail stay, the middle is counted."""

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head: list[str] = []
        self.head_size = 0
        self.tail: deque[str] = deque()
        self.tail_size = 0
        self.left_out = 0

    @classmethod
    def of(cls: type[Same], value: str, limit: int, cut: bool) -> Same:
        """Return a text as the notebook holds it; where it was `cut`, a line in it says how much was left out."""
        made, gap = cls(limit), GAP.search(value) if cut else None
        if gap is None:
            made.add(value)
        else:
            head, tail = value[: gap.start()], value[gap.end() :]
            made.head, made.head_size, made.tail, made.tail_size = (
                [head],
                len(head),
                deque([tail]),
                len(tail),
            )
            made.left_out = int(gap[1].replace(",", ""))
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

    def within(self: Same, limit: int) -> Same:
        """Return the same text with a smaller limit."""
        less = type(self)(limit)
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


class Stream(Text):
    """A stream's text. `is_bar`: its last line was drawn by going back in it, and may be drawn again."""

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.is_bar = False
        # where the next character goes, in lines from the last; -1: to the end
        self.up, self.column = 0, -1

    def add(self, text: str) -> None:
        """Take the next piece."""
        if "\r" in text:
            text = text.replace("\r\n", "\n")
        cursor = "\b" in text or ("\x1b[" in text and UP.search(text))
        if len(text) > (LARGE if cursor else TOO_LARGE):
            self.up, self.column, self.is_bar = 0, -1, False
        elif cursor or "\r" in text or self.up or self.column >= 0:
            rises = sum(int(lines or 1) for lines in UP.findall(text))
            rows = self._taken_back(min(self.up + 1 + rises, ROWS))
            row = max(0, len(rows) - 1 - self.up)
            row, column = drawn(
                rows, row, len(rows[row]) if self.column < 0 else self.column, text
            )
            self.up = len(rows) - 1 - row
            self.column = -1 if not self.up and column == len(rows[row]) else column
            self.is_bar = (
                bool(self.up)
                or text.rfind("\r") > text.rfind("\n")
                or (self.is_bar and "\n" not in text)
            )
            text = "\n".join(rows)
        else:
            self.is_bar = self.is_bar and "\n" not in text
        super().add(text)

    def last_line(self) -> str:
        """Return the last line that is not blank, or what is near."""
        return next((line for line in reversed(self.last_lines()) if line.strip()), "")

    def last_lines(self) -> list[str]:
        """Return the last lines, of 4,000 characters at most."""
        ends = [*islice(reversed(self.tail), 200), *islice(reversed(self.head), 200)][
            :200
        ]
        return "".join(reversed(ends))[-4000:].split("\n")

    def _taken_back(self, count: int) -> list[str]:
        """Take the last lines out of the text, as far as they are there; return them."""
        pieces, size, lines = deque[str](), 0, 0
        for held in (self.tail,) if self.left_out else (self.tail, self.head):
            while held and lines < count and size < LINE * count:
                piece = held.pop()
                at = len(piece)
                while lines < count and at >= 0:
                    at = piece.rfind("\n", 0, at)
                    lines += at >= 0
                begin = at + 1 if lines == count else 0
                pieces.appendleft(piece[begin:])
                size += len(piece) - begin
                if begin:
                    held.append(piece[:begin])
                if held is self.tail:
                    self.tail_size -= len(piece) - begin
                else:
                    self.head_size -= len(piece) - begin
        return "".join(pieces).split("\n")


def drawn(rows: list[str], row: int, column: int, text: str) -> tuple[int, int]:
    """Write a text into lines, from that place on; return the place that it ends at."""
    for number, line in enumerate(text.split("\n")):
        if number:
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        for turn, part in enumerate(UP.split(line)):
            if turn % 2:
                row = max(0, row - int(part or 1))
            elif part:
                rows[row], column = _line(rows[row], column, part)
    return row, column


def _line(line: str, column: int, text: str) -> tuple[str, int]:
    """Return a line after a text was written into it from that column on, and the column that it ends at."""
    first, *others = text.split("\r")
    if "\b" in text:
        line, column = _with_backspaces(line, column, first)
        for part in others:
            line, column = _with_backspaces(line, 0, part)
        return line, column
    if first:
        line, column = (
            _over(line[:column].ljust(column) + first, line),
            column + len(first),
        )
    if others:
        column, longest = len(others[-1]), max(len(line), *map(len, others))
        drawn = ""
        # the last one first: what it covers need not be looked at
        for part in (*reversed(others), line):
            drawn = _over(drawn, part)
            if len(drawn) >= longest or "\x1b" in drawn:
                break
        line = drawn
    return line, column


def _over(text: str, line: str) -> str:
    """Return a text with what is seen of the line below it: nothing where one of the two has colours."""
    return (
        text
        if len(text) >= len(line) or "\x1b" in text or ("\x1b" in line and text)
        else text + line[len(text) :]
    )


def _with_backspaces(line: str, column: int, text: str) -> tuple[str, int]:
    characters = list(line)
    for back, part in re.findall(r"(\x08*)([^\x08]*)", text):
        column = max(0, column - len(back))
        characters[column : column + len(part)] = part
        column += len(part)
    return "".join(characters), column
