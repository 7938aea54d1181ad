"""What the last run published, and what came after it: for a daemon that was not there when it was.

Whatever goes to iopub, from threads and forked children too, passes one method of ipykernel's own thread for it. The
frames are kept as they are sent: nothing is measured or copied in a step but their sizes. Of much the head and the
tail stay, of one long text too: a run of hours ends with what matters.
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import shell

LIMIT = 1 << 20  # bytes of messages
# of one long text: with its headers it has a place behind the head
TAIL = LIMIT // 2 - 2048
DELIMITER = b"<IDS|MSG>"
STREAM = re.compile(rb'\{"name": ?"std(?:out|err)", ?"text": ?"')
CLOSED = b'"}'
# In its text as JSON: characters and escapes that are whole; where one begins for
# certain.
WHOLE = re.compile(
    rb"(?:[^\\\x80-\xff]+|[\xc0-\xdf].|[\xe0-\xef]..|[\xf0-\xff]...|\\u....|\\[^u])*",
    re.DOTALL,
)
BEGINS = re.compile(rb"(?<=[^\\])\\|(?<=[^\\]{5})[^\\\x80-\xbf]")
# kept whatever is lost: they are few and small
ALWAYS = (b'"status"', b'"execute_input"', b'"stepper_facts"')
last: dict[str, Any] = {
    "id": b"",
    "messages": [],
    "count": 0,
    "head": 0,
    "size": 0,
    "lost": 0,
    "payload": [],
}
# the `busy` of a request, which comes before it is known to be a run
before: list[list[Any]] = []


def begin() -> None:
    thread = shell.kernel.iopub_thread
    send = thread.send_multipart

    def remembering(message: list[Any], *given: Any, **named: Any) -> None:
        send(message, *given, **named)
        # an interrupt goes on its way: it is meant for the cell
        with contextlib.suppress(Exception):
            take(list(message))

    thread.send_multipart = remembering


def end() -> None:
    vars(shell.kernel.iopub_thread).pop("send_multipart", None)


def take(message: list[Any]) -> None:
    # without the signature: header, parent, metadata, content, buffers
    parts = message[message.index(DELIMITER) + 2 :]
    header, parent = bytes(parts[0]), bytes(parts[1])
    if b'"execute_input"' in header:
        # as it stands in each parent's JSON
        request = parent.partition(b'"msg_id"')[2].split(b'"', 2)[1]
        last.update(
            id=request,
            messages=[*before],
            count=len(before),
            head=0,
            size=0,
            lost=0,
            payload=[],
        )
    elif b'"status"' in header:
        before[:] = [parts]
    if not last["id"] or last["id"] not in parent:
        return
    last["count"] += 1  # whoever heard as many has heard all
    size, messages = 0 if always(parts) else sum(map(len, parts)), last["messages"]
    if size > LIMIT // 2:
        first, content, lost = split_long_stream(
            bytes(parts[3]), 0 if last["lost"] else max(0, LIMIT // 2 - last["size"])
        )
        if first:
            messages.append([*parts[:3], first])
            last.update(size=last["size"] + len(first), head=len(messages))
        last["lost"] += lost if content else size
        if not content:
            return
        parts = [*parts[:3], content]
        size = sum(map(len, parts))
    messages.append(parts)
    last["size"] += size
    if last["size"] <= LIMIT // 2 and not last["lost"]:
        last["head"] = len(messages)
    at = last["head"]
    while last["size"] > LIMIT and at < len(messages):
        if always(messages[at]):
            at += 1
            continue
        gone = sum(map(len, messages.pop(at)))
        last["size"] -= gone
        last["lost"] += gone


def split_long_stream(content: bytes, room: int) -> tuple[bytes, bytes, int]:
    """The head of a stream's long text, of that many bytes at most, its tail, and how many bytes are in neither."""
    stream = STREAM.match(content)
    if stream is None:  # such as a picture: a part of it is nothing
        return b"", b"", len(content)
    until = (WHOLE.match(content, stream.end(), stream.end() + room) or stream).end()
    begins = until
    if until < len(content) - TAIL:
        tail = BEGINS.search(content, len(content) - TAIL)
        begins = tail.start() if tail is not None else len(content) - len(CLOSED)
    return (
        (content[:until] + CLOSED if until > stream.end() else b""),
        stream[0] + content[begins:],
        begins - until,
    )


def always(parts: list[Any]) -> bool:
    return any(kind in bytes(parts[0]) for kind in ALWAYS)


def of(request: str) -> tuple[dict[str, Any] | None, list[bytes]]:
    """What is remembered of a request, and its messages' frames; None where it is not the last run or did not begin."""
    if not request or request.encode() != last["id"]:
        return None, []
    counts = [len(parts) for parts in last["messages"]]
    told = {name: last[name] for name in ("count", "head", "lost", "payload")} | {
        "counts": counts
    }
    return told, [bytes(frame) for parts in last["messages"] for frame in parts]
