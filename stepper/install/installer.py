"""Set up stepper in a repository. install.sh calls `plan` and then `apply`.

This module uses only the standard library. Each step creates missing parts and leaves
current parts unchanged: a second run changes nothing. `uninstall.py` undoes each step.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from stepper import __version__
from stepper.common.errors import StepperError
from stepper.common.paths import Paths, read_install_record
from stepper.hook import daemon_client
from stepper.hook.daemon_start import wait_until_stopped
from stepper.install import (
    claude_settings,
    doctor,
    ipykernel_install,
    mcp_client_config,
    mcp_starter,
    permission_mode_check,
    statusline_setting,
    trust,
    user_script,
)
from stepper.install.install_checks import (
    SETTINGS,
    InterpreterChoice,
    check_and_choose_interpreter,
    check_interpreter,
    print_plan,
)
from stepper.install.install_file_io import (
    PACKAGE,
    find_assets,
    link,
    read,
    read_settings,
    remove,
    write,
)
from stepper.install.install_options import parse_arguments
from stepper.install.install_output import print_line
from stepper.install.python_probe import get_output_tail, run
from stepper.install.skill_states import (
    SKILLS,
    get_skill_states,
    list_our_skills,
    load_shipped_skills,
)
from stepper.install.uninstall import uninstall
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits

# The states of `get_skill_states`, as changes in messages.
SKILL_CHANGES = {
    "missing": "created",
    "outdated": "updated",
    "gone": "removed",
    "edited": "edited by you and kept",
    "foreign": "not installed, because you have skills with these names",
}
# The commands that do the same as a skill.
TERMINAL_COMMANDS = {
    "continue": "stepper continue",
    "fix": "stepper fix",
    "skip": "stepper skip",
    "new-notebook": "stepper new",
    "notebook-status": "stepper status",
}
COMMAND_CODE = (
    "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main;"
    " sys.exit(main())"
)


def apply(options: argparse.Namespace) -> None:
    """Set up the project, after install.sh has created the environment."""
    choice = check_and_choose_interpreter(options)
    paths = Paths(options.target)
    project = Path(paths.project)
    _use_environment(paths, options)
    if options.add_ipykernel and not ipykernel_install.is_dependency(project):
        _run_or_raise([*ipykernel_install.ADD], project, None)
        command = shlex.join(ipykernel_install.ADD)
        print_line("ipykernel", f"added to the project's dependencies with: {command}")
    _prepare_kernel(paths, choice)
    config = _write_config(paths, options.notebooks)
    limits = doctor.load_limits(paths)
    if options.mcp_only:
        _apply_mcp_only(paths, options, choice, config, limits)
    else:
        _apply_claude_code(paths, options, choice, config, limits)


def _apply_claude_code(
    paths: Paths,
    options: argparse.Namespace,
    choice: InterpreterChoice,
    config: str | None,
    limits: Limits,
) -> None:
    """Set up hooks, skills and settings for Claude Code."""
    project = Path(paths.project)
    text, old_settings = read_settings(project / SETTINGS)
    # If this installation has hooks, the plugin does nothing.
    has_handlers = claude_settings.has_our_handlers(old_settings)
    uses_plugin = options.plugin and not has_handlers
    settings, new_rules = _merge_settings(old_settings, options, limits, uses_plugin)
    installed_script = read_install_record(paths.project).get("script")
    old_status_line = old_settings.get(statusline_setting.KEY)
    has_status_line = statusline_setting.is_ours(old_status_line)
    wants_status_line = options.statusline or has_status_line
    _write_record(paths, options, choice, new_rules, config, uses_plugin)
    if wants_status_line:
        settings = _add_status_line(paths, settings)
    _print_untrusted_python(paths)
    _update_gitignore(project)
    if not uses_plugin:
        _install_script(project, installed_script)
    is_changed = settings != old_settings
    if is_changed:
        rendered = claude_settings.render(settings, text or "{}\n")
        write(project / SETTINGS, rendered.encode())
    _print_hooks(uses_plugin, is_changed)
    if wants_status_line:
        print_line("status line", statusline_setting.describe_status_line(paths))
    if options.allow:
        _print_rules(new_rules)
    if not uses_plugin:
        _install_skills(project)
    _create_notebooks_folder(paths, limits)
    _link_command(paths, options)
    mcp_starter.write_scripts(paths, doctor.format_install_command(paths))
    if not options.demo:
        _print_next_steps(paths, limits, options, uses_plugin)


def _merge_settings(
    old_settings: claude_settings.Data,
    options: argparse.Namespace,
    limits: Limits,
    uses_plugin: bool,
) -> tuple[claude_settings.Data, list[str]]:
    """Return settings with hooks and permission rules, and a list of the new rules."""
    settings = old_settings
    if not uses_plugin:
        settings = claude_settings.add_hooks(settings)
    rules = []
    if options.allow:
        rules = claude_settings.list_permission_rules(limits.patterns)
    return claude_settings.add_rules(settings, rules)


def _add_status_line(
    paths: Paths, settings: claude_settings.Data
) -> claude_settings.Data:
    """Return the settings with stepper's status line; record the replaced setting."""
    record = read_install_record(paths.project)
    settings, record = statusline_setting.add_status_line(paths, settings, record)
    trust.save_record(paths, record)
    return settings


