"""Reports on runs: a text for the agent and one line for the user.

A report starts with the verdict and states facts instead of orders. Its size is
limited, it contains no escape sequences, and text of cells is quoted (`quoted_output`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.text import clean, format_count, one_line
from stepper.messages import stop_suggestion
from stepper.messages.error_hint import format_hint
from stepper.messages.marks import (
    CRITERION_FALSE_MARK,
    FAILED_MARK,
    STOP_SIGN,
    UNKNOWN_MARK,
    get_run_mark,
)
from stepper.messages.quoted_output import (
    NOTE_LIMIT,
    TEXT_LIMIT,
    Completeness,
    format_listing,
    format_outputs,
    format_span,
    get_output_text,
    quote,
    quote_message,
)
from stepper.messages.status_text import get_outcome_name
from stepper.policy import error_classification
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.model import (
    Cell,
    Fault,
    OmittedOutput,
    Outcome,
    Plan,
    Run,
    Step,
    Verdict,
)

# Sizes in characters. The client shows up to 10,000 characters of a report.
REPORT_LIMIT = 5800
EVAL_LIMIT = 4500  # of the output of `stepper eval`
UNDELIVERED_LIMIT = 2500  # of undelivered reports before another report
FAILURE_OUTPUT_LIMIT = 1200  # of the output of a failed cell
MESSAGE_LIMIT = 1200  # of an error's message with several lines
TRACEBACK_LIMIT = 800
LINE_PART_LIMIT = 80  # of each part of the user's line
LAST_CHARACTERS = 2000  # of a printed text that are searched for its last line
# Of the reason why a cell did not run. The reason starts with how to resume.
REASON_LIMIT = 320
MAX_INSERTED_CELLS = 2
INSERTED_CELL_LIMIT = 800  # of a source that Jupyter would insert as a cell
# A report on a plain success has at most 60 words besides the output.
TITLE_WORDS = 9
CRITERION_WORDS = 14
CONTEXT_LINES = 2  # above and below a failing line
MAX_CAUSES = 3  # of an error's chain
OMITTED_WARNINGS = re.compile(r"… and [\d,]+(?: or)? more warnings?")
# In a reason that already says that the cell or the code did not run.
NOT_RUN = re.compile(r"\b(?:cell|code) (?:was NOT run|did not run)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Report:
    """A report on cells.

    `text` is for the agent, `line` for the user. `stop` is the text of a stop, or an
    empty string. `ok` says whether the cells succeeded. `is_unknown` means that the
    last cell may have run, but that its result is not known yet.
    """

    text: str
    line: str = ""
    stop: str = ""
    ok: bool = True
    is_unknown: bool = False


@dataclass(frozen=True)
class RunSummary:
    """The data for the report on one run."""

    cell: Cell
    run: Run  # the number of the run is 0 if the cell did not run
    outputs: Sequence[dict[str, Any]] = ()
    plan: Plan = field(default_factory=Plan)
    next_step: Step | None = None
    attempts: int = 0  # retries so far
    max_retries: int = 3
    timeout: float = 0  # seconds
    max_timeout: float = 0  # seconds that a cell may request
    notes: Sequence[str] = ()  # the most important facts, such as lost variables
    tail: Sequence[str] = ()  # lines at the end, such as the completion
    completion: str = ""  # short text on the completion
    # Execution count → the cell's label.
    origins: Mapping[int, str] = field(default_factory=dict)
    preflight_failed: bool = False  # the preflight check failed: the cell did not run
    counted: bool = False  # the cell did not run, but this counts as an attempt
    captured: Sequence[dict[str, Any]] = ()  # outputs inside Output widgets
    inserted_sources: Sequence[str] = ()  # cells that Jupyter would insert below
    figures: Sequence[str] = ()  # lines on figures and other rich outputs
    criterion_met: bool = False  # the step's criterion was evaluated and is true
    unmet: str = ""  # why the step's criterion is not met
    where: str = ""  # where a remote kernel runs
    stale_lines: str = ""  # lines on stale cells and hidden state
    comment: str = "#"  # starts a comment in the notebook's language
    commands: CommandLines = UNNAMED
    completeness: Completeness = Completeness.UNKNOWN  # of the outputs in the notebook
    modules: Sequence[str] = ()  # lines on changed modules
    # After a success, warnings; after a failure, what the cell had already changed.
    warnings: Sequence[str] = ()

    @property
    def step(self) -> Step | None:
        """The step that the cell belongs to."""
        return self.plan.find_step(self.run.step)


def capitalize_first(text: str) -> str:
    """Return a non-empty text with its first letter in upper case."""
    return text[0].upper() + text[1:]


def format_step(plan: Plan, step: Step) -> str:
    """Return the name of a step in reports, such as `step 2 of 7 "Load the data"`."""
    title = _limit_words(step.title, TITLE_WORDS)
    return f'step {plan.get_position(step.id)} of {len(plan.steps)} "{title}"'


def _limit_words(text: str, count: int) -> str:
    """Return the first `count` words of a text."""
    words = one_line(text, 120).split()
    shown = " ".join(words[:count])
    if len(words) <= count:
        return shown
    return f"{shown} …"


def format_seconds(value: float) -> str:
    """Return a measured duration with its unit, such as `0.12 s` or `15 min`."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 600:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min"


