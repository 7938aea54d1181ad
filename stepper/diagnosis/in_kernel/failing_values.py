"""The values on the failing lines, and the search for the value that caused an error.

A row is a name, an attribute or an item on a failing line, with its value. The rows of
the failing expression come first. The error message selects the searches. A search
looks in the values for an item that explains the error, such as a quoted text, a
missing or negative number, an item of the wrong type, or a duplicate.
"""

from __future__ import annotations

import ast
import collections
import math
import os
import re
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from stepper.diagnosis.in_kernel.expression_values import UserFrame
from stepper.diagnosis.in_kernel.last_assignment import AssignmentLine, find_assignment
from stepper.diagnosis.in_kernel.value_summary import (
    CALLABLE,
    describe_folder,
    describe_value,
    format_label,
    format_plain_value,
    get_class_name,
    get_length,
    is_data,
)
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.safe_inspect import (
    call_safely,
    get_own_attributes,
    get_qualname,
    is_a,
    is_library_object,
    is_one_of,
    is_pandas,
    list_class_names,
    shorten,
)

MAX_ROWS = 24
MAX_DESCRIBED_ROWS = 8
MAX_SOURCES = 3
MAX_ITEMS = 20_000
MAX_DEPTH = 4
MAX_CELLS = 500_000
# Characters of an expression, a path, a label or the name of a class, and a line.
TEXT_LIMIT = 60
PATH_LIMIT = 80
LABEL_LIMIT = 40
LINE_LIMIT = 250
SOURCE_LIMIT = 100  # of a string in an expression
KEY_LIMIT = 30  # of a key of a dict
DUPLICATE_LIMIT = 80
OUTPUT_BYTES = 4000  # of an output whose last line is needed
MAX_QUOTED_TEXTS = 5
# Attributes of an exception that contain the output of a process or server.
OUTPUT_ATTRIBUTES = ("stderr", "output", "stdout", "body", "response", "reason")
SEQUENCES = (list, tuple)
# Functions whose pattern is relative to the current folder.
GLOB_FUNCTIONS = {
    "glob",
    "iglob",
    "glob.glob",
    "glob.iglob",
    "Path().glob",
    "Path().rglob",
}
CONTAINER_NAMES = ("dict", "list", "tuple", "Series", "ndarray")
# Patterns of messages about functions, items of a wrong type, missing values, negative
# numbers and duplicates.
FUNCTION_WORDS = re.compile(
    r"\b(function|method|module)\b|function_or_method|not callable|not subscriptable"
)
WRONG_TYPE_WORDS = re.compile(
    r"operand|supported|instance|has no len|object is not|must be|concat|unhash"
)
ARGUMENT_WORDS = re.compile(r"indices|keyword|positional")
MISSING_WORDS = re.compile(r"\bNaN\b|\bNAs?\b|missing values|finite|\bNaT\b|infinity")
NEGATIVE_WORDS = re.compile(r"(?i)negative|positive|domain")
DUPLICATE_WORDS = re.compile(r"(?i)duplicate|unique|truth value|multiple")
NOT_JSON = re.compile(r"type (\w+) is not JSON")
QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"([^\"\n]*)\"")
MISSING_CLASSES = ("NAType", "NaTType")  # of pandas
CLASS_NAME = re.compile(r"[A-Za-z_][\w.]*")

# Takes a value and returns a text on one of its items, or an empty string. The text
# begins with the path of the item.
Search = Callable[[Any], str]
# "text" is a sentence on a value, "bound" the last assignment of the value or None.
Finding = dict[str, Any]


class Item(NamedTuple):
    """An item of a nested container."""

    path: str  # such as `['a'][2]`
    group: str  # the path without positions, equal for items of the same list
    value: Any

    @property
    def kind(self) -> str:
        """The name of the item's class."""
        return get_qualname(type(self.value))

    def nest(self, child: Item) -> Item:
        """Return a child of this item with its full path."""
        path = self.path + child.path
        group = self.group + child.group
        return Item(path, group, child.value)


@dataclass(frozen=True, eq=False)
class Row:
    """An expression on a failing line, with its value."""

    text: str
    value: Any
    node: Any
    user_frame: UserFrame
    caller: UserFrame | None


def make_finding(text: str, bound: AssignmentLine | None = None) -> Finding:
    """Return a finding with a text and the last assignment of the described value."""
    return {"text": text, "bound": bound}


