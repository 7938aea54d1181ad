"""What is said of a replay: the verdict first, then each cell that is not as recorded, files, packages."""

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
CELLS, OTHERS = 20, 8  # lines on cells, on files and packages each
RAN = {"same": "written again, same bytes", "new": "new", "deleted": "deleted"}
NEVER = "nothing is recorded: no cell ran, or their outputs were taken away"


def told(found: VerifyResult) -> str:
    """Return the text on a replay, for people and agents."""
    lines = [head(found), *_cells(found)]
    lines += _some(
        [f"  · file {one_line(each.name, 200)}: {each.text}" for each in found.files],
        "file",
    )
    lines += _some([_package(each) for each in found.packages], "package")
    return "\n".join(lines)


def _package(package: PackageChange) -> str:
    name = one_line(package.name, 200)
    if package.now.startswith(SOURCE_PREFIX) and package.then.startswith(SOURCE_PREFIX):
        return f"  · module {name} changed since the recorded run"
    return f"  · {name} {package.then} then, {package.now} now"


def head(found: VerifyResult) -> str:
    """Return the verdict in one line."""
    verdict = "REPRODUCES" if found.reproduces else "DOES NOT REPRODUCE"
    if found.reproduces and found.failing:
        verdict += f"; {format_count(found.failing, 'cell')} {'fails' if found.failing == 1 else 'fail'} as recorded"
    if found.reproduces and found.open_steps:
        verdict += f"; {format_count(found.open_steps, 'step')} open"
    kernels = f"{found.kernels} fresh kernel{'s' * (found.kernels != 1)}"
    where = f" ({found.where})" if found.where else ""
    took = f"{found.duration_s:.1f} s in {kernels}{where}; the living kernel was not touched"
    return f"{one_line(found.notebook, 200)}: {verdict} · {recorded(found)} · {took}"


def recorded(found: VerifyResult) -> str:
    """Return how many cells are as recorded."""
    return f"{found.as_recorded} of {len(found.cells)} cells as recorded"


def _cells(found: VerifyResult) -> list[str]:
    by = {
        word: [cell for cell in found.cells if cell.verdict is word]
        for word in ReplayVerdict
    }
    lines = list[str]()
    for cell in found.cells:
        if cell.verdict in MARKS:
            name = f"cell {cell.number} (id {one_line(cell.cell_id, 100)})"
            lines.append(
                f"  {MARKS[cell.verdict]} {name} {cell.verdict}: {one_line(cell.difference, 400)}"
            )
            lines += [f"      | {clean(line)}" for line in cell.lines]
    lines = _some(lines, "line", CELLS)
    if by[ReplayVerdict.NOT_RECORDED]:
        all_of_them = len(by[ReplayVerdict.NOT_RECORDED]) == len(found.cells)
        why = NEVER if all_of_them else "no run is recorded of what stands there now"
        hint = f"`{CommandLines(found.notebook).shell('run')}` runs what has not run"
        lines.append(
            f"  ✗ {_named(by[ReplayVerdict.NOT_RECORDED])} not recorded: {why}; {hint}"
        )
    if by[ReplayVerdict.NOT_RUN]:
        lines.append(
            f"  · {_named(by[ReplayVerdict.NOT_RUN])} not run: a cell above failed"
        )
    if by[ReplayVerdict.CLOSE]:
        words = dict.fromkeys(cell.difference for cell in by[ReplayVerdict.CLOSE])
        lines.append(f"  ≈ {_named(by[ReplayVerdict.CLOSE])} close: {'; '.join(words)}")
    other = [cell for cell in by[ReplayVerdict.SAME] if cell.difference]
    return lines + _some(
        [f"  · cell {cell.number}: {cell.difference}" for cell in other], "cell"
    )


def _named(cells: Sequence[CellVerdict]) -> str:
    numbers = [str(cell.number) for cell in cells[:CELLS]] + ["…"] * (
        len(cells) > CELLS
    )
    return f"cell{'s' * (len(cells) != 1)} {', '.join(numbers)}"


def _some(lines: list[str], what: str, most: int = OTHERS) -> list[str]:
    left = len(lines) - most
    return (
        lines
        if left <= 0
        else [*lines[:most], f"  … and {left:,} more {what}{'s' * (left != 1)}"]
    )


def file_change(name: str, change: str, before: int = 0, after: int = 0) -> FileChange:
    """Return what is told of a file that was written."""
    other = (
        f"{change}: {before:,} bytes before, {after:,} now"
        if change == "changed"
        else ""
    )
    text = RAN.get(change) or other or "written again, too large to be compared"
    return FileChange(name, change, text)


def standing(reproduces: bool, counts: str, seconds: float, holds: bool) -> str:
    """Return the line on the last verdict: how old it is, and whether it still holds."""
    when = "just now" if seconds < 1 else f"{format_age(seconds)} ago"
    said = f"verified {when}: {'reproduces' if reproduces else 'DOES NOT REPRODUCE'} ({counts})"
    return said + (
        "" if holds else "; that no longer holds: a source was changed since"
    )
