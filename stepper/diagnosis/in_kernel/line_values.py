"""The table of values on the failing lines, and the rule that reads it: the words of the message × their members.

A row is a name, an attribute or an item that the failing line holds, with its value, those of the failing expression
first. What a row has that the message speaks of comes before what it is: the first item that its words fit – a quoted
text, the name of a type, a missing or negative number, what stands twice.
"""

from __future__ import annotations

import ast
import collections
import re
import types
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable, Iterator

from stepper.diagnosis.in_kernel.expression_values import Spot
from stepper.diagnosis.in_kernel.last_assignment import Bound, binding
from stepper.diagnosis.in_kernel.value_summary import (
    CALLABLE,
    described,
    folder,
    is_data,
    kind_name,
    label,
    size,
    written,
)
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    class_names,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    name_of,
    own_names,
    shorten,
)

ROWS, TOLD, MADE_OF = 24, 8, 3
STORED = ("stderr", "output", "stdout", "body", "response", "reason")
FUNCTIONS = (
    r"\b(function|method|module)\b|function_or_method|not callable|not subscriptable"
)
ITEMS, DEPTH, CELLS = 20_000, 4, 500_000
# What messages say of items of a wrong kind, of those that are missing, of negative
# ones.
KINDS = r"operand|supported|instance|has no len|object is not|must be|concat|unhash"
OTHERS = "indices|keyword|positional"
ABSENT = r"\bNaN\b|\bNAs?\b|missing values|finite|\bNaT\b|infinity"
NEGATIVE = "(?i)negative|positive|domain"
TWICE = "(?i)duplicate|unique|truth value|multiple"
Leaf = tuple[str, str, Any]  # its path, the path without places, the item
# what a value has that the message speaks of, with the way there; '' where nothing
Search = Callable[[Any], str]
Finding = dict[str, Any]  # text, and where what it speaks of was bound last


@dataclass(frozen=True, eq=False)
class Row:
    text: str
    value: Any
    node: Any
    spot: Spot
    outer: Spot | None


def finding(text: str, where: Bound | None = None) -> Finding:
    return {"text": text, "bound": where}


def rows(places: list[Spot], said: str) -> list[Row]:
    """The values on the failing lines, innermost line first; functions and modules where the message speaks of them."""
    functions = (
        (*CALLABLE, types.ModuleType, type) if re.search(FUNCTIONS, said) else ()
    )
    table: dict[str, Row] = {}
    for spot, outer in zip(places, [*places[1:], None]):
        for text, value, node in spot.known():
            is_row = is_data(value) or (
                is_one_of(type(value), functions) and not is_called(node)
            )
            if is_row and len(table) < ROWS:
                table.setdefault(text, Row(shorten(text, 60), value, node, spot, outer))
    return list(table.values())


def is_called(node: Any) -> bool:
    """Whether an expression is what a call on its line calls."""
    above = getattr(node, "parent", None)  # which `executing` sets
    return isinstance(above, ast.Call) and above.func is node


def uncalled(value: Any) -> str:
    """What is said of a function or method whose value is used without a call."""
    return ", which is not called here" if is_a(value, CALLABLE) else ""


def telling(error: BaseException, table: list[Row]) -> Iterator[Finding]:
    """What the error stores beside its message, and what the values have that the message speaks of."""
    said, kinds = (
        get_message(error),
        {name.rsplit(".", 1)[-1] for name in class_names(type(error))},
    )
    for name, value in own_names(error).items():
        body = own_names(value).get("_content", value) if name == "response" else value
        text = body[-4000:].decode("utf-8", "replace") if type(body) is bytes else body
        lines = (
            [line.strip() for line in text.splitlines() if line.strip()]
            if type(text) is str
            else []
        )
        if lines and lines[-1] not in said and name in STORED:
            yield finding(f"its {name} ends with: {shorten(lines[-1], 250)}")
    for search in searches(said, kinds):
        found = ((row, call_safely(search, row.value)) for row in table)
        yield from [finding(f"`{row.text}{text}") for row, text in found if text][:1]


def held(
    error: BaseException, table: list[Row], places: list[Spot]
) -> Iterator[Finding]:
    """What the values are, first those of which the message speaks: with what they were made of and where."""
    said, names = get_message(error), " ".join(row.text for row in table)
    # what is told of `a.b` tells of `a`
    whole = {row.text for row in table if row.text + "." in names}
    spoken = [row for row in table if spoken_of(row.value, said)]
    others = [row for row in table if row not in spoken]
    others.sort(key=lambda row: row.text in whole)
    for number, row in enumerate([*spoken, *others][:TOLD]):
        value = row.value
        text = f"`{row.text}`: {described(value)}{uncalled(value)}"
        if (
            number < len(spoken)
            or size(value) == 0
            or (number == 0 and is_a(error, (IndexError, StopIteration)))
        ):
            where, made = binding(row.node, row.spot, row.outer)
            parts = made_of(made or row.node, row.spot, row.text)
            yield finding(text + (f"; with {parts}" if parts else ""), where)
        else:
            yield finding(text)
    parts = (
        made_of(places[0].statement, places[0]) if "unpack" in said and places else ""
    )
    if parts:
        yield finding(f"what is unpacked is made of {parts}")


def spoken_of(value: Any, said: str) -> bool:
    """Whether a message speaks of a value's class as the wrong one."""
    name = "NoneType" if value is None else kind_name(value)
    return bool(re.search(rf"(?:'|\b(?:a|an|of|[Tt]his) ){re.escape(name)}\b", said))


