"""What is beside stepper on a kernel and a file, in words: consoles, JupyterLab; how one gets there, what they did."""

from __future__ import annotations

from collections.abc import Sequence

from stepper.common.text import format_count, one_line
from stepper.policy.notebook_state import State

NAMES = 20  # told
PACKAGE = "jupyter-collaboration"

LEAVE = (
    "What is run there is known here: the next report says how much, and which names it bound."
    " Leave the console by Ctrl-D: `exit` ends the kernel."
)


def attach(name: str, where: str, console: str, settings: Sequence[str]) -> str:
    """Return what attaches to a kernel that a connection file tells of."""
    return "\n".join(
        [
            f"{one_line(name)}: its kernel runs ({where})",
            f"  a console   {console}",
            f"  JupyterLab  jupyter lab {' '.join(settings)}",
            "              then, in the notebook: Kernel > Change Kernel…, below the running ones",
            LEAVE,
        ]
    )


def attach_by_url(name: str, where: str, kernel: str, url: str) -> str:
    """Return what attaches to a kernel of a Jupyter server."""
    return "\n".join(
        [
            f"{one_line(name)}: its kernel runs ({where})",
            f"  JupyterLab  {one_line(url, 500)}: there, Kernel > Change Kernel…, the one of the id {kernel}",
            "No file tells how it is reached, so that no console on this machine attaches to it.",
        ]
    )


def executions(state: State) -> list[str]:
    """Return what other clients had the kernel run since the last report, as a note; none where they had nothing."""
    some = state.elsewhere[state.elsewhere_told :]
    if not some:
        return []
    bound = [
        one_line(name, 60)
        for name in dict.fromkeys(name for each in some for name in each.bound)
    ]
    more = f", and {len(bound) - NAMES} more" if len(bound) > NAMES else ""
    told = f", bound: {', '.join(bound[:NAMES])}{more}" if bound else ""
    failed = sum(bool(each.error) for each in some)
    return [
        f"{format_count(len(some), 'execution')} from elsewhere{told}"
        + (f" ({failed} failed)" if failed else "")
    ]


def not_reloaded(urls: Sequence[str]) -> str:
    """Return what is to be known of Jupyter servers that show a notebook and do not reload it; '' for none."""
    if not urls:
        return ""
    return (
        f"the Jupyter server at {one_line(', '.join(urls), 300)} does not reload an open notebook that stepper has"
        f" written (File > Reload Notebook from Disk does): {PACKAGE}, installed beside it, has it reload by itself"
    )
