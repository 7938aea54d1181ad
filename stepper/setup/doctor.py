"""Looks at an installation and changes nothing: what is wrong, and the command that mends it.

Stdlib only when imported: install looks through it before any environment exists. The only code that it runs
is one `-c` of the kernel's interpreter, where this user accepted that.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stepper import __version__
from stepper.ground.errors import UsageError
from stepper.ground.paths import Paths, recorded
from stepper.hook import client
from stepper.setup import settings
from stepper.setup.files import assets
from stepper.setup.interpreter import OLDEST_KERNEL_PYTHON, probe
from stepper.setup.skills import SKILLS, digest, files_in, shipped_skills, whose

TRUST = "stepper trust"  # shows what it accepts, and records it


@dataclass(frozen=True)
class Check:
    """One line of `stepper doctor`. `mend` is a command for the shell, empty where nothing is to be done."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def notebooks_dir(paths: Paths) -> str:
    """Return the notebooks' folder from the config; the default without pyyaml; raise UsageError."""
    try:
        from stepper.daemon import config
    except ImportError:  # run from the checkout, before any environment exists
        return "notebooks"
    return os.path.normpath(config.load(paths).notebooks_dir)


def install_command(paths: Paths, broken: str = "") -> str:
    """Return the command that sets this project up (again), or the main checkout that lends it what is `broken`."""
    holders = [folder for folder in paths.checkouts if Path(broken).is_relative_to(folder)]
    # the longest: a worktree may lie in the main checkout
    folder = max(holders, key=len, default=paths.project)
    script = Path(str(recorded(paths.checkouts[-1]).get("source", ""))) / "install.sh"
    if script.is_absolute() and script.is_file():
        return f"{shlex.quote(str(script))} {shlex.quote(folder)}"
    return f"./install.sh {shlex.quote(folder)}  # in a checkout of stepper"


def editor(path: str) -> str:
    """Return the command that opens a file for the person."""
    return f"${{EDITOR:-vi}} {shlex.quote(path)}"


def checks(paths: Paths) -> list[Check]:
    """Return all checks of one project, in the order in which one would mend them."""
    done = ((name, check(paths)) for name, check in CHECKS.items())
    return [Check(name, True, said) if isinstance(said, str) else Check(name, False, *said) for name, said in done]


class Wrong(NamedTuple):
    """What a check finds wrong, and the command that mends it. Where all is well a check returns a text."""

    detail: str
    mend: str


def config_file(paths: Paths) -> str | Wrong:
    """The configuration can be read."""
    try:
        notebooks_dir(paths)
    except UsageError as error:
        return Wrong("; ".join(filter(None, (error.message, error.hint))), editor(paths.config))
    return paths.relative(paths.config) if Path(paths.config).exists() else "none: the defaults hold"


def interpreter(paths: Paths) -> str | Wrong:
    """The kernel's interpreter runs and is new enough."""
    python = kernel_python(paths)
    if strange(paths, python):
        return Wrong(f"{python} was not accepted by you: nothing of it runs", TRUST)
    about = probe(python)
    mend = f"{install_command(paths, python).partition('  #')[0]} --python PATH"
    if about.error:
        return Wrong(f"{python} does not run: {about.error}", mend)
    detail = f"{python} (Python {about.name})"
    if about.version < OLDEST_KERNEL_PYTHON:
        return Wrong(f"{detail}: the kernel needs 3.9 or newer", mend)
    return detail


def ipykernel(paths: Paths) -> str | Wrong:
    """The kernel's interpreter has ipykernel."""
    python = kernel_python(paths)
    if strange(paths, python):
        return Wrong("unknown: the interpreter was not accepted by you", TRUST)
    about = probe(python)
    if about.error:
        return Wrong("unknown: the interpreter does not run", install_command(paths))
    if "ipykernel" in about.modules:
        return "present"
    locked = Path(paths.project, "uv.lock").exists()
    return Wrong(f"missing in {python}", "uv add --dev ipykernel" if locked else install_command(paths, python))


def hook_script(paths: Paths) -> str | Wrong:
    """The hook script is ours, executable, and finds stepper's environment; the name `.stepper/env` leads there too."""
    name, script, ours = settings.SCRIPT, Path(paths.project, settings.SCRIPT), assets("hooks") / "stepper"
    env, link = paths.used_env, Paths(paths.lender).link
    if not script.is_file():
        return Wrong(f"{name} is missing", install_command(paths))
    if script.read_bytes() != ours.read_bytes():
        return Wrong(f"{name} is not the one of stepper {__version__}", install_command(paths))
    if not os.access(script, os.X_OK):
        return Wrong(f"{name} is not executable", f"chmod +x {shlex.quote(str(script))}")
    if os.path.lexists(link) and not paths.env_is_ours():
        return Wrong(f"{link} is not of an install of yours: nothing of it runs, and no cell", TRUST)
    if not Path(env, "packages", "stepper").is_dir():
        return Wrong(f"{paths.relative(link)} is not complete", install_command(paths, link))
    if os.path.realpath(link) != os.path.realpath(env):
        detail = f"{link} is not your environment (a pull may have put it there). The hooks run yours: {env}"
        # install refuses a link of a stranger's
        unlink = f"rm {shlex.quote(link)} && " if os.path.islink(link) else ""
        return Wrong(detail, unlink + install_command(paths, link))
    lent = "" if link == paths.link else f" (a worktree, with the environment of the main checkout: {link})"
    return name + lent


