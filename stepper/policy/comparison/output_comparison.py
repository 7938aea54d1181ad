"""Compare the fresh outputs of a cell with the recorded outputs.

1. Outputs become lists of lines and pictures (`output_items`). Differences that never
   count are removed, and rounding errors near zero (`number_noise`).
2. The lists are aligned. A difference counts as a change if all fresh runs agree, and
   as nondeterministic ("unstable") if they do not.
3. Pictures are compared by bytes, then by pixels, then by their figure summaries. The
   caller provides the function that decodes and compares pixels.
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

# The lines and pictures of a cell's outputs.
Items = list[Item]

# Longer texts (in characters) are not compared without their line breaks.
MAX_TEXT_LENGTH = 1_000_000
# Longer blocks of lines are not aligned, because this would take long. Only the lines
# that one of the two sides lacks are counted.
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
    # Whether the fresh runs may agree by chance: on a few lines, or on the order of a
    # few words.
    is_doubtful: bool = False
    removed: int = 0  # lines and pictures of the recorded outputs only
    added: int = 0  # lines and pictures of the fresh outputs only
    figures: tuple[str, ...] = ()  # descriptions of figures that differ
    warnings: tuple[str, ...] = ()  # warnings on stderr that were not recorded
    is_reordered: bool = False  # the fresh runs have the same words in another order


# Returns the share of pixels that differ in two pictures (base64), or None if one of
# the pictures cannot be decoded.
PixelComparison = Callable[[str, str], float | None]


class Block(NamedTuple):
    """A range of items in one list, and the differing range in another list.

    One of the ranges is empty if items were added or removed.
    """

    start: int
    stop: int
    other_start: int
    other_stop: int

    def select(self, items: Items) -> Items:
        """Return the items of the first list in this block."""
        return items[self.start : self.stop]

    def select_other(self, other_items: Items) -> Items:
        """Return the items of the other list in this block."""
        return other_items[self.other_start : self.other_stop]

    def swap(self) -> Block:
        """Return the block with the two lists in the opposite order."""
        return Block(self.other_start, self.other_stop, self.start, self.stop)

    def shift(self, offset: int) -> Block:
        """Return the block with an offset added to all positions."""
        return Block(
            self.start + offset,
            self.stop + offset,
            self.other_start + offset,
            self.other_stop + offset,
        )


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
    *,
    is_redrawn: bool = False,
) -> Difference:
    """Return the difference between the recorded and the fresh outputs of a cell.

    `further` are the outputs of further fresh runs. `is_redrawn` says that the version
    of a plotting library has changed since the recorded run. In this case, pictures
    with equal figure summaries count as close. By default, pixels are not compared.
    """
    if recorded.outputs == fresh.outputs:
        return Difference(ReplayVerdict.SAME)
    # MIME types on only one side are ignored, because editors add types to a notebook.
    shared_types = list_types(recorded.outputs) & list_types(fresh.outputs)
    before = list_items(recorded.outputs, shared_types)
    after = list_items(fresh.outputs, shared_types)
    pictures = _PictureComparison(
        recorded, fresh, compare_pixels, is_redrawn=is_redrawn
    )
    after = pictures.replace_matching(before, after)
    if before == after:
        text = REDRAWN if pictures.has_redrawn else ""
        return _describe_equal(recorded, fresh, text)
    before = number_noise.remove_noise(before)
    after = number_noise.remove_noise(after)
    if not _find_blocks(before, after):
        return _describe_equal(recorded, fresh, ROUNDED)
    further_items = list[Items]()
    for run in further:
        items = list_items(run.outputs, shared_types)
        items = _replace_equal_pictures(items, after, compare_pixels)
        further_items.append(number_noise.remove_noise(items))
    difference = _judge_items(before, after, further_items, pictures.descriptions)
    if difference.verdict is not ReplayVerdict.CHANGED:
        return difference
    warnings = stderr_comparison.list_new_warnings(recorded.outputs, fresh.outputs)
    return replace(difference, warnings=warnings)


def _judge_items(
    before: Items,
    after: Items,
    further: Sequence[Items],
    figures: list[str],
) -> Difference:
    """Return the difference between recorded and fresh items, which differ.

    `further` are the items of further fresh runs. `figures` are descriptions of the
    pictures that differ.
    """
    for items in further:
        before = _reorder_recorded(before, after, items)
    blocks = _find_blocks(before, after)
    confirmed_blocks = blocks
    for items in further:
        confirmed_blocks = _select_confirmed(confirmed_blocks, before, after, items)
    if not confirmed_blocks:
        return _describe_nondeterminism(after, further)
    removed, added = _collect_items(confirmed_blocks, before, after)
    if further and ignored_differences.differ_by_set_order(removed, added):
        return Difference(ReplayVerdict.UNSTABLE, SET_ORDER)
    has_unconfirmed = len(confirmed_blocks) < len(blocks)
    return _describe_change(removed, added, figures, has_unconfirmed=has_unconfirmed)


def _describe_equal(recorded: CellOutputs, fresh: CellOutputs, text: str) -> Difference:
    """Return the difference of outputs that reproduce, with a note on stderr.

    `text` is the reason why the outputs are only close, or empty for equal outputs.
    """
    warnings = stderr_comparison.list_new_warnings(recorded.outputs, fresh.outputs)
    note = stderr_comparison.describe(recorded.outputs, fresh.outputs)
    if text:
        close_text = "; ".join(filter(None, [text, note]))
        return Difference(ReplayVerdict.CLOSE, close_text, warnings=warnings)
    return Difference(ReplayVerdict.SAME, note, warnings=warnings)


def _describe_nondeterminism(after: Items, further: Sequence[Items]) -> Difference:
    """Return the difference of outputs that also differ between the fresh runs.

    `after` and `further` are the items of the fresh runs.
    """
    other = next((items for items in further if items != after), after)
    is_reordered = ignored_differences.have_same_words(after, other)
    return Difference(
        ReplayVerdict.UNSTABLE, NONDETERMINISTIC, is_reordered=is_reordered
    )


def _describe_change(
    removed: Items, added: Items, figures: list[str], *, has_unconfirmed: bool
) -> Difference:
    """Return the difference for these removed and added items.

    `has_unconfirmed` says that further lines differ, on which the fresh runs do not
    agree. `figures` are descriptions of the pictures that differ.
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
    order = ""
    if has_moved_lines and not has_unconfirmed:
        order = "the same lines in another order"
    has_same_words = ignored_differences.have_same_words(removed, added)
    return Difference(
        ReplayVerdict.CHANGED,
        text="; ".join(filter(None, [" ".join(counts), order, *shown_figures])),
        lines=(*removed_lines, *added_lines),
        is_doubtful=has_unconfirmed or has_moved_lines or has_same_words,
        removed=len(removed),
        added=len(added),
        figures=shown_figures,
    )


