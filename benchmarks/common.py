"""Shared code of the benchmarks: an installed project, timed processes, tables."""

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
IDLE_MB = 60  # limit of an idle daemon
# The code that hooks/stepper passes to Python, without the shell.
CLIENT = "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()"
# The same round trip without stepper, to an echo server.
FLOOR = "import _socket, sys; s = _socket.socket(1, 1); s.connect(sys.argv[1]); s.sendall(b'x'); s.recv(1)"
# Prints the peak of a command. A small parent: a child's peak starts with the peak of
# the process that forked it.
PEAK = """
import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
sys.stderr.write(str(os.wait4(pid, 0)[2].ru_maxrss))
"""


class BrokenStepError(Exception):
    """A step did not do the work that is measured."""


class ProcessResult(NamedTuple):
    """The duration of a process in milliseconds and its output."""

    ms: float
    output: bytes


def spawn(
    command: list[str], data: bytes = b"", cwd: Path | None = None
) -> ProcessResult:
    """Run a process with `data` on its standard input; time it from spawn to exit.

    Standard input and output are unix sockets, as in Claude Code. Raise BrokenStepError if
    the process fails.
    """
    stdin_peer, stdin = socket.socketpair()
    stdout_peer, stdout = socket.socketpair()
    output = b""
    gc.disable()
    with stdin_peer, stdout_peer:
        started_at = time.perf_counter()
        with stdin, stdout:
            child = subprocess.Popen(
                command,
                bufsize=0,
                stdin=stdin.fileno(),
                stdout=stdout.fileno(),
                cwd=cwd,
            )
        # the script may exit without reading
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            stdin_peer.sendall(data)
            stdin_peer.shutdown(socket.SHUT_WR)
        while chunk := stdout_peer.recv(1 << 16):
            output += chunk
        child.wait()
        duration_ms = measure_elapsed_ms(started_at)
    gc.enable()
    if child.returncode:
        raise BrokenStepError(f"{command[0]} exited with code {child.returncode}")
    return ProcessResult(duration_ms, output)


def measure_elapsed_ms(started_at: float) -> float:
    """Return the milliseconds since a value of `time.perf_counter()`."""
    return (time.perf_counter() - started_at) * 1000


class Project:
    """A repository with an installed stepper, linked to the current environment."""

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

    def build_hook_command(self, event: str) -> list[str]:
        """Return the command that Claude Code runs: the script, without a shell."""
        return [str(self.script), event]

    def build_client_command(self, event: str) -> list[str]:
        """Return the script's client command: the compiled client if there is one."""
        if self.has_compiled:
            return [
                str(self.compiled),
                str(self.python),
                str(self.packages),
                str(self.root),
                event,
            ]
        return self.build_python_client_command(event)

    def build_python_client_command(self, event: str) -> list[str]:
        """Return the command that the script runs if there is no C compiler."""
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

    def measure_with_python_client(self, measure: Callable[[], float]) -> float:
        """Return the result of `measure` while only Python's client is available."""
        if not self.has_compiled:
            return measure()
        self.compiled.chmod(0o600)
        try:
            return measure()
        finally:
            self.compiled.chmod(0o700)

    def create_socket_floor(self) -> Callable[[], float]:
        """Return a function that times the lower bound of every hook.

        It starts an interpreter that makes a round trip to an echo server.
        """
        socket_path = str(self.root / "echo.sock")
        serve_echo(socket_path)
        return lambda: spawn([*self.bare[:-1], FLOOR, socket_path]).ms

    def find_daemon(self) -> psutil.Process:
        """Return the daemon's process."""
        return psutil.Process(
            json.loads(Path(self.paths.daemon_json).read_text())["pid"]
        )

    def stop_daemon(self) -> None:
        """Shut down the daemon and its kernels."""
        code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
        spawn([str(self.python), "-I", "-c", code, "shutdown"], cwd=self.root)

    def shutdown(self) -> None:
        """Shut down the daemon and its kernels.

        Remove the socket's folder and the record.
        """
        self.stop_daemon()
        shutil.rmtree(self.paths.runtime, ignore_errors=True)
        trust.remove_record(self.paths)


@contextlib.contextmanager
def create_temporary_project(name: str = "stepper-benchmark-") -> Iterator[Project]:
    """Yield a project in a temporary folder, and shut it down afterwards."""
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        project = Project(Path(folder))
        try:
            yield project
        finally:
            project.shutdown()


