"""An untrusted repository: none of its code runs, and messages name the repair command.

Each file of the repository writes a line to a canary file if it is executed.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, get_record_folder, read_install_record
from stepper.daemon.workspace.project_notebooks import parse_plan
from stepper.install import doctor, install_checks, install_options, trust
from stepper.policy import plan as plans
from tests.conftest import ROOT, STATE, Answer, Notebook, Project, code

EVENTS = (
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PostToolBatch",
    "Stop",
)
CLI = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
AT = "2026-01-01T00:00:00.000Z"
QUESTIONS = (
    ["status"],
    ["context"],
    ["doctor"],
    ["plan"],
    ["history"],
    ["status", "a"],
    ["history", "a"],
    ["plan", "a"],
)


class Hostile(Project):
    """A clone of a stranger's repository; the user's stepper is installed elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.paths, self.canary = (
            folder,
            Paths(str(folder)),
            folder.parent / "canary",
        )

    def pop_executed(self) -> list[str]:
        """Return the names of the stranger's executed files."""
        return self.canary.read_text().split() if self.canary.exists() else []

    def write_file(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def program(self, name: str) -> Path:
        """A program that writes to the canary file, then runs Python."""
        sing = f"echo {shlex.quote(name)} >>{shlex.quote(str(self.canary))}"
        return self.write_file(
            name, f'#!/bin/sh\n{sing}\nexec {shlex.quote(sys.executable)} "$@"\n', 0o755
        )

    def module(self, name: str) -> Path:
        return self.write_file(
            name, f"open({str(self.canary)!r}, 'a').write({name!r} + '\\n')\n"
        )

    def script(self, event: str, payload: object = None, **environ: str) -> Answer:
        """Run the committed hook script like Claude Code, in the project's folder."""
        command = [self.folder / ".claude/hooks/stepper", event]
        env = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/"),
            "XDG_STATE_HOME": STATE,
            **environ,
        }
        data = json.dumps(payload or {}).encode()
        result = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=60,
            cwd=self.folder,
            env=env,
        )
        assert (result.returncode, result.stderr) == (0, b"")
        return Answer(result.stdout)

    def stepper(
        self, *arguments: str, check: int | None = 0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-I", "-c", CLI, *arguments]
        result = subprocess.run(
            command, cwd=cwd or self.folder, capture_output=True, text=True, timeout=120
        )
        assert check is None or result.returncode == check, (
            result.stdout + result.stderr
        )
        return result


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[Hostile]:
    hostile = Hostile(tmp_path / "clone")
    shutil.copytree(ROOT / "hooks", hostile.folder / ".claude/hooks")
    for name in (
        ".venv/bin/python",
        "tools/python",
        ".stepper/env/bin/python",
        ".stepper/env/bin/stepper",
    ):
        hostile.program(name)
    for name in (
        "json",
        "sitecustomize",
        "usercustomize",
        "conftest",
        "stepper/__init__",
        "stepper/client",
        "os",
    ):
        for folder in ("", "notebooks/", ".stepper/env/packages/"):
            hostile.module(f"{folder}{name}.py")
    hostile.module(".venv/lib/python3/site-packages/sitecustomize.py")
    sing = f"echo session.sh >>{shlex.quote(str(hostile.canary))}\n"
    hostile.write_file(".stepper/env/session.sh", sing)
    hostile.write_file(".stepper/env/stamp", "")
    hostile.write_file(".env", f"PYTHONPATH={hostile.folder}\n")
    hostile.write_file(".stepper/config.yaml", "python: tools/python\n")
    noted = {
        "version": 1,
        "python": str(hostile.folder / "tools/python"),
        "given": True,
        "source": str(hostile.folder),
    }
    hostile.write_file(".stepper/install.json", json.dumps(noted))
    hostile.write_file(".stepper/token", "0" * 32 + "\n")
    hostile.write_file(".stepper/active", "")
    hostile.write_file(
        ".stepper/batch",
        json.dumps({str(hostile.folder / "notebooks/a.ipynb"): "session-1"}),
    )
    hostile.write_file(
        ".stepper/state.json",
        json.dumps({"current": "notebooks/a.ipynb", "sessions": {}}),
    )
    source = f"open({str(hostile.canary)!r}, 'a').write('cell\\n')"
    plan = plans.to_json(parse_plan("p", ["Load", "Look"]))
    hostile.notebook(
        "a.ipynb",
        [code(source, "a")],
        stepper=plan,
        kernelspec={"name": "evil"},
        init_cell=True,
    )
    run = {
        "run": 1,
        "cell_id": "a",
        "index": 0,
        "number": 1,
        "key": 1,
        "source_hash": "0",
        "kernel": uuid.uuid4().hex,
    }
    journal = [
        {"event": "created", "at": AT},
        {"event": "plan", "plan": plan, "at": AT},
        {
            "event": "start",
            **run,
            "request": "r",
            "step": 1,
            "source": source,
            "at": AT,
        },
    ]
    hostile.write_file(
        ".stepper/journal/a.jsonl", "".join(json.dumps(line) + "\n" for line in journal)
    )
    yield hostile
    hostile.stepper("shutdown", check=None)
    trust.remove_record(hostile.paths)
    shutil.rmtree(hostile.paths.runtime, ignore_errors=True)
    log = hostile.folder / ".stepper/daemon.log"
    assert log.is_symlink() or not log.is_file() or "Traceback" not in log.read_text()


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process of the user that a stranger's record names."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        ended = process.poll()
        process.kill()
    assert ended is None, f"it was signalled: {ended}"


def kernel_record(hostile: Hostile, pid: int, **connection: object) -> None:
    """Write a kernel record with a guessed process and socket addresses."""
    identity = uuid.uuid4().hex
    sockets = {
        f"{name}_port": 1 for name in ("shell", "iopub", "stdin", "control", "hb")
    }
    signed = {
        "transport": "tcp",
        "ip": "127.0.0.1",
        "key": "k",
        "signature_scheme": "hmac-sha256",
        **sockets,
    }
    created = psutil.Process(pid).create_time()
    data = {
        "kernel": identity,
        "python": str(hostile.folder / "tools/python"),
        "connection": {**signed, **connection},
        "provisioner": {
            "pid": pid,
            "pgid": pid,
            "ip": "127.0.0.1",
            "born": "",
            "created": created,
        },
        "banner": 0,
    }
    hostile.write_file(".stepper/kernels/a.json", json.dumps(data))


def test_canaries_detect_execution(hostile: Hostile) -> None:
    """The canary detects each way to execute the stranger's files."""
    for name in (".venv/bin/python", "tools/python", ".stepper/env/bin/python"):
        subprocess.run([hostile.folder / name, "-I", "-c", ""], check=True)
    subprocess.run(
        [sys.executable, "-c", "import conftest"], cwd=hostile.folder, check=True
    )
    subprocess.run(["sh", hostile.folder / ".stepper/env/session.sh"], check=True)
    sung = hostile.pop_executed()
    assert {
        ".venv/bin/python",
        "tools/python",
        ".stepper/env/bin/python",
        "conftest.py",
        "session.sh",
    } <= {*sung}


def test_hook_events_run_nothing(hostile: Hostile, tmp_path: Path) -> None:
    exports = tmp_path / "exports"
    notebook = Notebook(hostile, hostile.folder / "notebooks/a.ipynb")
    payload = notebook.payload(
        "", "NotebookEdit", {"notebook_path": str(notebook.path), "new_source": "1"}
    )
    for event in EVENTS:
        response = hostile.script(event, payload, CLAUDE_ENV_FILE=str(exports))
        if event == "PostToolUse":
            assert (
                "the cell was NOT run: this checkout is not registered for this user"
                in response.text
            )
            assert (
                "./install.sh THIS_REPOSITORY" in response.text
                and "`stepper trust`" in response.text
            )
        else:
            assert response.stdout == b"", event
    assert not exports.exists()
    assert hostile.pop_executed() == []


def test_read_only_commands_run_nothing(
    hostile: Hostile, bystander: subprocess.Popen[bytes]
) -> None:
    kernel_record(hostile, bystander.pid)
    for arguments in QUESTIONS:
        result = hostile.stepper(*arguments, check=None)
        assert (
            "Traceback" not in result.stdout + result.stderr
            and "internal error" not in result.stderr
        ), arguments
        assert hostile.pop_executed() == [], arguments
    # its journal and notebook are only data
    assert "1. Load" in hostile.stepper("plan").stdout
    assert hostile.json("status")["kernel"]["python"] is None
    output = hostile.stepper("doctor", check=1).stdout
    assert (
        f"BAD  interpreter: you have not accepted {hostile.folder}/tools/python"
        in output
    )
    assert (
        f"BAD  hook script: {hostile.folder}/.stepper/env is not from your installation"
        in output
    )
    # the command of stepper in a terminal, possibly a path
    assert len(re.findall(r"To fix this, run: \S*stepper trust", output)) == 3
    assert stat.S_IMODE((hostile.folder / ".stepper").stat().st_mode) == 0o700
    assert (
        stat.S_IMODE((hostile.folder / ".stepper/journal/a.jsonl").stat().st_mode)
        == 0o600
    )


def settle_foreign_run(hostile: Hostile) -> None:
    """Report the unfinished run of the stranger's journal, then resume the notebook."""
    hostile.stepper("run", "a", check=None)  # from a terminal: the stop does not apply
    assert hostile.json("status", "a")["state"] == "stopped"
    hostile.stepper("continue", "a.ipynb")


def test_cell_does_not_run_in_an_unaccepted_interpreter(hostile: Hostile) -> None:
    settle_foreign_run(hostile)
    result = hostile.stepper("run", "a", check=1)
    assert (
        "`python: tools/python` in .stepper/config.yaml was not accepted by you"
        in result.stdout + result.stderr
    )
    hostile.config("")
    result = hostile.stepper("run", "a", check=1)
    assert ".venv/bin/python was not accepted by you" in result.stdout + result.stderr
    assert "stepper trust" in result.stdout + result.stderr
    assert hostile.pop_executed() == []


def test_trust_requires_confirmation_and_lists_everything(
    hostile: Hostile,
) -> None:
    """Without a terminal, standard input is not read for a confirmation."""
    hostile.config(
        "python: tools/python\nverify: auto\n"
        "kernels: {far: {ssh: {host: example.org, python: /x/python}}}\n"
    )
    for options in ([], ["--json"]):
        result = hostile.stepper("trust", *options, check=2)
        assert result.stdout == ""
    listed = (
        "interpreter  tools/python",
        "runs the cells (`python:` in .stepper/config.yaml)",
        "environment  .stepper/env\n",
        ".stepper/env/bin/python, .stepper/env/packages, .stepper/env/session.sh",
        "hooks        .claude/hooks/stepper",
        'kernels.far: {"ssh": {"host": "example.org", "python": "/x/python"}}',
        'verify: "auto"  (.stepper/config.yaml)',
        "nothing was accepted: the confirmation needs a terminal",
        "stepper trust --yes",
    )
    for part in listed:
        assert part in result.stderr, result.stderr
    assert not os.path.exists(hostile.paths.install_record)
    assert hostile.pop_executed() == []
    hostile.stepper("trust", "--yes")
    assert os.path.exists(hostile.paths.install_record)
    # an accepted item is not asked about again
    assert "Accepted" in hostile.stepper("trust").stdout
    hostile.config(
        "python: tools/python\n"
        "kernels: {far: {ssh: {host: example.com, python: /x/python}}}\n"
    )
    result = hostile.stepper("trust", check=2).stderr
    assert "tools/python  (accepted before)" in result
    assert 'example.com", "python": "/x/python"}}\n' in result
    assert hostile.pop_executed() == []


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(("response", "status"), [("", 1), ("n", 1), ("y", 0)])
def test_trust_prompts_on_a_terminal_and_accepts_no(
    hostile: Hostile, response: str, status: int
) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-I", "-c", CLI, "trust"],
        cwd=str(hostile.folder),
        encoding="utf-8",
        dimensions=(40, 160),
        timeout=60,
    )
    child.expect_exact("tools/python")
    child.expect_exact("Accept this? [y/N]: ")
    child.sendline(response)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == status
    assert os.path.exists(hostile.paths.install_record) == (status == 0)
    expected = (
        "Accepted for your user account" if status == 0 else "nothing was accepted"
    )
    assert expected in child.before
    assert hostile.pop_executed() == []


