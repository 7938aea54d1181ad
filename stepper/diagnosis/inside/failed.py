"""All that the diagnosis tells of a cell that failed; loaded when the first one does: most cells never need it.

`ASKS` says what is asked first for which class of exception; the table of values is read for every class.
"""

from __future__ import annotations

import os
import re
from typing import Any, Callable, Iterable

from stepper.diagnosis.inside.calls import called
from stepper.diagnosis.inside.changed import changes
from stepper.diagnosis.inside.imports import imported, submodules
from stepper.diagnosis.inside.lacks import Finding, as_it_was, attribute, finding, key, place
from stepper.diagnosis.inside.scopes import hidden, local_names
from stepper.diagnosis.inside.spots import Spot, spots
from stepper.diagnosis.inside.table import at_hand, held, rows, telling, unpacked
from stepper.diagnosis.inside.texts import path_of, texts
from stepper.kernel.inside.base import class_names, clock, guarded, peek, short
from stepper.kernel.inside.fault import message

SECONDS, FINDINGS = 0.6, 12
Ask = Callable[[BaseException, "list[Spot]"], Any]
ASKS: tuple[tuple[str, tuple[Ask, ...]], ...] = (
    ("NameError", (hidden,)),
    ("ModuleNotFoundError", (submodules,)),
    ("ImportError", (imported,)),
    ("KeyError", (key,)),
    ("AttributeError", (attribute,)),
    ("IndexError", (place,)),
    ("TypeError", (called, as_it_was)),
)
# Of these nothing else is told than what was asked, of the second nothing where that found something.
ALONE = ("NameError", "ImportError", "FileNotFoundError", "NotADirectoryError", "IsADirectoryError", "SyntaxError")
ENOUGH = ("KeyError", "AttributeError", "IndexError")


def facts(error: BaseException) -> dict[str, Any]:
    """What is told besides the fault itself."""
    return {"look": guarded(look, error) or {}, "changed": guarded(changes, error)}


def look(error: BaseException) -> dict[str, Any]:
    """The findings, and what the project's side needs to look further."""
    until, places = clock() + SECONDS, guarded(spots, error.__traceback__) or []
    known, findings = set(class_names(type(error))), list[Finding]()
    for name, asks in ASKS:
        if name in known:
            answers = [guarded(ask, error, places) for ask in asks if places or name != "NameError"]
            findings += filter(None, answers)
            break
    if not known.intersection(ALONE) and not (findings and known.intersection(ENOUGH)):
        findings += general(error, places, until, known)
    told_of = {"findings": findings[:FINDINGS], "locals": local_names(places) if "NameError" in known else []}
    return {**told_of, **(guarded(missing_file, error, places) or {})} if known.intersection(ALONE[2:5]) else told_of


def general(error: BaseException, places: list[Spot], until: float, known: set[str]) -> list[Finding]:
    """What the texts, the table of values and the arguments tell, as far as there is time."""
    table = guarded(rows, places, message(error)) or []
    readings: list[Callable[[], Iterable[Any]]] = [
        lambda: [finding(text) for text in texts(error, places)],
        lambda: unpacked(error, places) if "ValueError" in known else (),
        lambda: telling(error, table),
        lambda: filter(None, [key(error, places)]) if "ValueError" in known and "not" in message(error) else (),
        lambda: held(table),
        lambda: at_hand(places),
    ]
    findings: list[Finding] = []
    for reading in readings:
        if clock() < until:
            findings += guarded(lambda: list(reading())) or []  # noqa: B023  # called at once
    return findings


def missing_file(error: BaseException, places: list[Spot]) -> dict[str, Any]:
    """The path that a message repeats where its exception carries none; a program that could not be started."""
    name = peek(error, "filename")
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    scope = trace.tb_frame.f_locals if trace is not None else {}
    module = trace.tb_frame.f_globals.get("__name__") if trace is not None else ""
    if type(name) is str and module == "subprocess" and "executable" in scope and scope.get("cwd") != name:
        return {"program": True, "findings": [finding(program(name))]}
    said = message(error)
    paths = [path_of(value) for spot in places for _, value, _ in spot.known()] if type(name) is not str else []
    paths += [node.value for spot in places for node in spot.nodes if type(getattr(node, "value", 0)) is str]
    return {"path": next((short(path, 400) for path in paths if len(path) > 2 and path in said), "")}


def program(name: str) -> str:
    """Why a program did not start."""
    if "/" in name and os.path.exists(name):
        return f"{name!r} is there, but the program that its first line (`#!`) names is not"
    if re.search(r"\s", name):
        return f"a program of the name {name!r} was sought, blanks and all; its arguments are given apart, as a list"
    return f"{name!r} was sought as a program{'' if '/' in name else ' on PATH'} and is not there"
