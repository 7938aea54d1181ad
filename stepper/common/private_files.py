"""Files reached without following a link, and those of stepper's own: nobody else's, without another name, 0600.

A repository that a stranger made may hold links where `.stepper/` has its files, and whoever may write in a folder can
swap one in between a look and a use. So each folder on the way is opened from the one before and the file from its
folder, and what must hold is asked of the descriptor that is then used. A folder that was reached so is held, and
taken again as long as its path still leads to that very folder: a step enters some of them ten times.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator

from stepper.common.text import escape_controls, shell_quote

FOLDER = (
    os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
)
# bytes of a file that is read whole; a stranger's may be a hole of any size
LARGEST = 1 << 28
HELD = 32  # folders
OTHERS = 0o077  # the bits of a mode that are none of the user's
KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


# folder → its descriptor, and what was known of it
_folder_cache: dict[str, tuple[int, os.stat_result]] = {}
# a descriptor is closed by one thread, and its number taken anew, as another duplicates
# it
_folder_cache_lock = threading.Lock()
os.register_at_fork(
    after_in_child=_folder_cache.clear
)  # which may close what it did not open


class UnsafeFileError(OSError):
    """What stands in a file's place is not what may be there: why, as a sentence, and the command that mends it."""

    def __init__(self, number: int, why: str, hint: str) -> None:
        super().__init__(number, why)
        self.why, self.hint = why, hint


@contextlib.contextmanager
def open_parent(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the descriptor of a file's folder and the file's name in it; raise OSError where a link is on the way."""
    folder, name = os.path.split(path)
    handle = _open_folder(folder, make)
    try:
        yield handle, name
    finally:
        os.close(handle)


@contextlib.contextmanager
def _open_private_parent(path: str, make: bool = False) -> Iterator[tuple[int, str]]:
    with open_parent(path, make) as (handle, name):
        about = os.fstat(handle)
        _check_owner(os.path.dirname(path), about)
        if about.st_mode & OTHERS:
            os.chmod(".", stat.S_IMODE(about.st_mode) & ~OTHERS, dir_fd=handle)
        yield handle, name


def open_regular(path: str, flags: int) -> int:
    """Open a file that has one name, and wait for nobody; raise UnsafeFileError for anything else that stands there."""
    with open_parent(path) as (folder, name):
        return _open_in_folder(path, flags, folder, name)


def open_private(path: str, flags: int, _: int = 0) -> int:
    """Open a file of stepper's own, made 0600 in folders of 0700; raise UnsafeFileError where it is not the user's alone."""
    with _open_private_parent(path, make=bool(flags & os.O_CREAT)) as (folder, name):
        return _open_in_folder(path, flags, folder, name, own=True)


def make_folder(folder: str) -> None:
    """Make a folder of stepper's own, 0700; raise OSError."""
    with _open_private_parent(os.path.join(folder, "."), make=True):
        pass


def read(path: str) -> bytes:
    """Return what a file of stepper's own holds; raise OSError, also for one that is too large to be one."""
    with open(open_private(path, os.O_RDONLY), "rb") as stream:
        if os.fstat(stream.fileno()).st_size > LARGEST:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return stream.read()


def replace(path: str, data: bytes) -> None:
    """Replace a file of stepper's own: whole, or not at all. Raise OSError."""
    with _open_private_parent(path, make=True) as (folder, name):
        # always the same: what a daemon that was killed left behind goes with the next
        # write
        new = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new, dir_fd=folder)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(new, flags, 0o600, dir_fd=folder), "wb") as stream:
                stream.write(data)
            os.replace(new, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise


def rename(path: str, name: str) -> None:
    """Give a file of stepper's own, or what stands in its place, another name in its folder; raise OSError."""
    with _open_private_parent(path) as (folder, old):
        os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(path: str) -> None:
    """Remove a file of stepper's own, if it is there; raise OSError."""
    with (
        contextlib.suppress(FileNotFoundError),
        _open_private_parent(path) as (folder, name),
    ):
        os.unlink(name, dir_fd=folder)


def list_names(folder: str) -> list[str]:
    """Return the names in a folder of stepper's own, none where it is not there or not stepper's."""
    with contextlib.suppress(OSError):
        return [name for name, _ in list_files(folder)]
    return []


def list_files(folder: str) -> list[tuple[str, os.stat_result]]:
    """Return the names in a folder of stepper's own, with what is known of each; raise OSError."""
    with _open_private_parent(os.path.join(folder, ".")) as (handle, _):
        inner = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=handle)
    try:
        return [
            (name, os.stat(name, dir_fd=inner, follow_symlinks=False))
            for name in os.listdir(inner)
        ]
    finally:
        os.close(inner)


