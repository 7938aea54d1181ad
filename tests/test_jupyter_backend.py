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
from typing import Any, ClassVar

import psutil
import pytest

from stepper.common.errors import KernelError
from stepper.kernels import backend_registry, message_decoding
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
from tests.jupyterserver import (
    TOKEN,
    VARIABLE,
    ConnectionProxy,
    JupyterServer,
    free_port,
)
from tests.test_run_on_edit import make_waiting_cell, release_cell, wait_for_output

LIMITS = Limits(max_memory_percent=100, max_output_bytes=10_000_000)
COUNTING_CELL = "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)\nn"
COUNTING_OUTPUT = "".join(f"{n}\n" for n in range(12))


@pytest.fixture(
    scope="module", params=mark_nightly(("server", "gateway", "enterprise"), "server")
)
def jupyter_server(request: pytest.FixtureRequest) -> Iterator[JupyterServer]:
    server = JupyterServer(request.param, "--KernelRestarter.time_to_dead=0.5")
    yield server
    server.close()


class ServerHarness:
    """A kernel on the server, behind a proxy, and an event loop in place of the daemon."""

    def __init__(self, server: JupyterServer) -> None:
        self.server, self.folder = server, Path(tempfile.mkdtemp(prefix="hub"))
        self.proxy = ConnectionProxy(server.port)
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(self.backend_config())

    def backend_config(self, **options: Any) -> kernel_config.BackendConfig:
        return self.server.backend_config(self.proxy.url, **options)

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

    def run(self, code: str, timeout: float = 120) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def run_with(
        self, code: str, *acts: tuple[float, Callable[[], object]], timeout: float = 60
    ) -> Execution:
        """Run a cell; meanwhile do each action, after waiting for its seconds."""

        async def run() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, timeout, LIMITS))
            for seconds, act in acts:
                await asyncio.sleep(seconds)
                act()
            return await running

        return self.wait(run())

    def reattach(self) -> Kernel | Death | None:
        """Detach and attach again, like the next daemon."""
        self.detach()
        kernel = self.wait(self.provider().attach())
        self.kernel = (
            kernel
            if kernel is not None and not isinstance(kernel, Death)
            else self.kernel
        )
        return kernel

    def detach(self) -> None:
        """Detach like the daemon, in the event loop of this harness."""

        async def detach() -> None:
            self.kernel.detach()

        self.wait(detach())

    def pid(self) -> int:
        return int(text(self.run("import os\nprint(os.getpid())")))

    def get_start_error(
        self, at: kernel_config.BackendConfig, token: str = TOKEN
    ) -> str:
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
        self.proxy.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def harness(jupyter_server: JupyterServer) -> Iterator[ServerHarness]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, TOKEN)  # read when a kernel is attached
        harness = ServerHarness(jupyter_server)
        yield harness
        harness.close()


def text(result: Execution) -> str:
    return "".join(
        out["text"] for out in result.outputs if out["output_type"] == "stream"
    )