def hooks(paths: Paths) -> str | Wrong:
    """The settings hold all our handlers, bound to the notebooks' folder, and do not switch hooks off."""
    try:
        folder = notebooks_dir(paths)
    except UsageError:
        folder = "notebooks"  # what is wrong with the config has its own line
    for file in ("settings.json", "settings.local.json"):
        name, path = f".claude/{file}", Path(paths.project, ".claude", file)
        try:
            data = settings.parse(path.read_text("utf-8"))
        except FileNotFoundError:
            data = {}
        except (OSError, ValueError) as error:
            return Wrong(f"{name} can't be read: {error}", editor(str(path)))
        if wrong := settings.problem(data):
            return Wrong(f"{name}: {wrong}", editor(str(path)))
        if data.get("disableAllHooks"):
            return Wrong(f'{name} switches all hooks off ("disableAllHooks")', editor(str(path)))
        lacking = settings.missing(data, folder)
        if file == "settings.json" and lacking:
            detail = f"{name} lacks, or holds for another folder than {folder}/: {', '.join(lacking)}"
            return Wrong(detail, install_command(paths))
    return f"{len(settings.HANDLERS)} handlers for {folder}/**/*.ipynb"


def skills(paths: Paths) -> str | Wrong:
    """The skills are there, ours and of this version."""
    wrong, edited = [], []
    shipped = shipped_skills()
    for name, files in shipped.items():
        present = files_in(Path(paths.project, SKILLS, name))
        owner = whose(present)
        if owner == "edited":
            edited.append(name)
        elif owner != "ours":
            wrong.append(f"{name} is " + ("missing" if owner == "none" else "another skill of that name"))
        elif digest(present) != digest(files):
            wrong.append(f"{name} is of another version")
    if wrong or not shipped:
        return Wrong("; ".join(wrong) or "none came with this installation", install_command(paths))
    return ", ".join(shipped) + (f" (edited here: {', '.join(edited)})" if edited else "")


def personal_skills(paths: Paths) -> str | Wrong:
    """No personal skill has the name of one of ours: Claude Code would take that one."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser(), "skills")
    same = [home / name for name in shipped_skills() if (home / name / "SKILL.md").exists()]
    if not same:
        return "none shadows ours"
    detail = f"{', '.join(map(str, same))}: wins over the project's skill of the same name"
    return Wrong(detail, f"mv {shlex.quote(str(same[0]))} {shlex.quote(f'{same[0]}-personal')}")


def socket_folder(paths: Paths) -> str | Wrong:
    """The socket's folder is the user's alone."""
    for folder in (os.path.dirname(paths.runtime), paths.runtime):
        try:
            about = os.lstat(folder)
        except FileNotFoundError:
            return f"{folder} (made with the first cell)"
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return Wrong(f"{folder} belongs to another user or is no folder", f"rm -r {folder}")
        if about.st_mode & 0o077:
            return Wrong(f"{folder} is open to other users", f"chmod 700 {folder}")
    try:
        return f"{paths.socket} ({'the daemon listens' if listening(paths) else 'no daemon runs'})"
    except OSError as error:
        return Wrong(f"{paths.socket}: {error.strerror or error}", "stepper shutdown")


def versions(paths: Paths) -> str | Wrong:
    """The running daemon is of this version."""
    own = f"stepper {__version__}"
    try:
        noted = json.loads(Path(paths.daemon_json).read_text("utf-8")) if listening(paths) else None
        version = str(noted["version"]) if noted else __version__
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Wrong(f"{own}; {paths.daemon_json} can't be read: {error}", "stepper shutdown")
    if version == __version__:
        return own
    mend = "stepper status  # the daemon makes way for this version; the kernels stay"
    return Wrong(f"{own}, but the daemon is {version}", mend)


def listening(paths: Paths) -> bool:
    """Tell whether a daemon listens on the project's socket; raise OSError."""
    connection = client.connect(paths)
    if connection is None:
        return False
    connection.sock.close()
    return True


def strange(paths: Paths, python: str) -> bool:
    """Whether the interpreter is there, but neither this user's install nor `stepper trust` recorded it."""
    return os.path.lexists(python) and not paths.accepts(python)


def kernel_python(paths: Paths) -> str:
    """Return the kernel's interpreter: the config's, else the one that install chose, else that of .venv."""
    chosen = None
    try:
        from stepper.daemon import config

        chosen = config.load(paths).python
    except (ImportError, UsageError):
        pass
    return paths.python(chosen)


CHECKS = {
    "config": config_file,
    "interpreter": interpreter,
    "ipykernel": ipykernel,
    "hook script": hook_script,
    "hooks": hooks,
    "skills": skills,
    "personal skills": personal_skills,
    "socket": socket_folder,
    "version": versions,
}
