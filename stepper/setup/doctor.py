"""Looks at an installation and changes nothing: what is wrong, and the command that mends it.

Stdlib only when imported: install looks through it before any environment exists. The only code that it runs
is one `-c` of the kernel's interpreter, where this user accepted that.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stepper import __version__
from stepper.ground.errors import UsageError
from stepper.ground.paths import Paths, recorded
from stepper.hook import client
from stepper.setup import settings

PACKAGE = Path(__file__).resolve().parent.parent  # stepper/, in site-packages or in the checkout
# The kernel's helper runs on it (stepper/kernel/helper.py).
OLDEST_KERNEL_PYTHON = (3, 9)
TRUST = "stepper trust"  # shows what it accepts, and records it
PROBE_SECONDS = 30.0
# Also Python 2 can run it: it must live to tell its version. The mark sets it apart from what a site prints.
PROBE_MARK = "stepper-probe"
PROBE = f"""
import sys
try:
    from importlib.util import find_spec
    names = [name for name in ("ipykernel", "pip") if find_spec(name)]
except ImportError:
    names = []
sys.stdout.write("\\n{PROBE_MARK} %d.%d.%d %s\\n" % (tuple(sys.version_info[:3]) + (" ".join(names),)))
"""


@dataclass(frozen=True)
class Check:
    """One line of `stepper doctor`. `mend` is a command for the shell, empty where nothing is to be done."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


class Result(NamedTuple):
    """What a process left: exit code (-1: could not run or did not end), output, errors."""

    code: int
    out: str
    err: str

    def tail(self) -> str:
        """Return the end of what it said, for a message (at most 1,000 characters)."""
        return (self.err.strip() or self.out.strip())[-1000:] or f"exit code {self.code}, no message"


class Interpreter(NamedTuple):
    """What a Python said of itself; `error` tells why it said nothing."""

    version: tuple[int, ...] = ()
    modules: tuple[str, ...] = ()
    error: str = ""

    @property
    def name(self) -> str:
        """Return its version as people write it."""
        return ".".join(map(str, self.version))


