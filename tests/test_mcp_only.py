"""`install.sh --mcp-only` writes nothing in .claude/, and real clients start its server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
from mcp import Client, StdioServerParameters

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, read_install_record
from stepper.install import (
    claude_settings,
    doctor,
    install_options,
    installer,
    mcp_client_config,
    mcp_clients,
    mcp_starter,
    uninstall,
)
from tests.conftest import STATE, make_env
from tests.test_install import snapshot

OPTION = "--mcp-only"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = (tmp_path / "my repo").resolve()
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    yield folder
    paths = Paths(str(folder))
    program = Path(paths.env, "bin/stepper")
    if program.exists():
        command = [program, "shutdown"]
        subprocess.run(command, cwd=folder, capture_output=True, check=False)


def install(folder: Path, *options: str) -> None:
    arguments = [str(folder), "--python", sys.executable, *options]
    installer.apply(install_options.parse_arguments(arguments))


def remove(folder: Path) -> None:
    uninstall.uninstall(install_options.parse_arguments([str(folder), "--uninstall"]))


def checks(folder: Path) -> dict[str, doctor.Check]:
    return {check.name: check for check in doctor.run_checks(Paths(str(folder)))}


def problems(folder: Path) -> dict[str, str]:
    return {
        name: f"{check.detail} -> {check.mend}"
        for name, check in checks(folder).items()
        if not check.ok
    }


# --- install and uninstall ------------------------------------------------------------


def test_mcp_only_installs_everything_except_claude_code_files(
    repo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    env = Path(Paths(str(repo)).env)
    install(repo, OPTION)
    output = capsys.readouterr().out
    assert "without hooks, skills and .claude/" in output
    assert "stepper mcp --config CLIENT --install\n" in output
    assert "CLIENT is one of: claude, cursor, " in output
    assert "/new-notebook" not in output
    assert "&& claude" not in output
    names = sorted(path.name for path in repo.iterdir())
    assert names == [".gitignore", ".stepper", "notebooks"]
    record = read_install_record(str(repo))
    assert record["mcp"]
    assert record["mcp_only"]
    assert record["python"] == sys.executable
    assert (env / "bin/stepper").is_file()

    first = snapshot(repo), snapshot(env)
    install(repo, OPTION)
    assert (snapshot(repo), snapshot(env)) == first

    remove(repo)
    assert list(repo.iterdir()) == []
    assert not env.exists()


def test_doctor_does_not_require_hooks(repo: Path) -> None:
    install(repo, OPTION)
    assert problems(repo) == {}
    results = checks(repo)
    for name in ("hook script", "hooks", "skills"):
        assert results[name].detail.startswith("not installed (--mcp-only)"), name
    assert "no client is set up yet" in results["mcp"].detail
    mcp_client_config.add_entry(Paths(str(repo)), "codex")
    assert checks(repo)["mcp"].detail == "set up for codex"
    command = doctor.format_install_command(Paths(str(repo)))
    assert command.endswith("--mcp-only")

    starter = mcp_starter.get_starter_path(Paths(str(repo)))
    starter.unlink()
    wrong = problems(repo)
    assert list(wrong) == ["hook script"]
    assert (
        f"{starter} is missing, not executable or from another version of stepper"
        in wrong["hook script"]
    )
    assert "--mcp-only" in wrong["hook script"]


def test_doctor_in_a_terminal(repo: Path) -> None:
    install(repo, OPTION)
    command = [repo / ".stepper/env/bin/stepper", "doctor"]
    result = subprocess.run(command, cwd=repo, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
    assert "not installed (--mcp-only): cells run only through MCP" in result.stdout


def test_claude_code_files_are_neither_read_nor_written(repo: Path) -> None:
    """Committed hooks of stepper and unreadable settings do not prevent the install."""
    script = repo / claude_settings.SCRIPT
    script.parent.mkdir(parents=True)
    script.write_text("#!/bin/sh\n# notebook-stepper of a colleague\n")
    settings = repo / ".claude/settings.json"
    settings.write_text("{ not json")
    skill = repo / ".claude/skills/fix/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("mine")
    before = snapshot(repo)
    install(repo, OPTION)
    assert problems(repo) == {}
    after = snapshot(repo)
    assert {name: after[name] for name in before} == before
    remove(repo)
    assert snapshot(repo) == before


@pytest.mark.parametrize(
    "option", ["--allow", "--statusline", "--plugin", "--demo", "--uninstall"]
)
def test_claude_code_options_are_refused(repo: Path, option: str) -> None:
    with pytest.raises(UsageError) as refused:
        install_options.parse_arguments([str(repo), OPTION, option])
    assert refused.value.exit_code == 2
    assert f"--mcp-only and {option} can't be used together" in refused.value.message
    assert list(repo.iterdir()) == []


def test_invalid_option_combination_exits_2(repo: Path) -> None:
    command = [installer.PACKAGE.parent / "install.sh", repo, OPTION, "--statusline"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert (
        "install.sh: --mcp-only and --statusline can't be used together"
        in result.stderr
    )
    assert list(repo.iterdir()) == []


def test_other_options_work_with_it(repo: Path) -> None:
    install(repo, OPTION, "--mcp", "--link", "--notebooks", "analysis")
    assert (repo / "analysis").is_dir()
    assert Path.home().joinpath(".local/bin/stepper").exists()
    assert not (repo / ".claude").exists()
    assert problems(repo) == {}


def test_existing_hooks_of_the_user_refuse_mcp_only(repo: Path) -> None:
    install(repo)
    before = snapshot(repo)
    with pytest.raises(StepperError) as refused:
        install(repo, OPTION)
    assert "you installed stepper's hooks" in refused.value.message
    assert "--uninstall" in refused.value.hint
    assert snapshot(repo) == before


def test_hooks_can_be_added_later(repo: Path) -> None:
    (repo / ".claude").mkdir()
    (repo / ".claude/settings.json").write_text('{"model": "opus"}\n')
    before = snapshot(repo)
    install(repo, OPTION)
    install(repo)
    assert claude_settings.SCRIPT in (repo / ".claude/settings.json").read_text()
    assert problems(repo) == {}
    assert not read_install_record(str(repo))["mcp_only"]
    remove(repo)
    assert snapshot(repo) == before


# --- start of the server --------------------------------------------------------------

CLIENTS = ("claude", "codex", "cursor", "zed", "claude-desktop", "windsurf")


def read_client_entry(folder: Path, name: str) -> dict[str, object]:
    """Return a client's entry with its variables replaced."""
    entry = mcp_clients.get_clients()[name].make_entry(str(folder))
    text = json.dumps(entry).replace("${workspaceFolder}", str(folder))
    data: dict[str, object] = json.loads(text)
    return data


