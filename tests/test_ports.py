"""What a session may ask of a kernel and its provider: one contract, which the real one and the fake one keep."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.kernel.providers import PLACES
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.fake import FakeKernels
from stepper.session.ports import Execution, Kernel, KernelPlace, KernelProvider

# What the fake kernel's cells find, defined where a real one runs.
PRELUDE = """
import os, signal, threading, time
def die(how='SIGKILL'):
    time.sleep(0.3)  # what was printed is on its way by then
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
def late(text): threading.Timer(0.3, print, (text,), {'end': ''}).start()
def update_display(data, raw, display_id): display(data, raw=raw, display_id=display_id, update=True)
"""
LIMITS = Limits(max_memory_percent=100)


class Room:
    """A place for one notebook's kernel, and the daemon that asks it: an event loop."""

    def __init__(self, real: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="room"))  # short: a socket's path has at most 107 bytes
        self.real, self.left = real, dict[str, Any]()
        self.loop = asyncio.new_event_loop()
        self.place = KernelPlace(sys.executable, str(self.folder), dict(os.environ))
        self.former: list[Kernel] = []
        self.begin()

    def provider(self) -> KernelProvider:
        """The provider, as a daemon that has just begun has it."""
        record = str(self.folder / "kernel.json")
        return PLACES["local"](record, str(self.folder), {}) if self.real else FakeKernels(self.left, record)

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self) -> Kernel:
        self.kernel: Kernel = self.wait(self.provider().start(self.place))
        if self.real:
            assert self.run(PRELUDE).outcome is Outcome.OK
        return self.kernel

    def again(self) -> Kernel | Death | None:
        """Leave the kernel, and find it as the next daemon does."""
        self.former.append(self.kernel)
        self.kernel.detach()
        found = self.wait(self.provider().attach())
        self.kernel = found if found is not None and not isinstance(found, Death) else self.kernel
        return found

    def run(self, code: str, timeout: float = 30, request: str = "", scratch: bool = False) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS, request, scratch))

    def alongside(self, code: str, act: Callable[[], Coroutine[Any, Any, Any]]) -> Execution:
        """Run a cell, and do something as soon as it runs."""

        async def both() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, 30, LIMITS))
            while not self.kernel.busy:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            await act()
            return await running

        return self.wait(both())

    def close(self) -> None:
        for kernel in (self.kernel, *self.former):  # their processes are this one's children
            self.wait(kernel.shutdown())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module", params=["local", "fake"])
def shared(request: pytest.FixtureRequest) -> Iterator[Room]:
    room = Room(request.param == "local")
    yield room
    room.close()


@pytest.fixture
def room(shared: Room) -> Room:
    """The kernel of all of them, begun anew where one has ended it."""
    if shared.wait(shared.kernel.death()) is not None:
        shared.begin()
    shared.kernel.hears = lambda message, late: False
    return shared


