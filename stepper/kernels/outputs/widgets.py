"""The state of Jupyter widgets for the notebook's metadata, and captured outputs.

As in nbclient, an Output widget with the `msg_id` of a request captures the outputs of
that request, and the captured outputs are sent back to the kernel.
"""

from __future__ import annotations

import base64
from typing import Any

from stepper.kernels.message_decoding import Message
from stepper.kernels.outputs.output_area import OutputArea
from stepper.notebooks.notebook_json import dump_json
from stepper.policy.execution_result import WidgetState
from stepper.policy.model import NOTHING_OMITTED, Limits

State = dict[str, Any]
# The path of each buffer in the state of its model → the buffer in the notebook.
Buffers = dict[tuple[Any, ...], dict[str, Any]]
OUTPUT = ("@jupyter-widgets/output", "OutputModel")
# The largest models are dropped when this multiple of the limit was received.
MAX_RECEIVED_FACTOR = 4
# The fields of a model in the notebook; in its state, they have a leading underscore.
MODEL_FIELDS = ("model_name", "model_module", "model_module_version")


class OutputWidget:
    """An Output widget and the outputs that it has captured.

    `comm_id` is the id of the widget's comm, and `limit` the size limit of the outputs
    in bytes.
    """

    def __init__(self, comm_id: str, limit: int) -> None:
        self.comm_id = comm_id
        self.limit = limit
        self.area = OutputArea(limit)
        self.request_id = ""  # of the request whose outputs are captured
        self.parent: Message = {}
        self.is_synced = True  # whether the kernel knows the outputs

    def add_message(self, message: Message) -> None:
        """Capture an output message."""
        self.area.add_message(message)
        self.parent = message["parent_header"]
        self.is_synced = False

    def take_update(self) -> Message:
        """Return the content of a comm message that sends the outputs to the kernel.

        The outputs are marked as synced.
        """
        self.is_synced = True
        state = {"outputs": self.area.get_outputs()}
        return {
            "comm_id": self.comm_id,
            "data": {"method": "update", "state": state, "buffer_paths": []},
        }


class Widgets:
    """The widgets of one kernel."""

    def __init__(self) -> None:
        # These dicts have the ids of comms as keys.
        self.states: dict[str, State] = {}
        self.buffers: dict[str, Buffers] = {}
        self.output_widgets: dict[str, OutputWidget] = {}
        self.dropped_sizes: dict[str, int] = {}  # of dropped models, in bytes
        # Output widgets that capture the outputs of a request, the latest at the end.
        self.capturing: list[OutputWidget] = []
        self.changed = False
        self.limits = Limits()
        # Bytes received since the sizes of the states were measured.
        self.received_bytes = 0

    def handle_comm(self, message: Message) -> None:
        """Update the state of a widget from a comm message.

        Messages without a state, such as those of other comms, are ignored.
        """
        content = message["content"]
        data = content.get("data")
        comm_id = content.get("comm_id")
        state = None
        if isinstance(data, dict):
            state = data.get("state")
        if not isinstance(comm_id, str) or not isinstance(state, dict):
            return
        if comm_id in self.dropped_sizes:
            return
        self.changed = True
        known_state = self.states.setdefault(comm_id, {})
        known_state.update(state)
        paths = data.get("buffer_paths") or []
        self._add_buffers(comm_id, paths, message["buffers"])
        if message["msg_type"] == "comm_open" and is_output_model(state):
            max_bytes = self.limits.max_output_bytes
            self.output_widgets[comm_id] = OutputWidget(comm_id, max_bytes)
        widget = self.output_widgets.get(comm_id)
        if widget is not None:
            self._update_output(widget, state, data.get("method"))
        self.received_bytes += message["size"]
        max_bytes = MAX_RECEIVED_FACTOR * self.limits.max_widget_state_bytes
        if self.received_bytes > max_bytes:
            self._drop_largest()

    def _add_buffers(
        self, comm_id: str, paths: list[Any], buffers: list[bytes]
    ) -> None:
        """Store the binary values of a state, each at its path in the state."""
        for path, buffer in zip(paths, buffers, strict=False):
            encoded = base64.b64encode(buffer).decode()
            value = {"data": encoded, "encoding": "base64", "path": path}
            comm_buffers = self.buffers.setdefault(comm_id, {})
            comm_buffers[tuple(path)] = value

    def _update_output(self, widget: OutputWidget, state: State, method: Any) -> None:
        """Apply the outputs or the request id that the kernel set in an Output widget.

        `method` is the method of the comm message. An "echo_update" only confirms the
        outputs that this client has sent, so its outputs are ignored.
        """
        outputs = state.get("outputs")
        if isinstance(outputs, list) and method != "echo_update":
            widget.area = OutputArea.from_notebook(
                outputs, {}, NOTHING_OMITTED, widget.limit
            )
        if "msg_id" in state:
            widget.request_id = str(state["msg_id"] or "")
            if widget in self.capturing:
                self.capturing.remove(widget)
            self.capturing.append(widget)

    def capture(self, request_id: str | None, message: Message) -> bool:
        """Add an output message to the Output widget that captures its request.

        Return whether a widget has captured the message.
        """
        for widget in reversed(self.capturing):
            if widget.request_id and widget.request_id == request_id:
                widget.add_message(message)
                self.changed = True
                return True
        return False

    def take_state(self) -> WidgetState | None:
        """Return the state for the notebook, or None if there are no new changes.

        A change is new if it happened after the last call. If the state is above its
        size limit, the largest models are dropped.
        """
        if not self.changed:
            return None
        self.changed = False
        for comm_id, widget in self.output_widgets.items():
            state = self.states.get(comm_id)
            if state is not None:
                state["outputs"] = widget.area.get_outputs()
        self._drop_largest()
        states = {comm_id: self._serialize(comm_id) for comm_id in self.states}
        return WidgetState(
            states,
            self.limits.max_widget_state_bytes,
            len(self.dropped_sizes),
            sum(self.dropped_sizes.values()),
        )

    def _serialize(self, comm_id: str) -> State:
        """Return the model of a widget in the format of the notebook's metadata."""
        state = self.states[comm_id]
        model: State = {name: state.get(f"_{name}") for name in MODEL_FIELDS}
        model["state"] = state
        buffers = self.buffers.get(comm_id)
        if buffers:
            model["buffers"] = list(buffers.values())
        return model

    def _drop_largest(self) -> None:
        """Drop the largest models until the others are within the size limit."""
        self.received_bytes = 0
        max_bytes = self.limits.max_widget_state_bytes
        sizes = {}
        for comm_id in self.states:
            text = dump_json(self._serialize(comm_id), depth=5)
            sizes[comm_id] = len(text)
        total = sum(sizes.values())
        largest_first = sorted(sizes, key=sizes.__getitem__, reverse=True)
        for comm_id in largest_first:
            if total <= max_bytes:
                break
            size = sizes[comm_id]
            total -= size
            self.dropped_sizes[comm_id] = size
            del self.states[comm_id]
            self.buffers.pop(comm_id, None)


def is_output_model(state: State) -> bool:
    """Return whether a model's state is the state of an Output widget."""
    module = state.get("_model_module")
    name = state.get("_model_name")
    return (module, name) == OUTPUT
