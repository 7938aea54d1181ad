"""A suggestion for source that Python can't read: the small change with which it reads, found by trying.

Python names the place where it could go on no more. What is told here was tried: with that one change (or the same
change in a few lines) the whole source compiles, as IPython reads it. Where no change helps there is the place alone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from stepper.diagnosis.before import compiled
from stepper.diagnosis.repairs import ROWS, Broken, Edit
from stepper.policy.model import Fault

EXACT = r"declaration|repeated|duplicate"  # Python's message says all: it compiled the whole but for a name
MAGIC = re.compile(r"^[ \t]*[%!?]|=[ \t]*[%!]|\?[ \t]*$", re.MULTILINE)  # what IPython may take for its own
LONGEST = 20_000  # characters of a source that is looked at, each magic another time: so IPython reads it
MOST = 80  # changes tried of one kind
EFFORT = 400_000  # characters that are read in all: some tenths of a second


def suggestion(source: str, fault: Fault, transform: Callable[[str], str]) -> str:
    """Return the change with which the source reads, else the place; '' where the fault has no place.

    `transform` is IPython's way from a cell to Python.
    """
    line, text = fault.attributes.get("lineno"), str(fault.attributes.get("text") or "")
    line = line if isinstance(line, int) else fault.line
    if not isinstance(line, int):
        return ""
    if re.search(EXACT, fault.evalue):
        return _place(line, 0, text or "".join(source.split("\n")[line - 1 : line]))
    offset = fault.attributes.get("offset")
    column = offset if isinstance(offset, int) and offset > 0 else 0
    own = _line_in_cell(line, text, fault, source)
    if own:
        body = re.sub(r"\A%%.*", "", source)  # a cell magic hands on the lines below it
        help_ = _repaired(Broken(body, own), transform)
        return f"the cell reads with {help_}" if help_ else _place(own, column, [*source.split("\n"), ""][own - 1])
    name = str(fault.attributes.get("filename") or "")
    query = re.search(r"\.(?:query|eval)\(", source) is not None
    of = f" of {re.sub(r'[^/]+/[.][.]/', '', name)}" if _is_file(name) else " of the text that was parsed"
    help_ = _repaired(Broken(text.strip(), 1, query), transform)
    return _place(line, column, text, of) + (f"; this line reads with {help_}" if help_ else "")


def _line_in_cell(line: int, text: str, fault: Fault, source: str) -> int | None:
    """Return which line of the cell is meant, None where another text is: a file, a query, what `exec` was given."""
    lines = source.split("\n")
    magic = source.startswith("%%")
    for number in (line, line + 1) if magic else (line,):
        if text.strip() and 0 < number <= len(lines) and lines[number - 1].strip() == text.strip():
            return number
    if fault.frames and not (magic and not text.strip()):
        return None
    return None if _is_file(str(fault.attributes.get("filename") or "")) else min(max(line + magic, 1), len(lines))


def _is_file(name: str) -> bool:
    return name[:1] != "<" and "/" in name and "ipykernel" not in name


def _place(line: int, column: int, text: str, of: str = "") -> str:
    at = f", column {column}" if column else ""
    return f"line {line}{of}{at}: `{text.strip()[:120]}`"


def _repaired(broken: Broken, transform: Callable[[str], str]) -> str:
    """Return the first change with which the source reads, in words; '' where there is none."""
    left, cost = EFFORT, len(broken.source) * (1 + len(MAGIC.findall(broken.source)))
    if cost > LONGEST or _reads(broken.source, transform):  # another Python refused it
        return ""
    for row, together in ROWS:
        edits = [*itertools.islice(row(broken), MOST)]
        for tried in (*([edit] for edit in edits), *(_groups(edits) if together else ())):
            left -= cost
            if left < 0:
                return ""
            if _reads(_changed(broken.source, tried), transform):
                return _told(tried)
    return ""


def _groups(edits: list[Edit]) -> Iterator[list[Edit]]:
    """Yield the changes that are the same, then all."""
    kinds = dict.fromkeys((edit.what, edit.at) for edit in edits)
    yield from ([edit for edit in edits if (edit.what, edit.at) == kind] for kind in kinds)
    yield edits


def _changed(source: str, edits: list[Edit]) -> str:
    end = len(source) + 1
    for begin, stop, text in sorted({piece for edit in edits for piece in edit.pieces}, reverse=True):
        if stop <= end:  # what two changes both touch is changed once
            source = source[:begin] + text + source[stop:]
            end = begin
    return source


def _reads(source: str, transform: Callable[[str], str]) -> bool:
    """Whether Python reads a source; IPython, which is slow, is asked only where a line may be its own."""
    try:
        compiled(transform(source) if MAGIC.search(source) else source)
    except Exception:  # noqa: BLE001  # too deep, a null byte, a transformer's own fault: it tells nothing
        return False
    return True


def _told(edits: list[Edit]) -> str:
    whats = ", ".join(dict.fromkeys(edit.what for edit in edits))
    lines = [str(line) for line in sorted({edit.line for edit in edits})]
    return f"{whats} {edits[0].at} line{'s' if len(lines) > 1 else ''} {', '.join(lines)}" if edits[0].at else whats
