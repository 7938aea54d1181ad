"""Inject faults into real daemons, kernels, hooks and files.

    python benchmarks/faults.py              # each fault five times
    python benchmarks/faults.py --rounds 1

Run it with the Python of an environment that has stepper and its test requirements.
Each fault has its own notebook in one project. A fault is survived if report, notebook,
journal and the kernel's variables are correct afterwards. A loss is a missing output, a
cell that ran twice, or missing variables in a live kernel. If the daemon must survive
the fault, its descriptors, threads and memory are recorded before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from stepper.hook import daemon_client  # noqa: E402
from tests.conftest import CLIENT, Answer, Notebook, Project, text_of  # noqa: E402
from tests.test_recovery import (  # noqa: E402
    ENDLESS,
    KILLERS,
    POINTS,
    WAITING_CELL,
    make_append_line,
    start_dying_daemon,
)

HANG_SECONDS = 60.0


class LostError(Exception):
    """Something was lost: an output, a variable, or a cell ran twice."""


@dataclass
class Row:
    """The results of one kind of fault; `seconds` are the times until the report."""

    injected: int = 0
    survived: int = 0
    losses: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    status_seconds: list[float] = field(default_factory=list)
    daemon_sizes: list[str] = field(default_factory=list)


class Bench:
    """One notebook for one fault; all faults share a project."""

    def __init__(self, project: Project, name: str, row: Row) -> None:
        self.project, self.row = project, row
        self.book: Notebook = project.notebook(name)
        self.name = name
        self.require("ran ok" in self.insert("kept = 41"), "the first cell runs")

    def require(self, condition: object, expectation: str, *values: object) -> None:
        """Raise LostError unless the condition holds."""
        if not condition:
            raise LostError(
                f"{expectation}: {' | '.join(str(value)[:600] for value in values)}"
            )

    def ask(self, verb: str, **arguments: Any) -> Any:
        """Ask the daemon as the command line does."""
        payload = json.dumps({"notebook": self.name, **arguments}).encode()
        return json.loads(
            daemon_client.send_request(self.project.paths, verb.encode(), payload)
            or b"null"
        )

    def wait_until(self, condition: Callable[[], object], expectation: str) -> None:
        """Wait for a condition."""
        limit = time.monotonic() + HANG_SECONDS
        while not condition():
            self.require(time.monotonic() < limit, f"timed out: {expectation}")
            time.sleep(0.005)

    def insert(self, source: str) -> str:
        """Write a cell; return the report or the stop."""
        answer = self.book.insert(source)[1]
        return answer.text or answer.stop

    def find_last_cell(self) -> str | None:
        """Return the id of the last cell."""
        cells = self.book.raw["cells"]
        return cells[-1]["id"] if cells else None

    def count_runs(self, mark: str) -> int:
        """Return how often the cell that writes this mark ran."""
        path = self.project.folder / "notebooks" / mark
        return len(path.read_text().splitlines()) if path.exists() else 0

    def start_cell(self, source: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Write a cell; return its id and its hook process."""
        return self.fire_hook(self.book.edited("insert", source, self.find_last_cell()))

    def fire_hook(self, payload: dict[str, Any]) -> tuple[str, subprocess.Popen[bytes]]:
        """Run the hook of an edit; return the cell's id and the process."""
        command = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            CLIENT,
            str(ROOT),
            str(self.project.folder),
            "PostToolUse",
        ]
        hook = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        hook.stdin.write(json.dumps(payload).encode())
        hook.stdin.close()
        hook.stdin = None  # otherwise `communicate` flushes it
        return payload["tool_response"]["cell_id"], hook

    def check_variables(self) -> None:
        """Raise LostError unless the kernel's variables exist."""
        text = self.insert("print('kept', kept)")
        self.require("| kept 41" in text, "the variables are there", text)

    def start_waiting_cell(self) -> tuple[str, str, subprocess.Popen[bytes]]:
        """Run a cell that waits for `release_cell`.

        Return its id, its mark and its hook.
        """
        mark = f"{self.name}.mark"
        cell_id, hook = self.start_cell(
            make_append_line(mark) + WAITING_CELL.replace("'go'", f"'{self.name}.go'")
        )
        self.wait_until(lambda: self.count_runs(mark) == 1, "the cell begins")
        return cell_id, mark, hook

    def release_cell(self) -> None:
        """Let the waiting cell finish."""
        (self.project.folder / "notebooks" / f"{self.name}.go").touch()


def kill_idle_daemon(bench: Bench) -> None:
    bench.project.kill_daemon()
    bench.check_variables()


