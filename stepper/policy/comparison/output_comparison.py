"""Compare the fresh outputs of a cell with the recorded outputs.

1. Outputs become lists of lines and pictures (`output_items`). Differences that never
   count are removed, and rounding errors near zero (`number_noise`).
2. Blocks in which all fresh runs differ from the recorded outputs are changed if the
   fresh runs agree, and nondeterministic ("unstable") if they do not.
3. Pictures are compared by bytes, then by pixels, then by their figure summaries.

The caller decodes pictures, because this package does no I/O.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from typing import NamedTuple

from stepper.policy.comparison import (
    ignored_differences,
    number_noise,
    stderr_comparison,
)
from stepper.policy.comparison.output_items import (
    CellOutputs,
    Item,
    Picture,
    list_items,
    list_types,
)
from stepper.policy.model import StringEnum

# Numbers of longer texts (in characters) are not compared across line breaks.
MAX_TEXT_LENGTH = 1_000_000
# More lines are not aligned: only the lines that one side lacks are counted.
MAX_ALIGNED_LINES = 1000
ROUNDED = "numbers within 1e-6, or rounding errors near zero"
REDRAWN = (
    "the installed plotting libraries draw figures differently;"
    " the figure summaries are the same"
)
SET_ORDER = "the order of a set differs, which depends on the hash seed"
NONDETERMINISTIC = "two fresh runs differ as well"
# Stands for a picture in quoted lines.
PICTURE = "(a picture)"
QUOTED_LINES = 2  # of each side
QUOTED_WIDTH = 160  # characters of a line
MAX_FIGURES = 3  # number of figures that the description mentions


class ReplayVerdict(StringEnum):
    """The result of a cell's replay (a JSON value of `stepper verify --json`)."""

    SAME = "same"
    CLOSE = "close"  # only rounding differs
    UNSTABLE = "unstable"  # two fresh runs differ as well
    CHANGED = "changed"
    FAILED = "failed"
    NOT_JUDGED = "not_judged"  # stepper interrupted the cell
    NOT_RUN = "not_run"  # the replay ended above the cell
    SKIPPED = "skipped"  # not part of a partial replay
    NOT_RECORDED = "not_recorded"  # the cell did not run since its last change

    @property
    def reproduces(self) -> bool:
        """Whether the cell reproduces its recorded outputs."""
        return self in (ReplayVerdict.SAME, ReplayVerdict.CLOSE)


@dataclass(frozen=True)
class Difference:
    """The difference between recorded and fresh outputs.

    `text` is a short description. `lines` are some of the lines that differ: recorded
    lines start with `- `, fresh lines with `+ `.
    """

    verdict: ReplayVerdict
    text: str = ""
    lines: tuple[str, ...] = ()
    # Fresh runs may agree by chance: on a few lines, or on the order of a few words.
    doubtful: bool = False
    removed: int = 0  # lines and pictures of the recorded outputs only
    added: int = 0  # lines and pictures of the fresh outputs only
    figures: tuple[str, ...] = ()  # descriptions of figures that differ
    warnings: tuple[str, ...] = ()  # warnings on stderr that were not recorded
    reordered: bool = False  # the fresh runs have the same words in another order


# Returns the share of pixels that differ in two pictures (base64), None if one of them
# cannot be decoded.
PixelComparison = Callable[[str, str], float | None]


class Block(NamedTuple):
    """A range of items in a list, and the range in another list with other items."""

    start: int
    stop: int
    other_start: int
    other_stop: int


def hash_picture(data: str) -> str:
    """Return a hash of a picture, the key of the picture's figure summary.

    The kernel's helper uses the same key (`kernels/outputs/output_images.py`).
    """
    return str(zlib.crc32(data.encode("utf-8", "replace")))


