"""Responses to commands, and the context at the start of a session.

The responses show the plan, the next step, the reason for a stop and how to resume.
Text from a notebook or a user is shortened to one line or quoted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stepper.common.text import clean, format_count, one_line
from stepper.messages import stop_suggestion
from stepper.messages.marks import FAILED_MARK, STOP_SIGN, get_run_mark
from stepper.messages.quoted_output import (
    format_estimate,
    format_span,
    quote,
    quote_message,
)
from stepper.messages.run_report import (
    Report,
    capitalize_first,
    format_left_out,
    format_seconds,
    format_step,
    limit_report,
)
from stepper.messages.status_text import format_step as format_plan_step
from stepper.messages.status_text import get_outcome_name
from stepper.policy import edit_gate, error_classification, run_decisions
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.journal_events import Stopped
from stepper.policy.model import Cell, Key, Outcome, Run, StepStatus, Verdict
from stepper.policy.namespace_model import Namespace, Variable
from stepper.policy.notebook_state import STALE, LateOutputSummary, OpenCell, State

# Why the next step must run again although its cell ran before.
RERUN_REASONS = {
    StepStatus.FAILED: " (its cell failed)",
    StepStatus.INTERRUPTED: " (its cell was interrupted)",
    StepStatus.CHANGED: " (its cell was changed and has not run)",
    StepStatus.CRITERION_FALSE: (
        " (its criterion is false: replace its cell, or run `{confirm}`)"
    ),
}
OPEN_CELL_PREDICATES = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "changed": "has changed since it ran",
    "pending": "has not run",
    "stale": "is stale",
    "hidden state": (
        "used hidden state (not the value of the nearest cell above that defines the"
        " name)"
    ),
}
RESUME_ARGUMENTS = {"continue": "ANSWER", "fix": "HINT", "skip": "REASON"}
RESUME_EFFECTS = {
    "restore": "re-runs the cells that succeeded, in a new kernel",
    "continue": "resumes the notebook (in Claude Code: {})",
    "fix": "resumes the notebook, with new retries for the failed step ({})",
    "skip": "resumes the notebook and skips the step ({})",
}
MAX_NAMES = 40  # of each kind, in a context
MAX_OPEN_CELLS = 5  # in one line
MAX_RUNS = 6  # in the response of `fix`
ANSWER_LIMIT = 2000  # characters of a user's message
SOURCE_LIMIT = 2500  # characters of a failed cell's source
MIN_COMMAND_WIDTH = 28  # columns of the commands, before their effects
LARGE_BYTES = 100_000  # smaller variables are not named
MAX_LARGE = 3


@dataclass(frozen=True)
class ResumeCommand:
    """A command that resumes a stopped notebook.

    `argument` is the placeholder of its optional argument, or an empty string if the
    command takes no argument. `effect` says what the command does.
    """

    command: str
    argument: str
    effect: str

    @property
    def line(self) -> str:
        """The command with its argument."""
        if self.argument:
            return f"{self.command} [{self.argument}]"
        return self.command


def list_resume_commands(state: State) -> list[ResumeCommand]:
    """Return the commands that resume a notebook, as they are typed in a terminal.

    `restore` is only listed if variables were lost.
    """
    commands = []
    for name, template in RESUME_EFFECTS.items():
        if name == "restore" and not state.lost_reason:
            continue
        command = state.commands.terminal(name)
        effect = template.format(state.commands.slash(name))
        commands.append(ResumeCommand(command, RESUME_ARGUMENTS.get(name, ""), effect))
    return commands


def format_plan(state: State) -> list[str]:
    """Return the plan, one line for each step."""
    lines = []
    for step in state.plan.steps:
        progress = state.get_progress(step.id)
        document = {
            **vars(step),
            "kind": step.kind.value,
            "status": state.get_step_status(step.id).value,
            "retries": progress.retries,
            "reason": progress.reason,
        }
        lines.append(format_plan_step(document))
    return lines


def format_open_cells(state: State) -> str:
    """Return the sentences on open cells, or an empty string if there are none.

    Cells outside the plan come last.
    """
    plan_cells = [cell for cell in state.open_cells if cell.is_planned]
    other_cells = [cell for cell in state.open_cells if not cell.is_planned]
    sentences = []
    if plan_cells:
        sentences.append(f"{capitalize_first(_format_cell_clauses(plan_cells))}.")
    if other_cells:
        sentences.append(f"Outside the plan: {_format_cell_clauses(other_cells)}.")
    stale_count = sum(cell.status == STALE for cell in state.open_cells)
    if stale_count:
        target = "it" if stale_count == 1 else "them"
        command = state.commands.shell("run --stale")
        sentences.append(f"To run {target}: `{command}`.")
    return " ".join(sentences)


def _format_cell_clauses(cells: Sequence[OpenCell]) -> str:
    """Return clauses on open cells as text; at most MAX_OPEN_CELLS are named."""
    clauses = [
        f"cell {cell.number} (id {one_line(cell.cell_id, 100)})"
        f" {OPEN_CELL_PREDICATES[cell.status]}"
        for cell in cells[:MAX_OPEN_CELLS]
    ]
    hidden_count = len(cells) - MAX_OPEN_CELLS
    if hidden_count > 0:
        clauses.append(f"and {format_count(hidden_count, 'more cell')}")
    return "; ".join(clauses)


def format_next(state: State) -> str:
    """Return the line on the next step.

    If no step is left or there is no plan, the line says so. If no step is left, the
    line also names the open cells.
    """
    if not state.plan.steps:
        return "There is no plan; add the next cell at the end."
    if not state.open_steps:
        open_cells = format_open_cells(state)
        return " ".join(filter(None, ["No step of the plan is left.", open_cells]))
    step = state.open_steps[0]
    confirm = state.commands.shell("confirm", '"REASON"')
    reason = RERUN_REASONS.get(state.get_step_status(step.id), "").format(
        confirm=confirm
    )
    criterion = ""
    if step.criterion:
        criterion = f"; criterion: {one_line(step.criterion, 200)}"
    return f"Next: {format_step(state.plan, step)}{reason}{criterion}."


def _format_names(namespace: Namespace) -> list[str]:
    """Return the names in the kernel, one line for each kind that has names."""
    modules = [
        alias if alias == name else f"{alias} ({name})"
        for alias, name in namespace.modules.items()
    ]
    functions = [
        f"{name}{signature}" for name, signature in namespace.functions.items()
    ]
    variables = [
        f"{name}: {describe_variable(variable)}"
        for name, variable in namespace.variables.items()
    ]
    rows = {
        "Modules": modules,
        "Functions": functions,
        "Classes": namespace.classes,
        "Variables": variables,
    }
    return [f"{title}: {_join_names(names)}" for title, names in rows.items() if names]


def describe_variable(variable: Variable) -> str:
    """Return a variable's type with its shape or length."""
    type_name = variable.type.rsplit(".", 1)[-1]
    if variable.shape is not None:
        return f"{type_name} {' × '.join(map(str, variable.shape))}".strip()
    if variable.len is None:
        return type_name
    return f"{type_name} of {variable.len}"


