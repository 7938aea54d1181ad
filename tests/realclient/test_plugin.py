"""The plugin in the real client, with the repository as its marketplace.

It is tested alone and next to an installation by install.sh.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer, uninstall
from tests.conftest import ROOT, make_env

from .client import environment
from .conftest import ClaudeFactory, InteractiveFactory
from .model import Block, ScriptedModel, collect_text, tool, tool_results
from .test_run_on_edit import (
    code,
    find_last_edited_cell,
    insert,
    read,
    replace,
    stepper,
)

Model = Callable[..., ScriptedModel]
pytestmark = pytest.mark.timeout(600)
PARTS = (
    ".claude-plugin",
    ".mcp.json",
    "README.md",
    "LICENSE",
    "bin",
    "hooks",
    "skills",
    "install.sh",
    "stepper",
    "pyproject.toml",
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the files that a plugin needs."""
    folder = tmp_path_factory.mktemp("clone") / "stepper"
    for name in PARTS:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    folder = (tmp_path / "a répo").resolve()
    (folder / "notebooks").mkdir(parents=True)
    yield folder
    if Path(Paths(str(folder)).env).exists():
        stepper(folder, "shutdown")
        uninstall.uninstall(
            install_options.parse_arguments(["--uninstall", str(folder)])
        )


