"""The text of `stepper verify`: the verdict, then differing cells, files and packages."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import clean, format_age, format_count, one_line
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.comparison.verify_results import (
    SOURCE_PREFIX,
    CellVerdict,
    FileChange,
    PackageChange,
    VerifyResult,
)

MARKS = {
    ReplayVerdict.CHANGED: "✗",
    ReplayVerdict.FAILED: "✗",
    ReplayVerdict.UNSTABLE: "~",
}
MAX_CELL_LINES = 20
MAX_LINES = 8  # on files, and on packages
FILE_TEXTS = {
    "same": "written again, same bytes",
    "new": "new",
    "deleted": "deleted",
}
NOTHING_RECORDED = "no outputs are recorded: no cell ran, or the outputs were removed"
SOURCE_NOT_RECORDED = "no run of the present source is recorded"


def format_verify(result: VerifyResult) -> str:
    """Return the text on a replay, for users and agents."""
    lines = [format_verdict(result), *_format_cells(result)]
    files = [
        f"  · file {one_line(file.name, 200)}: {file.text}" for file in result.files
    ]
    packages = [_format_package(package) for package in result.packages]
    lines += _limit_lines(files, "file", MAX_LINES)
    lines += _limit_lines(packages, "package", MAX_LINES)
    return "\n".join(lines)


def _format_package(package: PackageChange) -> str:
    name = one_line(package.name, 200)
    sources = (package.then, package.now)
    if all(version.startswith(SOURCE_PREFIX) for version in sources):
        return f"  · module {name} changed since the recorded run"
    return f"  · {name} {package.then} then, {package.now} now"


def format_verdict(result: VerifyResult) -> str:
    """Return the verdict in one line."""
    verdict = "REPRODUCES" if result.reproduces else "DOES NOT REPRODUCE"
    if result.reproduces and result.failing:
        verb = "fails" if result.failing == 1 else "fail"
        verdict += f"; {format_count(result.failing, 'cell')} {verb} as recorded"
    if result.reproduces and result.open_steps:
        verdict += f"; {format_count(result.open_steps, 'step')} open"
    kernels = format_count(result.kernels, "fresh kernel")
    where = f" ({result.where})" if result.where else ""
    return (
        f"{one_line(result.notebook, 200)}: {verdict} · {format_recorded(result)} ·"
        f" {result.duration_s:.1f} s in {kernels}{where}; the live kernel was not touched"
    )


def format_recorded(result: VerifyResult) -> str:
    """Return how many cells gave the recorded outputs."""
    return f"{result.as_recorded} of {len(result.cells)} cells as recorded"


def _format_cells(result: VerifyResult) -> list[str]:
    lines = list[str]()
    for cell in result.cells:
        if cell.verdict in MARKS:
            name = f"cell {cell.number} (id {one_line(cell.cell_id, 100)})"
            difference = one_line(cell.difference, 400)
            lines.append(f"  {MARKS[cell.verdict]} {name} {cell.verdict}: {difference}")
            lines += [f"      | {clean(line)}" for line in cell.lines]
    lines = _limit_lines(lines, "line", MAX_CELL_LINES)

    by_verdict = {verdict: list[CellVerdict]() for verdict in ReplayVerdict}
    for cell in result.cells:
        by_verdict[cell.verdict].append(cell)
    not_recorded = by_verdict[ReplayVerdict.NOT_RECORDED]
    if not_recorded:
        is_all = len(not_recorded) == len(result.cells)
        reason = NOTHING_RECORDED if is_all else SOURCE_NOT_RECORDED
        run = CommandLines(result.notebook).shell("run")
        lines.append(
            f"  ✗ {_name_cells(not_recorded)} not recorded: {reason}. To run what has"
            f" not run: `{run}`"
        )
    not_run = by_verdict[ReplayVerdict.NOT_RUN]
    if not_run:
        lines.append(f"  · {_name_cells(not_run)} not run: a cell above failed")
    close = by_verdict[ReplayVerdict.CLOSE]
    if close:
        differences = dict.fromkeys(cell.difference for cell in close)
        lines.append(f"  ≈ {_name_cells(close)} close: {'; '.join(differences)}")
    notes = [
        f"  · cell {cell.number}: {cell.difference}"
        for cell in by_verdict[ReplayVerdict.SAME]
        if cell.difference
    ]
    return lines + _limit_lines(notes, "cell", MAX_LINES)


def _name_cells(cells: Sequence[CellVerdict]) -> str:
    numbers = [str(cell.number) for cell in cells[:MAX_CELL_LINES]]
    if len(cells) > MAX_CELL_LINES:
        numbers.append("…")
    noun = "cell" if len(cells) == 1 else "cells"
    return f"{noun} {', '.join(numbers)}"


def _limit_lines(lines: list[str], noun: str, limit: int) -> list[str]:
    hidden = len(lines) - limit
    if hidden <= 0:
        return lines
    return [*lines[:limit], f"  … and {format_count(hidden, f'more {noun}')}"]


def describe_file(
    name: str, change: str, size_before: int = 0, size_now: int = 0
) -> FileChange:
    """Return a file that a replay wrote; sizes in bytes."""
    text = FILE_TEXTS.get(change, "written again, too large to be compared")
    if change == "changed":
        text = f"{change}: {size_before:,} bytes before, {size_now:,} now"
    return FileChange(name, change, text)


def format_last_verdict(
    reproduces: bool, counts: str, seconds: float, is_current: bool
) -> str:
    """Return the line on the last verdict, which is `seconds` old."""
    when = "just now" if seconds < 1 else f"{format_age(seconds)} ago"
    verdict = "reproduces" if reproduces else "DOES NOT REPRODUCE"
    text = f"verified {when}: {verdict} ({counts})"
    return text if is_current else f"{text}; outdated: a cell changed since"
