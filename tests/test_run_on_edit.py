"""Cells run on edit through the hook process, with a real daemon, kernels and files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.conftest import (
    CLIENT,
    ROOT,
    Notebook,
    Project,
    code,
    mark_nightly,
    reuse_project,
    text_of,
)


def wait_until(condition, seconds: float = 120.0) -> None:
    """Wait for a condition; the timeout only prevents a hang."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.05)


def make_waiting_cell(notebook: Notebook) -> str:
    """Return the source of a cell that runs until `release_cell` is called."""
    path = str(notebook.path.with_suffix(".go"))
    return (
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({path!r}): time.sleep(0.02)\nprint('over')"
    )


def wait_for_output(project: Project) -> None:
    """Wait until the daemon has received the first line of `make_waiting_cell`."""
    wait_until(lambda: (project.json("status")["running"] or {}).get("line") == "begun")


def release_cell(notebook: Notebook) -> None:
    """Create the file that the cell of `make_waiting_cell` waits for."""
    notebook.path.with_suffix(".go").touch()


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def test_cell_output_is_in_report_and_file(project: Project) -> None:
    notebook = project.new("Load :: it is loaded", "Plot")
    cell_id, response = notebook.insert("x = 41\nprint('hello')\nx + 1")
    assert response.text.startswith(f"stepper: Cell 1 (id {cell_id}) ran ok in ")
    assert 'Step 1 of 2 "Load": done; criterion: it is loaded.' in response.text
    assert "| hello\n| 42" in response.text
    assert 'Next: step 2 of 2 "Plot".' in response.text
    assert response.line.startswith('✓ step 1 of 2 "Load" · ok · ')
    cell = notebook.cell(cell_id)
    assert text_of(cell) == "hello\n"
    assert cell["outputs"][1]["data"]["text/plain"] == ["42"]
    assert cell["execution_count"] == 1
    assert {
        "iopub.execute_input",
        "iopub.status.busy",
        "iopub.status.idle",
        "shell.execute_reply",
    } <= set(cell["metadata"]["execution"])
    nbformat.validate(nbformat.read(notebook.path, 4))


def test_variables_persist_and_replaced_cell_reruns(project: Project) -> None:
    notebook = project.new()
    first, _ = notebook.insert("x = 1")
    _, response = notebook.insert("print(x + 1)")
    assert "| 2" in response.text
    assert "ran ok" in notebook.replace(first, "x = 10").text
    assert "| 11" in notebook.insert("print(x + 1)")[1].text


@pytest.mark.nightly
def test_markdown_and_delete_run_and_report_nothing(project: Project) -> None:
    notebook = project.new()
    _, response = notebook.insert("# a title", kind="markdown")
    assert response.stdout == b""
    cell_id, _ = notebook.insert("1")
    assert notebook.delete(cell_id).stdout == b""
    assert len(project.json("history")) == 1


@pytest.mark.nightly
def test_error_names_line_and_frame_in_an_earlier_cell(
    project: Project,
) -> None:
    notebook = project.new("Define", "Call")
    first, _ = notebook.insert("def scale(a):\n    b = a\n    return b * FACTOR")
    _, response = notebook.insert("y = 2\n\nscale(y)\ny")
    assert "FAILED" in response.text.splitlines()[0]
    assert "NameError: name 'FACTOR' is not defined" in response.text.splitlines()[0]
    assert "| →   3  scale(y)" in response.text
    assert f"Raised in `scale`, line 3 of cell 1 (id {first}):" in response.text
    assert "| →   3      return b * FACTOR" in response.text
    assert "\x1b" not in response.text
    assert response.line.startswith("✗ step 2 of 2")


@pytest.mark.nightly
def test_long_output_is_truncated_in_the_report_only(
    project: Project,
) -> None:
    notebook = project.new()
    cell_id, response = notebook.insert("for i in range(2000): print('line', i)")
    assert "| line 0\n" in response.text
    assert "| line 1999" in response.text
    assert " left out; all is in the notebook" in response.text
    assert (
        sum(
            len(line) - 2
            for line in response.text.splitlines()
            if line.startswith("| ")
        )
        <= 2000
    )
    assert text_of(notebook.cell(cell_id)).count("\n") == 2000
    _, response = notebook.insert(
        "raise ValueError('x' * 100_000 + '\\n' + 'y\\n' * 5000)"
    )
    assert len(response.text) < 6000


