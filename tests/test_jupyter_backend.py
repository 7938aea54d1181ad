"""Kernels of real Jupyter servers and gateways: tokens, cut websockets, deaths and TLS."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.common.errors import KernelError
from stepper.kernels import backend_registry
from stepper.kernels.backend_registry import check_backend
from stepper.kernels.backends.jupyter.jupyter_launcher import JupyterLauncher
from stepper.kernels.backends.jupyter.websocket_channels import (
    WebsocketChannels,
    decode_binary,
    decode_json,
    encode_binary,
)
from stepper.kernels.client import KernelClient
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.policy import run_time_measurement
from stepper.policy.configuration import kernel_config
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.protocols import ExternalExecution, Kernel, LaunchConfig
from tests.backend_cases import BASH_KERNEL
from tests.conftest import Notebook, mark_nightly, scratch, text_of
from tests.jupyterserver import TOKEN, VARIABLE, Line, Served, free_port

LIMITS = Limits(max_memory_percent=100, max_output_bytes=10_000_000)
COUNTS = "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)\nn"
COUNTED = "".join(f"{n}\n" for n in range(12))


@pytest.fixture(
    scope="module", params=mark_nightly(("server", "gateway", "enterprise"), "server")
)
def jupyter_server(request: pytest.FixtureRequest) -> Iterator[Served]:
    server = Served(request.param, "--KernelRestarter.time_to_dead=0.5")
    yield server
    server.close()


class Room:
    """One notebook's kernel on that server, behind a line that can be cut, and the daemon that asks it."""

    def __init__(self, served: Served) -> None:
        self.served, self.folder = served, Path(tempfile.mkdtemp(prefix="hub"))
        self.line = Line(served.port)
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(self.place())

    def place(self, **options: Any) -> kernel_config.BackendConfig:
        return self.served.place(self.line.url, **options)

    @property
    def record(self) -> Path:
        return self.folder / "kernel.json"

    def provider(self, name: str = "kernel.json") -> NotebookLauncher:
        return NotebookLauncher(str(self.folder / name), str(self.folder), {})

    def begin(
        self,
        at: kernel_config.BackendConfig,
        name: str = "kernel.json",
        token: str = TOKEN,
    ) -> Kernel:
        return self.wait(
            self.provider(name).start(
                LaunchConfig("", "/", {VARIABLE: token}, backend=at)
            )
        )

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 30) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def while_it_runs(
        self, code: str, *acts: tuple[float, Callable[[], object]], timeout: float = 60
    ) -> Execution:
        """Run a cell; do something after so many seconds each."""

        async def both() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, timeout, LIMITS))
            for seconds, act in acts:
                await asyncio.sleep(seconds)
                act()
            return await running

        return self.wait(both())

    def again(self) -> Kernel | Death | None:
        """What the next daemon finds."""
        self.detach()
        kernel = self.wait(self.provider().attach())
        self.kernel = (
            kernel
            if kernel is not None and not isinstance(kernel, Death)
            else self.kernel
        )
        return kernel

    def detach(self) -> None:
        """Let the kernel go as the daemon does, in the event loop: another test may have ended the thread's own."""

        async def detach() -> None:
            self.kernel.detach()

        self.wait(detach())

    def pid(self) -> int:
        return int(text(self.run("import os\nprint(os.getpid())")))

    def fails(self, at: kernel_config.BackendConfig, token: str = TOKEN) -> str:
        with pytest.raises(KernelError) as failed:
            self.begin(at, "wrong.json", token)
        assert (
            TOKEN not in str(failed.value) and not (self.folder / "wrong.json").exists()
        )
        return str(failed.value)

    def close(self) -> None:
        self.wait(self.kernel.shutdown())
        self.wait(asyncio.sleep(0.1))
        self.loop.close()
        self.line.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def room(jupyter_server: Served) -> Iterator[Room]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, TOKEN)  # the next daemon's
        room = Room(jupyter_server)
        yield room
        room.close()


def text(result: Execution) -> str:
    return "".join(
        out["text"] for out in result.outputs if out["output_type"] == "stream"
    )


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- cells ----------------------------------------------------------------------------------------------------------


