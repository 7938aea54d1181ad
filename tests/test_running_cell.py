"""A long cell is visible in the status, in the file, to followers and to the user."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepper.kernels.outputs.output_area import OutputArea
from stepper.messages import quoted_output
from stepper.session.session import SHOWN_SECONDS
from tests.conftest import Notebook, Project, reuse_project, text_of
from tests.test_run_on_edit import wait_until

LONG = """# stepper: timeout=40
import os, sys, time
print("begun", flush=True)
def waits(name):
    while not os.path.exists(name): time.sleep(0.02)
sys.stderr.write("\\r 12%|█▎"); sys.stderr.flush()
sys.stderr.write("\\r 37%|███▋"); sys.stderr.flush()
waits("more")
sys.stderr.write("\\r 40%|████"); sys.stderr.flush()
waits("go")
sys.stderr.write("\\n")
print("after")"""
BAR = "37%|███▋"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


class Long:
    """A cell that runs in the background until the file `go` exists."""

    def __init__(self, notebook: Notebook) -> None:
        self.notebook, self.project = notebook, notebook.project
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        wait_until(lambda: (self.running or {}).get("line") == BAR)

    def _run(self) -> None:
        self.cell_id, self.answer = self.notebook.insert(LONG)

    @property
    def running(self) -> Any:
        return self.project.json("status", str(self.notebook.path))["running"]

    @property
    def cell(self) -> dict[str, Any]:
        return self.notebook.raw["cells"][1]

    def touch(self, name: str) -> None:
        (self.notebook.path.parent / name).touch()

    def ends(self) -> None:
        self.touch("more")
        self.touch("go")
        self.thread.join()


def start_command(project: Project, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        *arguments,
    ]
    return subprocess.Popen(
        command,
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.nightly
def test_agents_shell_command_does_not_wait_for_a_running_cell(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = project.new("Train")
    long = Long(notebook)
    try:
        wait_until(lambda: text_of(long.cell) == f"begun\n {BAR}")
        monkeypatch.setenv("STEPPER_SESSION", "session-1")
        for command in (
            ["eval", "1 + 1", "--notebook", str(notebook.path)],
            ["run", str(notebook.path)],
        ):
            began = time.monotonic()
            refused = project.stepper(*command, check=None)
            assert time.monotonic() - began < 10
            assert refused.returncode != 0
            assert (
                "nothing ran: step 1 of notebooks/" in refused.stderr
                and "has been running for" in refused.stderr
            )
            waiting = notebook.commands.shell(f"{command[0]} --wait")
            assert f"run: {waiting}" in refused.stderr, refused.stderr
        name = notebook.name
        evaluated = start_command(
            project, "eval", "1 + 1", "--notebook", name, "--wait"
        )
        process = start_command(project, "run", name, "--wait")
        for item in (evaluated, process):
            assert item.stderr is not None
            assert item.stderr.readline().startswith(f"waiting for step 1 of {name}")
            assert item.poll() is None
        monkeypatch.delenv("STEPPER_SESSION")
    finally:
        long.ends()
    assert "| 2" in evaluated.communicate()[0]  # as an agent reads it
    assert "nothing to run" in process.communicate()[0]
    assert (evaluated.returncode, process.returncode) == (0, 0)


def test_running_cell_is_visible(project: Project) -> None:
    notebook = project.new("Train")
    long = Long(notebook)
    try:
        wait_until(lambda: text_of(long.cell) == f"begun\n {BAR}")
        edited = notebook.path.stat()
        output = project.stepper("status", str(notebook.path)).stdout
        assert re.search(
            rf"^running step 1 for \d+ s of at most 40 s: {re.escape(BAR)}$",
            output,
            re.MULTILINE,
        ), output
        running = long.running
        assert (running["name"], running["step"], running["timeout"]) == (
            "step 1",
            1,
            40,
        ) and running["seconds"] >= SHOWN_SECONDS
        wait_until((project.folder / ".stepper" / "running").exists)
        line = (project.folder / ".stepper" / "running").read_text()
        assert re.fullmatch(
            rf'running step 1 of 1 "Train" for \d+ s of at most 40 s: {re.escape(BAR)}\n',
            line,
        ), line
        notice = json.loads((project.folder / ".stepper" / "now" / "line").read_text())
        assert [*notice] == ["systemMessage"] and BAR in notice["systemMessage"]
        # it stays for 5 s
        assert re.match(r"\d\d:\d\d:\d\d running step 1 ", notice["systemMessage"]), (
            notice
        )

        waits = start_command(
            project, "eval", "1 + 1", "--notebook", str(notebook.path)
        )
        follows = start_command(
            project, "output", "1", "--notebook", str(notebook.path), "--follow"
        )
        assert waits.stderr and follows.stdout
        progress_line = waits.stderr.readline()
        assert re.fullmatch(
            rf"waiting for step 1 of notebooks/{re.escape(notebook.path.name)}, which has been running for \d+ s\n",
            progress_line,
        ), progress_line
        assert follows.stdout.readline() == "| begun\n"
        disconnected = start_command(
            project, "output", "1", "--notebook", str(notebook.path), "--follow"
        )
        assert disconnected.stdout and disconnected.stdout.readline() == "| begun\n"
        disconnected.terminate()
        disconnected.communicate()

        notebook.insert("Meanwhile.", kind="markdown", after="cell-0")
        assert notebook.raw["cells"][1]["cell_type"] == "markdown"
        long.touch("more")
        wait_until(lambda: text_of(notebook.raw["cells"][2]) == "begun\n 40%|████")
        assert (
            notebook.path.stat().st_mtime_ns // 10**6
            <= max(edited.st_mtime_ns, time.time_ns()) // 10**6
        )
        assert notebook.raw["cells"][1]["source"] in ("Meanwhile.", ["Meanwhile."])
    finally:
        long.ends()
    cell = notebook.cell(long.cell_id)
    assert text_of(cell) == "begun\n 40%|████\nafter\n" and cell["execution_count"] == 1
    assert "ran ok" in long.answer.text
    wait_until(lambda: long.running is None)  # the `eval` that waited is through, too
    assert "2" in waits.communicate()[0]
    printed = follows.communicate()[0]
    assert printed.startswith("|  40%|████\n| after\n") and re.search(
        r"cell 1 \(id .*\): ok after \d+", printed
    )
    wait_until(lambda: not (project.folder / ".stepper" / "running").exists())


ENDS = {
    "ok": "pass",
    "failed": "raise ValueError(1)",
    "stopped": "raise SystemExit('STOP: which column?')",
    "interrupted": "time.sleep(60)",
}


@pytest.mark.nightly
@pytest.mark.parametrize("how", ENDS)
def test_finished_cell_is_not_shown_as_running(project: Project, how: str) -> None:
    notebook = project.new("Train")
    home = project.folder / ".stepper"
    running_folder, notice, line = (
        home / "running",
        home / "now" / "line",
        home / "statusline",
    )
    source = f"import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('began', 'w')\n{ENDS[how]}"
    thread = threading.Thread(target=notebook.insert, args=(source,))
    thread.start()
    wait_until(
        lambda: running_folder.exists() and notice.exists() and "▶" in line.read_text()
    )
    (notebook.path.parent / "go").touch()
    if how == "interrupted":
        wait_until((notebook.path.parent / "began").exists)
        project.stepper("interrupt", str(notebook.path))
    thread.join()
    until = time.monotonic() + 0.5
    while running_folder.exists() or notice.exists() or "▶" in line.read_text():
        assert time.monotonic() < until, (
            running_folder.exists(),
            notice.exists(),
            line.read_text(),
        )
        time.sleep(0.01)


COUNTS = """# stepper: timeout=90
import os, time
for n in range(1, 601):
    print(f"epoch {n}/600")
    time.sleep(0.1)
    if os.path.exists("go"): break"""


@pytest.mark.nightly
def test_remaining_time_is_estimated_from_output(project: Project) -> None:
    notebook = project.new("Train")
    thread = threading.Thread(target=notebook.insert, args=(COUNTS,))
    thread.start()
    try:
        path = project.folder / ".stepper" / "running"
        line = r'running step 1 of 1 "Train" for \d+ s of at most 90 s, ≈ \d+ (s|min) left: epoch \d+/600\n'
        wait_until(lambda: path.exists() and re.fullmatch(line, path.read_text()))
        assert (
            0
            < project.json("status", str(notebook.path))["running"]["left_seconds"]
            <= 90
        )
        assert re.search(
            r"of at most 90 s, ≈ \d+ (s|min) left: epoch",
            project.stepper("status", str(notebook.path)).stdout,
        )
    finally:
        (notebook.path.parent / "go").touch()
        thread.join()


@pytest.mark.nightly
def test_live_output_continues_after_daemon_was_killed(
    project: Project,
) -> None:
    notebook = project.new("Train")
    long = Long(notebook)
    wait_until(lambda: text_of(long.cell) == f"begun\n {BAR}")
    project.kill_daemon()
    assert long.running["line"] == ""  # the next follower gets the output from then on
    time.sleep(2)
    long.touch("more")
    wait_until(lambda: long.running["line"] == "40%|████")
    time.sleep(3)
    assert text_of(long.cell) == f"begun\n {BAR}"  # which is not the whole
    long.ends()
    assert text_of(notebook.cell(long.cell_id)) == "begun\n 40%|████\nafter\n"
    wait_until(lambda: not (project.folder / ".stepper" / "running").exists())


def test_page_of_a_run_without_daemon(project: Project) -> None:
    notebook = project.new()
    cell_id, _ = notebook.insert("print('all')")
    assert (
        project.stepper("output", cell_id, "--follow").stdout
        == project.stepper("output", cell_id).stdout
    )
    page = project.json("output", cell_id, "--follow")
    assert (page["text"], page["ended"]) == ("| all", "")


def message(text: str) -> dict[str, Any]:
    return {
        "msg_type": "stream",
        "header": {},
        "content": {"name": "stdout", "text": text},
    }


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        ([], ""),
        (["a\nb\n"], "b"),
        (["a\n", "\n \n"], "a"),
        (["x"] * 1000 + ["\n"], "x" * 199),
        (["\r 1%", "\r 2%"], " 2%"),
        (["y" * 10_000], "y" * 4000),
    ],
)
def test_last_output_line(texts: list[str], line: str) -> None:
    area = OutputArea(1000)
    for text in texts:
        area.add_message(message(text))
    assert area.get_last_line()[:200] == line[:200]
    assert area.change_count == len(texts)


def test_running_cell_messages() -> None:
    assert (
        quoted_output.format_running("step 3", 33.4, 120.0, BAR)
        == f"running step 3 for 33 s of at most 2 min: {BAR}"
    )
    assert (
        quoted_output.format_running("step 3", 33, 0.5, "")
        == "running step 3 for 33 s of at most 0.5 s"
    )
    message = quoted_output.format_running(
        "step 3", 33, 120, BAR, None, "job 2 on n1, 40 s of its walltime left"
    )
    assert (
        message
        == f"running step 3 for 33 s of at most 2 min, job 2 on n1, 40 s of its walltime left: {BAR}"
    )
    assert (
        quoted_output.format_running("step 3", 2000, 86400, "x", 250)
        == "running step 3 for 33 min of at most 24 h, ≈ 4 min left: x"
    )


@pytest.mark.parametrize(
    ("remaining", "message"),
    [(0, "5 s"), (42, "40 s"), (58, "1 min"), (3000, "50 min"), (8000, "2.2 h")],
)
def test_estimate_is_rounded(remaining: float, message: str) -> None:
    assert quoted_output.format_estimate(remaining) == message
