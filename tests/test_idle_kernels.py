"""The shutdown of idle kernels while the user works in other notebooks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

from stepper.common.errors import KernelError
from stepper.daemon.server import Daemon
from stepper.policy.model import Limits


class IdleSession:
    """A session with an idle kernel. `on_shutdown` is called during its shutdown."""

    is_idle = True

    def __init__(self, name: str, last_used: float) -> None:
        self.name = name
        self.requests = SimpleNamespace(last_used=last_used)
        self.kernel_manager = self
        self.kernel: Any = object()
        self.on_shutdown: Callable[[], None] = lambda: None

    @contextlib.asynccontextmanager
    async def take_turn(self) -> AsyncIterator[None]:
        yield

    async def shut_down(self, reason: str) -> bool:
        await asyncio.sleep(0)
        self.on_shutdown()
        self.kernel = None
        return True


def shut_down_idle_kernels(sessions: list[IdleSession]) -> list[str]:
    """Shut down all idle kernels but one, and return the names of those that run."""
    limits = Limits(max_kernels=1)
    workspace = SimpleNamespace(
        config=SimpleNamespace(load_limits=lambda: limits),
        sessions={session.name: session for session in sessions},
    )
    daemon: Any = SimpleNamespace(workspace=workspace)
    asyncio.run(Daemon._shut_down_idle_kernels(daemon, 10.0))
    return [session.name for session in sessions if session.kernel]


def test_kernel_that_was_used_meanwhile_keeps_running() -> None:
    first, second, third = (IdleSession(name, 9.0 - int(name)) for name in "123")

    def use_third() -> None:
        third.requests.last_used = 10.5

    second.on_shutdown = use_third
    assert shut_down_idle_kernels([first, second, third]) == ["1", "3"]


def test_kernel_that_is_not_idle_any_more_keeps_running() -> None:
    first, second, third = (IdleSession(name, 9.0 - int(name)) for name in "123")

    def start_external_run() -> None:
        third.is_idle = False

    second.on_shutdown = start_external_run
    assert shut_down_idle_kernels([first, second, third]) == ["1", "3"]


def test_failed_shutdown_does_not_keep_other_kernels_running() -> None:
    first, second, third = (IdleSession(name, 9.0 - int(name)) for name in "123")

    def fail() -> None:
        raise KernelError("the host cannot be reached")

    second.on_shutdown = fail
    assert shut_down_idle_kernels([first, second, third]) == ["1", "2"]
