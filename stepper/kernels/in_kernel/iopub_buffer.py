"""A buffer of the iopub messages of the last run, including messages after its end.

A daemon that was not running when the messages were sent requests them later. All iopub
messages, including messages of threads and forked children, pass through one method of
ipykernel's iopub thread. The buffer stores their frames as sent, so a message without
binary buffers costs only the sum of the frames' sizes. If the messages exceed
MAX_BYTES, the beginning and the end of the run's messages, or of a single long text,
are kept.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import shell

MAX_BYTES = 1 << 20  # of all messages
MAX_HEAD = MAX_BYTES // 2
# The bytes that are kept of the end of one long text. With the message's headers, they
# fit into the second half of MAX_BYTES.
TAIL = MAX_BYTES // 2 - 2048
DELIMITER = b"<IDS|MSG>"
FIRST_BUFFER = 4  # the index of the first binary buffer in the parts of a message
STREAM = re.compile(rb'\{"name": ?"std(?:out|err)", ?"text": ?"')
STREAM_END = b'"}'
# A sequence of complete characters and escapes in a JSON string as UTF-8.
COMPLETE = re.compile(
    rb"(?:[^\\\x80-\xff]+|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xff]...|\\u....|\\[^u])*",
    re.DOTALL,
)
# A position in such a string at which a character or an escape certainly begins.
BOUNDARY = re.compile(rb"(?<=[^\\])\\|(?<=[^\\]{5})[^\\\x80-\xbf]")
# Messages that are always kept: they are few and small.
ALWAYS_KEPT = (b'"status"', b'"execute_input"', b'"stepper_facts"')
# The last status message. A request's `busy` status is sent before its execute_input.
last_status: list[list[Any]] = []


class RunRecord:
    """The recorded messages of one run. Each message is a list of parts."""

    def __init__(self) -> None:
        self.start(b"", [])

    def start(self, request_id: bytes, messages: list[list[Any]]) -> None:
        """Forget the earlier run, and start with the first messages of a run."""
        self.request_id = request_id
        self.messages = [*messages]  # the kept messages
        self.count = len(messages)  # including dropped messages
        self.head_count = 0  # kept messages before the dropped ones
        self.size = 0  # bytes of the kept messages
        self.lost_bytes = 0  # of the dropped messages
        self.payload: list[Any] = []  # of the execute reply


last_run = RunRecord()


class StreamEnds(NamedTuple):
    """The kept ends of a long stream message, and the number of bytes between them."""

    head: bytes
    tail: bytes
    dropped: int


def install() -> None:
    """Start recording the messages of ipykernel's iopub thread."""
    thread = shell.kernel.iopub_thread
    send = thread.send_multipart

    def send_and_record(message: list[Any], *args: Any, **kwargs: Any) -> None:
        """Send a message as before, and add it to the buffer."""
        send(message, *args, **kwargs)
        # KeyboardInterrupt is not suppressed: the interrupt is meant for the cell.
        with contextlib.suppress(Exception):
            record_message(list(message))

    thread.send_multipart = send_and_record


def uninstall() -> None:
    """Stop recording messages."""
    vars(shell.kernel.iopub_thread).pop("send_multipart", None)


def record_message(message: list[Any]) -> None:
    """Add a message to the buffer if it belongs to the last run.

    An `execute_input` message starts a new run. A status message is also stored for
    the start of the next run.
    """
    # The parts after the signature: header, parent, metadata, content, buffers.
    start = message.index(DELIMITER) + 2
    parts = message[start:]
    header = bytes(parts[0])
    parent = bytes(parts[1])
    if b'"execute_input"' in header:
        start_run(parent)
    elif b'"status"' in header:
        last_status[:] = [parts]
    if not last_run.request_id or last_run.request_id not in parent:
        return
    # A daemon that has received this number of messages needs no record.
    last_run.count += 1
    size = 0 if is_always_kept(parts) else measure_parts(parts)
    if size > MAX_HEAD:
        shortened_parts = keep_ends(parts, size)
        if shortened_parts is None:
            return
        parts = shortened_parts
        size = measure_parts(parts)
    # A binary buffer may be the memory of an object that the cell changes or resizes.
    parts[FIRST_BUFFER:] = map(bytes, parts[FIRST_BUFFER:])
    last_run.messages.append(parts)
    last_run.size += size
    if last_run.size <= MAX_HEAD and not last_run.lost_bytes:
        last_run.head_count = len(last_run.messages)
    drop_middle()


