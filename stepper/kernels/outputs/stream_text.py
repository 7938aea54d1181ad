"""The text of a stream, limited in size and with progress bars redrawn.

The result is the text that JupyterLab shows: a carriage return moves to the beginning
of the line, a backspace moves one character back, and later text overwrites earlier
text. There are two differences: a line with colors is replaced as a whole, and the
escape sequence that moves the cursor up is applied, because several tqdm bars use it.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import MutableSequence
from itertools import chain, islice
from typing import TypeVar

from stepper.common.text import TRUNCATED, format_count

OMITTED_CHARACTERS = re.compile(rf"\n… ([\d,]+) characters? {re.escape(TRUNCATED)}\n")
CURSOR_UP = re.compile(r"\x1b\[(\d{0,3})A")
# Backspaces and the text after them.
BACKSPACES = re.compile(r"(\x08*)([^\x08]*)")
# How much of the text can be redrawn.
MAX_LINE = 1 << 16  # average number of characters of a line
MAX_ROWS = 100
# A message with more characters is not a progress bar, and drawing it would block the
# daemon. The first limit is for texts with cursor movements.
MAX_CURSOR_TEXT = 1 << 18
MAX_REDRAWN_TEXT = 1 << 23
# How much of the end of the text is searched for the last lines.
MAX_END_PIECES = 200
MAX_END = 4000  # characters
AT_END = -1
Same = TypeVar("Same", bound="BoundedText")
Position = tuple[int, int]  # row and column


class BoundedText:
    """A growing text with a size limit.

    The beginning (`head`) and the end (`tail`) are stored, each up to half of the
    limit. The characters between them are counted in `omitted_characters`.
    """

    def __init__(self, limit: int) -> None:
        self.half = max(1, limit // 2)
        self.head: list[str] = []
        self.head_size = 0
        self.tail: deque[str] = deque()
        self.tail_size = 0
        self.omitted_characters = 0

    @classmethod
    def from_notebook(cls: type[Same], value: str, limit: int, *, is_cut: bool) -> Same:
        """Return the text of a stream in the notebook.

        `is_cut` is true if characters may have been omitted. A line of the text then
        contains their number.
        """
        text = cls(limit)
        omission = None
        if is_cut:
            omission = OMITTED_CHARACTERS.search(value)
        if omission is None:
            text.add(value)
            return text
        start, end = omission.span()
        head = value[:start]
        tail = value[end:]
        text.head.append(head)
        text.head_size = len(head)
        text.tail.append(tail)
        text.tail_size = len(tail)
        count = omission[1].replace(",", "")
        text.omitted_characters = int(count)
        return text

    def add(self, text: str) -> None:
        """Append a piece of text."""
        if self.head_size < self.half:
            text = self._add_to_head(text)
        excess = len(text) - self.half
        if excess > 0:
            text = text[excess:]
            self.omitted_characters += excess
        if text:
            self.tail.append(text)
            self.tail_size += len(text)
        while self.tail_size > self.half:
            self._drop_first_tail_piece()

    def _add_to_head(self, text: str) -> str:
        """Append text to the head until it is full, and return the remaining text.

        Nothing is appended if the tail has begun.
        """
        if self.tail or self.omitted_characters:
            return text
        room = self.half - self.head_size
        piece = text[:room]
        self.head.append(piece)
        self.head_size += len(piece)
        return text[room:]

    def _drop_first_tail_piece(self) -> None:
        """Drop the part of the tail's first piece that exceeds the limit."""
        excess = self.tail_size - self.half
        first = self.tail.popleft()
        if len(first) > excess:
            self.tail.appendleft(first[excess:])
        dropped_count = min(excess, len(first))
        self.tail_size -= dropped_count
        self.omitted_characters += dropped_count

    def shorten(self: Same, limit: int) -> Same:
        """Return a copy of the text with a smaller limit."""
        copy = type(self)(limit)
        for piece in self.head:
            copy.add(piece)
        # If the count is above 0, the following pieces are not added to the head.
        copy.omitted_characters += self.omitted_characters
        for piece in self.tail:
            copy.add(piece)
        return copy

    def render(self) -> str:
        """Return the text, with a line that reports how many characters are omitted."""
        pieces = [*self.head]
        if self.omitted_characters:
            count = format_count(self.omitted_characters, "character")
            pieces.append(f"\n… {count} {TRUNCATED}\n")
        pieces.extend(self.tail)
        return "".join(pieces)


