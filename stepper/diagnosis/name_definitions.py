"""Where a notebook's cells define or delete a name, and whether those lines ran.

The cells are read as they are in the file now. The journal says whether a cell ran,
failed above the line or was changed since; each case has its own wording.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepper.common.text import one_line
from stepper.policy.changed_cells import hash_source, select_runnable
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
CHANGE_VERBS = {
    BIND: BOUND,
    DELETE: DELETED,
    CAUGHT: "defined only inside the `except` clause at",
}
FAILURES = {Outcome.CANCELLED: "was interrupted", Outcome.TIMEOUT: "timed out"}
MAX_EARLIER_RUNS = 100  # searched for an earlier version of a cell


class Definition(NamedTuple):
    """A line of a cell that defines a name.

    `status` is a clause that begins with "which"; `succeeded`: the cell ran
    successfully with its present source.
    """

    cell: Cell
    line: int
    status: str
    succeeded: bool

    @property
    def text(self) -> str:
        """The line as a report names it."""
        source_line = quote_line(self.cell.source, self.line)
        location = f"line {self.line} of {self.cell.label}"
        return f"{location} ({source_line}), {self.status}"


class NameChange(NamedTuple):
    """A line that binds or unbinds a name; `verb` is a value of CHANGE_VERBS."""

    line: int
    verb: str


@dataclass(frozen=True)
class NotebookNames:
    """The names in the cell that failed, in the other cells and in the kernel.

    `count` is the execution count of the cell that failed, 0 if unknown.
    """

    cell: Cell
    cells: Sequence[Cell]
    state: State
    namespace: Namespace
    transform: Callable[[str], str]
    count: int = 0

    def list_definitions(self, name: str) -> list[Definition]:
        """Return the lines of other cells that bind a name, in notebook order."""
        definitions = []
        for cell in self.list_other_cells():
            for line, verb in self.list_changes(cell, name):
                if verb == BOUND:
                    status, succeeded = self.describe_run(cell, line, name)
                    definitions.append(Definition(cell, line, status, succeeded))
        return definitions

    def list_other_cells(self) -> list[Cell]:
        """Return the runnable cells other than the one that failed."""
        runnable = select_runnable(self.cells)
        return [cell for cell in runnable if cell.id != self.cell.id]

    def describe_run(self, cell: Cell, line: int, name: str) -> tuple[str, bool]:
        """Return why a name that a line of a cell binds is undefined.

        Also return whether the cell ran successfully with its present source.
        """
        state = self.state
        has_run = cell.id in state.last_sources or cell.id in state.succeeded_sources
        if not has_run:
            return "which has not run", False
        if not self.ran_in_kernel(cell):
            return "which has not run in this kernel", False
        if not self.ran_unchanged(cell):
            return "which was changed since it ran", False
        run = self.find_last_run(cell)
        if run is None:
            return "which ran successfully", True
        failed_at = None
        if run.fault and run.fault.line:
            failed_at = run.fault.line
        if failed_at is not None and failed_at < line:
            failure = describe_failure(run)
            return f"which {failure} at line {failed_at}, before that line", False
        succeeded = run.outcome is Outcome.OK
        result = "ran successfully" if succeeded else describe_failure(run)
        if failed_at is not None:
            result += f" at line {failed_at}"
        if failed_at == line:
            return f"which {result}", succeeded
        if name in run.bound:
            return f"which {result}; `{name}` was deleted since", succeeded
        conjunction = "but" if succeeded else "and"
        return f"which {result} {conjunction} left `{name}` undefined", succeeded

    def ran_in_kernel(self, cell: Cell) -> bool:
        """Whether a cell ran in the present kernel, successfully or not."""
        if cell.id in self.state.succeeded_sources:
            return True
        return cell.id in self.state.cells_by_execution_count.values()

    def ran_unchanged(self, cell: Cell) -> bool:
        """Whether a cell last ran in the present kernel with its present source."""
        state = self.state
        last = state.last_sources.get(cell.id)
        last = state.succeeded_sources.get(cell.id, last)
        is_same = last == hash_source(cell.source)
        return is_same and self.ran_in_kernel(cell)

    def find_last_run(self, cell: Cell) -> RunEnded | None:
        """Return the last run of a cell, None if the journal has none."""
        for run in reversed(self.state.runs):
            if run.cell_id == cell.id:
                return run
        return None

    def find_deletion(self, name: str, failed_at: int | None) -> str:
        """Return the line that last unbound a name in this kernel, '' if there is none.

        Only the lines above `failed_at` ran in the cell that failed.
        """
        own_lines = [
            f"{verb} line {line} of {self.cell.label}: {source_line}"
            for line, verb, source_line in self.iter_deletions(self.cell, name)
            if failed_at is None or line < failed_at
        ]
        if own_lines:
            return own_lines[-1]
        lines = list[tuple[int, str]]()
        for cell in self.list_other_cells():
            if not self.ran_unchanged(cell):
                continue
            run = self.find_last_run(cell)
            order = 0
            end = None
            if run:
                order = run.run
                end = run.fault.line if run.fault else None
            for line, verb, source_line in self.iter_deletions(cell, name):
                if end is None or line < end:
                    text = f"{verb} line {line} of {cell.label}: {source_line}"
                    lines.append((order, text))
        if not lines:
            return ""
        _, last_line = max(lines, key=lambda entry: entry[0])
        return last_line

    def iter_deletions(self, cell: Cell, name: str) -> Iterator[tuple[int, str, str]]:
        """Yield (line, verb, quoted source) of the lines that unbind a name."""
        for line, verb in self.list_changes(cell, name):
            if verb != BOUND:
                yield line, verb, quote_line(cell.source, line)

    def list_changes(self, cell: Cell, name: str) -> list[NameChange]:
        """Return the lines of a cell's source that bind or unbind a name."""
        return list_source_changes(cell.source, name, self.transform)

    def analyze(self, cell: Cell) -> NameUsage:
        """Return how a cell uses names."""
        return name_analysis.analyze_source(self.transform(cell.source))

    def list_bound_names(self) -> list[str]:
        """Return the names that the other cells bind at their top level."""
        names = []
        for cell in self.list_other_cells():
            for mention in self.analyze(cell).mentions:
                if mention.how == BIND and not mention.scope:
                    names.append(mention.name)
        return names

    def mentions_name(self, name: str) -> bool:
        """Whether the source of another code cell contains a name as a word."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        for cell in self.cells:
            is_other = cell.is_code and cell.id != self.cell.id
            if is_other and word.search(cell.source):
                return True
        return False

    def describe_scope(self, name: str) -> str:
        """Return in which scope a name is defined, or why a line does not bind it.

        '' if neither applies.
        """
        sentences = dict[str, str]()
        for cell in select_runnable(self.cells):
            for mention in self.analyze(cell).mentions:
                if mention.name != name:
                    continue
                text = format_scope(mention, cell)
                if text:
                    is_bind = mention.how == BIND
                    kind = mention.scope if is_bind else mention.how
                    sentences.setdefault(kind, text)
        for kind in (GLOBAL, FUNCTION, CLASS, ANNOTATED, COMPREHENSION):
            if kind in sentences:
                return sentences[kind]
        return ""

    def find_alias(self, name: str) -> str:
        """Return the line that imports a name under another one, '' without one."""
        for cell in self.list_other_cells():
            for alias, modules in self.analyze(cell).modules.items():
                for module in modules:
                    if alias != name and module.rpartition(":")[2] == name:
                        line = find_source_line(cell.source, 1, alias)
                        location = f"line {line} of {cell.label}"
                        return f"{location} imports `{name}` as `{alias}`"
        return ""

    def find_earlier_version(self, name: str) -> str:
        """Return which former source of a cell defined a name, '' if there is none."""
        cells = {}
        present_sources = set()
        for cell in self.cells:
            cells[cell.id] = cell
            present_sources.add(hash_source(cell.source))
        for run in self.state.runs[: -MAX_EARLIER_RUNS - 1 : -1]:
            source = self.state.sources_by_hash.get(run.source_hash, "")
            if run.source_hash in present_sources or name not in source:
                continue
            for line, verb in list_source_changes(source, name, self.transform):
                if verb == BOUND:
                    owner = self._describe_owner(cells.get(run.cell_id))
                    return f"{owner} defined it: {quote_line(source, line)}"
        return ""

    def _describe_owner(self, cell: Cell | None) -> str:
        if cell is None:
            return "a cell that was deleted"
        if cell.id == self.cell.id:
            return "an earlier version of this cell"
        return f"an earlier version of {cell.label}"


def describe_failure(run: RunEnded) -> str:
    """Return the verb phrase for a run that did not succeed."""
    return FAILURES.get(run.outcome, "failed")


def format_scope(mention: Mention, cell: Cell) -> str:
    """Return the sentence on a name that is not in the notebook's namespace.

    '' if the mention is no reason for that.
    """
    name = mention.name
    scope = mention.scope_name
    source = cell.source
    line = find_source_line(source, mention.line, name)
    location = f"line {line} of {cell.label}"
    if mention.how == GLOBAL and mention.scope == FUNCTION:
        return f"`{name}` is set by calling the function `{scope}` ({location})"
    if mention.how == ANNOTATED and not mention.scope:
        return f"{location} annotates `{name}` but assigns no value"
    if mention.how != BIND:
        return ""
    if mention.scope == FUNCTION:
        line = find_source_line(source, mention.scope_line, scope)
        location = f"line {line} of {cell.label}"
        return f"`{name}` is local to `{scope}` ({location})"
    if mention.scope == CLASS:
        return (
            f"`{name}` is set in the body of the class `{scope}` ({location}): "
            f"outside the class, write `{scope}.{name}`"
        )
    if mention.scope == COMPREHENSION:
        return (
            f"`{name}` in {location} is the variable of a comprehension or lambda "
            "and undefined outside it"
        )
    return ""


def list_source_changes(
    source: str, name: str, transform: Callable[[str], str]
) -> list[NameChange]:
    """Return the lines of a cell's source that bind or unbind a name."""
    changes = list_python_changes(transform(source), name)
    source_changes = []
    for change in changes:
        line = find_source_line(source, change.line, name)
        source_changes.append(NameChange(line, change.verb))
    return source_changes


