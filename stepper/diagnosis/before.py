"""What is known of a cell before it runs: Python can't read it, or it surely comes to what must fail.

A cell that would have run must never be stopped. So only code counts that *surely* is evaluated, and in doubt there is
no finding: a cell that is let through in vain merely fails as it would have failed anyway.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from stepper.policy.model import Fault


def _table(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Who mentions one of these may bind, replace or catch anything: neither names nor input() are judged in such a cell.
ANYTHING = _table(
    """
    exec eval globals locals vars builtins __builtins__ __import__ __main__ modules __dict__ __globals__ f_globals
    f_locals f_builtins user_ns user_global_ns setattr patch monkeypatch _allow_stdin raw_input
    push run_cell run_cell_async run_code run_line_magic run_cell_magic magic
    var init_session load_session load_module install inject global_enum _convert_
    """
)  # the last line: SymPy, dill, icecream, snoop, gettext and enum bind names for their caller
MAGIC = "get_ipython"  # what IPython makes of `%x`, `!x` and `x?`; a magic may bind names

# Of these nodes only the parts named are surely evaluated, in this order; of all others every part is.
PARTS: dict[str, Callable[[Any], Iterable[ast.AST | None]]] = {
    "FunctionDef": lambda node: [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults],
    "AsyncFunctionDef": lambda node: [*node.decorator_list, *node.args.defaults, *node.args.kw_defaults],
    "Lambda": lambda node: [*node.args.defaults, *node.args.kw_defaults],
    "ClassDef": lambda node: [*node.decorator_list, *node.bases, *node.keywords, *_class_body(node)],
    "Assign": lambda node: [node.value, *node.targets],
    "AnnAssign": lambda node: [node.value],
    "If": lambda node: [node.test],
    "IfExp": lambda node: [node.test],
    "Assert": lambda node: [node.test],
    "Match": lambda node: [node.subject],
    "BoolOp": lambda node: node.values[:1],
    "Compare": lambda node: [node.left, node.comparators[0]],
    "For": lambda node: [node.iter, *(_first_round(node) if _has_items(node.iter) else ())],
    "While": lambda node: [node.test, *(_first_round(node) if _is_true(node.test) else ())],
    "With": lambda node: [*node.items, *node.body] if _all_plain(node) else [node.items[0].context_expr],
    "AsyncFor": lambda node: [node.iter],
    "AsyncWith": lambda node: [node.items[0].context_expr],
    "ListComp": lambda node: _comprehension(node, node.elt),
    "SetComp": lambda node: _comprehension(node, node.elt),
    "DictComp": lambda node: _comprehension(node, node.key, node.value),
    "GeneratorExp": lambda node: [node.generators[0].iter],  # the rest waits until somebody asks for an item
    "Try": lambda node: [],
    "TryStar": lambda node: [],
    "Delete": lambda node: [],
    "TypeAlias": lambda node: [],
}

# Managers known to let every exception through and to run their body; any other may be `suppress` by another name.
PLAIN_MANAGERS = _table(
    """
    open open_text ZipFile TarFile ExcelWriter HDFStore File Session Pool ThreadPoolExecutor ProcessPoolExecutor
    TemporaryDirectory TemporaryFile NamedTemporaryFile StringIO BytesIO urlopen closing nullcontext catch_warnings
    redirect_stdout redirect_stderr option_context rc_context errstate printoptions localcontext no_grad inference_mode
    axes_style plotting_context tqdm
    """
)
ITERATED_AS_IT_IS = _table("enumerate sorted reversed list tuple tqdm")

# Below a call of these nothing counts: it may be the cell's end (in a kernel `exit()` goes on, `sys.exit()` doesn't).
ENDS = _table("exit quit _exit abort kill execv execvp execl execlp")

# Modules are judged at the head of a cell, as long as nothing ran that may bring new ones: `sys.path`, `!pip install`,
# a file that was written, a project's own module that does so. These are known not to.
QUIET_MODULES = sys.stdlib_module_names | _table(
    "numpy pandas polars pyarrow scipy sklearn statsmodels matplotlib seaborn plotly altair IPython requests tqdm"
)
QUIET_CALLS = _table("print warnings logging np numpy pd pandas plt matplotlib sns")

# IPython keeps `_`, `_12`, `_i`, `_oh`, … itself; classes and modules have names of their own. But none is `__file__`.
AUTOMATIC = re.compile(r"_+(?:i+|i?\d+|[ido]h)?|__(?!file__)\w+__|In|Out|display|exit|quit")
PROMPTS = re.compile(r"^[ \t]*(?:>>>|\.{3,}:)|In \[\d+\]:", re.MULTILINE)  # versions of IPython strip them differently
WORD_FIRST = re.compile(r"\s*([^\W\d]\w*)\b(?!\s*[=,]|[.*]).*")
LONGEST = 20_000  # characters: IPython reads the whole cell again for each magic

Finding = tuple[ast.stmt | ast.expr, Fault]

NAME_ERROR = ("NameError", "Exception", "BaseException", "object")
NO_MODULE = ("ModuleNotFoundError", "ImportError", "Exception", "BaseException", "object")
NO_INPUT = (
    "IPython.core.error.StdinNotImplementedError",
    "IPython.core.error.IPythonCoreError",
    "NotImplementedError",
    "RuntimeError",
    "Exception",
    "BaseException",
    "object",
)


@dataclass(frozen=True)
class Known:
    """What the kernel last told.

    `names` is all that can be loaded: the namespace, builtins and what the user's functions bind by `global`; empty
    where that is not known. `own` is what the user bound. `python` is the kernel's version, which may read what ours
    can't; (0, 0) where that is not known. `magics` are the names that call a magic without `%` at the head of a
    one-line cell; None where that is not known.
    """

    names: frozenset[str]
    own: frozenset[str]
    python: tuple[int, int]
    magics: frozenset[str] | None = None


def check(source: str, known: Known, findable: Callable[[str], bool], transform: Callable[[str], str]) -> Fault | None:
    """Return the first fault that the cell surely comes to, or None.

    `findable` tells whether the kernel finds a module of that name; `transform` is IPython's way from a cell to Python.
    """
    source = re.sub(r"\r\n?", "\n", source)
    if len(source) > LONGEST or source.lstrip().startswith("%%") or PROMPTS.search(source) or "\0" in source:
        return None
    try:
        return _judge(source, known, findable, transform)
    except Exception:  # noqa: BLE001  # too deep, no text, the transformer's own fault: it proves nothing of the cell
        return None


def _judge(source: str, known: Known, findable: Callable[[str], bool], transform: Callable[[str], str]) -> Fault | None:
    code = source
    try:
        code = transform(source)  # it raises IndentationError itself
        if _may_be_a_magic(code, known):
            return None
        tree = _read(code)
    except SyntaxError as error:
        return _unreadable(error, source, code) if (3,) < known.python <= sys.version_info[:2] else None
    found: list[Finding] = [*_missing_modules(tree, findable), *_missing_values(tree, known)]
    if not found:
        return None
    node, fault = min(found, key=lambda one: (one[0].lineno, one[0].col_offset))
    return replace(fault, line=_place(source, code, node.lineno))


# --- reading ---


def _read(code: str) -> ast.Module:
    """Parse and compile, statement by statement as IPython does: a whole module must not have a late `__future__`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
        for statement in tree.body:
            compile(ast.Module([statement], []), "", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    return tree


def _may_be_a_magic(code: str, known: Known) -> bool:
    """Whether IPython may take a cell of one line for a magic without its `%`: `pip install x`, `ls`, `time f(3)`."""
    found = WORD_FIRST.fullmatch(code.strip())
    if not found or keyword.iskeyword(found[1]):
        return False
    called = known.magics is None or found[1] in known.magics
    return found[1] in ("exit", "quit") or (called and found[1] not in known.names | vars(builtins).keys())


def _unreadable(error: SyntaxError, source: str, code: str) -> Fault:
    line = error.lineno or 1
    place = _place(source, code, line)
    text, read = source.split("\n")[place - 1], [*code.split("\n"), ""][min(line - 1, code.count("\n"))]
    cut = len(text) - len(read) if text.endswith(read) else 0  # IPython takes off the indentation of the whole cell
    attributes = {"lineno": place, "offset": (error.offset or 1) + cut, "text": text}
    mro = tuple(kind.__name__ for kind in type(error).__mro__)
    return Fault(mro[0], error.msg, mro, place, attributes=attributes)


def _place(source: str, code: str, line: int) -> int:
    """Return where in the cell as written a line of its Python stands.

    IPython cuts blank lines at the head and joins magics continued by a backslash: lines only ever move up.
    """
    raw = source.rstrip().split("\n")
    at = next((index for index, text in enumerate(raw) if text.strip()), 0)
    for read in code.split("\n")[: line - 1]:
        while at < len(raw) and MAGIC in read and MAGIC not in raw[at] and raw[at].endswith("\\"):
            at += 1
        at += 1
    return min(at + 1, len(raw))


# --- modules ---


def _missing_modules(tree: ast.Module, findable: Callable[[str], bool]) -> Iterator[Finding]:
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            names = [statement.module]
        elif _is_quiet(statement):
            continue
        else:
            return
        for name in [name.split(".")[0] for name in names]:
            if name != "__main__" and not findable(name):
                yield statement, _fault(NO_MODULE, f"No module named {name!r}", name=name)
            if name not in QUIET_MODULES:
                return


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether a statement can't bring a module: it binds names or sets `os.environ`, and calls nothing unknown."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return (
        isinstance(statement, (ast.Expr, ast.Assign))
        and all(isinstance(target, ast.Name) or ast.unparse(target).startswith("os.environ[") for target in targets)
        and all(
            _dotted(node.func).split(".")[0] in QUIET_CALLS
            for node in ast.walk(statement)
            if isinstance(node, ast.Call)
        )
    )