def check_regular(path: str) -> None:
    """Raise UnsafeFileError where anything but a regular file with one name stands at a resolved path; none is fine."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check_regular(path, os.lstat(path))


def _open_folder(folder: str, make: bool) -> int:
    """Return a descriptor of a folder, the caller's to close."""
    with _folder_cache_lock:
        if folder in _folder_cache:
            handle, about = _folder_cache[folder]
            with contextlib.suppress(OSError):
                if os.path.samestat(os.lstat(folder), about):
                    return os.dup(handle)
            os.close(_folder_cache.pop(folder)[0])
    handle = _walked(folder, make)
    with _folder_cache_lock:
        if folder not in _folder_cache:
            _folder_cache[folder] = os.dup(handle), os.fstat(handle)
        if len(_folder_cache) > HELD:
            os.close(_folder_cache.pop(next(iter(_folder_cache)))[0])
    return handle


def _walked(folder: str, make: bool) -> int:
    handle, at = os.open("/", FOLDER), ""
    for name in filter(None, os.path.abspath(folder).split("/")):
        outer, at = handle, f"{at}/{name}"
        try:
            try:
                handle = os.open(name, FOLDER, dir_fd=outer)
            except FileNotFoundError:
                if not make:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=outer)
                handle = os.open(name, FOLDER, dir_fd=outer)
        except OSError as error:
            linked = error.errno in (errno.ENOTDIR, errno.ELOOP)
            if linked and stat.S_ISLNK(
                os.stat(name, dir_fd=outer, follow_symlinks=False).st_mode
            ):
                raise _make_link_error(at) from None
            raise
        finally:
            os.close(outer)
    return handle


def _open_in_folder(
    path: str, flags: int, folder: int, name: str, own: bool = False
) -> int:
    asked = (
        (flags & ~os.O_TRUNC)
        | os.O_NOFOLLOW
        | os.O_CLOEXEC
        | os.O_NONBLOCK
        | os.O_NOCTTY
    )
    try:
        handle = os.open(name, asked, 0o600, dir_fd=folder)
    except OSError as error:
        # a link, a FIFO or a socket
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP):
            _check_regular(path, os.stat(name, dir_fd=folder, follow_symlinks=False))
        raise
    try:
        about = os.fstat(handle)
        _check_regular(path, about)
        if own:
            _check_owner(path, about)
            if about.st_mode & OTHERS:
                os.fchmod(handle, stat.S_IMODE(about.st_mode) & ~OTHERS)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_regular(path: str, about: os.stat_result) -> None:
    kind, word = stat.S_IFMT(about.st_mode), shell_quote(path)
    if kind == stat.S_IFLNK:
        raise _make_link_error(path)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind != stat.S_IFREG:
        what = KINDS.get(kind, "something else")
        raise UnsafeFileError(
            errno.EINVAL,
            f"{escape_controls(path)} is not a regular file but {what}",
            f"rm {word}",
        )
    # what has two names for thrift (`cp -al`, some backups) loses nothing by a copy of
    # its own
    if about.st_nlink > 1:
        raise UnsafeFileError(
            errno.EMLINK,
            f"{escape_controls(path)} has {about.st_nlink} names (hard links): what is behind it may lie anywhere",
            f"cp {word} {shell_quote(path + '.own')} && mv {shell_quote(path + '.own')} {word}  # a file of its own",
        )


def _make_link_error(path: str) -> UnsafeFileError:
    what = "is a symbolic link"
    with contextlib.suppress(OSError):
        what = f"is a symbolic link (to {escape_controls(os.readlink(path))}): stepper follows none here"
    return UnsafeFileError(
        errno.ELOOP, f"{escape_controls(path)} {what}", f"rm {shell_quote(path)}"
    )


def _check_owner(path: str, about: os.stat_result) -> None:
    if about.st_uid != os.geteuid():
        why = f"{escape_controls(path)} belongs to another user (uid {about.st_uid}): stepper's files are one user's alone"
        raise UnsafeFileError(
            errno.EPERM,
            why,
            f"sudo chown -R {os.geteuid()} {shell_quote(path)}  # or: sudo rm -r it",
        )
