"""Find the names that are undefined if the notebook runs from top to bottom."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from stepper.policy.changed_cells import hash_source, select_runnable
from stepper.policy.dataflow.binding_table import BUILTIN_NAMES, BindingTable
from stepper.policy.dataflow.causes import BELOW, DELETED, EXTERNAL
from stepper.policy.dataflow.run_history import (
    Cells,
    History,
    RunRecord,
    get_key,
    locate_provider,
)
from stepper.policy.dataflow.statement_flow import find_required_names
from stepper.policy.model import Cell


class UnresolvedName(NamedTuple):
    """A name that a cell reads and no cell above binds.

    `number` is the number of the cell that binds the name, or bound it before; 0 if
    another client bound the name. `where` is BELOW, DELETED, INACTIVE or EXTERNAL.
    """

    cell: Cell
    name: str
    number: int
    where: str

    @property
    def definition(self) -> str:
        """The end of a sentence: "is defined only below, in cell 3", for example."""
        if self.where == EXTERNAL:
            return "was defined by code that another client executed"
        if self.where == BELOW:
            return f"is defined only below, in cell {self.number}"
        reason = "was deleted" if self.where == DELETED else "no longer runs"
        return f"was defined in cell {self.number}, which {reason}"


# Names that IPython defines in the namespace of the user.
IPYTHON_NAMES = frozenset(
    (
        "In",
        "Out",
        "__builtin__",
        "__builtins__",
        "_exit_code",
        "display",
        "exit",
        "get_ipython",
        "quit",
    )
)
# Earlier inputs, results and folders, such as `_`, `_3`, `_i` and `_dh`.
HISTORY_NAME = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|_(?:ih|oh|dh)")


class _UndefinedNames(NamedTuple):
    """The names that a cell reads and no cell above binds, in alphabetical order."""

    cell: Cell
    names: Sequence[str]


def _find_undefined_names(cells: Cells, history: History) -> list[_UndefinedNames]:
    """Return, for each cell, the names that are undefined if the cells run in order."""
    table = BindingTable()
    undefined = []
    for index, cell in enumerate(cells):
        usage = history.analyze(cell.source)
        resolved = table.resolve_usage(usage)
        rebound_names = resolved.reads & usage.binds.keys()
        if rebound_names:
            # Functions of other cells may bind the name before the cell reads it.
            called = table.resolve_usage(replace(usage, binds={}))
            rebound_names &= called.binds.keys()
        providers = table.apply(index, usage)
        names = []
        if not usage.star:  # `from module import *` may define every name
            candidates = resolved.reads - providers.keys() - rebound_names
            names = sorted(name for name in candidates if not _is_predefined(name))
        undefined.append(_UndefinedNames(cell, names))
    return undefined


def _is_predefined(name: str) -> bool:
    """Return whether Python or IPython defines a name in every new kernel."""
    if name in BUILTIN_NAMES or name in IPYTHON_NAMES:
        return True
    return HISTORY_NAME.fullmatch(name) is not None


def _find_first_binders(cells: Cells, history: History) -> dict[str, Cell]:
    """Return the first cell that binds each name, by name."""
    binders: dict[str, Cell] = {}
    for cell in cells:
        usage = history.analyze(cell.source)
        for name in usage.binds:
            binders.setdefault(name, cell)
    return binders


def _find_binder(
    name: str, reader: Cell, first_binders: Mapping[str, Cell], history: History
) -> Cell | None:
    """Return the first cell that binds a name which is undefined in a cell, or None.

    Return None if this cell is `reader` and needs the old value, as in `x += 1`.
    """
    binder = first_binders.get(name)
    if binder is None or binder.number != reader.number:
        return binder
    required_names = find_required_names(history.analyze(reader.source))
    return None if name in required_names else binder


def _find_former_binders(cells: Cells, history: History) -> dict[str, RunRecord]:
    """Return the last run that bound each name, by name.

    Only runs of other cells than `cells`, and executions of other clients, count.
    """
    keys = {get_key(cell) for cell in cells}
    binders: dict[str, RunRecord] = {}
    for record in history.records.values():
        if record.key not in keys:
            names = dict.fromkeys(record.bound, record)
            binders.update(names)
    return binders


def find_unresolved_names(cells: Cells, history: History) -> list[UnresolvedName]:
    """Return the names that are undefined if the cells run from top to bottom.

    Only names that a cell below, a deleted or inactive cell, or another client has
    bound are included.
    """
    run_cells = select_runnable(cells)
    all_keys = {get_key(cell) for cell in cells}
    first_binders = _find_first_binders(run_cells, history)
    former_binders = _find_former_binders(run_cells, history)
    unresolved = []
    for cell, names in _find_undefined_names(run_cells, history):
        for name in names:
            binder = _find_binder(name, cell, first_binders, history)
            former = former_binders.get(name)
            if binder is None and former is not None:
                where = locate_provider(former, all_keys)
                entry = UnresolvedName(cell, name, former.number, where)
                unresolved.append(entry)
            elif binder is not None and binder.number > cell.number:
                entry = UnresolvedName(cell, name, binder.number, BELOW)
                unresolved.append(entry)
    return unresolved


class UnboundName(NamedTuple):
    """A name that a cell reads and no cell binds before (see `find_unbound_names`)."""

    cell: Cell
    name: str


def find_unbound_names(cells: Cells, history: History) -> list[UnboundName]:
    """Return the names that cells read and no cell binds.

    This includes names that a cell binds only after it has read them, as in `x += 1`,
    if no cell above binds them. Names that only magics and shell commands read are left
    out, because these names may be text, such as `$HOME`.

    The kernel may still define these names, because an earlier version of a cell bound
    them.
    """
    run_cells = select_runnable(cells)
    first_binders = _find_first_binders(run_cells, history)
    unbound = []
    for cell, names in _find_undefined_names(run_cells, history):
        magic_reads = history.analyze(cell.source).magic_reads
        for name in names:
            if name in magic_reads:
                continue
            if _find_binder(name, cell, first_binders, history) is None:
                unbound.append(UnboundName(cell, name))
    return unbound


def describe_former_binding(
    name: str, reader_id: str, cells: Cells, history: History
) -> str:
    """Return a sentence on the cell or client that defines or defined a name.

    `reader_id` is the id of a cell that failed because the name is not defined. Return
    an empty string if no code is known to have defined the name.
    """
    for unresolved in find_unresolved_names(cells, history):
        is_reader = unresolved.cell.id == reader_id
        if is_reader and unresolved.name == name:
            return f"`{name}` {unresolved.definition}"
    current = {get_key(cell): cell for cell in select_runnable(cells)}
    changed_numbers = []
    for record in history.records.values():
        cell = current.get(record.key)
        if cell is None or name not in record.bound:
            continue
        if record.source_hash != hash_source(cell.source):
            changed_numbers.append(cell.number)
    if not changed_numbers:
        return ""
    return f"`{name}` was defined in an earlier version of cell {changed_numbers[-1]}"
