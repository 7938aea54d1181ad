"""The namespace of a notebook's kernel, as the helper in the kernel reports it."""

from __future__ import annotations

from stepper.policy.execution_result import Execution
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.session.protocols import Kernel


class NamespaceTracker:
    """The last namespace that the kernel reported.

    Only `Session` and `run_recovery` record namespaces. Any code may read `current` and
    call `fetch`, which requests the namespace from the kernel if it may have changed.
    """

    def __init__(self) -> None:
        self.current: Namespace = UNKNOWN_NAMESPACE
        # A silent execution of another client may have changed the namespace.
        self._is_outdated = False

    def record_execution(self, execution: Execution) -> None:
        """Record the namespace after an execution.

        Also set `execution.namespace_before`. If the kernel did not report a namespace,
        set `execution.namespace` to the earlier namespace, but record the current one
        as unknown.
        """
        execution.namespace_before = self.current
        self.current = execution.namespace
        execution.namespace = execution.namespace or execution.namespace_before

    def record_recovered(self, namespace: Namespace) -> None:
        """Record the namespace after a run that lost its daemon or its connection."""
        self.current = namespace

    def record_external(self, namespace: Namespace) -> None:
        """Record the namespace after another client's execution.

        `namespace` is unknown after a silent execution. The next `fetch` then requests
        the namespace from the kernel.
        """
        self._is_outdated = not namespace
        self.current = namespace or self.current

    def reset(self) -> None:
        """Forget the namespace because the kernel is new or lost."""
        self.current = UNKNOWN_NAMESPACE

    async def fetch(self, kernel: Kernel) -> Namespace:
        """Return the namespace; request it from the kernel if it may have changed."""
        if self._is_outdated or not self.current:
            # An external execution during the request sets the flag again.
            self._is_outdated = False
            try:
                self.current = await kernel.fetch_namespace()
            except BaseException:
                self._is_outdated = True
                raise
        return self.current
