"""The ways to run a notebook's new cell that `peers.py` measures: how each is installed, started, stepped and checked.

A session adds the notebook's N cells by its own means. A step adds one more and runs it; then, untimed, the answer and
the file are checked and the cell is taken away again. The word that the cell prints must be in the answer and, where
the way saves, in the file at the moment of the answer: else BrokenStepError.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import secrets
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from common import BrokenStepError, Project, spawn
from jupyter_client import KernelManager
from subject import Subject

from stepper.hook import daemon_client

DRIVER = Path(__file__).resolve().parent / "peer_driver.py"
LIMIT = 60.0  # seconds for a step: more is a hang
FRESH = """
import sys
from jupyter_client import BlockingKernelClient
client = BlockingKernelClient(connection_file=sys.argv[1])
client.load_connection_file()
client.start_channels()
client.wait_for_ready(timeout=60)
client.execute_interactive(sys.argv[2], timeout=60)
client.stop_channels()
"""
# Standard error, where the runners log and the kernels warn, goes into the file named
# first.
QUIET = ["sh", "-c", 'log=$1; shift; exec "$@" 2>>"$log"', "sh"]


class Answer(NamedTuple):
    """What a session answered to a cell: milliseconds, the text's beginning and size, why it failed if it did."""

    ms: float
    text: str
    size: int
    failed: str = ""

    @property
    def hung(self) -> bool:
        """Whether there was none."""
        return self.failed.startswith("no answer")


@dataclass(frozen=True)
class Peer:
    """A server from PyPI: what is installed, how it is started and which tool calls make a step."""

    name: str
    pins: tuple[str, ...]
    # the command's name and arguments, given the notebook
    serve: Callable[[Path], list[str]]
    step: Callable[[Path, str], tuple[str, dict[str, Any]]]
    # takes a cell away; None: it has no notebook
    undo: Callable[[Path, int], tuple[str, dict[str, Any]]] | None = None
    # given the environment's Python
    begin: Callable[[Path], tuple[str, dict[str, Any]]] | None = None
    limit: dict[str, Any] = field(default_factory=dict)  # what asks for a limit of 3 s


RUNNERS = (
    "papermill==2.7.0",
    "nbclient==0.11.0",
    "jupyter_client==8.10.0",
    "ipykernel==7.4.0",
)
PEERS = (
    Peer(
        "jupymcp",
        ("jupymcp==0.3.2", "mcp==2.3.0", "jupyter_client==8.10.0", "ipykernel==7.4.0"),
        lambda notebook: ["jupymcp", "--workspace-root", str(notebook.parent)],
        lambda notebook, code: ("execute", {"code": code, "path": notebook.name}),
        lambda notebook, index: (
            "delete_cell",
            {"path": notebook.name, "index": index},
        ),
        limit={"timeout": 3},
    ),
    Peer(
        "mcp-jupyter-notebook",
        (
            "mcp-jupyter-notebook==0.10.0",
            "mcp==2.3.0",
            "jupyter_client==8.10.0",
            "ipykernel==7.4.0",
        ),
        lambda notebook: [
            "mcp-jupyter-notebook",
            "--mode",
            "local",
            "--notebook-path",
            str(notebook),
        ],
        lambda _, code: ("notebook_code_run", {"code": code}),
        lambda _, index: ("notebook_cell_delete", {"cell_index": index}),
        limit={"timeout": 3},
    ),
    Peer(
        "jupyter-kernel-mcp",
        (
            "jupyter-kernel-mcp==0.2.0",
            "mcp==1.30.0",
            "jupyter_client==8.10.0",
            "ipykernel==7.4.0",
        ),
        lambda _: ["jupyter-kernel-mcp"],
        lambda _, code: ("execute_code", {"code": code, "kernel_id": "k"}),
        begin=lambda python: (
            "start_kernel",
            {"env_path": str(python), "kernel_id": "k"},
        ),
        limit={"timeout": 3},
    ),
    Peer(
        "clikernel",
        ("clikernel==0.1.7", "mcp==1.30.0"),
        lambda _: ["clikernel-mcp"],
        lambda _, code: ("execute", {"code": code}),
    ),
)


