"""Linked git worktrees use the main checkout's environment and their own state."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.common.paths import Paths
from stepper.install import install_options, installer, uninstall
from tests.conftest import STATE, Answer, Notebook, Project, make_env

ENVIRON = {
    "PATH": os.environ["PATH"],
    "HOME": os.environ.get("HOME", "/"),
    "XDG_STATE_HOME": STATE,
}


class Checkout(Project):
    """A checkout, tested through its own hook script and the main checkout's command."""

    def __init__(self, folder: Path, main: Path) -> None:
        self.folder, self.main, self.paths = folder, main, Paths(str(folder))

    def hook(
        self,
        event: str,
        stdin: bytes | dict[str, Any],
        timeout: float = 120,
        **environ: str,
    ) -> Answer:
        data = stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode()
        command = [self.folder / ".claude/hooks/stepper", event]
        result = subprocess.run(
            command,
            input=data,
            capture_output=True,
            timeout=timeout,
            cwd="/",
            env={**ENVIRON, **environ},
        )
        assert (result.returncode, result.stderr) == (0, b"")
        return Answer(result.stdout)

    def stepper(
        self, *arguments: str, check: int | None = 0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [Path(Paths(str(self.main)).env, "bin/stepper"), *arguments]
        result = subprocess.run(
            command,
            cwd=cwd or self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            env=ENVIRON,
        )
        assert check is None or result.returncode == check, (
            result.stdout + result.stderr
        )
        return result

    def run_cell(self, source: str) -> str:
        """Insert a cell into a notebook of this checkout and return its report."""
        path = self.folder / "notebooks" / "a.ipynb"
        notebook = Notebook(self, path) if path.exists() else self.notebook("a.ipynb")
        return notebook.insert(source)[1].text


def git(folder: Path, *arguments: str) -> str:
    command = [
        "git",
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgsign=false",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=True, env=ENVIRON
    ).stdout


def make_venv(folder: Path) -> Path:
    """Make a `.venv` in a folder, with the Python of this process."""
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture
def main(tmp_path: Path) -> Iterator[Checkout]:
    """A repository that the installer has set up, committed.

    After the test, the processes of all its worktrees are ended.
    """
    folder = tmp_path / "it's a répo"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text(".venv\n")
    make_venv(folder)
    make_env(Paths(str(folder)).env)
    installer.apply(install_options.parse_arguments([str(folder)]))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "set up")
    new_checkout = Checkout(folder, folder)
    yield new_checkout
    for checkout in (
        new_checkout,
        *(
            Checkout(Path(worktree), folder)
            for worktree in new_checkout.paths.find_dependent_worktrees()
        ),
    ):
        if os.path.exists(new_checkout.paths.env):
            checkout.stepper("shutdown", check=None)
        shutil.rmtree(checkout.paths.runtime, ignore_errors=True)


@pytest.fixture
def worktree(main: Checkout, tmp_path: Path) -> Checkout:
    return add_worktree(main, tmp_path / "wörk tree")


def add_worktree(main: Checkout, folder: Path) -> Checkout:
    git(
        main.folder,
        "worktree",
        "add",
        "--quiet",
        "-b",
        f"branch{len(main.paths.find_dependent_worktrees())}",
        str(folder),
    )
    assert (folder / ".git").is_file() and not (folder / ".stepper").exists()
    return Checkout(folder, main.folder)


def test_worktree_has_the_main_checkout_environment_and_its_own_kernel(
    main: Checkout, worktree: Checkout
) -> None:
    assert "| main" in main.run_cell("where = 'main'; print(where)")
    report = worktree.run_cell(
        "import os; print('where' in globals(), os.getcwd(), os.environ['PATH'].split(':')[0])"
    )
    assert f"| False {worktree.folder}/notebooks {main.folder}/.venv/bin" in report
    assert "| main" in main.run_cell("print(where)")
    assert (
        main.json("status")["kernel"]["pid"] != worktree.json("status")["kernel"]["pid"]
    )
    assert (
        main.json("status")["daemon"]["pid"] != worktree.json("status")["daemon"]["pid"]
    )
    for checkout, runs in ((main, 2), (worktree, 1)):
        assert len(checkout.json("history")) == runs
        assert len([*(checkout.folder / ".stepper/journal").iterdir()]) == 1
        assert git(checkout.folder, "status", "--porcelain") == "?? notebooks/\n"


