"""The client's edits and another agent's cells in one notebook.

Neither agent is refused because of the other, and no cell is lost.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.hook import daemon_client as daemon

from .conftest import ClaudeFactory
from .model import Block, Message, ScriptedModel, text
from .test_run_on_edit import (
    code,
    find_last_edited_cell,
    get_new_text,
    history,
    insert,
    read,
    replace,
)
from .test_undelivered_reports import bash, notebook, project

Model = Callable[..., ScriptedModel]
__all__ = ["notebook", "project"]


def send_request(folder: Path, verb: str, **values: Any) -> dict[str, Any]:
    """Send a request to the daemon like the MCP server."""
    environ = {**os.environ, "STEPPER_FACE": "mcp", "STEPPER_SESSION": "another"}
    fields = {os.fsencode(name): os.fsencode(value) for name, value in environ.items()}
    data: dict[str, Any] = json.loads(
        daemon.send_request(
            Paths(str(folder)),
            verb.encode(),
            json.dumps(values).encode(),
            environ=fields,
        )
        or b""
    )
    return data


@pytest.mark.nightly
def test_edit_after_cell_of_another_agent_is_accepted(
    project: Path, notebook: Path, scripted_model: Model, claude: ClaudeFactory
) -> None:
    name, ids = str(notebook), list[str]()

    def between(messages: list[Message]) -> list[Block]:
        ids.append(find_last_edited_cell(messages))
        assert (
            send_request(project, "cell run", notebook=name, source="y = 2")["state"]
            == "ok"
        )
        return [replace(notebook, "x = 10\nx", ids[0])]

    def run_again(_: list[Message]) -> list[Block]:
        send_request(
            project,
            "cell run",
            notebook=name,
            source="# Between",
            cell_type="markdown",
            after=ids[0],
        )
        moved = send_request(
            project,
            "cell change",
            notebook=name,
            action="move",
            cell_ids=["-2"],
            after="top",
        )
        return [insert(notebook, "print(x + y)", moved["cells"][-1])]

    model = scripted_model(
        [read(notebook)],
        [insert(notebook, "x = 1", "cell-0")],
        between,
        run_again,
        [bash("ls")],
        [text("Done. Is it right?")],
    )
    claude(model).prompt("Begin.")
    assert all("ran ok" in get_new_text(model, turn) for turn in (2, 3, 4))
    assert not any(
        "has been modified since" in get_new_text(model, turn)
        for turn in range(len(model.requests))
    )
    assert not any(
        "was changed outside" in get_new_text(model, turn)
        for turn in range(len(model.requests))
    )
    assert [source for source, _ in code(notebook)] == [
        "x = 10\nx",
        "y = 2",
        "print(x + y)",
    ]
    assert code(notebook)[-1][1] == "12\n"
    assert [run["by"] for run in history(notebook)] == ["hook", "mcp", "hook", "hook"]
