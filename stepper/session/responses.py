"""What commands answer: each class a document, its fields the keys that `--json` prints, in their order.

(Over 300 lines: it is a list of documents, read by name.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepper.policy.comparison.recorded_outputs import ChangedOutput
from stepper.policy.model import Fault

if TYPE_CHECKING:
    from stepper.messages.stale_cells import Mark
    from stepper.session.cell_responses import CellRunResponse, Resources


def to_json(answer: object) -> bytes:
    """Return an answer's JSON; whatever is in it may be one of these classes too."""
    return json.dumps(answer, default=vars).encode()


@dataclass(frozen=True)
class NamedStep:
    """A step, by name."""

    id: int
    title: str


@dataclass(frozen=True)
class NotebookCreatedResponse:
    """A new notebook, and the one before it that is unfinished."""

    notebook: str
    steps: Sequence[NamedStep]
    unfinished: str | None
    kernel_cwd: str  # notebook, project, or which folder elsewhere
    cells: CellRunResponse | None = None  # what came of those that it was made with


@dataclass(frozen=True)
class StepStatus(NamedStep):
    """A step's standing."""

    status: str
    cell_id: str | None
    attempts: int
    # over the step's whole history; `attempts` start afresh after `fix`
    retries: int = 0


@dataclass(frozen=True)
class CellStatus:
    """A code cell's standing, by its number, in a notebook without a plan; `title` is its first line."""

    cell: int
    cell_id: str
    title: str
    status: str


@dataclass(frozen=True)
class StopDetails:
    """Why a notebook is stopped, what was asked, the commands that lift it, and all of that as text."""

    error: str
    cell_id: str | None
    question: str | None
    ways: Sequence[str]
    text: str


@dataclass(frozen=True)
class KernelStatus:
    """A kernel's standing; of one elsewhere `where` that is, what is left of its walltime, and what stands between."""

    pid: int | None = None
    state: str = "none"
    rss_bytes: int | None = None
    python: str | None = None
    where: str = ""
    left_seconds: float | None = None
    trouble: str = ""


@dataclass(frozen=True)
class RunningCell:
    """What runs now, for so many seconds of at most `timeout`, and the last line of it; whether it was handed on.

    `left_seconds` is an estimate by what it prints, None where that tells nothing.
    """

    name: str
    step: int | None
    cell_id: str | None
    seconds: float
    timeout: float
    line: str
    handed_on: bool = False
    left_seconds: float | None = None


@dataclass(frozen=True)
class LastVerification:
    """What the last replay came to, and whether that `holds`: no source was changed since."""

    reproduces: bool
    at: str
    holds: bool
    text: str


@dataclass(frozen=True)
class StatusResponse:
    """Where a notebook stands; `notebook` is None where none was made yet, `lost` why its kernel's state is gone."""

    notebook: str | None = None
    state: str = "ready"
    steps: Sequence[StepStatus] = ()
    running: RunningCell | None = None
    kernel: KernelStatus = field(default_factory=KernelStatus)
    daemon: Mapping[str, Any] = field(default_factory=dict)
    cells: Sequence[CellStatus] = ()
    stop: StopDetails | None = None
    lost: str = ""
    unheard: str = ""  # what became of edits whose report nobody could read
    # cells whose provider above them ran later
    stale: Sequence[Mark] = field(default_factory=list)
    hidden: Sequence[Mark] = field(
        default_factory=list
    )  # cells that read a value from below, or from a cell that is gone
    # what this caller had running, where it ended while it was waited for
    ended: CellRunResponse | None = None
    context: NamespaceSummary | None = (
        None  # this and the next where `details` are asked for
    )
    resources: Resources | None = None
    verified: LastVerification | None = None
    renamed: str = ""  # that it looks like a renamed notebook, and what to do
    # which Jupyter server shows the notebook and does not reload it, and what helps
    jupyter: str = ""
    # open cells outside the plan
    off_plan: Sequence[CellStatus] = field(default_factory=list)


@dataclass(frozen=True)
class StepProgress:
    """How many steps (cells, where there is no plan) are done; `skipped` ones are not done."""

    done: int
    of: int
    what: str
    skipped: int = 0


@dataclass(frozen=True)
class NotebookEntry:
    """A notebook in the list of all; `age_s` are the seconds since it was changed."""

    notebook: str
    current: bool
    state: str
    progress: StepProgress
    kernel: KernelStatus
    age_s: float


@dataclass(frozen=True)
class CurrentNotebookResponse:
    """The notebook that is the current one from now on; the place of its next kernel, where that was asked for.

    Its present kernel lives `elsewhere` where that is another place.
    """

    notebook: str
    kernel: str | None = None
    elsewhere: str | None = None


@dataclass(frozen=True)
class KernelWaitResponse:
    """The kernel of a notebook, which was waited for."""

    notebook: str
    kernel: KernelStatus


