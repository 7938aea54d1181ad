"""Remove what install added and only that: later edits stay, and so do notebooks, `.venv` and `ipykernel`.

It works without the record and without the environment (install.sh runs it from the checkout): our parts are
recognised by themselves. The record adds what nobody can see, what was there before.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

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
    print_line,
)
from stepper.install.install_files import (
    find_assets,
    read,
    read_settings,
    remove,
    remove_empty,
    write,
)
from stepper.install.python_probe import get_output_tail, run
from stepper.install.skill_files import SKILLS, list_our_skills

SHUTDOWN_SECONDS = 60.0
# What stepper itself keeps in .stepper/; all else there is the person's: journals,
# figures, config.yaml.
OWN = (
    "env",  # the link
    "install.json",  # of older versions
    ".gitignore",
    *(
        "token",
        "daemon.json",
        "start.lock",
        "daemon.lock",
        "state.json",
        "active",
        "batch",
        "seen",
        "kernels",
    ),
    *("running", "statusline", "now", "handed", "verify"),
)


def uninstall(options: argparse.Namespace) -> None:
    """Undo an installation; raise a StepperError, with nothing changed, where the settings can't be read."""
    check_target(options.target)
    paths = Paths(options.target)
    project, note = Path(paths.project), read_install_record(paths.project)
    claude = not note.get(
        "mcp_only"
    )  # else .claude/ has nothing of this user's install
    check_links(project, claude=claude)
    text, data = None, claude_settings.Data()
    if claude:
        text, data = read_settings(project / SETTINGS)
    traces = claude and (
        SCRIPT_MARK in read(project / claude_settings.SCRIPT)
        or claude_settings.has_our_handlers(data)
        or list_our_skills(project)
    )
    if not (
        traces
        or any(map(os.path.lexists, (paths.home, paths.env, paths.install_record)))
    ):
        print_line("nothing", f"of stepper's is in {project}")
        return
    borrowers = [Paths(folder) for folder in paths.find_dependent_worktrees()]
    for each in (paths, *borrowers):
        _stop_kernels(each)
    if claude:
        _remove_settings(project, note, text, data)
        _remove_script(project / claude_settings.SCRIPT, note)
        _remove_skills(project)
    removal = mcp_client_config.remove_entries(paths, note)
    if removal.changed:
        print_line("removed", f"our lines from {', '.join(removal.changed)}")
    for file in removal.failed:
        print_line("kept", f"our lines in {file}: it can't be changed; remove them")
    if note.get("gitignore", True):
        _remove_line(project, keep=".gitignore" in note.get("found", ()))
    _remove_home(paths, note)
    trust.remove_record(paths)  # the environment too
    link = user_script.remove_script()
    if link is not None:
        print_line(
            "kept" if link else "removed", link or str(user_script.get_script_path())
        )
    notebooks = str(note.get("notebooks", "notebooks"))
    folders = (".claude/hooks", SKILLS, ".claude") if claude else ()
    for name in (*folders, notebooks):
        if name not in note.get("found", ()) and remove_empty(project / name):
            print_line("removed", f"{name}/ (empty)")
    for each in borrowers:
        print_line(
            "worktree",
            f"{each.project} worked with this environment: its cells do not run any"
            " more",
        )
    kept = [f"{notebooks}/"] * (project / notebooks).is_dir() + [
        ".venv and ipykernel in it"
    ] * (project / ".venv").is_dir()
    if kept:
        print_line("kept", ", ".join(kept))


def _stop_kernels(paths: Paths) -> None:
    command = Path(paths.active_env, "bin/stepper")
    try:
        running = doctor.is_daemon_listening(paths)
    except (OSError, StepperError):
        running = True  # something is there: let `stepper shutdown` look
    if not running and not any(Path(paths.kernels).rglob("*.json")):
        return
    if (
        not paths.env_is_recorded()
    ):  # a stranger's, or the record is gone: it is not asked
        print_line(
            "warning",
            f"{command} is not of an install of yours, and was not run: daemon and"
            " kernels may still run",
        )
        return
    done = run(str(command), "shutdown", cwd=paths.project, seconds=SHUTDOWN_SECONDS)
    if done.returncode:
        print_line(
            "warning",
            "daemon and kernels may still run: `stepper shutdown` failed"
            f" ({get_output_tail(done)})",
        )
    else:
        print_line("stopped", f"daemon and kernels of {paths.project}")


