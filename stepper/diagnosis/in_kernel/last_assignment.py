"""The search for the last assignment of a name, in functions and cells."""

from __future__ import annotations

import ast
import linecache
import re
from typing import Any, Iterator, NamedTuple

from stack_data.core import Source

from stepper.diagnosis.in_kernel.expression_values import (
    COMPREHENSIONS,
    FUNCTIONS,
    UserFrame,
)
from stepper.diagnosis.in_kernel.partial_effects import find_changed_name
from stepper.kernels.in_kernel.cell_sources import (
    TIMED_FILENAMES,
    find_cell_line,
    get_run_order,
    get_source_lines,
)
from stepper.kernels.in_kernel.safe_inspect import get_cell_files, shorten

LOOPS = (ast.For, ast.AsyncFor, ast.While)
MAX_CELLS = 80  # that are searched
LINE_LIMIT = 160  # characters
NAME_LIMIT = 80
END_OF_FILE = 1 << 30  # a line number below all lines
# A line of code as a JSON object: `cell` (its execution count, 0 for a file), `file`,
# `line` and `text`. Optional keys: `name`, the assigned expression; `argument`, true if
# the line is a call that passed the value as an argument; `verb`, such as "set by";
# `changed_cell`, `changed_line` etc., the line that changed the value in place.
AssignmentLine = dict[str, Any]


class Assignment(NamedTuple):
    """The line that assigned an expression, and the expression of the assigned value.

    For a loop, `value` is the iterated expression. A field is None if it is unknown.
    """

    bound: AssignmentLine | None
    value: ast.expr | None


UNKNOWN = Assignment(None, None)


def find_assignment(
    node: ast.AST,
    frame: UserFrame,
    caller: UserFrame | None = None,
) -> Assignment:
    """Return the last assignment of a name or attribute.

    For an argument of a function, return the line of the call in `caller`. For an item,
    and for an attribute without an assignment, return the assignment of the object that
    contains it. Return UNKNOWN if there is no assignment, if the caller is unknown, or
    if an earlier iteration of a loop may have assigned the name.
    """
    target = ast.unparse(node)
    loop = find_comprehension_loop(target, frame)
    if loop is not None:
        line = get_line(frame.filename, loop.target.lineno)
        bound = {**line, "name": target}
        return Assignment(bound, loop.iter)
    if is_assigned_by_loop(target, frame):
        return UNKNOWN
    # The variables of enclosing functions are accessible, too.
    for function in frame.list_enclosing(*FUNCTIONS):
        last_line = find_running_line(function, frame, caller)
        binding = find_last_binding(function, target, last_line)
        if binding is not None:
            return describe_binding(frame.filename, binding, target)
        if target in list_arguments(function):
            is_own = function is frame.find_function() and not frame.is_comprehension()
            if caller is None or not is_own:
                return UNKNOWN
            line = get_line(caller.filename, caller.line)
            bound = {**line, "argument": True, "name": target}
            return Assignment(bound, None)
    assignment = find_global_assignment(target, frame)
    if assignment is not None:
        return assignment
    if isinstance(node, (ast.Attribute, ast.Subscript)):
        return find_assignment(node.value, frame, caller)
    return UNKNOWN


def is_assigned_by_loop(target: str, frame: UserFrame) -> bool:
    """Return whether a loop assigns a target at or below its failing statement.

    It is unknown whether an earlier iteration has executed such an assignment.
    """
    node: Any = frame.statement
    if isinstance(node, (ast.For, ast.AsyncFor)):
        # The iterable is evaluated before the loop.
        node = getattr(node, "parent", None)
    while node is not None and not isinstance(node, FUNCTIONS):
        if isinstance(node, LOOPS):
            binding = find_last_binding(node, target, END_OF_FILE)
            if binding is not None and binding.lineno >= frame.first_line:
                return True
        node = getattr(node, "parent", None)  # set by `executing`
    return False


def describe_binding(filename: str, binding: Any, target: str) -> Assignment:
    """Return the line of a node that assigns a target, and the assigned value."""
    line = get_line(filename, binding.lineno)
    bound = {**line, "name": target}
    value = get_assigned_value(binding)
    return Assignment(bound, value)


def list_arguments(function: Any) -> set[str]:
    """Return the names of a function's arguments."""
    names = set()
    for node in ast.walk(function.args):
        if isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def find_running_line(function: Any, frame: UserFrame, caller: UserFrame | None) -> int:
    """Return the first line of the statement that a function was executing.

    Return END_OF_FILE if neither the frame nor its caller executes the function.
    """
    for user_frame in (frame, caller):
        if user_frame is not None and user_frame.find_function() is function:
            return user_frame.first_line
    return END_OF_FILE


