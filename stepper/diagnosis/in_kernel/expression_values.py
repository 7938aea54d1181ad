"""The failing lines of the user's code, and the values of expressions on them.

None of the user's code is executed. `executing` finds the failing expression in the
sources that IPython's traceback has already read. `pure_eval` looks up names, stored
attributes and items of plain containers. IPython depends on both packages. This module
adds the lookup of properties and items of objects of known libraries.
"""

from __future__ import annotations

import ast
import builtins
from types import FrameType, TracebackType
from typing import Any, Iterator, NamedTuple

from pure_eval import CannotEval, Evaluator
from pure_eval.utils import of_standard_types
from stack_data.core import Source

from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.safe_inspect import (
    get_class_dict,
    get_mro,
    get_qualname,
    get_top_module,
    is_a,
    is_library_object,
    is_one_of,
    missing,
)

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
# Expressions with their own local names.
INNER_SCOPES = (ast.Lambda, *COMPREHENSIONS)
# The names of their code objects. Since Python 3.12, only lambdas and generator
# expressions have a separate one.
COMPREHENSION_NAMES = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
INNER_SCOPE_NAMES = ("<lambda>", *COMPREHENSION_NAMES)
# Expressions that refer to a stored value: names, attributes and items.
REFERENCES = (ast.Name, ast.Attribute, ast.Subscript)
# Properties of libraries' objects that can be read without running the user's code.
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
COPYING_PROPERTIES = {"T", "values"}  # may copy all data
MAX_COPIED_ITEMS = 1_000_000
# The results of other operators can be huge.
CHEAP_OPERATORS = (ast.Add, ast.Sub, ast.FloorDiv, ast.Mod)
SCALARS = (int, float, str, bool, type(None))
KEY_TYPES = (str, int, list)
MAX_FRAMES = 3
MAX_CHECKED_LABELS = 10_000


class Values(Evaluator):
    """The values of expressions in a frame, looked up when they are needed."""

    def __getitem__(self, node: ast.expr) -> Any:
        """Return the value of an expression.

        `get_attribute` and `get_item` look up what `Evaluator` does not: properties and
        columns, and items of dicts and library objects. Raise CannotEval for a call,
        for an operator not in CHEAP_OPERATORS, and if the value cannot be looked up
        without running the user's code.
        """
        if isinstance(node, ast.Call):
            raise CannotEval
        if isinstance(node, ast.BinOp) and not isinstance(node.op, CHEAP_OPERATORS):
            raise CannotEval
        value = missing
        if isinstance(node, ast.Attribute):
            container = self[node.value]
            value = get_attribute(container, node.attr)
        elif isinstance(node, ast.Subscript):
            container = self[node.value]
            if is_a(container, dict) or is_library_object(container):
                key = self[node.slice]
                value = get_item(container, key)
        if value is missing:
            return super().__getitem__(node)
        return value


def get_attribute(value: Any, name: str) -> Any:
    """Return a property of a library's object, or a column of a data frame.

    Return `missing` if the object has neither, or if the property copies too much data.
    Raise CannotEval if the column cannot be looked up safely.
    """
    if is_library_object(value) and name in PROPERTIES:
        if name in COPYING_PROPERTIES and is_large(value):
            return missing
        return getattr(value, name, missing)
    labels = get_columns(value)
    if labels is None:
        return missing
    check_labels(value)
    if name in labels:
        return value[name]
    return missing


def get_item(container: Any, key: Any) -> Any:
    """Return an item of a dict, or of a library's object at a label or position.

    Return `missing` if the key of a dict is not a scalar. Raise CannotEval if the item
    does not exist or cannot be looked up safely. A dict's `__missing__` is not called.
    """
    if is_a(container, dict):
        if not is_one_of(type(key), SCALARS):
            return missing
        if key in dict.keys(container):
            return dict.get(container, key)
        raise CannotEval
    if not is_one_of(type(key), KEY_TYPES):
        raise CannotEval
    if type(key) is list:
        if is_large(container) or len(key) > MAX_CHECKED_LABELS:
            raise CannotEval
        if not all(is_one_of(type(item), SCALARS) for item in key):
            raise CannotEval
    check_labels(container)
    try:
        return container[key]
    except Exception as error:  # the library has no such label
        raise CannotEval from error


