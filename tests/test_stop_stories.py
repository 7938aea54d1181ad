"""Stops in a terminal, in an MCP client and in Claude Code's hooks, with real kernels."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
from mcp import Client
from mcp_types import ElicitResult

from tests.conftest import Notebook, Project, reuse_project
from tests.test_mcp import create_notebook, run_scenario, text
from tests.test_run_on_edit import wait_until

QUESTION = "raise RuntimeError('STOP: which column?')"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


def kill_kernel(project: Project, name: str) -> None:
    """Kill a notebook's kernel as the system does, and wait for its end."""
    pid = project.json("status", name)["kernel"]["pid"]
    process = psutil.Process(pid)
    process.kill()
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)


def state(project: Project, name: str) -> str:
    return str(project.json("status", name)["state"])


async def call(client: Client, tool: str, **values: Any) -> str:
    return text(await client.call_tool(tool, values))


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("command", ["continue", "fix"])
@pytest.mark.parametrize(
    ("tool", "values"),
    [
        ("run_cell", {"cell_id": -1, "source": "x = 1"}),
        ("add_cells", {"cells": [{"source": "x = 1"}]}),
        ("run_notebook", {"which": "pending"}),
        ("execute_code", {"code": "1 + 1"}),
        ("notebook_status", {}),
        ("read_notebook", {}),
        ("plan", {}),
    ],
)
def test_terminal_message_reaches_the_agent_once(
    project: Project, tool: str, values: dict[str, Any], command: str
) -> None:
    async def story(client: Client) -> None:
        name = await create_notebook(client, "stopped", steps=["Load", "Plot"])
        await call(client, "run_cell", source=QUESTION)
        assert state(project, name) == "stopped"
        project.stepper(command, "--notebook", name, "the second one")
        read = await call(client, tool, notebook=name, **values)
        assert "the second one" in read, read
        assert f"the user ran `stepper {command}` for {name} in a terminal" in read
        again = await call(client, "notebook_status", notebook=name)
        assert "the second one" not in again, again

    run_scenario(project, story)


@pytest.mark.nightly
def test_user_is_asked_about_the_named_stopped_notebook(
    project: Project,
) -> None:
    requests = list[str]()

    async def ask(context: Any, params: Any) -> ElicitResult:
        requests.append(params.message)
        return ElicitResult(action="accept", content={"decision": "continue"})

    async def story(client: Client) -> None:
        names = []
        for problem in ("prices", "stores"):
            names.append(await create_notebook(client, problem, steps=["Load", "Plot"]))
            await call(client, "run_cell", source=QUESTION)
        refused = await client.call_tool("lift_stop", {})
        assert refused.is_error
        assert not requests
        for name in names:
            assert f"`lift_stop` with `notebook: {name}`" in text(refused)
            assert state(project, name) == "stopped"
        await call(client, "lift_stop", notebook=names[0])
        assert len(requests) == 1
        assert names[0] in requests[0]
        await call(client, "lift_stop")  # one is left
        assert len(requests) == 2
        assert names[1] in requests[1]
        assert [state(project, name) for name in names] == ["ready", "ready"]

    run_scenario(project, story, elicitation_callback=ask)


def test_agent_restores_state_after_idle_kernel_death(
    project: Project,
) -> None:
    async def story(client: Client) -> None:
        name = await create_notebook(client, "died", steps=["Load", "Plot"])
        await call(client, "run_cell", source="x = 5")
        kill_kernel(project, name)
        wait_until(lambda: state(project, name) == "stopped")
        refused = await call(client, "run_cell", source="print(x)")
        way_out = refused.index("`which: restore`")
        assert way_out < refused.index("`lift_stop`") < refused.index("KernelDied")
        assert "To resume" not in refused
        restored = await client.call_tool(
            "run_notebook", {"which": "restore", "notebook": name}
        )
        assert not restored.is_error, text(restored)
        assert state(project, name) == "ready"
        assert "| 5" in await call(client, "run_cell", source="print(x)")

    run_scenario(project, story)


