"""The commands of a shell, a row each: its name, what it is told, whether it runs code, whether it is the person's.

Help says them below their groups' titles. The daemon has a case for each (`daemon/command_handlers.py`), the command line a
command and a rendering (`cli/rendering.py`), the gate its patterns. `unshown` arguments are other agents'.
(Over 300 lines: a table.)
"""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from stepper.policy.commands.command_schema import (
    KERNEL,
    PERSONS,
    PLAN,
    SETUP,
    VERBS,
    Arguments,
    option,
    unshown,
    word,
)

WAIT_FOR_CELL = (
    "Wait until the cell that runs has ended, then run. Without it, a call from an agent's shell fails at once while"
    " a cell runs; in your own terminal it waits."
)
CLIENTS = (
    *("claude", "cursor", "codex", "gemini", "vscode", "zed", "jupyter-ai"),
    *("claude-desktop", "windsurf"),
)

WHICH = "Which notebook; the current one when not given."


class OfNotebook(Arguments):
    """Which notebook, the current one when not given."""

    notebook: str | None = word(None)


class New(
    Arguments,
    name="new",
    examples=('new "How wet is Seattle?" --step "Load :: 1461 rows" --step Plot',),
):
    """Make a notebook for PROBLEM, with its plan; it becomes the current one.

    A step that takes minutes or hours ends with `:: long`: its cell has no deadline. What runs longer than 20 s is
    handed on: the agent goes on with text, plan, reading, other notebooks, and is woken at the cell's end, or by a line
    that it prints. A cell's first line says more: `# stepper: timeout=6h|none wait=45s|none wake="loss.*nan"`.
    """

    problem: str = word()
    name: str | None = option("The file name's part; from the problem when not given.")
    steps: list[Any] | None = option(
        'A step, in order: "TITLE", "TITLE :: CRITERION", "… :: long".', flag="--step"
    )
    kernel: str | None = option(
        "Where its kernel runs: a name in `kernels:` of .stepper/config.yaml, or `local`."
    )
    cells: list[Any] | None = unshown("Cells to begin with, as `cell add` takes them.")
    run: bool = unshown("Whether these cells run.", default=True)
    wait_seconds: float = unshown(
        "How long the answer waits for these cells.", default=60
    )


class Status(OfNotebook, name="status", examples=("status", "status --json")):
    """Show where a notebook stands: its steps (its cells, without a plan), what stopped it, its kernel, the daemon."""

    wait_seconds: float | None = unshown(
        "How long the answer waits for what this caller has running there."
    )
    details: bool = unshown(
        "What the kernel holds, and what it and the machine have of CPU, memory, GPU.",
        default=False,
    )
    resumes: bool = unshown(
        "Whether the notebook is the one that `continue` without a notebook acts on.",
        default=False,
    )
    unread: bool = unshown(
        "Whether no agent reads the answer: what it was not told yet stays untold.",
        default=False,
    )


class List(Arguments, name="list", examples=("list", "list --all")):
    """Show all notebooks: state, progress, kernel, memory, age; `*` is the current one.

    A deleted notebook is listed as long as it has a kernel: `stepper shutdown NOTEBOOK` ends it.
    """

    all: bool = option(
        "Search every folder of a large project, however long that takes.",
        default=False,
    )


class Use(
    Arguments, name="use", examples=("use analysis", "use analysis --kernel gpu")
):
    """Make NOTEBOOK the current one; in Claude Code's own shell, that of its session."""

    notebook: str = word()
    kernel: str | None = option(
        "Where its next kernel runs: a name in `kernels:` of .stepper/config.yaml, or `local`."
    )


class Run(
    OfNotebook,
    name="run",
    runs_code=True,
    examples=("run analysis", "run analysis --all --json", "run --stale"),
):
    """Run the cells of NOTEBOOK that have not run here yet; exit 1 at the first that fails.

    Ctrl-C interrupts the cell that runs, and says what became of it.
    """

    all: bool = option("Every cell from the top, in a fresh kernel.", default=False)
    stale: bool = option(
        "The cells that read what a cell above them has bound anew since, in order.",
        default=False,
    )
    wait: bool = option(WAIT_FOR_CELL, default=False)
    which: str = unshown(
        "`pending`: those that have not run here; `all`: each, in a fresh kernel; `stale`: those that read"
        " what a cell above has bound anew since, or were changed since; `restore`: as the command of that name.",
        default="pending",
        choice=("pending", "all", "stale", "restore"),
    )
    wait_seconds: float | None = unshown("How long the answer waits for the cells.")
    timeout_seconds: float | None = unshown(
        "The deadline of each cell, in seconds.", positive=True
    )


class Verify(
    OfNotebook,
    name="verify",
    runs_code=True,
    examples=("verify", "verify analysis --json", "verify --scratch"),
):
    """Replay NOTEBOOK from the top in a fresh kernel of its own; exit 1 where it is not as recorded.

    The living kernel and the file are not touched. What differs runs a second time, with another hash seed: what two
    fresh runs do not agree on either is unstable.
    """

    once: bool = option(
        "No further run: what is unstable counts as changed.", default=False
    )
    scratch: bool = option(
        "In a copy of the folder in which its cells run (1 GB at most).", default=False
    )
    kernel: str | None = option(
        "Where it is replayed: a name in `kernels:` of .stepper/config.yaml, or `local`."
    )