def install(name: str, pins: tuple[str, ...]) -> Path:
    """Return the `bin` of the environment that holds these versions, made in the cache where it is missing.

    Raise BrokenStepError with pip's words where it can't be made.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "stepper-tests"
        / "peers"
    )
    cache.mkdir(parents=True, exist_ok=True)
    where, told = cache / name, json.dumps([sys.version, *pins])
    done = where / "installed.json"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text() != told:
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(where)], check=True
            )
            command = [
                str(where / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                *pins,
            ]
            pip = subprocess.run(command, capture_output=True, text=True, check=False)
            if pip.returncode:
                raise BrokenStepError(
                    f"pip could not install {' '.join(pins)}: {pip.stderr[-1500:]}"
                )
            done.write_text(told)
    return where / "bin"


def new_cell() -> tuple[str, str]:
    """Return a source and the word that it prints, which the source itself does not hold."""
    word = secrets.token_hex(8)
    return f"print('{word[:8]}' + '{word[8:]}')", word


def old_cell(number: int) -> str:
    """Return the source of a cell that the notebook already holds."""
    return f"x_{number} = {number}\nprint(x_{number})"


def empty() -> dict[str, Any]:
    """Return a notebook without cells."""
    kernelspec = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": [],
        "metadata": {"kernelspec": kernelspec},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def code_cell(source: str, printed: str = "") -> dict[str, Any]:
    """Return a raw cell, with its output where it has run."""
    outputs = (
        [{"name": "stdout", "output_type": "stream", "text": [printed]}]
        if printed
        else []
    )
    cell = {
        "cell_type": "code",
        "execution_count": None,
        "id": uuid.uuid4().hex[:8],
        "metadata": {},
    }
    return cell | {"outputs": outputs, "source": source.splitlines(keepends=True)}


def compare(name: str, path: Path, cells: int, word: str) -> None:
    """Raise BrokenStepError unless the file holds so many old cells' outputs and then the new one's word."""
    held = [
        "".join(
            "".join(output.get("text", "")) for output in cell["outputs"]
        ).removesuffix("\n")
        for cell in json.loads(path.read_text())["cells"]
    ]
    if held != [*map(str, range(cells)), word]:
        raise BrokenStepError(
            f"{name}: {path.name} holds these outputs, {word} is expected last: {held}"
        )


class Stepper(Subject):
    """A notebook of stepper's, edited as Claude Code does; steps through the hooks or through the socket alone."""

    name = "stepper"

    def __init__(self, project: Project, cells: int) -> None:
        self.project, self.path, self.cells = (
            project,
            project.root / "notebooks" / f"{cells}.ipynb",
            cells,
        )
        self.cell_id, self.edits = "", list[float]()
        self.save(empty())
        for number in range(cells):
            self.run(old_cell(number))
        self.end_message()

    def tell(
        self, event: str, given: dict[str, Any], answered: dict[str, Any] | None = None
    ) -> bytes:
        """Return an event about NotebookEdit as Claude Code sends it."""
        more: dict[str, Any] = (
            {"tool_response": answered, "duration_ms": 3} if answered else {}
        )
        more |= {
            "tool_input": {"notebook_path": str(self.path), **given},
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
        }
        order = ("tool_input", "tool_response", "tool_use_id", "duration_ms")
        return self.told(
            event,
            tool_name="NotebookEdit",
            **{name: more[name] for name in order if name in more},
        )

    def asked(self, source: str | None, cells: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what the agent asks for: a cell below the last one, or without a source, the last one's deletion."""
        last = {"cell_id": cells[-1]["id"]} if cells else {}
        if source is None:
            return {**last, "new_source": "", "edit_mode": "delete"}
        return {
            **last,
            "new_source": source,
            "cell_type": "code",
            "edit_mode": "insert",
        }

    def change(self, source: str | None) -> bytes:
        """Do that to the file; return what the hook is told of it."""
        began = time.perf_counter()
        before = self.path.read_text()
        notebook = json.loads(before)
        given = self.asked(source, notebook["cells"])
        if source is None:
            cell = notebook["cells"].pop()
        else:
            cell = {**code_cell(source), "source": source}
            notebook["cells"].append(cell)
        after = self.save(notebook)
        self.edits.append((time.perf_counter() - began) * 1000)
        self.cell_id = cell["id"]
        answered = {
            "new_source": source or "",
            "cell_type": "code",
            "language": "python",
        }
        answered |= {
            "edit_mode": given["edit_mode"],
            "cell_id": cell["id"],
            "error": "",
        }
        answered |= {
            "notebook_path": str(self.path),
            "original_file": before,
            "updated_file": after,
        }
        return self.tell("PostToolUse", given, answered)

    def ask_daemon(self, payload: bytes) -> Answer:
        """Return the daemon's answer, timed from the connection to the last byte, without a process."""
        gc.collect()
        gc.disable()
        began = time.perf_counter()
        answer = (
            daemon_client.send_request(self.project.paths, b"hook PostToolUse", payload)
            or b""
        )
        ms = (time.perf_counter() - began) * 1000
        gc.enable()
        return Answer(ms, answer.decode(), len(answer))

    def run(self, source: str, limit: float = LIMIT, limited: bool = False) -> Answer:
        """Add a cell and have it run by the daemon, in at most 3 s where it is `limited`; only the second is timed."""
        return self.ask_daemon(
            self.change("# stepper: timeout=3s\n" * limited + source)
        )

    def socket(self) -> float:
        """Return the milliseconds of a step without processes."""
        source, word = new_cell()
        answer = self.run(source)
        self.checked(answer.text.encode(), word)
        return answer.ms

    def whole(self) -> float:
        """Return the milliseconds of both hooks of a step, spawn to exit."""
        source, word = new_cell()
        given = self.asked(source, json.loads(self.path.read_text())["cells"])
        gate = spawn(self.project.hook("PreToolUse"), self.tell("PreToolUse", given))
        if gate.out:
            raise BrokenStepError(
                f"{self.path.name}: the edit is not let through: {gate.out.decode()}"
            )
        ended = spawn(self.project.hook("PostToolUse"), self.change(source))
        self.checked(ended.out, word)
        return gate.ms + ended.ms

    def checked(self, out: bytes, word: str) -> None:
        """Check the report and the file, and take the cell away."""
        self.check(out, word)
        compare(self.name, self.path, self.cells, word)
        self.ask_daemon(self.change(None))
        self.end_message()

    def end(self) -> None:
        """Nothing: the daemon is ended with its project."""


class Session:
    """A living session with a peer, driven by a process in the peer's environment."""

    def __init__(self, peer: Peer, folder: Path, cells: int) -> None:
        self.peer, self.name, self.cells = peer, peer.name, cells
        folder = folder / f"{peer.name}-{secrets.token_hex(3)}"
        folder.mkdir()
        self.path = folder / f"{cells}.ipynb"
        self.path.write_text(json.dumps(empty(), indent=1))
        place = install(peer.name, peer.pins)
        server, *arguments = peer.serve(self.path)
        names = ",".join(pin.partition("==")[0] for pin in peer.pins)
        command = [
            str(place / "python"),
            "-I",
            str(DRIVER),
            names,  # -I: else `mcp` is the file beside it
            str(place / server),
            *arguments,
        ]
        self.log = (folder / "log").open("w+")
        pipe = subprocess.PIPE
        self.driver = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.log, cwd=folder, text=True
        )
        try:
            self.versions: dict[str, str] = self.read()
            if peer.begin:
                self.checked(*peer.begin(place / "python"))
            for number in range(cells):
                self.checked(*self.peer.step(self.path, old_cell(number)), str(number))
        except BaseException:
            self.end()
            raise

    def read(self) -> Any:
        """Return the driver's next line; raise BrokenStepError where it has ended."""
        line = self.driver.stdout.readline()
        if not line:
            self.log.seek(0)
            raise BrokenStepError(
                f"{self.name}: its driver ended: {self.log.read()[-1500:]}"
            )
        return json.loads(line)

    def call(
        self, tool: str, arguments: dict[str, Any], limit: float = LIMIT
    ) -> Answer:
        """Return what a tool call gave."""
        self.driver.stdin.write(
            json.dumps({"tool": tool, "arguments": arguments, "limit": limit}) + "\n"
        )
        self.driver.stdin.flush()
        return Answer(**self.read())

    def checked(self, tool: str, arguments: dict[str, Any], word: str = "") -> Answer:
        """Return what a call gave; raise BrokenStepError where it failed or `word` is not in it."""
        answer = self.call(tool, arguments)
        if answer.failed or word not in answer.text:
            raise BrokenStepError(
                f"{self.name}: {tool}: {answer.failed or 'no ' + word}: {answer.text[:500]}"
            )
        return answer

    def run(self, source: str, limit: float = LIMIT, limited: bool = False) -> Answer:
        """Return what the peer makes of a cell, asked to limit it to 3 s where that can be asked."""
        tool, arguments = self.peer.step(self.path, source)
        return self.call(tool, arguments | (self.peer.limit if limited else {}), limit)

    def step(self) -> float:
        """Add a cell and run it; check answer and file; return the milliseconds, call to result."""
        source, word = new_cell()
        answer = self.checked(*self.peer.step(self.path, source), word)
        if self.peer.undo:
            compare(self.name, self.path, self.cells, word)
            self.checked(*self.peer.undo(self.path, self.cells))
        return answer.ms

    def end(self) -> None:
        """End the driver, the server and its kernels; those that do not go by themselves are killed."""
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.driver.pid).children(recursive=True)
            self.driver.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.driver.wait(10)
            for process in psutil.wait_procs(family, timeout=3)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.driver.kill()
        self.driver.wait()
        self.driver.stdout.close()
        self.log.close()


