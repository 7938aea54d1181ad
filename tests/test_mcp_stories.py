"""Typical sessions with the MCP tools, as agents know them from other servers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
from mcp import Client
from mcp_types import ElicitResult

from tests.conftest import Project, reuse_project
from tests.test_mcp import create_notebook, run_scenario, text
from tests.test_oom import IN_ONE_GO, Group, small

__all__ = ["small"]  # a cgroup of 320 MB with the daemon inside


@pytest.fixture
def shared(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


async def call_ok(client: Client, tool: str, **values: Any) -> str:
    """Call a tool that must succeed and return its text."""
    result = await client.call_tool(tool, values)
    assert not result.is_error, text(result)
    return text(result)


async def context(client: Client) -> dict[str, Any]:
    """Return the kernel's state for an agent without memory."""
    context: dict[str, Any] = (
        await client.call_tool("notebook_status", {})
    ).structured_content["context"]
    return context


async def cells(client: Client, **values: Any) -> list[dict[str, Any]]:
    """Return the notebook's cells."""
    cells: list[dict[str, Any]] = (
        await client.call_tool("read_notebook", values)
    ).structured_content["cells"]
    return cells


def notebooks(project: Project) -> set[Path]:
    return {*(project.folder / "notebooks").glob("*.ipynb")}


# --- a session: new, run, edit, interrupt, shutdown, same notebook, restore -


async def create_and_run_cells(client: Client) -> str:
    """Create a notebook, run and edit cells, add text, use scratch execution."""
    name = await create_notebook(client, "an experiment")
    assert "a new kernel is running" in await call_ok(client, "kernel", action="start")
    assert "| 1" in await call_ok(client, "run_cell", source="rate = 1\nprint(rate)")
    assert "| 2" in await call_ok(
        client, "run_cell", cell_id=1, old_string="rate = 1", new_string="rate = 2"
    )
    await call_ok(client, "run_cell", source="## The rate", cell_type="markdown")
    await call_ok(client, "run_cell", cell_id=-1, source="## Rate")
    assert "| 20" in await call_ok(client, "execute_code", code="rate * 10")
    assert [cell["source"] for cell in await cells(client)][1:] == [
        "rate = 2\nprint(rate)",
        "## Rate",
    ]
    return name


async def interrupt_long_cell(client: Client) -> None:
    """A cell that takes too long is interrupted; the kernel keeps its variables."""
    report = await call_ok(
        client, "run_cell", source="import time\ntime.sleep(60)", wait_seconds=0.5
    )
    assert "still running" in report
    response = await call_ok(client, "kernel", action="interrupt")
    assert re.search(
        r": interrupted cell \d; the kernel keeps its variables\.", response
    )
    ended = await client.call_tool("notebook_status", {"wait_seconds": 20})
    assert ended.structured_content["history"][-1]["outcome"] == "cancelled"
    await call_ok(client, "change_cells", action="delete", cell_ids=[-1])
    assert "| 2" in await call_ok(client, "execute_code", code="rate")


async def restore_kernel(client: Client, name: str) -> None:
    """A new kernel for the same notebook runs the successful cells again."""
    await call_ok(client, "kernel", action="shutdown", notebook=name)
    assert "a new kernel is running" in await call_ok(
        client, "kernel", action="start", notebook=name
    )
    assert "rate" not in (await context(client))["variables"]
    assert "ran ok" in await call_ok(
        client, "run_notebook", which="restore", notebook=name
    )
    assert (await context(client))["variables"]["rate"].startswith("int")
    assert (await cells(client, outputs="full"))[1]["status"] == "done"


@pytest.mark.parametrize(
    "era", ["legacy", pytest.param("auto", marks=pytest.mark.nightly)]
)
def test_session_lifecycle(shared: Project, era: str) -> None:
    before = notebooks(shared)

    async def story(client: Client) -> None:
        name = await create_and_run_cells(client)
        await interrupt_long_cell(client)
        await restore_kernel(client, name)
        status = (await client.call_tool("notebook_status", {})).structured_content
        assert status["resources"]["kernel"]["memory_bytes"] > 0
        assert notebooks(shared) - before == {shared.folder / name}

    run_scenario(shared, story, era)


