"""The status line in the real client.

The user's own line is kept. stepper's line is below it and is updated live.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer
from tests.test_install import forward, script

from .conftest import InteractiveFactory
from .model import ScriptedModel

pytestmark = pytest.mark.nightly


def test_status_line_is_below_the_users_own(
    interactive_claude: InteractiveFactory,
    scripted_model: Callable[..., ScriptedModel],
    project: Path,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    user_setting = {
        "type": "command",
        "command": 'sed \'s/.*"display_name":"\\([^"]*\\)".*/mine: \\1/\'',
    }
    (home / ".claude").mkdir()
    (home / ".claude/settings.json").write_text(
        json.dumps({"statusLine": user_setting})
    )
    kernel = script(tmp_path / "kernel" / "python", forward())
    installer.apply(
        install_options.parse_arguments(
            [str(project), "--python", str(kernel), "--statusline"]
        )
    )
    (
        project / ".claude/settings.json"
    ).write_text(  # the hooks would need an environment
        json.dumps(
            {
                "statusLine": json.loads(
                    (project / ".claude/settings.json").read_text()
                )["statusLine"]
            }
        )
    )
    statusline_path = Path(Paths(str(project)).statusline)

    def tells(line: str) -> None:
        statusline_path.write_text(f"{os.getpid()} {int(time.time()) + 60}\n- {line}\n")

    tells("▶ 3/7 Clean · 12 s of 30 · df 1,461×7 · 156 MB")
    with interactive_claude(scripted_model()) as client:
        screen = client.wait_for("▶ 3/7 Clean · 12 s of 30 · df 1,461×7 · 156 MB")
        own_line = next(line for line in screen.splitlines() if "mine: " in line)
        assert screen.index(own_line) < screen.index("▶ 3/7 Clean")
        tells("▶ 3/7 Clean · 13 s of 30 · df 1,461×7 · 156 MB")
        client.wait_for("13 s of 30")  # no key was pressed
        statusline_path.unlink()
        deadline = time.monotonic() + 20
        while "3/7 Clean" in (screen := client.screen()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert "mine: " in screen