class StreamText(BoundedText):
    """The text of stdout or stderr.

    `is_bar` is true if the last line is a progress bar: the line was redrawn, and it
    may be redrawn again.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.is_bar = False
        # Where the next character is written: how many lines above the last one, and
        # the column or AT_END.
        self.rows_up = 0
        self.column = AT_END

    def add(self, text: str) -> None:
        """Append a piece of text, or overwrite earlier text with it."""
        text = text.replace("\r\n", "\n")
        has_return = "\r" in text
        moves_cursor = "\b" in text
        if "\x1b[" in text and CURSOR_UP.search(text):
            moves_cursor = True
        is_at_end = self.column == AT_END and not self.rows_up
        max_size = MAX_CURSOR_TEXT if moves_cursor else MAX_REDRAWN_TEXT
        if len(text) > max_size:
            self.rows_up = 0
            self.column = AT_END
            self.is_bar = False
        elif moves_cursor or has_return or not is_at_end:
            text = self._redraw(text)
        elif self.is_bar and "\n" in text:
            self.is_bar = False
        super().add(text)

    def _redraw(self, text: str) -> str:
        """Remove the last lines, and return them with a text drawn over them.

        Also update the position of the next character and `is_bar`.
        """
        row_count = self.rows_up + 1
        for line_count in CURSOR_UP.findall(text):
            row_count += int(line_count or 1)
        row_count = min(row_count, MAX_ROWS)
        rows = self._pop_lines(row_count)
        last_row = len(rows) - 1
        cursor_row = last_row - self.rows_up
        row = max(0, cursor_row)
        column = self.column
        if column == AT_END:
            column = len(rows[row])
        row, column = draw_text(rows, row, column, text)
        last_row = len(rows) - 1
        if row == last_row and column == len(rows[row]):
            column = AT_END
        self.rows_up = last_row - row
        self.column = column
        last_return = text.rfind("\r")
        last_newline = text.rfind("\n")
        if self.rows_up or last_return > last_newline:
            self.is_bar = True
        elif last_newline >= 0:
            self.is_bar = False
        return "\n".join(rows)

    def get_last_line(self) -> str:
        """Return the last line that is not blank, or an empty string."""
        for line in reversed(self.get_last_lines()):
            if line.strip():
                return line
        return ""

    def get_last_lines(self) -> list[str]:
        """Return the last lines, with at most MAX_END characters in total."""
        tail_from_end = reversed(self.tail)
        head_from_end = reversed(self.head)
        pieces_from_end = chain(tail_from_end, head_from_end)
        pieces = list(islice(pieces_from_end, MAX_END_PIECES))
        pieces.reverse()
        text = "".join(pieces)
        end = text[-MAX_END:]
        return end.split("\n")

    def _pop_lines(self, count: int) -> list[str]:
        """Remove up to `count` lines from the end of the text and return them."""
        pieces: deque[str] = deque()
        size = 0
        missing_count = count
        parts: list[MutableSequence[str]] = [self.tail]
        if not self.omitted_characters:
            parts.append(self.head)
        for part in parts:
            while part and missing_count > 0 and size < MAX_LINE * count:
                piece = part.pop()
                start = find_line_start(piece, missing_count)
                if start:
                    part.append(piece[:start])
                    missing_count = 0
                else:
                    missing_count -= piece.count("\n")
                pieces.appendleft(piece[start:])
                removed_size = len(piece) - start
                size += removed_size
                if part is self.tail:
                    self.tail_size -= removed_size
                else:
                    self.head_size -= removed_size
        return "".join(pieces).split("\n")


def find_line_start(text: str, count: int) -> int:
    """Return the index in the text where its last `count` lines start."""
    index = len(text)
    for _ in range(count):
        index = text.rfind("\n", 0, index)
        if index < 0:
            return 0
    return index + 1


def draw_text(rows: list[str], row: int, column: int, text: str) -> Position:
    """Write a text over lines, starting at a position.

    The lines are changed in place. Return the position after the text.
    """
    first, *others = text.split("\n")
    row, column = draw_line(rows, row, column, first)
    for line in others:
        row += 1
        if row == len(rows):
            rows.append("")
        row, column = draw_line(rows, row, 0, line)
    return row, column


def draw_line(rows: list[str], row: int, column: int, text: str) -> Position:
    """Write a text without newlines over a line, starting at a position.

    The text may move the cursor up. Return the position after the text.
    """
    is_movement = False
    # Every second part is the number of lines of a cursor movement.
    for part in CURSOR_UP.split(text):
        if is_movement:
            row -= int(part or 1)
            row = max(0, row)
        elif part:
            line = rows[row]
            rows[row], column = overwrite_line(line, column, part)
        is_movement = not is_movement
    return row, column


def overwrite_line(line: str, column: int, text: str) -> tuple[str, int]:
    """Write a text over a line, starting at a column.

    Return the new line and the column after the text.
    """
    first, *others = text.split("\r")
    if "\b" in text:
        line, column = write_with_backspaces(line, column, first)
        for part in others:
            line, column = write_with_backspaces(line, 0, part)
        return line, column
    if first:
        prefix = line[:column]
        new_text = prefix.ljust(column) + first
        line = overlay(new_text, line)
        column = len(new_text)
    if others:
        line = overlay_all(line, others)
        last = others[-1]
        column = len(last)
    return line, column


def overlay_all(line: str, texts: list[str]) -> str:
    """Return a line after several texts were written over it, one after the other."""
    layers = [line, *texts]
    longest = max(map(len, layers))
    visible_text = ""
    # Begin with the last text: what it covers need not be drawn.
    for layer in reversed(layers):
        visible_text = overlay(visible_text, layer)
        if len(visible_text) >= longest or "\x1b" in visible_text:
            break
    return visible_text


def overlay(text: str, line: str) -> str:
    """Return a text, followed by the part of the line that it does not cover.

    A line with colors, or below a text with colors, is covered completely.
    """
    size = len(text)
    if size >= len(line) or "\x1b" in text:
        return text
    if text and "\x1b" in line:
        return text
    return text + line[size:]


def write_with_backspaces(line: str, column: int, text: str) -> tuple[str, int]:
    """Write a text with backspaces over a line, starting at a column.

    Return the new line and the column after the text.
    """
    characters = list(line.ljust(column))
    for backspaces, part in BACKSPACES.findall(text):
        column -= len(backspaces)
        column = max(0, column)
        end = column + len(part)
        characters[column:end] = part
        column = end
    return "".join(characters), column
