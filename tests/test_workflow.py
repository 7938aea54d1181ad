"""Plan, attempts, stops, the gate and the five commands, through the hook and the CLI."""

from __future__ import annotations

import http.server
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stepper.messages import stop_suggestion
from tests.conftest import Notebook, Project, code, reuse_project

# These cells fail during the run, because only executed cells count as attempts.
RUN_IT_ALL = "preflight: false"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def step(project: Project, number: int) -> dict:
    return next(
        step for step in project.json("status")["steps"] if step["id"] == number
    )


def bash(notebook: Notebook, command: str) -> dict:
    payload = notebook.payload("PreToolUse", "Bash", {"command": command})
    return notebook.project.hook("PreToolUse", payload).data.get(
        "hookSpecificOutput", {}
    )


def say(notebook: Notebook, prompt: str) -> str:
    payload = {**notebook.payload("UserPromptSubmit", "", {}), "prompt": prompt}
    return notebook.project.hook("UserPromptSubmit", payload).text


def end_turn(notebook: Notebook, message: str = "Done.", mode: str = "default") -> dict:
    payload = notebook.payload(
        "Stop", "", {}, stop_hook_active=False, last_assistant_message=message
    )
    return notebook.project.hook("Stop", {**payload, "permission_mode": mode}).data


def start_session(notebook: Notebook, source: str = "startup") -> str:
    payload = {**notebook.payload("SessionStart", "", {}), "source": source}
    return notebook.project.hook("SessionStart", payload).text


def test_plan_runs_to_completion(project: Project) -> None:
    notebook = project.new("Load :: 3 rows", "Plot")
    assert project.json("status")["state"] == "ready"
    _, response = notebook.insert("rows = [1, 2, 3]")
    assert "criterion: 3 rows" in response.text
    assert "complete" not in response.text
    _, response = notebook.insert(
        "from IPython.display import Image, display\nimport base64\npng = base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')\ndisplay(Image(png))"
    )
    assert (
        "The notebook is complete: 2 steps done, 0 skipped; 2 runs, 0 retries"
        in response.text
    )
    assert "in total; 1 figure." in response.text
    assert str(notebook.path.name) in response.text.splitlines()[-1]
    status = project.json("status")
    assert status["state"] == "complete"
    assert [s["status"] for s in status["steps"]] == ["done", "done"]


@pytest.mark.nightly
def test_failed_cell_outside_a_finished_plan_is_reported(project: Project) -> None:
    notebook = project.new("Load")
    _, response = notebook.insert("x = 1")
    assert "The notebook is complete" in response.text
    cell_id, response = notebook.insert("x / 0")
    assert f"Outside the plan: cell 2 (id {cell_id}) failed." in response.text, (
        response.text
    )
    status = project.json("status")
    assert status["state"] == "failing"
    assert [(cell["cell_id"], cell["status"]) for cell in status["off_plan"]] == [
        (cell_id, "failed")
    ]
    output = project.stepper("status").stdout
    assert (
        "failing, 1 of 1 steps done" in output and "outside the plan, failed" in output
    ), output
    context = end_turn(notebook, "All done.")["hookSpecificOutput"]["additionalContext"]
    assert (
        "the notebook is not complete" in context
        and f"(id {cell_id}) failed" in context
    )
    response = notebook.replace(cell_id, "x / 2")
    assert "The notebook is complete" in response.text, response.text
    assert project.json("status")["state"] == "complete" and not end_turn(
        notebook, "All done."
    )


@pytest.mark.nightly
def test_skipped_step_can_be_reopened(project: Project) -> None:
    notebook = project.new("Load", "Check")
    notebook.insert("x = 1")
    for arguments in (("plan", "reopen", "2"), ("continue", "step 2")):
        project.stepper("skip", "not needed")
        assert (
            "complete, 2 steps: 1 done, 1 skipped" in project.stepper("status").stdout
        )
        refused = project.stepper("plan", "edit", "2", "Check it", check=None)
        assert (
            "step 2 is skipped: reopen it first (stepper plan reopen" in refused.stderr
        )
        project.stepper(*arguments)
        assert step(project, 2)["status"] == "pending"
    refused = project.stepper("plan", "reopen", "1", check=None)
    assert refused.returncode and "step 1 is not skipped" in refused.stderr
    _, response = notebook.insert("assert x == 1")
    assert "The notebook is complete: 2 steps done, 0 skipped" in response.text


@pytest.mark.nightly
def test_skipped_step_with_a_cell_runs_once_it_is_reopened(project: Project) -> None:
    notebook = project.new("Load")
    cell_id, _ = notebook.insert("1 / 0")
    project.stepper("skip")
    assert "skip-execution" in notebook.path.read_text()
    project.stepper("plan", "reopen", "1")
    assert "skip-execution" not in notebook.path.read_text()
    response = notebook.replace(cell_id, "x = 1")
    assert "The notebook is complete: 1 step done, 0 skipped" in response.text


