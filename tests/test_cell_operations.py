"""Cell operations of other agents: write, run, change and read cells.

The gate is checked first, and one edit runs once. Most tests use a fake kernel; the
socket, the daemon's command table and the files are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepper.common.errors import DaemonError, KernelUnreachableError, StepperError
from stepper.daemon import resource_usage
from stepper.hook import daemon_client
from stepper.notebooks import notebook_json
from stepper.notebooks.notebook_file import IpynbFile
from stepper.policy import cell_list_edits
from stepper.policy.execution_result import CellVersion, Execution
from stepper.policy.model import Cell
from stepper.session import responses
from stepper.session.mcp_responses import GpuUsage, ResourceUsage
from tests.conftest import Project, code, reuse_project, text_of
from tests.fake_kernel import FakeKernel
from tests.test_run_on_edit import wait_until
from tests.test_session import Quick
from tests.test_session import project as quick

FACE = {"STEPPER_FACE": "mcp", "STEPPER_SESSION": "mcp-1"}
project = quick


def make_waiting_cell(project: Quick) -> str:
    """Return the source of a cell that runs until `release_cell` is called."""
    path = str(project.folder / "go")
    return (
        "import os, time\nprint('begun', flush=True)\n"
        f"while not os.path.exists({path!r}): time.sleep(0.01)\nprint('over')"
    )


def release_cell(project: Quick) -> None:
    """Create the file that the cell of `make_waiting_cell` waits for."""
    (project.folder / "go").touch()


class Agent:
    """Another agent, which sends requests like the MCP server."""

    def __init__(self, project: Project, launch: bool = False, **environ: str) -> None:
        self.project, self.launch = project, launch
        self.environ = {
            os.fsencode(name): os.fsencode(value)
            for name, value in {**os.environ, **FACE, **environ}.items()
        }
        self.progress_events: list[dict[str, Any]] = []

    def ask(self, verb: str, **values: Any) -> dict[str, Any]:
        def add_event(body: bytes) -> None:
            self.progress_events += [json.loads(body)] if body else []

        data = json.dumps(values).encode()
        body = daemon_client.send_request(
            self.project.paths,
            verb.encode(),
            data,
            add_event,
            self.launch,
            self.environ,
        )
        document: dict[str, Any] = json.loads(body or b"null")
        return document

    def run(self, source: str | None = None, **values: Any) -> dict[str, Any]:
        return self.ask("cell run", source=source, **values)

    def add(self, *cells: str | dict[str, str], **values: Any) -> dict[str, Any]:
        return self.ask(
            "cell add",
            cells=[
                cell if isinstance(cell, dict) else {"source": cell} for cell in cells
            ],
            **values,
        )

    def cells(self, **values: Any) -> list[dict[str, Any]]:
        cells: list[dict[str, Any]] = self.ask("cell read", **values)["cells"]
        return cells


@pytest.fixture
def agent(project: Quick) -> Agent:
    return Agent(project)


def sources(agent: Agent) -> list[str]:
    return [cell["source"] for cell in agent.cells(outputs="none")]


# --- cell references and changes: pure functions --------------------------------------

CELLS = [
    Cell("a", 0, 0, "markdown", "# A"),
    Cell("b", 1, 1, "code", "x = 1"),
    Cell("3", 2, 2, "code", "y = 2"),
    Cell("c", 3, 3, "code", "z = x"),
]


@pytest.mark.parametrize(
    ("name", "results"),
    [
        ("a", "a"),
        ("cell-0", "a"),
        ("cell-3", "c"),
        (1, "b"),
        ("1", "b"),
        ("2", "3"),
        ("3", "3"),
        (3, "3"),
        (-1, "c"),
        ("-4", "a"),
        (" b ", "b"),
        (-5, None),
        (0, None),
        (4, None),
        ("cell-4", None),
        ("", None),
        ("-0", None),
    ],
)
def test_cell_name_is_resolved(name: str | int, results: str | None) -> None:
    cell = cell_list_edits.find_referenced_cell(CELLS, name)
    assert (cell and cell.id) == results


def test_invalid_cell_name_types_are_rejected() -> None:
    for odd in (True, None, 1.0, ["a"]):
        with pytest.raises(cell_list_edits.CellReferenceError):
            cell_list_edits.get_referenced_cell(CELLS, odd)


@pytest.mark.parametrize(
    ("after", "order"), [(None, "bca3"), ("top", "3bca"), ("b", "b3ca"), (-1, "bca3")]
)
def test_move_cells_to_position(after: str | None, order: str) -> None:
    cells = [
        Cell(name, index, index + 1, "code", name) for index, name in enumerate("b3ca")
    ]
    assert (
        "".join(
            cell.id for cell in cell_list_edits.move_cells(cells, [cells[1]], after)
        )
        == order
    )


def test_edit_requires_exactly_one_match() -> None:
    assert cell_list_edits.edit_source(CELLS, "b", "1", "2") == (CELLS[1], "x = 2")
    assert cell_list_edits.edit_source(CELLS, None, "y = ", "w = ")[0] is CELLS[2]
    for name, old, message in [
        (None, "x", "2 times (1 in cell-1, 1 in cell-3)"),
        ("a", "x", "does not occur in that cell"),
        ("b", "", "empty"),
    ]:
        with pytest.raises(
            cell_list_edits.CellReferenceError,
            match=message.replace("(", r"\(").replace(")", r"\)"),
        ):
            cell_list_edits.edit_source(CELLS, name, old, "")


# --- bytes of the notebook file -------------------------------------------------------

TEXT = st.text('ab\né\u2028\\" {}[],:', max_size=12)


@settings(deadline=None)
@given(
    st.lists(TEXT, max_size=4), st.sampled_from([None, 1, 2]), st.booleans(), st.data()
)
def test_unchanged_cells_keep_their_bytes(
    texts: list[str], indent: int | None, bom: bool, data: st.DataObject
) -> None:
    cells = [
        {"cell_type": "markdown", "id": f"i{n}", "metadata": {}, "source": text}
        for n, text in enumerate(texts)
    ]
    raw = {
        "cells": cells,
        "metadata": {"cells": [1, "]"]},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    text = json.dumps(raw, indent=indent, ensure_ascii=False)
    before = (b"\xef\xbb\xbf" if bom else b"") + text.encode()
    new = {
        "cell_type": "markdown",
        "id": "new",
        "metadata": {},
        "source": ["n\n", "]}"],
    }
    order = data.draw(st.permutations([*range(len(cells)), new]))
    order = order[: data.draw(st.integers(0, len(order)))]
    after = notebook_json.replace_cells(before, order)
    assert notebook_json.load_json(after.removeprefix(b"\xef\xbb\xbf")) == {
        **raw,
        "cells": [cells[cell] if isinstance(cell, int) else new for cell in order],
    }
    for cell in order:
        if isinstance(cell, int):
            piece = json.dumps(cells[cell], indent=indent, ensure_ascii=False)
            piece = piece.replace("\n", "\n" + " " * 2 * indent) if indent else piece
            assert piece.encode() in after


def test_inserted_cell_changes_no_other_line(agent: Agent) -> None:
    new_notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(f"x = {n}") for n in range(3)]
    )
    notebook = agent.project.notebook("a.ipynb")
    nbformat.write(new_notebook, notebook.path)
    before, at = (
        notebook.path.read_text().splitlines(),
        os.stat(notebook.path).st_mtime_ns,
    )
    agent.add(
        {"cell_type": "markdown", "source": "# A\ntext"}, notebook="a", after="cell-0"
    )
    after = notebook.path.read_text().splitlines()
    new = [line for line in after if line not in before]
    assert len(after) - len(before) == 9 and len(new) <= 9
    assert [line for line in after if line in before][: len(before) - 1]
    # Claude Code's next NotebookEdit is not refused
    assert os.stat(notebook.path).st_mtime_ns == at
    nbformat.validate(nbformat.read(notebook.path, 4))
    fresh = notebook.raw["cells"][1]
    assert (
        len(fresh["id"]) == 8
        and fresh["source"] == ["# A\n", "text"]
        and "outputs" not in fresh
    )


def test_nbformat_4_4_cells_without_ids(agent: Agent) -> None:
    notebook = agent.project.notebook("old.ipynb", [code("x = 1")], minor=4)
    response = agent.run("print(x)", notebook="old", after="cell-0")
    assert response["cell_id"] == "cell-1" and "NameError" in response["text"]
    assert agent.run(notebook="old", cell_id=1)["state"] == "ok"
    assert agent.run(notebook="old", cell_id=-1)["state"] == "ok"
    assert (
        all("id" not in cell for cell in notebook.raw["cells"])
        and text_of(notebook.raw["cells"][1]) == "1\n"
    )
    nbformat.validate(nbformat.read(notebook.path, 4))
    assert agent.ask(
        "cell change", notebook="old", action="move", cell_ids=["cell-1"], after="top"
    ) == {
        "notebook": "notebooks/old.ipynb",
        "changed": ["cell-0"],
        "cells": ["cell-0", "cell-1"],
        "count": 1,
        "follows": "Hidden state: cell 1 read `x` from cell 2, which is below it.",
        "unchanged": False,
    }


def test_stale_cell_without_id_is_reported_after_each_run_of_its_provider(
    agent: Agent,
) -> None:
    cells = [code("import random\nx = random.random()"), code("y = x")]
    agent.project.notebook("old.ipynb", cells, minor=4)
    agent.project.json("run", "old")
    for _ in range(2):
        response = agent.run(notebook="old", cell_id=1)
        assert "Stale: cell 2 read `x`" in response["text"]


# --- writing and running cells --------------------------------------------------------


def test_new_cell_runs_like_an_edit(agent: Agent) -> None:
    notebook = agent.project.new("Load", "Plot")
    response = agent.run("x = 5\nprint(x)")
    assert (
        response["state"] == "ok"
        and response["text"].startswith("stepper: Cell 1 (id ")
        and "| 5" in response["text"]
    )
    assert response["line"].startswith('✓ step 1 of 2 "Load" · ok') and response[
        "cells"
    ] == [response["cell_id"]]
    assert text_of(notebook.cell(response["cell_id"])) == "5\n"
    assert agent.ask("status")["steps"][0]["status"] == "done"
    assert [run["by"] for run in agent.project.json("history")] == ["mcp"]


def test_history_names_the_origin_of_each_run(agent: Agent) -> None:
    notebook = agent.project.new("Load", "Plot")
    notebook.insert("x = 5")
    agent.run("y = 5")
    agent.project.kill_daemon()
    agent.project.stepper("run", notebook.path.name, "--all")
    assert [run["by"] for run in agent.project.json("history")] == [
        "hook",
        "mcp",
        "cli",
        "cli",
    ]
    assert [
        line.split()[-2]
        for line in agent.project.stepper("history").stdout.splitlines()[1:]
    ][1] == "mcp"


def test_cell_is_replaced_edited_and_run_again(agent: Agent) -> None:
    notebook = agent.project.new()
    first = agent.run("n = 0")["cell_id"]
    agent.run("print('at end')")
    assert "| 1" in agent.run("n = 1\nprint(n)", cell_id=first)["text"]
    edited = agent.run(old_string="n = 1", new_string="n = 2")
    assert edited["cell_id"] == first and "| 2" in edited["text"]
    assert "| 3" in agent.run(cell_id=1, old_string="= 2", new_string="= 3")["text"]
    second_response = agent.run(cell_id=first)
    assert (
        second_response["state"] == "ok"
        and "| 3" in second_response["text"]
        and second_response["cells"] == [first]
    )
    assert agent.run("n = 3\nprint(n)", cell_id="cell-1")["state"] == "ok"  # unchanged
    assert notebook.cell(first)["source"] == ["n = 3\n", "print(n)"]
    assert len(agent.project.json("history")) == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "nothing to run"),
        (
            {"source": "1", "old_string": "1", "new_string": "2"},
            "give either `source` or the other two",
        ),
        ({"old_string": "x = 1"}, "`new_string` is missing"),
        ({"cell_id": "1", "new_string": "x = 2"}, "`old_string` is missing"),
        (
            {"old_string": "x", "new_string": "y"},
            "`old_string` occurs 2 times (1 in cell-0, 1 in cell-1), but must occur exactly",
        ),
        ({"old_string": "q", "new_string": "y"}, "does not occur in"),
        (
            {"cell_id": "gone", "source": "1"},
            "notebooks/a.ipynb: there is no cell 'gone'; the notebook has 2 cells; nothing was written",
        ),
        ({"cell_id": 1, "source": "1", "after": 1}, "`after` is for a new cell"),
        (
            {"old_string": "1", "new_string": "2", "after": "top"},
            "`after` is for a new cell",
        ),
        ({"source": "1", "after": 9}, "there is no cell '9'"),
        (
            {"source": "1", "cell_type": "html"},
            "'cell_type' must be one of code, markdown, raw",
        ),
        ({"source": "a = '\ud800'"}, "has an unpaired surrogate"),
        (
            {"source": "1", "wait_seconds": float("nan")},
            "'wait_seconds' is out of range",
        ),
        (
            {"source": "1", "wait_seconds": 10**400},
            "'wait_seconds' is out of range",
        ),
        ({"source": "1", "cell_id": True}, "'cell_id' must be of type str or int"),
    ],
)
def test_usage_error_writes_nothing(
    agent: Agent, values: dict[str, Any], message: str
) -> None:
    notebook = agent.project.notebook("a.ipynb", [code("x = 1", "a"), code("x", "b")])
    before = notebook.path.read_bytes()
    with pytest.raises(StepperError) as error:
        agent.ask("cell run", notebook="a", **values)
    assert message in error.value.message and notebook.path.read_bytes() == before


def test_markdown_is_written_and_nothing_runs(agent: Agent) -> None:
    notebook = agent.project.new("Load")
    response = agent.run("# Title", cell_type="markdown")
    assert (
        response["state"] == "nothing to run" and response["line"] == "✓ 1 cell written"
    )
    assert f"a markdown cell (id {response['cell_id']})" in response["text"]
    agent.run("## Title", cell_id=response["cell_id"])  # it keeps its type
    assert notebook.cell(response["cell_id"])["cell_type"] == "markdown"
    agent.run("x = 1", cell_id=response["cell_id"], cell_type="code")
    assert notebook.cell(response["cell_id"])["execution_count"] == 1
    agent.run("text", cell_id=response["cell_id"], cell_type="markdown")
    assert (
        not {"outputs", "execution_count"} & notebook.cell(response["cell_id"]).keys()
    )
    # its text stays
    assert (
        agent.run(cell_id=response["cell_id"], cell_type="raw")["state"]
        == "nothing to run"
    )
    assert notebook.cell(response["cell_id"])["cell_type"] == "raw"
    assert agent.cells(cells=[-1])[0]["source"] == "text"
    nbformat.validate(nbformat.read(notebook.path, 4))


def test_markdown_write_does_not_wait_for_running_cell(
    agent: Agent, project: Quick
) -> None:
    notebook = project.new("Load")
    thread = threading.Thread(
        target=agent.run, args=["import time\nfor _ in range(3000): time.sleep(0.01)"]
    )
    thread.start()
    wait_until(lambda: project.live_kernels and project.kernel().is_busy)
    other_agent = Agent(project)
    assert (
        other_agent.run("# meanwhile", cell_type="markdown", after="top")["state"]
        == "nothing to run"
    )
    assert (
        other_agent.ask("cell change", action="delete", cell_ids=[0 - 2])["changed"]
        == []
    )
    assert other_agent.cells()[-1]["status"] == "running"
    project.stepper("interrupt")
    thread.join()
    assert [cell["cell_type"] for cell in notebook.raw["cells"]] == ["markdown", "code"]


def test_several_cells_stop_at_the_first_failure(agent: Agent) -> None:
    agent.project.new("One", "Two", "Three")
    added = agent.add(
        "x = 1", {"cell_type": "markdown", "source": "then"}, "1 / 0", "print(x)"
    )
    assert (
        added["state"] == "failed"
        and len(added["cells"]) == 4
        and added["cell_id"] == added["cells"][2]
    )
    assert (
        "ZeroDivisionError" in added["text"]
        and "Not run: 1 new or changed code cell below cell" in added["text"]
    )
    response = agent.ask("status")
    assert [step["status"] for step in response["steps"]] == [
        "done",
        "failed",
        "pending",
    ]
    fixed = agent.run("y = 2", cell_id=added["cell_id"])
    assert fixed["state"] == "ok" and 'Step 2 of 3 "Two": done' in fixed["text"]
    assert agent.ask("run", notebook="", which="pending")["ran"] == 1
    assert agent.ask("status")["state"] == "complete"


def test_cells_can_be_written_without_a_run(agent: Agent) -> None:
    notebook = agent.project.new("One")
    added = agent.add("x = 1", "y = 2", run=False, after="top")
    assert added["state"] == "nothing to run" and "2 cells written" in added["text"]
    assert [cell["cell_type"] for cell in notebook.raw["cells"]] == [
        "code",
        "code",
        "markdown",
    ]
    assert agent.project.json("history") == []
    assert (
        agent.project.hook(
            "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=[])
        ).text
        == ""
    )


def test_notebook_is_created_with_cells(agent: Agent) -> None:
    response = agent.ask(
        "new",
        problem="p",
        steps=["One", "Two"],
        cells=[{"source": "x = 2"}, {"source": "print(x)"}],
    )
    assert response["cells"]["state"] == "ok" and "| 2" in response["cells"]["text"]
    assert [step["status"] for step in agent.ask("status")["steps"]] == ["done", "done"]
    assert agent.ask("new", problem="p")["cells"] is None
    for cells, message in [
        ([{"source": "a = '\ud800'"}], "has an unpaired surrogate"),
        ([{"cell": "1"}], "a string `source`"),
    ]:
        with pytest.raises(StepperError, match=message):
            agent.ask("new", problem="refused", cells=cells)
    # and no notebook either
    assert not list(agent.project.folder.glob("notebooks/*refused*"))


def test_repeated_call_id_runs_once(agent: Agent) -> None:
    agent.project.new("One")
    response = agent.run("print('once')", call="call-1")
    second_response = agent.run("print('once')", call="call-1")
    assert (
        second_response["text"] == response["text"]
        and second_response["state"] == "ok"
        and second_response["cell_id"] == response["cell_id"]
    )
    assert len(agent.project.json("history")) == 1 and len(sources(agent)) == 2


def test_call_retried_after_daemon_death_runs_once(
    agent: Agent, project: Quick
) -> None:
    project.new("One")
    results: list[dict[str, Any]] = []

    def send_status() -> None:
        while not any(results):  # no daemon listens during a replacement
            with contextlib.suppress(daemon_client.DaemonExitedError):
                results.append(agent.run(make_waiting_cell(project), call="call-2"))

    thread = threading.Thread(target=send_status)
    thread.start()
    wait_until(lambda: project.live_kernels and project.kernel().is_busy)
    project.kill_daemon()
    release_cell(project)
    thread.join()
    assert results[-1]["state"] == "ok" and "| over" in results[-1]["text"]
    assert len(project.json("history")) == 1 and len(sources(agent)) == 2


def test_cells_not_run_before_daemon_death_are_reported(
    agent: Agent, project: Quick
) -> None:
    project.new("One")
    results: list[dict[str, Any]] = []

    def send_status() -> None:
        while not any(results):
            with contextlib.suppress(daemon_client.DaemonExitedError):
                results.append(
                    agent.add(
                        make_waiting_cell(project),
                        "k = 1",
                        "k",
                        call="call-3",
                    )
                )

    thread = threading.Thread(target=send_status)
    thread.start()
    wait_until(lambda: project.live_kernels and project.kernel().is_busy)
    project.kill_daemon()
    release_cell(project)
    thread.join()
    assert (
        "| over" in results[-1]["text"]
        and "Not run yet: 2 code cells below." in results[-1]["text"]
    )
    assert len(project.json("history")) == 1 and len(sources(agent)) == 4


# --- the gates ------------------------------------------------------------------------


def test_refused_cell_is_not_written(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    failed = agent.run("1 / 0")["cell_id"]
    before = notebook.path.read_bytes()
    refused = agent.run("x = 1")
    assert refused["state"] == "refused" and refused["cells"] == []
    assert (
        refused["text"].startswith(
            "stepper: nothing was written and nothing ran: cell 1"
        )
        and failed in refused["text"]
    )
    assert agent.add("x = 1", "y = 1")["state"] == "refused"
    assert notebook.path.read_bytes() == before
    assert agent.run("x = 1", after="cell-0")["state"] == "ok"  # a helper above it
    agent.project.config("max_cells: 3\n")
    assert agent.add("x = 1", "y = 1", after="cell-0")["state"] == "refused"
    assert (
        "4 code cells exceed the limit of 3"
        in agent.add("x = 1", "y = 1", after="cell-0")["text"]
    )


def test_stop_remains_until_the_user_ends_it(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    first = agent.run("x = 1")["cell_id"]
    stopped = agent.run("die('SIGSEGV')")
    assert (
        stopped["state"] == "stopped"
        and "❌ Execution stopped at cell 2" in stopped["text"]
    )
    before = notebook.path.read_bytes()
    for arguments in (
        {"source": "1"},
        {"source": "1", "cell_id": first},
        {"cell_id": first},
    ):
        refused = agent.ask("cell run", **arguments)
        assert (
            refused["state"] == "stopped"
            and "/continue, /fix or /skip" in refused["text"]
        )
    for verb, arguments in [
        ("run", {"which": "pending"}),
        ("eval", {"source": "1"}),
    ]:
        with pytest.raises(
            StepperError, match="nothing ran: execution of this notebook is stopped"
        ):
            agent.ask(verb, notebook=str(notebook.path), **arguments)
    assert notebook.path.read_bytes() == before
    # restores variables, but the notebook stays stopped
    for verb, arguments in [
        ("run", {"which": "restore"}),
        ("restore", {}),
    ]:
        restored = agent.ask(verb, notebook=str(notebook.path), **arguments)
        assert "the notebook is still stopped" in restored["report"]
    assert agent.run("1")["state"] == "stopped"
    assert agent.run("# why", cell_type="markdown")["state"] == "nothing to run"
    agent.project.stepper("continue")
    assert agent.run("x = 2", cell_id=first)["state"] == "ok"


def test_three_failed_retries_stop_the_notebook(agent: Agent) -> None:
    agent.project.new("One")
    cell = agent.run("d = {}\nd['a']")["cell_id"]
    states = [
        agent.run(f"d = {{}}\nd['{name}']", cell_id=cell)["state"] for name in "bcd"
    ]
    assert states == ["failed", "failed", "stopped"]


def test_eval_runs_without_cells_but_not_after_state_loss(
    agent: Agent,
) -> None:
    agent.project.new("One")
    assert agent.ask("eval", source="1 + 1")["output"] == "2"
    agent.run("x = 5")
    agent.ask("shutdown", notebook=agent.ask("status")["notebook"])
    with pytest.raises(StepperError, match="has no running kernel"):
        agent.ask("eval", source="x")
    assert "state lost" in agent.run("x = 6")["text"]


def test_repeated_failure_is_not_run(agent: Agent) -> None:
    agent.project.new("One")
    cell = agent.run("d = {}\nd['a']")["cell_id"]
    second_response = agent.run(cell_id=cell)
    assert (
        second_response["state"] == "not run"
        and "no file of the project has changed" in second_response["text"]
    )
    assert len(agent.project.json("history")) == 1


def test_preflight_check_finds_certain_failures(agent: Agent) -> None:
    agent.project.new("One")
    agent.run("x = 1")
    response = agent.run("print(nowhere_bound)")
    assert (
        response["state"] == "failed"
        and "did NOT run. The preflight check found" in response["text"]
        and response["figures"] == []
    )


def test_nothing_runs_without_consent(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    agent.run("x = 1")
    agent.project.config("auto_run: ask\n")
    waits = agent.run("y = 1")
    assert (
        waits["state"] == "not run"
        and f"stepper run {agent.project.paths.relpath(str(notebook.path))}"
        in waits["text"]
    )
    for verb, arguments in [
        ("run", {"notebook": notebook.path.name}),
        ("eval", {"source": "x"}),
        ("restart", {}),
    ]:
        with pytest.raises(
            StepperError, match="nothing ran: `auto_run` is `ask`"
        ) as error:
            agent.ask(verb, **arguments)
        assert f"stepper {verb}" in error.value.hint
    assert agent.project.json("run", notebook.path.name)["ran"] == 1  # the user's
    assert [run["by"] for run in agent.project.json("history")] == ["mcp", "cli"]


def test_plan_mode_writes_nothing(agent: Agent) -> None:
    notebook = agent.project.new("One")
    before, planning = (
        notebook.path.read_bytes(),
        Agent(agent.project, STEPPER_MODE="plan"),
    )
    assert (
        planning.run("1")["state"]
        == planning.run("# A", cell_type="markdown")["state"]
        == "refused"
    )
    for verb, arguments in [
        ("cell change", {"action": "delete", "cell_ids": [-1]}),
        ("new", {"problem": "p"}),
        ("eval", {"source": "1"}),
    ]:
        with pytest.raises(StepperError, match="plan mode"):
            planning.ask(verb, **arguments)
    assert notebook.path.read_bytes() == before and planning.cells()


NAMES = st.sampled_from(
    [
        "a",
        "cell-1",
        "-1",
        -1,
        1,
        "top",
        "gone",
        "",
        0,
        None,
        True,
        1.5,
        [],
        {},
        "\ud800",
        "a" * 500,
    ]
)
TEXTS = st.none() | st.sampled_from(
    [
        "x = 1",
        "",
        "1 / 0",
        "x",
        "\ud800",
        "\x00",
        "'" * 3,
        5,
        [],
        {"a": 1},
        "# stepper: step=9",
    ]
)
LISTS = st.none() | st.lists(
    NAMES | st.fixed_dictionaries({"source": TEXTS}, optional={"cell_type": TEXTS}),
    max_size=3,
)
REQUESTS = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(
            (
                "source",
                "old_string",
                "new_string",
                "cell_type",
                "action",
                "outputs",
                "call",
            ),
            TEXTS,
        ),
        **dict.fromkeys(("cell_id", "after", "page", "wait_seconds", "run"), NAMES),
        **dict.fromkeys(("cells", "cell_ids"), LISTS),
    },
)


@settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    verb=st.sampled_from(["cell run", "cell add", "cell change", "cell read"]),
    arguments=REQUESTS,
    minor=st.sampled_from([4, 5]),
)
def test_invalid_arguments_are_refused_without_effect(
    agent: Agent, verb: str, arguments: dict[str, Any], minor: int
) -> None:
    cells = (
        [code("x = 1"), code("x")]
        if minor == 4
        else [code("x = 1", "a"), code("x", "b")]
    )
    notebook = agent.project.notebook("odd.ipynb", cells, minor=minor)
    try:
        agent.ask(verb, **{**arguments, "notebook": "odd"})
    except StepperError as error:
        assert error.exit_code != DaemonError.exit_code, error
    nbformat.validate(nbformat.read(notebook.path, 4))


# --- hooks and MCP together -----------------------------------------------------------


def test_edit_is_reported_once_by_hook_or_tool(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two", "Three")
    notebook.insert("x = 1")
    hook_response = agent.project.hook(
        "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=[])
    )
    time.sleep(0.02)  # the file's time changes from here on
    insert_response = agent.run("y = 2")
    agent.run("y = 3", cell_id=insert_response["cell_id"])
    agent.run("# text", cell_type="markdown")
    agent.ask("cell change", action="move", cell_ids=[-1], after="top")
    calls = [{"tool_name": "mcp__stepper__run_cell", "tool_input": {}}]
    hook_response = agent.project.hook(
        "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=calls)
    )
    assert hook_response.text == "" and len(agent.project.json("history")) == 3
    _, response = notebook.insert("print(x + y)")
    assert "| 4" in response.text
    assert "| 4" in agent.cells(cells=[-1])[0]["outputs"]


def test_concurrent_script_write_is_reported(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    cell = agent.run("x = 1")["cell_id"]
    agent.project.hook(
        "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=[])
    )
    raw = notebook.raw
    raw["cells"][-1]["source"] = "x = 7"
    notebook.path.write_text(json.dumps(raw, indent=1))
    assert agent.cells(cells=[cell])[0]["status"] == "changed"
    agent.run("# text", cell_type="markdown")
    calls = [{"tool_name": "Bash", "tool_input": {}}]
    response = agent.project.hook(
        "PostToolBatch", notebook.payload("PostToolBatch", "", {}, tool_calls=calls)
    )
    assert "cell 1" in response.text


def test_file_keeps_its_modification_time(agent: Agent) -> None:
    notebook = agent.project.new("One")
    os.utime(notebook.path, ns=(10**18, 10**18))
    cell = agent.run("print(1)")["cell_id"]
    agent.run("print(2)", cell_id=cell)
    agent.ask("cell change", action="clear_output", cell_ids=[cell])
    agent.ask("cell change", action="delete", cell_ids=[cell])
    assert os.stat(notebook.path).st_mtime_ns == 10**18


# --- changing and reading cells -------------------------------------------------------


def test_cells_are_deleted_moved_and_cleared(agent: Agent) -> None:
    agent.project.new()
    a, b, c = agent.add("print('a')", "print('b')", "print('c')")["cells"]
    head = agent.cells()[0]["cell_id"]
    assert agent.ask("cell change", action="move", cell_ids=[c, 1], after="cell-0") == {
        "notebook": agent.ask("status")["notebook"],
        "changed": [c, a],
        "cells": [head, c, a, b],
        "count": 2,
        "follows": "",
        "unchanged": False,
    }
    cleared = agent.ask("cell change", action="clear_output", cell_ids=[a, head])
    assert (
        cleared["changed"] == [a, head] and agent.cells(cells=[a])[0]["outputs"] == ""
    )
    assert "| b" in agent.cells(cells=[b])[0]["outputs"]
    # to the end
    assert agent.ask("cell change", action="move", cell_ids=[head])["cells"] == [
        c,
        a,
        b,
        head,
    ]
    response = agent.ask("cell change", action="delete", cell_ids=["cell-3", b, -2])
    assert response["cells"] == [c, a] and response["count"] == 2  # cells, not names
    for arguments, message in [
        ({"action": "delete"}, "'cell_ids' is missing"),
        ({"action": "delete", "cell_ids": []}, "`cell_ids` is empty"),
        ({"action": "burn", "cell_ids": [1]}, "one of"),
        ({"action": "move", "cell_ids": [a], "after": "zz"}, "no cell 'zz'"),
    ]:
        with pytest.raises(StepperError, match=message):
            agent.ask("cell change", **arguments)


@pytest.mark.nightly
@pytest.mark.parametrize(("minor", "name"), [(5, -1), (5, "cell-2"), (4, 3), (4, -1)])
def test_cell_name_resolves_to_same_cell_after_wait(
    agent: Agent, minor: int, name: str | int
) -> None:
    """Text cells do not wait for running cells and can overtake a queued call."""
    cells = [
        code(f"{name} = 1", name if minor > 4 else None) for name in ("first", "last")
    ]
    notebook = agent.project.notebook("named.ipynb", cells, minor=minor)
    agent.project.config("queue: true\n")
    source = make_waiting_cell(agent.project)
    agent.run(source, after="top", notebook="named.ipynb", wait_seconds=0.4)
    waits = agent.run("meant = 1", cell_id=name, wait_seconds=0)
    assert "has NOT run yet" in waits["text"]
    agent.run("# above", cell_type="markdown", after="top")
    agent.run("# below", cell_type="markdown")
    release_cell(agent.project)
    while agent.ask("status", wait_seconds=30)["ended"]:
        pass
    assert ["".join(cell["source"]) for cell in notebook.raw["cells"]] == [
        "# above",
        source,
        "first = 1",
        "meant = 1",
        "# below",
    ]


def test_deleted_cell_name_resolves_to_no_other_cell() -> None:
    names = cell_list_edits.CellReferences()
    assert names.resolve_id(CELLS, -1) == "c" and names.resolve_id(CELLS[2:], -1) == "c"
    with pytest.raises(
        cell_list_edits.CellReferenceError, match="deleted in the meantime"
    ):
        names.resolve(CELLS[:3], -1)


def test_cells_are_read_with_status_and_outputs(agent: Agent) -> None:
    agent.project.new("One", "Two")
    agent.add(
        {"cell_type": "markdown", "source": "# H"},
        "x = 3\nx",
        "print('a\\n' * 3000)",
        run=True,
    )
    read = agent.ask("cell read")
    head, text, first, long = read["cells"]
    assert (
        head["index"] == 0
        and text["type"] == "markdown"
        and text["source"] == "# H"
        and not text["status"]
    )
    assert (
        first["number"],
        first["step"],
        first["status"],
        first["execution_count"],
    ) == (1, 1, "done", 1)
    assert first["outputs"] == "| 3" and "more lines like this" in long["outputs"]
    assert re.search(
        f'<cell id="{first["cell_id"]}"> cell 1 · step 1 · ok · \\[1\\] · [^·]* s'
        f" · hash {first['source_hash']}\n\\| x = 3\n\\| x\nOutput:\n\\| 3",
        read["text"],
    )
    assert read["text"].startswith(f"{read['head']}\n<cell id=")
    assert first["state"] == "ok"
    assert first["duration_s"] > 0
    assert read["pages"] == 1 and len(read["text"]) < 2500
    full = agent.ask("cell read", cells=[-1], outputs="full", page=2)
    assert (
        full["pages"] > 1
        and full["cells"][0]["part"] == 2
        and len(full["text"]) <= 10_000
    )
    assert agent.cells(cells=["1"], outputs="none")[0]["outputs"] == ""
    with pytest.raises(StepperError, match="there is no page 2: the requested"):
        agent.ask("cell read", page=2)


def test_pages_are_the_digest(agent: Agent) -> None:
    agent.project.new("Load", "Plot")
    output = {"output_type": "stream", "name": "stdout", "text": "row\n" * 900}
    cells = [
        {**code(f"x{n} = {n}\n\n# é", f"id{n}"), "outputs": [output]} for n in range(60)
    ]
    cells.insert(
        7, {"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# T"}
    )
    agent.project.notebook("digest.ipynb", cells)
    digest = agent.ask("show", notebook="digest")
    common_state = "Code cells without a state have not run in this kernel.\n"
    head = f"{digest['head']}\n".replace(common_state, "").removesuffix("\n")
    first = agent.ask("cell read", notebook="digest")
    assert first["pages"] > 2
    texts, outputs = [], []
    for page in range(1, first["pages"] + 1):
        response = agent.ask("cell read", notebook="digest", page=page)
        assert len(response["text"]) <= 10_000
        text = re.sub(
            r"^stepper: .*, page \d+ of \d+:\n", "", response["text"], flags=re.M
        )
        texts.append(re.sub(r" · hash \w+$", "", text, flags=re.M))
        outputs += [cell["outputs"] for cell in response["cells"]]
        unchanged = "\nChanged since this agent read the notebook last: nothing."
        expected = head + unchanged if page == 1 else ""
        assert response["head"] == expected
    text = "\n".join(texts).replace(unchanged, "", 1)
    text = text.replace(" · not run in this kernel", "")
    assert text == digest["text"].replace(common_state, "", 1)
    assert outputs[0] == digest["cells"][0]["outputs"].removeprefix("Output:\n")
    some = agent.ask("cell read", notebook="digest", cells=["7-8", -1, "id0", 8])
    assert [cell["cell_id"] for cell in some["cells"]] == [
        "id6",
        "m",
        "id7",
        "id59",
        "id0",
    ]
    with pytest.raises(StepperError, match="has 60 code cells, but not 61-"):
        agent.ask("cell read", notebook="digest", cells=["61-"])


def test_long_head_and_long_lines_are_divided(agent: Agent) -> None:
    agent.project.new(*[f"step {number} " + "words " * 30 for number in range(60)])
    source = "a = 1\n" + "x" * 30_000 + "\n"
    agent.run(source)
    response = agent.ask("cell read", outputs="none")
    assert re.search(
        r"\n… \d+ lines left out; see `notebook_status`\n", response["head"]
    )
    assert len(response["text"]) <= 10_000
    parts = []
    for page in range(1, response["pages"] + 1):
        response = agent.ask("cell read", outputs="none", page=page)
        assert len(json.dumps(response["cells"], ensure_ascii=False)) <= 10_000
        parts += [cell for cell in response["cells"] if cell["type"] == "code"]
        notes = response["text"].count("its last line continues in the next part")
        assert notes == sum(
            not cell["source"].endswith("\n")
            for cell in response["cells"]
            if cell["type"] == "code"
        )
    assert "".join(part["source"] for part in parts) == source


def test_reading_a_page_does_not_render_the_whole_notebook(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.project.new()
    printed = {"output_type": "stream", "name": "stdout", "text": "z" * 7_000}
    cells = [{**code(f"x{n}", f"id{n}"), "outputs": [printed]} for n in range(200)]
    agent.project.notebook("big.ipynb", cells)
    read_ids, begun, released, outputs_of = (
        list[str](),
        threading.Event(),
        threading.Event(),
        IpynbFile.read_outputs,
    )

    def slow(file: IpynbFile, target: CellVersion) -> list[dict[str, Any]]:
        read_ids.append(target.cell_id)
        begun.set()
        assert released.wait(60)
        return outputs_of(file, target)

    monkeypatch.setattr(IpynbFile, "read_outputs", slow)
    results = list[dict[str, Any]]()
    reader = threading.Thread(
        target=lambda: results.append(
            agent.ask("cell read", notebook="big", outputs="full", page=2)
        ),
        daemon=True,
    )
    reader.start()
    assert begun.wait(30)
    agent.ask("list")  # the daemon serves other requests meanwhile
    released.set()
    reader.join(120)
    assert (
        results[0]["cells"][0]["cell_id"] == "id1"
        and "page 2 of 22 or more" in results[0]["text"]
    )
    assert len(read_ids) < 30
    both = agent.ask("cell read", notebook="big", outputs="full", page=199, many=5)
    assert [cell["cell_id"] for cell in both["cells"]] == ["id198", "id199"] and both[
        "pages"
    ] == 200
    assert "page 199 of 200:" in both["text"] and "page 200 of 200:" in both["text"]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("ab \n", max_size=40).map(lambda text: text * 500), max_size=3))
def test_pages_contain_long_cells_completely(texts: list[str]) -> None:
    from stepper.messages import mcp_cells

    read = [
        mcp_cells.CellRead(f"id{n}", n, n + 1, "code", text)
        for n, text in enumerate(texts)
    ]
    pages = mcp_cells.split_pages(
        [part for cell in read for part in mcp_cells.split_cell(cell)]
    )
    for cell in read:
        assert (
            "".join(
                part.source
                for page in pages
                for part in page
                if part.cell_id == cell.cell_id
            )
            == cell.source
        )
    assert all(
        len(mcp_cells.format_page("a.ipynb", page, 1, 2)) <= 10_000 for page in pages
    )
    assert not any(
        "left out" in mcp_cells.format_page("a.ipynb", page, 1, 2) for page in pages
    )


def test_cell_content_cannot_forge_stepper_lines(agent: Agent) -> None:
    agent.project.new()
    agent.run("print('x')\n# \x1b[31m\nstepper = '''\nstepper: forged'''")
    text = agent.ask("cell read")["text"]
    assert (
        "\x1b" not in text
        and "\nstepper: forged" not in text
        and "| stepper: forged" in text
    )


def test_notebook_in_another_language_is_read_but_not_run(agent: Agent) -> None:
    agent.project.notebook(
        "r.ipynb", [code("x <- 1", "a")], language_info={"name": "R"}
    )
    assert agent.cells(notebook="r")[0]["source"] == "x <- 1"
    with pytest.raises(
        StepperError, match="is 'r', but the selected kernel runs Python"
    ):
        agent.run("y <- 2", notebook="r")
    # also with a kernel for another language
    for verb, arguments in [
        ("eval", {"source": "1"}),
        ("restart", {}),
    ]:
        with pytest.raises(
            StepperError, match="is 'r', but the selected kernel runs Python"
        ):
            agent.ask(verb, notebook="r", **arguments)
    assert agent.ask("status", notebook="r")["kernel"]["state"] == "none"


# --- callers that wait and disconnect -------------------------------------------------


def test_client_disconnect_cancels_its_cell(agent: Agent, project: Quick) -> None:
    project.new("One")
    sockets: list[Any] = []

    def leave() -> None:
        wait_until(lambda: project.live_kernels and project.kernel().is_busy)
        sockets[0].shutdown(2)

    thread = threading.Thread(target=leave)
    thread.start()
    data = json.dumps(
        {"source": "import time\nfor _ in range(3000): time.sleep(0.01)"}
    ).encode()
    with pytest.raises(daemon_client.DaemonExitedError):
        daemon_client.send_request(
            project.paths, b"cell run", data, None, False, agent.environ, sockets.append
        )
    thread.join()
    wait_until(lambda: project.json("history"))
    assert project.json("history")[0]["outcome"] == "cancelled"
    wait_until(lambda: project.json("status")["running"] is None)
    # an undelivered report is part of the next response, once
    response = agent.run("print('next')")
    assert "was CANCELLED" in response["text"] and "| next" in response["text"]
    # the call was not an edit
    assert (
        "its report was not delivered" in response["text"]
        and "an edit of" not in response["text"]
    )
    assert "CANCELLED" not in agent.run("1")["text"]


def test_progress_events_are_sent_each_second(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepper.daemon.request.PROGRESS_SECONDS", 0.02)
    agent.project.new("One")
    thread = threading.Thread(target=agent.run, args=[make_waiting_cell(agent.project)])
    thread.start()
    wait_until(lambda: len(agent.progress_events) > 2)
    release_cell(agent.project)
    thread.join()
    runs = [message["running"] for message in agent.progress_events]
    assert {message["what"] for message in agent.progress_events} == {"runs"}
    assert runs[0]["name"] == "step 1" and runs[-1]["timeout"] == 30


SLOW = "import time\nprint('begun', flush=True)\ntime.sleep(1.2)\nprint('over')"


def test_long_run_moves_to_background_and_can_be_awaited(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    runs = agent.run(make_waiting_cell(agent.project), wait_seconds=0.4, call="slow")
    assert (
        runs["state"] == "running"
        and runs["call"] == "slow"
        and "step 1" in runs["line"]
    )
    assert (
        re.search(r"is still running after \d+\.\d+ s", runs["text"])
        and "`notebook_status` with `wait_seconds`" in runs["text"]
    )
    before = notebook.path.read_bytes()
    refused = agent.run("x = 1")
    assert (
        refused["state"] == "refused"
        and "nothing was written" in refused["text"]
        and "queue: true" in refused["text"]
    )
    assert (
        notebook.before("insert", "x = 1").denied
        and notebook.path.read_bytes() == before
    )
    assert (
        agent.run("# text", cell_type="markdown", after="top")["state"]
        == "nothing to run"
    )
    response = agent.ask("status", wait_seconds=0.1)
    assert response["ended"]["state"] == "running" and response["running"]["handed_on"]
    release_cell(agent.project)
    response = agent.ask("status", wait_seconds=30)
    assert (
        response["ended"]["state"] == "ok"
        and "| over" in response["ended"]["text"]
        and response["unheard"] == ""
    )
    assert (
        response["ended"]["cell_id"] == runs["cell_id"] and response["running"] is None
    )
    # returns at once: the end is reported once
    second_response = agent.ask("status", wait_seconds=30)
    assert second_response["ended"] is None and second_response["unheard"] == ""
    assert agent.run("x = 1")["text"].startswith("stepper: Cell 2")
    assert text_of(notebook.cell(runs["cell_id"])) == "begun\nover\n"


def test_undelivered_report_comes_with_the_next_response(agent: Agent) -> None:
    agent.project.new("One", "Two")
    agent.run(SLOW, wait_seconds=0.4)
    wait_until(lambda: agent.project.json("status")["running"] is None)
    response = agent.run("x = 1")
    assert (
        "finished in the meantime" in response["text"]
        and "| over" in response["text"]
        and "ran ok" in response["text"]
    )
    assert "| over" not in agent.run("x = 2", cell_id=response["cell_id"])["text"]


@pytest.mark.nightly
def test_two_waiting_clients_get_the_correct_result(
    agent: Agent, project: Quick
) -> None:
    project.new("One")
    agent.run(SLOW, wait_seconds=0.4)
    messages: list[dict[str, Any]] = []
    both = [
        threading.Thread(
            target=lambda: messages.append(
                Agent(project).ask("status", wait_seconds=30)
            )
        )
        for _ in "ab"
    ]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    events = [message["ended"] for message in messages if message["ended"]]
    assert (
        len(events) == 1
        and events[0]["state"] == "ok"
        and "| over" in events[0]["text"]
    )


@pytest.mark.nightly
def test_status_of_other_clients_does_not_deliver_reports(
    agent: Agent,
) -> None:
    agent.project.new("One", "Two")
    agent.run(SLOW, wait_seconds=0.4)
    wait_until(lambda: agent.project.json("status")["running"] is None)
    assert "| over" in agent.ask("status", unread=True, details=True)["unheard"]
    assert (
        "| over" in agent.ask("status")["unheard"]
        and not agent.ask("status")["unheard"]
    )


def test_agent_cannot_wait_for_cell_of_another_agent(
    agent: Agent, project: Quick
) -> None:
    project.new("One", "Two")
    agent.run(make_waiting_cell(project), wait_seconds=0.4)
    assert (
        Agent(project, STEPPER_SESSION="mcp-2").ask("status", wait_seconds=30)["ended"]
        is None
    )
    # The interrupt waits until the cell has ended. Its report is undelivered then, or is
    # still being written and is the result of the wait.
    project.stepper("interrupt")
    status = agent.ask("status", wait_seconds=30)
    finished = status["ended"] or {"text": ""}
    assert "CANCELLED" in finished["text"] + status["unheard"]


def test_repeated_call_waits_for_its_run(agent: Agent, project: Quick) -> None:
    project.new("One")
    source = make_waiting_cell(project)
    assert agent.run(source, wait_seconds=0.4, call="again")["state"] == "running"
    release = threading.Timer(1, release_cell, [project])
    release.start()
    response = agent.run(source, call="again")
    release.join()
    assert (
        response["state"] == "ok"
        and "| over" in response["text"]
        and len(project.json("history")) == 1
    )
    assert project.json("status")["unheard"] == "" and len(sources(agent)) == 2


def test_background_run_survives_the_daemon(agent: Agent, project: Quick) -> None:
    project.new("One")
    agent.run(make_waiting_cell(project), wait_seconds=0.4, call="lives")
    project.kill_daemon()
    release_cell(project)
    response = agent.ask("status", wait_seconds=30)
    unheard = response["ended"]["text"] if response["ended"] else response["unheard"]
    assert "| over" in unheard and len(project.json("history")) == 1


def test_interrupted_run_of_an_earlier_daemon_is_cancelled(
    agent: Agent, project: Quick
) -> None:
    project.new("One")
    agent.run(make_waiting_cell(project), wait_seconds=0.4, call="lives")
    project.kill_daemon()
    agent.progress_events.clear()
    responses: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: responses.append(agent.ask("status", wait_seconds=30))
    )
    thread.start()
    wait_until(lambda: agent.progress_events)  # the request waits for the cell
    project.stepper("interrupt", check=None)
    thread.join()
    (response,) = responses
    assert response["ended"]["state"] == "cancelled", response


def test_followed_cell_is_found_after_its_number_has_changed(
    agent: Agent, project: Quick
) -> None:
    project.new("One")
    cell_id = agent.run(make_waiting_cell(project), wait_seconds=0.2)["cell_id"]
    pages: list[dict[str, Any]] = []
    thread = threading.Thread(
        target=lambda: pages.append(agent.ask("output", cell="1", follow=True))
    )
    thread.start()
    wait_until(lambda: agent.progress_events)
    agent.add("x = 1", after="top", run=False)
    release_cell(project)
    thread.join()
    (page,) = pages
    assert page["cell_id"] == cell_id and "over" in page["text"], page


def test_finished_cells_are_reported_if_a_later_cell_cannot_run(
    agent: Agent, project: Quick
) -> None:
    cells = [code("print(5)", "a"), code("'\ud800'", "b"), code("2", "c")]
    project.notebook("a.ipynb", cells)
    response = agent.ask("run", notebook="a", wait_seconds=20)
    assert response["state"] == "not run" and response["cells"] == ["a"]
    assert (
        "| 5" in response["text"] and "the cell was NOT run: cell 2" in response["text"]
    )
    result = project.stepper("run", "a", "--all", check=1)
    assert "cell 2 (id b): line 1 of the source has an unpaired" in result.stdout
    assert "1 of 3 cells ran ok" in result.stdout


def test_queued_cells_run_in_order(agent: Agent) -> None:
    agent.project.new("One", "Two")
    agent.project.config("queue: true\n")
    agent.run(make_waiting_cell(agent.project), wait_seconds=0.4)
    waits = agent.run("print('second')", wait_seconds=0)
    assert (
        waits["state"] == "running"
        and "has NOT run yet: it is queued behind step 1" in waits["text"]
    )
    release_cell(agent.project)
    messages = [agent.ask("status", wait_seconds=30) for _ in range(2)]
    assert (
        messages[0]["ended"]["state"] == "ok"
        and "| over" in messages[0]["ended"]["text"]
    )
    # it can end before a caller waits for it
    assert json.dumps(messages).count("| second") == 1


@pytest.mark.nightly
def test_long_notebook_run_moves_to_background(agent: Agent) -> None:
    notebook = agent.project.new("One", "Two")
    agent.add(SLOW, "print('two')", run=False)
    runs = agent.ask(
        "run", notebook=notebook.path.name, which="pending", wait_seconds=0.4
    )
    assert (
        runs["call"]
        and runs["state"] == "running"
        and "is still running" in runs["text"]
    )
    ended = agent.ask("status", wait_seconds=30)["ended"]
    assert (
        ended["state"] == "ok"
        and "2 of 2 code cells ran, from the top." in ended["text"]
    )
    assert len(agent.project.json("history")) == len(ended["cells"]) == 2
    response = agent.ask("run", notebook="", which="pending", wait_seconds=30)
    assert (
        response["state"] == "nothing to run"
        and "has no cells to run" in response["text"]
    )
    agent.add("print('three')", run=False)
    agent.run("raise ValueError(5)", cell_id=1)
    response = agent.ask("run", notebook="", which="pending", wait_seconds=30)
    assert (
        response["state"] == "failed"
        and "ValueError" in response["text"]
        and "Not run: 1 code cell below" in response["text"]
    )


@pytest.mark.nightly
def test_call_sets_the_timeout_of_its_cells(agent: Agent, project: Quick) -> None:
    notebook = project.new()
    endless, lasting = (
        "import time\nwhile True:\n    time.sleep(0.01)",
        "import time\ntime.sleep(0.5)",
    )
    late = agent.run(f"# stepper: timeout=1h\n{endless}", timeout_seconds=0.3)
    assert late["state"] == "failed" and "deadline" in late["text"]
    second_response = agent.run(lasting, cell_id=1, timeout_seconds=0.2)
    assert second_response["state"] == "failed"
    # the same code, with more time
    assert agent.run(cell_id=1, timeout_seconds=20)["state"] == "ok"
    added = agent.add("x = 1", endless, "y = 1", timeout_seconds=0.3)
    assert added["state"] == "failed" and "Not run" in added["text"]
    agent.run("print('restored')", cell_id=-2)
    agent.run(lasting, cell_id=-1, timeout_seconds=0.2)
    name = notebook.path.name
    assert (
        agent.ask(
            "run", notebook=name, which="pending", wait_seconds=30, timeout_seconds=0.2
        )["state"]
        == "failed"
    )
    response = agent.ask("eval", source=endless, timeout_seconds=0.3)
    assert response["outcome"] == "timeout" and "deadline" in response["text"]
    (project.folder / ".stepper" / "config.yaml").write_text(
        "max_cell_timeout_seconds: 0.2\n"
    )
    assert agent.run(lasting, cell_id=1, timeout_seconds=20)["state"] == "failed"


@pytest.mark.parametrize("wrong", [0, -1, "60", True, float("inf"), 1e12])
@pytest.mark.parametrize("verb", ["cell run", "cell add", "run", "eval"])
def test_invalid_timeout_is_refused_and_nothing_runs(
    agent: Agent, verb: str, wrong: object
) -> None:
    agent.project.new()
    agent.run("x = 1")
    arguments = (
        {"cells": [{"source": "x = 2"}]} if verb == "cell add" else {"source": "x = 2"}
    )
    with pytest.raises(StepperError, match="timeout_seconds"):
        agent.ask(verb, **arguments, timeout_seconds=wrong)
    assert agent.ask("eval", source="x")["output"] == "1"
    assert [cell["source"] for cell in agent.cells() if cell["number"]] == ["x = 1"]


def test_concurrent_calls_run_once_each(agent: Agent) -> None:
    notebook = agent.project.new()
    agents = [Agent(agent.project) for _ in range(20)]
    threads = [
        threading.Thread(target=item.run, args=[f"x_{number} = {number}"])
        for number, item in enumerate(agents)
    ]
    for thread in threads:
        thread.start()
    agent.run("# between", cell_type="markdown")
    for thread in threads:
        thread.join()
    history = agent.project.json("history")
    assert len(history) == 20 and {run["outcome"] for run in history} == {"ok"}
    assert sorted(sources(agent)) == sorted(
        [
            "# a problem",
            "# between",
            *(f"x_{number} = {number}" for number in range(20)),
        ]
    )
    nbformat.validate(nbformat.read(notebook.path, 4))


# --- status ---------------------------------------------------------------------------


def test_status_with_details(agent: Agent) -> None:
    agent.project.new("One")
    agent.run("import math\ndef area(r): return r\nx = [1, 2]")
    response = agent.ask("status", details=True)
    assert response["context"]["current_notebook"] == response["notebook"]
    assert (
        response["context"]["imported_modules"] == {"math": "math"}
        and "area" in response["context"]["defined_functions"]
    )
    assert response["context"]["variables"]["x"].startswith("list")
    machine = response["resources"]["machine"]
    assert (
        0 < machine["memory_bytes"] < machine["memory_total_bytes"]
        and response["resources"]["cores"] >= 1
    )
    assert agent.ask("status")["resources"] is None


def measure_kernel(pid: int) -> ResourceUsage:
    """Measure a process as if it were a kernel."""
    usage = resource_usage.measure_resources(responses.KernelStatus(pid, "busy", 5))
    assert usage.kernel is not None
    return usage.kernel


def test_resource_usage_of_kernel_and_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        # on a loaded machine, the process may get no CPU time during a measurement
        wait_until(lambda: measure_kernel(busy.pid).cpu_percent)
        assert measure_kernel(busy.pid).memory_bytes == 5
    finally:
        busy.kill()
        busy.wait()
    assert resource_usage.measure_resources(
        responses.KernelStatus(busy.pid)
    ).kernel == ResourceUsage(None, None, None)
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        "#!/bin/sh\necho 'NVIDIA A100, 80GB, 37, 1024, 81920'\necho 'Old, [N/A], [N/A], 512'\necho odd\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert resource_usage.list_gpus() == [
        GpuUsage("NVIDIA A100, 80GB", 37, 1 << 30, 80 << 30),
        GpuUsage("Old", None, None, 512 << 20),
    ]
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert resource_usage.list_gpus() == []


# --- with real kernels ----------------------------------------------------------------


@pytest.fixture
def real(module_project: Project) -> Iterator[Agent]:
    for project in reuse_project(module_project):
        yield Agent(project, launch=True, STEPPER_SESSION=uuid.uuid4().hex)


PICTURE = """
import base64, io
from IPython.display import Image, display
from PIL import Image as Made
def shown(colour):
    Made.new("RGB", (8, 4), colour).save(file := io.BytesIO(), "PNG")
    display(Image(file.getvalue()))