def _format_headline(summary: RunSummary) -> str:
    """Return the sentence on the outcome of a run, with its duration and error."""
    run = summary.run
    label = capitalize_first(summary.cell.label)
    duration = format_seconds(run.duration_s)
    error = ": ".join(get_error(summary))
    if run.outcome is Outcome.OK:
        return f"{label} ran ok in {duration}."
    if run.verdict is Verdict.FINE:
        return (
            f"{label} ran in {duration} and raised {error}, as its tag raises-exception"
            " allows."
        )
    if run.outcome is Outcome.CANCELLED:
        return (
            f"{label} was CANCELLED after {duration}: it was interrupted."
            " This does not count as an attempt."
        )
    if summary.preflight_failed:
        return f"{label} did NOT run. The preflight check found {error}"
    return f"{label} FAILED after {duration}: {error}"


def get_error(summary: RunSummary) -> tuple[str, str]:
    """Return the class name and the message of an error, each on one line.

    For an outcome that is not an exception, stepper defines the class name, such as
    `Timeout`.
    """
    fault = summary.run.fault
    if fault is None:
        return get_outcome_name(summary.run.outcome), "no details"
    message = one_line(fault.evalue) or "(no message)"
    if fault.ename == "Timeout":
        deadline = format_span(summary.timeout)
        message = f"interrupted after {deadline} (its deadline); {message}"
    return one_line(fault.ename, 100), message


def format_stop_block(summary: RunSummary, retries: int, suggestion: str = "") -> str:
    """Return the lines that report a stop.

    The user sees the lines immediately, and the agent sees them with the next prompt.
    `retries` is the number of attempted fixes. If `suggestion` is empty, the error
    determines the suggestion.
    """
    run = summary.run
    name, message = get_error(summary)
    title = "(no step)"
    if summary.step:
        title = one_line(summary.step.title, 200)
    hint = one_line(suggestion)
    if not hint:
        hint = stop_suggestion.suggest_action(
            run.outcome, run.verdict, run.fault, summary.comment, summary.commands
        )
    return "\n".join(
        [
            f"{STOP_SIGN} Execution stopped at cell {summary.cell.number}",
            f"TODO: {title}",
            f"Error Type: {name}",
            f"Error Message: {message}",
            f"Attempted Fixes: {retries}",
            f"Suggestion: {hint}",
        ]
    )


def format_question(summary: RunSummary) -> str:
    """Return the line with the agent's question to the user, or an empty string."""
    if summary.run.fault is None:
        return ""
    question = error_classification.extract_question(summary.run.fault.evalue)
    if question:
        return f"The agent asks: {question}"
    return ""


def join_reports(reports: Sequence[Report]) -> Report:
    """Return the reports on successive runs as one report.

    The texts are joined in order. The verdict and the stop are taken from the last
    report. The user's lines are joined in reverse order: the line of the last report
    comes first.
    """
    lines = [report.line for report in reversed(reports) if report.line]
    text = limit_report("\n".join(report.text for report in reports))
    return replace(reports[-1], text=text, line="; before that: ".join(lines))


