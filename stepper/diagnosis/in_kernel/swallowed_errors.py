"""Errors that a broad `except` of the cell swallowed.

The helper changes the syntax tree of a cell before IPython compiles the cell: a call of
`record_error` becomes the first statement of each broad handler. The call looks up the
helper in `sys.modules`, so that a function also works in a process without a helper.
The call contains neither the line nor the run, so that an unchanged function compiles
to the same code, which matters for libraries that cache by code.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from stepper.kernels.in_kernel.safe_inspect import (
    get_class_dict,
    get_mro,
    get_qualname,
    is_a,
    is_one_of,
    peek,
    shorten,
)

MAX_COUNT = 1000  # of the same error in one handler
MAX_ERRORS = 50  # different errors
MAX_MESSAGE = 160  # characters
MAX_READ = 2000  # characters of a message that are searched for its first line
PLAIN_TYPES = (str, int, float, bool, bytes, type(None))
# Not errors, or expected: an import is often tried within a broad `except`.
EXPECTED = (
    ImportError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    StopIteration,
    StopAsyncIteration,
    asyncio.CancelledError,
)
HELPER = "_stepper_helper"
# Functions of earlier cells contain this call: its name must not change between
# versions of the helper.
HOOK = "swallowed"
MODULES = "__import__('sys').modules"
CALL = f"{MODULES}.get({HELPER!r}) and {MODULES}[{HELPER!r}].{HOOK}()"
# These compilers would compile the call with the function and fail.
COMPILERS = re.compile(r"\b(numba|njit|jit)\b")

BROAD_CLASSES = {"Exception", "BaseException"}
# Functions that show or inspect an error. Any other function uses it as data.
DISPLAY_FUNCTIONS = {
    "print",
    "display",
    "pprint",
    "write",
    "warn",
    "print_exc",
    "print_exception",
    "format_exc",
    "log",
    "debug",
    "info",
    "warning",
    "error",
    "exception",
    "critical",
    "str",
    "repr",
    "type",
    "isinstance",
    "issubclass",
    "format",
    "len",
    "getattr",
    "hasattr",
}
BINDINGS = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Return,
    ast.Yield,
    ast.NamedExpr,
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LOOPS = (ast.For, ast.AsyncFor, ast.While)


class ErrorKey(NamedTuple):
    """The line of a handler, and the id of the class of an error that it handled."""

    filename: str
    line: int
    class_id: int


class ErrorCount:
    """The class and message of an error, and how often a handler handled it."""

    def __init__(self, class_name: str, message: str) -> None:
        self.class_name = class_name
        self.message = message
        self.times = 1


errors: dict[ErrorKey, ErrorCount] = {}
# The first line of each handler that has the call, by line number.
handler_texts: dict[int, str] = {}
state = {"recording": False}
builtin_errors = {
    id(kind)
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
# References that stay valid if a cell replaces the originals.
exc_info = sys.exc_info
get_frame = sys._getframe


class SwallowedError(NamedTuple):
    """An error that a handler swallowed one or more times."""

    filename: str
    line: int
    handler: str  # such as "except Exception"
    class_name: str
    message: str
    times: int


def start_recording() -> None:
    """Remove the errors of the previous run, and start to record errors."""
    errors.clear()
    handler_texts.clear()
    state["recording"] = True


def stop_recording() -> list[SwallowedError]:
    """Stop recording, and return the recorded errors.

    Errors in functions of other cells are included.
    """
    state["recording"] = False
    recorded = []
    for key, error in list(errors.items()):  # other threads may still record errors
        swallowed_error = SwallowedError(
            filename=key.filename,
            line=key.line,
            handler=handler_texts.get(key.line, "except"),
            class_name=error.class_name,
            message=error.message,
            times=error.times,
        )
        recorded.append(swallowed_error)
    return recorded


def record_error() -> None:
    """Record the exception that the calling handler is handling.

    A repeated error is counted. Nothing is recorded between two runs, for the classes
    in EXPECTED, and for more than MAX_ERRORS different errors. The user's handlers call
    this function, possibly thousands of times. An interrupt is not suppressed.
    """
    __tracebackhide__ = True
    if not state["recording"]:
        return
    try:
        frame = get_frame(1)
        kind, error, _ = exc_info()
        key = ErrorKey(frame.f_code.co_filename, frame.f_lineno, id(kind))
        if key in errors:
            counted_error = errors[key]
            counted_error.times = min(counted_error.times + 1, MAX_COUNT)
            return
        if kind is None or len(errors) >= MAX_ERRORS:
            return
        if issubclass(kind, EXPECTED):
            return
        name = shorten(get_qualname(kind))
        errors[key] = ErrorCount(name, get_first_line(error))
    except Exception:  # the user's handler must continue in any case
        return


def get_first_line(error: Any) -> str:
    """Return the first line of an error's message.

    Return an empty string if formatting the message would run the user's code.
    """
    arguments = peek(error, "args")
    parts = [*arguments]
    if is_a(error, OSError):
        parts.append(peek(error, "filename"))
    if not all(is_one_of(type(part), PLAIN_TYPES) for part in parts):
        return ""
    text = ""
    if has_builtin_str(error):
        text = str(error)
    elif len(arguments) == 1:
        text = arguments[0]
    if type(text) is not str:
        return ""
    first_line, _, _ = text.strip()[:MAX_READ].partition("\n")
    return shorten(first_line.strip(), MAX_MESSAGE)


def has_builtin_str(error: Any) -> bool:
    """Return whether an exception inherits its `__str__` from a builtin class."""
    for kind in get_mro(type(error)):
        if "__str__" in get_class_dict(kind):
            return id(kind) in builtin_errors
    return False


def add_calls(tree: ast.Module, source: str) -> None:
    """Add calls of `record_error` to the tree of a cell or of a cell magic's body.

    Code that numba may compile is left unchanged, and all code if no run is recorded.
    """
    if state["recording"] and not COMPILERS.search(source):
        include_functions = "numba" not in sys.modules
        add_calls_to_body(
            tree.body, is_in_loop=False, include_functions=include_functions
        )


def add_calls_to_body(
    body: Sequence[ast.stmt], *, is_in_loop: bool, include_functions: bool
) -> None:
    """Add the calls to the broad handlers of statements and of nested statements.

    Classes, and functions to which the call cannot safely be added, are left unchanged,
    and so are the handlers of retries: see `is_retry`.
    """
    for node in body:
        if isinstance(node, ast.ClassDef):
            continue
        if isinstance(node, FUNCTIONS):
            if include_functions and is_safe_function(node):
                add_calls_to_body(
                    node.body, is_in_loop=False, include_functions=include_functions
                )
            continue
        is_block_in_loop = is_in_loop or isinstance(node, LOOPS)
        for block in list_blocks(node):
            add_calls_to_body(
                block,
                is_in_loop=is_block_in_loop,
                include_functions=include_functions,
            )
        if not isinstance(node, ast.Try):
            continue
        if is_in_loop and is_retry(node):
            continue
        add_calls_to_handlers(node)


def is_safe_function(node: Any) -> bool:
    """Return whether calls of `record_error` can safely be added to a function.

    The function must have no decorator and must not call itself. If a recursive
    function has reached the recursion limit, the added call would fail, too.
    """
    if node.decorator_list:
        return False
    names = map(get_name, ast.walk(node))
    return node.name not in names


def is_retry(node: ast.Try) -> bool:
    """Return whether a `try` in a loop may leave the loop if no error occurs."""
    parts = walk_fields(node, "body", "orelse")
    return any(isinstance(part, (ast.Break, ast.Return)) for part in parts)


def list_blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """Return the lists of statements that a statement contains."""
    blocks = [getattr(node, field, []) for field in ("body", "orelse", "finalbody")]
    for field in ("handlers", "cases"):
        for branch in getattr(node, field, ()):
            blocks.append(branch.body)
    return blocks


def walk_fields(node: ast.AST, *fields: str) -> list[ast.AST]:
    """Return the nodes in the given fields of a node, with their descendants."""
    nodes: list[ast.AST] = []
    for field in fields:
        for statement in getattr(node, field, ()):
            nodes += ast.walk(statement)
    return nodes


def add_calls_to_handlers(node: ast.Try) -> None:
    """Add the call to the broad handlers of a `try` that ignore the error."""
    for handler in node.handlers:
        if is_broad(handler.type) and not uses_error(handler, node):
            add_call(handler)


def add_call(handler: ast.ExceptHandler) -> None:
    """Insert the call of `record_error` as the first statement of a handler."""
    kind = handler.type
    if isinstance(kind, ast.Tuple):
        kind = next(filter(is_broad, kind.elts))
    text = "except" if kind is None else f"except {get_name(kind)}"
    handler_texts[handler.lineno] = text
    call = ast.parse(CALL).body[0]
    position = {
        "lineno": handler.lineno,
        "end_lineno": handler.lineno,
        "col_offset": handler.col_offset,
        "end_col_offset": handler.col_offset + len("except"),
    }
    for node in ast.walk(call):
        if isinstance(node, (ast.stmt, ast.expr)):
            vars(node).update(position)
    handler.body.insert(0, call)


def get_name(node: ast.AST) -> str:
    """Return the name in a variable or attribute expression.

    Return an empty string for other expressions.
    """
    attribute = getattr(node, "attr", "")
    name = getattr(node, "id", attribute)
    return str(name)


def is_broad(kind: ast.expr | None) -> bool:
    """Return whether an `except` clause with this class catches all errors."""
    if kind is None:
        return True
    if isinstance(kind, ast.Tuple):
        return any(map(is_broad, kind.elts))
    return get_name(kind) in BROAD_CLASSES


def uses_error(handler: ast.ExceptHandler, node: ast.Try) -> bool:
    """Return whether a handler does something with the error.

    For example, the handler raises, asserts, stores the error or passes it to a
    function. A handler that is part of a predicate counts, too.
    """
    for part in walk_fields(handler, "body"):
        if isinstance(part, (ast.Raise, ast.Assert)):
            return True
        if handler.name and handler.name in list_used_names(part):
            return True
    return is_predicate(handler, node)


def list_used_names(node: ast.AST) -> list[str]:
    """Return the names in the value that a statement stores or in a call's arguments.

    Calls of DISPLAY_FUNCTIONS do not count.
    """
    values: list[ast.expr | None] = []
    if isinstance(node, BINDINGS):
        values.append(node.value)
    elif isinstance(node, ast.Call):
        if get_name(node.func) in DISPLAY_FUNCTIONS:
            return []
        values += node.args
        values += [keyword.value for keyword in node.keywords]
    names: list[str] = []
    for value in values:
        if value is not None:
            names += map(get_name, ast.walk(value))
    return names


def is_predicate(handler: ast.ExceptHandler, node: ast.Try) -> bool:
    """Return whether the last lines of two branches of a `try` return or assign a bool.

    For example: `try: float(x); return True` with `except Exception: return False`.
    """
    count = 0
    for block in (handler.body, node.body, node.orelse):
        statement = block[-1] if block else None
        if isinstance(statement, (ast.Return, ast.Assign)):
            constant = getattr(statement.value, "value", None)
            if type(constant) is bool:
                count += 1
    return count > 1