class _PictureDifference(NamedTuple):
    """The difference between two pictures.

    `is_ignored` says that the pictures look equal, or that only the plotting library
    has changed. `text` describes the difference; it is empty if the pictures look equal
    or cannot be compared.
    """

    is_ignored: bool
    text: str = ""


class _PictureComparison:
    """Compares the pictures of two lists in order, and describes their differences."""

    def __init__(
        self,
        recorded: CellOutputs,
        fresh: CellOutputs,
        compare_pixels: PixelComparison,
        *,
        is_redrawn: bool,
    ) -> None:
        self.recorded = recorded
        self.fresh = fresh
        self.compare_pixels = compare_pixels
        self.is_redrawn = is_redrawn
        self.has_redrawn = False
        self.descriptions = list[str]()

    def replace_matching(self, recorded_items: Items, fresh_items: Items) -> Items:
        """Return the fresh items, with the recorded picture in place of each match.

        A picture matches if it looks equal, or if only the plotting library has
        changed. In the second case, `has_redrawn` is set. Descriptions of all visible
        differences are added to `descriptions`.
        """
        recorded = [item for item in recorded_items if isinstance(item, Picture)]
        fresh = [item for item in fresh_items if isinstance(item, Picture)]
        result = fresh_items
        pairs = zip(recorded, fresh, strict=False)
        for number, (old, new) in enumerate(pairs, 1):
            if old == new:
                continue
            difference = self._compare(old, new)
            if difference.text:
                self.descriptions.append(f"figure {number}: {difference.text}")
            if difference.text == REDRAWN:
                self.has_redrawn = True
            if difference.is_ignored:
                result = [old if item is new else item for item in result]
        return result

    def _compare(self, old: Picture, new: Picture) -> _PictureDifference:
        """Return the difference between a recorded and a fresh picture."""
        share = self.compare_pixels(old.data, new.data)
        if share == 0:
            return _PictureDifference(is_ignored=True)
        old_key = hash_picture(old.data)
        new_key = hash_picture(new.data)
        old_figure = self.recorded.figures.get(old_key, "")
        new_figure = self.fresh.figures.get(new_key, "")
        text = ""
        if share is not None:
            percent = 100 * share
            digits = ".0f" if percent >= 10 else ".2g"  # 100, not 1e+02
            text = f"{percent:{digits}} % of its pixels differ"
        if old_figure and new_figure:
            if old_figure != new_figure:
                text = f"{old_figure} then, {new_figure} now"
            elif self.is_redrawn:
                return _PictureDifference(is_ignored=True, text=REDRAWN)
        return _PictureDifference(is_ignored=False, text=text)


