"""What has no such key, attribute or parameter, and what it has that is nearest to the one asked for."""

from __future__ import annotations

import ast
import re
import types
from contextlib import suppress
from typing import Any, Callable

from pure_eval import CannotEval

from stepper.diagnosis.in_kernel.close_matches import (
    find_close_names,
    find_quoted,
    join_items,
    select_public,
)
from stepper.diagnosis.in_kernel.expression_values import DATA, Spot, columns
from stepper.diagnosis.in_kernel.import_facts import elsewhere, newer
from stepper.diagnosis.in_kernel.last_assignment import binding
from stepper.diagnosis.in_kernel.line_values import Finding, finding, made_of, uncalled
from stepper.diagnosis.in_kernel.value_summary import (
    CALLABLE,
    described,
    kind_name,
    label,
    named,
    shown_name,
)
from stepper.kernels.in_kernel.cell_sources import is_user_file
from stepper.kernels.in_kernel.exception_facts import get_message
from stepper.kernels.in_kernel.namespace_summary import (
    frame_labels,
    list_user_variables,
    removed_labels,
)
from stepper.kernels.in_kernel.safe_inspect import (
    class_dict_of,
    classes_of,
    is_a,
    is_one_of,
    is_pandas,
    missing,
    module_of,
    name_of,
    own_names,
    peek,
    shorten,
    top_module,
)
from stepper.kernels.in_kernel.signatures import describe_callable

FEW, LABELS, NAMES = 30, 5000, 800
# Of a library's own frames: the names under which they hold what may lack a key.
HOLDERS = ("self", "obj", "frame", "df", "data", "left", "right", "mapping", "cls")
# What is said of arguments that the function has not, or has too few of; not of what
# kind they are.
COUNTED = r"signature|argument(?! \d)(?!.*not support)|positional|keyword"
UNEXPECTED = r"unexpected keyword argument '([^']+)'"


def first(
    nodes: Callable[[Spot], list[Any]], places: list[Spot], tell: Callable[..., Any]
) -> Finding | None:
    for spot, outer in zip(places, [*places[1:], None]):
        for node in nodes(spot):
            with suppress(CannotEval):
                answer: Finding | None = tell(node, spot, outer)
                if answer:
                    return answer
    return None


# --- keys
# ------------------------------------------------------------------------------------------------------------


def key(error: BaseException, places: list[Spot]) -> Finding | None:
    """What has no such key: an expression on the line, or what the library's own frames hold."""
    given = peek(error, "args")
    wanted = given[0] if type(given) is tuple and given else None
    values = not is_a(error, KeyError)  # of an Enum: `Colour(3)`

    def nodes(spot: Spot) -> list[Any]:
        bases = [
            node
            for node in spot.nodes
            if isinstance(node, (ast.Subscript, ast.Call, ast.BinOp))
        ]
        return [part for node in bases for part in keyed(node)]

    def own(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        part, rows = row_owner(node, wanted)
        return lacking(spot.values[part], wanted, ast.unparse(part), rows, values)

    answer, trace, held = first(nodes, places, own), error.__traceback__, list[Any]()
    while trace is not None and not answer:
        names = trace.tb_frame.f_locals
        held = (
            []
            if is_user_file(trace.tb_frame.f_code.co_filename)
            else [*map(names.get, HOLDERS), *held]
        )
        trace = trace.tb_next
    return answer or next(
        filter(
            None, (lacking(value, wanted, "") for value in held if value is not None)
        ),
        None,
    )


def keyed(node: Any) -> list[Any]:
    """The expressions that were asked for a key: `x[…]`, `"%(…)s" % x`, `x.pop(…)`, `"…".format(**x)`, `f(**x)`."""
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.BinOp):
        return [node.right]
    given = [word.value for word in node.keywords if word.arg is None] + node.args[:1]
    # the owner first
    return [
        node.func.value if isinstance(node.func, ast.Attribute) else node.func,
        *given,
    ]


