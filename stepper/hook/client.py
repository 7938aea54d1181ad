"""Connect to the project's daemon, start it where it is not running, ask. Also the whole of the hook process.

The hook process forwards its standard input and prints what comes back. It imports neither asyncio, click,
jupyter, json nor socket, and not even os: `_socket` alone saves 10 ms of every cell, `posix` 2. What only a failure
needs is imported there.
"""

import _socket
import posix
import sys

from stepper import __version__
from stepper.ground import wire
from stepper.ground.errors import DaemonError, StepperError
from stepper.ground.meeting import Meeting, encoded

if False:  # for the type checker alone: typing is not loaded
    from collections.abc import Callable, Mapping

# The daemon says "working" at once and every BEAT_SECONDS; silence for longer means that it hangs.
SILENCE_SECONDS = 7.0
START_SECONDS = 8.5
# Events that are nobody's business while no notebook is under way, and those that never start a daemon.
ONLY_UNDER_WAY = ("SessionStart", "UserPromptSubmit", "Stop")
NEVER_LAUNCH = ("UserPromptSubmit", "Stop")
# The daemon needs no more of its starter's environment: kernels get theirs with the request that starts them.
DAEMON_ENVIRON = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "TMPDIR", "USER"),
    "XDG_STATE_HOME",  # where this user's installs are recorded
    *("JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "XDG_DATA_HOME"),  # where running Jupyter servers are recorded
)


class GoneError(DaemonError):
    """The daemon ended while it was asked."""


class Connection:
    """One request to the daemon on a connected socket."""

    def __init__(self, paths: Meeting, sock: _socket.socket) -> None:
        self.paths, self.sock = paths, sock
        self.accepted = False

    def send(self, *parts: bytes) -> None:
        """Send one message; raise DaemonError where the daemon does not take it."""
        try:
            self.sock.sendall(wire.head(*parts))
            for part in parts:  # not joined: the payload may hold the notebook twice
                self.sock.sendall(part)
        except TimeoutError:
            raise silent(self.paths) from None
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have answered before it had read all

    def answer(self) -> tuple[bytes, bytes]:
        """Return the next answer as (kind, payload); raise DaemonError where the daemon hangs or went away."""
        sizes = wire.lengths(self.take(8 * wire.count(self.take(wire.PREFIX))))
        kind, payload = wire.split(self.take(sum(sizes)), sizes)
        self.accepted = self.accepted or kind == wire.PROGRESS
        return kind, payload

    def take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        buffer = bytearray()
        while len(buffer) < size:
            try:
                data = self.sock.recv(min(size - len(buffer), 1 << 20))
            except TimeoutError:
                raise silent(self.paths) from None
            except ConnectionResetError:
                data = b""
            if not data:
                raise gone(self.paths, self.accepted)
            buffer += data
        return bytes(buffer)


def silent(paths: Meeting) -> DaemonError:
    """Return the error of a daemon that hangs."""
    return DaemonError(
        f"the stepper daemon does not answer (silent for {SILENCE_SECONDS:.0f} s)",
        f"stepper shutdown  # ends it; see {paths.log}",
    )


def gone(paths: Meeting, accepted: bool) -> GoneError:
    """Return the error of a daemon that ended, after it had taken the request or before."""
    return GoneError(
        "the stepper daemon went away" + (" while the cell ran" if accepted else ""),
        f"see {paths.log}; the next call starts it again",
    )


