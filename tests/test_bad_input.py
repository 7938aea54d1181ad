"""Bad input gets a clear message; nothing is lost or half done.

The edit is kept and the hook exits with 0 (asserted in `hook`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepper.common import wire_format
from stepper.daemon import connection
from stepper.install import trust
from tests.conftest import CLIENTS, ONE_CLIENT, Notebook, Project, code, scratch


@pytest.fixture(params=CLIENTS)
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Project]:
    yield from scratch(tmp_path / "repo", request.param)


@pytest.fixture(scope="module", params=CLIENTS)
def shared(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Project]:
    """A project whose daemon is shared by tests in which nothing runs."""
    yield from scratch(tmp_path_factory.mktemp("shared") / "repo", request.param)


@pytest.mark.parametrize(
    ("stdin", "message"),
    [
        (b"", "empty"),
        (b"  \n", "empty"),
        (b"not json", "can't be read"),
        (b"\xff\xfe\x00", "can't be read"),
        (b"{}", "tool_input"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b"[" * 5000 + b"]" * 5000, "can't be read"),
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "can't be read"),
        (b'{"tool_name": "NotebookEdit"}', "tool_input"),
        (b'{"tool_name": "NotebookEdit", "tool_input": []}', "tool_input"),
        (b'{"tool_name": "NotebookEdit", "tool_input": {}}', "notebook_path"),
        (
            b'{"tool_name": "NotebookEdit", "tool_input": {"notebook_path": 7}}',
            "notebook_path",
        ),
        (b'{"tool_name": "Bash", "tool_input": {"command": "ls"}}', "Bash"),
        (b'{"tool_input": {"notebook_path": "/x.ipynb"}}', "tool_name"),
    ],
)
def test_invalid_payloads(shared: Project, stdin: bytes, message: str) -> None:
    answer = shared.hook("PostToolUse", stdin)
    assert "the cell was NOT run" in answer.text
    assert message in answer.text


@pytest.mark.parametrize(
    "event",
    ["PostToolBatch", "SessionStart", "Stop", "UserPromptSubmit", "NoSuchEvent"],
)
def test_other_events_with_garbage_are_silent(shared: Project, event: str) -> None:
    assert shared.hook(event, b"garbage").stdout == b""


def edit(project: Project, path: str) -> dict:
    tool_input = {
        "notebook_path": path,
        "new_source": "1",
        "cell_type": "code",
        "edit_mode": "insert",
    }
    tool_response = {**tool_input, "cell_id": "abc", "error": ""}
    return Notebook(project, project.folder).payload(
        "PostToolUse", "NotebookEdit", tool_input, tool_response=tool_response
    )


def make(kind: str, path: str) -> None:
    if kind == "folder":
        os.mkdir(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "dangling":
        os.symlink("nowhere.ipynb", path)
    elif kind != "missing":
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(
                {
                    "not json": "{",
                    "list": "[]",
                    "no notebook": "{}",
                    "v3": '{"nbformat": 3, "worksheets": []}',
                    "bad cells": '{"nbformat": 4, "cells": [1]}',
                    "empty": "",
                    "deep": "[" * 99999,
                }[kind]
            )


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no longer exists"),
        ("dangling", "which does not exist"),
        ("folder", "is a folder"),
        ("fifo", "not a regular file"),
        ("not json", "not valid JSON"),
        ("deep", "not valid JSON"),
        ("empty", "not valid JSON"),
        ("list", "not a notebook"),
        ("no notebook", "not a notebook"),
        ("v3", "nbformat 3"),
        ("bad cells", "not a valid notebook"),
    ],
)
def test_invalid_notebooks(shared: Project, kind: str, message: str) -> None:
    path = str(shared.folder / "notebooks" / f"{kind}.ipynb")
    make(kind, path)
    answer = shared.hook("PostToolUse", edit(shared, path))
    assert "the cell was NOT run" in answer.text
    assert message in answer.text


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_unreadable_notebook(project: Project) -> None:
    notebook = project.notebook("shut.ipynb")
    notebook.path.chmod(0)
    assert (
        "Permission denied"
        in project.hook("PostToolUse", edit(project, str(notebook.path))).text
    )


@pytest.mark.parametrize(
    "folder",
    [
        "../outside.ipynb",
        "/outside.ipynb",
        "notebooks/../x.ipynb",
        "notebooks/x.txt",
        "notebooks/link.ipynb",
    ],
)
def test_paths_outside_the_notebooks_folder_are_refused(
    shared: Project, folder: str
) -> None:
    uncovered_path = shared.folder / "elsewhere.ipynb"
    uncovered_path.write_text(
        json.dumps(
            {
                "cells": [code("1", "abc")],
                "metadata": {},
                "nbformat": 4,
                "nbformat_minor": 5,
            }
        )
    )
    with contextlib.suppress(FileExistsError):
        os.symlink(uncovered_path, shared.folder / "notebooks" / "link.ipynb")
    answer = shared.hook(
        "PostToolUse", edit(shared, os.path.join(shared.folder, folder))
    )
    assert "the cell was NOT run" in answer.text
    assert json.loads(uncovered_path.read_text())["cells"][0]["outputs"] == []


@ONE_CLIENT
def test_symlink_inside_the_folder_works(project: Project) -> None:
    notebook = project.new()
    os.symlink(notebook.path.name, project.folder / "notebooks" / "alias.ipynb")
    _, answer = Notebook(project, project.folder / "notebooks" / "alias.ipynb").insert(
        "print('via link')"
    )
    assert "| via link" in answer.text
    assert os.path.islink(project.folder / "notebooks" / "alias.ipynb")


@ONE_CLIENT
def test_unknown_cell_is_reported(project: Project) -> None:
    notebook = project.new()
    payload = edit(project, str(notebook.path))
    assert "no cell 'abc'" in project.hook("PostToolUse", payload).text


@ONE_CLIENT
def test_missing_interpreter_error_names_the_command(project: Project) -> None:
    Path(project.paths.install_record).unlink()
    notebook = project.new()
    _, answer = notebook.insert("1")
    assert "NOT run" in answer.text + answer.stop
    assert ".venv/bin/python" in answer.text
    assert "install.sh" in answer.text


@pytest.mark.nightly
@ONE_CLIENT
def test_missing_ipykernel_error_names_the_command(project: Project) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", project.folder / ".venv"],
        check=True,
    )
    trust.save_record(
        project.paths, {"python": str(project.folder / ".venv/bin/python")}
    )
    notebook = project.new()
    _, answer = notebook.insert("1")
    assert "NOT run" in answer.text
    assert "No module named" in answer.text
    assert "ipykernel" in answer.text.split("To fix this, run")[1]
    assert project.json("status")["kernel"]["state"] == "none"


@ONE_CLIENT
def test_kernel_start_failure_reports_stderr(
    project: Project,
) -> None:
    python = project.folder / "python"
    python.write_text("#!/bin/sh\necho 'libmissing.so: cannot open' >&2\nexit 127\n")
    python.chmod(0o755)
    project.config("python: python")
    project.stepper("trust", "--yes")
    _, answer = project.new().insert("1")
    for message in (answer.stop, project.stepper("report").stdout):
        assert "NOT run" in message
        assert "libmissing.so" in message
        assert "exit code 127" in message


@ONE_CLIENT
def test_config_error_names_line_and_nearest_key(project: Project) -> None:
    notebook = project.new()
    project.config("# limits\ncell_timeout: 10\n")
    _, answer = notebook.insert("1")
    assert "NOT run" in answer.text
    assert "config.yaml, line 2: unknown key `cell_timeout`" in answer.text
    assert "cell_timeout_seconds" in answer.text
    result = project.stepper("status", check=2)
    assert "line 2" in result.stderr
    assert result.stdout == ""


@pytest.mark.nightly
def test_hanging_daemon_is_reported_within_ten_seconds(project: Project) -> None:
    project.daemons = False  # started as a process with its own command line
    notebook = project.new()
    pid = project.json("status")["daemon"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    _, answer = notebook.insert("1")
    assert time.monotonic() - start < 10
    assert "NOT run" in answer.text
    assert "the stepper daemon does not respond" in answer.text
    assert "stepper shutdown" in answer.text
    project.stepper("shutdown")
    assert (
        not psutil.pid_exists(pid)
        or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    )
    assert "ran ok" in notebook.insert("2")[1].text


@pytest.mark.nightly
@ONE_CLIENT
def test_daemon_hanging_during_a_cell_does_not_report_not_run(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("1")
    pid = project.json("status")["daemon"]["pid"]
    _, answer = notebook.insert(
        f"import os, time; os.kill({pid}, {int(signal.SIGSTOP)}); time.sleep(0.1)"
    )
    history = f"stepper history {notebook.name}"
    assert f"may or may not have run (see `{history}`)" in answer.text
    os.kill(pid, signal.SIGCONT)


def test_daemon_start_failure_is_reported(project: Project) -> None:
    notebook = project.new()
    project.stepper("shutdown")
    os.rename(
        project.folder / ".stepper" / "journal", project.folder / ".stepper" / "j"
    )
    (project.folder / ".stepper" / "journal").write_text("in the way")
    start = time.monotonic()
    _, answer = notebook.insert("1")
    assert time.monotonic() - start < 60  # it does not try again and again
    assert "NOT run" in answer.text
    (project.folder / ".stepper" / "journal").unlink()
    os.rename(
        project.folder / ".stepper" / "j", project.folder / ".stepper" / "journal"
    )


@ONE_CLIENT
def test_invalid_frames_are_rejected(project: Project) -> None:
    import socket

    project.stepper("status")  # starts the daemon without a notebook
    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        wire_format.MAGIC + b"\x01" + (1 << 62).to_bytes(8, "big"),
        wire_format.pack(b"x"),
        b"STP1\x00",
    ):
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(120)
            sock.connect(project.paths.socket)
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(100) == b""
    project.new()


def test_incomplete_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def exchange(data: bytes) -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        return await connection.read_parts(reader)

    frame = wire_format.pack(b"status", b"{}")
    assert asyncio.run(exchange(frame)) == [b"status", b"{}"]
    monkeypatch.setattr(connection, "REQUEST_SECONDS", 0.01)
    for size in (0, 3, len(frame) - 1):
        start = time.monotonic()
        with pytest.raises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(exchange(frame[:size]), 60))
        assert time.monotonic() < start + 30


@ONE_CLIENT
def test_files_are_private_to_the_user(project: Project) -> None:
    project.new().insert("1")
    for folder, _, names in os.walk(project.folder / ".stepper"):
        for name in names:
            if name != "config.yaml":
                mode = stat.S_IMODE(os.lstat(os.path.join(folder, name)).st_mode)
                assert mode & 0o077 == 0, (name, oct(mode))
    assert stat.S_IMODE(os.stat(project.paths.runtime).st_mode) & 0o077 == 0


@ONE_CLIENT
def test_usage_error_exits_2(project: Project) -> None:
    assert project.stepper("nosuch", check=2).stdout == ""
    assert "no current notebook" in project.stepper("history", check=2).stderr
    assert "there is no notebook" in project.stepper("run", "nosuch", check=2).stderr
    assert "empty" in project.stepper("new", "  ", check=2).stderr


@pytest.mark.nightly
@ONE_CLIENT
def test_lone_surrogate_in_source_is_reported(project: Project) -> None:
    """JSON can contain a lone surrogate, Python source cannot.

    The report names the cell, and the next cell runs.
    """
    notebook = project.notebook("n.ipynb", [code("x = 1\n'\ud800'", "half")])
    text = notebook.write([code("x = 1\n'\ud800'", "half")]).text
    assert (
        "was NOT run" in text
        and "line 2 of the source has an unpaired surrogate (U+D800" in text
    )
    assert "ran ok" in notebook.write([code("1", "whole")]).text
    result = project.stepper("eval", "'\udcff'", check=2)
    assert "line 1 of the source has an unpaired surrogate (U+DCFF" in result.stderr