def _print_hooks(uses_plugin: bool, is_changed: bool) -> None:
    """Print the line on the hooks in Claude Code's settings, or on the plugin."""
    if uses_plugin:
        print_line(
            "plugin",
            "the plugin provides the hooks and skills (/stepper:new-notebook, …); none"
            " were installed in .claude/",
        )
        return
    change = "merged" if is_changed else "unchanged"
    print_line("hooks", f"{change}: {SETTINGS}")


def _print_rules(new_rules: list[str]) -> None:
    """Print the permission rules that were added to Claude Code's settings."""
    added = "unchanged"
    if new_rules:
        added = f"{', '.join(new_rules)} added"
    print_line("permissions", added)


def _apply_mcp_only(
    paths: Paths,
    options: argparse.Namespace,
    choice: InterpreterChoice,
    config: str | None,
    limits: Limits,
) -> None:
    """Set up the project for MCP clients; do not read or write .claude/."""
    _write_record(paths, options, choice, [], config, uses_plugin=False)
    _print_untrusted_python(paths)
    _update_gitignore(Path(paths.project))
    _create_notebooks_folder(paths, limits)
    _link_command(paths, options)
    mcp_starter.write_scripts(paths, doctor.format_install_command(paths))
    print_line("mcp", "set up for MCP clients only, without hooks, skills and .claude/")
    _print_notebooks(paths, limits)
    usage = mcp_client_config.format_config_usage(paths.project)
    print_line("next", f"to add your client, run: {usage}")
    print_line("", mcp_client_config.describe_clients())
    print_line(
        "",
        "then commit .gitignore; to check the installation, run:"
        " .stepper/env/bin/stepper doctor",
    )
    _print_link_option(options)


def _print_untrusted_python(paths: Paths) -> None:
    """Print a line if the user has not accepted the configured interpreter."""
    python = doctor.find_kernel_python(paths)
    if doctor.is_untrusted_python(paths, python):
        print_line(
            "",
            f"`python:` in .stepper/config.yaml names {python}: no cell runs until you"
            " accept this interpreter with `stepper trust`",
        )


def _update_gitignore(project: Path) -> None:
    """Add `.stepper/` to the project's .gitignore."""
    path = project / ".gitignore"
    content = claude_settings.add_ignore_line(read(path))
    print_line(".gitignore", write(path, content))


def _create_notebooks_folder(paths: Paths, limits: Limits) -> None:
    """Create the folder of new notebooks, and request a scan for changed notebooks."""
    notebooks = doctor.get_notebook_folder(limits.patterns)
    folder = Path(paths.project, notebooks)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        print_line("notebooks", f"created: {notebooks}/")
    _request_scan(paths, notebook_globs.list_base_folders(limits.patterns))