def made_of(made: ast.AST, spot: Spot, but: str = "") -> str:
    """What an expression was made of: values, the folder of a pattern."""
    nodes, values = list(ast.walk(made)), dict[str, str]()
    for text, value, _ in spot.known(nodes):
        if (
            value is not None
            and is_data(value)
            and text != but
            and len(values) < MADE_OF
        ):
            values[text] = (
                f"`{shorten(text, 60)}`: {(type(value) is str and written(value, 100)) or described(value)}"
            )
    for pattern in (node.value for node in nodes if isinstance(node, ast.Constant)):
        head = (
            pattern.split("*")[0].rpartition("/")[0] or "."
            if type(pattern) is str and "*" in pattern
            else ""
        )
        if folder(head):
            values[head] = f"{shorten(head, 80)} is {folder(head)}"
    return ", ".join(values.values())


# --- the item that is meant
# ----------------------------------------------------------------------------------------


def searches(said: str, kinds: set[str]) -> Iterator[Search]:
    """The searches that a message's words ask for, the surest first."""
    quotes = {
        text
        for pair in re.findall(r"'((?:[^'\\]|\\.)*)'|\"([^\"\n]*)\"", said)[-5:]
        for text in pair
        if text
    }
    if "ValueError" in kinds and quotes:
        yield partial(first, test=lambda item: type(item) is str and item in quotes)
    if re.search(ABSENT, said):
        yield partial(
            first,
            test=lambda item: (
                item is None or (type(item) is float and item - item != 0)
            ),
        )
    if re.search(NEGATIVE, said):
        yield partial(
            first, test=lambda item: is_one_of(type(item), (int, float)) and item < 0
        )
    if named := re.findall(r"type (\w+) is not JSON", said):
        yield partial(first, test=lambda item: name_of(type(item)) in named)
    if "TypeError" in kinds and re.search(KINDS, said) and not re.search(OTHERS, said):
        yield partial(odd_kind, said=said)
    if re.search(TWICE, said):
        yield twice


def leaves(value: Any) -> Iterator[Leaf]:
    """The items of nested lists, dicts and columns, nearest first."""
    todo: collections.deque[tuple[str, str, Any, int]] = collections.deque(
        [("", "", value, 0)]
    )
    count = 0
    while todo and count < ITEMS:
        path, group, item, depth = todo.popleft()
        count += 1
        yield path, group, item
        room = ITEMS - count - len(todo)  # no more is ever taken out
        if depth < DEPTH and room > 0:
            todo.extend(
                (path + step, group + like, below, depth + 1)
                for step, like, below in inner(item)[:room]
            )


def inner(item: Any) -> list[tuple[str, str, Any]]:
    """(step, step without its place, item) of what an item holds."""
    if type(item) is dict:
        pairs = [
            (key, f"[{written(key, 30, 0) or '…'}]", below)
            for key, below in list(item.items())[:ITEMS]
        ]
        return [
            (step, step if is_a(key, str) else "[]", below)
            for key, step, below in pairs
        ]
    if is_pandas(item, "DataFrame") and item.size <= CELLS and item.columns.is_unique:
        return [
            (f"[{label(name)}]", f"[{label(name)}]", item[name])
            for name in item.columns
        ]
    if is_pandas(item, "Series") and len(item) <= CELLS:
        keys = [
            shorten(key if type(key) is str else label(key), 40) for key in item.index
        ]
        return [(f" at {key}", "[]", below) for key, below in zip(keys, item.tolist())]
    array = (
        name_of(type(item)) == "ndarray"
        and is_library_object(item)
        and item.ndim > 0
        and item.size <= CELLS
    )
    items = (
        item[:ITEMS]
        if is_one_of(type(item), (list, tuple))
        else item.tolist()
        if array
        else []
    )
    return [(f"[{number}]", "[]", below) for number, below in enumerate(items)]


def first(value: Any, test: Callable[[Any], bool]) -> str:
    """Where the first item stands that a test fits, what it is, and how many more there are."""
    found = [(path, item) for path, _, item in leaves(value) if path and test(item)]
    more = f", {len(found):,} such items" if len(found) > 1 else ""
    return f"{where(*found[0])}{more}" if found else ""


def where(path: str, item: Any) -> str:
    text, kind = written(item, 60, 1), name_of(type(item))
    return f"{shorten(path, 80)}` is " + (
        f"{text} ({kind})" if text is not None else f"a {kind}"
    )


def odd_kind(value: Any, said: str) -> str:
    """For a message that names types: the first item of such a type among items of another."""
    named = {word.rsplit(".", 1)[-1] for word in re.findall(r"[A-Za-z_][\w.]*", said)}
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, group, item in leaves(value):
        groups.setdefault(group, []).append((path, item))
    of_all = [pair for group in groups.values() for pair in group if "[" in pair[0]]
    for items in [*groups.values(), of_all]:
        kinds = [
            kind
            for kind, _ in collections.Counter(
                name_of(type(item)) for _, item in items
            ).most_common()
        ]
        odd = [
            (path, item)
            for path, item in items
            if name_of(type(item)) in named.intersection(kinds[1:])
        ]
        if odd and kinds[0] not in ("dict", "list", "tuple"):
            return (
                f"{where(*odd[0])}; of {len(items):,} most are {shorten(kinds[0], 40)}"
            )
    return ""


def twice(value: Any) -> str:
    """Which label of a frame or series, or item of a list, stands more than once."""
    labels = value.index[:ITEMS].tolist() if is_pandas(value, "NDFrame") else []
    items = labels or (value[:ITEMS] if is_one_of(type(value), (list, tuple)) else [])
    texts = [
        text
        for text in (written(item, 80, 1) for item in items)
        if text and "…" not in text
    ]
    text, count = next(iter(collections.Counter(texts).most_common(1)), ("", 0))
    return (
        f"` has {count} {'rows with the label' if labels else 'times'} {text}"
        if count > 1
        else ""
    )
