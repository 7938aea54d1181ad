"""Start of the project's daemon, and the wait for a daemon that exits.

This module is imported only if a daemon must be started.
"""

import _socket
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable

from stepper.common import secure_files
from stepper.common.errors import DaemonError
from stepper.common.hook_paths import HookPaths
from stepper.common.paths import Paths

START_SECONDS = 8.5
POLL_SECONDS = 0.005
MAX_QUOTED_BYTES = 1500  # the maximum length of the daemon's output in an error

# The daemon inherits no other variables. Kernels get their environment with the request
# that starts them.
DAEMON_ENVIRON = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LOGNAME",
    "PATH",
    "TMPDIR",
    "USER",
    # Access to other hosts and clusters. The values are paths, not secrets.
    "SSH_AUTH_SOCK",
    "KRB5CCNAME",
    "SLURM_CONF",
    # The folder with the records of this user's installations.
    "XDG_STATE_HOME",
    # The folders with the records of running Jupyter servers.
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "XDG_DATA_HOME",
)


def start_daemon(
    hook_paths: HookPaths, connect: Callable[[HookPaths], _socket.socket | None]
) -> _socket.socket:
    """Start the daemon, or wait for another process that is starting it.

    Return a socket that is connected to the daemon. Raise DaemonError if the daemon
    exits or does not listen within START_SECONDS, if the other process takes longer
    than START_SECONDS, or if the lock or the log can't be opened.
    """
    paths = Paths(hook_paths.project)
    lock, log = open_lock_and_log(paths)
    try:
        # Two hooks may start at the same time: the second one waits here and then
        # connects to the daemon of the first one.
        if not acquire_lock(lock, START_SECONDS):
            message = (
                "another process is starting the stepper daemon, and has not finished"
                f" after {START_SECONDS} s"
            )
            raise DaemonError(message, f"see {paths.log}")
        sock = connect(paths)
        if sock:
            return sock
        log_size = os.fstat(log).st_size
        daemon = _spawn_daemon(paths, log)
        deadline = time.monotonic() + START_SECONDS
        while not (sock := connect(paths)):
            has_exited = daemon.poll() is not None
            if has_exited or time.monotonic() > deadline:
                raise _build_start_error(paths, daemon, log_size)
            time.sleep(POLL_SECONDS)
        # The daemon runs longer than this process. A return code avoids a
        # ResourceWarning.
        daemon.returncode = 0
        return sock
    finally:
        os.close(log)
        os.close(lock)


def _spawn_daemon(paths: Paths, log: int) -> "subprocess.Popen[bytes]":
    """Start the daemon's process in a new session; `log` is a file descriptor."""
    environ = {name: os.environ[name] for name in DAEMON_ENVIRON if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "stepper.daemon", paths.project],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        cwd="/",
        start_new_session=True,
        env=environ,
    )


def _build_start_error(
    paths: Paths, daemon: "subprocess.Popen[bytes]", log_size: int
) -> DaemonError:
    """Return the error for a daemon that did not start, with the end of its output.

    `log_size` is the size of the log before the start, in bytes.
    """
    with open(paths.log, "rb") as stream:
        stream.seek(log_size)
        output = stream.read()[-MAX_QUOTED_BYTES:].decode("utf-8", "replace").strip()
    if daemon.returncode is None:
        problem = f"did not listen within {START_SECONDS} s"
    else:
        problem = f"exited while it was starting (exit code {daemon.returncode})"
    daemon.returncode = daemon.returncode or 0  # avoids a ResourceWarning
    message = f"the stepper daemon {problem}: {output or 'it wrote no message'}"
    return DaemonError(message, f"see {paths.log}")


def open_lock_and_log(paths: Paths) -> tuple[int, int]:
    """Open the start lock and the daemon's log, and return their file descriptors.

    Raise DaemonError if a file can't be created or opened for writing.
    """
    try:
        paths.create_home_folder()
        paths.create_runtime_folder()
        # Opened because the daemon could not report an error about its lock.
        os.close(secure_files.open_private(paths.daemon_lock, os.O_CREAT | os.O_RDWR))
        lock = secure_files.open_private(paths.start_lock, os.O_CREAT | os.O_RDWR)
        try:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
            log = secure_files.open_private(paths.log, flags)
        except OSError:
            os.close(lock)
            raise
    except OSError as error:
        hint = getattr(error, "hint", "") or f"ls -la {paths.home}"
        message = f"{paths.home} can't be written: {error.strerror}"
        raise DaemonError(message, hint) from error
    return lock, log


def acquire_lock(file: int, seconds: float) -> bool:
    """Lock a file, waiting up to `seconds`.

    `file` is a file descriptor. Return False if another process has the lock.
    """
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


def wait_until_stopped(paths: HookPaths) -> None:
    """Wait until a daemon of another version has removed its socket.

    Return after START_SECONDS in any case.
    """
    deadline = time.monotonic() + START_SECONDS
    while os.path.exists(paths.socket) and time.monotonic() < deadline:
        time.sleep(0.02)
