"""Names that a source reads, binds and changes; stale cells; hidden state.

No kernel is used.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stepper.diagnosis import ipython_syntax
from stepper.kernels.in_kernel import value_fingerprints
from stepper.messages import stale_cells
from stepper.policy.changed_cells import hash_source
from stepper.policy.dataflow import (
    cell_dependencies,
    name_analysis,
    unresolved_names,
)
from stepper.policy.dataflow.binding_table import BindingTable
from stepper.policy.dataflow.causes import UNDONE_VALUE
from stepper.policy.dataflow.outside_state import PANDAS
from stepper.policy.dataflow.run_history import History
from stepper.policy.dataflow.statement_flow import (
    find_affected_names,
    list_statements,
    list_texts,
)
from stepper.policy.journal_events import RunEnded, RunsUndone
from stepper.policy.model import Cell, Outcome, Verdict

FLOWS = [  # source; the names that it reads, binds and changes in place
    ("x = 1", "", "x", ""),
    ("y = x + 1", "x", "y", ""),
    ("x = 1\ny = x", "", "x y", ""),
    ("x += 1", "x", "x", "x"),
    ("x: int = y", "int y", "x", ""),
    ("x: int", "int", "", ""),
    ("a = b = c", "c", "a b", ""),
    ("a, (b, *c) = d", "d", "a b c", ""),
    ("(n := len(x))", "len x", "n", ""),
    ("df['a'] = 1", "df", "", "df"),
    ("df.columns = names", "df names", "", "df"),
    ("df.loc[i, 'a'] += 1", "df i", "", "df"),
    ("del df['a']", "df", "", "df"),
    ("del df", "df", "", ""),
    ("df.drop('a', inplace=True)", "df", "", "df"),
    ("df = df.drop('a')", "df", "df", ""),
    ("df.head()", "df", "", ""),
    ("df.head()\nx = 1", "df", "x", ""),
    ("xs.append(1)", "xs", "", "xs"),
    ("[xs.append(y) for y in ys]", "xs ys", "", "xs"),
    (
        "df = df.append(row)",
        "df row",
        "df",
        "",
    ),  # a function that returns a new value changes nothing
    ("df2 = df.set_index('a')", "df", "df2", ""),
    ("df.set_index('a')", "df", "", ""),
    ("ax.set_title('a')", "ax", "", "ax"),
    ("ax = fig.add_subplot()", "fig", "ax", "fig"),
    ("y = xs.pop()", "xs", "y", "xs"),
    ("model.fit(X, y)", "model X y", "", "model"),
    ("df.unique()\nx = 1", "df", "x", ""),  # methods of libraries are not analyzed
    (
        "class C:\n    def f(self):\n        self.n += 1\n    def g(self):\n        pass\nc.f()",
        "c",
        "C",
        "",
    ),
    ("class C:\n    def f(self):\n        self.n += 1\nc = C()\nc.f()", "", "C c", "c"),
    ("random.shuffle(xs)", "random xs", "", "random xs"),
    ("a = b\na.append(1)", "b", "a", "a b"),
    ("for row in rows:\n    row.append(1)", "rows", "row", "row rows"),
    ("for i in range(3):\n    total = i\ntotal", "range", "i total", ""),
    ("if ok:\n    x = 1\nx", "ok x", "x", ""),
    ("if ok:\n    x = 1\nelse:\n    x = 2\nx", "ok", "x", ""),
    ("with open(p) as f:\n    data = f.read()", "open p", "f data", "f"),
    (
        "try:\n    import a\nexcept ImportError as e:\n    a = None",
        "ImportError",
        "a",
        "",
    ),
    ("import a.b, c as d\nfrom e import f as g", "", "a d g", ""),
    ("[x for x in xs if x > n]", "xs n", "", ""),
    ("{k: v for k, v in d.items()}", "d", "", ""),
    ("[y for x in xs for y in x]", "xs", "", ""),
    ("def f(a, b=c):\n    return a + g", "c", "f", ""),
    ("def f(a):\n    return a + g\nf(1)", "g", "f", ""),
    ("def f():\n    global n\n    n = 1", "", "f", ""),
    ("def f():\n    xs.append(1)\nf()", "xs", "f", "xs"),
    ("def f(a):\n    a.append(1)\nf(xs)", "xs", "f", "xs"),
    ("def f(a, b):\n    b.append(1)\nf(xs, b=ys)", "xs ys", "f", "ys"),
    ("f = lambda a: a + g", "", "f", ""),
    ("f = h = lambda a: a + g", "", "f h", ""),
    ("df.apply(lambda row: row + g)", "df g", "", ""),
    (
        "class A(B):\n    n = m\n    k = n\n    def f(self):\n        return g",
        "B m",
        "A",
        "",
    ),
    ("class A:\n    x = x\n    y = x + z\n    z = 1", "x z", "A", ""),
    ("class A:\n    def f(self): pass\n    g = f\n    for i in g: i", "", "A", ""),
    ("class A:\n    class B:\n        x = x\n    x = B", "x", "A", ""),
    ("class A:\n    f = f\n    @f\n    def g(self): pass", "f", "A", ""),
    ("def h():\n    class A:\n        x = x\nh()", "x", "h", ""),
    ("@deco\ndef f():\n    return g", "deco g", "f", ""),
    (
        "@deco(lambda v: v + g, [w for w in ws])\ndef f():\n    pass\nf()",
        "deco g ws",
        "f",
        "",
    ),
    (
        "match x:\n    case [a, *rest]:\n        a\n    case {'k': v, **more}:\n        v",
        "x",
        "a rest v more",
        "",
    ),
    ("%matplotlib inline\nx = 1", "", "x", ""),
    ("%time y = f(x)", "f x", "y", ""),
    ("%timeit -n 3 y = f(x)", "f x", "", ""),
    ("%lprun -f f f(x)", "f x", "", ""),
    ("%prun -q -s cumulative -l 5 f(x)", "f x", "", ""),
    ("%%time\ny = f(x)", "f x", "y", ""),
    ("%%capture out\ny = x", "x", "y out", ""),
    ("%%bash\necho $x", "", "", ""),
    ("files = !ls {folder}", "folder", "files", ""),
    ("!echo {len(files)} {a.b!r} {c:>3}", "len files a c", "", ""),
    ("!curl -d '{\"name\": 1}' {url['name']}", "url", "", ""),
    ("!echo $größe {über} $$x", "größe über", "", ""),
    ("get_ipython().system(f'ls {x}')", "x", "", ""),
    ("%env A={x}", "x", "", ""),
    ("%env A=/x:$path", "path", "", ""),
    ("%env A=/x:$PATH", "", "", ""),
    ("%env A=/x:{PATH}", "PATH", "", ""),
    ("%env A=$PATH:$path:$HOME_2", "path", "", ""),
    ("%store x >out", "x", "", ""),
    ("%store x > out", "x", "", ""),
    ("x?", "x", "", ""),
    ("df.plot();", "df", "", ""),
    ("x = (", "", "", ""),
    ("print(f'{x!r:>{w}}')", "print x w", "", ""),
    ("async def f():\n    return x\nawait f()", "x", "f", ""),
    (
        "def f():\n    n = 1\n    def g():\n        nonlocal n\n        n = x\n    g()\nf()",
        "x",
        "f",
        "",
    ),
    ("%%bash -s $x --out made\necho $1", "x", "made", ""),
]


@pytest.mark.parametrize(
    ("source", "reads", "binds", "changes"), FLOWS, ids=[source for source, *_ in FLOWS]
)
def test_names_read_bound_and_changed_by_a_source(
    source: str, reads: str, binds: str, changes: str
) -> None:
    names = name_analysis.analyze_source(source, ipython_syntax.get_transformer())
    ignored = {"get_ipython"}
    assert (names.reads - ignored, {*names.binds}, names.changes) == (
        {*reads.split()},
        {*binds.split()},
        {*changes.split()},
    )


@pytest.mark.parametrize(
    "source",
    [
        "x" + " + x" * 400,
        "if x:\n    y = 1\n" + 400 * "elif x:\n    y = 1\n",
        "y = x" + ".strip()" * 600,
    ],
)
def test_deeply_nested_source(source: str) -> None:
    usage = name_analysis.analyze_source(source)
    texts = list_texts(usage)
    assert find_affected_names(usage, BindingTable().resolve_usage, ["x"]) >= {"x"}
    assert list_texts(name_analysis.analyze_source(source)) == texts
    assert texts and texts.isdisjoint(list_texts(name_analysis.analyze_source("x")))


def test_import_of_a_module_that_the_cell_has_written() -> None:
    source = "open('m.py', 'w').write(text)\nimport m, n"
    usage = name_analysis.analyze_source(source)
    assert usage.outside_reads == {"file 'n.py'"}


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("def f(x: T) -> list[T]:\n    return T\nf(1)", "list"),
        (
            "class C(Base[T]):\n    x: T\n    def f(self) -> T:\n        return T",
            "Base",
        ),
    ],
)
def test_type_parameters_are_names_of_their_definition(source: str, reads: str) -> None:
    tree = ast.parse(source)
    assert name_analysis.analyze_tree(tree).reads == {*reads.split(), "T"}
    # Python 3.12 and later parse `def f[T]` and `class C[T]` to such a tree.
    parameter = SimpleNamespace(name="T", lineno=1)
    tree.body[0].type_params = [parameter]  # type: ignore[attr-defined]
    assert name_analysis.analyze_tree(tree).reads == {*reads.split()}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a new statement")
def test_type_alias() -> None:
    usage = name_analysis.analyze_source("type Pair[T] = tuple[T, U]")
    assert (usage.reads, {*usage.binds}) == ({"tuple", "U"}, {"Pair"})


def test_star_import_may_bind_any_name() -> None:
    assert name_analysis.analyze_source("from math import *").star
    assert name_analysis.analyze_source(
        "%pylab inline", ipython_syntax.get_transformer()
    ).star
    assert not name_analysis.analyze_source("import math").star


def format_edges(*sources: str) -> str:
    """Return edges as `name:provider>reader`, with cells counted from 1."""
    order, results = BindingTable(), []
    for number, source in enumerate(sources, 1):
        reads = order.apply(
            number,
            name_analysis.analyze_source(source, ipython_syntax.get_transformer()),
        )
        results += [
            f"{name}:{bound.origin}>{number}" for name, bound in sorted(reads.items())
        ]
    return " ".join(results)


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        (("x = 1", "y = x", "x = 2", "x"), "x:1>2 x:3>4"),
        (("df = load()", "df['a'] = 1", "df"), "df:1>2 df:2>3"),
        (
            ("import numpy as np", "np.random.seed(0)\nx = 1", "np.ones(3)"),
            "np:1>2 np:1>3",
        ),  # a module is not changed
        (
            ("g = 1", "def f():\n    return g", "g = 2", "f()"),
            "f:2>4 g:3>4",
        ),  # the name is read at the call
        (
            ("def h():\n    return n", "def f():\n    return h()", "n = 1", "f()"),
            "f:2>4 h:1>4 n:3>4",
        ),
        (
            ("def add(xs):\n    xs.append(1)", "xs = []", "add(xs)", "xs"),
            "add:1>3 xs:2>3 xs:3>4",
        ),
        (
            ("def add(xs):\n    xs.append(1)", "a = []", "add(xs=a)", "a"),
            "a:2>3 add:1>3 a:3>4",
        ),
        (
            (
                "class A:\n    def f(self):\n        return g",
                "g = 1",
                "a = A()",
                "a.f()",
            ),
            "A:1>3 g:2>3 a:3>4",
        ),
        (
            (
                "class C:\n    def f(self):\n        self.n += 1\n    def g(self):\n        pass",
                "c = C()",
                "c.f()",
                "c.g()",
                "c",
            ),
            "C:1>2 c:2>3 c:3>4 c:3>5",
        ),
        (("def f():\n    global n\n    n = 1", "f()", "n"), "f:1>2 n:2>3"),
        (("from math import *", "sin(1)", "len([])"), "sin:1>2"),
        (("x = 1", "del x", "x"), "x:1>2"),
        (("x = 1", "%timeit x = 2", "x"), "x:1>3"),
        (
            ("x = 1", "print(x", "x"),
            "x:1>3",
        ),  # a source that does not parse has no effects
    ],
)
def test_edges_between_cells(sources: tuple[str, ...], message: str) -> None:
    assert format_edges(*sources) == message


class Played:
    """Runs of a notebook's cells as in a journal. Cell ids are letters."""

    def __init__(self, **sources: str) -> None:
        self.sources, self.runs, self.hashes = (
            dict(sources),
            list[RunEnded](),
            dict[str, str](),
        )
        self.past = History(name_analysis.analyze_source)

    @property
    def cells(self) -> list[Cell]:
        return [
            Cell(name, index, index + 1, "code", source)
            for index, (name, source) in enumerate(self.sources.items())
        ]

    def run(
        self,
        *names: str,
        ok: bool = True,
        expected: bool = False,
        kernel: str = "k",
        **bound: str,
    ) -> Played:
        for name in names:
            cell = next(cell for cell in self.cells if cell.id == name)
            mark = hash_source(cell.source)
            self.hashes[mark] = cell.source
            verdict = Verdict.FINE if ok or expected else Verdict.RECOVERABLE
            result = (Outcome.OK if ok else Outcome.ERROR, verdict)
            self.runs.append(
                RunEnded(
                    run=len(self.runs) + 1,
                    cell_id=name,
                    number=cell.number,
                    index=cell.index,
                    step=None,
                    key=name,
                    source_hash=mark,
                    started_at="2026-01-01T00:00:00Z",
                    duration_s=0,
                    outcome=result[0],
                    verdict=result[1],
                    kernel=kernel,
                    bound=bound,
                )
            )
        return self

    def format_stale(self) -> str:
        """Return `cell<name<provider` of stale cells, with `?` for hidden state."""
        self.past.catch_up(self.runs, self.hashes)
        dependencies = cell_dependencies.find_dependencies(self.cells, self.past)
        return " ".join(
            f"{cell.cell.id}{mark}{because.name}<{because.provider_id}"
            for marked, mark in ((dependencies.stale, "<"), (dependencies.hidden, "?"))
            for cell in marked
            for because in cell.causes
        )

    def list_marks(self) -> set[str]:
        return {*re.findall(r"(?:^| )([a-z][<?])", self.format_stale())}


