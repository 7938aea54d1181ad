"""What people see: each command's answer as a text that reads well in a terminal, progress as a bar.

A command of the table has a row in `PRESENT`. (Over 300 lines: a list of renderings, read by name.)
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from stepper.cli.terminal import coloured, say, write
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
    **{
        "stale": "~",
        "done": "✓",
        "failed": "✗",
        "doubted": "?",
        "skipped": "–",
        "running": "▶",
        "pending": "·",
    },
    **{"interrupted": "■", "changed": "≠"},
}
CLEARED = "\r\x1b[K"  # the line of a terminal


@dataclass(frozen=True)
class Rendering:
    """How a command's answer is shown: as text, with `--json` (where it has that), by the exit code (0 or 1)."""

    text: Callable[[Any], str] = lambda answer: str(answer["text"])
    has_json: bool = True
    document: Callable[[Any], Any] = lambda answer: answer
    well: Callable[[Any], bool] = lambda answer: True
    has_times: bool = False  # in the text, in the person's zone


def show(command: str, answer: Any, as_json: bool) -> bool:
    """Print a command's answer as one JSON document, or as text; return whether what was asked for came out well."""
    rendering = PRESENT[command]
    if as_json:
        told = json.dumps(rendering.document(answer), indent=2, ensure_ascii=False)
        write(CONTROLS.sub(lambda control: json.dumps(control[0])[1:-1], told))
    elif text := rendering.text(answer):
        say(text)
    return rendering.well(answer)


def _new(made: dict[str, Any]) -> str:
    lines = [f"Made {made['notebook']}; it is the current notebook."]
    lines += [f"  {step['id']}. {step['title']}" for step in made["steps"]]
    if made["unfinished"]:
        lines.append(f"{made['unfinished']} is unfinished; it stays as it is.")
    cwd = made["kernel_cwd"]
    where = f"the {cwd}'s folder" if cwd in ("notebook", "project") else one_line(cwd)
    return "\n".join(
        [
            *lines,
            f"Its kernel will run in {where}: paths in cells are relative to that.",
        ]
    )


def _step(step: dict[str, Any], more: list[str]) -> str:
    more += {"interrupted": ["interrupted"], "changed": ["changed since it ran"]}.get(
        step["status"], []
    )
    told = f"  ({'; '.join(more)})" if more else ""
    return f"  {MARKS[step['status']]} {step['id']}. {one_line(step['title'])}{told}"


def _status(found: dict[str, Any]) -> str:
    steps, kernel, daemon = found["steps"], found["kernel"], found["daemon"]
    if found["notebook"] is None:
        return 'No notebook was made here yet: stepper new "PROBLEM"'
    done = sum(step["status"] == "done" for step in steps)
    skipped = sum(step["status"] == "skipped" for step in steps)
    head = f"{one_line(found['notebook'])}: {found['state']}" + (
        f", {format_steps_done(done, skipped, len(steps), 'step')}" if steps else ""
    )
    from stepper.messages.quoted_output import elsewhere, running

    now = found["running"]
    if now:
        how_far = (
            now["seconds"],
            now["timeout"],
            one_line(now["line"]),
            now["left_seconds"],
        )
        head += "\n" + running(now["name"], *how_far)
    marked = {
        mark["cell_id"]: mark["why"] for mark in (*found["hidden"], *found["stale"])
    }
    lines = [
        _step(step, _stands(step) + _taken(marked, step["cell_id"])) for step in steps
    ]
    lines += [_cell(cell, _taken(marked, cell["cell_id"])) for cell in found["cells"]]
    lines += [
        _cell(
            cell,
            [
                *_taken(marked, cell["cell_id"]),
                f"outside the plan, {_open(cell['status'])}",
            ],
        )
        for cell in found["off_plan"]
    ]
    lines += [
        f"  ~ cell {mark['cell']} (id {one_line(mark['cell_id'], 100)}): {mark['why']}"
        for mark in (*found["stale"], *found["hidden"])
        if mark["cell_id"] in marked
    ]
    lines += [found["stop"]["text"]] if found["stop"] else []
    told = f"kernel: {kernel['state']}"
    if kernel["pid"]:
        told += f", pid {kernel['pid']}, {_memory(kernel)}, {kernel['python']}"
    if kernel["where"] or kernel["trouble"]:
        told += (
            f", {elsewhere(kernel['where'], kernel['left_seconds'], kernel['trouble'])}"
        )
    if found["lost"]:
        restore = CommandLines(found["notebook"]).shell("restore")
        told += f"; state lost: {one_line(found['lost'])} (`{restore}` builds it again)"
    lines += [found["verified"]["text"]] if found["verified"] else []
    lines += [found["jupyter"]] if found["jupyter"] else []
    lines += [found["renamed"]] if found["renamed"] else []
    lines += [told, f"daemon: pid {daemon['pid']}, version {daemon['version']}"]
    return "\n".join([head, *lines, *filter(None, [found["unheard"]])])


