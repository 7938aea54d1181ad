"""The evaluation of a step's criterion without running the user's code.

Names are looked up as in `expression_values`, and plain values are compared. The result
of an expression that would have to run the user's code is unknown. Of the methods of
NumPy and pandas objects, a criterion can call only methods that reduce numbers or
search for missing values.
"""

from __future__ import annotations

import ast
import operator
import warnings
from typing import Any

from pure_eval import CannotEval, Evaluator
from pure_eval.utils import is_standard_types, of_standard_types

from stepper.diagnosis.in_kernel.expression_values import (
    SCALARS,
    Values,
    check_labels,
)
from stepper.kernels.in_kernel.safe_inspect import (
    get_qualname,
    get_top_module,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    shell,
    shorten,
)

MAX_SHOWN_ITEMS = 20  # of a list that is shown
MAX_CONVERTED_ITEMS = 10_000  # of an array that is converted to a list
MAX_COMPUTED_ITEMS = 1_000_000  # of an array that its library computes with
MAX_SHOWN_VALUES = 3
TEXT_LIMIT = 60  # characters of an expression or a value
MAX_BITS = 4096  # of an integer
CHECK_ALL_ITEMS = {"check_dict_values": True, "deep": True}
FUNCTIONS = {
    "abs": abs,
    "len": len,
    "list": list,
    "max": max,
    "min": min,
    "round": round,
    "set": set,
    "sorted": sorted,
    "sum": sum,
    "tuple": tuple,
}
ARITHMETIC = (
    ast.Add,
    ast.Sub,
    ast.Mult,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
)
COMPARISONS: dict[Any, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
LITERALS = (ast.Constant, ast.Tuple, ast.List, ast.Set)
# Methods that may be called on any small pandas object.
MISSING_VALUE_METHODS = {"isna", "isnull", "notna", "notnull"}
# Methods that may be called only on numbers.
REDUCTIONS = {"all", "any", "max", "mean", "min", "sum"}
NUMBER_KINDS = "biuf"  # numpy's kinds of bool, int, unsigned int and float


def evaluate_criterion(text: str) -> dict[str, Any] | None:
    """Return the result of a criterion, as a dict that JSON can encode.

    `holds` says whether the criterion is true. `values` contains the compared
    expressions and their values as text. Return None if the criterion is not a boolean
    expression, or if the result is unknown.
    """
    values = CriterionValues({**FUNCTIONS, **shell.user_ns})
    try:
        # Warnings must not become outputs of the cell.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expression = ast.parse(text, mode="eval")
            result = values[expression.body]
    except Exception:  # unknown, or an error of a library, such as a missing label
        return None
    if type(result) is not bool:
        return None
    compared = list(values.compared.items())
    return {"holds": result, "values": compared[:MAX_SHOWN_VALUES]}


class CriterionValues(Values):
    """The values of a criterion's expressions, and the values that it compares."""

    def __init__(self, names: Any) -> None:
        super().__init__(names)
        self.compared: dict[str, str] = {}  # expression → value, both as text

    def __getitem__(self, node: Any) -> Any:
        """Return the value of an expression, converted by `to_python_value`.

        Raise CannotEval if the expression could run the user's code.
        """
        if isinstance(node, ast.Call):
            result = self.call(node)
            return to_python_value(result)
        if isinstance(node, ast.BinOp):
            return self.compute(node)
        if isinstance(node, ast.Compare):
            return self.compare(node)
        if isinstance(node, ast.Subscript):
            container = self[node.value]
            if is_a(container, dict):
                # The search for a key would call `__eq__` of the user's own keys.
                of_standard_types(container, check_dict_values=False, deep=True)
        value = super().__getitem__(node)
        return to_python_value(value)

    def compute(self, node: ast.BinOp) -> Any:
        """Return the result of arithmetic with numbers.

        Raise CannotEval for another operator or another type of operand.
        """
        left = self[node.left]
        right = self[node.right]
        if not isinstance(node.op, ARITHMETIC):
            raise CannotEval
        if not is_number(left) or not is_number(right):
            raise CannotEval
        return Evaluator.__getitem__(self, node)

    def compare(self, node: ast.Compare) -> Any:
        """Return the result of a comparison, and record the compared values.

        Raise CannotEval if the comparison could run the user's code.
        """
        for side in (node.left, *node.comparators):
            value = self[side]
            if is_literal(side) or not is_shown(value):
                continue
            expression = shorten(ast.unparse(side), TEXT_LIMIT)
            self.compared[expression] = shorten(repr(value), TEXT_LIMIT)
        if len(node.ops) > 1:
            return Evaluator.__getitem__(self, node)
        left_value = self[node.left]
        right_value = self[node.comparators[0]]
        comparison = node.ops[0]
        is_membership = isinstance(comparison, (ast.In, ast.NotIn))
        if is_membership and is_pandas_object(right_value):
            of_standard_types(left_value, **CHECK_ALL_ITEMS)
            check_labels(right_value)
            is_label = bool(left_value in right_value)  # of a column or a row
            if isinstance(comparison, ast.NotIn):
                return not is_label
            return is_label
        compare_items = COMPARISONS.get(type(comparison))
        if compare_items and is_numeric(left_value) and is_number(right_value):
            return compare_items(left_value, right_value)
        return Evaluator.__getitem__(self, node)

    def call(self, node: ast.Call) -> Any:
        """Return the result of calling a function or method that is safe to call.

        Raise CannotEval for any other call.
        """
        if node.keywords:
            raise CannotEval
        if isinstance(node.func, ast.Attribute):
            if node.args:
                raise CannotEval
            instance = self[node.func.value]
            return self.call_method(instance, node.func.attr)
        function = self[node.func]
        arguments = [self[argument] for argument in node.args]
        is_known_function = is_one_of(function, FUNCTIONS.values())
        if is_known_function and len(arguments) == 1 and has_axes(arguments[0]):
            return call_with_array(function, arguments[0])
        return Evaluator.__getitem__(self, node)

    def call_method(self, instance: Any, name: str) -> Any:
        """Return the result of a method of an array, a column or a data frame.

        Raise CannotEval if the method is not safe to call.
        """
        is_allowed = name in REDUCTIONS and is_numeric(instance)
        if name in MISSING_VALUE_METHODS:
            is_allowed = is_pandas_object(instance) and is_small(instance)
        if not is_allowed:
            raise CannotEval
        method = getattr(instance, name)
        return method()


def is_literal(node: ast.expr) -> bool:
    """Return whether an expression is a literal, such as `3`, `-1` or `[1, 2]`."""
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, LITERALS)


