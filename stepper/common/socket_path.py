"""Where a project's daemon and its callers meet. `posix` only: the hook process loads this, and `os` costs it 2 ms.

The socket's folder is derived from the user's id, the project's path and what lies in /tmp, because hooks, terminals
and the agent's shell differ in HOME, TMPDIR and XDG_RUNTIME_DIR and must meet the same daemon.
"""

import _stat
import posix
import sys

HOME = ".stepper"
# On every system, short, independent of the environment. Whoever comes first may take
# our name in one of them.
RUNTIME_ROOTS = ("/tmp", "/var/tmp")  # noqa: S108  # the owner is looked at


def fnv1a(data: bytes) -> str:
    """Return the 64-bit FNV-1a hash of `data` as 16 hex digits (hashlib costs 10 ms of the hook)."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def encode_path(path: str) -> bytes:
    """Return a path's bytes, as os.fsencode does."""
    return path.encode(sys.getfilesystemencoding(), sys.getfilesystemencodeerrors())


class HookPaths:
    """The places that the hook process needs. `project` is resolved: every caller meets the same folder."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.home = f"{project.rstrip('/')}/{HOME}"
        self.log = f"{self.home}/daemon.log"
        # While this exists, some notebook is under way: session start, prompts and ends
        # of turns are looked at.
        self.active_marker = f"{self.home}/active"
        self.runtime = self._runtime(fnv1a(encode_path(project)))
        self.socket = f"{self.runtime}/daemon.sock"

    def _runtime(self, name: str) -> str:
        """Return the socket's folder: below the first root in which nobody else has taken our name, else at home.

        All callers meet in the same one: who owns `/tmp/stepper-UID` decides, and there only its owner can change that.
        """
        for root in RUNTIME_ROOTS:
            folder = f"{root}/stepper-{posix.getuid()}"
            try:
                about = posix.lstat(folder)
            except OSError:
                return f"{folder}/{name}"
            if _stat.S_ISDIR(about.st_mode) and about.st_uid == posix.getuid():
                return f"{folder}/{name}"
        return f"{self.home}/run/s"