def kill_busy_daemon(bench: Bench) -> None:
    cell_id, mark, hook = bench.start_waiting_cell()
    bench.project.kill_daemon()
    bench.release_cell()
    text = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
    bench.require("| begun\n| over" in text, "the report has the whole output", text)
    bench.require(
        text_of(bench.book.cell(cell_id)) == "begun\nover\n",
        "the output is on the cell",
    )
    bench.require(bench.count_runs(mark) == 1, "it ran once")
    bench.check_variables()


def kill_daemon_at(point: str) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        start_dying_daemon(bench.project, point)
        mark = f"{bench.name}.mark"
        cell_id, answer = bench.book.insert(make_append_line(mark) + "print('hello')")
        bench.require(
            "ok" in answer.text.splitlines()[0],
            "the report has the outcome",
            answer.text,
        )
        bench.require(
            text_of(bench.book.cell(cell_id)) == "hello\n", "the output is on the cell"
        )
        bench.require(
            bench.count_runs(mark) == 1, "it ran once", bench.count_runs(mark)
        )
        bench.check_variables()

    return inject


def kill_kernel_by_cell(source: str) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        started_at = time.monotonic()
        text = bench.insert(source)
        bench.row.seconds.append(time.monotonic() - started_at)
        bench.require(
            "KernelDied" in text and "they came from 1 cell" in text,
            "the report names the death and the lost variables",
            text,
        )
        check_restore(bench, 1)

    return inject


def check_restore(bench: Bench, cells: int) -> None:
    response = bench.ask("restore")
    bench.require(response["ok"] and response["ran"] == cells, "restore", response)
    bench.check_variables()


def kill_idle_kernel(bench: Bench) -> None:
    started_at = time.monotonic()
    psutil.Process(bench.ask("status")["kernel"]["pid"]).kill()
    bench.wait_until(
        lambda: bench.ask("status")["state"] == "stopped", "the notebook stops"
    )
    bench.row.seconds.append(time.monotonic() - started_at)
    check_restore(bench, 1)


def run_endless_cell(source: str) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        _, hook = bench.start_cell(f"# stepper: timeout=1\n{source}")
        outputs: list[bytes] = []
        thread = threading.Thread(
            target=lambda: outputs.append(hook.communicate(timeout=HANG_SECONDS)[0])
        )
        thread.start()
        while thread.is_alive():
            started_at = time.monotonic()
            bench.ask("status")
            bench.row.status_seconds.append(time.monotonic() - started_at)
            time.sleep(0.02)
        answer = Answer(outputs[0])
        text = answer.text or answer.stop
        if "KernelDied" in text:
            bench.require(
                "the interrupt had no effect for 5 s" in text,
                "the report names the kill",
                text,
            )
            check_restore(bench, 1)
        else:
            bench.require("Timeout" in text, "the report names the timeout", text)
            bench.insert("pass")
            bench.ask("fix")
            bench.require(
                "| kept 41"
                in bench.book.replace(
                    bench.find_last_cell(), "print('kept', kept)"
                ).text,
                "the state is kept",
            )

    return inject


def signal_hook(number: int) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        _, _, hook = bench.start_waiting_cell()
        hook.send_signal(number)
        hook.wait()
        bench.wait_until(
            lambda: bench.ask("history")[-1]["outcome"] == "cancelled",
            "the cell is cancelled",
        )
        hook.stdout.close()
        bench.require(
            "| kept 41"
            in bench.book.replace(bench.find_last_cell(), "print('kept', kept)").text,
            "the state is kept",
        )

    return inject


def break_file(state: str) -> Callable[[Bench], None]:
    def inject(bench: Bench) -> None:
        cell_id, _, hook = bench.start_waiting_cell()
        text, path = bench.book.path.read_text(), bench.book.path
        path.unlink()
        if state == "invalid":
            path.write_text(text[:-20])
        bench.release_cell()
        report = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
        bench.require(
            "stepper keeps them in the journal" in report, "the report says so", report
        )
        path.write_text(text)
        bench.wait_until(
            lambda: text_of(bench.book.cell(cell_id)) == "begun\nover\n",
            "the outputs are written",
        )
        bench.check_variables()

    return inject


def kill_kernel_with_children(bench: Bench) -> None:
    bench.insert(
        "import subprocess as s\np = [s.Popen(['sleep', '999'], start_new_session=n % 2 > 0) for n in range(4)]"
    )
    kernel = psutil.Process(bench.ask("status")["kernel"]["pid"])
    family = [kernel, *kernel.children(recursive=True)]
    bench.require(len(family) >= 5, "the children run", family)
    kernel.kill()
    bench.wait_until(
        lambda: not psutil.wait_procs(family, timeout=0)[1], "all processes exit"
    )
    check_restore(bench, 2)


