"""Criteria that stepper can evaluate, and the effect of their values."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stepper.diagnosis.in_kernel import criterion_check
from stepper.messages import command_messages
from stepper.policy import (
    edit_gate,
    journal_events,
    journal_reducer,
    plan,
    run_decisions,
)
from stepper.policy.execution_result import Execution
from stepper.policy.model import CriterionResult, Limits, Plan, Step, StepStatus
from tests.environments import environment, old_python
from tests.test_kernel_helper import OLD, Lab, text
from tests.test_run_decisions import AT, FINE, FIXABLE, cell, run, state


class TorchType:
    """A dtype as in torch: without a name."""

    def __repr__(self) -> str:
        return "torch.float32"


TorchType.__module__ = "torch"
TorchType.__qualname__ = TorchType.__name__ = "dtype"


def test_dtype_of_torch_is_converted_to_its_text() -> None:
    assert criterion_check.to_python_value(TorchType()) == "torch.float32"


SET_UP = """
import numpy as np, pandas as pd, gc, weakref
ran = []
class Evil:
    def __getattr__(self, name): ran.append(name); raise AttributeError(name)
    def __hash__(self): ran.append("hash"); return 1
    p = property(lambda self: ran.append("p"))
for name in ("eq", "ne", "lt", "gt", "len", "bool", "contains", "getitem", "iter", "call", "float", "index", "sub", "array"):
    def method(self, *given, name=name, **named): ran.append(name); return 1
    setattr(Evil, f"__{name}__", method)
class Model: pass
class Mine(pd.DataFrame):
    @property
    def shape(self): ran.append("shape"); return 0, 0
