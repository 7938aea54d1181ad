"""`stepper undo`, and how far back it reaches, with a fake kernel."""

from __future__ import annotations

import json
import subprocess
import threading
import time

import pytest

from stepper.policy.model import Death
from tests.test_session import Quick, project  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


def evaluate(project: Quick, expression: str) -> str:  # noqa: F811
    output = project.json("eval", expression)["output"]
    assert isinstance(output, str)
    return output.strip()


def refuse(project: Quick, *arguments: str, exit_code: int = 1) -> str:  # noqa: F811
    result: subprocess.CompletedProcess[str] = project.stepper(
        "undo", *arguments, check=exit_code
    )
    return result.stderr


def test_last_run_and_the_one_before_are_undone(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    notebook.insert("rows.append(2)\nextra = 3")
    notebook.insert("rows.append(4)")
    text = project.stepper("undo").stdout
    assert text.splitlines() == [
        "The changes of cell 3 in the kernel were undone: `rows` was restored.",
        "Stale: cell 3 was undone. To run this cell: `stepper run --stale`.",
        "undo: back to cell 1 (2 runs; 0 MB of 1 MB)",
    ]
    response = project.json("undo")
    assert [cell["cell"] for cell in response["undone"]] == [2]
    assert response["restored"] == ["rows"]
    assert response["removed"] == ["extra"]
    assert response["not_restored"] == {}
    assert [mark["cell"] for mark in response["stale"]] == [2, 3]
    assert response["stale"][0]["why"] == "stale: its run was undone"
    assert response["undo"]["runs"] == 1
    assert evaluate(project, "rows, 'extra' in globals()") == "([1], False)"
    assert project.json("status")["state"] == "ready"
    project.kill_daemon()  # the next one knows it by the journal
    response = project.json("run", "--stale")
    assert [result["cell"] for result in response["results"]] == [2, 3]
    status = project.json("status")
    assert status["stale"] == []
    assert status["state"] == "complete"
    assert evaluate(project, "rows") == "[1, 2, 4]"


def test_state_before_a_cell(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three", "Four")
    notebook.insert("rows = [1]")
    second, _ = notebook.insert("rows.append(2)")
    notebook.insert("rows.append(3)\nmodel = [9]")
    _, last = notebook.insert("print(rows)")
    assert "| [1, 2, 3]" in last.text
    assert project.stepper("undo", second).stdout.startswith(
        "The changes of cells 2, 3 and 4 in the kernel were undone: `rows` was restored;"
        " `model` was removed."
    )
    assert evaluate(project, "rows") == "[1]"
    # The agent learns it with its next report.
    answer = notebook.replace(second, "rows.append(5)\nrows")
    assert "| [1, 5]" in answer.text
    assert (
        "Note: at the user's request, the changes of cells 2, 3 and 4 in the kernel were"
        " undone: `rows` was restored; `model` was removed." in answer.text
    )
    assert "Stale: cells 3 and 4 were undone." in answer.text
    assert refuse(project, "4", exit_code=2).startswith(
        "stepper: nothing was undone: cell 4 (id "
    )


def test_newer_run_of_a_cell_above_is_not_undone(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    above, _ = notebook.insert("x = 1")
    below, _ = notebook.insert("y = x")
    notebook.replace(above, "x = 2")
    line = "undo: back to cell 1 (2 runs; 0 MB of 1 MB)"
    assert line in project.stepper("status").stdout
    response = project.json("undo", below)
    assert [cell["cell"] for cell in response["undone"]] == [2]
    assert evaluate(project, "x, 'y' in globals()") == "(2, False)"


def test_what_cannot_be_restored_is_named(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("numbers = (n for n in range(5))\nrows = []")
    notebook.insert("rows.append(next(numbers))")
    line = "undo: back to cell 1 (2 runs, none of them completely; 0 MB of 1 MB)"
    assert line in project.stepper("status").stdout
    text = project.stepper("undo", check=1).stdout
    assert "`rows` was restored; not restored: `numbers` (generator)." in text


def test_other_code_is_not_undone(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    notebook.insert("x = 2\ny = 3")
    project.stepper("eval", "x")
    assert "other clients" not in project.stepper("status").stdout
    project.stepper("eval", "x = 5")
    line = "(2 runs, except for changes by scratch executions and other clients; 0 MB"
    assert line in project.stepper("status").stdout
    text = project.stepper("undo", check=1).stdout
    assert (
        "`y` was removed; not restored: `x` (changed by code outside the cells)" in text
    )
    assert "Not undone: changes by scratch executions and other clients" in text
    assert evaluate(project, "x") == "5"


def test_undo_is_refused(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    assert "nothing was undone: no kernel is running" in refuse(project)
    notebook.insert("x = 1")
    assert "has no code cell '7'" in refuse(project, "7", exit_code=2)
    project.json("undo")
    assert "this kernel has no run left to undo" in refuse(project, exit_code=2)
    project.config("undo: off\n")
    assert "nothing was undone: undo is off" in refuse(project)
    assert project.json("status")["undo"] is None
    notebook.insert("x = 1")
    project.config("undo: on\n")
    message = refuse(project)
    assert "the kernel does not keep the state before that run" in message
    assert "stepper restore" in message
    notebook.insert("x = 2")
    assert json.loads(project.stepper("status", "--json").stdout)["undo"]["cell"] == 3


def test_undo_of_a_failed_cell_makes_nothing_stale(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    notebook.insert("rows.append(2)\n1 / 0")
    response = project.json("undo")
    assert response["restored"] == ["rows"]
    assert response["stale"] == []


def test_undo_is_refused_while_a_cell_runs(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    gate = project.folder / "gate"
    source = (
        "import os, time\nrows.append(2)\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
    )
    runs = threading.Thread(target=notebook.insert, args=(source,))
    runs.start()
    try:
        until = time.monotonic() + 120
        while project.json("status")["running"] is None and time.monotonic() < until:
            time.sleep(0.02)
        message = refuse(project)
    finally:
        gate.write_text("")
        runs.join()
    assert "nothing was undone: step 2 is running" in message
    assert "stepper interrupt" in message
    assert project.json("undo")["restored"] == ["rows"]


def test_agent_of_a_stopped_notebook_cannot_undo(
    project: Quick,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 1\nraise RuntimeError('STOP: which?')")
    monkeypatch.setenv("CLAUDECODE", "1")
    assert "nothing was undone: execution of this notebook is stopped" in (
        refuse(project)
    )
    monkeypatch.delenv("CLAUDECODE")
    assert project.json("undo")["removed"] == ["x"]


def test_live_view_shows_how_far_back_undo_reaches(project: Quick) -> None:  # noqa: F811
    from stepper.web.project_notebook_list import NotebookList

    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    view = NotebookList(project.paths).get_view(
        str(notebook.path.relative_to(project.folder))
    )
    assert view is not None
    view.refresh("")
    assert view.build_live_state()["undo"] == "back to cell 1 (1 run; 0 MB of 1 MB)"


def test_lost_result_leaves_no_value_known(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)")
    notebook.insert("print(rows)")
    kernel = project.kernel()
    kernel.loses_undo_facts = True
    message = refuse(project, cell)
    assert (
        "stepper: the kernel did not report whether it undid the runs: the values of"
        " variables are not known" in message
    )
    assert "stepper restore" in message
    status = project.json("status")
    assert [mark["cell"] for mark in status["stale"]] == [2, 3]
    assert status["undo"] is None
    kernel.loses_undo_facts = False
    answer = notebook.insert("print(rows)")[1]
    assert "Hidden state: cell 4 read `rows` from an undone run" in answer.text
    assert (
        "at the user's request, stepper tried to undo the changes of cells 2 and 3 in"
        " the kernel, but the kernel did not report whether it undid them."
    ) in answer.text
    assert project.json("status")["state"] != "complete"


def test_lost_result_ends_the_reach_of_undo(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    notebook.insert("rows.append(2)")
    kernel = project.kernel()
    kernel.loses_undo_facts = True
    refuse(project)
    kernel.loses_undo_facts = False
    project.kill_daemon()  # the next one knows it by the journal
    message = refuse(project)
    assert (
        "stepper: nothing was undone: the kernel did not report whether it carried out"
        " an earlier undo" in message
    )
    assert "stepper restore" in message
    assert evaluate(project, "rows") == "[1]"  # the second request removed nothing
    notebook.insert("new = 3")
    assert project.json("undo")["removed"] == ["new"]
    assert "an earlier undo" in refuse(project)


def test_undo_after_the_death_of_the_kernel_names_restore(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One")
    notebook.insert("rows = [1]")
    project.kernel().ended = Death("SIGKILL")
    message = refuse(project)
    assert "nothing was undone: no kernel is running" in message
    assert "stepper restore" in message
