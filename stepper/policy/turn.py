"""What is to happen before a cell and after it: two pure functions decide, the session carries out.

`before`: a cell that was written → run it, say that it waits, refuse it, or nothing. `after`: a run that was judged
(`judge`) → go on, let the agent fix it, run it again, or stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from stepper.policy import changes, firstline, gate, plan, progress, retry
from stepper.policy.events import Ran
from stepper.policy.model import Cell, Consent, Key, Limits, Run, Verdict
from stepper.policy.state import Progress, State


class Do(Enum):
    """What is to be done about a cell that was written."""

    NOTHING = "it is not meant to run"
    WAIT = "the person has not accepted it"
    REFUSE = "it may not run now"
    RUN = "it runs"


@dataclass(frozen=True)
class Before:
    """What is to be done about a cell, and why not where it does not run.

    It is not run either where it would only repeat the run `repeats`, which the files of the project show; and where
    `look_ahead` finds a fault that it would end with for certain.
    """

    do: Do
    why: str = ""
    repeats: Run | None = None
    look_ahead: bool = False


def before(
    state: State, cells: Sequence[Cell], cell: Cell, consent: Consent, asked: Callable[[], Limits], new: bool
) -> Before:
    """Decide on a cell that stands in the notebook now; `new` where it did not before the edit.

    The limits are `asked` for where they count: a wrong configuration is no matter of a cell that is not meant to run.
    """
    if cell not in changes.runnable([cell]):
        return Before(Do.NOTHING)
    limits = asked()
    if why := gate.unaccepted(consent, limits):
        return Before(Do.WAIT, why)
    others = [other for other in cells if other.id != cell.id]
    why = gate.stopped(state)
    if new:
        why = why or gate.waiting(state, others, cell.index) or gate.too_many(cells, limits)
    if why:
        return Before(Do.REFUSE, why)
    key, source = plan.key(state, cells, cell), changes.source_hash(cell.source)
    held = state.progress.get(key, Progress()).held == source  # written once more, it runs
    look_ahead = limits.preflight and not held and changes.RAISES_TAG not in cell.tags
    return Before(Do.RUN, "", progress.same_again(state, key, source), look_ahead)


@dataclass(frozen=True)
class Task:
    """A cell that is to run: what it counts for, its deadline in seconds, what is to be noted before it runs."""

    key: Key
    timeout: float
    notes: tuple[str, ...]


def task(state: State, cells: Sequence[Cell], cell: Cell, limits: Limits) -> Task:
    """Return how a cell is to run."""
    asked, key = firstline.parse(cell.source), plan.key(state, cells, cell)
    timeout = firstline.deadline(asked, limits.cell_timeout_seconds, limits.max_cell_timeout_seconds)
    below = [other for other in cells if other.index > cell.index and other.id in state.ran]
    order = [f"out of order: it ran after cell {below[-1].number}, which stands below it"] if below else []
    returned = progress.returned(state, key, changes.source_hash(cell.source))
    return Task(key, timeout, (*asked.problems, *order, *returned))


@dataclass(frozen=True)
class After:
    """What follows a run: what is to be done, the attempts with it, what is to be noted."""

    decision: retry.Decision
    attempts: int
    notes: list[str]


def after(state: State, run: Ran, limits: Limits) -> After:
    """Decide what follows a run that was judged; the state does not hold it yet."""
    attempts = state.attempts_after(run.key, run.verdict, run.repeat > 0)
    notes = progress.same_error(state, run) if run.verdict is Verdict.RECOVERABLE else []
    return After(retry.decide(run.verdict, attempts, run.repeat, limits), attempts, notes)
