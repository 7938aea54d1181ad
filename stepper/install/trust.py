"""The record of the programs that may run in a checkout.

`stepper trust` adds programs to the record, which is in the user's state folder: files
in a checkout may come from a stranger. The token in the checkout distinguishes this
checkout from a later one at the same path.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.paths import (
    SCRIPT,
    Paths,
    get_record_folder,
    get_record_root,
    read_install_record,
)
from stepper.common.text import escape_controls, shell_quote
from stepper.install.install_file_io import link
from stepper.policy.model import Limits

# Keys of the configuration that decide what runs, except `python` and `kernels`.
SETTINGS = ("kernel", "auto_run", "verify", "notebooks", "notebooks_dir", "hide_env")
# The files of stepper's environment that are executed.
EXECUTED_FILES = ("bin/python", "packages", "session.sh")


@contextlib.contextmanager
def report_write_errors(folder: str) -> Iterator[None]:
    """Convert an OSError on writing a file in `folder` to StepperError."""
    try:
        yield
    except OSError as error:
        hint = getattr(error, "hint", "")
        raise StepperError(
            f"{error.filename or folder} can't be written: {error.strerror}", hint
        ) from error


def make_folders(paths: Paths) -> None:
    """Create `.stepper/` and the record's folder, which only the user can read.

    Raises:
        StepperError: A folder can't be created.
    """
    folder = get_record_folder(paths.project)
    with report_write_errors(folder):
        # This creates `.stepper/` too. Sessions of the client watch the folder.
        secure_files.create_folder(os.path.dirname(paths.notice))
        # The user's home may be behind a link.
        secure_files.create_folder(os.path.realpath(folder))


def save_record(paths: Paths, record: dict[str, Any]) -> None:
    """Save the record of a project, if it changed.

    If there is no valid record yet, also write the same new token to the record's
    folder and to the project's `.stepper/`. A record is valid only if the two match.

    Raises:
        StepperError: The record can't be written.
    """
    folder = os.path.realpath(get_record_folder(paths.project))
    current = read_install_record(paths.project)
    make_folders(paths)
    with report_write_errors(folder):
        if not current:
            token = secrets.token_hex(16).encode() + b"\n"
            for location in (folder, paths.home):
                secure_files.replace(os.path.join(location, "token"), token)
        if current != record:
            content = json.dumps(record, indent=1).encode() + b"\n"
            secure_files.replace(os.path.join(folder, "install.json"), content)


def remove_record(paths: Paths) -> None:
    """Remove the record, the environment and empty parent folders.

    Raises:
        OSError: The record or the environment can't be removed.
    """
    folder = Path(get_record_folder(paths.project))
    top = Path(get_record_root()).parent
    if folder.is_dir():
        shutil.rmtree(folder)
    with contextlib.suppress(OSError):  # raised by the first folder that is not empty
        for parent in folder.parents:
            if not parent.is_relative_to(top):
                break
            parent.rmdir()


@dataclass(frozen=True)
class Offer:
    """The programs and settings of a checkout that `stepper trust` would accept.

    A path is an empty string if the file does not exist.
    """

    python: str  # the interpreter of the kernels
    python_is_configured: bool  # with `python:`
    env: str  # stepper's environment
    env_files: tuple[str, ...]  # the files of the environment that are executed
    kernels: dict[str, dict[str, Any]]  # the definitions of the kernel backends
    hook_script: str  # the script that Claude Code runs
    settings: dict[str, Any]  # other configured values that affect what runs
    record: dict[str, Any]  # the current record

    @property
    def new_kernels(self) -> list[dict[str, Any]]:
        """The kernel backends that are not accepted yet."""
        accepted = self.record.get("kernels", [])
        return [kernel for kernel in self.kernels.values() if kernel not in accepted]

    @property
    def is_python_new(self) -> bool:
        """Whether the interpreter is not accepted yet."""
        accepted = [self.record.get("python"), *self.record.get("accepted", ())]
        return bool(self.python) and self.python not in accepted

    @property
    def is_new(self) -> bool:
        """Whether anything is not accepted yet, such as the checkout itself."""
        return not self.record or self.is_python_new or bool(self.new_kernels)


def examine(paths: Paths) -> Offer:
    """Return the programs of a checkout, without running or recording them.

    An environment that install created has precedence over an environment in the
    checkout.

    Raises:
        UsageError: The configuration is invalid, or nothing can be accepted.
        StepperError: Another user could change a file that would run.
    """
    from stepper.daemon import config

    limits = config.load(paths)
    configured_python = limits.python
    kernels = {
        name: dict(backend.definition) for name, backend in limits.kernels.items()
    }
    python = paths.find_python(configured_python)
    env = _find_environment(paths)
    if not os.path.exists(python):
        if configured_python or not (env or kernels):
            raise UsageError(
                f"there is no interpreter to accept: {python} does not exist",
                "./install.sh  # sets up an interpreter for the kernels",
            )
        python = ""
    env_files = []
    if env:
        paths_in_env = [os.path.join(env, name) for name in EXECUTED_FILES]
        env_files = list(filter(os.path.lexists, paths_in_env))
    for path in filter(None, (python, env, *env_files)):
        check_ownership(path)
    hook_script = os.path.join(paths.project, SCRIPT)
    if not os.path.lexists(hook_script):
        hook_script = ""
    return Offer(
        python=python,
        python_is_configured=bool(configured_python),
        env=env,
        env_files=tuple(env_files),
        kernels=kernels,
        hook_script=hook_script,
        settings=_get_changed_settings(limits),
        record=read_install_record(paths.project),
    )


def _find_environment(paths: Paths) -> str:
    """Return the path of stepper's environment.

    Return an empty string if the checkout has no environment.
    """
    if not os.path.exists(paths.env_link):
        return ""
    is_installed = os.path.isdir(paths.env) and not os.path.islink(paths.env)
    if is_installed:
        return paths.env
    return paths.env_link


def _get_changed_settings(limits: Limits) -> dict[str, Any]:
    """Return the values of SETTINGS that differ from the defaults."""
    defaults = Limits()
    return {
        name: getattr(limits, name)
        for name in SETTINGS
        if getattr(limits, name) != getattr(defaults, name)
    }


def accept(paths: Paths, offer: Offer) -> dict[str, Any]:
    """Record the programs in an offer as accepted; return the response of the command.

    Raises:
        StepperError: The record can't be written.
    """
    record: dict[str, Any] = {**offer.record}
    if offer.python and not offer.python_is_configured:
        record["python"] = offer.python
    elif offer.python and offer.python not in record.get("accepted", ()):
        record["accepted"] = [*record.get("accepted", ()), offer.python]
    if offer.new_kernels:
        # Keep backends of an earlier configuration: they may still have a kernel.
        record["kernels"] = [*record.get("kernels", []), *offer.new_kernels]
    # An empty record would mean that the checkout is not accepted.
    save_record(paths, record or {"accepted": []})
    if offer.env == paths.env_link:
        with report_write_errors(paths.env):
            link(Path(paths.env), Path(os.path.realpath(offer.env)))
    interpreter = None
    environment = None
    if offer.python:
        interpreter = {"path": offer.python, "is": os.path.realpath(offer.python)}
    if offer.env:
        real = os.path.realpath(paths.env)
        environment = {"path": paths.env_link, "is": real}
    return {
        "project": paths.project,
        "interpreter": interpreter,
        "environment": environment,
        "kernels": offer.kernels,
        "recorded": paths.install_record,
    }


def check_ownership(path: str) -> None:
    """Raise StepperError if another user owns a path, or if all users can change it.

    Both a link and its target are checked. The owners of folders above are not checked.
    """
    for location in map(Path, dict.fromkeys([path, os.path.realpath(path)])):
        if location.lstat().st_uid not in (0, os.getuid()):
            raise StepperError(
                f"{escape_controls(str(location))} was not accepted, because it belongs"
                " to another user",
                f"ls -ld {shell_quote(str(location))}",
            )
        unsafe_path = _find_unsafe_path(location)
        if unsafe_path:
            raise StepperError(
                f"{escape_controls(path)} was not accepted, because all users can write"
                f" to {escape_controls(unsafe_path)}",
                f"chmod o-w {shell_quote(unsafe_path)}",
            )


def _find_unsafe_path(path: Path) -> str:
    """Return the path or the folder above it that all users can change.

    Return an empty string if there is none.
    """
    if _is_world_writable(path):
        return str(path)
    for folder in path.parents:
        if _allows_replacement(folder):
            return str(folder)
    return ""


def _is_world_writable(path: Path) -> bool:
    """Return whether all users can write to a file or folder.

    The mode of a link has no meaning.
    """
    mode = path.lstat().st_mode
    return bool(mode & stat.S_IWOTH) and not stat.S_ISLNK(mode)


def _allows_replacement(folder: Path) -> bool:
    """Return whether all users can replace the files in a folder.

    In a sticky folder such as /tmp, only the owner of a file can replace it.
    """
    is_sticky = bool(folder.lstat().st_mode & stat.S_ISVTX)
    return _is_world_writable(folder) and not is_sticky
