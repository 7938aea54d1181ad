"""Notebooks in the real client are verified before they count as complete.

Cells are edited out of order and a provider is deleted. `docs/development/verify.md`
shows the reports.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths

from .conftest import ClaudeFactory, InteractiveFactory
from .model import Block, Message, ScriptedModel, collect_text, text
from .repository import repository
from .test_run_on_edit import (
    delete,
    get_new_text,
    insert,
    read,
    replace,
    stepper,
    wait_until,
)
from .test_undelivered_reports import bash

Model = Callable[..., ScriptedModel]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(120)]
REPRODUCES = "reproduces (3 of 3 cells as recorded)"


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An installed repository; its environment is created offline."""
    with repository(tmp_path_factory.mktemp("verify") / "repo") as folder:
        yield folder


def create_notebook(project: Path, problem: str, *steps: str) -> Path:
    response = json.loads(
        stepper(
            project, "new", problem, *(f"--step={step}" for step in steps), "--json"
        )
    )
    return project / response["notebook"]


def ids(notebook: Path) -> list[str]:
    return [
        cell["id"]
        for cell in json.loads(notebook.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]


def make_edit_turn(
    notebook: Path, edit: Callable[..., Block], source: str, index: int
) -> Callable[[list[Message]], list[Block]]:
    """Return a turn that edits the code cell at an index, or inserts one below it."""
    return lambda _: [edit(notebook, source, ids(notebook)[index])]


def test_notebook_edited_out_of_order_is_fixed_until_it_reproduces(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    notebook = create_notebook(project, "Rain in inches")
    name = f"notebooks/{notebook.name}"
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rain = [35.1, 10.4, 25.9]", "cell-0")],
        make_edit_turn(notebook, insert, "mm = 25.4", 0),
        make_edit_turn(
            notebook, insert, "inches = [round(day / mm, 2) for day in rain]", 1
        ),
        make_edit_turn(notebook, insert, "print(sum(inches))", 2),
        make_edit_turn(notebook, replace, "rain = [35.1, 10.4, 25.9, 40.6]", 0),
        [bash("stepper run --stale")],
        [read(notebook)],
        lambda _: [delete(notebook, ids(notebook)[1])],
        [bash("stepper verify")],
        make_edit_turn(
            notebook, replace, "inches = [round(day / 25.4, 2) for day in rain]", 1
        ),
        [bash("stepper verify")],
        [text("It is done, and a fresh kernel gets the same.")],
    )
    result = claude(model).prompt("How much rain is that in inches?")
    assert result.text == "It is done, and a fresh kernel gets the same."
    message = [get_new_text(model, turn) for turn in range(len(model.requests))]
    assert (
        "Stale: cell 3 read `rain`, which cell 1 changed after it ran. To run this cell: `stepper run --stale`."
        in message[6]
    )
    assert f"{name}: 2 of 2 cells ran ok" in message[7] and "| 4.41" in message[7]
    assert (
        "Hidden state: cell 2 read `mm` from a deleted cell (cell 2 when it ran)."
        in message[9]
    )
    assert f"{name}: DOES NOT REPRODUCE · 1 of 3 cells as recorded · " in message[10]
    failed = "failed: NameError: name 'mm' is not defined (`mm` was defined in cell 2, which was deleted)"
    assert re.search(
        rf"✗ cell 2 \(id \w+\) {re.escape(failed)}\n  · cell 3: not run, because a cell above failed",
        message[10],
    )
    assert (
        "ran ok" in message[11]
        and "Stale" not in message[11]
        and "Hidden" not in message[11]
    )
    assert f"{name}: REPRODUCES · 3 of 3 cells as recorded · " in message[12]
    assert [
        line for line in stepper(project, "status").splitlines() if REPRODUCES in line
    ]


def test_verify_auto_is_reported_and_valid_until_a_source_changes(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    (project / ".stepper" / "config.yaml").write_text("verify: auto\n")
    notebook = create_notebook(project, "Replayed unasked", "Load", "Add", "Tell")
    name = f"notebooks/{notebook.name}"
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rain = [1, 2]", "cell-0")],
        make_edit_turn(notebook, insert, "total = sum(rain)", 0),
        make_edit_turn(notebook, insert, "print(total)", 1),
        [text("All steps are done.")],
    )
    client = claude(model)
    client.prompt("Add it up.")
    assert (
        "stepper replays it in a new kernel now (verify: auto). The next prompt"
        in get_new_text(model, 4)
    )
    status = wait(project, lambda results: results["verified"] and results["unheard"])
    assert status["verified"]["reproduces"]
    changes = [
        [read(notebook)],
        make_edit_turn(notebook, replace, "print(total + 1)", 2),
        [text("Changed.")],
    ]
    model.then([text("Good.")], [text("Shown.")], *changes)
    client.prompt("And does it reproduce?", "--continue")
    assert f"stepper: {name}: REPRODUCES · 3 of 3 cells as recorded · " in get_new_text(
        model, 5
    )
    client.prompt("/notebook-status", "--continue")
    model_input = collect_text(model.requests[6])
    assert re.search(
        rf"verified (just now|[\w ]+ ago): {re.escape(REPRODUCES)}\n", model_input
    ), model_input[-3000:]
    client.prompt("Tell one more.", "--continue")
    text_of = stepper(project, "status")
    assert f"{REPRODUCES}; outdated: a cell has changed since" in text_of


def test_escape_cancels_a_replay(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    notebook = create_notebook(project, "Slow")
    slow = "import os, time\nif os.path.exists('slow'): time.sleep(100)"
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, slow, "cell-0")],
        [text("It ran.")],
        [bash("stepper verify")],
    )
    client = interactive_claude(model)
    client.send("Begin.")
    client.wait_for("It ran.")
    (notebook.parent / "slow").touch()
    client.send("Verify it.")
    replays = Path(Paths(str(project)).verify)
    wait_until(lambda: [*replays.glob("*/*/kernel.json")])
    client.keys("Escape")
    client.wait_for("Interrupted")
    wait_until(lambda: not [*replays.iterdir()])
    assert json.loads(stepper(project, "status", "--json"))["verified"] is None


def wait(project: Path, condition: Callable[[Any], Any]) -> Any:
    deadline = time.monotonic() + 30
    while not condition(status := json.loads(stepper(project, "status", "--json"))):
        assert time.monotonic() < deadline, status
        time.sleep(0.1)
    return status