def row_owner(node: Any, wanted: Any) -> tuple[Any, bool]:
    """The expression that may lack a key, and whether rows of it were asked for: `df.loc[…]`, `df.drop(…)`."""
    above = getattr(node, "parent", None)  # which `executing` sets
    if (
        isinstance(node, ast.Attribute)
        and node.attr in ("loc", "at")
        and isinstance(above, ast.Subscript)
    ):
        part: Any = above.slice
        both = isinstance(part, ast.Tuple) and len(part.elts) == 2
        return node.value, not (
            both and any(map(names_of(part.elts[1]), asked(wanted)))
        )
    call = getattr(above, "parent", None)
    if (
        isinstance(above, ast.Attribute)
        and above.attr in ("drop", "xs")
        and isinstance(call, ast.Call)
    ):
        given = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        return node, "columns" not in given and given.get("axis") not in (1, "columns")
    return node, False


def asked(wanted: Any) -> list[str]:
    """The labels that a KeyError speaks of, as source: the key itself, or those that its message quotes."""
    quotes = re.findall(r"'[^']*'", wanted) if type(wanted) is str else []
    return [repr(wanted), *quotes]


def names_of(part: Any) -> Callable[[str], bool]:
    """Whether a part of a line names a label."""
    text = ast.unparse(part)
    return lambda name: name in text


def lacking(
    value: Any,
    wanted: Any,
    expression: str,
    rows: bool = False,
    values: bool = False,
) -> Finding | None:
    """Which keys a thing has that are nearest to the one wanted; None where it lacks nothing.

    Of `rows`, a frame's; of `values`, those of an Enum's members, not their names.
    """
    rows = rows and is_pandas(value, "DataFrame")
    labels = list(value.index[:LABELS].tolist()) if rows else labels_of(value, values)
    plain = is_one_of(type(wanted), (str, int, float, bool))
    if labels is None or (plain and holds(labels, wanted)):
        return None
    kind = kind_name(value)
    if is_pandas(value, "Series") or is_pandas(value, "Index"):
        kind = f"{kind} of {getattr(value, 'index', value).dtype}"
    of = f"`{shorten(expression, 80)}` ({kind})" if expression else f"the {kind}"
    texts = {
        text[1:-1] if text[:1] in "'\"" else text: text
        for text in map(label, labels[::-1])
    }
    near = []
    asked = str(wanted) if plain else label(wanted)
    quotes = re.findall(r"'([^']*)'", asked)
    if quotes and all(name in texts for name in quotes):
        return None  # the message names keys that this thing has
    names = (quotes or [asked])[:3]
    has = f"{of} has {counted_labels(value, labels, rows)}"
    lost = None if rows else lost_label(value, names)
    axes = [
        f"{label(wanted)} is the name of its {axis}"
        for axis in ("index", "columns")
        if top_module(type(value)) == "pandas"
        and plain
        and named_so(value, axis, wanted)
    ]
    if lost:
        known = "; ".join([join_items([*map(label, labels)], 300), *axes])
        return {**finding(f"{has}: {known}"), "lost": lost}
    for name in names:
        if name in texts and plain:
            near.append(f"{texts[name]} (of another type)")
        elif name not in texts:
            near += [texts[other] for other in find_close_names(name, [*texts][::-1])]
    near += axes
    other = f"; {label(wanted)} is a {other_axis(value, wanted, rows)}"
    other = other if plain and other_axis(value, wanted, rows) else ""
    if near:
        return finding(
            f"{of} has {', '.join(near)}; {counted_labels(value, labels, rows)} in all{other}"
        )
    below = (
        {label(key): item for key, item in value.items() if type(item) is dict}
        if type(value) is dict
        else {}
    )
    shown = [
        f"{text} (dict: {join_items([*map(label, below[text])], 60)})"
        if text in below
        else text
        for text in map(label, labels)
    ]
    if not labels:
        return finding(f"{of} is empty{other}")
    return finding(f"{has}: {join_items(shown, 300)}{other}")


def holds(labels: list[Any], wanted: Any) -> bool:
    return any(type(known) is type(wanted) and known == wanted for known in labels)


def other_axis(value: Any, wanted: Any, rows: bool) -> str:
    """What a label is that was sought among a frame's rows or columns, and is one of the other axis."""
    if not is_pandas(value, "DataFrame"):
        return ""
    axis, noun = (value.columns, "column") if rows else (value.index, "row label")
    return noun if holds(axis[:LABELS].tolist(), wanted) else ""


