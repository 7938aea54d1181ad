"""Looks at an installation and changes nothing: what is wrong, and the command that mends it.

Stdlib only when imported: install looks through it before any environment exists. The only code that it runs
is one `-c` of the kernel's interpreter, where this user accepted that. (A few lines over 300: a list of checks.)
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepper import __version__
from stepper.common import project_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, ipykernel_folder, read_install_record
from stepper.common.text import NAME_CONTROLS
from stepper.hook import client
from stepper.install import (
    claude_settings,
    mcp_starter,
    permission_mode,
    skills,
    user_script,
)
from stepper.install.file_edits import find_assets, format_editor_command, read_settings
from stepper.install.interpreter import probe, probe_kernel_python
from stepper.policy import notebook_globs
from stepper.policy.model import Limits

TRUST = "stepper trust"  # shows what it accepts, and records it


@dataclass(frozen=True)
class Check:
    """One line of `stepper doctor`. `mend` is a command for the shell, empty where nothing is to be done."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def run_checks(paths: Paths) -> list[Check]:
    """Return all checks of one project, in the order in which one would mend them."""
    done = []
    for check in CHECKS:
        name = check.__name__.strip("_").replace("_", " ")
        try:
            done.append(Check(name, True, check(paths)))
        except StepperError as wrong:
            done.append(Check(name, False, wrong.message, wrong.hint))
    return [*done, *_check_kernel_backends(paths)]


def load_limits(paths: Paths) -> Limits:
    """Return what the config says; the defaults where install runs before any environment exists; raise UsageError."""
    try:
        from stepper.daemon import config
    except ImportError:  # without pyyaml
        return Limits()
    return config.load(paths)


def get_notebook_folder(patterns: Sequence[str]) -> str:
    """Return the folder of new notebooks, the project's own where none is covered."""
    return notebook_globs.new_notebook_folder(patterns) or "."


def format_coverage(project: str, patterns: Sequence[str]) -> str:
    """Return how many notebooks there are and how many no pattern covers, with the line that would; '' for none."""
    found = project_files.find_notebooks(project, [""])
    names = [name for name in found.files if not NAME_CONTROLS.search(name)]
    rest = [name for name in names if not notebook_globs.includes(patterns, name)]
    if not names:
        return ""
    few = ", ".join(rest[:3]) + (", …" if len(rest) > 3 else "")
    told = (
        f"; {len(rest)} not, whose cells never run ({few}): {notebook_globs.suggest_setting(patterns, rest)}"
        if rest
        else ""
    )
    return f"{len(names) - len(rest)} covered{told}" + (
        " (there may be more: not all folders were looked at)" * found.truncated
    )