def test_accepted_environment_is_shown_run_and_recorded(
    hostile: Hostile,
) -> None:
    shutil.rmtree(hostile.folder / ".stepper/env/packages")
    data = json.loads(hostile.stepper("trust", "--yes", "--json").stdout)
    python, env = (
        str(hostile.folder / "tools/python"),
        str(hostile.folder / ".stepper/env"),
    )
    assert (data["interpreter"]["path"], data["environment"]["path"]) == (python, env)
    assert (
        data["environment"]["is"]
        == str(Path(hostile.paths.env).readlink())
        == os.path.realpath(env)
    )
    assert data["recorded"].startswith(STATE + "/stepper/projects/")
    assert hostile.pop_executed() == []  # accepting executes nothing
    assert stat.S_IMODE(os.stat(data["recorded"]).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(data["recorded"])).st_mode) == 0o700
    assert python in hostile.stepper("trust", "--yes").stdout
    settle_foreign_run(hostile)
    hostile.stepper("run", "a")
    assert hostile.pop_executed() == ["tools/python", "cell"]
    hostile.config("python: .venv/bin/python\n")  # a pull changed the program
    hostile.stepper("restart", check=1)
    assert hostile.pop_executed() == ["tools/python", "cell"]


def test_trust_accepts_an_environment_only_without_installation(
    hostile: Hostile, tmp_path: Path
) -> None:
    env, path = Path(hostile.paths.env), Path(hostile.paths.env_link)
    trust.accept(hostile.paths, trust.examine(hostile.paths))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert trust.accept(hostile.paths, trust.examine(hostile.paths))["environment"] == {
        "path": str(path),
        "is": str(env.readlink()),
    }
    assert env.readlink() == tmp_path / "elsewhere"
    # install creates its own environment
    assert not install_checks.is_environment_ready(hostile.paths, "")
    env.unlink()
    env.mkdir()
    assert trust.accept(hostile.paths, trust.examine(hostile.paths))["environment"] == {
        "path": str(path),
        "is": str(env),
    }
    assert list(env.iterdir()) == []
    path.unlink()
    assert (
        trust.accept(hostile.paths, trust.examine(hostile.paths))["environment"] is None
    )
    assert hostile.pop_executed() == []


