"""Faults are injected into real daemons, kernels, hooks and files; what survived, what was lost, how long it took.

    python benchmarks/faults.py              # each fault five times
    python benchmarks/faults.py --rounds 1

Run it with the Python of an environment that holds stepper and its test requirements. Each fault has a notebook of its
own in one project. A fault is survived where the report, the notebook, the journal and the kernel's variables are as
they must be; lost are outputs that are missing, cells that ran twice and variables that are gone although their kernel
lives. Where the daemon lives through a fault its descriptors, threads and memory are looked at before and after.
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
from tests.test_recovery import ENDLESS, KILLERS, POINTS, WAITS, leaves, suicidal_daemon  # noqa: E402

HANG_SECONDS = 60.0


class LostError(Exception):
    """Something was lost: an output, a variable, or a cell ran twice."""


@dataclass
class Row:
    """One kind of fault: how often it was injected and survived, and the seconds that were asked of it."""

    injected: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    status: list[float] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)


class Bench:
    """One notebook for one fault, in a project that all share."""

    def __init__(self, project: Project, name: str, row: Row) -> None:
        self.project, self.row = project, row
        self.book: Notebook = project.notebook(name)
        self.name = name
        self.must("ran ok" in self.insert("kept = 41"), "the first cell")

    def must(self, condition: object, what: str, *seen: object) -> None:
        """Raise LostError unless the condition holds."""
        if not condition:
            raise LostError(f"{what}: {' | '.join(str(one)[:600] for one in seen)}")

    def ask(self, verb: str, **given: Any) -> Any:
        """Ask the daemon as the command line does."""
        payload = json.dumps({"notebook": self.name, **given}).encode()
        return json.loads(
            daemon_client.send_request(self.project.paths, verb.encode(), payload)
            or b"null"
        )

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition."""
        limit = time.monotonic() + HANG_SECONDS
        while not condition():
            self.must(time.monotonic() < limit, f"it never came: {what}")
            time.sleep(0.005)

    def insert(self, source: str) -> str:
        """Write a cell; return the report or the stop."""
        answer = self.book.insert(source)[1]
        return answer.text or answer.stop

    def last(self) -> str | None:
        """Return the id of the last cell."""
        cells = self.book.raw["cells"]
        return cells[-1]["id"] if cells else None

    def times(self, mark: str) -> int:
        """Return how often the cell ran that leaves this mark."""
        path = self.project.folder / "notebooks" / mark
        return len(path.read_text().splitlines()) if path.exists() else 0

    def hooked(self, source: str) -> tuple[str, subprocess.Popen[bytes]]:
        """Write a cell; return its id and the hook process that waits for it."""
        return self.fired(self.book.edited("insert", source, self.last()))

    def fired(self, payload: dict[str, Any]) -> tuple[str, subprocess.Popen[bytes]]:
        """Fire the hook of an edit; return the cell's id and the process."""
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
        hook.stdin = None  # else `communicate` flushes it
        return payload["tool_response"]["cell_id"], hook

    def variables(self) -> None:
        """The kernel's variables must be there."""
        text = self.insert("print('kept', kept)")
        self.must("| kept 41" in text, "the variables are there", text)

    def waiting(self) -> tuple[str, str, subprocess.Popen[bytes]]:
        """Have a cell run that waits for `go()`; return its id, its mark and its hook."""
        mark = f"{self.name}.mark"
        cell_id, hook = self.hooked(
            leaves(mark) + WAITS.replace("'go'", f"'{self.name}.go'")
        )
        self.until(lambda: self.times(mark) == 1, "the cell begins")
        return cell_id, mark, hook

    def go(self) -> None:
        """Let the waiting cell end."""
        (self.project.folder / "notebooks" / f"{self.name}.go").touch()


def daemon_idle(bench: Bench) -> None:
    bench.project.kill_daemon()
    bench.variables()


def daemon_at_work(bench: Bench) -> None:
    cell_id, mark, hook = bench.waiting()
    bench.project.kill_daemon()
    bench.go()
    text = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
    bench.must("| begun\n| over" in text, "the report has the whole output", text)
    bench.must(
        text_of(bench.book.cell(cell_id)) == "begun\nover\n",
        "the output is on the cell",
    )
    bench.must(bench.times(mark) == 1, "it ran once")
    bench.variables()


