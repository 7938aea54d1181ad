"""Projects without ipykernel: the installer's messages, and kernels with stepper's copy."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, get_ipykernel_folder
from stepper.install import (
    install_checks,
    install_options,
    installer,
    ipykernel_install,
)
from stepper.kernels.backends.local.local_process import LocalProcess
from stepper.policy.model import Death
from tests.conftest import ROOT, Project
from tests.environments import environment
from tests.test_install import bin_folder, environ, find_uv, forward, script

PYPROJECT = '[project]\nname = "shop"\nversion = "0"\ndependencies = ["packaging<24"]\n'
LOCK = 'version = 1\n\n[[package]]\nname = "packaging"\nversion = "23.2"\nsource = { registry = "x" }\n'
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A uv project without ipykernel; a fake `uv` records calls and creates targets."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "uv.lock").write_text(LOCK)
    script(folder / ".venv/bin/python", forward())
    record = (
        f'echo "$*" >>{tmp_path}/asked; while [ $# -gt 0 ]; do case $1 in --constraint) cat "$2" >>{tmp_path}/asked;;'
        ' --target) mkdir -p "$2";; esac; shift; done; [ ! -e refuse ]'
    )
    monkeypatch.setenv("PATH", str(bin_folder(tmp_path / "bin", uv=record)))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return folder


def pop_uv_calls(shop: Path) -> list[str]:
    path = shop.parent / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def test_install_suggests_ipykernel_and_keeps_a_copy(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installer.apply(install_options.parse_arguments([str(shop)]))
    output = capsys.readouterr().out
    assert "uv add --dev ipykernel" in output and "--add-ipykernel" in output
    copy = Path(get_ipykernel_folder(Paths(str(shop)).env, VERSION))
    assert copy.is_dir() and f"copy of ipykernel for Python {VERSION}" in output
    first, *locked = pop_uv_calls(shop)
    assert first.startswith(
        f"pip install --python {shop}/.venv/bin/python --quiet --target {copy}.new --constraint "
    )
    # The copy must be compatible with the project's packages.
    assert locked == ["packaging==23.2"]
    installer.apply(install_options.parse_arguments([str(shop)]))
    assert pop_uv_calls(shop) == []
    assert (shop / "pyproject.toml").read_text() == PYPROJECT


def test_failed_ipykernel_copy_does_not_stop_the_installation(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (shop / "refuse").touch()
    installer.apply(install_options.parse_arguments([str(shop)]))
    assert "could not install its own copy of ipykernel" in capsys.readouterr().out
    assert not list(Path(Paths(str(shop)).env).glob("kernel-*"))
    assert len(pop_uv_calls(shop)) == 3  # with the lock file, then without it


@pytest.mark.nightly
def test_install_adds_ipykernel_on_request(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installer.apply(install_options.parse_arguments([str(shop), "--add-ipykernel"]))
    assert pop_uv_calls(shop)[0] == "add --dev ipykernel"
    assert (
        "added to the project's dependencies with: uv add --dev ipykernel"
        in capsys.readouterr().out
    )
    (shop / "uv.lock").write_text(
        LOCK + '[[package]]\nname = "ipykernel"\nversion = "7.4.0"\n'
    )
    installer.apply(install_options.parse_arguments([str(shop), "--add-ipykernel"]))
    assert pop_uv_calls(shop) == []
    assert "uv add" not in capsys.readouterr().out


def test_unsupported_add_ipykernel_is_refused_before_any_change(
    shop: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (shop / "refuse").touch()
    with pytest.raises(StepperError, match="uv add --dev ipykernel failed"):
        installer.apply(install_options.parse_arguments([str(shop), "--add-ipykernel"]))
    assert not (shop / ".claude").exists()
    monkeypatch.setenv("PATH", str(bin_folder(tmp_path / "bare")))
    with pytest.raises(UsageError, match="uv is not on the PATH"):
        install_checks.print_plan(
            install_options.parse_arguments([str(shop), "--add-ipykernel"])
        )
    (shop / "uv.lock").unlink()
    with pytest.raises(UsageError, match="uv is not on the PATH"):
        install_checks.print_plan(
            install_options.parse_arguments([str(shop), "--add-ipykernel"])
        )
    (shop / "pyproject.toml").write_text("[tool.x]\n")
    with pytest.raises(UsageError, match="uv does not manage"):
        install_checks.print_plan(
            install_options.parse_arguments([str(shop), "--add-ipykernel"])
        )


@pytest.mark.parametrize(
    ("name", "text", "is_dependency"),
    [
        ("pyproject.toml", PYPROJECT, False),
        ("pyproject.toml", '[dependency-groups]\ndev = ["ipykernel>=7"]\n', True),
        ("pyproject.toml", "[tool.poetry.dependencies]\nipykernel = '*'\n", True),
        (
            "pyproject.toml",
            '[tool.ruff]\n# no ipykernel\nexclude = ["my-ipykernel-tools", "ipykernel-tools"]\n',
            False,
        ),
        (
            "pyproject.toml",
            '[project]\nname = "a"\ndependencies = [\n  "tqdm[x]",\n  "ipykernel>=7",\n]\n',
            True,
        ),
        (
            "pyproject.toml",
            '[project.optional-dependencies]\nnb = ["ipykernel>=6"]\n',
            False,
        ),  # `uv sync` does not install it
        (
            "pyproject.toml",
            '[dependency-groups]\ndev = ["ruff"]\nnb = ["ipykernel"]\n',
            False,
        ),
        (
            "pyproject.toml",
            '[dependency-groups]\ndev = [\n  "ruff",\n  {include-group = "nb"},\n]\n'
            'nb = [{include-group = "dev"}, {include-group = "kernel"}]\n'
            'kernel = ["ipykernel"]\n',
            True,
        ),
        (
            "pyproject.toml",
            '[dependency-groups]\ndev = [{include-group = "lint"}]\nlint = ["ruff"]\n'
            'nb = ["ipykernel"]\n',
            False,
        ),
        ("uv.lock", LOCK, False),
        (
            "uv.lock",
            LOCK + '[[package]]\nname = "ipykernel"\n',
            True,
        ),  # of jupyter, say
    ],
)
def test_is_dependency_of_project(
    tmp_path: Path, name: str, text: str, is_dependency: bool
) -> None:
    (tmp_path / name).write_text(text)
    assert ipykernel_install.is_dependency(tmp_path) is is_dependency


# --- a kernel that uses the copy ------------------------------------------------------


def make_bare_env(folder: Path) -> Path:
    """Make an environment without pip and ipykernel; return its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return next((folder / "lib").glob("python*")) / "site-packages"


