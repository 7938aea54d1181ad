"""Jupyter widgets, as a front end keeps them: the models' state for the notebook's metadata, what Output widgets hold.

Like nbclient: an Output widget that names a request takes whatever that request's run shows, and tells the kernel.
"""

from __future__ import annotations

import base64
from typing import Any

from stepper.kernels.output_area import OutputArea
from stepper.notebooks.notebook_json import dump_json
from stepper.policy.model import NOTHING_OMITTED, Limits
from stepper.session.protocols import WidgetState

OUTPUT = ("@jupyter-widgets/output", "OutputModel")
ROOM = 4  # how many times the limit may come in before what is too much is let go


class Captured:
    """What one Output widget holds."""

    def __init__(self, comm: str, limit: int) -> None:
        self.comm, self.limit, self.area = comm, limit, OutputArea(limit)
        self.request = ""  # whose outputs it takes
        self.parent: dict[str, Any] = {}
        self.told = True  # the kernel knows what it holds

    def take(self, message: dict[str, Any]) -> None:
        """Take a message that shows something."""
        self.area.take(message)
        self.parent, self.told = message["parent_header"], False

    def update(self) -> dict[str, Any]:
        """Return the content of the message by which the kernel learns what it holds."""
        self.told = True
        state = {"outputs": self.area.outputs()}
        return {
            "comm_id": self.comm,
            "data": {"method": "update", "state": state, "buffer_paths": []},
        }


class Widgets:
    """The widgets of one kernel."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        self.buffers: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {}
        self.captured: dict[str, Captured] = {}
        # those that were given a request to take, the last one last
        self.taking: list[Captured] = []
        self.let_go: dict[str, int] = {}  # model → bytes that are too many
        self.changed = False
        self.limits = Limits()
        self.came = 0  # bytes since the states were measured

    def comm(self, message: dict[str, Any]) -> None:
        """Take a comm's message, whether it is a widget's or not."""
        content, data = message["content"], message["content"].get("data")
        comm = content.get("comm_id")
        state = data.get("state") if isinstance(data, dict) else None
        if (
            not isinstance(comm, str)
            or not isinstance(state, dict)
            or comm in self.let_go
        ):
            return
        self.changed = True
        self.states.setdefault(comm, {}).update(state)
        for path, buffer in zip(
            data.get("buffer_paths") or [], message["buffers"], strict=False
        ):
            told = {
                "data": base64.b64encode(buffer).decode(),
                "encoding": "base64",
                "path": path,
            }
            self.buffers.setdefault(comm, {})[tuple(path)] = told
        if (
            message["msg_type"] == "comm_open"
            and (state.get("_model_module"), state.get("_model_name")) == OUTPUT
        ):
            self.captured[comm] = Captured(comm, self.limits.max_output_bytes)
        if comm in self.captured:
            self._steer(self.captured[comm], state, data.get("method"))
        self.came += message["size"]
        if self.came > ROOM * self.limits.max_widget_state_bytes:
            self._thin()

    def _steer(self, widget: Captured, state: dict[str, Any], method: Any) -> None:
        # the kernel has set them
        if isinstance(state.get("outputs"), list) and method != "echo_update":
            widget.area = OutputArea.of(
                state["outputs"], {}, NOTHING_OMITTED, widget.limit
            )
        if "msg_id" in state:
            widget.request = str(state["msg_id"] or "")
            self.taking = [
                *(other for other in self.taking if other is not widget),
                widget,
            ]

    def takes(self, request: str | None) -> Captured | None:
        """Return the widget into which goes what a request shows now; None where that is the cell."""
        widget = next(
            (
                widget
                for widget in reversed(self.taking)
                if widget.request == request != ""
            ),
            None,
        )
        self.changed = self.changed or widget is not None
        return widget

    def models(self) -> WidgetState | None:
        """Return the state for the notebook, within its limit; None where nothing changed since."""
        if not self.changed:
            return None
        self.changed = False
        for comm, widget in self.captured.items():
            if comm in self.states:
                self.states[comm]["outputs"] = widget.area.outputs()
        self._thin()
        states = {comm: self._serialized(comm) for comm in self.states}
        return WidgetState(
            states,
            self.limits.max_widget_state_bytes,
            len(self.let_go),
            sum(self.let_go.values()),
        )

    def _serialized(self, comm: str) -> dict[str, Any]:
        state, buffers = self.states[comm], self.buffers.get(comm)
        names = {
            name: state.get(f"_{name}")
            for name in ("model_name", "model_module", "model_module_version")
        }
        return {
            **names,
            "state": state,
            **({"buffers": list(buffers.values())} if buffers else {}),
        }

    def _thin(self) -> None:
        """Let the largest models go where all are more than the notebook gets."""
        self.came = 0
        sizes = {
            comm: len(dump_json(self._serialized(comm), 5)) for comm in self.states
        }
        total = sum(sizes.values())
        for comm in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= self.limits.max_widget_state_bytes:
                break
            total -= sizes[comm]
            self.let_go[comm] = sizes[comm]
            del self.states[comm]
            self.buffers.pop(comm, None)
