"""All that the diagnosis tells of a cell that failed; loaded when the first one does: most cells never need it.

`ASKS` says what is asked first for which class of exception; the table of values is read for every class.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable

from stepper.diagnosis.in_kernel.close_matches import find_quoted
from stepper.diagnosis.in_kernel.decode_errors import texts
from stepper.diagnosis.in_kernel.expression_values import Spot, spots
from stepper.diagnosis.in_kernel.import_facts import imported
from stepper.diagnosis.in_kernel.last_assignment import hidden
from stepper.diagnosis.in_kernel.line_values import (
    Finding,
    build_rows,
    describe_rows,
    find_explanations,
    make_finding,
)
from stepper.diagnosis.in_kernel.missing_keys import (
    explain_attribute_error,
    explain_call_error,
    explain_key_error,
)
from stepper.diagnosis.in_kernel.namespace_changes import list_changes
from stepper.diagnosis.in_kernel.written_files import describe_files
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    class_names,
    clock,
    peek,
    shell,
    shorten,
)

SECONDS, FINDINGS, NAMES = 0.6, 12, 400
Ask = Callable[[BaseException, "list[Spot]"], Any]
ASKS: dict[str, Ask] = {
    "ImportError": imported,
    "KeyError": explain_key_error,
    "AttributeError": lambda error, places: (
        explain_call_error
        if "keyword" in get_message(error)
        else explain_attribute_error
    )(error, places),
    "TypeError": explain_call_error,
}
# Of these nothing else is told than what was asked, of the second nothing where that
# found something.
ALONE = (
    "NameError",
    "ImportError",
    "FileNotFoundError",
    "NotADirectoryError",
    "IsADirectoryError",
    "SyntaxError",
)
ENOUGH = ("KeyError", "AttributeError")
# of other errors: what they say where a key is what is missing
LACKS = r"\bnot (?:in|found|a valid|present)\b"


def facts(error: BaseException) -> dict[str, Any]:
    return {
        "look": call_safely(look, error) or {},
        "changed": call_safely(list_changes, error),
        "files": call_safely(describe_files) or {},
    }


def look(error: BaseException) -> dict[str, Any]:
    """The findings, and what the project's side needs to look further."""
    until, places = clock() + SECONDS, call_safely(spots, error.__traceback__) or []
    known = set(class_names(type(error)))
    if "NameError" in known and places:
        return call_safely(unseen, error, places) or {}
    asked = next(
        (
            call_safely(ask, error, places)
            for name, ask in ASKS.items()
            if name in known
        ),
        None,
    )
    findings = [asked] if asked else []
    if not known.intersection(ALONE) and not (findings and known.intersection(ENOUGH)):
        findings += general(error, places, until)
    said = get_message(error) if known.intersection(ALONE[2:5]) else ""
    path = next(
        (
            text
            for spot in places
            for text in spot.texts()
            if len(text) > 2 and text in said
        ),
        "",
    )
    return {
        "findings": findings[:FINDINGS],
        "path": shorten(path, 400),
        **(call_safely(program, error) or {}),
    }


def unseen(error: BaseException, places: list[Spot]) -> dict[str, Any]:
    why = hidden(str(peek(error, "name") or find_quoted(get_message(error))), places[0])
    return {"findings": [why] if why else [], "locals": local_names(places)[:NAMES]}


def local_names(places: list[Spot]) -> list[str]:
    """The names of the function that failed; of a comprehension or lambda those of the function around it too."""
    names = list[str]()
    for spot in places:
        if spot.frame.f_locals is shell.user_ns:
            break
        names += [shorten(name, 80) for name in spot.frame.f_locals]
        if not spot.frame.f_code.co_name.startswith("<"):
            break
    return names


def general(error: BaseException, places: list[Spot], until: float) -> list[Finding]:
    """What the texts and the table of values tell, as far as there is time."""
    table = call_safely(build_rows, places, get_message(error)) or []
    readings: list[Callable[[], Iterable[Any]]] = [
        lambda: map(make_finding, texts(error, places)),
        lambda: find_explanations(error, table),
        lambda: (
            filter(None, [explain_key_error(error, places)])
            if re.search(LACKS, get_message(error))
            else ()
        ),
        lambda: describe_rows(error, table, places),
    ]
    findings: list[Finding] = []
    for reading in readings:
        if clock() < until:
            findings += call_safely(lambda: list(reading())) or []  # noqa: B023  # called at once
    return findings


def program(error: BaseException) -> dict[str, Any]:
    """Whether it is a program that could not be started, not a file that was not there."""
    trace, name = error.__traceback__, peek(error, "filename")
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if (
        trace is None
        or type(name) is not str
        or trace.tb_frame.f_globals.get("__name__") != "subprocess"
    ):
        return {}
    if trace.tb_frame.f_locals.get("cwd") == name:
        return {}
    return {
        "program": True,
        "findings": [
            make_finding(f"{name!r} was sought as a program and is not there")
        ],
    }