def _stands(step: dict[str, Any]) -> list[str]:
    doubted = step["status"] == "doubted"
    return [f"retries: {step['retries']}"] * bool(step["retries"]) + [
        "its criterion is false"
    ] * doubted


def _taken(marked: dict[str, str], cell_id: str | None) -> list[str]:
    why = marked.pop(cell_id or "", "")
    return [one_line(why)] if why else []


def _cell(cell: dict[str, Any], more: list[str]) -> str:
    told = f"  ({'; '.join(more)})" if more else ""
    return f"  {MARKS[cell['status']]} cell {cell['cell']} (id {one_line(cell['cell_id'], 100)}): {cell['title']}{told}"


def _open(status: str) -> str:
    return {"pending": "not run", "changed": "changed since it ran"}.get(status, status)


def _memory(kernel: dict[str, Any]) -> str:
    return f"{(kernel['rss_bytes'] or 0) / 1e6:.0f} MB"


def _list(notebooks: list[dict[str, Any]]) -> str:
    if not notebooks:
        return 'No notebook is here yet: stepper new "PROBLEM"'
    rows = [("", "notebook", "state", "progress", "kernel", "memory", "age")]
    for each in notebooks:
        progress, kernel = each["progress"], each["kernel"]
        far = (
            f"{progress['done']} of {progress['of']} {progress['what']}"
            if progress["of"]
            else "–"
        )
        if progress["skipped"]:
            far += f", {progress['skipped']} skipped"
        memory = _memory(kernel) if kernel["pid"] else "–"
        mark, name = "*" * each["current"], one_line(each["notebook"], 200)
        rows.append(
            (
                mark,
                name,
                each["state"],
                far,
                kernel["state"],
                memory,
                format_age(each["age_s"]),
            )
        )
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _use(used: dict[str, Any]) -> str:
    said = f"{used['notebook']} is the current notebook"
    said += f"; its next kernel runs in {used['kernel']}" if used["kernel"] else ""
    if used["elsewhere"]:
        restart = CommandLines(used["notebook"]).shell("restart")
        return (
            f"{said}. The present one runs in {used['elsewhere']}: `{restart}` ends it."
        )
    return f"{said}."


def _waited(found: dict[str, Any]) -> str:
    from stepper.messages.quoted_output import elsewhere

    kernel = found["kernel"]
    where = (
        elsewhere(kernel["where"], kernel["left_seconds"], kernel["trouble"])
        or f"pid {kernel['pid']}"
    )
    return f"{one_line(found['notebook'])}: its kernel is there ({kernel['state']}, {where})"


def _kernels(places: list[dict[str, Any]]) -> str:
    lines, width = list[str](), max(len(place["name"]) for place in places)
    for place in places:
        mark = {True: "✓", False: "✗", None: "·"}[place["reachable"]]
        usual = " (the project's)" * place["usual"]
        lines += _wrapped(
            f"{mark} {place['name']:<{width}}  ",
            f"{one_line(place['about'], 300)}{usual}",
        )
        mend = [f"mend: {place['mend']}"] if place["mend"] else []
        unchecked = [f"not checked: {what}" for what in place["unchecked"]]
        for told in filter(None, (place["why"], *place["offers"], *unchecked, *mend)):
            lines += _wrapped(" " * (width + 4), one_line(told, 300))
    return "\n".join(lines)


