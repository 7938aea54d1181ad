"""Each check of `stepper doctor` passes on a new installation and reports each fault."""

import json
import shlex
import socket
import stat
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from stepper.cli import rendering
from stepper.common import hook_paths
from stepper.common.errors import StepperError
from stepper.common.paths import Paths
from stepper.install import (
    claude_settings,
    doctor,
    install_file_io,
    install_options,
    installer,
    python_probe,
    skill_states,
    trust,
    user_script,
)

NAMES = [
    "config",
    "notebooks",
    "interpreter",
    "ipykernel",
    "hook script",
    "hooks",
    "mode",
    "skills",
    "personal skills",
]
NAMES += ["mcp", "socket", "command", "jupyter", "version"]


@pytest.fixture(autouse=True)
def _home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    # a short runtime folder: a socket path has at most 103 bytes
    with tempfile.TemporaryDirectory(prefix="st-", dir="/tmp") as folder:
        monkeypatch.setattr(hook_paths, "RUNTIME_ROOTS", (folder,))
        yield


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = tmp_path / "it's é"
    root.mkdir()
    monkeypatch.chdir(tmp_path)
    installer.apply(
        install_options.parse_arguments([str(root), "--python", sys.executable])
    )
    return Paths(str(root))


def run_checks(project):
    return {check.name: check for check in doctor.run_checks(project)}


def find_failed_checks(project):
    return {name: check for name, check in run_checks(project).items() if not check.ok}


def test_fresh_installation_passes(project):
    checks = run_checks(project)
    assert list(checks) == NAMES
    assert find_failed_checks(project) == {}
    assert sys.executable in checks["interpreter"].detail
    assert (
        "no daemon" in checks["socket"].detail
        or "first cell" in checks["socket"].detail
    )


def test_folder_without_installation(tmp_path):
    (tmp_path / "bare").mkdir()
    bad = find_failed_checks(Paths(str(tmp_path / "bare")))
    assert set(bad) == {"interpreter", "ipykernel", "hook script", "hooks", "skills"}
    assert all("install.sh" in check.mend for check in bad.values())


def write(project, name, text):
    path = Path(project.project, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def fake(project, text):
    path = write(project, "python", f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    record = json.loads(Path(project.install_record).read_text())
    Path(project.install_record).write_text(json.dumps({**record, "python": str(path)}))


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("exit 3", {"interpreter": "does not run", "ipykernel": "not checked"}),
        (
            f"echo noise; echo {python_probe.PROBE_MARK} 3.8.1 ipykernel",
            {"interpreter": "3.9 or newer"},
        ),
        (
            f"echo {python_probe.PROBE_MARK} 3.9.0 pip; echo noise",
            {"ipykernel": "not installed in"},
        ),
    ],
)
def test_interpreters(project, text, wrong):
    fake(project, text)
    bad = find_failed_checks(project)
    assert bad.keys() == wrong.keys()
    for name, detail in wrong.items():
        assert detail in bad[name].detail
        assert "install.sh" in bad[name].mend


def test_ipykernel_of_a_locked_project(project):
    write(project, "uv.lock", "")
    fake(project, f"echo {python_probe.PROBE_MARK} 3.12.0")
    assert find_failed_checks(project)["ipykernel"].mend == "uv add --dev ipykernel"


def test_configured_interpreter_takes_precedence(project):
    write(project, ".stepper/config.yaml", "python: no/python\n")
    assert (
        f"{project.project}/no/python does not run"
        in find_failed_checks(project)["interpreter"].detail
    )
    write(project, "no/python", "")
    bad = find_failed_checks(project)
    assert f"{project.project}/no/python" in bad["interpreter"].detail
    assert (bad["interpreter"].mend, bad["ipykernel"].mend) == (
        "stepper trust",
        "stepper trust",
    )


def test_config(project):
    write(project, ".stepper/config.yaml", "notebook_dir: x\n")
    (bad,) = find_failed_checks(project).values()
    assert bad.name == "config"
    assert "notebook_dir" in bad.detail
    assert project.config in shlex.split(bad.mend)


def test_hooks_of_an_older_version(project):
    write(project, ".stepper/config.yaml", "notebooks: [nb]\n")
    assert not find_failed_checks(project)  # abstract sockets have no folder
    path = Path(project.project, ".claude/settings.json")
    path.write_text(path.read_text().replace("(**/*.ipynb)", "(notebooks/**/*.ipynb)"))
    (bad,) = find_failed_checks(project).values()
    assert bad.name == "hooks" and "install.sh" in bad.mend
    assert "PostToolUse NotebookEdit" in bad.detail
    assert "Stop" not in bad.detail


