"""Outputs with values of the clock or ids, which two fresh runs may show by chance."""

from __future__ import annotations

import pytest

from stepper.policy.comparison.nondeterminism import differ_in_thread_order
from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.volatile_outputs import (
    differ_only_in_volatile_values,
    list_line_patterns,
)
from tests.verify.pairs import make_stream

TIMER = "t0 = time.perf_counter()\nmodel = fit(x)\n"


@pytest.mark.parametrize(
    ("source", "recorded", "fresh", "is_volatile"),
    [
        ("print(int(time.time()) % 2)", "0\n", "1\n", True),
        ("print(datetime.datetime.now().second // 30)", "0\n", "1\n", True),
        ("datetime.datetime.now().year", "2020\n", "2026\n", True),
        (f"{TIMER}print(round(time.perf_counter() - t0, 2))", "9.1\n", "3.2\n", True),
        (f"{TIMER}print('took', time.time() - t0)", "took 9\n", "took 3\n", True),
        ("print(f'id {id(model) % 64}')", "id 3\n", "id 4\n", True),
        ("%matplotlib inline\nprint(os.getpid())", "3\n", "4\n", True),
        # The constant text differs.
        ("print('took', time.time())", "took 9\n", "lasts 3\n", False),
        ("print(time.time(), 1)", "9 2\n", "9 1\n", False),
        # Another value is displayed.
        (f"{TIMER}print(model, time.time() - t0)", "9 1\n", "8 1\n", False),
        (f"{TIMER}print(time.time() - t0)\nmodel", "9\n1\n", "9\n2\n", False),
        # `fit` printed a line.
        (f"{TIMER}print(time.time() - t0)", "9\n1\n", "8\n1\n", False),
        # How often a loop runs is not known.
        ("for n in x:\n    print(time.time())", "1\n2\n", "3\n4\n", False),
        ("t = time.time()\nt = 3\nprint(t)", "3\n", "4\n", False),
        ("print(valid(x), 3)", "3 3\n", "4 3\n", False),
        ("print('time()')", "a\n", "b\n", False),
        ("x = 1", "1\n", "2\n", False),
        ("print(", "1\n", "2\n", False),
    ],
)
def test_volatile_values(
    source: str, recorded: str, fresh: str, is_volatile: bool
) -> None:
    outputs = [CellOutputs(make_stream(text)) for text in (recorded, fresh)]
    assert differ_only_in_volatile_values(source, [], *outputs) is is_volatile


def test_volatile_values_of_cells_above() -> None:
    above = ["start = time.time()", "stop = start"]
    assert list_line_patterns("print('seconds:', stop - n)", above) == [
        "seconds:\\s*.*"
    ]
    above.append("stop = 3")
    assert list_line_patterns("print('seconds:', stop - n)", above) == []


@pytest.mark.parametrize(
    ("source", "fresh", "differs"),
    [
        ("Thread(target=f).start()", "b\na\n", True),
        ("Thread(target=f).start()", "a\nb\n", False),
        ("Thread(target=f).start()", "ab\n\n", True),
        ("Thread(target=f).start()", "b\nc\n", False),
        ("f()", "b\na\n", False),
    ],
)
def test_thread_order(source: str, fresh: str, differs: bool) -> None:
    outputs = [CellOutputs(make_stream(text)) for text in ("a\nb\n", fresh)]
    assert differ_in_thread_order(source, *outputs) is differs
