"""Reports on runs: a text for the agent and one line for the user.

A report starts with the verdict, states facts rather than orders, is bounded and has no
escape sequences. Text of cells is quoted (`quoted_output`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.common.text import clean, format_count, one_line
from stepper.messages import stop_suggestion
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
EVAL_LIMIT = 4500  # of the output of `stepper eval`, which the agent asked for
UNDELIVERED_LIMIT = 2500  # of undelivered reports before another report
FAILURE_OUTPUT_LIMIT = 1200  # of the output of a failed cell
LINE_PART_LIMIT = 80  # of each part of the user's line
# Of the reason why a cell did not run: the way out of a stop comes first in it.
REASON_LIMIT = 320
INSERTED_CELL_LIMIT = 800  # of a source that Jupyter would insert as a cell
# A report on a plain success has at most 60 words besides the output.
TITLE_WORDS = 9
CRITERION_WORDS = 14
CONTEXT_LINES = 2  # above and below a failing line
MAX_CAUSES = 3  # of an error's chain
OMITTED_WARNINGS = re.compile(r"… and [\d,]+(?: or)? more warnings?")


@dataclass(frozen=True)
class Report:
    """The result of a request that concerns cells.

    `text` is for the agent, `line` for the user; `stop` is the text of a stop.
    """

    text: str
    line: str = ""
    stop: str = ""
    ok: bool = True


@dataclass(frozen=True)
class RunSummary:
    """Everything that the report on one finished run needs."""

    cell: Cell
    run: Run  # its number is 0 if nothing ran
    outputs: Sequence[dict[str, Any]] = ()
    plan: Plan = field(default_factory=Plan)
    next_step: Step | None = None
    attempts: int = 0  # retries so far
    max_retries: int = 3
    timeout: float = 0  # seconds
    max_timeout: float = 0  # seconds that a cell may ask for
    notes: Sequence[str] = ()  # what the agent must know first, such as a lost state
    tail: Sequence[str] = ()  # lines at the end, such as the completion
    completion: str = ""  # the completion in short
    # Execution count → the cell's label.
    origins: Mapping[int, str] = field(default_factory=dict)
    preflight_failed: bool = False  # the preflight check failed: the cell did not run
    counted: bool = False  # the cell did not run, but this counts as an attempt
    captured: Sequence[dict[str, Any]] = ()  # outputs inside Output widgets
    inserted_sources: Sequence[str] = ()  # cells that Jupyter would insert below
    figures: Sequence[str] = ()  # lines on figures and other rich outputs
    criterion_met: bool = False  # the step's criterion was evaluated and is true
    unmet: str = ""  # in what the step's criterion is false
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
    """Return a text with an upper-case first letter."""
    return text[0].upper() + text[1:]


def format_step(plan: Plan, step: Step) -> str:
    """Return the name of a step in reports: `step 2 of 7 "Load the data"`."""
    title = _limit_words(step.title, TITLE_WORDS)
    return f'step {plan.get_position(step.id)} of {len(plan.steps)} "{title}"'


def _limit_words(text: str, count: int) -> str:
    words = one_line(text, 120).split()
    shown = " ".join(words[:count])
    return shown if len(words) <= count else f"{shown} …"


def format_seconds(value: float) -> str:
    """Return a measured duration."""
    if value < 10:
        return f"{value:.2f} s"
    if value < 600:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min"


def _format_headline(ended: RunSummary) -> str:
    run = ended.run
    label = capitalize_first(ended.cell.label)
    took = format_seconds(run.duration_s)
    error = ": ".join(get_error(ended))
    if run.outcome is Outcome.OK:
        return f"{label} ran ok in {took}."
    if run.verdict is Verdict.FINE:
        return (
            f"{label} ran in {took} and raised {error}, as its tag raises-exception"
            " allows."
        )
    if run.outcome is Outcome.CANCELLED:
        return (
            f"{label} was CANCELLED after {took}: it was interrupted."
            " This does not count as an attempt."
        )
    if ended.preflight_failed:
        return f"{label} did NOT run. The preflight check found {error}"
    return f"{label} FAILED after {took}: {error}"


def get_error(ended: RunSummary) -> tuple[str, str]:
    """Return the class name and the message of an error, each on one line.

    For an outcome that is not an exception, the name is stepper's own, such as
    `Timeout`.
    """
    fault = ended.run.fault
    if fault is None:
        return ended.run.outcome.value, "no details"
    message = one_line(fault.evalue) or "(no message)"
    if fault.ename == "Timeout":
        deadline = format_span(ended.timeout)
        message = f"interrupted after {deadline} (its deadline); {message}"
    return one_line(fault.ename, 100), message


def format_stop_block(ended: RunSummary, retries: int, suggestion: str = "") -> str:
    """Return the text of a stop, in exactly these lines.

    The user reads the block at once, the agent with the next prompt.
    """
    run = ended.run
    name, message = get_error(ended)
    title = one_line(ended.step.title, 200) if ended.step else "(no step)"
    hint = one_line(suggestion)
    if not hint:
        hint = stop_suggestion.suggest_action(
            run.outcome, run.verdict, run.fault, ended.comment, ended.commands
        )
    return "\n".join(
        [
            f"{STOP_SIGN} Execution stopped at cell {ended.cell.number}",
            f"TODO: {title}",
            f"Error Type: {name}",
            f"Error Message: {message}",
            f"Attempted Fixes: {retries}",
            f"Suggestion: {hint}",
        ]
    )


def format_question(ended: RunSummary) -> str:
    """Return the line on a stop whose cell asks the user something, or ''."""
    if ended.run.fault is None:
        return ""
    asked = error_classification.extract_question(ended.run.fault.evalue)
    return f"The agent asks: {asked}" if asked else ""


def join_reports(reports: Sequence[Report]) -> Report:
    """Return several reports as one, with the verdict of the last one."""
    lines = [report.line for report in reversed(reports) if report.line]
    text = limit_report("\n".join(report.text for report in reports))
    return replace(reports[-1], text=text, line="; before it: ".join(lines))


def _format_step_state(ended: RunSummary) -> str:
    """Return the line on the step of a run, or '' for a cell outside the plan."""
    step = ended.step
    if step is None:
        return ""
    name = capitalize_first(format_step(ended.plan, step))
    if ended.unmet:
        confirm = ended.commands.shell("confirm", '"REASON"')
        return (
            f"{name}: not done. Replace its cell, or give a reason why the step is done"
            f" although its criterion is false: `{confirm}`."
        )
    if ended.run.verdict is Verdict.FINE:
        if not step.criterion:
            return f"{name}: done."
        label = "criterion met" if ended.criterion_met else "criterion"
        criterion = _limit_words(step.criterion, CRITERION_WORDS)
        return f"{name}: done; {label}: {criterion}."
    if ended.run.verdict is Verdict.CANCELLED:
        return f"{name}: not finished."
    if ended.run.verdict is Verdict.UNRECOVERABLE:
        if error_classification.is_external_death(ended.run.fault):
            return f"{name}: failed; its cell did not cause the kernel's death."
        return f"{name}: failed; another attempt would not help."
    left = max(0, ended.max_retries - ended.attempts)
    return (
        f"{name}: failed; {ended.attempts} of {ended.max_retries} retries used,"
        f" {left} left."
    )


def _format_failing_lines(
    fault: Fault, source: str, origins: Mapping[int, str]
) -> list[str]:
    """Return the listings of the failing line and of the frame that raised."""
    parts = []
    # The attribute `lineno` of a user's own SyntaxError may hold anything.
    if isinstance(fault.line, int):
        lines = source.split("\n")
        first = max(1, fault.line - CONTEXT_LINES)
        last = min(len(lines), fault.line + CONTEXT_LINES)
        context = [(number, lines[number - 1]) for number in range(first, last + 1)]
        listing = format_listing(context, fault.line)
        parts.append(f"Line {fault.line} of the cell:\n{listing}")
    if not fault.frames:
        return parts
    frame = fault.frames[-1]
    if frame.line != fault.line or frame.function != "<module>":
        where = one_line(frame.file, 200)
        if not where:
            where = origins.get(frame.cell, f"the cell run as [{frame.cell}]")
        function = one_line(frame.function, 80)
        listing = format_listing(frame.context, frame.line)
        parts.append(
            f"Raised in `{function}`, line {frame.line} of {where}:\n{listing}"
        )
    return parts


def format_left_out(omitted: OmittedOutput) -> str:
    """Return what the notebook's limits left out of a cell's outputs."""
    parts = []
    if omitted.characters:
        parts.append(format_count(omitted.characters, "character"))
    if omitted.outputs:
        # The characters of printed text are counted above.
        outputs = format_count(omitted.outputs, "output")
        parts.append(f"{outputs} as a whole ({omitted.bytes:,} bytes)")
    return f"left out of the notebook: {'; '.join(parts)}"


def format_kernel(where: str) -> list[str]:
    """Return the line on a remote kernel, in a list; empty for a local one."""
    return [f"Kernel: {where.removeprefix('kernel ')}."] if where else []


def _format_notes(ended: RunSummary) -> list[str]:
    return [f"Note: {one_line(note, NOTE_LIMIT).rstrip('.')}." for note in ended.notes]


def _format_unmet(ended: RunSummary) -> list[str]:
    return [f"Warning: its criterion {ended.unmet}"] if ended.unmet else []


def format_run(ended: RunSummary) -> Report:
    """Return the report on one run."""
    run = ended.run
    is_fine = run.verdict is Verdict.FINE
    parts = ["stepper: " + _format_headline(ended)]
    step_state = _format_step_state(ended)
    if step_state:
        parts.append(step_state)
    if ended.preflight_failed:
        count = "This does not count as an attempt."
        if ended.counted:
            count = "This is the third time in a row and counts as an attempt."
        parts.append(f"{count} To run it anyway, submit the same code again.")
    parts += _format_notes(ended)
    parts += ended.modules
    parts += format_kernel(ended.where)
    output_limit = TEXT_LIMIT
    if not is_fine and run.fault is not None:
        parts += _format_fault(ended, run.fault)
        output_limit = FAILURE_OUTPUT_LIMIT
    parts += _format_unmet(ended)
    label = "Warning" if is_fine else "Note"
    for warning in ended.warnings:
        is_count = OMITTED_WARNINGS.fullmatch(warning)
        parts.append(warning if is_count else f"{label}: {warning}")
    # A cell that calls `run_cell` may show an error and succeed.
    shows_errors = run.outcome is Outcome.OK
    parts += format_outputs(
        ended.outputs,
        output_limit,
        errors=shows_errors,
        completeness=ended.completeness,
    )
    parts += format_outputs(
        ended.captured, output_limit // 2, "In an Output widget", errors=True
    )
    parts += ended.figures
    for source in ended.inserted_sources[:2]:
        parts.append(
            "Jupyter would insert a cell below with this source; stepper does not:\n"
            + quote(source, INSERTED_CELL_LIMIT)
        )
    if ended.stale_lines:
        parts.append(ended.stale_lines)
    if is_fine and ended.next_step is not None and not ended.unmet:
        parts.append(f"Next: {format_step(ended.plan, ended.next_step)}.")
    parts += ended.tail
    return Report(limit_report("\n".join(parts)), format_line(ended), ok=is_fine)


def _format_fault(ended: RunSummary, fault: Fault) -> list[str]:
    """Return the suggestion, the failing lines, the causes and the whole message."""
    parts = []
    if fault.suggestion not in fault.evalue:
        parts.append(f"Suggestion: {one_line(fault.suggestion)}")
    parts += stop_suggestion.suggest_more_time(
        ended.run.outcome, ended.timeout, ended.max_timeout, ended.comment
    )
    parts += _format_failing_lines(fault, ended.cell.source, ended.origins)
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
        parts.append("The message:\n" + quote(fault.evalue, 1200))
    return parts + _format_traceback(fault)


def format_scratch(ended: RunSummary) -> str:
    """Return the report on a scratch execution: the verdict, then the output."""
    run = ended.run
    took = format_seconds(run.duration_s)
    if run.outcome is Outcome.OK:
        parts = [f"stepper: eval ran ok in {took}."]
    elif run.outcome is Outcome.CANCELLED:
        parts = [f"stepper: eval was CANCELLED after {took}."]
    else:
        error = ": ".join(get_error(ended))
        parts = [f"stepper: eval FAILED after {took}: {error}"]
        fault = run.fault
        if fault is not None:
            if fault.suggestion:
                parts.append(f"Suggestion: {one_line(fault.suggestion)}")
            parts += stop_suggestion.suggest_more_time(
                run.outcome, ended.timeout, ended.max_timeout, ended.comment
            )
            parts += _format_failing_lines(fault, ended.cell.source, {})
            parts += _format_traceback(fault)
    parts += ended.modules
    parts += format_outputs(ended.outputs, EVAL_LIMIT)
    parts += ended.figures
    return limit_report("\n".join(parts))


def _format_traceback(fault: Fault) -> list[str]:
    """Return the kernel's own traceback if the helper reported no details.

    Lines that only repeat the error are left out.
    """
    if fault.mro or fault.frames:
        return []
    error = f"{fault.ename}: {fault.evalue}"
    lines = []
    for line in clean(fault.traceback).splitlines():
        text = line.strip()
        if text != "Traceback:" and text not in error:
            lines.append(line)
    return ["Traceback:\n" + quote("\n".join(lines), 800)] if lines else []


def limit_report(text: str, limit: int = REPORT_LIMIT) -> str:
    """Return a report within a limit; a longer one is cut in the middle, at lines."""
    if len(text) <= limit:
        return text
    head = text[: limit // 2].rsplit("\n", 1)[0]
    tail = "\n".join(text[-(limit // 2 - 100) :].split("\n")[1:])
    omitted = len(text) - len(head) - len(tail)
    return f"{head}\n… {omitted:,} characters of the report left out …\n{tail}"


def format_line(
    ended: RunSummary, prefix: str = "", warnings: Sequence[str] = ()
) -> str:
    """Return the user's line: step, title, outcome, duration, warnings.

    The first line of the cell's output is at the end after `| `, as in reports.
    `warnings` are those of earlier cells.
    """
    run = ended.run
    is_fine = run.verdict is Verdict.FINE
    if ended.unmet:
        mark = CRITERION_FALSE_MARK
        result = f"ok, but {ended.unmet}"
    else:
        mark = get_run_mark(run.outcome, is_fine)
        result = run.outcome.value
    if run.outcome not in (Outcome.OK, Outcome.CANCELLED):
        result = ": ".join(get_error(ended))
    name = format_step(ended.plan, ended.step) if ended.step else ended.cell.label
    took = format_seconds(run.duration_s)
    if ended.preflight_failed:
        took = "did not run (preflight check)"
    parts = [prefix + name, one_line(result, 160), took]
    if ended.where:
        parts.append(ended.where)
    output = ""
    if is_fine:
        all_warnings = [*warnings, *ended.warnings]
        if all_warnings:
            more = f" (and {len(all_warnings) - 1} more)" if all_warnings[1:] else ""
            first = one_line(all_warnings[0], LINE_PART_LIMIT)
            parts.append(f"warning: {first}{more}")
        parts += [one_line(line, LINE_PART_LIMIT) for line in ended.figures[:1]]
        output = _find_output_line(ended.outputs)
    if ended.completion:
        parts.append(ended.completion)
    line = f"{mark} {' · '.join(parts)}"
    return f"{line} | {output}" if output else line


def _find_output_line(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of a cell's result, else its last printed line, or ''."""
    results = [
        get_output_text(output)
        for output in outputs
        if output.get("output_type") == "execute_result"
    ]
    printed = [
        get_output_text(output) for output in outputs if output.get("name") == "stdout"
    ]
    lines = results
    if printed and not results:
        lines = printed[-1][-2000:].split("\n")[::-1]
    for line in lines:
        shown = one_line(line, LINE_PART_LIMIT)
        if shown:
            return shown
    return ""


