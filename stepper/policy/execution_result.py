"""The result of executing code in a kernel, and the cells that outputs belong to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.policy.changed_cells import hash_source
from stepper.policy.model import (
    NOTHING_OMITTED,
    Cell,
    CriterionResult,
    Death,
    Fault,
    OmittedOutput,
    Outcome,
)
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.reloaded_modules import UNCHANGED, ModuleChanges
from stepper.policy.undo_model import UndoFacts


@dataclass(frozen=True)
class WidgetState:
    """The states of a kernel's widgets by model ID.

    The states have at most `limit` bytes in total; the states of other models are
    omitted.
    """

    states: Mapping[str, dict[str, Any]]
    limit: int
    omitted_count: int = 0  # models
    omitted_bytes: int = 0


@dataclass(frozen=True)
class CellVersion:
    """A cell with a certain source, which outputs belong to."""

    cell_id: str
    source_hash: str

    @classmethod
    def from_cell(cls, cell: Cell) -> CellVersion:
        """Return the current version of a cell."""
        return cls(cell.id, hash_source(cell.source))


# Outputs as nbformat dicts, by cell.
Outputs = Mapping[CellVersion, Sequence[dict[str, Any]]]


@dataclass
class Execution:
    """The result of executing code in a kernel; `outputs` are nbformat dicts."""

    outcome: Outcome
    outputs: list[dict[str, Any]] = field(default_factory=list)
    execution_count: int | None = None
    # ISO 8601 times by the names that nbclient uses in `metadata.execution`.
    timings: dict[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    death: Death | None = None
    namespace: Namespace = UNKNOWN_NAMESPACE
    # The names before the execution.
    namespace_before: Namespace = UNKNOWN_NAMESPACE
    # Facts from the diagnosis helper in the kernel; only the diagnosis reads them.
    diagnosis_data: dict[str, Any] = field(default_factory=dict)
    # The result of the step's criterion, or None if the result is unknown.
    criterion_result: CriterionResult | None = None
    notes: list[str] = field(default_factory=list)
    # The kernel's report on the before-image of the run, or None if it sent none.
    undo: UndoFacts | None = None
    # Project modules that changed since they were imported.
    module_changes: ModuleChanges = UNCHANGED
    memory: str = ""  # the memory use when the memory guard stopped the cell
    # The outputs that are images.
    images: list[dict[str, Any]] = field(default_factory=list)
    left_out: OmittedOutput = NOTHING_OMITTED
    # Display ID → indexes of the outputs that show it.
    displays: dict[str, list[int]] = field(default_factory=dict)
    widgets: WidgetState | None = None  # None if no widget changed
    # Outputs inside Output widgets.
    widget_outputs: list[dict[str, Any]] = field(default_factory=list)
    # Sources of the cells that Jupyter would insert below (`set_next_input`).
    next_inputs: list[str] = field(default_factory=list)
    # From the kernel_info_reply.
    language_info: Mapping[str, Any] = field(default_factory=dict)
    # The outputs are in the notebook, except those in `left_out`.
    in_notebook: bool = False
    # The connection was lost during the run and restored.
    reconnected: bool = False