def _format_step_state(summary: RunSummary) -> str:
    """Return the line on a run's step, or an empty string if the run has no step."""
    step = summary.step
    if step is None:
        return ""
    name = capitalize_first(format_step(summary.plan, step))
    if summary.unmet:
        confirm = summary.commands.shell("confirm", '"REASON"')
        return (
            f"{name}: not done. Replace its cell, or give a reason why the step is done"
            f" although its criterion is false: `{confirm}`."
        )
    if summary.run.verdict is Verdict.FINE:
        if not step.criterion:
            return f"{name}: done."
        label = "criterion met" if summary.criterion_met else "criterion"
        criterion = _limit_words(step.criterion, CRITERION_WORDS)
        return f"{name}: done; {label}: {criterion}."
    if summary.run.verdict is Verdict.CANCELLED:
        return f"{name}: not finished."
    if summary.run.verdict is Verdict.UNRECOVERABLE:
        if error_classification.is_external_death(summary.run.fault):
            return f"{name}: failed; its cell did not cause the kernel's death."
        return f"{name}: failed; another attempt would not help."
    left_count = max(0, summary.max_retries - summary.attempts)
    return (
        f"{name}: failed; {summary.attempts} of {summary.max_retries} retries used,"
        f" {left_count} left."
    )


def _format_failing_lines(
    fault: Fault, source: str, origins: Mapping[int, str]
) -> list[str]:
    """Return listings of the failing line and of the frame that raised the error.

    A listing is left out if its line is unknown or not in the source. If both are the
    same line, there is only one listing. `source` is the cell's source. `origins` maps
    execution counts to cell labels.
    """
    parts = []
    lines = source.split("\n")
    # In a SyntaxError that the cell created, `lineno` may have any type and value.
    if isinstance(fault.line, int) and 1 <= fault.line <= len(lines):
        first = max(1, fault.line - CONTEXT_LINES)
        last = min(len(lines), fault.line + CONTEXT_LINES)
        context = [(number, lines[number - 1]) for number in range(first, last + 1)]
        listing = format_listing(context, fault.line)
        parts.append(f"Line {fault.line} of the cell:\n{listing}")
    if not fault.frames:
        return parts
    frame = fault.frames[-1]
    is_in_cell = frame.function == "<module>" and not frame.file
    if is_in_cell and frame.line == fault.line:
        return parts  # the failing line raised the error itself
    source_name = one_line(frame.file, 200)
    if not source_name:
        source_name = origins.get(frame.cell, f"the cell run as [{frame.cell}]")
    function = one_line(frame.function, 80)
    listing = format_listing(frame.context, frame.line)
    parts.append(
        f"Raised in `{function}`, line {frame.line} of {source_name}:\n{listing}"
    )
    return parts


def format_left_out(omitted_output: OmittedOutput) -> str:
    """Return a clause on outputs that exceeded the notebook's limits."""
    parts = []
    if omitted_output.characters:
        parts.append(format_count(omitted_output.characters, "character"))
    if omitted_output.outputs:
        # The characters of printed text are counted above.
        outputs = format_count(omitted_output.outputs, "output")
        parts.append(f"{outputs} ({omitted_output.bytes:,} bytes)")
    return f"left out of the notebook: {'; '.join(parts)}"


def format_kernel(where: str) -> list[str]:
    """Return a list with the line on a remote kernel, or an empty list.

    `where` is empty for a local kernel.
    """
    if where:
        return [f"Kernel: {where.removeprefix('kernel ')}."]
    return []


def _format_notes(summary: RunSummary) -> list[str]:
    """Return a line for each note."""
    return [
        f"Note: {one_line(note, NOTE_LIMIT).rstrip('.')}." for note in summary.notes
    ]


def _format_unmet(summary: RunSummary) -> list[str]:
    """Return a list with the warning on an unmet criterion, or an empty list."""
    if summary.unmet:
        return [f"Warning: the step's criterion {summary.unmet}"]
    return []


