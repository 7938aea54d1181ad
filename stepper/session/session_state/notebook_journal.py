"""The journal of a notebook and the state that its events produce.

`NotebookJournal.log` applies each event to the state. The next daemon restores the
state from the journal file alone, so an event must contain all values that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.text import format_count
from stepper.messages import command_messages, run_report
from stepper.messages.run_report import Report, RunSummary
from stepper.notebooks.journal_file import SyncMode
from stepper.policy import journal_events, journal_reducer
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.dataflow import cell_dependencies, run_history
from stepper.policy.dataflow.cell_flow import Dependencies
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.model import Cell, Key, Moment
from stepper.policy.notebook_state import State
from stepper.session.protocols import Journal
from stepper.session.session_state.notices import Notices


def format_now() -> Moment:
    """Return the current time in UTC as ISO 8601, for a journal event."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    return now.replace("+00:00", "Z")


class NotebookJournal:
    """The journal file, the state and the run history of a notebook.

    Any code may read `state` and `run_history`, but only the methods of this class
    change them. `log` changes everything that the next daemon must know. The other
    methods change values that are computed from the notebook file or the project.
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
        self.run_history = run_history.History(analyze_names)
        # The last result of `find_dependencies`, and its inputs.
        self._dependencies = Dependencies()
        self._dependencies_key: tuple[object, ...] = ()
        self._dependencies_runs: Sequence[journal_events.RunEnded] = ()
        events, problem = file.load()
        self.state: State = journal_reducer.replay(events)
        if problem:
            notices.add(problem)
        if self.state.unreadable_events:
            lines = format_count(self.state.unreadable_events, "invalid line")
            notices.add(f"ignored {lines} of the journal")

    def log(self, event: journal_events.Event, sync: SyncMode = SyncMode.WAIT) -> None:
        """Write an event to the journal and apply it to the state.

        Raise StepperError if the start of a run cannot be written, because the cell
        must not run then. Other events that cannot be written stay in memory, and a
        notice reports the problem.
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
                f"{problem}: new entries are kept in memory, and are lost if the daemon"
                " exits before they can be written",
                error.strerror,
            )
        journal_reducer.apply(event, self.state)
        self._on_event(event)

    def load_events(self) -> Sequence[Mapping[str, Any]]:
        """Return all events of the file, including reports that the state dropped."""
        events, _ = self._file.load()
        return events

    # Reports

    def has_handled(self, tool_use_id: str | None) -> bool:
        """Return whether the journal already has the result of a tool call."""
        return tool_use_id in self.state.tool_use_ids

    def take_report(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last run of a tool call, or None if there is none.

        If no cell of the call ran, return the report on its failed preflight check, if
        this check was the last one that failed. Discard the notice on the run, because
        the report replaces the notice.
        """
        runs = [run for run in self.state.runs if run.tool_use_id == tool_use_id]
        if not runs:
            return self._get_preflight_report(tool_use_id)
        last_run = runs[-1]
        text = self.state.reports.get(last_run.run)
        self._notices.discard(last_run.run)
        return command_messages.format_journaled_run(last_run, text, self.state.stop)

    def _get_preflight_report(self, tool_use_id: str | None) -> Report | None:
        """Return the report on the last failed preflight check.

        Return None if it was the check of another tool call.
        """
        # The report on a failed preflight check has the number 0: there was no run.
        text = self.state.reports.get(0)
        if text is None or tool_use_id != self.state.preflight_call_id:
            return None
        return Report(text, line="", ok=False)

    def log_report(self, report: Report, summary: RunSummary) -> Report:
        """Log the report on a run; return the report.

        If the run failed and the notebook is stopped, the message on the stop is added
        to the report.
        """
        if self.state.stop and not report.ok:
            report = replace(report, stop=self.state.stop.block)
        text = f"{report.text}\n{report.stop}".strip()
        self.log(
            journal_events.RunReported(run=summary.run.run, text=text),
            sync=SyncMode.NONE,
        )
        return report

    def stop_notebook(
        self, key: Key, summary: RunSummary, attempts: int, fix: str = ""
    ) -> None:
        """Stop the notebook until the user resumes it.

        `key` is the step or cell that failed, and `attempts` the number of attempted
        fixes. `fix` is the suggestion for the user; if it is empty, the suggestion is
        derived from the error.
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
        """Record the changed and the open cells; return the new and changed cells.

        `cells` are all cells of the notebook.
        """
        return self.state.compare_with_notebook(cells)

    def forget_deleted_last_cell(self, cells: Sequence[Cell]) -> None:
        """Forget which cell ran last if the cell was deleted.

        `cells` are all cells of the notebook.
        """
        last_key = self.state.last_key
        if last_key is None:
            return
        last_cell_id = self.state.get_progress(last_key).cell_id
        if last_cell_id not in {cell.id for cell in cells}:
            self.state.last_key = None

    def set_cell_marks(self, stale_ids: set[str], hidden_ids: set[str]) -> None:
        """Set the IDs of the stale cells, and of the cells that used hidden state."""
        self.state.stale_ids = stale_ids
        self.state.hidden_ids = hidden_ids

    def set_command_lines(self, commands: CommandLines) -> None:
        """Set the object that formats commands for this notebook in messages."""
        self.state.commands = commands

    def clear_lost_reason(self) -> None:
        """Clear the reason for lost variables, because a new kernel was requested."""
        self.state.lost_reason = ""

    def update_run_history(self) -> None:
        """Add new runs, external executions and undone runs to the run history."""
        self.run_history.catch_up(
            self.state.runs,
            self.state.sources_by_hash,
            self.state.external_executions,
            self.state.undone,
        )

    def find_dependencies(self, cells: Sequence[Cell]) -> Dependencies:
        """Return the dependencies of a notebook's cells, after all runs so far.

        The last result is cached, because one request needs the dependencies several
        times for the same cells and runs.
        """
        self.update_run_history()
        history = self.run_history
        key = (history.version, tuple(cells))
        is_current = key == self._dependencies_key
        if not is_current or history.runs is not self._dependencies_runs:
            self._dependencies = cell_dependencies.find_dependencies(cells, history)
            self._dependencies_key = key
            self._dependencies_runs = history.runs
        return self._dependencies