@functools.lru_cache(maxsize=512)
def list_python_changes(source: str, name: str) -> tuple[NameChange, ...]:
    """Return the lines of Python code that bind or unbind a top-level name, sorted."""
    changes = []
    for mention in name_analysis.analyze_source(source).mentions:
        is_top_level = mention.name == name and not mention.scope
        if is_top_level and mention.how in CHANGE_VERBS:
            verb = CHANGE_VERBS[mention.how]
            changes.append(NameChange(mention.line, verb))
    return tuple(sorted(changes))


def find_source_line(source: str, line: int, name: str) -> int:
    """Return the line of a cell's source for a line of its Python code.

    IPython drops blank lines above the code, `%%magic` lines and the ends of continued
    magics.
    """
    lines = source.split("\n")
    start = 0
    for index, text in enumerate(lines):
        if text.strip():
            start = index
            break
    while start < len(lines) and lines[start].startswith("%%"):
        start += 1
        if line == 0:
            line = -1  # bound by the magic line itself
    line = min(max(line + start, 1), len(lines))
    word = re.compile(rf"\b{re.escape(name)}\b")
    for number in range(line, len(lines) + 1):
        if word.search(lines[number - 1]):
            return number
    return line


def quote_line(source: str, line: int) -> str:
    """Return a line of a source in backticks."""
    text = source.split("\n")[line - 1].strip()
    return f"`{one_line(text, 100)}`"
