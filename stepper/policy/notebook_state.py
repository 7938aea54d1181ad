"""One notebook's standing: plan, how far its steps are, stop, what ran where.

Changed by `journal_reducer.apply` alone, except `changed` (a look at the file sets it) and `commands`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from stepper.policy import cell_changes
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.journal_events import (
    Backgrounded,
    ExternalExecution,
    OutputsPending,
    RunEnded,
    RunStarted,
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

FINISHED = (StepStatus.DONE, StepStatus.SKIPPED)
STALE = "stale"
FAILURES_PER_ATTEMPT = 3  # faults found before a cell ran that count as one attempt


@dataclass
class Progress:
    """How far a step (or a cell in no step) is. `attempts` are the retries made since the count began."""

    status: StepStatus = StepStatus.PENDING
    interrupted: bool = False  # its cell's last run was broken off
    cell_id: str | None = None
    index: int = -1  # where its cell stood
    attempts: int = 0
    # over the whole history; `/fix` starts `attempts` afresh, not these
    retries: int = 0
    is_failing: bool = False
    # its last run ended with a question to the user (`STOP: QUESTION`)
    asked_user: bool = False
    reason: str = ""  # why it was skipped, is doubted, or is done although it was
    # the source hash that was not run last, because of what was found before
    preflight_hash: str = ""
    preflight_failures: int = 0  # how often in a row


@dataclass
class DisplayedOutput:
    """What a cell shows of its last run: display id → which outputs; what the limits leave out; by which source."""

    source_hash: str
    displays: dict[str, list[int]] = field(default_factory=dict)
    left_out: OmittedOutput = NOTHING_OMITTED
    late_characters: int = 0  # that came after the run, and messages that were no text
    late_others: int = 0


@dataclass
class LateOutputSummary:
    """What came for a cell besides its run and was not told yet."""

    characters: int = 0
    outputs: int = 0
    updates: int = 0
    left_out: OmittedOutput = NOTHING_OMITTED  # of all that the cell got
    is_outdated: bool = False  # the cell was changed or deleted since it ran


@dataclass(frozen=True)
class OpenCell:
    """A code cell outside the plan that failed, was interrupted, was changed, is stale or has not run."""

    cell_id: str
    number: int
    status: str  # a `StepStatus`, or `STALE`


@dataclass
class State:
    """One notebook's standing."""

    plan: Plan = field(default_factory=Plan)
    commands: CommandLines = UNNAMED  # as texts write them; the project's to set
    progress: dict[Key, Progress] = field(default_factory=dict)
    stop: Stopped | None = None  # no further cell runs until the person says so
    # of the notebook as the agent left it since it is stopped: `notebook_identity.marks`
    agent_marks: set[str] = field(default_factory=set)
    runs: list[RunEnded] = field(default_factory=list)
    sources_by_hash: dict[str, str] = field(
        default_factory=dict
    )  # of what ran here: hash →
    next_run: int = 1
    running: RunStarted | None = None
    renamed_from: str = ""  # the notebook's former name, until a cell has run since
    lost_reason: str = (
        ""  # why the last kernel's state is gone; told once, with the next run
    )
    # cell id → source hash, ok in the present kernel
    succeeded_sources: dict[str, str] = field(default_factory=dict)
    # cell id → source hash, whatever became of it
    last_sources: dict[str, str] = field(default_factory=dict)
    tool_use_ids: set[str] = field(default_factory=set)
    run_seconds: float = 0.0  # spent in runs
    # execution count → cell id, in the present kernel
    cells_by_execution_count: dict[int, str] = field(default_factory=dict)
    # → cell id, source hash; in the present kernel
    cells_by_request: dict[str, tuple[str, str]] = field(default_factory=dict)
    # cell id →, in the present kernel
    displayed_outputs: dict[str, DisplayedOutput] = field(default_factory=dict)
    late_outputs: dict[str, LateOutputSummary] = field(
        default_factory=dict
    )  # cell id →
    # executions of other clients
    external_executions: list[ExternalExecution] = field(default_factory=list)
    reported_external_count: int = 0  # how many of them, from the first on
    # run → what the agent read; 0: where nothing ran
    reports: dict[int, str] = field(default_factory=dict)
    last_report: int | None = None
    last_key: Key | None = None  # what ran last, or was held back
    # cells that ran with another source than the file has: as seen last
    changed_ids: set[str] = field(default_factory=set)
    stale_ids: set[str] = field(
        default_factory=set
    )  # ids of stale cells, as last analysed
    # as the notebook was read last
    open_cells: list[OpenCell] = field(default_factory=list)
    # by call: how they end is owed to somebody
    background_calls: dict[str, Backgrounded] = field(default_factory=dict)
    # what became of edits whose report nobody could read
    undelivered: list[Undelivered] = field(default_factory=list)
    # cell id → outputs that wait for the notebook
    pending_outputs: dict[str, OutputsPending] = field(default_factory=dict)
    # → the version that the last run which used it had
    packages: dict[str, str] = field(default_factory=dict)
    # modules of the project → those of the project that they import
    imports: dict[str, tuple[str, ...]] = field(default_factory=dict)
    verified: Verified | None = None  # the last replay's verdict
    unreadable_events: int = 0  # events that could not be understood
    # nothing of stepper's happened since the last run that could change how it ends
    unchanged: bool = False

    def progress_of(self, key: Key) -> Progress:
        """Return the standing of a step or a cell in no step; made where it is new."""
        return self.progress.setdefault(key, Progress())

    def status_of(self, key: Key) -> StepStatus:
        """Return where a step stands for those who look: a run broken off or a cell changed takes `done` from it."""
        progress = self.progress_of(key)
        ran = progress.status in (StepStatus.DONE, StepStatus.CRITERION_FALSE)
        if progress.interrupted and (ran or progress.status is StepStatus.PENDING):
            return StepStatus.INTERRUPTED
        changed = ran and progress.cell_id in self.changed_ids
        return StepStatus.CHANGED if changed else progress.status

    def compare_with_notebook(self, cells: Sequence[Cell]) -> list[Cell]:
        """Compare the notebook's cells with what ran; return those that have not run as they stand."""
        fresh, self.changed_ids = cell_changes.find_changes(cells, self.last_sources)
        in_plan = {self.progress_of(step.id).cell_id for step in self.plan.steps}
        known = {
            progress.cell_id: progress
            for key, progress in self.progress.items()
            if isinstance(key, str)
        }
        fresh_ids = {cell.id for cell in fresh}
        self.open_cells = []
        for cell in cell_changes.select_runnable(cells) if self.plan.steps else ():
            running = self.running is not None and self.running.cell_id == cell.id
            if cell.id in in_plan or running:
                continue
            status = self._open_status(cell, known.get(cell.id), cell.id in fresh_ids)
            if status:
                self.open_cells.append(OpenCell(cell.id, cell.number, status))
        return fresh

    def _open_status(
        self, cell: Cell, progress: Progress | None, is_fresh: bool
    ) -> str:
        """Return why a cell outside the plan is open; '' if it is not."""
        held = (
            progress is not None
            and progress.preflight_hash == cell_changes.hash_source(cell.source)
        )
        if is_fresh and not held:
            status = (
                StepStatus.CHANGED
                if cell.id in self.last_sources
                else StepStatus.PENDING
            )
            return str(status.value)
        if progress is not None and progress.interrupted:
            return str(StepStatus.INTERRUPTED.value)
        if progress is not None and progress.status is StepStatus.FAILED:
            return str(StepStatus.FAILED.value)
        return STALE if cell.id in self.stale_ids else ""

    def count_attempts_after(
        self, key: Key, verdict: Verdict, repeat: bool, outside_agent: bool = False
    ) -> int:
        """Return how many retries the agent will have made when a run with that verdict is applied.

        A run that was asked for outside the agent is not one of them.
        """
        progress = self.progress_of(key)
        if verdict is Verdict.CANCELLED:
            return progress.attempts
        fresh = progress.status is StepStatus.DONE
        return (
            0
            if fresh
            else progress.attempts + self.is_retry(key, repeat, outside_agent)
        )

    def is_retry(self, key: Key, repeat: bool, outside_agent: bool = False) -> bool:
        """Return whether the next run of a step is a retry: its last run failed and did not ask the user."""
        progress = self.progress_of(key)
        return (
            progress.is_failing
            and not progress.asked_user
            and not repeat
            and not outside_agent
        )

    def count_attempts_after_preflight(self, key: Key) -> tuple[int, bool]:
        """Return how many retries will have been made once a fault is found before a cell runs; whether it counts."""
        progress = self.progress_of(key)
        counts = progress.preflight_failures + 1 == FAILURES_PER_ATTEMPT
        return (
            0 if progress.status is StepStatus.DONE else progress.attempts
        ) + counts, counts

    def find_open_step(self, *ran: StepStatus) -> int | None:
        """Return the id of the first step that is neither done nor skipped, nor of the statuses given, or None."""
        return next(
            (
                step.id
                for step in self.plan.steps
                if self.progress_of(step.id).status not in (*FINISHED, *ran)
            ),
            None,
        )

    @property
    def runs_in_background(self) -> bool:
        """Whether what runs was handed on: nobody waits for it any more."""
        return (
            self.running is not None
            and self.running.tool_use_id in self.background_calls
        )

    @property
    def open_steps(self) -> list[Step]:
        """The steps that are not over, or no longer: their cell was broken off or changed since."""
        return [
            step for step in self.plan.steps if self.status_of(step.id) not in FINISHED
        ]

    @property
    def is_complete(self) -> bool:
        """Whether every step is done or skipped, the validation step, if any, passed, and no other cell is open.

        Without a plan never.
        """
        passed = all(
            self.progress_of(step.id).status is StepStatus.DONE
            for step in self.plan.steps
            if step.kind is StepKind.VALIDATION
        )
        return (
            bool(self.plan.steps)
            and not self.open_steps
            and passed
            and not self.open_cells
        )

    @property
    def is_failing(self) -> bool:
        """Whether the last run failed in a notebook without a plan, or a cell outside a plan without open steps."""
        if self.plan.steps and not self.open_steps:
            return any(
                cell.status == StepStatus.FAILED.value for cell in self.open_cells
            )
        return (
            not self.plan.steps
            and self.last_key is not None
            and self.progress_of(self.last_key).status is StepStatus.FAILED
        )

    @property
    def status_name(self) -> str:
        """The notebook's state for people and `--json`: `stopped`, `complete`, `failing` or `ready`."""
        return (
            "stopped"
            if self.stop
            else "complete"
            if self.is_complete
            else "failing"
            if self.is_failing
            else "ready"
        )

    @property
    def has_open_work(self) -> bool:
        """Whether there is work to go on with: a step that waits, a stop, or a notebook without a plan that ran."""
        loose = not self.plan.steps and (self.succeeded_sources or self.is_failing)
        return bool(
            self.stop
            or self.open_steps
            or self.open_cells
            or loose
            or self.undelivered
            or self.background_calls
        )
