"""Suggestions for a name, a module, a path that is not there: where it comes from, where it went, what is like it."""

from __future__ import annotations

import builtins
import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stepper.common.project_files import ENTRIES, scan_folder
from stepper.common.text import one_line
from stepper.diagnosis import distribution_names
from stepper.diagnosis.in_kernel.close_matches import bare, closest, listed, quoted
from stepper.diagnosis.kernel_facts import Look
from stepper.diagnosis.name_similarity import LONGEST
from stepper.diagnosis.project_environment import Surroundings
from stepper.messages import command_messages
from stepper.policy.cell_changes import runnable, source_hash
from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.name_effects import (
    BIND,
    CAUGHT,
    DELETE,
    FUNCTION,
)
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Cell, Fault, Outcome
from stepper.policy.notebook_state import State

# What JSON and JavaScript write, and what Python writes for it.
WRITTEN = {
    "null": "None",
    "true": "True",
    "false": "False",
    "undefined": "None",
    "NaN": "float('nan')",
}
OF_IPYTHON = ("In", "Out", "exit", "quit", "get_ipython")  # names that no cell means
BOUND, DELETED = "bound by", "deleted by"
WAYS = {
    BIND: BOUND,
    DELETE: DELETED,
    CAUGHT: "the error of an `except … as`, unbound at that clause's end:",
}


@dataclass(frozen=True)
class Notebook:
    """The cell that failed, the cells around it and what the kernel told last."""

    cell: Cell
    cells: Sequence[Cell]
    state: State
    known: Namespace
    transform: Callable[[str], str]

    def deletions(self, name: str) -> list[str]:
        """Return how cells that ran in the present kernel unbind a name, the failed cell last."""
        cells = [
            cell
            for cell in runnable(self.cells)
            if cell.id != self.cell.id and cell.id in self.state.ran
        ]
        return [
            f"{how} line {line} of {cell.label}: {line_text(cell, line)}"
            for cell in [*cells, self.cell]
            for line, how in self.changes(cell, name)
            if how != BOUND
        ]

    def definitions(self, name: str) -> tuple[list[str], list[str]]:
        """Return the lines of other cells that bind a name: those that have not run as they stand, and those that ran.

        They are looked for in the sources as they are now.
        """
        pending, ran = list[str](), list[str]()
        for cell in runnable(self.cells):
            if cell.id == self.cell.id:
                continue
            for line, how in self.changes(cell, name):
                if how == BOUND:
                    standing = self.standing(cell, line)
                    found = pending if standing else ran
                    found.append(
                        f"line {line} of {cell.label} ({line_text(cell, line)}), {standing or 'which ran ok'}"
                    )
        return pending, ran

    def standing(self, cell: Cell, line: int) -> str:
        """Return why a line of a cell may not have run as it stands; '' where its cell ran ok with this source."""
        state, source = self.state, source_hash(cell.source)
        if cell.id in state.ran:
            return (
                "" if state.ran[cell.id] == source else "which was changed since it ran"
            )
        if cell.id not in state.counts.values() or cell.id not in state.ran_ever:
            return "which has not run"
        if state.ran_ever[cell.id] != source:
            return "which was changed since it ran"
        run = next(
            (run for run in reversed(state.runs) if run.cell_id == cell.id), None
        )
        if run is None or run.outcome is Outcome.CANCELLED:
            return "which did not run to its end"
        failed_at = run.fault.line if run.fault else None
        if failed_at is None:
            return "which failed"
        return f"which failed at line {failed_at}{', before it' if failed_at < line else ''}"

    def changes(self, cell: Cell, name: str) -> list[tuple[int, str]]:
        """Return the lines of a cell, as it is written, that bind or unbind a name, and how."""
        found = changes(self.transform(cell.source), name)
        return [(written_line(cell.source, line, name), how) for line, how in found]

    def mentioned(self, name: str) -> bool:
        """Whether a code cell holds a name as a word, whether it is meant to run or not."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return any(
            cell.is_code and cell.id != self.cell.id and word.search(cell.source)
            for cell in self.cells
        )

    def hidden(self, name: str) -> list[str]:
        """Return in which function's own scope a name is, if there is one: nothing outside sees it there."""
        for cell in runnable(self.cells):
            for found in name_analysis.analyze_source(
                self.transform(cell.source)
            ).mentions:
                if (found.name, found.how, found.scope) == (name, BIND, FUNCTION):
                    line = written_line(
                        cell.source, found.scope_line, str(found.scope_name)
                    )
                    return [
                        f"`{name}` is local to `{found.scope_name}` (line {line} of {cell.label})"
                    ]
        return []


