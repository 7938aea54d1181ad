"""The hook process: forward standard input, print what comes back. It loads `ground` and the client alone.

client.c does the same as long as all is well; whatever it met, it hands over to this one.
"""

import posix
import sys

from stepper.ground.errors import DaemonError, StepperError
from stepper.ground.meeting import Meeting
from stepper.hook.client import GoneError, ask, failure, gone, silent

if False:  # for the type checker alone: typing is not loaded
    from collections.abc import Callable

# Events that are nobody's business while no notebook is under way, and those that never start a daemon.
ONLY_UNDER_WAY = ("SessionStart", "UserPromptSubmit", "Stop")
NEVER_LAUNCH = ("UserPromptSubmit", "Stop")


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
        paths = Meeting(posix.getcwd())
        answer: bytes | None = b""
        if event not in ONLY_UNDER_WAY or posix.access(paths.active, posix.F_OK):
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


def forward(paths: Meeting, event: str, payload: bytes, before: "StepperError | None") -> "bytes | None":
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
        told = error if isinstance(error, StepperError) else DaemonError(f"{type(error).__name__}: {error}")
        told.accepted = told.accepted or lost.accepted
        raise told from None
    if not answer:
        raise lost
    return answer


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
        # Claude Code, killed, closes nothing politely: only its end of our standard output is gone, or our parent.
        if posix.getppid() != parent or any(seen & (select.POLLERR | select.POLLHUP) for _, seen in poll.poll(0)):
            posix._exit(0)

    return look


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
