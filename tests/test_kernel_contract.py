"""One contract for the kernels of all backends, including the fake kernel.

`tests/backend_cases.py` lists the capabilities of each backend. In the daytime run, a
test runs only with backends that can differ in it.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client import BlockingKernelClient

from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Limits, OmittedOutput, Outcome
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE
from stepper.session.protocols import (
    ExternalExecution,
    Kernel,
    KernelLauncher,
    LaunchConfig,
)
from tests import backend_cases
from tests.backend_cases import Backend, Cells, contract
from tests.fake_kernel import FakeKernelLauncher

# What the fake kernel's cells find, defined where a real one runs.
PRELUDE = """
import os, signal, threading, time
def die(how='SIGKILL'):
    time.sleep(0.5)  # what was printed is on its way by then
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
def late(text): threading.Timer(0.3, print, (text,), {'end': ''}).start()
def update_display(data, raw, display_id): display(data, raw=raw, display_id=display_id, update=True)
"""
LIMITS = Limits(max_memory_percent=100)
GAP = re.compile(
    r"\n… ([\d,]+) characters left out by stepper \(max_output_bytes\) …\n"
)


class Room:
    """A place for one notebook's kernel, and the daemon that asks it: an event loop."""

    def __init__(self, at: Backend, folder: Path) -> None:
        self.folder, self.at = folder, at
        self.cells, self.left = self.at.cells, dict[str, Any]()
        self.loop = asyncio.new_event_loop()
        self.place = LaunchConfig(
            sys.executable, str(self.folder), dict(os.environ), backend=self.at.at
        )
        self.former: list[Kernel] = []
        self.begin()

    def provider(self) -> KernelLauncher:
        """The provider, as a daemon that has just begun has it."""
        record = str(self.folder / "kernel.json")
        return (
            FakeKernelLauncher(self.left, record)
            if self.at.name == "fake"
            else NotebookLauncher(record, str(self.folder), {})
        )

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def begin(self) -> Kernel:
        self.kernel: Kernel = self.wait(self.provider().start(self.place))
        if self.at.name != "fake" and "helper" not in self.at.lacks:
            assert self.run(PRELUDE).outcome is Outcome.OK
        return self.kernel

    def detach(self) -> None:
        async def detached() -> None:  # a tornado socket must be closed in its own loop
            self.kernel.detach()

        self.wait(detached())

    def again(self) -> Kernel | Death | None:
        """Leave the kernel, and find it as the next daemon does."""
        self.former.append(self.kernel)
        self.detach()
        kernel = self.wait(self.provider().attach())
        self.kernel = (
            kernel
            if kernel is not None and not isinstance(kernel, Death)
            else self.kernel
        )
        return kernel

    def found(self) -> Kernel:
        kernel = self.again()
        assert kernel is not None and not isinstance(kernel, Death), kernel
        return kernel

    def run(
        self, code: str, timeout: float = 30, request: str = "", scratch: bool = False
    ) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS, request, scratch))

    def alongside(
        self, code: str, act: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Execution:
        """Run a cell, and do something as soon as it has shown something."""

        async def both() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, 30, LIMITS))
            await self.shows()
            await act()
            return await running

        return self.wait(both())

    async def shows(self) -> None:
        end = time.monotonic() + 20
        while (
            not (
                self.kernel.partial_output and self.kernel.partial_output.get_outputs()
            )
            and time.monotonic() < end
        ):
            await asyncio.sleep(0.01)

    def lost(self, code: str, request: str, gone_seconds: float = 0) -> Kernel:
        """The kernel as the next daemon finds it, where the last one went away within a run."""

        async def lost() -> None:
            running = asyncio.create_task(
                self.kernel.execute(code, 30, LIMITS, request)
            )
            await self.shows()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        self.wait(lost())
        self.former.append(self.kernel)
        self.detach()
        time.sleep(gone_seconds)
        return self.found()

    def close(self) -> None:
        for kernel in (
            self.kernel,
            *self.former,
        ):  # their processes are this one's children
            self.wait(kernel.shutdown())
        self.wait(asyncio.sleep(0.1))  # its sockets are not closed yet
        self.loop.close()


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest) -> Iterator[Room]:
    folder = Path(
        tempfile.mkdtemp(prefix="room")
    )  # short: a socket's path has at most 107 bytes
    with backend_cases.start_backend(request.param, folder) as at:
        room = Room(at, folder)
        yield room
        room.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def room(place: Room) -> Room:
    """The kernel of all tests in a place, begun anew where one has ended it."""
    if place.wait(place.kernel.check_death()) is not None:
        place.begin()
    place.kernel.on_display = lambda message, late: False
    return place


