"""A daemon and a client of different versions.

The daemon exits when its cells have finished, and the kernels keep running.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLIENT, ROOT, Project, make_env

Call = Callable[..., dict[str, Any]]
# for the replacement of an idle daemon, see test_run_on_edit.py
pytestmark = pytest.mark.nightly


@pytest.fixture(params=["newer", "older"])
def call_other_version(
    project: Project, tmp_path: Path, request: pytest.FixtureRequest
) -> Call:
    """Call another version of stepper (a copy of this one) in the project.

    The argument is a payload or the name of a command.
    """
    copy, version = (
        tmp_path / "other",
        {"newer": "99.0.0", "older": "0.0.1"}[request.param],
    )
    shutil.copytree(
        ROOT / "stepper", copy / "stepper", ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "stepper/__init__.py").write_text(f'__version__ = "{version}"\n')
    make_env(copy / "env", copy)

    def call(request: str | dict[str, Any]) -> dict[str, Any]:
        python = str(copy / "env/bin/python")
        command = [
            python,
            "-I",
            "-S",
            "-c",
            CLIENT,
            str(copy),
            str(project.folder),
            "PostToolUse",
        ]
        if isinstance(request, str):
            command = [
                python,
                "-I",
                "-c",
                "from stepper.cli.main import main; main()",
                request,
                "--json",
            ]
        data = json.dumps(request).encode()
        result = subprocess.run(
            command, input=data, capture_output=True, timeout=120, cwd=project.folder
        )
        assert (result.returncode, result.stderr) == (0, b"")
        return json.loads(result.stdout)

    call.version = version  # type: ignore[attr-defined]
    return call


def text(response: dict[str, Any]) -> str:
    return str(response["hookSpecificOutput"]["additionalContext"])


def wait_until(received: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait for a condition; the timeout only prevents a hang."""
    until = time.monotonic() + seconds
    while not received():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.02)


def test_old_daemon_finishes_its_cell_and_hands_over_the_kernel(
    project: Project, call_other_version: Call
) -> None:
    notebook = project.new()
    notebook.insert("x = 40")
    kernel = project.json("status")["kernel"]["pid"]
    flag = project.folder / "flag"
    wait = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\nprint(x + 1)"
    first, second = (
        notebook.edited("insert", wait),
        notebook.edited("insert", "print(x + 2)"),
    )
    responses: dict[str, str] = {}
    threads = [
        threading.Thread(
            target=lambda: responses.update(
                ours=project.hook("PostToolUse", first).text
            )
        ),
        threading.Thread(
            target=lambda: responses.update(theirs=text(call_other_version(second)))
        ),
    ]
    threads[0].start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    threads[1].start()
    # the daemon exits for the other version
    wait_until(lambda: not Path(project.paths.socket).exists())
    assert responses == {}
    flag.touch()
    for thread in threads:
        thread.join(120)
    assert "| 41" in responses["ours"] and "| 42" in responses["theirs"]
    status = call_other_version("status")
    assert status["daemon"]["version"] == call_other_version.version  # type: ignore[attr-defined]
    assert status["kernel"]["pid"] == kernel
    assert "| 43" in notebook.insert("print(x + 3)")[1].text  # and for this version
    assert project.json("status")["kernel"]["pid"] == kernel
    assert [run["outcome"] for run in project.json("history")] == ["ok"] * 4


@pytest.mark.parametrize("call_other_version", ["newer"], indirect=True)
def test_long_cell_is_not_interrupted_for_another_version(
    project: Project, call_other_version: Call
) -> None:
    notebook = project.new()
    notebook.insert("x = 40")
    flag = project.folder / "flag"
    wait = f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.05)\nx += 1"
    payload = notebook.edited("insert", wait)
    responses: list[str] = []
    thread = threading.Thread(
        target=lambda: responses.append(project.hook("PostToolUse", payload).text)
    )
    thread.start()
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    message = text(call_other_version(notebook.edited("insert", "x = 0")))
    assert "NOT run" in message and "an earlier daemon has not exited yet" in message
    flag.touch()
    thread.join(120)
    assert "ran ok" in responses[0]
    assert "| 41" in text(call_other_version(notebook.edited("insert", "print(x)")))
