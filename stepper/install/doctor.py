"""The checks of `stepper doctor`, which find problems with an installation.

Importing this module needs only the standard library, because the installer uses it
before any environment exists. The checks run no code of the project, except the
kernel's interpreter if the user accepted it.
"""

from __future__ import annotations

import importlib.util
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
from stepper.common.text import NAME_CONTROLS, one_line, shell_quote
from stepper.hook import daemon_client
from stepper.install import (
    claude_settings,
    mcp_starter,
    permission_mode_check,
    skill_states,
    user_script,
)
from stepper.install.install_file_io import (
    find_assets,
    format_editor_command,
    read_settings,
)
from stepper.install.python_probe import probe, probe_kernel_python
from stepper.notebooks import leftover_slim_copies
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits

TRUST_COMMAND = "stepper trust"
NOT_INSTALLED = "not installed (--mcp-only)"
# Claude Code's settings of a project: those in the repository, and those of the user.
SHARED_SETTINGS = ".claude/settings.json"
LOCAL_SETTINGS = ".claude/settings.local.json"
MAX_EXAMPLES = 3  # the number of excluded notebooks to name
READ_SECONDS = 10  # a read of a large notebook takes less time
# The commands that install stepper from the package index, by tool.
INDEX_COMMANDS = {
    "uvx": "uvx notebook-stepper",
    "pipx": "pipx run notebook-stepper",
}
PIP_COMMAND = "pip install notebook-stepper && notebook-stepper"


@dataclass(frozen=True)
class Check:
    """The result of a check, with a command that fixes the problem, if any.

    `detail` describes the success or the problem.
    """

    name: str
    ok: bool
    detail: str
    mend: str = ""


def run_checks(paths: Paths) -> list[Check]:
    """Run all checks on a project; return the results in the order of the checks.

    If a file can't be read, the check fails.
    """
    results = []
    for name, check in CHECKS.items():
        try:
            result = Check(name, ok=True, detail=check(paths))
        except StepperError as error:
            result = Check(name, ok=False, detail=error.message, mend=error.hint)
        except OSError as error:
            result = Check(name, ok=False, detail=str(error))
        results.append(result)
    return [*results, *_check_kernel_backends(paths)]


def load_limits(paths: Paths) -> Limits:
    """Return the configured limits, or the defaults if PyYAML is not installed yet.

    Raises:
        UsageError: The configuration is invalid.
    """
    try:
        from stepper.daemon import config
    except ImportError:
        return Limits()
    return config.load(paths)


def get_notebook_folder(patterns: Sequence[str]) -> str:
    """Return the folder of new notebooks, or "." if no pattern contains a folder."""
    return notebook_globs.choose_new_notebook_folder(patterns) or "."


def format_coverage(project: str, patterns: Sequence[str]) -> str:
    """Return a text on the notebooks that the patterns include and exclude.

    Return an empty string if the project has no notebooks.
    """
    search = project_walk.find_notebooks(project, [""])
    names = [name for name in search.files if not NAME_CONTROLS.search(name)]
    if not names:
        return ""
    excluded = [name for name in names if not notebook_globs.includes(patterns, name)]
    included_count = len(names) - len(excluded)
    text = f"{included_count} included"
    if excluded:
        examples = ", ".join(excluded[:MAX_EXAMPLES])
        if len(excluded) > MAX_EXAMPLES:
            examples += ", …"
        setting = notebook_globs.suggest_setting(patterns, excluded)
        text += (
            f"; {len(excluded)} not included ({examples}). Cells of notebooks that are"
            f" not included do not run. To include all notebooks, set: {setting}"
        )
    if search.truncated:
        text += " (there may be more: not all folders were searched)"
    return text


