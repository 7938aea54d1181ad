"""Names bound by a cell, as observed by a real kernel.

No cell becomes stale if a small value equals the earlier value.
"""

from __future__ import annotations

import sys
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
