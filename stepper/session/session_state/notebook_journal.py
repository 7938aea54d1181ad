"""The journal of a notebook and the state that its events produce.

`NotebookJournal.log` applies each event to the state. The journal file alone must be
able to restore the state: what an event does not describe is lost with the daemon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stepper.common.errors import StepperError
from stepper.messages import command_messages, run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.policy import journal_events, journal_reducer
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import cell_dependencies
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.model import Cell, Key, Moment
from stepper.policy.notebook_state import State
from stepper.session.protocols import Journal
from stepper.session.session_state.notices import Notices


def format_now() -> Moment:
    """Return the present time in UTC as ISO 8601, for a journal event."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


class NotebookJournal:
    """Owns the journal file, the state and the run history of a notebook.

    Everybody may read `state` and `run_history`. They change only in the methods of
    this class: `log` for everything that the next daemon must know, the others for
    values that are computed from the notebook file or the project.
    """

    def __init__(
        self,
        file: Journal,
        notices: Notices,
        analyze_names: Callable[[str], NameUsage],
        on_event: Callable[[journal_events.Event], None],
    ) -> None:
        self._file = file
        self._notices = notices
        self._on_event = on_event  # called after each event
        self.run_history = cell_dependencies.History(analyze_names)
        events, problem = file.load()
        self.state: State = journal_reducer.replay(events)
        if problem:
            notices.add(problem)
        if self.state.unreadable_events:
            notices.add(
                f"{self.state.unreadable_events} line(s) of the journal are not valid"
                " and were ignored"
            )

    def log(self, event: journal_events.Event, sync: bool | None = True) -> None:
        """Write an event to the journal and apply it to the state.

        `sync` is that of `Journal.append`. Raise StepperError if the start of a run
        cannot be written: the cell must not run then.
        """
        is_start = isinstance(event, journal_events.RunStarted)
        try:
            self._file.append(event.to_json(), sync, keep=not is_start)
        except OSError as error:
            problem = f"the journal cannot be written ({error.strerror})"
            if is_start:
                raise StepperError(
                    problem, "df -h .stepper; ls -l .stepper/journal"
                ) from error
            self._notices.add(
                f"{problem}: its entries are only in memory, and are lost if the daemon"
                " exits before it can write them",
                error.strerror,
            )
        journal_reducer.apply(event, self.state)
        self._on_event(event)

    def load_events(self) -> Sequence[Mapping[str, Any]]:
        """Return all events of the file; the state has only the newest reports."""
        events, _ = self._file.load()
        return events

    # Reports

    def has_handled(self, tool_use_id: str | None) -> bool:
        """Return whether a tool call was handled already."""
        return tool_use_id in self.state.tool_use_ids

    def deliver_report(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of a tool call, or None.

        The report replaces the notice on that run, which is discarded.
        """
        last_run = None
        for run in self.state.runs:
            if run.tool_use_id == tool_use_id:
                last_run = run
        if last_run is None:
            text = self.state.reports.get(0)
            return None if text is None else Report(text, "", ok=False)
        text = self.state.reports.get(last_run.run)
        self._notices.discard(last_run.run)
        return command_messages.format_journaled_run(last_run, text, self.state.stop)

    def log_report(self, report: Report, summary: RunSummary) -> Report:
        """Log a report; return it with the stop of the notebook, if there is one."""
        if self.state.stop and not report.ok:
            report = replace(report, stop=self.state.stop.block)
        text = f"{report.text}\n{report.stop}".strip()
        self.log(journal_events.RunReported(run=summary.run.run, text=text), sync=False)
        return report

    def stop_notebook(
        self, key: Key, summary: RunSummary, attempts: int, fix: str = ""
    ) -> None:
        """Stop the notebook until the user resumes it.

        `fix` is the command that fixes the cause, or an empty string.
        """
        block = run_report.format_stop_block(summary, attempts, fix)
        question = run_report.format_question(summary)
        if question:
            block = f"{block}\n\n{question}"
        error = ": ".join(run_report.get_error(summary))
        self.log(
            journal_events.Stopped(
                at=format_now(),
                key=key,
                cell_id=summary.cell.id,
                block=block,
                error=error,
            )
        )

    # Values that are not in the journal

    def compare_with_notebook(self, cells: Sequence[Cell]) -> list[Cell]:
        """Update the changed and open cells; return the cells that changed or are new.

        `cells` are all cells of the notebook.
        """
        return self.state.compare_with_notebook(cells)

    def forget_deleted_last_cell(self, cells: Sequence[Cell]) -> None:
        """Forget which cell ran last if it is not among the notebook's cells."""
        last_key = self.state.last_key
        if last_key is None:
            return
        last_cell_id = self.state.get_or_add_progress(last_key).cell_id
        if last_cell_id not in {cell.id for cell in cells}:
            self.state.last_key = None

    def set_stale_cells(self, cell_ids: set[str]) -> None:
        """Set which cells are stale, as the analysis of their sources found."""
        self.state.stale_ids = cell_ids

    def set_command_lines(self, commands: CommandLines) -> None:
        """Set how messages write commands for this notebook."""
        self.state.commands = commands

    def clear_lost_reason(self) -> None:
        """Forget why the variables were lost: the user requested a new kernel."""
        self.state.lost_reason = ""

    def update_run_history(self) -> None:
        """Add the runs and external executions since the last call to the history."""
        self.run_history.catch_up(
            self.state.runs, self.state.sources_by_hash, self.state.external_executions
        )