def format_largest(before: Namespace, after: Namespace) -> list[str]:
    """Return a list with a clause on the largest variables, or an empty list.

    `before` and `after` are the names in the kernel before and after a run. `after` is
    false if the kernel could not report its names; then the clause uses `before`.
    Variables with less than LARGE_BYTES are not listed.
    """
    namespace = after or before
    sizes = {name: variable.bytes for name, variable in namespace.variables.items()}
    by_size = sorted(sizes, key=lambda name: (-sizes[name], name))
    large_names = [name for name in by_size if sizes[name] >= LARGE_BYTES][:MAX_LARGE]
    if not large_names:
        return []
    entries = []
    for name in large_names:
        growth = ""
        if after:
            growth = _format_growth(name, before, after)
        entries.append(f"{one_line(name, 60)} {_format_megabytes(sizes[name])}{growth}")
    when = "after this run" if after else "as last seen before this run"
    return [f"the largest variables {when}: {', '.join(entries)}"]


def _format_growth(name: str, before: Namespace, after: Namespace) -> str:
    """Return a note on a new variable or on the former size, or an empty string.

    There is no note if `before` is unknown (false) or the size changed by less than
    LARGE_BYTES.
    """
    if not before:
        return ""
    if name not in before.variables:
        return " (new)"
    former = before.variables[name].bytes
    if abs(after.variables[name].bytes - former) < LARGE_BYTES:
        return ""
    return f" ({_format_megabytes(former)} before)"


