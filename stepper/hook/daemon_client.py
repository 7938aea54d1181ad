"""The client of the project's daemon, used by the hook process and the command line.

The hook process imports this module for every cell, so this module imports neither
asyncio, click, jupyter_client, json, socket nor os: `_socket` saves 10 ms per cell,
`posix` saves 2 ms. Modules for failures and for the start of the daemon are imported by
the functions that need them.
"""

import _socket
import posix
import sys

from stepper import __version__
from stepper.common import wire_format
from stepper.common.errors import DaemonError, StepperError
from stepper.common.hook_paths import HookPaths, encode_path

if False:  # for the type checker: importing typing costs time
    from collections.abc import Callable, Iterator, Mapping

# The daemon sends a heartbeat immediately and then every BEAT_SECONDS. If it sends
# nothing for longer than this, it hangs. client.c has the same value.
SILENCE_SECONDS = 7
SEND_TIMEOUT = SILENCE_SECONDS.to_bytes(8, sys.byteorder) + bytes(8)  # struct timeval
# On Linux, Claude Code's sandbox denies Unix sockets to shell commands, whatever their
# path. Hooks run outside of the sandbox.
SANDBOXED = (
    "this shell runs in a sandbox that allows no Unix sockets, so commands can't reach"
    " the stepper daemon. Cells still run when they are edited"
)
SANDBOX_HINT = (
    '"sandbox": {"excludedCommands": ["stepper *"]} in ~/.claude/settings.json'
    "  # the user must add this; stepper commands then run outside of the sandbox"
)
NO_PEER_UID = 0xFFFFFFFF
RECEIVE_BYTES = 1 << 20
ATTEMPTS = 3  # to send a request, if a daemon exits before it accepts the request


class DaemonExitedError(DaemonError):
    """The daemon exited during a request."""


def exchange(
    paths: HookPaths, sock: _socket.socket, *parts: bytes
) -> "Iterator[tuple[bytes, bytes]]":
    """Send a request, yield each response as (kind, payload), and close the socket.

    `parts` are the parts of the request. Interim responses are of the kind PROGRESS,
    and the first response of another kind is the last one. Raise DaemonError if the
    daemon hangs, exits or sends invalid data.
    """
    accepted = False
    kind = wire_format.PROGRESS
    try:
        try:
            sock.sendall(wire_format.pack_header(*parts))
            for part in parts:  # not joined: the payload may hold the notebook twice
                sock.sendall(part)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the daemon may have responded before it read the whole request
        while kind == wire_format.PROGRESS:
            kind, payload = _receive_response(sock)
            accepted = True
            yield kind, payload
        return
    except TimeoutError:
        error: DaemonError = build_silent_error(paths)
    except (EOFError, ConnectionResetError):
        error = build_exited_error(paths, accepted)
    except (wire_format.FrameError, ValueError) as invalid:
        error = DaemonError(f"the daemon's response is invalid: {invalid}")
    finally:
        sock.close()
    error.accepted = accepted
    raise error


def _receive_response(sock: _socket.socket) -> "tuple[bytes, bytes]":
    """Return the kind and the payload of the next response.

    Raise FrameError or ValueError if the response is invalid, and EOFError if the
    daemon closes the connection.
    """
    prefix = receive_exactly(sock, wire_format.PREFIX)
    part_count = wire_format.parse_part_count(prefix)
    table = receive_exactly(sock, wire_format.LENGTH_BYTES * part_count)
    lengths = wire_format.parse_part_lengths(table)
    kind, payload = [receive_exactly(sock, length) for length in lengths]
    return kind, payload


def receive_exactly(sock: _socket.socket, size: int) -> bytes:
    """Return the next `size` bytes; raise EOFError if the connection closes early."""
    buffer = bytearray()
    while len(buffer) < size:
        data = sock.recv(min(size - len(buffer), RECEIVE_BYTES))
        if not data:
            raise EOFError
        buffer += data
    return bytes(buffer)


def build_silent_error(paths: HookPaths) -> DaemonError:
    """Return the error for a daemon that hangs."""
    message = f"the stepper daemon does not respond (silent for {SILENCE_SECONDS} s)"
    hint = f"stepper shutdown  # stops the daemon; its log is {paths.log}"
    return DaemonError(message, hint)


