"""Check whether code cells may be written and run now.

The `check_…` functions return None if the cells may be written or run. Otherwise, they
return the reason as a text for the agent. The PreToolUse hook calls these functions
before an edit. The PostToolUse hook calls them again after the edit, because an agent
can send several edits before the notebook stops.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepper.common.text import one_line
from stepper.policy import plan
from stepper.policy.commands.cli_commands import COMMANDS
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Cell, CellEdit, Consent, FileWrite, Limits, StepStatus
from stepper.policy.notebook_state import State

# The user's commands that resume a stopped notebook.
RESUME_COMMANDS = ("continue", "fix", "skip")
PLAN_MODE = "the client is in plan mode, in which nothing runs"
ASK = "`auto_run` is `ask` in .stepper/config.yaml"
PLAN_FIRST = (
    "no notebook was created: in plan mode nothing is written. Put the problem and its"
    " steps (TITLE :: CRITERION) into the plan that you present to the user. After the"
    " user has accepted the plan, `stepper new` creates the notebook"
)
# A call of stepper in a shell command, possibly with options and quotes before the name
# of the command. The pattern can match a text in only one way, so matching takes linear
# time.
CALL = r"\bstepper[\\'\")]*(?:\s+[\\'\"]*-\S*)*\s[\s\\'\")]*({})\b"
# The characters between the words of a name such as `plan reopen`.
WORD_GAP = r"[\s\\'\"]+"


def _compile_calls(names: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that matches calls of the commands with these names."""
    patterns = [WORD_GAP.join(name.split()) for name in names]
    return re.compile(CALL.format("|".join(patterns)))


NEW_COMMAND = _compile_calls(["new"])
USER_COMMANDS = _compile_calls(
    [name for name, command in COMMANDS.items() if command.needs_user]
)
RUN_COMMANDS = _compile_calls(
    [name for name, command in COMMANDS.items() if command.runs_code]
)


def check_approval(consent: Consent, limits: Limits) -> str | None:
    """Return why a cell must not run directly after an edit, or None if it may.

    `consent` is the permission mode of the client that edited the cell.
    """
    if consent is Consent.WITHHELD:
        return PLAN_MODE
    if limits.auto_run == "ask" and consent is Consent.ASKED:
        return f"{ASK}, and the client's permission mode asks before each edit"
    return None


def check_delegation(consent: Consent, limits: Limits) -> str | None:
    """Return why the user must be asked before code runs, or None.

    With `auto_run: ask`, stepper asks the user if the client decides on edits itself.
    """
    if limits.auto_run == "ask" and consent is Consent.DELEGATED:
        return ASK
    return None


def only_adds_text(state: State, change: CellEdit | FileWrite) -> bool:
    """Return whether an edit only adds a Markdown cell to a notebook with a plan."""
    if not isinstance(change, CellEdit) or not state.plan.steps:
        return False
    return change.mode == "insert" and change.cell_type == "markdown"


def check_stop(state: State) -> str | None:
    """Return a text on the stop of a notebook, or None if it is not stopped.

    The text says how to resume the notebook, and why it stopped.
    """
    if state.stop is None:
        return None
    error = one_line(state.stop.error, 300)
    return (
        f"execution of this notebook is stopped. {format_resume_hint(state)}."
        f" Cause: {error}"
    )


def format_resume_hint(state: State) -> str:
    """Return a sentence on how to resume a stopped notebook, without the period.

    The hint depends on whether the kernel died while no cell ran.
    """
    if is_stopped_by_idle_death(state):
        return format_restore_commands(state.commands)
    return format_resume_commands(state.commands)


def format_resume_commands(commands: CommandLines) -> str:
    """Return a sentence on how the user resumes a notebook, without the period."""
    slash_commands = [commands.slash(name) for name in RESUME_COMMANDS]
    shell_commands = [f"`{commands.terminal(name)}`" for name in RESUME_COMMANDS]
    return (
        f"To resume, the user types {join_alternatives(slash_commands)}"
        f" (in a terminal: {join_alternatives(shell_commands)})"
    )


def format_restore_commands(commands: CommandLines) -> str:
    """Return a sentence on how to continue after a kernel died, without the period.

    The sentence offers two commands: one rebuilds the variables, the other resumes the
    notebook without them.
    """
    restore_command = commands.shell("restore")
    continue_command = commands.terminal("continue")
    return (
        f"To rebuild its variables, run `{restore_command}`; to go on without them, the"
        f" user types {commands.slash('continue')} (in a terminal:"
        f" `{continue_command}`)"
    )


def join_alternatives(alternatives: Sequence[str]) -> str:
    """Join two or more alternatives, such as "a, b or c"."""
    return f"{', '.join(alternatives[:-1])} or {alternatives[-1]}"


def is_stopped_by_kernel_death(state: State) -> bool:
    """Return whether the notebook is stopped because its kernel died."""
    return state.stop is not None and state.stop.error.startswith("KernelDied")


def is_stopped_by_idle_death(state: State) -> bool:
    """Return whether the kernel of a stopped notebook died while no cell ran."""
    if state.stop is None or state.stop.key is not None:
        return False
    return is_stopped_by_kernel_death(state)


def restore_resumes(state: State, *, by_agent: bool) -> bool:
    """Return whether the command `restore` also resumes the stopped notebook.

    This requires that the notebook stopped because its kernel died. If the kernel died
    while a cell was running, only the user can resume the notebook with `restore`.
    """
    if by_agent:
        return is_stopped_by_idle_death(state)
    return is_stopped_by_kernel_death(state)


def check_failed_step(state: State, cells: Sequence[Cell], index: int) -> str | None:
    """Return why no code cell can be added at an index, or None if one can.

    No code cell can be added below the failed cell of the open step. `index` counts all
    cells, from 0.
    """
    step = state.find_open_step(StepStatus.CRITERION_FALSE)
    if step is None:
        return None
    failed_cell = plan.find_failed_cell(state, cells, step.id)
    if failed_cell is None or index <= failed_cell.index:
        return None
    position = state.plan.get_position(step.id)
    title = one_line(step.title, 120)
    return (
        f'{failed_cell.label} of step {position} "{title}" failed and is not fixed: no'
        f" code cell can be added below it. Replace that cell (edit_mode replace,"
        f" cell_id {one_line(failed_cell.id, 100)}) or delete it; a helper cell can be"
        " added above it"
    )


def check_cell_count(cells: Sequence[Cell], limits: Limits) -> str | None:
    """Return a reason if a notebook has more code cells than `max_cells`, or None."""
    count = sum(cell.is_code for cell in cells)
    if count <= limits.max_cells:
        return None
    return (
        f"{count} code cells exceed the limit of {limits.max_cells}"
        " (`max_cells` in .stepper/config.yaml)"
    )


def find_user_command(shell_command: str) -> str | None:
    """Return the name of the first stepper command that needs the user, or None.

    `shell_command` is a shell command of an agent, which may call stepper.
    """
    return _find_call(USER_COMMANDS, shell_command)


def find_code_running_command(shell_command: str) -> str | None:
    """Return the name of the first stepper command that runs code, or None.

    `shell_command` is a shell command of an agent, which may call stepper.
    """
    return _find_call(RUN_COMMANDS, shell_command)


def _find_call(calls: re.Pattern[str], shell_command: str) -> str | None:
    """Return the name of the first command that a shell command calls, or None."""
    match = calls.search(shell_command)
    if match is None:
        return None
    words = re.findall(r"\w+", match[1])
    return " ".join(words)
