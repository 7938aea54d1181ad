"""Daemons and kernels killed at every point, unwritable files, concurrent callers.

No run or report is lost.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.conftest import Answer, Notebook, Project, code, mark_nightly, text_of
from tests.test_run_on_edit import wait_until

POINTS = (
    "before the kernel has it",
    "between run and write",
    "between write and rename",
    "between write and journal",
    "between journal and report",
)
# A real daemon that kills itself with SIGKILL at a named point of a run, once.
DYING_DAEMON = """
import os, sys
point = sys.argv.pop(2)
from stepper.daemon import server
from stepper.notebooks import notebook_file as notebook
from stepper.notebooks.journal_file import JournalFile
from stepper.notebooks.notebook_file import IpynbFile
append = JournalFile.append
write_execution = IpynbFile.write_execution
exchange_files = notebook.exchange_files

def die():
    os.kill(os.getpid(), 9)

def append_or_die(self, event, *args, **kwargs):
    if point == "between write and journal" and event["event"] == "run":
        die()
    append(self, event, *args, **kwargs)
    if point == "before the kernel has it" and event["event"] == "start":
        die()
    if point == "between journal and report" and event["event"] == "run":
        die()

def write_or_die(self, *args, **kwargs):
    if point == "between run and write":
        die()
    return write_execution(self, *args, **kwargs)

def exchange_or_die(*args):
    if point == "between write and rename":
        die()
    return exchange_files(*args)

JournalFile.append = append_or_die
IpynbFile.write_execution = write_or_die
notebook.exchange_files = exchange_or_die
server.main()
"""


def start_dying_daemon(project: Project, point: str) -> None:
    """Replace the project's daemon by one that dies at that point."""
    project.kill_daemon()
    process = subprocess.Popen(
        [sys.executable, "-c", DYING_DAEMON, str(project.folder), point]
    )
    process.returncode = 0
    # The file has the pid of the killed daemon until the new one listens.
    path = Path(project.paths.daemon_json)
    wait_until(
        lambda: path.exists() and json.loads(path.read_text())["pid"] == process.pid
    )


def count_runs(project: Project, name: str) -> int:
    """Return how often a cell that appends a line to a file has run."""
    path = project.folder / "notebooks" / name
    return len(path.read_text().splitlines()) if path.exists() else 0


def make_append_line(name: str) -> str:
    return f"open({name!r}, 'a').write('ran\\n')\n"


def start_hook_thread(
    project: Project, payload: dict
) -> tuple[threading.Thread, list[Answer]]:
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(project.hook("PostToolUse", payload))
    )
    thread.start()
    return thread, answers


WAITING_CELL = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint('over')\n"


def is_busy(project: Project) -> bool:
    return project.json("status")["kernel"]["state"] == "busy"


@pytest.mark.parametrize(
    "point",
    mark_nightly(POINTS, "between write and journal"),
)
def test_daemon_killed_at_any_point_of_a_run(project: Project, point: str) -> None:
    notebook = project.new("Load", "Go on")
    notebook.insert("x = 20")
    kernel = project.json("status")["kernel"]["pid"]
    start_dying_daemon(project, point)
    cell_id, answer = notebook.insert(
        make_append_line("count") + "print('hello'); x += 1; x + 1"
    )
    assert count_runs(project, "count") == 1  # never twice
    assert "ok" in answer.text.splitlines()[0] and answer.line.startswith("✓"), (
        answer.text
    )
    assert text_of(notebook.cell(cell_id)) == "hello\n"
    assert notebook.cell(cell_id)["outputs"][-1]["data"]["text/plain"] == ["22"]
    history = project.json("history")
    assert [run["outcome"] for run in history] == ["ok", "ok"] and history[1][
        "cell_id"
    ] == cell_id
    assert project.json("status")["kernel"]["pid"] == kernel
    _, answer = notebook.insert("print(x)")
    assert "| 21" in answer.text and "lost" not in answer.text
    # Temporary files are deleted in the background.
    wait_until(lambda: not list(notebook.path.parent.glob(".*.tmp")))


