"""Suggestions for a name or a module that is not there: where it would come from, where it went, what is like it."""

from __future__ import annotations

import ast
import builtins
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stepper.diagnosis import distributions
from stepper.diagnosis.facts import Look
from stepper.diagnosis.imports import of_module, relative
from stepper.diagnosis.inside.near import bare, closest, listed, quoted
from stepper.diagnosis.surroundings import Surroundings
from stepper.diagnosis.unbound import unbound
from stepper.ground.text import one_line
from stepper.policy.changes import runnable
from stepper.policy.model import Cell, Fault
from stepper.policy.namespace import Namespace
from stepper.policy.state import State
from stepper.words import brief

# What JSON and JavaScript write, and what Python writes for it.
WRITTEN = {"null": "None", "true": "True", "false": "False", "undefined": "None", "NaN": "float('nan')",
           "Infinity": "float('inf')"}  # fmt: skip
PRIMITIVE = ("int", "float", "str", "bool", "NoneType")
FEW = 4  # live variables, all of which are worth a line


@dataclass(frozen=True)
class Notebook:
    """The cell that failed, the cells around it and what the kernel told last."""

    cell: Cell
    cells: Sequence[Cell]
    state: State
    known: Namespace
    transform: Callable[[str], str]

    def others(self, ran: bool) -> list[Cell]:
        """Return the cells beside it that ran in the present kernel, or those that did not."""
        beside = [cell for cell in runnable(self.cells) if cell.id != self.cell.id]
        return [cell for cell in beside if (cell.id in self.state.ran) is ran]

    def line(self, cell: Cell, number: int) -> str:
        """Return a line of a cell, as it is quoted."""
        return one_line(cell.source.split("\n")[number - 1].strip(), 100)


