"""Render the answers of commands as text, and the progress of a run as a bar.

Every command of the table has a row in `RENDERINGS`. The answers are the documents of
`session/responses.py`, as parsed JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepper.cli.terminal import colour_marks, print_text, write_text
from stepper.common.text import (
    CONTROLS,
    clean,
    format_age,
    format_count,
    format_steps_done,
    one_line,
)
from stepper.policy.commands.command_lines import CommandLines

MARKS = {
    "stale": "~",
    "done": "✓",
    "failed": "✗",
    "doubted": "?",
    "skipped": "–",
    "running": "▶",
    "pending": "·",
    "interrupted": "■",
    "changed": "≠",
}
REACHABLE_MARKS = {True: "✓", False: "✗", None: "·"}
ERASE_LINE = "\r\x1b[K"
NO_NOTEBOOK = 'There is no notebook yet. To create one, run: stepper new "PROBLEM"'
ID_CHARACTERS = 100
PATH_CHARACTERS = 200
LINE_CHARACTERS = 300
SOURCE_CHARACTERS = 40
CLIENT_CHARACTERS = 10
MIN_TEXT_COLUMNS = 20
NONE = "–"  # an empty place in a table

Answer = dict[str, Any]


@dataclass(frozen=True)
class Rendering:
    """How the answer of a command is shown.

    `text` formats it for people, `document` returns what `--json` prints, `succeeded`
    tells whether the command exits with 0.
    """

    text: Callable[[Any], str] = lambda answer: str(answer["text"])
    has_json: bool = True
    document: Callable[[Any], Any] = lambda answer: answer
    succeeded: Callable[[Any], bool] = lambda answer: True
    has_times: bool = False  # the text has times in the local time zone
    is_output: bool = False  # the text is what cells or code printed


def print_answer(
    command: str,
    answer: Any,
    as_json: bool,
) -> bool:
    """Print the answer of a command; return whether the command succeeded."""
    rendering = RENDERINGS[command]
    if as_json:
        document = rendering.document(answer)
        text = json.dumps(document, indent=2, ensure_ascii=False)
        write_text(CONTROLS.sub(_escape_control, text))
    else:
        text = rendering.text(answer)
        if text:
            print_text(text, is_output=rendering.is_output)
    return rendering.succeeded(answer)


def _escape_control(match: Any) -> str:
    """Return a control character as an escape in a JSON string."""
    return json.dumps(match[0])[1:-1]


def _join_lines(lines: Iterable[str]) -> str:
    """Join the lines that are not empty."""
    return "\n".join(filter(None, lines))


def _format_new(answer: Answer) -> str:
    lines = [f"Created {answer['notebook']}. It is now the current notebook."]
    lines += [f"  {step['id']}. {step['title']}" for step in answer["steps"]]
    unfinished = answer["unfinished"]
    if unfinished:
        lines.append(f"{unfinished} is unfinished and was left unchanged.")
    cwd = answer["kernel_cwd"]
    folder = one_line(cwd)
    if cwd in ("notebook", "project"):
        folder = f"the {cwd}'s folder"
    lines.append(f"The kernel will run in {folder}: paths in cells are relative to it.")
    return "\n".join(lines)


STEP_NOTES = {
    "interrupted": "interrupted",
    "changed": "changed since it ran",
    "doubted": "its criterion is false",
}


def _format_step(step: Answer, notes: Iterable[str]) -> str:
    """Return the line of a step, with notes in parentheses."""
    title = f"{step['id']}. {one_line(step['title'])}"
    return f"  {MARKS[step['status']]} {title}{_format_notes(notes)}"


def _format_notes(notes: Iterable[str]) -> str:
    text = "; ".join(filter(None, notes))
    return f"  ({text})" if text else ""


def _format_status(answer: Answer) -> str:
    if answer["notebook"] is None:
        return NO_NOTEBOOK
    marks = [*answer["hidden"], *answer["stale"]]
    # The reasons of stale cells and cells with hidden state, until they are shown.
    reasons = {mark["cell_id"]: mark["why"] for mark in marks}
    lines = [_format_headline(answer)]
    if answer["running"]:
        lines.append(_format_running(answer["running"]))
    lines += [_format_status_step(step, reasons) for step in answer["steps"]]
    for cell in answer["cells"]:
        reason = reasons.pop(cell["cell_id"], "")
        lines.append(_format_cell(cell, [one_line(reason)]))
    for cell in answer["off_plan"]:
        reason = reasons.pop(cell["cell_id"], "")
        status = OFF_PLAN_STATUS.get(cell["status"], cell["status"])
        notes = [one_line(reason), f"outside the plan, {status}"]
        lines.append(_format_cell(cell, notes))
    for mark in [*answer["stale"], *answer["hidden"]]:
        if mark["cell_id"] in reasons:
            lines.append(f"  ~ {_format_cell_name(mark)}: {mark['why']}")
    if answer["stop"]:
        lines.append(answer["stop"]["text"])
    if answer["verified"]:
        lines.append(answer["verified"]["text"])
    daemon = answer["daemon"]
    lines += [
        answer["jupyter"],
        answer["renamed"],
        _format_kernel_status(answer),
        f"daemon: pid {daemon['pid']}, version {daemon['version']}",
        answer["unheard"],
    ]
    return _join_lines(lines)


def _format_headline(answer: Answer) -> str:
    """Return the notebook's name and state, and how many steps are done."""
    headline = f"{one_line(answer['notebook'])}: {answer['state']}"
    steps = answer["steps"]
    if not steps:
        return headline
    statuses = [step["status"] for step in steps]
    done = statuses.count("done")
    skipped = statuses.count("skipped")
    progress = format_steps_done(done, skipped, len(steps), "step")
    return f"{headline}, {progress}"