def _format_megabytes(size: int) -> str:
    """Return a number of bytes in MB, such as `1,200.0 MB`."""
    return f"{size / 1e6:,.1f} MB"


def _join_names(names: Sequence[str]) -> str:
    """Return the first MAX_NAMES names, and the number of the others."""
    shown = ", ".join(one_line(name, 120) for name in names[:MAX_NAMES])
    hidden_count = len(names) - MAX_NAMES
    if hidden_count > 0:
        return f"{shown} and {hidden_count} more"
    return shown


def format_context(
    name: str,
    state: State,
    namespace: Namespace,
    *,
    is_alive: bool,
    has_seen_notebook: bool = False,
) -> str:
    """Return the context that an agent needs to continue with a notebook.

    `is_alive` says whether the notebook's kernel is running. If `has_seen_notebook` is
    true, the context names the command that shows the plan, instead of the plan.
    """
    status = f"in progress ({state.status_name})"
    if state.is_complete and not state.stop:
        status = "complete"
    lines = [f"stepper: the notebook {one_line(name)} is {status}."]
    if not has_seen_notebook:
        lines += format_plan(state)
    stop = edit_gate.check_stop(state)
    if stop:
        lines.append(f"As of this message, {stop}")
    lines.append(format_next(state))
    if is_alive:
        names = _format_names(namespace)
        if names:
            lines += ["The kernel is running and has these names:", *names]
        else:
            lines.append("The kernel is running.")
    else:
        lines.append("The kernel is not running: there are no variables.")
    lines.append(
        "Add new cells to this notebook, unless the user asks for another one."
        " NotebookEdit requires a Read of the notebook in this session first."
    )
    if has_seen_notebook:
        show = state.commands.shell("show")
        lines.append(f"To see the plan, the cells and their outputs, run: {show}")
    return "\n".join(lines)


def format_rebuild(state: State) -> str:
    """Return a clause on the lost variables: their origin and the `restore` command.

    Return an empty string if no cell succeeded in this kernel.
    """
    if not state.succeeded_sources:
        return ""
    steps = [
        str(step.id)
        for step in state.plan.steps
        if state.get_progress(step.id).cell_id in state.succeeded_sources
    ]
    parts = []
    if steps:
        noun = "steps" if len(steps) > 1 else "step"
        parts.append(f"{noun} {', '.join(steps)}")
    outside_count = len(state.succeeded_sources) - len(steps)
    if outside_count:
        suffix = " outside the plan" if steps else ""
        parts.append(f"{format_count(outside_count, 'cell')}{suffix}")
    restore = state.commands.shell("restore")
    return (
        f"they came from {' and '.join(parts)}; `{restore}` re-creates them in a new"
        " kernel"
    )


class DeathStop(NamedTuple):
    """The error and the text of a stop after the kernel died."""

    error: str
    text: str


