"""What the real Codex lets an agent do that nobody approved: `codex exec` with its default approval and sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from .clients import Codex
from .conftest import Start
from .models import Call
from .test_seven_steps import put

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(300),
]  # the first one may fetch a client
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


@pytest.mark.parametrize("kind", [Codex], indirect=True, ids=["codex"])
def test_no_code_runs_without_approval_in_codex_exec(
    start: Start, installed: Path
) -> None:
    put(installed, "codex")
    notebook = installed / "notebooks" / "canary.ipynb"
    notebook.parent.mkdir(exist_ok=True)
    notebook.write_text(
        '{"cells": [{"cell_type": "code", "id": "canary", "metadata": {}, "outputs": [], "execution_count": null,'
        f' "source": "{CANARY}"}}], "metadata": {{}}, "nbformat": 4, "nbformat_minor": 5}}'
    )
    trusted = f'[projects."{installed}"]\ntrust_level = "trusted"\n'
    client = start(
        installed,
        trusted,
        Call("list_notebooks", {}),
        Call("plan", {"notebook": "canary"}),
        *NEEDS_APPROVAL,
    )
    assert isinstance(client, Codex)

    ended = client.exec("Work in a notebook.")

    assert (ended.returncode, client.model.unsaid) == (0, 0), ended
    listed, plan, *refused = client.model.results
    assert "canary.ipynb" in listed.text  # the server is there, and what reads passes
    assert "no plan" in plan.text
    assert len(refused) == len(NEEDS_APPROVAL)
    assert not [*installed.rglob("canary.txt")], [result.text for result in refused]
    assert all("requires approval" in result.text for result in refused), refused
