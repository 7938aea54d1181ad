"""Files as install writes, uninstall removes and the doctor reads them; those of this package. Stdlib only."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from pathlib import Path

from stepper.common.errors import StepperError
from stepper.install import claude_settings

# stepper/, in site-packages or in the checkout
PACKAGE = Path(__file__).resolve().parent.parent


def find_assets(kind: str) -> Path:
    """Return the folder `hooks` or `skills` that came with this package: in the wheel, or in the checkout."""
    packed = PACKAGE / "assets" / kind
    return packed if packed.is_dir() else PACKAGE.parent / kind


def read(path: Path) -> bytes:
    """Return a file's bytes, none where there is no file."""
    return path.read_bytes() if path.is_file() else b""


def read_settings(path: Path) -> tuple[str | None, claude_settings.Data]:
    """Return the text (None: no file) and the data of settings; raise StepperError where merging is impossible."""
    if path.exists() and not path.is_file():  # a FIFO's writer would be waited for
        raise StepperError(f"{path} is not a file", "move it away, then run this again")
    try:
        text = path.read_bytes().decode("utf-8")
        data = claude_settings.parse(text)
    except FileNotFoundError:
        return None, {}
    except (OSError, ValueError, RecursionError) as error:
        why = error if isinstance(error, OSError) else f"it is not valid JSON: {error}"
        raise StepperError(
            f"{path} can't be read: {why}",
            f"{format_editor_command(path)}  # then run this again",
        ) from None
    if wrong := claude_settings.find_shape_problem(data):
        raise StepperError(
            f"{path}: {wrong}", f"{format_editor_command(path)}  # then run this again"
        )
    return text, data


def format_editor_command(path: str | Path) -> str:
    """Return the command that opens a file for the person."""
    return f"${{EDITOR:-vi}} {shlex.quote(str(path))}"


def write(path: Path, content: bytes, mode: int | None = None) -> str:
    """Write a file whole or not at all, through a link, its mode kept; return made, updated or unchanged."""
    path = Path(os.path.realpath(path))
    old = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    mode = old if mode is None else mode
    if old is not None and old == mode and path.read_bytes() == content:
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return "made" if old is None else "updated"


def link(path: Path, target: Path) -> None:
    """Make `path` a link to `target`."""
    if not (path.is_symlink() and path.readlink() == target):
        remove(path)
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(target)


def remove(path: Path) -> None:
    """Remove a file, a link or a whole folder, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> bool:
    """Remove an empty folder; tell whether it was one."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True
