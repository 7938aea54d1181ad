"""The repository as a plugin: its files, its hook script, `--plugin` and doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image, ImageChops

from docs.pictures import icon
from stepper import __version__
from stepper.common.paths import Paths, find_project, read_install_record
from stepper.daemon import claude_code_json
from stepper.install import (
    claude_settings,
    doctor,
    install_options,
    installer,
    uninstall,
)
from tests.conftest import ROOT, make_env
from tests.test_install import snapshot

HOOK = "${CLAUDE_PLUGIN_ROOT}/hooks/plugin"


def load_json(name: str) -> dict:
    return json.loads((ROOT / name).read_text())


# --- files


def test_plugin_hooks_match_the_installed_hooks() -> None:
    expected_hooks = json.dumps(claude_settings.add_hooks({})).replace(
        "${CLAUDE_PROJECT_DIR}/" + claude_settings.SCRIPT, HOOK
    )
    assert load_json("hooks/hooks.json") == json.loads(expected_hooks)


def test_plugin_manifests_agree() -> None:
    plugin, market = (
        load_json(".claude-plugin/plugin.json"),
        load_json(".claude-plugin/marketplace.json"),
    )
    assert plugin["version"] == __version__
    assert [(plugin["name"], plugin["source"]) for plugin in market["plugins"]] == [
        (plugin["name"], "./")
    ]
    assert load_json(".mcp.json")["mcpServers"] == {
        "stepper": {"command": HOOK, "args": ["Mcp"]}
    }


def test_plugin_icon_is_generated_from_source() -> None:
    committed_icon = Image.open(ROOT / ".claude-plugin" / "icon.png")
    assert (committed_icon.size, committed_icon.format) == ((512, 512), "PNG")
    off = ImageChops.difference(committed_icon.convert("RGBA"), icon.drawn())
    # other Pillow versions round differently
    assert max(high for _, high in off.getextrema()) <= 8


# --- the hook script alone


def run_hook(
    event: str, project: Path, payload: str = "{}", plugin: Path = ROOT
) -> str:
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": "/nowhere",
        "CLAUDE_PROJECT_DIR": str(project),
    }
    result = subprocess.run(
        [plugin / "hooks/plugin", event],
        input=payload,
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert result.returncode == (event == "Mcp"), result.stderr
    return result.stdout


@pytest.mark.parametrize(
    "name", ["repo", "a répo", "it's", 'a "q" \\n', "a\nb", "$(touch x)"]
)
def test_session_start_names_the_install_command(tmp_path: Path, name: str) -> None:
    project = tmp_path / name
    project.mkdir()
    data = json.loads(run_hook("SessionStart", project, '{"source":"startup"}'))
    system_message = data["systemMessage"]
    assert data["hookSpecificOutput"] == {
        "hookEventName": "SessionStart",
        "additionalContext": system_message,
    }
    command = system_message.partition("To set it up, run: ")[2]
    output = subprocess.run(
        ["sh", "-c", f'printf "%s\\n" {command}'], capture_output=True, text=True
    ).stdout
    if {*"'\"\\\n"} & {*name}:
        assert command == "uvx notebook-stepper install --plugin THIS_REPOSITORY"
    else:  # as a shell parses it
        assert output.splitlines() == [f"{ROOT}/install.sh", "--plugin", str(project)]
    assert list(project.iterdir()) == []
    for source in ("resume", "compact"):
        assert run_hook("SessionStart", project, json.dumps({"source": source})) == ""
    for event in (
        "Stop",
        "PostToolBatch",
        "UserPromptSubmit",
        "Watch",
        "Rearm",
        "FileChanged",
        "PreToolUse",
        "Mcp",
    ):
        assert run_hook(event, project) == ""
    assert "NOT run" in json.loads(run_hook("PostToolUse", project))["systemMessage"]


def test_foreign_environment_is_not_run(tmp_path: Path) -> None:
    """An environment from the checkout is not started without this user's record."""
    canary, env = tmp_path / "ran", tmp_path / ".stepper/env"
    for name in ("bin/hook", "bin/python", "bin/stepper", "cli/stepper"):
        program = env / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f"#!/bin/sh\ntouch '{canary}'\n")
        program.chmod(0o755)
    (env / "packages").mkdir()
    (env / "session.sh").write_text(f"touch '{canary}'\n")
    (tmp_path / ".stepper/token").write_text("a\n")
    for event in (
        "SessionStart",
        "PostToolUse",
        "PreToolUse",
        "UserPromptSubmit",
        "Stop",
        "Watch",
        "Rearm",
        "Mcp",
    ):
        response = run_hook(event, tmp_path)
        assert not canary.exists()
        assert ("this checkout is not registered" in response) == (
            event in ("SessionStart", "PostToolUse")
        )


