"""Set stepper up in any repository. install.sh calls it: `plan` (refuse.py), then `apply`.

Stdlib only. Each step makes what is missing and leaves what is right, so a second run changes no byte;
uninstall.py undoes all of them.
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

from stepper import __version__
from stepper.common.errors import StepperError
from stepper.common.paths import Paths, read_install_record
from stepper.hook import client
from stepper.hook.start import wait_until_stopped
from stepper.install import (
    claude_settings,
    doctor,
    ipykernel_install,
    mcp_client_config,
    mcp_starter,
    permission_mode,
    statusline_setting,
    trust,
    user_script,
)
from stepper.install.install_checks import (
    SETTINGS,
    InterpreterChoice,
    check_installation,
    check_interpreter,
    parse_arguments,
    print_line,
    print_plan,
)
from stepper.install.install_files import (
    PACKAGE,
    find_assets,
    link,
    read,
    read_settings,
    remove,
    write,
)
from stepper.install.python_probe import get_output_tail, run
from stepper.install.skill_files import (
    SKILLS,
    get_skill_states,
    list_our_skills,
    load_shipped_skills,
)
from stepper.install.uninstall import uninstall
from stepper.policy.configuration import notebook_globs
from stepper.policy.model import Limits


def apply(options: argparse.Namespace) -> None:
    """Set the project up; the environment is there already."""
    choice = check_installation(options)
    paths = Paths(options.target)
    project = Path(paths.project)
    _use_environment(paths, options)
    if options.add_ipykernel and not ipykernel_install.is_dependency(project):
        _run_or_raise([*ipykernel_install.ADD], project, None)
        print_line(
            "ipykernel",
            f"added to the project's dependencies: {shlex.join(ipykernel_install.ADD)}",
        )
    _prepare_kernel(paths, choice)
    config = _write_config(paths, options.notebooks)
    limits = doctor.load_limits(paths)
    if options.mcp_only:
        _apply_mcp_only(paths, options, choice, config, limits)
        return
    text, data = read_settings(project / SETTINGS)
    wanted = (
        claude_settings.list_permission_rules(limits.patterns) if options.allow else []
    )
    # it is silent beside hooks of ours
    plugin = options.plugin and not claude_settings.has_our_handlers(data)
    merged, new_rules = claude_settings.add_rules(
        data if plugin else claude_settings.add_hooks(data), wanted
    )
    known = read_install_record(paths.project).get("script")
    wants_line = options.statusline or statusline_setting.is_ours(
        data.get(statusline_setting.KEY)
    )
    _write_record(paths, options, choice, new_rules, config, plugin)
    if wants_line:
        merged, noted = statusline_setting.add_status_line(
            paths, merged, read_install_record(paths.project)
        )
        trust.save_record(paths, noted)
    _print_untrusted_python(paths)
    _update_gitignore(project)
    if not plugin:
        _install_script(project, known)
    if merged != data:
        write(
            project / SETTINGS, claude_settings.render(merged, text or "{}\n").encode()
        )
    if plugin:
        print_line(
            "plugin",
            "hooks and skills are the plugin's: /stepper:new-notebook, …; nothing of"
            " them is in .claude/",
        )
    else:
        print_line(
            "hooks", f"{'unchanged' if merged == data else 'merged'}: {SETTINGS}"
        )
    if wants_line:
        print_line("status line", statusline_setting.describe_status_line(paths))
    if options.allow:
        print_line(
            "permissions", ", ".join(new_rules) + " added" if new_rules else "unchanged"
        )
    if not plugin:
        _install_skills(project)
    _make_notebooks_folder(paths, limits)
    _link_command(paths, options)
    mcp_starter.write_scripts(paths, doctor.format_install_command(paths))
    if not options.demo:
        _print_next_steps(paths, limits, options, plugin)


def _apply_mcp_only(
    paths: Paths,
    options: argparse.Namespace,
    choice: InterpreterChoice,
    config: str | None,
    limits: Limits,
) -> None:
    """Set the rest up for MCP clients alone: nothing in .claude/ is read or written."""
    _write_record(paths, options, choice, [], config, plugin=False)
    _print_untrusted_python(paths)
    _update_gitignore(Path(paths.project))
    _make_notebooks_folder(paths, limits)
    _link_command(paths, options)
    mcp_starter.write_scripts(paths, doctor.format_install_command(paths))
    print_line(
        "mcp", "set up for MCP clients alone: no hooks, no skills, nothing in .claude/"
    )
    _print_notebooks(paths, limits)
    print_line(
        "next",
        f"add your client: {mcp_client_config.format_config_command(paths.project)}",
    )
    print_line(
        "",
        "commit .gitignore; to see problems, run: .stepper/env/bin/stepper doctor",
    )
    _print_link_option(options)


def _print_untrusted_python(paths: Paths) -> None:
    if doctor.is_untrusted_python(paths, python := doctor.find_kernel_python(paths)):
        print_line(
            "",
            f"`python:` in .stepper/config.yaml names {python}: no cell runs before"
            " `stepper trust` accepts it",
        )


def _update_gitignore(project: Path) -> None:
    ignored = project / ".gitignore"
    print_line(
        ".gitignore", write(ignored, claude_settings.add_ignore_line(read(ignored)))
    )


def _make_notebooks_folder(paths: Paths, limits: Limits) -> None:
    notebooks = doctor.get_notebook_folder(limits.patterns)
    folder = Path(paths.project, notebooks)
    if not folder.is_dir():
        folder.mkdir(parents=True)
        print_line("notebooks", f"made: {notebooks}/")
    _request_scan(paths, notebook_globs.list_base_folders(limits.patterns))


def _link_command(paths: Paths, options: argparse.Namespace) -> None:
    if not options.link:
        return
    print_line("command", user_script.install_script(paths))
    if not user_script.is_on_path():
        folder = shlex.quote(str(user_script.get_script_path().parent))
        print_line("", f"it is not on your PATH: export PATH={folder}:$PATH")


def _use_environment(paths: Paths, options: argparse.Namespace) -> None:
    print_line(
        "environment",
        f"{'made' if options.remade else 'unchanged'}: .stepper/env (stepper"
        f" {__version__})",
    )
    _complete_environment(paths)
    if options.remade:
        if not options.editable and compile_client(Path(paths.env, "bin/hook")):
            print_line(
                "",
                "the hook's client is compiled (cc): it takes 1 ms where Python's"
                " takes 10",
            )
        for folder in (paths.project, *paths.find_dependent_worktrees()):
            _stop_old_daemon(Paths(folder))


def _print_next_steps(
    paths: Paths, limits: Limits, options: argparse.Namespace, plugin: bool
) -> None:
    _print_notebooks(paths, limits)
    print_line("mode", permission_mode.describe_mode(Path(paths.project), limits))
    print_line(
        "",
        "approving an edit is approving its execution (--allow: edits of notebooks are"
        " never asked for)",
    )
    command, files = (
        ("/stepper:new-notebook", "") if plugin else ("/new-notebook", ".claude/ and ")
    )
    print_line(
        "next",
        f"cd {shlex.quote(paths.project)} && claude, then: {command} WHAT YOU WANT TO"
        " KNOW",
    )
    print_line(
        "",
        f"commit {files}.gitignore; what is wrong, if anything:"
        " .stepper/env/bin/stepper doctor",
    )
    if options.mcp and not plugin:
        print_line(
            "mcp",
            "for other agents' clients:"
            f" {mcp_client_config.format_config_command(paths.project)}",
        )
    _print_link_option(options)


def _print_notebooks(paths: Paths, limits: Limits) -> None:
    if told := doctor.format_coverage(paths.project, limits.patterns):
        print_line("notebooks", told)
    if wanted := doctor.list_missing_patterns(paths.project, limits.patterns):
        command = doctor.format_install_command(
            paths, more=f" --notebooks {shlex.join(wanted)}"
        )
        print_line("", f"To include them, run: {command}")


def _print_link_option(options: argparse.Namespace) -> None:
    if not options.link:
        print_line(
            "",
            "`stepper` in your own shell, for every project: --link (makes"
            f" {user_script.get_script_path()})",
        )


def _request_scan(paths: Paths, folders: list[str]) -> None:
    """Have the hook script look for notebooks that are newer than now, unless a daemon has it look already."""
    if not os.path.lexists(paths.scan_marker):
        write(
            Path(paths.scan_marker),
            os.fsencode("".join(f"{folder or '.'}\n" for folder in folders)),
        )


def _complete_environment(paths: Paths) -> None:
    """Put into the environment what the hook script and the person's shell need, its name into the project."""
    trust.make_folders(paths)
    env = Path(paths.env)
    link(env / "project", Path(paths.project))
    link(env / "packages", PACKAGE.parent)  # site-packages, or the checkout
    # `stepper` alone, and first: the project may have another command of that name. Of
    # `python`, `pip`,
    # `jupyter` the agent's Bash calls are to find the project's or none.
    write(
        env / "session.sh",
        os.fsencode(f'export PATH={shlex.quote(f"{env}/cli")}:"$PATH"\n'),
    )
    link(env / "cli/stepper", Path("../bin/stepper"))
    # pip's own script does not survive every path (quotes, $); -I keeps the user's
    # PYTHONPATH out
    statusline_setting.write_script(env)
    code = (
        "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main;"
        " sys.exit(main())"
    )
    # the status line starts no Python
    variable = f"env={shlex.quote(str(env))}"
    source = '. "$env/statusline"'
    line = f'[ "$1" != statusline ] || {{ {variable}; set --; {source}; exit; }}'
    script = f'#!/bin/sh\n{line}\nexec {shlex.quote(f"{env}/bin/python")} -I -c "{code}" "$@"\n'
    write(env / "bin/stepper", os.fsencode(script), 0o755)
    # in the place of an older installation's environment, or of what a pull put there
    link(Path(paths.env_link), env)


