"""Explanations of missing keys and attributes.

An explanation names the object that lacks the key or attribute, and the most similar
keys or attributes of the object.
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from pure_eval import CannotEval

from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    select_public,
)
from stepper.diagnosis.in_kernel.expression_values import UserFrame, get_columns
from stepper.diagnosis.in_kernel.failing_values import (
    Finding,
    describe_missing_call,
    describe_sources,
    iterate_with_callers,
    make_finding,
)
from stepper.diagnosis.in_kernel.import_errors import (
    explain_changed_file,
    find_loaded_modules,
)
from stepper.diagnosis.in_kernel.last_assignment import find_assignment
from stepper.diagnosis.in_kernel.value_summary import (
    CALLABLE,
    describe_value,
    format_label,
    format_name,
    get_class_name,
    get_name,
)
from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.namespace_summary import (
    frame_labels,
    list_user_variables,
    removed_labels,
)
from stepper.kernels.in_kernel.safe_inspect import (
    get_class_dict,
    get_module,
    get_mro,
    get_own_attributes,
    get_qualname,
    get_top_module,
    is_a,
    is_one_of,
    is_pandas,
    missing,
    peek,
    shorten,
)

MAX_LISTED = 30  # attributes that are all listed
MAX_LABELS = 5000  # of an object, in the order of the object
MAX_NAMES = 3  # missing keys of one error
# Characters of a name or expression, of a list of keys, and of a nested list.
NAME_LIMIT = 80
LIST_LIMIT = 300
NESTED_LIST_LIMIT = 60
MAX_ATTRIBUTES = 5000  # that are compared with a name
# Names of variables in library functions that may refer to the object without the key.
HOLDERS = ("self", "obj", "frame", "df", "data", "left", "right", "mapping", "cls")
QUOTED = re.compile(r"(?<!\w)'([^']*)'(?!\w)")  # without apostrophes in words
PLAIN_KEYS = (str, int, float, bool)
PANDAS_ROWS = ("loc", "at")
PANDAS_ROW_METHODS = ("drop", "xs")

# Takes a frame and returns the nodes of its failing line to explain.
SelectNodes = Callable[[UserFrame], "list[Any]"]
# Takes a node, its frame and the caller's frame, and returns a finding on the node.
Explain = Callable[[Any, UserFrame, "UserFrame | None"], "Finding | None"]


def find_first_finding(
    select_nodes: SelectNodes,
    user_frames: list[UserFrame],
    explain: Explain,
) -> Finding | None:
    """Return the first finding on the selected nodes of the failing lines, or None."""
    for user_frame, caller in iterate_with_callers(user_frames):
        for node in select_nodes(user_frame):
            with suppress(CannotEval):
                finding = explain(node, user_frame, caller)
                if finding:
                    return finding
    return None


# Keys


@dataclass
class Lookup:
    """A lookup of a key in an object."""

    value: Any  # the object
    key: Any
    expression: str = ""  # source of the object, or empty if unknown
    in_rows: bool = False  # in the rows of a DataFrame, not in its columns
    by_value: bool = False  # among the values of an Enum, not among its names

    def __post_init__(self) -> None:
        """Set the attributes that depend on the class of the object."""
        self.is_frame = is_pandas(self.value, "DataFrame")
        self.in_rows = self.in_rows and self.is_frame
        self.is_plain_key = is_one_of(type(self.key), PLAIN_KEYS)

    def list_labels(self) -> list[Any] | None:
        """Return the first keys of the object, at most MAX_LABELS.

        Return None if the object has no lookup by key.
        """
        if self.in_rows:
            return list_first_labels(self.value.index)
        return list_labels(self.value, by_value=self.by_value)

    def is_key_of_dict(self) -> bool:
        """Return whether the object is a dict that has the key."""
        if not self.is_plain_key or not is_a(self.value, dict):
            return False
        return self.key in dict.keys(self.value)


def explain_key_error(
    error: BaseException,
    user_frames: list[UserFrame],
) -> Finding | None:
    """Return a finding on the object that lacks a key, or None.

    The object is the value of an expression on a failing line, or of a variable in the
    library function that raised the error.
    """
    key = None
    arguments = peek(error, "args")
    if type(arguments) is tuple and arguments:
        key = arguments[0]
    by_value = not is_a(error, KeyError)  # `Color(3)` of an Enum

    def explain(
        node: Any,
        user_frame: UserFrame,
        caller: UserFrame | None,
    ) -> Finding | None:
        """Return a finding if the value of an expression lacks the key."""
        looked_up = find_lookup_object(node, key)
        lookup = Lookup(
            value=user_frame.values[looked_up.node],
            key=key,
            expression=ast.unparse(looked_up.node),
            in_rows=looked_up.in_rows,
            by_value=by_value,
        )
        return explain_lookup(lookup)

    finding = find_first_finding(list_lookup_nodes, user_frames, explain)
    if finding:
        return finding
    for value in list_library_values(error):
        if value is None:
            continue
        lookup = Lookup(value, key)
        finding = explain_lookup(lookup)
        if finding:
            return finding
    return None


def list_library_values(error: BaseException) -> list[Any]:
    """Return the values of the variables in HOLDERS that library functions use.

    Only the functions below the last frame of the user's code are inspected, the
    innermost function first. The value of a missing variable is None.
    """
    values: list[Any] = []
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        trace = trace.tb_next
        if is_user_file(frame.f_code.co_filename):
            values = []
            continue
        names = frame.f_locals
        values = [*map(names.get, HOLDERS), *values]
    return values


def list_lookup_nodes(user_frame: UserFrame) -> list[Any]:
    """Return the expressions of a line in which a key may have been looked up.

    Examples are `x` in `x[…]`, `"%(…)s" % x`, `x.pop(…)`, `"…".format(**x)` and
    `f(**x)`.
    """
    nodes: list[Any] = []
    for node in user_frame.nodes:
        if isinstance(node, ast.Subscript):
            nodes.append(node.value)
        elif isinstance(node, ast.BinOp):
            nodes.append(node.right)
        elif isinstance(node, ast.Call):
            nodes += list_call_nodes(node)
    return nodes


def list_call_nodes(call: ast.Call) -> list[Any]:
    """Return the expressions of a call in which a key may have been looked up."""
    function: Any = call.func
    if isinstance(function, ast.Attribute):
        function = function.value
    nodes = [function]
    for keyword in call.keywords:
        if keyword.arg is None:
            nodes.append(keyword.value)
    nodes += call.args[:1]
    return nodes


class LookupObject(NamedTuple):
    """The expression of an object in which a key was looked up.

    `in_rows` is whether the key was looked up in the rows of a DataFrame.
    """

    node: Any
    in_rows: bool = False


def find_lookup_object(node: Any, key: Any) -> LookupObject:
    """Return the expression of the object in which a key was looked up.

    `node` is a result of `list_lookup_nodes`. For `df.loc[…]` and `df.drop(…)`, the
    object is `df`, whose rows were searched unless the key selects columns.
    """
    parent: Any = getattr(node, "parent", None)  # set by `executing`
    is_subscripted = isinstance(parent, ast.Subscript)
    if is_subscripted and get_attribute_name(node) in PANDAS_ROWS:
        in_columns = is_column_key(parent.slice, key)
        return LookupObject(node.value, not in_columns)
    method = get_attribute_name(parent)
    if method not in PANDAS_ROW_METHODS:
        return LookupObject(node)
    call = getattr(parent, "parent", None)
    if not isinstance(call, ast.Call):
        return LookupObject(node)
    in_columns = selects_columns(call)
    return LookupObject(node, not in_columns)


def get_attribute_name(node: Any) -> str:
    """Return `b` for `a.b`, and an empty string for other expressions."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return ""


