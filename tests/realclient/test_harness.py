"""Tests of the harness with the real client, in a project with one hook."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.npm_packages import Unavailable, unavailable

from . import client as harness
from .conftest import ClaudeFactory, InteractiveFactory, StreamFactory
from .model import (
    Block,
    Message,
    ScriptedModel,
    cell_ids,
    collect_text,
    text,
    tool,
    tool_results,
)

EMPTY = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}

ANSWER = """
import json, sys
payload = json.load(sys.stdin)
print(json.dumps({
    "systemMessage": "ran " + payload["tool_response"]["cell_id"],
    "hookSpecificOutput": {
        "hookEventName": "PostToolUse",
        "additionalContext": "Report on " + payload["tool_response"]["cell_id"],
    },
}))
"""

SLEEP = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[0]).parent
def stopped(number, frame):
    (folder / "signal").write_text(signal.Signals(number).name)
    sys.exit()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, stopped)
(folder / "started").touch()
time.sleep(60)
"""

LATER = """
import json, pathlib, sys, time
payload = json.load(sys.stdin)
if payload["hook_event_name"] == "UserPromptSubmit":
    with open(pathlib.Path(sys.argv[0]).with_name("prompts"), "a") as file:
        file.write(json.dumps(payload["prompt"]) + "\\n")
else:
    time.sleep(3)
    print("the report", file=sys.stderr)
    sys.exit(2)
"""

Model = Callable[..., ScriptedModel]


def install_hook(project: Path, script: str) -> None:
    """Install this script as the PostToolUse hook for `NotebookEdit`."""
    handler = {
        "type": "command",
        "if": "NotebookEdit(notebooks/**/*.ipynb)",
        "command": sys.executable,
        "args": ["-I", "${CLAUDE_PROJECT_DIR}/.claude/hook.py"],
    }
    hooks = {"PostToolUse": [{"matcher": "NotebookEdit", "hooks": [handler]}]}
    (project / ".claude").mkdir()
    (project / ".claude" / "settings.json").write_text(json.dumps({"hooks": hooks}))
    (project / ".claude" / "hook.py").write_text(script)


def write(notebook: Path) -> Block:
    return tool("Write", {"file_path": str(notebook), "content": json.dumps(EMPTY)})


def insert(notebook: Path, source: str, after: str | None = None) -> Block:
    arguments = {
        "notebook_path": str(notebook),
        "new_source": source,
        "cell_type": "code",
    }
    position = {} if after is None else {"cell_id": after}
    return tool("NotebookEdit", {**arguments, **position, "edit_mode": "insert"})


def sources(notebook: Path) -> list[str]:
    return [
        "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]
    ]


