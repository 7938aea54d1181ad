"""The way to a kernel over ZeroMQ: as a connection file tells, whether its sockets are files or ports."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import zmq
from jupyter_client import BlockingKernelClient, KernelClient

from stepper.kernel.messages import Inbox

RECONNECT_MS = 5  # a kernel that starts is not there at the first try; ZeroMQ would wait 100 for the next


@functools.cache
def sockets() -> zmq.Context[zmq.Socket[bytes]]:
    """Return the ZeroMQ context of all kernels: each has threads and descriptors of its own."""
    context = zmq.Context()
    context.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    return context


class Channels:
    """A kernel's channels. `connection` is how it is reached, as in Jupyter's connection files."""

    iopub: Inbox
    shell: Inbox

    def __init__(self, connection: Mapping[str, Any]) -> None:
        self.client: KernelClient = BlockingKernelClient(context=sockets())
        # jupyter_client's type for it is a TypedDict, which no mapping from a file is
        self.client.load_connection_info(dict(connection, key=connection["key"].encode()))  # type: ignore[arg-type]

    @property
    def is_open(self) -> bool:
        """Whether messages come and go."""
        return bool(self.client.channels_running)

    def open(self) -> None:
        """Have messages come and go."""
        if not self.is_open:
            self.client.start_channels(stdin=False, hb=False, control=False)
            self.iopub, self.shell = Inbox(self.client.iopub_channel), Inbox(self.client.shell_channel)

    def close(self) -> None:
        """Have none come any more; whoever waits for one goes on."""
        if self.is_open:
            self.iopub.leave()
            self.shell.leave()
            self.client.stop_channels()

    def send(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        request: str = "",
        parent: Mapping[str, Any] | None = None,
    ) -> str:
        """Send a message on the shell channel, by the id `request` where the caller has one; return its id."""
        message = self.client.session.msg(kind, dict(content), parent=parent, metadata=metadata)
        message["header"]["msg_id"] = message["msg_id"] = request or message["header"]["msg_id"]
        self.client.shell_channel.send(message)
        return str(message["msg_id"])
