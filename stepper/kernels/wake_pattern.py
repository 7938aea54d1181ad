"""The first line that a cell prints and its wake pattern matches, looked for as the text arrives."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from stepper.common.text import ESCAPES
from stepper.policy import wake_regex

LINE = 2000  # characters of a line that are looked at
SHARE, AHEAD_SECONDS = 0.05, 0.5  # of the time that passes, looking may take so much


class Watch:
    """Looks for a pattern. `matched` is the first line with it, '' before; `unseen` are characters not looked at."""

    def __init__(self, pattern: str) -> None:
        self.sought = wake_regex.compile_pattern(pattern)
        self.folds = bool(self.sought.regex.flags & re.IGNORECASE)
        self.finders = [
            re.compile("|".join(map(re.escape, run)))
            for run in self.sought.required_texts
        ]
        self.matched, self.unseen = "", 0
        self.rest: dict[str, str] = {}  # stream → the line that has not ended
        self.began, self.spent = time.monotonic(), 0.0

    def take(self, stream: str, text: str) -> None:
        """Take the next piece of a stream."""
        if self.matched:
            return
        allowed = AHEAD_SECONDS + SHARE * (time.monotonic() - self.began) - self.spent
        text = self.rest.get(stream, "") + text
        text = (ESCAPES.sub("", text) if "\x1b" in text else text).replace("\r", "\n")
        at = text.rfind("\n") + 1
        self.rest[stream] = text[at : at + LINE]
        if self.sought.matches_longer_lines:
            at += LINE
        first = 0.0  # finding lines is quick, and goes on whatever looking at them took
        for begin, line in self._lines(text[:at]):
            now = time.monotonic()
            first = first or now
            if now - first > allowed:
                self.unseen += min(at, len(text)) - begin
                break
            if self._holds(line) and self.sought.regex.search(line):
                self.matched = line
                break
        self.spent += time.monotonic() - first if first else 0.0

    def _lines(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the lines that may match, with where they begin."""
        looked = text.lower() if self.folds and text.isascii() else text
        if not self.finders or (self.folds and not text.isascii()):
            finder = re.compile("[^\n]+")
        else:  # the rarest of what each must hold
            counts = [sum(map(looked.count, run)) for run in self.sought.required_texts]
            if not min(counts):
                return
            finder = self.finders[counts.index(min(counts))]
        at = 0
        for found in finder.finditer(looked):
            if found.start() >= at:
                begin = max(at, looked.rfind("\n", at, found.start()) + 1)
                end = looked.find("\n", found.end())
                at = len(text) if end < 0 else end + 1
                yield begin, text[begin : min(at - (end >= 0), begin + LINE)]

    def _holds(self, line: str) -> bool:
        """Whether a line holds what each must that matches, in that order."""
        if self.folds:
            if not line.isascii():
                return True
            line = line.lower()
        at = 0
        for run in self.sought.required_texts:
            ends = [
                place + len(word) for word in run if (place := line.find(word, at)) >= 0
            ]
            if not ends:
                return False
            at = min(ends)
        return True
