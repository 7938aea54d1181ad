"""The lines of a notebook file at which the sources of its code cells start.

CI systems show a difference next to the line of the file.
"""

from __future__ import annotations

from stepper.notebooks.notebook_json import DECODER, Span, find_spans


def find_source_lines(text: str) -> dict[int, int]:
    """Return the line of each code cell's source, by the number of the cell.

    `text` is the content of a notebook file. Numbers and lines start at 1. The result
    is empty if the text is not a valid notebook.
    """
    try:
        return _find_lines(text)
    except (ValueError, IndexError, RecursionError):
        return {}


def _find_lines(text: str) -> dict[int, int]:
    """Return the line of each code cell's source, by the number of the cell.

    Raise ValueError, IndexError or RecursionError if the text is not valid.
    """
    lines: dict[int, int] = {}
    line = 1
    last_position = 0
    for start, end in _list_cells(text):
        cell = text[start:end]
        spans = find_spans(cell)
        if "cell_type" not in spans:
            continue
        cell_type, _ = DECODER.raw_decode(cell, spans["cell_type"].start)
        if cell_type != "code":
            continue
        source = spans.get("source", Span(0, 0))  # default: the start of the cell
        source_position = start + source.start
        line += text.count("\n", last_position, source_position)
        last_position = source_position
        cell_number = len(lines) + 1
        lines[cell_number] = line
    return lines


def _list_cells(text: str) -> list[Span]:
    """Return the spans of the cells in their order."""
    spans = find_spans(text)
    return [span for key, span in spans.items() if isinstance(key, int)]
