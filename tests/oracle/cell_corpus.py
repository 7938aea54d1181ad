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
BEGINNINGS = "beginnings"  # a notebook of the first cells of each: later ones build on earlier ones
EACH = 5
# Why a cell's outputs may differ from nbclient's, or from its own of another time.
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
class Sheet:
    """A cell's source, and its flags."""

    source: str
    flags: frozenset[str]


def sheets(name: str) -> list[Sheet]:
    """Return the cells of a notebook."""
    if name == BEGINNINGS:
        return [sheet for item in NAMES for sheet in sheets(item)[:EACH]]
    results = []
    for text in (FOLDER / f"{name}.txt").read_text().split("# %%\n")[1:]:
        source, flags = text.rstrip("\n"), set()
        while (flag := FLAG.search(source)) and flag[1] in FLAGS:
            source, flags = source[: flag.start()], flags | {flag[1]}
        results.append(Sheet(source, frozenset(flags)))
    return results


def notebook(name: str) -> Any:
    """Return a notebook without outputs."""
    cells = []
    for number, sheet in enumerate(sheets(name)):
        tags = {
            "tags": ["raises-exception"]
        }  # the next cell runs whatever the outcome of this one
        cells.append(
            nbformat.v4.new_code_cell(
                sheet.source, id=f"{name}-{number}", metadata=tags
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
