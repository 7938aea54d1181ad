"""The lines of cells that make or drop a column which an error names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from stepper.common.text import one_line
from stepper.diagnosis.name_definitions import NotebookNames, quote_line
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
COLUMN_ERRORS = {"KeyError", "AttributeError", "ColumnNotFoundError"}


def explain_missing_column(fault: Fault, notebook: NotebookNames) -> str:
    """Return a sentence on the cell that makes or dropped a missing column.

    Return an empty string if no cell is known.
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
    """Return a sentence on the cell that makes or dropped a column."""
    name = one_line(repr(label), 60)
    effects = [*_list_effects(notebook.cell, label, notebook)]
    above = [effect for effect in effects if effect.line < (fault.line or 0)]
    if above:
        last = above[-1]
        if last.effect == DROPPED:
            return f"{name} was removed by {_locate(notebook.cell, last)}"
        return ""
    dropped = ""
    for cell in notebook.list_other_cells():
        for effect in _list_effects(cell, label, notebook):
            has_run = notebook.has_run_unchanged(cell)
            if effect.effect == MADE and not has_run:
                status = notebook.describe_run(cell, effect.line, label).clause
                location = _locate(cell, effect)
                return f"{name} is added by {location}, {status}"
            if has_run:
                dropped = ""
                if effect.effect == DROPPED:
                    location = _locate(cell, effect)
                    dropped = f"{name} was removed by {location}"
    return dropped


def _list_effects(
    cell: Cell,
    label: str,
    notebook: NotebookNames,
) -> Iterator[ColumnEffect]:
    """Yield the lines of a cell that make or drop a column."""
    for effect in list_column_effects(notebook.transform(cell.source)):
        if effect.concerns(label):
            yield effect


def _locate(cell: Cell, effect: ColumnEffect) -> str:
    line = quote_line(cell.source, effect.line)
    return f"line {effect.line} of {cell.label} ({line})"
