"""Measure a step in a notebook with 0, 5, 20 or 60 MB of outputs: time and memory.

    python benchmarks/notebook_size.py

The floor is one process with orjson that reads and writes the necessary data: it parses
the payload (which contains the notebook twice), reads and parses the file, dumps it and
writes it (temporary file, fsync, rename). The payload is already in its memory. The
time to pass the payload to a process is in a separate column.
"""

from __future__ import annotations

import gc
import statistics
import time
from pathlib import Path

import orjson
from common import (
    MB,
    Bound,
    BrokenStepError,
    Project,
    Row,
    create_parser,
    create_temporary_project,
    format_bound,
    measure_elapsed_ms,
    measure_rows,
    print_report,
    replace_file,
    run_benchmark,
    spawn,
)
from edited_notebook import EditedNotebook

# MB of outputs → limit, as a multiple of the floor
LIMITS: dict[int, float | None] = {0: None, 5: None, 20: 1.5, 60: 2}
HOOK_MEMORY = 3  # × the payload, from 5 MB; below, it is an interpreter's
MEMORY_SAMPLES = 3
READ = "while __import__('os').read(0, 1 << 20): pass"


class Floor:
    """The same work without stepper, on a copy of the notebook."""

    def __init__(self, notebook: EditedNotebook) -> None:
        self.payload, _ = notebook.edit()
        self.path = notebook.path.with_suffix(".floor")
        self.path.write_bytes(notebook.path.read_bytes())

    def run(self) -> float:
        """Return the milliseconds of reading and writing for one step."""
        gc.collect()
        gc.disable()
        started_at = time.perf_counter()
        payload = orjson.loads(self.payload)
        notebook = orjson.loads(self.path.read_bytes())
        replace_file(self.path, orjson.dumps(notebook, option=orjson.OPT_INDENT_2))
        duration_ms = measure_elapsed_ms(started_at)
        gc.enable()
        if payload["tool_response"]["cell_id"] not in {
            cell["id"] for cell in notebook["cells"]
        }:
            raise BrokenStepError("the floor read another cell")
        return duration_ms


def read_peak_memory(pid: int) -> float | None:
    """Return a process's peak memory in MiB since the last call.

    Return None if the system does not report it.
    """
    process_folder = Path(f"/proc/{pid}")
    if not (process_folder / "clear_refs").exists():
        return None
    lines = (process_folder / "status").read_text().splitlines()
    peak = next(
        int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")
    )
    (process_folder / "clear_refs").write_text("5")
    return peak


def measure_memory(
    project: Project, notebook: EditedNotebook
) -> tuple[float, float | None, float]:
    """Return MiB of memory: hook's peak, daemon's peak, daemon after 1 s."""
    hooks, peaks, after = [], [], []
    daemon = project.find_daemon()
    for _ in range(MEMORY_SAMPLES):
        read_peak_memory(daemon.pid)
        hooks.append(notebook.peak_mb())
        peaks.append(read_peak_memory(daemon.pid))
        time.sleep(1)
        after.append(daemon.memory_info().rss / MB)
    known_peaks = [peak for peak in peaks if peak is not None]
    return (
        statistics.median(hooks),
        statistics.median(known_peaks) if known_peaks else None,
        statistics.median(after),
    )


def measure_size(size: int, rounds: int) -> tuple[str, str]:
    """Return the rows of times and memory for a notebook with `size` MB of outputs."""
    with create_temporary_project() as project:
        notebook = EditedNotebook(project, "grown", 100, size * MB)
        notebook.step()  # starts daemon and kernel
        floor = Floor(notebook)
        reader = [*project.bare[:-1], READ]
        step, floor_row = Row("step", notebook.step), Row("floor", floor.run)
        handover = Row("handover", lambda: spawn(reader, floor.payload).ms)
        measure_rows((step, floor_row, handover), rounds)
        hook, peak, after_mib = measure_memory(project, notebook)
        payload = len(floor.payload) / MB
    ratio, limit = Bound(step, "", (floor_row,)).ratio, LIMITS[size]
    times = f"{step.median:.1f} | {step.middle} | {floor_row.median:.1f} | {handover.median:.1f}"
    daemon_peak = "" if peak is None else f"{peak:.0f}"
    share = (
        f"{hook / payload:.2f} × | {format_bound(hook / payload, HOOK_MEMORY, ' ×')}"
        if size
        else " | "
    )
    return (
        f"| {size} MB | {payload:.1f} | {times} | {ratio:.2f} × | {format_bound(ratio, limit, ' ×')} |",
        f"| {size} MB | {payload:.1f} | {hook:.0f} | {share} | {daemon_peak} | {after_mib:.0f} |",
    )


def main() -> None:
    """Measure and print."""
    parser = create_parser("Measure a step in a notebook with large outputs.")
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        default=[],
        help=f"MB of outputs: any of {list(LIMITS)}",
    )
    options = parser.parse_args()
    rows = [measure_size(size, options.rounds) for size in options.sizes or LIMITS]
    handover = "a Python that reads standard input, ms"
    print_report(
        options.rounds,
        [
            f"| outputs | payload, MiB | PostToolUse, ms | middle half | floor, ms | {handover} | to the floor | limit |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *(times for times, _ in rows),
            "",
            "| outputs | payload, MiB | hook's peak | to the payload | limit | daemon's peak, MiB | a second later |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(memories for _, memories in rows),
        ],
    )


if __name__ == "__main__":
    run_benchmark(main)
