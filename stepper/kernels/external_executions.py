"""The executions of other clients, such as a console or JupyterLab, on the same kernel.

The kernel publishes them to all clients. The session ids of all stepper daemons begin
with the same prefix; a message with another session in its parent is another client's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from stepper.policy.kernel_namespace import Namespace
from stepper.session.protocols import ExternalExecution

SESSION_PREFIX = "stepper-"
MAX_CODE = 2000  # characters of the code and of an error
# Executions that are tracked. The end of one may be lost, so the oldest is dropped.
MAX_EXECUTIONS = 100


class ExternalExecutions:
    """The running executions of other clients.

    `on_finished` is called with each execution that has finished. `own_session` returns the
    id of this client's session, and `decode_namespace` decodes the helper's message.
    """

    def __init__(
        self,
        own_session: Callable[[], str],
        decode_namespace: Callable[[dict[str, Any]], Namespace],
    ) -> None:
        self.own_session = own_session
        self.decode_namespace = decode_namespace
        self.on_finished: Callable[[ExternalExecution], None] = lambda execution: None
        # request → when it started, also of silent executions
        self.busy: dict[str, float] = {}
        self.executions: dict[str, ExternalExecution] = {}
        # Finished requests, whose threads may continue to print.
        self.finished = deque[str](maxlen=MAX_EXECUTIONS)

    @property
    def running_since(self) -> float:
        """When the oldest running one started (monotonic clock), 0 if there is none."""
        return min(self.busy.values(), default=0.0)

    def forget_before(self, before: float) -> None:
        """Drop those that started before a request to which the kernel has replied."""
        for request, started_at in list(self.busy.items()):
            if started_at <= before:
                self.finished.append(request)
                del self.busy[request]

    def handle_message(self, message: Mapping[str, Any]) -> bool:
        """Update the executions; return whether another client caused a message."""
        parent = message["parent_header"]
        session = str(parent.get("session") or "")
        is_own = session.startswith(SESSION_PREFIX) or session == self.own_session()
        if not session or is_own:
            return False
        request = str(parent.get("msg_id") or "")
        if parent.get("msg_type") == "execute_request" and request:
            self._update(request, message)
        return True

    def _update(self, request: str, message: Mapping[str, Any]) -> None:
        message_type = message["msg_type"]
        content = message["content"]
        execution = self.executions.get(request)
        state = content.get("execution_state") if message_type == "status" else None
        # The start of the execution may have been before this daemon's.
        if state != "idle" and request not in self.finished:
            self.busy.setdefault(request, time.monotonic())
            _drop_oldest(self.busy)
        if message_type == "execute_input":
            date = str(message["header"].get("date") or "")
            date = date or datetime.now(timezone.utc).isoformat()
            code = str(content.get("code", ""))[:MAX_CODE]
            self.executions[request] = ExternalExecution(
                date.replace("+00:00", "Z"), code
            )
            _drop_oldest(self.executions)
        elif message_type == "error" and execution:
            error = f"{content.get('ename')}: {content.get('evalue')}"
            execution.error = error[:MAX_CODE]
        elif message_type == "stepper_facts" and execution:
            execution.is_silent = content.get("scratch") is True
            execution.namespace = self.decode_namespace(content["namespace"])
        elif state == "idle":
            self._finish(request)

    def _finish(self, request: str) -> None:
        """Call `on_finished` with a finished execution; of a silent one the code is unknown."""
        self.finished.append(request)
        started_at = self.busy.pop(request, 0.0)
        execution = self.executions.pop(request, None)
        if execution is None:
            execution = ExternalExecution("", "", is_silent=True)
        execution.seconds = time.monotonic() - started_at if started_at else 0.0
        self.on_finished(execution)


def _drop_oldest(executions: dict[str, Any]) -> None:
    while len(executions) > MAX_EXECUTIONS:
        executions.pop(next(iter(executions)))
