"""Texts of others made safe to show: no escapes, no control characters, bounded."""

from __future__ import annotations

import re

MESSAGE_LIMIT = 600
# Terminal escapes, each in its line: one without an end must not swallow what follows.
ESCAPES = re.compile(r"(?:\x1b\]|\x9d)[^\x07\x1b\n]*(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-Z\\-_]")
# Every other control character but tab and newline: those that turn text around, that nobody sees, lone surrogates.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """Return text without terminal escapes and control characters; tabs and newlines stay."""
    return CONTROLS.sub("", ESCAPES.sub("", text.replace("\r\n", "\n")))


def one_line(text: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the first line that is not blank, cleaned and at most `limit` characters long."""
    line = next((line for line in clean(text).splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else line[: limit - 1] + "…"


def last_state(line: str) -> str:
    """Return what is left of a line that carriage returns overwrote."""
    return next((part for part in reversed(line.split("\r")) if part), "")