@pytest.mark.nightly
def test_user_skill_named_fix_is_not_suggested(
    fresh_project: Project,
) -> None:
    """If the user has another skill `fix`, the stop names an alternative."""
    skill = fresh_project.folder / ".claude/skills/fix/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: fix\ndescription: mine\n---\nMine.\n")
    notebook = fresh_project.new("Load")
    cell, _ = notebook.insert("1 / 0")
    for number in range(3):
        response = notebook.replace(cell, f"1 / 0 + {number}")
    note = "(/fix is another skill in this project. Instead, run in a terminal: "
    assert "/fix" in response.stop and response.stop.count(note) == 1
    assert "stepper fix)" in response.stop
    assert "(/continue is" not in response.stop and "(/skip is" not in response.stop
    skill.write_text(
        skill.read_text() + "\n<!-- notebook-stepper 0123456789abcdef -->\n"
    )
    second_report = notebook.insert("2")[1].text
    assert "NOT run" in second_report and note not in second_report


def test_three_failed_retries_stop_the_notebook(project: Project) -> None:
    project.config(RUN_IT_ALL)
    notebook = project.new("Load", "Plot")
    cell_id, response = notebook.insert("read_in(0)")
    assert "0 of 3 retries used, 3 left" in response.text
    for attempt in (1, 2):
        response = notebook.replace(cell_id, f"read_in({attempt})")
        assert f"{attempt} of 3 retries used, {3 - attempt} left" in response.text
        assert not response.stop
    response = notebook.replace(cell_id, "read_in(3)\n")
    assert response.data == {"continue": False, "stopReason": response.stop}
    lines = response.stop.split("\n")
    assert lines[:5] == [
        "❌ Execution stopped at cell 1",
        "TODO: Load",
        "Error Type: NameError",
        "Error Message: name 'read_in' is not defined",
        "Attempted Fixes: 3",
    ]
    fact = project.json("report")["fault"]["suggestion"].rstrip(".")
    commands = notebook.commands
    expected = stop_suggestion.fill_commands(stop_suggestion.GIVE_HINT, commands)
    if fact:
        resume = stop_suggestion.fill_commands(stop_suggestion.RESUME, commands)
        expected = f"{fact}; to resume: {resume}"
    assert lines[5:] == [f"Suggestion: {expected}"]
    assert project.json("status")["state"] == "stopped"
    # the gate blocks code cells only, not markdown or deletions
    for mode, cell in (("insert", cell_id), ("replace", cell_id)):
        denied = notebook.before(mode, "1", cell).denied
        assert "stopped" in denied and "/continue" in denied and "NameError" in denied
    assert notebook.before("insert", "# why", cell_id, kind="markdown").denied == ""
    assert notebook.before("delete", "", cell_id).stdout == b""
    _, response = notebook.insert("print('no')")  # the client did not ask
    assert "NOT run" in response.text and "stopped" in response.text
    assert len(project.json("history")) == 4
    assert "NameError" in project.stepper("report").stdout
    assert project.json("report", "2")["outcome"] == "error"


@pytest.mark.nightly
def test_stop_includes_the_suggestion(project: Project) -> None:
    project.config("max_retries: 0")
    notebook = project.new("Load")
    _, response = notebook.insert("prices = {'unit_price': 3}\nprices['price']")
    assert (
        "Error Type: KeyError" in response.stop
        and "Attempted Fixes: 0" in response.stop
    )
    suggestion = response.stop.splitlines()[-1]
    assert suggestion.startswith("Suggestion: ") and "'unit_price'" in suggestion, (
        suggestion
    )
    resume = stop_suggestion.fill_commands(stop_suggestion.RESUME, notebook.commands)
    assert suggestion.endswith(f"; to resume: {resume}")
    assert "'unit_price'" in project.json("status")["stop"]["text"]


@pytest.mark.nightly
def test_attempts_survive_deletion_write_daemon_and_session(project: Project) -> None:
    project.config(RUN_IT_ALL)
    notebook = project.new("Load", "Plot")
    cell_id, _ = notebook.insert("a1")
    assert notebook.delete(cell_id).stdout == b""
    _, response = notebook.insert("a2")  # re-created: counts as the next attempt
    assert "1 of 3 retries used" in response.text
    project.kill_daemon()
    response = notebook.write([code("a3", "fresh")])
    assert "2 of 3 retries used" in response.text
    other_session = Notebook(project, notebook.path, session="another session")
    response = other_session.replace("fresh", "a4")
    assert "Attempted Fixes: 3" in response.stop
    # the Write removed the plan; it is restored
    assert [s["title"] for s in notebook.raw["metadata"]["stepper"]["steps"]] == [
        "Load",
        "Plot",
    ]