@pytest.mark.nightly
def test_running_cell_survives_its_daemon_and_hook_gets_the_report(
    project: Project,
) -> None:
    notebook = project.new("Load")
    notebook.insert("x = 77", after=None)
    payload = notebook.edited(
        "insert",
        make_append_line("count") + WAITING_CELL + "x + 1",
        notebook.raw["cells"][0]["id"],
    )
    cell_id = payload["tool_response"]["cell_id"]
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    before = project.json("status")["kernel"]["pid"]
    project.kill_daemon()
    status = project.json("status")
    assert (status["kernel"]["pid"], status["kernel"]["state"]) == (before, "busy")
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert (
        "ran ok" in answers[0].text
        and "continued after the daemon exited" in answers[0].text
    )
    assert "| begun\n| over\n| 78" in answers[0].text
    assert text_of(notebook.cell(cell_id)) == "begun\nover\n"
    assert count_runs(project, "count") == 1
    assert [run["outcome"] for run in project.json("history")] == ["ok", "ok"]


@pytest.mark.nightly
def test_cell_without_hook_is_reported_with_the_next_report(project: Project) -> None:
    notebook = project.new("Load", "Next")
    notebook.insert("x = 1")
    payload = notebook.edited(
        "insert",
        make_append_line("count") + WAITING_CELL,
        notebook.raw["cells"][-1]["id"],
    )
    cell_id = payload["tool_response"]["cell_id"]
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            "import sys; sys.path.append(sys.argv[1]); from stepper.hook.process import hook; hook()",
            str(Path(__file__).parent.parent),
            str(project.folder),
            "PostToolUse",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    process.stdin.write(json.dumps(payload).encode())
    process.stdin.close()
    wait_until(lambda: is_busy(project))
    daemon = psutil.Process(project.json("status")["daemon"]["pid"])
    daemon.suspend()  # it must not notice that its client exits
    process.kill()
    process.wait()
    daemon.kill()
    (project.folder / "notebooks" / "go").touch()
    _, answer = notebook.insert("print(x)")
    assert (
        "Note: run 2 (cell 2) continued after the daemon exited: the cell ran ok"
        in answer.text
    )
    assert (
        text_of(notebook.cell(cell_id)) == "begun\nover\n"
        and count_runs(project, "count") == 1
    )
    assert "the daemon exited" not in notebook.insert("1")[1].text


@pytest.mark.nightly
def test_lost_output_is_reported_as_missing(project: Project) -> None:
    notebook = project.new("Load")
    flood = (
        "print('first')\nfor n in range(9000): print('x' * 1000, flush=True)\n"
        "import sys\nlast = sys.modules['_stepper_helper'].recall.__globals__['iopub_buffer'].last\n"
        "print('held', sum(len(frame) for message in last['messages'] for frame in message), len(last['messages']))\n"
        "'result'"
    )
    edit = notebook.edited(
        "insert", WAITING_CELL + make_append_line("count") + flood, None
    )
    thread, answers = start_hook_thread(project, edit)
    wait_until(lambda: is_busy(project))
    project.kill_daemon()
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert (
        "ran ok" in answers[0].text
        and "bytes of output could not be recovered" in answers[0].text
    ), answers[0].text
    assert count_runs(project, "count") == 1
    head, gap, tail, result = notebook.cell(edit["tool_response"]["cell_id"])["outputs"]
    assert "".join(head["text"]).startswith("begun\nover\nfirst\nxxx")
    assert re.fullmatch(
        r"… [\d,]+ bytes of output could not be recovered: the stepper daemon was .* …\n",
        "".join(gap["text"]),
    )
    text = "".join(tail["text"])
    assert (
        text.lstrip().startswith("xxx")
        and "".join(result["data"]["text/plain"]) == "'result'"
    )
    recorded, messages = map(int, text.strip().rpartition("held ")[2].split())
    assert 500_000 < recorded < 1_100_000 and messages < 5000, (
        "the recorded messages are limited"
    )


