"""Why outputs differ between fresh runs, and which cells draw without a seed."""

from __future__ import annotations

import pytest

from stepper.diagnosis import ipython_syntax
from stepper.policy.comparison import nondeterminism, random_draws
from stepper.policy.comparison.nondeterminism import Sources
from stepper.policy.comparison.output_comparison import SET_ORDER, ReplayVerdict
from stepper.policy.comparison.upstream_cells import find_upstream_cells
from stepper.policy.dataflow import name_analysis
from stepper.policy.model import Cell
from tests.test_output_comparison import compare
from tests.verify.pairs import make_stream


def make_cells(*sources: str) -> list[Cell]:
    return [
        Cell(f"id{index}", index, index + 1, "code", source)
        for index, source in enumerate(sources)
    ]


@pytest.mark.parametrize(
    "sources, drawing",
    [
        (["import random\nrandom.random()"], {0}),
        (["import random\nrandom.seed(1)", "random.random()"], set()),
        (["import random\nrandom.seed()", "random.random()"], {1}),
        (["np.random.seed(1)", "random.choice('ab')"], {1}),
        (["random.seed(1)", "np.random.normal(size=3)"], {1}),
        (["np.random.seed(1)\nnp.random.normal()"], set()),
        (["rng = np.random.default_rng(3)", "rng.normal()"], set()),
        (["rng = np.random.default_rng()", "rng.normal()", "x = 1"], {0, 1}),
        (["rng = default_rng()", "rng = default_rng(3)", "rng.normal()"], {0}),
        (["if x:\n    rng = default_rng()", "rng == 1", "rng.normal()"], {0, 1, 2}),
        (["from random import choice\nchoice('ab')"], {0}),
        (["# random.random()"], set()),
        (["np.random.rand()  # np.random.seed(1) later"], {0}),
        (["df.sample(5, axis=' #', random_state=3)"], set()),
        (["df.sample(5)"], {0}),
        (["df.sample(5, random_state=3)"], set()),
        (["df.sample(\n    n=f(5),\n    random_state=3,\n)"], set()),
        (["KMeans(n_clusters=3, random_state=None)"], {0}),
        (["train_test_split(X, y, shuffle=False)"], set()),
        (["np.random.seed(0)", "train_test_split(X, y)"], set()),
        (["torch.manual_seed(0)\ntorch.rand(3)"], set()),
        (["torch.rand(3)"], {0}),
        (["seed_everything(1)", "torch.rand(3)\nnp.random.rand()"], set()),
        (["x.random()", "sns.pairplot(df)"], set()),
        (["%%bash\nls", "1 +"], set()),
    ],
)
def test_unseeded_draws_are_found(sources: list[str], drawing: set[int]) -> None:
    assert random_draws.find_unseeded_draws(sources) == drawing


@pytest.mark.parametrize(
    "sources, reason",
    [
        (["print(random.random())"], "the cell draws random numbers without a seed"),
        (
            ["x = random.random()", "print(x)"],
            "cell 1 draws random numbers without a seed",
        ),
        (["print(datetime.now())"], "the cell reads the clock"),
        (
            ["def took(): return time.time()", "took()"],
            "the cell reads the clock",
        ),
        (
            ["x = random.random()", "y = x + 1", "def f(): return y", "f()"],
            "cell 1 draws random numbers without a seed",
        ),
        (
            ["x = random.random()", "x = 1", "print(x)"],
            nondeterminism.UNKNOWN,
        ),
        (["t = time.time()", "print(t)"], "cell 1 reads the clock"),
        (["s = set(words)", "print(list(s)[:3])"], nondeterminism.SET_IN_SOURCE),
        (["print(list(frozenset(words))[0])"], nondeterminism.SET_IN_SOURCE),
        (["s = sorted(set(words))", "print(s, f())"], nondeterminism.UNKNOWN),
        (
            ["with ThreadPoolExecutor() as pool: pool.map(print, 'ab')"],
            "the order of threads or processes",
        ),
        (
            ["os.getpid()"],
            "the cell shows random ids, or ids of the process or of objects",
        ),
        (
            ["f(x)"],
            nondeterminism.UNKNOWN,
        ),
    ],
)
def test_reason_is_named(sources: list[str], reason: str) -> None:
    cells = make_cells(*sources)
    usages = [name_analysis.analyze_source(cell.source) for cell in cells]
    cell_sources = Sources(cells, find_upstream_cells(usages))
    text = nondeterminism.describe_reason(cells[-1], cell_sources, is_reordered=False)
    assert text == f"two fresh runs differ as well: {reason}"


