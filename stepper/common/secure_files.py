"""Open files without following symbolic links, and stepper's own files with mode 0600.

An untrusted repository may contain links in place of the files of `.stepper/`, and
anybody who can write to a folder can replace a file between a check and its use.
Therefore each folder of a path is opened relative to its parent, and the file relative
to its folder. All checks use the descriptor that is used afterwards.

Folder descriptors are cached, because a step opens some folders ten times. A cached
descriptor is used only while its path still leads to the same folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
from collections.abc import Iterator
from typing import NamedTuple

from stepper.common.text import escape_controls, shell_quote

NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC
PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
FOLDER_FLAGS = os.O_DIRECTORY | PATH_ONLY | NO_LINK
# Opening a FIFO or a terminal must neither block nor change anything.
SAFE_FLAGS = os.O_NONBLOCK | os.O_NOCTTY | NO_LINK
CREATE_ONLY = os.O_CREAT | os.O_EXCL
CREATE_FLAGS = os.O_WRONLY | CREATE_ONLY | NO_LINK
# The most bytes that `read` returns: a sparse file may have any size.
MAX_BYTES = 1 << 28
CACHED_FOLDERS = 32
# Errors of opening something that is not a folder, or neither a file nor a folder.
NOT_A_FOLDER = (errno.ENOTDIR, errno.ELOOP)
NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EOPNOTSUPP)
OTHERS_BITS = 0o077  # the permission bits of the group and of other users
FILE_TYPES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class CachedFolder(NamedTuple):
    """An open folder: its descriptor, and its status when it was opened."""

    handle: int
    status: os.stat_result


_folder_cache: dict[str, CachedFolder] = {}  # by path
# One thread may close a descriptor, and the system reuse its number, while another
# thread duplicates it.
_folder_cache_lock = threading.Lock()
# A forked process may close its copies of the descriptors, and the system may reuse
# their numbers.
os.register_at_fork(after_in_child=_folder_cache.clear)


class FileLocation(NamedTuple):
    """The descriptor of a file's folder, and the name of the file in the folder."""

    folder: int
    name: str


class NamedStatus(NamedTuple):
    """A name in a folder, and the status of the file with this name."""

    name: str
    status: os.stat_result


class UnsafeFileError(OSError):
    """A path leads to a link, a special file or another user's file.

    `message` is a sentence, `hint` a command that fixes the problem.
    """

    def __init__(
        self,
        number: int,
        message: str,
        hint: str,
    ) -> None:
        super().__init__(number, message)
        self.message = message
        self.hint = hint


@contextlib.contextmanager
def open_parent(path: str, create: bool = False) -> Iterator[FileLocation]:
    """Open the folder of a file, and yield its descriptor and the name of the file.

    With `create`, missing folders are created. Raise OSError if the folder cannot be
    opened, for example because its path contains a symbolic link.
    """
    folder, name = os.path.split(path)
    handle = _open_folder(folder, create)
    try:
        yield FileLocation(handle, name)
    finally:
        os.close(handle)


@contextlib.contextmanager
def _open_private_parent(path: str, create: bool = False) -> Iterator[FileLocation]:
    """Open the folder of one of stepper's own files, like `open_parent`.

    Group and others lose their permissions on the folder. Raise UnsafeFileError if the
    folder belongs to another user.
    """
    with open_parent(path, create) as (handle, name):
        status = os.fstat(handle)
        _check_owner(os.path.dirname(path), status)
        if status.st_mode & OTHERS_BITS:
            private_mode = _remove_others(status)
            os.chmod(".", private_mode, dir_fd=handle)
        yield FileLocation(handle, name)


def _remove_others(status: os.stat_result) -> int:
    """Return the permission bits of a file without the bits for group and others."""
    permissions = stat.S_IMODE(status.st_mode)
    return permissions & ~OTHERS_BITS


def open_regular(path: str, flags: int) -> int:
    """Open a regular file that has a single name, and return its descriptor.

    Raise UnsafeFileError for links, special files and files with several names, and
    another OSError if the file cannot be opened. Opening never blocks.
    """
    with open_parent(path) as (folder, name):
        return _open_in_folder(path, flags, folder, name)


def open_private(path: str, flags: int) -> int:
    """Open one of stepper's own files and return its descriptor.

    With O_CREAT, the file is created with mode 0600 and missing folders with 0700.
    Group and others lose their permissions on an existing file and its folder. Raise
    UnsafeFileError if the file or its folder belongs to another user, or for the
    reasons of `open_regular`.
    """
    create = bool(flags & os.O_CREAT)
    with _open_private_parent(path, create) as (folder, name):
        return _open_in_folder(path, flags, folder, name, private=True)


