"""The checks before an installation, and the plan for install.sh.

Everything that can be refused is refused before anything changes. This module runs from
the checkout with Python 3.10 or newer and the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import (
    Paths,
    get_record_folder,
    get_record_root,
    read_install_record,
)
from stepper.install import claude_settings, doctor, ipykernel_install, user_script
from stepper.install.installed_files import PACKAGE, read, read_settings
from stepper.install.python_probe import Interpreter, probe_kernel_python, run
from stepper.install.skill_states import SKILLS, load_shipped_skills

SETTINGS = ".claude/settings.json"
ENV = ".stepper/env"
# Where install and uninstall write or remove files, except notebooks and skills.
FOLDERS = (".stepper", ".claude", ".claude/hooks", SKILLS)
FILES = (SETTINGS, ".gitignore", claude_settings.SCRIPT)
STEPPER_PATHS = (
    ENV,
    ".stepper/install.json",
    ".stepper/journal",
    ".stepper/figures",
    ".stepper/kernels",
)
# The third line of every version of the hook script contains it.
SCRIPT_MARK = b"notebook-stepper"


class InterpreterChoice(NamedTuple):
    """The interpreter of the kernels.

    `why` says why this one was chosen. `given` is true if `--python` named it, and
    `make` if its `.venv` must be created.
    """

    python: str
    why: str
    given: bool = False
    make: bool = False


def check_target(target: str) -> None:
    """Raise UsageError if stepper cannot be set up in a folder."""
    shown = shlex.quote(target)
    if not os.path.lexists(target):
        raise UsageError(f"there is no folder {shown}", f"mkdir -p {shown}")
    if not Path(target).is_dir():
        raise UsageError(f"{shown} is not a folder")
    if set(os.pathsep + "\n") & set(get_record_folder(target)):
        shown = shlex.quote(get_record_folder(target))
        raise UsageError(
            f"{shown}: the PATH cannot contain a colon or a line break",
            "rename the folder",
        )
    if target == os.path.realpath(Path.home()):
        raise UsageError(
            f"{shown} is your home folder: its settings apply to all projects",
            "name a repository",
        )
    try:
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise UsageError(
            f"{shown} can't be written: {error.strerror}", f"ls -ld {shown}"
        ) from None


def check_links(project: Path, *more: str, claude: bool = True) -> None:
    """Raise StepperError if a link leads one of stepper's paths out of the project.

    `more` are further paths. If `claude` is false, nothing is written in .claude/.
    """
    names = (".stepper", ".gitignore", *STEPPER_PATHS, *more)
    if claude:
        skills = (f"{SKILLS}/{name}" for name in load_shipped_skills())
        names = (*FOLDERS, *FILES, *STEPPER_PATHS, *skills, *more)
    for name in names:
        path = project / name
        target = Path(os.path.realpath(path))
        allowed_folders = [project]
        if name == ENV:
            # A link of stepper's own leads to the environment in the user's state
            # folder, possibly of a checkout that was moved.
            allowed_folders.append(Path(os.path.realpath(get_record_root())))
        is_inside = any(map(target.is_relative_to, allowed_folders))
        is_home_link = name == ".stepper" and path.is_symlink()
        if not is_inside or is_home_link:
            raise StepperError(
                f"{path} is a link, or is behind one, to {target}",
                f"ls -ld {shlex.quote(str(path))}; rm the link, not {target}",
            )


def check_paths(project: Path, *names: str) -> None:
    """Raise StepperError if a path has the wrong type or cannot be written."""
    for name in names:
        path = project / name
        is_file = name in FILES
        if not os.path.lexists(path):
            continue
        has_type = path.is_file() if is_file else path.is_dir()
        if not has_type:
            raise StepperError(
                f"{path} is not a {'file' if is_file else 'folder'}",
                "move it away, then run this again",
            )
        permissions = os.W_OK | (os.R_OK if is_file else os.X_OK)
        if not os.access(path, permissions):
            raise StepperError(
                f"{path} can't be written", f"ls -ld {shlex.quote(str(path))}"
            )


def check_owners(project: Path) -> None:
    """Raise StepperError if the hook script would replace a file of another program."""
    script = project / claude_settings.SCRIPT
    if script.is_file() and SCRIPT_MARK not in read(script):
        raise StepperError(
            f"{script} is not stepper's", "move it away, then run this again"
        )


def choose_interpreter(
    paths: Paths, given: str | None, environ: Mapping[str, str]
) -> InterpreterChoice:
    """Choose the interpreter of the kernels.

    This is the one of `--python`, now or in an earlier installation, that of `.venv`,
    an active environment's, or that of a new `.venv`.
    """
    record = read_install_record(paths.project)
    venv = Path(paths.project, ".venv")
    venv_python = venv / "bin/python"
    if given:
        return InterpreterChoice(given, "--python", given=True)
    recorded = str(record.get("python"))
    if record.get("given") and Path(recorded).exists():
        return InterpreterChoice(recorded, "given by --python before", given=True)
    if venv_python.exists():
        return InterpreterChoice(str(venv_python), "the project's .venv")
    # Environments of stepper itself are below these folders.
    stepper_folders = (paths.home, os.path.realpath(get_record_root()))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if not environ.get(name):
            continue
        python = Path(environ[name], "bin/python")
        folder = Path(os.path.realpath(environ[name]))
        if python.exists() and not any(map(folder.is_relative_to, stepper_folders)):
            return InterpreterChoice(str(python), f"the active {name}")
    if os.path.lexists(venv):
        raise StepperError(
            f"{venv} has no bin/python",
            "remove it, or name an interpreter: --python PATH",
        )
    return InterpreterChoice(str(venv_python), "a new .venv", make=True)


def check_interpreter(choice: InterpreterChoice) -> Interpreter:
    """Return the version and modules of an interpreter.

    Raises:
        StepperError: It cannot run a kernel, and ipykernel cannot be installed for it.
    """
    name = f"{choice.python} ({choice.why})"
    interpreter = probe_kernel_python(
        choice.python, name, "name another: --python PATH"
    )
    if not interpreter.modules and not shutil.which("uv"):
        raise StepperError(
            f"{name} has neither ipykernel nor pip, and uv is not on the PATH",
            f"{shlex.quote(choice.python)} -m ensurepip  # then run this again",
        )
    return interpreter


def compute_stamp(options: argparse.Namespace) -> str:
    """Return the fingerprint of an environment made from this checkout.

    It changes with the sources, the options and the target.
    """
    source = PACKAGE.parent
    # An editable environment contains only metadata.
    files = [source / "pyproject.toml", source / "stepper/__init__.py"]
    if not options.editable:
        for name in ("stepper", "hooks", "skills"):
            files += filter(Path.is_file, (source / name).rglob("*"))
    settings = f"{options.editable} {options.mcp} {options.target}"
    stamp = hashlib.sha256(settings.encode("utf-8", "surrogateescape"))
    for path in sorted(set(files)):
        if "__pycache__" in path.parts:
            continue
        name_bytes = os.fsencode(path.relative_to(source))
        stamp.update(name_bytes + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return stamp.hexdigest()


def is_environment_ready(paths: Paths, stamp: str) -> bool:
    """Return whether the user's environment is complete, works and has a stamp."""
    # `stepper trust` creates a link.
    if not read_install_record(paths.project) or os.path.islink(paths.env):
        return False
    if read(Path(paths.env, "stamp")).strip() != stamp.encode():
        return False
    code = "import stepper.install.installer"
    return run(f"{paths.env}/bin/python", "-I", "-B", "-c", code).returncode == 0


