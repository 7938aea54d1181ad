"""What other clients (a console, JupyterLab) have a kernel do: their executions, as it publishes them to all.

The ids of stepper's own sessions begin alike, a former daemon's too: what names another's in its parent is another's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from stepper.policy.kernel_namespace import Namespace
from stepper.session.protocols import ExternalExecution

OURS = "stepper-"
CODE = 2000  # characters of it that are kept
MOST = 100  # executions that are told as under way: whose end was lost is forgotten


class ExternalExecutions:
    """The executions of other clients: those under way, and `ended` is called with each that is over."""

    def __init__(
        self, own: Callable[[], str], read: Callable[[dict[str, Any]], Namespace]
    ) -> None:
        self.own, self.read = own, read
        self.on_finished: Callable[[ExternalExecution], None] = lambda execution: None
        self.busy: dict[str, float] = {}  # request → since when, silent ones too
        self.told: dict[str, ExternalExecution] = {}
        self.over = deque[str](maxlen=MOST)  # threads that they left may print on

    @property
    def running_since(self) -> float:
        """Since when one of theirs runs, by the monotonic clock; 0 where none does."""
        return min(self.busy.values(), default=0.0)

    def forget_before(self, before: float) -> None:
        """What began before that moment is over: the kernel serves what was asked later."""
        self.over += (
            request for request, since in self.busy.items() if since <= before
        )
        self.busy = {
            request: since for request, since in self.busy.items() if since > before
        }

    def take(self, message: Mapping[str, Any]) -> bool:
        """Take note of what it tells of another client's execution; return whether another client asked for it."""
        parent, kind, content = (
            message["parent_header"],
            message["msg_type"],
            message["content"],
        )
        session = str(parent.get("session") or "")
        if not session or session.startswith(OURS) or session == self.own():
            return False
        request = str(parent.get("msg_id") or "")
        if parent.get("msg_type") != "execute_request" or not request:
            return True  # what is completed or looked up runs no cell
        told = self.told.get(request)
        idle = kind == "status" and content.get("execution_state") == "idle"
        # its beginning may have been before this daemon's
        if not idle and request not in self.over:
            self.busy.setdefault(request, time.monotonic())
            while len(self.busy) > MOST:
                self.busy.pop(next(iter(self.busy)))
        if kind == "execute_input":
            at = (
                str(message["header"].get("date") or "")
                or datetime.now(timezone.utc).isoformat()
            )
            self.told[request] = ExternalExecution(
                at.replace("+00:00", "Z"), str(content.get("code", ""))[:CODE]
            )
            while len(self.told) > MOST:
                self.told.pop(next(iter(self.told)))
        elif kind == "error" and told:
            told.error = f"{content.get('ename')}: {content.get('evalue')}"[:CODE]
        elif kind == "stepper_facts" and told:
            told.is_silent = content.get("scratch") is True
            told.namespace = self.read(content["namespace"])
        elif idle:
            self.over.append(request)
            began = self.busy.pop(request, 0.0)
            self.told.pop(request, None)
            # a silent one: nothing is known of it but that it ended
            told = told or ExternalExecution("", "", is_silent=True)
            told.seconds = time.monotonic() - began if began else 0.0
            self.on_finished(told)
        return True
