"""Measure a step on each kernel backend, and a job's first result.

    python benchmarks/kernel_backends.py              # as root if sshd or SLURM must be installed
    python benchmarks/kernel_backends.py ssh slurm    # only these, and local

The backends are real ones on loopback, those of the tests: an sshd, a SLURM cluster of
two nodes, a Jupyter Server. Each step is compared with a bare round trip to a kernel
without stepper over the same kind of link: raw ZeroMQ over unix sockets (local), over
sockets that `ssh -L` forwards (ssh), over TCP with CurveZMQ (slurm), a websocket whose
messages are acknowledged immediately (jupyter). Each round measures a step right after
a bare round trip. The limit applies to the median of the differences.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
from common import (
    BrokenStepError,
    Project,
    Row,
    add_rows,
    create_parser,
    create_temporary_project,
    format_bound,
    measure_elapsed_ms,
    measure_rows,
    print_report,
    run_benchmark,
    spawn,
)
from edited_notebook import EditedNotebook
from kernels import RawKernel
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

sys.path.append(str(Path(__file__).resolve().parent.parent))

from stepper.install import trust
from stepper.kernels.backends.jupyter.websocket_channels import (
    PROTOCOL,
    decode_binary,
    encode_binary,
)
from tests import sshd
from tests.jupyterserver import TOKEN, VARIABLE, JupyterServer
from tests.slurm.lab import start_cluster

CELLS = 10
REST_SECONDS = 4
# after the start of servers and a cluster, which are busy at first
SETTLE_SECONDS = 20
STEP_MS, START_MS = 10, 1500  # more than the bare round trip; more than the bare job
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


@dataclass
class Backend:
    """A configured backend, and functions that time its link and a bare job."""

    name: str
    definition: dict[str, Any] | None
    measure_link: Callable[[], float]
    measure_bare_job: Callable[[], float] | None = None
    wait_until_idle: Callable[[], object] = object  # waits until nothing runs there


def choose_ports() -> dict[str, Any]:
    """Return an address on loopback with free ports for a kernel."""
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in CHANNELS]
        for listener in listeners:
            listener.bind(("127.0.0.1", 0))
        ports = {
            f"{name}_port": listener.getsockname()[1]
            for name, listener in zip(CHANNELS, listeners, strict=True)
        }
    return {"transport": "tcp", "ip": "127.0.0.1", **ports}


@contextlib.contextmanager
def local() -> Iterator[Backend]:
    """Yield the local backend."""
    with contextlib.ExitStack() as stack:
        raw = RawKernel()
        stack.callback(raw.shut_down)
        yield Backend("local", None, raw.round_trip)


@contextlib.contextmanager
def ssh() -> Iterator[Backend]:
    """Yield a backend over ssh."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="st-ssh-"))
        facts = stack.enter_context(sshd.run_sshd(Path(folder)))

        def forward(about: Mapping[str, Any]) -> dict[str, Any]:
            sockets = {
                name: f"{folder}/s-{number}" for number, name in enumerate(CHANNELS, 1)
            }
            flags = [
                f"-L{path}:127.0.0.1:{about[f'{name}_port']}"
                for name, path in sockets.items()
            ]
            # With a session, as in stepper. Without one (`-N`), OpenSSH leaves
            # Nagle's algorithm on, which costs 40 ms.
            command = ["ssh", "-F", facts["config"], *flags, "box", "exec cat"]
            ssh_process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            stack.callback(ssh_process.wait)
            stack.callback(ssh_process.kill)
            return {
                "transport": "ipc",
                "ip": f"{folder}/s",
                **{f"{n}_port": i for i, n in enumerate(CHANNELS, 1)},
            }

        raw = RawKernel(choose_ports(), forward)
        stack.callback(raw.shut_down)
        yield Backend("ssh", dict(sshd.make_backend(facts).definition), raw.round_trip)


