"""Whether the attempts at a cell get on: the same source after the same error, the same error from other sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from stepper.common.text import one_line
from stepper.policy.model import Key, Outcome, Run, Verdict
from stepper.policy.notebook_state import State

ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def error_mark(run: Run) -> tuple[str, str] | None:
    """Return the fingerprint of the error that a run ended with; None where it ended otherwise."""
    if (
        run.fault is None
        or run.outcome is not Outcome.ERROR
        or run.verdict is not Verdict.RECOVERABLE
    ):
        return None
    return run.fault.ename, ADDRESS.sub("0x…", run.fault.evalue)


def tries(state: State, key: Key) -> Sequence[Run]:
    """Return the failed runs of a step (or a cell in no step) since it last ended well."""
    runs = (run for run in reversed(state.runs) if run.key == key)
    return [*takewhile(lambda run: run.verdict is not Verdict.FINE, runs)][::-1]


def same_again(state: State, key: Key, source: str) -> Run | None:
    """Return the run that a source would only repeat: the very last one, which ended with an error, or None."""
    last = state.runs[-1] if state.runs and state.unchanged else None
    return (
        last
        if last and (last.key, last.source_hash) == (key, source) and error_mark(last)
        else None
    )


def repeated(state: State, last: Run) -> str:
    """Return why a source is not run again."""
    scratch = state.commands.shell("eval")
    return (
        f"its source is that of run {last.run}, which ended with {_ended(last)};"
        " no other cell ran and no file of the project changed since."
        f" No attempt is counted. Another cell, or `{scratch}`, in between lets it run"
    )


def same_error(state: State, run: Run) -> list[str]:
    """Return that other sources ended with the same error before, in a list. `run` is not in the state yet."""
    mark = error_mark(run)
    same = [
        earlier
        for earlier in tries(state, run.key)
        if mark and error_mark(earlier) == mark
    ]
    sources = {run.source_hash, *(earlier.source_hash for earlier in same)}
    if mark is None or len(sources) == 1:
        return []
    nth = ORDINALS.get(len(same) + 1, f"{len(same) + 1}th")
    here = _failing_text(run)
    line = (
        ", same line"
        if here and all(_failing_text(each) == here for each in same)
        else ""
    )
    return [
        f"{nth} time {one_line(': '.join(mark), 160)}{line}, from {len(sources)} sources"
    ]


def returned(state: State, key: Key, source: str) -> list[str]:
    """Return that a source is an earlier attempt's, in a list; empty where it is new."""
    before = [run for run in tries(state, key)[:-1] if run.source_hash == source]
    return [
        f"this source is that of run {run.run}, which ended with {_ended(run)}"
        for run in before[-1:]
    ]


def _ended(run: Run) -> str:
    return run.error if run.fault else run.outcome.value


def _failing_text(run: Run) -> str:
    """Return the text of the line of the user's own code on which a run failed, '' where it is not known."""
    inner = run.fault.frames[-1] if run.fault and run.fault.frames else None
    return dict(inner.context).get(inner.line, "").strip() if inner else ""
