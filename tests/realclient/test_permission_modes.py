"""Prompts, messages and runs in each permission mode of the client.

The results are the table in docs/development/claude-code.md. All tests share one
installed repository; each has its own notebook.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.conftest import make_env

from .conftest import ClaudeFactory, InteractiveFactory
from .model import Block, ScriptedModel, text, tool, tool_results
from .repository import stepper

Model = Callable[..., ScriptedModel]
pytestmark = pytest.mark.timeout(600)
END = "That was all."
RUNS = "approving an edit of a code cell runs the cell immediately"
RUNS_IN_AUTO_MODE = "approving a code cell runs it immediately"
EMPTY = json.dumps({"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A repository installed without `--allow`; its environment is created offline."""
    folder = tmp_path_factory.mktemp("modes") / "repo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    installer.apply(
        install_options.parse_arguments([str(folder), "--python", sys.executable])
    )
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # empty now


@pytest.fixture(autouse=True)
def plain(project: Path) -> Iterator[None]:
    yield
    (project / ".stepper/config.yaml").unlink(missing_ok=True)
    (project / ".claude/settings.local.json").unlink(missing_ok=True)


def count_runs(notebook: Path) -> int:
    return len(
        json.loads(stepper(notebook.parent.parent, "history", str(notebook), "--json"))
    )


def insert(notebook: Path, after: str, kind: str, source: str) -> Block:
    arguments = {"notebook_path": str(notebook), "cell_id": after, "new_source": source}
    return tool("NotebookEdit", {**arguments, "cell_type": kind, "edit_mode": "insert"})


def two_steps(project: Path, name: str) -> tuple[Path, list[list[Block]]]:
    """Return a notebook with a plan of two steps, and the turns that write them."""
    response = json.loads(
        stepper(project, "new", name, "--step", "Load", "--step", "Count", "--json")
    )
    notebook = project / response["notebook"]
    cells = [
        ("markdown", "## Load"),
        ("code", "x = 42"),
        ("markdown", "## Count"),
        ("code", "x + 1"),
    ]
    turns = [[insert(notebook, f"cell-{n}", *cell)] for n, cell in enumerate(cells)]
    return notebook, [[tool("Read", {"file_path": str(notebook)})], *turns]


@pytest.mark.nightly
def test_manual_mode_asks_once_per_step_and_explains_approval(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    """An edit of an uncovered notebook needs permission; one line says that nothing ran."""
    notebook, turns = two_steps(project, "manual")
    top = project / "top.ipynb"
    top.write_text(EMPTY)
    uncovered_edit = tool(
        "NotebookEdit",
        {
            "notebook_path": str(top),
            "new_source": "1",
            "cell_type": "code",
            "edit_mode": "insert",
        },
    )
    model = scripted_model(
        *turns, [tool("Read", {"file_path": str(top)})], [uncovered_edit], [text(END)]
    )
    client = interactive_claude(model, permissions="default")
    client.send("Go.")
    prompts = client.approve_edits_until(END)

    message = f"PreToolUse:Read says: stepper: {RUNS}"
    assert [
        re.findall(r"Insert new cell .*\((\w+)\)", screen)[-1] for screen in prompts
    ] == ["code"] * 3
    assert message in prompts[0] and prompts[0].index(message) < prompts[0].index(
        "Do you want to insert this cell into"
    )
    screen = client.screen()
    assert 'says: ✓ step 1 of 2 "Load" · ok' in screen and screen.count(RUNS) == 1
    assert "says: ✗ cell not run: top.ipynb does not match `notebooks:`" in screen
    assert 'to include the notebook, set: notebooks: ["notebooks", "*.ipynb"]' in screen
    assert (
        "top.ipynb does not match `notebooks:`" in model.shown()
        and count_runs(notebook) == 2
    )


@pytest.mark.nightly
def test_manual_mode_explains_approval_for_a_first_code_cell(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    """The first edit of a notebook without a plan shows the line, the second does not."""
    notebook = project / "notebooks/first.ipynb"
    notebook.parent.mkdir(exist_ok=True)
    notebook.write_text(EMPTY)
    read = tool("Read", {"file_path": str(notebook)})
    cells = [
        tool(
            "NotebookEdit",
            {
                "notebook_path": str(notebook),
                "new_source": source,
                "cell_type": "code",
                "edit_mode": "insert",
            },
        )
        for source in ("print('ran' * 2)", "1 + 1")
    ]
    model = scripted_model([read], [cells[0]], [read], [cells[1]], [text(END)])
    client = interactive_claude(model, permissions="default")
    client.send("Go.")
    prompts = client.approve_edits_until(END)

    assert len(prompts) == 2
    assert prompts[0].index(RUNS) < prompts[0].index(
        "Do you want to insert this cell into"
    )
    assert client.screen().count(RUNS) == 1
    assert "ranran" in notebook.read_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "config", "expected_prompts", "runs"),
    [
        ("default", "", 2, 2),
        ("default", "auto_run: ask", 2, 0),
        ("", "", 0, 2),  # the client's default in a new home: auto
        ("auto", "auto_run: ask", 2, 2),
        ("acceptEdits", "", 0, 2),
        ("acceptEdits", "auto_run: ask", 0, 2),
        ("bypassPermissions", "", 0, 2),
        ("plan", "", 4, 0),
        ("dontAsk", "", 0, 0),
    ],
)
def test_prompts_and_runs_per_permission_mode(
    project: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
    mode: str,
    config: str,
    expected_prompts: int,
    runs: int,
) -> None:
    (project / ".stepper/config.yaml").write_text(config)
    notebook, turns = two_steps(project, f"mode {mode} {config[:8]}")
    client = interactive_claude(scripted_model(*turns, [text(END)]), permissions=mode)
    client.send("Go.")
    screens = client.approve_edits_until(END)
    assert (len(screens), count_runs(notebook)) == (expected_prompts, runs), (
        client.screen()
    )
    assert all("Do you want to insert this cell into" in screen for screen in screens)
    if mode == "auto":  # not part of the question itself
        assert RUNS_IN_AUTO_MODE in screens[0]
    if not mode:
        assert "auto mode on" in client.screen()


@pytest.mark.nightly
def test_allow_rule_covers_only_notebooks_matching_the_patterns(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    """Without a user (`-p`), tool calls that no rule allows are denied."""
    from stepper.install import claude_settings

    allowed = claude_settings.list_permission_rules(
        ["*.ipynb", "exp_*", "lab/**", "one/a.ipynb"]
    )
    (project / ".claude/settings.local.json").write_text(
        json.dumps({"permissions": {"allow": allowed}})
    )
    covered = [
        "new.ipynb",
        "exp_1/a.ipynb",
        "exp_1/deep/a.ipynb",
        "lab/a.ipynb",
        "lab/b/c.ipynb",
        "one/a.ipynb",
    ]
    names = [
        *covered,
        "one/b.ipynb",
        "other/a.ipynb",
        "new.py",
        "lab/a.py",
        ".claude/a.ipynb",
    ]
    model = scripted_model(
        *(
            [tool("Write", {"file_path": str(project / name), "content": EMPTY})]
            for name in names
        )
    )
    claude(model).prompt("Go.", permissions="default")
    assert [name for name in names if (project / name).exists()] == covered, (
        tool_results(model.requests[-1])
    )