def test_cell_is_stale_if_a_provider_above_ran_later() -> None:
    notebook = Played(a="x = load()", b="y = x", c="z = y", d="w = x").run(
        "a", "b", "c", "d"
    )
    assert notebook.format_stale() == ""
    # c becomes stale when b runs
    assert notebook.run("a").format_stale() == "b<x<a d<x<a"
    assert notebook.run("b").format_stale() == "c<y<b d<x<a"
    assert notebook.run("c", "d").format_stale() == ""


def test_rebinding_an_equal_small_value_makes_nothing_stale() -> None:
    notebook = Played(a="x = 1", b="y = x")
    notebook.run("a", x="one").run("b").run("a", x="one")
    assert notebook.format_stale() == ""
    assert notebook.run("a", x="two").format_stale() == "b<x<a"
    assert notebook.run("a", x="one").format_stale() == ""  # same value again
    changed = (
        Played(a="xs = []", b="xs.look()\n0", c="xs")
        .run("a", xs="e")
        .run("b", xs="e")
        .run("c")
        .run("b", xs="e")
    )
    assert changed.format_stale() == ""  # not changed in place


def test_unchanged_import_or_function_makes_nothing_stale() -> None:
    notebook = Played(
        a="import numpy as np\ndef f():\n    return 1", b="np.ones(f())"
    ).run("a", "b", "a")
    assert notebook.format_stale() == ""
    notebook.sources["a"] = "import numpy as np\nimport os\ndef f():\n    return 1"
    assert notebook.run("a").format_stale() == ""
    notebook.sources["a"] = "import numpy as np\ndef f():\n    return 2"
    assert notebook.run("a").format_stale() == "b<f<a"


