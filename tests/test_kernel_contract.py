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

# The functions of the fake kernel, for real kernels.
PRELUDE = """
import os, signal, threading, time
def die(how='SIGKILL'):
    time.sleep(1.5)  # what was printed is on its way by then
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)
def late(text): threading.Timer(0.3, print, (text,), {'end': ''}).start()
def update_display(data, raw, display_id): display(data, raw=raw, display_id=display_id, update=True)
"""
LIMITS = Limits(max_memory_percent=100)
GAP = re.compile(
    r"\n… ([\d,]+) characters? left out by stepper \(max_output_bytes\) …\n"
)


class KernelHarness:
    """A kernel of one backend, and an event loop in place of the daemon."""

    def __init__(self, at: Backend, folder: Path) -> None:
        self.folder, self.at = folder, at
        self.cells, self.fake_kernels = self.at.cells, dict[str, Any]()
        self.loop = asyncio.new_event_loop()
        self.launch_config = LaunchConfig(
            sys.executable, str(self.folder), dict(os.environ), backend=self.at.at
        )
        self.former: list[Kernel] = []
        self.start_kernel()

    def provider(self) -> KernelLauncher:
        """Return a new launcher, like a daemon that has just started."""
        record = str(self.folder / "kernel.json")
        return (
            FakeKernelLauncher(self.fake_kernels, record)
            if self.at.name == "fake"
            else NotebookLauncher(record, str(self.folder), {})
        )

    def wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def start_kernel(self) -> Kernel:
        self.kernel: Kernel = self.wait(self.provider().start(self.launch_config))
        if self.at.name != "fake" and "helper" not in self.at.lacks:
            assert self.run(PRELUDE).outcome is Outcome.OK
        return self.kernel

    def detach(self) -> None:
        async def detached() -> None:  # a tornado socket must be closed in its own loop
            self.kernel.detach()

        self.wait(detached())

    def reattach(self) -> Kernel | Death | None:
        """Detach from the kernel and attach to it again, like the next daemon."""
        self.former.append(self.kernel)
        self.detach()
        kernel = self.wait(self.provider().attach())
        self.kernel = (
            kernel
            if kernel is not None and not isinstance(kernel, Death)
            else self.kernel
        )
        return kernel

    def reattach_alive(self) -> Kernel:
        kernel = self.reattach()
        assert kernel is not None and not isinstance(kernel, Death), kernel
        return kernel

    def run(
        self, code: str, timeout: float = 120, request: str = "", scratch: bool = False
    ) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS, request, scratch))

    def run_with(
        self, code: str, act: Callable[[], Coroutine[Any, Any, Any]]
    ) -> Execution:
        """Run a cell, and call `act` after its first output."""

        async def both() -> Execution:
            running = asyncio.create_task(self.kernel.execute(code, 120, LIMITS))
            await self.wait_for_output()
            await act()
            return await running

        return self.wait(both())

    async def wait_for_output(self) -> None:
        end = time.monotonic() + 120
        while (
            not (
                self.kernel.partial_output and self.kernel.partial_output.get_outputs()
            )
            and time.monotonic() < end
        ):
            await asyncio.sleep(0.01)

    def lose_daemon_during_run(
        self, code: str, request: str, seconds_without_daemon: float = 0
    ) -> Kernel:
        """End the daemon during a run; return the kernel of the next daemon."""

        async def cancel_run() -> None:
            running = asyncio.create_task(
                self.kernel.execute(code, 120, LIMITS, request)
            )
            await self.wait_for_output()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

        self.wait(cancel_run())
        self.former.append(self.kernel)
        self.detach()
        time.sleep(seconds_without_daemon)
        return self.reattach_alive()

    def close(self) -> None:
        # they are child processes of this process
        for kernel in (
            self.kernel,
            *self.former,
        ):
            self.wait(kernel.shutdown())
        self.wait(asyncio.sleep(0.1))  # so that its sockets are closed
        self.loop.close()


@pytest.fixture(scope="module")
def backend(request: pytest.FixtureRequest) -> Iterator[KernelHarness]:
    # short: a socket's path has at most 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="room"))
    with backend_cases.start_backend(request.param, folder) as at:
        harness = KernelHarness(at, folder)
        yield harness
        harness.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def harness(backend: KernelHarness) -> KernelHarness:
    """The kernel of all tests with one backend; restarted if a test ended it."""
    if backend.wait(backend.kernel.check_death()) is not None:
        backend.start_kernel()
    backend.kernel.on_display = lambda message: None
    backend.kernel.on_late_output = lambda message: False
    return backend