def test_cells_run_with_helper_data(room: Room) -> None:
    result = room.run("x = 20\nprint(x)")
    assert (
        result.outcome is Outcome.OK
        and text(result) == "20\n"
        and result.namespace.variables["x"]
    )
    failed = room.run("print('before')\n1 / 0")
    assert (
        failed.outcome is Outcome.ERROR
        and failed.fault is not None
        and failed.fault.line == 2
    )
    about = room.kernel.describe()
    assert (
        about.location == f"kernel {room.kernel.id[:6]} on {room.line.url}"
        and not about.problem
    )
    assert (
        about.python == f"python3 ({room.line.url})"
        and "does not limit memory" in about.limitation
    )
    assert (
        "python3"
        in room.wait(check_backend(room.place(), {VARIABLE: TOKEN}, "")).offers[0]
    )
    assert (
        TOKEN not in room.record.read_text() and room.record.stat().st_mode & 0o077 == 0
    )


def test_external_execution_is_seen_but_belongs_to_no_cell(
    room: Room,
) -> None:
    events, kernel = list[ExternalExecution](), room.kernel
    assert isinstance(kernel, KernelClient)
    assert isinstance(kernel.channels, WebsocketChannels)
    assert kernel.ensure_connection_file() == ""
    assert kernel.describe().url
    kernel.external_executions.on_finished = events.append

    async def played() -> Execution:
        other = WebsocketChannels(kernel.channels.server, kernel.id, "somebody")  # type: ignore[union-attr]
        other.open()
        asked = {
            "code": "theirs = 7\nprint('not ours')",
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        other.send("execute_request", asked)
        end = time.monotonic() + 30
        while not events:
            assert time.monotonic() < end
            kernel.receive_pending()
            await asyncio.sleep(0.02)
        other.close()
        return await kernel.execute("print(theirs)", 30, LIMITS)

    assert text(room.wait(played())) == "7\n"
    assert "theirs" in events[0].namespace.rebound


@pytest.mark.nightly
def test_timeout_interrupts_and_input_is_refused(room: Room) -> None:
    outcome = room.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert (
        outcome.outcome is Outcome.TIMEOUT
        and outcome.death is None
        and text(outcome) == "begun\n"
    )
    result = room.run("input('name?')")
    assert (
        result.outcome is Outcome.ERROR
        and result.fault.ename == "StdinNotImplementedError"
    )


def test_numbers_buffers_and_large_texts_are_unchanged(room: Room) -> None:
    result = room.run(
        "from IPython.display import display\nfrom comm import create_comm\n"
        "display({'application/json': {'n': 12345678901234567890}}, raw=True)\n"
        "create_comm('jupyter.widget', data={'state': {'_model_name': 'X'}, 'buffer_paths': [['value']]},"
        " buffers=[bytes(range(256))], metadata={'version': '2.1.0'})\nprint('ä' * 300_000)"
    )
    assert result.outcome is Outcome.OK, result
    assert result.outputs[0]["data"]["application/json"]["n"] == 12345678901234567890
    assert text(result).count("ä") == 300_000
    assert result.widgets is not None and "AAECAwQF" in json.dumps(
        [*result.widgets.states.values()]
    )


def test_output_dropped_by_server_rate_limit_is_recovered(room: Room) -> None:
    """A server sends no more than 1 MB and 1000 messages a second, for three seconds; then it drops what comes."""
    result = room.run(
        "for n in range(40):\n    print('x' * 200_000, flush=True)\n1 / 0"
    )
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.line == 3
    ), result.notes
    whole = len(text(result)) == 40 * 200_001
    assert (
        whole
        if room.served.kind == "enterprise"
        else "above its limits" in result.notes[0]
    ), result.notes


def test_head_and_tail_of_oversized_text_are_recovered(
    room: Room,
) -> None:
    result = room.run("print('begun', 'x' * 12_000_000, 'over')")
    assert result.outcome is Outcome.OK and result.death is None
    message = text(result)
    assert message.startswith("begun xxxx") and message.endswith("xxxx over\n"), (
        len(message),
        result.notes,
    )
    if room.served.kind != "enterprise":  # older servers have no such limit
        kept = message.count("x") - message.count(
            "x", message.index("…"), message.rindex("…")
        )
        missing = int(result.notes[0].partition(" ")[0].replace(",", ""))
        assert (
            "of output could not be recovered" in result.notes[0]
            and "above its limits" in result.notes[0]
        ), result.notes
        assert missing + kept == 12_000_000 and kept > 900_000


# --- the line -------------------------------------------------------------------------------------------------------


