"""Undelivered reports, external changes to notebooks, and the end of a turn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common import project_walk
from stepper.common.errors import UsageError
from stepper.common.paths import Paths
from stepper.daemon.config import Config
from stepper.daemon.workspace.external_changes import ExternalChanges
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.policy import changed_cells, final_message
from stepper.policy.model import Cell
from stepper.session.session import Session
from tests.conftest import Answer, Notebook, Project, code, reuse_project
from tests.test_run_on_edit import wait_until
from tests.test_workflow import end_turn, say, start_session

SLOW = "rows = rows + [4]\nprint('begun')\nopen('made.csv', 'w').write('a,b')\nimport time\ntime.sleep(600)"
DEAF = "import time\ntry: time.sleep(600)\nexcept KeyboardInterrupt: time.sleep(1.5); raise"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def insert_and_interrupt(notebook: Notebook, source: str, settled: bool = True) -> str:
    """Insert a cell and press Esc during the run; return the cell's id."""
    project, payload = (
        notebook.project,
        notebook.edited("insert", source, notebook.raw["cells"][-1]["id"]),
    )
    runs = len(project.json("history"))
    with subprocess.Popen(
        project.client("PostToolUse"), stdin=subprocess.PIPE, cwd=project.folder
    ) as hook:
        hook.stdin.write(json.dumps(payload).encode())
        hook.stdin.close()
        wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
        hook.send_signal(signal.SIGTERM)
    if settled:
        wait_until(lambda: len(project.json("history")) > runs)
    return payload["tool_response"]["cell_id"]


def statuses(project: Project) -> list[str]:
    return [step["status"] for step in project.json("status")["steps"]]


