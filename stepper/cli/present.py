"""What people see of a command: text that reads well in a terminal, a progress bar with rich."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

import click

from stepper.ground.text import clean, one_line

MARKS = {"done": "✓", "failed": "✗", "skipped": "–", "running": "▶", "pending": "·"}


def status_text(found: dict[str, Any]) -> str:
    """Return `stepper status` for people."""
    steps, kernel, daemon = found["steps"], found["kernel"], found["daemon"]
    if found["notebook"] is None:
        return 'No notebook was made here yet: stepper new "PROBLEM"'
    name, done = one_line(found["notebook"]), sum(step["status"] in ("done", "skipped") for step in steps)
    lines = [f"{name}: {found['state']}" + (f", {done} of {len(steps)} steps done" if steps else "")]
    for step in steps:
        retries = f"  (retries: {step['attempts']})" if step["attempts"] else ""
        lines.append(f"  {MARKS[step['status']]} {step['id']}. {one_line(step['title'])}{retries}")
    told = f"kernel: {kernel['state']}"
    if kernel["pid"]:
        told += f", pid {kernel['pid']}, {(kernel['rss_bytes'] or 0) / 1e6:.0f} MB, {kernel['python']}"
    lines += [told, f"daemon: pid {daemon['pid']}, version {daemon['version']}"]
    return "\n".join(lines)


def plan_text(found: dict[str, Any]) -> str:
    """Return `stepper plan` for people."""
    lines = [one_line(found["notebook"]), *([] if found["steps"] else ["  no plan"])]
    for step in found["steps"]:
        more = [f"criterion: {one_line(step['criterion'])}"] if step["criterion"] else []
        more += [step["kind"]] if step["kind"] != "step" else []
        more += [f"skipped: {one_line(step['reason'])}"] if step["reason"] else []
        told = f"  ({'; '.join(more)})" if more else ""
        lines.append(f"  {MARKS[step['status']]} {step['id']}. {one_line(step['title'])}{told}")
    return "\n".join(lines)


def history_text(runs: list[dict[str, Any]]) -> str:
    """Return `stepper history` for people."""
    if not runs:
        return "No cell has run here yet."
    rows = [("run", "started (UTC)", "cell", "step", "took", "outcome")]
    rows += [
        (
            str(run["run"]),
            one_line(run["started_at"])[:19].replace("T", " "),
            one_line(run["cell_id"], 100),
            str(run["step"] or "–"),
            f"{run['duration_s']:.2f} s",
            run["outcome"],
        )
        for run in runs
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


class RunProgress:
    """A progress bar on a terminal, plain lines elsewhere, nothing with `--json`."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.bar: Any = None
        self.task: Any = None

    def __enter__(self) -> RunProgress:
        """Begin; rich is loaded only where a terminal shows it."""
        if not self.quiet and sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
            )
            self.bar.start()
        return self

    def __call__(self, told: dict[str, Any]) -> None:
        """Show one message of the daemon's."""
        if self.quiet:
            return
        if self.bar is None:
            if told["what"] == "ran":
                click.echo(clean(told["line"]))
            return
        if self.task is None:
            self.task = self.bar.add_task("", total=told["of"])
        if told["what"] == "running":
            self.bar.update(self.task, description=f"cell {told['cell']}")
        else:
            self.bar.console.print(clean(told["line"]), markup=False, highlight=False)
            self.bar.update(self.task, completed=told["position"])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the bar."""
        if self.bar is not None:
            self.bar.stop()


def trust_text(found: dict[str, Any]) -> str:
    """Return what `stepper trust` accepted, for a person."""
    lines = [f"Accepted, for you alone, in {found['project']}:"]
    for name in ("interpreter", "environment"):
        about = found[name]
        is_link = about and about["is"] != about["path"]
        lines.append(f"  {name:<12}{about['path'] if about else 'none'}{' → ' + about['is'] if is_link else ''}")
    return "\n".join([*lines, f"Recorded in {found['recorded']}"])
