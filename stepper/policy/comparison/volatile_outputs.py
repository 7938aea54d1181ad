"""Find the cells that display only values of the clock, or ids, from their sources.

Two fresh runs may agree on such a value by chance, for example on a rounded duration.
So their agreement does not show that the notebook has changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from stepper.policy.comparison import clock_values
from stepper.policy.comparison.nondeterminism import IDENTITIES
from stepper.policy.comparison.output_items import (
    CellOutputs,
    Item,
    list_items,
    list_types,
)

DISPLAY_FUNCTIONS = ("print", "display")
MAGIC_LINE = re.compile(r"^(\s*)[%!].*$", re.MULTILINE)
# Statements with a body. The number of lines that they display is not known.
COMPOUND = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.Try, ast.Match)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass
class _VolatileNames:
    """Variables with values of the clock, or with ids, in the order of the cells."""

    names: set[str] = field(default_factory=set)

    def apply_cell(self, source: str) -> None:
        """Apply the assignments of a cell, except those in compound statements."""
        for node in _parse_cell(source):
            self.apply_assignment(node)

    def apply_assignment(self, node: ast.stmt) -> None:
        """Add or remove the variables of an assignment; ignore other statements."""
        if not isinstance(node, ast.Assign):
            return
        names = {target.id for target in node.targets if isinstance(target, ast.Name)}
        if self.is_volatile(node.value):
            self.names |= names
        else:
            self.names -= names

    def is_volatile(self, node: ast.AST) -> bool:
        """Return whether an expression uses the clock, ids or one of the variables."""
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and child.id in self.names:
                return True
            if isinstance(child, ast.Call) and _is_volatile_call(child):
                return True
        return False


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
    values, which are computed from the clock or from ids. Return an empty list if the
    cell may also display other values, or if the number of lines is not known.
    """
    volatile = _VolatileNames()
    for source_above in sources_above:
        volatile.apply_cell(source_above)
    statements = _parse_cell(source)
    patterns: list[str] = []
    for statement in statements:
        if isinstance(statement, COMPOUND) and any(_list_displays(statement)):
            return []
        is_last = statement is statements[-1]
        values = _list_displayed_values(statement, is_last=is_last)
        if values:
            pattern = _create_line_pattern(values, volatile)
            if pattern is None:
                return []
            patterns.append(pattern)
        volatile.apply_assignment(statement)
    return patterns


def _parse_cell(source: str) -> list[ast.stmt]:
    """Return the statements of a cell without magics, or [] for invalid syntax."""
    try:
        return ast.parse(MAGIC_LINE.sub(r"\1pass", source)).body
    except (SyntaxError, ValueError):
        return []


def _is_volatile_call(call: ast.Call) -> bool:
    """Return whether a call reads the clock or returns an id."""
    # Some of the patterns contain the parentheses of a call.
    end = "(" if call.args or call.keywords else "()"
    text = ast.unparse(call.func) + end
    return bool(clock_values.CLOCK_FUNCTIONS.search(text) or IDENTITIES.search(text))


def _list_displays(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of `print` and `display`, except those in definitions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DEFINITIONS):
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
    """Return a regular expression for the line that shows values.

    Return None if one of the values is neither constant nor volatile.
    """
    parts: list[str] = []
    for value in values:
        value_parts = [value]
        if isinstance(value, ast.JoinedStr):
            value_parts = value.values
        for part in value_parts:
            if isinstance(part, ast.Constant):
                parts.append(re.escape(str(part.value).strip()))
            elif volatile.is_volatile(part):
                parts.append(".*")
            else:
                return None
    return r"\s*".join(parts)


def _matches(pattern: str, item: Item) -> bool:
    """Return whether an item is a line that a regular expression describes."""
    return isinstance(item, str) and re.fullmatch(pattern, item.strip()) is not None
