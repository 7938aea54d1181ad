"""Decisions before and after a cell, as tables without a kernel."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import fields, replace
from types import SimpleNamespace

import orjson
import pytest

from stepper.messages import command_messages
from stepper.policy import (
    journal_events,
    journal_reducer,
    plan,
    repeated_errors,
    run_decisions,
)
from stepper.policy.changed_cells import hash_source
from stepper.policy.dataflow.name_effects import NameUsage
from stepper.policy.model import (
    Cell,
    CellEdit,
    Consent,
    Fault,
    Limits,
    OmittedOutput,
    Outcome,
    Plan,
    Run,
    Step,
    Verdict,
)
from stepper.policy.notebook_state import State
from stepper.policy.run_decisions import CellAction, NextAction
from stepper.session.caller import Caller
from stepper.session.session_state.notebook_journal import NotebookJournal
from stepper.session.session_state.notices import Notices
from stepper.session.session_state.request_queue import RequestQueue
from tests.test_background_runs import run_pending_tasks

AT = "2026-01-01T00:00:00Z"
GIVEN, ASKED, WITHHELD = Consent.GIVEN, Consent.ASKED, Consent.WITHHELD
FINE, FIXABLE, NET, BAD = (
    Verdict.FINE,
    Verdict.RECOVERABLE,
    Verdict.TRANSIENT,
    Verdict.UNRECOVERABLE,
)


def cell(
    number: int, source: str = "x", tags: tuple[str, ...] = (), kind: str = "code"
) -> Cell:
    return Cell(f"id{number}", number, number + 1, kind, source, tags)


def run(
    number: int,
    verdict: Verdict,
    source: str = "x",
    key: int | str = 1,
    at: int = 0,
    repeat: int = 0,
) -> journal_events.RunEnded:
    fault = None if verdict is FINE else Fault("KeyError", "'a'", ("KeyError",))
    return journal_events.RunEnded(
        run=number,
        cell_id=f"id{at}",
        index=at,
        step=key if isinstance(key, int) else None,
        source_hash=hash_source(source),
        started_at=AT,
        duration_s=0.1,
        outcome=Outcome.ERROR if fault else Outcome.OK,
        verdict=verdict,
        fault=fault,
        key=key,
        repeat=repeat,
    )


def state(*happened: journal_events.Event) -> State:
    state = State()
    steps = tuple(Step(number, f"step {number}") for number in (1, 2))
    for event in (
        journal_events.PlanChanged(plan=plan.to_json(Plan("p", steps))),
        *happened,
    ):
        journal_reducer.apply(event, state)
    return state


STOP = journal_events.Stopped(
    key=1, cell_id="id0", block="❌", error="MemoryError: no room"
)
PREFLIGHT_FAILED = journal_events.PreflightFailed(
    **{
        name: value
        for name, value in vars(run(0, FIXABLE)).items()
        if name in Run.__dataclass_fields__
    }
)
TWO_CELLS = [cell(0), cell(1)]


@pytest.mark.parametrize(
    ("happened", "written", "consent", "limits", "new", "do", "why"),
    [
        ((), cell(1), GIVEN, Limits(), True, CellAction.RUN, ""),
        ((), cell(1, " "), GIVEN, Limits(), True, CellAction.NOTHING, ""),
        ((), cell(1, kind="markdown"), GIVEN, Limits(), True, CellAction.NOTHING, ""),
        (
            (),
            cell(1, tags=("skip-execution",)),
            GIVEN,
            Limits(),
            True,
            CellAction.NOTHING,
            "",
        ),
        ((), cell(1), WITHHELD, Limits(), True, CellAction.WAIT, "plan mode"),
        ((), cell(1), ASKED, Limits(), True, CellAction.RUN, ""),
        (
            (),
            cell(1),
            ASKED,
            Limits(auto_run="ask"),
            True,
            CellAction.WAIT,
            "`auto_run` is `ask`",
        ),
        ((), cell(1), GIVEN, Limits(auto_run="ask"), True, CellAction.RUN, ""),
        (
            (STOP,),
            cell(1),
            GIVEN,
            Limits(),
            True,
            CellAction.REFUSE,
            "MemoryError: no room",
        ),
        ((STOP,), cell(1), WITHHELD, Limits(), True, CellAction.WAIT, "plan mode"),
        (
            (STOP, journal_events.Continued()),
            cell(1),
            GIVEN,
            Limits(),
            True,
            CellAction.RUN,
            "",
        ),
        (
            (run(1, FIXABLE),),
            cell(1),
            GIVEN,
            Limits(),
            True,
            CellAction.REFUSE,
            "is not fixed",
        ),
        ((run(1, FIXABLE),), cell(1), GIVEN, Limits(), False, CellAction.RUN, ""),
        (
            (run(1, FIXABLE), run(2, FINE)),
            cell(1),
            GIVEN,
            Limits(),
            True,
            CellAction.RUN,
            "",
        ),
        (
            (),
            cell(1),
            GIVEN,
            Limits(max_cells=1),
            True,
            CellAction.REFUSE,
            "2 code cells exceed the limit of 1",
        ),
        ((), cell(1), GIVEN, Limits(max_cells=1), False, CellAction.RUN, ""),
    ],
)
def test_decision_before_a_run(
    happened, written, consent, limits, new, do: CellAction, why: str
) -> None:
    run_state = state(*happened)
    decided = run_decisions.decide_on_written_cell(
        run_state, [cell(0), written], written, consent, lambda: limits, is_new=new
    )
    assert decided.action is do
    assert why in decided.reason and bool(why) == bool(decided.reason)


@pytest.mark.parametrize(
    ("happened", "source", "repeats"),
    [
        ((run(1, FIXABLE),), "x", True),
        ((run(1, FIXABLE),), "y", False),
        ((run(1, NET),), "x", False),
        ((run(1, FIXABLE), journal_events.ScratchExecuted()), "x", False),
        ((run(1, FIXABLE), run(2, FINE, key="id1", at=1)), "x", False),
        ((run(1, FIXABLE), journal_events.Fixed(key=1)), "x", False),
    ],
)
def test_decision_for_a_repeated_failure(happened, source: str, repeats: bool) -> None:
    written = cell(0, source)
    decided = run_decisions.decide_on_written_cell(
        state(*happened), [written], written, GIVEN, Limits, is_new=False
    )
    assert (
        run_decisions.decide_on_written_cell(
            state(*happened),
            [written],
            written,
            GIVEN,
            Limits,
            is_new=False,
            is_only_cell=False,
        ).repeats
        is None
    )
    assert decided.action is CellAction.RUN
    assert (decided.repeats is not None) == repeats


@pytest.mark.parametrize(
    ("happened", "written", "limits", "expected"),
    [
        ((), cell(0), Limits(), True),
        ((), cell(0), Limits(preflight=False), False),
        ((), cell(0, tags=("raises-exception",)), Limits(), False),
        (
            (PREFLIGHT_FAILED,),
            cell(0),
            Limits(),
            False,
        ),  # written once more as it was, it runs
        ((PREFLIGHT_FAILED,), cell(0, "y"), Limits(), True),
    ],
)
def test_when_the_preflight_check_runs(
    happened, written: Cell, limits: Limits, expected: bool
) -> None:
    assert (
        run_decisions.decide_on_written_cell(
            state(*happened), [written], written, GIVEN, lambda: limits, is_new=False
        ).needs_preflight
        == expected
    )


def test_decision_changes_no_state() -> None:
    run_state = state()
    run_decisions.decide_on_written_cell(
        run_state, TWO_CELLS, TWO_CELLS[1], GIVEN, Limits, is_new=True
    )
    run_decisions.make_run_parameters(run_state, TWO_CELLS, TWO_CELLS[1], Limits())
    assert (
        vars(run_state) == vars(state()) | {"progress": run_state.progress}
        and "id1" not in run_state.progress
    )


@pytest.mark.parametrize(
    ("happened", "ended", "act", "attempts", "note"),
    [
        ((), run(1, FINE), NextAction.CONTINUE, 0, ""),
        ((), run(1, FIXABLE), NextAction.FIX, 0, ""),
        ((run(1, FIXABLE),), run(2, FIXABLE), NextAction.FIX, 1, ""),
        (
            (run(1, FIXABLE),),
            run(2, FIXABLE, "y"),
            NextAction.FIX,
            1,
            "`KeyError: 'a'` occurred for the second time, with 2 versions of the source",
        ),
        (
            [run(n, FIXABLE) for n in range(1, 4)],
            run(4, FIXABLE),
            NextAction.STOP,
            3,
            "",
        ),
        ((), run(1, NET), NextAction.RETRY, 0, ""),
        ((run(1, NET),), run(2, NET, repeat=3), NextAction.STOP, 0, ""),
        ((), run(1, BAD), NextAction.STOP, 0, ""),
        ((run(1, FIXABLE),), run(2, Verdict.CANCELLED), NextAction.CONTINUE, 0, ""),
    ],
)
def test_decision_after_a_run(
    happened, ended: journal_events.RunEnded, act: NextAction, attempts: int, note: str
) -> None:
    follows = run_decisions.decide_after_run(state(*happened), ended, Limits())
    assert (follows.action, follows.attempts, [*follows.notes]) == (
        act,
        attempts,
        [note] if note else [],
    )


def test_note_on_the_twenty_first_error() -> None:
    earlier = [run(number, FIXABLE) for number in range(1, 21)]
    (note,) = repeated_errors.note_same_error(state(*earlier), run(21, FIXABLE, "y"))
    assert "occurred for the 21st time" in note


@pytest.mark.parametrize(
    ("happened", "act", "attempts", "counts"),
    [
        ((), NextAction.FIX, 0, False),
        ((PREFLIGHT_FAILED, PREFLIGHT_FAILED), NextAction.FIX, 1, True),
        (
            (PREFLIGHT_FAILED, PREFLIGHT_FAILED, run(1, FIXABLE)),
            NextAction.FIX,
            0,
            False,
        ),  # only three in a row count
        ((run(1, FINE), PREFLIGHT_FAILED, PREFLIGHT_FAILED), NextAction.FIX, 1, True),
        (
            [
                *(run(n, FIXABLE) for n in range(1, 4)),
                PREFLIGHT_FAILED,
                PREFLIGHT_FAILED,
            ],
            NextAction.STOP,
            3,
            True,
        ),
        ([run(n, FIXABLE) for n in range(1, 5)], NextAction.FIX, 3, False),
    ],
)
def test_decision_after_a_cell_that_did_not_run(
    happened, act: NextAction, attempts: int, counts: bool
) -> None:
    run_state = state(*happened)
    follows = run_decisions.decide_after_preflight(
        run_state, PREFLIGHT_FAILED, Limits()
    )
    assert (follows.action, follows.attempts, follows.counts) == (act, attempts, counts)
    journal_reducer.apply(PREFLIGHT_FAILED, run_state)
    assert run_state.get_or_add_progress(1).attempts == attempts


def test_automatic_verify_depends_on_the_existing_cells_only() -> None:
    finished = state(run(1, FINE), run(2, FINE, key=2, at=1))
    limits = Limits(verify="auto", verify_seconds=0.15)
    assert not run_decisions.should_verify(finished, limits, TWO_CELLS)
    assert run_decisions.should_verify(finished, limits, TWO_CELLS[:1])
    assert not run_decisions.should_verify(finished, limits, [cell(0, "changed")])
    assert not run_decisions.should_verify(finished, Limits(), TWO_CELLS[:1])


def test_run_settings_of_a_cell() -> None:
    run_state = state(
        run(1, FIXABLE, "a"), run(2, FIXABLE, "b"), run(3, FINE, key="id1", at=1)
    )
    written = cell(0, "a")
    task = run_decisions.make_run_parameters(
        run_state, [written, cell(1)], written, Limits()
    )
    assert (task.key, task.timeout) == (1, 30)
    assert task.notes == (
        "out of order: this cell ran after cell 2, which is below it",
        "this source is the same as in run 1 (KeyError: 'a')",
    )
    run_parameters = run_decisions.make_run_parameters(
        run_state,
        [],
        cell(2, '# stepper: timeout=48h scratch x wake="loss.*nan"'),
        Limits(),
    )
    assert (run_parameters.timeout, run_parameters.wake) == (86400, "loss.*nan")
    assert (
        run_decisions.make_run_parameters(
            run_state, [], cell(2, "# stepper: timeout=none"), Limits()
        ).timeout
        == 86400
    )
    run_state.plan = replace(
        run_state.plan,
        steps=tuple(replace(step, long=True) for step in run_state.plan.steps),
    )
    assert (
        run_decisions.make_run_parameters(
            run_state, [], written, Limits(max_cell_timeout_seconds=7200)
        ).timeout
        == 7200
    )
    assert (
        run_decisions.make_run_parameters(
            run_state, [], cell(0, "# stepper: step=1 timeout=10m"), Limits()
        ).timeout
        == 600
    )
    assert (
        run_decisions.make_run_parameters(
            run_state, [], cell(0, "# stepper: scratch"), Limits()
        ).timeout
        == 30
    )


@pytest.mark.parametrize("kind", sorted(journal_events.EVENT_CLASSES))
def test_journal_event_round_trip(kind: str) -> None:
    lines = {
        "kernel": {"what": "started", "kernel": "k", "pid": 1, "at": AT},
        "start": {
            "run": 1,
            "key": 1,
            "at": AT,
            "tool_use_id": None,
            "request": "r",
            "timeout": 30,
            "cell_id": "a",
            "number": 1,
            "index": 0,
            "source": "x",
            "tags": ["t"],
            "kernel": "k",
        },
        "late": {
            "at": AT,
            "cell_id": "a",
            "source_hash": "h",
            "characters": 1,
            "shows": 0,
            "updates": 0,
            "left_out": [0, 0, 0],
            "displays": {"d": [1]},
            "there": True,
        },
        "unwritten": {
            "run": 1,
            "cell_id": "a",
            "number": 1,
            "source": "x",
            "step": None,
            "outputs": [{}],
            "execution_count": 1,
            "timings": {},
        },
        "written": {"run": 1, "cell_id": "a", "why_not": None},
        "unheard": {"at": AT, "text": "t"},
        "handed": {"at": AT, "call": "t", "session": "s"},
        "told": {"at": AT, "call": "t"},
        "void": {"run": 1, "tool_use_id": "t"},
        "agent_wrote": {"at": AT, "marks": ["a", "h"]},
        "report": {"run": 1, "text": "t"},
        "stop": {"at": AT, "key": None, "cell_id": "", "block": "b"},
        "scratch": {
            "at": AT,
            "source": "x",
            "outcome": "ok",
            "duration_s": 0.1,
            "fault": None,
        },
        "plan": {"at": AT, "plan": {"problem": "p", "steps": []}},
        "renamed": {"at": AT, "former": "a.ipynb"},
        "fix": {"at": AT, "key": 1},
        "skip": {"at": AT, "key": "a", "reason": "r"},
        "reopen": {"at": AT, "key": 1},
        "confirm": {"at": AT, "key": 1, "reason": "r"},
        "verified": {"at": AT, "reproduces": True, "sources": "h", "text": "2 of 2"},
        "undone": {
            "at": AT,
            "run": 3,
            "kernel": "k",
            "cell_id": "a",
            "runs": [1],
            "restored": {"x": [2, 1]},
        },
        "elsewhere": {
            "at": AT,
            "after": 1,
            "kernel": "k",
            "code": "x = 1",
            "duration_s": 0.1,
            "bound": {"x": "p"},
        },
    }
    fault = {
        "ename": "E",
        "evalue": "e",
        "mro": ["E"],
        "line": 1,
        "frames": [
            {"cell": 1, "line": 1, "function": "f", "context": [[1, "x"]], "file": ""}
        ],
        "attributes": {"n": 1},
        "traceback": "",
        "chain": [["h", "E", "e"]],
        "suggestion": "",
    }
    ended = {
        "run": 1,
        "cell_id": "a",
        "number": 1,
        "index": 0,
        "step": None,
        "source_hash": "h",
        "started_at": AT,
        "duration_s": 0.1,
        "outcome": "error",
        "verdict": "recoverable",
        "fault": fault,
        "kernel": "k",
        "tool_use_id": None,
        "key": "a",
    }
    lines["run"] = {
        **ended,
        "repeat": 0,
        "execution_count": 1,
        "displays": {"d": [0]},
        "left_out": [1, 0, 0],
        "request": "r",
    }
    lines["held"] = {**ended, "at": AT}
    line = {"event": kind, **lines.get(kind, {"at": AT})}
    event = journal_events.parse_event(line)
    assert event is not None
    written = orjson.loads(orjson.dumps(event.to_json()))
    assert (written, list(written)) == (line, list(line))


@pytest.mark.parametrize("names", [(), ("x",), None])
def test_empty_names_differ_from_unknown_names(names: tuple[str, ...] | None) -> None:
    for event in (
        journal_events.ScratchExecuted(at=AT, rebound=names),
        journal_events.RunsUndone(at=AT, names=names),
    ):
        line = orjson.loads(orjson.dumps(event.to_json()))
        assert journal_events.parse_event(line) == event


@pytest.mark.parametrize(
    "line",
    [
        {"event": "stop"},
        {"event": "stop", "key": [], "cell_id": "a", "block": ""},
        {"event": "stop", "key": 1, "cell_id": "a", "block": 3},
        {"event": "report", "run": "1", "text": ""},
        {"event": "fix", "at": "yesterday"},
        {"event": "fix", "at": "2026-01-01T00:00:00"},
        {"event": "scratch", "outcome": "fine"},
        {"event": "scratch", "fault": {"ename": "E"}},
        {"event": "start", "run": 1, "key": 1, "at": AT, "cell_id": "a", "tags": "t"},
    ],
)
def test_invalid_journal_event_is_rejected(line: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        journal_events.parse_event(line)


@pytest.mark.parametrize(
    ("cell_id", "after", "source", "expected"),
    [
        ("id1", None, "y", "id1"),
        ("id1", None, "x", "id0"),  # only another cell has the written source
        ("id9", None, "x", None),
        (None, "id0", "y", "id1"),
        (None, None, "x", "id0"),
        (None, "id1", "z", None),
        (None, "id9", "z", None),  # the cell above was deleted
    ],
)
def test_edited_cell(cell_id, after, source: str, expected: str | None) -> None:
    cells = [cell(0, "x"), cell(1, "y")]
    edit = CellEdit("a.ipynb", cell_id, after, "code", "x", source, None, "", GIVEN)
    edited_cell = plan.find_edited_cell(cells, edit)
    assert (edited_cell.id if edited_cell else None) == expected


def test_cell_with_two_keys_is_found_in_the_order_of_the_plan() -> None:
    current = state(run(1, FINE, key="id0"), run(2, FINE, key=2), run(3, FINE, key=1))
    assert list(current.progress) == ["id0", 2, 1]
    assert current.find_cell_key("id0") == 1
    assert state(run(1, FINE, key="id0")).find_cell_key("id0") == "id0"
    assert current.find_cell_key("id1") is None


def make_failed_preflight(call_id: str | None) -> journal_events.PreflightFailed:
    failed = vars(run(0, FIXABLE))
    names = {field.name for field in fields(journal_events.PreflightFailed)}
    values = {name: value for name, value in failed.items() if name in names}
    return journal_events.PreflightFailed(
        **{**values, "at": AT, "tool_use_id": call_id}
    )


def test_report_without_a_run_belongs_to_one_call() -> None:
    events = [
        make_failed_preflight("call-1"),
        journal_events.RunReported(run=0, text="first"),
    ]
    journal = make_journal(events)
    report = journal.take_report("call-1")
    assert report is not None and report.text == "first"
    assert journal.take_report("call-2") is None
    assert journal.take_report(None) is None
    # The daemon exited before it reported the second check.
    journal = make_journal([*events, make_failed_preflight("call-2")])
    assert journal.take_report("call-1") is None
    assert journal.take_report("call-2") is None


def make_journal(events: list[journal_events.Event]) -> NotebookJournal:
    file = SimpleNamespace(load=lambda: ([event.to_json() for event in events], ""))
    return NotebookJournal(file, Notices(), lambda source: NameUsage(), print)


def test_cancelled_request_does_not_keep_the_turn() -> None:
    async def cancel_while_waiting(yields: int) -> None:
        queue = RequestQueue()
        await queue.acquire()
        waiting = asyncio.create_task(queue.acquire(Caller()))
        await run_pending_tasks()
        queue.release()
        for _ in range(yields):
            await asyncio.sleep(0)
        was_done = waiting.done()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        await run_pending_tasks()
        assert queue.is_locked == was_done

    for yields in range(6):
        asyncio.run(cancel_while_waiting(yields))


def test_cell_of_a_disconnected_caller_is_not_retried() -> None:
    async def wait_after_disconnecting() -> bool:
        caller = Caller()
        caller.disconnected.set()
        return await RequestQueue().wait_for_retry(0.01, caller)

    assert not asyncio.run(wait_after_disconnecting())


def test_cancelled_request_leaves_the_queue() -> None:
    async def cancel_before_the_turn() -> None:
        queue = RequestQueue()
        await queue.acquire()
        waiting = asyncio.create_task(queue.acquire(Caller()))
        await run_pending_tasks()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        queue.release()
        await run_pending_tasks()
        assert not queue.is_locked

    asyncio.run(cancel_before_the_turn())


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("", "because the cell has since been changed or deleted"),
        ("a.ipynb is not valid JSON", "because a.ipynb is not valid JSON"),
    ],
)
def test_dropped_late_output_is_reported_with_its_reason(
    problem: str, reason: str
) -> None:
    event = journal_events.LateOutput(
        cell_id="a",
        source_hash="",
        characters=4,
        shows=0,
        updates=0,
        left_out=OmittedOutput(),
        displays={},
        there=False,
        why=problem,
    )
    current = State()
    journal_reducer.apply(event, current)
    cell = Cell("a", 0, 1, "code", "")
    assert command_messages.format_late_outputs(current, [cell]) == [
        f"4 characters arrived for {cell.label} after its run; the notebook was not"
        f" updated, {reason}"
    ]
