"""Whether the attempts at a cell get on: the same source after the same error, the same error from other sources."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from stepper.ground.text import one_line
from stepper.policy.model import Fault, Key, Outcome, Run, Verdict
from stepper.policy.state import State

ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def error_mark(run: Run) -> tuple[str, str] | None:
    """Return the fingerprint of the error that a run ended with; None where it ended otherwise."""
    return _mark(run.fault) if run.outcome is Outcome.ERROR and run.verdict is Verdict.RECOVERABLE else None


def _mark(fault: Fault | None) -> tuple[str, str] | None:
    return (fault.ename, ADDRESS.sub("0x…", fault.evalue)) if fault else None


def tries(state: State, key: Key) -> Sequence[Run]:
    """Return the failed runs of a step (or a cell in no step) since it last ended well."""
    runs = [run for run in reversed(state.runs) if run.key == key]
    return [*takewhile(lambda run: run.verdict is not Verdict.FINE, runs)][::-1]


def same_again(state: State, key: Key, source: str) -> Run | None:
    """Return the run that a source would only repeat: the very last one, which ended with an error, or None."""
    last = state.runs[-1] if state.runs else None
    if last is None or not state.unchanged or last.key != key or last.source_hash != source:
        return None
    return last if error_mark(last) else None


def repeated(last: Run) -> str:
    """Return why a source is not run again."""
    ename, evalue = (last.fault.ename, last.fault.evalue) if last.fault else ("", "")
    return (
        f"its source is that of run {last.run}, which ended with {one_line(ename, 100)}:"
        f" {one_line(evalue, 200)}; no other cell ran and no file of the project changed since."
        " No attempt is counted. Another cell, or `stepper eval`, in between lets it run"
    )


def same_error(state: State, run: Run) -> list[str]:
    """Return that other sources ended with the same error before, in a list. `run` is not in the state yet."""
    mark = _mark(run.fault)
    same = [earlier for earlier in tries(state, run.key) if mark and error_mark(earlier) == mark]
    sources = {run.source_hash, *(earlier.source_hash for earlier in same)}
    if len(sources) == 1:
        return []
    number = len(same) + 1
    line = ", same line" if all(failing_text(earlier) == failing_text(run) != "" for earlier in same) else ""
    nth = ORDINALS.get(number, f"{number}th")
    return [f"{nth} time {one_line(': '.join(mark or ()), 160)}{line}, from {len(sources)} sources"]


def returned(state: State, key: Key, source: str) -> list[str]:
    """Return that a source is an earlier attempt's, in a list; empty where it is new."""
    before = [run for run in tries(state, key)[:-1] if run.source_hash == source]
    return (
        [f"this source is that of run {before[-1].run}, which ended with {_fault_line(before[-1])}"] if before else []
    )


def _fault_line(run: Run) -> str:
    return one_line(f"{run.fault.ename}: {run.fault.evalue}", 200) if run.fault else run.outcome.value


def failing_text(run: Run) -> str:
    """Return the text of the line of the user's own code on which a run failed, '' where it is not known."""
    inner = run.fault.frames[-1] if run.fault and run.fault.frames else None
    return dict(inner.context).get(inner.line, "").strip() if inner else ""
