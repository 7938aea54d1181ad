"""Kernels of a Jupyter server and a Kernel Gateway, real ones on loopback: tokens, websockets that are cut, deaths."""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.ground.errors import KernelError
from stepper.kernel.jupyter.channels import parsed
from stepper.kernel.providers import AnyPlace, look
from stepper.policy import kernels
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.ports import Execution, Kernel, KernelPlace
from tests.jupyterserver import TOKEN, VARIABLE, Served

LIMITS = Limits(max_memory_percent=100)


@pytest.fixture(scope="module", params=["server", pytest.param("gateway", marks=pytest.mark.nightly)])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    made = Served(request.param)
    yield made
    made.close()


class Room:
    """One notebook's kernel on that server, and the daemon that asks it."""

    def __init__(self, served: Served) -> None:
        self.served, self.folder = served, Path(tempfile.mkdtemp(prefix="hub"))
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(served.place())

    def provider(self, name: str = "kernel.json") -> AnyPlace:
        return AnyPlace(str(self.folder / name), str(self.folder), {})

    def begin(self, at: kernels.Place, name: str = "kernel.json", token: str = TOKEN) -> Kernel:
        return self.wait(self.provider(name).start(KernelPlace("", "/", {VARIABLE: token}, at=at)))

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 30) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def close(self) -> None:
        self.wait(self.kernel.shutdown())
        self.wait(asyncio.sleep(0.1))
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def room(served: Served) -> Iterator[Room]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, TOKEN)  # the next daemon's
        made = Room(served)
        yield made
        made.close()


def text(done: Execution) -> str:
    return "".join(out["text"] for out in done.outputs if out["output_type"] == "stream")


def test_cells_run_there_and_no_token_is_kept(room: Room) -> None:
    done = room.run("x = 20\nprint(x)")
    assert done.outcome is Outcome.OK and text(done) == "20\n" and done.namespace.variables["x"]
    failed = room.run("print('before')\n1 / 0")
    assert failed.outcome is Outcome.ERROR and failed.fault is not None and failed.fault.line == 2
    assert TOKEN not in (room.folder / "kernel.json").read_text()
    assert any("python3" in line for line in room.wait(look(room.served.place(), {VARIABLE: TOKEN}, "")))


def test_a_deadline_interrupts_there(room: Room) -> None:
    done = room.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert done.outcome is Outcome.TIMEOUT and done.death is None and text(done) == "begun\n"


def test_a_websocket_that_is_cut_in_a_cell_loses_nothing(room: Room) -> None:
    async def cut() -> Execution:
        source = "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)\nn"
        running = asyncio.create_task(room.kernel.execute(source, 60, LIMITS))
        for _ in range(2):
            await asyncio.sleep(0.6)
            room.kernel.channels.line.protocol.stream.close()
        return await running

    done = room.wait(cut())
    assert done.outcome is Outcome.OK and text(done) == "".join(f"{n}\n" for n in range(12))
    assert done.outputs[-1]["data"]["text/plain"] == "11"


def test_the_next_daemon_finds_it(room: Room) -> None:
    room.run("kept = 7")
    room.kernel.detach()
    kernel = room.wait(room.provider().attach())
    assert kernel is not None and not isinstance(kernel, Death)
    room.kernel = kernel
    assert room.wait(kernel.adopt()) is None and text(room.run("print(kept)")) == "7\n"


def test_a_kernel_that_the_server_restarts_is_lost(room: Room) -> None:
    done = room.run("import os\nos._exit(1)")
    assert done.outcome is Outcome.KERNEL_DIED and "has started another" in done.death.how
    assert room.served.kernels() == [] and not (room.folder / "kernel.json").exists()
    room.kernel = room.begin(room.served.place())


def test_one_that_is_named_is_attached_and_left(room: Room) -> None:
    room.run("shared = 5")
    other = room.begin(room.served.place(kernel_id=room.kernel.id), "other.json")
    assert text(room.wait(other.execute("print(shared)", 30, LIMITS))) == "5\n"
    room.wait(other.shutdown())
    assert room.served.kernels() == [room.kernel.id] and text(room.run("print(shared)")) == "5\n"


def test_what_is_refused_is_told_apart(room: Room) -> None:
    def fails(at: kernels.Place, token: str = TOKEN) -> str:
        with pytest.raises(KernelError) as failed:
            room.begin(at, "wrong.json", token)
        assert TOKEN not in str(failed.value) and not (room.folder / "wrong.json").exists()
        return str(failed.value)

    assert "(401)" in (said := fails(room.served.place(), "wrong")) or "(403)" in said
    assert f"{VARIABLE}, which is to hold a token, is not set" in fails(room.served.place(), "")
    assert "starts no kernel 'cobol'" in fails(room.served.place(kernel="cobol"))
    assert "can't be reached" in fails(room.served.place(url="http://127.0.0.1:9/"))
    assert "TLS was refused" in fails(room.served.place(url=f"https://127.0.0.1:{room.served.port}/"))


class Html(http.server.BaseHTTPRequestHandler):
    """A page in a server's place."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>Please log in</html>")

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def test_a_server_that_answers_html_is_none(room: Room) -> None:
    page = http.server.HTTPServer(("127.0.0.1", 0), Html)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    try:
        with pytest.raises(KernelError, match="is no Jupyter server: it sends no JSON"):
            room.begin(room.served.place(url=f"http://127.0.0.1:{page.server_port}/"), "html.json")
    finally:
        page.shutdown()
        page.server_close()


def test_messages_are_read_as_servers_send_them_and_nothing_else() -> None:
    told = {"channel": "iopub", "header": {"msg_type": "status"}, "parent_header": {}, "content": {"a": 1}}
    plain = parsed(json.dumps(told))
    assert plain is not None and plain["content"] == {"a": 1} and plain["buffers"] == []
    first = json.dumps(told).encode()
    frames = [first, b"one", b"two"]
    places = [12 + 4 + sum(map(len, frames[:n])) for n in range(3)]
    data = b"".join([len(frames).to_bytes(4, "big"), *(place.to_bytes(4, "big") for place in places), *frames])
    assert parsed(data)["buffers"] == [b"one", b"two"]
    for wrong in (
        "",
        "[]",
        "{}",
        "x",
        b"",
        b"\0",
        b"\xff" * 40,
        b"\0\0\0\1\0\0\0\x08{}",
        json.dumps({**told, "header": 3}),
    ):
        assert parsed(wrong) is None