def is_dead(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# --- cells ----------------------------------------------------------------------------


def test_cells_run_with_helper_data(harness: ServerHarness) -> None:
    result = harness.run("x = 20\nprint(x)")
    assert (
        result.outcome is Outcome.OK
        and text(result) == "20\n"
        and result.namespace.variables["x"]
    )
    failed = harness.run("print('before')\n1 / 0")
    assert (
        failed.outcome is Outcome.ERROR
        and failed.fault is not None
        and failed.fault.line == 2
    )
    about = harness.kernel.describe()
    assert (
        about.location == f"kernel {harness.kernel.id[:6]} on {harness.proxy.url}"
        and not about.problem
    )
    assert (
        about.python == f"python3 ({harness.proxy.url})"
        and "does not limit memory" in about.limitation
    )
    assert (
        "python3"
        in harness.wait(
            check_backend(harness.backend_config(), {VARIABLE: TOKEN}, "")
        ).offers[0]
    )
    assert (
        TOKEN not in harness.record.read_text()
        and harness.record.stat().st_mode & 0o077 == 0
    )


def test_external_execution_is_seen_but_belongs_to_no_cell(
    harness: ServerHarness,
) -> None:
    events, kernel = list[ExternalExecution](), harness.kernel
    assert isinstance(kernel, KernelClient)
    assert isinstance(kernel.channels, WebsocketChannels)
    assert kernel.ensure_connection_file() == ""
    assert kernel.describe().url
    kernel.external_executions.on_finished = events.append

    async def run_with_other_client() -> Execution:
        client = WebsocketChannels(kernel.channels.server, kernel.id, "somebody")  # type: ignore[union-attr]
        client.open()
        request = {
            "code": "theirs = 7\nprint('not ours')",
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": True,
        }
        client.send("execute_request", request)
        deadline = time.monotonic() + 120
        while not events:
            assert time.monotonic() < deadline
            kernel.receive_pending()
            await asyncio.sleep(0.02)
        client.close()
        return await kernel.execute("print(theirs)", 30, LIMITS)

    assert text(harness.wait(run_with_other_client())) == "7\n"
    assert "theirs" in events[0].namespace.rebound


@pytest.mark.nightly
def test_timeout_interrupts_and_input_is_refused(harness: ServerHarness) -> None:
    outcome = harness.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert (
        outcome.outcome is Outcome.TIMEOUT
        and outcome.death is None
        and text(outcome) == "begun\n"
    )
    result = harness.run("input('name?')")
    assert (
        result.outcome is Outcome.ERROR
        and result.fault.ename == "StdinNotImplementedError"
    )


def test_numbers_buffers_and_large_texts_are_unchanged(harness: ServerHarness) -> None:
    result = harness.run(
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


def test_output_dropped_by_server_rate_limit_is_recovered(
    harness: ServerHarness,
) -> None:
    """Above 1 MB or 1000 messages per second for 3 s, the server drops messages."""
    result = harness.run(
        "for n in range(40):\n    print('x' * 200_000, flush=True)\n1 / 0"
    )
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.line == 3
    ), result.notes
    if harness.server.kind == "enterprise":
        assert len(text(result)) == 40 * 200_001, result.notes
    else:
        assert "above its limits" in result.notes[0], result.notes


def test_head_and_tail_of_oversized_text_are_recovered(
    harness: ServerHarness,
) -> None:
    result = harness.run("print('begun', 'x' * 12_000_000, 'over')")
    assert result.outcome is Outcome.OK and result.death is None
    message = text(result)
    assert message.startswith("begun xxxx") and message.endswith("xxxx over\n"), (
        len(message),
        result.notes,
    )
    if harness.server.kind != "enterprise":  # older servers have no such limit
        note_count = message.count("x", message.index("…"), message.rindex("…"))
        recovered = message.count("x") - note_count
        missing = int(result.notes[0].partition(" ")[0].replace(",", ""))
        assert (
            "of output could not be recovered" in result.notes[0]
            and "above its limits" in result.notes[0]
        ), result.notes
        assert missing + recovered == 12_000_000 and recovered > 900_000


# --- the connection -------------------------------------------------------------------


def test_websocket_cut_twice_loses_no_output(harness: ServerHarness) -> None:
    result = harness.run_with(
        COUNTING_CELL, (0.6, harness.proxy.cut), (0.8, harness.proxy.cut)
    )
    assert (
        result.outcome is Outcome.OK
        and text(result) == COUNTING_OUTPUT
        and not result.notes
    )
    assert (
        result.outputs[-1]["data"]["text/plain"] == "11"
        and harness.kernel.process.disconnect_count >= 2
    )
    assert result.namespace.variables["n"]


@pytest.mark.nightly
def test_server_replay_exceeding_the_kernel_record_is_complete(
    harness: ServerHarness,
) -> None:
    """The kernel's record holds 1 MB; messages that were received are not lost."""
    source = "import time\nfor n in range(10):\n    print('y' * 200_000)\n    time.sleep(0.2)"
    result = harness.run_with(source, (1.0, harness.proxy.cut))
    assert result.outcome is Outcome.OK and len(text(result)) == 2_000_010, result.notes


@pytest.mark.nightly
def test_output_is_recovered_from_kernel_record_without_server_replay(
    harness: ServerHarness,
) -> None:
    def cut() -> None:
        # The server does not replay messages for another session.
        harness.kernel.channels.session = "0" * 31 + "1"
        harness.proxy.cut()

    result = harness.run_with(COUNTING_CELL, (0.7, cut))
    assert (
        result.outcome is Outcome.OK
        and text(result) == COUNTING_OUTPUT
        and result.outputs[-1]["data"]["text/plain"] == "11"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("seconds", mark_nightly((1.6, 13.0), 1.6))
def test_long_server_outage_is_not_a_kernel_death(
    harness: ServerHarness, seconds: float
) -> None:
    """An outage of the cell's timeout, and one that is ten seconds longer."""
    problems: list[str] = []

    def record_problem() -> None:
        problems.append(harness.kernel.describe().problem)
        harness.proxy.up()

    source = "import time\nfor n in range(3):\n    print(n)\n    time.sleep(0.3)"
    timeout = 1.2 if seconds < 10 else 5
    result = harness.run_with(
        source, (0.4, harness.proxy.down), (seconds, record_problem), timeout=timeout
    )
    assert result.outcome is Outcome.OK and text(result) == "0\n1\n2\n", result
    assert (
        0.9 <= run_time_measurement.measure_busy_seconds(result.timings, seconds) < 1.4
    )
    assert result.reconnected
    assert (
        problems[0].startswith("the connection is down (")
        and "can't be reached" in problems[0]
    ), problems
    assert (
        harness.kernel.describe().problem == ""
        and harness.wait(harness.kernel.check_death()) is None
    )


# --- daemons --------------------------------------------------------------------------


@pytest.mark.nightly
def test_new_daemon_finds_the_kernel_and_its_run(harness: ServerHarness) -> None:
    harness.run("kept = 7")
    harness.reattach()
    assert (
        harness.wait(harness.kernel.take_over()) is None
        and text(harness.run("print(kept)")) == "7\n"
    )

    async def detach_during_run() -> None:
        running = asyncio.create_task(
            harness.kernel.execute(COUNTING_CELL, 60, LIMITS, request="a-request")
        )
        await asyncio.sleep(0.7)
        harness.kernel.detach()
        running.cancel()
        await asyncio.wait([running])

    harness.wait(detach_during_run())
    harness.reattach()
    result = harness.wait(harness.kernel.await_earlier_request("a-request", 60, LIMITS))
    assert result is not None and result.outcome is Outcome.OK
    assert text(result) == COUNTING_OUTPUT
    assert (
        harness.wait(harness.kernel.await_earlier_request("never sent", 60, LIMITS))
        is None
    )


def test_new_daemon_starts_while_the_server_is_down(harness: ServerHarness) -> None:
    harness.run("kept = 8")
    harness.detach()
    harness.proxy.down()
    try:
        kernel = harness.wait(harness.provider().attach())
        assert (
            kernel is not None
            and not isinstance(kernel, Death)
            and "the connection is down" in kernel.unreachable_reason
        )
    finally:
        harness.proxy.up()
    harness.reattach()
    assert (
        harness.wait(harness.kernel.take_over()) is None
        and text(harness.run("print(kept)")) == "8\n"
    )


@pytest.mark.nightly
def test_kernel_of_unanswered_start_is_deleted_before_the_next(
    harness: ServerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier_kernels = {*harness.server.kernels()}
    request_kernel = JupyterLauncher._request_kernel

    async def request_and_die(self: JupyterLauncher, *values: Any) -> str:
        await request_kernel(self, *values)
        raise GeneratorExit  # no handler catches it

    monkeypatch.setattr(JupyterLauncher, "_request_kernel", request_and_die)
    with pytest.raises(GeneratorExit):
        harness.begin(harness.backend_config(), "other.json")
    monkeypatch.undo()
    (lost_kernel,) = {*harness.server.kernels()} - earlier_kernels
    kernel = harness.wait(harness.provider("other.json").attach())
    # An Enterprise Gateway accepts an id, so the kernel is found by its id.
    assert kernel is None or (
        harness.server.kind == "enterprise" and kernel.id == lost_kernel
    )
    new_kernel = harness.begin(harness.backend_config(), "other.json")
    kernels = harness.server.kernels()
    assert lost_kernel not in kernels and new_kernel.id in kernels
    harness.wait(new_kernel.shutdown())
    assert {*harness.server.kernels()} == earlier_kernels


# --- deaths and shutdown --------------------------------------------------------------


@pytest.mark.nightly
def test_kernel_restarted_by_the_server_is_lost(harness: ServerHarness) -> None:
    kernel_id = harness.kernel.id
    result = harness.run(
        "print('before', flush=True)\nimport os, time\ntime.sleep(0.3)\nos._exit(1)"
    )
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "the server started another" in result.death.reason
        and text(result) == "before\n"
    )
    assert result.death.cause == ""  # the cell may be the cause
    assert kernel_id not in harness.server.kernels() and not harness.record.exists()
    harness.kernel = harness.begin(harness.backend_config())


@pytest.mark.nightly
def test_kernel_restarted_by_another_client_is_lost(harness: ServerHarness) -> None:
    harness.run("kept = 1")
    kernel_id = harness.kernel.id
    harness.server.ask(f"kernels/{kernel_id}/restart", "POST")
    result = harness.run("import time\ntime.sleep(0.3)\nkept")
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "the server started another" in result.death.reason
    )
    assert kernel_id not in harness.server.kernels()
    assert result.death.cause == "EndedOutside"
    harness.kernel = harness.begin(harness.backend_config())


@pytest.mark.nightly
def test_kernel_death_without_daemon_is_detected(harness: ServerHarness) -> None:
    pid = harness.pid()
    harness.detach()
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while is_dead(pid) is False and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)  # until the server has started another kernel
    harness.reattach()
    death = harness.wait(harness.kernel.take_over())
    assert death is not None and "the server started another" in death.reason, death
    harness.kernel = harness.begin(harness.backend_config())


