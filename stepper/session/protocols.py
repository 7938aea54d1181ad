"""Protocols of the kernel, of late outputs and of the journal.

`stepper/kernels` implements the first two. A replay uses a journal that is never
written, and tests use a fake kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stepper.notebooks.journal_file import SyncMode
from stepper.policy import journal_events
from stepper.policy.execution_result import CellVersion, Execution, Outputs, WidgetState
from stepper.policy.model import (
    Death,
    Limits,
    OmittedOutput,
)
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.undo_model import RestoreRequest, UndoFacts, UndoRequest

if TYPE_CHECKING:
    from stepper.policy.configuration.kernel_config import BackendConfig


@dataclass(frozen=True)
class LaunchConfig:
    """The interpreter, folder, environment and backend for starting a kernel."""

    python: str
    cwd: str
    environ: Mapping[str, str]
    # For an interpreter without ipykernel: the path of stepper's copies of ipykernel,
    # without the last folder, which is the Python version (such as `3.12`).
    bundled_ipykernel: str = ""
    backend: BackendConfig | None = None  # None for `python` on this machine
    # The kernel exits with the daemon if the backend supports that.
    exits_with_daemon: bool = False


@dataclass(frozen=True)
class KernelDescription:
    """A kernel's interpreter, process and location.

    `pid` is None unless the process runs on this machine. `install_command` installs
    ipykernel if the interpreter lacks ipykernel, otherwise it is empty. `limitation` is
    a sentence on a missing feature of the backend. `url` is the address of the kernel
    on a Jupyter server. stepper did not start an `is_external` kernel and does not shut
    it down. For a remote kernel, `location` is a short text such as "job 12 on n1",
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
    """A wait for a kernel, for example for a queued job.

    `text` is the state of the queue, for messages. `since` is a time of the monotonic
    clock. `wait_seconds` is how long a caller should wait, or None for the configured
    time. `request` names the request that is withdrawn if the start is cancelled.
    """

    text: str
    since: float
    wait_seconds: float | None
    # The event that ends the wait; empty if the request is being withdrawn.
    until: str = "the job starts"
    request: str = ""


@dataclass
class ExternalExecution:
    """An execution that another client, such as a console, requested.

    The kernel does not store the code of a silent execution in its history.
    """

    started_at: str
    code: str
    seconds: float = 0.0
    error: str = ""  # one line
    is_silent: bool = False
    namespace: Namespace = UNKNOWN_NAMESPACE  # afterwards; unknown in other languages


class PartialOutput(Protocol):
    """The output that the running cell has produced so far."""

    change_count: int  # increases with each change

    @property
    def matched_line(self) -> str:
        """The first printed line that matches the wake pattern, or an empty string."""

    def get_outputs(self) -> list[dict[str, Any]]:
        """Return the outputs so far as nbformat dicts."""

    def get_last_line(self) -> str:
        """Return the last progress bar, or the last printed line if there is none."""

    def get_last_lines(self) -> list[str]:
        """Return the last printed lines, from top to bottom."""


class ExternalExecutions(Protocol):
    """Executions that other clients request from the kernel."""

    on_finished: Callable[[ExternalExecution], None]  # called after each execution

    @property
    def running_since(self) -> float:
        """The start of the running execution (monotonic clock), or 0 if none runs."""

    def forget_before(self, before: float) -> None:
        """Treat executions that started before a time as finished.

        `before` is a time of the monotonic clock. A kernel that answers a later request
        has finished the earlier executions.
        """


