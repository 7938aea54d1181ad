"""The exceptions of stepper, with exit codes and hints for the user.

The hook process loads this module, so it imports nothing.
"""


class StepperError(Exception):
    """An error with a message for the user.

    `hint` says how to fix the problem, for example with a command. `exit_code` is the
    exit code of the command line: 1 if the work failed, 2 for wrong usage, and 3 if
    stepper itself failed.
    """

    exit_code = 1
    # Whether the daemon had accepted the request, so the cell may have run.
    accepted = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        if self.hint:
            return f"{self.message}\n{self.hint}"
        return self.message


class UsageError(StepperError):
    """Invalid arguments, an invalid configuration, or a path outside the project."""

    exit_code = 2


class RequestInterruptedError(StepperError):
    """A request was interrupted, or its client disconnected, before its code ran."""


class NotebookError(StepperError):
    """A notebook cannot be read or written, for example because it does not exist."""


class KernelError(StepperError):
    """A kernel could not be started or reached.

    If `stops_notebook` is true, no known command fixes the problem, so the notebook is
    stopped.
    """

    stops_notebook = False


class IpykernelMissingError(KernelError):
    """The interpreter lacks ipykernel or one of its dependencies."""


class KernelStartError(KernelError):
    """The kernel process died or did not respond while it started."""

    stops_notebook = True


class KernelUnreachableError(KernelError):
    """The kernel cannot be reached, but it may still be alive and running code."""


class DaemonError(StepperError):
    """The daemon cannot be reached or started, hangs, or failed on a request."""

    exit_code = 3
