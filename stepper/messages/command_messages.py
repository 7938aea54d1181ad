"""The texts of the commands and of a session's start: where a notebook stands, what was tried, where to go on.

(Over 300 lines: a list of texts, read by name.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepper.common.text import clean, format_count, one_line
from stepper.messages import stop_hints
from stepper.messages.quoted_output import (
    format_estimate,
    format_location,
    format_span,
    quote,
    quote_message,
)
from stepper.messages.run_report import (
    Report,
    format_left_out,
    format_seconds,
    format_step,
    limit_report,
)
from stepper.policy import edit_gate, error_classification, run_decisions
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.journal_events import Stopped
from stepper.policy.kernel_namespace import Namespace, Variable
from stepper.policy.model import Cell, Key, Outcome, Run, StepStatus, Verdict
from stepper.policy.notebook_state import LateOutputSummary, State

MARKS = {
    StepStatus.DONE: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.DOUBTED: "?",
    StepStatus.SKIPPED: "–",
    StepStatus.RUNNING: "▶",
    StepStatus.PENDING: "·",
    StepStatus.INTERRUPTED: "■",
    StepStatus.CHANGED: "≠",
}
WHY = {
    **dict.fromkeys(StepStatus, "why"),
    StepStatus.SKIPPED: "skipped",
    StepStatus.DONE: "confirmed",
}
AGAIN = {
    StepStatus.FAILED: " (its cell failed)",
    StepStatus.INTERRUPTED: " (its cell was interrupted)",
    StepStatus.CHANGED: " (its cell was changed and has not run)",
    StepStatus.DOUBTED: " (its criterion is false: replace its cell, or `{confirm}`)",
}
NAMES = 40  # of each kind, in a context
WORDS = {"continue": "ANSWER", "fix": "HINT", "skip": "REASON"}
WAYS = {
    "restore": "runs the cells that had ended well again, in a fresh kernel",
    "continue": "resumes the notebook (in Claude Code: {})",
    "fix": "resumes it and grants the failed step fresh retries ({})",
    "skip": "resumes it and leaves the step out ({})",
}
ANSWER_LIMIT = 2000  # characters of what the person says with a command


@dataclass(frozen=True)
class Way:
    """A way out of a stop: the command, its argument ('' if it takes none), what it does."""

    command: str
    argument: str
    about: str

    @property
    def line(self) -> str:
        """The command with its argument, which is optional."""
        return f"{self.command} [{self.argument}]" if self.argument else self.command


def ways(state: State) -> list[Way]:
    """Return the ways out of a notebook's stop, as they are typed in a terminal."""
    found = []
    for name, effect in WAYS.items():
        if name == "restore" and not state.lost_reason:
            continue
        command = state.commands.terminal(name)
        typed = state.commands.slash(name)
        found.append(Way(command, WORDS.get(name, ""), effect.format(typed)))
    return found


def plan_lines(state: State) -> list[str]:
    """Return the plan, a line a step."""
    lines = []
    for step in state.plan.steps:
        progress = state.progress_of(step.id)
        more = [f"criterion: {one_line(step.criterion, 200)}"] if step.criterion else []
        more += [step.kind.value] if step.kind.value != "step" else []
        more += ["long"] * step.long
        more += [f"retries: {progress.retries}"] if progress.retries else []
        more += (
            [f"{WHY[progress.status]}: {one_line(progress.reason, 200)}"]
            if progress.reason
            else []
        )
        told = f" ({'; '.join(more)})" if more else ""
        lines.append(
            f"  {MARKS[state.status_of(step.id)]} {step.id}. {one_line(step.title, 120)}{told}"
        )
    return lines


OPEN = {
    "failed": "failed",
    "interrupted": "was interrupted",
    "changed": "was changed since it ran",
    "pending": "has not run",
    "stale": "is stale",
}
OPEN_CELLS = 5  # named in one line


def open_cells(state: State) -> str:
    """Return the sentence on cells outside the plan that failed, did not run or are stale; '' for none."""
    if not state.open_cells:
        return ""
    named = [
        f"cell {cell.number} (id {one_line(cell.cell_id, 100)}) {OPEN[cell.status]}"
        for cell in state.open_cells
    ]
    left = len(named) - OPEN_CELLS
    more = f"; and {format_count(left, 'more cell')}" if left > 0 else ""
    return f"Outside the plan: {'; '.join(named[:OPEN_CELLS])}{more}."


