"""The preflight check: errors that a cell would certainly raise, found before it runs.

A cell that would succeed must never be refused. Therefore only code that is certainly
evaluated counts. If anything is unknown, the check finds nothing, and the cell runs.
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
from typing import Any, NamedTuple

from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.name_effects import ANNOTATED, CHANGE
from stepper.policy.model import Fault
from stepper.policy.namespace_model import Namespace

# IPython translates `%x`, `!x` and `x?` into calls of this function.
MAGIC_CALL = "get_ipython"
# Modules whose import makes no other modules available. Other modules may change
# `sys.path`, so the imports below them are not checked.
KNOWN_MODULES = sys.stdlib_module_names | {
    "IPython",
    "altair",
    "matplotlib",
    "numpy",
    "pandas",
    "plotly",
    "polars",
    "pyarrow",
    "requests",
    "scipy",
    "seaborn",
    "sklearn",
    "statsmodels",
    "tqdm",
}
# Names of functions and modules whose calls make no modules available.
KNOWN_CALLS = (
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
# Versions of IPython remove prompts differently.
PROMPTS = re.compile(r"^[ \t]*(?:>>>|\.{3,}:)|In \[\d+\]:", re.MULTILINE)
FIRST_WORD = re.compile(r"\s*([^\W\d]\w*)\b(?!\s*[=,]|[.*]).*")
MAX_SOURCE = 20_000  # characters: IPython parses the cell again for each magic
# Code with one of these words may bind, replace or catch any name, so that neither
# names nor input() are checked. The last two lines: SymPy, dill, icecream, snoop,
# gettext and enum bind names for their caller.
DYNAMIC_CODE = re.compile(
    r"\b(exec|eval|globals|locals|vars|builtins"
    r"|__(builtins|import|main|dict|globals)__|modules"
    r"|f_(globals|locals|builtins)|user_ns|user_global_ns|setattr|patch|monkeypatch"
    r"|_allow_stdin|raw_input"
    r"|push|run_(cell|cell_async|code|line_magic|cell_magic)|magic"
    r"|var|init_session|load_session|load_module|install|inject"
    r"|global_enum|_convert_)\b"
)
# The cell may stop at one of these words. (`exit()` does not stop a cell in a kernel,
# `sys.exit()` does.)
EXITS = re.compile(
    r"\b(_?exit|quit|abort|kill|execvp?|execlp?|SystemExit|KeyboardInterrupt)\b"
)
# IPython defines `_`, `_12`, `_i`, `_oh` …; classes and modules define dunder names,
# but a cell has no `__file__`.
AUTOMATIC_NAME = re.compile(
    r"_+(?:i+|i?\d+|[ido]h)?|__(?!file__)\w+__|In|Out|display|exit|quit"
)
# Instructions after which the rest of a statement may not be reached, as after a jump.
BRANCHES = ("BEFORE_WITH", "BEFORE_ASYNC_WITH", "LOAD_SPECIAL")
UNCHECKED_STATEMENTS = tuple(
    getattr(ast, name) for name in ("Try", "TryStar") if hasattr(ast, name)
)
COMPILE_FLAGS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
# The class and base classes of IPython's error. IPython is not imported here.
NO_INPUT_CLASSES = (
    "IPython.core.error.StdinNotImplementedError",
    "IPython.core.error.IPythonCoreError",
    "NotImplementedError",
    "RuntimeError",
    "Exception",
    "BaseException",
    "object",
)
NO_INPUT_MESSAGE = (
    "raw_input was called, but this frontend does not support input requests."
)


class Finding(NamedTuple):
    """A syntax tree node and the error that it certainly raises."""

    node: ast.stmt | ast.expr
    fault: Fault


def find_certain_error(
    source: str,
    namespace: Namespace,
    can_import: Callable[[str], bool],
    transform: Callable[[str], str],
) -> Fault | None:
    """Return the first error that a cell would certainly raise, or None.

    `can_import` returns whether the kernel finds a module. `transform` translates a
    cell's source to Python.
    """
    source = re.sub(r"\r\n?", "\n", source)
    if not _is_checkable(source):
        return None
    # transform() removes blank lines at the start, too. It may raise IndentationError,
    # whose line refers to this code.
    code = re.sub(r"\A(?:[ \t]*\n)+", "", source)
    findings: list[Finding] = []
    try:
        code = transform(source)
        tree = compile_statements(code)
        if not _may_be_magic(code, namespace):
            findings += _find_missing_modules(tree, can_import)
            findings += _find_undefined_names(tree, code, namespace)
    except SyntaxError as error:
        if not _has_known_grammar(namespace) or _may_be_magic(code, namespace):
            return None
        return _make_syntax_fault(error, source, code)
    except Exception:  # noqa: BLE001
        # Code that is nested too deeply, or an error of the transformer.
        return None
    if not findings:
        return None
    first = min(findings, key=lambda finding: _get_position(finding.node))
    line = _find_source_line(source, code, first.node.lineno)
    return replace(first.fault, line=line)


def _has_known_grammar(namespace: Namespace) -> bool:
    """Return whether the kernel would reject all code that this Python rejects.

    Return False for a kernel with a newer or unknown version of Python.
    """
    kernel_python = namespace.lasting.python if namespace.lasting else (0, 0)
    return (3,) < kernel_python <= sys.version_info[:2]


def _is_checkable(source: str) -> bool:
    """Return whether a source can be checked.

    The source must not be too long and must contain no cell magic, prompt or null
    character.
    """
    if len(source) > MAX_SOURCE:
        return False
    if source.lstrip().startswith("%%"):
        return False
    if "\0" in source:
        return False
    return not PROMPTS.search(source)


def _get_position(node: ast.stmt | ast.expr) -> tuple[int, int]:
    """Return the line and the column of a node."""
    return node.lineno, node.col_offset


def compile_statements(code: str) -> ast.Module:
    """Parse code and compile each statement separately, as IPython does.

    Compiling the whole module would reject a late `__future__` import.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(code)
        for statement in tree.body:
            module = ast.Module([statement], [])
            compile(module, "", "exec", COMPILE_FLAGS, dont_inherit=True)
    return tree


