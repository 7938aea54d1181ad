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
from collections.abc import Callable, Iterator
from dataclasses import replace

from stepper.diagnosis.surely import Known, dotted, missing_values
from stepper.policy.model import Fault

__all__ = ["Known", "check", "compiled"]

MAGIC = "get_ipython"  # what IPython makes of `%x`, `!x` and `x?`

# Modules are judged at the head of a cell, as long as nothing ran that may bring new ones: `sys.path`, `!pip install`,
# a file that was written, a project's own module that does so. These are known not to.
QUIET_MODULES = sys.stdlib_module_names | {
    *("numpy", "pandas", "polars", "pyarrow", "scipy", "sklearn", "statsmodels", "matplotlib", "seaborn", "plotly"),
    *("altair", "IPython", "requests", "tqdm"),
}
QUIET_CALLS = ("print", "warnings", "logging", "np", "numpy", "pd", "pandas", "plt", "matplotlib", "sns")
NO_MODULE = ("ModuleNotFoundError", "ImportError", "Exception", "BaseException", "object")
PROMPTS = re.compile(r"^[ \t]*(?:>>>|\.{3,}:)|In \[\d+\]:", re.MULTILINE)  # versions of IPython strip them differently
WORD_FIRST = re.compile(r"\s*([^\W\d]\w*)\b(?!\s*[=,]|[.*]).*")
LONGEST = 20_000  # characters: IPython reads the whole cell again for each magic


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
        tree = compiled(code)
    except SyntaxError as error:
        return _unreadable(error, source, code) if (3,) < known.python <= sys.version_info[:2] else None
    found = [*_missing_modules(tree, findable), *missing_values(tree, known, judged=MAGIC not in code)]
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


def _missing_modules(tree: ast.Module, findable: Callable[[str], bool]) -> Iterator[tuple[ast.stmt | ast.expr, Fault]]:
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
                said = f"No module named {name!r}"
                yield statement, Fault(NO_MODULE[0], said, NO_MODULE, attributes={"name": name})
            if name not in QUIET_MODULES:
                return


def _is_quiet(statement: ast.stmt) -> bool:
    """Whether a statement can't bring a module: it binds names or sets `os.environ`, and calls nothing unknown."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return (
        isinstance(statement, (ast.Expr, ast.Assign))
        and all(isinstance(target, ast.Name) or ast.unparse(target).startswith("os.environ[") for target in targets)
        and all(
            dotted(node.func).split(".")[0] in QUIET_CALLS for node in ast.walk(statement) if isinstance(node, ast.Call)
        )
    )
