"""Which path a message means whose exception does not carry one, and programs that could not be started."""

from __future__ import annotations

import ast
import difflib
import os

from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.reach import first
from stepper.kernel.inside.base import is_a, peek, short, top_module

PROGRAMS, TEXT = 20_000, 400


def path(error, places):
    """The text of the failing line that the message repeats."""
    if type(peek(error, "filename")) is str:
        return None
    said = message(error)
    return first(texts, places, lambda node, spot, outer: named(spot.value(node), said))


def texts(spot):
    return [node for node in spot.nodes if is_a(node, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript))]


def named(value, said):
    text = value if type(value) is str else str(value) if top_module(type(value)) == "pathlib" else ""
    return short(text, TEXT) if len(text) > 2 and text in said else None


def program(error, places):
    """Of what `subprocess` could not start: the program, the closest ones on PATH; or the folder it was to run in."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    scope = trace.tb_frame.f_locals
    if trace.tb_frame.f_globals.get("__name__") != "subprocess" or "executable" not in scope:
        return None
    name, cwd = peek(error, "filename"), scope.get("cwd")
    if type(name) is not str or (type(cwd) is str and cwd == name):
        return None
    if "/" in name:
        return {"name": short(name), "close": [], "script": os.path.exists(name)}
    return {"name": short(name), "close": closest(name), "script": False}


def closest(name):
    known = set()
    for folder in os.environ.get("PATH", "").split(os.pathsep)[:40]:
        if os.path.isdir(folder):
            known.update(os.listdir(folder)[: PROGRAMS - len(known)])
    return [short(one, 60) for one in difflib.get_close_matches(name, known, 3, 0.75)]
