"""Protocols of the kernel, the notebook file and the journal.

The session depends on these only; `stepper/kernels` and `stepper/notebooks` implement
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stepper.policy import journal_events
from stepper.policy.changed_cells import hash_source
from stepper.policy.model import (
    NOTHING_OMITTED,
    Cell,
    CriterionResult,
    Death,
    Fault,
    Limits,
    OmittedOutput,
    Outcome,
    Plan,
)
from stepper.policy.module_changes import UNCHANGED, ModuleChanges
from stepper.policy.namespace_report import UNKNOWN_NAMESPACE, Namespace

if TYPE_CHECKING:
    from stepper.policy.configuration.kernel_config import BackendConfig


@dataclass(frozen=True)
class WidgetState:
    """The state of a kernel's widgets, at most `limit` bytes."""

    states: Mapping[str, dict[str, Any]]
    limit: int
    omitted_count: int = 0  # models
    omitted_bytes: int = 0


@dataclass(frozen=True)
class CellVersion:
    """A cell with a given source, as the target of outputs."""

    cell_id: str
    source_hash: str

    @classmethod
    def from_cell(cls, cell: Cell) -> CellVersion:
        """Return the present version of a cell."""
        return cls(cell.id, hash_source(cell.source))


# Outputs as nbformat dicts, by cell.
Outputs = Mapping[CellVersion, Sequence[dict[str, Any]]]


