"""Text that cells wrote, quoted for reports and pages.

Every quoted line starts with `| `, so that nothing a cell prints can pass for a
statement of stepper.
"""

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

# Sizes in characters.
TEXT_LIMIT = 2000  # of a cell's output in a report
LINE_LIMIT = 400
CODE_LIMIT = 200  # of a line of code
NOTE_LIMIT = 1000
TROUBLE_LIMIT = 600  # of the reason why a kernel can't be reached, with its command
PAGE_SIZE = 8000

MAX_EQUAL_LINES = 4  # equal lines in a row that are shown


class Completeness(Enum):
    """How much of a text the notebook holds; the value is the phrase in a report."""

    UNKNOWN = ""  # the text is no output, or is not written yet
    WHOLE = "all is in the notebook"
    PART = "the notebook holds only part of this output"


@dataclass(frozen=True)
class _QuotedLine:
    """A line of a report, with the number of lines and characters that it represents."""

    text: str
    lines: int
    characters: int


def quote_message(text: str) -> str:
    """Return a message of several lines: the first unchanged, the others quoted."""
    first, *others = clean(text).strip().split("\n")
    quoted = [line.text for line in _quote_lines(others)]
    return "\n".join([one_line(first, NOTE_LIMIT), *quoted])


def quote(
    text: str, limit: int, completeness: Completeness = Completeness.UNKNOWN
) -> str:
    """Return a cell's text, quoted: head and tail within `limit` characters.

    The line between them counts what is left out. `completeness` says how much of the
    text the notebook holds.
    """
    lines = _quote_lines(_render_text(text).strip("\n").split("\n"), completeness)
    texts = [line.text for line in lines]
    sizes = [len(line) - 1 for line in texts]
    if sum(sizes) <= limit:
        return "\n".join(texts)
    head = sum(size <= limit * 0.6 for size in accumulate(sizes))
    tail_length = sum(size <= limit * 0.35 for size in accumulate(reversed(sizes)))
    tail = len(lines) - tail_length
    omitted = lines[head:tail]
    count = format_count(sum(line.lines for line in omitted), "line")
    characters = format_count(sum(line.characters for line in omitted), "character")
    gap = f"… {count} ({characters}) left out"
    if completeness.value:
        gap += f"; {completeness.value}"
    return "\n".join([*texts[:head], gap, *texts[tail:]])


def _render_text(text: str) -> str:
    """Return a text as a terminal shows it, without escape sequences."""
    lines = text.replace("\r\n", "\n").split("\n")
    return clean("\n".join(apply_carriage_returns(line) for line in lines))


def _quote_lines(
    lines: Sequence[str], completeness: Completeness = Completeness.UNKNOWN
) -> list[_QuotedLine]:
    """Return quoted lines; long lines are shortened, equal ones in a row are counted.

    Of a text with a gap only the lines that are left can be counted, so the count says
    "at least" or "in the notebook".
    """
    is_part = completeness is Completeness.PART
    has_gap = any(line.endswith(TRUNCATED) for line in lines)
    prefix = "at least " if has_gap and not is_part else ""
    suffix = " in the notebook" if is_part else ""
    quoted: list[_QuotedLine] = []
    for line, group in groupby(lines, _shorten_line):
        sizes = [len(original) + 1 for original in group]
        shown = len(sizes) if len(sizes) <= MAX_EQUAL_LINES + 1 else MAX_EQUAL_LINES
        quoted += [_QuotedLine(f"| {line}", 1, size) for size in sizes[:shown]]
        hidden = sizes[shown:]
        if hidden:
            text = f"… {prefix}{len(hidden):,} more lines like this{suffix}"
            quoted.append(_QuotedLine(text, len(hidden), sum(hidden)))
    return quoted


def _shorten_line(line: str) -> str:
    if len(line) <= LINE_LIMIT:
        return line
    half = LINE_LIMIT // 2
    return f"{line[:half]} …{len(line) - 2 * half:,} characters… {line[-half:]}"


def format_listing(lines: Sequence[tuple[int, str]], failing: int) -> str:
    """Return numbered lines of code, quoted, with an arrow at the failing one."""
    listing = []
    for number, text in lines:
        arrow = "→" if number == failing else " "
        listing.append(f"| {arrow}{number:>4}  {_shorten_code(text)}")
    return "\n".join(listing)


def _shorten_code(line: str) -> str:
    line = clean(line).replace("\n", " ")
    return line if len(line) <= CODE_LIMIT else line[: CODE_LIMIT - 1] + "…"