def _remove_settings(
    project: Path,
    note: claude_settings.Data,
    text: str | None,
    data: claude_settings.Data,
) -> None:
    first = note.get("settings")
    before = claude_settings.parse(first) if isinstance(first, str) else {}
    # Without a record only the rule that names stepper is surely ours; the other does
    # no harm without hooks.
    rules = note.get("allow", [claude_settings.SHELL_RULE])
    rest = claude_settings.remove_ours(
        statusline_setting.restore_status_line(data, note), rules, before
    )
    if text is None or rest == data:
        return
    same = isinstance(first, str) and json.dumps(before) == json.dumps(rest)
    left = str(first) if same else claude_settings.render(rest, text)
    _write_remaining(
        project,
        SETTINGS,
        left.encode() if rest or first is not None else None,
        "our hooks",
    )


def _remove_line(project: Path, keep: bool) -> None:
    old = read(project / ".gitignore")
    rest = claude_settings.remove_ignore_line(old)
    if rest != old:
        _write_remaining(
            project, ".gitignore", rest if rest or keep else None, "our line"
        )


def _write_remaining(project: Path, name: str, rest: bytes | None, ours: str) -> None:
    """Replace a file by what is left of it, None where that is nothing."""
    if rest is None:
        remove(project / name)
    else:
        write(project / name, rest)
    print_line("removed", name if rest is None else f"{ours} from {name}")


def _remove_script(path: Path, note: claude_settings.Data) -> None:
    there, ours = read(path), read(find_assets("hooks") / "stepper")
    hashed = hashlib.sha256(there).hexdigest()
    if SCRIPT_MARK not in there:
        return
    if there == ours or hashed == note.get("script", hashed):
        remove(path)
        print_line("removed", claude_settings.SCRIPT)
    else:
        path.replace(path.with_name("stepper.orig"))
        print_line(
            "kept",
            f"{claude_settings.SCRIPT} was edited: it is {claude_settings.SCRIPT}.orig"
            " now",
        )


def _remove_skills(project: Path) -> None:
    found = list_our_skills(project)
    edited = [name for name in found if found[name] == "edited"]
    ours = [name for name in found if found[name] != "edited"]
    for name in ours:
        remove(project / SKILLS / name)
    if ours:
        print_line("removed", f"skills {', '.join(ours)}")
    if edited:
        print_line(
            "kept",
            f"skills {', '.join(edited)} (edited by you; rm -r {SKILLS}/{edited[0]})",
        )


def _remove_home(paths: Paths, note: claude_settings.Data) -> None:
    home = Path(paths.home)
    made = note.get("config")  # by `--notebooks`, where the person added nothing
    own = (
        (*OWN, "config.yaml")
        if made and read(home / "config.yaml") == str(made).encode()
        else OWN
    )
    for path in (*home.glob("daemon.log*"), *(home / name for name in own)):
        remove(path)
    for folder in ("journal", "figures"):
        remove_empty(home / folder)
    if not ((home / "journal").exists() or (home / "figures").exists()):
        remove(home / "renamed.json")  # it says whose journals and figures these are
    runtime = Path(paths.runtime)
    if (
        runtime.is_dir()
        and not runtime.is_symlink()
        and runtime.stat().st_uid == os.getuid()
    ):
        remove(runtime)
    if not home.is_dir():
        return
    if remove_empty(home):
        print_line("removed", ".stepper/")
    else:
        names = ", ".join(sorted(path.name for path in home.iterdir()))
        write(home / ".gitignore", b"*\n")  # our line in the repository's is gone
        print_line("kept", f".stepper/ with what is yours: {names} (rm -r .stepper)")