def daemon_at(point: str) -> Callable[[Bench], None]:
    def killed(bench: Bench) -> None:
        suicidal_daemon(bench.project, point)
        mark = f"{bench.name}.mark"
        cell_id, answer = bench.book.insert(leaves(mark) + "print('hello')")
        bench.must(
            "ok" in answer.text.splitlines()[0],
            "the report tells how it ended",
            answer.text,
        )
        bench.must(
            text_of(bench.book.cell(cell_id)) == "hello\n", "the output is on the cell"
        )
        bench.must(bench.times(mark) == 1, "it ran once", bench.times(mark))
        bench.variables()

    return killed


def kernel_by(source: str) -> Callable[[Bench], None]:
    def killed(bench: Bench) -> None:
        began = time.monotonic()
        text = bench.insert(source)
        bench.row.seconds.append(time.monotonic() - began)
        bench.must(
            "KernelDied" in text and "1 cell had built" in text,
            "the death is told, and what is lost",
            text,
        )
        restored(bench, 1)

    return killed


def restored(bench: Bench, cells: int) -> None:
    found = bench.ask("restore")
    bench.must(found["ok"] and found["ran"] == cells, "restore", found)
    bench.variables()


def kernel_idle(bench: Bench) -> None:
    began = time.monotonic()
    psutil.Process(bench.ask("status")["kernel"]["pid"]).kill()
    bench.until(lambda: bench.ask("status")["state"] == "stopped", "the notebook stops")
    bench.row.seconds.append(time.monotonic() - began)
    restored(bench, 1)


def endless(source: str) -> Callable[[Bench], None]:
    def stuck(bench: Bench) -> None:
        _, hook = bench.hooked(f"# stepper: timeout=1\n{source}")
        told: list[bytes] = []
        thread = threading.Thread(
            target=lambda: told.append(hook.communicate(timeout=HANG_SECONDS)[0])
        )
        thread.start()
        while thread.is_alive():
            began = time.monotonic()
            bench.ask("status")
            bench.row.status.append(time.monotonic() - began)
            time.sleep(0.02)
        answer = Answer(told[0])
        text = answer.text or answer.stop
        if "KernelDied" in text:
            bench.must(
                "the interrupt had no effect for 5 s" in text, "the kill is told", text
            )
            restored(bench, 1)
        else:
            bench.must("Timeout" in text, "the deadline is told", text)
            bench.insert("pass")
            bench.ask("fix")
            bench.must(
                "| kept 41"
                in bench.book.replace(bench.last(), "print('kept', kept)").text,
                "the state is kept",
            )

    return stuck


def client_by(number: int) -> Callable[[Bench], None]:
    def gone(bench: Bench) -> None:
        _, _, hook = bench.waiting()
        hook.send_signal(number)
        hook.wait()
        bench.until(
            lambda: bench.ask("history")[-1]["outcome"] == "cancelled",
            "the cell is cancelled",
        )
        hook.stdout.close()
        bench.must(
            "| kept 41" in bench.book.replace(bench.last(), "print('kept', kept)").text,
            "the state is kept",
        )

    return gone


def file_is(how: str) -> Callable[[Bench], None]:
    def spoilt(bench: Bench) -> None:
        cell_id, _, hook = bench.waiting()
        text, path = bench.book.path.read_text(), bench.book.path
        path.unlink()
        if how == "invalid":
            path.write_text(text[:-20])
        bench.go()
        report = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
        bench.must("they wait in the journal" in report, "it is told", report)
        path.write_text(text)
        bench.until(
            lambda: text_of(bench.book.cell(cell_id)) == "begun\nover\n",
            "the outputs are written",
        )
        bench.variables()

    return spoilt


def tree(bench: Bench) -> None:
    bench.insert(
        "import subprocess as s\np = [s.Popen(['sleep', '999'], start_new_session=n % 2 > 0) for n in range(4)]"
    )
    kernel = psutil.Process(bench.ask("status")["kernel"]["pid"])
    family = [kernel, *kernel.children(recursive=True)]
    bench.must(len(family) >= 5, "the children run", family)
    kernel.kill()
    bench.until(
        lambda: not psutil.wait_procs(family, timeout=0)[1], "the whole tree ends"
    )
    restored(bench, 2)