@pytest.mark.nightly
def test_fix_grants_new_retries_and_lists_attempts(project: Project) -> None:
    project.config(f"{RUN_IT_ALL}\nmax_retries: 1")
    notebook = project.new("Load", "Plot")
    cell_id, _ = notebook.insert("first_try")
    assert notebook.replace(cell_id, "second_try").stop
    output = project.stepper("fix").stdout
    assert 'step 1 of 2 "Load"' in output
    assert "NameError: name 'first_try' is not defined" in output
    assert "| second_try" in output
    assert cell_id in output
    assert step(project, 1)["attempts"] == 0
    assert notebook.before("replace", "x", cell_id).stdout == b""
    assert "done" in notebook.replace(cell_id, "x = 1").text
    assert step(project, 1)["status"] == "done"


@pytest.mark.nightly
def test_skip_marks_step_and_cell_and_names_the_next_step(project: Project) -> None:
    notebook = project.new("Load", "Plot")
    cell_id, response = notebook.insert("raise RuntimeError('STOP: which file?')")
    assert "Error Message: STOP: which file?" in response.stop
    assert "Attempted Fixes: 0" in response.stop
    output = project.stepper("skip", "no", "data", "yet").stdout
    assert (
        'step 1 of 2 "Load"' in output
        and "no data yet" in output
        and 'Next: step 2 of 2 "Plot"' in output
    )
    assert notebook.cell(cell_id)["metadata"]["tags"] == ["skip-execution"]
    assert step(project, 1)["status"] == "skipped"
    _, response = notebook.insert("1")
    assert 'Step 2 of 2 "Plot": done' in response.text
    assert "1 step done, 1 skipped" in response.text
    assert project.json("plan")["steps"][0]["status"] == "skipped"


@pytest.mark.nightly
def test_continue_ends_a_stop_and_names_the_next_step(project: Project) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("import math\nrows = [1, 2]\ndef area(r, scale=1):\n    return r")
    cell_id, response = notebook.insert("raise ValueError('please STOP here')")
    assert response.stop
    output = project.stepper("continue").stdout
    assert "The notebook is resumed" in output and "The user" not in output
    assert 'Next: step 2 of 2 "Plot"' in output
    assert (
        "math" in output
        and "area(r, scale=1)" in output
        and "rows: list of 2" in output
    )
    assert project.json("status")["state"] == "ready"
    assert "The notebook was not stopped" in project.stepper("continue").stdout
    assert "ran ok" in notebook.replace(cell_id, "1").text


@pytest.mark.nightly
def test_answer_is_passed_to_the_agent_and_journaled(project: Project) -> None:
    notebook = project.new("Load")
    cell_id, _ = notebook.insert("raise RuntimeError('STOP: `a` or \"b\"?')")
    output = project.stepper("continue", "take", "`b`;", "$(echo no) & 'go on'").stdout
    assert (
        'The user\'s answer to "`a` or "b"?": take `b`; $(echo no) & \'go on\'\n'
        in output
    )
    assert notebook.replace(cell_id, "raise MemoryError").stop
    fix = notebook.commands.slash("fix", "HINT")
    assert f"`{fix}`" in say(notebook, "buy more of it")
    output = project.stepper(
        "fix", "half", "of it", "--notebook", notebook.path.name
    ).stdout
    assert output.splitlines()[-1] == "The user's hint: half of it"
    notebook.replace(cell_id, "raise MemoryError")
    # a notebook's name alone is not an answer
    assert "resumed" in project.stepper("continue", notebook.path.name).stdout
    journal = project.folder / ".stepper/journal" / f"{notebook.path.stem}.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    resumed = [
        (line["event"], line.get("answer", line.get("hint")))
        for line in lines
        if line["event"] in ("continue", "fix")
    ]
    assert resumed == [
        ("continue", "take `b`; $(echo no) & 'go on'"),
        ("fix", "half of it"),
        ("continue", None),
    ]


@pytest.mark.nightly
def test_failed_cell_blocks_later_cells(project: Project) -> None:
    project.config(RUN_IT_ALL)
    notebook = project.new("Load", "Plot")
    first = notebook.raw["cells"][0]["id"]
    cell_id, _ = notebook.insert("broken")
    denied = notebook.before("insert", "1", cell_id).denied
    assert cell_id in denied and "not fixed" in denied
    assert notebook.before("insert", "1", first).stdout == b""  # above: a helper
    assert notebook.before("replace", "1", cell_id).stdout == b""
    _, response = notebook.insert("1")
    assert "NOT run" in response.text and cell_id in response.text
    _, response = notebook.insert("broken = 1", after=first)
    # a helper is in no step
    assert "ran ok" in response.text and "Step" not in response.text
    assert step(project, 1)["status"] == "failed"
    assert 'Step 1 of 2 "Load": done' in notebook.replace(cell_id, "broken\n").text
    assert step(project, 1)["attempts"] == 1