def test_kernel_start_imports_no_module_from_the_notebooks_folder(
    project: Project, tmp_path: Path
) -> None:
    """stepper's part of a run loads no module; the cell's import does."""
    notebook, canary = project.notebook("n.ipynb"), tmp_path / "canary"
    for name in {
        *sys.stdlib_module_names,
        "ipykernel",
        "ipykernel_launcher",
        "IPython",
        "zmq",
        "mine",
    }:
        sing = (
            f"open({str(canary)!r}, 'a').write({name!r} + '\\n')\nraise ImportError\n"
        )
        (project.folder / "notebooks" / f"{name}.py").write_text(sing)
    for source in ("print('ran')", "1 / 0", "open('none')", "undefined"):
        cell_id, response = notebook.insert(source)
        assert "Cell 1" in response.text and "was NOT run" not in response.text, (
            response.text
        )
        notebook.delete(cell_id)
    project.stepper("context")
    assert not canary.exists(), canary.read_text()
    notebook.insert("import mine")
    assert canary.read_text() == "mine\n"


def test_other_clone_at_a_recorded_path_is_not_trusted(
    hostile: Hostile, tmp_path: Path
) -> None:
    trust.save_record(
        hostile.paths, {"python": str(hostile.folder / ".venv/bin/python")}
    )
    assert (
        read_install_record(hostile.paths.project) and hostile.paths.is_env_recorded()
    )
    hostile.write_file(".stepper/token", "0" * 32 + "\n")
    assert (
        read_install_record(hostile.paths.project) == {}
        and not hostile.paths.is_env_recorded()
    )
    assert "NOT run" in hostile.script("PostToolUse").text
    (hostile.folder / ".stepper/token").unlink()
    os.mkfifo(hostile.folder / ".stepper/token")
    assert read_install_record(hostile.paths.project) == {}
    assert "NOT run" in hostile.script("PostToolUse").text
    (hostile.folder / ".stepper/token").unlink()
    (hostile.folder / ".stepper/token").symlink_to(
        Path(get_record_folder(hostile.paths.project), "token")
    )
    assert read_install_record(hostile.paths.project) == {}
    assert "NOT run" in hostile.script("PostToolUse").text
    # possible paths of an environment
    path = Path(get_record_folder(hostile.paths.project))
    shutil.copytree(hostile.folder / ".stepper/env", path / "env", symlinks=True)
    shutil.move(hostile.folder / ".stepper", hostile.folder / "moved")
    (hostile.folder / ".stepper").symlink_to(path)
    assert read_install_record(hostile.paths.project) == {}
    assert "NOT run" in hostile.script("PostToolUse").text
    shutil.rmtree(path)
    assert hostile.pop_executed() == []