def _link_command(paths: Paths, options: argparse.Namespace) -> None:
    """Install `stepper` for the user's shell, if `--link` requests this."""
    if not options.link:
        return
    print_line("command", user_script.install_script(paths))
    if not user_script.is_on_path():
        folder = shlex.quote(str(user_script.get_script_path().parent))
        print_line("", f"to add it to your PATH, run: export PATH={folder}:$PATH")


def _use_environment(paths: Paths, options: argparse.Namespace) -> None:
    """Complete the environment.

    If the environment was replaced, also compile the hook's client (not for an editable
    installation), and stop the daemons of the former environment.
    """
    change = "created" if options.remade else "unchanged"
    print_line("environment", f"{change}: .stepper/env (stepper {__version__})")
    _complete_environment(paths)
    if not options.remade:
        return
    if not options.editable and compile_client(Path(paths.env, "bin/hook")):
        print_line(
            "",
            "the hook's client was compiled with cc: a call takes 1 ms, not 10 ms",
        )
    for folder in (paths.project, *paths.find_dependent_worktrees()):
        _stop_old_daemon(Paths(folder))


def _print_next_steps(
    paths: Paths, limits: Limits, options: argparse.Namespace, uses_plugin: bool
) -> None:
    """Print the next steps for the user."""
    _print_notebooks(paths, limits)
    print_line("mode", permission_mode_check.describe_mode(Path(paths.project), limits))
    print_line(
        "",
        "if you approve an edit, you also approve running the cell (with --allow,"
        " edits of notebooks need no approval)",
    )
    skill = "/stepper:new-notebook" if uses_plugin else "/new-notebook"
    folder = shlex.quote(paths.project)
    print_line("next", f"run `cd {folder} && claude`, then type: {skill} PROBLEM")
    files = ".gitignore" if uses_plugin else ".claude/ and .gitignore"
    print_line(
        "",
        f"commit {files}; to check the installation, run:"
        " .stepper/env/bin/stepper doctor",
    )
    if options.mcp and not uses_plugin:
        usage = mcp_client_config.format_config_usage(paths.project)
        print_line("mcp", f"to add the client of another agent, run: {usage}")
        print_line("", mcp_client_config.describe_clients())
    _print_link_option(options)


def _print_notebooks(paths: Paths, limits: Limits) -> None:
    """Print the number of included notebooks and the command that includes all."""
    coverage = doctor.format_coverage(paths.project, limits.patterns)
    if coverage:
        print_line("notebooks", coverage)
    all_patterns = doctor.suggest_patterns(paths.project, limits.patterns)
    if all_patterns:
        option = f" --notebooks {shlex.join(all_patterns)}"
        command = doctor.format_install_command(paths, options=option)
        print_line("", f"To include them, run: {command}")


def _print_link_option(options: argparse.Namespace) -> None:
    """Print a line on the option `--link`, unless the option was used."""
    if options.link:
        return
    print_line(
        "",
        "to use `stepper` in your own shell in every project, install with --link"
        f" (creates {user_script.get_script_path()})",
    )


def _request_scan(paths: Paths, folders: list[str]) -> None:
    """Make the hook script look for notebooks that change after the installation.

    `folders` are the folders to search, and "" is the project. If the marker exists, a
    daemon has already requested a scan.
    """
    if not os.path.lexists(paths.scan_marker):
        lines = [f"{folder or '.'}\n" for folder in folders]
        write(Path(paths.scan_marker), os.fsencode("".join(lines)))


