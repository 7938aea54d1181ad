"""What the last run published, and what came after it: for a daemon that was not there when it was.

Whatever goes to iopub, from threads and forked children too, passes one method of ipykernel's own thread for it. The
frames are kept as they are sent: nothing is measured or copied in a step but their sizes. Of much the head and the
tail stay: a run of hours ends with what matters.
"""

from __future__ import annotations

import contextlib
from typing import Any

from stepper.kernel.inside.base import shell

LIMIT = 1 << 20  # bytes of messages
DELIMITER = b"<IDS|MSG>"
ALWAYS = (b'"status"', b'"execute_input"', b'"stepper_facts"')  # kept whatever is lost: they are few and small
last: dict[str, Any] = {"id": b"", "messages": [], "count": 0, "head": 0, "size": 0, "lost": 0, "payload": []}
before: list[list[Any]] = []  # the `busy` of a request, which comes before it is known to be a run


def begin() -> None:
    thread = shell.kernel.iopub_thread
    send = thread.send_multipart

    def remembering(message: list[Any], *given: Any, **named: Any) -> None:
        send(message, *given, **named)
        with contextlib.suppress(Exception):  # an interrupt goes on its way: it is meant for the cell
            take(list(message))

    thread.send_multipart = remembering


def end() -> None:
    vars(shell.kernel.iopub_thread).pop("send_multipart", None)


def take(message: list[Any]) -> None:
    parts = message[message.index(DELIMITER) + 2 :]  # without the signature: header, parent, metadata, content, buffers
    header, parent = bytes(parts[0]), bytes(parts[1])
    if b'"execute_input"' in header:
        request = parent.partition(b'"msg_id"')[2].split(b'"', 2)[1]  # as it stands in each parent's JSON
        last.update(id=request, messages=[*before], count=len(before), head=0, size=0, lost=0, payload=[])
    elif b'"status"' in header:
        before[:] = [parts]
    if not last["id"] or last["id"] not in parent:
        return
    last["count"] += 1  # whoever heard as many has heard all
    size, messages = 0 if always(parts) else sum(map(len, parts)), last["messages"]
    if size > LIMIT // 2:
        last["lost"] += size
        return
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


def always(parts: list[Any]) -> bool:
    return any(kind in bytes(parts[0]) for kind in ALWAYS)


def of(request: str) -> tuple[dict[str, Any] | None, list[bytes]]:
    """What is remembered of a request, and its messages' frames; None where it is not the last run or did not begin."""
    if not request or request.encode() != last["id"]:
        return None, []
    counts = [len(parts) for parts in last["messages"]]
    told = {name: last[name] for name in ("count", "head", "lost", "payload")} | {"counts": counts}
    return told, [bytes(frame) for parts in last["messages"] for frame in parts]
