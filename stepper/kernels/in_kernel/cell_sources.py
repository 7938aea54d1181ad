"""The sources of the cells that ran, and the mapping of frames to lines of cells.

IPython runs a transformed copy of a cell. Reports show the lines of the cell as
written, so this module stores the written sources by execution count.
"""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from types import FrameType, TracebackType
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import get_cell_files, shorten

MAX_FRAMES = 12
CONTEXT_LINES = 2  # above and below the line of a frame
MAX_CELLS = 500
# Execution count → cell as written. IPython's own history can be switched off.
sources: dict[int, str] = {}
# "number" is the key of the last execution in `sources`, and "cell" is the highest
# execution count. "earlier_error" is the id of the last exception before this run.
run_state: dict[str, Any] = {"number": 0, "cell": 0, "earlier_error": 0}
# The number of a scratch execution → the number of the last cell before it.
cells_before_scratch: dict[int, int] = {}
# Names that a function of some cell may bind by `global`.
global_names: set[str] = set()
# A cell with one of these words may bind any name. If the cell also defines a function,
# a later call of the function may bind any name, too.
BINDS_ANY_NAME = re.compile(
    r"\b(?:exec|globals|user_ns|setattr|__main__|get_ipython)\b"
)
DEFINES_FUNCTION = re.compile(r"\b(?:def|lambda)\b")
GLOBAL = re.compile(r"\bglobal[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)")
TIMED_FILENAMES = ("<timed exec>", "<timed eval>")
# The folders of the standard library and of installed packages. The other paths of
# `sysconfig`, such as the root of an environment, may contain the user's project.
INSTALLED = tuple(
    os.path.join(os.path.realpath(sysconfig.get_path(name)), "")
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
)


def remember_source(number: int, raw: str) -> None:
    """Store the source of a cell or a scratch execution that has run.

    `number` is the execution count, the negative number of a scratch execution, or 0 if
    IPython itself failed. The names that functions in the source may bind are stored,
    too.
    """
    run_state["number"] = number
    last_cell = run_state["cell"]
    run_state["cell"] = max(number, last_cell)
    for match in GLOBAL.findall(raw):
        names = [name.strip() for name in match.split(",")]
        global_names.update(names)
    if BINDS_ANY_NAME.search(raw) and DEFINES_FUNCTION.search(raw):
        run_state["binds_any_name"] = True
    sources[number] = raw
    drop_oldest(sources)


def drop_oldest(cells: dict[int, Any]) -> None:
    """Remove the oldest entry of a dict if there are more than MAX_CELLS."""
    if len(cells) > MAX_CELLS:
        oldest = next(iter(cells))
        del cells[oldest]


def remember_scratch(raw: str) -> None:
    """Store the source of a scratch execution under a new negative number."""
    number = run_state.get("last_scratch", 0) - 1
    run_state["last_scratch"] = number
    cells_before_scratch[number] = run_state["cell"]
    drop_oldest(cells_before_scratch)
    cell_files = get_cell_files()
    if cell_files:
        filename = list(cell_files)[-1]
        # IPython assigned the execution count of the next cell to the execution.
        if cell_files[filename] not in sources:
            cell_files[filename] = number
    remember_source(number, raw)


def get_run_order(number: int) -> tuple[int, int]:
    """Return a key that sorts cells and scratch executions by their time of execution.

    `number` is the execution count, or the negative number of a scratch execution.
    """
    if number >= 0:
        return number, 0
    return cells_before_scratch.get(number, 0), -number


def get_source_lines(number: int) -> list[str]:
    """Return the lines of a cell as written, or an empty list for an unknown cell."""
    if number not in sources:
        return []
    source = sources[number]
    return source.split("\n")


def find_first_line(lines: list[str]) -> int:
    """Return the index of the first line that is not blank, or 0 if all are blank."""
    for index, text in enumerate(lines):
        if text.strip():
            return index
    return 0


def find_cell_magic_line(number: int) -> int | None:
    """Return the line of a cell's cell magic, or None if the cell has no cell magic."""
    lines = get_source_lines(number)
    first = find_first_line(lines)
    if lines and lines[first].startswith("%%"):
        return first + 1
    return None