def format_death_stop(
    reason: str, rebuild: str, stderr: str, commands: CommandLines
) -> DeathStop:
    """Return the texts on a stop because the kernel died while no cell was running.

    `reason` says how the kernel died, `rebuild` is the clause from `format_rebuild`,
    which must not be empty, and `stderr` is the end of the kernel's error output.
    """
    message = f"{reason}: all variables are lost; {rebuild}"
    error_output = stderr.strip()
    if error_output:
        last_line = one_line(error_output.splitlines()[-1], 200)
        message += f"; the kernel's last message: {last_line}"
    message = one_line(message)
    restore = commands.terminal("restore")
    resume = commands.slash("continue")
    block = "\n".join(
        [
            f"{STOP_SIGN} Execution stopped: the kernel died",
            "Error Type: KernelDied",
            f"Error Message: {message}",
            f"Suggestion: `{restore}` re-runs the cells that succeeded, in a new"
            f" kernel; then {resume} resumes the notebook",
        ]
    )
    return DeathStop(f"KernelDied: {message}", block)


class StopTexts(NamedTuple):
    """The texts on a stop.

    `question` is the agent's question to the user, or None if the agent asked nothing.
    `commands` are the commands that resume the notebook, `text` is the whole text.
    """

    question: str | None
    commands: list[str]
    text: str


def _find_last_run(state: State, key: Key | None) -> Run | None:
    """Return the last run of a step or cell, or None if it has not run."""
    for run in reversed(state.runs):
        if run.key == key:
            return run
    return None


def _format_cell_name(run: Run) -> str:
    """Return the number and id of a run's cell; `?` stands for an unknown number."""
    return f"cell {run.number or '?'} (id {one_line(run.cell_id, 100)})"


def format_stop(state: State, stop: Stopped) -> StopTexts:
    """Return the texts on a stop: the cell, the error and the commands to resume."""
    question = error_classification.extract_question(stop.error)
    run = _find_last_run(state, stop.key)
    position = ""
    if run:
        position = f" at {_format_cell_name(run)}"
    lines = [f"Stopped{position}: {one_line(stop.error)}"]
    if question:
        lines.append(f"The agent asks: {one_line(question)}")
    if run:
        suggestion = stop_suggestion.suggest_action(
            run.outcome, run.verdict, run.fault, commands=state.commands
        )
        lines.append(f"Suggestion: {one_line(suggestion)}")
    commands = list_resume_commands(state)
    width = max(len(command.line) + 2 for command in commands)
    width = max(width, MIN_COMMAND_WIDTH)
    lines.append("To resume:")
    lines += [f"  {command.line:<{width}}{command.effect}" for command in commands]
    command_lines = [command.line for command in commands]
    return StopTexts(question or None, command_lines, "\n".join(lines))


def format_journaled_run(run: Run, text: str | None, stop: Stopped | None) -> Report:
    """Return the report on a run that the journal contains.

    `text` is the recorded report, or None if the daemon exited before the report was
    recorded. `stop` is the notebook's current stop.
    """
    is_fine = run.verdict is Verdict.FINE
    result = get_outcome_name(run.outcome)
    if run.fault:
        result = f"{run.fault.ename}: {run.fault.evalue}"
    mark = get_run_mark(run.outcome, is_fine)
    line = one_line(f"{mark} run {run.run} · {result}", 200)
    if text is None:
        text = (
            f"stepper: run {run.run} of {_format_cell_name(run)} has finished:"
            f" {one_line(result)}. The daemon exited before it recorded the full"
            " report; the outputs are in the notebook."
        )
    block = ""
    if stop and not is_fine:
        block = clean(stop.block)
    return Report(limit_report(clean(text)), line, block, ok=is_fine)


def format_undelivered(name: str, text: str) -> str:
    """Return the late report on an edit whose report was not delivered.

    This happens if the user presses Esc while the cell runs. `text` is the report.
    """
    return (
        f"stepper: an edit of {one_line(name)} WAS applied, even if the client reported"
        " a rejection: the cell is in the notebook. To change the cell, replace it"
        f" instead of inserting another cell. Result:\n{text}"
    )


