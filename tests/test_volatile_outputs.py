"""Outputs with values of the clock or ids, which two fresh runs may show by chance."""

from __future__ import annotations

import pytest

from stepper.policy.comparison.output_items import CellOutputs
from stepper.policy.comparison.thread_order import differ_in_thread_order
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
        ("t = time.time()\nprint(datetime.timedelta(seconds=t))", "9\n", "3\n", True),
        ("print(datetime.now().strftime('%H'))", "09\n", "10\n", True),
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
        # The value of `x` is on the same line.
        ("with a:\n    print(x, end='')\nprint(time.time())", "13\n", "24\n", False),
        ("[print(n, end='') for n in x]\nprint(time.time())", "13\n", "24\n", False),
        ("class A:\n    print(x, end='')\nprint(time.time())", "13\n", "24\n", False),
        ("def f():\n    print(x)\nprint(time.time())", "13\n", "24\n", True),
        ("t = time.time()\nt = 3\nprint(t)", "3\n", "4\n", False),
        ("print(valid(x), 3)", "3 3\n", "4 3\n", False),
        ("print('time()')", "a\n", "b\n", False),
        ("print('%.2f in %.1f s' % (a, time.time()))", "1 in 0\n", "2 in 0\n", False),
        ("print('{} {}'.format(a, time.time()))", "1 0\n", "2 0\n", False),
        ("print({'a': a, 's': time.time()})", "1\n", "2\n", False),
        ("print('a ' + str(time.time()))", "a 1\n", "b 1\n", False),
        ("report(a, time.time())", "1\n", "2\n", False),
        ("print(hash((1, 2)))", "1\n", "2\n", False),
        ("k = secrets.get('k')\nprint(k.count())", "1\n", "2\n", False),
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
    patterns = list_line_patterns("print('seconds:', stop - start)", above)
    assert patterns == ["seconds:\\s*.*"]
    assert list_line_patterns("print('seconds:', stop - n)", above) == []


@pytest.mark.parametrize(
    "source",
    [
        "t = 3",
        "t, u = a",
        "t: float = f()",
        "t += 1",
        "for t in a:\n    pass",
        "with a as t:\n    pass",
        "if a:\n    t = 3",
        "import t",
        "try:\n    f()\nexcept OSError as t:\n    pass",
        "match a:\n    case [t, *_]:\n        pass",
        "match a:\n    case {'b': 1, **t}:\n        pass",
        "from a import b as t",
        "def t(): pass",
        "del t",
        "t = %time f()",
        "a = (1\n    % b)\nt = f()",
    ],
)
def test_name_is_not_volatile_after_another_binding(source: str) -> None:
    above = ["t = time.time()"]
    assert list_line_patterns("print(t)", above) == [".*"]
    assert list_line_patterns("print(t)", [*above, source]) == []


def test_other_variable_of_a_comprehension() -> None:
    assert list_line_patterns("print(sum(t for t in a))", ["t = time.time()"]) == []


START = "Thread(target=f).start()"


@pytest.mark.parametrize(
    ("source", "recorded", "fresh", "differs"),
    [
        (START, "a\nb\n", "b\na\n", True),
        (START, "a\nb\n", "a\nb\n", False),
        (START, "a\nb\n", "ab\n\n", True),
        (START, "ab\n\n", "b\na\n", True),
        (START, "a\nb\n", "b\nc\n", False),
        (START, "a\nb\n", "b\na\na\n", False),
        (START, "0.91\n", "0.19\n", False),
        (START, "a 12\nb 21\n", "a 21\nb 12\n", False),
        ("f()  # a Thread() starts", "a\nb\n", "b\na\n", False),
        ("RandomForestClassifier(n_jobs=4)", "a\nb\n", "b\na\n", False),
    ],
)
def test_thread_order(source: str, recorded: str, fresh: str, differs: bool) -> None:
    outputs = [CellOutputs(make_stream(text)) for text in (recorded, fresh)]
    assert differ_in_thread_order(source, *outputs) is differs