def is_column_key(subscript: Any, key: Any) -> bool:
    """Return whether a key is in the second part of `df.loc[rows, columns]`.

    `subscript` is the node of `rows, columns`.
    """
    if not isinstance(subscript, ast.Tuple):
        return False
    if len(subscript.elts) != 2:
        return False
    source = ast.unparse(subscript.elts[1])
    labels = [repr(key)]
    if type(key) is str:  # the message may quote several labels
        labels += re.findall(r"'[^']*'", key)
    return any(label in source for label in labels)


def selects_columns(call: ast.Call) -> bool:
    """Return whether a call has an argument that selects the columns of a DataFrame."""
    arguments = {}
    for keyword in call.keywords:
        arguments[keyword.arg] = getattr(keyword.value, "value", None)
    if "columns" in arguments:
        return True
    return arguments.get("axis") in (1, "columns")


def explain_lookup(lookup: Lookup) -> Finding | None:
    """Return a finding with the keys that are most similar to a missing key.

    Return None if the object has the key or has no lookup by key.
    """
    labels = lookup.list_labels()
    if labels is None:
        return None
    if lookup.is_plain_key and contains_label(labels, lookup.key):
        return None
    if len(labels) == MAX_LABELS and lookup.is_key_of_dict():
        return None
    texts = {}
    for label in labels[::-1]:  # the first of equal labels replaces the others
        text = format_label(label)
        texts[unquote(text)] = text
    key_text = format_key(lookup)
    quoted = QUOTED.findall(key_text)
    if quoted and all(name in texts for name in quoted):
        return None  # the message quotes keys that this object has
    names = quoted or [key_text]
    names = names[:MAX_NAMES]
    lost = None
    if not lookup.in_rows:
        lost = find_lost_label(lookup.value, names)
    if lost:
        return describe_lost_label(lookup, labels, lost)
    similar = find_similar_labels(lookup, names, texts)
    return describe_missing_key(lookup, labels, similar)


