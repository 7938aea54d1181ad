"""Suggestions for syntax errors: a small change with which the source compiles.

Each change is tried before it is suggested: the whole source must compile with the
change, as IPython compiles it. If no change helps, the suggestion is the location of
the error, and only Python's message describes the error.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
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
MAX_EXCERPT = 120  # characters of a quoted line
INDENTATION = 4  # spaces of a block
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
    """A changed source, and a description of the change for "compiles with …"."""

    source: str
    description: str


class Candidate(NamedTuple):
    """An edit to try. `is_partial` means that further edits may be needed."""

    edit: Edit
    is_partial: bool


class SyntaxPosition(NamedTuple):
    """The line at which Python stops parsing, and the number of unread characters."""

    line: int
    unread: int


class Progress(NamedTuple):
    """An edit with which Python parses more of the source, and the new position."""

    edit: Edit
    position: SyntaxPosition


class Block(NamedTuple):
    """The lines that may be indented together, and the indentation to try.

    `change` is the number of spaces to add, or a negative number. `header` is the index
    of the line that opens the new block of the lines, or None if there is none.
    """

    lines: Sequence[int]
    change: int
    header: int | None


INSTEAD = "`{new}` instead of `{old}` in"
SHELL_COMMAND = "`{new:.60}` (a shell command) in"
# Syntax of other languages, escaped text, chats and shells, in the line of the error.
WORDS = (
    Replacement(r"^[ \t]*(?:```|~~~).*", "", "no Markdown fence (backticks) in"),
    Replacement(r"[“”„‟]", '"', INSTEAD),
    Replacement(r"\b(?:else[ \t]+if|else?if|elsif)\b", "elif", INSTEAD),
    Replacement(r"\b([\w.]+)[ \t]*([+-])\2(?=[ \t]*(?:$|[;#)]))", r"\1 \2= 1", INSTEAD),
    # The result of replacing each character of `&&` or `||` by a word.
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
# Changes that are not combined with other changes.
ASYNC = (
    Replacement(r"^([ \t]*)def ", r"\1async def ", "`async def` instead of `def` in"),
)
MISSING_BLOCKS = (
    Replacement(
        r"^([ \t]*)try[ \t]*:", r"\1if 1:", "an `except` or `finally` for the `try` in"
    ),
    Replacement(r":(?=[ \t]*(?:#.*)?$)", ": pass", "a body (for example `pass`) below"),
)


def suggest_change(source: str, fault: Fault) -> str:
    """Return a clause on a change with which the source compiles.

    If no change is found, return the location of the error, or an empty string if the
    fault has no location.
    """
    location = _parse_location(fault)
    if location is None:
        return ""
    text, line, column = location
    lines = [*source.split("\n"), ""]
    last_index = len(lines) - 1
    cell_line = lines[min(line - 1, last_index)]
    file = _get_file(fault)
    is_cell_line = bool(cell_line.strip()) and cell_line.strip() == text.strip()
    if not file and (is_cell_line or not fault.frames):
        change = _find_changes_of_cell(source, fault)
        if change:
            return f"the cell compiles with {change}"
        return _format_location(line, column, cell_line)
    # The cell parsed another text, for example with eval() or an import.
    container = " of the parsed text"
    if file:
        short_path = re.sub(r"[^/]+/[.][.]/", "", file)  # a/../b is b
        container = f" of {short_path}"
    sentence = _format_location(line, column, text, container)
    change = _find_changes(text.strip())
    if not change:
        return sentence
    return f"{sentence}; this line compiles with {change}"


def _find_changes_of_cell(source: str, fault: Fault) -> str:
    """Return a description of changes after which a cell compiles.

    Return an empty string if no changes are found, or if the fault's message explains
    the error.
    """
    if re.search(SELF_EXPLANATORY, fault.evalue):
        return ""
    code = re.sub(r"\A%%.*", "", source)
    return _find_changes(code)


class ErrorLocation(NamedTuple):
    """The text and number of a syntax error's line, and the column (0 if unknown)."""

    text: str
    line: int
    column: int


def _parse_location(fault: Fault) -> ErrorLocation | None:
    """Return the location of a syntax error, or None if it has no line."""
    attributes = fault.attributes
    line = attributes.get("lineno")
    if not isinstance(line, int):
        line = fault.line
    if not isinstance(line, int):
        return None
    column = 0
    offset = attributes.get("offset")
    if isinstance(offset, int) and offset > 0:
        column = offset
    text = attributes.get("text") or ""
    return ErrorLocation(str(text), line, column)


def _get_file(fault: Fault) -> str:
    """Return the file of a syntax error.

    Return an empty string if the error is in a cell or in a string.
    """
    name = str(fault.attributes.get("filename") or "")
    if name.startswith("<") or "ipykernel" in name:
        return ""
    if "/" not in name:
        return ""
    return name