def test_names_used_by_a_class_body_are_its_inputs() -> None:
    notebook = Played(a="class A:\n    n = 1", b="class B(A):\n    pass", c="B()").run(
        "a", "b", "c", "a", "b"
    )
    assert notebook.format_stale() == ""
    notebook.sources["a"] = "class A:\n    n = 2"
    assert notebook.run("a").format_stale() == "b<A<a"
    assert notebook.run("b").format_stale() == "c<B<b"


def test_names_without_fingerprint_count_as_unchanged() -> None:
    functions = [("a", []), ("b", [])]
    assert value_fingerprints.update_fingerprints(functions, {"a": "1", "b": "1"}) == [
        "a",
        "b",
    ]
    assert value_fingerprints.update_fingerprints(functions, {"a": "1"}) == []
    # its value has changed
    assert value_fingerprints.update_fingerprints(functions, {"a": "", "b": "2"}) == [
        "a"
    ]
    value_fingerprints.last_fingerprints.clear()


VALUES = [
    [],
    (),
    {},
    set(),
    [[]],
    [()],
    [1],
    [True],
    [1.0],
    [1j],
    ["1"],
    [b"1"],
    [None],
    ["None"],
    ["1", "2"],
    ["1,2"],
    ["1','2"],
    [1, 2],
    [12],
    (1, 2),
    {1, 2},
    {1: 2},
    {"1": 2},
    [1, [2]],
    [[1], 2],
    ["x" * 300],
    ["x" * 301],
    [2**1998],
    [2**1998 + 1],
    "[1]",
    1,
    1.0,
    True,
    "1",
    float("nan"),
    [float("nan")],
    [-0.0],
    [0.0],
    ["é" * 200],
    [{"a": [1, (2,)]}],
]


def render(value: object) -> str:
    budget = value_fingerprints.ItemBudget(200)
    return value_fingerprints.render_value(value, budget)


def test_different_values_have_different_fingerprints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at_once = [render(value) for value in VALUES]
    assert "" not in at_once and len({*at_once}) == len(VALUES)
    monkeypatch.setattr(value_fingerprints, "SAFE_SIZE", 0)
    assert [render(value) for value in VALUES] == at_once
    assert render({0, 8}) == render({8, 0})
    assert render(["x" * 2000]) == render([2**2000]) == render([object()]) == ""
    assert render([1] * 200) == "" != render([1] * 199)


def test_value_from_below_or_from_deleted_cell_is_hidden_state() -> None:
    notebook = Played(a="x = load()", b="y = x", c="x = other()").run(
        "a", "b", "c", "b"
    )
    assert notebook.format_stale() == "b?x<c"
    runs = Played(a="x = load()", b="y = x").run("a", "b")
    del runs.sources["a"]
    assert runs.format_stale() == "b?x<a"
    assert runs.past.records[1].number == 1
    runs.sources = {"n": "x = load()", **runs.sources}
    assert runs.run("n").format_stale() == "b<x<n"  # n provides it now


def test_provider_that_no_longer_binds_the_name() -> None:
    notebook = Played(a="x = load()\nn = 1", b="y = x", c="n").run("a", "b", "c")
    notebook.sources["a"] = "z = load()\nn = 1"
    assert notebook.run("a", n="1").format_stale() == "c<n<a b?x<a"
    assert [
        cause.where
        for marked in cell_dependencies.find_dependencies(
            notebook.cells, notebook.past
        ).hidden
        for cause in marked.causes
    ] == ["unbound"]


def test_cell_that_only_mutates_a_name_is_not_its_provider() -> None:
    notebook = Played(a="xs.append(2)", b="xs.append(1)", c="xs.append(0)", d="xs = []")
    assert (
        notebook.run("d", "b", "a", "c").format_stale() == "d<xs<c a?xs<b b?xs<d c?xs<d"
    )
    assert [
        cause.where
        for marked in cell_dependencies.find_dependencies(
            notebook.cells, notebook.past
        ).hidden
        for cause in marked.causes
    ] == ["below"] * 3
    deleted_name = Played(a="x = 1", b="del x", c="x").run("a", "c", "b")
    assert deleted_name.format_stale() == ""  # the first cell still binds it


def test_cell_moved_below_its_reader() -> None:
    notebook = Played(a="x = load()", b="y = x").run("a", "b")
    notebook.sources = {"b": "y = x", "a": "x = load()"}
    assert notebook.format_stale() == "b?x<a"


def test_changed_or_failed_cell() -> None:
    notebook = Played(a="x = load()", b="y = x").run("a", "b").run("a", ok=False)
    assert notebook.format_stale() == ""  # failed before it bound a name
    assert notebook.run("a", ok=False, x="").format_stale() == "b<x<a"
    notebook.sources["b"] = "y = x + 1"
    assert notebook.format_stale() == ""  # a changed cell has its own status


def test_new_kernel_has_no_values_of_the_previous_one() -> None:
    notebook = (
        Played(a="x = load()", b="y = x", c="x = 5")
        .run("a", "b", "c")
        .run("b", kernel="other")
    )
    # there was no x in the kernel
    assert notebook.format_stale() == ""
    assert notebook.run("a", kernel="other").format_stale() == "b<x<a"


def test_provider_that_is_no_longer_code() -> None:
    notebook = Played(a="x = load()", b="y = x").run("a", "b")
    for changed in (
        {"tags": ("skip-execution",)},
        {"type": "markdown", "number": 0},
        {"source": " "},
    ):
        cells = [replace(notebook.cells[0], **changed), notebook.cells[1]]
        notebook.format_stale()
        dependencies = cell_dependencies.find_dependencies(cells, notebook.past)
        assert (
            stale_cells.format_hidden(dependencies.hidden)
            == "Hidden state: cell 2 read `x` from cell 1, which is no longer run."
        )
        message = "cell 2 reads `x`, which was defined in cell 1, which no longer runs."
        assert stale_cells.format_order(
            unresolved_names.find_unresolved_names(cells, notebook.past), 0
        ).endswith(message)


def test_cells_without_id_are_matched_by_unique_source() -> None:
    def run_in_order(*numbers: int) -> Played:
        sources = ["x = load()", "x.fit()", "y = x.score()", "x.fit()", "x.score()"]
        notebook = Played(
            **{f"cell-{index}": source for index, source in enumerate(sources)}
        )
        return notebook.run(*(f"cell-{number}" for number in numbers))

    assert run_in_order(0, 1, 2, 3, 4).format_stale() == ""
    # could be the first or the second
    assert run_in_order(0, 1, 2, 3, 4, 1).format_stale() == ""
    assert run_in_order(0, 1, 2, 3, 4, 0).format_stale() == ""
    notebook = Played(**{"cell-0": "x = load()", "cell-1": "x.score()"}).run(
        "cell-0", "cell-1", "cell-0"
    )
    assert notebook.format_stale() == "cell-1<x<cell-0"
    # each is one position further down
    notebook.sources = {
        "cell-0": "n = 1",
        "cell-1": "x = load()",
        "cell-2": "x.score()",
    }
    assert notebook.format_stale() == "cell-2<x<cell-1"


def test_only_names_bound_by_an_expected_failure_count() -> None:
    notebook = Played(a="x = load()\nfails()", b="x", c="x = other()").run("c", "b")
    notebook.run("a", ok=False, expected=True)
    assert notebook.format_stale() == "b?x<c"
    assert (
        notebook.run("a", ok=False, expected=True, x="").format_stale() == "b<x<a c<x<a"
    )


