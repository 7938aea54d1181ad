"""Estimate of the remaining time of a running cell from the progress that it prints.

Progress is a share such as `12 %`, `3/10` or `40 of 120`. A *counter* is a share that
appears repeatedly with the same total and the same words before it. The first counter
that is running decides, from top to bottom and from left to right: outer loops print
above inner ones. There is no estimate for a counter that falls (it may restart in each
round), stalls, or was running before the cell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.common.text import apply_carriage_returns, clean

NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
# The lookahead excludes dates and times.
FRACTION = rf"{NUMBER}\s*(?:/|(?:out )?of)\s*{NUMBER}(?![\d.,]*(?:/|:?\d))"
SHARE = re.compile(rf"(?<![\w.,/:-])(?:{FRACTION}|(\d{{1,3}}(?:\.\d+)?)\s?%)")
LETTERS = re.compile(r"[^\W\d_]+")
MAX_LINE_LENGTH = 400  # characters of a line that are searched
NAME_WORDS = 4  # the words before a share that identify its counter
MIN_SECONDS = 3.0  # between the first and the last sample of a counter
MAX_SAMPLES = 200
MAX_COUNTERS = 200
# A counter has stalled after this many of its usual intervals.
STALLED_INTERVALS = 10
# A rate is uneven if it differs by this factor from the average.
UNEVEN_FACTOR = 4
# A counter that starts with the cell may start at one item and this share.
START_SHARE = 0.05
# After this many finished counters, it is not known how many follow.
MAX_FINISHED = 2


class Sample(NamedTuple):
    """A share that was printed so many seconds after the start of the cell."""

    seconds: float
    share: float


class Share(NamedTuple):
    """A share in a line, such as `40 of 120`."""

    # The total and the words before the share.
    counter_key: tuple[str, ...]
    value: float  # between 0 and 1
    item: float  # the share of a single item


@dataclass
class Counter:
    """A share that grows, with a sample for each change."""

    item: float
    samples: list[Sample] = field(default_factory=list)
    has_fallen: bool = False

    def add_sample(self, seconds: float, share: float) -> None:
        """Add the share that is displayed now, if it has changed."""
        last_share = self.samples[-1].share if self.samples else -1.0
        self.has_fallen = self.has_fallen or share < last_share
        if share > last_share:
            self.samples.append(Sample(seconds, share))
        if len(self.samples) > MAX_SAMPLES:
            del self.samples[1:-1:2]

    @property
    def is_at_start(self) -> bool:
        """Whether the counter has not moved from where a counter starts."""
        if len(self.samples) != 1:
            return False
        return self.samples[0].share <= self.item + START_SHARE

    def estimate_remaining(self, now: float) -> float | None:
        """Return in how many seconds the share will be 1, None if that is uncertain."""
        first = self.samples[0]
        last = self.samples[-1]
        if last.seconds - first.seconds < MIN_SECONDS:
            return None
        average_rate = (last.share - first.share) / (last.seconds - first.seconds)
        share_at_start = max(0.0, first.share - average_rate * first.seconds)
        halftime = (first.seconds + last.seconds) / 2
        middle = [sample for sample in self.samples if sample.seconds <= halftime][-1]
        recent = [sample for sample in self.samples if sample.seconds >= middle.seconds]
        rate = (last.share - middle.share) / (last.seconds - middle.seconds)
        interval = (last.seconds - middle.seconds) / (len(recent) - 1)
        started_earlier = share_at_start > self.item + START_SHARE
        slowest = average_rate / UNEVEN_FACTOR
        fastest = average_rate * UNEVEN_FACTOR
        has_stalled = now - last.seconds > STALLED_INTERVALS * interval
        if started_earlier or has_stalled or not slowest < rate < fastest:
            return None
        last_seconds = last.seconds
        if now - last.seconds > 2 * interval:
            # The next sample is late: the rate is at most this.
            rate = (last.share - middle.share) / (now - middle.seconds)
            last_seconds = now
        remaining_share = 1 + share_at_start - last.share
        return max(0.0, remaining_share / rate - (now - last_seconds))


class Estimate:
    """The estimate for one cell, updated from the last lines of its output."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, ...], Counter] = {}
        self.deciding: Counter | None = None

    def update(self, now: float, lines: Sequence[str]) -> float | None:
        """Return the remaining seconds, None if they cannot be estimated.

        `lines` are the last lines of the cell's output, `now` are the seconds since the
        cell started.
        """
        shares = {
            share.counter_key: share for line in lines for share in find_shares(line)
        }
        self._add_samples(now, shares)
        if self._count_finished() > MAX_FINISHED:
            return None
        if not shares and self.deciding:  # later lines contain no progress
            return self.deciding.estimate_remaining(now)
        self.deciding = None
        for key, share in shares.items():
            counter = self.counters.get(key)
            if counter is None or counter.has_fallen or share.value >= 1:
                continue
            if counter.is_at_start:
                return None  # this may be the outer loop
            if len(counter.samples) > 1:
                self.deciding = counter
                return counter.estimate_remaining(now)
        return None

    def _add_samples(self, now: float, shares: dict[tuple[str, ...], Share]) -> None:
        for key, share in shares.items():
            if key in self.counters or len(self.counters) < MAX_COUNTERS:
                counter = self.counters.setdefault(key, Counter(share.item))
                counter.add_sample(now, share.value)

    def _count_finished(self) -> int:
        return sum(
            counter.samples[-1].share >= 1 and len(counter.samples) > 2
            for counter in self.counters.values()
        )


def find_shares(line: str) -> Iterator[Share]:
    """Yield the shares in a line."""
    text = clean(apply_carriage_returns(line))[:MAX_LINE_LENGTH]
    for match in SHARE.finditer(text):
        numbers = [
            float(number.replace(",", "")) if number else 0.0
            for number in match.groups()
        ]
        part, total, percent = numbers
        is_percentage = match[3] is not None
        if is_percentage:
            part = percent
            total = 100.0
        if not (0 <= part <= total and total >= 2):
            continue
        words = LETTERS.findall(text[: match.start()])[-NAME_WORDS:]
        total_text = "%" if is_percentage else str(total)
        yield Share((total_text, *words), part / total, 1 / total)
