"""A suggestion for source that Python can't read: the small change with which it reads, found by trying.

Python names the place where it could go on no more. What is told here was tried: with that change the whole source
compiles, as IPython reads it. Where no change helps there is the place alone: Python's own message says what a colon, a
text's end or an operator too many is.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

from stepper.diagnosis.preflight import compiled
from stepper.policy.model import Fault

# Python's message says all: it compiled the whole but for a name
EXACT = r"declaration|repeated|duplicate"
# What IPython reads as its own is no Python: `%x`, `!x`, `a = !x`, `x?`.
MAGIC = re.compile(
    r"^([ \t]*|[\w, \t]*=[ \t]*)(?:[%!](?:.*\\\n)*.*|[\w.%*]+\?\??[ \t]*$)",
    re.MULTILINE,
)
# characters of a source, of a line that is looked at: some patterns are quadratic
LONGEST, WIDEST = 20_000, 2_000
EFFORT = 400_000  # characters that are compiled in all: some tenths of a second
NEAR = 50  # lines around the place where Python stopped that are looked at
ROUNDS = 8  # changes of one source
KEYWORDS = "|".join(keyword.kwlist)
PAIRS = {")": "(", "]": "[", "}": "{"}
END = r"(?=[,:]?[ \t]*(?:#[^'\"]*)?$)"  # of a line, before a comma, a colon, a remark
SHELL = "apt|cat|cd|cp|curl|git|ls|mkdir|mv|npm|pip3|python3?|rm|wget"

# what is there, what Python writes, how that is said before the number of the line
Row = tuple[str, str, str]
# a changed source, and the change as one says it after "reads with"
Edit = tuple[str, str]

# What other languages, escaped text, chats and shells write in the line where Python
# stops.
WORDS = (
    (r"^[ \t]*(?:```|~~~).*", "", "no Markdown fence (backticks) in"),
    (r"[“”„‟]", '"', "`{new}` in place of `{old}` in"),
    (r"\b(?:else[ \t]+if|else?if|elsif)\b", "elif", "`{new}` in place of `{old}` in"),
    (
        r"\b([\w.]+)[ \t]*([+-])\2(?=[ \t]*(?:$|[;#)]))",
        r"\1 \2= 1",
        "`{new}` in place of `{old}` in",
    ),
    # what pandas makes of && and ||
    (r"\b(and|or)[ \t]+\1\b", r"\1", "`{new}` in place of `{old}` in"),
    (r"\\[nr]", "\n", r"a line break in place of `\n` in"),
    (
        r"^(?:pip|conda|mamba|uv) (?![=(\[.,:)]).*",
        r"%\g<0>",
        "`{new:.60}` (a command of the shell) in",
    ),
    (
        rf"^(?:{SHELL}) (?![=(\[.,:)]).*",
        r"!\g<0>",
        "`{new:.60}` (a command of the shell) in",
    ),
    (
        r'(?<=\[)"([^"]*)"(?=\])',
        r"'\1'",
        "the other kind of quotes (') inside the text of",
    ),
    (
        rf"(?<=\.)(?:{KEYWORDS})\b|\b(?:{KEYWORDS})(?=[ \t]*[=,.)])",
        r"\g<0>_",
        "`{new}` in place of the reserved word `{old}` in",
    ),
)
# What the nearest line lacks: pieces of which several may be needed, then what must be
# all that lacks.
PIECES = (
    (rf"(?<=[\w\])}}'\"]){END}", ",", "a comma at the end of"),
    (r"(\{[\w.]+)(?![\w.}:!=(\[])", r"\1}", "a `}}` after `{old}` in"),
)
ASYNC = ((r"^([ \t]*)def ", r"\1async def ", "`async def` in place of `def` in"),)
LAST = (
    (r"^([ \t]*)try[ \t]*:", r"\1if 1:", "an `except` or `finally` for the try of"),
    (r":(?=[ \t]*(?:#.*)?$)", ": pass", "a body (if only `pass`) below"),
)


def suggestion(source: str, fault: Fault) -> str:
    """Return the change with which the source reads, else the place; '' where the fault has no place."""
    line, text = fault.attributes.get("lineno"), str(fault.attributes.get("text") or "")
    line = line if isinstance(line, int) else fault.line
    if not isinstance(line, int):
        return ""
    offset = fault.attributes.get("offset")
    column = offset if isinstance(offset, int) and offset > 0 else 0
    name = str(fault.attributes.get("filename") or "")
    file = name if name[:1] != "<" and "/" in name and "ipykernel" not in name else ""
    lines = [*source.split("\n"), ""]
    own = lines[min(line, len(lines)) - 1]
    if not file and (not fault.frames or (own.strip() and own.strip() == text.strip())):
        change = (
            ""
            if re.search(EXACT, fault.evalue)
            else _repaired(re.sub(r"\A%%.*", "", source))
        )
        return f"the cell reads with {change}" if change else _place(line, column, own)
    of = (
        f" of {re.sub(r'[^/]+/[.][.]/', '', file)}"
        if file
        else " of the text that was parsed"
    )
    change = _repaired(text.strip())
    return _place(line, column, text, of) + (
        f"; this line reads with {change}" if change else ""
    )


def _place(line: int, column: int, text: str, of: str = "") -> str:
    at = f", column {column}" if column else ""
    return f"line {line}{of}{at}: `{text.strip()[:120]}`"


def _repaired(source: str) -> str:
    """Return the changes with which a source reads, in words; '' where there are none."""
    left, made = EFFORT, list[str]()
    long = len(source) > LONGEST or max(map(len, source.split("\n"))) > WIDEST
    stopped = None if long else _stopped(source)  # None: another Python refused it
    while stopped and len(made) < ROUNDS:
        line, unread = stopped
        lines, at, further = source.split("\n"), line - 1, None
        for several, edits in ((True, _words(lines, at)), (False, _blocks(lines, at))):
            for changed, what in edits:
                left -= len(changed)
                if left < 0:
                    return ""
                after = _stopped(changed)
                if after is None:
                    return ", ".join([*made, what])
                if several and not further and after[1] < unread:
                    further = (changed, what, after)
        if not further:
            return ""
        source, what, stopped = further
        made.append(what)
    return ""


def _stopped(source: str) -> tuple[int, int] | None:
    """Return the line where Python stops and how many characters it leaves unread; None where it reads all."""
    stopped = None
    for text in dict.fromkeys(
        (
            source,
            MAGIC.sub(lambda own: own[1] + "..." + "\n" * own[0].count("\n"), source),
        )
    ):
        try:
            compiled(text)
        except SyntaxError as error:
            lines = text.split("\n")
            line = min(max(error.lineno or 1, 1), len(lines))
            stopped = line, sum(map(len, lines[line - 1 :])) - (error.offset or 0)
        except Exception:  # noqa: BLE001  # too deep, a null byte: it tells nothing
            stopped = 1, len(text)
        else:
            return None
    return stopped


def _words(lines: Sequence[str], at: int) -> Iterator[Edit]:
    """Yield changes of which several may be needed."""
    for row in WORDS:
        yield from _replaced(lines, at, row)
    if re.search(r"[(\[{]", "".join(lines)):
        yield from _nearby(lines, at, PIECES)


def _blocks(lines: Sequence[str], at: int) -> Iterator[Edit]:
    """Yield changes each of which must be all that lacks, the likeliest first."""
    yield from _nearby(lines, at, ASYNC)
    yield from _brackets(lines, at)
    yield from _indented(lines, at)
    yield from _nearby(lines, at, LAST)


def _nearby(lines: Sequence[str], at: int, rows: Sequence[Row]) -> Iterator[Edit]:
    for row in rows:
        for number in sorted(range(len(lines)), key=lambda number: abs(number - at))[
            :NEAR
        ]:
            yield from _replaced(lines, number, row)


def _brackets(lines: Sequence[str], at: int) -> Iterator[Edit]:
    """Yield a bracket more at a line's end, or one less; after a comma something goes on, in most cases."""
    source = "\n".join(lines)
    ends = sorted(
        range(len(lines)),
        key=lambda number: (lines[number].rstrip()[-1:] in ("", ","), abs(number - at)),
    )
    for closer, opener in PAIRS.items():
        row = (rf"{END}|$", closer, "a `{new}` at the end of")
        if source.count(opener) < source.count(closer):
            row = (re.escape(closer), "", "no `{old}` in")
        for number in ends if source.count(opener) != source.count(closer) else ():
            yield from _replaced(lines, number, row, 1)


