"""Fixtures: a scripted model and the real client.

If the client is not available, its tests are skipped, or fail if CI=true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.npm_packages import Unavailable, unavailable

from .client import ClaudeCode, InteractiveClaude, StreamClaude, install
from .model import ScriptedModel, Turn


class ClaudeFactory(Protocol):
    def __call__(
        self,
        model: ScriptedModel,
        env: Mapping[str, str] | None = None,
        trusted: bool = True,
    ) -> ClaudeCode: ...


class StreamFactory(Protocol):
    def __call__(self, model: ScriptedModel, *arguments: str) -> StreamClaude: ...


class InteractiveFactory(Protocol):
    def __call__(
        self,
        model: ScriptedModel,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        permissions: str = "bypassPermissions",
    ) -> InteractiveClaude: ...


@pytest.fixture(scope="session")
def claude_binary() -> Path:
    """Return the path of the client's executable."""
    try:
        return install()
    except Unavailable as reason:
        unavailable(reason)


@pytest.fixture
def scripted_model() -> Iterator[Callable[..., ScriptedModel]]:
    """`scripted_model(turn, turn, …)`: a model that is listening."""
    models: list[ScriptedModel] = []
    with ExitStack() as stack:

        def start(*script: Turn) -> ScriptedModel:
            models.append(stack.enter_context(ScriptedModel(*script)))
            return models[-1]

        yield start
    assert not [error for model in models for error in model.errors]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The client's working folder, with an empty `notebooks/`."""
    (tmp_path / "project" / "notebooks").mkdir(parents=True)
    return tmp_path / "project"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A new HOME for the client."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def claude(claude_binary: Path, project: Path, home: Path) -> ClaudeFactory:
    """`claude(model, env=…)`: the client for single prompts."""

    def make(
        model: ScriptedModel, env: Mapping[str, str] | None = None, trusted: bool = True
    ) -> ClaudeCode:
        return ClaudeCode(project, home, model, env, trusted)

    return make


@pytest.fixture
def stream_claude(
    claude_binary: Path, project: Path, home: Path
) -> Iterator[StreamFactory]:
    """`stream_claude(model, …)`: a client that reads prompts from stdin."""
    with ExitStack() as stack:

        def start(model: ScriptedModel, *arguments: str) -> StreamClaude:
            client = StreamClaude(project, home, model, *arguments)
            stack.callback(client.close)
            return client

        yield start


@pytest.fixture
def interactive_claude(
    claude_binary: Path, project: Path, home: Path
) -> Iterator[InteractiveFactory]:
    """`interactive_claude(model, …)`: the client on a terminal screen."""
    with ExitStack() as stack:

        def start(
            model: ScriptedModel,
            *arguments: str,
            env: Mapping[str, str] | None = None,
            permissions: str = "bypassPermissions",
        ) -> InteractiveClaude:
            try:
                screen = InteractiveClaude(
                    project, home, model, *arguments, env=env, permissions=permissions
                )
            except Unavailable as reason:
                unavailable(reason)
            return stack.enter_context(screen)

        yield start