def test_names_observed_by_the_kernel_are_bound() -> None:
    notebook = Played(a="exec(text)", b="x").run("a", x="").run("b").run("a", x="")
    notebook.past.catch_up(notebook.runs, notebook.hashes)
    assert notebook.past.last_runs["b"].reads["x"].origin == 1


def test_execution_order_is_reproducible() -> None:
    notebook = Played(a="import os", b="x + y", c="x = 1", d="y = 2").run("c", "d", "b")
    notebook.past.catch_up(notebook.runs, notebook.hashes)
    assert stale_cells.format_order(
        unresolved_names.find_unresolved_names(notebook.cells, notebook.past), 0
    ) == (
        "Running the cells from top to bottom will not reproduce these results: cell 2 reads `x`, which is defined only below, in cell 3;"
        " cell 2 reads `y`, which is defined only below, in cell 4."
    )
    del notebook.sources["d"]
    message = stale_cells.format_order(
        unresolved_names.find_unresolved_names(notebook.cells, notebook.past), 1
    )
    assert message.endswith(
        "cell 2 reads `y`, which was defined in cell 4, which was deleted. 1 cell is stale; to run it:"
        " `stepper run --stale`."
    )
    assert (
        unresolved_names.describe_former_binding(
            "y", "b", notebook.cells, notebook.past
        )
        == "`y` was defined in cell 4, which was deleted"
    )
    assert (
        unresolved_names.describe_former_binding(
            "x", "b", notebook.cells, notebook.past
        )
        == "`x` is defined only below, in cell 3"
    )
    assert (
        unresolved_names.describe_former_binding(
            "nothing", "b", notebook.cells, notebook.past
        )
        == ""
    )
    notebook.sources = {"c": "x = 1", "d": "y = 2", "b": "x + y + left_over"}
    message = stale_cells.format_order(
        unresolved_names.find_unresolved_names(notebook.cells, notebook.past),
        0,
        unresolved_names.find_unbound_names(notebook.cells, notebook.past),
    )
    assert (
        message
        == "stepper found no cell that defines some names before they are read: cell 3 reads `left_over`."
    )
    notebook.sources = {"c": "x = 1", "d": "y = 2", "b": "x + y"}
    assert unresolved_names.find_unbound_names(notebook.cells, notebook.past) == []
    assert (
        stale_cells.format_order(
            unresolved_names.find_unresolved_names(notebook.cells, notebook.past), 0
        )
        == "Running the cells from top to bottom should reproduce these results."
    )


@pytest.mark.parametrize(
    "source",
    [
        "x += 1",
        "x = x + 1",
        "x, y = x + 1, 2",
        "print(x)\nx = 2",
        "x.append(1)\nx = 2",
        "for row in [1]:\n    x += row",
        "for row in [1]:\n    if row:\n        x = x + row",
    ],
)
def test_rebinding_a_name_does_not_define_it(source: str) -> None:
    notebook = play(a="x = 1", b=source)
    assert describe_order(notebook).startswith("Running the cells from top to bottom s")
    del notebook.sources["a"]
    assert describe_order(notebook) == (
        "Running the cells from top to bottom will not reproduce these results: cell 1"
        " reads `x`, which was defined in cell 1, which was deleted."
    )
    assert describe_order(play(b=source)) == (
        "stepper found no cell that defines some names before they are read: cell 1"
        " reads `x`."
    )


@pytest.mark.parametrize(
    "source",
    [
        "if [1]:\n    x = 1\nx += 1",
        "for row in [1]:\n    if row:\n        x = 1\n    else:\n        x = x + row",
        "try:\n    x += 1\nexcept NameError:\n    x = 0",
        "try:\n    x\nexcept NameError:\n    x = 0",
        "try:\n    x = x\nexcept NameError:\n    import os as x",
        "try:\n    del x\nexcept NameError:\n    pass\nx = 1\nx += 1",
        "if 'x' in globals():\n    del x\nx = 1",
        "x = x if 'x' in globals() else 0",
        "%%time\nif [1]:\n    x = 1\nprint(x)",
        "def make():\n    global x\n    x = 1\nmake()\nx += 1",
        "exec('x = 1')\nx += 1",
        "%run script.py\nx += 1",
    ],
)
def test_name_that_its_reader_may_define(source: str) -> None:
    notebook = play(a="x = 1", b=source)
    del notebook.sources["a"]
    assert describe_order(notebook).startswith("Running the cells from top to bottom s")


CLASS_WITH_HELPER = """
class Model:
    def fit(self):
        return helper()
"""


@pytest.mark.parametrize(
    ("reader", "uses_helper"),
    [
        ("def train(model: Model) -> list[Model]:\n    pass", False),
        ("model: Model", False),
        ("models: list[Model] = []", False),
        ("def train(model: Model, default=Model()):\n    pass", True),
        ("model: Model = Model()", True),
        ("model: Annotated[Model, Model().fit()]", True),
        ("model = Model()\nmodel: Model", True),
    ],
)
def test_annotations_do_not_use_a_class(reader: str, uses_helper: bool) -> None:
    helper = "def helper():\n    return 1"
    for sources in (
        {"a": CLASS_WITH_HELPER, "b": reader, "c": helper},
        {"a": f"{CLASS_WITH_HELPER}\n{reader}", "c": helper},
    ):
        text = describe_order(play(**sources))
        assert ("`helper`, which is defined only below" in text) == uses_helper
    notebook = Played(a="class Model: pass", b=reader).run("a", "b")
    notebook.sources["a"] = "class Model: x = 1"
    assert notebook.run("a").format_stale() == "b<Model<a"


def test_function_of_another_cell_may_use_an_annotated_class() -> None:
    notebook = play(
        a=CLASS_WITH_HELPER,
        b="def make():\n    return Model().fit()",
        c="def train(model: Model):\n    pass\nmake()",
        d="def helper():\n    return 1",
    )
    assert describe_order(notebook).endswith(
        "cell 3 reads `helper`, which is defined only below, in cell 4."
    )


def test_function_of_another_cell_may_define_a_name() -> None:
    function = "def make():\n    global x\n    x = 1"
    notebook = play(a=function, b="make()\nx += 1")
    assert describe_order(notebook).startswith("Running the cells from top to bottom s")


def play(**sources: str) -> Played:
    """Return a notebook whose cells have run in order, and may contain magics."""
    notebook = Played(**sources)
    transform = ipython_syntax.get_transformer()
    notebook.past = History(
        lambda source: name_analysis.analyze_source(source, transform)
    )
    return notebook.run(*sources)


def describe_order(notebook: Played) -> str:
    """Return the sentence on whether a run from top to bottom gives the same results."""
    notebook.past.catch_up(notebook.runs, notebook.hashes)
    return stale_cells.format_order(
        unresolved_names.find_unresolved_names(notebook.cells, notebook.past),
        0,
        unresolved_names.find_unbound_names(notebook.cells, notebook.past),
    )


PROPERTY = """
class Point:
    @property
    def size(self):
        return 1
    @size.setter
    def size(self, value):
        pass
"""


@pytest.mark.parametrize(
    ("source", "unbound"),
    [
        ("display(x, In[1], Out, get_ipython(), _, __, _3, _i, _i2, _ih)", []),
        ("from math import *\nprint(pi + x)", []),
        ("display(_y, _10th, __file__)", ["_10th", "__file__", "_y"]),
        ("print(__builtins__.len(x))", []),
        (f"{PROPERTY}\nPoint()", []),
        ("!echo $HOME $x", []),
        ("HOME?", []),
        ("!echo $HOME\nprint(HOME)", ["HOME"]),
        ("print(HOME)\n!echo $HOME", ["HOME"]),
        ("def f():\n    return HOME\n!echo $HOME\nf()", ["HOME"]),
    ],
)
def test_names_that_ipython_or_the_cell_defines(
    source: str, unbound: list[str]
) -> None:
    notebook = play(a="x = 1", b=source)
    names = unresolved_names.find_unbound_names(notebook.cells, notebook.past)
    assert [entry.name for entry in names] == unbound