def find_global_assignment(target: str, frame: UserFrame) -> Assignment | None:
    """Return the last assignment of a global name, or of an attribute anywhere.

    A line that has not run does not count. A later change in place is included. Return
    UNKNOWN if an earlier iteration of a loop may have assigned the target, and None if
    no line assigns the target or several functions assign the attribute.
    """
    name, _, _ = target.partition(".")
    word = re.compile(rf"\b{re.escape(name)}\b")
    change: AssignmentLine = {}
    for filename in list_global_files(frame):
        text = "".join(linecache.getlines(filename))
        if not word.search(text):
            continue
        is_running = filename == frame.outermost.filename
        if is_running and is_assigned_by_loop(target, frame.outermost):
            return UNKNOWN
        end = find_global_end(filename, frame)
        tree = parse_text(text)
        binding = find_last_binding(tree, target, end)
        if not change:
            first_line = 1 if binding is None else binding.lineno + 1
            lines = range(first_line, end)
            change = find_change_in_place(tree, filename, target, lines)
        if binding is None:
            continue
        # The nodes of this tree have parents.
        tree = Source.for_filename(filename).tree
        if has_unknown_order(tree, target):
            return None
        binding = find_last_binding(tree, target, end)
        line = get_line(filename, binding.lineno)
        bound = {**line, **change, "name": target}
        value = get_assigned_value(binding)
        return Assignment(bound, value)
    return None


def parse_text(text: str) -> ast.Module | None:
    """Return the syntax tree of a text, or None if the text cannot be parsed.

    `Source.for_filename` takes four times as long, because it also stores the parents
    of the nodes.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def find_comprehension_loop(target: str, frame: UserFrame) -> Any:
    """Return the `for` of an enclosing comprehension that assigns a name, or None."""
    for scope in frame.list_enclosing(*COMPREHENSIONS, *FUNCTIONS):
        if isinstance(scope, FUNCTIONS):
            return None
        # The first iterable is evaluated outside the comprehension.
        first_iterable = scope.generators[0].iter
        if frame.nodes[0] in ast.walk(first_iterable):
            continue
        for loop in scope.generators:
            for node in ast.walk(loop.target):
                if isinstance(node, ast.Name) and node.id == target:
                    return loop
    return None


def find_change_in_place(
    tree: Any,
    filename: str,
    target: str,
    lines: range,
) -> AssignmentLine:
    """Return the last line in a range that changes the value of `target` in place.

    The keys have the prefix `changed_`. Return an empty dict if there is no such line.
    """
    if not isinstance(tree, ast.Module):
        return {}
    last_line = 0
    for statement in tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            number = getattr(node, "lineno", 0)
            if number not in lines or number < last_line:
                continue
            if find_changed_name(node) == target:
                last_line = number
    if not last_line:
        return {}
    line = get_line(filename, last_line)
    return {f"changed_{key}": value for key, value in line.items()}


def list_global_files(frame: UserFrame) -> list[str]:
    """Return the files in which the global names of a frame may be assigned.

    For code in a module, this is the file of the module. For code in a cell, these are
    the file names of the cells, the cell that ran last first.
    """
    cell_files = get_cell_files()
    if frame.filename in TIMED_FILENAMES:
        first_files = [frame.filename]
    elif frame.filename in cell_files:
        first_files = []
    else:
        return [frame.filename]

    def sort_key(filename: str) -> Any:
        return get_run_order(cell_files[filename])

    filenames = sorted(cell_files, key=sort_key, reverse=True)
    files = [*first_files, *filenames[:MAX_CELLS], frame.filename]
    return list(dict.fromkeys(files))


def find_global_end(filename: str, frame: UserFrame) -> int:
    """Return the first line outside functions that has not run in a file.

    Return END_OF_FILE if all lines have run.
    """
    for user_frame in (frame, frame.outermost):
        is_in_file = user_frame.filename == filename
        if is_in_file and user_frame.find_function() is None:
            return user_frame.first_line
    return END_OF_FILE


def find_last_binding(scope: Any, target: str, last_line: int) -> Any:
    """Return the last node that assigns a target and is above `last_line`, or None.

    Names that inner functions and classes assign are ignored, because these names are
    local. Attributes that they assign, such as `self.x`, count. A node on `last_line`
    does not count, because the node has not run if this line fails.
    """
    last = None
    highest_line = 0
    for node in iterate_bindings(scope, target):
        if highest_line < node.lineno < last_line:
            last = node
            highest_line = node.lineno
    return last


def has_unknown_order(tree: Any, target: str) -> bool:
    """Return whether code assigns an attribute several times, also in a function.

    The source does not show the order of these assignments.
    """
    if "." not in target:
        return False
    bindings = list(iterate_bindings(tree, target))
    return len(bindings) > 1 and any(map(is_in_function, bindings))


def is_in_function(node: Any) -> bool:
    """Return whether a node is part of a function."""
    while node is not None and not isinstance(node, FUNCTIONS):
        node = getattr(node, "parent", None)  # set by `executing`
    return node is not None


def iterate_bindings(scope: Any, target: str) -> Iterator[Any]:
    """Yield the nodes that assign a target, in no particular order.

    See `find_last_binding` for inner functions and classes.
    """
    pending: list[Any] = []
    body = getattr(scope, "body", None)
    if isinstance(body, list):
        pending += body
    while pending:
        node = pending.pop()
        if is_binding(node, target):
            yield node
        if isinstance(node, ast.comprehension):
            # Its target is local to the comprehension.
            pending.append(node.iter)
            pending += node.ifs
        elif "." in target or not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)


def is_binding(node: Any, target: str) -> bool:
    """Return whether a node binds `target`: an assignment, import or definition."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            name = alias.asname or alias.name
            top_name, _, _ = name.partition(".")
            if top_name == target:
                return True
        return False
    if isinstance(node, ast.Name):
        return isinstance(node.ctx, ast.Store) and node.id == target
    if isinstance(node, ast.Attribute):
        return isinstance(node.ctx, ast.Store) and ast.unparse(node) == target
    if not isinstance(node, ast.stmt):
        return False
    return getattr(node, "name", None) == target


