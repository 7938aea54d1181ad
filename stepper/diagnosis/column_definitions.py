"""The lines of cells that add or remove a column that an error message names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepper.common.text import one_line
from stepper.diagnosis.name_definitions import (
    NotebookNames,
    find_source_line,
    quote_line,
)
from stepper.policy.dataflow.column_effects import (
    DROPPED,
    MADE,
    ColumnEffect,
    list_column_effects,
)
from stepper.policy.model import Cell, Fault

QUOTED = re.compile(r"'([^']{1,80})'")
GROUPBY_PREFIX = "Column not found: "  # in messages of pandas
MAX_LABELS = 3  # labels of one error that are searched
MAX_NAME = 60  # characters of a label
COLUMN_ERRORS = {"KeyError", "AttributeError", "ColumnNotFoundError"}


def explain_missing_column(fault: Fault, notebook: NotebookNames) -> str:
    """Return a sentence on the line that adds or removes a missing column.

    Return an empty string if no such line is known.
    """
    if COLUMN_ERRORS.isdisjoint({fault.ename, *fault.mro}):
        return ""
    labels = QUOTED.findall(fault.evalue)
    if fault.ename == "AttributeError":
        labels = labels[1:]  # the first one is the class
    for label in labels[:MAX_LABELS]:
        column = label.removeprefix(GROUPBY_PREFIX)
        text = _explain_label(column, fault, notebook)
        if text:
            return text
    return ""


def _explain_label(label: str, fault: Fault, notebook: NotebookNames) -> str:
    """Return a sentence on the line that adds or removed a column.

    The cell's last line above the failing line that adds or removes the column decides,
    if there is one: after a line that adds the column, return an empty string. In the
    other cells, lines that add the column and have not run come first, then the last
    line that removed the column. Return an empty string if there is no such line.
    """
    quoted_label = one_line(repr(label), MAX_NAME)
    failing_line = fault.line or 0
    last_above: ColumnEffect | None = None
    for effect in _iter_effects(notebook.cell, label, notebook):
        if effect.line < failing_line:
            last_above = effect
    if last_above is not None:
        if last_above.effect != DROPPED:
            return ""
        location = _format_location(notebook.cell, last_above)
        return f"{quoted_label} was removed by {location}"
    removal = ""
    for cell in notebook.list_other_cells():
        has_run = notebook.has_run_unchanged(cell)
        for effect in _iter_effects(cell, label, notebook):
            location = _format_location(cell, effect)
            if has_run:
                removal = ""
                if effect.effect == DROPPED:
                    removal = f"{quoted_label} was removed by {location}"
            elif effect.effect == MADE:
                status = notebook.describe_run(cell, effect.line, label).clause
                return f"{quoted_label} is added by {location}, {status}"
    return removal


def _iter_effects(
    cell: Cell,
    label: str,
    notebook: NotebookNames,
) -> Iterator[ColumnEffect]:
    """Yield the lines of a cell that add or remove a column, in order.

    The line numbers are those of the cell's source.
    """
    code = notebook.transform(cell.source)
    for effect in list_column_effects(code, notebook.transform):
        if effect.concerns(label):
            line = find_source_line(cell.source, effect.line, label)
            yield effect._replace(line=line)


def _format_location(cell: Cell, effect: ColumnEffect) -> str:
    """Return a phrase with the number and the text of a line of a cell."""
    line = quote_line(cell.source, effect.line)
    return f"line {effect.line} of {cell.label} ({line})"
