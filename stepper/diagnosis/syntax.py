"""Suggestions for source that Python can't read: what is really wrong, where Python names where it stopped.

`RULES` is read from the top; the first that finds something to say decides. What is said comes from the source alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from stepper.diagnosis.around import Around, Facts
from stepper.diagnosis.brackets import unclosed
from stepper.diagnosis.syntax_blocks import apart, compiler, goes_on, lonely_try, no_body, tabs, unexpected, unindent
from stepper.diagnosis.syntax_brackets import bracket, colon, comma, extra, quote, triple
from stepper.diagnosis.syntax_query import query
from stepper.diagnosis.syntax_words import characters, command, escapes, fence, reserved
from stepper.diagnosis.tokens import Broken, Trials
from stepper.policy.model import Fault

LONGEST = 20_000  # characters of a source that the rules look at
RULES: tuple[Callable[[Broken], str], ...] = (
    fence,
    characters,
    escapes,
    compiler,
    tabs,
    unindent,
    no_body,
    triple,
    bracket,
    extra,
    command,
    apart,
    lonely_try,
    goes_on,
    unexpected,
    reserved,
    colon,
    comma,
    quote,
)


def syntax_error(fault: Fault, look: Facts, around: Around) -> str:
    """What is really wrong: the line, what is unclosed and where it was opened, what lacks."""
    line, text = fault.attributes.get("lineno"), str(fault.attributes.get("text") or "")
    line = line if isinstance(line, int) else fault.line
    if not isinstance(line, int):
        return ""
    line = _line_in_cell(line, text, fault, around)
    if line is None:
        return query(fault, look, around) or elsewhere(fault, around)
    offset = fault.attributes.get("offset")
    column = offset if isinstance(offset, int) else 0
    broken = Broken(around.source, fault.ename, fault.evalue, line, column, Trials(around.source))
    for rule in RULES if len(around.source) <= LONGEST else ():
        said = rule(broken)
        if said:
            return said
    return place(line, column, broken.text)


def _line_in_cell(line: int, text: str, fault: Fault, around: Around) -> int | None:
    """Return which line of the cell is meant, None where another text is: a file, a query, what `exec` was given."""
    lines = around.source.split("\n")
    own = [line, line + 1] if around.source.startswith("%%") else [line]  # a magic hands on the lines below it
    if not text.strip():
        return None if fault.frames and around.source[:2] != "%%" else own[-1]
    for number in own:
        if 0 < number <= len(lines) and lines[number - 1].strip() == text.strip():
            return number
    return None if fault.frames or _is_file(fault) else line


def _is_file(fault: Fault) -> bool:
    name = str(fault.attributes.get("filename") or "")
    return name[:1] != "<" and os.sep in name and "ipykernel" not in name


def place(line: int, column: int, text: str) -> str:
    """Return a place in a source with its text."""
    at = f", column {column}" if column > 0 else ""
    return f"line {line}{at}: `{text.strip()[:120]}`"


def elsewhere(fault: Fault, around: Around) -> str:
    """Return which file, or what other text, is broken: its line, and what is unclosed in that line."""
    text, line = str(fault.attributes.get("text") or ""), fault.attributes.get("lineno")
    offset = fault.attributes.get("offset")
    if not isinstance(line, int):
        return ""
    of = f"line {line} of the text that was parsed"
    if _is_file(fault):
        name = os.path.normpath(str(fault.attributes["filename"]))
        below = os.path.relpath(name, around.cwd) if around.cwd else name
        of = f"line {line} of {min(below, name, key=len)}"
    left = unclosed(text.strip("\n"))
    told = f"; the {left[0]} in column {left[2]} is not closed in it" if left else ""
    column = f", column {offset}" if isinstance(offset, int) and offset > 0 and not told else ""
    return f"{of}{column}: `{text.strip()[:160]}`{told}"