@pytest.fixture
def cells(backend: KernelHarness) -> Cells:
    return backend.cells


def wait_until_ready(ready: Callable[[], Any], seconds: float = 120) -> Any:
    end = time.monotonic() + seconds
    while not (value := ready()) and time.monotonic() < end:
        time.sleep(0.05)
    assert value
    return value


def text(result: Execution, name: str = "") -> str:
    streams = [out for out in result.outputs if out["output_type"] == "stream"]
    return "".join(out["text"] for out in streams if name in ("", out["name"]))


@contract("values", by_day=("r",))
def test_successful_cell_has_outputs_and_execution_count(
    harness: KernelHarness, cells: Cells
) -> None:
    before = harness.run(cells.assign)
    assert (
        before.outcome is Outcome.OK
        and before.outputs == []
        and before.fault is None
        and before.death is None
    )
    first = harness.run(cells.value)
    stream, result = first.outputs
    assert stream == {"output_type": "stream", "name": "stdout", "text": "said\n"}
    # R displays its values
    assert result["output_type"] in (
        "execute_result",
        "display_data",
    )
    assert result["data"]["text/plain"] == cells.shows
    assert result.get("execution_count", first.execution_count) == first.execution_count
    second = harness.run(cells.say)
    assert (
        text(second) == "20\n" and second.execution_count == first.execution_count + 1
    )
    assert (
        second.next_inputs == [] and second.widget_outputs == [] and second.notes == []
    )


@contract("uncounted looks")
def test_scratch_execution_does_not_change_execution_count(
    harness: KernelHarness, cells: Cells
) -> None:
    first = harness.run(cells.assign)
    assert text(harness.run(cells.say, scratch=True)) == "20\n"
    assert harness.run(cells.assign).execution_count == first.execution_count + 1


@contract("two streams")
def test_stdout_and_stderr_keep_their_order(
    harness: KernelHarness, cells: Cells
) -> None:
    result = harness.run(cells.both)
    assert [(out["name"], out["text"].rstrip()) for out in result.outputs] == [
        ("stdout", "out"),
        ("stderr", "err"),
        ("stdout", "out"),
    ]


@contract()
def test_error_keeps_earlier_outputs(harness: KernelHarness, cells: Cells) -> None:
    result = harness.run(cells.fails(1))
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
    assert harness.run(cells.assign).outcome is Outcome.OK


@contract(lacks="helper")
def test_kernel_without_helper_reports_no_helper_data(
    harness: KernelHarness, cells: Cells
) -> None:
    result = harness.run(cells.assign)
    assert (
        result.namespace
        == UNKNOWN_NAMESPACE
        == harness.wait(harness.kernel.fetch_namespace())
        and result.diagnosis_data == {}
    )
    assert (
        harness.kernel.take_widget_state() is None
        and harness.wait(harness.kernel.fetch_missed_messages("b" * 32)) == []
    )
    fault = harness.run(cells.fails(1)).fault
    assert (
        fault is not None
        and fault.frames == ()
        and fault.mro == ()
        and fault.line is None
    )


@contract("helper")
def test_error_has_line_and_frames(harness: KernelHarness) -> None:
    harness.run("def divide(by):\n    return 1 / by")
    result = harness.run("print('before')\n\ndivide(0)\nprint('after')")
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
def test_syntax_error_has_its_line(harness: KernelHarness) -> None:
    result = harness.run("x = 1\ny = = 2")
    assert result.outcome is Outcome.ERROR and result.fault is not None
    assert result.fault.mro[0] == "SyntaxError" and result.fault.line == 2


@contract("bounds")
def test_outputs_over_the_limit_are_counted(
    harness: KernelHarness, cells: Cells
) -> None:
    limits = Limits(max_memory_percent=100, max_output_bytes=4000)
    result = harness.wait(harness.kernel.execute(cells.many_lines, 60, limits))
    assert result.outcome is Outcome.OK
    message, expected_text = (
        text(result),
        "".join(f"line {n}\n" for n in range(1, 2001)),
    )
    (gap,) = GAP.findall(message)
    head, _, tail = GAP.sub("\0", message).partition("\0")
    assert (
        expected_text.startswith(head)
        and expected_text.endswith(tail)
        and len(message) < 4000
    )
    assert result.left_out == OmittedOutput(int(gap.replace(",", ""))) and len(
        head
    ) + len(tail) + result.left_out[0] == len(expected_text)


