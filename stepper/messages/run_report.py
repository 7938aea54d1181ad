"""The texts for the agent and for the person: verdict first, facts not orders, bounded, no escapes.

(Over 300 lines: one report, part after part.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.common.text import clean, format_count, one_line
from stepper.messages import stop_hints
from stepper.messages.quoted_output import (
    NOTE_LIMIT,
    TEXT_LIMIT,
    Kept,
    listing,
    outputs_text,
    quote,
    span,
    text_of,
    words,
)
from stepper.policy import error_classification
from stepper.policy.commands.command_lines import UNNAMED, CommandLines
from stepper.policy.model import Cell, Fault, LeftOut, Outcome, Plan, Run, Step, Verdict

EVAL_LIMIT = 4500  # of what `stepper eval` printed: it was asked for
MISSED_LIMIT = 2500  # of what comes before a report, because nobody could read it
REPORT_LIMIT = 5800  # characters of a whole report; the client shows up to 10,000
# a report on a plain success has at most 60 words besides the output
TITLE_WORDS, CRITERION_WORDS = 9, 14
REASON_PART = 320  # of why a cell did not run: the way out of a stop comes first
LINE_PART = 80  # of each thing beside the outcome in the person's line
NEXT_LIMIT = 800  # of the source of a cell that Jupyter would make
MORE_DOUBTS = re.compile(r"… and [\d,]+(?: or)? more doubts?")

MARKS = {Outcome.OK: "✓", Outcome.CANCELLED: "■"}


@dataclass(frozen=True)
class Report:
    """What came of a request about cells: `text` for the agent, `line` for the person, `stop` where all stops."""

    text: str
    line: str = ""
    stop: str = ""
    ok: bool = True


@dataclass(frozen=True)
class Ended:
    """All that a report on one run needs."""

    cell: Cell
    run: Run  # its number is 0 where nothing ran
    outputs: Sequence[dict[str, Any]] = ()
    plan: Plan = field(default_factory=Plan)
    next_step: Step | None = None
    attempts: int = 0  # retries made so far
    max_retries: int = 3
    timeout: float = 0
    most: float = 0  # seconds that a cell may ask for
    notes: Sequence[str] = ()  # what must be known first: state lost, out of order …
    tail: Sequence[str] = ()  # what follows: completion
    complete: str = ""  # … in short
    # execution count → the cell's name
    origins: Mapping[int, str] = field(default_factory=dict)
    held: bool = False  # found before it ran: nothing of it ran
    counted: bool = False  # as an attempt, although nothing ran
    captured: Sequence[dict[str, Any]] = ()  # what went into Output widgets
    next_inputs: Sequence[str] = ()  # sources of the cells that Jupyter would make next
    seen: Sequence[str] = ()  # pictures and other rich outputs
    met: bool = False  # the step's criterion was looked at, and holds
    unmet: str = ""  # in what it is false
    where: str = ""  # its kernel is, where that is elsewhere
    follows: str = ""  # what no longer follows after it: lines
    comment: str = "#"  # what begins one in the notebook's language
    commands: CommandLines = UNNAMED  # as the report writes them
    kept: Kept = Kept.UNKNOWN  # how much of its outputs the notebook holds
    # lines on modules that changed since they were imported
    modules: Sequence[str] = ()
    # after a failure what the cell had bound and written; after a success what is odd
    doubts: Sequence[str] = ()

    @property
    def step(self) -> Step | None:
        """The step that it ran for."""
        return self.plan.step(self.run.step)


def capital(text: str) -> str:
    """Return a text as a sentence begins."""
    return text[0].upper() + text[1:]


def step_name(plan: Plan, step: Step) -> str:
    """Return how reports name a step."""
    return f'step {plan.position(step.id)} of {len(plan.steps)} "{_few(step.title, TITLE_WORDS)}"'


def _few(text: str, count: int) -> str:
    words = one_line(text, 120).split()
    return " ".join(words) if len(words) <= count else " ".join(words[:count]) + " …"


def seconds(value: float) -> str:
    """Return a duration for people."""
    return (
        f"{value:.2f} s"
        if value < 10
        else f"{value:.0f} s"
        if value < 600
        else f"{value / 60:.0f} min"
    )


def _headline(ended: Ended) -> str:
    run = ended.run
    where, took, error = (
        capital(ended.cell.label),
        seconds(run.duration_s),
        ": ".join(error_of(ended)),
    )
    if run.outcome is Outcome.OK:
        return f"{where} ran ok in {took}."
    if run.verdict is Verdict.FINE:
        return f"{where} ran in {took} and raised {error}, as its tag raises-exception allows."
    if run.outcome is Outcome.CANCELLED:
        return f"{where} was CANCELLED after {took}: it was interrupted. No attempt is counted."
    return (
        f"{where} FAILED {'before it ran' if ended.held else f'after {took}'}: {error}"
    )


def error_of(ended: Ended) -> tuple[str, str]:
    """Return the error's class and its message in one line; what is no exception has classes of its own."""
    fault = ended.run.fault
    if fault is None:
        return ended.run.outcome.value, "no details"
    message = one_line(fault.evalue) or "(no message)"
    if fault.ename == "Timeout":
        message = f"interrupted after {span(ended.timeout)} (its deadline); {message}"
    return one_line(fault.ename, 100), message


