"""Tools that run a new cell of a notebook, for `peers.py`: install, start, step, check.

A session adds the notebook's N cells itself. A step adds one more and runs it. Then,
untimed, the answer and the file are checked and the cell is deleted. The word that the
cell prints must be in the answer and, if the tool saves the notebook, in the file at
the moment of the answer; otherwise BrokenStepError is raised.
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
from edited_notebook import EditedNotebook
from jupyter_client import KernelManager

from stepper.hook import daemon_client

DRIVER = Path(__file__).resolve().parent / "peer_driver.py"
LIMIT = 60.0  # seconds after which a step counts as hanging
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
# Redirects standard error, to which runners and kernels write logs, to a file.
QUIET = ["sh", "-c", 'log=$1; shift; exec "$@" 2>>"$log"', "sh"]


class Answer(NamedTuple):
    """The answer to a cell: duration, start and size of the text, failure."""

    ms: float
    text: str
    size: int
    failed: str = ""

    @property
    def has_timed_out(self) -> bool:
        """Whether there was no answer."""
        return self.failed.startswith("no answer")


@dataclass(frozen=True)
class Peer:
    """A server from PyPI: pinned versions, command, tool calls of a step."""

    name: str
    pins: tuple[str, ...]
    # the command's name and arguments, given the notebook
    serve: Callable[[Path], list[str]]
    step: Callable[[Path, str], tuple[str, dict[str, Any]]]
    # deletes a cell; None if there is no notebook
    undo: Callable[[Path, int], tuple[str, dict[str, Any]]] | None = None
    # given the environment's Python
    begin: Callable[[Path], tuple[str, dict[str, Any]]] | None = None
    # the arguments for a limit of 3 s
    limit: dict[str, Any] = field(default_factory=dict)


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
    """Return the `bin` folder of a cached environment with these versions.

    Create the environment if it is missing. Raise BrokenStepError with pip's message if
    that fails.
    """
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "stepper-tests"
        / "peers"
    )
    cache.mkdir(parents=True, exist_ok=True)
    environment, pins_json = cache / name, json.dumps([sys.version, *pins])
    marker = environment / "installed.json"
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists() or marker.read_text() != pins_json:
            subprocess.run(
                [sys.executable, "-m", "venv", "--clear", str(environment)], check=True
            )
            command = [
                str(environment / "bin" / "python"),
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
            marker.write_text(pins_json)
    return environment / "bin"


def new_cell() -> tuple[str, str]:
    """Return a source and the word that it prints, which is not in the source."""
    marker = secrets.token_hex(8)
    return f"print('{marker[:8]}' + '{marker[8:]}')", marker


def old_cell(number: int) -> str:
    """Return the source of an existing cell."""
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
    """Return a raw cell, with an output if `printed` is not empty."""
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


def compare(name: str, path: Path, cells: int, marker: str) -> None:
    """Raise BrokenStepError unless the file has all old outputs and the new word."""
    outputs = [
        "".join(
            "".join(output.get("text", "")) for output in cell["outputs"]
        ).removesuffix("\n")
        for cell in json.loads(path.read_text())["cells"]
    ]
    if outputs != [*map(str, range(cells)), marker]:
        raise BrokenStepError(
            f"{name}: {path.name} has these outputs, expected {marker} last: {outputs}"
        )


class StepperNotebook(EditedNotebook):
    """A notebook of stepper, edited as Claude Code does it."""

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

    def format_edit(
        self,
        event: str,
        tool_input: dict[str, Any],
        tool_response: dict[str, Any] | None = None,
    ) -> bytes:
        """Return an event about NotebookEdit as Claude Code sends it."""
        fields: dict[str, Any] = (
            {"tool_response": tool_response, "duration_ms": 3} if tool_response else {}
        )
        fields |= {
            "tool_input": {"notebook_path": str(self.path), **tool_input},
            "tool_use_id": f"toolu_{uuid.uuid4().hex}",
        }
        order = ("tool_input", "tool_response", "tool_use_id", "duration_ms")
        return self.format_payload(
            event,
            tool_name="NotebookEdit",
            **{name: fields[name] for name in order if name in fields},
        )

    def plan_edit(
        self, source: str | None, cells: list[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the input of an insertion, or of a deletion if there is no source."""
        last = {"cell_id": cells[-1]["id"]} if cells else {}
        if source is None:
            return {**last, "new_source": "", "edit_mode": "delete"}
        return {
            **last,
            "new_source": source,
            "cell_type": "code",
            "edit_mode": "insert",
        }

    def edit_notebook(self, source: str | None) -> bytes:
        """Do the edit in the file; return the hook's payload."""
        started_at = time.perf_counter()
        before = self.path.read_text()
        notebook = json.loads(before)
        tool_input = self.plan_edit(source, notebook["cells"])
        if source is None:
            cell = notebook["cells"].pop()
        else:
            cell = {**code_cell(source), "source": source}
            notebook["cells"].append(cell)
        after = self.save(notebook)
        self.edits.append((time.perf_counter() - started_at) * 1000)
        self.cell_id = cell["id"]
        tool_response = {
            "new_source": source or "",
            "cell_type": "code",
            "language": "python",
        }
        tool_response |= {
            "edit_mode": tool_input["edit_mode"],
            "cell_id": cell["id"],
            "error": "",
        }
        tool_response |= {
            "notebook_path": str(self.path),
            "original_file": before,
            "updated_file": after,
        }
        return self.format_edit("PostToolUse", tool_input, tool_response)

    def ask_daemon(self, payload: bytes) -> Answer:
        """Return the daemon's answer, timed from the connection to the last byte."""
        gc.collect()
        gc.disable()
        started_at = time.perf_counter()
        answer = (
            daemon_client.send_request(self.project.paths, b"hook PostToolUse", payload)
            or b""
        )
        ms = (time.perf_counter() - started_at) * 1000
        gc.enable()
        return Answer(ms, answer.decode(), len(answer))

    def run(self, source: str, limit: float = LIMIT, limited: bool = False) -> Answer:
        """Add a cell and let the daemon run it, for at most 3 s if `limited`.

        Only the run is timed.
        """
        return self.ask_daemon(
            self.edit_notebook("# stepper: timeout=3s\n" * limited + source)
        )

    def step_over_socket(self) -> float:
        """Return the milliseconds of a step without processes."""
        source, marker = new_cell()
        answer = self.run(source)
        self.check_and_undo(answer.text.encode(), marker)
        return answer.ms

    def step_with_hooks(self) -> float:
        """Return the milliseconds of both hooks of a step, spawn to exit."""
        source, marker = new_cell()
        tool_input = self.plan_edit(source, json.loads(self.path.read_text())["cells"])
        gate = spawn(
            self.project.build_hook_command("PreToolUse"),
            self.format_edit("PreToolUse", tool_input),
        )
        if gate.output:
            raise BrokenStepError(
                f"{self.path.name}: the edit was not accepted: {gate.output.decode()}"
            )
        result = spawn(
            self.project.build_hook_command("PostToolUse"), self.edit_notebook(source)
        )
        self.check_and_undo(result.output, marker)
        return gate.ms + result.ms

    def check_and_undo(self, out: bytes, marker: str) -> None:
        """Check the report and the file, and delete the cell."""
        self.check(out, marker)
        compare(self.name, self.path, self.cells, marker)
        self.ask_daemon(self.edit_notebook(None))
        self.end_message()

    def shut_down(self) -> None:
        """Do nothing: the daemon is shut down with its project."""


