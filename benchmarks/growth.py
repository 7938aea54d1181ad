"""What a step costs in a notebook that holds 0, 5, 20, 60 MB of outputs: time, memory of the hook and of the daemon.

    python benchmarks/growth.py

The floor of the same round is one process with orjson that reads what must be read and writes what must be written:
it parses the payload (which holds the notebook twice), reads and parses the file, dumps and writes it (temporary file,
fsync, rename). It has the payload in memory already; what it takes to hand it to a process is a row of its own.
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
    options,
    played,
    replace,
    report,
    scratch,
    since,
    spawn,
    take,
    within,
)
from subject import Subject

# MB of outputs → the bound to the floor
LIMITS: dict[int, float | None] = {0: None, 5: None, 20: 1.5, 60: 2}
HOOK_MEMORY = 3  # × the payload, from 5 MB on: below, it is an interpreter's
LOOKS = 3  # at memory
READ = "while __import__('os').read(0, 1 << 20): pass"


class Floor:
    """The same work without stepper, on a file beside the notebook."""

    def __init__(self, subject: Subject) -> None:
        self.payload, _ = subject.edit()
        self.path = subject.path.with_suffix(".floor")
        self.path.write_bytes(subject.path.read_bytes())

    def run(self) -> float:
        """Return the milliseconds of one step's reading and writing."""
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        told = orjson.loads(self.payload)
        notebook = orjson.loads(self.path.read_bytes())
        replace(self.path, orjson.dumps(notebook, option=orjson.OPT_INDENT_2))
        took = since(began)
        gc.enable()
        if told["tool_response"]["cell_id"] not in {
            cell["id"] for cell in notebook["cells"]
        }:
            raise BrokenStepError("the floor read something else")
        return took


def high_water(pid: int) -> float | None:
    """Return the most memory that a process had since the last call, in MiB; None where the system does not tell."""
    about = Path(f"/proc/{pid}")
    if not (about / "clear_refs").exists():
        return None
    lines = (about / "status").read_text().splitlines()
    most = next(
        int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")
    )
    (about / "clear_refs").write_text("5")
    return most


def memory(project: Project, subject: Subject) -> tuple[float, float | None, float]:
    """Return the peak of the hook, the daemon's while it serves, and what the daemon has one second later, in MiB."""
    hooks, peaks, after = [], [], []
    daemon = project.daemon()
    for _ in range(LOOKS):
        high_water(daemon.pid)
        hooks.append(subject.peak_mb())
        peaks.append(high_water(daemon.pid))
        time.sleep(1)
        after.append(daemon.memory_info().rss / MB)
    known = [most for most in peaks if most is not None]
    return (
        statistics.median(hooks),
        statistics.median(known) if known else None,
        statistics.median(after),
    )


def grown(size: int, rounds: int) -> tuple[str, str]:
    """Return the rows of a notebook with `size` MB of outputs: of the table of times, of the table of memory."""
    with scratch() as project:
        subject = Subject(project, "grown", 100, size * MB)
        subject.step()  # starts daemon and kernel
        floor = Floor(subject)
        reader = [*project.bare[:-1], READ]
        step, below = Row("step", subject.step), Row("floor", floor.run)
        handed = Row("handed over", lambda: spawn(reader, floor.payload).ms)
        take((step, below, handed), rounds)
        hook, most, later = memory(project, subject)
        payload = len(floor.payload) / MB
    ratio, limit = Bound(step, "", (below,)).ratio, LIMITS[size]
    times = (
        f"{step.median:.1f} | {step.middle} | {below.median:.1f} | {handed.median:.1f}"
    )
    shown = "" if most is None else f"{most:.0f}"
    share = (
        f"{hook / payload:.2f} × | {within(hook / payload, HOOK_MEMORY, ' ×')}"
        if size
        else " | "
    )
    return (
        f"| {size} MB | {payload:.1f} | {times} | {ratio:.2f} × | {within(ratio, limit, ' ×')} |",
        f"| {size} MB | {payload:.1f} | {hook:.0f} | {share} | {shown} | {later:.0f} |",
    )


def main() -> None:
    """Measure and print."""
    parser = options("What a step costs in a notebook with large outputs.")
    parser.add_argument(
        "sizes",
        nargs="*",
        type=int,
        default=[],
        help=f"MB of outputs, of {list(LIMITS)}",
    )
    given = parser.parse_args()
    rows = [grown(size, given.rounds) for size in given.sizes or LIMITS]
    handed = "a Python that reads standard input, ms"
    report(
        given.rounds,
        [
            f"| outputs | payload, MiB | PostToolUse, ms | middle half | floor, ms | {handed} | to the floor | bound |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *(times for times, _ in rows),
            "",
            "| outputs | payload, MiB | hook's peak | to the payload | bound | daemon's peak, MiB | a second later |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *(memories for _, memories in rows),
        ],
    )


if __name__ == "__main__":
    played(main)