def test_hook_runs_the_recorded_environment(hostile: Hostile, tmp_path: Path) -> None:
    """With the record, the script starts the environment, also through a link."""
    packages = hostile.folder / ".stepper/env/packages"
    shutil.rmtree(packages)
    packages.symlink_to(ROOT)
    trust.accept(hostile.paths, trust.examine(hostile.paths))
    assert hostile.pop_executed() == []
    # no notebook is in progress, so there is no daemon
    (hostile.folder / ".stepper/active").unlink()
    hostile.script("SessionStart", CLAUDE_ENV_FILE=str(tmp_path / "exports"))
    assert ".stepper/env/bin/python" in hostile.pop_executed()
    assert "session.sh" in (tmp_path / "exports").read_text()
    hostile.canary.unlink()
    (tmp_path / "link").symlink_to(hostile.folder)
    subprocess.run(
        [tmp_path / "link/.claude/hooks/stepper", "SessionStart"],
        input=b"{}",
        env={"XDG_STATE_HOME": STATE},
        timeout=60,
    )
    assert ".stepper/env/bin/python" in hostile.pop_executed()
    hostile.canary.unlink()
    for state in ("relative/state", "", str(tmp_path)):
        hostile.script("SessionStart", XDG_STATE_HOME=state, HOME=str(tmp_path))
    assert hostile.pop_executed() == []