def format_run(summary: RunSummary) -> Report:
    """Return the report on one run."""
    run = summary.run
    is_fine = run.verdict is Verdict.FINE
    parts = ["stepper: " + _format_headline(summary)]
    step_state = _format_step_state(summary)
    if step_state:
        parts.append(step_state)
    parts += _format_preflight(summary)
    parts += _format_notes(summary)
    parts += summary.modules
    parts += format_kernel(summary.where)
    output_limit = TEXT_LIMIT
    if not is_fine and run.fault is not None:
        parts += _format_fault(summary, run.fault)
        output_limit = FAILURE_OUTPUT_LIMIT
    parts += _format_unmet(summary)
    label = "Warning" if is_fine else "Note"
    parts += _format_warnings(summary, label)
    # A cell that calls `run_cell` may show an error and succeed.
    shows_errors = run.outcome is Outcome.OK
    parts += format_outputs(
        summary.outputs,
        output_limit,
        errors=shows_errors,
        completeness=summary.completeness,
    )
    parts += format_outputs(
        summary.captured, output_limit // 2, "In an Output widget", errors=True
    )
    parts += summary.figures
    parts += _format_inserted_cells(summary)
    if summary.stale_lines:
        parts.append(summary.stale_lines)
    if is_fine and summary.next_step is not None and not summary.unmet:
        parts.append(f"Next: {format_step(summary.plan, summary.next_step)}.")
    parts += summary.tail
    return Report(limit_report("\n".join(parts)), format_line(summary), ok=is_fine)


def _format_preflight(summary: RunSummary) -> list[str]:
    """Return a list with the effect of a failed preflight check on the attempts.

    The list is empty if the preflight check did not fail.
    """
    if not summary.preflight_failed:
        return []
    count = "This does not count as an attempt."
    if summary.counted:
        count = "This counts as an attempt: every third failed check in a row does."
    return [f"{count} To run the cell anyway, submit the same code again."]


def _format_warnings(summary: RunSummary, label: str) -> list[str]:
    """Return the warnings, each after `label`.

    The last text may be the number of omitted warnings, which needs no label.
    """
    lines = []
    for warning in summary.warnings:
        is_count = OMITTED_WARNINGS.fullmatch(warning)
        text = warning if is_count else f"{label}: {warning}"
        lines.append(text)
    return lines


def _format_inserted_cells(summary: RunSummary) -> list[str]:
    """Return a paragraph for each cell that Jupyter would insert below the cell."""
    title = "Jupyter would insert a cell below with this source; stepper does not:"
    sources = summary.inserted_sources[:MAX_INSERTED_CELLS]
    return [f"{title}\n{quote(source, INSERTED_CELL_LIMIT)}" for source in sources]


def _format_fault(summary: RunSummary, fault: Fault) -> list[str]:
    """Return the paragraphs on the error of a cell.

    The paragraphs show the suggestion, the failing lines, the causes, the message if it
    has several lines, and the traceback.
    """
    parts = []
    if fault.suggestion and fault.suggestion not in fault.evalue:
        parts.append(f"Suggestion: {one_line(fault.suggestion)}")
    parts += stop_suggestion.suggest_more_time(
        summary.run.outcome, summary.timeout, summary.max_timeout, summary.comment
    )
    parts += _format_failing_lines(fault, summary.cell.source, summary.origins)
    causes = [
        (relation, name, message)
        for relation, name, message in fault.chain
        if not message or message not in fault.evalue
    ]
    for relation, name, message in causes[:MAX_CAUSES]:
        error = f"{one_line(name, 100)}: {one_line(message, 200)}"
        parts.append(f"{capitalize_first(relation)} {error}")
    has_several_lines = "\n" in clean(fault.evalue).strip()
    if has_several_lines:
        parts.append("The message:\n" + quote(fault.evalue, MESSAGE_LIMIT))
    return parts + _format_traceback(fault)


def format_scratch(summary: RunSummary) -> str:
    """Return the report on a scratch execution: the verdict, then the output."""
    outcome = summary.run.outcome
    duration = format_seconds(summary.run.duration_s)
    if outcome is Outcome.OK:
        parts = [f"stepper: eval ran ok in {duration}."]
    elif outcome is Outcome.CANCELLED:
        parts = [f"stepper: eval was CANCELLED after {duration}."]
    else:
        error = ": ".join(get_error(summary))
        parts = [f"stepper: eval FAILED after {duration}: {error}"]
        parts += _format_scratch_fault(summary)
    parts += summary.modules
    parts += format_outputs(summary.outputs, EVAL_LIMIT)
    parts += summary.figures
    return limit_report("\n".join(parts))


