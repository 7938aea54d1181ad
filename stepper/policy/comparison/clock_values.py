"""Recognize times and durations in outputs, which differ in each run.

`stepper verify` recognizes them by comparing two fresh runs. This module needs only one
run: a time is ignored if the cell ran at that time, and a duration is ignored if the
cell reads the clock or prints progress.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

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
    r"\b(?:perf_counter|monotonic|process_time|thread_time|default_timer|timeit)"
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
# Times and durations. The alternatives are tried in this order; VALUE_KINDS contains
# the names of their groups.
VALUES = re.compile(
    # datetime.datetime(2026, 11, 24, 10, 15)
    r"(?P<call>datetime\.datetime\((?P<parts>\d{4}(?:, \d+){4,6})[^)]*\))"
    # 2026-11-24, 2026-11-24 10:15:30, 20261124_101530
    r"|(?P<date>(?<!\d)\d{4}[-/.]?[01]\d[-/.]?[0-3]\d)"
    r"(?:[T _-]+(?P<clock>[0-2]\d:?[0-5]\d(?::?[0-5]\d)?)(?:[.,]\d+)?"
    r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?(?![\d:])"
    # Tue Nov 24 10:15:30 2026
    r"|(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?"
    rf"(?P<month>\b(?:{'|'.join(MONTHS)})) +(?P<day>\d\d?)"
    r" (?P<at>\d\d:\d\d:\d\d)(?: [A-Z]{3,4})? (?P<year>\d{4})\b"
    # 10:15:30
    r"|(?P<lone>(?<![\d:.])[0-2]\d:[0-5]\d:[0-5]\d(?:[.,]\d+)?(?![\d:]))"
    # seconds or milliseconds since 1970
    r"|(?P<epoch>(?<![\d.])1\d{9}(?:\.\d+|\d{3})?(?![\d.]))"
    # 1:02:03.5
    r"|(?P<span>(?<![\d:.])\d+:[0-5]\d:[0-5]\d(?:\.\d+)?(?![\d:]))"
    # 1.5 s, 20 ms/step, 3 it/s
    rf"|(?P<duration>(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)? ?(?:{UNIT}))"
    r"|(?P<number>(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?(?![\w.]))"
)
VALUE_KINDS = (
    "call",
    "date",
    "month",
    "lone",
    "epoch",
    "span",
    "duration",
    "number",
)


@dataclass(frozen=True)
class RunTime:
    """The start and the duration of a run, and whether the cell reads the clock."""

    start: float  # seconds since 1970
    seconds: float
    reads_clock: bool = False


def reads_clock(source: str, other_sources: Iterable[str]) -> bool:
    """Return whether a cell reads the clock, possibly in a function of another cell."""
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

    Only values that depend on the clock are replaced.
    """
    if len(recorded) != len(fresh):
        return [*fresh]
    pairs = zip(recorded, fresh, strict=True)
    return [_restore_in_output(before, after, run) for before, after in pairs]


def _restore_in_output(recorded: Output, fresh: Output, run: RunTime) -> Output:
    if recorded.get("output_type") != fresh.get("output_type"):
        return fresh
    restored = dict(fresh)
    if "text" in fresh:
        restored["text"] = _restore_in_text(recorded.get("text"), fresh["text"], run)
    before = recorded.get("data")
    after = fresh.get("data")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        restored["data"] = {
            mime_type: _restore_in_text(before.get(mime_type), content, run)
            for mime_type, content in after.items()
        }
    return restored


def _restore_in_text(recorded: Any, fresh: Any, run: RunTime) -> Any:
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
    """Return the text of an output, which may be a list of lines as in nbformat."""
    return "".join(map(str, content)) if isinstance(content, list) else content


