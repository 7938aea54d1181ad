"""The folders and the interpreter of a replay without a daemon.

stepper is not installed in the project, so its own files are in a temporary folder, and
no record names the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stepper.common.errors import UsageError
from stepper.common.paths import VENV_PYTHON, Paths, get_ipykernel_folder

# Files that mark the environment of one program: of `uv tool install`, of pipx, and of
# a cache, such as that of uvx.
TOOL_MARKERS = ("uv-receipt.toml", "pipx_metadata.json")
CACHE_MARKER = "CACHEDIR.TAG"
PROJECT_MARKERS = (".git", ".stepper")


class StandalonePaths(Paths):
    """The paths of a project in which stepper is not installed.

    The user asked to run the code of this project, so its interpreter needs no trust.
    """

    def __init__(self, project: str, home: str, python: str) -> None:
        super().__init__(project, home)
        self.python = python

    @property
    def active_env(self) -> str:
        """A folder with links to the environment of this program."""
        return os.path.join(self.home, "env")

    def find_python(self, configured: str | None) -> str:
        """Return the interpreter for the kernel; ignore `python:` in the project."""
        return self.python

    def trusts_python(self, python: str) -> bool:
        """Return whether the interpreter may run."""
        return True

    def trusts_backend(self, definition: Any) -> bool:
        """Return whether a kernel backend may be used."""
        return True


@contextlib.contextmanager
def create_paths(project: str, python: str) -> Iterator[StandalonePaths]:
    """Create the temporary folders of a replay, and remove them afterwards."""
    with tempfile.TemporaryDirectory(prefix="stepper-verify-") as folder:
        home = os.path.join(os.path.realpath(folder), "home")
        paths = StandalonePaths(project, home, python)
        paths.create_home_folder()
        paths.create_runtime_folder()
        _link_environment(paths.active_env)
        try:
            yield paths
        finally:
            shutil.rmtree(paths.runtime, ignore_errors=True)


def _link_environment(env: str) -> None:
    """Create links to this environment in the folder `env`.

    `bin` is removed from the PATH of the kernel. If this environment has an ipykernel,
    an interpreter of the same version without ipykernel uses it.
    """
    os.mkdir(env)
    os.symlink(os.path.join(sys.prefix, "bin"), os.path.join(env, "bin"))
    packages = sysconfig.get_path("purelib")
    if os.path.isdir(os.path.join(packages, "ipykernel")):
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        os.symlink(packages, get_ipykernel_folder(env, version))


def find_project_folder(notebook: str) -> str:
    """Return the project of a notebook: the repository, or the current folder.

    If the notebook is in neither, return its own folder.
    """
    folder = Path(os.path.realpath(notebook)).parent
    for parent in (folder, *folder.parents):
        if any((parent / marker).exists() for marker in PROJECT_MARKERS):
            return str(parent)
    current = Path(os.path.realpath("."))
    if folder.is_relative_to(current):
        return str(current)
    return str(folder)


def find_python(
    configured: str | None, notebook: str, environ: Mapping[str, str]
) -> str:
    """Return the interpreter for a notebook.

    This is the first of these interpreters that exists: `configured`, the one of the
    active virtual environment, of this program's environment, of the nearest `.venv`
    above the notebook, or of the active conda environment, and `python3` on the PATH.
    An environment that contains only this program (uvx, pipx) is used only if there is
    no other interpreter. Raise UsageError if `configured` is not an interpreter.
    """
    if configured:
        return _check_python(configured)
    is_tool = is_tool_environment(sys.prefix)
    candidates = [_join_python(environ.get("VIRTUAL_ENV", ""))]
    if not is_tool:
        candidates.append(sys.executable)
    candidates += _list_venv_pythons(notebook)
    candidates.append(_join_python(environ.get("CONDA_PREFIX", "")))
    for python in candidates:
        is_own = os.path.dirname(os.path.dirname(python)) == sys.prefix
        if is_own and is_tool:
            continue
        if python and os.access(python, os.X_OK):
            return python
    return _find_on_path(environ) or sys.executable


def _list_venv_pythons(notebook: str) -> list[str]:
    """Return the interpreters that `.venv` folders above a notebook may contain.

    The folders are those from the notebook's folder up to the project.
    """
    project = Path(find_project_folder(notebook))
    pythons = []
    for folder in Path(os.path.realpath(notebook)).parents:
        pythons.append(str(folder / VENV_PYTHON))
        if folder == project:
            break
    return pythons


def _check_python(path: str) -> str:
    """Return the absolute path of an interpreter.

    Raise UsageError if it is not an executable file.
    """
    python = os.path.abspath(os.path.expanduser(path))
    if os.path.isdir(python):
        python = _join_python(python)  # an environment
    if not os.path.isfile(python) or not os.access(python, os.X_OK):
        raise UsageError(f"--python: {path} is not an interpreter")
    return python


def _join_python(env: str) -> str:
    """Return the interpreter of an environment; an empty string if `env` is empty."""
    if not env:
        return ""
    return os.path.join(env, "bin", "python")


def _find_on_path(environ: Mapping[str, str]) -> str:
    """Return the path of `python3` or `python` on the PATH, or an empty string.

    The environment of this program is not searched.
    """
    own_folder = os.path.realpath(os.path.join(sys.prefix, "bin"))
    folders = [
        folder
        for folder in environ.get("PATH", os.defpath).split(os.pathsep)
        if os.path.realpath(folder) != own_folder
    ]
    search_path = os.pathsep.join(folders)
    for name in ("python3", "python"):
        python = shutil.which(name, path=search_path)
        if python:
            return python
    return ""


def is_tool_environment(prefix: str) -> bool:
    """Return whether an environment contains only one program and its dependencies.

    uvx, `uv tool install` and pipx create such environments.
    """
    environment = Path(prefix)
    if any((environment / name).exists() for name in TOOL_MARKERS):
        return True
    return any((parent / CACHE_MARKER).exists() for parent in environment.parents)