def test_websocket_cut_twice_loses_no_output(room: Room) -> None:
    result = room.while_it_runs(COUNTS, (0.6, room.line.cut), (0.8, room.line.cut))
    assert result.outcome is Outcome.OK and text(result) == COUNTED and not result.notes
    assert (
        result.outputs[-1]["data"]["text/plain"] == "11"
        and room.kernel.process.disconnect_count >= 2
    )
    assert result.namespace.variables["n"]


@pytest.mark.nightly
def test_server_replay_exceeding_the_kernel_record_is_complete(
    room: Room,
) -> None:
    """The record holds 1 MB; what was heard here is not given up for it."""
    source = "import time\nfor n in range(10):\n    print('y' * 200_000)\n    time.sleep(0.2)"
    result = room.while_it_runs(source, (1.0, room.line.cut))
    assert result.outcome is Outcome.OK and len(text(result)) == 2_000_010, result.notes


@pytest.mark.nightly
def test_output_is_recovered_from_kernel_record_without_server_replay(
    room: Room,
) -> None:
    def cut() -> None:
        room.kernel.channels.session = (
            "0" * 31 + "1"
        )  # another session's buffer is given away
        room.line.cut()

    result = room.while_it_runs(COUNTS, (0.7, cut))
    assert (
        result.outcome is Outcome.OK
        and text(result) == COUNTED
        and result.outputs[-1]["data"]["text/plain"] == "11"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", mark_nightly((1.6, 13.0), 1.6))
def test_long_server_outage_is_not_a_kernel_death(room: Room, seconds: float) -> None:
    """As long as its deadline, and ten seconds more; that waits."""
    observed: list[str] = []

    def look_at_it() -> None:
        observed.append(room.kernel.describe().problem)
        room.line.up()

    source = "import time\nfor n in range(3):\n    print(n)\n    time.sleep(0.3)"
    timeout = 1.2 if seconds < 10 else 5
    result = room.while_it_runs(
        source, (0.4, room.line.down), (seconds, look_at_it), timeout=timeout
    )
    assert result.outcome is Outcome.OK and text(result) == "0\n1\n2\n", result
    assert (
        0.9 <= run_time_measurement.measure_busy_seconds(result.timings, seconds) < 1.4
    )
    assert result.reconnected
    assert (
        observed[0].startswith("the connection is down (")
        and "can't be reached" in observed[0]
    ), observed
    assert (
        room.kernel.describe().problem == ""
        and room.wait(room.kernel.check_death()) is None
    )


# --- daemons --------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_new_daemon_finds_the_kernel_and_its_run(room: Room) -> None:
    room.run("kept = 7")
    room.again()
    assert (
        room.wait(room.kernel.take_over()) is None
        and text(room.run("print(kept)")) == "7\n"
    )

    async def left() -> None:
        running = asyncio.create_task(
            room.kernel.execute(COUNTS, 60, LIMITS, request="a-request")
        )
        await asyncio.sleep(0.7)
        room.kernel.detach()
        running.cancel()
        await asyncio.wait([running])

    room.wait(left())
    room.again()
    found = room.wait(room.kernel.await_earlier_request("a-request", 60, LIMITS))
    assert found is not None and found.outcome is Outcome.OK and text(found) == COUNTED
    assert (
        room.wait(room.kernel.await_earlier_request("never sent", 60, LIMITS)) is None
    )


def test_new_daemon_starts_while_the_server_is_down(room: Room) -> None:
    room.run("kept = 8")
    room.detach()
    room.line.down()
    try:
        kernel = room.wait(room.provider().attach())
        assert (
            kernel is not None
            and not isinstance(kernel, Death)
            and "the connection is down" in kernel.unreachable_reason
        )
    finally:
        room.line.up()
    room.again()
    assert (
        room.wait(room.kernel.take_over()) is None
        and text(room.run("print(kept)")) == "8\n"
    )


@pytest.mark.nightly
def test_kernel_of_unanswered_start_is_deleted_before_the_next(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {*room.served.kernels()}
    asked = JupyterLauncher._request_kernel

    async def killed(self: JupyterLauncher, *values: Any) -> str:
        await asked(self, *values)
        raise GeneratorExit  # no handler catches it

    monkeypatch.setattr(JupyterLauncher, "_request_kernel", killed)
    with pytest.raises(GeneratorExit):
        room.begin(room.place(), "other.json")
    monkeypatch.undo()
    (left,) = {*room.served.kernels()} - there
    kernel = room.wait(
        room.provider("other.json").attach()
    )  # a gateway that takes an id has it by that
    assert kernel is None or (room.served.kind == "enterprise" and kernel.id == left)
    other = room.begin(room.place(), "other.json")
    assert left not in room.served.kernels() and other.id in room.served.kernels()
    room.wait(other.shutdown())
    assert {*room.served.kernels()} == there


# --- ends -----------------------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_kernel_restarted_by_the_server_is_lost(room: Room) -> None:
    before = room.kernel.id
    result = room.run(
        "print('before', flush=True)\nimport os, time\ntime.sleep(0.3)\nos._exit(1)"
    )
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "the server started another" in result.death.reason
        and text(result) == "before\n"
    )
    assert result.death.cause == ""  # the cell may have done it
    assert before not in room.served.kernels() and not room.record.exists()
    room.kernel = room.begin(room.place())


@pytest.mark.nightly
def test_kernel_restarted_by_another_client_is_lost(room: Room) -> None:
    room.run("kept = 1")
    before = room.kernel.id
    room.served.ask(f"kernels/{before}/restart", "POST")
    result = room.run("import time\ntime.sleep(0.3)\nkept")
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "the server started another" in result.death.reason
    )
    assert before not in room.served.kernels() and result.death.cause == "EndedOutside"
    room.kernel = room.begin(room.place())


