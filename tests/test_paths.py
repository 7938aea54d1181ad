"""Paths that lead to other files are refused, even if swapped after the check."""

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


def make_outside_link(path: Path, target: Path) -> None:
    path.symlink_to(target)


def make_broken_link(path: Path, target: Path) -> None:
    path.symlink_to("nothing.ipynb")


def make_link_loop(path: Path, target: Path) -> None:
    path.symlink_to("other.ipynb")
    path.with_name("other.ipynb").symlink_to(path.name)


def make_hard_link(path: Path, target: Path) -> None:
    os.link(target, path)


def make_fifo(path: Path, target: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, target: Path) -> None:
    working_folder = os.getcwd()
    os.chdir(path.parent)  # the absolute path may be too long for a socket
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as unix_socket:
        unix_socket.bind(path.name)
    os.chdir(working_folder)


def make_device(path: Path, target: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can create devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))  # /dev/null


def make_folder(path: Path, target: Path) -> None:
    path.mkdir()


def write_plain_file(path: Path, target: Path) -> None:
    path.write_text(TEXT)


REFUSED = [
    (
        make_outside_link,
        "odd.ipynb",
        "does not match `notebooks:` (notebooks/)",
        "move the notebook to a path",
    ),
    (
        make_broken_link,
        "odd.ipynb",
        "is a symbolic link to",
        "rm ",
    ),
    (make_link_loop, "odd.ipynb", "is a symbolic link (to ", "rm "),
    (make_hard_link, "odd.ipynb", "has 2 names (hard links)", "cp "),
    (make_fifo, "odd.ipynb", "is a FIFO, not a regular file", "rm "),
    (make_socket, "odd.ipynb", "is a socket, not a regular file", "rm "),
    (make_device, "odd.ipynb", "is a device, not a regular file", "rm "),
    (make_folder, "odd.ipynb", "is a folder, not a notebook", "ls -ld "),
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


def make_edit_payload(project: Project, path: str) -> dict:
    """Return the payload of an edit of a notebook."""
    tool_input = {
        "notebook_path": path,
        "new_source": "1",
        "cell_type": "code",
        "edit_mode": "replace",
        "cell_id": "abc",
    }
    tool_response = {**tool_input, "error": ""}
    return Notebook(project, project.folder).payload(
        "PostToolUse", "NotebookEdit", tool_input, tool_response=tool_response
    )


@pytest.mark.nightly
def test_non_regular_notebook_file_is_refused(project: Project, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.ipynb"
    target.write_text(TEXT)
    mtime = target.stat().st_mtime_ns
    for number, (make, name, problem, fix) in enumerate(REFUSED):
        target_path = project.folder / "notebooks" / str(number)
        target_path.mkdir()
        path = Path(
            os.path.join(target_path, f"../{name}" if name.startswith("../") else name)
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path, target)
        answer = project.hook("PostToolUse", make_edit_payload(project, str(path)))
        assert "the cell was NOT run" in answer.text, make
        assert problem in answer.text and fix in answer.text, answer.text
        assert not NAME_CONTROLS.search(answer.text.replace("\n", "")), answer.text
        assert "\nstepper: cell 1 ok" not in answer.text
        output = project.stepper("run", str(path), check=None).stderr
        assert problem in " ".join(output.split()), output
        assert not NAME_CONTROLS.search(output.replace("\n", "")), output
        if make in (make_hard_link, make_outside_link):
            path.unlink()  # the next cases use the same target
    assert (target.read_text(), target.stat().st_mtime_ns) == (TEXT, mtime)
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
    names = sorted(os.listdir(tmp_path))
    state_folder, name = project.folder / ".stepper", "../outside.ipynb"
    (state_folder / "state.json").write_text(
        json.dumps({"current": name, "sessions": {"session-1": name}})
    )
    (state_folder / "active").touch()
    (state_folder / "batch").write_text(json.dumps({str(outside): "session-1"}))
    times = outside.stat().st_mtime_ns
    result = project.stepper("status", check=None)
    assert "outside.ipynb does not match `notebooks:`" in result.stderr
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
        sorted(os.listdir(tmp_path)) == names
        and (tmp_path / "outside.jsonl").read_text() == "precious"
    )


# --- swapped between check and use ----------------------------------------------------


@pytest.fixture
def swap_case(tmp_path: Path) -> tuple[IpynbFile, Path, Callable[[], None]]:
    """A checked notebook, another user's file of the same name, and its assertion."""
    for name in ("notebooks", "treasure"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.ipynb").write_text(TEXT)
    treasure = tmp_path / "treasure" / "n.ipynb"
    os.utime(treasure, ns=(10**18, 10**18))

    def assert_untouched() -> None:
        assert (treasure.read_text(), treasure.stat().st_mtime_ns) == (TEXT, 10**18)
        assert [path.name for path in treasure.parent.iterdir()] == ["n.ipynb"]

    return (
        IpynbFile(str(tmp_path / "notebooks" / "n.ipynb")),
        treasure,
        assert_untouched,
    )


def swap_file(path: Path, treasure: Path) -> None:
    path.unlink()
    path.symlink_to(treasure)


def swap_folder(path: Path, treasure: Path) -> None:
    path.parent.rename(path.parent.with_name("moved"))
    path.parent.symlink_to(treasure.parent)


def swap_hard_link(path: Path, treasure: Path) -> None:
    path.unlink()
    os.link(treasure, path)


def make_execution() -> Execution:
    return Execution(
        Outcome.OK,
        [{"output_type": "stream", "name": "stdout", "text": "out\n"}],
        7,
        {},
    )


@pytest.mark.parametrize("swap_path", [swap_file, swap_folder, swap_hard_link])
def test_path_swapped_before_use_is_refused(
    swap_case, swap_path: Callable[[Path, Path], None]
) -> None:
    file, treasure, assert_untouched = swap_case
    cell = file.read().cells[0]
    swap_path(Path(file.path), treasure)
    for use in (
        lambda: file.write_execution(cell, make_execution(), None, keep_time=True),
        lambda: file.add_tag(cell, "tag"),
        file.read,
    ):
        with pytest.raises(NotebookError) as refused:
            use()
        assert "link" in refused.value.message and refused.value.hint
    if swap_path is not swap_hard_link:  # `touch` can only set its time
        with contextlib.suppress(NotebookError):
            file.touch()
    assert_untouched()


@pytest.mark.parametrize("swap_path", [swap_file, swap_folder])
def test_path_swapped_during_a_write_writes_nothing_outside(
    swap_case, swap_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, treasure, assert_untouched = swap_case
    cell, exchange, swaps = file.read().cells[0], adapter.exchange_files, []

    def swap_then_exchange(first: str, second: str, folder_fd: int) -> bool:
        if not swaps:
            swap_path(Path(file.path), treasure)
        swaps.append(swap_path)
        return exchange(first, second, folder_fd)

    monkeypatch.setattr(adapter, "exchange_files", swap_then_exchange)
    with contextlib.suppress(NotebookError):
        file.write_execution(cell, make_execution(), None, keep_time=True)
    assert swaps
    assert_untouched()


def test_new_notebook_is_not_created_through_a_symlink(swap_case) -> None:
    file, treasure, assert_untouched = swap_case
    swap_folder(Path(file.path), treasure)
    with pytest.raises(OSError, match="symbolic link"):
        new_notebook.create_notebook(
            os.path.join(os.path.dirname(file.path), "new.ipynb"), adapter.Plan("p")
        )
    assert_untouched()


def test_swapping_paths_concurrently_never_escapes(swap_case, tmp_path: Path) -> None:
    file, treasure, assert_untouched = swap_case
    cell, path, stop = file.read().cells[0], Path(file.path), threading.Event()
    (tmp_path / "link").symlink_to(treasure)

    def swap_repeatedly() -> None:
        while not stop.is_set():
            shutil.copy(treasure, tmp_path / "copy")
            os.replace(tmp_path / "copy", path)
            os.symlink(treasure, tmp_path / "new")
            os.replace(tmp_path / "new", path)

    thread = threading.Thread(target=swap_repeatedly)
    thread.start()
    deadline, write_count = time.monotonic() + 1.0, 0
    try:
        while time.monotonic() < deadline:
            with contextlib.suppress(NotebookError):
                file.write_execution(cell, make_execution(), None, keep_time=False)
                write_count += 1
            with contextlib.suppress(NotebookError):
                file.touch()
    finally:
        stop.set()
        thread.join()
    assert_untouched()


def test_missing_paths_are_accepted(tmp_path: Path) -> None:
    secure_files.check_regular(str(tmp_path / "nothing"))
    secure_files.check_regular(str(tmp_path / "no folder" / "nothing"))
