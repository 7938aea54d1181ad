"""The types that all packages share: plan, step, run, fault, outcome, verdict, limits.

Their instances are immutable. Fields of `Run` and of the classes in it are keys of the
journal, and fields of `Limits` are keys of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from stepper.common.text import one_line

if TYPE_CHECKING:
    from stepper.policy.configuration.kernel_config import BackendConfig

# The id of a step, or the id of a cell that does not belong to a step.
Key = int | str


def parse_moment(text: Moment) -> datetime:
    """Parse a time in ISO 8601 format."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def validate_moment(text: str) -> Moment:
    """Return the text if it is a time in ISO 8601 format with a time zone.

    Otherwise, raise TypeError or ValueError.
    """
    if not isinstance(text, str) or parse_moment(text).tzinfo is None:
        raise TypeError(f"not a time with a time zone: {text!r:.100}")
    return text


Moment = Annotated[str, validate_moment]


class StringEnum(str, Enum):
    """Base class of enums with string values, which `str` and f-strings return."""

    __str__ = str.__str__


class Outcome(StringEnum):
    """The outcome of a cell's execution."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KERNEL_DIED = "kernel_died"
    CANCELLED = "cancelled"


class Verdict(StringEnum):
    """The consequence of an outcome."""

    FINE = "fine"
    RECOVERABLE = "recoverable"  # the agent fixes the cell
    TRANSIENT = "transient"  # stepper runs the cell again, with backoff
    UNRECOVERABLE = "unrecoverable"  # the notebook stops, the user decides
    CANCELLED = "cancelled"  # interrupted by the user, not an attempt


class StepStatus(StringEnum):
    """The status of a step."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CRITERION_FALSE = "doubted"  # the cell succeeded, but the criterion is false
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"  # the last run of the cell was interrupted
    CHANGED = "changed"  # the cell succeeded, but has changed since then


class Consent(Enum):
    """The client's permission mode, by its effect on edits."""

    GIVEN = "given"  # edits are accepted without asking
    DELEGATED = "judged"  # the client itself decides on each edit (auto mode)
    ASKED = "asked"  # the user accepts each edit
    WITHHELD = "withheld"  # no edits (plan mode)


class StepKind(StringEnum):
    """The purpose of a step."""

    STEP = "step"
    VALIDATION = "validation"


@dataclass(frozen=True)
class Step:
    """A step of a plan: one code cell, with the Markdown cells before it."""

    id: int
    title: str
    criterion: str = ""
    kind: StepKind = StepKind.STEP
    long: bool = False  # only `max_cell_timeout_seconds` limits the cell


@dataclass(frozen=True)
class Plan:
    """The plan of a notebook; its steps are in the order of execution."""

    problem: str = ""
    steps: tuple[Step, ...] = ()
    # The name of the notebook's kernel backend; empty for the project's default.
    kernel: str = ""

    def find_step(self, step_id: int | None) -> Step | None:
        """Return the step with an id, or None."""
        return next((step for step in self.steps if step.id == step_id), None)

    def get_position(self, step_id: int) -> int:
        """Return the position of a step in the plan, from 1.

        Raise ValueError if the plan does not contain the step.
        """
        return [step.id for step in self.steps].index(step_id) + 1


@dataclass(frozen=True)
class Cell:
    """A cell of a notebook."""

    # `cell-INDEX` in notebooks without cell ids (nbformat before 4.5).
    id: str
    index: int  # among all cells, from 0
    number: int  # among code cells, from 1; 0 for other cells
    type: str
    source: str
    tags: tuple[str, ...] = ()

    @property
    def is_code(self) -> bool:
        """Whether this is a code cell."""
        return self.type == "code"

    @property
    def label(self) -> str:
        """The name of the cell in messages."""
        return f"cell {self.number} (id {one_line(self.id, 100)})"


@dataclass(frozen=True)
class Frame:
    """A line of the user's own code in a traceback, in a cell or a file."""

    cell: int  # execution count
    line: int
    function: str
    # The neighbours of the failing line: (line number, text).
    context: tuple[tuple[int, str], ...] = ()
    file: str = ""  # relative to the working folder of the kernel


