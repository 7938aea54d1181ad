"""The seven-step notebook in the real Codex and Gemini CLIs, and in the real Claude Code without its hooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.ground.paths import Paths
from stepper.setup import install, refuse
from tests.conftest import make_env

from . import story
from .clients import Client, Codex
from .conftest import Start
from .models import Call

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]  # the first one may fetch a client


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A repository in which stepper is set up, without what Claude Code needs of it."""
    folder = tmp_path / "a répo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    install.apply(refuse.parse([str(folder), "--python", sys.executable]))
    yield folder
    subprocess.run([folder / ".stepper/env/bin/stepper", "shutdown"], cwd=folder, check=True, capture_output=True)


def servers(kind: type[Client], project: Path) -> str:
    """Our server, as the client's settings name it."""
    command = str(project / ".stepper/env/bin/stepper")
    if kind is Codex:
        known = f'env = {{ XDG_STATE_HOME = "{os.environ["XDG_STATE_HOME"]}" }}'  # it hands few variables on
        return f'[mcp_servers.stepper]\ncommand = "{command}"\nargs = ["mcp"]\nrequired = true\n{known}\n'
    return json.dumps({"mcpServers": {"stepper": {"command": command, "args": ["mcp"]}}})


def test_the_seven_steps(kind: type[Client], start: Start, project: Path) -> None:
    told: list[str] = []
    lift = story.by_terminal(project, told.append)
    client = start(project, servers(kind, project), *story.script(Call("lift_stop", {}), lift))

    ended = client.prompt("Work in a notebook.")

    assert (ended.returncode, client.model.errors) == (0, []), ended
    assert client.model.unsaid == 0
    story.check(project, client.model.results)
