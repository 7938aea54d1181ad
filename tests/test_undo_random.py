"""Random notebooks whose cells are replaced, deleted and run again.

Afterwards the kernel must have the state that a run from the top gives. With a fake
kernel, these tests check which runs are undone and which cells are stale.
"""

from __future__ import annotations

import ast
import inspect
import random
from typing import Any

import pytest

from tests.conftest import Notebook, Project, code
from tests.test_session import Quick, project  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

SETUP = """
a, b, c, d = [1], [2], [3], [4]
def add(x, v): x.append(v)
def grow(): a.append(len(b))
"""
LINES = (
    "{x} = [{n}]",
    "{x} = [*{y}, {n}]",
    "{x}.append({n})",
    "{x} += [{n}]",
    "{x} = {y}",
    "{x}, {y} = {y}, {x}",
    "add({x}, {n})",
    "{x}[0] *= 2",
    "del {x}",
    "def add(x, v): x.append(v + {n})",
    "{x}.extend({y}[:3])",
    "grow()",
    "l{x} = len({y})",
    "box = {{'k': {x}}}",
    "box['k'].append({n})",
)
Sources = dict[str, str]  # by cell id
FAILURE = "\n1 / 0"
SEEDS = [
    *range(12),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(12, 400)),
]
COMMAND_SEEDS = [
    *range(3),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 400)),
]


def make_source(generator: random.Random) -> str:
    lines = []
    for _ in range(generator.randint(1, 3)):
        x, y = generator.choice("abcd"), generator.choice("abcd")
        line = generator.choice(LINES)
        lines.append(line.format(x=x, y=y, n=generator.randint(1, 9)))
    return "\n".join(lines)


def list_values(names: dict[str, Any]) -> dict[str, Any]:
    """Return the data in a namespace, as text that also shows aliases."""
    values = {
        name: value
        for name, value in names.items()
        if type(value) in (int, list, dict)
        and not name.startswith("_")
        and name not in ("In", "Out")
    }
    aliases = {
        (name, other)
        for name, value in values.items()
        for other, same in values.items()
        if name < other and value is same and isinstance(value, list)
    }
    return {**values, "aliases": sorted(aliases)}