@pytest.mark.nightly
def test_failed_cell_stops_the_rest_of_the_batch(
    project: Project,
) -> None:
    notebook = project.new("Load", "Plot", "Save")
    cell_id, _ = notebook.insert("1/0")
    payload = notebook.edited("insert", "print('second')", cell_id)
    assert "NOT run" in project.hook("PostToolUse", payload).text
    assert len(project.json("history")) == 1


@pytest.mark.nightly
def test_directives_assign_a_cell_to_a_step_or_none(project: Project) -> None:
    notebook = project.new("One", "Two")
    _, response = notebook.insert("# stepper: step=2\n1")
    assert 'Step 2 of 2 "Two": done' in response.text
    _, response = notebook.insert("# stepper: scratch\n1")
    assert "Step" not in response.text
    _, response = notebook.insert("# stepper: timeot=3\n1")
    assert "`# stepper: timeot=3` is not a valid option" in response.text
    assert 'Step 1 of 2 "One": done' in response.text


@pytest.mark.nightly
def test_replacing_a_done_cell_resets_attempts_and_is_out_of_order(
    project: Project,
) -> None:
    project.config(RUN_IT_ALL)
    notebook = project.new("One", "Two")
    first, _ = notebook.insert("bad")
    notebook.replace(first, "x = 1")
    notebook.insert("y = 2")
    assert step(project, 1)["attempts"] == 1
    response = notebook.replace(first, "x = 2")
    assert "out of order" in response.text
    assert step(project, 1)["attempts"] == 0
    assert "0 of 3 retries used" in notebook.replace(first, "bad again").text


@pytest.mark.nightly
def test_attempts_without_a_plan_are_counted_by_cell_and_position(
    project: Project,
) -> None:
    project.config(RUN_IT_ALL)
    notebook = project.notebook("free.ipynb", [code("x = 1", "aaaa")])
    cell_id, response = notebook.insert("nope")
    assert not response.stop
    assert project.json("status")["notebook"] == "notebooks/free.ipynb"
    assert project.json("status")["state"] == "failing"
    notebook.replace(cell_id, "nope1")
    notebook.delete(cell_id)
    cell_id, response = notebook.insert("nope2")  # re-created at the same position
    assert not response.stop
    response = notebook.replace(cell_id, "nope3")
    assert "TODO: (no step)" in response.stop
    assert "Attempted Fixes: 3" in response.stop
    assert "❌ Execution stopped at cell 2" in response.stop