@pytest.fixture
def manage(claude_binary: Path, home: Path) -> Callable[..., str]:
    """`manage("install", …)`: `claude plugin install …`, and its output."""

    def call(*arguments: object) -> str:
        command = [claude_binary, "plugin", *map(str, arguments)]
        env = {**environment(home, NOBODY)}
        result = subprocess.run(
            command,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    return call


class Nobody(ScriptedModel):
    """A model that gets no requests: managing plugins needs none."""

    def __init__(self) -> None:
        self.url = "http://127.0.0.1:9"


NOBODY = Nobody()


@pytest.fixture
def installed_plugin(
    manage: Callable[..., str], repository: Path
) -> Callable[..., str]:
    """The plugin, installed from the repository in the user's scope."""
    manage("marketplace", "add", repository)
    manage("install", "stepper@stepper")
    return manage


def set_up(folder: Path, *options: str) -> None:
    """Do what the installation command does, without network access."""
    make_env(Paths(str(folder)).env)
    installer.apply(
        install_options.parse_arguments(
            [str(folder), "--python", sys.executable, *options]
        )
    )


def path_without_stepper() -> str:
    """Return a PATH without `stepper`; this environment's folder contains one."""
    return os.pathsep.join(
        item
        for item in os.environ["PATH"].split(os.pathsep)
        if not Path(item, "stepper").exists()
    )


def bash(command: str) -> Block:
    return tool("Bash", {"command": command, "description": "Call it"})


def list_runs(folder: Path, notebook: Path) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = json.loads(
        stepper(folder, "history", str(notebook), "--json")
    )
    return history


def new(folder: Path) -> Path:
    response = json.loads(
        stepper(folder, "new", "Count", "--step=Load", "--step=Count", "--json")
    )
    return folder / response["notebook"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param([], marks=pytest.mark.nightly, id="plugin"),
        pytest.param(["--profile", "directory"], id="directory"),
    ],
)
def test_client_validates_the_plugin(
    claude_binary: Path, home: Path, repository: Path, options: list[str]
) -> None:
    for target in (repository, repository / ".claude-plugin" / "plugin.json"):
        command = [claude_binary, "plugin", "validate", "--strict", *options, target]
        result = subprocess.run(
            command, env=environment(home, NOBODY), capture_output=True, text=True
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert (
            "stepper:continue" in result.stdout
            and "hooks/plugin" in result.stdout
            and "warning" not in result.stdout.lower()
        )


def test_plugin_without_installation(
    project: Path,
    installed_plugin: Callable[..., str],
    scripted_model: Model,
    claude: ClaudeFactory,
    repository: Path,
) -> None:
    """Without an environment no cell runs.

    The session's start prints the installation command. After that command cells run,
    and .claude/ is unchanged.
    """
    assert "stepper@stepper" in installed_plugin("list")
    path = path_without_stepper()
    bare = project / "notebooks" / "first.ipynb"
    bare.write_text('{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
    model = scripted_model(
        [bash("command -v stepper; stepper status")],
        [read(bare)],
        [insert(bare, "1 + 1", "")],
    )
    before = sorted(project.rglob("*"))
    claude(model, env={"PATH": path}).prompt("Begin.")
    command = f"'{repository}/install.sh' --plugin '{project}'"
    assert f"To set it up, run: {command}" in collect_text(model.requests[0])
    assert (
        model.shown().count("the cell was NOT run: stepper is not set up") == 1
        and model.shown().count(command) == 2
    )
    # printed by the plugin's own `stepper`
    assert "install.sh --plugin" in tool_results(model.requests[1])[0]
    assert (
        sorted(project.rglob("*")) == before
        and not Path(Paths(str(project)).install_record).exists()
    )

    set_up(project, "--plugin")
    assert (
        not (project / ".claude").exists()
        and (project / ".gitignore").read_text() == ".stepper/\n"
    )
    notebook = new(project)
    model = scripted_model(
        [bash("command -v stepper")],
        [read(notebook)],
        [insert(notebook, "rows = [1, 2, 3]\nlen(rows)", "cell-0")],
        lambda messages: [
            insert(
                notebook,
                "raise RuntimeError('STOP: which one?')",
                find_last_edited_cell(messages),
            )
        ],
    )
    result = claude(model, env={"PATH": path}).prompt("Begin.", "--include-hook-events")
    env = Paths(str(project)).env
    assert f"{env}/cli/stepper" in tool_results(model.requests[1])[0]
    assert [run["outcome"] for run in list_runs(project, notebook)][:1] == ["ok"]
    assert model.shown().count("ran ok") == 1 and next(
        source for source, _ in code(notebook)
    ).startswith("rows")
    # the stop message names the plugin's command
    assert (
        "which one?" in result.stdout
        and "Type /stepper:continue instead of" in result.stdout
    )

    model = scripted_model()
    claude(model, env={"PATH": path}).prompt("/stepper:continue the first")
    # the plugin's folder is on the client's PATH, and not on that of the user's terminal
    assert "(in a terminal: `.stepper/env/bin/stepper continue" in model.shown()
    assert (
        json.loads(stepper(project, "status", str(notebook), "--json"))["state"]
        != "stopped"
    )

    # after removal, notebooks and kernels stay
    kernel = json.loads(stepper(project, "status", str(notebook), "--json"))["kernel"]
    installed_plugin("uninstall", "stepper@stepper")
    model = scripted_model([read(notebook)], [insert(notebook, "len(rows)", "cell-0")])
    claude(model, env={"PATH": path}).prompt("Begin.")
    # as before
    assert (
        "stepper" not in collect_text(model.requests[0])
        and len(list_runs(project, notebook)) == 2
    )
    assert (
        json.loads(stepper(project, "status", str(notebook), "--json"))["kernel"][
            "state"
        ]
        == kernel["state"]
    )
    assert stepper(project, "eval", "len(rows)").strip().endswith("3")


@pytest.mark.nightly  # tests/test_plugin.py tests the script by day
def test_plugin_next_to_an_installation(
    project: Path,
    installed_plugin: Callable[..., str],
    scripted_model: Model,
    claude: ClaudeFactory,
) -> None:
    """Both hooks run, but there is one run, one report and one line."""
    set_up(project)
    notebook = new(project)
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = [1, 2, 3]\nlen(rows)", "cell-0")],
        lambda messages: [insert(notebook, "rowz", find_last_edited_cell(messages))],
        lambda messages: [replace(notebook, "rows", find_last_edited_cell(messages))],
    )
    result = claude(model, env={"PATH": path_without_stepper()}).prompt(
        "Begin.", "--include-hook-events"
    )
    assert [run["outcome"] for run in list_runs(project, notebook)] == ["ok", "ok"]
    assert model.shown().count("ran ok") == 2
    assert model.shown().count("did NOT run. The preflight check found") == 1
    (servers,) = [
        event["mcp_servers"]
        for event in result.events
        if event.get("subtype") == "init"
    ]
    assert [
        server["status"]
        for server in servers
        if server["name"] == "plugin:stepper:stepper"
    ] in (
        ["connected"],
        ["pending"],
    )
    hook_events = [
        event
        for event in result.events
        if "hook_name" in event and "✓ step" in str(event.get("output", ""))
    ]
    assert len(hook_events) == 2, result.stdout


@pytest.mark.nightly
def test_install_and_remove_in_interactive_dialogs(
    project: Path,
    home: Path,
    repository: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    """The user types the commands of the README.

    The plugin is active in the same session until it is removed.
    """
    set_up(project, "--plugin")
    notebook = new(project)
    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "rows = [1, 2, 3]\nlen(rows)", "cell-0")],
        lambda messages: [
            insert(
                notebook,
                "raise RuntimeError('STOP: which one?')",
                find_last_edited_cell(messages),
            )
        ],
    )
    with interactive_claude(model, env={"PATH": path_without_stepper()}) as client:
        client.send(f"/plugin marketplace add {repository}")
        client.wait_for("Added marketplace: stepper")
        client.wait_for("/reload-plugins")  # the dialog closes without a key
        client.send("/plugin install stepper")
        screen_text = client.wait_for("❯ Install for you (user scope)")
        assert (
            "Runs each notebook cell as Claude writes it" in screen_text
            and "The stepper developers" in screen_text
        )
        client.keys("Enter")
        client.wait_for("Installed stepper.")
        client.send("Begin.")
        screen = client.wait_for("(Type /stepper:continue instead")
        assert (
            '✓ step 1 of 2 "Load" · ok' in screen
            and "The agent asks: which one?" in screen
        )
        client.send("/stepper:continue the first")
        client.wait_for("● done")
        assert (
            json.loads(stepper(project, "status", str(notebook), "--json"))["state"]
            != "stopped"
        )
        client.send("/plugin uninstall stepper@stepper")
        client.wait_for("Uninstalled stepper.")
        client.keys("Escape")
    assert (
        not json.loads((home / ".claude/settings.json").read_text())
        .get("enabledPlugins", {})
        .get("stepper@stepper")
    )
    # unchanged
    assert (
        json.loads(stepper(project, "status", str(notebook), "--json"))["kernel"][
            "state"
        ]
        == "idle"
    )
