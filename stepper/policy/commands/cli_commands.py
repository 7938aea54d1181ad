"""The commands of the command line, each with typed arguments and a help text.

The daemon executes the commands (`daemon/command_handlers.py`), the command line
renders the results (`cli/rendering.py`), and `policy/edit_gate.py` decides which
commands agents may call. MCP tools (`mcp/tools.py`) accept the same arguments and the
hidden arguments.
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from stepper.policy.commands.command_schema import (
    ALL_COMMANDS,
    KERNEL,
    PLAN,
    SETUP,
    SHELL,
    USER_DECISIONS,
    WEB,
    Arguments,
    hidden,
    option,
    positional,
)

CLIENTS = (
    "claude",
    "cursor",
    "codex",
    "gemini",
    "vscode",
    "zed",
    "jupyter-ai",
    "claude-desktop",
    "windsurf",
)
CELL_TYPES = ("code", "markdown", "raw")
DEFAULT_WAIT_SECONDS = 60
MAX_TOOL_SECONDS = 86_400  # in calls of MCP tools
MIN_TIMEOUT_SECONDS = 0.1
NOTEBOOK_HELP = "The notebook: its path or name. Default: the current one."
STOPPED_NOTEBOOK_HELP = (
    "The notebook: its path or name. Default: the only stopped notebook, or else the"
    " current one."
)
CELL_TYPE_HELP = (
    "The type of the cell; only code cells run. Default: `code` for a new cell,"
    " unchanged for an existing one."
)
KERNEL_HELP = (
    "The kernel backend: a name in `kernels:` of .stepper/config.yaml, or `local`."
)
STEP_HELP = 'The step: "TITLE" or "TITLE :: CRITERION".'
STEP_ID_HELP = "The number of the step."
WAIT_FOR_CELL_HELP = (
    "Wait until the running cell has finished, then run. Without this option, a call"
    " from an agent's shell fails immediately if a cell is running; in your own"
    " terminal, the command waits."
)
CELLS_WAIT_HELP = (
    "How many seconds to wait for the cells. If they take longer, they keep running,"
    " and notebook_status can wait for them."
)
TIMEOUT_HELP = (
    "The deadline of each cell in seconds; a cell that takes longer is interrupted. It"
    " takes precedence over the first line of a cell (`# stepper: timeout=10m`)."
    " `max_cell_timeout_seconds` in .stepper/config.yaml limits it. Default:"
    " `cell_timeout_seconds` there (30 if unset)."
)


def declare_notebook_option() -> Any:
    """Declare the option `--notebook` of a command."""
    return option(NOTEBOOK_HELP, min_length=1)


def declare_wait(default: float | None) -> Any:
    """Declare the argument `wait_seconds`, which limits the time until a response."""
    return hidden(
        CELLS_WAIT_HELP,
        default,
        tool_default=DEFAULT_WAIT_SECONDS,
        minimum=0,
        maximum=MAX_TOOL_SECONDS,
    )


def declare_timeout() -> Any:
    """Declare the argument `timeout_seconds`, the deadline of each cell."""
    return hidden(TIMEOUT_HELP, minimum=MIN_TIMEOUT_SECONDS, maximum=MAX_TOOL_SECONDS)


class NewCell(Arguments):
    """A new cell in a list of cells."""

    cell_type: str | None = hidden(CELL_TYPE_HELP, choice=CELL_TYPES)
    source: str = hidden("The text of the cell.", MISSING)


class NotebookArguments(Arguments):
    """Base class of commands on one notebook, by default the current one."""

    notebook: str | None = positional(NOTEBOOK_HELP, None, min_length=1)


class New(
    Arguments,
    name="new",
    examples=('new "How wet is Seattle?" --step "Load :: 1461 rows" --step Plot',),
):
    """Create a notebook for PROBLEM, with its plan, and make it the current one.

    Add `:: long` to a step that takes minutes or hours: its cell has no deadline. A
    cell that runs longer than 20 s continues in the background: the agent can work on
    text, the plan and other notebooks, and is woken when the cell finishes or prints a
    line that matches a pattern. The first line of a cell can change this:
    `# stepper: timeout=6h|none wait=45s|none wake="loss.*nan"`.
    """

    problem: str = positional("The question to answer, in a sentence.", min_length=1)
    steps: list[Any] | None = option(
        'The steps of the plan, in order: "TITLE" or "TITLE :: CRITERION". CRITERION is'
        " an expression over the notebook's variables, such as `df.shape[0] == 500`."
        ' Append ":: long" for no deadline. Default: no plan.',
        flag="--step",
        items={"type": "string", "minLength": 1},
    )
    name: str | None = option("Part of the file name. Default: from the problem.")
    kernel: str | None = option(
        f"{KERNEL_HELP} Default: the project's.", tool_name="place", min_length=1
    )
    cells: list[Any] | None = hidden("The first cells. Default: none.", items=NewCell)
    run: bool = hidden("Whether to run these cells, up to the first failure.", True)
    wait_seconds: float = declare_wait(DEFAULT_WAIT_SECONDS)


class Status(NotebookArguments, name="status", examples=("status", "status --json")):
    """Show the status of a notebook.

    This includes its plan (without a plan, its cells), why it is stopped, its kernel
    and the daemon.
    """

    wait_seconds: float | None = hidden(
        "How many seconds to wait for the background runs of this client. The response"
        " then contains the report of a run that finished, or else the output so far."
        " Default: do not wait, and return neither.",
        minimum=0,
        maximum=MAX_TOOL_SECONDS,
    )
    details: bool = hidden(
        "Whether to include the kernel's variables, and the CPU, memory and GPU usage"
        " of the kernel and the machine.",
        default=False,
    )
    resumes: bool = hidden(
        "Whether to select the notebook that `continue` without a notebook resumes.",
        default=False,
    )
    unread: bool = hidden(
        "Whether to keep undelivered reports for later. For responses that the agent"
        " does not see.",
        default=False,
    )


class List(Arguments, name="list", examples=("list", "list --all")):
    """Show all notebooks: state, progress, kernel, memory, age; `*` is the current one.

    The kernel is `unknown` if it can't be reached. A deleted notebook is listed while
    its kernel runs or is unknown: `stepper shutdown NOTEBOOK` shuts the kernel down.
    """

    all: bool = option(
        "Search every folder, even in a large project. This may take long.",
        default=False,
    )


class Use(
    Arguments, name="use", examples=("use analysis", "use analysis --kernel gpu")
):
    """Make NOTEBOOK the current notebook.

    In Claude Code's shell, this applies only to the current session.
    """

    notebook: str = positional("The notebook: its path or name.")
    kernel: str | None = option(
        f"{KERNEL_HELP} It applies to the next kernel of the notebook. Default:"
        " unchanged.",
        tool_name="place",
        min_length=1,
    )


class Run(
    NotebookArguments,
    name="run",
    runs_code=True,
    examples=("run analysis", "run analysis --all --json", "run --stale"),
):
    """Run the cells that have not run in the current kernel; exit with 1 if one fails.

    The run stops at the first cell that fails. Ctrl-C interrupts the running cell and
    prints its result.
    """

    all: bool = option(
        "Run every cell from top to bottom, in a new kernel.", default=False
    )
    stale: bool = option(
        "Run the stale cells in order, and the cells that provide their values, until"
        " the kernel has the values that a run from the top gives.",
        default=False,
    )
    wait: bool = option(WAIT_FOR_CELL_HELP, default=False)
    which: str = hidden(
        "pending: the cells that have not run in the current kernel; all: every cell,"
        " in a new kernel; stale: the stale cells, which read a variable that a cell"
        " above has changed since they ran, and the cells that provide their values;"
        " restore: the cells that succeeded, in a new kernel.",
        default="pending",
        choice=("pending", "all", "stale", "restore"),
    )
    timeout_seconds: float | None = declare_timeout()
    wait_seconds: float | None = declare_wait(None)


class Verify(
    Arguments,
    name="verify",
    runs_code=True,
    examples=(
        "verify",
        "verify analysis --json",
        "verify notebooks/ --scratch",
        "verify notebooks/ -j 4 --format junit > verify.xml",
    ),
):
    """Replay NOTEBOOK in a new kernel; exit with 1 if the outputs are not reproduced.

    The live kernel and the file are not touched. If outputs differ from the recorded
    ones, the notebook runs again with another hash seed: outputs that also differ
    between two fresh runs are nondeterministic ("unstable").

    If stepper is not installed here, the command needs a NOTEBOOK and leaves no files
    of its own, and --kernel is the name of a kernelspec.
    """

    notebooks: list[str] | None = positional(
        "The notebooks: paths, names, folders (with all notebooks below them) or quoted"
        " globs, such as 'notebooks/**/*.ipynb'. Default: the current one.",
        None,
        several=True,
        metavar="NOTEBOOK",
    )
    notebook: str | None = hidden(NOTEBOOK_HELP, min_length=1)
    once: bool = option(
        "Run only once: nondeterministic outputs count as changed.", default=False
    )
    scratch: bool = option(
        "Run in a copy of the kernel's working directory (at most 1 GB), so that the"
        " original files do not change.",
        default=False,
    )
    kernel: str | None = option(
        f"{KERNEL_HELP} Default: the notebook's own.", tool_name="place", min_length=1
    )
    from_cell: str | None = option(
        "Replay this code cell (its number or its id), the cells below, and the cells"
        " above that they need. Other cells above are skipped if they took a second or"
        " more. The result says that it is partial.",
        flag="--from",
        metavar="CELL",
        min_length=1,
    )
    checkpoint: bool = option(
        "In a partial replay: load values that take a second or more to compute from"
        " the live kernel, if it still has them. The live kernel pickles them; this"
        " executes code of the values' classes.",
        default=False,
    )
    python: str | None = option(
        "The interpreter for the notebook, only if stepper is not installed here."
        " Default: the active environment, or the nearest .venv.",
        metavar="PATH",
    )
    jobs: int = option(
        "How many notebooks to replay at the same time. They must not write the same"
        " files.",
        default=1,
        short="-j",
        metavar="N",
        minimum=1,
        maximum=64,
    )
    format: str = option(
        "The format of the result: text; json (one document, or a list for several"
        " notebooks); junit (XML for CI systems); github (text and annotations).",
        default="text",
        choice=("text", "json", "junit", "github"),
    )


class History(NotebookArguments, name="history"):
    """Show every run of a notebook's cells, and which runs were undone."""