def describe_lost_label(
    lookup: Lookup,
    labels: list[Any],
    lost: dict[str, Any],
) -> Finding:
    """Return a finding on a DataFrame that lost the searched column in a run.

    `labels` are the labels of the DataFrame, and `lost` the facts of `find_lost_label`.
    """
    subject = describe_object(lookup)
    count = count_labels(lookup, labels)
    shown = join_labels(list(map(format_label, labels)))
    notes = "; ".join([shown, *describe_axis_names(lookup)])
    finding = make_finding(f"{subject} has {count}: {notes}")
    finding["lost"] = lost
    return finding


def describe_missing_key(
    lookup: Lookup,
    labels: list[Any],
    similar: list[str],
) -> Finding:
    """Return a finding on an object that lacks a key, with its similar keys.

    If no key is similar, the finding lists the keys of the object.
    """
    subject = describe_object(lookup)
    count = count_labels(lookup, labels)
    if similar:
        similar_text = ", ".join(similar)
        text = f"{subject} has {count}; most similar: {similar_text}"
    elif labels:
        descriptions = describe_labels(lookup.value, labels)
        shown = join_labels(descriptions)
        text = f"{subject} has {count}: {shown}"
    else:
        text = f"{subject} is empty"
    sentences = [text, *describe_axis_names(lookup)]
    other_axis = describe_other_axis(lookup)
    if other_axis:
        sentences.append(other_axis)
    return make_finding("; ".join(sentences))


def unquote(text: str) -> str:
    """Return a label without its quotes."""
    if text.startswith(("'", '"')):
        return text[1:-1]
    return text


def format_key(lookup: Lookup) -> str:
    """Return the key of a lookup as text.

    The key of a pandas error can be a message that quotes several keys.
    """
    if lookup.is_plain_key:
        return str(lookup.key)
    return format_label(lookup.key)


def describe_object(lookup: Lookup) -> str:
    """Return the expression and the class of a lookup's object, for a message."""
    value = lookup.value
    kind = get_class_name(value)
    if is_pandas(value, "Series"):
        kind = f"{kind} with an index of dtype {value.index.dtype}"
    elif is_pandas(value, "Index"):
        kind = f"{kind} of dtype {value.dtype}"
    if not lookup.expression:
        return f"the {kind}"
    expression = shorten(lookup.expression, NAME_LIMIT)
    return f"`{expression}` ({kind})"


def find_similar_labels(
    lookup: Lookup,
    names: list[str],
    texts: dict[str, str],
) -> list[str]:
    """Return the labels that are most similar to the missing names.

    `texts` maps a label without quotes to the label with quotes, in reverse order.
    """
    similar = []
    candidates = list(texts)[::-1]
    for name in names:
        if name in texts:
            is_text = type(lookup.key) is str
            has_same_type = is_text and texts[name] == repr(name)
            if lookup.is_plain_key and not has_same_type:
                similar.append(f"{texts[name]} (of another type)")
            continue
        close_names = find_close_names(name, candidates)
        similar += [texts[close_name] for close_name in close_names]
    return similar


