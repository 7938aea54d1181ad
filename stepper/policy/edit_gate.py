"""Which code cells may be written and run now: each function returns why not, for the agent to read, or None.

`PreToolUse` asks before an edit, `PostToolUse` again: after a stop the remaining calls of a message still come.
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

RESUME_COMMANDS = (
    "continue",
    "fix",
    "skip",
)  # the commands that resume a stopped notebook
PLAN_MODE = "the client is in plan mode, in which nothing runs"
ASK = "`auto_run` is `ask` in .stepper/config.yaml"
# A call of a command. Each option is found in one way only: the time is linear.
CALL = r"\bstepper[\\'\")]*(?:\s+[\\'\"]*-\S*)*\s[\s\\'\")]*({})\b"
USER_COMMANDS = re.compile(
    CALL.format("|".join(name for name, row in COMMANDS.items() if row.needs_user))
)
NEW_COMMAND = re.compile(CALL.format("new"))
PLAN_FIRST = (
    "no notebook was made: in plan mode nothing is written. The problem and its steps (TITLE :: CRITERION) belong into"
    " the plan that the person is shown; `stepper new` makes the notebook once that is accepted"
)
RUN_COMMANDS = re.compile(
    CALL.format("|".join(name for name, row in COMMANDS.items() if row.runs_code))
)


def check_approval(consent: Consent, limits: Limits) -> str | None:
    """Return why a cell that was just written waits for a command, as the client's mode and `auto_run` have it."""
    if consent is Consent.WITHHELD:
        return PLAN_MODE
    if limits.auto_run == "ask" and consent is Consent.ASKED:
        return f"{ASK}, and the client's mode does not accept edits by itself"
    return None


def check_delegation(consent: Consent, limits: Limits) -> str | None:
    """Return why the person is to be asked before what runs code: nobody else would be in the client's mode."""
    return ASK if limits.auto_run == "ask" and consent is Consent.DELEGATED else None


def only_adds_text(state: State, change: CellEdit | FileWrite) -> bool:
    """Whether an edit puts a new text cell into a notebook with a plan: it runs nothing and takes nothing away."""
    text = (
        isinstance(change, CellEdit)
        and change.mode == "insert"
        and change.cell_type == "markdown"
    )
    return text and bool(state.plan.steps)


def check_stop(state: State) -> str | None:
    """Return why no code cell runs while the notebook is stopped: first how it is resumed, then the cause."""
    if state.stop is None:
        return None
    error = one_line(state.stop.error, 300)
    return f"execution of this notebook is stopped. {format_way_out(state)}. Cause: {error}"


def format_way_out(state: State) -> str:
    """Return how a stopped notebook goes on, as a sentence without its period."""
    if is_stopped_by_idle_death(state):
        return format_restore_commands(state.commands)
    return format_resume_commands(state.commands)


def format_resume_commands(commands: CommandLines) -> str:
    """Return how the user resumes a stopped notebook, as a sentence without its period."""
    typed = [commands.slash(name) for name in RESUME_COMMANDS]
    in_terminal = [f"`{commands.terminal(name)}`" for name in RESUME_COMMANDS]
    return f"To resume, the user types {join_alternatives(typed)} (in a terminal: {join_alternatives(in_terminal)})"


def format_restore_commands(commands: CommandLines) -> str:
    """Return how the variables of a dead kernel come back, or how the user goes on without them."""
    restore, go_on = commands.shell("restore"), commands.terminal("continue")
    return (
        f"To rebuild its variables, run `{restore}`; to go on without them, the user types"
        f" {commands.slash('continue')} (in a terminal: `{go_on}`)"
    )


def join_alternatives(ways: Sequence[str]) -> str:
    """Return alternatives as words: `a, b or c`."""
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def is_stopped_by_kernel_death(state: State) -> bool:
    """Whether the notebook is stopped because its kernel died."""
    return state.stop is not None and state.stop.error.startswith("KernelDied")


def is_stopped_by_idle_death(state: State) -> bool:
    """Whether the notebook is stopped because its kernel died while no cell ran."""
    return (
        is_stopped_by_kernel_death(state)
        and state.stop is not None
        and state.stop.key is None
    )


def restore_resumes(state: State, by_agent: bool) -> bool:
    """Whether a restore lifts the stop: only a kernel's death, and for an agent only one that no cell caused."""
    return (
        is_stopped_by_idle_death(state)
        if by_agent
        else is_stopped_by_kernel_death(state)
    )


def check_failed_step(state: State, cells: Sequence[Cell], index: int) -> str | None:
    """Return why a new code cell that would stand at `index` must wait: a failed cell above it is not fixed."""
    number = state.find_open_step(StepStatus.CRITERION_FALSE)
    failed = plan.find_failed_cell(state, cells, number) if number is not None else None
    if failed is None or index <= failed.index:
        return None
    step = state.plan.find_step(number)
    title = (
        f'step {state.plan.position_of(step.id)} "{one_line(step.title, 120)}"'
        if step
        else "its step"
    )
    return (
        f"{failed.label} of {title} failed and is not fixed: no new code cell below it. Replace that cell"
        f" (edit_mode replace, cell_id {one_line(failed.id, 100)}) or delete it; a helper cell goes above it"
    )


def check_cell_count(cells: Sequence[Cell], limits: Limits) -> str | None:
    """Return why there is no room for the code cells as they stand."""
    count, most = sum(cell.is_code for cell in cells), limits.max_cells
    told = f"{count} code cells are more than the limit of {most} (max_cells in .stepper/config.yaml)"
    return told if count > most else None


def find_user_command(command: str) -> str | None:
    """Return the person's command that a shell command holds, or None."""
    found = USER_COMMANDS.search(command)
    return found[1] if found else None


def find_running_command(command: str) -> str | None:
    """Return the command that a shell command holds and that runs cells or code, or None."""
    found = RUN_COMMANDS.search(command)
    return found[1] if found else None