def measure_parts(parts: list[Any]) -> int:
    """Return the size of the parts of a message, in bytes."""
    size = sum(map(len, parts[:FIRST_BUFFER]))
    for buffer in parts[FIRST_BUFFER:]:
        size += memoryview(buffer).nbytes
    return size


def start_run(parent: bytes) -> None:
    """Reset the buffer for a new run, and add the run's busy status.

    `parent` is the parent header of the run's first message, as JSON.
    """
    # The id is compared as text, so the JSON of each parent need not be parsed.
    rest = parent.partition(b'"msg_id"')[2]
    request_id = rest.split(b'"', 2)[1]
    last_run.start(request_id, last_status)


def keep_ends(parts: list[Any], size: int) -> list[Any] | None:
    """Record the beginning of a long text, and return a message with the text's end.

    `parts` are the parts of the message, and `size` is their size in bytes. Return None
    for a message without text, such as an image: the whole message is dropped.
    """
    headers = parts[:3]
    content = bytes(parts[3])
    room = 0 if last_run.lost_bytes else max(0, MAX_HEAD - last_run.size)
    head, tail, dropped = split_long_stream(content, room)
    if head:
        last_run.messages.append([*headers, head])
        last_run.size += len(head)
        last_run.head_count = len(last_run.messages)
    if not tail:
        last_run.lost_bytes += size
        return None
    last_run.lost_bytes += dropped
    return [*headers, tail]


def drop_middle() -> None:
    """Drop the oldest messages after the head until the rest fits into MAX_BYTES."""
    messages = last_run.messages
    index = last_run.head_count
    while last_run.size > MAX_BYTES and index < len(messages):
        if is_always_kept(messages[index]):
            index += 1
            continue
        dropped = messages.pop(index)
        dropped_bytes = measure_parts(dropped)
        last_run.size -= dropped_bytes
        last_run.lost_bytes += dropped_bytes


def split_long_stream(content: bytes, room: int) -> StreamEnds:
    """Split the content of a stream message into the beginning and the end of its text.

    The beginning has at most `room` bytes of text, the end at most `TAIL` bytes. For
    other content, such as an image, the beginning and the end are empty.
    """
    stream = STREAM.match(content)
    if stream is None:
        return StreamEnds(b"", b"", len(content))
    start = stream.end()
    complete = COMPLETE.match(content, start, start + room)
    head_end = complete.end() if complete else start
    head = b""
    if head_end > start:
        head = content[:head_end] + STREAM_END
    tail_start = head_end
    earliest_start = len(content) - TAIL
    if tail_start < earliest_start:
        boundary = BOUNDARY.search(content, earliest_start)
        if boundary is not None:
            tail_start = boundary.start()
        else:
            tail_start = len(content) - len(STREAM_END)
    prefix = stream[0]
    tail = prefix + content[tail_start:]
    return StreamEnds(head, tail, tail_start - head_end)


def is_always_kept(parts: list[Any]) -> bool:
    """Return whether a message has one of the types that are never dropped."""
    header = bytes(parts[0])
    return any(message_type in header for message_type in ALWAYS_KEPT)


def get_record(request_id: str) -> tuple[dict[str, Any] | None, list[bytes]]:
    """Return the record of a run and the frames of its messages.

    `request_id` is the message id of the run's request. The record is None if this is
    not the last request that has run.
    """
    if not request_id or request_id.encode() != last_run.request_id:
        return None, []
    record = {
        "count": last_run.count,
        "head": last_run.head_count,
        "lost": last_run.lost_bytes,
        "payload": last_run.payload,
        "counts": [len(parts) for parts in last_run.messages],
    }
    frames: list[bytes] = []
    for parts in last_run.messages:
        frames += map(bytes, parts)
    return record, frames