@pytest.mark.nightly
def test_session_with_kernel_killed_out_of_memory(
    project: Project, small: Group
) -> None:
    project.config("max_memory_percent: 100")  # the guard cannot react in time

    async def agreed(*_: Any) -> ElicitResult:
        return ElicitResult(
            action="accept", content={"decision": "continue", "words": "less at a time"}
        )

    async def story(client: Client) -> None:
        name = await create_and_run_cells(client)
        died = await client.call_tool("run_cell", {"source": IN_ONE_GO})
        assert "out of memory" in text(died)
        assert died.is_error  # the notebook is stopped
        assert small.kills() == 1
        refused = await client.call_tool("run_cell", {"source": "rate"})
        assert refused.is_error
        assert "stopped" in text(refused)
        assert "The client answered: continue." in await call_ok(client, "lift_stop")
        await call_ok(client, "change_cells", action="delete", cell_ids=[-1])
        await restore_kernel(client, name)

    run_scenario(project, story, elicitation_callback=agreed)


# --- four ways to fill a notebook -----------------------------------------------------


def test_notebook_is_created_with_cells_and_extended(shared: Project) -> None:
    before = notebooks(shared)

    async def first(client: Client) -> None:
        cells = [
            {"cell_type": "markdown", "source": "# Primes"},
            {"source": "from math import isqrt"},
            {
                "source": "def prime(n):\n    return n > 1 and all(n % k for k in range(2, isqrt(n) + 1))"
            },
            {"source": "primes = [n for n in range(20) if prime(n)]\nprint(primes)"},
        ]
        assert "| [2, 3, 5, 7, 11, 13, 17, 19]" in await call_ok(
            client, "create_notebook", problem="Primes", cells=cells
        )

    async def later(client: Client) -> None:
        """A new client without memory does not create a second notebook."""
        text = await context(client)
        (notebook,) = notebooks(shared) - before
        assert text["current_notebook"] == f"notebooks/{notebook.name}"
        assert "isqrt" in {*text["imported_modules"], *text["defined_functions"]}
        assert "prime" in text["defined_functions"]
        assert text["variables"]["primes"].startswith("list of 8")
        tools = [
            {"cell_type": "markdown", "source": "Their sum"},
            {"source": "print(sum(primes))"},
        ]
        assert "| 77" in await call_ok(client, "add_cells", cells=tools)
        assert [cell["type"] for cell in await cells(client)][-5:] == [
            "code",
            "code",
            "code",
            "markdown",
            "code",
        ]

    run_scenario(shared, first)
    run_scenario(shared, later, "legacy")
    (path,) = notebooks(shared) - before
    document = json.loads(path.read_text())
    assert [
        cell["outputs"][0]["text"] for cell in document["cells"] if cell.get("outputs")
    ][-1] in ("77\n", ["77\n"])


def test_context_text_for_agent_without_tools(shared: Project) -> None:
    before = notebooks(shared)

    async def story(client: Client) -> None:
        await create_notebook(client, "context")
        await call_ok(
            client,
            "run_cell",
            source="import json\nlimit = 3\ndef double(n):\n    return 2 * n",
        )

    run_scenario(shared, story)
    output = shared.stepper("context", "--for", "an agent").stdout
    (path,) = notebooks(shared) - before
    for expected_text in (path.name, "json", "double", "limit"):
        assert expected_text in output


@pytest.mark.nightly
@pytest.mark.parametrize("succeeds", [True, False])
def test_three_retries_by_read_delete_and_add(shared: Project, succeeds: bool) -> None:
    async def story(client: Client) -> None:
        await create_notebook(client, f"retries {succeeds}", steps=["Load", "Tell"])
        tries = [
            "open('a.csv')",
            "open('b.csv')",
            "open('c.csv')",
            "print('read')" if succeeds else "open('d.csv')",
        ]
        result = await client.call_tool("add_cells", {"cells": [{"source": tries[0]}]})
        for retry, source in enumerate(tries[1:], 1):
            assert "FAILED" in text(result)
            assert not result.is_error
            (failed,) = await cells(client, cells=[-1], outputs="full")
            assert "FileNotFoundError" in json.dumps(failed)
            await call_ok(
                client, "change_cells", action="delete", cell_ids=[failed["cell_id"]]
            )
            result = await client.call_tool(
                "add_cells", {"cells": [{"source": source}]}
            )
            if "FAILED" in text(result) and retry < 3:
                # a new cell does not restart the count
                assert f"{retry} of 3 retries used" in text(result)
        assert [cell["source"] for cell in await cells(client)][1:] == [tries[-1]]
        if succeeds:
            assert 'Step 1 of 2 "Load": done' in text(result)
        else:
            assert result.is_error
            assert "Execution stopped" in text(result)
            assert "stopped" in text(
                await client.call_tool("add_cells", {"cells": [{"source": "1"}]})
            )

    run_scenario(shared, story)