@pytest.fixture
def cells(place: Room) -> Cells:
    return place.cells


def wait_until_ready(ready: Callable[[], Any], seconds: float = 20) -> Any:
    end = time.monotonic() + seconds
    while not (found := ready()) and time.monotonic() < end:
        time.sleep(0.05)
    assert found
    return found


def text(result: Execution, name: str = "") -> str:
    streams = [out for out in result.outputs if out["output_type"] == "stream"]
    return "".join(out["text"] for out in streams if name in ("", out["name"]))


@contract("values", by_day=("r",))
def test_successful_cell_has_outputs_and_execution_count(
    room: Room, cells: Cells
) -> None:
    before = room.run(cells.assign)
    assert (
        before.outcome is Outcome.OK
        and before.outputs == []
        and before.fault is None
        and before.death is None
    )
    first = room.run(cells.value)
    said, result = first.outputs
    assert said == {"output_type": "stream", "name": "stdout", "text": "said\n"}
    assert result["output_type"] in (
        "execute_result",
        "display_data",
    )  # R displays its values
    assert result["data"]["text/plain"] == cells.shows
    assert result.get("execution_count", first.execution_count) == first.execution_count
    second = room.run(cells.say)
    assert (
        text(second) == "20\n" and second.execution_count == first.execution_count + 1
    )
    assert (
        second.next_inputs == [] and second.widget_outputs == [] and second.notes == []
    )


@contract("uncounted looks", by_day=("r",))
def test_scratch_execution_does_not_change_execution_count(
    room: Room, cells: Cells
) -> None:
    first = room.run(cells.assign)
    assert text(room.run(cells.say, scratch=True)) == "20\n"
    assert room.run(cells.assign).execution_count == first.execution_count + 1


@contract("two streams", by_day=("r",))
def test_stdout_and_stderr_keep_their_order(room: Room, cells: Cells) -> None:
    result = room.run(cells.both)
    assert [(out["name"], out["text"].rstrip()) for out in result.outputs] == [
        ("stdout", "out"),
        ("stderr", "err"),
        ("stdout", "out"),
    ]


@contract(by_day=("r",))
def test_error_keeps_earlier_outputs(room: Room, cells: Cells) -> None:
    result = room.run(cells.fails(1))
    assert (
        result.outcome is Outcome.ERROR
        and text(result) == "before\n"
        and result.death is None
    )
    assert (
        result.fault is not None
        and result.fault.ename == cells.error[0]
        and cells.error[1] in result.fault.evalue
    )
    assert result.outputs[-1]["output_type"] == "error"
    assert room.run(cells.assign).outcome is Outcome.OK


@contract(lacks="helper", by_day=("r",))
def test_kernel_without_helper_reports_no_helper_data(room: Room, cells: Cells) -> None:
    result = room.run(cells.assign)
    assert (
        result.namespace
        == UNKNOWN_NAMESPACE
        == room.wait(room.kernel.fetch_namespace())
        and result.diagnosis_data == {}
    )
    assert (
        room.kernel.take_widget_state() is None
        and room.wait(room.kernel.fetch_missed_messages("b" * 32)) == []
    )
    fault = room.run(cells.fails(1)).fault
    assert (
        fault is not None
        and fault.frames == ()
        and fault.mro == ()
        and fault.line is None
    )


