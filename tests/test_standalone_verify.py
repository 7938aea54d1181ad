"""`notebook-stepper verify`: in any folder, with several notebooks, without a daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from stepper.cli import notebook_stepper, verify_command
from stepper.common import hook_paths
from stepper.common.errors import UsageError
from stepper.daemon.replay import replay_workspace, standalone, standalone_paths
from stepper.daemon.replay.standalone_paths import find_project_folder, find_python
from stepper.policy.model import Limits
from stepper.session.verification import late_outputs
from tests.conftest import ROOT

PROGRAM = (sys.executable, "-m", "stepper.cli.notebook_stepper", "verify")


def write_notebook(path: Path, *cells: tuple[str, str], **kernelspec: str) -> Path:
    """A notebook whose cells have run; each is a source and what it printed."""
    raw_cells = []
    for number, (source, printed) in enumerate(cells, 1):
        output = {"output_type": "stream", "name": "stdout", "text": printed}
        raw_cells.append(
            {
                "cell_type": "code",
                "id": f"c{number}",
                "metadata": {},
                "execution_count": number,
                "source": source,
                "outputs": [output] if printed else [],
            }
        )
    metadata = {"kernelspec": {"display_name": "Python", **kernelspec}}
    raw = {
        "cells": raw_cells,
        "metadata": metadata if kernelspec else {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(json.dumps(raw, indent=1))
    return path


def verify(
    *arguments: object, cwd: Path, check: int, **environ: str
) -> subprocess.CompletedProcess[str]:
    environ = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | environ
    result = subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
    )
    assert result.returncode == check, result.stdout + result.stderr
    return result


def git(*arguments: str, cwd: Path) -> str:
    result = subprocess.run(
        ["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True
    )
    return result.stdout


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return the contents of all files below a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_repository_is_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "repository" / "sub"
    folder.mkdir(parents=True)
    git("init", "-q", cwd=folder.parent)
    write_notebook(folder / "good.ipynb", ("x = 1", ""), ("print(x)", "1\n"))
    bad = ("import os\nprint(os.getcwd()[-3:])", "sub\n"), ("1 / 0", "")
    write_notebook(folder / "bad.ipynb", *bad)
    before = read_files(folder.parent)
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    result = verify(
        ".", "-j", 2, "--format", "junit", cwd=folder, check=1, TMPDIR=str(temporary)
    )
    suites = ElementTree.fromstring(result.stdout)
    assert [suite.get("name") for suite in suites] == [
        "sub/bad.ipynb",
        "sub/good.ipynb",
    ]
    assert [len(suite.findall("testcase/failure")) for suite in suites] == [1, 0]
    case = suites[0].findall("testcase")[1]
    lines = (folder / "bad.ipynb").read_text().splitlines()
    assert '"source": "1 / 0"' in lines[int(case.get("line") or 0) - 1]
    assert "sub/good.ipynb: REPRODUCES · 2 of 2 cells as recorded" in result.stderr
    assert "live kernel" not in result.stderr
    assert f"  · the notebook ran in {sys.executable} (to use" in result.stderr
    assert read_files(folder.parent) == before
    assert not [*temporary.iterdir()]


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.ipynb", "sub/b.ipynb", "sub/.hidden/c.ipynb", "env/d.ipynb"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_notebook(path, ("1", ""))
    (tmp_path / "env/conda-meta").mkdir()
    (tmp_path / "sub/.ipynb_checkpoints").mkdir()
    shutil.copy("a.ipynb", "sub/.ipynb_checkpoints/b-checkpoint.ipynb")
    expand = verify_command._expand
    assert expand(["."], None) == ["a.ipynb", "sub/b.ipynb"]
    assert expand(["s*/*.ipynb", "sub", "a"], None) == ["sub/b.ipynb", "a"]
    assert expand(["**/*.ipynb"], None) == ["a.ipynb", "env/d.ipynb", "sub/b.ipynb"]
    assert expand([], "/project") == [None]
    (tmp_path / "sub/link.ipynb").symlink_to(tmp_path / "sub/b.ipynb")
    assert expand(["sub"], None) == ["sub/b.ipynb"]
    (tmp_path / "[x].ipynb").touch()
    assert expand(["[x].ipynb"], None) == ["[x].ipynb"]
    for arguments in ([], ["*.txt"]):
        with pytest.raises(UsageError):
            expand(arguments, None)


def call(
    *arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Run the program in this process; return its exit code and what it printed."""
    monkeypatch.setattr(sys, "argv", ["notebook-stepper", "verify", *arguments])
    with pytest.raises(SystemExit) as raised:
        notebook_stepper.main()
    printed = capsys.readouterr()
    return int(str(raised.value.code)), printed.out, printed.err


