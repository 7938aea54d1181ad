"""Messages for MCP clients about written cells, running cells and pages of cells."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stepper.common.text import clean, format_count, one_line
from stepper.messages.digest.notebook_digest import (
    DigestCell,
    format_header,
    quote_source,
)
from stepper.messages.marks import FAILED_MARK, OK_MARK, RUNNING_MARK
from stepper.messages.quoted_output import (
    count_fitting_lines,
    format_span,
    quote_message,
)
from stepper.messages.run_report import (
    Report,
    capitalize_first,
    format_seconds,
    limit_report,
)
from stepper.policy.model import Cell

WAIT_HINT = (
    "`notebook_status` with `wait_seconds` waits until the cell finishes and returns"
    " its report; to stop the cell, interrupt the kernel"
)
# Sizes in characters.
OUTPUT_LIMIT = 800  # of the output of a running cell
PAGE_SIZE = 10_000
PART_SIZE = 8_000  # of one cell on a page
# Of a line that is not split: escapes make it at most six times as long.
PIECE_SIZE = 1_000
HEADER_SIZE = 600  # of a page without its cells and head, as text and as JSON
JSON_PAIR_SIZE = len('["", ""]')
HEAD_SIZE = 5_000  # of the text on the notebook

MAX_NAMED_CELLS = 20
NOT_RUN_REASON = " (empty, tagged skip-execution, or not requested to run)"


@dataclass(frozen=True)
class CellRead:
    """A cell, or a part of a long cell, in the JSON response of `cell read`."""

    cell_id: str
    index: int  # among all cells, from 0
    number: int  # among the code cells, from 1; 0 for other cells
    type: str
    source: str
    execution_count: int | None = None
    step: int | None = None  # of the plan
    # Of a code cell: pending, running, done, failed, doubted, skipped, interrupted,
    # changed.
    status: str = ""
    outputs: str = ""  # as quoted text
    pictures: Sequence[str] = ()  # paths of PNG copies
    part: int = 1
    parts: int = 1
    source_hash: str = ""  # of the whole source, for `expected_source_hash`
    state: str = ""  # of a code cell, as in the digest
    duration_s: float | None = None  # of the last run
    tags: Sequence[str] = ()


class _CellLine(NamedTuple):
    """A line of a cell's source or outputs.

    The last line of the source and the first line of the outputs are one item.
    """

    source: str
    output: str


def format_unexpected_source(
    name: str, cell: Cell, expected_hash: str, current_hash: str
) -> str:
    """Return the error for an edit that expected a different source of the cell.

    The cell was not changed. Of a long source, only the beginning is quoted.
    """
    lines = [f"| {line}" for line in clean(cell.source[:PART_SIZE]).splitlines()]
    hidden_count = len(cell.source) - PART_SIZE
    if hidden_count > 0:
        lines.append(f"… {format_count(hidden_count, 'more character')}")
    current_source = "\n".join(lines) or "(empty)"
    return (
        f"{one_line(name)}: nothing was changed, because the source of"
        f" {format_cell(cell)} has the hash {current_hash} instead of"
        f" {one_line(expected_hash, 40)}. The current source:\n{current_source}"
    )


def format_refused(reason: str) -> Report:
    """Return the report on cells that were not written; `reason` says why."""
    text = f"stepper: nothing was written and nothing ran: {quote_message(reason)}"
    return Report(
        limit_report(text), f"{FAILED_MARK} refused: {one_line(reason, 160)}", ok=False
    )


def format_written(cells: Sequence[Cell], stale_lines: str = "") -> Report:
    """Return the report on cells that were written but not run.

    `stale_lines` are lines on stale cells, or an empty string.
    """
    count = format_count(len(cells), "cell")
    names = ", ".join(format_cell(cell) for cell in cells[:MAX_NAMED_CELLS])
    ellipsis = ", …" if len(cells) > MAX_NAMED_CELLS else ""
    text = f"stepper: {count} written, nothing to run: {names}{ellipsis}."
    return Report(
        "\n".join(filter(None, [text, stale_lines])), f"{OK_MARK} {count} written"
    )


def format_nothing_to_run(cells: Sequence[Cell], stale_lines: str = "") -> Report:
    """Return the report on a call that neither changed nor ran a cell.

    `stale_lines` are lines on stale cells, or an empty string.
    """
    names = []
    for cell in cells[:MAX_NAMED_CELLS]:
        reason = NOT_RUN_REASON if cell.is_code else ""
        names.append(format_cell(cell) + reason)
    ellipsis = ", …" if len(cells) > MAX_NAMED_CELLS else ""
    text = (
        f"stepper: nothing was written and nothing ran: {', '.join(names)}{ellipsis}."
    )
    return Report(
        "\n".join(filter(None, [text, stale_lines])), f"{OK_MARK} nothing to run"
    )


def format_still_running(
    name: str,
    cell_id: str,
    seconds: float,
    timeout: float,
    output_lines: Sequence[str],
    last_line: str,
) -> Report:
    """Return the interim report on a cell that continues in the background.

    `seconds` is the elapsed time, `timeout` the deadline in seconds. `output_lines` are
    lines on the output so far, `last_line` is the last printed line.
    """
    elapsed = format_seconds(seconds)
    deadline = format_span(timeout)
    lines = [
        f"stepper: {capitalize_first(name)} (id {one_line(cell_id, 100)}) is still"
        f" running after {elapsed} (deadline {deadline}).",
        *output_lines,
        f"The cell keeps running: {WAIT_HINT}.",
    ]
    line = (
        f"{RUNNING_MARK} {name} · still running after {elapsed} · deadline {deadline}"
    )
    if last_line:
        line += f" | {last_line}"
    return Report(limit_report("\n".join(lines)), line)


def format_waiting(behind: str, queue_state: str = "") -> Report:
    """Return the interim report on a cell that has not started.

    `behind` is the running cell that the cell waits for. `queue_state` describes a
    kernel that is queued. If both are empty, the kernel is starting.
    """
    if queue_state:
        return Report(
            f"stepper: {queue_state}. {WAIT_HINT}.", f"{RUNNING_MARK} {queue_state}"
        )
    reason = "its kernel is starting"
    if behind:
        reason = f"it is queued behind {behind}"
    return Report(
        f"stepper: the cell has NOT run yet: {reason}. {WAIT_HINT}.",
        f"{RUNNING_MARK} the cell has not run yet: {reason}",
    )


def format_undelivered(name: str, text: str) -> str:
    """Return a report that could not be delivered when the run finished."""
    return (
        f"stepper: a run in {one_line(name)} finished, and its report was not delivered"
        f" until now.\n{text}"
    )


def format_not_run(cells: Sequence[Cell]) -> str:
    """Return a message on the pending cells below a run, or an empty string.

    These cells did not run because the daemon exited during the call.
    """
    if not cells:
        return ""
    count = format_count(len(cells), "code cell")
    return f"Not run yet: {count} below. To run the pending cells, use `run_notebook`."


def format_busy(name: str, running: str, seconds: float, timeout: float) -> str:
    """Return the reason why a code cell is refused while another cell is running.

    `seconds` is the elapsed time, `timeout` the deadline in seconds.
    """
    return (
        f"{running} of {one_line(name)} is still running after"
        f" {format_seconds(seconds)} (deadline {format_span(timeout)}):"
        f" {WAIT_HINT}. With `queue: true` in .stepper/config.yaml, cells are queued"
    )


def format_cell(cell: Cell) -> str:
    """Return the number or type of a cell, with its id."""
    name = f"cell {cell.number}"
    if not cell.is_code:
        name = f"a {one_line(cell.type, 20)} cell"
    return f"{name} (id {one_line(cell.id, 100)})"


def split_cell(cell: CellRead) -> Iterator[CellRead]:
    """Yield the parts of a cell, each small enough for a page.

    The parts contain the source, followed by the outputs. The last part also has the
    paths of the pictures.
    """
    groups: list[list[_CellLine]] = [[]]
    room = PART_SIZE
    for line in _list_lines(cell):
        as_json = json.dumps(line, ensure_ascii=False)
        json_size = len(as_json) - JSON_PAIR_SIZE
        text_size = len(line.source) + len(line.output) + len("| ")
        size = max(text_size, json_size)
        if size > room and groups[-1]:
            groups.append([])
            room = PART_SIZE
        groups[-1].append(line)
        room -= size
    for number, group in enumerate(groups, 1):
        is_last = number == len(groups)
        yield replace(
            cell,
            source="".join(line.source for line in group),
            outputs="".join(line.output for line in group),
            pictures=cell.pictures if is_last else (),
            part=number,
            parts=len(groups),
        )


def _list_lines(cell: CellRead) -> list[_CellLine]:
    """Return the lines of a cell's source and outputs.

    The last line of the source and the first line of the outputs are one item, so a
    part with outputs contains the end of the source. Long lines of the source are
    split.
    """
    pieces = []
    for line in _split_lines(cell.source):
        for start in range(0, len(line), PIECE_SIZE):
            pieces.append(line[start : start + PIECE_SIZE])
    outputs = _split_lines(cell.outputs)
    last_piece = pieces.pop() if pieces else ""
    first_output = outputs.pop(0) if outputs else ""
    lines = [_CellLine(piece, "") for piece in pieces]
    lines.append(_CellLine(last_piece, first_output))
    lines += [_CellLine("", output) for output in outputs]
    return lines


def _split_lines(text: str) -> list[str]:
    """Return the lines of a text with their line breaks."""
    *lines, last_line = text.split("\n")
    complete_lines = [f"{line}\n" for line in lines]
    if last_line:
        return [*complete_lines, last_line]
    return complete_lines


def split_pages(
    cells: Iterable[CellRead], max_pages: int = sys.maxsize, head: str = ""
) -> list[list[CellRead]]:
    """Divide parts of cells into at least one and at most `max_pages` pages.

    A page has at most PAGE_SIZE characters, as text and as JSON; the first one also
    contains `head`. Parts after the last page are left out.
    """
    pages: list[list[CellRead]] = [[]]
    head_as_json = json.dumps(head, ensure_ascii=False)
    room = PAGE_SIZE - HEADER_SIZE - len(head_as_json)
    for cell in cells:
        as_json = json.dumps(vars(cell), ensure_ascii=False)
        size = max(len(format_cell_read(cell)) + 1, len(as_json) + 2)
        has_content = bool(pages[-1] or (head and len(pages) == 1))
        if size > room and has_content:
            if len(pages) == max_pages:
                break
            pages.append([])
            room = PAGE_SIZE - HEADER_SIZE
        pages[-1].append(cell)
        room -= size
    return pages


def shorten_head(lines: Sequence[str]) -> str:
    """Return the lines on a notebook as text.

    Lines in the middle of a text with more than HEAD_SIZE characters are left out.
    """
    text = "\n".join(lines)
    if len(text) <= HEAD_SIZE:
        return text
    text_lines = text.split("\n")
    sizes = [len(line) + 1 for line in text_lines]
    first_count = count_fitting_lines(sizes, HEAD_SIZE / 2)
    last_count = count_fitting_lines(sizes[::-1], HEAD_SIZE / 2)
    last_start = len(text_lines) - last_count
    count = format_count(last_start - first_count, "line")
    gap = f"… {count} left out; see `notebook_status`"
    return "\n".join([*text_lines[:first_count], gap, *text_lines[last_start:]])


def format_page(
    name: str,
    cells: Sequence[CellRead],
    page: int,
    pages: int,
    suffix: str = "",
    head: str = "",
) -> str:
    """Return a page of cells as text.

    `page` is the number of the page, from 1, and `pages` is the number of pages.
    `suffix` is appended to the number of pages. The first page begins with `head`.
    """
    lines = []
    if page == 1 and head:
        lines.append(head)
    if pages > 1:
        lines.append(f"stepper: {one_line(name)}, page {page} of {pages}{suffix}:")
    lines += map(format_cell_read, cells)
    return limit_report("\n".join(lines), PAGE_SIZE)


def format_cell_read(cell: CellRead) -> str:
    """Return a part of a cell as in the digest: header, source and outputs."""
    notes = []
    if cell.source_hash:
        notes.append(f"hash {cell.source_hash}")
    if cell.parts > 1:
        notes.append(f"part {cell.part} of {cell.parts}")
    source = clean(cell.source)
    has_more_source = cell.part < cell.parts and not cell.outputs
    if has_more_source and source.endswith("\n"):
        source = source[:-1]
    elif has_more_source:
        notes.append("its last line continues in the next part")
    digest_cell = DigestCell(
        cell_id=cell.cell_id,
        index=cell.index,
        number=cell.number,
        type=cell.type,
        source=source,
        tags=cell.tags,
        execution_count=cell.execution_count,
        step=cell.step,
        state=cell.state,
        duration_s=cell.duration_s,
        notes=notes,
    )
    lines = [format_header(digest_cell), *quote_source(source)]
    if cell.outputs.startswith(("| ", "… ")):
        lines.append("Output:")
    if cell.outputs:
        lines.append(cell.outputs.rstrip("\n"))
    return "\n".join(lines)