@pytest.mark.nightly
def test_cell_is_not_rerun_if_kernel_dies_while_disconnected(
    harness: ServerHarness,
) -> None:
    harness.run("kept = 1")
    pid, file = harness.pid(), harness.folder / "runs"
    source = f"import time\nwith open({str(file)!r}, 'a') as f: f.write('x')\nfor n in range(100): time.sleep(0.1)"

    def die() -> None:
        harness.proxy.down()
        os.kill(pid, signal.SIGKILL)

    result = harness.run_with(source, (0.5, die), (2.0, harness.proxy.up))
    assert result.outcome is Outcome.KERNEL_DIED and file.read_text() == "x", result
    harness.kernel = harness.begin(harness.backend_config())


def test_attached_kernel_is_kept_and_started_kernel_is_deleted(
    harness: ServerHarness,
) -> None:
    harness.run("shared = 5")
    attached = harness.begin(
        harness.backend_config(kernel_id=harness.kernel.id), "other.json"
    )
    assert text(harness.wait(attached.execute("print(shared)", 30, LIMITS))) == "5\n"
    harness.wait(attached.shutdown())
    result = harness.run("print(shared)")
    assert text(result) == "5\n", (result.death, result)
    assert harness.kernel.id in harness.server.kernels()
    absent = harness.backend_config(kernel_id="0e000000-0000-4000-8000-000000000000")
    assert "has no kernel 0e000000-" in harness.get_start_error(absent)
    with pytest.raises(KernelError, match="has no kernel 0e000000-"):
        harness.wait(check_backend(absent, {VARIABLE: TOKEN}, ""))
    named = harness.backend_config(kernel_id=harness.kernel.id)
    assert (
        "python3" in harness.wait(check_backend(named, {VARIABLE: TOKEN}, "")).offers[0]
    )
    pid = harness.pid()
    kernel_id = harness.kernel.id
    harness.wait(harness.kernel.shutdown())
    assert (
        kernel_id not in harness.server.kernels()
        and is_dead(pid)
        and not harness.record.exists()
    )
    assert harness.reattach() is None
    harness.kernel = harness.begin(harness.backend_config())


