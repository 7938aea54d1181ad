"""The hook process: forwards standard input to the daemon and prints the response.

This module imports only `stepper.common` and the client of the daemon. The compiled
client.c does the same, and executes this module if something fails. PROTOCOL.md
specifies the behavior of both programs.
"""

import _socket
import posix
import sys

from stepper.common.errors import DaemonError, StepperError
from stepper.common.hook_paths import HookPaths
from stepper.hook.daemon_client import (
    DaemonExitedError,
    build_exited_error,
    build_silent_error,
    parse_error,
    send_request,
)

if False:  # for the type checker: importing typing costs time
    from collections.abc import Callable

# Events that matter only while a notebook is in progress.
ONLY_IN_PROGRESS = ("SessionStart", "UserPromptSubmit", "Stop")
# Events that never start a daemon.
NEVER_LAUNCH = ("UserPromptSubmit", "Stop")
# Events of processes that wait, sometimes for hours, to notify the agent.
NOTIFIERS = ("Wake", "Wake again", "Rearm")
# Events of a read, which must not wait for a busy daemon.
READS = ("BeforeRead", "AfterRead", "ReadFailed")
# client.c has the same values.
READ_SECONDS = 2
RETRY_SECONDS = 0.5
DAEMON_WAIT_SECONDS = 20


def hook() -> None:
    """Forward standard input to the daemon, print the response, and exit.

    The exit code is 0, because another exit code would make the user's edit fail. For
    an event in NOTIFIERS, the exit code is 2 if a message to the agent was printed. The
    process's arguments are the folder of this package, the result of the compiled
    client if it ran before, the project's folder and the name of the event.
    """
    *client_results, root, event = sys.argv[2:]
    client_result = ""
    if client_results:
        client_result = client_results[0]
    payload_bytes = b""
    response: bytes | None
    try:
        with open(0, "rb", 0, closefd=False) as stdin:
            payload_bytes = stdin.readall()
        posix.chdir(root)
        if event in READS:
            limit_read_time()
        paths = HookPaths(posix.getcwd())
        if event in NOTIFIERS:
            notified = notify_agent(paths, event, payload_bytes, client_result)
            exit_code = 2 if notified else 0
            posix._exit(exit_code)
        response = _get_response(paths, event, payload_bytes, client_result)
        if event in READS:
            end_read_time()
    except Exception as error:
        from stepper.hook import hook_output

        response = hook_output.format_failure(event, error, payload_bytes, root)
    try:
        while response:
            written_count = posix.write(1, response)
            response = response[written_count:]
    except OSError:
        pass  # Claude Code no longer reads the output
    # Nothing is buffered, and shutting the interpreter down costs 3 ms.
    posix._exit(0)


def _get_response(
    paths: HookPaths, event: str, payload_bytes: bytes, client_result: str
) -> "bytes | None":
    """Return the output of the hook: the daemon's response, or the hook's own.

    `client_result` is the result of the compiled client, or an empty string if the
    client did not run. Raise the same errors as `forward_event`.
    """
    response: bytes | None = b""
    if event not in ONLY_IN_PROGRESS or _is_in_progress(paths):
        error = None
        if client_result:
            error = build_client_error(client_result, paths)
        response = forward_event(paths, event, payload_bytes, error)
    # Without a daemon, the hook itself responds to these events. The event is checked
    # before the payload, because the payload of an edit is large.
    may_respond = not response and event in NEVER_LAUNCH
    if may_respond and b"notebook" in payload_bytes.lower():
        from stepper.hook import hook_output

        response = hook_output.respond_without_daemon(event, payload_bytes)
    return response


def limit_read_time() -> None:
    """Exit without output after READ_SECONDS.

    The compiled client may have used a part of this time.
    """
    import signal

    remaining = signal.alarm(0)
    signal.signal(signal.SIGALRM, lambda number, frame: posix._exit(0))
    signal.alarm(remaining or READ_SECONDS)


def end_read_time() -> None:
    """Cancel the limit of `limit_read_time`, so that the output is written whole."""
    import signal

    signal.alarm(0)


