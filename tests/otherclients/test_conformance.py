"""`stepper mcp` passes the MCP inspector's checks and the MCP conformance suite."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.mcp.tools import TOOLS
from tests.conftest import ROOT
from tests.npm_packages import Unavailable, fetched, node, unavailable

from .http_bridge import Bridge

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
# of the suite: the first version with the scenarios of 2026-07-28
INSPECTOR, CONFORMANCE = (
    "2.12.0",
    "0.2.0-alpha.12",
)
ERAS = ("2025-11-25", "2026-07-28")
# Scenarios that require the suite's own test server, or an optional feature.
SDK_FAILURES = re.compile(
    r"unknown (tool|prompt) 'test_|test://\S+: there is no such resource|'json_schema_2020_12_tool' not found"
    r"|Not testable: server |Prerequisite failed: could not get initial|Expected InputRequiredResult with inputRequests"
)
NOT_OFFERED = ("logging-set-level", "completion-complete", "tools-call-with-logging")


def npm(name: str, version: str, file: str) -> list[str]:
    """Return the command of an npm program."""
    try:
        package = f"@modelcontextprotocol/{name}"
        return [
            str(node(23)),
            str(fetched(name, package, version, f"{package}/{file}")),
        ]
    except Unavailable as reason:
        unavailable(reason)


@pytest.fixture
def url(installed_project: Path) -> Iterator[str]:
    """The URL of `stepper mcp --http`, for programs that cannot send a key."""
    command = [installed_project / ".stepper/env/bin/stepper", "mcp", "--http", "0"]
    with subprocess.Popen(
        command, cwd=installed_project, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout
        port, key = (
            re.search(r":(\d+)/mcp", server.stdout.readline()),
            server.stdout.readline().split()[-1],
        )
        assert port
        try:
            with Bridge(int(port[1]), key) as bridge:
                yield bridge.url
        finally:
            server.terminate()


def test_inspector_reports_no_warnings(installed_project: Path, tmp_path: Path) -> None:
    inspector = npm("inspector", INSPECTOR, "clients/launcher/build/index.js")
    server = [str(installed_project / ".stepper/env/bin/stepper"), "mcp"]
    variables = [f"XDG_STATE_HOME={os.environ['XDG_STATE_HOME']}"]
    command = [
        *inspector,
        "--cli",
        *server,
        "-e",
        *variables,
        "--strict",
        "--method",
        "tools/list",
    ]
    env = {**os.environ, "HOME": str(tmp_path)}
    result = subprocess.run(
        command, cwd=installed_project, env=env, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert len(json.loads(result.stdout)["tools"]) == len(TOOLS)
    assert "Warning" not in result.stderr, result.stderr


@pytest.mark.parametrize("era", ERAS)
def test_conformance_suite(url: str, tmp_path: Path, era: str) -> None:
    suite = npm("conformance", CONFORMANCE, "dist/index.js")
    flags = ["--suite", "all", "--spec-version", era, "-o", str(tmp_path / "found")]
    result = subprocess.run(
        [*suite, "server", "--url", url, *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    counts = {}
    for path in (tmp_path / "found").rglob("checks.json"):
        scenario = re.sub(r"^server-(.*)-20\d\d-\d\d-\d\dT.*", r"\1", path.parent.name)
        checks = json.loads(path.read_text())
        failed = [check for check in checks if check["status"] == "FAILURE"]
        counts[scenario] = (
            sum(check["status"] == "SUCCESS" for check in checks),
            len(failed),
        )
        for check in failed:
            unexpected = (
                not SDK_FAILURES.search(check["errorMessage"])
                and scenario not in NOT_OFFERED
            )
            assert not unexpected, f"{scenario}: {check['errorMessage']}"
    assert len(counts) > 30, result.stdout + result.stderr
    assert counts == parse_documented_counts(era)


def parse_documented_counts(era: str) -> dict[str, tuple[int, int]]:
    """The table in docs/development/mcp.md: passed and failed checks by scenario."""
    _, section = (
        (ROOT / "docs/development/mcp.md").read_text().split("## Conformance\n")
    )
    rows = re.findall(r"(?m)^\| `([\w-]+)` \| ([^|]*) \| ([^|]*) \|", section)
    documented_results = {name: cells[ERAS.index(era)].strip() for name, *cells in rows}
    return {
        name: (int(cell.split("/")[0]), int(cell.split("/")[1]))
        for name, cell in documented_results.items()
        if cell
    }
