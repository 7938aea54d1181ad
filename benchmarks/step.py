"""What a step costs: whole processes, spawn to exit, as ratios to a bare Python of the same run. No timed test.

    python benchmarks/step.py

Run it with the Python of an environment that holds stepper and ipykernel. It makes a project of its own in a
temporary folder, edits real notebooks as NotebookEdit does, calls the real hook script as Claude Code does, and
ends the daemon and the kernels again.

Each round measures each subject once, right after a bare `python -I -S -c pass` of its own: a subject's ratio is its
median over the median of its own bare runs. After each step the report and the notebook are checked, untimed: a step
whose cell did not run ends the benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import gc
import json
import os
import platform
import random
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from jupyter_client import AsyncKernelManager

import stepper
from stepper import install, trust
from stepper.paths import Paths

HOOK = Path(__file__).resolve().parent.parent / "hooks" / "stepper"
SMALL_RATIO, LARGE_RATIO, IDLE_MB = 4, 12, 60  # the bounds
MB = 1 << 20
SESSION = "00000000-0000-4000-8000-000000000000"
# What hooks/stepper hands to Python, to tell the shell's share from Python's.
CLIENT = "import sys; sys.path.append(sys.argv[1]); from stepper.client import hook; hook()"
# The same round trip without stepper, to a server that answers one byte with one byte.
FLOOR = "import _socket, sys; s = _socket.socket(1, 1); s.connect(sys.argv[1]); s.sendall(b'x'); s.recv(1)"
# A small parent: a child's peak begins with the peak of the process that it was forked from.
PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
sys.stderr.write(str(os.wait4(pid, 0)[2].ru_maxrss))
"""


class BrokenStepError(Exception):
    """A step did not do what it is measured for."""


class Ended(NamedTuple):
    """A process: how long it lived in milliseconds, what it wrote."""

    ms: float
    out: bytes


def spawn(command: list[str], data: bytes = b"", cwd: Path | None = None) -> Ended:
    """Run a process with `data` on its standard input; time it from spawn to exit.

    Standard input and output are unix sockets, as Claude Code makes them.
    """
    (put, stdin), (get, stdout) = socket.socketpair(), socket.socketpair()
    out = b""
    gc.disable()
    with put, get:
        began = time.perf_counter()
        with stdin, stdout:
            child = subprocess.Popen(command, bufsize=0, stdin=stdin.fileno(), stdout=stdout.fileno(), cwd=cwd)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the script may end without reading
            put.sendall(data)
            put.shutdown(socket.SHUT_WR)
        while piece := get.recv(1 << 16):
            out += piece
        child.wait()
        took = (time.perf_counter() - began) * 1000
    gc.enable()
    if child.returncode:
        raise BrokenStepError(f"{command[0]} ended with {child.returncode}")
    return Ended(took, out)


class Project:
    """A repository with stepper in it, as `install.sh` leaves one, made of links to the environment at hand."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.paths = Paths(str(root))
        self.script = self.root / ".claude" / "hooks" / "stepper"
        self.script.parent.mkdir(parents=True)
        shutil.copy(HOOK, self.script)
        env = Path(self.paths.env)
        (env / "bin").mkdir(parents=True)
        self.python = env / "bin" / "python"
        self.python.symlink_to(os.path.realpath(sys.executable))
        (env / "lib").symlink_to(Path(sys.prefix, "lib"))
        if sys.prefix != sys.base_prefix:
            shutil.copy(Path(sys.prefix, "pyvenv.cfg"), env)
        self.packages = env / "packages"
        self.packages.symlink_to(Path(stepper.__file__).resolve().parent.parent)
        install.link(Path(self.paths.link), env)
        trust.remember(self.paths, {"python": sys.executable})
        (self.root / "notebooks").mkdir()
        self.bare = [str(self.python), "-I", "-S", "-c", "pass"]

    def hook(self, event: str) -> list[str]:
        """Return the command that Claude Code spawns: the script itself, no shell in front."""
        return [str(self.script), event]

    def client(self, event: str) -> list[str]:
        """Return what the script hands over to: Python alone."""
        return [str(self.python), "-I", "-S", "-c", CLIENT, str(self.packages), str(self.root), event]

    def shutdown(self) -> None:
        """End the daemon and its kernels, and take the socket's folder away."""
        code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli import main; sys.exit(main())"
        spawn([str(self.python), "-I", "-c", code, "shutdown"], cwd=self.root)
        shutil.rmtree(self.paths.runtime, ignore_errors=True)
        trust.forget(self.paths)


