"""The client's sandbox for shell commands.

Cells run as usual. `stepper` in a sandboxed shell reports why it cannot reach the daemon.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import apt_packages
from tests.npm_packages import Unavailable, unavailable

from .conftest import ClaudeFactory
from .model import ScriptedModel, tool_results
from .repository import repository, stepper
from .test_run_on_edit import get_new_text, insert, read
from .test_undelivered_reports import bash

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(120)]


@pytest.fixture
def project(claude_binary: Path, tmp_path: Path) -> Iterator[Path]:
    try:
        apt_packages.find_or_unpack_program("bwrap", "bubblewrap")
        apt_packages.find_or_unpack_program("socat", "socat")
    except Unavailable as reason:
        unavailable(reason)
    with repository(tmp_path / "repo") as folder:
        yield folder


def test_cells_run_and_confined_shell_gets_a_hint(
    project: Path,
    home: Path,
    scripted_model: Callable[..., ScriptedModel],
    claude: ClaudeFactory,
) -> None:
    notebook = (
        project
        / json.loads(stepper(project, "new", "Count", "--step=Load", "--json"))[
            "notebook"
        ]
    )
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(
        json.dumps({"sandbox": {"enabled": True, "failIfUnavailable": True}})
    )
    script = [
        [bash("stepper status")],
        [read(notebook)],
        [insert(notebook, "rows = 3\nrows", "cell-0")],
    ]
    model = scripted_model(*script)
    claude(model).prompt("Begin.")
    denial = tool_results(model.requests[1])[-1]
    assert (
        denial.startswith("Exit code 1\nstepper: this shell is confined")
        and "internal error in stepper" not in denial
    )
    commands = json.loads(
        "{"
        + denial[
            denial.index('"sandbox"') : denial.index(" in ~/.claude/settings.json")
        ]
        + "}"
    )
    assert "ran ok" in get_new_text(model, 3)

    settings.write_text(
        json.dumps(
            {
                "sandbox": {
                    "enabled": True,
                    "failIfUnavailable": True,
                    **commands["sandbox"],
                }
            }
        )
    )
    model = scripted_model([bash("stepper status")], [bash("stepper status | cat")])
    claude(model).prompt("Begin.")
    alone, piped = tool_results(model.requests[-1])
    assert "complete, 1 of 1 steps done" in alone
    # only plain calls of stepper leave the sandbox
    assert "this shell is confined" in piped
