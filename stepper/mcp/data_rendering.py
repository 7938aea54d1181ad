"""Render response data as text for an agent, and limit the size of the data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepper.common.text import one_line
from stepper.messages import notebook_list, status_text

Data = Mapping[str, Any]
LimitedData = dict[str, Any]
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
LISTS = ("steps", "cells", "stale", "hidden", "indirect", "off_plan")  # of a status


def format_notebooks(notebooks: Sequence[Data]) -> str:
    """Return the table of notebooks, with at most MAX_ROWS rows."""
    return notebook_list.format_notebooks(notebooks, MAX_ROWS)


def limit_rows(rows: Sequence[Data]) -> list[LimitedData]:
    """Return the first MAX_ROWS rows, with shortened texts."""
    shown = rows[:MAX_ROWS]
    return [_limit_row(row) for row in shown]


def _limit_row(row: Data) -> LimitedData:
    """Return a copy of a row in which texts have at most TEXT_LIMIT characters."""
    limited_row = dict(row)
    for name, value in row.items():
        if isinstance(value, str) and len(value) > TEXT_LIMIT:
            beginning = value[:TEXT_LIMIT]
            limited_row[name] = f"{beginning}…"
    return limited_row


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
    """Return the text on a new notebook and its plan."""
    return status_text.format_created(response, MAX_ROWS)


def format_plan(response: Data) -> str:
    """Return a plan with the status of each step."""
    return status_text.format_plan(response, MAX_ROWS)


def format_status(status: Data, runs: Sequence[Data], report: str) -> str:
    """Return the status of a notebook with its last runs and the last report.

    `report` is the last report, or an empty string. Each report appears only once, and
    the lines on the stop and on the last verification are left out if a report contains
    them.
    """
    if status["notebook"] is None:
        return status_text.format_no_notebook()
    finished_run = status.get("ended") or {}
    finished_text = finished_run.get("text", "")
    undelivered_reports = status["unheard"] or ""
    is_repeated = bool(finished_run) or report in undelivered_reports
    last_report = "" if is_repeated else report
    parts = []
    if finished_run:
        parts.append(finished_text)
    parts += status_text.format_progress(status, MAX_ROWS)
    parts += _list_new_lines(status, [undelivered_reports, finished_text, last_report])
    kernel = status_text.format_kernel(status)
    resources = _format_resources(status.get("resources") or {})
    parts.append("; ".join([kernel, *resources]))
    undo = status_text.format_undo(status["undo"])
    if undo:
        parts.append(undo)
    parts += _format_namespace(status.get("context") or {})
    if undelivered_reports:
        parts.append(undelivered_reports)
    if runs:
        run_texts = "; ".join(map(_format_run, runs))
        parts.append(f"Last runs (run, cell, outcome, duration): {run_texts}")
    if last_report:
        parts += ["The last report:", last_report]
    return "\n".join(parts)


def _list_new_lines(status: Data, reports: Sequence[str]) -> list[str]:
    """Return the lines on the last verification and the stop that no report contains.

    The report on the run that stopped the notebook may contain lines of the stop.
    """
    shown_lines = set[str]()
    for report in reports:
        shown_lines.update(line.strip() for line in report.splitlines())
    new_lines = []
    for details in (status.get("verified"), status["stop"]):
        if not details:
            continue
        for line in details["text"].splitlines():
            if line.strip() not in shown_lines:
                new_lines.append(line)
    return new_lines


def _format_run(run: Data) -> str:
    """Return a run of the history, such as `7 0e968c97 failed 1.2 s`."""
    number = run["run"]
    cell_id = one_line(run["cell_id"])
    outcome = status_text.get_outcome_name(run["outcome"])
    seconds = run["duration_s"]
    return f"{number} {cell_id} {outcome} {seconds:.1f} s"


def limit_status(status: Data) -> LimitedData:
    """Return a copy of a status with limited lists.

    A list has at most MAX_ROWS rows; the context has at most MAX_NAMES names of each
    kind.
    """
    limited_status = dict(status)
    for name in LISTS:
        rows = status.get(name, ())
        limited_status[name] = limit_rows(rows)
    context = status.get("context")
    limited_status["context"] = _limit_names(context) if context else None
    return limited_status


def _limit_names(context: Data) -> LimitedData:
    """Return a copy of a context with at most MAX_NAMES names of each kind."""
    limited_context = dict(context)
    for kind in NAMESPACE_TITLES:
        descriptions = context.get(kind, {})
        names = list(descriptions)[:MAX_NAMES]
        limited_context[kind] = {name: descriptions[name] for name in names}
    return limited_context


def _format_resources(resources: Data) -> Iterable[str]:
    """Yield texts on the resource usage of the kernel, the machine and its GPUs."""
    kernel = resources.get("kernel") or {}
    cpu_percent = kernel.get("cpu_percent")
    if cpu_percent is not None:
        yield f"CPU {cpu_percent:.0f} %"
    machine = resources.get("machine") or {}
    if machine.get("memory_total_bytes"):
        yield _format_machine(machine)
    for gpu in resources.get("gpus", ()):
        yield _format_gpu(gpu)


def _format_machine(machine: Data) -> str:
    """Return the memory of the machine, and its CPU usage if it is known."""
    text = f"machine: RAM {_format_memory(machine)}"
    cpu_percent = machine.get("cpu_percent")
    if cpu_percent is not None:
        text += f", CPU {cpu_percent:.0f} %"
    return text


def _format_gpu(gpu: Data) -> str:
    """Return the memory of a GPU, and its usage in percent if it is known."""
    name = gpu["name"]
    used_percent = gpu["used_percent"]
    memory = _format_memory(gpu)
    if used_percent is None:
        return f"GPU {name}: {memory}"
    return f"GPU {name}: {used_percent:.0f} %, {memory}"


def _format_memory(usage: Data) -> str:
    """Return the used and the total memory, such as `3.1 GB of 16.0 GB`."""
    used = _format_size(usage["memory_bytes"])
    total = _format_size(usage["memory_total_bytes"])
    return f"{used} of {total}"


def _format_size(byte_count: int | None) -> str:
    """Return a number of bytes with its unit, or "?" for an unknown number."""
    if byte_count is None:
        return "?"
    return status_text.format_bytes(byte_count)


def _format_namespace(context: Data) -> Iterable[str]:
    """Yield a line for each kind of name in the kernel that has names."""
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
    """Return a name in the kernel, with its description if it differs from the name."""
    text = one_line(name)
    if description and description != name:
        text += f" ({one_line(description)})"
    return text