def _is_in_progress(paths: HookPaths) -> bool:
    """Return whether a notebook of the project is in progress."""
    return posix.access(paths.active_marker, posix.F_OK)


def forward_event(
    paths: HookPaths, event: str, payload: bytes, error: "StepperError | None"
) -> "bytes | None":
    """Return the daemon's response to an event, or None if no daemon is running.

    `error` is the error of the compiled client, if it ran before. If the daemon exits
    during a PostToolUse, repeat the request: the next daemon knows from the journal
    which cells ran. Raise the same errors as `send_request`.
    """
    command = b"hook " + event.encode()
    on_progress = create_output_check()
    launch = event not in NEVER_LAUNCH
    environ = posix.environ
    try:
        if error is not None:
            raise error  # which the handler below may handle
        return send_request(paths, command, payload, on_progress, launch, environ)
    except DaemonExitedError as exited:
        if event != "PostToolUse":
            raise
        first_error = exited
    try:
        response = send_request(
            paths, command + b" again", payload, on_progress, environ=environ
        )
    except Exception as second_error:
        if isinstance(second_error, StepperError):
            reported_error = second_error
        else:
            kind_name = type(second_error).__name__
            reported_error = DaemonError(f"{kind_name}: {second_error}")
        # The cell may have run if one of the daemons accepted the request.
        reported_error.accepted = reported_error.accepted or first_error.accepted
        raise reported_error from None
    if not response:
        raise first_error
    return response


def notify_agent(
    paths: HookPaths, event: str, payload_bytes: bytes, client_result: str
) -> bool:
    """Wait for a message to the agent, and print the message on standard error.

    Return whether a message was printed. If the compiled client ran before, its daemon
    has exited: start a daemon and execute the compiled client again, because it needs
    less memory while it waits.
    """
    import os

    from stepper.hook import hook_output

    parent = os.getppid()
    is_first = event == "Wake" and not client_result
    if is_first:
        is_ready = can_notify(parent) and wait_for_daemon(paths, parent)
    else:
        is_ready = ensure_daemon(paths, parent, event, client_result)
    if not is_ready:
        return False
    if not is_first and event != "Rearm":
        event = "Wake again"
    request = hook_output.remove_notebook_copies(payload_bytes)
    compiled_client = os.path.join(os.path.dirname(sys.executable), "hook")
    if client_result and os.access(compiled_client, os.X_OK):
        # The client reads the payload and gets the arguments as in its first call.
        os.lseek(0, 0, os.SEEK_SET)
        package_folder = sys.argv[1]
        project = sys.argv[-2]
        arguments = [sys.executable, package_folder, project, event]
        os.execv(compiled_client, [compiled_client, *arguments])  # noqa: S606
    return wait_for_message(paths, event, request, parent)


def wait_for_message(paths: HookPaths, event: str, request: bytes, parent: int) -> bool:
    """Send an event to the daemon, and print the message to the agent.

    If the daemon exits, repeat the request. Return whether a message was printed: the
    daemon may have no message, or the client may have exited.
    """
    import os
    import time

    check_output = create_output_check()
    messages = list[bytes]()
    sockets = list[_socket.socket]()

    def handle_progress(body: bytes) -> None:
        """Store the request for the next daemon, or print the message."""
        nonlocal request
        check_output(body)
        if body[:1] == b"\0":
            request = body[1:]  # the request for the next daemon
        elif body:
            try:
                # Acknowledged before it is printed: otherwise, the next daemon would
                # repeat the message.
                sockets[-1].sendall(b"+")
            except OSError:
                return
            os.write(2, body)
            messages.append(body)

    while not messages:
        try:
            send_request(
                paths,
                b"hook " + event.encode(),
                request,
                handle_progress,
                environ=posix.environ,
                on_connect=sockets.append,
            )
            break
        except DaemonError:
            if os.getppid() != parent:
                break
            time.sleep(RETRY_SECONDS)
            if event != "Rearm":
                event = "Wake again"
    return bool(messages)


