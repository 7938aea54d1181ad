"""The seven-step notebook that is played with each client.

One cell fails and is fixed, and the user resumes the stopped notebook once.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from .models import Call, Result, Turn

STEPS = ["Numbers", "Squares", "Sum", "Which year", "Plot", "Save", "Tell"]
ASKS = "raise RuntimeError('STOP: which year is it?')"
PLOT = """\
import io
from PIL import Image
from IPython.display import Image as Shown, display
file = io.BytesIO()
Image.linear_gradient("L").resize((100, 50)).save(file, "PNG")
display(Shown(file.getvalue()))"""
SOURCES = [
    "numbers = list(range(5))\nprint(numbers)",
    "squares = [n * n for n in numbers]",
    "total = sum(squares)\nprint(total)",
    "year = 2024\nprint(year)",
    PLOT,
    "with open('total.txt', 'w') as file:\n    file.write(f'{year}: {total}')\nprint('saved')",
    "print(f'In {year} it was {total}.')",
]


def cell_of(results: Sequence[Result]) -> str:
    """Return the id of the cell in the last report."""
    matches = re.findall(r"\(id ([^)]+)\)", results[-1].text)
    assert matches, results[-1].text
    return str(matches[0])


def script(lift_turn: Turn, *further_turns: Turn) -> list[Turn]:
    """Return all turns; `lift_turn` is the turn after the stop, before `then`."""
    numbers, squares, total, year, plot, save, summary = SOURCES

    def fix_cell(results: Sequence[Result]) -> Call:
        assert "NOT run" in results[-1].text and "`numbers`" in results[-1].text, (
            results[-1].text
        )
        return Call(
            "run_cell",
            {
                "cell_id": cell_of(results),
                "old_string": "numberz",
                "new_string": "numbers",
            },
        )

    stopped: dict[str, str] = {}

    def refused(results: Sequence[Result]) -> Call:
        assert "STOP: which year is it?" in results[-1].text, results[-1].text
        stopped["cell"] = cell_of(results)
        return Call("run_cell", {"source": "print('on')"})

    def rerun_cell(results: Sequence[Result]) -> Call | str:
        assert "stopped" in results[-1].text, results[-1].text
        return lift_turn(results) if callable(lift_turn) else lift_turn

    return [
        Call("create_notebook", {"problem": "Squares", "steps": STEPS}),
        Call("run_cell", {"source": numbers}),
        Call("run_cell", {"source": squares.replace("numbers", "numberz")}),
        fix_cell,
        Call(
            "add_cells",
            {
                "cells": [
                    {"cell_type": "markdown", "source": "The sum"},
                    {"source": total},
                ]
            },
        ),
        Call("run_cell", {"source": ASKS}),
        refused,
        rerun_cell,
        *further_turns,
        lambda _: Call("run_cell", {"cell_id": stopped["cell"], "source": year}),
        Call("run_cell", {"source": plot}),
        Call("run_cell", {"source": save}),
        Call("run_cell", {"source": summary}),
        Call("notebook_status", {}),
    ]


def lift_stop_in_terminal(project: Path, record_message: Callable[[str], None]) -> Turn:
    """Return the turn after a `lift_stop` that could not ask the user.

    The user runs the command that the result of `lift_stop` named.
    """

    def run_fix_command(results: Sequence[Result]) -> Call:
        record_message(results[-1].text)
        assert "stepper fix" in results[-1].text, results[-1].text
        command = [project / ".stepper/env/bin/stepper", "fix", "It is 2024."]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
        return Call("notebook_status", {})

    return run_fix_command


def check(project: Path, results: Sequence[Result]) -> None:
    """Check the notebook, the file that its cells wrote, and the model's input."""
    (path,) = (project / "notebooks").glob("*.ipynb")
    cells = [
        cell
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    assert ["".join(cell["source"]) for cell in cells] == SOURCES
    assert not [
        out
        for cell in cells
        for out in cell["outputs"]
        if out["output_type"] == "error"
    ]
    assert (path.parent / "total.txt").read_text() == "2024: 30"
    texts = [result.text for result in results]
    assert "In 2024 it was 30." in texts[-2] and "7 steps done" in texts[-2]
    assert "complete" in texts[-1]
    assert [result.images for result in results].count(
        1
    ) == 1  # the figure, as an image