def iterate_with_callers(
    user_frames: list[UserFrame],
) -> Iterator[tuple[UserFrame, UserFrame | None]]:
    """Return pairs of a frame and its caller. The caller of the last frame is None."""
    callers = [*user_frames[1:], None]
    return zip(user_frames, callers)


def build_rows(user_frames: list[UserFrame], message: str) -> list[Row]:
    """Return the rows of the failing lines, the innermost line first.

    Functions and modules are included if the message is about a function or module.
    """
    callables: tuple[type, ...] = ()
    if FUNCTION_WORDS.search(message):
        callables = (*CALLABLE, types.ModuleType, type)
    rows: dict[str, Row] = {}
    for user_frame, caller in iterate_with_callers(user_frames):
        for text, value, node in user_frame.iterate_values():
            if len(rows) >= MAX_ROWS:
                break
            if text in rows:
                continue
            if not is_row_value(value, node, callables):
                continue
            rows[text] = Row(
                text=shorten(text, TEXT_LIMIT),
                value=value,
                node=node,
                user_frame=user_frame,
                caller=caller,
            )
    return list(rows.values())


def is_row_value(value: Any, node: Any, callables: tuple[type, ...]) -> bool:
    """Return whether a value is data, or a function or module that is not called here.

    `node` is the expression of the value. Only instances of `callables` count as
    functions and modules.
    """
    if is_data(value):
        return True
    if is_called(node):
        return False
    kind = type(value)
    return is_one_of(kind, callables)


def is_called(node: Any) -> bool:
    """Return whether an expression is the function of a call."""
    parent = getattr(node, "parent", None)  # set by `executing`
    if isinstance(parent, ast.Call):
        return parent.func is node
    return False


def describe_missing_call(value: Any) -> str:
    """Return the note that a function is not called, or "" for any other value."""
    if is_a(value, CALLABLE):
        return ", which is not called here"
    return ""


def find_explanations(error: BaseException, rows: list[Row]) -> Iterator[Finding]:
    """Yield findings on an error's outputs, and on items that explain the error."""
    message = get_message(error)
    yield from find_error_outputs(error, message)
    error_names = list_error_names(error)
    for search in select_searches(message, error_names):
        for row in rows:
            text = call_safely(search, row.value)
            if text:
                # The text continues the expression and contains the second backtick.
                yield make_finding(f"`{row.text}{text}")
                break


def find_error_outputs(error: BaseException, message: str) -> Iterator[Finding]:
    """Yield findings with the last lines of the outputs in an error, such as `stderr`.

    Lines that the error's message contains are left out.
    """
    for name, value in get_own_attributes(error).items():
        if name not in OUTPUT_ATTRIBUTES:
            continue
        line = find_last_line(name, value)
        if line and line not in message:
            short_line = shorten(line, LINE_LIMIT)
            yield make_finding(f"the error's {name} ends with: {short_line}")


def list_error_names(error: BaseException) -> set[str]:
    """Return the names of an error's class and base classes, without modules."""
    names = set()
    for class_name in list_class_names(type(error)):
        _, _, short_name = class_name.rpartition(".")
        names.add(short_name)
    return names


def find_last_line(name: str, value: Any) -> str:
    """Return the last line of the output in an error's attribute.

    Return an empty string if the attribute contains no text.
    """
    output = value
    if name == "response":  # the response of the package requests
        output = get_own_attributes(value).get("_content", value)
    if type(output) is bytes:
        end = output[-OUTPUT_BYTES:]
        output = end.decode("utf-8", "replace")
    if type(output) is not str:
        return ""
    lines = output.strip().splitlines()
    if not lines:
        return ""
    return lines[-1].strip()