def test_class_that_copies_a_variable() -> None:
    notebook = Played(a="n = f()", b="class A:\n    n = n", c="A.n").run("a", "b", "c")
    assert notebook.format_stale() == ""
    assert notebook.run("a").format_stale() == "b<n<a"
    assert notebook.run("b").format_stale() == "c<A<b"


def test_appended_cell_changes_nothing() -> None:
    notebook = Played(a="x = 1", b="x", c="x = 2").run("a", "b")
    notebook.format_stale()
    assert not cell_dependencies.ran_in_order(
        notebook.cells, notebook.cells[:1], notebook.past
    )
    assert cell_dependencies.ran_in_order(
        notebook.cells, notebook.cells[1:2], notebook.past
    )
    notebook.run("c").format_stale()
    assert cell_dependencies.ran_in_order(
        notebook.cells, notebook.cells[2:], notebook.past
    )
    # one is deleted
    assert not cell_dependencies.ran_in_order(
        notebook.cells[1:], notebook.cells[2:], notebook.past
    )


def test_search_is_not_needed_below_cells_that_ran_in_another_order() -> None:
    """An equal value leaves nothing stale; then cells that are appended are in order."""
    notebook = Played(a="x = 1", b="y = 2", c="print(x)", d="z = x + y")
    notebook.run("a", x="1").run("b", y="2").run("c")
    assert notebook.run("a", x="1").format_stale() == ""
    notebook.run("d", z="3").past.catch_up(notebook.runs, notebook.hashes)
    cells = notebook.cells
    assert cell_dependencies.ran_in_order(cells, cells[3:], notebook.past)
    # The cell changes an object, runs again, or reads a value that a cell replaced.
    for source, again in (("x.sort()", ""), ("w = x", "b"), ("del y", "")):
        other = Played(**notebook.sources, e=source)
        other.run("a", x="1").run("b", y="2").run("c").run("a", x="1").run("d", z="3")
        assert other.format_stale() == ""
        other.run(*again, "e").past.catch_up(other.runs, other.hashes)
        cells = other.cells
        assert not cell_dependencies.ran_in_order(cells, cells[4:], other.past), source


@pytest.mark.parametrize("seed", range(40))
def test_skipped_search_would_have_found_nothing(seed: int) -> None:
    generator = random.Random(seed)
    lines = (
        "{x} = {n}",
        "{x} = {y}",
        "{x} = [{y}]",
        "{x}.append({n})",
        "{x} = {y} + {x}",
        "print({x})",
        "del {x}",
        "np.random.seed({n})",
        "{x} = np.random.rand()",
        "os.environ['{x}'] = '{n}'",
        "{x} = os.environ['{y}']",
        "{x}",
    )
    notebook = Played()
    known = set[str]()  # the marks that the last search found
    for number in range(12):
        x, y = generator.choice("pqr"), generator.choice("pqr")
        line = generator.choice(lines).format(x=x, y=y, n=generator.randint(1, 2))
        notebook.sources[f"c{number}"] = line
        names = [f"c{number}"]
        if generator.random() < 0.3:
            names.insert(0, generator.choice([*notebook.sources][:-1] or names))
        for name in names:
            source = notebook.sources[name]
            bound = name_analysis.analyze_source(source).binds
            text = source if re.search(r"= \d$", source) else ""
            notebook.run(name, **dict.fromkeys(bound, text))
            notebook.past.catch_up(notebook.runs, notebook.hashes)
            ran = [cell for cell in notebook.cells if cell.id == name]
            if cell_dependencies.ran_in_order(notebook.cells, ran, notebook.past):
                # Not in `notebook`, whose next search must not start from this one.
                copy = Played(**notebook.sources)
                copy.runs = notebook.runs
                copy.hashes = notebook.hashes
                found = {*copy.format_stale().split()}
                assert found <= known, (notebook.sources, name)
            else:
                known = {*notebook.format_stale().split()}


def test_stale_cells_report_line() -> None:
    def line(notebook: Played) -> str:
        notebook.past.catch_up(notebook.runs, notebook.hashes)
        dependencies = cell_dependencies.find_dependencies(
            notebook.cells, notebook.past
        )
        return "\n".join(
            filter(
                None,
                [
                    stale_cells.format_stale(dependencies.stale),
                    stale_cells.format_hidden(dependencies.hidden),
                ],
            )
        )

    notebook = Played(
        a="import pandas",
        b="df = load()",
        c="n = 1",
        d="df.head()",
        e="n",
        f="df.tail()",
    )
    notebook.run(*"abcdef", "b")
    assert line(notebook) == (
        "Stale: cells 4 and 6 read `df`, which cell 2 changed after they ran. To run these cells in order: `stepper run --stale`."
    )
    assert line(notebook.run("d")) == (
        "Stale: cell 6 read `df`, which cell 2 changed after it ran. To run this cell: `stepper run --stale`."
    )
    del notebook.sources["c"]
    assert (
        line(notebook.run("f"))
        == "Hidden state: cell 4 read `n` from a deleted cell (cell 3 when it ran)."
    )
    runs = Played(
        a="x, y, z, w, v = load()", **{f"c{n}": "x + y + z + w + v" for n in range(12)}
    )
    runs.run(*runs.sources, "a")
    assert line(runs).startswith(
        "Stale: cells 2, 3, 4, 5, 6, 7, 8 and 5 more read `v`, `w`, `x` and 2 more, which cell 1 changed after they ran."
    )


@pytest.mark.nightly
def test_stale_analysis_is_not_quadratic() -> None:
    def seconds(count: int) -> float:
        notebook = Played(
            c0="x0 = load()",
            **{f"c{n}": f"x{n} = f(x{n - 1}, x0)" for n in range(1, count)},
        )
        notebook.run(*notebook.sources, "c0")
        notebook.format_stale()
        start = time.perf_counter()
        notebook.format_stale()
        return time.perf_counter() - start

    # 8 times as many cells must not take 64 times as long
    assert seconds(800) < 40 * seconds(100)


def test_name_that_one_branch_binds_may_come_from_an_earlier_cell() -> None:
    usage = name_analysis.analyze_source(
        "if c:\n    a = 1\n    both = 1\nelse:\n    b = 2\n    both = 2\nprint(a, b, both)"
    )
    assert {"a", "b", "c"} <= usage.reads and "both" not in usage.reads


# As IPython transforms these magics.
WRITE = "get_ipython().run_cell_magic('writefile', 'm.py', 'x = {}')"
ENV = "get_ipython().run_line_magic('env', 'X={}')"
CONFIG = "get_ipython().run_line_magic('config', '{}')"
RUN = "get_ipython().run_line_magic('run', 'm.py')"
STORE = "get_ipython().run_line_magic('store', '{}')"
INSERT = """
with sqlite3.connect('x.db') as con:
    con.execute("INSERT INTO t VALUES ({})")
"""


