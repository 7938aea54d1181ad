"""Cells that run for hours: the run continues in the background, and the agent is notified once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import (
    Answer,
    Notebook,
    Project,
    code,
    compiled_client,
    make_env,
    text_of,
)
from tests.test_run_on_edit import wait_until
from tests.test_workflow import end_turn, say, start_session

STARTED: list[subprocess.Popen[bytes]] = []
# Cells move to the background at once. Only for cells that wait for a file: on a slow
# machine, a short cell takes longer.
SOON = "report_after_seconds: 0.2\n"
AFTER_OUTPUT = "report_after_seconds: 3\n"  # also slow machines print within 3 s
NOT_SOON = "report_after_seconds: 600\n"  # longer than the time limit of a test
WAITING_CELL = """# stepper: timeout=2h
import os, time
print("begun", flush=True)
while not os.path.exists("go"): time.sleep(0.02)
print("after")"""


@pytest.fixture
def project(fresh_project: Project) -> Iterator[Project]:
    """A project for each test: background runs are reported to the next caller."""
    fresh_project.config(SOON)
    yield fresh_project
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


class Edit:
    """An edit with the client's hooks: the report's, and the later notification's."""

    def __init__(
        self,
        notebook: Notebook,
        source: str = "",
        tools: Path | None = None,
        payload: dict[str, Any] | None = None,
        **env: str,
    ) -> None:
        self.project, self.notebook, self.tools = notebook.project, notebook, tools
        self.payload = payload or make_insert_payload(notebook, source)
        self.cell_id: str = self.payload["tool_response"].get("cell_id", "")
        self.env = os.environ | {"CLAUDE_PID": str(os.getpid())} | env
        self.waker = self.start_hook("Wake")
        self.hook = self.start_hook("PostToolUse")

    def start_hook(self, event: str) -> subprocess.Popen[bytes]:
        return start_hook(self.project, event, self.payload, self.env, self.tools)

    @property
    def answer(self) -> Answer:
        return Answer(self.hook.communicate(timeout=120)[0])

    @property
    def woken(self) -> str:
        return read_notification(self.waker)


def make_insert_payload(notebook: Notebook, source: str) -> dict[str, Any]:
    return notebook.edited(
        "insert",
        source,
        notebook.raw["cells"][-1]["id"] if notebook.raw["cells"] else None,
    )


def write_cells(
    notebook: Notebook, cells: list[dict[str, Any]], **response: Any
) -> dict[str, Any]:
    """Write the whole file as the client does and return the PostToolUse payload."""
    text = json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    notebook.path.write_text(text)
    response = {
        "type": "update",
        "filePath": str(notebook.path),
        "content": text,
        **response,
    }
    tool_input = {"file_path": str(notebook.path), "content": text}
    return notebook.payload("PostToolUse", "Write", tool_input, tool_response=response)