def describe_rows(
    error: BaseException,
    rows: list[Row],
    user_frames: list[UserFrame],
) -> Iterator[Finding]:
    """Yield findings that describe the rows.

    Values whose class the error message mentions come first. A finding includes the
    last assignment, and the values that it used, if the class is mentioned or the value
    is empty. The same applies to the first row if the error is an IndexError or
    StopIteration. If the error is about unpacking, the last finding describes the
    values from which the unpacked value was computed.
    """
    message = get_message(error)
    mentioned_rows = []
    other_rows = []
    for row in rows:
        if is_mentioned(row.value, message):
            mentioned_rows.append(row)
        else:
            other_rows.append(row)
    # `a.b` says more than `a`.
    all_texts = " ".join(row.text for row in rows)
    other_rows.sort(key=lambda row: f"{row.text}." in all_texts)
    selected_rows = mentioned_rows + other_rows
    is_lookup_error = is_a(error, (IndexError, StopIteration))
    for row in selected_rows[:MAX_DESCRIBED_ROWS]:
        is_empty = get_length(row.value) == 0
        is_looked_up = is_lookup_error and row is selected_rows[0]
        if row in mentioned_rows or is_empty or is_looked_up:
            yield describe_row_with_sources(row)
            continue
        description = describe_row(row)
        yield make_finding(description)
    statement = user_frames[0].statement if user_frames else None
    if "unpack" in message and statement is not None:
        sources = describe_sources(statement, user_frames[0])
        if sources:
            yield make_finding(f"the unpacked value comes from {sources}")


def describe_row(row: Row) -> str:
    """Return an expression with the description of its value."""
    description = describe_value(row.value)
    note = describe_missing_call(row.value)
    return f"`{row.text}`: {description}{note}"


def describe_row_with_sources(row: Row) -> Finding:
    """Return a finding on a value and the values that its last assignment used."""
    text = describe_row(row)
    bound, assigned_value = find_assignment(row.node, row.user_frame, row.caller)
    if assigned_value is None:
        assigned_value = row.node
    sources = describe_sources(assigned_value, row.user_frame, row.text)
    if sources:
        text += f"; with {sources}"
    return make_finding(text, bound)


def is_mentioned(value: Any, message: str) -> bool:
    """Return whether a message mentions a value's class, as in "a str" or "'str'"."""
    name = "NoneType"
    if value is not None:
        name = get_class_name(value)
    word = re.escape(name)
    pattern = rf"(?:'|\b(?:a|an|of|[Tt]his) ){word}\b"
    match = re.search(pattern, message)
    return match is not None


def describe_sources(node: ast.AST, user_frame: UserFrame, excluded: str = "") -> str:
    """Return descriptions of the values and glob patterns in an expression, as text.

    The expression `excluded` is left out. Return an empty string if there is nothing to
    describe.
    """
    nodes = list(ast.walk(node))
    descriptions: dict[str, str] = {}
    for text, value, _ in user_frame.iterate_values(nodes):
        if len(descriptions) >= MAX_SOURCES:
            break
        if value is None or text == excluded:
            continue
        if is_data(value):
            short_text = shorten(text, TEXT_LIMIT)
            description = describe_source(value)
            descriptions[text] = f"`{short_text}`: {description}"
    for part in nodes:
        folder = find_pattern_folder(part)
        description = describe_folder(folder)
        if description:
            short_folder = shorten(folder, PATH_LIMIT)
            descriptions[folder] = f"{short_folder} is {description}"
    return ", ".join(descriptions.values())


def find_pattern_folder(node: ast.AST) -> str:
    """Return the folder of a glob pattern, or an empty string for other expressions.

    A string with `*` and without a folder, or with the folder `/`, is often a regular
    expression. Such a string counts only as an argument of one of GLOB_FUNCTIONS. A
    relative pattern of another method `glob` or `rglob` does not count, because the
    pattern may be relative to another folder. The same applies to a string that is
    joined to another path.
    """
    pattern = getattr(node, "value", None)
    if type(pattern) is not str or "*" not in pattern:
        return ""
    head = re.split(r"[*?[]", pattern, maxsplit=1)[0]
    folder = os.path.dirname(head)
    parent = getattr(node, "parent", None)  # set by `executing`
    if isinstance(parent, (ast.JoinedStr, ast.BinOp)):
        return ""
    function = ast.unparse(parent.func) if isinstance(parent, ast.Call) else ""
    if function == "join" or function.endswith((".join", ".joinpath")):
        return ""
    if function in GLOB_FUNCTIONS:
        return folder or "."
    is_relative = not os.path.isabs(folder)
    if folder == "/" or (is_relative and function.endswith((".glob", ".rglob"))):
        return ""
    return folder


def describe_source(value: Any) -> str:
    """Return the text of a string, or a description of any other value."""
    if type(value) is not str:
        return describe_value(value)
    return format_plain_value(value, SOURCE_LIMIT) or "str"


