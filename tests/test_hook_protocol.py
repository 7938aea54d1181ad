"""Both hook processes, Python and compiled, follow stepper/hook/PROTOCOL.md.

Each scenario of the page is a test function. It runs with both processes against a
daemon of this module; by day, slow scenarios run with the compiled one only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepper import __version__
from stepper.common import wire_format
from stepper.common.hook_paths import encode_path, fnv1a
from stepper.hook import daemon_client
from tests.conftest import CLIENTS, ROOT, Project, scratch

PAGE = ROOT / "stepper/hook/PROTOCOL.md"
NAMES = re.findall(r"^\d+\. \*\*(.+)\.\*\*", PAGE.read_text(), re.MULTILINE)
EDIT: dict[str, Any] = {
    "session_id": "session-1",
    "hook_event_name": "PostToolUse",
    "tool_name": "NotebookEdit",
    "tool_input": {"notebook_path": "/project/a.ipynb", "new_source": "é"},
    "tool_response": {
        "new_source": "é",
        "cell_id": "ab",
        "original_file": 'copy"}\\',
        "updated_file": "copy",
    },
    "tool_use_id": "t1",
}
PAYLOAD = json.dumps(EDIT, ensure_ascii=False, separators=(",", ":")).encode()
HEARTBEAT = wire_format.pack(wire_format.PROGRESS, b"")
SECONDS = 120.0  # longer than any scenario takes

Scenario = Callable[["Hook"], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    """Register the function of a scenario."""

    def register(function: Scenario) -> Scenario:
        assert name not in SCENARIOS
        SCENARIOS[name] = function
        return function

    return register


def test_every_documented_scenario_has_a_function() -> None:
    assert list(SCENARIOS) == NAMES
    assert {*SLOW} <= {*NAMES}
    numbers = re.findall(r"^(\d+)\. ", PAGE.read_text(), re.MULTILINE)
    assert numbers == [str(number) for number in range(1, len(NAMES) + 1)]


@pytest.fixture
def hook(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hook]:
    for project in scratch(tmp_path / "é project", request.param):
        with contextlib.closing(Hook(project)) as hook:
            yield hook


# Scenarios that wait for a time-out or for several hook processes.
SLOW = (
    "Silent daemon",
    "Nothing in progress",
    "Message to the agent",
    "No message to the agent",
    "Notebook copies",
    "Other order of keys",
    "Late daemon",
    "Handover",
    "No background runs",
    "Slow response to a read",
)


def is_nightly(name: str, client: str) -> bool:
    """Return whether a scenario runs by night only, because it waits for seconds."""
    return name == "Slow response to a read" or (client == "python" and name in SLOW)


CASES = [
    pytest.param(
        name,
        client,
        marks=[pytest.mark.nightly] if is_nightly(name, client) else [],
    )
    for name in NAMES
    for client in CLIENTS
]


@pytest.mark.parametrize(("name", "hook"), CASES, indirect=["hook"])
def test_scenario(hook: Hook, name: str) -> None:
    SCENARIOS[name](hook)


# --- a daemon and a hook process ------------------------------------------------------


class Request(NamedTuple):
    command: bytes
    version: bytes
    environ: bytes
    folder: bytes
    payload: bytes


class Connection:
    """The daemon's side of a request."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def respond(self, kind: bytes, body: bytes = b"") -> None:
        self.sock.sendall(wire_format.pack(kind, body))

    def progress(self, body: bytes = b"") -> None:
        self.respond(wire_format.PROGRESS, body)

    def fail(self, message: str) -> None:
        error = {"message": message, "hint": "a hint", "exit_code": 1}
        self.respond(wire_format.FAILED, json.dumps(error).encode())

    def wait_for_disconnect(self, heartbeat: bool = True) -> None:
        """Send heartbeats until the hook process disconnects."""
        deadline = time.monotonic() + SECONDS
        self.sock.settimeout(0.05)
        while time.monotonic() < deadline:
            try:
                if heartbeat:
                    self.progress()
                if not self.sock.recv(1):
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        raise AssertionError("the hook process did not disconnect")


Handler = Callable[[Connection], None]


