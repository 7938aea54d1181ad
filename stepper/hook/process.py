"""The hook process: forward standard input, print what comes back. It loads `ground` and the client alone.

client.c does the same as long as all is well; whatever it met, it hands over to this one.
"""

import _socket
import posix
import sys

from stepper.common.errors import DaemonError, StepperError
from stepper.common.socket_path import HookPaths
from stepper.hook.client import GoneError, ask, failure, gone, silent

if False:  # for the type checker alone: typing is not loaded
    from collections.abc import Callable

# Events that are nobody's business while no notebook is under way, and those that never
# start a daemon.
ONLY_UNDER_WAY = ("SessionStart", "UserPromptSubmit", "Stop")
NEVER_LAUNCH = ("UserPromptSubmit", "Stop")
# these wait, maybe for hours, to wake the agent
WAKERS = ("Wake", "Wake again", "Rearm")
NAP_SECONDS, COMES_SECONDS = 0.5, 20  # client.c's


def hook() -> None:
    """Forward standard input, print the answer; exit code 0 whatever happens: it never fails the person's edit.

    Arguments: where this package lies, how the compiled client fared where it has asked, the project's folder and the
    event's name.
    """
    *how, root, event = sys.argv[2:]
    try:
        with open(0, "rb", 0, closefd=False) as stdin:
            given = stdin.readall()
        posix.chdir(root)
        paths = HookPaths(posix.getcwd())
        answer: bytes | None = b""
        if event in WAKERS:
            posix._exit(2 if woke(paths, event, given, how[0] if how else "") else 0)
        if event not in ONLY_UNDER_WAY or posix.access(paths.active_marker, posix.F_OK):
            answer = forward(paths, event, given, fared(how[0], paths) if how else None)
        if not answer and event in NEVER_LAUNCH and b"notebook" in given.lower():
            from stepper.hook import payload

            answer = payload.alone(event, given)
    except Exception as error:
        from stepper.hook import payload

        answer = payload.failed(event, error)
    try:
        while answer:
            answer = answer[posix.write(1, answer) :]
    except OSError:
        pass  # nobody reads it
    posix._exit(0)  # nothing is buffered, and taking the interpreter down costs 3 ms


def forward(
    paths: HookPaths, event: str, payload: bytes, before: "StepperError | None"
) -> "bytes | None":
    """Return the daemon's answer to an event; raise as `ask` does. `before` is how the compiled client fared.

    Where the daemon ended while a cell ran, the next one is asked `again`: it knows from the journal what ran.
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
        told = (
            error
            if isinstance(error, StepperError)
            else DaemonError(f"{type(error).__name__}: {error}")
        )
        told.accepted = told.accepted or lost.accepted
        raise told from None
    if not answer:
        raise lost
    return answer


def woke(paths: HookPaths, event: str, given: bytes, how: str) -> bool:
    """Stand by to wake the agent; return whether it was told something, on standard error.

    Where the compiled client asked first the daemon is gone: one is started, and that client, which is small, waits on.
    """
    import os
    import time

    from stepper.hook import payload

    parent, compiled = (
        os.getppid(),
        os.path.join(os.path.dirname(sys.executable), "hook"),
    )
    first = event == "Wake" and not how
    if not (
        can_wake(parent) and begun(paths, parent)
        if first
        else started(paths, parent, event, how)
    ):
        return False
    if not first and event != "Rearm":
        event = "Wake again"
    given, told, sockets = payload.lean(given), list[bytes](), list[_socket.socket]()
    if how and os.access(compiled, os.X_OK):
        os.lseek(0, 0, os.SEEK_SET)
        os.execv(compiled, [compiled, sys.executable, sys.argv[1], sys.argv[-2], event])  # noqa: S606
    look = leaving()

    def tell(body: bytes) -> None:
        nonlocal given
        look(body)
        if body[:1] == b"\0":
            given = body[1:]  # what to ask the next daemon with
        elif body:
            try:
                # first the word that it is told: else the next daemon tells it
                sockets[-1].sendall(b"+")
            except OSError:
                return
            os.write(2, body)
            told.append(body)

    while not told:
        try:
            ask(
                paths,
                b"hook " + event.encode(),
                given,
                tell,
                True,
                posix.environ,
                sockets.append,
            )
            break
        except DaemonError:
            if os.getppid() != parent:
                break
            time.sleep(NAP_SECONDS)
            event = event if event == "Rearm" else "Wake again"
    return bool(told)


def begun(paths: HookPaths, parent: int) -> bool:
    """Wait until the edit's own event has started a daemon; return whether it has."""
    import time

    from stepper.hook.client import connect

    until = time.monotonic() + COMES_SECONDS
    time.sleep(NAP_SECONDS)
    while not (sock := connect(paths)):
        if time.monotonic() > until or posix.getppid() != parent:
            return False
        time.sleep(NAP_SECONDS)
    sock.close()
    return True