def check_labels(value: Any) -> None:
    """Raise CannotEval if pandas labels may be objects of the user's own class.

    A search for any label would call the `__eq__` of these objects.
    """
    if is_library_object(value) and get_qualname(type(value)).endswith("Indexer"):
        value = getattr(value, "obj", value)
    if get_top_module(type(value)) != "pandas":
        return
    for labels in getattr(value, "axes", [value]):
        inferred = getattr(labels, "inferred_type", "")
        may_be_mixed = "mixed" in inferred
        if inferred == "string" and str(labels.dtype) == "object":
            # Subclasses of str are inferred as strings, too. Many labels are trusted,
            # because checking them would take too long.
            may_be_mixed = len(labels) <= MAX_CHECKED_LABELS
        if not may_be_mixed:
            continue
        if len(labels) > MAX_CHECKED_LABELS:
            raise CannotEval
        # Raises CannotEval for an object of any other class.
        of_standard_types(labels.tolist(), check_dict_values=True, deep=True)


def get_columns(value: Any) -> Any:
    """Return the columns of a data frame, or None for any other value.

    The columns are usually a pandas Index, whose truth value raises an error: compare
    the result with None.
    """
    if not is_library_object(value):
        return None
    # On a Series, `value.columns` would search for a label of that name.
    class_dicts = map(get_class_dict, get_mro(type(value)))
    if not any("columns" in class_dict for class_dict in class_dicts):
        return None
    labels = value.columns
    if not is_library_object(labels) or not hasattr(labels, "tolist"):
        return None
    return labels


def is_large(value: Any) -> bool:
    """Return whether a value has too many items to copy, or an unknown number.

    A value without the attribute `size` is not large.
    """
    size = getattr(value, "size", 0)
    return type(size) is not int or size > MAX_COPIED_ITEMS


class KnownValue(NamedTuple):
    """An expression as text, its value, and its node in the syntax tree."""

    text: str
    value: Any
    node: Any


class UserFrame:
    """A frame of the user's code in a traceback, at its failing line.

    `nodes` contains the nodes of the failing expression, then the other expressions of
    the failing statement. `outermost` is the outermost user frame of the traceback.
    """

    def __init__(self, trace: TracebackType) -> None:
        executing = Source.executing(trace)
        self.frame = trace.tb_frame
        self.line = trace.tb_lineno
        self.filename = self.frame.f_code.co_filename
        self.tree: Any = executing.source.tree
        if self.tree is None:
            self.tree = ast.Module([], [])
        # The innermost statement on the line has the fewest lines.
        self.statement: Any = min(
            executing.statements or (),
            key=lambda node: node.end_lineno - node.lineno,
            default=None,
        )
        self.nodes: list[Any] = []
        if isinstance(executing.node, ast.expr):
            self.nodes += ast.walk(executing.node)
        for node in list_expressions(self.statement):
            if node not in self.nodes:
                self.nodes.append(node)
        self.values = Values(collect_names(self.frame))
        self.outermost = self

    @property
    def first_line(self) -> int:
        """The first line of the failing statement, which may have several lines."""
        if self.statement is None:
            return self.line
        statement_line: int = self.statement.lineno
        return min(self.line, statement_line)

    def list_enclosing(self, *kinds: Any) -> list[Any]:
        """Return the nodes of these classes that contain the failing expression.

        The innermost node comes first.
        """
        node = self.nodes[0] if self.nodes else self.statement
        enclosing = []
        while node is not None:
            if isinstance(node, kinds):
                enclosing.append(node)
            node = getattr(node, "parent", None)  # set by `executing`
        return enclosing

    def find_function(self) -> Any:
        """Return the innermost enclosing function, or None at a cell's top level."""
        functions = self.list_enclosing(*FUNCTIONS)
        return functions[0] if functions else None

    def is_comprehension(self) -> bool:
        """Return whether the frame is that of a comprehension, not of a function."""
        return self.frame.f_code.co_name in COMPREHENSION_NAMES

    def list_strings(self) -> list[str]:
        """Return the string constants of the failing line."""
        values = [getattr(node, "value", None) for node in self.nodes]
        return [value for value in values if type(value) is str]

    def iterate_values(self, nodes: Any = None) -> Iterator[KnownValue]:
        """Yield the names, attributes and items with known values.

        `nodes` defaults to the nodes of the failing line. Names that a line only
        assigns, and local names of other lambdas and comprehensions, are left out.
        """
        if nodes is None:
            nodes = self.nodes
        for node in nodes:
            if not isinstance(node, REFERENCES):
                continue
            if is_assigned_name(node) or self.is_local_elsewhere(node):
                continue
            try:
                value = self.values[node]
            except CannotEval:
                continue
            text = ast.unparse(node)
            yield KnownValue(text, value, node)

    def is_local_elsewhere(self, node: Any) -> bool:
        """Return whether an expression uses a name of another lambda or comprehension.

        The name is local to a lambda or comprehension that does not contain the failing
        expression. A variable of the frame with the same name has another value.
        """
        own_scopes = self.list_enclosing(*INNER_SCOPES)
        names = {getattr(part, "id", None) for part in ast.walk(node)}
        scope = getattr(node, "parent", None)  # set by `executing`
        while scope is not None:
            if isinstance(scope, INNER_SCOPES) and scope not in own_scopes:
                local_names = list_local_names(scope) - self.list_inner_names()
                if not names.isdisjoint(local_names):
                    return True
            scope = getattr(scope, "parent", None)
        return False

    def list_inner_names(self) -> set[str]:
        """Return the local names if the frame is that of a lambda or comprehension.

        Return an empty set for the frame of a function or cell.
        """
        code = self.frame.f_code
        if code.co_name not in INNER_SCOPE_NAMES:
            return set()
        return set(code.co_varnames)


