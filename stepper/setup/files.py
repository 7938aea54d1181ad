"""Files as install writes and uninstall removes them, and those that came with this package. Stdlib only."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent  # stepper/, in site-packages or in the checkout


def assets(kind: str) -> Path:
    """Return the folder `hooks` or `skills` that came with this package: in the wheel, or in the checkout."""
    packed = PACKAGE / "assets" / kind
    return packed if packed.is_dir() else PACKAGE.parent / kind


def read(path: Path) -> bytes:
    """Return a file's bytes, none where there is no file."""
    return path.read_bytes() if path.is_file() else b""


def write(path: Path, content: bytes, mode: int | None = None) -> str:
    """Write a file whole or not at all, through a link, its mode kept; return made, updated or unchanged."""
    path = Path(os.path.realpath(path))
    old = path.stat() if path.exists() else None
    wanted = mode if mode is not None else (old.st_mode & 0o7777 if old else None)
    if old and path.read_bytes() == content:
        if wanted != old.st_mode & 0o7777:
            path.chmod(wanted or 0)
            return "updated"
        return "unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        if wanted is not None:
            temporary.chmod(wanted)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return "updated" if old else "made"


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
    if not folder.is_dir() or folder.is_symlink() or any(folder.iterdir()):
        return False
    folder.rmdir()
    return True
