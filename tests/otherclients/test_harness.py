"""Tests of the harness, and of how clients handle each kind of MCP response.

The design of stepper's MCP server relies on these facts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .clients import Client, Codex
from .conftest import Start
from .models import Call

# the first test may download the client
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]
SERVER = str(Path(__file__).with_name("minimal_server.py"))


def servers(kind: type[Client]) -> str:
    """The small server in the client's settings."""
    if kind is Codex:
        return f'[mcp_servers.stepper]\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n'
    return json.dumps(
        {"mcpServers": {"stepper": {"command": sys.executable, "args": [SERVER]}}}
    )


def test_client_passes_each_kind_of_response_to_the_model(
    kind: type[Client], start: Start, tmp_path: Path
) -> None:
    client = start(
        tmp_path,
        servers(kind),
        Call("run_cell", {"source": "1"}),
        Call("list_notebooks", {}),
        Call("run_cell", {"source": "error"}),
        Call("lift_stop", {}),
        Call("lift_stop", {"form": False}),
    )

    ended = client.prompt("Go.")

    assert (ended.returncode, client.model.unsaid) == (0, 0), ended
    assert {
        "run_cell",
        "list_notebooks",
        "lift_stop",
    } <= client.model.list_tools().keys()
    run_result, data, failed, approval, approved = client.model.results
    assert ("Cell 1 ran: 1" in run_result.text, run_result.images) == (True, 1)
    assert "Cell 1 ran: error" in failed.text
    if kind is Codex:
        # structured content has priority
        assert "as data" in data.text and "as text" not in data.text
        assert failed.images == 1
        assert "decline" in approval.text  # the user was not asked
        # the user was not asked; an empty form is no consent
        assert "accept" in approved.text
    else:
        assert "as text" in data.text
        assert "iVBOR" in failed.text  # images of an error become text
        assert "not asked" in approval.text
