"""What other agents read of cells: that they were written, or not; how they stand."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from stepper.common.text import clean, format_count, one_line
from stepper.messages.quoted_output import format_span, quote_message
from stepper.messages.run_report import (
    Report,
    capitalize_first,
    format_seconds,
    limit_report,
)
from stepper.policy.model import Cell

ENDS = "`notebook_status` with `wait_seconds` waits for its end and tells its report; an interrupt of the kernel ends it"
LINES = 800  # characters of what a cell that runs has printed
PAGE = 10_000  # characters
PART = 8_000  # … of one cell on it
# … of a line that is not split: escapes make it six times as long at most
PIECE = 1_000
HEAD = 600  # … of a page besides its cells, as text and as JSON


@dataclass(frozen=True)
class CellRead:
    """A cell as it stands; of a long one a page holds a part, its source with the first."""

    cell_id: str
    index: int  # among all cells, from 0
    number: int  # among the code cells, from 1; 0 for others
    type: str
    source: str
    execution_count: int | None = None
    step: int | None = None  # of the plan
    # of a code cell: pending, running, done, failed, doubted, skipped, interrupted,
    # changed
    status: str = ""
    outputs: str = ""  # as text, behind `| `
    pictures: Sequence[str] = ()  # paths of the agent's copies
    part: int = 1
    parts: int = 1
    source_hash: str = ""  # of the whole source, for `expected_source_hash`


def changed_source(name: str, cell: Cell, expected: str, present: str) -> str:
    """Return why a cell is not changed whose source is not what the caller expects."""
    lines = [f"| {line}" for line in clean(cell.source[:PART]).splitlines()]
    cut = (
        f"\n… {len(cell.source) - PART:,} more characters"
        if len(cell.source) > PART
        else ""
    )
    return (
        f"{one_line(name)}: the source of {named(cell)} is not the expected one; nothing was changed. Its hash is "
        f"{present}, expected was {one_line(expected, 40)}. Its source now:\n"
        + "\n".join(lines)
        + cut
    )


def refused(why: str) -> Report:
    """Return the report on cells that may not be written or run now."""
    text = limit_report(
        f"stepper: nothing was written and nothing ran: {quote_message(why)}"
    )
    return Report(text, f"✗ refused: {one_line(why, 160)}", ok=False)


def written(cells: Sequence[Cell], follows: str = "") -> Report:
    """Return the report on cells of which nothing was to run; `follows` are lines on what no longer does."""
    names = ", ".join(f"{named(cell)}" for cell in cells[:20]) + ", …" * (
        len(cells) > 20
    )
    text = (
        f"stepper: {format_count(len(cells), 'cell')} written, nothing to run: {names}."
    )
    return Report(
        "\n".join(filter(None, [text, follows])),
        f"✓ {format_count(len(cells), 'cell')} written",
    )


def nothing_to_run(cells: Sequence[Cell], follows: str = "") -> Report:
    """Return the report on cells that are as they were, and of which nothing runs."""
    why = " (empty, tagged skip-execution, or not to run)"
    names = ", ".join(
        named(cell) + (why if cell.is_code else "") for cell in cells[:20]
    )
    text = f"stepper: nothing was written and nothing ran: {names}{', …' * (len(cells) > 20)}."
    return Report("\n".join(filter(None, [text, follows])), "✓ nothing to run")


def goes_on(
    name: str,
    cell_id: str,
    took: float,
    timeout: float,
    printed: Sequence[str],
    last: str,
) -> Report:
    """Return what is read of cells that go on although their answer is given."""
    where = f"{capitalize_first(name)} (id {one_line(cell_id, 100)}) is still running after {format_seconds(took)}"
    text = "\n".join(
        [
            f"stepper: {where} (deadline {format_span(timeout)}).",
            *printed,
            f"It goes on: {ENDS}.",
        ]
    )
    line = f"▶ {name} · still running after {format_seconds(took)} · deadline {format_span(timeout)}"
    return Report(limit_report(text), f"{line}{' | ' if last else ''}{last}")


def waits(behind: str, queued: str = "") -> Report:
    """Return what is read of cells that have not begun to run: another one runs, or their kernel starts or queues."""
    if queued:
        return Report(f"stepper: {queued}. {capitalize_first(ENDS)}.", f"▶ {queued}")
    why = f"it waits in line behind {behind}" if behind else "its kernel starts"
    return Report(
        f"stepper: the cell has NOT run yet: {why}. {capitalize_first(ENDS)}.",
        f"▶ the cell has not run yet: {why}",
    )


def unheard(name: str, text: str) -> str:
    """Return what is told later of cells whose caller went away before their report."""
    return f"stepper: what was run in {one_line(name)} is over; its report reached nobody.\n{text}"


def left(cells: Sequence[Cell]) -> str:
    """Return that cells have not run which a call that lost its daemon may have been to run, '' for none."""
    many = format_count(len(cells), "code cell")
    return (
        f"Not run yet: {many} below it; `run_notebook` runs what is pending."
        if cells
        else ""
    )


def busy(name: str, runs: str, took: float, timeout: float) -> str:
    """Return why no code cell is written while one goes on."""
    return (
        f"{runs} of {one_line(name)} is still running after {format_seconds(took)} (deadline {format_span(timeout)}). {ENDS}."
        " `queue: true` in .stepper/config.yaml lets cells wait in line"
    )


def named(cell: Cell) -> str:
    """Return how a cell is named to who may ask for it again."""
    what = (
        f"cell {cell.number}" if cell.is_code else f"a {one_line(cell.type, 20)} cell"
    )
    return f"{what} (id {one_line(cell.id, 100)})"


def parts(cell: CellRead) -> Iterator[CellRead]:
    """Yield a cell in parts that fit on a page, each with some of its source, of its outputs or of both."""
    lines = [
        (True, line[at : at + PIECE])
        for line in cell.source.splitlines(keepends=True)
        for at in range(0, len(line), PIECE)
    ]
    lines += [(False, line) for line in cell.outputs.splitlines(keepends=True)]
    groups, room = list[list[tuple[bool, str]]]([[]]), PART
    for is_source, line in lines:
        size = max(len(line) + 2, len(json.dumps(line, ensure_ascii=False)) - 2)
        if size > room and groups[-1]:
            groups.append([])
            room = PART
        groups[-1].append((is_source, line))
        room -= size
    for number, group in enumerate(groups, 1):
        source, outputs = (
            "".join(line for of, line in group if of is which)
            for which in (True, False)
        )
        pictures = cell.pictures if number == len(groups) else ()
        yield replace(
            cell,
            source=source,
            outputs=outputs,
            pictures=pictures,
            part=number,
            parts=len(groups),
        )


def paged(cells: Iterable[CellRead], most: int = sys.maxsize) -> list[list[CellRead]]:
    """Return parts of cells on pages, at least one; of as many cells as `most` pages take.

    A page has at most `PAGE` characters, as text and as JSON.
    """
    pages, room = list[list[CellRead]]([[]]), PAGE - HEAD
    for cell in cells:
        as_json = json.dumps(vars(cell), ensure_ascii=False)
        size = max(len(shown(cell)) + 1, len(as_json) + 2)
        if size > room and pages[-1]:
            if len(pages) == most:
                break
            pages.append([])
            room = PAGE - HEAD
        pages[-1].append(cell)
        room -= size
    return pages


def read(
    name: str, cells: Sequence[CellRead], page: int, pages: int, more: str = ""
) -> str:
    """Return a page as text."""
    head = f"stepper: {one_line(name)}" + (
        f", page {page} of {pages}{more}" if pages > 1 else ""
    )
    return limit_report(
        "\n".join([head + (":" if cells else ": no cells."), *map(shown, cells)]), PAGE
    )


def shown(cell: CellRead) -> str:
    """Return a part of a cell as text: what it is, its source, its outputs."""
    about = [
        f"cell-{cell.index}",
        f"cell {cell.number}" if cell.number else one_line(cell.type, 20),
    ]
    about += [f"id {one_line(cell.cell_id, 100)}"] if cell.cell_id != about[0] else []
    about += [f"step {cell.step}"] if cell.step is not None else []
    about += [cell.status] if cell.status else []
    about += [f"[{cell.execution_count}]"] if cell.execution_count is not None else []
    about += [f"hash {cell.source_hash}"] if cell.source_hash else []
    about += [f"part {cell.part} of {cell.parts}"] if cell.parts > 1 else []
    lines = [f"| {line}" for line in clean(cell.source).splitlines()]
    lines += ["Output:", cell.outputs.rstrip("\n")] if cell.outputs else []
    return "\n".join(
        [
            " · ".join(about),
            *lines,
            *(f"Figure: {one_line(path)}" for path in cell.pictures),
        ]
    )
