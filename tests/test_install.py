"""install.sh end to end with real environments, and each reason for which it refuses.

After a refusal, nothing is half done or lost. Tests that need no environment run in
this process, on a project that uses this interpreter as its kernel.
"""

import hashlib
import json
import os
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stepper import __version__
from stepper.common import hook_paths, wire_format
from stepper.common.errors import StepperError
from stepper.common.paths import (
    Paths,
    get_record_root,
    read_install_record,
    resolve_project,
)
from stepper.install import (
    claude_settings,
    install_checks,
    install_file_io,
    install_options,
    installer,
    python_probe,
    skill_states,
    trust,
    uninstall,
)
from stepper.notebooks.notebook_file import IpynbFile
from stepper.notebooks.slim_copies import SlimCopies

REPO = Path(__file__).resolve().parent.parent
ODD = 'it\'s "my" $repo é ü'
TOOLS = ("sh", "sed", "dirname", "rm", "rmdir", "mkdir", "cat", "env", "uname")
CODE = "import sys; sys.stdout.write(repr((sys.version_info[:2], sys.prefix)))"


def snapshot(root):
    """Return mode and content of each file, link and folder below `root`."""
    contents = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        contents[str(path.relative_to(root))] = (stat.S_IMODE(status.st_mode), content)
    return contents


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def forward(python=sys.executable):
    return f'exec {shlex.quote(str(python))} "$@"'


def bin_folder(folder, **commands):
    """Create a folder for PATH with install.sh's tools and `commands` (name → script)."""
    folder.mkdir()
    for name in TOOLS:
        if executable := shutil.which(name):
            (folder / name).symlink_to(executable)
    for name, text in commands.items():
        script(folder / name, text)
    return folder


def find_uv():
    return shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )


def environ(path, **extra):
    settings = {
        k: v
        for k, v in os.environ.items()
        if k not in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH")
    }
    return {**settings, "PATH": str(path), **extra}


