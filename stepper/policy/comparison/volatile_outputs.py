"""Find the cells that display only values of the clock, or ids, from their sources.

Two fresh runs may agree on such a value by chance, for example on a rounded duration.
So their agreement does not show that the notebook has changed.

A value is *volatile* if it is computed only from the clock, from ids and from numbers
in the source. Values that a call computes are not volatile, apart from conversions such
as `round`, because the call may also use the notebook's data.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeGuard

from stepper.policy.comparison.output_items import (
    CellOutputs,
    Item,
    list_items,
    list_types,
)
from stepper.policy.dataflow.name_effects import parse_source
from stepper.policy.dataflow.outside_state import get_dotted_name

DISPLAY_FUNCTIONS = ("print", "display")
MAGIC_LINE = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)
# Functions that read the clock or return an id, with or without their module.
VOLATILE_FUNCTIONS = re.compile(
    r"(?:time\.)?(?:perf_counter|monotonic|process_time|thread_time)(?:_ns)?"
    r"|time\.(?:time|time_ns|ctime|localtime|gmtime)"
    r"|(?:timeit\.)?default_timer"
    r"|(?:\w+\.)*(?:datetime|date|Timestamp)\.(?:now|utcnow|today)"
    r"|id|(?:os\.)?getpid|(?:uuid\.)?uuid[14]"
)
# `from time import time`
CLOCK = "time"
CONVERSIONS = ("abs", "divmod", "float", "int", "repr", "round", "str", "timedelta")
# Expressions that are volatile if their parts are.
COMPOSITES = (
    ast.Attribute,
    ast.BinOp,
    ast.FormattedValue,
    ast.JoinedStr,
    ast.Subscript,
    ast.UnaryOp,
)
# Their bodies do not run when they are defined, unlike the body of a class.
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class _VolatileNames:
    """Variables with volatile values, in the order of the cells."""

    def __init__(self) -> None:
        self._names = set[str]()

    def apply_cell(self, source: str) -> None:
        """Apply the statements of a cell."""
        statements = parse_cell(source)
        if statements is None:
            self._names.clear()  # the cell may assign any variable
        for statement in statements or ():
            self.apply_statement(statement)

    def apply_statement(self, statement: ast.stmt) -> None:
        """Add the variables that a statement assigns volatile values.

        Remove all other variables that the statement binds.
        """
        self._names.difference_update(_list_bound_names(statement))
        if isinstance(statement, ast.Assign) and self.is_volatile(statement.value):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    self._names.add(target.id)

    def is_volatile(self, node: ast.AST) -> bool:
        """Return whether the value of an expression is volatile."""
        if isinstance(node, ast.Name):
            return node.id in self._names
        if isinstance(node, ast.Call):
            return _reads_volatile(node) or self._is_conversion(node)
        if isinstance(node, COMPOSITES):
            return self._are_volatile(_list_operands(node))
        return False

    def _is_conversion(self, call: ast.Call) -> bool:
        """Return whether a call converts a volatile value.

        This is a function such as `round`, or a method such as `strftime`.
        """
        arguments = [*call.args, *[keyword.value for keyword in call.keywords]]
        name = get_dotted_name(call.func).rpartition(".")[2]
        if name in CONVERSIONS:
            return self._are_volatile(arguments)
        if not isinstance(call.func, ast.Attribute):
            return False
        constants = [item for item in arguments if isinstance(item, ast.Constant)]
        return len(constants) == len(arguments) and self.is_volatile(call.func.value)

    def _are_volatile(self, nodes: Sequence[ast.expr]) -> bool:
        """Return whether expressions are volatile values and numbers, not only numbers.

        A text in the source is not accepted, because it must be as recorded.
        """
        others = [node for node in nodes if not _is_number(node)]
        return bool(others) and all(map(self.is_volatile, others))


def differ_only_in_volatile_values(
    source: str,
    sources_above: Iterable[str],
    recorded: CellOutputs,
    fresh: CellOutputs,
) -> bool:
    """Return whether outputs differ only in values of the clock, or in ids.

    `source` is the source of the cell, and `sources_above` are those of the cells
    above. Each line of the outputs must belong to a display of such values in the
    source, and have the same constant text in both outputs. Return False if the cell
    may display something else.
    """
    patterns = list_line_patterns(source, sources_above)
    if not patterns:
        return False
    types = list_types(recorded.outputs) & list_types(fresh.outputs)
    old_items = list_items(recorded.outputs, types)
    new_items = list_items(fresh.outputs, types)
    if not len(old_items) == len(new_items) == len(patterns):
        return False
    return all(
        old == new or (_matches(pattern, old) and _matches(pattern, new))
        for pattern, old, new in zip(patterns, old_items, new_items, strict=True)
    )


def list_line_patterns(source: str, sources_above: Iterable[str]) -> list[str]:
    """Return a regular expression for each line that a cell displays.

    The expressions contain the constant text of the lines, and `.*` for volatile
    values. Return an empty list if the cell may also display other values, or if the
    number of lines is not known.
    """
    volatile = _VolatileNames()
    for source_above in sources_above:
        volatile.apply_cell(source_above)
    statements = parse_cell(source) or []
    patterns: list[str] = []
    for statement in statements:
        if _displays_inside(statement):
            return []
        is_last = statement is statements[-1]
        values = _list_displayed_values(statement, is_last=is_last)
        if values:
            pattern = _create_line_pattern(values, volatile)
            if pattern is None:
                return []
            patterns.append(pattern)
        volatile.apply_statement(statement)
    return patterns


def parse_cell(source: str) -> list[ast.stmt] | None:
    """Return the statements of a cell without magics, or None for invalid syntax."""
    tree = parse_source(source, lambda text: MAGIC_LINE.sub(r"\1pass", text))
    return None if tree is None else tree.tree.body


def _list_bound_names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, also in its body."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
            yield node.name or ""
        elif isinstance(node, ast.MatchMapping):
            yield node.rest or ""


def _reads_volatile(call: ast.Call) -> bool:
    """Return whether a call reads the clock or returns an id."""
    name = get_dotted_name(call.func)
    if name == CLOCK:
        return not call.args
    return VOLATILE_FUNCTIONS.fullmatch(name) is not None


def _list_operands(node: ast.AST) -> list[ast.expr]:
    """Return the expressions from which a composite expression is computed.

    The format of a value in an f-string is not one of them.
    """
    if isinstance(node, ast.FormattedValue):
        return [node.value]
    return [
        child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)
    ]


def _is_number(node: ast.expr) -> bool:
    """Return whether an expression is a number in the source."""
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float)


def _displays_inside(statement: ast.stmt) -> bool:
    """Return whether a part of a statement calls `print` or `display`.

    The number of lines that the statement displays is not known then. A statement that
    only consists of such a call displays one line.
    """
    if isinstance(statement, ast.Expr) and _is_display(statement.value):
        return False
    if isinstance(statement, FUNCTIONS):
        return False
    return any(_list_displays(statement))


def _list_displays(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `print` and `display`, except those in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            continue
        if _is_display(child):
            yield child
        yield from _list_displays(child)


def _is_display(node: ast.AST) -> TypeGuard[ast.Call]:
    """Return whether a node calls `print` or `display`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in DISPLAY_FUNCTIONS
    )


def _list_displayed_values(statement: ast.stmt, *, is_last: bool) -> list[ast.expr]:
    """Return the expressions that a simple statement displays.

    IPython displays the value of the last statement of a cell.
    """
    if not isinstance(statement, ast.Expr):
        return []
    if _is_display(statement.value):
        return statement.value.args
    return [statement.value] if is_last else []


def _create_line_pattern(
    values: Sequence[ast.expr], volatile: _VolatileNames
) -> str | None:
    """Return a regular expression for the line that displays `values`.

    Return None if a value is neither a constant nor volatile.
    """
    parts: list[str] = []
    for value in values:
        for part in value.values if isinstance(value, ast.JoinedStr) else [value]:
            if isinstance(part, ast.Constant):
                parts.append(re.escape(str(part.value).strip()))
            elif volatile.is_volatile(part):
                parts.append(".*")
            else:
                return None
    return r"\s*".join(parts)


def _matches(pattern: str, item: Item) -> bool:
    """Return whether an item is a line that matches a regular expression."""
    return isinstance(item, str) and re.fullmatch(pattern, item.strip()) is not None