# Searches for the item that explains a message


def select_searches(message: str, error_names: set[str]) -> Iterator[Search]:
    """Yield the searches that fit an error's message, the most reliable first."""
    texts = find_quoted_texts(message)
    if "ValueError" in error_names and texts:
        test = partial(is_quoted, texts=texts)
        yield partial(find_first_item, test=test)
    if MISSING_WORDS.search(message):
        yield partial(find_first_item, test=is_missing)
    if NEGATIVE_WORDS.search(message):
        yield partial(find_first_item, test=is_negative)
    names = NOT_JSON.findall(message)
    if names:
        test = partial(is_named, names=names)
        yield partial(find_first_item, test=test)
    is_type_error = "TypeError" in error_names
    has_wrong_type = is_type_error and WRONG_TYPE_WORDS.search(message)
    if has_wrong_type and not ARGUMENT_WORDS.search(message):
        yield partial(find_odd_item, message=message)
    if DUPLICATE_WORDS.search(message):
        yield find_duplicate


def find_quoted_texts(message: str) -> set[str]:
    """Return the last MAX_QUOTED_TEXTS quoted texts of a message."""
    pairs = QUOTED.findall(message)
    texts: set[str] = set()
    for pair in pairs[-MAX_QUOTED_TEXTS:]:
        texts.update(pair)  # one of the two groups did not match
    texts.discard("")
    return texts


def is_quoted(item: Any, texts: set[str]) -> bool:
    """Return whether an item is a string in `texts`."""
    return type(item) is str and item in texts


def is_named(item: Any, names: list[str]) -> bool:
    """Return whether the class of an item has one of these names."""
    class_name = get_qualname(type(item))
    return class_name in names


def is_missing(item: Any) -> bool:
    """Return whether an item is None, NaN, infinite, or a missing value of pandas."""
    if is_a(item, float):  # includes NumPy's float64
        return not math.isfinite(item)
    if get_qualname(type(item)) in MISSING_CLASSES:
        return is_library_object(item)
    return item is None


def is_negative(item: Any) -> bool:
    """Return whether an item is a negative number."""
    if is_one_of(type(item), (int, float)):
        return bool(item < 0)
    return False


def iterate_items(value: Any) -> Iterator[Item]:
    """Yield a value and the items of nested lists, dicts and columns, breadth first.

    At most MAX_ITEMS items are yielded, down to MAX_DEPTH levels of nesting.
    """
    root = Item("", "", value)
    queue = collections.deque([(root, 0)])
    count = 0
    while queue and count < MAX_ITEMS:
        item, depth = queue.popleft()
        count += 1
        yield item
        remaining_count = MAX_ITEMS - count - len(queue)
        if depth >= MAX_DEPTH or remaining_count <= 0:
            continue
        children = list_children(item.value)
        for child in children[:remaining_count]:
            nested = item.nest(child)
            queue.append((nested, depth + 1))


def list_children(value: Any) -> list[Item]:
    """Return the items of a container, with paths relative to the container.

    Return an empty list for other values, and for a large table or array.
    """
    if type(value) is dict:
        return list_dict_children(value)
    if is_pandas(value, "DataFrame"):
        return list_columns(value)
    if is_pandas(value, "Series"):
        return list_series_children(value)
    values: Any = ()
    if is_one_of(type(value), SEQUENCES):
        values = value[:MAX_ITEMS]
    elif is_small_array(value):
        values = value[:MAX_ITEMS].tolist()
    children = []
    for number, item in enumerate(values):
        path = f"[{number}]"
        child = Item(path, "[]", item)
        children.append(child)
    return children


def list_dict_children(value: dict[Any, Any]) -> list[Item]:
    """Return the items of a dict as a list of `Item`."""
    children = []
    pairs = list(value.items())
    for key, item in pairs[:MAX_ITEMS]:
        label = format_plain_value(key, KEY_LIMIT, 0) or "…"
        path = f"[{label}]"
        group = path if is_a(key, str) else "[]"
        child = Item(path, group, item)
        children.append(child)
    return children


def list_columns(frame: Any) -> list[Item]:
    """Return the columns of a DataFrame, or an empty list if the DataFrame is large."""
    if frame.size > MAX_CELLS:
        return []
    children = []
    # By position, because a search for a label could call the user's `__eq__`.
    for index, name in enumerate(frame.columns):
        label = format_label(name)
        path = f"[{label}]"
        child = Item(path, path, frame.iloc[:, index])
        children.append(child)
    return children


