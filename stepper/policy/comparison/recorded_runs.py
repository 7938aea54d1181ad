"""What a notebook file says about the recorded runs of its cells.

A replay follows the recorded run: it has the deadlines that the recorded times suggest,
and goes on below an error where the recorded run went on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.text import one_line
from stepper.policy import cell_directives
from stepper.policy.comparison.output_comparison import (
    compare_outputs,
)
from stepper.policy.comparison.output_items import (
    CellOutputs,
    join_stream,
)
from stepper.policy.model import Fault, Limits

Outputs = Sequence[Mapping[str, Any]]
# A replayed cell may take this many times its recorded duration, and at least
# MIN_DEADLINE_SECONDS: the recording may come from a faster machine.
DEADLINE_FACTOR = 10
MIN_DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Recording:
    """The recorded outputs of a notebook's runnable cells, by cell index.

    The outputs are None if the file records no run of the cell. `deadlines` are in
    seconds.
    """

    outputs: Mapping[int, Outputs | None]
    deadlines: Mapping[int, float]

    def goes_on_below(self, index: int) -> bool:
        """Return whether the recorded run ran cells below the cell at an index."""
        return any(
            other > index and outputs is not None
            for other, outputs in self.outputs.items()
        )


def choose_deadline(
    source: str, recorded_seconds: float | None, limits: Limits
) -> float:
    """Return the deadline of a replayed cell, in seconds.

    `recorded_seconds` is the duration of the recorded run, or None if it is unknown.
    """
    default = limits.verify_timeout
    if recorded_seconds is not None:
        default = max(DEADLINE_FACTOR * recorded_seconds, MIN_DEADLINE_SECONDS)
    directive = cell_directives.parse(source)
    return cell_directives.select_deadline(
        directive, default, limits.max_cell_timeout_seconds
    )


def has_recorded_error(fault: Fault, outputs: Outputs, recorded: Outputs) -> bool:
    """Return whether a cell failed with an error that its recorded outputs contain.

    `outputs` are the outputs of the failed run. IPython writes some errors only to
    stderr, such as an unknown magic command.
    """
    errors = [output for output in outputs if _is_error(output)]
    if not errors:
        message = f"{fault.ename}: {fault.evalue}"
        if message in join_stream(recorded, "stderr"):
            return True
        errors = [
            {"output_type": "error", "ename": fault.ename, "evalue": fault.evalue}
        ]
    return any(
        compare_outputs(
            CellOutputs([output]), CellOutputs(errors[-1:])
        ).verdict.reproduces
        for output in recorded
        if _is_error(output)
    )


def has_error_of_class(ename: str, recorded: Outputs) -> bool:
    """Return whether recorded outputs contain an error with this class name."""
    return any(
        _is_error(output) and output.get("ename") == ename for output in recorded
    )


def describe_recorded_error(recorded: Outputs) -> str:
    """Return a clause about the recorded error, or an empty string without one."""
    for output in recorded:
        if _is_error(output):
            ename = one_line(str(output.get("ename")), 100)
            evalue = one_line(str(output.get("evalue")), 150)
            return f"recorded: {ename}: {evalue}"
    return ""


def _is_error(output: Mapping[str, Any]) -> bool:
    return output.get("output_type") == "error"
