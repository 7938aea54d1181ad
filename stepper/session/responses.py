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
    from stepper.policy.undo.requested_undo import UndoReach
    from stepper.session.mcp_responses import CellRunResponse, Resources


def to_json(response: object) -> bytes:
    """Serialize a response model, including nested models, as JSON."""
    return json.dumps(response, default=vars).encode()


@dataclass(frozen=True)
class NamedStep:
    """The ID and the title of a plan step."""

    id: int
    title: str


@dataclass(frozen=True)
class NotebookCreatedResponse:
    """A new notebook; `unfinished` names the previous notebook if it is unfinished."""

    notebook: str
    steps: Sequence[NamedStep]
    unfinished: str | None
    # The kernel's working directory: "notebook", "project" or the folder on a remote
    # host.
    kernel_cwd: str
    cells: CellRunResponse | None = None  # the result of running the initial cells


@dataclass(frozen=True)
class StepStatus(NamedStep):
    """The status of a plan step."""

    status: str
    cell_id: str | None
    attempts: int
    # The number of all retries of the step; `fix` does not reset it.
    retries: int = 0


@dataclass(frozen=True)
class CellStatus:
    """The status of a code cell; `title` is the beginning of its source."""

    cell: int
    cell_id: str
    title: str
    status: str


@dataclass(frozen=True)
class ShownCell:
    """A cell of a digest.

    `cell` is the number among the code cells, or 0, and `index` the position among all
    cells, from 0. `state` is empty for a text cell; `state`, `execution_count`, `step`
    and `duration_s` describe the last run. `outputs` is the text of the shortened
    outputs, and `line` the number of the cell's first line in the digest, from 1.
    """

    cell: int
    cell_id: str
    index: int
    type: str
    tags: Sequence[str]
    step: int | None
    state: str
    execution_count: int | None
    duration_s: float | None
    source: str
    outputs: str
    line: int


@dataclass(frozen=True)
class ShowResponse:
    """The digest of a notebook: lines on the notebook, and its cells.

    `state` is the state of the notebook, and `text` the whole digest.
    """

    notebook: str
    state: str
    head: str
    cells: Sequence[ShownCell]
    text: str


@dataclass(frozen=True)
class StopDetails:
    """The reason why a notebook is stopped, and the commands that resume it.

    `question` is the question to the user, `ways` are the commands, and `text` is the
    message for the user.
    """

    error: str
    cell_id: str | None
    question: str | None
    ways: Sequence[str]
    text: str


@dataclass(frozen=True)
class KernelStatus:
    """The status of a kernel.

    `state` is "none", "queued", "starting", "idle", "busy" or "dead". For a remote
    kernel, `where` is its location and `left_seconds` the remaining walltime. `trouble`
    describes a problem, such as a lost connection.
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
    """The running cell: the time so far, the timeout and the last output line.

    `handed_on` is true for a background run. `left_seconds` is the estimated remaining
    time, or None if there is no estimate.
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
    """The result of the last `verify`.

    `at` is the time of the replay. `holds` is true if no source has changed since then.
    """

    reproduces: bool
    at: str
    holds: bool
    text: str


@dataclass(frozen=True)
class UndoneCell:
    """A cell whose run was undone; `cell` is its number, or 0 if it was deleted."""

    cell: int
    cell_id: str
    run: int


@dataclass(frozen=True)
class UndoResponse:
    """The result of `undo`.

    `undone` are the cells whose runs were undone, oldest run first. `restored` are the
    names with restored values, and `removed` the names that did not exist before the
    runs. `not_restored` contains the reason for each name that was not restored.
    `stale` are all stale cells. `undo` is the reach of another undo, or None if no run
    is left that can be undone.
    """

    notebook: str
    undone: Sequence[UndoneCell]
    restored: Sequence[str]
    removed: Sequence[str]
    not_restored: Mapping[str, str]
    stale: Sequence[Mark]
    undo: UndoReach | None
    text: str