@pytest.mark.parametrize(
    ("provider", "reader", "changed"),
    [
        ("np.random.seed(1)", "np.random.rand()", "np.random.seed(2)"),
        ("random.seed(1)", "print(random.random())", "random.seed(2)"),
        ("df.to_csv('x.csv')", "pd.read_csv('x.csv')", "ef.to_csv('x.csv')"),
        ("open('x', 'w').write(t)", "open('x').read()", "open('x', 'w').write(u)"),
        ("Path('x').write_text(t)", "Path('x').read_text()", "Path('x').write_text(u)"),
        ("Path('x').open('w').write(t)", "Path('x').open()", "Path('x').open('w')"),
        ("Path('d', 'x').write_text(t)", "open('d/x')", "Path('d', 'x').write_text(u)"),
        ("gzip.open('x', 'w').write(t)", "gzip.open('x')", "gzip.open('x', 'w')"),
        (WRITE.format(1), "import m", WRITE.format(2)),
        (WRITE.format(1), RUN, WRITE.format(2)),
        ("v = f()", STORE.format("v"), "v = g()"),
        (STORE.format("v >x"), "open('x').read()", STORE.format("w >x")),
        (
            "v = f()\n" + STORE.format("v"),
            STORE.format("-r v"),
            "v = g()\n" + STORE.format("v"),
        ),
        ("thr = f()", "df.query('x > @thr')", "thr = g()"),
        ("a = f()", "eval('a + 1')", "a = g()"),
        ("über = f()", "eval('über + 1')", "über = g()"),
        ("a = f()", "globals()['a']", "a = g()"),
        ("pd.set_option('x', 1)", "df", "pd.set_option('x', 2)"),
        ("pd.options.display.x = 1", "df", "pd.options.display.x = 2"),
        ("pd.options.display.x = f()", "pd.get_option('x')", "pd.set_option('x', g())"),
        ("np.set_printoptions(2)", "print(x)", "np.set_printoptions(3)"),
        ("plt.rcParams['x'] = 1", "df.plot()", "plt.rcParams['x'] = 2"),
        ("os.environ['x'] = '1'", "y = os.environ['x']", "os.environ['x'] = '2'"),
        ("os.environ['x'] = '1'", "os.environ.get('x')", "os.environ['x'] = '2'"),
        ("os.environ['x'] = '1'", "os.environ.items()", "os.environ['x'] = '2'"),
        ("os.environ.update(a)", "os.getenv('x')", "os.environ.update(b)"),
        ("os.environ[k] = '1'", "os.getenv('x')", "os.environ[k] = '2'"),
        (ENV.format(1), "os.getenv('X')", ENV.format(2)),
        (
            "n = f()\ndef d(g):\n    return lambda: n\n@d\ndef h(): pass",
            "h()",
            "n = g()\ndef d(g):\n    return lambda: n\n@d\ndef h(): pass",
        ),
        (INSERT.format(1), "pd.read_sql(q, sqlite3.connect('x.db'))", INSERT.format(2)),
        (
            "df.to_sql('t', create_engine('sqlite:///x.db'))",
            "con = sqlite3.connect('x.db')\nn = con.execute('SELECT 1').fetchall()",
            "ef.to_sql('t', create_engine('sqlite:///x.db'))",
        ),
        (
            "df.to_sql('t', create_engine('sqlite+pysqlite:///x.db'))",
            "n = sqlite3.connect('x.db').execute('SELECT 1').fetchall()",
            "ef.to_sql('t', create_engine('sqlite+pysqlite:///x.db'))",
        ),
        ("import m\nm.x = 1", "m.show()", "import m\nm.x = 2"),
        ("import m\nm.x = 1", "import m\nprint(m.x)", "import m\nm.x = 2"),
        ("import m\nm.T['k'] = 1", "print(m.f())", "import m\nm.T['k'] = 2"),
        ("import m\nm.f = lambda: 1", "r = m.g()", "import m\nm.f = lambda: 2"),
        ("class C: pass\nC.x = 1", "C().x", "class C: pass\nC.x = 2"),
        (
            CONFIG.format("InlineBackend.x = 1"),
            "df.plot()",
            CONFIG.format("InlineBackend.x = 2"),
        ),
        (
            CONFIG.format("InteractiveShell.x = 1"),
            "x\ny",
            CONFIG.format("InteractiveShell.x = 2"),
        ),
        ("rng = default_rng(0)", "rng.normal()", "rng = default_rng(1)"),
    ],
)
def test_dependencies_outside_the_variables(
    provider: str, reader: str, changed: str
) -> None:
    notebook = Played(a=provider, b="other = 1", c=reader).run("a", "b", "c")
    assert notebook.format_stale() == ""
    notebook.sources["a"] = changed
    assert notebook.run("a").format_stale().startswith("c<")
    assert notebook.run("c").format_stale() == ""


@pytest.mark.parametrize(
    ("provider", "expression", "changed"),
    [
        (
            CONFIG.format("InlineBackend.x = 1"),
            "plt.plot(x)",
            CONFIG.format("InlineBackend.x = 2"),
        ),
        ("df.to_csv('x.csv')", "pd.read_csv('x.csv')", "ef.to_csv('x.csv')"),
        ("os.environ['x'] = '1'", "os.environ['x']", "os.environ['x'] = '2'"),
        ("os.environ.update(a)", "os.getenv('x')", "os.environ.update(b)"),
        ("plt.style.use('a')", "plt.plot(x)", "plt.style.use('b')"),
    ],
)
def test_functions_that_read_state_outside_the_variables(
    provider: str, expression: str, changed: str
) -> None:
    function = f"def f(x):\n    return {expression}"
    method = f"class C:\n    def f(self):\n        return {expression}"
    for definition, call in ((function, "f(1)"), (method, "C().f()")):
        notebook = Played(d=definition, a=provider, c=call, e=f"{definition}\n{call}")
        notebook.run("d", "a", "c", "e")
        assert notebook.format_stale() == ""
        notebook.sources["a"] = changed
        stale = notebook.run("a").format_stale()
        assert "c<" in stale and "e<" in stale and "d<" not in stale


@pytest.mark.parametrize(
    ("first", "provider", "reader", "changed"),
    [
        # One connection, with a cursor, with `to_sql`, or with another connection.
        (
            "con = sqlite3.connect(path)",
            "cur = con.cursor()\ncur.executemany(q, [1])",
            "pd.read_sql(q, con)",
            "cur = con.cursor()\ncur.executemany(q, [2])",
        ),
        (
            "con = sqlite3.connect(':memory:')\ncur = con.cursor()",
            "cur.execute(q)\ncon.commit()",
            "cur.execute(r)\nprint(pd.read_sql(q, con))",
            "cur.execute(p)\ncon.commit()",
        ),
        (
            "con = sqlite3.connect(path)",
            "df.to_sql('t', con)",
            "r = pd.read_sql(q, con)",
            "ef.to_sql('t', con)",
        ),
        (
            "con = sqlite3.connect('x.db')",
            "con.execute(f'INSERT INTO t VALUES ({n})')",
            "pd.read_sql(q, sqlite3.connect('x.db'))",
            "con.execute(f'INSERT INTO t VALUES ({m})')",
        ),
        (
            "con = sqlite3.connect('x.db')",
            INSERT.format(1).replace("con", "c").replace("c.cnect", "c.connect"),
            "pd.read_sql(q, con)",
            INSERT.format(2),
        ),
        ("import m", "m.x = f()", "m.show()", "m.x = g()"),
        ("import m\nn = 1", "m.x = n", "m.show()", "m.x = -n"),
        ("n = 1", "n + 1", "print(_)", "n + 2"),
        ("rng = default_rng(0)", "rng.normal()", "rng.integers(9)", "rng.normal(2)"),
        (
            "rng = default_rng(0)\ndef f():\n    return rng.normal()",
            "x = f()",
            "y = f()",
            "x = f() + f()",
        ),
        (
            "rng = np.random.RandomState(0)",
            "a = df.sample(random_state=rng)",
            "rng.rand()",
            "a = df.sample(2, random_state=rng)",
        ),
    ],
)
def test_dependencies_through_objects_of_libraries(
    first: str, provider: str, reader: str, changed: str
) -> None:
    """The cell that changes the object is not the one that makes it."""
    notebook = Played(z=first, a=provider, b="other = 1", c=reader)
    assert notebook.run("z", "a", "b", "c").format_stale() == ""
    notebook.sources["a"] = changed
    # Nothing is undone here, so `a` reads what its first run and `c` left behind.
    assert notebook.run("a").list_marks() - {"a?"} == {"c<"}
    assert notebook.run("c").list_marks() <= {"a?"}


