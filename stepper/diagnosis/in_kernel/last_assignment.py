"""Finds where a name was last assigned: in a function, a cell or an earlier cell."""

from __future__ import annotations

import ast
import linecache
from typing import Any, NamedTuple

from stack_data.core import Source

from stepper.diagnosis.in_kernel.expression_values import FUNCTIONS, UserFrame
from stepper.diagnosis.in_kernel.namespace_changes import find_changed_name
from stepper.kernels.in_kernel.cell_sources import (
    find_cell_line,
    get_source_lines,
    order,
)
from stepper.kernels.in_kernel.safe_inspect import get_cell_files, shorten

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
MAX_EARLIER_CELLS = 80
LINE_LIMIT = 160  # characters
END_OF_FILE = 1 << 30  # a line number below all lines
# A line of code as a JSON object: `cell` (its execution count, 0 for a file), `file`,
# `line` and `text`. Optional: `name`, what was assigned there; `argument`, whether the
# line is that of a call; `verb`; `changed_cell` and others, the line that changed the
# value in place.
Bound = dict[str, Any]


class Assignment(NamedTuple):
    """The line that assigned an expression, and the value that it assigned.

    For a loop, `value` is the iterated expression. Both are None if unknown.
    """

    bound: Bound | None
    value: ast.expr | None


UNKNOWN = Assignment(None, None)


def find_assignment(
    node: ast.AST, frame: UserFrame, caller: UserFrame | None = None
) -> Assignment:
    """Return where a name, or an attribute of one, was last assigned.

    For an argument of a function, this is the line of the call in `caller`.
    """
    target = ast.unparse(node)
    loop = find_comprehension_loop(target, frame)
    if loop is not None:
        line = get_line(frame.filename, loop.target.lineno)
        bound = {**line, "name": target}
        return Assignment(bound, loop.iter)
    function = frame.find_function()
    last_line = frame.line
    if function is not None:
        assigned = find_last_binding(function, target, last_line)
        if assigned is not None:
            line = get_line(frame.filename, assigned.lineno)
            bound = {**line, "name": target}
            return Assignment(bound, get_assigned_value(assigned))
        if target in list_arguments(function):
            if caller is None:
                return UNKNOWN
            line = get_line(caller.filename, caller.line)
            bound = {**line, "argument": True, "name": target}
            return Assignment(bound, None)
        last_line = END_OF_FILE
    assignment = find_in_cells(target, frame, last_line)
    if assignment is not None:
        return assignment
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return find_assignment(node.value, frame, caller)
    return UNKNOWN


def list_arguments(function: Any) -> set[str]:
    """Return the names of a function's arguments."""
    return {
        argument.arg
        for argument in ast.walk(function.args)
        if isinstance(argument, ast.arg)
    }


def find_in_cells(target: str, frame: UserFrame, last_line: int) -> Assignment | None:
    """Return where a cell last assigned a name: the present one or an earlier one.

    In the present cell only lines above `last_line` count. A later change in place is
    included.
    """
    name = target.split(".", maxsplit=1)[0]
    changed: Bound = {}
    for filename in [frame.filename, *list_earlier_cells(frame)]:
        source = Source.for_filename(filename)
        if name in source.text:
            assigned = find_last_binding(source.tree, target, last_line)
            first_line = assigned.lineno if assigned else 0
            if not changed:
                changed = find_change_in_place(
                    source.tree, filename, target, first_line, last_line
                )
            if assigned is not None:
                line = get_line(filename, assigned.lineno)
                bound = {**line, **changed, "name": target}
                return Assignment(bound, get_assigned_value(assigned))
        last_line = END_OF_FILE
    return None


def find_comprehension_loop(target: str, frame: UserFrame) -> Any:
    """Return the `for` of an enclosing comprehension that assigns a name, or None."""
    for scope in frame.list_enclosing(*COMPREHENSIONS, *FUNCTIONS):
        for loop in getattr(scope, "generators", ()):
            for node in ast.walk(loop.target):
                if isinstance(node, ast.Name) and node.id == target:
                    return loop
        if isinstance(scope, FUNCTIONS):
            break
    return None


