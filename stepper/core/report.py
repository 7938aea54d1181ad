"""The texts for the agent and for the person: verdict first, facts not orders, bounded, no escapes.

Every line that a cell printed stands behind `| `, so that nothing printed can pass for stepper's own words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepper.core import suggest
from stepper.core.model import Cell, Fault, Outcome, Plan, Step, Verdict

TEXT_LIMIT = 2000  # characters of a cell's output in a report
REPORT_LIMIT = 5800  # characters of a whole report; the client shows up to 10,000
LINE_LIMIT = 400
MESSAGE_LIMIT = 600
# Terminal escapes, then every other control character but tab and newline (bidirectional controls too).
ESCAPES = re.compile(r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")

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
    outcome: Outcome
    verdict: Verdict
    duration_s: float
    outputs: Sequence[dict[str, Any]] = ()
    fault: Fault | None = None
    plan: Plan = field(default_factory=Plan)
    step: Step | None = None
    next_step: Step | None = None
    attempts: int = 0  # retries made so far
    max_retries: int = 3
    timeout: float = 0
    notes: Sequence[str] = ()  # what must be known first: state lost, out of order …
    tail: Sequence[str] = ()  # what follows: completion
    origins: Mapping[int, str] = field(default_factory=dict)  # execution count → the cell's name
    run: int = 0  # its number in the journal; 0 where nothing ran


def clean(text: str) -> str:
    """Return text without terminal escapes and control characters; tabs and newlines stay."""
    return CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the first line that is not blank, cleaned and at most `limit` characters long."""
    line = next((line for line in clean(text).splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def quote(text: str, limit: int) -> str:
    """Return a cell's text behind `| `, head and tail within `limit` characters, with the number left out."""
    text = clean("\n".join(map(_last_state, text.replace("\r\n", "\n").split("\n")))).strip("\n")
    lines = [line if len(line) <= LINE_LIMIT else _cut_line(line) for line in text.split("\n")]
    total = sum(len(line) + 1 for line in lines)
    if total <= limit:
        return "\n".join(f"| {line}" for line in lines)
    head, used = 0, 0
    while used + len(lines[head]) + 1 <= limit * 0.6:
        used += len(lines[head]) + 1
        head += 1
    tail, used = len(lines), 0
    while used + len(lines[tail - 1]) + 1 <= limit * 0.35:
        tail -= 1
        used += len(lines[tail]) + 1
    left = lines[head:tail]
    said = (
        f"… {len(left):,} lines ({sum(len(line) + 1 for line in left):,} characters) left out; all is in the notebook"
    )
    return "\n".join([*(f"| {line}" for line in lines[:head]), said, *(f"| {line}" for line in lines[tail:])])


def _last_state(line: str) -> str:
    """Return what is left of a line that carriage returns overwrote."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def _cut_line(line: str) -> str:
    keep = LINE_LIMIT // 2
    return f"{line[:keep]} …{len(line) - 2 * keep:,} characters… {line[-keep:]}"


def place(cell: Cell) -> str:
    """Return how reports name a cell: by number among code cells and by id."""
    return f"cell {cell.number} (id {clean(cell.id)})"


def step_name(plan: Plan, step: Step) -> str:
    """Return how reports name a step."""
    return f'step {plan.position(step.id)} of {len(plan.steps)} "{one_line(step.title, 120)}"'


def seconds(value: float) -> str:
    """Return a duration for people."""
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s" if value < 600 else f"{value / 60:.0f} min"


def headline(ended: Ended) -> str:
    """Return the verdict, in one line."""
    where, took = place(ended.cell), seconds(ended.duration_s)
    where = where[0].upper() + where[1:]
    if ended.outcome is Outcome.OK:
        return f"{where} ran ok in {took}."
    if ended.verdict is Verdict.FINE:
        return f"{where} ran in {took} and raised {': '.join(error_of(ended))}, as its tag raises-exception allows."
    if ended.outcome is Outcome.CANCELLED:
        return f"{where} was CANCELLED after {took}: interrupted on the person's side. No attempt is counted."
    name, message = error_of(ended)
    return f"{where} FAILED after {took}: {name}: {message}"


def error_of(ended: Ended) -> tuple[str, str]:
    """Return the error's class and its message in one line; what is no exception has classes of its own."""
    fault = ended.fault
    if fault is None:
        return ended.outcome.value, "no details"
    message = one_line(fault.evalue) or "(no message)"
    if fault.ename == "Timeout":
        message = f"interrupted after {ended.timeout:g} s (its deadline); {message}"
    return one_line(fault.ename, 100), message


def short_fault(fault: Fault | None) -> str:
    """Return an error in one line."""
    return f"{one_line(fault.ename, 100)}: {one_line(fault.evalue, 200)}" if fault else "failed"


def stop_block(ended: Ended, retries: int, mend: str = "") -> str:
    """Return the text of a stop: exactly these lines, for the person now and for the agent with the next prompt."""
    name, message = error_of(ended)
    title = one_line(ended.step.title, 200) if ended.step else "(no step)"
    return "\n".join(
        [
            f"❌ Execution stopped at cell {ended.cell.number}",
            f"TODO: {title}",
            f"Error Type: {name}",
            f"Error Message: {message}",
            f"Attempted Fixes: {retries}",
            f"Suggestion: {one_line(mend) or suggest.action(ended.outcome, ended.verdict, ended.fault)}",
        ]
    )


def joined(reports: Sequence[Report]) -> Report:
    """Return several reports as one; the last one's line and verdict stand."""
    last = reports[-1]
    return Report(bounded("\n".join(one.text for one in reports)), last.line, last.stop, last.ok)


def standing(ended: Ended) -> str:
    """Return where the step stands after the run."""
    if ended.step is None:
        return ""
    name = step_name(ended.plan, ended.step)
    name = name[0].upper() + name[1:]
    if ended.verdict is Verdict.FINE:
        criterion = f"; criterion: {one_line(ended.step.criterion, 300)}" if ended.step.criterion else ""
        return f"{name}: done{criterion}."
    if ended.verdict is Verdict.CANCELLED:
        return f"{name}: not finished."
    if ended.verdict is Verdict.UNRECOVERABLE:
        return f"{name}: failed; not a matter of another try."
    left = ended.max_retries - ended.attempts
    return f"{name}: failed; retries made {ended.attempts}, left {left} (of {ended.max_retries})."


def failing_lines(fault: Fault, source: str, origins: Mapping[int, str]) -> list[str]:
    """Return the failing line of the cell with its neighbours, and the frame in an earlier cell where it arose."""
    parts = []
    if fault.line is not None:
        lines = source.split("\n")
        around = [(n, lines[n - 1]) for n in range(fault.line - 2, fault.line + 3) if 0 < n <= len(lines)]
        parts.append(f"Line {fault.line} of the cell:\n" + _listing(around, fault.line))
    if fault.frames:
        inner = fault.frames[-1]
        if inner.line != fault.line or inner.function != "<module>":
            where = clean(inner.file) or origins.get(inner.cell, f"the cell run as [{inner.cell}]")
            here = f"Raised in `{one_line(inner.function, 80)}`, line {inner.line} of {where}:"
            parts.append(here + "\n" + _listing(inner.context, inner.line))
    return parts


def _listing(lines: Sequence[tuple[int, str]], failing: int) -> str:
    return "\n".join(f"| {'→' if n == failing else ' '}{n:>4}  {one_or_cut(clean(text))}" for n, text in lines)


def one_or_cut(line: str) -> str:
    """Return a line of code, cut where it is very long."""
    return line if len(line) <= 200 else line[:199] + "…"


def outputs_text(outputs: Sequence[dict[str, Any]], limit: int = TEXT_LIMIT) -> list[str]:
    """Return what the outputs hold: text within `limit` characters, and a line for each that is no text."""
    texts, rich = [], []
    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream":
            texts.append(_joined(output.get("text", "")))
        elif kind in ("execute_result", "display_data"):
            data = output.get("data") or {}
            shown = [f"{mime}, {_size(content)}" for mime, content in data.items() if mime != "text/plain"]
            if any(mime.startswith("image/") for mime in data):
                rich.append("; ".join(shown))
            elif "text/plain" in data:
                texts.append(_joined(data["text/plain"]) + "\n")
            elif shown:
                rich.append("; ".join(shown))
    parts = []
    text = "".join(texts)
    if text.strip():
        parts.append("Output:\n" + quote(text, limit))
    if rich:
        more = f" and {len(rich) - 8} more" if len(rich) > 8 else ""
        parts.append("In the notebook: " + " | ".join(clean(item) for item in rich[:8]) + more)
    return parts


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else "".join(str(item) for item in value)


def _size(content: Any) -> str:
    size = len(content) if isinstance(content, str) else sum(len(str(item)) for item in content)
    return f"{size / 1024:.0f} kB" if size >= 1024 else f"{size} bytes"


def of_run(ended: Ended) -> Report:
    """Return the report on one run."""
    parts = ["stepper: " + headline(ended), *filter(None, [standing(ended)])]
    parts += [f"Note: {note}" for note in ended.notes]
    room = TEXT_LIMIT
    if ended.verdict is not Verdict.FINE and ended.fault is not None:
        parts += failing_lines(ended.fault, ended.cell.source, ended.origins)
        more = clean(ended.fault.evalue).strip().split("\n", 1)
        if len(more) > 1:
            parts.append("The whole message:\n" + quote(ended.fault.evalue, 1200))
        room = 1200
    parts += outputs_text(ended.outputs, room)
    if ended.outcome is Outcome.TIMEOUT:
        parts.append("A first line `# stepper: timeout=10m` gives a cell more time, up to max_cell_timeout_seconds.")
    if ended.verdict is Verdict.FINE and ended.next_step is not None:
        parts.append(f"Next: {step_name(ended.plan, ended.next_step)}.")
    parts += ended.tail
    return Report(bounded("\n".join(parts)), person_line(ended), ok=ended.verdict is Verdict.FINE)


def bounded(text: str) -> str:
    """Return a report within the limit; what is over it is cut in the middle, at lines."""
    if len(text) <= REPORT_LIMIT:
        return text
    head = text[: REPORT_LIMIT // 2].rsplit("\n", 1)[0]
    tail = text[-(REPORT_LIMIT // 2 - 100) :].split("\n", 1)[-1]
    return f"{head}\n… {len(text) - len(head) - len(tail):,} characters of the report left out …\n{tail}"


def person_line(ended: Ended) -> str:
    """Return the one line that the person sees: step n of m, title, outcome, duration."""
    where = step_name(ended.plan, ended.step) if ended.step else place(ended.cell)
    mark = MARKS[Outcome.OK] if ended.verdict is Verdict.FINE else MARKS.get(ended.outcome, "✗")
    told = ended.outcome.value
    if ended.outcome not in (Outcome.OK, Outcome.CANCELLED):
        told = ": ".join(error_of(ended))
    return f"{mark} {where} · {one_line(told, 160)} · {seconds(ended.duration_s)}"


def not_run(reason: str, hint: str = "") -> Report:
    """Return the report on a cell that did not run: why, and the command that mends it."""
    text = f"stepper: the cell was NOT run: {clean(reason)}"
    if hint:
        text += f"\nThe command that mends it: {clean(hint)}"
    return Report(bounded(text), f"✗ cell not run: {one_line(reason, 160)}", ok=False)


def of_runs(ended: Sequence[Ended], planned: int) -> Report:
    """Return the report on the cells of a notebook that was written whole, in order, the last one in full."""
    last = of_run(ended[-1])
    if planned == 1:
        return last
    parts = [f"stepper: {len(ended)} of {planned} new or changed code cells ran, from the top."]
    for one in ended[:-1]:
        parts += [headline(one), *outputs_text(one.outputs, TEXT_LIMIT // len(ended))]
    parts.append(last.text)
    if len(ended) < planned:
        parts.append(f"Not run: the {planned - len(ended)} new or changed code cells below it.")
    return Report(bounded("\n".join(parts)), last.line, last.stop, last.ok)