@dataclass(frozen=True)
class StatusResponse:
    """The status of a notebook; `notebook` is None if the project has no notebook."""

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
    # Cells that read from a stale cell and are not stale themselves.
    indirect: Sequence[Mark] = field(default_factory=list)
    # The result of this caller's background run, if it finished during the request.
    ended: CellRunResponse | None = None
    # Only if the request has `details`.
    context: NamespaceSummary | None = None
    resources: Resources | None = None
    verified: LastVerification | None = None
    renamed: str = ""  # a hint if the notebook was probably renamed
    # A hint if a Jupyter server shows the notebook and does not reload it.
    jupyter: str = ""
    # Open cells outside the plan.
    off_plan: Sequence[CellStatus] = field(default_factory=list)
    # The reach of undo, or None if the kernel cannot undo any run.
    undo: UndoReach | None = None


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

    `kernel` is the backend of the next kernel, if a backend was selected. `elsewhere`
    is the backend of the running kernel, if the kernel runs on another backend.
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

    `about` describes the backend. `usual` marks the project's default, and `accepted` a
    backend that the user trusts. `reachable` is None if it is unknown whether the
    backend can be reached. If `reachable` is not true, `why` gives the reason. `offers`
    are lines on the available resources, and `unchecked` names settings that were not
    checked.
    """

    name: str
    kind: str
    about: str
    usual: bool
    accepted: bool
    reachable: bool | None = None
    why: str = ""
    offers: Sequence[str] = ()
    mend: str = ""  # a command that fixes the problem
    unchecked: Sequence[str] = ()


@dataclass(frozen=True)
class HistoryEntry:
    """A run, or an execution of another client, in the history."""

    notebook: str
    run: int
    cell_id: str
    step: int | None
    started_at: str
    duration_s: float
    outcome: str
    # The interface of the request: hook, mcp or cli; `elsewhere` for another client of
    # the kernel. Empty for runs that an old version of stepper recorded.
    by: str = ""
    source: str = ""  # the code of another client (`run` is 0)
    bound: Sequence[str] = ()  # the names that this code assigned
    # Whether the changes of the run were undone, and its names that were not restored.
    undone: bool = False
    not_restored: Sequence[str] = ()


@dataclass(frozen=True)
class ReportResponse:
    """A run and its report (`text`).

    The other fields are None if only the report is known.
    """

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
    """The result of running cells.

    `ran` is the number of cells that succeeded, and `cells` the number of cells to run.
    `skipped` is the number of cells with the tag that skips them. `report` is the
    report on the first failure, or a message on a notebook that `restore` did not
    resume.
    """

    notebook: str
    ok: bool
    ran: int
    cells: int
    skipped: int
    report: str
    results: Sequence[CellResult]
    follows: str  # lines on stale cells and changed outputs
    which: str  # pending, all, stale, restore
    # After a run from a terminal, a script or CI: the message on the agent's stop, or
    # an empty string if the notebook is not stopped.
    stop: str
    # For `all` and `restore`: the outputs that differ from the recorded outputs.
    changed_outputs: Sequence[ChangedOutput]


@dataclass(frozen=True)
class RestoreResponse(RunResponse):
    """The result of `restore`.

    `gone` is the number of cells that ran earlier and were deleted.
    """

    gone: int


@dataclass(frozen=True)
class EvalResponse:
    """The result of a scratch execution.

    `output` contains the printed text and the value of the code; `text` is the report.
    """

    notebook: str
    source: str
    outcome: str
    duration_s: float
    fault: Fault | None
    text: str
    output: str
    # The paths of the figures. The next scratch execution replaces the files.
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
    """The result of an interrupt; `text` describes the effect."""

    notebook: str
    interrupted: bool
    text: str = ""


@dataclass(frozen=True)
class AttachResponse:
    """The details that other clients need to attach to a notebook's kernel.

    `file` is the connection file, `console` is a command that starts a console, and
    `settings` are options for JupyterLab. A kernel on a Jupyter server has a `url`
    instead.
    """

    notebook: str
    kernel: str  # the kernel's ID
    where: str
    file: str | None
    console: str | None
    settings: Sequence[str]
    url: str | None
    python: str
    text: str


@dataclass(frozen=True)
class RestartResponse:
    """The result of `restart`; `had_kernel` is true if a kernel was running before."""

    notebook: str
    had_kernel: bool


@dataclass(frozen=True)
class TextResponse:
    """A response with a text only."""

    text: str


@dataclass(frozen=True)
class PlannedStep(NamedStep):
    """A plan step with its status.

    `reason` says why the step was skipped or confirmed, or why its criterion is false.
    """

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
    """The context with which another agent can continue the work."""

    plan: Sequence[PlannedStep] = ()
    text: str = "This project does not have a notebook yet."


@dataclass(frozen=True)
class ShutdownResponse:
    """The result of `shutdown`: the number of kernels that were shut down.

    `left` names a kernel that keeps running because stepper did not start it.
    """

    kernels: int
    notebook: str | None = None
    left: str | None = None