def get_assigned_value(target: ast.AST) -> ast.expr | None:
    """Return the expression assigned to a target, or the iterable of a loop.

    Return None if the value is unknown, for example for one of several targets.
    """
    parent = getattr(target, "parent", None)  # set by `executing`
    if isinstance(parent, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        return parent.value
    while isinstance(parent, (ast.Tuple, ast.List)):
        parent = getattr(parent, "parent", None)
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return parent.iter
    return None


def get_line(filename: str, line: int) -> AssignmentLine:
    """Return a line of code, without the optional keys of `AssignmentLine`.

    A line of a cell is returned as the user wrote it.
    """
    execution_count = 0
    text = linecache.getline(filename, line)
    if filename in get_cell_files():
        execution_count, line = find_cell_line(filename, line)
        source_lines = get_source_lines(execution_count)
        text = "".join(source_lines[line - 1 : line])
    file = "" if execution_count else shorten(filename)
    return {
        "cell": execution_count,
        "file": file,
        "line": line,
        "text": shorten(text.strip(), LINE_LIMIT),
    }


def explain_hidden_name(name: str, frame: UserFrame) -> dict[str, Any] | None:
    """Return a finding on a name that exists but is not accessible, or None.

    The name is not accessible if a function makes it local, or if a class body defines
    the name and a function, comprehension or class inside the body uses it.
    """
    scopes = frame.list_enclosing(*FUNCTIONS, *COMPREHENSIONS, ast.ClassDef)
    if scopes and isinstance(scopes[0], ast.ClassDef):
        # The body of a class can access its own names after their assignments.
        del scopes[0]
    for scope in scopes:
        binding = find_last_binding(scope, name, END_OF_FILE)
        if binding is None:
            continue
        declaration = find_declaration(scope, name)
        if isinstance(declaration, ast.Global):
            return None
        if isinstance(declaration, ast.Nonlocal):
            continue
        line = get_line(frame.filename, binding.lineno)
        if isinstance(scope, ast.ClassDef):
            text = (
                f"`{name}` is an attribute of the class {scope.name}, and functions and"
                " comprehensions in the class body cannot access it by its bare name;"
                f" in a method, write `{scope.name}.{name}`"
            )
            bound = {**line, "verb": "set by"}
            return {"text": text, "bound": bound}
        function = format_function_name(scope)
        text = f"`{name}` is local to {function}, which assigns it"
        if name in frame.frame.f_globals:
            text += " (a global with this name exists)"
        bound = {**line, "verb": "assigned by"}
        return {"text": text, "bound": bound}
    return None


def find_declaration(scope: Any, name: str) -> ast.Global | ast.Nonlocal | None:
    """Return the `global` or `nonlocal` statement that declares a name, or None.

    `scope` is a function or class. Statements in inner functions and classes do not
    count.
    """
    pending = [*scope.body]
    while pending:
        node = pending.pop()
        if isinstance(node, (ast.Global, ast.Nonlocal)) and name in node.names:
            return node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            pending += ast.iter_child_nodes(node)
    return None


def format_function_name(function: Any) -> str:
    """Return the name of a function for a message."""
    name = getattr(function, "name", "")
    if not name:
        return "a lambda"
    short_name = shorten(name, NAME_LIMIT)
    return f"`{short_name}`"
