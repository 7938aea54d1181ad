"""Where it failed in the user's own code, and what the expressions there hold, without running anything of the user's.

`executing` finds the failing expression, by way of the sources that IPython's traceback has read already; `pure_eval`
looks up names, stored attributes and items of plain containers. IPython brings both. Here comes what the objects of
known libraries tell without a call.
"""

from __future__ import annotations

import ast
import builtins
from types import FrameType, TracebackType
from typing import Any, Iterator

from pure_eval import CannotEval, Evaluator
from pure_eval.utils import of_standard_types
from stack_data.core import Source

from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.safe_inspect import (
    class_dict_of,
    classes_of,
    is_a,
    is_library_object,
    is_one_of,
    missing,
    name_of,
    top_module,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
DATA = (ast.Name, ast.Attribute, ast.Subscript)
PROPERTIES = {
    "columns",
    "index",
    "shape",
    "dtype",
    "dtypes",
    "T",
    "values",
    "size",
    "ndim",
    "empty",
    "iloc",
    "loc",
    "at",
    "iat",
}
COPIES, MANY = {"T", "values"}, 1_000_000
CHEAP = (ast.Add, ast.Sub, ast.FloorDiv, ast.Mod)  # what others make may be huge
SCALARS = (int, float, str, bool, type(None))
PLACES, FEW_LABELS = 3, 10_000


class Values(Evaluator):
    def __getitem__(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Call) or (
            isinstance(node, ast.BinOp) and not isinstance(node.op, CHEAP)
        ):
            raise CannotEval
        stored = missing
        if isinstance(node, ast.Attribute):
            stored = attribute(self[node.value], node.attr)
        elif isinstance(node, ast.Subscript) and (
            is_a(self[node.value], dict) or is_library_object(self[node.value])
        ):
            stored = item(self[node.value], self[node.slice])
        return super().__getitem__(node) if stored is missing else stored


def attribute(value: Any, name: str) -> Any:
    """A known library's property, or a column as an attribute."""
    if is_library_object(value) and name in PROPERTIES:
        return (
            missing
            if name in COPIES and large(value)
            else getattr(value, name, missing)
        )
    labels = columns(value)
    return value[name] if labels is not None and name in labels else missing


def item(value: Any, key: Any) -> Any:
    """An item of a dict without its `__missing__`, or what a known library's object has at a label or place."""
    if is_a(value, dict) and not is_one_of(type(key), SCALARS):
        return missing
    if is_a(value, dict) and key in dict.keys(value):
        return dict.get(value, key)
    if (
        is_a(value, dict)
        or not is_one_of(type(key), (str, int, list))
        or (type(key) is list and large(value))
    ):
        raise CannotEval
    own_labels(value)
    try:
        return value[key]
    except Exception as error:
        raise CannotEval from error  # the library's own word: no such label


def own_labels(value: Any) -> None:
    """Raise CannotEval where a label of pandas' is of the user's own class: to look for another asks it."""
    if is_library_object(value) and name_of(type(value)).endswith("Indexer"):
        value = getattr(value, "obj", value)
    for labels in (
        getattr(value, "axes", [value]) if top_module(type(value)) == "pandas" else ()
    ):
        kind = getattr(labels, "inferred_type", "")
        if "mixed" in kind or (
            kind == "string"
            and str(labels.dtype) == "object"
            and len(labels) <= FEW_LABELS
        ):
            if len(labels) > FEW_LABELS:
                raise CannotEval
            of_standard_types(labels.tolist(), check_dict_values=True, deep=True)


def columns(value: Any) -> Any:
    """The columns of a frame, None of anything else. An Index has no truth of its own: never ask for it."""
    has = is_library_object(value) and any(
        "columns" in class_dict_of(kind) for kind in classes_of(type(value))
    )
    labels = value.columns if has else None  # a Series would look for such a label
    return (
        labels
        if labels is not None
        and is_library_object(labels)
        and hasattr(labels, "tolist")
        else None
    )


def large(value: Any) -> bool:
    count = getattr(value, "size", 0)
    return type(count) is not int or count > MANY


class Spot:
    """One such place, with the expressions of its failing line in `nodes`, the failing one first."""

    def __init__(self, trace: TracebackType) -> None:
        found = Source.executing(trace)
        self.frame, self.line = trace.tb_frame, trace.tb_lineno
        self.filename = self.frame.f_code.co_filename
        self.tree: Any = found.source.tree or ast.Module([], [])
        self.statement: Any = min(
            found.statements or (),
            key=lambda node: node.end_lineno - node.lineno,
            default=None,
        )
        own = list(ast.walk(found.node)) if isinstance(found.node, ast.expr) else []
        self.nodes: list[Any] = [
            *own,
            *(node for node in on_line(self.statement) if node not in own),
        ]
        self.values = Values(names(self.frame))

    def around(self, *kinds: Any) -> list[Any]:
        """The nodes of these kinds around the failing expression, innermost first."""
        node, above = self.nodes[0] if self.nodes else self.statement, list[Any]()
        while node is not None:
            above += [node] * isinstance(node, kinds)
            node = getattr(node, "parent", None)  # which `executing` sets
        return above

    def function(self) -> Any:
        """The innermost function around it, None at a cell's top level."""
        return next(iter(self.around(*FUNCTIONS)), None)

    def texts(self) -> list[str]:
        return [
            node.value
            for node in self.nodes
            if type(getattr(node, "value", None)) is str
        ]

    def known(self, nodes: Any = None) -> Iterator[tuple[str, Any, Any]]:
        """(text, value, node) of each name, attribute and item that can be looked up."""
        for node in self.nodes if nodes is None else nodes:
            if isinstance(node, DATA):
                try:
                    yield ast.unparse(node), self.values[node], node
                except CannotEval:
                    continue


def names(frame: FrameType) -> dict[str, Any]:
    """What is bound in a frame. A namespace of the user's own class is not asked: it may run code of theirs."""
    bound = dict(vars(builtins))
    for space in (frame.f_globals, frame.f_locals):
        if isinstance(space, dict):
            bound.update(dict.copy(space))
        elif type(space).__module__ == "builtins":  # a function's, since Python 3.13
            bound.update(space)
    return bound


def on_line(statement: Any) -> list[ast.expr]:
    todo, found = [statement] if statement is not None else [], list[ast.expr]()
    while todo:
        node = todo.pop(0)
        found += [node] * isinstance(node, ast.expr)
        todo += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, (ast.stmt, ast.ExceptHandler))
        ]
    return found


def spots(trace: TracebackType | None) -> list[Spot]:
    own = list[TracebackType]()
    while trace is not None:
        own += [trace] * is_user_file(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return [Spot(entry) for entry in own[: -PLACES - 1 : -1]]
