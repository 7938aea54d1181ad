"""What cells wrote, as reports and pages show it: behind `| `, so that nothing printed passes for stepper's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, groupby
from typing import Any

from stepper.common.text import (
    TRUNCATED,
    apply_carriage_returns,
    clean,
    format_count,
    one_line,
)

TEXT_LIMIT = 2000  # characters of a cell's output in a report
LINE_LIMIT = 400
SAME = 4  # equal lines in a row that are shown
NOTE_LIMIT = 1000
# characters on why a kernel can't be reached, with the command that helps
TROUBLE = 600
PAGE = 8000  # characters


class Kept(Enum):
    """How much of a text the notebook holds, as a report says it."""

    UNKNOWN = ""  # it is no output, or not written yet
    WHOLE = "all is in the notebook"
    PART = "the notebook holds only part of this output"


@dataclass(frozen=True)
class _Line:
    """A line of a report, and what it stands for."""

    text: str
    lines: int
    characters: int


def words(text: str) -> str:
    """Return a message that may have several lines: the first as it is, the others behind `| `."""
    first, *others = clean(text).strip().split("\n")
    folded = [line.text for line in _folded(others)]
    return "\n".join([one_line(first, NOTE_LIMIT), *folded])


def quote(text: str, limit: int, kept: Kept = Kept.UNKNOWN) -> str:
    """Return a cell's text behind `| `, head and tail within `limit` characters, with the number left out.

    `kept` is where the rest is.
    """
    lines = _folded(_shown(text).strip("\n").split("\n"), kept)
    texts = [line.text for line in lines]
    sizes = [len(line) - 1 for line in texts]
    if sum(sizes) <= limit:
        return "\n".join(texts)
    head = sum(size <= limit * 0.6 for size in accumulate(sizes))
    tail = len(lines) - sum(
        size <= limit * 0.35 for size in accumulate(reversed(sizes))
    )
    count = format_count(sum(line.lines for line in lines[head:tail]), "line")
    characters = sum(line.characters for line in lines[head:tail])
    left = f"… {count} ({format_count(characters, 'character')}) left out"
    where = f"; {kept.value}" if kept.value else ""
    return "\n".join([*texts[:head], left + where, *texts[tail:]])


def _shown(text: str) -> str:
    return clean(
        "\n".join(map(apply_carriage_returns, text.replace("\r\n", "\n").split("\n")))
    )


def _folded(lines: Sequence[str], kept: Kept = Kept.UNKNOWN) -> list[_Line]:
    """Return the lines behind `| `, very long ones cut; of equal ones in a row the first few, and how many more.

    Of a text with a gap only the lines that are left are counted, which is said.
    """
    found: list[_Line] = []
    has_gap = kept is Kept.PART or any(line.endswith(TRUNCATED) for line in lines)
    least = "at least " if has_gap and kept is not Kept.PART else ""
    where = " in the notebook" if kept is Kept.PART else ""
    for line, group in groupby(lines, _cut_line):
        same = [len(each) + 1 for each in group]
        shown = len(same) if len(same) <= SAME + 1 else SAME
        found += [_Line(f"| {line}", 1, size) for size in same[:shown]]
        rest = same[shown:]
        if rest:
            more = f"… {least}{len(rest):,} more lines like this{where}"
            found.append(_Line(more, len(rest), sum(rest)))
    return found


def _cut_line(line: str) -> str:
    if len(line) <= LINE_LIMIT:
        return line
    keep = LINE_LIMIT // 2
    return f"{line[:keep]} …{len(line) - 2 * keep:,} characters… {line[-keep:]}"


def listing(lines: Sequence[tuple[int, str]], failing: int) -> str:
    """Return numbered lines of code, with an arrow at the failing one."""
    return "\n".join(
        f"| {'→' if n == failing else ' '}{n:>4}  {_code(text)}" for n, text in lines
    )


def _code(line: str) -> str:
    line = clean(line).replace("\n", " ")
    return line if len(line) <= 200 else line[:199] + "…"


def outputs_text(
    outputs: Sequence[dict[str, Any]],
    limit: int = TEXT_LIMIT,
    title: str = "Output",
    errors: bool = False,
    kept: Kept = Kept.UNKNOWN,
) -> list[str]:
    """Return the outputs' text, in a list, empty for none; with `errors` those that ended nothing are named in it.

    `kept` is how much of them the notebook holds.
    """
    text = "".join(
        f"{output.get('ename')}: {output.get('evalue')}\n"
        if errors and output.get("output_type") == "error"
        else _text_of(output)
        for output in outputs
    )
    return [f"{title}:\n{quote(text, limit, kept)}"] if text.strip() else []


def _text_of(output: Mapping[str, Any]) -> str:
    """Return the text of an output; a picture's own words for itself tell nothing."""
    if output.get("output_type") == "stream":
        return _whole(output.get("text", ""))
    data = output.get("data") or {}
    if "text/plain" in data and not any(mime.startswith("image/") for mime in data):
        return _whole(data["text/plain"]) + "\n"
    return ""


