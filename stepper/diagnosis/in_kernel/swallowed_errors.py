"""Errors that a broad `except` of this cell swallowed.

IPython lets a cell's syntax tree be changed before it is compiled: a call of `swallowed` becomes such a handler's first
statement. It goes by way of `sys.modules`, so that a function sent to another process, where no helper is, still works;
and it names neither line nor run, so that the same function is the same code to whoever caches by it.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import re
import sys
from collections.abc import Sequence
from typing import Any

from stepper.kernels.in_kernel.safe_inspect import (
    class_dict_of,
    classes_of,
    is_a,
    is_one_of,
    name_of,
    peek,
    shorten,
)

# of one error in one handler; different ones; characters
MOST, KINDS, MESSAGE = 1000, 50, 160
PLAIN = (str, int, float, bool, bytes, type(None))
# No errors, or expected in so many words: a broad `except` around an import.
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
CALL = f"__import__('sys').modules.get({HELPER!r}) and __import__('sys').modules[{HELPER!r}].swallowed()"
# a compiler would read the call with the function
COMPILED = re.compile(r"\b(numba|njit|jit)\b")

BROAD = {"Exception", "BaseException"}
# Calls that show an error to people or look at it; any other takes it on as data.
SHOWS = {
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
BINDS = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Yield, ast.NamedExpr)
FUNCTIONS, LOOPS = (
    (ast.FunctionDef, ast.AsyncFunctionDef),
    (ast.For, ast.AsyncFor, ast.While),
)

# What a run has swallowed: (file, line of the handler, id of the class) → name of the
# class, message, count.
errors: dict[tuple[str, int, int], list[Any]] = {}
heads: dict[int, str] = {}  # of each handler that is listened to, by its line
state = {"on": False}
ours = {
    id(kind)
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
exc_info, caller = sys.exc_info, sys._getframe


def start() -> None:
    errors.clear()
    heads.clear()
    state["on"] = True


def stop() -> list[tuple[str, int, str, str, str, int]]:
    """What was swallowed since `start`, other cells' handlers too: [(file, its line, head, class, message, count)]."""
    state["on"] = False
    return [
        (file, line, heads.get(line, "except"), *error)
        for (file, line, _), error in errors.items()
    ]


def swallowed() -> None:
    """Called in the user's handlers, maybe thousands of times; an interrupt must pass."""
    __tracebackhide__ = True
    if not state["on"]:
        return
    try:
        frame, kind = caller(1), exc_info()[0]
        key = frame.f_code.co_filename, frame.f_lineno, id(kind)
        if key in errors:
            errors[key][2] += errors[key][2] < MOST
        elif (
            len(errors) < KINDS and kind is not None and not issubclass(kind, EXPECTED)
        ):
            errors[key] = [shorten(name_of(kind)), message(exc_info()[1]), 1]
    except Exception:  # whatever the error is, the handler goes on
        return


def message(error: Any) -> str:
    """The first line of an exception's message, where no code of the user's is needed to get it."""
    arguments = peek(error, "args")
    parts = (*arguments, peek(error, "filename") if is_a(error, OSError) else None)
    if not all(is_one_of(type(part), PLAIN) for part in parts):
        return ""
    made = next(
        kind for kind in classes_of(type(error)) if "__str__" in class_dict_of(kind)
    )
    text = (
        str(error) if id(made) in ours else arguments[0] if len(arguments) == 1 else ""
    )
    return (
        shorten(text.strip()[:2000].partition("\n")[0].strip(), MESSAGE)
        if type(text) is str
        else ""
    )


# The syntax tree


def listen(tree: ast.Module, words: str) -> None:
    """Put the calls into the tree of the cell, or of the body of a cell magic."""
    if state["on"] and not COMPILED.search(words):
        visit(tree.body, False, "numba" not in sys.modules)


def visit(body: Sequence[ast.stmt], looped: bool, functions: bool) -> None:
    for node in body:
        if isinstance(node, FUNCTIONS):
            # One that calls itself may stand at the limit of recursion: no room for
            # another call.
            if (
                functions
                and not node.decorator_list
                and not any(named(part) == node.name for part in ast.walk(node))
            ):
                visit(node.body, False, functions)
        elif not isinstance(node, ast.ClassDef):
            for block in blocks(node):
                visit(block, looped or isinstance(node, LOOPS), functions)
            # What may leave the loop around it tries once more in the next turn.
            tries = looped and any(
                isinstance(part, (ast.Break, ast.Return))
                for part in inside(node, "body", "orelse")
            )
            if isinstance(node, ast.Try) and not tries:
                for handler in node.handlers:
                    if broad(handler.type) and not deals(handler, node):
                        mark(handler)


def blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    branches = (*getattr(node, "handlers", ()), *getattr(node, "cases", ()))
    return [getattr(node, part, []) for part in ("body", "orelse", "finalbody")] + [
        part.body for part in branches
    ]


def inside(node: ast.AST, *parts: str) -> list[ast.AST]:
    return [
        inner
        for part in parts
        for statement in getattr(node, part, ())
        for inner in ast.walk(statement)
    ]


def mark(handler: ast.ExceptHandler) -> None:
    kind = handler.type
    kind = next(filter(broad, kind.elts)) if isinstance(kind, ast.Tuple) else kind
    heads[handler.lineno] = "except" if kind is None else "except " + named(kind)
    call = ast.parse(CALL).body[0]
    place = {
        "lineno": handler.lineno,
        "end_lineno": handler.lineno,
        "col_offset": handler.col_offset,
    }
    for node in ast.walk(call):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.__dict__.update(place, end_col_offset=handler.col_offset + 6)
    handler.body.insert(0, call)


def named(node: ast.AST) -> str:
    return str(getattr(node, "id", getattr(node, "attr", "")))


def broad(kind: ast.expr | None) -> bool:
    if isinstance(kind, ast.Tuple):
        return any(map(broad, kind.elts))
    return kind is None or named(kind) in BROAD


def deals(handler: ast.ExceptHandler, node: ast.Try) -> bool:
    """Whether a handler does more than go on: raises, asserts, hands the error on as data, answers a question."""
    for part in inside(handler, "body"):
        given = [part.value] if isinstance(part, BINDS) else []
        if isinstance(part, ast.Call) and named(part.func) not in SHOWS:
            given = [*part.args, *(word.value for word in part.keywords)]
        used = [
            named(inner)
            for value in given
            if value is not None
            for inner in ast.walk(value)
        ]
        if isinstance(part, (ast.Raise, ast.Assert)) or (
            handler.name and handler.name in used
        ):
            return True
    # try: float(x); return True; except Exception: return False
    ends = [
        getattr(last, "value", None)
        for last in (handler.body[-1:] + node.body[-1:] + node.orelse[-1:])
        if isinstance(last, (ast.Return, ast.Assign))
    ]
    return sum(type(getattr(value, "value", None)) is bool for value in ends) > 1
