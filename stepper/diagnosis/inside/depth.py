"""A recursion without an end: which functions call one another, and with what."""

from __future__ import annotations

import collections

from stepper.diagnosis.inside.onspot import written
from stepper.kernel.inside.base import guarded, missing, short
from stepper.kernel.inside.cells import own_frames

LAST = 5


def recursion(error, places):
    """The functions that stand again and again in the traceback, the last calls with their first plain argument."""
    codes = [(frame.f_code, frame) for frame, _, _ in own_frames(error.__traceback__)]
    codes = [(code, frame) for code, frame in codes if not code.co_name.startswith("<")]
    count = collections.Counter(id(code) for code, _ in codes)
    often = [(code, frame) for code, frame in codes if count[id(code)] > 10]
    if not often:
        return None
    calls = [f"{short(code.co_name, 40)}({guarded(argument, code, frame) or ''})" for code, frame in often[-LAST:]]
    names = list(dict.fromkeys(short(code.co_name, 40) for code, _ in often[-40:]))
    return {"functions": names[:4], "count": max(count.values()), "calls": calls}


def argument(code, frame):
    names = [name for name in code.co_varnames[: code.co_argcount] if name != "self"]
    found = [(name, frame.f_locals.get(name, missing)) for name in names[:3]]
    told = [(name, guarded(written, value, 40)) for name, value in found if value is not missing]
    return ", ".join(f"{name}={text}" for name, text in told if text is not None)
