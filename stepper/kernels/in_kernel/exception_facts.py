"""An exception as facts: classes, message, attributes, what is below it and the lines of the user's own code."""

from __future__ import annotations

from typing import Any

from stepper.kernels.in_kernel.cell_sources import describe_frames, find_cell_line
from stepper.kernels.in_kernel.safe_inspect import (
    CAUSES,
    call_safely,
    get_cell_files,
    is_a,
    is_error,
    list_class_names_of_error,
    peek,
    shorten,
    to_plain_value,
)

MESSAGE = 10000
ATTRIBUTES = (
    "errno",
    "name",
    "filename",
    "path",
    "lineno",
    "offset",
    "text",
    "start",
    "end",
    "encoding",
    "code",
)


def find_reason(error: BaseException) -> BaseException | None:
    arguments = peek(error, "args")
    found = [
        peek(error, "reason"),
        peek(error, "__cause__"),
        *(arguments if type(arguments) is tuple else ()),
    ]
    return next(filter(is_error, found), None)


def collect_attributes(error: BaseException) -> dict[str, Any]:
    told = {
        get_class_name: to_plain_value(peek(error, get_class_name))
        for get_class_name in ATTRIBUTES
    }
    told["key"] = (
        to_plain_value(error.args[0]) if is_a(error, KeyError) and error.args else None
    )
    found = {
        get_class_name: value
        for get_class_name, value in told.items()
        if value is not None
    }
    if (
        is_a(error, SyntaxError)
        and found.get("filename") in get_cell_files()
        and "lineno" in found
    ):
        found["lineno"] = find_cell_line(found["filename"], found["lineno"])[1]
    status = [peek(peek(error, "response"), "status_code"), peek(error, "status")]
    status += (
        [found.get("code")]
        if "urllib.error.HTTPError" in list_class_names_of_error(error)
        else []
    )
    status = [number for number in status if is_a(number, int) and 100 <= number <= 599]
    if status:
        found["status"] = int(status[0])
    reason, depth = find_reason(error), 0
    while reason is not None and depth < CAUSES:
        known = found.setdefault("reason_mro", [])
        known.extend(
            get_class_name
            for get_class_name in list_class_names_of_error(reason)
            if get_class_name not in known
        )
        number = to_plain_value(peek(reason, "errno"))
        if isinstance(number, int):
            found["reason_errno"] = number
        reason, depth = find_reason(reason), depth + 1
    return found


def get_class_name(error: BaseException) -> str:
    return shorten(type.__dict__["__name__"].__get__(type(error)))


def get_message(error: BaseException) -> str:
    said = peek(error, "msg") if is_a(error, SyntaxError) else None
    said = call_safely(
        shorten,
        said if type(said) is str and said else call_safely(str, error),
        MESSAGE,
    )
    return "<exception str() failed>" if said is None else said


def describe_chain(error: BaseException) -> list[list[str]]:
    """What led to it, nearest first: [how, class, message]; the errors of a group with it."""
    seen, inside = {id(error)}, peek(error, "exceptions")
    group = filter(is_error, inside[:3] if type(inside) is tuple else ())
    found = [
        ["one of its group", get_class_name(one), get_message(one)[:300]]
        for one in group
    ]
    while len(found) < CAUSES:
        cause, context = peek(error, "__cause__"), peek(error, "__context__")
        how = "caused by" if is_error(cause) else "while handling"
        above: Any = (
            cause
            if is_error(cause)
            else None
            if peek(error, "__suppress_context__")
            else context
        )
        if not is_error(above) or id(above) in seen:
            break
        error = above
        seen.add(id(error))
        found.append([how, get_class_name(error), get_message(error)[:300]])
    return found


def describe_exception(error: BaseException) -> dict[str, Any]:
    return {
        "ename": get_class_name(error),
        "evalue": get_message(error),
        "mro": list_class_names_of_error(error),
        "attributes": call_safely(collect_attributes, error) or {},
        "chain": call_safely(describe_chain, error) or [],
        "frames": call_safely(describe_frames, error.__traceback__) or [],
    }
