"""Renders response data as text for an agent, and limits the size of data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepper.common.text import format_steps_done, one_line

Data = Mapping[str, Any]
MAX_ROWS = 40  # of a list
PAGE_SIZE = 9_700  # characters of a list of notebooks as JSON
TEXT_LIMIT = 200  # characters of a text in a row
MAX_NAMES = 30  # names of each kind in the kernel
NO_NOTEBOOK = "There is no notebook yet: create_notebook creates one."
NAMESPACE_TITLES = {
    "imported_modules": "imported",
    "defined_functions": "functions",
    "variables": "variables",
}
SEPARATOR = ", "  # of rows in JSON
LISTS = ("steps", "cells", "stale", "hidden", "off_plan")  # of a status


def format_notebooks(notebooks: Sequence[Data]) -> str:
    """Return the list of notebooks."""
    if not notebooks:
        return NO_NOTEBOOK
    lines = []
    for notebook in notebooks:
        name = one_line(notebook["notebook"])
        current = " (the current one)" if notebook["current"] else ""
        state = notebook["state"]
        progress = notebook["progress"]
        if progress["of"]:
            unit = progress["what"].removesuffix("s")
            count = format_steps_done(
                progress["done"], progress["skipped"], progress["of"], unit
            )
            state += f", {count}"
        kernel = notebook["kernel"]["state"]
        lines.append(f"{name}{current}: {state}, kernel: {kernel}")
    return "\n".join(_limit_lines(lines, "notebooks"))


def _limit_lines(lines: list[str], noun: str) -> list[str]:
    """Return at most MAX_ROWS lines, and the number of the others."""
    hidden_count = len(lines) - MAX_ROWS
    if hidden_count <= 0:
        return lines
    return [*lines[:MAX_ROWS], f"… and {hidden_count:,} more {noun}"]


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
    name = one_line(response["notebook"])
    lines = [f"Created {name}; it is the current notebook."]
    steps = []
    for step in response["steps"]:
        title = one_line(step["title"], TEXT_LIMIT)
        steps.append(f"  {step['id']}. {title}")
    lines += _limit_lines(steps, "steps")
    if response["unfinished"]:
        unfinished = one_line(response["unfinished"])
        lines.append(f"{unfinished} is unfinished; it stays as it is.")
    folder = one_line(response["kernel_cwd"])
    if response["kernel_cwd"] in ("notebook", "project"):
        folder = f"the {folder}'s folder"
    lines.append(f"Its kernel runs in {folder}: paths in cells are relative to it.")
    return "\n".join(lines)


def format_plan(response: Data) -> str:
    """Return a plan with the status of each step."""
    lines = []
    for step in response["steps"]:
        text = f"  {step['id']}. {one_line(step['title'], TEXT_LIMIT)}"
        if step.get("criterion"):
            text += f" :: {one_line(step['criterion'], TEXT_LIMIT)}"
        status = step["status"]
        if step.get("reason"):
            status += f": {one_line(step['reason'], TEXT_LIMIT)}"
        lines.append(f"{text}  ({status})")
    name = one_line(response["notebook"])
    title = f"{name}: its plan" if lines else f"{name}: no plan"
    return "\n".join([title, *_limit_lines(lines, "steps")])


def format_status(status: Data, runs: Sequence[Data], report: str) -> str:
    """Return the status of a notebook with its last runs and the last report."""
    if status["notebook"] is None:
        return NO_NOTEBOOK
    finished = status.get("ended") or {}
    finished_text = finished.get("text", "")
    undelivered = status["unheard"] or ""
    # The last report may be among the others.
    if finished or report in undelivered:
        report = ""
    parts = []
    if finished:
        parts.append(finished_text)
    parts += _format_progress(status)
    parts += _format_lists(status)
    # The report of the run that stopped the notebook contains lines of the stop.
    shown_lines: set[str] = set()
    for text in (undelivered, finished_text, report):
        shown_lines.update(line.strip() for line in text.splitlines())
    for details in (status.get("verified"), status["stop"]):
        lines = details["text"].splitlines() if details else []
        parts += [line for line in lines if line.strip() not in shown_lines]
    if status["lost"]:
        parts.append(f"its kernel's state is lost: {one_line(status['lost'])}")
    parts.append(_format_kernel(status["kernel"], status.get("resources") or {}))
    parts += _format_namespace(status.get("context") or {})
    if undelivered:
        parts.append(undelivered)
    if runs:
        parts.append(f"last runs (run, cell, outcome): {_format_runs(runs)}")
    if report:
        parts += ["The last report:", report]
    return "\n".join(parts)


def _format_progress(status: Data) -> Iterable[str]:
    """Yield the state of the notebook, and the running cell."""
    title = f"{one_line(status['notebook'])}: {status['state']}"
    statuses = [step["status"] for step in status["steps"]]
    if statuses:
        done = statuses.count("done")
        skipped = statuses.count("skipped")
        title += f", {format_steps_done(done, skipped, len(statuses), 'step')}"
    yield title
    running = status["running"]
    if running:
        text = f"running {one_line(running['name'])} for {running['seconds']:.0f} s"
        if running["timeout"]:
            text += f" of at most {running['timeout']:g} s"
        if running["line"]:
            text += f": {one_line(running['line'])}"
        yield text


def _format_lists(status: Data) -> list[str]:
    """Return the lines on steps, cells and marked cells."""
    steps = []
    for step in status["steps"]:
        step_status = str(step["status"])
        if step["retries"]:
            step_status += f", retries: {step['retries']}"
        steps.append(f"  {step['id']}. {one_line(step['title'])}  ({step_status})")
    cells = []
    for cell in status["cells"]:
        title = one_line(cell["title"])
        cells.append(f"{_format_cell_name(cell)}: {title}  ({cell['status']})")
    off_plan = []
    for cell in status.get("off_plan", ()):
        name = f"{_format_cell_name(cell)}, outside the plan"
        off_plan.append(f"{name}: {one_line(cell['title'])}  ({cell['status']})")
    marked = []
    for cell in (*status.get("stale", ()), *status.get("hidden", ())):
        marked.append(f"{_format_cell_name(cell)}: {one_line(cell['why'])}")
    return [
        *_limit_lines(steps, "steps"),
        *_limit_lines(cells, "cells"),
        *_limit_lines(off_plan, "cells"),
        *_limit_lines(marked, "cells"),
    ]


def _format_cell_name(cell: Data) -> str:
    cell_id = one_line(cell["cell_id"])
    return f"  cell {cell['cell']} (id {cell_id})"


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


def _format_kernel(kernel: Data, resources: Data) -> str:
    """Return the line on the kernel, the machine and its GPUs."""
    parts = [f"kernel: {kernel['state']}"]
    if kernel["pid"]:
        parts.append(f"pid {kernel['pid']}, {kernel['python']}")
    walltime = ""
    if kernel["left_seconds"] is not None:
        minutes = kernel["left_seconds"] / 60
        walltime = f"{minutes:.0f} min of its walltime left"
    for text in (kernel["where"], walltime, kernel["trouble"]):
        if text:
            parts.append(one_line(text))
    kernel_usage = resources.get("kernel") or {}
    memory = kernel_usage.get("memory_bytes") or kernel["rss_bytes"]
    if memory:
        parts.append(f"RAM {_format_size(memory)}")
    if kernel_usage.get("cpu_percent") is not None:
        parts.append(f"CPU {kernel_usage['cpu_percent']:.0f} %")
    machine = resources.get("machine") or {}
    if machine.get("memory_total_bytes"):
        text = f"machine: RAM {_format_memory(machine)}"
        if machine.get("cpu_percent") is not None:
            text += f", CPU {machine['cpu_percent']:.0f} %"
        parts.append(text)
    for gpu in resources.get("gpus", ()):
        text = f"GPU {gpu['name']}: "
        if gpu["used_percent"] is not None:
            text += f"{gpu['used_percent']:.0f} %, "
        parts.append(text + _format_memory(gpu))
    return "; ".join(parts)


def _format_memory(usage: Data) -> str:
    used = _format_size(usage["memory_bytes"])
    total = _format_size(usage["memory_total_bytes"])
    return f"{used} of {total}"


def _format_size(count: int | None) -> str:
    if count is None:
        return "?"
    if count < 1e9:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e9:.1f} GB"


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
