"""Undo an installation.

Later edits, notebooks, `.venv` and ipykernel are kept. install.sh runs this module from
the checkout, without the record and the environment if they are missing: stepper's
files are recognized by their contents. The record contains the original state.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from stepper.common.errors import StepperError
from stepper.common.paths import Paths, read_install_record
from stepper.install import (
    claude_settings,
    doctor,
    mcp_client_config,
    statusline_setting,
    trust,
    user_script,
)
from stepper.install.install_checks import (
    SCRIPT_MARK,
    SETTINGS,
    check_links,
    check_target,
)
from stepper.install.install_file_io import (
    find_assets,
    read,
    read_settings,
    remove,
    remove_empty,
    write,
)
from stepper.install.install_output import print_line
from stepper.install.python_probe import get_output_tail, run
from stepper.install.skill_states import SKILLS, list_our_skills
from stepper.notebooks import leftover_slim_copies

SHUTDOWN_SECONDS = 60.0
# The files of stepper in .stepper/. All other files belong to the user: journals,
# figures, config.yaml.
STEPPER_FILES = (
    "env",  # the link
    "install.json",  # of older versions
    ".gitignore",
    "token",
    "daemon.json",
    "start.lock",
    "daemon.lock",
    "state.json",
    "active",
    "batch",
    "seen",
    "kernels",
    "running",
    "statusline",
    "now",
    "handed",
    "verify",
)

Record = dict[str, Any]


def uninstall(options: argparse.Namespace) -> None:
    """Undo an installation.

    Raises:
        StepperError: The project or its settings can't be used; nothing was changed.
    """
    check_target(options.target)
    paths = Paths(options.target)
    project = Path(paths.project)
    record = read_install_record(paths.project)
    # With --mcp-only, this user installed nothing in .claude/.
    has_claude_files = not record.get("mcp_only")
    check_links(project, claude=has_claude_files)
    text = None
    data = claude_settings.Data()
    if has_claude_files:
        text, data = read_settings(project / SETTINGS)
    if not _is_installed(paths, data, has_claude_files):
        print_line(
            "unchanged", f"stepper is not installed in {project}: nothing was removed"
        )
        return
    worktrees = [Paths(folder) for folder in paths.find_dependent_worktrees()]
    for checkout in (paths, *worktrees):
        _restore_notebooks(checkout)
        _stop_kernels(checkout)
    if has_claude_files:
        _remove_settings(project, record, text, data)
        _remove_script(project / claude_settings.SCRIPT, record)
        _remove_skills(project)
    _remove_client_entries(paths, record)
    if record.get("gitignore", True):
        _remove_ignore_line(project, keep=".gitignore" in record.get("found", ()))
    _remove_home(paths, record)
    trust.remove_record(paths)  # and the environment
    _remove_user_script()
    notebooks = str(record.get("notebooks", "notebooks"))
    folders = [notebooks]
    if has_claude_files:
        folders = [".claude/hooks", SKILLS, ".claude", notebooks]
    for name in folders:
        if name not in record.get("found", ()) and remove_empty(project / name):
            print_line("removed", f"{name}/ (empty)")
    for worktree in worktrees:
        print_line(
            "worktree",
            f"{worktree.project} used this environment: its notebooks no longer run",
        )
    _print_kept(project, notebooks)


def _is_installed(
    paths: Paths, data: claude_settings.Data, has_claude_files: bool
) -> bool:
    """Return whether the project contains files or settings of stepper."""
    if any(map(os.path.lexists, (paths.home, paths.env, paths.install_record))):
        return True
    if not has_claude_files:
        return False
    project = Path(paths.project)
    has_script = SCRIPT_MARK in read(project / claude_settings.SCRIPT)
    has_handlers = claude_settings.has_our_handlers(data)
    return has_script or has_handlers or bool(list_our_skills(project))


def _print_kept(project: Path, notebooks: str) -> None:
    """Print the user's folders that were kept. `notebooks` is the name of a folder."""
    names = []
    if (project / notebooks).is_dir():
        names.append(f"{notebooks}/")
    if (project / ".venv").is_dir():
        names.append(".venv")
    if names:
        print_line("kept", ", ".join(names))


def _restore_notebooks(paths: Paths) -> None:
    """Put back the notebooks that were being read when stepper was killed.

    Print a warning if this fails.
    """
    if not leftover_slim_copies.list_notebooks(paths):
        return
    if paths.is_env_recorded():
        # A daemon puts the notebooks back when it starts.
        command = str(Path(paths.active_env, "bin/stepper"))
        run(command, "status", cwd=paths.project, seconds=SHUTDOWN_SECONDS)
    remaining = leftover_slim_copies.list_notebooks(paths)
    if remaining:
        names = ", ".join(remaining)
        print_line(
            "warning",
            f"stepper did not put back {names} after a read by Claude Code. The"
            " notebook itself is in .stepper/reads: move it back yourself",
        )


def _stop_kernels(paths: Paths) -> None:
    """Stop the daemon and the kernels of a checkout with `stepper shutdown`."""
    command = Path(paths.active_env, "bin/stepper")
    try:
        is_running = doctor.is_daemon_listening(paths)
    except (OSError, StepperError):
        is_running = True  # unknown: `stepper shutdown` finds out
    if not is_running and not any(Path(paths.kernels).rglob("*.json")):
        return
    if not paths.is_env_recorded():
        # The environment may be from a stranger.
        print_line(
            "warning",
            f"`{command} shutdown` was not run, because this environment is not from"
            " your installation: the daemon and kernels may still be running",
        )
        return
    result = run(str(command), "shutdown", cwd=paths.project, seconds=SHUTDOWN_SECONDS)
    if result.returncode:
        print_line(
            "warning",
            "the daemon and kernels may still be running: `stepper shutdown` failed"
            f" ({get_output_tail(result)})",
        )
    else:
        print_line("stopped", f"the daemon and kernels of {paths.project}")