def start_hook(
    project: Project,
    event: str,
    payload: dict[str, Any],
    env: dict[str, str] | None = None,
    tools: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a hook like the client; `tools` has the programs of an installation."""
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    command = project.client(event)
    if tools:
        command = [str(tools / "hook"), str(tools / "python"), *command[-3:]]
    process = subprocess.Popen(
        command, cwd=project.folder, env=env, start_new_session=True, **pipes
    )
    assert process.stdin
    # A hook that cannot notify the agent does not read its input.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        # The client sends these fields last.
        last_fields = {
            key: payload[key]
            for key in ("tool_response", "tool_use_id")
            if key in payload
        }
        ordered = {**omit_keys(payload, *last_fields), **last_fields}
        process.stdin.write(json.dumps(ordered, separators=(",", ":")).encode())
    process.stdin = None
    STARTED.append(process)
    return process


def omit_keys(payload: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in payload.items() if key not in keys}


def read_notification(waker: subprocess.Popen[bytes]) -> str:
    """Return the text that notifies the agent, or ''."""
    stdout, stderr = waker.communicate(timeout=120)
    assert stdout == b"" and waker.returncode == (2 if stderr else 0), (
        stdout,
        stderr,
        waker.returncode,
    )
    return stderr.decode()


def confirm_delivery(notebook: Notebook, text: str) -> None:
    """Confirm a notification like the client: as a prompt."""
    assert (
        say(
            notebook,
            f"<task-notification>\n<summary>x</summary>\n</task-notification>\nBackground cell: {text}",
        )
        == ""
    )


def start_waker(notebook: Notebook, event: str = "Stop") -> subprocess.Popen[bytes]:
    payload = {
        "session_id": notebook.session,
        "hook_event_name": event,
        "permission_mode": "default",
    }
    return start_hook(notebook.project, "Rearm", payload)


def get_running(project: Project) -> Any:
    return project.json("status")["running"]


def wait_for_output(project: Project) -> None:
    """Wait until the daemon has received the first line of WAITING_CELL."""
    wait_until(lambda: (get_running(project) or {}).get("line") == "begun")


def test_long_cell_moves_to_background_and_notifies_the_agent_once(
    project: Project,
) -> None:
    project.config(AFTER_OUTPUT)
    notebook = project.new("Train", "Test")
    edit = Edit(notebook, WAITING_CELL)
    answer = edit.answer
    assert answer.text.startswith(
        f"stepper: Cell 1 (id {edit.cell_id}) is still running after "
    )
    assert (
        '(step 1 of 2 "Train", deadline 2 h)' in answer.text
        and "| begun" in answer.text
    )
    assert "you are notified" in answer.text and "Esc does not" in answer.text
    assert "stop the cell" in answer.line and "step 1 of 2" in answer.line
    running = get_running(project)
    assert (
        running["handed_on"] is True
        and (project.folder / ".stepper" / "handed").exists()
    )
    assert end_turn(notebook) == {} and "| begun" not in say(
        notebook, "What is the weather?"
    )
    (notebook.path.parent / "go").touch()
    notification = edit.woken
    assert notification.startswith(
        f"stepper: the background cell in notebooks/{notebook.path.name} finished.\nstepper: Cell 1"
    )
    assert (
        "ran ok" in notification
        and "| after" in notification
        and 'Next: step 2 of 2 "Test"' in notification
    )
    confirm_delivery(notebook, notification)
    assert say(notebook, "And?") == "" and "handed on" not in start_session(notebook)
    assert text_of(notebook.cell(edit.cell_id)) == "begun\nafter\n"
    assert not (project.folder / ".stepper" / "handed").exists()
    assert len(project.json("history")) == 1


def test_short_cell_sends_no_notification(project: Project) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Count")
    edit = Edit(notebook, "print(1 + 1)")
    assert "ran ok" in edit.answer.text
    assert edit.woken == "" and not (project.folder / ".stepper" / "handed").exists()


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("prompt", ["stop the cell", "/notebook-status stop"])
def test_user_prompt_interrupts_the_cell_and_the_agent_is_notified_once(
    project: Project, prompt: str
) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    wait_for_output(project)
    response = say(notebook, prompt)
    assert "was CANCELLED after" in response and "| begun" in response
    assert (
        edit.woken == ""
        and say(notebook, "And?") == ""
        and get_running(project) is None
    )


@pytest.mark.nightly
def test_interrupt_in_a_terminal_notifies_the_agent(project: Project) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    assert "interrupted" in project.stepper("interrupt").stdout
    assert "was CANCELLED after" in edit.woken


@pytest.mark.nightly
def test_next_session_gets_the_report(project: Project) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    edit.waker.send_signal(signal.SIGTERM)
    edit.waker.wait()
    time.sleep(0.3)
    assert get_running(project)["handed_on"]
    other = Notebook(project, notebook.path, session="another")
    assert "step 1" in start_session(other, "startup") and get_running(project)
    (notebook.path.parent / "go").touch()
    wait_until(lambda: get_running(project) is None)
    response = say(other, "What now?")
    assert (
        "finished in the meantime" in response
        and "ran ok" in response
        and "| after" in response
    )
    assert say(other, "What now?") == "" == say(notebook, "And here?")


@pytest.mark.nightly
def test_resumed_session_is_notified(project: Project) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    edit.waker.kill()
    edit.waker.wait()
    time.sleep(0.3)
    assert "still running" in start_session(notebook, "resume")
    wakers = start_waker(notebook, "SessionStart"), start_waker(notebook)
    # One waiting hook is enough; the other one exits.
    wait_until(lambda: any(waker.poll() is not None for waker in wakers))
    (notebook.path.parent / "go").touch()
    assert sorted("ran ok" in read_notification(waker) for waker in wakers) == [
        False,
        True,
    ]


@pytest.mark.nightly
def test_notification_of_dead_client_is_delivered_later(project: Project) -> None:
    notebook = project.new("Train")
    with subprocess.Popen(["sleep", "600"]) as client:
        edit = Edit(notebook, WAITING_CELL, CLAUDE_PID=str(client.pid))
        client.kill()
    assert "still running" in edit.answer.text
    (notebook.path.parent / "go").touch()
    assert "ran ok" in edit.woken  # not delivered, because the client was killed
    wait_until(lambda: "ran ok" in start_session(notebook, "resume"))
    assert "finished in the meantime" not in start_session(notebook, "resume")


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("waker", [True, False])
def test_background_run_survives_a_killed_daemon(project: Project, waker: bool) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    wait_for_output(project)
    if not waker:
        edit.waker.kill()
        edit.waker.wait()
    project.kill_daemon()
    if waker:
        wait_until(
            lambda: (
                Path(project.paths.daemon_json).exists()
                and get_running(project) is not None
            )
        )
    (notebook.path.parent / "go").touch()
    if waker:
        notification = edit.woken
        assert (
            "ran ok" in notification
            and "continued after the daemon exited" in notification
        )
        confirm_delivery(notebook, notification)
        assert "ran ok" not in start_session(notebook, "resume")
    else:
        response = start_session(notebook, "resume")
        assert "finished in the meantime" in response and "ran ok" in response
    assert (
        len(project.json("history")) == 1
        and text_of(notebook.cell(edit.cell_id)) == "begun\nafter\n"
    )


@pytest.mark.nightly
def test_kernel_death_notifies_the_agent_of_lost_state(project: Project) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Load", "Train")
    notebook.insert("rows = [1, 2, 3]")
    project.config(SOON)
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    psutil.Process(project.json("status")["kernel"]["pid"]).kill()
    notification = edit.woken
    assert (
        "KernelDied" in notification
        and "all variables are lost" in notification
        and "❌ Execution stopped at cell 2" in notification
    )


@pytest.mark.nightly
def test_code_cells_are_refused_during_a_background_run(
    project: Project,
) -> None:
    notebook = project.new("Train", "Test")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    denied = notebook.before("insert", "1 + 1", edit.cell_id).denied
    assert (
        "step 1 of" in denied
        and "is still running after" in denied
        and "NOT written" in denied
    )
    assert "queue: true" in denied
    assert notebook.before("replace", "1 + 1", edit.cell_id).denied
    assert not notebook.before("insert", "Words.", edit.cell_id, "markdown").denied
    notebook.insert("Words.", edit.cell_id, "markdown")
    assert project.json("plan", "add", "Look")["steps"][-1]["title"] == "Look"
    other = project.new("Elsewhere")
    project.config(NOT_SOON)
    assert "ran ok" in other.insert("2 + 2")[1].text
    (notebook.path.parent / "go").touch()
    assert "ran ok" in edit.woken
    assert [cell["cell_type"] for cell in notebook.raw["cells"][-2:]] == [
        "code",
        "markdown",
    ]


@pytest.mark.nightly
def test_queued_cells_each_notify_the_agent(project: Project) -> None:
    project.config(SOON + "queue: true\n")
    notebook = project.new("Train", "Test", "Show")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text and "are queued" in edit.answer.text
    assert not notebook.before("insert", "1 + 1", edit.cell_id).denied
    # Each session is notified of its own cell.
    another = Notebook(project, notebook.path, session="another")
    behind, last = Edit(another, "print('two')"), Edit(notebook, "print('three')")
    for item in (behind, last):
        message = item.answer.text
        assert "has NOT run yet: it is queued behind step 1" in message, message
    (notebook.path.parent / "go").touch()
    assert (
        "| after" in edit.woken and "| two" in behind.woken and "| three" in last.woken
    )
    (notebook.path.parent / "go").unlink()
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    behind = Edit(notebook, "print('not')")
    assert "is queued" in behind.answer.text
    project.stepper("interrupt")
    assert "CANCELLED" in edit.woken and "the code did not run" in behind.woken


@pytest.mark.nightly
def test_escape_in_foreground_cancels_without_notification(
    project: Project,
) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    wait_for_output(project)
    edit.hook.send_signal(signal.SIGTERM)
    assert edit.woken == ""
    assert "was CANCELLED after" in say(notebook, "What happened?")


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("why", ["plain -p", "a subagent"])
def test_turn_waits_if_the_agent_cannot_be_notified(project: Project, why: str) -> None:
    notebook = project.new("Train")
    source = WAITING_CELL
    if why == "a subagent":
        edit = Edit(
            notebook, payload=make_insert_payload(notebook, source) | {"agent_id": "a1"}
        )
    else:
        edit = Edit(notebook, source, CLAUDE_CODE_ENTRYPOINT="sdk-cli")
    assert edit.woken == ""
    wait_for_output(project)
    assert edit.hook.poll() is None and not get_running(project)["handed_on"]
    (notebook.path.parent / "go").touch()
    assert "ran ok" in edit.answer.text


@pytest.mark.nightly
def test_shutdown_cancels_a_background_run(project: Project) -> None:
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    project.stepper("shutdown", str(notebook.path))
    assert "CANCELLED" in edit.woken


def test_matching_line_and_completion_each_notify_the_agent(
    project: Project,
) -> None:
    project.config(NOT_SOON)
    notebook = project.new("Train")
    source = WAITING_CELL.replace("timeout=2h", 'timeout=2h wake="loss.*nan"').replace(
        "while not", "while not os.path.exists('bad') and not"
    )
    source = source.replace(
        'print("after")',
        'print("loss is nan", flush=True)\nwhile not os.path.exists("go"): time.sleep(0.02)\nprint("after")',
    )
    edit = Edit(notebook, source)
    wait_for_output(project)
    # The cell moves to the background immediately, long before `report_after_seconds`.
    (notebook.path.parent / "bad").touch()
    assert (
        "still running" in (message := edit.answer.text)
        and "matches its `wake=` pattern:\n| loss is nan" in message
    ), message
    (notebook.path.parent / "go").touch()
    assert "| after" in edit.woken

    (notebook.path.parent / "go").unlink()
    (notebook.path.parent / "bad").unlink()
    project.config(SOON)
    edit = Edit(notebook, source)
    assert "still running" in (message := edit.answer.text) and "matches" not in message
    (notebook.path.parent / "bad").touch()
    notification = edit.woken
    assert (
        "cell 2" in notification
        and "is still running" in notification
        and "| loss is nan" in notification
        and "you get another notification" in notification
    )
    confirm_delivery(notebook, notification)
    waker = start_waker(notebook)
    (notebook.path.parent / "go").touch()
    notification = read_notification(waker)
    assert "ran ok" in notification and "| after" in notification
    confirm_delivery(notebook, notification)
    assert read_notification(start_waker(notebook)) == "" == say(notebook, "And?")


@pytest.mark.nightly
def test_written_notebook_moves_to_background_at_a_long_cell(
    project: Project,
) -> None:
    project.config(AFTER_OUTPUT)
    notebook = project.notebook("whole.ipynb")
    cells = [
        code("rows = [1]", "a"),
        code(WAITING_CELL, "b"),
        code("print(len(rows))", "c"),
    ]
    edit = Edit(notebook, payload=write_cells(notebook, cells))
    assert "Cell 2 (id b) is still running" in edit.answer.text
    (notebook.path.parent / "go").touch()
    notification = edit.woken
    assert (
        "3 of 3 new or changed code cells ran" in notification
        and "| after" in notification
        and "| 1" in notification
    )


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiled client")
def test_waiting_hook_uses_few_resources(project: Project, tmp_path: Path) -> None:
    """Also after its daemon was killed and a Python process started another one."""
    notebook = project.new("Train")
    make_env(tmp_path / "env")
    shutil.copy(compiled_client(), tmp_path / "env" / "bin" / "hook")
    figure = {
        "output_type": "display_data",
        "metadata": {},
        "data": {"image/png": "A" * 20_000_000},
    }
    raw = notebook.raw
    raw["cells"].append(code("1", "big") | {"outputs": [figure]})
    notebook.path.write_text(json.dumps(raw))
    edit = Edit(notebook, WAITING_CELL, tmp_path / "env" / "bin")
    assert "still running" in edit.answer.text
    for _ in range(2):
        process = psutil.Process(edit.waker.pid)
        assert process.memory_info().rss <= 3_000_000, process.memory_info()
        before = sum(process.cpu_times()[:2])
        time.sleep(3)
        assert round(sum(process.cpu_times()[:2]) - before, 4) <= 0.01
        project.kill_daemon()
        wait_until(
            lambda: (
                get_running(project) and psutil.Process(edit.waker.pid).name() == "hook"
            )
        )
    (notebook.path.parent / "go").touch()
    assert "ran ok" in edit.woken


@pytest.mark.nightly
def test_suspended_machine_loses_nothing(project: Project) -> None:
    """The suspension is longer than the timeouts of hook and daemon."""
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    status = project.json("status")
    pids = [status["daemon"]["pid"], status["kernel"]["pid"], edit.waker.pid]
    for stopped in (pids, pids[:1], pids[1:]):
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(16)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        time.sleep(1)
        assert edit.waker.poll() is None and get_running(project)
    (notebook.path.parent / "go").touch()


@pytest.mark.nightly
def test_user_sees_progress_periodically(project: Project) -> None:
    project.config(SOON + "heartbeat_seconds: 3\n")
    notebook = project.new("Train", "Test")
    line, status = (
        project.folder / ".stepper" / "now" / "line",
        project.folder / ".stepper" / "running",
    )
    line.unlink(missing_ok=True)
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    wait_until(lambda: status.exists() and line.exists())
    message, text = [line.read_text()], [status.read_text()]
    until = time.monotonic() + 30
    while len(message) < 3 and time.monotonic() < until:
        for path, texts in ((line, message), (status, text)):
            texts.extend([path.read_text()] * (path.read_text() != texts[-1]))
        time.sleep(0.05)
    (notebook.path.parent / "go").touch()
    assert len(message) == 3 and len(text) > len(message)
    lines = [json.loads(entry)["systemMessage"] for entry in message]
    at = [int(line.split(" for ")[1].split(" s")[0]) for line in lines]
    assert at[1] - at[0] >= 3 and at[2] - at[1] >= 3, lines
    expected = f'running step 1 of 2 "Train" for {at[-1]} s of at most 2 h: begun'
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {expected}", lines[-1]), lines
    assert "ran ok" in edit.woken


@pytest.mark.nightly
def test_late_waker_of_new_daemon_notifies_immediately(
    project: Project,
) -> None:
    """The cell finished before the hook connected, so nothing was reported."""
    notebook = project.new("Train")
    edit = Edit(notebook, WAITING_CELL)
    assert "still running" in edit.answer.text
    edit.waker.send_signal(signal.SIGSTOP)
    project.kill_daemon()
    (notebook.path.parent / "go").touch()
    wait_until(lambda: "finished in the meantime" in project.json("status")["unheard"])
    edit.waker.send_signal(signal.SIGCONT)
    edit.waker.wait(timeout=10)  # it would wait 15 s for a call that never arrives
    assert "finished in the meantime" in edit.woken and say(notebook, "And?") == ""
