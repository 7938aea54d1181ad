"""The recorded runs of a notebook's cells: outputs, errors and durations in the file.

A replay imitates the recorded run: its deadlines depend on the recorded durations, and
it continues below a failed cell if the recorded run continued there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepper.common.text import one_line
from stepper.policy import cell_directives
from stepper.policy.comparison.output_comparison import compare_outputs
from stepper.policy.comparison.output_items import CellOutputs, join_stream
from stepper.policy.model import Fault, Limits

Outputs = Sequence[Mapping[str, Any]]
# The deadline of a replayed cell is this multiple of its recorded duration, because the
# recording may come from a faster machine.
DEADLINE_FACTOR = 10
# The deadline is at least this long.
MIN_DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Recording:
    """The recorded outputs of a notebook's runnable cells, by cell index.

    The outputs are None if the file records no run of the cell. `deadlines` are in
    seconds.
    """

    outputs: Mapping[int, Outputs | None]
    deadlines: Mapping[int, float]

    def has_runs_below(self, index: int) -> bool:
        """Return whether the file records a run of a cell below an index."""
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

    `fault` is the error of the failed run, and `outputs` are its outputs. IPython
    writes some errors only to stderr, for example for an unknown magic command.
    """
    error: Mapping[str, Any] = {
        "output_type": "error",
        "ename": fault.ename,
        "evalue": fault.evalue,
    }
    errors = [output for output in outputs if _is_error(output)]
    if errors:
        error = errors[-1]
    elif f"{fault.ename}: {fault.evalue}" in join_stream(recorded, "stderr"):
        return True
    for output in recorded:
        if _is_error(output):
            difference = compare_outputs(CellOutputs([output]), CellOutputs([error]))
            if difference.verdict.reproduces:
                return True
    return False


def has_error_of_class(ename: str, recorded: Outputs) -> bool:
    """Return whether recorded outputs contain an error with this class name."""
    return any(
        _is_error(output) and output.get("ename") == ename for output in recorded
    )


def describe_recorded_error(recorded: Outputs) -> str:
    """Return "recorded: CLASS: MESSAGE" for the first error, or an empty string."""
    for output in recorded:
        if _is_error(output):
            ename = one_line(str(output.get("ename")), 100)
            evalue = one_line(str(output.get("evalue")), 150)
            return f"recorded: {ename}: {evalue}"
    return ""


def _is_error(output: Mapping[str, Any]) -> bool:
    """Return whether an output is the error that a cell raised."""
    return output.get("output_type") == "error"