def test_agent_call_of_trust_asks_the_user_if_nothing_is_recorded(
    hostile: Hostile,
) -> None:
    for command in ("stepper trust", "cd x && .stepper/env/bin/stepper trust --json"):
        response = hostile.script(
            "PreToolUse", {"tool_name": "Bash", "tool_input": {"command": command}}
        )
        assert response.data["hookSpecificOutput"]["permissionDecision"] == "ask"
    assert (
        hostile.script(
            "PreToolUse",
            {"tool_name": "Bash", "tool_input": {"command": "stepper status"}},
        ).data
        == {}
    )


@pytest.mark.nightly
def test_foreign_kernel_record_is_not_connected(
    hostile: Hostile, bystander: subprocess.Popen[bytes]
) -> None:
    """A record with a guessed folder and process fails: no sockets, unknown boot id."""
    for connection in ({}, {"transport": "ipc", "ip": str(hostile.folder / "k")}):
        kernel_record(hostile, bystander.pid, **connection)
        assert hostile.json("status")["kernel"]["pid"] is None
        hostile.stepper("shutdown")


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    "name", ["daemon.log", "journal", "kernels", "journal/a.jsonl", "daemon.lock", ""]
)
def test_nothing_is_written_through_foreign_symlinks(
    hostile: Hostile, tmp_path: Path, name: str
) -> None:
    folder, target_folder = hostile.folder / ".stepper" / name, tmp_path / "outside"
    if folder.is_dir():
        folder.rename(target_folder) if name else shutil.move(
            str(folder), target_folder
        )
    else:
        target_folder.write_text("mine")
        folder.unlink(missing_ok=True)
    before = {
        path: path.lstat().st_mtime_ns
        for path in (target_folder, *target_folder.rglob("*"))
    }
    folder.symlink_to(target_folder)
    result = hostile.stepper("status", check=None)
    if name == "journal/a.jsonl":  # a link is moved aside, like any unreadable journal
        assert result.returncode == 0 and not folder.is_symlink()
    else:
        assert (
            result.returncode == 3
            and f"{folder} is a symbolic link" in result.stderr
            and f"rm {folder}" in result.stderr
        )
    assert {
        path: path.lstat().st_mtime_ns
        for path in (target_folder, *target_folder.rglob("*"))
    } == before