@dataclass
class Execution:
    """The result of one execution; `outputs` are nbformat dicts."""

    outcome: Outcome
    outputs: list[dict[str, Any]] = field(default_factory=list)
    execution_count: int | None = None
    # ISO 8601 times by the names that nbclient uses in `metadata.execution`.
    timings: dict[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    death: Death | None = None
    namespace: Namespace = UNKNOWN_NAMESPACE
    # The names before the execution.
    namespace_before: Namespace = UNKNOWN_NAMESPACE
    # Facts from the diagnosis helper in the kernel; only the diagnosis reads them.
    diagnosis_data: dict[str, Any] = field(default_factory=dict)
    # The result of the step's criterion, None if it is unknown.
    criterion_result: CriterionResult | None = None
    notes: list[str] = field(default_factory=list)
    # Project modules that changed since they were imported.
    module_changes: ModuleChanges = UNCHANGED
    memory: str = ""  # the memory use when the memory guard stopped the cell
    # The outputs that are images.
    images: list[dict[str, Any]] = field(default_factory=list)
    left_out: OmittedOutput = NOTHING_OMITTED
    # Display ID → indexes of the outputs that show it.
    displays: dict[str, list[int]] = field(default_factory=dict)
    widgets: WidgetState | None = None  # None if no widget changed
    # Outputs inside Output widgets.
    widget_outputs: list[dict[str, Any]] = field(default_factory=list)
    # Sources of the cells that Jupyter would insert below (`set_next_input`).
    next_inputs: list[str] = field(default_factory=list)
    # From the kernel_info_reply.
    language_info: Mapping[str, Any] = field(default_factory=dict)
    # The outputs are in the notebook, except those in `left_out`.
    in_notebook: bool = False
    # The connection was lost during the run and restored.
    reconnected: bool = False


@dataclass(frozen=True)
class LaunchConfig:
    """How to start a kernel: its interpreter, folder, environment and backend."""

    python: str
    cwd: str
    environ: Mapping[str, str]
    # The parent folder of stepper's own copies of ipykernel, which has one folder for
    # each Python version, such as `3.12`. For an interpreter without ipykernel.
    bundled_ipykernel: str = ""
    backend: BackendConfig | None = None  # None for `python` on this machine
    # The kernel exits with the daemon if the backend supports that.
    exits_with_daemon: bool = False


@dataclass(frozen=True)
class KernelMetadata:
    """The kernel as a notebook's metadata describes it."""

    name: str
    display_name: str
    language: str


@dataclass(frozen=True)
class KernelDescription:
    """A kernel's interpreter, process and location.

    `pid` is None unless the process runs on this machine. `install_command` adds
    ipykernel to an interpreter that lacks it. `limitation` is a sentence on what the
    backend cannot do. An `is_external` kernel was not started by stepper and is not
    shut down. For a remote kernel, `location` is a short text (job 12 on n1),
    `walltime_left` is in seconds and `problem` describes a lost connection.
    """

    python: str
    pid: int | None = None
    install_command: str = ""
    limitation: str = ""
    url: str = ""
    is_external: bool = False
    location: str = ""
    walltime_left: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class QueueStatus:
    """Why a kernel has not started: its request waits in a queue.

    `since` is a time of the monotonic clock. `wait_seconds` is how long a caller should
    wait, or None if the backend does not say. `request` is what is withdrawn if the
    start is cancelled.
    """

    text: str
    since: float
    wait_seconds: float | None
    # When the cell runs; '' if the request is being withdrawn.
    until: str = "the job starts"
    request: str = ""


@dataclass
class ExternalExecution:
    """An execution requested by another client, such as a console.

    `is_silent` means that the code is not stored in the history.
    """

    started_at: str
    code: str
    seconds: float = 0.0
    error: str = ""  # one line
    is_silent: bool = False
    namespace: Namespace = UNKNOWN_NAMESPACE  # afterwards; unknown in other languages


class PartialOutput(Protocol):
    """The output so far of the running cell."""

    change_count: int  # increases with each change

    @property
    def matched_line(self) -> str:
        """The first printed line that matches the wake pattern, or an empty string."""

    def outputs(self) -> list[dict[str, Any]]:
        """Return the present outputs as nbformat dicts."""

    def last_line(self) -> str:
        """Return the last progress bar, or the last printed line."""

    def last_lines(self) -> list[str]:
        """Return the last printed lines, from top to bottom."""


class ExternalExecutions(Protocol):
    """Executions that other clients request from the kernel."""

    on_finished: Callable[[ExternalExecution], None]  # called after each execution

    @property
    def running_since(self) -> float:
        """When the present one started (monotonic clock), or 0 if none runs."""

    def forget_before(self, before: float) -> None:
        """Treat executions that started before that time as finished.

        The kernel has answered a later request.
        """


class Kernel(Protocol):
    """The running kernel of one notebook."""

    id: str
    language: str  # as the kernel reports it, '' before the first request
    is_busy: bool
    # Called with each display message, and whether it is late, which means that its
    # request has finished. Returns whether it belongs to a cell that is not running.
    on_display: Callable[[dict[str, Any], bool], bool]

    @property
    def external_executions(self) -> ExternalExecutions:
        """Executions that other clients request."""

    @property
    def partial_output(self) -> PartialOutput | None:
        """The output so far of the running cell, or None."""

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter, process and location."""

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or ''; it may still run."""

    def get_connection_file(self) -> str:
        """Return the path of the connection file, or an empty string."""

    def measure_memory(self) -> int:
        """Return the resident memory of kernel and children in bytes."""

    def receive_pending(self) -> None:
        """Process messages that the kernel sent while no cell ran."""

    def take_widget_state(self) -> WidgetState | None:
        """Return the widget state, or None if it did not change."""

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
    ) -> Execution:
        """Run code until it finishes, or a limit or an interrupt stops it.

        `timeout` is in seconds. `request` identifies the execution for
        `await_earlier_request`. A `scratch` execution gets no execution count and is
        not in the history. `criterion` is an expression to evaluate afterwards; `wake`
        is the pattern of a line to look for. Raise KernelUnreachableError if the result
        cannot be determined.
        """

    async def take_over(self) -> Death | None:
        """Take over a kernel of an earlier daemon; interrupt what it runs.

        Return how the kernel died if it does not answer. Raise KernelUnreachableError
        if it cannot be reached but may still run.
        """

    async def await_earlier_request(
        self, request: str, seconds: float, limits: Limits, wake: str = ""
    ) -> Execution | None:
        """Wait for a request of an earlier daemon; return its result.

        Wait `seconds` at most. Return None if the request never started. Raise
        KernelError if the kernel does not answer. Meanwhile `partial_output` contains
        new output only.
        """

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return messages of a finished request that no daemon received.

        They are limited to those that the kernel still stores.
        """

    async def fetch_namespace(self) -> Namespace:
        """Return a summary of the namespace, UNKNOWN if not available."""

    async def interrupt(self, reason: str) -> None:
        """Interrupt the running execution."""

    async def check_death(self) -> Death | None:
        """Return how the kernel died, or None if it is alive."""

    async def shutdown(self) -> None:
        """Kill the kernel and its children and wait until they have exited.

        Raise KernelError if they may still run.
        """

    def detach(self) -> None:
        """Disconnect and leave the kernel running for the next daemon."""


class KernelLauncher(Protocol):
    """Starts kernels and finds those of an earlier daemon."""

    @property
    def queue_status(self) -> QueueStatus | None:
        """What the present start waits for in a queue, or None."""

    async def start(self, place: LaunchConfig) -> Kernel:
        """Start a kernel; return it when it is ready. Raise KernelError."""

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel of an earlier daemon, or how it died.

        Return None if there was no kernel. No request is sent to it.
        """

    async def cancel_request(self) -> None:
        """Cancel a request that is not a kernel yet, such as a queued job.

        Raise KernelError if this fails.
        """