def next_line(state: State) -> str:
    """Return what comes next."""
    step = next(iter(state.open_steps), None)
    if step is None:
        done = " ".join(
            filter(None, ["No step of the plan is left.", open_cells(state)])
        )
        return (
            done
            if state.plan.steps
            else "There is no plan; the next cell goes at the end."
        )
    criterion = (
        f"; criterion: {one_line(step.criterion, 200)}" if step.criterion else ""
    )
    confirm = state.commands.shell("confirm", '"REASON"')
    again = AGAIN.get(state.status_of(step.id), "").format(confirm=confirm)
    return f"Next: {format_step(state.plan, step)}{again}{criterion}."


def _names_lines(known: Namespace) -> list[str]:
    modules = [
        f"{alias} ({name})" if alias != name else name
        for alias, name in known.modules.items()
    ]
    functions = [f"{name}{signature}" for name, signature in known.functions.items()]
    variables = [
        f"{name}: {describe(variable)}" for name, variable in known.variables.items()
    ]
    rows = {
        "Modules": modules,
        "Functions": functions,
        "Classes": known.classes,
        "Variables": variables,
    }
    return [f"{title}: {_listed(names)}" for title, names in rows.items() if names]


def describe(variable: Variable) -> str:
    """Return a variable's type with its shape or length."""
    kind = variable.type.rsplit(".", 1)[-1]
    if variable.shape is not None:
        return f"{kind} {' × '.join(map(str, variable.shape))}".strip()
    return kind if variable.len is None else f"{kind} of {variable.len}"


LARGE = 100_000  # bytes: smaller variables are not named
LARGEST = 3


def largest(before: Namespace, after: Namespace) -> list[str]:
    """Return a sentence on the largest variables of a run, in a list; empty if unknown.

    `after` is what the kernel reported when the run ended; UNKNOWN if it could not.
    """
    known = after or before
    sizes = {name: variable.bytes for name, variable in known.variables.items()}
    names = sorted(sizes, key=lambda name: (-sizes[name], name))
    large = [name for name in names if sizes[name] >= LARGE][:LARGEST]
    if not large:
        return []
    if not after:
        named = [f"{one_line(name, 60)} {_megabytes(sizes[name])}" for name in large]
        return [
            f"the largest variables as last seen before this run: {', '.join(named)}"
        ]
    named = [
        f"{one_line(name, 60)} {_megabytes(sizes[name])}{_growth(name, before, after)}"
        for name in large
    ]
    return [f"the largest variables after this run: {', '.join(named)}"]


def _growth(name: str, before: Namespace, after: Namespace) -> str:
    """Return whether a variable is new or changed its size in a run; '' if unknown."""
    if not before:
        return ""
    if name not in before.variables:
        return " (new)"
    was, now = before.variables[name].bytes, after.variables[name].bytes
    return "" if abs(now - was) < LARGE else f" ({_megabytes(was)} before)"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return ", ".join(one_line(name, 120) for name in names[:NAMES]) + more


def context(name: str, state: State, known: Namespace, alive: bool) -> str:
    """Return what an agent must know to go on with a notebook that is under way."""
    stands = (
        "complete"
        if state.is_complete and not state.stop
        else f"under way ({state.status_name})"
    )
    lines = [f"stepper: the notebook {one_line(name)} is {stands}.", *plan_lines(state)]
    if why := edit_gate.stopped(state):
        lines.append(f"When this was written, {why}")
    lines.append(next_line(state))
    if alive:
        lines += ["Its kernel is alive; its variables are there.", *_names_lines(known)]
    else:
        lines.append("Its kernel is not running: no variables are there.")
    lines.append(
        "Further cells go into this notebook, unless the user asks for a new one."
        " NotebookEdit needs a Read of it first in this session."
    )
    return "\n".join(lines)