@pytest.mark.parametrize(
    ("first", "provider", "reader", "changed"),
    [
        ("con = sqlite3.connect('x.db')", "con.execute('SELECT 1')", "con", "1"),
        ("con = 1", INSERT.format(1), "sqlite3.connect('y.db')", INSERT.format(2)),
        ("import m, k", "m.x = 1", "k.show()", "m.x = 2"),
        ("import m", "m.x = 1", "m.y = 1", "m.x = 2"),
        ("import m", "m.T['x'] = 1", "m.T['y'] = 1", "m.T['x'] = 2"),
        ("import m", "m.x = 1", "m.show()", "m.x =  1"),
        ("n = 1", "n + 1", "for _ in range(3): n", "n + 2"),
        ("n = 1", "print(n)", "print(_)", "print(n + 1)"),
        ("n = 1", "pd.set_option('x', 1)", "print('text')", "pd.set_option('x', 2)"),
        ("n = 1", "np.set_printoptions(1)", "len(n)", "np.set_printoptions(2)"),
        ("n = 1", CONFIG.format("InteractiveShell.x = 1"), "n", CONFIG.format("X.y=1")),
        ("n = 1", CONFIG.format("A.b = 1"), "n", CONFIG.format("A.b = 2")),
        ("n = 1", CONFIG.format("A.b = 1"), "n", CONFIG.format("InlineBackend.b = 2")),
        ("rng = default_rng(0)", "rng.normal()", "qng.normal()", "rng.normal(2)"),
        ("rng = default_rng(0)", "rng.bit_generator", "rng.normal()", "1"),
        ("n = 1", "r = random.Random(0)", "random.random()", "r = random.Random(1)"),
        (
            "n = 1",
            "np.set_printoptions(1)",
            "r = print_it(n)",
            "np.set_printoptions(2)",
        ),
        ("n = 1", "thr = 1", "def g(d, thr):\n    return d.query('@thr')", "thr = 2"),
        ("n = 1", "x = 1", "vars(n)['x']", "x = 2"),
        ("n = 1", ENV.format(1), "thr = 3", "os.environ.items()"),
        ("n = 1", ENV.format("/a:$Y"), "os.getenv('X')", ENV.format("/a:$Y") + "\n"),
        ("n = 1", "ZipFile('x').open('a')", "open('x')", "ZipFile('x').open('wa')"),
        ("n = 1", ENV.format(1), "os.getenv('Y')", ENV.format(2)),
        ("n = 1", "os.environ['A'] = '1'", "os.environ['B']", "os.environ['A'] = '2'"),
    ],
)
def test_unrelated_cells_do_not_become_stale(
    first: str, provider: str, reader: str, changed: str
) -> None:
    notebook = Played(z=first, a=provider, c=reader).run("z", "a", "c")
    assert notebook.format_stale() == ""
    notebook.sources["a"] = changed
    assert notebook.run("a").list_marks() <= {"a?"}


MODEL = """
class Model:
    def __init__(self):
        self.lr = os.getenv("LR")
    def fit(self, x):
        return self.scale(x)
    def scale(self, x):
        return pd.read_csv("x.csv")
    def curves(self):
        Drawer().draw(self)
    @property
    def title(self):
        return open("title").read()
    @title.setter
    def title(self, text):
        self.text = text
"""
DRAWER = """
class Drawer:
    def draw(self, m):
        plt.plot(m)
def show(m):
    m.curves()
"""


@pytest.mark.parametrize(
    ("provider", "stale"),
    [
        ("os.environ['LR'] = '{}'", "c p q"),
        ("df.to_csv('x.csv', {})", "c p"),
        ("plt.style.use('{}')", "d f"),
        ("open('title', 'w').write('{}')", "e q"),
    ],
)
def test_only_the_methods_that_a_cell_uses_read_state_outside_the_variables(
    provider: str, stale: str
) -> None:
    notebook = Played(
        b=MODEL,
        k=DRAWER,
        a=provider.format(1),
        c="model = Model()\nhistory = model.fit(1)",
        d="r = model.curves()",
        e="print(model.title)",
        f="show(model)",
        g="model.lr",
    )
    # Cells that contain the class.
    notebook.sources["p"] = f"Drawer = 1\n{MODEL}\nModel().fit(1)"
    notebook.sources["q"] = f"Drawer = 1\n{MODEL}\nm = Model()\nprint(m.title)"
    notebook.run(*notebook.sources)
    assert notebook.format_stale() == ""
    notebook.sources["a"] = provider.format(2)
    assert notebook.run("a").list_marks() == {f"{name}<" for name in stale.split()}


def test_value_overwritten_above_an_edited_cell_that_works_on_it() -> None:
    notebook = Played(a="c = [3]", b="c = [4]", d="del c").run("a", "b", "d")
    notebook.sources["d"] = "c.append(3)"
    assert notebook.run("a").format_stale() == "b<c<a"
    assert notebook.run("b").format_stale() == ""


def test_change_of_an_alias_that_a_cell_below_bound() -> None:
    sources = {
        "a": "b, d = [2], [4]",
        "c": "b.append(1)",
        "e": "add(d, 6)",
        "f": "d = b",
    }
    notebook = Played(**sources).run("a", b="[2]", d="[4]").run("c", b="[2, 1]")
    notebook.run("e", d="[4, 6]").run("f", d="[2, 1]")
    # `d` and `b` are the same list when c runs.
    notebook.run("a", b="[2]", d="[4]").run("f", d="[2]")
    notebook.run("c", b="[2, 1]", d="[2, 1]")
    assert notebook.format_stale() == "f<b<c f<d<c"
    assert notebook.run("f", d="[2, 1]").format_stale() == ""


def test_change_of_an_alias_that_cells_above_and_below_bind() -> None:
    sources = {"a": "b = [2]\nd = b", "c": "b.append(1)", "e": "print(d)", "f": "d = b"}
    notebook = Played(**sources).run("a", b="[2]", d="[2]")
    notebook.run("c", b="[2, 1]", d="[2, 1]").run("e").run("f", d="[2, 1]")
    notebook.run("c", b="[2, 1, 1]", d="[2, 1, 1]")
    assert "e<d<c" in notebook.format_stale()


@pytest.mark.parametrize(
    ("alias", "changed", "marks"),
    [
        ("view = df", "view.insert(1, 'z', 3)", "d<df<c"),
        ("view = [df]", "view[0].insert(1, 'z', 3)", "d<df<c"),
        # These cells do not change the object of `df`.
        ("view = df", "df.head()", "a<df<c b<view<c d?df<c"),
        ("view = df", "view = 3\nview.add(4)", "a<df<c d?df<c"),
        ("view = df.copy()", "view.insert(1, 'z', 3)", "a<df<c d?df<c"),
    ],
)
def test_edited_cell_that_changes_an_object_by_another_name(
    alias: str, changed: str, marks: str
) -> None:
    source = "view.insert(1, 'z', 2)"
    notebook = Played(a="df = f()", b=alias, c=source, d="print(df['z'])")
    notebook.run("a", df="1").run("b", view="1").run("c", df="2", view="2").run("d")
    assert notebook.format_stale() == ""
    notebook.sources["c"] = changed
    assert notebook.format_stale() == marks


def test_cell_that_reads_a_file_in_a_function_and_then_writes_it() -> None:
    notebook = Played(
        a="df.to_csv('x.csv')",
        b="def load():\n    return pd.read_csv('x.csv')",
        c="y = load()\ny.to_csv('x.csv')",
        d="df.to_csv('x.csv')\nz = load()",
    ).run("b", "a", "c", "d")
    notebook.sources["a"] = "ef.to_csv('x.csv')"
    assert notebook.run("a").list_marks() == {"c<"}


def test_setters_of_different_variables_of_the_environment_are_no_hidden_state() -> (
    None
):
    notebook = Played(
        a="os.environ['A'] = '1'", b="os.environ['B'] = '2'", c="x = os.environ['A']"
    ).run("a", "b", "c")
    notebook.sources["a"] = "os.environ['A'] = '3'"
    notebook.run("a", "c")
    assert not any(mark.startswith("c?") for mark in notebook.list_marks())