def list_series_children(series: Any) -> list[Item]:
    """Return the first MAX_ITEMS items of a Series, or an empty list if it is large."""
    if len(series) > MAX_CELLS:
        return []
    children = []
    keys = series.index[:MAX_ITEMS]
    items = series.iloc[:MAX_ITEMS].tolist()
    for key, item in zip(keys, items):
        label = key
        if type(key) is not str:
            label = format_label(key)
        short_label = shorten(label, LABEL_LIMIT)
        path = f" at {short_label}"
        child = Item(path, "[]", item)
        children.append(child)
    return children


def is_small_array(value: Any) -> bool:
    """Return whether a value is a NumPy array that is not too large to search."""
    if not is_library_object(value):
        return False
    class_name = get_qualname(type(value))
    if class_name != "ndarray" or value.ndim == 0:
        return False
    return bool(value.size <= MAX_CELLS)


def find_first_item(value: Any, test: Callable[[Any], bool]) -> str:
    """Return a text on the first item that passes a test, with the number of matches.

    Return an empty string if no item passes the test.
    """
    matches = []
    for item in iterate_items(value):
        if item.path and test(item.value):
            matches.append(item)
    if not matches:
        return ""
    text = format_item(matches[0])
    count = len(matches)
    if count > 1:
        text += f", the first of {count:,} such items"
    return text


def format_item(item: Item) -> str:
    """Return the path and the value of an item.

    The text follows an opening backtick and the expression of the container.
    """
    path = shorten(item.path, PATH_LIMIT)
    text = format_plain_value(item.value, TEXT_LIMIT, depth=1)
    if text is None:
        return f"{path}` is of type {item.kind}"
    return f"{path}` is {text} ({item.kind})"


def find_odd_item(value: Any, message: str) -> str:
    """Return a text on an item whose type is not the most frequent type in its list.

    The message must mention the type of the item. If most items are containers or
    columns, no item is reported. Return an empty string if there is no such item.
    """
    names = set()
    for name in CLASS_NAME.findall(message):
        _, _, short_name = name.rpartition(".")
        names.add(short_name)
    for items in group_items(value):
        kinds = list_kinds(items)
        odd_kinds = names.intersection(kinds[1:])
        if not odd_kinds or kinds[0] in CONTAINER_NAMES:
            continue
        odd_items = [item for item in items if item.kind in odd_kinds]
        text = format_item(odd_items[0])
        usual_kind = shorten(kinds[0], LABEL_LIMIT)
        usual_count = sum(item.kind == kinds[0] for item in items)
        verb = "is" if usual_count == 1 else "are"
        return (
            f"{text}; {usual_count:,} of the {len(items):,} items {verb} {usual_kind}"
        )
    return ""


def group_items(value: Any) -> list[list[Item]]:
    """Return the items grouped by list or column.

    The last group contains the items of all lists, dicts and arrays, because each value
    of a dict has its own group.
    """
    groups: dict[str, list[Item]] = {}
    subscripted: list[Item] = []
    for item in iterate_items(value):
        group = groups.setdefault(item.group, [])
        group.append(item)
        if "[" in item.path:
            subscripted.append(item)
    return [*groups.values(), subscripted]


def list_kinds(items: list[Item]) -> list[str]:
    """Return the class names of items, the most frequent first."""
    counts = collections.Counter(item.kind for item in items)
    return [name for name, _ in counts.most_common()]


def find_duplicate(value: Any) -> str:
    """Return a text on the most frequent index label of a table, or item of a list.

    Return an empty string if there are no duplicates.
    """
    items: Any = []
    is_table = is_pandas(value, "NDFrame")
    if is_table:
        items = value.index[:MAX_ITEMS].tolist()
    elif is_one_of(type(value), SEQUENCES):
        items = value[:MAX_ITEMS]
    counts = collections.Counter[str]()
    for item in items:
        text = format_plain_value(item, DUPLICATE_LIMIT, 1)
        if text and "…" not in text:
            counts[text] += 1
    if not counts:
        return ""
    [(text, count)] = counts.most_common(1)
    if count == 1:
        return ""
    if is_table:
        return f"` has {count} rows with the label {text}"
    return f"` contains {text} {count} times"
