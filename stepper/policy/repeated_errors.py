"""Attempts that repeat: the same source after the same error, or the same error again.

`find_repeated_run` prevents a run, the other functions return notes for the report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from stepper.common.text import one_line
from stepper.policy.model import Key, Outcome, Run, Verdict
from stepper.policy.notebook_state import State

ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
# The address of an object, which differs in each run.
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def error_key(run: Run) -> tuple[str, str] | None:
    """Return class and message of a run's error; None if the run did not raise one.

    Equal errors of different runs have equal keys.
    """
    if run.fault is None or run.outcome is not Outcome.ERROR:
        return None
    if run.verdict is not Verdict.RECOVERABLE:
        return None
    return run.fault.ename, ADDRESS.sub("0x…", run.fault.evalue)


def list_attempts(state: State, key: Key) -> Sequence[Run]:
    """Return the runs of a step or cell since it last succeeded, oldest first."""
    newest_first = (run for run in reversed(state.runs) if run.key == key)
    unsuccessful = takewhile(lambda run: run.verdict is not Verdict.FINE, newest_first)
    return [*unsuccessful][::-1]


def find_repeated_run(state: State, key: Key, source_hash: str) -> Run | None:
    """Return the run that the same source would only repeat, or None.

    This is the last run of the notebook if it raised an error.
    """
    if not state.runs or not state.unchanged:
        return None
    last = state.runs[-1]
    is_same = last.key == key and last.source_hash == source_hash
    return last if is_same and error_key(last) else None


def explain_repeated_run(state: State, last: Run) -> str:
    """Return why a cell does not run again with the source of its last run."""
    scratch = state.commands.shell("eval")
    return (
        f"its source is that of run {last.run}, which failed with {last.error}; no other"
        " cell ran and no file of the project changed since. This does not count as an"
        f" attempt. The cell can run again after another cell or `{scratch}`"
    )


def note_same_error(state: State, run: Run) -> list[str]:
    """Return a note if other sources raised the same error, else an empty list.

    `run` is not in the state yet.
    """
    error = error_key(run)
    if error is None:
        return []
    earlier_runs = [
        earlier
        for earlier in list_attempts(state, run.key)
        if error_key(earlier) == error
    ]
    sources = {run.source_hash, *(earlier.source_hash for earlier in earlier_runs)}
    if len(sources) == 1:
        return []
    count = len(earlier_runs) + 1
    ordinal = ORDINALS.get(count, f"{count}th")
    line = _failing_line(run)
    is_same_line = line != "" and all(
        _failing_line(earlier) == line for earlier in earlier_runs
    )
    same_line = ", same line" if is_same_line else ""
    message = one_line(": ".join(error), 160)
    return [f"{ordinal} time {message}{same_line}, from {len(sources)} sources"]


def note_returning_source(state: State, key: Key, source_hash: str) -> list[str]:
    """Return a note if a source is that of an earlier attempt, else an empty list."""
    earlier_runs = [
        run for run in list_attempts(state, key)[:-1] if run.source_hash == source_hash
    ]
    if not earlier_runs:
        return []
    run = earlier_runs[-1]
    result = run.error if run.fault else run.outcome.value
    return [f"this source is the same as in run {run.run} ({result})"]


def _failing_line(run: Run) -> str:
    """Return the line of the user's code that failed, '' if it is not known."""
    if run.fault is None or not run.fault.frames:
        return ""
    frame = run.fault.frames[-1]
    return dict(frame.context).get(frame.line, "").strip()
