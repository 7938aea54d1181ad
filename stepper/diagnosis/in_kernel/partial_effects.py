"""Changes that a cell made to variables before it failed.

A retry repeats these changes: a step that is applied twice is a frequent, silent bug in
notebooks.
"""

from __future__ import annotations

import ast
from typing import Any

from stepper.diagnosis.in_kernel.expression_values import FUNCTIONS, UserFrame
from stepper.kernels.in_kernel.cell_sources import find_cell_line, run_state
from stepper.kernels.in_kernel.namespace_summary import (
    ValueSummary,
    previous_values,
    summarize_values,
)
from stepper.kernels.in_kernel.safe_inspect import call_safely, get_cell_files

MAX_NAMES = 12
MUTATING_METHODS = {
    "append",
    "extend",
    "insert",
    "pop",
    "remove",
    "update",
    "add",
    "sort",
    "reverse",
    "clear",
    "setdefault",
}


def list_changes(error: BaseException) -> dict[str, Any]:
    """Return the names that the cell assigned or changed in place, as JSON.

    `rebound` contains [name, old value, new value], `bound` contains names that did not
    exist before, and `in_place` contains [name, line of the cell].
    """
    summaries = summarize_values()
    rebound = []
    bound = []
    assigned = set()
    for name, summary in summaries.items():
        previous = previous_values.get(name)
        if previous == summary:
            continue
        assigned.add(name)
        if previous is None:
            bound.append(name)
        else:
            old, new = format_change(previous, summary)
            rebound.append([name, old, new])
    in_place = []
    for name, line in call_safely(find_changes_in_place, error) or ():
        if name in summaries and name not in assigned:
            in_place.append([name, line])
    return {
        "rebound": rebound[:MAX_NAMES],
        "bound": bound[:MAX_NAMES],
        "in_place": in_place[:MAX_NAMES],
    }


def format_change(old: ValueSummary, new: ValueSummary) -> tuple[str, str]:
    """Return the old and the new value as text.

    The texts include the classes if only the classes differ.
    """
    if old.text == new.text and old.class_name != new.class_name:
        old_class = get_short_name(old.class_name)
        new_class = get_short_name(new.class_name)
        return f"{old_class} {old.text}", f"{new_class} {new.text}"
    return old.text, new.text


def get_short_name(class_name: str) -> str:
    """Return the name of a class without its module."""
    _, _, short_name = class_name.rpartition(".")
    return short_name


def find_changes_in_place(error: BaseException) -> list[tuple[str, int]]:
    """Return the names that lines above the failing statement change in place.

    Each name is paired with the number of the last of these lines in the cell.
    """
    user_frame = find_cell_frame(error)
    if user_frame is None:
        return []
    lines: dict[str, int] = {}
    for statement in user_frame.tree.body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        for node in ast.walk(statement):
            # A node without a line, such as an operator, changes nothing.
            line = getattr(node, "lineno", user_frame.first_line)
            if line >= user_frame.first_line:
                continue
            name = find_changed_name(node)
            if name:
                _, cell_line = find_cell_line(user_frame.filename, line)
                lines[name] = max(cell_line, lines.get(name, 0))
    return list(lines.items())


def find_cell_frame(error: BaseException) -> UserFrame | None:
    """Return the outermost frame of the traceback that is in a cell.

    Return None if there is none, or if the frame is in an earlier cell.
    """
    counts = get_cell_files()
    trace = error.__traceback__
    while trace is not None:
        count = counts.get(trace.tb_frame.f_code.co_filename)
        if count is not None:
            is_current = count == run_state["number"]
            return UserFrame(trace) if is_current else None
        trace = trace.tb_next
    return None


def find_changed_name(node: Any) -> str:
    """Return the variable that a statement or expression may change in place.

    Examples are `x` in `x += 1`, `x["a"] = 1`, `del x["a"]` and `x.append(1)`. Return
    an empty string for any other node.
    """
    if isinstance(node, ast.AugAssign):
        return find_root_name(node.target)
    if isinstance(node, (ast.Subscript, ast.Attribute)):
        is_target = isinstance(node.ctx, (ast.Store, ast.Del))
        if is_target:
            return find_root_name(node.value)
        return ""
    if not isinstance(node, ast.Call):
        return ""
    if not isinstance(node.func, ast.Attribute):
        return ""
    if node.func.attr in MUTATING_METHODS or has_inplace_argument(node):
        return find_root_name(node.func.value)
    return ""


def has_inplace_argument(call: ast.Call) -> bool:
    """Return whether a call contains `inplace=True`."""
    for keyword in call.keywords:
        if keyword.arg == "inplace":
            value = getattr(keyword.value, "value", None)
            return value is True
    return False


def find_root_name(node: Any) -> str:
    """Return the name at the beginning of an expression: `a` for `a.b[c]`.

    Return an empty string if the expression does not begin with a name.
    """
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        return node.id
    return ""