def _restore_in_line(recorded: str, fresh: str, run: RunTime) -> str:
    """Return a fresh line in which the recorded values replace those of the clock."""
    if recorded == fresh:
        return fresh
    before = [*VALUES.finditer(recorded)]
    after = [*VALUES.finditer(fresh)]
    if len(before) != len(after):
        return fresh
    ends = [value.end() for value in after]
    starts = [value.start() for value in after]
    # The texts before each value, and the one after the last value.
    gaps = [
        fresh[end:start]
        for end, start in zip([0, *ends], [*starts, len(fresh)], strict=True)
    ]
    parts = list[str]()
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        text = new[0]
        if _classify_value(old) == _classify_value(new) and _depends_on_clock(
            new, gaps[index], gaps[index + 1], fresh, run
        ):
            text = old[0]
        parts += [gaps[index], text]
    return "".join([*parts, gaps[-1]])


def _classify_value(value: re.Match[str]) -> str:
    """Return the name of the alternative of `VALUES` that matched."""
    return next(kind for kind in VALUE_KINDS if value[kind] is not None)


def _depends_on_clock(
    value: re.Match[str], text_before: str, text_after: str, line: str, run: RunTime
) -> bool:
    """Return whether a value of a line depends on the clock."""
    kind = _classify_value(value)
    if kind == "duration":
        return run.reads_clock or PROGRESS.search(line) is not None
    if kind == "span":
        return run.reads_clock
    if kind == "number":
        unit = re.match(r"\s*\w*", text_after)
        context = f"{text_before} {unit[0] if unit else ''}"
        return run.reads_clock and TIME_WORDS.search(context) is not None
    if kind == "epoch":
        digits = value[0].partition(".")[0]
        divisor = 1000 if len(digits) > 10 else 1
        seconds = float(value[0]) / divisor
        return abs(seconds - run.start) <= run.seconds + TOLERANCE_SECONDS
    if kind == "lone":
        time_of_day = _parse_time_of_day(value[0])
        return run.reads_clock or _is_in_run(time_of_day, run, has_date=False)
    if kind == "date" and value["clock"] is None:
        day = _parse_date(value["date"])
        return day is not None and abs(day - run.start) < 2 * DAY_SECONDS
    timestamp = _parse_timestamp(value)
    if timestamp is None:
        return False
    has_seconds = kind != "date" or len(re.findall(r"\d", value["clock"])) == 6
    # A time without seconds is the start of a minute.
    early = 0 if has_seconds else MINUTE_SECONDS
    return _is_in_run(timestamp, run, early)


def _parse_timestamp(value: re.Match[str]) -> float | None:
    """Return the Unix time of a date with a time in UTC, or None if it is invalid."""
    if value["call"]:
        numbers = [int(part) for part in value["parts"].split(",")][:6]
    elif value["month"]:
        clock = [int(part) for part in value["at"].split(":")]
        month = MONTHS.index(value["month"]) + 1
        numbers = [int(value["year"]), month, int(value["day"]), *clock]
    else:
        day = _parse_date(value["date"])
        return None if day is None else day + _parse_time_of_day(value["clock"])
    year, month, day_of_month, hour, minute, *seconds = numbers
    second = seconds[0] if seconds else 0
    try:
        date = datetime(
            year, month, day_of_month, hour, minute, second, tzinfo=timezone.utc
        )
    except ValueError:
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
    timestamp: float, run: RunTime, early: float = 0, has_date: bool = True
) -> bool:
    """Return whether a time is within the run in any time zone.

    `timestamp` is a Unix time or, if `has_date` is False, the seconds since midnight.
    The time may be up to `early` seconds before the run.
    """
    elapsed = timestamp - run.start
    if has_date and abs(elapsed) > MAX_TIME_ZONE_SECONDS + run.seconds:
        return False
    remainder = elapsed % TIME_ZONE_STEP_SECONDS
    is_after_start = remainder <= run.seconds + TOLERANCE_SECONDS
    latest_before_start = TIME_ZONE_STEP_SECONDS - TOLERANCE_SECONDS - early
    return is_after_start or remainder >= latest_before_start
