"""The agent edits a project module with Edit and sed; the next cell runs the new code."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .conftest import ClaudeFactory
from .model import Block, Message, ScriptedModel, cell_ids, text, tool, tool_results
from .repository import repository, stepper
from .test_run_on_edit import delete, get_new_text, insert, read

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
Model = Callable[..., ScriptedModel]
FEATURES = '''"""Features of the sales."""

DISCOUNT = 0.0


def add_revenue(rows):
    return [price * count * (1 - DISCOUNT) for price, count in rows]
'''
IMPORTS = """import sys
sys.path.insert(0, "..")
from salesproj.features import add_revenue
rows = [(10.0, 3), (2.5, 8)]
print(sum(add_revenue(rows)))"""
TOTAL = "print(sum(add_revenue(rows)))"


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An installed repository, with a package next to its notebooks."""
    with repository(tmp_path_factory.mktemp("modules") / "repo") as folder:
        (folder / "salesproj").mkdir()
        (folder / "salesproj" / "__init__.py").write_text("")
        yield folder


def test_an_edited_module_is_reloaded_and_a_restore_names_what_differs(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    features = project / "salesproj" / "features.py"
    features.write_text(FEATURES)
    response = json.loads(stepper(project, "new", "Revenue", "--json"))
    notebook = project / response["notebook"]

    def inserted(source: str) -> Callable[[list[Message]], list[Block]]:
        """Insert a cell below the cell of the notebook's last edit."""

        def turn(messages: list[Message]) -> list[Block]:
            cell = last_cell(messages)
            return [insert(notebook, source, cell)]

        return turn

    def edit(before: str, after: str) -> list[Block]:
        tool_input = {
            "file_path": str(features),
            "old_string": before,
            "new_string": after,
        }
        return [tool("Edit", tool_input)]

    model = scripted_model(
        [read(notebook), read(features)],
        inserted(IMPORTS),
        edit("DISCOUNT = 0.0", "DISCOUNT = 0.1"),
        inserted(TOTAL),
        bash("sed -i 's/DISCOUNT = 0.1/DISCOUNT = 0.2/' salesproj/features.py"),
        inserted(TOTAL),
        edit("return [price", "return [price["),
        inserted(TOTAL),
        [text("The end.")],
    )
    client = claude(model)
    client.prompt("Compute the revenue.")
    assert "ran ok" in get_new_text(model, 2) and "Reloaded" not in get_new_text(
        model, 2
    )
    reloaded = "\nReloaded: salesproj.features (changed since it was imported).\n"
    assert reloaded + "Output:\n| 45.0\n" in get_new_text(model, 4)
    assert (
        "Stale: cell 1 used `salesproj.features`, which changed after it ran"
        in get_new_text(model, 4)
    )
    assert reloaded + "Output:\n| 40.0\n" in get_new_text(model, 6)
    assert (
        "\nWarning: salesproj.features changed and could not be reloaded"
        " (salesproj/features.py, line 7: SyntaxError: "
    ) in get_new_text(model, 8)
    assert (
        "); the kernel still has the old code. To fix this, correct"
        " salesproj/features.py: the next cell reloads the module.\nOutput:\n| 40.0"
    ) in get_new_text(model, 8)

    config = project / ".stepper" / "config.yaml"
    config.write_text("local_modules: warn\n")
    model.then(
        [read(features), read(notebook)],
        edit("[price[", "[price"),
        edit("DISCOUNT = 0.2", "DISCOUNT = 0.5"),
        inserted(TOTAL),
        [text("The end.")],
    )
    client.prompt("Correct it.", "--continue")
    name = f"notebooks/{notebook.name}"
    assert (
        "\nWarning: salesproj.features has changed since it was imported"
        " (salesproj/features.py) and was not reloaded (`local_modules: warn`); the"
        f" kernel still has the old code. To load the new code, run: `stepper run {name} --all`"
        "\nOutput:\n| 40.0"
    ) in get_new_text(model, -1)

    model.then([read(notebook)], inserted("import os\nos.kill(os.getpid(), 9)"))
    client.prompt("Go on.", "--continue")
    # The command is written as it works in the shell of the test.
    restored = stepper(project, "restore").replace(".stepper/env/bin/", "")
    assert restored.endswith(
        f"{name}: 5 of 5 cells ran ok\n"
        "The outputs of 5 cells differ from those recorded before:\n"
        "cell 1: 1 line differs:\n| - 50.0\n| + 25.0\n"
        "cell 2: 1 line differs:\n| - 45.0\n| + 25.0\n"
        + "".join(
            f"cell {number}: 1 line differs:\n| - 40.0\n| + 25.0\n"
            for number in (3, 4, 5)
        )
        + "Changed since the recorded runs: salesproj.features. The outputs"
        " may differ for this reason.\n"
        "To check whether a new kernel reproduces the new outputs, run:"
        f" `stepper verify {name}`\n"
    )

    model.then(
        [read(notebook)],
        lambda messages: [delete(notebook, cell_ids(messages)[-1])],
        bash("stepper run --all"),
        bash("sed -i 's/0.5/0.6/' salesproj/features.py && stepper run --all"),
        [text("The end.")],
    )
    client.prompt("Run all cells.", "--continue")
    first, second = tool_results(model.requests[-1])[-2:]
    assert "5 of 5 cells ran ok" in first and "differ" not in first
    assert "The outputs of 5 cells differ from those recorded before:" in second
    assert "cell 5: 1 line differs:\n| - 25.0\n| + 20.0\n" in second
    assert model.unsaid == 0


def bash(command: str) -> list[Block]:
    return [tool("Bash", {"command": command, "description": "Run a command"})]


def last_cell(messages: list[Message]) -> str:
    """Return the id of the last inserted cell, else of the last cell that was read."""
    for result in reversed(tool_results(messages)):
        if match := re.match(r"Inserted cell (\S+) ", result):
            return match[1]
        if match := re.findall(r'<cell id="([^"]*)"', result):
            return match[-1]
    raise AssertionError("no cell was read or inserted")
