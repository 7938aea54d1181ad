"""Suggestions for syntax errors: a small change with which the source compiles.

Each suggested change was tried: the whole source compiles with it, as IPython parses
it. If no change helps, the suggestion is the location of the error, and Python's own
message says the rest.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from stepper.diagnosis.preflight import compile_statements
from stepper.policy.model import Fault

# Python's messages that need no suggestion: the rest of the source compiles.
SELF_EXPLANATORY = r"declaration|repeated|duplicate"
# IPython's syntax that is not Python: `%x`, `!x`, `a = !x`, `x?`.
MAGIC = re.compile(
    r"^([ \t]*|[\w, \t]*=[ \t]*)(?:[%!](?:.*\\\n)*.*|[\w.%*]+\?\??[ \t]*$)",
    re.MULTILINE,
)
# Characters of a source and of a line: some patterns take quadratic time.
MAX_SOURCE = 20_000
MAX_LINE = 2_000
MAX_COMPILED = 400_000  # characters compiled for one source, a few tenths of a second
MAX_DISTANCE = 50  # lines around the error in which changes are tried
MAX_CHANGES = 8  # of one source
KEYWORDS = "|".join(keyword.kwlist)
BRACKETS = {")": "(", "]": "[", "}": "{"}
# The end of a line, before a comma, colon or comment.
LINE_END = r"(?=[,:]?[ \t]*(?:#[^'\"]*)?$)"
SHELL = "apt|cat|cd|cp|curl|git|ls|mkdir|mv|npm|pip3|python3?|rm|wget"


class Replacement(NamedTuple):
    """A pattern, its replacement, and a description that precedes the line number."""

    pattern: str
    replacement: str
    description: str


class Edit(NamedTuple):
    """A changed source, and the change as it is described after "with"."""

    source: str
    description: str


class SyntaxPosition(NamedTuple):
    """Where Python stops: the line, and the number of characters after it."""

    line: int
    unread: int


class Block(NamedTuple):
    """The lines that may be indented together, and the indentation to try."""

    lines: Sequence[int]
    change: int
    header: int


INSTEAD = "`{new}` instead of `{old}` in"
SHELL_COMMAND = "`{new:.60}` (a shell command) in"
# Syntax of other languages, escaped text, chats and shells, in the line of the error.
WORDS = (
    Replacement(r"^[ \t]*(?:```|~~~).*", "", "no Markdown fence (backticks) in"),
    Replacement(r"[“”„‟]", '"', INSTEAD),
    Replacement(r"\b(?:else[ \t]+if|else?if|elsif)\b", "elif", INSTEAD),
    Replacement(r"\b([\w.]+)[ \t]*([+-])\2(?=[ \t]*(?:$|[;#)]))", r"\1 \2= 1", INSTEAD),
    # Left behind by a translation of && and ||.
    Replacement(r"\b(and|or)[ \t]+\1\b", r"\1", INSTEAD),
    Replacement(r"\\[nr]", "\n", r"a line break instead of `\n` in"),
    Replacement(r"^(?:pip|conda|mamba|uv) (?![=(\[.,:)]).*", r"%\g<0>", SHELL_COMMAND),
    Replacement(rf"^(?:{SHELL}) (?![=(\[.,:)]).*", r"!\g<0>", SHELL_COMMAND),
    Replacement(
        r'(?<=\[)"([^"]*)"(?=\])',
        r"'\1'",
        "single quotes (') inside the string of",
    ),
    Replacement(
        rf"(?<=\.)(?:{KEYWORDS})\b|\b(?:{KEYWORDS})(?=[ \t]*[=,.)])",
        r"\g<0>_",
        "`{new}` instead of the reserved word `{old}` in",
    ),
)
# Missing characters, several of which may be needed.
MISSING_CHARACTERS = (
    Replacement(rf"(?<=[\w\])}}'\"]){LINE_END}", ",", "a comma at the end of"),
    Replacement(r"(\{[\w.]+)(?![\w.}:!=(\[])", r"\1}", "a `}}` after `{old}` in"),
)
# Changes that must be the only one.
ASYNC = (
    Replacement(r"^([ \t]*)def ", r"\1async def ", "`async def` instead of `def` in"),
)
MISSING_BLOCKS = (
    Replacement(
        r"^([ \t]*)try[ \t]*:", r"\1if 1:", "an `except` or `finally` for the try of"
    ),
    Replacement(r":(?=[ \t]*(?:#.*)?$)", ": pass", "a body (for example `pass`) below"),
)


def suggest_change(source: str, fault: Fault) -> str:
    """Return the change with which the source compiles, else the error's location.

    '' if the fault has no location.
    """
    text = str(fault.attributes.get("text") or "")
    line = fault.attributes.get("lineno")
    if not isinstance(line, int):
        line = fault.line
    if not isinstance(line, int):
        return ""
    offset = fault.attributes.get("offset")
    column = 0
    if isinstance(offset, int) and offset > 0:
        column = offset
    lines = [*source.split("\n"), ""]
    cell_line = lines[min(line, len(lines)) - 1]
    file = _get_file(fault)
    stripped_line = cell_line.strip()
    is_same_line = stripped_line and stripped_line == text.strip()
    if not file and (not fault.frames or is_same_line):
        change = ""
        if not re.search(SELF_EXPLANATORY, fault.evalue):
            change = _find_changes(re.sub(r"\A%%.*", "", source))
        if change:
            return f"the cell compiles with {change}"
        return _format_location(line, column, cell_line)
    container = " of the text that was parsed"
    if file:
        container = f" of {re.sub(r'[^/]+/[.][.]/', '', file)}"
    location = _format_location(line, column, text, container)
    change = _find_changes(text.strip())
    return f"{location}; this line compiles with {change}" if change else location


def _get_file(fault: Fault) -> str:
    """Return the file of a syntax error, '' if it is in a cell or in a string."""
    name = str(fault.attributes.get("filename") or "")
    if name.startswith("<") or "ipykernel" in name:
        return ""
    return name if "/" in name else ""


def _format_location(line: int, column: int, text: str, container: str = "") -> str:
    position = f", column {column}" if column else ""
    excerpt = text.strip()[:120]
    return f"line {line}{container}{position}: `{excerpt}`"


def _find_changes(source: str) -> str:
    """Return the changes with which a source compiles, '' if there are none."""
    longest_line = max(map(len, source.split("\n")))
    if len(source) > MAX_SOURCE or longest_line > MAX_LINE:
        return ""
    # None at once if only another version of Python rejected the source.
    position = _find_error(source)
    room = MAX_COMPILED
    descriptions = list[str]()
    while position and len(descriptions) < MAX_CHANGES:
        lines = source.split("\n")
        index = position.line - 1
        progress: tuple[Edit, SyntaxPosition] | None = None
        for can_repeat, edits in (
            (True, _iter_partial_edits(lines, index)),
            (False, _iter_single_edits(lines, index)),
        ):
            for edit in edits:
                room -= len(edit.source)
                if room < 0:
                    return ""
                next_position = _find_error(edit.source)
                if next_position is None:
                    return ", ".join([*descriptions, edit.description])
                is_progress = next_position.unread < position.unread
                if can_repeat and progress is None and is_progress:
                    progress = (edit, next_position)
        if progress is None:
            return ""
        edit, position = progress
        source = edit.source
        descriptions.append(edit.description)
    return ""


def _find_error(source: str) -> SyntaxPosition | None:
    """Return where Python stops parsing, None if the source compiles.

    The source compiles also if it does with magics replaced by expressions.
    """
    position = None
    without_magics = MAGIC.sub(_replace_magic, source)
    for text in dict.fromkeys((source, without_magics)):
        try:
            compile_statements(text)
        except SyntaxError as error:
            lines = text.split("\n")
            line = min(max(error.lineno or 1, 1), len(lines))
            remaining_lines = lines[line - 1 :]
            unread = sum(map(len, remaining_lines))
            if error.offset:
                unread -= error.offset
            position = SyntaxPosition(line, unread)
        except Exception:  # noqa: BLE001
            # Nested too deeply, or a null byte.
            position = SyntaxPosition(1, len(text))
        else:
            return None
    return position


def _replace_magic(match: re.Match[str]) -> str:
    line_breaks = "\n" * match[0].count("\n")
    return f"{match[1]}...{line_breaks}"


def _iter_partial_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield changes that may be needed together with others."""
    for row in WORDS:
        yield from _apply(lines, index, row)
    if re.search(r"[(\[{]", "".join(lines)):
        yield from _apply_nearby(lines, index, MISSING_CHARACTERS)