def until(ready: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := ready()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found
    return found


def text(done: Execution) -> str:
    return "".join(out["text"] for out in done.outputs if out["output_type"] == "stream")


def test_a_cell_that_runs_ok_has_its_outputs_and_a_number(room: Room) -> None:
    first = room.run("x = 20\nprint('said')\nx + 1")
    assert first.outcome is Outcome.OK and first.fault is None and first.death is None
    said, result = first.outputs
    assert said == {"output_type": "stream", "name": "stdout", "text": "said\n"}
    assert result["output_type"] == "execute_result" and result["data"]["text/plain"] == "21"
    assert result["execution_count"] == first.execution_count
    second = room.run("print(x)")
    assert text(second) == "20\n" and second.execution_count == first.execution_count + 1
    assert second.next_inputs == [] and second.captured == [] and second.notes == []


def test_a_look_beside_the_notebook_takes_no_number(room: Room) -> None:
    first = room.run("1")
    assert text(room.run("print(3)", scratch=True)) == "3\n"
    assert room.run("1").execution_count == first.execution_count + 1


def test_an_error_is_a_fault_with_its_line_and_frames(room: Room) -> None:
    room.run("def divide(by):\n    return 1 / by")
    done = room.run("print('before')\n\ndivide(0)\nprint('after')")
    assert done.outcome is Outcome.ERROR and text(done) == "before\n"
    assert done.outputs[-1]["output_type"] == "error" and done.outputs[-1]["ename"] == "ZeroDivisionError"
    fault = done.fault
    assert fault is not None and (fault.ename, fault.evalue) == ("ZeroDivisionError", "division by zero")
    assert fault.mro[:2] == ("ZeroDivisionError", "ArithmeticError") and fault.line == 3
    frames = [(frame.cell, frame.line, frame.function) for frame in fault.frames]
    assert frames == [(done.execution_count, 3, "<module>"), (done.execution_count - 1, 2, "divide")]
    assert "division by zero" in fault.traceback


def test_broken_source_is_a_fault_of_its_line(room: Room) -> None:
    done = room.run("x = 1\ny = = 2")
    assert done.outcome is Outcome.ERROR and done.fault is not None
    assert done.fault.mro[0] == "SyntaxError" and done.fault.line == 2


def test_displays_are_known_by_their_ids_and_updated(room: Room) -> None:
    heard: list[tuple[str, bool]] = []
    room.kernel.hears = lambda message, late: bool(heard.append((message["msg_type"], late))) or True
    done = room.run("print(1)\ndisplay({'text/plain': 'a'}, raw=True, display_id='mark')")
    assert done.displays == {"mark": [1]} and done.outputs[1]["data"] == {"text/plain": "a"}
    done = room.run(
        "display({'text/plain': 'b'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'c'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'd'}, raw=True, display_id='mark')"
    )
    assert [out["data"] for out in done.outputs] == [{"text/plain": "c"}]  # the other one is another cell's
    assert heard == [("display_data", False)] * 2 + [("update_display_data", False)] * 2


def test_a_deadline_interrupts_and_keeps_the_state(room: Room) -> None:
    room.run("kept = 5")
    done = room.run("import time\nprint('begun')\nwhile True:\n    time.sleep(0.01)", timeout=0.3)
    assert done.outcome is Outcome.TIMEOUT and done.death is None and text(done) == "begun\n"
    assert done.fault is not None and done.fault.line in (3, 4)
    assert text(room.run("print(kept)")) == "5\n"


def test_a_person_and_a_client_that_is_gone_cancel(room: Room) -> None:
    for reason in ("person", "client gone"):
        done = room.alongside(
            "import time\nwhile True:\n    time.sleep(0.01)", lambda why=reason: room.kernel.interrupt(why)
        )
        assert done.outcome is Outcome.CANCELLED and done.death is None
    assert not room.kernel.busy
    room.wait(room.kernel.interrupt("person"))  # nothing runs: nothing happens
    assert text(room.run("print(1)")) == "1\n"


def test_a_cell_may_catch_its_interrupt(room: Room) -> None:
    source = (
        "import time\ntry:\n    while True:\n        time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('caught')"
    )
    done = room.run(source, timeout=0.3)
    assert done.outcome is Outcome.TIMEOUT and text(done) == "caught\n"
    assert done.fault is not None and done.fault.ename == "" and done.fault.line in (3, 4)  # where it was then


def test_a_kernel_that_dies_in_a_cell(room: Room) -> None:
    done = room.run("print('last')\ndie('SIGKILL')")
    assert done.outcome is Outcome.KERNEL_DIED and done.death is not None and "SIGKILL" in done.death.how
    assert text(done) == "last\n"
    assert room.wait(room.kernel.death()) is not None


def test_exit_ends_the_kernel(room: Room) -> None:
    done = room.run("exit()")
    assert done.death == Death("ended by exit() or quit()", "", "SystemExit") and done.outcome is Outcome.KERNEL_DIED
    assert room.wait(room.kernel.death()) is not None


def test_it_tells_what_it_is_and_what_it_holds(room: Room) -> None:
    assert room.kernel.about().python == sys.executable
    assert isinstance(room.kernel.memory(), int) and room.kernel.id
    done = room.run("import math as m\nrows = [1, 2]\ndef area(r, scale=1): ...\nclass Shape: ...")
    for known in (done.namespace, room.wait(room.kernel.namespace())):
        assert known.modules["m"] == "math" and known.functions["area"] == "(r, scale=1)"
        assert known.variables["rows"].len == 2 and "Shape" in known.classes
        assert {"rows", "m", "print"} <= set(known.names)
    assert room.kernel.models() is None


PRINTS = r"""
import sys, time
print('epoch 1 loss 0.5', end='')
sys.stdout.flush()
time.sleep(0.5)
print('0\repoch 2 loss 0.4\repoch 3 lo', end='', file=sys.stdout)
print('loss is', file=sys.stderr)
time.sleep(0.5)
print('ss nan\nepoch 4 loss nan')
time.sleep(0.5)
"""


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("loss.*nan", "epoch 3 loss nan"), ("^loss", "loss is"), ("nan$", "epoch 3 loss nan"), ("inf", "")],
)
def test_the_first_line_that_matches_its_wake_pattern_is_told_while_it_runs(
    room: Room, pattern: str, line: str
) -> None:
    seen: list[str] = []

    async def watched() -> Execution:
        running = asyncio.create_task(room.kernel.execute(PRINTS, 30, LIMITS, wake=pattern))
        while not running.done():
            if room.kernel.coming and room.kernel.coming.matched not in seen:
                seen.append(room.kernel.coming.matched)
            await asyncio.sleep(0.02)
        return await running

    assert room.wait(watched()).outcome is Outcome.OK
    assert seen == ["", *filter(None, [line])] and room.kernel.coming is None


