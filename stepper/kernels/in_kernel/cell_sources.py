"""The cells as they were written, and the way from a frame back to a cell's line or to a file of the user's own."""

from __future__ import annotations

import linecache
import os
import re
import sysconfig
from types import FrameType, TracebackType
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import get_cell_files, shorten

FRAMES, AROUND, CELLS = 12, 2, 500
# execution count → cell as written; IPython's history can be off
sources: dict[int, str] = {}
run_state: dict[str, Any] = {"number": 0, "shown": 0, "cell": 0}
# number of what `stepper eval` ran → that of the last cell before it
looked_after: dict[int, int] = {}
global_names: set[str] = (
    set()
)  # names that some function of a cell may bind by `global`
AT_WILL = re.compile(r"\b(?:exec|globals|user_ns|setattr|__main__|get_ipython)\b")
# with one of those: a call may bind any name, later too
DEFINES = re.compile(r"\b(?:def|lambda)\b")
GLOBAL = re.compile(r"\bglobal[ \t]+(\w+(?:[ \t]*,[ \t]*\w+)*)")
TIMED_FILENAMES = ("<timed exec>", "<timed eval>")
INSTALLED = tuple(
    os.path.join(os.path.realpath(folder), "")
    for folder in {*sysconfig.get_paths().values()}
    if len(folder) > 3
)


def remember_source(number: int, raw: str) -> None:
    run_state["number"] = number
    run_state["cell"] = max(
        number or 0, run_state["cell"]
    )  # None where IPython itself failed
    global_names.update(
        name
        for names in GLOBAL.findall(raw)
        for name in names.replace(" ", "").split(",")
    )
    if AT_WILL.search(raw) and DEFINES.search(raw):
        run_state["at_will"] = True
    sources[number] = raw
    if len(sources) > CELLS:
        del sources[next(iter(sources))]


def remember_scratch(raw: str) -> None:
    """Remember what `stepper eval` ran under a number of its own: below 0, so that no cell has it."""
    run_state["looks"] = run_state.get("looks", 0) - 1
    looked_after[run_state["looks"]] = run_state["cell"]
    if len(looked_after) > CELLS:
        del looked_after[next(iter(looked_after))]
    for filename, number in list(get_cell_files().items())[-1:]:
        if number not in sources:  # the next cell's, which it was given
            get_cell_files()[filename] = run_state["looks"]
    remember_source(run_state["looks"], raw)


def order(number: int) -> tuple[int, int]:
    """When something ran, by its execution count: greater is later."""
    return (number, 0) if number >= 0 else (looked_after.get(number, 0), -number)


def get_source_lines(number: int) -> list[str]:
    return sources[number].split("\n") if number in sources else []


def find_cell_magic(number: int) -> tuple[int, int] | None:
    lines = get_source_lines(number)
    head = next((index for index, text in enumerate(lines) if text.strip()), 0)
    return (number, head + 1) if lines and lines[head].startswith("%%") else None


def find_cell_line(filename: str, line: int) -> tuple[int, int]:
    # IPython cuts blank lines at a cell's head and joins continued magics: lines only
    # ever move up
    number = get_cell_files()[filename]
    # one that a magic runs has the next cell's
    number = number if number in sources else run_state["number"]
    raw, run = get_source_lines(number), linecache.getlines(filename)
    text = run[line - 1].strip() if line <= len(run) else ""
    for index in range(line - 1, len(raw)):
        if text and raw[index].strip() == text:
            return number, index + 1
    head = next((index for index, text in enumerate(raw) if text.strip()), 0)
    return number, min(line + head, max(1, len(raw)))


def find_running_cell_line(filename: str, line: int) -> int | None:
    """The line of the cell that runs, as it was written, or None where it is none of this cell's."""
    if filename in TIMED_FILENAMES:
        magic = find_cell_magic(run_state["number"])
        return (
            None
            if magic is None
            else min(magic[1] + line, len(get_source_lines(run_state["number"])))
        )
    number, line = (
        find_cell_line(filename, line) if filename in get_cell_files() else (0, 0)
    )
    return line if number == run_state["number"] else None


def is_user_file(filename: str) -> bool:
    """Whether a file is the user's: neither the standard library nor installed, and no piece of generated code."""
    if filename in get_cell_files() or filename in TIMED_FILENAMES:
        return True
    path = os.path.realpath(filename)
    parts = path.split(os.sep)
    apart = (
        "site-packages" in parts
        or "dist-packages" in parts
        or path.startswith(INSTALLED)
    )
    return not apart and not filename.startswith("<") and os.path.isfile(path)


def list_user_frames(trace: TracebackType | None) -> list[tuple[FrameType, int, int]]:
    """The traceback's entries in the user's own code, outermost first: (frame, line, index of the instruction)."""
    found = []
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            found.append((trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    return found


def describe_frames(trace: TracebackType | None) -> list[dict[str, Any]]:
    spots = [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line, _ in list_user_frames(trace)
    ]
    if len(spots) > FRAMES:
        spots = spots[: FRAMES // 2] + spots[-FRAMES // 2 :]
    found: list[dict[str, Any]] = []
    for filename, line, function in spots:
        if filename in TIMED_FILENAMES:
            magic = find_cell_magic(run_state["number"])
            if magic is None:
                continue  # of a line magic: its own frame tells more
            if function == "<module>":
                found = [one for one in found if (one["cell"], one["line"]) != magic]
            # the body of a cell magic counts from below it
            number, line = magic[0], magic[1] + line
        elif filename in get_cell_files():
            number, line = find_cell_line(filename, line)
        else:
            number = None
        found.append(told(number, filename, line, function))
    return found


def told(number: int | None, filename: str, line: int, function: str) -> dict[str, Any]:
    raw = (
        get_source_lines(number)
        if number is not None
        else [text.rstrip("\n") for text in linecache.getlines(filename)]
    )
    around = range(max(1, line - AROUND), min(len(raw), line + AROUND) + 1)
    context = [[n, shorten(raw[n - 1].rstrip())] for n in around]
    path = "" if number is not None else shorten(os.path.relpath(filename))
    return {
        "cell": number or 0,
        "file": path,
        "line": line,
        "function": shorten(function),
        "context": context,
    }