def at_once(bench: Bench) -> None:
    payloads = [
        bench.book.edited("insert", f"print('cell', {number})", bench.last())
        for number in range(20)
    ]
    hooks = [bench.fired(payload) for payload in payloads]
    for number, (cell_id, hook) in enumerate(hooks):
        text = Answer(hook.communicate(timeout=HANG_SECONDS)[0]).text
        bench.must(f"| cell {number}" in text, "each report is its cell's", text)
        bench.must(
            text_of(bench.book.cell(cell_id)) == f"cell {number}\n",
            "each output is on its cell",
        )
    bench.variables()


# What is injected → how, and whether the daemon must live through it.
FAULTS: dict[str, tuple[Callable[[Bench], None], bool]] = {
    "daemon `kill -9`, idle": (daemon_idle, False),
    "daemon `kill -9`, a cell runs": (daemon_at_work, False),
    **{f"daemon `kill -9`, {point}": (daemon_at(point), False) for point in POINTS},
    **{
        f"kernel ends by a cell: {how}": (kernel_by(source), True)
        for how, source in KILLERS.items()
    },
    "kernel `kill -9`, idle": (kernel_idle, True),
    **{
        f"never ends: {what}": (endless(source), True)
        for what, source in ENDLESS.items()
    },
    "hook SIGTERM": (client_by(signal.SIGTERM), True),
    "hook `kill -9`": (client_by(signal.SIGKILL), True),
    "notebook deleted while its cell runs": (file_is("deleted"), True),
    "notebook invalid while its cell runs": (file_is("invalid"), True),
    "kernel `kill -9` with four children": (tree, True),
    "20 hooks at once": (at_once, True),
}


def daemon_of(project: Project) -> psutil.Process:
    """Return the daemon's process."""
    return psutil.Process(
        json.loads(daemon_client.send_request(project.paths, b"status", b"{}") or b"")[
            "daemon"
        ]["pid"]
    )


def size(process: psutil.Process) -> dict[str, float]:
    """Return descriptors, threads and MiB of memory, once what a request needed is given back."""
    time.sleep(1.5)
    return {
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
        "MiB": process.memory_info().rss / 2**20,
    }


def inject(project: Project, fault: str, row: Row, number: int) -> None:
    """Inject one fault once."""
    how, lives = FAULTS[fault]
    row.injected += 1
    try:
        bench = Bench(project, f"f{list(FAULTS).index(fault)}-{number}.ipynb", row)
        process = daemon_of(project)
        before = size(process) if lives else {}
        how(bench)
        row.survived += 1
        bench.ask("restart")  # the notebook has a kernel again, as before
        if lives:
            after = size(process)
            row.grown.append(
                ", ".join(
                    f"{name} {before[name]:.0f} → {after[name]:.0f}" for name in before
                )
            )
    except (LostError, psutil.Error, subprocess.TimeoutExpired) as error:
        row.lost.append(f"{type(error).__name__}: {error}")


def main() -> None:
    """Inject them all and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="faults"))
    project, rows = (
        Project(folder / "repo"),
        {fault: Row() for fault in FAULTS if given.only in fault},
    )
    try:
        for fault, row in rows.items():
            for number in range(given.rounds):
                inject(project, fault, row, number)
            print(line(fault, row), flush=True)
    finally:
        project.stepper("shutdown", check=None)
        shutil.rmtree(project.paths.runtime, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    asked = [one * 1000 for row in rows.values() for one in row.status]
    if asked:
        slow = sorted(asked)[-max(1, len(asked) // 100)]
        told = f"median {statistics.median(asked):.0f} ms, 99th of 100 {slow:.0f} ms, slowest {max(asked):.0f} ms"
        print(f"\nstatus while a cell never ends: asked {len(asked)} times: {told}")
    lost = [f"{fault}: {one}" for fault, row in rows.items() for one in row.lost]
    print(
        f"\ninjected {sum(row.injected for row in rows.values())}, "
        f"survived {sum(row.survived for row in rows.values())}, lost {len(lost)}; "
        f"load {os.getloadavg()[0]:.1f}"
    )
    if lost:
        sys.exit("\n".join(lost))


def line(fault: str, row: Row) -> str:
    """Return a row of the table."""
    took = (
        f"{statistics.median(row.seconds):.2f} s, at most {max(row.seconds):.2f} s"
        if row.seconds
        else "–"
    )
    grown = row.grown[-1] if row.grown else "–"
    return f"| {fault} | {row.injected} | {row.survived} | {len(row.lost)} | {took} | {grown} |"


if __name__ == "__main__":
    main()