@pytest.mark.nightly
def test_escapes_and_control_characters_never_reach_a_report(project: Project) -> None:
    notebook = project.new("A \x1b[31mred\x1b[0m title")
    _, response = notebook.insert(
        r"print('\x1b[31mred\x1b[0m \x07\x9b31m'); raise ValueError('\x1b]0;title\x07 \x1b[1mbold')"
    )
    text = response.text + response.line
    assert not [
        c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160
    ]
    assert "bold" in text


@pytest.mark.nightly
def test_edits_of_one_message_keep_the_mtime_until_the_batch_ends(
    project: Project,
) -> None:
    batch = project.folder / ".stepper" / "batch"

    def waiting() -> dict[str, str]:
        return json.loads(batch.read_text()) if batch.exists() else {}

    notebook = project.new()
    notebook.batch_end("Read")  # other tests can have left markers of this session
    other_markers = waiting()
    old = time.time_ns() - 3_600_000_000_000
    for number in range(3):
        payload = notebook.edited(
            "insert", f"print({number})", notebook.raw["cells"][-1]["id"]
        )
        os.utime(notebook.path, ns=(old, old))  # as the client left it
        assert f"| {number}" in project.hook("PostToolUse", payload).text
        assert notebook.path.stat().st_mtime_ns == old
    assert waiting() == {**other_markers, str(notebook.path): notebook.session}
    notebook.batch_end("NotebookEdit", "NotebookEdit", "NotebookEdit")
    assert notebook.path.stat().st_mtime_ns > old
    assert waiting() == other_markers and batch.exists() == bool(other_markers)
    assert [run["outcome"] for run in project.json("history")] == ["ok", "ok", "ok"]


@pytest.mark.nightly
def test_batch_that_ends_with_a_read_keeps_the_mtime(project: Project) -> None:
    notebook = project.new()
    notebook.insert("1")
    before = notebook.path.stat().st_mtime_ns
    notebook.batch_end("NotebookEdit", "Read")
    assert notebook.path.stat().st_mtime_ns == before


@pytest.mark.nightly
def test_batch_of_another_session_keeps_the_mtime(project: Project) -> None:
    notebook = project.new()
    notebook.insert("1")
    before = notebook.path.stat().st_mtime_ns
    Notebook(project, notebook.path, session="another").batch_end("NotebookEdit")
    assert notebook.path.stat().st_mtime_ns == before
    assert (project.folder / ".stepper" / "batch").exists()


@pytest.mark.nightly
def test_same_call_never_runs_twice(project: Project) -> None:
    notebook = project.new()
    payload = notebook.edited("insert", "print('once')")
    assert "| once" in project.hook("PostToolUse", payload).text
    assert project.hook("PostToolUse", payload).stdout == b""
    assert len(project.json("history")) == 1


@pytest.mark.nightly
def test_write_runs_new_and_changed_cells_and_stops_at_the_first_failure(
    project: Project,
) -> None:
    notebook = project.notebook("whole.ipynb")
    response = notebook.write(
        [
            code("x = 1", "a"),
            code("print(x)", "b"),
            code("1/0", "c"),
            code("print('no')", "d"),
        ]
    )
    assert "3 of 4 new or changed code cells ran" in response.text
    assert "ZeroDivisionError" in response.text
    assert "Not run: 1 new or changed code cell below cell" in response.text
    response = notebook.write(
        [
            code("x = 1", "a"),
            code("print(x, 'changed')", "b"),
            code("0/1", "c"),
            code("print('yes')", "d"),
        ]
    )
    assert "3 of 3 new or changed code cells ran" in response.text
    assert "| 1 changed" in response.text
    assert [run["cell_id"] for run in project.json("history")] == [
        "a",
        "b",
        "c",
        "b",
        "c",
        "d",
    ]


