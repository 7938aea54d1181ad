"""The checks of `stepper doctor`, which find problems of an installation.

Importing this module needs only the standard library, because the installer uses it
before any environment exists. The checks run no code of the project, except the
kernel's interpreter if the user accepted it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepper import __version__
from stepper.common import project_walk
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import Paths, get_ipykernel_folder, read_install_record
from stepper.common.text import NAME_CONTROLS
from stepper.hook import daemon_client
from stepper.install import (
    claude_settings,
    mcp_starter,
    permission_mode,
    skill_states,
    user_script,
)
from stepper.install.installed_files import (
    find_assets,
    format_editor_command,
    read_settings,
)
from stepper.install.python_probe import probe, probe_kernel_python
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits

TRUST_COMMAND = "stepper trust"


@dataclass(frozen=True)
class Check:
    """A result of `stepper doctor`, with the command that fixes a problem."""

    name: str
    ok: bool
    detail: str
    mend: str = ""


def run_checks(paths: Paths) -> list[Check]:
    """Return the results for a project, in the order in which to fix problems."""
    results = []
    for name, check in CHECKS.items():
        try:
            results.append(Check(name, True, check(paths)))
        except StepperError as error:
            results.append(Check(name, False, error.message, error.hint))
    return [*results, *_check_kernel_backends(paths)]


def load_limits(paths: Paths) -> Limits:
    """Return the limits of the configuration, or the defaults before installation.

    Raises:
        UsageError: The configuration is invalid.
    """
    try:
        from stepper.daemon import config
    except ImportError:
        # PyYAML is not installed yet.
        return Limits()
    return config.load(paths)


def get_notebook_folder(patterns: Sequence[str]) -> str:
    """Return the folder of new notebooks, "." if no pattern contains a folder."""
    return notebook_globs.choose_new_notebook_folder(patterns) or "."


def format_coverage(project: str, patterns: Sequence[str]) -> str:
    """Return how many notebooks match the patterns and how to include the others.

    The result is "" if the project has no notebooks.
    """
    search = project_walk.find_notebooks(project, [""])
    names = [name for name in search.files if not NAME_CONTROLS.search(name)]
    if not names:
        return ""
    excluded = [name for name in names if not notebook_globs.includes(patterns, name)]
    text = f"{len(names) - len(excluded)} included"
    if excluded:
        examples = ", ".join(excluded[:3])
        if len(excluded) > 3:
            examples += ", …"
        setting = notebook_globs.suggest_setting(patterns, excluded)
        text += (
            f"; {len(excluded)} not included, so their cells do not run ({examples}). "
            f"To include them, set: {setting}"
        )
    if search.truncated:
        text += " (there may be more: not all folders were searched)"
    return text


def list_missing_patterns(project: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns that include all notebooks of the project.

    The list is empty if the configured patterns include them.
    """
    names = [
        name
        for name in project_walk.find_notebooks(project, [""]).files
        if not NAME_CONTROLS.search(name)
    ]
    line = notebook_globs.suggest_setting(
        patterns,
        [name for name in names if not notebook_globs.includes(patterns, name)],
    )
    wanted: list[str] = json.loads(line.removeprefix("notebooks: ")) if line else []
    return wanted


def find_kernel_python(paths: Paths) -> str:
    """Return the path of the kernel's interpreter.

    This is `python:` of the configuration, else the interpreter that the installer
    chose, else that of .venv.
    """
    return paths.find_python(_load_limits_or_defaults(paths).python)


def _load_limits_or_defaults(paths: Paths) -> Limits:
    """Return the configured limits, the defaults if the configuration is invalid.

    `_check_config` reports an invalid configuration.
    """
    try:
        return load_limits(paths)
    except UsageError:
        return Limits()


def is_untrusted_python(paths: Paths, python: str) -> bool:
    """Return whether an interpreter exists that the user has not accepted."""
    return os.path.lexists(python) and not paths.trusts_python(python)


