"""The seven-step notebook that each client plays.

One cell fails and is fixed, and the user lifts one stop.
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
    """The id of the cell that the last report is about."""
    matches = re.findall(r"\(id ([^)]+)\)", results[-1].text)
    assert matches, results[-1].text
    return str(matches[0])


def script(lift: Turn, *then: Turn) -> list[Turn]:
    """The story up to the end; `lift` is what happens in the turn after the stop, before `then`."""
    numbers, squares, total, year, plot, save, tell = SOURCES

    def mended(results: Sequence[Result]) -> Call:
        assert "FAILED" in results[-1].text and "`numbers`" in results[-1].text, (
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

    def lifted(results: Sequence[Result]) -> Call | str:
        assert "stopped" in results[-1].text, results[-1].text
        return lift(results) if callable(lift) else lift

    return [
        Call("create_notebook", {"problem": "Squares", "steps": STEPS}),
        Call("run_cell", {"source": numbers}),
        Call("run_cell", {"source": squares.replace("numbers", "numberz")}),
        mended,
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
        lifted,
        *then,
        lambda _: Call("run_cell", {"cell_id": stopped["cell"], "source": year}),
        Call("run_cell", {"source": plot}),
        Call("run_cell", {"source": save}),
        Call("run_cell", {"source": tell}),
        Call("notebook_status", {}),
    ]


def lift_stop_in_terminal(project: Path, tell: Callable[[str], None]) -> Turn:
    """The turn after a `lift_stop` that could ask nobody: the person gives the command that its answer named."""

    def lifts(results: Sequence[Result]) -> Call:
        tell(results[-1].text)
        assert "stepper fix" in results[-1].text, results[-1].text
        command = [project / ".stepper/env/bin/stepper", "fix", "It is 2024."]
        subprocess.run(command, cwd=project, check=True, capture_output=True)
        return Call("notebook_status", {})

    return lifts


def check(project: Path, results: Sequence[Result]) -> None:
    """The notebook, the file that its cells wrote, and what the model was shown."""
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
    ) == 1  # the one figure, as an image