def test_what_comes_after_a_run_is_heard_as_late(room: Room) -> None:
    heard: list[tuple[str, str, bool]] = []

    def hears(message: dict[str, Any], late: bool) -> bool:
        if message["msg_type"] == "stream":
            heard.append((message["content"]["text"], message["parent_header"]["msg_id"], late))
        return True

    room.kernel.hears = hears
    room.run("late('afterwards')", request="a" * 32)
    until(lambda: room.kernel.listen() or heard)
    assert heard == [("afterwards", "a" * 32, True)]


def test_the_next_daemon_finds_the_kernel_and_what_it_missed(room: Room) -> None:
    before = room.kernel.id
    room.run("kept = 7\nlate('nobody was there')", request="b" * 32)
    kernel = room.again()
    time.sleep(0.6)
    assert kernel is not None and not isinstance(kernel, Death) and kernel.id == before and not kernel.busy
    assert room.wait(kernel.adopt()) is None
    missed = room.wait(kernel.missed("b" * 32))
    assert [message["content"]["text"] for message in missed if message["msg_type"] == "stream"] == ["nobody was there"]
    assert text(room.run("print(kept)")) == "7\n"


def left(room: Room, code: str, request: str) -> Any:
    """The kernel as the next daemon finds it, where the last one went away within a run."""

    async def lost() -> None:
        running = asyncio.create_task(room.kernel.execute(code, 30, LIMITS, request))
        await asyncio.sleep(0.4)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    room.wait(lost())
    return room.again()


def test_a_run_that_lost_its_daemon_is_recalled(room: Room) -> None:
    kernel = left(room, "import time\nprint('begun')\ntime.sleep(0.8)\nprint('over')\n'result'", "c" * 32)
    assert kernel is not None and not isinstance(kernel, Death)
    assert room.wait(kernel.recall("d" * 32, 20, LIMITS)) is None  # that one never began
    done = room.wait(kernel.recall("c" * 32, 20, LIMITS))
    assert done.outcome is Outcome.OK and text(done) == "begun\nover\n"
    assert done.outputs[-1]["data"]["text/plain"] == "'result'"


def test_a_run_that_lost_its_daemon_is_seen_from_then_on(room: Room) -> None:
    source = "import time\nprint('loss nan')\nfor n in range(20):\n    print('loss', n)\n    time.sleep(0.1)\nprint('loss nan', n)\ntime.sleep(0.8)"
    kernel = left(room, source, "f" * 32)
    assert kernel is not None and not isinstance(kernel, Death)
    lines: list[str] = []
    matched: list[str] = []

    async def watched() -> Any:
        recalled = asyncio.create_task(kernel.recall("f" * 32, 20, LIMITS, "loss nan"))
        while not recalled.done():
            if kernel.coming:
                lines.append(kernel.coming.last_line())
                matched.append(kernel.coming.matched)
            await asyncio.sleep(0.02)
        return await recalled

    done = room.wait(watched())
    assert text(done) == "loss nan\n" + "".join(f"loss {n}\n" for n in range(20)) + "loss nan 19\n"
    numbers = [int(line.removeprefix("loss ")) for line in dict.fromkeys(lines) if line[5:].isdigit()]
    assert len(numbers) > 2 and numbers == sorted(numbers)
    assert matched[0] == "" and matched[-1] == "loss nan 19" and "loss nan" not in matched
    assert kernel.coming is None


def test_what_runs_still_is_interrupted_where_nobody_asked_for_it(room: Room) -> None:
    kernel = left(room, "import time\nwhile True:\n    time.sleep(0.01)", "e" * 32)
    assert kernel is not None and not isinstance(kernel, Death)
    assert room.wait(kernel.adopt()) is None
    assert text(room.run("print('free')")) == "free\n"


def test_a_kernel_that_was_ended_is_not_found_again(room: Room) -> None:
    room.wait(room.kernel.shutdown())
    assert room.wait(room.kernel.death()) is not None
    assert room.again() is None