def check_installation(options: argparse.Namespace) -> InterpreterChoice:
    """Return the kernels' interpreter; raise StepperError if install can't run."""
    check_target(options.target)
    paths = Paths(options.target)
    project = Path(paths.project)
    claude = not options.mcp_only
    check_links(project, claude=claude)
    check_paths(project, *(FOLDERS if claude else (".stepper",)))
    patterns = options.notebooks or doctor.load_limits(paths).patterns
    notebooks = doctor.get_notebook_folder(patterns)
    check_links(project, notebooks, claude=claude)
    check_paths(project, notebooks, *(FILES if claude else (".gitignore",)))
    if claude:
        check_owners(project)
        read_settings(project / SETTINGS)
    else:
        _check_no_hooks(paths)
    if options.link:
        user_script.check_script_name()
    if options.add_ipykernel:
        ipykernel_install.check_add(project)
    environ = {} if options.scratch else os.environ
    choice = choose_interpreter(paths, options.python, environ)
    if not choice.make:
        check_interpreter(choice)
    return choice


def _check_no_hooks(paths: Paths) -> None:
    """Raise StepperError if this user installed the hooks.

    With `--mcp-only`, the record would not contain them any more.
    """
    record = read_install_record(paths.project)
    project = Path(paths.project)
    if not record or record.get("mcp_only") or record.get("plugin"):
        return
    if not (project / claude_settings.SCRIPT).exists():
        return
    command = doctor.format_install_command(paths)
    raise StepperError(
        f"you installed stepper's hooks in {project}: with --mcp, MCP clients can use"
        " it too",
        f"{command} --uninstall  # removes them; then run this again",
    )


def print_plan(options: argparse.Namespace) -> None:
    """Print for install.sh what it must do, as lines NAME=VALUE.

    No value contains a line break, because `check_target` refuses such folders.
    """
    if options.uninstall:
        check_target(options.target)
        record = read_install_record(options.target)
        project = Path(Paths(options.target).project)
        check_links(project, claude=not record.get("mcp_only"))
    else:
        check_installation(options)
    paths = Paths(options.target)
    stamp = compute_stamp(options)
    if options.uninstall or is_environment_ready(paths, stamp):
        stamp = ""  # no environment must be created
    values = {
        "target": paths.project,
        "env": paths.env,
        "state": os.path.dirname(os.path.dirname(get_record_root())),
        "stamp": stamp,
    }
    for name in ("editable", "demo", "scratch", "uninstall", "mcp"):
        values[name] = "yes" if getattr(options, name) else ""
    lines = [f"{name}={value}\n" for name, value in values.items()]
    sys.stdout.buffer.write(os.fsencode("".join(lines)))
