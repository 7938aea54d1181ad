"""Measure how many true edges `policy/dataflow/cell_dependencies` finds.

`python -m tests.dataflow.score FOLDER [look|held|all] [-v]` reads the traces in a
folder (`tracer.py` writes one per notebook). `-v` prints the wrong edges of the `look`
part.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.diagnosis import ipython_syntax
from stepper.policy.dataflow import name_analysis
from stepper.policy.dataflow.binding_table import BindingTable
from stepper.policy.dataflow.name_effects import NameUsage

Edge = tuple[int, int, str]  # provider, reader, name
# Packages whose source distributions contain quick notebooks without network access.
PACKAGES = (
    "control==0.10.2",
    "emcee==3.1.6",
    "fluids==1.3.1",
    "giddy==2.3.8",
    "inequality==1.1.2",
    "lmfit==1.3.4",
    "mapclassify==2.10.0",
    "mesa==3.3.1",
    "pointpats==2.5.5",
    "seaborn==0.13.2",
    "spaghetti==1.7.6",
    "spreg==1.9.0",
)
NEEDED = (
    *PACKAGES,
    "ipython",
    "cloudpickle",
    "corner",
    "geopandas",
    "libpysal",
    "matplotlib",
    "pandas>=2.2,<4",
    "splot",
)


@dataclass
class Score:
    """Counts of edges: correct, false and missed."""

    good: int = 0
    vain: int = 0
    missed: int = 0
    cells: int = 0
    notebooks: int = 0

    @property
    def precision(self) -> float:
        """The share of reported edges that are true."""
        return self.good / max(1, self.good + self.vain)

    @property
    def recall(self) -> float:
        """The share of true edges that are reported."""
        return self.good / max(1, self.good + self.missed)

    def __str__(self) -> str:
        of = f"{self.notebooks} notebooks, {self.cells} cells, {self.good + self.missed} true edges"
        return f"{of}: precision {self.precision:.3f}, recall {self.recall:.3f}"


def part(notebook: str) -> str:
    """Return the part of a notebook: a third is `look`, the rest is `held` out."""
    name = "/".join(Path(notebook).parts[-2:])
    return (
        "look" if int(hashlib.md5(name.encode()).hexdigest(), 16) % 3 == 0 else "held"
    )


def find_edges(flows: Iterable[NameUsage]) -> set[Edge]:
    """Return the edges if the cells run from the top."""
    order = BindingTable()
    return {
        (bound.origin, index, name)
        for index, flow in enumerate(flows)
        for name, bound in order.apply(index, flow).items()
    }


def compare_edges(traced: dict[str, Any]) -> tuple[set[Edge], set[Edge]]:
    """Return the true and the reported edges, only of readers that succeeded."""
    flows, ok = (
        [
            name_analysis.analyze_source(source, ipython_syntax.get_transformer())
            for source in traced["sources"]
        ],
        traced["ok"],
    )
    true = {
        (provider, reader, name)
        for provider, reader, name in traced["edges"]
        if ok[reader]
    }
    return true, {
        edge
        for edge in find_edges(flows)
        if ok[edge[1]] and not edge[2].startswith("_")
    }


def compute_scores(traces: Iterable[dict[str, Any]]) -> tuple[Score, Score]:
    """Return the scores of traced notebooks, by cell pair and by name."""
    cells, names = Score(), Score()
    for traced in traces:
        true, analyzed = compare_edges(traced)
        pairs = ({edge[:2] for edge in true}, {edge[:2] for edge in analyzed})
        for score, (right, selected) in ((cells, pairs), (names, (true, analyzed))):
            score.good += len(right & selected)
            score.vain += len(selected - right)
            score.missed += len(right - selected)
            score.cells += sum(traced["ok"])
            score.notebooks += 1
    return cells, names


def unpack_notebooks(python: str, folder: Path) -> list[Path]:
    """Return the notebooks in the source distributions of the packages."""
    command = [
        python,
        "-m",
        "pip",
        "download",
        "-q",
        "--no-deps",
        "--no-binary",
        ":all:",
        "-d",
        str(folder),
        *PACKAGES,
    ]
    subprocess.run(command, check=True)
    for archive in folder.glob("*.tar.gz"):
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return sorted(
        path for path in folder.rglob("*.ipynb") if path.parent.name != "_docstrings"
    )


def trace(python: str, notebook: Path, seconds: float) -> dict[str, Any] | None:
    """Return a notebook's trace, or None after a timeout or an error."""
    command = [python, str(Path(__file__).with_name("tracer.py")), str(notebook)]
    try:
        result = subprocess.run(
            command, capture_output=True, timeout=seconds, check=False
        )
        return json.loads(result.stdout) if result.stdout else None
    except (subprocess.TimeoutExpired, ValueError):
        return None


def read(folder: Path, which: str) -> Iterator[dict[str, Any]]:
    """Yield the traces in a folder that belong to a part."""
    origins = json.loads((folder / "origin.json").read_text())
    for file in sorted(folder.glob("????????????.json")):
        text = file.read_text()
        traced = json.loads(text) if text else {"ok": ()}
        if any(traced["ok"]) and which in ("all", part(origins[file.stem])):
            yield traced


def main() -> None:
    """Print the scores of traces."""
    folder, command = Path(sys.argv[1]), (sys.argv[2:3] or ["look"])[0]
    traces = [*read(folder, command)]
    for traced in traces if "-v" in sys.argv and command == "look" else ():
        true, analyzed = compare_edges(traced)
        for title, edges in (("vain", analyzed - true), ("missed", true - analyzed)):
            for provider, reader, name in sorted(edges):
                sys.stdout.write(
                    f"{title} {provider}→{reader} {name}  {traced['path']}\n"
                )
    cells, names = compute_scores(traces)
    sys.stdout.write(f"{command}, cell to cell: {cells}\n{command}, by name: {names}\n")


if __name__ == "__main__":
    main()