def format_not_run(reason: str, hint: str = "") -> Report:
    """Return the report on a cell that did not run, with the command that fixes it."""
    text = f"stepper: the cell was NOT run: {quote_message(reason)}"
    line = f"{FAILED_MARK} cell not run: {one_line(reason, REASON_LIMIT)}"
    if hint:
        text += f"\nTo fix this, run: {one_line(hint)}"
        line += f"; to fix this, run: {one_line(hint, 120)}"
    return Report(limit_report(text), line, ok=False)


def format_unknown(reason: str, hint: str = "") -> Report:
    """Return the report on a cell whose result is not known yet.

    The cell was sent to its kernel; `hint` is the command that shows its state.
    """
    text = f"stepper: {quote_message(reason)}"
    if hint:
        text += f"\nTo see its state, run: {one_line(hint)}"
    return Report(
        limit_report(text), f"{UNKNOWN_MARK} {one_line(reason, 200)}", ok=False
    )


def format_runs(
    runs: Sequence[RunSummary], planned: int, noun: str = "new or changed code cells"
) -> Report:
    """Return the report on cells that ran in order, with the last one in full.

    `planned` is the number of cells to run, `noun` their name in the report.
    """
    last = format_run(runs[-1])
    if planned == 1:
        return last
    ran = sum(1 for ended in runs if not ended.preflight_failed)
    parts = [f"stepper: {ran} of {planned} {noun} ran, from the top."]
    for ended in runs[:-1]:
        parts.append(_format_headline(ended))
        parts += _format_notes(ended)
        parts += ended.modules
        parts += _format_unmet(ended)
        parts += format_outputs(
            ended.outputs,
            TEXT_LIMIT // len(runs),
            completeness=ended.completeness,
        )
    parts.append(last.text)
    not_run = planned - len(runs)
    if not_run > 0:
        parts.append(f"Not run: the {not_run} {noun} below it.")
    ok = sum(1 for ended in runs if ended.run.verdict is Verdict.FINE)
    counts = f"{ok} of {planned} cells ok, {len(runs) - ok} failed, {not_run} not run"
    warnings = [
        f"cell {ended.cell.number}: {warning}"
        for ended in runs[:-1]
        for warning in ended.warnings
    ]
    line = format_line(runs[-1], f"{counts}; last: ", warnings)
    return Report(limit_report("\n".join(parts)), line, last.stop, last.ok)
