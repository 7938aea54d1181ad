"""Set stepper up in any repository. install.sh calls it: `plan` (refuse.py), then `apply`.

Stdlib only. Each step makes what is missing and leaves what is right, so a second run changes no byte;
uninstall.py undoes all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from stepper import __version__
from stepper.ground.errors import StepperError
from stepper.ground.paths import Paths, recorded
from stepper.hook import client
from stepper.hook.start import retired
from stepper.setup import doctor, settings, trust
from stepper.setup.files import PACKAGE, assets, link, read, read_settings, remove, write
from stepper.setup.interpreter import run, tail
from stepper.setup.refuse import SETTINGS, Choice, check_interpreter, parse, plan, refuse, say
from stepper.setup.skills import SKILLS, digest, files_in, our_skills, shipped_skills


def apply(options: argparse.Namespace) -> None:
    """Set the project up; the environment is there already."""
    choice = refuse(options)
    paths = Paths(options.target)
    project, notebooks = Path(paths.project), doctor.notebooks_dir(paths)
    say("environment", f"{'made' if options.remade else 'unchanged'}: .stepper/env (stepper {__version__})")
    finish_env(paths)
    if options.remade:
        if not options.editable and compile_client(Path(paths.env, "bin/hook")):
            say("", "the hook's client is compiled (cc): it takes 1 ms where Python's takes 10")
        for folder in (paths.project, *paths.borrowers()):
            retire(Paths(folder))
    prepare_kernel(project, choice)

    text, data = read_settings(project / SETTINGS)
    wanted = settings.rules(notebooks) if options.allow else []
    merged, new_rules = settings.add_rules(settings.add_hooks(data, notebooks), wanted)
    known = recorded(paths.project).get("script")
    write_record(paths, options, choice, notebooks, new_rules)
    if doctor.strange(paths, python := doctor.kernel_python(paths)):
        say("", f"`python:` in .stepper/config.yaml names {python}: no cell runs before `stepper trust` accepts it")

    ignored = project / ".gitignore"
    say(".gitignore", write(ignored, settings.ignore(read(ignored))))
    install_script(project, known)
    if merged != data:
        write(project / SETTINGS, settings.render(merged, text or "{}\n").encode())
    say("hooks", f"{'unchanged' if merged == data else 'merged'}: {SETTINGS}")
    if options.allow:
        say("permissions", ", ".join(new_rules) + " added" if new_rules else "unchanged")
    install_skills(project)
    if not (project / notebooks).is_dir():
        (project / notebooks).mkdir(parents=True)
        say("notebooks", f"made: {notebooks}/")
    if not options.demo:
        say("next", f"cd {shlex.quote(paths.project)} && claude, then: /new-notebook WHAT YOU WANT TO KNOW")
        say("", "commit .claude/ and .gitignore; what is wrong, if anything: .stepper/env/bin/stepper doctor")
        if not options.allow:
            say("", "each edit asks first. Approving an edit is approving its execution (--allow: never asks)")


def finish_env(paths: Paths) -> None:
    """Put into the environment what the hook script and the person's shell need, and its name into the project."""
    trust.make_folders(paths)
    env = Path(paths.env)
    link(env / "project", Path(paths.project))
    link(env / "packages", PACKAGE.parent)  # site-packages, or the checkout
    # bin/ comes last on the PATH: first, it would make `python` and `pip` of the agent's Bash calls stepper's
    # own. `stepper` alone comes first, because the project may have another command of that name.
    path = f'{shlex.quote(f"{env}/cli")}:"$PATH":{shlex.quote(f"{env}/bin")}'
    write(env / "session.sh", os.fsencode(f"export PATH={path}\n"))
    link(env / "cli/stepper", Path("../bin/stepper"))
    # pip's own script does not survive every path (quotes, $); -I keeps the user's PYTHONPATH out
    code = "import sys; sys.argv[0] = 'stepper'; from stepper.cli.main import main; sys.exit(main())"
    script = f'#!/bin/sh\nexec {shlex.quote(f"{env}/bin/python")} -I -c "{code}" "$@"\n'
    write(env / "bin/stepper", os.fsencode(script), 0o755)
    link(Path(paths.link), env)  # in the place of an older installation's environment, or of what a pull put there


def compile_client(target: Path) -> bool:
    """Make the compiled client, a fallback of none: the hook script takes Python's where it is missing.

    Linked statically where that is possible, because a home folder may be on machines with other C libraries. Return
    whether it is there and works.
    """
    source, compiler = Path(client.__file__).with_name("client.c"), shutil.which("cc")
    for more in (["-static"], []) if compiler else ():
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        command = [str(compiler), "-O2", *more, f'-DVERSION="{__version__}"', "-o", str(temporary), str(source)]
        try:
            if run(*command).returncode == 0 == run(str(temporary), "--version").returncode:
                temporary.replace(target)
                return True
        finally:
            temporary.unlink(missing_ok=True)
    return False


def retire(paths: Paths) -> None:
    """End a daemon that runs on the old environment; its kernels stay for the next one.

    A request of another version has it make way, as after every update.
    """
    try:
        connection = client.connect(paths)
        if connection:
            with contextlib.closing(connection.sock):
                connection.send(b"status", b"reinstalled", b"", b"", b"")
                connection.answer()
            retired(paths)
            say("daemon", "ended, to start anew with the next cell; kernels stay")
    except (OSError, StepperError) as error:
        say("daemon", f"of the old environment does not end ({error}): .stepper/env/bin/stepper shutdown")


