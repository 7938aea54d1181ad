"""The state of a notebook: its plan, the progress of the steps, the stop and the runs.

Only `journal_reducer.apply` changes a state, with two exceptions:
`compare_with_notebook` sets `changed_ids` and `open_cells`, and the project sets
`commands`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stepper.policy import changed_cells
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.journal_events import (
    Backgrounded,
    ExternalExecution,
    OutputsPending,
    RunEnded,
    RunStarted,
    RunsUndone,
    Stopped,
    Undelivered,
    Verified,
)
from stepper.policy.model import (
    NOTHING_OMITTED,
    Cell,
    Key,
    OmittedOutput,
    Plan,
    Step,
    StepKind,
    StepStatus,
    Verdict,
)
from stepper.policy.undo_model import NO_IMAGES, UndoImages

FINISHED = (StepStatus.DONE, StepStatus.SKIPPED)
STALE = "stale"
HIDDEN_STATE = "hidden state"
# How many failed preflight checks in a row count as one attempt.
FAILURES_PER_ATTEMPT = 3


@dataclass
class Progress:
    """The progress of a step, or of a cell that belongs to no step."""

    status: StepStatus = StepStatus.PENDING
    interrupted: bool = False  # whether the last run of the cell was interrupted
    cell_id: str | None = None
    index: int = -1  # of the cell when it ran last
    # Retries since the count was reset, for example by `/fix`.
    attempts: int = 0
    retries: int = 0  # over the whole history
    is_failing: bool = False  # whether the last run failed
    # Whether the last run asked the user a question (`STOP: QUESTION`).
    asked_user: bool = False
    # Why the step was skipped, is not done although its cell succeeded, or is done
    # although its criterion is false.
    reason: str = ""
    # The hash of the last source if its preflight check failed, or an empty string.
    preflight_hash: str = ""
    preflight_failures: int = 0  # in a row


@dataclass
class DisplayedOutput:
    """The outputs of a cell's last run in the notebook.

    `source_hash` is the hash of the source that ran. `displays` maps display ids to
    indexes of outputs.
    """

    source_hash: str
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: OmittedOutput = NOTHING_OMITTED
    # Text that arrived after the run, and the number of other late messages.
    late_characters: int = 0
    late_others: int = 0


@dataclass
class LateOutputSummary:
    """The late output of a cell: it arrived after the run and is not reported yet.

    The fields count the characters of text, the other outputs, and the updates of
    displays.
    """

    characters: int = 0
    outputs: int = 0
    updates: int = 0
    left_out: OmittedOutput = NOTHING_OMITTED  # of all outputs of the cell
    # Whether output was not written, because the cell was changed or deleted, or for
    # another reason.
    is_dropped: bool = False
    drop_reason: str = ""  # the other reason


class AttemptCount(NamedTuple):
    """The number of the agent's retries after a failed preflight check.

    `counts` is True if the check itself counts as an attempt.
    """

    attempts: int
    counts: bool


@dataclass(frozen=True)
class OpenCell:
    """A code cell that keeps a notebook from being complete.

    A cell outside the plan is open if it failed, was interrupted or changed, or has not
    run. Any cell is open if it is stale or used hidden state.
    """

    cell_id: str
    number: int
    status: str  # a `StepStatus`, `STALE` or `HIDDEN_STATE`
    is_planned: bool = False  # whether the cell belongs to a step


@dataclass
class State:
    """The state of a notebook, derived from the events of its journal."""

    plan: Plan = field(default_factory=Plan)
    # How messages write commands for this notebook.
    commands: CommandLines = UNNAMED
    progress: dict[Key, Progress] = field(default_factory=dict)
    stop: Stopped | None = None  # set until the user resumes the notebook
    # Marks of what the agent wrote since the stop: see `notebook_identity.list_marks`.
    agent_marks: set[str] = field(default_factory=set)
    runs: list[RunEnded] = field(default_factory=list)
    # The sources of all runs that the journal describes completely.
    sources_by_hash: dict[str, str] = field(default_factory=dict)
    next_run: int = 1
    running: RunStarted | None = None
    renamed_from: str = ""  # the former name, until the next cell has run
    # Why the variables of the last kernel are lost, until the next run reports it.
    lost_reason: str = ""
    # Source hashes by cell id: of the cells that succeeded in the current kernel.
    succeeded_sources: dict[str, str] = field(default_factory=dict)
    # Source hashes by cell id: of the last run of each cell, whatever its outcome.
    last_sources: dict[str, str] = field(default_factory=dict)
    tool_use_ids: set[str] = field(default_factory=set)
    run_seconds: float = 0.0  # total duration of all runs
    # Cell ids by execution count, for the current kernel.
    cells_by_execution_count: dict[int, str] = field(default_factory=dict)
    # (cell id, source hash) by message id, for the current kernel.
    cells_by_request: dict[str, tuple[str, str]] = field(default_factory=dict)
    # By cell id, for the current kernel.
    displayed_outputs: dict[str, DisplayedOutput] = field(default_factory=dict)
    late_outputs: dict[str, LateOutputSummary] = field(default_factory=dict)
    # Executions by other clients; the first `reported_external_count` are reported.
    external_executions: list[ExternalExecution] = field(default_factory=list)
    reported_external_count: int = 0
    undone: list[RunsUndone] = field(default_factory=list)
    # The runs of cells that ran again or were deleted, whose changes are undone, and
    # the runs that `stepper undo` undid.
    undone_runs: set[int] = field(default_factory=set)
    # The before-images in the kernel, and the oldest run that can be undone completely.
    undo_images: UndoImages = NO_IMAGES
    undo_reach: int = 0
    # The last run before a `stepper undo` whose result is unknown, or 0.
    last_run_before_lost_undo: int = 0
    # Names that a restore could not restore, with the reasons, until a run binds them.
    unrestored: dict[str, str] = field(default_factory=dict)
    # The number of the last run before other code may have changed variables: code that
    # another client or `stepper eval` executed.
    last_run_before_other_code: int = 0
    # The same for code that may have bound any name, and for each name that other code
    # bound.
    last_run_before_unknown_code: int = 0
    names_bound_by_other_code: dict[str, int] = field(default_factory=dict)
    # Delivered reports by run; 0 is the last report without a run.
    reports: dict[int, str] = field(default_factory=dict)
    last_report: int | None = None
    # The tool call of the last failed preflight check, which `reports[0]` is about.
    preflight_call_id: str | None = None
    # The step or cell that ran last, or failed its preflight check last.
    last_key: Key | None = None
    # Cells that were changed or deleted since they ran, as of the last comparison.
    changed_ids: set[str] = field(default_factory=set)
    # As of the last analysis: the stale cells, and those that used hidden state.
    stale_ids: set[str] = field(default_factory=set)
    hidden_ids: set[str] = field(default_factory=set)
    open_cells: list[OpenCell] = field(default_factory=list)
    # Calls whose results must still be reported, by call id.
    background_calls: dict[str, Backgrounded] = field(default_factory=dict)
    undelivered: list[Undelivered] = field(default_factory=list)
    # Outputs that could not be written into the notebook yet, by cell id.
    pending_outputs: dict[str, OutputsPending] = field(default_factory=dict)
    # The versions of packages when they were used last.
    packages: dict[str, str] = field(default_factory=dict)
    # The modules of the project that each module of the project imports.
    imports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    verified: Verified | None = None  # the result of the last replay
    unreadable_events: int = 0
    # Whether nothing happened since the last run that could change its result.
    unchanged: bool = False

    def find_run(self, number: int) -> RunEnded | None:
        """Return the run with a number, or None."""
        for run in reversed(self.runs):
            if run.run == number:
                return run
        return None

    def get_progress(self, key: Key) -> Progress:
        """Return the progress of a step or cell.

        If the key is new, return a new `Progress` that is not part of the state.
        """
        return self.progress.get(key, Progress())

    def get_or_add_progress(self, key: Key) -> Progress:
        """Return the progress of a step or cell; add it if the key is new."""
        return self.progress.setdefault(key, Progress())

    def find_cell_key(self, cell_id: str) -> Key | None:
        """Return the key under which the runs of a cell are counted, or None.

        If a cell has run for several steps, return the first of them in the plan.
        """
        # The order of `progress` is the order in which steps and cells ran first.
        planned_keys = [step.id for step in self.plan.steps]
        for key in (*planned_keys, *self.progress):
            if self.get_progress(key).cell_id == cell_id:
                return key
        return None

    def get_step_status(self, key: Key) -> StepStatus:
        """Return the status of a step in messages and JSON.

        `key` can also be the id of a cell that belongs to no step. The status is
        INTERRUPTED if the last run was interrupted, and CHANGED if the cell was changed
        or deleted after it succeeded. Failed and skipped steps keep their status.
        """
        progress = self.get_progress(key)
        has_succeeded = progress.status in (StepStatus.DONE, StepStatus.CRITERION_FALSE)
        is_pending = progress.status is StepStatus.PENDING
        if progress.interrupted and (has_succeeded or is_pending):
            return StepStatus.INTERRUPTED
        if has_succeeded and progress.cell_id in self.changed_ids:
            return StepStatus.CHANGED
        return progress.status

    def compare_with_notebook(self, cells: Sequence[Cell]) -> list[Cell]:
        """Update `changed_ids` and `open_cells` from the cells of the notebook.

        Return the runnable cells that are new, or changed since they ran. Without a
        plan, no cell is open.
        """
        changes = changed_cells.find_changes(cells, self.last_sources)
        self.changed_ids = changes.outdated_ids
        self.open_cells = []
        if self.plan.steps:
            new_ids = {cell.id for cell in changes.cells}
            self._add_open_cells(cells, new_ids)
        return changes.cells

    def _add_open_cells(self, cells: Sequence[Cell], new_ids: set[str]) -> None:
        """Add the open cells; `new_ids` are the ids of new and changed cells."""
        planned_ids = {self.get_progress(step.id).cell_id for step in self.plan.steps}
        progress_by_id = {
            progress.cell_id: progress
            for key, progress in self.progress.items()
            if isinstance(key, str)
        }
        running_id = self.running.cell_id if self.running is not None else None
        for cell in changed_cells.select_runnable(cells):
            if cell.id == running_id:
                continue
            is_planned = cell.id in planned_ids
            status = ""
            if not is_planned:
                progress = progress_by_id.get(cell.id)
                is_new = cell.id in new_ids
                status = self._find_open_status(cell, progress, is_new=is_new)
            status = status or self._find_data_status(cell)
            if status:
                open_cell = OpenCell(cell.id, cell.number, status, is_planned)
                self.open_cells.append(open_cell)

    def _find_open_status(
        self, cell: Cell, progress: Progress | None, *, is_new: bool
    ) -> str:
        """Return the status of an open cell, or an empty string if it is not open.

        The cell belongs to no step. `is_new` says that the cell is new, or changed
        since it ran.
        """
        # A cell whose preflight check failed has the status FAILED.
        if is_new and not self._has_failed_preflight(cell, progress):
            has_run = cell.id in self.last_sources
            status = StepStatus.CHANGED if has_run else StepStatus.PENDING
            return status.value
        if progress is not None and progress.interrupted:
            return StepStatus.INTERRUPTED.value
        if progress is not None and progress.status is StepStatus.FAILED:
            return StepStatus.FAILED.value
        return ""

    def _find_data_status(self, cell: Cell) -> str:
        """Return STALE, HIDDEN_STATE, or an empty string for other cells."""
        if cell.id in self.stale_ids:
            return STALE
        return HIDDEN_STATE if cell.id in self.hidden_ids else ""

    def _has_failed_preflight(self, cell: Cell, progress: Progress | None) -> bool:
        """Return whether the preflight check of a cell's current source failed."""
        if progress is None or not progress.preflight_hash:
            return False
        return progress.preflight_hash == changed_cells.hash_source(cell.source)

    def count_attempts_after(
        self, key: Key, verdict: Verdict, *, is_repeated: bool, outside_agent: bool
    ) -> int:
        """Return the number of the agent's retries after a run with this verdict.

        The run is not in the state yet. A cancelled run does not change the number. If
        the step was done, the count starts again at 0. See `is_retry` for `is_repeated`
        and `outside_agent`.
        """
        progress = self.get_progress(key)
        if verdict is Verdict.CANCELLED:
            return progress.attempts
        if progress.status is StepStatus.DONE:
            return 0
        is_retry = self.is_retry(
            key, is_repeated=is_repeated, outside_agent=outside_agent
        )
        return progress.attempts + is_retry

    def is_retry(self, key: Key, *, is_repeated: bool, outside_agent: bool) -> bool:
        """Return whether the next run of a step or cell is a retry of the agent.

        The run is a retry if the last run failed without asking the user a question. It
        is not a retry if stepper repeats a run by itself (`is_repeated`), or if a
        user's terminal, a script or CI requested the run (`outside_agent`).
        """
        if is_repeated or outside_agent:
            return False
        progress = self.get_progress(key)
        return progress.is_failing and not progress.asked_user

    def count_attempts_after_preflight(self, key: Key) -> AttemptCount:
        """Return the number of the agent's retries after a failed preflight check.

        The check is not in the state yet. Only every third failed check in a row counts
        as an attempt.
        """
        progress = self.get_progress(key)
        counts = progress.preflight_failures + 1 == FAILURES_PER_ATTEMPT
        is_done = progress.status is StepStatus.DONE
        attempts = 0 if is_done else progress.attempts
        return AttemptCount(attempts + counts, counts)

    def find_open_step(self, *excluded: StepStatus) -> Step | None:
        """Return the first step that is neither done nor skipped, or None.

        Steps with an excluded status are ignored. A step that is done stays done here
        if its cell changes or is interrupted later.
        """
        for step in self.plan.steps:
            progress = self.get_progress(step.id)
            if progress.status not in (*FINISHED, *excluded):
                return step
        return None

    @property
    def runs_in_background(self) -> bool:
        """Whether the running cell continues in the background."""
        if self.running is None:
            return False
        return self.running.tool_use_id in self.background_calls

    @property
    def open_steps(self) -> list[Step]:
        """The steps that are neither done nor skipped."""
        return [
            step
            for step in self.plan.steps
            if self.get_step_status(step.id) not in FINISHED
        ]

    @property
    def is_complete(self) -> bool:
        """Whether all work of the plan is finished.

        This requires that each step is done or skipped, validation steps are done, and
        no cell is open. A notebook without a plan is never complete.
        """
        if not self.plan.steps or self.open_steps or self.open_cells:
            return False
        return all(
            self.get_progress(step.id).status is StepStatus.DONE
            for step in self.plan.steps
            if step.kind is StepKind.VALIDATION
        )

    @property
    def is_failing(self) -> bool:
        """Whether all steps are done or skipped, but a cell outside the plan failed.

        Without a plan: whether the last cell that ran failed.
        """
        if self.plan.steps:
            return not self.open_steps and any(
                cell.status == StepStatus.FAILED.value for cell in self.open_cells
            )
        if self.last_key is None:
            return False
        return self.get_progress(self.last_key).status is StepStatus.FAILED

    @property
    def status_name(self) -> str:
        """The status in messages and JSON: stopped, complete, failing or ready."""
        if self.stop:
            return "stopped"
        if self.is_complete:
            return "complete"
        return "failing" if self.is_failing else "ready"

    @property
    def has_open_work(self) -> bool:
        """Whether there is work to continue.

        Unfinished steps, open cells, a stop, background calls and undelivered reports
        count as work. A notebook without a plan has open work if a cell has succeeded
        in the current kernel, or if the last cell failed.
        """
        if self.stop or self.open_steps or self.open_cells:
            return True
        if self.undelivered or self.background_calls:
            return True
        has_run = bool(self.succeeded_sources) or self.is_failing
        return has_run and not self.plan.steps