def serve_echo(path: str) -> None:
    """Serve FLOOR from a thread: return each byte."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(connection.recv(1))

    threading.Thread(target=serve, daemon=True).start()


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file: write a temporary file next to it, fsync it, rename it."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb", buffering=0) as stream:
        remaining = memoryview(data)
        while remaining:
            remaining = remaining[stream.write(remaining) :]
        os.fsync(stream.fileno())
    temporary.rename(path)


@dataclass
class Row:
    """A row of a table, with its samples in milliseconds.

    `bare` has the duration of a bare Python right before each sample.
    """

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
        """The middle half of the samples, as text."""
        low, _, high = statistics.quantiles(self.samples, n=4)
        return f"{low:.1f}–{high:.1f}"

    @property
    def plain(self) -> str:
        """The name without Markdown marks."""
        return self.name.replace("*", "")


def add_rows(name: str, *rows: Row) -> Row:
    """Return a row with the sums of several rows, round by round."""
    return Row(
        name,
        lambda: 0.0,
        [sum(samples) for samples in zip(*(row.samples for row in rows), strict=True)],
        rows[-1].bare,
    )


@dataclass(frozen=True)
class Bound:
    """A row's median, divided by the sum of its floors' medians, and the limit.

    Without floors, the row is compared with its bare runs. `to` names the floors.
    """

    row: Row
    to: str
    floors: tuple[Row, ...] = ()
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """The row's median, as a multiple of the floors' sum."""
        below = (
            sum(floor.median for floor in self.floors)
            if self.floors
            else statistics.median(self.row.bare)
        )
        return self.row.median / below

    def format_line(self) -> str:
        """Return the line of the table."""
        return f"| {self.row.plain} | {self.to} | {self.ratio:.2f} × | {format_bound(self.ratio, self.limit, ' ×')} |"


def format_bounds(bounds: Iterable[Bound]) -> list[str]:
    """Return the table of ratios."""
    return [
        "| row | compared with | ratio | limit |",
        "| --- | --- | --- | --- |",
        *(bound.format_line() for bound in bounds),
    ]


def format_times(rows: Iterable[Row]) -> list[str]:
    """Return the table of times, without bare runs."""
    lines = (f"| {row.name} | {row.median:.1f} | {row.middle} |" for row in rows)
    return ["| | median ms | middle half ms |", "| --- | --- | --- |", *lines]


def measure_rows(
    rows: Iterable[Row],
    rounds: int,
    bare: Callable[[], float] | None = None,
    warm: int = 2,
) -> None:
    """Measure each row once per round, in order.

    A `bare` run precedes each sample. The first `warm` rounds are not counted.
    """
    for number in range(-warm, rounds):
        for row in rows:
            bare_sample = bare() if bare else 0.0
            sample = row.measure()
            if number < 0:
                continue
            row.samples.append(sample)
            if bare:
                row.bare.append(bare_sample)
        if sys.stderr.isatty():
            sys.stderr.write(f"\rround {number + 1} of {rounds} ")


def format_met(is_met: bool) -> str:
    """Return whether a limit is met, as text."""
    return "met" if is_met else "NOT MET"


def format_bound(value: float, limit: float | None, unit: str = "") -> str:
    """Return a limit and whether it is met, or an empty string without a limit."""
    return "" if limit is None else f"≤ {limit:g}{unit}: {format_met(value <= limit)}"


def measure_peak(
    project: Project, command: list[str], data: bytes = b""
) -> tuple[float, bytes]:
    """Return the peak of a process's resident memory in MiB, and its output."""
    wrapper = [str(project.python), "-I", "-S", "-c", PEAK, *command]
    result = subprocess.run(wrapper, input=data, capture_output=True, check=True)
    unit = 1 if sys.platform == "darwin" else 1024
    return int(result.stderr) * unit / MB, result.stdout


def format_memory_row(name: str, mib: float, bound: float | None = None) -> str:
    """Return a row of the table of memory."""
    return f"| {name} | {mib:.1f} | {format_bound(mib, bound)} |"


def measure_daemon_memory(project: Project, when: str) -> list[str]:
    """Return the rows on the daemon's memory, one second from now."""
    time.sleep(1)
    info = project.find_daemon().memory_full_info()
    return [
        format_memory_row(f"**idle daemon**, {when}: RSS", info.rss / MB, IDLE_MB),
        format_memory_row("the same: USS (unshared memory)", info.uss / MB),
    ]


def describe_machine() -> str:
    """Return a line with the date, the machine and the versions of packages."""
    model = platform.processor() or platform.machine()
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [
            line.partition(":")[2].strip()
            for line in cpu_info.read_text().splitlines()
            if "model name" in line
        ]
        model = names[0] if names else model
    packages = []
    for name in (
        "notebook-stepper",
        "jupyter_client",
        "ipykernel",
        "pyzmq",
        "nbclient",
        "orjson",
    ):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"{name} ?")
    build = "shared" if sysconfig.get_config_var("Py_ENABLE_SHARED") else "static"
    python = f"{platform.python_implementation()} {platform.python_version()} ({build})"
    system = f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores ({model})"
    return f"{date.today()}, {system}, {python}, {', '.join(packages)}"


def parse_rounds(text: str) -> int:
    """Parse a number of rounds; raise ArgumentTypeError if it is less than 2."""
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError("must be an integer of 2 or more")
    return int(text)


def create_parser(description: str, rounds: int = 20) -> argparse.ArgumentParser:
    """Return a parser with the option `--rounds`."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--rounds",
        type=parse_rounds,
        default=rounds,
        help="samples per row, at least 2; quoted figures have 20",
    )
    return parser


def run_benchmark(main: Callable[[], None]) -> None:
    """Run a benchmark; exit with a message if a step did not do its work."""
    try:
        main()
    except BrokenStepError as error:
        sys.exit(f"the benchmark failed: {error}")


def print_report(rounds: int, lines: Iterable[str]) -> None:
    """Print the description of the machine, then the tables."""
    print(f"{describe_machine()}; {rounds} rounds\n")
    print("\n".join(lines), flush=True)
