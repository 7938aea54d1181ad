"""Render the responses of commands as text, and the progress of a run as a bar.

`RENDERINGS` contains each command of the table. Responses are parsed JSON documents:
see `session/responses.py`.
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

from stepper.cli.terminal import color_marks, print_text, write_text
from stepper.common.text import (
    CONTROLS,
    clean,
    format_count,
    one_line,
)
from stepper.messages.marks import REACHABLE_MARKS
from stepper.policy.commands.command_lines import CommandLines

ERASE_LINE = "\r\x1b[K"
ID_CHARACTERS = 100
LINE_CHARACTERS = 300
SOURCE_CHARACTERS = 40
CLIENT_CHARACTERS = 10
MIN_TEXT_COLUMNS = 20

Response = dict[str, Any]


@dataclass(frozen=True)
class Rendering:
    """The rendering of a command's response.

    `text` formats the response for users, `document` returns the document for `--json`,
    and `succeeded` returns whether the command exits with 0.
    """

    text: Callable[[Any], str] = lambda response: str(response["text"])
    has_json: bool = True
    document: Callable[[Any], Any] = lambda response: response
    succeeded: Callable[[Any], bool] = lambda response: True
    has_times: bool = False  # the text has times in the local time zone
    is_output: bool = False  # the text was printed by cells or code


def print_response(
    command: str,
    response: Any,
    as_json: bool,
) -> bool:
    """Print the response of a command, and return whether the command succeeded."""
    rendering = RENDERINGS[command]
    if as_json:
        print_json(rendering.document(response))
    else:
        text = rendering.text(response)
        if text:
            print_text(text, is_output=rendering.is_output)
    return rendering.succeeded(response)


def print_json(document: Any) -> None:
    """Print a JSON document, with control characters as escape sequences."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    write_text(CONTROLS.sub(_escape_control, text))


def _escape_control(match: Any) -> str:
    """Return the JSON escape sequence of a matched control character."""
    quoted = json.dumps(match[0])
    return quoted[1:-1]


def _join_lines(lines: Iterable[str]) -> str:
    """Return the non-empty lines, joined by newlines."""
    return "\n".join(filter(None, lines))


# The following functions import their modules late, because most commands need only one
# of these modules.


def _format_created(created: Response) -> str:
    """Return the text on a new notebook."""
    from stepper.messages.status_text import format_created

    return format_created(created)


def _format_status(status: Response) -> str:
    """Return the text on the status of a notebook."""
    from stepper.messages.status_text import format_status

    return format_status(status)


def _format_plan(plan: Response) -> str:
    """Return the plan of a notebook as text."""
    from stepper.messages.status_text import format_plan

    return format_plan(plan)


def _format_list(notebooks: list[Response]) -> str:
    """Return the table of notebooks."""
    from stepper.messages.notebook_list import format_notebooks

    return format_notebooks(notebooks)


def _format_use(response: Response) -> str:
    """Return sentences on the new current notebook and on its kernel backend."""
    notebook = response["notebook"]
    text = f"{notebook} is now the current notebook."
    if response["kernel"]:
        text += f" Its next kernel will run on {response['kernel']}."
    if response["elsewhere"]:
        restart = CommandLines(notebook).shell("restart")
        text += (
            f" Its current kernel still runs on {response['elsewhere']}. To replace the"
            f" current kernel, run: {restart}"
        )
    return text


def _format_wait(response: Response) -> str:
    """Return a line with the state and location of the kernel."""
    from stepper.messages.status_text import format_kernel_location

    kernel = response["kernel"]
    location = format_kernel_location(kernel) or f"pid {kernel['pid']}"
    notebook = one_line(response["notebook"])
    readiness = "ready" if _has_live_kernel(response) else "not ready"
    return f"{notebook}: the kernel is {readiness} ({kernel['state']}, {location})"


def _format_kernels(backends: list[Response]) -> str:
    """Return the backends, each with its details in indented lines.

    There is at least one backend, the local one.
    """
    lines = list[str]()
    width = max(len(backend["name"]) for backend in backends)
    indent = " " * (width + 4)
    for backend in backends:
        mark = REACHABLE_MARKS[backend["reachable"]]
        description = one_line(backend["about"], LINE_CHARACTERS)
        if backend["usual"]:
            description += " (the project's default)"
        lines += _wrap(f"{mark} {backend['name']:<{width}}  ", description)
        for detail in _list_backend_details(backend):
            lines += _wrap(indent, one_line(detail, LINE_CHARACTERS))
    return "\n".join(lines)


def _list_backend_details(backend: Response) -> Iterable[str]:
    """Return details about a backend: the problem, its offers and the fix."""
    from stepper.messages.error_hint import format_hint

    details = [backend["why"], *backend["offers"]]
    details += [f"not checked: {name}" for name in backend["unchecked"]]
    details.append(format_hint(backend["mend"]))
    return filter(None, details)