@pytest.mark.nightly
def test_changed_module_and_differing_outputs(shared: Project) -> None:
    module = shared.folder / "notebooks" / "prices.py"
    module.write_text("RATE = 2\n")

    async def story(client: Client) -> None:
        name = await create_notebook(client, "a changed module")
        await call_ok(client, "run_cell", source="import prices")
        await call_ok(client, "run_cell", source="print(prices.RATE * 10)")
        module.write_text("RATE = 33\n")
        report = await call_ok(client, "run_cell", source="print(prices.RATE)")
        assert "Reloaded: prices (changed since it was imported).\n" in report
        assert "| 33" in report
        assert "cell 2 used `prices`, which changed after it ran." in report
        report = await call_ok(client, "run_notebook", which="all")
        assert (
            "The outputs of 1 cell differ from those recorded before:\n"
            "cell 2: 1 line differs:\n| - 20\n| + 330\n"
            "Changed since the recorded runs: prices. The outputs may differ"
        ) in report
        check = "To check whether a new kernel reproduces the new outputs, "
        assert f"{check}call: `verify` with `notebook: {name}`" in report
        assert "differ" not in await call_ok(client, "run_notebook", which="restore")
        shared.config("local_modules: warn\n")
        module.write_text("RATE = 4444\n")
        report = await call_ok(client, "run_cell", source="print(prices.RATE)")
        load = "To load the new code, call: `run_notebook` with `which: all` and"
        assert f"{load} `notebook: {name}`" in report
        assert f"Notebook: {name}" in report and "| 33" in report

    run_scenario(shared, story, "legacy")


# --- undo -----------------------------------------------------------------------------


@pytest.mark.nightly
def test_leftover_name_is_reported_before_the_next_version_runs(
    shared: Project,
) -> None:
    """The fixed cell drops the import that only its failed version had."""

    async def story(client: Client) -> None:
        await create_notebook(client, "leftovers", steps=["Load", "Plot"])
        await call_ok(client, "run_cell", source="rows = [3, 4]")
        failed = await call_ok(
            client,
            "run_cell",
            source="import statistics as plt\nrows.append(5)\nplt.nothing(rows)",
        )
        assert "FAILED" in failed
        assert "`rows` will be restored, `plt` will be removed" in failed
        (cell_id,) = [cell["cell_id"] for cell in (await cells(client))[-1:]]
        # An agent looks at the values before it writes the next version.
        assert "| [3, 4, 5]" in await call_ok(client, "execute_code", code="rows")
        fixed = {"cell_id": cell_id, "source": "print(plt.mean(rows))"}
        held = text(await client.call_tool("run_cell", fixed))
        assert "did NOT run" in held
        assert (
            "`plt` was bound only by an earlier version of this cell, whose changes are"
            " undone before this version runs" in held
        )
        assert "complete" not in held
        forced = await call_ok(client, "run_cell", **fixed)
        assert "NameError: name 'plt' is not defined" in forced
        fixed["source"] = "import statistics as plt\nprint(plt.mean(rows))"
        done = await call_ok(client, "run_cell", **fixed)
        assert "| 3.5" in done
        assert "The notebook is complete" in done
        verified = await client.call_tool("verify", {})
        assert verified.structured_content["reproduces"]

    run_scenario(shared, story)


def test_run_is_undone_by_request(shared: Project) -> None:
    async def story(client: Client) -> None:
        name = await create_notebook(client, "undo", steps=["Load", "Change"])
        await call_ok(client, "run_cell", source="rows = [1]")
        await call_ok(client, "run_cell", source="rows.append(2)\nextra = 3")
        undone = await call_ok(client, "kernel", action="undo")
        assert undone.startswith(
            f"{name}: The changes of cell 2 in the kernel were undone: `rows` was"
            " restored; `extra` was removed."
        )
        assert "`run_notebook` with `which: stale`" in undone
        status = await client.call_tool("notebook_status", {})
        assert status.structured_content["undo"]["cell"] == 1
        assert "undo: back to cell 1 (1 run; " in text(status)
        assert status.structured_content["state"] == "ready"
        assert "| [1]" in await call_ok(client, "execute_code", code="rows")
        await call_ok(client, "run_notebook", which="stale")
        assert "| [1, 2]" in await call_ok(client, "execute_code", code="rows")
        refused = await client.call_tool("kernel", {"action": "undo", "cell": 9})
        assert "has no code cell '9'" in text(refused)
        undone = await call_ok(client, "kernel", action="undo", cell=1)
        assert "The changes of cells 1 and 2 in the kernel were undone" in undone

    run_scenario(shared, story)