class Notebook(Protocol):
    """The contents of a notebook file."""

    language: str
    plan: Any  # metadata.stepper, unchecked

    @property
    def figure_count(self) -> int:
        """The number of outputs that are images."""

    @property
    def cells(self) -> Sequence[Cell]:
        """All cells, in order."""

    def get_displayed_execution_count(self, cell: Cell) -> int | None:
        """Return the execution count of a cell with outputs, or None."""

    def get_recorded_outputs(self, cell: Cell) -> list[dict[str, Any]] | None:
        """Return a code cell's outputs, or None if it has no recorded run."""


class NotebookFile(Protocol):
    """A notebook on disk."""

    path: str
    inode: int  # of the file that was read or written last, 0 before
    last_written: tuple[int, ...]  # inode, size and time of the last write

    def set_relocate(self, relocate: Callable[[], bool]) -> None:
        """Set a function to call if the file does not exist.

        It searches for the renamed file and returns whether `path` has changed.
        """

    def move(self, path: str) -> None:
        """Use another path: the file was renamed."""

    def read(self) -> Notebook:
        """Read the notebook; raise NotebookError if the file is invalid."""

    def read_uncached(self) -> Notebook:
        """Read it without keeping it in memory; raise NotebookError."""

    def parse(self, text: str) -> Notebook:
        """Return the notebook that the text would be; raise NotebookError."""

    def write_execution(
        self, cell: Cell, execution: Execution, step: int | None, keep_time: bool
    ) -> str:
        """Write outputs to a cell; return '' or why this is impossible.

        Raise NotebookError if a later attempt may succeed.
        """

    def replace_duplicate_ids(self) -> list[tuple[str, Cell]]:
        """Give cells with a duplicate ID a new one.

        Return the former ID and the cell for each. Raise NotebookError.
        """

    def read_outputs(self, target: CellVersion) -> list[dict[str, Any]]:
        """Read a cell's outputs from the file.

        They are empty if the cell was removed or changed. Raise NotebookError.
        """

    def add_tag(self, cell: Cell, tag: str) -> None:
        """Add a tag to a cell if it still exists; raise NotebookError."""

    def remove_tag(self, cell: Cell, tag: str) -> None:
        """Remove a tag from the cell; do nothing if the cell no longer exists.

        Raise NotebookError.
        """

    def rearrange_cells(
        self, order: Callable[[Sequence[Cell]], Sequence[Cell]]
    ) -> tuple[Sequence[Cell], list[Cell]]:
        """Write the cells as `order` arranges them; keep the mtime.

        Return all cells, and the new and changed ones. Raise NotebookError.
        """

    def clear_outputs(self, cells: Sequence[Cell]) -> None:
        """Remove the outputs of code cells; raise NotebookError."""

    def write_plan(self, plan: Plan, kernel: KernelMetadata | None = None) -> None:
        """Write the plan and the kernel metadata; keep the mtime.

        Raise NotebookError if this fails.
        """

    def touch(self) -> None:
        """Set the modification time to now, for clients that poll it."""


class LateOutputs(Protocol):
    """Outputs that arrive after the run of their cell, until they are written."""

    @property
    def has_pending(self) -> bool:
        """Whether there is something to write."""

    def add_message(
        self,
        target: CellVersion,
        message: dict[str, Any],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
        waiting: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Add a message for a cell that shows these displays.

        `waiting` are outputs of its run that are not written yet. Raise NotebookError,
        without adding anything, if the notebook cannot be read.
        """

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Write everything to the cells; return the journal events.

        `so_far` are the outputs of a running cell. Raise NotebookError.
        """


class Journal(Protocol):
    """The append-only file of a notebook's runs and decisions."""

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events, and a message if parts are unreadable."""

    def append(
        self, event: dict[str, Any], sync: bool | None = True, keep: bool = True
    ) -> None:
        """Write an event after those that wait to be written.

        With `sync` true the event is on disk on return, with None soon after. Raise
        OSError if writing fails; with `keep` the event is written before the next one.
        """
