"""ipykernel for a project's kernels: among its dependencies, in its interpreter, or stepper's own copy behind it.

A manager that makes an environment what its lock says (`uv sync`) removes what the project does not name. Stdlib only.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

from stepper.common.errors import UsageError
from stepper.common.paths import Paths, ipykernel_folder
from stepper.install.install_files import read, remove
from stepper.install.python_probe import Interpreter, get_output_tail, run

ADD = ("uv", "add", "--dev", "ipykernel")
LOCKED = re.compile(
    r'^\[\[package\]\]\nname = "([\w.-]+)"\nversion = "([\w.+!-]+)"$', re.MULTILINE
)
NAMED = re.compile(
    rb"""^name = "ipykernel"$|["']ipykernel(?![\w.-])|^ipykernel *=""", re.MULTILINE
)
TABLE = re.compile(
    rb"^\[([^\[\]\n]+)\][^\n]*\n(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL
)
# What a sync always brings; not an extra, nor another group.
SYNCED = {
    b"project": b"dependencies",
    b"dependency-groups": b"dev",
    b"tool.uv": b"dev-dependencies",
}


def is_dependency(project: Path) -> bool:
    """Whether ipykernel is among what a sync of the project's dependencies brings, or what those need.

    The lock has what extras bring as well: where one names ipykernel, being locked says nothing.
    """
    told = read(project / "pyproject.toml")
    for table, content in TABLE.findall(told):
        key = SYNCED.get(table.strip())
        listed = (
            re.search(
                rb"^%s\s*=\s*\[((?:(?!^[\w\"-]+\s*=).)*)" % key, content, re.M | re.S
            )
            if key
            else None
        )
        of_others = content if table.startswith((b"tool.poetry", b"tool.pdm")) else b""
        if NAMED.search(listed[1] if listed else of_others):
            return True
    return not NAMED.search(told) and bool(NAMED.search(read(project / "uv.lock")))


def is_uv_project(project: Path) -> bool:
    """Whether uv manages the project, or could."""
    table = re.search(rb"^\[project\]", read(project / "pyproject.toml"), re.MULTILINE)
    return (project / "uv.lock").exists() or bool(table and shutil.which("uv"))


def install_ipykernel(project: Path, *pip: str) -> CompletedProcess[str]:
    """Install ipykernel by that command, where possible in a version that goes with what the project's lock names."""
    lock = read(project / "uv.lock").decode("utf-8", "replace")
    # of a package that is locked twice, the last one's
    versions = dict(LOCKED.findall(lock))
    if versions:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(
                f"{name}=={version}\n" for name, version in versions.items()
            )
            file.flush()
            done = run(*pip, "--constraint", file.name, "ipykernel", cwd=str(project))
        if done.returncode == 0:
            return done
    return run(*pip, "ipykernel", cwd=str(project))


def check_add(project: Path) -> None:
    """Raise UsageError where `--add-ipykernel` can't be done."""
    if not is_uv_project(project):
        why = (
            f"--add-ipykernel: {project} is no project of uv's (it has no"
            " pyproject.toml with a [project])"
        )
        raise UsageError(
            why, "leave it out: ipykernel is put into the kernel's environment anyway"
        )
    if not shutil.which("uv"):
        raise UsageError(
            "--add-ipykernel: uv is not on the PATH",
            "install uv: https://docs.astral.sh/uv/",
        )


def suggest_dependency(project: Path) -> list[str]:
    """Return what tells how ipykernel stays in the environment of a project that does not name it."""
    if not is_uv_project(project) or is_dependency(project):
        return []
    return [
        "`uv sync` removes ipykernel, which is none of the project's dependencies:"
        f" {' '.join(ADD)}",
        "(install.sh --add-ipykernel does that; else kernels start with stepper's own"
        " copy then)",
    ]


def make_copy(paths: Paths, python: str, about: Interpreter) -> str:
    """Make stepper's own copy for kernels of that Python, where something may remove the environment's.

    Return what to say. That it can't be made is no reason not to install: a kernel that lacks it names the command.
    """
    project, target = (
        Path(paths.project),
        Path(ipykernel_folder(paths.env, about.version)),
    )
    synced = any((project / name).exists() for name in ("pyproject.toml", "uv.lock"))
    if is_dependency(project) or not synced or target.is_dir():
        return ""
    made, uv = target.with_name(f"{target.name}.new"), shutil.which("uv")
    remove(made)
    # the interpreter itself may have no pip
    own = [sys.executable, "-I", "-m", "pip", "--python", python, "install"]
    pip = [uv, "pip", "install", "--python", python] if uv else own
    done = install_ipykernel(project, *map(str, pip), "--quiet", "--target", str(made))
    if done.returncode:
        remove(made)
        return (
            "no copy of ipykernel could be made for the day when the environment's"
            f" is removed: {get_output_tail(done)}"
        )
    made.replace(target)
    return (
        f"stepper keeps a copy of ipykernel for Python {about.version}, for the day"
        " when the environment's is removed"
    )
