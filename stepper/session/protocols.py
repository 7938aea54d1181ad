"""What the engine needs of the world: a kernel, a notebook file, a journal. Protocols only.

(Over 300 lines: it is a list of what is asked of each, read by name.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stepper.policy import journal_events
from stepper.policy.cell_changes import hash_source
from stepper.policy.kernel_namespace import UNKNOWN_NAMESPACE, Namespace
from stepper.policy.local_modules import UNCHANGED, ModuleChanges
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

if TYPE_CHECKING:
    from stepper.policy.kernel_config import BackendConfig


@dataclass(frozen=True)
class WidgetState:
    """The state of a kernel's widgets, as a notebook's metadata holds it: at most `limit` bytes of it."""

    states: Mapping[str, dict[str, Any]]
    limit: int
    omitted_count: int = 0  # models
    omitted_bytes: int = 0


@dataclass(frozen=True)
class CellVersion:
    """A cell for which something comes besides its run: as it was when it ran."""

    cell_id: str
    source_hash: str

    @classmethod
    def from_cell(cls, cell: Cell) -> CellVersion:
        """Return a cell as it is now."""
        return cls(cell.id, hash_source(cell.source))


# nbformat dicts, by the cell that has them
Outputs = Mapping[CellVersion, Sequence[dict[str, Any]]]


@dataclass
class Execution:
    """What came of one execution, as the kernel told it. `outputs` are nbformat dicts."""

    outcome: Outcome
    outputs: list[dict[str, Any]] = field(default_factory=list)
    execution_count: int | None = None
    timings: dict[str, str] = field(default_factory=dict)  # nbclient's names → ISO 8601
    fault: Fault | None = None
    death: Death | None = None
    namespace: Namespace = UNKNOWN_NAMESPACE
    # what was known before it began
    namespace_before: Namespace = UNKNOWN_NAMESPACE
    # by the diagnosis's part in the kernel, which alone reads it
    diagnosis_data: dict[str, Any] = field(default_factory=dict)
    # the step's criterion; None where that could not be told
    criterion_result: CriterionResult | None = None
    notes: list[str] = field(default_factory=list)
    # of the project, that changed since they were imported
    module_changes: ModuleChanges = UNCHANGED
    memory: str = ""  # what the memory guard saw when it stopped the cell
    # the outputs that are pictures, of whatever size
    images: list[dict[str, Any]] = field(default_factory=list)
    left_out: OmittedOutput = NOTHING_OMITTED
    # display id → the outputs that show it
    displays: dict[str, list[int]] = field(default_factory=dict)
    widgets: WidgetState | None = None  # None where nothing of them changed
    # what went into Output widgets
    widget_outputs: list[dict[str, Any]] = field(default_factory=list)
    # sources of the cells that Jupyter would make next
    next_inputs: list[str] = field(default_factory=list)
    # from the kernel_info_reply
    language_info: Mapping[str, Any] = field(default_factory=dict)
    # its outputs were written to the notebook, as far as `left_out` has it
    in_notebook: bool = False
    # the connection to the kernel was lost while it ran, and came back
    reconnected: bool = False


@dataclass(frozen=True)
class LaunchConfig:
    """Where a notebook's kernel runs: its interpreter, folder and environment."""

    python: str
    cwd: str
    environ: Mapping[str, str]
    # with `3.12` behind it: the folder of stepper's own ipykernel, for an interpreter
    # that has none
    bundled_ipykernel: str = ""
    backend: BackendConfig | None = (
        None  # where that is besides `python` on this machine
    )
    # it is to end with the daemon, as far as its place can have it so
    exits_with_daemon: bool = False


@dataclass(frozen=True)
class KernelMetadata:
    """What a notebook's metadata says of its kernel, for those who open it elsewhere."""

    name: str
    display_name: str
    language: str