@pytest.mark.nightly
def test_kernel_deleted_on_the_server_is_reported(harness: ServerHarness) -> None:
    harness.server.ask(f"kernels/{harness.kernel.id}", "DELETE")
    harness.kernel.process.checked_at = 0.0  # as if checked half a minute ago
    result = harness.run("print('x')")
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and f"{harness.proxy.url} no longer has the kernel" in result.death.reason
    )
    assert result.death.cause == "EndedOutside"
    harness.kernel = harness.begin(harness.backend_config())


# --- errors ---------------------------------------------------------------------------


def test_refused_requests_are_distinguished(harness: ServerHarness) -> None:
    refused = harness.get_start_error(harness.backend_config(), "wrong")
    code = 403 if harness.server.kind == "server" else 401
    assert (
        f"{harness.proxy.url} refuses the token from `token_env` ({code})" in refused
        and VARIABLE in refused
    )
    assert "refuses a request without a token" in harness.get_start_error(
        harness.backend_config(token_env=None)
    )
    assert (
        f"{VARIABLE}, which should contain a token, is not set"
        in harness.get_start_error(harness.backend_config(), "")
    )
    assert "should contain a token" not in harness.get_start_error(
        harness.backend_config(), "two\nlines"
    ) and TOKEN not in harness.get_start_error(
        harness.backend_config(), f"{TOKEN}\nX-Other: 1"
    )
    assert "has no kernelspec 'cobol'; available: " in harness.get_start_error(
        harness.backend_config(kernel="cobol")
    )
    with pytest.raises(
        KernelError, match=r"has no kernelspec 'cobol'; available: .*python3"
    ):
        harness.wait(
            check_backend(harness.backend_config(kernel="cobol"), {VARIABLE: TOKEN}, "")
        )
    assert "can't be reached" in (
        error_text := harness.get_start_error(
            harness.server.backend_config(f"http://127.0.0.1:{free_port()}/")
        )
    )
    assert "curl -I http://127.0.0.1" in error_text
    if harness.server.kind == "enterprise":
        assert (
            "403"
            in (error_text := harness.get_start_error(harness.backend_config(env=None)))
            and "KERNEL_USERNAME" in error_text
        )