def _indented(lines: Sequence[str], at: int) -> Iterator[Edit]:
    """Yield lines moved into a block around them, or out of it: that where Python stopped, those around it."""
    code = [
        number
        for number, line in enumerate(lines)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    width = {number: _width(lines[number]) for number in code}
    above, below = (
        [n for n in code if at - NEAR < n < at],
        [n for n in code if n > at],
    )
    if (
        at not in width
        or not above
        or any("\t" in lines[number][: width[number]] for number in code)
    ):
        return
    now, last = width[at], above[-1]
    run = [at, *takewhile(lambda number: width[number] >= now, below)]
    group = [*takewhile(lambda number: width[number] == now, above[::-1])][
        ::-1
    ]  # it may belong to the block above, too
    widths = {
        *(width[number] for number in above),
        width[last] + 4 * lines[last].split("#")[0].rstrip().endswith(":"),
    }
    for goal in sorted(widths - {now}, key=lambda goal: (abs(goal - now), now - goal)):
        for which in filter(None, ([at], run, [*group, at], group)):
            heads = [
                number for number in above if number < which[0] and width[number] < goal
            ]
            yield _moved(lines, which, goal - now, heads[-1] if heads else -1)


def _replaced(
    lines: Sequence[str], number: int, row: Row, count: int = 0
) -> Iterator[Edit]:
    pattern, python, said = row
    if found := re.search(pattern, lines[number]):
        what = said.format(new=found.expand(python).strip(), old=found[0].strip())
        new = [
            *lines[:number],
            re.sub(pattern, python, lines[number], count=count),
            *lines[number + 1 :],
        ]
        yield "\n".join(new), f"{what} line {number + 1}"


def _moved(lines: Sequence[str], which: Sequence[int], by: int, head: int) -> Edit:
    """Return lines moved to the right, or back, into the block of the line `head`; -1: into none."""
    new = [*lines]
    for number in which:
        new[number] = " " * (_width(lines[number]) + by) + lines[number].lstrip()
    now, first, last = _width(lines[which[0]]), which[0] + 1, which[-1] + 1
    name = f"line {first}" if len(which) == 1 else f"lines {first}–{last}"
    into = f", in the block of line {head + 1}" if head >= 0 else ""
    return "\n".join(new), f"{name} indented by {now + by} blanks (now {now}){into}"


def _width(line: str) -> int:
    return len(line) - len(line.lstrip())