class Report(Arguments, name="report", examples=("report", "report 12")):
    """Show the report of a run again. Default: the last run."""

    run: int | None = positional("The number of the run. Default: the last one.", None)
    notebook: str | None = declare_notebook_option()


class Show(
    NotebookArguments,
    name="show",
    examples=("show", "show analysis --cells 3-5", "show --json"),
):
    """Show a notebook: plan, kernel, and each cell with source and shortened outputs.

    Agents get the same text when they read the notebook.
    """

    cells: str | None = option(
        "The cells to show: an id, the number of a code cell, or a range of numbers,"
        " such as 3-5 or 3-. Text cells directly above them are also shown. Default:"
        " all cells.",
        min_length=1,
    )


class Output(Arguments, name="output", examples=("output 3 --page 2",)):
    """Show the full text output of a cell; the report may have truncated it.

    CELL is the number of a code cell, or an id.
    """

    cell: str = positional("The code cell: its number or its id.")
    page: int = option("The page of a long output.", default=1)
    follow: bool = option(
        "Show new output until the cell finishes. Ctrl-C stops the display, not the"
        " cell.",
        default=False,
    )
    figure: bool = option(
        "Render the cell's Plotly figures as PNG files with the project's kaleido, and"
        " print their paths. This takes a few seconds.",
        default=False,
    )
    notebook: str | None = declare_notebook_option()