def format_undelivered_line(name: str, line: str) -> str:
    """Return the user's line on an edit whose report was not delivered.

    `line` is the user's line of the report, or an empty string.
    """
    text = (
        f"stepper: the last edit of {one_line(name, 200)} was applied, even if it is"
        " shown as rejected"
    )
    return f"{text}: {line}" if line else text


def format_render_hint(commands: CommandLines, number: int) -> str:
    """Return the hint on the command that renders a plotly figure.

    A run does not render plotly figures, because rendering takes seconds. `number` is
    the number of the cell.
    """
    command = commands.shell("output", f"{number} --figure")
    return (
        "To render the plotly figure as PNG (needs kaleido, takes seconds), run:"
        f" {command}"
    )


def format_uncovered(name: str, setting: str, renamed: str = "") -> Report:
    """Return the report on an edit of a notebook that `notebooks:` does not include.

    `setting` is the configuration line that would include the notebook, or an empty
    string if no pattern can include it. `renamed` is the message on a notebook that
    looks renamed, or an empty string.
    """
    reason = (
        f"{one_line(name, 200)} does not match `notebooks:` in .stepper/config.yaml"
    )
    user_advice = "no pattern can include a notebook in this folder"
    agent_advice = "No pattern can include a notebook in this folder"
    if setting:
        shown_setting = one_line(setting)
        user_advice = f"to include the notebook, set: {shown_setting}"
        agent_advice = f"To include the notebook, the user can set: {shown_setting}"
    text = (
        "stepper: the cell was NOT run, and outputs may be stale:"
        f" {reason}. {agent_advice}"
    )
    line = f"{FAILED_MARK} cell not run: {reason}; {user_advice}"
    if renamed:
        text += f". {renamed}"
        line += f". {renamed}"
    return Report(limit_report(text), line)


def format_still_uncovered(name: str) -> Report:
    """Return the short report on later edits of a notebook that is not included."""
    text = (
        f"the cell was NOT run: {one_line(name, 200)} does not match `notebooks:` in"
        " .stepper/config.yaml"
    )
    return Report(f"stepper: {text}", f"{FAILED_MARK} {text}")


def format_walltime_note(
    timeout: float, where: str, left_seconds: float | None
) -> list[str]:
    """Return a list with the note that a cell may outlast its kernel's job.

    `timeout` is the cell's deadline, `left_seconds` the remaining walltime of the job
    at the start of the cell, both in seconds. `left_seconds` is None if there is no
    walltime. The list is empty if the walltime is long enough. `where` describes the
    job.
    """
    if left_seconds is None or timeout <= left_seconds:
        return []
    return [
        f"the cell's deadline ({format_span(timeout)}) is beyond the walltime of"
        f" {one_line(where, 200)} ({format_estimate(left_seconds)} left when the cell"
        " started): the kernel and its variables are lost at the end of the walltime"
    ]


def format_waits_for_user(reason: str, command: str) -> Report:
    """Return the report on a cell that runs only after the user's command."""
    text = (
        f"stepper: the cell was NOT run: {quote_message(reason)}\n"
        "To run it and all other cells that have not run, the user can run:"
        f" {one_line(command)}"
    )
    line = (
        f"{FAILED_MARK} cell not run: {one_line(reason, 160)}; to run it:"
        f" {one_line(command)}"
    )
    return Report(limit_report(text), line, ok=False)


def format_disconnected(label: str, trouble: str) -> str:
    """Return the message on a cell with an unknown result.

    The kernel was unreachable until the cell's deadline, or did not reply when it could
    be reached again; `trouble` says why.
    """
    return (
        f"{label} was sent to its kernel and may still be running or have finished:"
        f" {trouble}. As soon as the kernel can be reached, stepper asks the kernel for"
        " the result and reports the result. Until then, no other cell of the notebook"
        " runs"
    )


def format_failing(state: State) -> str:
    """Return a sentence on the last failure in a notebook without a plan."""
    run = _find_last_run(state, state.last_key)
    if run is None:
        return "The preflight check found an error in the last cell."
    return f"{capitalize_first(_format_cell_name(run))} failed with {run.error}."


