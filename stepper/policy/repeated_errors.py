"""Find attempts with the same source or the same error as an earlier attempt.

If `find_repeated_run` finds a run, the cell does not run again. The `note_…` functions
return notes for the report.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepper.common.text import one_line
from stepper.policy.model import Key, Outcome, Run, Verdict
from stepper.policy.notebook_state import State

ORDINALS = {
    2: "second",
    3: "third",
    4: "fourth",
    5: "fifth",
    6: "sixth",
}
ENDINGS = {1: "st", 2: "nd", 3: "rd"}  # of ordinals, by the last digit
# The address of an object, which differs in each run.
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def get_error_key(run: Run) -> tuple[str, str] | None:
    """Return the class and the message of a run's error, without memory addresses.

    Equal errors of different runs have equal keys. Return None if the run did not raise
    an error, or if its verdict is not RECOVERABLE.
    """
    fault = run.fault
    if fault is None:
        return None
    if run.outcome is not Outcome.ERROR:
        return None
    if run.verdict is not Verdict.RECOVERABLE:
        return None
    message = ADDRESS.sub("0x…", fault.evalue)
    return fault.ename, message


def list_attempts(state: State, key: Key) -> Sequence[Run]:
    """Return the runs of a step or cell since it last succeeded, oldest first."""
    attempts = list[Run]()
    for run in reversed(state.runs):
        if run.key != key:
            continue
        if run.verdict is Verdict.FINE:
            break
        attempts.append(run)
    attempts.reverse()
    return attempts


def find_repeated_run(state: State, key: Key, source_hash: str) -> Run | None:
    """Return the last run if running a source now would give the same error again.

    Return None if the last run had another key or another source, if it did not raise a
    recoverable error, or if something that could change the result has happened since.
    Changed files of the project are not taken into account.
    """
    if not state.runs or not state.unchanged:
        return None
    last_run = state.runs[-1]
    if last_run.key != key or last_run.source_hash != source_hash:
        return None
    raised_error = get_error_key(last_run) is not None
    return last_run if raised_error else None


def explain_repeated_run(state: State, last_run: Run) -> str:
    """Return why a cell does not run again with the source of its last run.

    The explanation is a part of the message that the cell did not run.
    """
    scratch = state.commands.shell("eval")
    return (
        f"its source is the same as in run {last_run.run}, which failed with"
        f" {last_run.error}; since then, no other cell has run and no file of the"
        " project has changed. This does not count as an attempt. To run the cell"
        f" again, first run another cell or `{scratch}`"
    )


def note_same_error(state: State, run: Run) -> list[str]:
    """Return a note if an earlier attempt with another source raised the same error.

    Otherwise, return an empty list. `run` is the last run, which is not in the state
    yet.
    """
    error = get_error_key(run)
    if error is None:
        return []
    same_runs = [
        earlier
        for earlier in list_attempts(state, run.key)
        if get_error_key(earlier) == error
    ]
    same_runs.append(run)
    sources = {same_run.source_hash for same_run in same_runs}
    if len(sources) == 1:
        return []
    count = len(same_runs)
    ordinal = _format_ordinal(count)
    lines = {_get_failing_line(same_run) for same_run in same_runs}
    is_same_line = len(lines) == 1 and lines != {""}
    same_line = ", in the same line" if is_same_line else ""
    message = one_line(": ".join(error), 160)
    return [
        f"`{message}` occurred for the {ordinal} time{same_line},"
        f" with {len(sources)} versions of the source"
    ]


def note_returning_source(state: State, key: Key, source_hash: str) -> list[str]:
    """Return a note if an attempt before the last one had the same source.

    Otherwise, return an empty list.
    """
    earlier_runs = [
        run for run in list_attempts(state, key)[:-1] if run.source_hash == source_hash
    ]
    if not earlier_runs:
        return []
    run = earlier_runs[-1]
    result = run.error if run.fault else run.outcome.value
    return [f"this source is the same as in run {run.run} ({result})"]


def _format_ordinal(count: int) -> str:
    """Return an ordinal, such as "second" or "21st"."""
    if count in ORDINALS:
        return ORDINALS[count]
    ending = "th"
    if count % 100 not in (11, 12, 13):
        ending = ENDINGS.get(count % 10, ending)
    return f"{count}{ending}"


def _get_failing_line(run: Run) -> str:
    """Return the line of the user's code that failed, or an empty string."""
    frames = run.fault.frames if run.fault else ()
    if not frames:
        return ""
    frame = frames[-1]
    lines = dict(frame.context)
    return lines.get(frame.line, "").strip()
