"""Messages about other clients of a kernel: how to attach one, what they executed."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import format_count, one_line
from stepper.policy.notebook_state import State

MAX_NAMES = 20
COLLABORATION_PACKAGE = "jupyter-collaboration"

CONSOLE_NOTE = (
    "stepper tracks what you run there: the next report names the variables that it"
    " assigned. To leave the console, press Ctrl-D; `exit` stops the kernel."
)


def format_attach(name: str, where: str, console: str, settings: Sequence[str]) -> str:
    """Return how to attach clients to a kernel with a connection file.

    `console` is the command of a console; `settings` are options of JupyterLab.
    """
    return "\n".join(
        [
            f"{one_line(name)}: its kernel runs ({where})",
            f"  a console   {console}",
            f"  JupyterLab  jupyter lab {' '.join(settings)}",
            "              then, in the notebook: Kernel > Change Kernel…, under the"
            " running kernels",
            CONSOLE_NOTE,
        ]
    )


def format_attach_by_url(name: str, where: str, kernel_id: str, url: str) -> str:
    """Return how to attach clients to a kernel of a Jupyter server."""
    return "\n".join(
        [
            f"{one_line(name)}: its kernel runs ({where})",
            f"  JupyterLab  open {one_line(url, 500)}, choose Kernel > Change Kernel…"
            f" and select the kernel {kernel_id}",
            "A console on this machine can't attach: the kernel has no connection file"
            " here.",
        ]
    )


def format_executions(state: State) -> list[str]:
    """Return a note on other clients' executions since the last report, in a list.

    The list is empty if there were none.
    """
    executions = state.external_executions[state.reported_external_count :]
    if not executions:
        return []
    names = dict.fromkeys(name for execution in executions for name in execution.bound)
    shown = [one_line(name, 60) for name in [*names][:MAX_NAMES]]
    text = f"{format_count(len(executions), 'execution')} by other clients"
    if shown:
        hidden = len(names) - len(shown)
        more = f", and {hidden} more" if hidden else ""
        text += f", assigned: {', '.join(shown)}{more}"
    failed = sum(1 for execution in executions if execution.error)
    if failed:
        text += f" ({failed} failed)"
    return [text]


def format_not_reloaded(urls: Sequence[str]) -> str:
    """Return the note on Jupyter servers that show outdated notebooks, or ''."""
    if not urls:
        return ""
    servers = one_line(", ".join(urls), 300)
    return (
        f"the Jupyter server at {servers} does not reload an open notebook that stepper"
        " has written. To reload it there: File > Reload Notebook from Disk. With the"
        f" package {COLLABORATION_PACKAGE}, the server reloads notebooks automatically"
    )
