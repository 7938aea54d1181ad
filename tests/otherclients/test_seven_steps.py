"""The seven-step notebook in the real Codex, Gemini and Claude Code without hooks."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepper.mcp import tool_calls
from tests.realclient.conftest import (
    InteractiveFactory,
    claude_binary,
    home,
    interactive_claude,
    scripted_model,
)
from tests.realclient.model import ScriptedModel

from . import seven_steps
from .claude import find_results, turns
from .clients import Client, Codex
from .conftest import Start
from .models import Call

# fixtures of the client's harness
__all__ = [
    "claude_binary",
    "home",
    "interactive_claude",
    "scripted_model",
]
FILES = {
    "claude": ".mcp.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
}
# the first test may download a client
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]


@pytest.fixture
def project(installed_project: Path) -> Path:
    """The project folder of Claude Code."""
    return installed_project


def write_client_config(installed: Path, name: str) -> Path:
    """Add the client's entry to the repository; return its file."""
    command = [
        installed / ".stepper/env/bin/stepper",
        "mcp",
        "--config",
        name,
        "--install",
    ]
    subprocess.run(command, cwd=installed, check=True, capture_output=True)
    return installed / FILES[name]


def test_the_seven_steps(
    kind: type[Client], start: Start, installed_project: Path
) -> None:
    messages: list[str] = []
    lift_turn = seven_steps.lift_stop_in_terminal(installed_project, messages.append)
    write_client_config(installed_project, kind.name)
    trusted = (
        f'[projects."{installed_project}"]\ntrust_level = "trusted"\n'
        if kind is Codex
        else "{}"
    )
    client = start(
        installed_project,
        trusted,
        *seven_steps.script(Call("lift_stop", {}), lift_turn),
    )

    ended = client.prompt("Work in a notebook.")

    assert (ended.returncode, client.model.errors) == (0, []), ended
    assert client.model.unsaid == 0
    seven_steps.check(installed_project, client.model.results)


def test_the_seven_steps_in_claude_code_without_hooks(
    installed_project: Path,
    tmp_path: Path,
    scripted_model: Callable[..., ScriptedModel],
    interactive_claude: InteractiveFactory,
) -> None:
    assert not (installed_project / ".claude").exists()  # no hooks
    servers = json.loads(write_client_config(installed_project, "claude").read_text())
    _, line = servers["mcpServers"]["stepper"]["args"]
    servers["mcpServers"]["stepper"]["args"] = [
        "-c",
        f"tee {shlex.quote(str(tmp_path / 'sent'))} | ({line})",
    ]
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps(servers))
    model = scripted_model(
        *turns(*seven_steps.script(Call("lift_stop", {})), "That is all.")
    )
    client = interactive_claude(model, "--mcp-config", str(config))

    client.send("Work in a notebook.")
    screen_text = client.wait_for("requests your input", timeout=40)
    assert "STOP: which year is it?" in screen_text
    assert model.unsaid == 6  # the call waits for the user
    client.keys("Right")
    client.wait_for("◯ fix")
    client.keys("Down", "Enter")
    client.wait_for("Type something")
    client.type("It is 2024.")
    client.keys("Enter")
    while "requests your input" in client.wait_for(
        "❯ Accept" if model.unsaid == 6 else ""
    ):
        client.keys("Enter")
        time.sleep(1)  # a key sent immediately after the previous one is lost
    client.wait_for("That is all.")

    assert model.unsaid == 0
    results = find_results(model.requests[-1])
    (lift_result,) = (
        result.text
        for result in results
        if result.text.startswith("The client answered: fix.")
    )
    assert "It is 2024." in lift_result
    seven_steps.check(installed_project, results)
    (name,) = tool_calls.BACKGROUND_CLIENTS  # waits for the end of each call
    assert f'"name":"{name}"' in (tmp_path / "sent").read_text()