def _may_be_magic(code: str, namespace: Namespace) -> bool:
    """Return whether IPython may treat a one-line cell as a magic without `%`.

    Examples are `pip install x`, `ls` and `time f(3)`.
    """
    match = FIRST_WORD.fullmatch(code.strip())
    if not match or keyword.iskeyword(match[1]):
        return False
    word = match[1]
    if word in ("exit", "quit"):
        return True  # IPython calls these objects without parentheses
    if word in namespace.names or word in vars(builtins):
        return False
    magics = None
    if namespace.lasting:
        magics = namespace.lasting.magics
    return magics is None or word in magics


def _get_code_line(code: str, line: int) -> str:
    """Return a line of the translated code, or the last line if there is no such line.

    Python reports an error at the end of the code below the last line.
    """
    lines = code.split("\n")
    last_index = len(lines) - 1
    return lines[min(line - 1, last_index)]


def _make_syntax_fault(error: SyntaxError, source: str, code: str) -> Fault:
    """Return the fault for an error in `code`, with its position in `source`."""
    code_line = error.lineno or 1
    line = _find_source_line(source, code, code_line)
    text = source.split("\n")[line - 1]
    code_text = _get_code_line(code, code_line)
    offset = error.offset or 1
    if text.endswith(code_text):
        # IPython removes the indentation of the whole cell.
        offset += len(text) - len(code_text)
    fault = _make_fault(type(error), error.msg, lineno=line, offset=offset, text=text)
    return replace(fault, line=line)


def _make_fault(kind: type[BaseException], message: str, **attributes: Any) -> Fault:
    """Return the fault for an exception with this class, message and attributes."""
    classes = tuple(base.__name__ for base in kind.__mro__)
    return Fault(kind.__name__, message, classes, attributes=attributes)


def _find_source_line(source: str, code: str, line: int) -> int:
    """Return the line of the cell's source for a line of its Python code.

    IPython removes blank lines at the start and joins magics that are continued by a
    backslash, so a line of the source is never above its line of Python code.
    """
    lines = source.rstrip().split("\n")
    text = _get_code_line(code, line).strip()
    for number in range(line, len(lines) + 1):
        if lines[number - 1].strip() == text:
            return number
    return min(line, len(lines))


def _find_missing_modules(
    tree: ast.Module,
    can_import: Callable[[str], bool],
) -> Iterator[Finding]:
    """Yield findings on imports of missing modules.

    The search stops at the first statement that may make modules available.
    """
    for statement in tree.body:
        modules = _get_imported_modules(statement)
        if not modules and _is_harmless(statement):
            continue
        if not modules:
            return
        for module in modules:
            name, _, _ = module.partition(".")
            if name != "__main__" and not can_import(name):
                message = f"No module named {name!r}"
                fault = _make_fault(ModuleNotFoundError, message, name=name)
                yield Finding(statement, fault)
            if name not in KNOWN_MODULES:
                return