def format_install_command(paths: Paths, broken: str = "", more: str = "") -> str:
    """Return the shell command that installs stepper in this project again.

    If the path `broken` is in the main checkout of this worktree, the command installs
    stepper there. `more` contains further options.
    """
    holders = [
        folder for folder in paths.checkouts if Path(broken).is_relative_to(folder)
    ]
    # A worktree may be inside the main checkout: the longest path is the closest.
    folder = shlex.quote(max(holders, key=len, default=paths.project))
    note = read_install_record(paths.checkouts[-1])
    source = str(note.get("source", ""))
    more += " --plugin" * bool(note.get("plugin"))
    more += " --mcp-only" * bool(note.get("mcp_only"))
    script = Path(source, "install.sh")
    if script.is_absolute() and script.is_file():
        return f"{shlex.quote(str(script))} {folder}{more}"
    # Installed by uvx, pipx or pip: use the same command.
    words = shlex.split(source) if source.endswith(" install") else []
    absolute_paths = [word for word in words if os.path.isabs(word)]
    missing = next((path for path in absolute_paths if not os.path.exists(path)), "")
    if missing:
        # The same tool can install stepper from the package index.
        ways = {"uvx": "uvx notebook-stepper", "pipx": "pipx run notebook-stepper"}
        again = ways.get(words[0], "pip install notebook-stepper && notebook-stepper")
        return f"{again} install {folder}{more}  # {missing} does not exist"
    if words:
        return f"{source} {folder}{more}"
    return (
        f"./install.sh {folder}{more}  # in a checkout of stepper; without one: "
        f"uvx notebook-stepper install {folder}{more}"
    )


def is_daemon_listening(paths: Paths) -> bool:
    """Return whether a daemon listens on the project's socket.

    Raises:
        OSError: The socket can't be used.
        StepperError: The socket's folder is not safe.
    """
    sock = daemon_client.connect(paths)
    if sock:
        sock.close()
    return sock is not None


# --- Checks. Each returns the details of success, or raises StepperError with the
# problem and the command that fixes it.


def _check_config(paths: Paths) -> str:
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
        else "no file: the defaults apply"
    )


def _check_interpreter(paths: Paths) -> str:
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError(
            f"you have not accepted {python}, so stepper does not run it", TRUST_COMMAND
        )
    repair = (
        f"{format_install_command(paths, python).partition('  #')[0]} --python PATH"
    )
    return f"{python} (Python {probe_kernel_python(python, python, repair).version})"


def _check_ipykernel(paths: Paths) -> str:
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError(
            "unknown: you have not accepted the interpreter", TRUST_COMMAND
        )
    try:
        about = probe(python)
    except StepperError:
        raise StepperError(
            "unknown: the interpreter does not run", format_install_command(paths)
        ) from None
    if "ipykernel" not in about.modules:
        locked = Path(paths.project, "uv.lock").exists()
        repair = format_install_command(paths, python)
        if locked:
            repair = "uv add --dev ipykernel"
        if Path(get_ipykernel_folder(paths.active_env, about.version)).is_dir():
            return (
                f"not installed in {python}: kernels use stepper's own copy. "
                f"To install ipykernel, run: {repair}"
            )
        raise StepperError(f"not installed in {python}", repair)
    return "present"


def _check_hook_script(paths: Paths) -> str:
    """Check the hook script and the environment that the script starts."""
    name, script, ours = (
        claude_settings.SCRIPT,
        Path(paths.project, claude_settings.SCRIPT),
        find_assets("hooks") / "stepper",
    )
    env, link = paths.active_env, Paths(paths.environment_checkout).env_link
    if is_plugin_installation(paths):
        name = "from the plugin"
    elif is_mcp_only(paths):
        lender = Paths(paths.environment_checkout)
        started = mcp_starter.check_starter(lender, format_install_command(lender))
        name = f"{NOT_INSTALLED}; clients start {started}"
    elif not script.is_file():
        raise StepperError(f"{name} is missing", format_install_command(paths))
    elif script.read_bytes() != ours.read_bytes():
        raise StepperError(
            f"{name} is from another version than stepper {__version__}, or was edited",
            format_install_command(paths),
        )
    elif not os.access(script, os.X_OK):
        raise StepperError(
            f"{name} is not executable", f"chmod +x {shlex.quote(str(script))}"
        )
    if os.path.lexists(link) and not paths.is_env_recorded():
        raise StepperError(
            f"{link} is not from your installation, so neither its programs nor cells"
            " run",
            TRUST_COMMAND,
        )
    if not Path(env, "packages", "stepper").is_dir():
        raise StepperError(
            f"{paths.relpath(link)} is incomplete",
            format_install_command(paths, link),
        )
    if os.path.realpath(link) != os.path.realpath(env):
        detail = (
            f"{link} is not your environment (git may have created it). "
            f"The hooks use your environment: {env}"
        )
        # The installer refuses a link that it did not create.
        unlink = f"rm {shlex.quote(link)} && " if os.path.islink(link) else ""
        raise StepperError(detail, unlink + format_install_command(paths, link))
    if link != paths.env_link:
        return f"{name} (worktree; uses the environment of the main checkout: {link})"
    return name