def _complete_environment(paths: Paths) -> None:
    """Add the files that the hook script and the shell need to the environment."""
    trust.make_folders(paths)
    env = Path(paths.env)
    link(env / "project", Path(paths.project))
    link(env / "packages", PACKAGE.parent)  # site-packages, or the checkout
    # The folder `cli` contains only `stepper`: the agent's shell must find the
    # project's `python`, `pip` and `jupyter`. It is first on the PATH, because the
    # project may have another command called `stepper`.
    folder = shlex.quote(f"{env}/cli")
    write(env / "session.sh", os.fsencode(f'export PATH={folder}:"$PATH"\n'))
    link(env / "cli/stepper", Path("../bin/stepper"))
    statusline_setting.write_script(env)
    # This replaces pip's own script, which fails in folders with quotes or `$`. With
    # -I, Python ignores the user's PYTHONPATH. The status line does not start Python.
    shown_env = shlex.quote(str(env))
    statusline = (
        f'[ "$1" != statusline ] || {{ env={shown_env}; set --; . "$env/statusline";'
        " exit; }"
    )
    python = shlex.quote(f"{env}/bin/python")
    command = f'exec {python} -I -c "{COMMAND_CODE}" "$@"'
    script = f"#!/bin/sh\n{statusline}\n{command}\n"
    write(env / "bin/stepper", os.fsencode(script), 0o755)
    # This replaces the environment of an older installation, or files from git.
    link(Path(paths.env_link), env)


def compile_client(target: Path) -> bool:
    """Compile the hook's client; return whether the compiled client works.

    Without a compiled client, the hook script uses the Python client. The client is
    linked statically if possible, because a home folder may be used on machines with
    other C libraries.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        return False
    return _compile(compiler, target, ["-static"]) or _compile(compiler, target, [])


def _compile(compiler: str, target: Path, options: list[str]) -> bool:
    """Compile the client with compiler options; return whether the client works."""
    source = Path(daemon_client.__file__).with_name("client.c")
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    version = f'-DVERSION="{__version__}"'
    output = ["-o", str(temporary), str(source)]
    try:
        if run(compiler, "-O2", *options, version, *output).returncode != 0:
            return False
        if run(str(temporary), "--version").returncode != 0:
            return False
        temporary.replace(target)
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _stop_old_daemon(paths: Paths) -> None:
    """Let a daemon of the replaced environment exit, without its kernels.

    A daemon exits after a request from another version. Print the result.
    """
    try:
        sock = daemon_client.connect(paths)
        if not sock:
            return
        # The version differs from the daemon's version. The other parts are not read.
        request = (b"status", b"reinstalled", b"", b"", b"")
        for _ in daemon_client.exchange(paths, sock, *request):
            pass
        wait_until_stopped(paths)
        print_line(
            "daemon",
            "exits; a new daemon starts with the next cell; kernels keep running",
        )
    except (OSError, StepperError) as error:
        print_line(
            "daemon",
            f"the daemon of the old environment was not stopped ({error}). To fix this,"
            " run: .stepper/env/bin/stepper shutdown",
        )


def _prepare_kernel(paths: Paths, choice: InterpreterChoice) -> None:
    """Create `.venv` if necessary, and install ipykernel if it is missing.

    Also install stepper's own copy of ipykernel if a sync may remove the other one.
    Print the changes.

    Raises:
        StepperError: A command failed, or the interpreter can't run a kernel.
    """
    project = Path(paths.project)
    uv = shutil.which("uv")
    changes = []
    new_venv = project / ".venv" if choice.is_new_venv else None
    # `uv add` may have created the environment.
    if choice.is_new_venv and not Path(choice.python).exists():
        _run_or_raise(_get_venv_command(project, uv), project, new_venv)
        changes.append("created")
    interpreter = check_interpreter(choice)
    if "ipykernel" not in interpreter.modules:
        # -I: the current folder is the project, which may have modules of any name.
        pip = [choice.python, "-I", "-m", "pip", "install"]
        if uv:
            pip = [uv, "pip", "install", "--python", choice.python]
        result = ipykernel_install.install_ipykernel(project, *pip)
        _check_exit_code([*pip, "ipykernel"], result, new_venv)
        changes.append("ipykernel added")
    change = ", ".join(changes) or "unchanged"
    version = interpreter.version
    print_line(
        "kernel", f"{change}: {choice.python} ({choice.reason}, Python {version})"
    )
    copied = ipykernel_install.make_copy(paths, choice.python, interpreter)
    for line in (copied, *ipykernel_install.suggest_dependency(project)):
        if line:
            print_line("", line)


def _get_venv_command(project: Path, uv: str | None) -> list[str]:
    """Return the command that creates a project's `.venv`."""
    if not uv:
        return [sys.executable, "-I", "-m", "venv", ".venv"]
    if (project / "pyproject.toml").exists():
        return [uv, "venv", ".venv"]  # uv knows which Python the project requires
    return [uv, "venv", "--python", sys.executable, ".venv"]