class Context(
    Arguments, name="context", examples=("context", "context --for Cohere --lang ja")
):
    """Show what an agent must know to continue with the current notebook.

    With --for, print the system prompt for an agent that has neither MCP nor skills.
    """

    agent: str | None = option(
        "The name of the agent: print its system prompt, with the rules to follow.",
        flag="--for",
    )
    lang: str = option(
        "The language of the system prompt.", default="en", choice=("en", "ja")
    )


class View(
    NotebookArguments,
    name="view",
    needs_daemon=False,
    examples=("view", "view analysis --port 8765 --no-browser"),
):
    """Open a live page of NOTEBOOK: plan, cells, outputs, reports. Ctrl-C stops it.

    The page is read-only and is served to you alone, on 127.0.0.1. Without NOTEBOOK, it
    shows whichever notebook is the current one.
    """

    port: int = option("The port on 127.0.0.1. Default: any free port.", default=0)
    quiet: bool = option(
        "Print the URL only; do not open a browser.", default=False, flag="--no-browser"
    )


class Watch(NotebookArguments, name="watch", needs_daemon=False, examples=("watch",)):
    """Show live progress in this terminal. Ctrl-C stops it.

    This includes the plan, the running cell, the last report, and why the notebook is
    stopped.
    """


class Plan(
    NotebookArguments,
    name="plan",
    group=PLAN,
    examples=("plan", "plan show analysis --json"),
):
    """Show the plan with the status of each step, like `plan` without a subcommand."""