def lost_label(value: Any, wanted: list[str]) -> dict[str, Any] | None:
    """The column that a frame of the user's had before, and the run that changed the frame; None where it had none."""
    if not is_pandas(value, "DataFrame"):
        return None
    name = next(
        (shorten(name, 80) for name, held in list_user_variables() if held is value), ""
    )
    present = [known for known in value.columns[:LABELS].tolist() if type(known) is str]
    for text in wanted:
        if text in present:
            continue
        fact = {"name": name, "label": shorten(repr(text), 80)}
        if text in frame_labels.get(name, ()):
            return {**fact, "cell": 0, "now": True}
        if text in removed_labels.get(name, ()):
            return {**fact, "cell": removed_labels[name][text], "now": False}
    return None


def counted_labels(value: Any, labels: list[Any], rows: bool) -> str:
    """How many labels a thing was asked for, and what they are called."""
    noun = "key"
    if is_a(value, type):
        noun = "member"
    elif rows or is_pandas(value, "Series"):
        noun = "row label"
    elif is_pandas(value, "DataFrame"):
        noun = "column"
    elif is_pandas(value, "Index"):
        noun = "label"
    return f"{len(labels):,} {noun}{'s' * (len(labels) != 1)}"


def named_so(value: Any, axis: str, wanted: Any) -> bool:
    """Whether an axis of a frame or series, or a level of it, has that name."""
    names = getattr(getattr(value, axis, None), "names", ())
    return any(type(own) is type(wanted) and own == wanted for own in names)


def labels_of(value: Any, values: bool = False) -> list[Any] | None:
    """What a thing can be asked for by key, None where it is nothing of the kind.

    With `values` the values of an Enum's members, by which `Colour(3)` looks.
    """
    axis = (
        value
        if is_pandas(value, "Index")
        else value.index
        if is_pandas(value, "Series")
        else columns(value)
    )
    if axis is not None:
        return list(axis[:LABELS].tolist())
    if is_pandas(value, "BaseGroupBy"):
        return labels_of(value.obj, values)
    # an Enum
    if is_a(value, type) and type(class_dict_of(value).get("_member_map_")) is dict:
        table = class_dict_of(value)
        return [
            *(table.get("_value2member_map_", ()) if values else table["_member_map_"])
        ]
    if is_a(value, dict):
        return list(dict.keys(value))[:LABELS]
    return (
        list(value)[:LABELS]
        if module_of(type(value)) == "os" and name_of(type(value)) == "_Environ"
        else None
    )


# --- attributes
# ------------------------------------------------------------------------------------------------------


