"""Commands that change nothing if the notebook cannot be written."""

from __future__ import annotations

import pytest

from stepper.common.errors import NotebookError
from stepper.notebooks.notebook_file import IpynbFile
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = UNCLOSED


def test_nothing_is_skipped_if_the_cell_cannot_be_tagged(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("raise RuntimeError('STOP: which file?')")

    def fail(*_: object) -> None:
        raise NotebookError("no space left on the device")

    with monkeypatch.context() as context:
        context.setattr(IpynbFile, "add_tag", fail)
        assert "no space left" in project.stepper("skip", check=1).stderr
    assert project.json("status")["state"] == "stopped"
    content = notebook.path.read_text()
    notebook.path.write_text("{")
    assert "not valid JSON" in project.stepper("skip", check=1).stderr
    assert project.json("status")["state"] == "stopped"
    notebook.path.write_text(content)
    assert 'step 1 of 2 "One"' in project.stepper("skip").stdout


def test_step_is_not_reopened_if_the_notebook_cannot_be_read(project: Quick) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("raise RuntimeError('STOP: which file?')")
    project.stepper("skip")
    content = notebook.path.read_text()
    notebook.path.write_text("{")
    result = project.stepper("plan", "reopen", "1", check=1)
    assert "not valid JSON" in result.stderr
    notebook.path.write_text(content)
    assert project.json("plan")["steps"][0]["status"] == "skipped"
    project.stepper("plan", "reopen", "1")
    assert "skip-execution" not in notebook.path.read_text()


def test_plan_is_unchanged_if_the_notebook_cannot_be_written(project: Quick) -> None:
    notebook = project.new("One", "Two")
    notebook.path.write_text("{")
    result = project.stepper("plan", "add", "Three", check=1)
    assert "not valid JSON" in result.stderr
    titles = [step["title"] for step in project.json("plan")["steps"]]
    assert titles == ["One", "Two"]