def _get_imported_modules(statement: ast.stmt) -> list[str]:
    """Return the modules of an absolute import.

    Return an empty list for other statements.
    """
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if not isinstance(statement, ast.ImportFrom):
        return []
    if not statement.module or statement.level:
        return []
    return [statement.module]


def _is_harmless(statement: ast.stmt) -> bool:
    """Return whether a statement cannot make modules available.

    A harmless statement may bind names, set `os.environ` and call KNOWN_CALLS.
    """
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    targets = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    for target in targets:
        is_environ = ast.unparse(target).startswith("os.environ[")
        if not isinstance(target, ast.Name) and not is_environ:
            return False
    for node in ast.walk(statement):
        if not isinstance(node, ast.Call):
            continue
        name, _, _ = ast.unparse(node.func).partition(".")
        if name not in KNOWN_CALLS:
            return False
    return True


def _find_undefined_names(
    tree: ast.Module,
    code: str,
    namespace: Namespace,
) -> Iterator[Finding]:
    """Yield a finding on the first undefined name or call of `input()`, if any.

    Nothing is yielded if code may bind any name (see DYNAMIC_CODE), or if the names in
    the kernel are unknown. After a magic, which may define names, only calls of
    `input()` are found.
    """
    usage = name_analysis.analyze_tree(tree)
    bound_names = set()
    for mention in usage.mentions:
        if mention.kind not in (ANNOTATED, CHANGE):
            bound_names.add(mention.name)
    is_dynamic = DYNAMIC_CODE.search(code) or "*" in bound_names
    if not usage.python or not namespace.names or is_dynamic:
        return
    faults = {}  # by the name that raises the error
    if MAGIC_CALL not in code:
        for name in _list_undefined(tree, {*namespace.names, *bound_names}):
            message = f"name {name!r} is not defined"
            faults[name] = _make_fault(NameError, message, name=name)
    is_builtin_input = not namespace.own_input and "input" not in bound_names
    if is_builtin_input and "input" in code and _only_calls_input(tree):
        faults["input"] = Fault(
            "StdinNotImplementedError",
            NO_INPUT_MESSAGE,
            NO_INPUT_CLASSES,
        )
    if not faults:
        return
    exit_line = _find_exit_line(code)
    for statement, name in _iter_loaded_names(tree):
        if name not in faults:
            continue
        nodes = [node for node in _list_names(statement) if node.id == name]
        first_node = min(nodes, key=_get_position)
        if first_node.lineno < exit_line:
            yield Finding(first_node, faults[name])
        return


def _list_undefined(tree: ast.Module, defined: set[str]) -> set[str]:
    """Return the names in a tree that are not defined, not even as builtins."""
    undefined = set()
    for node in _list_names(tree):
        if node.id in defined or node.id in vars(builtins):
            continue
        if not AUTOMATIC_NAME.fullmatch(node.id):
            undefined.add(node.id)
    return undefined


def _only_calls_input(tree: ast.Module) -> bool:
    """Return whether a tree uses the name `input` only to call the function."""
    called = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called.add(id(node.func))
    for name in _list_names(tree):
        if name.id == "input" and id(name) not in called:
            return False
    return True


def _find_exit_line(code: str) -> int:
    """Return the first line at which a cell may stop, or a line below all lines."""
    match = EXITS.search(code)
    if match is None:
        return sys.maxsize
    return code.count("\n", 0, match.start()) + 1


def _list_names(tree: ast.AST) -> list[ast.Name]:
    """Return the nodes of all names in a syntax tree."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            names.append(node)
    return names


def _iter_loaded_names(tree: ast.Module) -> Iterator[tuple[ast.stmt, str]]:
    """Yield the names that are certainly loaded, with their statements.

    Only names before a statement's first branch are certain. Statements that contain
    `try` are skipped.
    """
    # Versions of Python evaluate annotations differently.
    flags = COMPILE_FLAGS | __future__.annotations.compiler_flag
    for statement in tree.body:
        test = getattr(statement, "test", None)
        if isinstance(statement, ast.While) and isinstance(test, ast.Constant):
            return  # the cell may stay in the loop
        nodes = ast.walk(statement)
        if any(isinstance(node, UNCHECKED_STATEMENTS) for node in nodes):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = ast.Module([statement], [])
            code = compile(module, "", "exec", flags, dont_inherit=True)
        for instruction in dis.get_instructions(code):
            opcode = instruction.opcode
            if opcode in dis.hasjrel or opcode in dis.hasjabs:
                break
            if instruction.opname in BRANCHES:
                break
            if instruction.opname == "RAISE_VARARGS":
                return  # the statements below do not run
            if instruction.opname == "LOAD_NAME":
                yield statement, instruction.argval