@pytest.mark.parametrize(
    "sources, uses_sets",
    [
        (["print({'a', 'b'})"], True),
        (["names = {'a', 'b'}", "print(list(names)[0])"], True),
        (["names = {name for name in 'ab'}", "next(iter(names))"], True),
        (["%matplotlib inline\nnames = set('ab')", "names.pop()"], True),
        (["%matplotlib inline\nnames = {'a', 'b'}", "names.pop()"], True),
        (["print('\\d', {'a', 'b'})"], True),  # a SyntaxWarning since Python 3.12
        (["names = {'a', 'b'}", "print(1)"], False),
        (["names = {'a': 'b'}", "print(names)"], False),
        (["print(sorted(set('ab')))"], False),
        (["%matplotlib inline\n{", "print(1)"], False),
    ],
)
def test_cells_that_use_sets_are_found(sources: list[str], uses_sets: bool) -> None:
    cells = make_cells(*sources)
    transformer = ipython_syntax.get_transformer()
    usages = [name_analysis.analyze_source(source, transformer) for source in sources]
    inputs = find_upstream_cells(usages)
    assert Sources(cells, inputs).uses_sets(cells[-1]) is uses_sets


def test_order_of_sets_and_threads() -> None:
    cells = make_cells("for x in names: print(x)", "threading.Thread(target=f).start()")
    sources = Sources(cells)
    assert nondeterminism.describe_reason(
        cells[0], sources, is_reordered=True
    ).endswith(": the order of a set depends on the hash seed")
    assert nondeterminism.describe_reason(
        cells[1], sources, is_reordered=True
    ).endswith(": the order of threads or processes")
    pair = make_stream("{'b', 'a'}\n"), make_stream("{'a', 'b'}\n")
    difference = compare(*pair, pair[1])
    assert (difference.verdict, difference.text) == (ReplayVerdict.UNSTABLE, SET_ORDER)
    member = make_stream("{'b', 'c'}\n")
    assert compare(member, pair[1], pair[1]).verdict is ReplayVerdict.CHANGED
    dictionaries = make_stream("{'b': 1, 'a': 2}\n"), make_stream("{'a': 2, 'b': 1}\n")
    verdict = compare(*dictionaries, dictionaries[1]).verdict
    assert verdict is ReplayVerdict.CHANGED


@pytest.mark.parametrize(
    "source, is_input",
    [
        ("pd.read_csv('data/x.csv')", True),
        ("path = 'x.csv'", True),
        ("open('x.csv').read()", True),
        ("df.to_csv('x.csv')", False),
        ("plt.savefig('x.csv')", False),
        ("open('y.csv').read()", False),
    ],
)
def test_changed_file_is_a_reason_if_a_cell_reads_it(
    source: str, is_input: bool
) -> None:
    cells = make_cells(source, "print(values)")
    text = nondeterminism.describe_reason(
        cells[1], Sources(cells, changed_files=["data/x.csv"]), is_reordered=False
    )
    expected = "the replay changed data/x.csv; use `verify --scratch`"
    assert (text == expected) is is_input


@pytest.mark.parametrize(
    "sources",
    [
        ("pd.read_csv('x.csv')", "random.random()"),
        ("df.to_csv('x.csv')", "pd.read_csv('x.csv')"),
    ],
)
def test_changed_file_is_no_reason_for_a_cell_that_does_not_depend_on_it(
    sources: tuple[str, str],
) -> None:
    cells = make_cells(*sources)
    text = nondeterminism.describe_reason(
        cells[1], Sources(cells, changed_files=["x.csv"]), is_reordered=False
    )
    assert "x.csv" not in text
