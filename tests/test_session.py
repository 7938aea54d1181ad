"""Session behavior with a fake kernel.

These are the tests of other modules that need no real kernel; with real daemons and
kernels they run at night. Client, command line, socket, notebook and journal are real.
The daemon and the kernel are threads of this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import subprocess
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.cli.main import main
from stepper.common.errors import KernelError, StepperError, UsageError
from stepper.daemon import command_handlers, hook_events, mcp_handlers
from stepper.daemon.claude_code_json import Event
from stepper.daemon.server import Daemon
from stepper.daemon.workspace import notebook_discovery
from stepper.daemon.workspace.owned_json_file import DaemonJsonFile
from stepper.hook import daemon_client, hook_process
from stepper.policy.commands import mcp_cell_commands
from stepper.policy.commands.command_schema import parse_arguments
from stepper.session import status_queries, undelivered_reports
from stepper.session.caller import Caller
from stepper.session.session import Session
from tests import test_recovery, test_report_texts, test_run_on_edit, test_workflow
from tests.conftest import Answer, Project, code, text_of
from tests.fake_kernel import FakeKernel, FakeKernelLauncher
from tests.test_command_table import DOCUMENTS
from tests.test_run_on_edit import wait_until

UNCLOSED = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
).mark  # files that cells open
# Tests of other modules that also run here, with fake kernels.
SHARED_TESTS = {
    test_workflow: (
        "test_skipped_step_can_be_reopened",
        "test_skipped_step_with_a_cell_runs_once_it_is_reopened",
        "test_user_skill_named_fix_is_not_suggested",
        "test_failed_cell_outside_a_finished_plan_is_reported",
        "test_three_failed_retries_stop_the_notebook",
        "test_attempts_survive_deletion_write_daemon_and_session",
        "test_fix_grants_new_retries_and_lists_attempts",
        "test_skip_marks_step_and_cell_and_names_the_next_step",
        "test_continue_ends_a_stop_and_names_the_next_step",
        "test_answer_is_passed_to_the_agent_and_journaled",
        "test_failed_cell_blocks_later_cells",
        "test_failed_cell_stops_the_rest_of_the_batch",
        "test_directives_assign_a_cell_to_a_step_or_none",
        "test_replacing_a_done_cell_resets_attempts_and_is_out_of_order",
        "test_attempts_without_a_plan_are_counted_by_cell_and_position",
        "test_number_of_code_cells_is_limited",
        "test_transient_error_is_retried",
        "test_persistent_transient_error_stops_the_notebook",
        "test_agent_command_that_ends_a_stop_asks_the_user",
        "test_end_of_turn_continues_the_agent_once",
        "test_session_start_reports_the_notebook_in_progress",
        "test_sessions_do_not_control_each_others_notebook",
        "test_context_for_other_agents",
        "test_plan_from_yaml_with_a_validation_step",
        "test_pending_steps_of_the_plan_can_be_changed",
        "test_run_honours_tags_and_stops",
        "test_rerun_helper_cell_is_assigned_to_no_step",
        "test_skip_does_not_confuse_cell_ids_with_step_numbers",
        "test_cells_of_an_oversized_notebook_can_be_replaced",
        "test_false_criterion_leaves_the_step_open_until_confirmed",
    ),
    test_run_on_edit: (
        "test_variables_persist_and_replaced_cell_reruns",
        "test_markdown_and_delete_run_and_report_nothing",
        "test_edits_of_one_message_keep_the_mtime_until_the_batch_ends",
        "test_batch_that_ends_with_a_read_keeps_the_mtime",
        "test_batch_of_another_session_keeps_the_mtime",
        "test_same_call_never_runs_twice",
        "test_write_runs_new_and_changed_cells_and_stops_at_the_first_failure",
        "test_nbformat_4_4_without_cell_ids",
        "test_other_language_is_reported_and_not_run",
        "test_edit_during_a_run_is_kept",
        "test_cell_changed_while_it_ran_gets_no_foreign_outputs",
        "test_file_mode_is_kept_and_no_temporary_file_remains",
        "test_context_omits_a_dead_kernel",
        "test_invalid_metadata_is_tolerated",
        "test_tag_given_as_string_is_a_tag",
        "test_unwritable_journal_is_reported",
        "test_escapes_and_control_characters_never_reach_a_report",
    ),
    test_report_texts: (
        "test_file_name_cannot_forge_stepper_lines",
        "test_restarted_daemon_knows_the_names",
        "test_eval_that_changes_state_allows_the_rerun",
        "test_refused_cell_keeps_its_outputs",
        "test_return_to_an_earlier_source_is_reported",
        "test_trivial_success_report_has_at_most_sixty_words",
        "test_written_notebook_is_checked_cell_by_cell",
        "test_another_cell_in_between_allows_the_rerun",
        "test_eval_reports_the_result_if_the_notebook_is_unreadable",
        "test_fix_allows_the_rerun",
        "test_cell_runs_ok_after_a_preflight_error",
        "test_output_command_shows_truncated_output",
        "test_preflight_can_be_turned_off",
        "test_progress_bars_are_collapsed",
        "test_running_line_is_reported_if_the_interrupt_has_no_effect",
        "test_same_source_after_same_error_is_not_rerun",
        "test_changed_file_allows_the_rerun",
    ),
    test_recovery: ("test_restore_skips_changed_cells",),
}


class InProcessDaemon(Daemon):
    """The daemon as a thread, with fake kernels; `live_kernels` outlive it."""

    def __init__(self, paths: Any, live_kernels: dict[str, FakeKernel]) -> None:
        super().__init__(paths)
        self.live_kernels = live_kernels
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.tasks = [asyncio.run_coroutine_threadsafe(self._listen(), self.loop)]
        self.tasks[0].result()
        self.tasks.append(
            asyncio.run_coroutine_threadsafe(self._maintain_sessions(), self.loop)
        )

    def _open_session(self, name: str, path: str) -> Session:
        session = super()._open_session(name, path)
        session.kernel_manager.launcher = FakeKernelLauncher(self.live_kernels, name)
        return session

    def _open_replay(self, *values: Any) -> Session:
        session = super()._open_replay(*values)
        session.kernel_manager.launcher = FakeKernelLauncher(
            self.live_kernels, values[2]
        )
        return session

    async def _listen(self) -> None:
        self.paths.create_runtime_folder()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.paths.socket)
        self.server = await asyncio.start_unix_server(
            self._handle_client, self.paths.socket
        )

    async def _leave(self) -> None:
        self.server.close()
        doing = asyncio.all_tasks() - {asyncio.current_task()}
        for task in doing:
            task.cancel()
        await asyncio.gather(*doing, return_exceptions=True)

    def kill(self) -> None:
        """End at once, whatever it does; the kernels stay."""
        asyncio.run_coroutine_threadsafe(self._leave(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()
        for kernel in self.live_kernels.values():
            kernel.detach()


class Quick(Project):
    """A project whose daemon, kernels and CLI are in this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.live_kernels: dict[str, FakeKernel] = {}
        self.daemon = InProcessDaemon(self.paths, self.live_kernels)

    def kill_daemon(self) -> None:
        self.daemon.kill()
        self.daemon = InProcessDaemon(self.paths, self.live_kernels)

    def stepper(
        self, *arguments: str, check: int | None = 0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        out, err, code = io.StringIO(), io.StringIO(), 0
        with (
            change_directory(cwd or self.folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main(list(arguments), prog_name="stepper")
            except SystemExit as end:
                code = int(end.code or 0)
        assert check is None or code == check, out.getvalue() + err.getvalue()
        return subprocess.CompletedProcess(
            arguments, code, out.getvalue(), err.getvalue()
        )

    def hook(
        self, event: str, stdin: bytes | dict[str, Any], timeout: float = 120
    ) -> Answer:
        data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
        if event in hook_process.ONLY_IN_PROGRESS and not os.path.exists(
            self.paths.active_marker
        ):
            return Answer(b"")
        verb, answer = b"hook " + event.encode(), None
        while answer is None:  # no daemon listens while one replaces the other
            try:
                answer = daemon_client.send_request(
                    self.paths, verb, data, launch=False
                )
            except daemon_client.DaemonExitedError:
                verb = b"hook " + event.encode() + b" again"
        return Answer(answer)

    def kernel(self) -> FakeKernel:
        """The one kernel there is."""
        (kernel,) = self.live_kernels.values()
        return kernel


@contextlib.contextmanager
def change_directory(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Quick]:
    new_project = Quick(tmp_path / "repo")
    monkeypatch.chdir(new_project.folder / "notebooks")  # the folder in which cells run
    try:
        yield new_project
    finally:
        new_project.daemon.kill()
        shutil.rmtree(new_project.paths.runtime, ignore_errors=True)


@pytest.fixture
def fresh_project(project: Quick) -> Quick:
    return project


def share_test(test: Callable[..., None]) -> Callable[..., None]:
    """Return another module's test, to run with this module's project by day."""
    shared_test = types.FunctionType(
        test.__code__,
        test.__globals__,
        test.__name__,
        test.__defaults__,
        test.__closure__,
    )
    shared_test.__dict__.update(test.__dict__)
    marks = [
        mark
        for mark in getattr(test, "pytestmark", [])
        if mark.name not in ("nightly", "nightly_after")
    ]
    shared_test.pytestmark = [*marks, UNCLOSED]  # type: ignore[attr-defined]
    return shared_test


globals().update(
    {
        name: share_test(getattr(module, name))
        for module, names in SHARED_TESTS.items()
        for name in names
    }
)


def status(project: Quick) -> str:
    return project.json("status")["state"]


def test_cell_that_kills_its_kernel_stops_and_restore_skips_it(
    project: Quick,
) -> None:
    notebook = project.new("Load", "Transform", "Break", "Plot")
    notebook.insert("x = 5")
    notebook.insert("y = x * 2")
    cell_id, answer = notebook.insert("die('SIGSEGV')")
    assert "Error Type: KernelDied" in answer.stop
    died = "kernel died (SIGSEGV): all variables are lost; they came from steps 1, 2; `stepper restore` re-creates"
    assert f"Error Message: {died}" in answer.stop
    assert notebook.before("insert", "1", cell_id).denied
    restored = project.json("restore")
    assert restored["ok"] and restored["ran"] == restored["cells"] == 2
    assert "| 10" in notebook.replace(cell_id, "print(y)").text


def test_daemon_response_has_the_declared_keys(project: Quick) -> None:
    project.new("Load :: x > 1", "Look", "Tell").insert("x = 1")
    arguments = {
        "new": {"problem": "another"},
        "eval": {"source": "x"},
        "output": {"cell": "1"},
        "confirm": {"words": "one will do"},
        "run": {"notebook": "notebooks/book.ipynb"},
        "use": {"notebook": "notebooks/book.ipynb"},
        "plan add": {"title": "Send"},
        "plan edit": {"id": 3, "title": "Tell more"},
        "plan move": {"id": 4, "after": 2},
        "plan remove": {"id": 3},
        "plan reopen": {"id": 2},
    }
    project.notebook("book.ipynb", [code("x = 1", "a")])
    # last: another notebook is current then
    for name in sorted(DOCUMENTS, key=lambda name: name in ("new", "run", "use")):
        body = daemon_client.send_request(
            project.paths,
            name.encode(),
            json.dumps(arguments.get(name, {})).encode(),
            launch=False,
        )
        data = json.loads(body)
        assert (
            " ".join(data[0] if isinstance(data, list) else data) == DOCUMENTS[name]
        ), name


def test_file_instead_of_notebooks_folder_is_reported(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.folder)
    (project.folder / "notebooks").rmdir()
    (project.folder / "notebooks").write_text("")
    assert "notebooks can't be created" in project.stepper("new", "p", check=2).stderr


def test_lost_state_is_reported_first_with_the_next_run(project: Quick) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    cell_id, answer = notebook.insert("exit()")
    assert "ended by exit() or quit()" in answer.stop
    project.stepper("continue")
    answer = notebook.replace(cell_id, "print('x' in globals())")
    assert "state lost" in answer.text and "| False" in answer.text


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("mend", ["continue", "skip", "fix", "restart"])
def test_each_user_command_ends_the_stop_after_idle_death(
    project: Quick, mend: str
) -> None:
    notebook = project.new("Load", "Plot")
    cell_id, _ = notebook.insert("x = 5")
    project.kernel().ends("SIGKILL")
    wait_until(lambda: status(project) == "stopped")
    denied = notebook.before("insert", "print(x)", cell_id).denied
    assert "KernelDied" in denied and "SIGKILL" in denied and "step 1" in denied
    project.stepper(mend)
    assert status(project) == "ready"
    assert [step["status"] for step in project.json("status")["steps"]] == [
        "done",
        "pending",
    ]
    assert "| False" in notebook.insert("print('x' in globals())")[1].text


def test_kernel_without_state_causes_no_stop(project: Quick) -> None:
    notebook = project.new("Load")
    cell_id, _ = notebook.insert("1 / 0")
    project.kernel().ends("SIGKILL")
    assert "ran ok" in notebook.replace(cell_id, "x = 1").text


def test_timeout_interrupts_and_keeps_the_state(project: Quick) -> None:
    notebook = project.new("Load")
    notebook.insert("# stepper: scratch\nx = 1")
    cell_id, answer = notebook.insert(
        "# stepper: timeout=1\nimport time\nwhile True:\n    time.sleep(0.01)"
    )
    assert "Timeout" in answer.text.splitlines()[0]
    assert "| 1" in notebook.replace(cell_id, "print(x)").text


def test_running_cell_survives_its_daemon_and_hook_gets_the_report(
    project: Quick,
) -> None:
    notebook = project.new("Load", "Plot")
    answers = []
    source = test_run_on_edit.make_waiting_cell(notebook)
    waits = threading.Thread(target=lambda: answers.append(notebook.insert(source)))
    waits.start()
    wait_until(lambda: project.live_kernels and project.kernel().is_busy)
    project.kill_daemon()
    test_run_on_edit.release_cell(notebook)
    waits.join()
    ((cell_id, answer),) = answers
    assert (
        "ran ok" in answer.text
        and "| over" in answer.text
        and "continued after the daemon exited" in answer.text
    )
    assert (
        text_of(notebook.cell(cell_id)) == "begun\nover\n"
        and len(project.json("history")) == 1
    )


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("comes_back", [True, False])
def test_run_of_unreachable_kernel_is_reported_after_reconnecting(
    project: Quick, comes_back: bool
) -> None:
    notebook = project.new("Load", "Plot")
    answers: list[Answer] = []
    source = test_run_on_edit.make_waiting_cell(notebook)
    waits = threading.Thread(target=lambda: answers.append(notebook.insert(source)[1]))
    waits.start()
    wait_until(lambda: project.live_kernels and project.kernel().is_busy)
    project.kernel().unreachable_reason = "the connection is down"
    project.kill_daemon()
    test_run_on_edit.release_cell(notebook)
    wait_until(project.kernel().current_run.over.is_set)
    time.sleep(0.5)
    assert not answers and "NOT run" not in project.stepper("report", check=None).stdout
    if comes_back:
        project.kernel().unreachable_reason = ""
    else:
        project.stepper("restart")  # does not wait for the connection
    waits.join()
    report = answers[0].text + answers[0].stop
    assert (
        ("ran ok" in report and "| over" in report)
        if comes_back
        else "KernelDied" in report
    ), report
    assert [run["outcome"] for run in project.json("history")] == [
        "ok" if comes_back else "kernel_died"
    ]


def test_late_outputs_are_written_to_the_cell(project: Quick) -> None:
    notebook = project.new("Load")
    cell_id, _ = notebook.insert("print('now')\nlate('later')")
    wait_until(lambda: text_of(notebook.cell(cell_id)) == "now\nlater")


def test_kernel_of_an_unreadable_notebook_can_be_shut_down(project: Quick) -> None:
    notebook = project.new("Load")
    cell_id, _ = notebook.insert("late('later')")
    wait_until(lambda: text_of(notebook.cell(cell_id)) == "later")
    # stepper checks for some seconds whether the late output is still in the file.
    notebook.path.write_text("{")
    project.stepper("shutdown", notebook.path.name)


def test_write_with_unchanged_source_runs_the_failed_cell(project: Project) -> None:
    notebook = project.new("One")
    cell, _ = notebook.insert("d = {'a': 1}\nd['b']")
    raw = notebook.raw
    for entry in raw["cells"]:
        if entry["id"] == cell:
            entry.update(id="fresh-id", outputs=[])
    assert "FAILED" in notebook.write(raw["cells"], **raw["metadata"]).text
    assert len(project.json("history")) == 2


def test_restore_keeps_the_stop_after_failed_attempts(
    project: Quick,
) -> None:
    notebook = project.new("Load", "Break")
    notebook.insert("x = 5")
    notebook.insert("raise RuntimeError('STOP: which column?')")
    assert status(project) == "stopped"
    restored = project.json("restore")
    assert restored["ran"] == 1
    assert "still stopped" in restored["report"] and "/continue" in restored["report"]
    assert status(project) == "stopped"


def test_runs_from_a_terminal_are_not_counted_as_attempts(project: Quick) -> None:
    notebook = project.notebook("loose.ipynb", [code("x = [0]\nx[5]", "aaaa")])
    for _ in range(6):
        assert "IndexError" in project.stepper("run", "loose", "--all", check=1).stdout
    assert project.json("status", "loose")["state"] == "failing"
    raw = notebook.raw
    raw["cells"] = [code("raise SystemExit(0)", "cccc")]
    notebook.path.write_text(json.dumps(raw))
    # This error stops a notebook at once, but only if an agent runs the cell.
    for _ in range(2):
        assert project.json("run", "loose", "--all", check=1)["stop"] == ""
    assert project.json("status", "loose")["state"] == "failing"
    raw["cells"] = [code("print('mended')", "bbbb")]
    notebook.path.write_text(json.dumps(raw))
    response = project.json("run", "loose", "--all")
    assert (response["ok"], response["ran"], response["stop"]) == (True, 1, "")


def test_terminal_run_works_during_a_stop_and_keeps_the_stop(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new("Load", "Break")
    notebook.insert("x = 5")
    notebook.insert("raise RuntimeError('STOP: which column?')")
    for item in ("--all", "--stale", None):
        output = project.stepper("run", *filter(None, [item]), check=None).stdout
        assert "does not count as an attempt" in output and "/continue" in output
    assert "which column?" in project.json("run", "--all", check=1)["stop"]
    assert status(project) == "stopped"
    assert "stopped" in notebook.insert("y = 1")[1].line
    for variable in ("STEPPER_SESSION", "CLAUDECODE"):  # in the shell of an agent
        with monkeypatch.context() as patched:
            patched.setenv(variable, "1")
            assert "nothing ran" in project.stepper("run", "--all", check=1).stderr


def test_refusal_after_idle_death_starts_with_instructions(project: Quick) -> None:
    notebook = project.new("Load", "Plot")
    cell_id, _ = notebook.insert("x = 5")
    project.kernel().ends("SIGKILL")
    wait_until(lambda: status(project) == "stopped")
    denied = notebook.before("insert", "print(x)", cell_id).denied
    assert (
        denied.index("stepper restore")
        < denied.index("/continue")
        < denied.index("KernelDied")
    )
    line = notebook.insert("print(x)")[1].line
    assert "stepper restore" in line and "/continue" in line


def test_terminal_message_reaches_the_agent_once(project: Quick) -> None:
    notebook = project.new("Load", "Plot")
    cell_id, _ = notebook.insert("raise RuntimeError('STOP: which column?')")
    project.stepper("continue", "the second one")
    text = notebook.replace(cell_id, "x = 1").text
    assert 'The user\'s answer to "which column?": the second one' in text
    assert "in a terminal, which resumed the stopped notebook" in text
    assert "the second one" not in notebook.insert("y = 1")[1].text


def test_plain_answer_resumes_the_notebook_and_the_user_is_informed(
    project: Quick,
) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("raise RuntimeError('STOP: may I use price?')")
    payload = notebook.payload("UserPromptSubmit", "", {}, prompt="yes, use it")
    answer = project.hook("UserPromptSubmit", payload)
    assert 'The user\'s answer to "may I use price?": yes, use it' in answer.text
    assert answer.line.startswith(
        "stepper: understood your message as /continue: The notebook is resumed"
    )
    assert status(project) == "ready"


def test_typed_command_is_confirmed_to_the_user_once(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("raise RuntimeError('STOP: which column?')")
    # as the client gives it to a skill's command
    monkeypatch.setenv("STEPPER_SESSION", "session-1")
    project.stepper("fix", "take price")
    batch = notebook.payload("PostToolBatch", "", {}, tool_calls=[])
    line = project.hook("PostToolBatch", batch).line
    name = f"notebooks/{notebook.path.name}"
    assert line == f'stepper fix: 3 new retries for step 1 of 2 "Load" in {name}.'
    assert project.hook("PostToolBatch", batch).line == ""
    project.stepper("skip", "no data")
    prompt = notebook.payload("UserPromptSubmit", "", {}, prompt="/skip no data")
    assert (
        '"Load" in' in (line := project.hook("UserPromptSubmit", prompt).line)
        and "is skipped (no data)" in line
    )
    project.stepper("continue")
    end = notebook.payload("Stop", "", {}, last_assistant_message="Shall I go on?")
    assert (
        project.hook("Stop", end).line
        == f"stepper continue: The notebook was not stopped. Continue. ({name})"
    )
    assert project.hook("Stop", end).line == ""


def test_plain_text_command_is_confirmed_to_the_user(project: Quick) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("raise RuntimeError('STOP: which column?')")
    prompt = notebook.payload(
        "UserPromptSubmit", "", {}, prompt="skip cell because we lack data"
    )
    line = project.hook("UserPromptSubmit", prompt).line
    assert line.startswith(
        "stepper: understood your message as /skip: "
    ) and "is skipped (we lack data)" in line.replace("because ", "")
    prompt = notebook.payload("UserPromptSubmit", "", {}, prompt="stop the cell")
    line = project.hook("UserPromptSubmit", prompt).line
    assert line.startswith(
        "stepper: understood your message as `stop the cell`: no cell of "
    ) and line.endswith(" is running.")


def test_status_commands_name_the_notebook_if_there_are_several(
    project: Quick,
) -> None:
    names = []
    for problem in ("first problem", "second problem"):
        notebook = project.new("Load", problem=problem)
        notebook.insert("raise RuntimeError('STOP: which column?')")
        names.append(f"notebooks/{notebook.path.name}")
    for name in names:
        text = project.json("status", name)["stop"]["text"]
        assert (
            f"stepper fix --notebook {name} [HINT]  " in text
            and f"stepper skip --notebook {name} [REASON]" in text
        )
    project.stepper("fix", "--notebook", names[0])  # as printed
    states = [project.json("status", name)["state"] for name in names]
    assert states[0] != "stopped" and states[1] == "stopped"


def test_kernel_that_cannot_be_reached_hides_no_other_notebook(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, deleted, healthy = (project.new(name) for name in ("A", "B", "C"))

    async def fail() -> None:
        raise KernelError("the backend does not respond")

    for notebook in (broken, deleted):
        session = project.daemon.workspace.sessions[notebook.name]
        monkeypatch.setattr(session.kernel_manager, "find_or_attach", fail)
    deleted.path.unlink()
    rows = {row["notebook"]: row for row in project.json("list")}
    assert rows.keys() == {broken.name, deleted.name, healthy.name}
    for notebook in (broken, deleted):
        kernel = rows[notebook.name]["kernel"]
        assert kernel["state"] == "none"
        assert kernel["trouble"] == "the backend does not respond"
    assert rows[broken.name]["state"] != "deleted"
    assert rows[deleted.name]["state"] == "deleted"
    assert not rows[healthy.name]["kernel"]["trouble"]
    lines = project.stepper("list").stdout.splitlines()
    for notebook, state in ((broken, "unknown"), (healthy, "none")):
        (line,) = [line for line in lines if notebook.name in line]
        assert state in line.split()


def test_running_cells_are_unlisted_even_if_a_file_cannot_be_written(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = project.daemon.running_cell_files
    files.remove()
    monkeypatch.setattr(status_queries, "format_running", lambda session: "running")
    monkeypatch.setattr(files, "_needs_notice", lambda sessions: True)
    project.new("A")
    notice = Path(project.paths.notice)
    notice.mkdir()  # in the place of the file
    files.update()
    assert Path(project.paths.running).exists() and files.has_lines
    monkeypatch.undo()
    notice.rmdir()
    files.update()
    assert not Path(project.paths.running).exists()


def test_marker_is_removed_after_the_undelivered_reports(project: Quick) -> None:
    notebook = project.new("A")
    workspace = project.daemon.workspace
    session = workspace.sessions[notebook.name]
    delivered: list[str] = []

    async def deliver(text: str) -> bool:
        delivered.append(text)
        return True

    async def end_turn() -> None:
        undelivered_reports.add_undelivered(session, "cell 1 ran", "")
        workspace.update_markers()
        assert os.path.exists(project.paths.background_marker)
        await hook_events.wait_for_background_runs(
            workspace, Event({"hook_event_name": "Stop"}), Caller({}, deliver=deliver)
        )

    asyncio.run_coroutine_threadsafe(end_turn(), project.daemon.loop).result()
    assert "cell 1 ran" in delivered[0]
    assert not os.path.exists(project.paths.background_marker)


def test_report_that_is_added_during_a_delivery_remains_undelivered(
    project: Quick,
) -> None:
    notebook = project.new("A")
    workspace = project.daemon.workspace
    session = workspace.sessions[notebook.name]

    async def deliver(text: str) -> bool:
        undelivered_reports.add_undelivered(session, "cell 2 ran", "")
        return True

    async def end_turn() -> None:
        undelivered_reports.add_undelivered(session, "cell 1 ran", "")
        await hook_events.wait_for_background_runs(
            workspace, Event({"hook_event_name": "Stop"}), Caller({}, deliver=deliver)
        )

    asyncio.run_coroutine_threadsafe(end_turn(), project.daemon.loop).result()
    (remaining,) = session.state.undelivered
    assert "cell 2 ran" in remaining.text


def test_incomplete_list_suggests_the_option_all_only_without_it(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notebook_discovery, "MAX_FOLDERS", 0)
    monkeypatch.setattr(command_handlers, "SEARCH_SECONDS", 0.0)
    incomplete = "Not all folders of this project were searched."
    listed = project.stepper("list")
    assert f"{incomplete} To list every notebook" in listed.stdout + listed.stderr
    listed = project.stepper("list", "--all")
    assert incomplete in listed.stdout + listed.stderr
    assert "To list every notebook" not in listed.stdout + listed.stderr


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 5000])
def test_impossible_notebook_name_is_wrong_usage(project: Quick, name: str) -> None:
    workspace = project.daemon.workspace
    with pytest.raises(UsageError, match="is not a valid path"):
        workspace.find_session(name, workspace.paths.project)


def test_deeply_nested_state_file_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("[" * 100_000)
    path.chmod(0o600)
    assert DaemonJsonFile(str(path)).read() == {}


@pytest.mark.parametrize("accepted", [False, True])
def test_failed_cell_command_selects_the_notebook_if_a_cell_may_have_run(
    project: Quick, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    first = project.new("A")
    second = project.new("B")
    workspace = project.daemon.workspace
    request: Any = types.SimpleNamespace(workspace=workspace, owner="")

    async def fail(*_: object) -> None:
        error = StepperError("the kernel can't be reached")
        error.accepted = accepted
        raise error

    monkeypatch.setattr(mcp_handlers, "_dispatch", fail)
    command = mcp_handlers.handle_cell_command(
        request,
        workspace.sessions[first.name],
        parse_arguments(mcp_cell_commands.CellAdd, {"cells": [{"source": "x"}]}),
    )
    with pytest.raises(StepperError):
        asyncio.run(command)
    assert workspace.currents.get() == (first.name if accepted else second.name)