def run(*command: str, cwd: str = "/", seconds: float = 600.0) -> Result:
    """Run a command without input, to its end or `seconds`."""
    try:
        done = subprocess.run(
            command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return Result(-1, "", f"no answer within {seconds:.0f} s")
    except (OSError, ValueError) as error:
        return Result(-1, "", getattr(error, "strerror", None) or str(error))
    return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def probe(python: str) -> Interpreter:
    """Ask an interpreter for its version and whether it has ipykernel and pip. It writes no bytecode."""
    told = run(python, "-B", "-c", PROBE, seconds=PROBE_SECONDS)
    found = re.search(rf"^{PROBE_MARK} (\d+)\.(\d+)\.(\d+) ?(.*)$", told.out, re.MULTILINE)
    if not found:
        return Interpreter(error=told.tail())
    *version, modules = found.groups()
    return Interpreter(tuple(map(int, version)), tuple(modules.split()))


def assets(kind: str) -> Path:
    """Return the folder `hooks` or `skills` that came with this package: in the wheel, or in the checkout."""
    packed = PACKAGE / "assets" / kind
    return packed if packed.is_dir() else PACKAGE.parent / kind


def shipped_skills() -> dict[str, dict[str, bytes]]:
    """Return the skills that came with this package, as they are installed: name → file → bytes."""
    folders = sorted(path.parent for path in assets("skills").glob("*/SKILL.md"))
    return {folder.name: settings.stamped(files_in(folder)) for folder in folders}


def files_in(folder: Path) -> dict[str, bytes]:
    """Return the files below `folder` by relative name; hidden ones and bytecode are none of a skill."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and not any(part.startswith((".", "__pycache__")) for part in name.parts):
            found[name.as_posix()] = path.read_bytes()
    return found


def record(paths: Paths) -> dict[str, settings.Json]:
    """Return what this user's install noted of the project; {} without it or where it can't be read."""
    return recorded(paths.project)


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
    script = Path(str(record(Paths(paths.checkouts[-1])).get("source", ""))) / "install.sh"
    if script.is_absolute() and script.is_file():
        return f"{shlex.quote(str(script))} {shlex.quote(folder)}"
    return f"./install.sh {shlex.quote(folder)}  # in a checkout of stepper"


def editor(path: str) -> str:
    """Return the command that opens a file for the person."""
    return f"${{EDITOR:-vi}} {shlex.quote(path)}"


def checks(paths: Paths) -> list[Check]:
    """Return all checks of one project, in the order in which one would mend them."""
    return [check(paths) for check in CHECKS]


def config_file(paths: Paths) -> Check:
    """The configuration can be read."""
    try:
        notebooks_dir(paths)
    except UsageError as error:
        detail = "; ".join(filter(None, (error.message, error.hint)))
        return Check("config", False, detail, editor(paths.config))
    there = Path(paths.config).exists()
    return Check("config", True, paths.relative(paths.config) if there else "none: the defaults hold")


def interpreter(paths: Paths) -> Check:
    """The kernel's interpreter runs and is new enough."""
    python = kernel_python(paths)
    if strange(paths, python):
        return Check("interpreter", False, f"{python} was not accepted by you: nothing of it runs", TRUST)
    about = probe(python)
    mend = f"{install_command(paths, python).partition('  #')[0]} --python PATH"
    if about.error:
        return Check("interpreter", False, f"{python} does not run: {about.error}", mend)
    new_enough = about.version >= OLDEST_KERNEL_PYTHON
    wanted = "" if new_enough else ": the kernel needs 3.9 or newer"
    return Check("interpreter", new_enough, f"{python} (Python {about.name}){wanted}", "" if new_enough else mend)


def ipykernel(paths: Paths) -> Check:
    """The kernel's interpreter has ipykernel."""
    python = kernel_python(paths)
    if strange(paths, python):
        return Check("ipykernel", False, "unknown: the interpreter was not accepted by you", TRUST)
    about = probe(python)
    if about.error:
        return Check("ipykernel", False, "unknown: the interpreter does not run", install_command(paths))
    if "ipykernel" in about.modules:
        return Check("ipykernel", True, "present")
    locked = Path(paths.project, "uv.lock").exists()
    mend = "uv add --dev ipykernel" if locked else install_command(paths, python)
    return Check("ipykernel", False, f"missing in {python}", mend)


def hook_script(paths: Paths) -> Check:
    """The hook script is ours, executable, and finds stepper's environment; the name `.stepper/env` leads there too."""
    script, ours = Path(paths.project, settings.SCRIPT), assets("hooks") / "stepper"
    env, link = paths.used_env, Paths(paths.lender).link
    if not script.is_file():
        wrong = f"{settings.SCRIPT} is missing"
    elif script.read_bytes() != ours.read_bytes():
        wrong = f"{settings.SCRIPT} is not the one of stepper {__version__}"
    elif not os.access(script, os.X_OK):
        return Check(
            "hook script",
            False,
            f"{settings.SCRIPT} is not executable",
            f"chmod +x {shlex.quote(str(script))}",
        )
    elif os.path.lexists(link) and not paths.env_is_ours():
        detail = f"{link} is not of an install of yours: nothing of it runs, and no cell"
        return Check("hook script", False, detail, TRUST)
    elif not Path(env, "packages", "stepper").is_dir():
        return Check("hook script", False, f"{paths.relative(link)} is not complete", install_command(paths, link))
    elif os.path.realpath(link) != os.path.realpath(env):
        detail = f"{link} is not your environment (a pull may have put it there). The hooks run yours: {env}"
        # install refuses a link of a stranger's
        unlink = f"rm {shlex.quote(link)} && " if os.path.islink(link) else ""
        return Check("hook script", False, detail, unlink + install_command(paths, link))
    else:
        lent = "" if link == paths.link else f" (a worktree, with the environment of the main checkout: {link})"
        return Check("hook script", True, settings.SCRIPT + lent)
    return Check("hook script", False, wrong, install_command(paths))


def hooks(paths: Paths) -> Check:
    """The settings hold all our handlers, bound to the notebooks' folder, and do not switch hooks off."""
    name = "hooks"
    try:
        folder = notebooks_dir(paths)
    except UsageError:
        folder = "notebooks"  # what is wrong with the config has its own line
    for file in ("settings.json", "settings.local.json"):
        path = Path(paths.project, ".claude", file)
        try:
            data = settings.parse(path.read_text("utf-8"))
        except FileNotFoundError:
            data = {}
        except (OSError, ValueError) as error:
            return Check(name, False, f".claude/{file} can't be read: {error}", editor(str(path)))
        if wrong := settings.problem(data):
            return Check(name, False, f".claude/{file}: {wrong}", editor(str(path)))
        if data.get("disableAllHooks"):
            detail = f'.claude/{file} switches all hooks off ("disableAllHooks")'
            return Check(name, False, detail, editor(str(path)))
        lacking = settings.missing(data, folder)
        if file == "settings.json" and lacking:
            detail = f".claude/{file} lacks, or holds for another folder than {folder}/: {', '.join(lacking)}"
            return Check(name, False, detail, install_command(paths))
    return Check(name, True, f"{len(settings.HANDLERS)} handlers for {folder}/**/*.ipynb")


def skills(paths: Paths) -> Check:
    """The skills are there, ours and of this version."""
    wrong, edited = [], []
    shipped = shipped_skills()
    for name, files in shipped.items():
        found = files_in(Path(paths.project, ".claude/skills", name))
        whose = settings.whose(found)
        if whose == "edited":
            edited.append(name)
        elif whose != "ours":
            wrong.append(f"{name} is " + ("missing" if whose == "none" else "another skill of that name"))
        elif settings.digest(found) != settings.digest(files):
            wrong.append(f"{name} is of another version")
    if wrong or not shipped:
        return Check("skills", False, "; ".join(wrong) or "none came with this installation", install_command(paths))
    note = f" (edited here: {', '.join(edited)})" if edited else ""
    return Check("skills", True, ", ".join(shipped) + note)


def personal_skills(paths: Paths) -> Check:
    """No personal skill has the name of one of ours: Claude Code would take that one."""
    home = Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path("~/.claude").expanduser(), "skills")
    found = [home / name for name in shipped_skills() if (home / name / "SKILL.md").exists()]
    if not found:
        return Check("personal skills", True, "none shadows ours")
    first = shlex.quote(str(found[0]))
    return Check(
        "personal skills",
        False,
        f"{', '.join(map(str, found))}: wins over the project's skill of the same name",
        f"mv {first} {shlex.quote(f'{found[0]}-personal')}",
    )