@dataclass(frozen=True)
class KernelDescription:
    """What a kernel is: its interpreter, and its process where it has one on this machine.

    `lacks` is the command that adds ipykernel to the interpreter, where the kernel runs on stepper's own copy;
    `url` is the Jupyter server's whose it is, `without` what its place can't do, as a sentence. One that is `kept` is
    not stepper's: it is left, not ended. Of a kernel elsewhere `where` tells in a few words where that is (job 12 on
    n1), `left` how many seconds of its walltime are left as it was last told, `trouble` what stands between (the link
    is down; its state is not known).
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
    """Why a kernel is not there yet: what was asked for waits in a queue, `since` a time of the monotonic clock.

    `seconds` are those for which whoever wants it is to be held; None where the place does not say. `request` is what
    is withdrawn when nobody wants the kernel any more, '' for nothing.
    """

    text: str
    since: float
    wait_seconds: float | None
    # when what waits runs; '' if it will not, because the request is being withdrawn
    until: str = "the job starts"
    request: str = ""


@dataclass
class ExternalExecution:
    """An execution that another client asked for, a console or JupyterLab. `unkept`: it is in no history."""

    started_at: str
    code: str
    seconds: float = 0.0
    error: str = ""  # in one line
    is_silent: bool = False
    namespace: Namespace = UNKNOWN_NAMESPACE  # after it; not known of other languages


class PartialOutput(Protocol):
    """What has come of the cell that runs, so far."""

    change_count: int  # grows with what comes

    @property
    def matched_line(self) -> str:
        """The first printed line that its wake pattern matches; '' before."""

    def outputs(self) -> list[dict[str, Any]]:
        """Return its outputs as they are now."""

    def last_line(self) -> str:
        """Return the progress bar that it draws, else what it printed last."""

    def last_lines(self) -> list[str]:
        """Return the last lines of what it printed, from the top down."""


class ExternalExecutions(Protocol):
    """What other clients have a kernel do."""

    on_finished: Callable[
        [ExternalExecution], None
    ]  # called with each execution that is over

    @property
    def running_since(self) -> float:
        """Since when one of theirs runs, by the monotonic clock; 0 where none does."""

    def forget_before(self, before: float) -> None:
        """What began before that moment is over: the kernel serves what was asked later."""


class Kernel(Protocol):
    """A live kernel of one notebook."""

    id: str
    language: str  # as it tells; '' before it was asked
    is_busy: bool
    # Called with what shows something, and whether it is late: another request's than
    # the one that runs. Returns
    # whether cells beside that took it.
    on_display: Callable[[dict[str, Any], bool], bool]

    @property
    def external_executions(self) -> ExternalExecutions:
        """What other clients have it do."""

    @property
    def partial_output(self) -> PartialOutput | None:
        """What the cell that runs has shown so far; None where none runs, or nobody listens to it."""

    def describe(self) -> KernelDescription:
        """Return what it is, for people and for advice."""

    @property
    def unreachable_reason(self) -> str:
        """Why nothing reaches it now, which is no death; '' where it can be reached."""

    def get_connection_file(self) -> str:
        """Return the file, the user's alone, by which other clients reach it; '' where none can by one."""

    def measure_memory(self) -> int:
        """Return its resident memory, its children's with it, in bytes."""

    def receive_pending(self) -> None:
        """Take what the kernel published while no cell ran."""

    def take_widget_state(self) -> WidgetState | None:
        """Return the state of its widgets for the notebook; None where nothing changed since."""

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
        """Run code to its end, its deadline in seconds, an interrupt, the memory limit or the kernel's death.

        Raise KernelUnreachableError where nobody can know that. `recall` knows it by `request`. With `scratch` it gets no
        execution count and is in no history. Whether the `criterion` holds then is told with it; `coming` tells of a
        line that matches the pattern `wake`.
        """

    async def take_over(self) -> Death | None:
        """Take over a kernel found again, interrupting what runs in it; return its end where it gives no answer.

        Raise KernelUnreachableError where nothing reaches it, and it may live on.
        """

    async def await_earlier_request(
        self, request: str, seconds: float, limits: Limits, wake: str = ""
    ) -> Execution | None:
        """Return what came of a request whose daemon is gone, when it is over, in seconds at most.

        None where it never began. Raise KernelError where the kernel does not answer. Until then `coming` is what
        comes from now on, which is not the whole.
        """

    async def fetch_missed_messages(self, request: str) -> list[dict[str, Any]]:
        """Return what a request that is over published while no daemon was there, as far as the kernel remembers."""

    async def fetch_namespace(self) -> Namespace:
        """Return the namespace in short, asked of the helper; UNKNOWN where it does not tell."""

    async def interrupt(self, reason: str) -> None:
        """Interrupt what runs now."""

    async def check_death(self) -> Death | None:
        """Return how the kernel ended, or None while it lives."""

    async def shutdown(self) -> None:
        """End the kernel and its children; return when they are gone. Raise KernelError where they may live on."""

    def detach(self) -> None:
        """Leave the kernel to the next daemon."""