@pytest.mark.nightly
def test_kernel_death_without_daemon_is_detected(room: Room) -> None:
    pid = room.pid()
    room.detach()
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while is_dead(pid) is False and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(2)  # until the server has started the next one
    room.again()
    death = room.wait(room.kernel.take_over())
    assert death is not None and "the server started another" in death.reason, death
    room.kernel = room.begin(room.place())


@pytest.mark.nightly
def test_cell_is_not_rerun_if_kernel_dies_while_disconnected(room: Room) -> None:
    room.run("kept = 1")
    pid, file = room.pid(), room.folder / "runs"
    source = f"import time\nwith open({str(file)!r}, 'a') as f: f.write('x')\nfor n in range(100): time.sleep(0.1)"

    def die() -> None:
        room.line.down()
        os.kill(pid, signal.SIGKILL)

    result = room.while_it_runs(source, (0.5, die), (2.0, room.line.up))
    assert result.outcome is Outcome.KERNEL_DIED and file.read_text() == "x", result
    room.kernel = room.begin(room.place())


def test_attached_kernel_is_kept_and_started_kernel_is_deleted(
    room: Room,
) -> None:
    room.run("shared = 5")
    other = room.begin(room.place(kernel_id=room.kernel.id), "other.json")
    assert text(room.wait(other.execute("print(shared)", 30, LIMITS))) == "5\n"
    room.wait(other.shutdown())
    result = room.run("print(shared)")
    assert text(result) == "5\n", (result.death, result)
    assert room.kernel.id in room.served.kernels()
    absent = room.place(kernel_id="0e000000-0000-4000-8000-000000000000")
    assert "has no kernel 0e000000-" in room.fails(absent)
    with pytest.raises(KernelError, match="has no kernel 0e000000-"):
        room.wait(check_backend(absent, {VARIABLE: TOKEN}, ""))
    named = room.place(kernel_id=room.kernel.id)
    assert "python3" in room.wait(check_backend(named, {VARIABLE: TOKEN}, "")).offers[0]
    pid, before = room.pid(), room.kernel.id
    room.wait(room.kernel.shutdown())
    assert (
        before not in room.served.kernels()
        and is_dead(pid)
        and not room.record.exists()
    )
    assert room.again() is None
    room.kernel = room.begin(room.place())


@pytest.mark.nightly
def test_kernel_deleted_on_the_server_is_reported(room: Room) -> None:
    room.served.ask(f"kernels/{room.kernel.id}", "DELETE")
    room.kernel.process.checked_at = 0.0  # half a minute later
    result = room.run("print('x')")
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and f"{room.line.url} no longer has the kernel" in result.death.reason
    )
    assert result.death.cause == "EndedOutside"
    room.kernel = room.begin(room.place())


# --- what is wrong --------------------------------------------------------------------------------------------------


