"""Each import contract of pyproject.toml fails if a copy of the package breaks it."""

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
LAYERS, PURE, CYCLES = "layers", "pure", "no import cycles"
DIAGNOSIS, BACKENDS = "diagnosis is removable", "kernel backends"
BACKEND_SETTINGS = "settings of backends"
MCP_SERVER, MCP_SDK, LIVE_VIEW = "MCP server", "MCP SDK", "live view"


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


def find_broken_contracts(root: Path) -> set[str]:
    """Return the contracts that are broken in the copy, by the start of their names."""
    result = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    verdicts = dict(
        re.findall(r"^([\w ]+).* (KEPT|BROKEN)(?: |$)", result.stdout, re.MULTILINE)
    )
    assert len(verdicts) == (ROOT / "pyproject.toml").read_text().count(
        "[[tool.importlinter.contracts]]"
    ), result.stdout
    assert (result.returncode == 0) == ("BROKEN" not in verdicts.values()), (
        result.stderr
    )
    return {name for name, verdict in verdicts.items() if verdict == "BROKEN"}


def test_contracts_are_kept(package: Path) -> None:
    assert find_broken_contracts(package) == set()


@pytest.mark.nightly_after(4)
@pytest.mark.parametrize(
    ("module", "line", "contracts"),
    [
        ("policy/edit_gate.py", "import asyncio", {PURE}),
        ("policy/repeated_errors.py", "from os import path", {PURE}),
        ("messages/run_report.py", "import orjson", {PURE}),
        (
            "messages/command_messages.py",
            "from stepper.common import secure_files",
            {PURE},
        ),  # secure_files opens files
        (
            "policy/edit_gate.py",
            "from stepper.messages import command_messages",
            {LAYERS, CYCLES},
        ),
        (
            "common/text.py",
            "from stepper.session import protocols",
            {PURE, LAYERS, CYCLES},
        ),  # policy and messages import text, and session imports modules for I/O
        (
            "session/session_state/kernel_manager.py",
            "from stepper.kernels import execution",
            {LAYERS, CYCLES},
        ),
        (
            "daemon/command_handlers.py",
            "from stepper.diagnosis import diagnoser",
            {DIAGNOSIS},
        ),
        ("cli/main.py", "from stepper.diagnosis import diagnoser", {DIAGNOSIS}),
        (
            "daemon/server.py",
            "from stepper.kernels.backends.local.local_launcher import LocalLauncher",
            {BACKENDS},
        ),
        (
            "kernels/execution.py",
            "from stepper.kernels.backends.local.available_memory import OomKills",
            {BACKENDS, CYCLES},
        ),
        (
            "kernels/backends/jupyter/jupyter_launcher.py",
            "from stepper.kernels.backends.ssh import ssh_settings",
            {BACKENDS},
        ),
        (
            "kernels/backends/ssh/ssh_settings.py",
            "import subprocess",
            {BACKEND_SETTINGS},
        ),
        ("hook/daemon_start.py", "from stepper.hook import daemon_client", {CYCLES}),
        (
            "mcp/data_rendering.py",
            "from stepper.session import responses",
            {MCP_SERVER},
        ),
        ("mcp/data_rendering.py", "from stepper.cli import terminal", {LAYERS}),
        ("cli/mcp_command.py", "from stepper.mcp import server", {LAYERS}),
        (
            "web/notebook_view_state.py",
            "from stepper.kernels import client",
            {LIVE_VIEW},
        ),
        ("web/view_command.py", "from stepper.hook import daemon_start", {LIVE_VIEW}),
        ("web/view_command.py", "from stepper.cli import terminal", {LAYERS}),
        ("install/mcp_client_config.py", "import mcp_types", {MCP_SDK}),
        ("hook/daemon_client.py", "from mcp import types", {MCP_SDK}),
        (
            "notebooks/background_io.py",
            "from stepper.notebooks import notebook_file",
            {CYCLES},
        ),
    ],
)
def test_broken_contract_is_reported(
    package: Path, module: str, line: str, contracts: set[str]
) -> None:
    path = package / "stepper" / module
    text = path.read_text()
    path.write_text(f"{text}\n\n{line}\n")
    try:
        assert find_broken_contracts(package) == contracts
    finally:
        path.write_text(text)


def test_package_in_no_layer_is_reported(package: Path) -> None:
    extra = package / "stepper" / "attic"
    extra.mkdir()
    try:
        (extra / "__init__.py").touch()
        assert find_broken_contracts(package) == {LAYERS}
    finally:
        shutil.rmtree(extra)
