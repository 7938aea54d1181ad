"""The exceptions, each with its exit code and the command that mends it. Stdlib only, no imports."""


class StepperError(Exception):
    """Something that a person can act on: what is wrong, and the command that mends it.

    `exit_code` is what the CLI ends with: 1 the work failed, 2 wrong usage, 3 stepper itself failed.
    """

    exit_code = 1
    # whether the daemon had taken the request, so that the cell may have run
    accepted = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UsageError(StepperError):
    """Wrong arguments, a wrong configuration, a path that is no notebook of this project."""

    exit_code = 2


class NotebookError(StepperError):
    """The notebook can't be read or written: vanished, a folder, not JSON, not a notebook."""


class KernelError(StepperError):
    """No kernel could be started. `stops` where no command that is known mends it: the notebook stops."""

    stops_notebook = False


class IpykernelMissingError(KernelError):
    """The interpreter has no ipykernel, or lacks what that needs; the hint adds it."""


class KernelStartError(KernelError):
    """The kernel's process died or kept silent at start."""

    stops_notebook = True


class KernelUnreachableError(KernelError):
    """Nothing reaches the kernel, and it may live on: whether it does what it was asked is not known."""


class DaemonError(StepperError):
    """The daemon can't be reached or started, hangs, or failed on a request."""

    exit_code = 3