def sh(checkout, *arguments, path, cwd="/", **extra):
    return subprocess.run(
        [checkout / "install.sh", *arguments],
        cwd=cwd,
        env=environ(path, **extra),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of this checkout that tests may change, in a folder with special characters."""
    root = tmp_path_factory.mktemp("clone") / "step per'é"
    root.mkdir()
    for name in (
        "stepper",
        "hooks",
        "skills",
        "examples",
        "install.sh",
        "pyproject.toml",
        "README.md",
        "LICENSE",
    ):
        source = REPO / name
        if source.is_dir():
            shutil.copytree(
                source, root / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(source, root / name)
    return root


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    """An interpreter with ipykernel (this one), at another path."""
    return script(tmp_path_factory.mktemp("kernel é") / "python", forward())


@pytest.fixture
def path(tmp_path):
    """A PATH with python3 and without uv."""
    return bin_folder(tmp_path / "bin", python3=forward())


@pytest.fixture
def repo(tmp_path):
    """A repository with its own settings, hook, permission, skill and .gitignore."""
    root = tmp_path / ODD
    (root / ".claude/skills/theirs").mkdir(parents=True)
    (root / ".claude/skills/theirs/SKILL.md").write_text("---\nname: theirs\n---\n")
    (root / ".claude/settings.json").write_text(
        '{\n    "model": "opus",\n    "hooks": {"Stop": [{"hooks": [{"type": "command", "command": "echo é"}]}]},\n'
        '    "permissions": {"allow": ["Bash(ls *)"], "deny": []},\n    "неизвестный": 1.50\n}'
    )
    (root / ".gitignore").write_bytes(b"*.pyc\r\ndata")
    (root / "notebooks").mkdir()
    (root / "notebooks/old.ipynb").write_text("{}")
    return root


def find_commands_in_agent_shell(env, path, *names):
    """Return the paths of those commands that a shell with session.sh finds."""
    text = (
        (env / "session.sh").read_text()
        + "".join(f"command -v {name}\n" for name in names)
        + "true\n"
    )
    result = subprocess.run(
        ["/bin/sh", "-c", text],
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.splitlines()


# --- the whole way, real environments -------------------------------------------------


@pytest.mark.nightly
def test_install_with_venv_and_pip(checkout, repo, path, kernel):
    before = snapshot(repo)
    result = sh(checkout, str(repo), "--allow", "--python", str(kernel), path=path)
    assert result.returncode == 0, result.stderr
    assert "/new-notebook" in result.stdout
    paths = Paths(str(repo))
    env = Path(paths.env)
    first, env_before = snapshot(repo), snapshot(env)

    # the programs that hooks and users start
    assert (repo / ".stepper/env").readlink() == env
    for folder in (env.parent, env.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    run = [
        env / "bin/python",
        "-I",
        "-S",
        "-c",
        "import sys; sys.path.append(sys.argv[1]); import stepper.hook.daemon_client; print(stepper.__file__)",
    ]
    process_result = subprocess.run(
        [*run, env / "packages"], capture_output=True, text=True, check=True
    )
    assert Path(process_result.stdout.strip()).is_relative_to(env)
    command, python = find_commands_in_agent_shell(
        env, path, "stepper", "python", "python3", "pip", "jupyter", "ipython"
    )
    assert Path(command).resolve() == env / "bin/stepper"
    assert python == str(path / "python3")
    assert stat.S_IMODE((repo / ".stepper").stat().st_mode) == 0o700
    assert first[".stepper/token"][0] == 0o600
    assert stat.S_IMODE(Path(paths.install_record).stat().st_mode) == 0o600
    assert first[".claude/hooks/stepper"][0] == 0o755
    record = json.loads(Path(paths.install_record).read_text())
    assert (record["python"], record["version"]) == (str(kernel), 1)
    settings = json.loads((repo / ".claude/settings.json").read_text())
    assert settings["permissions"]["allow"] == [
        "Bash(ls *)",
        "Edit(notebooks/**)",
        "Bash(stepper *)",
    ]
    assert list(settings) == ["model", "hooks", "permissions", "неизвестный"]

    second_run = sh(checkout, str(repo), "--allow", path=path)
    assert second_run.returncode == 0, second_run.stderr
    assert (snapshot(repo), snapshot(env)) == (first, env_before), second_run.stdout
    assert "created" not in second_run.stdout
    process_result = subprocess.run(
        [repo / ".stepper/env/bin/stepper", "shutdown"], cwd="/", capture_output=True
    )
    # The command finds its project from any folder.
    assert b"Nothing to stop" in process_result.stdout, process_result.stderr

    undone = sh(checkout, str(repo), "--uninstall", path=path)
    assert undone.returncode == 0, undone.stderr
    assert "kept        notebooks" in undone.stdout
    assert snapshot(repo) == before
    assert not env.parent.exists()


@pytest.mark.nightly
def test_install_and_uninstall_with_uv(checkout, tmp_path):
    uv = find_uv()
    if uv is None:
        pytest.skip("uv is neither next to this Python nor on the PATH")
    target = tmp_path / ODD
    target.mkdir()
    # Without python3 on the PATH, uv finds a Python itself.
    path = bin_folder(
        tmp_path / "bin", uv=f'exec {shlex.quote(uv)} "$@"', python=forward()
    )
    (target / "uv.lock").touch()

    result = sh(checkout, path=path, cwd=target)
    assert result.returncode == 0, result.stderr
    assert "ipykernel added" in result.stdout
    assert "uv add --dev ipykernel" in result.stdout
    record = json.loads(Path(Paths(str(target)).install_record).read_text())
    assert record["python"] == str(target / ".venv/bin/python")
    assert "ipykernel" in python_probe.probe(record["python"]).modules
    assert python_probe.probe(str(target / ".stepper/env/bin/python")).modules == ()
    first = snapshot(target)
    assert sh(checkout, str(target), path=path).returncode == 0
    assert snapshot(target) == first

    # The checkout changed, so uv must not use its cached wheel.
    (checkout / "stepper/fresh.py").write_text("NEW = 1\n")
    result = sh(checkout, str(target), path=path)
    assert "environment created" in result.stdout, result.stderr
    assert (target / ".stepper/env/packages/stepper/fresh.py").is_file()

    # Another mode, installed from Claude Code's shell with that environment on the PATH.
    agent_path = f"{target}/.stepper/env/cli{os.pathsep}{path}{os.pathsep}{target}/.stepper/env/bin"
    result = sh(checkout, str(target), "--editable", path=agent_path)
    assert "environment created" in result.stdout, result.stderr
    assert (target / ".stepper/env/packages").resolve() == checkout
    editable = snapshot(target)
    (checkout / "stepper/fresh.py").unlink()
    assert sh(checkout, str(target), "--editable", path=path).returncode == 0
    assert snapshot(target) == editable

    # uninstalling does not need the environment
    shutil.rmtree(Paths(str(target)).env)
    assert sh(checkout, str(target), "--uninstall", path=path).returncode == 0
    assert sorted(item.name for item in target.iterdir()) == [".venv", "uv.lock"]


def test_failed_environment_creation_leaves_nothing(checkout, tmp_path):
    target = tmp_path / "repo"
    target.mkdir()
    path = bin_folder(
        tmp_path / "bin",
        python3=f'case "$*" in *"-m venv"*) exit 1;; esac\n{forward()}',
    )
    result = sh(checkout, str(target), path=path)
    assert result.returncode == 1
    assert "-venv" in result.stderr
    assert "uv" in result.stderr
    assert list(target.iterdir()) == []
    assert not Path(get_record_root(), *target.parts[1:]).exists()


# --- bad input: refused before anything changes ---------------------------------------


def python38():
    candidates = sorted(
        Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(
            "versions/3.8.*/bin/python3.8"
        )
    )
    return (
        forward(candidates[0])
        if candidates
        else 'case "$*" in *version_info*) echo 3.8;; *) exit 1;; esac'
    )


BARE = f'case "$*" in *ensurepip*|*"-m venv"*) echo "No module named ensurepip" >&2; exit 1;; esac\n{forward()}'


@pytest.mark.parametrize(
    ("commands", "messages"),
    [
        ({}, ("3.10 or newer", "python3 is not on the PATH", "uv")),
        ({"python3": python38()}, ("3.10 or newer", "python3 is Python 3.8")),
        (
            {"python3": "exit 127", "python3.9": "echo 3.9"},
            ("python3 is not on the PATH",),
        ),
        ({"python3": BARE}, (f"apt install python3.{sys.version_info[1]}-venv", "uv")),
        (
            {"python3": BARE, "uv": "exit 1"},
            (f"apt install python3.{sys.version_info[1]}-venv",),
        ),
    ],
    ids=[
        "no python",
        "old python",
        "a shim of nothing",
        "no venv",
        "no venv, broken uv",
    ],
)
def test_missing_requirements_are_reported(
    checkout, tmp_path, repo, commands, messages
):
    before = snapshot(repo)
    result = sh(checkout, str(repo), path=bin_folder(tmp_path / "bin", **commands))
    assert result.returncode == 1
    for message in messages:
        assert message in result.stderr
    assert snapshot(repo) == before


def test_newer_python_is_found(checkout, tmp_path, repo):
    path = bin_folder(
        tmp_path / "bin",
        **{"python3": python38(), "python3.12": BARE, "python3.10": forward()},
    )
    result = sh(checkout, str(repo), "--python", "/nowhere", path=path)
    assert "/nowhere" in result.stderr  # reported by the check of the options
    assert "venv" not in result.stderr.replace("--python", "")


def replace_with_foreign(repo, name, content=None):
    """Replace a path of the installation by a file with `content`, or by a folder."""
    path = repo / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir() if content is None else path.write_text(content)


SPOILT = {
    ".claude/settings.json": [
        None,
        "",
        "{",
        "[]",
        '{"hooks": []}',
        '{"hooks": {"Stop": 1}}',
        '{"a": 1, "a": 2}',
        "[" * 5000,
    ],
    ".claude/hooks/stepper": [None, "#!/bin/sh\necho mine\n"],
    ".claude/hooks": ["a file"],
    ".claude/skills": ["a file"],
    ".claude": ["a file"],
    ".stepper": ["a file"],
    ".gitignore": [None],
    "notebooks": ["a file"],
    ".venv": ["a file"],
}


@pytest.mark.parametrize(
    ("name", "content"),
    [(name, item) for name, items in SPOILT.items() for item in items],
)
def test_conflicting_files_are_named_and_kept(repo, monkeypatch, capsys, name, content):
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    replace_with_foreign(repo, name, content)
    before = snapshot(repo)
    assert call(monkeypatch, "plan", str(repo)) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert str(repo / name) in captured.err
    assert snapshot(repo) == before


def call(monkeypatch, verb, *arguments):
    monkeypatch.setattr(sys, "argv", ["stepper.install.installer", verb, *arguments])
    return installer.main()


@pytest.mark.parametrize("content", ["{", "[]"])
def test_uninstall_refuses_unreadable_settings(repo, monkeypatch, capsys, content):
    replace_with_foreign(repo, ".claude/settings.json", content)
    before = snapshot(repo)
    assert call(monkeypatch, "uninstall", "--uninstall", str(repo)) == 1
    assert "settings.json" in capsys.readouterr().err
    assert snapshot(repo) == before


@pytest.mark.nightly_after(5)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/missing"], "does not exist"),
        (["{tmp}/file"], "is not a folder"),
        (["{tmp}/a:b"], "colon"),
        (["{tmp}/closed"], "can't be written"),
        (["{home}"], "home folder"),
        (["{tmp}", "--what"], "--what"),
        (["{tmp}", "second"], "second"),
        (["{tmp}", "--python"], "expected one argument"),
        (["{tmp}", "--python", "{tmp}/none"], "does not run"),
        (["{tmp}", "--python", "{tmp}"], "does not run"),
        (["{tmp}", "--python", "no-such-python"], "does not run"),
        (["{tmp}", "--demo", "--uninstall"], "exclude"),
    ],
)
def test_invalid_arguments(checkout, tmp_path, path, arguments, message):
    (tmp_path / "file").touch()
    (tmp_path / "a:b").mkdir()
    (tmp_path / "closed").mkdir(mode=0o500)
    # Root can write in folders without write permission, but not in /proc.
    closed = (
        "/proc" if os.access(tmp_path / "closed", os.W_OK) else f"{tmp_path}/closed"
    )
    before = snapshot(tmp_path)
    command = [
        argument.replace("{tmp}/closed", closed)
        .replace("{tmp}", str(tmp_path))
        .replace("{home}", str(Path.home()))
        for argument in arguments
    ]
    result = sh(checkout, *command, path=path)
    assert result.returncode in (1, 2)
    assert message in result.stderr
    assert result.stdout == ""
    assert snapshot(tmp_path) == before


def test_help_works_without_python(checkout, tmp_path):
    result = sh(checkout, "--help", path=bin_folder(tmp_path / "bin"))
    assert result.returncode == 0
    for heading in (
        "--python PATH",
        "--notebooks PATTERN…",
        "--allow",
        "--link",
        "--editable",
        "--uninstall",
        "--demo",
        "approving its execution",
    ):
        assert heading.lower() in result.stdout.lower()


# --- in this process ------------------------------------------------------------------


def setup(repo, *arguments, kernel):
    installer.apply(
        install_options.parse_arguments(
            [str(repo), "--python", str(kernel), *arguments]
        )
    )


def uninstall_from(repo):
    uninstall.uninstall(install_options.parse_arguments(["--uninstall", str(repo)]))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".claude/settings.json", '{"hooks":{"Stop":[]},"permissions":{"allow":[]}}'),
        (".claude/settings.json", "{}\n"),
        (
            ".claude/settings.json",
            '{\n\t"permissions": {"allow": ["Edit(notebooks/**)"]}\n}\n',
        ),
        (".gitignore", ""),
        (".gitignore", "/.stepper/\n"),
        ("notebooks/.keep", ""),
    ],
)
def test_install_and_uninstall_restore_the_repository(tmp_path, kernel, name, text):
    repo = tmp_path / ODD
    (repo / name).parent.mkdir(parents=True)
    (repo / name).write_text(text)
    before = snapshot(repo)
    setup(repo, "--allow", kernel=kernel)
    first = snapshot(repo)
    assert first != before
    setup(repo, kernel=kernel)
    assert snapshot(repo) == first
    uninstall_from(repo)
    assert snapshot(repo) == before


def test_agent_shell_path_has_only_the_stepper_command(tmp_path, kernel):
    (repo := tmp_path / ODD).mkdir()
    setup(repo, kernel=kernel)
    env = Path(Paths(str(repo)).env)
    for name in (other_commands := ("python", "python3", "pip", "jupyter", "ipython")):
        script(env / "bin" / name, "echo stepper's own")
    # the file of an earlier version
    (env / "session.sh").write_text(f"export PATH='/x':\"$PATH\":'{env}/bin'\n")
    setup(repo, kernel=kernel)
    commands_in_agent_shell = find_commands_in_agent_shell(
        env, tmp_path / "nothing", "stepper", *other_commands
    )
    assert [Path(result).resolve() for result in commands_in_agent_shell] == [
        env / "bin/stepper"
    ]


def test_uninstall_leaves_an_empty_folder_empty(tmp_path, kernel):
    for existing in ((), (".claude/skills",), (".claude/hooks",), ("notebooks",)):
        repo = tmp_path / f"repo {len(list(tmp_path.iterdir()))}"
        repo.mkdir()
        for name in existing:
            (repo / name).mkdir(parents=True)
        before = snapshot(repo)
        setup(repo, kernel=kernel)
        uninstall_from(repo)
        assert snapshot(repo) == before
        uninstall_from(repo)
        assert snapshot(repo) == before


def test_uninstall_removes_the_socket_folder_in_the_project(
    tmp_path, kernel, monkeypatch
):
    """The folder is in the project if no other folder is usable."""
    repo = tmp_path / "repo"
    repo.mkdir()
    setup(repo, kernel=kernel)
    occupied = tmp_path / f"stepper-{os.getuid()}"
    occupied.write_text("")
    monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", (str(tmp_path),))
    paths = Paths(str(repo))
    Path(paths.runtime).mkdir(parents=True)
    assert Path(paths.runtime) == repo / ".stepper/run/s"
    uninstall_from(repo)
    assert list(repo.iterdir()) == []


def test_later_user_edits_survive_uninstall(repo, kernel):
    setup(repo, "--allow", kernel=kernel)
    path = repo / ".claude/settings.json"
    data = json.loads(path.read_text())
    data["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "later"}]})
    data["permissions"]["allow"].append("Bash(later *)")
    path.write_text(json.dumps(data, indent=2))
    with (repo / ".gitignore").open("ab") as stream:
        stream.write(b"\r\nlater")
    uninstall_from(repo)
    data = json.loads(path.read_text())
    assert [item["hooks"][0]["command"] for item in data["hooks"]["Stop"]] == [
        "echo é",
        "later",
    ]
    assert list(data["hooks"]) == ["Stop"]
    assert data["permissions"] == {"allow": ["Bash(ls *)", "Bash(later *)"], "deny": []}
    assert (repo / ".gitignore").read_bytes() == b"*.pyc\r\ndata\r\nlater"
    assert (repo / ".claude/skills/theirs/SKILL.md").exists()


@pytest.mark.parametrize("reinstall", [False, True])
def test_uninstall_without_a_record(repo, kernel, capsys, reinstall):
    before = snapshot(repo)
    data = json.loads((repo / ".claude/settings.json").read_text())
    setup(repo, "--allow", kernel=kernel)
    shutil.rmtree(repo / ".stepper")
    # After a clone or a lost .stepper/, the installer does not know the original.
    if reinstall:
        setup(repo, kernel=kernel)
    uninstall_from(repo)
    document = json.loads((repo / ".claude/settings.json").read_text())
    assert document.pop("permissions")["allow"] == ["Bash(ls *)", "Edit(notebooks/**)"]
    data.pop("permissions")
    assert document == data
    after = snapshot(repo)
    assert {name for name in before if before[name] != after.get(name)} == {
        ".claude/settings.json"
    }
    assert after.keys() == before.keys()
    if not reinstall:
        assert "Edit(notebooks/**)" in capsys.readouterr().out


def test_uninstall_without_a_record_in_an_empty_folder(tmp_path, kernel):
    repo = tmp_path / "repo"
    repo.mkdir()
    setup(repo, kernel=kernel)
    shutil.rmtree(repo / ".stepper")
    uninstall_from(repo)
    assert list(repo.iterdir()) == []


def test_environment_of_older_installation_is_replaced(repo, kernel):
    """The older environment was a folder in the project."""
    old = repo / ".stepper/env"
    (old / "bin").mkdir(parents=True)
    (old / "stamp").write_text("old")
    before = Path(Paths(str(repo)).env)
    setup(repo, kernel=kernel)
    assert old.readlink() == before and not (before / "stamp").exists()


def test_moved_checkout_gets_a_new_environment(repo, kernel):
    """Its link leads to the environment of the former path."""
    setup(repo, kernel=kernel)
    moved_repo = repo.rename(repo.with_name("moved"))
    assert read_install_record(str(moved_repo)) == {}
    setup(moved_repo, kernel=kernel)
    assert (moved_repo / ".stepper/env").readlink() == Path(Paths(str(moved_repo)).env)
    env = Paths(str(repo)).env
    # The environment of a path that does not exist names no project.
    assert resolve_project(str(moved_repo), env) == str(moved_repo)
    assert resolve_project("/", Paths(str(moved_repo)).env) == str(moved_repo)
    trust.remove_record(Paths(str(repo)))


def test_uninstall_finds_the_environment_of_a_recreated_project(repo, kernel):
    setup(repo, kernel=kernel)
    shutil.rmtree(repo)
    repo.mkdir()
    uninstall_from(repo)
    assert not os.path.lexists(os.path.dirname(Paths(str(repo)).env))


def test_uninstall_keeps_journal_figures_and_config(repo, kernel, capsys):
    setup(repo, kernel=kernel)
    home = repo / ".stepper"
    for name in (
        "journal/a.jsonl",
        "config.yaml",
        "figures/a/1.png",
        "kernels/a.json",
        "daemon.log",
        "daemon.log.1",
        "state.json",
        "active",
    ):
        (home / name).parent.mkdir(exist_ok=True, parents=True)
        (home / name).write_text("")
    uninstall_from(repo)
    assert sorted(item.name for item in home.iterdir()) == [
        ".gitignore",
        "config.yaml",
        "figures",
        "journal",
    ]
    out = capsys.readouterr().out
    assert "config.yaml, figures, journal" in out
    # A kernel's record remains, but there is no command to shut it down.
    assert "may still be running" in out


@pytest.mark.parametrize("is_restored", [True, False])
def test_uninstall_puts_notebooks_back(repo, kernel, capsys, monkeypatch, is_restored):
    setup(repo, kernel=kernel)
    paths = Paths(str(repo))
    path = repo / "notebooks" / "large.ipynb"
    output = {"output_type": "stream", "name": "stdout", "text": "y" * 9000}
    cell = {"cell_type": "code", "metadata": {}, "execution_count": 1}
    cells = [
        {**cell, "id": f"c{number}", "source": "1", "outputs": [output]}
        for number in range(100)
    ]
    path.write_text(
        json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    before = path.read_bytes()
    document = IpynbFile(str(path)).read()
    assert SlimCopies(str(repo), paths.reads).place(str(path), document)
    assert path.read_bytes() != before
    commands = []

    def run(*command, **options):
        commands.append(command[1:])
        if is_restored:
            SlimCopies(str(repo), paths.reads).restore_all()
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(uninstall, "run", run)
    monkeypatch.setattr(Paths, "is_env_recorded", lambda self: True)
    uninstall_from(repo)
    out = capsys.readouterr().out
    assert commands[0] == ("status",)
    if is_restored:
        assert path.read_bytes() == before
        assert not (repo / ".stepper").exists()
        assert "did not put back" not in out
    else:
        assert "did not put back notebooks/large.ipynb after a read" in out
        (stored_notebook,) = (repo / ".stepper" / "reads").glob("*.ipynb")
        assert stored_notebook.read_bytes() == before


def test_every_file_in_the_state_folder_is_classified(tmp_path):
    paths = Paths(str(tmp_path))
    known_paths = {
        path
        for path in vars(paths).values()
        if isinstance(path, str) and path.startswith(f"{paths.home}/")
    }
    names = {path.removeprefix(f"{paths.home}/").split("/")[0] for path in known_paths}
    assert (
        len(names) > 10
        and names
        - {*uninstall.STEPPER_FILES, "journal", "figures", "reads", "renamed.json"}
        - {"config.yaml", "daemon.log"}
        == set()
    )


def test_rename_records_are_kept_with_their_journals(repo, kernel):
    setup(repo, kernel=kernel)
    names, journal = repo / ".stepper/renamed.json", repo / ".stepper/journal/a.jsonl"
    journal.parent.mkdir()
    names.write_text("{}")
    journal.write_text("{}\n")
    uninstall_from(repo)
    assert names.exists()
    setup(repo, kernel=kernel)
    journal.unlink()
    uninstall_from(repo)
    assert not names.exists()


def test_files_kept_by_uninstall_are_ignored_by_git(tmp_path, kernel, capsys):
    repo = tmp_path / "repo"
    repo.mkdir()
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    setup(repo, kernel=kernel)
    (repo / ".stepper/journal").mkdir()
    (repo / ".stepper/journal/a.jsonl").write_text("")
    capsys.readouterr()
    uninstall_from(repo)
    assert (
        subprocess.run(
            ["git", "-C", str(repo), "status", "--porcelain"], capture_output=True
        ).stdout
        == b""
    )
    out = capsys.readouterr().out
    assert (
        "removed     notebooks/ (empty)" in out and "kept        notebooks" not in out
    )
    setup(repo, kernel=kernel)
    (repo / "notebooks/a.ipynb").write_text("{}")
    shutil.rmtree(repo / ".stepper/journal")
    uninstall_from(repo)
    assert "kept        notebooks/" in capsys.readouterr().out
    assert sorted(path.name for path in repo.iterdir()) == [".git", "notebooks"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A separate home and state folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_link_installs_the_command_for_the_users_shell(home, tmp_path, kernel, capsys):
    repos = [tmp_path / name for name in ("it's first", "second")]
    for repo in repos:
        (repo / "deep/er").mkdir(parents=True)
        setup(repo, kernel=kernel)
    command = home / ".local/bin/stepper"
    assert not command.exists() and "--link" in capsys.readouterr().out, (
        "not without the option"
    )
    setup(repos[0], "--link", kernel=kernel)
    assert f"created: {command}" in capsys.readouterr().out
    before = snapshot(home)
    setup(repos[0], "--link", kernel=kernel)
    assert snapshot(home) == before

    def called(folder, *arguments, **options):
        return subprocess.run(
            [command, *arguments],
            cwd=folder,
            env={**os.environ, **options},
            capture_output=True,
            text=True,
        )

    for repo in repos:
        env = Path(Paths(str(repo)).env)
        (env / "bin/stepper").write_text(
            f'#!/bin/sh\necho {env.parent.parent.name[-5:]} "$@"\n'
        )
        assert (
            called(repo / "deep/er", "plan", "a b").stdout
            == f"{repo.name[-5:]} plan a b\n"
        )
    subprocess.run(["git", "init", "-q", str(repos[1])], check=True)
    commit = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "a",
    ]
    subprocess.run(["git", "-C", str(repos[1]), *commit], check=True)
    subprocess.run(
        ["git", "-C", str(repos[1]), "worktree", "add", "-q", str(tmp_path / "tree")],
        check=True,
    )
    assert called(tmp_path / "tree", "status").stdout == "econd status\n"
    clone_bin = tmp_path / "cloned/.stepper/env/bin"
    clone_bin.mkdir(parents=True)
    (clone_bin / "stepper").write_text("#!/bin/sh\necho harm\n")
    (clone_bin / "stepper").chmod(0o755)
    result = called(tmp_path / "cloned", "status")
    assert (result.returncode, result.stdout) == (
        2,
        "",
    ) and "not set up in this folder" in result.stderr
    assert called(tmp_path, "--help").stdout == "first --help\n"
    assert called(tmp_path, _STEPPER_COMPLETE="bash_complete").returncode == 0

    capsys.readouterr()
    uninstall_from(repos[0])
    expected_line = f"{command} (created by --link), for your other projects: {repos[1]}. To remove it, run: rm {command}\n"
    assert expected_line in capsys.readouterr().out and command.exists()
    uninstall_from(repos[1])
    assert f"removed     {command}" in capsys.readouterr().out and not command.exists()


def test_uninstall_reports_a_command_of_another_installation(
    home, repo, kernel, capsys, monkeypatch, tmp_path
):
    setup(repo, "--link", kernel=kernel)
    command = home / ".local/bin/stepper"
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "elsewhere"))
    setup(other, kernel=kernel)
    capsys.readouterr()
    uninstall_from(other)
    out = capsys.readouterr().out
    assert (
        f"kept        {command} (created by --link of an installation that is not recorded in"
        in out
        and f"To remove it, run: rm {command}\n" in out
    )
    assert command.exists()


def test_other_program_of_the_same_name_is_kept(home, repo, kernel):
    command = home / ".local/bin/stepper"
    command.parent.mkdir(parents=True)
    command.write_text("#!/bin/sh\n")
    before = snapshot(repo)
    with pytest.raises(StepperError, match="belongs to another program"):
        setup(repo, "--link", kernel=kernel)
    assert snapshot(repo) == before
    setup(repo, kernel=kernel)
    uninstall_from(repo)
    assert command.read_text() == "#!/bin/sh\n"


def test_configured_notebooks_folder_is_used(repo, kernel):
    (repo / ".stepper").mkdir()
    (repo / ".stepper/config.yaml").write_text("notebooks_dir: analysis/nb/\n")
    setup(repo, "--allow", kernel=kernel)
    data = json.loads((repo / ".claude/settings.json").read_text())
    assert "Edit(analysis/nb/**)" in data["permissions"]["allow"]
    assert (repo / "analysis/nb").is_dir()
    (repo / ".stepper/config.yaml").write_text("notebook_dir: x\n")
    before = snapshot(repo)
    with pytest.raises(StepperError, match="notebook_dir"):
        setup(repo, kernel=kernel)
    assert snapshot(repo) == before


def test_notebooks_in_several_folders(repo, kernel, capsys):
    (repo / "analysis").mkdir()
    for name in ("analysis/x.ipynb", "top.ipynb"):
        (repo / name).write_text("{}")
    before = snapshot(repo)
    setup(repo, kernel=kernel)
    line = 'notebooks: ["notebooks", "analysis", "*.ipynb"]'
    expected = f"1 included; 2 not included (analysis/x.ipynb, top.ipynb). Cells of notebooks that are not included do not run. To include all notebooks, set: {line}"
    out = capsys.readouterr().out
    assert expected in out
    (command,) = [
        text.partition("To include them, run: ")[2]
        for text in out.splitlines()
        if "To include them, run: " in text
    ]
    assert shlex.split(command)[-4:] == [
        "--notebooks",
        "notebooks",
        "analysis",
        "*.ipynb",
    ]
    setup(
        repo,
        "--allow",
        "--notebooks",
        "notebooks",
        "analysis",
        "*.ipynb",
        kernel=kernel,
    )
    assert "3 included\n" in capsys.readouterr().out
    assert (repo / ".stepper/config.yaml").read_text() == line + "\n"
    data = json.loads((repo / ".claude/settings.json").read_text())
    rules = [
        "Edit(notebooks/**)",
        "Edit(analysis/**)",
        "Edit(/*.ipynb)",
        "Bash(stepper *)",
    ]
    assert data["permissions"]["allow"] == ["Bash(ls *)", *rules]
    installed = snapshot(repo)
    setup(repo, "--allow", kernel=kernel)  # the existing configuration is kept
    assert snapshot(repo) == installed
    uninstall_from(repo)
    assert snapshot(repo) == before


def test_user_config_is_kept(repo, kernel):
    (repo / ".stepper").mkdir()
    (repo / ".stepper/config.yaml").write_text(
        "# mine\nmax_retries: 2\nnotebooks: nb\n"
    )
    setup(repo, "--notebooks", "lab", kernel=kernel)
    text = '# mine\nmax_retries: 2\nnotebooks: ["lab"]\n'
    assert (repo / ".stepper/config.yaml").read_text() == text and (
        repo / "lab"
    ).is_dir()
    uninstall_from(repo)
    assert (repo / ".stepper/config.yaml").read_text() == text and not (
        repo / "lab"
    ).exists()


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("/abs", "must be relative"),
        ("../x", "inside the repository"),
        (".claude", "inside the repository"),
    ],
)
def test_pattern_outside_the_project_is_refused(repo, kernel, pattern, message):
    before = snapshot(repo)
    with pytest.raises(StepperError, match=message):
        setup(repo, "--notebooks", "nb", pattern, kernel=kernel)
    assert snapshot(repo) == before


def test_edited_skill_is_kept(repo, kernel, capsys):
    setup(repo, kernel=kernel)
    skill = repo / ".claude/skills/new-notebook/SKILL.md"
    skill.write_text(skill.read_text() + "\nmy own line\n")
    setup(repo, kernel=kernel)
    assert skill.read_text().endswith("my own line\n")
    assert "edited by you and kept: new-notebook" in capsys.readouterr().out
    uninstall_from(repo)
    assert skill.read_text().endswith("my own line\n")
    assert "kept        skills new-notebook" in capsys.readouterr().out


def test_skill_name_used_by_the_user_is_skipped(repo, kernel, capsys):
    user_skill = repo / skill_states.SKILLS / "fix" / "SKILL.md"
    installer.write(user_skill, b"---\nname: fix\n---\nmine\n")
    setup(repo, kernel=kernel)
    out = capsys.readouterr().out
    assert "not installed, because you have skills with these names: fix" in out
    assert "in a terminal, use stepper fix instead of /fix" in out
    assert user_skill.read_text().endswith("mine\n")
    assert {*skill_states.list_our_skills(repo)} == {
        *skill_states.load_shipped_skills()
    } - {"fix"}
    uninstall_from(repo)
    assert user_skill.exists() and not skill_states.list_our_skills(repo)


def test_older_skills_and_scripts_are_replaced(repo, kernel, capsys):
    setup(repo, kernel=kernel)
    expected = snapshot(repo)
    script_path, record = (
        repo / claude_settings.SCRIPT,
        Path(Paths(str(repo)).install_record),
    )
    old = b"#!/bin/sh\n# notebook-stepper 0.0.1\n"
    script_path.write_bytes(old)
    install_record = json.loads(record.read_text())
    record.write_text(
        json.dumps({**install_record, "script": hashlib.sha256(old).hexdigest()})
    )
    for name in ("new-notebook", "gone"):
        for file, content in skill_states.add_mark({"SKILL.md": b"older"}).items():
            installer.write(repo / skill_states.SKILLS / name / file, content)
    setup(repo, kernel=kernel)
    assert snapshot(repo) == expected
    out = capsys.readouterr().out
    assert "updated: new-notebook" in out
    assert "removed: gone" in out


def test_edited_hook_script_is_backed_up(repo, kernel):
    setup(repo, kernel=kernel)
    path = repo / claude_settings.SCRIPT
    installed = path.read_bytes()
    path.write_bytes(installed + b"# mine\n")
    setup(repo, kernel=kernel)
    assert path.read_bytes() == installed
    assert path.with_name("stepper.orig").read_bytes() == installed + b"# mine\n"


def test_symlinked_settings_stay_a_symlink(repo, kernel):
    path = repo / ".claude/settings.json"
    target = repo / "dotfiles.json"
    path.rename(target)
    target.chmod(0o640)
    path.symlink_to(target)
    before = snapshot(repo)
    setup(repo, kernel=kernel)
    assert path.is_symlink()
    assert "hooks/stepper" in target.read_text()
    uninstall_from(repo)
    assert snapshot(repo) == before


def test_daemon_of_the_old_environment_shuts_down(repo, kernel, capsys):
    paths = Paths(str(repo))
    paths.create_runtime_folder()
    requests = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(paths.socket)
        listener.listen()

        def answer():
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(1000))
                Path(paths.socket).unlink()
                connection.sendall(wire_format.pack(wire_format.STALE, b""))

        thread = threading.Thread(target=answer)
        thread.start()
        setup(repo, "--remade", kernel=kernel)
        thread.join()
    assert __version__.encode() not in requests[0]
    assert "kernels keep running" in capsys.readouterr().out
    uninstall_from(repo)
    assert not Path(paths.runtime).exists()


@pytest.mark.nightly
def test_closed_stdout_does_not_stop_the_installation(checkout, repo, kernel):
    text = f'exec {shlex.quote(sys.executable)} -I -B -c "$1" "$2" apply "$3" --python "$4" | true'
    code = "import sys, time; time.sleep(0.3); sys.path.insert(0, sys.argv.pop(1)); from stepper.install.installer import main; main()"
    subprocess.run(["sh", "-c", text, "sh", code, checkout, repo, kernel], check=True)
    assert (repo / skill_states.SKILLS / "new-notebook/SKILL.md").is_file()


# --- the kernel's interpreter ---------------------------------------------------------


@pytest.fixture
def make_interpreter(tmp_path):
    """Return a function that creates an interpreter at a path next to the project."""
    (tmp_path / "repo").mkdir()

    def make(name):
        return str(script(tmp_path / name / "bin/python", forward()))

    return make


def note(project, python, option):
    trust.save_record(Paths(str(project)), {"python": python, "given": option})


def test_interpreter_precedence(tmp_path, make_interpreter):
    project = tmp_path / "repo"
    paths = Paths(str(project))

    def chosen(option=None, **active):
        return install_checks.choose_interpreter(paths, option, active)

    new = chosen(VIRTUAL_ENV=str(tmp_path / "gone"))
    assert (new.python, new.is_new_venv) == (str(project / ".venv/bin/python"), True)
    conda, active = make_interpreter("conda"), make_interpreter("active")
    roots = {
        "CONDA_PREFIX": str(tmp_path / "conda"),
        "VIRTUAL_ENV": str(tmp_path / "active"),
    }
    assert chosen(CONDA_PREFIX=roots["CONDA_PREFIX"]).python == conda
    assert chosen(**roots).python == active
    assert "VIRTUAL_ENV" in chosen(**roots).reason
    own_env = make_interpreter("repo/.stepper/env")
    assert chosen(VIRTUAL_ENV=str(Path(own_env).parent.parent)).is_new_venv
    other = make_interpreter(Paths(str(tmp_path / "other")).env)
    (tmp_path / "named").symlink_to(Path(other).parent.parent)
    for name in (str(Path(other).parent.parent), str(tmp_path / "named")):
        assert chosen(VIRTUAL_ENV=name).is_new_venv
    shutil.rmtree(project / ".stepper")
    venv = make_interpreter("repo/.venv")
    assert chosen(**roots).python == venv
    assert chosen("/given", **roots)[:3] == ("/given", "--python", True)

    # On a re-run, only an interpreter from --python takes precedence over the rules.
    note(project, conda, option=False)
    assert chosen(**roots).python == venv
    shutil.rmtree(project / ".stepper")
    note(project, conda, option=True)
    assert chosen(**roots).python == conda
    Path(conda).unlink()
    assert chosen(**roots).python == venv


def test_python_option_is_recorded_unresolved(repo, kernel, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(kernel)
    monkeypatch.chdir(tmp_path)
    installer.apply(install_options.parse_arguments([str(repo), "--python", "./link"]))
    installer.apply(install_options.parse_arguments([str(repo)]))
    assert json.loads(Path(Paths(str(repo)).install_record).read_text())[
        "python"
    ] == str(link)


def answer(version, modules=""):
    return f'echo noise; echo "{python_probe.PROBE_MARK} {version} {modules}"; echo "more noise"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (answer("3.8.18", "ipykernel pip"), "is Python 3.8.18: kernels need 3.9"),
        (answer("2.7.18"), "is Python 2.7.18"),
        (answer("3.12.1"), "-m ensurepip"),
        ("echo boom >&2; exit 3", "boom"),
        ("exit 0", "without a message"),
        (
            f"echo {python_probe.PROBE_MARK}; echo {python_probe.PROBE_MARK} x.y",
            "does not run",
        ),
    ],
)
def test_unsuitable_interpreter_is_refused(repo, tmp_path, monkeypatch, text, message):
    python = script(tmp_path / "python", text)
    monkeypatch.setenv("PATH", str(bin_folder(tmp_path / "bin")))
    with pytest.raises(StepperError) as error:
        install_checks.check_and_choose_interpreter(
            install_options.parse_arguments([str(repo), "--python", str(python)])
        )
    assert message in str(error.value)
    assert not (repo / ".stepper").exists()


def test_failed_ipykernel_installation_names_the_command(repo, tmp_path, monkeypatch):
    python = script(
        tmp_path / "python",
        f'case "$*" in *"-m pip"*) echo "no network" >&2; exit 1;; esac\n{answer("3.12.1", "pip")}',
    )
    monkeypatch.setenv("PATH", str(bin_folder(tmp_path / "bin")))
    with pytest.raises(StepperError) as error:
        setup(repo, kernel=python)
    assert "no network" in str(error.value)
    assert "pip install ipykernel" in str(error.value)
    assert not (repo / claude_settings.SCRIPT).exists()


def test_incomplete_venv_is_removed(tmp_path, monkeypatch):
    repo = tmp_path / "repo"
    repo.mkdir()
    monkeypatch.setenv(
        "PATH",
        str(
            bin_folder(
                tmp_path / "bin", uv="mkdir -p .venv; echo no python >&2; exit 1"
            )
        ),
    )
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(StepperError, match="no python"):
        installer.apply(install_options.parse_arguments([str(repo)]))
    assert not (repo / ".venv").exists()


# --- the plan, the demo, this checkout ------------------------------------------------


def test_incomplete_or_broken_environment_is_not_ready(repo, kernel):
    setup(repo, kernel=kernel)
    paths = Paths(str(repo))
    python, stamp = Path(paths.env, "bin/python"), Path(paths.env, "stamp")
    assert not install_checks.is_environment_ready(paths, "stamp")
    # Interrupted before the interpreter was created, or the interpreter was deleted.
    stamp.write_text("stamp\n")
    assert not install_checks.is_environment_ready(paths, "stamp")
    script(python, "exit 0")
    assert install_checks.is_environment_ready(paths, "stamp")
    assert not install_checks.is_environment_ready(paths, "of another checkout")
    script(python, "exit 1")  # it can't import stepper
    assert not install_checks.is_environment_ready(paths, "stamp")


def test_install_plan_is_parseable_lines(repo, kernel, monkeypatch, capfdbinary):
    assert call(monkeypatch, "plan", str(repo), "--allow", "--python", str(kernel)) == 0
    lines = capfdbinary.readouterr().out.decode().splitlines()
    plan = dict(line.split("=", 1) for line in lines)
    assert list(plan) == [
        "target",
        "env",
        "state",
        "stamp",
        "editable",
        "demo",
        "scratch",
        "uninstall",
        "mcp",
    ]
    assert (plan["target"], len(plan["stamp"]), plan["uninstall"]) == (
        str(repo),
        64,
        "",
    )


def add_fake_python(path):
    """Add a python3 whose environments' interpreters only print their arguments."""
    create = f'mkdir -p "$3/bin"; cp "{path}/interpreter" "$3/bin/python"'
    script(
        path / "python3", f'case "$*" in *"-m venv"*) {create};; *) {forward()};; esac'
    )
    script(
        path / "interpreter",
        'case "$*" in *demo.py*|*apply*) printf "<%s> " "called:" "$@"; echo;; esac',
    )
    (path / "cp").symlink_to(shutil.which("cp"))


HOSTILE = 'it\'s "q" $(touch ran) `touch ran`; touch ran #\\ *$IFS=&|<>'


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    "options", ["", " stamp=\nuninstall=yes\n$(touch ran)\nEND\ntouch ran\n#"]
)
def test_hostile_path_is_not_executed(checkout, tmp_path, path, options):
    """Target, checkout and interpreter have a path that contains commands and options."""
    home, repo, cwd = (
        tmp_path / f"{name} {HOSTILE}" for name in ("own", "repo", "cwd")
    )
    shutil.copytree(checkout, home)
    cwd.mkdir()
    repo.mkdir()
    add_fake_python(path)
    kernel = script(tmp_path / f"kernel {HOSTILE}{options}" / "python", forward())
    before = snapshot(tmp_path)
    result = sh(home, str(repo), "--allow", "--python", str(kernel), path=path, cwd=cwd)
    assert (result.returncode, result.stderr) == (0, "")
    arguments = [
        "--source",
        home,
        "--planned",
        repo,
        repo,
        "--allow",
        "--python",
        kernel,
    ]
    assert result.stdout.endswith(
        "<called:> "
        + "".join(f"<{argument}> " for argument in make_apply_arguments(*arguments))
        + "\n"
    )
    if options:  # PATH cannot contain a line break
        target = tmp_path / f"repo {options}"
        target.mkdir()
        result = sh(home, str(target), path=path, cwd=cwd)
        assert (result.returncode, result.stdout) == (
            2,
            "",
        ) and "line break" in result.stderr
        target.rmdir()
    env = str(Path(Paths(str(repo)).env))
    shutil.rmtree(Path(env).parent)
    assert snapshot(tmp_path) == before and not list(tmp_path.rglob("ran"))


