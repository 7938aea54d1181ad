"""The cases and the comparison of benchmarks/state_restore.py."""

from __future__ import annotations

import ast
import collections
import sys

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from benchmarks.state_restore import (
    State,
    create_project,
    find_names_not_restored,
    find_names_restored,
    find_unseeded_settings,
    is_named,
    judge,
    run_case,
)
from tests.state_changes import InvalidCaseError, load_cases, parse_case, state_dump


def describe(source: str) -> tuple[dict[str, list[str]], list[str]]:
    names = {"__name__": "__main__"}
    exec(source, names)
    state_dump.NAMESPACE = names
    state_dump.FOLDER = "/no/such/folder"
    document = state_dump.describe_names()
    return document["names"], document["aliases"]


def test_there_are_enough_cases_with_unique_names() -> None:
    cases = load_cases()
    assert len(cases) >= 300
    counts = collections.Counter((case.topic, case.name) for case in cases)
    assert [name for name, count in counts.items() if count > 1] == []


def test_every_cell_compiles() -> None:
    transformer = TransformerManager()
    for case in load_cases():
        for source in (*case.setup, case.cell, case.second, *case.below, case.retry):
            code = transformer.transform_cell(source)
            compile(code, case.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


def test_an_unknown_key_or_action_is_an_error() -> None:
    entry = {"name": "x", "setup": "1", "cell": "2", "retry": "3"}
    assert parse_case("topic", entry).replayed_cells == ("1", "3")
    with pytest.raises(InvalidCaseError, match=r"topic: x: .*'reset'"):
        parse_case("topic", {**entry, "reset": True})
    with pytest.raises(InvalidCaseError, match="unknown action 'undo'"):
        parse_case("topic", {**entry, "action": "undo"})


PAIRS = [
    ("x = 1", "x = True"),
    ("x = 1", "x = 1.0"),
    ("x = [1]", "x = (1,)"),
    ("x = {'a': 1, 'b': 2}", "x = {'b': 2, 'a': 1}"),
    ("x = [1]; y = x", "x = [1]; y = [1]"),
    ("x = [[0]]; y = x[0]", "x = [[0]]; y = [0]"),
    ("x = {1}", "x = {1.0}"),
    ("x = {1}", "x = frozenset({1})"),
    ("x = iter([1, 2])", "x = iter([1, 2]); next(x)"),
    ("x = (n for n in [1, 2])", "x = (n for n in [1, 2]); next(x)"),
    ("def f(): return 1", "def f(): return 2"),
    ("def f(a=1): return a", "def f(a=2): return a"),
    ("def f(a=[]): return a", "def f(a=[]): return a\nf().append(1)"),
    ("class C: n = 1", "class C: n = 2"),
    ("class C: n = 1\nc = C()", "class C: n = 1\nc = C()\nclass C: n = 1"),
    ("class C: pass\nc = C(); c.n = 1", "class C: pass\nc = C(); c.n = 2"),
    ("import io; x = io.StringIO('ab')", "import io; x = io.StringIO('ab'); x.read(1)"),
    ("import random; x = random.Random(1)", "import random; x = random.Random(2)"),
    (
        "import functools\n@functools.lru_cache\ndef f(n): return n",
        "import functools\n@functools.lru_cache\ndef f(n): return n\nf(1)",
    ),
    (
        "def m():\n n = [0]\n def f(): return n\n return f\nf = m()",
        "def m():\n n = [0]\n def f(): return n\n return f\nf = m(); f().append(1)",
    ),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_the_description_shows_each_difference(first: str, second: str) -> None:
    assert describe(first) == describe(first)
    assert describe(first) != describe(second)


def test_the_description_changes_nothing() -> None:
    source = "it = iter([1, 2]); gen = (n for n in it); z = zip([1], [2])\n"
    names = {"__name__": "__main__"}
    exec(source, names)
    state_dump.NAMESPACE = names
    state_dump.FOLDER = "/no/such/folder"
    state_dump.describe_names()
    assert next(names["gen"]) == 1
    assert next(names["z"]) == (1, 2)


def make_state(reports: list[str] | None = None, **values: str) -> State:
    names = {name: [value] for name, value in values.items()}
    return State(names, [], {}, ["out"], [], reports or [])


def test_outcomes() -> None:
    assert judge(make_state(a="1"), make_state(a="1"))[0] == "equal"
    assert judge(make_state(a="1"), make_state(a="2"))[0] == "SILENT"
    report = "`b` was restored; not restored: `a` (too large, 2.1 GB; b changed), files"
    assert judge(make_state([report], a="1"), make_state(a="2"))[0] == "named"
    outcome, differences = judge(
        make_state([report], a="1", b="1"), make_state(a="2", b="2")
    )
    assert (outcome, [difference.roots for difference in differences]) == (
        "SILENT",
        [("b",)],
    )
    live = make_state(a="1")
    live.errors.append("KeyError: 'a'")
    assert judge(live, make_state(a="1"))[0] == "failed"
    live = make_state(a="1")
    live.outputs = ["another output"]
    assert judge(live, make_state(a="1"))[0] == "SILENT"
    live.reports.append(report)
    assert judge(live, make_state(a="1"), (), ("b",))[0] == "SILENT"
    assert judge(live, make_state(a="1"), (), ("b", "files"))[0] == "named"


def test_names_in_reports() -> None:
    reports = [
        "Note: before this run, `df`, random numbers were restored; `t` was removed;"
        " not restored: `model` (too large (2 GB); `df` inside), warning filters",
        "Note: not restored before the next version of this cell runs: `gen` (generator)",
        "Note: not restored: `big`. To compute all values again, run: `stepper restore`",
    ]
    text = find_names_not_restored(reports)
    for root in ("model", "warning filters", "gen", "big"):
        assert is_named(root, text)
    for root in ("df", "t", "generator", "restore", "random numbers"):
        assert not is_named(root, text)
    restored = find_names_restored(reports)
    assert is_named("df", restored)
    assert is_named("random numbers", restored)
    assert not is_named("model", restored)


def test_random_numbers_are_compared_if_a_seed_is_set() -> None:
    seeded = find_unseeded_settings(["np.random.seed(0)"])
    assert seeded == {"random numbers", "torch random numbers"}


def test_a_case_without_a_change_is_equal_and_a_wrong_case_is_invalid() -> None:
    case = next(case for case in load_cases() if case.name == "nothing changes")
    wrong = parse_case("topic", {"name": "x", "setup": "1", "cell": "2", "retry": "3"})
    with create_project(sys.executable) as project:
        assert run_case(project, case, 0).outcome == "equal"
        result = run_case(project, wrong, 1)
    assert (result.outcome, "should fail" in result.error) == ("invalid", True)
