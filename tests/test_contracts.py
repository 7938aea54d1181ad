"""The contracts of pyproject.toml can be broken: a forbidden import, added to a copy of the package, is named."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip(
    "importlinter.contracts.acyclic_siblings",
    reason="an import-linter without that contract",
)
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
FLOORS, PURE, DIAGNOSIS, CIRCLES = (
    "floors",
    "pure",
    "diagnosis can be taken out",
    "no circles",
)
PLACES, FACES, ONLOOKERS, SDK = "places", "faces", "onlookers", "SDK"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its contracts."""
    root = tmp_path_factory.mktemp("copy")
    shutil.copy(ROOT / "pyproject.toml", root)
    shutil.copytree(
        ROOT / "stepper",
        root / "stepper",
        ignore=shutil.ignore_patterns("__pycache__", "*.c"),
    )
    return root


def broken(root: Path) -> set[str]:
    """Return the contracts that do not hold in the copy, each by the beginning of its name."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    verdicts = dict(
        re.findall(r"^([\w ]+).* (KEPT|BROKEN)(?: |$)", done.stdout, re.MULTILINE)
    )
    assert len(verdicts) == (ROOT / "pyproject.toml").read_text().count(
        "[[tool.importlinter.contracts]]"
    ), done.stdout
    assert (done.returncode == 0) == ("BROKEN" not in verdicts.values()), done.stderr
    return {name for name, verdict in verdicts.items() if verdict == "BROKEN"}


def test_the_contracts_hold(package: Path) -> None:
    assert broken(package) == set()


@pytest.mark.parametrize(
    ("module", "line", "contracts"),
    [
        ("policy/edit_gate.py", "import asyncio", {PURE}),
        ("policy/repeated_errors.py", "from os import path", {PURE}),
        ("messages/run_report.py", "import orjson", {PURE}),
        (
            "messages/command_messages.py",
            "from stepper.common import private_files",
            {PURE},
        ),  # what it imports opens files
        (
            "policy/edit_gate.py",
            "from stepper.messages import command_messages",
            {FLOORS, CIRCLES},
        ),
        ("common/text.py", "from stepper.session import protocols", {FLOORS, CIRCLES}),
        (
            "session/kernel_manager.py",
            "from stepper.kernels import execution",
            {FLOORS, CIRCLES},
        ),
        (
            "daemon/command_handlers.py",
            "from stepper.diagnosis import diagnoser",
            {DIAGNOSIS},
        ),
        ("cli/main.py", "from stepper.diagnosis import diagnoser", {DIAGNOSIS}),
        (
            "daemon/server.py",
            "from stepper.kernels.backends.local.local_backend import LocalKernels",
            {PLACES},
        ),
        (
            "kernels/execution.py",
            "from stepper.kernels.backends.local.memory import OomKills",
            {PLACES, CIRCLES},
        ),
        ("hook/start.py", "from stepper.hook import client", {CIRCLES}),
        ("mcp/data_rendering.py", "from stepper.session import responses", {FACES}),
        ("mcp/data_rendering.py", "from stepper.cli import terminal", {FLOORS}),
        ("cli/mcp_command.py", "from stepper.mcp import server", {FLOORS}),
        ("web/notebook_view.py", "from stepper.kernels import client", {ONLOOKERS}),
        ("web/view_command.py", "from stepper.hook import start", {ONLOOKERS}),
        ("web/view_command.py", "from stepper.cli import terminal", {FLOORS}),
        ("install/mcp_client_config.py", "import mcp_types", {SDK}),
        ("hook/client.py", "from mcp import types", {SDK}),
        (
            "notebooks/background_io.py",
            "from stepper.notebooks import notebook_file",
            {CIRCLES},
        ),
    ],
)
def test_what_breaks_a_contract_is_seen(
    package: Path, module: str, line: str, contracts: set[str]
) -> None:
    path = package / "stepper" / module
    text = path.read_text()
    path.write_text(f"{text}\n\n{line}\n")
    try:
        assert broken(package) == contracts
    finally:
        path.write_text(text)


def test_a_room_that_no_floor_names_is_seen(package: Path) -> None:
    room = package / "stepper" / "attic"
    room.mkdir()
    try:
        (room / "__init__.py").touch()
        assert broken(package) == {FLOORS}
    finally:
        shutil.rmtree(room)
