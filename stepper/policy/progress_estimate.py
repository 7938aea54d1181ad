"""Estimate the remaining time of a running cell from the progress that it prints.

Progress is a share such as `12 %`, `3/10` or `40 of 120`. A *counter* is a share that
appears repeatedly with the same total and the same words before it. The estimate uses
the first running counter, from top to bottom and from left to right, because outer
loops print above inner loops. There is no estimate for a counter that falls (it may
restart in each iteration), stalls, grows unevenly, or starts with a large share.
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
NAME_WORDS = 4  # number of words before a share that identify its counter
MIN_SECONDS = 3.0  # between the first and the last sample of a counter
MAX_SAMPLES = 200
MAX_COUNTERS = 200
# A counter has stalled after this many of its usual intervals.
STALLED_INTERVALS = 10
# Growth is uneven if its rate differs from the average rate by this factor.
UNEVEN_FACTOR = 4
# When the cell starts, the share of a counter is at most one item plus this. A larger
# share means that the counter resumes earlier work.
START_SHARE = 0.05
# If more counters than this have finished, further counters probably follow, and the
# remaining time is not estimated.
MAX_FINISHED = 2

# The total and the words before a share identify its counter.
CounterKey = tuple[str, ...]


class Sample(NamedTuple):
    """A printed share, and the time in seconds since the cell started."""

    seconds: float
    share: float


class Share(NamedTuple):
    """A share in a line, such as `40 of 120`."""

    counter_key: CounterKey
    value: float  # between 0 and 1
    item: float  # the share of a single item


@dataclass
class Counter:
    """A share that appears repeatedly, with a sample for each increase."""

    item: float  # the share of a single item
    samples: list[Sample] = field(default_factory=list)
    has_fallen: bool = False

    def add_sample(self, seconds: float, share: float) -> None:
        """Add a sample if the share is larger than the last one.

        Set `has_fallen` if the share is smaller. If there are more than MAX_SAMPLES
        samples, remove every second one, but keep the first and the last.
        """
        sample = Sample(seconds, share)
        if not self.samples:
            self.samples.append(sample)
            return
        last_share = self.samples[-1].share
        if share < last_share:
            self.has_fallen = True
        elif share > last_share:
            self.samples.append(sample)
        if len(self.samples) > MAX_SAMPLES:
            del self.samples[1:-1:2]

    @property
    def is_at_start(self) -> bool:
        """Whether the counter has shown a single share, at most `start_limit`."""
        if len(self.samples) != 1:
            return False
        sample = self.samples[0]
        return sample.share <= self.start_limit

    @property
    def start_limit(self) -> float:
        """The largest share at which a counter may start."""
        return self.item + START_SHARE

    def estimate_remaining(self, now: float) -> float | None:
        """Return the seconds until the counted work ends, or None if uncertain.

        `now` is the time in seconds since the cell started.
        """
        first = self.samples[0]
        last = self.samples[-1]
        if last.seconds - first.seconds < MIN_SECONDS:
            return None
        average_rate = _compute_growth_rate(first, last)
        # A loop that prints at the start of each item begins with the share of one
        # item, and ends one item after it has shown 100 %.
        share_at_start = max(0.0, first.share - average_rate * first.seconds)
        if share_at_start > self.start_limit:
            return None
        recent_samples = self._select_recent()
        middle = recent_samples[0]
        rate = _compute_growth_rate(middle, last)
        slowest = average_rate / UNEVEN_FACTOR
        fastest = average_rate * UNEVEN_FACTOR
        if not slowest < rate < fastest:
            return None
        interval = (last.seconds - middle.seconds) / (len(recent_samples) - 1)
        waiting = now - last.seconds
        if waiting > STALLED_INTERVALS * interval:
            return None
        if waiting > 2 * interval:
            # The next sample is late, so the current rate is lower.
            current_sample = Sample(now, last.share)
            rate = _compute_growth_rate(middle, current_sample)
            waiting = 0.0
        remaining_share = 1 + share_at_start - last.share
        remaining_seconds = remaining_share / rate - waiting
        return max(0.0, remaining_seconds)

    def _select_recent(self) -> list[Sample]:
        """Return the last sample of the first half of the time, and all later ones."""
        first = self.samples[0]
        last = self.samples[-1]
        half_time = (first.seconds + last.seconds) / 2
        start = 0
        for index, sample in enumerate(self.samples):
            if sample.seconds <= half_time:
                start = index
        return self.samples[start:]


def _compute_growth_rate(first: Sample, last: Sample) -> float:
    """Return how much the share grew per second between two samples."""
    growth = last.share - first.share
    seconds = last.seconds - first.seconds
    return growth / seconds


class ProgressEstimator:
    """Estimates the remaining time of one cell from the last lines of its output."""

    def __init__(self) -> None:
        self.counters: dict[CounterKey, Counter] = {}
        # The counter that determines the estimate.
        self.selected: Counter | None = None

    def update(self, now: float, lines: Sequence[str]) -> float | None:
        """Add the shares in `lines`, and return the remaining seconds.

        `lines` are the last lines of the cell's output, `now` is the time in seconds
        since the cell started. Return None if the time cannot be estimated.
        """
        shares = dict[CounterKey, Share]()
        for line in lines:
            for share in find_shares(line):
                shares[share.counter_key] = share
        for share in shares.values():
            self._add_sample(now, share)
        if self._count_finished() > MAX_FINISHED:
            return None
        # If the last lines contain no share, keep the counter of earlier lines.
        if shares or self.selected is None:
            self.selected = self._select_counter(shares)
        if self.selected is None:
            return None
        return self.selected.estimate_remaining(now)

    def _add_sample(self, now: float, share: Share) -> None:
        """Add a share to its counter.

        The share is ignored if its counter is new and there are MAX_COUNTERS already.
        """
        counter = self.counters.get(share.counter_key)
        if counter is None:
            if len(self.counters) >= MAX_COUNTERS:
                return
            counter = Counter(share.item)
            self.counters[share.counter_key] = counter
        counter.add_sample(now, share.value)

    def _select_counter(self, shares: dict[CounterKey, Share]) -> Counter | None:
        """Return the first counter of `shares` that is running.

        Return None if no counter is running, or if a counter before it has just
        started: this may be the counter of an outer loop.
        """
        for key, share in shares.items():
            counter = self.counters.get(key)
            if counter is None or counter.has_fallen:
                continue
            if share.value >= 1:
                continue
            if counter.is_at_start:
                return None
            if len(counter.samples) > 1:
                return counter
        return None

    def _count_finished(self) -> int:
        """Return the number of counters that increased step by step to 100 %."""
        count = 0
        for counter in self.counters.values():
            is_full = counter.samples[-1].share >= 1
            has_steps = len(counter.samples) > 2  # not only from the first share to 1
            if is_full and has_steps:
                count += 1
        return count


def find_shares(line: str) -> Iterator[Share]:
    """Yield the shares in a line, from left to right."""
    text = clean(apply_carriage_returns(line))
    text = text[:MAX_LINE_LENGTH]
    for match in SHARE.finditer(text):
        part, total, percent = map(_parse_number, match.groups())
        total_text = str(total)
        if match[3]:  # a percentage
            part = percent
            total = 100.0
            total_text = "%"
        # A total of one item shows no progress, and `40/12` is not a share.
        if total < 2 or not 0 <= part <= total:
            continue
        text_before = text[: match.start()]
        words = LETTERS.findall(text_before)
        key = (total_text, *words[-NAME_WORDS:])
        yield Share(key, value=part / total, item=1 / total)


def _parse_number(text: str | None) -> float:
    """Return the value of a matched number, or 0 for a group that did not match."""
    return float(text.replace(",", "")) if text else 0.0