def stop_block(ended: Ended, retries: int, mend: str = "") -> str:
    """Return the text of a stop: exactly these lines, for the person now and for the agent with the next prompt."""
    run = ended.run
    name, message = error_of(ended)
    return f"""❌ Execution stopped at cell {ended.cell.number}
TODO: {one_line(ended.step.title, 200) if ended.step else "(no step)"}
Error Type: {name}
Error Message: {message}
Attempted Fixes: {retries}
Suggestion: {one_line(mend) or stop_hints.action(run.outcome, run.verdict, run.fault, ended.comment, ended.commands)}"""


def question(ended: Ended) -> str:
    """Return the line beside a stop whose cell asks the person something; '' for all others."""
    asked = (
        error_classification.extract_question(ended.run.fault.evalue)
        if ended.run.fault
        else ""
    )
    return f"The agent asks: {asked}" if asked else ""


def joined(reports: Sequence[Report]) -> Report:
    """Return several reports as one; the last one's verdict stands, and comes first in the line."""
    line = "; before it: ".join(one.line for one in reversed(reports) if one.line)
    return replace(
        reports[-1], text=bounded("\n".join(one.text for one in reports)), line=line
    )


def _standing(ended: Ended) -> str:
    if ended.step is None:
        return ""
    name = capital(step_name(ended.plan, ended.step))
    if ended.unmet:
        confirm = ended.commands.shell("confirm", '"WORDS"')
        return f"{name}: not done. Replace its cell, or say why it is done all the same: `{confirm}`."
    if ended.run.verdict is Verdict.FINE:
        about = "criterion met" if ended.met else "criterion"
        criterion = (
            f"; {about}: {_few(ended.step.criterion, CRITERION_WORDS)}"
            if ended.step.criterion
            else ""
        )
        return f"{name}: done{criterion}."
    if ended.run.verdict is Verdict.CANCELLED:
        return f"{name}: not finished."
    if ended.run.verdict is Verdict.UNRECOVERABLE:
        outside = error_classification.is_external_death(ended.run.fault)
        why = (
            "nothing in its cell ended the kernel"
            if outside
            else "not a matter of another try"
        )
        return f"{name}: failed; {why}."
    left = max(0, ended.max_retries - ended.attempts)
    return f"{name}: failed; retries made {ended.attempts}, left {left} (of {ended.max_retries})."


def _unmet(ended: Ended) -> list[str]:
    return [f"Doubt: its criterion {ended.unmet}"] if ended.unmet else []


def _failing_lines(fault: Fault, source: str, origins: Mapping[int, str]) -> list[str]:
    parts = []
    if isinstance(fault.line, int):  # a SyntaxError of the user's own may say anything
        lines = source.split("\n")
        around = [
            (n, lines[n - 1])
            for n in range(fault.line - 2, fault.line + 3)
            if 0 < n <= len(lines)
        ]
        parts.append(f"Line {fault.line} of the cell:\n" + listing(around, fault.line))
    if fault.frames:
        inner = fault.frames[-1]
        if inner.line != fault.line or inner.function != "<module>":
            where = one_line(inner.file, 200) or origins.get(
                inner.cell, f"the cell run as [{inner.cell}]"
            )
            here = f"Raised in `{one_line(inner.function, 80)}`, line {inner.line} of {where}:"
            parts.append(here + "\n" + listing(inner.context, inner.line))
    return parts


def left_out(what: LeftOut) -> str:
    """Return what the notebook's limits leave out of a cell, in words."""
    parts = []
    if what.characters:
        parts.append(format_count(what.characters, "character"))
    if what.outputs:
        # whose characters are counted above, if it is printed text
        outputs = format_count(what.outputs, "output")
        parts.append(f"{outputs} as a whole ({what.bytes:,} bytes)")
    return f"left out of the notebook: {'; '.join(parts)}"


