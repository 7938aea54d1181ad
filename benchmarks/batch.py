"""What the end of a message (the hook `PostToolBatch`) costs in a project with many notebooks.

    python benchmarks/batch.py

Each round is a step in one notebook, a pause, and the end of its message: the daemon then looks whether any notebook
was changed outside of Claude Code's edit tools. The rows differ in how many notebooks the project has and in how they
are laid out. `bare` is a process that asks a dummy server over a socket: what spawning alone takes on this machine.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from common import Project, Row, options, played, report, scratch, spawn, take, within
from subject import Subject

LIMITS = {10: None, 100: 10.0, 1000: 20.0}  # notebooks: the bound of the median in ms
PAUSE_SECONDS = 0.5  # between a step and the next: an agent takes longer
BESIDE = 4  # other files and folders in the folder of each notebook, such as data


def fill(project: Project, layout: str, count: int) -> None:
    """Add notebooks that nobody works on; each has two cells that ran."""
    cells = [
        {
            "cell_type": "code",
            "execution_count": 1,
            "id": f"c{n}",
            "metadata": {},
            "outputs": [],
            "source": [f"x{n}"],
        }
        for n in range(2)
    ]
    text = json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )
    for number in range(count):
        at = {
            "one folder": "",
            "ten in a folder": f"f{number // 10}",
            "one in a folder": f"g{number % 20}/f{number}",
        }
        folder = project.root / "notebooks" / at[layout]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"other{number}.ipynb"
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        if layout != "one folder":
            for other in range(BESIDE):
                Path(folder, f"data{number}-{other}.csv").touch()


def main() -> None:
    """Measure and print."""
    rounds = (
        options("What the end of a message costs in a project with many notebooks.")
        .parse_args()
        .rounds
    )
    lines = [
        "| notebooks | layout | PostToolBatch, median ms | p95 | above bare, median | bound | a step, median ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for count, limit in LIMITS.items():
        for layout in ("one folder", "ten in a folder", "one in a folder"):
            with scratch() as project:
                fill(project, layout, count)
                subject, steps = Subject(project, "subject", 10), list[float]()
                bare = project.connected()

                def end(
                    subject: Subject = subject, steps: list[float] = steps
                ) -> float:
                    data, word = subject.edit()
                    ended = spawn(subject.project.hook("PostToolUse"), data)
                    subject.check(ended.out, word)
                    steps.append(ended.ms)
                    time.sleep(PAUSE_SECONDS)
                    done = subject.end_message()
                    return done.ms

                row = Row(layout, end)
                take([row], rounds, bare)
                p95 = statistics.quantiles(row.samples, n=20)[-1]
                above = row.median - statistics.median(row.bare)
                step = statistics.median(steps)
                lines.append(
                    f"| {count} | {layout} | {row.median:.1f} | {p95:.1f} | {above:.1f} | {within(row.median, limit)}"
                    f" | {step:.1f} |"
                )
    report(rounds, lines)


if __name__ == "__main__":
    played(main)
