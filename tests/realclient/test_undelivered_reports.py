"""Undelivered reports after Esc, shell changes, and at the end of a turn.

Tests check what the user sees and what the agent reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import ClaudeFactory, InteractiveFactory
from .model import Block, Message, ScriptedModel, text, tool, tool_results
from .repository import repository
from .test_run_on_edit import (
    find_last_edited_cell,
    get_new_text,
    insert,
    log_process_starts,
    read,
    replace,
    stepper,
    wait_until,
)

Model = Callable[..., ScriptedModel]
pytestmark = pytest.mark.timeout(600)
SLOW = "rows = rows + [4]\nprint('begun')\nimport time\ntime.sleep(600)"


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An installed repository; its environment is created offline."""
    with repository(tmp_path_factory.mktemp("unseen") / "a répo") as folder:
        yield folder


@pytest.fixture
def notebook(project: Path, request: pytest.FixtureRequest) -> Path:
    """Make a new notebook with two steps; it becomes the current one."""
    response = json.loads(
        stepper(
            project, "new", request.node.name, "--step=Load", "--step=Count", "--json"
        )
    )
    return project / response["notebook"]


def bash(command: str) -> Block:
    return tool("Bash", {"command": command, "description": "Call it"})


def edit_by_script(notebook: Path, source: str) -> Block:
    """Return a heredoc that changes the source of the first code cell."""
    return bash(
        f"python3 - <<'X'\nimport json\npath = {str(notebook)!r}\nraw = json.load(open(path))\n"
        f"raw['cells'][1]['source'] = {source!r}\njson.dump(raw, open(path, 'w'))\nX"
    )


def statuses(notebook: Path) -> list[str]:
    status = json.loads(
        stepper(notebook.parent.parent, "status", str(notebook), "--json")
    )
    return [status["state"], *(step["status"] for step in status["steps"])]


@pytest.mark.nightly
def test_every_report_is_delivered_and_turns_end_without_warnings(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    name, ids = f"notebooks/{notebook.name}", list[str]()

    def slow(messages: list[Message]) -> list[Block]:
        ids.append(json.loads(notebook.read_text())["cells"][1]["id"])
        return [insert(notebook, SLOW, ids[0])]

    def fixed(messages: list[Message]) -> list[Block]:
        ids.append(json.loads(notebook.read_text())["cells"][2]["id"])
        return [replace(notebook, "len(rows)", ids[1])]

    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = [1, 2, 3]\nrows", "cell-0")],
        [bash("ls")],
        [edit_by_script(notebook, "rows = [1]\nrows")],
        [bash(f"stepper run {name}")],
        [text("The first step works.")],
        [read(notebook)],
        slow,
    )
    client = interactive_claude(model)
    client.send("Begin.")
    wait_until(lambda: statuses(notebook)[2] == "running")
    screen = " ".join(client.screen().split())
    message = f"stepper: {name} was changed outside the notebook tools: cell 1 (id {ids[0]}) changed. stepper did NOT run these cells; the outputs of"
    assert "hook additional context" not in get_new_text(
        model, 3
    ) and message in get_new_text(model, 4)
    assert f"To run the cells that have not run: stepper run {name}" in get_new_text(
        model, 4
    )
    assert (
        f"PostToolBatch says: {message}" in screen
        and screen.count("was changed outside") == 1
    )
    assert (
        f"Stop hook additional context: stepper: 1 of 2 steps of {name} is not done."
        in get_new_text(model, 6)
    )
    assert (
        f"Stop hook says: stepper: 1 of 2 steps of {name} is not done." in screen
        and "problem" not in screen
    )

    client.keys("Escape")
    wait_until(lambda: statuses(notebook)[2] == "interrupted")
    model.then(fixed, [text("That is the end.")])
    client.send("Well?")
    client.wait_for("That is the end.")
    new_text = get_new_text(model, 8)
    # the client's text and stepper's
    assert "NOT written" in new_text and f"an edit of {name} WAS applied" in new_text
    assert (
        f"Cell 2 (id {ids[1]}) was CANCELLED after" in new_text
        and "rebound `rows`" in new_text
        and "| begun" in new_text
    )
    screen = " ".join(client.screen().split())
    assert (
        f"the last edit of {name} was applied" in screen
        and '"Count" · cancelled' in screen
    )
    assert "ran ok in" in get_new_text(model, 9) and "WAS applied" not in get_new_text(
        model, 9
    )
    assert statuses(notebook) == ["complete", "done", "done"]
    assert "problem" not in client.screen()


@pytest.mark.nightly
def test_next_session_gets_undelivered_reports(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    claude: ClaudeFactory,
    interactive_claude: InteractiveFactory,
) -> None:
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = []", "cell-0")],
        lambda messages: [insert(notebook, SLOW, find_last_edited_cell(messages))],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    wait_until(lambda: statuses(notebook)[2] == "running")
    client.keys("Escape")
    wait_until(lambda: statuses(notebook)[2] == "interrupted")
    client.close()
    stepper(project, "shutdown")
    model.then([bash("stepper status")], [text("I see, the user decides. Which way?")])
    claude(model).prompt("Go on.", "--continue")
    assert "WAS applied" in get_new_text(
        model, 3
    ) and "(its cell was interrupted)" in get_new_text(model, 3)
    assert "■ 2. Count  (interrupted)" in tool_results(model.requests[-1])[
        -1
    ] and "WAS applied" not in get_new_text(model, 4)


@pytest.mark.nightly
def test_shell_command_without_notebook_changes_starts_no_hook(
    project: Path, notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    new = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    model = scripted_model(
        [bash("echo 1 > notebooks/data.csv; ls")],
        [bash(f"cat > notebooks/new.ipynb <<'X'\n{new}\nX")],
        [bash("ls")],
    )
    with log_process_starts(project) as log:
        claude(model).prompt("Look.")
        assert log.read_text().split().count("PostToolBatch") == 1, log.read_text()


@pytest.mark.nightly
def test_failing_notebook_without_plan_is_reported_at_end_of_turn(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = (
        project / json.loads(stepper(project, "new", "failing", "--json"))["notebook"]
    )
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "1 / 0", "cell-0")],
        [text("It works.")],
        [text("It does not.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    screen = " ".join(client.wait_for("It does not.").split())
    assert (
        f"Stop hook says: stepper: the last run of notebooks/{notebook.name} failed and has not been fixed."
        in screen
    )
    assert "problem" not in screen and "ZeroDivisionError" in get_new_text(model, 3)
    assert statuses(notebook) == ["failing"]


@pytest.mark.nightly
def test_run_lines_show_the_user_what_the_agent_reads(
    project: Path,
    notebook: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    """A result, a warning, a cell that could not run, and the end of the turn."""
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = [1, 2, 3]\nrows", "cell-0")],
        lambda messages: [
            replace(
                notebook,
                "rows = [1, 2]\n!exit 3\nrows",
                find_last_edited_cell(messages),
            )
        ],
        lambda messages: [insert(notebook, "1 / 0", find_last_edited_cell(messages))],
        lambda messages: [
            replace(notebook, "sum(rows)", find_last_edited_cell(messages))
        ],
        [text("That is the end.")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    screen = " ".join(client.wait_for("That is the end.").split())
    assert '✓ step 1 of 2 "Load" · ok · ' in screen and "s | [1, 2, 3]" in screen
    assert "· warning: line 2: `!exit 3` failed with exit code 3 | [1, 2]" in screen
    assert '✗ step 2 of 2 "Count" · ZeroDivisionError: division by zero' in screen
    assert "notebook complete: 2 steps, 1 retry" in screen, screen
