"""The undo of runs in real kernels: facts, restored state, and what is not restored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from stepper.policy.dataflow.binding_table import BindingTable
from stepper.policy.dataflow.name_analysis import analyze_source
from stepper.policy.model import Limits, Outcome
from stepper.policy.undo.undone_runs import list_mentioned_names
from stepper.policy.undo_model import (
    RestoreRequest,
    RestoreResult,
    UndoFacts,
    UndoRequest,
)
from tests.environments import environment, old_python
from tests.test_kernel_helper import OLD, Lab, text

IMPORTS = "import collections, io, os, random, sys, warnings\nimport numpy as np, pandas as pd\n"
MB = 1 << 20


class UndoLab(Lab):
    """A kernel whose runs can be undone."""

    number = 0
    memory = 512 * MB
    seconds = 10.0  # a slow machine needs much more than the usual 15 ms
    output = ""

    def step(
        self,
        code: str,
        undo: list[int] | None = None,
        names: set[str] | None = None,
        outcome: Outcome = Outcome.OK,
    ) -> UndoFacts:
        """Run a cell, after the undo of other runs; return the facts."""
        self.number += 1
        usage = analyze_source(code)
        mentioned = list_mentioned_names(usage, BindingTable().resolve_usage(usage))
        restore = None
        if undo is not None:
            selected = None if names is None else frozenset(names)
            restore = RestoreRequest(tuple(undo), selected, tuple(undo))
        request = UndoRequest(
            self.number, mentioned, self.seconds, self.memory, restore
        )
        result = self.loop.run_until_complete(
            self.kernel.execute(code, 120, Limits(), undo=request)
        )
        assert result.outcome is outcome, result.fault
        assert "swallowed" not in result.diagnosis_data, result.diagnosis_data[
            "swallowed"
        ]
        self.output = text(result)
        assert result.undo is not None
        assert result.undo.run == self.number
        return result.undo

    def show(
        self, probe: str, undo: list[int] | None = None
    ) -> tuple[str, RestoreResult]:
        """Print an expression, after the undo of runs."""
        facts = self.step(f"print({probe})", undo)
        return self.output, facts.restore or RestoreResult()


@pytest.fixture(
    scope="module",
    params=[
        "pandas 3",
        pytest.param("pandas 2", marks=pytest.mark.nightly),
        pytest.param("Python 3.9", marks=pytest.mark.nightly),
    ],
)
def shared_lab(request: pytest.FixtureRequest) -> Iterator[UndoLab]:
    """Kernels with and without pandas' copy-on-write."""
    if request.param == "Python 3.9":
        python = old_python()
        if not python:
            pytest.skip("there is no Python 3.9 on this machine")
        lab = UndoLab(environment(python, *OLD))
    elif request.param == "pandas 2":
        packages = ("ipykernel>=7", "pandas>=2.2,<3", "numpy", "scikit-learn>=1.4,<2")
        lab = UndoLab(environment(sys.executable, *packages))
    else:
        lab = UndoLab(environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4"))
    lab.step(IMPORTS)
    yield lab
    lab.close()


@pytest.fixture
def lab(shared_lab: UndoLab) -> Iterator[UndoLab]:
    """A kernel with the imports and no other names."""
    yield shared_lab
    shared_lab.step("del_me = 1")
    shared_lab.step(
        "for _name in [n for n in globals() if n[0] != '_' and n not in "
        "('In', 'Out', 'exit', 'quit', 'get_ipython', 'open', 'collections', 'io', 'os', 'random', 'sys', 'warnings', 'np', 'pd')]: del globals()[_name]"
    )


FRAME = "df = pd.DataFrame({'a': [1, 2], 'b': [0.5, 1.5], 'c': ['x', 'y']})"
# setup, cell, probe, names that are restored
CASES = {
    "counter": ("n = 1", "n += 1", "n", "n"),
    "append": ("rows = [1]", "rows.append(2)", "rows", "rows"),
    "nested dict": ("cfg = {'a': {'b': 1}}", "cfg['a']['b'] = 2", "cfg", "cfg"),
    "drop": (FRAME, "df = df.drop(columns='a')", "list(df.columns)", "df"),
    "drop in place": (FRAME, "df.drop(columns='a', inplace=True)", "list(df.columns)", "df"),
    "new column": (FRAME, "df['z'] = df['a'] * 2", "list(df.columns), df['a'].tolist()", "df"),
    "assigned column": (FRAME, "df['a'] *= 2", "df.values.tolist()", "df"),
    "loc": (FRAME, "df.loc[0, 'a'] = 99", "df.values.tolist()", "df"),
    "iloc": (FRAME, "df.iloc[0, 1] = 99.5", "df.values.tolist()", "df"),
    "sorted in place": (FRAME, "df.sort_values('a', ascending=False, inplace=True)", "df.values.tolist(), list(df.index)", "df"),
    "columns": (FRAME, "df.columns = list('xyz')", "list(df.columns)", "df"),
    "index": (FRAME, "df.index = [5, 6]", "list(df.index)", "df"),
    "index name": (FRAME, "df.index.name = 'i'", "df.index.name", "df"),
    "attrs": (FRAME, "df.attrs['a'] = 1", "df.attrs", "df"),
    "fillna in place": ("s = pd.Series([1.0, None])", "s.fillna(0, inplace=True)", "s.tolist()", "s"),
    "series item": ("s = pd.Series([1.0, 2.0])", "s[0] = 9", "s.tolist()", "s"),
    "categories": ("c = pd.Categorical(['a', 'b'])", "c[0] = 'b'", "list(c)", "c"),
    "MultiIndex names": ("m = pd.MultiIndex.from_tuples([(1, 2)])", "m.names = ['a', 'b']", "list(m.names)", "m"),
    "frame in a dict": (f"{FRAME}\nd = {{'df': df}}", "d['df']['z'] = 1", "list(df.columns)", "d"),
    "frame through a function": (f"{FRAME}\ndef clean(frame):\n    frame['z'] = 1", "clean(df)", "list(df.columns)", "df"),
    "array": ("x = np.arange(3)", "x *= 10", "x.tolist()", "x"),
    "array view": ("x = np.arange(6); y = x[::2]", "y[:] = 7", "x.tolist()", "y"),
    "array sort": ("x = np.array([3, 1, 2])", "x.sort()", "x.tolist()", "x"),
    "array shape": ("x = np.arange(6)", "x.shape = (2, 3)\nx[0] = 9", "x.tolist()", "x"),
    "object array": ("x = np.array([[1], 'a'], dtype=object)", "x[0].append(2); x[1] = None", "x.tolist()", "x"),
    "structured array": ("x = np.zeros(2, dtype=[('a', 'i4'), ('b', 'f8')])", "x['a'] = 5", "x.tolist()", "x"),
    "list in a field": ("x = np.array([([1], 2)], dtype=[('a', 'O'), ('b', 'i4')])", "x['a'][0].append(3)", "x.tolist()", "x"),
    "number beside an object": ("x = np.zeros(1, dtype=[('a', 'O'), ('b', 'i4')])", "x['b'] = 5", "x.tolist()", "x"),
    "objects in a field": ("x = np.zeros(1, dtype=[('a', 'O', 2)]); x['a'][0, 1] = [1]", "x['a'][0, 1].append(2); x['a'][0, 0] = 5", "x['a'].tolist()", "x"),
    "masked array": ("x = np.ma.array([1, 2], mask=[0, 1])", "x[0] = np.ma.masked", "x.tolist()", "x"),
    "generator": ("rng = np.random.default_rng(0)", "rng.random()", "rng.bit_generator.state", "rng"),
    "seed sequence": ("seeds = np.random.SeedSequence(1)", "seeds.spawn(2)", "seeds.n_children_spawned", "seeds"),
    "spawning generator": ("rng = np.random.default_rng(0)", "rng.bit_generator.seed_seq.spawn(2)", "rng.bit_generator.seed_seq.n_children_spawned", "rng"),
    "random": ("random.seed(1)", "value = random.random()", "random.getstate()[1][-1]", "random numbers"),
    "numpy random": ("np.random.seed(1)", "value = np.random.rand()", "np.random.get_state()[2]", "numpy random numbers"),
    "environment": ("os.environ['A'] = '1'", "os.environ['A'] = '2'; os.environ['B'] = '1'", "os.environ['A'], 'B' in os.environ", "environment variables"),
    "directory": ("x = 1", "os.chdir('/')", "os.getcwd()", "working directory"),
    "options": ("x = 1", "pd.set_option('display.max_rows', 7)", "pd.get_option('display.max_rows')", "pandas options"),
    "print options": ("x = 1", "np.set_printoptions(precision=2)", "np.get_printoptions()['precision']", "numpy print options"),
    "error settings": ("x = 1", "np.seterr(all='raise')", "np.geterr()['over']", "numpy error settings"),
    "filters": ("x = 1", "warnings.simplefilter('ignore')", "len(warnings.filters)", "warning filters"),
    "path": ("x = 1", "sys.path.append('/x')", "'/x' in sys.path", "module search path"),
    "recursion limit": ("x = 1", "sys.setrecursionlimit(4000)", "sys.getrecursionlimit()", "recursion limit"),
    "arguments": ("x = 1", "sys.argv.append('--fast')", "'--fast' in sys.argv", "command-line arguments"),
    "standard output": ("x = 1", "sys.stdout = io.StringIO()", "sys.stdout is sys.__stdout__", "standard output"),
    "collector": ("import gc", "gc.disable(); gc.set_threshold(5)", "gc.isenabled(), gc.get_threshold()", "garbage collector"),
    "logging": ("import logging", "logging.basicConfig(level=10); logging.getLogger('a').setLevel(20)", "logging.root.handlers, logging.root.level, logging.getLogger('a').level", "logging settings"),
    "decimal": ("import decimal", "decimal.getcontext().prec = 3", "decimal.Decimal(1) / 3", "decimal context"),
    "time zone": ("import time; os.environ['TZ'] = 'UTC'; time.tzset()", "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()", "time.localtime(0).tm_hour, time.tzname", "time zone"),
    "signal": ("import signal", "signal.signal(signal.SIGUSR1, print)", "signal.getsignal(signal.SIGUSR1)", "signal handlers"),
    "socket": ("import socket", "socket.setdefaulttimeout(5)", "socket.getdefaulttimeout()", "socket timeout"),
    "callback": ("ticks = []\ndef tick(*info):\n    ticks.append(1)", "get_ipython().events.register('pre_run_cell', tick)", "ticks", "IPython settings"),
    "magic": ("from IPython.core.magic import register_line_magic", "@register_line_magic\ndef hello(line): pass", "'hello' in get_ipython().magics_manager.magics['line']", "IPython settings"),
    "precision": ("x = 1", "get_ipython().run_line_magic('precision', '2')", "get_ipython().display_formatter.format(0.123)[0]", "IPython settings"),
    "XML element": ("import xml.etree.ElementTree as ET; doc = ET.fromstring('<a><b k=\"1\"/></a>')", "doc[0].set('k', '2'); ET.SubElement(doc, 'c')", "ET.tostring(doc)", "doc"),
    "ctypes array": ("import ctypes; buffer = (ctypes.c_int * 2)(1, 2)", "buffer[0] = 9", "list(buffer)", "buffer"),
    "bound method": ("log = []; write = log.append", "write(1)", "log", "write"),
    "lazy iterator": ("items = map(str, [1, 2])", "next(items)", "items.__reduce__()[1][1].__length_hint__()", "items"),
    "enum": ("from enum import Enum\nclass Color(Enum):\n    RED = 1\nColor.RED.weight = 1", "Color.RED.weight = 2; Color.default = Color.RED", "Color.RED.weight, hasattr(Color, 'default')", "Color"),
    "context variable": ("from contextvars import ContextVar; user = ContextVar('user'); token = user.set('ann')", "user.set('bob')", "user.get()", "user"),
    "class of an object": ("class A:\n    n = 1\nclass B:\n    n = 2\na = A()", "a.__class__ = B", "a.n", "a"),
    "annotations": ("x = 1", "y: int = 2", "'__annotations__' in globals()", "variable annotations"),
    "class attribute": ("class A:\n    n = 1", "A.n = 2", "A.n", "A"),
    "attribute": ("class A:\n    pass\na = A(); a.x = [1]", "a.x.append(2); a.y = 1", "vars(a)", "a"),
    "global in a function": ("n = 1\ndef f():\n    global n\n    n += 1", "f()", "n", "n"),
    "list in a function": ("rows = []\ndef f():\n    rows.append(1)", "f()", "rows", "rows"),
    "closure": ("def make():\n    n = 0\n    def f():\n        nonlocal n\n        n += 1\n        return n\n    return f\nf = make()", "f()", "f.__closure__[0].cell_contents", "f"),
    "function": ("def f():\n    return 1", "def f():\n    return 2", "f()", "f"),
    "deleted": ("x = [1]", "del x", "x", "x"),
    "import": ("x = 1", "import json as j", "'j' in globals()", "-j"),
    "alias": ("a = [1]; b = a", "b.append(2)", "a, a is b", "b"),
    "monkeypatch": ("x = 1", "pd.DataFrame.twice = lambda self: self * 2", "hasattr(pd.DataFrame, 'twice')", "pd"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_failed_cell_is_undone(lab: UndoLab, case: str) -> None:
    setup, cell, probe, name = CASES[case]
    lab.step(setup)
    before, _ = lab.show(probe) if case != "import" else ("False\n", None)
    lab.step(f"{cell}\n1 / 0", outcome=Outcome.ERROR)
    failed = lab.number
    after, restored = lab.show(probe, [failed])
    assert after == before
    if name.startswith("-"):
        assert restored.removed == {name[1:]: (failed,)}
    else:
        assert restored.restored[name] == (failed,), restored
    assert restored.not_restored == {}


def test_module_of_a_failed_version_is_imported_again(lab: UndoLab) -> None:
    lab.step(
        "open('shop.py', 'w').write('orders = []'); sys.path.insert(0, os.getcwd())"
    )
    lab.step("import shop; shop.orders.append(1)\n1 / 0", outcome=Outcome.ERROR)
    lab.step("import shop; print(shop.orders)", [lab.number])
    assert lab.output == "[]\n"
    failed = lab.number - 1
    lab.step("alias = shop", [failed], set())
    facts = lab.step("sys.modules.pop('shop')\n1 / 0", outcome=Outcome.ERROR)
    assert "imported modules" in facts.changes
    _, restored = lab.show("sys.modules['shop'] is shop", [lab.number])
    assert lab.output == "True\n"
    assert "imported modules" in restored.restored


def import_package(lab: UndoLab, package: str) -> None:
    """Import a new package whose submodule `stock` isn't imported yet."""
    lab.step(
        f"os.makedirs('{package}', exist_ok=True)\n"
        f"open('{package}/__init__.py', 'w').close()\n"
        f"print('orders = []', file=open('{package}/stock.py', 'w'), flush=True)\n"
        f"sys.path.insert(0, os.getcwd())\n"
        f"import {package}"
    )


def test_submodule_of_a_failed_version_is_imported_again(lab: UndoLab) -> None:
    import_package(lab, "bakery")
    cell = "import bakery.stock\nbakery.stock.orders.append(1)"
    lab.step(f"{cell}\n1 / 0", outcome=Outcome.ERROR)
    facts = lab.step(f"{cell}\nprint(bakery.stock.orders)", [lab.number])
    assert lab.output == "[1]\n"
    assert facts.restore
    assert facts.restore.not_restored == {}


def test_submodule_of_a_successful_run_stays(lab: UndoLab) -> None:
    import_package(lab, "pharmacy")
    lab.step("import pharmacy.stock")
    lab.step("pharmacy.stock.orders.append(1)\n1 / 0", outcome=Outcome.ERROR)
    runs = [lab.number - 1, lab.number]
    shown, restored = lab.show("pharmacy.stock.orders", runs)
    assert shown == "[]\n"
    assert restored.not_restored == {}


def test_key_that_is_not_a_string_uses_a_module(lab: UndoLab) -> None:
    import_package(lab, "kiosk")
    lab.step("import kiosk.stock\n1 / 0", outcome=Outcome.ERROR)
    failed = lab.number
    lab.step("globals()[3] = sys.modules['kiosk.stock']")
    _, restored = lab.show("kiosk", [failed])
    lab.step("del globals()[3]")
    reason = "`3` uses module kiosk.stock"
    assert restored.not_restored["imported modules"] == reason


def test_submodule_that_a_package_imported_stays(lab: UndoLab) -> None:
    """numpy imports `numpy.random` when it is used first, and cannot do this again."""
    lab.step(
        "import xml.dom; sys.modules.pop('xml.sax', None); vars(xml).pop('sax', 0)"
    )
    lab.step("xml.extra = 1\nimport xml.sax as _")
    probe = "hasattr(xml, 'sax'), hasattr(xml, 'extra')"
    shown, restored = lab.show(probe, [lab.number])
    assert shown == "True False\n"
    assert "xml" in restored.restored


def test_runs_that_load_numpy_can_run_again() -> None:
    lab = UndoLab(environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4"))
    try:
        lab.step("import numpy as np")
        lab.step("np.random.seed(3)")
        lab.step("np.random.seed(4); print(1)", [2])
        assert lab.output == "1\n"
        lab.step("import numpy as np\nnp.random.seed(5); print(2)", [1, 3])
        assert lab.output == "2\n"
    finally:
        lab.close()


@pytest.mark.parametrize("target", ["wait", "functools.partial(wait)"])
def test_started_thread_is_not_restored(lab: UndoLab, target: str) -> None:
    lab.step("import functools, threading; stop = threading.Event()")
    facts = lab.step(
        f"def wait(): stop.wait(30)\nworker = threading.Thread(target={target})\nworker.start()"
    )
    started = lab.number
    assert facts.unprotected["running threads"].is_changed
    _, restored = lab.show("1", [started])
    assert restored.not_restored == {"running threads": "cannot be stopped"}
    lab.step("stop.set()")


def test_reading_a_frame_changes_nothing(lab: UndoLab) -> None:
    lab.step(FRAME)
    facts = lab.step(
        "df.describe(); df.values; df['a'].sum(); df.mean(numeric_only=True); df.loc[0]; len(df)"
    )
    assert (facts.changes, facts.unprotected) == ({}, {})
    assert facts.reach


def test_identity_survives(lab: UndoLab) -> None:
    lab.step(f"{FRAME}\nother = df; items = [df]; key = id(df)")
    lab.step("df.drop(columns='a', inplace=True); df['z'] = 1")
    failed = lab.number
    shown, _ = lab.show(
        "df is other is items[0], id(df) == key, list(other.columns)", [failed]
    )
    assert shown == "True True ['a', 'b', 'c']\n"


def test_names_that_are_not_requested_stay(lab: UndoLab) -> None:
    lab.step("a = [1]; b = [1]")
    lab.step("a.append(2); b.append(2)")
    facts = lab.step("print(a, b)", [lab.number], {"a"})
    assert lab.output == "[1] [1, 2]\n"
    assert facts.restore and facts.restore.restored == {"a": (lab.number - 1,)}


def test_memory_changed_through_another_view(lab: UndoLab) -> None:
    lab.step("x = np.arange(4.0); y = x[1:3]; z = x[::2]")
    lab.step("x *= 10")
    lab.step("print(y)", [lab.number], {"y"})
    assert lab.output == "[1. 2.]\n"
    lab.step("y += 1")
    lab.step("print(z)", [lab.number], {"z"})
    assert lab.output == "[0. 2.]\n"


def test_object_changed_through_another_name(lab: UndoLab) -> None:
    lab.step("inner = [1]; outer = {'x': inner}")
    lab.step("inner.append(2)")
    facts = lab.step("print(outer)", [lab.number], {"outer"})
    assert lab.output == "{'x': [1]}\n"
    undone = (lab.number - 1,)
    assert facts.restore
    assert facts.restore.restored == {"outer": undone, "inner": undone}


def test_removed_name_leaves_the_object_that_other_names_have(lab: UndoLab) -> None:
    lab.step("nums = [1]")
    lab.step("box = {'k': nums}")
    lab.step("nums += [2]; len(box)")
    undone = (lab.number, lab.number - 1)
    facts = lab.step("print(nums)", [*undone], {"box"})
    assert lab.output == "[1, 2]\n"
    assert facts.restore and not facts.restore.restored
    assert facts.restore.removed == {"box": undone}


def test_restored_names_include_other_names_of_the_object(lab: UndoLab) -> None:
    lab.step("nums = [1]; other = []")
    lab.step("box = {'k': nums}")
    first = lab.number
    lab.step("nums += [2]; other.append(nums)")
    lab.step("other = 0")
    facts = lab.step("print(nums)", [first + 1], {"box"})
    assert lab.output == "[1]\n"
    assert facts.restore
    assert facts.restore.restored == {"box": (first + 1,), "nums": (first + 1,)}


def test_several_runs_are_undone_together(lab: UndoLab) -> None:
    lab.step("rows = [0]; n = 0")
    for _ in range(3):
        lab.step("rows.append(n); n += 1")
    last = lab.number
    _, restored = lab.show("rows, n", [last, last - 1, last - 2])
    assert lab.output == "[0] 0\n"
    assert restored.restored["n"] == (last, last - 1, last - 2)


def test_changes_of_a_removed_value_are_reported(lab: UndoLab) -> None:
    lab.step("box = [0]")
    first = lab.number
    lab.step("box.append(1)")
    _, restored = lab.show("1", [first + 1, first])
    assert restored.removed == {"box": (first + 1, first)}


def test_run_between_ends_the_undo_of_an_object(lab: UndoLab) -> None:
    lab.step("rows = [0]")
    lab.step("rows.append(1)")
    first = lab.number
    lab.step("rows.append(2)")
    _, restored = lab.show("rows", [first])
    assert lab.output == "[0, 1, 2]\n"
    assert restored.restored == {}
    assert restored.not_restored == {
        "rows": f"run {first + 1} changed it and is not undone"
    }


def test_generator_whose_values_are_freed_counts_as_changed(lab: UndoLab) -> None:
    lab.step(
        "def count():\n    n = 1000\n    while True:\n        n += 1\n        yield n\n"
        "gen = count(); next(gen)"
    )
    for steps in range(1, 5):
        facts = lab.step(f"for _ in range({steps}): next(gen)")
        assert facts.unprotected["gen"].reason == "generator"


def test_generator_is_not_restored(lab: UndoLab) -> None:
    lab.step("gen = (x for x in range(5))")
    facts = lab.step("next(gen)")
    assert facts.unprotected["gen"].reason == "generator"
    assert facts.unprotected["gen"].is_changed
    assert facts.reach == 0
    _, restored = lab.show("1", [lab.number])
    assert restored.not_restored == {"gen": "generator"}


def test_other_names_of_an_object_without_a_snapshot_are_named(lab: UndoLab) -> None:
    lab.step("gen = (x for x in range(5)); box = {'source': [gen]}")
    facts = lab.step("next(gen)")
    assert facts.unprotected["box"].is_changed
    assert facts.unprotected["box"].reason == "generator"


def test_other_client_ends_the_undo(lab: UndoLab) -> None:
    lab.step("n = 1; rows = [1]")
    lab.step("n = 2; rows.append(2)")
    run = lab.number
    lab.ok("n = 3; rows.append(3)")
    _, restored = lab.show("n, rows", [run])
    assert lab.output == "3 [1, 2, 3]\n"
    other = "changed by code outside the cells"
    assert restored.not_restored == {"n": other, "rows": other}


def test_facts_on_other_code(lab: UndoLab) -> None:
    def execute(code: str) -> UndoFacts:
        execution = lab.kernel.execute(code, 30, Limits(), scratch=True)
        facts = lab.loop.run_until_complete(execution).undo
        assert facts is not None
        return facts

    lab.step("rows = [1]; n = 1")
    lab.step("rows.append(2); n = 2")
    facts = execute("print(rows)")
    assert facts.rebound == ()
    assert not facts.ends_reach
    facts = execute("rows.append(3)")
    assert facts.rebound == ()
    assert facts.ends_reach
    facts = execute("n = 3; import json as new")
    assert set(facts.rebound or ()) == {"n", "new"}
    assert facts.ends_reach
    facts = execute("1")
    assert facts.rebound == ()
    _, restored = lab.show("rows, n", [lab.number])
    assert set(restored.not_restored) == {"rows", "n"}


def test_other_code_after_a_change_of_a_library_module(lab: UndoLab) -> None:
    """The module has a snapshot only while the cell that changes it runs."""
    lab.step("import fractions")
    lab.step("fractions.extra = 1")
    run = lab.number
    lab.step("n = 1")
    result = lab.ok("n = 2")
    assert "swallowed" not in result.diagnosis_data
    assert result.undo and result.undo.rebound == ("n",)
    result = lab.ok("fractions.extra = 2")
    assert result.undo and result.undo.ends_reach
    _, restored = lab.show("fractions.extra", [run])
    assert lab.output == "2\n"
    assert "fractions" in restored.not_restored
    lab.ok("del fractions.extra")


def test_silent_undo(lab: UndoLab) -> None:
    lab.step("rows = [1]")
    lab.step("rows.append(2); new = 1")
    request = RestoreRequest((lab.number,), None)
    facts = lab.loop.run_until_complete(lab.kernel.undo(request))
    assert facts is not None
    result = facts.restore
    assert result is not None
    assert result.restored == {"rows": (lab.number,)}
    assert result.removed == {"new": (lab.number,)}
    assert facts.images.oldest < lab.number
    assert facts.images.memory == lab.memory
    lab.step("print(rows, 'new' in globals())")
    assert lab.output == "[1] False\n"


def test_removed_name_is_not_reported_as_not_restored(lab: UndoLab) -> None:
    """The object cannot be restored, but nothing refers to it any more."""
    lab.step("data = bytearray(b'ab')")
    lab.step("data.append(99); view = memoryview(data)")
    runs = [lab.number, lab.number - 1]
    _, restored = lab.show("'data' in globals(), 'view' in globals()", runs)
    assert lab.output == "False False\n"
    assert set(restored.removed) == {"data", "view"}
    assert restored.not_restored == {}


def test_runs_without_an_image_are_not_undone(lab: UndoLab) -> None:
    lab.step("rows = [1]")
    lab.step("rows.append(2)")
    request = RestoreRequest((lab.number, 9999), None)
    facts = lab.loop.run_until_complete(lab.kernel.undo(request))
    assert facts is not None
    assert facts.unknown == (9999,)
    assert facts.restore is None
    lab.step("print(rows)")
    assert lab.output == "[1, 2]\n"


def test_older_run_is_undone_after_a_partial_undo(lab: UndoLab) -> None:
    """The undone run between the two others has left no image."""
    lab.step("x = 1; rows = [1]")
    first = lab.number
    lab.step("x = 2; rows.append(2)")
    lab.step("x = 3; rows.append(3)")
    facts = lab.loop.run_until_complete(
        lab.kernel.undo(RestoreRequest((first + 1,), None))
    )
    assert facts is not None and facts.restore is not None
    assert set(facts.restore.not_restored) == {"rows"}
    lab.step("print('x' in globals(), 'rows' in globals())", [first + 2, first])
    assert lab.output == "False False\n"
    lab.step("y = 1")
    _, restored = lab.show("'y' in globals()", [lab.number])
    assert restored.not_restored == {}


def test_new_subclass_is_collected(lab: UndoLab) -> None:
    lab.step("class Base: pass")
    lab.step("class Derived(Base): pass")
    _, restored = lab.show("Base.__subclasses__()", [lab.number])
    assert lab.output == "[]\n"
    assert "Base" not in restored.not_restored


def test_cache_that_was_cleared_and_filled_again_is_not_restored(lab: UndoLab) -> None:
    lab.step(
        "import functools\n@functools.lru_cache\ndef load(name): return {}\nload('a')"
    )
    lab.step("load.cache_clear(); load('a')")
    _, restored = lab.show("load.cache_info().currsize", [lab.number])
    assert lab.output == "0\n"
    assert "load" in restored.not_restored


def test_large_list_that_a_cell_only_reads_is_not_changed(lab: UndoLab) -> None:
    """A list has no weak references."""
    lab.memory = MB
    try:
        lab.step("large_list = list(range(400_000))")
        facts = lab.step("print(sum(large_list))")
        assert facts.unprotected["large_list"].reason == "too large"
        assert not facts.unprotected["large_list"].is_changed
        assert facts.changes == {}
        facts = lab.step("large_list.append(1)")
        assert facts.unprotected["large_list"].is_changed
        lab.step("del large_list")
    finally:
        lab.memory = 512 * MB


def test_large_value_is_not_kept(lab: UndoLab) -> None:
    lab.memory = MB
    try:
        lab.step("big = np.zeros(10**6)")
        facts = lab.step("big[0] = 1")
        assert facts.unprotected["big"].reason == "too large"
        assert facts.unprotected["big"].bytes == 8_000_000
        assert facts.unprotected["big"].is_changed
        facts = lab.step(
            "import weakref; ref = weakref.ref(big)\ndel big\nprint(ref() is None)"
        )
        assert lab.output == "True\n"
        assert facts.images.bytes < MB
        _, restored = lab.show("'big' in globals()", [lab.number])
        assert restored.not_restored["big"] == "too large"
    finally:
        lab.memory = 512 * MB


def test_object_whose_class_attribute_fails_is_restored(lab: UndoLab) -> None:
    lab.step(
        "class Lazy:\n    count = 0\n    @property\n"
        "    def __class__(self): raise RuntimeError\nlazy = Lazy()"
    )
    facts = lab.step("lazy.count = 2")
    assert facts.unprotected == {}
    output, _ = lab.show("lazy.count", [lab.number])
    assert output == "0\n"


def test_new_subclass_of_an_instance_is_removed(lab: UndoLab) -> None:
    lab.step("class First: pass\nvalue = First()")
    lab.step("class Second(First): pass\nvalue.__class__ = Second")
    output, restored = lab.show(
        "First.__subclasses__(), type(value).__name__", [lab.number]
    )
    assert output == "[] First\n"
    assert restored.not_restored == {}


def test_oldest_images_are_dropped(lab: UndoLab) -> None:
    lab.memory = 5 * MB
    try:
        lab.step("x = np.zeros(250_000)")
        first = lab.number
        for _ in range(4):
            facts = lab.step("x = x + 1")
            assert facts.images.bytes <= 5 * MB
        assert facts.reach > first
        runs = list(range(lab.number, first, -1))
        _, restored = lab.show("x[0]", runs)
        assert "x" in restored.not_restored
    finally:
        lab.memory = 512 * MB


def test_values_are_freed_that_no_cell_changes(lab: UndoLab) -> None:
    lab.step("import weakref\nclass A: pass\na = A(); ref = weakref.ref(a)")
    lab.step("print(a)")
    lab.ok("del a")
    assert lab.value("ref() is None") is True


def test_hostile_objects_run_no_code(lab: UndoLab) -> None:
    lab.step(
        "calls = []\nclass H:\n    def __getattribute__(self, n): calls.append(n); return object.__getattribute__(self, n)\n"
        "    def __eq__(self, o): calls.append('eq'); return True\n    def __hash__(self): calls.append('hash'); return 1\n"
        "    def __setattr__(self, n, v): calls.append('set'); object.__setattr__(self, n, v)\nh = H(); d = {h: [1]}; s = {h}"
    )
    lab.step("calls.clear(); d.clear(); s.clear()\nvars(h)['x'] = 1\ncalls.clear()")
    lab.step("print(calls, len(d), len(s))", [lab.number], {"d", "s", "h"})
    assert lab.output == "[] 1 1\n"


# Cell, reader → the former values in other values.
FORMER_VALUES = {
    "tuple": ("nums = [1, 2]", "pair = (nums, 7)", {"nums": ("pair",)}),
    "result": ("nums = [1, 2]", "total = sum(nums)", {}),
    "part": ("table = {'a': [1]}", "rows = table['a']", {"table": ("rows",)}),
    "attribute": (
        "nums = [1]",
        "import types; box = types.SimpleNamespace(); box.nums = nums",
        {"nums": ("box",)},
    ),
    "method": ("nums = [1]", "add = nums.append", {"nums": ("add",)}),
    "two names": ("nums = [1]", "a = nums; b = [a]", {"nums": ("a", "b")}),
    "displayed": ("nums = [1]", "nums", {"nums": ("_",)}),
    "hidden": ("nums = [1]", "gen = (n for n in nums)", {"nums": ("",)}),
    "view": ("x = np.arange(6)", "y = x[1:3]", {"x": ("y",)}),
    "views of a view": ("x = np.arange(6).reshape(2, 3)", "y = x[0]", {"x": ("y",)}),
    "copy": ("x = np.arange(6)", "y = x * 2; z = x.copy()", {}),
    "frame": (FRAME, "frames = [df]", {"df": ("frames",)}),
    "copied frame": (FRAME, "other = df.copy(); s = df['a'].sum()", {}),
    "immutable": ("t = (1, (2, 'a'))", "ts = [t]", {}),
    "only each other": ("a = [1]; b = {'a': a}", "n = len(b)", {}),
}


@pytest.mark.parametrize("case", FORMER_VALUES)
def test_former_values_in_other_values(lab: UndoLab, case: str) -> None:
    cell, reader, expected = FORMER_VALUES[case]
    lab.step(cell)
    first = lab.number
    lab.step(reader)
    facts = lab.step(cell, [first], {"nums", "table", "x", "df", "t", "a", "b"})
    assert facts.restore
    assert facts.restore.former_values == expected
    assert facts.restore.former_classes == {}


def test_instances_of_a_former_class(lab: UndoLab) -> None:
    cell = "class A:\n    pass\nclass B(A):\n    pass"
    lab.step(cell)
    first = lab.number
    lab.step("items = [B()]; n = 1")
    facts = lab.step(cell, [first], {"A", "B"})
    assert facts.restore
    assert facts.restore.former_values == {}
    assert facts.restore.former_classes["B"] == ("items",)


def test_change_of_a_former_value_is_reported_for_both_names(lab: UndoLab) -> None:
    lab.step("nums = [1]")
    first = lab.number
    lab.step("pair = (nums, 7); other = pair[0]")
    lab.step("nums = [1]", [first], {"nums"})
    facts = lab.step("other.append(2)")
    assert facts.changes == {"other": "changed", "pair": "changed"}


def test_generic_alias_counts_as_no_class(lab: UndoLab) -> None:
    """Before Python 3.11, `isinstance(list[int], type)` is true."""
    lab.step("Alias = list[int]")
    facts = lab.step("Alias = list[str]", [lab.number], {"Alias"})
    assert facts.restore and not facts.restore.not_restored


PACKAGE = """
import types
toy = sys.modules['toy'] = types.ModuleType('toy')
exec('''
import itertools
ids = itertools.count()
size = 3
class System:
    _count = 0
    def __init__(self):
        self.name = f'sys[{System._count}]'
        System._count += 1
''', vars(toy))
"""


def test_counters_of_a_package(lab: UndoLab) -> None:
    lab.step(PACKAGE)
    lab.step("toy.size += 1; toy.System._other = 1")
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("b = toy.System()")
    last = lab.number
    # The last cell runs again, and then the first one.
    lab.step("b = toy.System(); print(b.name)", [last], {"b"})
    assert lab.output == "sys[1]\n"
    facts = lab.step("a = toy.System(); print(a.name)", [first], {"a"})
    assert lab.output == "sys[0]\n"
    assert facts.restore and not facts.restore.not_restored
    lab.step("print(toy.System._count, toy.size, toy.System._other)")
    assert lab.output == "2 4 1\n"


def test_counter_of_a_function_whose_only_text_is_a_format(lab: UndoLab) -> None:
    source = PACKAGE.replace("f'sys[{System._count}]'", "'sys[%d]' % System._count")
    lab.step(source.replace("'toy'", "'toy_format'"))
    lab.step("a = toy.System()")
    facts = lab.step("a = toy.System(); print(a.name)", [lab.number], {"a"})
    assert lab.output == "sys[0]\n"
    assert facts.restore and not facts.restore.not_restored


def test_counter_of_a_module_that_was_removed_and_created_again(lab: UndoLab) -> None:
    source = PACKAGE.replace("'toy'", "'toy_again'")
    lab.step(source)
    lab.step("import sys; del sys.modules['toy_again']")
    lab.step("n = 1")
    lab.step(source)
    lab.step("a = toy.System()")
    facts = lab.step("a = toy.System(); print(a.name)", [lab.number], {"a"})
    assert lab.output == "sys[0]\n"
    assert facts.restore and not facts.restore.not_restored


def test_counters_that_differ_are_named(lab: UndoLab) -> None:
    lab.step(PACKAGE.replace("'toy'", "'toy_ids'"))
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("b = toy.System()")
    facts = lab.step("a = [toy.System(), toy.System()]", [first], {"a"})
    assert facts.restore and [*facts.restore.not_restored] == ["package counters"]
    lab.step("print(toy.System._count)")
    assert lab.output == "2\n"
    lab.step("n = next(toy.ids)")
    facts = lab.step("n = next(toy.ids)", [lab.number], {"n"})
    assert facts.restore and [*facts.restore.not_restored] == ["package counters"]


def test_interrupt_during_an_undo_leaves_nothing_half_done(lab: UndoLab) -> None:
    """IPython calls a function of the user while its settings are restored."""
    lab.step(
        "import signal, time\nrows = [1]\n"
        "def interrupt(change):\n"
        "    if change.new:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "        time.sleep(0.05)"
    )
    lab.step("rows.append(2)\nget_ipython().automagic = False")
    run = lab.number
    lab.step("get_ipython().observe(interrupt, 'automagic')")
    shown, restored = lab.show("rows, get_ipython().automagic", [run])
    assert shown == "[1] True\n"
    assert restored.restored == {"rows": (run,), "IPython settings": (run,)}
    assert restored.not_restored == {}
    lab.step("rows.append(3)\nget_ipython().automagic = False")
    request = RestoreRequest((lab.number,), None)
    facts = lab.loop.run_until_complete(lab.kernel.undo(request))
    assert facts is not None and facts.restore is not None
    assert set(facts.restore.restored) == {"rows", "IPython settings"}
    # The daemon repeats a request if the answer was lost.
    repeated = lab.loop.run_until_complete(lab.kernel.undo(request))
    assert repeated == facts
    lab.step("get_ipython().unobserve(interrupt, 'automagic')\nprint(rows)")
    assert lab.output == "[1]\n"


def test_failed_undo_ends_the_reach_of_older_runs(lab: UndoLab) -> None:
    lab.step("data = bytearray(b'ab')")
    lab.step("data.append(99)")
    run = lab.number
    lab.step("view = memoryview(data)")
    reason = "its buffer is in use"
    facts = lab.loop.run_until_complete(lab.kernel.undo(RestoreRequest((run,), None)))
    assert facts is not None and facts.restore is not None
    assert facts.restore.not_restored == {"data": reason}
    assert facts.reach == run + 1
    # A later undo restores the state after the failed one.
    lab.step("view.release()\ndel view\ndata.append(100)")
    _, restored = lab.show("bytes(data)", [lab.number])
    assert lab.output == "b'abc'\n"
    assert restored.restored == {"view": (lab.number - 1,)}
    assert restored.not_restored == {"data": reason}
    lab.step("data = bytearray(b'x')")
    lab.step("data.append(101)")
    _, restored = lab.show("bytes(data)", [lab.number])
    assert lab.output == "b'x'\n"
    assert restored.restored == {"data": (lab.number - 1,)}


def test_undo_that_another_run_blocked_is_not_forgotten(lab: UndoLab) -> None:
    lab.step("rows = [1]")
    lab.step("rows.append(2)")
    first = lab.number
    lab.step("rows.append(3)")
    reason = f"run {first + 1} changed it and is not undone"
    _, restored = lab.show("rows", [first])
    assert restored.not_restored == {"rows": reason}
    _, restored = lab.show("rows", [first + 1])
    assert lab.output == "[1, 2]\n"
    assert restored.restored == {}
    assert restored.not_restored == {"rows": reason}


def test_runs_undone_together_after_one_of_them_was_blocked(lab: UndoLab) -> None:
    lab.step("rows = [1]")
    lab.step("rows.append(2)")
    first = lab.number
    lab.step("rows.append(3)")
    lab.step("print(rows)", [first], {"rows"})
    _, restored = lab.show("rows", [first + 1, first])
    assert lab.output == "[1]\n"
    assert restored.restored == {"rows": (first + 1, first)}
    assert restored.not_restored == {}


def test_run_that_the_kernel_has_no_image_of_is_reported(lab: UndoLab) -> None:
    lab.step("rows = [1]")
    facts = lab.step("rows", [9999])
    assert facts.restore is not None
    assert facts.restore.unknown == (9999,)


LARGE = "data = {'rows': [[i] for i in range(300_000)]}; rows = data['rows']; few = rows[-2:]; other = [1]"


def test_names_that_contain_objects_of_an_incomplete_walk_are_named(
    lab: UndoLab,
) -> None:
    lab.step(LARGE)
    lab.seconds = 0.01
    try:
        facts = lab.step("def clean(d): d['rows'][-1].append(1)\nclean(data)")
    finally:
        del lab.seconds
    assert facts.unprotected.keys() == {"data", "rows", "few"}
    assert facts.unprotected["few"].reason == "not searched completely"
    assert not facts.unprotected["few"].is_changed


def test_view_of_an_array_that_is_too_large_is_named(lab: UndoLab) -> None:
    lab.memory = MB
    try:
        lab.step(
            "big = np.zeros(10**7); view = big[:10]; other = np.zeros(10); alias = big"
        )
        facts = lab.step("big[0] = 1")
        assert facts.unprotected.keys() == {"big", "view", "alias"}
    finally:
        lab.memory = 512 * MB


def test_large_value_that_may_contain_a_former_value_is_not_passed_over(
    lab: UndoLab,
) -> None:
    lab.step("nums = [1]")
    first = lab.number
    lab.step("class A: pass")
    lab.step(
        "big = dict.fromkeys(range(3_000_000), [0]); big['x'] = nums; big['y'] = A()\n"
        "small = (nums, big['y'])"
    )
    facts = lab.step("nums = [1]", [first], {"nums"})
    assert facts.restore
    assert facts.restore.former_values == {"nums": ("", "small")}
    facts = lab.step("class A: pass", [first + 1], {"A"})
    assert facts.restore
    assert facts.restore.former_classes == {"A": ("", "small")}
    lab.ok("del big")  # without an image, which would copy the dict


def test_twin_that_is_too_large_for_a_search_is_named(lab: UndoLab) -> None:
    lab.step("nums = [1]")
    first = lab.number
    lab.step("a_large = {0: nums}; pair = (nums, 7); other = nums")
    lab.step("nums = [1]", [first], {"nums"})
    lab.step("a_large.update({i: [i] for i in range(1, 600_000)})")
    facts = lab.step("other.append(2)")
    assert facts.changes == {"other": "changed", "pair": "changed"}
    assert facts.unprotected["a_large"].reason == "not searched completely"


def test_counters_after_a_run_whose_image_failed(lab: UndoLab) -> None:
    lab.step(PACKAGE.replace("'toy'", "'toy_lost'"))
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("b = toy.System()")
    lab.number += 1
    cell = "a = toy.System()"
    usage = analyze_source(cell)
    mentioned = list_mentioned_names(usage, BindingTable().resolve_usage(usage))
    restore = RestoreRequest((first,), frozenset({"a"}), (first,))
    seconds: Any = "a text"  # the helper cannot take an image
    request = UndoRequest(lab.number, mentioned, seconds, lab.memory, restore)
    execution = lab.kernel.execute(cell, 30, Limits(), undo=request)
    lab.loop.run_until_complete(execution)
    lab.step("c = toy.System(); print(a.name, c.name, toy.System._count)")
    assert lab.output == "sys[0] sys[2] 3\n"


def test_setting_of_a_package_is_not_a_counter(lab: UndoLab) -> None:
    source = r"level = 0\ndef set_level(n):\n    global level\n    level = n"
    lab.step(
        "import types; toy = sys.modules['toy_level'] = types.ModuleType('toy_level')\n"
        f"exec('{source}', vars(toy))"
    )
    lab.step("toy.set_level(3)")
    facts = lab.step("toy.set_level(4)", [lab.number])
    assert facts.restore and facts.restore.not_restored == {}


def test_counter_that_has_its_former_value_is_not_named(lab: UndoLab) -> None:
    lab.step(PACKAGE.replace("'toy'", "'toy_same'"))
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("toy.System._count = 0")
    facts = lab.loop.run_until_complete(
        lab.kernel.undo(RestoreRequest((first,), frozenset({"a"}), (first,)))
    )
    assert facts and facts.restore and facts.restore.not_restored == {}


def test_counter_of_a_package_that_the_cell_imports_is_named(lab: UndoLab) -> None:
    cell = PACKAGE.replace("'toy'", "'toy_new'") + "z = toy.System()"
    lab.step(cell)
    facts = lab.step("z = toy.System()", [lab.number], {"z"})
    assert facts.restore and [*facts.restore.not_restored] == ["package counters"]


def test_numbers_of_a_run_between_two_own_runs_stay(lab: UndoLab) -> None:
    lab.step(PACKAGE.replace("'toy'", "'toy_between'"))
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("b = toy.System()")
    lab.step("a = toy.System()")
    runs = [lab.number, first]
    facts = lab.step("a = toy.System(); print(a.name)", runs, {"a"})
    assert lab.output == "sys[3]\n"
    assert facts.restore and [*facts.restore.not_restored] == ["package counters"]


def test_counter_after_a_run_that_counted_further(lab: UndoLab) -> None:
    lab.step(PACKAGE.replace("'toy'", "'toy_further'"))
    lab.step("a = toy.System()")
    first = lab.number
    lab.step("b = toy.System()")
    lab.step("a = [toy.System(), toy.System()]", [first], {"a"})
    facts = lab.step("a = toy.System()", [lab.number], {"a"})
    assert facts.restore and [*facts.restore.not_restored] == ["package counters"]
    lab.step("c = toy.System(); print(b.name != c.name)")
    assert lab.output == "True\n"