def _format_location(line: int, column: int, text: str, container: str = "") -> str:
    """Return the position and the text of a line. `container` follows its number."""
    position = f", column {column}" if column else ""
    excerpt = text.strip()[:MAX_EXCERPT]
    return f"line {line}{container}{position}: `{excerpt}`"


def _find_changes(source: str) -> str:
    """Return a description of changes after which a source compiles.

    Return an empty string if no changes are found within the limits.
    """
    if len(source) > MAX_SOURCE:
        return ""
    line_lengths = map(len, source.split("\n"))
    if max(line_lengths) > MAX_LINE:
        return ""
    # There is no error if only another version of Python rejects the source.
    position = _find_error_position(source)
    remaining_characters = MAX_COMPILED
    descriptions: list[str] = []
    while position and len(descriptions) < MAX_CHANGES:
        progress: Progress | None = None
        for edit, is_partial in _iter_candidates(source, position):
            remaining_characters -= len(edit.source)
            if remaining_characters < 0:
                return ""
            next_position = _find_error_position(edit.source)
            if next_position is None:
                descriptions.append(edit.description)
                return ", ".join(descriptions)
            is_progress = next_position.unread < position.unread
            if is_partial and is_progress and progress is None:
                progress = Progress(edit, next_position)
        if progress is None:
            return ""
        source = progress.edit.source
        position = progress.position
        descriptions.append(progress.edit.description)
    return ""


def _iter_candidates(source: str, position: SyntaxPosition) -> Iterator[Candidate]:
    """Yield the edits to try for an error at this position."""
    lines = source.split("\n")
    index = position.line - 1
    for edit in _iter_partial_edits(lines, index):
        yield Candidate(edit, is_partial=True)
    for edit in _iter_single_edits(lines, index):
        yield Candidate(edit, is_partial=False)


def _find_error_position(source: str) -> SyntaxPosition | None:
    """Return the position at which Python stops parsing.

    Return None if the source compiles, either as it is or with its magics replaced by
    expressions.
    """
    position = None
    without_magics = MAGIC.sub(_replace_magic, source)
    for text in dict.fromkeys((source, without_magics)):
        try:
            compile_statements(text)
        except SyntaxError as error:
            position = _get_position(text, error)
        except Exception:  # noqa: BLE001
            # Nested too deeply, or a null byte.
            position = SyntaxPosition(1, len(text))
        else:
            return None
    return position


def _get_position(source: str, error: SyntaxError) -> SyntaxPosition:
    """Return the position of a syntax error in its source."""
    lines = source.split("\n")
    line = max(error.lineno or 1, 1)
    line = min(line, len(lines))
    remaining_lines = lines[line - 1 :]
    unread = sum(map(len, remaining_lines))
    if error.offset:
        unread -= error.offset
    return SyntaxPosition(line, unread)


def _replace_magic(match: re.Match[str]) -> str:
    """Return an expression that has as many lines as the matched magic."""
    line_breaks = "\n" * match[0].count("\n")
    return f"{match[1]}...{line_breaks}"


def _iter_partial_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield edits that may be needed together with other edits."""
    for rule in WORDS:
        yield from _apply_rule(lines, index, rule)
    source = "".join(lines)
    if re.search(r"[(\[{]", source):
        yield from _apply_nearby(lines, index, MISSING_CHARACTERS)


def _iter_single_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield edits that are not combined with other edits, the likeliest first."""
    yield from _apply_nearby(lines, index, ASYNC)
    yield from _iter_bracket_edits(lines, index)
    yield from _iter_indentation_edits(lines, index)
    yield from _apply_nearby(lines, index, MISSING_BLOCKS)


def _apply_nearby(
    lines: Sequence[str],
    index: int,
    rules: Sequence[Replacement],
) -> Iterator[Edit]:
    """Yield the edits of each rule for the MAX_DISTANCE lines nearest to the error."""

    def get_distance(number: int) -> int:
        return abs(number - index)

    nearest = sorted(range(len(lines)), key=get_distance)
    for rule in rules:
        for number in nearest[:MAX_DISTANCE]:
            yield from _apply_rule(lines, number, rule)


