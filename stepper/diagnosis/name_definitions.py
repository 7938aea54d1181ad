"""What a notebook's cells say of a name: which lines define or delete it, and whether those lines ran.

The cells are read as they stand in the file. What became of them comes from the journal: a cell that ran, failed above
the line or was changed since is told as such, each in words of its own.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepper.common.text import one_line
from stepper.policy.cell_changes import hash_source, select_runnable
from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.name_effects import (
    ANNOTATED,
    BIND,
    CAUGHT,
    CLASS,
    COMPREHENSION,
    DELETE,
    FUNCTION,
    GLOBAL,
    Mention,
    NameUsage,
)
from stepper.policy.journal_events import RunEnded
from stepper.policy.kernel_namespace import Namespace
from stepper.policy.model import Cell, Outcome
from stepper.policy.notebook_state import State

BOUND = "bound by"
DELETED = "deleted by"
WAYS = {
    BIND: BOUND,
    DELETE: DELETED,
    CAUGHT: "defined only inside the `except` clause at",
}
FAILURES = {Outcome.CANCELLED: "was interrupted", Outcome.TIMEOUT: "timed out"}
RUNS_BACK = 100  # runs that are looked through for an earlier version of a cell


class Definition(NamedTuple):
    """A line of a cell that defines a name, and what became of it: a clause that begins with `which`."""

    cell: Cell
    line: int
    fate: str
    ran: bool  # the cell ran to its end with this source

    @property
    def text(self) -> str:
        """The line, as a report names it."""
        quoted = line_text(self.cell.source, self.line)
        return f"line {self.line} of {self.cell.label} ({quoted}), {self.fate}"


@dataclass(frozen=True)
class Notebook:
    """The cell that failed, the cells around it and what the kernel told last."""

    cell: Cell
    cells: Sequence[Cell]
    state: State
    known: Namespace
    transform: Callable[[str], str]
    count: int = 0  # the execution count of the cell that failed, 0 if not known

    def definitions(self, name: str) -> list[Definition]:
        """Return the lines of other cells that bind a name, in the notebook's order."""
        return [
            Definition(cell, line, *self.fate(cell, line, name))
            for cell in self.others()
            for line, how in self.changes(cell, name)
            if how == BOUND
        ]

    def others(self) -> list[Cell]:
        """Return the notebook's other cells that are meant to run."""
        return [cell for cell in select_runnable(self.cells) if cell.id != self.cell.id]

    def fate(self, cell: Cell, line: int, name: str) -> tuple[str, bool]:
        """Return why a name that a line of a cell binds is not there, and whether the cell ran to its end."""
        if (
            cell.id not in self.state.last_sources
            and cell.id not in self.state.succeeded_sources
        ):
            return "which has not run", False
        if not self.ran_here(cell):
            return "which has not run in this kernel", False
        if not self.ran_as_it_stands(cell):
            return "which was changed since it ran", False
        run = self.last_run(cell)
        if run is None:
            return "which ran ok", True
        failed_at = (run.fault.line or None) if run.fault else None
        if failed_at is not None and failed_at < line:
            return f"which {failure(run)} at line {failed_at}, before it", False
        ended = "ran ok" if run.outcome is Outcome.OK else failure(run)
        if failed_at is not None:
            ended += f" at line {failed_at}"
        is_ok = run.outcome is Outcome.OK
        if failed_at == line:
            return f"which {ended}", is_ok
        if name in run.bound:
            return f"which {ended}; `{name}` was deleted since", is_ok
        joint = "but" if is_ok else "and"
        return f"which {ended} {joint} left `{name}` undefined", is_ok

    def ran_here(self, cell: Cell) -> bool:
        """Whether a cell ran in the present kernel, well or not."""
        return (
            cell.id in self.state.succeeded_sources
            or cell.id in self.state.cells_by_execution_count.values()
        )

    def ran_as_it_stands(self, cell: Cell) -> bool:
        """Whether what ran of a cell in the present kernel is its present source."""
        state = self.state
        last = state.succeeded_sources.get(cell.id, state.last_sources.get(cell.id))
        return self.ran_here(cell) and last == hash_source(cell.source)

    def last_run(self, cell: Cell) -> RunEnded | None:
        """Return the last run of a cell, None where none is on record."""
        runs = (run for run in reversed(self.state.runs) if run.cell_id == cell.id)
        return next(runs, None)

    def deletion(self, name: str, failed_at: int | None) -> str:
        """Return the line that unbound a name last, of a cell that ran in this kernel; '' for none.

        Of the cell that failed at a line only what stands above that line has run.
        """
        lines = list[tuple[int, str]]()
        for cell in self.others():
            if not self.ran_as_it_stands(cell):
                continue
            run = self.last_run(cell)
            order = run.run if run else 0
            end = run.fault.line if run and run.fault else None
            lines += [
                (order, f"{how} line {line} of {cell.label}: {quoted}")
                for line, how, quoted in self.unbound(cell, name)
                if end is None or line < end
            ]
        if lines:
            _, last = max(lines, key=lambda each: each[0])
        else:
            last = ""
        own = [
            f"{how} line {line} of {self.cell.label}: {quoted}"
            for line, how, quoted in self.unbound(self.cell, name)
            if failed_at is None or line < failed_at
        ]
        return own[-1] if own else last

    def unbound(self, cell: Cell, name: str) -> Iterator[tuple[int, str, str]]:
        """Yield the lines of a cell that unbind a name: line, how, the line quoted."""
        for line, how in self.changes(cell, name):
            if how != BOUND:
                yield line, how, line_text(cell.source, line)

    def changes(self, cell: Cell, name: str) -> list[tuple[int, str]]:
        """Return the lines of a cell, as it is written, that bind or unbind a name, and how."""
        return changes_as_written(cell.source, name, self.transform)

    def usage(self, cell: Cell) -> NameUsage:
        """Return what a cell does to names."""
        return name_analysis.analyze_source(self.transform(cell.source))

    def bound_names(self) -> list[str]:
        """Return the names that the notebook's other cells bind."""
        return [
            each.name
            for cell in self.others()
            for each in self.usage(cell).mentions
            if each.how == BIND and not each.scope
        ]

    def mentioned(self, name: str) -> bool:
        """Whether a code cell holds a name as a word, whether it is meant to run or not."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        return any(
            cell.is_code and cell.id != self.cell.id and word.search(cell.source)
            for cell in self.cells
        )

    def out_of_sight(self, name: str) -> str:
        """Return in which scope a name is, where no cell sees it, or why a line does not bind it; '' for neither."""
        sentences = dict[str, str]()
        for cell in select_runnable(self.cells):
            for each in self.usage(cell).mentions:
                if each.name == name and (text := scope_sentence(each, cell)):
                    kind = each.scope if each.how == BIND else each.how
                    sentences.setdefault(kind, text)
        kinds = (GLOBAL, FUNCTION, CLASS, ANNOTATED, COMPREHENSION)
        return next((sentences[kind] for kind in kinds if kind in sentences), "")

    def imported_as(self, name: str) -> str:
        """Return the line that imports something of that name under another one; '' for none."""
        for cell in self.others():
            for alias, modules in self.usage(cell).modules.items():
                for module in modules:
                    if alias != name and module.rpartition(":")[2] == name:
                        line = written_line(cell.source, 1, alias)
                        return (
                            f"line {line} of {cell.label} imports `{name}` as `{alias}`"
                        )
        return ""

    def earlier_version(self, name: str) -> str:
        """Return which source that ran before, and stands in no cell now, defined a name; '' for none."""
        present = {cell.id: cell for cell in self.cells}
        standing = {hash_source(cell.source) for cell in self.cells}
        for run in self.state.runs[: -RUNS_BACK - 1 : -1]:
            source = self.state.sources_by_hash.get(run.source_hash, "")
            if run.source_hash in standing or name not in source:
                continue
            lines = changes_as_written(source, name, self.transform)
            line = next((line for line, how in lines if how == BOUND), 0)
            if not line:
                continue
            cell = present.get(run.cell_id)
            whose = "a cell that was deleted"
            if cell is not None:
                is_own = cell.id == self.cell.id
                whose = f"an earlier version of {'this cell' if is_own else cell.label}"
            return f"{whose} defined it: {line_text(source, line)}"
        return ""


def failure(run: RunEnded) -> str:
    """Return how a run ended that did not end well."""
    return FAILURES.get(run.outcome, "failed")


def scope_sentence(mention: Mention, cell: Cell) -> str:
    """Return what is said of a name that something other than the notebook's namespace holds; '' for nothing."""
    name, how, line = mention.name, mention.how, mention.line
    scope = mention.scope_name
    if how == GLOBAL and mention.scope == FUNCTION:
        line = written_line(cell.source, line, name)
        return f"`{name}` is set by the function `{scope}` (line {line} of {cell.label}) when that is called"
    if how == ANNOTATED and not mention.scope:
        line = written_line(cell.source, line, name)
        return f"line {line} of {cell.label} annotates `{name}` and gives it no value"
    if how != BIND:
        return ""
    if mention.scope == FUNCTION:
        line = written_line(cell.source, mention.scope_line, scope)
        return f"`{name}` is local to `{scope}` (line {line} of {cell.label})"
    line = written_line(cell.source, line, name)
    if mention.scope == CLASS:
        return f"`{name}` is set in the body of the class `{scope}` (line {line} of {cell.label}): outside of the class, write `{scope}.{name}`"
    if mention.scope == COMPREHENSION:
        return f"`{name}` in line {line} of {cell.label} is the variable of a comprehension or lambda, undefined outside of it"
    return ""


def changes_as_written(
    source: str, name: str, transform: Callable[[str], str]
) -> list[tuple[int, str]]:
    """Return the lines of a source, as it is written, that bind or unbind a name, and how."""
    return [
        (written_line(source, line, name), how)
        for line, how in changes(transform(source), name)
    ]


@functools.lru_cache(maxsize=512)
def changes(source: str, name: str) -> tuple[tuple[int, str], ...]:
    """Return the lines of a source that bind or unbind a name at its top level, in order, and how."""
    mentions = name_analysis.analyze_source(source).mentions
    return tuple(
        sorted(
            (each.line, WAYS[each.how])
            for each in mentions
            if each.name == name and not each.scope and each.how in WAYS
        )
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


def line_text(source: str, line: int) -> str:
    """Return a line of a source, quoted."""
    return f"`{one_line(source.split(chr(10))[line - 1].strip(), 100)}`"
