"""Start the project's daemon under its lock, and wait for one that makes way. Loaded only where that is needed."""

import _socket
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable

from stepper.common import private_files
from stepper.common.errors import DaemonError
from stepper.common.paths import Paths
from stepper.common.socket_path import HookPaths

START_SECONDS = 8.5
# The daemon needs no more of its starter's environment: kernels get theirs with the
# request that starts them.
DAEMON_ENVIRON = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "USER"),
    # where what leads to other hosts is: paths, nothing secret
    *("SSH_AUTH_SOCK", "KRB5CCNAME", "SLURM_CONF"),
    "XDG_STATE_HOME",  # where this user's installs are recorded
    "SLURM_CONF",  # which cluster's jobs are looked at
    # where running Jupyter servers are recorded
    *("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_DATA_HOME"),
)


def start(
    place: HookPaths, connect: Callable[[HookPaths], _socket.socket | None]
) -> _socket.socket:
    """Start the daemon, or wait for the one that another caller is starting; return a socket to it.

    Raise DaemonError, with the end of what it wrote, where it ends at once or does not listen in time.
    """
    paths, deadline = Paths(place.project), time.monotonic() + START_SECONDS
    lock, log = opened(paths)
    try:
        # Two hooks may start at once: the second one waits here, then finds the first
        # one's daemon.
        if not locked(lock, START_SECONDS):
            why = "another process has been starting the stepper daemon for too long"
            raise DaemonError(why, f"see {paths.log}")
        if sock := connect(paths):
            return sock
        size = os.fstat(log).st_size
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "stepper.daemon", paths.project],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env={
                name: os.environ[name] for name in DAEMON_ENVIRON if name in os.environ
            },
        )
        while not (sock := connect(paths)):
            ended = child.poll() is not None
            if ended or time.monotonic() > deadline:
                with open(paths.log, "rb") as stream:
                    stream.seek(size)
                    last_words = (
                        stream.read()[-1500:].decode("utf-8", "replace").strip()
                    )
                why = (
                    f"ended at once (exit code {child.returncode})"
                    if ended
                    else "did not listen in time"
                )
                child.returncode = child.returncode or 0
                raise DaemonError(
                    f"the stepper daemon {why}: {last_words or 'it said nothing'}",
                    f"see {paths.log}",
                )
            time.sleep(0.005)
        child.returncode = 0  # it outlives this process on purpose: no ResourceWarning
        return sock
    finally:
        os.close(log)
        os.close(lock)


def opened(paths: Paths) -> tuple[int, int]:
    """Return the lock of starts and the daemon's log, opened; raise DaemonError where they can't be written."""
    try:
        paths.create_home_folder()
        paths.create_runtime_folder()
        # the daemon can tell nobody as well
        os.close(private_files.open_private(paths.daemon_lock, os.O_CREAT | os.O_RDWR))
        lock = private_files.open_private(paths.start_lock, os.O_CREAT | os.O_RDWR)
        return lock, private_files.open_private(
            paths.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND
        )
    except OSError as error:
        hint = getattr(error, "hint", "") or f"ls -la {paths.home}"
        raise DaemonError(
            f"{paths.home} can't be written: {error.strerror}", hint
        ) from error


def locked(file: int, seconds: float) -> bool:
    """Take a file's lock; return whether it was free within so many seconds."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        else:
            return True


def retired(paths: HookPaths) -> None:
    """Wait until the daemon that said STALE no longer listens."""
    deadline = time.monotonic() + START_SECONDS
    while os.path.exists(paths.socket) and time.monotonic() < deadline:
        time.sleep(0.02)
