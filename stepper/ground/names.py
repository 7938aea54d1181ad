"""Names of files in sentences: what would steer a terminal or forge a line is written as an escape."""

import re

# Controls, what ends a line or turns the direction of writing, what nobody sees, bytes that are no text.
ODD = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)


def shown(name: str) -> str:
    """Return a name or path without a raw control character."""
    return ODD.sub(lambda found: ascii(found[0])[1:-1], name)


def quoted(name: str) -> str:
    """Return a name as a word for bash, with escapes where it holds control characters."""
    if not ODD.search(name):
        return name if re.fullmatch(r"[\w@%+=:,./-]+", name) else "'" + name.replace("'", "'\\''") + "'"
    escaped = name.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + ODD.sub(_escape, escaped) + "'"


def _escape(found: re.Match[str]) -> str:
    """Return what bash reads as those bytes."""
    return "".join(f"\\x{byte:02x}" for byte in found[0].encode("utf-8", "surrogateescape"))
