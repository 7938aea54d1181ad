"""A pull after the installation brings commits with `.stepper/env`.

git overwrites the folder although it is ignored. The hook continues with the installed
environment. Each pulled file writes a line to a canary file if it is executed.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from stepper.common.errors import StepperError
from stepper.daemon.kernel_environment_variables import build_kernel_environ
from stepper.install import install_options, installer, uninstall
from tests.conftest import ROOT, mark_nightly
from tests.test_worktree import ENVIRON, Checkout, add_worktree, git, main

__all__ = ["main"]  # a fixture


class Stranger:
    """Somebody else who commits to the repository that the user pulls from."""

    def __init__(self, folder: Path, source: Path) -> None:
        self.folder, self.canary = folder, folder.parent / "canary"
        git(source, "clone", "--quiet", str(source), str(folder))

    def add_environment(self, folder_name: str) -> None:
        """Add an environment in which each file that a hook starts writes its name.

        The names are written to the canary file.
        """
        for name in (
            "bin/python",
            "bin/stepper",
            "session.sh",
            "packages/stepper/hook/daemon_client.py",
        ):
            path = self.folder / folder_name / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.make_canary_script(name))
            path.chmod(0o755)
        shutil.copy(
            ROOT / "stepper/__init__.py",
            self.folder / folder_name / "packages/stepper/__init__.py",
        )

    def make_canary_script(self, name: str) -> str:
        if name.endswith(".py"):
            return f"open({str(self.canary)!r}, 'a').write({name!r} + '\\n')\n"
        return f"#!/bin/sh\necho {name} >>{shlex.quote(str(self.canary))}\n"

    def commit(self) -> None:
        git(self.folder, "add", "--all", "--force", ".")
        git(self.folder, "commit", "--quiet", "--message", "a small fix")

    def pop_executed(self) -> list[str]:
        """Return the stranger's files that were executed since the last call."""
        names = self.canary.read_text().split() if self.canary.exists() else []
        self.canary.unlink(missing_ok=True)
        return names


@pytest.fixture
def stranger(main: Checkout, tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "stranger's", main.folder)


def pull_environment(main: Checkout, stranger: Stranger, kind: str) -> Path:
    """Pull a commit with an environment of that kind; return the environment's path."""
    env = main.folder / ".stepper/env"
    assert env.resolve() == Path(main.paths.env)
    stranger.add_environment(".stepper/env" if kind == "folder" else "tools/env")
    if kind != "folder":
        (stranger.folder / ".stepper").mkdir()
        target = "../tools/env" if kind == "link" else stranger.folder / "tools/env"
        (stranger.folder / ".stepper/env").symlink_to(target)
    stranger.commit()
    git(main.folder, "pull", "--quiet", "--ff-only", str(stranger.folder), "HEAD")
    assert (env / "bin/python").read_text() == stranger.make_canary_script("bin/python")
    return env


def run_environment_by_hand(stranger: Stranger, main: Checkout, env: Path) -> list[str]:
    """Run all files of an environment that the hook would run."""
    subprocess.run([env / "bin/python", "-I", "-S", "-c", ""], check=True)
    subprocess.run(
        ["sh", "-c", ". ./session.sh; exec ./bin/stepper status"],
        cwd=env,
        check=True,
        env=ENVIRON,
    )
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import stepper.hook.daemon_client"
    )
    subprocess.run(
        [Path(main.paths.env, "bin/python"), "-I", "-S", "-c", code, env / "packages"],
        check=True,
    )
    return stranger.pop_executed()


