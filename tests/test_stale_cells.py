"""Stale cells in the report, the status, `run --stale` and the completion check."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Notebook, code
from tests.test_cell_operations import Agent
from tests.test_session import Quick, project  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def test_replaced_provider_makes_its_readers_stale_until_they_run(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("Load", "Note", "Look", "Other", "Tell")
    notebook.insert("import json")
    b, _ = notebook.insert("df = [1, 2]")
    notebook.insert("n = 1")
    d, _ = notebook.insert("print(len(df))")
    notebook.insert("print(n)")
    f, last = notebook.insert("print(sum(df))")
    assert "Stale" not in last.text
    answer = notebook.replace(b, "df = [1, 2, 3]")
    line = "Stale: cells 4 and 6 read `df`, which cell 2 changed after they ran. To run these cells in order: `stepper run --stale`."
    assert line in answer.text.splitlines()
    status = project.json("status")
    assert [
        (stale_cell["cell_id"], stale_cell["because"]) for stale_cell in status["stale"]
    ] == [
        (d, [{"name": "df", "provider_cell_id": b}]),
        (f, [{"name": "df", "provider_cell_id": b}]),
    ]
    assert status["hidden"] == []
    assert (
        project.stepper("status").stdout.count(
            "stale: read `df`, which cell 2 has changed since"
        )
        == 2
    )
    project.kill_daemon()  # the next one knows it by the journal
    response = project.json("run", "--stale")
    assert (
        response["ran"],
        response["cells"],
        [result["cell_id"] for result in response["results"]],
    ) == (
        2,
        2,
        [d, f],
    )
    assert [result["output"] for result in response["results"]] == ["3", "6"]
    assert project.json("status")["stale"] == []
    assert project.json("run", "--stale")["cells"] == 0
    assert "nothing to run" in project.stepper("run", "--stale").stdout


def test_run_stale_continues_only_below_changes(project: Quick) -> None:  # noqa: F811
    cells = [
        code("x = 1", "a"),
        code("y = x > 0", "b"),
        code("z = [y]", "c"),
        code("w = x", "d"),
        code("w", "e"),
    ]
    notebook = project.notebook("book.ipynb", cells)
    assert project.json("run", "book")["ran"] == 5
    notebook.replace("a", "x = 2")
    response = project.json("run", "--stale")
    # `y` is unchanged
    assert [result["cell_id"] for result in response["results"]] == [
        "b",
        "d",
        "e",
    ]
    notebook.replace("a", "x = 2  # two")
    assert project.json("status")["stale"] == []  # as large as before


def test_run_stale_stops_at_the_first_failure(project: Quick) -> None:  # noqa: F811
    cells = [code("x = [1]", "a"), code("y = x[0]", "b"), code("x", "c")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    notebook.replace("a", "x = []")
    response = json.loads(project.stepper("run", "--stale", "--json", check=1).stdout)
    assert (response["ok"], response["ran"], response["cells"]) == (False, 0, 2)
    assert project.stepper("run", "book", "--stale", "--all", check=2).stderr


def test_deleted_provider_and_provider_below_are_hidden_state(project: Quick) -> None:  # noqa: F811
    project.config("undo: off\n")  # else the values of these cells are removed
    cells = [code("x = 1", "a"), code("y = x", "b"), code("z = y", "c")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    answer = notebook.delete("a")
    assert (
        answer.text
        == "stepper: nothing ran. Hidden state: cell 1 read `x` from a deleted cell (cell 1 when it ran)."
    )
    status = project.json("status")
    assert [(item["cell_id"], item["because"]) for item in status["hidden"]] == [
        ("b", [{"name": "x", "provider_cell_id": "a"}])
    ]
    assert (
        "hidden state: read `x` from a deleted cell (cell 1 when it ran)"
        in project.stepper("status").stdout
    )
    _, below = notebook.insert("x = 5", after="c")
    assert "Stale" not in below.text and "Hidden" not in below.text
    answer = notebook.replace("b", "y = x + 1")
    assert (
        "Hidden state: cell 1 read `x` from cell 3, which is below it." in answer.text
    )
    assert (
        "Stale: cell 2 read `y`, which cell 1 changed after it ran. To run this cell: `stepper run --stale`."
        in answer.text
    )


def test_completion_reports_whether_the_order_is_reproducible(project: Quick) -> None:  # noqa: F811
    notebook = project.new("Load", "Look")
    notebook.insert("x = 1")
    _, done = notebook.insert("print(x)")
    assert (
        "Running the cells from top to bottom should reproduce these results.\nTo replay it in a new kernel"
        in done.text
    )
    other = project.new("Load", "Look")
    other.insert("x = 1")
    _, done = other.insert("print(x)", after="")
    assert (
        "Running the cells from top to bottom will not reproduce these results: cell 1 reads `x`, which is defined only below, in cell 2."
        in done.text
    )


def test_run_stale_in_a_new_kernel_runs_the_required_cells(project: Quick) -> None:  # noqa: F811
    cells = [code("n = 3", "z"), code("x = 1", "a"), code("y = x + n", "b")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    project.stepper("restart", "book")
    notebook.replace("a", "x = 2")
    assert [
        stale_cell["cell_id"] for stale_cell in project.json("status")["stale"]
    ] == ["b"]
    assert [
        result["cell_id"] for result in project.json("run", "--stale")["results"]
    ] == [
        "z",
        "b",
    ]


def test_out_of_order_run_reports_stale_cells(project: Quick) -> None:  # noqa: F811
    cells = [
        code("x = [1]", "a"),
        {"id": "m", "cell_type": "markdown", "source": "# Text", "metadata": {}},
        code("y = x", "b"),
        code("z = 1", "c"),
    ]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    cells[0]["source"], cells[3]["source"] = ["x = [2]"], ["z = 2"]
    notebook.path.write_text(
        json.dumps({**notebook.raw, "cells": cells})
    )  # by another program
    assert [
        (mark["cell"], mark["why"]) for mark in project.json("status")["stale"]
    ] == [
        (
            2,
            "stale: read `x`, but the current source of cell 1, which binds or changes `x`, has"
            " not run",
        )
    ]
    line = "Stale: cell 2 read `x`, which cell 1 changed after it ran. To run this cell: `stepper run --stale`."
    assert project.stepper("run").stdout.splitlines()[-2:] == [
        "notebooks/book.ipynb: 2 of 2 cells ran ok",
        line,
    ]
    cells[0]["source"] = ["x = [3]"]
    notebook.path.write_text(json.dumps({**notebook.raw, "cells": cells}))
    response = project.json("run", "--stale")  # its input changed again
    assert (
        [result["cell_id"] for result in response["results"]],
        response["which"],
        response["follows"],
    ) == (["a", "b"], "stale", "")


def test_other_agents_are_informed(project: Quick) -> None:  # noqa: F811
    project.notebook(
        "book.ipynb",
        [code("x = [1]", "a"), code("y = x", "b"), code("n = 1", "c"), code("n", "d")],
    )
    agent = Agent(project)
    response = agent.ask("run", notebook="book", which="pending", wait_seconds=60)
    assert "Stale" not in response["text"]
    line = "Stale: cell 2 read `x`, which cell 1 changed after it ran. To run this cell: `stepper run --stale`."
    assert (
        line in agent.run("x = [2]", notebook="book", cell_id="a")["text"].splitlines()
    )
    deletion = agent.ask(
        "cell change", notebook="book", action="delete", cell_ids=["c"]
    )
    assert (
        deletion["follows"]
        == "Cell 3 was deleted, so its changes were undone: `n` was removed.\n"
        "Hidden state: cell 3 read `n` from a deleted cell (cell 3 when it ran)."
    )
    text = agent.ask(
        "cell run", notebook="book", cell_id="a", source="text", cell_type="markdown"
    )
    assert text["text"].endswith(
        "\nHidden state: cell 1 read `x` from cell 1, which is no longer run."
    )
    response = agent.ask("run", notebook="book", which="stale", wait_seconds=60)
    assert response["state"] == "nothing to run"


def run_again(notebook: Notebook, cell_id: str) -> str:
    """Run a cell with its present source; return the report."""
    cell = next(cell for cell in notebook.raw["cells"] if cell["id"] == cell_id)
    return notebook.replace(cell_id, "".join(cell["source"])).text


def test_run_stale_restores_bindings_below(project: Quick) -> None:  # noqa: F811
    project.config("undo: off\n")
    cells = [code("a = 1", "a"), code("b = a + 1", "b"), code("a = 10", "c")]
    notebook = project.notebook("book.ipynb", [*cells, code("print(a)", "d")])
    project.json("run", "book")
    assert (
        "Stale: cell 2 read `a`, which cell 1 changed after it ran; cell 3 bound `a`, which cell 1 changed after it ran. To run these cells in order: `stepper run --stale`."
        in notebook.replace("a", "a = 2").text.splitlines()
    )
    status = project.json("status")
    assert [mark["why"] for mark in status["stale"]] == [
        "stale: read `a`, which cell 1 has changed since",
        "stale: bound `a`, which cell 1 has changed since",
    ]
    assert [
        result["cell_id"] for result in project.json("run", "--stale")["results"]
    ] == ["b", "c"]
    assert project.kernel().names["a"] == 10
    status = project.json("status")
    assert status["stale"] == status["hidden"] == status["indirect"] == []


def test_value_of_an_earlier_run_is_hidden_state(project: Quick) -> None:  # noqa: F811
    project.config("undo: off\n")
    cells = [
        code("v = [2.0]", "a"),
        code("v[0] = v[0] * 2", "b"),
        code("print(v)", "c"),
    ]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    text = run_again(notebook, "b")
    assert (
        "Hidden state: cell 2 read `v` from an earlier run of the same cell. To run cell 2 with the values of the cells above: `stepper run --stale`."
        in text
    )
    # Cell 1 is not stale, but its value is needed.
    assert [
        result["cell_id"] for result in project.json("run", "--stale")["results"]
    ] == ["a", "b"]
    assert project.kernel().names["v"] == [4.0]
    run_again(notebook, "a")  # the same value again
    assert "Hidden state: cell 3 read `v` from cell 1 instead of cell 2." in run_again(
        notebook, "c"
    )
    project.json("run", "--stale")
    assert project.kernel().names["v"] == [4.0]


def test_status_names_all_cells_that_a_change_affects(project: Quick) -> None:  # noqa: F811
    cells = [
        code("n = 2\nother = 1", "a"),
        code("m = n * 2\nk = other", "b"),
        code("total = m + 1", "c"),
        code("print(k)", "d"),
        code("print(total)", "e"),
    ]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    raw = notebook.raw
    raw["cells"][0]["source"] = ["n = 3\n", "other = 1"]
    notebook.path.write_text(json.dumps(raw))  # by another program
    for _ in ("before cell 1 runs", "after cell 1 ran"):
        status = project.json("status")
        assert [mark["cell_id"] for mark in status["stale"]] == ["b"]
        assert [(mark["cell_id"], mark["why"]) for mark in status["indirect"]] == [
            ("c", "indirectly stale: reads `m` from cell 2"),
            ("e", "indirectly stale: reads `total` from cell 3"),
        ]
        report = run_again(notebook, "a")
        assert (
            "Stale: cell 2 read `n`, which cell 1 changed after it ran; indirectly: cells 3 and 5. To run these cells in order: `stepper run --stale`."
            in report
        )
    assert project.json("run", "--stale")["ran"] == 3
    assert project.json("status")["indirect"] == []


def test_report_names_a_changed_source_that_has_not_run(project: Quick) -> None:  # noqa: F811
    cells = [code("import json\nx = [1]", "a"), code("y = x", "b")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    raw = notebook.raw
    raw["cells"][0]["source"] = ["import json\n", "x = [2]"]
    notebook.path.write_text(json.dumps(raw))  # by `sed` or git
    line = "Stale: cell 2 read `x`, but the current source of cell 1, which binds or changes `x`, has not run. To run this cell: `stepper run --stale`."
    for _ in range(2):  # each run that reads the old value
        assert line in run_again(notebook, "b").splitlines()
    _, report = notebook.insert("print(json, x)", "b")
    assert line.replace("cell 2", "cell 3") in report.text.splitlines()
    assert [result["cell_id"] for result in project.json("run", "--stale")["results"]][
        :2
    ] == ["a", "b"]