def _format_running(cell: Answer) -> str:
    from stepper.messages.quoted_output import format_running

    return format_running(
        cell["name"],
        cell["seconds"],
        cell["timeout"],
        one_line(cell["line"]),
        cell["left_seconds"],
    )


def _format_status_step(step: Answer, reasons: dict[str, str]) -> str:
    """Return the line of a step; its reason is taken out of `reasons`."""
    status = step["status"]
    notes = []
    if step["retries"]:
        notes.append(f"retries: {step['retries']}")
    if status == "doubted":
        notes.append(STEP_NOTES[status])
    reason = reasons.pop(step["cell_id"] or "", "")
    notes.append(one_line(reason))
    if status != "doubted":
        notes.append(STEP_NOTES.get(status, ""))
    return _format_step(step, notes)


def _format_cell(cell: Answer, notes: Iterable[str]) -> str:
    mark = MARKS[cell["status"]]
    name = _format_cell_name(cell)
    return f"  {mark} {name}: {cell['title']}{_format_notes(notes)}"


def _format_cell_name(cell: Answer) -> str:
    cell_id = one_line(cell["cell_id"], ID_CHARACTERS)
    return f"cell {cell['cell']} (id {cell_id})"


OFF_PLAN_STATUS = {"pending": "not run", "changed": "changed since it ran"}


def _format_kernel_status(answer: Answer) -> str:
    """Return the line of the kernel, with the reason why its state is lost."""
    kernel = answer["kernel"]
    parts = [f"kernel: {kernel['state']}"]
    if kernel["pid"]:
        parts += [
            f"pid {kernel['pid']}",
            _format_memory(kernel),
            str(kernel["python"]),
        ]
    location = _format_location(kernel)
    if location:
        parts.append(location)
    text = ", ".join(parts)
    if answer["lost"]:
        restore = CommandLines(answer["notebook"]).shell("restore")
        reason = one_line(answer["lost"])
        text += f"; state lost: {reason} (to rebuild it, run: {restore})"
    return text


def _format_location(kernel: Answer) -> str:
    """Return where a remote kernel runs, and why it cannot be reached."""
    if not kernel["where"] and not kernel["trouble"]:
        return ""
    from stepper.messages.quoted_output import format_location

    return format_location(kernel["where"], kernel["left_seconds"], kernel["trouble"])


def _format_memory(kernel: Answer) -> str:
    megabytes = (kernel["rss_bytes"] or 0) / 1e6
    return f"{megabytes:.0f} MB"


LIST_HEADER = ("", "notebook", "state", "progress", "kernel", "memory", "age")


def _format_list(notebooks: list[Answer]) -> str:
    if not notebooks:
        return NO_NOTEBOOK
    rows = [_make_list_row(notebook) for notebook in notebooks]
    return _format_table([LIST_HEADER, *rows])