def make_apply_arguments(*arguments):
    """Return the arguments with which install.sh calls an environment's `apply`."""
    return [
        "-I",
        "-B",
        "-m",
        "stepper.install.installer",
        "apply",
        "--remade",
        *arguments,
    ]


@pytest.mark.nightly
def test_demo_creates_the_given_folder(checkout, tmp_path, path):
    add_fake_python(path)
    folder = tmp_path / "new" / "demo"
    result = sh(checkout, str(folder), "--demo", path=path)
    assert (
        result.stdout.splitlines()[-1]
        == f"<called:> <-I> <{checkout}/examples/demo.py> <{folder}> "
    ), result.stderr
    (tmp_path / "file").touch()
    refusal = sh(checkout, str(tmp_path / "file" / "demo"), "--demo", path=path)
    assert (
        refusal.returncode == 2
        and "could not be created: Not a directory" in refusal.stderr
    )


def test_demo_runs_in_the_scratch_folder(checkout, tmp_path, path):
    """The environment's interpreter is replaced by one that prints its arguments."""
    add_fake_python(path)
    result = sh(
        checkout, "--demo", path=path, TMPDIR=str(tmp_path), VIRTUAL_ENV=str(tmp_path)
    )
    (scratch,) = tmp_path.glob("stepper-demo-*")
    assert (
        result.stdout.splitlines()[-1]
        == f"<called:> <-I> <{checkout}/examples/demo.py> <{scratch}> "
    ), result.stderr
    assert f"{scratch}/.stepper/env" in result.stdout


