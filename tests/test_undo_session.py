"""Runs that are undone before a cell runs again, with a fake kernel."""

from __future__ import annotations

import json

import pytest

from tests.conftest import code
from tests.test_cell_operations import Agent
from tests.test_session import Quick, project  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)

START = "Note: the next version starts from the state before this cell ran: "


def list_events(project: Quick, kind: str) -> list[dict[str, object]]:  # noqa: F811
    (journal,) = (project.folder / ".stepper" / "journal").rglob("*.jsonl")
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    return [event for event in events if event["event"] == kind]


RETRIES = {
    "rebound": ("n = 1", "n += 1", "n", "1"),
    "list": ("rows = [1]", "rows.append(2)", "rows", "[1]"),
    "nested": ("cfg = {'a': {'b': 1}}", "cfg['a']['b'] = 2", "cfg", "{'a': {'b': 1}}"),
    "alias": ("a = [1]\nb = a", "b.append(2)", "a, a is b", "([1], True)"),
    "attribute": (
        "class P: pass\np = P()\np.x = 1",
        "p.x = 2",
        "p.x",
        "1",
    ),
    "function": (
        "rows = []\ndef clean(r): r.append(1)",
        "clean(rows)",
        "rows",
        "[]",
    ),
    "deleted": ("kept = 1", "del kept", "kept", "1"),
}


@pytest.mark.parametrize("story", RETRIES)
def test_retry_starts_from_the_state_before_the_failed_version(
    project: Quick,  # noqa: F811
    story: str,
) -> None:
    setup, change, expression, value = RETRIES[story]
    notebook = project.new("One", "Two")
    notebook.insert(setup)
    cell, failed = notebook.insert(f"{change}\n1 / 0")
    assert START in failed.text
    for attempt in range(2):
        retry = notebook.replace(cell, f"{change}\n1 / 0  # {attempt}")
        assert "Note: before this run, " in retry.text
        assert "restored" in retry.text
    last = notebook.replace(cell, expression)
    assert "ran ok" in last.text
    assert f"| {value}" in last.text


def test_reports_name_what_is_restored_and_removed(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]\nnumbers = (n for n in range(5))")
    cell, failed = notebook.insert(
        "rows.append(2)\nnew = 1\nnext(numbers)\nopen('out.csv', 'w').write('a')\n1 / 0"
    )
    assert (
        f"{START}`rows` will be restored, `new` will be removed;"
        " not restored: `numbers` (generator; changed)"
    ) in failed.text
    assert "before failing" not in failed.text
    fixed = notebook.replace(cell, "print(rows, new)")
    # The preflight check knows that `new` is removed.
    assert "did NOT run" in fixed.text
    assert "Stale" not in fixed.text  # `rows` will be restored
    assert (
        "`new` was bound only by an earlier version of this cell, whose changes are"
        " undone before this version runs"
    ) in fixed.text
    fixed = notebook.replace(cell, "print(rows)")
    assert "| [1]" in fixed.text
    assert (
        "Note: before this run, `rows` was restored; `new` was removed;"
        " not restored: `numbers` (generator)." in fixed.text
    )
    (event,) = list_events(project, "undone")
    assert event["runs"] == [2]
    assert event["removed"] == {"new": [2]}


