"""The data flow of held-out notebooks compared with a tracer's results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.dataflow.score import NEEDED, compute_scores, part, trace, unpack_notebooks
from tests.environments import environment

NOTEBOOKS, SECONDS = 60, 100.0  # minimum number of cells that run


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # downloads and runs a hundred notebooks
def test_precision_and_recall_against_a_tracer(tmp_path: Path) -> None:
    python = environment(sys.executable, *NEEDED)
    notebooks = [
        path
        for path in unpack_notebooks(sys.executable, tmp_path)
        if part(str(path)) == "held"
    ]
    traces = [
        traced
        for path in notebooks
        if (traced := trace(python, path, SECONDS)) and any(traced["ok"])
    ]
    cells, names = compute_scores(traces)
    assert cells.notebooks >= NOTEBOOKS, "too few notebooks run here"
    sys.stdout.write(f"cell to cell: {cells}\nby name: {names}\n")
    assert cells.precision >= 0.95, cells
    assert cells.recall >= 0.95, cells