def compare_outputs(
    recorded: CellOutputs,
    fresh: CellOutputs,
    further: Sequence[CellOutputs] = (),
    compare_pixels: PixelComparison = lambda *_: None,
    redrawn: bool = False,
) -> Difference:
    """Return the difference between the recorded and the fresh outputs of a cell.

    `further` are the outputs of further fresh runs. `redrawn` says that the version of
    a plotting library changed since the recorded run: pictures with equal figure
    summaries then count as close.
    """
    if recorded.outputs == fresh.outputs:
        return Difference(ReplayVerdict.SAME)
    # Editors add types to a notebook, so types that only one side has are ignored.
    shared_types = list_types(recorded.outputs) & list_types(fresh.outputs)
    before = list_items(recorded.outputs, shared_types)
    after = list_items(fresh.outputs, shared_types)
    pictures = _PictureComparison(recorded, fresh, compare_pixels, redrawn)
    after = pictures.replace_matching(before, after)
    if before == after:
        text = REDRAWN if pictures.has_redrawn else ""
        return _describe_equal(recorded, fresh, text)
    before = number_noise.remove_noise(before)
    after = number_noise.remove_noise(after)
    blocks = _find_blocks(before, after)
    if not blocks:
        return _describe_equal(recorded, fresh, ROUNDED)
    further_items = [
        number_noise.remove_noise(
            _replace_equal_pictures(
                list_items(run.outputs, shared_types), after, compare_pixels
            )
        )
        for run in further
    ]
    for items in further_items:
        before = _reorder_recorded(before, after, items)
    if further_items:
        blocks = _find_blocks(before, after)
    confirmed = blocks
    for items in further_items:
        confirmed = _select_confirmed(confirmed, before, after, items)
    if not confirmed:
        return _describe_nondeterminism(after, further_items)
    removed, added = _collect_items(confirmed, before, after)
    if further_items and ignored_differences.differ_by_set_order(removed, added):
        return Difference(ReplayVerdict.UNSTABLE, SET_ORDER)
    has_unconfirmed = len(confirmed) < len(blocks)
    change = _describe_change(removed, added, has_unconfirmed, pictures.descriptions)
    warnings = stderr_comparison.list_new_warnings(recorded.outputs, fresh.outputs)
    return replace(change, warnings=warnings)


def _describe_equal(recorded: CellOutputs, fresh: CellOutputs, text: str) -> Difference:
    """Return the difference of outputs that are equal, or close for the reason `text`.

    It also describes stderr, which does not count.
    """
    warnings = stderr_comparison.list_new_warnings(recorded.outputs, fresh.outputs)
    note = stderr_comparison.describe(recorded.outputs, fresh.outputs)
    if text:
        close_text = "; ".join(filter(None, [text, note]))
        return Difference(ReplayVerdict.CLOSE, close_text, warnings=warnings)
    return Difference(ReplayVerdict.SAME, note, warnings=warnings)


def _describe_nondeterminism(
    after: list[Item], further: Sequence[list[Item]]
) -> Difference:
    """Return the difference of outputs on which the fresh runs disagree."""
    other = next((items for items in further if items != after), after)
    reordered = ignored_differences.have_same_words(after, other)
    return Difference(ReplayVerdict.UNSTABLE, NONDETERMINISTIC, reordered=reordered)


def _describe_change(
    removed: list[Item], added: list[Item], has_unconfirmed: bool, figures: list[str]
) -> Difference:
    """Return the difference for these removed and added items.

    `has_unconfirmed` says whether other lines differ, too, on which the fresh runs do
    not agree. `figures` are descriptions of the pictures that differ.
    """
    counts = []
    if removed:
        counts.append(f"-{len(removed)}")
    if added:
        counts.append(f"+{len(added)}")
    shown_figures = tuple(figures[:MAX_FIGURES])
    removed_lines = [f"- {line}" for line in _quote(removed)]
    added_lines = [f"+ {line}" for line in _quote(added)]
    has_moved_lines = Counter(removed) == Counter(added)
    has_same_words = ignored_differences.have_same_words(removed, added)
    return Difference(
        ReplayVerdict.CHANGED,
        text="; ".join([" ".join(counts), *shown_figures]),
        lines=(*removed_lines, *added_lines),
        doubtful=has_unconfirmed or has_moved_lines or has_same_words,
        removed=len(removed),
        added=len(added),
        figures=shown_figures,
    )


class _PictureComparison:
    """Compares pictures at the same position, and describes their differences."""

    def __init__(
        self,
        recorded: CellOutputs,
        fresh: CellOutputs,
        compare_pixels: PixelComparison,
        redrawn: bool,
    ) -> None:
        self.recorded = recorded
        self.fresh = fresh
        self.compare_pixels = compare_pixels
        self.redrawn = redrawn
        self.has_redrawn = False
        self.descriptions = list[str]()

    def replace_matching(
        self, recorded_items: list[Item], fresh_items: list[Item]
    ) -> list[Item]:
        """Return the fresh items, with the recorded picture in place of each match.

        A picture matches if it looks equal, or if the plotting library only drew it
        differently; then `has_redrawn` is set. Descriptions of the pictures that differ
        are added to `descriptions`.
        """
        recorded = [item for item in recorded_items if isinstance(item, Picture)]
        fresh = [item for item in fresh_items if isinstance(item, Picture)]
        result = fresh_items
        pairs = zip(recorded, fresh, strict=False)
        for number, (old, new) in enumerate(pairs, 1):
            description = None if old == new else self._describe(old, new)
            if description is None:
                continue
            if description:
                self.descriptions.append(f"figure {number}: {description}")
            if description == REDRAWN:
                self.has_redrawn = True
            if description in ("", REDRAWN):
                result = [old if item is new else item for item in result]
        return result

    def _describe(self, old: Picture, new: Picture) -> str | None:
        """Return a description of the difference between two pictures.

        Return an empty string if they look equal, or None if they cannot be compared.
        """
        share = self.compare_pixels(old.data, new.data)
        if share == 0:
            return ""
        old_key = hash_picture(old.data)
        new_key = hash_picture(new.data)
        old_figure = self.recorded.figures.get(old_key, "")
        new_figure = self.fresh.figures.get(new_key, "")
        if old_figure and new_figure and old_figure != new_figure:
            return f"{old_figure} then, {new_figure} now"
        if self.redrawn and old_figure:
            return REDRAWN
        if share is None:
            return None
        return f"{100 * share:.2g} % of its pixels differ"


