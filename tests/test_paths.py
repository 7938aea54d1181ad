"""Paths that lead elsewhere are refused, also if they are swapped after the check."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepper.common import secure_files
from stepper.common.errors import NotebookError
from stepper.common.text import NAME_CONTROLS, escape_controls, shell_quote
from stepper.notebooks import new_notebook
from stepper.notebooks import notebook_file as adapter
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy.execution_result import Execution
from stepper.policy.model import Outcome
from tests.conftest import Notebook, Project, code

TEXT = json.dumps(
    {"cells": [code("1", "abc")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
)


def link_out(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def link_to_nothing(path: Path, elsewhere: Path) -> None:
    path.symlink_to("nothing.ipynb")


def loop(path: Path, elsewhere: Path) -> None:
    path.symlink_to("other.ipynb")
    path.with_name("other.ipynb").symlink_to(path.name)


def hard_link(path: Path, elsewhere: Path) -> None:
    os.link(elsewhere, path)


def fifo(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path, elsewhere: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the path may be too long for one
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path.name)
    os.chdir(here)


def device(path: Path, elsewhere: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))  # /dev/null


def folder(path: Path, elsewhere: Path) -> None:
    path.mkdir()


def write_plain_file(path: Path, elsewhere: Path) -> None:
    path.write_text(TEXT)


REFUSED = [
    (
        link_out,
        "odd.ipynb",
        "does not match `notebooks:` (notebooks/)",
        "move the notebook to a path",
    ),
    (
        link_to_nothing,
        "odd.ipynb",
        "is a symbolic link to",
        "rm ",
    ),
    (loop, "odd.ipynb", "is a symbolic link (to ", "rm "),
    (hard_link, "odd.ipynb", "has 2 names (hard links)", "cp "),
    (fifo, "odd.ipynb", "is a FIFO, not a regular file", "rm "),
    (a_socket, "odd.ipynb", "is a socket, not a regular file", "rm "),
    (device, "odd.ipynb", "is a device, not a regular file", "rm "),
    (folder, "odd.ipynb", "is a folder, not a notebook", "ls -ld "),
    (
        write_plain_file,
        "../odd.ipynb",
        "does not match `notebooks:`",
        'notebooks: ["notebooks", "*.ipynb"]',
    ),
    (
        write_plain_file,
        "od\x1b[31md.ipynb",
        "od\\x1b[31md.ipynb has control characters in its name",
        "mv $'",
    ),
    (
        write_plain_file,
        "o\nstepper: cell 1 ok.ipynb",
        "o\\nstepper: cell 1 ok.ipynb has control",
        "mv $'",
    ),
    (
        write_plain_file,
        "o\u202ebpyni.d.ipynb",
        "o\\u202ebpyni.d.ipynb has control characters",
        "mv $'",
    ),
    (
        write_plain_file,
        "od\u200bd.ipynb",
        "od\\u200bd.ipynb has control characters",
        "mv $'",
    ),
    (
        write_plain_file,
        "o\x9b31m/odd.ipynb",
        "o\\x9b31m/odd.ipynb has control characters",
        "mv $'",
    ),
]


def call(project: Project, path: str) -> dict:
    """The edit of a notebook that Claude Code reports."""
    tool_input = {
        "notebook_path": path,
        "new_source": "1",
        "cell_type": "code",
        "edit_mode": "replace",
        "cell_id": "abc",
    }
    answered = {**tool_input, "error": ""}
    return Notebook(project, project.folder).payload(
        "PostToolUse", "NotebookEdit", tool_input, tool_response=answered
    )


@pytest.mark.nightly
def test_non_regular_notebook_file_is_refused(project: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.ipynb"
    elsewhere.write_text(TEXT)
    before = elsewhere.stat().st_mtime_ns
    for number, (make, name, says, mend) in enumerate(REFUSED):
        target_path = project.folder / "notebooks" / str(number)
        target_path.mkdir()
        path = Path(
            os.path.join(target_path, f"../{name}" if name.startswith("../") else name)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, elsewhere)
        answer = project.hook("PostToolUse", call(project, str(path)))
        assert "the cell was NOT run" in answer.text, make
        assert says in answer.text and mend in answer.text, answer.text
        assert not NAME_CONTROLS.search(answer.text.replace("\n", "")), answer.text
        assert "\nstepper: cell 1 ok" not in answer.text
        output = project.stepper("run", str(path), check=None).stderr
        assert says in " ".join(output.split()), output
        assert not NAME_CONTROLS.search(output.replace("\n", "")), output
        if make in (hard_link, link_out):
            path.unlink()  # for those that follow
    assert (elsewhere.read_text(), elsewhere.stat().st_mtime_ns) == (TEXT, before)
    assert not list(Path(project.paths.kernels).rglob("*.json"))  # no cell ran


def test_suggested_command_fixes_a_hard_link(project: Project, tmp_path: Path) -> None:
    notebook = project.notebook("it's one.ipynb", [code("print('ran')", "abc")])
    os.link(notebook.path, tmp_path / "snapshot")
    (hint,) = [
        line.partition("cp ")[2]
        for line in notebook.replace("abc", "print('ran')").text.splitlines()
        if "cp " in line
    ]
    subprocess.run(["bash", "-c", "cp " + hint], check=True)
    assert "| ran" in notebook.replace("abc", "print('ran')").text
    assert (
        "ran"
        not in json.loads((tmp_path / "snapshot").read_text())["cells"][0]["outputs"]
    )


@pytest.mark.parametrize("name", ["a b", "it's", "\x1b[0m'\\", "é\n", "a\udcff\u202eb"])
def test_quoted_names_are_unchanged_in_bash(name: str) -> None:
    assert not NAME_CONTROLS.search(shell_quote(name)) and not NAME_CONTROLS.search(
        escape_controls(name)
    )
    output = subprocess.run(
        ["bash", "-c", f"printf %s {shell_quote(name)}"],
        capture_output=True,
        check=True,
    ).stdout
    assert output == os.fsencode(name)


def test_notebooks_folder_outside_the_project_is_refused(
    project: Project, tmp_path: Path
) -> None:
    (project.folder / "notebooks").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (project.folder / "notebooks").symlink_to(tmp_path / "elsewhere")
    output = project.stepper("new", "a problem", check=2).stderr
    assert "is outside of the project" in output
    assert not list((tmp_path / "elsewhere").iterdir())


def test_foreign_state_links_are_not_followed(project: Project, tmp_path: Path) -> None:
    outside = tmp_path / "outside.ipynb"
    outside.write_text(TEXT)
    (tmp_path / "outside.jsonl").write_text("precious")
    before = sorted(os.listdir(tmp_path))
    home, name = project.folder / ".stepper", "../outside.ipynb"
    (home / "state.json").write_text(
        json.dumps({"current": name, "sessions": {"session-1": name}})
    )
    (home / "active").touch()
    (home / "batch").write_text(json.dumps({str(outside): "session-1"}))
    times = outside.stat().st_mtime_ns
    said = project.stepper("status", check=None)
    assert "outside.ipynb does not match `notebooks:`" in said.stderr
    project.hook(
        "SessionStart", Notebook(project, outside).payload("SessionStart", "", {})
    )
    assert (
        project.hook(
            "PostToolBatch",
            Notebook(project, outside).payload(
                "PostToolBatch",
                "",
                {},
                tool_calls=[
                    {
                        "tool_name": "NotebookEdit",
                        "tool_input": {"notebook_path": str(outside)},
                    }
                ],
            ),
        ).stdout
        == b""
    )
    project.new()
    assert (outside.read_text(), outside.stat().st_mtime_ns) == (TEXT, times)
    assert (
        sorted(os.listdir(tmp_path)) == before
        and (tmp_path / "outside.jsonl").read_text() == "precious"
    )


# --- between check and use ---------------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path: Path) -> tuple[IpynbFile, Path, Callable[[], None]]:
    """A notebook that was checked, another user's treasure of the same name, and the check that it is as it was."""
    for name in ("notebooks", "treasure"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.ipynb").write_text(TEXT)
    treasure = tmp_path / "treasure" / "n.ipynb"
    os.utime(treasure, ns=(10**18, 10**18))

    def untouched() -> None:
        assert (treasure.read_text(), treasure.stat().st_mtime_ns) == (TEXT, 10**18)
        assert [path.name for path in treasure.parent.iterdir()] == ["n.ipynb"]

    return IpynbFile(str(tmp_path / "notebooks" / "n.ipynb")), treasure, untouched


def file_swapped(path: Path, treasure: Path) -> None:
    path.unlink()
    path.symlink_to(treasure)


def folder_swapped(path: Path, treasure: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to(treasure.parent)


def hard_link_swapped(path: Path, treasure: Path) -> None:
    path.unlink()
    os.link(treasure, path)


def make_execution() -> Execution:
    return Execution(
        Outcome.OK,
        [{"output_type": "stream", "name": "stdout", "text": "out\n"}],
        7,
        {},
    )


@pytest.mark.parametrize("how", [file_swapped, folder_swapped, hard_link_swapped])
def test_path_swapped_before_use_is_refused(
    room, how: Callable[[Path, Path], None]
) -> None:
    file, treasure, untouched = room
    cell = file.read().cells[0]
    how(Path(file.path), treasure)
    for use in (
        lambda: file.write_execution(cell, make_execution(), None, keep_time=True),
        lambda: file.add_tag(cell, "tag"),
        file.read,
    ):
        with pytest.raises(NotebookError) as refused:
            use()
        assert "link" in refused.value.message and refused.value.hint
    if how is not hard_link_swapped:  # a time is all that could be set there
        with contextlib.suppress(NotebookError):
            file.touch()
    untouched()


@pytest.mark.parametrize("how", [file_swapped, folder_swapped])
def test_path_swapped_during_a_write_writes_nothing_outside(
    room, how, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, treasure, untouched = room
    cell, swap, done = file.read().cells[0], adapter.exchange_files, []

    def late(item: str, other: str, place: int) -> bool:
        if not done:
            how(Path(file.path), treasure)
        done.append(how)
        return swap(item, other, place)

    monkeypatch.setattr(adapter, "exchange_files", late)
    with contextlib.suppress(NotebookError):
        file.write_execution(cell, make_execution(), None, keep_time=True)
    assert done
    untouched()


def test_new_notebook_is_not_created_through_a_symlink(room) -> None:
    file, treasure, untouched = room
    folder_swapped(Path(file.path), treasure)
    with pytest.raises(OSError, match="symbolic link"):
        new_notebook.create_notebook(
            os.path.join(os.path.dirname(file.path), "new.ipynb"), adapter.Plan("p")
        )
    untouched()


def test_swapping_paths_concurrently_never_escapes(room, tmp_path: Path) -> None:
    file, treasure, untouched = room
    cell, path, over = file.read().cells[0], Path(file.path), threading.Event()
    (tmp_path / "link").symlink_to(treasure)

    def swapping() -> None:
        while not over.is_set():
            shutil.copy(treasure, tmp_path / "copy")
            os.replace(tmp_path / "copy", path)
            os.symlink(treasure, tmp_path / "new")
            os.replace(tmp_path / "new", path)

    thread = threading.Thread(target=swapping)
    thread.start()
    until, put = time.monotonic() + 1.0, 0
    try:
        while time.monotonic() < until:
            with contextlib.suppress(NotebookError):
                file.write_execution(cell, make_execution(), None, keep_time=False)
                put += 1
            with contextlib.suppress(NotebookError):
                file.touch()
    finally:
        over.set()
        thread.join()
    untouched()


def test_missing_paths_are_accepted(tmp_path: Path) -> None:
    secure_files.check_regular(str(tmp_path / "nothing"))
    secure_files.check_regular(str(tmp_path / "no folder" / "nothing"))