@contextlib.contextmanager
def slurm() -> Iterator[Backend]:
    """Yield a backend for batch jobs."""
    lab = start_cluster()
    os.environ["SLURM_CONF"] = lab.conf

    def wait_until_idle() -> None:
        deadline = time.monotonic() + 60
        while lab.jobs() or {*lab.ask("sinfo", "-h", "-N", "-o", "%t").split()} != {
            "idle"
        }:
            if time.monotonic() > deadline:
                raise BrokenStepError("jobs still run on the cluster")
            time.sleep(0.1)
        time.sleep(1)  # a controller schedules nothing for a while after a job

    def run_bare_job() -> float:
        wait_until_idle()
        marker = lab.folder / secrets.token_hex(8)
        started_at = time.perf_counter()
        script = f"#!/bin/sh\nsrun true\ntouch {marker}\n"
        subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null"],
            input=script.encode(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        while not marker.exists():
            if measure_elapsed_ms(started_at) > 60_000:
                raise BrokenStepError("a bare job did not finish")
            time.sleep(0.005)
        return measure_elapsed_ms(started_at)

    with contextlib.ExitStack() as stack:
        stack.callback(lab.stop)
        public, secret = zmq.curve_keypair()
        raw = RawKernel(
            {
                **choose_ports(),
                "curve_publickey": public.decode(),
                "curve_secretkey": secret.decode(),
            }
        )
        stack.callback(raw.shut_down)
        settings = {
            "partition": "batch",
            "mem": "400M",
            "time": "30",
            "python": sys.executable,
        }
        yield Backend(
            "slurm", {"slurm": settings}, raw.round_trip, run_bare_job, wait_until_idle
        )


@contextlib.contextmanager
def jupyter() -> Iterator[Backend]:
    """Yield a backend on a Jupyter Server."""
    os.environ[VARIABLE] = TOKEN
    with contextlib.ExitStack() as stack:
        server = JupyterServer("server")
        stack.callback(server.close)
        raw = Websocket(server)
        stack.callback(raw.shut_down)
        yield Backend("jupyter", server.definition(), raw.round_trip)


class Websocket:
    """A kernel of a Jupyter server, asked over one websocket.

    A thread reads the websocket, so the server's pings are answered between two round
    trips, too.
    """

    def __init__(self, server: JupyterServer) -> None:
        self.server, self.loop, self.session = (
            server,
            asyncio.new_event_loop(),
            uuid.uuid4().hex,
        )
        self.kernel = server.ask("kernels", "POST", {"name": "python3"})["id"]
        url = f"{server.url.replace('http', 'ws', 1)}api/kernels/{self.kernel}/channels?session_id={self.session}"
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.websocket = self._run_in_loop(
            self._open(HTTPRequest(url, headers={"Authorization": f"token {TOKEN}"}))
        )
        self.round_trip()

    def _run_in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _open(self, request: HTTPRequest) -> Any:
        # the binary protocol, which is faster; stepper uses it, too
        return await websocket_connect(request, subprotocols=[PROTOCOL])

    def round_trip(self) -> float:
        """Return the milliseconds of printing a word, until its reply and `idle`."""
        return float(self._run_in_loop(self._run(secrets.token_hex(8))))

    async def _run(self, marker: str) -> float:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": self.session,
            "username": "",
            "version": "5.3",
            "date": "2026-01-01T00:00:00Z",
        }
        content = {
            "code": f"print('{marker}')",
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        started_at = time.perf_counter()
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        await self.websocket.write_message(encode_binary("shell", parts), binary=True)
        pending, printed = {"execute_reply", "idle"}, ""
        while pending:
            data = decode_binary(await self.websocket.read_message())
            (message,) = data.messages
            with contextlib.suppress(OSError):
                stream = self.websocket.protocol.stream.socket
                stream.setsockopt(
                    socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 12), 1
                )
            if message["parent_header"].get("msg_id") == header["msg_id"]:
                pending -= {
                    message["msg_type"],
                    message["content"].get("execution_state"),
                }
                printed += message["content"].get("text", "")
        if marker not in printed:
            raise BrokenStepError(f"a kernel of the server printed {printed!r}")
        return measure_elapsed_ms(started_at)

    def shut_down(self) -> None:
        """Shut down the kernel."""
        self.loop.call_soon_threadsafe(self.websocket.close)
        self.server.ask(f"kernels/{self.kernel}", "DELETE")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


BACKENDS = {"ssh": ssh, "slurm": slurm, "jupyter": jupyter}


class BackendNotebook(EditedNotebook):
    """A notebook whose kernel runs on a backend."""

    def __init__(self, project: Project, backend: Backend, name: str = "") -> None:
        super().__init__(project, name or backend.name, CELLS)
        self.backend = backend
        notebook = json.loads(self.path.read_text())
        if backend.definition:
            notebook["metadata"]["stepper"] = {"kernel": backend.name}
        self.save(notebook)

    def step_after_rest(self) -> float:
        """Return the milliseconds of a step after a pause."""
        time.sleep(REST_SECONDS)
        return self.step()

    def first_step(self) -> float:
        """Return the milliseconds of a step in a notebook without a kernel.

        Shut down the kernel.
        """
        self.backend.wait_until_idle()
        duration_ms = self.step()
        self.shut_down_kernel()
        return duration_ms

    def shut_down_kernel(self) -> None:
        """Shut down the notebook's kernel."""
        code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
        spawn(
            [str(self.project.python), "-I", "-c", code, "shutdown", self.path.stem],
            cwd=self.project.root,
        )


