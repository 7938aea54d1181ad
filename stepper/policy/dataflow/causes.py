"""The reasons why a cell is stale or used hidden state, as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from stepper.policy.model import Cell

# Origins of hidden state: the values of `Cause.where`.
DELETED = "gone"  # from a deleted cell
BELOW = "below"  # from a cell below
INACTIVE = "off"  # from a cell that exists but no longer runs
UNBOUND = "unbound"  # from a cell that no longer binds the name
EXTERNAL = "elsewhere"  # from code that another client executed
EARLIER_VERSION = "earlier"  # from an earlier version of the same cell
UNRESTORED = "unrestored"  # from an undone run, because the name was not restored
ITSELF = "itself"  # from an earlier run of the same cell
OVERRIDDEN = "overridden"  # from a cell above, but a cell in between binds the name
# Causes of stale cells, also in `Cause.where`.
MODULE = "module"  # a module that the cell used changed
UNDONE = "undone"  # a change that the cell made was undone
UNDONE_VALUE = "undone value"  # a change of another cell that the cell read was undone
UNDONE_RUN = "undone run"  # the user or an agent undid the run of the cell
PENDING = "pending"  # the cell that binds the name is new or changed, and has not run
OVERWRITTEN = "overwritten"  # a name that the cell bound was bound again above it
REMOVED = "removed"  # a name that the cell bound was deleted above it
INDIRECT = "indirect"  # the cell that binds the name is stale itself


class Cause(NamedTuple):
    """A reason why a cell is stale or used hidden state.

    `name` is a variable, and `provider_id` and `number` are the cell that bound it. If
    the cell used hidden state, `where` is DELETED, BELOW, INACTIVE, UNBOUND, EXTERNAL,
    EARLIER_VERSION, UNRESTORED, ITSELF or OVERRIDDEN; then `binder` is the number of
    the cell in between. If `where` is MODULE, `name` is a changed module, and `via` the
    module through which the cell used it. If `where` is UNDONE, the cell itself changed
    the variable, and the change was undone. If it is UNDONE_VALUE, an undone run of
    another cell changed the variable. If it is UNDONE_RUN, `name` is empty. If it is
    OVERWRITTEN, the cell itself bound the
    variable, and then a cell above it did (number 0: a deleted cell). If it is REMOVED,
    a cell above it deleted the variable later.
    """

    name: str
    provider_id: str
    number: int
    where: str = ""
    via: str = ""
    binder: int = 0


class MarkedCell(NamedTuple):
    """A cell that is stale or used hidden state, with the causes."""

    cell: Cell
    causes: Sequence[Cause]


def make_cause(name: str, cell: Cell, where: str = "") -> Cause:
    """Return a cause with a cell of the notebook as the provider of a name."""
    return Cause(name, cell.id, cell.number, where)