def name_error(fault: Fault, look: Look, notebook: Notebook, surroundings: Surroundings) -> list[str]:
    """Where a name is defined, was deleted or can't be seen; the closest live names."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    live = live_names(notebook.known)
    near = [other for other in closest(name, [*(n for n in look.locals if n != name), *live]) if meant(other, name)]
    unrun = [(cell, line) for cell in notebook.others(ran=False) for line in [binds(notebook, cell, name)] if line]
    gone = [
        f"`{name}` was {unbinds[1]} line {unbinds[0]} of {cell.label}: `{notebook.line(cell, unbinds[0])}`"
        for cell in [*notebook.others(ran=True), notebook.cell]
        for unbinds in [unbound(notebook.transform(cell.source), name)] if unbinds
    ][-1:]  # fmt: skip
    files = [] if unrun or gone else surroundings.defining([name])
    usual = distributions.definition(name)
    said = [f"`{name}` is JSON's; Python writes `{WRITTEN[name]}`"] if name in WRITTEN else []
    said += [
        f"`{name}` is defined by line {line} of {cell.label} (`{notebook.line(cell, line)}`), which has not run"
        for cell, line in unrun[:2]
    ]
    said += gone + [f"line {line} of {path} defines `{name}`" for path, line, _ in files[:2]]
    if near and name not in WRITTEN:
        shown = [f"`{other}`" + (f" ({live[other]})" if live.get(other) else "") for other in near]
        said.append(f"closest live names: {', '.join(shown)}")
    if usual and not (near and bare(near[0]) == bare(name)):
        said.append(f"`{usual}` defines it")
    if not said or (gone and not near):
        said += others(name, live, notebook.cell.source)
    return said or (["no live name is like it, and no cell of the notebook defines it"] if live else [])


def live_names(known: Namespace) -> dict[str, str]:
    """Return every name that the kernel told of, with what it holds in short."""
    names = {name: "" for name in known.names if not name.startswith("_")}
    names |= {name: brief.describe(variable) for name, variable in known.variables.items()}
    names |= dict.fromkeys(known.functions, "a function")
    names |= {name: f"the module {module}" for name, module in known.modules.items()}
    return names | dict.fromkeys(known.classes, "a class")


def meant(other: str, name: str) -> bool:
    """Whether a close name may be the one meant: a builtin only where it differs by a letter or two."""
    return not hasattr(builtins, other) or difflib.SequenceMatcher(None, other, name).ratio() >= 0.75


def others(name: str, live: Mapping[str, str], source: str) -> list[str]:
    """Return the live variables that could be meant: those that the cell does not name itself.

    A name that is only passed on may be anything: of many variables none is likelier than the others.
    """
    used, apart = set(re.findall(r"\w+", source)), ("", "a function", "a class")
    free = [n for n, what in live.items() if n not in used and what not in apart and not what.startswith("the module ")]
    if re.search(rf"\b{re.escape(name)}\s*[.\[]", source):  # a number has no attributes worth a line
        free = [other for other in free if live[other].split()[0].rstrip(",") not in PRIMITIVE]
    elif len(free) > FEW or name.isupper():
        return []
    shown = [f"`{other}` ({live[other]})" for other in reversed(free)]
    return [f"other live variables: {listed(shown)}"] if free else []


def binds(notebook: Notebook, cell: Cell, name: str) -> int | None:
    """Return the line of a cell that binds a name at its top level, or None."""
    try:
        todo: list[ast.AST] = list(ast.parse(notebook.transform(cell.source)).body)
    except (SyntaxError, ValueError, RecursionError):
        return None
    while todo:
        node = todo.pop(0)
        bound = [getattr(node, "name", None)]
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound = [node.id]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            bound = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
        if name in bound:
            return getattr(node, "lineno", 1)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo += ast.iter_child_nodes(node)
    return None


# --- modules -------------------------------------------------------------------------------------------------------


def module_error(fault: Fault, look: Look, notebook: Notebook, surroundings: Surroundings, python: str) -> list[str]:
    """A local module; what its package holds; where else its names are; the distribution and what installs it here."""
    namespace, name = notebook.known, str(fault.attributes.get("name") or quoted(fault.evalue))
    line = "\n".join(text for _, text in fault.frames[-1].context) if fault.frames else notebook.cell.source
    in_no_package = "relative import" in fault.evalue
    module, names = relative(line) if in_no_package else of_module(line, name)
    inside = [finding.text for finding in look.findings]
    if "ModuleNotFoundError" not in (fault.mro or (fault.ename,)) and not in_no_package:
        return [*circle(fault), *inside]
    cwd, path = namespace.cwd, namespace.lasting.path if namespace.lasting else ()
    local = surroundings.modules_like(module, cwd) or surroundings.modules_like(name, cwd)
    known = {os.path.realpath(os.path.join(cwd, folder)) for folder in path}
    on_path = bool(local) and os.path.realpath(os.path.join(cwd, local[0][1])) in known
    place = [
        f"{local[0][0]} is a module of that name; its folder, {local[0][1]!r} from the kernel's,"
        f" {'is' if on_path else 'is not'} on sys.path"
    ] if local else []  # fmt: skip
    places = [] if local else surroundings.defining(names)
    defined = [f"line {number} of {file} defines `{what}`" for file, number, what in places]
    if in_no_package:
        return ["a notebook's cell is in no package: `.` means nothing in it", *(place or defined[:2])]
    hides = [text for text in inside if "no package" in text]
    if hides or (inside and on_path) or (inside and not local):
        return [*inside, *place] if hides else inside
    if place:
        return place
    asked = ".".join([module, *names[:1]])
    distribution = distributions.distribution(asked) or distributions.distribution(name)
    install = f": {surroundings.install_command(python, distribution)}" if distribution else ""
    said = [f"the distribution {distribution} provides it{install}"] if distribution else []
    said += defined[:2]
    close = surroundings.modules_close(name, path, cwd) if not said else []
    said += [f"closest modules that are there: {', '.join(close)}"] if close else []
    return said or ["no installed module has a name like it, and no distribution is known to stepper that provides it"]


def circle(fault: Fault) -> list[str]:
    """Return the files of a circular import, in the order in which they import one another."""
    if "partially initialized" not in fault.evalue and "circular" not in fault.evalue:
        return []
    files = [f"{frame.file} line {frame.line}" for frame in fault.frames if frame.file]
    return [f"a circular import: {' → '.join(files)}"] if files else []
