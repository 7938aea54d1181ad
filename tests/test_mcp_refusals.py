"""Refused calls of MCP tools change nothing and name the error."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
from mcp import Client

from stepper.mcp import tools
from tests.conftest import code
from tests.test_mcp import run_scenario
from tests.test_session import Quick
from tests.test_session import project as without_processes

quick = without_processes

# Calls about the notebook `other`, each refused for another reason.
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("list_notebooks", {"page": 99}),
    ("list_notebooks", {"notebook": "other"}),
    ("create_notebook", {"problem": " "}),
    ("create_notebook", {"problem": "p", "place": "nowhere"}),
    ("create_notebook", {"problem": "p", "cells": [{"cell_type": "code"}]}),
    ("read_notebook", {"notebook": "other", "page": 99}),
    ("read_notebook", {"notebook": "other", "cells": ["nobody"]}),
    ("run_cell", {"notebook": "other"}),
    ("run_cell", {"notebook": "other", "source": "1", "cell_id": 1, "after": 1}),
    ("run_cell", {"notebook": "other", "source": "1", "old_string": "x"}),
    ("run_cell", {"notebook": "other", "source": "1", "cell_id": "nobody"}),
    ("run_cell", {"notebook": "other", "source": "1", "after": 99}),
    (
        "run_cell",
        {"notebook": "other", "old_string": "zz", "new_string": "", "cell_id": 1},
    ),
    (
        "run_cell",
        {"notebook": "other", "source": "1", "cell_id": 1, "expected_source_hash": "0"},
    ),
    ("run_cell", {"notebook": "other", "source": "1", "cell": 1}),
    ("run_cell", {"notebook": "other", "source": "1", "timeout_seconds": -1}),
    ("run_cell", {"notebook": "stopped", "source": "1"}),
    ("add_cells", {"notebook": "other", "cells": []}),
    ("add_cells", {"notebook": "other", "cells": [{"source": "1"}], "after": 99}),
    ("add_cells", {"notebook": "stopped", "cells": [{"source": "1"}]}),
    ("change_cells", {"notebook": "other", "action": "delete", "cell_ids": [99]}),
    (
        "change_cells",
        {"notebook": "other", "action": "delete", "cell_ids": [1], "after": 2},
    ),
    (
        "change_cells",
        {
            "notebook": "other",
            "action": "delete",
            "cell_ids": [1],
            "expected_source_hashes": ["0"],
        },
    ),
    ("run_notebook", {"notebook": "other", "which": "none"}),
    ("run_notebook", {"notebook": "stopped"}),
    ("verify", {"notebook": "other", "place": "nowhere"}),
    ("verify", {"notebook": "other", "twice": True}),
    ("execute_code", {"notebook": "other", "code": ""}),
    ("execute_code", {"notebook": "other", "code": "1", "timeout_seconds": 0}),
    ("notebook_status", {"notebook": "nowhere"}),
    ("notebook_status", {"notebook": "other", "wait_seconds": -1}),
    ("plan", {"notebook": "other", "action": "add"}),
    ("plan", {"notebook": "other", "action": "remove", "id": 9}),
    ("plan", {"notebook": "other", "action": "confirm", "reason": "so"}),
    ("plan", {"notebook": "other", "action": "show", "title": "x"}),
    ("kernel", {"notebook": "other", "action": "start", "place": "nowhere"}),
    ("kernel", {"notebook": "other", "action": "restart", "place": "nowhere"}),
    ("kernel", {"notebook": "other", "action": "interrupt", "place": "local"}),
    ("kernel", {"notebook": "nowhere", "action": "restart"}),
    ("lift_stop", {"notebook": "nowhere"}),
    ("lift_stop", {"notebook": "stopped"}),  # this client can't ask
]


def test_refusals_cover_every_tool() -> None:
    assert {tool for tool, _ in REFUSED} == {*tools.TOOLS}


@pytest.mark.nightly_after(15)
@pytest.mark.parametrize(
    ("tool", "arguments"),
    REFUSED,
    ids=[f"{tool} {json.dumps(arguments)}"[:80] for tool, arguments in REFUSED],
)
def test_refused_call_changes_nothing(
    quick: Quick, tool: str, arguments: dict[str, Any]
) -> None:
    cells = [code("x = 1", "a"), code("y = 2", "b")]
    paths = [quick.notebook(f"{name}.ipynb", cells).path for name in ("mine", "other")]
    stopping = code("raise RuntimeError('STOP: which?')", "s")
    paths.append(quick.notebook("stopped.ipynb", [stopping]).path)

    async def current(client: Client) -> list[str]:
        listed = await client.call_tool("list_notebooks", {})
        rows = listed.structured_content["notebooks"]
        return [row["notebook"] for row in rows if row["current"]]

    def files() -> dict[str, bytes]:
        folder = Path(quick.folder, "notebooks")
        return {path.name: path.read_bytes() for path in folder.glob("[!.]*")}

    async def story(client: Client) -> None:
        await client.call_tool("run_cell", {"notebook": "stopped", "cell_id": "s"})
        await client.call_tool("run_cell", {"notebook": "mine", "cell_id": "a"})
        before = files()
        assert await current(client) == ["notebooks/mine.ipynb"]
        refused = await client.call_tool(tool, arguments)
        assert refused.is_error, refused.content[0].text
        assert refused.content[0].text.strip()
        assert await current(client) == ["notebooks/mine.ipynb"]
        assert files() == before

    run_scenario(quick, story)


# --- what is said of arguments --------------------------------------------------------


def test_missing_cell_error_names_the_cell_count(
    quick: Quick,
) -> None:
    cells = [code(f"x{number} = 1", f"c{number}") for number in range(32)]
    quick.notebook("many.ipynb", cells)

    async def story(client: Client) -> None:
        arguments = {"notebook": "many", "cell_id": "99"}
        for tool, source in (
            ("run_cell", {"source": "1"}),
            ("run_cell", {}),
        ):
            result = await client.call_tool(tool, {**arguments, **source})
            assert "there is no cell '99'" in result.content[0].text
            assert "32 cells" in result.content[0].text

    run_scenario(quick, story)


def test_hash_mismatch_returns_the_current_source(
    quick: Quick,
) -> None:
    quick.notebook("a.ipynb", [code("x = 1", "a"), code("y = 2", "b")])

    async def story(client: Client) -> None:
        read = await client.call_tool("read_notebook", {"notebook": "a"})
        hashes = [cell["source_hash"] for cell in read.structured_content["cells"]]
        changed = {"notebook": "a", "cell_id": "a", "source": "x = 5"}
        response = await client.call_tool(
            "run_cell", {**changed, "expected_source_hash": hashes[0]}
        )
        assert "ran ok" in response.content[0].text
        for tool, arguments in (
            ("run_cell", {**changed, "expected_source_hash": hashes[0]}),
            ("run_cell", {"cell_id": "a", "expected_source_hash": hashes[0]}),
            (
                "change_cells",
                {
                    "action": "delete",
                    "cell_ids": ["b", "a"],
                    "expected_source_hashes": [hashes[1], hashes[0]],
                },
            ),
        ):
            refused = await client.call_tool(tool, arguments)
            assert refused.is_error
            assert "nothing was changed" in refused.content[0].text
            assert "| x = 5" in refused.content[0].text

    run_scenario(quick, story)


# --- a status tells each thing once ---------------------------------------------------


def find_repeated_lines(text: str) -> list[str]:
    """Return the lines of a report that occur twice in a text."""
    lines = [line.strip(" |") for line in text.splitlines()]
    long_lines = [line for line in lines if len(line) > 30]
    return sorted({line for line in long_lines if long_lines.count(line) > 1})


@pytest.mark.nightly
def test_status_contains_no_report_twice(quick: Quick) -> None:
    async def story(client: Client) -> None:
        async def status(**options: Any) -> str:
            result = await client.call_tool("notebook_status", options)
            data = result.structured_content
            assert len(json.dumps(data, ensure_ascii=False)) <= 10_000
            text = str(result.content[0].text)
            assert find_repeated_lines(text) == [], text
            assert len(re.findall(r"^stepper: [Cc]ell", text, re.M)) <= 1, text
            return text

        steps = ["Load the data :: n == 2", "Plot"]
        await client.call_tool("create_notebook", {"problem": "once", "steps": steps})
        await status()
        shown = "print('a line that is long enough to be told apart')"
        await client.call_tool("run_cell", {"source": f"{shown}\nn = 1"})
        await status()
        fails = f"{shown}\nraise ValueError('a message that is long enough to see')"
        await client.call_tool("run_cell", {"cell_id": -1, "source": fails})
        assert "a message that is long enough" in await status()
        slow = f"import time\ntime.sleep(0.5)\n{shown}\nn = 2"
        arguments = {"cell_id": -1, "source": slow, "wait_seconds": 0}
        await client.call_tool("run_cell", arguments)
        ended = await status(wait_seconds=20)
        assert "ran ok" in ended
        await status()
        await status(wait_seconds=1)
        slow = slow.replace("n = 2", "raise RuntimeError('STOP: which column is it?')")
        arguments = {"source": slow, "wait_seconds": 0}
        await client.call_tool("run_cell", arguments)
        for _ in range(100):
            if "which column is it?" in await status():
                break
            await asyncio.sleep(0.05)
        assert "which column is it?" in await status()
        await status(wait_seconds=5)

    run_scenario(quick, story)
