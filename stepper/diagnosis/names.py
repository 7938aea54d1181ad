"""Suggestions for a name that is not there: where it would come from, where it went, what is like it."""

from __future__ import annotations

import ast
import builtins
import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepper.diagnosis import distributions
from stepper.diagnosis.facts import Look
from stepper.diagnosis.inside.near import bare, closest, listed, quoted
from stepper.ground.text import one_line
from stepper.policy.changes import runnable
from stepper.policy.model import Cell, Fault
from stepper.policy.namespace import Namespace
from stepper.policy.state import State
from stepper.session.ports import Surroundings
from stepper.words import brief

# What JSON and JavaScript write, and what Python writes for it.
WRITTEN = {"null": "None", "true": "True", "false": "False", "undefined": "None", "NaN": "float('nan')"}
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
BOUND, DELETED = "bound by", "deleted by"
CAUGHT = "the error of an `except … as`, unbound at that clause's end:"
FEW = 4  # live variables, all of which are worth a line


@dataclass(frozen=True)
class Notebook:
    """The cell that failed, the cells around it and what the kernel told last."""

    cell: Cell
    cells: Sequence[Cell]
    state: State
    known: Namespace
    transform: Callable[[str], str]

    def changes(self, name: str, ran: bool) -> list[tuple[str, str, str]]:
        """Return how cells that ran in the present kernel, or did not, bind or unbind a name: how, place, text."""
        cells = [
            cell for cell in runnable(self.cells) if cell.id != self.cell.id and (cell.id in self.state.ran) is ran
        ]
        found = []
        for cell in [*cells, self.cell] if ran else cells:
            for line, how in changes(self.transform(cell.source), name):
                text = one_line(cell.source.split("\n")[line - 1].strip(), 100)
                found.append((how, f"line {line} of {cell.label}", f"`{text}`"))
        return found


def name_error(fault: Fault, look: Look, notebook: Notebook, surroundings: Surroundings) -> list[str]:
    """Where a name is defined, was deleted or can't be seen; the closest live names."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    if name in WRITTEN:
        return [f"`{name}` is JSON's; Python writes `{WRITTEN[name]}`"]
    live = live_names(notebook.known)
    near = [
        other for other in closest(name, [*look.locals, *live])
        if not hasattr(builtins, other) or difflib.SequenceMatcher(None, other, name).ratio() >= 0.75
    ]  # fmt: skip
    unrun = [
        f"`{name}` is defined by {place} ({text}), which has not run"
        for how, place, text in notebook.changes(name, ran=False) if how == BOUND
    ]  # fmt: skip
    gone = [
        f"`{name}` was {how} {place}: {text}" for how, place, text in notebook.changes(name, ran=True) if how != BOUND
    ]  # fmt: skip
    said = unrun[:2] + gone[-1:]
    if not said:
        said = [f"line {line} of {path} defines `{name}`" for path, line, _ in surroundings.defining([name])[:2]]
    if near:
        shown = [f"`{other}`" + (f" ({live[other]})" if live.get(other) else "") for other in near]
        said.append(f"closest live names: {', '.join(shown)}")
    usual = distributions.definition(name)
    if usual and not (near and bare(near[0]) == bare(name)):
        said.append(f"`{usual}` defines it")
    if not said or (gone and not near):
        said += others(name, notebook)
    return said or (["no live name is like it, and no cell of the notebook defines it"] if live else [])


def live_names(known: Namespace) -> dict[str, str]:
    """Return every name that the kernel told of, with what it holds in short."""
    names = {name: "" for name in known.names if not name.startswith("_")}
    names |= {name: brief.describe(variable) for name, variable in known.variables.items()}
    names |= dict.fromkeys(known.functions, "a function")
    names |= {name: f"the module {module}" for name, module in known.modules.items()}
    return names | dict.fromkeys(known.classes, "a class")


def others(name: str, notebook: Notebook) -> list[str]:
    """Return the variables that could be meant: those that the cell does not name itself, where they are few."""
    used, variables = re.findall(r"\w+", notebook.cell.source), notebook.known.variables
    free = [f"`{other}` ({brief.describe(variables[other])})" for other in variables if other not in used]
    return [f"other live variables: {listed(free[::-1])}"] if 0 < len(free) <= FEW and not name.isupper() else []


def changes(source: str, name: str) -> list[tuple[int, str]]:
    """Return the lines of a source that bind or unbind a name at its top level, in order, and how."""
    try:
        todo: list[ast.AST] = list(ast.parse(source).body)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Load):
            found.append((node.lineno, BOUND if isinstance(node.ctx, ast.Store) else DELETED))
        elif isinstance(node, ast.ExceptHandler) and node.name == name:
            found.append((node.lineno, CAUGHT))
        elif isinstance(node, (*SCOPES, ast.alias)):
            called = getattr(node, "asname", None) or getattr(node, "name", None) or ""
            found += [(node.lineno, BOUND)] if called.split(".")[0] == name else []
        if not isinstance(node, SCOPES):
            todo += ast.iter_child_nodes(node)
    return sorted(found)