def describe_labels(value: Any, labels: list[Any]) -> list[str]:
    """Return the labels as text, with the keys of nested dicts."""
    nested = {}
    if type(value) is dict:
        for key, item in value.items():
            if type(item) is dict:
                label = format_label(key)
                nested[label] = item
    texts = []
    for label in labels:
        text = format_label(label)
        if text in nested:
            nested_labels = list(map(format_label, nested[text]))
            keys = join_items(nested_labels, NESTED_LIST_LIMIT)
            text += f" (dict: {keys})"
        texts.append(text)
    return texts


def join_labels(texts: list[str]) -> str:
    """Return formatted labels joined by commas, cut to about LIST_LIMIT characters."""
    joined = join_items(texts, LIST_LIMIT)
    if len(texts) < MAX_LABELS:
        return joined
    # The number of the other labels is unknown.
    shown, _, _ = joined.rpartition(" and ")
    return f"{shown} …"


def contains_label(labels: Iterable[Any], wanted: Any) -> bool:
    """Return whether labels contain a label with the type and value of `wanted`."""
    kind = type(wanted)
    same_kind = (label for label in labels if type(label) is kind)
    return any(label == wanted for label in same_kind)


def list_first_labels(axis: Any) -> list[Any]:
    """Return the first MAX_LABELS labels of an Index."""
    return list(axis[:MAX_LABELS].tolist())


def describe_axis_names(lookup: Lookup) -> list[str]:
    """Return clauses that say which axis or level has the key as its name.

    For example, a key is the name of the index and not a column.
    """
    if not lookup.is_plain_key:
        return []
    if get_top_module(type(lookup.value)) != "pandas":
        return []
    notes = []
    for axis in ("index", "columns"):
        index = getattr(lookup.value, axis, None)
        names = getattr(index, "names", ())
        if contains_label(names, lookup.key):
            label = format_label(lookup.key)
            role = "the name" if len(names) == 1 else "a level"
            notes.append(f"{label} is {role} of the {axis}")
    return notes


def describe_other_axis(lookup: Lookup) -> str:
    """Return a clause if the key is a label of the axis that was not searched.

    Return an empty string otherwise.
    """
    if not lookup.is_frame or not lookup.is_plain_key:
        return ""
    axis = lookup.value.index
    noun = "row label"
    if lookup.in_rows:
        axis = lookup.value.columns
        noun = "column"
    labels = list_first_labels(axis)
    if not contains_label(labels, lookup.key):
        return ""
    label = format_label(lookup.key)
    return f"{label} is a {noun}"


def find_lost_label(value: Any, names: list[str]) -> dict[str, Any] | None:
    """Return facts on the first of these columns that a run removed from a DataFrame.

    `now` is whether the current run removed the column. If not, `cell` is the execution
    count of the run. Return None if no column was removed.
    """
    if not is_pandas(value, "DataFrame"):
        return None
    variable = find_variable_name(value)
    current_labels = value.columns[:MAX_LABELS].tolist()
    # The columns after the previous run, and the runs that removed earlier columns.
    old_labels = frame_labels.get(variable, ())
    removed = removed_labels.get(variable, {})
    for name in names:
        if contains_label(current_labels, name):
            continue
        is_removed_now = name in old_labels
        if is_removed_now or name in removed:
            cell = 0 if is_removed_now else removed[name]
            return {
                "name": variable,
                "label": shorten(repr(name), NAME_LIMIT),
                "cell": cell,
                "now": is_removed_now,
            }
    return None


def find_variable_name(value: Any) -> str:
    """Return the name of a variable with this value, or an empty string."""
    for name, candidate in list_user_variables():
        if candidate is value:
            return shorten(name, NAME_LIMIT)
    return ""