def run_concurrent_hooks(bench: Bench) -> None:
    payloads = [
        bench.book.edited("insert", f"print('cell', {number})", bench.find_last_cell())
        for number in range(20)
    ]
    hooks = [bench.fire_hook(payload) for payload in payloads]
    for number, (cell_id, hook) in enumerate(hooks):
        text = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
        bench.require(
            f"| cell {number}" in text, "each report belongs to its cell", text
        )
        bench.require(
            text_of(bench.book.cell(cell_id)) == f"cell {number}\n",
            "each output is on its cell",
        )
    bench.check_variables()


# Fault → the function that injects it, and whether the daemon must survive it.
FAULTS: dict[str, tuple[Callable[[Bench], None], bool]] = {
    "daemon `kill -9`, idle": (kill_idle_daemon, False),
    "daemon `kill -9`, a cell runs": (kill_busy_daemon, False),
    **{
        f"daemon `kill -9`, {point}": (kill_daemon_at(point), False) for point in POINTS
    },
    **{
        f"a cell kills its kernel: {cause}": (kill_kernel_by_cell(source), True)
        for cause, source in KILLERS.items()
    },
    "kernel `kill -9`, idle": (kill_idle_kernel, True),
    **{
        f"endless cell: {name}": (run_endless_cell(source), True)
        for name, source in ENDLESS.items()
    },
    "hook SIGTERM": (signal_hook(signal.SIGTERM), True),
    "hook `kill -9`": (signal_hook(signal.SIGKILL), True),
    "notebook deleted while its cell runs": (break_file("deleted"), True),
    "notebook invalid while its cell runs": (break_file("invalid"), True),
    "kernel `kill -9` with four children": (kill_kernel_with_children, True),
    "20 concurrent hooks": (run_concurrent_hooks, True),
}


def find_daemon(project: Project) -> psutil.Process:
    """Return the daemon's process."""
    return psutil.Process(
        json.loads(daemon_client.send_request(project.paths, b"status", b"{}") or b"")[
            "daemon"
        ]["pid"]
    )


def measure_daemon(process: psutil.Process) -> dict[str, float]:
    """Return descriptors, threads and MiB of memory of an idle process."""
    time.sleep(1.5)
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "MiB": process.memory_info().rss / 2**20,
    }


def inject_once(project: Project, fault: str, row: Row, number: int) -> None:
    """Inject a fault once."""
    inject_fault, daemon_survives = FAULTS[fault]
    row.injected += 1
    try:
        bench = Bench(project, f"f{list(FAULTS).index(fault)}-{number}.ipynb", row)
        process = find_daemon(project)
        before = measure_daemon(process) if daemon_survives else {}
        inject_fault(bench)
        row.survived += 1
        bench.ask("restart")  # so that the notebook has a kernel, as before
        if daemon_survives:
            after = measure_daemon(process)
            row.daemon_sizes.append(
                ", ".join(
                    f"{name} {before[name]:.0f} → {after[name]:.0f}" for name in before
                )
            )
    except (LostError, psutil.Error, subprocess.TimeoutExpired) as error:
        row.losses.append(f"{type(error).__name__}: {error}")


def main() -> None:
    """Inject all faults and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults"))
    project, rows = (
        Project(folder / "repo"),
        {fault: Row() for fault in FAULTS if arguments.only in fault},
    )
    try:
        for fault, row in rows.items():
            for number in range(arguments.rounds):
                inject_once(project, fault, row, number)
            print(format_row(fault, row), flush=True)
    finally:
        project.stepper("shutdown", check=None)
        shutil.rmtree(project.paths.runtime, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    status_times = [
        value * 1000 for row in rows.values() for value in row.status_seconds
    ]
    if status_times:
        percentile = sorted(status_times)[-max(1, len(status_times) // 100)]
        summary = f"median {statistics.median(status_times):.0f} ms, 99th percentile {percentile:.0f} ms, slowest {max(status_times):.0f} ms"
        print(f"\nstatus during endless cells: {len(status_times)} requests: {summary}")
    losses = [
        f"{fault}: {value}" for fault, row in rows.items() for value in row.losses
    ]
    print(
        f"\ninjected {sum(row.injected for row in rows.values())}, "
        f"survived {sum(row.survived for row in rows.values())}, lost {len(losses)}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    if losses:
        sys.exit("\n".join(losses))


def format_row(fault: str, row: Row) -> str:
    """Return a row of the table."""
    report_time = (
        f"{statistics.median(row.seconds):.2f} s, at most {max(row.seconds):.2f} s"
        if row.seconds
        else "–"
    )
    daemon_sizes = row.daemon_sizes[-1] if row.daemon_sizes else "–"
    return f"| {fault} | {row.injected} | {row.survived} | {len(row.losses)} | {report_time} | {daemon_sizes} |"


if __name__ == "__main__":
    main()