def _check_hooks(paths: Paths) -> str:
    """Check that hooks are enabled, and that settings or a plugin contain stepper's."""
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
                f"`disableAllHooks` in {name} disables all hooks",
                format_editor_command(path),
            )
        enabled = enabled or claude_settings.is_plugin_enabled(data)
        lacking = (
            claude_settings.list_missing_handlers(data)
            if file == "settings.json" and not plugin
            else []
        )
        if lacking:
            detail = f"hooks missing or outdated in {name}: {', '.join(lacking)}"
            raise StepperError(detail, format_install_command(paths))
    if plugin and not enabled:
        detail = (
            "stepper was installed as a plugin, but your settings do not enable"
            " the plugin"
        )
        raise StepperError(detail, "claude plugin install stepper@stepper")
    if plugin:
        return "from the plugin"
    return f"{len(claude_settings.HANDLERS)} handlers"


def is_plugin_installation(paths: Paths) -> bool:
    """Return whether the plugin provides the hooks and skills of this installation."""
    return bool(read_install_record(paths.environment_checkout).get("plugin"))


NOT_INSTALLED = "not installed (--mcp-only)"


def is_mcp_only(paths: Paths) -> bool:
    """Return whether stepper was installed with --mcp-only."""
    record = read_install_record(paths.environment_checkout)
    return bool(record.get("mcp_only"))


def _check_notebooks(paths: Paths) -> str:
    patterns = _load_limits_or_defaults(paths).patterns
    return (
        f"{', '.join(patterns)}:"
        f" {format_coverage(paths.project, patterns) or 'none yet'}"
    )


def _check_mode(paths: Paths) -> str:
    """Describe what happens to edits in Claude Code's permission mode. Never fails."""
    if is_mcp_only(paths):
        return "not relevant (--mcp-only): the MCP client decides whether to ask you"
    return permission_mode.describe_mode(
        Path(paths.project), _load_limits_or_defaults(paths)
    )


def _check_skills(paths: Paths) -> str:
    if is_mcp_only(paths):
        return NOT_INSTALLED
    if is_plugin_installation(paths):
        return (
            "from the plugin: /stepper:continue and so on "
            "(/continue is Claude Code's own command)"
        )
    states = skill_states.get_skill_states(Path(paths.project))
    problems = []
    for name, state in states.items():
        if state == "missing":
            problems.append(f"{name} is missing")
        elif state == "outdated":
            problems.append(f"{name} is from another version")
    if not skill_states.load_shipped_skills():
        problems.append("this installation contains no skills")
    if problems:
        raise StepperError("; ".join(problems), format_install_command(paths))
    edited = [name for name, state in states.items() if state == "edited"]
    foreign = [name for name, state in states.items() if state == "foreign"]
    installed = ", ".join(name for name in states if name not in foreign)
    notes = []
    if edited:
        notes.append(f"edited by you: {', '.join(edited)}")
    if foreign:
        names = ", ".join(foreign)
        notes.append(
            f"not installed, because you have skills with these names: {names}"
        )
    if not notes:
        return installed
    return f"{installed} ({'; '.join(notes)})"


def _check_personal_skills(paths: Paths) -> str:
    """Check that no personal skill of the user hides one of stepper's skills."""
    if is_mcp_only(paths):
        return "not relevant (--mcp-only installs no skills)"
    home = permission_mode.get_config_folder() / "skills"
    same = [
        str(home / name)
        for name in skill_states.load_shipped_skills()
        if (home / name / "SKILL.md").exists()
    ]
    if same:
        detail = f"{', '.join(same)} overrides the project's skill of the same name"
        raise StepperError(
            detail, f"mv {shlex.quote(same[0])} {shlex.quote(f'{same[0]}-personal')}"
        )
    return "none overrides a skill of stepper"


