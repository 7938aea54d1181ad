"""`stepper watch` on a terminal."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator

import pexpect
import pytest

from tests.conftest import Project, reuse_project

COMMAND = ["-c", "from stepper.cli.main import main; main()", "watch"]


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


def test_watch_job_on_a_terminal(project: Project) -> None:
    notebook = project.new(
        "Load", "Train", "Ask", problem="How wet is \x1b[31mSeattle?"
    )
    environ = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    child = pexpect.spawn(
        sys.executable,
        COMMAND,
        cwd=str(project.folder),
        env=environ,
        encoding="utf-8",
        timeout=120,
        dimensions=(40, 100),
    )
    child.expect("How wet is Seattle")
    child.expect(r"·.* 1\. Load")
    notebook.insert("print('\\x1b]0;title\\x07three rows [bold]')")
    child.expect("last report")
    child.expect(r"\| three rows \[bold\]")
    gate = project.folder / "gate"
    runs = threading.Thread(
        target=notebook.insert,
        args=(
            f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    print('epoch', flush=True)\n    time.sleep(0.05)",
        ),
    )
    runs.start()
    child.expect(r"step 2 · \d+\.\d s of 30 s")
    child.expect("epoch")
    gate.write_text("")
    runs.join()
    notebook.insert("raise RuntimeError('STOP: may I?')")
    child.expect("Execution stopped at cell 3")
    child.expect("The agent asks: may I\\?")
    child.expect("stepper continue ANSWER")
    child.sendintr()
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "\x1b[?25h" in child.before  # the cursor is there again


def test_watch_requires_a_terminal(project: Project) -> None:
    refused = project.stepper("watch", check=2)
    assert re.match(
        r"stepper: `stepper watch` needs a terminal.*\n.*stepper status",
        refused.stderr,
    )
    assert refused.stdout == ""