def test_usage_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "a.ipynb", ("1", ""))
    for arguments in (
        [],
        ["nothing"],
        ["a.ipynb", "--python", "a.ipynb"],
        ["a.ipynb", "-j", "0"],
        ["a.ipynb", "--kernel", "../x"],
        ["a.ipynb", "--format", "yaml"],
    ):
        code, out, err = call(*arguments, monkeypatch=monkeypatch, capsys=capsys)
        assert code == 2 and out == "" and "internal" not in err
        assert err.startswith(("stepper: ", "Usage: ")), err
    (tmp_path / "b.ipynb").write_text("{")
    code, out, err = call(
        "b.ipynb", "nothing", "--json", monkeypatch=monkeypatch, capsys=capsys
    )
    documents = json.loads(out)
    assert code == 2 and [document["exit_code"] for document in documents] == [1, 2]


def test_kernel_of_another_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    r = {"name": "ir-missing", "language": "R"}
    path = write_notebook(tmp_path / "a.ipynb", ("x <- 1", ""), **r)
    code, out, err = call(str(path), monkeypatch=monkeypatch, capsys=capsys)
    assert "needs a kernel for r, but the kernelspec ir-missing is not" in err
    assert code == 1 and out == ""


@pytest.fixture
def tool_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment as uvx creates it, in which this process seems to run."""
    cache = tmp_path / "cache"
    (cache / "bin").mkdir(parents=True)
    (cache / "CACHEDIR.TAG").touch()
    prefix = cache / "archive" / "x"
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin/python"))
    return make_python(prefix / "bin/python")


def make_python(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_interpreter_of_an_ordinary_environment(tmp_path: Path) -> None:
    notebook = str(tmp_path / "a.ipynb")
    make_python(tmp_path / ".venv/bin/python")
    assert find_python(None, notebook, {}) == sys.executable
    other = make_python(tmp_path / "other/bin/python")
    active = {"VIRTUAL_ENV": str(tmp_path / "other")}
    assert find_python(None, notebook, active) == str(other)
    assert find_python(str(tmp_path / ".venv"), notebook, active).endswith(
        ".venv/bin/python"
    )


def test_interpreter_if_this_program_has_its_own_environment(
    tmp_path: Path, tool_environment: Path
) -> None:
    repository = tmp_path / "repository"
    (repository / ".git").mkdir(parents=True)
    notebook = str(repository / "sub/a.ipynb")
    tool_folder = str(tool_environment.parent)
    on_path = make_python(tmp_path / "bin/python3")
    environ = {
        "PATH": f"{tool_folder}:{on_path.parent}",
        "VIRTUAL_ENV": str(tool_environment.parents[1]),
    }
    assert find_python(None, notebook, environ) == str(on_path)
    make_python(tmp_path / ".venv/bin/python")  # above the repository
    assert find_python(None, notebook, environ) == str(on_path)
    venv = make_python(repository / ".venv/bin/python")
    assert find_python(None, notebook, environ) == str(venv)
    assert find_python(None, notebook, {"PATH": tool_folder}) == str(venv)


def test_project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = tmp_path / "a" / "b" / "n.ipynb"
    notebook.parent.mkdir(parents=True)
    assert find_project_folder(str(notebook)) == str(notebook.parent)
    monkeypatch.chdir(tmp_path)
    assert find_project_folder(str(notebook)) == str(tmp_path)
    (tmp_path / "a" / ".git").touch()  # as in a linked worktree
    assert find_project_folder(str(notebook)) == str(tmp_path / "a")


@pytest.mark.nightly
def test_project_configuration(tmp_path: Path) -> None:
    """Limits of the project apply, but neither its interpreter nor its backends."""
    (tmp_path / ".stepper").mkdir()
    config = "verify_timeout: 1\npython: /nowhere\nkernel: far\nkernels:\n"
    config += "  far: {ssh: {host: nowhere.invalid, python: python3}}\n"
    (tmp_path / ".stepper/config.yaml").write_text(config)
    sleeping = ("import time\ntime.sleep(60)", "")
    write_notebook(tmp_path / "a.ipynb", ("print(1)", "1\n"), sleeping)
    result = verify("a.ipynb", cwd=tmp_path, check=1)
    assert "not judged: timed out after 1.00 s" in result.stdout
    assert os.listdir(tmp_path / ".stepper") == ["config.yaml"]


@pytest.mark.nightly
def test_kernelspec_of_the_notebook(tmp_path: Path) -> None:
    share = tmp_path / "share" / "kernels" / "mine"
    share.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {
        "argv": argv,
        "language": "python",
        "display_name": "x",
        "env": {"MINE": "1"},
    }
    (share / "kernel.json").write_text(json.dumps(spec))
    source = "import os\nprint(os.environ.get('MINE'))"
    write_notebook(tmp_path / "a.ipynb", (source, "1\n"), name="mine")
    jupyter_path = {"JUPYTER_PATH": str(share.parents[1])}
    result = verify("a", cwd=tmp_path, check=0, **jupyter_path)
    assert "in 1 fresh kernel (in mine)" in result.stdout
    result = verify("a", cwd=tmp_path, check=1)
    assert "the kernelspec mine is not installed; using " in result.stderr
    write_notebook(tmp_path / "b.ipynb", (source, "1\n"))
    verify("b", "--kernel", "mine", cwd=tmp_path, check=0, **jupyter_path)
    result = verify("b", "--kernel", "other", cwd=tmp_path, check=1)
    assert "the kernelspec 'other' is not installed" in result.stderr


@pytest.mark.nightly
def test_ctrl_c_ends_all_replays(tmp_path: Path) -> None:
    for name in "abc":
        source = f"import time; open('{name}.txt', 'w').close(); time.sleep(60)"
        write_notebook(tmp_path / f"{name}.ipynb", (source, ""))
    process = subprocess.Popen(
        [*PROGRAM, ".", "-j", "2"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while len([*tmp_path.glob("*.txt")]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, out + err
    assert out.count("NOT VERIFIED") == 3 and "0 of 3 notebooks reproduce" in out
    assert not [*tmp_path.glob("stepper-*")]
    assert not (tmp_path / "c.txt").exists()


def test_errors_name_the_notebook_as_results_do(tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    git("init", "-q", cwd=tmp_path)
    (folder / "broken.ipynb").write_text("{")
    names = ("broken", "../sub/broken.ipynb", "missing")
    result = verify(*names, "--format", "github", cwd=folder, check=2)
    lines = [line for line in result.stdout.splitlines() if line.startswith("::")]
    files = [line.partition(",title=")[0] for line in lines]
    assert files == ["::error file=sub/broken.ipynb"] * 2 + ["::error file=missing"]


LATE = {
    "thread": "import threading\nthreading.Timer(0.1, lambda: print('late')).start()",
    "task": """import asyncio
