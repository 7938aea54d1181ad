"""Response models of the commands.

The field names, in their order, are the keys that `--json` prints: do not rename them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stepper.policy.comparison.rerun_comparison import ChangedOutput
from stepper.policy.model import Fault

if TYPE_CHECKING:
    from stepper.messages.stale_cells import Mark
    from stepper.session.cell_responses import CellRunResponse, Resources


def to_json(answer: object) -> bytes:
    """Return a response as JSON; nested response models are supported."""
    return json.dumps(answer, default=vars).encode()


@dataclass(frozen=True)
class NamedStep:
    """A plan step with its title."""

    id: int
    title: str


@dataclass(frozen=True)
class NotebookCreatedResponse:
    """A new notebook, and the previous one if it is unfinished."""

    notebook: str
    steps: Sequence[NamedStep]
    unfinished: str | None
    kernel_cwd: str  # notebook, project, or which folder elsewhere
    cells: CellRunResponse | None = None  # what came of those that it was made with


@dataclass(frozen=True)
class StepStatus(NamedStep):
    """The status of a plan step."""

    status: str
    cell_id: str | None
    attempts: int
    # over the step's whole history; `attempts` start afresh after `fix`
    retries: int = 0


@dataclass(frozen=True)
class CellStatus:
    """The status of a code cell; `title` is its first line."""

    cell: int
    cell_id: str
    title: str
    status: str


@dataclass(frozen=True)
class StopDetails:
    """Why a notebook is stopped, and the commands that resume it."""

    error: str
    cell_id: str | None
    question: str | None
    ways: Sequence[str]
    text: str


@dataclass(frozen=True)
class KernelStatus:
    """The status of a kernel.

    For a remote kernel, `where` is its location, `left_seconds` the remaining walltime
    and `trouble` the connection problem.
    """

    pid: int | None = None
    state: str = "none"
    rss_bytes: int | None = None
    python: str | None = None
    where: str = ""
    left_seconds: float | None = None
    trouble: str = ""


@dataclass(frozen=True)
class RunningCell:
    """The running cell: its duration, its deadline and its last output line.

    `handed_on` is true for a background run. `left_seconds` is an estimate based on the
    output, or None if there is no estimate.
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
    """The result of the last `verify`; `holds` if no source changed since."""

    reproduces: bool
    at: str
    holds: bool
    text: str


@dataclass(frozen=True)
class StatusResponse:
    """The status of a notebook; `notebook` is None if there is none yet."""

    notebook: str | None = None
    state: str = "ready"
    steps: Sequence[StepStatus] = ()
    running: RunningCell | None = None
    kernel: KernelStatus = field(default_factory=KernelStatus)
    daemon: Mapping[str, Any] = field(default_factory=dict)
    cells: Sequence[CellStatus] = ()
    stop: StopDetails | None = None
    lost: str = ""
    unheard: str = ""  # the undelivered reports
    # Cells that read a value from a cell above them that ran later.
    stale: Sequence[Mark] = field(default_factory=list)
    # Cells that read a value from a cell below them, or from a deleted cell.
    hidden: Sequence[Mark] = field(default_factory=list)
    # The result of this caller's background run, if it finished during the request.
    ended: CellRunResponse | None = None
    # Only if the request has `details`.
    context: NamespaceSummary | None = None
    resources: Resources | None = None
    verified: LastVerification | None = None
    renamed: str = ""  # a hint if it looks like a renamed notebook
    # A hint if a Jupyter server shows the notebook and does not reload it.
    jupyter: str = ""
    # Open cells outside the plan.
    off_plan: Sequence[CellStatus] = field(default_factory=list)


@dataclass(frozen=True)
class StepProgress:
    """The progress of a notebook: `done` of `of` steps or cells (`what`) are done.

    Skipped steps count in `skipped`, not in `done`.
    """

    done: int
    of: int
    what: str
    skipped: int = 0


@dataclass(frozen=True)
class NotebookEntry:
    """A notebook in the list; `age_s` is the time since its last change."""

    notebook: str
    current: bool
    state: str
    progress: StepProgress
    kernel: KernelStatus
    age_s: float


@dataclass(frozen=True)
class CurrentNotebookResponse:
    """The notebook that is now the current one.

    `kernel` is the backend of its next kernel, if one was selected. `elsewhere` names
    the backend of the present kernel if that is another one.
    """

    notebook: str
    kernel: str | None = None
    elsewhere: str | None = None