def _check_mcp(paths: Paths) -> str:
    """Check the MCP server's package; return the clients that are set up."""
    record = read_install_record(paths.environment_checkout)
    if not record.get("mcp"):
        return "not installed (install.sh --mcp adds it)"
    if importlib.util.find_spec("mcp") is None:
        raise StepperError(
            "the package `mcp` is not installed in stepper's environment",
            format_install_command(paths, more=" --mcp"),
        )
    clients = ", ".join(record.get("clients", {}))
    if not clients:
        return "no client is set up yet (stepper mcp --config CLIENT --install)"
    return f"set up for {clients}"


def _check_socket(paths: Paths) -> str:
    """Check that only the user can access the socket, and whether a daemon listens."""
    for folder in (os.path.dirname(paths.runtime), paths.runtime):
        try:
            about = os.lstat(folder)
        except FileNotFoundError:
            return f"{folder} (created when the first cell runs)"
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise StepperError(
                f"{folder} belongs to another user or is not a folder",
                f"rm -r {folder}",
            )
        if about.st_mode & 0o077:
            raise StepperError(
                f"other users can access {folder}", f"chmod 700 {folder}"
            )
    try:
        is_listening = is_daemon_listening(paths)
        state = "the daemon listens" if is_listening else "no daemon runs"
        return f"{paths.socket} ({state})"
    except OSError as error:
        raise StepperError(
            f"{paths.socket}: {error.strerror or error}", "stepper shutdown"
        ) from None


def _check_command(paths: Paths) -> str:
    """Check the command `stepper` of the user's shell, if it was installed (--link)."""
    state = user_script.get_script_state()
    place = user_script.get_script_path()
    if state == "outdated" or (state == "ours" and not os.access(place, os.X_OK)):
        raise StepperError(
            f"{place} is from another version or not executable",
            format_install_command(paths, more=" --link"),
        )
    descriptions = {
        "missing": "not installed (install.sh --link creates it)",
        "foreign": "another program, not from stepper",
    }
    usual = "runs the stepper of the current project"
    return f"{place}: {descriptions.get(state, usual)}"


def _check_jupyter(paths: Paths) -> str:
    """Check that running Jupyter servers reload the notebooks that stepper writes."""
    try:
        from stepper.messages import attached_clients
        from stepper.notebooks import jupyter_saves
    except ImportError:
        # Not running in stepper's environment.
        return "not checked"
    servers = jupyter_saves.find_servers_without_reload(paths.project)
    if servers:
        package = attached_clients.COLLABORATION_PACKAGE
        repair = (
            f"pip install {package}  "
            "# in the environment of that server; then restart the server"
        )
        raise StepperError(
            attached_clients.format_not_reloaded([server.url for server in servers]),
            repair,
        )
    return "no server has the project open without reloading what stepper writes"


def _check_kernel_backends(paths: Paths) -> list[Check]:
    """Check the configured kernel backends.

    Only backends that the user accepted are contacted.
    """
    limits = _load_limits_or_defaults(paths)
    if not limits.kernels:
        return []
    import asyncio

    from stepper.daemon import backend_commands

    return [
        Check(
            f"kernels.{place.name}",
            place.accepted and place.reachable is not False,
            ": ".join([place.about, place.why or "; ".join(place.offers)]),
            place.mend,
        )
        for place in asyncio.run(
            backend_commands.check_configured(paths, limits, os.environ)
        )
    ]


def _check_version(_: Paths) -> str:
    return f"stepper {__version__}"


# The names are part of the output, also with `--json`.
CHECKS: dict[str, Callable[[Paths], str]] = {
    "config": _check_config,
    "notebooks": _check_notebooks,
    "interpreter": _check_interpreter,
    "ipykernel": _check_ipykernel,
    "hook script": _check_hook_script,
    "hooks": _check_hooks,
    "mode": _check_mode,
    "skills": _check_skills,
    "personal skills": _check_personal_skills,
    "mcp": _check_mcp,
    "socket": _check_socket,
    "command": _check_command,
    "jupyter": _check_jupyter,
    "version": _check_version,
}
