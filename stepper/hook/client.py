"""Connect to the project's daemon and ask it: the way in of the hook process and of the command line.

The hook process loads this, so it imports neither asyncio, click, jupyter, json nor socket, and not even os: `_socket`
alone saves 10 ms of every cell, `posix` 2. What only a failure needs, and the daemon's start, is imported there.
"""

import _socket
import posix
import sys

from stepper import __version__
from stepper.common import wire_format
from stepper.common.errors import DaemonError, StepperError
from stepper.common.socket_path import HookPaths, encode_path

if False:  # for the type checker alone: typing is not loaded
    from collections.abc import Callable, Iterator, Mapping

# The daemon says "working" at once and every BEAT_SECONDS; silence for longer means
# that it hangs. client.c's, too.
SILENCE_SECONDS = 7
PATIENCE = SILENCE_SECONDS.to_bytes(8, sys.byteorder) + bytes(8)  # a struct timeval
# Claude Code's sandbox refuses Unix sockets to shell commands on Linux, whatever their
# path; hooks run outside of it.
CONFINED = "this shell is confined: it may make no Unix socket, and reaches no stepper daemon; cells run all the same"
LETS_OUT = '"sandbox": {"excludedCommands": ["stepper *"]} in ~/.claude/settings.json, by the person, lets a call of it out'


class GoneError(DaemonError):
    """The daemon ended while it was asked."""


def exchange(
    paths: HookPaths, sock: _socket.socket, *parts: bytes
) -> "Iterator[tuple[bytes, bytes]]":
    """Send a request and yield each answer as (kind, payload) up to the last, then close the socket.

    Raise DaemonError where the daemon hangs, went away or says what is no answer.
    """
    accepted, kind = False, wire_format.PROGRESS
    try:
        try:
            sock.sendall(wire_format.frame_header(*parts))
            for part in parts:  # not joined: the payload may hold the notebook twice
                sock.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it may have answered before it had read all
        while kind == wire_format.PROGRESS:
            sizes = wire_format.parse_part_lengths(
                take(
                    sock,
                    8 * wire_format.parse_part_count(take(sock, wire_format.PREFIX)),
                )
            )
            kind, payload = [take(sock, size) for size in sizes]
            accepted = True
            yield kind, payload
        return
    except TimeoutError:
        error: DaemonError = silent(paths)
    except (EOFError, ConnectionResetError):
        error = gone(paths, accepted)
    except (wire_format.FrameError, ValueError) as broken:
        error = DaemonError(f"what the daemon says is no answer: {broken}")
    finally:
        sock.close()
    error.accepted = accepted
    raise error


def take(sock: _socket.socket, size: int) -> bytes:
    """Return the next `size` bytes; raise EOFError where there are no more."""
    buffer = bytearray()
    while len(buffer) < size:
        data = sock.recv(min(size - len(buffer), 1 << 20))
        if not data:
            raise EOFError
        buffer += data
    return bytes(buffer)


def silent(paths: HookPaths) -> DaemonError:
    """Return the error of a daemon that hangs."""
    why = f"the stepper daemon does not answer (silent for {SILENCE_SECONDS} s)"
    return DaemonError(why, f"stepper shutdown  # ends it; see {paths.log}")


def gone(paths: HookPaths, accepted: bool) -> GoneError:
    """Return the error of a daemon that ended, after it had taken the request or before."""
    why = "the stepper daemon went away" + (" while the cell ran" if accepted else "")
    return GoneError(why, f"see {paths.log}; the next call starts it again")


def connect(paths: HookPaths) -> _socket.socket | None:
    """Return a socket to the running daemon, or None where none listens; raise StepperError, OSError."""
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except PermissionError:
        raise StepperError(CONFINED, LETS_OUT) from None
    try:
        # The system's own limit: where many ask at once it waits for its turn, with
        # `settimeout` it would fail at once.
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, PATIENCE)
        sock.connect(paths.socket)
        sock.settimeout(SILENCE_SECONDS)
        uid = wire_format.get_peer_uid(sock)
        # nobody: the wait was interrupted (stopped and continued)
        if uid == 0xFFFFFFFF:
            raise BlockingIOError
        # it would be told our environment, and what it answers the agent would read
        if uid != posix.getuid():
            why = f"{paths.socket} is of another user (uid {uid})"
            raise DaemonError(why, f"ls -la {paths.runtime}  # who made it?")
        return sock
    except Exception as error:
        sock.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        if isinstance(error, BlockingIOError):
            raise silent(paths) from None
        raise


def ask(
    paths: HookPaths,
    verb: bytes,
    payload: bytes = b"",
    progress: "Callable[[bytes], None] | None" = None,
    launch: bool = True,
    environ: "Mapping[bytes, bytes] | None" = None,
    begun: "Callable[[_socket.socket], None] | None" = None,
) -> "bytes | None":
    """Ask the daemon and return the answer's bytes.

    `progress` is called with the bytes of each interim answer, none at a mere beat. With `launch=False` a daemon
    that is not running is not started and None comes back. `begun` gets the socket: the daemon interrupts what runs for
    a client that closes its half of it, and answers how that ended. Raise StepperError as the daemon reports it,
    DaemonError where it can't be reached.
    """
    if environ is None:
        import os

        environ = os.environb
    for last in (False, False, True):
        sock = connect(paths)
        if sock is None:
            if not launch:
                return None
            from stepper.hook.start import start

            sock = start(paths, connect)
        if begun:
            begun(sock)
        about = (
            verb,
            __version__.encode(),
            wire_format.pack_environ(environ),
            encode_path(current_folder()),
        )
        kind = body = b""
        try:
            for kind, body in exchange(paths, sock, *about, payload):
                if kind == wire_format.PROGRESS and progress:
                    progress(body)
        except GoneError as error:
            if last or error.accepted:
                raise
            continue  # one that dies may still take a connection, and had not begun
        if kind == wire_format.OK:
            return body
        if kind == wire_format.FAILED:
            raise failure(body)
        # STALE: a daemon of another version. It ends by itself and leaves its kernels
        # to the next one.
        from stepper.hook.start import retired

        retired(paths)
    raise DaemonError(
        "a stepper daemon of another version does not end", "stepper shutdown"
    )


def failure(body: bytes) -> StepperError:
    """Return the StepperError that the daemon sent as JSON."""
    import json

    told = json.loads(body)
    error = StepperError(told["message"], told["hint"])
    error.exit_code = told["exit_code"]
    # it broke on the way: the cell may have run
    error.accepted = told["exit_code"] == DaemonError.exit_code
    return error


def current_folder() -> str:
    """Return the current folder, the root where it was deleted."""
    try:
        return posix.getcwd()
    except OSError:
        return "/"
