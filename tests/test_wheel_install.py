"""The wheel contains everything that install.sh needs.

It is installed by uvx, pipx or pip, without a clone.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from examples import demo
from stepper import __version__
from stepper.common.paths import Paths, read_install_record
from stepper.install import doctor, wheel_install
from tests.chromium import Browser
from tests.conftest import ROOT
from tests.test_install import (
    bin_folder,
    environ,
    find_uv,
    forward,
    script,
    sh,
    snapshot,
)

NAME = f"notebook_stepper-{__version__}"


def committed(*folders: str) -> set[str]:
    """Return the committed files of these folders and names."""
    results = [
        path
        for name in folders
        for path in [ROOT / name, *(ROOT / name).rglob("*")]
        if path.is_file()
    ]
    return {
        str(path.relative_to(ROOT))
        for path in results
        if "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the sdist and the wheel, built like `make dist`."""
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [find_uv(), "build", "--quiet", "--out-dir", folder, ROOT], check=True
    )
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (wheel_path,) = dist.glob("*.whl")
    return wheel_path


@pytest.fixture(scope="module")
def installed_wheel(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebook-stepper` in an environment that contains only the wheel."""
    env = tmp_path_factory.mktemp("with 'pip'") / "env"
    subprocess.run(
        [find_uv(), "venv", "--quiet", "--python", sys.executable, env], check=True
    )
    subprocess.run(
        [
            find_uv(),
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--python",
            env / "bin/python",
            wheel,
        ],
        check=True,
    )
    return env / "bin/notebook-stepper"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A PATH with uv, uvx and a python3 outside environments, which uvx needs."""
    uv = Path(find_uv())
    # the scripts that uvx creates need it
    tools = {"realpath": f'exec {shutil.which("realpath")} "$@"'}
    tools |= {
        name: f'exec {shlex.quote(str(uv.with_name(name)))} "$@"'
        for name in ("uv", "uvx")
    }
    return bin_folder(tmp_path / "bin", python3=forward(sys._base_executable), **tools)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """An interpreter with ipykernel (this one), at another path."""
    return script(tmp_path / "kernel" / "python", forward())


def run(
    *command: object, path: Path, cwd: Path | str = "/", **extra: str
) -> subprocess.CompletedProcess[str]:
    arguments = [str(argument) for argument in command]
    return subprocess.run(
        arguments,
        cwd=cwd,
        env=environ(path, **extra),
        capture_output=True,
        text=True,
        check=False,
    )


# --- content of sdist and wheel


def test_wheel_contains_the_package_and_install_assets(wheel: Path) -> None:
    files = set(zipfile.ZipFile(wheel).namelist())
    info = {name for name in files if name.startswith(f"{NAME}.dist-info/")}
    assert {name.partition("/")[2] for name in info} == {
        *["METADATA", "WHEEL", "entry_points.txt", "RECORD", "licenses/LICENSE"]
    }
    carried = {
        f"stepper/assets/{name}"
        for name in committed(
            "hooks", "skills", "examples", "install.sh", "pyproject.toml"
        )
    }
    assert files - info == committed("stepper") | carried


def test_sdist_contains_the_same_and_the_docs(dist: Path) -> None:
    (file,) = dist.glob("*.tar.gz")
    with tarfile.open(file) as sdist:
        sdist_names = {name.partition("/")[2] for name in sdist.getnames()}
    papers = {"README.md", "LICENSE", "CHANGELOG.md", "PKG-INFO", ".gitignore"}
    assert (
        sdist_names
        == committed(
            "stepper", "hooks", "skills", "examples", "install.sh", "pyproject.toml"
        )
        | papers
    )


def test_versions_and_changelog_agree(wheel: Path) -> None:
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert newest and newest[1] == __version__
    metadata = zipfile.ZipFile(wheel).read(f"{NAME}.dist-info/METADATA").decode()
    assert f"\nVersion: {__version__}\n" in metadata


@pytest.mark.nightly
def test_make_dist_builds_a_valid_release(tmp_path: Path) -> None:
    """`make dist` in a copy of the checkout; twine accepts the result."""
    copy = tmp_path / "copy"
    shutil.copytree(
        ROOT,
        copy,
        ignore=shutil.ignore_patterns(
            ".git", ".venv*", "__pycache__", ".*_cache", "dist"
        ),
    )
    (copy / ".venv").symlink_to(Path(sys.prefix))
    (copy / ".venv/.made").touch()
    result = run("make", "dist", path=Path(os.environ["PATH"]), cwd=copy)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("PASSED") == 2, result.stdout
    assert sorted(path.name for path in (copy / "dist").iterdir()) == [
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
    ]


# --- the installation is the wheel again


@pytest.mark.nightly
def test_installed_package_is_repacked_as_its_wheel(
    wheel: Path, installed_wheel: Path, tmp_path: Path
) -> None:
    code = "import sys; from pathlib import Path; from stepper.install.wheel_install import create_checkout; create_checkout(Path(sys.argv[1]))"
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run(
        [installed_wheel.with_name("python"), "-I", "-c", code, tree], check=True
    )
    (rebuilt,) = (tree / ".wheel").iterdir()
    before, after = zipfile.ZipFile(wheel), zipfile.ZipFile(rebuilt)
    assert rebuilt.name == wheel.name and after.testzip() is None
    assert {
        name: before.read(name)
        for name in before.namelist()
        if not name.endswith("RECORD")
    } == {
        name: after.read(name)
        for name in after.namelist()
        if not name.endswith("RECORD")
    }
    assert sorted(before.read(f"{NAME}.dist-info/RECORD").splitlines()) == sorted(
        after.read(f"{NAME}.dist-info/RECORD").splitlines()
    )
    # the checkout that install.sh sees is ours
    names = committed(
        "stepper", "hooks", "skills", "examples", "install.sh", "pyproject.toml"
    )
    laid = {
        str(file.relative_to(tree)): file.read_bytes()
        for file in tree.rglob("*")
        if file.is_file()
    }
    assert {name: (ROOT / name).read_bytes() for name in names} == {
        name: content for name, content in laid.items() if not name.startswith(".wheel")
    }


@pytest.mark.nightly
def test_installing_the_package_writes_only_to_the_environment(
    wheel: Path, tmp_path: Path
) -> None:
    """Files are written only below the environment, without running our code."""
    home, env = tmp_path / "home", tmp_path / "env"
    home.mkdir()
    subprocess.run(
        [find_uv(), "venv", "--quiet", "--python", sys.executable, env], check=True
    )
    before = snapshot(env)
    pip = [
        find_uv(),
        "pip",
        "install",
        "--quiet",
        "--no-cache",
        "--no-deps",
        "--compile-bytecode",
        wheel,
    ]
    data = {
        **os.environ,
        "HOME": str(home),
        "XDG_STATE_HOME": str(home / "state"),
        "VIRTUAL_ENV": str(env),
    }
    subprocess.run(pip, env=data, cwd=home, check=True)
    assert list(home.iterdir()) == []
    new = {name for name in snapshot(env) if name not in before}
    tops = {name.partition("site-packages/")[2].split("/")[0] or name for name in new}
    assert tops - {".lock"} == {
        "stepper",
        f"{NAME}.dist-info",
        "bin/stepper",
        "bin/notebook-stepper",
    }


# --- the command line


@pytest.mark.nightly
def test_command_without_project_prints_help(
    installed_wheel: Path, path: Path, tmp_path: Path
) -> None:
    result = run(installed_wheel, "--help", path=path)
    assert (
        result.returncode == 0
        and "install [TARGET]" in result.stdout
        and "uninstall [TARGET]" in result.stdout
    )
    assert (
        run(installed_wheel, "--version", path=path).stdout
        == f"notebook-stepper {__version__}\n"
    )
    for arguments in ([], ["setup"]):
        refused = run(installed_wheel, *arguments, path=path)
        assert refused.returncode == 2 and "notebook-stepper --help" in refused.stderr
    helped = run(installed_wheel, "install", "--help", path=path)
    assert helped.stdout.startswith(
        f"{shlex.quote(str(installed_wheel))} install [TARGET]"
    )
    assert "./install.sh" not in helped.stdout and "--notebooks" in helped.stdout


@pytest.mark.nightly
def test_refusals_match_those_of_a_clone(
    installed_wheel: Path, path: Path, tmp_path: Path
) -> None:
    """Texts and exit code equal those of install.sh; only the named command differs."""
    (tmp_path / "file").touch()
    command = f"{shlex.quote(str(installed_wheel))} install"
    for templates in (["{}/file"], ["{}", "--what"]):
        arguments = [template.format(tmp_path) for template in templates]
        refusal, clone = (
            run(installed_wheel, "install", *arguments, path=path),
            sh(ROOT, *arguments, path=path),
        )
        assert (refusal.returncode, refusal.stdout) == (clone.returncode, clone.stdout)
        assert refusal.stderr == clone.stderr.replace("./install.sh", command)
    refused = run(installed_wheel, "install", str(tmp_path), "--editable", path=path)
    assert refused.returncode == 2 and "checkout" in refused.stderr
    assert not (tmp_path / ".claude").exists()


@pytest.mark.parametrize(
    ("direct", "origin"),
    [
        ({}, ""),
        ({"url": "file:///tmp/a%20b/x.whl", "archive_info": {}}, "/tmp/a b/x.whl"),
        (
            {"url": "https://example.org/x.whl", "archive_info": {}},
            "https://example.org/x.whl",
        ),
        (
            {
                "url": "https://example.org/x",
                "vcs_info": {"vcs": "git", "requested_revision": "v1"},
            },
            "git+https://example.org/x@v1",
        ),
        (
            {
                "url": "https://example.org/x",
                "vcs_info": {"vcs": "git", "commit_id": "1"},
            },
            "git+https://example.org/x",
        ),
    ],
)
def test_format_install_source(direct: dict[str, object], origin: str) -> None:
    assert wheel_install.format_source(direct) == origin


# --- install and uninstall


def test_install_and_uninstall_by_uvx(
    wheel: Path, path: Path, kernel: Path, tmp_path: Path
) -> None:
    """Install, install again without a change, and uninstall."""
    repo = tmp_path / "my repo"
    repo.mkdir()
    uvx = ["uvx", "--quiet", "--from", wheel, "notebook-stepper"]
    result = run(*uvx, "install", "--python", kernel, path=path, cwd=repo)
    assert result.returncode == 0, result.stderr
    paths = Paths(str(repo))
    first, environment = snapshot(repo), snapshot(Path(paths.env))
    second_install = run(*uvx, "install", path=path, cwd=repo)
    assert (snapshot(repo), snapshot(Path(paths.env))) == (first, environment), (
        second_install.stdout
    )
    assert "made" not in second_install.stdout

    # it has its own environment and does not need uvx's
    packages = Path(paths.env, "packages").resolve()
    assert (
        packages.is_relative_to(paths.env)
        and (packages / "stepper/assets/install.sh").is_file()
    )

    undone = run(*uvx, "uninstall", path=path, cwd=repo)
    assert undone.returncode == 0, undone.stderr
    assert list(repo.iterdir()) == [] and not Path(paths.install_record).parent.exists()


@pytest.mark.nightly
def test_installation_by_uvx_is_repaired_and_equals_that_of_a_clone(
    wheel: Path, path: Path, kernel: Path, tmp_path: Path
) -> None:
    repo = tmp_path / "my repo"
    repo.mkdir()
    uvx = ["uvx", "--quiet", "--from", wheel, "notebook-stepper"]
    run(*uvx, "install", "--python", kernel, path=path, cwd=repo)
    paths = Paths(str(repo))
    first = snapshot(repo)
    second_install = run(*uvx, "install", path=path, cwd=repo)

    # doctor's suggestions use the same installer
    (repo / ".claude/hooks/stepper").unlink()
    install_command = doctor.format_install_command(paths)
    assert (
        install_command
        == f"uvx --from {wheel} notebook-stepper install {shlex.quote(str(repo))}"
    )
    assert (
        install_command
        in run(repo / ".stepper/env/bin/stepper", "doctor", path=path, cwd=repo).stdout
    )
    reinstall = run("sh", "-c", install_command, path=path)
    assert reinstall.returncode == 0 and snapshot(repo) == first

    # install.sh of a clone changes nothing but the record of its own path
    clone = sh(ROOT, path=path, cwd=repo)
    assert (clone.stdout, clone.stderr) == (
        second_install.stdout,
        second_install.stderr,
    )
    assert snapshot(repo) == first
    assert read_install_record(str(repo))["source"] == str(ROOT)


@pytest.mark.nightly
def test_install_by_uvx_for_mcp_only(
    wheel: Path, path: Path, kernel: Path, tmp_path: Path
) -> None:
    """No hooks or skills, but the MCP package; doctor reports no problem."""
    repo = tmp_path / "my repo"
    repo.mkdir()
    uvx = ["uvx", "--quiet", "--from", wheel, "notebook-stepper"]
    options = ["install", "--mcp-only", "--python", kernel]
    result = run(*uvx, *options, path=path, cwd=repo)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in repo.iterdir()) == [
        ".gitignore",
        ".stepper",
        "notebooks",
    ]
    paths = Paths(str(repo))
    command = f"uvx --from {wheel} notebook-stepper install {shlex.quote(str(repo))} --mcp-only"
    assert doctor.format_install_command(paths) == command
    stepper = repo / ".stepper/env/bin/stepper"
    process_result = run(stepper, "doctor", path=path, cwd=repo)
    assert process_result.returncode == 0, process_result.stdout
    config = run(stepper, "mcp", "--config", "codex", "--install", path=path, cwd=repo)
    assert ".codex/config.toml: created" in config.stdout
    refused = run(*uvx, *options, "--statusline", path=path, cwd=repo)
    assert refused.returncode == 2
    assert run(*uvx, "uninstall", path=path, cwd=repo).returncode == 0
    assert list(repo.iterdir()) == []


@pytest.mark.nightly
@pytest.mark.parametrize("installer", ["pip", "pipx"])
def test_install_by_pip_and_pipx(
    installer: str, wheel: Path, path: Path, kernel: Path, tmp_path: Path
) -> None:
    """Like uvx, but with pip or pipx; the record names a command that works later."""
    for name in ("uv", "uvx"):
        (path / name).unlink()
    repo, env = tmp_path / "repo", tmp_path / "env"
    repo.mkdir()
    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    requirement = "pipx" if installer == "pipx" else str(wheel)
    subprocess.run(
        [env / "bin/python", "-m", "pip", "install", "--quiet", requirement], check=True
    )
    extra = {"HOME": str(tmp_path / "home")} if installer == "pipx" else {}
    command = (
        [env / "bin/pipx", "run", "--spec", wheel, "notebook-stepper"]
        if extra
        else [env / "bin/notebook-stepper"]
    )
    result = run(*command, "install", repo, "--python", kernel, path=path, **extra)
    assert result.returncode == 0, result.stderr
    named = (
        f"pipx run --spec {wheel} notebook-stepper install"
        if extra
        else f"{env}/bin/notebook-stepper install"
    )
    assert read_install_record(str(repo))["source"] == named
    first = snapshot(repo)
    assert (
        "made" not in run(*command, "install", repo, path=path, **extra).stdout
        and snapshot(repo) == first
    )
    clone = sh(ROOT, str(repo), path=path)
    assert "unchanged: .stepper/env" in clone.stdout and snapshot(repo) == first
    assert run(*command, "uninstall", repo, path=path, **extra).returncode == 0
    assert list(repo.iterdir()) == []


LIVE = "import os, time\nwhile not os.path.exists('enough'):\n    print('still', 'alive', flush=True)\n    time.sleep(0.1)\nprint(6 * 7, 'it is')"


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_install_on_a_fresh_machine(
    wheel: Path, browser: Browser, tmp_path: Path
) -> None:
    """With uvx: demo, live view, attach, uninstall; the notebooks are kept."""
    path = Path(f"{Path(find_uv()).parent}{os.pathsep}{os.environ['PATH']}")
    uvx = ["uvx", "--from", wheel, "notebook-stepper"]
    result = run(
        *uvx, "install", "--demo", path=path, cwd=tmp_path, TMPDIR=str(tmp_path)
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr
    (scratch,) = tmp_path.glob("stepper-demo-*")
    stepper = scratch / ".stepper/env/bin/stepper"
    # the demo shut its kernel down
    run_result = run(stepper, "run", path=path, cwd=scratch)
    assert run_result.returncode == 0, run_result.stderr
    (notebook,) = (scratch / "notebooks").glob("*.ipynb")
    player = demo.Player(str(scratch), f"notebooks/{notebook.name}")
    runs = threading.Thread(target=player.play, args=("code", LIVE))
    with subprocess.Popen(
        [stepper, "view", "--no-browser"],
        cwd=scratch,
        stdout=subprocess.PIPE,
        text=True,
    ) as view:
        try:
            assert view.stdout
            page = browser.page()
            page.size(1280)
            page.go(
                next(
                    matches[0]
                    for line in view.stdout
                    if (matches := re.findall(r"http://\S+", line))
                )
            )
            page.until("document.querySelector('#state')?.textContent === 'complete'")
            assert page.js(
                "[...document.querySelectorAll('#plan .sign')].map(each => each.className)"
            ) == (["sign done"] * len(demo.STEPS))
            assert "still" not in page.text()
            runs.start()  # through the installed hook, like the client
            page.until(
                "document.querySelector('.cell.running .outputs')?.textContent.includes('still alive')"
            )
            page.until(
                "!document.querySelector('#now').hidden && document.querySelector('#now .clock').textContent"
            )
            notebook.with_name("enough").touch()
            page.until(
                "[...document.querySelectorAll('.cell.done .outputs')].at(-1)?.textContent.includes('42 it is')"
            )
            page.until("document.querySelector('#now').hidden")
            assert page.errors() == []
        finally:
            notebook.with_name("enough").touch()
            view.send_signal(signal.SIGINT)
    runs.join()
    assert view.returncode == 0
    attach = run(stepper, "attach", path=path, cwd=scratch)
    assert "jupyter console --existing" in attach.stdout, attach.stderr
    state = Path(Paths(str(scratch)).install_record).parent
    undone = run(*uvx, "uninstall", scratch, path=path)
    assert undone.returncode == 0 and "stopped" in undone.stdout, (
        undone.stdout + undone.stderr
    )
    assert not state.exists() and not (scratch / ".claude").exists()
    remaining = {name.name for name in scratch.iterdir()}
    assert remaining <= {
        ".venv",
        ".git",
        ".stepper",
        "notebooks",
        *(name for name in remaining if name.endswith(".csv")),
    }, remaining
    assert {name.name for name in (scratch / ".stepper").glob("*")} <= {
        "journal",
        "figures",
        ".gitignore",
    }
