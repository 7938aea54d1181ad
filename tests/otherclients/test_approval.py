"""What the real Codex lets an agent do without approval.

`codex exec` runs with its default approval policy and sandbox.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT

from .clients import Codex, run
from .conftest import Start
from .models import Call
from .test_seven_steps import write_client_config

# the first test may download the client
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]
DOCS = ROOT / "docs/development/mcp.md"
GUIDE = ROOT / "docs/mcp.md"
REFUSAL = "MCP tool call requires approval, but approval policy is never"
TRUSTED = '[projects."{}"]\ntrust_level = "trusted"\n'
CANARY = "open('canary.txt', 'w').write('it ran')"
NEEDS_APPROVAL = [
    Call("create_notebook", {"problem": "a canary", "cells": [{"source": CANARY}]}),
    Call("run_cell", {"source": CANARY}),
    Call("add_cells", {"cells": [{"source": CANARY}]}),
    Call("run_notebook", {"which": "all"}),
    Call("execute_code", {"code": CANARY}),
    Call("verify", {}),
    Call("kernel", {"action": "start"}),
    Call("change_cells", {"action": "delete", "cell_ids": [-1]}),
    Call("lift_stop", {}),
]


def add_notebook(installed: Path) -> None:
    notebook = installed / "notebooks" / "canary.ipynb"
    notebook.parent.mkdir(exist_ok=True)
    notebook.write_text(
        '{"cells": [{"cell_type": "code", "id": "canary", "metadata": {}, "outputs": [], "execution_count": null,'
        f' "source": "{CANARY}"}}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}'
    )


@pytest.mark.parametrize("kind", [Codex], indirect=True, ids=["codex"])
def test_codex_exec_runs_no_code_without_approval(
    start: Start, installed_project: Path
) -> None:
    write_client_config(installed_project, "codex")
    add_notebook(installed_project)
    client = start(
        installed_project,
        TRUSTED.format(installed_project),
        Call("list_notebooks", {}),
        Call("plan", {"notebook": "canary"}),
        *NEEDS_APPROVAL,
    )
    assert isinstance(client, Codex)

    summary = client.exec("Work in a notebook.")

    assert (summary.returncode, client.model.unsaid) == (0, 0), summary
    notebooks, plan, *denials = client.model.results
    assert "canary.ipynb" in notebooks.text  # reading tools are allowed
    assert "no plan" in plan.text
    assert len(denials) == len(NEEDS_APPROVAL)
    assert not [*installed_project.rglob("canary.txt")], [
        result.text for result in denials
    ]
    # exactly the text that the documentation quotes
    assert all(result.text.endswith(REFUSAL) for result in denials), denials
    assert f'("{REFUSAL}")' in " ".join(DOCS.read_text().split())


@pytest.mark.parametrize("kind", [Codex], indirect=True, ids=["codex"])
def test_documented_setting_approves_calls(
    start: Start, installed_project: Path
) -> None:
    settings = write_client_config(installed_project, "codex")
    line = 'default_tools_approval_mode = "approve"'
    for page in (DOCS, GUIDE):
        assert f"`{line}`" in " ".join(page.read_text().split())
    settings.write_text(f"{settings.read_text()}{line}\n")
    add_notebook(installed_project)
    calls = [
        Call("run_notebook", {"notebook": "canary", "which": "all"}),
        Call("kernel", {"notebook": "canary", "action": "restart"}),
    ]
    client = start(installed_project, TRUSTED.format(installed_project), *calls)
    assert isinstance(client, Codex)

    summary = client.exec("Work in a notebook.")

    assert (summary.returncode, client.model.unsaid) == (0, 0), summary
    run_result, restart_result = client.model.results
    assert "1 of 1 cell ran ok" in run_result.text or "ran ok" in run_result.text, (
        run_result
    )
    assert "a new kernel is running" in restart_result.text, restart_result
    assert [*installed_project.rglob("canary.txt")]


@pytest.mark.parametrize("kind", [Codex], indirect=True, ids=["codex"])
def test_untrusted_project_has_no_server(start: Start, installed_project: Path) -> None:
    write_client_config(installed_project, "codex")
    client = start(installed_project, "", "Done.")
    assert isinstance(client, Codex)

    # if the server were required, the client would not start
    command = [*client.install(), "exec", "--json", "--skip-git-repo-check"]
    run([*command, "Work in a notebook."], client.project, client.env, 120)

    assert client.model.requests == []  # no request offered stepper's tools
    assert client.model.other_requests != []
