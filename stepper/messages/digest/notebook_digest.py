"""The digest of a notebook: whole sources, shortened outputs, and its status.

The hook on `Read`, `stepper show` and the MCP tool `read_notebook` return this text.
Every line of a source or an output starts with `| `; the rest of a source line is
exactly the line in the notebook.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepper.common.text import clean, format_count, one_line, shell_quote
from stepper.messages import status_text
from stepper.messages.digest.output_digest import (
    OutputItem,
    format_items,
    measure_items,
)
from stepper.messages.run_report import format_seconds
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.model import Cell

# Sizes in characters.
ID_LIMIT = 100
TAG_LIMIT = 40
# Of the outputs of one cell. Failed, running and recently run cells get more.
OUTPUT_LIMIT = 600
RECENT_OUTPUT_LIMIT = 2500
RECENT_WEIGHT = 4  # the share of such a cell if the outputs must be shortened further
MAX_ROWS = 40  # lines of one list in the head
# Claude Code refuses to read more than 256 KB of a notebook.
CLIENT_LIMIT = 256_000
# The states of a cell. A cell that is not a code cell has no state.
OK = "ok"
FAILED = "failed"
NOT_RUN = "not run in this kernel"
STALE = "stale"
CHANGED = "changed since it ran"
RUNNING = "running"
BACKGROUND = "running in the background"
SKIPPED = "skipped"
NOT_RUN_LINE = "Code cells without a state have not run in this kernel."


@dataclass(frozen=True, kw_only=True)
class DigestCell:
    """A cell of a digest.

    `number` counts the code cells from 1 and is 0 for other cells, and `index` counts
    all cells from 0. `run` is the number of the last run with this source. `is_recent`
    gives the outputs more room. `notes` are further parts of the header line.
    """

    cell_id: str
    index: int
    number: int
    type: str
    source: str
    tags: Sequence[str] = ()
    execution_count: int | None = None
    step: int | None = None
    run: int | None = None
    state: str = ""
    duration_s: float | None = None
    outputs: Sequence[OutputItem] = ()
    is_recent: bool = False
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class DigestBlock:
    """The lines of a cell in a digest: header, source and outputs.

    `is_folded` means that only the heading of a Markdown cell is shown.
    """

    cell: DigestCell
    header: str
    source: Sequence[str]
    outputs: Sequence[str]
    is_folded: bool = False

    @property
    def lines(self) -> list[str]:
        """All lines of the cell."""
        return [self.header, *self.source, *self.outputs]


@dataclass(frozen=True)
class Digest:
    """A digest: the lines on the notebook and the blocks of its cells."""

    head: Sequence[str]
    blocks: Sequence[DigestBlock]

    @property
    def lines(self) -> list[str]:
        """All lines of the digest, without line breaks."""
        lines = [*self.head]
        for block in self.blocks:
            lines += block.lines
        return lines


@dataclass(frozen=True)
class DigestPart:
    """Consecutive lines of a digest.

    `start` is the number of the first line, from 1. `count` is the number of lines in
    `text`, and `total` that of the whole digest.
    """

    text: str
    start: int
    count: int
    total: int


def format_digest(
    head: Sequence[str],
    cells: Sequence[DigestCell],
    limit: int,
    commands: CommandLines = UNNAMED,
    max_size: int | None = CLIENT_LIMIT,
    omits_states: bool = False,
) -> Digest:
    """Return the digest of cells.

    The head, the headers of the cells and the outputs have about `limit` characters
    together. If the digest has more than `max_size` bytes, the outputs are reduced to
    counts, and Markdown cells to their headings. With `omits_states`, the state of
    cells that did not run is named only once if most cells have it.
    """
    described_cells = [*cells]
    if omits_states and _have_mostly_not_run(cells):
        head = [*head, NOT_RUN_LINE]
        described_cells = [_omit_state(cell) for cell in cells]
    headers = [format_header(cell) for cell in described_cells]
    room = limit
    for line in (*head, *headers):
        room -= len(line) + 1
    blocks = _make_blocks(cells, headers, room)
    if max_size is not None and _measure(head, blocks) > max_size:
        blocks = _make_blocks(cells, headers, 0)
    if max_size is not None and _measure(head, blocks) > max_size:
        blocks = [_fold(block, commands) for block in blocks]
    return Digest(head, blocks)


def _have_mostly_not_run(cells: Sequence[DigestCell]) -> bool:
    """Return whether most code cells have not run in this kernel.

    Return False if at most two cells have not run.
    """
    not_run = [cell for cell in cells if cell.state == NOT_RUN]
    code_cells = [cell for cell in cells if cell.state]
    return len(not_run) > max(2, len(code_cells) // 2)


def _omit_state(cell: DigestCell) -> DigestCell:
    """Return a cell without its state if the cell did not run."""
    if cell.state == NOT_RUN:
        return replace(cell, state="")
    return cell


def _make_blocks(
    cells: Sequence[DigestCell],
    headers: Sequence[str],
    room: int,
) -> list[DigestBlock]:
    """Return the blocks of cells with about `room` characters of outputs."""
    limits = _share_room(cells, room)
    blocks = []
    for cell, header, limit in zip(cells, headers, limits, strict=True):
        outputs = format_items(cell.outputs, limit)
        source = quote_source(cell.source)
        block = DigestBlock(cell, header, source, outputs)
        blocks.append(block)
    return blocks


def _share_room(cells: Sequence[DigestCell], room: int) -> list[int]:
    """Return the maximum number of characters of each cell's outputs.

    Small outputs are kept. The rest of the room is divided among the other cells, and
    recent cells get RECENT_WEIGHT times as much as other cells.
    """
    sizes = []
    weights = []
    for cell in cells:
        size = measure_items(cell.outputs)
        max_size = OUTPUT_LIMIT
        weight = 1
        if cell.is_recent:
            max_size = RECENT_OUTPUT_LIMIT
            weight = RECENT_WEIGHT
        sizes.append(min(size, max_size))
        weights.append(weight)

    def get_size_per_weight(index: int) -> float:
        """Return the room per unit of weight that shows all outputs of a cell."""
        return sizes[index] / weights[index]

    limits = [0] * len(cells)
    open_weight = sum(weights)
    indexes = range(len(cells))
    for index in sorted(indexes, key=get_size_per_weight):
        share = max(0, room) * weights[index] // open_weight
        limits[index] = min(sizes[index], share)
        room -= limits[index]
        open_weight -= weights[index]
    return limits


def format_header(cell: DigestCell) -> str:
    """Return the line above the source of a cell."""
    name = one_line(cell.type, 20)
    if cell.number:
        name = f"cell {cell.number}"
    parts = [name]
    if cell.step is not None:
        parts.append(f"step {cell.step}")
    if cell.state:
        parts.append(cell.state)
    if cell.execution_count is not None:
        parts.append(f"[{cell.execution_count}]")
    if cell.duration_s is not None:
        duration = format_seconds(cell.duration_s)
        parts.append(duration)
    if cell.tags:
        tags = [one_line(tag, TAG_LIMIT) for tag in cell.tags]
        names = ", ".join(tags)
        parts.append(f"tags: {names}")
    parts += cell.notes
    cell_id = one_line(cell.cell_id, ID_LIMIT)
    details = " · ".join(parts)
    return f'<cell id="{cell_id}"> {details}'


def quote_source(source: str) -> list[str]:
    """Return the lines of a source, quoted; an empty source has no lines."""
    if not source:
        return []
    return [f"| {line}" for line in source.split("\n")]


def _fold(block: DigestBlock, commands: CommandLines) -> DigestBlock:
    """Return a block with only the heading of its Markdown source.

    The block of another cell, or of less than three lines, is returned unchanged.
    """
    if block.cell.type != "markdown" or len(block.source) < 3:
        return block
    texts = [line for line in block.source if line.strip("| ")]
    headings = [line for line in texts if line.startswith("| #")]
    heading = [*headings, *texts, *block.source][0]
    hidden_count = len(block.source) - 1
    hidden = format_count(hidden_count, "line")
    cell_id = shell_quote(block.cell.cell_id)
    command = commands.shell("show", f"--cells {cell_id}")
    gap = f"… {hidden} of this cell left out; to show this cell, run: {command}"
    return replace(block, source=[heading, gap], is_folded=True)


def _measure(head: Sequence[str], blocks: Sequence[DigestBlock]) -> int:
    """Return the size of a digest in bytes."""
    digest = Digest(head, blocks)
    return sum(map(_measure_line, digest.lines))


def _measure_line(line: str) -> int:
    """Return the size of a line with its line break, in bytes."""
    encoded = line.encode("utf-8", "replace")
    return len(encoded) + 1


def select_lines(
    digest: Digest, offset: int = 1, limit: int | None = None
) -> DigestPart:
    """Return at most `limit` lines of a digest, beginning with line `offset`.

    The line numbers start at 1. If these lines have more than CLIENT_LIMIT bytes, the
    part ends earlier, with a line on how to read the rest.
    """
    lines = digest.lines
    total = len(lines)
    start = max(offset, 1)
    start = min(start, total + 1)
    end = total
    if limit is not None:
        end = min(total, start - 1 + limit)
    size = 0
    selected_lines: list[str] = []
    for number, line in enumerate(lines[start - 1 : end], start):
        size += _measure_line(line)
        if size > CLIENT_LIMIT and selected_lines:
            rest = format_count(total - number + 1, "more line")
            note = f"… {rest}. To read on, use Read with offset={number}"
            selected_lines.append(note)
            break
        selected_lines.append(line)
    text = "\n".join(selected_lines)
    return DigestPart(text, start, len(selected_lines), total)


def format_head(
    status: Mapping[str, Any],
    cells: Sequence[Cell],
    name_count: int | None,
    changes: str,
    commands: CommandLines = UNNAMED,
    selected: Sequence[Cell] | None = None,
    next_step: str = "",
) -> list[str]:
    """Return the lines on the notebook at the top of a digest.

    `status` is a status response, as a mapping. `name_count` is the number of names in
    the kernel, or None if it is unknown. `changes` says what changed since the agent
    read the notebook last, and `next_step` is the line on the next step; both may be
    empty. If the digest contains only the cells `selected`, the plan and the lines on
    other cells are left out.
    """
    code_cells = [cell for cell in cells if cell.number]
    counts = format_count(len(code_cells), "code cell")
    other_count = len(cells) - len(code_cells)
    if other_count:
        others = format_count(other_count, "other cell")
        counts += f", {others}"
    headline = status_text.format_headline(status)
    command = commands.shell("output", "CELL")
    lines = [
        f"stepper: {headline} ({counts}).",
        "This is a digest: each line of a source follows `| `, and outputs are"
        f" shortened. All text of a cell's outputs: {command}",
    ]
    if selected is None:
        steps = [status_text.format_step(step) for step in status["steps"]]
        lines += status_text.limit_lines(steps, "steps", MAX_ROWS)
        if next_step:
            lines.append(next_step)
    kernel = _format_kernel(status, name_count)
    lines.append(kernel)
    if status["running"]:
        running = status_text.format_running_cell(status["running"])
        lines.append(running)
    stop = status["stop"]
    if stop:
        lines.append(stop["text"])
    lines += _format_marks(status, selected)
    if changes:
        lines.append(changes)
    # The text of a stop has several lines.
    text = "\n".join(lines)
    return text.split("\n")


def _format_marks(
    status: Mapping[str, Any], selected: Sequence[Cell] | None
) -> list[str]:
    """Return the lines on stale cells and hidden state.

    If `selected` is given, lines on other cells are left out.
    """
    lines = []
    selected_numbers = {cell.number for cell in selected or ()}
    for mark in status_text.list_marked_cells(status):
        if selected is not None and mark["cell"] not in selected_numbers:
            continue
        reason = one_line(mark["why"])
        lines.append(f"  cell {mark['cell']}: {reason}")
    return status_text.limit_lines(lines, "cells", MAX_ROWS)


def format_figure_folder(folder: str) -> str:
    """Return the line on the folder of the figures that a digest names."""
    path = clean(folder).replace("\n", "")
    return f"The figures are files in {path}/"


def _format_kernel(status: Mapping[str, Any], name_count: int | None) -> str:
    """Return the line on the kernel, with the number of names defined in it."""
    line = status_text.format_kernel(status)
    if name_count is None:
        return line
    names = format_count(name_count, "name")
    return f"{line}; {names} defined"


def format_changes(
    edited_cells: Sequence[Cell],
    ran_cells: Sequence[Cell],
    new_cells: Sequence[Cell],
    deleted_count: int,
) -> str:
    """Return the line on the changes since the agent last read the notebook.

    `deleted_count` is the number of deleted cells.
    """
    parts = []
    for label, cells in (
        ("edited", edited_cells),
        ("new", new_cells),
        ("ran", ran_cells),
    ):
        if not cells:
            continue
        parts.append(f"{label}: {_list_names(cells)}")
    if deleted_count:
        count = format_count(deleted_count, "cell")
        parts.append(f"deleted: {count}")
    details = "; ".join(parts) or "nothing"
    return f"Changed since this agent read the notebook last: {details}."


def _list_names(cells: Sequence[Cell]) -> str:
    """Return the names of up to MAX_ROWS cells, and the number of the others."""
    names = list(map(_format_name, cells[:MAX_ROWS]))
    hidden_count = len(cells) - len(names)
    if hidden_count:
        names.append(format_count(hidden_count, "more cell"))
    return ", ".join(names)


def _format_name(cell: Cell) -> str:
    """Return the number or type of a cell, with its ID."""
    name = one_line(cell.type, 20)
    if cell.number:
        name = f"cell {cell.number}"
    cell_id = one_line(cell.id, ID_LIMIT)
    return f"{name} (id {cell_id})"


def format_failed_read(
    name: str,
    is_raw: bool,
    can_retry: bool,
    cells: Sequence[Cell] = (),
    commands: CommandLines = UNNAMED,
) -> str:
    """Return the text for an agent that could not read a notebook of this size.

    `is_raw` means that the configuration turns the digest off. `can_retry` means that
    the next read may succeed. `cells` are the cells of the notebook.
    """
    show = commands.shell("show")
    notebook = one_line(name)
    text = f"stepper: Claude Code can't read {notebook} because of its size."
    if is_raw:
        return (
            f"{text} To see a digest, run: {show}. With `read: digest` in"
            " .stepper/config.yaml, Read shows the digest, and NotebookEdit works."
        )
    if can_retry:
        return (
            f"{text} stepper prepares a smaller copy for the read, but another program"
            " used the notebook at the same time, or the preparation took too long."
            " Read the notebook again: you then get a digest, and NotebookEdit"
            " works."
        )
    run = commands.shell("run")
    text = (
        f"{text} To see a digest, run: {show}. NotebookEdit needs a Read, and stepper"
        " could not put a smaller copy in the notebook's place. If the next Read fails,"
        " too, there are two ways to edit the notebook without a Read: stepper's MCP"
        " tools (`run_cell`, `change_cells`), or a script that changes the file; after"
        f" the script, run: {run}"
    )
    if not cells:
        return text
    return f"{text}\nThe cells: {_list_names(cells)}."
