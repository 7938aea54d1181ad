"""MCP clients with one configuration file per user: Claude Desktop and Windsurf."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.common.paths import read_install_record
from stepper.install import mcp_client_config, mcp_clients, uninstall
from stepper.install.install_options import parse_arguments
from tests.conftest import ROOT, Project, scratch

FILES = {
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
}
NAMES = pytest.mark.parametrize("name", FILES)
OTHER_ENTRIES = """{
    "theme": "dark",
    "mcpServers": {
        "other": {"command": "x", "env": {"KEY": "secret"}}
    }
}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("WSL_DISTRO_NAME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    return folder


@pytest.fixture
def shop(home: Path, tmp_path: Path) -> Iterator[Project]:
    yield from scratch(tmp_path / "a shop")


def test_entry_is_printed_with_its_file(shop: Project) -> None:
    for name, file in FILES.items():
        output = shop.stepper("mcp", "--config", name).stdout
        lines, _, where = output.partition("\n\n")
        assert f"These lines belong in ~/{file}. To add them, use `--install`." in where
        servers = json.loads(lines)["mcpServers"]
        (server,) = servers.values()
        assert [*servers] == ["stepper-a-shop"]
        assert server["command"] == f"{shop.paths.env}/hooks/mcp"
        assert server["args"] == [str(shop.folder)]
        assert not (Path.home() / file).exists()


@NAMES
def test_new_file_is_created_and_removed(shop: Project, home: Path, name: str) -> None:
    path = home / FILES[name]
    output = shop.stepper("mcp", "--config", name, "--install").stdout
    assert f"~/{FILES[name]}: created." in output
    assert "Each project has its own entry in this file." in output
    text = path.read_text()
    assert "unchanged" in shop.stepper("mcp", "--config", name, "--install").stdout
    assert path.read_text() == text
    uninstall.uninstall(parse_arguments([str(shop.folder), "--uninstall"]))
    assert [*home.iterdir()] == []


@NAMES
def test_other_servers_stay_and_a_backup_is_written(
    shop: Project, home: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = home / FILES[name]
    backup = path.with_name(f"{path.name}.before-stepper")
    path.parent.mkdir(parents=True)
    path.write_text(OTHER_ENTRIES)
    path.chmod(0o600)
    mcp_client_config.add_entry(shop.paths, name)
    assert backup.read_text() == OTHER_ENTRIES
    assert backup.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o600
    data = json.loads(path.read_text())
    assert [*data["mcpServers"]] == ["other", "stepper-a-shop"]
    assert data["theme"] == "dark"
    assert '"other": {"command": "x", "env": {"KEY": "secret"}}' in path.read_text()

    # the user's additions to our entry are kept when it is renewed
    data["mcpServers"]["stepper-a-shop"]["disabled"] = True
    data["mcpServers"]["stepper-a-shop"]["command"] = "/old/.stepper/env/hooks/mcp"
    path.write_text(json.dumps(data))
    assert mcp_client_config.add_entry(shop.paths, name) == "updated"
    entry = json.loads(path.read_text())["mcpServers"]["stepper-a-shop"]
    assert entry["disabled"]
    assert entry["command"] == f"{shop.paths.env}/hooks/mcp"
    assert backup.read_text() == OTHER_ENTRIES

    uninstall.uninstall(parse_arguments([str(shop.folder), "--uninstall"]))
    assert f"stepper's lines from ~/{FILES[name]}" in capsys.readouterr().out
    assert json.loads(path.read_text()) == json.loads(OTHER_ENTRIES)
    assert not backup.exists()


@NAMES
def test_unedited_file_is_restored_byte_for_byte(
    shop: Project, home: Path, name: str
) -> None:
    path = home / FILES[name]
    path.parent.mkdir(parents=True)
    for before in (OTHER_ENTRIES, "{}\n", '{"mcpServers": {}}', ""):
        path.write_text(before)
        mcp_client_config.add_entry(shop.paths, name)
        note = read_install_record(str(shop.folder))
        removal = mcp_client_config.remove_entries(shop.paths, note)
        assert removal == ([f"~/{FILES[name]}"], [])
        assert path.read_text() == before
        forget(shop)


def forget(project: Project) -> None:
    from stepper.install import trust

    note = read_install_record(str(project.folder))
    del note["clients"]
    trust.save_record(project.paths, note)


@NAMES
def test_entry_of_another_project_is_never_replaced(
    shop: Project, home: Path, name: str
) -> None:
    path = home / FILES[name]
    mcp_client_config.add_entry(shop.paths, name)
    settings = json.loads(path.read_text())
    (entry,) = settings["mcpServers"].values()
    other_entry = {**entry, "args": [*entry["args"][:-1], "/other/a shop"]}
    names = ["stepper-a-shop", *[f"stepper-a-shop-{n}" for n in range(2, 151)]]
    servers = dict.fromkeys(names, other_entry)
    path.write_text(json.dumps({"mcpServers": servers}))
    mcp_client_config.add_entry(shop.paths, name)
    added = json.loads(path.read_text())["mcpServers"]
    assert added == {**servers, "stepper-a-shop-151": entry}


@NAMES
def test_each_project_has_its_own_entry(
    shop: Project, home: Path, tmp_path: Path, name: str
) -> None:
    path = home / FILES[name]
    same_name, other_project = tmp_path / "elsewhere" / "a shop", tmp_path / "lab"
    projects = [shop, Project(same_name), Project(other_project)]
    for project in projects:
        mcp_client_config.add_entry(project.paths, name)
        assert mcp_client_config.add_entry(project.paths, name) == "unchanged"
    servers = json.loads(path.read_text())["mcpServers"]
    folders = {server: entry["args"][-1] for server, entry in servers.items()}
    assert folders == {
        "stepper-a-shop": str(shop.folder),
        "stepper-a-shop-2": str(same_name),
        "stepper-lab": str(other_project),
    }
    note = read_install_record(str(shop.folder))
    mcp_client_config.remove_entries(shop.paths, note)
    assert [*json.loads(path.read_text())["mcpServers"]] == [
        "stepper-a-shop-2",
        "stepper-lab",
    ]
    for project in projects[1:]:
        note = read_install_record(str(project.folder))
        mcp_client_config.remove_entries(project.paths, note)
    assert not path.exists() or "stepper" not in path.read_text()


@NAMES
@pytest.mark.parametrize(
    ("existing", "why"),
    [
        (
            '{"mcpServers": {"stepper-a-shop": {"command": "theirs"}}}',
            "another server called stepper-a-shop",
        ),
        ('{\n  // mine\n  "mcpServers": {}\n}', "it may contain comments"),
        ('{"mcpServers": []}', "mcpServers is not an object"),
        ("[]", "does not contain a JSON object"),
    ],
)
def test_foreign_entry_is_kept(
    shop: Project, home: Path, name: str, existing: str, why: str
) -> None:
    path = home / FILES[name]
    path.parent.mkdir(parents=True)
    path.write_text(existing)
    refused = shop.stepper("mcp", "--config", name, "--install", check=1)
    assert why in refused.stderr
    assert path.read_text() == existing
    assert [*path.parent.iterdir()] == [path]


def test_file_in_another_encoding_is_kept(shop: Project, home: Path) -> None:
    path = home / FILES["windsurf"]
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"a": "caf\xe9"}')
    refused = shop.stepper("mcp", "--config", "windsurf", "--install", check=1)
    assert f"{path} can't be read" in refused.stderr
    assert path.read_bytes() == b'{"a": "caf\xe9"}'


def test_claude_desktop_config_path(
    shop: Project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_path() -> str:
        return mcp_clients.get_clients()["claude-desktop"].display_path

    assert get_path() == "~/.config/Claude/claude_desktop_config.json"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "conf"))
    assert get_path() == "~/conf/Claude/claude_desktop_config.json"
    monkeypatch.setattr(sys, "platform", "darwin")
    mac = "~/Library/Application Support/Claude/claude_desktop_config.json"
    assert get_path() == mac


def test_entry_in_wsl_uses_wsl_exe(
    shop: Project, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WSL_DISTRO_NAME", "Ubuntu")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    output = shop.stepper("mcp", "--config", "claude-desktop").stdout
    lines, _, where = output.partition("\n\n")
    (server,) = json.loads(lines)["mcpServers"].values()
    assert server["command"] == "wsl.exe"
    assert server["args"][:3] == ["-d", "Ubuntu", "-e"]
    assert server["args"][3:5] == ["env", "XDG_STATE_HOME=/state"]
    assert server["args"][-1] == str(shop.folder)
    assert (
        r"These lines belong in %APPDATA%\Claude\claude_desktop_config.json." in where
    )
    refused = shop.stepper("mcp", "--config", "claude-desktop", "--install", check=1)
    assert "is a file on Windows" in refused.stderr


def test_documentation_names_the_config_paths() -> None:
    docs = (ROOT / "docs/mcp.md").read_text()
    for path_text in (
        "~/Library/Application Support/Claude/claude_desktop_config.json",
        "~/.config/Claude/claude_desktop_config.json",
        r"%APPDATA%\Claude\claude_desktop_config.json",
        "~/.codeium/windsurf/mcp_config.json",
    ):
        assert f"`{path_text}`" in docs
