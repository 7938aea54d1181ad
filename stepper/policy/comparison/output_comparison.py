"""How a cell's fresh outputs are compared with those that were recorded. Pure: pictures are decoded by who asks.

1. Streams of one name are joined; of a display the text counts where it says something. What is left out: `noise`.
2. Of what differs in all fresh runs lines on which these disagree are unstable, others changed.
3. Pictures: bytes, then pixels, then what is known of the figures.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from stepper.common.text import format_count
from stepper.policy.comparison import ignored_differences
from stepper.policy.model import Word

RASTER = re.compile(r"image/(?!svg)")
# of plotly, Vega, Bokeh
OBJECT = re.compile(r"application/vnd\.(?!jupyter\.widget-view).*json")
# a text that says nothing but what it is
PLACEHOLDER = re.compile(r"<[^\n]*>|[\w.]+\(\.\.\.\)")
FORMS = (
    "text/html",
    "image/svg+xml",
    "text/markdown",
    "text/latex",
    "application/json",
    "application/javascript",
)
MARKUP = ("text/html", "image/svg+xml")
LONG = 1_000_000  # characters of a text whose numbers are not compared across its lines
# lines that are aligned; of more it is only counted how many are in one and not in the
# other
MOST = 1000
REDRAWN = "figures are drawn otherwise by what is installed now; all that is known of them is the same"
PICTURE = "(a picture)"  # how one is quoted
QUOTED, WIDTH = 2, 160  # lines of each side, and characters of a line


class Sameness(Word):
    """What came of a cell's replay."""

    SAME = "same"
    CLOSE = "close"  # numbers within 1e-6
    UNSTABLE = "unstable"  # two fresh runs differ as well
    CHANGED = "changed"
    FAILED = "failed"
    NOT_RUN = "not_run"  # it stands below one that failed
    NOT_RECORDED = "not_recorded"  # it was never run, or not since it was changed

    @property
    def reproduces(self) -> bool:
        """Whether the cell is as recorded."""
        return self in (Sameness.SAME, Sameness.CLOSE)


@dataclass(frozen=True)
class Difference:
    """How outputs differ: the verdict, in a few words in what, and some of the lines, `- ` then and `+ ` now."""

    verdict: Sameness
    text: str = ""
    lines: tuple[str, ...] = ()
    # fresh runs may agree by chance: on a few of the lines, on the order of a few words
    doubtful: bool = False
    removed: int = 0  # lines and pictures that are not there now
    added: int = 0  # … that were not there then
    figures: tuple[str, ...] = ()  # how figures differ


@dataclass(frozen=True)
class Shown:
    """What a cell showed, and what is known of its figures: the `key` of a picture → a few words."""

    outputs: Sequence[Mapping[str, Any]]
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Picture:
    """A picture among what is compared."""

    text: str


# How much of two pictures (base64) differs: the share of the pixels; None where they
# can't be decoded.
Pixels = Callable[[str, str], float | None]
Item = str | Picture
Block = tuple[int, int, int, int]


def key(picture: str) -> str:
    """Return what is known of a picture by: as the kernel's helper tells it (`kernel.pictures.key`)."""
    return str(zlib.crc32(picture.encode("utf-8", "replace")))


def compare(
    then: Shown,
    now: Shown,
    again: Sequence[Shown] = (),
    pixels: Pixels = lambda *_: None,
    redrawn: bool = False,
) -> Difference:
    """Return how fresh outputs differ from the recorded ones; `again` is what further fresh runs showed.

    `redrawn`: another version of what draws figures is there than was then: what is the same by all that is known of
    it is close.
    """
    if then.outputs == now.outputs:
        return Difference(Sameness.SAME)
    told = _stderr(then, now)
    both = _kinds(then.outputs) & _kinds(now.outputs)
    before, after = _items(then.outputs, both), _items(now.outputs, both)
    drawn = [
        [each for each in side if isinstance(each, Picture)] for side in (before, after)
    ]
    near, words = False, list[str]()
    for number, (was, drew) in enumerate(zip(*drawn, strict=False), 1):
        if (
            was != drew
            and (how := _drawn(was, drew, then, now, pixels, redrawn)) is not None
        ):
            near = near or how == REDRAWN
            words += [f"figure {number}: {how}"] if how else []
            if not how or how == REDRAWN:
                after = [was if each is drew else each for each in after]
    if before == after:
        return (
            Difference(Sameness.CLOSE, REDRAWN)
            if near
            else Difference(Sameness.SAME, told)
        )
    blocks = _differing(before, after)
    if not blocks:
        return Difference(Sameness.CLOSE, "numbers within 1e-6")
    others = [
        _same_pictures(_items(each.outputs, both), after, pixels) for each in again
    ]
    for other in others:
        before = _in_order(before, after, other)
    found = blocks = _differing(before, after) if others else blocks
    for other in others:
        blocks = _stable(blocks, before, after, other)
    if not blocks:
        return Difference(Sameness.UNSTABLE, "two fresh runs differ as well (no seed?)")
    gone, new = _sides(blocks, before, after)
    counts = (
        f"{f'-{len(gone)} ' if gone else ''}{f'+{len(new)}' if new else ''}".strip()
    )
    quoted = [f"- {line}" for line in _quoted(gone)] + [
        f"+ {line}" for line in _quoted(new)
    ]
    doubtful = len(blocks) < len(found) or ignored_differences.reordered(gone, new)
    figures = tuple(words[:3])
    return Difference(
        Sameness.CHANGED,
        "; ".join([counts, *figures]),
        tuple(quoted),
        doubtful,
        len(gone),
        len(new),
        figures,
    )


