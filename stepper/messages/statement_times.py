"""The note on the statements that a failed run spent its time in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from stepper.messages.run_report import format_seconds
from stepper.messages.stale_cells import join_words

MIN_SHARE = 0.1  # of the duration of the run, for a statement that is named
MAX_STATEMENTS = 3


class StatementTime(NamedTuple):
    """The time that a statement took, with its first and its last line."""

    first: int
    last: int
    seconds: float

    @property
    def name(self) -> str:
        """The lines of the statement, such as `line 2` or `lines 4-9`."""
        if self.first == self.last:
            return f"line {self.first}"
        return f"lines {self.first}-{self.last}"

    @property
    def duration(self) -> str:
        """The estimated time with its unit, such as `8 s`."""
        if self.seconds < 10:
            return f"{self.seconds:.0f} s"
        return format_seconds(self.seconds)


def parse_times(data: Any) -> list[StatementTime]:
    """Return the times in the kernel's message; invalid items are left out."""
    times: list[StatementTime] = []
    if not isinstance(data, list):
        return times
    for item in data:
        if isinstance(item, list) and len(item) == 3:
            first, last, seconds = item
            are_lines = isinstance(first, int) and isinstance(last, int)
            if are_lines and isinstance(seconds, int | float):
                times.append(StatementTime(first, last, float(seconds)))
    return times


def format_times(
    times: Sequence[StatementTime], duration: float, failing_line: int
) -> list[str]:
    """Return a list with the note on the slowest statements of a failed run.

    `duration` is the time of the run in seconds. `failing_line` is the line of the cell
    that failed, or 0 if it is unknown. The list is empty if no statement took at least
    MIN_SHARE of the duration.
    """
    sorted_times = sorted(times, key=lambda time: time.seconds, reverse=True)
    slow_statements = [
        time
        for time in sorted_times[:MAX_STATEMENTS]
        if time.seconds >= MIN_SHARE * duration
    ]
    if not slow_statements:
        return []
    slow_statements.sort(key=lambda time: time.first)
    clauses = [f"{time.name} took about {time.duration}" for time in slow_statements]
    text = f"of {format_seconds(duration)}, {join_words(clauses, MAX_STATEMENTS)}"
    finished_statements = [time for time in slow_statements if time.last < failing_line]
    if finished_statements:
        names = join_words([time.name for time in finished_statements], MAX_STATEMENTS)
        text += f". In a cell above this one, {names} would not have to run again"
    return [text]