def prepare_kernel(project: Path, choice: Choice) -> None:
    """Make `.venv` where it is to be made, and add ipykernel where it is missing; raise StepperError."""
    uv, made = shutil.which("uv"), []  # -I: the project is the current folder, and may hold modules of any name
    half_made = project / ".venv" if choice.make else None
    if choice.make:
        # in a project uv knows which Python it wants
        wanted = [] if (project / "pyproject.toml").exists() else ["--python", sys.executable]
        command = [uv, "venv", *wanted, ".venv"] if uv else [sys.executable, "-I", "-m", "venv", ".venv"]
        must(command, project, half_made)
        made.append("made")
    about = check_interpreter(choice)
    if "ipykernel" not in about.modules:
        pip = [uv, "pip", "install", "--python", choice.python] if uv else [choice.python, "-I", "-m", "pip", "install"]
        must([*pip, "ipykernel"], project, half_made)
        made.append("ipykernel added")
    say("kernel", f"{', '.join(made) or 'unchanged'}: {choice.python} ({choice.why}, Python {about.version})")
    if "ipykernel added" in made and (project / "uv.lock").exists():
        say("", "an exact `uv sync` removes ipykernel again: uv add --dev ipykernel")


def must(command: list[str], cwd: Path, undo: Path | None) -> None:
    """Run a command; where it fails remove `undo` and raise StepperError with the end of what it said."""
    done = run(*command, cwd=str(cwd))
    if done.returncode:
        if undo:
            remove(undo)
        mend = "mend that and run this again, or name another interpreter: --python PATH"
        raise StepperError(f"{shlex.join(command)} failed: {tail(done)}", mend)


def write_record(
    paths: Paths, options: argparse.Namespace, choice: Choice, notebooks: str, new_rules: list[str]
) -> None:
    """Note for this user what runs here, and what uninstall can't see: what was there before.

    Written before anything else of the project is changed.
    """
    project, old = Path(paths.project), recorded(paths.project)
    text, data = read_settings(project / SETTINGS)
    script, ignored = project / settings.SCRIPT, read(project / ".gitignore")
    # Without a record, but with traces of ours (a clone, a lost .stepper/): nothing is known of before.
    fresh = not (settings.has_ours(data) or script.exists() or our_skills(project))
    places = (".claude", ".claude/hooks", SKILLS, ".gitignore", notebooks)
    before: settings.Data = {
        "found": [name for name in places if (project / name).exists()] if fresh else [],
        "settings": text if fresh else None,
        "allow": [] if fresh else [settings.RULES[-1]],
        "gitignore": not fresh or settings.ignore(ignored) != ignored,
    }
    before = {name: old.get(name, value) for name, value in before.items()}
    note = {
        "version": 1,
        "python": choice.python,
        "given": choice.given,
        "source": options.source,
        "notebooks": notebooks,
        "script": hashlib.sha256(assets("hooks").joinpath("stepper").read_bytes()).hexdigest(),
        **before,
        "allow": [*before["allow"], *(rule for rule in new_rules if rule not in before["allow"])],
    }
    trust.remember(paths, {**note, "accepted": old["accepted"]} if "accepted" in old else note)


def install_script(project: Path, known: str | None) -> None:
    """Copy the hook script; keep a copy of one that is not as install left it (`known` is that one's hash)."""
    path, ours = project / settings.SCRIPT, assets("hooks").joinpath("stepper").read_bytes()
    there = read(path)
    if there and there != ours and hashlib.sha256(there).hexdigest() != known:
        copy = path.with_name("stepper.orig")
        write(copy, there)
        say("hook", f"the one that was here differs: kept as {copy.relative_to(project)}")
    say("hook", f"{write(path, ours, 0o755)}: {settings.SCRIPT}")


def install_skills(project: Path) -> None:
    """Copy the skills; leave those that the person edited; remove those that this version has no more."""
    shipped, present = shipped_skills(), our_skills(project)
    done: dict[str, list[str]] = {}
    old = [name for name, whose in present.items() if whose == "ours" and name not in shipped]
    for name in (*shipped, *old):
        folder, files = project / SKILLS / name, shipped.get(name, {})
        if present.get(name) == "edited":
            word = "edited by you, kept"
        elif name in present and files and digest(files_in(folder)) == digest(files):
            word = "unchanged"
        else:
            word = "removed" if not files else "updated" if name in present else "made"
            remove(folder)
            for file, content in files.items():
                write(folder / file, content)
        done.setdefault(word, []).append(name)
    for word, names in done.items():
        say("skills", f"{word}: {', '.join(names)}")
    if edited := done.get("edited by you, kept"):
        say("", f"for stepper's own text: rm -r {SKILLS}/{edited[0]}, then run this again")


Verb = Callable[[argparse.Namespace], None]
VERBS: dict[str, Verb] = {"plan": plan, "apply": apply}


def main(verbs: Mapping[str, Verb] = VERBS) -> int:
    """Do the verb that the first argument names; return the exit code. Errors leave through here alone."""
    try:
        verbs[sys.argv[1]](parse(sys.argv[2:]))
    except StepperError as error:
        sys.stderr.write(f"install.sh: {error}\n")
        return error.exit_code
    except OSError as error:
        sys.stderr.write(f"install.sh: {error.filename or ''}: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