def format_continue(
    name: str,
    state: State,
    namespace: Namespace,
    is_alive: bool,
    stop: Stopped | None,
    answer: str = "",
) -> str:
    """Return the response of `continue`, with the user's answer and the context.

    `stop` is the stop that the command cleared, or None.
    """
    result = "The notebook is resumed." if stop else "The notebook was not stopped."
    lines = [f"{result} Continue.", *format_answer(stop, answer)]
    lines.append(format_context(name, state, namespace, is_alive=is_alive))
    return "\n".join(lines)


def format_answer(stop: Stopped | None, answer: str) -> list[str]:
    """Return a list with the line on the user's message, or an empty list.

    The list is empty if `answer` is blank.
    """
    text = " ".join(clean(answer).split())[:ANSWER_LIMIT]
    if not text:
        return []
    question = ""
    if stop:
        question = error_classification.extract_question(stop.error)
    if question:
        return [f'The user\'s answer to "{question}": {text}']
    return [f"The user's hint: {text}"]


def format_from_terminal(
    name: str, command: str, stop: Stopped | None, message: str
) -> str:
    """Return the text for the agent on a command that the user ran in a terminal."""
    effect = ", which resumed the stopped notebook" if stop else ""
    headline = (
        f"stepper: the user ran `stepper {command}` for {one_line(name)} in a"
        f" terminal{effect}."
    )
    return "\n".join([headline, *format_answer(stop, message)])


def format_command_line(name: str, command: str, response: str) -> str:
    """Return the user's line on a command typed in Claude Code.

    `response` is the response for the agent; the user's line contains only the first
    line of this response.
    """
    first_line = response.removeprefix("stepper: ").split("\n", 1)[0]
    notebook = "" if name in first_line else f" ({one_line(name, 200)})"
    return f"stepper {command}: {one_line(first_line, 300)}{notebook}"


def format_still_stopped(name: str, state: State) -> str:
    """Return a message on a `restore` that did not resume the stopped notebook."""
    error = ""
    if state.stop:
        error = one_line(state.stop.error, 300)
    return (
        f"stepper: the variables of {one_line(name)} are restored, and the notebook is"
        f" still stopped ({error}): `restore` does not resume this notebook."
        f" {edit_gate.format_resume_commands(state.commands)}"
    )


def format_agent_stopped(name: str, state: State) -> str:
    """Return a message on a run from a terminal in a stopped notebook.

    The text is an empty string if the notebook is not stopped.
    """
    if state.stop is None:
        return ""
    error = one_line(state.stop.error, 300)
    return (
        f"{one_line(name)} is stopped ({error}). This run does not count as an attempt"
        " and does not resume the notebook."
        f" {edit_gate.format_resume_commands(state.commands)}"
    )


def format_ambiguous_resume(
    stopped_notebooks: Sequence[tuple[str, Stopped | None]], command: str
) -> str:
    """Return the error for a command that does not name one of the stopped notebooks.

    `stopped_notebooks` are the names and stops of at least two notebooks.
    """
    names = []
    for name, stop in stopped_notebooks:
        error = one_line(stop.error, 100) if stop else ""
        names.append(f"{one_line(name)} ({error})")
    return (
        f"no notebook was resumed: `{command}` does not name a notebook, and"
        f" {len(stopped_notebooks)} notebooks are stopped: {', '.join(names[:-1])} and"
        f" {names[-1]}"
    )


def format_stopped_line(name: str, state: State) -> str:
    """Return the user's line on a stop at the start of a session.

    The line is an empty string if the notebook is not stopped.
    """
    if state.stop is None:
        return ""
    hint = edit_gate.format_resume_hint(state).replace("the user types", "type")
    cause = one_line(state.stop.error, 300)
    return f"stepper: {one_line(name, 200)} is stopped. {hint}. Cause: {cause}"


