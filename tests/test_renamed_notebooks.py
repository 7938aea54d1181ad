"""Renamed notebooks keep their kernel, journal and stop, with any first access."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepper.common.paths import Paths
from stepper.daemon.config import Config
from stepper.daemon.workspace.notebook_paths import NotebookPaths
from stepper.policy import journal_events, journal_reducer, notebook_identity
from stepper.policy.model import Cell
from stepper.web.project_notebook_list import NotebookList
from tests.conftest import Notebook, Project, code, reuse_project, text_of
from tests.test_mcp import Client, run_scenario, text
from tests.test_recovery import start_hook_thread
from tests.test_run_on_edit import wait_until


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    for path in (module_project.folder / "notebooks").rglob("*.ipynb"):
        path.unlink()  # a copy of an earlier test must not count as a renamed notebook
    yield from reuse_project(module_project)


def move(notebook: Notebook, name: str) -> Notebook:
    """Rename a notebook like `mv`."""
    path = notebook.project.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook.path.rename(path)
    return Notebook(notebook.project, path)


def name_of(notebook: Notebook) -> str:
    return str(notebook.path.relative_to(notebook.project.folder))


def kernel_of(notebook: Notebook) -> int:
    """Return the process id of a notebook's kernel."""
    return int(notebook.project.json("status", name_of(notebook))["kernel"]["pid"])


def list_outcomes(notebook: Notebook) -> list[str]:
    history = notebook.project.json("history", name_of(notebook))
    return [run["outcome"] for run in history]


def list_states(project: Project) -> dict[str, tuple[str, str]]:
    rows = project.json("list")
    return {row["notebook"]: (row["state"], row["kernel"]["state"]) for row in rows}


# --- rules


def test_notebook_is_identified_by_half_of_its_run_cells() -> None:
    executed_hashes = {"a": "1", "b": "2", "c": "3"}
    assert notebook_identity.count_unchanged(executed_hashes, executed_hashes) == 3
    assert (
        notebook_identity.count_unchanged({"a": "1", "b": "edited"}, executed_hashes)
        == 1
    )
    assert notebook_identity.count_unchanged({"a": "1"}, executed_hashes) == 0
    assert notebook_identity.count_unchanged({"a": "x", "b": "x"}, executed_hashes) == 0
    assert notebook_identity.is_different_notebook({"x": "1"}, executed_hashes)
    assert notebook_identity.is_different_notebook({}, executed_hashes)
    assert not notebook_identity.is_different_notebook({"c": "edited"}, executed_hashes)
    assert not notebook_identity.is_different_notebook({"x": "1"}, {})
    cells = [
        Cell("one", 0, 1, "code", "x"),
        Cell("two", 1, 0, "markdown", "x"),
        Cell("cell-2", 2, 2, "code", "x"),
    ]
    assert notebook_identity.hash_code_cells(cells).keys() == {"one"}


def test_rename_is_reported_until_a_cell_runs() -> None:
    renamed = journal_events.Renamed(
        at="2026-11-24T10:00:00.000Z", former="notebooks/a.ipynb"
    ).to_json()
    state = journal_reducer.replay([renamed])
    assert (state.renamed_from, state.unreadable_events) == ("notebooks/a.ipynb", 0)


def make_notebook_paths(folder: Path) -> NotebookPaths:
    (folder / ".stepper").mkdir(exist_ok=True)
    paths = Paths(str(folder))
    return NotebookPaths(paths, Config(paths))


def test_each_notebook_has_its_own_store_after_renames(
    tmp_path: Path,
) -> None:
    project = make_notebook_paths(tmp_path)

    def store(name: str) -> str:
        path = str(tmp_path / name)
        store = project.get_store(path)
        assert project.get_path_of_store(f"{store}.ipynb") == path
        return store

    assert store("notebooks/a.ipynb") == "a"
    assert store("top.ipynb") == "@/top"
    project.renames_file.replace({"notebooks/b.ipynb": "a", "c.ipynb": "@/top"}, {})
    assert store("notebooks/b.ipynb") == "a"
    assert store("notebooks/a.ipynb") == "@2/a"
    assert store("c.ipynb") == "@/top"
    assert store("top.ipynb") == "@2/@/top"
    # another process, such as `stepper view`, sees it
    assert (
        make_notebook_paths(tmp_path).get_store(str(tmp_path / "notebooks/b.ipynb"))
        == "a"
    )