# --- names and input() ---


def _missing_values(tree: ast.Module, known: Known) -> Iterator[Finding]:
    words, bound = _words(tree), Counter(_bound(tree))
    if not known.names or words & ANYTHING or "*" in bound:
        return
    judged = MAGIC not in words
    defined = known.names | bound.keys() | vars(builtins).keys()
    prompts = _prompts(tree, known, bound)
    for node in _surely(tree):
        called = _dotted(node.func) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Raise) or called.split(".")[-1] in ENDS:
            return
        if isinstance(node, ast.Call) and called in prompts:
            said = f"{prompts[called]} was called, but this frontend does not support input requests."
            yield node, _fault(NO_INPUT, said)
        elif isinstance(node, ast.Name) and judged and node.id not in defined and not AUTOMATIC.fullmatch(node.id):
            yield node, _fault(NAME_ERROR, f"name {node.id!r} is not defined", name=node.id)


def _surely(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that surely are evaluated, each after its parts."""
    parts = PARTS.get(type(node).__name__, ast.iter_child_nodes)
    for part in parts(node):
        if part is not None:
            yield from _surely(part)
    yield node


def _words(tree: ast.AST) -> set[str]:
    """Return all names that a cell mentions, in strings too: `patch("builtins.input")`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        for text in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "value", "")):
            found.update(text.split(".") if isinstance(text, str) else ())
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(
                *(alias.name.split(".") for alias in node.names), (getattr(node, "module", "") or "").split(".")
            )
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
    for statement in tree.body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)) and ".getpass" not in bound:
            if isinstance(statement, ast.ImportFrom) and statement.module != "getpass":
                continue
            for alias in statement.names:
                name = alias.asname or alias.name
                if alias.name == "getpass" and bound[name] == 1:
                    found[name if isinstance(statement, ast.ImportFrom) else f"{name}.getpass"] = "getpass"
    return found


