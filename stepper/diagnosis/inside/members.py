"""What has no such attribute, what has no such name to import, and what they have."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import types

from stepper.diagnosis.inside.definers import documented, newer, scan
from stepper.diagnosis.inside.fault import message
from stepper.diagnosis.inside.givens import given, givens, source_of
from stepper.diagnosis.inside.keys import labels_of
from stepper.diagnosis.inside.parts import data_names, holder, is_plain, item_kind
from stepper.diagnosis.inside.reach import bound, columns, first, quoted
from stepper.kernel.inside.base import (
    class_name,
    classes_of,
    guarded,
    is_a,
    is_pandas,
    missing,
    names_in,
    of_library,
    peek,
    plain,
    short,
)
from stepper.kernel.inside.cells import is_own

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
    value = peek(error, "obj", missing)  # Python 3.10
    if value is missing and node is not None:
        value = spot.value(node.value)
    wanted = peek(error, "name") or (node.attr if node is not None else "")
    fact = {"type": "None" if value is None else class_name(type(value)), "names": names_of(value)}
    if is_a(value, types.ModuleType):
        fact["module"] = plain(object.__getattribute__(value, "__dict__").get("__name__"))
        fact["elsewhere"] = elsewhere(fact["module"], wanted)
        fact["newer"] = guarded(newer, fact["module"], wanted)
    elif is_a(value, type):
        fact["class"] = class_name(value)
    fact["version"] = version((fact.get("module") or fact["type"]).split(".")[0])
    if node is not None:
        fact["expression"] = short(ast.unparse(node.value), 80)
        fact["called"] = any(is_a(one, ast.Call) and one.func is node for one in ast.walk(spot.tree))
        if is_a(node.value, (ast.Name, ast.Attribute)):
            fact["bound"] = guarded(bound, node.value, spot, outer)
    if value is None and node is not None:
        fact["givens"] = guarded(givens, guarded(source_of, node.value, spot) or node.value, spot)
    elif not is_a(value, (types.ModuleType, type)):
        fact.update(guarded(of_value, value, wanted, fact["names"]) or {})
    return fact


def of_value(value, wanted, names):
    """What a value holds instead: its size and items, which part of it has the attribute, what it stores."""
    fact = {"holds": (guarded(given, value) or {}) if is_plain(value) else {}, "data": data_names(value, names)[:60]}
    if type(value) is dict:
        fact["keys"] = [short(key, 60) for key in list(value)[:200] if type(key) is str]
    fact["item"] = guarded(item_kind, value, wanted)
    fact["holder"] = None if fact["item"] else guarded(holder, value, wanted)
    if of_library(value):
        fact["documented"] = guarded(documented, value, wanted)
    if is_pandas(value, "Series") and len(value):
        fact["first"] = (guarded(given, value.iloc[0]) or {}).get("value")
    return fact


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
    nearest = sorted(has, key=lambda one: (one.count("."), len(one)))
    return [one for one in nearest if not any(one.startswith(up + ".") for up in nearest)][:2]


def version(package):
    own = peek(sys.modules.get(package), "__version__") if package in sys.modules else None
    return short(own, 40) if type(own) is str and package not in ("builtins", "__main__") else ""


# --- imports -------------------------------------------------------------------------------------------------------


def imported(error, places):
    """The module that lacks a name, the names it has and where else in its package the name is."""
    module = peek(error, "name") or ""
    wanted = peek(error, "name_from") or quoted(message(error))
    found = sys.modules.get(module)
    names = [name for name in (guarded(vars, found) or ()) if type(name) is str]
    names += submodules_of(found)
    fact = {"module": module, "wanted": wanted, "names": sorted({*names})[:NAMES]}
    fact["version"], fact["newer"] = version(module.split(".")[0]), guarded(newer, module, wanted)
    fact["elsewhere"] = elsewhere(module, wanted)
    fact["beside"] = [one for one in asked_of(places, module) if one != wanted and one in names]
    if wanted and not fact["elsewhere"] and not fact["newer"]:
        fact.update(guarded(scan, module.split(".")[0], wanted, {*names}) or {})
    return fact


def submodules_of(found):
    """The names of a package's files and folders."""
    folders = [one for one in list(peek(found, "__path__") or [])[:3] if type(one) is str] if found else []
    return [one.split(".")[0] for folder in folders for one in guarded(listed, folder) or ()]


def listed(folder):
    return [one for one in os.listdir(folder) if one.endswith(".py") or "." not in one]


def asked_of(places, module):
    """The names that the failing statement imports from a module."""
    node = places[0].statement if places else None
    return [one.name for one in node.names] if is_a(node, ast.ImportFrom) and node.module == module else []


def submodules(error, places):
    """Of a module that can't be found: its nearest parent that can, what that holds, where the names sought are."""
    wanted = peek(error, "name") or ""
    parent, _, last = wanted.rpartition(".")
    if not parent or importlib.util.find_spec(parent.split(".")[0]) is None:
        return None
    while parent not in sys.modules and "." in parent:
        parent, _, last = parent.rpartition(".")
    found = sys.modules.get(parent)
    fact = {"module": parent, "wanted": last, "names": sorted({*submodules_of(found)})[:NAMES],
            "version": version(parent.split(".")[0])}  # fmt: skip
    path = peek(found, "__file__") if found is not None else None
    if type(path) is str and peek(found, "__path__") is None:
        fact["file"] = short(os.path.relpath(path) if is_own(path) else path, 200)
    fact["moved"] = [one for name in asked_of(places, wanted)[:3] for one in [guarded(moved, parent, name)] if one]
    return fact


def moved(parent, name):
    """Where in the package a name is: a loaded module that has it, else one whose source defines it."""
    top = parent.split(".")[0]
    known = elsewhere(top, name)
    defined = (scan(top, name) or {}).get("defined") if not known else None
    return [short(name, 80), *(known or [defined[0]])][:2] if known or defined else None


# --- keywords that a function hands on -----------------------------------------------------------------------------


def passed(error, places):
    """For a keyword that a library's function hands on to others: the parameters of the functions it went through."""
    found = re.search(r"unexpected keyword argument '([^']+)'|has no property '([^']+)'", message(error))
    trace, parameters = error.__traceback__, {}
    while found and trace is not None:
        code = trace.tb_frame.f_code
        if not is_own(code.co_filename):
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            parameters.update({name: short(code.co_name, 60) for name in names if name not in parameters})
        trace = trace.tb_next
    return {"wanted": short(found[1] or found[2], 80), "parameters": parameters} if parameters else None