def create_folder(folder: str) -> None:
    """Create one of stepper's own folders and its missing parents with mode 0700.

    Group and others lose their permissions on an existing folder. Raise OSError if the
    folder cannot be created or belongs to another user.
    """
    with _open_private_parent(os.path.join(folder, "."), create=True):
        pass


def read(path: str) -> bytes:
    """Return the contents of one of stepper's own files.

    Raise OSError if the file cannot be read or is larger than `MAX_BYTES`.
    """
    handle = open_private(path, os.O_RDONLY)
    with open(handle, "rb") as stream:
        status = os.fstat(handle)
        if status.st_size > MAX_BYTES:
            raise _make_os_error(errno.EFBIG, path)
        return stream.read()


def replace(path: str, data: bytes) -> None:
    """Replace one of stepper's own files atomically, or create it with mode 0600.

    Missing folders are created. Raise OSError if the file cannot be written.
    """
    with _open_private_parent(path, create=True) as (folder, name):
        # The name is always the same, so the next write removes the temporary file of
        # a daemon that was killed.
        temporary_name = f".{name}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary_name, dir_fd=folder)
        try:
            handle = os.open(temporary_name, CREATE_FLAGS, 0o600, dir_fd=folder)
            with open(handle, "wb") as stream:
                stream.write(data)
            os.replace(temporary_name, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary_name, dir_fd=folder)
            raise


def rename(path: str, name: str) -> None:
    """Rename one of stepper's own files within its folder.

    The path may lead to a link or a special file, too. Raise OSError if the file cannot
    be renamed.
    """
    with _open_private_parent(path) as (folder, old_name):
        os.rename(old_name, name, src_dir_fd=folder, dst_dir_fd=folder)


def remove(path: str) -> None:
    """Remove one of stepper's own files if it exists.

    Raise OSError if the file cannot be removed.
    """
    with (
        contextlib.suppress(FileNotFoundError),
        _open_private_parent(path) as (folder, name),
    ):
        os.unlink(name, dir_fd=folder)


def list_names(folder: str) -> list[str]:
    """Return the names in one of stepper's own folders.

    Return an empty list if the folder does not exist or belongs to another user.
    """
    with contextlib.suppress(OSError):
        return [file.name for file in list_files(folder)]
    return []


def list_files(folder: str) -> list[NamedStatus]:
    """Return the names in one of stepper's own folders, each with a status.

    A file that is deleted meanwhile is left out. Raise OSError if the folder cannot be
    read.
    """
    path = os.path.join(folder, ".")
    with _open_private_parent(path) as (parent, name):
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        handle = os.open(name, flags, dir_fd=parent)
    try:
        files = []
        for file_name in os.listdir(handle):
            with contextlib.suppress(FileNotFoundError):
                status = _lstat(file_name, handle)
                files.append(NamedStatus(file_name, status))
        return files
    finally:
        os.close(handle)


def _lstat(name: str, folder: int) -> os.stat_result:
    """Return the status of a file, or of a link, in an open folder."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def check_regular(path: str) -> None:
    """Raise OSError if a path is not a regular file with a single hard link.

    Symbolic links are not followed. Raise IsADirectoryError for a folder, and
    UnsafeFileError for a link, a special file or a file with several names. A path that
    does not exist is accepted.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check_regular(path, os.lstat(path))


def _open_folder(folder: str, create: bool) -> int:
    """Open a folder and return a descriptor, which the caller must close.

    Descriptors are cached. With `create`, missing folders are created.
    """
    with _folder_cache_lock:
        cached_folder = _folder_cache.get(folder)
        if cached_folder is not None:
            with contextlib.suppress(OSError):
                status = os.lstat(folder)
                if os.path.samestat(status, cached_folder.status):
                    return os.dup(cached_folder.handle)
            del _folder_cache[folder]
            os.close(cached_folder.handle)
    handle = _walk_to_folder(folder, create)
    with contextlib.suppress(OSError):  # there are too many open files
        _add_to_cache(folder, handle)
    return handle


def _add_to_cache(folder: str, handle: int) -> None:
    """Add a copy of a folder's descriptor to the cache, unless the cache has one.

    If there are more than CACHED_FOLDERS, close and remove the oldest copy. Raise
    OSError if the descriptor cannot be copied.
    """
    with _folder_cache_lock:
        if folder not in _folder_cache:
            status = os.fstat(handle)
            copy = os.dup(handle)
            _folder_cache[folder] = CachedFolder(copy, status)
        if len(_folder_cache) > CACHED_FOLDERS:
            oldest_path = next(iter(_folder_cache))
            oldest = _folder_cache.pop(oldest_path)
            os.close(oldest.handle)