async def work():
    await asyncio.sleep(0.1)
    print('late')
task = asyncio.create_task(work())""",
    "callback": """import asyncio
asyncio.get_running_loop().call_later(0.1, print, 'late')
None""",
    "process": """import subprocess
child = subprocess.Popen('sleep 0.1; echo late', shell=True)""",
    "detached": "import os\nos.system('(sleep 0.1; echo late) &')\nNone",
}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", LATE)
def test_outputs_after_the_last_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(late_outputs, "LATE_SECONDS", 1.0)
    notebook = write_notebook(tmp_path / "a.ipynb", (LATE[kind], "late\n"))
    result = standalone.replay_once(str(notebook))
    assert result.reproduces, result.text


def test_no_wait_for_recorded_outputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_outputs, "LATE_SECONDS", 900)
    cells = (("print(1)\nprint(2)", "1\n2\n"), ("!echo y", "y\n"))
    notebook = write_notebook(tmp_path / "a.ipynb", *cells)
    result = standalone.replay_once(str(notebook))
    assert result.reproduces and result.duration_s < 300, result.text


def test_links_to_this_environment(tmp_path: Path) -> None:
    with standalone_paths.create_paths(str(tmp_path), sys.executable) as paths:
        env = Path(paths.active_env)
        assert (env / "bin").resolve() == Path(sys.prefix, "bin").resolve()
        (kernel,) = env.glob("kernel-*")
        assert (kernel / "ipykernel").is_dir()
        assert paths.runtime != hook_paths.HookPaths(str(tmp_path)).runtime
    assert not env.exists() and not os.path.exists(paths.runtime)


@pytest.mark.nightly
def test_pytest_plugin(tmp_path: Path) -> None:
    cells = (
        ("print(1)", "1\n"),
        ("print(2)", "3\n"),
        ("import os; os._exit(1)", ""),
        ("print(4)", "4\n"),
    )
    write_notebook(tmp_path / "a.ipynb", *cells)
    (tmp_path / "b.ipynb").write_text("{")
    command = [sys.executable, "-m", "pytest", "-p", "stepper.cli.pytest_plugin"]
    options = [
        "-v",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        f"--rootdir={tmp_path}",
    ]
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }

    def run_pytest(*arguments: str) -> tuple[int, str]:
        result = subprocess.run(
            [*command, *options, *arguments],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
        )
        return result.returncode, result.stdout + result.stderr

    code, out = run_pytest("--stepper-verify", "a.ipynb")
    assert code == 1, out
    outcomes = re.findall(r"a.ipynb::(cell \d) ([A-Z]+)", out)
    assert outcomes[:4] == [
        ("cell 1", "PASSED"),
        ("cell 2", "FAILED"),
        ("cell 3", "FAILED"),
        ("cell 4", "SKIPPED"),
    ]
    assert "changed: -1 +1\n- 3\n+ 2\n" in out and "Traceback" not in out
    assert "1 passed" in out and "2 failed" in out and "1 skipped" in out
    code, out = run_pytest("--stepper-verify", "b.ipynb")
    assert code == 2 and "b.ipynb is not valid JSON" in out
    assert run_pytest("a.ipynb")[0] in (4, 5), "notebooks are collected on request only"


def test_scratch_copy_has_links_to_all_files_of_the_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "home").mkdir(parents=True)
    (project / "notebooks").mkdir()
    own_home = tmp_path / "own" / "home"
    paths = standalone_paths.StandalonePaths(str(project), str(own_home), "")
    launch: Any = None
    workspace = replay_workspace.ReplayWorkspace(
        original=str(project / "notebooks" / "a.ipynb"),
        folder=str(tmp_path),
        launch=launch,
        limits=Limits(),
        original_cwd=str(project / "notebooks"),
    )
    cwd = Path(replay_workspace._copy_working_directory(paths, workspace))
    assert cwd.name == "notebooks" and not cwd.is_symlink()
    assert (cwd.parent / "home").resolve() == project / "home"
