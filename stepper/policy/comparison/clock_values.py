"""Times and durations in outputs that follow the clock: they differ in each run and say nothing about results.

`stepper verify` finds them by a second fresh run. Where there is only one run, these rules apply: a
time counts if it is that of the run, a duration if the cell reads the clock or prints progress.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

Output = Mapping[str, Any]

SLACK_SECONDS = 2.0
ZONE_SECONDS = 900  # all time zones differ by multiples of this
FARTHEST_ZONE_SECONDS = 14 * 3600
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
READS_CLOCK = re.compile(
    r"\b(?:perf_counter|monotonic|process_time|thread_time|default_timer|timeit)"
    r"|\btime\.time\b|\btime\(\)|\b(?:utc)?now\(|\btoday\(|\bTimer\b"
)
DEFINES = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)", re.MULTILINE)
PROGRESS = re.compile(r"/step\b|\bit/s\b|\bs/it\b")
ABOUT_TIME = re.compile(
    r"\b(?:took|elapsed|times?|durations?|runtime|secs?|seconds|latency|speed)\b",
    re.IGNORECASE,
)
UNIT = (
    r"(?:ns|[uµμ]s|ms|s|secs?|seconds?|mins?|minutes?|h|hrs?|hours?)(?:/\w+)?\b"
    r"|\w+/s(?:ec)?\b"
)
VALUES = re.compile(
    r"(?P<call>datetime\.datetime\((?P<parts>\d{4}(?:, \d+){4,6})[^)]*\))"
    r"|(?P<date>(?<!\d)\d{4}[-/.]?[01]\d[-/.]?[0-3]\d)"
    r"(?:[T _-]+(?P<clock>[0-2]\d:?[0-5]\d(?::?[0-5]\d)?)(?:[.,]\d+)?"
    r"(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?)?(?![\d:])"
    r"|(?:\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?(?P<month>\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)) +(?P<day>\d\d?)"
    r" (?P<at>\d\d:\d\d:\d\d)(?: [A-Z]{3,4})? (?P<year>\d{4})\b"
    r"|(?P<lone>(?<![\d:.])[0-2]\d:[0-5]\d:[0-5]\d(?:[.,]\d+)?(?![\d:]))"
    r"|(?P<epoch>(?<![\d.])1\d{9}(?:\.\d+|\d{3})?(?![\d.]))"
    r"|(?P<span>(?<![\d:.])\d+:[0-5]\d:[0-5]\d(?:\.\d+)?(?![\d:]))"
    rf"|(?P<duration>(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)? ?(?:{UNIT}))"
    r"|(?P<number>(?<![\w.])\d+\.\d+(?:e[-+]?\d+)?(?![\w.]))"
)


@dataclass(frozen=True)
class RunTime:
    """When a cell ran, in seconds since 1970, how long, and whether it reads the clock."""

    began: float
    seconds: float
    reads_clock: bool = False


def reads_clock(source: str, others: Iterable[str]) -> bool:
    """Whether a cell reads the clock, also by a function that one of the `others` defines."""
    if READS_CLOCK.search(source):
        return True
    names = {
        name
        for other in others
        if READS_CLOCK.search(other)
        for name in DEFINES.findall(other)
    }
    return bool(names) and not names.isdisjoint(re.findall(r"\w+", source))


def with_recorded_times(
    then: Sequence[Output], now: Sequence[Output], run: RunTime
) -> list[Output]:
    """Return fresh outputs in which the recorded ones stand for values that follow the clock."""
    if len(then) != len(now):
        return [*now]
    return [
        _output(before, after, run) for before, after in zip(then, now, strict=True)
    ]


def _output(then: Output, now: Output, run: RunTime) -> Output:
    if then.get("output_type") != now.get("output_type"):
        return now
    changed = dict(now)
    if "text" in now:
        changed["text"] = _text(then.get("text"), now["text"], run)
    before, after = then.get("data"), now.get("data")
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changed["data"] = {
            kind: _text(before.get(kind), content, run)
            for kind, content in after.items()
        }
    return changed


def _text(then: Any, now: Any, run: RunTime) -> Any:
    sides = ["".join(map(str, s)) if isinstance(s, list) else s for s in (then, now)]
    if not all(isinstance(side, str) for side in sides):
        return now
    before, after = (side.split("\n") for side in sides)
    if len(before) != len(after):
        return now
    return "\n".join(_line(*pair, run) for pair in zip(before, after, strict=True))


def _line(then: str, now: str, run: RunTime) -> str:
    """Return a line with the recorded values in the place of those that follow the clock."""
    if then == now:
        return now
    before, after = [*VALUES.finditer(then)], [*VALUES.finditer(now)]
    if len(before) != len(after):
        return now
    ends = [value.end() for value in after]
    starts = [value.start() for value in after]
    # the words before each value, and those behind the last one
    gaps = [
        now[end:start]
        for end, start in zip([0, *ends], [*starts, len(now)], strict=True)
    ]
    parts = list[str]()
    for number, (was, value) in enumerate(zip(before, after, strict=True)):
        around = gaps[number : number + 2]
        alike = _kind(was) == _kind(value)
        kept = was[0] if alike and _follows_clock(value, around, now, run) else value[0]
        parts += [gaps[number], kept]
    return "".join([*parts, gaps[-1]])


def _kind(value: re.Match[str]) -> str:
    """Return what kind of value was found: two are exchanged only if both are of the same."""
    kinds = ("call", "date", "month", "lone", "epoch", "span", "duration", "number")
    return next(kind for kind in kinds if value[kind] is not None)


def _follows_clock(
    value: re.Match[str], around: Sequence[str], line: str, run: RunTime
) -> bool:
    """Whether a value follows the clock; `around` is what stands before and behind it in the line."""
    kind = _kind(value)
    if kind == "duration":
        return run.reads_clock or PROGRESS.search(line) is not None
    if kind == "span":
        return run.reads_clock
    if kind == "number":
        before, behind = around
        unit = re.match(r"\s*\w*", behind)
        words = f"{before} {unit[0] if unit else ''}"
        return run.reads_clock and ABOUT_TIME.search(words) is not None
    if kind == "epoch":
        digits = value[0].partition(".")[0]
        seconds = float(value[0]) / (1000 if len(digits) > 10 else 1)
        return abs(seconds - run.began) <= run.seconds + SLACK_SECONDS
    if kind == "lone":
        return run.reads_clock or _within(_clock(value[0]), run, has_date=False)
    if kind == "date" and value["clock"] is None:
        day = _date(re.findall(r"\d", value["date"]))
        return day is not None and abs(day - run.began) < 2 * DAY_SECONDS
    moment = _moment(value)
    # without seconds it is the beginning of a minute
    exact = kind != "date" or len(re.findall(r"\d", value["clock"])) == 6
    return moment is not None and _within(moment, run, 0 if exact else 60)


def _moment(value: re.Match[str]) -> float | None:
    """Return the seconds since 1970 that a date with a time stands for, taken as UTC."""
    if value["call"]:
        numbers = [int(part) for part in value["parts"].split(",")][:6]
    elif value["month"]:
        clock = [int(part) for part in value["at"].split(":")]
        month = MONTHS.index(value["month"]) + 1
        numbers = [int(value["year"]), month, int(value["day"]), *clock]
    else:
        day = _date(re.findall(r"\d", value["date"]))
        return None if day is None else day + _clock(value["clock"])
    try:
        return datetime(*numbers, tzinfo=timezone.utc).timestamp()  # type: ignore[arg-type, misc]
    except ValueError:
        return None


def _date(digits: Sequence[str]) -> float | None:
    text = "".join(digits)
    try:
        day = datetime(
            int(text[:4]), int(text[4:6]), int(text[6:8]), tzinfo=timezone.utc
        )
    except ValueError:
        return None
    return day.timestamp()


def _clock(text: str) -> float:
    """Return the seconds since midnight."""
    digits = re.sub(r"[.,]\d+$|:", "", text).ljust(6, "0")
    return int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:6])


def _within(
    moment: float, run: RunTime, early: float = 0, has_date: bool = True
) -> bool:
    """Whether a moment may be one of the run's, in some time zone, or up to `early` seconds before it."""
    past = moment - run.began
    if has_date and abs(past) > FARTHEST_ZONE_SECONDS + run.seconds:
        return False
    rest = past % ZONE_SECONDS
    is_after = rest <= run.seconds + SLACK_SECONDS
    return is_after or rest >= ZONE_SECONDS - SLACK_SECONDS - early