@pytest.mark.nightly
def test_nbformat_4_4_without_cell_ids(project: Project) -> None:
    notebook = project.notebook("old.ipynb", [code("x = 5")], minor=4)
    payload = notebook.edited("insert", "print('below', 3)", "cell-0")
    assert "Cell 2 (id cell-1) ran ok" in project.hook("PostToolUse", payload).text
    payload = notebook.edited("insert", "print('top')", None)
    assert "Cell 1 (id cell-0) ran ok" in project.hook("PostToolUse", payload).text
    assert "| 8" in notebook.replace("cell-1", "x = 5; print(x + 3)").text
    raw = notebook.raw
    assert raw["nbformat_minor"] == 4
    assert [text_of(cell) for cell in raw["cells"]] == ["top\n", "8\n", "below 3\n"]
    assert all("id" not in cell for cell in raw["cells"])


@pytest.mark.nightly
def test_other_language_is_reported_and_not_run(project: Project) -> None:
    notebook = project.notebook(
        "r.ipynb", kernelspec={"name": "ir", "language": "R", "display_name": "R"}
    )
    _, response = notebook.insert("x <- 1")
    assert "NOT run" in response.text
    assert "'r'" in response.text


@pytest.mark.nightly
def test_files_created_by_a_cell_have_the_default_mode(project: Project) -> None:
    notebook = project.new()
    notebook.insert("open('made', 'w').close()")
    usual = project.folder / "usual"
    usual.touch()
    assert (
        (notebook.path.parent / "made").stat().st_mode
        == usual.stat().st_mode
        == notebook.path.stat().st_mode
    )


def test_working_directory_is_the_notebook_folder(project: Project) -> None:
    notebook = project.new()
    assert (
        f"| {project.folder / 'notebooks'}"
        in notebook.insert("import os; print(os.getcwd())")[1].text
    )
    project.stepper("restart")
    project.config("kernel_cwd: project")
    project.stepper("restart")
    assert (
        f"| {project.folder}\n"
        in notebook.insert("import os; print(os.getcwd())")[1].text + "\n"
    )


