"""Whose output it is: what a thread prints or displays belongs to the run that started it, for as long as it lives.

ipykernel gives it to whichever run is on. What comes after its run's end is dropped here and counted.
"""

from __future__ import annotations

import concurrent.futures.thread
import functools
import sys
import threading
from _thread import get_ident

from . import record, sending
from .base import shell

Pool = concurrent.futures.thread.ThreadPoolExecutor
MARK = "_stepper_run"  # on a thread: the header of its run
RUNS, TOLD, LONG = 1000, 8, 3
SHOWN = ("display_data", "update_display_data", "clear_output")
now = {"id": None, "header": {}, "over": True}
numbers = {}  # request → execution count, of the last runs
dropped = {}  # request → characters, since it was told last
original = {}
alive = threading._active  # current_thread() would make an entry for a thread that is none of Python's


def begin():
    original.update(start=threading.Thread.start, submit=Pool.submit, flush={}, kinds=[])
    threading.Thread.start, Pool.submit = started(threading.Thread.start), submitted(Pool.submit)
    for stream in (sys.stdout, sys.stderr):
        original["flush"][stream] = stream._flush_buffers
        stream._flush_buffers = timely(stream, stream._flush_buffers)
    for teller in (sys.stdout, sys.stderr, shell.display_pub, shell.displayhook):
        original["kinds"].append((teller, type(teller)))
        teller.__class__ = of_run(type(teller))
    record.watchers.append(sent)
    original["send"] = shell.kernel.session.send
    shell.kernel.session.send = wanted(shell.kernel.session.send)


def end():
    if "start" in original:
        threading.Thread.start, Pool.submit = original.pop("start"), original.pop("submit")
        for stream, flush in original["flush"].items():
            stream._flush_buffers = flush
        for teller, kind in original["kinds"]:
            teller.__class__ = kind
        record.watchers.remove(sent)
        shell.kernel.session.send = original["send"]


def run(header):
    """A run begins."""
    now.update(id=header["msg_id"], header=header, over=False)
    numbers[now["id"]] = None  # known at its end
    if len(numbers) > RUNS:
        del numbers[next(iter(numbers))]


def sent(kind, content, request):
    """A run is over with its `idle`: all that it wrote is sent by then."""
    if kind == "status" and content.get("execution_state") == "idle" and request == now["id"]:
        now["over"] = True


def own():
    """The header of the run that started this thread; None for the main one and the kernel's."""
    return getattr(alive.get(get_ident()), MARK, None)


def present():
    """The header of the run that starts something now."""
    return own() or (None if now["over"] else now["header"])


def started(start):
    @functools.wraps(start)
    def marked(self):
        vars(self)[MARK] = present()
        return start(self)

    return marked


def submitted(submit):
    """A pool outlives the run that made it: its threads work for the run that submits."""

    @functools.wraps(submit)
    def marked(self, work, /, *given, **named):
        header = present()

        @functools.wraps(work, updated=())
        def of_run(*given, **named):
            vars(threading.current_thread())[MARK] = header
            return work(*given, **named)

        return submit(self, of_run, *given, **named)

    return marked


def of_run(kind):
    """The same class, its `parent_header` that of the thread's own run."""
    stored = next((vars(one)["parent_header"] for one in kind.__mro__ if "parent_header" in vars(one)), None)

    def get(self):
        header = own()
        if header is not None:
            return header
        return vars(self)["parent_header"] if stored is None else stored.__get__(self, kind)

    def put(self, value):
        if stored is None:
            vars(self)["parent_header"] = value
        else:
            stored.__set__(self, value)

    named = {"parent_header": property(get, put), "__module__": kind.__module__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), named)


def late(header):
    request = header.get("msg_id")
    return request in numbers and (request != now["id"] or now["over"])


def drop(header, count):
    request = header["msg_id"]
    dropped[request] = dropped.get(request, 0) + count


def timely(stream, flush):
    """What is in time, without the middle of what is far too long."""

    def pieces():
        for header, text in flush():
            if text and late(header):
                drop(header, len(text))
            elif len(text) > LONG * sending.limit["bytes"]:
                half = sending.limit["bytes"]
                yield header, text[:half]
                told = {"name": stream.name, "left_out": len(text) - 2 * half}
                stream.session.send(stream.pub_thread, "stepper_cut", told, parent=header)
                yield header, text[-half:]
            else:
                yield header, text

    return pieces


def wanted(send):
    """Drops what is displayed too late: nobody reads it, and it would wait in the queue for ever."""

    def sending(stream, kind, *others, **named):
        if type(kind) is dict and kind["msg_type"] in SHOWN and late(kind["parent_header"]):
            drop(kind["parent_header"], sum(len(str(part)) for part in kind["content"].get("data", {}).values()))
            return kind
        return send(stream, kind, *others, **named)

    return sending


def told():
    """What was dropped since this was asked last: [execution count, characters] of the runs that wrote most."""
    found = sorted(((numbers.get(request), count) for request, count in dropped.items()), key=lambda one: -one[1])
    dropped.clear()
    return found[:TOLD]