def format_prompt_while_stopped(name: str, stop: Stopped, state: State) -> str:
    """Return the text for the agent after a prompt that did not resume the notebook."""
    commands = state.commands
    reason = one_line(stop.error, 300)
    question = error_classification.extract_question(stop.error)
    if question:
        reason = f'you asked "{question}"'
    headline = (
        f"stepper: {one_line(name)} is stopped ({reason}), and its code cells do not"
        " run."
    )
    if edit_gate.is_stopped_by_idle_death(state):
        return (
            f"{headline} The user's message does not resume the notebook."
            f" {edit_gate.format_restore_commands(commands)}."
        )
    if stop.key is None:
        command = commands.slash("continue")
    elif question:
        command = commands.slash("continue", "ANSWER")
    else:
        command = commands.slash("fix", "HINT")
    return (
        f"{headline} The user's message does not resume the notebook, and you can't"
        f" resume it yourself. Ask the user to type: `{command}`."
    )


def format_fix(
    name: str, state: State, key: Key | None, cell: Cell | None, retries: int
) -> str:
    """Return the response of `fix`: the failed cell and its failed runs.

    Interrupted runs count as failed runs. `key` identifies the failed step or cell;
    None means that nothing failed. `cell` is None if the failed cell was deleted.
    `retries` is the number of granted retries.
    """
    if key is None:
        return f"stepper: no cell of {one_line(name)} has failed. {format_next(state)}"
    target = _format_target(state, key)
    noun = "new retry" if retries == 1 else "new retries"
    lines = [f"stepper: {retries} {noun} for {target} in {one_line(name)}."]
    failed_runs = [
        run for run in state.runs if run.key == key and run.verdict is not Verdict.FINE
    ]
    if failed_runs:
        lines.append("Failed runs:")
        for run in failed_runs[-MAX_RUNS:]:
            lines.append(f"  run {run.run}: {_format_failure(run)}")
    if cell is None:
        lines.append(
            "The failed cell was deleted: the next new code cell is the next attempt."
        )
        return "\n".join(lines)
    lines.append(f"The current source of {cell.label}:")
    lines.append(quote(cell.source, SOURCE_LIMIT))
    action = "Replace this cell"
    if failed_runs and error_classification.is_external_death(failed_runs[-1].fault):
        action = (
            "This cell did not cause the kernel's death: replace it, even with the same"
            " source, and it runs again"
        )
    lines.append(f"{action} (cell_id {one_line(cell.id, 100)}).")
    return "\n".join(lines)


def format_skip(name: str, state: State, key: Key | None, reason: str) -> str:
    """Return the response of `skip`: the skipped step or cell, and the next step.

    `key` identifies the skipped step or cell; None means that nothing was skipped.
    """
    if key is None:
        return f"stepper: there is nothing to skip in {one_line(name)}."
    reason_note = ""
    if reason:
        reason_note = f" ({one_line(reason, 200)})"
    target = _format_target(state, key)
    return (
        f"stepper: {target} in {one_line(name)} is skipped{reason_note}."
        f" {format_next(state)}"
    )


def format_reopen(name: str, state: State, key: Key) -> str:
    """Return the response of `continue` on a skipped step or cell."""
    target = _format_target(state, key)
    return f"stepper: {target} in {one_line(name)} is open again. {format_next(state)}"


def format_confirm(name: str, state: State, key: Key, reason: str) -> str:
    """Return the response of `confirm`: the step, the reason, and the next step."""
    target = _format_target(state, key)
    return (
        f"stepper: {target} in {one_line(name)} is done ({one_line(reason, 200)})."
        f" {format_next(state)}"
    )


def _format_failure(run: Run) -> str:
    """Return the error of a failed run, or the name of its outcome."""
    if run.outcome is Outcome.KERNEL_DIED:
        # The variables may have been restored since: leave that part out.
        error: str = run.error.partition(run_decisions.VARIABLES_LOST)[0]
        return error
    if run.outcome is Outcome.ERROR and run.fault:
        return run.error
    return get_outcome_name(run.outcome)


