"""Random notebooks whose cells run in any order, with and without undo.

After `run --stale`, the kernel must have the state that a run from the top gives, or
the status must name cells that are stale or used hidden state.
"""

from __future__ import annotations

import ast
import pickle
import random
from typing import Any

import pytest

from tests.conftest import Notebook, Project, code
from tests.test_session import Quick, project  # noqa: F401  # a fixture
from tests.test_undo_random import SETUP, Sources, list_values, make_source, replay

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

DAY_SEEDS = 5
# Seeds of notebooks that once had another state than the notebook's.
FOUND_SEEDS = [222, 297, 342, 580, 1053, 1167, 1279]
SEEDS = [
    *range(DAY_SEEDS),
    *FOUND_SEEDS,
    *(
        pytest.param(seed, marks=pytest.mark.nightly)
        for seed in range(DAY_SEEDS, 250)
        if seed not in FOUND_SEEDS
    ),
]
UNDO = {"undo": "", "no undo": "undo: off\n"}


class RandomNotebook:
    """A notebook with five random cells, and the sources that its cells have."""

    def __init__(self, project: Project, seed: int, name: str) -> None:  # noqa: F811
        self.project = project
        self.name = name
        self.generator = random.Random(seed)
        self.sources: Sources = {}
        while not self.sources or replay(self.sources) is None:
            self.sources = {"c0": SETUP}
            for number in range(1, 5):
                self.sources[f"c{number}"] = make_source(self.generator)
        cells = [code(source, cell_id) for cell_id, source in self.sources.items()]
        self.notebook: Notebook = project.notebook(f"{name}.ipynb", cells)
        assert project.json("run", name)["ok"]
        self.log: list[str] = []

    def act(self) -> None:
        """Run, edit, insert or delete a random cell, if the notebook stays valid."""
        cell_id = self.generator.choice([*self.sources])
        action = self.generator.random()
        changed = dict(self.sources)
        if action < 0.45:
            self.replace(cell_id, self.sources[cell_id])
            return
        if action < 0.6:
            self.insert(cell_id)
            return
        if cell_id == "c0":
            return
        if action < 0.7 and len(self.sources) > 3:
            del changed[cell_id]
        else:
            changed[cell_id] = make_source(self.generator)
        if replay(changed) is None:
            return
        if cell_id in changed:
            self.replace(cell_id, changed[cell_id])
        else:
            self.log.append(f"delete {cell_id}: {self.notebook.delete(cell_id).text}")
        self.sources = changed

    def replace(self, cell_id: str, source: str) -> None:
        report = self.notebook.replace(cell_id, source).text
        self.log.append(f"run {cell_id} {source!r}: {report}")

    def insert(self, after: str) -> None:
        source = make_source(self.generator)
        cells = [*self.sources.items()]
        position = [*self.sources].index(after) + 1
        marker = "inserted"
        if (
            replay(dict([*cells[:position], (marker, source), *cells[position:]]))
            is None
        ):
            return
        cell_id, answer = self.notebook.insert(source, after)
        cells.insert(position, (cell_id, source))
        self.sources = dict(cells)
        self.log.append(f"insert {cell_id} after {after} {source!r}: {answer.text}")

    def run_stale(self) -> None:
        """Run the stale cells.

        All of them must succeed, because all cells succeed in a run from the top. A
        cell that failed before is not stale and keeps its status.
        """
        failed_before = self.list_failed_cells()
        result = self.project.stepper("run", self.name, "--stale", check=None)
        self.log.append(f"run --stale: {result.stdout}{result.stderr}")
        text = "\n".join([*self.sources.values(), *self.log])
        assert result.returncode == 0, text
        assert self.list_failed_cells() <= failed_before, text

    def list_marks(self) -> list[dict[str, Any]]:
        """Return the cells that are stale or used hidden state."""
        status = self.project.json("status", self.name)
        return [*status["stale"], *status["hidden"], *status["indirect"]]

    def list_failed_cells(self) -> set[str]:
        """Return the ids of the cells that failed, or did not pass the checks."""
        cells = self.project.json("status", self.name)["cells"]
        statuses = {cell["cell_id"]: cell["status"] for cell in cells}
        assert {*statuses.values()} <= {"done", "failed"}, self.log
        return {cell for cell, status in statuses.items() if status == "failed"}


def play(project: Project, seed: int, undo: str, name: str) -> RandomNotebook:  # noqa: F811
    """Change a random notebook and run its stale cells."""
    project.config(f"max_retries: 100\n{UNDO[undo]}")
    notebook = RandomNotebook(project, seed, name)
    for _ in range(notebook.generator.randint(1, 5)):
        notebook.act()
    notebook.run_stale()
    return notebook


def list_possible_sources(notebook: RandomNotebook) -> list[Sources]:
    """Return the sources of the cells, without some last statements of failed cells."""
    possible = [notebook.sources]
    for cell_id in notebook.list_failed_cells():
        statements = ast.parse(notebook.sources[cell_id]).body
        shortened = [
            {**sources, cell_id: ast.unparse(statements[:count])}
            for sources in possible
            for count in range(len(statements))
        ]
        possible += shortened
    return possible


def check(notebook: RandomNotebook, names: dict[str, Any]) -> None:
    """Compare the names in a kernel with those of a run from the top.

    A cell may fail when it runs out of order, because a cell below has deleted a name;
    its status is `failed`. Then the state may also be that of the other cells, and of
    the statements before the one that failed. Names that only an earlier version of a
    cell bound do not count: they are hidden state if a cell reads them.
    """
    text = "\n".join([*notebook.sources.values(), *notebook.log])
    assert notebook.list_marks() == [], text
    differences = []
    for sources in list_possible_sources(notebook):
        expected = replay(sources)
        if expected is None:
            continue  # the other cells need the failed ones
        final = list_values({name: names[name] for name in expected if name in names})
        if final == expected:
            return
        differences.append((final, expected))
    raise AssertionError(differences, text)


@pytest.mark.parametrize("undo", UNDO)
@pytest.mark.parametrize("seed", SEEDS)
def test_kernel_state_after_run_stale_is_the_notebooks(
    project: Quick,  # noqa: F811
    seed: int,
    undo: str,
) -> None:
    notebook = play(project, seed, undo, "book")
    check(notebook, project.kernel().names)


@pytest.mark.nightly
@pytest.mark.parametrize("undo", UNDO)
@pytest.mark.parametrize("seed", range(400, 420))
def test_state_of_a_real_kernel_after_run_stale(
    module_project: Project, seed: int, undo: str
) -> None:
    name = f"random{seed}{undo.replace(' ', '')}"
    notebook = play(module_project, seed, undo, name)
    data = "type(value) in (int, list, dict)"
    # `deepcopy` and `repr` would lose which names share an object.
    source = (
        "import pickle; pickle.dumps({name: value for name, value in"
        f" list(globals().items()) if {data} and not name.startswith('_')"
        " and name not in ('In', 'Out')}).hex()"
    )
    output = module_project.json("eval", source, "--notebook", name)["output"]
    module_project.stepper("shutdown", name)
    check(notebook, pickle.loads(bytes.fromhex(ast.literal_eval(output.strip()))))