def _iter_single_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield changes that must be the only one, the likeliest first."""
    yield from _apply_nearby(lines, index, ASYNC)
    yield from _iter_bracket_edits(lines, index)
    yield from _iter_indentation_edits(lines, index)
    yield from _apply_nearby(lines, index, MISSING_BLOCKS)


def _apply_nearby(
    lines: Sequence[str], index: int, rows: Sequence[Replacement]
) -> Iterator[Edit]:
    numbers = range(len(lines))
    nearest = sorted(numbers, key=lambda number: abs(number - index))
    for row in rows:
        for number in nearest[:MAX_DISTANCE]:
            yield from _apply(lines, number, row)


def _iter_bracket_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield sources with a bracket added at the end of a line, or one removed.

    Lines that end with a comma come last: an expression usually continues there.
    """
    source = "\n".join(lines)

    def sort_key(number: int) -> tuple[bool, int]:
        line = lines[number].rstrip()
        continues = not line or line.endswith(",")
        return continues, abs(number - index)

    numbers = sorted(range(len(lines)), key=sort_key)
    for closer, opener in BRACKETS.items():
        surplus = source.count(opener) - source.count(closer)
        if surplus == 0:
            continue
        row = Replacement(rf"{LINE_END}|$", closer, "a `{new}` at the end of")
        if surplus < 0:
            row = Replacement(re.escape(closer), "", "no `{old}` in")
        for number in numbers:
            yield from _apply(lines, number, row, 1)


