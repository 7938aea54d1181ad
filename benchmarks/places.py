"""What a step costs in each place, beside a bare round trip of the same link; a job's first result beside a bare job.

    python benchmarks/places.py              # as root, where sshd or SLURM are to be installed first
    python benchmarks/places.py ssh slurm      # these alone, and the project's own kernel

The places are real ones on loopback, those of the tests: an sshd, two nodes of a SLURM, a Jupyter Server. A link's
bare round trip is that of a kernel without stepper behind a link of the same kind: raw ZeroMQ over unix sockets
(local), over sockets that `ssh -L` forwards (ssh), over TCP with CurveZMQ (slurm), a websocket whose messages are
acknowledged at once (jupyter). Each round measures a step of the place right after a bare round trip, so that both have
the same machine; what is held to its bound is the median of their differences.
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
    options,
    played,
    report,
    scratch,
    since,
    spawn,
    take,
    total,
    within,
)
from kernels import RawKernel
from subject import Subject
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
from tests.jupyterserver import TOKEN, VARIABLE, Served
from tests.slurm.lab import started

CELLS = 10
REST_SECONDS = 4
# from the start of servers and a cluster, which have work of their own at first
BEGUN_SECONDS = 20
STEP_MS, START_MS = 10, 1500  # more than the bare round trip, than the bare job
CHANNELS = ("shell", "iopub", "stdin", "control", "hb")


@dataclass
class Place:
    """A place of the configuration, what times its link alone, and what a bare job there takes to its result."""

    name: str
    definition: dict[str, Any] | None
    bare: Callable[[], float]
    bare_job: Callable[[], float] | None = None
    settle: Callable[[], object] = object  # has nothing run there any more


def ports() -> dict[str, Any]:
    """Return where on loopback a kernel may listen: ports that are free now."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in CHANNELS]
        for each in held:
            each.bind(("127.0.0.1", 0))
        found = {
            f"{name}_port": each.getsockname()[1]
            for name, each in zip(CHANNELS, held, strict=True)
        }
    return {"transport": "tcp", "ip": "127.0.0.1", **found}


@contextlib.contextmanager
def local() -> Iterator[Place]:
    """The project's own interpreter."""
    with contextlib.ExitStack() as stack:
        raw = RawKernel()
        stack.callback(raw.end)
        yield Place("local", None, raw.round_trip)


