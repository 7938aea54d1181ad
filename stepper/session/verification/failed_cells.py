"""Describes the cells that failed in a replay, and the cells that did not run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepper.messages.run_report import RunSummary, format_seconds
from stepper.notebooks.notebook_document import Document
from stepper.policy import cell_directives, run_decisions
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison import recorded_results
from stepper.policy.dataflow import unresolved_names
from stepper.policy.model import Outcome
from stepper.session import stale_cells
from stepper.session.session import Session

MISSING_NAME = re.compile(r"name '(\w+)' is not defined")
TIMEOUT_DIRECTIVE = "# stepper: timeout=1h"
ADDRESS_IN_USE = "Address already in use"
# Outcomes of runs that stepper interrupted because of a limit.
LIMITS = (Outcome.TIMEOUT, Outcome.MEMORY)


def describe_limit(summary: RunSummary) -> str:
    """Return a text on a cell that exceeded a time or memory limit of stepper."""
    run = summary.run
    if run.outcome is Outcome.MEMORY:
        return _cut_variables_note(run.error)
    text = f"timed out after {format_seconds(summary.timeout)}"
    if cell_directives.parse(summary.cell.source).timeout is not None:
        return text
    return f"{text} (for more time, add the first line `{TIMEOUT_DIRECTIVE}`)"


def describe_failure(
    session: Session,
    document: Document,
    summary: RunSummary,
    failures: Mapping[int, RunSummary],
) -> str:
    """Return a text on the failure of a cell, with the cause if it is known.

    `failures` are the failed runs of the replay by cell index.
    """
    cause = _find_cause(session, document, summary, failures)
    if not cause:
        recorded = document.get_recorded_outputs(summary.cell) or ()
        cause = recorded_results.describe_recorded_error(recorded)
    error = _cut_variables_note(summary.run.error)
    if cause:
        return f"{error} ({cause})"
    return error


def _cut_variables_note(error: str) -> str:
    """Return an error message without the note on variables and the text after it.

    The note is not useful, because the kernel of the replay no longer exists.
    """
    error = error.partition(run_decisions.VARIABLES_LOST)[0]
    return error.partition(f"; {run_decisions.VARIABLES_KEPT}")[0]


def describe_end(last_summary: RunSummary) -> str:
    """Return the reason why the cells below the last replayed cell did not run."""
    number = last_summary.cell.number
    outcome = last_summary.run.outcome
    if outcome in LIMITS:
        return f"cell {number} was interrupted"
    if outcome is Outcome.KERNEL_DIED:
        return f"the kernel died in cell {number}"
    return "a cell above failed"


def _find_cause(
    session: Session,
    document: Document,
    summary: RunSummary,
    failures: Mapping[int, RunSummary],
) -> str:
    """Return the cause of a failure, or an empty string if it is unknown."""
    fault = summary.run.fault
    missing_name = None
    if fault and fault.ename == "NameError":
        missing_name = MISSING_NAME.search(fault.evalue)
    if missing_name and session.language.is_python:
        return _explain_missing_name(
            session, document, missing_name[1], summary, failures
        )
    if ADDRESS_IN_USE in summary.run.error and session.kernel_manager.kernel:
        command = CommandLines(session.name).shell("shutdown")
        return (
            "the notebook's own kernel may use the address; to shut down that kernel,"
            f" run: {command}"
        )
    return ""


def _explain_missing_name(
    session: Session,
    document: Document,
    name: str,
    summary: RunSummary,
    failures: Mapping[int, RunSummary],
) -> str:
    """Return why a name is not defined, or an empty string if this is unknown."""
    number = _find_failed_definition(session, name, summary, failures)
    if number is not None:
        return f"`{name}` is defined in cell {number}, which failed"
    stale_cells.update_dependencies(session, document.cells)  # updates run_history
    return unresolved_names.describe_former_binding(
        name, summary.cell.id, document.cells, session.journal.run_history
    )


def _find_failed_definition(
    session: Session, name: str, reader: RunSummary, failures: Mapping[int, RunSummary]
) -> int | None:
    """Return the number of the last failed cell above `reader` that defines a name.

    Return None if there is no such cell.
    """
    numbers = [
        failure.cell.number
        for index, failure in failures.items()
        if index < reader.cell.index
        and name in session.language.analyze_names(failure.cell.source).binds
    ]
    return numbers[-1] if numbers else None
