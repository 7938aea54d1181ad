"""The paths that the hook process needs, and the path of the daemon's socket.

The hook process loads this module, so it must not import `os` (2 ms). Hooks, terminals
and the agent's shell may have different values of HOME, TMPDIR and XDG_RUNTIME_DIR, but
must find the same daemon. The socket's folder therefore depends only on the user ID,
the project's path, and the owners of the folders in /tmp and /var/tmp.
"""

import _stat
import posix
import sys

HOME = ".stepper"
# These folders exist on every system, have short names and do not depend on the
# environment. Another user may take our folder name in one of them first.
RUNTIME_ROOTS = ("/tmp", "/var/tmp")  # noqa: S108  # the owner is checked
HASH_BASIS = 0xCBF29CE484222325
HASH_PRIME = 0x100000001B3
HASH_MASK = 0xFFFFFFFFFFFFFFFF


def fnv1a(data: bytes) -> str:
    """Return the 64-bit FNV-1a hash of `data` as 16 hex digits.

    Importing hashlib would take the hook process 10 ms.
    """
    value = HASH_BASIS
    for byte in data:
        value = (value ^ byte) * HASH_PRIME & HASH_MASK
    return f"{value:016x}"


def encode_path(path: str) -> bytes:
    """Return the bytes of a path, like `os.fsencode`."""
    return path.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class HookPaths:
    """The files of a project that the hook process uses.

    `project` must be a resolved path, so that all processes use the same socket. `home`
    is the folder of stepper's own files, by default `.stepper` in the project.
    """

    def __init__(self, project: str, home: str = "") -> None:
        self.project = project
        self.home = home or f"{project.rstrip('/')}/{HOME}"
        self.log = f"{self.home}/daemon.log"
        # Exists while a notebook is in progress. Without it, hooks for session starts,
        # prompts and finished turns do nothing.
        self.active_marker = f"{self.home}/active"
        self.runtime = self._find_runtime_folder(fnv1a(encode_path(home or project)))
        self.socket = f"{self.runtime}/daemon.sock"

    def _find_runtime_folder(self, name: str) -> str:
        """Return the folder of the socket: `name` in the first usable root.

        A root is usable if the folder `stepper-UID` in it belongs to the user or does
        not exist. All processes choose the same root, because other users cannot remove
        or replace the user's folder. If no root is usable, the folder is in `.stepper`.
        """
        for root in RUNTIME_ROOTS:
            folder = f"{root}/stepper-{posix.getuid()}"
            try:
                status = posix.lstat(folder)
            except OSError:
                return f"{folder}/{name}"
            if _stat.S_ISDIR(status.st_mode) and status.st_uid == posix.getuid():
                return f"{folder}/{name}"
        return f"{self.home}/run/s"