def list_missing_patterns(project: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns with which all notebooks of the project are covered; empty where they are already."""
    names = [
        name
        for name in project_files.find_notebooks(project, [""]).files
        if not NAME_CONTROLS.search(name)
    ]
    line = notebook_globs.suggest_setting(
        patterns,
        [name for name in names if not notebook_globs.includes(patterns, name)],
    )
    wanted: list[str] = json.loads(line.removeprefix("notebooks: ")) if line else []
    return wanted


def find_kernel_python(paths: Paths) -> str:
    """Return the kernel's interpreter: the config's, else the one that install chose, else that of .venv."""
    return paths.find_python(_load_limits_or_defaults(paths).python)


def _load_limits_or_defaults(paths: Paths) -> Limits:
    """Return what the config says, the defaults where it is wrong: that has a line of its own."""
    try:
        return load_limits(paths)
    except UsageError:
        return Limits()


def is_untrusted_python(paths: Paths, python: str) -> bool:
    """Whether the interpreter is there, but neither this user's install nor `stepper trust` recorded it."""
    return os.path.lexists(python) and not paths.trusts_python(python)


def format_install_command(paths: Paths, broken: str = "", more: str = "") -> str:
    """Return the command that sets this project up (again), or the main checkout that lends it what is `broken`."""
    holders = [
        folder for folder in paths.checkouts if Path(broken).is_relative_to(folder)
    ]
    # the longest: a worktree may lie in the main checkout
    folder = shlex.quote(max(holders, key=len, default=paths.project))
    note = read_install_record(paths.checkouts[-1])
    source = str(note.get("source", ""))
    more += " --plugin" * bool(note.get("plugin"))
    more += " --mcp-only" * bool(note.get("mcp_only"))
    script = Path(source, "install.sh")
    if script.is_absolute() and script.is_file():
        return f"{shlex.quote(str(script))} {folder}{more}"
    # by uvx, pipx or pip: that command
    words = shlex.split(source) if source.endswith(" install") else []
    gone = next(
        (word for word in words if os.path.isabs(word) and not os.path.exists(word)), ""
    )
    if gone:  # the same way, from the index
        ways = {"uvx": "uvx notebook-stepper", "pipx": "pipx run notebook-stepper"}
        again = ways.get(words[0], "pip install notebook-stepper && notebook-stepper")
        return f"{again} install {folder}{more}  # {gone} is gone"
    if words:
        return f"{source} {folder}{more}"
    return f"./install.sh {folder}{more}  # in a checkout of stepper, else: uvx notebook-stepper install {folder}{more}"


def is_daemon_listening(paths: Paths) -> bool:
    """Tell whether a daemon listens on the project's socket; raise OSError, StepperError."""
    sock = client.connect(paths)
    if sock:
        sock.close()
    return sock is not None


# --- the checks: each returns what is well, or raises StepperError with what is wrong
# and the command that mends it


def _config(paths: Paths) -> str:
    try:
        load_limits(paths)
    except UsageError as error:
        raise StepperError(
            "; ".join(filter(None, (error.message, error.hint))),
            format_editor_command(paths.config),
        ) from None
    return (
        paths.relpath(paths.config)
        if Path(paths.config).exists()
        else "none: the defaults hold"
    )


def _interpreter(paths: Paths) -> str:
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError(
            f"{python} was not accepted by you: nothing of it runs", TRUST
        )
    mend = f"{format_install_command(paths, python).partition('  #')[0]} --python PATH"
    return f"{python} (Python {probe_kernel_python(python, python, mend).version})"


def _ipykernel(paths: Paths) -> str:
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError("unknown: the interpreter was not accepted by you", TRUST)
    try:
        about = probe(python)
    except StepperError:
        raise StepperError(
            "unknown: the interpreter does not run", format_install_command(paths)
        ) from None
    if "ipykernel" not in about.modules:
        locked = Path(paths.project, "uv.lock").exists()
        mend = (
            "uv add --dev ipykernel"
            if locked
            else format_install_command(paths, python)
        )
        if Path(ipykernel_folder(paths.active_env, about.version)).is_dir():
            return f"missing in {python}: kernels start with stepper's own copy. What adds it: {mend}"
        raise StepperError(f"missing in {python}", mend)
    return "present"


def _hook_script(paths: Paths) -> str:
    """The script is ours, executable, and finds stepper's environment; the name `.stepper/env` leads there too."""
    name, script, ours = (
        claude_settings.SCRIPT,
        Path(paths.project, claude_settings.SCRIPT),
        find_assets("hooks") / "stepper",
    )
    env, link = paths.active_env, Paths(paths.environment_checkout).env_link
    if is_plugin_installation(paths):
        name = "the plugin's"
    elif is_mcp_only(paths):
        lender = Paths(paths.environment_checkout)
        started = mcp_starter.check_starter(lender, format_install_command(lender))
        name = f"{NOT_INSTALLED}; clients start {started}"
    elif not script.is_file():
        raise StepperError(f"{name} is missing", format_install_command(paths))
    elif script.read_bytes() != ours.read_bytes():
        raise StepperError(
            f"{name} is not the one of stepper {__version__}",
            format_install_command(paths),
        )
    elif not os.access(script, os.X_OK):
        raise StepperError(
            f"{name} is not executable", f"chmod +x {shlex.quote(str(script))}"
        )
    if os.path.lexists(link) and not paths.env_is_recorded():
        raise StepperError(
            f"{link} is not of an install of yours: nothing of it runs, and no cell",
            TRUST,
        )
    if not Path(env, "packages", "stepper").is_dir():
        raise StepperError(
            f"{paths.relpath(link)} is not complete",
            format_install_command(paths, link),
        )
    if os.path.realpath(link) != os.path.realpath(env):
        detail = f"{link} is not your environment (a pull may have put it there). The hooks run yours: {env}"
        # install refuses a link of a stranger's
        unlink = f"rm {shlex.quote(link)} && " if os.path.islink(link) else ""
        raise StepperError(detail, unlink + format_install_command(paths, link))
    lent = (
        ""
        if link == paths.env_link
        else f" (a worktree, with the environment of the main checkout: {link})"
    )
    return name + lent


def _hooks(paths: Paths) -> str:
    """The settings hold all our handlers, or the plugin does and is enabled, and hooks are not switched off."""
    if is_mcp_only(paths):
        return f"{NOT_INSTALLED}: cells run only through MCP"
    plugin, enabled = is_plugin_installation(paths), False
    if plugin:
        _, data = read_settings(permission_mode.get_config_folder() / "settings.json")
        enabled = claude_settings.is_plugin_enabled(data)
    for file in ("settings.json", "settings.local.json"):
        name, path = f".claude/{file}", Path(paths.project, ".claude", file)
        _, data = read_settings(path)
        if data.get("disableAllHooks"):
            raise StepperError(
                f'{name} switches all hooks off ("disableAllHooks")',
                format_editor_command(path),
            )
        enabled = enabled or claude_settings.is_plugin_enabled(data)
        lacking = (
            claude_settings.list_missing_handlers(data)
            if file == "settings.json" and not plugin
            else []
        )
        if lacking:
            detail = f"{name} lacks, or holds as an older version made them: {', '.join(lacking)}"
            raise StepperError(detail, format_install_command(paths))
    if plugin and not enabled:
        detail = (
            "hooks and skills are to be the plugin's, which no settings of yours enable"
        )
        raise StepperError(detail, "claude plugin install stepper@stepper")
    return "the plugin's" if plugin else f"{len(claude_settings.HANDLERS)} handlers"


def is_plugin_installation(paths: Paths) -> bool:
    """Whether hooks and skills are the plugin's: the last install was told so, and found none of ours."""
    return bool(read_install_record(paths.environment_checkout).get("plugin"))


NOT_INSTALLED = "not installed (--mcp-only)"


def is_mcp_only(paths: Paths) -> bool:
    """Whether the last install set up MCP alone: nothing of ours is expected in .claude/."""
    record = read_install_record(paths.environment_checkout)
    return bool(record.get("mcp_only"))


def _notebooks(paths: Paths) -> str:
    patterns = _load_limits_or_defaults(paths).patterns
    return f"{', '.join(patterns)}: {format_coverage(paths.project, patterns) or 'none yet'}"


def _mode(paths: Paths) -> str:
    """What becomes of an edit in the client's permission mode: nothing of it is wrong."""
    if is_mcp_only(paths):
        return "Claude Code's does not matter here (--mcp-only): the MCP client asks you, or does not"
    return permission_mode.describe_mode(
        Path(paths.project), _load_limits_or_defaults(paths)
    )


def _skills(paths: Paths) -> str:
    if is_mcp_only(paths):
        return NOT_INSTALLED
    if is_plugin_installation(paths):
        return "the plugin's: /stepper:continue and so on (a bare /continue is the client's own)"
    words = {"missing": "missing", "outdated": "of another version"}
    found = skills.get_skill_states(Path(paths.project))
    wrong = [
        f"{name} is {words[word]}" for name, word in found.items() if word in words
    ]
    if wrong or not skills.load_shipped_skills():
        raise StepperError(
            "; ".join(wrong) or "none came with this installation",
            format_install_command(paths),
        )
    edited = [name for name, word in found.items() if word == "edited"]
    foreign = [name for name, word in found.items() if word == "foreign"]
    ours = ", ".join(name for name in found if name not in foreign)
    notes = [f"edited here: {', '.join(edited)}"] if edited else []
    notes += (
        [f"left out, because you have skills with these names: {', '.join(foreign)}"]
        if foreign
        else []
    )
    return ours + (f" ({'; '.join(notes)})" if notes else "")


def _personal_skills(paths: Paths) -> str:
    """No personal skill has the name of one of ours: Claude Code would take that one."""
    if is_mcp_only(paths):
        return "none of ours that they could shadow (--mcp-only)"
    home = permission_mode.get_config_folder() / "skills"
    same = [
        str(home / name)
        for name in skills.load_shipped_skills()
        if (home / name / "SKILL.md").exists()
    ]
    if same:
        detail = f"{', '.join(same)}: wins over the project's skill of the same name"
        raise StepperError(
            detail, f"mv {shlex.quote(same[0])} {shlex.quote(f'{same[0]}-personal')}"
        )
    return "none shadows ours"


def _mcp(paths: Paths) -> str:
    """The package that the MCP server needs is there, where an install was asked for it; which clients start it."""
    record = read_install_record(paths.environment_checkout)
    if not record.get("mcp"):
        return "not asked for (install.sh --mcp adds it)"
    if importlib.util.find_spec("mcp") is None:
        raise StepperError(
            "the package mcp is missing from stepper's environment",
            format_install_command(paths, more=" --mcp"),
        )
    clients = ", ".join(record.get("clients", {}))
    if not clients:
        return "no client is set up yet (stepper mcp --config CLIENT --install)"
    return f"set up for {clients}"


def _socket(paths: Paths) -> str:
    """The socket's folder is the user's alone, and who listens there answers."""
    for folder in (os.path.dirname(paths.runtime), paths.runtime):
        try:
            about = os.lstat(folder)
        except FileNotFoundError:
            return f"{folder} (made with the first cell)"
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise StepperError(
                f"{folder} belongs to another user or is no folder", f"rm -r {folder}"
            )
        if about.st_mode & 0o077:
            raise StepperError(
                f"{folder} is open to other users", f"chmod 700 {folder}"
            )
    try:
        return f"{paths.socket} ({'the daemon listens' if is_daemon_listening(paths) else 'no daemon runs'})"
    except OSError as error:
        raise StepperError(
            f"{paths.socket}: {error.strerror or error}", "stepper shutdown"
        ) from None


def _command(paths: Paths) -> str:
    """`stepper` in the person's own shell, where install was asked for it."""
    told, place = user_script.get_script_state(), user_script.get_script_path()
    if told == "outdated" or (told == "ours" and not os.access(place, os.X_OK)):
        raise StepperError(
            f"{place} is of another version, or not executable",
            format_install_command(paths, more=" --link"),
        )
    known = {
        "missing": "not asked for (install.sh --link makes it)",
        "foreign": "another program",
    }
    return f"{place}: {known.get(told, 'calls the stepper of the project it is called in')}"


def _jupyter(paths: Paths) -> str:
    """No Jupyter server shows the project without reloading what stepper writes."""
    try:
        from stepper.messages import attached_clients
        from stepper.notebooks import jupyter_saves
    except ImportError:  # in no environment of stepper's
        return "not looked at"
    found = jupyter_saves.find_servers_without_reload(paths.project)
    if found:
        mend = f"pip install {attached_clients.COLLABORATION_PACKAGE}  # in the environment of that server; then start it again"
        raise StepperError(
            attached_clients.format_not_reloaded([server.url for server in found]), mend
        )
    return "no server shows the project without reloading what stepper writes"


def _check_kernel_backends(paths: Paths) -> list[Check]:
    """Each place that the configuration names; one that was accepted is looked at, no other is asked anything."""
    found = _load_limits_or_defaults(paths)
    if not found.kernels:
        return []
    import asyncio

    from stepper.daemon import kernel_backends

    return [
        Check(
            f"kernels.{place.name}",
            place.accepted and place.reachable is not False,
            ": ".join([place.about, place.why or "; ".join(place.offers)]),
            place.mend,
        )
        for place in asyncio.run(
            kernel_backends.check_configured(paths, found, os.environ)
        )
    ]


def _version(_: Paths) -> str:
    return f"stepper {__version__}"


CHECKS = (
    *(_config, _notebooks, _interpreter, _ipykernel, _hook_script),
    *(_hooks, _mode, _skills, _personal_skills, _mcp, _socket, _command, _jupyter),
    _version,
)