def suggest_patterns(project: str, patterns: Sequence[str]) -> list[str]:
    """Return patterns that include all notebooks of the project.

    The list is empty if `patterns` already include all notebooks, or if no pattern can
    include the other notebooks.
    """
    excluded = []
    for name in project_walk.find_notebooks(project, [""]).files:
        has_controls = NAME_CONTROLS.search(name) is not None
        if not has_controls and not notebook_globs.includes(patterns, name):
            excluded.append(name)
    return notebook_globs.suggest_patterns(patterns, excluded)


def find_kernel_python(paths: Paths) -> str:
    """Return the path of the kernel's interpreter.

    The order of precedence is: `python:` in the configuration, the interpreter that
    the installer chose, the interpreter of .venv.
    """
    return paths.find_python(_load_limits_or_defaults(paths).python)


def _load_limits_or_defaults(paths: Paths) -> Limits:
    """Return the configured limits, or the defaults if the configuration is invalid.

    `_check_config` reports an invalid configuration.
    """
    try:
        return load_limits(paths)
    except UsageError:
        return Limits()


def is_untrusted_python(paths: Paths, python: str) -> bool:
    """Return whether an interpreter exists and was not accepted by the user."""
    return os.path.lexists(python) and not paths.trusts_python(python)


def format_install_command(paths: Paths, broken: str = "", options: str = "") -> str:
    """Return the shell command that installs stepper in this project again.

    `broken` is the path with the problem: if it is in the main checkout of this
    worktree, the command installs stepper in the main checkout. `options` are further
    options of the command, after a space. The command may end with a shell comment.
    """
    candidates = [
        folder for folder in paths.checkouts if Path(broken).is_relative_to(folder)
    ]
    # A worktree may be inside the main checkout: the longest path is the closest.
    folder = shlex.quote(max(candidates, key=len, default=paths.project))
    record = read_install_record(paths.checkouts[-1])
    source = str(record.get("source", ""))
    if record.get("plugin"):
        options += " --plugin"
    if record.get("mcp_only"):
        options += " --mcp-only"
    script = Path(source, "install.sh")
    if script.is_absolute() and script.is_file():
        return f"{shlex.quote(str(script))} {folder}{options}"
    if not source.endswith(" install"):
        return (
            f"./install.sh {folder}{options}  # in a checkout of stepper; without one: "
            f"uvx notebook-stepper install {folder}{options}"
        )
    # `source` is the command of uvx, pipx or pip that installed stepper.
    words = shlex.split(source)
    for word in words:
        if os.path.isabs(word) and not os.path.exists(word):
            # The same tool can install stepper from the package index.
            command = INDEX_COMMANDS.get(words[0], PIP_COMMAND)
            return f"{command} install {folder}{options}  # {word} does not exist"
    return f"{source} {folder}{options}"


def is_daemon_listening(paths: Paths) -> bool:
    """Return whether a daemon listens on the project's socket.

    Raises:
        OSError: The socket can't be used.
        StepperError: Other users could access the socket's folder.
    """
    sock = daemon_client.connect(paths)
    if sock:
        sock.close()
    return sock is not None


# --- Checks. Each returns the details of success, or raises StepperError with the
# problem and the command that fixes it.


def _check_config(paths: Paths) -> str:
    """Return the path of the configuration file, or a text if there is none.

    Raise StepperError if the configuration is invalid.
    """
    try:
        load_limits(paths)
    except UsageError as error:
        problem = "; ".join(filter(None, (error.message, error.hint)))
        raise StepperError(problem, format_editor_command(paths.config)) from None
    if Path(paths.config).exists():
        return paths.relpath(paths.config)
    return "no configuration file: the defaults apply"


def _check_interpreter(paths: Paths) -> str:
    """Return the path and version of the kernel's interpreter.

    Raise StepperError if the user has not accepted the interpreter, or if it does not
    run or is too old.
    """
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError(
            f"you have not accepted {python}: stepper does not run this interpreter",
            TRUST_COMMAND,
        )
    repair = format_install_command(paths, python, " --python PATH")
    version = probe_kernel_python(python, python, repair).version
    return f"{python} (Python {version})"