def _format_target(state: State, key: Key) -> str:
    """Return the name of a step or cell for a message."""
    step = None
    if isinstance(key, int):
        step = state.plan.find_step(key)
    if step is None:
        return f"cell {one_line(str(key), 100)}"
    return format_step(state.plan, step)


def format_completion(
    name: str, state: State, figures: int, order: str = "", verifies: bool = False
) -> list[str]:
    """Return the lines at the end of the report on the run that completed a notebook.

    `figures` is the number of figures in the notebook. `order` is the text from
    `stale_cells.format_order`, or an empty string. `verifies` says whether a replay
    starts now.
    """
    verify = CommandLines(name).shell("verify")
    replay = (
        "To replay it in a new kernel and see whether the results reproduce, run:"
        f" `{verify}`"
    )
    if verifies:
        replay = (
            "stepper replays it in a new kernel now (verify: auto). The next prompt"
            " shows whether the results reproduce."
        )
    statuses = [state.get_progress(step.id).status for step in state.plan.steps]
    done_steps = format_count(statuses.count(StepStatus.DONE), "step")
    skipped_count = statuses.count(StepStatus.SKIPPED)
    runs = format_count(len(state.runs), "run")
    retries = _format_retries(state)
    duration = format_seconds(state.run_seconds)
    lines = [
        f"The notebook is complete: {done_steps} done, {skipped_count} skipped;"
        f" {runs}, {retries}, {duration} in total; {format_count(figures, 'figure')}.",
        f"Notebook: {one_line(name)}.",
    ]
    if order:
        lines.append(order)
    return [*lines, replay]


def _format_retries(state: State) -> str:
    """Return the number of retries of all steps as text."""
    retries = sum(state.get_progress(step.id).retries for step in state.plan.steps)
    if retries == 1:
        return "1 retry"
    return f"{retries} retries"


def format_completion_line(state: State) -> str:
    """Return a short text on the completion, for the user's line."""
    statuses = [state.get_progress(step.id).status for step in state.plan.steps]
    skipped_count = statuses.count(StepStatus.SKIPPED)
    parts = [format_count(len(statuses), "step")]
    if skipped_count:
        parts = [f"{len(statuses) - skipped_count} done", f"{skipped_count} skipped"]
    parts += [_format_retries(state), format_seconds(state.run_seconds)]
    return f"notebook complete: {', '.join(parts)}"


def format_late_outputs(state: State, cells: Sequence[Cell]) -> list[str]:
    """Return a clause for each cell with late outputs.

    Late outputs arrived after the cell's run. `cells` are the cells of the notebook.
    """
    labels = {cell.id: cell.label for cell in cells}
    clauses = []
    for cell_id, outputs in state.late_outputs.items():
        label = labels.get(cell_id, f"a deleted cell (id {one_line(cell_id, 100)})")
        clauses.append(_format_late_output(label, outputs))
    return clauses


def _format_late_output(label: str, outputs: LateOutputSummary) -> str:
    """Return the clause on the late outputs of the cell that `label` names."""
    parts = []
    if outputs.characters:
        parts.append(format_count(outputs.characters, "character"))
    if outputs.outputs:
        parts.append(format_count(outputs.outputs, "output"))
    if outputs.updates:
        parts.append(format_count(outputs.updates, "display update"))
    counts = " and ".join(parts) or "a request to clear its outputs"
    arrival = f"{counts} arrived for {label} after its run"
    if outputs.is_dropped:
        reason = "because the cell has since been changed or deleted"
        if outputs.drop_reason:
            reason = f"because {one_line(outputs.drop_reason, 200)}"
        return f"{arrival}; the notebook was not updated, {reason}"
    omission = ""
    if outputs.left_out:
        omission = f"; in total, {format_left_out(outputs.left_out)}"
    return f"{arrival}; the notebook was updated{omission}"
