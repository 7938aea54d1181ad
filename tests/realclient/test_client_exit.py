"""The client exits during a cell: Esc, `kill -9` or a closed terminal.

The cell is cancelled and the kernel keeps running. All tests share one installed
repository; each has its own notebook.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from .client import InteractiveClaude
from .conftest import InteractiveFactory
from .model import Block, ScriptedModel, tool
from .repository import repository, stepper

Model = Callable[..., ScriptedModel]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(120)]
# longer than a heartbeat (2 s) and the interrupt's grace period: fails only if it hangs
SOON = 30.0


@pytest.fixture(scope="module")
def project(
    claude_binary: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A repository with stepper installed without network access."""
    with repository(tmp_path_factory.mktemp("gone") / "a répo") as folder:
        yield folder


def run_json(project: Path, *arguments: str) -> Any:
    return json.loads(stepper(project, *arguments, "--json"))


def wait_until(received: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SOON
    while not received():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def insert(notebook: Path, source: str, after: str) -> Block:
    arguments = {"notebook_path": str(notebook), "cell_id": after, "new_source": source}
    return tool(
        "NotebookEdit", {**arguments, "cell_type": "code", "edit_mode": "insert"}
    )


def press_escape(client: InteractiveClaude, process: psutil.Process) -> None:
    client.keys("Escape")


def kill_client(client: InteractiveClaude, process: psutil.Process) -> None:
    process.kill()


def close_terminal(client: InteractiveClaude, process: psutil.Process) -> None:
    client.close()


@pytest.mark.parametrize("leave", [press_escape, kill_client, close_terminal])
@pytest.mark.parametrize(
    "rest", ["import time; time.sleep(600)", "while True: pass"], ids=["sleep", "loop"]
)
def test_hook_and_cell_stop_when_client_exits(
    project: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
    leave: Callable[[InteractiveClaude, psutil.Process], None],
    rest: str,
) -> None:
    name = f"{leave.__name__} {rest[:3]}"
    notebook = (
        project
        / run_json(project, "new", name, "--step", "Keep", "--step", "Go on")[
            "notebook"
        ]
    )
    model = scripted_model(
        [tool("Read", {"file_path": str(notebook)})],
        [insert(notebook, "kept = 1", "cell-0")],
        [insert(notebook, rest, "cell-1")],
    )
    client = interactive_claude(model)
    client.send("Go.")
    wait_until(lambda: len(run_json(project, "history", str(notebook))) == 1)
    wait_until(
        lambda: run_json(project, "status", str(notebook))["kernel"]["state"] == "busy"
    )
    pid = run_json(project, "status", str(notebook))["kernel"]["pid"]
    (hook,) = [
        p
        for p in psutil.process_iter(["cmdline"])
        if (p.info["cmdline"] or [])[-2:] == [str(project), "PostToolUse"]
    ]
    assert hook.parent().name() == "claude"  # there is no shell between them

    leave(client, hook.parent())

    wait_until(lambda: len(run_json(project, "history", str(notebook))) == 2)
    status = run_json(project, "status", str(notebook))
    assert [run["outcome"] for run in run_json(project, "history", str(notebook))] == [
        "ok",
        "cancelled",
    ]
    assert (status["kernel"]["state"], status["kernel"]["pid"]) == ("idle", pid)
    assert status["steps"][1]["attempts"] == 0
    assert run_json(project, "eval", "kept", "--notebook", str(notebook))[
        "text"
    ].endswith("1")
    wait_until(lambda: not hook.is_running())