def _iter_indentation_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield sources in which lines at the error are moved into or out of a block."""
    widths: dict[int, int] = {}
    above: list[int] = []
    below: list[int] = []
    for number, line in enumerate(lines):
        code = line.lstrip()
        if not code or code.startswith("#"):
            continue
        width = len(line) - len(code)
        if "\t" in line[:width]:
            return
        widths[number] = width
        if index - MAX_DISTANCE < number < index:
            above.append(number)
        elif number > index:
            below.append(number)
    if index not in widths or not above:
        return
    width = widths[index]
    block = [index, *takewhile(lambda number: widths[number] >= width, below)]
    # The lines above with the same indentation may belong to the block above too.
    siblings = [*takewhile(lambda number: widths[number] == width, above[::-1])]
    group = siblings[::-1]
    goals = {widths[number] for number in above}
    last = above[-1]
    last_code, _, _ = lines[last].partition("#")
    opens_block = last_code.rstrip().endswith(":")
    last_width = widths[last]
    goals.add(last_width + 4 if opens_block else last_width)
    goals.discard(width)
    groups = ([index], block, [*group, index], group)
    for goal in sorted(goals, key=lambda goal: (abs(goal - width), width - goal)):
        for numbers in groups:
            if not numbers:
                continue
            header = -1
            for number in above:
                if number < numbers[0] and widths[number] < goal:
                    header = number
            change = goal - width
            yield _indent(lines, Block(numbers, change, header))


def _apply(
    lines: Sequence[str], number: int, row: Replacement, count: int = 0
) -> Iterator[Edit]:
    """Yield the source with a replacement in one line if its pattern matches there."""
    line = lines[number]
    match = re.search(row.pattern, line)
    if not match:
        return
    new = match.expand(row.replacement).strip()
    old = match[0].strip()
    description = row.description.format(new=new, old=old)
    changed = list(lines)
    changed[number] = re.sub(row.pattern, row.replacement, line, count=count)
    yield Edit("\n".join(changed), f"{description} line {number + 1}")


def _indent(lines: Sequence[str], block: Block) -> Edit:
    """Return the source with the lines of a block indented more or less.

    `block.header` is the line that the block then belongs to, -1 for none.
    """
    changed = [*lines]
    for number in block.lines:
        width = _indentation(lines[number]) + block.change
        indentation = " " * width
        changed[number] = indentation + lines[number].lstrip()
    first = block.lines[0]
    last = block.lines[-1]
    name = f"line {first + 1}"
    if len(block.lines) > 1:
        name = f"lines {first + 1}–{last + 1}"
    old_width = _indentation(lines[first])
    new_width = old_width + block.change
    description = f"{name} indented by {new_width} spaces (now {old_width})"
    if block.header >= 0:
        description += f", in the block of line {block.header + 1}"
    return Edit("\n".join(changed), description)


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
