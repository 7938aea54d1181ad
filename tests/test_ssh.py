"""Kernels on a host over ssh: a real sshd on loopback, made here; lines that are cut, daemons that are killed."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.ground.errors import KernelError
from stepper.kernel.providers import AnyPlace
from stepper.policy import kernels
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.ports import Execution, Kernel, KernelPlace
from tests.conftest import Notebook, scratch
from tests.npm import Unavailable, unavailable
from tests.sshd import Host

LIMITS = Limits(max_memory_percent=100)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    folder = Path(tempfile.mkdtemp(prefix="sshd"))
    try:
        made = Host(folder)
    except Unavailable as why:
        unavailable(why)
    yield made
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)


class Room:
    """One notebook's kernel on that host, and the daemon that asks it."""

    def __init__(self, host: Host) -> None:
        self.host, self.folder = host, Path(tempfile.mkdtemp(prefix="ssh"))
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(host.place(folder=str(self.folder)))

    def provider(self) -> AnyPlace:
        return AnyPlace(str(self.folder / "kernel.json"), str(self.folder), {})

    def begin(self, at: kernels.Place) -> Kernel:
        return self.wait(self.provider().start(KernelPlace("", "/", {}, at=at)))

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 30) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def again(self) -> Kernel | Death | None:
        self.kernel.detach()
        found = self.wait(self.provider().attach())
        self.kernel = found if found is not None and not isinstance(found, Death) else self.kernel
        return found

    def cut(self) -> None:
        self.kernel.process.link.master.kill()

    def close(self) -> None:
        self.wait(self.kernel.shutdown())
        self.wait(asyncio.sleep(0.1))
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def room(host: Host) -> Iterator[Room]:
    made = Room(host)
    yield made
    made.close()


def text(done: Execution) -> str:
    return "".join(out["text"] for out in done.outputs if out["output_type"] == "stream")


def test_cells_run_there_with_all_that_the_helper_tells(room: Room) -> None:
    done = room.run("import os\nx = 20\nprint(os.getcwd())")
    assert done.outcome is Outcome.OK and text(done) == f"{room.folder}\n" and done.namespace.variables["x"]
    failed = room.run("print('before')\n1 / 0")
    assert failed.outcome is Outcome.ERROR and failed.fault is not None and failed.fault.line == 2
    assert room.kernel.about().python.endswith(f"box:{sys.executable}")
    names = sorted(path.name for path in room.folder.iterdir())
    assert "kernel.json" in names and all(path.stat().st_mode & 0o077 == 0 for path in room.folder.iterdir())


def test_a_deadline_interrupts_there(room: Room) -> None:
    room.run("kept = 5")
    done = room.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert done.outcome is Outcome.TIMEOUT and done.death is None and text(done) == "begun\n"
    assert text(room.run("print(kept)")) == "5\n"


def test_a_line_that_is_cut_in_a_cell_loses_nothing(room: Room) -> None:
    async def cut() -> Execution:
        source = "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)\nn"
        running = asyncio.create_task(room.kernel.execute(source, 60, LIMITS))
        for _ in range(2):
            await asyncio.sleep(0.6)
            room.cut()
        return await running

    done = room.wait(cut())
    assert done.outcome is Outcome.OK and text(done) == "".join(f"{n}\n" for n in range(12))
    assert done.outputs[-1]["data"]["text/plain"] == "11"
    assert text(room.run("print('on the same sockets')")) == "on the same sockets\n"


def test_the_next_daemon_finds_it(room: Room) -> None:
    room.run("kept = 7")
    kernel = room.again()
    assert kernel is not None and not isinstance(kernel, Death)
    assert room.wait(kernel.adopt()) is None and text(room.run("print(kept)")) == "7\n"


def test_a_notebook_names_the_host_and_its_daemon_is_killed(
    host: Host, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for project in scratch(tmp_path_factory.mktemp("ssh") / "repo"):
        place = host.place()
        project.config(f"kernels: {json.dumps({'box': place.definition})}\n")
        assert project.json("kernels")[1]["reachable"] is None
        project.stepper("trust")
        there = project.json("kernels")[1]
        assert there["reachable"] and there["about"].endswith("on box over ssh"), there
        made = project.json("new", "Look there", "--kernel", "box")
        notebook = Notebook(project, project.folder / made["notebook"])
        cell, answer = notebook.insert("import os\nx = 3\nos.getcwd()")
        assert "ran ok" in answer.text and os.path.expanduser("~") in answer.text, answer.text
        assert project.json("context")["variables"]["x"]
        project.kill_daemon()
        assert "| 4" in notebook.insert("print(x + 1)")[1].text
        kernel = project.json("status")["kernel"]
        assert kernel["state"] == "idle" and kernel["pid"] is None and "box:" in kernel["python"]
        payload = notebook.edited("insert", "import time\nprint('begun')\ntime.sleep(4)\nprint('over')", cell)
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        time.sleep(1.5)
        project.kill_daemon()
        running.join()
        said = project.json("report")["text"]
        assert "| begun" in said and "| over" in said and "lost its daemon" in said, said


def test_what_is_wrong_is_said_in_sshs_words(room: Room, host: Host) -> None:
    other = room.folder / "other"
    other.mkdir(mode=0o700)

    def fails(at: kernels.Place) -> str:
        provider = AnyPlace(str(other / "kernel.json"), str(other), {})
        with pytest.raises(KernelError) as failed:
            room.wait(provider.start(KernelPlace("", "/", {}, at=at)))
        assert not (other / "kernel.json").exists()
        return str(failed.value)

    assert "no_such_python" in fails(host.place(python="/no_such_python"))
    assert "there is no folder /nowhere" in fails(host.place(folder="/nowhere"))
    host.known("other")
    try:
        assert "Host key verification failed" in fails(host.place())
    finally:
        host.known("host")


def test_a_kernel_that_dies_there_and_one_that_is_ended(room: Room) -> None:
    done = room.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert done.outcome is Outcome.KERNEL_DIED and "is gone" in done.death.how
    assert not (room.folder / "kernel.json").exists()
    room.kernel = room.begin(host_place := room.host.place(folder=str(room.folder)))
    assert host_place.kind == "ssh"
    pid = room.kernel.process.far["pid"]
    room.wait(room.kernel.shutdown())
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    assert room.again() is None
    room.kernel = room.begin(host_place)