@dataclass(frozen=True)
class Fault:
    """An error of a cell, or another reason why a run failed."""

    ename: str
    evalue: str
    # The error's class and its base classes, as `module.Name`; built-in classes have no
    # module.
    mro: tuple[str, ...] = ()
    line: int | None = None  # in the cell, from 1
    frames: tuple[Frame, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""
    # The errors that caused this one, nearest first: (relation, class, message).
    chain: tuple[tuple[str, str, str], ...] = ()
    suggestion: str = ""  # one line of facts that help with the fix


@dataclass(frozen=True)
class CriterionResult:
    """The result of evaluating a step's criterion after its cell ran.

    `holds` is True if the criterion is true. `values` contains the compared
    expressions and their values, both as text.
    """

    holds: bool
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Death:
    """The death of a kernel, with its reason."""

    reason: str  # such as `killed by SIGKILL`
    stderr: str = ""  # the last lines that the kernel wrote to stderr
    # A second class of the fault, next to `KernelDied`, if the cause is known:
    # SystemExit, OutOfMemory, WalltimeOver or EndedOutside.
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of a cell.

    `key` is the id of the step that the run counts for. If the cell belongs to no step,
    it is the id of a cell (see `plan.find_key`).
    """

    run: int
    cell_id: str
    number: int = 0
    index: int
    step: int | None
    source_hash: str
    started_at: Moment
    duration_s: float
    outcome: Outcome
    verdict: Verdict
    fault: Fault | None = None
    kernel: str = ""
    tool_use_id: str | None = None
    by: str = ""  # which interface requested the run: hook, mcp, cli
    # A user's terminal, a script or CI requested the run: not an attempt of the agent.
    outside_agent: bool = False
    key: Key

    @property
    def error(self) -> str:
        """The error of the run on one line, or "failed" if the run has no fault."""
        if self.fault is None:
            return "failed"
        ename = one_line(self.fault.ename, 100)
        evalue = one_line(self.fault.evalue, 200)
        return f"{ename}: {evalue}"


class OmittedOutput(NamedTuple):
    """Output that is not in the notebook because of a limit.

    `characters` is the length of omitted text. `outputs` and `bytes` are the number and
    the size of other omitted outputs.
    """

    characters: int = 0
    outputs: int = 0
    bytes: int = 0

    def __add__(self, other: OmittedOutput) -> OmittedOutput:  # type: ignore[override]
        """Return the sums of the fields."""
        return OmittedOutput(
            self.characters + other.characters,
            self.outputs + other.outputs,
            self.bytes + other.bytes,
        )

    def __bool__(self) -> bool:
        """Return whether any text or other output is omitted."""
        return bool(self.characters or self.outputs)


NOTHING_OMITTED = OmittedOutput()


@dataclass(frozen=True)
class Limits:
    """The settings of `.stepper/config.yaml` with their defaults."""

    cell_timeout_seconds: float = 30
    max_cell_timeout_seconds: float = 86400
    report_after_seconds: float = 20
    heartbeat_seconds: float = 15
    queue_seconds: float = 20
    queue: bool = False
    max_retries: int = 3
    network_retries: int = 3
    max_cells: int = 100
    max_output_bytes: int = 1048576
    max_widget_state_bytes: int = 5242880
    max_memory_percent: float = 80
    notebooks_dir: str = "notebooks"
    notebooks: tuple[str, ...] = ()
    kernel_cwd: str = "notebook"
    # What an agent gets when it reads a notebook: `digest` or `raw`.
    read: str = "digest"
    read_limit: int = 25000  # characters of a digest without the sources
    python: str | None = None
    kernel_idle_hours: float = 12
    max_kernels: int = 16  # number of idle kernels that stay alive
    preflight: bool = True
    local_modules: str = "reload"
    record_timing: bool = True
    auto_run: str = "always"
    hide_env: tuple[str, ...] = ()
    verify: str = "asked"
    verify_seconds: float = 60
    # The deadline of a replayed cell whose recording has no times, in seconds.
    verify_timeout: float = 600
    undo: bool = True
    # Bytes for all before-images of a kernel. None: 512 MB, or a tenth of the memory
    # that the kernel may use if that is less.
    undo_memory: int | None = None
    recompute_seconds: float = 5
    # The name of a kernel backend; `local` is the project's interpreter.
    kernel: str = "local"
    kernels: Mapping[str, BackendConfig] = field(default_factory=dict)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The folders and globs that include the notebooks."""
        return self.notebooks or (self.notebooks_dir,)


@dataclass(frozen=True)
class CellEdit:
    """A call of NotebookEdit, before or after the edit."""

    notebook: str
    # None before an insertion, and also afterwards if the notebook has no cell ids.
    cell_id: str | None
    after: str | None  # the cell above an inserted one; None at the top
    cell_type: str | None
    mode: str  # replace, insert, delete
    source: str
    tool_use_id: str | None
    session: str
    consent: Consent


@dataclass(frozen=True)
class FileWrite:
    """A call of Write for a whole notebook."""

    notebook: str
    content: str
    tool_use_id: str | None
    session: str
    consent: Consent


@dataclass(frozen=True)
class KernelMetadata:
    """The kernelspec in a notebook's metadata."""

    name: str
    display_name: str
    language: str
