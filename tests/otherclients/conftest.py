"""Fixtures: a client and a scripted model for its protocol.

If a client is not available, its tests are skipped, or fail if CI=true.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.conftest import make_env
from tests.npm_packages import Unavailable, unavailable

from .clients import Client, Codex, Gemini
from .models import Turn

Start = Callable[..., Client]


@pytest.fixture(params=[Codex, Gemini], ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> type[Client]:
    """The client under test."""
    try:
        request.param.install()
    except Unavailable as reason:
        unavailable(reason)
    return request.param


@pytest.fixture
def start(kind: type[Client], tmp_path: Path) -> Iterator[Start]:
    """`start(project, servers, turn, turn, …)` starts the client and its model.

    The client's home contains only settings.
    """
    models = []
    with ExitStack() as stack:

        def make(project: Path, servers: str, *script: Turn) -> Client:
            models.append(stack.enter_context(kind.model_type(*script)))
            home = tmp_path / f"home-{len(models)}"
            home.mkdir()
            return kind(project, home, models[-1], servers)

        yield make
    assert not [error for model in models for error in model.errors]


@pytest.fixture
def installed_project(tmp_path: Path) -> Iterator[Path]:
    """A repository with stepper installed, without the parts for Claude Code."""
    folder = tmp_path / "a répo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    options = ["--mcp-only", "--python", sys.executable]
    installer.apply(install_options.parse_arguments([str(folder), *options]))
    yield folder
    subprocess.run(
        [folder / ".stepper/env/bin/stepper", "shutdown"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
