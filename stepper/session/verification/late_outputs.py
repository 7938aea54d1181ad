"""The outputs of a replay's cells, including those after the end of the last cell.

Threads, asyncio tasks and child processes may print after the cell that started them. A
replay waits for such outputs if a source mentions what could print them, or if outputs
differ from the recorded ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepper.common.errors import StepperError
from stepper.policy.comparison.recorded_results import Outputs, Recording
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell
from stepper.session.session import Session

LATE_SECONDS = 0.3  # how long to wait for late outputs
UNWRITTEN = "the outputs of the replay could not be written"
# Sources that may start a thread, a task or a process, or register a callback.
BACKGROUND = re.compile(
    r"thread|async|await|timer|callback|call_(?:later|at|soon)|executor|submit\("
    r"|subprocess|popen|system\(|spawn|process|fork|\.start\(|&['\"\s]*$",
    re.IGNORECASE | re.MULTILINE,
)
# Keys of an output that are not part of the printed text or the shown data.
OTHER_KEYS = ("execution_count", "metadata", "transient")


async def collect_outputs(
    fresh: Session, cells: Sequence[Cell], recording: Recording
) -> dict[int, list[dict[str, Any]]]:
    """Return the outputs of the cells that ran, by cell index.

    If necessary, wait for late outputs. Raise StepperError if outputs cannot be
    written.
    """
    outputs = _write_and_read(fresh, cells)
    kernel = fresh.kernel_manager.kernel
    if kernel is None or await kernel.check_death() is not None:
        return outputs
    are_as_recorded = all(
        _get_contents(outputs[cell.index])
        == _get_contents(recording.outputs[cell.index] or ())
        for cell in cells
    )
    if are_as_recorded and not any(BACKGROUND.search(cell.source) for cell in cells):
        return outputs
    await asyncio.sleep(LATE_SECONDS)
    return _write_and_read(fresh, cells)


def _write_and_read(
    fresh: Session, cells: Sequence[Cell]
) -> dict[int, list[dict[str, Any]]]:
    """Write the outputs that the kernel has sent; return the outputs of cells.

    Raise StepperError if outputs cannot be written.
    """
    kernel = fresh.kernel_manager.kernel
    if kernel is not None:
        kernel.receive_pending()
    fresh.write_late_outputs()
    if fresh.state.pending_outputs:
        notices = "; ".join(fresh.notices.list_texts())
        reason = f": {notices}" if notices else ""
        raise StepperError(UNWRITTEN + reason, "df -h .stepper")
    return {
        cell.index: fresh.file.read_outputs(CellVersion.from_cell(cell))
        for cell in cells
    }


def _get_contents(outputs: Outputs) -> list[Mapping[str, Any]]:
    """Return the contents of outputs in a form that can be compared."""
    contents: list[Mapping[str, Any]] = []
    for output in outputs:
        content = {
            key: _join_lines(value)
            for key, value in output.items()
            if key not in OTHER_KEYS
        }
        data = content.get("data")
        if isinstance(data, dict):
            content["data"] = {kind: _join_lines(value) for kind, value in data.items()}
        contents.append(content)
    return contents


def _join_lines(value: Any) -> Any:
    """Return a text that may be stored as a list of lines; return other values."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return value
