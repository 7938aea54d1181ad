"""Texts and names of others made safe to show: no escapes, no control characters, bounded."""

from __future__ import annotations

import re

MESSAGE_LIMIT = 600
AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
# Terminal escapes, each in its line: one without an end must not swallow what follows.
ESCAPES = re.compile(
    r"(?:\x1b\]|\x9d)[^\x07\x1b\n]*(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]"
)
# Controls, what ends a line or turns the direction of writing, what nobody sees, bytes
# that are no text.
INVISIBLE = "\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f"
# tabs and newlines are none in a text
CONTROLS = re.compile(f"[\x00-\x08\x0b-\x1f{INVISIBLE}]")
NAME_CONTROLS = re.compile(f"[\x00-\x1f{INVISIBLE}]")  # in a name


def clean(text: str) -> str:
    """Return text without terminal escapes and control characters; tabs and newlines stay."""
    return CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the first line that is not blank, cleaned and at most `limit` characters long."""
    line = next((line for line in clean(text).splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


# ends the line in an output of which a part is not kept
TRUNCATED = "left out by stepper (max_output_bytes) …"


def format_count(number: int, noun: str) -> str:
    """Return so many of something in words."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def format_steps_done(done: int, skipped: int, total: int, noun: str) -> str:
    """Return how many steps or cells are done; skipped ones are counted separately."""
    if skipped:
        return f"{format_count(total, noun)}: {done:,} done, {skipped:,} skipped"
    return f"{done:,} of {total:,} {noun}s done"


def format_age(seconds: float) -> str:
    """Return how old something is, in its largest unit."""
    return next(
        (f"{seconds // size:.0f} {unit}" for size, unit in AGES if seconds >= size),
        "now",
    )


def apply_carriage_returns(line: str) -> str:
    """Return what is left of a line that carriage returns overwrote."""
    return next((part for part in reversed(line.split("\r")) if part), "")


def escape_controls(name: str) -> str:
    """Return a name or path without a raw control character."""
    return NAME_CONTROLS.sub(lambda found: ascii(found[0])[1:-1], name)


def shell_quote(name: str) -> str:
    """Return a name as a word for bash, with escapes where it holds control characters."""
    if not NAME_CONTROLS.search(name):
        return (
            name
            if re.fullmatch(r"[\w@%+=:,./-]+", name)
            else "'" + name.replace("'", "'\\''") + "'"
        )
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + NAME_CONTROLS.sub(_escape, escaped) + "'"


def _escape(odd: re.Match[str]) -> str:
    return "".join(
        f"\\x{byte:02x}" for byte in odd[0].encode("utf-8", "surrogateescape")
    )
