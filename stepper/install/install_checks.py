"""The checks before an installation, and the plan for install.sh.

All checks are made before the installation changes anything. This module runs from the
checkout with Python 3.10 or newer and uses only the standard library.
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
from stepper.install.install_file_io import PACKAGE, read, read_settings
from stepper.install.python_probe import Interpreter, probe_kernel_python, run
from stepper.install.skill_states import SKILLS, load_shipped_skills

SETTINGS = ".claude/settings.json"
ENV = ".stepper/env"
# The paths that install and uninstall change, except the notebook folder and the folder
# of each skill.
FOLDERS = (".stepper", ".claude", ".claude/hooks", SKILLS)
FILES = (SETTINGS, ".gitignore", claude_settings.SCRIPT)
STEPPER_PATHS = (
    ENV,
    ".stepper/install.json",
    ".stepper/journal",
    ".stepper/figures",
    ".stepper/kernels",
)
# The third line of every version of the hook script contains this mark.
SCRIPT_MARK = b"notebook-stepper"


class InterpreterChoice(NamedTuple):
    """The choice of the kernels' interpreter.

    `python` is its path, and `reason` is the reason for the choice. `given` means that
    the user named the interpreter with `--python`, and `is_new_venv` that it is in a
    `.venv` that must be created.
    """

    python: str
    reason: str
    given: bool = False
    is_new_venv: bool = False


def check_target(target: str) -> None:
    """Raise UsageError if stepper cannot be set up in a folder."""
    shown = shlex.quote(target)
    if not os.path.lexists(target):
        raise UsageError(f"the folder {shown} does not exist", f"mkdir -p {shown}")
    if not Path(target).is_dir():
        raise UsageError(f"{shown} is not a folder")
    # The folder of the record ends with the path of the target. It is on the PATH, and
    # in the plan, which has one line for each value.
    record_folder = get_record_folder(target)
    if os.pathsep in record_folder or "\n" in record_folder:
        shown = shlex.quote(record_folder)
        raise UsageError(
            f"{shown}: the path must not contain a colon or a line break",
            "rename the folder",
        )
    if target == os.path.realpath(Path.home()):
        raise UsageError(
            f"{shown} is your home folder: settings in it apply to all projects",
            "name a repository instead",
        )
    try:
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise UsageError(
            f"{shown} can't be written: {error.strerror}", f"ls -ld {shown}"
        ) from None


def check_links(project: Path, *other_names: str, claude: bool = True) -> None:
    """Raise StepperError if one of stepper's paths leads out of the project.

    Also raise the error if `.stepper` is a link. `other_names` are further paths to
    check, relative to the project. `claude` is true if stepper uses .claude/.
    """
    names = (".stepper", ".gitignore", *STEPPER_PATHS, *other_names)
    if claude:
        skills = (f"{SKILLS}/{name}" for name in load_shipped_skills())
        names = (*FOLDERS, *FILES, *STEPPER_PATHS, *skills, *other_names)
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
                f"{path} is a link or is below a link: it leads to {target}",
                f"ls -ld {shlex.quote(str(path))}  # remove the link, not {target}",
            )


def check_paths(project: Path, *names: str) -> None:
    """Raise StepperError if a path of the project has the wrong type or permissions.

    Paths that do not exist are allowed.
    """
    for name in names:
        path = project / name
        if not os.path.lexists(path):
            continue
        if name in FILES:
            kind = "file"
            has_right_type = path.is_file()
            permissions = os.R_OK | os.W_OK
        else:
            kind = "folder"
            has_right_type = path.is_dir()
            permissions = os.W_OK | os.X_OK
        if not has_right_type:
            raise StepperError(
                f"{path} is not a {kind}", f"move {path} away, then install again"
            )
        if not os.access(path, permissions):
            raise StepperError(
                f"{path} can't be written", f"ls -ld {shlex.quote(str(path))}"
            )


def check_script_path(project: Path) -> None:
    """Raise StepperError if another program has a file at the hook script's path."""
    script = project / claude_settings.SCRIPT
    if script.is_file() and SCRIPT_MARK not in read(script):
        raise StepperError(
            f"{script} belongs to another program",
            f"move {script} away, then install again",
        )


def choose_interpreter(
    paths: Paths, given: str | None, environ: Mapping[str, str]
) -> InterpreterChoice:
    """Choose the interpreter of the kernels.

    The order of precedence is: `given`, the path from `--python`; the path that
    `--python` named in an earlier installation; the project's `.venv`; an active
    environment; a new `.venv`.

    Raises:
        StepperError: No interpreter was found, and `.venv` exists.
    """
    record = read_install_record(paths.project)
    venv = Path(paths.project, ".venv")
    venv_python = venv / "bin/python"
    if given:
        return InterpreterChoice(given, "--python", given=True)
    recorded_python = str(record.get("python", ""))
    if record.get("given") and Path(recorded_python).exists():
        return InterpreterChoice(
            recorded_python, "named by --python in an earlier installation", given=True
        )
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
            f"remove {venv}, or name an interpreter: --python PATH",
        )
    return InterpreterChoice(str(venv_python), "a new .venv", is_new_venv=True)