@contextlib.contextmanager
def ssh() -> Iterator[Place]:
    """A host over ssh."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="st-ssh-"))
        facts = stack.enter_context(sshd.running(Path(folder)))

        def forwarded(about: Mapping[str, Any]) -> dict[str, Any]:
            sockets = {
                name: f"{folder}/s-{number}" for number, name in enumerate(CHANNELS, 1)
            }
            flags = [
                f"-L{path}:127.0.0.1:{about[f'{name}_port']}"
                for name, path in sockets.items()
            ]
            # a session in it, as stepper's has: without one (`-N`) OpenSSH leaves
            # Nagle's algorithm on, for 40 ms more
            command = ["ssh", "-F", facts["config"], *flags, "box", "exec cat"]
            line = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            stack.callback(line.wait)
            stack.callback(line.kill)
            return {
                "transport": "ipc",
                "ip": f"{folder}/s",
                **{f"{n}_port": i for i, n in enumerate(CHANNELS, 1)},
            }

        raw = RawKernel(ports(), forwarded)
        stack.callback(raw.end)
        yield Place("ssh", dict(sshd.place(facts).definition), raw.round_trip)


@contextlib.contextmanager
def slurm() -> Iterator[Place]:
    """A batch job."""
    lab = started()
    os.environ["SLURM_CONF"] = lab.conf

    def settle() -> None:
        until = time.monotonic() + 60
        while lab.jobs() or {*lab.ask("sinfo", "-h", "-N", "-o", "%t").split()} != {
            "idle"
        }:
            if time.monotonic() > until:
                raise BrokenStepError("something runs on the cluster")
            time.sleep(0.1)
        time.sleep(1)  # a controller schedules nothing for a while after a job's end

    def job() -> float:
        settle()
        done = lab.folder / secrets.token_hex(8)
        began = time.perf_counter()
        script = f"#!/bin/sh\nsrun true\ntouch {done}\n"
        subprocess.run(
            ["sbatch", "--parsable", "--output=/dev/null"],
            input=script.encode(),
            check=True,
            stdout=subprocess.DEVNULL,
        )
        while not done.exists():
            if since(began) > 60_000:
                raise BrokenStepError("a bare job did not end")
            time.sleep(0.005)
        return since(began)

    with contextlib.ExitStack() as stack:
        stack.callback(lab.stop)
        public, secret = zmq.curve_keypair()
        raw = RawKernel(
            {
                **ports(),
                "curve_publickey": public.decode(),
                "curve_secretkey": secret.decode(),
            }
        )
        stack.callback(raw.end)
        where = {
            "partition": "batch",
            "mem": "400M",
            "time": "30",
            "python": sys.executable,
        }
        yield Place("slurm", {"slurm": where}, raw.round_trip, job, settle)


@contextlib.contextmanager
def jupyter() -> Iterator[Place]:
    """A kernel of a Jupyter Server."""
    os.environ[VARIABLE] = TOKEN
    with contextlib.ExitStack() as stack:
        served = Served("server")
        stack.callback(served.close)
        raw = Websocket(served)
        stack.callback(raw.end)
        yield Place("jupyter", served.definition(), raw.round_trip)


class Websocket:
    """A kernel of a Jupyter server, asked over one websocket with nothing else in between.

    A thread serves the line, so that the server's pings are answered between two round trips, too.
    """

    def __init__(self, served: Served) -> None:
        self.served, self.loop, self.session = (
            served,
            asyncio.new_event_loop(),
            uuid.uuid4().hex,
        )
        self.kernel = served.ask("kernels", "POST", {"name": "python3"})["id"]
        url = f"{served.url.replace('http', 'ws', 1)}api/kernels/{self.kernel}/channels?session_id={self.session}"
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.line = self._done(
            self._open(HTTPRequest(url, headers={"Authorization": f"token {TOKEN}"}))
        )
        self.round_trip()

    def _done(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    async def _open(self, asked: HTTPRequest) -> Any:
        # the quicker one: bytes, as stepper has it
        return await websocket_connect(asked, subprotocols=[PROTOCOL])

    def round_trip(self) -> float:
        """Return the milliseconds of printing a word, from the request to its reply and its `idle`."""
        return float(self._done(self._run(secrets.token_hex(8))))

    async def _run(self, word: str) -> float:
        header = {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": self.session,
            "username": "",
            "version": "5.3",
            "date": "2026-01-01T00:00:00Z",
        }
        content = {
            "code": f"print('{word}')",
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        began = time.perf_counter()
        parts = [json.dumps(part).encode() for part in (header, {}, {}, content)]
        await self.line.write_message(encode_binary("shell", parts), binary=True)
        awaited, printed = {"execute_reply", "idle"}, ""
        while awaited:
            _, (told,) = decode_binary(await self.line.read_message())
            with contextlib.suppress(OSError):
                stream = self.line.protocol.stream.socket
                stream.setsockopt(
                    socket.IPPROTO_TCP, getattr(socket, "TCP_QUICKACK", 12), 1
                )
            if told["parent_header"].get("msg_id") == header["msg_id"]:
                awaited -= {told["msg_type"], told["content"].get("execution_state")}
                printed += told["content"].get("text", "")
        if word not in printed:
            raise BrokenStepError(f"a kernel of the server's printed {printed!r}")
        return since(began)

    def end(self) -> None:
        """End the kernel."""
        self.loop.call_soon_threadsafe(self.line.close)
        self.served.ask(f"kernels/{self.kernel}", "DELETE")
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


PLACES = {"ssh": ssh, "slurm": slurm, "jupyter": jupyter}


class Placed(Subject):
    """A notebook whose kernel runs in a place."""

    def __init__(self, project: Project, place: Place, name: str = "") -> None:
        super().__init__(project, name or place.name, CELLS)
        self.place = place
        notebook = json.loads(self.path.read_text())
        if place.definition:
            notebook["metadata"]["stepper"] = {"kernel": place.name}
        self.save(notebook)

    def rested(self) -> float:
        """Return the milliseconds of a step after some rest, as an agent's are: what looks at the kernel is due."""
        time.sleep(REST_SECONDS)
        return self.step()

    def first(self) -> float:
        """Return the milliseconds of a step in a notebook that has no kernel yet; end the kernel."""
        self.place.settle()
        took = self.step()
        self.shut()
        return took

    def shut(self) -> None:
        """End the kernel."""
        code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
        spawn(
            [str(self.project.python), "-I", "-c", code, "shutdown", self.path.stem],
            cwd=self.project.root,
        )