def _walk_to_folder(folder: str, create: bool) -> int:
    """Open a folder by opening each folder of its path relative to its parent."""
    handle = os.open("/", FOLDER_FLAGS)
    path = ""
    names = os.path.abspath(folder).split("/")
    for name in filter(None, names):
        parent = handle
        path = f"{path}/{name}"
        try:
            handle = _open_subfolder(parent, name, create)
        except OSError as error:
            if error.errno in NOT_A_FOLDER and _is_link(name, parent):
                raise _make_link_error(path) from None
            raise
        finally:
            os.close(parent)
    return handle


def _is_link(name: str, folder: int) -> bool:
    """Return whether a name in an open folder is a symbolic link."""
    status = _lstat(name, folder)
    return stat.S_ISLNK(status.st_mode)


def _open_subfolder(
    parent: int,
    name: str,
    create: bool,
) -> int:
    """Open a folder in an open folder; with `create`, create it if it is missing."""
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=parent)
    except FileNotFoundError:
        if not create:
            raise
    with contextlib.suppress(FileExistsError):  # another process created it
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, FOLDER_FLAGS, dir_fd=parent)


def _open_in_folder(
    path: str,
    flags: int,
    folder: int,
    name: str,
    private: bool = False,
) -> int:
    """Open a regular file in an open folder; `path` is for error messages.

    With `private`, the file must belong to the user, and its mode becomes 0600.
    """
    # The file is truncated only after all checks.
    open_flags = (flags & ~os.O_TRUNC) | SAFE_FLAGS
    try:
        handle = os.open(name, open_flags, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            _check_regular(path, _lstat(name, folder))
        raise
    try:
        status = os.fstat(handle)
        _check_regular(path, status)
        if private:
            _check_owner(path, status)
            if status.st_mode & OTHERS_BITS:
                private_mode = _remove_others(status)
                os.fchmod(handle, private_mode)
        if flags & os.O_TRUNC:
            os.ftruncate(handle, 0)
    except OSError:
        os.close(handle)
        raise
    return handle


def _check_regular(path: str, status: os.stat_result) -> None:
    """Raise OSError unless the status is of a regular file with a single name."""
    file_type = stat.S_IFMT(status.st_mode)
    quoted_path = shell_quote(path)
    if file_type == stat.S_IFLNK:
        raise _make_link_error(path)
    if file_type == stat.S_IFDIR:
        raise _make_os_error(errno.EISDIR, path)
    if file_type != stat.S_IFREG:
        description = FILE_TYPES.get(file_type, "a special file")
        raise UnsafeFileError(
            errno.EINVAL,
            f"{escape_controls(path)} is {description}, not a regular file",
            f"rm {quoted_path}",
        )
    # Backup tools and `cp -al` make hard links to save space. Replacing one with a copy
    # loses nothing.
    if status.st_nlink > 1:
        quoted_copy = shell_quote(path + ".copy")
        raise UnsafeFileError(
            errno.EMLINK,
            f"{escape_controls(path)} has {status.st_nlink} names (hard links), so"
            " writing to it could change a file outside the project",
            f"cp {quoted_path} {quoted_copy} && mv {quoted_copy} {quoted_path}",
        )


def _make_os_error(number: int, path: str) -> OSError:
    """Return the error that the system would raise, such as IsADirectoryError."""
    return OSError(number, os.strerror(number), path)


def _make_link_error(path: str) -> UnsafeFileError:
    """Return the error for a symbolic link."""
    message = f"{escape_controls(path)} is a symbolic link"
    with contextlib.suppress(OSError):
        target = os.readlink(path)
        message += f" (to {escape_controls(target)})"
    message += ", and stepper does not follow links here"
    hint = f"rm {shell_quote(path)}"
    return UnsafeFileError(errno.ELOOP, message, hint)


def _check_owner(path: str, status: os.stat_result) -> None:
    """Raise UnsafeFileError if a file belongs to another user."""
    own_uid = os.geteuid()
    if status.st_uid == own_uid:
        return
    raise UnsafeFileError(
        errno.EPERM,
        f"{escape_controls(path)} belongs to another user (uid {status.st_uid}),"
        " and stepper uses only your own files here",
        f"sudo chown -R {own_uid} {shell_quote(path)}",
    )