@contract("helper")
def test_displays_are_updated_by_id(harness: KernelHarness) -> None:
    events: list[str] = []
    late_outputs: list[dict[str, Any]] = []
    harness.kernel.on_display = lambda message: events.append(message["msg_type"])
    harness.kernel.on_late_output = lambda message: not late_outputs.append(message)
    result = harness.run(
        "print(1)\ndisplay({'text/plain': 'a'}, raw=True, display_id='mark')"
    )
    assert result.displays == {"mark": [1]} and result.outputs[1]["data"] == {
        "text/plain": "a"
    }
    result = harness.run(
        "display({'text/plain': 'b'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'c'}, raw=True, display_id='own')\n"
        "update_display({'text/plain': 'd'}, raw=True, display_id='mark')"
    )
    # the other display belongs to another cell
    assert [out["data"] for out in result.outputs] == [{"text/plain": "c"}]
    assert events == ["display_data"] * 2 + ["update_display_data"] * 2
    assert late_outputs == []


@contract("widgets")
def test_widget_state_includes_binary_buffers(harness: KernelHarness) -> None:
    result = harness.run(
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


@contract()
def test_timeout_interrupts_and_keeps_the_state(
    harness: KernelHarness, cells: Cells
) -> None:
    harness.run(cells.assign)
    result = harness.run(cells.endless, timeout=2)
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.death is None
        and text(result).rstrip() == "begun"
    )
    assert text(harness.run(cells.say)) == "20\n"


@contract("helper")
def test_timeout_reports_the_running_line(harness: KernelHarness) -> None:
    result = harness.run(
        "import time\nprint('begun')\nwhile True:\n    time.sleep(0.01)", timeout=2
    )
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.fault is not None
        and result.fault.line in (3, 4)
    )


@contract()
def test_user_interrupt_and_client_disconnect_cancel(
    harness: KernelHarness, cells: Cells
) -> None:
    for reason in ("user", "client disconnected"):
        result = harness.run_with(
            cells.endless, lambda why=reason: harness.kernel.interrupt(why)
        )
        assert result.outcome is Outcome.CANCELLED and result.death is None
    assert not harness.kernel.is_busy
    # no cell is running, so the interrupt has no effect
    harness.wait(harness.kernel.interrupt("user"))
    harness.run(cells.assign)
    assert text(harness.run(cells.say)) == "20\n"


CATCHES = "import time\ntry:\n    while True:\n        time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('caught')"


@contract("helper")
def test_cell_can_catch_its_interrupt(harness: KernelHarness) -> None:
    result = harness.run(CATCHES, timeout=2)
    assert (
        result.outcome is Outcome.TIMEOUT
        and text(result) == "caught\n"
        and result.death is None
    )


@contract("helper", "watched")
def test_line_is_known_for_cell_that_catches_its_interrupt(
    harness: KernelHarness,
) -> None:
    result = harness.run(CATCHES, timeout=2)
    assert (
        result.fault is not None
        and result.fault.ename == ""
        and result.fault.line in (3, 4)
    )


@pytest.mark.nightly_after(3)
@contract()
def test_kernel_dies_during_a_cell(harness: KernelHarness, cells: Cells) -> None:
    result = harness.run(
        "print('last')\ndie()" if harness.at.name == "fake" else cells.dies
    )
    assert result.outcome is Outcome.KERNEL_DIED and result.death is not None
    assert re.search(harness.at.died, result.death.reason), result.death
    assert text(result) == "last\n"
    assert harness.wait(harness.kernel.check_death()) is not None


@contract("helper")
def test_exit_is_reported_as_kernel_death(harness: KernelHarness) -> None:
    result = harness.run("exit()")
    assert result.death is not None and result.outcome is Outcome.KERNEL_DIED
    assert (result.death.reason, result.death.cause) == (
        "ended by exit() or quit()",
        "SystemExit",
    )
    assert harness.wait(harness.kernel.check_death()) is not None


