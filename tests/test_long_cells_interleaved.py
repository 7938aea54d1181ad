"""Background runs during other events: other sessions and notebooks, a killed hook."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepper.daemon.server import BEAT_SECONDS
from tests.conftest import (
    Answer,
    Notebook,
    Project,
    code,
    compiled_client,
    make_env,
    mark_nightly,
)
from tests.test_long_cells import (
    NOT_SOON,
    SOON,
    STARTED,
    WAITING_CELL,
    Edit,
    confirm_delivery,
    get_running,
    read_notification,
    start_hook,
    start_waker,
    wait_for_output,
    write_cells,
)
from tests.test_run_on_edit import wait_until
from tests.test_workflow import say, start_session

MARKDOWN_CELL = {
    "cell_type": "markdown",
    "id": "words",
    "metadata": {},
    "source": "Words.",
}


@pytest.fixture
def project(fresh_project: Project) -> Iterator[Project]:
    """A project for each test: background runs are reported to the next caller."""
    fresh_project.config(SOON)
    yield fresh_project
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def start_background_cell(notebook: Notebook, source: str = WAITING_CELL) -> Edit:
    edit = Edit(notebook, source)
    assert "still running" in edit.answer.text
    return edit


def release_cell(notebook: Notebook, until: str = "go") -> None:
    """Create the file that the cell waits for."""
    (notebook.path.parent / until).touch()


def kill_hook(process: subprocess.Popen[bytes], project: Project) -> None:
    """Kill a hook like `kill -9`, and wait until the daemon has noticed."""
    log = project.folder / ".stepper" / "daemon.log"
    text = log.read_text().count(" disconnected\n")
    process.kill()
    process.wait()
    wait_until(lambda: log.read_text().count(" disconnected\n") > text)


def kill_starved_hook(process: subprocess.Popen[bytes], project: Project) -> None:
    """Kill a hook with an unread heartbeat, which resets its connection."""
    process.send_signal(signal.SIGSTOP)
    time.sleep(1.5 * BEAT_SECONDS)
    kill_hook(process, project)


def finish_cell(notebook: Notebook) -> None:
    release_cell(notebook)
    wait_until(
        lambda: not notebook.project.json("status", str(notebook.path))["running"]
    )


def test_interrupt_by_another_session_is_reported_to_the_owner(
    project: Project,
) -> None:
    notebook = project.new("Train", "Test")
    edit = start_background_cell(notebook)
    other_session = Notebook(project, notebook.path, session="another")
    response, denied = (
        start_session(other_session),
        other_session.before("insert", "1 + 1", edit.cell_id).denied,
    )
    for item in (response, denied):
        assert (
            "is still running" in item
            and "another session is notified" in item
            and "ou are notified" not in item
        ), item
    assert read_notification(start_waker(other_session, "SessionStart")) == ""
    assert "you are notified" in notebook.before("insert", "1 + 1", edit.cell_id).denied
    say(other_session, "stop the cell")
    assert "was CANCELLED after" in edit.woken


@pytest.mark.nightly
@pytest.mark.parametrize("by", mark_nightly(["the agent", "a subagent"], "the agent"))
def test_markdown_write_does_not_wait(project: Project, by: str) -> None:
    notebook = project.new("Train")
    edit = start_background_cell(notebook)
    cells = [*notebook.raw["cells"], MARKDOWN_CELL]
    tool_input = {
        "file_path": str(notebook.path),
        "content": json.dumps({**notebook.raw, "cells": cells}),
    }
    assert not project.hook(
        "PreToolUse", notebook.payload("PreToolUse", "Write", tool_input)
    ).denied
    payload = write_cells(notebook, cells) | (
        {"agent_id": "a"} if by == "a subagent" else {}
    )
    text = Edit(notebook, payload=payload)
    assert text.answer.text == "" == text.woken and get_running(project)
    release_cell(notebook)
    assert "ran ok" in edit.woken


@pytest.mark.nightly
def test_finished_background_run_keeps_the_current_notebook(
    project: Project,
) -> None:
    notebook = project.new("Train", "Test")
    edit = start_background_cell(notebook)
    other_notebook = project.new("Other", problem="another problem")
    project.config(NOT_SOON)
    other_notebook.insert("1 + 1")
    release_cell(notebook)
    assert "ran ok" in edit.woken
    assert project.json("status")["notebook"].endswith(other_notebook.path.name)


@pytest.mark.nightly
def test_client_is_notified_in_new_session_after_clear(
    project: Project,
) -> None:
    """The first waker has reported a line; the next one belongs to the new session."""
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL.replace("timeout=2h", 'timeout=2h wake="begun"'))
    message = edit.answer.text
    assert "still running" in message and (
        "matches" in message or "matches" in edit.woken
    )
    edit.waker.kill()
    edit.waker.wait()
    cleared = Notebook(project, notebook.path, session="cleared")
    env = os.environ | {"CLAUDE_PID": str(os.getpid())}
    start = start_hook(
        project,
        "SessionStart",
        {**cleared.payload("SessionStart", "", {}), "source": "clear"},
        env,
    )
    assert (
        "you are notified with its report"
        in Answer(start.communicate(timeout=120)[0]).text
    )
    waker = start_hook(
        project, "Rearm", {"session_id": "cleared", "hook_event_name": "Stop"}, env
    )
    release_cell(notebook)
    assert "ran ok" in read_notification(waker)


@pytest.mark.nightly
def test_recreated_notebook_cancels_the_run_of_the_deleted_one(
    project: Project,
) -> None:
    notebook = project.new("Train")
    edit = start_background_cell(notebook)
    notebook.path.unlink()
    assert project.new("Train").path == notebook.path and "CANCELLED" in edit.woken


@pytest.mark.nightly
def test_replaced_queued_cell_runs_once_with_new_source(
    project: Project,
) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Train", "Count")
    notebook.insert("n = 0")
    project.config(SOON + "queue: true\n")
    edit = start_background_cell(notebook)
    first = Edit(notebook, "n += 1; print('first', n)")
    assert "is queued" in first.answer.text
    second_edit = Edit(
        notebook,
        payload=notebook.edited("replace", "n += 1; print('n is', n)", first.cell_id),
    )
    assert "is queued" in second_edit.answer.text
    release_cell(notebook)
    assert "ran ok" in edit.woken
    notification = first.woken
    assert (
        "was changed while it was queued" in notification and "n is" not in notification
    )
    assert "| n is 1" in second_edit.woken


@pytest.mark.nightly
@pytest.mark.parametrize("waker", ["its own session", "a session that begins"])
def test_finished_run_is_reported_while_working_on_another_notebook(
    project: Project, waker: str
) -> None:
    notebook = project.new("Train", "Test")
    edit = start_background_cell(notebook)
    kill_hook(edit.waker, project)
    other_notebook = project.new("Other", problem="another problem")
    project.config(NOT_SOON)
    other_notebook.insert("1 + 1")
    finish_cell(notebook)
    if waker == "its own session":
        stranger = Notebook(project, other_notebook.path, session="stranger")
        assert "finished in the meantime" not in say(stranger, "What now?")
        response = say(other_notebook, "What now?")
    else:
        response = start_session(
            Notebook(project, other_notebook.path, session="later")
        )
    assert (
        "finished in the meantime" in response
        and "ran ok" in response
        and notebook.path.name in response
    )
    assert "finished in the meantime" not in start_session(
        Notebook(project, other_notebook.path, session="later still")
    )


@pytest.mark.nightly
def test_matching_line_is_not_notified_again_by_new_daemon(
    project: Project,
) -> None:
    notebook = project.new("Train")
    waits = 'while not os.path.exists("{}"): time.sleep(0.02)\nprint("loss is nan: {}", flush=True)\n'
    lines = "".join(waits.format(item, item) for item in ("bad", "worse"))
    source = WAITING_CELL.replace("timeout=2h", 'timeout=2h wake="loss.*nan"').replace(
        "while not", f"{lines}while not"
    )
    edit = start_background_cell(notebook, source)
    release_cell(notebook, "bad")
    notification = edit.woken
    assert "is still running" in notification and "| loss is nan: bad" in notification
    confirm_delivery(notebook, notification)
    project.kill_daemon()
    assert get_running(project)
    waker = start_waker(notebook)
    release_cell(notebook, "worse")
    wait_until(lambda: get_running(project)["line"] == "loss is nan: worse")
    time.sleep(BEAT_SECONDS)  # the time that the notification takes
    assert waker.poll() is None
    release_cell(notebook)
    notification = read_notification(waker)
    assert "ran ok" in notification and "is still running" not in notification


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiled client")
def test_waiting_hook_does_not_hold_the_file_content(
    project: Project, tmp_path: Path
) -> None:
    make_env(tmp_path / "env")
    shutil.copy(compiled_client(), tmp_path / "env" / "bin" / "hook")
    notebook = project.notebook("big.ipynb")
    figure = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "A" * 20_000_000},
    }
    old = json.dumps(
        {
            "cells": [code("1", "a") | {"outputs": [figure]}],
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    payload = write_cells(
        notebook, [code(WAITING_CELL, "b")], structuredPatch=[], originalFile=old
    )
    edit = Edit(notebook, tools=tmp_path / "env" / "bin", payload=payload)
    assert "still running" in edit.answer.text
    wait_until(lambda: psutil.Process(edit.waker.pid).memory_info().rss <= 3_000_000)
    project.kill_daemon()  # … and has the data for the next daemon
    wait_until(lambda: get_running(project) is not None)
    release_cell(notebook)
    assert "ran ok" in edit.woken


@pytest.mark.nightly
def test_report_of_killed_reader_is_delivered_later(
    project: Project,
) -> None:
    notebook = project.new("Train", "Test")
    edit = start_background_cell(notebook)
    edit.waker.send_signal(signal.SIGSTOP)
    finish_cell(notebook)
    time.sleep(1)  # within the five seconds that the daemon waits
    kill_hook(edit.waker, project)
    wait_until(lambda: "ran ok" in say(notebook, "And?"))
    assert "ran ok" not in start_session(notebook, "resume")


@pytest.mark.nightly
def test_waker_killed_with_unread_heartbeat_blocks_nobody(
    project: Project,
) -> None:
    notebook = project.new("Train", "Test")
    edit = start_background_cell(notebook)
    kill_starved_hook(edit.waker, project)
    waker = start_waker(notebook)
    finish_cell(notebook)
    assert "ran ok" in read_notification(waker)


@pytest.mark.nightly
def test_hook_killed_with_unread_heartbeat_cancels_its_cell(
    project: Project,
) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    wait_for_output(project)
    edit.waker.kill()
    kill_starved_hook(edit.hook, project)
    wait_until(lambda: get_running(project) is None)
    assert "was CANCELLED after" in say(notebook, "What happened?")
