"""State outside the variables that code uses: seeds, options, files, environment.

The analysis treats each kind of state like a variable. Its name is not an identifier.
For random numbers, options and the environment, the kernel's undo reports the same
names. Only files whose paths are literals in the source are known.
"""

from __future__ import annotations

import ast
import posixpath
import re
from typing import Any, NamedTuple

from stepper.policy.dataflow.name_effects import collect_names, is_mutating

RANDOM = "random numbers"
NUMPY_RANDOM = "numpy random numbers"
TORCH_RANDOM = "torch random numbers"
ENVIRONMENT = "environment variables"
PANDAS = "pandas options"
NUMPY = "numpy print options"
PLOTS = "matplotlib settings"
INLINE_PLOTS = "settings of inline plots"
IPYTHON = "IPython settings"
# The value of `_`.
LAST_RESULT = "the last result"

DISPLAY_OPTIONS = frozenset({PANDAS, NUMPY})
# Classes that `%config` can configure and whose options affect outputs → state.
CONFIGURED = {"InlineBackend": INLINE_PLOTS, "InteractiveShell": IPYTHON}
NO_RESULT = frozenset({"print", "display"})
# Functions and methods that return plain values, which display options do not affect.
_PLAIN_RESULTS = """
    len int bool id type isinstance hasattr range append extend close commit execute
    executemany executescript format join mkdir savefig show to_csv to_sql write
    write_bytes write_text set_option reset_option set_printoptions
"""
PLAIN_RESULTS = frozenset(_PLAIN_RESULTS.split())
MAGICS = frozenset({"run_line_magic", "run_cell_magic", "system"})

SEEDS = {
    "random.seed": RANDOM,
    "np.random.seed": NUMPY_RANDOM,
    "numpy.random.seed": NUMPY_RANDOM,
    "torch.manual_seed": TORCH_RANDOM,
}
# Prefixes of functions that draw random numbers.
DRAWS = {
    "random.": RANDOM,
    "np.random.": NUMPY_RANDOM,
    "numpy.random.": NUMPY_RANDOM,
    "torch.rand": TORCH_RANDOM,
}
NO_DRAWS = re.compile(
    r"\.(default_rng|Generator|RandomState|SeedSequence|get_state|getstate|Random"
    r"|SystemRandom)$"
)
# Methods of options and the environment that only read.
NO_SETTERS = (".get", ".copy", ".items", ".keys", ".values")
# Functions, and prefixes of assigned attributes, that set options.
SETTERS = {
    "pd.set_option": PANDAS,
    "pandas.set_option": PANDAS,
    "pd.options": PANDAS,
    "np.set_printoptions": NUMPY,
    "numpy.set_printoptions": NUMPY,
    "plt.style.use": PLOTS,
    "plt.rcParams": PLOTS,
    "mpl.rcParams": PLOTS,
    "matplotlib.rcParams": PLOTS,
    "plt.rc": PLOTS,
    "mpl.rc": PLOTS,
    "sns.set": PLOTS,
    "os.environ": ENVIRONMENT,
    "os.putenv": ENVIRONMENT,
}
# Prefixes of functions and attributes that read state.
READERS = {
    "os.environ": ENVIRONMENT,
    "os.getenv": ENVIRONMENT,
    "plt.": PLOTS,
    "sns.": PLOTS,
}
# Functions and methods that set the option that their first argument names.
KEY_SETTERS = (".set_option", ".putenv", ".setdefault", ".pop")
ENVIRONMENT_READERS = frozenset({"os.getenv", "os.environ.get"})
FUNCTION_READERS = {"print": NUMPY, "display": PANDAS}
# States with several parts, such as options, which different cells may set. A part has
# a name of its own if the source sets it by a literal key; see `name_part`. The last
# setter of the state itself need not have set the part that a cell reads.
PARTED_STATES = frozenset({PANDAS, NUMPY, PLOTS, ENVIRONMENT})
PLOT_METHODS = ("plot", "hist", "scatter", "bar", "imshow", "show", "boxplot")
FILE_READERS = re.compile(r"\.(read_\w+|load|loadtxt|genfromtxt|imread)$")
FILE_WRITERS = re.compile(r"\.(to_\w+|save|savez|savez_compressed|savetxt)$")
PATH_WRITERS = ("write_text", "write_bytes")
PATH_READERS = ("read_text", "read_bytes")
OPENERS = frozenset({"open", "io.open", "gzip.open", "bz2.open", "lzma.open"})
WRITE_MODES = frozenset("wax+")


