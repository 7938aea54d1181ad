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

from stepper.kernel.inside.base import classes_of, is_a, name_of, names_in, one_of, peek, short

MOST, KINDS, MESSAGE = 1000, 50, 160  # of one error in one handler; different ones; characters
COUNTS, WAITS, LOST = 0, 1, 2  # what a call tells: an error; one that another try may mend; that no try has mended it
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
CALL = f"__import__('sys').modules.get({HELPER!r}) and __import__('sys').modules[{HELPER!r}].swallowed(%d)"
COMPILED = re.compile(r"\b(numba|njit|jit)\b")  # a compiler would read the call with the function

BROAD = {"Exception", "BaseException"}
ENDS = {"exit", "quit", "_exit", "abort", "fail", "skip", "skipTest"}
# Calls that show an error to people or look at it; any other takes it on as data.
SHOWS = {"print", "display", "pprint", "write", "warn", "print_exc", "print_exception", "format_exc"}
SHOWS |= {"log", "debug", "info", "warning", "error", "exception", "critical"}
LOOKS = {"str", "repr", "type", "isinstance", "issubclass", "format", "len", "getattr", "hasattr"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)

ours = {id(kind) for kind in vars(builtins).values() if isinstance(kind, type) and issubclass(kind, BaseException)}
exc_info, caller = sys.exc_info, sys._getframe
state = {"on": False, "found": {}, "lost": set(), "heads": {}}


def start():
    state.update(on=True, found={}, lost=set(), heads={})


def stop():
    """What was swallowed since `start`, other cells' handlers too: [(file, its line, head, class, message, count)]."""
    found, lost, heads = state["found"], state["lost"], state["heads"]
    state.update(on=False, found={}, lost=set(), heads={})
    return [
        (file, line, heads.get(line, "except"), *told)
        for (file, line, _), (how, *told) in found.items()
        if how == COUNTS or (file, line) in lost
    ]


def swallowed(how):
    """Called in the user's handlers, maybe thousands of times; an interrupt must pass."""
    __tracebackhide__ = True
    if not state["on"]:
        return
    try:
        frame = caller(1)
        file, line = frame.f_code.co_filename, frame.f_lineno
        if how == LOST:
            state["lost"].add((file, line))
            return
        kind, error, _ = exc_info()
        key = file, line, id(kind)
        told = state["found"].get(key)
        if told is not None:
            told[3] += told[3] < MOST
        elif len(state["found"]) < KINDS and kind is not None and not issubclass(kind, EXPECTED):
            state["found"][key] = [how, short(name_of(kind)), said(error), 1]
    except Exception:
        return


def said(error):
    """The first line of an exception's message, where no code of the user's is needed to get it."""
    arguments = peek(error, "args")
    parts = (*arguments, peek(error, "filename") if is_a(error, OSError) else None)
    if not all(one_of(type(one), PLAIN) for one in parts):
        return ""
    made = next(kind for kind in classes_of(type(error)) if "__str__" in names_in(kind))
    text = str(error) if id(made) in ours else arguments[0] if len(arguments) == 1 else ""
    text = text if type(text) is str else ""
    return short(next((line.strip() for line in text[:2000].splitlines() if line.strip()), ""), MESSAGE)


# The syntax tree


def listen(tree, words):
    """Put the calls into the tree of the cell, or of the body of a cell magic."""
    if not COMPILED.search(words):
        visit(tree.body, None, "numba" not in sys.modules)


def visit(body, loop, functions):
    """Go over statements that run in the cell itself or in plain functions; `loop` is the one around them."""
    for node in body:
        if isinstance(node, FUNCTIONS):
            # One that calls itself may stand at the limit of recursion: no room for another call.
            if functions and not node.decorator_list and not any(named(one) == node.name for one in ast.walk(node)):
                visit(node.body, None, functions)
        elif isinstance(node, ast.ClassDef):
            continue
        else:
            inner = node if isinstance(node, LOOPS) else loop
            for part in ("body", "orelse", "finalbody"):
                visit(getattr(node, part, ()), loop if part == "orelse" else inner, functions)
            for one in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
                visit(one.body, inner, functions)
            if isinstance(node, ast.Try):
                for handler in node.handlers:
                    if broad(handler.type) and not deals(handler, node):
                        mark(handler, node, loop)


def mark(handler, node, loop):
    if told_of(handler.body[0]):
        return
    how = COUNTS
    if loop is not None and leaves(node.body + node.orelse):  # another try follows
        how = WAITS
        give_up(handler.body, handler)
        if not loop.orelse or told_of(loop.orelse[0]):  # a loop's `else` runs where no try has left it; one of the
            loop.orelse.append(call(handler, LOST))  # user's own deals with that
    kind = handler.type
    kind = next(filter(broad, kind.elts)) if isinstance(kind, ast.Tuple) else kind
    state["heads"][handler.lineno] = "except" if kind is None else "except " + named(kind)
    handler.body.insert(0, call(handler, how))


def give_up(body, handler):
    """Tell of it where a handler leaves the loop itself."""
    for index, node in enumerate(body):
        if isinstance(node, (ast.Break, ast.Return)):
            body.insert(index, call(handler, LOST))
            return
        if isinstance(node, ast.If):
            give_up(node.body, handler)
            give_up(node.orelse, handler)


def call(handler, how):
    made = ast.parse(CALL % how).body[0]
    place = {"lineno": handler.lineno, "end_lineno": handler.lineno, "col_offset": handler.col_offset}
    for node in ast.walk(made):
        if isinstance(node, (ast.stmt, ast.expr)):
            node.__dict__.update(place, end_col_offset=handler.col_offset + 6)
    made.told = True
    return made


def told_of(node):
    return getattr(node, "told", False)


def named(node):
    return getattr(node, "id", getattr(node, "attr", ""))


def broad(kind):
    if isinstance(kind, ast.Tuple):
        return any(map(broad, kind.elts))
    return kind is None or named(kind) in BROAD


def leaves(body):
    """Whether these statements leave the loop around them."""
    for node in body:
        if isinstance(node, (ast.Break, ast.Return)):
            return True
        parts = [getattr(node, part, []) for part in ("body", "orelse", "finalbody", "handlers", "cases")]
        if isinstance(node, LOOPS):
            parts = parts[1:2]
        if not isinstance(node, SCOPES) and any(map(leaves, parts)):
            return True
    return False


def deals(handler, node):
    """Whether a handler does more than go on: raises, ends, asserts, hands the error on as data, answers a question."""
    inside = [one for statement in handler.body for one in ast.walk(statement)]
    if any(isinstance(one, (ast.Raise, ast.Assert)) for one in inside):
        return True
    if any(isinstance(one, ast.Call) and named(one.func) in ENDS for one in inside):
        return True
    if handler.name and any(hands_on(one, handler.name) for one in inside):
        return True
    # try: float(x); return True; except Exception: return False
    return answers(handler.body[-1:]) and any(map(answers, [node.body[-1:], node.orelse[-1:]]))


def answers(body):
    kinds, value = (ast.Return, ast.Assign), getattr(body[0], "value", None) if body else None
    return bool(body) and isinstance(body[0], kinds) and type(getattr(value, "value", None)) is bool


def hands_on(node, name):
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Yield, ast.NamedExpr)):
        return node.value is not None and mentions(node.value, name)
    if isinstance(node, ast.Call) and named(node.func) not in SHOWS | LOOKS:
        return any(mentions(one, name) for one in [*node.args, *node.keywords])
    return False


def mentions(node, name):
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(node))