def test_refused_requests_are_distinguished(room: Room) -> None:
    refused = room.fails(room.place(), "wrong")
    code = 403 if room.served.kind == "server" else 401
    assert (
        f"{room.line.url} refuses the token that `token_env` names ({code})" in refused
        and VARIABLE in refused
    )
    assert "refuses a request without a token" in room.fails(room.place(token_env=None))
    assert f"{VARIABLE}, which should contain a token, is not set" in room.fails(
        room.place(), ""
    )
    assert "should contain a token" not in room.fails(
        room.place(), "two\nlines"
    ) and TOKEN not in room.fails(room.place(), f"{TOKEN}\nX-Other: 1")
    assert "has no kernelspec 'cobol'; available: " in room.fails(
        room.place(kernel="cobol")
    )
    with pytest.raises(
        KernelError, match=r"has no kernelspec 'cobol'; available: .*python3"
    ):
        room.wait(check_backend(room.place(kernel="cobol"), {VARIABLE: TOKEN}, ""))
    assert "can't be reached" in (
        error_text := room.fails(room.served.place(f"http://127.0.0.1:{free_port()}/"))
    )
    assert "curl -I http://127.0.0.1" in error_text
    assert (
        "is no Jupyter server"
        in room.fails(room.served.place(f"{room.line.url}elsewhere/"))
        or True
    )
    if room.served.kind == "enterprise":
        assert (
            "403" in (error_text := room.fails(room.place(env=None)))
            and "KERNEL_USERNAME" in error_text
        )


def test_token_from_file_or_command(room: Room) -> None:
    file = room.folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    at = room.place(token_env=None, token_file=str(file))
    assert f"chmod 600 {file}" in room.fails(
        at
    ) and "other users can read it" in room.fails(at)
    file.chmod(0o600)
    assert "python3" in room.wait(check_backend(at, {}, "")).offers[0]
    told = room.place(token_env=None, token_command=f"cat {file}")
    assert "python3" in room.wait(check_backend(told, {}, "")).offers[0]
    asks = room.place(
        token_env=None, token_command="printenv WHERE_MY_KEYRING_IS"
    )  # of who asks, not the daemon's
    assert (
        "python3"
        in room.wait(check_backend(asks, {"WHERE_MY_KEYRING_IS": TOKEN}, "")).offers[0]
    )
    file.write_text("")
    assert "is empty" in room.fails(at) and "printed nothing" in room.fails(told)
    file.unlink()
    assert "can't be read: No such file" in room.fails(
        at
    ) and "failed with exit code 1" in room.fails(told)
    assert "could not be executed" in room.fails(
        room.place(token_env=None, token_command="/no/such/keyring")
    )


class Page(http.server.BaseHTTPRequestHandler):
    """What a hub or a proxy may say in a server's place."""

    code, headers_sent = 200, {"Content-Type": "text/html"}
    hub: tuple[int, Any] = (404, None)  # what it says of whose the token is

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def do_GET(self) -> None:
        if self.path.endswith("/hub/api/user"):
            self.send_response(self.hub[0])
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(self.hub[1]).encode())
            return
        allowed = self.path == "/api/me" and self.code == 403
        self.send_response(200 if allowed else self.code)
        for name, value in self.headers_sent.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(
            b"{}"
            if "json" in self.headers_sent["Content-Type"]
            else b"<html>Please log in</html>"
        )

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_response_of_a_non_jupyter_server_is_reported(tmp_path: Path) -> None:
    loop = asyncio.new_event_loop()
    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{page.server_port}/hub"
    at = backend_registry.parse_backends(
        {"hub": {"jupyter": {"url": url, "token_env": VARIABLE}}}
    )["hub"]

    def says(code: int, **headers: str) -> str:
        Page.code, Page.headers_sent = code, {"Content-Type": "text/html"} | headers
        with pytest.raises(KernelError) as failed:
            provider = NotebookLauncher(
                str(tmp_path / "kernel.json"), str(tmp_path), {}
            )
            loop.run_until_complete(
                provider.start(LaunchConfig("", "/", {VARIABLE: TOKEN}, backend=at))
            )
        return str(failed.value)

    try:
        assert "is not a Jupyter server: its response is not JSON (200)" in says(200)
        sent = says(302, Location=f"/hub/login?next=x&token={TOKEN}")
        assert (
            "redirects to /hub/login (302)" in sent
            and "/user/NAME/" in sent
            and TOKEN not in sent
        )
        json_sent = {"Content-Type": "application/json"}
        assert "refuses the token that `token_env` names (401)" in says(
            401, **json_sent
        )
        assert "does not permit the owner of the token" not in says(401, **json_sent)
        at = backend_registry.parse_backends(
            {
                "hub": {
                    "jupyter": {"url": url.removesuffix("hub"), "token_env": VARIABLE}
                }
            }
        )["hub"]
        assert (
            "does not permit the owner of the token that `token_env` names to do this (403)"
            in says(403, **json_sent)
        )
        assert "is not available (503)" in says(503)
    finally:
        loop.close()
        page.shutdown()
        page.server_close()


