"""Kernels of other languages, by their kernelspecs: the contract of `ports.Kernel` as far as no helper is needed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stepper.ground.errors import KernelError
from stepper.kernel.providers import AnyPlace
from stepper.policy import kernels
from stepper.policy.model import Death, Limits, Outcome
from stepper.policy.namespace import UNKNOWN
from stepper.session.ports import Execution, Kernel, KernelPlace
from tests import kernelspecs
from tests.conftest import some_nightly
from tests.npm import Unavailable, unavailable

LIMITS = Limits(max_memory_percent=100)


@dataclass(frozen=True)
class Language:
    """A kernelspec, and what its cells are in its language."""

    spec: str
    assign: str  # binds x to 20
    say: str  # x
    fails: str  # after it printed `before`
    error: tuple[str, str]  # its name, and what its message holds
    endless: str  # prints `begun` first
    slow: str  # prints `begun`, takes a second, prints `over`
    slow_fails: str
    die: str
    bears: bool = True  # an interrupt: what it holds is there afterwards


LANGUAGES = {
    "bash": Language(
        "bash", "x=20", "echo $x", "echo before; false", ("Error", "1"), "echo begun; while true; do sleep 0.1; done",
        "echo begun; sleep 1; echo over", "echo begun; sleep 1; false", "kill -9 $PPID; sleep 30",
    ),
    "r": Language(
        "ir", "x <- 20", "cat(x, '\\n')", "cat('before\\n'); stop('no such thing')", ("ERROR", "no such thing"),
        "cat('begun\\n'); flush.console(); while (TRUE) Sys.sleep(0.1)",
        "cat('begun\\n'); flush.console(); Sys.sleep(1); cat('over\\n')",
        "cat('begun\\n'); Sys.sleep(1); stop('late')", "tools::pskill(Sys.getpid(), 9); Sys.sleep(30)",
    ),
    "deno": Language(
        "deno", "let x = 20", "console.log(x)", "console.log('before'); throw new Error('no such thing')",
        ("Error", "no such thing"), "console.log('begun'); while (true) await new Promise(r => setTimeout(r, 100))",
        "console.log('begun'); await new Promise(r => setTimeout(r, 1000)); console.log('over')",
        "console.log('begun'); await new Promise(r => setTimeout(r, 1000)); throw new Error('late')",
        "Deno.kill(Deno.pid, 'SIGKILL'); await new Promise(r => setTimeout(r, 30000))", bears=False,
    ),
}  # fmt: skip


class Room:
    """A place for one kernel of a language, and the daemon that asks it: an event loop."""

    def __init__(self, language: Language) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lang"))
        environ = {**os.environ, "JUPYTER_PATH": kernelspecs.put(self.folder, language.spec, "bash")}
        definition = {"kernelspec": language.spec}
        at = kernels.read({"it": definition})["it"]
        self.place = KernelPlace(sys.executable, str(self.folder), environ, at=at)
        self.loop = asyncio.new_event_loop()
        self.former: list[Kernel] = []
        self.begin()

    def provider(self) -> AnyPlace:
        return AnyPlace(str(self.folder / "kernel.json"), str(self.folder), {})

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self) -> None:
        self.kernel: Kernel = self.wait(self.provider().start(self.place))

    def run(self, code: str, timeout: float = 30, request: str = "", scratch: bool = False) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS, request, scratch))

    def alongside(self, code: str, act: Callable[[], Coroutine[Any, Any, Any]]) -> Execution:
        async def both() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, 30, LIMITS))
            while not (self.kernel.coming and self.kernel.coming.outputs()):
                await asyncio.sleep(0.01)
            await act()
            return await running

        return self.wait(both())

    def left(self, code: str, request: str, gone_seconds: float = 0) -> Kernel:
        """The kernel as the next daemon finds it, where the last one went away within a run."""

        async def lost() -> None:
            running = asyncio.create_task(self.kernel.execute(code, 30, LIMITS, request))
            while not (self.kernel.coming and self.kernel.coming.outputs()):
                await asyncio.sleep(0.01)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        self.wait(lost())
        self.former.append(self.kernel)
        self.kernel.detach()
        time.sleep(gone_seconds)
        found = self.wait(self.provider().attach())
        assert found is not None and not isinstance(found, Death)
        self.kernel = found
        return found

    def close(self) -> None:
        for kernel in (self.kernel, *self.former):
            self.wait(kernel.shutdown())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module", params=some_nightly(LANGUAGES, "bash", "r"))
def shared(request: pytest.FixtureRequest) -> Iterator[tuple[Room, Language]]:
    try:
        room = Room(LANGUAGES[request.param])
    except Unavailable as why:
        unavailable(why)
    yield room, LANGUAGES[request.param]
    room.close()


@pytest.fixture
def room(shared: tuple[Room, Language]) -> Room:
    if shared[0].wait(shared[0].kernel.death()) is not None:
        shared[0].begin()
    return shared[0]


@pytest.fixture
def language(shared: tuple[Room, Language]) -> Language:
    return shared[1]


def text(done: Execution) -> str:
    return "".join(out["text"] for out in done.outputs if out["output_type"] == "stream")


def test_cells_run_and_keep_their_state(room: Room, language: Language) -> None:
    first = room.run(language.assign)
    assert first.outcome is Outcome.OK and first.fault is None and first.namespace == UNKNOWN and first.told == {}
    second = room.run(language.say)
    assert text(second).strip() == "20" and second.execution_count == (first.execution_count or 0) + 1
    assert room.wait(room.kernel.namespace()) == UNKNOWN and room.kernel.models() is None
    assert room.kernel.about().pid and room.kernel.memory() > 1e6


def test_an_error_is_a_fault_without_what_only_the_helper_tells(room: Room, language: Language) -> None:
    done = room.run(language.fails)
    assert done.outcome is Outcome.ERROR and text(done).strip() == "before"
    assert done.fault is not None and done.fault.ename == language.error[0] and language.error[1] in done.fault.evalue
    assert done.fault.frames == () and done.fault.mro == ()


def test_a_deadline_and_a_person_interrupt_and_the_state_is_kept(room: Room, language: Language) -> None:
    room.run(language.assign)
    done = room.run(language.endless, timeout=0.5)
    assert text(done).startswith("begun")
    if not language.bears:  # SIGINT ends such a kernel, and the death says of what
        assert done.outcome is Outcome.KERNEL_DIED and "SIGINT" in done.death.how, done
        return
    assert done.outcome is Outcome.TIMEOUT and done.death is None
    done = room.alongside(language.endless, lambda: room.kernel.interrupt("person"))
    assert done.outcome is Outcome.CANCELLED and done.death is None
    assert text(room.run(language.say)).strip() == "20"


def test_a_kernel_that_dies_in_a_cell(room: Room, language: Language) -> None:
    done = room.run(language.die)
    assert done.outcome is Outcome.KERNEL_DIED and done.death is not None and "SIGKILL" in done.death.how


def test_the_next_daemon_finds_it_with_its_state(room: Room, language: Language) -> None:
    room.run(language.assign)
    before = room.kernel.id
    room.former.append(room.kernel)  # its process is this one's child
    room.kernel.detach()
    found = room.wait(room.provider().attach())
    assert found is not None and not isinstance(found, Death) and found.id == before
    room.kernel = found
    assert room.wait(found.adopt()) is None and room.wait(found.missed("b" * 32)) == []
    assert text(room.run(language.say)).strip() == "20"


def test_a_run_that_lost_its_daemon_is_waited_for_and_its_end_known(room: Room, language: Language) -> None:
    kernel = room.left(language.slow, "c" * 32)
    done = room.wait(kernel.recall("c" * 32, 20, LIMITS))
    assert done.outcome is Outcome.OK and done.fault is None and text(done).strip() == "over"
    assert done.notes == ["what it printed while no daemon was there is missing: this kernel does not remember it"]
    kernel = room.left(language.slow_fails, "d" * 32)
    done = room.wait(kernel.recall("d" * 32, 20, LIMITS))
    assert done.outcome is Outcome.ERROR and done.fault.ename == language.error[0]


def test_of_one_that_ended_meanwhile_nothing_is_claimed(room: Room, language: Language) -> None:
    kernel = room.left(language.slow, "e" * 32, gone_seconds=1.5)
    done = room.wait(kernel.recall("e" * 32, 20, LIMITS))
    assert done.outcome is Outcome.ERROR and done.fault.ename == "NobodyHeard"
    assert text(done) == "" and "is not known" in done.fault.evalue


def test_a_kernelspec_that_is_not_there_is_named(room: Room) -> None:
    at = kernels.read({"it": {"kernelspec": "cobol"}})["it"]
    place = KernelPlace(room.place.python, room.place.cwd, room.place.environ, at=at)
    with pytest.raises(KernelError, match=r"'cobol' is not installed; installed: .*bash"):
        room.wait(AnyPlace(str(room.folder / "other.json"), str(room.folder), {}).start(place))
