"""Write text to the terminal: without control characters, with coloured marks.

Titles, names and outputs come from anybody, so all text goes through `print_text`.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from typing import Any

import click

from stepper.common.paths import Paths, resolve_project
from stepper.common.program_name import find_program
from stepper.common.text import clean
from stepper.hook.daemon_client import get_current_folder
from stepper.messages.marks import MARK_COLOURS
from stepper.policy.commands.command_lines import PROGRAM, replace_program

MARK = re.compile(f"^( *)([{''.join(MARK_COLOURS)}])(?= )", re.MULTILINE)


def print_text(
    text: str,
    err: bool = False,
    is_output: bool = False,
) -> None:
    """Print a text without control characters, with colours if they are wanted.

    Commands in the text are written as they work in this shell, unless the text
    `is_output` of cells or code.
    """
    if f"{PROGRAM} " in text and not is_output:
        path = os.environ.get("PATH", os.defpath)
        text = replace_program(text, program_name(get_current_folder(), path))
    color = wants_colour(sys.stderr if err else sys.stdout)
    text = clean(text)
    if color:
        text = colour_marks(text)
    write_text(text, err=err, color=color)


@functools.cache
def program_name(folder: str, path: str) -> str:
    """Return what calls stepper in a shell with that PATH, in that folder."""
    project = resolve_project(folder, sys.prefix)
    return find_program(Paths(project), path, folder) if project else PROGRAM


def write_text(
    text: str,
    err: bool = False,
    color: bool | None = None,
    nl: bool = True,
) -> None:
    """Print a text as it is.

    If the reader has gone, as with `| head`, further output is discarded, so that the
    command still finishes.
    """
    try:
        click.echo(text, err=err, color=color, nl=nl)
    except BrokenPipeError:
        stream = sys.stderr if err else sys.stdout
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())


def wants_colour(stream: Any) -> bool:
    """Return whether a stream is written with colours.

    It is if it is a terminal, unless NO_COLOR, FORCE_COLOR or TERM say otherwise.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    is_dumb = os.environ.get("TERM") == "dumb"
    return not is_dumb and bool(stream.isatty())


def colour_marks(text: str) -> str:
    """Return a text in which the mark at the start of each line has its colour."""
    return MARK.sub(_colour_mark, text)


def _colour_mark(match: re.Match[str]) -> str:
    indent, mark = match.groups()
    return indent + click.style(mark, fg=MARK_COLOURS[mark])


def use_utc(
    _: click.Context,
    __: click.Parameter,
    value: bool,
) -> None:
    """Show all times of this process in UTC; the callback of `--utc`."""
    if value:
        os.environ["TZ"] = "UTC"
        time.tzset()
