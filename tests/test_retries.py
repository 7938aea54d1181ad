"""Network errors: the cell runs again, unless this is cancelled or not possible."""

from __future__ import annotations

import threading

import pytest

from stepper.session.session_state import kernel_manager
from tests.conftest import Answer, Notebook, text_of
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
        self.thread.join()
        ((cell_id, answer),) = self.answers
        assert text_of(self.notebook.cell(cell_id)) == "first try\n"
        return answer.text


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
