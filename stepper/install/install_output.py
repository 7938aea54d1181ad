"""The lines that install and uninstall print."""

from __future__ import annotations

import os
import sys


def print_line(name: str, text: str) -> None:
    """Print what was done to a part of the installation.

    If nobody reads the output any more (`| head`), the installation continues.
    """
    try:
        sys.stdout.write(f"{name:<12}{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