def built(state: State) -> str:
    """Return what had built the present kernel's variables, and how to have them again; '' for none."""
    steps = [
        step.id
        for step in state.plan.steps
        if state.progress_of(step.id).cell_id in state.succeeded_sources
    ]
    loose = len(state.succeeded_sources) - len(steps)
    if not state.succeeded_sources:
        return ""
    named = (
        [f"{'steps' if len(steps) > 1 else 'step'} {', '.join(map(str, steps))}"]
        if steps
        else []
    )
    named += (
        [format_count(loose, "cell") + " in no step" * bool(steps)] if loose else []
    )
    restore = state.commands.shell("restore")
    return f"{' and '.join(named)} had built them; `{restore}` builds them again in a fresh kernel"


def stop_of_death(
    why: str, built: str, stderr: str, commands: CommandLines
) -> tuple[str, str]:
    """Return the error and the text of a stop that no cell is to blame for: the kernel died while nothing ran."""
    said = (
        f"; it wrote last: {one_line(stderr.splitlines()[-1], 200)}"
        if stderr.strip()
        else ""
    )
    message = one_line(f"{why}: all variables are lost; {built}{said}")
    return (
        f"KernelDied: {message}",
        f"""❌ Execution stopped: the kernel died
Error Type: KernelDied
Error Message: {message}
Suggestion: `{commands.terminal("restore")}` runs the cells that had ended well again in a fresh kernel, then {commands.slash("continue")}""",
    )


def stopped(state: State, stop: Stopped) -> tuple[str | None, list[str], str]:
    """Return what a stop asks the user, the commands that resume the notebook, and the text that says all of it."""
    asked, run = (
        error_classification.extract_question(stop.error),
        next((run for run in state.runs[::-1] if run.key == stop.key), None),
    )
    where = f" at cell {run.number} (id {one_line(run.cell_id, 100)})" if run else ""
    lines = [f"Stopped{where}: {one_line(stop.error)}"]
    lines += [f"The agent asks: {one_line(asked)}"] if asked else []
    lines += (
        [
            f"Suggestion: {one_line(stop_hints.suggest_action(run.outcome, run.verdict, run.fault, commands=state.commands))}"
        ]
        if run
        else []
    )
    offered = ways(state)
    width = max(28, *(len(way.line) + 2 for way in offered))
    lines += ["Ways out:"]
    lines += [f"  {way.line:<{width}}{way.about}" for way in offered]
    return asked or None, [way.line for way in offered], "\n".join(lines)


def of_journaled(run: Run, text: str | None, stop: Stopped | None) -> Report:
    """Return the report on a run as the journal has it; without its text, what is known of it."""
    fine, fault = run.verdict is Verdict.FINE, run.fault
    what = f"{fault.ename}: {fault.evalue}" if fault else run.outcome.value
    line = one_line(f"{'✓' if fine else '✗'} run {run.run} · {what}", 200)
    if text is None:
        where = f"cell {run.number or '?'} (id {one_line(run.cell_id, 100)})"
        text = (
            f"stepper: run {run.run}, {where}, ended: {one_line(what)}."
            " Its daemon ended before it could tell more; its outputs are in the notebook."
        )
    return Report(
        limit_report(clean(text)),
        line,
        clean(stop.block) if stop and not fine else "",
        ok=fine,
    )


def unheard(name: str, text: str) -> str:
    """Return what the agent is told of an edit whose report it could not read, as after Esc."""
    return (
        f"stepper: an edit of {one_line(name)} WAS made, although the client may have told that it was rejected: its"
        " cell stands in the notebook. To change it, replace that cell rather than insert another. What came of it:"
        f"\n{text}"
    )


def unheard_line(name: str, line: str) -> str:
    """Return what the user reads of such an edit; `line` is the one of its report."""
    said = f"stepper: the last edit of {one_line(name, 200)} is in the notebook, also where it is shown as rejected"
    return f"{said}: {line}" if line else said


def render_figure(commands: CommandLines, number: int) -> str:
    """Return how the agent can look at a plotly figure: rendering takes too long for a step."""
    command = commands.shell("output", f"{number} --figure")
    return (
        f"To render the plotly figure as PNG (kaleido, takes seconds), run: {command}"
    )


