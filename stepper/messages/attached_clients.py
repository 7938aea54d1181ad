"""Messages about other clients of a kernel: instructions to attach, and executions."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import format_count, one_line
from stepper.policy.notebook_state import State

MAX_NAMES = 20
COLLABORATION_PACKAGE = "jupyter-collaboration"

CONSOLE_NOTE = (
    "stepper tracks the code that you run there: the next report names the variables"
    " that the code assigned. To leave the console, press Ctrl-D; `exit` stops the"
    " kernel."
)


def format_attach(name: str, where: str, console: str, settings: Sequence[str]) -> str:
    """Return instructions to attach clients to a kernel with a connection file.

    `where` describes the kernel, `console` is the command that starts a console, and
    `settings` are command-line options for JupyterLab.
    """
    return "\n".join(
        [
            f"The kernel of {one_line(name)} is running ({where}). To attach a client:",
            f"  a console   {console}",
            f"  JupyterLab  jupyter lab {' '.join(settings)}",
            "              Then, in the notebook, choose Kernel > Change Kernel… and"
            " select the running kernel.",
            CONSOLE_NOTE,
        ]
    )


def format_attach_by_url(name: str, where: str, kernel_id: str, url: str) -> str:
    """Return instructions to attach clients to a kernel of the Jupyter server at `url`.

    `where` describes the kernel.
    """
    return "\n".join(
        [
            f"The kernel of {one_line(name)} is running ({where}). To attach a client:",
            f"  JupyterLab  open {one_line(url, 500)}, choose Kernel > Change Kernel…"
            f" and select the kernel {kernel_id}",
            "A console on this machine can't attach: the kernel has no connection file"
            " here.",
        ]
    )


def format_executions(state: State) -> list[str]:
    """Return a list with a note on executions by other clients since the last report.

    The list is empty if other clients executed nothing.
    """
    executions = state.external_executions[state.reported_external_count :]
    if not executions:
        return []
    names = dict.fromkeys(name for execution in executions for name in execution.bound)
    shown_names = [one_line(name, 60) for name in [*names][:MAX_NAMES]]
    text = f"{format_count(len(executions), 'execution')} by other clients"
    failed_count = sum(1 for execution in executions if execution.error)
    if failed_count:
        text += f" ({failed_count} failed)"
    if shown_names:
        text += f"; assigned variables: {', '.join(shown_names)}"
        hidden_count = len(names) - len(shown_names)
        if hidden_count:
            text += f", and {hidden_count} more"
    return [text]


def format_not_reloaded(urls: Sequence[str]) -> str:
    """Return the note on Jupyter servers that show outdated notebooks.

    Return an empty string if `urls`, the addresses of these servers, is empty.
    """
    if not urls:
        return ""
    subject = "server"
    verb = "does"
    if len(urls) > 1:
        subject = "servers"
        verb = "do"
    addresses = one_line(", ".join(urls), 300)
    return (
        f"the Jupyter {subject} at {addresses} {verb} not reload an open notebook that"
        " stepper has written. To reload it there: File > Reload Notebook from Disk."
        f" With the package {COLLABORATION_PACKAGE}, a server reloads notebooks"
        " automatically"
    )
