"""What has no such attribute, what has no such name to import, and what they have."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import types

from .base import class_name, classes_of, guarded, is_a, missing, names_in, peek, plain, short
from .fault import message
from .keys import labels_of
from .reach import bound, columns, first, quoted

NAMES = 800


def attributes(error, places):
    """Of what, and which attributes it has; where its expression was bound last."""
    wanted = peek(error, "name") or quoted(message(error).split("attribute")[-1])
    found = first(
        lambda spot: [n for n in spot.nodes if is_a(n, ast.Attribute) and n.attr == wanted] or [None],
        places,
        lambda node, spot, outer: owner(error, node, spot, outer),
    )
    return {"wanted": wanted, **found} if found else None


def owner(error, node, spot, outer):
    value, known = peek(error, "obj", missing), True  # Python 3.10
    if value is missing and node is not None:
        value = spot.value(node.value)
    fact = {"type": "None" if value is None else class_name(type(value)), "names": names_of(value)}
    if is_a(value, types.ModuleType):
        fact["module"] = plain(object.__getattribute__(value, "__dict__").get("__name__"))
        fact["elsewhere"] = elsewhere(fact["module"], peek(error, "name"))
    if is_a(value, type):
        fact["class"] = class_name(value)
    fact["version"] = version((fact.get("module") or fact["type"]).split(".")[0])
    if node is not None:
        fact["expression"] = short(ast.unparse(node.value), 80)
        if is_a(node.value, (ast.Name, ast.Attribute)):
            fact["bound"] = guarded(bound, node.value, spot, outer)
    return fact if known else None


def names_of(value):
    if is_a(value, types.ModuleType):
        found = list(object.__getattribute__(value, "__dict__"))
    else:
        kinds = classes_of(value if is_a(value, type) else type(value))
        found = [name for kind in kinds for name in names_in(kind)]
        own = guarded(object.__getattribute__, value, "__dict__")
        found += list(own) if type(own) is dict else []
        found += [one for one in (labels_of(value) or [] if columns(value) is not None else []) if type(one) is str]
    return sorted({short(name, 80) for name in found if type(name) is str and not name.startswith("__")})[:NAMES]


def elsewhere(module, name):
    """The loaded modules of the same package that do define the name, shortest first."""
    top = (module or "").split(".")[0] + "."
    has = [
        one for one, found in list(sys.modules.items())
        if type(one) is str and one.startswith(top) and name in (guarded(vars, found) or ()) and "._" not in one
    ]  # fmt: skip
    return sorted(has, key=lambda one: (one.count("."), len(one)))[:2]


def version(package):
    own = peek(sys.modules.get(package), "__version__") if package in sys.modules else None
    return short(own, 40) if type(own) is str and package not in ("builtins", "__main__") else ""


# --- imports -------------------------------------------------------------------------------------------------------


def imported(error, places):
    """The module that lacks a name, the names it has and the modules beside it that have it."""
    module = peek(error, "name") or ""
    wanted = peek(error, "name_from") or quoted(message(error))
    found = sys.modules.get(module)
    names = [name for name in (guarded(vars, found) or ()) if type(name) is str]
    for folder in (peek(found, "__path__") or [])[:3]:
        names += [one.split(".")[0] for one in guarded(listed, folder) or ()]
    return {"module": module, "wanted": wanted, "names": sorted({*names})[: NAMES],
            "elsewhere": elsewhere(module, wanted), "version": version(module.split(".")[0])}  # fmt: skip


def listed(folder):
    return [one for one in os.listdir(folder) if one.endswith(".py") or "." not in one]


def submodules(error, places):
    """Of a module that can't be found: its nearest parent that can, and what that holds."""
    wanted = peek(error, "name") or ""
    parent, _, last = wanted.rpartition(".")
    if not parent or importlib.util.find_spec(parent.split(".")[0]) is None:
        return None
    while parent not in sys.modules and "." in parent:
        parent, _, last = parent.rpartition(".")
    found = sys.modules.get(parent)
    names = [
        one.split(".")[0] for folder in (peek(found, "__path__") or [])[:3] for one in guarded(listed, folder) or ()
    ]
    return {
        "module": parent,
        "wanted": last,
        "names": sorted({*names})[:NAMES],
        "version": version(parent.split(".")[0]),
    }