def _format_scratch_fault(summary: RunSummary) -> list[str]:
    """Return the paragraphs on the error of a scratch execution."""
    fault = summary.run.fault
    if fault is None:
        return []
    parts = []
    if fault.suggestion:
        parts.append(f"Suggestion: {one_line(fault.suggestion)}")
    parts += stop_suggestion.suggest_more_time(
        summary.run.outcome, summary.timeout, summary.max_timeout, summary.comment
    )
    parts += _format_failing_lines(fault, summary.cell.source, {})
    parts += _format_traceback(fault)
    return parts


def _format_traceback(fault: Fault) -> list[str]:
    """Return a list with the kernel's traceback, or an empty list.

    The traceback is shown only if the helper reported no details. Blank lines, and
    lines that repeat a part of the error, are left out.
    """
    if fault.mro or fault.frames:
        return []
    error = f"{fault.ename}: {fault.evalue}"
    lines = []
    for line in clean(fault.traceback).splitlines():
        text = line.strip()
        if text != "Traceback:" and text not in error:
            lines.append(line)
    if lines:
        return ["Traceback:\n" + quote("\n".join(lines), TRACEBACK_LIMIT)]
    return []


def limit_report(text: str, limit: int = REPORT_LIMIT) -> str:
    """Return a report of at most `limit` characters.

    Lines in the middle of a longer report are left out.
    """
    if len(text) <= limit:
        return text
    head = text[: limit // 2].rsplit("\n", 1)[0]
    tail = "\n".join(text[-(limit // 2 - 100) :].split("\n")[1:])
    omitted_count = len(text) - len(head) - len(tail)
    return f"{head}\n… {omitted_count:,} characters of the report left out …\n{tail}"


def format_line(
    summary: RunSummary, prefix: str = "", warnings: Sequence[str] = ()
) -> str:
    """Return the user's line: step or cell, outcome and duration.

    After a success, the line also contains the first warning and the first figure, and
    ends with a line of the cell's output, after `| ` as in reports. `prefix` precedes
    the name of the step or cell. `warnings` are warnings of earlier cells.
    """
    run = summary.run
    is_fine = run.verdict is Verdict.FINE
    mark = get_run_mark(run.outcome, is_fine)
    result = run.outcome.value
    if summary.unmet:
        mark = CRITERION_FALSE_MARK
        result = f"ok, but {summary.unmet}"
    if run.outcome not in (Outcome.OK, Outcome.CANCELLED):
        result = ": ".join(get_error(summary))
    name = summary.cell.label
    if summary.step:
        name = format_step(summary.plan, summary.step)
    duration = format_seconds(run.duration_s)
    if summary.preflight_failed:
        duration = "did not run (preflight check)"
    parts = [prefix + name, one_line(result, 160), duration]
    if summary.where:
        parts.append(summary.where)
    output = ""
    if is_fine:
        parts += _summarize_warnings([*warnings, *summary.warnings])
        parts += [one_line(line, LINE_PART_LIMIT) for line in summary.figures[:1]]
        output = _find_output_line(summary.outputs)
    if summary.completion:
        parts.append(summary.completion)
    line = f"{mark} {' · '.join(parts)}"
    if output:
        return f"{line} | {output}"
    return line


def _summarize_warnings(warnings: Sequence[str]) -> list[str]:
    """Return a list with one text: the first warning and the number of others.

    The list is empty if there are no warnings.
    """
    if not warnings:
        return []
    text = f"warning: {one_line(warnings[0], LINE_PART_LIMIT)}"
    other_count = len(warnings) - 1
    if other_count:
        text += f" (and {other_count} more)"
    return [text]


def _find_output_line(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of a cell's result, or the last line that it printed.

    Return an empty string if the cell has no result and printed nothing.
    """
    results = []
    printed_text = ""
    for output in outputs:
        if output.get("output_type") == "execute_result":
            results.append(get_output_text(output))
        elif output.get("name") == "stdout":
            printed_text = get_output_text(output)
    last_lines = printed_text[-LAST_CHARACTERS:].split("\n")
    for text in [*results, *reversed(last_lines)]:
        shown = one_line(text, LINE_PART_LIMIT)
        if shown:
            return shown
    return ""


def format_not_run(reason: str, hint: str = "") -> Report:
    """Return the report on a cell that did not run.

    `hint` is the hint of an error: a command, a sentence or an empty string.
    """
    message = quote_message(reason)
    short_message = one_line(reason, REASON_LIMIT)
    if not NOT_RUN.search(reason):
        message = f"the cell was NOT run: {message}"
        short_message = f"cell not run: {short_message}"
    text = f"stepper: {message}"
    line = f"{FAILED_MARK} {short_message}"
    if hint:
        text += f"\n{format_hint(one_line(hint))}"
        short_hint = format_hint(one_line(hint, 120))
        line += f"; {short_hint[0].lower()}{short_hint[1:]}"
    return Report(limit_report(text), line, ok=False)


def format_unknown(reason: str, hint: str = "") -> Report:
    """Return the report on a cell whose result is not known yet.

    The cell was sent to its kernel. `hint` is the command that shows the cell's state.
    """
    text = f"stepper: {quote_message(reason)}"
    if hint:
        text += f"\nTo see the state of the cell, run: {one_line(hint)}"
    line = f"{UNKNOWN_MARK} {one_line(reason, 200)}"
    return Report(limit_report(text), line, ok=False, is_unknown=True)


def format_error(error: StepperError) -> Report:
    """Return the report on an error that was raised for a cell.

    If the error's `accepted` attribute is true, the cell may have run. Otherwise the
    cell did not run.
    """
    if error.accepted:
        return format_unknown(error.message, error.hint)
    return format_not_run(error.message, error.hint)


def _format_earlier_run(summary: RunSummary, output_limit: int) -> list[str]:
    """Return the paragraphs on a run before the last one, with shortened output.

    `output_limit` is the maximum length of the output.
    """
    parts = [_format_headline(summary)]
    parts += _format_notes(summary)
    parts += summary.modules
    parts += _format_unmet(summary)
    parts += format_outputs(
        summary.outputs, output_limit, completeness=summary.completeness
    )
    return parts


def format_runs(
    runs: Sequence[RunSummary],
    planned_count: int,
    noun: str = "new or changed code cells",
    *,
    is_next_unknown: bool = False,
) -> Report:
    """Return the report on cells that ran in order, with the last run in full.

    `runs` contains at least one run. `planned_count` is the number of cells that should
    run, and `noun` is a plural noun for these cells. `is_next_unknown` means that the
    next cell may have run, too; another report is about this cell.
    """
    last = format_run(runs[-1])
    if planned_count == 1:
        return last
    run_count = sum(not summary.preflight_failed for summary in runs)
    unknown_count = int(is_next_unknown)
    unknown_result = ""
    if is_next_unknown:
        unknown_result = ", and the result of one is not known yet"
    parts = [
        f"stepper: {run_count} of {planned_count} {noun} ran, from the"
        f" top{unknown_result}."
    ]
    for summary in runs[:-1]:
        parts += _format_earlier_run(summary, TEXT_LIMIT // len(runs))
    parts.append(last.text)
    not_run_count = planned_count - len(runs) - unknown_count
    if not_run_count > 0:
        cells = format_count(not_run_count, noun.removesuffix("s"))
        place = f"below {runs[-1].cell.label}"
        if is_next_unknown:
            place = "below the cell whose result is not known yet"
        parts.append(f"Not run: {cells} {place}.")
    ok_count = sum(summary.run.verdict is Verdict.FINE for summary in runs)
    failed_count = len(runs) - ok_count
    counts = f"{ok_count} of {planned_count} cells ok, {failed_count} failed"
    if is_next_unknown:
        counts += f", {unknown_count} unknown"
    counts += f", {not_run_count} not run"
    warnings = [
        f"cell {summary.cell.number}: {warning}"
        for summary in runs[:-1]
        for warning in summary.warnings
    ]
    line = format_line(runs[-1], f"{counts}; last: ", warnings)
    return Report(limit_report("\n".join(parts)), line, last.stop, last.ok)
