"""The conversion of an exception to JSON.

The JSON contains the classes, message, attributes, causes and frames of user code. The
only user code that runs in this module is the exception's `__str__`.
"""

from __future__ import annotations

from typing import Any

from stepper.kernels.in_kernel.cell_sources import describe_frames, find_cell_line
from stepper.kernels.in_kernel.safe_inspect import (
    MAX_CAUSES,
    call_safely,
    get_cell_files,
    is_a,
    is_error,
    list_error_class_names,
    peek,
    shorten,
    to_plain_value,
)

MAX_MESSAGE = 10_000  # characters
MAX_CHAIN_MESSAGE = 300
MAX_GROUP = 3  # exceptions of an exception group
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
    """Return the exception that an exception wraps, or None if there is none.

    For example, `urllib.error.URLError` has the wrapped exception as `reason`.
    """
    arguments = peek(error, "args")
    candidates = [peek(error, "reason"), peek(error, "__cause__")]
    if type(arguments) is tuple:
        candidates.extend(arguments)
    return next(filter(is_error, candidates), None)


def collect_attributes(error: BaseException) -> dict[str, Any]:
    """Return the attributes that help to classify an exception.

    They include the HTTP status, the key of a KeyError, and the classes of wrapped
    exceptions. The line of a SyntaxError is that of the cell as written. JSON can
    encode the result.
    """
    values = {name: to_plain_value(peek(error, name)) for name in ATTRIBUTES}
    if is_a(error, KeyError) and error.args:
        values["key"] = to_plain_value(error.args[0])
    facts = {name: value for name, value in values.items() if value is not None}
    if is_a(error, SyntaxError) and "lineno" in facts:
        filename = facts.get("filename")
        if filename in get_cell_files():
            _, facts["lineno"] = find_cell_line(filename, facts["lineno"])
    status = find_http_status(error, facts)
    if status is not None:
        facts["status"] = status
    facts.update(describe_reasons(error))
    return facts


def find_http_status(error: BaseException, facts: dict[str, Any]) -> int | None:
    """Return the status of the HTTP response that an exception reports, or None."""
    candidates = [
        peek(peek(error, "response"), "status_code"),
        peek(error, "status"),
    ]
    if "urllib.error.HTTPError" in list_error_class_names(error):
        candidates.append(facts.get("code"))
    for candidate in candidates:
        if is_a(candidate, int) and 100 <= candidate <= 599:
            return int(candidate)
    return None


def describe_reasons(error: BaseException) -> dict[str, Any]:
    """Return the class names and the error number of the wrapped exceptions.

    The number is that of the innermost exception with an `errno`. The result is empty
    if the exception does not wrap another one.
    """
    facts: dict[str, Any] = {}
    reason = find_reason(error)
    depth = 0
    while reason is not None and depth < MAX_CAUSES:
        names = facts.setdefault("reason_mro", [])
        for name in list_error_class_names(reason):
            if name not in names:
                names.append(name)
        number = to_plain_value(peek(reason, "errno"))
        if isinstance(number, int):
            facts["reason_errno"] = number
        reason = find_reason(reason)
        depth += 1
    return facts


def get_class_name(error: BaseException) -> str:
    """Return the unqualified name of an exception's class."""
    return shorten(type.__dict__["__name__"].__get__(type(error)))


def get_message(error: BaseException) -> str:
    """Return the message of an exception, shortened to MAX_MESSAGE characters.

    The exception's `__str__` is called, except for a SyntaxError with a message. If
    this fails, the message says so.
    """
    message = None
    if is_a(error, SyntaxError):
        message = peek(error, "msg")
    if type(message) is not str or not message:
        message = call_safely(str, error)
    text = call_safely(shorten, message, MAX_MESSAGE)
    return "<exception str() failed>" if text is None else text


def describe_chain(error: BaseException) -> list[list[str]]:
    """Return the causes of an exception, nearest first.

    The members of an exception group come before its causes. Each entry is a list of
    the relation to the previous exception, the class name and the message.
    """
    chain = []
    group = peek(error, "exceptions")
    if type(group) is tuple:
        for member in filter(is_error, group[:MAX_GROUP]):
            chain.append(describe_link("the exception group contains", member))
    seen = {id(error)}
    while len(chain) < MAX_CAUSES:
        relation, cause = find_cause(error)
        if not is_error(cause) or id(cause) in seen:
            break
        error = cause
        seen.add(id(error))
        chain.append(describe_link(relation, error))
    return chain


def find_cause(error: BaseException) -> tuple[str, Any]:
    """Return the cause of an exception, or its context if there is no cause.

    The first item is the relation, "caused by" or "while handling". The second item is
    the cause or context, or None if the context is suppressed or missing.
    """
    cause = peek(error, "__cause__")
    context = peek(error, "__context__")
    if is_error(cause):
        return "caused by", cause
    if peek(error, "__suppress_context__"):
        return "while handling", None
    return "while handling", context


def describe_link(relation: str, error: BaseException) -> list[str]:
    """Return an entry of `describe_chain`: [relation, class, message]."""
    return [relation, get_class_name(error), get_message(error)[:MAX_CHAIN_MESSAGE]]


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Return the facts on an exception, as a dict that JSON can encode.

    `ename` is the class name, `evalue` the message, `mro` the names of the classes.
    """
    return {
        "ename": get_class_name(error),
        "evalue": get_message(error),
        "mro": list_error_class_names(error),
        "attributes": call_safely(collect_attributes, error) or {},
        "chain": call_safely(describe_chain, error) or [],
        "frames": call_safely(describe_frames, error.__traceback__) or [],
    }
