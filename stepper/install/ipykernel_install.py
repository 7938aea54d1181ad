"""Install ipykernel for a project's kernels.

ipykernel is a dependency of the project or is installed into the kernels' environment.
Because `uv sync` removes packages that are not dependencies, stepper also keeps its own
copy. This module uses only the standard library.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

from stepper.common.errors import UsageError
from stepper.common.paths import Paths, get_ipykernel_folder
from stepper.install.install_file_io import read, remove
from stepper.install.python_probe import Interpreter, get_output_tail, run

ADD = ("uv", "add", "--dev", "ipykernel")
# A package in uv.lock.
LOCKED = re.compile(
    r'^\[\[package\]\]\nname = "([\w.-]+)"\nversion = "([\w.+!-]+)"$', re.MULTILINE
)
# ipykernel as a locked package, in a list of requirements, or as a key.
NAMED = re.compile(
    rb"""^name = "ipykernel"$|["']ipykernel(?![\w.-])|^ipykernel *=""", re.MULTILINE
)
# A table of pyproject.toml: its name and its content.
TABLE = re.compile(
    rb"^\[([^\[\]\n]+)\][^\n]*\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL
)
# The keys whose requirements every sync installs; extras and other groups need options.
SYNCED_KEYS = {
    b"project": b"dependencies",
    b"dependency-groups": b"dev",
    b"tool.uv": b"dev-dependencies",
}
# The list of a key, from its opening bracket to the next key. The list does not end at
# a closing bracket, because requirements contain brackets too (`package[extra]`).
LIST = rb"^%s\s*=\s*\[((?:(?!^[\w\"-]+\s*=).)*)"
# Another dependency group whose requirements a group contains.
INCLUDED_GROUP = re.compile(rb"""include-group *= *["']([\w.-]+)["']""")


def is_dependency(project: Path) -> bool:
    """Return whether a sync of the project's dependencies installs ipykernel."""
    pyproject = read(project / "pyproject.toml")
    for table, content in TABLE.findall(pyproject):
        if NAMED.search(_find_requirements(table, content)):
            return True
    if NAMED.search(pyproject):
        # Only an extra or another group requires ipykernel. It may therefore be in the
        # lock file, although a sync does not install it.
        return False
    return bool(NAMED.search(read(project / "uv.lock")))


def _find_requirements(table: bytes, content: bytes) -> bytes:
    """Return the requirements in a table that every sync installs.

    `table` is the name of the table. Return empty bytes if there are none.
    """
    key = SYNCED_KEYS.get(table.strip())
    if key:
        return _read_lists(content, key)
    if table.startswith((b"tool.poetry", b"tool.pdm")):
        return content
    return b""


def _read_lists(content: bytes, key: bytes) -> bytes:
    """Return the items of a key's list, and of the dependency groups that it includes.

    `content` is the content of the key's table. Return empty bytes if there are none.
    """
    keys = [key]
    items = b""
    for name in keys:  # included groups are added to the list
        pattern = LIST % re.escape(name)
        match = re.search(pattern, content, re.MULTILINE | re.DOTALL)
        if match:
            items += match[1]
            groups = INCLUDED_GROUP.findall(match[1])
            keys += [group for group in groups if group not in keys]
    return items


def is_uv_project(project: Path) -> bool:
    """Return whether uv manages the project or could manage it."""
    if (project / "uv.lock").exists():
        return True
    return has_project_table(project) and shutil.which("uv") is not None


def has_project_table(project: Path) -> bool:
    """Return whether the project's pyproject.toml has a [project] table."""
    pyproject = read(project / "pyproject.toml")
    return re.search(rb"^\[project\]", pyproject, re.MULTILINE) is not None


def install_ipykernel(project: Path, *pip: str) -> CompletedProcess[str]:
    """Install ipykernel with a pip command, and return the result of the process.

    If the project has a lock file, the first attempt uses the versions in this file.
    """
    lock = read(project / "uv.lock").decode("utf-8", "replace")
    # If a package is locked in two versions, the last version is used.
    versions = dict(LOCKED.findall(lock))
    if versions:
        constraints = [f"{name}=={version}\n" for name, version in versions.items()]
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(constraints)
            file.flush()
            command = [*pip, "--constraint", file.name, "ipykernel"]
            result = run(*command, cwd=str(project))
        if result.returncode == 0:
            return result
    return run(*pip, "ipykernel", cwd=str(project))


def check_add(project: Path) -> None:
    """Raise UsageError if the project does not support `--add-ipykernel`."""
    if not has_project_table(project) and not (project / "uv.lock").exists():
        raise UsageError(
            f"--add-ipykernel: uv does not manage {project}, because the project has no"
            " pyproject.toml with a [project] table",
            "install without --add-ipykernel: ipykernel is then installed into the"
            " kernel's environment",
        )
    if not shutil.which("uv"):
        raise UsageError(
            "--add-ipykernel: uv is not on the PATH",
            "install uv: https://docs.astral.sh/uv/",
        )


def suggest_dependency(project: Path) -> list[str]:
    """Return lines that suggest adding ipykernel to the dependencies of a uv project.

    The list is empty if this is not necessary.
    """
    if not is_uv_project(project) or is_dependency(project):
        return []
    return [
        "`uv sync` removes ipykernel, because the project does not depend on it. To add"
        f" the dependency, run: {' '.join(ADD)}",
        "(install.sh --add-ipykernel does the same; without ipykernel, kernels start"
        " with stepper's own copy)",
    ]


def make_copy(paths: Paths, python: str, interpreter: Interpreter) -> str:
    """Install a copy of ipykernel for the interpreter's Python version, if necessary.

    A copy is necessary if a sync may remove ipykernel from the environment. Return a
    message for the user, or an empty string if nothing was done. A failure does not
    stop the installation: if ipykernel is missing when a kernel starts, the error names
    the command that installs it.
    """
    project = Path(paths.project)
    folder = Path(get_ipykernel_folder(paths.env, interpreter.version))
    is_synced = any((project / name).exists() for name in ("pyproject.toml", "uv.lock"))
    if not is_synced or folder.is_dir() or is_dependency(project):
        return ""
    new_folder = folder.with_name(f"{folder.name}.new")
    remove(new_folder)
    uv = shutil.which("uv")
    # The interpreter may not have pip.
    pip = [sys.executable, "-I", "-m", "pip", "--python", python, "install"]
    if uv:
        pip = [uv, "pip", "install", "--python", python]
    result = install_ipykernel(project, *pip, "--quiet", "--target", str(new_folder))
    if result.returncode:
        remove(new_folder)
        return (
            "stepper could not install its own copy of ipykernel:"
            f" {get_output_tail(result)}"
        )
    new_folder.replace(folder)
    return (
        f"stepper keeps its own copy of ipykernel for Python {interpreter.version}, in"
        " case ipykernel is removed from the environment"
    )
