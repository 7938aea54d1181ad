"""The search for the first printed line that matches a cell's wake pattern.

The search runs while output arrives, so its time is limited. Most lines are excluded
quickly because they lack a text that every match contains.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from stepper.common.text import ESCAPES
from stepper.policy.configuration import wake_regex

MAX_LINE = 2000  # characters of a line that are searched
ANY_LINE = re.compile("[^\n]+")
# A search may take this share of the time since its start, plus ADVANCE_SECONDS.
TIME_SHARE = 0.05
ADVANCE_SECONDS = 0.5


class WakeWatcher:
    """Searches output for a wake pattern.

    `matched_line` is the first matching line, or an empty string if no line has matched
    yet. `skipped_characters` is the number of characters that were not searched,
    because the search had used its share of the time.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = wake_regex.compile_pattern(pattern)
        self.ignores_case = bool(self.pattern.regex.flags & re.IGNORECASE)
        self.finders = []
        for texts in self.pattern.required_texts:
            self.finders.append(re.compile("|".join(map(re.escape, texts))))
        self.matched_line = ""
        self.skipped_characters = 0
        self.incomplete_lines: dict[str, str] = {}  # by stream
        self.started_at = time.monotonic()
        self.search_seconds = 0.0

    def search(self, stream: str, text: str) -> None:
        """Search the next piece of text of a stream (stdout or stderr).

        Update `matched_line` and `skipped_characters`. After a match, do nothing.
        """
        if self.matched_line:
            return
        elapsed = time.monotonic() - self.started_at
        budget = ADVANCE_SECONDS + TIME_SHARE * elapsed - self.search_seconds
        searched_text = self._join_lines(stream, text)
        # The time until the first candidate is short and does not count.
        first_candidate_at = None
        for begin, line in self._find_candidates(searched_text):
            now = time.monotonic()
            if first_candidate_at is None:
                first_candidate_at = now
            if now - first_candidate_at > budget:
                self.skipped_characters += len(searched_text) - begin
                break
            if self._has_required_texts(line) and self.pattern.regex.search(line):
                self.matched_line = line
                break
        if first_candidate_at is not None:
            self.search_seconds += time.monotonic() - first_candidate_at

    def _join_lines(self, stream: str, text: str) -> str:
        """Return the text to search, and store the incomplete last line of a stream.

        `text` continues the stored line of the last call. Escape sequences are removed,
        and a carriage return ends a line. The incomplete line is also searched, unless
        the text that follows it could prevent a match.
        """
        text = self.incomplete_lines.get(stream, "") + text
        if "\x1b" in text:
            text = ESCAPES.sub("", text)
        text = text.replace("\r", "\n")
        end = text.rfind("\n") + 1
        self.incomplete_lines[stream] = text[end : end + MAX_LINE]
        if self.pattern.matches_longer_lines:
            end += MAX_LINE
        return text[:end]

    def _find_candidates(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the lines that may match, each with its position in the text."""
        searched_text = text
        if self.ignores_case and text.isascii():
            searched_text = text.lower()
        finder = self._select_finder(searched_text)
        if finder is None:
            return
        position = 0
        for match in finder.finditer(searched_text):
            if match.start() < position:
                continue
            newline = searched_text.rfind("\n", position, match.start())
            begin = max(position, newline + 1)
            line_end = searched_text.find("\n", match.end())
            if line_end < 0:
                line_end = len(text)
            position = line_end + 1
            yield begin, text[begin : min(line_end, begin + MAX_LINE)]

    def _select_finder(self, text: str) -> re.Pattern[str] | None:
        """Return the regular expression that finds the candidates in a text.

        The expression finds the required text that occurs least often. Return None if a
        required text does not occur, so no line can match. Return ANY_LINE if there are
        no required texts, or if upper and lower case cannot be compared.
        """
        has_unknown_case = self.ignores_case and not text.isascii()
        if not self.finders or has_unknown_case:
            return ANY_LINE
        counts = []
        for texts in self.pattern.required_texts:
            counts.append(sum(map(text.count, texts)))
        lowest = min(counts)
        if lowest == 0:
            return None
        return self.finders[counts.index(lowest)]

    def _has_required_texts(self, line: str) -> bool:
        """Return whether a line contains all texts that a match requires, in order.

        Return True if upper and lower case cannot be compared.
        """
        if self.ignores_case:
            if not line.isascii():
                return True
            line = line.lower()
        position = 0
        for texts in self.pattern.required_texts:
            ends = []
            for text in texts:
                begin = line.find(text, position)
                if begin >= 0:
                    ends.append(begin + len(text))
            if not ends:
                return False
            position = min(ends)
        return True
