"""Outputs for cells other than the running one, until they are written.

They arrive after the run of their cell, or update a display that the cell shows. The
outputs of a cell are read from the notebook when the first message for it arrives.
Nothing is kept in memory after a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.kernels.outputs.output_area import UPDATE, OutputArea, RenderedOutputs
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events
from stepper.policy.model import OmittedOutput
from stepper.session.protocols import CellVersion, Outputs, WidgetState


@dataclass
class PendingOutputs:
    """The outputs of one cell, and what was added to them since the last write."""

    area: OutputArea
    characters: int = 0
    updates: int = 0  # of displays
    shows: int = 0  # displays and errors

    def take(self, message: dict[str, Any]) -> None:
        """Add a message and count it."""
        self.area.take(message)
        message_type = message["msg_type"]
        if message_type == "stream":
            self.characters += len(message["content"]["text"])
        elif message_type == UPDATE:
            self.updates += 1
        elif message_type != "clear_output":
            self.shows += 1


class LateOutputs:
    """The late outputs of one notebook's cells."""

    def __init__(self, file: IpynbFile) -> None:
        self.file = file
        self.pending: dict[CellVersion, PendingOutputs] = {}
        # Outputs that were written, but that another program's write removed.
        self.dropped: dict[CellVersion, Sequence[dict[str, Any]]] = {}

    @property
    def has_pending(self) -> bool:
        """Whether there is something to write; raise NotebookError."""
        self.dropped |= self.file.pop_dropped_outputs()
        return bool(self.pending or self.dropped)

    def add_message(
        self,
        target: CellVersion,
        message: dict[str, Any],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
        waiting: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Add a message for a cell that shows these displays.

        `missing` is what the cell's outputs in the notebook lack, `waiting` are outputs
        of its run that are not written yet. Raise NotebookError, without adding
        anything, if the notebook cannot be read.
        """
        cell_outputs = self.pending.get(target)
        if cell_outputs is None:
            outputs = self.file.read_outputs(target) if waiting is None else waiting
            area = OutputArea.from_notebook(outputs, displays, missing, limit)
            cell_outputs = PendingOutputs(area)
            self.pending[target] = cell_outputs
        cell_outputs.take(message)

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Write everything to the cells; return the journal events.

        `models` is the state of widgets, `so_far` are the outputs of a running cell.
        Raise NotebookError.
        """
        rendered = {}
        outputs = dict(self.dropped)
        for target, cell_outputs in self.pending.items():
            rendered[target] = cell_outputs.area.render()
            outputs[target] = rendered[target].outputs
        missing_cells = self.file.write_late_outputs(outputs, models, so_far)
        events = []
        for target, result in rendered.items():
            is_written = target not in missing_cells
            event = self._build_event(target, result, is_written)
            events.append(event)
        self.pending = {}
        self.dropped = {}
        return events

    def _build_event(
        self, target: CellVersion, rendered: RenderedOutputs, is_written: bool
    ) -> journal_events.LateOutput:
        cell_outputs = self.pending[target]
        return journal_events.LateOutput(
            cell_id=target.cell_id,
            source_hash=target.source_hash,
            characters=cell_outputs.characters,
            shows=cell_outputs.shows,
            updates=cell_outputs.updates,
            left_out=rendered.omitted,
            there=is_written,
            displays=rendered.displays,
        )
