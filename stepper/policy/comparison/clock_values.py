"""Recognize times and durations in outputs, which differ in each run.

`stepper verify` recognizes them by comparing two fresh runs. This module needs only one
fresh run: a time is ignored if the cell ran at that time, and a duration is ignored if
the cell reads the clock or prints progress.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, NamedTuple

Output = Mapping[str, Any]

# A printed time may be this far outside the run.
TOLERANCE_SECONDS = 2.0
# The offsets of all time zones are multiples of this.
TIME_ZONE_STEP_SECONDS = 900
MAX_TIME_ZONE_SECONDS = 14 * 3600
MINUTE_SECONDS = 60
DAY_SECONDS = 24 * 3600
MONTHS = [
    "Jan",
    "Feb",
    "Mar",
    "Apr",
    "May",
    "Jun",
    "Jul",
    "Aug",
    "Sep",
    "Oct",
    "Nov",
    "Dec",
]
CLOCK_FUNCTIONS = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|thread_time)(?:_ns)?\b"
    r"|\b(?:default_timer|timeit)\b"
    r"|\btime\.time\b|\btime\(\)|\b(?:utc)?now\(|\btoday\(|\bTimer\b"
)
DEFINITION = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
PROGRESS = re.compile(r"/step\b|\bit/s\b|\bs/it\b")
TIME_WORDS = re.compile(
    r"\b(?:took|elapsed|times?|durations?|runtime|secs?|seconds|latency|speed)\b",
    re.IGNORECASE,
)
UNIT = (
    r"(?:ns|[uµμ]s|ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)(?:/\w+)?\b"
    r"|\w+/s(?:ec)?\b"
)
# Times, durations and other numbers. The alternatives are tried in this order.
# VALUE_KINDS contains the names of their groups.
VALUES = re.compile(
    # datetime.datetime(2026, 11, 24, 10, 15)
    r"(?P<datetime_call>datetime\.datetime\((?P<parts>\d{4}(?:, \d+){4,6})[^)]*\))"
    # 2026-11-24, 2026-11-24 10:15:30, 20261124_101530
    r"|(?P<date>(?<!\d)\d{4}[-/.]?[01]\d[-/.]?[0-3]\d)"
    r"(?:[T _-]+(?P<clock>[0-2]\d:?[0-5]\d(?::?[0-5]\d)?)(?:[.,]\d+)?"
    r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?(?![\d:])"
    # Tue Nov 24 10:15:30 2026
    r"|(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
    rf"(?P<month>\b(?:{'|'.join(MONTHS)})) +(?P<day>\d\d?)"
    r" (?P<at>\d\d:\d\d:\d\d)(?: [A-Z]{3,4})? (?P<year>\d{4})\b"
    # 10:15:30
    r"|(?P<time>(?<![\d:.])[0-2]\d:[0-5]\d:[0-5]\d(?:[.,]\d+)?(?![\d:]))"
    # seconds or milliseconds since 1970
    r"|(?P<epoch>(?<![\d.])1\d{9}(?:\.\d+|\d{3})?(?![\d.]))"
    # 1:02:03.5
    r"|(?P<elapsed>(?<![\d:.])\d+:[0-5]\d:[0-5]\d(?:\.\d+)?(?![\d:]))"
    # 1.5 s, 20 ms/step, 3 it/s
    rf"|(?P<duration>(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)? ?(?:{UNIT}))"
    r"|(?P<number>(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?(?![\w.]))"
)
VALUE_KINDS = (
    "datetime_call",
    "date",
    "month",
    "time",
    "epoch",
    "elapsed",
    "duration",
    "number",
)


@dataclass(frozen=True)
class RunTime:
    """The start and the duration of a run, and whether the cell reads the clock."""

    start: float  # seconds since 1970
    seconds: float
    reads_clock: bool = False


class _Value(NamedTuple):
    """A time, a duration or another number in a line."""

    kind: str  # one of VALUE_KINDS
    match: re.Match[str]
    text_before: str  # between the previous value and this one
    text_after: str  # between this value and the next one


def reads_clock(source: str, other_sources: Iterable[str]) -> bool:
    """Return whether a cell reads the clock, possibly in a function of another cell.

    `other_sources` are the sources of the cells that may define such functions.
    """
    if CLOCK_FUNCTIONS.search(source):
        return True
    names = set[str]()
    for other_source in other_sources:
        if CLOCK_FUNCTIONS.search(other_source):
            names.update(DEFINITION.findall(other_source))
    return bool(names) and not names.isdisjoint(re.findall(r"\w+", source))


def restore_recorded_values(
    recorded: Sequence[Output], fresh: Sequence[Output], run: RunTime
) -> list[Output]:
    """Return the fresh outputs, with the recorded times and durations.

    `run` is the fresh run. Only values that depend on the clock are replaced, and only
    if both runs have the same number of outputs.
    """
    if len(recorded) != len(fresh):
        return [*fresh]
    pairs = zip(recorded, fresh, strict=True)
    return [_restore_in_output(before, after, run) for before, after in pairs]


def _restore_in_output(recorded: Output, fresh: Output, run: RunTime) -> Output:
    """Return a fresh output, with recorded times and durations."""
    if recorded.get("output_type") != fresh.get("output_type"):
        return fresh
    restored_output = dict(fresh)
    if "text" in fresh:
        restored_output["text"] = _restore_in_text(
            recorded.get("text"), fresh["text"], run
        )
    before = recorded.get("data")
    after = fresh.get("data")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        restored_output["data"] = {
            mime_type: _restore_in_text(before.get(mime_type), content, run)
            for mime_type, content in after.items()
        }
    return restored_output


def _restore_in_text(recorded: Any, fresh: Any, run: RunTime) -> Any:
    """Return a fresh text, with recorded times and durations.

    The fresh value is returned unchanged if one of the values is not a text, or if the
    texts have different numbers of lines.
    """
    recorded_text = _join_lines(recorded)
    fresh_text = _join_lines(fresh)
    if not isinstance(recorded_text, str) or not isinstance(fresh_text, str):
        return fresh
    before = recorded_text.split("\n")
    after = fresh_text.split("\n")
    if len(before) != len(after):
        return fresh
    pairs = zip(before, after, strict=True)
    return "\n".join(_restore_in_line(old, new, run) for old, new in pairs)


def _join_lines(content: Any) -> Any:
    """Return the joined lines of a list, as in nbformat, or other content as it is."""
    return "".join(map(str, content)) if isinstance(content, list) else content


def _restore_in_line(recorded: str, fresh: str, run: RunTime) -> str:
    """Return a fresh line, with recorded times and durations.

    The fresh line is returned as it is if the lines have different numbers of values.
    """
    if recorded == fresh:
        return fresh
    before = _list_values(recorded)
    after = _list_values(fresh)
    if len(before) != len(after):
        return fresh
    parts = list[str]()
    end = 0
    for old, new in zip(before, after, strict=True):
        text = new.match[0]
        if old.kind == new.kind and _depends_on_clock(new, fresh, run):
            text = old.match[0]
        parts += [new.text_before, text]
        end = new.match.end()
    return "".join([*parts, fresh[end:]])


def _list_values(line: str) -> list[_Value]:
    """Return the values in a line, in order."""
    matches = [*VALUES.finditer(line)]
    ends = [0, *[match.end() for match in matches]]
    starts = [*[match.start() for match in matches], len(line)]
    values = []
    for index, match in enumerate(matches):
        kind = next(kind for kind in VALUE_KINDS if match[kind] is not None)
        text_before = line[ends[index] : starts[index]]
        text_after = line[ends[index + 1] : starts[index + 1]]
        values.append(_Value(kind, match, text_before, text_after))
    return values


def _depends_on_clock(value: _Value, line: str, run: RunTime) -> bool:
    """Return whether a value depends on the clock; `line` is the line with the value.

    The value is a time within the run, or a duration that the cell measured.
    """
    text = value.match[0]
    if value.kind == "duration":
        return run.reads_clock or PROGRESS.search(line) is not None
    if value.kind == "elapsed":
        return run.reads_clock
    if value.kind == "number":
        return run.reads_clock and _has_time_word(value)
    if value.kind == "epoch":
        digits = text.partition(".")[0]
        divisor = 1000 if len(digits) > 10 else 1
        elapsed = float(text) / divisor - run.start
        return -TOLERANCE_SECONDS <= elapsed <= run.seconds + TOLERANCE_SECONDS
    if value.kind == "time":
        time_of_day = _parse_time_of_day(text)
        return run.reads_clock or _is_in_run(time_of_day, run, has_date=False)
    return _is_date_in_run(value, run)


def _has_time_word(value: _Value) -> bool:
    """Return whether a word for a time precedes a number, or directly follows it."""
    next_word = re.match(r"\s*\w*", value.text_after)
    context = f"{value.text_before} {next_word[0] if next_word else ''}"
    return TIME_WORDS.search(context) is not None


def _is_date_in_run(value: _Value, run: RunTime) -> bool:
    """Return whether a date, or a date and time, may be the time of the run.

    A date without a time may be up to two days before the start or after the end of the
    run, because its time zone is not known.
    """
    match = value.match
    if value.kind == "date" and match["clock"] is None:
        day = _parse_date(match["date"])
        if day is None:
            return False
        margin = 2 * DAY_SECONDS
        return -margin < day - run.start < run.seconds + margin
    timestamp = _parse_timestamp(match)
    if timestamp is None:
        return False
    if value.kind == "date" and len(re.findall(r"\d", match["clock"])) < 6:
        # A time without seconds is the start of a minute.
        return _is_in_run(timestamp, run, precision=MINUTE_SECONDS)
    return _is_in_run(timestamp, run)


def _parse_timestamp(match: re.Match[str]) -> float | None:
    """Return the Unix time of a date and time, or None if they are invalid.

    The time counts as UTC. `match` is a match of the alternative `datetime_call`,
    `date` or `month`.
    """
    if match["datetime_call"]:
        numbers = [int(part) for part in match["parts"].split(",")][:6]
    elif match["month"]:
        clock = [int(part) for part in match["at"].split(":")]
        month = MONTHS.index(match["month"]) + 1
        numbers = [int(match["year"]), month, int(match["day"]), *clock]
    else:
        day = _parse_date(match["date"])
        return None if day is None else day + _parse_time_of_day(match["clock"])
    year, month, day_of_month, hour, minute, *seconds = numbers
    second = seconds[0] if seconds else 0
    try:
        date = datetime(
            year, month, day_of_month, hour, minute, second, tzinfo=timezone.utc
        )
    except (ValueError, OverflowError):  # a number is too large
        return None
    return date.timestamp()


def _parse_date(text: str) -> float | None:
    """Return the Unix time of a day in UTC, or None if there is no such day."""
    digits = "".join(re.findall(r"\d", text))
    year = int(digits[:4])
    month = int(digits[4:6])
    day = int(digits[6:8])
    try:
        return datetime(year, month, day, tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None


def _parse_time_of_day(text: str) -> float:
    """Return the seconds since midnight for a time such as `10:15:30` or `10:15`."""
    digits = re.sub(r"[.,]\d+$|:", "", text).ljust(6, "0")
    return int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:6])


def _is_in_run(
    timestamp: float, run: RunTime, *, precision: float = 0, has_date: bool = True
) -> bool:
    """Return whether a printed time is within the run in any time zone.

    `timestamp` is the Unix time for UTC or, if `has_date` is False, the seconds since
    midnight. The printed time was rounded down to a multiple of `precision` seconds.
    """
    elapsed = timestamp - run.start
    if has_date and abs(elapsed) > MAX_TIME_ZONE_SECONDS + run.seconds:
        return False
    # In another time zone, the time is later or earlier by a multiple of the step.
    after_start = elapsed % TIME_ZONE_STEP_SECONDS
    before_start = TIME_ZONE_STEP_SECONDS - after_start
    is_during_run = after_start <= run.seconds + TOLERANCE_SECONDS
    return is_during_run or before_start <= precision + TOLERANCE_SECONDS
