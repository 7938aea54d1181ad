"""The output of install and uninstall."""

from __future__ import annotations

import os
import sys


def print_line(name: str, text: str) -> None:
    """Print a line about a part of the installation.

    The installation continues if the output is a closed pipe, such as with `| head`.
    """
    try:
        sys.stdout.write(f"{name:<12}{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