@pytest.mark.parametrize(
    "kind", mark_nightly(["folder", "link", "link out"], "link out")
)
def test_pulled_environment_is_never_run(
    main: Checkout, stranger: Stranger, tmp_path: Path, kind: str
) -> None:
    assert "| 41" in main.run_cell("x = 41; print(x)")
    env = pull_environment(main, stranger, kind)
    assert run_environment_by_hand(stranger, main, env) == [
        "bin/python",
        "session.sh",
        "bin/stepper",
        "packages/stepper/hook/daemon_client.py",
    ]
    exports = tmp_path / "exports"
    for event in (
        "SessionStart",
        "UserPromptSubmit",
        "PreToolUse",
        "PostToolBatch",
        "Stop",
    ):
        main.hook(event, {}, CLAUDE_ENV_FILE=str(exports))
    assert "| 42" in main.run_cell("print(x + 1)")
    main.stepper("shutdown")
    assert "| 43" in main.run_cell("print(43)")  # with a restarted daemon
    assert exports.read_text().startswith(
        f"export PATH={shlex.quote(f'{main.paths.env}/cli')}:"
    )
    command = f". {shlex.quote(str(exports))}; stepper status"
    assert (
        "idle"
        in subprocess.run(
            ["sh", "-c", command],
            cwd=main.folder,
            env=ENVIRON,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert stranger.pop_executed() == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["folder", "link out"])
def test_doctor_reports_it_and_install_repairs_it(
    main: Checkout, stranger: Stranger, kind: str
) -> None:
    env, options = (
        pull_environment(main, stranger, kind),
        install_options.parse_arguments([str(main.folder)]),
    )
    output = main.stepper("doctor", check=1).stdout
    assert (
        f"BAD  hook script: {env} is not your environment (git may have created it). "
        in output
    )
    fix = f"{ROOT}/install.sh {shlex.quote(str(main.folder))}"
    assert (
        f"To fix this, run: {f'rm {shlex.quote(str(env))} && ' if kind != 'folder' else ''}{fix}\n"
        in output
    )
    if kind != "folder":
        with pytest.raises(
            StepperError, match=r"\.stepper/env is a link or is below a link"
        ):
            installer.apply(options)
        env.unlink()
    installer.apply(options)
    assert env.readlink() == Path(main.paths.env)
    assert "ok   hook script" in main.stepper("doctor").stdout
    assert stranger.pop_executed() == []


def test_worktree_of_foreign_branch_does_not_run_it(
    main: Checkout, stranger: Stranger, tmp_path: Path
) -> None:
    pull_environment(main, stranger, "folder")
    git(main.folder, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    worktree = Checkout(tmp_path / "tree", main.folder)
    assert (
        "the cell was NOT run: this checkout is not registered for this user"
        in worktree.run_cell("1")
    )
    assert "BAD  hook script" in worktree.stepper("doctor", check=1).stdout
    assert stranger.pop_executed() == []


def test_kernel_path_does_not_contain_the_environment(
    main: Checkout,
) -> None:
    env_folders = [f"{folder}/bin" for folder in (main.paths.env, main.paths.env_link)]
    kernel_environ = build_kernel_environ(
        {"PATH": os.pathsep.join(["/usr/bin", *env_folders, "/bin"])},
        "/x/bin/python",
        main.paths.active_env,
    )
    assert kernel_environ["PATH"].split(os.pathsep) == ["/x/bin", "/usr/bin", "/bin"]


def test_kernel_has_the_virtual_environment_of_its_interpreter(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "bin").mkdir(parents=True)
    caller = {"PATH": "/bin", "VIRTUAL_ENV": str(tmp_path / "other")}
    python = f"{own}/bin/python"
    assert "VIRTUAL_ENV" not in build_kernel_environ(caller, python, "/x")
    (own / "pyvenv.cfg").touch()
    assert build_kernel_environ(caller, python, "/x")["VIRTUAL_ENV"] == str(own)


@pytest.mark.nightly
def test_worktree_uses_the_main_checkout_installation(
    main: Checkout, stranger: Stranger, tmp_path: Path
) -> None:
    worktree = add_worktree(main, tmp_path / "tree")
    pull_environment(main, stranger, "folder")
    assert "| 1" in worktree.run_cell("print(1)")
    assert main.paths.find_dependent_worktrees() == [str(worktree.folder)]
    assert stranger.pop_executed() == []


def test_uninstall_removes_both_without_running_anything(
    main: Checkout, stranger: Stranger
) -> None:
    assert "| 1" in main.run_cell("print(1)")
    env = pull_environment(main, stranger, "folder")
    uninstall.uninstall(
        install_options.parse_arguments(["--uninstall", str(main.folder)])
    )
    assert not env.exists() and not Path(main.paths.install_record).parent.exists()
    assert not Path(main.paths.socket).exists()  # the daemon was shut down
    assert stranger.pop_executed() == []