def test_foreign_rename_record_cannot_leave_the_folder(tmp_path: Path) -> None:
    project = make_notebook_paths(tmp_path)
    stores = {
        "notebooks/a.ipynb": "../../outside",
        "notebooks/b.ipynb": "/etc/passwd",
        "notebooks/c.ipynb": "x/../../y",
        "notebooks/d.ipynb": ["e"],
        "../e.ipynb": "e",
        "notebooks/f.ipynb": "same",
        "notebooks/g.ipynb": "same",
        "notebooks/h.ipynb": "fine",
    }
    file = Path(project.renames_file.path)
    for content in ("", "[]", "{}", '{"stores": 3}', "\0"):
        file.write_text(content)
        assert project.renames_file.get_stores() == {}
    file.write_text(json.dumps({"stores": stores}))
    assert project.renames_file.get_stores() == {
        "notebooks/f.ipynb": "same",
        "notebooks/h.ipynb": "fine",
    }


# --- commands


def test_command_on_the_new_name_finds_kernel_plan_and_history(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("x = 41")
    kernel, old = kernel_of(notebook), name_of(notebook)
    moved = move(notebook, "notebooks/renamed.ipynb")
    status = project.json("status", "renamed")
    assert status["renamed"] == (
        f"{old} was renamed to notebooks/renamed.ipynb: its kernel, plan and history"
        " continue under the new name"
    )
    assert (status["kernel"]["pid"], status["state"]) == (kernel, "ready")
    assert [step["status"] for step in status["steps"]] == ["done", "pending"]
    assert status["renamed"] in project.stepper("status", "renamed").stdout
    assert old not in list_states(project)

    report = moved.insert("x + 1")[1].text
    assert "| 42" in report
    assert report.count("was renamed to") == 1
    assert "was renamed to" not in moved.insert("x + 2")[1].text
    assert project.json("status", "renamed")["renamed"] == ""
    assert list_outcomes(moved) == ["ok"] * 3
    assert text_of(moved.raw["cells"][-1]) == ""
    assert kernel_of(moved) == kernel


def test_current_notebook_is_found_and_old_name_reports_the_new_one(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 41")
    project.stepper("use", name_of(notebook))
    old = name_of(notebook)
    move(notebook, "notebooks/renamed.ipynb")
    assert project.json("status")["notebook"] == "notebooks/renamed.ipynb"
    assert project.stepper("eval", "x").stdout == "41\n"
    failed = project.stepper("status", old, check=2).stderr
    assert f"there is no notebook '{old}': it was renamed to" in failed
    assert "stepper status notebooks/renamed.ipynb" in failed
    project.kill_daemon()
    failed = project.stepper("run", old, check=2).stderr
    assert "it was renamed to notebooks/renamed.ipynb" in failed


def test_list_shows_a_renamed_notebook_once(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    before = list_states(project)
    old = name_of(notebook)
    move(notebook, "notebooks/renamed.ipynb")
    after = list_states(project)
    assert after["notebooks/renamed.ipynb"] == before[old]
    assert old not in after


def test_viewer_in_another_process_sees_the_history_under_the_new_name(
    project: Project,
) -> None:
    viewed = NotebookList(project.paths)

    def runs(name: str) -> int | None:
        rows = {row["notebook"]: row["runs"] for row in viewed.refresh_rows()}
        return rows.get(f"notebooks/{name}.ipynb")

    notebook = project.new()
    notebook.insert("x = 1")
    assert runs(notebook.path.stem) == 1
    moved = move(notebook, "notebooks/looked-at.ipynb")
    assert runs("looked-at") == 0  # the daemon has not been notified yet
    moved.insert("x + 1")
    assert (runs("looked-at"), runs(notebook.path.stem)) == (2, None)


@pytest.mark.nightly
def test_rename_back_and_new_notebook_under_the_old_name(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    kernel, old = kernel_of(notebook), name_of(notebook)
    moved = move(notebook, "notebooks/renamed.ipynb")
    new_notebook = project.new()  # before any access to the renamed notebook
    assert name_of(new_notebook) == old
    assert new_notebook.insert("'x' in globals()")[1].text.count("False") == 1
    assert kernel_of(moved) == kernel
    assert list_outcomes(new_notebook) == ["ok"]
    project.stepper("shutdown", old)
    new_notebook.path.unlink()
    back = move(moved, old)
    assert kernel_of(back) == kernel
    assert list_outcomes(back) == ["ok"]


# --- hooks


def test_edit_under_the_new_name_runs_in_the_same_kernel(
    project: Project,
) -> None:
    notebook = project.new("Load", "Count")
    notebook.insert("x = 41")
    old = name_of(notebook)
    moved = move(notebook, "notebooks/deep/renamed.ipynb")
    assert moved.before("insert", "x + 1").denied == ""
    report = moved.insert("x + 1")[1].text
    assert "| 42" in report and 'Step 2 of 2 "Count"' in report
    assert f"{old} was renamed to notebooks/deep/renamed.ipynb" in report


def test_shell_command_that_changes_and_renames(project: Project) -> None:
    notebook = project.new()
    cell, _ = notebook.insert("x = 1")
    moved = move(notebook, "notebooks/renamed.ipynb")
    raw = moved.raw
    raw["cells"].append(code("x + 1", "added"))
    moved.path.write_text(json.dumps(raw))
    calls = [{"tool_name": "Bash", "tool_input": {"command": "mv"}}]
    payload = moved.payload("PostToolBatch", "", {}, tool_calls=calls)
    line = project.hook("PostToolBatch", payload).text
    assert "notebooks/renamed.ipynb" in line and "(id added)" in line
    assert f"(id {cell})" not in line  # it ran
    assert list_outcomes(moved) == ["ok"]


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("restarted", [False, True])
def test_stop_moves_with_the_notebook(project: Project, restarted: bool) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("x = 1")
    cell, _ = notebook.insert("1 / 0")
    for number in range(3):
        response = notebook.replace(cell, f"1 / 0 + {number}")
    assert response.stop
    if restarted:
        project.kill_daemon()
    moved = move(notebook, "notebooks/renamed.ipynb")
    assert "stopped" in moved.before("replace", "2", cell).denied
    assert "NOT run" in moved.insert("2")[1].text
    status = project.json("status", "renamed")
    assert status["state"] == "stopped"
    assert "plan, history and stop continue" in status["renamed"]
    project.stepper("fix", "renamed")
    assert "ran ok" in moved.replace(cell, "x + 1").text


def test_another_agent_continues_under_the_new_name(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 41")
    move(notebook, "notebooks/renamed.ipynb")

    async def story(client: Client) -> None:
        response = await client.call_tool(
            "run_cell", {"notebook": "renamed", "source": "x + 1"}
        )
        assert "| 42" in text(response), text(response)

    run_scenario(project, story)


# --- copies and ambiguous cases


def test_copy_moves_nothing_even_if_the_original_is_renamed(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    kernel = kernel_of(notebook)
    copy = Notebook(project, project.folder / "notebooks/copy.ipynb")
    shutil.copy(notebook.path, copy.path)
    status = project.json("status", "copy")
    assert (status["renamed"], status["kernel"]["state"]) == ("", "none")
    assert kernel_of(notebook) == kernel
    late = Notebook(project, project.folder / "notebooks/late.ipynb")
    shutil.copy(notebook.path, late.path)
    moved = move(notebook, "notebooks/moved.ipynb")
    status = project.json("status", "late")  # the inode distinguishes them
    assert (status["renamed"], status["kernel"]["state"]) == ("", "none")
    assert kernel_of(moved) == kernel


@pytest.mark.nightly
def test_ambiguous_copy_is_reported_and_both_stay_stopped(
    project: Project,
) -> None:
    notebook = project.new("Load")
    cell, _ = notebook.insert("1 / 0")
    for number in range(3):
        response = notebook.replace(cell, f"1 / 0 + {number}")
    assert response.stop
    project.kill_daemon()  # the daemon that knew the inode
    old = name_of(notebook)
    shutil.copy(notebook.path, project.folder / "notebooks/copy.ipynb")
    moved = move(notebook, "notebooks/moved.ipynb")
    copy = Notebook(project, project.folder / "notebooks/copy.ipynb")
    for item in (moved, copy):
        status = project.json("status", name_of(item))
        assert (
            f"{name_of(item)} seems to be {old} under a new name" in status["renamed"]
        )
        assert status["state"] == "stopped"
        assert "stopped" in item.before("replace", "2", cell).denied
    copy.path.unlink()
    back = move(moved, old)
    assert len(list_outcomes(back)) == 4


# --- swapped notebooks


@pytest.mark.nightly
@pytest.mark.parametrize("by_prompt", [False, True])
def test_swapped_notebooks_keep_their_kernels_and_stops(
    project: Project, by_prompt: bool
) -> None:
    """Also if a prompt comes first, which ends the stops of replaced notebooks."""
    new_notebook, other_notebook = project.new("One"), project.new("Other")
    new_notebook.insert("x = 'one'")
    cell, _ = other_notebook.insert("x = 'other'; 1 / 0")
    for number in range(3):
        response = other_notebook.replace(cell, f"1 / 0 + {number}")
    assert response.stop
    kernels = kernel_of(new_notebook), kernel_of(other_notebook)
    names = name_of(new_notebook), name_of(other_notebook)
    aside = new_notebook.path.with_suffix(".aside")
    new_notebook.path.rename(aside)
    other_notebook.path.rename(new_notebook.path)
    aside.rename(other_notebook.path)
    if by_prompt:
        prompt = new_notebook.payload("UserPromptSubmit", "", {}) | {"prompt": "Hello."}
        project.hook("UserPromptSubmit", prompt)
    assert (kernel_of(other_notebook), kernel_of(new_notebook)) == kernels
    states = [project.json("status", name)["state"] for name in names]
    assert states == ["stopped", "complete"]
    assert "stopped" in new_notebook.before("replace", "2", cell).denied
    assert project.stepper("eval", "x", check=0).stdout in ("'one'\n", "'other'\n")
    project.kill_daemon()
    assert (kernel_of(other_notebook), kernel_of(new_notebook)) == kernels
    assert (len(list_outcomes(new_notebook)), len(list_outcomes(other_notebook))) == (
        4,
        1,
    )


@pytest.mark.nightly
def test_overwritten_notebook_keeps_its_kernel_under_a_name(
    project: Project,
) -> None:
    new_notebook, other_notebook = project.new(), project.new()
    new_notebook.insert("x = 'one'")
    other_notebook.insert("x = 'other'")
    kernels = kernel_of(new_notebook), kernel_of(other_notebook)
    new_notebook.path.rename(other_notebook.path)
    assert kernel_of(other_notebook) == kernels[0]
    replaced = name_of(other_notebook).replace(".ipynb", ".replaced-1.ipynb")
    assert list_states(project)[replaced] == ("deleted", "idle")
    assert "kernel" in project.stepper("shutdown", replaced).stdout
    assert not psutil.pid_exists(kernels[1]) or (
        psutil.Process(kernels[1]).status() == psutil.STATUS_ZOMBIE
    )
    assert psutil.pid_exists(kernels[0])


# --- during a run and without a daemon


@pytest.mark.nightly
@pytest.mark.parametrize("is_opened", [False, True])
def test_run_during_a_rename_writes_to_the_new_file(
    project: Project, is_opened: bool
) -> None:
    notebook = project.new("Wait")
    go = project.folder / "notebooks" / "go"
    source = (
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.02)\nprint('over')"
    )
    last = notebook.raw["cells"][-1]["id"]
    thread, responses = start_hook_thread(
        project, notebook.edited("insert", source, last)
    )
    wait_until(lambda: "begun" in text_of(notebook.raw["cells"][-1]))
    moved = move(notebook, "notebooks/renamed.ipynb")
    if is_opened:
        status = project.json("status", "renamed")
        assert status["running"]["step"] == 1
        assert "was renamed to" in status["renamed"]
    go.touch()
    thread.join()
    assert "ran ok" in responses[0].text, responses[0].text
    assert "could not be written" not in responses[0].text
    assert text_of(moved.raw["cells"][-1]) == "begun\nover\n"
    assert project.json("status", "renamed")["state"] == "complete"
    assert list_outcomes(moved) == ["ok"]
    assert not notebook.path.exists()


def test_rename_without_daemon_and_during_a_daemon_kill(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 41")
    kernel, old = kernel_of(notebook), name_of(notebook)
    project.stepper("use", old)
    project.kill_daemon()
    moved = move(notebook, "notebooks/renamed.ipynb")
    # everything that a rename writes before the new current notebook
    stores = {
        name_of(moved): make_notebook_paths(project.folder).get_store(
            str(notebook.path)
        )
    }
    names = {"stores": stores, "renamed": {old: name_of(moved)}}
    Path(project.paths.renames_file).write_text(json.dumps(names))
    assert project.json("status")["notebook"] == "notebooks/renamed.ipynb"
    assert kernel_of(moved) == kernel
    renamed_again = move(moved, "notebooks/again.ipynb")
    project.kill_daemon()
    assert "| 42" in renamed_again.insert("x + 1")[1].text
    assert kernel_of(renamed_again) == kernel


# --- other folders


@pytest.mark.nightly
def test_kernel_keeps_its_working_directory_until_restart(project: Project) -> None:
    project.config("kernel_cwd: notebook\n")
    notebook = project.new()
    notebook.insert("import os")
    moved = move(notebook, "notebooks/deep/renamed.ipynb")
    report = moved.insert("os.path.basename(os.getcwd())")[1].text
    assert "Until the kernel is restarted, its working directory is notebooks" in report
    assert "'notebooks'" in report
    project.stepper("restart", "deep/renamed")
    assert "'deep'" in moved.insert("import os\nos.path.basename(os.getcwd())")[1].text


@pytest.mark.nightly
def test_notebook_moved_outside_the_patterns_is_reported(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 41")
    old = name_of(notebook)
    top = move(notebook, "top.ipynb")
    message = (
        f"top.ipynb seems to be {old} under a new name. The kernel and the history stay"
        " under the old name until `notebooks:` includes top.ipynb or you rename it"
        f" back: mv top.ipynb {old}"
    )
    response = top.insert("x + 1")[1]
    assert (
        "NOT run" in response.text
        and message in response.text
        and message in response.line
    )
    assert message in project.stepper("status", "top.ipynb", check=2).stderr
    project.config('notebooks: ["notebooks", "*.ipynb"]\n')
    assert "| 42" in top.insert("x + 1")[1].text
    top.path.unlink()
