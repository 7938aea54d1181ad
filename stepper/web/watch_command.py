"""`stepper watch`: live progress of a notebook in the terminal, until Ctrl-C.

The screen shows the plan, the running cell, the last report and a stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.text import Text

from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.common.text import clean, format_count, one_line
from stepper.hook import daemon_client
from stepper.messages.marks import STOP_SIGN
from stepper.messages.quoted_output import format_span, get_output_text
from stepper.messages.run_report import format_seconds
from stepper.messages.status_text import format_no_notebook, format_step
from stepper.policy.commands.command_lines import PROGRAM, CommandLines
from stepper.web.notebook_view_state import NotebookView, Row
from stepper.web.project_notebook_list import NotebookList

REFRESH_SECONDS = 0.25
OUTPUT_LINES = 8  # the number of output lines of the running cell
OUTPUT_CHARACTERS = 300  # the maximum length of an output line
LAST_OUTPUTS = 3
REPORT_LINES = 14
MARK_COLUMN = 2  # the column of a step's mark
COLORS = {
    "done": "green",
    "complete": "green",
    "failed": "red",
    "stopped": "red",
    "failing": "red",
    "doubted": "yellow",
    "interrupted": "yellow",
    "changed": "yellow",
    "running": "cyan",
}
FINISHED = ("done", "skipped")


def watch(paths: Paths, notebook: str | None) -> None:
    """Show live progress until Ctrl-C is pressed.

    Raise UsageError if standard output is not a terminal that can be redrawn, or if the
    notebook does not exist.
    """
    is_dumb = os.environ.get("TERM") == "dumb"
    if is_dumb or not sys.stdout.isatty():
        reason = "standard output is not a terminal"
        if sys.stdout.isatty():
            reason = "TERM is `dumb`"
        commands = CommandLines(notebook or "")
        raise UsageError(
            f"`stepper watch` needs a terminal that can redraw lines, but {reason}",
            f"{commands.shell('status')}; {commands.shell('report')}",
        )
    notebooks = NotebookList(paths)
    name = ""
    if notebook:
        name = notebooks.resolve_name(notebook, daemon_client.get_current_folder())
    no_color = bool(os.environ.get("NO_COLOR"))
    console = Console(highlight=False, no_color=no_color)
    interrupts = InterruptFlag()
    live = Live(console=console, auto_refresh=False, transient=True)
    with interrupts, contextlib.suppress(KeyboardInterrupt), live:
        while not interrupts.is_set:
            current = notebooks.find_current()
            shown_name = name or current
            view = None
            if shown_name:
                view = notebooks.get_view(shown_name)
            if view is not None:
                view.refresh(current)
            height = console.size.height
            screen = render(view, height, notebooks.error, notebooks.program)
            live.update(screen, refresh=True)
            time.sleep(REFRESH_SECONDS)


class InterruptFlag:
    """A context manager that records whether Ctrl-C was pressed.

    This is necessary because Python ignores a KeyboardInterrupt in a finalizer.
    """

    def __init__(self) -> None:
        self.is_set = False

    def __enter__(self) -> None:
        self.previous_handler = signal.signal(signal.SIGINT, self._handle_signal)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.previous_handler)

    def _handle_signal(self, *_: object) -> None:
        """Set the flag, and raise KeyboardInterrupt."""
        self.is_set = True
        raise KeyboardInterrupt


def render(
    view: NotebookView | None,
    height: int,
    error: str = "",
    program: str = PROGRAM,
) -> RenderableType:
    """Return the contents of the screen.

    `height` is the number of lines of the terminal, `error` is shown if there is no
    view, and `program` is the command for stepper in the user's shell.
    """
    if view is None:
        return Text(one_line(error) or format_no_notebook(program))
    status = view.page_data["status"]
    live = view.page_data["live"]
    parts: list[RenderableType] = [render_header(status, live)]
    parts += render_plan(status["steps"], height // 2)
    parts.append(Text())
    if status["stop"]:
        parts.append(render_stop(status["stop"]))
    if live["running"]:
        parts.append(render_running_cell(live["running"], view.outputs))
    elif not status["stop"] and status["last"] is not None:
        parts.append(_render_report(view, status["last"]))
    notes = [status["trouble"]]
    if live["running"]:
        notes.append(status["daemon"])
    notes.append(status["lost"])
    parts += [Text(note, style="yellow") for note in notes if note]
    return Group(*parts)


def _render_report(view: NotebookView, run: int) -> Panel:
    """Return a panel with the first lines of a run's report."""
    report = view.history.read_run(run)["report"] or ""
    lines = list(filter(None, clean(report).splitlines()))
    omitted_count = len(lines) - REPORT_LINES
    if omitted_count > 0:
        command = view.history.state.commands.terminal("report")
        omitted_lines = format_count(omitted_count, "more line")
        note = f"… {omitted_lines}. To see the whole report, run: {command}"
        lines = [*lines[:REPORT_LINES], note]
    return Panel(
        Text("\n".join(lines)),
        title="last report",
        title_align="left",
        border_style="dim",
    )


