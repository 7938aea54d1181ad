"""Suggestions for source that Python can't read: the line, the caret, what is unclosed and where it was opened."""

from __future__ import annotations

from stepper.core.around import Around, Facts
from stepper.core.brackets import unclosed
from stepper.core.model import Fault


def syntax_error(fault: Fault, look: Facts, around: Around) -> str:
    """The line, the caret, what is unclosed and where it was opened."""
    found = unclosed(around.source)
    if found:
        mark, line, column = found
        return f"the {mark} opened in line {line}, column {column}, is not closed"
    at_line, at_column = fault.attributes.get("lineno") or fault.line, fault.attributes.get("offset")
    if not isinstance(at_line, int):
        return ""
    lines = around.source.split("\n")
    said = lines[at_line - 1] if 0 < at_line <= len(lines) else str(fault.attributes.get("text") or "")
    at = f", column {at_column}" if isinstance(at_column, int) and at_column > 0 else ""
    return f"line {at_line}{at}: `{said.strip()[:120]}`"
