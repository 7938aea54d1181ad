"""Names of files in sentences: what would steer a terminal or forge a line is written as an escape."""

import re

# C0, DEL and C1 controls, line and paragraph separators, what turns the direction of writing, bytes that are no text.
ODD = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


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