@dataclass(frozen=True)
class KernelWaitResponse:
    """The kernel of a notebook after waiting for it."""

    notebook: str
    kernel: KernelStatus


@dataclass(frozen=True)
class KernelBackendEntry:
    """A kernel backend.

    `usual` marks the project's default. `reachable` is None if this was not checked or
    cannot be determined; `why` explains it.
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
    """A run in the history."""

    notebook: str
    run: int
    cell_id: str
    step: int | None
    started_at: str
    duration_s: float
    outcome: str
    # The interface of the request: hook, mcp or cli; `elsewhere` for another client of
    # the kernel. '' for runs that an old version recorded.
    by: str = ""
    source: str = ""  # the code of another client (`run` is 0)
    bound: Sequence[str] = ()  # the names that it assigned


@dataclass(frozen=True)
class ReportResponse:
    """A run and its report."""

    run: int | None
    cell_id: str | None
    step: int | None
    outcome: str | None
    fault: Fault | None
    text: str


@dataclass(frozen=True)
class CellResult:
    """The result of a cell and the beginning of its text output."""

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
    """The result of running cells; `report` is that of the first failure."""

    notebook: str
    ok: bool
    ran: int
    cells: int
    skipped: int
    report: str
    results: Sequence[CellResult]
    follows: str  # lines on stale cells and changed outputs
    which: str  # pending, all, stale, restore
    # After a run from a terminal, a script or CI: the agent's stop that is in force,
    # or ''.
    stop: str
    # For `all` and `restore`: cells whose outputs differ from the recorded ones.
    changed_outputs: Sequence[ChangedOutput]


@dataclass(frozen=True)
class RestoreResponse(RunResponse):
    """The result of `restore`; `gone` counts cells that no longer exist."""

    gone: int


@dataclass(frozen=True)
class EvalResponse:
    """The result of a scratch execution.

    `output` contains what the code printed and its value; `text` is the report.
    """

    notebook: str
    source: str
    outcome: str
    duration_s: float
    fault: Fault | None
    text: str
    output: str
    # The paths of its figures. The next scratch execution replaces the files.
    figures: Sequence[str] = ()


@dataclass(frozen=True)
class OutputPage:
    """A page of a cell's output."""

    notebook: str
    cell_id: str
    page: int
    pages: int
    text: str
    ended: str = ""  # the result of the followed run
    figures: Sequence[str] = ()  # the paths of the rendered figures


@dataclass(frozen=True)
class InterruptResponse:
    """Whether something was interrupted, and the effect."""

    notebook: str
    interrupted: bool
    text: str = ""


@dataclass(frozen=True)
class AttachResponse:
    """How to attach another client to a notebook's kernel.

    `file` is the connection file, `console` a command that starts a console, `settings`
    are options for JupyterLab. A kernel of a Jupyter server has a `url` instead.
    """

    notebook: str
    kernel: str  # its ID
    where: str
    file: str | None
    console: str | None
    settings: Sequence[str]
    url: str | None
    python: str
    text: str


@dataclass(frozen=True)
class RestartResponse:
    """Whether a kernel was running before the restart."""

    notebook: str
    had_kernel: bool


@dataclass(frozen=True)
class TextResponse:
    """A response that consists of text only."""

    text: str


@dataclass(frozen=True)
class PlannedStep(NamedStep):
    """A plan step with its status and the reason if it was skipped."""

    criterion: str
    kind: str
    status: str
    reason: str
    long: bool


@dataclass(frozen=True)
class PlanResponse:
    """The plan of a notebook."""

    notebook: str
    steps: Sequence[PlannedStep]


@dataclass(frozen=True)
class NamespaceSummary:
    """The names in the kernel and a short description of each."""

    current_notebook: str | None = None
    imported_modules: Mapping[str, str] = field(default_factory=dict)
    defined_functions: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContextResponse(NamespaceSummary):
    """What another agent needs to continue the work."""

    plan: Sequence[PlannedStep] = ()
    text: str = "No notebook was made here yet."


@dataclass(frozen=True)
class ShutdownResponse:
    """The number of kernels that were shut down.

    `left` names a kernel that keeps running because stepper did not start it.
    """

    kernels: int
    notebook: str | None = None
    left: str | None = None