def has_axes(value: Any) -> bool:
    """Return whether a value is an array, a column or a data frame of a library."""
    if not is_library_object(value):
        return False
    shape = getattr(value, "shape", None)
    return isinstance(shape, tuple) and len(shape) > 0


def call_with_array(function: Any, array: Any) -> Any:
    """Return the result of one of FUNCTIONS for an array, a column or a data frame.

    The items are converted to Python's types, except for `len`. Raise CannotEval if
    there are too many items or several axes.
    """
    length = array.shape[0]
    if function is len:
        return length
    if len(array.shape) > 1 or length > MAX_CONVERTED_ITEMS:
        raise CannotEval
    items = of_standard_types(array.tolist(), **CHECK_ALL_ITEMS)
    return function(items)


def is_shown(value: Any) -> bool:
    """Return whether a value is short enough to be shown with the result."""
    kind = type(value)
    if is_one_of(kind, SCALARS):
        return True
    if not is_one_of(kind, (tuple, list)):
        return False
    if len(value) > MAX_SHOWN_ITEMS:
        return False
    is_plain = is_standard_types(value, **CHECK_ALL_ITEMS)
    return bool(is_plain)


def to_python_value(value: Any) -> Any:
    """Convert a library's number to a Python number, and a dtype to its name.

    Return other values unchanged.
    """
    if not is_library_object(value):
        return value
    kind = type(value)
    shape = getattr(value, "shape", None)
    is_scalar = shape == () and hasattr(value, "item")
    if is_scalar and get_top_module(kind) in ("numpy", "torch"):
        return value.item()
    class_name = get_qualname(kind).lower()
    if class_name == "dtype" and get_top_module(kind) == "torch":
        return str(value)  # such as "torch.float32"; there is no attribute `name`
    if "dtype" in class_name and type(value.name) is str:
        return value.name
    return value


def is_number(value: Any) -> bool:
    """Return whether a value is a bool, a float or an int of at most MAX_BITS bits."""
    if type(value) is int:
        return value.bit_length() <= MAX_BITS
    return is_one_of(type(value), (bool, float))


def is_pandas_object(value: Any) -> bool:
    """Return whether the class of a value is defined by pandas."""
    if not is_library_object(value):
        return False
    return get_top_module(type(value)) == "pandas"


def is_small(value: Any) -> bool:
    """Return whether a value has at most MAX_COMPUTED_ITEMS items."""
    size = getattr(value, "size", None)
    return type(size) is int and size <= MAX_COMPUTED_ITEMS


def is_numeric(value: Any) -> bool:
    """Return whether a value is a small array, column or data frame of numbers."""
    if not is_library_object(value) or not is_small(value):
        return False
    if get_top_module(type(value)) not in ("numpy", "pandas"):
        return False
    if is_pandas(value, "DataFrame"):
        dtypes = value.dtypes.tolist()
    else:
        dtypes = [getattr(value, "dtype", None)]
    return all(map(is_number_dtype, dtypes))


def is_number_dtype(dtype: Any) -> bool:
    """Return whether a dtype of numpy or pandas is numeric or boolean."""
    if not is_library_object(dtype):
        return False
    kind = getattr(dtype, "kind", "O")
    return kind in NUMBER_KINDS