class OutsideUse(NamedTuple):
    """A use of state outside the variables; `name` is the state.

    If `sets` is true, the value of the state is replaced. If `changes` is true, the new
    value depends on the former value. Otherwise, the state is only read.
    """

    name: str
    sets: bool = False
    changes: bool = False


def get_dotted_name(node: ast.AST) -> str:
    """Return the text of a name with attributes, such as `np.random.seed`.

    Return an empty string for other expressions.
    """
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def name_file(path: str) -> str:
    """Return the name of the state that stands for the content of a file."""
    return f"file {path.removeprefix('./')!r}"


def name_part(state: str, key: str) -> str:
    """Return the name of a part of a state, or of the state if the key is empty."""
    return f"{state} '{key}'" if key else state


def get_whole_state(name: str) -> str:
    """Return the state that a name is a part of, or the name itself."""
    state = name.partition(" '")[0]
    return state if state in PARTED_STATES else name


def get_text(node: ast.expr | None) -> str:
    """Return the value of a string literal; an empty string for other expressions."""
    value = getattr(node, "value", None)
    return value if isinstance(value, str) else ""


def find_call_use(node: ast.Call) -> OutsideUse | None:
    """Return a call's use of state outside the variables, or None."""
    name = get_dotted_name(node.func)
    if name in SEEDS:
        return OutsideUse(SEEDS[name], sets=True)
    for prefix, state in SETTERS.items():
        if name.startswith(prefix) and not name.endswith(NO_SETTERS):
            return OutsideUse(name_part(state, _find_set_key(node, name)), sets=True)
    for prefix, state in DRAWS.items():
        if name.startswith(prefix) and not NO_DRAWS.search(name):
            return OutsideUse(state, changes=True)
    use = _find_file_use(node, name)
    if use is not None:
        return use
    if name in NO_RESULT and not may_show_object(node):
        return None
    if name in FUNCTION_READERS:
        return OutsideUse(FUNCTION_READERS[name])
    if name in ENVIRONMENT_READERS:
        key = get_text(node.args[0]) if node.args else ""
        return OutsideUse(name_part(ENVIRONMENT, key))
    for prefix, state in READERS.items():
        if name.startswith(prefix):
            return OutsideUse(state)
    if name.rpartition(".")[2] in PLOT_METHODS:
        return OutsideUse(PLOTS)
    return None


def _find_set_key(node: ast.Call, name: str) -> str:
    """Return the literal key of the option that a call sets, or an empty string."""
    keywords = [keyword.arg or "" for keyword in node.keywords]
    if name.endswith(".set_printoptions") and not node.args and all(keywords):
        return ", ".join(sorted(keywords))
    if name.endswith(KEY_SETTERS) and 1 <= len(node.args) <= 2:
        return get_text(node.args[0])
    return ""


def _find_file_use(node: ast.Call, name: str) -> OutsideUse | None:
    """Return a call's use of a file whose path is a literal, or None.

    `name` is the dotted name of the called function.
    """
    arguments = [*node.args]
    path_parts = arguments[:1]
    method = getattr(node.func, "attr", "")
    path_object: Any = getattr(node.func, "value", None)
    is_opened_path = method == "open" and _is_path_call(path_object)
    if method in PATH_WRITERS or method in PATH_READERS or is_opened_path:
        # `Path("x").open("w")` has the arguments of `open("x", "w")`.
        arguments = [path_object, *arguments]
        path_parts = getattr(path_object, "args", [])
    path = _join_literals(path_parts)
    if not path:
        return None
    state = name_file(path)
    if name in OPENERS or is_opened_path:
        mode = get_text(arguments[1]) if len(arguments) > 1 else ""
        for keyword in node.keywords:
            if keyword.arg == "mode":
                mode = get_text(keyword.value)
        return OutsideUse(state, sets=not WRITE_MODES.isdisjoint(mode))
    if method in PATH_WRITERS or FILE_WRITERS.search(f".{method}"):
        return OutsideUse(state, sets=True)
    if method in PATH_READERS or FILE_READERS.search(f".{method}"):
        return OutsideUse(state)
    return None


def _join_literals(parts: list[ast.expr]) -> str:
    """Return the path with these parts.

    Return an empty string if there are no parts, or if a part is not a string literal.
    """
    texts = [get_text(part) for part in parts]
    if texts and all(texts):
        return posixpath.join(*texts)
    return ""


def _is_path_call(node: ast.expr | None) -> bool:
    """Return whether an expression is a call such as `Path("x")`.

    Objects that other calls return may have a method `open`, too, for example
    `ZipFile("x.zip")`.
    """
    if not isinstance(node, ast.Call):
        return False
    name = get_dotted_name(node.func)
    return name.rpartition(".")[2] == "Path"