def count_labels(lookup: Lookup, labels: list[Any]) -> str:
    """Return the number of labels with a noun, such as "3 columns".

    If the list of labels was cut to MAX_LABELS, the number is a lower bound.
    """
    value = lookup.value
    noun = "key"
    if is_a(value, type):
        noun = "member"
    elif lookup.in_rows or is_pandas(value, "Series"):
        noun = "row label"
    elif lookup.is_frame:
        noun = "column"
    elif is_pandas(value, "Index"):
        noun = "label"
    count = len(labels)
    plural = "" if count == 1 else "s"
    text = f"{count:,} {noun}{plural}"
    if count == MAX_LABELS:
        return f"at least {text}"
    return text


def list_labels(value: Any, *, by_value: bool) -> list[Any] | None:
    """Return the first keys of an object, or None if the object has no lookup by key.

    At most MAX_LABELS keys are returned, but all members of an Enum. If `by_value` is
    true, the keys of an Enum are the values of its members, as in `Color(3)`.
    """
    axis = get_columns(value)
    if is_pandas(value, "Index"):
        axis = value
    elif is_pandas(value, "Series"):
        axis = value.index
    if axis is not None:
        return list_first_labels(axis)
    if is_pandas(value, "BaseGroupBy"):
        return list_labels(value.obj, by_value=by_value)
    if is_a(value, type):
        return list_members(value, by_value=by_value)
    if is_a(value, dict):
        return list(dict.keys(value))[:MAX_LABELS]
    kind = type(value)
    if get_module(kind) == "os" and get_qualname(kind) == "_Environ":
        return list(value)[:MAX_LABELS]
    return None


def list_members(kind: Any, *, by_value: bool) -> list[Any] | None:
    """Return the names or values of an Enum's members, or None for other classes."""
    attributes = get_class_dict(kind)
    members = attributes.get("_member_map_")
    if type(members) is not dict:
        return None
    if by_value:
        members = attributes.get("_value2member_map_", ())
    return list(members)


# Attributes


def explain_attribute_error(
    error: BaseException,
    user_frames: list[UserFrame],
) -> Finding | None:
    """Return a finding on the object that lacks an attribute, or None.

    The finding contains similar attributes of the object.
    """
    message = get_message(error)
    _, _, message_end = message.rpartition("attribute")
    name = peek(error, "name") or find_quoted(message_end)
    if not name:
        return None

    def select_nodes(user_frame: UserFrame) -> list[Any]:
        """Return the expressions that get the attribute, or [None] if there is none."""
        nodes = []
        for node in user_frame.nodes:
            if isinstance(node, ast.Attribute) and node.attr == name:
                nodes.append(node)
        return nodes or [None]

    def explain(
        node: Any,
        user_frame: UserFrame,
        caller: UserFrame | None,
    ) -> Finding | None:
        """Return a finding on the object that lacks the attribute, or None."""
        object_node = None if node is None else node.value
        value = peek(error, "obj", missing)  # since Python 3.10
        if value is missing:
            if object_node is None:
                return None
            value = user_frame.values[object_node]
        return explain_missing_attribute(value, name, object_node, user_frame, caller)

    return find_first_finding(select_nodes, user_frames, explain)


def explain_missing_attribute(
    value: Any,
    name: str,
    object_node: Any,
    user_frame: UserFrame,
    caller: UserFrame | None,
) -> Finding | None:
    """Return a finding on an object that lacks an attribute, or None.

    `object_node` is the expression of the object, or None if the failing line does not
    contain the expression.
    """
    lost = find_lost_label(value, [name])
    if lost:
        description = describe_value(value)
        finding = make_finding(description)
        finding["lost"] = lost
        return finding
    if value is None:
        return None  # the description of the failing line's values covers None
    bound = None
    assigned_value = None
    if isinstance(object_node, (ast.Name, ast.Attribute)):
        bound, assigned_value = find_assignment(object_node, user_frame, caller)
    alternatives = describe_objects_with_attribute(value, name)
    alternatives += describe_similar_attributes(value, name)
    if not alternatives and not bound and not is_a(value, CALLABLE):
        return None
    if is_a(value, (types.ModuleType, type)):
        description = format_name(get_name(value))
    else:
        description = describe_value(value) + describe_missing_call(value)
    parts = [description, *alternatives]
    if bound and assigned_value is not None and not alternatives:
        expression = shorten(ast.unparse(object_node), NAME_LIMIT)
        sources = describe_sources(assigned_value, user_frame, expression)
        if sources:
            parts.append(f"`{expression}` comes from {sources}")
    text = "; ".join(parts)
    return make_finding(text, bound)