def attribute(error: BaseException, places: list[Spot]) -> Finding | None:
    """The closest attributes, what holds them instead, where the owner was bound last."""
    wanted = peek(error, "name") or find_quoted(
        get_message(error).split("attribute")[-1]
    )

    def nodes(spot: Spot) -> list[Any]:
        return [
            node
            for node in spot.nodes
            if isinstance(node, ast.Attribute) and node.attr == wanted
        ] or [None]

    def owner(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        value = peek(error, "obj", missing)  # Python 3.10
        value = spot.values[node.value] if value is missing else value
        expression = shorten(ast.unparse(node.value), 80) if node is not None else ""
        plain = node is not None and isinstance(node.value, DATA[:2])
        where, made = binding(node.value, spot, outer) if plain else (None, None)
        lost = lost_label(value, [wanted])
        if lost:
            return {**finding(described(value)), "lost": lost}
        said = (
            [*instead(value, wanted), *near_attributes(value, wanted)]
            if value is not None
            else []
        )
        if value is None or not (said or where or is_a(value, CALLABLE)):
            return None  # of None the table tells where it comes from
        source = (
            made_of(made, spot, expression) if made is not None and not said else ""
        )
        whose = [f"`{expression}` comes from {source}"] if where and source else []
        thing = (
            shown_name(named(value))
            if is_a(value, (types.ModuleType, type))
            else described(value) + uncalled(value)
        )
        return finding("; ".join([thing, *said, *whose]), where)

    return first(nodes, places, owner) if wanted else None


def instead(value: Any, wanted: str) -> list[str]:
    """Of a module or class: a newer file of it, another module, a class in it that has what it lacks."""
    if not is_a(value, (types.ModuleType, type)):
        return []
    name = str(module_of(value)) if is_a(value, type) else named(value)
    where, held = elsewhere(name, wanted), own_names(value).items()
    classes = [
        other
        for other, kind in held
        if is_a(kind, type) and stored(kind, wanted) is not None
    ][:1]
    said = [
        newer(name, wanted),
        f"`{wanted}` is in {' and '.join(where)}" if where else "",
    ]
    return list(
        filter(
            None,
            [
                *said,
                *(f"`{name}.{shorten(other, 80)}` has `{wanted}`" for other in classes),
            ],
        )
    )


def near_attributes(value: Any, wanted: str) -> list[str]:
    """The attributes nearest to the one wanted, else all where they are few."""
    names = attributes_of(value)
    names = names if wanted.startswith("_") else select_public(names)
    if wanted in names:
        return []  # it has that one: what it holds is the reason
    close = find_close_names(wanted, names, cutoff=0.7)
    keys = [name[1:-1] for name in close if name[:1] == "["]
    close = [name for name in close if name[:1] != "["]
    if keys and keys[0] == repr(wanted):
        return [f"the key {keys[0]} exists"]
    said = [f"closest keys: {', '.join(keys)}"] if keys else []
    said += [f"closest attributes: {', '.join(close)}"] if close else []
    if said:
        return said
    plain = [
        name
        for name in names
        if not is_one_of(type(stored(type(value), name)), CALLABLE)
    ]
    few = next((some for some in (names, plain) if 0 < len(some) <= FEW), [])
    return [f"attributes: {join_items(few)}"] if few else []


def attributes_of(value: Any) -> list[str]:
    """The names of its attributes, a module's names, a frame's columns, a dict's keys as they are asked for."""
    if is_a(value, types.ModuleType):
        names = list(object.__getattribute__(value, "__dict__"))
    else:
        names = [
            name
            for kind in classes_of(value if is_a(value, type) else type(value))
            for name in class_dict_of(kind)
        ]
        names += [
            *own_names(value),
            *(columns(value)[:LABELS].tolist() if columns(value) is not None else []),
        ]
        names += (
            [f"[{key!r}]" for key in dict.keys(value) if type(key) is str]
            if is_a(value, dict)
            else []
        )
    return sorted(
        {
            shorten(name, 80)
            for name in names
            if type(name) is str and not name.startswith("__")
        }
    )[:NAMES]


def stored(kind: Any, name: str) -> Any:
    return next(
        (
            class_dict_of(one)[name]
            for one in classes_of(kind)
            if name in class_dict_of(one)
        ),
        None,
    )


# --- parameters
# ------------------------------------------------------------------------------------------------------


def called(error: BaseException, places: list[Spot]) -> Finding | None:
    """The signature of the function that was called wrongly; the parameter that is nearest to the one given."""
    said = get_message(error)
    name = re.match(r"([\w.<>]+)\(\)", said)
    # the class whose `__init__` it is, too
    wanted = name[1].split(".")[-2:] if name else []

    def nodes(spot: Spot) -> list[Any]:
        every = [node for node in spot.nodes if isinstance(node, ast.Call)]
        fits = [
            node
            for node in every
            if getattr(node.func, "attr", getattr(node.func, "id", "")) in wanted
        ]
        return fits or ([] if name else every[:1])

    def signed(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        thing = (
            method(node.func, spot)
            if isinstance(node.func, ast.Attribute)
            else spot.values[node.func]
        )
        signature, wrong = describe_callable(thing), re.search(UNEXPECTED, said)
        if signature is None:
            return None
        near = find_close_names(wrong[1], signature[1]) if wrong else []
        close = (
            f"; closest to `{shorten(wrong[1], 80)}`: {', '.join(near)}"
            if wrong and near
            else ""
        )
        return finding(
            f"{shorten(ast.unparse(node.func), 80)}{shorten(signature[0], 300)}{close}"
        )

    return first(nodes, places, signed) if re.search(COUNTED, said) else None


def method(node: ast.Attribute, spot: Spot) -> Any:
    value = spot.values[node.value]
    if is_a(value, types.ModuleType):
        return spot.values[node]
    found = stored(value if is_a(value, type) else type(value), node.attr)
    return (
        types.MethodType(found, value)
        if type(found) is types.FunctionType and not is_a(value, type)
        else found
    )
