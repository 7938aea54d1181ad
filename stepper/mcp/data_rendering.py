"""Answers that are data, as an agent reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepper.common.text import format_steps_done, one_line

Told = Mapping[str, Any]
MOST = 40  # rows of a list
PAGE = 9_700  # characters of a list of notebooks as JSON
WIDEST = 200  # characters of a text in one
NAMES = 30  # names of a kind that the kernel holds


def listed(notebooks: list[Told]) -> str:
    """Return the list of all notebooks."""
    if not notebooks:
        return "There is no notebook yet: create_notebook makes one."
    lines = []
    for each in notebooks:
        far, kernel = each["progress"], each["kernel"]["state"]
        count = format_steps_done(
            far["done"], far["skipped"], far["of"], far["what"].removesuffix("s")
        )
        done = f", {count}" if far["of"] else ""
        current = " (the current one)" if each["current"] else ""
        lines.append(
            f"{one_line(each['notebook'])}{current}: {each['state']}{done}, kernel: {kernel}"
        )
    return "\n".join(cut(lines, "notebooks"))


def cut(lines: list[str], what: str) -> list[str]:
    """Return as many lines as a list may have, and how many more there are."""
    return (
        lines
        if len(lines) <= MOST
        else [*lines[:MOST], f"… and {len(lines) - MOST:,} more {what}"]
    )


def rows(of: Sequence[Told]) -> list[dict[str, Any]]:
    """Return the same rows as data, their texts no longer than may be."""
    return [
        {
            name: f"{value[:WIDEST]}…"
            if isinstance(value, str) and len(value) > WIDEST
            else value
            for name, value in row.items()
        }
        for row in of[:MOST]
    ]


def pages(notebooks: Sequence[Told]) -> list[list[Told]]:
    """Return the rows of notebooks on pages that are no longer, as JSON, than a result may be; at least one."""
    found, room = list[list[Told]]([[]]), PAGE
    for row in notebooks:
        size = len(json.dumps(rows([row]), ensure_ascii=False))
        if found[-1] and (size > room or len(found[-1]) == MOST):
            found.append([])
            room = PAGE
        found[-1].append(row)
        room -= size
    return found


def made(told: Told) -> str:
    """Return what is told of a new notebook."""
    lines = [f"Made {one_line(told['notebook'])}; it is the current notebook."]
    lines += cut(
        [
            f"  {step['id']}. {one_line(step['title'], WIDEST)}"
            for step in told["steps"]
        ],
        "steps",
    )
    if told["unfinished"]:
        lines.append(
            f"{one_line(told['unfinished'])} is unfinished; it stays as it is."
        )
    cwd = told["kernel_cwd"]
    where = f"the {cwd}'s folder" if cwd in ("notebook", "project") else one_line(cwd)
    return "\n".join(
        [*lines, f"Its kernel runs in {where}: paths in cells are relative to that."]
    )


def planned(told: Told) -> str:
    """Return a plan."""
    lines = []
    for step in told["steps"]:
        criterion = (
            f" :: {one_line(step['criterion'], WIDEST)}"
            if step.get("criterion")
            else ""
        )
        reason = f": {one_line(step['reason'], WIDEST)}" if step.get("reason") else ""
        title = one_line(step["title"], WIDEST)
        lines.append(f"  {step['id']}. {title}{criterion}  ({step['status']}{reason})")
    head = f"{one_line(told['notebook'])}: {'its plan' if lines else 'no plan'}"
    return "\n".join([head, *cut(lines, "steps")])


def standing(told: Told, runs: list[Told], report: str) -> str:
    """Return where a notebook stands: what ended or runs, steps, stop, kernel, what it holds, the last runs."""
    if told["notebook"] is None:
        return "There is no notebook yet: create_notebook makes one."
    parts, now, stop = [], told["running"], told["stop"]
    if told.get("ended"):
        parts.append(told["ended"]["text"])
    head = f"{one_line(told['notebook'])}: {told['state']}"
    statuses = [step["status"] for step in told["steps"]]
    if statuses:
        head += f", {format_steps_done(statuses.count('done'), statuses.count('skipped'), len(statuses), 'step')}"
    parts.append(head)
    if now:
        line = f": {one_line(now['line'])}" if now["line"] else ""
        limit = f" of at most {now['timeout']:g} s" if now["timeout"] else ""
        parts.append(
            f"running {one_line(now['name'])} for {now['seconds']:.0f} s{limit}{line}"
        )
    steps = [
        f"  {step['id']}. {one_line(step['title'])}  ({_of(step)})"
        for step in told["steps"]
    ]
    cells = [
        f"  cell {cell['cell']} (id {one_line(cell['cell_id'])}): {one_line(cell['title'])}  ({cell['status']})"
        for cell in told["cells"]
    ]
    parts += [*cut(steps, "steps"), *cut(cells, "cells")]
    off_plan = [
        f"  cell {cell['cell']} (id {one_line(cell['cell_id'])}), outside the plan: {one_line(cell['title'])}"
        f"  ({cell['status']})"
        for cell in told.get("off_plan", ())
    ]
    parts += cut(off_plan, "cells")
    marked = [*told.get("stale", ()), *told.get("hidden", ())]
    parts += cut(
        [
            f"  cell {each['cell']} (id {one_line(each['cell_id'])}): {one_line(each['why'])}"
            for each in marked
        ],
        "cells",
    )
    unheard = told["unheard"] or ""
    report_shown = bool(report) and not told.get("ended") and report not in unheard
    reports = [unheard, (told.get("ended") or {}).get("text", "")]
    if report_shown:
        reports.append(report)
    # a report of the run that stopped the notebook has lines of the stop already
    shown = {line.strip() for text in reports for line in text.splitlines()}
    for each in (told.get("verified"), stop):
        lines = each["text"].splitlines() if each else []
        parts += [line for line in lines if line.strip() not in shown]
    parts += (
        [f"its kernel's state is lost: {one_line(told['lost'])}"]
        if told["lost"]
        else []
    )
    parts += [
        _kernel(told["kernel"], told.get("resources")),
        *_held(told.get("context")),
    ]
    parts += [told["unheard"]] if told["unheard"] else []
    if runs:
        last = (
            f"{run['run']} {one_line(run['cell_id'])} {run['outcome']} {run['duration_s']:.1f} s"
            for run in runs
        )
        parts.append("last runs (run, cell, outcome): " + "; ".join(last))
    if report_shown:
        parts += ["The last report:", report]
    return "\n".join(parts)


def held_short(told: Told) -> dict[str, Any]:
    """Return a status with as many rows and names as its text has."""
    context = {
        kind: dict(list(held.items())[:NAMES]) if isinstance(held, dict) else held
        for kind, held in (told.get("context") or {}).items()
    }
    listed = {
        name: rows(told.get(name, ()))
        for name in ("steps", "cells", "stale", "hidden", "off_plan")
    }
    return {**told, **listed, "context": context or None}


def _of(step: Told) -> str:
    return (
        f"{step['status']}, retries: {step['retries']}"
        if step["retries"]
        else str(step["status"])
    )


def _kernel(kernel: Told, resources: Told | None) -> str:
    parts = [f"kernel: {kernel['state']}"]
    if kernel["pid"]:
        parts.append(f"pid {kernel['pid']}, {kernel['python']}")
    left = kernel["left_seconds"]
    walltime = "" if left is None else f"{left / 60:.0f} min of its walltime left"
    parts += [
        one_line(each)
        for each in (kernel["where"], walltime, kernel["trouble"])
        if each
    ]
    machine, own = (
        (resources or {}).get("machine") or {},
        (resources or {}).get("kernel") or {},
    )
    rss = own.get("memory_bytes") or kernel["rss_bytes"]
    parts += [f"RAM {_size(rss)}"] if rss else []
    parts += (
        [f"CPU {own['cpu_percent']:.0f} %"]
        if own.get("cpu_percent") is not None
        else []
    )
    if machine.get("memory_total_bytes"):
        used = f"RAM {_size(machine['memory_bytes'])} of {_size(machine['memory_total_bytes'])}"
        cpu = (
            f", CPU {machine['cpu_percent']:.0f} %"
            if machine.get("cpu_percent") is not None
            else ""
        )
        parts.append(f"machine: {used}{cpu}")
    for gpu in (resources or {}).get("gpus", ()):
        used = (
            f"{gpu['used_percent']:.0f} %, " if gpu["used_percent"] is not None else ""
        )
        parts.append(
            f"GPU {gpu['name']}: {used}{_size(gpu['memory_bytes'])} of {_size(gpu['memory_total_bytes'])}"
        )
    return "; ".join(parts)


def _size(count: int | None) -> str:
    return (
        "?"
        if count is None
        else f"{count / 1e6:.0f} MB"
        if count < 1e9
        else f"{count / 1e9:.1f} GB"
    )


def _held(context: Told | None) -> Iterable[str]:
    kinds = {
        "imported_modules": "imported",
        "defined_functions": "functions",
        "variables": "variables",
    }
    for key, name in kinds.items():
        held = [
            f"{one_line(what)} ({one_line(about)})"
            if about and about != what
            else one_line(what)
            for what, about in (context or {}).get(key, {}).items()
        ]
        more = f", … {len(held) - NAMES} more" if len(held) > NAMES else ""
        if held:
            yield f"{name}: " + ", ".join(held[:NAMES]) + more
