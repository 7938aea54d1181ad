"""Names bound by a cell, as observed by a real kernel.

No cell becomes stale if a small value equals the earlier value.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import Project, code
from tests.environments import environment

SMALL = """
import numpy as np, pandas as pd
n, text, both = 1, 'a', {'k': [1, (2.5, None)], 's': {1, 2}}
small = np.arange(5)
frame = pd.DataFrame({'a': [1, 2], 'b': ['x', None]})
large = list(range(100_000))
def f(): return 1
"""
READ = [
    ("n", "n"),
    ("text", "text"),
    ("both", "both"),
    ("small", "small"),
    ("frame", "frame"),
    ("large", "large"),
]


@pytest.mark.nightly
def test_equal_small_values_make_nothing_stale(module_project: Project) -> None:
    packages = Path(
        environment(sys.executable, "numpy", "pandas>=2.2,<4")
    ).parent.parent.glob("lib/*/site-packages")
    path_cell = code(f"import sys; sys.path.append({str(next(packages))!r})", "there")
    cells = [
        path_cell,
        code(SMALL, "a"),
        *(code(f"{name}; f()", cell_id) for cell_id, name in READ),
    ]
    notebook = module_project.notebook("small.ipynb", cells)
    assert module_project.json("run", "small")["ok"]

    def stale() -> list[str]:
        return [
            stale_cell["cell_id"]
            for stale_cell in module_project.json("status", "small")["stale"]
        ]

    assert "ran ok" in notebook.replace("a", SMALL + "\nmore = 1").text
    assert stale() == ["large"]
    assert module_project.json("run", "small", "--stale")["ran"] == 1
    assert stale() == []
    notebook.replace(
        "a",
        SMALL.replace("2.5", "2.6")
        .replace("arange(5)", "arange(5) + 1")
        .replace("'x'", "'y'"),
    )
    assert stale() == ["both", "small", "frame", "large"]


def test_names_observed_only_by_the_kernel(module_project: Project) -> None:
    cells = [
        code("exec('x = [1]')", "a"),
        code("x", "b"),
        code("class Own(list): pass\nown = Own()", "c"),
        code("own", "d"),
    ]
    notebook = module_project.notebook("seen.ipynb", cells)
    assert module_project.json("run", "seen")["ok"]
    notebook.replace("a", "exec('x = [2]')")
    stale = module_project.json("status", "seen")["stale"]
    assert [(result["cell_id"], result["because"]) for result in stale] == [
        ("b", [{"name": "x", "provider_cell_id": "a"}])
    ]
    deleted = notebook.delete("c").text
    assert (
        "Hidden state: cell 3 read `own` from a deleted cell (cell 3 when it ran)."
        in deleted
    )


# The cell that sets state, its other version, and the cell that reads it.
SETTERS = {
    "seed": ("random.seed({})", "draw = random.random()"),
    "options": ("np.set_printoptions(precision={})", "print(np.array([1 / 3]))"),
    "environment": ("os.environ['S2'] = '{}'", "value = os.environ['S2']"),
    "file": ("Path('s2.txt').write_text('{}')", "text = Path('s2.txt').read_text()"),
    "module": ("calendar.S2 = {}", "month = calendar.S2"),
    "result": ("10 + {}", "after = _ + 1"),
    "config": (
        "%config InteractiveShell.ast_node_interactivity = {}",
        "1\n'two'",
    ),
    "generator": ("drawn = rng.normal(size={})", "noise = rng.normal()"),
    "query": ("limit = {}", "print(len(frame.query('n > @limit')))"),
    "text": ("number = {}", "total = eval('number + 1')"),
    "database": (
        "con.execute('INSERT INTO t VALUES ({})')",
        "rows = con.execute('SELECT * FROM t').fetchall()",
    ),
    "file_database": (
        "with sqlite3.connect('s2.db') as db:\n"
        "    db.execute('DROP TABLE IF EXISTS t')\n"
        "    db.execute('CREATE TABLE t AS SELECT {} AS n')\ndb.close()",
        "both = sqlite3.connect('s2.db').execute('SELECT * FROM t').fetchall()",
    ),
}
IMPORTS = """
import calendar, os, random, sqlite3
from pathlib import Path
con = sqlite3.connect(':memory:')
con.execute('CREATE TABLE t (n)')
"""
PACKAGES = """
import numpy as np, pandas as pd
rng = np.random.default_rng(0)
frame = pd.DataFrame({'n': [1, 2, 3]})
"""


# The two versions of a setter, if they are not 1 and 2.
VALUES = {"config": ("'last_expr'", "'all'")}


def check_setters(
    project: Project, name: str, kinds: Sequence[str], *first_sources: str
) -> None:
    """Change each setter: only its reader is stale, and then has its new value."""
    cells = [code(source, f"first-{i}") for i, source in enumerate(first_sources)]
    cells.append(code("unrelated = 1", "unrelated"))
    for kind in kinds:
        setter, reader = SETTERS[kind]
        value, _ = VALUES.get(kind, ("1", "2"))
        cells.append(code(setter.format(value), f"set-{kind}"))
        cells.append(code("other = unrelated + 1", f"other-{kind}"))
        cells.append(code(reader, f"read-{kind}"))
    notebook = project.notebook(f"{name}.ipynb", cells)
    assert project.json("run", name)["ok"]
    status = project.json("status", name)
    assert (status["stale"], status["hidden"]) == ([], [])
    for kind in kinds:
        setter, _ = SETTERS[kind]
        _, value = VALUES.get(kind, ("1", "2"))
        notebook.replace(f"set-{kind}", setter.format(value))
        stale = project.json("status", name)["stale"]
        assert [mark["cell_id"] for mark in stale] == [f"read-{kind}"], kind
        assert project.json("run", name, "--stale")["ok"]
        status = project.json("status", name)
        assert (status["stale"], status["hidden"]) == ([], []), kind


def test_readers_of_state_outside_the_variables(module_project: Project) -> None:
    check_setters(module_project, "outside", ["module", "result", "file"], IMPORTS)


@pytest.mark.nightly
def test_run_stale_gives_the_state_of_a_replay(module_project: Project) -> None:
    packages = Path(
        environment(sys.executable, "numpy", "pandas>=2.2,<4")
    ).parent.parent.glob("lib/*/site-packages")
    path = f"import sys; sys.path.append({str(next(packages))!r})"
    check_setters(module_project, "replay", [*SETTERS], path, IMPORTS, PACKAGES)
    assert module_project.json("verify", "replay")["reproduces"]


def test_former_object_in_another_value(module_project: Project) -> None:
    """An equal value is not enough if another value contains the former object."""
    cells = [
        code("nums = [1, 2]\nk = 1", "a"),
        code("def wrap(value): return {'value': value}\nbox = wrap(nums)", "b"),
        code("total = sum(nums)", "c"),
        code("same = list(nums)", "d"),
    ]
    notebook = module_project.notebook("former.ipynb", cells)
    assert module_project.json("run", "former")["ok"]

    def list_stale() -> list[str]:
        marks = module_project.json("status", "former")["stale"]
        return [mark["cell_id"] for mark in marks]

    notebook.replace("a", "nums = [1, 2]\nk = 2")
    assert list_stale() == []
    # A change in place reaches only one of the two objects.
    notebook.insert("nums.append(3)")
    assert list_stale() == ["b"]
    assert module_project.json("run", "former", "--stale")["ok"]
    assert list_stale() == []
    answer = module_project.json("eval", "box['value'] is nums, box, same")
    assert answer["output"].strip() == "(True, {'value': [1, 2, 3]}, [1, 2])"