def median_difference(row: Row, floor: Row) -> float:
    """Return the median difference between a row and its floor."""
    return statistics.median(
        sample - floor_sample
        for sample, floor_sample in zip(row.samples, floor.samples, strict=True)
    )


def format_line(
    row: Row, floor: Row, limit: float | None, local_differences: float | None = None
) -> str:
    """Return a table row: medians, difference, the same relative to local, limit."""
    above, bound = median_difference(row, floor), ""
    if limit is not None:
        bound = format_bound(round(above, 1), limit, " ms")
    beyond_local = (
        "" if local_differences is None else f" {above - local_differences:+.1f} |"
    )
    return f"| {row.name} | {row.median:.1f} | {floor.median:.1f} | {above:+.1f} |{beyond_local} {bound} |"


def measure_steps(
    project: Project, backend: Backend, rounds: int, rests: int
) -> list[tuple[Row, Row, float | None]]:
    """Return the rows of steps on a backend, each with its floor and its limit."""
    notebook = BackendNotebook(project, backend)
    notebook.step()  # starts the kernel
    measure_link, link_before_answer, link_before_rest = (
        Row("", backend.measure_link) for _ in range(3)
    )
    step, pre_hook = (
        Row(f"**PostToolUse, {backend.name}**", notebook.step),
        Row("", notebook.ask),
    )
    answer = Row(f"socket to answer, {backend.name}", notebook.answer)
    step_after_rest = Row(
        f"PostToolUse after {REST_SECONDS} s, {backend.name}", notebook.step_after_rest
    )
    measure_rows((measure_link, step, link_before_answer, answer, pre_hook), rounds)
    measure_rows((link_before_rest, step_after_rest), rests, warm=1)
    notebook.shut_down_kernel()
    both_hooks = add_rows(f"a step, {backend.name}: both hooks", pre_hook, step)
    return [
        (step, measure_link, STEP_MS),
        (answer, link_before_answer, STEP_MS),
        (both_hooks, measure_link, None),
        (step_after_rest, link_before_rest, None),
    ]


def format_starts(project: Project, backend: Backend, rounds: int) -> list[str]:
    """Return the row of the first result on a backend, in a list.

    Empty without jobs.
    """
    if backend.measure_bare_job is None:
        return []
    notebook = BackendNotebook(project, backend, f"first-{backend.name}")
    run_bare_job, first_step = (
        Row("", backend.measure_bare_job),
        Row(f"**submit to first result, {backend.name}**", notebook.first_step),
    )
    measure_rows((run_bare_job, first_step), rounds, warm=1)
    return [format_line(first_step, run_bare_job, START_MS)]


def main() -> None:
    """Measure and print."""
    parser = create_parser(
        "Measure a step on each backend, compared with a bare round trip."
    )
    parser.add_argument(
        "backends", nargs="*", choices=[*BACKENDS, []], help="default: all"
    )
    parser.add_argument(
        "--starts", type=int, default=7, help="number of submitted jobs, at least 2"
    )
    options = parser.parse_args()
    # shut down what was started
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as stack:
        chosen_backends = [
            stack.enter_context(BACKENDS[name]())
            for name in options.backends or BACKENDS
        ]
        backends = [stack.enter_context(local()), *chosen_backends]
        project = stack.enter_context(create_temporary_project())
        definitions = {
            backend.name: backend.definition
            for backend in backends
            if backend.definition
        }
        Path(project.paths.config).write_text(json.dumps({"kernels": definitions}))
        trust.accept(project.paths, trust.examine(project.paths))
        lines = [
            "| | ms | link alone | difference | beyond local | limit |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        local_differences: list[float] = []  # of the local kernel, which comes first
        time.sleep(SETTLE_SECONDS)
        for backend in backends:
            rows = measure_steps(project, backend, options.rounds, options.starts)
            local_differences = local_differences or [
                median_difference(row, floor) for row, floor, _ in rows
            ]
            lines += [
                format_line(*row, local_difference)
                for row, local_difference in zip(rows, local_differences, strict=True)
            ]
        lines += [
            "",
            "| | ms | bare job | difference | limit |",
            "| --- | --- | --- | --- | --- |",
        ]
        for backend in backends:
            lines += format_starts(project, backend, options.starts)
        print_report(options.rounds, lines)


if __name__ == "__main__":
    run_benchmark(main)
