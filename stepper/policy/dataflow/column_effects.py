"""Find the columns of data frames that a source makes and drops.

Only columns whose labels are literals in the source are found.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stepper.policy.dataflow.magic_effects import analyze_magic
from stepper.policy.dataflow.name_effects import is_get_ipython, parse_source
from stepper.policy.dataflow.outside_state import get_text

MADE = "made"
DROPPED = "dropped"
# Methods whose arguments with these names are labels of new columns.
NEW_LABELS = {
    "DataFrame": ("columns",),
    "insert": ("column",),
    "melt": ("var_name", "value_name"),
    "read_csv": ("names",),
    "read_excel": ("names",),
    "reset_index": ("name", "names"),
}


class ColumnEffect(NamedTuple):
    """A line that makes or drops a column; `effect` is MADE or DROPPED.

    If `is_prefix` is true, the line makes all columns whose labels start with `label`.
    """

    label: str
    line: int
    effect: str
    is_prefix: bool = False

    def concerns(self, label: str) -> bool:
        """Return whether the effect concerns a column."""
        if self.is_prefix:
            return label.startswith(self.label)
        return label == self.label


@functools.lru_cache(maxsize=512)
def list_column_effects(
    source: str, transform: Callable[[str], str] | None = None
) -> tuple[ColumnEffect, ...]:
    """Return the columns that Python code makes and drops, sorted by line.

    `transform` is IPython's input transformer, for magics in the code of magics.
    """
    source_tree = parse_source(source, transform)
    if source_tree is None:
        return ()
    effects: list[ColumnEffect] = []
    for node in ast.walk(source_tree.tree):
        if isinstance(node, ast.Assign):
            effects += _list_assigned_columns(node)
        elif isinstance(node, ast.Delete):
            effects += _list_deleted_columns(node)
        elif isinstance(node, ast.Call):
            effects += _list_call_effects(node)
            effects += _list_magic_effects(node, transform)
    return tuple(sorted(effects, key=lambda effect: effect.line))


def _list_magic_effects(
    node: ast.Call, transform: Callable[[str], str] | None
) -> Iterator[ColumnEffect]:
    """Yield the effects of the code that a magic such as `%%time` runs.

    The lines of a cell magic's code are counted from the line below the magic.
    """
    function = node.func
    if not isinstance(function, ast.Attribute) or not is_get_ipython(function.value):
        return
    arguments = [get_text(argument) for argument in node.args]
    magic = analyze_magic(function.attr, arguments)
    for code in magic.code:
        for effect in list_column_effects(code, transform):
            is_cell_magic = function.attr == "run_cell_magic"
            line = effect.line if is_cell_magic else node.lineno
            yield effect._replace(line=line)


def _list_texts(node: ast.expr | None) -> list[str]:
    """Return the strings in an expression: a string, or a list or tuple of strings."""
    elements = [node]
    if isinstance(node, (ast.List, ast.Tuple)):
        elements = [*node.elts]
    texts = []
    for element in elements:
        value = getattr(element, "value", None)
        if isinstance(value, str):
            texts.append(value)
    return texts


def _make_effects(
    node: ast.expr | None,
    line: int,
    effect: str,
) -> Iterator[ColumnEffect]:
    """Yield an effect for each string in an expression (see `_list_texts`)."""
    for label in _list_texts(node):
        yield ColumnEffect(label, line, effect)


def _list_assigned_columns(node: ast.Assign) -> Iterator[ColumnEffect]:
    """Yield the columns of `x["k"] = …`, `x.loc[:, "k"] = …` and `x.columns = […]`."""
    line = node.lineno
    pending = [*node.targets]
    while pending:
        target = pending.pop(0)
        if isinstance(target, (ast.List, ast.Tuple)):
            pending += target.elts  # `x["k"], x["l"] = …`
        elif isinstance(target, ast.Subscript):
            yield from _make_effects(target.slice, line, MADE)
        elif isinstance(target, ast.Attribute) and target.attr == "columns":
            yield from _make_effects(node.value, line, MADE)


def _list_deleted_columns(node: ast.Delete) -> Iterator[ColumnEffect]:
    """Yield the columns of `del x["k"]`."""
    for target in node.targets:
        if isinstance(target, ast.Subscript):
            yield from _make_effects(target.slice, node.lineno, DROPPED)


def _list_call_effects(node: ast.Call) -> Iterator[ColumnEffect]:
    """Yield the columns that a call makes or drops."""
    function = node.func
    method = getattr(function, "attr", "")
    if isinstance(function, ast.Name):
        method = function.id
    # The line of the method, if a chain of calls has several lines.
    line = function.end_lineno or node.lineno
    keywords = {}
    for keyword in node.keywords:
        if keyword.arg:
            keywords[keyword.arg] = keyword.value
    first = node.args[0] if node.args else None
    has_column_axis = getattr(keywords.get("axis"), "value", 0) in (1, "columns")
    if method == "assign":
        for name in keywords:
            yield ColumnEffect(name, line, MADE)
    elif method in ("agg", "aggregate"):
        for name, value in keywords.items():
            if isinstance(value, ast.Tuple):
                yield ColumnEffect(name, line, MADE)
    elif method == "insert":
        for argument in node.args[1:2]:
            yield from _make_effects(argument, line, MADE)
    elif method == "DataFrame":
        yield from _list_keys(first or keywords.get("data"), line, MADE)
    elif method == "rename":
        columns = keywords.get("columns")
        if has_column_axis:
            columns = first or keywords.get("mapper")
        yield from _list_renamed_columns(columns, line)
    elif method == "set_axis" and has_column_axis:
        yield from _make_effects(first or keywords.get("labels"), line, MADE)
    elif method == "get_dummies":
        yield from _list_dummy_columns(keywords.get("columns"), line)
    elif method == "drop":
        columns = keywords.get("columns")
        if has_column_axis:
            columns = first or keywords.get("labels")
        yield from _make_effects(columns, line, DROPPED)
    elif method in ("pop", "set_index"):
        yield from _make_effects(first or keywords.get("keys"), line, DROPPED)
    for name in NEW_LABELS.get(method, ()):
        yield from _make_effects(keywords.get(name), line, MADE)


def _list_keys(
    node: ast.expr | None,
    line: int,
    effect: str,
) -> Iterator[ColumnEffect]:
    """Yield an effect for each key of a dict display."""
    if isinstance(node, ast.Dict):
        for key in node.keys:
            yield from _make_effects(key, line, effect)


def _list_renamed_columns(
    columns: ast.expr | None, line: int
) -> Iterator[ColumnEffect]:
    """Yield the old and the new labels of `rename(columns={…})`."""
    yield from _list_keys(columns, line, DROPPED)
    if isinstance(columns, ast.Dict):
        for value in columns.values:
            yield from _make_effects(value, line, MADE)


def _list_dummy_columns(columns: ast.expr | None, line: int) -> Iterator[ColumnEffect]:
    """Yield the columns of `get_dummies(x, columns=[…])`."""
    for label in _list_texts(columns):
        yield ColumnEffect(f"{label}_", line, MADE, is_prefix=True)
        yield ColumnEffect(label, line, DROPPED)