def _replace_equal_pictures(
    items: Items, other_items: Items, compare_pixels: PixelComparison
) -> Items:
    """Return the items, with the picture of `other_items` in place of each equal one.

    Pictures are equal if all their pixels are equal.
    """
    pictures = [item for item in other_items if isinstance(item, Picture)]
    new_items = list[Item]()
    for item in items:
        if isinstance(item, Picture) and item not in pictures:
            equal = (
                picture
                for picture in pictures
                if compare_pixels(picture.data, item.data) == 0
            )
            new_items.append(next(equal, item))
        else:
            new_items.append(item)
    return new_items


def _find_blocks(before: Items, after: Items) -> list[Block]:
    """Return the blocks in which two lists differ by more than rounding.

    `before` is the first list of the blocks.
    """
    same_length = len(before) == len(after)
    if same_length and all(map(_are_equal, before, after)):
        return []
    if _differ_by_line_breaks(before, after):
        return []
    start = _count_equal(before, after)
    shared_end = _count_equal(before[start:][::-1], after[start:][::-1])
    before_stop = len(before) - shared_end
    after_stop = len(after) - shared_end
    if max(before_stop, after_stop) - start > MAX_ALIGNED_LINES:
        return [Block(start, before_stop, start, after_stop)]
    differing = before[start:before_stop]
    other_differing = after[start:after_stop]
    return _align(differing, other_differing, start)


def _count_equal(items: Items, other_items: Items) -> int:
    """Return the number of equal items at the start of two lists."""
    count = 0
    for item, other in zip(items, other_items, strict=False):
        if item != other:
            break
        count += 1
    return count


def _differ_by_line_breaks(before: Items, after: Items) -> bool:
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


def _align(before: Items, after: Items, offset: int) -> list[Block]:
    """Align two lists, and return the blocks that differ.

    `offset` is added to the positions of the blocks. A block with the same number of
    items on both sides is split into single items.
    """
    blocks = list[Block]()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, stop, other_start, other_stop in matcher.get_opcodes():
        if tag == "equal":
            continue
        if stop - start != other_stop - other_start:
            blocks.append(Block(start, stop, other_start, other_stop))
            continue
        position = other_start
        for index in range(start, stop):
            if not _are_equal(before[index], after[position]):
                block = Block(index, index + 1, position, position + 1)
                blocks.append(block)
            position += 1
    return [block.shift(offset) for block in blocks]


