"""What a source does to names, as values, and the small questions that its tree answers. Pure."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
BIND, CHANGE, DELETE, CAUGHT, GLOBAL = "bind", "change", "delete", "caught", "global"
FUNCTION, CLASS, COMPREHENSION = "function", "class", "comprehension"
VALUE, IMPORT, DEFINED = "value", "import", "defined"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Methods that change what they are called on; by how they begin; only where nobody
# takes what they return, which then
# is None: `xs.append(x)` changes `xs`, `df = df.append(row)` doesn't.
CHANGES = _words(
    "fit partial_fit train step backward zero_grad load_state_dict pop popitem popleft setdefault next send shuffle"
    " read readline readlines seek write writelines writerow writerows put __setitem__"
)
CHANGING = ("fit_", "add_")
ALONE = _words(
    "append appendleft extend extendleft insert remove discard update add sort reverse clear rotate fill resize"
    " setflags seed set"
)
# pandas' that begin so and return another one.
ANEW = _words(
    "set_index set_axis set_crs set_geometry set_names set_levels set_codes set_categories set_properties set_caption"
    " set_table_styles set_table_attributes add_prefix add_suffix add_categories"
)
# Functions that change their first argument.
ON_FIRST = {
    "shuffle",
    "setattr",
    "delattr",
    "next",
    "fill_diagonal",
    "copyto",
    "put",
    "place",
    "putmask",
}
ON_FIRST |= {
    "heappush",
    "heappop",
    "heapify",
    "heapreplace",
    "heappushpop",
    "insort",
    "insort_left",
    "insort_right",
}


class Mention(NamedTuple):
    """A name that a source binds or the like: how, in which line, in a scope of which kind ('': the notebook's)."""

    name: str
    how: str
    line: int
    scope: str = ""
    inside: str = ""  # that scope's name
    starts: int = 0  # and line


@dataclass(eq=False, repr=False)
class Kept:
    """What a function, or a class's methods, do to the names of the notebook where they are called."""

    reads: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    parameters: tuple[str, ...] = ()
    changed: set[str] = field(default_factory=set)  # of its parameters
    # what was read to define it: bases, decorators, defaults
    made_of: set[str] = field(default_factory=set)
    # of a class, that change what they are called on
    methods: set[str] = field(default_factory=set)


@dataclass(eq=False, repr=False)
class Flow:
    """What a cell does to names."""

    reads: set[str] = field(default_factory=set)  # before it has bound them itself
    # name → VALUE, IMPORT or DEFINED
    binds: dict[str, str] = field(default_factory=dict)
    changes: set[str] = field(default_factory=set)  # in place
    deletes: set[str] = field(default_factory=set)
    kept: dict[str, Kept] = field(default_factory=dict)
    # of functions of other cells; arguments
    calls: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    # that are called, and of which name
    methods: set[tuple[str, str]] = field(default_factory=set)
    made: dict[str, str] = field(default_factory=dict)  # name → what was called for it
    # of what is imported or defined: the same where that is
    prints: dict[str, str] = field(default_factory=dict)
    # name that an import binds → modules: `a.b` of `import a.b`, `a:b` of
    # `from a import b`, which may be a module or a name in one
    modules: dict[str, set[str]] = field(default_factory=dict)
    # of those modules, where the source reads such a name itself
    uses: set[str] = field(default_factory=set)
    star: bool = False  # it binds names that can't be told
    mentions: list[Mention] = field(default_factory=list)
    python: bool = True  # it could be read


def parsed(
    source: str, transform: Callable[[str], str] | None = None
) -> ast.Module | None:
    """Return a source's tree, that of a cell by IPython's reading of it; None where it can't be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for way in (None, transform) if transform else (None,):
            try:
                return ast.parse(way(source) if way else source)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            except Exception:  # noqa: BLE001  # the transformer's own
                return None
    return None


def own_names(body: Iterable[ast.AST]) -> tuple[set[str], set[str]]:
    """Return the names that a scope's statements bind, and those that they declare to be the notebook's."""
    own, outer, around, todo = set[str](), set[str](), set[str](), [*body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name):
            own |= {node.id} if not isinstance(node.ctx, ast.Load) else set()
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            own.add(node.name)
            todo += node.decorator_list
        elif isinstance(node, ast.alias):
            own.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            (outer if isinstance(node, ast.Global) else around).update(node.names)
        elif not isinstance(node, (ast.Lambda, *COMPREHENSIONS)):
            own |= {
                name
                for name in (getattr(node, part, None) for part in ("name", "rest"))
                if isinstance(name, str)
            }
            todo += ast.iter_child_nodes(node)
    return own - outer - around, outer


def arguments(args: ast.arguments) -> list[ast.arg]:
    """Return a function's parameters, in order."""
    given = (*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg)
    return [each for each in given if each is not None]


def loaded(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Return the names that expressions read."""
    return {
        name.id
        for node in nodes
        if node
        for name in ast.walk(node)
        if isinstance(name, ast.Name)
    }


def changed_by(kept: Kept, arguments: Iterable[str]) -> Iterator[str]:
    """Yield which of the names that a function is given it changes in place."""
    for parameter, argument in zip(kept.parameters, arguments, strict=False):
        if argument and parameter in kept.changed:
            yield argument


def root(node: ast.AST | None) -> str:
    """Return the name that an expression of attributes and items begins with; '' for none."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def changes(method: str, alone: bool) -> bool:
    """Whether a method changes what it is called on; `alone`: nobody takes what it returns."""
    if method in ANEW:
        return False
    return (
        method in CHANGES
        or method.startswith(CHANGING)
        or (alone and (method in ALONE or method.startswith("set_")))
    )


def is_ipython(node: ast.AST) -> bool:
    """Whether an expression is `get_ipython()`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "get_ipython"
    )
