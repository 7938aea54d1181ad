"""Executions that other clients, such as JupyterLab, request from the same kernel.

The kernel publishes their messages to all clients. The session ids of stepper's own
clients start with SESSION_PREFIX. Messages whose parent has any other session id belong
to other clients.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from stepper.kernels.message_decoding import Message
from stepper.policy.namespace_model import Namespace
from stepper.session.protocols import ExternalExecution

SESSION_PREFIX = "stepper-"
MAX_CODE = 2000  # characters of the code and of an error
Listener = Callable[[ExternalExecution], None]
# Executions that are tracked. The oldest are dropped, because their idle status may be
# lost.
MAX_EXECUTIONS = 100


class ExternalExecutions:
    """The executions of other clients that are currently running.

    `on_finished` is called with each finished execution. `get_own_session` returns the
    session id of this client. `decode_namespace` decodes the namespace in a message of
    the helper.
    """

    def __init__(
        self,
        get_own_session: Callable[[], str],
        decode_namespace: Callable[[Message], Namespace],
    ) -> None:
        self.get_own_session = get_own_session
        self.decode_namespace = decode_namespace
        self.on_finished: Listener = lambda execution: None
        # Message id of the request → start time. Silent executions are included.
        self.busy: dict[str, float] = {}
        # Message id of the request → execution whose code is known.
        self.executions: dict[str, ExternalExecution] = {}
        # Message ids of finished requests, whose threads may continue to print.
        self.finished: deque[str] = deque(maxlen=MAX_EXECUTIONS)

    @property
    def running_since(self) -> float:
        """The start time of the oldest running execution, or 0 if there is none.

        The time is taken from the monotonic clock.
        """
        return min(self.busy.values(), default=0.0)

    def forget_before(self, before: float) -> None:
        """Treat executions that started at or before a time as finished.

        `before` is the time of a request to which the kernel has replied, taken from
        the monotonic clock. `on_finished` is not called.
        """
        for request_id, started_at in list(self.busy.items()):
            if started_at <= before:
                self.finished.append(request_id)
                del self.busy[request_id]

    def handle_message(self, message: Message) -> bool:
        """Update the executions from a message of the kernel.

        Return whether another client's request caused the message.
        """
        parent = message["parent_header"]
        session = str(parent.get("session") or "")
        if not session or session.startswith(SESSION_PREFIX):
            return False
        if session == self.get_own_session():
            return False
        request_id = str(parent.get("msg_id") or "")
        if parent.get("msg_type") == "execute_request" and request_id:
            self._update(request_id, message)
        return True

    def _update(self, request_id: str, message: Message) -> None:
        """Update an execution from one of its messages."""
        message_type = message["msg_type"]
        content = message["content"]
        state = None
        if message_type == "status":
            state = content.get("execution_state")
        # The execution may have started before this daemon.
        if state != "idle" and request_id not in self.finished:
            self.busy.setdefault(request_id, time.monotonic())
            _drop_oldest(self.busy)
        execution = self.executions.get(request_id)
        if message_type == "execute_input":
            self.executions[request_id] = _build_execution(message)
            _drop_oldest(self.executions)
        elif message_type == "error" and execution:
            name = content.get("ename")
            error = f"{name}: {content.get('evalue')}"
            execution.error = error[:MAX_CODE]
        elif message_type == "stepper_facts" and execution:
            execution.is_silent = content.get("scratch") is True
            execution.namespace = self.decode_namespace(content["namespace"])
        elif state == "idle":
            self._finish(request_id)

    def _finish(self, request_id: str) -> None:
        """Remove a finished execution and call `on_finished` with it.

        An execution without an `execute_input` message is reported as silent, with an
        empty string as its code.
        """
        self.finished.append(request_id)
        execution = self.executions.pop(request_id, None)
        if execution is None:
            execution = ExternalExecution("", "", is_silent=True)
        started_at = self.busy.pop(request_id, 0.0)
        if started_at:
            execution.seconds = time.monotonic() - started_at
        else:
            execution.seconds = 0.0
        self.on_finished(execution)


def _build_execution(message: Message) -> ExternalExecution:
    """Return the execution that an `execute_input` message announces."""
    header = message["header"]
    date = str(header.get("date") or "")
    if not date:
        now = datetime.now(timezone.utc)
        date = now.isoformat()
    content = message["content"]
    code = str(content.get("code", ""))
    date = date.replace("+00:00", "Z")
    return ExternalExecution(date, code[:MAX_CODE])


def _drop_oldest(executions: dict[str, Any]) -> None:
    """Remove the oldest entries of a dict if there are more than MAX_EXECUTIONS."""
    while len(executions) > MAX_EXECUTIONS:
        oldest = next(iter(executions))
        del executions[oldest]
