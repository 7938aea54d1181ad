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
    """A folder and a file of somebody's, with all that an installer might write, remove or take for its own."""
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
    folder = name in (".stepper", ".claude", "notebooks") or name.rpartition("/")[
        2
    ] in ("env", "hooks", "skills")
    path.symlink_to(
        treasure if folder or name.endswith("notebook") else treasure / "file"
    )
    before = snapshot(repo), snapshot(treasure)
    kernel = script(tmp_path / "python", forward())
    with pytest.raises(StepperError, match=re.escape(str(path))) as refused:
        installer.apply(
            install_options.parse_arguments([str(repo), "--python", str(kernel)])
        )
    assert (
        str(treasure) in refused.value.message
        and "remove the link" in refused.value.hint
    )
    with pytest.raises(StepperError, match=re.escape(str(path))):
        install_checks.print_plan(
            install_options.parse_arguments([str(repo), "--python", str(kernel)])
        )  # before install.sh makes an environment
    if name != "notebooks":
        with pytest.raises(StepperError, match=re.escape(str(path))):
            uninstall.uninstall(
                install_options.parse_arguments(["--uninstall", str(repo)])
            )
    assert (snapshot(repo), snapshot(treasure)) == before


@pytest.mark.nightly
def test_nothing_is_written_outside_the_target(tmp_path: Path, treasure: Path) -> None:
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither beside this Python nor on the PATH")
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
    before = select_outside(snapshot(tmp_path))
    # the cache of the package manager is that one's: where it is, the person says
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
    for words in (["--allow", "--python", str(kernel)], [], ["--uninstall"]):
        result = subprocess.run(
            [clone / "install.sh", str(repo), *words],
            env=env,
            capture_output=True,
            text=True,
            cwd="/",
        )
        assert result.returncode == 0, result.stderr
        assert (repo / ".claude/settings.json").exists() == ("--uninstall" not in words)
        assert select_outside(snapshot(tmp_path)) == before
    assert os.listdir(repo) == [] and not (tmp_path / "home" / STATE).exists()


def select_outside(results: dict[str, object]) -> dict[str, object]:
    """Return what lies outside of TARGET and of stepper's own state folder."""
    own = ("around/repo", f"home/{STATE}")
    above = [
        f"home/{STATE}"[: end.start()] for end in re.finditer("/", f"home/{STATE}")
    ][1:]
    return {
        name: seen
        for name, seen in results.items()
        if not name.startswith(own) and name not in above
    }