@pytest.mark.nightly
def test_number_of_code_cells_is_limited(project: Project) -> None:
    project.config("max_cells: 3")
    notebook = project.notebook("full.ipynb", [code("1", "aaaa"), code("2", "bbbb")])
    assert notebook.before("insert", "3", "bbbb").stdout == b""
    notebook.insert("3")
    assert "limit of 3" in notebook.before("insert", "4", "bbbb").denied
    _, response = notebook.insert("print('four')")
    assert "NOT run" in response.text
    content = json.dumps(
        {"cells": [code("1")] * 4, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    payload = notebook.payload(
        "PreToolUse", "Write", {"file_path": str(notebook.path), "content": content}
    )
    assert "limit of 3" in project.hook("PreToolUse", payload).denied
    new = str(notebook.path.parent / "new.ipynb")
    payload = notebook.payload(
        "PreToolUse", "Write", {"file_path": new, "content": content}
    )
    assert "limit of 3" in project.hook("PreToolUse", payload).denied


class Flaky(http.server.BaseHTTPRequestHandler):
    """Responds with 503 `failures` times, then with 200."""

    failures = 0

    def do_GET(self) -> None:
        failed, Flaky.failures = Flaky.failures > 0, Flaky.failures - 1
        self.send_response(503 if failed else 200)
        self.end_headers()
        self.wfile.write(b"fine")

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@contextmanager
def flaky(failures: int) -> Iterator[str]:
    Flaky.failures = failures
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.nightly
def test_transient_error_is_retried(project: Project) -> None:
    notebook = project.new("Fetch")
    with flaky(1) as url:
        _, response = notebook.insert(
            f"import urllib.request\nprint(urllib.request.urlopen({url!r}).read())"
        )
    assert "ran ok" in response.text.splitlines()[0]
    assert (
        "HTTPError" in response.text and "ran the cell again after 1 s" in response.text
    )
    assert [run["outcome"] for run in project.json("history")] == ["error", "ok"]
    assert step(project, 1) | {"cell_id": None} == {
        "id": 1,
        "title": "Fetch",
        "status": "done",
        "cell_id": None,
        "attempts": 0,
        "retries": 0,
    }


@pytest.mark.nightly
def test_persistent_transient_error_stops_the_notebook(project: Project) -> None:
    project.config("network_retries: 1")
    notebook = project.new("Fetch")
    with flaky(9) as url:
        _, response = notebook.insert(
            f"import urllib.request\nurllib.request.urlopen({url!r})"
        )
    assert "Error Type: HTTPError" in response.stop
    assert "Attempted Fixes: 1" in response.stop
    assert "network" in response.stop.splitlines()[-1]


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("source", "kind", "message"),
    [
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "KernelDied",
            "kernel died (SIGKILL): all variables are lost",
        ),
        pytest.param("exit()", "KernelDied", "exit()", marks=pytest.mark.nightly),
        pytest.param(
            "raise SystemExit(3)", "SystemExit", "3", marks=pytest.mark.nightly
        ),
        ("input('name? ')", "StdinNotImplementedError", "input"),
        pytest.param(
            "open('/proc/1/mem', 'rb').read(); raise PermissionError(13, 'no', 'f.csv')",
            "",
            "",
            marks=pytest.mark.nightly,
        ),
        ("raise MemoryError('too much')", "MemoryError", "too much"),
    ],
)
def test_unrecoverable_errors_stop_immediately(
    project: Project, source: str, kind: str, message: str
) -> None:
    project.config("preflight: false")  # or else the preflight check finds input()
    notebook = project.new("One")
    _, response = notebook.insert(source)
    assert response.stop.startswith(
        "❌ Execution stopped at cell 1\nTODO: One\nError Type: " + kind
    )
    assert message in response.stop
    assert "Attempted Fixes: 0" in response.stop
    if kind == "KernelDied":
        assert "all variables are lost" in response.stop
        project.stepper("continue")
        _, response = notebook.insert("1")
        assert "state lost" not in response.text  # the file did not exist


@pytest.mark.nightly
def test_kernel_start_failure_stops_the_notebook(project: Project) -> None:
    python = project.folder / "python"
    python.write_text("#!/bin/sh\necho 'libmissing.so: cannot open' >&2\nexit 127\n")
    python.chmod(0o755)
    project.config("python: python")
    project.stepper("trust", "--yes")
    _, response = project.new("Load").insert("1")
    assert (
        "Error Type: KernelStartFailed\nError Message: the cell was NOT run: the kernel died at start (exit code 127)"
        in response.stop
    )
    assert "libmissing.so" in response.stop
    assert project.json("history") == []


