"""Rendering of Plotly figures as PNG files, with the project's own kaleido.

Figures are rendered only on request and in a separate process, because kaleido starts a
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
from stepper.common.text import clean, format_count, one_line
from stepper.daemon.request import Request
from stepper.policy.changed_cells import hash_source
from stepper.policy.configuration import kernel_config
from stepper.policy.execution_result import CellVersion
from stepper.policy.model import Cell
from stepper.session import responses, status_queries
from stepper.session.protocols import LaunchConfig
from stepper.session.session import Session

PLOTLY_MIME = "application/vnd.plotly.v1+json"
MAX_FIGURES = 8  # the maximum number of figures of a cell
TIMEOUT_SECONDS = 60.0
MAX_ERROR_CHARACTERS = 400  # of kaleido's error in a message
MAX_EDGE_PIXELS = 1568  # clients shrink larger images to this size
# The script for kaleido. 700 × 500 is the default size of a figure.
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
    """Render the Plotly figures of a cell, and return the paths of the PNG files.

    `name` is the cell's number or id. Raise StepperError if the cell has no figure or
    has not run with its current source, or if kaleido fails.
    """
    cell = status_queries.find_code_cell(session, name)
    figures = _read_figures(session, cell)
    launch = await _choose_interpreter(request, session)
    folder = request.workspace.get_figures_folder(session)
    paths = _prepare_paths(session, cell, folder, len(figures))
    async with _browser_lock:
        targets = list(zip(figures, paths, strict=True))
        stderr = await _run_kaleido(request, launch, folder, targets)
    rendered = [path for path in paths if os.path.exists(path)]
    if len(rendered) < len(paths):
        reason = _get_last_line(stderr) or "kaleido printed no error"
        total = format_count(len(paths), "figure")
        raise StepperError(
            f"kaleido rendered {len(rendered)} of {total} of {cell.label}: {reason}"
        )
    lines = []
    for number, path in enumerate(rendered, 1):
        # This removes the permissions of other users. `os.chmod` cannot refuse links
        # with a glibc older than 2.32.
        handle = secure_files.open_private(path, os.O_RDONLY)
        os.close(handle)
        lines.append(f"Figure {number}: {request.workspace.paths.relpath(path)}")
    return responses.OutputPage(
        notebook=session.name,
        cell_id=cell.id,
        page=1,
        pages=1,
        text="\n".join(lines),
        figures=rendered,
    )


def _read_figures(session: Session, cell: Cell) -> list[dict[str, Any]]:
    """Return the first MAX_FIGURES Plotly figures in a cell's outputs.

    Raise UsageError if there is no figure, or if the cell has not run here with its
    current source: a figure from a repository may load arbitrary files and URLs.
    """
    if session.state.last_sources.get(cell.id) != hash_source(cell.source):
        raise UsageError(
            f"the figures of {cell.label} were not rendered, because the cell has not"
            " run here with its current source",
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
        raise UsageError(f"the output of {cell.label} contains no Plotly figure")
    return figures[:MAX_FIGURES]


def _prepare_paths(session: Session, cell: Cell, folder: str, count: int) -> list[str]:
    """Return the paths for `count` PNG files of a cell in a folder.

    Create the folder if necessary, and remove the files of earlier requests.
    """
    runs = [run.run for run in session.state.runs if run.cell_id == cell.id]
    run_number = max(runs, default=0)
    secure_files.create_folder(folder)
    paths = []
    for number in range(1, count + 1):
        path = os.path.join(folder, f"{run_number:04d}-plotly-{number}.png")
        secure_files.remove(path)
        paths.append(path)
    return paths


async def _choose_interpreter(request: Request, session: Session) -> LaunchConfig:
    """Return the interpreter to run kaleido with, and its environment.

    This is the interpreter of the notebook's kernel if the kernel runs on this machine,
    otherwise the project's interpreter. Raise KernelError if the project's interpreter
    is missing or was not accepted.
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
    if description.location:  # the kernel runs on another machine
        return launch
    return LaunchConfig(description.python, launch.cwd, launch.environ)


async def _run_kaleido(
    request: Request,
    launch: LaunchConfig,
    folder: str,
    targets: Sequence[tuple[Any, str]],
) -> str:
    """Render figures with kaleido, and return the text that it wrote to stderr.

    `targets` are pairs of a figure and the path of its PNG file. Raise StepperError
    after the timeout, or if the caller disconnects.
    """
    process = await _start_kaleido(launch, folder)
    targets_json = json.dumps(targets)
    rendering = asyncio.create_task(process.communicate(targets_json.encode()))
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
                    "the figures were not rendered: kaleido was interrupted"
                )
            raise StepperError(
                "the figures were not rendered: kaleido timed out after"
                f" {TIMEOUT_SECONDS:g} s"
            )
    finally:
        disconnection.cancel()
        _kill(process)  # kaleido's browser may still be running
    _, stderr = rendering.result()
    return stderr.decode("utf-8", "replace")


async def _start_kaleido(launch: LaunchConfig, folder: str) -> Process:
    """Start the script that renders figures, in a process group of its own."""
    return await asyncio.create_subprocess_exec(
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


def _kill(process: Process) -> None:
    """Kill a process and its child processes."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _get_last_line(text: str) -> str:
    """Return the last line of a text that is not blank, or an empty string."""
    lines = [line for line in clean(text).splitlines() if line.strip()]
    if not lines:
        return ""
    return one_line(lines[-1], MAX_ERROR_CHARACTERS)