@contract("helper")
def test_error_has_line_and_frames(room: Room) -> None:
    room.run("def divide(by):\n    return 1 / by")
    result = room.run("print('before')\n\ndivide(0)\nprint('after')")
    assert result.outcome is Outcome.ERROR and text(result) == "before\n"
    fault = result.fault
    assert fault is not None and (fault.ename, fault.evalue) == (
        "ZeroDivisionError",
        "division by zero",
    )
    assert fault.mro[:2] == ("ZeroDivisionError", "ArithmeticError") and fault.line == 3
    frames = [(frame.cell, frame.line, frame.function) for frame in fault.frames]
    assert frames == [
        (result.execution_count, 3, "<module>"),
        (result.execution_count - 1, 2, "divide"),
    ]
    assert "division by zero" in fault.traceback


@contract("helper")
def test_syntax_error_has_its_line(room: Room) -> None:
    result = room.run("x = 1\ny = = 2")
    assert result.outcome is Outcome.ERROR and result.fault is not None
    assert result.fault.mro[0] == "SyntaxError" and result.fault.line == 2


@contract("bounds")
def test_outputs_over_the_limit_are_counted(room: Room, cells: Cells) -> None:
    limits = Limits(max_memory_percent=100, max_output_bytes=4000)
    result = room.wait(room.kernel.execute(cells.many, 60, limits))
    assert result.outcome is Outcome.OK
    message, whole = text(result), "".join(f"line {n}\n" for n in range(1, 2001))
    (gap,) = GAP.findall(message)
    head, _, tail = GAP.sub("\0", message).partition("\0")
    assert whole.startswith(head) and whole.endswith(tail) and len(message) < 4000
    assert result.left_out == OmittedOutput(int(gap.replace(",", ""))) and len(
        head
    ) + len(tail) + result.left_out[0] == len(whole)


@contract("helper")
def test_displays_are_updated_by_id(room: Room) -> None:
    events: list[tuple[str, bool]] = []
    room.kernel.on_display = lambda message, late: (
        bool(events.append((message["msg_type"], late))) or True
    )
    result = room.run(
        "print(1)\ndisplay({'text/plain': 'a'}, raw=True, display_id='mark')"
    )
    assert result.displays == {"mark": [1]} and result.outputs[1]["data"] == {
        "text/plain": "a"
    }
    result = room.run(
        "display({'text/plain': 'b'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'c'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'd'}, raw=True, display_id='mark')"
    )
    assert [out["data"] for out in result.outputs] == [
        {"text/plain": "c"}
    ]  # the other one is another cell's
    assert (
        events == [("display_data", False)] * 2 + [("update_display_data", False)] * 2
    )


@contract("widgets")
def test_widget_state_includes_binary_buffers(room: Room) -> None:
    result = room.run(
        "from comm import create_comm\n"
        "state = {'_model_module': 'it', '_model_name': 'It', 'value': 3, 'pixels': None}\n"
        "bar = create_comm(target_name='jupyter.widget', data={'state': state, 'buffer_paths': [['pixels']]},\n"
        "                  metadata={'version': '2.1.0'}, buffers=[bytes(range(256))])\n"
        "bar.send({'method': 'update', 'state': {'value': 4}, 'buffer_paths': []})"
    )
    assert result.outcome is Outcome.OK, result.fault
    assert result.widgets is not None
    (state,) = result.widgets.states.values()
    assert state["state"]["value"] == 4 and state["model_name"] == "It"
    (buffer,) = state["buffers"]
    assert buffer["path"] == ["pixels"] and buffer["data"].startswith("AAECAwQFBgcI")


@contract(by_day=("r",))
def test_timeout_interrupts_and_keeps_the_state(room: Room, cells: Cells) -> None:
    room.run(cells.assign)
    result = room.run(cells.endless, timeout=0.5)
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.death is None
        and text(result).rstrip() == "begun"
    )
    assert text(room.run(cells.say)) == "20\n"


