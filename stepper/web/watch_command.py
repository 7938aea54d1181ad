"""`stepper watch`: the plan, what runs, the last report and a stop, drawn anew in the terminal until Ctrl-C."""

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
from stepper.common.text import clean, one_line
from stepper.hook import client
from stepper.messages.command_messages import MARKS
from stepper.messages.quoted_output import span, text_of
from stepper.messages.run_report import seconds
from stepper.policy.commands.command_lines import PROGRAM, CommandLines
from stepper.web.notebook_list import Shelf
from stepper.web.notebook_view import Book, Row

LOOK_SECONDS = 0.25
LINES, REPORT = 8, 14  # of what runs, and of a report
COLOURS = {
    **dict.fromkeys(("done", "complete"), "green"),
    **dict.fromkeys(("failed", "stopped", "failing"), "red"),
    **dict.fromkeys(("doubted", "interrupted", "changed"), "yellow"),
    "running": "cyan",
}


def watch(paths: Paths, notebook: str | None) -> None:
    """Draw until Ctrl-C; raise UsageError where nobody looks on."""
    commands = CommandLines(notebook or "")
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        raise UsageError(
            "`stepper watch` needs a terminal; standard output is not one",
            f"{commands.shell('status')}; {commands.shell('report')}",
        )
    shelf = Shelf(paths)
    named = shelf.named(notebook, client.current_folder()) if notebook else ""
    console = Console(
        highlight=False, no_color=bool(os.environ.get("NO_COLOR")) or None
    )
    interrupts = Interrupts()
    live = Live(console=console, auto_refresh=False, transient=True)
    with interrupts, contextlib.suppress(KeyboardInterrupt), live:
        while not interrupts.seen:
            current = shelf.current()
            book = shelf.book(named or current) if named or current else None
            if book is not None:
                book.look(current)
            height, program = console.size.height, shelf.program
            live.update(drawn(book, height, shelf.trouble, program), refresh=True)
            time.sleep(LOOK_SECONDS)


class Interrupts:
    """Whether Ctrl-C was pressed. Python drops a KeyboardInterrupt that is raised in a finalizer."""

    def __init__(self) -> None:
        self.seen = False

    def __enter__(self) -> None:
        self.former = signal.signal(signal.SIGINT, self._take)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self.former)

    def _take(self, *_: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


def drawn(
    book: Book | None, height: int, trouble: str = "", program: str = PROGRAM
) -> RenderableType:
    """Return all that is shown of a notebook, within so many lines."""
    if book is None:
        new = f'{program} new "PROBLEM"'
        return Text(one_line(trouble) or f"No notebook is here yet: {new}")
    status, now = book.parts["status"], book.parts["live"]
    parts: list[RenderableType] = [
        head(status, now),
        *plan(status["steps"], height // 2),
        Text(),
    ]
    if status["stop"]:
        parts.append(stop(status["stop"]))
    if now["running"]:
        parts.append(running(now["running"], book.outputs))
    elif not status["stop"] and status["last"] is not None:
        lines = [
            *filter(
                None, clean(book.past.told(status["last"])["report"] or "").splitlines()
            )
        ]
        whole = book.past.state.commands.terminal("report")
        left = len(lines) - REPORT
        more = [f"… {left} more lines: {whole}"] if left > 0 else []
        parts.append(
            Panel(
                Text("\n".join(lines[:REPORT] + more)),
                title="last report",
                title_align="left",
                border_style="dim",
            )
        )
    for text in (
        status["trouble"],
        status["daemon"] if now["running"] else "",
        status["lost"],
    ):
        parts += [Text(text, style="yellow")] if text else []
    return Group(*parts)


def head(status: Row, now: Row) -> Text:
    """Return which notebook, how it stands, its kernel."""
    state = "running" if now["running"] else status["state"]
    kernel = [
        f"kernel {now['state']}",
        f"{now['memory']} MB" if now["memory"] else "",
        now["waits"],
        now["where"] or "",
    ]
    stale = f" · {len(status['marks'])} stale" if status["marks"] else ""
    return Text.assemble(
        (one_line(status["title"] or status["notebook"]), "bold"),
        "\n",
        (one_line(status["notebook"]), "dim"),
        "  ",
        (state, COLOURS.get(state, "dim")),
        (f"  {', '.join(one_line(each) for each in kernel if each)}{stale}", "dim"),
    )


def plan(steps: Sequence[Row], most: int) -> list[Text]:
    """Return the steps, those around the first that is not over where there are many."""
    first = next(
        (
            place
            for place, step in enumerate(steps)
            if step["status"] not in ("done", "skipped")
        ),
        0,
    )
    start = max(0, min(first - most // 2, len(steps) - most))
    marks = {status.value: mark for status, mark in MARKS.items()}
    told = []
    for step in steps[start : start + most]:
        retries = f"  (retries: {step['retries']})" if step["retries"] else ""
        colour = COLOURS.get(step["status"], "dim")
        style = "bold" if step["status"] == "running" else ""
        title = f" {step['id']}. {one_line(step['title'], 200)}"
        told.append(
            Text.assemble(
                ("  " + marks[step["status"]], colour), (title, style), (retries, "dim")
            )
        )
    left = len(steps) - len(told)
    return [*told, *([Text(f"    … {left} more", style="dim")] if left > 0 else [])]


def running(now: Row, outputs: Sequence[Mapping[str, Any]]) -> Panel:
    """Return what runs, its clock and its last lines."""
    took = max(0.0, time.time() - now["at"] / 1000)
    limit = f" of {span(now['timeout'])}" if now["timeout"] else ""
    left = f", about {seconds(now['left'])} left" if now["left"] else ""
    lines = clean("".join(text_of(output) for output in outputs[-3:])).splitlines()[
        -LINES:
    ] or [now["line"]]
    bar = ProgressBar(
        total=now["timeout"] or 1, completed=min(took, now["timeout"] or 1)
    )
    body = Group(bar, Text("\n".join(one_line(line, 300) for line in lines)))
    title = f"{now['name']} · {took:.1f} s{limit}{left}"
    return Panel(body, title=Text(title), title_align="left", border_style="cyan")


def stop(told: Row) -> Panel:
    """Return why it is stopped, and the commands that lift that."""
    ways = [
        f"{way['command']} {way['argument']}".strip() + f"  – {way['about']}"
        for way in told["ways"]
    ]
    asked = [f"The agent asks: {told['question']}"] if told["question"] else []
    text = "\n".join([*told["block"].splitlines()[1:], *asked, "", *ways])
    title = told["block"].partition("\n")[0].removeprefix("❌ ")
    return Panel(Text(text), title=Text(title), title_align="left", border_style="red")
