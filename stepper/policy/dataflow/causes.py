"""The reasons why a cell is stale or used hidden state."""

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
# Other values of `Cause.where`, for stale cells.
MODULE = "module"  # a module that the cell used changed
UNDONE = "undone"  # a change that the cell made was undone
UNDONE_VALUE = "undone value"  # the cell read a change of another cell that was undone
UNDONE_RUN = "undone run"  # the user or an agent undid the run of the cell
PENDING = "pending"  # the cell that binds the name is new or changed, and has not run
OVERWRITTEN = "overwritten"  # a name that the cell bound was bound again above it
REMOVED = "removed"  # a name that the cell bound was deleted above it
INDIRECT = "indirect"  # the cell that binds the name is stale itself


class Cause(NamedTuple):
    """A reason why a cell is stale or used hidden state.

    `where` is one of the constants above, or empty if a cell above bound the variable
    to another value after this cell had run.
    """

    # A variable, or a module if `where` is MODULE. Empty if `where` is UNDONE_RUN.
    name: str
    # The cell that bound, deleted or undid the variable, if it is known.
    provider_id: str
    # The number of this cell; 0 if it is not known or the cell was deleted.
    number: int
    where: str = ""
    # The module through which the cell used the changed module; empty if it did so
    # directly.
    via: str = ""
    # If `where` is OVERRIDDEN, the number of the cell in between.
    binder: int = 0


class MarkedCell(NamedTuple):
    """A cell that is stale or used hidden state, with the causes."""

    cell: Cell
    causes: Sequence[Cause]


def make_cause(name: str, cell: Cell, where: str = "") -> Cause:
    """Return a cause with a cell of the notebook as the provider of a name."""
    return Cause(name, cell.id, cell.number, where)
