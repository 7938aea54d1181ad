"""Network errors: the cell runs again, unless this is cancelled or not possible.

Also: errors of the kernel after a cell was sent to it.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from stepper.common.errors import (
    KernelError,
    KernelStartError,
    KernelUnreachableError,
)
from stepper.policy.execution_result import Execution
from stepper.session.session_state import kernel_manager
from tests.conftest import Answer, Notebook, text_of
from tests.fake_kernel import FakeKernel, FakeKernelLauncher
from tests.test_run_on_edit import wait_until
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = UNCLOSED


class FailingInsertion:
    """The insertion of a cell that prints a line and fails with a network error."""

    def __init__(self, project: Quick, notebook: Notebook) -> None:
        self.answers: list[tuple[str, Answer]] = []
        self.notebook = notebook
        self.thread = threading.Thread(target=self._insert)
        self.thread.start()
        wait_until(lambda: project.live_kernels and project.json("history"))

    def _insert(self) -> None:
        source = "print('first try')\nraise ConnectionError('reset')"
        self.answers.append(self.notebook.insert(source))

    def get_report(self) -> str:
        """Wait for the report; check that the outputs were written."""
        return self.get_answer().text

    def get_answer(self) -> Answer:
        """Wait for the answer of the hook; check that the outputs were written."""
        self.thread.join()
        ((cell_id, answer),) = self.answers
        assert text_of(self.notebook.cell(cell_id)) == "first try\n"
        return answer


def test_outputs_of_a_cancelled_retry_are_written(project: Quick) -> None:
    insertion = FailingInsertion(project, project.new("Fetch"))
    project.stepper("interrupt")
    assert "the retry was cancelled" in insertion.get_report()


def test_run_is_reported_if_its_retry_cannot_start(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_manager, "RECONNECT_SECONDS", 0.1)
    insertion = FailingInsertion(project, project.new("Fetch"))
    project.kernel().unreachable_reason = "the connection is down"
    report = insertion.get_report()
    project.kernel().unreachable_reason = ""
    assert "ConnectionError: reset; the retry did not run: the connection" in report
    assert "| first try" in report and "ran the cell again" not in report
    assert "`stepper restart`" in report  # the hint of the error


def test_outputs_are_written_if_the_result_of_the_retry_is_unknown(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    insertion = FailingInsertion(project, project.new("Fetch"))
    kernel = project.kernel()

    async def lose_connection(*_: Any) -> Execution:
        kernel.unreachable_reason = "the connection is down"
        raise KernelUnreachableError(kernel.unreachable_reason)

    monkeypatch.setattr(FakeKernel, "execute", lose_connection)
    report = insertion.get_report()
    kernel.unreachable_reason = ""
    assert "may still be running or have finished: the connection is down" in report
    assert "NOT run" not in report


def test_kernel_that_cannot_start_for_a_retry_stops_the_notebook(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    insertion = FailingInsertion(project, project.new("Fetch"))

    async def fail(*_: Any) -> FakeKernel:
        raise KernelStartError("the kernel died at start (exit code 127)")

    monkeypatch.setattr(FakeKernelLauncher, "start", fail)
    project.kernel().ends("SIGKILL")
    answer = insertion.get_answer()
    assert "Error Type: KernelStartFailed" in answer.stop
    assert "the retry was NOT run: the kernel died at start" in answer.stop
    report = project.stepper("report").stdout
    assert "Note: run 1 failed: ConnectionError: reset." in report
    assert "the cell was NOT run" not in report + answer.stop
    assert project.json("status")["state"] == "stopped"


def test_interrupt_of_the_start_of_a_retry_cancels_the_retry(project: Quick) -> None:
    insertion = FailingInsertion(project, project.new("Fetch"))
    project.kernel().external_executions.running_since = time.monotonic()
    (session,) = project.daemon.workspace.sessions.values()
    wait_until(lambda: session.kernel_manager.external_wait)
    project.stepper("interrupt")
    report = insertion.get_report()
    assert "the retry did not run: interrupted while" in report
    assert "was CANCELLED" in report and "does not count" in report


@pytest.mark.parametrize("error", [KernelStartError, KernelError])
def test_cell_that_was_sent_is_not_reported_as_not_run(
    project: Quick, monkeypatch: pytest.MonkeyPatch, error: type[KernelError]
) -> None:
    """The connection comes back, but the kernel does not reply in time."""
    notebook = project.new("Load")
    execute = FakeKernel.execute

    async def lose_reply(kernel: FakeKernel, *arguments: Any) -> Execution:
        await execute(kernel, *arguments)
        raise error("the kernel did not reply within 5 s")

    with monkeypatch.context() as context:
        context.setattr(FakeKernel, "execute", lose_reply)
        cell_id, answer = notebook.insert("print('it ran')")
    assert "may still be running or have finished: the kernel did" in answer.text
    assert "NOT run" not in answer.text and not answer.stop
    # The next request asks the kernel for the result.
    assert "continued after" in notebook.insert("1")[1].text
    assert text_of(notebook.cell(cell_id)) == "it ran\n"