def kernel_line(where: str) -> list[str]:
    """Return the line on where a kernel is, if that is elsewhere."""
    return [f"Kernel: {where.removeprefix('kernel ')}."] if where else []


def _notes(ended: Ended) -> list[str]:
    return [f"Note: {one_line(note, NOTE_LIMIT).rstrip('.')}." for note in ended.notes]


def of_run(ended: Ended) -> Report:
    """Return the report on one run."""
    run = ended.run
    parts = ["stepper: " + _headline(ended), *filter(None, [_standing(ended)])]
    if ended.held:
        count = (
            "the third in a row: it counts as an attempt"
            if ended.counted
            else "no attempt is counted"
        )
        parts.append(
            f"Nothing of the cell ran; {count}. The same code written once more runs."
        )
    parts += _notes(ended)
    parts += ended.modules
    parts += kernel_line(ended.where)
    room = TEXT_LIMIT
    if run.verdict is not Verdict.FINE and run.fault is not None:
        fault = run.fault
        parts += [f"Suggestion: {one_line(fault.suggestion)}"] * (
            fault.suggestion not in fault.evalue
        )
        parts += stop_hints.more_time(
            run.outcome, ended.timeout, ended.most, ended.comment
        )
        parts += _failing_lines(fault, ended.cell.source, ended.origins)
        chain = [
            (how, name, said)
            for how, name, said in fault.chain
            if not said or said not in fault.evalue
        ]
        parts += [
            f"{capital(how)} {one_line(name, 100)}: {one_line(said, 200)}"
            for how, name, said in chain[:3]
        ]
        if len(clean(fault.evalue).strip().split("\n", 1)) > 1:
            parts.append("The message:\n" + quote(fault.evalue, 1200))
        parts += _calls(fault)
        room = 1200
    about = "Doubt" if run.verdict is Verdict.FINE else "Note"
    parts += _unmet(ended)
    parts += [
        one if MORE_DOUBTS.fullmatch(one) else f"{about}: {one}" for one in ended.doubts
    ]
    # `run_cell` in a cell shows one
    errors = run.outcome is Outcome.OK
    parts += outputs_text(ended.outputs, room, errors=errors, kept=ended.kept)
    parts += outputs_text(ended.captured, room // 2, "In an Output widget", errors=True)
    parts += list(ended.seen)
    parts += [
        f"Jupyter would make a cell below it, which stepper does not:\n{quote(source, NEXT_LIMIT)}"
        for source in ended.next_inputs[:2]
    ]
    parts += [ended.follows] if ended.follows else []
    if run.verdict is Verdict.FINE and ended.next_step is not None and not ended.unmet:
        parts.append(f"Next: {step_name(ended.plan, ended.next_step)}.")
    parts += ended.tail
    return Report(
        bounded("\n".join(parts)), person_line(ended), ok=run.verdict is Verdict.FINE
    )


def of_scratch(ended: Ended) -> str:
    """Return the report on code that was run beside the notebook: the verdict, then what it printed."""
    run = ended.run
    took, fault = seconds(run.duration_s), run.fault
    if run.outcome is Outcome.OK:
        parts = [f"stepper: eval ran ok in {took}."]
    elif run.outcome is Outcome.CANCELLED:
        parts = [f"stepper: eval was CANCELLED after {took}."]
    else:
        parts = [f"stepper: eval FAILED after {took}: {': '.join(error_of(ended))}"]
        if fault is not None:
            parts += (
                [f"Suggestion: {one_line(fault.suggestion)}"]
                if fault.suggestion
                else []
            )
            parts += stop_hints.more_time(
                run.outcome, ended.timeout, ended.most, ended.comment
            )
            parts += _failing_lines(fault, ended.cell.source, {}) + _calls(fault)
    parts += ended.modules
    return bounded(
        "\n".join([*parts, *outputs_text(ended.outputs, EVAL_LIMIT), *ended.seen])
    )


def _calls(fault: Fault) -> list[str]:
    """Return the traceback, as the kernel has it, of an error of which no helper tells: what it says besides it."""
    if fault.mro or fault.frames:
        return []
    said = f"{fault.ename}: {fault.evalue}"
    lines = [
        line
        for line in clean(fault.traceback).splitlines()
        if line.strip() not in (*said.splitlines(), said, "")
    ]
    lines = [
        line
        for line in lines
        if line.strip() != "Traceback:" and line.strip() not in said
    ]
    return ["Traceback:\n" + quote("\n".join(lines), 800)] if lines else []


def bounded(text: str, limit: int = REPORT_LIMIT) -> str:
    """Return a report within the limit; what is over it is cut in the middle, at lines."""
    if len(text) <= limit:
        return text
    head = text[: limit // 2].rsplit("\n", 1)[0]
    tail = "\n".join(text[-(limit // 2 - 100) :].split("\n")[1:])
    return f"{head}\n… {len(text) - len(head) - len(tail):,} characters of the report left out …\n{tail}"


def person_line(ended: Ended, first: str = "", doubts: Sequence[str] = ()) -> str:
    """Return the one line that the person sees: step n of m, title, outcome, duration, and what else is of weight.

    `first` is what comes before all that. What the cell showed stands at the end behind `| `, as in reports.
    """
    run = ended.run
    where = step_name(ended.plan, ended.step) if ended.step else ended.cell.label
    mark = (
        MARKS[Outcome.OK]
        if run.verdict is Verdict.FINE
        else MARKS.get(run.outcome, "✗")
    )
    mark, told = (
        ("?", f"ok, but {ended.unmet}") if ended.unmet else (mark, run.outcome.value)
    )
    if run.outcome not in (Outcome.OK, Outcome.CANCELLED):
        told = ": ".join(error_of(ended))
    took = "found before it ran" if ended.held else seconds(run.duration_s)
    parts = [first + where, one_line(told, 160), took, *filter(None, [ended.where])]
    shown = ""
    if run.verdict is Verdict.FINE:
        doubts = [*doubts, *ended.doubts]
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        parts += [f"doubt: {one_line(doubts[0], LINE_PART)}{more}"] if doubts else []
        parts += [one_line(line, LINE_PART) for line in ended.seen[:1]]
        shown = _shown(ended.outputs)
    parts += [ended.complete] if ended.complete else []
    return f"{mark} {' · '.join(parts)}{' | ' if shown else ''}{shown}"


def _shown(outputs: Sequence[Mapping[str, Any]]) -> str:
    """Return the first line of a cell's result, else the last that it printed; '' for none."""
    results = [
        text_of(output)
        for output in outputs
        if output.get("output_type") == "execute_result"
    ]
    printed = [text_of(output) for output in outputs if output.get("name") == "stdout"]
    lines = (
        printed[-1][-2000:].split("\n")[::-1] if printed and not results else results
    )
    return next(filter(None, (one_line(line, LINE_PART) for line in lines)), "")


def not_run(reason: str, hint: str = "") -> Report:
    """Return the report on a cell that did not run: why, and the command that mends it."""
    text = f"stepper: the cell was NOT run: {words(reason)}"
    if hint:
        text += f"\nThe command that mends it: {one_line(hint)}"
    mend = f"; what mends it: {one_line(hint, 120)}" if hint else ""
    return Report(
        bounded(text),
        f"✗ cell not run: {one_line(reason, REASON_PART)}{mend}",
        ok=False,
    )


def unknown(reason: str, hint: str = "") -> Report:
    """Return the report on a cell that was sent to its kernel, and of which no more is known now."""
    text = f"stepper: {words(reason)}" + (
        f"\nThe command that tells how it stands: {one_line(hint)}" if hint else ""
    )
    return Report(bounded(text), f"… {one_line(reason, 200)}", ok=False)


def of_runs(
    ended: Sequence[Ended], planned: int, what: str = "new or changed code cells"
) -> Report:
    """Return the report on cells of a notebook that ran one after the other, in order, the last one in full."""
    last = of_run(ended[-1])
    if planned == 1:
        return last
    ran = sum(not one.held for one in ended)
    parts = [f"stepper: {ran} of {planned} {what} ran, from the top."]
    for one in ended[:-1]:
        parts += [
            _headline(one),
            *_notes(one),
            *one.modules,
            *_unmet(one),
            *outputs_text(one.outputs, TEXT_LIMIT // len(ended), kept=one.kept),
        ]
    parts.append(last.text)
    if len(ended) < planned:
        parts.append(f"Not run: the {planned - len(ended)} {what} below it.")
    ok = sum(one.run.verdict is Verdict.FINE for one in ended)
    counts = f"{ok} of {planned} cells ok, {len(ended) - ok} failed, {planned - len(ended)} not run; last: "
    doubts = [
        f"cell {one.cell.number}: {doubt}" for one in ended[:-1] for doubt in one.doubts
    ]
    line = person_line(ended[-1], counts, doubts)
    return Report(bounded("\n".join(parts)), line, last.stop, last.ok)