def render_header(status: Row, live: Row) -> Text:
    """Return the notebook's title and state, and the state of the kernel."""
    state = "running" if live["running"] else status["state"]
    notebook = one_line(status["notebook"])
    title = one_line(status["title"]) or notebook
    kernel_texts = [f"kernel {live['state']}"]
    if live["memory"]:
        kernel_texts.append(f"{live['memory']} MB")
    for text in (live["waits"], live["where"]):
        if text:
            kernel_texts.append(one_line(text))
    details = ", ".join(kernel_texts)
    if status["marks"]:
        stale_count = len(status["marks"])
        details += f" · {stale_count} stale"
        if status["indirect"]:
            indirect_count = len(status["indirect"])
            details += f", {indirect_count} more indirectly"
    return Text.assemble(
        (title, "bold"),
        "\n",
        (notebook, "dim"),
        "  ",
        (state, COLORS.get(state, "dim")),
        (f"  {details}", "dim"),
    )


def render_plan(steps: Sequence[Row], limit: int) -> list[Text]:
    """Return the lines of up to `limit` steps, around the first unfinished step.

    A further line says how many steps were left out.
    """
    first_open_index = 0
    for index, step in enumerate(steps):
        if step["status"] not in FINISHED:
            first_open_index = index
            break
    last_start = len(steps) - limit
    start = max(0, min(first_open_index - limit // 2, last_start))
    shown_steps = steps[start : start + limit]
    lines = list(map(_render_step, shown_steps))
    omitted_count = len(steps) - len(shown_steps)
    if omitted_count > 0:
        note = format_count(omitted_count, "more step")
        lines.append(Text(f"    … {note}", style="dim"))
    return lines


def _render_step(step: Row) -> Text:
    """Return the line of a step with a colored mark; a running step is bold."""
    status = step["status"]
    line = Text(format_step(step), no_wrap=True, overflow="ellipsis")
    line.stylize(COLORS.get(status, "dim"), MARK_COLUMN, MARK_COLUMN + 1)
    if status == "running":
        line.stylize("bold", MARK_COLUMN + 1)
    return line


def render_running_cell(cell: Row, outputs: Sequence[Mapping[str, Any]]) -> Panel:
    """Return a panel with the running cell's duration and last output lines.

    Without output, the panel shows the last printed line that the daemon knows.
    """
    started_at = cell["at"] / 1000
    duration = max(0.0, time.time() - started_at)
    timeout = cell["timeout"]
    title = f"{cell['name']} · {duration:.1f} s"
    if timeout:
        title += f" of {format_span(timeout)}"
    if cell["left"]:
        title += f", about {format_seconds(cell['left'])} left"
    bar_total = timeout or 1  # without a timeout, the bar is full after a second
    bar = ProgressBar(total=bar_total, completed=min(duration, bar_total))
    text = "".join(map(get_output_text, outputs[-LAST_OUTPUTS:]))
    lines = clean(text).splitlines()
    if not lines:
        lines = [cell["line"]]
    last_lines = [one_line(line, OUTPUT_CHARACTERS) for line in lines[-OUTPUT_LINES:]]
    output = "\n".join(last_lines)
    return Panel(
        Group(bar, Text(output)),
        title=Text(title),
        title_align="left",
        border_style="cyan",
    )


def render_stop(stop: Row) -> Panel:
    """Return a panel with the cause of a stop and the commands to resume."""
    headline, _, details = stop["block"].partition("\n")
    lines = details.splitlines()
    if stop["question"]:
        lines.append(f"The agent asks: {stop['question']}")
    lines.append("")
    for way in stop["ways"]:
        command = f"{way['command']} {way['argument']}".strip()
        lines.append(f"{command}  – {way['effect']}")
    return Panel(
        Text("\n".join(lines)),
        title=Text(headline.removeprefix(f"{STOP_SIGN} ")),
        title_align="left",
        border_style="red",
    )
