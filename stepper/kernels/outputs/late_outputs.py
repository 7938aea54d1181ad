"""Outputs that arrive for a cell while the cell is not running, until they are written.

For example, a thread prints after the end of the cell, or another cell updates a
display of the cell. When the first message for a cell arrives, the cell's outputs are
read from the notebook. After a write, no outputs remain in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.kernels.outputs.output_area import UPDATE, OutputArea, RenderedOutputs
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events
from stepper.policy.execution_result import CellVersion, Outputs, WidgetState
from stepper.policy.model import OmittedOutput


@dataclass
class PendingOutputs:
    """The outputs of one cell, and counts of the outputs added since the last write."""

    area: OutputArea
    characters: int = 0
    updates: int = 0  # of displays
    shows: int = 0  # displays and errors

    def add_message(self, message: dict[str, Any]) -> None:
        """Add a message and count it."""
        self.area.add_message(message)
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
        # Written outputs that were removed when another program wrote the file.
        self.dropped: dict[CellVersion, Sequence[dict[str, Any]]] = {}

    def collect_pending(self) -> bool:
        """Collect the outputs to write, and return whether there are any.

        Written outputs that another program has removed are also collected. Raise
        NotebookError if the notebook cannot be read.
        """
        self.dropped |= self.file.find_dropped_outputs()
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
        """Add a message for the cell `target`.

        `displays` maps the display ids that the cell shows to indices of its outputs.
        `missing` counts the outputs and characters that the notebook does not contain,
        and `limit` is the size limit of the outputs in bytes. `waiting` are outputs of
        the cell's run that have not been written yet, or None. Raise NotebookError,
        without adding anything, if the notebook cannot be read.
        """
        cell_outputs = self.pending.get(target)
        if cell_outputs is None:
            outputs = self.file.read_outputs(target) if waiting is None else waiting
            area = OutputArea.from_notebook(outputs, displays, missing, limit)
            cell_outputs = PendingOutputs(area)
            self.pending[target] = cell_outputs
        cell_outputs.add_message(message)

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Write all pending outputs to the notebook and return their journal events.

        `models` is the state of widgets, and `so_far` are the outputs of a running
        cell. Raise NotebookError if the notebook cannot be written.
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
        """Return the journal event for the late outputs of a cell."""
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