def test_notebook_that_was_not_put_back(project):
    reads = Path(project.reads)
    reads.mkdir(mode=0o700)
    record = {"notebook": "notebooks/a b.ipynb", "full": [], "slim": []}
    (reads / "0.json").write_text(json.dumps(record))
    (reads / "0.ipynb").write_text("{}")
    assert find_failed_checks(project) == {}  # the agent may be reading it now
    with mock.patch.object(doctor, "READ_SECONDS", 0):
        failed = find_failed_checks(project)
        assert list(failed) == ["notebooks"]
        detail = failed["notebooks"].detail
        assert "did not put back notebooks/a b.ipynb after a read" in detail
        assert failed["notebooks"].mend == "stepper show 'notebooks/a b.ipynb'"
        (reads / "0.json").write_text("{")
        detail = find_failed_checks(project)["notebooks"].detail
        assert "did not put back .stepper/reads/0.ipynb after a read" in detail
        (reads / "0.ipynb").unlink()
        assert find_failed_checks(project) == {}


def test_uncovered_notebooks_are_counted_with_a_config_line(project):
    root = Path(project.project)
    for name in (
        "notebooks/a.ipynb",
        "analysis/b.ipynb",
        "top.ipynb",
        ".venv/c.ipynb",
        "node_modules/d.ipynb",
    ):
        write(project, name, "{}")
    (root / "notebooks/.ipynb_checkpoints").mkdir()
    write(project, "notebooks/.ipynb_checkpoints/a-checkpoint.ipynb", "{}")
    detail = run_checks(project)["notebooks"].detail
    assert detail == (
        "notebooks: 1 included; 2 not included (analysis/b.ipynb, top.ipynb). Cells of notebooks that are not included do not run. To include all notebooks, set:"
        ' notebooks: ["notebooks", "analysis", "*.ipynb"]'
    )
    write(project, ".stepper/config.yaml", detail.partition("set: ")[2] + "\n")
    assert (
        run_checks(project)["notebooks"].detail
        == "notebooks, analysis, *.ipynb: 3 included"
    )
    assert not find_failed_checks(project)  # uncovered notebooks are no problem


@pytest.mark.nightly_after(3)
@pytest.mark.parametrize(
    ("named", "config", "expected_detail"),
    [
        (
            {},
            "",
            "auto (Claude Code's default): edits need no approval",
        ),
        (
            {},
            "auto_run: ask",
            "each code cell needs your approval and then runs immediately",
        ),
        ({"user": "default"}, "", "an approved code cell runs immediately"),
        (
            {"user": "default"},
            "auto_run: ask",
            "an approved code cell does not run until you run `stepper run`",
        ),
        (
            {"user": "acceptEdits", "project": "plan"},
            "",
            "/.claude/settings.json): each edit needs your approval, and no cell",
        ),
        (
            {"project": "plan", "local": "dontAsk"},
            "",
            "settings.local.json): edits that no rule allows are refused",
        ),
        (
            {"local": "bypassPermissions"},
            "",
            "default (permissions.defaultMode in ",
        ),  # as the client stores it
        (
            {"user": "bypassPermissions"},
            "",
            "bypassPermissions (permissions.defaultMode in ",
        ),
        ({"user": "of tomorrow"}, "", "of tomorrow (permissions.defaultMode in "),
    ],
)
def test_permission_mode_is_reported(
    project, tmp_path, monkeypatch, named, config, expected_detail
):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    settings_folder = Path(project.project, ".claude")
    settings_files = {
        "user": tmp_path / "user/settings.json",
        "project": settings_folder / "settings.json",
        "local": settings_folder / "settings.local.json",
    }
    for file_name, mode in named.items():
        settings_file = (
            json.loads(settings_files[file_name].read_text())
            if settings_files[file_name].exists()
            else {}
        )
        settings_files[file_name].write_text(
            json.dumps({**settings_file, "permissions": {"defaultMode": mode}})
        )
    write(project, ".stepper/config.yaml", config)
    assert expected_detail in run_checks(project)["mode"].detail
    assert not find_failed_checks(project)


