"""Make untrusted text safe to display, and format counts and ages.

Names, titles and outputs are untrusted. They may contain terminal escapes, control
characters, and characters that change the writing direction.
"""

from __future__ import annotations

import re

MESSAGE_LIMIT = 600  # characters
# Units of time, as (seconds, unit).
AGES = (
    (86400, "d"),
    (3600, "h"),
    (60, "min"),
    (1, "s"),
)
# A terminal escape must not match across lines: an unterminated one would swallow the
# text after it.
ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\n]*(?:\x07|\x1b\\)?"  # OSC, such as a window title
    r"|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI, such as a color
    r"|\x1b[ -/]+[0-~]"  # for example a character set, as in `tput sgr0`
    r"|\x1b[0-Z\\^-~]"  # a single character, for example to save the cursor
)
# Control characters, line separators, direction marks, invisible characters, and
# surrogates, which are bytes that could not be decoded.
INVISIBLE = (
    "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
)
# Tabs and newlines are allowed in texts, but not in names.
CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f{INVISIBLE}]")
NAME_CONTROLS = re.compile(f"[\x00-\x1f{INVISIBLE}]")
SHELL_WORD = re.compile(r"[\w@%+=:,./-]+")
# Marks the end of an output that is stored only in part.
TRUNCATED = "left out by stepper (max_output_bytes) …"


def clean(text: str) -> str:
    """Return text without terminal escapes and control characters.

    Tabs and newlines are kept.
    """
    text = text.replace("\r\n", "\n")
    text = ESCAPES.sub("", text)
    return CONTROLS.sub("", text)


def one_line(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the first non-blank line, cleaned and truncated to `limit` characters."""
    lines = (line.strip() for line in clean(text).splitlines())
    first = next(filter(None, lines), "")
    if len(first) <= limit:
        return first
    return first[: limit - 1] + "…"


def format_count(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 cell" or "2,000 cells"."""
    plural = "" if number == 1 else "s"
    return f"{number:,} {noun}{plural}"


def format_steps_done(
    done: int,
    skipped: int,
    total: int,
    noun: str,
) -> str:
    """Return how many steps or cells are done, such as "2 of 5 steps done".

    Skipped steps are counted separately: "5 steps: 2 done, 1 skipped".
    """
    if skipped:
        count = format_count(total, noun)
        return f"{count}: {done:,} done, {skipped:,} skipped"
    return f"{done:,} of {total:,} {noun}s done"


def format_age(seconds: float) -> str:
    """Return a duration in its largest unit, such as "3 h".

    Return "now" for less than a second.
    """
    for size, unit in AGES:
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return "now"


def apply_carriage_returns(line: str) -> str:
    """Return the last text of a line with carriage returns, such as a progress bar.

    A terminal would also show the end of an earlier text that is longer.
    """
    parts = line.split("\r")
    return next(filter(None, reversed(parts)), "")


def escape_controls(name: str) -> str:
    """Return a name or path with escaped control characters, such as `\\n`."""
    return NAME_CONTROLS.sub(_escape_character, name)


def _escape_character(match: re.Match[str]) -> str:
    """Return the Python escape sequence of a matched character."""
    quoted = ascii(match[0])
    return quoted[1:-1]


def shell_quote(name: str) -> str:
    """Return a name as one word for bash, with control characters escaped."""
    if NAME_CONTROLS.search(name):
        escaped_name = name.replace("\\", "\\\\").replace("'", "\\'")
        escaped_name = NAME_CONTROLS.sub(_escape_bytes, escaped_name)
        return f"$'{escaped_name}'"
    if SHELL_WORD.fullmatch(name):
        return name
    escaped_name = name.replace("'", "'\\''")
    return f"'{escaped_name}'"


def _escape_bytes(match: re.Match[str]) -> str:
    """Return the escape sequences of a matched character's bytes for $'…' in bash."""
    data = match[0].encode("utf-8", "surrogateescape")
    return "".join([f"\\x{byte:02x}" for byte in data])