def format_outputs(
    outputs: Sequence[dict[str, Any]],
    limit: int = TEXT_LIMIT,
    title: str = "Output",
    errors: bool = False,
    completeness: Completeness = Completeness.UNKNOWN,
) -> list[str]:
    """Return the quoted text of outputs below a title, in a list; empty without text.

    `errors`: also name the errors among the outputs, which did not stop the cell.
    """
    parts = []
    for output in outputs:
        if errors and output.get("output_type") == "error":
            parts.append(f"{output.get('ename')}: {output.get('evalue')}\n")
        else:
            parts.append(_get_text(output))
    text = "".join(parts)
    return [f"{title}:\n{quote(text, limit, completeness)}"] if text.strip() else []


def _get_text(output: Mapping[str, Any]) -> str:
    """Return the text of an output, '' for an image: its text only repeats its type."""
    if output.get("output_type") == "stream":
        return _join_text(output.get("text", ""))
    data = output.get("data") or {}
    is_image = any(mime.startswith("image/") for mime in data)
    if "text/plain" in data and not is_image:
        return _join_text(data["text/plain"]) + "\n"
    return ""


def _join_text(value: Any, separator: str = "") -> str:
    """Return a multi-line string of nbformat, which may be a list of strings."""
    return value if isinstance(value, str) else separator.join(map(str, value))


def get_output_text(output: Mapping[str, Any]) -> str:
    """Return the text of an output; for an error, its traceback."""
    if output.get("output_type") != "error":
        return _get_text(output)
    error = f"{output.get('ename')}: {output.get('evalue')}"
    return _join_text(output.get("traceback") or error, "\n") + "\n"


def take_new_lines(
    outputs: Sequence[Mapping[str, Any]], line_counts: dict[int, int], has_ended: bool
) -> list[str]:
    """Return the quoted lines that were added since the last call.

    `line_counts` holds the number of lines returned of each output, by its index, and is
    updated. A last line without a line break may still change: it is returned if the
    run `has_ended`.
    """
    lines = []
    for index, output in enumerate(outputs):
        *complete, last = _render_text(get_output_text(output)).split("\n")
        if has_ended and last:
            complete.append(last)
        start = line_counts.get(index, 0)
        if start > len(complete):  # the output was cleared
            start = 0
        line_counts[index] = len(complete)
        lines += [f"| {_shorten_line(line)}" for line in complete[start:]]
    return lines


def get_terminal_text(outputs: Sequence[dict[str, Any]]) -> str:
    """Return the text of outputs without escape sequences, not quoted."""
    return _render_text("".join(map(_get_text, outputs))).rstrip("\n")


def format_running(
    name: str,
    seconds: float,
    timeout: float,
    line: str,
    left: float | None = None,
    where: str = "",
) -> str:
    """Return the progress of a running cell, with the last line that it printed.

    `left` is the estimate of the remaining seconds; `where` describes a remote kernel.
    """
    took = f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
    text = f"running {name} for {took} of at most {format_span(timeout)}"
    if left is not None:
        text += f", ≈ {format_estimate(left)} left"
    if where:
        text += f", {where}"
    return f"{text}: {line}" if line else text


def format_span(seconds: float) -> str:
    """Return an exact duration, such as a deadline."""
    for unit, size in (("h", 3600), ("min", 60)):
        has_one_decimal = not seconds * 10 % size
        if seconds >= 2 * size and has_one_decimal:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def format_estimate(seconds: float) -> str:
    """Return an estimated duration, rounded."""
    if seconds < 55:
        return f"{max(5, 5 * round(seconds / 5))} s"
    if seconds < 5400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{seconds / 3600:.1f} h"


def format_location(where: str, left: float | None, trouble: str) -> str:
    """Return where a remote kernel runs, its remaining walltime and any trouble."""
    text = one_line(where, 200)
    if left is not None:
        text += f", {format_estimate(left)} of its walltime left"
    if trouble:
        text += f"; {one_line(trouble, TROUBLE_LIMIT)}"
    return text


def split_pages(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the whole text of a cell's outputs, quoted, in pages cut between lines."""
    text = _render_text("".join(map(get_output_text, outputs))).rstrip("\n")
    half = PAGE_SIZE // 2
    lines = []
    for line in text.split("\n"):
        for start in range(0, max(1, len(line)), half):
            lines.append(f"| {line[start : start + half]}")
    if lines == ["| "]:
        return ["(no text output)"]
    pages = [""]
    for line in lines:
        if len(pages[-1]) + len(line) + 1 > PAGE_SIZE:
            pages.append("")
        pages[-1] += line + "\n"
    return [page[:-1] for page in pages]