model, evil, mine = Model(), Evil(), Mine({"a": [1]})
model.score, model.best = 0.85, {"test": np.float64(0.7)}
score, n, rows, text, nothing, flag, listed, keyed = 0.85, 3, [1, 2, 3], "abc", None, True, [evil], {evil: 1}
acc, arr, series = np.float32(0.5), np.arange(6).reshape(2, 3), pd.Series([1, 2, 3])
df = pd.DataFrame({"price": [1.0, 2, None], "n": [1, 2, 3], "title": ["a", "b", "c"]})
odd = pd.DataFrame({"a": [evil, evil]})
typed = pd.DataFrame({"dtype": [1, 2]})
counts = pd.Series({"kind": 1}, name="three")
labelled = pd.Series([1, 2], index=[evil, "a"])
ran.clear()
"""
TRUE = """
score > 0.8
`score > 0.8`
0.5 < score <= 0.85
abs(score - 0.85) < 0.01 and round(score, 1) == 0.8
score >= 0.9 or n == 3
model.score > 0.8
model.best["test"] > 0.6
acc >= 0.5
n * 2 == 6 and n / 2 == 1.5
rows == [1, 2, 3]
len(rows) == n and sum(rows) == 6 and 2 in rows
"b" in text
nothing is None
df is not None
df.shape == (3, 3)
df.shape[0] == n
len(df) > 0
not df.empty
"price" in df.columns
"cost" not in df
list(df.columns) == ["price", "n", "title"]
{"n", "price"} != set(df.columns)
df["n"].dtype == "int64" and counts["kind"] == 1
df.n.sum() == 6
df["n"].max() == 3
df["price"].isna().sum() == 1
df.n.notna().all()
(df["n"] > 0).all()
(typed > 0).all().all()
arr.shape == (2, 3) and arr.sum() == 15
series.mean() == 2
np.pi > 3
"""
FALSE = """
score > 0.9
df.shape[0] == 500
"cost" in df.columns
df.isna().sum().sum() == 0
(df["n"] > 1).all()
not flag
nothing is not None
score == float
"""
UNKNOWN = """
unknown > 1
score > "a"
2 ** 10 ** 10 > 1
max(score, evil) == 1
print(1) is None
ran.append(1) is None
df.to_csv("there") is None
df["nope"].sum() == 1
odd["a"].sum() == 1
(odd["a"] == 1).all()
[x for x in rows] == rows
evil > 1
evil - 1 > 1
len(evil) == 1
evil.p == 1
evil.q == 1
evil["a"] == 1
evil() == 1
1 in evil
1 in listed
1 in keyed
keyed[1] == 1
labelled.total == 3
"x" in labelled
labelled["a"] == 1
labelled.loc["a"] == 1
evil in rows
not evil
evil and flag
sum(listed) == 1
mine.shape == (0, 0)
len(mine) == 0
flag and df > 1
counts == "three"
"""
LABS = ["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)]


@pytest.fixture(scope="module", params=LABS)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    python = old_python() if request.param == "Python 3.9" else ""
    if request.param == "Python 3.9" and not python:
        pytest.skip("there is no Python 3.9 on this machine")
    lab = Lab(
        environment(python, *OLD)
        if python
        else environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4")
    )
    lab.ok(SET_UP)
    yield lab
    lab.close()


def run_with_criterion(lab: Lab, criterion: str, code: str = "pass") -> Execution:
    parsed_criterion = plan.parse_criterion(criterion)
    assert parsed_criterion, criterion
    return lab.loop.run_until_complete(
        lab.kernel.execute(code, 30, Limits(), criterion=parsed_criterion)
    )


def list_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize(
    ("criteria", "expected"), [(TRUE, True), (FALSE, False), (UNKNOWN, None)]
)
def test_kernel_evaluates_a_criterion(
    lab: Lab, criteria: str, expected: bool | None
) -> None:
    values = {
        item: (run_with_criterion(lab, item).diagnosis_data.get("criterion") or {}).get(
            "holds"
        )
        for item in list_lines(criteria)
    }
    if expected is False:
        assert values.pop("score == float") is None  # not a user's name
    assert {
        item: value for item, value in values.items() if value is not expected
    } == {}


def test_criterion_check_runs_no_user_code_and_keeps_no_references(lab: Lab) -> None:
    assert lab.value("ran") == []
    result = run_with_criterion(
        lab,
        "new.score > 1 and frame.a.sum() == 0",
        "new, frame = Model(), pd.DataFrame({'a': [1]}); new.score = 2",
    )
    assert result.diagnosis_data["criterion"] == {
        "holds": False,
        "values": [["new.score", "2"], ["frame.a.sum()", "1"]],
    }
    assert result.outputs == []
    lab.ok("gc.disable(); looks = weakref.ref(new), weakref.ref(frame); del new, frame")
    assert lab.value("[look() is None for look in looks]") == [True, True]
    result = run_with_criterion(
        lab, "series[5:].mean() > 1 or empty.mean() > 1", "empty = np.array([0.0])[1:]"
    )
    assert result.outputs == []  # numpy warns about the mean of an empty array
    assert "ran" in text(lab.ok("gc.enable(); print('ran')"))


def test_literals_are_not_listed_as_values(lab: Lab) -> None:
    result = run_with_criterion(lab, "score > -1")
    ((expression, _),) = result.diagnosis_data["criterion"]["values"]
    assert expression == "score"


def test_criterion_is_checked_only_on_request_after_success(lab: Lab) -> None:
    assert "criterion" not in lab.ok("score = 0.5").diagnosis_data
    assert (
        run_with_criterion(lab, "score > 0.9", "score = 0.95").diagnosis_data[
            "criterion"
        ]["holds"]
        is True
    )
    assert (
        "criterion"
        not in run_with_criterion(
            lab, "score > 0.9", "score = 0.1; 1 / 0"
        ).diagnosis_data
    )
    # not Python's `len`
    assert (
        run_with_criterion(lab, "len(df) == 3", "len = None").diagnosis_data.get(
            "criterion"
        )
        is None
    )
    lab.ok("del len")
    lab.ok("score = 0.85")  # as in the other criteria, which can run later


@pytest.mark.parametrize(
    "prose",
    [
        "",
        "3 rows",
        "rows are there",
        "accuracy >= 90%",
        "the mean is about 5",
        "no NaN",
        "plot",
        "score",
        "it's done",
        "it is good",
        "n is 3",
        "n is 1",
        "this is not x",
        "a > b, roughly",
        "rows > 0; no gaps",
        "x = 1",
        "(",
        "\0",
        "lambda: 0",
        "rows > 100 and columns are named",
    ],
)
def test_criterion_in_prose_is_not_evaluated(prose: str) -> None:
    assert plan.parse_criterion(prose) == ""


@pytest.mark.parametrize(
    "criterion",
    [
        "title == 'what is new'",
        "label == '≥ 5'",
        "x is None and y is not True",
        "len(x) > 3",
    ],
)
def test_expression_is_evaluated_as_written(criterion: str) -> None:
    assert plan.parse_criterion(criterion) == criterion


@pytest.mark.parametrize(
    ("criterion", "problem"),
    [
        (
            "score = 3",
            "the criterion `score = 3` has `=`; to compare, write `score == 3`",
        ),
        ("`len(df) = 100`", "to compare, write `len(df) == 100`"),
        ("a > 1 and b = 2", "to compare, write `a > 1 and b == 2`"),
        ("df.dropna(axis=0).size = 5", "write `df.dropna(axis=0).size == 5`"),
        ("x = f(a=1) and y = 'b=c'", "write `x == f(a=1) and y == 'b=c'`"),
        ("score >", "the criterion `score >` ends with `>`: nothing is compared with"),
        ("len(df) ≥", "ends with `>=`"),
        ("score =", "ends with `=`"),
    ],
)
def test_invalid_criterion_is_refused_when_the_plan_is_created(
    criterion: str, problem: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        plan.parse_step(1, f"Train :: {criterion}")
    with pytest.raises(ValueError, match=re.escape(problem)):
        plan.make_checked_step(1, "Train", criterion)
    # an existing plan with such a criterion is kept
    settings = {
        "problem": "p",
        "steps": [{"id": 1, "title": "T", "criterion": criterion}],
    }
    assert plan.from_json(settings) is not None


@pytest.mark.parametrize(
    "criterion",
    [
        *(
            "score > 0.9",
            "f(x=1)",
            "x == 1",
            "a <= b",
            "the error is < 3 %",
            "n = 100 rows",
        ),
        *(
            "mean = median, as expected",
            "->",
            "",
            "x != y",
            "rows >= 100 and no NaN",
            "=>",
        ),
    ],
)
def test_prose_and_comparisons_are_accepted(criterion: str) -> None:
    assert plan.parse_step(1, f"Train :: {criterion}").criterion == criterion


def test_math_symbols_and_code_spans_are_parsed() -> None:
    assert plan.parse_criterion("`0 ≤ score ≠ 1`") == "0 <= score != 1"


def make_run_started(source: str = "x") -> journal_events.RunStarted:
    return journal_events.RunStarted(run=1, key=1, at=AT, cell_id="id0", source=source)


FALSE_ONE = CriterionResult(False, (("score", "0.85"),))


def make_unmet_run(number: int = 1, source: str = "x") -> journal_events.RunEnded:
    return journal_events.RunEnded(
        **{
            **vars(run(number, FINE, source)),
            "unmet": "`score > 0.9` is false: score is 0.85",
        }
    )


def test_false_criterion_leaves_the_step_open() -> None:
    run_state = state()
    assert (
        run_decisions.explain_false_criterion(
            run_state, make_run_started(), "score > 0.9", None
        )
        == ""
    )
    assert (
        run_decisions.explain_false_criterion(
            run_state, make_run_started(), "score > 0.9", CriterionResult(True)
        )
        == ""
    )
    assert (
        run_decisions.explain_false_criterion(
            run_state, make_run_started(), "score > 0.9", FALSE_ONE
        )
        == make_unmet_run().unmet
    )
    journal_reducer.apply(make_unmet_run(), run_state)
    assert (
        run_state.get_or_add_progress(1).status,
        run_state.get_or_add_progress(1).attempts,
        run_state.find_open_step(),
        run_state.is_complete,
    ) == (
        StepStatus.CRITERION_FALSE,
        0,
        run_state.plan.steps[0],
        False,
    )
    assert (
        plan.find_step_id(run_state, [cell(0)], cell(0)) == 1
        and plan.find_failed_cell(run_state, [cell(0)], 1) is None
    )
    assert (
        "? 1. step 1  (`score > 0.9` is false: score is 0.85)"
        in command_messages.format_plan(run_state)[0]
    )
    assert (
        '(its criterion is false: replace its cell, or run `stepper confirm "REASON"`)'
        in command_messages.format_next(run_state)
    )
    with pytest.raises(ValueError, match="has already run"):
        plan.remove_step(run_state, 1)


def test_later_steps_may_run_after_a_false_criterion() -> None:
    run_state, new = state(make_unmet_run()), cell(1)
    # of the next step: the step with the warning has its cell
    assert plan.find_step_id(run_state, [cell(0), new], new) == 2
    # its cell was deleted
    assert plan.find_step_id(run_state, [cell(2), new], new) == 1
    assert edit_gate.check_failed_step(run_state, [cell(0), new], 2) is None
    journal_reducer.apply(run(2, FIXABLE, key=2, at=1), run_state)
    assert "is not fixed" in (
        edit_gate.check_failed_step(run_state, [cell(0), new], 2) or ""
    )
    journal_reducer.apply(run(3, FINE, key=2, at=1), run_state)
    assert run_state.find_open_step() is run_state.plan.steps[0]
    assert not run_state.is_complete
    journal_reducer.apply(journal_events.Confirmed(key=1, reason="enough"), run_state)
    assert run_state.is_complete


@pytest.mark.parametrize(
    ("actions", "status", "reason"),
    [
        ([run(2, FINE, "y")], StepStatus.DONE, ""),
        ([make_unmet_run(2, "y")], StepStatus.CRITERION_FALSE, make_unmet_run().unmet),
        ([run(2, FIXABLE, "y")], StepStatus.FAILED, ""),
        ([journal_events.Confirmed(key=1, reason="enough")], StepStatus.DONE, "enough"),
        (
            [journal_events.Confirmed(key=1, reason="enough"), run(2, FINE)],
            StepStatus.DONE,
            "enough",
        ),  # the same source again
        (
            [journal_events.Confirmed(key=1, reason="enough"), run(2, FINE, "y")],
            StepStatus.DONE,
            "",
        ),
        (
            [journal_events.Skipped(key=1, reason="no"), run(2, FINE)],
            StepStatus.DONE,
            "",
        ),
    ],
)
def test_false_criterion_warning_is_resolved(
    actions: list[Any], status: StepStatus, reason: str
) -> None:
    run_state = state(make_unmet_run(), *actions)
    assert (
        run_state.get_or_add_progress(1).status,
        run_state.get_or_add_progress(1).reason,
    ) == (
        status,
        reason,
    )


def test_confirmed_criterion_is_not_checked_again_for_same_source() -> None:
    run_state = state(
        make_unmet_run(), journal_events.Confirmed(key=1, reason="enough")
    )
    assert (
        run_decisions.explain_false_criterion(
            run_state, make_run_started(), "score > 0.9", FALSE_ONE
        )
        == ""
    )
    assert (
        run_decisions.explain_false_criterion(
            run_state, make_run_started("y"), "score > 0.9", FALSE_ONE
        )
        != ""
    )


def test_only_the_criterion_of_the_step_is_requested() -> None:
    run_state, steps = state(), (Step(1, "a", "x > 1"), Step(2, "b", "it is good"))
    journal_reducer.apply(
        journal_events.PlanChanged(plan=plan.to_json(Plan("p", steps))), run_state
    )
    criteria = [
        run_decisions.make_run_parameters(
            run_state, [], cell(0, source), Limits()
        ).criterion
        for source in ("x", "# stepper: step=2\nx", "# stepper: scratch\nx")
    ]
    assert criteria == ["x > 1", "", ""]