def find_cell_line(filename: str, line: int) -> tuple[int, int]:
    """Return the cell's number and the line as written, for a line of transformed code.

    IPython removes blank lines at the top of a cell and joins continued magics, so the
    line as written is never above the line of transformed code. The result is an
    estimate if IPython has changed the text of the line.
    """
    number = get_cell_files()[filename]
    # Code that a magic executes has the execution count of the next cell.
    if number not in sources:
        number = run_state["number"]
    raw_lines = get_source_lines(number)
    executed_lines = linecache.getlines(filename)
    line_count = len(raw_lines)
    text = ""
    if line <= len(executed_lines):
        executed_line = executed_lines[line - 1]
        text = executed_line.strip()
    for index in range(line - 1, line_count):
        raw_line = raw_lines[index]
        if text and raw_line.strip() == text:
            return number, index + 1
    likely_line = line + find_first_line(raw_lines)
    last_line = max(1, line_count)
    return number, min(likely_line, last_line)


def find_running_cell_line(filename: str, line: int) -> int | None:
    """Return the line as written in the running cell, for a line of transformed code.

    Return None if the code is not part of the running cell.
    """
    running = run_state["number"]
    if filename in TIMED_FILENAMES:
        magic_line = find_cell_magic_line(running)
        if magic_line is None:
            return None
        last_line = len(get_source_lines(running))
        return min(magic_line + line, last_line)
    if filename not in get_cell_files():
        return None
    number, cell_line = find_cell_line(filename, line)
    return cell_line if number == running else None


def is_user_file(filename: str) -> bool:
    """Return whether code is from a cell or from a file that was not installed."""
    if filename in get_cell_files() or filename in TIMED_FILENAMES:
        return True
    if filename.startswith("<"):  # not a path
        return False
    path = os.path.realpath(filename)
    folders = path.split(os.sep)
    if "site-packages" in folders or "dist-packages" in folders:
        return False
    return not path.startswith(INSTALLED) and os.path.isfile(path)


def list_user_frames(trace: TracebackType | None) -> list[tuple[FrameType, int]]:
    """Return the frames of a traceback that are in user code, with their lines.

    The outermost frame comes first.
    """
    entries = []
    while trace is not None:
        frame = trace.tb_frame
        if is_user_file(frame.f_code.co_filename):
            entries.append((frame, trace.tb_lineno))
        trace = trace.tb_next
    return entries


def describe_frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    """Return the user frames of a traceback, as dicts that JSON can encode.

    If there are more than MAX_FRAMES, the frames in the middle are left out.
    """
    entries = list_user_frames(trace)
    if len(entries) > MAX_FRAMES:
        half = MAX_FRAMES // 2
        entries = entries[:half] + entries[-half:]
    facts: list[dict[str, Any]] = []
    for frame, executed_line in entries:
        code = frame.f_code
        filename = code.co_filename
        function = code.co_name
        number = None
        line = executed_line
        if filename in TIMED_FILENAMES:
            number = run_state["number"]
            magic_line = find_cell_magic_line(number)
            if magic_line is None:
                continue  # the frame of the line magic itself is reported
            if function == "<module>":
                facts = remove_frames_at(facts, number, magic_line)
            # The lines of the body are counted from the line below the magic.
            line = magic_line + executed_line
        elif filename in get_cell_files():
            number, line = find_cell_line(filename, executed_line)
        fact = describe_frame(number, filename, line, function)
        facts.append(fact)
    return facts


def remove_frames_at(
    facts: list[dict[str, Any]], number: int, line: int
) -> list[dict[str, Any]]:
    """Return the descriptions of frames without those at a line of a cell."""
    position = (number, line)
    return [fact for fact in facts if (fact["cell"], fact["line"]) != position]


def get_relative_path(filename: str) -> str:
    """Return a path relative to the working directory.

    If the working directory was deleted, the path is returned unchanged.
    """
    try:
        return os.path.relpath(filename)
    except FileNotFoundError:
        return filename


def describe_frame(
    number: int | None, filename: str, line: int, function: str
) -> dict[str, Any]:
    """Return a frame and the lines around its current line, as a dict.

    `number` is the number of the frame's cell, or None for a file. See
    `remember_source`.
    """
    if number is None:
        raw_lines = linecache.getlines(filename)
        lines = [text.rstrip("\n") for text in raw_lines]
        path = shorten(get_relative_path(filename))
    else:
        lines = get_source_lines(number)
        path = ""
    first = max(1, line - CONTEXT_LINES)
    last_context = line + CONTEXT_LINES
    last = min(len(lines), last_context)
    context = []
    for context_line in range(first, last + 1):
        line_text = lines[context_line - 1]
        text = line_text.rstrip()
        context.append([context_line, shorten(text)])
    return {
        "cell": number or 0,
        "file": path,
        "line": line,
        "function": shorten(function),
        "context": context,
    }
