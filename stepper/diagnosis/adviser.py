"""What a report adds to a run's end: the suggestion, what was bound and written before a failure, doubts, pictures.

The facts come from the kernel's helper, the notebook's other cells, the project's files and its environment; the words
are core's.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stepper.diagnosis import before as beforehand
from stepper.diagnosis import distributions, doubts, pictures, suggest
from stepper.diagnosis.around import Around, listed, quoted
from stepper.diagnosis.imports import of_module, relative
from stepper.diagnosis.unbound import unbound
from stepper.ground.text import one_line
from stepper.policy.changes import runnable
from stepper.policy.model import Cell, Fault, Run
from stepper.policy.state import State
from stepper.session.ports import Execution, Pictures, Surroundings
from stepper.words import brief

log = logging.getLogger("stepper")
FILES = ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError")


def harmless(otherwise: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a method log what goes wrong in it and return `otherwise`: advice must never cost a run its report."""

    def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def advise(self: Adviser, *given: Any) -> Any:
            try:
                return method(self, *given)
            except Exception:
                log.exception("advice failed: %s", method.__name__)
                return otherwise(*given)

        return advise

    return wrap


@dataclass
class Adviser:
    """Advises on the cells of one notebook. `path` is the notebook's, which stepper itself writes."""

    path: str
    surroundings: Surroundings
    pictures: Pictures
    transform: Callable[[str], str]

    @harmless(lambda cell, facts: None)
    def before(self, cell: Cell, facts: Mapping[str, Any]) -> Fault | None:
        """Return the fault that a cell would end with for certain, as far as its source and the last facts tell."""
        magics = facts.get("magics")
        known = beforehand.Known(
            frozenset(facts.get("names") or ()),
            frozenset({"input"} if facts.get("own_input") else ()),
            tuple(facts.get("python") or (0, 0)),
            None if magics is None else frozenset(magics),
        )
        return beforehand.check(cell.source, known, lambda name: self._findable(name, facts), self.transform)

    def _findable(self, name: str, facts: Mapping[str, Any]) -> bool:
        """Whether a module may be there; what is not known may be."""
        path = facts.get("path")
        if not path or facts.get("other_finders") or name in facts.get("imported", ()):
            return True
        return self.surroundings.findable(name, path, facts["cwd"])

    @harmless(lambda fault, *others: fault)
    def suggested(
        self, fault: Fault, look: Mapping[str, Any], cell: Cell, cells: Sequence[Cell], state: State,
        facts: Mapping[str, Any], python: str,
    ) -> Fault:  # fmt: skip
        """Return the fault with its suggestion."""
        around = Around(
            source=cell.source,
            names=live(facts),
            largest=brief.largest(dict(facts)),
            folder=self.surroundings.named(facts["cwd"]) if facts.get("cwd") else "",
            cwd=facts.get("cwd") or "",
            place=lambda bound: place(bound, cells, state),
        )
        classes = set(fault.mro or (fault.ename,))
        name = str(fault.attributes.get("name") or quoted(fault.evalue))
        with contextlib.suppress(OSError):  # a folder that went away: the report matters more
            if "NameError" in classes:
                around = self._around_name(around, name, cell, cells, state)
            elif "ImportError" in classes:
                around = self._around_module(around, fault, name, facts.get("path") or (), python)
            elif classes.intersection(FILES):
                around = self._around_path(around, fault, look)
        return replace(fault, suggestion=one_line(suggest.hint(fault, look, around), suggest.LONGEST))

    def _around_name(self, around: Around, name: str, cell: Cell, cells: Sequence[Cell], state: State) -> Around:
        """Where a name would come from, or where it went."""
        gone = []
        for other in runnable(cells):
            ran = other.id in state.ran or other.id == cell.id
            found = unbound(self.transform(other.source), name) if ran else None
            if found:
                line, how = found
                text = one_line(other.source.split("\n")[line - 1].strip(), 100)
                gone.append(f"{how} line {line} of {other.label}: `{text}`")
        unrun = self._unrun(name, cell, cells, state)
        defined = () if unrun or gone else self.surroundings.defining([name])
        return replace(around, unrun=unrun, gone=gone[::-1], defined=defined)

    def _around_module(self, around: Around, fault: Fault, name: str, path: Sequence[str], python: str) -> Around:
        """Where a module is that can't be imported, as the failing line names it, and what its line takes from it."""
        line = "\n".join(text for _, text in fault.frames[-1].context) if fault.frames else around.source
        module, names = relative(line) if "relative import" in fault.evalue else of_module(line, name)
        if "ModuleNotFoundError" not in (fault.mro or (fault.ename,)) and "relative import" not in fault.evalue:
            return around
        asked = ".".join([module, *names[:1]])
        distribution = distributions.distribution(asked) or distributions.distribution(name)
        local = self.surroundings.modules_like(module, around.cwd) or self.surroundings.modules_like(name, around.cwd)
        known = {os.path.realpath(os.path.join(around.cwd, folder)) for folder in path}
        return replace(
            around,
            asked=asked,
            local=local,
            on_path=bool(local) and os.path.realpath(os.path.join(around.cwd, local[0][1])) in known,
            defined=() if local else self.surroundings.defining(names),
            modules=self.surroundings.modules_close(name, path, around.cwd),
            install=self.surroundings.install_command(python, distribution) if distribution else "",
        )

    def _around_path(self, around: Around, fault: Fault, look: Mapping[str, Any]) -> Around:
        """What is like a path that is missing, and which of its folders is missing too."""
        asked = str(fault.attributes.get("filename") or look.get("path") or quoted(fault.evalue))
        paths = self.surroundings.paths_like(asked, around.cwd) if asked and not look.get("program") else []
        lacks = self.surroundings.missing_folder(asked, around.cwd)
        if asked.startswith("/") and lacks[0]:  # a path of another machine: what is like it is written from here
            paths = [os.path.relpath(path, os.path.realpath(around.cwd)) for path in paths]
        holds = self.surroundings.entries(asked, around.cwd) if "IsADirectoryError" in fault.mro else ()
        return replace(around, asked=asked, paths=paths, lacks=lacks, holds=holds)

    def _unrun(self, name: str, cell: Cell, cells: Sequence[Cell], state: State) -> list[str]:
        """Return where other cells, which have not run in the present kernel, define a name."""
        found = []
        for other in runnable(cells):
            line = None if other.id in state.ran or other.id == cell.id else self._binds(other.source, name)
            if line is not None:
                text = other.source.split("\n")[line - 1].strip()
                found.append(f"line {line} of {other.label} (`{one_line(text, 100)}`)")
        return found

    def _binds(self, source: str, name: str) -> int | None:
        """Return the line of a source that binds a name at its top level, or None."""
        try:
            tree = ast.parse(self.transform(source))
        except (SyntaxError, ValueError, RecursionError):
            return None
        todo: list[ast.AST] = list(tree.body)
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

    @harmless(lambda changed, since_ns: [])
    def kept(self, changed: Mapping[str, Any] | None, since_ns: int) -> list[str]:
        """Return what a failed cell had bound and written before it failed: a retry begins with that."""
        changed = changed or {}
        rebound = [f"`{name}`: {old} → {new}" for name, old, new in changed.get("rebound") or ()]
        in_place = [f"`{name}` (line {line})" for name, line in changed.get("in_place") or ()]
        bound = [f"`{name}`" for name in changed.get("bound") or ()]
        written = [f"{path} ({size:,} bytes)" for path, size in self.surroundings.written_since(since_ns, [self.path])]
        parts = [
            "rebound " + listed(rebound, 300) if rebound else "",
            "changed in place " + listed(in_place, 200) if in_place else "",
            "bound " + listed(bound, 120) if bound else "",
            "wrote " + listed(written, 200) if written else "",
        ]
        told = "; ".join(filter(None, parts))
        return [one_line(f"before failing, this cell {told}", 600)] if told else []

    @harmless(lambda run, facts: True)
    def changed_since(self, run: Run, facts: Mapping[str, Any]) -> bool:
        """Whether a file of the project or its environment changed after a run ended: it may end otherwise now."""
        began = datetime.fromisoformat(run.started_at.replace("Z", "+00:00")).timestamp()
        missing = run.fault.attributes.get("filename") if run.fault else None
        if missing and os.path.lexists(os.path.join(str(facts.get("cwd") or ""), str(missing))):
            return True  # it may lie where the walk does not look
        ended = int((began + run.duration_s + 0.001) * 1e9)  # times in the journal are cut at milliseconds
        if ended > time.time_ns():  # the clock was set back: times tell nothing
            return True
        return self.surroundings.changed_since(ended, [self.path], facts.get("path") or ())

    @harmless(lambda execution, run: [])
    def seen(self, execution: Execution, run: int) -> list[str]:
        """Save the pictures of a run; return the lines on them and on other rich outputs."""
        saved = self.pictures.save(execution.pictures, run)
        lines = pictures.lines(saved, execution.facts.get("figures") or [])
        return [*lines, *pictures.rich(execution.outputs, execution.facts.get("figures") or [])]


def doubtful(execution: Execution) -> list[str]:
    """Return the doubts on a run that ended well."""
    return doubts.lines(execution.facts.get("doubts") or [])


def live(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return every name that the kernel told of, with what it holds in short."""
    names = dict.fromkeys(facts.get("names") or (), "")
    names = {name: "" for name in names if not name.startswith("_")}
    names |= {name: brief.describe(fact) for name, fact in (facts.get("variables") or {}).items()}
    names |= dict.fromkeys(facts.get("functions") or (), "a function")
    names |= {name: f"the module {module}" for name, module in (facts.get("modules") or {}).items()}
    return names | dict.fromkeys(facts.get("classes") or (), "a class")


def place(bound: Mapping[str, Any], cells: Sequence[Cell], state: State) -> str:
    """Return how a report names the place where something was bound: a file, or a cell by its execution count."""
    if bound.get("file"):
        return one_line(str(bound["file"]), 200)
    name = state.counts.get(bound.get("cell") or 0)
    found = next((cell for cell in cells if cell.id == name), None)
    return found.label if found else "this cell" if name is None else "a cell that is gone"