@pytest.mark.nightly
@pytest.mark.skipif(os.getuid() != 0, reason="only root can make another user's files")
def test_files_of_another_user_are_refused(hostile: Hostile) -> None:
    os.chown(hostile.folder / ".stepper", 65534, 65534)
    output = hostile.stepper("status", check=3).stderr
    assert f"{hostile.folder / '.stepper'} belongs to another user" in output
    os.chown(hostile.folder / ".stepper", 0, 0)
    os.chown(hostile.folder / ".stepper/journal/a.jsonl", 65534, 65534)
    assert hostile.json("history") == []  # moved aside, not used


def test_trust_refuses_files_writable_by_others(hostile: Hostile) -> None:
    tools = hostile.folder / "tools"
    for path in (tools / "python", tools, hostile.folder / ".stepper/env/bin"):
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(0o777)
        with pytest.raises(StepperError, match=f"all users can write to {path}"):
            trust.accept(hostile.paths, trust.examine(hostile.paths))
        path.chmod(mode)
    if os.getuid() == 0:
        os.chown(tools / "python", 65534, 65534)
        with pytest.raises(StepperError, match="belongs to another user"):
            trust.accept(hostile.paths, trust.examine(hostile.paths))
        os.chown(tools / "python", 0, 0)
    hostile.config("python: tools/none\n")
    with pytest.raises(StepperError, match=r"tools/none does not exist"):
        trust.accept(hostile.paths, trust.examine(hostile.paths))
    assert (
        not os.path.exists(hostile.paths.install_record)
        and hostile.pop_executed() == []
    )


@pytest.mark.nightly
def test_record_writable_by_others_is_ignored(hostile: Hostile) -> None:
    trust.save_record(hostile.paths, {"python": "/x"})
    assert read_install_record(hostile.paths.project) == {"python": "/x"}
    os.chmod(hostile.paths.install_record, 0o666)
    assert read_install_record(hostile.paths.project) == {}


def test_install_ignores_foreign_records(hostile: Hostile) -> None:
    assert not install_checks.is_environment_ready(hostile.paths, "")
    # not the one that was "given"
    assert (
        install_checks.choose_interpreter(hostile.paths, None, {}).reason
        == "the project's .venv"
    )
    assert doctor.format_install_command(hostile.paths).startswith("./install.sh ")
    assert hostile.pop_executed() == []
    other_settings = hostile.folder.parent / "settings.json"
    other_settings.write_text("{}")
    for name, target in (
        (".claude/settings.json", other_settings),
        (".claude/skills", other_settings.parent),
    ):
        (hostile.folder / name).symlink_to(target)
        with pytest.raises(StepperError, match="link"):
            install_checks.check_and_choose_interpreter(
                install_options.parse_arguments(
                    [str(hostile.folder), "--python", sys.executable]
                )
            )
        (hostile.folder / name).unlink()
    with pytest.raises(StepperError, match="is a symbolic link"):
        shutil.move(hostile.paths.home, hostile.folder / "moved")
        os.symlink("moved", hostile.paths.home)
        trust.save_record(hostile.paths, {})


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["a FIFO", "a device"])
def test_hanging_git_is_not_awaited(hostile: Hostile, kind: str) -> None:
    git_path = hostile.folder / ".git"
    os.mkfifo(git_path) if kind == "a FIFO" else git_path.symlink_to("/dev/zero")
    assert (
        hostile.paths.checkouts
        == Paths(str(hostile.folder)).checkouts
        == (hostile.paths.project,)
    )
    assert hostile.json("status")["state"]