class KernelLauncher(Protocol):
    """Starts kernels and finds those that outlived a daemon."""

    @property
    def queue_status(self) -> QueueStatus | None:
        """What a start that is under way waits for in a queue; None where it does not."""

    async def start(self, place: LaunchConfig) -> Kernel:
        """Start a kernel and return it when it is ready; raise KernelError."""

    async def attach(self) -> Kernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""

    async def cancel_request(self) -> None:
        """End what was asked for and is no kernel yet, such as a job that waits; raise KernelError."""


class Notebook(Protocol):
    """One state of a notebook file, as read."""

    language: str
    plan: Any  # metadata.stepper, unchecked

    @property
    def figure_count(self) -> int:
        """How many outputs are pictures."""

    @property
    def cells(self) -> Sequence[Cell]:
        """All cells, in order."""

    def get_displayed_execution_count(self, cell: Cell) -> int | None:
        """Return the execution count of a cell with outputs; None where it has none."""

    def get_recorded_outputs(self, cell: Cell) -> list[dict[str, Any]] | None:
        """Return a code cell's outputs; None where no run of it is recorded."""


class NotebookFile(Protocol):
    """A notebook on disk."""

    path: str
    inode: int  # of the file (its inode), as read or written last; 0 before
    last_written: tuple[int, ...]  # number, size and time of what was written last
    # called where the file is gone: returns whether `path` names another one now
    relocate: Callable[[], bool]

    def move(self, path: str) -> None:
        """Go on with the file at another path: it was renamed."""

    def read(self) -> Notebook:
        """Read it; raise NotebookError where it is no notebook."""

    def read_uncached(self) -> Notebook:
        """Read it without keeping it in memory; raise NotebookError."""

    def parse(self, text: str) -> Notebook:
        """Return the notebook that the text would be; raise NotebookError."""

    def write_execution(
        self, cell: Cell, execution: Execution, step: int | None, keep_time: bool
    ) -> str:
        """Put the outputs on the cell; return '' or why they never can be. Raise NotebookError where not now."""

    def replace_duplicate_ids(self) -> list[tuple[str, Cell]]:
        """Give ids of their own to cells that have another one's; return their former ids too. Raise NotebookError."""

    def read_outputs(self, target: CellVersion) -> list[dict[str, Any]]:
        """Return a cell's outputs, as read anew; empty where it is gone or changed. Raise NotebookError."""

    def add_tag(self, cell: Cell, tag: str) -> None:
        """Add a tag to the cell; do nothing where it is gone. Raise NotebookError."""

    def remove_tag(self, cell: Cell, tag: str) -> None:
        """Remove a tag from the cell; do nothing if the cell no longer exists. Raise NotebookError."""

    def rearrange_cells(
        self, order: Callable[[Sequence[Cell]], Sequence[Cell]]
    ) -> tuple[Sequence[Cell], list[Cell]]:
        """Write the cells as `order` arranges them (`policy/cell_list_edits`), the modification time kept.

        Return all as they are then, and the new and changed ones. Raise NotebookError.
        """

    def clear_outputs(self, cells: Sequence[Cell]) -> None:
        """Take the outputs of code cells away; raise NotebookError."""

    def write_plan(self, plan: Plan, kernel: KernelMetadata | None = None) -> None:
        """Put the plan into the metadata, the modification time kept, and what its kernel is; raise NotebookError."""

    def touch(self) -> None:
        """Set the modification time to now, for those who poll it."""


class LateOutputs(Protocol):
    """What came for a notebook's cells besides their runs, until it is put there."""

    @property
    def has_pending(self) -> bool:
        """Whether anything came."""

    def add_message(
        self,
        target: CellVersion,
        message: dict[str, Any],
        displays: Mapping[str, Sequence[int]],
        missing: OmittedOutput,
        limit: int,
        waiting: Sequence[dict[str, Any]] | None,
    ) -> None:
        """Take a message for a cell that shows these displays; its run's outputs may be `waiting` to be written.

        Raise NotebookError where the notebook can't be read: nothing is taken then.
        """

    def write(
        self, models: WidgetState | None, so_far: Outputs
    ) -> list[journal_events.LateOutput]:
        """Put all of it on the cells, beside what a running one has; return what became of it. Raise NotebookError."""


class Journal(Protocol):
    """The append-only file of all runs and decisions of a notebook."""

    def load(self) -> tuple[list[dict[str, Any]], str]:
        """Return all events, and a sentence about what could not be read ('' where all could)."""

    def append(
        self, event: dict[str, Any], sync: bool | None = True, keep: bool = True
    ) -> None:
        """Write one event after those that wait; with `sync` it is on disk when this returns, with None soon after.

        Raise OSError where it can't be written: with `keep` it waits then, to be written before the next one.
        """