def build_exited_error(paths: HookPaths, accepted: bool) -> DaemonExitedError:
    """Return the error for a daemon that exited.

    `accepted` means that the daemon had accepted the request, so the cell may have run.
    """
    message = "the stepper daemon exited"
    if accepted:
        message += " before it finished the request"
    hint = f"see {paths.log}; the next request starts the daemon again"
    return DaemonExitedError(message, hint)


def connect(paths: HookPaths) -> _socket.socket | None:
    """Return a socket that is connected to the daemon, or None if no daemon listens.

    Raise StepperError if the daemon hangs or belongs to another user, or if the sandbox
    denies sockets. Raise OSError if the connection fails for another reason.
    """
    try:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except PermissionError:
        raise StepperError(SANDBOXED, SANDBOX_HINT) from None
    try:
        # If many clients connect at the same time, connect() waits. With `settimeout`
        # instead of this send timeout, it would fail immediately.
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_SNDTIMEO, SEND_TIMEOUT)
        sock.connect(paths.socket)
        sock.settimeout(SILENCE_SECONDS)
        uid = wire_format.get_peer_uid(sock)
        if uid == NO_PEER_UID:  # the wait was interrupted by a stop signal
            raise BlockingIOError
        # Another user's daemon would get this process's environment, and the agent
        # would read the daemon's responses.
        if uid != posix.getuid():
            message = f"{paths.socket} belongs to another user (uid {uid})"
            raise DaemonError(message, f"ls -la {paths.runtime}  # shows the owner")
        return sock
    except Exception as error:
        sock.close()
        if isinstance(error, (FileNotFoundError, ConnectionRefusedError)):
            return None
        if isinstance(error, BlockingIOError):
            raise build_silent_error(paths) from None
        raise


def send_request(
    paths: HookPaths,
    command: bytes,
    payload: bytes = b"",
    on_progress: "Callable[[bytes], None] | None" = None,
    launch: bool = True,
    environ: "Mapping[bytes, bytes] | None" = None,
    on_connect: "Callable[[_socket.socket], None] | None" = None,
) -> "bytes | None":
    """Send a command to the daemon and return the bytes of its response.

    `on_progress` is called with the body of each interim response, which is empty for a
    heartbeat. If no daemon is running, start one if `launch` is true, or else return
    None. `on_connect` is called with the socket: if the caller shuts down its half of
    the connection, the daemon interrupts the running cell and sends the result.

    Raise a StepperError that the daemon reports, or DaemonError if the daemon can't be
    reached.
    """
    if environ is None:
        import os

        environ = os.environb
    for attempt in range(1, ATTEMPTS + 1):
        sock = connect(paths)
        if sock is None:
            if not launch:
                return None
            from stepper.hook.daemon_start import start_daemon

            sock = start_daemon(paths, connect)
        if on_connect:
            on_connect(sock)
        header = (
            command,
            __version__.encode(),
            wire_format.pack_environ(environ),
            encode_path(get_current_folder()),
        )
        kind = body = b""
        try:
            for kind, body in exchange(paths, sock, *header, payload):
                if kind == wire_format.PROGRESS and on_progress:
                    on_progress(body)
        except DaemonExitedError as error:
            if attempt == ATTEMPTS or error.accepted:
                raise
            # A daemon that is exiting may accept a connection, but not the request.
            continue
        if kind == wire_format.OK:
            return body
        if kind == wire_format.FAILED:
            raise parse_error(body)
        # The response is STALE: the daemon has another version. It exits, and the next
        # daemon takes over its kernels.
        from stepper.hook.daemon_start import wait_until_stopped

        wait_until_stopped(paths)
    raise DaemonError(
        "a stepper daemon with a different version is still running and did not exit",
        "stepper shutdown",
    )


def parse_error(body: bytes) -> StepperError:
    """Return the StepperError in a JSON response of the daemon."""
    import json

    response = json.loads(body)
    error = StepperError(response["message"], response["hint"])
    error.exit_code = response["exit_code"]
    # After an internal error of the daemon, the cell may have run.
    error.accepted = error.exit_code == DaemonError.exit_code
    return error


def get_current_folder() -> str:
    """Return the current folder, or the root folder if it was deleted."""
    try:
        return posix.getcwd()
    except OSError:
        return "/"