def _run_or_raise(command: list[str], cwd: Path, new_venv: Path | None) -> None:
    """Run a command; raise StepperError if it fails (see `_check_exit_code`)."""
    _check_exit_code(command, run(*command, cwd=str(cwd)), new_venv)


def _check_exit_code(
    command: list[str], result: CompletedProcess[str], new_venv: Path | None
) -> None:
    """Raise StepperError if a command failed.

    In this case, also remove the incomplete environment `new_venv`.
    """
    if result.returncode == 0:
        return
    if new_venv:
        remove(new_venv)
    raise StepperError(
        f"{shlex.join(command)} failed: {get_output_tail(result)}",
        "fix the cause and run the installation again, or name another interpreter:"
        " --python PATH",
    )


def _write_config(paths: Paths, patterns: list[str]) -> str | None:
    """Write the patterns of `--notebooks` into the configuration.

    Return the text of the configuration, or None if there are no patterns or if the
    user has edited the configuration.
    """
    if not patterns:
        return None
    from stepper.daemon import config  # needs pyyaml, which is installed by now

    path = Path(paths.home, "config.yaml")
    before = read(Path(paths.config)).decode()
    after = config.replace_notebooks(before, patterns, paths.relpath(paths.config))
    change = write(path, after.encode())
    print_line("config", f"{change}: {paths.relpath(str(path))}")
    recorded = read_install_record(paths.project).get("config")
    return after if before in ("", recorded) else None


def _write_record(
    paths: Paths,
    options: argparse.Namespace,
    choice: InterpreterChoice,
    new_rules: list[str],
    config: str | None,
    uses_plugin: bool,
) -> None:
    """Record the installation before the project is changed.

    The record contains the accepted programs and the original state of the project,
    which uninstall restores. `new_rules` are the added permission rules, `config` is
    the result of `_write_config`, and `uses_plugin` means that no hooks and skills are
    installed.
    """
    limits = doctor.load_limits(paths)
    notebooks = doctor.get_notebook_folder(limits.patterns)
    old_record = read_install_record(paths.project)
    names = (".claude", ".claude/hooks", SKILLS, ".gitignore", notebooks)
    # An earlier installation recorded the original state before it changed the project.
    if old_record.get("mcp_only") and not options.mcp_only:
        old_record = _convert_mcp_only_record(Path(paths.project), old_record, names)
    original = _describe_original(paths, options, names)
    original = {name: old_record.get(name, value) for name, value in original.items()}
    has_new_folder = notebooks != old_record.get("notebooks", notebooks)
    if has_new_folder and Path(paths.project, notebooks).exists():
        original["found"] = [*original["found"], notebooks]
    kept_values: dict[str, Any] = {}
    for name in ("accepted", "kernels", "clients", "statusline"):
        if name in old_record:
            kept_values[name] = old_record[name]
    added_rules = [rule for rule in new_rules if rule not in original["allow"]]
    script = read(find_assets("hooks") / "stepper")
    record = {
        **kept_values,
        "version": 1,
        "python": choice.python,
        "given": choice.given,
        "source": options.source,
        "mcp": options.mcp,
        "mcp_only": options.mcp_only,
        "plugin": uses_plugin,
        "notebooks": notebooks,
        "config": config or old_record.get("config"),
        "script": hashlib.sha256(script).hexdigest(),
        **original,
        "allow": [*original["allow"], *added_rules],
    }
    trust.save_record(paths, record)


def _convert_mcp_only_record(
    project: Path, record: claude_settings.Data, names: tuple[str, ...]
) -> claude_settings.Data:
    """Convert the record of an `--mcp-only` installation when hooks are installed.

    `found` lists the paths of `names` that existed before stepper was installed. The
    result contains no settings and rules: .claude/ is still in its original state,
    which the caller records.
    """
    existing = []
    for name in names:
        is_claude_folder = name.startswith(".claude")
        exists_now = is_claude_folder and (project / name).exists()
        if exists_now or name in record.get("found", ()):
            existing.append(name)
    converted_record = {**record, "found": existing}
    del converted_record["settings"], converted_record["allow"]
    return converted_record


