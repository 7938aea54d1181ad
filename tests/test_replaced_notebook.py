"""A stop ends if the user, git or a script replaces the notebook, but not the agent."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from tests import test_session
from tests.conftest import Answer, Notebook, code
from tests.test_session import Quick

project = test_session.project  # the fixture

OTHER = [code("rows = [1, 2]", "other-1"), code("print(sum(rows))", "other-2")]


@pytest.fixture
def stopped(project: Quick) -> Notebook:
    """A notebook of two cells, stopped by a question of the agent; its turn has ended."""
    notebook = project.new("Load", "Plot", problem="prices")
    project.daemon.workspace.external_changes.start()  # as a daemon does at its start
    notebook.insert("import json")
    notebook.insert("raise RuntimeError('STOP: which column?')")
    assert state(notebook) == "stopped"
    return notebook


def state(notebook: Notebook) -> str:
    """Return the state, requested by an agent, which ends no stop."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLAUDECODE", "1")
        return str(notebook.project.json("status", notebook.name)["state"])


def write_cells(
    notebook: Notebook, cells: list[dict[str, Any]], **metadata: Any
) -> None:
    """Write another file, as git, a script or a user does."""
    document = {
        "cells": cells,
        "metadata": metadata,
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    notebook.path.write_text(json.dumps(document))


def plan(problem: str, *titles: str) -> dict[str, Any]:
    steps = [{"id": number, "title": title} for number, title in enumerate(titles, 1)]
    return {"stepper": {"problem": problem, "steps": steps}}


def say(notebook: Notebook, prompt: str) -> Answer:
    payload = notebook.payload("UserPromptSubmit", "", {}, prompt=prompt)
    return notebook.project.hook("UserPromptSubmit", payload)


def shell_call(notebook: Notebook) -> None:
    """Tell the hook that the agent's message with a shell command is over."""
    calls = [{"tool_name": "Bash", "tool_input": {"command": "python make.py"}}]
    payload = notebook.payload("PostToolBatch", "", {}, tool_calls=calls)
    notebook.project.hook("PostToolBatch", payload)


def test_terminal_reports_the_removed_stop_of_a_replaced_notebook(
    project: Quick, stopped: Notebook
) -> None:
    write_cells(stopped, OTHER)
    result = project.stepper("status", stopped.name)
    assert (
        f"stepper: {stopped.name} was replaced by another notebook; the earlier stop"
        " (RuntimeError: STOP: which column?) no longer applies." in result.stderr
    )
    assert "stopped" not in result.stdout
    assert project.json("run", stopped.name)["ok"]
    assert project.json("plan", stopped.name)["steps"] == []  # of the former notebook
    project.kill_daemon()
    assert state(stopped) == "ready"


def test_next_prompt_informs_agent_and_user(project: Quick, stopped: Notebook) -> None:
    write_cells(stopped, OTHER, **plan("stores", "Count", "Tell"))
    answer = say(stopped, "what is in it?")
    for read in (answer.text, answer.line):
        assert "was replaced by another notebook" in read
        assert "no longer applies" in read
    assert "is stopped" not in answer.text
    assert not stopped.before("insert", "1", "other-2").denied
    assert "ran ok" in stopped.replace("other-1", "rows = [3]").text
    steps = project.json("plan", stopped.name)["steps"]
    assert [step["title"] for step in steps] == ["Count", "Tell"]
    assert "was replaced" not in say(stopped, "and now?").text


def test_new_agent_session_informs_agent_and_user(
    project: Quick, stopped: Notebook
) -> None:
    complete = project.new("Sum")
    complete.insert("x = 1")
    assert state(complete) == "complete"
    write_cells(stopped, OTHER)
    payload = complete.payload("SessionStart", "", {}, source="startup")
    answer = project.hook("SessionStart", payload)
    for read in (answer.text, answer.line):
        assert f"{stopped.name} was replaced by another notebook" in read


def test_new_plan_is_another_notebook_even_with_a_common_cell(
    stopped: Notebook,
) -> None:
    write_cells(
        stopped, [code("import json", "other-1"), *OTHER[1:]], **plan("stores", "Count")
    )
    assert "no longer applies" in say(stopped, "go through it").text
    assert state(stopped) == "ready"


@pytest.mark.parametrize("how", ["same sources", "no code", "one cell kept", "garbage"])
def test_changed_notebook_is_still_the_same(stopped: Notebook, how: str) -> None:
    cells = stopped.raw["cells"]
    if how == "same sources":  # a script gives its cells other ids
        cells = [{**cell, "id": uuid.uuid4().hex[:8]} for cell in cells]
        cells[-1]["source"] = "x = 1"
    elif how == "no code":
        cells = [cell for cell in cells if cell["cell_type"] == "markdown"]
    elif how == "one cell kept":
        cells = [*OTHER, cells[-1]]
    write_cells(stopped, cells)
    if how == "garbage":
        stopped.path.write_text("{")
    assert "no longer applies" not in say(stopped, "what is in it?").text
    assert state(stopped) == "stopped"


def test_agent_write_of_another_notebook_keeps_the_stop(
    project: Quick, stopped: Notebook
) -> None:
    content = {"cells": OTHER, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    tool_input = {"file_path": str(stopped.path), "content": json.dumps(content)}
    payload = stopped.payload("PreToolUse", "Write", tool_input)
    assert "stopped" in project.hook("PreToolUse", payload).denied
    answer = stopped.write(OTHER)  # the client did not ask
    assert "NOT run" in answer.text
    hook_of_turn_end(stopped)
    still_stopped(project, stopped)


def test_agent_shell_command_keeps_the_stop(project: Quick, stopped: Notebook) -> None:
    say(stopped, "try another way")
    write_cells(stopped, OTHER)
    shell_call(stopped)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CLAUDECODE", "1")
        assert "nothing ran" in project.stepper("run", stopped.name, check=1).stderr
    hook_of_turn_end(stopped)
    still_stopped(project, stopped)


def test_terminal_keeps_the_stop_during_an_agent_turn(
    project: Quick, stopped: Notebook
) -> None:
    say(stopped, "try another way")
    write_cells(stopped, OTHER)  # by whom?
    project.stepper("status", stopped.name)
    assert state(stopped) == "stopped"
    shell_call(stopped)
    hook_of_turn_end(stopped)
    still_stopped(project, stopped)


def test_successive_agent_edits_keep_the_stop(
    project: Quick, stopped: Notebook
) -> None:
    say(stopped, "try another way")
    for cell in stopped.raw["cells"][1:]:
        stopped.delete(cell["id"])
    stopped.insert("# words", kind="markdown")
    stopped.insert("x = 1")  # the client did not ask
    hook_of_turn_end(stopped)
    still_stopped(project, stopped)


def hook_of_turn_end(notebook: Notebook) -> None:
    payload = notebook.payload("Stop", "", {}, last_assistant_message="Done.")
    notebook.project.hook("Stop", payload)


def still_stopped(project: Quick, notebook: Notebook) -> None:
    """Assert that the notebook is stopped for users and agents, also after a restart."""
    for _ in range(2):
        assert "no longer applies" not in say(notebook, "what is in it?").text
        hook_of_turn_end(notebook)
        assert (
            "no longer applies" not in project.stepper("status", notebook.name).stderr
        )
        assert state(notebook) == "stopped"
        project.kill_daemon()
    # the user may still put another notebook there
    write_cells(notebook, [code("fresh = 1", "fresh")])
    assert "no longer applies" in project.stepper("status", notebook.name).stderr
    assert state(notebook) == "ready"
