"""Plotly figures as PNG files, rendered by the project's own kaleido in a process of its own.

Only on request: kaleido starts a browser, which takes seconds and hundreds of megabytes. Neither belongs into a step,
or into the user's kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import StepperError, UsageError
from stepper.common.text import clean, one_line
from stepper.daemon.request import Request
from stepper.policy.changed_cells import hash_source
from stepper.policy.configuration import kernel_config
from stepper.policy.model import Cell
from stepper.session import responses, status_queries
from stepper.session.protocols import CellVersion, LaunchConfig
from stepper.session.session import Session

MIME = "application/vnd.plotly.v1+json"
MOST = 8  # figures of a cell
SECONDS = 60.0
LONG_EDGE = 1568  # pixels: the client would make it smaller than this anyway
SCRIPT = f"""
import json, sys
import plotly.io
for figure, path in json.load(sys.stdin):
    layout = figure.get("layout") or {{}}
    sides = layout.get("width") or 700, layout.get("height") or 500
    scale = min(1, {LONG_EDGE} / max(sides))
    plotly.io.write_image(figure, path, format="png", scale=scale, validate=False)
"""
_rendering = asyncio.Lock()  # one browser at a time


async def render(request: Request, session: Session, name: str) -> responses.OutputPage:
    """Render the plotly figures of a cell that ran here; raise StepperError."""
    cell = status_queries.find_code_cell(session, name)
    figures = _figures(session, cell)
    place = await _place(request, session)
    run = max(
        (run.run for run in session.state.runs if run.cell_id == cell.id), default=0
    )
    folder = request.workspace.get_figures_folder(session)
    paths = [
        os.path.join(folder, f"{run:04d}-plotly-{number}.png")
        for number in range(1, len(figures) + 1)
    ]
    secure_files.make_folder(folder)
    for path in paths:
        secure_files.remove(path)
    async with _rendering:
        said = await _run(request, place, folder, [*zip(figures, paths, strict=True)])
    rendered = [path for path in paths if os.path.exists(path)]
    if len(rendered) < len(paths):
        why = _last_line(said) or "kaleido wrote no file and said nothing"
        raise StepperError(f"the figure of {cell.label} can't be rendered: {why}")
    for path in rendered:
        os.chmod(path, 0o600, follow_symlinks=False)
    shown = [
        f"Figure {number}: {request.workspace.paths.relpath(path)}"
        for number, path in enumerate(rendered, 1)
    ]
    return responses.OutputPage(
        session.name, cell.id, 1, 1, "\n".join(shown), figures=rendered
    )


def _figures(session: Session, cell: Cell) -> list[Any]:
    """Return the plotly figures among a cell's outputs; raise UsageError."""
    if session.state.last_sources.get(cell.id) != hash_source(cell.source):
        raise UsageError(
            f"{cell.label} has not run here as it stands: its figure is not rendered",
            session.state.commands.shell("run"),
        )
    outputs = session.file.read_outputs(CellVersion.from_cell(cell))
    found = [
        output["data"][MIME]
        for output in outputs
        if isinstance(output.get("data"), Mapping) and MIME in output["data"]
    ]
    figures = [
        {"data": each.get("data"), "layout": each.get("layout") or {}}
        for each in found
        if isinstance(each, Mapping)
    ]
    if not figures:
        raise UsageError(f"{cell.label} shows no plotly figure")
    return figures[:MOST]


async def _place(request: Request, session: Session) -> LaunchConfig:
    """Return the interpreter on this machine that renders, with its environment; raise KernelError."""
    path = session.file.path
    environ = request.caller.environ
    place = request.workspace.get_launch_config(path, environ, kernel_config.LOCAL)
    kernel = await session.kernel_manager.find()
    if kernel is not None and not kernel.describe().location:
        return LaunchConfig(kernel.describe().python, place.cwd, place.environ)
    return place


async def _run(
    request: Request,
    place: LaunchConfig,
    folder: str,
    figures: Sequence[tuple[Any, str]],
) -> str:
    """Run kaleido to its end, its deadline or until nobody waits for it; return what it wrote to stderr."""
    process = await asyncio.create_subprocess_exec(
        place.python,
        "-c",
        SCRIPT,
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=PIPE,
        cwd=folder,
        env=dict(place.environ),
        start_new_session=True,
    )
    work = asyncio.create_task(process.communicate(json.dumps(figures).encode()))
    left = asyncio.create_task(request.caller.disconnected.wait())
    try:
        await asyncio.wait([work, left], timeout=SECONDS, return_when="FIRST_COMPLETED")
        if not work.done():
            _kill(process)
            await work
            raise StepperError(
                f"kaleido was interrupted after {SECONDS:g} s: the figure is not"
                " rendered"
            )
    finally:
        left.cancel()
        _kill(process)  # its browser may be left
    return work.result()[1].decode("utf-8", "replace")


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(said: str) -> str:
    lines = [line for line in clean(said).splitlines() if line.strip()]
    return one_line(lines[-1], 400) if lines else ""
