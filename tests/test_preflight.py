"""Preflight checks: errors that must be found, and valid cells that must not be refused."""

from __future__ import annotations

import ast
import asyncio
import builtins
import codeop
import inspect
import io
import subprocess
import sys
import time
import types
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepper.diagnosis import ipython_syntax, preflight, syntax_suggestion
from stepper.policy.model import Fault
from stepper.policy.namespace_model import KernelEnvironment, Namespace

PYTHON_VERSION = sys.version_info[:2]
NAMESPACE = {
    "rows": [{"a": 1, "b": 2}, {"a": 3, "b": 4}],
    "number": 3,
    "empty": [],
    "some": lambda *_, **__: None,
}
NAMES = frozenset({*dir(builtins), *NAMESPACE, "df", "plt", "np", "ip"})


def make_namespace(
    names: Collection[str] = NAMES,
    python: tuple[int, int] = PYTHON_VERSION,
    magics: Any = None,
    **options: Any,
) -> Namespace:
    """Return a namespace as a kernel reports it."""
    return Namespace(
        names=tuple(names),
        lasting=KernelEnvironment("1", (), (), False, magics, (), python),
        **options,
    )


KNOWN, UNKNOWN = (
    make_namespace(magics=("ls", "pip", "time", "matplotlib")),
    make_namespace(()),
)


def is_findable(name: str) -> bool:
    return not name.startswith("missing")


def check(source: str, namespace: Namespace = KNOWN):
    return preflight.find_certain_error(
        source, namespace, is_findable, ipython_syntax.get_transformer()
    )


