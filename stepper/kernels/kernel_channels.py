"""The protocol of a kernel's channels, which carry its messages.

`zmq_channels` implements them for all kernels with ports or sockets; the backend
`jupyter` has its own over a WebSocket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from stepper.kernels.message_decoding import Message


class Inbox(Protocol):
    """The incoming messages of one channel.

    `unread` counts those that could not be decoded and were not reported yet.
    """

    unread: int

    async def ready(self, seconds: float) -> bool:
        """Wait at most `seconds` for a message; return whether there is one.

        Only one caller may wait at a time.
        """

    def messages(self) -> Iterator[Message]:
        """Yield the messages that have arrived, for a limited time."""


class KernelChannels(Protocol):
    """The channels of a kernel, over ZeroMQ or a WebSocket."""

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's requests."""

    @property
    def connection(self) -> Mapping[str, Any]:
        """The content of a connection file for other clients, or an empty dict."""

    @property
    def is_open(self) -> bool:
        """Whether the channels are connected."""

    @property
    def iopub(self) -> Inbox:
        """The messages that the kernel publishes, while the channels are open."""

    @property
    def shell(self) -> Inbox:
        """The kernel's replies, while the channels are open."""

    def open(self) -> None:
        """Connect the channels."""

    def close(self) -> None:
        """Disconnect the channels and stop waiting for messages."""

    def send(
        self,
        message_type: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel and return its id.

        `request` is the id if the caller chose one.
        """

    def count_received(self, request: str) -> int:
        """Return how many messages of a request were received, or 0 if not counted."""
