"""The status line of Claude Code: its text, its file, its script and its installation."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import threading
import time
from pathlib import Path

import pytest

from stepper.common.paths import Paths
from stepper.install import statusline_setting
from stepper.messages import statusline
from stepper.policy import journal_events
from stepper.policy.model import Outcome, Plan, Step, Verdict
from stepper.policy.namespace_model import UNKNOWN_NAMESPACE, Namespace, Variable
from stepper.policy.notebook_state import State
from tests.conftest import ROOT, Project
from tests.test_attached_clients import wait_until_true
from tests.test_install import forward, script, setup, snapshot, uninstall_from

AT = "2026-11-23T15:00:00Z"
FRAMES = Namespace(
    variables={
        "big": Variable("numpy.ndarray", bytes=9000, shape=(1000,)),
        "df": Variable("pandas.DataFrame", bytes=500, shape=(1461, 7)),
        "n": Variable("int"),
    },
    rebound=("df", "n"),
)


def state(*result: int, running: int | None = None) -> State:
    state = State(
        plan=Plan(
            "p",
            tuple(
                Step(n, title) for n, title in enumerate(("Load", "Look", "Clean"), 1)
            ),
        )
    )
    from stepper.policy import journal_reducer

    for number in result:
        journal_reducer.apply(
            journal_events.RunEnded(
                run=number,
                cell_id=f"c{number}",
                index=number,
                step=number,
                source_hash="h",
                started_at=AT,
                duration_s=1.0,
                outcome=Outcome.OK,
                verdict=Verdict.FINE,
                key=number,
            ),
            state,
        )
    if running:
        state.running = journal_events.RunStarted(
            run=9, key=running, at=AT, cell_id="c", timeout=30
        )
    return state


@pytest.mark.parametrize(
    ("of", "values", "line"),
    [
        (
            state(1, 2, running=3),
            {"clock": statusline.format_clock(12.4, 30)},
            "▶ 3/3 Clean · 12 s of 30 · df 1,461×7 · 156 MB",
        ),
        (state(1), {}, "· 2/3 Look · df 1,461×7 · 156 MB"),
        (state(1, 2, 3), {}, "✓ 3/3 complete · df 1,461×7 · 156 MB"),
        (State(), {}, "· df 1,461×7 · 156 MB"),
        (
            state(1),
            {"queue_reason": "job 12 waits"},
            "⧖ 2/3 Look · job 12 waits · df 1,461×7 · 156 MB",
        ),
        (
            State(),
            {"clock": statusline.format_clock(700, 3600), "running": "cell 4"},
            "▶ cell 4 · 12 min of 60 min · df 1,461×7 · 156 MB",
        ),
    ],
)
def test_status_line_text(of: State, values: dict[str, str], line: str) -> None:
    data = {"running": "", "clock": "", "queue_reason": "", **values}
    assert (
        statusline.format_status_line(
            of, namespace=FRAMES, frame="df", memory=156_400_000, **data
        )
        == line
    )


def test_stop_and_unusual_titles() -> None:
    run_state = state(1)
    run_state.plan = Plan(
        "p", (*run_state.plan.steps[:1], Step(2, "L\x1b[31mook\n" + "long " * 40))
    )
    run_state.stop = journal_events.Stopped(
        at=AT, key=2, cell_id="c", block="b", error="KeyError: \x1b]0;'x'\x07"
    )
    line = statusline.format_status_line(
        run_state, "", "", "", UNKNOWN_NAMESPACE, "", 0
    )
    assert line == "■ 2/2 Look · stopped: KeyError:"
    assert line.isprintable()


def test_notebook_without_plan_and_kernel_has_no_status_line() -> None:
    line = statusline.format_status_line(State(), "", "", "", UNKNOWN_NAMESPACE, "", 0)
    assert line == ""


def test_choose_frame() -> None:
    assert statusline.choose_frame(FRAMES, "") == "df"  # bound last
    rested = Namespace(variables=FRAMES.variables)
    assert statusline.choose_frame(rested, "df") == "df"
    assert statusline.choose_frame(rested, "gone") == "big"
    assert statusline.choose_frame(UNKNOWN_NAMESPACE, "df") == ""


# --- the file and the script ----------------------------------------------------------


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """The programs for the script: `date`, and a shell for the user's own line."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in ("date", "sh", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return folder