def _iter_bracket_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield edits that add a bracket at the end of a line, or remove a bracket.

    Lines that end with a comma come last, because an expression usually continues on
    the next line.
    """
    source = "\n".join(lines)

    def sort_key(number: int) -> tuple[bool, int]:
        line = lines[number].rstrip()
        continues = not line or line.endswith(",")
        distance = abs(number - index)
        return continues, distance

    numbers = sorted(range(len(lines)), key=sort_key)
    for closer, opener in BRACKETS.items():
        opener_count = source.count(opener)
        closer_count = source.count(closer)
        if opener_count == closer_count:
            continue
        if opener_count > closer_count:
            pattern = rf"{LINE_END}|$"
            rule = Replacement(pattern, closer, "a `{new}` at the end of")
        else:
            pattern = re.escape(closer)
            rule = Replacement(pattern, "", "no `{old}` in")
        for number in numbers:
            yield from _apply_rule(lines, number, rule, 1)


def _iter_indentation_edits(lines: Sequence[str], index: int) -> Iterator[Edit]:
    """Yield edits that move lines at the error into or out of a block."""
    widths = _measure_indentation(lines)
    if index not in widths:
        return
    width = widths[index]
    above = [number for number in widths if index - MAX_DISTANCE < number < index]
    if not above:
        return
    last_above = above[-1]
    new_widths = {widths[number] for number in above}
    if _opens_block(lines[last_above]):
        new_widths.add(widths[last_above] + INDENTATION)
    new_widths.discard(width)

    def sort_key(new_width: int) -> tuple[int, int]:
        """Prefer small changes, and of two equal changes the larger indentation."""
        change = new_width - width
        return abs(change), -change

    # The lines to move: the line itself, the line with its block, or the lines above
    # with the same indentation, which may belong to the block above, too.
    block = _list_block_lines(widths, index)
    group: list[int] = []
    for number in reversed(above):
        if widths[number] != width:
            break
        group.insert(0, number)
    selections = [[index], block, [*group, index], group]
    for new_width in sorted(new_widths, key=sort_key):
        for numbers in filter(None, selections):  # the group may be empty
            preceding_lines = [number for number in above if number < numbers[0]]
            moved_block = Block(
                lines=numbers,
                change=new_width - width,
                header=_find_header(widths, preceding_lines, new_width),
            )
            yield _indent(lines, moved_block)


def _find_header(
    widths: dict[int, int],
    numbers: Sequence[int],
    width: int,
) -> int | None:
    """Return the last of some lines that is indented less than `width`, or None.

    `widths` maps the index of each line with code to its indentation.
    """
    for number in reversed(numbers):
        if widths[number] < width:
            return number
    return None


def _list_block_lines(widths: dict[int, int], index: int) -> list[int]:
    """Return a line and the following lines that are indented at least as much.

    `widths` maps the index of each line with code to its indentation.
    """
    block = [index]
    for line_index, width in widths.items():
        if line_index <= index:
            continue
        if width < widths[index]:
            break
        block.append(line_index)
    return block


def _measure_indentation(lines: Sequence[str]) -> dict[int, int]:
    """Return the indentation in spaces of each line with code, by its index.

    Return an empty dict if a line is indented with tabs.
    """
    widths = {}
    for number, line in enumerate(lines):
        code = line.lstrip()
        if not code or code.startswith("#"):
            continue
        width = len(line) - len(code)
        if "\t" in line[:width]:
            return {}
        widths[number] = width
    return widths


def _opens_block(line: str) -> bool:
    """Return whether a line ends with a colon, which a comment may follow."""
    code, _, _ = line.partition("#")
    return code.rstrip().endswith(":")


def _apply_rule(
    lines: Sequence[str],
    number: int,
    rule: Replacement,
    count: int = 0,
) -> Iterator[Edit]:
    """Yield an edit that applies a replacement to a line, if the pattern matches.

    `count` is the maximum number of replacements in the line, or 0 for all.
    """
    line = lines[number]
    pattern = re.compile(rule.pattern)
    match = pattern.search(line)
    if not match:
        return
    new = match.expand(rule.replacement).strip()
    old = match[0].strip()
    description = rule.description.format(new=new, old=old)
    new_lines = list(lines)
    new_lines[number] = pattern.sub(rule.replacement, line, count)
    source = "\n".join(new_lines)
    yield Edit(source, f"{description} line {number + 1}")


def _indent(lines: Sequence[str], block: Block) -> Edit:
    """Return an edit that changes the indentation of a block's lines."""
    new_lines = list(lines)
    for number in block.lines:
        line = lines[number]
        width = _get_indentation(line) + block.change
        indentation = " " * width
        new_lines[number] = indentation + line.lstrip()
    first = block.lines[0]
    last = block.lines[-1]
    name = f"line {first + 1}"
    if len(block.lines) > 1:
        name = f"lines {first + 1}–{last + 1}"
    old_width = _get_indentation(lines[first])
    new_width = old_width + block.change
    plural = "" if new_width == 1 else "s"
    description = f"{name} indented to {new_width} space{plural} (now {old_width})"
    if block.header is not None:
        description += f", in the block of line {block.header + 1}"
    source = "\n".join(new_lines)
    return Edit(source, description)


def _get_indentation(line: str) -> int:
    """Return the number of white-space characters at the beginning of a line."""
    return len(line) - len(line.lstrip())