def uncovered(name: str, line: str, renamed: str = "") -> Report:
    """Return the report on an edit of a notebook that no pattern covers; `line` of the configuration would.

    `renamed` says that the notebook looks like a renamed one, if it does.
    """
    why = f"{one_line(name, 200)} is covered by no pattern of `notebooks:` in .stepper/config.yaml"
    mend = f"what covers it: {one_line(line)}" if line else "it lies where none leads"
    text = f"stepper: the cell was NOT run, and outputs may be stale: {why}. The user may change that; {mend}"
    if renamed:
        text = f"{text}. {renamed}"
        mend = f"{mend}. {renamed}"
    return Report(limit_report(text), f"✗ nothing runs: {why}; {mend}")


def still_uncovered(name: str) -> Report:
    """Return the report on a further edit of such a notebook in a session: what includes it was said before."""
    line = f"the cell was NOT run: {one_line(name, 200)} does not match `notebooks:` in .stepper/config.yaml"
    return Report(f"stepper: {line}", f"✗ {line}")


def kernel(state: str, where: str, left: float | None, trouble: str) -> str:
    """Return how a kernel stands, and where, if that is elsewhere."""
    return ", ".join(filter(None, [state, format_location(where, left, trouble)]))


def beyond(timeout: float, where: str, left: float | None) -> list[str]:
    """Return that a cell may run for longer than the walltime that is `left` when it begins, in a list."""
    if left is None or timeout <= left:
        return []
    reach = f"its deadline ({format_span(timeout)}) lies beyond the walltime of {one_line(where, 200)}"
    return [
        f"{reach} ({format_estimate(left)} when it began): what runs then is lost with the kernel"
    ]


def waits(reason: str, command: str) -> Report:
    """Return the report on a cell that waits for the person's word: why, and the command with which it is given."""
    text = f"stepper: the cell was NOT run: {quote_message(reason)}\nThe user's command that runs it, with all that has not"
    line = f"✗ cell not run: {one_line(reason, 160)}; what runs it: {one_line(command)}"
    return Report(limit_report(f"{text} run here: {one_line(command)}"), line, ok=False)


def line_down(label: str, trouble: str) -> str:
    """Return what is known of a cell whose deadline, or interrupt, came while nothing reached its kernel."""
    return (
        f"{label} was sent to its kernel and may run on, or have ended: {trouble}. What became of it is asked there as"
        " soon as the line is back, and told then; no other cell of the notebook runs before"
    )


def failing(state: State) -> str:
    """Return what failed last in a notebook without a plan."""
    last = next(
        (run for run in reversed(state.runs) if run.key == state.last_key), None
    )
    if last is None:
        return "Its last cell was found to fail before it ran."
    return f"Cell {last.number or '?'} (id {one_line(last.cell_id, 100)}) ended with {last.error}."


def after_continue(
    name: str,
    state: State,
    known: Namespace,
    alive: bool,
    lifted: Stopped | None,
    answer: str = "",
) -> str:
    """Return the answer of `continue`: the stop is lifted, what the person says, where to go on, with the context."""
    first = "The stop is lifted. Go on." if lifted else "Nothing was stopped. Go on."
    return "\n".join(
        [first, *answered(lifted, answer), context(name, state, known, alive)]
    )


def answered(stop: Stopped | None, answer: str) -> list[str]:
    """Return what the person says with a command, as a line: on the question of a stop, where that asks one."""
    said, asked = (
        " ".join(clean(answer).split())[:ANSWER_LIMIT],
        error_classification.extract_question(stop.error) if stop else "",
    )
    return (
        [
            f'To "{asked}" the user answers: {said}'
            if asked
            else f"What the user adds: {said}"
        ]
        if said
        else []
    )


def from_terminal(name: str, command: str, stop: Stopped | None, message: str) -> str:
    """Return what the agent reads of a command that the user gave in a terminal with a message."""
    lifted = ", which resumed the stopped notebook" if stop else ""
    first = f"stepper: the user ran `stepper {command}` for {one_line(name)} in a terminal{lifted}."
    return "\n".join([first, *answered(stop, message)])


def steered(name: str, command: str, response: str) -> str:
    """Return what the user reads of a command that was typed in Claude Code: the first line of its response."""
    first = response.removeprefix("stepper: ").split("\n", 1)[0]
    about = "" if name in first else f" ({one_line(name, 200)})"
    return f"stepper {command}: {one_line(first, 300)}{about}"


