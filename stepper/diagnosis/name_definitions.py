"""The lines of a notebook's cells that define or delete a name, and their last runs.

The search uses the current sources of the cells. The journal shows whether a cell ran,
failed above the line or was changed since.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
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
from stepper.policy.model import Cell, Outcome
from stepper.policy.namespace_model import Namespace
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
MAX_QUOTED = 100  # characters of a quoted line


class Definition(NamedTuple):
    """A line of a cell that defines a name.

    `status` is a clause that begins with "which". `succeeded` is True if the cell ran
    successfully with its current source.
    """

    cell: Cell
    line: int
    status: str
    succeeded: bool

    @property
    def text(self) -> str:
        """The location, source and status of the line, for a report."""
        source_line = quote_line(self.cell.source, self.line)
        location = f"line {self.line} of {self.cell.label}"
        return f"{location} ({source_line}), {self.status}"


class NameChange(NamedTuple):
    """A line that binds or unbinds a name. `verb` is a value of CHANGE_VERBS."""

    line: int
    verb: str


class Deletion(NamedTuple):
    """A line of a cell that unbinds a name. `verb` is a value of CHANGE_VERBS."""

    cell: Cell
    line: int
    verb: str

    @property
    def text(self) -> str:
        """The verb, location and source of the line: a phrase that follows "was"."""
        source_line = quote_line(self.cell.source, self.line)
        location = f"line {self.line} of {self.cell.label}"
        return f"{self.verb} {location}: {source_line}"


class RunStatus(NamedTuple):
    """The reason why a name is undefined although a cell binds it.

    `clause` begins with "which". `succeeded` is True if the cell ran successfully with
    its current source.
    """

    clause: str
    succeeded: bool = False


@dataclass(frozen=True)
class NotebookNames:
    """The names in the cell that failed, in the other cells and in the kernel.

    `count` is the execution count of the cell that failed, or 0 if it is unknown.
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
                if verb != BOUND:
                    continue
                status = self.describe_run(cell, line, name)
                definition = Definition(cell, line, status.clause, status.succeeded)
                definitions.append(definition)
        return definitions

    def list_other_cells(self) -> list[Cell]:
        """Return the runnable cells except the cell that failed."""
        other_cells = []
        for cell in select_runnable(self.cells):
            if cell.id != self.cell.id:
                other_cells.append(cell)
        return other_cells

    def describe_run(self, cell: Cell, line: int, name: str) -> RunStatus:
        """Return the reason why a name is undefined although a line binds it."""
        if not self.has_run(cell):
            return RunStatus("which has not run")
        if not self.has_run_in_kernel(cell):
            return RunStatus("which has not run in this kernel")
        if not self.has_run_unchanged(cell):
            return RunStatus("which has changed since it ran")
        run = self.find_last_run(cell)
        if run is None:
            return RunStatus("which ran successfully", succeeded=True)
        succeeded = run.outcome is Outcome.OK
        result = "ran successfully"
        if not succeeded:
            result = describe_failure(run)
        failed_at = find_failing_line(run)
        if failed_at is not None:
            if failed_at < line:
                failure = describe_failure(run)
                clause = f"which {failure} at line {failed_at}, before that line"
                return RunStatus(clause)
            result += f" at line {failed_at}"
            if failed_at == line:
                return RunStatus(f"which {result}", succeeded)
        # As far as is known, the line ran.
        if name in run.bound:
            clause = f"which {result}; `{name}` has been deleted since"
            return RunStatus(clause, succeeded)
        conjunction = "but" if succeeded else "and"
        clause = f"which {result} {conjunction} left `{name}` undefined"
        return RunStatus(clause, succeeded)

    def has_run(self, cell: Cell) -> bool:
        """Return whether a cell ran in this kernel or in an earlier kernel."""
        if cell.id in self.state.last_sources:
            return True
        return cell.id in self.state.succeeded_sources

    def has_run_in_kernel(self, cell: Cell) -> bool:
        """Return whether a cell ran in the current kernel, successfully or not."""
        if cell.id in self.state.succeeded_sources:
            return True
        return cell.id in self.state.cells_by_execution_count.values()

    def has_run_unchanged(self, cell: Cell) -> bool:
        """Return whether a cell last ran in this kernel with its current source."""
        last_source = self.state.succeeded_sources.get(cell.id)
        if last_source is None:
            last_source = self.state.last_sources.get(cell.id)
        if last_source != hash_source(cell.source):
            return False
        return self.has_run_in_kernel(cell)

    def find_last_run(self, cell: Cell) -> RunEnded | None:
        """Return the last run of a cell, or None if the journal has none."""
        for run in reversed(self.state.runs):
            if run.cell_id == cell.id:
                return run
        return None

    def find_deletion(self, name: str, failed_at: int | None) -> str:
        """Return a phrase on the line that last unbound a name in this kernel.

        In the cell that failed, only the lines above `failed_at` count, because other
        lines did not run. Return an empty string if there is no such line.
        """
        deletions = self.list_deletions(self.cell, name, failed_at)
        if deletions:
            return deletions[-1].text
        last_deletion: Deletion | None = None
        last_run_number = 0
        for cell in self.list_other_cells():
            if not self.has_run_unchanged(cell):
                continue
            run_number = 0  # unknown, which counts as earlier than all known runs
            end = None
            run = self.find_last_run(cell)
            if run:
                run_number = run.run
                end = find_failing_line(run)
            deletions = self.list_deletions(cell, name, end)
            is_later = last_deletion is None or run_number > last_run_number
            if deletions and is_later:
                last_run_number = run_number
                last_deletion = deletions[-1]
        if last_deletion is None:
            return ""
        return last_deletion.text

    def list_deletions(
        self,
        cell: Cell,
        name: str,
        end: int | None,
    ) -> list[Deletion]:
        """Return the lines of a cell that unbind a name.

        If `end` is a line number, only lines above this line are returned.
        """
        deletions = []
        for line, verb in self.list_changes(cell, name):
            if verb == BOUND:
                continue
            if end is None or line < end:
                deletion = Deletion(cell, line, verb)
                deletions.append(deletion)
        return deletions

    def list_changes(self, cell: Cell, name: str) -> list[NameChange]:
        """Return the lines of a cell's source that bind or unbind a name."""
        return list_source_changes(cell.source, name, self.transform)

    def analyze(self, cell: Cell) -> NameUsage:
        """Return the uses of names in a cell."""
        code = self.transform(cell.source)
        return name_analysis.analyze_source(code)

    def list_bound_names(self) -> list[str]:
        """Return the names that the other cells bind at their top level."""
        names = []
        for cell in self.list_other_cells():
            usage = self.analyze(cell)
            for mention in usage.mentions:
                if mention.kind == BIND and not mention.scope:
                    names.append(mention.name)
        return names

    def mentions_name(self, name: str) -> bool:
        """Return whether the source of another code cell contains a name as a word."""
        word = re.compile(rf"\b{re.escape(name)}\b")
        for cell in self.cells:
            if not cell.is_code or cell.id == self.cell.id:
                continue
            if word.search(cell.source):
                return True
        return False

    def describe_scope(self, name: str) -> str:
        """Return a sentence that says why no top-level code defines a name.

        For example, the name is local to a function, or is annotated without a value.
        Return an empty string if no line of the source explains this.
        """
        sentences: dict[str, str] = {}
        for cell in select_runnable(self.cells):
            usage = self.analyze(cell)
            for mention in usage.mentions:
                if mention.name != name:
                    continue
                text = format_scope(mention, cell)
                if not text:
                    continue
                is_bind = mention.kind == BIND
                kind = mention.scope if is_bind else mention.kind
                sentences.setdefault(kind, text)
        for kind in (GLOBAL, FUNCTION, CLASS, ANNOTATED, COMPREHENSION):
            if kind in sentences:
                return sentences[kind]
        return ""

    def find_alias(self, name: str) -> str:
        """Return a sentence on a line that imports a name under another name.

        Return an empty string if there is no such line.
        """
        for cell in self.list_other_cells():
            usage = self.analyze(cell)
            for alias, modules in usage.modules.items():
                if alias == name:
                    continue
                # "a:b" stands for `from a import b`.
                imported_names = [module.rpartition(":")[2] for module in modules]
                if name not in imported_names:
                    continue
                for line, verb in self.list_changes(cell, alias):
                    if verb == BOUND:
                        location = f"line {line} of {cell.label}"
                        return f"{location} imports `{name}` as `{alias}`"
        return ""

    def find_earlier_version(self, name: str) -> str:
        """Return a clause on an earlier version of a cell that defined a name.

        Return an empty string if there is no such version.
        """
        cells = {cell.id: cell for cell in self.cells}
        current_hashes = {hash_source(cell.source) for cell in self.cells}
        recent_runs = self.state.runs[-MAX_EARLIER_RUNS:]
        for run in reversed(recent_runs):
            if run.source_hash in current_hashes:
                continue
            source = self.state.sources_by_hash.get(run.source_hash, "")
            if name not in source:
                continue
            for line, verb in list_source_changes(source, name, self.transform):
                if verb == BOUND:
                    version = self._describe_version(cells.get(run.cell_id))
                    source_line = quote_line(source, line)
                    return f"{version} defined it: {source_line}"
        return ""

    def _describe_version(self, cell: Cell | None) -> str:
        """Return a phrase for an earlier version of a cell.

        `cell` is None if the cell was deleted.
        """
        if cell is None:
            return "a cell that was deleted"
        if cell.id == self.cell.id:
            return "an earlier version of this cell"
        return f"an earlier version of {cell.label}"


