"""The results of the name analysis, and helpers for syntax trees.

This module also lists the methods and functions that change an object in place. These
tables decide whether a cell becomes stale; `tests/test_dataflow.py` has a case for each
kind of entry.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

# Kinds of mentions.
BIND = "bind"
CHANGE = "change"  # the object of the name changes in place
ANNOTATED = "annotated"  # `x: int` without a value
DECLARED = "declared"  # `global x` or `nonlocal x`
DELETE = "delete"
CAUGHT = "caught"  # `except E as x`
GLOBAL = "global"  # bound in a function that declares `global x`

# Kinds of scopes.
FUNCTION = "function"
CLASS = "class"
COMPREHENSION = "comprehension"

# Kinds of bindings.
VALUE = "value"
IMPORT = "import"
DEFINED = "defined"


def _split_words(text: str) -> frozenset[str]:
    """Return the words of a text."""
    return frozenset(text.split())


# Methods that change their object in place, whether or not the returned value is used:
# their names, and prefixes of their names.
MUTATING_METHODS = _split_words(
    "fit partial_fit train step backward zero_grad load_state_dict pop popitem popleft"
    " setdefault next send shuffle read readline readlines seek write writelines"
    " writerow writerows put __setitem__"
)
MUTATING_PREFIXES = ("fit_", "add_")
# Methods that change their object only if the returned value is not used:
# `xs.append(x)` changes `xs`, `df = df.append(row)` does not change `df`.
MUTATING_STATEMENT_METHODS = _split_words(
    "append appendleft extend extendleft insert remove discard update add sort reverse"
    " clear rotate fill resize setflags seed set difference_update"
    " intersection_update symmetric_difference_update move_to_end subtract"
)
# Methods of pandas that return a new object, although their names start with `set_` or
# `add_`.
COPYING_METHODS = _split_words(
    "set_index set_axis set_crs set_geometry set_names set_levels set_codes"
    " set_categories set_properties set_caption set_table_styles set_table_attributes"
    " add_prefix add_suffix add_categories"
)
# Functions that change their first argument in place.
FIRST_ARGUMENT_MUTATORS = _split_words(
    "shuffle setattr delattr next fill_diagonal copyto put place putmask heappush"
    " heappop heapify heapreplace heappushpop insort insort_left insort_right"
)


class Mention(NamedTuple):
    """One mention of a name in a source.

    `kind` is BIND, CHANGE, ANNOTATED, DECLARED, DELETE, CAUGHT or GLOBAL. `scope` is
    the kind of the innermost scope, or an empty string for the notebook's namespace.
    """

    name: str
    kind: str
    line: int
    scope: str = ""
    scope_name: str = ""
    scope_line: int = 0


@dataclass(eq=False, repr=False)
class FunctionEffects:
    """The effects of calling a function, or a method of a class, on notebook names."""

    reads: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    binds: set[str] = field(default_factory=set)
    parameters: tuple[str, ...] = ()
    changed_parameters: set[str] = field(default_factory=set)
    # Names that the definition reads: base classes, decorators, defaults, and names in
    # the body of a class.
    definition_reads: set[str] = field(default_factory=set)
    # Methods of a class that change the instance.
    mutating_methods: set[str] = field(default_factory=set)
    # The methods of a class with their effects.
    own_methods: dict[str, FunctionEffects] = field(default_factory=dict)
    # Attributes of any object that a function reads; some of them are methods.
    read_attributes: set[str] = field(default_factory=set)
    # Methods that a function calls on notebook names, as (name, method).
    methods: set[tuple[str, str]] = field(default_factory=set)
    # State outside the variables that a call of a function reads (see `outside_state`).
    # For classes, see `own_methods`.
    outside_reads: set[str] = field(default_factory=set)
    # The state that stands for the database of a connection (see `library_objects`).
    database: str = ""


class FunctionCall(NamedTuple):
    """A call of a function with the names of its arguments.

    The name of an argument is empty if the argument is another kind of expression.
    """

    function: str
    arguments: tuple[str, ...]  # positional
    keywords: Mapping[str, str]  # by parameter

    @property
    def argument_names(self) -> set[str]:
        """The names of all arguments that have a name."""
        names = {*self.arguments, *self.keywords.values()}
        return names - {""}


@dataclass(eq=False, repr=False)
class NameUsage:
    """The names that a cell reads, binds, changes and deletes."""

    # Names that the cell reads before it binds them.
    reads: set[str] = field(default_factory=set)
    # The names in `reads` that only annotations read. A function or class that has such
    # a name is not used, so its effects do not count.
    annotation_reads: set[str] = field(default_factory=set)
    # The names in `reads` that only magics and shell commands read. They need not be
    # bound: IPython keeps `$HOME` as text if there is no such variable.
    magic_reads: set[str] = field(default_factory=set)
    # Name → VALUE, IMPORT or DEFINED.
    binds: dict[str, str] = field(default_factory=dict)
    # Names that the cell binds to a value other than a literal such as 3 or 'a'.
    non_literals: set[str] = field(default_factory=set)
    # Names whose object the cell changes in place.
    changes: set[str] = field(default_factory=set)
    deletes: set[str] = field(default_factory=set)
    # Effects of the functions and classes that the cell defines.
    effects: dict[str, FunctionEffects] = field(default_factory=dict)
    # Calls of functions that other cells may define, if an argument has a name.
    calls: list[FunctionCall] = field(default_factory=list)
    # Function, or object of a method → what the cell had bound when it called the
    # function, or a method of the object, first: names and outside state.
    bound_at_call: dict[str, frozenset[str]] = field(default_factory=dict)
    # Names whose objects the cell puts into another object, or gives another name → the
    # names of the other object.
    shared: dict[str, set[str]] = field(default_factory=dict)
    # Called methods as (name, method).
    methods: set[tuple[str, str]] = field(default_factory=set)
    # Attributes of any object that the cell reads; some of them are methods.
    read_attributes: set[str] = field(default_factory=set)
    # Names whose methods the cell calls, or that it passes to calls, outside functions.
    # Such a call may change the object, even if it is not in `changes`.
    passed: set[str] = field(default_factory=set)
    # Name → the function or class whose call returned the value, or a value of
    # `library_objects.find_creator`.
    created_by: dict[str, str] = field(default_factory=dict)
    # Fingerprints of imports and definitions: equal if the lines of code are equal.
    fingerprints: dict[str, str] = field(default_factory=dict)
    # Name that an import binds → modules: `a.b` for `import a.b`, `a:b` for
    # `from a import b`, which may be a module or a name in a module.
    modules: dict[str, set[str]] = field(default_factory=dict)
    # The modules whose names the source reads, as in `modules`.
    uses: set[str] = field(default_factory=set)
    # Whether the cell binds names that the analysis cannot list.
    star: bool = False
    mentions: list[Mention] = field(default_factory=list)
    # State outside the variables (see `outside_state`) that the source uses, and
    # variables that a text in the source names.
    outside_reads: set[str] = field(default_factory=set)
    outside_changes: set[str] = field(default_factory=set)
    # State that the source replaces → the code of each statement that does it; an empty
    # text if the value depends on variables.
    outside_binds: dict[str, list[str]] = field(default_factory=dict)
    # Names that the source reads for another purpose than to assign their attributes.
    used: set[str] = field(default_factory=set)
    # Whether the source could be parsed as Python.
    python: bool = True
    # For `statement_flow`, which analyzes the statements one by one: the source after
    # IPython's input transformation, IPython's input transformer for code in magics,
    # and the result of the analysis.
    source: str = ""
    transform: Callable[[str], str] | None = None
    statements: list[Any] | None = None


class SourceTree(NamedTuple):
    """A syntax tree, and the text that was parsed."""

    tree: ast.Module
    text: str  # after IPython's input transformation


def parse_source(
    source: str, transform: Callable[[str], str] | None = None
) -> SourceTree | None:
    """Return the syntax tree of a source, or None if the source cannot be parsed.

    `transform` is IPython's input transformer. It is applied only to a source that is
    not plain Python.
    """
    transforms = (None, transform) if transform else (None,)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for transform_source in transforms:
            try:
                text = transform_source(source) if transform_source else source
                return SourceTree(ast.parse(text), text)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
            except Exception:  # noqa: BLE001  # raised by the transformer
                return None
    return None


class ScopeNames(NamedTuple):
    """The local names of a scope, and the names that it declares `global`."""

    local_names: set[str]
    global_names: set[str]


def list_scope_names(body: Iterable[ast.AST]) -> ScopeNames:
    """Return the names that the statements of a function or class body bind.

    Names that are declared `nonlocal` are not included.
    """
    bound = set[str]()
    global_names = set[str]()
    nonlocal_names = set[str]()
    pending = [*body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name):
            if not isinstance(node.ctx, ast.Load):
                bound.add(node.id)
        elif isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            bound.add(node.name)
            pending += node.decorator_list
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Global):
            global_names.update(node.names)
        elif isinstance(node, ast.Nonlocal):
            nonlocal_names.update(node.names)
        elif isinstance(node, COMPREHENSIONS):
            # An assignment expression binds in the scope around the comprehension.
            for child in ast.walk(node):
                if isinstance(child, ast.NamedExpr):
                    bound.add(child.target.id)
        elif not isinstance(node, ast.Lambda):
            # `except E as name`, `case {**rest}`
            for attribute in ("name", "rest"):
                name = getattr(node, attribute, None)
                if isinstance(name, str):
                    bound.add(name)
            pending += ast.iter_child_nodes(node)
    local_names = bound - global_names - nonlocal_names
    return ScopeNames(local_names, global_names)


def list_parameters(args: ast.arguments) -> list[ast.arg]:
    """Return the parameters of a function, in order."""
    parameters = (
        *args.posonlyargs,
        *args.args,
        args.vararg,
        *args.kwonlyargs,
        args.kwarg,
    )
    return [parameter for parameter in parameters if parameter is not None]


def collect_names(nodes: Iterable[ast.AST | None]) -> set[str]:
    """Return the names that occur in syntax trees."""
    names = set[str]()
    for node in nodes:
        if node is None:
            continue
        for child in ast.walk(node):
            if isinstance(child, ast.Name):
                names.add(child.id)
    return names


def collect_free_names(expressions: Iterable[ast.AST | None]) -> set[str]:
    """Return the names in expressions, except names that the expressions bind.

    The excluded names are parameters of lambda expressions, targets of comprehensions
    and targets of assignment expressions.
    """
    names = set[str]()
    bound = set[str]()
    for expression in expressions:
        if expression is None:
            continue
        for child in ast.walk(expression):
            if isinstance(child, ast.arg):
                bound.add(child.arg)
            elif isinstance(child, ast.Name):
                if isinstance(child.ctx, ast.Load):
                    names.add(child.id)
                else:
                    bound.add(child.id)
    return names - bound


def collect_body_reads(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names that are read when the body of a class is executed.

    The bodies of its functions are not executed, but their decorators and the defaults
    of their parameters are evaluated. A name that the body has bound before the read is
    left out.
    """
    names = set[str]()
    bound = set[str]()
    for statement in body:
        reads = _collect_statement_reads(statement) - bound
        new_names = list_scope_names([statement]).local_names
        is_compound = hasattr(statement, "body")
        if is_compound:
            reads -= new_names  # the statement may bind them first
        names |= reads
        bound |= new_names
    return names