def connect(paths: Meeting) -> "Connection | None":
    """Return a Connection to the running daemon, or None where none listens."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    sock.settimeout(SILENCE_SECONDS)
    try:
        sock.connect(paths.socket)
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        return None
    except OSError:
        sock.close()
        raise
    uid = peer_uid(sock)
    if uid != posix.getuid():  # it would be told our environment, and what it answers the agent would read
        sock.close()
        raise DaemonError(f"{paths.socket} is of another user (uid {uid})", f"ls -la {paths.runtime}  # who made it?")
    return Connection(paths, sock)


def peer_uid(sock: _socket.socket) -> int:
    """Return the user at the other end of a unix socket; raise OSError."""
    if hasattr(_socket, "SO_PEERCRED"):
        found = sock.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # pid, uid, gid
        return int.from_bytes(found[4:8], sys.byteorder)
    return getpeereid(sock.fileno())


def getpeereid(handle: int, library: str | None = None) -> int:
    """Return the user at the other end of a unix socket where there is no SO_PEERCRED: macOS, BSD. Raise OSError."""
    import ctypes
    import os

    user, group = ctypes.c_uint32(), ctypes.c_uint32()
    if ctypes.CDLL(library, use_errno=True).getpeereid(handle, ctypes.byref(user), ctypes.byref(group)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return user.value


def start(place: Meeting) -> Connection:
    """Start the daemon, or wait for the one that another caller is starting; return a Connection.

    Raise DaemonError, with the end of what it wrote, where it ends at once or does not listen in time.
    """
    import fcntl
    import os
    import subprocess
    import time

    from stepper.ground import private
    from stepper.ground.paths import Paths

    paths, deadline = Paths(place.project), time.monotonic() + START_SECONDS
    try:
        paths.make_home()
        paths.make_runtime()
        os.close(private.opened(paths.daemon_lock, os.O_CREAT | os.O_RDWR))  # the daemon can tell nobody as well
        lock = private.opened(paths.start_lock, os.O_CREAT | os.O_RDWR)
        log = private.opened(paths.log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        hint = getattr(error, "hint", "") or f"ls -la {paths.home}"
        raise DaemonError(f"{paths.home} can't be written: {error.strerror}", hint) from error
    try:
        # Two hooks may start at once: the second one waits here, then finds the first one's daemon.
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DaemonError(
                        "another process has been starting the stepper daemon for too long",
                        f"see {paths.log}",
                    ) from None
                time.sleep(0.01)
        found = connect(paths)
        if found:
            return found
        size = os.fstat(log).st_size
        child = subprocess.Popen(
            [sys.executable, "-I", "-m", "stepper.daemon", paths.project],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            env={name: os.environ[name] for name in DAEMON_ENVIRON if name in os.environ},
        )
        while True:
            found = connect(paths)
            if found:
                child.returncode = 0  # it outlives this process on purpose: no ResourceWarning
                return found
            ended = child.poll() is not None
            if ended or time.monotonic() > deadline:
                with open(paths.log, "rb") as stream:
                    stream.seek(size)
                    said = stream.read()[-1500:].decode("utf-8", "replace").strip()
                why = f"ended at once (exit code {child.returncode})" if ended else "did not listen in time"
                child.returncode = child.returncode or 0
                raise DaemonError(f"the stepper daemon {why}: {said or 'it said nothing'}", f"see {paths.log}")
            time.sleep(0.005)
    finally:
        os.close(log)
        os.close(lock)


def ask(
    paths: Meeting,
    verb: bytes,
    payload: bytes = b"",
    progress: "Callable[[bytes], None] | None" = None,
    launch: bool = True,
    environ: "Mapping[bytes, bytes] | None" = None,
) -> "bytes | None":
    """Ask the daemon and return the answer's bytes.

    `progress` is called with the bytes of each interim answer, none at a mere beat. With `launch=False` a daemon
    that is not running is not started and None comes back. Raise StepperError as the daemon reports it,
    DaemonError where it can't be reached.
    """
    if environ is None:
        import os

        environ = os.environb
    for left in (2, 1, 0):
        connection = connect(paths)
        if connection is None:
            if not launch:
                return None
            connection = start(paths)
        about = (verb, __version__.encode(), wire.pack_environ(environ), encoded(current_folder()))
        connection.send(*about, payload)
        try:
            kind, body = connection.answer()
            while kind == wire.PROGRESS:
                if progress:
                    progress(body)
                kind, body = connection.answer()
        except (DaemonError, wire.FrameError, ValueError) as broken:
            error = (
                broken
                if isinstance(broken, DaemonError)
                else DaemonError(f"what the daemon says is no answer: {broken}")
            )
            error.accepted = connection.accepted
            if left and isinstance(error, GoneError) and not error.accepted:
                continue  # one that dies may still take a connection, and had not begun
            raise error from None
        finally:
            connection.sock.close()
        if kind == wire.OK:
            return body
        if kind == wire.FAILED:
            raise failure(body)
        # STALE: a daemon of another version. It ends by itself and leaves its kernels to the next one.
        retired(paths)
    raise DaemonError("a stepper daemon of another version does not end", "stepper shutdown")


def retired(paths: Meeting) -> None:
    """Wait until the daemon that said STALE no longer listens."""
    import os
    import time

    deadline = time.monotonic() + START_SECONDS
    while os.path.exists(paths.socket) and time.monotonic() < deadline:
        time.sleep(0.02)


def failure(body: bytes) -> StepperError:
    """Return the StepperError that the daemon sent as JSON."""
    import json

    told = json.loads(body)
    error = StepperError(told["message"], told["hint"])
    error.exit_code = told["exit_code"]
    error.accepted = told["exit_code"] == DaemonError.exit_code  # it broke on the way: the cell may have run
    return error


def forward(paths: Meeting, event: str, payload: bytes, before: "StepperError | None" = None) -> "bytes | None":
    """Return the daemon's answer to an event; raise as `ask` does.

    Where the daemon ended while a cell ran, the next one is asked `again`: it knows from the journal what ran.
    `before` is how the compiled client fared, which has asked.
    """
    verb, look = b"hook " + event.encode(), leaving()
    try:
        if before is not None:
            raise before
        return ask(paths, verb, payload, look, event not in NEVER_LAUNCH, posix.environ)
    except GoneError as error:
        if event != "PostToolUse":
            raise
        lost = error
    try:
        answer = ask(paths, verb + b" again", payload, look, environ=posix.environ)
    except Exception as error:
        accepted = getattr(error, "accepted", False) or lost.accepted
        told = error if isinstance(error, StepperError) else DaemonError(f"{type(error).__name__}: {error}")
        told.accepted = accepted
        raise told from None
    if not answer:
        raise lost
    return answer


def leaving() -> "Callable[[bytes], None]":
    """Return what to do at each beat: end this process where nobody waits for its answer, which cancels the cell.

    A client that is killed closes nothing politely: only its end of our standard output is gone, or our parent.
    """
    parent, first = posix.getppid(), [True]

    def look(_: bytes) -> None:
        if first:  # it comes at once: a step that is over by the next one pays nothing
            first.clear()
            return
        import select

        poll = select.poll()
        poll.register(1, 0)  # POLLERR and POLLHUP come unasked
        if posix.getppid() != parent or any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0)):
            posix._exit(0)

    return look


def there(path: str) -> bool:
    """Whether there is a file of that name."""
    try:
        posix.stat(path)
    except OSError:
        return False
    return True


def current_folder() -> str:
    """Return the current folder, the root where it was deleted."""
    try:
        return posix.getcwd()
    except OSError:
        return "/"


def fared(how: str, paths: Meeting) -> StepperError:
    """Return what the compiled client (client.c) met, by its word; of a failure the daemon's answer is open as 3."""
    if how == "failed":
        with open(3, "rb") as stream:
            return failure(stream.read())
    error: StepperError = gone(paths, True) if how.endswith("gone") else silent(paths)
    if how.endswith("unread"):
        error = StepperError("the hook's standard input can't be read, or not be kept in memory")
    error.accepted = how.startswith("accepted")
    return error


def hook() -> None:
    """The hook process: forward standard input, print the answer. It never fails the person's edit.

    Arguments: where this package lies, how the compiled client fared where it has asked, the project's folder and the
    event's name. Exit code 0 whatever happens.
    """
    *how, root, event = sys.argv[2:]
    try:
        with open(0, "rb", 0, closefd=False) as stdin:
            payload = stdin.readall()
        posix.chdir(root)
        paths = Meeting(posix.getcwd())
        answer: bytes | None = b""
        if event not in ONLY_UNDER_WAY or there(paths.active):
            answer = forward(paths, event, payload, fared(how[0], paths) if how else None)
        if not answer and event in NEVER_LAUNCH and b"notebook" in payload.lower():
            from stepper.hook import payload as hookio

            answer = hookio.alone(event, payload)
    except Exception as error:
        from stepper.hook import payload as hookio

        answer = hookio.failed(event, error, getattr(error, "accepted", False))
    try:
        while answer:
            answer = answer[posix.write(1, answer) :]
    except OSError:
        pass  # nobody reads it
    posix._exit(0)  # nothing is buffered, and taking the interpreter down costs 3 ms