class PlanAdd(
    Arguments,
    name="plan add",
    group=PLAN,
    examples=('plan add "Plot :: has a legend" --after 3',),
):
    """Add a step: "TITLE" or "TITLE :: CRITERION"; append ":: long" for no deadline."""

    title: str = positional(STEP_HELP, min_length=1)
    after: int | None = option(
        "The number of the step above it (0: none). Default for a new step: the last"
        " step.",
        minimum=0,
    )
    notebook: str | None = declare_notebook_option()


class PlanEdit(
    Arguments,
    name="plan edit",
    group=PLAN,
    examples=('plan edit 4 "Plot the wet days"',),
):
    """Change a step that has not run: "TITLE" or "TITLE :: CRITERION".

    Append ":: long" for no deadline. Omitted parts are kept, but a criterion without
    ":: long" restores the deadline.
    """

    id: int = positional(STEP_ID_HELP)
    title: str = positional(STEP_HELP, min_length=1)
    notebook: str | None = declare_notebook_option()


class PlanRemove(
    Arguments, name="plan remove", group=PLAN, examples=("plan rm 5",), alias="rm"
):
    """Remove a step that has not run."""

    id: int = positional(STEP_ID_HELP)
    notebook: str | None = declare_notebook_option()


class PlanReopen(
    Arguments,
    name="plan reopen",
    needs_user=True,
    group=PLAN,
    examples=("plan reopen 7",),
):
    """Reopen a skipped step, so that it can run."""

    id: int = positional(STEP_ID_HELP)
    notebook: str | None = declare_notebook_option()


class PlanMove(
    Arguments, name="plan move", group=PLAN, examples=("plan move 5 --after 3",)
):
    """Move a step that has not run."""

    id: int = positional(STEP_ID_HELP)
    after: int = option(
        "Move below the step with this number (0: to the beginning).",
        MISSING,
        minimum=0,
    )
    notebook: str | None = declare_notebook_option()


class Confirm(
    Arguments,
    name="confirm",
    group=PLAN,
    examples=('confirm "two stations report in feet"',),
):
    """Mark a step done although its criterion is false; WORDS are the reason.

    `-` reads WORDS from standard input.
    """

    words: str = positional(
        "Why the step is done although its criterion is false.",
        "",
        many=True,
        stdin=True,
        min_length=1,
        tool_name="reason",
        tool_default=MISSING,
    )
    notebook: str | None = declare_notebook_option()


