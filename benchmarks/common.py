"""What the benchmarks share: a project as install leaves one, processes timed from spawn to exit, rows and bounds."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import psutil

import stepper
from stepper.common.paths import Paths
from stepper.install import installer, trust

HOOK = Path(__file__).resolve().parent.parent / "hooks" / "stepper"
MB = 1 << 20
IDLE_MB = 60  # the bound of an idle daemon
# What hooks/stepper hands to Python, to tell the shell's share from Python's.
CLIENT = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.hook_process import hook; hook()"
# The same round trip without stepper, to a server that answers one byte with one byte.
FLOOR = "import _socket, sys; s = _socket.socket(1, 1); s.connect(sys.argv[1]); s.sendall(b'x'); s.recv(1)"
# A small parent: a child's peak begins with the peak of the process that it was forked
# from.
PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
sys.stderr.write(str(os.wait4(pid, 0)[2].ru_maxrss))
"""


class BrokenStepError(Exception):
    """A step did not do what it is measured for."""


class RunSummary(NamedTuple):
    """A process: how long it lived in milliseconds, what it wrote."""

    ms: float
    out: bytes


def spawn(command: list[str], data: bytes = b"", cwd: Path | None = None) -> RunSummary:
    """Run a process with `data` on its standard input; time it from spawn to exit.

    Standard input and output are unix sockets, as Claude Code makes them. Raise BrokenStepError where it fails.
    """
    (put, stdin), (get, stdout) = socket.socketpair(), socket.socketpair()
    out = b""
    gc.disable()
    with put, get:
        began = time.perf_counter()
        with stdin, stdout:
            child = subprocess.Popen(
                command,
                bufsize=0,
                stdin=stdin.fileno(),
                stdout=stdout.fileno(),
                cwd=cwd,
            )
        # the script may end without reading
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            put.sendall(data)
            put.shutdown(socket.SHUT_WR)
        while piece := get.recv(1 << 16):
            out += piece
        child.wait()
        took = since(began)
    gc.enable()
    if child.returncode:
        raise BrokenStepError(f"{command[0]} ended with {child.returncode}")
    return RunSummary(took, out)


def since(began: float) -> float:
    """Return the milliseconds since a `time.perf_counter()`."""
    return (time.perf_counter() - began) * 1000


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
        installer.link(Path(self.paths.env_link), env)
        self.compiled = env / "bin" / "hook"
        self.has_compiled = installer.compile_client(self.compiled)
        trust.save_record(self.paths, {"python": sys.executable})
        (self.root / "notebooks").mkdir()
        self.bare = [str(self.python), "-I", "-S", "-c", "pass"]

    def hook(self, event: str) -> list[str]:
        """Return the command that Claude Code spawns: the script itself, no shell in front."""
        return [str(self.script), event]

    def client(self, event: str) -> list[str]:
        """Return what the script hands over to: the compiled client where there is one."""
        if self.has_compiled:
            return [
                str(self.compiled),
                str(self.python),
                str(self.packages),
                str(self.root),
                event,
            ]
        return self.python_client(event)

    def python_client(self, event: str) -> list[str]:
        """Return what the script hands over to where there is no C compiler."""
        return [
            str(self.python),
            "-I",
            "-S",
            "-c",
            CLIENT,
            str(self.packages),
            str(self.root),
            event,
        ]

    def interpreted(self, work: Callable[[], float]) -> float:
        """Return what `work` returns while there is no compiled client for the hook script to find."""
        if not self.has_compiled:
            return work()
        self.compiled.chmod(0o600)
        try:
            return work()
        finally:
            self.compiled.chmod(0o700)

    def connected(self) -> Callable[[], float]:
        """Return what times the floor of every hook: an interpreter that asks a dummy over a socket."""
        where = str(self.root / "echo.sock")
        echo(where)
        return lambda: spawn([*self.bare[:-1], FLOOR, where]).ms

    def daemon(self) -> psutil.Process:
        """Return the daemon's process."""
        return psutil.Process(
            json.loads(Path(self.paths.daemon_json).read_text())["pid"]
        )

    def stop(self) -> None:
        """End the daemon and its kernels; the next hook starts from nothing."""
        code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
        spawn([str(self.python), "-I", "-c", code, "shutdown"], cwd=self.root)

    def shutdown(self) -> None:
        """End the daemon and its kernels, and take the socket's folder and the record away."""
        self.stop()
        shutil.rmtree(self.paths.runtime, ignore_errors=True)
        trust.remove_record(self.paths)


@contextlib.contextmanager
def scratch(name: str = "stepper-benchmark-") -> Iterator[Project]:
    """Yield a project in a temporary folder; end all that runs in it."""
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        project = Project(Path(folder))
        try:
            yield project
        finally:
            project.shutdown()


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


def replace(path: Path, data: bytes) -> None:
    """Write a file as a careful program does: a temporary one beside it, fsynced, renamed."""
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("wb", buffering=0) as stream:
        left = memoryview(data)
        while left:
            left = left[stream.write(left) :]
        os.fsync(stream.fileno())
    fresh.rename(path)


