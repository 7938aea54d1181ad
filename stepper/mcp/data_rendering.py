"""Renders response data as text for an agent, and limits the size of data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepper.common.text import one_line
from stepper.messages import notebook_list, status_text

Data = Mapping[str, Any]
MAX_ROWS = 40  # of a list
PAGE_SIZE = 9_700  # characters of a list of notebooks as JSON
TEXT_LIMIT = 200  # characters of a text in a row
MAX_NAMES = 30  # names of each kind in the kernel
NAMESPACE_TITLES = {
    "imported_modules": "imported",
    "defined_functions": "functions",
    "variables": "variables",
}
SEPARATOR = ", "  # of rows in JSON
LISTS = ("steps", "cells", "stale", "hidden", "off_plan")  # of a status


def format_notebooks(notebooks: Sequence[Data]) -> str:
    """Return the list of notebooks."""
    return notebook_list.format_notebooks(notebooks, MAX_ROWS)


def limit_rows(rows: Sequence[Data]) -> list[dict[str, Any]]:
    """Return at most MAX_ROWS rows, with shortened texts."""
    return [_limit_row(row) for row in rows[:MAX_ROWS]]


def _limit_row(row: Data) -> dict[str, Any]:
    """Return a row with shortened texts."""
    limited = dict(row)
    for name, value in row.items():
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            limited[name] = f"{value[:TEXT_LIMIT]}…"
    return limited


def split_pages(notebooks: Sequence[Data]) -> list[list[Data]]:
    """Return the notebooks in pages of at most MAX_ROWS rows and PAGE_SIZE characters.

    There is at least one page. A notebook that is larger than a page has its own page.
    """
    page: list[Data] = []
    pages = [page]
    page_size = 0
    for notebook in notebooks:
        row = json.dumps(_limit_row(notebook), ensure_ascii=False)
        row_size = len(row) + len(SEPARATOR)
        has_room = page_size + row_size <= PAGE_SIZE
        if page and (len(page) == MAX_ROWS or not has_room):
            page = []
            pages.append(page)
            page_size = 0
        page.append(notebook)
        page_size += row_size
    return pages


def format_created(response: Data) -> str:
    """Return the text on a new notebook."""
    return status_text.format_created(response, MAX_ROWS)


def format_plan(response: Data) -> str:
    """Return a plan with the status of each step."""
    return status_text.format_plan(response, MAX_ROWS)


def format_status(status: Data, runs: Sequence[Data], report: str) -> str:
    """Return the status of a notebook with its last runs and the last report."""
    if status["notebook"] is None:
        return status_text.format_no_notebook()
    finished = status.get("ended") or {}
    finished_text = finished.get("text", "")
    undelivered = status["unheard"] or ""
    # The last report may be among the others.
    if finished or report in undelivered:
        report = ""
    parts = []
    if finished:
        parts.append(finished_text)
    parts += status_text.format_progress(status, MAX_ROWS)
    # The report of the run that stopped the notebook contains lines of the stop.
    shown_lines: set[str] = set()
    for text in (undelivered, finished_text, report):
        shown_lines.update(line.strip() for line in text.splitlines())
    for details in (status.get("verified"), status["stop"]):
        lines = details["text"].splitlines() if details else []
        parts += [line for line in lines if line.strip() not in shown_lines]
    kernel = status_text.format_kernel(status)
    resources = _format_resources(status.get("resources") or {})
    parts.append("; ".join([kernel, *resources]))
    parts += _format_namespace(status.get("context") or {})
    if undelivered:
        parts.append(undelivered)
    if runs:
        parts.append(f"last runs (run, cell, outcome): {_format_runs(runs)}")
    if report:
        parts += ["The last report:", report]
    return "\n".join(parts)


def _format_runs(runs: Sequence[Data]) -> str:
    parts = []
    for run in runs:
        number = run["run"]
        cell_id = one_line(run["cell_id"])
        outcome = run["outcome"]
        seconds = run["duration_s"]
        parts.append(f"{number} {cell_id} {outcome} {seconds:.1f} s")
    return "; ".join(parts)


def limit_status(status: Data) -> dict[str, Any]:
    """Return a status with at most MAX_ROWS rows in each list, and MAX_NAMES names."""
    limited = dict(status)
    for name in LISTS:
        rows = status.get(name, ())
        limited[name] = limit_rows(rows)
    context = status.get("context")
    limited["context"] = _limit_names(context) if context else None
    return limited


def _limit_names(context: Data) -> dict[str, Any]:
    """Return the names in the kernel, at most MAX_NAMES of each kind."""
    limited = dict(context)
    for kind in NAMESPACE_TITLES:
        names = list(context.get(kind, {}).items())
        limited[kind] = dict(names[:MAX_NAMES])
    return limited


def _format_resources(resources: Data) -> Iterable[str]:
    """Yield the CPU use of the kernel, and the use of the machine and its GPUs."""
    kernel = resources.get("kernel") or {}
    if kernel.get("cpu_percent") is not None:
        yield f"CPU {kernel['cpu_percent']:.0f} %"
    machine = resources.get("machine") or {}
    if machine.get("memory_total_bytes"):
        text = f"machine: RAM {_format_memory(machine)}"
        if machine.get("cpu_percent") is not None:
            text += f", CPU {machine['cpu_percent']:.0f} %"
        yield text
    for gpu in resources.get("gpus", ()):
        text = f"GPU {gpu['name']}: "
        if gpu["used_percent"] is not None:
            text += f"{gpu['used_percent']:.0f} %, "
        yield text + _format_memory(gpu)


def _format_memory(usage: Data) -> str:
    sizes = []
    for name in ("memory_bytes", "memory_total_bytes"):
        size = usage[name]
        sizes.append("?" if size is None else status_text.format_bytes(size))
    return " of ".join(sizes)


def _format_namespace(context: Data) -> Iterable[str]:
    """Yield the lines on the names in the kernel, one of each kind."""
    for kind, title in NAMESPACE_TITLES.items():
        descriptions = context.get(kind, {})
        names = [
            _format_name(name, description)
            for name, description in descriptions.items()
        ]
        if not names:
            continue
        line = f"{title}: {', '.join(names[:MAX_NAMES])}"
        hidden_count = len(names) - MAX_NAMES
        if hidden_count > 0:
            line += f", … {hidden_count} more"
        yield line


def _format_name(name: str, description: str) -> str:
    """Return a name in the kernel with its description, if that says more."""
    text = one_line(name)
    if description and description != name:
        text += f" ({one_line(description)})"
    return text