class History(OfNotebook, name="history"):
    """Show every run of a notebook's cells."""


class Report(Arguments, name="report", examples=("report", "report 12")):
    """Show again the report of a run, the last one when RUN is not given."""

    run: int | None = word(None)
    notebook: str | None = option(WHICH)


class Output(Arguments, name="output", examples=("output 3 --page 2",)):
    """Show the text output of a code cell (its number or id), of which a report left some out."""

    cell: str = word()
    page: int = option("Which page of a long output.", default=1)
    follow: bool = option(
        "Go on with what comes until the cell ends; Ctrl-C ends this, not the cell.",
        default=False,
    )
    figure: bool = option(
        "Render the cell's plotly figures as PNG with the project's kaleido, and name the files. Takes seconds.",
        default=False,
    )
    notebook: str | None = option(WHICH)


class Context(
    Arguments, name="context", examples=("context", "context --for Cohere --lang ja")
):
    """Show what an agent must know to go on with the current notebook.

    With --for: the system text for an agent that has neither MCP nor skills.
    """

    agent: str | None = option(
        "The agent's name: its system text, with what it must hold to.", flag="--for"
    )
    lang: str = option("The language of that text.", default="en", choice=("en", "ja"))


class View(
    OfNotebook,
    name="view",
    daemon=False,
    examples=("view", "view analysis --port 8765 --no-browser"),
):
    """Open a page that shows live what happens in NOTEBOOK: plan, cells, outputs, reports. Ctrl-C ends it.

    Read only, on 127.0.0.1, for you alone. Without NOTEBOOK it follows the current one.
    """

    port: int = option(
        "The port of 127.0.0.1; any that is free when not given.", default=0
    )
    quiet: bool = option(
        "Print the address alone; open no browser.", default=False, flag="--no-browser"
    )


class Watch(OfNotebook, name="watch", daemon=False, examples=("watch",)):
    """Show the same in this terminal: the plan, the cell that runs, the last report, a stop. Ctrl-C ends it."""


class Plan(
    OfNotebook, name="plan", group=PLAN, examples=("plan", "plan show analysis --json")
):
    """Show the plan with each step's status; `plan` alone does too."""


class PlanAdd(
    Arguments,
    name="plan add",
    group=PLAN,
    examples=('plan add "Plot :: has a legend" --after 3',),
):
    """Add a step: "TITLE" or "TITLE :: CRITERION", with ":: long" behind where its cell is to have no deadline."""

    title: str = word()
    after: int | None = option(
        "The step it comes after (0: first); at the end when not given."
    )
    notebook: str | None = option(WHICH)


class PlanEdit(
    Arguments,
    name="plan edit",
    group=PLAN,
    examples=('plan edit 4 "Plot the wet days"',),
):
    """Change a step that has not run: "TITLE", "TITLE :: CRITERION", ":: long" behind either.

    What is not said stays, but a criterion without ":: long" makes the step no long one.
    """

    id: int = word()
    title: str = word()
    notebook: str | None = option(WHICH)


class PlanRemove(
    Arguments, name="plan remove", group=PLAN, examples=("plan rm 5",), alias="rm"
):
    """Remove a step that has not run."""

    id: int = word()
    notebook: str | None = option(WHICH)


class PlanReopen(
    Arguments, name="plan reopen", persons=True, group=PLAN, examples=("plan reopen 7",)
):
    """Reopen a skipped step: it is open again and can run."""

    id: int = word()
    notebook: str | None = option(WHICH)


class PlanMove(
    Arguments, name="plan move", group=PLAN, examples=("plan move 5 --after 3",)
):
    """Move a step that has not run."""

    id: int = word()
    after: int = option("The step it is to come after (0: first).", default=MISSING)
    notebook: str | None = option(WHICH)


class Confirm(
    Arguments,
    name="confirm",
    group=PLAN,
    examples=('confirm "two stations report in feet"',),
):
    """Take the step whose criterion is false for done all the same; WORDS say why (`-`: from standard input)."""

    words: str = word("", many=True, stdin=True)
    notebook: str | None = option(WHICH)


class Eval(
    Arguments,
    name="eval",
    runs_code=True,
    group=KERNEL,
    examples=('eval "df.columns"', "eval - < look.py"),
):
    """Run CODE in the live kernel without touching the notebook (`-`: from standard input); exit 1 where it fails."""

    source: str = word(metavar="CODE", stdin=True)
    wait: bool = option(WAIT_FOR_CELL, default=False)
    notebook: str | None = option(WHICH)
    timeout_seconds: float | None = unshown(
        "The deadline of the code, in seconds.", positive=True
    )