@pytest.mark.nightly
def test_lost_state_is_reported_first_with_the_next_run(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 1")
    _, response = notebook.insert("import os; os._exit(7)")
    assert "KernelDied" in response.stop and "exit code 7" in response.stop
    project.stepper("continue")
    cell = notebook.raw["cells"][-1]["id"]
    response = notebook.replace(cell, "print('x' in globals())")
    assert "state lost" in response.text and "| False" in response.text


@pytest.mark.nightly
def test_agent_command_that_ends_a_stop_asks_the_user(project: Project) -> None:
    notebook = project.new("One")
    for verb in ("continue", "fix", "skip", "restart", "restore", "trust"):
        for command in (
            f"stepper {verb}",
            f"cd . && stepper {verb} x",
            f".stepper/env/bin/stepper {verb}",
            f"sh -c 'stepper {verb}'",
        ):
            assert bash(notebook, command)["permissionDecision"] == "ask", command
    for command in (
        "stepper status",
        "stepper plan",
        "stepper run x",
        'stepper new "fix the data"',
        "ls stepper",
    ):
        assert bash(notebook, command) == {}, command


def test_plain_text_commands_and_near_misses(project: Project) -> None:
    for row in project.json("list"):
        if row["state"] == "stopped":  # by another test
            project.stepper("continue", row["notebook"])
    notebook = project.new("One", "Two")
    cell_id, report = notebook.insert(
        "raise RuntimeError('STOP: which of the two columns?')"
    )
    assert report.stop.splitlines()[5:] == [
        f"Suggestion: {stop_suggestion.fill_commands(stop_suggestion.ANSWER, notebook.commands)}",
        "",
        "The agent asks: which of the two columns?",
    ]
    command = notebook.commands.slash("continue", "ANSWER")
    for near in (
        "skip cell 3",
        "status",
        "the first one",
        "/data/a.csv is better",
        "how do I continue notebook work?",
    ):
        response = say(notebook, near)
        assert (
            f'{notebook.path.name} is stopped (you asked "which of the two columns?")'
            in response
        ), near
        assert (
            "does not resume the notebook" in response
            and f"Ask the user to type: `{command}`." in response
        )
    # the notebook's own command resumes it
    for prompt in (
        "/help",
        "/compact the rest",
        "/continue the first one",
    ):
        assert say(notebook, prompt) == "", prompt
    assert project.json("status")["state"] == "stopped"
    assert "stopped" in say(notebook, " Show Status, please \n")
    response = say(notebook, "Please FIX AND RETRY, the second one\nof the two")
    assert "new retries" in response
    assert (
        'The user\'s answer to "which of the two columns?": the second one of the two'
        in response
    )
    assert say(notebook, "the first one") == ""  # no stop is active any more
    assert (
        "The notebook was not stopped. Continue.\nThe user's hint: drop the rows"
        in say(notebook, "continue notebook, drop the rows")
    )
    assert "is skipped (because we lack data)" in say(
        notebook, "Skip cell because we lack data"
    )
    assert notebook.cell(cell_id)["metadata"]["tags"] == ["skip-execution"]
    assert "The problem: plot the sales" in say(notebook, "New notebook plot the sales")
    project.stepper("shutdown")
    assert "The problem: plot the sales" in say(notebook, "new notebook plot the sales")
    assert not os.path.exists(project.paths.socket)  # these never start a daemon
    assert say(notebook, "hello notebook") == ""


@pytest.mark.nightly
def test_end_of_turn_continues_the_agent_once(project: Project) -> None:
    notebook = project.new("One", "Two", "Three")
    say(notebook, "hello")
    end_turn(notebook)  # reports the external changes of other tests
    assert end_turn(notebook) == {}  # a greeting needs only a reply
    notebook.insert("1")
    assert end_turn(notebook, "Shall I drop the empty rows?") == {}
    assert end_turn(notebook, mode="plan") == {}
    response = end_turn(notebook)
    # the client shows a decision to block as a problem
    assert response.keys() == {"hookSpecificOutput"}
    assert 'step 2 of 3 "Two"' in response["hookSpecificOutput"]["additionalContext"]
    assert end_turn(notebook) == {}  # not twice without progress
    notebook.insert("2")
    assert end_turn(notebook)
    say(notebook, "what is this?")
    assert end_turn(notebook) == {}
    notebook.insert("raise RuntimeError('STOP')")
    assert end_turn(notebook) == {}
    other_session = Notebook(project, notebook.path, session="another")
    assert end_turn(other_session) == {}


@pytest.mark.nightly
def test_false_criterion_leaves_the_step_open_until_confirmed(
    project: Project,
) -> None:
    notebook = project.new(
        "Train :: score > 0.9", "Tell :: it reads well", "Count :: n == 3"
    )
    cell_id, response = notebook.insert("score = 0.5")
    assert response.text.splitlines()[0].endswith("s.") and "ran ok" in response.text
    assert (
        "Warning: the step's criterion `score > 0.9` is false" in response.text
        and "Next:" not in response.text
    )
    assert (
        'Step 1 of 3 "Train": not done. Replace its cell, or give a reason'
        in response.text
    )
    assert response.line.startswith(
        '? step 1 of 3 "Train" · ok, but `score > 0.9` is false'
    )
    assert (step(project, 1)["status"], project.json("status")["state"]) == (
        "doubted",
        "ready",
    )
    assert "? 1. Train  (its criterion is false)" in project.stepper("status").stdout
    assert (
        "is false: replace its cell"
        in end_turn(notebook)["hookSpecificOutput"]["additionalContext"]
    )
    _, response = notebook.insert("text = ''")  # the work can continue without it
    # prose is left to the agent
    assert (
        "done; criterion: it reads well." in response.text
        and "Doubt" not in response.text
    )
    assert 'Next: step 3 of 3 "Count".' in response.text
    assert 'step 1 of 3 "Train": done; criterion met: score > 0.9.' in notebook.replace(
        cell_id, "score = 0.95"
    ).text.replace("Step", "step")
    output = project.stepper("confirm", "never mind", check=2).stderr
    assert "there is nothing to confirm" in output
    notebook.replace(cell_id, "score = 0.6")
    assert step(project, 1)["status"] == "doubted"
    assert (
        "give a reason why the step is done"
        in project.stepper("confirm", check=2).stderr
    )
    output = project.stepper("confirm", "the data", "allow no more").stdout
    assert (
        'step 1 of 3 "Train"' in output
        and "is done (the data allow no more). Next: step 3 of 3" in output
    )
    assert "(confirmed: the data allow no more)" in project.stepper(
        "plan"
    ).stdout.replace("criterion: score > 0.9; ", "")
    assert project.json("plan")["steps"][0]["reason"] == "the data allow no more"
    # left to the agent
    assert bash(notebook, 'stepper confirm "the data allow no more"') == {}
    _, response = notebook.insert("m = 3")
    # no such name, so it is treated as prose
    assert "done; criterion: n == 3." in response.text and "Doubt" not in response.text
    assert "complete" in response.text
    assert project.json("run", str(notebook.path), "--all")["ok"]
    # confirmed steps stay confirmed
    assert project.json("status")["state"] == "complete"


@pytest.mark.nightly
def test_session_start_reports_the_notebook_in_progress(project: Project) -> None:
    notebook = project.new("One :: it works", "Two")
    notebook.insert("import json as j\nvalues = {'a': 1}")
    for source in ("startup", "resume", "clear", "compact"):
        response = start_session(notebook, source)
        assert notebook.path.name in response
        has_plan = "✓ 1. One" in response and "· 2. Two" in response
        assert has_plan == (source in ("startup", "clear"))
        pointer = "outputs, run: stepper show"
        assert (pointer in response) != has_plan
        assert "Next: step 2 of 2" in response
        assert "j (json)" in response and "values: dict of 1" in response
        assert "Add new cells to this notebook" in response
    project.kill_daemon()
    # a new daemon asks the kernel
    assert "values: dict of 1" in start_session(notebook)
    notebook.insert("2")
    assert project.json("status")["state"] == "complete"
    assert start_session(notebook) == ""


@pytest.mark.nightly
def test_sessions_do_not_control_each_others_notebook(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = project.new("A"), project.new("B", problem="other")
    first.session, second.session = "s-1", "s-2"
    first.insert("raise RuntimeError('STOP')")
    second.insert("raise RuntimeError('STOP')")
    assert second.path.name in start_session(second)
    assert first.path.name in start_session(first)
    monkeypatch.setenv("STEPPER_SESSION", "s-1")
    refused = project.stepper("continue", check=2).stderr
    assert f"/continue {first.name}" in refused and second.name in refused
    assert first.name in project.stepper("continue", first.name).stdout
    assert project.json("status")["notebook"].endswith(first.path.name)
    monkeypatch.setenv("STEPPER_SESSION", "s-2")
    assert project.json("status")["state"] == "stopped"
    monkeypatch.setenv("STEPPER_SESSION", "s-3")
    assert project.json("status")["notebook"].endswith(second.path.name)


def test_hooks_are_silent_without_a_notebook_in_progress(
    fresh_project: Project,
) -> None:
    notebook = Notebook(fresh_project, fresh_project.folder / "notebooks" / "x.ipynb")
    assert start_session(notebook) == ""
    assert say(notebook, "continue notebook") == ""
    assert end_turn(notebook) == {}
    assert not os.path.exists(fresh_project.paths.socket)


@pytest.mark.nightly
def test_context_for_other_agents(fresh_project: Project) -> None:
    assert fresh_project.json("context")["current_notebook"] is None
    notebook = fresh_project.new("One", "Two")
    notebook.insert("import math\ndef f(a, *, b=2): ...\nx = [1, 2]")
    response = fresh_project.json("context")
    assert set(response) == {
        "current_notebook",
        "imported_modules",
        "defined_functions",
        "variables",
        "plan",
    }
    assert response["current_notebook"] == f"notebooks/{notebook.path.name}"
    assert response["imported_modules"] == {"math": "math"}
    assert response["defined_functions"] == {"f": "(a, *, b=2)"}
    assert response["variables"] == {"x": "list of 2"}
    assert [s["status"] for s in response["plan"]] == ["done", "pending"]


@pytest.mark.nightly
def test_plan_from_yaml_with_a_validation_step(project: Project) -> None:
    plan = project.folder / "plan.yaml"
    plan.write_text(
        "- Load\n- title: Check\n  criterion: no nulls\n  kind: validation\n  long: true\n"
    )
    response = project.json("new", "p", "--plan", str(plan))
    assert response["steps"] == [
        {"id": 1, "title": "Load"},
        {"id": 2, "title": "Check"},
    ]
    notebook = Notebook(project, project.folder / response["notebook"])
    notebook.insert("1")
    assert [step["long"] for step in project.json("plan")["steps"]] == [False, True]
    assert "(criterion: no nulls; validation; long)" in project.stepper("plan").stdout
    project.stepper("skip")
    assert project.json("status")["state"] == "ready"  # the validation did not pass
    plan.write_text("- {title: A, kind: nonsense}\n")
    assert (
        "nonsense" in project.stepper("new", "p", "--plan", str(plan), check=2).stderr
    )


@pytest.mark.nightly
def test_pending_steps_of_the_plan_can_be_changed(project: Project) -> None:
    notebook = project.new("One", "Two", "Three")
    notebook.insert("1")
    project.stepper("plan", "add", "Two and a half :: ok :: long", "--after", "2")
    project.stepper("plan", "edit", "3", "Third")
    project.stepper("plan", "move", "4", "--after", "3")
    project.stepper("plan", "remove", "2")
    assert [(s["id"], s["title"]) for s in project.json("plan")["steps"]] == [
        (1, "One"),
        (3, "Third"),
        (4, "Two and a half"),
    ]
    assert [s["id"] for s in notebook.raw["metadata"]["stepper"]["steps"]] == [1, 3, 4]
    assert [s.get("long") for s in notebook.raw["metadata"]["stepper"]["steps"]] == [
        None,
        None,
        True,
    ]
    assert (
        "4. Two and a half  (criterion: ok; long)" in project.stepper("context").stdout
    )
    for change in (("edit", "1", "x"), ("remove", "1"), ("move", "1", "--after", "3")):
        assert (
            "already run: it can't be changed"
            in project.stepper("plan", *change, check=2).stderr
        )
    assert (
        "before it"
        in project.stepper("plan", "add", "x", "--after", "0", check=2).stderr
    )
    assert "no step 9" in project.stepper("plan", "remove", "9", check=2).stderr
    assert "  ✓ 1. One" in project.stepper("plan").stdout
    assert (
        "  ✓ 1. One"
        in project.stepper("plan", f"notebooks/{notebook.path.name}").stdout
    )
    _, response = notebook.insert("2")
    assert 'Step 2 of 3 "Third": done' in response.text


@pytest.mark.nightly
def test_run_honours_tags_and_stops(project: Project) -> None:
    cells = [
        code("x = 1", "aaaa"),
        code("1/0", "bbbb", tags=["skip-execution"]),
        code("raise ValueError('wanted')", "cccc", tags=["raises-exception"]),
        code("print(x)", "dddd"),
    ]
    notebook = project.notebook("tags.ipynb", cells)
    result = project.stepper("run", "notebooks/tags.ipynb")
    assert "3 of 3 cells ran ok" in result.stdout
    assert notebook.cell("bbbb")["outputs"] == []
    assert notebook.cell("cccc")["outputs"][0]["ename"] == "ValueError"
    assert "as its tag raises-exception allows" in project.stepper("report", "2").stdout
    assert "nothing to run" in project.stepper("run", "tags").stdout
    assert "3 of 3" in project.stepper("run", "tags.ipynb", "--all").stdout
    raw = notebook.raw
    raw["cells"].append(code("nope", "eeee"))
    notebook.path.write_text(json.dumps(raw))
    result = project.stepper("run", "tags", check=1)
    assert "NameError: name 'nope' is not defined" in result.stdout
    assert project.json("run", "tags", check=1)["ok"] is False
    notebook.replace("eeee", "raise RuntimeError('STOP')")
    output = project.stepper(
        "run", "tags", check=1
    ).stdout  # a run from a terminal is not refused
    assert "RuntimeError: STOP" in output and "does not count as an attempt" in output


@pytest.mark.nightly
def test_rerun_helper_cell_is_assigned_to_no_step(project: Project) -> None:
    notebook = project.new("One", "Two")
    first = notebook.raw["cells"][0]["id"]
    failed, _ = notebook.insert("helper_value")
    helper, response = notebook.insert("helper_value = 1", after=first)
    assert "Step" not in response.text
    assert (
        'Step 1 of 2 "One": done' in notebook.replace(failed, "helper_value + 1").text
    )
    assert "Step" not in notebook.replace(helper, "helper_value = 2").text
    project.stepper("run", f"notebooks/{notebook.path.name}", "--all")
    assert step(project, 2)["status"] == "pending"


@pytest.mark.nightly
def test_skip_does_not_confuse_cell_ids_with_step_numbers(project: Project) -> None:
    notebook = project.new("One", "Two")
    raw = notebook.raw
    raw["cells"].append(code("x = 1", "1"))
    notebook.path.write_text(json.dumps(raw))
    project.stepper("skip")
    assert "tags" not in notebook.cell("1")["metadata"]
    assert step(project, 1)["status"] == "skipped"


@pytest.mark.nightly
def test_cells_of_an_oversized_notebook_can_be_replaced(project: Project) -> None:
    project.config("max_cells: 2")
    notebook = project.notebook(
        "large.ipynb", [code("1", "a"), code("2", "b"), code("3", "c")]
    )
    assert notebook.before("replace", "4", "b").stdout == b""
    assert "ran ok" in notebook.replace("b", "4").text