def test_installed_hooks_silence_the_plugin(tmp_path: Path) -> None:
    """The plugin's hooks do nothing if the settings contain hooks, not if only the
    script exists.
    """
    script, of = tmp_path / claude_settings.SCRIPT, tmp_path / ".claude/settings.json"
    script.parent.mkdir(parents=True)
    script.touch()
    assert run_hook("SessionStart", tmp_path)
    of.write_text('{"permissions": {"allow": ["Bash(.claude/hooks/stepper *)"]}}')
    assert run_hook("SessionStart", tmp_path)
    for file in (of, of.with_name("settings.local.json")):
        file.write_text(claude_settings.render(claude_settings.add_hooks({})))
        assert not run_hook("SessionStart", tmp_path) and not run_hook(
            "PostToolUse", tmp_path
        )
        file.unlink()


def test_commands_have_the_plugin_prefix() -> None:
    for response in (
        {"continue": False, "stopReason": "… /continue ANSWER"},
        {"hookSpecificOutput": {"additionalContext": "/continue"}},
        {"stopReason": "type /continue."},
    ):
        data = json.loads(
            claude_code_json.add_plugin_note(json.dumps(response).encode())
        )
        assert "Type /stepper:continue" in json.dumps(data)
    for hook_output in (
        b"",
        b'{"systemMessage": "/continue"}',
        b'{"stopReason": "/fix"}',
        b'{"stopReason": "see notebooks/continue.ipynb"}',
    ):
        assert claude_code_json.add_plugin_note(
            hook_output
        ) == hook_output or json.loads(
            claude_code_json.add_plugin_note(hook_output)
        ) == json.loads(hook_output)


# --- install with `--plugin`


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = (tmp_path / "repo").resolve()
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    return folder


def apply(folder: Path, *options: str) -> None:
    installer.apply(
        install_options.parse_arguments(
            [str(folder), "--python", sys.executable, *options]
        )
    )


def find_failed_checks(folder: Path) -> dict[str, str]:
    return {
        check.name: check.mend
        for check in doctor.run_checks(Paths(str(folder)))
        if not check.ok
    }


def test_install_and_uninstall_plugin_environment(
    repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "client"))
    env = Path(Paths(str(repo)).env)
    apply(repo, "--plugin")
    output = capsys.readouterr().out
    assert "/stepper:new-notebook" in output and "commit .gitignore" in output
    assert sorted(path.name for path in repo.iterdir()) == [
        ".gitignore",
        ".stepper",
        "notebooks",
    ]
    assert (
        read_install_record(str(repo))["plugin"]
        and read_install_record(str(repo))["mcp"]
    )
    first = snapshot(repo), snapshot(env)
    apply(repo, "--plugin")
    assert (snapshot(repo), snapshot(env)) == first

    # doctor: only the plugin's hooks and skills are missing
    assert find_failed_checks(repo) == {
        "hooks": "claude plugin install stepper@stepper"
    }
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "settings.json").write_text(
        '{"enabledPlugins": {"stepper@stepper": true}}'
    )
    assert find_failed_checks(repo) == {}
    assert (
        doctor.format_install_command(Paths(str(repo)))
        == f"{ROOT}/install.sh {repo} --plugin"
    )

    uninstall.uninstall(install_options.parse_arguments([str(repo), "--uninstall"]))
    assert list(repo.iterdir()) == [] and not env.exists()


def test_worktree_uses_the_main_checkout_environment(
    repo: Path, tmp_path: Path
) -> None:
    """The plugin's files are not committed."""
    git = [
        "git",
        "-C",
        str(repo),
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
    ]
    tree = tmp_path / "tree"
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    subprocess.run([*git, "worktree", "add", "-q", tree], check=True)
    assert find_project(str(tree)) is None
    apply(repo, "--plugin")
    paths = Paths(str(tree.resolve()))
    assert (
        find_project(str(tree / ".")) == paths.project
        and paths.active_env == Paths(str(repo)).env
    )
    assert doctor.is_plugin_installation(paths)


def test_installation_takes_precedence_over_the_plugin(repo: Path) -> None:
    """`--plugin` removes nothing, and install.sh without it installs everything."""
    apply(repo, "--plugin")
    apply(repo)
    assert (
        not read_install_record(str(repo))["plugin"]
        and claude_settings.list_missing_handlers(loaded_settings(repo)) == []
    )
    first = snapshot(repo)
    apply(repo, "--plugin")
    assert snapshot(repo) == first and not read_install_record(str(repo))["plugin"]


def loaded_settings(repo: Path) -> dict:
    return json.loads((repo / ".claude/settings.json").read_text())