@contract("helper", "watched")
def test_kernel_describes_itself(harness: KernelHarness) -> None:
    about = harness.kernel.describe()
    assert about.python == sys.executable and not about.limitation
    assert isinstance(harness.kernel.measure_memory(), int)


@contract(lacks="watched")
def test_backend_reports_unsupported_features(harness: KernelHarness) -> None:
    about = harness.kernel.describe()
    assert (
        "memory" in about.limitation
        and about.pid is None
        and harness.kernel.measure_memory() == 0
    )


@contract("helper")
def test_kernel_lists_its_namespace(harness: KernelHarness) -> None:
    assert harness.kernel.id
    result = harness.run(
        "import math as m\nrows = [1, 2]\ndef area(r, scale=1): ...\nclass Shape: ..."
    )
    for namespace in (result.namespace, harness.wait(harness.kernel.fetch_namespace())):
        assert (
            namespace.modules["m"] == "math"
            and namespace.functions["area"] == "(r, scale=1)"
        )
        assert namespace.variables["rows"].len == 2 and "Shape" in namespace.classes
        assert {"rows", "m", "print"} <= set(namespace.names)
    assert harness.kernel.take_widget_state() is None


@contract("connection file")
def test_external_client_connects_by_connection_file(
    harness: KernelHarness, cells: Cells
) -> None:
    file = harness.kernel.ensure_connection_file()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert harness.kernel.id[:8] in os.path.basename(file)
    events = list[ExternalExecution]()
    harness.kernel.external_executions.on_finished = events.append

    async def listen() -> bool:
        harness.kernel.receive_pending()
        return bool(events)

    client = BlockingKernelClient()
    client.load_connection_file(file)
    client.start_channels(stdin=False)
    try:
        client.wait_for_ready(120)
        request = client.execute(cells.assign)
        wait_until_ready(lambda: harness.wait(listen()))
        assert client.get_shell_msg(timeout=120)["parent_header"]["msg_id"] == request
    finally:
        client.stop_channels()
    (execution,) = events
    assert (execution.code, execution.error, execution.is_silent) == (
        cells.assign,
        "",
        False,
    )
    assert "helper" in harness.at.lacks or "x" in execution.namespace.variables
    assert not harness.kernel.external_executions.running_since
    assert "20" in text(harness.run(cells.say))


@pytest.mark.nightly_after(1)
@contract()
def test_output_and_matching_lines_are_reported_during_the_run(
    harness: KernelHarness, cells: Cells
) -> None:
    observed: list[tuple[str, str]] = []

    async def watched() -> Execution:
        running = asyncio.create_task(
            harness.kernel.execute(cells.epochs, 120, LIMITS, wake="loss.*nan")
        )
        while not running.done():
            if coming := harness.kernel.partial_output:
                observed.append((coming.get_last_line(), coming.matched_line))
            await asyncio.sleep(0.02)
        return await running

    result = harness.wait(watched())
    assert (
        result.outcome is Outcome.OK
        and text(result) == "loss 3\nloss 2\nloss 1\nloss nan\n"
    )
    assert harness.kernel.partial_output is None
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


@pytest.mark.nightly
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
    harness: KernelHarness, pattern: str, line: str
) -> None:
    observed: list[str] = []

    async def watched() -> Execution:
        running = asyncio.create_task(
            harness.kernel.execute(PRINTS, 30, LIMITS, wake=pattern)
        )
        while not running.done():
            if (
                harness.kernel.partial_output
                and harness.kernel.partial_output.matched_line not in observed
            ):
                observed.append(harness.kernel.partial_output.matched_line)
            await asyncio.sleep(0.02)
        return await running

    assert harness.wait(watched()).outcome is Outcome.OK
    assert (
        observed == ["", *filter(None, [line])]
        and harness.kernel.partial_output is None
    )


@contract("helper")
def test_output_after_the_run_is_late_output(harness: KernelHarness) -> None:
    events: list[tuple[str, str]] = []

    def record(message: dict[str, Any]) -> bool:
        if message["msg_type"] == "stream":
            events.append(
                (message["content"]["text"], message["parent_header"]["msg_id"])
            )
        return True

    harness.kernel.on_late_output = record
    harness.run("late('afterwards')", request="a" * 32)

    def listened() -> list[tuple[str, str]]:
        harness.wait(asyncio.sleep(0))  # a websocket is read by the loop
        harness.kernel.receive_pending()
        return events

    assert wait_until_ready(listened) == [("afterwards", "a" * 32)]