@dataclass
class Row:
    """One subject and its samples in milliseconds; `bare` holds those of a bare Python right before each."""

    name: str
    measure: Callable[[], float]
    samples: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def middle(self) -> str:
        """The middle half of the samples."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return f"{low:.1f}–{high:.1f}"

    @property
    def plain(self) -> str:
        """The name without marks."""
        return self.name.replace("*", "")


def total(name: str, *rows: Row) -> Row:
    """Return the row of what several rows took together, round by round."""
    return Row(
        name,
        lambda: 0.0,
        [sum(one) for one in zip(*(row.samples for row in rows), strict=True)],
        rows[-1].bare,
    )


@dataclass(frozen=True)
class Bound:
    """A row's median over the sum of its floors' medians (no floors: over that of its own bare runs), and the limit."""

    row: Row
    to: str
    floors: tuple[Row, ...] = ()
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """How many times the floors' sum the row takes."""
        below = (
            sum(floor.median for floor in self.floors)
            if self.floors
            else statistics.median(self.row.bare)
        )
        return self.row.median / below

    def line(self) -> str:
        """Return the bound's row of the table."""
        return f"| {self.row.plain} | {self.to} | {self.ratio:.2f} × | {within(self.ratio, self.limit, ' ×')} |"


def bounds_table(bounds: Iterable[Bound]) -> list[str]:
    """Return the table of bounds."""
    return [
        "| what | to | ratio | bound |",
        "| --- | --- | --- | --- |",
        *(bound.line() for bound in bounds),
    ]


def times_table(rows: Iterable[Row]) -> list[str]:
    """Return the table of times, without bare runs."""
    lines = (f"| {row.name} | {row.median:.1f} | {row.middle} |" for row in rows)
    return ["| | median ms | middle half ms |", "| --- | --- | --- |", *lines]


def take(
    rows: Iterable[Row],
    rounds: int,
    bare: Callable[[], float] | None = None,
    warm: int = 2,
) -> None:
    """Measure each row once a round, in order, right after a `bare` run of its own; the first rounds warm up."""
    for number in range(-warm, rounds):
        for row in rows:
            before, sample = bare() if bare else 0.0, row.measure()
            if number >= 0:
                row.samples.append(sample)
                if bare:
                    row.bare.append(before)
        if sys.stderr.isatty():
            sys.stderr.write(f"\rround {number + 1} of {rounds} ")


def said(met: bool) -> str:
    """Return how a bound's standing is printed."""
    return "met" if met else "NOT MET"


def within(value: float, limit: float | None, unit: str = "") -> str:
    """Return a bound and its standing; nothing where there is none."""
    return "" if limit is None else f"≤ {limit:g}{unit}: {said(value <= limit)}"


def peak(
    project: Project, command: list[str], data: bytes = b""
) -> tuple[float, bytes]:
    """Return the peak of a process's resident memory in MiB, and what it wrote."""
    small = [str(project.python), "-I", "-S", "-c", PEAK, *command]
    done = subprocess.run(small, input=data, capture_output=True, check=True)
    return int(done.stderr) * (
        1 if sys.platform == "darwin" else 1024
    ) / MB, done.stdout


def memory_row(name: str, mib: float, bound: float | None = None) -> str:
    """Return a row of the table of memory."""
    return f"| {name} | {mib:.1f} | {within(mib, bound)} |"


def daemon_memory(project: Project, when: str) -> list[str]:
    """Return the rows about the daemon, idle as it is now."""
    time.sleep(1)
    about = project.daemon().memory_full_info()
    return [
        memory_row(f"**idle daemon**, {when}: RSS", about.rss / MB, IDLE_MB),
        memory_row("the same: USS (its own alone)", about.uss / MB),
    ]


def machine() -> str:
    """Return the line that says what was measured on."""
    model = platform.processor() or platform.machine()
    about = Path("/proc/cpuinfo")
    if about.exists():
        names = [
            line.partition(":")[2].strip()
            for line in about.read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else model
    found = []
    for name in (
        "notebook-stepper",
        "jupyter_client",
        "ipykernel",
        "pyzmq",
        "nbclient",
        "orjson",
    ):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} ?")
    build = "shared" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    python = f"{platform.python_implementation()} {platform.python_version()} ({build})"
    where = f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores ({model})"
    return f"{date.today()}, {where}, {python}, {', '.join(found)}"


def enough(text: str) -> int:
    """Return a number of rounds that has a middle half; raise ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError("2 or more")
    return int(text)


def options(description: str, rounds: int = 20) -> argparse.ArgumentParser:
    """Return a parser that knows `--rounds`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--rounds",
        type=enough,
        default=rounds,
        help="samples of each row, 2 or more; 20 to be quoted",
    )
    return parser


def played(main: Callable[[], None]) -> None:
    """Run a benchmark; where a step did not do what it is measured for, end with that word."""
    try:
        main()
    except BrokenStepError as error:
        sys.exit(f"benchmark broken: {error}")


def report(rounds: int, lines: Iterable[str]) -> None:
    """Print what was measured on, then the tables."""
    print(f"{machine()}; {rounds} rounds\n")
    print("\n".join(lines), flush=True)
