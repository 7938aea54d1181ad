"""What has no such key or attribute, and what it has that is nearest to the one asked for."""

from __future__ import annotations

import ast
import re
import types
from contextlib import suppress
from typing import Any, Callable

from pure_eval import CannotEval

from stepper.diagnosis.inside.bound import binding
from stepper.diagnosis.inside.gone import replaced
from stepper.diagnosis.inside.imports import elsewhere, newer, version
from stepper.diagnosis.inside.near import closest, differs, listed, public, quoted
from stepper.diagnosis.inside.spots import DATA, Spot, columns
from stepper.diagnosis.inside.table import Finding, finding, made_of
from stepper.diagnosis.inside.words import CALLABLE, described, kind_name, label, named, shown_name
from stepper.kernel.inside.base import (
    class_names,
    classes_of,
    is_a,
    is_pandas,
    missing,
    module_of,
    name_of,
    names_in,
    of_library,
    one_of,
    own_names,
    peek,
    short,
    top_module,
)
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.fault import message

FEW, LABELS, NAMES, PARTS, ITEMS, DEPTH, WIDTH = 30, 5000, 800, 60, 20, 3, 400
# Of a library's own frames: the names under which they hold what may lack a key.
HOLDERS = ("self", "obj", "frame", "df", "data", "left", "right", "mapping", "cls")


def first(nodes: Callable[[Spot], list[Any]], places: list[Spot], tell: Callable[..., Any]) -> Finding | None:
    for spot, outer in zip(places, [*places[1:], None]):
        for node in nodes(spot):
            with suppress(CannotEval):
                answer: Finding | None = tell(node, spot, outer)
                if answer:
                    return answer
    return None


def key(error: BaseException, places: list[Spot]) -> Finding | None:
    """What has no such key: an expression on the line, or what the library's own frames hold."""
    wanted = error.args[0] if error.args else None

    def nodes(spot: Spot) -> list[Any]:
        bases = [node for node in spot.nodes if isinstance(node, (ast.Subscript, ast.Call, ast.BinOp))]
        return [part for node in bases for part in keyed(node)]

    def own(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        return lacking(spot.values[node], wanted, ast.unparse(node))

    answer = first(nodes, places, own)
    held = [frame.f_locals.get(name) for frame in library_frames(error) for name in HOLDERS] if not answer else []
    found = (lacking(value, wanted, "") for value in held if value is not None)
    return answer or next(filter(None, found), None)


def keyed(node: Any) -> list[Any]:
    """The expressions that were asked for a key: `x[…]`, `"%(…)s" % x`, `x.pop(…)`, `"…".format(**x)`, `f(**x)`."""
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, ast.BinOp):
        return [node.right]
    given = [word.value for word in node.keywords if word.arg is None] + node.args[:1]
    return [*given, node.func.value if isinstance(node.func, ast.Attribute) else node.func]