def find_element_use(node: ast.Attribute | ast.Subscript) -> OutsideUse | None:
    """Return the use of outside state by an attribute or item, or None.

    The attribute or item is read, assigned or deleted.
    """
    is_read = isinstance(node.ctx, ast.Load)
    target: ast.AST = node
    if isinstance(node, ast.Subscript):
        target = node.value
    name = get_dotted_name(target)
    table = READERS if is_read else SETTERS
    for prefix, state in table.items():
        if not name.startswith(prefix):
            continue
        key = name.removeprefix(prefix).lstrip(".")
        if isinstance(node, ast.Subscript):
            key = get_text(node.slice)
        if is_read and state != ENVIRONMENT:
            key = ""  # plots depend on all settings
        return OutsideUse(name_part(state, key), sets=not is_read)
    return None


def list_attribute_uses(
    node: ast.Attribute | ast.Subscript, value: ast.expr | None
) -> list[OutsideUse]:
    """Return the uses of outside state by an assignment such as `module.x = 1`.

    `value` is the assigned value, or None if it is not known. The state is the
    attribute itself. The attribute is also read if the new value depends on the former
    value. The binding table decides whether the object is a module or a class.
    """
    target: ast.AST = node
    if isinstance(node, ast.Subscript):
        target = node.value
    name = get_dotted_name(target)
    if "." not in name:
        return []
    state = name
    is_read = value is None
    if isinstance(node, ast.Subscript):
        key = get_text(node.slice)
        state = f"{name}[{key!r}]"
        is_read = is_read or not key
    if value is not None:
        for child in ast.walk(value):
            is_read = is_read or get_dotted_name(child) == name
    use = OutsideUse(state, sets=True)
    return [OutsideUse(state), use] if is_read else [use]


def may_show_object(node: ast.expr) -> bool:
    """Return whether the value of an expression may be a table or an array.

    For a call of `print` or `display`, return whether an argument may be one.
    """
    if isinstance(node, ast.Constant):
        return False
    if isinstance(node, ast.Call):
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if function in NO_RESULT:
            return any(may_show_object(argument) for argument in node.args)
        return function not in PLAIN_RESULTS and not _is_magic_without_result(node)
    if isinstance(node, (ast.JoinedStr, ast.List, ast.Tuple, ast.BinOp)):
        return any(
            may_show_object(child)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr)
        )
    return not isinstance(node, ast.Lambda)


def _is_magic_without_result(node: ast.expr) -> bool:
    """Return whether an expression is a shell command, or a magic except `%time`."""
    if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") not in MAGICS:
        return False
    return not node.args or get_text(node.args[0]) != "time"


def has_result(node: ast.stmt) -> bool:
    """Return whether a statement may have a result, which IPython assigns to `_`."""
    if not isinstance(node, ast.Expr):
        return False
    function = getattr(node.value, "func", None)
    if isinstance(function, ast.Attribute) and is_mutating(
        function.attr, is_statement=True
    ):
        return False
    if _is_magic_without_result(node.value):
        return False
    return getattr(function, "id", "") not in NO_RESULT


def describe_setter(node: ast.expr, source: str, value: ast.expr | None = None) -> str:
    """Return a text that is equal for code that sets the same state to the same value.

    `node` is a call, or a target to which `value` is assigned. `value` is None for a
    call, and for a target that is deleted, for example. Return an empty string if the
    value, the key of the target, or an argument of the call depends on variables.
    `source` is the source of the cell.
    """
    inputs: list[ast.AST | None] = [value, getattr(node, "slice", None)]
    if isinstance(node, ast.Call):
        inputs = [*node.args, *node.keywords]
    if collect_names(inputs):
        return ""
    if isinstance(node, ast.Call):
        return ast.dump(node)
    if value is not None:
        return f"{ast.dump(node)} {ast.dump(value)}"
    lines = source.split("\n")
    return "".join(lines[node.lineno - 1 : node.end_lineno])


def find_text_reads(node: ast.Call) -> list[str]:
    """Return the names that a string argument contains as code.

    Examples are `query("x > @y")` and `eval("a")`.
    """
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    text = get_text(node.args[0]) if node.args else ""
    if not text:
        return []
    if isinstance(node.func, ast.Attribute) and name in ("query", "eval"):
        return re.findall(r"@(\w+)", text)
    if name in ("eval", "exec"):
        return re.findall(r"[^\W\d]\w*", text)
    return []