def _kinds(outputs: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the forms in which outputs are there: editors add some of their own to what they record."""
    return {
        kind
        for output in outputs
        if isinstance(data := output.get("data"), Mapping)
        for kind in data
    }


def _items(outputs: Iterable[Mapping[str, Any]], both: set[str]) -> list[Item]:
    """Return what is judged of outputs: lines and pictures, what was printed first; `both` sides have these forms."""
    outputs = [*outputs]
    found: list[Item] = [*ignored_differences.lines(_stream(outputs, "stdout"))]
    for output in outputs:
        if output.get("output_type") == "error":
            found += ignored_differences.lines(
                f"{output.get('ename')}: {output.get('evalue')}"
            )
        elif isinstance(data := output.get("data"), Mapping):
            found += _display(data, both)
    return found


def _display(data: Mapping[str, Any], both: set[str]) -> list[Item]:
    if rasters := [
        kind for kind, content in data.items() if RASTER.match(kind) and content
    ]:
        # One picture in several forms: of both sides the same one, whose pixels nothing
        # rounds off.
        kind = min(
            rasters, key=lambda kind: (kind not in both, kind != "image/png", kind)
        )
        return [Picture("".join(_text(data[kind]).split()))]
    if kind := next((kind for kind in data if kind in both and OBJECT.match(kind)), ""):
        return [*ignored_differences.lines(ignored_differences.plain(data[kind]))]
    text = _text(data.get("text/plain", ""))
    if text.strip() and not PLACEHOLDER.fullmatch(text.strip()):
        return [*ignored_differences.lines(text)]
    kind = next((form for form in FORMS if data.get(form)), "") or next(iter(data), "")
    content = (
        ignored_differences.plain(data[kind])
        if kind.endswith("json")
        else _text(data.get(kind, ""))
    )
    return [
        *ignored_differences.lines(
            ignored_differences.markup(content) if kind in MARKUP else content
        )
    ]


def _stream(outputs: Iterable[Mapping[str, Any]], name: str) -> str:
    streams = (output for output in outputs if output.get("output_type") == "stream")
    return "".join(
        _text(output.get("text", ""))
        for output in streams
        if output.get("name", "stdout") == name
    )


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(map(str, content))
    return content if isinstance(content, str) else ignored_differences.plain(content)


def _stderr(then: Shown, now: Shown) -> str:
    """Return what is told of stderr, which is not judged."""
    before, after = (
        ignored_differences.lines(_stream(each.outputs, "stderr"))
        for each in (then, now)
    )
    told = f"stderr differs ({format_count(len(before), 'line')} then, {len(after)} now), which is not judged"
    return "" if before == after else told


def _drawn(
    one: Picture, other: Picture, then: Shown, now: Shown, pixels: Pixels, redrawn: bool
) -> str | None:
    """Return in what a picture differs from one in its place: '' where it does not, None where that is not known."""
    share = pixels(one.text, other.text)
    if share == 0:
        return ""
    before, after = (
        then.facts.get(key(one.text), ""),
        now.facts.get(key(other.text), ""),
    )
    if before and after and before != after:
        return f"{before} then, {after} now"
    if redrawn and before:
        return REDRAWN
    return None if share is None else f"{100 * share:.2g} % of its pixels differ"


def _same_pictures(items: list[Item], like: list[Item], pixels: Pixels) -> list[Item]:
    """Return items with the pictures of others in the place of those that look the same."""
    known = [each for each in like if isinstance(each, Picture)]

    def known_as(item: Item) -> Item:
        if not isinstance(item, Picture) or item in known:
            return item
        return next((each for each in known if pixels(each.text, item.text) == 0), item)

    return [*map(known_as, items)]


def _differing(before: list[Item], after: list[Item]) -> list[Block]:
    """Return where two lists differ by more than close numbers: (from, to) in the first, in the second."""
    if len(before) == len(after) and all(map(_alike, before, after)):
        return []
    if not any(isinstance(each, Picture) for each in (*before, *after)):
        whole = ["\n".join(map(str, items)) for items in (before, after)]
        # arrays that break elsewhere
        if max(map(len, whole)) < LONG and ignored_differences.close(*whole):
            return []
    begin, most = 0, min(len(before), len(after))
    while begin < most and before[begin] == after[begin]:
        begin += 1
    end = 0
    while end < most - begin and before[-1 - end] == after[-1 - end]:
        end += 1
    one, other = before[begin : len(before) - end], after[begin : len(after) - end]
    if max(len(one), len(other)) > MOST:
        return [(begin, len(before) - end, begin, len(after) - end)]
    found = list[Block]()
    for kind, a, b, c, d in SequenceMatcher(
        None, one, other, autojunk=False
    ).get_opcodes():
        if kind == "equal":
            continue
        if b - a == d - c:  # line by line
            pairs = enumerate(zip(one[a:b], other[c:d], strict=True))
            found += [
                (a + n, a + n + 1, c + n, c + n + 1)
                for n, pair in pairs
                if not _alike(*pair)
            ]
        else:
            found.append((a, b, c, d))
    return [(begin + a, begin + b, begin + c, begin + d) for a, b, c, d in found]


def _alike(one: Item, other: Item) -> bool:
    return one == other or (
        isinstance(one, str)
        and isinstance(other, str)
        and ignored_differences.close(one, other)
    )


def _stable(
    blocks: list[Block], before: list[Item], after: list[Item], again: list[Item]
) -> list[Block]:
    """Return the blocks in which two fresh runs agree against the recording."""
    # in another order: what else the recording has is changed
    if after != again and Counter(after) == Counter(again):
        apart = (Counter(before) - Counter(after)) + (Counter(after) - Counter(before))
        return [
            (a, b, c, d)
            for a, b, c, d in blocks
            if any(apart[item] for item in (*before[a:b], *after[c:d]))
        ]
    differing = _differing(after, again)
    loose = {n for a, b, _, _ in differing for n in range(a, b)}
    apart = Counter(
        item for a, b, c, d in differing for item in (*after[a:b], *again[c:d])
    )
    gaps = {a for a, b, _, _ in differing if a == b}  # where the second run shows more

    def agreed(a: int, b: int, c: int, d: int) -> bool:
        if c == d:
            return c not in gaps and not all(apart[item] for item in before[a:b])
        if a == b:
            return not all(n in loose or apart[after[n]] for n in range(c, d))
        # whatever stands there, both have as many lines of it
        fewer = b - a != d - c and uneven
        return fewer or not all(n in loose for n in range(c, d))

    uneven = len(before) != len(after) == len(again)
    found = [block for block in blocks if agreed(*block)]
    # As many lines in all three: what is gone stands for what is new, and that is not
    # the same in the two.
    drawn = len(before) == len(after) == len(again)
    return [] if drawn and all(c == d for _, _, c, d in found) else found


def _in_order(before: list[Item], after: list[Item], again: list[Item]) -> list[Item]:
    """Return recorded items in the fresh order where two fresh runs have another one: of a set, a line each."""
    low, high = _shuffled(
        [(c, d, a, b) for a, b, c, d in _differing(after, again)], again, after
    )
    begin, end = _shuffled(_differing(before, after), before, after)
    if low == high or begin > high or low > end:
        return before
    region = after[min(low, begin) : max(high, end)]
    free, places = Counter(region) & Counter(again) & Counter(before), list[int]()
    made, left = [*before], free.copy()
    for place, item in enumerate(before):
        if left[item]:
            left[item] -= 1
            places.append(place)
    spots = iter(places)
    for item in region:
        if free[item]:
            free[item] -= 1
            made[next(spots)] = item
    return made


def _shuffled(
    blocks: list[Block], one: list[Item], other: list[Item]
) -> tuple[int, int]:
    """Return from where to where in the second of two lists there is what the first has in another place."""
    sides = [(one[a:b], other[c:d]) for a, b, c, d in blocks]
    moved = {item for side, _ in sides for item in side} & {
        item for _, side in sides for item in side
    }
    found = [
        each
        for each, side in zip(blocks, sides, strict=True)
        if any(map(moved.intersection, side))
    ]
    return (found[0][2], found[-1][3]) if found else (0, 0)


def _sides(
    blocks: list[Block], before: list[Item], after: list[Item]
) -> tuple[list[Item], list[Item]]:
    gone = [item for a, b, _, _ in blocks for item in before[a:b]]
    new = [item for _, _, c, d in blocks for item in after[c:d]]
    # not aligned: what both have is in neither
    if len(blocks) == 1 and max(len(gone), len(new)) > MOST:
        less, more = Counter(gone) - Counter(new), Counter(new) - Counter(gone)
        return ([*less.elements()], [*more.elements()]) if less or more else (gone, new)
    return gone, new


def _quoted(items: Sequence[Item]) -> list[str]:
    texts = [item if isinstance(item, str) else PICTURE for item in items[:QUOTED]]
    return [text if len(text) <= WIDTH else text[: WIDTH - 1] + "…" for text in texts]
