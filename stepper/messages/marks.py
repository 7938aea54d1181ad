"""The marks in front of steps, cells, runs and notebooks.

The terminal, the reports and the contexts use these tables, and `stepper view` sends
them to its page. Keys are strings: the command line imports this module at each start
and should not import the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

OK_MARK = "✓"
FAILED_MARK = "✗"
CRITERION_FALSE_MARK = "?"
SKIPPED_MARK = "–"
RUNNING_MARK = "▶"
WAITING_MARK = "⧖"
PENDING_MARK = "·"
INTERRUPTED_MARK = "■"
CHANGED_MARK = "≠"
STALE_MARK = "~"
CLOSE_MARK = "≈"
NOTE_MARK = "·"
UNKNOWN_MARK = "…"
STOP_SIGN = "❌"

# By the status of a step or cell (`StepStatus`), or by the state of a notebook.
MARKS: Mapping[str, str] = MappingProxyType(
    {
        "done": OK_MARK,
        "failed": FAILED_MARK,
        "doubted": CRITERION_FALSE_MARK,
        "skipped": SKIPPED_MARK,
        "running": RUNNING_MARK,
        "pending": PENDING_MARK,
        "interrupted": INTERRUPTED_MARK,
        "changed": CHANGED_MARK,
        "stale": STALE_MARK,
        "complete": OK_MARK,
        "failing": FAILED_MARK,
        "stopped": INTERRUPTED_MARK,
        "ready": PENDING_MARK,
        "waiting": WAITING_MARK,
    }
)
# The colors of marks at the start of a line in a terminal.
MARK_COLORS: Mapping[str, str] = MappingProxyType(
    {
        OK_MARK: "green",
        FAILED_MARK: "red",
        INTERRUPTED_MARK: "yellow",
        RUNNING_MARK: "cyan",
    }
)
# The marks of cells whose outputs differ in a replay, by `ReplayVerdict`.
REPLAY_MARKS: Mapping[str, str] = MappingProxyType(
    {
        "changed": FAILED_MARK,
        "failed": FAILED_MARK,
        "unstable": STALE_MARK,
        "not_judged": CRITERION_FALSE_MARK,
    }
)
# The marks of kernel backends. The key is None if it is not known whether the backend
# is reachable.
REACHABLE_MARKS: Mapping[bool | None, str] = MappingProxyType(
    {True: OK_MARK, False: FAILED_MARK, None: PENDING_MARK}
)


def get_mark(status: str) -> str:
    """Return the mark of a status; an unknown status has the mark of `pending`."""
    return MARKS.get(status, PENDING_MARK)


def get_run_mark(outcome: str, is_fine: bool) -> str:
    """Return the mark of a run with an `Outcome`; `is_fine` means that it succeeded."""
    if is_fine:
        return OK_MARK
    if outcome == "cancelled":
        return INTERRUPTED_MARK
    return FAILED_MARK
