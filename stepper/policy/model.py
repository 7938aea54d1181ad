"""The words of stepper as values: plan, step, run, fault, outcome, verdict, limits. Frozen, JSON-friendly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from stepper.common.text import one_line

if TYPE_CHECKING:
    from stepper.policy.kernel_config import BackendConfig

Key = int | str  # a step's id, or the id of a cell in no step


def parse_moment(text: Moment) -> datetime:
    """Return the time that a text tells."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def validate_moment(text: str) -> Moment:
    """Return a time in ISO 8601 with its zone; raise TypeError or ValueError."""
    if not isinstance(text, str) or parse_moment(text).tzinfo is None:
        raise TypeError(f"no time with a zone: {text!r:.100}")
    return text


Moment = Annotated[str, validate_moment]


class StringEnum(str, Enum):
    """A word of ours: in a text it stands as itself, whichever Python formats it."""

    __str__ = str.__str__


class Outcome(StringEnum):
    """How one execution of a cell ended."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    KERNEL_DIED = "kernel_died"
    CANCELLED = "cancelled"


class Verdict(StringEnum):
    """What follows from an outcome."""

    FINE = "fine"
    RECOVERABLE = "recoverable"  # the agent fixes the cell
    TRANSIENT = "transient"  # stepper runs the cell again, with backoff
    UNRECOVERABLE = "unrecoverable"  # stop and tell the person
    CANCELLED = "cancelled"  # the person's doing: no attempt is counted


class StepStatus(StringEnum):
    """Where a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    DOUBTED = "doubted"  # its cell ran, its criterion is false
    SKIPPED = "skipped"
    INTERRUPTED = "interrupted"  # its cell's last run was broken off
    # it was done; its cell has another source now, which has not run
    CHANGED = "changed"


class Consent(Enum):
    """Whether the person has accepted edits by themselves: once and for all, one by one, or not at all (plan mode)."""

    GIVEN = "given"
    DELEGATED = "judged"  # by the client, each by itself (auto mode)
    ASKED = "asked"
    WITHHELD = "withheld"


class StepKind(StringEnum):
    """What a step is for."""

    STEP = "step"
    VALIDATION = "validation"


@dataclass(frozen=True)
class Step:
    """One TODO of a plan: one code cell, with the markdown before it."""

    id: int
    title: str
    criterion: str = ""
    kind: StepKind = StepKind.STEP
    long: bool = False  # its cell has no deadline but the person's bound


@dataclass(frozen=True)
class Plan:
    """The TODO list of a notebook, in the order of execution."""

    problem: str = ""
    steps: tuple[Step, ...] = ()
    # the name of the place where the notebook's kernel runs; '' for the project's
    kernel: str = ""

    def find_step(self, number: int | None) -> Step | None:
        """Return the step with that id, or None."""
        return next((step for step in self.steps if step.id == number), None)

    def position_of(self, number: int) -> int:
        """Return the step's place in the plan, counted from 1."""
        return [step.id for step in self.steps].index(number) + 1


@dataclass(frozen=True)
class Cell:
    """A cell as the engine sees it."""

    # `cell-INDEX` in notebooks without cell ids (nbformat below 4.5), as Claude Code
    # names them
    id: str
    index: int  # among all cells, from 0
    number: int  # among code cells from 1, as one reads the notebook; 0 for others
    type: str
    source: str
    tags: tuple[str, ...] = ()

    @property
    def is_code(self) -> bool:
        """Whether this cell can run."""
        return self.type == "code"

    @property
    def label(self) -> str:
        """How texts name it: by number among code cells and by id."""
        return f"cell {self.number} (id {one_line(self.id, 100)})"


@dataclass(frozen=True)
class Frame:
    """One line of the user's own code on the way to an error, in a cell (its execution count) or in a `file`."""

    cell: int
    line: int
    function: str
    # (line number, text), the failing line's neighbours
    context: tuple[tuple[int, str], ...] = ()
    file: str = ""  # of the user's own, as written from the kernel's folder


@dataclass(frozen=True)
class Fault:
    """What an error tells."""

    ename: str
    evalue: str
    # its classes up to object, as `module.Name`, builtins bare
    mro: tuple[str, ...] = ()
    line: int | None = None  # in the cell that ran, from 1
    frames: tuple[Frame, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    traceback: str = ""
    # what led to it, nearest first: how, class, message
    chain: tuple[tuple[str, str, str], ...] = ()
    suggestion: str = ""  # one line of facts that the fix needs


@dataclass(frozen=True)
class CriterionResult:
    """Whether a step's criterion holds after its cell, by the values that it compares: (as written, value)."""

    holds: bool
    values: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Death:
    """How a kernel ended."""

    how: str  # such as `killed by SIGKILL`
    stderr: str = ""  # the last lines it wrote there
    # the class of fault beside `KernelDied`: SystemExit, OutOfMemory, WalltimeOver,
    # EndedOutside
    cause: str = ""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One execution of one cell; `duration_s` is in seconds. It counts for `key`: its step, or a cell in no step."""

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
    by: str = ""  # who asked for it: hook, mcp, cli
    # a user's terminal, a script or CI asked for it: not an attempt of the agent's
    outside_agent: bool = False
    key: Key

    @property
    def error(self) -> str:
        """The error that it ended with, in one line."""
        return (
            f"{one_line(self.fault.ename, 100)}: {one_line(self.fault.evalue, 200)}"
            if self.fault
            else "failed"
        )


class OmittedOutput(NamedTuple):
    """What the notebook's limits leave out of a cell's outputs: characters of texts, and outputs of so many bytes."""

    characters: int = 0
    outputs: int = 0
    bytes: int = 0

    def __add__(self, other: OmittedOutput) -> OmittedOutput:  # type: ignore[override]
        return OmittedOutput(*map(sum, zip(self, other, strict=True)))

    def __bool__(self) -> bool:
        return bool(self.characters or self.outputs)


NOTHING_OMITTED = OmittedOutput()


@dataclass(frozen=True)
class Limits:
    """The keys of `.stepper/config.yaml` with their defaults."""

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
    python: str | None = None
    kernel_idle_hours: float = 12
    max_kernels: int = 16  # idle kernels that are kept
    preflight: bool = True
    local_modules: str = "reload"
    record_timing: bool = True
    auto_run: str = "always"
    hide_env: tuple[str, ...] = ()
    verify: str = "asked"
    verify_seconds: float = 60
    # the name of a place, or this: the project's interpreter on this machine
    kernel: str = "local"
    kernels: Mapping[str, BackendConfig] = field(default_factory=dict)

    @property
    def patterns(self) -> tuple[str, ...]:
        """The folders and globs that cover the notebooks."""
        return self.notebooks or (self.notebooks_dir,)


@dataclass(frozen=True)
class CellEdit:
    """A NotebookEdit that happened (or, before it happens, is about to)."""

    notebook: str
    # None before an insert, and after one into a notebook without cell ids
    cell_id: str | None
    after: str | None  # the cell above it then, None at the top
    cell_type: str | None
    mode: str  # replace, insert, delete
    source: str
    tool_use_id: str | None
    session: str
    consent: Consent


@dataclass(frozen=True)
class FileWrite:
    """A Write of a whole notebook."""

    notebook: str
    content: str
    tool_use_id: str | None
    session: str
    consent: Consent
