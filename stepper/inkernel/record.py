"""What the last run published, and its reply: for a daemon that was not there when it was."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from time import time

from .base import shell

LIMIT = 1 << 20  # characters of outputs
EACH = 500  # … that a message itself takes
TEXT = 20_000  # of a traceback's or a message's
ALWAYS = ("status", "execute_input", "execute_reply", "error", "stepper_facts")  # kept whatever their size
SHOWN = ("stream", "display_data", "execute_result", "update_display_data", "clear_output")
last = {"id": None, "messages": [], "size": 0, "lost": 0}
waiting = {}  # the `busy` of a request, which comes before it is known to be a run
original = {}
watchers = []  # called with each message's kind and content and with its request


def begin():
    session = shell.kernel.session
    original["send"] = send = session.send

    def sending(stream, kind, content=None, parent=None, *given, **named):
        sent = send(stream, kind, content, parent, *given, **named)
        with contextlib.suppress(Exception):  # an interrupt goes on its way: it is meant for the cell
            take(kind, content, parent)
        return sent

    session.send = sending


def end():
    if "send" in original:
        shell.kernel.session.send = original.pop("send")


def take(kind, content, parent):
    if type(kind) is dict:
        kind, content, parent = kind["msg_type"], kind["content"], kind["parent_header"]
    parent = parent or {}
    request = (parent.get("header") or parent).get("msg_id")
    for watch in watchers:
        watch(kind, content, request)
    if kind == "execute_input":
        last.update(id=request, messages=[], size=0, lost=0)
        if waiting.get("id") == request:
            last["messages"].append(waiting["message"])
    elif kind == "status" and request != last["id"]:
        waiting.update(id=request, message=made(kind, content))
    if request == last["id"] and request is not None:
        keep(kind, content)


def keep(kind, content):
    if kind in ALWAYS:
        last["messages"].append(made(kind, shortened(content)))
    elif kind == "stepper_cut":
        last["lost"] += content["left_out"]
    elif kind in SHOWN:
        size = measured(content)
        if last["size"] + size > LIMIT:
            last["lost"] += size
        else:
            last["size"] += size
            last["messages"].append(made(kind, content))


def made(kind, content):
    now = time()  # made a date where it is asked for
    return {"msg_type": kind, "content": content, "date": now}


def measured(content):
    data = content.get("data") or {}
    return EACH + len(content.get("text") or "") + sum(len(str(value)) for value in data.values())


def shortened(content):
    """A copy without what an exception of 30 MB brings along."""
    cut = {name: value[:TEXT] for name, value in content.items() if type(value) is str and len(value) > TEXT}
    trace = content.get("traceback")
    if trace and sum(map(len, trace)) > TEXT:
        cut["traceback"] = [line[:TEXT] for line in trace[-20:]]
    return {**content, **cut} if cut else content


def of(request):
    """What is remembered of a request, None where it is not the last run or did not begin."""
    if not request or request != last["id"]:
        return None
    return {"messages": [dated(**message) for message in last["messages"]], "lost": last["lost"]}


def dated(msg_type, content, date):
    at = datetime.fromtimestamp(date, timezone.utc).isoformat()
    return {"msg_type": msg_type, "content": content, "header": {"msg_type": msg_type, "date": at}}