@pytest.mark.nightly
def test_hook_context_is_shown_in_next_turn(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    install_hook(project, ANSWER)
    notebook = project / "notebooks" / "a.ipynb"
    model = scripted_model([write(notebook)], [insert(notebook, "1")], [text("bye")])

    result = claude(model).prompt("Write a notebook.")

    assert (result.returncode, result.text, result.stderr) == (0, "bye", "")
    assert sources(notebook) == ["1"]
    cell = json.loads(notebook.read_text())["cells"][0]["id"]
    assert "Report on " not in collect_text(model.requests[1])
    assert f"Report on {cell}" in model.shown_since(1)
    assert "Write a notebook." in model.shown()
    assert model.unsaid == 0


@pytest.mark.nightly
def test_turn_can_use_cell_ids_from_tool_results(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    install_hook(project, ANSWER)
    notebook = project / "notebooks" / "a.ipynb"
    cell: dict[str, object] = {
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
    }
    cells = [{**cell, "id": name, "source": name} for name in ("one", "two")]
    notebook.write_text(json.dumps({**EMPTY, "cells": cells}))

    def after_the_first(messages: list[Message]) -> list[Block]:
        return [insert(notebook, "between", after=cell_ids(messages)[0])]

    model = scripted_model(
        [tool("Read", {"file_path": str(notebook)})], after_the_first
    )

    assert claude(model).prompt("Go on.").text == "done"
    assert sources(notebook) == ["one", "between", "two"]
    assert tool_results(model.requests[-1])[-1].startswith("Inserted cell")


@pytest.mark.nightly
def test_hook_is_not_spawned_for_other_notebooks(
    project: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    install_hook(project, ANSWER)
    notebook = project / "b.ipynb"
    model = scripted_model([write(notebook)], [insert(notebook, "1")])

    claude(model).prompt("Write a notebook.")

    assert sources(notebook) == ["1"]
    assert "Report on " not in model.shown()


@pytest.mark.nightly
def test_session_continues_over_several_prompts(
    scripted_model: Model, claude: ClaudeFactory
) -> None:
    model = scripted_model([text("first answer")])
    client = claude(model)

    first = client.prompt("first question")
    model.then([text("second answer")])
    second = client.prompt("second question", "--continue")
    third = client.prompt("third question", "--resume", first.session_id)

    assert [first.text, second.text, third.text] == [
        "first answer",
        "second answer",
        "done",
    ]
    assert first.session_id == second.session_id == third.session_id
    assert "first question" in model.shown() and "second question" in model.shown()


@pytest.mark.nightly
@pytest.mark.parametrize("trusted", [True, False])
def test_permissions_can_be_left_to_the_client(
    project: Path, scripted_model: Model, claude: ClaudeFactory, trusted: bool
) -> None:
    notebook, other_notebook = project / "notebooks" / "a.ipynb", project / "b.ipynb"
    (project / ".claude").mkdir()
    allowed = {"permissions": {"allow": ["Edit(notebooks/**)"]}}
    (project / ".claude" / "settings.json").write_text(json.dumps(allowed))
    model = scripted_model([write(notebook)], [write(other_notebook)])

    result = claude(model, trusted=trusted).prompt(
        "Write two notebooks.", permissions="default"
    )

    assert (notebook.exists(), other_notebook.exists()) == (trusted, False)
    assert "permission" in tool_results(model.requests[-1])[-1]
    assert ("this workspace has not been trusted" in result.stderr) is not trusted


@pytest.mark.nightly
def test_script_failure_stops_the_prompt(
    scripted_model: Model, claude: ClaudeFactory
) -> None:
    def broken(messages: list[Message]) -> list[Block]:
        raise LookupError("no such cell")

    model = scripted_model(broken)

    assert "no such cell" in claude(model).prompt("Go on.").text
    assert isinstance(model.errors.pop(), LookupError)


def test_without_npm_tests_are_skipped_but_fail_in_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="npm") as raised:
        harness.install()

    monkeypatch.setenv("CI", "")
    with pytest.raises(pytest.skip.Exception):
        unavailable(raised.value)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception):
        unavailable(raised.value)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_screen_shows_hook_message(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    install_hook(project, ANSWER)
    notebook = project / "notebooks" / "a.ipynb"
    model = scripted_model(
        [write(notebook)], [insert(notebook, "1")], [text("The end.")]
    )
    client = interactive_claude(model)

    client.send("Write a notebook.")
    screen = client.wait_for("The end.")

    cell = json.loads(notebook.read_text())["cells"][0]["id"]
    assert f"PostToolUse:NotebookEdit says: ran {cell}" in screen
    assert f"Report on {cell}" in model.shown()


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_escape_sends_sigterm_to_hook(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    install_hook(project, SLEEP)
    notebook = project / "notebooks" / "a.ipynb"
    model = scripted_model([write(notebook)], [insert(notebook, "1")])
    client = interactive_claude(model)

    client.send("Write a notebook.")
    wait_for_path(project / ".claude" / "started")
    client.keys("Escape")

    assert wait_for_text(project / ".claude" / "signal") == "SIGTERM"


@pytest.mark.nightly
@pytest.mark.parametrize("open_to_the_end", [True, False])
def test_async_hook_notifies_the_agent_when_it_exits(
    project: Path,
    scripted_model: Model,
    stream_claude: StreamFactory,
    open_to_the_end: bool,
) -> None:
    """Background runs rely on this.

    Exit code 2 notifies the agent, and `UserPromptSubmit` confirms the delivery.
    """
    install_hook(project, LATER)
    settings = json.loads((project / ".claude" / "settings.json").read_text())
    (handler,) = settings["hooks"]["PostToolUse"][0]["hooks"]
    data = {key: value for key, value in handler.items() if key != "if"}
    handler |= {
        "asyncRewake": True,
        "timeout": 3_000_000,
        "rewakeSummary": "the line",
        "rewakeMessage": "Told:",
    }
    settings["hooks"]["UserPromptSubmit"] = [{"hooks": [data]}]
    (project / ".claude" / "settings.json").write_text(json.dumps(settings))
    notebook, prompts = (
        project / "notebooks" / "a.ipynb",
        project / ".claude" / "prompts",
    )
    model = scripted_model(
        [write(notebook)], [insert(notebook, "1")], [text("begun")], [text("woken")]
    )
    client = stream_claude(model)

    client.send("Begin.")
    client.wait_for("begun")
    assert "the report" not in model.shown()
    if open_to_the_end:
        client.wait_for("woken")
        assert (
            "<summary>the line</summary>" in model.shown()
            and "Told: the report" in model.shown()
        )
    client.close()
    woken = [json.loads(line) for line in prompts.read_text().splitlines()][1:]
    assert [
        p.startswith("<task-notification>") and "the report" in p for p in woken
    ] == [True] * open_to_the_end
    assert len(model.requests) == 3 + open_to_the_end


def wait_for_path(path: Path, timeout: float = 120) -> Path:
    """Wait until the path exists and return it."""
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not appear"
        time.sleep(0.02)
    return path


def wait_for_text(path: Path, timeout: float = 120) -> str:
    """Wait until a file has text and return the text."""
    deadline = time.monotonic() + timeout
    while not wait_for_path(path, timeout).read_text():
        assert time.monotonic() < deadline, f"{path.name} stayed empty"
        time.sleep(0.02)
    return path.read_text()


@pytest.mark.nightly
def test_screenshots_can_be_regenerated(claude_binary: Path) -> None:
    """The client's own lines depend on its version.

    stepper's lines are below the edits and below the prompt.
    """
    from docs.pictures import session

    def shown_in(name: str) -> str:
        scene = session.SCENES[name]
        screenshot = session.drawn(session.play(scene), scene.until)
        return "".join(ElementTree.fromstring(screenshot).itertext()).replace(
            "\xa0", " "
        )

    assert "▶ 2/2 Fit a model · 3 s of 30" in shown_in("statusline")
    screenshot = shown_in("session")
    assert '✗ step 2 of 2 "Mean price in Oslo" · KeyError' in screenshot
    assert '✓ step 2 of 2 "Mean price in Oslo" · ok' in screenshot