def started(paths: HookPaths, parent: int, event: str, how: str) -> bool:
    """Have a daemon there, started where the last one is gone; return whether it is, and somebody waits for it."""
    import time

    from stepper.hook.client import connect
    from stepper.hook.start import retired, start

    if how == "stale":
        retired(paths)
    sock = connect(paths)
    # a daemon that ends takes the mark away, once all is told
    if not sock and event == "Rearm":
        time.sleep(NAP_SECONDS)
        if not posix.access(f"{paths.home}/handed", posix.F_OK):
            return False
    while not sock:
        try:
            sock = connect(paths) or start(paths, connect)
        except DaemonError:
            if posix.getppid() != parent:
                return False
            time.sleep(NAP_SECONDS)
    sock.close()
    return True


def can_wake(parent: int) -> bool:
    """Whether an agent can be woken, as client.c has it."""
    import _stat
    import select

    entry = posix.environ.get(b"CLAUDE_CODE_ENTRYPOINT", b"")
    if not entry.startswith(b"sdk-"):
        return True
    try:
        stdin = posix.open(f"/proc/{parent}/fd/0", posix.O_RDONLY | posix.O_NONBLOCK)
        poll = select.poll()
        poll.register(stdin, select.POLLIN)
        mode = posix.fstat(stdin).st_mode
        file = _stat.S_ISREG(mode) or (_stat.S_ISCHR(mode) and not posix.isatty(stdin))
        if file or any(seen & select.POLLHUP for _, seen in poll.poll(0)):
            return False
    except OSError:
        pass  # a socket, maybe
    try:
        with open(f"/proc/{parent}/cmdline", "rb") as stream:
            return (
                entry != b"sdk-cli"
                or b"--input-format=stream-json" in stream.read().replace(b"\0", b"=")
            )
    except OSError:
        return False


def leaving() -> "Callable[[bytes], None]":
    """Return what to do at each beat: end this process where nobody waits for its answer, which cancels the cell."""
    parent, first = posix.getppid(), [True]

    def look(_: bytes) -> None:
        if first:  # it comes at once: a step that is over by the next one pays nothing
            first.clear()
            return
        import select

        poll = select.poll()
        poll.register(1, 0)  # POLLERR and POLLHUP come unasked
        # Claude Code, killed, closes nothing politely: only its end of our standard
        # output is gone, or our parent.
        if posix.getppid() != parent or any(
            seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0)
        ):
            posix._exit(0)

    return look


def fared(how: str, paths: HookPaths) -> StepperError:
    """Return what the compiled client (client.c) met, by its word; of a failure the daemon's answer is open as 3."""
    if how == "failed":
        with open(3, "rb") as stream:
            return failure(stream.read())
    error: StepperError = gone(paths, True) if how.endswith("gone") else silent(paths)
    if how.endswith("unread"):
        error = StepperError(
            "the hook's standard input can't be read, or not be kept in memory"
        )
    error.accepted = how.startswith("accepted")
    return error
