"""What is known of a cell before it runs: Python can't read it, or it surely comes to what must fail.

A cell that would have run must never be stopped. So only code counts that *surely* is evaluated, and in doubt there is
no finding: a cell that is let through in vain merely fails as it would have failed anyway.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import dis
import keyword
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.name_effects import ANNOTATED, CHANGE
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Fault

MAGIC = "get_ipython"  # what IPython makes of `%x`, `!x` and `x?`
# A project's own module may bring others (`sys.path`): after it no module is judged.
# These are known not to.
QUIET_MODULES = sys.stdlib_module_names | {
    *(
        "numpy",
        "pandas",
        "polars",
        "pyarrow",
        "scipy",
        "sklearn",
        "statsmodels",
        "matplotlib",
        "seaborn",
        "plotly",
    ),
    *("altair", "IPython", "requests", "tqdm"),
}
QUIET_CALLS = (
    "print",
    "warnings",
    "logging",
    "np",
    "numpy",
    "pd",
    "pandas",
    "plt",
    "matplotlib",
    "sns",
)
# versions of IPython strip them differently
PROMPTS = re.compile(r"^[ \t]*(?:>>>|\.{3,}:)|In \[\d+\]:", re.MULTILINE)
WORD_FIRST = re.compile(r"\s*([^\W\d]\w*)\b(?!\s*[=,]|[.*]).*")
LONGEST = 20_000  # characters: IPython reads the whole cell again for each magic
# Who mentions one of these may bind, replace or catch anything: neither names nor
# input() are judged in such a cell.
# The last line: SymPy, dill, icecream, snoop, gettext and enum bind names for their
# caller.
ANYTHING = re.compile(
    r"\b(exec|eval|globals|locals|vars|builtins|__(builtins|import|main|dict|globals)__|modules"
    r"|f_(globals|locals|builtins)|user_ns|user_global_ns|setattr|patch|monkeypatch|_allow_stdin|raw_input"
    r"|push|run_(cell|cell_async|code|line_magic|cell_magic)|magic"
    r"|var|init_session|load_session|load_module|install|inject|global_enum|_convert_)\b"
)
# After a mention of these nothing counts: it may be the cell's end (in a kernel
# `exit()` goes on, `sys.exit` doesn't).
ENDS = re.compile(
    r"\b(_?exit|quit|abort|kill|execvp?|execlp?|SystemExit|KeyboardInterrupt)\b"
)
# IPython keeps `_`, `_12`, `_i`, `_oh`, … itself; classes and modules have names of
# their own. But none is `__file__`.
AUTOMATIC = re.compile(
    r"_+(?:i+|i?\d+|[ido]h)?|__(?!file__)\w+__|In|Out|display|exit|quit"
)
# From here on a statement's code may not be reached, besides after a jump.
BRANCHES = ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")
UNJUDGED = tuple(
    getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name)
)
FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
NO_INPUT = (  # its classes in IPython, which is not imported here
    *(
        "IPython.core.error.StdinNotImplementedError",
        "IPython.core.error.IPythonCoreError",
        "NotImplementedError",
    ),
    *("RuntimeError", "Exception", "BaseException", "object"),
)
Found = tuple[ast.stmt | ast.expr, Fault]


def check(
    source: str,
    known: Namespace,
    findable: Callable[[str], bool],
    transform: Callable[[str], str],
) -> Fault | None:
    """Return the first fault that the cell surely comes to, or None.

    `findable` tells whether the kernel finds a module of that name; `transform` is IPython's way from a cell to Python.
    """
    source = re.sub(r"\r\n?", "\n", source)
    if (
        len(source) > LONGEST
        or source.lstrip().startswith("%%")
        or PROMPTS.search(source)
        or "\0" in source
    ):
        return None
    python = known.lasting.python if known.lasting else (0, 0)
    code = re.sub(r"\A(?:[ \t]*\n)+", "", source)
    try:
        code = transform(source)  # it raises IndentationError itself
        tree = compiled(code)
        found = (
            []
            if _may_be_a_magic(code, known)
            else [*_modules(tree, findable), *_values(tree, code, known)]
        )
    except SyntaxError as error:
        unsure = not (3,) < python <= sys.version_info[:2] or _may_be_a_magic(
            code, known
        )
        return None if unsure else _unreadable(error, source, code)
    except Exception:  # noqa: BLE001  # too deep, no text, the transformer's own fault: it proves nothing of the cell
        return None
    if not found:
        return None
    node, fault = min(found, key=lambda one: (one[0].lineno, one[0].col_offset))
    return replace(fault, line=_place(source, code, node.lineno))


def compiled(code: str) -> ast.Module:
    """Parse and compile, statement by statement as IPython does: a whole module must not have a late `__future__`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
        for statement in tree.body:
            compile(ast.Module([statement], []), "", "exec", FLAGS, dont_inherit=True)
    return tree