@contract("helper")
def test_timeout_reports_the_running_line(room: Room) -> None:
    result = room.run(
        "import time\nprint('begun')\nwhile True:\n    time.sleep(0.01)", timeout=0.3
    )
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.fault is not None
        and result.fault.line in (3, 4)
    )


@contract()
def test_user_interrupt_and_client_disconnect_cancel(room: Room, cells: Cells) -> None:
    for reason in ("user", "client disconnected"):
        result = room.alongside(
            cells.endless, lambda why=reason: room.kernel.interrupt(why)
        )
        assert result.outcome is Outcome.CANCELLED and result.death is None
    assert not room.kernel.is_busy
    room.wait(
        room.kernel.interrupt("user")
    )  # no cell is running, so the interrupt has no effect
    room.run(cells.assign)
    assert text(room.run(cells.say)) == "20\n"


CATCHES = "import time\ntry:\n    while True:\n        time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('caught')"


@contract("helper")
def test_cell_can_catch_its_interrupt(room: Room) -> None:
    result = room.run(CATCHES, timeout=0.3)
    assert (
        result.outcome is Outcome.TIMEOUT
        and text(result) == "caught\n"
        and result.death is None
    )


@contract("helper", "watched")
def test_line_is_known_for_cell_that_catches_its_interrupt(room: Room) -> None:
    result = room.run(CATCHES, timeout=0.3)
    assert (
        result.fault is not None
        and result.fault.ename == ""
        and result.fault.line in (3, 4)
    )


@pytest.mark.nightly_after(3)
@contract(by_day=("r",))
def test_kernel_dies_during_a_cell(room: Room, cells: Cells) -> None:
    result = room.run("print('last')\ndie()" if room.at.name == "fake" else cells.dies)
    assert result.outcome is Outcome.KERNEL_DIED and result.death is not None
    assert re.search(room.at.died, result.death.reason), result.death
    assert text(result) == "last\n"
    assert room.wait(room.kernel.check_death()) is not None


@contract("helper")
def test_exit_is_reported_as_kernel_death(room: Room) -> None:
    result = room.run("exit()")
    assert result.death is not None and result.outcome is Outcome.KERNEL_DIED
    assert (result.death.reason, result.death.cause) == (
        "ended by exit() or quit()",
        "SystemExit",
    )
    assert room.wait(room.kernel.check_death()) is not None


@contract("helper", "watched")
def test_kernel_describes_itself(room: Room) -> None:
    about = room.kernel.describe()
    assert about.python == sys.executable and not about.limitation
    assert isinstance(room.kernel.measure_memory(), int)


@contract(lacks="watched", by_day=("slurm",))
def test_backend_reports_unsupported_features(room: Room) -> None:
    about = room.kernel.describe()
    assert (
        "memory" in about.limitation
        and about.pid is None
        and room.kernel.measure_memory() == 0
    )


@contract("helper")
def test_kernel_lists_its_namespace(room: Room) -> None:
    assert room.kernel.id
    result = room.run(
        "import math as m\nrows = [1, 2]\ndef area(r, scale=1): ...\nclass Shape: ..."
    )
    for known in (result.namespace, room.wait(room.kernel.fetch_namespace())):
        assert (
            known.modules["m"] == "math" and known.functions["area"] == "(r, scale=1)"
        )
        assert known.variables["rows"].len == 2 and "Shape" in known.classes
        assert {"rows", "m", "print"} <= set(known.names)
    assert room.kernel.take_widget_state() is None


@contract("connection file", by_day=("ssh",))
def test_external_client_connects_by_connection_file(room: Room, cells: Cells) -> None:
    file = room.kernel.ensure_connection_file()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert room.kernel.id[:8] in os.path.basename(file)
    events = list[ExternalExecution]()
    room.kernel.external_executions.on_finished = events.append

    async def listen() -> bool:
        room.kernel.receive_pending()
        return bool(events)

    client = BlockingKernelClient()
    client.load_connection_file(file)
    client.start_channels(stdin=False)
    try:
        client.wait_for_ready(30)
        request = client.execute(cells.assign)
        wait_until_ready(lambda: room.wait(listen()))
        assert client.get_shell_msg(timeout=30)["parent_header"]["msg_id"] == request
    finally:
        client.stop_channels()
    (done,) = events
    assert (done.code, done.error, done.is_silent) == (cells.assign, "", False)
    assert "helper" in room.at.lacks or "x" in done.namespace.variables
    assert not room.kernel.external_executions.running_since
    assert "20" in text(room.run(cells.say))