def compile_client(target: Path) -> bool:
    """Make the hook's compiled client; return whether it is there and works. Without it the script takes Python's.

    Linked statically where that is possible, because a home folder may be on machines with other C libraries.
    """
    source, compiler = Path(client.__file__).with_name("client.c"), shutil.which("cc")
    for more in (["-static"], []) if compiler else ():
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        command = [
            str(compiler),
            "-O2",
            *more,
            f'-DVERSION="{__version__}"',
            "-o",
            str(temporary),
            str(source),
        ]
        try:
            if (
                run(*command).returncode
                == 0
                == run(str(temporary), "--version").returncode
            ):
                temporary.replace(target)
                return True
        finally:
            temporary.unlink(missing_ok=True)
    return False


def _stop_old_daemon(paths: Paths) -> None:
    """End a daemon of the old environment: a request of another version has it make way; its kernels stay."""
    try:
        sock = client.connect(paths)
        if sock:
            for _ in client.exchange(
                paths, sock, b"status", b"reinstalled", b"", b"", b""
            ):
                pass
            wait_until_stopped(paths)
            print_line(
                "daemon", "ended, to start anew with the next cell; kernels stay"
            )
    except (OSError, StepperError) as error:
        print_line(
            "daemon",
            f"of the old environment does not end ({error}): .stepper/env/bin/stepper"
            " shutdown",
        )


