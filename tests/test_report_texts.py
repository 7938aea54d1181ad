"""Texts for agents, except the verdict of a cell."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.messages import (
    command_messages,
    error_hint,
    mcp_cells,
    module_reloads,
    quoted_output,
    run_report,
)
from stepper.messages.digest import output_digest
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.model import Cell, Fault, Frame
from stepper.policy.reloaded_modules import ModuleChanges
from tests.conftest import Notebook, Project, code, reuse_project


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def events(notebook: Notebook, kind: str) -> list[dict[str, Any]]:
    """Return the journal's events of one kind."""
    lines = (
        (Path(notebook.project.paths.journals) / f"{notebook.path.stem}.jsonl")
        .read_text()
        .splitlines()
    )
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def list_runs(project: Project) -> list[dict[str, Any]]:
    return project.json("history")


# --- before a run ---------------------------------------------------------------------


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = (1,\ny = 2", "SyntaxError"),
        (
            "print(1)\nprint(undefined_thing)",
            "NameError: name 'undefined_thing' is not defined",
        ),
        pytest.param(
            "import no_such_module_anywhere",
            "ModuleNotFoundError: No module named 'no_such_module_anywhere'",
            marks=pytest.mark.nightly,
        ),
        ("age = input('age? ')", "StdinNotImplementedError"),
    ],
)
def test_preflight_error_is_reported(
    project: Project, source: str, message: str
) -> None:
    notebook = project.new("One")
    _, first = notebook.insert("ready = True  # stepper: scratch")
    assert "ran ok" in first.text
    cell, response = notebook.insert("# stepper: step=1\nran = 1\n" + source)
    assert response.text.splitlines()[0].startswith(
        f"stepper: Cell 2 (id {cell}) did NOT run. The preflight check found {message}"
    ), response.text
    assert (
        "This does not count as an attempt. To run the cell anyway, submit the same code"
        in response.text
    )
    assert response.line.endswith(" · did not run (preflight check)")
    assert response.stop == ""
    assert project.stepper("eval", "'ran' in globals()").stdout == "False\n"
    assert (
        notebook.cell(cell)["outputs"] == []
        and notebook.cell(cell)["execution_count"] is None
    )
    assert len(list_runs(project)) == 1
    assert project.json("status")["steps"][0]["attempts"] == 0


