"""Names and `input()` in code that surely is evaluated: what is not defined anywhere, what a kernel can't ask."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from stepper.policy.model import Fault

# Who mentions one of these may bind, replace or catch anything: neither names nor input() are judged in such a cell.
# The last line: SymPy, dill, icecream, snoop, gettext and enum bind names for their caller.
ANYTHING = re.compile(
    r"(exec|eval|globals|locals|vars|builtins|__(builtins|import|main|dict|globals)__|modules|f_(globals|locals|builtins)"
    r"|user_ns|user_global_ns|setattr|patch|monkeypatch|_allow_stdin|raw_input"
    r"|push|run_(cell|cell_async|code|line_magic|cell_magic)|magic"
    r"|var|init_session|load_session|load_module|install|inject|global_enum|_convert_)"
)
# Of these nodes only the parts named are surely evaluated, in this order; of all others every part is.
PARTS: dict[str, Callable[[Any], Iterable[ast.AST | None]]] = {
    **dict.fromkeys(("Try", "TryStar", "Delete", "TypeAlias"), lambda node: ()),
    **dict.fromkeys(
        ("FunctionDef", "AsyncFunctionDef"),
        lambda node: [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults],
    ),
    **dict.fromkeys(("If", "IfExp", "While", "Assert"), lambda node: [node.test]),
    **dict.fromkeys(("For", "AsyncFor"), lambda node: [node.iter]),
    **dict.fromkeys(("ListComp", "SetComp", "DictComp", "GeneratorExp"), lambda node: [node.generators[0].iter]),
    "Lambda": lambda node: [*node.args.defaults, *node.args.kw_defaults],
    "ClassDef": lambda node: [*node.decorator_list, *node.bases, *node.keywords],
    "Assign": lambda node: [node.value, *node.targets],
    "AnnAssign": lambda node: [node.value],
    "Match": lambda node: [node.subject],
    "BoolOp": lambda node: node.values[:1],
    "Compare": lambda node: [node.left, node.comparators[0]],
    "With": lambda node: [*node.items, *node.body] if _opens_files(node) else [node.items[0].context_expr],
    "AsyncWith": lambda node: [node.items[0].context_expr],
}
# After a mention of these nothing counts: it may be the cell's end (in a kernel `exit()` goes on, `sys.exit` doesn't).
ENDS = re.compile(r"_?exit|quit|abort|kill|execvp?|execlp?|SystemExit|KeyboardInterrupt")
# IPython keeps `_`, `_12`, `_i`, `_oh`, … itself; classes and modules have names of their own. But none is `__file__`.
AUTOMATIC = re.compile(r"_+(?:i+|i?\d+|[ido]h)?|__(?!file__)\w+__|In|Out|display|exit|quit")
NAME_ERROR = ("NameError", "Exception", "BaseException", "object")
IPYTHONS = ("IPython.core.error.StdinNotImplementedError", "IPython.core.error.IPythonCoreError")
NO_INPUT = (*IPYTHONS, "NotImplementedError", "RuntimeError", "Exception", "BaseException", "object")


@dataclass(frozen=True)
class Known:
    """What is known of the kernel that a cell would run in.

    `names` are the names in it; empty where not even that is known. `own` are builtins that the user replaced.
    `python` is its version, (0, 0) where not known. `magics` are the names that call a magic without `%` at the head of
    a one-line cell; None where that is not known.
    """

    names: frozenset[str]
    own: frozenset[str]
    python: tuple[int, int]
    magics: frozenset[str] | None = None


def missing_values(tree: ast.Module, known: Known, judged: bool) -> Iterator[tuple[ast.stmt | ast.expr, Fault]]:
    """Yield the names that are not there, where they are `judged`, and the calls of `input()`."""
    bound = Counter(_bound(tree))
    if not known.names or any(map(ANYTHING.fullmatch, _words(tree))) or "*" in bound:
        return
    defined = known.names | bound.keys() | vars(builtins).keys()
    prompts = _prompts(tree, known, bound)
    ended = [getattr(node, "lineno", 0) for node in ast.walk(tree) if ENDS.fullmatch(_name(node))]
    ends = min(ended, default=sys.maxsize)
    for node in _surely(tree):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.While) and isinstance(node.test, ast.Constant)):
            return
        if not isinstance(node, (ast.Call, ast.Name)) or node.lineno >= ends:
            continue
        if isinstance(node, ast.Call):
            if asks := prompts.get(dotted(node.func)):
                said = f"{asks} was called, but this frontend does not support input requests."
                yield node, Fault("StdinNotImplementedError", said, NO_INPUT)
        elif judged and node.id not in defined and not AUTOMATIC.fullmatch(node.id):
            said = f"name {node.id!r} is not defined"
            yield node, Fault("NameError", said, NAME_ERROR, attributes={"name": node.id})


def _name(node: ast.AST) -> str:
    return str(getattr(node, "id", "") or getattr(node, "attr", ""))


def _surely(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that surely are evaluated, each after its parts."""
    for part in PARTS.get(type(node).__name__, ast.iter_child_nodes)(node):
        if part is not None:
            yield from _surely(part)
    yield node


def _words(tree: ast.AST) -> set[str]:
    """Return all names that a cell mentions, in strings too: `patch("builtins.input")`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "value", "name", "module"):
            text = getattr(node, field, "")
            found.update(text.split(".") if isinstance(text, str) else ())
    return found


def _bound(tree: ast.AST) -> Iterator[str]:
    """Yield each name as often as something in the cell, in whatever scope, binds or deletes it; attributes as `.x`."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            if not isinstance(node.ctx, ast.Load):
                yield node.id if isinstance(node, ast.Name) else f".{node.attr}"
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).split(".")[0]
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            yield from node.names
        elif not isinstance(node, ast.keyword):  # def, class, type parameters; arguments; `case {**rest}`
            yield from (getattr(node, field, None) or "" for field in ("name", "arg", "rest"))


def _prompts(tree: ast.Module, known: Known, bound: Counter[str]) -> dict[str, str]:
    """Return what asks for input, as it is called here, and its name in the kernel; nothing else may have its name."""
    found = {} if "input" in known.own or "input" in bound else {"input": "raw_input"}
    for statement in tree.body if ".getpass" not in bound else ():
        if isinstance(statement, ast.Import) or (
            isinstance(statement, ast.ImportFrom) and statement.module == "getpass"
        ):
            for alias in statement.names:
                name = alias.asname or alias.name
                if alias.name == "getpass" and bound[name] == 1:
                    found[name if isinstance(statement, ast.ImportFrom) else f"{name}.getpass"] = "getpass"
    return found


def _opens_files(node: ast.With) -> bool:
    """Whether each manager is a file: it runs its body and lets every fault through; another may be `suppress`."""
    made = [item.context_expr for item in node.items]
    return all(isinstance(call, ast.Call) and dotted(call.func) == "open" for call in made)


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` as it is written; of what is no name only the end: `.read`."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""