def find_change_in_place(
    tree: Any, filename: str, target: str, first_line: int, last_line: int
) -> Bound:
    """Return the last line between two lines that changed a value in place.

    The keys have the prefix `changed_`; the result is empty if there is no such line.
    """
    if not isinstance(tree, ast.Module):
        return {}
    lines: list[int] = []
    for statement in tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            number = getattr(node, "lineno", 0)
            if first_line < number < last_line and find_changed_name(node) == target:
                lines.append(number)
    if not lines:
        return {}
    line = get_line(filename, max(lines))
    return {f"changed_{key}": value for key, value in line.items()}


def list_earlier_cells(frame: UserFrame) -> list[str]:
    """Return the file names of the cells that ran before, the last one first."""
    cell_files = get_cell_files()
    filenames = sorted(
        cell_files, key=lambda name: order(cell_files[name]), reverse=True
    )
    earlier = []
    for filename in filenames[:MAX_EARLIER_CELLS]:
        if filename != frame.filename:
            earlier.append(filename)
    return earlier


def find_last_binding(scope: Any, target: str, last_line: int) -> Any:
    """Return the last node above a line that assigns a target, or None.

    Local names of inner functions are ignored. A node on the line itself does not
    count, because it has not run when the line fails.
    """
    body = getattr(scope, "body", None)
    pending: list[Any] = list(body) if isinstance(body, list) else []
    last = None
    highest_line = 0
    while pending:
        node = pending.pop()
        is_candidate = is_binding(node, target) and node.lineno < last_line
        if is_candidate and node.lineno > highest_line:
            last = node
            highest_line = node.lineno
        if isinstance(node, ast.comprehension):
            # Its target is local to the comprehension.
            pending += [node.iter, *node.ifs]
        elif not isinstance(node, FUNCTIONS) or "." in target:
            pending += ast.iter_child_nodes(node)
    return last


def is_binding(node: Any, target: str) -> bool:
    """Return whether a node assigns a name or an attribute."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [alias.asname or alias.name for alias in node.names]
        return target in [name.split(".")[0] for name in names]
    if isinstance(node, (ast.Name, ast.Attribute)):
        return isinstance(node.ctx, ast.Store) and ast.unparse(node) == target
    return isinstance(node, ast.stmt) and getattr(node, "name", None) == target


def get_assigned_value(target: ast.AST) -> ast.expr | None:
    """Return the value of an assignment, or the iterable of a loop."""
    parent = getattr(target, "parent", None)  # set by `executing`
    if isinstance(parent, ast.Assign):
        return parent.value
    while isinstance(parent, (ast.Tuple, ast.List)):
        parent = getattr(parent, "parent", None)
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return parent.iter
    return None


def get_line(filename: str, line: int) -> Bound:
    """Return a line of a cell as the user wrote it, or a line of a file."""
    execution_count = 0
    text = linecache.getline(filename, line)
    if filename in get_cell_files():
        execution_count, line = find_cell_line(filename, line)
        source_lines = get_source_lines(execution_count)
        text = "".join(source_lines[line - 1 : line])
    return {
        "cell": execution_count,
        "file": "" if execution_count else shorten(filename),
        "line": line,
        "text": shorten(text.strip(), LINE_LIMIT),
    }


def explain_hidden_name(name: str, frame: UserFrame) -> dict[str, Any] | None:
    """Return why a name that exists cannot be used, or None.

    A function makes it local, or it is defined in a class body.
    """
    for scope in frame.list_enclosing(*FUNCTIONS, ast.ClassDef):
        assigned = find_last_binding(scope, name, END_OF_FILE)
        if assigned is None:
            continue
        line = get_line(frame.filename, assigned.lineno)
        if isinstance(scope, ast.ClassDef):
            text = (
                f"`{name}` is an attribute of the class {scope.name}, which functions"
                " and comprehensions inside its body can't see; in a method, write"
                f" `{scope.name}.{name}`"
            )
            return {"text": text, "bound": {**line, "verb": "set by"}}
        text = f"`{name}` is local to {format_function_name(scope)}, which assigns it"
        if name in frame.frame.f_globals:
            text += " (a global of that name exists)"
        return {"text": text, "bound": {**line, "verb": "assigned by"}}
    return None


def format_function_name(function: Any) -> str:
    """Return the name of a function for a message."""
    name = getattr(function, "name", "")
    return f"`{shorten(name, 80)}`" if name else "a lambda"