# --- parts of nodes ---


def _class_body(node: ast.ClassDef) -> list[ast.stmt]:
    return [] if node.bases or node.keywords else node.body  # a metaclass may bring names


def _first_round(loop: ast.For | ast.While) -> Iterator[ast.stmt]:
    for statement in loop.body:
        yield statement
        if any(isinstance(node, (ast.Break, ast.Continue)) for node in ast.walk(statement)):
            return


def _comprehension(node: ast.ListComp | ast.SetComp | ast.DictComp, *results: ast.expr) -> list[ast.expr]:
    first, *more = node.generators
    if first.is_async or not _has_items(first.iter):
        return [first.iter]
    return [first.iter, *(first.ifs[:1] or [one.iter for one in more[:1]] or results)]


def _has_items(node: ast.expr) -> bool:
    """Whether a loop over this surely has a first round."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return any(not isinstance(item, ast.Starred) for item in node.elts)
    if isinstance(node, ast.Dict):
        return any(key is not None for key in node.keys)
    if isinstance(node, ast.Call) and node.args:
        name = _dotted(node.func)
        if name == "range":
            values = [item.value for item in node.args if isinstance(item, ast.Constant)]
            numbers = [value for value in values if isinstance(value, int)]
            return len(numbers) == len(node.args) and bool(range(*numbers))
        return name in ITERATED_AS_IT_IS and _has_items(node.args[0])
    return isinstance(node, ast.Constant) and bool(node.value)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(node.value)


def _all_plain(node: ast.With) -> bool:
    made = [item.context_expr for item in node.items]
    return all(isinstance(one, ast.Call) and _dotted(one.func).split(".")[-1] in PLAIN_MANAGERS for one in made)


def _dotted(node: ast.expr) -> str:
    """Return `a.b.c` as it is written; of what is no name only the end: `.read`."""
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def _fault(mro: tuple[str, ...], evalue: str, **attributes: str) -> Fault:
    return Fault(mro[0].rsplit(".", 1)[-1], evalue, mro, attributes=attributes)