def _make_list_row(notebook: Answer) -> Sequence[str]:
    progress = notebook["progress"]
    done = NONE
    if progress["of"]:
        done = f"{progress['done']} of {progress['of']} {progress['what']}"
    if progress["skipped"]:
        done += f", {progress['skipped']} skipped"
    kernel = notebook["kernel"]
    memory = _format_memory(kernel) if kernel["pid"] else NONE
    mark = "*" if notebook["current"] else ""
    return (
        mark,
        one_line(notebook["notebook"], PATH_CHARACTERS),
        notebook["state"],
        done,
        kernel["state"],
        memory,
        format_age(notebook["age_s"]),
    )


def _format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as lines, with aligned columns."""
    columns = zip(*rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _format_use(answer: Answer) -> str:
    notebook = answer["notebook"]
    text = f"{notebook} is now the current notebook."
    if answer["kernel"]:
        text += f" Its next kernel will run on {answer['kernel']}."
    if answer["elsewhere"]:
        restart = CommandLines(notebook).shell("restart")
        text += (
            f" Its present kernel still runs on {answer['elsewhere']}. To stop that"
            f" kernel, run: {restart}"
        )
    return text


def _format_wait(answer: Answer) -> str:
    kernel = answer["kernel"]
    location = _format_location(kernel) or f"pid {kernel['pid']}"
    notebook = one_line(answer["notebook"])
    return f"{notebook}: the kernel is ready ({kernel['state']}, {location})"


def _format_kernels(backends: list[Answer]) -> str:
    lines = list[str]()
    width = max(len(backend["name"]) for backend in backends)
    indent = " " * (width + 4)
    for backend in backends:
        mark = REACHABLE_MARKS[backend["reachable"]]
        description = one_line(backend["about"], LINE_CHARACTERS)
        if backend["usual"]:
            description += " (the project's)"
        lines += _wrap(f"{mark} {backend['name']:<{width}}  ", description)
        for detail in _list_backend_details(backend):
            lines += _wrap(indent, one_line(detail, LINE_CHARACTERS))
    return "\n".join(lines)


def _list_backend_details(backend: Answer) -> Iterable[str]:
    """Return the lines below a backend: the problem, its offers, the fix."""
    from stepper.messages.error_hint import format_hint

    details = [backend["why"], *backend["offers"]]
    details += [f"not checked: {name}" for name in backend["unchecked"]]
    details.append(format_hint(backend["mend"]))
    return filter(None, details)


def _wrap(first: str, text: str) -> list[str]:
    """Return a text wrapped at the terminal's width, indented after `first`.

    If the output is not a terminal, or if that is too narrow, the text is one line.
    """
    columns = 0
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
    fits = len(first) + len(text) <= columns
    if fits or columns < len(first) + MIN_TEXT_COLUMNS:
        return [first + text]
    import textwrap  # few commands need it

    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


REASON_LABELS = {"skipped": "skipped", "done": "confirmed"}


def _format_plan(answer: Answer) -> str:
    lines = [one_line(answer["notebook"])]
    lines += [_format_planned_step(step) for step in answer["steps"]]
    if not answer["steps"]:
        lines.append("  no plan")
    return "\n".join(lines)


def _format_planned_step(step: Answer) -> str:
    notes = []
    if step["criterion"]:
        notes.append(f"criterion: {one_line(step['criterion'])}")
    if step["kind"] != "step":
        notes.append(step["kind"])
    if step["long"]:
        notes.append("long")
    status = step["status"]
    if step["reason"]:
        label = REASON_LABELS.get(status, "reason")
        notes.append(f"{label}: {one_line(step['reason'])}")
    if status != "doubted":
        notes.append(STEP_NOTES.get(status, ""))
    return _format_step(step, notes)


def _format_history(runs: list[Answer]) -> str:
    if not runs:
        return "No cell has run yet."
    zone = f"{_parse_time(runs[-1]['started_at']):%Z}"
    header = ("run", f"started ({zone})", "cell", "step", "took", "by", "outcome")
    rows = [_make_history_row(run) for run in runs]
    return _format_table([header, *rows])


def _make_history_row(run: Answer) -> Sequence[str]:
    started = _parse_time(run["started_at"])
    cell = one_line(run["cell_id"], ID_CHARACTERS)
    return (
        str(run["run"] or NONE),
        f"{started:%Y-%m-%d %H:%M:%S}",
        cell or one_line(run["source"], SOURCE_CHARACTERS),
        str(run["step"] or NONE),
        f"{run['duration_s']:.2f} s",
        one_line(run["by"], CLIENT_CHARACTERS) or NONE,
        run["outcome"],
    )


def _parse_time(time: str) -> datetime:
    """Return a time of the journal in the local time zone."""
    utc_time = datetime.fromisoformat(time.replace("Z", "+00:00"))
    return utc_time.astimezone()


def _format_eval(answer: Answer) -> str:
    """Return the value itself, or for agents a report.

    In a report, printed text cannot pass for stepper's own words.
    """
    is_agent = bool(os.environ.get("STEPPER_SESSION"))
    if answer["outcome"] == "ok" and not is_agent:
        return str(answer["output"])
    return str(answer["text"])


def _format_trust(answer: Answer) -> str:
    lines = [f"Accepted for your user account, in {answer['project']}:"]
    for name in ("interpreter", "environment"):
        item = answer[name] or {"path": "none", "is": "none"}
        path = item["path"]
        if item["is"] != path:
            path += f" → {item['is']}"
        lines.append(f"  {name:<12}{path}")
    for name, definition in answer["kernels"].items():
        text = json.dumps(definition, ensure_ascii=False)
        lines.append(f"  kernels.{name}: {text}")
    lines.append(f"Recorded in {answer['recorded']}")
    return "\n".join(lines)


# Why there was nothing to run, by the cells that were requested.
NOTHING_TO_RUN = {
    "pending": "all cells have already run (to run them again, use --all)",
    "all": "the notebook has no code cells",
    "stale": "no cell is stale",
    "restore": "no cell has succeeded before",
}


def _format_run(answer: Answer) -> str:
    summary = f"{answer['ran']} of {answer['cells']} cells ran ok"
    if not answer["cells"]:
        summary = f"nothing to run: {NOTHING_TO_RUN[answer['which']]}"
    stop = f"stepper: {answer['stop']}" if answer["stop"] else ""
    return _join_lines(
        [
            answer["report"],
            f"{answer['notebook']}: {summary}",
            answer["follows"],
            stop,
        ]
    )


def _remove_text(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if name != "text"}


def _format_output(answer: Answer) -> str:
    if answer["ended"]:
        return str(answer["ended"])
    page = ""
    if answer["pages"] > 1:
        page = f"page {answer['page']} of {answer['pages']}"
    return _join_lines([answer["text"], page])


def _format_interrupt(answer: Answer) -> str:
    return f"{answer['notebook']}: {answer['text']}"


def _format_restart(answer: Answer) -> str:
    notebook = answer["notebook"]
    if answer["had_kernel"]:
        return f"{notebook}: started a new kernel without the old one's variables."
    return f"{notebook}: started a kernel; there was none before."


def _format_shutdown(answer: Answer | None) -> str:
    if not answer:
        return "Nothing to stop: neither a daemon nor a kernel is running."
    notebook = answer["notebook"]
    if answer["left"]:
        return (
            f"{notebook}: {answer['left']} keeps running with its variables, because"
            " the configuration names this kernel by its id."
        )
    if notebook and answer["kernels"]:
        return f"{notebook}: stopped the kernel; all variables are lost."
    if notebook:
        return f"{notebook}: no kernel is running."
    kernels = format_count(answer["kernels"], "kernel")
    return f"Stopped the daemon and {kernels} of this project."


def _format_checks(checks: list[Any]) -> str:
    from stepper.messages.error_hint import format_hint

    lines = []
    for check in checks:
        result = "ok  " if check.ok else "BAD "
        lines.append(f"{result} {check.name}: {check.detail}")
        if check.mend and not check.ok:
            lines.append(f"     {format_hint(check.mend)}")
    return "\n".join(lines)


def _remove_null_values(answer: Answer) -> Answer:
    return {name: value for name, value in answer.items() if value is not None}


def _get_created_notebook(answer: Answer) -> Answer:
    return {name: answer[name] for name in ("notebook", "steps")}


def _has_live_kernel(answer: Answer) -> bool:
    return answer["kernel"]["state"] in ("idle", "busy")


def _get_optional_text(answer: Answer | None) -> str:
    return str(answer["text"]) if answer else ""


RUN_RENDERING = Rendering(_format_run, succeeded=lambda answer: bool(answer["ok"]))
PLAN_RENDERING = Rendering(_format_plan)
DECISION_RENDERING = Rendering(has_json=False)
PAGE_RENDERING = Rendering(lambda answer: "", has_json=False)
RENDERINGS = {
    "new": Rendering(_format_new, document=_get_created_notebook),
    "status": Rendering(_format_status),
    "run": RUN_RENDERING,
    "restore": RUN_RENDERING,
    "verify": Rendering(
        document=_remove_text,
        succeeded=lambda answer: bool(answer["reproduces"]),
    ),
    "list": Rendering(_format_list),
    "use": Rendering(_format_use, document=_remove_null_values),
    "kernels": Rendering(_format_kernels),
    "kernels wait": Rendering(_format_wait, succeeded=_has_live_kernel),
    "history": Rendering(_format_history, has_times=True),
    "report": Rendering(),
    "eval": Rendering(
        _format_eval,
        succeeded=lambda answer: answer["outcome"] == "ok",
        is_output=True,
    ),
    "output": Rendering(_format_output, is_output=True),
    "attach": Rendering(document=_remove_text),
    "interrupt": Rendering(_format_interrupt, has_json=False),
    "restart": Rendering(_format_restart, has_json=False),
    "continue": DECISION_RENDERING,
    "fix": DECISION_RENDERING,
    "skip": DECISION_RENDERING,
    "confirm": DECISION_RENDERING,
    "context": Rendering(document=_remove_text),
    "plan": PLAN_RENDERING,
    "plan add": PLAN_RENDERING,
    "plan edit": PLAN_RENDERING,
    "plan remove": PLAN_RENDERING,
    "plan move": PLAN_RENDERING,
    "plan reopen": PLAN_RENDERING,
    "shutdown": Rendering(_format_shutdown, has_json=False),
    "doctor": Rendering(
        _format_checks,
        document=lambda checks: [*map(vars, checks)],
        succeeded=lambda checks: all(check.ok for check in checks),
    ),
    "trust": Rendering(_format_trust),
    "completion": Rendering(has_json=False, is_output=True),
    "statusline": Rendering(has_json=False),
    "view": PAGE_RENDERING,
    "watch": PAGE_RENDERING,
    "mcp": Rendering(_get_optional_text, has_json=False),
}


class RunProgress(contextlib.ExitStack):
    """Shows progress events: a bar on a terminal, else lines, nothing with `--json`."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.quiet = quiet
        self.bar: Any = None

    def __call__(self, body: bytes) -> None:
        """Show a progress event of the daemon; an empty one is a heartbeat."""
        if self.quiet or not body:
            return
        from stepper.common.json_decode import decode
        from stepper.session.progress_events import (
            CellFinished,
            CellStarted,
            OutputPrinted,
            TerminalEvent,
            Waiting,
        )

        message = json.loads(body)
        event_types: dict[str, type[TerminalEvent]] = {
            event_type.what: event_type
            for event_type in (CellStarted, CellFinished, OutputPrinted, Waiting)
        }
        event = decode(event_types[message["what"]], message)
        if isinstance(event, Waiting):
            print_text(event.line, err=True)
        elif isinstance(event, OutputPrinted):
            self._show_output(event.lines, event.last)
        elif sys.stdout.isatty():
            self._update_bar(event)
        elif isinstance(event, CellFinished):
            print_text(event.line)

    def _update_bar(self, event: Any) -> None:
        """Move the bar when a cell starts or has run; print the line of the latter."""
        if self.bar is None:
            self._start_bar(event.of)
        (task,) = self.bar.task_ids
        if event.what == "running":
            self.bar.update(
                task,
                description=f"cell {event.cell}",
                completed=event.position - 1,
                total=event.of,
            )
            return
        from rich.text import Text

        line = colour_marks(clean(event.line))
        self.bar.console.print(Text.from_ansi(line), highlight=False)
        self.bar.update(task, completed=event.position)

    def _start_bar(self, total: int) -> None:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
        )

        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        self.bar = self.enter_context(bar)
        self.bar.add_task("", total=total)

    def _show_output(self, lines: Sequence[str], last: str) -> None:
        """Print the new output of a cell.

        On a terminal, `last`, the unfinished last line, is redrawn in place.
        """
        is_terminal = sys.stdout.isatty()
        text = "".join([f"{clean(line)}\n" for line in lines])
        if is_terminal:
            text = ERASE_LINE + text
        write_text(text, nl=False)
        is_printed = bool(lines) and lines[-1] == f"| {last}"
        if is_terminal and last and not is_printed:
            columns = shutil.get_terminal_size().columns
            write_text(clean(last)[: columns - 1], nl=False)