def _prepare_kernel(paths: Paths, choice: InterpreterChoice) -> None:
    # -I: the project is the current folder, and may hold modules of any name
    uv, made = shutil.which("uv"), []
    project = Path(paths.project)
    half_made = project / ".venv" if choice.make else None
    if choice.make and not Path(choice.python).exists():  # `uv add` made it
        # in a project uv knows which Python it wants
        wanted = (
            []
            if (project / "pyproject.toml").exists()
            else ["--python", sys.executable]
        )
        command = (
            [uv, "venv", *wanted, ".venv"]
            if uv
            else [sys.executable, "-I", "-m", "venv", ".venv"]
        )
        _run_or_raise(command, project, half_made)
        made.append("made")
    about = check_interpreter(choice)
    if "ipykernel" not in about.modules:
        pip = (
            [uv, "pip", "install", "--python", choice.python]
            if uv
            else [choice.python, "-I", "-m", "pip", "install"]
        )
        _check_exit_code(
            [*pip, "ipykernel"],
            ipykernel_install.install_ipykernel(project, *pip),
            half_made,
        )
        made.append("ipykernel added")
    print_line(
        "kernel",
        f"{', '.join(made) or 'unchanged'}: {choice.python} ({choice.why}, Python"
        f" {about.version})",
    )
    for line in filter(
        None,
        (
            ipykernel_install.make_copy(paths, choice.python, about),
            *ipykernel_install.suggest_dependency(project),
        ),
    ):
        print_line("", line)


