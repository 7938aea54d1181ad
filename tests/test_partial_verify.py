"""`stepper verify --from CELL`."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stepper.policy.dataflow import partial_replay
from stepper.policy.dataflow.partial_replay import find_cell, plan_replay
from stepper.policy.model import Cell
from stepper.session.verification import checkpoint_code
from tests.conftest import Notebook, Project, code, reuse_project
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture)

pytestmark = UNCLOSED
SLOW = "import time; time.sleep(1.1)"


def test_values_are_saved_to_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "values"
    values = {"x": 1, "lock": threading.Lock(), "text": "x" * 100}
    for name, message in {
        "missing": "KeyError: 'missing'",
        "lock": "TypeError: ",
        "text": "TooLargeError: ",
    }.items():
        error = checkpoint_code.save(values, ["x", name], str(path), 50)
        assert error.startswith(message) and not path.exists()
    assert checkpoint_code.save(values, ["x"], str(path), 50) == ""
    namespace = {"x": 2}
    error = checkpoint_code.save(namespace, ["x"], str(path), 50)
    assert error.startswith("FileExistsError: ")
    checkpoint_code.load(namespace, str(path))  # the file is kept
    assert namespace == {"x": 1}


def test_slow_cells_are_slow() -> None:
    assert 1 <= partial_replay.QUICK_SECONDS < 1.1


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
    reads = {
        f"c{reader}": {f"x{number}": f"c{number}" for number in numbers}
        for reader, numbers in providers.items()
    }
    seconds = {f"c{number}": duration for number, duration in durations.items()}
    plan = plan_replay(cells, cells[3], reads, seconds)
    assert [cell.number for cell in plan.skipped] == expected and not plan.loads


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


def test_cell_id_takes_precedence_over_a_number() -> None:
    cells = [Cell("2", 0, 1, "code", "x"), Cell("1", 1, 2, "code", "y")]
    assert (find_cell(cells, "1"), find_cell(cells, "2")) == (cells[1], cells[0])


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
        "  · cells 2, 3: skipped; the replayed cells use none of their values"
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


def test_partial_replay_accepts_all_names_of_python(project: Quick) -> None:
    cells = [code(f"{SLOW}\nslow = 5", "a"), code("print(1)", "b")]
    project.notebook("a.ipynb", cells, language_info={"name": "ipython"})
    project.stepper("run", "a")
    document = project.json("verify", "a", "--from", "2")
    assert list_verdicts(document) == "skipped same"


def test_usage_errors(project: Quick) -> None:
    make_notebook(project, "1")
    missing = project.stepper("verify", "a", "--from", "2", check=2).stderr
    assert "there is no code cell '2'; the notebook has 1 code cell\n" in missing
    cells = [code("1", "a"), code("2", "b", tags=["skip-execution"]), code("", "c")]
    project.notebook("tagged.ipynb", cells)
    for name, message in (
        ("4", "there is no code cell '4'; the notebook has 3 code cells\n"),
        ("2", "--from: code cell 2 is empty or tagged `skip-execution`\n"),
        ("c", "--from: code cell 3 is empty or tagged `skip-execution`\n"),
    ):
        refused = project.stepper("verify", "tagged", "--from", name, check=2)
        assert message in refused.stderr
    several = project.stepper("verify", "a", "b", "--from", "1", check=2).stderr
    assert "--from can't be used with several notebooks" in several


@pytest.mark.parametrize(
    ("reads", "durations", "loadable", "skipped", "loads"),
    [
        # A slow cell: its value is loaded, if possible.
        ({4: [3]}, {3: 9}, [3], [1, 2, 3], {3: {"x3"}}),
        ({4: [3]}, {3: 9}, [], [1, 2], {}),
        # A quick cell is replayed, unless the cells that it needs are slow.
        ({4: [3]}, {3: 0.1}, [3], [1, 2], {}),
        ({4: [3], 3: [2]}, {2: 9, 3: 0.1}, [3], [1, 2, 3], {3: {"x3"}}),
        ({4: [3], 3: [2]}, {2: 9, 3: 0.1}, [2], [1, 2], {2: {"x2"}}),
        # Cell 2 must be replayed for cell 5, so cell 4 needs no copy of its value.
        ({4: [2], 5: [3], 3: [2]}, {2: 9, 3: 0.1}, [], [1], {}),
        # A quick cell that is not needed runs if its names are loaded.
        ({4: [1], 2: [1]}, {1: 9, 2: 0.1, 3: 9}, [1], [1, 3], {1: {"x1"}}),
    ],
)
def test_loaded_values(
    reads: dict[int, list[int]],
    durations: dict[int, float],
    loadable: list[int],
    skipped: list[int],
    loads: dict[int, set[str]],
) -> None:
    cells = make_cells(5)
    by_id = {
        f"c{reader}": {f"x{number}": f"c{number}" for number in numbers}
        for reader, numbers in reads.items()
    }
    seconds = {f"c{number}": duration for number, duration in durations.items()}
    plan = plan_replay(
        cells, cells[3], by_id, seconds, lambda cell_id, _: int(cell_id[1:]) in loadable
    )
    assert [cell.number for cell in plan.skipped] == skipped
    assert plan.loads == {f"c{number}": names for number, names in loads.items()}


def test_values_of_the_live_kernel(project: Quick) -> None:
    sources = (
        "def grow(model):\n    model['weights'].append(3)",
        f"{SLOW}\nmodel, other = {{'weights': [1, 2]}}, (x for x in 'ab')",
        "grow(model)",
        "print(model['weights'])",
    )
    notebook = make_notebook(project, *sources)
    names = project.stepper("eval", "sorted(globals())", "--notebook", "a").stdout
    lines = project.stepper("verify", "a", "--from", "4", "--checkpoint").stdout
    first_line, *others = lines.splitlines()
    assert first_line.startswith(
        "notebooks/a.ipynb: PARTIAL (cells 1, 4 of 4, from a checkpoint of cell 3):"
        " REPRODUCES · 2 of 2 replayed cells as recorded · "
    )
    assert first_line.endswith("; the live kernel only saved the checkpoint")
    assert others == [
        "  · cell 2: skipped; the replayed cells use none of its values",
        "  · cell 3: not replayed; `model` loaded from the live kernel",
    ]
    after = project.stepper("eval", "sorted(globals())", "--notebook", "a").stdout
    assert after == names, "the live kernel has the same names"
    assert not os.listdir(project.paths.verify)
    # The value after cell 3 is lost: cell 4 changed it.
    notebook.replace("d", "model['weights'].append(4); print(model['weights'])")
    document = project.json("verify", "a", "--from", "4", "--checkpoint")
    assert list_verdicts(document) == "same same same same" and not document["partial"]


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("source", "is_partial"),
    [
        ("data.append(3)", False),
        ("data = 'rebound'", True),
        ("data += [3]", False),
        ("other = data", True),
    ],
)
def test_values_that_share_objects(
    project: Quick, source: str, is_partial: bool
) -> None:
    """A change of `data` in the live kernel also changes `view`."""
    sources = (f"{SLOW}\ndata = [1, 2]\nview = data", "print(len(view))", source)
    make_notebook(project, *sources)
    document = project.json("verify", "a", "--from", "2", "--checkpoint", check=None)
    assert document["partial"] is is_partial and document["reproduces"]


@pytest.mark.nightly
def test_values_that_cannot_be_pickled_are_computed(project: Quick) -> None:
    make_notebook(
        project,
        f"{SLOW}\nletters = (x for x in 'ab')",
        f"{SLOW}\ndata = [1, 2]",
        "print(data)",
        "print(type(letters).__name__)",
    )
    shown = project.stepper("verify", "a", "--from", "3", "--checkpoint").stderr
    assert "cell 1 (id a) is replayed: its values cannot be saved (TypeError: " in shown
    document = project.json("verify", "a", "--from", "3", "--checkpoint")
    assert list_verdicts(document) == "same skipped same same"
    assert document["cells"][1]["difference"] == "`data` loaded from the live kernel"


def test_live_kernel_could_not_save_values(project: Quick) -> None:
    make_notebook(
        project, f"{SLOW}\nletters = (x for x in 'ab')", "print(type(letters))"
    )
    text = project.stepper("verify", "a", "--from", "2", "--checkpoint").stdout
    tried = "; the live kernel only tried to save values for a checkpoint"
    assert text.splitlines()[0].endswith(tried)
    text = project.stepper("verify", "a", "--from", "2").stdout
    assert text.splitlines()[0].endswith("; the live kernel was not touched")


@pytest.mark.nightly
def test_values_of_changed_cells_are_computed(project: Quick) -> None:
    notebook = make_notebook(project, "a = 1", f"{SLOW}\nb = [a]", "print(b)")
    text = notebook.path.read_text()
    notebook.path.write_text(text.replace("a = 1", "a = 2"))
    document = project.json("verify", "a", "--from", "3", "--checkpoint", check=1)
    assert not document["partial"] and document["cells"][2]["lines"] == [
        "- [1]",
        "+ [2]",
    ]


def test_checkpoint_needs_a_live_kernel(project: Quick) -> None:
    make_notebook(project, "1")
    alone = project.stepper("verify", "a", "--checkpoint", check=2).stderr
    assert "--checkpoint needs --from CELL" in alone
    project.stepper("shutdown", "a")
    dead = project.stepper("verify", "a", "--from", "1", "--checkpoint", check=2).stderr
    assert "--checkpoint: notebooks/a.ipynb has no live kernel" in dead


@pytest.mark.nightly
def test_instances_of_the_notebooks_classes(module_project: Project) -> None:
    project = next(reuse_project(module_project))
    cells = [
        code("class Model:\n    def __init__(self):\n        self.x = [1]", "a"),
        code("import time\ntime.sleep(1.1)\nmodel = Model()\ncopies = [model.x]", "b"),
        code("model.x.append(2)\nprint(model.x, copies)", "c"),
    ]
    project.notebook("a.ipynb", cells)
    project.stepper("run", "a")
    # Cell 3 changed the values in place: they are computed again.
    document = project.json("verify", "a", "--from", "3", "--checkpoint")
    assert list_verdicts(document) == "same same same"
    cells[2] = code("print(model.x, copies, model.x is copies[0])", "c")
    project.notebook("b.ipynb", cells)
    project.stepper("run", "b")
    text = project.stepper("verify", "b", "--from", "3", "--checkpoint").stdout
    assert "PARTIAL (cells 1, 3 of 3, from a checkpoint of cell 2): REPRODUCES" in text
    assert "cell 2: not replayed; `copies`, `model` loaded from the live" in text
