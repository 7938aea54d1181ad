"""The real Codex and Gemini CLIs, downloaded once from npm.

Each client has a minimal environment and an empty home folder.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.npm_packages import HERE, MACHINES, fetched, node

from .models import GeminiModel, ResponsesModel, ScriptedModel

CODEX = os.environ.get("STEPPER_TEST_CODEX_VERSION") or "0.169.0"
GEMINI = os.environ.get("STEPPER_TEST_GEMINI_VERSION") or "0.61.0"
TRIPLE = (
    f"{MACHINES.get(platform.machine().lower(), '').replace('x64', 'x86_64').replace('arm64', 'aarch64')}-"
    + ("apple-darwin" if sys.platform == "darwin" else "unknown-linux-musl")
)


@dataclass(frozen=True)
class RunSummary:
    """The exit code and the output of a client."""

    returncode: int
    stdout: str
    stderr: str


def run(
    command: list[str], cwd: Path, env: Mapping[str, str], timeout: float
) -> RunSummary:
    """Run a client until it exits; after the timeout, kill it and its children."""
    # files, not pipes: a child process may keep a pipe open
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        timed_out = False
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            timed_out = True  # raised below with the output so far
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        out.seek(0)
        err.seek(0)
        summary = RunSummary(
            process.returncode, out.read().decode(), err.read().decode()
        )
    assert not timed_out, (
        f"the client was killed after {timeout} s; it had printed\n{summary.stdout}\n{summary.stderr}"
    )
    return summary


class Client:
    """A client in a project folder with configured MCP servers.

    Each prompt starts a process.
    """

    name = ""
    model_type: type[ScriptedModel] = ScriptedModel
    settings = ""  # the settings file below its home folder

    def __init__(
        self, project: Path, home: Path, model: ScriptedModel, servers: str
    ) -> None:
        self.project, self.home, self.model = project, home, model
        self.env = {
            name: os.environ[name] for name in ("XDG_STATE_HOME",) if name in os.environ
        }
        self.env |= {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        path = home / self.settings
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.merge_config(servers))

    @staticmethod
    def install() -> list[str]:
        """Return the command that starts the client; raise Unavailable."""
        raise NotImplementedError

    def merge_config(self, servers: str) -> str:
        """Return the settings with the servers and the address of the model."""
        raise NotImplementedError

    def prompt(self, text: str, timeout: float = 120) -> RunSummary:
        """Run one prompt and wait for the end."""
        raise NotImplementedError


class Codex(Client):
    """`codex exec` without approvals and without its sandbox."""

    name = "codex"
    model_type = ResponsesModel
    settings = ".codex/config.toml"

    @staticmethod
    def install() -> list[str]:
        package = "@openai/codex"
        binary = fetched(
            "codex", package, f"{CODEX}-{HERE}", f"{package}/vendor/{TRIPLE}/bin/codex"
        )
        return [str(binary)]

    def merge_config(self, servers: str) -> str:
        return f"""\
model = "scripted"
model_provider = "scripted"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.scripted]
name = "scripted"
base_url = "{self.model.url}/v1"
wire_api = "responses"
{servers}"""

    def prompt(self, text: str, timeout: float = 120) -> RunSummary:
        return self.exec(
            "--dangerously-bypass-approvals-and-sandbox", text, timeout=timeout
        )

    def exec(self, *arguments: str, timeout: float = 120) -> RunSummary:
        """Run `codex exec` with these arguments.

        The default is Codex's own approval policy and sandbox.
        """
        command = [*self.install(), "exec", "--json"]
        # else the first request is sent before the server is ready
        command += [
            "--skip-git-repo-check",
            "-c",
            "mcp_servers.stepper.required=true",
            *arguments,
        ]
        return run(command, self.project, self.env, timeout)


class Gemini(Client):
    """`gemini --prompt`; every tool is approved."""

    name = "gemini"
    model_type = GeminiModel
    settings = ".gemini/settings.json"

    @staticmethod
    def install() -> list[str]:
        package = "@google/gemini-cli"
        return [
            str(node()),
            str(fetched("gemini", package, GEMINI, f"{package}/bundle/gemini.js")),
        ]

    def merge_config(self, servers: str) -> str:
        self.env |= {
            "GEMINI_API_KEY": "a-dummy-key",
            "GOOGLE_GEMINI_BASE_URL": self.model.url,
        }
        security = {
            "auth": {"selectedType": "gemini-api-key"},
            "folderTrust": {"enabled": False},
        }
        quiet = {
            "telemetry": {"enabled": False},
            "privacy": {"usageStatisticsEnabled": False},
        }
        general = {"general": {"disableAutoUpdate": True, "enableAutoUpdate": False}}
        return json.dumps(
            {"security": security, **quiet, **general, **json.loads(servers)}
        )

    def prompt(self, text: str, timeout: float = 120) -> RunSummary:
        command = [
            *self.install(),
            "--prompt",
            text,
            "--model",
            "gemini-2.5-pro",
            "--yolo",
        ]
        return run(command, self.project, self.env, timeout)