def _run_or_raise(command: list[str], cwd: Path, undo: Path | None) -> None:
    _check_exit_code(command, run(*command, cwd=str(cwd)), undo)


def _check_exit_code(
    command: list[str], done: CompletedProcess[str], undo: Path | None
) -> None:
    if done.returncode:
        if undo:
            remove(undo)
        mend = (
            "mend that and run this again, or name another interpreter: --python PATH"
        )
        raise StepperError(
            f"{shlex.join(command)} failed: {get_output_tail(done)}", mend
        )


def _write_config(paths: Paths, patterns: list[str]) -> str | None:
    """Put `--notebooks` into the config; return what install alone wrote there, None for nothing."""
    if not patterns:
        return None
    from stepper.daemon import config  # pyyaml is there by now

    there, path = read(Path(paths.config)).decode(), Path(paths.home, "config.yaml")
    new = config.replace_notebooks(there, patterns, paths.relpath(paths.config))
    print_line("config", f"{write(path, new.encode())}: {paths.relpath(str(path))}")
    return (
        new if there in ("", read_install_record(paths.project).get("config")) else None
    )


def _write_record(
    paths: Paths,
    options: argparse.Namespace,
    choice: InterpreterChoice,
    new_rules: list[str],
    config: str | None,
    plugin: bool,
) -> None:
    """Note, before the project is changed, what runs here and what uninstall can't see: what was there before."""
    project, old = Path(paths.project), read_install_record(paths.project)
    notebooks = doctor.get_notebook_folder(doctor.load_limits(paths).patterns)
    text, data = None, claude_settings.Data()
    if not options.mcp_only:
        text, data = read_settings(project / SETTINGS)
    script, ignored = project / claude_settings.SCRIPT, read(project / ".gitignore")
    # Without a record, but with traces of ours (a clone, a lost .stepper/): nothing is
    # known of before.
    fresh = not (
        claude_settings.has_our_handlers(data)
        or script.exists()
        or list_our_skills(project)
    )
    places = (".claude", ".claude/hooks", SKILLS, ".gitignore", notebooks)
    if old.get("mcp_only") and not options.mcp_only:
        # with --mcp-only nothing was recorded of .claude/: it is as it was before
        known = [name for name in places if name in old.get("found", ())]
        known += [
            name
            for name in places
            if name.startswith(".claude") and (project / name).exists()
        ]
        old = {**old, "found": known}
        del old["settings"], old["allow"]
    before: claude_settings.Data = {
        "found": [name for name in places if (project / name).exists()]
        if fresh
        else [],
        "settings": text if fresh else None,
        "allow": [] if fresh else [claude_settings.SHELL_RULE],
        "gitignore": not fresh or claude_settings.add_ignore_line(ignored) != ignored,
    }
    before = {name: old.get(name, value) for name, value in before.items()}
    if notebooks != old.get("notebooks", notebooks) and (project / notebooks).exists():
        before["found"] = [*before["found"], notebooks]
    note = {
        **{
            name: value
            for name, value in old.items()
            if name in ("accepted", "clients", "statusline")
        },
        "version": 1,
        "python": choice.python,
        "given": choice.given,
        "source": options.source,
        "mcp": options.mcp,
        "mcp_only": options.mcp_only,
        "plugin": plugin,
        "notebooks": notebooks,
        "config": config or old.get("config"),
        "script": hashlib.sha256(read(find_assets("hooks") / "stepper")).hexdigest(),
        **before,
        "allow": [
            *before["allow"],
            *(rule for rule in new_rules if rule not in before["allow"]),
        ],
    }
    trust.save_record(paths, note)


