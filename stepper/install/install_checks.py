"""What must be refused and what is to be made, before anything changes: the first half of install.

It runs from the checkout with any Python 3.10 or newer, stdlib only. `plan` answers install.sh in lines that are data.
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
from stepper.common.paths import Paths, read_install_record, record_folder, record_root
from stepper.install import claude_settings, doctor, ipykernel_install, user_script
from stepper.install.install_files import PACKAGE, read, read_settings
from stepper.install.python_probe import Interpreter, probe_kernel_python, run
from stepper.install.skill_files import SKILLS, load_shipped_skills
from stepper.policy.configuration import notebook_globs

SETTINGS = ".claude/settings.json"
ENV = ".stepper/env"
# Where install and uninstall write or remove things, besides the notebooks' folder and
# the skills.
FOLDERS = (".stepper", ".claude", ".claude/hooks", SKILLS)
FILES = (SETTINGS, ".gitignore", claude_settings.SCRIPT)
INSIDE = (
    ENV,
    ".stepper/install.json",
    ".stepper/journal",
    ".stepper/figures",
    ".stepper/kernels",
)
# In the third line of every version of the hook script: how it is known as ours.
SCRIPT_MARK = b"notebook-stepper"


class InterpreterChoice(NamedTuple):
    """The kernel's interpreter: its path, why it is this one, whether `--python` gave it."""

    python: str
    why: str
    given: bool = False
    make: bool = False


