"""The names that each cell of a notebook reads and writes, and the stale cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepper.policy.dataflow.causes import Cause, MarkedCell
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.dataflow.run_history import RunRecord
from stepper.policy.model import Cell


@dataclass(eq=False, repr=False)
class CellFlow:
    """A cell with the names that it reads and writes, and its last run.

    `record` is the last run, or None. `is_current` says that this run had the cell's
    current source. `providers` maps each name that the cell reads to the index of the
    nearest cell above that binds the name. `written` are the names that the cell binds
    or changes in place. `stale`, `hidden` and `indirect` are the causes why the cell is
    stale, used hidden state, or is indirectly stale.
    """

    cell: Cell
    usage: NameUsage
    record: RunRecord | None
    is_current: bool
    providers: dict[str, int] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    stale: list[Cause] = field(default_factory=list)
    hidden: list[Cause] = field(default_factory=list)
    indirect: list[Cause] = field(default_factory=list)

    @property
    def repairable_names(self) -> set[str]:
        """Names with hidden state that a run of the cells above can provide."""
        return {cause.name for cause in self.hidden if cause.name in self.providers}


@dataclass(eq=False, repr=False)
class Dependencies:
    """The stale cells of a notebook and the cells that used hidden state, in order."""

    flows: Sequence[CellFlow] = ()

    @property
    def reads(self) -> dict[str, dict[str, str]]:
        """The names that each cell reads, with the ids of the cells that provide them.

        The keys are the ids of the reading cells.
        """
        reads = {}
        for flow in self.flows:
            provider_ids = {}
            for name, index in flow.providers.items():
                provider_ids[name] = self.flows[index].cell.id
            reads[flow.cell.id] = provider_ids
        return reads

    @property
    def stale(self) -> list[MarkedCell]:
        """The cells that are stale themselves."""
        return [MarkedCell(flow.cell, flow.stale) for flow in self.flows if flow.stale]

    @property
    def hidden(self) -> list[MarkedCell]:
        """The cells that used hidden state."""
        return [
            MarkedCell(flow.cell, flow.hidden) for flow in self.flows if flow.hidden
        ]

    @property
    def indirect(self) -> list[MarkedCell]:
        """The cells that are only indirectly stale: they read from a stale cell.

        Cells that are stale themselves, or that used hidden state, are not included.
        """
        return [
            MarkedCell(flow.cell, flow.indirect)
            for flow in self.flows
            if flow.indirect and not flow.stale and not flow.hidden
        ]