def test_rules_in_user_settings_count(project, monkeypatch, tmp_path):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "user"))
    allowed = [{"no": "rule"}, "Edit(notebooks/**)", "Bash(stepper *)"]
    settings = {"permissions": {"defaultMode": "default", "allow": allowed}}
    Path(project.project, ".claude/settings.local.json").write_text(
        json.dumps(settings)
    )
    assert "because the rules of --allow are set" in run_checks(project)["mode"].detail


@pytest.mark.parametrize(
    ("name", "text", "expected_detail"),
    [
        ("settings.json", "{", "can't be read"),
        ("settings.json", '{"hooks": []}', "hooks is not an object"),
        ("settings.json", "{}", "missing or outdated"),
        ("settings.local.json", '{"disableAllHooks": true}', "disables all hooks"),
        ("settings.local.json", "{", "can't be read"),
    ],
)
def test_hooks(project, name, text, expected_detail):
    write(project, f".claude/{name}", text)
    (bad,) = find_failed_checks(project).values()
    assert bad.name == "hooks"
    assert expected_detail in bad.detail
    assert bad.mend


def test_hook_script(project):
    script = Path(project.project, claude_settings.SCRIPT)
    script.chmod(0o644)
    (bad,) = find_failed_checks(project).values()
    assert shlex.split(bad.mend) == ["chmod", "+x", str(script)]
    script.write_text("#!/bin/sh\n")
    assert (
        "from a version other than stepper"
        in find_failed_checks(project)["hook script"].detail
    )
    script.unlink()
    assert "missing" in find_failed_checks(project)["hook script"].detail


def test_environment_without_the_package(project):
    Path(project.env, "packages").unlink()
    assert "is incomplete" in find_failed_checks(project)["hook script"].detail


def test_missing_link_to_the_environment(project):
    Path(project.env_link).unlink()
    bad = find_failed_checks(project)["hook script"]
    assert bad.detail == ".stepper/env is missing"
    assert "install.sh" in bad.mend


def test_skills(project):
    folder = Path(project.project, ".claude/skills")
    names = sorted(item.name for item in folder.iterdir())
    first = folder / names[0] / "SKILL.md"
    first.write_text(first.read_text() + "mine\n")
    assert f"edited by you: {names[0]}" in run_checks(project)["skills"].detail
    first.write_bytes(skill_states.add_mark({"SKILL.md": b"older"})["SKILL.md"])
    assert (
        f"{names[0]} is from another version"
        in find_failed_checks(project)["skills"].detail
    )
    first.write_text("theirs")
    note = f"not installed, because you have skills with these names: {names[0]}"
    assert note in run_checks(project)["skills"].detail
    first.unlink()
    assert f"{names[0]} is missing" in find_failed_checks(project)["skills"].detail


def test_missing_packaged_skills_are_a_problem(project, monkeypatch):
    monkeypatch.setattr(skill_states, "load_shipped_skills", dict)
    assert (
        "this installation contains no" in find_failed_checks(project)["skills"].detail
    )


@pytest.mark.parametrize("variable", ["", "CLAUDE_CONFIG_DIR"])
def test_personal_skill_shadows_the_installed_skill(
    project, tmp_path, monkeypatch, variable
):
    home = tmp_path / "home/.claude"
    if variable:
        home = tmp_path / "else where"
        monkeypatch.setenv(variable, str(home))
    (home / "skills/new-notebook").mkdir(parents=True)
    (home / "skills/new-notebook/SKILL.md").touch()
    (bad,) = find_failed_checks(project).values()
    assert bad.name == "personal skills"
    assert shlex.split(bad.mend)[:2] == ["mv", str(home / "skills/new-notebook")]


def test_socket_folder_with_open_permissions(project):
    project.create_runtime_folder()
    assert stat.S_IMODE(Path(project.runtime).stat().st_mode) == 0o700
    assert find_failed_checks(project) == {}
    Path(project.runtime).chmod(0o755)
    (bad,) = find_failed_checks(project).values()
    assert bad.mend == f"chmod 700 {project.runtime}"
    Path(project.runtime).rmdir()
    Path(project.runtime).symlink_to(project.project)
    assert "is not a folder" in find_failed_checks(project)["socket"].detail


def test_unreadable_file_fails_only_its_check(project, monkeypatch):
    def fail(paths):
        raise PermissionError(13, "Permission denied", "/x")

    monkeypatch.setitem(doctor.CHECKS, "hooks", fail)
    (bad,) = find_failed_checks(project).values()
    assert bad.name == "hooks" and "/x" in bad.detail