@pytest.mark.nightly
def test_commands_apply_to_the_current_worktree(
    main: Checkout, worktree: Checkout
) -> None:
    assert "Nothing to stop" in worktree.stepper("shutdown").stdout
    assert not (worktree.folder / ".stepper").exists()
    below = worktree.folder / "notebooks" / "deep"
    below.mkdir(parents=True)
    response = json.loads(
        worktree.stepper("new", "a problem", "--json", cwd=below).stdout
    )
    assert (worktree.folder / response["notebook"]).is_file()
    assert not (main.folder / response["notebook"]).exists()
    assert "| 1" in worktree.run_cell("print(1)")
    assert "| 2" in main.run_cell("print(2)")
    pid = main.json("status")["kernel"]["pid"]
    assert "the daemon and 1 kernel of" in worktree.stepper("shutdown").stdout
    kernel = main.json("status")["kernel"]
    assert (kernel["pid"], kernel["state"]) == (pid, "idle")
    assert (
        json.loads(main.stepper("status", "--json", cwd=Path("/")).stdout)["kernel"][
            "pid"
        ]
        == pid
    )


@pytest.mark.nightly
def test_command_in_a_deleted_folder_applies_to_the_main_checkout(
    main: Checkout, tmp_path: Path
) -> None:
    text = 'mkdir gone && cd gone && rmdir ../gone && exec "$0" status --json'
    command = ["sh", "-c", text, str(main.folder / ".stepper/env/bin/stepper")]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=ENVIRON
    )
    assert json.loads(result.stdout)["daemon"]["socket"] == main.paths.socket, (
        result.stderr
    )


@pytest.mark.nightly
def test_doctor_passes_in_a_worktree(main: Checkout, worktree: Checkout) -> None:
    output = worktree.stepper("doctor").stdout
    assert (
        f"(worktree; uses the environment of the main checkout: {main.folder}/.stepper/env)"
        in output
    )
    assert f"ok   interpreter: {main.folder}/.venv/bin/python" in output
    assert "a worktree" not in main.stepper("doctor").stdout
    (main.folder / ".venv/bin/python").write_text("#!/bin/sh\nexit 1\n")
    output = worktree.stepper("doctor", check=1).stdout
    assert f"install.sh {shlex.quote(str(main.folder))} --python PATH" in output
    (worktree.folder / ".claude/hooks/stepper").write_text("")
    output = worktree.stepper("doctor", check=1).stdout
    assert f"install.sh {shlex.quote(str(worktree.folder))}\n" in output


@pytest.mark.nightly
def test_worktree_config_and_environment_take_precedence(
    main: Checkout, worktree: Checkout
) -> None:
    print_path_cell = "import os; print(os.environ['PATH'].split(':')[0])"
    for folder in (main.folder, worktree.folder):
        shutil.copytree(main.folder / ".venv", folder / "tools")
    main.config("python: tools/bin/python\nnotebooks_dir: notebooks/deep\n")
    # The main checkout's configuration applies, because it installed the hooks.
    assert "NOT run" in worktree.run_cell(print_path_cell)
    main.config("python: tools/bin/python\n")
    assert "stepper trust" in worktree.run_cell(print_path_cell)
    for checkout in (main, worktree):
        checkout.stepper("trust", "--yes")
    assert f"| {worktree.folder}/tools/bin" in worktree.run_cell(print_path_cell)
    shutil.rmtree(worktree.folder / "tools")
    worktree.stepper("restart")
    assert f"| {main.folder}/tools/bin" in worktree.run_cell(print_path_cell)
    make_venv(worktree.folder)
    worktree.config("")
    refused = worktree.stepper("restart", check=1)
    assert (
        f"{worktree.folder}/.venv/bin/python was not accepted by you" in refused.stderr
    )
    # The old kernel keeps running, because no new one can start.
    assert f"| {main.folder}/tools/bin" in worktree.run_cell(print_path_cell)
    worktree.stepper("trust", "--yes")
    worktree.stepper("restart")
    assert f"| {worktree.folder}/.venv/bin" in worktree.run_cell(print_path_cell)
    assert "ok   config: .stepper/config.yaml" in worktree.stepper("doctor").stdout