def _describe_original(
    paths: Paths, options: argparse.Namespace, names: tuple[str, ...]
) -> claude_settings.Data:
    """Return the original state of the project for the record.

    If files of stepper exist, the original state is unknown, and the result describes
    a project without Claude Code's settings. The record of an earlier installation has
    precedence over the result: see `_write_record`.
    """
    project = Path(paths.project)
    text = None
    data = claude_settings.Data()
    if not options.mcp_only:
        text, data = read_settings(project / SETTINGS)
    has_our_files = (
        claude_settings.has_our_handlers(data)
        or (project / claude_settings.SCRIPT).exists()
        or list_our_skills(project)
    )
    if has_our_files:
        return {
            "found": [],
            "settings": None,
            "allow": [claude_settings.SHELL_RULE],
            "gitignore": True,
        }
    ignored = read(project / ".gitignore")
    return {
        "found": [name for name in names if (project / name).exists()],
        "settings": text,
        "allow": [],
        "gitignore": claude_settings.add_ignore_line(ignored) != ignored,
    }


def _install_script(project: Path, installed_hash: str | None) -> None:
    """Install the hook script. A script that the user edited is kept as `stepper.orig`.

    `installed_hash` is the SHA-256 hash of the script of the last installation, or
    None.
    """
    path = project / claude_settings.SCRIPT
    current = read(path)
    new = read(find_assets("hooks") / "stepper")
    is_edited = hashlib.sha256(current).hexdigest() != installed_hash
    if current and current != new and is_edited:
        write(path.with_name("stepper.orig"), current)
        print_line(
            "hook",
            "the existing script differs from the installed version; it was kept as"
            f" {claude_settings.SCRIPT}.orig",
        )
    change = write(path, new, 0o755)
    print_line("hook", f"{change}: {claude_settings.SCRIPT}")


def _install_skills(project: Path) -> None:
    """Copy the skills, and remove skills that this version does not have.

    Skills that the user edited are kept.
    """
    changes: dict[str, list[str]] = {}
    shipped_skills = load_shipped_skills()
    for name, state in get_skill_states(project).items():
        if state in ("missing", "outdated", "gone"):
            remove(project / SKILLS / name)
            for file, content in shipped_skills.get(name, {}).items():
                write(project / SKILLS / name / file, content)
        change = SKILL_CHANGES.get(state, "unchanged")
        changes.setdefault(change, []).append(name)
    for change, names in changes.items():
        print_line("skills", f"{change}: {', '.join(names)}")
    edited = changes.get(SKILL_CHANGES["edited"])
    if edited:
        folders = " ".join([f"{SKILLS}/{name}" for name in edited])
        print_line(
            "", f"to restore stepper's text, run `rm -r {folders}` and install again"
        )
    for name in changes.get(SKILL_CHANGES["foreign"], ()):
        if name in TERMINAL_COMMANDS:
            command = TERMINAL_COMMANDS[name]
            print_line("", f"in a terminal, use {command} instead of /{name}")
        else:
            print_line(
                "", f"to install {name}, rename {SKILLS}/{name} and install again"
            )


ACTIONS = {"plan": print_plan, "apply": apply, "uninstall": uninstall}


def main() -> int:
    """Run the action that the first argument names, and return the exit code."""
    action, *arguments = sys.argv[1:]
    try:
        ACTIONS[action](parse_arguments(arguments))
    except (StepperError, OSError) as error:
        message = str(error)
        if not isinstance(error, StepperError):
            reason = error.strerror or str(error)
            message = f"{error.filename}: {reason}" if error.filename else reason
        if "--source" in arguments:
            source = arguments[arguments.index("--source") + 1]
            if not os.path.isdir(source):
                # The source is the command that the user ran instead of install.sh.
                message = message.replace("./install.sh", source)
        sys.stderr.write(f"install.sh: {message}\n")
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
