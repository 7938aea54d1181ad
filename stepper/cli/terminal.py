"""The terminal: texts of anybody's made safe for it, marks in colour where that is wanted, the zone of times."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Any

import click

from stepper.common.text import clean

COLOURS = {"✓": "green", "✗": "red", "■": "yellow", "▶": "cyan"}
MARK = re.compile(f"^( *)([{''.join(COLOURS)}])(?= )", re.MULTILINE)


def say(text: str, err: bool = False) -> None:
    """Print a text, without what a terminal would obey: titles, names and outputs are anybody's."""
    wanted = colours(sys.stderr if err else sys.stdout)
    write(coloured(clean(text)) if wanted else clean(text), err=err, color=wanted)


def write(
    text: str, err: bool = False, color: bool | None = None, nl: bool = True
) -> None:
    """Print a text; where nobody reads on (`| head`), what was begun goes on to its end unread."""
    try:
        click.echo(text, err=err, color=color, nl=nl)
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY),
            (sys.stderr if err else sys.stdout).fileno(),
        )


def colours(stream: Any) -> bool:
    """Whether a stream is to have colours: on a terminal, but as NO_COLOR, FORCE_COLOR and TERM say."""
    if os.environ.get("NO_COLOR"):
        return False
    return os.environ.get("FORCE_COLOR", "0") not in ("", "0") or (
        os.environ.get("TERM") != "dumb" and stream.isatty()
    )


def coloured(text: str) -> str:
    """Return a text with each mark that begins a line in its colour."""
    return MARK.sub(
        lambda found: found[1] + click.style(found[2], fg=COLOURS[found[2]]), text
    )


def in_utc(_: click.Context, __: click.Parameter, given: bool) -> None:
    """`--utc`: the zone of all that this process shows."""
    if given:
        os.environ["TZ"] = "UTC"
        time.tzset()