def parameters(entry: dict[str, object], cwd: Path) -> StdioServerParameters:
    environ = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    arguments = {**environ, "XDG_STATE_HOME": STATE}
    return StdioServerParameters(
        command=str(entry["command"]), args=entry["args"], env=arguments, cwd=str(cwd)
    )


def test_clients_start_the_server_and_run_cells(repo: Path) -> None:
    install(repo, OPTION)

    async def main() -> None:
        for name in CLIENTS:
            entry = read_client_entry(repo, name)
            # these two start their servers in the project, the others anywhere
            cwd = repo / "notebooks" if name in ("claude", "codex") else Path("/")
            async with Client(parameters(entry, cwd)) as client:
                tools = (await client.list_tools()).tools
                assert "run_cell" in {tool.name for tool in tools}, name
                if name != "windsurf":
                    continue
                await client.call_tool("create_notebook", {"problem": "alone"})
                result = await client.call_tool("run_cell", {"source": "6 * 7"})
                assert "ran ok" in result.content[0].text
                assert "42" in result.content[0].text

    asyncio.run(main())
    (notebook,) = (repo / "notebooks").glob("*.ipynb")
    assert "42" in notebook.read_text()


def test_script_is_added_to_environment_of_older_version(
    repo: Path,
) -> None:
    install(repo)
    starter = mcp_starter.get_starter_path(Paths(str(repo)))
    starter.unlink()
    mcp_client_config.add_entry(Paths(str(repo)), "windsurf")
    assert os.access(starter, os.X_OK)
    print_location(repo)
    assert run_entry(read_client_entry(repo, "windsurf"), Path("/")).stdout == (
        f"served mcp in {repo}\n"
    )


def run_entry(entry: dict[str, object], cwd: Path) -> subprocess.CompletedProcess[str]:
    arguments = entry["args"]
    assert isinstance(arguments, list)
    command = [str(entry["command"]), *map(str, arguments)]
    return subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def print_location(repo: Path) -> None:
    """Make the environment's `stepper` print its folder."""
    program = Path(Paths(str(repo)).env, "bin/stepper")
    program.write_text('#!/bin/sh\necho "served $* in $PWD"\n')


def test_worktree_uses_the_main_checkout_environment(
    repo: Path, tmp_path: Path
) -> None:
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b.example"]
    tree = tmp_path / "tree"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", tree], check=True)
    install(repo, OPTION)
    print_location(repo)
    entry = read_client_entry(repo, "claude")
    below = tree / "below"
    below.mkdir()
    result = run_entry(entry, below)
    assert result.stdout == f"served mcp in {tree.resolve()}\n", result.stderr


def test_other_checkout_at_the_same_path_runs_nothing(repo: Path) -> None:
    """Another user's repository replaced the deleted one and has another token."""
    install(repo, OPTION)
    print_location(repo)
    entries = [read_client_entry(repo, name) for name in CLIENTS]
    for entry in entries:
        assert run_entry(entry, repo).stdout == f"served mcp in {repo}\n"
    (repo / ".stepper/token").write_text("0" * 32 + "\n")
    for entry in entries:
        result = run_entry(entry, repo)
        assert (result.returncode, result.stdout) == (1, "")
        assert "is not registered for this user" in result.stderr
        assert "--mcp-only" in result.stderr


def test_command_line_without_installation_runs_nothing(
    repo: Path, tmp_path: Path
) -> None:
    (repo / ".git").mkdir()
    result = run_entry(read_client_entry(repo, "claude"), repo)
    assert (result.returncode, result.stdout) == (1, "")
    assert "the MCP server was not started" in result.stderr
