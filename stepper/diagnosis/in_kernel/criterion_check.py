"""Whether a step's criterion holds: what it names is looked up as `spots` does, then plain values are compared.

Nothing of the user's runs; what would have to run is not known. Known libraries tell soon whether numbers fit.
"""

from __future__ import annotations

import ast
import operator
import warnings
from typing import Any

from pure_eval import CannotEval, Evaluator
from pure_eval.utils import is_standard_types, of_standard_types

from stepper.diagnosis.in_kernel.expression_values import SCALARS, Values, own_labels
from stepper.kernels.in_kernel.safe_inspect import (
    is_a,
    is_library_object,
    is_one_of,
    name_of,
    shell,
    shorten,
    top_module,
)

# items: shown; looked at one by one; by their library
FEW, MANY, SOON = 20, 10_000, 1_000_000
# characters; bits of a number
SHOWN, BITS, DEEP = 60, 4096, {"check_dict_values": True, "deep": True}
FUNCTIONS = {
    each.__name__: each
    for each in (abs, len, list, max, min, round, set, sorted, sum, tuple)
}
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
COMPARED: dict[Any, Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
BLANKS = {"isna", "isnull", "notna", "notnull"}  # of any frame or column
REDUCED = {"all", "any", "max", "mean", "min", "sum"}  # of numbers


def holds(text: str) -> dict[str, Any] | None:
    """Whether an expression is True or False, and the values that it compares; None where that is not known."""
    values = Known({**FUNCTIONS, **shell.user_ns})
    try:
        # what a library says of it is no output of the cell's
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = values[ast.parse(text, mode="eval").body]
    except Exception:  # not known, or a library's own word: there is no such label
        return None
    return (
        {"holds": found, "values": list(values.seen.items())[:3]}
        if type(found) is bool
        else None
    )


class Known(Values):
    def __init__(self, names: Any) -> None:
        super().__init__(names)
        self.seen: dict[str, str] = {}  # what is compared, as it is written → its value

    def __getitem__(self, node: Any) -> Any:
        if isinstance(node, ast.Call):
            return plain(self.called(node))
        if isinstance(node, ast.BinOp):
            if not isinstance(node.op, ARITHMETIC) or not all(
                is_number(self[side]) for side in (node.left, node.right)
            ):
                raise CannotEval
            return Evaluator.__getitem__(self, node)
        if isinstance(node, ast.Subscript) and is_a(owner := self[node.value], dict):
            # a key of the user's own would be asked
            of_standard_types(owner, check_dict_values=False, deep=True)
        return (
            self.compared(node)
            if isinstance(node, ast.Compare)
            else plain(super().__getitem__(node))
        )

    def compared(self, node: ast.Compare) -> Any:
        left, right, how = self[node.left], self[node.comparators[0]], node.ops[0]
        for side in (node.left, *node.comparators):
            value, written = (
                self[side],
                isinstance(side, (ast.Constant, ast.Tuple, ast.List, ast.Set)),
            )
            several = (
                is_one_of(type(value), (tuple, list))
                and len(value) < FEW
                and is_standard_types(value, **DEEP)
            )
            if not written and (several or is_one_of(type(value), SCALARS)):
                self.seen[shorten(ast.unparse(side), SHOWN)] = shorten(
                    repr(value), SHOWN
                )
        if (
            len(node.ops) == 1
            and isinstance(how, (ast.In, ast.NotIn))
            and is_pandas(right)
        ):
            of_standard_types(left, **DEEP)
            own_labels(right)
            return bool(left in right) is isinstance(how, ast.In)  # a column, a label
        if (
            len(node.ops) == 1
            and type(how) in COMPARED
            and numeric(left)
            and is_number(right)
        ):
            return COMPARED[type(how)](left, right)  # item by item
        return Evaluator.__getitem__(self, node)

    def called(self, node: ast.Call) -> Any:
        if node.keywords:
            raise CannotEval
        if isinstance(node.func, ast.Attribute):
            owner, asked = self[node.func.value], node.func.attr
            blanks = asked in BLANKS and is_pandas(owner) and few(owner)
            if node.args or not (blanks or (asked in REDUCED and numeric(owner))):
                raise CannotEval
            return getattr(owner, asked)()
        function, given = self[node.func], [self[each] for each in node.args]
        shape = (
            getattr(given[0], "shape", None)
            if len(given) == 1 and is_library_object(given[0])
            else None
        )
        if (
            not isinstance(shape, tuple)
            or not shape
            or not is_one_of(function, FUNCTIONS.values())
        ):
            return Evaluator.__getitem__(self, node)
        if function is len:
            return shape[0]
        if len(shape) > 1 or not shape[0] <= MANY:
            raise CannotEval
        return function(of_standard_types(given[0].tolist(), **DEEP))


def plain(value: Any) -> Any:
    """A library's number as Python's, its dtype as that one's name; all else as it is."""
    if not is_library_object(value):
        return value
    if (
        top_module(type(value)) in ("numpy", "torch")
        and getattr(value, "shape", None) == ()
        and hasattr(value, "item")
    ):
        return value.item()
    return (
        value.name
        if "dtype" in name_of(type(value)).lower() and type(value.name) is str
        else value
    )


def is_number(value: Any) -> bool:
    return is_one_of(type(value), (bool, int, float)) and not (
        type(value) is int and value.bit_length() > BITS
    )


def is_pandas(value: Any) -> bool:
    return is_library_object(value) and top_module(type(value)) == "pandas"


def few(value: Any) -> bool:
    count = getattr(value, "size", None)
    return type(count) is int and count <= SOON


def numeric(value: Any) -> bool:
    """Whether it is an array, a column or a frame of numbers, of which its library tells soon."""
    if (
        not is_library_object(value)
        or top_module(type(value)) not in ("numpy", "pandas")
        or not few(value)
    ):
        return False
    kinds = (
        [value.dtype]
        if hasattr(value, "dtype")
        else list(getattr(value, "dtypes", ["?"]))
    )
    return all(
        is_library_object(kind) and getattr(kind, "kind", "O") in "biuf"
        for kind in kinds
    )
