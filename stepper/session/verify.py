"""`stepper verify`: replays a notebook and compares the outputs.

The session provides the notebook and the recorded runs. The cells run in separate
sessions (`replay.py`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from stepper.messages import verify_report as words
from stepper.messages.run_report import RunSummary, format_seconds
from stepper.policy import cell_changes, journal_events, run_decisions
from stepper.policy.cell_changes import hash_source
from stepper.policy.commands.command_lines import CommandLines
from stepper.policy.comparison import verify_results
from stepper.policy.comparison.output_comparison import (
    CellOutputs,
    Difference,
    PixelComparison,
    ReplayVerdict,
    compare_outputs,
)
from stepper.policy.comparison.recorded_outputs import remove_pager_text
from stepper.policy.comparison.verify_results import (
    CellVerdict,
    FileChange,
    VerifyResult,
)
from stepper.policy.dataflow import cell_dependencies
from stepper.policy.model import Cell, Outcome
from stepper.session import progress_events, stale_cells
from stepper.session.clients import Caller
from stepper.session.kernel_manager import format_now
from stepper.session.protocols import Notebook
from stepper.session.replay import ReplayResult, create_progress_callback, replay
from stepper.session.session import Session

# another version of these may draw the same figure otherwise
DRAWS = ("matplotlib", "PIL", "seaborn")
MISSING = re.compile(r"name '(\w+)' is not defined")
MORE = "# stepper: timeout=10m"
IN_USE = "Address already in use"
SEEDS = 4294967296  # how many PYTHONHASHSEED takes
# so many fresh runs at most; after the second only where they took less together
FRESH, PATIENCE_SECONDS = 4, 60


@dataclass(frozen=True)
class ReplayOptions:
    """How to replay a notebook; `open_session` takes a hash seed."""

    open_session: Callable[[int], AbstractAsyncContextManager[Session]]
    compare_pixels: PixelComparison
    once: bool = False
    where: str = ""  # the kernels run, where that is not as usual
    seed: int = 0


@dataclass
class ReplayFindings:
    """The notebook before the replay, and the results of the replays."""

    document: Notebook
    cells: list[Cell] = field(default_factory=list)
    # index → outputs, None where nothing is recorded
    recorded: dict[int, Any] = field(default_factory=dict)
    # its execution counts were taken away: what shows nothing may have run
    countless: bool = False
    first: ReplayResult = field(default_factory=ReplayResult)


async def verify(
    session: Session,
    document: Notebook,
    way: ReplayOptions,
    caller: Caller,
    progress: progress_events.ProgressCallback,
    files: Callable[[], list[FileChange]],
) -> VerifyResult:
    """Replay a notebook, compare the outputs and record the verdict.

    Raise StepperError if there is no result.
    """
    began = time.monotonic()
    cells = cell_changes.select_runnable(document.cells)
    found = ReplayFindings(
        document,
        cells,
        {cell.index: document.get_recorded_outputs(cell) for cell in cells},
    )
    found.countless = all(
        document.get_displayed_execution_count(cell) is None for cell in cells
    ) and any(found.recorded.values())
    at = [0]
    last = cells[-1].index if cells else -1
    kernels = 0
    if cells:
        async with way.open_session(way.seed) as fresh:
            told = create_progress_callback(progress, at, len(cells))
            found.first, kernels = (
                await replay(fresh, found.recorded, last, caller, told),
                1,
            )
    differences = await asyncio.to_thread(_compare_outputs, session, found, way)
    differing = [
        cell
        for cell in cells
        if (known := differences.get(cell.index)) and not known.verdict.reproduces
    ]
    again = list[ReplayResult]()
    while differing and not way.once and kernels < FRESH:
        if again and time.monotonic() - began > PATIENCE_SECONDS:
            break
        last = differing[-1].index
        told = create_progress_callback(
            progress, at, at[0] + sum(cell.index <= last for cell in cells)
        )
        async with way.open_session((way.seed + kernels) % SEEDS) as fresh:
            again.append(await replay(fresh, found.recorded, last, caller, told))
        kernels += 1
        differences |= await asyncio.to_thread(
            _compare_outputs, session, found, way, again, differing
        )
        differing = [cell for cell in differing if differences[cell.index].doubtful]
    await session.kernel_manager.find()  # what a former daemon left lives, too
    verdicts = [
        _create_verdict(session, found, cell, differences.get(cell.index))
        for cell in cells
    ]
    failing = sum(
        cell.index in found.first.faults
        and each.verdict.reproduces
        and cell_changes.RAISES_TAG not in cell.tags
        for cell, each in zip(cells, verdicts, strict=True)
    )
    made = VerifyResult(
        session.name,
        all(each.verdict.reproduces for each in verdicts),
        verdicts,
        await asyncio.to_thread(files),
        round(time.monotonic() - began, 3),
        kernels,
        verify_results.find_changed_packages(
            session.state.packages, found.first.packages
        ),
        way.where,
        failing=failing,
        open_steps=len(session.state.open_steps),
    )
    made = replace(made, text=words.format_verify(made))
    sources, counts = (
        verify_results.hash_sources(document.cells),
        words.format_recorded(made),
    )
    unstable = tuple(
        each.cell_id for each in verdicts if each.verdict is ReplayVerdict.UNSTABLE
    )
    session.log(
        journal_events.Verified(
            at=format_now(),
            reproduces=made.reproduces,
            sources=sources,
            text=counts,
            unstable=unstable,
        ),
        sync=None,
    )
    return made


def _compare_outputs(
    session: Session,
    found: ReplayFindings,
    way: ReplayOptions,
    again: Sequence[ReplayResult] = (),
    cells: list[Cell] | None = None,
) -> dict[int, Difference]:
    """Return the differences from the recorded outputs, by cell index."""
    packages = {
        each.name
        for each in verify_results.find_changed_packages(
            session.state.packages, found.first.packages
        )
    }
    redrawn, facts = (
        bool(packages.intersection(DRAWS)),
        _collect_figure_descriptions(session),
    )
    failed = found.first.failed
    differences = dict[int, Difference]()
    for cell in cells or found.cells:
        outputs, shown = found.recorded[cell.index], found.first.shown.get(cell.index)
        if (
            outputs is None
            and found.countless
            and shown is not None
            and not shown.outputs
        ):
            outputs = []
        if (
            outputs is None
            or shown is None
            or (failed is not None and failed.cell.index == cell.index)
        ):
            continue
        others = [each.shown.get(cell.index, CellOutputs([])) for each in again]
        # not everybody keeps what a pager shows
        shown, *others = (
            remove_pager_text(cell.source, outputs, each) for each in (shown, *others)
        )
        differences[cell.index] = compare_outputs(
            CellOutputs(outputs, facts), shown, others, way.compare_pixels, redrawn
        )
    return differences


def _collect_figure_descriptions(session: Session) -> Mapping[str, str]:
    """Return the descriptions of the figures in the journal."""
    return {
        key: text for run in session.state.runs for key, text in run.figures.items()
    }


def _create_verdict(
    session: Session, found: ReplayFindings, cell: Cell, difference: Difference | None
) -> CellVerdict:
    failed = found.first.failed
    if failed is not None and failed.cell.index == cell.index:
        return CellVerdict(
            cell.id,
            cell.number,
            ReplayVerdict.FAILED,
            _describe_failure(session, found.document, failed),
        )
    if cell.index not in found.first.shown:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RUN)
    if difference is None:
        return CellVerdict(cell.id, cell.number, ReplayVerdict.NOT_RECORDED)
    told = (
        [difference.text, _explain_changed_source(session, found, cell)]
        if not difference.verdict.reproduces
        else [difference.text]
    )
    if cell.index in found.first.faults:
        told.insert(0, f"fails, as recorded: {found.first.faults[cell.index]}")
    return CellVerdict(
        cell.id,
        cell.number,
        difference.verdict,
        "; ".join(filter(None, told)),
        difference.lines,
    )


def _explain_changed_source(session: Session, found: ReplayFindings, cell: Cell) -> str:
    """Return that the recorded outputs belong to another source, or ''."""
    ran = next(
        (run for run in reversed(session.state.runs) if run.cell_id == cell.id), None
    )
    count = found.document.get_displayed_execution_count(cell)
    if (
        ran is None
        or count is None
        or ran.execution_count != count
        or ran.source_hash == hash_source(cell.source)
    ):
        return ""
    return "its source was changed since it ran"


def _describe_failure(session: Session, document: Notebook, ended: RunSummary) -> str:
    """Return how a cell failed, and the cause if it is known."""
    run = ended.run
    if run.outcome is Outcome.TIMEOUT:
        more = (
            ""
            if "timeout" in ended.cell.source.partition("\n")[0]
            else f" (`{MORE}` as its first line gives more)"
        )
        return f"no end within its deadline of {format_seconds(ended.timeout)}{more}"
    missing = (
        MISSING.search(run.fault.evalue)
        if run.fault and run.fault.ename == "NameError"
        else None
    )
    bound = ""
    if missing and session.speaks_python:
        stale_cells.find_dependencies(session, document.cells)
        bound = cell_dependencies.describe_former_binding(
            missing[1], ended.cell.id, document.cells, session.run_history
        )
    elif IN_USE in run.error and session.kernel_manager.kernel is not None:
        bound = f"the living kernel may hold it: `{CommandLines(session.name).shell('shutdown')}` ends that"
    # the replay's kernel is nobody's to restore
    own = run.error.partition(run_decisions.VARIABLES_LOST)[0].partition(
        f"; {run_decisions.VARIABLES_KEPT}"
    )[0]
    return own + (f" ({bound})" if bound else "")
