"""The protocol of a kernel's channels, which carry its messages.

`zmq_channels` implements the protocol over ZeroMQ. The backend `jupyter` has its own
implementation over a websocket.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from stepper.kernels.message_decoding import Message


class Inbox(Protocol):
    """The incoming messages of one channel.

    `unreadable_count` is the number of messages that could not be decoded and have not
    been reported yet.
    """

    unreadable_count: int

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for a message, and return whether one has arrived.

        Only one caller may wait at a time.
        """

    def take_messages(self) -> Iterator[Message]:
        """Yield and remove the messages that have arrived.

        An implementation may stop after a time limit, even if more messages are
        waiting.
        """


class KernelChannels(Protocol):
    """The shell and iopub channels of a kernel."""

    @property
    def client_session(self) -> str:
        """The session id in the headers of this client's messages."""

    @property
    def connection(self) -> Mapping[str, Any]:
        """The fields of the kernel's connection file, or an empty dict.

        The dict is empty if other clients cannot connect to the kernel directly.
        """

    @property
    def is_open(self) -> bool:
        """Whether the channels are open."""

    @property
    def iopub(self) -> Inbox:
        """The messages that the kernel publishes; set while the channels are open."""

    @property
    def shell(self) -> Inbox:
        """The kernel's replies; set while the channels are open."""

    def open(self) -> None:
        """Open the channels."""

    def close(self) -> None:
        """Close the channels and stop waiting for messages."""

    def send(
        self,
        message_type: str,
        content: Message,
        metadata: Message | None = None,
        request: str = "",
        parent: Message | None = None,
    ) -> str:
        """Send a message on the shell channel and return its id.

        `request` is the message id to use; by default, a new one is created. `parent`
        is the message, or its header, that the message belongs to.
        """

    def count_received(self, request_id: str) -> int:
        """Return the number of iopub messages received for a request.

        Return 0 if the implementation does not count messages.
        """
