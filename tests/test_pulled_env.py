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

__all__ = ["main"]  # the fixture: a repository that is set up, and committed


class Stranger:
    """One who commits to the repository that the person pulls from."""

    def __init__(self, folder: Path, of: Path) -> None:
        self.folder, self.canary = folder, folder.parent / "canary"
        git(of, "clone", "--quiet", str(of), str(folder))

    def leave(self, place: str) -> None:
        """Put an environment there in which everything that a hook starts sings, and works else."""
        for name in (
            "bin/python",
            "bin/stepper",
            "session.sh",
            "packages/stepper/hook/daemon_client.py",
        ):
            path = self.folder / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.song(name))
            path.chmod(0o755)
        shutil.copy(
            ROOT / "stepper/__init__.py",
            self.folder / place / "packages/stepper/__init__.py",
        )

    def song(self, name: str) -> str:
        if name.endswith(".py"):
            return f"open({str(self.canary)!r}, 'a').write({name!r} + '\\n')\n"
        return f"#!/bin/sh\necho {name} >>{shlex.quote(str(self.canary))}\n"

    def commit(self) -> None:
        git(self.folder, "add", "--all", "--force", ".")
        git(self.folder, "commit", "--quiet", "--message", "a small fix")

    def ran(self) -> list[str]:
        """What of the stranger's was executed since this was last asked."""
        sung = self.canary.read_text().split() if self.canary.exists() else []
        self.canary.unlink(missing_ok=True)
        return sung


@pytest.fixture
def stranger(main: Checkout, tmp_path: Path) -> Stranger:
    return Stranger(tmp_path / "stranger's", main.folder)


def pull_environment(main: Checkout, stranger: Stranger, kind: str) -> Path:
    """Have the person pull an environment of that kind; return its place, which is the stranger's now."""
    place = main.folder / ".stepper/env"
    assert place.resolve() == Path(main.paths.env)
    stranger.leave(".stepper/env" if kind == "folder" else "tools/env")
    if kind != "folder":
        (stranger.folder / ".stepper").mkdir()
        to = "../tools/env" if kind == "link" else stranger.folder / "tools/env"
        (stranger.folder / ".stepper/env").symlink_to(to)
    stranger.commit()
    git(main.folder, "pull", "--quiet", "--ff-only", str(stranger.folder), "HEAD")
    assert (place / "bin/python").read_text() == stranger.song("bin/python")
    return place


def run_environment_by_hand(stranger: Stranger, main: Checkout, env: Path) -> list[str]:
    """Have everything of an environment run by hand that the hook would run."""
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
    return stranger.ran()


@pytest.mark.parametrize(
    "kind", mark_nightly(["folder", "link", "link out"], "link out")
)
def test_pulled_environment_is_never_run(
    main: Checkout, stranger: Stranger, tmp_path: Path, kind: str
) -> None:
    assert "| 41" in main.ran("x = 41; print(x)")
    place = pull_environment(main, stranger, kind)
    assert run_environment_by_hand(stranger, main, place) == [
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
    assert "| 42" in main.ran("print(x + 1)")
    main.stepper("shutdown")
    assert "| 43" in main.ran("print(43)")  # with a restarted daemon
    assert exports.read_text().startswith(
        f"export PATH={shlex.quote(f'{main.paths.env}/cli')}:"
    )
    text = f". {shlex.quote(str(exports))}; stepper status"
    assert (
        "idle"
        in subprocess.run(
            ["sh", "-c", text],
            cwd=main.folder,
            env=ENVIRON,
            capture_output=True,
            text=True,
        ).stdout
    )
    assert stranger.ran() == []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["folder", "link out"])
def test_doctor_reports_it_and_install_repairs_it(
    main: Checkout, stranger: Stranger, kind: str
) -> None:
    place, options = (
        pull_environment(main, stranger, kind),
        install_options.parse_arguments([str(main.folder)]),
    )
    output = main.stepper("doctor", check=1).stdout
    assert (
        f"BAD  hook script: {place} is not your environment (git may have created it). "
        in output
    )
    mend = f"{ROOT}/install.sh {shlex.quote(str(main.folder))}"
    assert (
        f"To fix this, run: {f'rm {shlex.quote(str(place))} && ' if kind != 'folder' else ''}{mend}\n"
        in output
    )
    if kind != "folder":
        with pytest.raises(
            StepperError, match=r"\.stepper/env is a link or is below a link"
        ):
            installer.apply(options)
        place.unlink()
    installer.apply(options)
    assert place.readlink() == Path(main.paths.env)
    assert "ok   hook script" in main.stepper("doctor").stdout
    assert stranger.ran() == []


def test_worktree_of_foreign_branch_does_not_run_it(
    main: Checkout, stranger: Stranger, tmp_path: Path
) -> None:
    pull_environment(main, stranger, "folder")
    git(main.folder, "worktree", "add", "--quiet", str(tmp_path / "tree"))
    worktree = Checkout(tmp_path / "tree", main.folder)
    assert (
        "the cell was NOT run: this checkout is not registered for this user"
        in worktree.ran("1")
    )
    assert "BAD  hook script" in worktree.stepper("doctor", check=1).stdout
    assert stranger.ran() == []


def test_kernel_path_does_not_contain_the_environment(
    main: Checkout,
) -> None:
    own = [f"{folder}/bin" for folder in (main.paths.env, main.paths.env_link)]
    kernel_environ = build_kernel_environ(
        {"PATH": os.pathsep.join(["/usr/bin", *own, "/bin"])},
        "/x/bin/python",
        main.paths.active_env,
    )
    assert kernel_environ["PATH"].split(os.pathsep) == ["/x/bin", "/usr/bin", "/bin"]


@pytest.mark.nightly
def test_worktree_uses_the_main_checkout_installation(
    main: Checkout, stranger: Stranger, tmp_path: Path
) -> None:
    worktree = add_worktree(main, tmp_path / "tree")
    pull_environment(main, stranger, "folder")
    assert "| 1" in worktree.ran("print(1)")
    assert main.paths.find_dependent_worktrees() == [str(worktree.folder)]
    assert stranger.ran() == []


def test_uninstall_removes_both_without_running_anything(
    main: Checkout, stranger: Stranger
) -> None:
    assert "| 1" in main.ran("print(1)")
    place = pull_environment(main, stranger, "folder")
    uninstall.uninstall(
        install_options.parse_arguments(["--uninstall", str(main.folder)])
    )
    assert not place.exists() and not Path(main.paths.install_record).parent.exists()
    assert not Path(main.paths.socket).exists()  # its own command shut the daemon down
    assert stranger.ran() == []
