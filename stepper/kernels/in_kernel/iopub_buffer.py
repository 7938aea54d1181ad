"""A buffer of the iopub messages of the last run and of those that came after it.

A daemon that was not running when the messages were sent asks for them. All iopub
messages, also those of threads and forked children, pass through one method of
ipykernel's iopub thread. The buffer keeps their frames as they are sent; a step costs
only the sum of their sizes. If there is too much, the beginning and the end are kept,
also of a single long text.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import shell

MAX_BYTES = 1 << 20  # of all messages
MAX_HEAD = MAX_BYTES // 2
# Of one long text. With its headers, the end fits in behind the first half.
TAIL = MAX_BYTES // 2 - 2048
DELIMITER = b"<IDS|MSG>"
STREAM = re.compile(rb'\{"name": ?"std(?:out|err)", ?"text": ?"')
STREAM_END = b'"}'
# Complete characters and escapes in a text as JSON.
COMPLETE = re.compile(
    rb"(?:[^\\\x80-\xff]+|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xff]...|\\u....|\\[^u])*",
    re.DOTALL,
)
# A place in such a text where a character or an escape certainly begins.
BOUNDARY = re.compile(rb"(?<=[^\\])\\|(?<=[^\\]{5})[^\\\x80-\xbf]")
# Messages that are always kept: they are few and small.
ALWAYS_KEPT = (b'"status"', b'"execute_input"', b'"stepper_facts"')
# The last run: its request id, its messages, how many there were, how many of them
# belong to the head, the size of those kept and the bytes that were dropped.
last: dict[str, Any] = {
    "id": b"",
    "messages": [],
    "count": 0,
    "head": 0,
    "size": 0,
    "lost": 0,
    "payload": [],
}
REPORTED_FIELDS = ("count", "head", "lost", "payload")
# The last status message: the `busy` of a request comes before its execute_input.
last_status: list[list[Any]] = []


def install() -> None:
    """Start to record the messages of ipykernel's iopub thread."""
    thread = shell.kernel.iopub_thread
    send = thread.send_multipart

    def send_and_record(message: list[Any], *args: Any, **kwargs: Any) -> None:
        send(message, *args, **kwargs)
        # KeyboardInterrupt passes: the interrupt is meant for the cell.
        with contextlib.suppress(Exception):
            record(list(message))

    thread.send_multipart = send_and_record


def uninstall() -> None:
    """Stop to record messages."""
    vars(shell.kernel.iopub_thread).pop("send_multipart", None)


def record(message: list[Any]) -> None:
    """Add a message to the buffer if it belongs to the last run."""
    # Without the signature: header, parent, metadata, content, buffers.
    start = message.index(DELIMITER) + 2
    parts = message[start:]
    header = bytes(parts[0])
    parent = bytes(parts[1])
    if b'"execute_input"' in header:
        start_run(parent)
    elif b'"status"' in header:
        last_status[:] = [parts]
    if not last["id"] or last["id"] not in parent:
        return
    # A daemon that received as many messages has received all of them.
    last["count"] += 1
    size = 0 if is_always_kept(parts) else sum(map(len, parts))
    if size > MAX_HEAD:
        shortened_parts = keep_ends(parts, size)
        if shortened_parts is None:
            return
        parts = shortened_parts
        size = sum(map(len, parts))
    last["messages"].append(parts)
    last["size"] += size
    if last["size"] <= MAX_HEAD and not last["lost"]:
        last["head"] = len(last["messages"])
    drop_middle()


def start_run(parent: bytes) -> None:
    """Forget the previous run and start with the busy status of the new one."""
    # The id as it is written in the JSON of each parent header.
    rest = parent.partition(b'"msg_id"')[2]
    request = rest.split(b'"', 2)[1]
    last.update(
        id=request,
        messages=[*last_status],
        count=len(last_status),
        head=0,
        size=0,
        lost=0,
        payload=[],
    )


def keep_ends(parts: list[Any], size: int) -> list[Any] | None:
    """Record the beginning of a long text; return a message with its end.

    Returns None for a message that is not text, which is dropped.
    """
    headers = parts[:3]
    content = bytes(parts[3])
    room = 0 if last["lost"] else max(0, MAX_HEAD - last["size"])
    head, tail, dropped_bytes = split_long_stream(content, room)
    if head:
        messages = last["messages"]
        messages.append([*headers, head])
        last["size"] += len(head)
        last["head"] = len(messages)
    if not tail:
        last["lost"] += size
        return None
    last["lost"] += dropped_bytes
    return [*headers, tail]


def drop_middle() -> None:
    """Drop messages behind the head until the rest is within the limit."""
    messages = last["messages"]
    index = last["head"]
    while last["size"] > MAX_BYTES and index < len(messages):
        if is_always_kept(messages[index]):
            index += 1
            continue
        dropped = messages.pop(index)
        dropped_bytes = sum(map(len, dropped))
        last["size"] -= dropped_bytes
        last["lost"] += dropped_bytes


def split_long_stream(content: bytes, room: int) -> tuple[bytes, bytes, int]:
    """Return the beginning and the end of a stream message's long text.

    The beginning has at most `room` bytes, the end `TAIL`. The third value is the
    number of bytes in neither. Both are empty for other content, such as an image.
    """
    stream = STREAM.match(content)
    if stream is None:
        return b"", b"", len(content)
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
    return head, tail, tail_start - head_end


def is_always_kept(parts: list[Any]) -> bool:
    """Return whether a message is kept in any case, by its type."""
    header = bytes(parts[0])
    return any(message_type in header for message_type in ALWAYS_KEPT)


def get_record(request: str) -> tuple[dict[str, Any] | None, list[bytes]]:
    """Return the record of a request and the frames of its messages.

    The record is None if the request was not the last run or did not start.
    """
    if not request or request.encode() != last["id"]:
        return None, []
    fields = {name: last[name] for name in REPORTED_FIELDS}
    fields["counts"] = [len(parts) for parts in last["messages"]]
    frames = list[bytes]()
    for parts in last["messages"]:
        frames += map(bytes, parts)
    return fields, frames