@pytest.mark.nightly
def test_session_in_a_worktree_has_the_command_on_its_path(
    main: Checkout, worktree: Checkout, tmp_path: Path
) -> None:
    target = tmp_path / "exports"
    worktree.hook("SessionStart", {}, CLAUDE_ENV_FILE=str(target))
    text = f". {shlex.quote(str(target))}; command -v stepper; stepper new p --json"
    output = subprocess.run(
        ["sh", "-c", text],
        cwd=worktree.folder,
        env=ENVIRON,
        capture_output=True,
        text=True,
    ).stdout
    command, _, response = output.partition("\n")
    assert command == f"{main.paths.env}/cli/stepper"
    assert (worktree.folder / json.loads(response)["notebook"]).is_file()


@pytest.mark.nightly
@pytest.mark.parametrize("relative_path", ["main/.claude/worktrees/one", "beside"])
def test_worktrees_with_relative_links(
    main: Checkout, tmp_path: Path, relative_path: str
) -> None:
    checkout = add_worktree(
        main, tmp_path / relative_path.replace("main", main.folder.name)
    )
    link = checkout.folder / ".git"
    git_folder = Path(link.read_text().removeprefix("gitdir: ").strip())
    link.write_text(f"gitdir: {os.path.relpath(git_folder, checkout.folder)}\n")
    (git_folder / "gitdir").write_text(os.path.relpath(link, git_folder) + "\n")
    assert (
        checkout.paths.checkouts
        == Paths(str(checkout.folder)).checkouts
        == (str(checkout.folder), str(main.folder))
    )
    assert main.paths.find_dependent_worktrees() == [str(checkout.folder)]
    assert f"| {checkout.folder}/notebooks" in checkout.run_cell(
        "import os; print(os.getcwd())"
    )
    assert checkout.json("status")["notebook"] == "notebooks/a.ipynb"


def test_git_file_of_another_kind(main: Checkout, tmp_path: Path) -> None:
    for number, content in enumerate(
        [
            "gitdir: ../.git/modules/sub\n",
            "gitdir: /gone/.git/worktrees/one\n",
            "",
            "\n",
        ]
    ):
        folder = tmp_path / f"sub{number}"
        shutil.copytree(main.folder / ".claude", folder / ".claude")
        (folder / ".git").write_text(content)
        checkout = Checkout(folder, main.folder)
        assert checkout.paths.active_env == checkout.paths.env
        assert "NOT run" in checkout.hook("PostToolUse", b"{}").text


@pytest.mark.nightly
def test_uninstall_in_a_worktree_keeps_the_main_checkout(
    main: Checkout, worktree: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "| 1" in worktree.run_cell("x = 1; print(x)") and "| 2" in main.run_cell(
        "x = 2; print(x)"
    )
    uninstall.uninstall(
        install_options.parse_arguments(["--uninstall", str(worktree.folder)])
    )
    assert f"daemon and kernels of {worktree.folder}" in capsys.readouterr().out
    assert not os.path.exists(worktree.paths.socket)
    assert [path.name for path in sorted((worktree.folder / ".stepper").iterdir())] == [
        ".gitignore",
        "journal",
    ]
    assert "| 2" in main.run_cell("print(x)")
    assert "ok   hook script" in main.stepper("doctor").stdout


@pytest.mark.nightly
def test_uninstall_in_the_main_checkout_shuts_down_worktrees(
    main: Checkout, worktree: Checkout, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "| 1" in worktree.run_cell("print(1)")
    pid = worktree.json("status")["kernel"]["pid"]
    uninstall.uninstall(
        install_options.parse_arguments(["--uninstall", str(main.folder)])
    )
    output = capsys.readouterr().out
    assert f"{worktree.folder} used this environment" in output
    assert f"daemon and kernels of {worktree.folder}" in output
    assert not os.path.exists(f"/proc/{pid}") and not os.path.exists(
        worktree.paths.socket
    )
    assert "NOT run" in worktree.run_cell("print(2)")