def _remove_settings(
    project: Path, record: Record, text: str | None, data: claude_settings.Data
) -> None:
    """Remove hooks, rules and the status line from Claude Code's settings.

    `text` and `data` are the current settings; `text` is None if there is no file.
    """
    original_text = record.get("settings")
    original = {}
    if isinstance(original_text, str):
        original = claude_settings.parse(original_text)
    # Without a record, only the rule that names stepper is certainly from stepper. The
    # other rules have no effect without hooks.
    rules = record.get("allow", [claude_settings.SHELL_RULE])
    settings = statusline_setting.restore_status_line(data, record)
    remaining = claude_settings.remove_ours(settings, rules, original)
    if text is None or remaining == data:
        return
    # Compared as text, because the order of the keys is significant.
    is_original = json.dumps(original) == json.dumps(remaining)
    if not remaining and original_text is None:
        content = None  # stepper created the file
    elif isinstance(original_text, str) and is_original:
        content = original_text.encode()
    else:
        content = claude_settings.render(remaining, text).encode()
    _write_remaining(project, SETTINGS, content, "stepper's hooks")


def _remove_ignore_line(project: Path, keep: bool) -> None:
    """Remove stepper's line from .gitignore; keep an empty file if `keep` is true."""
    content = read(project / ".gitignore")
    remaining = claude_settings.remove_ignore_line(content)
    if remaining == content:
        return
    content_to_keep = remaining if remaining or keep else None
    _write_remaining(project, ".gitignore", content_to_keep, "stepper's line")


def _write_remaining(
    project: Path, name: str, content: bytes | None, removed: str
) -> None:
    """Write the rest of a file, or remove the file if `content` is None.

    `removed` names the removed part of the file in the output.
    """
    path = project / name
    if content is None:
        remove(path)
        print_line("removed", name)
    else:
        write(path, content)
        print_line("removed", f"{removed} from {name}")


def _remove_script(path: Path, record: Record) -> None:
    """Remove the hook script, or rename it to `stepper.orig` if the user edited it.

    A script of another program is left unchanged.
    """
    content = read(path)
    if SCRIPT_MARK not in content:
        return
    shipped = read(find_assets("hooks") / "stepper")
    current_hash = hashlib.sha256(content).hexdigest()
    # Without a record, an edit of an older script can't be recognized.
    installed_hash = record.get("script", current_hash)
    if content == shipped or current_hash == installed_hash:
        remove(path)
        print_line("removed", claude_settings.SCRIPT)
    else:
        path.replace(path.with_name("stepper.orig"))
        name = claude_settings.SCRIPT
        print_line("kept", f"{name} as {name}.orig, because it was edited")


def _remove_skills(project: Path) -> None:
    """Remove the skills that the user did not edit."""
    states = list_our_skills(project)
    edited = [name for name, state in states.items() if state == "edited"]
    unchanged = [name for name, state in states.items() if state != "edited"]
    for name in unchanged:
        remove(project / SKILLS / name)
    if unchanged:
        print_line("removed", f"skills {', '.join(unchanged)}")
    if edited:
        print_line(
            "kept",
            f"skills {', '.join(edited)}, which you edited (to remove one, run:"
            f" rm -r {SKILLS}/{edited[0]})",
        )


def _remove_client_entries(paths: Paths, record: Record) -> None:
    """Remove stepper's MCP server from the configuration of clients."""
    removal = mcp_client_config.remove_entries(paths, record)
    if removal.changed:
        print_line("removed", f"stepper's lines from {', '.join(removal.changed)}")
    for file in removal.failed:
        print_line(
            "kept",
            f"stepper's lines in {file}, which can't be changed: remove them yourself",
        )


def _remove_user_script() -> None:
    """Remove the script of `--link`, unless other projects need it."""
    removal = user_script.remove_script()
    if removal.is_removed:
        print_line("removed", str(user_script.get_script_path()))
    elif removal.kept:
        print_line("kept", removal.kept)


def _remove_home(paths: Paths, record: Record) -> None:
    """Remove stepper's files from .stepper/, and the folder if no files are left.

    If files of the user are left, git ignores the folder. Also remove the folder of the
    sockets.
    """
    home = Path(paths.home)
    names = list(STEPPER_FILES)
    config = record.get("config")  # the text that `--notebooks` wrote
    if config and read(home / "config.yaml") == str(config).encode():
        names.append("config.yaml")
    for path in (*home.glob("daemon.log*"), *(home / name for name in names)):
        remove(path)
    # `reads` contains a notebook that could not be put back in its place.
    for folder in ("journal", "figures", "reads"):
        remove_empty(home / folder)
    if not ((home / "journal").exists() or (home / "figures").exists()):
        remove(home / "renamed.json")  # names the journals and figures
    _remove_runtime_folder(Path(paths.runtime))
    remove_empty(home / "run")  # contains the sockets if no other folder is usable
    if not home.is_dir():
        return
    if remove_empty(home):
        print_line("removed", ".stepper/")
    else:
        remaining = ", ".join(sorted(path.name for path in home.iterdir()))
        # The line in the repository's .gitignore was removed.
        write(home / ".gitignore", b"*\n")
        print_line(
            "kept",
            f".stepper/ with your files {remaining} (to remove them, run: rm -r"
            " .stepper)",
        )


def _remove_runtime_folder(folder: Path) -> None:
    """Remove the folder of the sockets, if this user owns the folder."""
    if not folder.is_dir() or folder.is_symlink():
        return
    if folder.stat().st_uid == os.getuid():
        remove(folder)