def printed(
    project: Project, tools: Path, session: str = "", stdin: bytes = b"{}"
) -> list[str]:
    environ = {"PATH": str(tools), "CLAUDE_CODE_SESSION_ID": session}
    result = subprocess.run(
        [shutil.which("sh"), ROOT / "hooks/statusline", project.folder],
        input=stdin,
        env=environ,
        capture_output=True,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout.decode().splitlines()


def get_status_file(project: Project) -> Path:
    return Path(project.paths.statusline)


def test_shell_script_prints_the_status_file(
    project: Project, tools: Path, tmp_path: Path
) -> None:
    assert printed(project, tools) == []
    notebook = project.new("Load", "Clean")
    notebook.insert("class Frame: shape = (1461, 7)\nn = 1")
    weighed = re.compile(r"· 2/2 Clean · [^\n]* MB")
    wait_until_true(lambda: weighed.fullmatch("\n".join(printed(project, tools))))
    assert stat.S_IMODE(get_status_file(project).stat().st_mode) == 0o600
    quiet = get_status_file(project).stat().st_mtime_ns
    wait_until_true(
        lambda: (
            project.stepper("statusline").stdout.splitlines() == printed(project, tools)
        )
    )

    gate = tmp_path / "gate"
    source = (
        f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)"
    )
    work = threading.Thread(target=lambda: notebook.insert(source))
    work.start()
    wait_until_true(
        lambda: any(
            line.startswith("▶ 2/2 Clean · ") and " s of 30 · " in line
            for line in printed(project, tools)
        )
    )
    first = printed(project, tools)
    wait_until_true(lambda: printed(project, tools) != first)  # its clock continues
    assert get_status_file(project).stat().st_mtime_ns > quiet

    # the file of a daemon that hangs is valid for some seconds
    (_, expiry), lines = (
        get_status_file(project).read_text().split("\n")[0].split(),
        get_status_file(project).read_text().split("\n", 1)[1],
    )
    assert 0 < int(expiry) - time.time() < 15
    gate.touch()
    work.join(120)
    wait_until_true(lambda: printed(project, tools)[0].startswith("✓ 2/2 complete · "))
    file_content = get_status_file(project).read_text()
    assert file_content.split("\n")[0].endswith(" 9999999999")

    project.kill_daemon()
    assert get_status_file(project).read_text() == file_content
    assert printed(project, tools) == []  # the file of a dead daemon
    get_status_file(project).write_text(
        f"{os.getpid()} {int(time.time()) - 1}\n{lines}"
    )
    assert printed(project, tools) == []  # … and of a daemon that hangs
    get_status_file(project).write_text(
        f"{os.getpid()} 9999999999\n- all others\nsession-b its own\n"
    )
    assert printed(project, tools) == ["all others"]
    assert printed(project, tools, "session-b") == ["its own"]
    project.stepper("status")  # a new daemon has no running cell
    wait_until_true(lambda: "all others" not in "".join(printed(project, tools)))
    project.stepper("shutdown")
    assert not get_status_file(project).exists()


# --- install --------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    (folder / ".claude").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    return folder


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    return script(tmp_path / "kernel" / "python", forward())


def render_status_line(repo: Path, stdin: bytes) -> str:
    """Return the client's status line; the client runs the command in a shell."""
    command = json.loads((repo / ".claude/settings.json").read_text())["statusLine"][
        "command"
    ]
    environ = {**os.environ, "CLAUDE_PROJECT_DIR": str(repo)}
    result = subprocess.run(
        ["/bin/sh", "-c", command],
        input=stdin,
        env=environ,
        capture_output=True,
        check=True,
    )
    return result.stdout.decode()


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("before", ["none", "users", "projects"])
def test_user_status_line_comes_first_and_is_restored(
    tmp_path: Path, home: Path, kernel: Path, before: str
) -> None:
    repo = tmp_path / "a repo é"
    (repo / ".claude").mkdir(parents=True)
    user_setting = {
        "type": "command",
        "command": "read -r told; printf 'mine %s' \"$told\"",
        "padding": 2,
    }
    if before == "users":
        (home / ".claude/settings.json").write_text(
            json.dumps({"statusLine": user_setting})
        )
    data = {
        "model": "opus",
        **({"statusLine": user_setting} if before == "projects" else {}),
    }
    (repo / ".claude/settings.json").write_text(json.dumps(data, indent=4))
    was, user_line = (
        snapshot(repo),
        (home / ".claude/settings.json").exists() and snapshot(home),
    )

    setup(repo, kernel=kernel)
    assert "StatusLine" not in (repo / ".claude/settings.json").read_text()
    setup(repo, "--statusline", kernel=kernel)
    assert (
        json.loads((repo / ".claude/settings.json").read_text())["statusLine"][
            "refreshInterval"
        ]
        == 1
    )
    first = snapshot(repo)
    setup(repo, kernel=kernel)  # the existing setting is kept
    setup(repo, "--statusline", kernel=kernel)
    assert snapshot(repo) == first

    paths = Paths(str(repo))
    Path(paths.statusline).write_text(f"{os.getpid()} 9999999999\n- ours\n")
    expected = "ours\n" if before == "none" else 'mine {"session_id": 1}\nours\n'
    assert render_status_line(repo, b'{"session_id": 1}\n') == expected
    result = subprocess.run(
        [f"{paths.env}/bin/stepper", "statusline"],
        cwd=repo,
        capture_output=True,
        input=b'{"session_id": 1}\n',
    )
    assert result.stdout.decode() == expected

    uninstall_from(repo)
    assert snapshot(repo) == was
    assert user_line == ((home / ".claude/settings.json").exists() and snapshot(home))


def test_users_without_installation_see_no_status_line(
    tmp_path: Path, home: Path, kernel: Path
) -> None:
    repo = tmp_path / "clone"
    (repo / ".claude/hooks").mkdir(parents=True)
    shutil.copy(ROOT / "hooks/stepper", repo / ".claude/hooks/stepper")
    setting = {"type": "command", "command": statusline_setting.COMMAND}
    (repo / ".claude/settings.json").write_text(json.dumps({"statusLine": setting}))
    (repo / ".stepper").mkdir(0o700)
    (repo / ".stepper/statusline").write_text(
        f"{os.getpid()} 9999999999\n- a stranger's\n"
    )
    assert render_status_line(repo, b"{}") == ""
    # a colleague's setting: the user's own line is now shown above it
    setup(repo, kernel=kernel)
    (repo / ".stepper/statusline").write_text(f"{os.getpid()} 9999999999\n- ours\n")
    assert render_status_line(repo, b"{}") == "ours\n"
    uninstall_from(repo)
    assert (
        "statusLine" not in (repo / ".claude/settings.json").read_text()
        if (repo / ".claude/settings.json").exists()
        else True
    )
