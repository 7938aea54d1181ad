"""Find the reason why the outputs of a cell differ between fresh runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from stepper.policy.comparison import clock_values, random_draws
from stepper.policy.comparison.output_comparison import NONDETERMINISTIC
from stepper.policy.comparison.volatile_outputs import parse_cell
from stepper.policy.model import Cell

THREADS = re.compile(
    r"\b(?:threading|Thread|ThreadPool\w*|ProcessPool\w*|multiprocessing|concurrent"
    r"|asyncio|joblib|dask|imap_unordered|as_completed)\b|\bn_jobs\s*=\s*-?[2-9\d]"
)
# Sets whose order may matter.
SETS = re.compile(r"(?<!sorted\()(?<!len\()(?<![\w.])(?:frozen)?set\(")
IDENTITIES = re.compile(
    r"\bgetpid\(|\bid\(|\bhash\(|\buuid[14]\(|\bsecrets\.|\burandom\(|\btempfile\b"
    r"|\bmkdtemp\(|\bmkstemp\(|\bgethostname\(|\bpsutil\b"
)
# Parts of lines of code that read or write a file.
READS = re.compile(
    r"\bread|load|open\(|connect\(|exists\(|\bstat\(|glob\(|listdir\(|\bPath\(|^\s*[!%]"
)
WRITES = re.compile(
    r"""\.to_\w+\(|\bsave|\bdump|\bwrite|['"][wx][bt+]?['"]|^%%(?:writefile|file)"""
)
CLOCK = "reads the clock"
SEED = "draws random numbers without a seed"
SET_ORDER = "the order of a set depends on the hash seed"
SET_IN_SOURCE = "a possible cause is the order of a set"
THREAD_ORDER = "the order of threads or processes"
IDENTITY = "shows random ids, or ids of the process or of objects"
UNKNOWN = (
    "the cause is not known (it may be a clock, the order of a set, threads or a"
    " missing seed)"
)


@dataclass(frozen=True)
class Sources:
    """The runnable cells of a notebook, to find the reasons for nondeterminism."""

    cells: Sequence[Cell]
    # For each cell, the positions of the cells whose values it uses. Empty if this is
    # not known.
    inputs: Sequence[Collection[int]] = ()
    # Names of the files that the replay changed in the cells' own folder.
    changed_files: Sequence[str] = ()

    @cached_property
    def unseeded_cells(self) -> list[Cell]:
        """The cells that draw random numbers without a seed."""
        sources = [cell.source for cell in self.cells]
        positions = random_draws.find_unseeded_draws(sources)
        return [self.cells[position] for position in sorted(positions)]

    def list_input_cells(self, cell: Cell) -> list[Cell]:
        """Return the cells above whose values a cell uses, or [] if not known."""
        if not self.inputs:
            return []
        position = self.cells.index(cell)
        return [self.cells[index] for index in sorted(self.inputs[position])]

    def uses_drawn_values(self, cell: Cell) -> bool:
        """Return whether a cell draws without a seed, or uses values of such a cell."""
        unseeded_cells = self.unseeded_cells
        used_cells = [cell, *self.list_input_cells(cell)]
        return any(used_cell in unseeded_cells for used_cell in used_cells)

    def uses_sets(self, cell: Cell) -> bool:
        """Return whether a cell, or a cell whose values it uses, creates a set."""
        return any(
            _creates_set(other.source) for other in (cell, *self.list_input_cells(cell))
        )

    def find_changed_input(self, cell: Cell) -> str:
        """Return the path of a changed file that affects a cell, or an empty string.

        The cell itself, or a cell whose values it uses, reads the file. A file that the
        notebook writes before it reads the file is not an input. If the input cells are
        not known, all cells above count.
        """
        candidates = [cell, *self.list_input_cells(cell)]
        if not self.inputs:  # the input cells are not known
            candidates = [other for other in self.cells if other.index <= cell.index]
        for path in self.changed_files:
            name = path.rpartition("/")[2]
            mentions = _list_lines(self.cells, name)
            if mentions and not _is_read(mentions[0]):
                continue
            if any(map(_is_read, _list_lines(candidates, name))):
                return path
        return ""


def _creates_set(source: str) -> bool:
    """Return whether a source contains a set whose order may matter."""
    if SETS.search(source):
        return True
    for statement in parse_cell(source) or ():
        for node in ast.walk(statement):
            if isinstance(node, ast.Set | ast.SetComp):
                return True
    return False


def _list_lines(cells: Sequence[Cell], text: str) -> list[str]:
    """Return the lines of the sources of cells that contain a text."""
    lines = []
    for cell in cells:
        lines += [line for line in cell.source.splitlines() if text in line]
    return lines


def _is_read(line: str) -> bool:
    """Return whether a line that names a file may read it."""
    return READS.search(line) is not None or WRITES.search(line) is None


def describe_reason(cell: Cell, sources: Sources, *, is_reordered: bool) -> str:
    """Return a sentence on why the outputs of a cell differ between fresh runs.

    `is_reordered` says whether the fresh runs print the same words in another order.
    """
    reason = _find_own_reason(cell, sources, is_reordered=is_reordered)
    if not reason:
        changed_file = sources.find_changed_input(cell)
        if changed_file:
            return describe_changed_file(changed_file)
        reason = _find_reason_above(cell, sources)
    return f"{NONDETERMINISTIC}: {reason or UNKNOWN}"


def describe_changed_file(name: str) -> str:
    """Return a text on a file that the replay both reads and changes."""
    return f"the replay changed {name}; use `verify --scratch`"


def _find_own_reason(cell: Cell, sources: Sources, *, is_reordered: bool) -> str:
    """Return the reason if it is in the source of the cell, or an empty string.

    See `describe_reason` for `is_reordered`.
    """
    source = cell.source
    if is_reordered and not THREADS.search(source):
        return SET_ORDER
    if cell in sources.unseeded_cells:
        return f"the cell {SEED}"
    other_sources = [other.source for other in sources.cells]
    if clock_values.reads_clock(source, other_sources):
        return f"the cell {CLOCK}"
    if THREADS.search(source):
        return THREAD_ORDER
    if IDENTITIES.search(source):
        return f"the cell {IDENTITY}"
    return ""


def _find_reason_above(cell: Cell, sources: Sources) -> str:
    """Return the reason found in the cells whose values `cell` uses.

    Return an empty string if there is none.
    """
    cells_above = sources.list_input_cells(cell)
    unseeded_cells = [other for other in cells_above if other in sources.unseeded_cells]
    if unseeded_cells:
        return f"cell {unseeded_cells[-1].number} {SEED}"
    for pattern, reason in (
        (clock_values.CLOCK_FUNCTIONS, CLOCK),
        (IDENTITIES, IDENTITY),
    ):
        for other in reversed(cells_above):
            if pattern.search(other.source):
                return f"cell {other.number} {reason}"
    if any(THREADS.search(other.source) for other in cells_above):
        return THREAD_ORDER
    if any(SETS.search(other.source) for other in (cell, *cells_above)):
        return SET_IN_SOURCE
    return ""