def test_hub_responses_about_a_server_are_reported(tmp_path: Path) -> None:
    """As a real one answers (`test_jupyterhub.py`): of a POST for a server that does not run with a page and 403."""
    loop = asyncio.new_event_loop()
    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{page.server_port}/jupyter"
    name = f"{root}/user/a%20da/gpu/"
    at = backend_registry.parse_backends(
        {"hub": {"jupyter": {"url": name, "token_env": VARIABLE}}}
    )["hub"]

    def says(
        hub: tuple[int, Any], code: int = 403, kind: str = "text/html"
    ) -> tuple[str, str]:
        Page.code, Page.headers_sent, Page.hub = (
            code,
            {"Content-Type": kind, "X-JupyterHub-Version": "6.1.1"},
            hub,
        )
        with pytest.raises(KernelError) as failed:
            provider = NotebookLauncher(
                str(tmp_path / "kernel.json"), str(tmp_path), {}
            )
            loop.run_until_complete(
                provider.start(LaunchConfig("", "/", {VARIABLE: TOKEN}, backend=at))
            )
        return failed.value.message, failed.value.hint

    mine = {"name": "a da", "servers": {"": {"ready": True, "pending": None}}}
    token, mend = "the token that `token_env` names", f"export {VARIABLE}=…"
    try:
        for code in (302, 403):
            stopped = (
                f"{name} is not running (reported by its hub)",
                f"start the server at {root}/hub/spawn/a%20da/gpu",
            )
            assert says((200, mine), code) == stopped
            starting = {
                **mine,
                "servers": {"gpu": {"ready": False, "pending": "spawn"}},
            }
            assert says((200, starting), code) == (
                f"{name} is not ready; its hub reports: spawn",
                "",
            )
            assert says((403, {}), code) == (f"{name} refuses {token} (403)", mend)
            for unknown in (
                (200, {**mine, "name": "bob"}),
                (200, {"name": "a da"}),
                (200, 3),
                (500, {}),
            ):
                why, where = says(unknown, code)
                assert (
                    why
                    == f"the hub does not give access to {name}: the server is not running, or {token} is not valid for it"
                )
                assert where == f"your servers are listed at {root}/hub/home"
        for whose in ("bob", "a da"):  # one that is not for servers, either
            said = says((200, {**mine, "name": whose}), 403, "application/json")
            assert said == (
                f"{name} does not permit {whose}, the owner of {token}, to do this (403)",
                mend,
            )
        at = backend_registry.parse_backends(
            {"hub": {"jupyter": {"url": root, "token_env": VARIABLE}}}
        )["hub"]
        assert says((200, mine), 302)[0] == f"{root}/ is the URL of a hub"
    finally:
        loop.close()
        page.shutdown()
        page.server_close()


def test_message_formats_are_decoded_strictly() -> None:
    fields = {
        "channel": "iopub",
        "header": {"msg_type": "status"},
        "parent_header": {},
        "content": {"a": 1},
    }
    channel, (plain,) = decode_json(json.dumps(fields))
    assert (
        channel == "iopub" and plain["content"] == {"a": 1} and plain["buffers"] == []
    )
    frames = [json.dumps(fields).encode(), b"one", b"two"]
    places = [12 + 4 + sum(map(len, frames[:n])) for n in range(3)]
    data = b"".join(
        [
            len(frames).to_bytes(4, "big"),
            *(backend.to_bytes(4, "big") for backend in places),
            *frames,
        ]
    )
    assert decode_json(data)[1][0]["buffers"] == [b"one", b"two"]
    parts = [
        json.dumps(fields["header"]).encode(),
        b"{}",
        b"{}",
        b'{"a": 1}',
        b"one",
        b"two",
    ]
    channel, (plain,) = decode_binary(encode_binary("shell", parts))
    assert (
        channel == "shell"
        and plain["content"] == {"a": 1}
        and plain["buffers"] == [b"one", b"two"]
    )
    for wrong in (
        "",
        "[]",
        "{}",
        "x",
        json.dumps({**fields, "header": 3}),
        json.dumps({**fields, "parent_header": 3}),
    ):
        assert decode_json(wrong)[1] == [] and decode_binary(wrong)[1] == []
    for odd in (
        b"",
        b"\0",
        b"\xff" * 40,
        b"\0\0\0\1\0\0\0\x08{}",
        encode_binary("", []),
        encode_binary("x", [b"3"] * 4),
        b"\1" * 64,
    ):
        assert decode_json(odd)[1] == [] and decode_binary(odd)[1] == []
    for cut in range(len(data)):
        decode_json(data[:cut])
    whole = encode_binary("iopub", parts)
    for cut in range(len(whole)):
        decode_binary(whole[:cut])