def more(row: Row, floor: Row) -> float:
    """Return the median of the differences between a row and its floor in each round."""
    return statistics.median(
        one - other for one, other in zip(row.samples, floor.samples, strict=True)
    )


def line(row: Row, floor: Row, limit: float | None, usual: float | None = None) -> str:
    """Return a row of the table: both medians, the difference, by how much that is above the local one's, its bound."""
    above, held = more(row, floor), ""
    if limit is not None:
        held = within(round(above, 1), limit, " ms")
    beyond = "" if usual is None else f" {above - usual:+.1f} |"
    return f"| {row.name} | {row.median:.1f} | {floor.median:.1f} | {above:+.1f} |{beyond} {held} |"


def steps(
    project: Project, place: Place, rounds: int, rests: int
) -> list[tuple[Row, Row, float | None]]:
    """Return the rows of what a step costs in a place, each with its floor and its bound."""
    subject = Placed(project, place)
    subject.step()  # starts the kernel
    bare, again, idle = (Row("", place.bare) for _ in range(3))
    step, asked = (
        Row(f"**PostToolUse, {place.name}**", subject.step),
        Row("", subject.ask),
    )
    answer = Row(f"socket to answer, {place.name}", subject.answer)
    rested = Row(f"PostToolUse after {REST_SECONDS} s, {place.name}", subject.rested)
    take((bare, step, again, answer, asked), rounds)
    take((idle, rested), rests, warm=1)
    subject.shut()
    both = total(f"a step, {place.name}: both hooks", asked, step)
    return [
        (step, bare, STEP_MS),
        (answer, again, STEP_MS),
        (both, bare, None),
        (rested, idle, None),
    ]


def starts(project: Project, place: Place, rounds: int) -> list[str]:
    """Return the row of what the first result costs in a place; none where there are no jobs."""
    if place.bare_job is None:
        return []
    subject = Placed(project, place, f"first-{place.name}")
    job, first = (
        Row("", place.bare_job),
        Row(f"**submit to first result, {place.name}**", subject.first),
    )
    take((job, first), rounds, warm=1)
    return [line(first, job, START_MS)]


def main() -> None:
    """Measure and print."""
    parser = options(
        "What a step costs in each place, beside a bare round trip of the same link."
    )
    parser.add_argument(
        "places", nargs="*", choices=[*PLACES, []], help="all where none is named"
    )
    parser.add_argument(
        "--starts", type=int, default=7, help="how many jobs are submitted, 2 or more"
    )
    told = parser.parse_args()
    # what was started is ended all the same
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as stack:
        named = [stack.enter_context(PLACES[name]()) for name in told.places or PLACES]
        places = [stack.enter_context(local()), *named]
        project = stack.enter_context(scratch())
        definitions = {
            place.name: place.definition for place in places if place.definition
        }
        Path(project.paths.config).write_text(json.dumps({"kernels": definitions}))
        trust.trust(project.paths)
        found = [
            "| | ms | the link alone | more | beyond local | bound |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        usual: list[float] = []  # of the project's own kernel, which comes first
        time.sleep(BEGUN_SECONDS)
        for place in places:
            rows = steps(project, place, told.rounds, told.starts)
            usual = usual or [more(row, floor) for row, floor, _ in rows]
            found += [line(*row, its) for row, its in zip(rows, usual, strict=True)]
        found += [
            "",
            "| | ms | a bare job | more | bound |",
            "| --- | --- | --- | --- | --- |",
        ]
        for place in places:
            found += starts(project, place, told.starts)
        report(told.rounds, found)


if __name__ == "__main__":
    played(main)