def _wrap(prefix: str, text: str) -> list[str]:
    """Return the lines of a text after a prefix, wrapped at the terminal's width.

    All lines after the first one are indented by the length of the prefix. The text is
    not wrapped if the output is not a terminal or the terminal is too narrow.
    """
    if not sys.stdout.isatty():
        return [prefix + text]
    columns = shutil.get_terminal_size().columns
    fits = len(prefix) + len(text) <= columns
    is_narrow = columns < len(prefix) + MIN_TEXT_COLUMNS
    if fits or is_narrow:
        return [prefix + text]
    import textwrap  # few commands need it

    return textwrap.wrap(
        text,
        columns,
        initial_indent=prefix,
        subsequent_indent=" " * len(prefix),
        break_on_hyphens=False,
    )


def _format_history(runs: list[Response]) -> str:
    """Return the table of runs, with times in the local time zone."""
    if not runs:
        return "No cell has run yet."
    from stepper.messages.notebook_list import format_table

    # The name of the time zone, such as CET or CEST, depends on the time.
    zone = f"{_parse_time(runs[-1]['started_at']):%Z}"
    header = ("run", f"started ({zone})", "cell", "step", "took", "by", "outcome")
    rows = [_make_history_row(run) for run in runs]
    return format_table([header, *rows])


def _make_history_row(run: Response) -> Sequence[str]:
    """Return a run's row in the table of runs: a text for each column."""
    from stepper.messages.notebook_list import NO_VALUE

    started = _parse_time(run["started_at"])
    cell = one_line(run["cell_id"], ID_CHARACTERS)
    return (
        str(run["run"] or NO_VALUE),
        f"{started:%Y-%m-%d %H:%M:%S}",
        cell or one_line(run["source"], SOURCE_CHARACTERS),
        str(run["step"] or NO_VALUE),
        f"{run['duration_s']:.2f} s",
        one_line(run["by"], CLIENT_CHARACTERS) or NO_VALUE,
        _format_history_outcome(run),
    )


def _format_history_outcome(run: Response) -> str:
    """Return a run's outcome, with a note if its changes were undone."""
    from stepper.messages.status_text import get_outcome_name

    outcome = get_outcome_name(run["outcome"])
    if not run["undone"]:
        return outcome
    if not run["not_restored"]:
        return f"{outcome}, undone"
    names = one_line(", ".join(run["not_restored"]), SOURCE_CHARACTERS)
    return f"{outcome}, undone except {names}"


def _parse_time(time: str) -> datetime:
    """Return a time from the journal, converted to the local time zone."""
    utc_time = datetime.fromisoformat(time.replace("Z", "+00:00"))
    return utc_time.astimezone()


def _format_eval(response: Response) -> str:
    """Return the output of evaluated code.

    Return a report instead if the caller is an agent or the code failed. The report
    marks printed text, so that agents can't mistake it for stepper's text.
    """
    is_agent = bool(os.environ.get("STEPPER_SESSION"))
    if response["outcome"] == "ok" and not is_agent:
        return str(response["output"])
    return str(response["text"])


def _format_trust(response: Response) -> str:
    """Return the accepted programs, with the targets of links."""
    lines = [f"Accepted for your user account, in {response['project']}:"]
    for name in ("interpreter", "environment"):
        item = response[name] or {"path": "none", "is": "none"}
        path = item["path"]
        if item["is"] != path:
            path += f" → {item['is']}"
        lines.append(f"  {name:<12}{path}")
    for name, definition in response["kernels"].items():
        text = json.dumps(definition, ensure_ascii=False)
        lines.append(f"  kernels.{name}: {text}")
    lines.append(f"Recorded in {response['recorded']}")
    return "\n".join(lines)


# Why no cell ran, by the selection of cells.
NOTHING_TO_RUN = {
    "pending": "all cells have already run (to run them again, use --all)",
    "all": "the notebook has no code cells",
    "stale": "no cell is stale",
    "restore": "no cell has succeeded before",
}


def _format_run(response: Response) -> str:
    """Return the report on a run, with the number of selected cells that ran ok."""
    if response["cells"]:
        cells = format_count(response["cells"], "cell")
        summary = f"{response['ran']} of {cells} ran ok"
    else:
        summary = f"nothing to run: {NOTHING_TO_RUN[response['which']]}"
    stop = ""
    if response["stop"]:
        stop = f"stepper: {response['stop']}"
    return _join_lines(
        [
            response["report"],
            f"{response['notebook']}: {summary}",
            response["follows"],
            stop,
        ]
    )


def _remove_text(response: Response) -> Response:
    """Return a response without its text, which other values contain."""
    return {name: value for name, value in response.items() if name != "text"}


def _format_output(response: Response) -> str:
    """Return a page of a cell's output.

    If the output was followed until the run ended, return the result of the run.
    """
    if response["ended"]:
        return str(response["ended"])
    page = ""
    if response["pages"] > 1:
        page = f"page {response['page']} of {response['pages']}"
    return _join_lines([response["text"], page])


def _format_interrupt(response: Response) -> str:
    """Return the name of the notebook, with the effect of the interrupt."""
    return f"{response['notebook']}: {response['text']}"


