"""Read, write and remove the files of an installation, and find the shipped files.

This module uses only the standard library, because the installer runs before any
environment exists.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.install import claude_settings

# The folder stepper/, in site-packages or in the checkout.
PACKAGE = Path(__file__).resolve().parent.parent


def find_assets(kind: str) -> Path:
    """Return the folder `hooks` or `skills` of this package (wheel or checkout)."""
    wheel_folder = PACKAGE / "assets" / kind
    if wheel_folder.is_dir():
        return wheel_folder
    return PACKAGE.parent / kind


def read(path: Path) -> bytes:
    """Return the bytes of a file, or empty bytes if the path is not a file."""
    if path.is_file():
        return path.read_bytes()
    return b""


def read_settings(path: Path) -> tuple[str | None, claude_settings.Data]:
    """Return the text and the data of a settings file.

    If the file does not exist, the text is None and the data is empty.

    Raises:
        StepperError: The file can't be read, or hooks can't be merged into it.
    """
    if path.exists() and not path.is_file():
        # Reading a FIFO would block until something writes to it.
        raise StepperError(
            f"{path} is not a file",
            f"move {path} away, then repeat the command that failed",
        )
    try:
        text = path.read_bytes().decode("utf-8")
        data = claude_settings.parse(text)
    except FileNotFoundError:
        return None, {}
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
        if not isinstance(error, OSError):
            reason = f"the file is not valid JSON: {error}"
        raise StepperError(
            f"{path} can't be read: {reason}",
            f"{format_editor_command(path)}  # then repeat the command that failed",
        ) from None
    problem = claude_settings.find_shape_problem(data)
    if problem:
        raise StepperError(
            f"{path}: {problem}",
            f"{format_editor_command(path)}  # then repeat the command that failed",
        )
    return text, data


def format_editor_command(path: str | Path) -> str:
    """Return a shell command that opens a file in the user's editor."""
    return f"${{EDITOR:-vi}} {shlex.quote(str(path))}"


def write(path: Path, content: bytes, mode: int | None = None) -> str:
    """Write a file atomically; return "created", "updated" or "unchanged".

    A symbolic link is followed. If `mode` is None, an existing file keeps its mode.
    """
    path = Path(os.path.realpath(path))
    old_mode = None
    if path.exists():
        old_mode = stat.S_IMODE(path.stat().st_mode)
    if mode is None:
        mode = old_mode
    if old_mode is not None and old_mode == mode and path.read_bytes() == content:
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        if mode is not None:
            temporary.touch(0o600)  # until `mode` is set: the content may be secret
        temporary.write_bytes(content)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return "created" if old_mode is None else "updated"


def link(path: Path, target: Path) -> None:
    """Make `path` a symbolic link to `target`; replace an existing file or folder."""
    if not (path.is_symlink() and path.readlink() == target):
        remove(path)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> bool:
    """Remove a folder if it is empty; return whether it was removed."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
