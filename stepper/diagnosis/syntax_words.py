"""Source that Python can't read because of what is no Python: fences, shell commands, curly quotes, reserved words."""

from __future__ import annotations

import keyword
import re
import unicodedata

from stepper.diagnosis.around import listed
from stepper.diagnosis.tokens import Broken, tokens


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


FENCE = re.compile(r"[ \t]*(```|~~~)")
COMMAND = re.compile(r"[ \t]*([a-z][\w.-]*)[ \t]+(?![=(\[.,:)]|(?:in|is|and|or|if|not|else|for|as)\b)\S")
MAGICS = ("pip", "conda", "mamba", "micromamba", "uv")  # IPython has them as magics, for the kernel's own environment
SHELL = _words(
    """
    apt apt-get awk bash brew cat cd chmod cp curl docker echo export find git grep gunzip gzip head jupyter kaggle ls
    make mkdir mv node npm npx pip3 poetry psql pwd python python3 rm sed sh sqlite3 ssh sudo tail tar touch unzip wc
    wget which zip
    """
)
CURLY = "“”„‘’‚‛‟"
ESCAPE = re.compile(r"\\([nrt\"'])")


def fence(broken: Broken) -> str:
    """The lines that fence code in Markdown."""
    if not FENCE.match(broken.text):
        return ""
    texts = [token for token in tokens(broken.source) if token.kind == "string"]
    inside = {line for token in texts for line in range(token.line + 1, token.last_line + 1)}
    found = [number for number, text in enumerate(broken.lines, 1) if FENCE.match(text) and number not in inside]
    if not found:
        return ""
    lines = f"lines {_numbers(found)} are code fences" if len(found) > 1 else f"line {found[0]} is a code fence"
    return f"{lines} of Markdown ({broken.lines[found[0] - 1].strip()[:40]}), no Python"


def escapes(broken: Broken) -> str:
    """A backslash that stands outside of a text: line breaks and quotes written as escapes, blanks at a line's end."""
    slashes = [token for token in broken.on_line if token.text == "\\"]
    if not slashes:
        return ""
    if not broken.text[slashes[0].column :].strip():
        return (
            f"line {broken.line} ends with blanks after its backslash; a backslash goes on only as the last character"
        )
    found = [match for token in slashes if (match := ESCAPE.match(broken.source, token.at))]
    if not found:
        return ""
    one = found[0][0]
    meant = {"n": "a line break", "r": "a line break", "t": "a tab"}.get(found[0][1], "a plain quote")
    count = len({match.start() for match in found})
    times = f"{count} times" if count > 1 else "once"
    return (
        f"line {broken.line} holds `{one}` as two characters outside of a text, {times}"
        f" (first at column {slashes[0].column}): escaped text, where {meant} may be meant"
    )


def command(broken: Broken) -> str:
    """A command of the shell without the mark that makes it one."""
    found = COMMAND.match(broken.text)
    if not found or found[1] not in SHELL.union(MAGICS):
        return ""
    statement = broken.here
    if statement is None or statement.line != broken.line:
        return ""
    mark, of = ("%", ", a magic of IPython") if found[1] in MAGICS else ("!", "")
    return f"line {broken.line} is a command of the shell; in a cell it is `{mark}{broken.text.strip()[:60]}`{of}"


def characters(broken: Broken) -> str:
    """Every line with characters that stand nowhere in Python: curly quotes, long dashes, odd blanks."""
    if not re.search(r"invalid (non-printable )?character", broken.message):
        return ""
    found: dict[int, list[str]] = {}
    for token in tokens(broken.source):
        if token.kind == "op" and not token.text.isascii():
            found.setdefault(token.line, []).append(token.text)
    if not found:
        return ""
    marks = dict.fromkeys(mark for marks in found.values() for mark in marks)
    of = "curly quotes, which begin no text in Python," if {*marks} & {*CURLY} else "characters that are no Python"
    lines = f"line{'s' if len(found) > 1 else ''} {_numbers([*found])}"
    return f"{of} stand in {lines}: {listed([*map(_named, marks)], 120)}"


def _named(mark: str) -> str:
    plain = mark.isprintable() and not mark.isspace()
    return mark if plain else f"U+{ord(mark):04X} {unicodedata.name(mark, '').lower()}".strip()


def reserved(broken: Broken) -> str:
    """A reserved word where a name has to stand."""
    line = broken.on_line
    for before, token, after in zip([None, *line], line, [*line[1:], None], strict=False):
        if not keyword.iskeyword(token.text) or token.text in ("True", "False", "None"):
            continue
        word = f"`{token.text}` (line {token.line}, column {token.column}) is a reserved word of Python"
        if before is not None and before.text == "." and before.kind == "op":
            return f"{word} and can't be an attribute's name; getattr(…, {token.text!r}) reads it"
        if after is not None and after.text == "=":
            if token.depth:
                return f"{word} and can't be an argument's name; **{{{token.text!r}: …}} hands one over"
            return f"{word} and can't be a variable's name"
        within = token.depth == 1 and before is not None and before.text in ("(", ",")
        if within and line[0].text == "def" and after is not None and after.text in (",", ")", ":"):
            return f"{word} and can't be an argument's name"
        if before is not None and before.text in ("def", "class", "as", "for") and token.column > before.column:
            return f"{word} and can't be a name"
    return ""


def _numbers(lines: list[int]) -> str:
    return listed([str(line) for line in lines], 60)
