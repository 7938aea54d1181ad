"""What the fix of a fault may need, as facts: looked up when a cell has failed, told with its message.

`FACTS` says what is looked at for which class of exception; `stepper/diagnosis/suggest.py` makes the words.
"""

from __future__ import annotations

from stepper.diagnosis.inside.calls import called, not_what_it_was
from stepper.diagnosis.inside.clues import clues
from stepper.diagnosis.inside.keys import keys
from stepper.diagnosis.inside.members import attributes, imported, passed, submodules
from stepper.diagnosis.inside.paths import path, program
from stepper.diagnosis.inside.reach import spots
from stepper.diagnosis.inside.scopes import class_body, fits, local_names, made_local
from stepper.diagnosis.inside.sequences import index
from stepper.diagnosis.inside.values import bytes_of, operands, value_at
from stepper.kernel.inside.base import class_names, clock, guarded

SECONDS = 0.6


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
    if places and clock() < until:
        found["clues"] = guarded(clues, error, places, until) or []
    return found


# The first class that a fault has decides; what is asked in what order, and under which name it is told.
FACTS = (
    ("NameError", (("locals", local_names), ("made_local", made_local), ("class_body", class_body), ("fits", fits))),
    ("ModuleNotFoundError", (("parent", submodules),)),
    ("ImportError", (("import", imported),)),
    ("KeyError", (("keys", keys),)),
    ("AttributeError", (("attributes", attributes), ("call", called), ("passed", passed))),
    ("IndexError", (("index", index),)),
    ("FileNotFoundError", (("path", path), ("program", program))),
    ("TypeError", (("call", called), ("holds", not_what_it_was), ("operands", operands))),
    ("UnicodeError", (("bytes", bytes_of),)),
    ("ValueError", (("value_at", value_at), ("keys", keys), ("operands", operands))),
)