@pytest.mark.nightly
def test_agent_restores_but_cannot_resume_after_cell_killed_kernel(
    project: Project,
) -> None:
    async def story(client: Client) -> None:
        name = await create_notebook(client, "ended", steps=["Load", "Plot"])
        await call(client, "run_cell", source="x = 5")
        ended = await call(client, "run_cell", source="import os; os._exit(7)")
        assert "KernelDied" in ended
        restored = await client.call_tool(
            "run_notebook", {"which": "restore", "notebook": name}
        )
        assert not restored.is_error, text(restored)
        assert "is still stopped" in text(restored)
        assert "`lift_stop`" in text(restored)
        assert state(project, name) == "stopped"
        assert project.stepper("eval", "x", "--notebook", name).stdout == "5\n"

    run_scenario(project, story)


def test_only_the_user_resumes_after_failed_attempts(project: Project) -> None:
    project.config("max_retries: 1")

    async def story(client: Client) -> None:
        name = await create_notebook(client, "failed", steps=["Load", "Plot"])
        await call(client, "run_cell", source="x = 5")
        await call(client, "run_cell", source="x.nosuch")
        stop = await call(client, "run_cell", cell_id=-1, source="x.none")
        assert "which: restore" not in stop, stop  # nothing needs to be rebuilt
        refused = await client.call_tool(
            "run_notebook", {"which": "restore", "notebook": name}
        )
        assert refused.is_error
        assert "Only the user can resume the notebook: `lift_stop`" in text(refused)
        output = project.stepper("restore", name).stdout
        assert f"the variables of {name} are restored" in output
        assert "still stopped" in output
        assert f"stepper fix --notebook {name}" in output
        assert state(project, name) == "stopped"

    run_scenario(project, story)


def restarted_machine(project: Project, notebook: Notebook) -> None:
    """End the daemon and all kernels at once."""
    pid = project.json("status", notebook.name)["kernel"]["pid"]
    project.kill_daemon()
    psutil.Process(pid).kill()
    wait_until(lambda: not psutil.pid_exists(pid))


@pytest.fixture
def after_restart(project: Project) -> Notebook:
    """A notebook of which two of three steps had run when the machine was restarted."""
    notebook = project.new("Load", "Count", "Plot")
    notebook.insert("x = 5")
    notebook.insert("y = 2 * x")
    restarted_machine(project, notebook)
    return notebook


def assert_instructions_first(read: str, *commands: str) -> None:
    """Assert that a text names the ways out before the cause, and within its first part."""
    positions = [read.index(command) for command in commands]
    assert positions == sorted(positions), read
    assert positions[-1] < read.index("KernelDied"), read


def test_claude_code_shows_instructions_first_after_machine_restart(
    project: Project, after_restart: Notebook
) -> None:
    commands = after_restart.commands
    expected_commands = [commands.shell("restore"), commands.slash("continue")]
    last = after_restart.raw["cells"][-1]["id"]
    assert_instructions_first(
        after_restart.before("insert", "print(y)", last).denied, *expected_commands
    )
    answer = after_restart.insert("print(y)")[1]
    assert answer.line.index(expected_commands[0]) < answer.line.index(
        expected_commands[1]
    ), answer.line
    assert_instructions_first(answer.text, *expected_commands)
    started = after_restart.payload("SessionStart", "", {}, source="startup")
    context = project.hook("SessionStart", started).text
    assert expected_commands[0] in context, context


@pytest.mark.nightly
def test_terminal_shows_instructions_after_machine_restart(
    project: Project, after_restart: Notebook
) -> None:
    output = project.stepper("status", after_restart.name).stdout
    restore = after_restart.commands.shell("restore")
    assert re.search(rf"^  {re.escape(restore)}  +\S", output, re.M), output
    assert project.json("restore", after_restart.name)["ran"] == 2
    assert state(project, after_restart.name) == "ready"


@pytest.mark.nightly
def test_mcp_agent_gets_instructions_first_after_machine_restart(
    project: Project, after_restart: Notebook
) -> None:
    async def story(client: Client) -> None:
        name = after_restart.name
        refused = await call(client, "run_cell", source="print(y)", notebook=name)
        assert_instructions_first(refused, "`which: restore`", "`lift_stop`")
        restored = await call(client, "run_notebook", which="restore", notebook=name)
        assert "ran ok" in restored
        assert "| 10" in await call(
            client, "run_cell", source="print(y)", notebook=name
        )

    run_scenario(project, story)