@contract()
def test_new_daemon_finds_the_kernel_with_its_state(
    harness: KernelHarness, cells: Cells
) -> None:
    before = harness.kernel.id
    harness.run(cells.assign)
    kernel = harness.reattach_alive()
    assert kernel.id == before and not kernel.is_busy
    assert harness.wait(kernel.take_over()) is None
    assert text(harness.run(cells.say)) == "20\n"


@contract("helper")
def test_new_daemon_gets_missed_messages(harness: KernelHarness) -> None:
    harness.run("late('nobody was there')", request="b" * 32)
    kernel = harness.reattach_alive()
    time.sleep(2)
    events: list[
        dict[str, Any]
    ] = []  # a Jupyter server repeats the message for the same session
    kernel.on_late_output = lambda message: not events.append(message)
    assert harness.wait(kernel.take_over()) is None
    kernel.receive_pending()
    missed = [*events, *harness.wait(kernel.fetch_missed_messages("b" * 32))]
    assert [
        message["content"]["text"]
        for message in missed
        if message["msg_type"] == "stream"
    ] == ["nobody was there"]


@pytest.mark.nightly_after(1)
@contract("helper")
def test_run_without_daemon_is_recovered(harness: KernelHarness, cells: Cells) -> None:
    source = "import time\nprint('begun')\ntime.sleep(0.8)\nprint('over')\n'result'"
    # the cell is still running, and it has finished
    for request, seconds in (
        ("c" * 32, 0.0),
        ("d" * 32, 1.0),
    ):
        kernel = harness.lose_daemon_during_run(source, request, seconds)
        # this request never started
        assert harness.wait(kernel.await_earlier_request("0" * 32, 20, LIMITS)) is None
        result = harness.wait(kernel.await_earlier_request(request, 20, LIMITS))
        assert result.outcome is Outcome.OK and text(result) == "begun\nover\n"
        assert result.outputs[-1]["data"]["text/plain"] == "'result'"


@contract(lacks="helper")
def test_run_without_daemon_is_awaited(harness: KernelHarness, cells: Cells) -> None:
    result = harness.wait(
        harness.lose_daemon_during_run(cells.slow, "c" * 32).await_earlier_request(
            "c" * 32, 20, LIMITS
        )
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
    result = harness.wait(
        harness.lose_daemon_during_run(
            cells.slow_fails, "d" * 32
        ).await_earlier_request("d" * 32, 20, LIMITS)
    )
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.ename == cells.error[0]
    )


@contract(lacks="helper")
def test_outcome_of_run_finished_without_daemon_is_unknown(
    harness: KernelHarness, cells: Cells
) -> None:
    kernel = harness.lose_daemon_during_run(
        cells.slow, "e" * 32, seconds_without_daemon=1.5
    )
    result = harness.wait(kernel.await_earlier_request("e" * 32, 20, LIMITS))
    assert (
        result.outcome is Outcome.ERROR
        and result.fault is not None
        and result.fault.ename == "NobodyHeard"
    )
    assert (
        text(result) == ""
        and "the outcome of the run is unknown" in result.fault.evalue
    )


@pytest.mark.nightly
@contract("helper")
def test_recovered_run_shows_further_output(harness: KernelHarness) -> None:
    source = "import time\nprint('loss nan')\nfor n in range(20):\n    print('loss', n)\n    time.sleep(0.1)\nprint('loss nan', n)\ntime.sleep(0.8)"
    kernel = harness.lose_daemon_during_run(source, "f" * 32)
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

    result = harness.wait(watched())
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


@pytest.mark.nightly
@contract()
def test_unrequested_running_execution_is_interrupted(
    harness: KernelHarness, cells: Cells
) -> None:
    kernel = harness.lose_daemon_during_run(cells.endless, "e" * 32)
    assert harness.wait(kernel.take_over()) is None
    harness.run(cells.assign)
    assert text(harness.run(cells.say)) == "20\n"


@contract()
def test_shut_down_kernel_is_not_found(harness: KernelHarness) -> None:
    harness.wait(harness.kernel.shutdown())
    assert harness.wait(harness.kernel.check_death()) is not None
    assert harness.reattach() is None