@pytest.mark.nightly
def test_timeout_applies_without_the_daemon(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    payload = notebook.edited(
        "insert",
        "# stepper: timeout=4\nimport time\nwhile True: time.sleep(0.01)",
        notebook.raw["cells"][-1]["id"],
    )
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    project.kill_daemon()
    thread.join(120)
    assert "FAILED" in answers[0].text and "Timeout" in answers[0].text, answers[0].text
    assert "| 1" in notebook.insert("print(x)")[1].text


@pytest.mark.nightly
def test_write_continues_after_daemon_death(project: Project) -> None:
    notebook = project.notebook("w.ipynb")
    cells = [
        code(make_append_line("first"), "a"),
        code(make_append_line("second") + WAITING_CELL, "b"),
        code(make_append_line("third") + "print(7)", "c"),
    ]
    text = json.dumps(
        {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    )
    notebook.path.write_text(text)
    tool_input = {"file_path": str(notebook.path), "content": text}
    answered = {"type": "create", "filePath": str(notebook.path), "content": text}
    thread, answers = start_hook_thread(
        project,
        notebook.payload("PostToolUse", "Write", tool_input, tool_response=answered),
    )
    wait_until(lambda: count_runs(project, "second") == 1)
    project.kill_daemon()
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert [count_runs(project, name) for name in ("first", "second", "third")] == [
        1,
        1,
        1,
    ]
    assert "| over" in answers[0].text and "| 7" in answers[0].text
    assert [run["outcome"] for run in project.json("history", "w")] == ["ok"] * 3


KILLERS = {
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "exit code 1": "import os; os._exit(1)",
    "exit() or quit()": "exit()",
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
}


@pytest.mark.parametrize("how", mark_nightly(KILLERS, "SIGKILL"))
def test_cell_that_kills_its_kernel_stops_and_restore_skips_it(
    project: Project, how: str
) -> None:
    notebook = project.new("Load", "Transform", "Break", "Plot")
    notebook.insert(make_append_line("load") + "x = 5")
    notebook.insert(make_append_line("transform") + "y = x * 2")
    began = time.monotonic()
    _, answer = notebook.insert(make_append_line("break") + KILLERS[how])
    assert time.monotonic() - began < 60  # no hang
    died = f"kernel died ({'ended by ' if 'exit()' in how else ''}{how}): all variables are lost"
    assert "Error Type: KernelDied" in answer.stop
    assert (
        f"Error Message: {died}; they came from steps 1, 2; `stepper restore` re-creates"
        in answer.stop
    )
    assert notebook.before("insert", "1", notebook.raw["cells"][-1]["id"]).denied
    # nothing is replayed without a request
    assert [count_runs(project, name) for name in ("load", "transform", "break")] == [
        1,
        1,
        1,
    ]
    restored = project.json("restore")
    assert restored["ok"] and restored["ran"] == restored["cells"] == 2
    assert [count_runs(project, name) for name in ("load", "transform", "break")] == [
        2,
        2,
        1,
    ]
    cell_id = notebook.raw["cells"][-1]["id"]
    assert "| 10" in notebook.replace(cell_id, "print(y)").text


@pytest.mark.nightly
def test_kernel_stderr_is_reported_after_death(project: Project) -> None:
    notebook = project.new()
    _, answer = notebook.insert(
        "import os, sys\nos.write(2, b'the last words\\n')\nimport time; time.sleep(0.3)\nos.abort()"
    )
    assert "SIGABRT" in answer.stop
    assert "| the last words" in project.json("report")["text"].split("Output:")[0]


@pytest.mark.nightly
def test_idle_kernel_death_stops_the_notebook(
    project: Project,
) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert(make_append_line("load") + "x = 5")
    pid = project.json("status")["kernel"]["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: project.json("status")["state"] == "stopped")
    denied = notebook.before(
        "insert", "print(x)", notebook.raw["cells"][-1]["id"]
    ).denied
    assert "KernelDied" in denied and "SIGKILL" in denied and "step 1" in denied
    _, answer = notebook.insert(make_append_line("second") + "print(x)")
    assert "NOT run" in answer.text and count_runs(project, "second") == 0
    assert project.json("restore")["ran"] == 1
    assert project.json("status")["state"] == "ready"
    assert "| 5" in notebook.replace(notebook.raw["cells"][-1]["id"], "print(x)").text


@pytest.mark.nightly
@pytest.mark.parametrize("mend", ["continue", "skip", "fix", "restart"])
def test_each_user_command_ends_the_stop_after_idle_death(
    project: Project, mend: str
) -> None:
    notebook = project.new("Load", "Plot")
    notebook.insert("x = 5")
    os.kill(project.json("status")["kernel"]["pid"], signal.SIGKILL)
    wait_until(lambda: project.json("status")["state"] == "stopped")
    project.stepper(mend)
    assert project.json("status")["state"] == "ready"
    assert [step["status"] for step in project.json("status")["steps"]] == [
        "done",
        "pending",
    ]
    assert "| False" in notebook.insert("print('x' in globals())")[1].text


@pytest.mark.nightly
def test_kernel_without_state_causes_no_stop(project: Project) -> None:
    notebook = project.new("Load")
    notebook.insert("1 / 0")
    kernel = psutil.Process(project.json("status")["kernel"]["pid"])
    kernel.kill()
    # its threads exit one by one
    wait_until(lambda: project.json("status")["kernel"]["state"] != "idle")
    cell_id = notebook.raw["cells"][-1]["id"]
    assert "ran ok" in notebook.replace(cell_id, "x = 1").text


@pytest.mark.nightly
def test_daemon_and_kernel_killed_together(project: Project) -> None:
    notebook = project.new("Load", "Wait")
    notebook.insert("x = 5")
    payload = notebook.edited(
        "insert",
        make_append_line("count") + WAITING_CELL,
        notebook.raw["cells"][-1]["id"],
    )
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    # Stop the kernel, or else the daemon notices its death first.
    os.kill(project.json("status")["kernel"]["pid"], signal.SIGSTOP)
    kernel = project.json("status")["kernel"]["pid"]
    project.kill_daemon()
    os.kill(kernel, signal.SIGKILL)
    thread.join(120)
    assert "KernelDied" in answers[0].stop
    assert (
        count_runs(project, "count") == 1
        and project.json("status")["state"] == "stopped"
    )


@pytest.mark.nightly
def test_session_after_machine_restart_starts_with_instructions(
    project: Project,
) -> None:
    """No daemon saw the kernel die: the session's own event finds it dead."""
    notebook = project.new("Load", "Plot")
    notebook.insert("x = 5")
    kernel = project.json("status")["kernel"]["pid"]
    project.kill_daemon()
    os.kill(kernel, signal.SIGKILL)
    payload = notebook.payload("SessionStart", "", {})
    resumed = project.hook("SessionStart", payload | {"source": "resume"})
    line = resumed.line
    restore_index = line.index("is stopped. To rebuild its variables, run ")
    continue_index = line.index("type /continue")
    assert restore_index < continue_index < line.index("Cause: Kernel")
    text = resumed.text
    assert text.index("To rebuild its variables") < text.index("Cause: ")
    compacted = project.hook("SessionStart", payload | {"source": "compact"})
    assert compacted.line == ""  # the user has seen it in this session
    prompt = notebook.payload("UserPromptSubmit", "", {})
    response = project.hook("UserPromptSubmit", prompt | {"prompt": "go on"})
    assert "does not resume the notebook. To rebuild its variables" in response.text
    assert project.json("status")["state"] == "stopped"
    project.hook("UserPromptSubmit", prompt | {"prompt": "continue notebook"})
    assert project.json("status")["state"] == "ready"


@pytest.mark.nightly
def test_restore_stops_at_a_cell_with_different_outcome(project: Project) -> None:
    notebook = project.new("Load", "Transform", "Plot")
    notebook.insert("x = 1")
    notebook.insert("import os\nassert not os.path.exists('changed')")
    notebook.insert(make_append_line("third"))
    project.stepper("restart")
    (project.folder / "notebooks" / "changed").touch()
    response = project.json("restore", check=1)
    assert (
        not response["ok"]
        and response["ran"] == 1
        and "AssertionError" in response["report"]
    )
    assert count_runs(project, "third") == 1


@pytest.mark.nightly
def test_restore_skips_changed_cells(project: Project) -> None:
    notebook = project.new("Load", "Transform")
    notebook.insert("x = 1")
    changed, _ = notebook.insert("y = 1")
    raw = notebook.raw
    raw["cells"][-1]["source"] = make_append_line("changed")
    notebook.path.write_text(json.dumps(raw))
    response = project.json("restore", check=1)
    assert (
        response["ran"] == 1
        and "was not run again, because its source was changed" in response["report"]
        and count_runs(project, "changed") == 0
    )
    assert changed


ENDLESS = {
    "a loop": "while True: pass",
    "a loop that swallows the interrupt": "import time\nwhile True:\n    try:\n        time.sleep(0.01)\n    except KeyboardInterrupt: pass",
    "a regular expression": "import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')",
    "a sleep": "import time; time.sleep(1000)",
    "a loop in C that no signal ends": "import itertools\nall(itertools.repeat(True))",
}
DEAF = ("a loop that swallows the interrupt", "a loop in C that no signal ends")


@pytest.mark.nightly
@pytest.mark.parametrize("case", mark_nightly(ENDLESS, "a loop"))
def test_endless_cell_is_interrupted_or_killed_while_status_responds(
    project: Project, case: str
) -> None:
    notebook = project.new()
    notebook.insert("x = 6")
    payload = notebook.edited(
        "insert",
        f"# stepper: timeout=1\n{ENDLESS[case]}",
        notebook.raw["cells"][-1]["id"],
    )
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    status_count = 0
    while thread.is_alive():
        assert project.json("status")["kernel"]["state"] in (
            "busy",
            "idle",
            "none",
            "dead",
        )
        status_count += 1
    assert status_count
    if case in DEAF:
        assert (
            "killed by stepper: the interrupt had no effect for 5 s" in answers[0].stop
        )
        assert project.json("status")["state"] == "stopped"
    else:
        assert "Timeout: interrupted after 1 s (its deadline)" in answers[0].text
        assert (
            "| 6" in notebook.replace(notebook.raw["cells"][-1]["id"], "print(x)").text
        )


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    result = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
    )
    if result.returncode:
        pytest.skip(
            f"a small file system can't be mounted here: {result.stderr.strip()}"
        )
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def mount_notebooks_folder(project: Project, disk: Path) -> None:
    """Mount another file system at the notebooks' folder."""
    (project.folder / "notebooks").rmdir()
    project.config("notebooks_dir: notebooks\nkernel_cwd: project\n")
    subprocess.run(
        ["mount", "--bind", "--mkdir", str(disk), str(project.folder / "notebooks")],
        check=True,
    )


def test_full_disk_keeps_the_old_file_and_outputs_are_pending(
    project: Project, small_disk: Path
) -> None:
    mount_notebooks_folder(project, small_disk)
    try:
        notebook = project.new("Load", "Fill")
        notebook.insert("x = 1")
        cell_id, _ = notebook.insert("'first'")
        payload = notebook.edited("replace", "print('much ' * 20)", cell_id)
        # Wait for deleted files: they would free space later.
        wait_until(lambda: not list(notebook.path.parent.glob(".*.tmp")))
        fill = project.folder / "notebooks" / "fill"
        with open(fill, "wb", 0) as stream, pytest.raises(OSError):
            while True:
                stream.write(b"x" * 4096)
        before = notebook.path.read_bytes()
        answer = project.hook("PostToolUse", payload)
        assert "ran ok" in answer.text and "| much much" in answer.text
        assert (
            "could not be written" in answer.text
            and "stepper keeps them in the journal" in answer.text
        )
        assert notebook.path.read_bytes() == before
        # Temporary files are deleted in the background.
        wait_until(lambda: not list(notebook.path.parent.glob(".*.tmp")))
        project.kill_daemon()  # the outputs are in the journal, not in the daemon
        fill.unlink()
        project.json("status")
        wait_until(lambda: "much" in text_of(notebook.cell(cell_id)))
        assert "are in the notebook now" in notebook.insert("1")[1].text
    finally:
        project.stepper("shutdown", check=None)
        subprocess.run(["umount", "-l", str(project.folder / "notebooks")], check=True)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "how", mark_nightly(["deleted", "invalid", "replaced by a folder"], "deleted")
)
def test_deleted_notebook_gets_its_outputs_when_restored(
    project: Project, how: str
) -> None:
    notebook = project.new("Load")
    payload = notebook.edited("insert", WAITING_CELL, None)
    cell_id = payload["tool_response"]["cell_id"]
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    text = notebook.path.read_text()
    notebook.path.unlink()
    if how == "invalid":
        notebook.path.write_text(text[:-30])
    elif how == "replaced by a folder":
        notebook.path.mkdir()
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert (
        "ran ok" in answers[0].text
        and "stepper keeps them in the journal" in answers[0].text
    )
    if how == "replaced by a folder":
        notebook.path.rmdir()
    notebook.path.write_text(text)
    wait_until(lambda: text_of(notebook.cell(cell_id)) == "begun\nover\n")


def test_replaced_notebook_gets_no_foreign_outputs(
    project: Project,
) -> None:
    notebook = project.new("Load")
    payload = notebook.edited("insert", WAITING_CELL, None)
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    other = json.dumps(
        {
            "cells": [code("print(1)", "other")],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
    )
    notebook.path.write_text(other)
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert "changed or deleted while it ran" in answers[0].text
    assert notebook.path.read_text() == other


def test_twenty_concurrent_hooks_and_cli_on_one_notebook(
    spawned_kernels: None, project: Project
) -> None:
    notebook = project.new()
    notebook.insert("seen = []")
    first = notebook.raw["cells"][-1]["id"]
    payloads = []
    for number in range(20):
        source = f"seen.append({number}); print('cell {number}', len(seen))"
        payload = notebook.edited("insert", source, notebook.raw["cells"][-1]["id"])
        payload["session_id"] = f"session-{number % 2}"
        if number % 3 == 0:  # a cell of a subagent
            payload |= {"agent_id": f"agent-{number}", "agent_type": "general-purpose"}
        payloads.append(payload)
    assert first
    with ThreadPoolExecutor(26) as pool:
        answers = [
            pool.submit(project.hook, "PostToolUse", payload) for payload in payloads
        ]
        requests = [pool.submit(project.json, "status") for _ in range(3)]
        evals = [
            pool.submit(project.stepper, "eval", "len(seen)", check=None)
            for _ in range(3)
        ]
        texts = [answer.result().text for answer in answers]
        assert all(
            request.result()["kernel"]["state"] in ("idle", "busy")
            for request in requests
        )
        assert all(entry.result().returncode == 0 for entry in evals)
    for number, (payload, text) in enumerate(zip(payloads, texts, strict=True)):
        assert f"| cell {number} " in text
        assert text_of(notebook.cell(payload["tool_response"]["cell_id"])).startswith(
            f"cell {number} "
        )
    assert "| 20" in notebook.insert("print(len(set(seen)))")[1].text
    assert len({run["run"] for run in project.json("history")}) == 22
    assert len(psutil.Process(project.json("status")["daemon"]["pid"]).children()) == 1


@pytest.mark.nightly
def test_eight_concurrent_notebooks_have_eight_kernels(project: Project) -> None:
    books = [project.notebook(f"n{number}.ipynb") for number in range(8)]

    def work(number: int, book: Notebook) -> list[str]:
        return [
            book.insert(f"mine = {number}")[1].text,
            book.insert("print('mine is', mine)")[1].text,
        ]

    with ThreadPoolExecutor(8) as pool:
        for number, texts in enumerate(pool.map(work, range(8), books)):
            assert f"| mine is {number}" in texts[1]
    pids = {
        project.json("status", f"n{number}")["kernel"]["pid"] for number in range(8)
    }
    assert len(pids) == 8


@pytest.mark.nightly
def test_clock_set_back_changes_no_timeout_and_no_order(project: Project) -> None:
    notebook = project.new("Load", "Wait")
    notebook.insert("x = 1")
    payload = notebook.edited(
        "insert",
        make_append_line("count") + WAITING_CELL,
        notebook.raw["cells"][-1]["id"],
    )
    thread, answers = start_hook_thread(project, payload)
    wait_until(lambda: is_busy(project))
    project.kill_daemon()
    # The run began in the future, as if the clock had been set back.
    journal = next(Path(project.paths.journals).glob("*.jsonl"))
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if line.get("at"):
            line["at"] = f"2199{line['at'][4:]}"
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (project.folder / "notebooks" / "go").touch()
    thread.join(120)
    assert count_runs(project, "count") == 1 and "ran ok" in answers[0].text
    assert [run["run"] for run in project.json("history")] == [1, 2]