def _whole(value: Any, between: str = "") -> str:
    return value if isinstance(value, str) else between.join(map(str, value))


def text_of(output: Mapping[str, Any]) -> str:
    """Return the text of an output, of an error its traceback."""
    if output.get("output_type") == "error":
        return (
            _whole(
                output.get("traceback")
                or f"{output.get('ename')}: {output.get('evalue')}",
                "\n",
            )
            + "\n"
        )
    return _text_of(output)


def new_lines(
    outputs: Sequence[Mapping[str, Any]], told: dict[int, int], ended: bool
) -> list[str]:
    """Return the lines behind `| ` that outputs have more than was `told` of each; a last one that may change when all
    has `ended`.
    """
    lines = []
    for place, output in enumerate(outputs):
        *whole, last = _shown(text_of(output)).split("\n")
        whole += [last] if ended and last else []
        before = told.get(place, 0)
        told[place] = len(whole)  # fewer than before: they were cleared
        lines += [
            f"| {_cut_line(line)}"
            for line in whole[before if before <= len(whole) else 0 :]
        ]
    return lines


def plain(outputs: Sequence[dict[str, Any]]) -> str:
    """Return the outputs' text as it is, but for what a terminal would obey."""
    return _shown("".join(map(_text_of, outputs))).rstrip("\n")


def running(
    name: str,
    seconds: float,
    timeout: float,
    line: str,
    left: float | None = None,
    where: str = "",
) -> str:
    """Return what is told of a cell while it runs, with what it printed last, and how long it may take yet."""
    took = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    ends = f", ≈ {about(left)} left" if left is not None else ""
    told = ", ".join(
        filter(
            None, [f"running {name} for {took} of at most {span(timeout)}{ends}", where]
        )
    )
    return f"{told}{': ' if line else ''}{line}"


def span(seconds: float) -> str:
    """Return a time that was set, such as a deadline."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size and not seconds * 10 % size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def about(seconds: float) -> str:
    """Return a time that is guessed."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return (
        f"{max(1, round(seconds / 60))} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def elsewhere(where: str, left: float | None, trouble: str) -> str:
    """Return where a kernel is that is not this machine's, what is left of its walltime, what stands between."""
    told = f"{one_line(where, 200)}" + (
        f", {about(left)} of its walltime left" if left is not None else ""
    )
    return "; ".join(filter(None, [told, one_line(trouble, TROUBLE)]))


def paged(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Return all text of a cell's outputs behind `| `, in pages of at most `PAGE` characters, cut at lines."""
    text = "".join(map(text_of, outputs))
    lines = [
        f"| {line[at : at + PAGE // 2]}"
        for line in _shown(text).rstrip("\n").split("\n")
        for at in range(0, max(1, len(line)), PAGE // 2)
    ]
    pages, room = [""], PAGE
    for line in lines:
        if len(line) + 1 > room:
            pages.append("")
            room = PAGE
        pages[-1] += line + "\n"
        room -= len(line) + 1
    return [page[:-1] for page in pages] if lines != ["| "] else ["(no text output)"]