def test_successful_cell_that_is_replaced_does_not_apply_twice(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two", "Three")
    notebook.insert("x = [1, 2]")
    cell, first = notebook.insert("x[0] *= 10\nx")
    assert "restored" not in first.text
    notebook.insert("total = sum(x)")
    retry = notebook.replace(cell, "x[0] *= 10\nx  # again")
    assert "| [10, 2]" in retry.text
    assert "Stale: cell 3" not in retry.text  # it read the same value


def test_change_of_a_cell_below_is_undone_and_makes_it_stale(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two", "Three", "Four")
    notebook.insert("cfg = {'a': 1}")
    reader, _ = notebook.insert("print(cfg)")
    notebook.insert("cfg['a'] = 2\nmodel = [3]")
    answer = notebook.replace(reader, "print(cfg, 'again')")
    assert "| {'a': 1} again" in answer.text
    assert "Note: before this run, `cfg` was restored." in answer.text
    assert (
        "Stale: a change by cell 3 was undone: `cfg`. To run this cell:"
        " `stepper run --stale`."
    ) in answer.text
    assert project.json("eval", "model")["output"].strip() == "[3]"
    (mark,) = project.json("status")["stale"]
    assert mark["why"] == "stale: its change of `cfg` was undone"
    project.kill_daemon()  # the next one knows it by the journal
    response = project.json("run", "--stale")
    assert [result["cell"] for result in response["results"]] == [3]
    assert project.json("status")["stale"] == []
    assert project.json("eval", "cfg")["output"].strip() == "{'a': 2}"


def test_newer_value_of_a_cell_above_is_kept(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    above, _ = notebook.insert("x = 1")
    below, _ = notebook.insert("y = x")
    notebook.replace(above, "x = 2")
    assert "| 2" in notebook.replace(below, "y = x\ny").text


def test_deleted_cell_is_undone_at_once(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)\nextra = 3")
    notebook.insert("print(extra)")
    answer = notebook.delete(cell)
    assert (
        "Cell 2 was deleted, so its changes were undone: `rows` was restored;"
        " `extra` was removed." in answer.text
    )
    assert "Hidden state: cell 2 read `extra` from a deleted cell" in answer.text
    assert project.json("eval", "rows")["output"].strip() == "[1]"
    assert "NameError" in project.stepper("eval", "extra", check=None).stdout


def test_cell_that_another_program_deleted_is_undone_before_the_next_run(
    project: Quick,  # noqa: F811
) -> None:
    cells = [code("x = [1]", "a"), code("x.append(2)", "b"), code("1", "c")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    raw = notebook.raw
    del raw["cells"][1]
    notebook.path.write_text(json.dumps(raw))
    answer = notebook.replace("c", "x")
    assert "| [1]" in answer.text
    assert "Cell 2 was deleted, so its changes were undone" in answer.text


def test_value_from_below_is_removed_before_its_reader_runs_again(
    project: Quick,  # noqa: F811
) -> None:
    cells = [code("x = 0", "z"), code("y = x", "a"), code("del x", "b")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    notebook.insert("x = 5")
    answer = notebook.replace("a", "y = x\ny")
    assert "| 0" in answer.text  # as in a run from the top
    other = project.notebook("other.ipynb", [code("1", "a")])
    project.json("run", "other")
    other.insert("x = 5")
    answer = other.replace("a", "y = x")
    assert "did NOT run" in answer.text
    reason = (
        "`x` is bound only by cell 2 below; the changes of that cell are undone before"
    )
    assert reason in answer.text
    # Each further attempt gets the same reason: cell 2 would be undone again.
    for source in ("y = x", "y = x + 0"):
        forced = other.replace("a", source)
        assert reason in forced.text
        assert "undone. To run the stale cells" not in forced.text


def test_keep_directive_keeps_the_names_of_the_failed_version(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("data = [1, 2]\n1 / 0")
    answer = notebook.replace(cell, "# stepper: keep\nprint(data)")
    assert "| [1, 2]" in answer.text
    assert (
        "Hidden state: cell 1 read `data` from an earlier version of the same cell."
        in answer.text
    )
    assert "No step is open, but the notebook is not complete." in answer.text
    assert project.json("status")["state"] != "complete"


def test_values_of_other_code_are_not_undone(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    cell, _ = notebook.insert("x = 2\n1 / 0")
    project.stepper("eval", "x = 5")
    answer = notebook.replace(cell, "x")
    assert "| 5" in answer.text
    assert "not restored: `x` (changed by code outside the cells)" in answer.text


def test_preflight_knows_removed_names_after_eval(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    cell, _ = notebook.insert("new = 2\nother = 3\n1 / 0")
    project.stepper("eval", "print(new)")
    assert "did NOT run" in notebook.replace(cell, "print(new)").text
    project.stepper("eval", "other = 4")
    assert "| 4" in notebook.replace(cell, "print(other)").text
    assert "undo: back to cell 1 (" in project.stepper("status").stdout


def test_undo_can_be_turned_off(project: Quick) -> None:  # noqa: F811
    project.config("undo: off\n")
    notebook = project.new("One", "Two")
    notebook.insert("x = [1]")
    cell, failed = notebook.insert("x.append(2)\n1 / 0")
    assert "next version" not in failed.text
    assert "| [1, 2]" in notebook.replace(cell, "x").text
    assert list_events(project, "undone") == []


def test_run_after_a_daemon_exit_is_undone(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)\n1 / 0")
    project.kill_daemon()
    assert "| [1]" in notebook.replace(cell, "rows").text


def test_transient_error_does_not_apply_twice(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = []\ntries = iter([1, 0])")
    _, answer = notebook.insert(
        "rows.append(1)\nif next(tries): raise ConnectionError('reset')\nrows"
    )
    assert "| [1]" in answer.text


def test_value_that_was_not_restored_is_hidden_state(project: Quick) -> None:  # noqa: F811
    project.config("recompute_seconds: 0.001\n")
    notebook = project.new("One", "Two")
    source, _ = notebook.insert(
        "import time\ntime.sleep(0.01)\nnumbers = (n for n in range(5))"
    )
    cell, _ = notebook.insert("next(numbers)\n1 / 0")
    answer = notebook.replace(cell, "print(next(numbers))")
    assert "| 1" in answer.text
    assert "Note: before this run, not restored: `numbers` (generator)." in answer.text
    assert (
        "Note: not restored: `numbers`. To compute all values again in a new kernel"
    ) in answer.text
    assert (
        "Hidden state: cell 2 read `numbers` from an undone run, whose value could not be"
        " restored."
    ) in answer.text
    assert project.json("status")["state"] != "complete"
    notebook.replace(source, "numbers = (n for n in range(6))")
    assert "Hidden state" not in notebook.replace(cell, "print(next(numbers), 0)").text
    assert project.json("status")["state"] == "complete"


def test_value_that_cannot_be_restored_is_computed_again(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("start = 5")
    notebook.insert("numbers = (n for n in range(start))")
    notebook.insert("other = [start]")
    cell, _ = notebook.insert("other.append(next(numbers))\n1 / 0")
    answer = notebook.replace(cell, "other.append(next(numbers))\nprint(other)")
    assert "| [5, 0]" in answer.text
    assert "Note: cell 2 ran again first (0." in answer.text
    assert "because `numbers` could not be restored." in answer.text
    assert "not restored:" not in answer.text
    assert "Hidden state" not in answer.text
    assert "Stale" not in answer.text
    assert project.json("status")["stale"] == []


def test_cells_that_changed_the_value_run_again_too(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three", "Four")
    notebook.insert("numbers = (n for n in range(5))")
    notebook.insert("first = next(numbers)")
    notebook.insert("print(first)")
    cell, _ = notebook.insert("next(numbers)\n1 / 0")
    answer = notebook.replace(cell, "print(next(numbers))")
    assert "| 1" in answer.text
    assert "Note: cells 1 and 2 ran again first (0." in answer.text
    assert "Stale" not in answer.text  # `first` has the same value


def test_failure_of_a_cell_that_computes_a_value_again(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert(
        "import os\nopen('flag', 'a').write('x')\n"
        "assert os.path.getsize('flag') < 2\nnumbers = (n for n in range(5))"
    )
    cell, _ = notebook.insert("next(numbers)\n1 / 0")
    answer = notebook.replace(cell, "next(numbers)")
    assert "Cell 1 " in answer.text
    assert "FAILED" in answer.text
    assert (
        "Note: this cell ran again because `numbers` could not be restored. It failed,"
        " so cell 2, which needs its values, did not run."
    ) in answer.text


def test_notebook_with_a_stale_step_is_not_complete(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two", "Three")
    notebook.insert("cfg = [1]")
    cell, _ = notebook.insert("print(cfg)")
    _, done = notebook.insert("cfg.append(2)")
    assert "The notebook is complete" in done.text
    answer = notebook.replace(cell, "print(cfg, 'again')")
    assert "No step is open, but the notebook is not complete. Cell 3 " in answer.text
    assert "is stale. To run it: `stepper run --stale`." in answer.text
    assert project.json("status")["state"] == "ready"
    assert project.json("status")["off_plan"] == []
    project.json("run", "--stale")
    assert project.json("status")["state"] == "complete"


def test_cells_deleted_by_other_agents_and_whole_file_writes_are_undone(
    project: Quick,  # noqa: F811
) -> None:
    cells = [code("x = [1]", "a"), code("x.append(2)", "b"), code("x.append(3)", "c")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    agent = Agent(project)
    deletion = agent.ask(
        "cell change", notebook="book", action="delete", cell_ids=["c"]
    )
    assert deletion["follows"].startswith(
        "Cell 3 was deleted, so its changes were undone: `x` was restored."
    )
    assert project.json("eval", "x")["output"].strip() == "[1, 2]"
    answer = notebook.write(notebook.raw["cells"][:1])
    assert "Cell 2 was deleted, so its changes were undone" in answer.text
    assert project.json("eval", "x")["output"].strip() == "[1]"


def test_change_that_only_the_kernel_sees_makes_cells_stale(
    project: Quick,  # noqa: F811
) -> None:
    """The analysis of the source does not know what the method does."""
    notebook = project.new("One", "Two", "Three")
    notebook.insert("data = {'rows': list(range(100_000))}")
    cell, _ = notebook.insert("getattr(data, 'upd' + 'ate')(n=1)")
    _, shown = notebook.insert("print(data['n'])")
    assert "| 1" in shown.text
    answer = notebook.replace(cell, "getattr(data, 'upd' + 'ate')(n=2)")
    assert (
        "Stale: cell 3 read `data`, which cell 2 changed after it ran." in answer.text
    )
    response = project.json("run", "--stale")
    assert [result["output"].strip() for result in response["results"]] == ["2"]


def test_lost_result_of_an_undo_is_not_a_restored_state(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)\n1 / 0")
    project.kernel().loses_undo_facts = True
    answer = notebook.replace(cell, "print(rows)")
    assert (
        "Note: before this run, not restored: `rows` (the kernel did not report whether"
        " it was restored)." in answer.text
    )
    assert "Hidden state: cell 2 read `rows` from an undone run" in answer.text
    assert project.json("status")["state"] != "complete"
    (event,) = list_events(project, "undone")
    assert list(event["not_restored"]) == ["rows"]  # type: ignore[call-overload]


def test_undo_of_a_deleted_cell_is_requested_again_if_its_result_was_lost(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)")
    kernel = project.kernel()
    kernel.loses_undo_facts = True
    answer = notebook.delete(cell)
    assert (
        "Cell 2 was deleted, but the kernel did not report whether it undid the changes"
        " of this cell. stepper asks again before the next run." in answer.text
    )
    assert list_events(project, "undone") == []
    kernel.loses_undo_facts = False
    _, answer = notebook.insert("print(rows)")
    assert "| [1]" in answer.text
    assert (
        "Cell 2 was deleted, so its changes were undone: `rows` was restored"
        in answer.text
    )


def test_lost_undo_of_a_deleted_cell_before_a_run_is_not_requested_again(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)")
    kernel = project.kernel()
    kernel.loses_undo_facts = True
    notebook.delete(cell)
    _, answer = notebook.insert("print(rows)")
    message = (
        "Cell 2 was deleted, but the kernel did not report whether it undid the changes"
        " of this cell."
    )
    assert answer.text.count(message) == 1
    assert "asks again" not in answer.text
    (event,) = list_events(project, "undone")
    assert event["runs"] == [2]
    assert list(event["not_restored"]) == ["rows"]  # type: ignore[call-overload]
    assert "read `rows` from an undone run" in answer.text
    kernel.loses_undo_facts = False
    _, answer = notebook.insert("print(1)")
    assert "was deleted" not in answer.text


def test_lost_result_of_an_undo_does_not_name_values_that_the_cell_binds(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]\nn = 1\ntotal = 0")
    cell, _ = notebook.insert("rows.append(2)\nn = 2\ntotal += 1\n1 / 0")
    project.kernel().loses_undo_facts = True
    answer = notebook.replace(cell, "n = 3\ntotal += 1\nrows.append(n)")
    reason = "the kernel did not report whether it was restored"
    assert (
        f"Note: before this run, not restored: `rows` ({reason}), `total` ({reason})."
        in answer.text
    )
    answer = notebook.replace(cell, "1 / 0\nn = 4")
    assert f"`n` ({reason})" in answer.text


def test_run_without_a_before_image_is_named(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]\nn = 1")
    project.config("undo: off\n")
    cell, _ = notebook.insert("rows.append(2)\nn = 2\nnew = 3\n1 / 0")
    project.config("undo: on\n")
    answer = notebook.replace(cell, "n = 5\nprint(rows)")
    assert "| [1, 2]" in answer.text
    reason = "the state before the run was not kept"
    assert (
        f"Note: before this run, not restored: `new` ({reason}), `rows` ({reason})."
        in answer.text
    )
    assert "Hidden state: cell 2 read `rows` from an undone run" in answer.text


def test_kernel_without_the_helper_undoes_nothing(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)\n1 / 0")
    project.kernel().has_helper = False
    assert "| [1, 2]" in notebook.replace(cell, "print(rows)").text
    assert list_events(project, "undone") == []


def test_history_marks_undone_runs(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1]\nnumbers = (n for n in range(5))")
    cell, _ = notebook.insert("rows.append(next(numbers))\n1 / 0")
    notebook.replace(cell, "rows.append(5)")
    project.stepper("undo")
    history = project.json("history")
    assert [entry["undone"] for entry in history] == [False, True, True]
    assert [entry["not_restored"] for entry in history] == [[], ["numbers"], []]
    lines = project.stepper("history").stdout.splitlines()
    assert lines[1].endswith("  ok")
    assert lines[2].endswith("  failed, undone except numbers")
    assert lines[3].endswith("  ok, undone")


def test_history_names_what_only_the_source_shows(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One", "Two")
    notebook.insert("import os")
    project.config("undo: off\n")
    cell, _ = notebook.insert("os.environ['STEPPER_TEST'] = '1'; 1 / 0")
    project.config("undo: on\n")
    notebook.replace(cell, "print(1)")
    lines = project.stepper("history").stdout.splitlines()
    assert lines[2].endswith("  failed, undone except os")


def test_history_does_not_name_what_only_another_cell_changed(
    project: Quick,  # noqa: F811
) -> None:
    project.config("recompute_seconds: 0.001\n")
    notebook = project.new("One", "Two", "Three")
    notebook.insert("import time\ntime.sleep(0.01)\nnumbers = (n for n in range(5))")
    cell, _ = notebook.insert("print(numbers)")
    notebook.insert("next(numbers)")
    answer = notebook.replace(cell, "print(numbers, 1)")
    assert "not restored: `numbers` (generator)" in answer.text
    history = project.json("history")
    assert [entry["undone"] for entry in history] == [False, True, False, False]
    assert history[1]["not_restored"] == []


def test_replaced_cell_that_was_rewound_is_named_and_can_run_again(
    project: Quick,  # noqa: F811
) -> None:
    """The client's `/rewind` writes the former source, and sends no event."""
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)\nfirst = 1")
    before = notebook.path.read_text()
    notebook.replace(cell, "rows.append(3)\nsecond = 1")
    notebook.path.write_text(before)
    _, answer = notebook.insert("print(rows)")
    assert "| [1, 3]" in answer.text
    assert (
        "Stale: cell 3 read `rows`, but the current source of cell 2, which binds"
        " or changes `rows`, has not run." in answer.text
    )
    assert project.json("status")["state"] != "complete"
    response = project.json("run", "--stale")
    assert [result["cell"] for result in response["results"]] == [2, 3]
    assert response["results"][1]["output"].strip() == "[1, 2]"
    expression = "rows, 'first' in globals(), 'second' in globals()"
    assert project.json("eval", expression)["output"].strip() == "([1, 2], True, False)"
    assert project.json("status")["state"] == "complete"


def test_rewound_cell_that_runs_first_starts_from_the_former_state(
    project: Quick,  # noqa: F811
) -> None:
    notebook = project.new("One", "Two", "Three")
    notebook.insert("rows = [1]")
    cell, _ = notebook.insert("rows.append(2)")
    before = notebook.path.read_text()
    notebook.replace(cell, "rows.append(3)\nsecond = 1")
    notebook.insert("print(rows)")
    notebook.path.write_text(before)
    project.json("run")
    values = project.json("eval", "rows, 'second' in globals()")["output"].strip()
    assert values == "([1, 2], False)"


def test_long_cell_gets_more_time_for_its_image(project: Quick) -> None:  # noqa: F811
    notebook = project.new("One")
    cell, _ = notebook.insert("import time\ntime.sleep(0.5)\n1 / 0")
    assert project.kernel().undoes.seconds == 0.015
    notebook.replace(cell, "print(1)")
    assert 0.02 <= project.kernel().undoes.seconds <= 0.5
