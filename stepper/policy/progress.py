"""Whether the attempts at a cell get on: the same source after the same error, the same error from other sources."""

from __future__ import annotations

import re
from typing import Any

from stepper.ground.text import one_line
from stepper.policy.ledger import Key, State
from stepper.policy.model import Outcome, Run, Verdict

ORDINALS = {2: "second", 3: "third", 4: "fourth", 5: "fifth", 6: "sixth"}
ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")


def error_mark(run: dict[str, Any]) -> tuple[str, str] | None:
    """Return the fingerprint of the error that a run ended with; None where it ended otherwise."""
    fault = run.get("fault")
    if run["outcome"] != Outcome.ERROR.value or run["verdict"] != Verdict.RECOVERABLE.value or not fault:
        return None
    return fault["ename"], ADDRESS.sub("0x…", fault["evalue"])


def tries(state: State, key: Key) -> list[dict[str, Any]]:
    """Return the failed runs of a step (or a cell in no step) since it last ended well."""
    found: list[dict[str, Any]] = []
    for run in reversed(state.runs):
        if run["key"] == key:
            if run["verdict"] == Verdict.FINE.value:
                break
            found.insert(0, run)
    return found


def same_again(state: State, key: Key, source: str) -> dict[str, Any] | None:
    """Return the run that a source would only repeat: the very last one, which ended with an error, or None."""
    last = state.runs[-1] if state.runs else None
    if last is None or not state.unchanged or last["key"] != key or last["source_hash"] != source:
        return None
    return last if error_mark(last) else None


def repeated(last: dict[str, Any]) -> str:
    """Return why a source is not run again."""
    fault = last["fault"]
    return (
        f"its source is that of run {last['run']}, which ended with {one_line(fault['ename'], 100)}:"
        f" {one_line(fault['evalue'], 200)}; no other cell ran and no file of the project changed since."
        " No attempt is counted. Another cell, or `stepper eval`, in between lets it run"
    )


def same_error(state: State, key: Key, run: Run) -> list[str]:
    """Return that other sources ended with the same error before, in a list. `run` is not in the state yet."""
    before = tries(state, key)
    mark = (run.fault.ename, ADDRESS.sub("0x…", run.fault.evalue)) if run.fault else None
    same = [one for one in before if mark and error_mark(one) == mark]
    sources = {run.source_hash, *(one["source_hash"] for one in same)}
    if len(sources) == 1:
        return []
    number = len(same) + 1
    line = ", same line" if all(failing_text(one["fault"]) == text(run) != "" for one in same) else ""
    nth = ORDINALS.get(number, f"{number}th")
    return [f"{nth} time {one_line(': '.join(mark or ()), 160)}{line}, from {len(sources)} sources"]


def returned(state: State, key: Key, source: str) -> list[str]:
    """Return that a source is an earlier attempt's, in a list; empty where it is new."""
    before = [one for one in tries(state, key)[:-1] if one["source_hash"] == source]
    return (
        [f"this source is that of run {before[-1]['run']}, which ended with {fault_line(before[-1])}"] if before else []
    )


def fault_line(run: dict[str, Any]) -> str:
    """Return how a run ended, in one line."""
    fault = run.get("fault")
    return one_line(f"{fault['ename']}: {fault['evalue']}", 200) if fault else str(run["outcome"])


def text(run: Run) -> str:
    """Return the text of the line of the user's own code on which a run failed."""
    frames = [{"line": one.line, "context": one.context} for one in run.fault.frames] if run.fault else []
    return failing_text({"frames": frames})


def failing_text(fault: dict[str, Any]) -> str:
    """Return the text of the failing line that a journaled fault holds, '' where it holds none."""
    frames = fault.get("frames") or []
    inner = frames[-1] if frames else None
    return next((str(said).strip() for n, said in inner["context"] if n == inner["line"]), "") if inner else ""