def _collect_statement_reads(statement: ast.stmt) -> set[str]:
    """Return the names that are read when a statement of a class body is executed.

    Targets of comprehensions are left out. The statement itself may bind the other
    names before or after it reads them.
    """
    names = set[str]()
    targets = set[str]()
    pending: list[ast.AST | None] = [statement]
    while pending:
        node = pending.pop()
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            pending += getattr(node, "decorator_list", ())
            pending += [*node.args.defaults, *node.args.kw_defaults]
        elif isinstance(node, ast.ClassDef):
            pending += [*node.decorator_list, *node.bases, *node.keywords]
            names |= collect_body_reads(node.body)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                names.add(node.id)
        elif node is not None:
            if isinstance(node, ast.comprehension):
                targets |= collect_names([node.target])
            pending += ast.iter_child_nodes(node)
    return names - targets


def list_changed_arguments(
    effects: FunctionEffects, call: FunctionCall
) -> Iterator[str]:
    """Yield the names of the arguments whose objects a function changes in place.

    `effects` are the effects of the called function.
    """
    names = dict(zip(effects.parameters, call.arguments, strict=False))
    names.update(call.keywords)
    for parameter, name in names.items():
        if name and parameter in effects.changed_parameters:
            yield name


def list_executed_functions(
    effects: FunctionEffects, attributes: Collection[str]
) -> list[FunctionEffects]:
    """Return the effects of the functions that a use of an object may execute.

    `effects` are the effects of the object: a function, a class or an instance.
    `attributes` are attributes that the cell reads. Of a class, these are the special
    methods, such as `__init__`, the methods in `attributes`, and the methods that one
    of these methods calls.
    """
    methods = effects.own_methods
    if not methods:
        return [effects]
    executed = []
    pending = []
    for method in methods:
        if _is_special(method) or method in attributes:
            pending.append(method)
    seen = {*pending}
    while pending:
        method = pending.pop()
        executed.append(methods[method])
        for attribute in methods[method].read_attributes:
            if attribute in methods and attribute not in seen:
                seen.add(attribute)
                pending.append(attribute)
    return executed


def _is_special(method: str) -> bool:
    """Return whether Python itself may call a method, such as `__init__`."""
    return method.startswith("__") and method.endswith("__")


def get_root_name(node: ast.AST | None) -> str:
    """Return the root of attribute accesses and subscripts: `x` for `x.a[0]`.

    Return an empty string for other expressions, such as calls.
    """
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def is_mutating(method: str, *, is_statement: bool) -> bool:
    """Return whether a method changes its object in place.

    `is_statement` is True if the value that the call returns is not used.
    """
    if method in COPYING_METHODS:
        return False
    if method in MUTATING_METHODS or method.startswith(MUTATING_PREFIXES):
        return True
    if not is_statement:
        return False
    return method in MUTATING_STATEMENT_METHODS or method.startswith("set_")


def is_get_ipython(node: ast.AST) -> bool:
    """Return whether an expression is a call of `get_ipython`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id == "get_ipython"