def socket_folder(paths: Paths) -> Check:
    """The socket's folder is the user's alone."""
    name = "socket"
    for folder in (os.path.dirname(paths.runtime), paths.runtime):
        try:
            about = os.lstat(folder)
        except FileNotFoundError:
            return Check(name, True, f"{folder} (made with the first cell)")
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            return Check(name, False, f"{folder} belongs to another user or is no folder", f"rm -r {folder}")
        if about.st_mode & 0o077:
            return Check(name, False, f"{folder} is open to other users", f"chmod 700 {folder}")
    try:
        running = listening(paths)
    except OSError as error:
        return Check(name, False, f"{paths.socket}: {error.strerror or error}", "stepper shutdown")
    return Check(name, True, f"{paths.socket} ({'the daemon listens' if running else 'no daemon runs'})")


def versions(paths: Paths) -> Check:
    """The running daemon is of this version."""
    name, own = "version", f"stepper {__version__}"
    try:
        told = json.loads(Path(paths.daemon_json).read_text("utf-8")) if listening(paths) else None
        version = str(told["version"]) if told else __version__
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Check(name, False, f"{own}; {paths.daemon_json} can't be read: {error}", "stepper shutdown")
    if version != __version__:
        mend = "stepper status  # the daemon makes way for this version; the kernels stay"
        return Check(name, False, f"{own}, but the daemon is {version}", mend)
    return Check(name, True, own)


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


CHECKS = (
    config_file,
    interpreter,
    ipykernel,
    hook_script,
    hooks,
    skills,
    personal_skills,
    socket_folder,
    versions,
)