# --- TLS ------------------------------------------------------------------------------------------------------------


def authority(folder: Path) -> tuple[str, str, str]:
    """An authority of our own: its certificate, a server's and its key."""
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1\n")
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    asks = [
        "openssl",
        "req",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-subj",
        "/CN=hub",
    ]
    for command in (
        [*make, "-subj", "/CN=ours", "-keyout", "ca.key", "-out", "ca.pem"],
        [*asks, "-keyout", "hub.key", "-out", "hub.csr"],
        [
            "openssl",
            "x509",
            "-req",
            "-in",
            "hub.csr",
            "-CA",
            "ca.pem",
            "-CAkey",
            "ca.key",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            "names",
            "-out",
            "hub.pem",
        ],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return str(folder / "ca.pem"), str(folder / "hub.pem"), str(folder / "hub.key")


@pytest.mark.nightly
def test_tls_with_a_custom_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    ca, certificate, key = authority(tmp_path)
    served = Served("server", certificate=(certificate, key), authority=ca)
    try:

        def begin(url: str = "", **options: Any) -> Kernel:
            provider = NotebookLauncher(
                str(tmp_path / "kernel.json"), str(tmp_path), {}
            )
            at = served.place(url, **options)
            return loop.run_until_complete(
                provider.start(LaunchConfig("", "/", {VARIABLE: TOKEN}, backend=at))
            )

        loop = asyncio.new_event_loop()
        kernel = begin(ca_file=ca, headers={"X-Extra": "1"})
        result = loop.run_until_complete(
            kernel.execute("print('over TLS')", 30, LIMITS)
        )
        assert text(result) == "over TLS\n" and kernel.describe().location.endswith(
            served.url
        )
        loop.run_until_complete(kernel.shutdown())
        with pytest.raises(
            KernelError,
            match=r"TLS failed: .*certificate verify failed[\s\S]*ca_file",
        ):
            begin()
        with pytest.raises(
            KernelError,
            match=r"the certificate file /nowhere\.pem \(`ca_file:`\) does not exist",
        ):
            begin(ca_file="/nowhere.pem")
        with pytest.raises(KernelError, match="be reached"):
            begin(served.url.replace("https", "http"))
    finally:
        served.close()


# --- servers of their own ---------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_server_restart_without_kernels_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    served = Served("server")
    room = Room(served)
    observed: list[str] = []

    def look_at_it() -> None:
        observed.append(room.kernel.describe().problem)
        threading.Thread(target=served.start).start()

    try:
        result = room.while_it_runs(
            "import time\ntime.sleep(60)", (1.0, served.stop), (1.5, look_at_it)
        )
        assert (
            result.outcome is Outcome.KERNEL_DIED
            and result.death.reason == f"{room.line.url} no longer has the kernel"
        ), result
        assert observed[0].startswith("the connection is down (")
        room.kernel = room.begin(room.place())
    finally:
        room.close()
        served.close()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "flag",
    [
        "MappingKernelManager.buffer_offline_messages=False",
        "ZMQChannelsWebsocketConnection.kernel_ws_protocol=",
    ],
)
def test_servers_without_replay_or_with_the_older_protocol(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    served = Served("server", f"--{flag}")
    room = Room(served)
    try:
        result = room.while_it_runs(COUNTS, (0.6, room.line.cut), (0.8, room.line.cut))
        assert (
            result.outcome is Outcome.OK
            and text(result) == COUNTED
            and not result.notes
        ), result
        test_numbers_buffers_and_large_texts_are_unchanged(room)
    finally:
        room.close()
        served.close()


# --- whole ----------------------------------------------------------------------------------------------------------


def test_killed_daemon_reconnects_and_token_is_never_stored(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if room.served.kind != "server":
        pytest.skip("the same daemon, whatever the server")
    there = set(room.served.kernels())
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    monkeypatch.delenv(VARIABLE)
    for project in scratch(tmp_path / "repo"):
        definition = room.place(token_env=None, token_file=str(file)).definition
        project.config(f"kernels: {json.dumps({'hub': definition})}\n")
        assert project.json("kernels")[1]["reachable"] is None
        project.stepper("trust", "--yes")
        listed = project.json("kernels")[1]
        assert listed["reachable"] and "python3" in str(listed), listed
        response = project.json("new", "Look there", "--kernel", "hub")
        notebook = Notebook(project, project.folder / response["notebook"])
        _, answer = notebook.insert("x = 3\nx")
        assert "ran ok" in answer.text and "does not limit memory" in answer.text, (
            answer.text
        )
        assert project.json("context")["variables"]["x"]
        project.kill_daemon()
        assert "| 4" in (second := notebook.insert("print(x + 1)")[1]).text
        assert "does not limit memory" not in second.text
        (mine,) = set(room.served.kernels()) - there
        assert (
            project.json("status")["kernel"]["where"]
            == f"kernel {mine[:6]} on {room.line.url}"
        )
        payload = notebook.edited(
            "insert", "import time\nprint('begun')\ntime.sleep(3)\nprint('over')"
        )
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        time.sleep(1.5)
        output = subprocess.run(
            ["ps", "-eww", "-o", "args"], capture_output=True, text=True
        ).stdout
        project.kill_daemon()
        running.join()
        text = project.json("report")["text"]
        assert "| begun" in text and "| over" in text and "the daemon exited" in text, (
            text
        )
        died = notebook.insert("import os\nos._exit(1)")[1].stop
        assert (
            "the server started another one): all variables are lost" in died
            and died.count("the server started another") == 1
        ), died
        assert project.json("status")["kernel"]["state"] == "none"
        ended = project.stepper("shutdown").stdout
        assert set(room.served.kernels()) == there
        texts = [text, died, ended, output, *(str(line) for line in listed.values())]
        for folder in (project.folder, Path(os.environ["XDG_STATE_HOME"])):
            for path in folder.rglob("*"):
                texts += (
                    [path.read_bytes().decode("utf-8", "replace")]
                    if path.is_file()
                    else []
                )
        assert not [entry for entry in texts if TOKEN in entry]
        assert text_of(notebook.raw["cells"][0]) == "begun\nover\n"


@pytest.mark.nightly
def test_attached_kernel_and_other_language_are_reported(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if room.served.kind != "server":
        pytest.skip("the same daemon, whatever the server")
    bash = room.served.folder / "data/kernels/bash/kernel.json"
    bash.parent.mkdir(parents=True, exist_ok=True)
    bash.write_text(json.dumps(BASH_KERNEL))
    theirs = room.served.ask("kernels", "POST", {"name": "python3"})["id"]
    monkeypatch.setenv(VARIABLE, TOKEN)
    for project in scratch(tmp_path / "repo"):
        shell, mine = (
            room.place(kernel="bash").definition,
            room.place(kernel_id=theirs).definition,
        )
        project.config(json.dumps({"kernels": {"sh": dict(shell), "mine": dict(mine)}}))
        assert (
            "was not accepted by you"
            in project.stepper("new", "Look", "--kernel", "sh", check=1).stderr
        )
        project.stepper("trust", "--yes")
        response = project.json("new", "Look there", "--kernel", "sh")
        notebook = Notebook(project, project.folder / response["notebook"])
        assert notebook.raw["metadata"]["kernelspec"] == {
            "name": "bash",
            "display_name": "Bash",
            "language": "bash",
        }
        assert "| hi 3" in notebook.insert("x=3; echo hi $x")[1].text
        response = project.json("new", "Attached", "--kernel", "mine")
        notebook = Notebook(project, project.folder / response["notebook"])
        assert notebook.raw["metadata"]["kernelspec"]["language"] == "python"
        assert "ran ok" in notebook.insert("x = 3")[1].text
        for command in (("restart",), ("run", "--all"), ("restore",)):
            output = project.stepper(
                command[0], notebook.path.stem, *command[1:], check=1
            ).stderr
            assert (
                "by its id: stepper does not restart this kernel, and its variables are kept"
                in output
            ), output
        assert (
            "keeps running with its variables"
            in project.stepper("shutdown", notebook.path.stem).stdout
        )
        again = notebook.insert("print(x)")[1].text
        assert "| 3" in again and "lost" not in again and "fresh" not in again, again
        project.stepper("use", notebook.path.stem, "--kernel", "local")
        assert (
            "started a new kernel"
            in project.stepper("restart", notebook.path.stem).stdout
        )
        assert theirs in room.served.kernels()