class Runner:
    """A program that runs a whole notebook, the new cell included, in a kernel of its own."""

    def __init__(
        self, name: str, folder: Path, cells: int, command: list[str], inplace: bool
    ) -> None:
        self.name, self.cells, self.path = (
            name,
            cells,
            folder / f"{name.replace(' ', '-')}-{cells}.ipynb",
        )
        self.result = self.path if inplace else self.path.with_suffix(".out.ipynb")
        self.log = folder / "log"
        self.command = [
            *QUIET,
            str(self.log),
            *command,
            str(self.path),
            *[str(self.result)] * (not inplace),
        ]

    def step(self) -> float:
        """Write the notebook as it was before with a cell more; run it; return the milliseconds, spawn to exit."""
        source, word = new_cell()
        notebook = empty()
        notebook["cells"] = [
            code_cell(old_cell(number), f"{number}\n") for number in range(self.cells)
        ]
        notebook["cells"].append(code_cell(source))
        self.path.write_text(json.dumps(notebook, indent=1))
        try:
            ms = spawn(self.command).ms
        except BrokenStepError as error:
            raise BrokenStepError(
                f"{self.name}: {self.log.read_text()[-1500:]}"
            ) from error
        compare(self.name, self.result, self.cells, word)
        return ms


class Fresh:
    """A process that attaches jupyter_client to a live kernel, waits until it is ready, runs the cell and prints."""

    name = "fresh client"

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def step(self) -> float:
        """Return the milliseconds, spawn to exit."""
        source, word = new_cell()
        ended = spawn(
            [sys.executable, "-c", FRESH, self.manager.connection_file, source]
        )
        if ended.out.decode().strip() != word:
            raise BrokenStepError(f"{self.name}: printed {ended.out.decode()[:500]!r}")
        return ended.ms

    def end(self) -> None:
        """End the kernel."""
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