def library_frames(error: BaseException) -> list[types.FrameType]:
    inner: list[types.FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        inner = [] if is_own(trace.tb_frame.f_code.co_filename) else [trace.tb_frame, *inner]
        trace = trace.tb_next
    return inner


def lacking(value: Any, wanted: Any, expression: str) -> Finding | None:
    """Which keys a thing has that are nearest to the one wanted; None where it lacks nothing."""
    labels = labels_of(value)
    plain = one_of(type(wanted), (str, int, float, bool))
    if labels is None or (plain and any(type(known) is type(wanted) and known == wanted for known in labels)):
        return None
    of = f"`{short(expression, 80)}` ({typed(value)})" if expression else f"the {typed(value)}"
    texts = {label(known): known for known in labels}
    names = re.findall(r"'([^']*)'", str(wanted)) or [str(wanted)]
    near = [text for name in names[:3] for text in [nearest(name, texts)] if text]
    part = (
        holder(value, lambda thing: is_a(thing, dict) and dict.__contains__(thing, wanted))
        if plain and expression
        else ""
    )
    near += [f"it is in `{expression}{part}"] if part else []
    axes = [axis for axis in ("index", "columns") if top_module(type(value)) == "pandas" and plain]
    near += [f"{label(wanted)} is the name of its {axis}" for axis in axes if wanted in axis_names(value, axis)]
    if near:
        return finding(f"{of} has {'; '.join(near)}; {len(labels):,} key{'s' * (len(labels) != 1)} in all")
    below = {label(key): item for key, item in value.items() if type(item) is dict} if type(value) is dict else {}
    shown = [f"{text} (dict: {listed([*map(label, below[text])], 60)})" if text in below else text for text in texts]
    return finding(f"{of} has {len(labels):,} keys: {listed(shown, 300)}" if labels else f"{of} is empty")


def axis_names(value: Any, axis: str) -> list[Any]:
    """The names of an axis of a frame or series, or of its levels."""
    return list(getattr(getattr(value, axis, None), "names", ()))


def nearest(name: str, texts: dict[str, Any]) -> str:
    """The keys nearest to one, as code writes them, and how the first differs; '' where it is there itself."""
    if repr(name) in texts:
        return ""
    bare = {text[1:-1] if text[:1] in "'\"" else text: text for text in reversed(texts)}
    if name in bare:
        return f"{bare[name]} (of another type)"
    near = closest(name, reversed(bare))
    how = differs(name, near[0]) if near else ""
    return f"{bare[near[0]]}{how}" if how else ", ".join(bare[text] for text in near)


def typed(value: Any) -> str:
    if is_pandas(value, "Series"):
        return f"Series with a {kind_name(value.index)} of {value.index.dtype}"
    return f"{kind_name(value)} of {value.dtype}" if is_pandas(value, "Index") else kind_name(value)


def attribute(error: BaseException, places: list[Spot]) -> Finding | None:
    """The closest attributes, what holds them instead, where the owner was bound last."""
    wanted = peek(error, "name") or quoted(message(error).split("attribute")[-1])

    def nodes(spot: Spot) -> list[Any]:
        return [node for node in spot.nodes if isinstance(node, ast.Attribute) and node.attr == wanted] or [None]

    def owner(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        value = peek(error, "obj", missing)  # Python 3.10
        value = spot.values[node.value] if value is missing else value
        expression = short(ast.unparse(node.value), 80) if node is not None else ""
        plain = node is not None and isinstance(node.value, DATA[:2])
        where, made = binding(node.value, spot, outer) if plain else (None, None)
        said = [*instead(value, wanted, expression), *near_attributes(value, wanted)] if value is not None else []
        if value is None or not (said or where):
            return None  # of None the table tells where it comes from
        source = made_of(made, spot, expression) if made is not None and not said else ""
        named = [f"`{expression}`" + (f", with {source}" if source else "")] if where else []
        return finding("; ".join([titled(value), *said, *named]), where)

    return first(nodes, places, owner) if wanted else None


def titled(value: Any) -> str:
    if is_a(value, (types.ModuleType, type)):
        return shown_name(named(value)) + version(module_of(value) if is_a(value, type) else named(value))
    return described(value)


def instead(value: Any, wanted: str, expression: str) -> list[str]:
    """What took the attribute's place; where it is: a newer file, another module, a class, a part."""
    if not is_a(value, (types.ModuleType, type)):
        part = holder(value, lambda thing: wanted in own_names(thing) or stored(type(thing), wanted) is not None)
        said = [
            replaced(str(module_of(type(value))), wanted),
            f"`{expression}{part} has `{wanted}`" if part else "",
        ]
        return list(filter(None, said))
    name = str(module_of(value)) if is_a(value, type) else named(value)
    where, said = elsewhere(name, wanted), [replaced(name, wanted), newer(name, wanted)]
    said += [f"`{wanted}` is in {' and '.join(where)}"] if where else []
    classes = [
        other for other, kind in own_names(value).items() if is_a(kind, type) and stored(kind, wanted) is not None
    ]
    return list(filter(None, [*said, *(f"`{name}.{short(other, 80)}` has `{wanted}`" for other in classes[:1])]))


def near_attributes(value: Any, wanted: str) -> list[str]:
    """The attributes nearest to the one wanted, else all where they are few."""
    names = attributes_of(value)
    names = names if wanted.startswith("_") else public(names)
    if wanted in names:
        return []  # it has that one: what it holds is the reason
    close = closest(wanted, names)
    if close:
        return [f"closest attributes: {', '.join(close)}"]
    plain = [name for name in names if not one_of(type(stored(type(value), name)), CALLABLE)]
    few = next((some for some in (names, plain) if 0 < len(some) <= FEW), [])
    return [f"it has {listed(few)}"] if few else []


# --- what a value has ------------------------------------------------------------------------------------------------


def labels_of(value: Any) -> list[Any] | None:
    """What a thing can be asked for by key, None where it is nothing of the kind."""
    axis = value if is_pandas(value, "Index") else value.index if is_pandas(value, "Series") else columns(value)
    if axis is not None:
        return list(axis[:LABELS].tolist())
    if is_pandas(value, "BaseGroupBy"):
        return labels_of(value.obj)
    if is_a(value, type) and type(names_in(value).get("_member_map_")) is dict:  # an Enum
        return [*names_in(value)["_member_map_"], *names_in(value).get("_value2member_map_", ())]
    if is_a(value, dict):
        return list(dict.keys(value))[:LABELS]
    if "zipfile.ZipFile" in class_names(type(value)):
        return list(value.NameToInfo)[:LABELS]
    return list(value)[:LABELS] if module_of(type(value)) == "os" and name_of(type(value)) == "_Environ" else None


def attributes_of(value: Any) -> list[str]:
    """The names of its attributes, a module's names, a frame's columns, a dict's keys as they are asked for."""
    if is_a(value, types.ModuleType):
        names = list(object.__getattribute__(value, "__dict__"))
    else:
        names = [name for kind in classes_of(value if is_a(value, type) else type(value)) for name in names_in(kind)]
        names += [*own_names(value), *(columns(value)[:LABELS].tolist() if columns(value) is not None else [])]
        names += [f"[{key!r}]" for key in dict.keys(value) if type(key) is str] if is_a(value, dict) else []
    return sorted({short(name, 80) for name in names if type(name) is str and not name.startswith("__")})[:NAMES]


def stored(kind: Any, name: str) -> Any:
    return next((names_in(one)[name] for one in classes_of(kind) if name in names_in(one)), None)


def holder(value: Any, fits: Callable[[Any], bool]) -> str:
    """Which part of a thing has what it lacks itself: the way there and its class."""
    todo: list[tuple[str, Any, str]] = [("", value, "")]
    while todo:
        path, thing, beside = todo.pop(0)
        if path and thing is not None and fits(thing):
            return f"{short(path, 100)}` ({short(name_of(type(thing)), 60)}{f', {beside!r}' if beside else ''})"
        if path.count("[") + path.count(".") < DEPTH:
            todo += [(path + step, part, text) for step, part, text in parts(thing)]
        del todo[WIDTH:]
    return ""


def parts(thing: Any) -> list[tuple[str, Any, str]]:
    """The parts of a thing: step, part, a text that stands beside it."""
    kind = type(thing)
    if one_of(kind, (list, tuple)):
        beside = short(thing[0], 40) if len(thing) == 2 and type(thing[0]) is str else ""
        return [(f"[{n}]", item, beside) for n, item in enumerate(thing[:ITEMS]) if not one_of(type(item), (str, int))]
    if kind is dict:
        return [(f"[{key!r}]", item, "") for key, item in list(thing.items())[:ITEMS] if type(key) is str]
    if name_of(kind) == "ndarray" and of_library(thing) and thing.dtype.kind == "O" and thing.size:
        return [(".flat[0]", thing.flat[0], "")]
    if is_a(thing, (types.ModuleType, type)) or of_library(thing) or top_module(kind) == "builtins":
        return []
    own = list(own_names(thing).items())[:PARTS]
    return [(f".{key}", item, "") for key, item in own if type(key) is str and not key.startswith("_")]
