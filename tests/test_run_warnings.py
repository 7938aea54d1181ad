"""Warnings on successful runs, with real pandas in real kernels.

For each kind there are cells that must and must not be warned about. The helper does
not change users' tracebacks, sources, warnings or child processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from stepper.diagnosis import run_warnings
from stepper.policy.model import Outcome
from tests.test_kernel_helper import OLD, Lab, environment, old_python, text

DATA = """
import io, warnings
import numpy as np
import pandas as pd
people = pd.DataFrame({
    "id": range(1, 101),
    "age": [20 + i % 50 for i in range(100)],
    "city": [["Oslo", "Bonn", "Turin", None][i % 4] for i in range(100)],
    "born": ["2001-02-03"] * 99 + ["n/a"],
    "pay": [None if i % 9 == 0 else i * 10.5 for i in range(100)],
})
cities = pd.DataFrame({"city": ["Oslo", "Bonn", "Turin", "Paris"], "country": ["NO", "DE", "IT", "FR"]})
orders = pd.DataFrame({"order": range(250), "id": [1 + i % 80 for i in range(250)], "amount": [float(i) for i in range(250)]})
twice = pd.DataFrame({"city": ["Oslo", "Oslo", "Bonn", "Turin"], "zone": range(4)})
codes = pd.DataFrame({"code": ["x", "y"], "label": ["one", "two"]})
raw = pd.read_csv(io.StringIO("a,b,c\\n1,,x\\n2,,y\\n3,,z"))
_frames = {name: value for name, value in globals().items() if name[0] != "_" and isinstance(value, pd.DataFrame)}
_names, _show = {*globals()}, warnings.showwarning
"""
RECREATE_FRAMES = f"""
if "_frames" not in globals(): exec({DATA!r})
for _name in [name for name in globals() if name not in _names and name[0] != "_"]: del globals()[_name]
globals().update({{name: value.copy() for name, value in _frames.items()}})
globals().pop("__warningregistry__", None)
warnings.resetwarnings()
warnings.showwarning = _show
"""


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)],
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """Kernels with the newest pandas, and with pandas 2, Python 3.9 and IPython 8."""
    python = old_python() if request.param == "Python 3.9" else ""
    if request.param == "Python 3.9" and not python:
        pytest.skip("there is no Python 3.9 on this machine")
    import sys

    lab = Lab(
        environment(python, *OLD)
        if python
        else environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4")
    )
    yield lab
    lab.close()


@pytest.fixture
def clean(lab: Lab) -> Lab:
    """The kernel with only the frames of DATA."""
    lab.revive()
    lab.ok(RECREATE_FRAMES)
    return lab


def facts(lab: Lab, code: str) -> list[dict[str, Any]]:
    """Return the warnings of a cell that must succeed."""
    warnings: list[dict[str, Any]] = lab.ok(code).diagnosis_data["warnings"]
    return warnings


def list_warnings(lab: Lab, code: str) -> list[str]:
    """Return the report's warnings of a cell, without pandas' FutureWarnings."""
    return run_warnings.format_warnings(
        [
            item
            for item in facts(lab, code)
            if item["kind"] != "warning" or "user" in item["text"]
        ]
    )


# --- swallowed errors


@pytest.mark.parametrize(
    ("code", "line"),
    [
        (
            "def number(x):\n    try:\n        return float(x)\n    except Exception:\n        return None\nfound = [*map(number, ['1', 'n/a', '', 'n/a'])]",
            "line 4: except Exception swallowed ValueError 3 times: could not convert string to float: 'n/a'",
        ),
        (
            "try:\n    1 / 0\nexcept:\n    pass",
            "line 3: except swallowed ZeroDivisionError: division by zero",
        ),
        (
            "\n\n\ntry: int('x')\nexcept BaseException: ...",
            "line 5: except BaseException swallowed ValueError: invalid literal for int() with base 10: 'x'",
        ),
        (
            "try:\n    {}['k']\nexcept (ValueError, Exception) as e:\n    print('failed', e)",
            "line 3: except Exception swallowed KeyError: 'k'",
        ),
        (
            "import builtins\ntry:\n    {}['k']\nexcept builtins.Exception:\n    pass",
            "line 4: except Exception swallowed KeyError: 'k'",
        ),
        (
            "import logging\ntry:\n    {}['k']\nexcept Exception:\n    logging.exception('no')",
            "line 4: except Exception swallowed KeyError: 'k'",
        ),
        (
            "for i in range(3):\n    try:\n        [][i]\n    except Exception:\n        continue",
            "line 4: except Exception swallowed IndexError 3 times: list index out of range",
        ),
        (
            "with open('nowhere', 'w') as f:\n    if True:\n        try:\n            f.read()\n        except Exception:\n            pass",
            "line 5: except Exception swallowed UnsupportedOperation: not readable",
        ),
        (
            "async def f():\n    try: 1 / 0\n    except Exception: return 0\nawait f()",
            "line 3: except Exception swallowed ZeroDivisionError: division by zero",
        ),
        (
            "class Own(Exception):\n    def __str__(self): raise SystemExit\ntry:\n    raise Own(5)\nexcept Exception:\n    pass",
            "line 5: except Exception swallowed Own",
        ),
        (
            "class Own(Exception):\n    def __str__(self): raise SystemExit\ntry:\n    raise Own('why\\nso')\nexcept Exception:\n    pass",
            "line 5: except Exception swallowed Own: why",
        ),
        (
            "class Odd:\n    def __repr__(self): raise SystemExit\ntry:\n    raise KeyError(Odd())\nexcept Exception:\n    pass",
            "line 5: except Exception swallowed KeyError",
        ),
        (
            "%%time\na = 1\ntry:\n    1 / 0\nexcept Exception:\n    pass",
            "line 5: except Exception swallowed ZeroDivisionError: division by zero",
        ),
        (
            "%%capture\na = 1\ntry:\n    1 / 0\nexcept Exception:\n    pass",
            "line 5: except Exception swallowed ZeroDivisionError: division by zero",
        ),
        (
            "%pwd\n!true \\\n   x\ntry:\n    1 / 0\nexcept Exception:\n    pass",
            "line 6: except Exception swallowed ZeroDivisionError: division by zero",
        ),
        (
            "for i in range(1500):\n    try: 1 / 0\n    except Exception: pass",
            "line 3: except Exception swallowed ZeroDivisionError 1,000 or more times: division by zero",
        ),
    ],
)
def test_error_swallowed_by_broad_except(clean: Lab, code: str, line: str) -> None:
    assert list_warnings(clean, code) == [line]


def test_handlers_and_exception_classes_are_distinguished(clean: Lab) -> None:
    code = (
        "for f in (lambda: 1 / 0, lambda: [][0], lambda: 2 / 0):\n    try: f()\n    except Exception: pass\n"
        "try: int('x')\nexcept Exception: pass"
    )
    results = [
        item["text"].split(" swallowed ")[0] + item["text"].split("swallowed")[1][:20]
        for item in facts(clean, code)
    ]
    assert results == [
        "line 3: except Exception ZeroDivisionError 2",
        "line 3: except Exception IndexError: list in",
        "line 5: except Exception ValueError: invalid",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "try:\n    import nowhere_at_all\nexcept Exception:\n    nowhere_at_all = None",
        "try:\n    from json import nothing\nexcept:\n    nothing = None",
        "try: int('x')\nexcept ValueError: pass",
        "try: 1 / 0\nexcept (ZeroDivisionError, ValueError): pass",
        "try:\n    try: int('x')\n    except Exception as e: raise RuntimeError('wrapped') from e\nexcept RuntimeError: pass",
        "try: 1\nexcept Exception: pass",
        "def unused():\n    try: int('x')\n    except Exception: pass",
        "errors = []\ntry: int('x')\nexcept Exception as e: errors.append(e)",
        "errors = []\ntry: int('x')\nexcept Exception as e: errors.append(('x', str(e)))",
        "failed = {}\ntry: int('x')\nexcept Exception as e: failed['x'] = f'{type(e).__name__}: {e}'",
        "def attempt(x):\n    try: return int(x), None\n    except Exception as e: return None, e\nattempt('x')",
        "def handle(problem): pass\ntry: int('x')\nexcept Exception as e: handle(e)",
        "def is_number(x):\n    try:\n        float(x)\n        return True\n    except Exception:\n        return False\nis_number('x')",
        "try:\n    int('x')\n    ok = True\nexcept Exception:\n    ok = False",
        "try: next(iter([]))\nexcept Exception: pass",
        "try: raise KeyboardInterrupt\nexcept BaseException: pass",
        "for i in range(5):\n    try:\n        1 / (i // 3)\n        break\n    except Exception:\n        pass",
        "def get():\n    for i in range(5):\n        try:\n            return 1 / (i // 3)\n        except Exception as e:\n            print('again', e)\n            if i == 4:\n                return None\nget()",
        "n = 0\nwhile True:\n    n += 1\n    try:\n        1 / (n // 3)\n        break\n    except Exception:\n        continue",
        "for i in range(3):\n    try:\n        1 / 0\n        break\n    except Exception:\n        pass\nelse:\n    print('gave up')",
        "class A:\n    def f(self):\n        try: 1 / 0\n        except Exception: pass\nA().f()",
        "import functools\n@functools.lru_cache\ndef f():\n    try: 1 / 0\n    except Exception: pass\nf()",
        "# njit would read our call\ntry: 1 / 0\nexcept Exception: pass",
        "try: 1 / 0\nexcept Exception as e: assert 'zero' in str(e)",
    ],
)
def test_handled_errors_give_no_warning(clean: Lab, code: str) -> None:
    assert facts(clean, code) == []


def test_nested_run_cell_does_not_finish_the_run(clean: Lab) -> None:
    code = "get_ipython().run_cell('x = 1')\n%%time y = 2\ntry: 1 / 0\nexcept Exception: pass\nwarnings.warn('user')"
    assert [item["kind"] for item in facts(clean, code.replace("%%", "%"))] == [
        "swallowed",
        "warning",
    ]
    assert facts(clean, "a = 1") == []


def test_only_errors_swallowed_by_this_run_are_reported(clean: Lab) -> None:
    clean.ok("def f():\n    try: 1 / 0\n    except Exception: pass")
    assert facts(clean, "f()") == []
    assert (
        len(facts(clean, "def g():\n    try: 1 / 0\n    except Exception: pass\ng()"))
        == 1
    )
    assert facts(clean, "a = 1") == []


def test_failed_run_has_no_warnings(clean: Lab) -> None:
    result = clean.run(
        "import warnings\ntry: 1 / 0\nexcept Exception: pass\nwarnings.warn('user')\nnowhere"
    )
    assert (
        result.outcome is Outcome.ERROR
        and result.diagnosis_data.get("warnings", []) == []
    )
    assert facts(clean, "a = 1") == []


# visible to users


def test_errors_show_the_lines_and_texts_of_the_cell(clean: Lab) -> None:
    result = clean.run(
        "def f(x):\n    try:\n        x()\n    except Exception:\n        [][0]\n\nf(lambda: 1 / 0)"
    )
    assert result.fault and (result.fault.ename, result.fault.line) == ("IndexError", 7)
    assert [(frame.line, frame.function) for frame in result.fault.frames] == [
        (7, "<module>"),
        (5, "f"),
    ]
    assert dict(result.fault.frames[-1].context)[5] == "        [][0]"
    text = "\n".join(
        part for out in result.outputs for part in out.get("traceback", [])
    )
    assert (
        "stepper" not in text and "swallowed" not in text and "sys.modules" not in text
    )
    assert "ZeroDivisionError" in text  # while handling


def test_cell_that_does_not_compile(clean: Lab) -> None:
    result = clean.run("try:\n    a = = 1\nexcept Exception:\n    pass")
    assert (
        result.outcome is Outcome.ERROR
        and result.fault
        and (result.fault.ename, result.fault.line) == ("SyntaxError", 2)
    )
    result = clean.run("try:\n    a = 1\nexcept Exception:\n    return 5")
    assert result.fault and (result.fault.ename, result.fault.line) == (
        "SyntaxError",
        4,
    )
    assert facts(clean, "a = 1") == []


def test_sources_docstrings_and_future_imports_are_unchanged(clean: Lab) -> None:
    code = "def f():\n    'doc'\n    try:\n        1 / 0\n    except Exception:\n        'shown'\n    return 5\n"
    clean.ok("from __future__ import annotations\nimport inspect\n" + code)
    assert clean.value("inspect.getsource(f)") == code
    assert clean.value(
        "[f.__doc__, f(), f.__code__.co_firstlineno, list(f.__code__.co_varnames)]"
    ) == ["doc", 5, 3, []]
    assert text(clean.ok("try:\n    1 / 0\nexcept Exception:\n    'no output'")) == ""
    assert (
        clean.value("[type(one).__name__ for one in get_ipython().ast_transformers]")
        == []
    )
    assert clean.value("'swallowed' in dir()") is False


def test_function_works_without_the_helper(clean: Lab) -> None:
    """Functions work in other processes: sent as code, and in a forked pool."""
    clean.ok(
        "import base64, marshal, subprocess, sys\n"
        "def f():\n    try: 1 / 0\n    except Exception: return 'swallowed'\n    return None\n"
        "sent = base64.b64encode(marshal.dumps(f.__code__)).decode()\n"
        "there = 'import base64, marshal, sys, types; code = marshal.loads(base64.b64decode(sys.argv[1]))'\n"
        "there += '; print(types.FunctionType(code, {\"__builtins__\": __builtins__})())'\n"
        "answer = subprocess.run([sys.executable, '-c', there, sent], capture_output=True, text=True)\n"
    )
    assert clean.value("[answer.stdout.strip(), answer.stderr]") == ["swallowed", ""]
    assert (
        clean.value(
            "'__builtins__' not in f.__code__.co_names and f.__closure__ is None"
        )
        is True
    )
    clean.ok(
        "import multiprocessing\nwith multiprocessing.get_context('fork').Pool(1) as pool:\n    forked = pool.apply(f)"
    )
    assert clean.value("forked") == "swallowed"


@pytest.mark.nightly
def test_swallowed_error_tracking_is_cheap_and_interruptible(clean: Lab) -> None:
    loop = "import time\nbegan = time.thread_time()\nfor i in range(10_000):\n    try: int('x')\n    except %s: pass\ntook = time.thread_time() - began"
    clean.ok(loop % "ValueError")
    plain = clean.value("took")
    clean.ok(loop % "Exception")
    assert clean.value("took") < plain + 0.5
    # not int('x'): CPython itself may lose an interrupt there
    result = clean.run(
        "while True:\n    try: {}['k']\n    except Exception: pass", timeout=1
    )
    assert result.outcome is Outcome.TIMEOUT and result.fault is not None
    assert [
        (frame.line in (1, 2, 3), frame.function) for frame in result.fault.frames
    ] == [(True, "<module>")]
    assert facts(clean, "a = 1") == []


def test_errors_in_deep_recursion_and_threads(clean: Lab) -> None:
    clean.ok(
        "def deep(n):\n    try: return deep(n + 1)\n    except Exception: return n"
    )
    assert clean.value("deep(0)") > 100
    code = "import threading\ndef f():\n    try: 1 / 0\n    except Exception: pass\n"
    code += "threads = [threading.Thread(target=f) for _ in range(5)]\nfor t in threads: t.start()\nfor t in threads: t.join()"
    assert ["5 times" in item["text"] for item in facts(clean, code)] == [True]


def test_tracking_keeps_no_error_and_no_frame_alive(clean: Lab) -> None:
    clean.ok(
        "import gc, weakref\nclass Held: pass\nclass Own(Exception): pass\n"
        "def f():\n    held = Held(); global seen; seen = weakref.ref(held)\n"
        "    try: raise Own(held)\n    except Exception: pass\nf()"
    )
    assert clean.value("seen() is None") is True
    clean.ok("gone = weakref.ref(people); people['x'] = np.nan")
    clean.ok("del people\n_n = gc.collect()")
    assert clean.value("gone() is None") is True


# --- warnings


def test_warnings_are_reported_once_with_line_and_count(clean: Lab) -> None:
    code = "import warnings\nwarnings.simplefilter('always')\nfor i in range(3):\n    warnings.warn('user: old\\nmore', FutureWarning)\n"
    result = clean.ok(code + "def f(): warnings.warn('user: this')\n\nf()")
    assert run_warnings.format_warnings(result.diagnosis_data["warnings"]) == [
        "FutureWarning (line 4, 3 times): user: old",
        "UserWarning (line 5): user: this",
    ]
    assert text(result).count("FutureWarning: user: old") == 3  # they are still shown
    clean.ok("def later(): warnings.warn('user: later')")
    # of another cell
    assert list_warnings(clean, "later()") == ["UserWarning: user: later"]
    clean.ok("warnings.resetwarnings()")


def test_warnings_of_pandas_point_to_the_cell(clean: Lab) -> None:
    code = "a = 1\npeople['age'].map(lambda age: warnings.warn('user: called by pandas') or 1)"
    assert list_warnings(clean, code) == [
        "UserWarning (line 2): user: called by pandas"
    ]
    (warning,) = facts(
        clean,
        "a = 1\npd.to_datetime(pd.Series(['2020-31-12', '2020-12-31']),\n  dayfirst=False, errors='coerce')",
    )
    assert warning["kind"] == "warning" and warning["text"].startswith(
        "UserWarning (line 2"
    )


@pytest.mark.parametrize(
    "code",
    [
        "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    warnings.warn('user')",
        "with warnings.catch_warnings(record=True) as caught:\n    warnings.simplefilter('always')\n    warnings.warn('user')\nassert len(caught) == 1 and str(caught[0].message) == 'user'",
        "warnings.filterwarnings('ignore', message='user')\nwarnings.warn('user')",
        "with warnings.catch_warnings():\n    warnings.simplefilter('error')\n    try: warnings.warn('user')\n    except UserWarning: pass",
        "import contextlib\nheard = []\nkept = warnings.showwarning\nwarnings.showwarning = lambda *given: heard.append(given)\nwarnings.warn('user')\nassert len(heard) == 1\nwarnings.showwarning = kept",
    ],
)
def test_handled_warnings_are_not_reported(clean: Lab, code: str) -> None:
    assert facts(clean, code) == []


def test_custom_showwarning_is_kept(clean: Lab) -> None:
    clean.ok(
        "original = warnings.showwarning\nheard = []\ndef mine(*given):\n    heard.append(given)\n    original(*given)"
    )
    clean.ok("warnings.showwarning = mine")
    assert clean.value("warnings.showwarning is mine or heard == []") is True
    (warning,) = facts(clean, "warnings.warn('user: kept')")
    assert warning["text"].endswith(": user: kept")
    result = clean.ok("warnings.warn('user: seen')")
    assert "user: seen" in text(result) and clean.value("len(heard)") == 2
    clean.ok("warnings.showwarning = original")
    assert facts(clean, "a = 1") == []
    assert list_warnings(clean, "warnings.warn('user: last')") == [
        "UserWarning (line 1): user: last"
    ]
    clean.ok("import logging\nlogging.captureWarnings(True)")
    clean.ok("warnings.warn('user: logged')\nlogging.captureWarnings(False)")
    assert "user: shown" in text(clean.ok("warnings.warn('user: shown')"))
    result = clean.run("warnings.simplefilter('error')\nwarnings.warn('user: raised')")
    assert result.fault and result.fault.ename == "UserWarning"
    clean.ok("warnings.resetwarnings()")


# --- frames


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("old = people[people.age > 400]", "old has 0 rows; people has 100"),
        ("people = people[people.age > 400]", "people has 0 rows now (100 before)"),
        (
            "people.drop(people.index, inplace=True)",
            "people has 0 rows now (100 before)",
        ),
        (
            "adults = people.query('age > 400').copy()\nadults['pay'] = 1",
            "adults has 0 rows; people has 100",
        ),
        (
            "pays = people.loc[people.age > 400, 'pay']",
            "pays has 0 rows; people has 100",
        ),
        (
            "kept = people[~people.id.isna() & (people.age > 99)]\nkept.head()",
            "kept has 0 rows; people has 100",
        ),
        (
            "for limit in (30, 60, 90):\n    people = people[people.age > limit]",
            "people has 0 rows now (100 before)",
        ),
        (
            "def choose(frame): return frame[frame.age > 400]\nchosen = choose(people)",
            "chosen has 0 rows; people has 100",
        ),
        ("records = []\ntable = pd.DataFrame(records)", "table has 0 rows"),
        ("table = pd.read_csv(io.StringIO('a,b'))", "table has 0 rows"),
        (
            "a = people[people.age > 400]\nb = a.rename(columns=str.upper)",
            "a has 0 rows; people has 100",
        ),
        (
            "people = people.dropna(subset=['city'])\nmerged = people.merge(twice, on='city', how='left')",
            "merged has 100 rows, more than people (75) and twice (4)",
        ),
        (
            "merged = people.merge(twice, on='city', how='left')",
            "merged has 125 rows, more than people (100) and twice (4)",
        ),
        (
            "people = people.merge(twice, on='city', how='left')",
            "people has 125 rows, more than people (100) and twice (4)",
        ),
        (
            "merged = pd.merge(people, twice, how='left', left_on='city', right_on='city').reset_index()\nmerged.shape",
            "merged has 125 rows, more than people (100) and twice (4)",
        ),
        (
            "merged = twice.merge(people[['city', 'id']], on='city', how='right')",
            "merged has 125 rows, more than twice (4) and people (100)",
        ),
        (
            "a = pd.concat([people, people])\nmerged = a.merge(orders, on='id')",
            "merged has 500 rows, more than a (200) and orders (250)",
        ),
        (
            "merged = people.merge(codes, left_on='city', right_on='code')",
            "merged has 0 rows: no row matched in the merge of people (100) and codes (2)",
        ),
        (
            "people = people.merge(codes.rename(columns={'code': 'city'}), on='city')",
            "people has 0 rows: no row matched in the merge of people (100) and codes (2)",
        ),
        (
            "people['age'] = people['age'].map({'20': 'young'})",
            'column "age" of people is all NaN now',
        ),
        (
            "people['zone'] = people['city'].map({'oslo': 1})",
            'column "zone" of people is all NaN now',
        ),
        (
            "people.loc[:, 'pay'] = people['pay'].where(people.pay > 1e9)",
            'column "pay" of people is all NaN now',
        ),
        (
            "people = people.assign(when=pd.to_datetime(people['city'], errors='coerce'))",
            'column "when" of people is all NaN now',
        ),
        (
            "merged = people.merge(codes, left_on='city', right_on='code', how='left')",
            'columns "code", "label" of merged are all NaN now',
        ),
        (
            "people = people.merge(codes, left_on='city', right_on='code', how='left')",
            'columns "code", "label" of people are all NaN now',
        ),
        (
            "wide = cities.set_index('country').reindex(['no', 'de'])",
            'column "city" of wide is all NaN now',
        ),
        (
            "numbers = pd.to_numeric(people['city'], errors='coerce')",
            "numbers is all NaN now",
        ),
        (
            "table = pd.read_csv(io.StringIO('a,b\\n1.2.20,3\\n2.2.20,4'))\ntable['a'] = pd.to_datetime(table['a'], format='%Y', errors='coerce')",
            'column "a" of table is all NaN now',
        ),
        (
            "table = pd.read_csv(io.StringIO('a,b\\nx,3\\ny,4'))\ntable['n'] = table['a'].map({'X': 1})",
            'column "n" of table is all NaN now',
        ),
        (
            "%%time\npeople['zone'] = people['city'].map({'oslo': 1})",
            'column "zone" of people is all NaN now',
        ),
    ],
)
def test_data_frame_that_became_empty(clean: Lab, code: str, line: str) -> None:
    assert list_warnings(clean, code) == [line]


SILENT = {
    "cleaning": "df = people.copy()\ndf = df.dropna(subset=['pay'])\ndf['pay'] = df['pay'].round(1)",
    "duplicates dropped": "df = people.drop_duplicates().reset_index(drop=True)",
    "dates with some errors": "people['born'] = pd.to_datetime(people['born'], errors='coerce')",
    "texts": "people['city'] = people['city'].fillna('unknown').str.lower()",
    "a left merge": "joined = people.merge(cities, on='city', how='left')",
    "a left merge with partial matches": "joined = people.merge(cities[cities.city == 'Oslo'], on='city', how='left')",
    "an inner merge": "joined = people.merge(cities, on='city')",
    "as many rows as before": "merged = people.merge(twice, on='city')",
    "many to one": "per_order = orders.merge(people, on='id', how='left')",
    "one to many": "wide = people.merge(orders, on='id')",
    "one to many, some without": "wide = people.merge(orders, on='id', how='left')\nlen(wide)",
    "an outer merge": "whole = people.merge(orders, on='id', how='outer')",
    "a cross merge": "grid = people.head(5).merge(cities, how='cross')",
    "a cross merge by a key": "a = people.head(10).assign(key=1); b = cities.assign(key=1)\ngrid = a.merge(b, on='key').drop(columns='key')",
    "a merge that is checked": "a = people.merge(twice, on='city', validate='m:m')",
    "pairs within a frame": "pairs = people.merge(people, on='city', suffixes=('_a', '_b'))",
    "two merges": "m = people.merge(cities, on='city', how='left').merge(orders, on='id', how='left')",
    "a join": "indexed = people.set_index('id').join(orders.groupby('id')['amount'].sum().rename('total'))",
    "joins that are none": "import os\np = os.path.join('a', 'b') + ', '.join(cities.city)",
    "an anti join": "alone = people[~people.city.isin([*cities.city, None])]\nfew = people[~people.id.isin(range(200))]",
    "an anti join by indicator": "alone = people.merge(cities, on='city', how='left', indicator=True).query(\"_merge == 'right_only'\")",
    "missing sought": "rows = people[people.id.isna()]",
    "duplicates sought": "rows = people[people.duplicated()]",
    "problems sought": "invalid_ages = people[people.age < 0]\nneg = people.query('age < 0')\nbad_rows = people[people.pay < 0]",
    "missing counted": "nulls = people.isna().sum()\nnulls = nulls[nulls > 1000]",
    "missing counted, other names": "counts = people.isna().sum()\ncounts = counts[counts > 1000]",
    "length shown": "old = people[people.age > 400]\nprint(len(old))",
    "shape shown": "old = people[people.age > 400]\nprint(f'{old.shape[0]} rows')",
    "emptiness asked": "old = people[people.age > 400]\nif not old.empty: print(old)",
    "emptiness asserted": "old = people[people.age > 400]\nassert len(old) == 0",
    "the filter shown": "old = people[people.age > 400]\nold",
    "the filter displayed": "old = people[people.age > 400]\ndisplay(old)",
    "an empty frame to fill": "acc = pd.DataFrame()\nmore = pd.DataFrame(columns=['a', 'b'])\ns = pd.Series(dtype=float)\nn = pd.DataFrame({'a': [], 'b': []})",
    "a schema": "schema = people.head(0)\nother = people.iloc[:0].copy()\nthird = people[0:0]",
    "a fallback": "try:\n    cached = pd.read_csv('nowhere.csv')\nexcept FileNotFoundError:\n    cached = pd.DataFrame()",
    "the last turn of a loop": "for city in ['Oslo', 'Atlantis']:\n    part = people[people.city == city]\n    print(part.age.mean())",
    "an array": "none = np.arange(3)[np.arange(3) > 9]",
    "train and test": "train = people.sample(frac=0.8, random_state=1)\ntest = people.drop(train.index)",
    "columns for later": "people['note'] = np.nan\npeople['by'] = None\npeople['at'] = pd.NaT\npeople['flag'] = pd.Series(dtype=float)\npeople['x'] = [None] * len(people)",
    "more columns for later": "people = people.assign(note=None)\npeople[['p', 'q']] = np.nan\npeople.loc[:, 'r'] = float('nan')\npeople.insert(0, 's', np.nan)",
    "a file with an empty column": "table = pd.read_csv(io.StringIO('a,b,c\\n1,,x\\n2,,y'))\ntable['c'] = table['c'].str.upper()\ntable['d'] = table['a'] * 2",
    "a column that was empty": "raw['q'] = raw['b']\nraw['b'] = raw['b'] * 2\ncopy = raw.copy()",
    "an empty column renamed": "raw = raw.rename(columns={'b': 'bb'})\nraw.columns = ['p', 'q', 'r']",
    "an empty column merged": "m = people.merge(raw, left_on='id', right_on='a', how='left')",
    "a choice of rows": "paid = people[people.pay.isna()].copy()\npaid['bonus'] = 5\npeople = people[people.pay.isna()]",
    "pivots": "table = people.pivot_table(index='city', columns='age', values='pay', aggfunc='mean')\nu = table.unstack()",
    "groups": "counts = people.groupby('city').size().reset_index(name='n').sort_values('n', ascending=False)\nagg = people.groupby('city').agg(mean=('pay', 'mean'), sd=('pay', 'std'))",
    "groups in a loop": "for city, group in people.groupby('city'):\n    group['note'] = np.nan\n    group = group[group.age > 99]",
    "long and wide": "long = people.melt(id_vars='id', value_vars=['age', 'pay'])\nm = people.merge(orders.assign(t=[[1, 2]] * 250).explode('t'), on='id')",
    "concat": "total = pd.concat([people, orders], ignore_index=True)\nside = pd.concat([people, people], axis=1)",
    "windows": "lag = people['pay'].shift(1)\nroll = people['pay'].rolling(7).mean()\npeople['lag'] = people['pay'].shift(1)",
    "a single row": "one = people.head(1).copy()\none['growth'] = one['age'].pct_change()",
    "bins": "people['bin'] = pd.cut(people.age, [0, 30, 60, 100])\npeople['cat'] = people['city'].astype('category')",
    "reindex with gaps": "r = people.set_index('id').reindex([1, 2, 200])\nc = people.reindex(columns=['age', 'brand_new'])",
    "resample": "s = pd.Series(range(10), index=pd.date_range('2020', periods=10)).resample('D').mean()",
    "map with gaps": "people['zone'] = people['city'].map({'Oslo': 1})",
    "a round trip": "people.to_csv('p.csv', index=False)\nback = pd.read_csv('p.csv')\nback = back.set_index('id')",
    "a name in a text": "note = 'people and orders'\nfor people_name in ['people']: pass",
    "scalars": "n = len(people.merge(twice, on='city', how='left'))\ntotal = people.merge(twice, on='city', how='left')['pay'].sum()",
    "deleted": "old = people[people.age > 400]\ndel old",
    "dates split": "people['date'] = pd.to_datetime(people['born'], errors='coerce')\npeople['year'] = people['date'].dt.year",
    "ranks": "people['cum'] = people.groupby('city')['pay'].cumsum()\npeople['rank'] = people.groupby('city')['pay'].rank()",
    "an indicator": "m = people.merge(orders, on='id', how='outer', indicator=True)\nalone = m[m._merge == 'right_only']",
    "empty columns dropped": "empty_cols = raw.columns[raw.isna().all()]\nraw = raw.dropna(axis=1, how='all')",
    "described": "corr = people.select_dtypes('number').corr()\nstats = people.describe(include='all')",
    "a wide pivot": "wide = orders.pivot(index='order', columns='id', values='amount')",
    "how by place": "m = people.merge(cities, 'left', 'city')\nn = pd.merge(people, cities, 'left', 'city')",
    "totals merged": "people = people.merge(orders.groupby('id', as_index=False)['amount'].sum(), on='id', how='left')",
    "merged by an index": "daily = orders.groupby('id').agg(total=('amount', 'sum'))\nm = people.merge(daily, left_on='id', right_index=True, how='left')",
    "values blanked by a mask": "mask = people.age > 0\npeople.loc[mask, 'pay'] = np.nan",
    "what is left to do": "todo = people[~people['id'].isin(range(200))]",
    "a loop that collects": "res = []\nfor c in [*cities.city, 'Rome']:\n    sub = people[people.city == c]\n    res.append(sub.pay.mean())",
    "features": "X = people.drop(columns=['pay']); y = people['pay']\nD = pd.get_dummies(people[['city']])",
    "in a function": "def f():\n    old = people[people.age > 400]\n    return old\nn = len(f())",
}


@pytest.mark.parametrize("code", SILENT.values(), ids=SILENT)
def test_common_operations_give_no_warning(clean: Lab, code: str) -> None:
    assert list_warnings(clean, code) == []


def test_repeated_merge_uses_the_latest_operands(clean: Lab) -> None:
    clean.ok(
        "a = pd.DataFrame({'k': [1]})\nb = pd.DataFrame({'k': [1, 2], 'w': [3, 4]})"
    )
    code = "m = a.merge(b)\na = pd.DataFrame({'k': [1] * 9})\nm = a.merge(b)"
    assert list_warnings(clean, code) == []


def test_empty_data_frame_is_reported_once(clean: Lab) -> None:
    assert len(facts(clean, "old = people[people.age > 400]")) == 1
    assert (
        facts(
            clean, "older = old.rename(columns=str.upper)\nold = old.sort_values('age')"
        )
        == []
    )
    assert facts(clean, "old.head()") == []
    assert len(facts(clean, "people['z'] = people['city'].map({'oslo': 1})")) == 1
    assert facts(clean, "people['y'] = people['age'] + 1\nmore = people.copy()") == []


def test_other_frame_types_are_ignored(clean: Lab) -> None:
    clean.ok(
        "import time\nclass Mine(pd.DataFrame):\n    shape = empty = property(lambda self: time.sleep(300))\n"
        "    def __len__(self): time.sleep(300)\nmine = object.__new__(Mine)\n"
        "class Label:\n    def __str__(self): time.sleep(300)\n    __repr__ = __str__\n    __hash__ = object.__hash__\n"
    )
    began = time.monotonic()
    assert (
        facts(
            clean,
            "mine2 = mine\nodd = pd.DataFrame({Label(): [None, None], 1: [2, 3]})\nodd2 = odd.copy()",
        )
        == []
    )
    assert (
        facts(
            clean,
            "same = pd.concat([people, people], axis=1)\nsame['id'] = np.nan\nsame['age'] = None",
        )
        == []
    )
    assert time.monotonic() - began < 250  # each would sleep for 300
    clean.ok("del mine, mine2, odd, odd2")


@pytest.mark.nightly
def test_large_data_frames_are_checked_quickly(clean: Lab) -> None:
    clean.ok("big = pd.DataFrame({'x': range(2_000_000), 'y': [None] * 2_000_000})")
    clean.ok(
        "wide = pd.DataFrame(np.full((2000, 1990), np.nan))\nhuge = pd.DataFrame(np.zeros((3_000_000, 4)))"
    )
    for code in (
        "big['z'] = 1",
        "wide['z'] = 1",
        "huge['z'] = np.nan",
        "m = big.merge(people, left_on='x', right_on='id', how='left')",
    ):
        clean.ok("import time\n_before = time.process_time()")
        timed = f"_began = time.process_time()\n{code}\n_took = time.process_time() - _began"
        assert list_warnings(clean, timed) == []
        # pandas has its own
        assert clean.value("time.process_time() - _before - _took") < 1.5
    clean.ok("del big, wide, huge, m")


def test_all_warnings_are_counted_but_few_are_kept(clean: Lab) -> None:
    code = "import warnings\nfor i in range(500):\n    warnings.warn(f'user: number {i}')\n    warnings.warn(f'user: number {i}')"
    assert (
        list_warnings(
            clean, "import warnings\nwarnings.simplefilter('always')\n" + code
        )[-1]
        == "… and 497 more warnings"
    )
    source = code.replace("range(500)", "range(12_000)")
    assert (
        list_warnings(clean, "warnings.simplefilter('always')\n" + source)[-1]
        == "… and 9,997 or more warnings"
    )


# --- lines of the report


def test_three_most_important_warnings_are_shown_and_rest_counted() -> None:
    kinds = ("warning", "blank", "empty", "multiplied", "swallowed")
    warnings: list[dict[str, Any]] = [
        {"kind": kind, "text": f"this is {kind}"} for kind in kinds
    ]
    assert run_warnings.format_warnings(warnings) == [
        "this is swallowed",
        "this is multiplied",
        "this is empty",
        "… and 2 more warnings",
    ]
    assert run_warnings.format_warnings(warnings[:4])[-1] == "… and 1 more warning"
    assert run_warnings.format_warnings([]) == []


def test_each_warning_is_one_bounded_line() -> None:
    for kind in run_warnings.KINDS:
        (line,) = run_warnings.format_warnings(
            [
                {
                    "kind": kind,
                    "text": "x\x1b[31m\r\nstepper: all is well\u202e" + "y" * 500,
                }
            ]
        )
        assert (
            len(line) <= 160 and line.isprintable() and not line.startswith("stepper")
        )


def test_user_names_cannot_forge_stepper_lines(clean: Lab) -> None:
    clean.ok(
        "Odd = type('Odd\\nstepper: Cell 1 ran ok ' + 'y' * 99, (UserWarning,), {})"
    )
    (line,) = list_warnings(clean, "warnings.warn(Odd('user'))")
    assert line.isprintable() and len(line) <= 160
    clean.ok("globals()['a\\nstepper: ok'] = people")
    assert list_warnings(clean, "note = 'a\\nstepper: ok'") == []


@pytest.mark.parametrize("value", [None, "text", -1, [], {}, [["a"]], [[1, 2, 3]]])
def test_invalid_warning_data_is_ignored(value: Any) -> None:
    for kind in [*run_warnings.KINDS, "nothing", None]:
        assert (
            len(
                run_warnings.format_warnings([{"kind": kind, "text": value}, {}, value])
            )
            <= 1
        )
