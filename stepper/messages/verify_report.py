"""The text of `stepper verify`: verdict, differing cells, files and packages."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import clean, format_age, format_count, one_line
from stepper.messages.marks import (
    CLOSE_MARK,
    FAILED_MARK,
    NOTE_MARK,
    REPLAY_MARKS,
)
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import (
    CellVerdict,
    FileChange,
    PackageChange,
    VerifyResult,
)
from stepper.policy.reloaded_modules import SOURCE_PREFIX

MAX_CELL_LINES = 20
MAX_LINES = 8  # on files, and on packages
FILE_TEXTS = {
    "same": "rewritten with the same content",
    "new": "new",
    "deleted": "deleted",
}
NOTHING_RECORDED = "no cell ran, or the outputs were removed"
SOURCE_NOT_RECORDED = "no run of the current source is recorded"


def format_verify(result: VerifyResult) -> str:
    """Return the report on a replay, for users and agents."""
    lines = [format_verdict(result), *_format_cells(result)]
    files = [_format_file(file) for file in result.files]
    lines += _limit_lines(files, "file", MAX_LINES)
    packages = [_format_package(package) for package in result.packages]
    lines += _limit_lines(packages, "package", MAX_LINES)
    return "\n".join(lines)


def _format_file(file: FileChange) -> str:
    name = one_line(file.name, 200)
    return f"  {NOTE_MARK} file {name}: {file.text}"


def _format_package(package: PackageChange) -> str:
    name = one_line(package.name, 200)
    is_module = package.then.startswith(SOURCE_PREFIX)
    if is_module and package.now.startswith(SOURCE_PREFIX):
        return f"  {NOTE_MARK} module {name} has changed since the recorded run"
    return f"  {NOTE_MARK} package {name}: {package.then} then, {package.now} now"


def format_verdict(result: VerifyResult) -> str:
    """Return the line with the verdict on a replay."""
    verdict = "REPRODUCES" if result.reproduces else "DOES NOT REPRODUCE"
    if result.reproduces and result.failing:
        cells = format_count(result.failing, "cell")
        verb = "fails" if result.failing == 1 else "fail"
        verdict += f"; {cells} {verb} as recorded"
    if result.reproduces and result.open_steps:
        steps = format_count(result.open_steps, "step")
        verdict += f"; {steps} open"
    notebook = one_line(result.notebook, 200)
    recorded = format_recorded(result)
    kernels = format_count(result.kernels, "fresh kernel")
    if result.where:
        kernels += f" ({result.where})"
    return (
        f"{notebook}: {verdict} · {recorded} ·"
        f" {result.duration_s:.1f} s in {kernels};"
        " the live kernel was not touched"
    )


def format_recorded(result: VerifyResult) -> str:
    """Return the number of cells that gave the recorded outputs, as text."""
    total = len(result.cells)
    return f"{result.as_recorded} of {total} cells as recorded"


def _format_cells(result: VerifyResult) -> list[str]:
    differing = []
    notes = []
    by_verdict: dict[ReplayVerdict, list[CellVerdict]] = {}
    for cell in result.cells:
        by_verdict.setdefault(cell.verdict, []).append(cell)
        if cell.verdict in REPLAY_MARKS:
            differing += _format_difference(cell)
        if cell.verdict is ReplayVerdict.SAME and cell.difference:
            notes.append(f"  {NOTE_MARK} cell {cell.number}: {cell.difference}")
    lines = _limit_lines(differing, "line", MAX_CELL_LINES)

    not_recorded = by_verdict.get(ReplayVerdict.NOT_RECORDED, [])
    if not_recorded:
        names = _format_cell_names(not_recorded)
        is_all = len(not_recorded) == len(result.cells)
        reason = NOTHING_RECORDED if is_all else SOURCE_NOT_RECORDED
        run = CommandLines(result.notebook).shell("run")
        lines.append(
            f"  {FAILED_MARK} {names}: no recorded outputs; {reason}."
            f" To run the cells that have not run: `{run}`"
        )
    not_run = by_verdict.get(ReplayVerdict.NOT_RUN, [])
    if not_run:
        names = _format_cell_names(not_run)
        lines.append(f"  {NOTE_MARK} {names}: not run, because a cell above failed")
    close = by_verdict.get(ReplayVerdict.CLOSE, [])
    if close:
        names = _format_cell_names(close)
        differences = dict.fromkeys(cell.difference for cell in close)
        text = "; ".join(differences)
        lines.append(f"  {CLOSE_MARK} {names}: close to the recorded outputs ({text})")
    return lines + _limit_lines(notes, "cell", MAX_LINES)


def _format_difference(cell: CellVerdict) -> list[str]:
    """Return the lines on a cell whose outputs differ."""
    mark = REPLAY_MARKS[cell.verdict]
    cell_id = one_line(cell.cell_id, 100)
    difference = one_line(cell.difference, 400)
    name = f"cell {cell.number} (id {cell_id})"
    lines = [f"  {mark} {name} {cell.verdict}: {difference}"]
    for line in cell.lines:
        lines.append("      | " + clean(line))
    return lines


def _format_cell_names(cells: Sequence[CellVerdict]) -> str:
    numbers = [str(cell.number) for cell in cells[:MAX_CELL_LINES]]
    if len(cells) > MAX_CELL_LINES:
        numbers.append("…")
    noun = "cell" if len(cells) == 1 else "cells"
    text = ", ".join(numbers)
    return f"{noun} {text}"


def _limit_lines(lines: list[str], noun: str, limit: int) -> list[str]:
    hidden_count = len(lines) - limit
    if hidden_count <= 0:
        return lines
    hidden = format_count(hidden_count, f"more {noun}")
    return [*lines[:limit], f"  … and {hidden}"]


def create_file_change(
    name: str, change: str, size_before: int = 0, size_now: int = 0
) -> FileChange:
    """Return the description of a file that a replay wrote or deleted.

    `change` is a key of FILE_TEXTS, `changed` or `unknown`. Sizes are in bytes.
    """
    text = FILE_TEXTS.get(change, "rewritten, too large to compare")
    if change == "changed":
        text = f"{change}: {size_before:,} bytes before, {size_now:,} now"
    return FileChange(name, change, text)


def format_last_verdict(
    reproduces: bool, counts: str, seconds: float, is_current: bool
) -> str:
    """Return the line on the last verdict.

    `counts` is the text of `format_recorded`, `seconds` the age of the verdict.
    `is_current` says whether no cell has changed since.
    """
    when = "just now"
    if seconds >= 1:
        age = format_age(seconds)
        when = f"{age} ago"
    verdict = "reproduces" if reproduces else "DOES NOT REPRODUCE"
    text = f"verified {when}: {verdict} ({counts})"
    return text if is_current else f"{text}; outdated: a cell has changed since"
