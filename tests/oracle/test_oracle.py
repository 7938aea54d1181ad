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
from tests.oracle.cell_corpus import BEGINNINGS, FLAGS, NAMES, sheets
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
class Ran:
    """A notebook run by nbclient some times: the results, and in which folders."""

    name: str
    python: str
    results: list[Any]
    folders: list[str]


@pytest.fixture(
    scope="module",
    params=[
        BEGINNINGS,
        *(pytest.param(name, marks=pytest.mark.nightly) for name in NAMES),
    ],
)
def nbclient_run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Ran:
    python = environment(sys.executable, *PACKAGES)
    folders = [
        tmp_path_factory.mktemp("theirs") / "here" for _ in range(TIMES + 1)
    ]  # one more run, to find random differences
    results = [
        run.run_with_nbclient(python, request.param, folder) for folder in folders
    ]
    return Ran(request.param, python, results, list(map(str, folders)))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "ours"
    shutil.rmtree(tmp_path, ignore_errors=True)


def same(ours: Any, theirs: Ran, folder: Path) -> None:
    """Every cell has what nbclient gave it in one of its runs, whatever is not by chance."""
    results = []
    for number, sheet in enumerate(sheets(theirs.name)):
        wants = [result.cells[number].outputs for result in theirs.results]
        why = describe_difference(
            ours.cells[number].outputs, wants, sheet, [str(folder), *theirs.folders]
        )
        if why:
            results.append(f"cell {number}: {sheet.source}\n{why}")
    assert not results, "\n\n".join(results)
    assert models(ours) == models(theirs.results[0])
    timed = [set(cell.metadata.get("execution", {})) for cell in ours.cells]
    assert timed == [
        set(cell.metadata.get("execution", {})) for cell in theirs.results[0].cells
    ]


def models(notebook: Any) -> list[str]:
    """What the notebook tells of widgets, without names that are by chance; '' where there are none."""
    states = notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})
    messages = [
        normalize(
            {name: part for name, part in state.items() if name != "state"},
            frozenset(["digits"]),
            "/",
        )
        for state in states.values()
    ]
    held = [
        [out["output_type"] for out in state["state"]["outputs"]]
        for state in states.values()
        if state["model_name"] == "OutputModel"
    ]
    return sorted(map(str, [*messages, *held]))


def assert_saved_like_jupyter(opened: Notebook) -> None:
    data = opened.path.read_bytes()
    assert (
        nbformat.writes(nbformat.reads(data.decode(), nbformat.NO_CONVERT)) + "\n"
    ).encode() == data


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("time", range(TIMES))
def test_stepper_run_matches_the_oracle(
    nbclient_run: Ran, folder: Path, time: int
) -> None:
    opened = run.run_with_stepper(nbclient_run.python, nbclient_run.name, folder)
    same(run.wait_for_late_outputs(opened), nbclient_run, folder / "notebooks")
    assert_saved_like_jupyter(opened)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("time", range(TIMES))
def test_hook_matches_the_oracle_edit_by_edit(
    nbclient_run: Ran, folder: Path, time: int
) -> None:
    opened, told = run.run_with_hook(nbclient_run.python, nbclient_run.name, folder)
    same(run.wait_for_late_outputs(opened), nbclient_run, folder / "notebooks")
    assert all(text.startswith("stepper: ") for text in told)
    partial = ("left out of the notebook", "contains only part of this output")
    assert not [text for text in told if any(word in text for word in partial)]


def test_corpus_is_large_and_each_flag_is_needed() -> None:
    cells = [sheet for name in NAMES for sheet in sheets(name)]
    assert len(cells) >= 400
    assert {flag for sheet in cells for flag in sheet.flags} == set(FLAGS)
    assert sum(bool(sheet.flags) for sheet in cells) < len(cells) / 5


def test_differences_match_the_documentation() -> None:
    cells = [sheet for name in NAMES for sheet in sheets(name)]
    text = (ROOT / "docs" / "development" / "outputs.md").read_text()
    assert f"Seven notebooks of {len(cells)} cells" in text and len(NAMES) == 7
    for flag, why in FLAGS.items():
        assert (
            f"| {flag} | {sum(flag in sheet.flags for sheet in cells)} | {why} |"
            in text
        )