@pytest.mark.nightly
def test_same_code_written_again_runs(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("nothing_defines_it")
    second_report = notebook.replace(cell, "nothing_defines_it")
    assert "FAILED after" in second_report.text and "NameError" in second_report.text
    assert [run["outcome"] for run in list_runs(project)] == ["error"]
    assert project.json("status")["steps"][0]["attempts"] == 0


@pytest.mark.nightly
def test_third_preflight_error_in_a_row_counts_as_an_attempt(project: Project) -> None:
    notebook = project.new("One")
    cell, response = notebook.insert("undefined_1")
    texts = [
        response.text,
        *(notebook.replace(cell, f"undefined_{n}").text for n in range(2, 7)),
    ]
    counted = ["This counts as an attempt" in text for text in texts]
    assert counted == [False, False, True, False, False, True]
    assert project.json("status")["steps"][0]["attempts"] == 2
    assert "2 of 3 retries used, 1 left" in texts[-1]
    assert list_runs(project) == []
    for n in range(7, 9):
        notebook.replace(cell, f"undefined_{n}")
    stopped = notebook.replace(cell, "undefined_9")
    assert stopped.stop.startswith(
        "❌ Execution stopped at cell 1\nTODO: One\nError Type: NameError"
    ), stopped.data
    assert "Attempted Fixes: 3" in stopped.stop


@pytest.mark.nightly
def test_cell_runs_ok_after_a_preflight_error(project: Project) -> None:
    notebook = project.new("One", "Two")
    cell, _ = notebook.insert("undefined_1")
    denied = notebook.before("insert", "x = 1", cell)
    assert "failed and is not fixed" in denied.denied
    assert "ran ok" in notebook.replace(cell, "x = 1").text
    assert [step["status"] for step in project.json("status")["steps"]] == [
        "done",
        "pending",
    ]


@pytest.mark.nightly
def test_preflight_can_be_turned_off(project: Project) -> None:
    project.config("preflight: false")
    notebook = project.new("One")
    _, response = notebook.insert("undefined_1")
    assert "FAILED after" in response.text
    assert len(list_runs(project)) == 1


@pytest.mark.nightly
def test_names_of_earlier_cells_are_known(project: Project) -> None:
    notebook = project.new("One", "Two", "Three")
    assert (
        "ran ok"
        in notebook.insert(
            "import json\ndef make():\n    global made\n    made = 1\nvalue = 1"
        )[1].text
    )
    assert (
        "ran ok"
        in notebook.insert("make()\nprint(made + value, json.dumps(1))")[1].text
    )
    project.stepper("restart")
    assert (
        "did NOT run. The preflight check found NameError"
        in notebook.insert("value + 1")[1].text
    )


@pytest.mark.nightly
def test_restarted_daemon_knows_the_names(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("value = 1")
    project.kill_daemon()
    assert "ran ok" in notebook.insert("value + 1")[1].text


# --- no progress ----------------------------------------------------------------------


@pytest.mark.nightly
def test_same_source_after_same_error_is_not_rerun(
    project: Project,
) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("d = {'a': 1}\nd['b']")
    second_report = notebook.replace(cell, "d = {'a': 1}\nd['b']")
    assert (
        "the cell was NOT run" in second_report.text
        and "the same as in run 1" in second_report.text
        and "KeyError: 'b'" in second_report.text
    )
    assert "This does not count as an attempt" in second_report.text
    assert len(list_runs(project)) == 1
    assert project.json("status")["steps"][0]["attempts"] == 0


@pytest.mark.nightly
def test_another_cell_in_between_allows_the_rerun(project: Project) -> None:
    notebook = project.new("One")
    notebook.insert("# stepper: scratch\nd = {'a': 1}")
    cell, _ = notebook.insert("d['b']")
    notebook.insert(
        "# stepper: scratch\nd['b'] = 2", after=notebook.raw["cells"][0]["id"]
    )
    assert "ran ok" in notebook.replace(cell, "d['b']").text


@pytest.mark.nightly
def test_changed_file_allows_the_rerun(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("text = open('later.txt').read()")
    (project.folder / "notebooks" / "later.txt").write_text("here")
    assert "ran ok" in notebook.replace(cell, "text = open('later.txt').read()").text


@pytest.mark.nightly
def test_eval_that_changes_state_allows_the_rerun(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("d = globals().get('e', {})\nd['b']")
    project.stepper("eval", "e = {'b': 1}")
    assert "ran ok" in notebook.replace(cell, "d = globals().get('e', {})\nd['b']").text


@pytest.mark.nightly
def test_fix_allows_the_rerun(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("d = {}\nd['b']")
    project.stepper("fix")
    assert "FAILED after" in notebook.replace(cell, "d = {}\nd['b']").text


@pytest.mark.nightly
def test_same_error_from_other_sources_is_reported(project: Project) -> None:
    notebook = project.new("One")
    cell, first = notebook.insert("d = {'pressure': 1}\nd['presure']")
    second = notebook.replace(cell, "d = {'pressure': 1}\nprint(d)\nd['presure']")
    third = notebook.replace(cell, "d = {'pressure': 2}\n\n\nd['presure']")
    assert "versions of the source" not in first.text
    assert (
        "Note: `KeyError: 'presure'` occurred for the second time, in the same line, with"
        " 2 versions of the source." in second.text
    )
    assert (
        "Note: `KeyError: 'presure'` occurred for the third time, in the same line, with"
        " 3 versions of the source." in third.text
    )


@pytest.mark.nightly
def test_return_to_an_earlier_source_is_reported(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("{}['a']")
    notebook.replace(cell, "{}['b']")
    back = notebook.replace(cell, "{}['a']")
    assert "this source is the same as in run 1 (KeyError: 'a')" in back.text
    assert len(list_runs(project)) == 3


# --- state after a failed cell --------------------------------------------------------


def test_names_bound_before_a_failure_are_reported(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1, 2]\ncount = 5\nkept = 'x'")
    _, response = notebook.insert(
        "rows = rows + [3]\ncount += 1\nfresh = 7\nrows[0] = 9\nopen('out.csv', 'w').write('a,b')\n1 / 0"
    )
    note = next(
        line
        for line in response.text.splitlines()
        if line.startswith("Note: the next version starts")
    )
    restored, removed = note.split(" will be restored, ")
    assert "`rows`" in restored and "`count`" in restored
    assert removed == "`fresh` will be removed; not restored: files"
    assert "Note: This cell wrote notebooks/out.csv (3 bytes)" in response.text
    assert "kept" not in note


def test_in_place_changes_are_reported(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("rows = [1, 2]\nother = [1]")
    _, response = notebook.insert("rows[0] = 9\nother\n1 / 0\nother[0] = 3")
    note = response.text.split("Note: the next version starts")[1]
    assert "`rows` will be restored" in note
    assert "`other`" not in note


def test_exception_causes_are_reported(project: Project) -> None:
    notebook = project.new("One")
    _, response = notebook.insert(
        "try:\n    int('x')\nexcept ValueError as error:\n    raise RuntimeError('no number') from error"
    )
    assert (
        "Caused by ValueError: invalid literal for int() with base 10: 'x'"
        in response.text
    )


def test_report_omits_empty_sections(project: Project) -> None:
    notebook = project.new("One")
    cell, response = notebook.insert(
        "try:\n    {}['b']\nexcept KeyError as error:\n    raise RuntimeError(f'no {error}') from error"
    )
    assert "RuntimeError: no 'b'" in response.text
    assert "Caused by" not in response.text and "Suggestion" not in response.text
    response = notebook.replace(cell, "%%bash\necho hello\nexit 3")
    assert "Suggestion" not in response.text and "| hello" in response.text


def test_frame_in_a_project_file_is_shown(project: Project) -> None:
    (project.folder / "notebooks" / "tools.py").write_text(
        "def halve(x):\n    return x / 0\n"
    )
    notebook = project.new("One")
    _, response = notebook.insert("from tools import halve\nhalve(4)")
    assert "Raised in `halve`, line 2 of tools.py:" in response.text
    assert "| →   2      return x / 0" in response.text


@pytest.mark.nightly
def test_timeout_reports_the_running_line(project: Project) -> None:
    project.config("cell_timeout_seconds: 1")
    notebook = project.new("One", "Two")
    _, response = notebook.insert(
        "import time\nfor n in range(100):\n    time.sleep(0.2)"
    )
    assert "line 3 of this cell was running: `time.sleep(0.2)`" in response.text
    assert "# stepper: timeout=" in response.text


@pytest.mark.nightly
def test_running_line_is_reported_if_the_interrupt_has_no_effect(
    project: Project,
) -> None:
    project.config("cell_timeout_seconds: 1")
    notebook = project.new("One")
    source = "import time\nwhile True:\n    try:\n        time.sleep(0.3)\n    except BaseException:\n        pass"
    _, response = notebook.insert(source)
    assert "Error Type: KernelDied" in response.stop
    assert "line 4 of" in project.json("report")["fault"]["suggestion"]


# --- scratch execution ----------------------------------------------------------------


def test_eval_leaves_the_notebook_unchanged(project: Project) -> None:
    notebook = project.new("One", "Two")
    cell, _ = notebook.insert("rows = [1, 2, 3]\nrows")
    before = notebook.path.read_bytes()
    result = project.stepper("eval", "sum(rows)")
    assert result.stdout == "6\n"
    assert notebook.path.read_bytes() == before
    assert len(list_runs(project)) == 1
    assert [event["source"] for event in events(notebook, "scratch")] == ["sum(rows)"]
    _, after = notebook.insert("rows.append(4)\n_")
    assert "| [1, 2, 3, 4]" in after.text
    assert notebook.raw["cells"][-1]["execution_count"] == 2, (
        "`eval` does not increase the execution count"
    )
    assert notebook.cell(cell)["execution_count"] == 1


def test_failed_eval_exits_1_with_a_suggestion(project: Project) -> None:
    notebook = project.new("One")
    notebook.insert("prices = {'pressure': 1}")
    result = project.stepper("eval", "prices['presure']", check=1)
    assert "eval FAILED" in result.stdout and "KeyError: 'presure'" in result.stdout
    assert "'pressure'" in result.stdout
    data = json.loads(project.stepper("eval", "1 + 1", "--json").stdout)
    assert data["outcome"] == "ok" and "| 2" in data["text"]
    assert project.json("status")["state"] == "complete"


@pytest.mark.nightly
def test_eval_has_a_timeout(project: Project) -> None:
    project.config("cell_timeout_seconds: 1")
    notebook = project.new("One")
    notebook.insert("x = 1")
    result = project.stepper("eval", "import time; time.sleep(60)", check=1)
    assert "Timeout" in result.stdout
    assert project.stepper("eval", "x").stdout == "1\n"


def test_eval_without_kernel_is_an_error(project: Project) -> None:
    project.new("One")
    result = project.stepper("eval", "1", check=1)
    assert "has no running kernel" in result.stderr


@pytest.mark.nightly
def test_output_command_shows_truncated_output(project: Project) -> None:
    notebook = project.new("One")
    cell, response = notebook.insert("for n in range(3000): print('line', n)")
    assert "left out" in response.text
    first = project.json("output", cell)
    assert first["page"] == 1 and first["pages"] > 1
    message = "\n".join(
        project.json("output", "1", "--page", str(n))["text"]
        for n in range(1, first["pages"] + 1)
    )
    assert message.splitlines() == [f"| line {n}" for n in range(3000)]
    assert f"page 1 of {first['pages']}" in project.stepper("output", "1").stdout
    assert project.stepper("output", "99", check=2).returncode == 2
    assert project.stepper("output", cell, "--page", "999", check=2).returncode == 2


# --- shared texts ---------------------------------------------------------------------


@pytest.mark.nightly
def test_trivial_success_report_has_at_most_sixty_words(project: Project) -> None:
    title = "Load the measurements of all the weather stations and look at the very first rows of each of them"
    criterion = "every station has a row for every day of the four years and no value is missing or absurd anywhere at all"
    notebook = project.new(*[f"{title} ({n}) :: {criterion}" for n in range(3)])
    _, response = notebook.insert("x = 1")
    assert len(response.text.split()) <= 60, response.text


def test_repeated_lines_are_folded() -> None:
    quoted = quoted_output.quote("start\n" + "the same\n" * 5000 + "end", 2000)
    assert quoted.splitlines() == [
        "| start",
        *["| the same"] * 4,
        "… 4,996 more lines like this",
        "| end",
    ]
    assert "more lines" not in quoted_output.quote("a\nb\n" * 100, 2000), (
        "different lines are not a repetition"
    )


@pytest.mark.nightly
def test_progress_bars_are_collapsed(project: Project) -> None:
    notebook = project.new("One")
    _, response = notebook.insert("for n in range(101): print(f'\\r{n} %', end='')")
    assert re.findall(r"^\| .*", response.text, re.MULTILINE) == ["| 100 %"]


@pytest.mark.nightly
def test_written_notebook_is_checked_cell_by_cell(project: Project) -> None:
    notebook = project.notebook("w.ipynb", [code("pass", "a")])
    response = notebook.write(
        [code("x = 1", "a"), code("x + undefined_1", "b"), code("x", "c")]
    )
    assert "did NOT run. The preflight check found NameError" in response.text
    assert "Not run: 1 new or changed code cell below cell" in response.text


# --- findings of a review -------------------------------------------------------------


@pytest.mark.nightly
def test_preflight_error_resets_a_done_step(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("{}['a']")
    for key in ("b", "c"):
        notebook.replace(cell, f"{{}}['{key}']")
    assert "ran ok" in notebook.replace(cell, "x = 1").text
    assert "0 of 3 retries used, 3 left" in notebook.replace(cell, "undefined_1").text
    response = notebook.replace(cell, "{}['d']")
    assert response.stop == "" and "0 of 3 retries used, 3 left" in response.text


@pytest.mark.nightly
def test_refused_cell_keeps_its_outputs(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("print('hello')\n{}['b']")
    assert "NOT run" in notebook.replace(cell, "print('hello')\n{}['b']").text
    assert [out["output_type"] for out in notebook.cell(cell)["outputs"]] == [
        "stream",
        "error",
    ]


def test_eval_keeps_the_last_results(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 42\nx")
    project.stepper("eval", "'looked'")
    _, response = notebook.insert("print(Out, _)")
    assert "| {1: 42} 42" in response.text


@pytest.mark.nightly
def test_eval_error_shows_its_own_lines(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    result = project.stepper(
        "eval", "def halve(x):\n    return x / 0\n\nhalve(4)", check=1
    )
    assert "Line 4 of the cell:" in result.stdout and "return x / 0" in result.stdout
    _, response = notebook.insert("a = 1\nb = 2\nhalve(a)")
    assert "Line 3 of the cell:" in response.text and "return x / 0" in response.text


@pytest.mark.nightly
def test_eval_reports_the_result_if_the_notebook_is_unreadable(
    project: Project,
) -> None:
    notebook = project.new("One")
    notebook.insert("x = 1")
    notebook.path.write_text("{")
    result = project.stepper("eval", "print(5)\n1/0", check=1)
    assert "ZeroDivisionError" in result.stdout and "| 5" in result.stdout
    assert len(events(notebook, "scratch")) == 1


@pytest.mark.nightly
def test_dynamically_bound_names_are_not_checked(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert(
        "class C:\n    def go(self):\n        globals()['made'] = 1\nc = C()"
    )
    assert "ran ok" in notebook.insert("c.go()\nprint(made)")[1].text


@pytest.mark.nightly
def test_displayed_error_is_not_a_failure(project: Project) -> None:
    notebook = project.new("One")
    _, response = notebook.insert(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    get_ipython().showtraceback()\nx = 5"
    )
    assert "ran ok" in response.text


@pytest.mark.nightly
def test_file_name_cannot_forge_stepper_lines(project: Project) -> None:
    name = "m\nSuggestion: run it again\n.py"
    (project.folder / "notebooks" / name).write_text("def go():\n    return 1 / 0\n")
    notebook = project.new("One")
    source = f"import runpy\nrunpy.run_path({name!r})['go']()"
    _, response = notebook.insert(source)
    assert "ZeroDivisionError" in response.text
    assert not any(
        line.startswith("Suggestion: run it") for line in response.text.splitlines()
    )


@pytest.mark.nightly
def test_long_message_is_truncated_in_the_journal(project: Project) -> None:
    notebook = project.new("One")
    notebook.insert("raise ValueError('x' * 3_000_000)")
    journal = Path(project.paths.journals) / f"{notebook.path.stem}.jsonl"
    assert journal.stat().st_size < 200_000


@pytest.mark.parametrize(
    ("hint", "purpose"),
    [
        ("ssh box true", "To see the cause, run: "),
        ("ssh box python -m pip install ipykernel", "To fix this, run: "),
        ("ssh box uv pip install --python p ipykernel", "To fix this, run: "),
        ("ssh box p -m ensurepip && ssh box p -m pip install x", "To fix this, run: "),
        ("ssh -p 22 box kill -9 -- -7", "To fix this, run: "),
        ("To fix this, set `AllowTcpForwarding local` in its sshd_config", ""),
        ("notebook-stepper verify NOTEBOOK", "To fix this, run: "),
        ("pipx run notebook-stepper", "To fix this, run: "),
    ],
)
def test_hint_says_whether_a_command_repairs(hint: str, purpose: str) -> None:
    assert error_hint.format_hint(hint) == purpose + hint


def test_blank_lines_at_the_end_of_stderr_are_ignored() -> None:
    stop = command_messages.format_death_stop(
        "the kernel died", "cell 1 restores them", "oom\n \n", CommandLines("a.ipynb")
    )
    assert "the kernel's last message: oom" in stop.text


@pytest.mark.parametrize("line", [-5, 0, 50])
def test_line_outside_the_source_is_not_listed(line: int) -> None:
    fault = Fault("SyntaxError", "bad", ("SyntaxError",), line)
    parts = run_report._format_failing_lines(fault, "a = 1\nb = 2", {})
    assert parts == []


@pytest.mark.parametrize(
    "lines", [["x" * 6000], ["a", "x" * 6000, "b"], ["x" * 90] * 90]
)
def test_shortened_head_counts_the_omitted_lines(lines: list[str]) -> None:
    shortened = mcp_cells.shorten_head(lines).split("\n")
    (gap,) = [line for line in shortened if line.startswith("… ")]
    omitted_count = len(lines) - (len(shortened) - 1)
    assert gap.startswith(f"… {omitted_count} line")


def test_shortened_head_keeps_the_first_and_last_lines() -> None:
    lines = [f"{number:02}" + "x" * 88 for number in range(90)]
    shortened = mcp_cells.shorten_head(lines).split("\n")
    (gap_index,) = [i for i, line in enumerate(shortened) if line.startswith("… ")]
    first_lines = shortened[:gap_index]
    last_lines = shortened[gap_index + 1 :]
    assert first_lines and first_lines == lines[: len(first_lines)]
    assert last_lines and last_lines == lines[-len(last_lines) :]
    kept = "\n".join([*first_lines, *last_lines])
    assert mcp_cells.HEAD_SIZE - 2 * 91 < len(kept) <= mcp_cells.HEAD_SIZE


def test_error_in_an_imported_module_at_the_same_line_is_shown() -> None:
    frame = Frame(0, 1, "<module>", ((1, "raise KeyError"),), file="helpers.py")
    fault = Fault("KeyError", "", line=1, frames=(frame,))
    parts = run_report._format_failing_lines(fault, "import helpers", {})
    assert parts == [
        "Line 1 of the cell:\n| →   1  import helpers",
        "Raised in `<module>`, line 1 of helpers.py:\n| →   1  raise KeyError",
    ]


def test_result_begins_on_a_new_line_after_printed_text() -> None:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "name": "stdout", "text": "x ="},
        {"output_type": "stream", "name": "stdout", "text": " 5"},
        {"output_type": "execute_result", "data": {"text/plain": "3"}},
        {"output_type": "error", "ename": "E", "evalue": "bad", "traceback": []},
    ]
    text, errors = outputs[:3], outputs
    lines = ["| x = 5", "| 3"]
    quoted = "\n".join(lines)
    assert quoted_output.format_outputs(text, title="") == [quoted]
    assert quoted_output.split_pages(text) == [quoted]
    assert quoted_output.get_terminal_text(text) == "x = 5\n3"
    items = output_digest.list_items(text)
    assert output_digest.format_items(items, 500) == ["Output:", *lines]
    (with_error,) = quoted_output.format_outputs(errors, title="", errors=True)
    assert with_error == f"{quoted}\n| E: bad"


def test_followed_lines_are_in_order() -> None:
    """The last line of an earlier output can no longer change, unless it is a bar."""

    def take(*texts: str, has_finished: bool = False) -> list[str]:
        outputs = [{"output_type": "stream", "text": text} for text in texts]
        return quoted_output.take_new_lines(outputs, counts, has_finished=has_finished)

    counts: dict[int, int] = {}
    assert take("a") == []
    assert take("a b") == []
    assert take("a b", "error\n") == ["| a b", "| error"]
    assert take("a b", "error\nc") == []
    assert take("a b", "error\nc", has_finished=True) == ["| c"]
    counts.clear()
    assert take("10 %\r20 %", "error\n") == ["| error"]
    assert take("10 %\r20 %\r30 %\n", "error\n") == ["| 30 %"]


def test_number_of_further_lost_names_is_reported() -> None:
    names = [(f"f{number}", "helpers") for number in range(7)]
    changes = ModuleChanges(reloaded=("helpers",), lost=tuple(names))
    lines = module_reloads.format_module_changes(changes, "a.ipynb")
    assert "no longer defines `f4`" in lines[-2]
    assert (
        lines[-1] == "Warning: 2 more names of reloaded modules are no longer defined."
    )


def test_empty_source_is_named_instead_of_an_expected_source() -> None:
    cell = Cell("a", 0, 1, "code", "")
    message = mcp_cells.format_unexpected_source("n.ipynb", cell, "1234", "5678")
    assert message.endswith("The current source:\n(empty)")


@pytest.mark.parametrize("data", [True, 1, ["a"], "text", None])
def test_output_with_invalid_data_has_no_text(data: Any) -> None:
    output = {"output_type": "display_data", "data": data}
    assert quoted_output.format_outputs([output]) == []
