"""The state of Jupyter widgets for the notebook's metadata, and captured outputs.

As in nbclient, an Output widget with the `msg_id` of a request captures the outputs of
that request, and the kernel is informed of them.
"""

from __future__ import annotations

import base64
from typing import Any

from stepper.kernels.output_area import OutputArea
from stepper.notebooks.notebook_json import dump_json
from stepper.policy.model import NOTHING_OMITTED, Limits
from stepper.session.protocols import WidgetState

OUTPUT = ("@jupyter-widgets/output", "OutputModel")
# Received state, as a multiple of the limit, after which the largest models are dropped.
ROOM = 4


class OutputWidget:
    """An Output widget and the outputs that it has captured."""

    def __init__(self, comm: str, limit: int) -> None:
        self.comm = comm
        self.limit = limit
        self.area = OutputArea(limit)
        self.request = ""  # the request whose outputs are captured
        self.parent: dict[str, Any] = {}
        self.is_synced = True  # whether the kernel knows the outputs

    def take(self, message: dict[str, Any]) -> None:
        """Add an output message."""
        self.area.take(message)
        self.parent = message["parent_header"]
        self.is_synced = False

    def build_update(self) -> dict[str, Any]:
        """Return the content of the comm message that sends the outputs to the kernel."""
        self.is_synced = True
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
        self.captured: dict[str, OutputWidget] = {}
        # Those that capture the outputs of a request, the latest at the end.
        self.capturing: list[OutputWidget] = []
        self.dropped: dict[str, int] = {}  # model → its size in bytes
        self.changed = False
        self.limits = Limits()
        self.received_bytes = 0  # since the states were measured

    def handle_comm(self, message: dict[str, Any]) -> None:
        """Update the state from a comm message, which need not be a widget's."""
        content = message["content"]
        data = content.get("data")
        comm = content.get("comm_id")
        state = data.get("state") if isinstance(data, dict) else None
        if not isinstance(comm, str) or not isinstance(state, dict):
            return
        if comm in self.dropped:
            return
        self.changed = True
        self.states.setdefault(comm, {}).update(state)
        for path, buffer in zip(
            data.get("buffer_paths") or [], message["buffers"], strict=False
        ):
            encoded = {
                "data": base64.b64encode(buffer).decode(),
                "encoding": "base64",
                "path": path,
            }
            self.buffers.setdefault(comm, {})[tuple(path)] = encoded
        model = (state.get("_model_module"), state.get("_model_name"))
        if message["msg_type"] == "comm_open" and model == OUTPUT:
            self.captured[comm] = OutputWidget(comm, self.limits.max_output_bytes)
        if comm in self.captured:
            self._update_output(self.captured[comm], state, data.get("method"))
        self.received_bytes += message["size"]
        if self.received_bytes > ROOM * self.limits.max_widget_state_bytes:
            self._drop_largest()

    def _update_output(
        self, widget: OutputWidget, state: dict[str, Any], method: Any
    ) -> None:
        """Apply outputs or a request that the kernel has set on an Output widget."""
        if isinstance(state.get("outputs"), list) and method != "echo_update":
            widget.area = OutputArea.from_notebook(
                state["outputs"], {}, NOTHING_OMITTED, widget.limit
            )
        if "msg_id" in state:
            widget.request = str(state["msg_id"] or "")
            others = [other for other in self.capturing if other is not widget]
            self.capturing = [*others, widget]

    def find_capturing(self, request: str | None) -> OutputWidget | None:
        """Return the widget that captures the outputs of a request, None without one."""
        for widget in reversed(self.capturing):
            if widget.request and widget.request == request:
                self.changed = True
                return widget
        return None

    def models(self) -> WidgetState | None:
        """Return the state for the notebook, None if it has not changed since the last call.

        The largest models are left out if the state is above its limit.
        """
        if not self.changed:
            return None
        self.changed = False
        for comm, widget in self.captured.items():
            if comm in self.states:
                self.states[comm]["outputs"] = widget.area.outputs()
        self._drop_largest()
        states = {comm: self._serialize(comm) for comm in self.states}
        return WidgetState(
            states,
            self.limits.max_widget_state_bytes,
            len(self.dropped),
            sum(self.dropped.values()),
        )

    def _serialize(self, comm: str) -> dict[str, Any]:
        """Return a model as in the notebook's metadata."""
        state = self.states[comm]
        buffers = self.buffers.get(comm)
        model = {
            name: state.get(f"_{name}")
            for name in ("model_name", "model_module", "model_module_version")
        }
        model["state"] = state
        if buffers:
            model["buffers"] = list(buffers.values())
        return model

    def _drop_largest(self) -> None:
        """Drop the largest models until the rest is within the limit."""
        self.received_bytes = 0
        sizes = {}
        for comm in self.states:
            sizes[comm] = len(dump_json(self._serialize(comm), 5))
        total = sum(sizes.values())
        for comm in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if total <= self.limits.max_widget_state_bytes:
                break
            total -= sizes[comm]
            self.dropped[comm] = sizes[comm]
            del self.states[comm]
            self.buffers.pop(comm, None)
