"""How long the statements of a long run took, by samples of the running line.

A sample is the line of the cell at which the kernel's main thread is. The samples are
taken in ipykernel's output thread, and only for runs that take longer than
FIRST_SECONDS: nothing is traced, and a short cell costs nothing. Only a run that failed
after MIN_SECONDS is reported.
"""

from __future__ import annotations

import ast
import linecache
import sys
import threading
from typing import Any

from stepper.kernels.in_kernel.cell_sources import find_cell_line, run_state
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    clock,
    get_cell_files,
    shell,
)

FIRST_SECONDS = 1.0  # before the first sample of a run
PAUSE_SECONDS = 0.1  # between two samples, at least
PAUSE_SHARE = 0.01  # of the time so far, between two samples
MIN_SECONDS = 10.0  # of a run that is reported


class Samples:
    """The samples of the current run.

    The times are stored by file, because callbacks and tasks of other cells may run at
    the same time.
    """

    def __init__(self) -> None:
        self.began = 0.0  # 0 if no cell runs
        self.last = 0.0  # time of the last sample
        self.thread = 0  # id of the thread that runs the cell
        # File of a transformed cell → line → seconds.
        self.seconds: dict[str, dict[int, float]] = {}
        self.has_timer = False  # whether a call of `check_run` is scheduled


samples = Samples()


def start_run() -> None:
    """Start the samples of a run. The thread that executes the run calls this."""
    now = clock()
    samples.began = now
    samples.last = now
    samples.thread = threading.get_ident()
    samples.seconds = {}
    if not samples.has_timer:
        samples.has_timer = True
        get_loop().add_callback(schedule, FIRST_SECONDS)


def get_loop() -> Any:
    """Return the event loop of ipykernel's output thread."""
    return shell.kernel.iopub_thread.io_loop


def schedule(seconds: float) -> None:
    """Schedule a check of the run in the output thread."""
    get_loop().call_later(seconds, call_safely, check_run)


def check_run() -> None:
    """Take a sample if the run is long enough, and schedule the next check.

    If no cell runs, no check is scheduled.
    """
    began = samples.began
    if not began:
        samples.has_timer = False
        # A run that started just before this assignment has scheduled no check.
        if not samples.began:
            return
        samples.has_timer = True
        began = samples.began
    elapsed = clock() - began
    if elapsed < FIRST_SECONDS:
        schedule(FIRST_SECONDS - elapsed)
        return
    take_sample()
    schedule(max(PAUSE_SECONDS, PAUSE_SHARE * elapsed))


def take_sample() -> None:
    """Add the seconds since the last sample to the current line of the cell."""
    now = clock()
    seconds = now - samples.last
    samples.last = now
    cell_files = get_cell_files()
    frame = sys._current_frames().get(samples.thread)
    filename = ""
    line = 0
    while frame is not None:
        if frame.f_code.co_filename in cell_files:
            # The outermost of these frames, which is the last, is the cell itself.
            filename = frame.f_code.co_filename
            line = frame.f_lineno or 0
        frame = frame.f_back
    if not line:
        return
    lines = samples.seconds.setdefault(filename, {})
    lines[line] = lines.get(line, 0.0) + seconds


def finish_run(has_failed: bool) -> list[list[float]]:
    """End the samples of a run. Return the times of its statements if it failed.

    Each item contains the first and the last line of a statement, as written, and its
    seconds. The list is empty for a run that was short or did not fail, and for a cell
    with only one statement.
    """
    began = samples.began
    samples.began = 0.0
    if not has_failed or clock() - began < MIN_SECONDS:
        return []
    filename = find_current_file()
    lines = samples.seconds.get(filename, {})
    ranges = list_statements(filename) if lines else []
    if len(ranges) < 2:
        return []
    times = []
    for first, last in ranges:
        seconds = 0.0
        for line, line_seconds in lines.items():
            if first <= line <= last:
                seconds += line_seconds
        if seconds:
            first_written = find_cell_line(filename, first)[1]
            last_written = find_cell_line(filename, last)[1]
            times.append([first_written, last_written, round(seconds, 1)])
    return times


def find_current_file() -> str:
    """Return the file of the cell that has just run, or "" if it has no samples."""
    cell_files = get_cell_files()
    for filename in samples.seconds:
        if cell_files.get(filename) == run_state["number"]:
            return filename
    return ""


def list_statements(filename: str) -> list[tuple[int, int]]:
    """Return the first and the last line of each statement of a transformed cell.

    Statements that share a line count as one.
    """
    source = "".join(linecache.getlines(filename))
    ranges: list[tuple[int, int]] = []
    for statement in ast.parse(source).body:
        first = statement.lineno
        for decorator in getattr(statement, "decorator_list", ()):
            first = min(first, decorator.lineno)
        last = statement.end_lineno or first
        if ranges and first <= ranges[-1][1]:
            first = ranges.pop()[0]
        ranges.append((first, last))
    return ranges