@contract(by_day=("r",))
def test_output_and_matching_lines_are_reported_during_the_run(
    room: Room, cells: Cells
) -> None:
    observed: list[tuple[str, str]] = []

    async def watched() -> Execution:
        running = asyncio.create_task(
            room.kernel.execute(cells.epochs, 30, LIMITS, wake="loss.*nan")
        )
        while not running.done():
            if coming := room.kernel.partial_output:
                observed.append((coming.get_last_line(), coming.matched_line))
            await asyncio.sleep(0.02)
        return await running

    result = room.wait(watched())
    assert (
        result.outcome is Outcome.OK
        and text(result) == "loss 3\nloss 2\nloss 1\nloss nan\n"
    )
    assert room.kernel.partial_output is None
    messages = [*dict.fromkeys(observed)]
    assert ("loss 2", "") in messages and messages[-1] == ("loss nan", "loss nan")
    assert not any(matched for _, matched in messages[:-1])


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


@pytest.mark.nightly_after(2)
@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("loss.*nan", "epoch 3 loss nan"),
        ("^loss", "loss is"),
        ("nan$", "epoch 3 loss nan"),
        ("inf", ""),
    ],
)
@contract("helper")
def test_matching_line_can_be_a_progress_bar(
    room: Room, pattern: str, line: str
) -> None:
    observed: list[str] = []

    async def watched() -> Execution:
        running = asyncio.create_task(
            room.kernel.execute(PRINTS, 30, LIMITS, wake=pattern)
        )
        while not running.done():
            if (
                room.kernel.partial_output
                and room.kernel.partial_output.matched_line not in observed
            ):
                observed.append(room.kernel.partial_output.matched_line)
            await asyncio.sleep(0.02)
        return await running

    assert room.wait(watched()).outcome is Outcome.OK
    assert (
        observed == ["", *filter(None, [line])] and room.kernel.partial_output is None
    )


@contract("helper")
def test_output_after_the_run_is_late_output(room: Room) -> None:
    events: list[tuple[str, str, bool]] = []

    def hears(message: dict[str, Any], late: bool) -> bool:
        if message["msg_type"] == "stream":
            events.append(
                (message["content"]["text"], message["parent_header"]["msg_id"], late)
            )
        return True

    room.kernel.on_display = hears
    room.run("late('afterwards')", request="a" * 32)

    def listened() -> list[tuple[str, str, bool]]:
        room.wait(asyncio.sleep(0))  # a websocket is read by the loop
        room.kernel.receive_pending()
        return events

    assert wait_until_ready(listened) == [("afterwards", "a" * 32, True)]


@contract(by_day=("r",))
def test_new_daemon_finds_the_kernel_with_its_state(room: Room, cells: Cells) -> None:
    before = room.kernel.id
    room.run(cells.assign)
    kernel = room.found()
    assert kernel.id == before and not kernel.is_busy
    assert room.wait(kernel.take_over()) is None
    assert text(room.run(cells.say)) == "20\n"


@contract("helper")
def test_new_daemon_gets_missed_messages(room: Room) -> None:
    room.run("late('nobody was there')", request="b" * 32)
    kernel = room.found()
    time.sleep(0.6)
    events: list[
        dict[str, Any]
    ] = []  # a Jupyter server says it again, to whoever comes with the same session
    kernel.on_display = lambda message, late: not events.append(message)
    assert room.wait(kernel.take_over()) is None
    kernel.receive_pending()
    missed = [*events, *room.wait(kernel.fetch_missed_messages("b" * 32))]
    assert [
        message["content"]["text"]
        for message in missed
        if message["msg_type"] == "stream"
    ] == ["nobody was there"]