def _replace_equal_pictures(
    items: list[Item], other_items: list[Item], compare_pixels: PixelComparison
) -> list[Item]:
    """Return `items`, with pictures of `other_items` instead of equal pictures."""
    pictures = [item for item in other_items if isinstance(item, Picture)]
    replaced = list[Item]()
    for item in items:
        if isinstance(item, Picture) and item not in pictures:
            equal = (
                picture
                for picture in pictures
                if compare_pixels(picture.data, item.data) == 0
            )
            replaced.append(next(equal, item))
        else:
            replaced.append(item)
    return replaced


def _find_blocks(before: list[Item], after: list[Item]) -> list[Block]:
    """Return the blocks in which two lists differ by more than rounding."""
    same_length = len(before) == len(after)
    if same_length and all(map(_are_equal, before, after)):
        return []
    if _differ_by_line_breaks(before, after):
        return []
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    shared_end = 0
    while (
        shared_end < shorter - start
        and before[-1 - shared_end] == after[-1 - shared_end]
    ):
        shared_end += 1
    before_stop = len(before) - shared_end
    after_stop = len(after) - shared_end
    if max(before_stop, after_stop) - start > MAX_ALIGNED_LINES:
        return [Block(start, before_stop, start, after_stop)]
    differing = before[start:before_stop]
    other_differing = after[start:after_stop]
    return _align(differing, other_differing, start)


def _differ_by_line_breaks(before: list[Item], after: list[Item]) -> bool:
    """Return whether two lists differ only in rounding and line breaks.

    Arrays are printed with other line breaks if their numbers are rounded differently.
    """
    for item in (*before, *after):
        if isinstance(item, Picture):
            return False
    before_text = "\n".join(map(str, before))
    after_text = "\n".join(map(str, after))
    if max(len(before_text), len(after_text)) >= MAX_TEXT_LENGTH:
        return False
    return ignored_differences.differ_by_rounding(before_text, after_text)


def _align(before: list[Item], after: list[Item], offset: int) -> list[Block]:
    """Align two lists, and return the blocks that differ.

    `offset` is added to each position.
    """
    blocks = list[Block]()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        if stop - start != other_stop - other_start:
            blocks.append(
                Block(
                    offset + start,
                    offset + stop,
                    offset + other_start,
                    offset + other_stop,
                )
            )
            continue
        for index in range(stop - start):
            old = before[start + index]
            new = after[other_start + index]
            if not _are_equal(old, new):
                first = offset + start + index
                second = offset + other_start + index
                blocks.append(Block(first, first + 1, second, second + 1))
    return blocks


def _are_equal(recorded: Item, fresh: Item) -> bool:
    """Return whether two items are equal, or differ only in rounding."""
    if recorded == fresh:
        return True
    if not isinstance(recorded, str) or not isinstance(fresh, str):
        return False
    return ignored_differences.differ_by_rounding(recorded, fresh)


def _select_confirmed(
    blocks: list[Block], before: list[Item], after: list[Item], further: list[Item]
) -> list[Block]:
    """Return the blocks in which two fresh runs agree and the recorded outputs differ.

    `before` are the recorded items, `after` and `further` the items of the fresh runs.
    """
    is_reordered = after != further and Counter(after) == Counter(further)
    if is_reordered:
        return _select_by_content(blocks, before, after)
    disagreements = _find_blocks(after, further)
    disagreeing = {
        index for block in disagreements for index in range(block.start, block.stop)
    }
    # Items that only one of the fresh runs has at that position.
    varying = Counter[Item]()
    for block in disagreements:
        varying.update(after[block.start : block.stop])
        varying.update(further[block.other_start : block.other_stop])
    # Positions at which the second run has additional items.
    insertions = {block.start for block in disagreements if block.start == block.stop}
    same_fresh_length = len(after) == len(further)
    fresh_length_differs = same_fresh_length and len(before) != len(after)

    def is_confirmed(block: Block) -> bool:
        """Return whether the fresh runs agree on the difference in a block."""
        recorded_items = before[block.start : block.stop]
        fresh_range = range(block.other_start, block.other_stop)
        if not fresh_range:  # items were removed
            if block.other_start in insertions:
                return False
            return any(not varying[item] for item in recorded_items)
        if not recorded_items:  # items were added
            return any(
                index not in disagreeing and not varying[after[index]]
                for index in fresh_range
            )
        # Items were replaced. If both fresh runs have a number of lines that differs
        # from the recorded number, the difference is confirmed, whatever the lines are.
        if fresh_length_differs and len(recorded_items) != len(fresh_range):
            return True
        return any(index not in disagreeing for index in fresh_range)

    confirmed = [block for block in blocks if is_confirmed(block)]
    # All three runs have the same number of lines: a removed line corresponds to an
    # added one, on which the fresh runs disagree.
    same_length = same_fresh_length and len(before) == len(after)
    only_removed = all(block.other_start == block.other_stop for block in confirmed)
    return [] if same_length and only_removed else confirmed