def _wrapped(first: str, text: str) -> list[str]:
    """Return a text below what begins its first line, as wide as the terminal; in one line where nobody looks on."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    if len(first) + len(text) <= columns or columns < len(first) + 20:
        return [first + text]
    import textwrap  # for few

    below = " " * len(first)
    return textwrap.wrap(
        text,
        columns,
        initial_indent=first,
        subsequent_indent=below,
        break_on_hyphens=False,
    )


def _plan(found: dict[str, Any]) -> str:
    lines = [one_line(found["notebook"])]
    for step in found["steps"]:
        more = (
            [f"criterion: {one_line(step['criterion'])}"] if step["criterion"] else []
        )
        more += [step["kind"]] if step["kind"] != "step" else []
        more += ["long"] * step["long"]
        why = {"skipped": "skipped", "done": "confirmed"}.get(step["status"], "why")
        more += [f"{why}: {one_line(step['reason'])}"] if step["reason"] else []
        lines.append(_step(step, more))
    return "\n".join(lines if found["steps"] else [*lines, "  no plan"])


def _history(runs: list[dict[str, Any]]) -> str:
    if not runs:
        return "No cell has run here yet."
    rows = [
        (
            "run",
            f"started ({_time(runs[-1]['started_at']):%Z})",
            "cell",
            "step",
            "took",
            "by",
            "outcome",
        )
    ]
    for run in runs:
        started, cell = (
            f"{_time(run['started_at']):%Y-%m-%d %H:%M:%S}",
            one_line(run["cell_id"], 100),
        )
        cell = cell or one_line(run["source"], 40)
        took = f"{run['duration_s']:.2f} s"
        rows.append(
            (
                str(run["run"] or "–"),
                started,
                cell,
                str(run["step"] or "–"),
                took,
                one_line(run["by"], 10) or "–",
                run["outcome"],
            )
        )
    return _table(rows)


def _time(moment: str) -> datetime:
    """Return a moment of the journal's in the zone of this machine."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).astimezone()


def _eval(answer: dict[str, Any]) -> str:
    """The value as it is; for an agent, to whom nothing printed must pass for stepper's words, in a report."""
    plainly = answer["outcome"] == "ok" and not os.environ.get("STEPPER_SESSION")
    return str(answer["output" if plainly else "text"])


def _trust(found: dict[str, Any]) -> str:
    lines = [f"Accepted, for you alone, in {found['project']}:"]
    for name in ("interpreter", "environment"):
        about = found[name] or {"path": "none", "is": "none"}
        is_link = about["is"] != about["path"]
        lines.append(
            f"  {name:<12}{about['path']}{' → ' + about['is'] if is_link else ''}"
        )
    for name, definition in found["kernels"].items():
        lines.append(f"  kernels.{name}: {json.dumps(definition, ensure_ascii=False)}")
    return "\n".join([*lines, f"Recorded in {found['recorded']}"])


NOTHING = {  # what a run says where there were no cells to run
    "pending": "every cell ran here already (--all runs them again)",
    "all": "it has no code cells",
    "stale": "no cell is stale",
    "restore": "no cell of it had ended well",
}


def _ran() -> Rendering:
    """Return the rendering of cells that ran."""

    def text(ended: dict[str, Any]) -> str:
        summary = f"{ended['ran']} of {ended['cells']} cells ran ok"
        summary = (
            summary if ended["cells"] else f"nothing to run; {NOTHING[ended['which']]}"
        )
        lines = [ended["report"], f"{ended['notebook']}: {summary}", ended["follows"]]
        if ended["stop"]:
            lines.append(f"stepper: {ended['stop']}")
        return "\n".join(filter(None, lines))

    return Rendering(text, well=lambda ended: bool(ended["ok"]))


def _without_text(found: dict[str, Any]) -> dict[str, Any]:
    return {name: told for name, told in found.items() if name != "text"}


def _output(page: dict[str, Any]) -> str:
    if page["ended"]:
        return str(page["ended"])
    more = f"page {page['page']} of {page['pages']}" if page["pages"] > 1 else ""
    return "\n".join(filter(None, [page["text"], more]))


def _interrupt(answer: dict[str, Any]) -> str:
    return f"{answer['notebook']}: {answer['text']}"


def _restart(answer: dict[str, Any]) -> str:
    lost = (
        "all variables of the old one are lost"
        if answer["had_kernel"]
        else "there was none before"
    )
    return f"{answer['notebook']}: a fresh kernel runs; {lost}."


def _shutdown(ended: dict[str, Any] | None) -> str:
    if ended and ended["left"]:
        return f"{ended['notebook']}: {ended['left']} was named by its id: it is left, with its variables."
    if ended and ended["notebook"]:
        lost = (
            "its kernel is ended; all its variables are lost"
            if ended["kernels"]
            else "it has no kernel"
        )
        return f"{ended['notebook']}: {lost}."
    done = (
        f"Ended: the daemon and {format_count(ended['kernels'], 'kernel')} of this project."
        if ended
        else ""
    )
    return done or "Nothing of stepper's runs in this project."


