"""When a cell that runs will be over, by the shares that it prints: `12 %`, `3/10`, `40 of 120`.

A *counter* is a share that comes again at the same place of a line (the words before it, its total). The first one that
is under way decides, from the top down and from the left: what encloses others stands before them. Nothing is told of
a counter that falls (it is none, or begins anew for each round), stands still, or was under way before the cell began.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stepper.common.text import apply_carriage_returns, clean

NUMBER = r"(\d[\d,]*(?:\.\d+)?)"
# no date, no time
PART = rf"{NUMBER}\s*(?:/|(?:out )?of)\s*{NUMBER}(?![\d.,]*(?:/|:?\d))"
SHARE = re.compile(rf"(?<![\w.,/:-])(?:{PART}|(\d{{1,3}}(?:\.\d+)?)\s?%)")
LETTERS = re.compile(r"[^\W\d_]+")
# characters of a line that are read; words before a share that name it
LINE, WORDS = 400, 4
LEAST_SECONDS = 3.0  # between the first and the last share of a counter
MOST = 200  # samples, and counters
STALLED = 10  # times its usual interval
UNEVEN = 4  # times faster or slower than on the whole
BEFORE = 0.05  # what may be done when the cell begins, besides one of its items


@dataclass
class Counter:
    """A share as it grew: (seconds since the cell began, share), a sample for each change."""

    unit: float  # of one item
    samples: list[tuple[float, float]] = field(default_factory=list)
    fell: bool = False

    def take(self, seconds: float, share: float) -> None:
        """Take a look at it."""
        last = self.samples[-1][1] if self.samples else -1.0
        self.fell = self.fell or share < last
        if share > last:
            self.samples.append((seconds, share))
        if len(self.samples) > MOST:
            del self.samples[1:-1:2]

    @property
    def waits(self) -> bool:
        """Whether it stands where counters begin."""
        return len(self.samples) == 1 and self.samples[0][1] <= self.unit + BEFORE

    def left(self, now: float) -> float | None:
        """Return in how many seconds it is full; None where that can't be told."""
        (first, least), (last, share) = self.samples[0], self.samples[-1]
        if last - first < LEAST_SECONDS:
            return None
        whole = (share - least) / (last - first)
        before = max(0.0, least - whole * first)
        middle, half = [
            sample for sample in self.samples if sample[0] <= (first + last) / 2
        ][-1]
        rate = (share - half) / (last - middle)
        since = [sample for sample in self.samples if sample[0] >= middle]
        usual = (last - middle) / (len(since) - 1)
        if (
            before > self.unit + BEFORE
            or not whole / UNEVEN < rate < whole * UNEVEN
            or now - last > STALLED * usual
        ):
            return None
        if now - last > 2 * usual:
            rate, last = (share - half) / (now - middle), now
        return max(0.0, (1 + before - share) / rate - (now - last))


class Estimate:
    """Tells when one cell will be over."""

    def __init__(self) -> None:
        self.counters: dict[tuple[str, ...], Counter] = {}
        self.decides: Counter | None = None

    def look(self, now: float, lines: Sequence[str]) -> float | None:
        """Look at the last lines that a cell has printed, so many seconds after it began; return what is left."""
        shown = {
            key: (share, unit) for line in lines for key, share, unit in shares(line)
        }
        for key, (share, unit) in shown.items():
            if key in self.counters or len(self.counters) < MOST:
                self.counters.setdefault(key, Counter(unit)).take(now, share)
        if (
            sum(
                counter.samples[-1][1] >= 1 and len(counter.samples) > 2
                for counter in self.counters.values()
            )
            > 2
        ):
            return None  # one bar after the other: who knows how many
        if not shown and self.decides:  # what it printed since tells nothing
            return self.decides.left(now)
        self.decides = None
        for key, (share, _) in shown.items():
            counter = self.counters.get(key)
            if counter is None or counter.fell or share >= 1:
                continue
            if counter.waits:
                return None  # it may enclose the others
            if len(counter.samples) > 1:
                self.decides = counter
                return counter.left(now)
        return None


def shares(line: str) -> Iterator[tuple[tuple[str, ...], float, float]]:
    """Yield the shares in a line: what names each, how much of the whole it is, and one item of it."""
    text = clean(apply_carriage_returns(line))[:LINE]
    for found in SHARE.finditer(text):
        part, whole, percent = (
            float(number.replace(",", "")) if number else 0.0
            for number in found.groups()
        )
        part, whole, unit = (
            (percent, 100.0, 0.01)
            if found[3]
            else (part, whole, 1 / whole if whole else 1.0)
        )
        if 0 <= part <= whole and whole >= 2:
            name = LETTERS.findall(text[: found.start()])[-WORDS:]
            yield ("%" if found[3] else str(whole), *name), part / whole, unit
