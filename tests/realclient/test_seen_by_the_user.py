"""What the user sees of commands, renamed and uncovered notebooks, and machine restarts.

All tests share one installed repository; each has its own notebook.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from .conftest import InteractiveFactory
from .model import Block, Message, ScriptedModel, text, tool
from .repository import repository, stepper

Model = Callable[..., ScriptedModel]
pytestmark = [pytest.mark.timeout(180), pytest.mark.nightly]


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    with repository(tmp_path_factory.mktemp("seen") / "repo") as folder:
        yield folder


@pytest.fixture(autouse=True)
def plain(project: Path) -> Iterator[None]:
    yield
    (project / ".stepper/config.yaml").unlink(missing_ok=True)


def new(project: Path, name: str, *steps: str) -> Path:
    named = [part for step in steps for part in ("--step", step)]
    return (
        project
        / json.loads(stepper(project, "new", name, *named, "--json"))["notebook"]
    )


def read(notebook: Path) -> list[Block]:
    return [tool("Read", {"file_path": str(notebook)})]


def edit(
    notebook: Path, source: str, mode: str = "insert"
) -> Callable[[list[Message]], list[Block]]:
    """Return an edit at the current last cell of the notebook."""

    def turn(_: list[Message]) -> list[Block]:
        cells = json.loads(notebook.read_text())["cells"]
        tool_input = {"notebook_path": str(notebook), "cell_id": cells[-1]["id"]}
        tool_input |= {"new_source": source, "edit_mode": mode}
        if mode == "insert":
            tool_input["cell_type"] = "code"
        return [tool("NotebookEdit", tool_input)]

    return turn


def join_lines(screen: str) -> str:
    """Return the screen's text without line breaks."""
    return re.sub(r"\s+", " ", screen)


def failing(notebook: Path) -> list[Callable[[list[Message]], list[Block]]]:
    """Make four edits that fail; the last one stops the notebook."""
    return [
        edit(notebook, "1 / 0"),
        *(edit(notebook, f"1 / 0 + {number}", "replace") for number in range(3)),
    ]


def test_each_command_prints_one_line_for_the_user(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = new(project, "commands", "Load", "Plot", "Save")
    turns = [read(notebook), edit(notebook, "x = 1"), *failing(notebook)]
    model = scripted_model(*turns)
    client = interactive_claude(model)
    client.send("Go.")
    client.wait_for("Execution stopped at cell 2", 60)

    # one more failure; then the turn ends with plain text
    model.then([text("I wait for you: what next?")])
    client.send("/fix look at the divisor")
    screen = join_lines(client.wait_for("what next?", 40))
    screen = join_lines(client.wait_for("stepper fix:", 20))
    assert 'says: stepper fix: 3 new retries for step 2 of 3 "Plot" in' in screen

    model.then(edit(notebook, "1 / 0 + 9", "replace"), *failing(notebook)[1:])
    client.send("Try again.")
    client.wait_for("Attempted Fixes: 3", 60)
    model.then([text("Then I skip the plot. Shall I save?")])
    client.send("skip cell because we lack data")
    client.wait_for("Shall I save?", 40)
    message = 'stepper: understood your message as /skip: step 2 of 3 "Plot" in '
    assert message in join_lines(client.screen())

    model.then(read(notebook), edit(notebook, "raise RuntimeError('STOP: use it?')"))
    client.send("Save it.")
    client.wait_for("The agent asks: use it?", 60)
    model.then([text("So I use it. What is the name of the file?")])
    client.send("/continue yes, use it")
    client.wait_for("name of the file?", 40)
    client.wait_for("stepper continue:", 20)


def test_stop_the_cell_reports_the_result(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    (project / ".stepper/config.yaml").write_text("report_after_seconds: 2\n")
    notebook = new(project, "long", "Train")
    source = "# stepper: timeout=1h\nimport time\ntime.sleep(600)"
    model = scripted_model(
        read(notebook), edit(notebook, source), [text("It goes on.")]
    )
    client = interactive_claude(model)
    client.send("Go.")
    client.wait_for("It goes on.", 60)
    model.then([text("It is over. What now?")])
    client.send("stop the cell")
    client.wait_for("What now?", 40)
    screen = join_lines(client.screen())
    assert "stepper: understood your message as `stop the cell`: Cell 1 (id " in screen
    assert "was CANCELLED after" in screen


def test_instructions_come_first_after_machine_restart(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = new(project, "restart", "Load", "Plot")
    model = scripted_model(read(notebook), edit(notebook, "x = 41"), [text("Well?")])
    client = interactive_claude(model)
    client.send("Go.")
    client.wait_for("Well?", 60)
    client.close()
    status = json.loads(stepper(project, "status", "--json"))
    for pid in (status["kernel"]["pid"], status["daemon"]["pid"]):
        psutil.Process(pid).kill()

    turns = [read(notebook), edit(notebook, "x + 1"), [text("I can't. What now?")]]
    model = scripted_model(*turns)
    client = interactive_claude(model, "--continue")
    client.wait_for("SessionStart:resume says:", 40)
    screen = join_lines(client.screen())
    rebuild, cause = screen.index("To rebuild its variables"), screen.index("Cause: ")
    assert screen.index("restart.ipynb is stopped.") < rebuild < cause
    assert "to go on without them, type /continue" in screen
    client.send("go on")  # it is unknown whether the variables exist
    client.wait_for("What now?", 60)
    model_input = model.shown()
    assert "The user's message does not resume the notebook. To rebuild" in model_input
    assert json.loads(stepper(project, "status", "--json"))["state"] == "stopped"

    restore = tool("Bash", {"command": "stepper restore", "description": "Rebuild"})
    turns = [[restore], read(notebook), edit(notebook, "x + 2")]
    model.then(*turns, [text("Done. What next?")])
    client.send("Rebuild them.")
    client.wait_for("Do you want to proceed?", 40)
    until = time.monotonic() + 20
    while "Do you want to proceed?" in client.screen() and time.monotonic() < until:
        client.keys("Enter")  # the first key can arrive too early
        time.sleep(1)
    client.wait_for("What next?", 60)
    assert json.loads(notebook.read_text())["cells"][-1]["outputs"]
    assert "| 43" in model.shown()


def test_renamed_notebook_keeps_its_kernel(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = new(project, "rename", "Load", "Count")
    renamed = notebook.with_name("renamed.ipynb")
    command = {"command": f"mv '{notebook}' '{renamed}'", "description": "Rename"}
    turns = [read(notebook), edit(notebook, "x = 41"), [tool("Bash", command)]]
    turns += [read(renamed), edit(renamed, "x + 1"), [text("Done. What next?")]]
    model = scripted_model(*turns)
    client = interactive_claude(model)
    client.send("Go.")
    client.wait_for("What next?", 60)
    assert 'step 2 of 2 "Count" · ok' in client.screen()
    assert "| 42" in model.shown()
    assert "its kernel, plan and history continue under the new name" in model.shown()


def test_edits_of_uncovered_notebooks_are_reported(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    top = project / "top.ipynb"
    cells = [{"id": "m0", "cell_type": "markdown", "metadata": {}, "source": "x"}]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    top.write_text(json.dumps(book))
    turns = [read(top), edit(top, "1"), read(top), edit(top, "2"), [text("Well?")]]
    client = interactive_claude(scripted_model(*turns))
    client.send("Go.")
    screen = join_lines(client.wait_for("Well?", 60))
    assert screen.count("says: ✗ cell not run: top.ipynb does not match") == 1
    assert screen.count("says: ✗ the cell was NOT run: top.ipynb does not match") == 1
