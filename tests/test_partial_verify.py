"""`stepper verify --from CELL`."""

from __future__ import annotations

from typing import Any

import pytest

from stepper.policy.dataflow.partial_replay import find_cell, select_skipped
from stepper.policy.model import Cell
from tests.conftest import Notebook, code
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = UNCLOSED
SLOW = "import time; time.sleep(1.05)"


def make_cells(count: int) -> list[Cell]:
    return [
        Cell(f"c{number}", number - 1, number, "code", f"x{number} = 1")
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize(
    ("providers", "durations", "expected"),
    [
        ({}, {}, [1, 2, 3]),
        ({}, {1: 0.1, 2: 1.0, 3: 0.9}, [2]),
        ({4: [2]}, {1: 5, 2: 5, 3: 5}, [1, 3]),
        ({5: [3], 3: [1]}, {1: 5, 2: 5, 3: 5}, [2]),
        ({2: [1]}, {1: 5, 2: 0.1, 3: 0.1}, [1, 2]),
        ({2: [1], 3: [2], 4: [1]}, {1: 5, 2: 0.1, 3: 0.1}, []),
    ],
)
def test_skipped_cells(
    providers: dict[int, list[int]], durations: dict[int, float], expected: list[int]
) -> None:
    """Cells are numbered from 1; the replay starts at cell 4 of 5."""
    cells = make_cells(5)
    by_id = {
        f"c{reader}": {f"c{number}" for number in numbers}
        for reader, numbers in providers.items()
    }
    seconds = {f"c{number}": duration for number, duration in durations.items()}
    skipped = select_skipped(cells, cells[3], by_id, seconds)
    assert [cell.number for cell in skipped] == expected


def test_cell_by_id_or_number() -> None:
    cells = [Cell("text", 0, 0, "markdown", "x"), *make_cells(2)]
    assert [
        cell and cell.id for cell in (find_cell(cells, "2"), find_cell(cells, "c1"))
    ] == ["c2", "c1"]
    assert (
        find_cell(cells, "0")
        is find_cell(cells, "text")
        is find_cell(cells, "3")
        is None
    )


def make_notebook(project: Quick, *sources: str) -> Notebook:
    cells = [code(source, chr(97 + index)) for index, source in enumerate(sources)]
    notebook = project.notebook("a.ipynb", cells)
    project.stepper("run", "a")
    return notebook


def list_verdicts(document: Any) -> str:
    return " ".join(cell["verdict"] for cell in document["cells"])


def test_partial_replay(project: Quick) -> None:
    sources = ("a = 1", f"{SLOW}\nslow = 5", "slow + 1", "print(a)", "print(a + 1)")
    notebook = make_notebook(project, *sources)
    before = project.json("status", "a")["verified"]
    document = project.json("verify", "a", "--from", "4")
    assert document["reproduces"] and document["partial"]
    assert list_verdicts(document) == "same skipped skipped same same"
    lines = project.stepper("verify", "a", "--from", "d").stdout.splitlines()
    assert lines[0].startswith(
        "notebooks/a.ipynb: PARTIAL (cells 1, 4, 5 of 5): REPRODUCES · 3 of 3 replayed"
        " cells as recorded · "
    )
    assert lines[1:] == [
        "  · cells 2, 3: skipped; by their sources, the replayed cells do not need them"
    ]
    assert project.json("status", "a")["verified"] == before, (
        "not a verdict on all cells"
    )
    notebook.path.write_text(notebook.path.read_text().replace('"2\\n"', '"3\\n"'))
    result = project.stepper("verify", "a", "--from", "4", check=1)
    assert "PARTIAL (cells 1, 4, 5 of 5): DOES NOT REPRODUCE · 2 of 3" in result.stdout
    xml = project.stepper("verify", "a", "--from", "4", "--format", "junit", check=1)
    assert xml.stdout.count('<skipped message="skipped (--from)"/>') == 2


def test_replay_is_not_partial_if_all_cells_are_needed(project: Quick) -> None:
    make_notebook(project, f"{SLOW}\nslow = 5", "print(slow)", "print(slow + 1)")
    text = project.stepper("verify", "a", "--from", "3").stdout
    assert "a.ipynb: REPRODUCES · 3 of 3 cells as recorded" in text


def test_usage_errors(project: Quick) -> None:
    make_notebook(project, "1")
    missing = project.stepper("verify", "a", "--from", "2", check=2).stderr
    assert "--from: there is no code cell '2'" in missing
    several = project.stepper("verify", "a", "b", "--from", "1", check=2).stderr
    assert "--from can't be used with several notebooks" in several