FAILING_CELLS = [
    # --- names
    ("nowhere.head()", 1, "NameError", "name 'nowhere' is not defined"),
    ("nowhere", 1, "NameError", "name 'nowhere' is not defined"),
    ("x = 1\n\nprint(x, nowhere)", 3, "NameError", "name 'nowhere' is not defined"),
    ("\n\n  x = 1\n  print(nowhere)", 4, "NameError", "name 'nowhere' is not defined"),
    ("x = (1,\n     nowhere)", 2, "NameError", "name 'nowhere' is not defined"),
    ("later(nowhere)\nlater = 1", 1, "NameError", "name 'nowhere' is not defined"),
    ("for row in nowhere:\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    ("while nowhere:\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    (
        "with open(nowhere) as file:\n    pass",
        1,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    ("with some(nowhere):\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    ("if nowhere > 3:\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    ("assert nowhere, 'said'\n1", 1, "NameError", "name 'nowhere' is not defined"),
    (
        "x = nowhere if number else 1\nnowhere()",
        2,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    ("x = 1 if nowhere else 2", 1, "NameError", "name 'nowhere' is not defined"),
    ("x = nowhere and 1", 1, "NameError", "name 'nowhere' is not defined"),
    ("x = 1 < nowhere < 2", 1, "NameError", "name 'nowhere' is not defined"),
    ("@nowhere\ndef f():\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    (
        "def f(\n    x=nowhere,\n):\n    pass",
        2,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    ("def f(*, x=nowhere):\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    ("f = lambda x=nowhere: x", 1, "NameError", "name 'nowhere' is not defined"),
    ("class A(nowhere):\n    pass", 1, "NameError", "name 'nowhere' is not defined"),
    ("x = [a for a in nowhere]", 1, "NameError", "name 'nowhere' is not defined"),
    ("x = sum(a for a in nowhere)", 1, "NameError", "name 'nowhere' is not defined"),
    ("print(f'''a\n{nowhere:>3}''')", 2, "NameError", "name 'nowhere' is not defined"),
    ("print(f'{number:{nowhere}}')", 1, "NameError", "name 'nowhere' is not defined"),
    ("x: int = nowhere", 1, "NameError", "name 'nowhere' is not defined"),
    ("rows[nowhere] = 1", 1, "NameError", "name 'nowhere' is not defined"),
    ("nowhere.x = 1", 1, "NameError", "name 'nowhere' is not defined"),
    ("some(*nowhere)", 1, "NameError", "name 'nowhere' is not defined"),
    (
        "some(df=1)\nsome(nowhere=nowhere)",
        2,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    (
        "match nowhere:\n    case 1:\n        pass",
        1,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    ("x = await nowhere()", 1, "NameError", "name 'nowhere' is not defined"),
    (
        "from pathlib import Path\nroot = Path(__file__)",
        2,
        "NameError",
        "name '__file__' is not defined",
    ),
    ("import math as m\nmath.sqrt(1)", 2, "NameError", "name 'math' is not defined"),
    (
        "try:\n    x = 1\nfinally:\n    pass\nnowhere()",
        5,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    (
        "if number > 9:\n    raise ValueError\nnowhere()",
        3,
        "NameError",
        "name 'nowhere' is not defined",
    ),
    (
        "first_missing()\nsecond_missing()",
        1,
        "NameError",
        "name 'first_missing' is not defined",
    ),
    ("x = 1\r\nnowhere()", 2, "NameError", "name 'nowhere' is not defined"),
    # --- modules
    ("import missing", 1, "ModuleNotFoundError", "No module named 'missing'"),
    (
        "import missing.sub.module as m",
        1,
        "ModuleNotFoundError",
        "No module named 'missing'",
    ),
    (
        "from missing.sub import name",
        1,
        "ModuleNotFoundError",
        "No module named 'missing'",
    ),
    ("from missing import *", 1, "ModuleNotFoundError", "No module named 'missing'"),
    ("import os, missing", 1, "ModuleNotFoundError", "No module named 'missing'"),
    (
        "import os\nimport numpy as np\n\nimport missing_one",
        4,
        "ModuleNotFoundError",
        "No module named 'missing_one'",
    ),
    (
        "import missing\n!pip install missing",
        1,
        "ModuleNotFoundError",
        "No module named 'missing'",
    ),
    ("import missing\nnowhere", 1, "ModuleNotFoundError", "No module named 'missing'"),
    # --- input
    (
        "name = input('Your name? ')",
        1,
        "StdinNotImplementedError",
        "raw_input was called, but this frontend",
    ),
    (
        "x = 1\nage = int(input())",
        2,
        "StdinNotImplementedError",
        "raw_input was called",
    ),
    ("!ls\nx = input()", 2, "StdinNotImplementedError", "raw_input was called"),
    # --- syntax
    ("x = 1\nprint(x", 2, "SyntaxError", "'(' was never closed"),
    ("\n\nx = = 1", 3, "SyntaxError", "invalid syntax"),
    ("nowhere()\nx = = 1", 2, "SyntaxError", "invalid syntax"),
    ("if number:\nprint(1)", 2, "IndentationError", "expected an indented block"),
    ("x = 1\n  y = 2", 2, "IndentationError", "unexpected indent"),
    ("if number:\n\tx = 1\n        y = 2", 3, "TabError", "inconsistent use of tabs"),
    (
        "\nif number:\n        x = 1\n    y = 2",
        4,
        "IndentationError",
        "unindent does not match",
    ),
    ("x = 1\nreturn x", 2, "SyntaxError", "'return' outside function"),
    ("x = 1\nyield x", 2, "SyntaxError", "'yield' outside function"),
    ("x = 1\nbreak", 2, "SyntaxError", "'break' outside loop"),
    ("def f():\n    await some()", 2, "SyntaxError", "'await' outside async function"),
    ("def f(x, x):\n    pass", 1, "SyntaxError", "duplicate argument 'x'"),
    (
        "def f():\n    x = 1\n    global x",
        3,
        "SyntaxError",
        "assigned to before global",
    ),
    ("nonlocal x\n1", 1, "SyntaxError", "nonlocal declaration not allowed"),
    ("%matplotlib inline\nx = = 1", 2, "SyntaxError", "invalid syntax"),
    ("!echo a \\\n  b \\\n  c\nx = 1\nx = = 1", 5, "SyntaxError", "invalid syntax"),
    ("  x = 1\n  x = = 1", 2, "SyntaxError", "invalid syntax"),
    ("print 'a'\n1", 1, "SyntaxError", "Missing parentheses"),
    ("x = '''a\nb", 1, "SyntaxError", "unterminated triple-quoted string"),
]


@pytest.mark.parametrize(("source", "line", "ename", "message"), FAILING_CELLS)
def test_certain_failure_is_found(
    source: str, line: int, ename: str, message: str
) -> None:
    fault = check(source)
    assert fault is not None
    assert (fault.ename, fault.line) == (ename, line)
    assert fault.evalue.startswith(message) or message in fault.evalue
    assert fault.mro[0].rsplit(".", 1)[-1] == ename


# Each cell runs with plain Python in NAMESPACE: see test_valid_cells_run.
PLAIN = r'''
x = number + 1
---
print(rows)
---
x, y = 1, 2
x + y
---
a = b = c = 0; a
---
first, *rest = [1, 2, 3]
print(*rest, sep=",")
---
some(*rows, **rows[0])
---
if (n := len(rows)) > 1:
    print(n)
---
print((y := 3), y)
---
[y := 1, y**2]
---
while (left := empty):
    nowhere
---
total = 0
for row in rows:
    total += row["a"]
print(row, total)
---
for i, (k, v) in enumerate({"a": 1}.items()):
    print(i, k, v)
---
for x in empty:
    nowhere(x)
---
for x in []:
    nowhere(x)
---
for x in range(0):
    nowhere(x)
---
for x in range(3):
    if x < 5:
        continue
    nowhere(x)
---
for x in (1, 2):
    break
else:
    nowhere()
---
for x in [1]:
    if x: break
    nowhere()
---
for x in [*empty]:
    nowhere(x)
---
for x in "":
    nowhere
---
while False:
    nowhere()
---
while True:
    break
    nowhere()
---
[nowhere(x) for x in empty]
---
{x: nowhere for x in empty if nowhere}
---
[nowhere for x in (1, 2) if x > 5]
---
[nowhere for x in (1, 2) for y in empty]
---
lazy = (nowhere(x) for x in [1, 2])
---
any(x == 1 or nowhere for x in [1, 2])
---
[[cell for cell in row] for row in [[1, 2], [3]]]
---
[x * y for x in range(3) for y in range(x)]
---
{k: [v for v in vs] for k, vs in {"a": [1]}.items()}
---
squares = {n * n for n in range(5) if n % 2}
---
f = lambda: nowhere
---
f = lambda x, y=number: x + y + nowhere
---
sorted(rows, key=lambda row: row["a"])
---
def f():
    return nowhere
---
def f(x: "nowhere", y: int = number) -> "nowhere":
    return x
---
from __future__ import annotations
def f(x: nowhere) -> nowhere[int]: ...
---
x = 1
from __future__ import annotations
---
def fill():
    global filled
    filled = 1
fill()
print(filled)
---
def outer():
    count = 0
    def inner():
        nonlocal count
        count += 1
        return count
    return inner()
outer()
---
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)
fib(5)
---
def is_even(n): return n == 0 or is_odd(n - 1)
def is_odd(n): return n != 0 and is_even(n - 1)
is_even(4)
---
x = 1
global x
---
try:
    nowhere
except NameError:
    nowhere = 1
---
try:
    import missing
except ImportError:
    missing = None
---
try:
    import missing as m
    HAS = True
except ImportError:
    HAS = False
---
try:
    print(1)
except nowhere:
    pass
else:
    print(2)
finally:
    print(3)
---
try:
    input()
except (EOFError, OSError, RuntimeError):
    pass
---
try:
    1 / 0
except ZeroDivisionError as error:
    print(error)
---
from contextlib import suppress
with suppress(NameError):
    nowhere
---
from contextlib import suppress as ignoring
with ignoring(NameError):
    nowhere
---
from contextlib import suppress
with suppress(NameError), nowhere():
    pass
---
from contextlib import ExitStack, suppress
with ExitStack() as stack:
    stack.enter_context(suppress(NameError))
    nowhere
---
import unittest
with unittest.TestCase().assertRaises(NameError):
    nowhere
---
import io
from contextlib import redirect_stdout
with redirect_stdout(io.StringIO()) as out:
    print(number)
out.getvalue()
---
import tempfile, pathlib
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "x")
    with open(path, "w") as file:
        file.write("a")
    print(path.read_text())
---
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import missing
    nowhere
---
if number > 5:
    import missing
else:
    import json
---
if False:
    nowhere()
elif number == 4:
    nowhere()
else:
    x = 1
---
if number:
    later = 1
print(later)
---
x = 1 if number else nowhere
---
x = number or nowhere
---
x = number and empty and nowhere
---
5 < number < nowhere
---
assert number, nowhere
---
assert number == 3, f"{nowhere}"
---
class Point:
    size = 2
    double = size * 2
    def area(self):
        return nowhere(self.size)
    @property
    def x(self): return 1
    @x.setter
    def x(self, value): pass
---
class Colour:
    RED = 1
    ALL = [RED]
    name = __qualname__, __module__
---
from enum import Enum, auto
class Colour(Enum):
    RED = auto()
    BLUE = RED
---
import collections
class Free(type):
    @classmethod
    def __prepare__(cls, name, bases): return collections.defaultdict(int)
class Magic(metaclass=Free):
    nowhere
---
from dataclasses import dataclass, field
@dataclass(frozen=True)
class Point:
    x: int = 0
    names: list = field(default_factory=list)
Point()
---
from typing import NamedTuple
class Row(NamedTuple):
    a: int
    b: str = "x"
Row(1)
---
import functools
@functools.lru_cache(maxsize=None)
def slow(n): return nowhere if n > 5 else n
slow(1)
---
def timed(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs): return function(*args, **kwargs)
    return wrapper
import functools
@timed
def f(): pass
---
match number:
    case 3:
        print("three")
    case _:
        nowhere()
---
match {"kind": "a", "size": 3, "more": 1}:
    case {"kind": str(kind), "size": size, **others}:
        print(kind, size, others)
---
match [1, 2, 3]:
    case [one, *more] if one:
        print(one, more)
    case [x] | (x, _):
        print(x)
---
match number:
    case 1 | 2 as low: print(low)
    case other: print(other)
---
x = 3
del x
---
x = [1, 2]
del x[0], x
x = 4
print(x)
---
values: list[int] = []
values.append(1)
---
x: int
---
import os.path
os.path.join("a", "b")
---
import os, sys, json as j
j.dumps({"a": os.sep})
---
from collections import defaultdict as dd, Counter
dd(int), Counter("ab")
---
from math import *
sqrt(number) + pi
---
import sys
sys.exit
---
import sys
sys.exit(0)
nowhere
---
raise SystemExit
nowhere()
---
raise RuntimeError("meant")
import missing
---
import sys
if number:
    sys.exit()
nowhere()
---
if number:
    raise SystemExit
nowhere()
---
import sys
for x in [1]:
    sys.exit(0)
nowhere()
---
import sys
def leave():
    sys.exit()
leave(); nowhere()
---
globals()["made"] = 1
made
---
exec("made = 1")
made
---
locals().update(made=1)
made
---
for k, v in {"made": 1}.items():
    globals()[k] = v
made + 1
---
vars()["made"] = 1
print(made)
---
eval("number + 1")
---
import builtins
setattr(builtins, "made_for_all", 1)
made_for_all
---
import builtins
builtins.made_for_all = 1
print(made_for_all)
---
import sys
sys.modules["missing"] = sys
import missing
---
import sys, types
sys.modules.setdefault("missing_too", types.ModuleType("missing_too"))
import missing_too
---
import sys, types
bag = sys.modules
bag["missing_3"] = types.ModuleType("missing_3")
import missing_3
---
import sys, tempfile, pathlib
folder = tempfile.mkdtemp()
pathlib.Path(folder, "missing_written.py").write_text("x = 1")
sys.path.append(folder)
import missing_written
---
import sys, tempfile, pathlib
folder = tempfile.mkdtemp()
pathlib.Path(folder, "missing_added.py").write_text("x = 1")
sys.path += [folder]
from missing_added import x
---
from unittest.mock import patch
with patch("builtins.input", return_value="x"):
    name = input()
---
from unittest import mock
mock.patch("builtins.input", return_value="x").start()
name = input()
mock.patch.stopall()
---
input = lambda prompt="": "x"
name = input("?")
---
def input(prompt): return "typed"
name = input("?")
---
import getpass
kept, getpass.getpass = getpass.getpass, lambda *a: "x"
getpass.getpass()
getpass.getpass = kept
---
def ask():
    return input("?")
---
name = "x" or input()
---
if False:
    input()
---
f"{number!r:>{number}} {rows[0]['a']} {{}}"
---
f"{(lambda: nowhere)!s:.3}"
---
print("%s %d" % ("a", 1), "{}".format(1))
---
x = """
nowhere(
"""
---
# only a comment
---

---
x = 1  # nowhere(
---
pass
---
...
---
"""Only a text: nowhere."""
---
print(__name__ if number else __doc__)
---
if __name__ == "__main__":
    nowhere()
---
x = [1, 2, 3][::number]
x[0], x[-1:] = 1, [2]
---
a = {**rows[0], "c": 3}
---
x = y = []
x += [1]
---
print(type(number), isinstance(number, int), callable(some))
---
import re
re.compile(r"\d+\.")
"\d"
---
print("a" is "a")
---
rows[0]["a"] = \
    number
---
def gen():
    yield 1
    yield from gen()
next(gen())
---
import asyncio
async def main():
    async with nowhere as x: pass
    async for y in nowhere: pass
    return [z async for z in nowhere]
---
from types import SimpleNamespace as Bag
bag = Bag(a=1); bag.b = bag.a
---
import random; random.seed(1); random.random()
---
from itertools import product
print([p for p in product("ab", repeat=2)])
---
def f(*args, key=None, **kwargs): return args, key, kwargs
f(1, *rows, key=2, other=3)
---
def f(a, /, b, *, c): return a
f(1, b=2, c=3)
---
def wrap(fn=print, *, end=len): return fn
wrap()
---
zip(*[iter([1, 2])] * 2)
---
(lambda self: self)(1)
---
print(_ := 5, _)
---
_, second = 1, 2
_
---
import threading
def work():
    global result
    result = 1
thread = threading.Thread(target=work); thread.start(); thread.join()
result
---
with open(__import__("os").devnull) as nothing: pass
---
import json, urllib.request as ur, xml.etree.ElementTree as ET
ET.fromstring("<a/>").tag
---
empty.append if empty else None
---
not empty or nowhere
---
x = number if number else nowhere if nowhere else nowhere
---
class Base:
    def __init_subclass__(cls, **more): cls.more = more
class Child(Base, colour="red"):
    made = number
Child.more
'''
PLAIN_CELLS = PLAIN.lstrip("\n").split("\n---\n")

# Each cell is valid in IPython, or its failure is not predictable.
KERNEL_CELLS = r"""
%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2])
---
%time nowhere()
---
%load_ext autoreload
%autoreload 2
made_by_magic
---
%run other.ipynb
made_there + 1
---
%store -r kept
kept
---
!pip install missing
import missing
---
%pip install missing
import missing
missing.go()
---
!ls -la | grep "it's
---
files = !ls *.csv
files[0]
---
home = %env HOME
home
---
df?
---
df.head??
---
?df
---
%%time
nowhere = slow(
---
%%bash
for f in *.csv; do echo $f; done
---

%%html
<b>bold</b>
---
  %%bash
echo "
---
%%writefile missing.py
x = = 1
---
%%sql result <<
SELECT * FROM t
---
%%timeit -n 3
undefined_here
---
pip install missing
---
ls
---
ls -la
---
time nowhere(3)
---
time (nowhere)
---
matplotlib inline
---
exit
---
exit()
nowhere
---
quit()
nowhere
---
_
---
_ + __ + ___
---
print(_3, _i, _ii, _iii, _i3, _ih, _oh, _dh)
---
In[1], Out[2]
---
display(df)
---
from IPython.display import display, HTML, Markdown
display(HTML("<b>x</b>"), Markdown("x"))
---
get_ipython().run_line_magic("time", "1")
made_somewhere
---
ip.push({"made": 1})
made + 1
---
ip.user_ns["made"] = 1
made
---
from sympy import var
var("x y")
x + y
---
import sympy
sympy.var("x y")
x * y
---
import dill
dill.load_session("kept.pkl")
kept
---
from icecream import install
install()
ic(df)
---
from pylab import *
plot([1, 2])
---
import enum
@enum.global_enum
class Colour(enum.Enum):
    CRIMSON = 1
CRIMSON
---
import __main__
__main__.made = 1
made
---
import inspect
inspect.currentframe().f_globals["made"] = 1
made
---
from unknown_project import context
import missing
---
import setup_paths
import missing
---
import findspark
findspark.init()
import missing_pyspark
---
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "pip", "install", "missing"])
import missing
---
import os
os.chdir("src")
import missing
---
from pathlib import Path
Path("missing.py").write_text("x = 1")
import missing
---
some("install missing")
import missing
---
while True:
    some()
nowhere
---
with some(), open("x"):
    nowhere
---
if not some():
    some()
import missing
---
from . import sibling
---
from .. import missing
---
import ipywidgets
out = ipywidgets.Output()
with out:
    nowhere
---
import pytest
with pytest.raises(NameError):
    nowhere
---
from loguru import logger
with logger.catch():
    nowhere
---
with some() as manager:
    nowhere
---
async with some() as session:
    nowhere
---
async for x in some():
    nowhere
---
[nowhere async for x in some()]
---
await some()
---
import asyncio
await asyncio.sleep(0)
results = await asyncio.gather(*[some(i) for i in range(3)])
---
async def fetch(url):
    async with aiohttp.ClientSession() as session:
        return await session.get(url)
data = [await fetch(u) for u in empty]
---
import os
os._exit(0)
nowhere
---
import os, signal
os.kill(os.getpid(), signal.SIGKILL)
nowhere
---
fig, axes = plt.subplots(1, 2, figsize=(8, 3))
for ax, name in zip(axes, ["a", "b"]):
    ax.hist(df[name], bins=20)
    ax.set_title(name)
fig.tight_layout(); plt.show();
---
df["x"] = df["a"].apply(lambda v: undefined_helper(v))
---
df.groupby("a").agg(total=("b", "sum")).assign(c=lambda d: d.total * 2)
---
df[(df.a > 1) & ~df.b.isna()]
---
with np.errstate(divide="ignore"):
    ratio = df.a / df.b
---
with plt.style.context("ggplot"):
    plt.plot(df.a)
---
>>> x = 1
>>> x
1
---
    >>> x = 1
---
In [3]: x = 1
---
from getpass import getpass
import getpass
key = getpass.getpass()
---
key = getpass.getpass()
""".lstrip("\n").split("\n---\n")
KERNEL_CELLS.remove("key = getpass.getpass()\n")

NEWER_CELLS = [
    ((3, 11), "try:\n    pass\nexcept* nowhere:\n    pass"),
    ((3, 12), "type Pair[T] = tuple[T, nowhere]"),
    (
        (3, 12),
        "def first[T](xs: list[T]) -> T: return xs[0]\nclass Box[T]:\n    kind = T\nfirst([1])",
    ),
    ((3, 12), "def f[**P, *Ts](x): return P, Ts\nf(1)"),
    ((3, 12), "f'{rows[0]['a']}' f'{'nested' + f'{number}'}'"),
    ((3, 13), "class Box[T = int]: pass"),
]
NEWER_CELLS = [source for version, source in NEWER_CELLS if version <= PYTHON_VERSION]
FREE_CELLS = PLAIN_CELLS + KERNEL_CELLS + NEWER_CELLS


def test_table_of_valid_cells_is_long() -> None:
    assert len(FREE_CELLS) >= 200
    assert len(set(FREE_CELLS)) == len(FREE_CELLS)


@pytest.mark.parametrize("source", FREE_CELLS)
@pytest.mark.parametrize("message", [KNOWN, UNKNOWN], ids=["known", "unknown"])
def test_valid_cell_is_not_stopped(source: str, message: Namespace) -> None:
    assert check(source, message) is None


def execute(code: str, **names: object) -> None:
    """Run a cell by statements like IPython, with `__future__` imports and `await`."""
    compiler = codeop.Compile()
    compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    space = {
        **NAMESPACE,
        "rows": [dict(row) for row in NAMESPACE["rows"]],
        "empty": [],
        **names,
    }
    space["__builtins__"] = builtins
    for statement in ast.parse(code).body:
        compiled = compiler(ast.Module([statement], []), "<cell>", "exec")
        coroutine = types.FunctionType(compiled, space)()
        if compiled.co_flags & inspect.CO_COROUTINE:
            asyncio.run(coroutine)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("source", PLAIN_CELLS + NEWER_CELLS)
def test_valid_cells_run(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    modules, builtin_names = set(sys.modules), set(vars(builtins))
    try:
        execute(source, __name__="cell")
    except (SystemExit, RuntimeError) as error:
        assert isinstance(error, SystemExit) or str(error) == "meant"
    finally:
        for name in set(sys.modules) - modules:
            if name.startswith("missing"):
                del sys.modules[name]
        for name in set(vars(builtins)) - builtin_names:
            delattr(builtins, name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "source", [source for source, _, ename, _ in FAILING_CELLS if ename == "NameError"]
)
def test_undefined_names_do_fail(source: str) -> None:
    with pytest.raises(NameError):
        execute(ipython_syntax.get_transformer()(source), open=lambda *_: io.StringIO())


def test_unknown_namespace_disables_name_checks() -> None:
    assert check("nowhere.head()\ninput()", UNKNOWN) is None
    assert check("import missing", UNKNOWN) is not None
    assert check("x = = 1", UNKNOWN) is not None


def test_redefined_input_is_not_checked() -> None:
    namespace = make_namespace(own_input=True)
    assert check("x = input()") is not None
    assert check("x = input()", namespace) is None


def test_one_line_cell_may_be_a_magic_if_magics_are_unknown() -> None:
    unsure = make_namespace()
    for source in ("nowhere", "sql SELECT 1", "nowhere (3)", "nowhere(3)", " nowhere "):
        assert check(source, unsure) is None
    for source in (
        "nowhere.head()",
        "x = nowhere",
        "print(nowhere)",
        "nowhere\nnowhere",
        "import missing",
    ):
        assert check(source, unsure) is not None


def test_syntax_is_not_checked_for_a_newer_kernel() -> None:
    newer = make_namespace(python=(PYTHON_VERSION[0], PYTHON_VERSION[1] + 1))
    older = make_namespace(python=(3, 9))
    assert check("x = = 1", newer) is None
    assert check("x = = 1", make_namespace(python=(0, 0))) is None
    assert check("x = = 1", older) is not None
    assert check("x = 1\nnowhere()", newer) is not None


def test_preflight_error_matches_the_kernel_error() -> None:
    name, module = check("x = nowhere"), check("import missing.sub")
    assert name and name.attributes == {"name": "nowhere"}
    assert name.mro == ("NameError", "Exception", "BaseException", "object")
    assert module and module.attributes == {"name": "missing"}
    assert module.mro == (
        "ModuleNotFoundError",
        "ImportError",
        "Exception",
        "BaseException",
        "object",
    )
    syntax = check("\n    x = 1\n    if x\n        y")
    assert syntax and syntax.mro == (
        "SyntaxError",
        "Exception",
        "BaseException",
        "object",
    )
    assert syntax.attributes == {"lineno": 3, "offset": 9, "text": "    if x"}


def test_input_error_has_the_mro_of_ipython() -> None:
    error = pytest.importorskip("IPython.core.error").StdinNotImplementedError
    fault = check("input()")
    names = [
        kind.__name__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__name__}"
        for kind in error.__mro__
    ]
    assert fault and list(fault.mro) == names


@pytest.mark.parametrize(
    "source",
    [
        "(" * 5000,
        "-" * 50_000 + "1",
        "a" + ".b" * 20_000,
        "\0",
        "\ud800",
        "x" * 200_000,
    ],
)
def test_sources_that_crash_a_parser_are_accepted_or_syntax_errors(
    source: str,
) -> None:
    fault = check(source)
    assert fault is None or fault.ename == "SyntaxError"


@pytest.mark.parametrize(
    "source",
    [
        " " * 19_000,
        "\n" * 19_000,
        "a " * 9_000,
        "(" * 19_000,
        "f'{" * 6_000,
        "f'{(" + "''" * 9_000,
    ],
)
def test_check_time_is_bounded(source: str) -> None:
    began = time.process_time()
    fault = check(source) or Fault("SyntaxError", "invalid syntax", ("SyntaxError",), 1)
    syntax_suggestion.suggest_change(source, fault)
    assert time.process_time() - began < 5


def test_failing_transformer_stops_no_cell() -> None:
    def broken(_: str) -> str:
        raise RuntimeError

    assert preflight.find_certain_error("x = = 1", KNOWN, is_findable, broken) is None


PIECES = st.sampled_from([*FREE_CELLS, *(source for source, *_ in FAILING_CELLS)])
MARKS = st.sampled_from(
    [
        *"()[]{}'\"\\\n:;%!?#=,* \t\r\x0c\u2028@",
        '"""',
        "f'",
        "f'{",
        "%%",
        "await ",
        "return ",
        "\\\n",
    ]
)


@st.composite
def mutated_sources(draw: st.DrawFn) -> str:
    source = draw(PIECES)
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(source)))
        end = draw(st.integers(begin, min(len(source), begin + 8)))
        source = (
            source[:begin] + draw(st.one_of(MARKS, PIECES, st.just(""))) + source[end:]
        )
    return source


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.text(), mutated_sources()))
@example("\\")
@example("%%")
@example("x = !")
@example("?\n")
def test_check_never_raises(source: str) -> None:
    lines = source.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    fault = check(source)
    assert fault is None or (fault.line is not None and 1 <= fault.line <= lines)
    if fault is not None and fault.ename == "SyntaxError":
        syntax_suggestion.suggest_change(source, fault)


def test_ipython_itself_is_not_imported() -> None:
    """IPython's `__init__` (0.5 s, 21 MB) is not imported; its stand-in is removed."""
    code = (
        "import sys; from stepper.diagnosis import ipython_syntax as ipython; read = ipython.get_transformer();"
        "assert not [name for name in sys.modules if name.startswith('IPython')];"
        "assert read('%time x').startswith('get_ipython()');"
        "import IPython.core.interactiveshell; assert IPython.__version__; assert ipython.get_transformer() is read"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
