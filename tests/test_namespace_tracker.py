"""The namespace that a session knows, and when it is requested again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepper.common.errors import KernelError
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.session.session_state.namespace_tracker import NamespaceTracker


class Kernel:
    """A kernel that cannot be reached for the first request."""

    def __init__(self) -> None:
        self.requests = 0

    async def fetch_namespace(self) -> Namespace:
        self.requests += 1
        if self.requests == 1:
            raise KernelError("the kernel cannot be reached")
        return Namespace(functions={"new": "()"})


def test_failed_request_is_repeated() -> None:
    tracker = NamespaceTracker()
    tracker.record_external(Namespace(functions={"old": "()"}))
    tracker.record_external(UNKNOWN_NAMESPACE)  # a silent execution
    kernel: Any = Kernel()
    with pytest.raises(KernelError):
        asyncio.run(tracker.fetch(kernel))
    for _ in range(2):
        namespace = asyncio.run(tracker.fetch(kernel))
        assert namespace.functions == {"new": "()"}
    assert kernel.requests == 2