class PeerSession:
    """A running session with a peer, driven by a process in the peer's environment."""

    def __init__(self, peer: Peer, folder: Path, cells: int) -> None:
        self.peer, self.name, self.cells = peer, peer.name, cells
        folder = folder / f"{peer.name}-{secrets.token_hex(3)}"
        folder.mkdir()
        self.path = folder / f"{cells}.ipynb"
        self.path.write_text(json.dumps(empty(), indent=1))
        bin_folder = install(peer.name, peer.pins)
        server, *arguments = peer.serve(self.path)
        names = ",".join(pin.partition("==")[0] for pin in peer.pins)
        command = [
            str(bin_folder / "python"),
            "-I",
            str(DRIVER),
            names,  # -I: otherwise `mcp` would be the file next to it
            str(bin_folder / server),
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
                self.call_checked(*peer.begin(bin_folder / "python"))
            for number in range(cells):
                self.call_checked(
                    *self.peer.step(self.path, old_cell(number)), str(number)
                )
        except BaseException:
            self.shut_down()
            raise

    def read(self) -> Any:
        """Return the driver's next line; raise BrokenStepError if the driver exited."""
        line = self.driver.stdout.readline()
        if not line:
            self.log.seek(0)
            raise BrokenStepError(
                f"{self.name}: its driver exited: {self.log.read()[-1500:]}"
            )
        return json.loads(line)

    def call(
        self, tool: str, arguments: dict[str, Any], limit: float = LIMIT
    ) -> Answer:
        """Return the result of a tool call."""
        self.driver.stdin.write(
            json.dumps({"tool": tool, "arguments": arguments, "limit": limit}) + "\n"
        )
        self.driver.stdin.flush()
        return Answer(**self.read())

    def call_checked(
        self, tool: str, arguments: dict[str, Any], marker: str = ""
    ) -> Answer:
        """Return the result of a call.

        Raise BrokenStepError if it failed or lacks the word.
        """
        answer = self.call(tool, arguments)
        if answer.failed or marker not in answer.text:
            raise BrokenStepError(
                f"{self.name}: {tool}: {answer.failed or 'no ' + marker}: {answer.text[:500]}"
            )
        return answer

    def run(self, source: str, limit: float = LIMIT, limited: bool = False) -> Answer:
        """Run a cell, with a limit of 3 s if `limited` and the peer has one."""
        tool, arguments = self.peer.step(self.path, source)
        return self.call(tool, arguments | (self.peer.limit if limited else {}), limit)

    def step(self) -> float:
        """Add a cell and run it.

        Check answer and file; return the milliseconds, call to result.
        """
        source, marker = new_cell()
        answer = self.call_checked(*self.peer.step(self.path, source), marker)
        if self.peer.undo:
            compare(self.name, self.path, self.cells, marker)
            self.call_checked(*self.peer.undo(self.path, self.cells))
        return answer.ms

    def shut_down(self) -> None:
        """Shut down the driver, the server and its kernels.

        Kill those that do not exit.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.driver.pid).children(recursive=True)
            self.driver.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.driver.wait(10)
            for process in psutil.wait_procs(children, timeout=3)[1]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.driver.kill()
        self.driver.wait()
        self.driver.stdout.close()
        self.log.close()


class NotebookRunner:
    """A program that runs a whole notebook in a new kernel."""

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
        """Write the notebook with one more cell and run it.

        Return the milliseconds, spawn to exit.
        """
        source, marker = new_cell()
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
        compare(self.name, self.result, self.cells, marker)
        return ms


class FreshClient:
    """A process that attaches jupyter_client to a kernel and runs the cell."""

    name = "fresh client"

    def __init__(self) -> None:
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def step(self) -> float:
        """Return the milliseconds, spawn to exit."""
        source, marker = new_cell()
        result = spawn(
            [sys.executable, "-c", FRESH, self.manager.connection_file, source]
        )
        if result.output.decode().strip() != marker:
            raise BrokenStepError(
                f"{self.name}: printed {result.output.decode()[:500]!r}"
            )
        return result.ms

    def shut_down(self) -> None:
        """Shut down the kernel."""
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