@pytest.mark.nightly_after(2)
@contract("helper")
def test_run_without_daemon_is_recovered(room: Room, cells: Cells) -> None:
    source = "import time\nprint('begun')\ntime.sleep(0.8)\nprint('over')\n'result'"
    for request, gone in (
        ("c" * 32, 0.0),
        ("d" * 32, 1.0),
    ):  # it runs still, and it is over
        kernel = room.lost(source, request, gone)
        assert (
            room.wait(kernel.await_earlier_request("0" * 32, 20, LIMITS)) is None
        )  # that one never began
        result = room.wait(kernel.await_earlier_request(request, 20, LIMITS))
        assert result.outcome is Outcome.OK and text(result) == "begun\nover\n"
        assert result.outputs[-1]["data"]["text/plain"] == "'result'"


@contract(lacks="helper", by_day=("r",))
def test_run_without_daemon_is_awaited(room: Room, cells: Cells) -> None:
    result = room.wait(
        room.lost(cells.slow, "c" * 32).await_earlier_request("c" * 32, 20, LIMITS)
    )
    assert (
        result.outcome is Outcome.OK
        and result.fault is None
        and text(result) == "over\n"
    )
    assert result.notes == [
        "output that was printed while the stepper daemon was not running is missing: "
        "the kernel has no record of the run"
    ]
    result = room.wait(
        room.lost(cells.slow_fails, "d" * 32).await_earlier_request(
            "d" * 32, 20, LIMITS
        )
    )
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.ename == cells.error[0]
    )


@contract(lacks="helper", by_day=("r",))
def test_outcome_of_run_finished_without_daemon_is_unknown(
    room: Room, cells: Cells
) -> None:
    kernel = room.lost(cells.slow, "e" * 32, gone_seconds=1.5)
    result = room.wait(kernel.await_earlier_request("e" * 32, 20, LIMITS))
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.ename == "NobodyHeard"
    )
    assert (
        text(result) == ""
        and "the outcome of the run is unknown" in result.fault.evalue
    )


@pytest.mark.nightly_after(1)
@contract("helper")
def test_recovered_run_shows_further_output(room: Room) -> None:
    source = "import time\nprint('loss nan')\nfor n in range(20):\n    print('loss', n)\n    time.sleep(0.1)\nprint('loss nan', n)\ntime.sleep(0.8)"
    kernel = room.lost(source, "f" * 32)
    lines: list[str] = []
    matched: list[str] = []

    async def watched() -> Any:
        recalled = asyncio.create_task(
            kernel.await_earlier_request("f" * 32, 20, LIMITS, "loss nan")
        )
        while not recalled.done():
            if kernel.partial_output:
                lines.append(kernel.partial_output.get_last_line())
                matched.append(kernel.partial_output.matched_line)
            await asyncio.sleep(0.02)
        return await recalled

    result = room.wait(watched())
    assert (
        text(result)
        == "loss nan\n" + "".join(f"loss {n}\n" for n in range(20)) + "loss nan 19\n"
    )
    numbers = [
        int(line.removeprefix("loss "))
        for line in dict.fromkeys(lines)
        if line[5:].isdigit()
    ]
    assert len(numbers) > 2 and numbers == sorted(numbers)
    assert (
        matched[0] == "" and matched[-1] == "loss nan 19" and "loss nan" not in matched
    )
    assert kernel.partial_output is None


@pytest.mark.nightly_after(1)
@contract()
def test_unrequested_running_execution_is_interrupted(room: Room, cells: Cells) -> None:
    kernel = room.lost(cells.endless, "e" * 32)
    assert room.wait(kernel.take_over()) is None
    room.run(cells.assign)
    assert text(room.run(cells.say)) == "20\n"


@contract(by_day=("r",))
def test_shut_down_kernel_is_not_found(room: Room) -> None:
    room.wait(room.kernel.shutdown())
    assert room.wait(room.kernel.check_death()) is not None
    assert room.again() is None