def _select_by_content(
    blocks: list[Block], before: list[Item], after: list[Item]
) -> list[Block]:
    """Return the blocks with items that only one of the lists contains.

    This is used if two fresh runs have the same items in different orders.
    """
    before_counts = Counter(before)
    after_counts = Counter(after)
    unmatched = (before_counts - after_counts) + (after_counts - before_counts)
    selected = []
    for block in blocks:
        items = (
            *before[block.start : block.stop],
            *after[block.other_start : block.other_stop],
        )
        if any(unmatched[item] for item in items):
            selected.append(block)
    return selected


def _reorder_recorded(
    before: list[Item], after: list[Item], further: list[Item]
) -> list[Item]:
    """Return the recorded items, in the order of the fresh run if the order is random.

    The order is random if two fresh runs have the same items in different orders. An
    example is a set whose elements are printed on separate lines.
    """
    disagreements = [
        Block(block.other_start, block.other_stop, block.start, block.stop)
        for block in _find_blocks(after, further)
    ]
    between_runs = _find_moved_region(disagreements, further, after)
    blocks = _find_blocks(before, after)
    since_recorded = _find_moved_region(blocks, before, after)
    if not between_runs or since_recorded.start > between_runs.stop:
        return before
    if between_runs.start > since_recorded.stop:
        return before
    start = min(between_runs.start, since_recorded.start)
    stop = max(between_runs.stop, since_recorded.stop)
    region = after[start:stop]
    movable = Counter(region) & Counter(further) & Counter(before)
    remaining = movable.copy()
    positions = list[int]()
    for position, item in enumerate(before):
        if remaining[item]:
            remaining[item] -= 1
            positions.append(position)
    reordered = [*before]
    next_position = iter(positions)
    for item in region:
        if movable[item]:
            movable[item] -= 1
            reordered[next(next_position)] = item
    return reordered


def _find_moved_region(
    blocks: list[Block], before: list[Item], after: list[Item]
) -> range:
    """Return the positions in `after` of items that moved, or an empty range.

    `blocks` are the differences between the two lists.
    """
    items_before = set[Item]()
    items_after = set[Item]()
    for block in blocks:
        items_before.update(before[block.start : block.stop])
        items_after.update(after[block.other_start : block.other_stop])
    moved = items_before & items_after
    moved_blocks = [
        block
        for block in blocks
        if moved.intersection(before[block.start : block.stop])
        or moved.intersection(after[block.other_start : block.other_stop])
    ]
    if not moved_blocks:
        return range(0)
    return range(moved_blocks[0].other_start, moved_blocks[-1].other_stop)


class _ChangedItems(NamedTuple):
    """The items of the recorded outputs only, and of the fresh outputs only."""

    removed: list[Item]
    added: list[Item]


def _collect_items(
    blocks: list[Block], before: list[Item], after: list[Item]
) -> _ChangedItems:
    """Return the removed items and the added items of blocks."""
    removed = [item for block in blocks for item in before[block.start : block.stop]]
    added = [
        item for block in blocks for item in after[block.other_start : block.other_stop]
    ]
    is_aligned = max(len(removed), len(added)) <= MAX_ALIGNED_LINES
    if len(blocks) > 1 or is_aligned:
        return _ChangedItems(removed, added)
    # One block that was too long to be aligned: omit the items that both sides have.
    only_removed = Counter(removed) - Counter(added)
    only_added = Counter(added) - Counter(removed)
    if not only_removed and not only_added:
        return _ChangedItems(removed, added)
    return _ChangedItems([*only_removed.elements()], [*only_added.elements()])


def _quote(items: Sequence[Item]) -> list[str]:
    """Return the first items, truncated to `QUOTED_WIDTH` characters."""
    lines = []
    for item in items[:QUOTED_LINES]:
        text = item if isinstance(item, str) else PICTURE
        if len(text) > QUOTED_WIDTH:
            text = text[: QUOTED_WIDTH - 1] + "…"
        lines.append(text)
    return lines