def _format_restart(response: Response) -> str:
    """Return a sentence on the new kernel, and on the variables of the old one."""
    notebook = response["notebook"]
    if response["had_kernel"]:
        return f"{notebook}: started a new kernel. The old kernel's variables are lost."
    return f"{notebook}: started a kernel. No kernel was running before."


def _format_shutdown(response: Response | None) -> str:
    """Return a sentence on the shutdown.

    The response is None if nothing was running.
    """
    if not response:
        return "Nothing to stop: neither a daemon nor a kernel is running."
    notebook = response["notebook"]
    if response["left"]:
        return (
            f"{notebook}: {response['left']} keeps running with its variables, because"
            " the configuration names this kernel by its id."
        )
    if notebook and response["kernels"]:
        return f"{notebook}: stopped the kernel; all variables are lost."
    if notebook:
        return f"{notebook}: no kernel is running."
    kernels = format_count(response["kernels"], "kernel")
    return f"Stopped the daemon and {kernels} of this project."


def _format_checks(checks: list[Any]) -> str:
    """Return a line for each check of `stepper doctor`.

    The line on a problem is followed by a line on how to fix it.
    """
    from stepper.messages.error_hint import format_hint

    lines = []
    for check in checks:
        result = "ok  " if check.ok else "BAD "
        lines.append(f"{result} {check.name}: {check.detail}")
        if check.mend and not check.ok:
            lines.append(f"     {format_hint(check.mend)}")
    return "\n".join(lines)


def _remove_null_values(response: Response) -> Response:
    """Return a response without the keys whose values are None."""
    return {name: value for name, value in response.items() if value is not None}


def _get_created_notebook(response: Response) -> Response:
    """Return the documented keys of the response of `new`."""
    return {name: response[name] for name in ("notebook", "steps")}


def _has_live_kernel(response: Response) -> bool:
    """Return whether the kernel in a response is running."""
    return response["kernel"]["state"] in ("idle", "busy")


def _get_optional_text(response: Response | None) -> str:
    """Return the text of a response, or an empty string if there is no response."""
    if response:
        return str(response["text"])
    return ""


RUN_RENDERING = Rendering(_format_run, succeeded=lambda response: bool(response["ok"]))
PLAN_RENDERING = Rendering(_format_plan)
DECISION_RENDERING = Rendering(has_json=False)
PAGE_RENDERING = Rendering(lambda response: "", has_json=False)
RENDERINGS = {
    "new": Rendering(_format_created, document=_get_created_notebook),
    "status": Rendering(_format_status),
    "run": RUN_RENDERING,
    "restore": RUN_RENDERING,
    "verify": Rendering(document=_remove_text),
    "list": Rendering(_format_list),
    "use": Rendering(_format_use, document=_remove_null_values),
    "kernels": Rendering(_format_kernels),
    "kernels wait": Rendering(_format_wait, succeeded=_has_live_kernel),
    "history": Rendering(_format_history, has_times=True),
    "report": Rendering(),
    "eval": Rendering(
        _format_eval,
        succeeded=lambda response: response["outcome"] == "ok",
        is_output=True,
    ),
    "show": Rendering(document=_remove_text, is_output=True),
    "output": Rendering(_format_output, is_output=True),
    "attach": Rendering(document=_remove_text),
    "interrupt": Rendering(_format_interrupt, has_json=False),
    "undo": Rendering(
        document=_remove_text,
        succeeded=lambda response: not response["not_restored"],
    ),
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
    """Shows progress events as a bar on a terminal, or else as lines.

    Nothing is shown if `quiet` is true, as with `--json`.
    """

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.quiet = quiet
        self.bar: Any = None

    def __call__(self, body: bytes) -> None:
        """Show a progress event of the daemon. An empty body is a heartbeat."""
        if self.quiet or not body:
            return
        from stepper.common.dataclass_decode import decode
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
        self.show(decode(event_types[message["what"]], message))

    def show(self, event: Any) -> None:
        """Show a progress event."""
        from stepper.session.progress_events import CellFinished, OutputPrinted, Waiting

        if isinstance(event, Waiting):
            print_text(event.line, err=True)
        elif isinstance(event, OutputPrinted):
            self._show_output(event.lines, event.last)
        elif sys.stdout.isatty():
            self._update_bar(event)
        elif isinstance(event, CellFinished):
            print_text(event.line)

    def _update_bar(self, event: Any) -> None:
        """Update the bar when a cell starts or finishes.

        Also print the line about a finished cell.
        """
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

        line = color_marks(clean(event.line))
        self.bar.console.print(Text.from_ansi(line), highlight=False)
        self.bar.update(task, completed=event.position)

    def _start_bar(self, total: int) -> None:
        """Show the bar, for `total` cells."""
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
        # The last of the new lines may be the same line.
        is_printed = bool(lines) and lines[-1] == f"| {last}"
        if is_terminal and last and not is_printed:
            columns = shutil.get_terminal_size().columns
            write_text(clean(last)[: columns - 1], nl=False)
