"""Quoting of cell outputs for reports and pages.

Every quoted line starts with `| `. Without this prefix, a cell could print text that
looks like a statement of stepper.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from itertools import groupby
from typing import Any, NamedTuple

from stepper.common.text import (
    TRUNCATED,
    apply_carriage_returns,
    clean,
    format_count,
    one_line,
)

QUOTE_PREFIX = "| "
# Sizes in characters.
TEXT_LIMIT = 2000  # of a cell's output in a report
LINE_LIMIT = 400
CODE_LIMIT = 200  # of a line of code
NOTE_LIMIT = 1000
TROUBLE_LIMIT = 600  # of the reason why a kernel can't be reached, with its command
PAGE_SIZE = 8000

HEAD_SHARE = 0.6  # of a shortened text that comes from its beginning
TAIL_SHARE = 0.35  # of a shortened text that comes from its end
# Of a long text, RENDERED_CHARACTERS at each end are rendered, and RENDERED_SHARE times
# as many as are shown.
RENDERED_CHARACTERS = 4000
RENDERED_SHARE = 4
# A text with more than this many times `max_lines` lines is not quoted as a whole.
LONG_TEXT_FACTOR = 4
MAX_EQUAL_LINES = 4  # equal lines in a row that are shown
# In the text of a progress bar: a return to the start of the line, or to a line above.
REDRAW = re.compile(r"\r(?!\n)|\x1b\[\d*A")


class Completeness(Enum):
    """The completeness of an output in the notebook; values are phrases in reports."""

    UNKNOWN = ""  # the text is not an output, or was not written yet
    WHOLE = "all is in the notebook"
    PART = "the notebook contains only part of this output"


class _QuotedLine(NamedTuple):
    """A line of a report.

    `text` represents one or more lines of the original text. `lines` and `characters`
    are the numbers of these lines and of their characters.
    """

    text: str
    lines: int
    characters: int


def quote_message(text: str) -> str:
    """Return a message with all lines quoted except the first."""
    message = clean(text).strip()
    first_line, *other_lines = message.split("\n")
    lines = [one_line(first_line, NOTE_LIMIT)]
    for line in _quote_lines(other_lines):
        lines.append(line.text)
    return "\n".join(lines)


def quote(
    text: str,
    limit: int,
    completeness: Completeness = Completeness.UNKNOWN,
    max_lines: int | None = None,
) -> str:
    """Return a cell's text with each line quoted.

    If the text has more than `limit` characters or `max_lines` lines, its middle is
    replaced by a line that counts the omitted lines and characters. `completeness` says
    how much of the text the notebook contains.
    """
    rendered_text = _render_text(text).strip("\n")
    text_lines = rendered_text.split("\n")
    lines: list[_QuotedLine] = []
    if max_lines is not None and len(text_lines) > LONG_TEXT_FACTOR * max_lines:
        lines = _quote_first_and_last(text_lines, max_lines)
    if not lines:
        lines = _quote_lines(text_lines, completeness)
    texts = [line.text for line in lines]
    sizes = _measure_lines(lines)
    has_few_lines = max_lines is None or len(lines) <= max_lines
    if has_few_lines and sum(sizes) <= limit:
        return "\n".join(texts)
    head_count = count_fitting_lines(sizes, limit * HEAD_SHARE)
    tail_count = count_fitting_lines(sizes[::-1], limit * TAIL_SHARE)
    if max_lines is not None:
        max_head = int(max_lines * HEAD_SHARE)
        max_tail = int(max_lines * TAIL_SHARE)
        head_count = min(head_count, max_head)
        tail_count = min(tail_count, max_tail)
    tail_start = len(lines) - tail_count
    omitted_lines = lines[head_count:tail_start]
    shown_texts = texts[:head_count]
    shown_texts.append(_format_gap(omitted_lines, completeness))
    shown_texts += texts[tail_start:]
    return "\n".join(shown_texts)


def _quote_first_and_last(lines: Sequence[str], count: int) -> list[_QuotedLine]:
    """Return the first and the last `count` lines quoted, with one item between them.

    The item has no text and counts the other lines. This is faster than quoting all
    lines. Return an empty list if equal lines in a row were combined: the caller then
    needs more than `count` lines.
    """
    first = _quote_lines(lines[:count])
    last = _quote_lines(lines[-count:])
    has_combined_lines = len(first) < count or len(last) < count
    if has_combined_lines:
        return []
    middle = lines[count:-count]
    line_count = len(middle)
    character_count = sum(map(len, middle)) + line_count
    item = _QuotedLine("", line_count, character_count)
    return [*first, item, *last]


def quote_ends(
    text: str, limit: int, completeness: Completeness, max_lines: int
) -> str:
    """Return the result of `quote`, but render only the ends of a long text.

    This is fast for texts of any length. The omitted lines and characters of a long
    text are counted before rendering.
    """
    size = limit * RENDERED_SHARE + RENDERED_CHARACTERS
    if len(text) <= 2 * size:
        return quote(text, limit, completeness, max_lines)
    start = text[:size]
    end = text[-size:]
    head = start.rpartition("\n")[0] or start
    tail = end.partition("\n")[2] or end
    head_lines = int(max_lines * HEAD_SHARE)
    tail_lines = int(max_lines * TAIL_SHARE)
    shown_head = _select_lines(head, limit * HEAD_SHARE, head_lines)
    shown_tail = _select_lines(tail, limit * TAIL_SHARE, tail_lines, from_end=True)
    shown = [*shown_head, *shown_tail]
    shown_lines = sum(line.lines for line in shown)
    shown_characters = sum(line.characters for line in shown)
    line_count = text.count("\n") + 1 - shown_lines
    line_count = max(1, line_count)
    character_count = len(text) - shown_characters
    omitted_text = _QuotedLine("", line_count, character_count)
    gap = _format_gap([omitted_text], completeness)
    texts = [line.text for line in shown_head]
    texts.append(gap)
    texts += [line.text for line in shown_tail]
    return "\n".join(texts)


def _select_lines(
    text: str, limit: float, max_lines: int, from_end: bool = False
) -> list[_QuotedLine]:
    """Return the quoted lines at one end of a text that fit into `limit` characters.

    These are at most `max_lines` lines at the beginning, or with `from_end` at the end.
    """
    rendered_text = _render_text(text).strip("\n")
    lines = _quote_lines(rendered_text.split("\n"))
    if from_end:
        lines.reverse()
    count = min(count_fitting_lines(_measure_lines(lines), limit), max_lines)
    selected_lines = lines[:count]
    if from_end:
        selected_lines.reverse()
    return selected_lines


def _measure_lines(lines: Sequence[_QuotedLine]) -> list[int]:
    """Return the lengths of lines without QUOTE_PREFIX, each with a line break."""
    return [len(line.text) - len(QUOTE_PREFIX) + 1 for line in lines]


def count_fitting_lines(sizes: Sequence[int], limit: float) -> int:
    """Return the number of lines at the beginning that fit into `limit` characters.

    `sizes` are the lengths of the lines.
    """
    count = 0
    total = 0
    for size in sizes:
        total += size
        if total > limit:
            break
        count += 1
    return count


def _format_gap(
    omitted_lines: Sequence[_QuotedLine], completeness: Completeness
) -> str:
    """Return the line that replaces omitted lines and counts them."""
    line_count = 0
    character_count = 0
    for line in omitted_lines:
        line_count += line.lines
        character_count += line.characters
    lines = format_count(line_count, "line")
    characters = format_count(character_count, "character")
    gap = f"… {lines} ({characters}) left out"
    if completeness.value:
        gap += f"; {completeness.value}"
    return gap


def _render_text(text: str) -> str:
    """Return a text as a terminal would show it, without escape sequences."""
    text = text.replace("\r\n", "\n")
    if "\r" in text:
        lines = map(apply_carriage_returns, text.split("\n"))
        text = "\n".join(lines)
    return clean(text)


def _quote_lines(
    lines: Sequence[str], completeness: Completeness = Completeness.UNKNOWN
) -> list[_QuotedLine]:
    """Return quoted lines.

    Long lines are shortened. Of more than MAX_EQUAL_LINES + 1 equal lines in a row, the
    first MAX_EQUAL_LINES are shown and the others counted. If parts of the text are
    missing, the count says "at least" or "in the notebook".
    """
    is_part = completeness is Completeness.PART
    has_gap = any(line.endswith(TRUNCATED) for line in lines)
    prefix = "at least " if has_gap and not is_part else ""
    suffix = " in the notebook" if is_part else ""
    quoted_lines: list[_QuotedLine] = []
    for line, group in groupby(lines, _shorten_line):
        sizes = [len(original) + 1 for original in group]
        shown_count = len(sizes)
        if shown_count > MAX_EQUAL_LINES + 1:
            shown_count = MAX_EQUAL_LINES
        for size in sizes[:shown_count]:
            quoted_lines.append(_QuotedLine(f"| {line}", 1, size))
        hidden_sizes = sizes[shown_count:]
        if not hidden_sizes:
            continue
        hidden_count = len(hidden_sizes)
        text = f"… {prefix}{hidden_count:,} more lines like this{suffix}"
        quoted_lines.append(_QuotedLine(text, hidden_count, sum(hidden_sizes)))
    return quoted_lines


def _shorten_line(line: str) -> str:
    """Return a line of at most about LINE_LIMIT characters, without its middle."""
    if len(line) <= LINE_LIMIT:
        return line
    half = LINE_LIMIT // 2
    hidden_count = len(line) - 2 * half
    start = line[:half]
    end = line[-half:]
    return f"{start} …{hidden_count:,} characters… {end}"


def format_listing(lines: Sequence[tuple[int, str]], failing_number: int) -> str:
    """Return quoted lines of code with their numbers.

    `lines` are pairs of number and text. An arrow marks the line with the
    number `failing_number`.
    """
    listing = []
    for number, text in lines:
        arrow = "→" if number == failing_number else " "
        code = _shorten_code(text)
        listing.append(f"| {arrow}{number:>4}  {code}")
    return "\n".join(listing)


def _shorten_code(line: str) -> str:
    """Return a line of code with at most CODE_LIMIT characters."""
    line = clean(line).replace("\n", " ")
    if len(line) <= CODE_LIMIT:
        return line
    return line[: CODE_LIMIT - 1] + "…"


def format_outputs(
    outputs: Sequence[dict[str, Any]],
    limit: int = TEXT_LIMIT,
    title: str = "Output",
    errors: bool = False,
    completeness: Completeness = Completeness.UNKNOWN,
) -> list[str]:
    """Return a list with the quoted text of outputs, below `title` if it is not empty.

    The list is empty if the outputs have no text. If `errors` is true, error outputs
    are included with their name and message.
    """
    get_text = _get_text_or_error if errors else _get_text
    text = _join_outputs(outputs, get_text)
    if not text.strip():
        return []
    quoted_text = quote(text, limit, completeness)
    if not title:
        return [quoted_text]
    return [f"{title}:\n{quoted_text}"]


def _join_outputs(
    outputs: Sequence[Mapping[str, Any]], get_text: Callable[[Mapping[str, Any]], str]
) -> str:
    """Return the texts of outputs, which `get_text` returns, as one text.

    A stream continues the last line before it; any other text begins on a new line.
    """
    text = ""
    for output in outputs:
        output_text = get_text(output)
        is_stream = output.get("output_type") == "stream"
        if output_text and not is_stream and text and not text.endswith("\n"):
            text += "\n"
        text += output_text
    return text


def _get_text_or_error(output: Mapping[str, Any]) -> str:
    """Return the text of an output; for an error, its name and message."""
    if output.get("output_type") == "error":
        return _format_error(output) + "\n"
    return _get_text(output)


def _format_error(output: Mapping[str, Any]) -> str:
    """Return the name and the message of an error output."""
    name = output.get("ename")
    message = output.get("evalue")
    return f"{name}: {message}"


def _get_text(output: Mapping[str, Any]) -> str:
    """Return the text of a stream, or the plain text of other data with a line break.

    Return an empty string for images, errors and outputs without text.
    """
    if output.get("output_type") == "stream":
        return _join_text(output.get("text", ""))
    data = output.get("data")
    if not isinstance(data, dict):  # an error, or an invalid notebook
        return ""
    is_image = any(mime.startswith("image/") for mime in data)
    if "text/plain" in data and not is_image:
        return _join_text(data["text/plain"]) + "\n"
    return ""


def _join_text(value: Any, separator: str = "") -> str:
    """Return a multi-line string of nbformat, which may be stored as a list.

    The items of a list are joined with `separator`. Return an empty string for a value
    of another type.
    """
    if isinstance(value, list):
        return separator.join(map(str, value))
    if isinstance(value, str):
        return value
    return ""


def get_output_text(output: Mapping[str, Any]) -> str:
    """Return the text of an output; for an error, its traceback."""
    if output.get("output_type") != "error":
        return _get_text(output)
    traceback = output.get("traceback") or _format_error(output)
    return _join_text(traceback, "\n") + "\n"


def take_new_lines(
    outputs: Sequence[Mapping[str, Any]],
    line_counts: dict[int, int],
    *,
    has_finished: bool,
) -> list[str]:
    """Return the quoted lines that were added since the last call.

    `line_counts` maps the index of each output to the number of lines returned so far,
    and this function updates it. The last line of the last output, and a progress bar,
    may still change: without a line break, they are returned only if the run has
    finished.
    """
    lines = []
    last_index = len(outputs) - 1
    for index, output in enumerate(outputs):
        output_text = get_output_text(output)
        *complete_lines, last_line = _render_text(output_text).split("\n")
        may_change = index == last_index or REDRAW.search(output_text)
        if last_line and (has_finished or not may_change):
            complete_lines.append(last_line)
        start = line_counts.get(index, 0)
        if start > len(complete_lines):  # the output was cleared
            start = 0
        line_counts[index] = len(complete_lines)
        for line in complete_lines[start:]:
            lines.append("| " + _shorten_line(line))
    return lines


def get_terminal_text(outputs: Sequence[dict[str, Any]]) -> str:
    """Return the text of outputs without escape sequences, not quoted."""
    text = _join_outputs(outputs, _get_text)
    return _render_text(text).rstrip("\n")


def format_running(
    name: str,
    seconds: float,
    timeout: float,
    line: str,
    left_seconds: float | None = None,
    where: str = "",
) -> str:
    """Return the progress of a running cell.

    `seconds` is the elapsed time, `timeout` the deadline and `left_seconds` the
    estimated remaining time, all in seconds. `line` is the last printed line, `where`
    the location of a remote kernel; both may be empty.
    """
    duration = f"{seconds:.0f} s"
    if seconds >= 600:
        minutes = seconds / 60
        duration = f"{minutes:.0f} min"
    deadline = format_span(timeout)
    text = f"running {name} for {duration} of at most {deadline}"
    if left_seconds is not None:
        estimate = format_estimate(left_seconds)
        text += f", ≈ {estimate} left"
    if where:
        text += f", {where}"
    return f"{text}: {line}" if line else text


def format_span(seconds: float) -> str:
    """Return an exact duration with its unit, such as `90 s` or `2.5 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        has_one_decimal = not seconds * 10 % size
        if seconds >= 2 * size and has_one_decimal:
            count = seconds / size
            return f"{count:g} {unit}"
    return f"{seconds:g} s"


def format_estimate(seconds: float) -> str:
    """Return a rounded duration with its unit, such as `5 s`, `10 min` or `1.5 h`."""
    if seconds < 55:
        rounded = 5 * round(seconds / 5)
        return f"{max(5, rounded)} s"
    if seconds < 5400:
        minutes = round(seconds / 60)
        return f"{max(1, minutes)} min"
    hours = seconds / 3600
    return f"{hours:.1f} h"


def format_location(where: str, left_seconds: float | None, trouble: str) -> str:
    """Return the location of a remote kernel, with its walltime and connection problem.

    `left_seconds` is the remaining walltime in seconds, or None if there is no
    walltime. `trouble` says why the kernel is unreachable; it is empty for a reachable
    kernel.
    """
    text = one_line(where, 200)
    if left_seconds is not None:
        estimate = format_estimate(left_seconds)
        text += f", {estimate} of its walltime left"
    if trouble:
        text += "; " + one_line(trouble, TROUBLE_LIMIT)
    return text


def split_pages(outputs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the quoted text of a cell's outputs, in pages of limited size.

    A page has at most PAGE_SIZE characters and contains whole lines; very long lines
    are split first. There is at least one page: if the outputs have no text, the page
    says so.
    """
    text = _join_outputs(outputs, get_output_text)
    text = _render_text(text).rstrip("\n")
    if not text:
        return ["(no text output)"]
    part_size = PAGE_SIZE // 2
    lines = []
    for line in text.split("\n"):
        length = max(1, len(line))
        for start in range(0, length, part_size):
            end = start + part_size
            part = line[start:end]
            lines.append(f"| {part}")
    pages = [""]
    for line in lines:
        size = len(pages[-1]) + len(line) + 1
        if size > PAGE_SIZE:
            pages.append("")
        pages[-1] += line + "\n"
    return [page[:-1] for page in pages]