@pytest.mark.parametrize("line", ["A", "B=1"])
def test_cell_between_that_does_not_set_a_variable_of_the_environment(
    line: str,
) -> None:
    notebook = Played(
        a="get_ipython().run_line_magic('set_env', 'A 1')",
        b=f"get_ipython().run_line_magic('env', {line!r})",
        c="x = os.environ['A']",
    ).run("a", "b", "c")
    notebook.sources["a"] = "get_ipython().run_line_magic('set_env', 'A 2')"
    stale = {"b<", "c<"} if line == "A" else {"c<"}
    assert notebook.run("a").list_marks() == stale


def test_same_setter_with_another_key_makes_readers_stale() -> None:
    notebook = Played(z="k = 'x'", a="os.environ[k] = '1'", c="os.getenv('x')").run(
        "z", "a", "c"
    )
    notebook.sources["z"] = "k = 'y'"
    assert notebook.run("z", "a").list_marks() == {"c<"}


@pytest.mark.parametrize(
    "definition",
    [
        "class A(m): pass",
        "class A(metaclass=m): pass",
        "class A:\n    n = m",
        "class A:\n    class B:\n        n = m.x",
        "class A:\n    def f(self, n=m): pass",
        "class A:\n    @m\n    def f(self): pass",
        "def A(n=m): pass",
        "A = lambda n=m: n",
    ],
)
def test_definition_has_another_value_if_a_name_that_it_reads_has(
    definition: str,
) -> None:
    notebook = Played(a="m = f(1)", b=definition, c="print(A)").run("a", "b", "c")
    assert notebook.run("b").format_stale() == ""
    notebook.sources["a"] = "m = f(2)"
    assert "c<A<b" in notebook.run("a", "b").format_stale()


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    return {}",
        "%%time\ndef f():\n    return {}",
        "%%capture\n\n%%time\n@d\ndef f():\n    return {}",
        "\n\n%matplotlib inline\ndef f():\n    return {}",
        "x = 1\n%time f = lambda: {}",
        "!ls \\\n  x\ndef f():\n    return {}",
    ],
)
def test_fingerprint_of_a_definition_is_of_its_own_lines(source: str) -> None:
    transform = ipython_syntax.get_transformer()
    fingerprints = [
        name_analysis.analyze_source(source.format(value), transform).fingerprints["f"]
        for value in (1, 1, 2)
    ]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize(
    "definition",
    [
        "class A:\n    m = 1\n    n = m",
        "class A:\n    n = [m for m in range(3)]",
        "class A:\n    def m(self): pass\n    n = m",
        "class A:\n    def f(self, m): return m",
    ],
)
def test_definition_does_not_read_names_of_its_own(definition: str) -> None:
    notebook = Played(a="m = f(1)", b=definition, c="print(A)").run("a", "b", "c")
    notebook.sources["a"] = "m = f(2)"
    assert notebook.run("a", "b").format_stale() == ""


def test_import_in_a_function_is_no_binding_of_a_notebook_name() -> None:
    source = "x = load(path)\ndef f():\n    import m as x"
    assert "x" not in name_analysis.analyze_source(source).fingerprints
    notebook = Played(z="path = 1", a=source, c="x").run("z", "a", "c")
    assert notebook.run("a").format_stale() == "c<x<a"


def test_name_in_a_text_that_the_cell_binds_is_not_read() -> None:
    assert "thr" in name_analysis.analyze_source("df.query('x > @thr')").outside_reads
    bound = name_analysis.analyze_source("thr = 3\ndf.query('x > @thr')")
    assert "thr" not in bound.outside_reads


@pytest.mark.parametrize(
    ("first", "second", "reader", "changed"),
    [
        (
            "os.environ['A'] = '1'",
            "os.environ['B'] = '2'",
            "print(os.environ['A'])",
            "os.environ['A'] = '3'",
        ),
        (
            "pd.set_option('a', 1)",
            "pd.set_option('b', 1)",
            "df",
            "pd.set_option('a', 2)",
        ),
        (
            "plt.rcParams['a'] = 1",
            "plt.rcParams['b'] = 1",
            "df.plot()",
            "plt.rcParams['a'] = 2",
        ),
        (
            "np.set_printoptions(precision=1)",
            "np.set_printoptions(suppress=True)",
            "print(a)",
            "np.set_printoptions(precision=2)",
        ),
    ],
)
def test_options_that_two_cells_set_are_separate(
    first: str, second: str, reader: str, changed: str
) -> None:
    notebook = Played(a=first, b=second, c=reader).run("a", "b", "c")
    assert notebook.format_stale() == ""
    notebook.sources["a"] = changed
    assert notebook.format_stale().startswith("c<")  # before the cell runs
    assert notebook.run("a").format_stale().startswith("c<")
    assert notebook.run("c").format_stale() == ""


def test_equal_object_that_a_cell_shares_is_not_the_same() -> None:
    """A cell below changes the object through the name that shares it."""
    notebook = Played(a="c = [3]", b="box = {'k': c}", c="box['k'].append(8)")
    notebook.run("a", c="3").run("b", "c").run("a", c="3")
    assert notebook.format_stale().startswith("b<c<a")
    other = Played(a="c = [3]", b="box = {'k': c}", c="bag = [8]\nbag.append(8)")
    other.run("a", c="3").run("b", "c").run("a", c="3")
    assert other.format_stale() == ""


@pytest.mark.parametrize(
    ("maker", "user"),
    [
        ("cfg = {}", "cfg['n'] = n"),
        ("d = {'n': n}", "d['m'] = 2"),
        ("m = n", "m += 1"),
    ],
)
def test_equal_literal_that_a_cell_shares_is_the_same(maker: str, user: str) -> None:
    """Nothing can change a number in place."""
    notebook = Played(a="n = 3", b=maker, c=user)
    notebook.run("a", n="3").run("b", "c").run("a", n="3")
    assert notebook.format_stale() == ""
    other = Played(a="n = [3]", b=maker, c=user)
    other.run("a", n="[3]").run("b", "c").run("a", n="[3]")
    assert other.format_stale() != ""


def test_only_the_last_statement_of_a_cell_shows_its_value() -> None:
    usage = name_analysis.analyze_source("x.head()\ny = 1\nx")
    first, _, last = list_statements(usage)
    assert not first.usage.outside_binds
    assert PANDAS not in first.usage.outside_reads
    assert PANDAS in last.usage.outside_reads


@pytest.mark.parametrize(
    ("statement", "affected"),
    [
        ("x = 1", {"a"}),
        ("def x(): pass", {"a"}),
        ("if flag:\n    x = 1", {"a", "x", "y"}),
        ("for x in items:\n    pass", {"a", "x", "y"}),
        ("z = flag and (x := 1)", {"a", "x", "y"}),
    ],
)
def test_only_a_certain_binding_hides_an_affected_value(
    statement: str, affected: set[str]
) -> None:
    usage = name_analysis.analyze_source(f"x = a\n{statement}\ny = x")
    resolve = Played().past.table.resolve_usage
    assert find_affected_names(usage, resolve, ["a"]) == affected


def test_undo_of_options_undoes_each_option_that_the_runs_set() -> None:
    notebook = Played(a="pd.set_option('a', 1)", b="pd.set_option('a', 2)", c="df")
    notebook.run("a", "b", "c")
    undone = RunsUndone(
        run=4,
        kernel="k",
        cell_id="b",
        runs=(2,),
        names=("pandas options",),
        restored={"pandas options": (2,)},
    )
    del notebook.sources["b"]
    notebook.past.catch_up(notebook.runs, notebook.hashes, undone=[undone])
    name = "pandas options 'a'"
    assert notebook.past.table.bindings[name].origin == 1
    found = cell_dependencies.find_dependencies(notebook.cells, notebook.past)
    assert [entry.cell.id for entry in found.stale] == ["c"]
    assert [(cause.name, cause.where) for cause in found.stale[0].causes] == [
        (name, UNDONE_VALUE)
    ]
