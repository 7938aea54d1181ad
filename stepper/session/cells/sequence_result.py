"""The result of cells that ran in order, for the response and the report."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepper.messages.run_report import Report, RunSummary


@dataclass
class SequenceResult:
    """The summaries of finished runs, in order, and the report on the first failure.

    The report may be about a cell after the finished runs, which did not run or whose
    result is not known yet.
    """

    finished: list[RunSummary] = field(default_factory=list)
    failure: Report | None = None