class Kernel(Protocol):
    """The running kernel of one notebook."""

    id: str
    # The language that the kernel reports. Empty before the first request.
    language: str
    is_busy: bool
    # Whether stepper's helper is in the kernel. Only the helper can undo runs.
    has_helper: bool
    # Called with each message that shows or updates a display with an ID, because other
    # cells may show the same display.
    on_display: Callable[[dict[str, Any]], None]
    # Called with each output that does not belong to the running request. Returns
    # whether the output was handled; if it was not, it belongs to the running cell.
    on_late_output: Callable[[dict[str, Any]], bool]

    @property
    def external_executions(self) -> ExternalExecutions:
        """The executions that other clients request."""

    @property
    def partial_output(self) -> PartialOutput | None:
        """The output so far of the running cell, or None if no cell runs."""

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter, process and location."""

    @property
    def unreachable_reason(self) -> str:
        """The reason why the kernel cannot be reached, or an empty string.

        An unreachable kernel may still be running.
        """

    def ensure_connection_file(self) -> str:
        """Return the path of the connection file, which is written if it is missing.

        Return an empty string if other clients cannot connect to the kernel directly.
        """

    def measure_memory(self) -> int:
        """Return the resident memory of the kernel and its children, in bytes."""

    def receive_pending(self) -> None:
        """Process messages that the kernel sent while no cell ran."""

    def take_widget_state(self) -> WidgetState | None:
        """Return the widget state, or None if it is unchanged since the last call."""

    async def execute(
        self,
        code: str,
        timeout: float,
        limits: Limits,
        request: str = "",
        scratch: bool = False,
        criterion: str = "",
        wake: str = "",
        undo: UndoRequest | None = None,
    ) -> Execution:
        """Run code until it finishes, or a limit or an interrupt stops it.

        `timeout` is in seconds. `request` is the message ID of the execute request:
        `await_earlier_request` finds the request by this ID. A `scratch` execution gets
        no execution count and is not stored in the history. `criterion` is an
        expression to evaluate afterwards; `wake` is a pattern for
        `PartialOutput.matched_line`. `undo` requests before-images of the run, and may
        contain earlier runs to undo first. Raise KernelError if the result cannot be
        determined.
        """

    async def undo(self, request: RestoreRequest) -> UndoFacts | None:
        """Undo earlier runs; return the facts, or None if the result is unknown.

        Raise KernelError if the kernel did not get the request or has died.
        """

    async def take_over(self) -> Death | None:
        """Take over a kernel of an earlier daemon and interrupt its execution.

        Return how the kernel died if it does not answer, otherwise None. Raise
        KernelUnreachableError if it cannot be reached but may still be running.
        """

    async def await_earlier_request(
        self, request: str, seconds: float, limits: Limits, wake: str = ""
    ) -> Execution | None:
        """Wait for a request of an earlier daemon; return its result.

        Interrupt the execution after `seconds`. Return None if the request never
        started. Raise KernelError if the kernel does not answer. During the wait,
        `partial_output` does not contain output from before the wait.
        """

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return messages of a finished request that no daemon received.

        Messages that the kernel no longer stores are missing.
        """

    async def fetch_namespace(self) -> Namespace:
        """Return the kernel's namespace, or UNKNOWN_NAMESPACE if it is unavailable."""

    async def interrupt(self, reason: str) -> None:
        """Interrupt the running execution."""

    async def check_death(self) -> Death | None:
        """Return how the kernel died, or None if it is alive."""

    async def shutdown(self) -> None:
        """Kill the kernel and its children and wait until they have exited.

        Raise KernelError if they may still be running.
        """

    def detach(self) -> None:
        """Disconnect and leave the kernel running for the next daemon."""


class KernelLauncher(Protocol):
    """Starts kernels, and attaches to kernels of an earlier daemon."""

    @property
    def queue_status(self) -> QueueStatus | None:
        """The queue in which the starting kernel waits, or None if it is not queued."""

    async def start(self, config: LaunchConfig) -> Kernel:
        """Start a kernel; return it when it is ready.

        Raise KernelError if the kernel cannot start.
        """

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel of an earlier daemon, or how it died.

        Return None if there was no kernel. This sends no request to the kernel.
        """

    async def cancel_request(self) -> None:
        """Cancel a request for a kernel, such as a queued job, and remove its record.

        If the record is of a kernel that was started, stop the kernel. Do nothing if
        there is no record. Raise KernelError if this fails.
        """


class LateOutputs(Protocol):
    """The outputs that arrived after the run of their cell and are not written yet."""

    def collect_pending(self) -> bool:
        """Collect the outputs to write, and return whether there are any.

        Raise NotebookError if the notebook cannot be read.
        """

    def add_message(
        self,
        target: CellVersion,
        message: dict[str, Any],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
        waiting: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Add an iopub message to the outputs of a cell.

        `displays` contains the indexes of the cell's outputs by display ID. `missing`
        describes the outputs omitted so far. `limit` is the output limit in bytes.
        `waiting` contains the outputs of the cell's run if they are not written yet;
        otherwise it is None. Raise NotebookError, without adding the message, if the
        notebook cannot be read.
        """

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Write the late outputs and the widget state to the notebook.

        `models` is the widget state, or None if it has not changed. `so_far` are the
        outputs of the running cell, which are also written. Return the journal events
        to log. Raise NotebookError if the file cannot be written.
        """


class Journal(Protocol):
    """The append-only file of a notebook's runs and decisions."""

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events, and a message about lines that could not be read.

        The message is empty if all lines could be read.
        """

    def append(
        self, event: dict[str, Any], sync: SyncMode = SyncMode.WAIT, keep: bool = True
    ) -> None:
        """Write the pending events, then this event.

        Raise OSError if an event cannot be written. In this case, this event stays
        pending if `keep` is true; otherwise it is discarded.
        """
