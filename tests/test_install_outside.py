"""install.sh writes only in TARGET and in its own state folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from stepper.common.errors import StepperError
from stepper.install import (
    claude_settings,
    install_checks,
    install_options,
    installer,
    uninstall,
)
from tests.conftest import ROOT
from tests.test_install import bin_folder, environ, find_uv, forward, script, snapshot

STATE = ".local/state/stepper"
LINKS = [
    ".stepper",
    ".stepper/env",
    ".stepper/install.json",
    ".claude",
    ".claude/hooks",
    ".claude/skills",
    ".claude/skills/new-notebook",
    ".claude/settings.json",
    claude_settings.SCRIPT,
    ".gitignore",
    "notebooks",
]


@pytest.fixture
def treasure(tmp_path: Path) -> Path:
    """A user's folder, with names that an installer might write, delete or adopt."""
    path = tmp_path / "treasure"
    for name in ("env/bin", "kernels", "hooks", "skills", "notebooks"):
        (path / name).mkdir(parents=True)
        (path / name / "precious").write_text("precious")
    (path / "settings.json").write_text("{}")
    (path / "file").write_bytes(b"")
    return path


@pytest.mark.parametrize("name", LINKS)
def test_symlinked_destination_is_refused(
    tmp_path: Path, treasure: Path, name: str
) -> None:
    repo = tmp_path / "repo"
    path = repo / name
    path.parent.mkdir(parents=True)
    last_part = name.rpartition("/")[2]
    is_folder = (
        name in (".stepper", ".claude", "notebooks")
        or last_part in ("env", "hooks", "skills")
        or name.endswith("notebook")
    )
    path.symlink_to(treasure if is_folder else treasure / "file")
    original = snapshot(repo), snapshot(treasure)
    kernel = script(tmp_path / "python", forward())
    with pytest.raises(StepperError, match=re.escape(str(path))) as refused:
        installer.apply(
            install_options.parse_arguments([str(repo), "--python", str(kernel)])
        )
    assert (
        str(treasure) in refused.value.message
        and "remove the link" in refused.value.hint
    )
    # install.sh prints the plan before it creates an environment.
    with pytest.raises(StepperError, match=re.escape(str(path))):
        install_checks.print_plan(
            install_options.parse_arguments([str(repo), "--python", str(kernel)])
        )
    if name != "notebooks":
        with pytest.raises(StepperError, match=re.escape(str(path))):
            uninstall.uninstall(
                install_options.parse_arguments(["--uninstall", str(repo)])
            )
    assert (snapshot(repo), snapshot(treasure)) == original


@pytest.mark.nightly
def test_nothing_is_written_outside_the_target(tmp_path: Path, treasure: Path) -> None:
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither next to this Python nor on the PATH")
    cache = subprocess.run(
        [uv, "cache", "dir"], capture_output=True, text=True, check=True
    ).stdout.strip()
    for name in ("home", "tmp", "around/repo", "around/beside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "around" / "beside" / "file").write_text("precious")
    clone = tmp_path / "around" / "clone"
    names = shutil.ignore_patterns(
        "__pycache__", ".venv", ".git", ".*_cache", "notebooks", "tests", "benchmarks"
    )
    shutil.copytree(ROOT, clone, ignore=names)
    kernel = script(tmp_path / "python", forward())
    path = bin_folder(tmp_path / "bin", python3=forward(), uv=f'exec {uv} "$@"')
    repo = tmp_path / "around" / "repo"
    original = select_outside(snapshot(tmp_path))
    # The user chooses the folder of uv's cache.
    env = environ(
        path,
        HOME=str(tmp_path / "home"),
        TMPDIR=str(tmp_path / "tmp"),
        UV_CACHE_DIR=cache,
    )
    for name in (
        "XDG_STATE_HOME",
        "XDG_CACHE_HOME",
        "XDG_DATA_HOME",
        "XDG_CONFIG_HOME",
    ):
        env.pop(name, None)
    for options in (["--allow", "--python", str(kernel)], [], ["--uninstall"]):
        result = subprocess.run(
            [clone / "install.sh", str(repo), *options],
            env=env,
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert result.returncode == 0, result.stderr
        is_installed = (repo / ".claude/settings.json").exists()
        assert is_installed == ("--uninstall" not in options)
        assert select_outside(snapshot(tmp_path)) == original
    assert os.listdir(repo) == [] and not (tmp_path / "home" / STATE).exists()


def select_outside(files: dict[str, object]) -> dict[str, object]:
    """Return the files outside TARGET and stepper's own state folder."""
    written_folders = ("around/repo", f"home/{STATE}")
    state_parents = [
        f"home/{STATE}"[: end.start()] for end in re.finditer("/", f"home/{STATE}")
    ][1:]
    return {
        name: file
        for name, file in files.items()
        if not name.startswith(written_folders) and name not in state_parents
    }
