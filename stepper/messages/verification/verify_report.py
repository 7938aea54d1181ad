"""The text of `stepper verify`: verdict, differing cells, files and packages."""

from __future__ import annotations

from stepper.common.text import format_age, format_count, one_line
from stepper.messages.marks import NOTE_MARK
from stepper.messages.verification.cell_lines import format_cell_names, format_cells
from stepper.policy.comparison.verify_results import (
    FileChange,
    PackageChange,
    VerifyResult,
)
from stepper.policy.reloaded_modules import SOURCE_PREFIX

MAX_LINES = 8  # on files, and on packages
FILE_TEXTS = {
    "same": "rewritten with the same content",
    "new": "new",
    "deleted": "deleted",
}


def format_verify(
    result: VerifyResult,
    interpreter: str = "",
    is_kernelspec: bool = False,
    is_live_kernel_used: bool = False,
) -> str:
    """Return the report on a replay, for users and agents.

    If stepper is not installed in the project, `interpreter` is the interpreter that
    ran the notebook, or with `is_kernelspec` the name of the kernelspec. Then the
    report mentions neither the live kernel nor commands, and names the interpreter if
    the notebook does not reproduce. `is_live_kernel_used` says whether the live kernel
    executed code for a checkpoint.
    """
    is_installed = not interpreter
    verdict = format_verdict(result)
    if result.loaded_cells:
        verdict += "; the live kernel only saved the checkpoint"
    elif is_live_kernel_used:
        verdict += "; the live kernel only tried to save values for a checkpoint"
    elif is_installed:
        verdict += "; the live kernel was not touched"
    lines = [verdict, *format_cells(result, is_installed)]
    files = [_format_file(file) for file in result.files]
    lines += _limit_lines(files, "file", MAX_LINES)
    packages = [_format_package(package) for package in result.packages]
    lines += _limit_lines(packages, "package", MAX_LINES)
    if interpreter and not result.reproduces:
        name = one_line(interpreter, 300)
        advice = "to use another interpreter: --python PATH"
        if is_kernelspec:
            advice = "to use another kernel: --kernel NAME"
        lines.append(f"  {NOTE_MARK} the notebook ran in {name} ({advice})")
    return "\n".join(lines)


def _format_file(file: FileChange) -> str:
    """Return the line on a file that the replay wrote or deleted."""
    name = one_line(file.name, 200)
    return f"  {NOTE_MARK} file {name}: {file.text}"


def _format_package(package: PackageChange) -> str:
    """Return the line on a package with another version, or on a changed module."""
    name = one_line(package.name, 200)
    is_module = package.then.startswith(SOURCE_PREFIX)
    if is_module and package.now.startswith(SOURCE_PREFIX):
        return f"  {NOTE_MARK} module {name} has changed since the recorded run"
    return f"  {NOTE_MARK} package {name}: {package.then} then, {package.now} now"


def format_verdict(result: VerifyResult) -> str:
    """Return the line with the verdict on a replay."""
    verdict = "REPRODUCES" if result.reproduces else "DOES NOT REPRODUCE"
    if result.partial:
        verdict = f"PARTIAL ({_format_replayed(result)}): {verdict}"
    if result.failing:
        verdict += f"; {_format_failing(result)}"
    if result.reproduces and result.open_steps:
        steps = format_count(result.open_steps, "step")
        verdict += f"; {steps} open"
    if result.warnings:
        cells = format_count(result.warnings, "cell")
        verb = "prints" if result.warnings == 1 else "print"
        verdict += f"; {cells} {verb} new warnings"
    notebook = one_line(result.notebook, 200)
    recorded = format_recorded(result)
    kernels = format_count(result.kernels, "fresh kernel")
    if result.where:
        kernels += f" ({result.where})"
    return (
        f"{notebook}: {verdict} · {recorded} · {result.duration_s:.1f} s in {kernels}"
    )


def _format_replayed(result: VerifyResult) -> str:
    """Return the numbers of the cells that a partial replay ran or loaded, as text."""
    numbers = [cell.number for cell in result.replayed_cells]
    text = f"{format_cell_names(numbers)} of {len(result.cells)}"
    loaded_numbers = [cell.number for cell in result.loaded_cells]
    if loaded_numbers:
        text += f", from a checkpoint of {format_cell_names(loaded_numbers)}"
    return text


def _format_failing(result: VerifyResult) -> str:
    """Return the number of cells that reproduce a recorded error, as text."""
    total = len(result.replayed_cells)
    if total == 1:
        return "the only cell fails as recorded"
    if result.failing == total:
        return f"all {total} cells fail as recorded"
    verb = "fails" if result.failing == 1 else "fail"
    return f"{result.failing} of {total} cells {verb} as recorded"


def format_recorded(result: VerifyResult) -> str:
    """Return the number of cells that reproduce the recorded outputs, as text."""
    total = len(result.replayed_cells)
    if result.partial:
        return f"{result.reproduced_count} of {total} replayed cells as recorded"
    return f"{result.reproduced_count} of {total} cells as recorded"


def _limit_lines(lines: list[str], noun: str, limit: int) -> list[str]:
    """Return at most `limit` lines, followed by the number of hidden lines."""
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
        text = f"{change}: {format_count(size_before, 'byte')} before, {size_now:,} now"
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
    if is_current:
        return text
    return f"{text}; outdated: a cell has changed since"