def print_line(name: str, what: str) -> None:
    """Tell the person what was done. That nobody listens any more (`| head`) is no reason to stop half way."""
    try:
        sys.stdout.write(f"{name:<12}{what}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """Return the options of install.sh, with absolute paths; raise UsageError."""
    parser = argparse.ArgumentParser(
        prog="install.sh", add_help=False, allow_abbrev=False, exit_on_error=False
    )
    parser.add_argument("target", nargs="?")
    parser.add_argument("--python")
    parser.add_argument("--notebooks", nargs="+", default=[])
    for name in (
        "allow",
        "add-ipykernel",
        "editable",
        "uninstall",
        "demo",
        "link",
        "mcp",
        "mcp-only",
        "statusline",
        "plugin",
        "remade",
    ):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--source", default=str(PACKAGE.parent))
    parser.add_argument("--planned")  # the target as `plan` resolved it
    try:
        options, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise UsageError(str(error), "./install.sh --help") from None
    if unknown:
        raise UsageError(
            f"unknown or too many arguments: {' '.join(unknown)}", "./install.sh --help"
        )
    if options.demo and options.uninstall:
        raise UsageError(
            "--demo and --uninstall exclude each other", "./install.sh --help"
        )
    if options.mcp_only:
        _check_mcp_only(options)
    for pattern in options.notebooks:
        if os.path.isabs(pattern):
            raise UsageError(
                f"--notebooks {pattern}: patterns are relative",
                "./install.sh REPOSITORY --notebooks …",
            )
        if not notebook_globs.is_valid(pattern):
            raise UsageError(
                f"--notebooks {pattern}: no folder or glob inside the project",
                "./install.sh --help",
            )
    if options.python is not None:
        found = (
            options.python if os.sep in options.python else shutil.which(options.python)
        )
        # not resolved: the link in a venv is what makes it that venv's interpreter
        options.python = os.path.abspath(found or options.python)
    options.scratch = options.demo and options.target is None
    if options.scratch and not options.planned:
        options.target = tempfile.mkdtemp(prefix="stepper-demo-")
    if options.demo and options.target and not options.planned:
        _make_folder(options.target)
    options.target = os.path.realpath(options.planned or options.target or ".")
    known = read_install_record(options.target)  # what is there stays
    # the plugin brings the lines of a client
    options.mcp = (
        options.mcp or options.mcp_only or options.plugin or bool(known.get("mcp"))
    )
    return options


# What `--mcp-only` can't be combined with, and why.
NOT_WITH_MCP_ONLY = {
    "allow": "it adds permission rules to Claude Code's settings",
    "statusline": "it is a line of Claude Code's",
    "plugin": "the plugin brings hooks and skills",
    "demo": "the demo plays what Claude Code's hooks do",
    "uninstall": "--uninstall removes every kind of installation",
}


def _check_mcp_only(options: argparse.Namespace) -> None:
    for name, why in NOT_WITH_MCP_ONLY.items():
        if getattr(options, name):
            raise UsageError(
                f"--mcp-only and --{name} exclude each other: {why}",
                "./install.sh --help",
            )


def _make_folder(target: str) -> None:
    """Make the folder of a demo where nothing is there; raise UsageError."""
    if os.path.lexists(target):
        return
    try:
        os.makedirs(target)
    except OSError as error:
        shown = shlex.quote(target)
        raise UsageError(
            f"the folder {shown} could not be made: {error.strerror}",
            f"mkdir -p {shown}",
        ) from None


def check_target(target: str) -> None:
    """Raise UsageError where the folder can't be set up at all."""
    shown = shlex.quote(target)
    if not os.path.lexists(target):
        raise UsageError(f"there is no folder {shown}", f"mkdir -p {shown}")
    if not Path(target).is_dir():
        raise UsageError(f"{shown} is not a folder")
    if set(os.pathsep + "\n") & set(record_folder(target)):
        shown = shlex.quote(record_folder(target))
        raise UsageError(
            f"{shown}: a colon or a line end can't stand on the PATH",
            "rename the folder",
        )
    if target == os.path.realpath(Path.home()):
        raise UsageError(
            f"{shown} is your home folder: its settings hold for all projects",
            "name a repository",
        )
    try:
        tempfile.TemporaryFile(dir=target).close()
    except OSError as error:
        raise UsageError(
            f"{shown} can't be written: {error.strerror}", f"ls -ld {shown}"
        ) from None


def check_links(project: Path, *more: str, claude: bool = True) -> None:
    """Raise StepperError where a link in a place of ours leads out of the project: nothing is written elsewhere.

    Without `claude`, nothing is written in .claude/.

    `.stepper/env` is a link of ours where it leads to an environment of this user's, maybe of a moved checkout.
    """
    skills = (f"{SKILLS}/{name}" for name in load_shipped_skills())
    ours = (*FOLDERS, *FILES, *INSIDE, *skills, *more)
    if not claude:
        ours = (".stepper", ".gitignore", *INSIDE, *more)
    for name in ours:
        place, real = project / name, os.path.realpath(project / name)
        inside = (
            (project, os.path.realpath(record_root())) if name == ENV else (project,)
        )
        if not any(Path(real).is_relative_to(folder) for folder in inside) or (
            name == ".stepper" and place.is_symlink()
        ):
            hint = f"ls -ld {shlex.quote(str(place))}; rm the link, not {real}"
            raise StepperError(f"{place} is or lies behind a link, to {real}", hint)


def check_paths(project: Path, *names: str) -> None:
    """Raise StepperError where something else than a file or folder of ours is in a place, or it can't be written."""
    for name in names:
        place, kind = project / name, "file" if name in FILES else "folder"
        if os.path.lexists(place) and not (
            place.is_file() if kind == "file" else place.is_dir()
        ):
            raise StepperError(
                f"{place} is not a {kind}", "move it away, then run this again"
            )
        if place.exists() and not os.access(
            place, os.W_OK | (os.R_OK if kind == "file" else os.X_OK)
        ):
            raise StepperError(
                f"{place} can't be written", f"ls -ld {shlex.quote(str(place))}"
            )


def check_owners(project: Path) -> None:
    """Raise StepperError where the hook script would replace another one."""
    script = project / claude_settings.SCRIPT
    if script.is_file() and SCRIPT_MARK not in read(script):
        raise StepperError(
            f"{script} is not stepper's", "move it away, then run this again"
        )


def choose_interpreter(
    paths: Paths, given: str | None, environ: Mapping[str, str]
) -> InterpreterChoice:
    """Return the kernel's interpreter: given now or before, .venv's, an active one's, a new .venv's."""
    noted, venv = read_install_record(paths.project), Path(paths.project, ".venv")
    if given:
        return InterpreterChoice(given, "--python", given=True)
    if noted.get("given") and Path(str(noted.get("python"))).exists():
        return InterpreterChoice(
            str(noted["python"]), "given by --python before", given=True
        )
    if (venv / "bin/python").exists():
        return InterpreterChoice(str(venv / "bin/python"), "the project's .venv")
    # where environments of stepper's own lie
    ours = (paths.home, os.path.realpath(record_root()))
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        python, real = (
            Path(environ.get(name, ""), "bin/python"),
            Path(os.path.realpath(environ.get(name, ""))),
        )
        if (
            environ.get(name)
            and python.exists()
            and not any(map(real.is_relative_to, ours))
        ):
            return InterpreterChoice(str(python), f"the active {name}")
    if os.path.lexists(venv):
        raise StepperError(
            f"{venv} has no bin/python",
            "remove it, or name an interpreter: --python PATH",
        )
    return InterpreterChoice(str(venv / "bin/python"), "a new .venv", make=True)


def check_interpreter(choice: InterpreterChoice) -> Interpreter:
    """Return what the interpreter said of itself; raise StepperError where no kernel can be made of it."""
    name = f"{choice.python} ({choice.why})"
    about = probe_kernel_python(choice.python, name, "name another: --python PATH")
    if not about.modules and not shutil.which("uv"):
        why = f"{name} has neither ipykernel nor pip, and uv is not on the PATH"
        raise StepperError(
            why, f"{shlex.quote(choice.python)} -m ensurepip  # then run this again"
        )
    return about


def compute_stamp(options: argparse.Namespace) -> str:
    """Return the fingerprint of this checkout, this mode and this place, which an environment carries."""
    source = PACKAGE.parent
    # an editable environment holds only what the metadata says
    files = [source / "pyproject.toml", source / "stepper/__init__.py"]
    if not options.editable:
        folders = [source / name for name in ("stepper", "hooks", "skills")]
        files += [
            path for folder in folders for path in folder.rglob("*") if path.is_file()
        ]
    total = hashlib.sha256(
        f"{options.editable} {options.mcp} {options.target}".encode(
            "utf-8", "surrogateescape"
        )
    )
    for path in sorted(set(files)):
        if "__pycache__" not in path.parts:
            total.update(
                os.fsencode(path.relative_to(source))
                + b"\0"
                + hashlib.sha256(path.read_bytes()).digest()
            )
    return total.hexdigest()


def is_environment_ready(paths: Paths, wanted: str) -> bool:
    """Tell whether the environment is this user's, complete, works and carries the stamp `wanted`."""
    # `stepper trust` made that link
    if not read_install_record(paths.project) or os.path.islink(paths.env):
        return False
    code = "import stepper.install.installer"
    return (
        read(Path(paths.env, "stamp")).strip() == wanted.encode()
        and run(f"{paths.env}/bin/python", "-I", "-B", "-c", code).returncode == 0
    )


def check_installation(options: argparse.Namespace) -> InterpreterChoice:
    """Return the kernel's interpreter; raise a StepperError where anything stands against installing."""
    check_target(options.target)
    paths = Paths(options.target)
    project = Path(paths.project)
    claude = not options.mcp_only
    check_links(project, claude=claude)
    check_paths(project, *(FOLDERS if claude else (".stepper",)))
    notebooks = doctor.get_notebook_folder(
        options.notebooks or doctor.load_limits(paths).patterns
    )
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
    choice = choose_interpreter(
        paths, options.python, {} if options.scratch else os.environ
    )
    if not choice.make:
        check_interpreter(choice)
    return choice


def _check_no_hooks(paths: Paths) -> None:
    """Raise StepperError where this user installed the hooks: `--mcp-only` would leave them without an owner."""
    record, project = read_install_record(paths.project), Path(paths.project)
    if not record or record.get("mcp_only") or record.get("plugin"):
        return
    if not (project / claude_settings.SCRIPT).exists():
        return
    command = doctor.format_install_command(paths)
    raise StepperError(
        f"you installed stepper's hooks in {project}: MCP works beside them (--mcp)",
        f"{command} --uninstall  # removes them; then run this again",
    )


def print_plan(options: argparse.Namespace) -> None:
    """Print what install.sh is to do: lines, name=value. No value holds a line end, which `check_target` refuses."""
    if options.uninstall:
        check_target(options.target)
        record = read_install_record(options.target)
        project = Path(Paths(options.target).project)
        check_links(project, claude=not record.get("mcp_only"))
    else:
        check_installation(options)
    paths = Paths(options.target)
    wanted = compute_stamp(options)
    values = {
        "target": paths.project,
        "env": paths.env,
        "state": os.path.dirname(os.path.dirname(record_root())),
        "stamp": ""
        if options.uninstall or is_environment_ready(paths, wanted)
        else wanted,
        **{
            name: "yes" if getattr(options, name) else ""
            for name in ("editable", "demo", "scratch", "uninstall", "mcp")
        },
    }
    sys.stdout.buffer.write(
        os.fsencode("".join(f"{name}={value}\n" for name, value in values.items()))
    )