def still_stopped(name: str, state: State) -> str:
    """Return that a restore did not lift the stop, and what does."""
    error = one_line(state.stop.error, 300) if state.stop else ""
    return (
        f"stepper: the variables of {one_line(name)} are restored, and the notebook is still stopped ({error}):"
        f" restoring does not resume it. {edit_gate.resume(state.commands)}"
    )


def agent_stopped(name: str, state: State) -> str:
    """Return that the agent is stopped after a run from a terminal, a script or CI, or nothing where it is not."""
    if state.stop is None:
        return ""
    error = one_line(state.stop.error, 300)
    return (
        f"the agent is stopped in {one_line(name)} ({error}); this run is not an attempt of the agent"
        f" and does not resume the notebook. {edit_gate.resume(state.commands)}"
    )


def several_stopped(stopped: Sequence[tuple[str, Stopped | None]], command: str) -> str:
    """Return that a command which resumes a notebook does nothing: several are stopped, and it names none."""
    named = [
        f"{one_line(name)} ({one_line(stop.error, 100) if stop else ''})"
        for name, stop in stopped
    ]
    return (
        f"nothing was resumed: `{command}` names no notebook, and {len(stopped)} are stopped:"
        f" {', '.join(named[:-1])} and {named[-1]}"
    )


def stopped_line(name: str, state: State) -> str:
    """Return what the user reads of a stop as a session begins, '' where the notebook is not stopped."""
    if state.stop is None:
        return ""
    way_out = edit_gate.way_out(state).replace("the user types", "type")
    cause = one_line(state.stop.error, 300)
    return f"stepper: {one_line(name, 200)} is stopped. {way_out}. Cause: {cause}"


def in_force(name: str, stop: Stopped, state: State) -> str:
    """Return what the agent reads of a stop with a prompt that is no command: it lifts nothing; what does."""
    commands = state.commands
    if edit_gate.idle_death(state):
        return (
            f"stepper: {one_line(name)} is stopped ({one_line(stop.error, 300)}), and no code cell of it runs. What the"
            f" user wrote here does not resume it. {edit_gate.rebuild(commands)}."
        )
    asked = error_classification.extract_question(stop.error)
    why, command = (
        (f'it asks "{asked}"', commands.slash("continue", "ANSWER"))
        if asked
        else (one_line(stop.error, 300), commands.slash("fix", "HINT"))
    )
    if stop.key is None:
        command = commands.slash("continue")
    return (
        f"stepper: {one_line(name)} is stopped ({why}), and no code cell of it runs. What the user wrote here is left"
        f" alone: it lifts nothing, nor can you. The one command that lifts it, for the user to give: `{command}`."
    )


def after_fix(
    name: str, state: State, key: Key | None, cell: Cell | None, retries: int
) -> str:
    """Return the answer of `fix`: the failed cell, its error, what was tried."""
    if key is None:
        return f"stepper: no cell of {one_line(name)} has failed. {next_line(state)}"
    lines = [
        f"stepper: {retries} fresh retries for {_what(state, key)} in {one_line(name)}."
    ]
    tried = [
        run for run in state.runs if run.key == key and run.outcome is not Outcome.OK
    ]
    if tried:
        lines.append("What was tried:")
        lines += [f"  run {run.run}: {_ended(run)}" for run in tried[-6:]]
    if cell is not None:
        lines += [f"{cell.label.capitalize()} as it stands:", quote(cell.source, 2500)]
        outside = bool(tried) and error_classification.is_external_death(
            tried[-1].fault
        )
        again = "Nothing in it ended the kernel: replaced, if only by the same source, it runs again"
        why = again if outside else "It waits for its fix: replace it"
        lines.append(f"{why} (cell_id {one_line(cell.id, 100)}).")
    else:
        lines.append(
            "Its cell was deleted: the next new code cell is its next attempt."
        )
    return "\n".join(lines)