def some_output(size: int, number: int, rng: random.Random) -> dict[str, Any]:
    """Return an output of `size` bytes: printed lines or a picture, by turns."""
    if number % 2:
        picture = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
        shown = {"image/png": picture, "text/plain": ["<Figure>"]}
        return {"data": shown, "metadata": {}, "output_type": "display_data"}
    lines, left = [], size
    while left > 0:
        line = f'{rng.random():.12f}  "column {rng.randrange(100)}"  {rng.random():.12f}\té\n'
        lines.append(line)
        left -= len(line) + 8  # indent, quotes, comma
    return {"name": "stdout", "output_type": "stream", "text": lines}


class Subject:
    """A notebook in which one cell is replaced again and again, each time by a source that prints another word."""

    def __init__(self, project: Project, name: str, cells: int, output_bytes: int) -> None:
        self.project, self.path = project, project.root / "notebooks" / f"{name}.ipynb"
        rng = random.Random(name)
        made = []
        for number in range(cells):
            outputs = [some_output(output_bytes // cells, number, rng)] if output_bytes else []
            source = [f"value_{number} = {number}\n", f"print(value_{number})"]
            made.append(
                {"cell_type": "code", "execution_count": number + 1, "id": f"cell{number:04}", "metadata": {}}
                | {"outputs": outputs, "source": source}
            )
        self.cell_id = f"cell{cells // 2:04}"
        metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        self.save({"cells": made, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5})

    def save(self, notebook: dict[str, Any]) -> str:
        """Write the notebook as Claude Code does: in place, one space of indent; return the text."""
        text = json.dumps(notebook, indent=1, ensure_ascii=False)
        self.path.write_text(text)
        return text

    def cell(self, notebook: dict[str, Any]) -> dict[str, Any]:
        """Return the raw cell that is edited."""
        found: dict[str, Any] = next(cell for cell in notebook["cells"] if cell["id"] == self.cell_id)
        return found

    def edit(self) -> tuple[bytes, str]:
        """Replace the cell on disk; return what Claude Code hands to the hook, and the word that the cell prints."""
        word = secrets.token_hex(8)
        source = f"print('{word}')"
        before = self.path.read_text()
        notebook = json.loads(before)
        cell = self.cell(notebook)
        old, cell["source"], cell["execution_count"], cell["outputs"] = cell["source"], source, None, []
        after = self.save(notebook)
        asked = {"notebook_path": str(self.path), "cell_id": self.cell_id, "new_source": source, "edit_mode": "replace"}
        told = {
            "session_id": SESSION,
            "transcript_path": str(self.project.root / "transcript.jsonl"),
            "cwd": str(self.project.root),
            "prompt_id": "00000000-0000-4000-8000-000000000001",
            "permission_mode": "bypassPermissions",
            "effort": {"level": "high"},
            "hook_event_name": "PostToolUse",
            "tool_name": "NotebookEdit",
            "tool_input": asked,
            "tool_response": {
                "new_source": source,
                "old_source": "".join(old),
                "cell_type": "code",
                "language": "python",
                "edit_mode": "replace",
                "cell_id": self.cell_id,
                "error": "",
                "notebook_path": str(self.path),
                "original_file": before,
                "updated_file": after,
            },
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
            "duration_ms": 3,
        }
        return (json.dumps(told, ensure_ascii=False, separators=(",", ":")) + "\n").encode(), word

    def ask(self) -> float:
        """Tell of an edit to come, as Claude Code does before each; return the hook's milliseconds."""
        asked = {"notebook_path": str(self.path), "cell_id": self.cell_id, "new_source": "1", "edit_mode": "replace"}
        told: dict[str, Any] = {
            "session_id": SESSION,
            "cwd": str(self.project.root),
            "permission_mode": "bypassPermissions",
        }
        told |= {"hook_event_name": "PreToolUse", "tool_name": "NotebookEdit", "tool_input": asked}
        ended = spawn(self.project.hook("PreToolUse"), json.dumps(told).encode())
        if ended.out:
            raise BrokenStepError(f"{self.path.name}: the edit is not let through: {ended.out.decode()}")
        return ended.ms

    def end_message(self) -> Ended:
        """Tell that all calls of the message are through, as Claude Code does after each message."""
        call = {"tool_name": "NotebookEdit", "tool_input": {"notebook_path": str(self.path)}}
        told = {"session_id": SESSION, "cwd": str(self.project.root)}
        told |= {"hook_event_name": "PostToolBatch", "permission_mode": "bypassPermissions"}
        return spawn(self.project.hook("PostToolBatch"), json.dumps({**told, "tool_calls": [call]}).encode())

    def step(self, command: list[str]) -> float:
        """Edit, run the hook, check that the cell ran; return the hook's milliseconds."""
        return self.message(command)[0]

    def message(self, command: list[str]) -> tuple[float, float]:
        """Edit as in `step` and end the message; return the milliseconds of both hooks."""
        data, word = self.edit()
        ended = spawn(command, data)
        self.check(ended.out, word)
        return ended.ms, self.end_message().ms

    def check(self, out: bytes, word: str) -> None:
        """Raise BrokenStepError unless report and notebook both hold what the cell printed."""
        report = json.loads(out)["hookSpecificOutput"]["additionalContext"] if out else "nothing"
        if "ran ok" not in report or f"| {word}" not in report:
            raise BrokenStepError(f"{self.path.name}: the report is: {report}")
        outputs = self.cell(json.loads(self.path.read_text()))["outputs"]
        if [(output["name"], "".join(output["text"])) for output in outputs] != [("stdout", f"{word}\n")]:
            raise BrokenStepError(f"{self.path.name}: the notebook holds: {outputs}")

    def peak_mb(self, command: list[str]) -> float:
        """Return the peak of the resident memory of a step's hook process."""
        data, word = self.edit()
        mib, out = peak(self.project, command, data)
        self.check(out, word)
        self.end_message()
        return mib


def peak(project: Project, command: list[str], data: bytes = b"") -> tuple[float, bytes]:
    """Return the peak of a process's resident memory in MiB, and what it wrote."""
    small = [str(project.python), "-I", "-S", "-c", PEAK, *command]
    done = subprocess.run(small, input=data, capture_output=True, check=True)
    return int(done.stderr) * (1 if sys.platform == "darwin" else 1024) / MB, done.stdout


class Kernel:
    """A kernel of its own, driven by jupyter_client alone: what the round trip costs without stepper."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.manager = AsyncKernelManager(kernel_name="python3", transport="ipc")
        self.loop.run_until_complete(self.manager.start_kernel())
        self.client = self.manager.client()
        self.client.start_channels()
        self.loop.run_until_complete(self.client.wait_for_ready(timeout=60))

    def round_trip(self) -> float:
        """Return the milliseconds from a request to its `idle` and its reply."""
        began = time.perf_counter()
        self.loop.run_until_complete(self._run())
        return (time.perf_counter() - began) * 1000

    async def _run(self) -> None:
        asked = self.client.execute("print('x')")
        while True:
            message = await self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                break
        while (await self.client.get_shell_msg(timeout=60))["parent_header"].get("msg_id") != asked:
            pass

    def end(self) -> None:
        """End the kernel."""
        self.client.stop_channels()
        self.loop.run_until_complete(self.manager.shutdown_kernel(now=True))
        self.loop.close()


def echo(path: str) -> None:
    """Serve FLOOR from a thread: one byte for one byte."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(1))

    threading.Thread(target=serve, daemon=True).start()


@dataclass
class Row:
    """One subject, its bound (a ratio) and its samples, each beside a bare run's, in milliseconds."""

    name: str
    measure: Callable[[], float]
    bound: float | None = None
    samples: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median over the median of the bare runs."""
        return statistics.median(self.samples) / statistics.median(self.bare)

    def line(self) -> str:
        """Return the row of the table."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        met = "" if self.bound is None else f"≤ {self.bound:g} ×: {said(self.ratio <= self.bound)}"
        median, bare = statistics.median(self.samples), statistics.median(self.bare)
        return f"| {self.name} | {self.ratio:.2f} × | {median:.1f} | {low:.1f}–{high:.1f} | {bare:.1f} | {met} |"


def said(met: bool) -> str:
    """Return how a bound's standing is printed."""
    return "met" if met else "NOT MET"


def machine() -> str:
    """Return the line that says what was measured on."""
    model = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")
    if about.exists():
        names = [line.partition(":")[2].strip() for line in about.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    found = []
    for name in ("notebook-stepper", "jupyter_client", "ipykernel", "pyzmq", "nbclient", "orjson"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} ?")
    build = "shared" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    python = f"{platform.python_implementation()} {platform.python_version()} ({build})"
    where = f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores ({model})"
    return f"{date.today()}, {where}, {python}, {', '.join(found)}"


def memory_row(name: str, mib: float, bound: float | None = None) -> str:
    """Return a row of the table of memory."""
    return f"| {name} | {mib:.1f} | {'' if bound is None else f'≤ {bound:g}: {said(mib <= bound)}'} |"


def daemon_memory(project: Project, when: str) -> list[str]:
    """Return the rows about the daemon, idle as it is now."""
    time.sleep(1)
    about = psutil.Process(json.loads(Path(project.paths.daemon_json).read_text())["pid"]).memory_full_info()
    return [
        memory_row(f"**idle daemon**, {when}: RSS", about.rss / MB, IDLE_MB),
        memory_row("the same: USS (its own alone)", about.uss / MB),
    ]


def hook_memory(project: Project, small: Subject, large: Subject) -> list[str]:
    """Return the rows about the peaks of the hook process, the shell replaced by Python as in the script."""
    command, bare = project.client("PostToolUse"), peak(project, project.bare)[0]
    return [
        memory_row("a bare Python's peak", bare),
        memory_row("hook process's peak, 10 cells", small.peak_mb(command)),
        memory_row("hook process's peak, 100 cells, 5 MB (stdin: 11 MB)", large.peak_mb(command)),
    ]


def measure(project: Project, rounds: int) -> list[str]:
    """Return the two tables."""
    small = Subject(project, "ten", 10, 0)
    small.step(project.hook("PostToolUse"))  # starts daemon and kernel
    told = daemon_memory(project, "after one step in a notebook of 10 cells")
    large = Subject(project, "hundred", 100, 5 * MB)
    large.step(project.hook("PostToolUse"))
    kernel = Kernel()
    where = str(project.root / "echo.sock")
    echo(where)
    hook, client = project.hook("PostToolUse"), project.client("PostToolUse")

    rows = [
        Row("floor: `sh -c :`", lambda: spawn(["sh", "-c", ":"]).ms),
        Row(
            "floor: `python -I -S`, `_socket`, round trip to a dummy",
            lambda: spawn([*project.bare[:-1], FLOOR, where]).ms,
        ),
        Row("floor: kernel round trip (in one process, jupyter_client)", kernel.round_trip),
        Row("**hook, 10 cells**", lambda: small.step(hook), SMALL_RATIO),
        Row("the same without the script's shell", lambda: small.step(client)),
        Row("**hook, 100 cells, 5 MB of outputs**", lambda: large.step(hook), LARGE_RATIO),
        Row("the same without the script's shell", lambda: large.step(client)),
        Row("beside each edit: PreToolUse (the gate)", small.ask),
        Row("once a message with edits: PostToolBatch", lambda: small.message(hook)[1]),
        Row("once a message without edits: PostToolBatch", lambda: small.end_message().ms),
    ]
    try:
        for number in range(-2, rounds):  # the first two warm up
            for row in rows:
                bare, sample = spawn(project.bare).ms, row.measure()
                if number >= 0:
                    row.bare.append(bare)
                    row.samples.append(sample)
            if sys.stderr.isatty():
                sys.stderr.write(f"\rround {number + 1} of {rounds} ")
    finally:
        kernel.end()
    told += daemon_memory(project, "after all these steps")
    told += hook_memory(project, small, large)
    return [
        "| spawn to exit | to bare Python | median ms | middle half ms | bare ms | bound |",
        "| --- | --- | --- | --- | --- | --- |",
        *(row.line() for row in rows),
        "",
        "| memory | MiB | bound |",
        "| --- | --- | --- |",
        *told,
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a step costs, as ratios to a bare Python of the same run.")
    parser.add_argument("--rounds", type=int, default=30, help="samples of each subject (at least 20 to be quoted)")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="stepper-benchmark-") as folder:
        project = Project(Path(folder))
        try:
            lines = measure(project, rounds)
        finally:
            project.shutdown()
    print(f"{machine()}; {rounds} rounds\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