def test_token_from_file_or_command(harness: ServerHarness) -> None:
    file = harness.folder / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o644)
    at = harness.backend_config(token_env=None, token_file=str(file))
    assert f"chmod 600 {file}" in harness.get_start_error(
        at
    ) and "other users can read it" in harness.get_start_error(at)
    file.chmod(0o600)
    assert "python3" in harness.wait(check_backend(at, {}, "")).offers[0]
    by_command = harness.backend_config(token_env=None, token_command=f"cat {file}")
    assert "python3" in harness.wait(check_backend(by_command, {}, "")).offers[0]
    # The command gets the variables of the request, not those of the daemon.
    by_variable = harness.backend_config(
        token_env=None, token_command="printenv WHERE_MY_KEYRING_IS"
    )
    facts = harness.wait(check_backend(by_variable, {"WHERE_MY_KEYRING_IS": TOKEN}, ""))
    assert "python3" in facts.offers[0]
    file.write_text("")
    assert "is empty" in harness.get_start_error(at)
    assert "printed nothing" in harness.get_start_error(by_command)
    file.unlink()
    assert "can't be read: No such file" in harness.get_start_error(
        at
    ) and "failed with exit code 1" in harness.get_start_error(by_command)
    assert "could not be executed" in harness.get_start_error(
        harness.backend_config(token_env=None, token_command="/no/such/keyring")
    )


class Page(http.server.BaseHTTPRequestHandler):
    """A hub or a proxy that responds instead of a Jupyter server."""

    code = 200
    headers_sent: ClassVar[dict[str, str]] = {"Content-Type": "text/html"}
    hub: tuple[int, Any] = (404, None)  # the response about the token's owner

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
        """Log nothing."""


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
        assert "refuses the token from `token_env` (401)" in says(401, **json_sent)
        assert "does not permit the owner of the token" not in says(401, **json_sent)
        at = backend_registry.parse_backends(
            {
                "hub": {
                    "jupyter": {"url": url.removesuffix("hub"), "token_env": VARIABLE}
                }
            }
        )["hub"]
        assert (
            "does not permit the owner of the token from `token_env` to do this (403)"
            in says(403, **json_sent)
        )
        assert "is not available (503)" in says(503)
        at = backend_registry.parse_backends(
            {
                "hub": {
                    "jupyter": {"url": url, "token_env": VARIABLE, "kernel_id": "k-1"}
                }
            }
        )["hub"]
        assert "returned no information about the kernel k-1 (HTTP 400)" in says(
            400, **json_sent
        )
    finally:
        loop.close()
        page.shutdown()
        page.server_close()