def describe_failure(run: RunEnded) -> str:
    """Return a verb phrase for a run that did not succeed, such as "timed out"."""
    return FAILURES.get(run.outcome, "failed")


def find_failing_line(run: RunEnded) -> int | None:
    """Return the line at which a run failed, or None if it is unknown."""
    if run.fault is None:
        return None
    return run.fault.line or None


def format_scope(mention: Mention, cell: Cell) -> str:
    """Return a sentence that says why a mentioned name is not in the namespace.

    Return an empty string if the mention does not explain this.
    """
    name = mention.name
    scope = mention.scope_name
    source = cell.source
    line = find_source_line(source, mention.line, name)
    location = f"line {line} of {cell.label}"
    if mention.kind == GLOBAL and mention.scope == FUNCTION:
        return f"`{name}` is set by calling the function `{scope}` ({location})"
    if mention.kind == ANNOTATED and not mention.scope:
        return f"{location} annotates `{name}` but assigns no value"
    if mention.kind != BIND:
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
    source: str,
    name: str,
    transform: Callable[[str], str],
) -> list[NameChange]:
    """Return the lines of a cell's source that bind or unbind a name."""
    code = transform(source)
    source_changes = []
    for python_line, verb in list_python_changes(code, name):
        line = find_source_line(source, python_line, name)
        source_changes.append(NameChange(line, verb))
    return source_changes