def replay(sources: Sources) -> dict[str, Any] | None:
    """Return the data after a run from the top, or None if a cell fails."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in sources.values():
        try:
            exec(source, names)
        except Exception:  # noqa: BLE001  # of a random cell
            return None
    return list_values(names)


def make_notebook(
    project: Project,  # noqa: F811
    generator: random.Random,
    name: str = "book.ipynb",
) -> tuple[Notebook, Sources]:
    """Run the cells of a new notebook; return it, and its sources by cell id."""
    sources: Sources = {}
    while not sources or replay(sources) is None:
        sources = {f"c{number}": make_source(generator) for number in range(1, 5)}
        sources = {"c0": SETUP, **sources}
    cells = [code(source, cell_id) for cell_id, source in sources.items()]
    notebook = project.notebook(name, cells)
    assert project.json("run", notebook.path.stem)["ok"]
    return notebook, sources


def find_change(generator: random.Random, sources: Sources) -> tuple[str, Sources]:
    """Return the id of a cell, and the sources after it is replaced or deleted.

    The id is empty if no change was found that leaves the notebook valid.
    """
    for _ in range(100):
        cell_id = generator.choice([name for name in sources if name != "c0"])
        changed = dict(sources)
        if len(sources) > 3 and generator.random() < 0.15:
            del changed[cell_id]
        else:
            changed[cell_id] = make_source(generator)
        if replay(changed) is not None:
            return cell_id, changed
    return "", sources


def change_at_random(
    folder: Project, notebook: Notebook, generator: random.Random, sources: Sources
) -> tuple[Sources, list[str]]:
    """Replace, delete and run cells; return the last sources and the reports.

    Afterwards no cell is stale.
    """
    name = notebook.path.stem
    reports = []
    for _ in range(generator.randint(1, 4)):
        cell_id, changed = find_change(generator, sources)
        if not cell_id:
            continue
        if cell_id not in changed:
            reports.append(notebook.delete(cell_id).text)
        else:
            if generator.random() < 0.5:
                failed = make_source(generator) + FAILURE
                reports.append(notebook.replace(cell_id, failed).text)
            report = notebook.replace(cell_id, changed[cell_id]).text
            if "undone. To run the stale cells" in report:
                folder.json("run", name, "--stale")
                report = notebook.replace(cell_id, changed[cell_id] + "\n").text
            assert "ran ok" in report, (sources, report)
            reports.append(report)
        sources = changed
        if generator.random() < 0.3:
            folder.json("run", name, "--stale")
    folder.json("run", name, "--stale")
    assert folder.json("run", name, "--stale")["cells"] == 0
    status = folder.json("status", name)
    assert status["stale"] == status["hidden"] == [], (sources, reports)
    return sources, reports


@pytest.mark.parametrize("seed", SEEDS)
def test_kernel_has_the_state_of_a_run_from_the_top(
    project: Quick,  # noqa: F811
    seed: int,
) -> None:
    generator = random.Random(seed)
    notebook, sources = make_notebook(project, generator)
    sources, reports = change_at_random(project, notebook, generator, sources)
    assert list_values(project.kernel().names) == replay(sources), (sources, reports)


@pytest.mark.parametrize("seed", COMMAND_SEEDS)
def test_undo_command_returns_to_the_state_before_a_cell(
    project: Quick,  # noqa: F811
    seed: int,
) -> None:
    generator = random.Random(seed)
    notebook, sources = make_notebook(project, generator)
    sources, reports = change_at_random(project, notebook, generator, sources)
    names = project.kernel().names
    done = dict(sources)  # the cells whose runs are not undone
    while done:
        cell_id = generator.choice(list(done))
        above = {}
        for other_id, source in sources.items():
            if other_id == cell_id:
                break
            above[other_id] = source
        response = project.json("undo", cell_id)
        case = (cell_id, sources, reports, response)
        assert list_values(names) == replay(above), case
        stale = {mark["cell_id"] for mark in response["stale"]}
        assert stale == set(sources) - set(above), case
        done = above
        if generator.random() < 0.5:
            continue
        if generator.random() < 0.5:
            project.json("run", "--stale")
            project.json("undo")  # the last run
        project.json("run", "--stale")
        assert list_values(names) == replay(sources), case
        if generator.random() < 0.5:
            break
        done = dict(sources)


# It binds no name in the kernel.
PRINT_VALUES = (
    "print(repr((lambda space: (exec({source!r}, space),"
    " space['list_values'](globals()))[1])({{}})))"
)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(60))
def test_real_kernel_has_the_state_of_a_run_from_the_top(
    module_project: Project, seed: int
) -> None:
    generator = random.Random(seed)
    notebook, sources = make_notebook(module_project, generator, f"random{seed}.ipynb")
    sources, reports = change_at_random(module_project, notebook, generator, sources)
    name = notebook.path.stem
    code_of_function = f"from typing import Any\n{inspect.getsource(list_values)}"
    source = PRINT_VALUES.format(source=code_of_function)

    def read_values() -> Any:
        output = module_project.json("eval", source, "--notebook", name)["output"]
        return ast.literal_eval(output.strip())

    assert read_values() == replay(sources), (sources, reports)
    cell_id = generator.choice(list(sources))
    above = list(sources)[: list(sources).index(cell_id)]
    response = module_project.json("undo", cell_id, "--notebook", name)
    expected = replay({other_id: sources[other_id] for other_id in above})
    assert read_values() == expected, (cell_id, sources, reports, response)
    module_project.json("run", name, "--stale")
    assert read_values() == replay(sources), (cell_id, sources, reports, response)
    module_project.stepper("shutdown", name)


def test_name_that_only_a_failed_version_bound_is_missing_in_a_real_kernel(
    module_project: Project,
) -> None:
    notebook = module_project.new("Imports", "Look")
    notebook.insert("data = [1, 2]")
    cell, failed = notebook.insert(
        "import statistics as st\ndata.append(3)\nst.nope(data)"
    )
    assert "`data` will be restored, `st` will be removed" in failed.text
    second = notebook.replace(cell, "print(st.mean(data))")
    assert "did NOT run" in second.text
    assert "`st` was bound only by an earlier version of this cell" in second.text
    third = notebook.replace(cell, "import statistics as st\nprint(st.mean(data))")
    assert "| 1.5" in third.text
    assert "Note: before this run, `data` was restored; `st` was removed." in third.text
    assert "The notebook is complete" in third.text
