"""The real Claude Code client, downloaded once, with a minimal environment.

`ClaudeCode` runs `claude -p` once per prompt. `StreamClaude` keeps one `claude -p` that
reads prompts from standard input. `InteractiveClaude` runs the full-screen client in tmux.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.npm_packages import HERE, Unavailable, fetched

from .model import ScriptedModel

VERSION = os.environ.get("STEPPER_TEST_CLAUDE_VERSION") or "2.1.330"
API_KEY = "sk-ant-api03-a-dummy-key-for-the-scripted-model"

_numbers = itertools.count(1)


def install() -> Path:
    """The client's executable."""
    package = f"@anthropic-ai/claude-code-{HERE}"
    return fetched("claude-code", package, VERSION, f"{package}/claude")


def environment(
    home: Path, model: ScriptedModel, extra: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the client's environment; only PATH is inherited."""
    return {
        "HOME": str(home),
        "PATH": os.environ.get("PATH", os.defpath),
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        **{
            name: os.environ[name] for name in ("XDG_STATE_HOME",) if name in os.environ
        },  # folder of the installation records
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": API_KEY,
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",  # allows the bypass mode as root
        **(extra or {}),
    }


def permission_flags(mode: str) -> list[str]:
    """Return the arguments for a permission mode; '' is the client's default."""
    if not mode:
        return []
    return (
        ["--dangerously-skip-permissions"]
        if mode == "bypassPermissions"
        else ["--permission-mode", mode]
    )


@dataclass(frozen=True)
class Result:
    """The output of one `claude -p`."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line)
            for line in self.stdout.splitlines()
            if line.startswith("{")
        ]

    @property
    def session_id(self) -> str:
        return str(
            [event["session_id"] for event in self.events if "session_id" in event][-1]
        )

    @property
    def text(self) -> str:
        """The agent's last message."""
        return str(
            next(
                (
                    e.get("result", "")
                    for e in reversed(self.events)
                    if e["type"] == "result"
                ),
                "",
            )
        )


class ClaudeCode:
    """`claude -p` in a project's folder, one process for each prompt.

    In an untrusted folder, the client ignores the `allow` rules of its settings.
    """

    def __init__(
        self,
        project: Path,
        home: Path,
        model: ScriptedModel,
        env: Mapping[str, str] | None = None,
        trusted: bool = True,
    ) -> None:
        if trusted:
            prepare_home(home, project)
        self.project, self.home, self.model = project, home, model
        self.env = environment(home, model, env)
        self.binary = install()

    def prompt(
        self,
        prompt: str,
        *arguments: str,
        permissions: str = "bypassPermissions",
        timeout: float = 200,
    ) -> Result:
        """Run one prompt to its end; `arguments` can be `--continue` or `--resume ID`."""
        command = [
            str(self.binary),
            "-p",
            prompt,
            "--output-format",
            "stream-json",
            "--verbose",
        ]
        command += [*permission_flags(permissions), *arguments]
        # files, not pipes: a process started by a hook may keep pipes open
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = subprocess.Popen(
                command,
                cwd=self.project,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                pass  # raised below with the output so far
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            late = process.wait() == -signal.SIGKILL
            out.seek(0)
            err.seek(0)
            result = Result(
                process.returncode, out.read().decode(), err.read().decode()
            )
        assert not late, (
            f"the client was killed after {timeout} s; it had printed\n{result.stdout}\n{result.stderr}"
        )
        return result


class StreamClaude:
    """`claude -p --input-format stream-json`: runs while its input is open.

    A background hook can wake it.
    """

    def __init__(
        self,
        project: Path,
        home: Path,
        model: ScriptedModel,
        *arguments: str,
        env: Mapping[str, str] | None = None,
    ) -> None:
        prepare_home(home, project)
        command = [
            str(install()),
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--verbose",
        ]
        command += [*permission_flags("bypassPermissions"), *arguments]
        self._out = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            command,
            cwd=project,
            env=environment(home, model, env),
            stdin=subprocess.PIPE,
            stdout=self._out,
            stderr=self._out,
            start_new_session=True,
        )

    def send(self, prompt: str, last: bool = False) -> None:
        """Send a prompt, which can wait for the end of the current turn.

        Closes the input after the last prompt.
        """
        message = {"role": "user", "content": [{"type": "text", "text": prompt}]}
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"type": "user", "message": message}).encode() + b"\n"
        )
        self.process.stdin.flush()
        if last:
            self.process.stdin.close()

    @property
    def events(self) -> list[dict[str, Any]]:
        """Return all complete lines that the client has printed."""
        lines = Path(self._out.name).read_text().splitlines(keepends=True)
        return [
            json.loads(line)
            for line in lines
            if line.startswith("{") and line.endswith("\n")
        ]

    @property
    def results(self) -> list[str]:
        """Return the agent's last message of each finished turn."""
        return [
            str(event.get("result", ""))
            for event in self.events
            if event["type"] == "result"
        ]

    def wait_for(self, text: str, timeout: float = 200) -> None:
        """Wait for the end of a turn whose last message has this text."""
        deadline = time.monotonic() + timeout
        while text not in self.results:
            assert time.monotonic() < deadline, (
                f"not said after {timeout} s: {text}\n{self.results}"
            )
            assert self.process.poll() is None, (
                f"the client is gone\n{Path(self._out.name).read_text()}"
            )
            time.sleep(0.05)

    def close(self, timeout: float = 60) -> None:
        """Close the input and wait for the exit, which hooks can delay."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            self._out.close()


class InteractiveClaude:
    """The interactive client, in its own tmux server."""

    def __init__(
        self,
        project: Path,
        home: Path,
        model: ScriptedModel,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        permissions: str = "bypassPermissions",
        size: tuple[int, int] = (200, 50),
    ) -> None:
        tmux = shutil.which("tmux")
        if tmux is None:
            raise Unavailable("tmux is not on the PATH")
        self._env = environment(home, model, env)
        self._tmux_command = [
            tmux,
            "-L",
            f"stepper-test-{os.getpid()}-{next(_numbers)}",
            "-f",
            os.devnull,
        ]
        prepare_home(home, project)
        # with these variables, the client would open tmux panes
        command = [
            "env",
            "-u",
            "TMUX",
            "-u",
            "TMUX_PANE",
            str(install()),
            *permission_flags(permissions),
        ]
        wide, high = map(str, size)
        session = ["new-session", "-d", "-x", wide, "-y", high, "-c", str(project)]
        self._tmux(*session, "--", *command, *arguments)
        self._socket = Path(
            self._tmux("display-message", "-p", "#{socket_path}").strip()
        )

    def __enter__(self) -> InteractiveClaude:
        try:
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: object,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def send(self, prompt: str) -> None:
        """Type a prompt and press Enter."""
        self.type(prompt)
        self.wait_for(prompt.rsplit(maxsplit=1)[-1], timeout=60)
        self.keys("Enter")

    def type(self, text: str) -> None:
        """Type without pressing Enter."""
        self._tmux("send-keys", "-l", "--", text)

    def keys(self, *names: str) -> None:
        """Press keys, named as in tmux: `Escape`, `Enter`, `Down`, `C-c`."""
        self._tmux("send-keys", *names)

    def screen(self, *options: str) -> str:
        """Return the screen's text; `-e` includes colors."""
        return self._tmux("capture-pane", "-p", *options)

    def wait_for(self, substring: str, timeout: float = 200) -> str:
        """Wait for a screen with this text and return it."""
        return self._wait_for_any((substring,), timeout)

    def approve_edits_until(
        self, substring: str, key: str = "Enter", timeout: float = 200
    ) -> list[str]:
        """Answer each question about an edit with a key until a text appears.

        Returns the screens with the questions.
        """
        screens: dict[str, str] = {}
        deadline = time.monotonic() + timeout
        while substring not in (screen := self.screen()):
            assert time.monotonic() < deadline, (
                f"not on the screen after {timeout} s: {substring}\n{screen}"
            )
            question = _question(screen)
            if "❯ 1. Yes" in question and "╌╌" in question:  # the dialog is complete
                screens.setdefault(question, screen)
                self.keys(key)
                until = time.monotonic() + 3  # the key may have arrived too early
                while _question(self.screen()) == question and time.monotonic() < until:
                    time.sleep(0.02)
            time.sleep(0.05)
        return [*screens.values()]

    def close(self) -> None:
        """End the client and its tmux server."""
        subprocess.run(
            [*self._tmux_command, "kill-server"],
            env=self._env,
            capture_output=True,
            check=False,
        )
        self._socket.unlink(missing_ok=True)  # tmux does not remove its socket

    def _wait_until_ready(self) -> None:
        prompt, question = "❯", "Yes, I accept"
        if question in self._wait_for_any((prompt, question), 120):
            self.keys("Down", "Enter")

    def _wait_for_any(self, substrings: tuple[str, ...], timeout: float) -> str:
        deadline = time.monotonic() + timeout
        while True:
            screen = self.screen()
            if any(part in screen for part in substrings):
                return screen
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not on the screen after {timeout} s: {substrings}\n{screen}"
                )
            time.sleep(0.05)

    def _tmux(self, *arguments: str) -> str:
        command = [*self._tmux_command, *arguments]
        return subprocess.run(
            command, env=self._env, check=True, capture_output=True, text=True
        ).stdout


def _question(screen: str) -> str:
    """Return the text below the last rule; the text above can still change."""
    return screen.rpartition("────")[2].strip()


def prepare_home(home: Path, project: Path) -> None:
    """Store the answers to the questions of the client's first start."""
    path = home / ".claude.json"
    data = json.loads(path.read_text()) if path.exists() else {}
    data |= {
        "hasCompletedOnboarding": True,
        "theme": "dark",
        "bypassPermissionsModeAccepted": True,
        "customApiKeyResponses": {"approved": [API_KEY[-20:]]},
    }
    trusted = data.setdefault("projects", {}).setdefault(str(project.resolve()), {})
    trusted["hasTrustDialogAccepted"] = True
    path.write_text(json.dumps(data))