@dataclass(frozen=True)
class KernelBackendEntry:
    """A place where kernels may run: whether it is the project's `usual` one, what it `offers` where it was looked at.

    `reachable` is None where nobody asked, or where it can't be said from here; `why` then says why. `mend` is the
    command that helps. `unchecked` is what was not checked of a place that answers.
    """

    name: str
    kind: str
    about: str
    usual: bool
    accepted: bool
    reachable: bool | None = None
    why: str = ""
    offers: Sequence[str] = ()
    mend: str = ""
    unchecked: Sequence[str] = ()


@dataclass(frozen=True)
class HistoryEntry:
    """A run, as `history` tells of it."""

    notebook: str
    run: int
    cell_id: str
    step: int | None
    started_at: str
    duration_s: float
    outcome: str
    # who asked for it: hook, mcp, cli; '' before that was kept; `elsewhere`: another
    # client of the kernel
    by: str = ""
    source: str = ""  # what that one ran, which is in no cell (`run` is 0)
    bound: Sequence[str] = ()  # … and the names that it bound


@dataclass(frozen=True)
class ReportResponse:
    """What the agent read of a run."""

    run: int | None
    cell_id: str | None
    step: int | None
    outcome: str | None
    fault: Fault | None
    text: str


@dataclass(frozen=True)
class CellResult:
    """How a cell ended, and what its text output begins with."""

    cell: int
    cell_id: str
    step: int | None
    run: int
    outcome: str
    duration_s: float
    fault: Fault | None
    output: str


@dataclass(frozen=True)
class RunResponse:
    """What came of running cells: how many ended well, the report of the first that did not, each one's result."""

    notebook: str
    ok: bool
    ran: int
    cells: int
    skipped: int
    report: str
    results: Sequence[CellResult]
    follows: str  # what no longer follows after it: lines
    which: str  # pending, all, stale, restore
    # the stop of the agent that is in force after a run from a terminal, a script or
    # CI, or empty
    stop: str
    # of `all` and `restore`: cells whose outputs differ from those recorded before
    changed_outputs: Sequence[ChangedOutput]


@dataclass(frozen=True)
class RestoreResponse(RunResponse):
    """What came of restoring a notebook: `gone` cells had ended well and are not there any more."""

    gone: int


@dataclass(frozen=True)
class EvalResponse:
    """How code in no cell ended; `output` is what it printed and its value, `text` the report on it."""

    notebook: str
    source: str
    outcome: str
    duration_s: float
    fault: Fault | None
    text: str
    output: str
    # the paths of the pictures that it showed, until the next code shows some
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class OutputPage:
    """A page of a cell's output."""

    notebook: str
    cell_id: str
    page: int
    pages: int
    text: str
    ended: str = ""  # how the run ended that was followed
    figures: Sequence[str] = ()  # the paths of the figures that were rendered


@dataclass(frozen=True)
class InterruptResponse:
    """Whether a cell ran, or waited for its kernel, and what the interrupt did."""

    notebook: str
    interrupted: bool
    text: str = ""


@dataclass(frozen=True)
class AttachResponse:
    """How one gets at a notebook's kernel beside stepper, and the same as text.

    `file` is its connection file, `console` the command that starts a console on it, `settings` are those with which
    JupyterLab lists it; of a Jupyter server's there is its `url` instead.
    """

    notebook: str
    kernel: str  # its id
    where: str
    file: str | None
    console: str | None
    settings: Sequence[str]
    url: str | None
    python: str
    text: str


@dataclass(frozen=True)
class RestartResponse:
    """Whether there was a kernel before the fresh one."""

    notebook: str
    had_kernel: bool


@dataclass(frozen=True)
class TextResponse:
    """A text alone."""

    text: str


@dataclass(frozen=True)
class PlannedStep(NamedStep):
    """A step of a plan, with its status and why it was skipped."""

    criterion: str
    kind: str
    status: str
    reason: str
    long: bool


@dataclass(frozen=True)
class PlanResponse:
    """A notebook's plan."""

    notebook: str
    steps: Sequence[PlannedStep]


@dataclass(frozen=True)
class NamespaceSummary:
    """What an agent without memory must know of the kernel: names and what each is."""

    current_notebook: str | None = None
    imported_modules: Mapping[str, str] = field(default_factory=dict)
    defined_functions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContextResponse(NamespaceSummary):
    """What another agent needs to go on, and the same as text."""

    plan: Sequence[PlannedStep] = ()
    text: str = "No notebook was made here yet."


@dataclass(frozen=True)
class ShutdownResponse:
    """How many kernels a shutdown ended: that of a notebook, or all and the daemon; which it `left`, not stepper's."""

    kernels: int
    notebook: str | None = None
    left: str | None = None