class Eval(
    Arguments,
    name="eval",
    runs_code=True,
    group=KERNEL,
    examples=('eval "df.columns"', "eval - < look.py"),
):
    """Run CODE in the live kernel without touching the notebook; exit with 1 on errors.

    `-` reads CODE from standard input.
    """

    source: str = positional(
        "The code. The response shows the value of its last expression.",
        metavar="CODE",
        stdin=True,
        min_length=1,
        tool_name="code",
    )
    wait: bool = option(WAIT_FOR_CELL_HELP, default=False)
    notebook: str | None = declare_notebook_option()
    timeout_seconds: float | None = hidden(
        "The deadline in seconds; code that takes longer is interrupted."
        " `max_cell_timeout_seconds` in .stepper/config.yaml limits it. Default:"
        " `cell_timeout_seconds` there (30 if unset).",
        minimum=MIN_TIMEOUT_SECONDS,
        maximum=MAX_TOOL_SECONDS,
    )


class Kernels(
    Arguments, name="kernels", group=KERNEL, examples=("kernels", "kernels --json")
):
    """List the kernel backends, whether they can be reached, and what they offer.

    They are defined by `kernels:` in .stepper/config.yaml. All are checked at the same
    time, for at most ten seconds. A backend that you have not accepted (stepper trust)
    is not contacted.
    """


class KernelsWait(
    NotebookArguments, name="kernels wait", group=KERNEL, examples=("kernels wait",)
):
    """Wait until a notebook's kernel is ready, for example while its job is queued.

    If the notebook has no kernel, start one.
    """


class Attach(
    NotebookArguments,
    name="attach",
    group=KERNEL,
    examples=("attach", "attach analysis --console"),
):
    """Show how to attach a console or JupyterLab to the live kernel.

    stepper tracks what you run there: the next report says how many cells ran and which
    names they assigned.
    """

    console: bool = option(
        "Start the console: the project's jupyter-console, or the one on the PATH.",
        default=False,
    )


class Interrupt(NotebookArguments, name="interrupt", group=KERNEL):
    """Interrupt the running cell; the kernel keeps its variables."""


class Undo(
    Arguments,
    name="undo",
    runs_code=True,
    group=KERNEL,
    examples=("undo", "undo 3"),
):
    """Undo what the last run changed in the kernel; exit with 1 if a part remains.

    With CELL, return to the state before that cell ran: its runs and the later runs of
    the cells below it are undone. The undone cells are stale; the notebook does not
    change. The command names the variables that could not be restored. Files, and code
    that other clients or `stepper eval` executed, are not undone.
    """

    cell: str | int | None = positional(
        "The code cell: its number or its id. Default: the cell that ran last.", None
    )
    notebook: str | None = declare_notebook_option()


class Restart(
    NotebookArguments, name="restart", runs_code=True, needs_user=True, group=KERNEL
):
    """Start a new kernel; all variables are lost."""


class Restore(
    NotebookArguments, name="restore", runs_code=True, needs_user=True, group=KERNEL
):
    """Re-run the cells that succeeded, in a new kernel; exit with 1 if one fails.

    Use this after a kernel died. The cell that was running when it died does not run.
    """


class Shutdown(
    Arguments,
    name="shutdown",
    group=KERNEL,
    examples=("shutdown", "shutdown analysis"),
):
    """Shut down the kernel of NOTEBOOK; without NOTEBOOK, all kernels and the daemon.

    Only this project is affected.
    """

    notebook: str | None = positional(
        "The notebook: its path or name. Default: all notebooks, and the daemon.", None
    )