@pytest.mark.nightly
def test_checkout_can_be_its_own_target(checkout, tmp_path, kernel):
    checkout_copy = tmp_path / "own"
    shutil.copytree(checkout, checkout_copy)
    before = snapshot(checkout_copy)
    expected = install_checks.compute_stamp(
        install_options.parse_arguments(
            [str(checkout_copy), "--source", str(checkout_copy)]
        )
    )
    setup(checkout_copy, "--source", str(checkout_copy), kernel=kernel)
    first = snapshot(checkout_copy)
    setup(checkout_copy, "--source", str(checkout_copy), kernel=kernel)
    assert snapshot(checkout_copy) == first
    assert (
        install_checks.compute_stamp(
            install_options.parse_arguments(
                [str(checkout_copy), "--source", str(checkout_copy)]
            )
        )
        == expected
    )
    uninstall_from(checkout_copy)
    assert snapshot(checkout_copy) == before


def test_private_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    file.chmod(0o600)
    modes = []
    change_mode = Path.chmod

    def record_mode(path: Path, mode: int) -> None:
        modes.append(path.stat().st_mode & 0o777)
        change_mode(path, mode)

    monkeypatch.setattr(Path, "chmod", record_mode)
    assert install_file_io.write(file, b"new") == "updated"
    assert modes == [0o600] and file.stat().st_mode & 0o777 == 0o600
