"""An exception as facts: classes, message, attributes, what is below it and the lines of the user's own code."""

from __future__ import annotations

from typing import Any

from stepper.kernels.in_kernel.cell_sources import frames, place
from stepper.kernels.in_kernel.safe_inspect import (
    CAUSES,
    files,
    guarded,
    is_a,
    is_error,
    mro,
    peek,
    plain,
    short,
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


def below(error: BaseException) -> BaseException | None:
    arguments = peek(error, "args")
    found = [
        peek(error, "reason"),
        peek(error, "__cause__"),
        *(arguments if type(arguments) is tuple else ()),
    ]
    return next(filter(is_error, found), None)


def attributes(error: BaseException) -> dict[str, Any]:
    told = {name: plain(peek(error, name)) for name in ATTRIBUTES}
    told["key"] = plain(error.args[0]) if is_a(error, KeyError) and error.args else None
    found = {name: value for name, value in told.items() if value is not None}
    if (
        is_a(error, SyntaxError)
        and found.get("filename") in files()
        and "lineno" in found
    ):
        found["lineno"] = place(found["filename"], found["lineno"])[1]
    status = [peek(peek(error, "response"), "status_code"), peek(error, "status")]
    status += [found.get("code")] if "urllib.error.HTTPError" in mro(error) else []
    status = [number for number in status if is_a(number, int) and 100 <= number <= 599]
    if status:
        found["status"] = int(status[0])
    reason, depth = below(error), 0
    while reason is not None and depth < CAUSES:
        known = found.setdefault("reason_mro", [])
        known.extend(name for name in mro(reason) if name not in known)
        number = plain(peek(reason, "errno"))
        if isinstance(number, int):
            found["reason_errno"] = number
        reason, depth = below(reason), depth + 1
    return found


def name(error: BaseException) -> str:
    return short(type.__dict__["__name__"].__get__(type(error)))


def message(error: BaseException) -> str:
    said = peek(error, "msg") if is_a(error, SyntaxError) else None
    said = guarded(
        short, said if type(said) is str and said else guarded(str, error), MESSAGE
    )
    return "<exception str() failed>" if said is None else said


def chain(error: BaseException) -> list[list[str]]:
    """What led to it, nearest first: [how, class, message]; the errors of a group with it."""
    seen, inside = {id(error)}, peek(error, "exceptions")
    group = filter(is_error, inside[:3] if type(inside) is tuple else ())
    found = [["one of its group", name(one), message(one)[:300]] for one in group]
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
        found.append([how, name(error), message(error)[:300]])
    return found


def fault(error: BaseException) -> dict[str, Any]:
    return {
        "ename": name(error),
        "evalue": message(error),
        "mro": mro(error),
        "attributes": guarded(attributes, error) or {},
        "chain": guarded(chain, error) or [],
        "frames": guarded(frames, error.__traceback__) or [],
    }