def check_interpreter(choice: InterpreterChoice) -> Interpreter:
    """Return the version and modules of an interpreter.

    Raises:
        StepperError: The interpreter can't run a kernel, or ipykernel is missing and
            can't be installed.
    """
    name = f"{choice.python} ({choice.reason})"
    interpreter = probe_kernel_python(
        choice.python, name, "name another interpreter: --python PATH"
    )
    if not interpreter.modules and not shutil.which("uv"):
        raise StepperError(
            f"{name} has neither ipykernel nor pip, and uv is not on the PATH",
            f"{shlex.quote(choice.python)} -m ensurepip  # then install again",
        )
    return interpreter


def compute_stamp(options: argparse.Namespace) -> str:
    """Return the fingerprint of the environment that this checkout would create.

    The fingerprint depends on the sources, the options and the target.
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
        stamp.update(os.fsencode(path.relative_to(source)))
        stamp.update(b"\0")  # separates the name from the hash
        stamp.update(hashlib.sha256(path.read_bytes()).digest())
    return stamp.hexdigest()


def is_environment_ready(paths: Paths, stamp: str) -> bool:
    """Return whether the user's environment works and has the fingerprint `stamp`."""
    # If the environment is a link, `stepper trust` created it.
    if not read_install_record(paths.project) or os.path.islink(paths.env):
        return False
    if read(Path(paths.env, "stamp")).strip() != stamp.encode():
        return False
    code = "import stepper.install.installer"
    return run(f"{paths.env}/bin/python", "-I", "-B", "-c", code).returncode == 0


def check_and_choose_interpreter(options: argparse.Namespace) -> InterpreterChoice:
    """Check that stepper can be installed, and choose the kernels' interpreter.

    Raises:
        StepperError: The installation is not possible.
    """
    check_target(options.target)
    paths = Paths(options.target)
    project = Path(paths.project)
    uses_claude_code = not options.mcp_only
    _check_project_paths(paths, options, uses_claude_code)
    if uses_claude_code:
        check_script_path(project)
        read_settings(project / SETTINGS)  # raises StepperError if it is not valid
    else:
        _check_no_hooks(paths)
    if options.link:
        user_script.check_script_name()
    if options.add_ipykernel:
        ipykernel_install.check_add(project)
    # A demo in a temporary folder does not use the active environment.
    environ = {} if options.scratch else os.environ
    choice = choose_interpreter(paths, options.python, environ)
    if not choice.is_new_venv:
        check_interpreter(choice)
    return choice


def _check_project_paths(
    paths: Paths, options: argparse.Namespace, uses_claude_code: bool
) -> None:
    """Raise StepperError if stepper can't use a path in the project."""
    project = Path(paths.project)
    folders: tuple[str, ...] = (".stepper",)
    files: tuple[str, ...] = (".gitignore",)
    if uses_claude_code:
        folders = FOLDERS
        files = FILES
    # Before the configuration, which names the notebook folder, is read.
    check_links(project, claude=uses_claude_code)
    check_paths(project, *folders)
    patterns = options.notebooks or doctor.load_limits(paths).patterns
    notebooks = doctor.get_notebook_folder(patterns)
    check_links(project, notebooks, claude=uses_claude_code)
    check_paths(project, notebooks, *files)


def _check_no_hooks(paths: Paths) -> None:
    """Raise StepperError if this user installed the hooks.

    An installation with `--mcp-only` would remove the hooks from the record.
    """
    record = read_install_record(paths.project)
    project = Path(paths.project)
    if not record or record.get("mcp_only") or record.get("plugin"):
        return
    if not (project / claude_settings.SCRIPT).exists():
        return
    command = doctor.format_install_command(paths, options=" --uninstall")
    raise StepperError(
        f"you installed stepper's hooks in {project}; to support MCP clients too, use"
        " --mcp instead of --mcp-only",
        f"{command}  # removes the hooks; then install again",
    )


def print_plan(options: argparse.Namespace) -> None:
    """Make all checks, and print the plan for install.sh, as lines NAME=VALUE.

    Raise StepperError if a check fails. The values contain no line breaks, because
    `check_target` refuses folders with line breaks in their paths.
    """
    if options.uninstall:
        check_target(options.target)
        record = read_install_record(options.target)
        project = Path(Paths(options.target).project)
        check_links(project, claude=not record.get("mcp_only"))
    else:
        check_and_choose_interpreter(options)
    paths = Paths(options.target)
    stamp = compute_stamp(options)
    if options.uninstall or is_environment_ready(paths, stamp):
        stamp = ""  # no environment needs to be created
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
