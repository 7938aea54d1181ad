"""A uv project in the real client.

`uv sync` has removed ipykernel, shell lines fail, and an installation goes to another
environment. Earlier versions reported the first cell as "✗ cell not run: the kernel
died at start"; now it runs with a copy of ipykernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from tests.test_install import bin_folder, find_uv

from .conftest import InteractiveFactory
from .model import Block, ScriptedModel, text, tool, tool_results

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The user's PATH: uv, then the usual folders with Python and pip."""
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither next to this Python nor on the PATH")
    return f"{bin_folder(tmp_path / 'bin', uv=f'exec {uv} $@')}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def project(claude_binary: Path, tmp_path: Path, path: str) -> Iterator[Path]:
    folder = tmp_path / "shop"
    folder.mkdir()
    stepper = folder / ".stepper/env/bin/stepper"
    for command in (
        ["uv", "init", "--bare", "--name", "shop", "--python", sys.executable],
        ["uv", "add", "packaging<24"],
        [str(ROOT / "install.sh"), ".", "--allow"],
        ["uv", "sync"],
        [
            str(stepper),
            "new",
            "Shop",
            "--step",
            "Install",
            "--step",
            "Look",
            "--step",
            "Ask",
        ],
    ):
        subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
        )
    try:
        yield folder
    finally:
        subprocess.run(
            [stepper, "shutdown"], cwd=folder, check=True, capture_output=True
        )
        Path(Paths(str(folder)).runtime).rmdir()  # fails unless it is empty


def test_session_in_a_uv_project(
    project: Path,
    path: str,
    scripted_model: Callable[..., ScriptedModel],
    interactive_claude: InteractiveFactory,
) -> None:
    notebook = next((project / "notebooks").glob("*.ipynb"))

    def insert(source: str, number: int) -> list[Block]:
        cell = {
            "cell_id": f"cell-{number}",
            "edit_mode": "insert",
            "cell_type": "code",
            "new_source": source,
        }
        return [tool("NotebookEdit", {"notebook_path": str(notebook), **cell})]

    model = scripted_model(
        [
            tool(
                "Bash",
                {
                    "command": "command -v stepper jupyter ipython jupyter-execute; echo :$PATH:"
                },
            )
        ],
        [tool("Read", {"file_path": str(notebook)})],
        insert(
            "import packaging, sys\n!{sys.executable} -m pip install six\nprint(packaging.__version__)",
            0,
        ),
        insert("!nonexistent\nx = !false", 1),
        insert(
            "!uv pip install --python /usr/bin/python3 no-such-distribution-of-ours", 2
        ),
        [text("The end.")],
    )
    client = interactive_claude(model, env={"PATH": path})
    client.send("Go.")
    screen = client.wait_for("The end.", 60)

    env = Paths(str(project)).env
    shell = next(item for item in tool_results(model.requests[-1]) if ":" in item)
    assert f"{env}/cli/stepper" in shell and f"{env}/bin" not in shell
    shown_text = model.shown()
    project_python = f"{project}/.venv/bin/python"
    assert (
        shown_text.count(
            f"{project_python} does not have ipykernel: the kernel runs with"
        )
        == 1
    )
    assert "To install ipykernel, run: uv add --dev ipykernel" in shown_text
    assert (
        "Warning: line 2: `!{sys.executable} -m pip install six` failed with exit code 1"
        in shown_text
    )
    assert "to install for this kernel, run: uv add six" in shown_text
    assert "| 23.2" in shown_text
    assert (
        'Warning: line 1: `!nonexistent` failed with exit code 127; its last output: "'
        in shown_text
    )
    assert "Warning: line 2: `x = !false` failed with exit code 1" in shown_text
    assert (
        f"installs packages for /usr/bin/python3, not for this kernel's interpreter {project_python}"
        in shown_text
    )
    assert 'Step 2 of 3 "Look": done' in shown_text
    observed = [
        line.partition(" says: ")[2].strip()
        for line in screen.splitlines()
        if " says: " in line
    ]
    assert [line.startswith("✓ step") for line in observed] == [True] * 3, screen
    outputs = json.loads(notebook.read_text())["cells"][-1]["outputs"]
    assert outputs, "it ran in the notebook"
