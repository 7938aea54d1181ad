"""Kernels that are jobs, on a real SLURM of two emulated nodes on loopback (`tests/slurm/`)."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.ground.errors import KernelError
from stepper.kernel.providers import AnyPlace, look
from stepper.policy import kernels
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.ports import Execution, Kernel, KernelPlace
from tests.conftest import Notebook, scratch
from tests.slurm.lab import Lab

LIMITS = Limits(max_memory_percent=100)


def place(**where: Any) -> kernels.Place:
    given = {"partition": "batch", "time": "10", "mem": "400M", "python": sys.executable, **where}
    return kernels.read({"gpu": {"slurm": {name: told for name, told in given.items() if told}}})["gpu"]


def squeue(*flags: str) -> list[str]:
    said = subprocess.run(["timeout", "10", "squeue", "-h", "-o", "%i %T", *flags], capture_output=True, text=True)
    return said.stdout.split("\n")[:-1]


class Room:
    """One notebook's kernel on that cluster, and the daemon that asks it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="job"))
        self.loop = asyncio.new_event_loop()
        self.kernel: Kernel = self.begin(place())

    def provider(self) -> AnyPlace:
        return AnyPlace(str(self.folder / "kernel.json"), str(self.folder), {})

    def begin(self, at: kernels.Place) -> Kernel:
        return self.wait(self.provider().start(KernelPlace("", str(self.folder), dict(os.environ), at=at)))

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 30) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def again(self) -> Kernel | Death | None:
        self.kernel.detach()
        found = self.wait(self.provider().attach())
        self.kernel = found if found is not None and not isinstance(found, Death) else self.kernel
        return found

    def close(self) -> None:
        self.wait(self.kernel.shutdown())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def room(cluster: Lab) -> Iterator[Room]:
    made = Room()
    yield made
    made.close()


def text(done: Execution) -> str:
    return "".join(out["text"] for out in done.outputs if out["output_type"] == "stream")


def test_a_kernel_is_a_job_and_its_messages_are_encrypted(room: Room) -> None:
    done = room.run("import os\nx = 20\nprint(os.environ['SLURM_JOB_ID'], os.getcwd())")
    assert done.outcome is Outcome.OK and done.namespace.variables["x"]
    assert text(done) == f"{room.kernel.process.job} {room.folder}\n"
    assert room.kernel.channels.client.curve_publickey
    failed = room.run("print('before')\n1 / 0")
    assert failed.outcome is Outcome.ERROR and failed.fault is not None and failed.fault.line == 2
    assert squeue() == [f"{room.kernel.process.job} RUNNING"]
    for path in (room.folder / "stepper-jobs").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_deadline_interrupts_there(room: Room) -> None:
    done = room.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert done.outcome is Outcome.TIMEOUT and done.death is None and text(done) == "begun\n"


def test_the_next_daemon_finds_job_and_variables(room: Room) -> None:
    room.run("kept = 7")
    job = room.kernel.process.job
    kernel = room.again()
    assert kernel is not None and not isinstance(kernel, Death) and kernel.process.job == job
    assert room.wait(kernel.adopt()) is None and text(room.run("print(kept)")) == "7\n"


def test_scancel_from_outside_is_noticed_within_five_seconds(room: Room) -> None:
    async def cancelled() -> tuple[Execution, float]:
        running = asyncio.create_task(room.kernel.execute("import time; time.sleep(60)", 90, LIMITS))
        await asyncio.sleep(1)
        subprocess.run(["scancel", str(room.kernel.process.job)], check=True)
        began = time.monotonic()
        return await running, time.monotonic() - began

    done, took = room.wait(cancelled())
    assert done.outcome is Outcome.KERNEL_DIED and "CANCELLED" in done.death.how and took < 10
    room.kernel = room.begin(place())


def test_a_job_that_waits_is_told_and_gone_on_with(room: Room) -> None:
    other = AnyPlace(str(room.folder / "other.json"), str(room.folder), {})
    held = KernelPlace("", str(room.folder), {**os.environ}, at=place(extra=["--begin=now+6"], queue_seconds=1))
    with pytest.raises(KernelError) as queued:
        room.wait(other.start(held))
    assert "queued: PENDING (BeginTime)" in str(queued.value) and "the cell has NOT run" in str(queued.value)
    assert len(squeue()) == 2
    longer = KernelPlace("", str(room.folder), {**os.environ}, at=place(extra=["--begin=now+6"], queue_seconds=1))
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            kernel = room.wait(other.start(longer))
            break
        except KernelError:
            time.sleep(0.5)
    assert len(squeue()) == 2
    room.wait(kernel.shutdown())


def test_what_sbatch_refuses_is_said_in_its_words(room: Room) -> None:
    def fails(**where: Any) -> str:
        other = AnyPlace(str(room.folder / "wrong.json"), str(room.folder), {})
        with pytest.raises(KernelError) as failed:
            room.wait(other.start(KernelPlace("", str(room.folder), dict(os.environ), at=place(**where))))
        assert not (room.folder / "wrong.json").exists()
        return str(failed.value)

    assert "invalid partition" in fails(partition="nope")
    assert "Memory specification" in fails(mem="900G")
    assert "ended before the kernel began" in fails(python="/no_such_python")
    assert len(squeue()) == 1
    assert any("partition batch" in line for line in room.wait(look(place(), os.environ, "")))


def test_a_notebook_on_the_cluster(room: Room, tmp_path_factory: pytest.TempPathFactory) -> None:
    for project in scratch(tmp_path_factory.mktemp("slurm") / "repo"):
        late = place(extra=["--begin=now+8"], queue_seconds=1)
        project.config(f"kernels: {json.dumps({'gpu': place().definition, 'late': late.definition})}\n")
        project.stepper("trust")
        assert [each["reachable"] for each in project.json("kernels")] == [True, True, True]
        made = project.json("new", "Look there", "--kernel", "gpu")
        notebook = Notebook(project, project.folder / made["notebook"])
        _, answer = notebook.insert("x = 3\nx")
        assert "ran ok" in answer.text and "| 3" in answer.text, answer.text
        project.kill_daemon()
        assert "| 4" in notebook.insert("print(x + 1)")[1].text
        assert "(job " in project.json("status")["kernel"]["python"]
        made = project.json("new", "Wait there", "--kernel", "late")
        waits = Notebook(project, project.folder / made["notebook"])
        cell, answer = waits.insert("1 + 1")
        assert "queued: PENDING" in answer.text and "the cell has NOT run" in answer.text, answer.text
        time.sleep(9)
        assert "| 2" in waits.replace(cell, "1 + 1").text
        project.stepper("shutdown")
    assert squeue() == [f"{room.kernel.process.job} RUNNING"]


def test_shutdown_leaves_no_job(room: Room) -> None:
    room.wait(room.kernel.shutdown())
    end = time.monotonic() + 20
    while squeue() and time.monotonic() < end:
        time.sleep(0.2)
    assert squeue() == [] and room.again() is None
    assert [*(room.folder / "stepper-jobs").iterdir()] == []
    room.kernel = room.begin(place())
