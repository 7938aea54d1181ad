"""What the fix of a fault may need, as facts: looked up when a cell has failed, told with its message.

`FACTS` says what is looked at for which class of exception; `stepper/core/suggest.py` makes the words.
"""

from __future__ import annotations

import ast

from .base import class_names, clock, guarded, is_a, peek, shell, short
from .calls import called, index, not_what_it_was
from .fault import message
from .keys import keys
from .members import attributes, imported, submodules
from .reach import quoted, spots
from .values import bytes_of, operands, value_at

SECONDS, NAMES = 0.6, 400


def look(error):
    """Return facts about a fault, by name; what can't be had is left out."""
    until = clock() + SECONDS
    found, places = {}, guarded(spots, error.__traceback__) or []
    known = set(class_names(type(error)))
    for name, asks in FACTS:
        if name in known:
            for key, ask in asks:
                value = guarded(ask, error, places) if clock() < until else None
                if value:
                    found[key] = value
            break
    if "operands" not in found and places and clock() < until:
        found["operands"] = guarded(operands, error, places) or []
    return found


def local_names(error, places):
    scope = places[0].frame.f_locals if places else {}
    return [short(name, 80) for name in list(scope)[:NAMES]] if scope is not shell.user_ns else []


def made_local(error, places):
    """For UnboundLocalError: the line that makes the name local to its function."""
    name, function = peek(error, "name") or quoted(message(error)), places[0].function()
    lines = [
        node.lineno
        for node in ast.walk(function)
        if is_a(node, ast.Name) and node.id == name and is_a(node.ctx, ast.Store)
    ]
    if "UnboundLocalError" in class_names(type(error)) and lines:
        return {"line": min(lines), "global": name in places[0].frame.f_globals}
    return None


# The first class that a fault has decides; what is asked in what order, and under which name it is told.
FACTS = (
    ("NameError", (("locals", local_names), ("made_local", made_local))),
    ("ModuleNotFoundError", (("parent", submodules),)),
    ("ImportError", (("import", imported),)),
    ("KeyError", (("keys", keys),)),
    ("AttributeError", (("attributes", attributes), ("call", called))),
    ("IndexError", (("index", index),)),
    ("TypeError", (("call", called), ("holds", not_what_it_was), ("operands", operands))),
    ("UnicodeError", (("bytes", bytes_of),)),
    ("ValueError", (("value_at", value_at), ("keys", keys), ("operands", operands))),
)
