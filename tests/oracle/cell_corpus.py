"""The cells of the comparison: notebooks as text with `# %%` before each cell.

The last lines of a cell state what is special about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

FOLDER = Path(__file__).parent / "notebooks"
NAMES = sorted(path.stem for path in FOLDER.glob("*.txt"))
FIRST_CELLS = "beginnings"  # a notebook of the first cells of all notebooks
CELLS_PER_NOTEBOOK = 5
# Why a cell's outputs may differ from nbclient's or between two runs.
FLAGS = {
    "digits": "contains times or process ids",
    "svg": "matplotlib gives the parts of an SVG random ids",
    "race": "ipykernel does not keep the order in which threads, processes and the two streams write",
    "pager": "JupyterLab and stepper show a pager's text on the cell; nbclient leaves it out",
    "connection": "stepper's kernels use sockets in its own folder",
    "late": "JupyterLab and stepper add output that arrives after the run; nbclient leaves it out",
}
FLAG = re.compile(r"\n# ([a-z]+)$")


@dataclass(frozen=True)
class CorpusCell:
    """A cell's source, and its flags."""

    source: str
    flags: frozenset[str]


def load_cells(name: str) -> list[CorpusCell]:
    """Return the cells of a notebook."""
    if name == FIRST_CELLS:
        return [
            cell for item in NAMES for cell in load_cells(item)[:CELLS_PER_NOTEBOOK]
        ]
    results = []
    for text in (FOLDER / f"{name}.txt").read_text().split("# %%\n")[1:]:
        source, flags = text.rstrip("\n"), set()
        while (flag := FLAG.search(source)) and flag[1] in FLAGS:
            source, flags = source[: flag.start()], flags | {flag[1]}
        results.append(CorpusCell(source, frozenset(flags)))
    return results


def notebook(name: str) -> Any:
    """Return a notebook without outputs."""
    cells = []
    for number, corpus_cell in enumerate(load_cells(name)):
        # the next cell runs even if this one fails
        tags = {"tags": ["raises-exception"]}
        cells.append(
            nbformat.v4.new_code_cell(
                corpus_cell.source, id=f"{name}-{number}", metadata=tags
            )
        )
    spec = {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
    }
    return nbformat.v4.new_notebook(cells=cells, metadata=spec)