def test_listening_daemon(project):
    project.create_runtime_folder()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(project.socket)
        listener.listen()
        assert "the daemon is running" in run_checks(project)["socket"].detail
        assert find_failed_checks(project) == {}


def test_command_on_the_users_path(project):
    assert "--link" in run_checks(project)["command"].detail
    user_script.install_script(project)
    assert (
        "runs the stepper of the current project"
        in run_checks(project)["command"].detail
    )
    user_script.get_script_path().write_text(
        user_script.get_script_path().read_text() + "# older\n"
    )
    assert find_failed_checks(project)["command"].mend.endswith(
        f"{shlex.quote(project.project)} --link"
    )
    user_script.get_script_path().write_text("#!/bin/sh\n")
    assert "another program" in run_checks(project)["command"].detail


def test_configured_backends(project, monkeypatch):
    """An unaccepted backend is not contacted; an accepted one is checked."""
    write(
        project,
        ".stepper/config.yaml",
        "kernels:\n  sh: {kernelspec: nothing}\n  gpu: {slurm: {partition: a}}\n",
    )
    checks = run_checks(project)
    assert list(checks) == [*NAMES, "kernels.sh", "kernels.gpu"]
    for name in ("kernels.sh", "kernels.gpu"):
        assert (
            not checks[name].ok
            and "you have not accepted this backend, so stepper did not contact it"
            in checks[name].detail
        )
        assert checks[name].mend == "stepper trust"
    trust.accept(project, trust.examine(project))
    monkeypatch.setenv("PATH", str(Path(project.project)))  # without SLURM's commands
    checks = run_checks(project)
    assert (
        "'nothing' is not installed" in checks["kernels.sh"].detail
        and "jupyter" in checks["kernels.sh"].mend
    )
    assert (
        "the command `sinfo` was not found on this machine"
        in checks["kernels.gpu"].detail
    )
    spec = write(
        project,
        "share/kernels/nothing/kernel.json",
        '{"argv": ["x"], "language": "logo"}',
    )
    monkeypatch.setenv("JUPYTER_PATH", str(spec.parent.parent.parent))
    checks = run_checks(project)
    assert checks["kernels.sh"].ok and "nothing (logo)" in checks["kernels.sh"].detail
    data = json.loads(
        json.dumps(rendering.RENDERINGS["doctor"].document(list(checks.values())))
    )
    assert data[-2] | {"detail": ""} == {
        "name": "kernels.sh",
        "ok": True,
        "detail": "",
        "mend": "",
    }


def test_install_command_names_the_checkout(project):
    assert shlex.split(doctor.format_install_command(project)) == [
        f"{install_file_io.PACKAGE.parent}/install.sh",
        project.project,
    ]
    Path(project.install_record).write_text("[")
    assert doctor.format_install_command(project).startswith("./install.sh ")


@pytest.mark.parametrize(
    ("source", "command"),
    [
        (
            "uvx --from {}/x.whl notebook-stepper install",
            "uvx notebook-stepper install",
        ),
        (
            "pipx run --spec {}/x.whl notebook-stepper install",
            "pipx run notebook-stepper install",
        ),
        (
            "{}/bin/notebook-stepper install",
            "pip install notebook-stepper && notebook-stepper install",
        ),
    ],
)
def test_install_command_for_a_deleted_checkout_uses_the_package_index(
    project, tmp_path, source, command
):
    path, folder = tmp_path / "gone", shlex.quote(project.project)
    source = source.format(path)
    Path(project.install_record).write_text(json.dumps({"source": source}))
    assert doctor.format_install_command(project).startswith(
        f"{command} {folder}  # {path}/"
    )
    for name in ("x.whl", "bin/notebook-stepper"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    assert doctor.format_install_command(project) == f"{source} {folder}"


def test_wheel_assets_come_first(tmp_path, monkeypatch):
    package = tmp_path / "site-packages/stepper"
    (package / "assets/skills").mkdir(parents=True)
    (package.parent / "skills").mkdir()  # another package's entry
    monkeypatch.setattr(install_file_io, "PACKAGE", package)
    assert install_file_io.find_assets("skills") == package / "assets/skills"
    assert install_file_io.find_assets("hooks") == package.parent / "hooks"


def test_probe_times_out(tmp_path, monkeypatch):
    monkeypatch.setattr(python_probe, "PROBE_SECONDS", 0.2)
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    with pytest.raises(StepperError, match="timed out after"):
        python_probe.probe(str(slow))