def _are_equal(recorded: Item, fresh: Item) -> bool:
    """Return whether two items are equal, or differ only in rounding."""
    if recorded == fresh:
        return True
    if not isinstance(recorded, str) or not isinstance(fresh, str):
        return False
    return ignored_differences.differ_by_rounding(recorded, fresh)


def _select_confirmed(
    blocks: list[Block], before: Items, after: Items, further: Items
) -> list[Block]:
    """Return the blocks in which two fresh runs agree and the recorded outputs differ.

    `before` are the recorded items, `after` and `further` the items of the fresh runs.
    """
    is_reordered = after != further and Counter(after) == Counter(further)
    if is_reordered:
        return _select_by_content(blocks, before, after)
    agreement = _Agreement(before, after, further)
    confirmed_blocks = [block for block in blocks if agreement.confirms(block)]
    # If all three runs have the same number of lines, a removed line corresponds to an
    # added line, on which the fresh runs disagree.
    have_same_length = len(before) == len(after) == len(further)
    only_removed = all(
        block.other_start == block.other_stop for block in confirmed_blocks
    )
    return [] if have_same_length and only_removed else confirmed_blocks


class _Agreement:
    """The agreement of two fresh runs, which confirms differences from the recording.

    `before` are the recorded items, `after` and `further` the items of the fresh runs.
    """

    def __init__(self, before: Items, after: Items, further: Items) -> None:
        self.before = before
        self.after = after
        # Whether the fresh runs have the same number of lines, but the recorded outputs
        # have another number.
        self.has_new_length = len(before) != len(after) == len(further)
        # Positions in `after` of items that the other fresh run does not have there.
        self.disagreeing = set[int]()
        # Positions in `after` at which the other fresh run has additional items.
        self.insertions = set[int]()
        # Items in the blocks in which the fresh runs differ.
        self.varying = set[Item]()
        for block in _find_blocks(after, further):
            self.disagreeing.update(range(block.start, block.stop))
            if block.start == block.stop:
                self.insertions.add(block.start)
            self.varying.update(block.select(after))
            self.varying.update(block.select_other(further))

    def confirms(self, block: Block) -> bool:
        """Return whether the fresh runs agree on the difference in a block.

        `block` is a range of the recorded items and a range of the fresh items.
        """
        recorded_items = block.select(self.before)
        fresh_range = range(block.other_start, block.other_stop)
        if not fresh_range:  # items were removed
            if block.other_start in self.insertions:
                return False
            return any(item not in self.varying for item in recorded_items)
        agreeing = [index for index in fresh_range if index not in self.disagreeing]
        if not recorded_items:  # items were added
            return any(self.after[index] not in self.varying for index in agreeing)
        # Items were replaced. A new number of lines in both fresh runs is a change,
        # even if the runs disagree on the lines.
        if self.has_new_length and len(recorded_items) != len(fresh_range):
            return True
        return bool(agreeing)


def _select_by_content(blocks: list[Block], before: Items, after: Items) -> list[Block]:
    """Return the blocks with items that only one of the lists contains.

    This is used if two fresh runs have the same items in different orders.
    """
    before_counts = Counter(before)
    after_counts = Counter(after)
    unmatched_counts = (before_counts - after_counts) + (after_counts - before_counts)
    selected_blocks = []
    for block in blocks:
        items = {*block.select(before), *block.select_other(after)}
        if not unmatched_counts.keys().isdisjoint(items):
            selected_blocks.append(block)
    return selected_blocks