"""


def test_figures_of_a_run_are_reported_by_path(real: Agent) -> None:
    real.project.new("Plot", "Look")
    assert real.run(PICTURE)["figures"] == []
    response = real.add("shown('red')\nshown('blue')", "shown('green')")
    assert response["state"] == "ok" and len(response["figures"]) == 3
    assert all(
        Path(path).read_bytes().startswith(b"\x89PNG") for path in response["figures"]
    )
    assert response["figures"][2] in response["text"]
    first, second = real.cells(cells=response["cells"])
    assert first["pictures"] + second["pictures"] == response["figures"]
    assert (
        f"Figure 1: {response['figures'][2]}"
        in real.ask("cell read", cells=[-1])["text"]
    )
    eval_response = real.ask("eval", source="shown('blue')\nshown('red')")
    assert (
        len(eval_response["figures"]) == 2
        and eval_response["figures"][1] in eval_response["text"]
    )
    assert real.ask("eval", source="1")["figures"] == []
    real.run("shown('red')", cell_id=-1)
    assert real.cells(cells=[-1])[0]["pictures"] != second["pictures"]


def test_kernel_environment_has_no_session_variables(real: Agent) -> None:
    real.project.new("Look")
    response = real.run(
        "import os\nprint([name for name in os.environ if name in ('STEPPER_FACE', 'STEPPER_MODE')])"
    )
    assert "| []" in response["text"]
    assert (
        real.ask("status", details=True)["resources"]["kernel"]["memory_bytes"]
        > 1 << 20
    )


@pytest.mark.nightly
def test_failed_cell_is_fixed_and_notebook_is_rerun(real: Agent) -> None:
    notebook = real.project.new("Load", "Sum")
    real.run("values = [1, 2, 3]")
    failed = real.run("total = sum(value)\nprint(total)")
    # suggestions for the misspelled name
    assert failed["state"] == "failed" and "`values`" in failed["text"]
    fixed = real.run(
        cell_id=failed["cell_id"], old_string="(value)", new_string="(values)"
    )
    assert fixed["state"] == "ok" and "| 6" in fixed["text"]
    real.run("values = [4]", cell_id=1)
    stale = real.ask("run", notebook=notebook.path.name, which="stale")
    assert stale["ran"] == 1 and real.cells(cells=[-1])[0]["outputs"] == "| 4"
    assert real.ask("run", notebook=notebook.path.name, which="stale")["cells"] == 0
    assert real.ask("run", notebook=notebook.path.name, which="all")["ran"] == 2
    # the life of a kernel: ended, restarted, restored
    real.ask("shutdown", notebook=notebook.path.name)
    assert real.ask("run", notebook=notebook.path.name, which="restore")["ran"] == 2
    assert "| 4" in real.ask("eval", source="print(total)")["text"]


@pytest.mark.nightly
def test_running_cell_is_watched_and_continues_without_its_agent(
    real: Agent,
) -> None:
    notebook = real.project.new("Train", "Look")
    real.run("'its kernel is there'")
    runs = real.run(
        "import time\nfor n in range(300):\n    print('round', n, flush=True)\n    time.sleep(0.05)",
        wait_seconds=2.5,
    )
    assert (
        runs["state"] == "running"
        and "Last lines:\n| round" in runs["text"]
        and "| round" in runs["line"]
    )
    lines = [message["running"]["line"] for message in real.progress_events]
    assert len(lines) >= 1 and lines[-1].startswith("round ")
    assert real.cells(cells=[runs["cell_id"]])[0]["status"] == "running"
    # the agent disconnected each time
    assert real.ask("status", wait_seconds=0.1)["ended"]["state"] == "running"
    assert real.ask("interrupt")["interrupted"]
    status = real.ask("status", wait_seconds=30)
    # The interrupt waits for the end of the run, whose result then usually becomes an
    # undelivered report before the next request.
    result = status["ended"]["text"] if status["ended"] else status["unheard"]
    assert f"(id {runs['cell_id']}) was CANCELLED" in result, status
    assert "| round 0" in result
    assert "round 0\n" in text_of(notebook.cell(runs["cell_id"]))


def test_call_without_effect_reports_unchanged(agent: Agent) -> None:
    agent.project.new()
    cell_id = agent.run("# Title", cell_type="markdown")["cell_id"]
    second_response = agent.run(cell_id=cell_id)
    assert (
        second_response["state"] == "nothing to run"
        and second_response["line"] == "✓ nothing to run"
    )
    assert (
        second_response["text"]
        == f"stepper: nothing was written and nothing ran: a markdown cell (id {cell_id})."
    )
    last = agent.cells()[-1]["cell_id"]
    moved = agent.ask("cell change", action="move", cell_ids=[last])
    assert moved["unchanged"] is True


# --- a source that is not the expected one --------------------------------------------


def test_write_with_stale_hash_is_refused_with_current_source(
    agent: Agent,
) -> None:
    notebook = agent.project.notebook(
        "a.ipynb", [code("x = 1", "a"), code("y = 2", "b")]
    )
    first, second = (cell["source_hash"] for cell in agent.cells(notebook="a"))
    assert f"hash {first}" in agent.ask("cell read", notebook="a")["text"]
    # an external change
    notebook.path.write_text(notebook.path.read_text().replace("x = 1", "x = 10"))
    before = notebook.path.read_bytes()
    writes: list[tuple[str, dict[str, Any]]] = [
        (
            "cell run",
            {"cell_id": "a", "source": "x = 3", "expected_source_hash": first},
        ),
        ("cell run", {"cell_id": "a", "expected_source_hash": first}),
        (
            "cell run",
            {
                "cell_id": "a",
                "old_string": "1",
                "new_string": "2",
                "expected_source_hash": first,
            },
        ),
        *(
            (
                "cell change",
                {
                    "action": action,
                    "cell_ids": ["b", "a"],
                    "expected_source_hashes": [second, first],
                },
            )
            for action in ("delete", "move", "clear_output")
        ),
    ]
    for verb, write in writes:
        with pytest.raises(StepperError) as error:
            agent.ask(verb, notebook="a", **write)
        assert (
            "nothing was changed, because the source of cell 1 (id a) has"
            in error.value.message
        )
        assert "| x = 10" in error.value.message
        assert notebook.path.read_bytes() == before
    (present, _) = (cell["source_hash"] for cell in agent.cells(notebook="a"))
    assert present in error.value.message
    assert (
        agent.run("x = 3", cell_id="a", notebook="a", expected_source_hash=present)[
            "state"
        ]
        == "ok"
    )
    agent.ask(
        "cell change",
        notebook="a",
        action="delete",
        cell_ids=["b"],
        expected_source_hashes=[second],
    )
    assert sources(agent) == ["x = 3"]


@pytest.mark.parametrize(
    ("verb", "values", "message"),
    [
        (
            "cell run",
            {"source": "1", "expected_source_hash": "0"},
            "`expected_source_hash` needs `cell_id`",
        ),
        (
            "cell change",
            {"action": "delete", "cell_ids": [1], "expected_source_hashes": []},
            "one hash for each",
        ),
        (
            "cell change",
            {"action": "delete", "cell_ids": [1], "after": "top"},
            "`after` is for `move`",
        ),
    ],
)
def test_unmatched_hash_and_position_arguments_are_refused(
    agent: Agent, verb: str, values: dict[str, Any], message: str
) -> None:
    notebook = agent.project.notebook("a.ipynb", [code("x = 1", "a")])
    before = notebook.path.read_bytes()
    with pytest.raises(StepperError) as error:
        agent.ask(verb, notebook="a", **values)
    assert message in error.value.message
    assert notebook.path.read_bytes() == before


def test_refused_call_keeps_the_current_notebook(agent: Agent) -> None:
    agent.project.notebook("a.ipynb", [code("x = 1", "a")])
    agent.project.notebook("b.ipynb", [code("y = 2", "b")])
    assert agent.run(cell_id="a", notebook="a")["state"] == "ok"
    with pytest.raises(StepperError):
        agent.run("1", cell_id="nobody", notebook="b")
    assert agent.cells()[0]["cell_id"] == "a"
    assert agent.run(cell_id="b", notebook="b")["state"] == "ok"
    assert agent.cells()[0]["cell_id"] == "b"


@pytest.mark.parametrize("which", ["pending", "all", "stale", "restore"])
def test_refused_notebook_run_keeps_the_current_notebook(
    agent: Agent, which: str
) -> None:
    agent.project.notebook("a.ipynb", [code("x = 1", "a")])
    agent.project.new("One")
    failed = agent.run("raise ValueError(0)")
    stopped, cell_id = failed["notebook"], failed["cell_id"]
    for attempt in range(1, 4):
        failed = agent.run(f"raise ValueError({attempt})", cell_id=cell_id)
    assert failed["state"] == "stopped"
    assert agent.run(cell_id="a", notebook="a")["state"] == "ok"
    with pytest.raises(StepperError, match="nothing ran"):
        agent.ask("run", notebook=stopped, which=which, wait_seconds=30)
    assert agent.ask("status")["notebook"] == "notebooks/a.ipynb"
    with pytest.raises(StepperError, match="timeout_seconds"):
        agent.ask(
            "run", notebook=stopped, which=which, wait_seconds=30, timeout_seconds=-1
        )
    assert agent.ask("status")["notebook"] == "notebooks/a.ipynb"


def test_accepted_notebook_run_makes_it_current(agent: Agent) -> None:
    agent.project.notebook("a.ipynb", [code("x = 1", "a")])
    agent.project.notebook("b.ipynb", [code("1 / 0", "b")])
    assert agent.run(cell_id="a", notebook="a")["state"] == "ok"
    assert (
        agent.ask("run", notebook="b", which="pending", wait_seconds=30)["state"]
        == "failed"
    )
    assert agent.ask("status")["notebook"] == "notebooks/b.ipynb"


def test_state_of_cell_with_unknown_result(
    agent: Agent, project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the kernel is lost while the second of three cells runs."""
    cells = [code("print(5)", "a"), code("lost = 2", "b"), code("3", "c")]
    project.notebook("a.ipynb", cells)
    execute = FakeKernel.execute

    async def lose_connection(
        kernel: FakeKernel, source: str, *arguments: Any
    ) -> Execution:
        execution = await execute(kernel, source, *arguments)
        if "lost" in source:
            kernel.unreachable_reason = "the connection is down"
            raise KernelUnreachableError(kernel.unreachable_reason)
        return execution

    monkeypatch.setattr(FakeKernel, "execute", lose_connection)
    response = agent.ask("run", notebook="a", wait_seconds=20)
    text = response["text"]
    assert response["state"] == "unknown" and response["cells"] == ["a"]
    assert "| 5" in text and "cell 2 (id b) was sent to its kernel and may" in text
    assert "Not run: 1 code cell below the cell whose result is not known yet" in text
    assert "NOT run" not in text
    project.kernel().unreachable_reason = ""
    response = agent.run("lost = 3")
    assert response["state"] == "unknown" and "may still be running" in response["text"]
    project.kernel().unreachable_reason = ""


def test_restore_that_runs_no_cell_is_not_reported_as_done(agent: Agent) -> None:
    path = agent.project.notebook("a.ipynb", [code("x = 1", "a")]).path
    assert agent.run(cell_id="a", notebook="a")["state"] == "ok"
    path.write_text(path.read_text().replace("x = 1", "x = 2"))
    response = agent.ask("run", notebook="a", which="restore", wait_seconds=30)
    assert response["state"] == "not run" and response["line"] == "✗ no cell ran"
    assert "source was changed after its last run" in response["text"]