@functools.lru_cache(maxsize=512)
def list_python_changes(source: str, name: str) -> tuple[NameChange, ...]:
    """Return the lines of Python code that bind or unbind a top-level name, sorted."""
    usage = name_analysis.analyze_source(source)
    changes = []
    for mention in usage.mentions:
        if mention.name != name or mention.scope:
            continue
        verb = CHANGE_VERBS.get(mention.kind)
        if verb is not None:
            changes.append(NameChange(mention.line, verb))
    return tuple(sorted(changes))


def find_source_line(source: str, line: int, name: str) -> int:
    """Return the line of a cell's source for a line of its Python code.

    IPython removes blank lines above the code, `%%magic` lines and continuation lines
    of magics. `line` is 0 if a `%%magic` line binds the name. The result is the first
    line at or below the corresponding line that contains `name`, or the corresponding
    line if there is no such line.
    """
    lines = source.split("\n")
    first_line = 1  # the first line that is not blank
    for number, text in enumerate(lines, 1):
        if text.strip():
            first_line = number
            break
    first_candidate = first_line
    if line:
        magic_count = _count_magic_lines(lines[first_line - 1 :])
        first_candidate += magic_count + line - 1
    first_candidate = min(first_candidate, len(lines))
    word = re.compile(rf"\b{re.escape(name)}\b")
    for number, text in enumerate(lines, 1):
        if number >= first_candidate and word.search(text):
            return number
    return first_candidate


def _count_magic_lines(lines: Sequence[str]) -> int:
    """Return the number of `%%magic` lines above the other lines."""
    for count, line in enumerate(lines):
        if not line.startswith("%%"):
            return count
    return len(lines)


def quote_line(source: str, line: int) -> str:
    """Return the text of a line of a source, shortened and in backticks."""
    lines = source.split("\n")
    text = lines[line - 1].strip()
    excerpt = one_line(text, MAX_QUOTED)
    return f"`{excerpt}`"