def _reorder_recorded(before: Items, after: Items, further: Items) -> Items:
    """Return the recorded items, in the order of the fresh run if the order is random.

    The order is random if two fresh runs have the same items in different orders, for
    example if the elements of a set are printed on separate lines. Only items in the
    region with random order are moved.
    """
    disagreements = [block.swap() for block in _find_blocks(after, further)]
    moved_between_runs = _find_moved_region(disagreements, further, after)
    if not moved_between_runs:
        return before
    blocks = _find_blocks(before, after)
    moved_since_recording = _find_moved_region(blocks, before, after)
    are_separate = (
        moved_since_recording.start > moved_between_runs.stop
        or moved_between_runs.start > moved_since_recording.stop
    )
    if are_separate:
        return before
    start = min(moved_between_runs.start, moved_since_recording.start)
    stop = max(moved_between_runs.stop, moved_since_recording.stop)
    random_items = after[start:stop]
    movable = Counter(random_items) & Counter(further) & Counter(before)
    return _apply_order(before, random_items, movable)


def _apply_order(items: Items, ordered: Items, movable: Counter[Item]) -> Items:
    """Return the items, with the movable ones in the order of the list `ordered`.

    `movable` contains how often each item is moved. Other items keep their positions.
    """
    remaining_counts = movable.copy()
    positions = list[int]()
    for position, item in enumerate(items):
        if remaining_counts[item]:
            remaining_counts[item] -= 1
            positions.append(position)
    remaining_counts = movable.copy()
    reordered_items = [*items]
    next_position = iter(positions)
    for item in ordered:
        if remaining_counts[item]:
            remaining_counts[item] -= 1
            reordered_items[next(next_position)] = item
    return reordered_items


def _find_moved_region(blocks: list[Block], before: Items, after: Items) -> range:
    """Return the range of `after` that contains all moved items, or an empty range.

    An item moved if it is in a block of both lists. `blocks` are the differences
    between the two lists.
    """
    items_before = set[Item]()
    items_after = set[Item]()
    for block in blocks:
        items_before.update(block.select(before))
        items_after.update(block.select_other(after))
    moved_items = items_before & items_after
    moved_blocks = []
    for block in blocks:
        items = {*block.select(before), *block.select_other(after)}
        if not moved_items.isdisjoint(items):
            moved_blocks.append(block)
    if not moved_blocks:
        return range(0)
    first = moved_blocks[0]
    last = moved_blocks[-1]
    return range(first.other_start, last.other_stop)


class _ChangedItems(NamedTuple):
    """The items that are only in the recorded, or only in the fresh outputs."""

    removed: Items
    added: Items


def _collect_items(blocks: list[Block], before: Items, after: Items) -> _ChangedItems:
    """Return the removed and the added items of the blocks.

    In a single block that was too long to be aligned, items on both sides are omitted,
    unless this would omit all items.
    """
    removed = list[Item]()
    added = list[Item]()
    for block in blocks:
        removed += block.select(before)
        added += block.select_other(after)
    changed_items = _ChangedItems(removed, added)
    is_aligned = max(len(removed), len(added)) <= MAX_ALIGNED_LINES
    if len(blocks) > 1 or is_aligned:
        return changed_items
    # Count the items, because an item can occur several times.
    removed_counts = Counter(removed)
    added_counts = Counter(added)
    only_removed = removed_counts - added_counts
    only_added = added_counts - removed_counts
    if not only_removed and not only_added:
        return changed_items
    return _ChangedItems(
        removed=[*only_removed.elements()],
        added=[*only_added.elements()],
    )


def _quote(items: Sequence[Item]) -> list[str]:
    """Return the first QUOTED_LINES items, each cut to QUOTED_WIDTH characters."""
    lines = []
    for item in items[:QUOTED_LINES]:
        text = item if isinstance(item, str) else PICTURE
        if len(text) > QUOTED_WIDTH:
            text = text[: QUOTED_WIDTH - 1] + "…"
        lines.append(text)
    return lines