class Result(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """The agent's text."""
        return str(json.loads(self.stdout)["hookSpecificOutput"]["additionalContext"])


class Hook:
    """A project with one of the two hook processes, and a daemon that a test controls."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.paths = project.paths
        self.paths.create_runtime_folder()
        self.requests: list[Request] = []
        self.executor = ThreadPoolExecutor()
        self.daemons: list[Future[None]] = []

    def listen(self, *handlers: Handler) -> None:
        """Handle one request with each function, then stop listening."""
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(SECONDS)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.paths.socket)
        listener.bind(self.paths.socket)
        listener.listen()
        self.daemons.append(self.executor.submit(self._serve, listener, handlers))

    def _serve(self, listener: socket.socket, handlers: tuple[Handler, ...]) -> None:
        remaining = list(handlers)
        with listener:
            while remaining:
                sock, _ = listener.accept()
                with sock:
                    sock.settimeout(SECONDS)
                    request = read_request(sock)
                    if request is not None:
                        self.requests.append(request)
                        handler = remaining.pop(0)
                        handler(Connection(sock))

    def start(self, event: str, **options: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        arguments: dict[str, Any] = {**pipes, "stderr": subprocess.PIPE, **options}
        arguments.setdefault("cwd", self.project.folder)
        return subprocess.Popen(self.project.client(event), **arguments)

    def run(self, event: str, payload: bytes = PAYLOAD, **options: Any) -> Result:
        with self.start(event, **options) as process:
            stdout, stderr = process.communicate(payload, SECONDS)
        self.finish()
        return Result(process.returncode, stdout or b"", stderr or b"")

    def finish(self) -> None:
        """Wait for the daemon; raise its errors."""
        for daemon in self.daemons:
            daemon.result(SECONDS)

    def close(self) -> None:
        self.executor.shutdown()
        if self.daemons:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.paths.socket)


def read_request(sock: socket.socket) -> Request | None:
    """Return a request, or None if the client only looked whether a daemon listens."""
    try:
        prefix = daemon_client.receive_exactly(sock, wire_format.PREFIX)
    except EOFError:
        return None
    count = wire_format.parse_part_count(prefix)
    table = daemon_client.receive_exactly(sock, 8 * count)
    lengths = wire_format.parse_part_lengths(table)
    return Request(*[daemon_client.receive_exactly(sock, length) for length in lengths])


def respond_ok(connection: Connection) -> None:
    connection.respond(wire_format.OK, b"printed")


def exit_daemon(connection: Connection) -> None:
    """Disconnect without a response."""


def exit_after_progress(connection: Connection) -> None:
    connection.progress()


# --- the scenarios --------------------------------------------------------------------


@scenario("Request")
def send_request(hook: Hook) -> None:
    folder = encode_path(str(hook.project.folder))
    uid = os.getuid()
    assert hook.paths.socket == f"/tmp/stepper-{uid}/{fnv1a(folder)}/daemon.sock"
    environ = {b"PATH": b"/bin:/usr/bin", b"EMPTY": b"", b"BYTES": b"\xff=\n"}
    payload = PAYLOAD + b" " * 3_000_000
    link = hook.project.folder.parent / "link"
    link.symlink_to(hook.project.folder)
    hook.listen(respond_ok)
    # A hook process may start in any folder of the project.
    hook.run("PostToolUse", payload, env=environ, cwd=link / "notebooks")
    (request,) = hook.requests
    assert request.command == b"hook PostToolUse"
    assert request.version == __version__.encode()
    received_environ = wire_format.unpack_environ(request.environ)
    received_environ.pop("LC_CTYPE", None)  # Python sets it in the C locale
    expected = wire_format.unpack_environ(wire_format.pack_environ(environ))
    assert received_environ == expected
    assert request.folder == folder
    assert request.payload == payload


@scenario("Response")
def print_response(hook: Hook) -> None:
    body = b'{"systemMessage":"\xff"}\n' * 100_000

    def respond(connection: Connection) -> None:
        connection.progress()
        connection.progress(b'{"kind":"waiting"}')
        connection.respond(wire_format.OK, body)

    hook.listen(respond)
    assert hook.run("PostToolUse") == (0, body, b"")


@scenario("Empty response")
def print_nothing(hook: Hook) -> None:
    hook.listen(lambda connection: connection.respond(wire_format.OK))
    assert hook.run("PreToolUse") == (0, b"", b"")


@scenario("Error of the daemon")
def report_error(hook: Hook) -> None:
    hook.listen(lambda connection: connection.fail("the kernel is on strike"))
    result = hook.run("PostToolUse")
    assert (result.code, result.stderr) == (0, b"")
    assert "NOT run" in result.text
    assert "the kernel is on strike" in result.text


@scenario("Error without an edit")
def ignore_error(hook: Hook) -> None:
    hook.listen(lambda connection: connection.fail("the kernel is on strike"))
    assert hook.run("PostToolBatch") == (0, b"", b"")


@scenario("Invalid response")
def report_invalid_response(hook: Hook) -> None:
    def respond(connection: Connection) -> None:
        with contextlib.suppress(ConnectionError):
            connection.sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n" * 100)

    # The compiled client leaves the error to Python, which sends the request again.
    handlers = [respond] if not hook.project.compiled else [respond, respond]
    hook.listen(*handlers)
    result = hook.run("PostToolUse")
    assert (result.code, result.stderr) == (0, b"")
    assert "the daemon's response is invalid" in result.text


@scenario("Daemon of another version")
def wait_for_next_version(hook: Hook) -> None:
    with open_start_lock(hook) as unlock:

        def refuse(connection: Connection) -> None:
            connection.respond(wire_format.STALE, b"0.0.0")
            os.unlink(hook.paths.socket)

        handlers = [refuse]
        if hook.project.compiled:
            handlers.insert(0, lambda connection: connection.respond(wire_format.STALE))
        hook.listen(*handlers)
        with hook.start("PostToolUse") as process:
            assert process.stdin
            process.stdin.write(PAYLOAD)
            process.stdin.close()
            process.stdin = None
            hook.finish()
            time.sleep(0.3)  # then the process notices that the socket was removed
            hook.listen(respond_ok)
            unlock()
            stdout, stderr = process.communicate(timeout=SECONDS)
    hook.finish()
    assert (process.returncode, stdout, stderr) == (0, b"printed", b"")
    assert {request.payload for request in hook.requests} == {PAYLOAD}


@contextlib.contextmanager
def open_start_lock(hook: Hook) -> Iterator[Callable[[], None]]:
    """Keep the hook process from starting a daemon of its own."""
    with open(hook.paths.start_lock, "w") as lock:
        os.chmod(hook.paths.start_lock, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)


@scenario("Daemon exits before it responds")
def send_again(hook: Hook) -> None:
    hook.listen(exit_daemon, respond_ok)
    assert hook.run("PostToolUse") == (0, b"printed", b"")
    first, second = hook.requests
    assert first == second


@scenario("Daemon exits while a cell runs")
def send_again_to_next_daemon(hook: Hook) -> None:
    hook.listen(exit_after_progress, respond_ok)
    assert hook.run("PostToolUse") == (0, b"printed", b"")
    first, second = hook.requests
    assert first.command == b"hook PostToolUse"
    assert second.command == b"hook PostToolUse again"
    assert first.payload == second.payload == PAYLOAD


@scenario("Daemon exits while another event is processed")
def give_up(hook: Hook) -> None:
    hook.listen(exit_after_progress)
    assert hook.run("PostToolBatch") == (0, b"", b"")
    assert len(hook.requests) == 1


@scenario("Silent daemon")
def report_silence(hook: Hook) -> None:
    def hang(connection: Connection) -> None:
        connection.progress()
        connection.wait_for_disconnect(heartbeat=False)

    hook.listen(hang)
    started_at = time.monotonic()
    result = hook.run("PostToolUse")
    assert time.monotonic() - started_at > daemon_client.SILENCE_SECONDS - 1
    assert (result.code, result.stderr) == (0, b"")
    assert "does not respond" in result.text
    assert "may or may not have run" in result.text


@scenario("No reader")
def disconnect_without_reader(hook: Hook) -> None:
    closed = threading.Event()

    def respond(connection: Connection) -> None:
        connection.progress()
        assert closed.wait(SECONDS)
        connection.wait_for_disconnect()

    hook.listen(respond)
    with hook.start("PostToolUse") as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(PAYLOAD)
        process.stdin.close()
        process.stdout.close()
        closed.set()
        assert process.wait(SECONDS) == 0
    hook.finish()


@scenario("Parent process exited")
def disconnect_without_parent(hook: Hook) -> None:
    killed = threading.Event()
    started = threading.Event()

    def respond(connection: Connection) -> None:
        connection.progress()
        started.set()
        assert killed.wait(SECONDS)
        connection.wait_for_disconnect()

    hook.listen(respond)
    payload = hook.project.folder / "payload"
    payload.write_bytes(PAYLOAD)
    script = '"$@" <payload >output & wait'
    command = ["sh", "-c", script, "sh", *hook.project.client("PostToolUse")]
    with subprocess.Popen(command, cwd=hook.project.folder) as parent:
        assert started.wait(SECONDS)
        parent.kill()
        parent.wait()
        killed.set()
    hook.finish()
    assert (hook.project.folder / "output").read_bytes() == b""


@scenario("Full disk")
def ignore_full_disk(hook: Hook) -> None:
    hook.listen(respond_ok)
    with open("/dev/full", "wb") as full:
        assert hook.run("PostToolUse", stdout=full) == (0, b"", b"")


@scenario("Closed standard input")
def report_closed_input(hook: Hook) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", *hook.project.client("PostToolUse")]
    result = subprocess.run(command, capture_output=True, timeout=SECONDS)
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"NOT run" in result.stdout
    assert hook.requests == []


@scenario("Nothing in progress")
def skip_without_work(hook: Hook) -> None:
    for event in ("SessionStart", "UserPromptSubmit", "Stop"):
        assert hook.run(event, b'{"prompt":"hello"}') == (0, b"", b"")
    Path(hook.paths.active_marker).touch()
    hook.listen(respond_ok)
    assert hook.run("SessionStart") == (0, b"printed", b"")


@scenario("Prompt without a daemon")
def respond_without_daemon(hook: Hook) -> None:
    Path(hook.paths.active_marker).touch()
    assert hook.run("UserPromptSubmit", b'{"prompt":"hello"}') == (0, b"", b"")
    prompt = b'{"prompt":"new notebook plot the prices"}'
    assert "plot the prices" in hook.run("UserPromptSubmit", prompt).text
    assert not os.path.exists(hook.paths.socket)


@scenario("Message to the agent")
def deliver_message(hook: Hook) -> None:
    acknowledged = []

    def respond(connection: Connection) -> None:
        connection.progress()
        connection.progress("the cell finished: é".encode())
        acknowledged.append(connection.sock.recv(1))
        connection.respond(wire_format.OK)

    hook.listen(respond)
    assert hook.run("Wake") == (2, b"", "the cell finished: é".encode())
    assert acknowledged == [b"+"]
    (request,) = hook.requests
    assert request.command == b"hook Wake"


@scenario("No message to the agent")
def deliver_nothing(hook: Hook) -> None:
    hook.listen(lambda connection: connection.respond(wire_format.OK))
    assert hook.run("Wake") == (0, b"", b"")


@scenario("Notebook copies")
def remove_copies(hook: Hook) -> None:
    hook.listen(lambda connection: connection.respond(wire_format.OK))
    hook.run("Wake")
    (request,) = hook.requests
    assert b"copy" not in request.payload
    payload = json.loads(request.payload)
    assert payload["tool_input"] == EDIT["tool_input"]
    assert payload["tool_response"]["cell_id"] == "ab"
    assert payload["tool_use_id"] == "t1"


@scenario("Other order of keys")
def keep_copies(hook: Hook) -> None:
    response = dict(reversed(EDIT["tool_response"].items()))
    edit = {**EDIT, "tool_response": {**response, "original_file": "copy"}}
    payload = json.dumps(edit, separators=(",", ":")).encode()
    hook.listen(lambda connection: connection.respond(wire_format.OK))
    hook.run("Wake", payload)
    (request,) = hook.requests
    assert request.payload == payload


@scenario("Late daemon")
def wait_for_daemon(hook: Hook) -> None:
    with hook.start("Wake") as process:
        assert process.stdin
        process.stdin.write(PAYLOAD)
        process.stdin.close()
        process.stdin = None
        time.sleep(1.2)  # two attempts fail
        assert process.poll() is None
        hook.listen(lambda connection: connection.respond(wire_format.OK))
        process.communicate(timeout=SECONDS)
    hook.finish()
    assert process.returncode == 0
    assert hook.requests[0].command == b"hook Wake"


@scenario("Handover")
def send_handover(hook: Hook) -> None:
    def exit_with_handover(connection: Connection) -> None:
        connection.progress()
        connection.progress(b'\0{"for":"the next daemon"}')

    hook.listen(
        exit_with_handover, lambda connection: connection.respond(wire_format.OK)
    )
    assert hook.run("Wake") == (0, b"", b"")
    _, second = hook.requests
    assert second.command == b"hook Wake again"
    assert json.loads(second.payload) == {"for": "the next daemon"}


@scenario("Client without notifications")
def send_nothing(hook: Hook) -> None:
    environ = {**os.environ, "CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}
    started_at = time.monotonic()
    assert hook.run("Wake", env=environ) == (0, b"", b"")
    assert time.monotonic() - started_at < 15  # it does not wait for a daemon
    assert hook.requests == []


@scenario("No background runs")
def exit_without_background_runs(hook: Hook) -> None:
    assert hook.run("Rearm", b'{"session_id":"s"}') == (0, b"", b"")
    assert not os.path.exists(hook.paths.socket)


@scenario("Slow response to a read")
def give_up_read(hook: Hook) -> None:
    for event in ("BeforeRead", "AfterRead", "ReadFailed"):
        hook.listen(lambda connection: connection.wait_for_disconnect())
        started_at = time.monotonic()
        assert hook.run(event) == (0, b"", b"")
        assert 1 < time.monotonic() - started_at < 60