def _install_script(project: Path, known: str | None) -> None:
    """Copy the hook script; keep a copy of one that is not as install left it (`known` is that one's hash)."""
    path, ours = (
        project / claude_settings.SCRIPT,
        read(find_assets("hooks") / "stepper"),
    )
    there = read(path)
    if there and there != ours and hashlib.sha256(there).hexdigest() != known:
        write(path.with_name("stepper.orig"), there)
        print_line(
            "hook",
            f"the one that was here differs: kept as {claude_settings.SCRIPT}.orig",
        )
    print_line("hook", f"{write(path, ours, 0o755)}: {claude_settings.SCRIPT}")


# What does in a terminal what a skill does.
TERMINAL_COMMANDS = {
    "continue": "stepper continue",
    "fix": "stepper fix",
    "skip": "stepper skip",
    "new-notebook": "stepper new",
    "notebook-status": "stepper status",
}


def _install_skills(project: Path) -> None:
    """Copy the skills; leave those that the person edited; remove those that this version has no more."""
    words = {
        "missing": "made",
        "outdated": "updated",
        "gone": "removed",
        "edited": "edited by you, kept",
        "foreign": "left out, because you have skills with these names",
    }
    done: dict[str, list[str]] = {}
    for name, word in get_skill_states(project).items():
        if word in ("missing", "outdated", "gone"):
            remove(project / SKILLS / name)
            for file, content in load_shipped_skills().get(name, {}).items():
                write(project / SKILLS / name / file, content)
        done.setdefault(words.get(word, "unchanged"), []).append(name)
    for said, names in done.items():
        print_line("skills", f"{said}: {', '.join(names)}")
    if edited := done.get(words["edited"]):
        print_line(
            "",
            f"for stepper's own text: rm -r {SKILLS}/{edited[0]}, then run this again",
        )
    for name in done.get(words["foreign"], ()):
        instead = (
            f"in a terminal: {TERMINAL_COMMANDS[name]}"
            if name in TERMINAL_COMMANDS
            else f"rename {SKILLS}/{name} and run this again"
        )
        print_line("", f"instead of /{name}, {instead}")


VERBS = {"plan": print_plan, "apply": apply, "uninstall": uninstall}


def main() -> int:
    """Do the verb that the first argument names; return the exit code. Errors leave through here alone."""
    verb, *arguments = sys.argv[1:]
    try:
        VERBS[verb](parse_arguments(arguments))
    except (StepperError, OSError) as error:
        why = str(
            error
            if isinstance(error, StepperError)
            else f"{error.filename or ''}: {error.strerror or error}"
        )
        source = (
            arguments[arguments.index("--source") + 1]
            if "--source" in arguments
            else "/"
        )
        if not os.path.isdir(source):  # the command that did what install.sh does
            why = why.replace("./install.sh", source)
        sys.stderr.write(f"install.sh: {why}\n")
        return getattr(error, "exit_code", 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
