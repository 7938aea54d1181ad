"""Where a name was bound last: this function, this cell, or the cells that ran before it."""

from __future__ import annotations

import ast
import linecache
from typing import Any

from stack_data.core import Source

from stepper.diagnosis.in_kernel.expression_values import FUNCTIONS, Spot
from stepper.diagnosis.in_kernel.namespace_changes import find_changed_name
from stepper.kernels.in_kernel.cell_sources import (
    find_cell_line,
    get_source_lines,
    order,
)
from stepper.kernels.in_kernel.safe_inspect import get_cell_files, shorten

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CELLS_BACK, LINE, BELOW = 80, 160, 1 << 30
# cell (its execution count, 0 for none), file, line, text; name: what was bound there; argument; verb
Bound = dict[str, Any]


def binding(
    node: ast.AST, spot: Spot, outer: Spot | None = None
) -> tuple[Bound | None, ast.expr | None]:
    """Where an expression (a name, or attributes of one) was bound last, and what it was given there, or taken from.

    Of an argument it is the line of the call.
    """
    wanted, inner, before = ast.unparse(node), spot.function(), spot.line
    part = generator(wanted, spot)
    if part is not None:
        where = line_of(spot.filename, part.target.lineno)
        return {**where, "name": wanted}, part.iter
    if inner is not None:
        nearest = last(inner, wanted, before)
        if nearest is not None:
            where = line_of(spot.filename, nearest.lineno)
            return {**where, "name": wanted}, given(nearest)
        if wanted in {
            argument.arg
            for argument in ast.walk(inner.args)
            if isinstance(argument, ast.arg)
        }:
            return (
                {
                    **line_of(outer.filename, outer.line),
                    "argument": True,
                    "name": wanted,
                }
                if outer is not None
                else None
            ), None
        before = BELOW
    changed: Bound = {}
    for filename in [spot.filename, *earlier(spot)]:
        source = Source.for_filename(filename)
        held = wanted.split(".")[0] in source.text
        nearest = last(source.tree, wanted, before) if held else None
        if held and not changed:
            changed = changed_in(
                source.tree, filename, wanted, nearest.lineno if nearest else 0, before
            )
        if nearest is not None:
            where = line_of(filename, nearest.lineno)
            return {**where, **changed, "name": wanted}, given(nearest)
        before = BELOW
    return (
        binding(node.value, spot, outer)
        if isinstance(node, (ast.Attribute, ast.Subscript))
        else (None, None)
    )


def generator(wanted: str, spot: Spot) -> Any:
    """The `for` of a comprehension around the failing expression that binds a name, None where none does."""
    for comprehension in spot.around(*COMPREHENSIONS, *FUNCTIONS):
        for part in getattr(comprehension, "generators", ()):
            names = [
                each for each in ast.walk(part.target) if isinstance(each, ast.Name)
            ]
            if any(each.id == wanted for each in names):
                return part
        if isinstance(comprehension, FUNCTIONS):
            break
    return None


def changed_in(tree: Any, filename: str, wanted: str, after: int, before: int) -> Bound:
    """The last line of a cell, below `after` and above `before`, that changed what a name holds in place."""
    if not isinstance(tree, ast.Module):
        return {}
    lines: list[int] = [
        getattr(node, "lineno", 0)
        for statement in tree.body
        if not isinstance(statement, (*FUNCTIONS, ast.ClassDef))
        for node in ast.walk(statement)
        if after < getattr(node, "lineno", 0) < before
        and find_changed_name(node) == wanted
    ]
    if not lines:
        return {}
    place_of = line_of(filename, max(lines))
    return {
        f"changed_{name}": place_of[name] for name in ("cell", "file", "line", "text")
    }


def earlier(spot: Spot) -> list[str]:
    """The files of the cells that ran before this one, the last first; what stands below a failing line has not run."""
    counts = get_cell_files()  # in the order in which they first ran
    return [
        name
        for name in sorted(counts, key=lambda name: order(counts[name]), reverse=True)[
            :CELLS_BACK
        ]
        if name != spot.filename
    ]


def last(scope: Any, wanted: str, before: int) -> Any:
    """The node nearest above a line that binds what is wanted, plain names in functions left out.

    One on the line itself holds the old value while it fails.
    """
    body = getattr(scope, "body", None)
    binding, todo = list[Any](), list(body) if isinstance(body, list) else []
    while todo:
        node = todo.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            fits = wanted in [
                (alias.asname or alias.name).split(".")[0] for alias in node.names
            ]
        elif isinstance(node, (ast.Name, ast.Attribute)):
            fits = isinstance(node.ctx, ast.Store) and ast.unparse(node) == wanted
        else:
            fits = getattr(node, "name", None) == wanted and isinstance(node, ast.stmt)
        binding += [node] * (fits and node.lineno < before)
        if isinstance(node, ast.comprehension):  # its target is bound in it alone
            todo += [node.iter, *node.ifs]
        elif not isinstance(node, FUNCTIONS) or "." in wanted:
            todo += ast.iter_child_nodes(node)
    return max(binding, key=lambda node: node.lineno, default=None)


def given(target: ast.AST) -> ast.expr | None:
    above = getattr(target, "parent", None)  # which `executing` sets
    if isinstance(above, ast.Assign):
        return above.value
    while isinstance(above, (ast.Tuple, ast.List)):
        above = getattr(above, "parent", None)
    return above.iter if isinstance(above, (ast.For, ast.AsyncFor)) else None


def line_of(filename: str, line: int) -> Bound:
    """A line of a cell as the person wrote it, or of a file."""
    number, text = 0, linecache.getline(filename, line)
    if filename in get_cell_files():
        number, line = find_cell_line(filename, line)
        text = "".join(get_source_lines(number)[line - 1 : line])
    return {
        "cell": number,
        "file": "" if number else shorten(filename),
        "line": line,
        "text": shorten(text.strip(), LINE),
    }


def hidden(name: str, spot: Spot) -> dict[str, Any] | None:
    """Why a name is not to be seen: its function makes it local, or a class body keeps it from what is inside it."""
    for scope in spot.around(*FUNCTIONS, ast.ClassDef):
        nearest = last(scope, name, BELOW)
        if nearest is None:
            continue
        where = line_of(spot.filename, nearest.lineno)
        if isinstance(scope, ast.ClassDef):
            text = (
                f"`{name}` is an attribute of the class {scope.name}, which functions and comprehensions inside its"
                f" body can't see; in a method, write `{scope.name}.{name}`"
            )
            return {"text": text, "bound": {**where, "verb": "set by"}}
        outside = (
            " (a global of that name exists)" if name in spot.frame.f_globals else ""
        )
        return {
            "text": f"`{name}` is local to {function_name(scope)}, which assigns it{outside}",
            "bound": {**where, "verb": "assigned by"},
        }
    return None


def function_name(scope: Any) -> str:
    name = getattr(scope, "name", "")
    return f"`{shorten(name, 80)}`" if name else "a lambda"
