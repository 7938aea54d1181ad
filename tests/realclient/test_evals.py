"""The cases of `evals/` with a scripted model.

Behavior that the skills require passes each grader. Behavior that they forbid fails
the graders meant for it. The environment is created without `install.sh`, because
the tests have no network.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import evals
from tests import apt_packages
from tests.conftest import ROOT
from tests.npm_packages import Unavailable, unavailable

from .client import environment
from .model import Block, Message, ScriptedModel, cell_ids, text, tool, tool_results

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
CASES = {
    path.parent.name: yaml.safe_load(path.read_text())
    for path in sorted((ROOT / "evals").glob("*/case.yaml"))
}
SETS_UP = f"""#!/bin/sh
exec {sys.executable} -I - <<'END'
import os, sys, venv
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from stepper.common.paths import Paths
from stepper.install import install_options, installer
env = Paths(os.path.realpath(".")).env
venv.create(env, symlinks=True)
(site,) = Path(env).glob("lib/python3*/site-packages")
(site / "here.pth").write_text("{ROOT}\\n{sysconfig.get_path("purelib")}\\n")
installer.apply(install_options.parse_arguments([".", "--plugin", "--python", {sys.executable!r}]))
END
"""
LOAD = "import csv\nwith open('../sales.csv') as file:\n    rows = list(csv.DictReader(file))"
ADD = "totals = {}\nfor row in rows:\n    totals[row['region']] = totals.get(row['region'], 0) + int(row['amount'])\ntotals"
MENDED = "import csv\nwith open('../sales.csv') as file:\n    total = sum(int(row['amount']) for row in csv.DictReader(file))\ntotal"
ASK = "raise RuntimeError('STOP: which of amount and amount_net counts?')"
NOTEBOOK = "notebooks/sales.ipynb"  # the folder of a run is random
EMPTY = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
MCP = "mcp__plugin_stepper_stepper__"
PLAN = ["Load :: len(rows) == 3", "Total by region :: totals['north'] == 40"]
CELL = EMPTY.replace(
    "[]", '[{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "a"}]'
)
Turn = Callable[[list[Message]], Sequence[Block]]


def notebook(messages: list[Message]) -> str:
    """Return the new notebook, or the existing one."""
    matches = re.findall(r'"notebook":"([^"]+)"', "\n".join(tool_results(messages)))
    return matches[0] if matches else NOTEBOOK


def edit(source: str, cell: Callable[[list[Message]], str], **options: str) -> Turn:
    def turn(messages: list[Message]) -> list[Block]:
        tool_input = {
            "notebook_path": notebook(messages),
            "new_source": source,
            "cell_id": cell(messages),
            **options,
        }
        return [tool("NotebookEdit", tool_input)]

    return turn


def find_last_cell_id(messages: list[Message]) -> str:
    return cell_ids(messages)[-1]


def read(messages: list[Message]) -> list[Block]:
    return [tool("Read", {"file_path": notebook(messages)})]


def verify(messages: list[Message]) -> list[Block]:
    return [tool(f"{MCP}verify", {"notebook": notebook(messages)})]


INSERT = {"edit_mode": "insert", "cell_type": "code"}
END: list[Any] = [[text("It is done. Is it right?")]]
AS_ASKED: dict[str, list[Any]] = {
    "continues-a-plan": [
        read,
        edit(LOAD, find_last_cell_id, **INSERT),
        read,
        edit(ADD, find_last_cell_id, **INSERT),
        *END,
    ],
    "fixes-a-failing-cell": [read, edit(MENDED, lambda _: "total"), *END],
    "asks-the-user": [read, edit(ASK, find_last_cell_id, **INSERT), *END],
    "leaves-other-work-alone": [
        [tool("Write", {"file_path": "hello.txt", "content": "hello\n"})],
        *END,
    ],
    "creates-a-notebook": [
        [tool("ToolSearch", {"query": f"select:{MCP}create_notebook,{MCP}verify"})],
        [
            tool(
                f"{MCP}create_notebook",
                {"problem": "What did each region sell?", "steps": PLAN},
            )
        ],
        *(
            read,
            edit(LOAD, find_last_cell_id, **INSERT),
            read,
            edit(ADD, find_last_cell_id, **INSERT),
            verify,
            *END,
        ),
    ],
}
HIDDEN = "try:\n    total\nexcept Exception:\n    total = 60"
AS_FORBIDDEN: dict[str, tuple[list[Any], set[str]]] = {
    "continues-a-plan": (
        [[tool("Write", {"file_path": NOTEBOOK, "content": EMPTY})], *END],
        {
            "reads before it edits",
            "one edit for each cell",
            "the outputs are in the notebook",
            "the total is in the notebook",
        },
    ),
    "fixes-a-failing-cell": (
        [read, edit(HIDDEN, find_last_cell_id, **INSERT), *END],
        {"replaces", "inserts nothing", "the result is in the notebook"},
    ),
    "asks-the-user": (
        [read, edit("sum([1])", find_last_cell_id, **INSERT), *END],
        {"asks in a cell", "nothing is added up"},
    ),
    "leaves-other-work-alone": (
        [[tool("Write", {"file_path": "notebooks/new.ipynb", "content": EMPTY})], *END],
        {"the file exists", "no notebook exists"},
    ),
    "creates-a-notebook": (
        [
            [tool("Write", {"file_path": NOTEBOOK, "content": CELL})],
            read,
            edit(ADD, find_last_cell_id, **INSERT),
            *END,
        ],
        {"plans before it edits", "verifies at the end", "it reproduces"},
    ),
}


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = evals.copy_plugin(tmp_path_factory.mktemp("plugin") / "stepper")
    (folder / "install.sh").write_text(SETS_UP)
    return folder


def graded(
    binary: Path,
    plugin: Path,
    tmp_path: Path,
    name: str,
    script: list[Any],
    *options: str,
) -> dict[str, tuple[bool, str]]:
    """Run a case once and return the result of each grader."""
    for folder in ("home", "runs"):
        (tmp_path / folder).mkdir()
    with ScriptedModel(*script) as model:
        env = environment(tmp_path / "home", model, {"TMPDIR": str(tmp_path / "runs")})
        result, output = evals.run_case(
            str(binary),
            plugin,
            name,
            env,
            *options,
            "--runs",
            "1",
            "--ablation",
            "none",
        )
    ((case,), errors) = result["cases"], model.errors
    (run,) = case["arms"]["with"]
    assert not errors and not run.get("error"), (errors, run.get("error"), output)
    return {
        grader["name"]: (grader["passed"], grader["explanation"])
        for grader in run["graders"]
    }


@pytest.mark.parametrize("name", AS_ASKED)
def test_graders_pass_expected_behavior(
    claude_binary: Path, plugin: Path, tmp_path: Path, name: str
) -> None:
    results = graded(claude_binary, plugin, tmp_path, name, AS_ASKED[name])
    assert {*results} == {grader["name"] for grader in CASES[name]["graders"]}
    assert {item: why for item, (passed, why) in results.items() if not passed} == {}


@pytest.mark.parametrize("name", AS_FORBIDDEN)
def test_graders_fail_forbidden_behavior(
    claude_binary: Path, plugin: Path, tmp_path: Path, name: str
) -> None:
    script, expected_failures = AS_FORBIDDEN[name]
    results = graded(claude_binary, plugin, tmp_path, name, script)
    assert {
        item for item, (passed, _) in results.items() if not passed
    } >= expected_failures, results


def test_sandboxed_shell_cannot_reach_the_daemon(
    claude_binary: Path, plugin: Path, tmp_path: Path
) -> None:
    """The client's sandbox blocks sockets, so no case allows Bash for `stepper`."""
    try:
        apt_packages.find_or_unpack_program("bwrap", "bubblewrap")
        apt_packages.find_or_unpack_program("socat", "socat")
    except Unavailable as reason:
        unavailable(reason)
    case = tmp_path / "plugin/evals/leaves-other-work-alone/case.yaml"
    shutil.copytree(plugin, tmp_path / "plugin")
    case.write_text(case.read_text().replace("Skill,", "Skill, Bash,"))
    tool_outputs: list[str] = []

    def end(messages: list[Message]) -> list[Block]:
        tool_outputs.extend(tool_results(messages))
        return [text("It is done.")]

    command = "python3 -c 'import socket; socket.socket(socket.AF_UNIX)'; ls /tmp"
    shell = tool("Bash", {"command": command, "description": "Look"})
    # the sandbox needs a short path for its sockets
    with tempfile.TemporaryDirectory() as short:
        graded(
            claude_binary,
            tmp_path / "plugin",
            Path(short),
            "leaves-other-work-alone",
            [[shell], end],
            "Bash",
        )
    assert (
        "PermissionError: [Errno 1]" in tool_outputs[0]
        and f"stepper-{os.getuid()}" not in tool_outputs[0]
    )


def test_no_processes_remain(tmp_path: Path) -> None:
    import psutil

    assert not [
        process
        for process in psutil.process_iter(["environ"])
        if "claude-eval-" in (process.info["environ"] or {}).get("HOME", "")
        and str(tmp_path.parent) in process.info["environ"]["HOME"]
    ]