def test_hub_responses_about_a_server_are_reported(tmp_path: Path) -> None:
    """A real hub responds to a POST for a stopped server with a page and 403.

    See `test_jupyterhub.py`.
    """
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

    user = {"name": "a da", "servers": {"": {"ready": True, "pending": None}}}
    token = "the token from `token_env`"
    hint = f"export {VARIABLE}=…"
    try:
        for code in (302, 403):
            stopped = (
                f"{name} is not running (reported by its hub)",
                f"start the server at {root}/hub/spawn/a%20da/gpu",
            )
            assert says((200, user), code) == stopped
            starting = {
                **user,
                "servers": {"gpu": {"ready": False, "pending": "spawn"}},
            }
            assert says((200, starting), code) == (
                f"{name} is not ready; its hub reports: spawn",
                "",
            )
            assert says((403, {}), code) == (f"{name} refuses {token} (403)", hint)
            for unknown in (
                (200, {**user, "name": "bob"}),
                (200, {"name": "a da"}),
                (200, 3),
                (500, {}),
            ):
                message, suggestion = says(unknown, code)
                assert (
                    message
                    == f"the hub does not give access to {name}: the server is not running, or {token} is not valid for it"
                )
                assert suggestion == f"your servers are listed at {root}/hub/home"
        # The token is also invalid for servers if it belongs to the server's user.
        for owner, code in (("bob", 403), ("a da", 403), ("bob", 401)):
            error = says((200, {**user, "name": owner}), code, "application/json")
            assert error == (
                f"{name} does not permit {owner}, the owner of {token}, to do this ({code})",
                hint,
            )
        at = backend_registry.parse_backends(
            {"hub": {"jupyter": {"url": root, "token_env": VARIABLE}}}
        )["hub"]
        assert says((200, user), 302)[0] == f"{root}/ is the URL of a hub"
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
    channel, (plain,), _ = decode_json(json.dumps(fields))
    assert (
        channel == "iopub" and plain["content"] == {"a": 1} and plain["buffers"] == []
    )
    frames = [json.dumps(fields).encode(), b"one", b"two"]
    offsets = [12 + 4 + sum(map(len, frames[:n])) for n in range(3)]
    data = b"".join(
        [
            len(frames).to_bytes(4, "big"),
            *(offset.to_bytes(4, "big") for offset in offsets),
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
    channel, (plain,), _ = decode_binary(encode_binary("shell", parts))
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
        for decoded in (decode_json(wrong), decode_binary(wrong)):
            assert not decoded.messages and not decoded.is_complete
    for odd in (
        b"",
        b"\0",
        b"\xff" * 40,
        b"\0\0\0\1\0\0\0\x08{}",
        encode_binary("", []),
        encode_binary("x", [b"3"] * 4),
        b"\1" * 64,
    ):
        for decoded in (decode_json(odd), decode_binary(odd)):
            assert not decoded.messages and not decoded.is_complete
    for cut in range(len(data)):
        decode_json(data[:cut])
    message = encode_binary("iopub", parts)
    for cut in range(len(message)):
        decode_binary(message[:cut])


def test_text_before_an_invalid_part_of_a_large_message_is_kept() -> None:
    valid = b"a" * (message_decoding.LARGE + 1)
    for text, is_complete in ((valid, True), (valid + rb"\q", False)):
        content = b'{"name": "stdout", "text": "%s"}' % text
        parts = [b'{"msg_type": "stream"}', b"{}", b"{}", content]
        decoded = decode_binary(encode_binary("iopub", parts))
        pieces = [message["content"]["text"] for message in decoded.messages]
        assert decoded.channel == "iopub"
        assert len(pieces) >= 4
        assert valid.decode().startswith("".join(pieces))
        assert decoded.is_complete is is_complete


# --- TLS ------------------------------------------------------------------------------


def create_certificates(folder: Path) -> tuple[str, str, str]:
    """Create an authority; return its certificate, a server's certificate and its key."""
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
    ca, certificate, key = create_certificates(tmp_path)
    server = JupyterServer("server", certificate=(certificate, key), authority=ca)
    try:

        def begin(url: str = "", **options: Any) -> Kernel:
            provider = NotebookLauncher(
                str(tmp_path / "kernel.json"), str(tmp_path), {}
            )
            at = server.backend_config(url, **options)
            return loop.run_until_complete(
                provider.start(LaunchConfig("", "/", {VARIABLE: TOKEN}, backend=at))
            )

        loop = asyncio.new_event_loop()
        kernel = begin(ca_file=ca, headers={"X-Extra": "1"})
        result = loop.run_until_complete(
            kernel.execute("print('over TLS')", 30, LIMITS)
        )
        assert text(result) == "over TLS\n" and kernel.describe().location.endswith(
            server.url
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
            begin(server.url.replace("https", "http"))
    finally:
        server.close()


# --- separate servers -----------------------------------------------------------------


@pytest.mark.nightly
def test_server_restart_without_kernels_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)
    server = JupyterServer("server")
    harness = ServerHarness(server)
    problems: list[str] = []

    def record_problem() -> None:
        problems.append(harness.kernel.describe().problem)
        threading.Thread(target=server.start).start()

    try:
        result = harness.run_with(
            "import time\ntime.sleep(60)", (1.0, server.stop), (1.5, record_problem)
        )
        assert (
            result.outcome is Outcome.KERNEL_DIED
            and result.death.reason == f"{harness.proxy.url} no longer has the kernel"
        ), result
        assert problems[0].startswith("the connection is down (")
        harness.kernel = harness.begin(harness.backend_config())
    finally:
        harness.close()
        server.close()


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
    server = JupyterServer("server", f"--{flag}")
    harness = ServerHarness(server)
    try:
        result = harness.run_with(
            COUNTING_CELL, (0.6, harness.proxy.cut), (0.8, harness.proxy.cut)
        )
        assert (
            result.outcome is Outcome.OK
            and text(result) == COUNTING_OUTPUT
            and not result.notes
        ), result
        test_numbers_buffers_and_large_texts_are_unchanged(harness)
    finally:
        harness.close()
        server.close()


# --- with hook and command line -------------------------------------------------------


def test_killed_daemon_reconnects_and_token_is_never_stored(
    harness: ServerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harness.server.kind != "server":
        pytest.skip("the daemon behaves the same with each server")
    earlier_kernels = set(harness.server.kernels())
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    monkeypatch.delenv(VARIABLE)
    for project in scratch(tmp_path / "repo"):
        definition = harness.backend_config(
            token_env=None, token_file=str(file)
        ).definition
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
        second_report = notebook.insert("print(x + 1)")[1].text
        assert "| 4" in second_report
        assert "does not limit memory" not in second_report
        (kernel_id,) = set(harness.server.kernels()) - earlier_kernels
        assert (
            project.json("status")["kernel"]["where"]
            == f"kernel {kernel_id[:6]} on {harness.proxy.url}"
        )
        source = make_waiting_cell(notebook)
        payload = notebook.edited("insert", source)
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        wait_for_output(project)
        output = subprocess.run(
            ["ps", "-eww", "-o", "args"], capture_output=True, text=True
        ).stdout
        project.kill_daemon()
        release_cell(notebook)
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
        assert set(harness.server.kernels()) == earlier_kernels
        texts = [text, died, ended, output, *(str(proxy) for proxy in listed.values())]
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
    harness: ServerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harness.server.kind != "server":
        pytest.skip("the daemon behaves the same with each server")
    bash = harness.server.folder / "data/kernels/bash/kernel.json"
    bash.parent.mkdir(parents=True, exist_ok=True)
    bash.write_text(json.dumps(BASH_KERNEL))
    kernel_id = harness.server.ask("kernels", "POST", {"name": "python3"})["id"]
    monkeypatch.setenv(VARIABLE, TOKEN)
    for project in scratch(tmp_path / "repo"):
        shell = harness.backend_config(kernel="bash").definition
        attached = harness.backend_config(kernel_id=kernel_id).definition
        project.config(
            json.dumps({"kernels": {"sh": dict(shell), "mine": dict(attached)}})
        )
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
        report = notebook.insert("print(x)")[1].text
        assert "| 3" in report, report
        assert "lost" not in report and "fresh" not in report, report
        project.stepper("use", notebook.path.stem, "--kernel", "local")
        assert (
            "started a new kernel"
            in project.stepper("restart", notebook.path.stem).stdout
        )
        assert kernel_id in harness.server.kernels()