def find_ipykernel_packages() -> Path:
    """Return the packages of an environment with ipykernel, used as stepper's copy."""
    return next(
        Path(environment(sys.executable, "ipykernel>=7")).parent.parent.glob(
            "lib/python*/site-packages"
        )
    )


@pytest.fixture
def project_without_ipykernel(project: Project) -> Project:
    """A project whose interpreter has its own traitlets, but no ipykernel."""
    packages = make_bare_env(project.folder / ".venv")
    shutil.copytree(find_ipykernel_packages() / "traitlets", packages / "traitlets")
    with (packages / "traitlets/_version.py").open("a") as stream:
        stream.write('\n__version__ = "5.14.0+ofproject"\n')
    (project.folder / "uv.lock").touch()
    project.config("python: .venv/bin/python\n")
    project.stepper("trust", "--yes")
    return project


def test_kernel_falls_back_to_the_ipykernel_copy(
    project_without_ipykernel: Project,
) -> None:
    copy = Path(get_ipykernel_folder(project_without_ipykernel.paths.env, VERSION))
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.symlink_to(find_ipykernel_packages())
    notebook = project_without_ipykernel.new()
    answer = notebook.insert(
        "import sys, traitlets, ipykernel; print(traitlets.__version__, ipykernel.__path__, sys.path[-1])"
    )[1]
    assert f"| 5.14.0+ofproject ['{copy}/ipykernel'] {copy}" in answer.text
    python = f"{project_without_ipykernel.folder}/.venv/bin/python"
    note = (
        f"{python} does not have ipykernel: the kernel uses stepper's own copy;"
        " packages of the project take precedence over it. To install ipykernel, run: uv add --dev"
        " ipykernel."
    )
    assert f"Note: {note}" in answer.text
    assert "ipykernel" not in notebook.insert("1 + 1")[1].text
    project_without_ipykernel.stepper("restart")
    # The note is reported once.
    assert "ipykernel" not in notebook.insert("2 + 2")[1].text
    line = next(
        line
        for line in project_without_ipykernel.stepper(
            "doctor", check=None
        ).stdout.splitlines()
        if "ipykernel:" in line
    )
    assert (
        line.startswith("ok")
        and "stepper's own copy. To install ipykernel, run: uv add --dev ipykernel"
        in line
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["kernel-3.0", f"kernel-{VERSION}"])
def test_unusable_copy_keeps_the_error_message(
    project_without_ipykernel: Project, name: str
) -> None:
    """The copy is for another Python version, or cannot be imported."""
    copy = Path(project_without_ipykernel.paths.env, name)
    (copy / "ipykernel_launcher").mkdir(parents=True)
    (copy / "ipykernel_launcher/__main__.py").write_text(
        "raise ImportError('of another ABI')\n"
    )
    answer = project_without_ipykernel.new().insert("1")[1]
    assert (
        "NOT run" in answer.text and "No module named ipykernel_launcher" in answer.text
    )
    assert "To fix this, run: uv add --dev ipykernel" in answer.text and not answer.stop
    assert project_without_ipykernel.json("status")["kernel"]["state"] == "none"