class Continue(
    Arguments,
    name="continue",
    needs_user=True,
    group=USER_DECISIONS,
    examples=("continue yes, drop them",),
):
    """Resume a stopped notebook, and show the next step.

    The agent reads ANSWER. `-` reads ANSWER from standard input.
    """

    answer: str = positional(
        "The answer, which the agent reads.", "", many=True, stdin=True
    )
    notebook: str | None = option(STOPPED_NOTEBOOK_HELP, min_length=1)


class Fix(
    Arguments,
    name="fix",
    needs_user=True,
    group=USER_DECISIONS,
    examples=("fix the dates are in UTC",),
):
    """Resume a stopped notebook with new retries for the failed step.

    The command shows what failed and what was tried. The agent reads HINT. `-` reads
    HINT from standard input.
    """

    hint: str = positional(
        "What the agent should do differently.", "", many=True, stdin=True
    )
    notebook: str | None = option(STOPPED_NOTEBOOK_HELP, min_length=1)


class Skip(
    Arguments,
    name="skip",
    needs_user=True,
    group=USER_DECISIONS,
    examples=("skip the data are not there yet",),
):
    """Skip the failed step, or the next one if none failed.

    REASON is recorded. `-` reads REASON from standard input.
    """

    reason: str = positional(
        "The reason, which is recorded.", "", many=True, stdin=True
    )
    notebook: str | None = option(STOPPED_NOTEBOOK_HELP, min_length=1)


class Doctor(Arguments, name="doctor", needs_daemon=False, group=SETUP):
    """Check the installation, and show a command that fixes each problem."""


class Trust(Arguments, name="trust", needs_user=True, needs_daemon=False, group=SETUP):
    """Show what this checkout can run, and ask you to accept it.

    This includes the interpreter, the environment and the kernel backends that its
    files specify.
    """

    yes: bool = option("Accept without asking, for scripts.", default=False)


class Mcp(
    Arguments,
    name="mcp",
    needs_daemon=False,
    group=SETUP,
    examples=(
        "mcp",
        "mcp --config cursor",
        "mcp --config codex --install",
        "mcp --http 8777",
    ),
):
    """Serve other agents (Cursor, Codex, VS Code …) with MCP on standard input/output.

    The client starts this command. `--config CLIENT` prints the client's configuration,
    and with `--install`, writes the configuration to the client's file.
    """

    http: int | None = option(
        "Serve HTTP on this port of 127.0.0.1 instead. Clients need the printed key."
    )
    config: str | None = option(
        "Print the configuration for a client, and the path of the file to put it in.",
        choice=CLIENTS,
    )
    install: bool = option(
        "With --config: write the configuration; keep the rest of the file.",
        default=False,
    )


class Statusline(Arguments, name="statusline", needs_daemon=False, group=SETUP):
    """Print the status line for Claude Code: progress, running cell, kernel.

    `install.sh --statusline` makes Claude Code show this line below your own one.
    """


class Snapshot(Arguments, name="look", interface=WEB):
    """Return the data for live views that only the daemon has.

    The request starts no kernel, and does not keep the daemon or a kernel running.
    """

    notebook: str = hidden("The notebook.", default=MISSING)
    run: int = hidden("The run whose outputs the view has; 0 for none.", default=0)
    changes: int = hidden(
        "The number of changes to these outputs that the view has already received.",
        default=0,
    )
    marks: bool = hidden("Whether to search for stale cells.", default=False)


class Completion(
    Arguments,
    name="completion",
    needs_daemon=False,
    group=SETUP,
    examples=(
        'completion zsh > "${fpath[1]}/_stepper"',
        "completion fish > ~/.config/fish/completions/stepper.fish",
    ),
):
    """Print a completion script for commands, options, notebooks and cells.

    bash: `stepper completion bash > ~/.local/share/bash-completion/completions/stepper`
    """

    shell: str = positional("The shell.", choice=("bash", "zsh", "fish"))


COMMANDS = {
    name: command
    for name, command in ALL_COMMANDS.items()
    if command.interface == SHELL
}