def describe_objects_with_attribute(value: Any, name: str) -> list[str]:
    """Return sentences on objects with the attribute that a module or class lacks.

    The attribute may be in a newer version of the module's file, in another module, or
    in a class inside the module or class.
    """
    if not is_a(value, (types.ModuleType, type)):
        return []
    own_name = get_name(value)
    module_name = own_name
    members: Any = get_own_attributes(value)
    if is_a(value, type):
        module_name = str(get_module(value))
        members = get_class_dict(value)
    sentences = []
    changed_file = explain_changed_file(module_name, name)
    if changed_file:
        sentences.append(changed_file)
    modules = find_loaded_modules(module_name, name)
    if modules:
        module_names = " and ".join(modules)
        sentences.append(f"`{name}` is in {module_names}")
    for attribute, member in members.items():
        if not is_a(member, type):
            continue
        if find_stored_attribute(member, name) is not None:
            short_name = shorten(attribute, NAME_LIMIT)
            sentences.append(f"`{own_name}.{short_name}` has `{name}`")
            break
    return sentences


def describe_similar_attributes(value: Any, wanted: str) -> list[str]:
    """Return sentences on the attributes and keys that are similar to a name.

    If no name is similar, return a sentence that lists all attributes or, if these are
    more than MAX_LISTED, all attributes except methods. Return an empty list if these
    are too many as well, or if the attribute exists.
    """
    names = list_attributes(value)
    if not wanted.startswith("_"):
        names = select_public(names)
    if wanted in names:
        return []  # the error is about the value of that attribute
    similar = find_close_names(wanted, names, cutoff=0.7)
    keys = []
    attributes = []
    for name in similar:
        if name.startswith("["):
            keys.append(name[1:-1])
        else:
            attributes.append(name)
    if keys and keys[0] == repr(wanted):
        return [f"the key {keys[0]} exists"]
    sentences = []
    if keys:
        joined_keys = ", ".join(keys)
        sentences.append(f"closest keys: {joined_keys}")
    if attributes:
        joined_attributes = ", ".join(attributes)
        sentences.append(f"closest attributes: {joined_attributes}")
    if sentences:
        return sentences
    data_names = select_data_names(value, names)
    for selected in (names, data_names):
        if 0 < len(selected) <= MAX_LISTED:
            joined = join_items(selected)
            return [f"attributes: {joined}"]
    return []


def select_data_names(value: Any, names: list[str]) -> list[str]:
    """Return the names in `names` that are not methods of an object."""
    kind = type(value)
    data_names = []
    for name in names:
        attribute = find_stored_attribute(kind, name)
        if not is_one_of(type(attribute), CALLABLE):
            data_names.append(name)
    return data_names


def list_attributes(value: Any) -> list[str]:
    """Return the names of an object's attributes, columns, and keys such as `['a']`."""
    names: list[Any] = []
    if is_a(value, types.ModuleType):
        names += object.__getattribute__(value, "__dict__")
    else:
        kind = value if is_a(value, type) else type(value)
        for base in get_mro(kind):
            names += get_class_dict(base)
        names += get_own_attributes(value)
        names += list_item_names(value)
    attributes = set()
    for name in names:
        if type(name) is str and not name.startswith("__"):
            short_name = shorten(name, NAME_LIMIT)
            attributes.add(short_name)
    return sorted(attributes)[:MAX_ATTRIBUTES]


def list_item_names(value: Any) -> list[Any]:
    """Return the columns of a DataFrame, or the keys of a dict such as `['a']`."""
    names: list[Any] = []
    columns = get_columns(value)
    if columns is not None:
        names += list_first_labels(columns)
    if is_a(value, dict):
        for key in dict.keys(value):
            if type(key) is str:
                names.append(f"[{key!r}]")
    return names


def find_stored_attribute(kind: Any, name: str) -> Any:
    """Return an attribute that a class defines or inherits, as stored in the class.

    Descriptors such as properties are not called. Return None if the class has no such
    attribute.
    """
    for base in get_mro(kind):
        attributes = get_class_dict(base)
        if name in attributes:
            return attributes[name]
    return None