def after_skip(name: str, state: State, key: Key | None, reason: str) -> str:
    """Return the answer of `skip`: what is skipped, the next step."""
    if key is None:
        return f"stepper: there is nothing to skip in {one_line(name)}."
    because = f" ({one_line(reason, 200)})" if reason else ""
    return f"stepper: {_what(state, key)} in {one_line(name)} is skipped{because}. {next_line(state)}"


def after_reopen(name: str, state: State, key: Key) -> str:
    """Return the answer of `continue` on a skipped step: which step is open again, the next step."""
    return f"stepper: {_what(state, key)} in {one_line(name)} is open again. {next_line(state)}"


def after_confirm(name: str, state: State, key: Key, reason: str) -> str:
    """Return the answer of `confirm`: what is done, for what reason, the next step."""
    return f"stepper: {_what(state, key)} in {one_line(name)} is done ({one_line(reason, 200)}). {next_line(state)}"


def _ended(run: Run) -> str:
    if run.outcome is Outcome.KERNEL_DIED:
        return run.error.partition(run_decisions.LOST)[0]  # they may be there again
    return (
        run.error if run.outcome is Outcome.ERROR and run.fault else run.outcome.value
    )


def _what(state: State, key: Key) -> str:
    step = state.plan.step(key) if isinstance(key, int) else None
    return format_step(state.plan, step) if step else f"cell {one_line(str(key), 100)}"


def completion(
    name: str, state: State, figures: int, order: str = "", verifies: bool = False
) -> list[str]:
    """Return the lines that follow the report which completed the notebook.

    `order` says whether the order of its cells could reproduce; `verifies`: it is replayed unasked.
    """
    here = one_line(name)
    verify = CommandLines(name).shell("verify")
    replays = (
        f"`{verify}` replays it in a fresh kernel and says whether others get the same."
    )
    if verifies:
        replays = "It is replayed in a fresh kernel now (verify: auto): the next prompt says whether others get the same."
    statuses = [state.progress_of(step.id).status for step in state.plan.steps]
    attempts = sum(state.progress_of(step.id).retries for step in state.plan.steps)
    return [
        f"The notebook is complete: {format_count(statuses.count(StepStatus.DONE), 'step')} done,"
        f" {statuses.count(StepStatus.SKIPPED)} skipped; {format_count(len(state.runs), 'run')},"
        f" {format_count(attempts, 'attempt')} at fixes, {format_seconds(state.run_seconds)} in all; {format_count(figures, 'figure')}.",
        f"It is {here}.",
        *filter(None, [order]),
        replays,
    ]


def completed(state: State) -> str:
    """Return the same in short, for the person."""
    statuses = [state.progress_of(step.id).status for step in state.plan.steps]
    skipped = statuses.count(StepStatus.SKIPPED)
    retries = sum(state.progress_of(step.id).retries for step in state.plan.steps)
    parts = [format_count(len(statuses), "step")]
    if skipped:
        parts = [f"{len(statuses) - skipped} done", f"{skipped} skipped"]
    parts += [
        f"{retries} {'retry' if retries == 1 else 'retries'}",
        format_seconds(state.run_seconds),
    ]
    return f"notebook complete: {', '.join(parts)}"


def came(state: State, cells: Sequence[Cell]) -> list[str]:
    """Return what came for cells besides their runs since the last report, a sentence a cell."""
    names = {cell.id: cell.label for cell in cells if cell.id in state.late_outputs}
    return [
        _came(
            names.get(cell_id, f"a cell that is gone (id {one_line(cell_id, 100)})"),
            what,
        )
        for cell_id, what in state.late_outputs.items()
    ]


def _came(name: str, what: LateOutputSummary) -> str:
    parts = [f"{what.characters:,} characters"] if what.characters else []
    parts += (
        [f"{what.outputs:,} output{'s' * (what.outputs > 1)}"] if what.outputs else []
    )
    parts += (
        [f"{what.updates:,} update{'s' * (what.updates > 1)} of a display"]
        if what.updates
        else []
    )
    told = " and ".join(parts) or "a clearing of its outputs"
    if what.is_outdated:
        return f"{told} came for {name} after its run; it was changed or deleted since, so they are left out"
    gone = f"; in all, {format_left_out(what.left_out)}" if what.left_out else ""
    return f"after its run {name} got {told}: they are on it{gone}"