@pytest.mark.nightly
def test_kernel_survives_the_daemon(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 123")
    status = project.json("status")
    project.kill_daemon()
    assert "| 123" in notebook.insert("print(x)")[1].text
    after = project.json("status")
    assert after["kernel"]["pid"] == status["kernel"]["pid"]
    assert after["daemon"]["pid"] != status["daemon"]["pid"]
    os.kill(after["daemon"]["pid"], signal.SIGTERM)
    wait_until(lambda: not os.path.exists(project.paths.socket))
    assert "| 124" in notebook.insert("print(x + 1)")[1].text


@pytest.mark.nightly
def test_kernel_death_and_state_loss_are_reported(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    _, response = notebook.insert("import os; os._exit(3)")
    assert "KernelDied" in response.text + response.stop
    assert "exit code 3" in response.text + response.stop
    assert project.json("history")[-1]["outcome"] == "kernel_died"


@pytest.mark.nightly
def test_timeout_interrupts_and_keeps_the_state(project: Project) -> None:
    project.config("cell_timeout_seconds: 1")
    notebook = project.new()
    notebook.insert("x = 7")
    _, response = notebook.insert("import time\ntime.sleep(60)")
    assert "Timeout" in response.text.splitlines()[0]
    assert (
        "To give the cell more time, add a first line such as `# stepper: timeout=10m` or"
        " `timeout=none`; the maximum is 24 h." in response.text
    )
    assert (
        "| 7"
        in notebook.insert(
            "# stepper: timeout=5s\nimport time; time.sleep(1.5); print(x)"
        )[1].text
    )
    project.config("cell_timeout_seconds: 0.5")  # read again without a restart
    assert "after 0.5 s" in notebook.insert("import time; time.sleep(60)")[1].text
    project.config("max_cell_timeout_seconds: 0.5")
    response = notebook.insert(
        "# stepper: timeout=none scratch\nimport time; time.sleep(60)"
    )[1]
    assert (
        "A cell can't have more time: the user's setting max_cell_timeout_seconds is"
        " 0.5." in response.text
    )


def test_status_and_interrupt_respond_while_a_cell_runs(project: Project) -> None:
    notebook = project.new("Wait")
    payload = notebook.edited(
        "insert", "import time\nfor _ in range(600): time.sleep(0.1)"
    )
    responses = []
    thread = threading.Thread(
        target=lambda: responses.append(project.hook("PostToolUse", payload))
    )
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    status = project.json("status")
    assert status["steps"][0]["status"] == "running"
    output = project.stepper("interrupt").stdout
    assert ": interrupted cell 1; the kernel keeps its variables" in output
    assert ": no cell is running" in project.stepper("interrupt").stdout
    thread.join(120)
    assert "CANCELLED" in responses[0].text
    assert project.json("history")[-1]["outcome"] == "cancelled"
    assert project.json("status")["steps"][0]["attempts"] == 0


@pytest.mark.nightly
def test_interrupt_that_kills_the_kernel_is_reported(project: Project) -> None:
    notebook = project.new("Wait")
    stubborn = (
        "import time\nwhile True:\n    try: time.sleep(60)\n"
        "    except KeyboardInterrupt: print('no')"
    )
    payload = notebook.edited("insert", stubborn)
    thread = threading.Thread(target=lambda: project.hook("PostToolUse", payload))
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    output = project.stepper("interrupt").stdout
    ended = "cell 1 was interrupted, and the kernel exited: its variables are lost"
    assert f": {ended}" in output
    thread.join(120)


@pytest.mark.parametrize(
    "number", mark_nightly([signal.SIGTERM, signal.SIGKILL], signal.SIGKILL)
)
def test_client_disconnect_cancels_its_cell(
    fresh_project: Project, number: signal.Signals
) -> None:
    notebook = fresh_project.new("One", "Sleep")
    notebook.insert("x = 1")
    payload = notebook.edited(
        "insert", "import time\nfor _ in range(600): time.sleep(0.1)"
    )
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        CLIENT,
        str(ROOT),
        str(fresh_project.folder),
        "PostToolUse",
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as hook:
        hook.stdin.write(json.dumps(payload).encode())
        hook.stdin.close()
        wait_until(lambda: fresh_project.json("status")["kernel"]["state"] == "busy")
        hook.send_signal(number)
    wait_until(lambda: len(fresh_project.json("history")) == 2)
    # there is no PostToolBatch event
    wait_until(lambda: not (fresh_project.folder / ".stepper" / "batch").exists())
    assert fresh_project.json("history")[-1]["outcome"] == "cancelled"
    assert fresh_project.json("status")["steps"][1]["attempts"] == 0
    assert "| 2" in notebook.insert("print(x + 1)")[1].text


def test_cells_run_in_order_and_notebooks_in_parallel(
    project: Project,
) -> None:
    slow, fast = project.new(problem="slow"), project.new(problem="fast")
    slow.insert("order = []")
    responses: dict[int, str] = {}
    payloads = [
        slow.edited(
            "insert", f"import time; time.sleep(0.3); order.append({n}); print(order)"
        )
        for n in range(3)
    ]

    def play(number: int) -> None:
        responses[number] = project.hook("PostToolUse", payloads[number]).text

    threads = [threading.Thread(target=play, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    assert "ran ok" in fast.insert("1 + 1")[1].text
    for thread in threads:
        thread.join(120)
    runs = [
        run["cell_id"] for run in project.json("history", "notebooks/" + slow.path.name)
    ][1:]
    assert sorted(runs) == sorted(
        payload["tool_response"]["cell_id"] for payload in payloads
    )
    printed = [
        re.findall(r"^\| \[(.*)\]$", text, re.MULTILINE) for text in responses.values()
    ]
    assert sorted(len(lists[0].split(",")) for lists in printed) == [1, 2, 3]


@pytest.mark.nightly
def test_edit_during_a_run_is_kept(project: Project) -> None:
    notebook = project.new()
    first, _ = notebook.insert("a = 1")
    source = make_waiting_cell(notebook)
    payload = notebook.edited("insert", source, first)
    responses = []
    thread = threading.Thread(
        target=lambda: responses.append(project.hook("PostToolUse", payload))
    )
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    raw = notebook.raw
    raw["cells"][1]["source"] = "a = 2  # by the user"
    raw["cells"].append(code("b = 3", "person00"))
    notebook.path.write_text(json.dumps(raw, indent=1))
    release_cell(notebook)
    thread.join(120)
    cell = notebook.cell(payload["tool_response"]["cell_id"])
    assert text_of(cell) == "begun\nover\n"
    assert notebook.cell(first)["source"] == "a = 2  # by the user"
    assert notebook.cell("person00")["source"] == "b = 3"


@pytest.mark.nightly
def test_cell_changed_while_it_ran_gets_no_foreign_outputs(project: Project) -> None:
    notebook = project.new()
    payload = notebook.edited("insert", make_waiting_cell(notebook))
    cell_id = payload["tool_response"]["cell_id"]
    responses = []
    thread = threading.Thread(
        target=lambda: responses.append(project.hook("PostToolUse", payload))
    )
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    raw = notebook.raw
    raw["cells"][-1 if raw["cells"][-1]["id"] == cell_id else 0]["source"] = (
        "print('new')"
    )
    notebook.path.write_text(json.dumps(raw))
    release_cell(notebook)
    thread.join(120)
    assert "its outputs were not written" in responses[0].text
    assert notebook.cell(cell_id)["outputs"] == []


@pytest.mark.nightly
def test_file_mode_is_kept_and_no_temporary_file_remains(
    fresh_project: Project,
) -> None:
    notebook = fresh_project.new()
    notebook.path.chmod(0o640)
    payload = notebook.edited("insert", "1")
    notebook.path.chmod(0o640)
    fresh_project.hook("PostToolUse", payload)
    assert notebook.path.stat().st_mode & 0o777 == 0o640
    # it becomes a background run
    wait_until(
        lambda: (
            [path.name for path in notebook.path.parent.iterdir()]
            == [notebook.path.name]
        )
    )


def test_kernel_gets_the_client_environment_without_agent_variables(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SETTING", "7")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("CLAUDE_CODE_MESSAGING_TOKEN", "secret")
    notebook = project.new()
    source = "import os; print(os.environ['MY_SETTING'], [k for k in os.environ if k.startswith(('ANTHROPIC', 'CLAUDE'))])"
    assert "| 7 []" in notebook.insert(source)[1].text


def test_rich_outputs_display_updates_and_clear_output(project: Project) -> None:
    notebook = project.new()
    cell_id, _ = notebook.insert(
        "from IPython.display import display, HTML, clear_output\n"
        "h = display('one', display_id='d')\nh.update('two')\ndisplay(HTML('<b>x</b>'))\nimport sys; print('err', file=sys.stderr)"
    )
    outputs = notebook.cell(cell_id)["outputs"]
    assert outputs[0]["data"]["text/plain"] == ["'two'"]
    assert outputs[1]["data"]["text/html"] == ["<b>x</b>"]
    assert outputs[2]["name"] == "stderr"
    cell_id, _ = notebook.insert(
        "from IPython.display import clear_output\nprint(1); clear_output(); print(2)"
    )
    assert text_of(notebook.cell(cell_id)) == "2\n"


@pytest.mark.nightly
def test_daemon_of_another_version_is_replaced_and_kernel_kept(
    project: Project,
) -> None:
    notebook = project.new()
    notebook.insert("x = 5")
    status = project.json("status")
    source = CLIENT.replace(
        "from stepper.hook.process",
        "import stepper; stepper.__version__ = '0.0.0'; from stepper.hook.process",
    )
    payload = notebook.edited("insert", "print(x)")
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        source,
        str(ROOT),
        str(project.folder),
        "PostToolUse",
    ]
    result = subprocess.run(
        command, input=json.dumps(payload).encode(), capture_output=True
    )
    # a new daemon can't serve the old client; our next call starts a new daemon
    assert b"NOT run" in result.stdout
    assert "| 5" in notebook.insert("print(x)")[1].text
    after = project.json("status")
    assert after["kernel"]["pid"] == status["kernel"]["pid"]
    assert after["daemon"]["pid"] != status["daemon"]["pid"]


def test_concurrent_clients_start_one_daemon_and_one_kernel(
    fresh_project: Project,
) -> None:
    notebook = fresh_project.notebook(
        "many.ipynb",
        [code("import os; print(os.getpid())", f"cell{n}") for n in range(6)],
    )
    payloads = [
        notebook.edited("replace", f"import os; print({n}, os.getpid())", f"cell{n}")
        for n in range(6)
    ]
    responses: list[str] = []
    threads = [
        threading.Thread(
            target=lambda p=p: responses.append(
                fresh_project.hook("PostToolUse", p).text
            )
        )
        for p in payloads
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    pids = {
        line.split()[-1]
        for text in responses
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert len(responses) == 6 and pids == {
        str(fresh_project.json("status")["kernel"]["pid"])
    }
    log = (fresh_project.folder / ".stepper" / "daemon.log").read_text()
    assert log.count(") is listening") == 1


@pytest.mark.nightly
def test_idle_daemon_exits(fresh_project: Project) -> None:
    source = (
        "import os, sys, threading, time, stepper.daemon.server as d; d.WATCH_SECONDS = 0.1\n"
        "def impatient():\n"
        "    while not os.path.exists(sys.argv[1] + '/a kernel lives'): time.sleep(0.02)\n"
        "    d.IDLE_SECONDS = 1.5\n"
        "threading.Thread(target=impatient, daemon=True).start()\n"
        "sys.argv = ['d', sys.argv[1]]; d.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source, str(fresh_project.folder)]
    ) as daemon:
        wait_until(lambda: os.path.exists(fresh_project.paths.socket))
        notebook = fresh_project.new()
        notebook.insert("1")
        (fresh_project.folder / "a kernel lives").touch()
        time.sleep(2.5)
        assert daemon.poll() is None  # a kernel lives
        fresh_project.stepper("interrupt")
        fresh_project.config("kernel_idle_hours: 0.0001")
        assert daemon.wait(120) == 0
    assert not os.path.exists(fresh_project.paths.socket)
    assert "idle for" in notebook.insert("1")[1].text


@pytest.mark.nightly
def test_log_contains_the_kernel_start_phases(fresh_project: Project) -> None:
    fresh_project.new().insert("1")
    logged = Path(fresh_project.paths.log).read_text()
    phases = re.findall(
        r"INFO kernel (?:start|connection): (.*?)(?: after \d+\.\d\d s|, record .*)$",
        logged,
        re.M,
    )
    launched = phases.pop(1)
    assert phases == [
        "backend local",
        "shell and iopub replied",
        "helper loaded",
        "ready",
    ], logged
    assert re.fullmatch(r"process \d+ launched", launched)


@pytest.mark.nightly
def test_longest_idle_kernels_are_shut_down_beyond_max_kernels(
    fresh_project: Project,
) -> None:
    """Several kernels are ended at once; each notebook's report is correct."""
    source = "import sys, stepper.daemon.server as d; d.WATCH_SECONDS = 0.1; sys.argv = ['d', sys.argv[1]]; d.main()"
    fresh_project.config("max_kernels: 3")
    names = ("first", "second", "third")
    notebooks = {
        name: fresh_project.notebook(f"{name}.ipynb", [code(f"x = '{name}'; x", "a")])
        for name in names
    }

    def states() -> list[str]:
        return [fresh_project.json("status", name)["kernel"]["state"] for name in names]

    with subprocess.Popen(
        [sys.executable, "-c", source, str(fresh_project.folder)]
    ) as daemon:
        try:
            wait_until(lambda: os.path.exists(fresh_project.paths.socket))
            for name in names:
                fresh_project.stepper("run", name, check=0)
            time.sleep(0.5)
            assert states() == ["idle", "idle", "idle"]
            fresh_project.config("max_kernels: 1")
            wait_until(lambda: states()[:2] == ["none", "none"])
            time.sleep(0.5)
            assert states()[2] == "idle"
            fresh_project.config("max_kernels: 9")
            for name, description in (
                ("first", "2 idle kernels were"),
                ("second", "1 idle kernel was"),
            ):
                why = f"the kernel was shut down because {description} used more recently and max_kernels is 1"
                assert why in fresh_project.stepper("status", name).stdout
                _, response = notebooks[name].insert("1")
                assert why in response.text
        finally:
            fresh_project.stepper("shutdown")
            daemon.kill()


@pytest.mark.nightly
def test_deleted_socket_is_recovered(project: Project) -> None:
    project.stepper("shutdown")
    project.daemons = False  # visible by its command line
    notebook = project.new()
    notebook.insert("x = 3")
    os.unlink(project.paths.socket)
    assert "Stopped the daemon" in project.stepper("shutdown").stdout
    assert "ran ok" in notebook.insert("1")[1].text


@pytest.mark.nightly
def test_context_omits_a_dead_kernel(project: Project) -> None:
    notebook = project.new("One", "Two")
    notebook.insert("x = 3")
    assert project.json("context")["variables"]
    project.stepper("restart")
    assert project.json("context")["variables"] == {}


@pytest.mark.nightly
def test_run_records_the_language_info_of_the_kernel(
    project: Project, tmp_path: Path
) -> None:
    outdated = {"name": "python", "version": "2.7.1", "own": "key"}
    notebook = project.notebook(
        "language.ipynb", [code("1", "a"), code("2", "b")], language_info=outdated
    )
    project.stepper("run", "language", check=0)
    reference = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")])
    nbclient.NotebookClient(
        reference, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (
        notebook.raw["metadata"]["language_info"] == reference.metadata["language_info"]
    )


@pytest.mark.parametrize(
    "odd",
    [
        {"kernelspec": "python3"},
        {"language_info": ["python"]},
        {"stepper": [1]},
        {"stepper": {"steps": [{"id": 10**30, "title": "x"}]}},
        {"big": 123456789012345678901234567890},
    ],
)
@pytest.mark.nightly
def test_invalid_metadata_is_tolerated(
    project: Project, odd: dict, request: pytest.FixtureRequest
) -> None:
    cells = [
        {**code("1", "1"), "metadata": {"tags": 5, "stepper": [1]}},
        {**code("2", "2"), "outputs": [5, "x"]},
    ]
    notebook = project.notebook(f"{request.node.callspec.id}.ipynb", cells, **odd)
    _, response = notebook.insert("print('fine')")
    assert "| fine" in response.text
    replaced = (
        {"language_info": notebook.raw["metadata"]["language_info"]}
        if "language_info" in odd
        else odd
    )
    assert {key: notebook.raw["metadata"][key] for key in odd} == replaced
    assert "ran ok" in notebook.replace("1", "3").text


@pytest.mark.nightly
def test_tag_given_as_string_is_a_tag(project: Project) -> None:
    cells = [
        {**code("1/0", "a"), "metadata": {"tags": "skip-execution"}},
        code("print('ran')", "b"),
    ]
    project.notebook("tag.ipynb", cells)
    assert "1 of 1 cell ran ok" in project.stepper("run", "tag").stdout


@pytest.mark.nightly
def test_unwritable_journal_is_reported(fresh_project: Project) -> None:
    notebook = fresh_project.new()
    notebook.insert("1")
    (journal,) = (fresh_project.folder / ".stepper" / "journal").glob("*.jsonl")
    content = journal.read_bytes()
    journal.unlink()
    journal.mkdir()
    _, response = notebook.insert("2")
    assert (
        "NOT run" in response.text and "the journal cannot be written" in response.text
    )
    journal.rmdir()
    journal.write_bytes(content)
    assert "ran ok" in notebook.insert("3")[1].text
