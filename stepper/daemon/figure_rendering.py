"""Plotly figures as PNG files, rendered by the project's own kaleido.

Figures are rendered only on request and in a separate process: kaleido starts a
browser, which takes seconds and hundreds of megabytes.
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

PLOTLY_MIME = "application/vnd.plotly.v1+json"
MAX_FIGURES = 8  # of a cell
TIMEOUT_SECONDS = 60.0
MAX_EDGE_PIXELS = 1568  # clients shrink larger images to this size
SCRIPT = f"""
import json, sys
import plotly.io
for figure, path in json.load(sys.stdin):
    layout = figure.get("layout") or {{}}
    sides = layout.get("width") or 700, layout.get("height") or 500
    scale = min(1, {MAX_EDGE_PIXELS} / max(sides))
    plotly.io.write_image(figure, path, format="png", scale=scale, validate=False)
"""
_browser_lock = asyncio.Lock()  # one browser at a time


async def render_figures(
    request: Request, session: Session, name: str
) -> responses.OutputPage:
    """Render the Plotly figures of a cell that ran here; raise StepperError.

    `name` is the cell's number or id.
    """
    cell = status_queries.find_code_cell(session, name)
    figures = _read_figures(session, cell)
    launch = await _get_renderer(request, session)
    runs = [run.run for run in session.state.runs if run.cell_id == cell.id]
    run_number = max(runs, default=0)
    folder = request.workspace.get_figures_folder(session)
    paths = []
    for number in range(1, len(figures) + 1):
        file_name = f"{run_number:04d}-plotly-{number}.png"
        paths.append(os.path.join(folder, file_name))
    secure_files.create_folder(folder)
    for path in paths:
        secure_files.remove(path)
    async with _browser_lock:
        targets = list(zip(figures, paths, strict=True))
        stderr = await _run_kaleido(request, launch, folder, targets)
    rendered = [path for path in paths if os.path.exists(path)]
    if len(rendered) < len(paths):
        reason = _get_last_line(stderr) or "kaleido wrote neither a file nor an error"
        raise StepperError(f"the figure of {cell.label} can't be rendered: {reason}")
    lines = []
    for number, path in enumerate(rendered, 1):
        os.chmod(path, 0o600, follow_symlinks=False)
        lines.append(f"Figure {number}: {request.workspace.paths.relpath(path)}")
    return responses.OutputPage(
        session.name,
        cell.id,
        1,
        1,
        "\n".join(lines),
        figures=rendered,
    )


def _read_figures(session: Session, cell: Cell) -> list[dict[str, Any]]:
    """Return the Plotly figures in a cell's outputs; raise UsageError.

    The cell must have run here: a figure that came with the repository may load
    anything that it names.
    """
    if session.state.last_sources.get(cell.id) != hash_source(cell.source):
        raise UsageError(
            f"{cell.label} has not run here with its current source, so its figure is"
            " not rendered",
            session.state.commands.shell("run"),
        )
    version = CellVersion.from_cell(cell)
    figures = []
    for output in session.file.read_outputs(version):
        data = output.get("data")
        if not isinstance(data, Mapping):
            continue
        figure = data.get(PLOTLY_MIME)
        if isinstance(figure, Mapping):
            layout = figure.get("layout") or {}
            figures.append({"data": figure.get("data"), "layout": layout})
    if not figures:
        raise UsageError(f"{cell.label} shows no Plotly figure")
    return figures[:MAX_FIGURES]


async def _get_renderer(request: Request, session: Session) -> LaunchConfig:
    """Return the interpreter on this machine that renders, with its environment.

    That of the notebook's kernel is preferred. Raise KernelError if there is none.
    """
    launch = request.workspace.get_launch_config(
        session.file.path,
        request.caller.environ,
        kernel_config.LOCAL,
    )
    kernel = await session.kernel_manager.find_or_attach()
    if kernel is None:
        return launch
    description = kernel.describe()
    if description.location:  # it runs on another machine
        return launch
    return LaunchConfig(description.python, launch.cwd, launch.environ)


async def _run_kaleido(
    request: Request,
    launch: LaunchConfig,
    folder: str,
    targets: Sequence[tuple[Any, str]],
) -> str:
    """Render figures to paths; return the text that kaleido wrote to stderr.

    Raise StepperError after the timeout, or if the caller disconnects.
    """
    process = await asyncio.create_subprocess_exec(
        launch.python,
        "-c",
        SCRIPT,
        stdin=PIPE,
        stdout=DEVNULL,
        stderr=PIPE,
        cwd=folder,
        env=dict(launch.environ),
        start_new_session=True,
    )
    request_text = json.dumps(targets)
    rendering = asyncio.create_task(process.communicate(request_text.encode()))
    disconnection = asyncio.create_task(request.caller.disconnected.wait())
    try:
        await asyncio.wait(
            [rendering, disconnection],
            timeout=TIMEOUT_SECONDS,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if not rendering.done():
            _kill(process)
            await rendering
            if request.caller.disconnected.is_set():
                raise StepperError(
                    "kaleido was interrupted; the figure was not rendered"
                )
            raise StepperError(
                f"kaleido timed out after {TIMEOUT_SECONDS:g} s; the figure was not"
                " rendered"
            )
    finally:
        disconnection.cancel()
        _kill(process)  # its browser may still be running
    _, stderr = rendering.result()
    return stderr.decode("utf-8", "replace")


def _kill(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _get_last_line(text: str) -> str:
    lines = [line for line in clean(text).splitlines() if line.strip()]
    return one_line(lines[-1], 400) if lines else ""