def changes(source: str, name: str) -> list[tuple[int, str]]:
    """Return the lines of a source that bind or unbind a name at its top level, in order, and how."""
    mentions = name_analysis.analyze_source(source).mentions
    return sorted(
        (each.line, WAYS[each.how])
        for each in mentions
        if each.name == name and not each.scope and each.how in WAYS
    )


def written_line(source: str, line: int, name: str) -> int:
    """Return the line of a cell as it is written, for one of its Python.

    IPython leaves out blank lines above the code, `%%magic` lines and the ends of continued magics.
    """
    lines = source.split("\n")
    head = next((index for index, text in enumerate(lines) if text.strip()), 0)
    while head < len(lines) and lines[head].startswith("%%"):
        head += 1
        line -= line == 0  # what a magic line itself binds
    line = min(max(line + head, 1), len(lines))
    word = re.compile(rf"\b{re.escape(name)}\b")
    return next(
        (at for at in range(line, len(lines) + 1) if word.search(lines[at - 1])), line
    )


def line_text(cell: Cell, line: int) -> str:
    """Return a line of a cell, quoted."""
    return f"`{one_line(cell.source.split(chr(10))[line - 1].strip(), 100)}`"


def name_error(
    fault: Fault, look: Look, notebook: Notebook, surroundings: Surroundings
) -> list[str]:
    """Where a name is defined, was deleted or can't be seen; the closest live names."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    if name in WRITTEN:
        return [f"`{name}` is JSON's; Python writes `{WRITTEN[name]}`"]
    known, variables = notebook.known, notebook.known.variables
    live = {
        other: ""
        for other in known.names
        if not other.startswith("_") and other not in OF_IPYTHON
    }
    live |= {
        other: f" ({command_messages.describe(variable)})"
        for other, variable in variables.items()
    }
    live |= {
        other: f" (the module {module})" for other, module in known.modules.items()
    }
    near = [
        other
        for other in closest(
            name, [*look.locals, *live, *known.functions, *known.classes]
        )
        if not hasattr(builtins, other)
        or difflib.SequenceMatcher(None, other, name).ratio() >= 0.75
    ]
    pending, ran = notebook.definitions(name)
    gone = [f"`{name}` was {how}" for how in notebook.deletions(name)[-1:]]
    said = [f"`{name}` is defined by {where}" for where in pending[:2]] + gone
    said = said or [f"`{name}` is defined by {where}" for where in ran[-1:]]
    said = said or notebook.hidden(name)
    said = said or [
        f"line {line} of {path} defines `{name}`"
        for path, line, _ in surroundings.defining([name])[:2]
    ]
    if near:
        said.append(
            f"closest live names: {', '.join(f'`{other}`{live.get(other, str())}' for other in near)}"
        )
    usual = distribution_names.definition(name)
    if usual and not (near and bare(near[0]) == bare(name)):
        said.append(f"`{usual}` defines it")
    if said or not live:
        return said
    if notebook.mentioned(name):
        return ["no live name is like it"]
    whose = (
        "no other cell"
        if notebook.changes(notebook.cell, name)
        else "no cell of the notebook"
    )
    return [f"no live name is like it, and {whose} defines it"]


def module_error(
    fault: Fault,
    look: Look,
    source: str,
    namespace: Namespace,
    surroundings: Surroundings,
    python: str,
) -> list[str]:
    """A local module; what its package holds; where else its names are; the distribution and what installs it here."""
    name = str(fault.attributes.get("name") or quoted(fault.evalue))
    line = (
        "\n".join(text for _, text in fault.frames[-1].context)
        if fault.frames
        else source
    )
    in_no_package = "relative import" in fault.evalue
    module, names = imported(
        line, r"\.+[\w.]*" if in_no_package else rf"{re.escape(name)}\b[\w.]*"
    )
    module = module.lstrip(".") or name
    inside = [finding.text for finding in look.findings]
    if "ModuleNotFoundError" not in (fault.mro or (fault.ename,)) and not in_no_package:
        circle = "partially initialized" in fault.evalue or "circular" in fault.evalue
        files = [
            f"{frame.file} line {frame.line}"
            for frame in fault.frames
            if frame.file and circle
        ]
        return [
            *([f"a circular import: {' → '.join(files)}"] if files else []),
            *inside,
        ]
    cwd, path = namespace.cwd, namespace.lasting.path if namespace.lasting else ()
    place, on_path = [], False
    for file, folder in (
        surroundings.modules_like(module, cwd) or surroundings.modules_like(name, cwd)
    )[:1]:
        known = {os.path.realpath(os.path.join(cwd, entry)) for entry in path}
        on_path = os.path.realpath(os.path.join(cwd, folder)) in known
        its = f"its folder, {folder!r} from the kernel's, {'is' if on_path else 'is not'} on sys.path"
        place = [f"{file} is a module of that name; {its}"]
    defined = [
        f"line {number} of {file} defines `{what}`"
        for file, number, what in ([] if place else surroundings.defining(names)[:2])
    ]
    if in_no_package:
        return [
            "a notebook's cell is in no package: `.` means nothing in it",
            *(place or defined),
        ]
    if any("no package" in text for text in inside):
        return [*inside, *place]
    if place or inside:
        return inside if inside and (on_path or not place) else place
    distribution = distribution_names.distribution(
        ".".join([module, *names[:1]])
    ) or distribution_names.distribution(name)
    said = [provided(distribution, surroundings, python)] if distribution else []
    there = {
        *sys.stdlib_module_names,
        *(namespace.lasting.imported if namespace.lasting else ()),
    }
    for folder in path:
        there |= {
            one.name.removesuffix(".py")
            for one in islice(scan_folder(os.path.join(cwd, folder)), ENTRIES)
        }
    close = difflib.get_close_matches(name.partition(".")[0], sorted(there), cutoff=0.7)
    if close and not (said or defined):
        return [f"closest modules that are there: {', '.join(close)}"]
    unknown = "no installed module has a name like it, and no distribution is known to stepper that provides it"
    return said + defined or [unknown]


def provided(distribution: str, surroundings: Surroundings, python: str) -> str:
    """Return which distribution provides something, and the command that installs it where one is known to work."""
    install = surroundings.install_command(python, distribution)
    return f"the distribution {distribution} provides it{f': {install}' if install else ''}"


def imported(source: str, module: str) -> tuple[str, list[str]]:
    """Return the first module that a source imports and the pattern `module` fits, with the names taken from it."""
    found = re.search(
        rf"\bfrom\s+({module})\s+import\s+(?:\(([^)]*)|([^\n#;]*))|\bimport\s+(?:[^\n#;]*,\s*)?({module})",
        source,
    )
    if found is None:
        return "", []
    names = re.sub(r"#[^\n]*", "", found[2] or found[3] or "").strip("()\\ ")
    return found[1] or found[4], [
        one.split()[0] for one in names.split(",") if one.strip()
    ]


def file_error(
    fault: Fault, look: Look, surroundings: Surroundings, cwd: str
) -> list[str]:
    """The closest existing paths, as written from the kernel's folder, and that folder; what is missing above."""
    here = [f"the kernel's folder is {surroundings.named(cwd)}"] if cwd else []
    asked = str(fault.attributes.get("filename") or look.path or quoted(fault.evalue))
    if look.program:
        return [finding.text for finding in look.findings] + (
            here if "/" in asked else []
        )
    if fault.ename == "IsADirectoryError":
        held = sorted(
            entry.name
            for entry in islice(scan_folder(os.path.join(cwd, asked)), ENTRIES)
        )
        return [f"{asked!r} is a folder; it holds {listed(held) or 'nothing'}", *here]
    paths = surroundings.paths_like(asked, cwd) if asked else []
    lacks, above = missing_folder(asked, cwd)
    # a path of another machine: what is like it is written from here
    if asked.startswith("/") and lacks:
        paths = [os.path.relpath(path, os.path.realpath(cwd)) for path in paths]
    home = asked.startswith("~")
    said = (
        [
            "`~` is no folder here: Python leaves it as it is, os.path.expanduser replaces it"
        ]
        if home
        else []
    )
    said += [f"closest existing paths: {', '.join(map(repr, paths))}"] if paths else []
    if lacks and not home:
        there = f" ({above!r} does)" if above.strip("./") else ""
        said.append(f"the folder {lacks!r} does not exist{there}")
    if not said and asked:
        said.append("nothing below the project is like it")
    return said + here


def missing_folder(asked: str, cwd: str) -> tuple[str, str]:
    """Return the topmost folder of a path that does not exist, and the one above it; '' for none."""
    above = Path(asked).parents if len(asked) <= LONGEST else ()
    lacks = [
        folder
        for folder in above
        if folder.name and not os.path.lexists(os.path.join(cwd, folder))
    ]
    return (str(lacks[-1]), str(lacks[-1].parent)) if lacks else ("", "")