def is_assigned_name(node: Any) -> bool:
    """Return whether a node is a name that its statement assigns without reading it."""
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Store):
        return False
    parent = getattr(node, "parent", None)
    return not isinstance(parent, ast.AugAssign)


def list_local_names(scope: Any) -> set[str]:
    """Return the parameters of a lambda, or the loop variables of a comprehension."""
    names = set()
    if isinstance(scope, ast.Lambda):
        for node in ast.walk(scope.args):
            if isinstance(node, ast.arg):
                names.add(node.arg)
        return names
    for loop in scope.generators:
        for node in ast.walk(loop.target):
            if isinstance(node, ast.Name):
                names.add(node.id)
    return names


def collect_names(frame: FrameType) -> dict[str, Any]:
    """Return the names that code in a frame can use, with their values.

    A namespace of a user-defined mapping class is left out unless it is a subclass of
    `dict`, because reading it may run the user's code.
    """
    names = dict(vars(builtins))
    for namespace in (frame.f_globals, frame.f_locals):
        if isinstance(namespace, dict):
            names.update(dict.copy(namespace))
        elif type(namespace).__module__ == "builtins":
            # The proxy of a function's names, since Python 3.13.
            names.update(namespace)
    return names


def list_expressions(statement: Any) -> list[ast.expr]:
    """Return the expressions of a statement, except those in nested statements."""
    pending: list[Any] = []
    if statement is not None:
        pending.append(statement)
    expressions: list[ast.expr] = []
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.expr):
            expressions.append(node)
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
                pending.append(child)
    return expressions


def list_user_frames(trace: TracebackType | None) -> list[UserFrame]:
    """Return up to MAX_FRAMES frames of the user's code, the innermost frame first."""
    entries: list[TracebackType] = []
    while trace is not None:
        if is_user_file(trace.tb_frame.f_code.co_filename):
            entries.append(trace)
        trace = trace.tb_next
    if not entries:
        return []
    user_frames = [UserFrame(entry) for entry in reversed(entries[-MAX_FRAMES:])]
    outermost = user_frames[-1]
    if len(entries) > MAX_FRAMES:
        outermost = UserFrame(entries[0])
    for user_frame in user_frames:
        user_frame.outermost = outermost
    return user_frames
