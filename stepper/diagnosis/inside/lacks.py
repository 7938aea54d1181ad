"""What has no such key, attribute or place, and what it has that is nearest to the one asked for."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
import types
from typing import Any, Callable

from stepper.diagnosis.inside.bound import Bound, bound, source_of
from stepper.diagnosis.inside.imports import elsewhere, newer, stale, version
from stepper.diagnosis.inside.members import attributes_of, data_names, holder, label, labels_of
from stepper.diagnosis.inside.near import closest, differs, listed, public, quoted
from stepper.diagnosis.inside.reach import Unknown, asked
from stepper.diagnosis.inside.spots import DATA, Spot
from stepper.diagnosis.inside.words import described, is_data, kind_name, shown_name, size, written
from stepper.kernel.inside.base import is_a, is_pandas, missing, module_of, name_of, one_of, peek, short
from stepper.kernel.inside.cells import is_own
from stepper.kernel.inside.fault import message

Finding = dict[str, Any]  # text, and where what it speaks of was bound last
RANKED, FEW, MADE_OF = 120, 30, 2
# Of a library's own frames: the names under which they hold what may lack a key.
HOLDERS = ("self", "obj", "frame", "df", "data", "left", "right", "mapping", "cls")
CALLS = ("pop", "group", "start", "end", "span")


def finding(text: str, where: Bound | None = None) -> Finding:
    return {"text": text, "bound": where}


def first(
    nodes: Callable[[Spot], list[Any]], places: list[Spot], tell: Callable[..., Finding | None]
) -> Finding | None:
    """The first finding on the nodes, place by place, innermost first."""
    for spot, outer in zip(places, [*places[1:], None]):
        for node in nodes(spot):
            answer: Finding | None = asked(tell, node, spot, outer)
            if answer:
                return answer
    return None


# --- keys ----------------------------------------------------------------------------------------------------------


def key(error: BaseException, places: list[Spot]) -> Finding | None:
    """What has no such key: the expression, or what the library's own frames hold."""
    wanted = error.args[0] if error.args else None

    def own(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        base = keyed(node)
        value = spot.value(base) if base is not None else None
        return lacking(value, wanted, ast.unparse(base), message(error)) if base is not None else None

    answer = first(
        lambda spot: [n for n in spot.nodes if isinstance(n, (ast.Subscript, ast.Call, ast.BinOp))], places, own
    )
    if answer:
        return answer
    for frame in library_frames(error):
        for name in HOLDERS:
            value = frame.f_locals.get(name)
            answer = lacking(value, wanted, "", message(error)) if value is not None else None
            if answer:
                return answer
    return None


def keyed(node: Any) -> Any:
    """The expression that was asked for a key: `x[…]`, `"%(…)s" % x`, `x.pop(…)`, `"…".format(**x)`."""
    if isinstance(node, ast.Subscript):
        return node.value
    if isinstance(node, ast.BinOp):
        return node.right
    if not isinstance(node.func, ast.Attribute):
        return None
    if node.func.attr == "format_map":
        return node.args[0]
    return next((given.value for given in node.keywords if given.arg is None), node.func.value)


def library_frames(error: BaseException) -> list[types.FrameType]:
    """The library's own frames below the user's, innermost first."""
    inner: list[types.FrameType] = []
    trace = error.__traceback__
    while trace is not None:
        inner = [] if is_own(trace.tb_frame.f_code.co_filename) else [*inner, trace.tb_frame]
        trace = trace.tb_next
    return inner[::-1]


def lacking(value: Any, wanted: Any, expression: str, said: str) -> Finding | None:
    """Which keys a thing has that are nearest to the one wanted; None where it lacks nothing."""
    labels = labels_of(value)
    plain = one_of(type(wanted), (str, int, float, bool))
    if labels is None or (plain and any(type(known) is type(wanted) and known == wanted for known in labels)):
        return None
    of = f"`{short(expression, 80)}` ({typed(value)})" if expression else f"the {typed(value)}"
    index = value if is_pandas(value, "Index") else value.index if is_pandas(value, "NDFrame") else None
    if index is not None and "evel" in said:
        return finding(f"{of} has the levels {listed([label(name) for name in index.names])} of its index")
    if not labels:
        return finding(f"{of} is empty")
    texts = {label(known): known for known in labels}
    names = re.findall(r"'([^']*)'", str(wanted)) or [str(wanted)]
    near = [text for name in names[:3] for text in [nearest(name, texts)] if text]
    count = f"{len(labels):,} keys in all"
    if near:
        return finding(f"{of} has {'; '.join(near)}; {count}")
    if len(texts) > RANKED:
        texts = dict.fromkeys(difflib.get_close_matches(str(wanted), texts, RANKED, 0.0) or texts)
    return finding(f"{of} has {len(labels):,} keys: {listed(list(texts), 300)}")


def nearest(name: str, texts: dict[str, Any]) -> str:
    """The keys nearest to one, as code writes them, and how the first differs; '' where it is there itself."""
    if repr(name) in texts:
        return ""
    pairs = [(text[1:-1] if text[:1] in "'\"" else text, text) for text in texts]
    bare = dict(pairs[::-1])
    if name in bare:
        return f"{bare[name]} (of another type)"
    near = closest(name, [text for text, _ in pairs])
    how = differs(name, near[0]) if near else ""
    return f"{bare[near[0]]}{how}" if how else ", ".join(bare[text] for text in near)


def typed(value: Any) -> str:
    """The type of what lacks a key: of a series with its name and index, of an index with its dtype."""
    if is_pandas(value, "Series"):
        named = f" {label(value.name)}" if value.name is not None else ""
        return f"Series{named} with a {kind_name(value.index)} of {value.index.dtype}"
    return f"{kind_name(value)} of {value.dtype}" if is_pandas(value, "Index") else kind_name(value)


# --- attributes ----------------------------------------------------------------------------------------------------


def attribute(error: BaseException, places: list[Spot]) -> Finding | None:
    """The closest attributes, and what holds them instead; of None, where it comes from."""
    wanted = peek(error, "name") or quoted(message(error).split("attribute")[-1])

    def nodes(spot: Spot) -> list[Any]:
        return [node for node in spot.nodes if isinstance(node, ast.Attribute) and node.attr == wanted] or [None]

    return first(nodes, places, lambda node, spot, outer: owner(error, wanted, node, spot, outer)) if wanted else None


def owner(error: BaseException, wanted: str, node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
    value = peek(error, "obj", missing)  # Python 3.10
    if value is missing:
        if node is None:
            raise Unknown
        value = spot.value(node.value)
    expression = short(ast.unparse(node.value), 80) if node is not None else ""
    where = bound(node.value, spot, outer) if node is not None and isinstance(node.value, DATA[:2]) else None
    if value is None:
        return finding(f"`{expression}` is None{made_of(node.value, spot)}", where) if expression else None
    said = [*instead(value, wanted, expression), *near_attributes(value, wanted, called(node, spot))]
    title = titled(value)
    return finding("; ".join([title, *said, *([f"`{expression}`"] if where else [])]), where) if said or where else None


def called(node: Any, spot: Spot) -> bool:
    return any(isinstance(other, ast.Call) and other.func is node for other in ast.walk(spot.tree))


def titled(value: Any) -> str:
    """A module's or class's name with its version; a value in words."""
    if is_a(value, types.ModuleType):
        return shown_name(str(peek(value, "__name__"))) + version(peek(value, "__name__"))
    if is_a(value, type):
        return shown_name(name_of(value)) + version(module_of(value))
    return described(value)


def instead(value: Any, wanted: str, expression: str) -> list[str]:
    """Where the attribute is instead, for certain: a newer file, another module, a part, a key."""
    said = []
    if is_a(value, types.ModuleType):
        name = str(peek(value, "__name__"))
        file, modules = newer(name, wanted), elsewhere(name, wanted)
        said += [stale(file, wanted)] if file else []
        said += [f"`{wanted}` is in {' and '.join(modules)}"] if modules else []
    elif not is_a(value, type):
        part = holder(value, wanted)
        said += [f"`{expression}{part} has `{wanted}`"] if part else []
        keys = [known for known in (labels_of(value) or [])[:200] if type(known) is str] if is_a(value, dict) else []
        if wanted in keys:
            said.append(f"it is a key: `{expression}[{wanted!r}]`")
        elif closest(wanted, keys):
            said.append(f"closest keys: {', '.join(map(repr, closest(wanted, keys)))}")
    return said


def near_attributes(value: Any, wanted: str, is_called: bool) -> list[str]:
    """The attributes nearest to the one wanted, else all of its kind where they are few."""
    names = attributes_of(value)
    names = names if wanted.startswith("_") else public(names)
    if wanted in names:
        return []  # it has that one: what it holds is the reason
    close = closest(wanted, names)
    if close:
        return [f"closest attributes: {', '.join(close)}"]
    data = data_names(value) if not is_a(value, (types.ModuleType, type, dict)) else []
    if not is_called and 0 < len(data) <= FEW:
        return [f"what it has beside methods: {listed(data)}"]
    return [f"it has {listed(names)}"] if 0 < len(names) <= FEW else []


def made_of(node: Any, spot: Spot) -> str:
    """`; with NAME: VALUE` for what an expression, or the last binding of a name, was made of."""
    made, values = asked(source_of, node, spot) or node, dict[str, str]()
    for text, value, part in spot.known(ast.walk(made)):
        if isinstance(part, ast.Name) and value is not None and is_data(value) and len(values) < MADE_OF:
            values[text] = f"`{text}`: {described(value) if type(value) is not str else written(value, 100)}"
    return f"; with {', '.join(values.values())}" if values else ""


# --- places --------------------------------------------------------------------------------------------------------


def place(error: BaseException, places: list[Spot]) -> Finding | None:
    """Of what, its size, the place asked for, what it was made of."""
    return first(lambda spot: [n for n in spot.nodes if isinstance(n, (ast.Subscript, ast.Call))], places, placed)


def placed(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
    if isinstance(node, ast.Call):  # list.pop(3), match.group(2)
        if not isinstance(node.func, ast.Attribute) or node.func.attr not in CALLS:
            return None
        base, wanted = node.func.value, node.args[0] if node.args else None
    else:
        base, wanted = node.value, node.slice
    value = spot.value(base)
    if kind_name(value) in ("_iLocIndexer", "_iAtIndexer") and isinstance(base, ast.Attribute):
        value, base = value.obj, base.value
    if size(value) is None and not is_a(value, re.Match):
        return None
    number = asked(spot.value, wanted) if wanted is not None else None
    index = f"; asked for {short(str(number), 60)}" if one_of(type(number), (int, tuple)) else ""
    text = f"`{short(ast.unparse(base), 80)}` is {described(value)}{index}"
    if isinstance(base, ast.Name):
        return finding(text, bound(base, spot, outer))
    return finding(text + made_of(base, spot))


def as_it_was(error: BaseException, places: list[Spot]) -> Finding | None:
    """For 'not callable', 'not subscriptable', None in the place of a value: where the expression was bound last."""
    said = message(error)
    if not re.search(r"not (callable|subscriptable|iterable)|NoneType|item assignment|unhashable|has no len", said):
        return None
    kind = quoted(said)

    def held(node: Any, spot: Spot, outer: Spot | None) -> Finding | None:
        value = spot.value(node)
        if kind_name(value) != kind and not (value is None and "NoneType" in said):
            return None
        named = isinstance(node, ast.Name) and node.id in vars(builtins)
        hides = ", which hides the builtin of that name" if named else ""
        made = made_of(node, spot) if value is None else ""
        return finding(f"`{short(ast.unparse(node), 80)}` is {described(value)}{made}{hides}", bound(node, spot, outer))

    return first(lambda spot: [node for node in spot.nodes if isinstance(node, DATA)], places, held)