def test_next_prompt_after_escape_reports_the_cell_once(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("rows = [1, 2, 3]")
    cell_id = insert_and_interrupt(notebook, SLOW)
    assert statuses(project) == ["done", "interrupted"]
    assert "■ 2. Count  (interrupted)" in project.stepper("plan").stdout
    response = project.hook(
        "UserPromptSubmit",
        notebook.payload("UserPromptSubmit", "", {}, prompt="What happened?"),
    )
    message, begins = (
        response.text,
        f"stepper: the last edit of notebooks/{notebook.path.name} was applied",
    )
    assert (
        response.line.startswith(begins)
        and '■ step 2 of 2 "Count" · cancelled · ' in response.line
    )
    assert (
        f"an edit of notebooks/{notebook.path.name} WAS applied" in message
        and "reported a rejection" in message
    )
    assert (
        f"Cell 2 (id {cell_id}) was CANCELLED after" in message
        and "replace it instead of inserting" in message
    )
    assert (
        "`rows` will be restored" in message
        and "made.csv (3 bytes)" in message
        and "| begun" in message
    )
    assert say(notebook, "And now?") == ""
    assert "WAS applied" not in start_session(notebook)
    assert "WAS applied" not in notebook.replace(cell_id, "len(rows)").text
    assert statuses(project) == ["done", "done"]


def test_undelivered_report_survives_the_daemon_and_reaches_another_session(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("rows = [1, 2, 3]")
    insert_and_interrupt(notebook, SLOW)
    project.kill_daemon()
    # the user can see the report …
    assert "WAS applied" in project.stepper("status").stdout
    other_session = Notebook(project, notebook.path, session="another")
    response = start_session(other_session, "resume")
    # and the agent is notified
    assert (
        response.startswith("stepper: an edit of ")
        and "was CANCELLED after" in response
    )
    assert '"Count" (its cell was interrupted)' in response
    assert "WAS applied" not in start_session(notebook)
    insert_and_interrupt(notebook, SLOW)
    monkeypatch.setenv("STEPPER_SESSION", "session-1")
    assert "WAS applied" in project.json("status")["unheard"]  # the agent's own shell
    assert project.json("status")["unheard"] == ""


@pytest.mark.nightly
def test_next_report_includes_the_undelivered_one(project: Project) -> None:
    notebook = project.new()
    first, _ = notebook.insert("rows = [1]")
    insert_and_interrupt(notebook, "import time; time.sleep(600)")
    response = notebook.insert("print('next')", first)[1]
    assert response.text.startswith("stepper: an edit of ")
    assert (
        response.text.index("CANCELLED")
        < response.text.index("ran ok")
        < response.text.index("| next")
    )
    assert (
        response.line.startswith("✓ cell 2")
        and "was applied" in response.line
        and "cancelled" in response.line
    )
    assert "WAS applied" not in notebook.insert("print('later')", first)[1].text


@pytest.mark.nightly
def test_prompt_waits_for_the_interrupted_cell(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("1")
    insert_and_interrupt(notebook, DEAF, settled=False)
    assert "was CANCELLED after" in say(notebook, "Well?")


@pytest.mark.nightly
def test_cell_that_never_ran_is_reported(project: Project) -> None:
    notebook = project.new("Load", "Count", "Tell")
    first = notebook.edited(
        "insert", "import time; time.sleep(600)", notebook.raw["cells"][-1]["id"]
    )
    responses: list[Answer] = []
    running = threading.Thread(
        target=lambda: responses.append(project.hook("PostToolUse", first))
    )
    running.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    insert_and_interrupt(notebook, "print('waits')", settled=False)
    wait_until(lambda: "WAS applied" in project.json("status")["unheard"])
    project.stepper("interrupt")  # the user's shell: its report counts as read
    running.join(120)
    message = responses[0].text
    assert (
        message.index("WAS applied")
        < message.index("interrupted while waiting for another request")
        < message.index("CANCELLED")
    )
    assert say(notebook, "Well?") == ""
    assert statuses(project)[0] == "interrupted"


# --- external changes -----------------------------------------------------------------


def message(notebook: Notebook, *tools: str) -> Answer:
    """End a message with these tool calls."""
    calls = [{"tool_name": tool, "tool_input": {"command": "…"}} for tool in tools]
    return notebook.project.hook(
        "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=calls)
    )


def rewrite(
    notebook: Notebook, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    """Change a notebook like a script."""
    raw = notebook.raw
    change(raw["cells"])
    notebook.path.write_text(json.dumps(raw))


def sources(**changed: str) -> Callable[[list[dict[str, Any]]], object]:
    return lambda cells: [
        cell.update(source=changed[cell["id"]])
        for cell in cells
        if cell["id"] in changed
    ]


def test_shell_changes_are_reported_once_with_a_run_command(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    first, _ = notebook.insert("rows = [1, 2, 3]\nrows")
    notebook.batch_end("NotebookEdit")
    assert message(notebook, "Bash").data == {}
    rewrite(notebook, sources(**{first: "rows = [1]\nrows"}))
    rewrite(notebook, lambda cells: cells.append(code("len(rows)", "b")))
    response = message(notebook, "Bash")
    name = f"notebooks/{notebook.path.name}"
    assert response.line == response.text
    assert response.text == (
        f"stepper: {name} was changed outside the notebook tools: cell 1 (id {first}) changed, cell 2 (id b) never ran."
        f" stepper did NOT run these cells; the outputs of cell 1 (id {first}) are stale. To run the cells that have not run: stepper run {name}"
    )
    assert message(notebook, "Bash").data == {} and len(project.json("history")) == 1
    assert statuses(project) == ["changed", "pending"]
    assert "≠ 1. Load  (changed since it ran)" in project.stepper("status").stdout
    context = end_turn(notebook, "All is done.")["hookSpecificOutput"][
        "additionalContext"
    ]
    assert (
        "2 of 2 steps" in context
        and '"Load" (its cell was changed and has not run)' in context
    )
    project.stepper("run", name)
    assert (
        statuses(project) == ["done", "done"]
        and project.json("status")["state"] == "complete"
    )
    assert message(notebook, "Bash").data == {}


def test_own_writes_and_reported_changes_are_not_external_changes(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    response = notebook.write([code("1 / 0", "a"), code("print('left')", "b")])
    assert "Not run: 1 new or changed" in response.text
    assert message(notebook, "Write", "Bash").data == {}
    os.utime(notebook.path)
    project.stepper("plan", "add", "Tell")
    assert message(notebook, "Bash").data == {}
    rewrite(notebook, lambda cells: cells[0].update(outputs=[], execution_count=None))
    assert message(notebook, "Bash").data == {}
    project.config("auto_run: ask")
    notebook.replace("b", "print('waits')")
    assert message(notebook, "Bash").data == {}


def test_new_broken_and_many_notebooks(project: Project) -> None:
    notebook = project.new("Load")
    message(notebook, "Bash")
    project.notebook("sub/by hand.ipynb", [code("1", "a")])
    assert "notebooks/sub/by hand.ipynb: cell 1" in (
        text := message(notebook, "Bash").text
    )
    assert text.endswith(
        "cell 1 (id a) was NOT run by stepper. To run the cells that have not run: stepper run 'notebooks/sub/by hand.ipynb'"
    )
    broken = project.notebook("broken.ipynb")
    broken.path.write_text('{"cells": [')
    assert "broken.ipynb is not valid JSON" in message(notebook, "Bash").text
    assert message(notebook, "Bash").data == {}
    project.notebook(
        "other.ipynb", [code("1", "a")], kernelspec={"language": "R", "name": "ir"}
    )
    project.notebook(".ipynb_checkpoints/x.ipynb", [code("1", "a")])
    assert message(notebook, "Bash").data == {}
    for number in range(5):
        project.notebook(f"many {number}.ipynb", [code("1", f"a{n}") for n in range(9)])
    lines = message(notebook, "Bash").text.splitlines()
    assert (
        len(lines) == 4
        and "9 cells (from cell 1 to cell 9) were NOT run by stepper" in lines[0]
        and lines[3] == "stepper: 2 more notebooks not listed here"
    )


@pytest.mark.nightly
def test_change_without_daemon_is_reported(project: Project) -> None:
    notebook = project.new("Load")
    notebook.insert("rows = 1")
    notebook.batch_end("NotebookEdit")
    project.stepper("shutdown")
    rewrite(notebook, lambda cells: cells.append(code("len(rows)", "b")))
    assert "cell 2 (id b) was NOT run by stepper" in message(notebook, "Bash").text


@pytest.mark.nightly
def test_only_covered_folders_are_scanned(project: Project) -> None:
    notebook = project.new("Load")
    notebook.insert("rows = 1")
    project.notebook("../analysis/old.ipynb", [code("1", "a")])
    project.notebook("../top.ipynb", [code("1", "a")])
    message(notebook, "Bash")
    marker = os.stat(project.paths.scan_marker).st_mtime_ns
    assert "analysis" not in Path(project.paths.scan_marker).read_text().splitlines()
    project.config('notebooks: ["notebooks", "analysis", "*.ipynb"]')
    # newly covered notebooks did not change
    assert message(notebook, "Bash").data == {}
    assert {".", "analysis", "notebooks"} <= {
        *Path(project.paths.scan_marker).read_text().splitlines()
    }
    assert os.stat(project.paths.scan_marker).st_mtime_ns >= marker
    for name in ("analysis/old.ipynb", "top.ipynb"):
        project.notebook(f"../{name}", [code("2", "a")])
        assert f"stepper: {name}: cell" in message(notebook, "Bash").text
    project.notebook("../other/x.ipynb", [code("2", "a")])
    assert message(notebook, "Bash").data == {}
    scan_time = os.stat(project.paths.scan_marker).st_mtime_ns
    # the hook script can detect this one
    assert scan_time >= os.stat(project.folder / "other" / "x.ipynb").st_mtime_ns


def test_jupyter_saves_are_reported_only_after_shell_commands(
    project: Project,
) -> None:
    notebook = project.new("Load")
    message(notebook, "Bash")
    trace = project.folder / ".jupyter_ystore.db"
    trace.touch()
    try:
        rewrite(notebook, lambda cells: cells.append(code("1", "a")))
        assert message(notebook, "Read").data == {}
        rewrite(notebook, lambda cells: cells.append(code("2", "b")))
        assert (
            "cells 1 (id a) and 2 (id b) were NOT run by stepper"
            in message(notebook, "Bash").text
        )
    finally:
        trace.unlink()


@pytest.mark.nightly
def test_skip_report_omits_the_known_next_step(project: Project) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("x = 1")
    raw = notebook.raw
    raw["cells"][1]["source"] = "x = 2"
    notebook.path.write_text(json.dumps(raw))
    assert "\u2260 1. Load" in project.stepper("status").stdout
    output = project.stepper("skip", "no data").stdout
    assert output.startswith('stepper: step 1 of 2 "Load" in ') and output.endswith(
        'Next: step 2 of 2 "Count".\n'
    )


@pytest.mark.nightly
def test_steps_of_a_rewritten_notebook_are_not_done(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("x = 1")
    notebook.insert("x + 1")
    assert project.json("status")["state"] == "complete"
    raw = notebook.raw
    # the second notebook is unchanged
    raw["cells"][1:] = [
        code("1 / 0", "n1"),
        code("x + 1", "n2"),
    ]
    notebook.path.write_text(json.dumps(raw))
    status = project.json("status")
    assert (status["state"], [step["status"] for step in status["steps"]]) == (
        "ready",
        ["changed", "done"],
    )
    assert (
        "1 of 2 steps" in end_turn(notebook)["hookSpecificOutput"]["additionalContext"]
    )


def test_truncated_scan_reports_no_false_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebooks that a later search reaches count as old; a new notebook is opened."""
    paths, opened_paths = Paths(str(tmp_path)), list[str]()
    folders = [tmp_path / "notebooks" / f"f{number}" for number in range(30)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "old.ipynb").write_text("{}")
        os.utime(folder / "old.ipynb", (1, 1))
    monkeypatch.setattr(project_walk, "ENTRIES", 40)

    def open_session(path: str) -> Session:
        opened_paths.append(path)
        raise UsageError("this test has no sessions")

    about = ExternalChanges(paths, NotebookPaths(paths, Config(paths)), open_session)
    about.start()
    assert about.notebook_paths.is_incomplete
    while about.notebook_paths.is_incomplete:
        about.next_full_scan = 0.0
        assert about.report_changes() == []
    assert len(about.notebook_paths.index.list_notebooks()) == 30 and opened_paths == []
    fresh = folders[-1] / "new.ipynb"
    fresh.write_text("{}")
    about.next_full_scan = 0.0
    about.report_changes()
    assert opened_paths == [str(fresh)]


def test_moved_cells_without_ids_are_unchanged() -> None:
    cells = [
        Cell(f"cell-{n}", n, n + 1, "code", source) for n, source in enumerate("bc")
    ]
    executed_hashes = {
        f"cell-{n}": changed_cells.hash_source(source) for n, source in enumerate("abc")
    }
    assert changed_cells.select_changed(cells, executed_hashes) == []
    assert len(changed_cells.select_not_run(cells, executed_hashes)) == 2


def test_message_without_notebook_changes_starts_no_process(tmp_path: Path) -> None:
    """The hook script with an empty PATH; a client that it starts prints a line."""
    from tests.conftest import ROOT, STATE, bare_env

    project = Project(tmp_path / "repo")
    script = project.folder / ".claude" / "hooks" / "stepper"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / "hooks" / "stepper", script)
    env = bare_env(project.paths)
    (env / "packages").symlink_to(ROOT)
    (env / "bin" / "python").write_text("#!/bin/sh\necho started\n")
    (env / "bin" / "python").chmod(0o755)

    def started() -> bool:
        environ = {"PATH": "/nowhere", "XDG_STATE_HOME": STATE}
        result = subprocess.run(
            [script, "PostToolBatch"],
            input=b"{}\n",
            capture_output=True,
            env=environ,
            check=True,
        )
        assert result.stderr == b""
        return result.stdout == b"started\n"

    project.notebook("a b.ipynb")
    Path(project.paths.scan_marker).write_text("notebooks\nanother one\n")
    (project.folder / "notebooks" / "data.csv").touch()
    assert not started()
    for name in ("a b.ipynb", "new.ipynb", "inner/new.ipynb", "../another one/x.ipynb"):
        project.notebook(name)
        later = os.stat(project.paths.scan_marker).st_mtime_ns + 1_000_000
        os.utime(project.folder / "notebooks" / name, ns=(later, later))
        assert started(), name
        os.utime(project.paths.scan_marker, ns=(later, later))
        assert not started()
    os.unlink(project.paths.scan_marker)
    os.mkfifo(project.paths.scan_marker)
    assert not started()


# --- the end of a turn ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Done.", True),
        ("I stop here.", True),
        ("The first step is done.", True),
        ("Everything works. Let me know if you need more.", True),
        ("All steps are complete, because the data was there.", True),
        ("The notebook is not done: the file is missing.", False),
        ("I can't go on: the key is refused.", False),
        ("Tell me which column to take.", False),
        ("I wait for your decision.", False),
        ("Which of the two do you mean?", False),
        ("All is done.\n\nShall I take **the first one?**", False),
        ("Is it done? Yes.\n\nThe notebook is complete.", True),
    ],
)
def test_final_message_with_explanation_is_not_reminded(
    message: str, expected: bool
) -> None:
    assert final_message.lacks_explanation(message) == expected


@pytest.mark.parametrize(
    ("prompt", "limited"),
    [
        ("only step 1, then stop", True),
        ("Do the first step, please", True),
        ("Could you just load the data?", True),
        ("load it and then show me", True),
        ("Make the plan, don't go on with it", True),
        ("wait with the rest", True),
        ("Load sales.csv and plot the prices by month", False),
        ("please finish the notebook", False),
    ],
)
def test_prompt_that_limits_the_turn_is_recognized(prompt: str, limited: bool) -> None:
    assert final_message.limits_work(prompt) == limited


@pytest.mark.nightly
def test_end_of_turn_is_silent_if_the_user_limited_the_turn(
    project: Project,
) -> None:
    notebook = project.new("Load", "Plot")
    prompt = notebook.payload(
        "UserPromptSubmit", "", {}, prompt="only step 1, then stop"
    )
    project.hook("UserPromptSubmit", prompt)
    notebook.insert("x = 1")
    assert end_turn(notebook) == {}


@pytest.mark.nightly
def test_notebook_without_a_plan_whose_last_run_failed_is_failing(
    project: Project,
) -> None:
    notebook = project.new()
    assert project.json("status")["state"] == "ready"
    project.config("preflight: false")
    cell_id, _ = notebook.insert("1 / 0")
    assert project.json("status")["state"] == "failing"
    assert ": failing" in project.stepper("status").stdout
    context = end_turn(notebook, "It works.")["hookSpecificOutput"]["additionalContext"]
    assert (
        f"the last run of notebooks/{notebook.path.name} failed and has not been fixed."
        in context
    )
    assert (
        f"Cell 1 (id {cell_id}) failed with ZeroDivisionError: division by zero."
        in context
    )
    assert end_turn(notebook, "It works.") == {}
    notebook.replace(cell_id, "1 / 0 + 1")
    assert (
        "ZeroDivisionError"
        in end_turn(notebook, "Now it works.")["hookSpecificOutput"][
            "additionalContext"
        ]
    )
    notebook.delete(cell_id)
    assert project.json("status")["state"] == "ready"
    cell_id, _ = notebook.insert("0 / 0")
    assert project.json("status")["state"] == "failing"
    notebook.replace(cell_id, "1")
    assert project.json("status")["state"] == "ready" and end_turn(notebook) == {}
