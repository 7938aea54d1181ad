"""The lines of `stepper verify` about cells.

The lines name the cells that do not reproduce, that did not run or were skipped, and
those with a note. If there are many such cells, the lines are shorter, and the cells
after the first MAX_ROWS are named only by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from stepper.common.text import clean, format_count, one_line
from stepper.messages.marks import (
    CLOSE_MARK,
    FAILED_MARK,
    NOTE_MARK,
    REPLAY_MARKS,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import CellVerdict, VerifyResult

MAX_ROWS = 100  # cells with a line of their own
MAX_QUOTED_LINES = 20  # differing lines of all cells together
MAX_RANGES = 100  # in a list of cell numbers
# The characters of a difference, if there are at most FEW_CELLS cells, or more.
DIFFERENCE_CHARACTERS = 400
SHORT_DIFFERENCE_CHARACTERS = 150
FEW_CELLS = 20
NOTHING_RECORDED = "no cell ran, or the outputs were removed"
SOURCE_NOT_RECORDED = "no run of the current source is recorded"


@dataclass(frozen=True)
class Entry:
    """Lines about one or more cells. `number` is the number of the first cell."""

    number: int
    lines: Sequence[str]


def format_cells(result: VerifyResult, is_installed: bool) -> list[str]:
    """Return the lines on cells, in the order of the first cell of each line.

    If stepper is not installed in the project, the lines contain no commands.
    """
    entries = [
        *_format_differing(result.cells),
        *_format_not_recorded(result, is_installed),
        *_format_not_run(result.cells),
        *_format_skipped(result.cells),
        *_format_close(result.cells),
        *_format_notes(result.cells),
    ]
    entries.sort(key=lambda entry: entry.number)
    lines: list[str] = []
    for entry in entries:
        lines += entry.lines
    return lines


def _format_differing(all_cells: Sequence[CellVerdict]) -> list[Entry]:
    """Return the lines on the cells whose outputs differ.

    Lines of outputs are quoted as long as they are at most MAX_QUOTED_LINES together.
    The cells after the first MAX_ROWS are named by number, in one line per verdict.
    """
    cells = [cell for cell in all_cells if cell.verdict in REPLAY_MARKS]
    limit = _choose_limit(len(cells))
    entries = []
    quoted_count = 0
    unquoted_count = 0
    for cell in cells[:MAX_ROWS]:
        lines = [_format_difference(cell, limit)]
        if quoted_count + len(cell.lines) <= MAX_QUOTED_LINES:
            quoted_count += len(cell.lines)
            lines += [f"      | {clean(line)}" for line in cell.lines]
        else:
            unquoted_count += 1
        entries.append(Entry(cell.number, lines))
    groups: dict[ReplayVerdict, list[CellVerdict]] = {}
    for cell in cells[MAX_ROWS:]:
        groups.setdefault(cell.verdict, []).append(cell)
        if cell.lines:
            unquoted_count += 1
    for verdict, group in groups.items():
        name = verdict.replace("_", " ")
        entry = _create_entry(REPLAY_MARKS[verdict], group, f" {name}")
        entries.append(entry)
    if unquoted_count:
        count = format_count(unquoted_count, "cell")
        line = (
            f"  {NOTE_MARK} the differing lines of {count} are not shown"
            " (`--json` prints them)"
        )
        entries.append(Entry(cells[-1].number, [line]))
    return entries


def _format_difference(cell: CellVerdict, limit: int) -> str:
    """Return the line on a cell whose outputs differ.

    `limit` is the maximum length of the description of the difference.
    """
    mark = REPLAY_MARKS[cell.verdict]
    cell_id = one_line(cell.cell_id, 100)
    difference = one_line(cell.difference, limit)
    verdict = cell.verdict.replace("_", " ")
    return f"  {mark} cell {cell.number} (id {cell_id}) {verdict}: {difference}"


def _format_not_recorded(result: VerifyResult, is_installed: bool) -> list[Entry]:
    """Return a list with the line on the cells without recorded outputs.

    The list is empty if there are no such cells.
    """
    cells = _select(result.cells, ReplayVerdict.NOT_RECORDED)
    if not cells:
        return []
    reason = SOURCE_NOT_RECORDED
    if len(cells) == len(result.cells):
        reason = NOTHING_RECORDED
    text = f": no recorded outputs; {reason}"
    if is_installed:
        run = CommandLines(result.notebook).shell("run")
        text += f". To run the cells that have not run: `{run}`"
    return [_create_entry(FAILED_MARK, cells, text)]


def _format_not_run(all_cells: Sequence[CellVerdict]) -> list[Entry]:
    """Return a list with the line on the cells that the replay did not run.

    The list is empty if there are no such cells.
    """
    cells = _select(all_cells, ReplayVerdict.NOT_RUN)
    if not cells:
        return []
    text = f": not run, because {cells[0].difference}"
    return [_create_entry(NOTE_MARK, cells, text)]


def _format_skipped(all_cells: Sequence[CellVerdict]) -> list[Entry]:
    """Return the lines on the cells that a partial replay skipped."""
    entries = []
    not_needed = []
    for cell in _select(all_cells, ReplayVerdict.SKIPPED):
        if cell.difference:
            source = one_line(cell.difference, DIFFERENCE_CHARACTERS)
            text = f": not replayed; {source}"
            entries.append(_create_entry(NOTE_MARK, [cell], text))
        else:
            not_needed.append(cell)
    if not_needed:
        pronoun = "its" if len(not_needed) == 1 else "their"
        text = f": skipped; the replayed cells use none of {pronoun} values"
        entries.append(_create_entry(NOTE_MARK, not_needed, text))
    return entries


def _format_close(all_cells: Sequence[CellVerdict]) -> list[Entry]:
    """Return a list with the line on cells with outputs close to the recorded ones.

    The list is empty if there are no such cells.
    """
    cells = _select(all_cells, ReplayVerdict.CLOSE)
    if not cells:
        return []
    differences = dict.fromkeys(cell.difference for cell in cells)
    difference = "; ".join(differences)
    text = f": close to the recorded outputs ({difference})"
    return [_create_entry(CLOSE_MARK, cells, text)]


def _format_notes(all_cells: Sequence[CellVerdict]) -> list[Entry]:
    """Return the notes on cells that reproduce the recorded outputs.

    Cells with the same note share a line.
    """
    groups: dict[str, list[CellVerdict]] = {}
    for cell in _select(all_cells, ReplayVerdict.SAME):
        if cell.difference:
            groups.setdefault(cell.difference, []).append(cell)
    limit = _choose_limit(len(groups))
    entries: list[Entry] = []
    cells_beyond_limit: list[CellVerdict] = []
    for text, group in groups.items():
        if len(entries) < MAX_ROWS:
            note = one_line(text, limit)
            entries.append(_create_entry(NOTE_MARK, group, f": {note}"))
        else:
            cells_beyond_limit += group
    if cells_beyond_limit:
        cells_beyond_limit.sort(key=lambda cell: cell.number)
        text = ": as recorded, with notes (`--json` prints them)"
        entries.append(_create_entry(NOTE_MARK, cells_beyond_limit, text))
    return entries


def _choose_limit(row_count: int) -> int:
    """Return the maximum length of a difference in a number of rows."""
    if row_count <= FEW_CELLS:
        return DIFFERENCE_CHARACTERS
    return SHORT_DIFFERENCE_CHARACTERS


def _select(cells: Iterable[CellVerdict], verdict: ReplayVerdict) -> list[CellVerdict]:
    """Return the cells with a verdict."""
    return [cell for cell in cells if cell.verdict is verdict]


def _create_entry(mark: str, cells: Sequence[CellVerdict], text: str) -> Entry:
    """Return an entry with one line: the mark, the numbers of the cells and a text."""
    numbers = [cell.number for cell in cells]
    names = format_cell_names(numbers)
    return Entry(numbers[0], [f"  {mark} {names}{text}"])


def format_cell_names(numbers: Sequence[int]) -> str:
    """Return the numbers of cells as text, such as `cells 1, 4–9`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    texts = []
    for range_numbers in ranges[:MAX_RANGES]:
        if len(range_numbers) > 2:
            texts.append(f"{range_numbers[0]}–{range_numbers[-1]}")
        else:
            texts += map(str, range_numbers)
    if len(ranges) > MAX_RANGES:
        texts.append("…")
    noun = "cell" if len(numbers) == 1 else "cells"
    text = ", ".join(texts)
    return f"{noun} {text}"
