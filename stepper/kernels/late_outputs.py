"""Outputs that come for cells beside the one that runs: after their run's end, or into displays that they show.

What a cell has is read when the first message comes, what it has then is written some time after: nothing is held
between two writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from stepper.kernels.output_area import UPDATE, OutputArea
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import journal_events
from stepper.policy.model import OmittedOutput
from stepper.session.protocols import CellVersion, Outputs, WidgetState


class LateOutputs:
    """What came for one notebook's cells since it was put there last."""

    def __init__(self, file: IpynbFile) -> None:
        self.file = file
        self.cells: dict[CellVersion, tuple[OutputArea, Counter[str]]] = {}
        # was put, and dropped by another's write
        self.again: dict[CellVersion, Sequence[dict[str, Any]]] = {}

    @property
    def has_pending(self) -> bool:
        """Whether anything came, or is gone again. Raise NotebookError."""
        self.again |= self.file.find_dropped_outputs()
        return bool(self.cells or self.again)

    def add_message(
        self,
        target: CellVersion,
        message: dict[str, Any],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
        waiting: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Take a message for a cell that shows these displays, and of whose outputs some are missing.

        Its run's outputs may be `waiting` to be written. Raise NotebookError where the notebook can't be read: nothing
        is taken then.
        """
        if target not in self.cells:
            outputs = self.file.read_outputs(target) if waiting is None else waiting
            self.cells[target] = (
                OutputArea.of(outputs, displays, missing, limit),
                Counter(),
            )
        area, came = self.cells[target]
        area.take(message)
        kind = message["msg_type"]
        came["characters"] += len(message["content"]["text"]) if kind == "stream" else 0
        came["updates"] += kind == UPDATE
        came["shows"] += kind not in ("stream", "clear_output", UPDATE)

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Put all of it on the cells, the state of widgets, and what a running cell has `so_far`; return what became
        of what came late. Raise NotebookError.
        """
        found = {
            **self.again,
            **{target: area.outputs() for target, (area, _) in self.cells.items()},
        }
        gone = self.file.write_late_outputs(found, models, so_far)
        arrived = [
            journal_events.LateOutput(
                **vars(target),
                characters=came["characters"],
                shows=came["shows"],
                updates=came["updates"],
                left_out=area.left_out,
                there=target not in gone,
                displays={mark: [*outputs] for mark, outputs in area.placed.items()},
            )
            for target, (area, came) in self.cells.items()
        ]
        self.cells, self.again = {}, {}
        return arrived