def _may_be_a_magic(code: str, known: Namespace) -> bool:
    """Whether IPython may take a cell of one line for a magic without its `%`: `pip install x`, `ls`, `time f(3)`."""
    found = WORD_FIRST.fullmatch(code.strip())
    if not found or keyword.iskeyword(found[1]):
        return False
    magics = known.lasting.magics if known.lasting else None
    called = magics is None or found[1] in magics
    return found[1] in ("exit", "quit") or (
        called and found[1] not in {*known.names, *vars(builtins)}
    )


def _unreadable(error: SyntaxError, source: str, code: str) -> Fault:
    line = error.lineno or 1
    place = _place(source, code, line)
    text, read = (
        source.split("\n")[place - 1],
        [*code.split("\n"), ""][min(line - 1, code.count("\n"))],
    )
    # IPython takes off the indentation of the whole cell
    cut = len(text) - len(read) if text.endswith(read) else 0
    return replace(
        _fault(
            type(error),
            error.msg,
            lineno=place,
            offset=(error.offset or 1) + cut,
            text=text,
        ),
        line=place,
    )


def _fault(kind: type[BaseException], said: str, **attributes: Any) -> Fault:
    return Fault(
        kind.__name__,
        said,
        tuple(base.__name__ for base in kind.__mro__),
        attributes=attributes,
    )


def _place(source: str, code: str, line: int) -> int:
    """Return where in the cell as written a line of its Python stands.

    IPython cuts blank lines at the head and joins magics continued by a backslash: lines only ever move up.
    """
    raw, read = (
        source.rstrip().split("\n"),
        [*code.split("\n"), ""][min(line - 1, code.count("\n"))].strip(),
    )
    same = (
        number
        for number in range(line, len(raw) + 1)
        if raw[number - 1].strip() == read
    )
    return next(same, min(line, len(raw)))


def _modules(tree: ast.Module, findable: Callable[[str], bool]) -> Iterator[Found]:
    """Yield what the cell's imports lack, before anything may bring new modules."""
    for statement in tree.body:
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif (
            isinstance(statement, ast.ImportFrom)
            and statement.module
            and not statement.level
        ):
            names = [statement.module]
        elif _is_quiet(statement):
            continue
        else:
            return
        for name in [name.split(".")[0] for name in names]:
            if name != "__main__" and not findable(name):
                yield (
                    statement,
                    _fault(ModuleNotFoundError, f"No module named {name!r}", name=name),
                )
            if name not in QUIET_MODULES:
                return


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether a statement can't bring a module: it binds names or sets `os.environ`, and calls nothing unknown."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    calls = [
        ast.unparse(node.func).split(".")[0]
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    return (
        isinstance(statement, (ast.Expr, ast.Assign))
        and all(
            isinstance(target, ast.Name)
            or ast.unparse(target).startswith("os.environ[")
            for target in targets
        )
        and all(call in QUIET_CALLS for call in calls)
    )


def _values(tree: ast.Module, code: str, known: Namespace) -> Iterator[Found]:
    """Yield the first name that is not there, where no magic may bring it, or the first call of `input()`."""
    flow = name_analysis.analyze_tree(tree)
    unbound = (ANNOTATED, CHANGE)
    bound = {mention.name for mention in flow.mentions if mention.how not in unbound}
    if not flow.python or not known.names or ANYTHING.search(code) or "*" in bound:
        return
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    defined = {*known.names, *bound, *vars(builtins)}
    absent = {
        node.id
        for node in names
        if node.id not in defined and not AUTOMATIC.fullmatch(node.id)
    }
    absent = absent if MAGIC not in code else set()
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    asks = not known.own_input and "input" not in bound
    asks = asks and all(id(node) in called for node in names if node.id == "input")
    end = ENDS.search(code)
    ends = code.count("\n", 0, end.start()) + 1 if end else sys.maxsize
    for statement, name in _loaded(tree) if absent or "input" in code else ():
        if name in absent or (asks and name == "input"):
            own = [
                node
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and node.id == name
            ]
            node = min(own, key=lambda node: (node.lineno, node.col_offset))
            said = "raw_input was called, but this frontend does not support input requests."
            asked = Fault("StdinNotImplementedError", said, NO_INPUT)
            if node.lineno < ends:
                yield (
                    node,
                    _fault(NameError, f"name {name!r} is not defined", name=name)
                    if name in absent
                    else asked,
                )
            return


def _loaded(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the names that surely are loaded: those before a statement's first branch, none of a `try`."""
    # which versions evaluate differently
    flags = FLAGS | __future__.annotations.compiler_flag
    for statement in tree.body:
        if isinstance(statement, ast.While) and isinstance(
            statement.test, ast.Constant
        ):
            return
        if any(isinstance(node, UNJUDGED) for node in ast.walk(statement)):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(
                ast.Module([statement], []), "", "exec", flags, dont_inherit=True
            )
        for step in dis.get_instructions(code):
            if (
                step.opcode in dis.hasjrel
                or step.opcode in dis.hasjabs
                or step.opname in BRANCHES
            ):
                break
            if step.opname == "RAISE_VARARGS":
                return
            if step.opname == "LOAD_NAME":
                yield statement, step.argval
