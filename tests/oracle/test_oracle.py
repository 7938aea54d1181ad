"""Cell outputs of `stepper run` and of the hook equal those of nbclient.

`make test` runs the first cells of each notebook. `make nightly` runs all cells
three times to find races (ORACLE_TIMES).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from stepper.notebooks.widget_state import STATE
from tests.conftest import ROOT, Notebook
from tests.oracle import run
from tests.oracle.cell_corpus import FIRST_CELLS, FLAGS, NAMES, load_cells
from tests.oracle.compare import describe_difference, normalize
from tests.test_kernel_helper import environment

TIMES = int(os.environ.get("ORACLE_TIMES", "1"))
PACKAGES = (
    "ipykernel>=7",
    "ipywidgets>=8",
    "anywidget",
    "matplotlib",
    "pandas",
    "plotly",
    "tqdm",
)


@dataclass
class NotebookRun:
    """The results of several nbclient runs of a notebook, and their folders."""

    name: str
    python: str
    results: list[Any]
    folders: list[str]


@pytest.fixture(
    scope="module",
    params=[
        FIRST_CELLS,
        *(pytest.param(name, marks=pytest.mark.nightly) for name in NAMES),
    ],
)
def nbclient_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> NotebookRun:
    python = environment(sys.executable, *PACKAGES)
    # one more run, to find random differences
    folders = [tmp_path_factory.mktemp("theirs") / "here" for _ in range(TIMES + 1)]
    results = [
        run.run_with_nbclient(python, request.param, folder) for folder in folders
    ]
    return NotebookRun(request.param, python, results, list(map(str, folders)))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "ours"
    shutil.rmtree(tmp_path, ignore_errors=True)


def assert_same_outputs(actual: Any, expected: NotebookRun, folder: Path) -> None:
    """Assert that each cell has the outputs of one of nbclient's runs."""
    results = []
    for number, corpus_cell in enumerate(load_cells(expected.name)):
        expected_outputs = [result.cells[number].outputs for result in expected.results]
        difference = describe_difference(
            actual.cells[number].outputs,
            expected_outputs,
            corpus_cell,
            [str(folder), *expected.folders],
        )
        if difference:
            results.append(f"cell {number}: {corpus_cell.source}\n{difference}")
    assert not results, "\n\n".join(results)
    assert models(actual) == models(expected.results[0])
    timed = [set(cell.metadata.get("execution", {})) for cell in actual.cells]
    assert timed == [
        set(cell.metadata.get("execution", {})) for cell in expected.results[0].cells
    ]


def models(notebook: Any) -> list[str]:
    """Return the widget states of a notebook without random names."""
    states = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    messages = [
        normalize(
            {name: part for name, part in state.items() if name != "state"},
            frozenset(["digits"]),
            "/",
        )
        for state in states.values()
    ]
    captured = [
        [out["output_type"] for out in state["state"]["outputs"]]
        for state in states.values()
        if state["model_name"] == "OutputModel"
    ]
    return sorted(map(str, [*messages, *captured]))


def assert_saved_like_jupyter(notebook_in_project: Notebook) -> None:
    data = notebook_in_project.path.read_bytes()
    assert (
        nbformat.writes(nbformat.reads(data.decode(), nbformat.NO_CONVERT)) + "\n"
    ).encode() == data


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("time", range(TIMES))
def test_stepper_run_matches_the_oracle(
    nbclient_run: NotebookRun, folder: Path, time: int
) -> None:
    notebook_in_project = run.run_with_stepper(
        nbclient_run.python, nbclient_run.name, folder
    )
    assert_same_outputs(
        run.wait_for_late_outputs(notebook_in_project),
        nbclient_run,
        folder / "notebooks",
    )
    assert_saved_like_jupyter(notebook_in_project)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("time", range(TIMES))
def test_hook_matches_the_oracle_edit_by_edit(
    nbclient_run: NotebookRun, folder: Path, time: int
) -> None:
    notebook_in_project, reports = run.run_with_hook(
        nbclient_run.python, nbclient_run.name, folder
    )
    assert_same_outputs(
        run.wait_for_late_outputs(notebook_in_project),
        nbclient_run,
        folder / "notebooks",
    )
    assert all(text.startswith("stepper: ") for text in reports)
    partial = ("left out of the notebook", "contains only part of this output")
    assert not [text for text in reports if any(phrase in text for phrase in partial)]


def test_corpus_is_large_and_each_flag_is_needed() -> None:
    cells = [cell for name in NAMES for cell in load_cells(name)]
    assert len(cells) >= 400
    assert {flag for cell in cells for flag in cell.flags} == set(FLAGS)
    assert sum(bool(cell.flags) for cell in cells) < len(cells) / 5


def test_differences_match_the_documentation() -> None:
    cells = [cell for name in NAMES for cell in load_cells(name)]
    text = (ROOT / "docs" / "development" / "outputs.md").read_text()
    assert f"Seven notebooks of {len(cells)} cells" in text and len(NAMES) == 7
    for flag, reason in FLAGS.items():
        assert (
            f"| {flag} | {sum(flag in cell.flags for cell in cells)} | {reason} |"
            in text
        )
