"""The client in a linked git worktree.

Cells run in the main checkout's environment. Commands apply to the worktree.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.conftest import make_env
from tests.test_worktree import ENVIRON, git, make_venv

from .client import ClaudeCode
from .model import ScriptedModel, tool, tool_results


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_a_session_in_a_worktree(
    claude_binary: Path,
    home: Path,
    tmp_path: Path,
    scripted_model: Callable[..., ScriptedModel],
) -> None:
    main, worktree = tmp_path / "main", tmp_path / "worktree"
    main.mkdir()
    git(main, "init", "--quiet")
    (main / ".gitignore").write_text(".venv\n")
    make_venv(main)
    make_env(Paths(str(main)).env)
    installer.apply(install_options.parse_arguments([str(main)]))
    (main / "notebooks/.keep").touch()
    git(main, "add", "--all")
    git(main, "commit", "--quiet", "--message", "set up")
    git(main, "worktree", "add", "--quiet", str(worktree))
    notebook = worktree / "notebooks/a.ipynb"
    cell = {
        "cell_type": "code",
        "id": "a",
        "source": "import os; print(os.getcwd())",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
    }
    text = json.dumps(
        {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    model = scripted_model(
        [tool("Write", {"file_path": str(notebook), "content": text})],
        [
            tool(
                "Bash",
                {
                    "command": "stepper history; command -v stepper jupyter ipython python; echo :$PATH:"
                },
            )
        ],
    )
    try:
        ClaudeCode(worktree, home, model).prompt("Go.")
        assert f"| {worktree}/notebooks" in model.shown()
        history = tool_results(model.requests[-1])[-1]
        assert "ok" in history
        assert f"{Paths(str(main)).env}/cli/stepper" in history
        # the only program of stepper's environment on the PATH
        assert f"{Paths(str(main)).env}/bin" not in history
        assert not (main / ".stepper/journal").exists()
        assert git(worktree, "status", "--porcelain") == "?? notebooks/a.ipynb\n"
    finally:
        stepper = main / ".stepper/env/bin/stepper"
        subprocess.run(
            [stepper, "shutdown"],
            cwd=worktree,
            env=ENVIRON,
            check=True,
            capture_output=True,
        )
        Path(Paths(str(worktree)).runtime).rmdir()  # empty now
