"""The index of a project's notebooks: discovery and repeated reading."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.daemon import command_handlers
from stepper.daemon.config import Config
from stepper.daemon.workspace.notebook_discovery import RACY_NS, NotebookIndex
from stepper.daemon.workspace.notebook_paths import NotebookPaths


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return tmp_path


def create_notebook_file(project: Path, *names: str) -> None:
    for name in names:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")


def list_notebooks(index: NotebookIndex, *patterns: str) -> list[str]:
    index.refresh(patterns or index.patterns)
    return sorted(
        os.path.relpath(path, index.project) for path in index.list_notebooks()
    )


def settle() -> None:
    """Wait until no folder counts as recently changed."""
    time.sleep(2 * RACY_NS / 1e9)


def test_notebooks_matching_a_pattern_are_found(project: Path) -> None:
    create_notebook_file(
        project,
        "notebooks/a.ipynb",
        "notebooks/deep/er/b.ipynb",
        "top.ipynb",
        "other/c.ipynb",
    )
    index = NotebookIndex(str(project))
    assert list_notebooks(index, "notebooks", "*.ipynb") == [
        "notebooks/a.ipynb",
        "notebooks/deep/er/b.ipynb",
        "top.ipynb",
    ]
    settle()
    # in an old folder, in new ones
    create_notebook_file(
        project, "notebooks/deep/er/new.ipynb", "notebooks/x/y/z/new.ipynb"
    )
    os.rename(project / "notebooks/a.ipynb", project / "notebooks/renamed.ipynb")
    os.unlink(project / "top.ipynb")
    assert list_notebooks(index) == [
        "notebooks/deep/er/b.ipynb",
        "notebooks/deep/er/new.ipynb",
        "notebooks/renamed.ipynb",
        "notebooks/x/y/z/new.ipynb",
    ]
    settle()
    os.rename(project / "notebooks/x", project / "notebooks/moved")
    assert "notebooks/moved/y/z/new.ipynb" in list_notebooks(index)
    assert list_notebooks(index, "other") == ["other/c.ipynb"]
    assert list_notebooks(index, "missing") == []


def test_only_changed_folders_are_reread(project: Path) -> None:
    create_notebook_file(
        project, *(f"notebooks/f{number}/a.ipynb" for number in range(20))
    )
    index = NotebookIndex(str(project))
    settle()
    list_notebooks(index, "notebooks")
    assert index.read_count == 21
    list_notebooks(index)
    assert index.read_count == 21
    create_notebook_file(project, "notebooks/f3/b.ipynb")
    assert len(list_notebooks(index)) == 21 and index.read_count == 22
    index.refresh_folders([])  # reads no file and forgets no entry
    assert len(index.list_notebooks()) == 21


def test_folder_changed_twice_within_one_tick_is_reread(
    project: Path,
) -> None:
    """Its modification time can be the same after the second change."""
    create_notebook_file(project, "notebooks/a.ipynb")
    folder = project / "notebooks"
    index = NotebookIndex(str(project))
    list_notebooks(index, "notebooks")
    about = os.stat(folder)
    create_notebook_file(project, "notebooks/b.ipynb")
    os.utime(folder, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert list_notebooks(index) == ["notebooks/a.ipynb", "notebooks/b.ipynb"]
    settle()
    list_notebooks(index)
    about = os.stat(folder)
    create_notebook_file(project, "notebooks/c.ipynb")
    # rsync restores the old time of folders
    os.utime(folder, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert "notebooks/c.ipynb" in list_notebooks(index)


def test_environments_packages_hidden_folders_and_links_are_not_searched(
    project: Path,
) -> None:
    create_notebook_file(
        project,
        "env/pyvenv.cfg",
        "env/lib/a.ipynb",
        "env/b.ipynb",
        "node_modules/c.ipynb",
        ".hidden/d.ipynb",
    )
    create_notebook_file(project, "real/e.ipynb", "kept/f.ipynb")
    (project / "link").symlink_to(project / "real")
    index = NotebookIndex(str(project))
    assert list_notebooks(index, "**") == ["kept/f.ipynb", "real/e.ipynb"]
    other_entries = {
        os.path.relpath(path, project) for path in index.find_uncovered([str(project)])
    }
    # the hook script detects them
    assert other_entries == {
        "env/b.ipynb",
        "node_modules/c.ipynb",
        "link/e.ipynb",
    }
    settle()
    create_notebook_file(project, "kept/pyvenv.cfg")  # now a virtual environment
    assert list_notebooks(index) == ["real/e.ipynb"]


def test_incomplete_scan_is_continued_by_later_scans(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_notebook_file(
        project, *(f"notebooks/f{number:02}/a.ipynb" for number in range(40))
    )
    settle()
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 50)
    index = NotebookIndex(str(project))
    first = list_notebooks(index, "notebooks")
    assert index.is_incomplete and 0 < len(first) < 40
    assert {*first} <= {*list_notebooks(index)}
    while index.is_incomplete:
        before = len(index.list_notebooks())
        assert len(list_notebooks(index)) > before
    assert len(index.list_notebooks()) == 40


def test_large_folder_does_not_exhaust_the_scan_budget(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepper.common.project_walk.TURN", 10)
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 60)
    create_notebook_file(project, *(f"notebooks/{number}.png" for number in range(200)))
    create_notebook_file(project, "labs/a/b.ipynb", "labs/c.ipynb")
    settle()
    index = NotebookIndex(str(project))
    assert (
        list_notebooks(index, "notebooks", "labs") == ["labs/a/b.ipynb", "labs/c.ipynb"]
        and index.is_incomplete
    )
    index.refresh(["notebooks", "labs"], entries=10_000)
    assert not index.is_incomplete


def test_list_searches_an_oversized_folder_only_on_request(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 20)
    monkeypatch.setattr("stepper.common.project_walk.TURN", 10)
    monkeypatch.setattr("stepper.daemon.command_handlers.SEARCH_SECONDS", 0.2)
    create_notebook_file(
        project,
        *(f"notebooks/{number}.png" for number in range(100)),
        "notebooks/z.ipynb",
    )
    paths = Paths(str(project))
    workspace = SimpleNamespace(
        notebook_paths=NotebookPaths(paths, Config(paths)), sessions={}
    )
    request: Any = SimpleNamespace(workspace=workspace)
    assert asyncio.run(command_handlers._search_folders(request, False)) is False
    assert asyncio.run(command_handlers._search_folders(request, True)) is True
    assert workspace.notebook_paths.list_known() == ["notebooks/z.ipynb"]
