"""Measure the end of a message (`PostToolBatch`) in a project with many notebooks.

    python benchmarks/message_end.py

Each round is a step in one notebook, a pause, and the end of its message, at which the
daemon checks whether any notebook was changed outside Claude Code's edit tools. The
rows differ in the number and layout of notebooks. `bare` is a process that asks an echo
server over a socket: the cost of spawning alone.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path

from common import (
    Project,
    Row,
    create_parser,
    create_temporary_project,
    format_bound,
    measure_rows,
    print_report,
    run_benchmark,
    spawn,
)
from edited_notebook import EditedNotebook

LIMITS = {10: None, 100: 10.0, 1000: 20.0}  # notebooks → limit of the median in ms
PAUSE_SECONDS = 0.5  # between steps; an agent takes longer
OTHER_FILES = 4  # in the folder of each notebook, such as data


def fill(project: Project, layout: str, count: int) -> None:
    """Add notebooks that are not used; each has two cells that ran."""
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
        folders = {
            "one folder": "",
            "ten per folder": f"f{number // 10}",
            "one per folder": f"g{number % 20}/f{number}",
        }
        folder = project.root / "notebooks" / folders[layout]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"other{number}.ipynb"
        path.write_text(text)
        os.utime(path, (1_700_000_000, 1_700_000_000))
        if layout != "one folder":
            for other in range(OTHER_FILES):
                Path(folder, f"data{number}-{other}.csv").touch()


def main() -> None:
    """Measure and print."""
    rounds = (
        create_parser("Measure the end of a message in a project with many notebooks.")
        .parse_args()
        .rounds
    )
    lines = [
        "| notebooks | layout | PostToolBatch, median ms | p95 | above bare, median | limit | step, median ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for count, limit in LIMITS.items():
        for layout in ("one folder", "ten per folder", "one per folder"):
            with create_temporary_project() as project:
                fill(project, layout, count)
                notebook, steps = EditedNotebook(project, "subject", 10), list[float]()
                bare = project.create_socket_floor()

                def run_message(
                    notebook: EditedNotebook = notebook, steps: list[float] = steps
                ) -> float:
                    data, marker = notebook.edit()
                    result = spawn(
                        notebook.project.build_hook_command("PostToolUse"), data
                    )
                    notebook.check(result.output, marker)
                    steps.append(result.ms)
                    time.sleep(PAUSE_SECONDS)
                    return notebook.end_message().ms

                row = Row(layout, run_message)
                measure_rows([row], rounds, bare)
                p95 = statistics.quantiles(row.samples, n=20)[-1]
                above = row.median - statistics.median(row.bare)
                step = statistics.median(steps)
                lines.append(
                    f"| {count} | {layout} | {row.median:.1f} | {p95:.1f} | {above:.1f} | {format_bound(row.median, limit)}"
                    f" | {step:.1f} |"
                )
    print_report(rounds, lines)


if __name__ == "__main__":
    run_benchmark(main)