def _doctor(checks: list[Any]) -> str:
    lines = []
    for check in checks:
        lines.append(f"{'ok  ' if check.ok else 'BAD '} {check.name}: {check.detail}")
        lines += [f"     mend: {check.mend}"] if not check.ok and check.mend else []
    return "\n".join(lines)


PRESENT = {
    "new": Rendering(
        _new, document=lambda made: {name: made[name] for name in ("notebook", "steps")}
    ),
    "status": Rendering(_status),
    **dict.fromkeys(("run", "restore"), _ran()),
    "verify": Rendering(
        document=_without_text, well=lambda found: bool(found["reproduces"])
    ),
    "list": Rendering(_list),
    "use": Rendering(
        _use,
        document=lambda used: {
            name: used[name] for name in used if used[name] is not None
        },
    ),
    "kernels": Rendering(_kernels),
    "kernels wait": Rendering(
        _waited, well=lambda found: bool(found["kernel"]["state"] in ("idle", "busy"))
    ),
    "history": Rendering(_history, has_times=True),
    "report": Rendering(),
    "eval": Rendering(_eval, well=lambda answer: answer["outcome"] == "ok"),
    "output": Rendering(_output),
    "attach": Rendering(document=_without_text),
    "interrupt": Rendering(_interrupt, has_json=False),
    "restart": Rendering(_restart, has_json=False),
    **dict.fromkeys(("continue", "fix", "skip", "confirm"), Rendering(has_json=False)),
    "context": Rendering(
        document=lambda told: {name: told[name] for name in told if name != "text"}
    ),
    **dict.fromkeys(
        ("plan", "plan add", "plan edit", "plan remove", "plan move", "plan reopen"),
        Rendering(_plan),
    ),
    "shutdown": Rendering(_shutdown, has_json=False),
    "doctor": Rendering(
        _doctor,
        document=lambda checks: [*map(vars, checks)],
        well=lambda checks: all(check.ok for check in checks),
    ),
    "trust": Rendering(_trust),
    "completion": Rendering(has_json=False),
    "statusline": Rendering(has_json=False),
    **dict.fromkeys(("view", "watch"), Rendering(lambda told: "", has_json=False)),
    "mcp": Rendering(lambda told: str(told["text"]) if told else "", has_json=False),
}


class RunProgress(contextlib.ExitStack):
    """A progress bar on a terminal, plain lines elsewhere, nothing with `--json`."""

    def __init__(self, quiet: bool) -> None:
        super().__init__()
        self.quiet = quiet
        self.bar: Any = None

    def __call__(self, body: bytes) -> None:
        """Show one message of the daemon's; a mere beat holds nothing."""
        if self.quiet or not body:
            return
        from stepper.common.json_decode import decode
        from stepper.session.progress_events import (
            CellBegins,
            CellEnded,
            Printed,
            Told,
            Waits,
        )

        message = json.loads(body)
        kinds: dict[str, type[Told]] = {
            kind.what: kind for kind in (CellBegins, CellEnded, Printed, Waits)
        }
        told = decode(kinds[message["what"]], message)
        if isinstance(told, Waits):
            say(told.line, err=True)
            return
        if isinstance(told, Printed):
            self._printed(told.lines, told.last)
            return
        if not sys.stdout.isatty():
            if isinstance(told, CellEnded):
                say(told.line)
            return
        if self.bar is None:
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeElapsedColumn,
            )

            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
            )
            self.bar = self.enter_context(Progress(*columns))
            self.bar.add_task("", total=told.of)
        (task,) = self.bar.task_ids
        if isinstance(told, CellBegins):
            self.bar.update(
                task,
                description=f"cell {told.cell}",
                completed=told.position - 1,
                total=told.of,
            )
        else:
            from rich.text import Text

            self.bar.console.print(
                Text.from_ansi(coloured(clean(told.line))), highlight=False
            )
            self.bar.update(task, completed=told.position)

    def _printed(self, lines: Sequence[str], last: str) -> None:
        """Show lines of a cell that is followed; on a terminal the last one, which may change, is drawn in place."""
        drawn = sys.stdout.isatty()
        write(CLEARED * drawn + "".join(f"{clean(line)}\n" for line in lines), nl=False)
        if drawn and last and not (lines and lines[-1] == f"| {last}"):
            write(clean(last)[: shutil.get_terminal_size().columns - 1], nl=False)