def _check_ipykernel(paths: Paths) -> str:
    """Return a text on the ipykernel that kernels use: the project's or stepper's own.

    Raise StepperError if there is neither, or if the interpreter can't be checked.
    """
    python = find_kernel_python(paths)
    if is_untrusted_python(paths, python):
        raise StepperError(
            "not checked: you have not accepted the interpreter", TRUST_COMMAND
        )
    try:
        interpreter = probe(python)
    except StepperError:
        raise StepperError(
            "not checked: the interpreter does not run", format_install_command(paths)
        ) from None
    if "ipykernel" in interpreter.modules:
        return "installed"
    repair = format_install_command(paths, python)
    if Path(paths.project, "uv.lock").exists():
        repair = "uv add --dev ipykernel"
    copy_folder = get_ipykernel_folder(paths.active_env, interpreter.version)
    if Path(copy_folder).is_dir():
        return (
            f"not installed in the environment of {python}: kernels use stepper's own"
            f" copy. To install ipykernel, run: {repair}"
        )
    raise StepperError(f"not installed in the environment of {python}", repair)


def _check_hook_script(paths: Paths) -> str:
    """Return a description of the hook script.

    Raise StepperError if the script, or the environment that it uses, is missing,
    outdated or not accepted.
    """
    description = _check_script_file(paths)
    env = paths.active_env
    # This link should lead to the environment in the user's state folder.
    link = Paths(paths.environment_checkout).env_link
    if not os.path.lexists(link):
        raise StepperError(
            f"{paths.relpath(link)} is missing",
            format_install_command(paths, link),
        )
    if not paths.is_env_recorded():
        raise StepperError(
            f"{link} is not from your installation: stepper runs neither cells nor the"
            " programs in this environment",
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
        repair = format_install_command(paths, link)
        if os.path.islink(link):
            # The installer refuses a link that it did not create.
            repair = f"rm {shlex.quote(link)} && {repair}"
        raise StepperError(detail, repair)
    if link != paths.env_link:
        origin = f"worktree; uses the environment of the main checkout: {link}"
        return f"{description} ({origin})"
    return description


def _check_script_file(paths: Paths) -> str:
    """Return a description of the hook script's file.

    In an MCP-only installation, this is the script that the clients start. Raise
    StepperError if the file is missing, not executable or from another version.
    """
    if is_plugin_installation(paths):
        return "from the plugin"
    if is_mcp_only(paths):
        owner = Paths(paths.environment_checkout)
        starter = mcp_starter.check_starter(owner, format_install_command(owner))
        return f"{NOT_INSTALLED}; clients start {starter}"
    name = claude_settings.SCRIPT
    script = Path(paths.project, name)
    shipped = find_assets("hooks") / "stepper"
    if not script.is_file():
        raise StepperError(f"{name} is missing", format_install_command(paths))
    if script.read_bytes() != shipped.read_bytes():
        raise StepperError(
            f"{name} is from a version other than stepper {__version__}, or was edited",
            format_install_command(paths),
        )
    if not os.access(script, os.X_OK):
        raise StepperError(
            f"{name} is not executable", f"chmod +x {shlex.quote(str(script))}"
        )
    return name


def _check_hooks(paths: Paths) -> str:
    """Return a text on stepper's hooks, which the project or the plugin provides.

    Raise StepperError if hooks are disabled, or if stepper's hooks are missing or
    outdated.
    """
    if is_mcp_only(paths):
        return f"{NOT_INSTALLED}: cells run only through MCP"
    uses_plugin = is_plugin_installation(paths)
    is_plugin_enabled = uses_plugin and _is_plugin_enabled_for_user()
    for name in (SHARED_SETTINGS, LOCAL_SETTINGS):
        path = Path(paths.project, name)
        _, settings = read_settings(path)
        if settings.get("disableAllHooks"):
            raise StepperError(
                f"`disableAllHooks` in {name} disables all hooks",
                format_editor_command(path),
            )
        if claude_settings.is_plugin_enabled(settings):
            is_plugin_enabled = True
        if name == SHARED_SETTINGS and not uses_plugin:
            _check_handlers(paths, settings)
    if not uses_plugin:
        return f"{len(claude_settings.HANDLERS)} handlers"
    if not is_plugin_enabled:
        detail = (
            "stepper was installed as a plugin, but your settings do not enable"
            " the plugin"
        )
        raise StepperError(detail, "claude plugin install stepper@stepper")
    return "from the plugin"


def _is_plugin_enabled_for_user() -> bool:
    """Return whether the user's settings enable the plugin for all projects."""
    path = permission_mode_check.get_config_folder() / "settings.json"
    _, settings = read_settings(path)
    return claude_settings.is_plugin_enabled(settings)


def _check_handlers(paths: Paths, settings: claude_settings.Data) -> None:
    """Raise StepperError if the project's settings lack a handler of stepper."""
    missing_handlers = claude_settings.list_missing_handlers(settings)
    if missing_handlers:
        names = ", ".join(missing_handlers)
        raise StepperError(
            f"hooks missing or outdated in {SHARED_SETTINGS}: {names}",
            format_install_command(paths),
        )


def is_plugin_installation(paths: Paths) -> bool:
    """Return whether the plugin provides the hooks and skills of this installation."""
    return bool(read_install_record(paths.environment_checkout).get("plugin"))


def is_mcp_only(paths: Paths) -> bool:
    """Return whether stepper was installed with --mcp-only."""
    record = read_install_record(paths.environment_checkout)
    return bool(record.get("mcp_only"))


def _check_notebooks(paths: Paths) -> str:
    """Return a text on the notebooks that the patterns include.

    Raise StepperError if stepper has not put a notebook back in its place.
    """
    replaced = leftover_slim_copies.list_notebooks(paths, READ_SECONDS)
    if replaced:
        names = ", ".join(one_line(name) for name in replaced[:MAX_EXAMPLES])
        raise StepperError(
            f"stepper did not put back {names} after a read by Claude Code. A copy"
            " without outputs may be in the notebook's place. The notebook itself is in"
            " .stepper/reads",
            f"stepper show {shell_quote(replaced[0])}",
        )
    patterns = _load_limits_or_defaults(paths).patterns
    coverage = format_coverage(paths.project, patterns) or "no notebooks yet"
    return f"{', '.join(patterns)}: {coverage}"


def _check_mode(paths: Paths) -> str:
    """Return a description of Claude Code's permission mode. This check never fails."""
    if is_mcp_only(paths):
        return "not relevant (--mcp-only): the MCP client decides whether to ask you"
    return permission_mode_check.describe_mode(
        Path(paths.project), _load_limits_or_defaults(paths)
    )


def _check_skills(paths: Paths) -> str:
    """Return a text on the installed skills.

    Raise StepperError if a skill is missing or from another version of stepper.
    """
    if is_mcp_only(paths):
        return NOT_INSTALLED
    if is_plugin_installation(paths):
        return (
            "from the plugin; the names have its prefix: /stepper:continue"
            " (without it, /continue is Claude Code's own command)"
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
    """Return a text on the user's personal skills.

    Raise StepperError if one of them overrides a skill of stepper.
    """
    if is_mcp_only(paths):
        return "not relevant (--mcp-only installs no skills)"
    folder = permission_mode_check.get_config_folder() / "skills"
    overriding = [
        str(folder / name)
        for name in skill_states.load_shipped_skills()
        if (folder / name / "SKILL.md").exists()
    ]
    if overriding:
        verb = "overrides" if len(overriding) == 1 else "override"
        detail = f"{', '.join(overriding)} {verb} the project's skill of the same name"
        old_path = shlex.quote(overriding[0])
        new_path = shlex.quote(f"{overriding[0]}-personal")
        raise StepperError(detail, f"mv {old_path} {new_path}")
    return "no personal skill overrides a stepper skill"


def _check_mcp(paths: Paths) -> str:
    """Return a text on the configured MCP clients.

    Raise StepperError if MCP support was installed, but the package `mcp` is missing.
    """
    record = read_install_record(paths.environment_checkout)
    if not record.get("mcp"):
        command = format_install_command(paths, options=" --mcp")
        return f"not installed (to install MCP support, run: {command})"
    if importlib.util.find_spec("mcp") is None:
        raise StepperError(
            "the package `mcp` is not installed in stepper's environment",
            format_install_command(paths, options=" --mcp"),
        )
    clients = ", ".join(record.get("clients", {}))
    if not clients:
        return (
            "no client is set up yet (to set one up, run: stepper mcp --config CLIENT"
            " --install)"
        )
    return f"set up for {clients}"


def _check_socket(paths: Paths) -> str:
    """Return the path of the socket and the state of the daemon.

    If a folder of the socket does not exist yet, return a text that says so. Raise
    StepperError if other users could access the socket, or if it can't be used.
    """
    for folder in (os.path.dirname(paths.runtime), paths.runtime):
        try:
            status = os.lstat(folder)
        except FileNotFoundError:
            return f"{folder} (will be created when the first cell runs)"
        if not stat.S_ISDIR(status.st_mode):
            raise StepperError(f"{folder} is not a folder", f"rm {shlex.quote(folder)}")
        if status.st_uid != os.getuid():
            raise StepperError(
                f"{folder} belongs to another user",
                "To fix this, ask the owner of the folder to remove it. To see the"
                f" owner, run: ls -ld {shlex.quote(folder)}",
            )
        if status.st_mode & 0o077:
            raise StepperError(
                f"other users can access {folder}", f"chmod 700 {shlex.quote(folder)}"
            )
    try:
        is_listening = is_daemon_listening(paths)
    except OSError as error:
        raise StepperError(
            f"{paths.socket}: {error.strerror or error}", "stepper shutdown"
        ) from None
    state = "the daemon is running" if is_listening else "no daemon is running"
    return f"{paths.socket} ({state})"


def _check_command(paths: Paths) -> str:
    """Return a text on the command `stepper` of the user's shell (`--link`).

    Raise StepperError if stepper's script is from another version or not executable.
    """
    state = user_script.get_script_state()
    path = user_script.get_script_path()
    command = format_install_command(paths, options=" --link")
    if state == "missing":
        return f"{path} is not installed (to install it, run: {command})"
    if state == "foreign":
        return f"{path} belongs to another program"
    if state == "outdated":
        problem = "from another version"
    elif not os.access(path, os.X_OK):
        problem = "not executable"
    else:
        return f"{path} runs the stepper of the current project"
    raise StepperError(f"{path} is {problem}", command)


def _check_jupyter(paths: Paths) -> str:
    """Return a text on the running Jupyter servers that serve the project.

    Raise StepperError if one of these servers does not reload changed notebooks.
    """
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
    return "no running Jupyter server shows outdated notebooks of the project"


def _check_kernel_backends(paths: Paths) -> list[Check]:
    """Return the results of the checks of the configured kernel backends.

    Only backends that the user accepted are contacted.
    """
    limits = _load_limits_or_defaults(paths)
    if not limits.kernels:
        return []
    import asyncio

    from stepper.daemon import backend_commands

    backends = asyncio.run(backend_commands.check_backends(paths, limits, os.environ))
    checks = []
    for backend in backends:
        is_ok = backend.accepted and backend.reachable is not False
        state = backend.why or "; ".join(backend.offers)
        detail = f"{backend.about}: {state}"
        checks.append(Check(f"kernels.{backend.name}", is_ok, detail, backend.mend))
    return checks


def _check_version(_: Paths) -> str:
    """Return the version of stepper. This check never fails."""
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