def wait_for_daemon(paths: HookPaths, parent: int) -> bool:
    """Wait until a daemon listens, and return whether one does.

    The hook for PostToolUse starts the daemon. Return False after DAEMON_WAIT_SECONDS,
    or if the client exited.
    """
    import time

    from stepper.hook.daemon_client import connect

    deadline = time.monotonic() + DAEMON_WAIT_SECONDS
    time.sleep(RETRY_SECONDS)
    while not (sock := connect(paths)):
        if time.monotonic() > deadline or posix.getppid() != parent:
            return False
        time.sleep(RETRY_SECONDS)
    sock.close()
    return True


def ensure_daemon(
    paths: HookPaths, parent: int, event: str, client_result: str
) -> bool:
    """Start a daemon if none is running; return whether a daemon is running.

    No daemon is started if the client exited, or for `Rearm` if no report is pending.
    """
    import time

    from stepper.hook.daemon_client import connect
    from stepper.hook.daemon_start import start_daemon, wait_until_stopped

    if client_result == "stale":
        wait_until_stopped(paths)
    sock = connect(paths)
    if not sock and event == "Rearm":
        # A daemon removes the marker before it exits if everything is delivered.
        time.sleep(RETRY_SECONDS)
        if not posix.access(f"{paths.home}/handed", posix.F_OK):
            return False
    while not sock:
        try:
            sock = connect(paths) or start_daemon(paths, connect)
        except DaemonError:
            if posix.getppid() != parent:
                return False
            time.sleep(RETRY_SECONDS)
    sock.close()
    return True


def can_notify(parent: int) -> bool:
    """Return whether the client can notify its agent. client.c has the same rule.

    A client that prints one response and exits (`claude -p`) can notify its agent only
    if it reads a stream of messages.
    """
    import _stat
    import select

    entrypoint = posix.environ.get(b"CLAUDE_CODE_ENTRYPOINT", b"")
    if not entrypoint.startswith(b"sdk-"):
        return True
    try:
        stdin = posix.open(f"/proc/{parent}/fd/0", posix.O_RDONLY | posix.O_NONBLOCK)
        poll = select.poll()
        poll.register(stdin, select.POLLIN)
        mode = posix.fstat(stdin).st_mode
        is_device = _stat.S_ISCHR(mode) and not posix.isatty(stdin)
        is_closed = any(events & select.POLLHUP for _, events in poll.poll(0))
        posix.close(stdin)
        # Messages can't arrive from a file, from a device such as /dev/null, or from a
        # closed pipe.
        if _stat.S_ISREG(mode) or is_device or is_closed:
            return False
    except OSError:
        pass  # standard input may be a socket
    if entrypoint != b"sdk-cli":  # not `claude -p`
        return True
    try:
        with open(f"/proc/{parent}/cmdline", "rb") as stream:
            # The option may be one argument or two.
            command_line = stream.read().replace(b"\0", b"=")
    except OSError:
        return False
    return b"--input-format=stream-json" in command_line


def create_output_check() -> "Callable[[bytes], None]":
    """Return a progress handler that exits if Claude Code no longer reads the output.

    The daemon cancels the cell when this process exits.
    """
    parent = posix.getppid()
    is_first = True

    def check_output(_: bytes) -> None:
        """Exit if Claude Code no longer reads the output."""
        nonlocal is_first
        # The first heartbeat arrives immediately: short cells skip the check.
        if is_first:
            is_first = False
            return
        import select

        poll = select.poll()
        poll.register(1, 0)  # POLLERR and POLLHUP are always reported
        is_closed = any(
            events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)
        )
        # If Claude Code was killed, the other end of standard output is closed, or the
        # parent process has changed.
        if is_closed or posix.getppid() != parent:
            posix._exit(0)

    return check_output


def build_client_error(result: str, paths: HookPaths) -> StepperError:
    """Return the error for a result of the compiled client.

    PROTOCOL.md lists the results. If the result is `failed`, file descriptor 3 contains
    the daemon's error response.
    """
    if result == "failed":
        with open(3, "rb") as stream:
            return parse_error(stream.read())
    error: StepperError
    if result.endswith("unread"):
        error = StepperError("the hook process can't read or store its standard input")
    elif result.endswith("gone"):
        error = build_exited_error(paths, accepted=True)
    else:
        error = build_silent_error(paths)
    error.accepted = result.startswith("accepted")
    return error
