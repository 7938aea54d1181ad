"""Output to the terminal, without control characters and with colored marks.

Text is printed by `print_text`, which removes control characters, because titles,
names and outputs may come from an untrusted notebook. `write_text` is only for text
that is already escaped.
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
from stepper.messages.marks import MARK_COLORS
from stepper.policy.commands.command_lines import PROGRAM, replace_program

MARK = re.compile(f"^( *)([{''.join(MARK_COLORS)}])(?= )", re.MULTILINE)


def print_text(
    text: str,
    err: bool = False,
    is_output: bool = False,
) -> None:
    """Print a text without control characters, with colors if they are supported.

    Commands in the text are adapted to this shell, unless `is_output` is true because
    cells or code printed the text.
    """
    if f"{PROGRAM} " in text and not is_output:
        path = os.environ.get("PATH", os.defpath)
        program = find_program_in_folder(get_current_folder(), path)
        text = replace_program(text, program)
    stream = sys.stderr if err else sys.stdout
    color = wants_color(stream)
    text = clean(text)
    if color:
        text = color_marks(text)
    write_text(text, err=err, color=color)


@functools.cache
def find_program_in_folder(folder: str, path: str) -> str:
    """Return the command for stepper in a shell with the given PATH and folder."""
    project = resolve_project(folder, sys.prefix)
    if project:
        return find_program(Paths(project), path, folder)
    return PROGRAM


def write_text(
    text: str,
    err: bool = False,
    color: bool | None = None,
    nl: bool = True,
) -> None:
    """Print a text unchanged.

    If the reader has closed the pipe, as with `| head`, discard all further output, so
    that the command still finishes.
    """
    try:
        click.echo(text, err=err, color=color, nl=nl)
    except BrokenPipeError:
        stream = sys.stderr if err else sys.stdout
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def wants_color(stream: Any) -> bool:
    """Return whether to use colors on a stream.

    Terminals get colors, unless NO_COLOR is set or TERM is `dumb`. With FORCE_COLOR,
    other streams get colors, too.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    is_dumb = os.environ.get("TERM") == "dumb"
    return not is_dumb and bool(stream.isatty())


def color_marks(text: str) -> str:
    """Return the text with colored marks at the starts of lines."""
    return MARK.sub(_color_mark, text)


def _color_mark(match: re.Match[str]) -> str:
    """Return an indented mark in its color."""
    indent, mark = match.groups()
    return indent + click.style(mark, fg=MARK_COLORS[mark])


def use_utc(
    _: click.Context,
    __: click.Parameter,
    value: bool,
) -> None:
    """Show all times of this process in UTC; the callback of `--utc`."""
    if value:
        os.environ["TZ"] = "UTC"
        time.tzset()
