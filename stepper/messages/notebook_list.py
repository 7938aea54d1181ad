"""The list of notebooks as text, and the layout of tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepper.common.text import format_age, format_count, one_line
from stepper.messages.status_text import NO_LIMIT, format_bytes, format_no_notebook

PATH_LIMIT = 200  # characters
MAX_COLUMN_WIDTH = 100  # characters; longer values are not aligned
CURRENT_MARK = "*"
NO_VALUE = "–"  # an empty table cell
UNKNOWN = "unknown"  # the state of a kernel that can't be reached
HEADER = ("", "notebook", "state", "progress", "kernel", "memory", "age")
LEGEND = f"{CURRENT_MARK} marks the current notebook"

Row = Mapping[str, Any]


def format_notebooks(notebooks: Sequence[Row], max_rows: int = NO_LIMIT) -> str:
    """Return the list of notebooks as a table with at most `max_rows` rows.

    `notebooks` are the rows of `stepper list --json`.
    """
    if not notebooks:
        return format_no_notebook()
    shown = notebooks[:max_rows]
    lines = [format_table([HEADER, *map(_make_row, shown)])]
    hidden_count = len(notebooks) - len(shown)
    if hidden_count:
        hidden = format_count(hidden_count, "more notebook")
        lines.append(f"… and {hidden}")
    if any(notebook["current"] for notebook in shown):
        lines.append(LEGEND)
    return "\n".join(lines)


def _make_row(notebook: Row) -> Sequence[str]:
    """Return the texts of a notebook's row, in the order of HEADER."""
    kernel = notebook["kernel"]
    memory = kernel["rss_bytes"]
    mark = CURRENT_MARK if notebook["current"] else ""
    memory_text = format_bytes(memory) if memory else NO_VALUE
    kernel_state = kernel["state"]
    if kernel_state == "none" and kernel["trouble"]:
        kernel_state = UNKNOWN
    return (
        mark,
        one_line(notebook["notebook"], PATH_LIMIT),
        notebook["state"],
        _format_progress(notebook["progress"]),
        kernel_state,
        memory_text,
        format_age(notebook["age_s"]),
    )


def _format_progress(progress: Row) -> str:
    """Return the progress of a notebook, such as `2 of 5 steps, 1 skipped`."""
    if not progress["of"]:
        return NO_VALUE
    text = f"{progress['done']} of {progress['of']} {progress['what']}"
    if progress["skipped"]:
        text += f", {progress['skipped']} skipped"
    return text


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as lines with aligned columns; all rows have the same length."""
    columns = zip(*rows, strict=True)
    widths = [min(MAX_COLUMN_WIDTH, max(map(len, column))) for column in columns]
    lines = []
    for row in rows:
        cells = map(str.ljust, row, widths)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