class Kernels(
    Arguments, name="kernels", group=KERNEL, examples=("kernels", "kernels --json")
):
    """List the places where kernels may run: what they are, whether they can be reached, what they offer.

    `kernels:` in .stepper/config.yaml names them. All are looked at at once, for ten seconds at most; nothing is asked
    of one that you have not accepted (stepper trust).
    """


class KernelsWait(
    OfNotebook, name="kernels wait", group=KERNEL, examples=("kernels wait",)
):
    """Wait until a notebook's kernel is there, such as one whose job waits in a queue; start one where none is."""


class Attach(
    OfNotebook,
    name="attach",
    group=KERNEL,
    examples=("attach", "attach analysis --console"),
):
    """Tell what attaches to the living kernel beside stepper: a console, JupyterLab.

    What is run there is known here: the next report says how much that was and which names it bound.
    """

    console: bool = option(
        "Start the console: the project's jupyter-console, or that on the PATH.",
        default=False,
    )


class Interrupt(OfNotebook, name="interrupt", group=KERNEL):
    """Interrupt the cell that runs; the kernel keeps its state."""


class Restart(OfNotebook, name="restart", runs_code=True, persons=True, group=KERNEL):
    """Start a fresh kernel: the state of the old one is lost."""


class Restore(OfNotebook, name="restore", runs_code=True, persons=True, group=KERNEL):
    """Run the cells that had ended well again, in a fresh kernel; exit 1 at the first that ends otherwise.

    For a kernel that died. The cell that ended it is left out.
    """


class Shutdown(
    OfNotebook,
    name="shutdown",
    group=KERNEL,
    examples=("shutdown", "shutdown analysis"),
):
    """End the kernel of NOTEBOOK; without one the daemon and all kernels of this project. Nothing else is touched."""


class Continue(
    Arguments,
    name="continue",
    persons=True,
    group=PERSONS,
    examples=("continue yes, drop them",),
):
    """Lift a stop; say where to go on. The agent reads ANSWER (`-`: from standard input)."""

    answer: str = word("", many=True, stdin=True)
    notebook: str | None = option(WHICH)


class Fix(
    Arguments,
    name="fix",
    persons=True,
    group=PERSONS,
    examples=("fix the dates are in UTC",),
):
    """Lift a stop and grant the failed step fresh retries; show what failed and what was tried.

    The agent reads HINT (`-`: from standard input).
    """

    hint: str = word("", many=True, stdin=True)
    notebook: str | None = option(WHICH)


class Skip(
    Arguments,
    name="skip",
    persons=True,
    group=PERSONS,
    examples=("skip the data are not there yet",),
):
    """Skip the step that failed, else the next one; REASON is kept (`-`: from standard input)."""

    reason: str = word("", many=True, stdin=True)
    notebook: str | None = option(WHICH)


class Doctor(Arguments, name="doctor", daemon=False, group=SETUP):
    """Check the installation: what is wrong and the command that mends it."""


class Trust(Arguments, name="trust", persons=True, daemon=False, group=SETUP):
    """Show what this checkout names to run (interpreter, environment, kernel backends), ask, and accept it."""

    yes: bool = option("Accept it without a question, as scripts must.", default=False)


class Mcp(
    Arguments,
    name="mcp",
    daemon=False,
    group=SETUP,
    examples=(
        "mcp",
        "mcp --config cursor",
        "mcp --config codex --install",
        "mcp --http 8777",
    ),
):
    """Serve other agents (Cursor, Codex, Gemini, VS Code …) by MCP, on standard input and output.

    Their clients start it: `--config CLIENT` prints the lines that have them do it, `--install` puts them there.
    """

    http: int | None = option(
        "Serve on this port of 127.0.0.1 instead, to whoever has the key that is printed."
    )
    config: str | None = option(
        "Print the lines for a client, and the file they belong in.", choice=CLIENTS
    )
    install: bool = option(
        "With --config: put them there; all else there is kept.", default=False
    )


class Statusline(Arguments, name="statusline", daemon=False, group=SETUP):
    """Print the line for Claude Code's status line: how far the notebook is, what runs, what the kernel holds.

    `install.sh --statusline` has Claude Code show it, below your own.
    """


class Look(Arguments, name="look", face="web"):
    """Tell those who look on what only the daemon knows. It counts as no use, starts nothing, changes nothing."""

    notebook: str = unshown("Which notebook.", default=MISSING)
    run: int = unshown("The run whose outputs were told last, 0 for none.", default=0)
    changes: int = unshown("How many of its changes were in them.", default=0)
    marks: bool = unshown("Whether stale cells are looked for.", default=False)


class Completion(
    Arguments,
    name="completion",
    daemon=False,
    group=SETUP,
    examples=(
        'completion zsh > "${fpath[1]}/_stepper"',
        "completion fish > ~/.config/fish/completions/stepper.fish",
    ),
):
    """Print what completes commands, options, notebooks and cells in bash, zsh or fish.

    bash: `stepper completion bash > ~/.local/share/bash-completion/completions/stepper`
    """

    shell: str = word(choice=("bash", "zsh", "fish"))


COMMANDS = {name: row for name, row in VERBS.items() if row.face == "shell"}
