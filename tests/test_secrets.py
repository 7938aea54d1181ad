"""Environment variables are never stored or reported, unless a cell prints them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from tests.conftest import Project, text_of

CANARY = "canary-7f3a"
AGENTS = (
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "CLAUDECODE",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CONFIG_DIR",
)
LISTED = ("MY_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
OPEN = ("MY_SETTING", "AWSOME", "NOT_MY_TOKEN")


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*AGENTS, *LISTED, *OPEN):
        monkeypatch.setenv(name, f"{CANARY}-{name}")


def find_canary_files(project: Project) -> list[str]:
    """Return stepper's files that contain the canary."""
    folders = [project.folder / ".stepper", Path(project.paths.runtime)]
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert {"daemon.log", "state.json", "config.yaml"} <= {path.name for path in files}
    return [str(path) for path in files if CANARY.encode() in path.read_bytes()]


def test_kernels_get_no_keys_and_no_listed_variables(
    project: Project, canaries: None
) -> None:
    project.config("hide_env: [MY_TOKEN, 'AWS_*']\n")
    book = project.notebook("n.ipynb")
    source = f"import os\nprint(sorted(name for name, value in os.environ.items() if {CANARY!r} in value))"
    cell_id, _ = book.insert(source)
    assert text_of(book.cell(cell_id)) == f"{sorted(OPEN)}\n"
    # Neither the kernel nor its child processes have it.
    cell_id, _ = book.insert(f"!env | grep -c {CANARY}")
    assert text_of(book.cell(cell_id)).strip() == str(len(OPEN))
    kernel = psutil.Process(project.json("status")["kernel"]["pid"])
    assert {name for name, value in kernel.environ().items() if CANARY in value} == set(
        OPEN
    )


def test_environment_is_never_stored_or_reported(
    project: Project, canaries: None
) -> None:
    """Use failing cells, a timeout, a dying kernel and daemon, and every command."""
    project.config("hide_env: [MY_TOKEN]\nmax_retries: 50\n")
    book = project.notebook("n.ipynb")
    messages: list[str] = []
    for source in (
        "import os, sys\nx = 1",
        "1 / 0",
        "open('missing.csv')",
        "import nothing_like_it",
        "os.environ['NO_SUCH_NAME']",
        "import subprocess; subprocess.run(['no-such-program'])",
        "def f(): return os.environ_\nf()",
        "# stepper: timeout=1s\nimport time\nwhile True: time.sleep(0.1)",
        "os.kill(os.getpid(), 11)",
    ):
        answer = book.insert(source)[1]
        messages += [answer.text, answer.line, answer.stop]
    assert "❌" in messages[-1]
    for command in (
        "status",
        "history",
        "report",
        "context",
        "plan",
        "fix",
        "doctor",
        "continue",
        "restore",
        "restart",
    ):
        result = project.stepper(command, check=None)
        messages += [result.stdout, result.stderr]
        if command in ("status", "history", "report", "context", "plan"):
            messages.append(json.dumps(project.json(command, check=None)))
    project.kill_daemon()
    messages.append(book.insert("y = 2")[1].text)
    result = project.stepper("eval", "os.environ['NOPE']", check=1)
    messages += [result.stdout, result.stderr]
    answer = project.hook("PostToolUse", b"no JSON")
    messages += [answer.text, answer.line]
    for event in ("SessionStart", "Stop"):
        messages.append(
            project.hook(event, book.payload(event, "", {}, prompt="")).stdout.decode()
        )
    assert not [text for text in messages if CANARY in text]
    assert find_canary_files(project) == []
    assert CANARY not in book.path.read_text()


def test_secrets_printed_by_a_cell_are_kept(project: Project, canaries: None) -> None:
    """Show that the check works: report and journal contain what the cell printed."""
    project.config("")
    book = project.notebook("n.ipynb")
    assert CANARY in book.insert("import os; print(os.environ['MY_SETTING'])")[1].text
    assert [os.path.basename(path) for path in find_canary_files(project)] == [
        "n.jsonl"
    ]