@pytest.mark.nightly
def test_written_notebook_reports_the_fallback(
    project_without_ipykernel: Project,
) -> None:
    copy = Path(get_ipykernel_folder(project_without_ipykernel.paths.env, VERSION))
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.symlink_to(find_ipykernel_packages())
    cells = [
        {
            "cell_type": "code",
            "id": f"c{n}",
            "metadata": {},
            "source": f"print({n})",
            "outputs": [],
            "execution_count": None,
        }
        for n in range(3)
    ]
    notebook = project_without_ipykernel.notebook("a.ipynb")
    notebook.path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    payload = {
        "tool_name": "Write",
        "tool_input": {"file_path": str(notebook.path)},
        "tool_use_id": "w",
        "hook_event_name": "PostToolUse",
        "tool_response": {"type": "create"},
        "session_id": "s",
        "cwd": str(project_without_ipykernel.folder),
        "permission_mode": "default",
    }
    assert (
        project_without_ipykernel.hook("PostToolUse", payload).text.count(
            "does not have ipykernel"
        )
        == 1
    )


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_next_cell_runs_after_uv_sync_removed_ipykernel(tmp_path: Path) -> None:
    """Test a uv project with an older traitlets: install.sh, `uv sync`, a cell."""
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither next to this Python nor on the PATH")
    shop = tmp_path / "shop"
    shop.mkdir()
    programs = bin_folder(tmp_path / "bin", uv=f'exec {uv} "$@"')
    env = environ(f"{programs}{os.pathsep}{os.environ['PATH']}")

    def sh(*command: object) -> str:
        result = subprocess.run(
            [str(argument) for argument in command],
            cwd=shop,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    sh(uv, "init", "--bare", "--name", "shop", "--python", sys.executable)
    sh(uv, "add", "packaging<24", "traitlets<5.10")
    assert "uv add --dev ipykernel" in sh(ROOT / "install.sh", shop)
    assert "- ipykernel==" in sh(uv, "sync")
    stepper = shop / ".stepper/env/bin/stepper"
    try:
        response = json.loads(sh(stepper, "new", "look", "--step", "look", "--json"))
        notebook = shop / response["notebook"]
        data = json.loads(notebook.read_text())
        source = "import packaging, traitlets; print(packaging.__version__, traitlets.__version__)"
        data["cells"].append(
            {
                "cell_type": "code",
                "id": "a",
                "metadata": {},
                "source": source,
                "outputs": [],
                "execution_count": None,
            }
        )
        notebook.write_text(json.dumps(data))
        sh(stepper, "run", notebook)
        report = sh(stepper, "report")
        assert (
            "does not have ipykernel: the kernel runs with stepper's own copy" in report
        )
        assert "| 23.2 5.9.0" in report
        assert "added to the project's dependencies" in sh(
            ROOT / "install.sh", shop, "--add-ipykernel"
        )
        assert '"ipykernel' in (shop / "pyproject.toml").read_text()
        sh(uv, "sync")
        sh(stepper, "restart")
        sh(stepper, "run", notebook, "--all")
        assert "does not have ipykernel" not in sh(stepper, "report")
    finally:
        sh(stepper, "shutdown")


@pytest.mark.parametrize(
    ("packages", "uv", "command"),
    [
        (["ipython", "pip"], True, "{python} -m pip install ipykernel"),
        (["ipython"], True, "uv pip install --python {python} ipykernel"),
        (
            ["ipython"],
            False,
            "{python} -m ensurepip && {python} -m pip install ipykernel",
        ),
        (
            [],
            False,
            "{python} -m pip install ipykernel",
        ),  # its packages are not on the search path
    ],
)
def test_suggested_install_command_works_without_pip(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    packages: list[str],
    uv: bool,
    command: str,
) -> None:
    prefix, programs = tmp_path / "project" / "venv", tmp_path / "programs"
    for name in packages:
        (prefix / "lib" / "python3.12" / "site-packages" / name).mkdir(parents=True)
    programs.mkdir()
    if uv:
        (programs / "uv").write_text("#!/bin/sh\n")
        (programs / "uv").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    process = LocalProcess.__new__(LocalProcess)
    process.python = str(prefix / "bin" / "python")
    death = Death("it ended", stderr="No module named ipykernel_launcher")
    assert process.suggest_fix(death) == command.format(python=process.python)
