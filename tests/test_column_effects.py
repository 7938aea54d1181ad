"""Columns that cells make and drop, and errors on columns that are missing."""

from __future__ import annotations

import pytest

from stepper.diagnosis import ipython_syntax
from stepper.policy.dataflow.column_effects import (
    MADE,
    ColumnEffect,
    list_column_effects,
)
from tests.conftest import code
from tests.test_session import Quick, project  # noqa: F401  # a fixture

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.mark.parametrize(
    ("source", "effects"),
    [
        ("x['k'] = 1", "made k"),
        ("x[['k', 'l']] = y", "made k, made l"),
        ("x.loc[:, 'k'] = 1", "made k"),
        ("x.columns = ['k', 'l']", "made k, made l"),
        ("y = x.assign(k=1)", "made k"),
        ("x.insert(0, 'k', y)", "made k"),
        ("x = x.rename(columns={'a': 'k'})", "dropped a, made k"),
        ("x = pd.get_dummies(x, columns=['a'])", "made a_, dropped a"),
        ("x['k'], [y['l'], z] = 1, y", "made k, made l"),
        ("x.insert(loc=0, column='k', value=y)", "made k"),
        ("x = x.rename({'a': 'k'}, axis=1)", "dropped a, made k"),
        ("x = x.rename(mapper={'a': 'k'}, axis='columns')", "dropped a, made k"),
        ("x = x.rename({'a': 'k'})", ""),  # a row
        ("x = x.set_axis(['k', 'l'], axis=1)", "made k, made l"),
        ("x = x.set_axis(['k', 'l'])", ""),  # rows
        ("pd.DataFrame({'k': [1]})", "made k"),
        ("pd.DataFrame(rows, columns=['k', 'l'])", "made k, made l"),
        ("pd.read_csv('x.csv', names=['k'])", "made k"),
        ("x.groupby('a').agg(k=('b', 'sum'))", "made k"),
        ("x.melt(var_name='k', value_name='l')", "made k, made l"),
        ("x = x.drop(columns=['k'])", "dropped k"),
        ("x = x.drop('k', axis=1)", "dropped k"),
        ("x = x.drop(labels=['k'], axis='columns')", "dropped k"),
        ("x = x.set_index(keys='k')", "dropped k"),
        ("x = x.drop('k')", ""),  # a row
        ("del x['k']", "dropped k"),
        ("x.pop('k')", "dropped k"),
        ("x = x.set_index('k')", "dropped k"),
        ("print(x['k'])", ""),
    ],
)
def test_effects_of_a_line(source: str, effects: str) -> None:
    found = [
        f"{effect.effect} {effect.label}" for effect in list_column_effects(source)
    ]
    assert ", ".join(found) == effects


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("%%time\nx['k'] = 1", 1),
        ("%%time\n\ny = 2\nx['k'] = 1", 3),
        ("%%capture out\n%%time\nx['k'] = 1", 1),
        ("y = 2\n%time x['k'] = 1", 2),
    ],
)
def test_effects_of_code_in_magics(source: str, line: int) -> None:
    transform = ipython_syntax.get_transformer()
    effects = list_column_effects(transform(source), transform)
    assert effects == (ColumnEffect("k", line, MADE),)


def test_missing_column_names_the_cell_that_adds_it(project: Quick) -> None:  # noqa: F811
    cells = [
        code("x = {'a': 1, 'b': 2}", "a"),
        code("x['k'] = 3", "b"),
        code("print(x['k'])", "c"),
    ]
    notebook = project.notebook("book.ipynb", cells)
    notebook.replace("a", "x = {'a': 1, 'b': 2}\n")
    report = notebook.replace("c", "print(x['k'])\n").text
    assert (
        "'k' is added by line 1 of cell 2 (id b) (`x['k'] = 3`), which has not run"
        in report
    )


def test_missing_column_names_the_cell_that_removed_it(project: Quick) -> None:  # noqa: F811
    cells = [code("x = {'a': 1, 'b': 2}", "a"), code("x.pop('b')", "b")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    cell_id, answer = notebook.insert("print(x['b'])", "b")
    assert "'b' was removed by line 1 of cell 2 (id b) (`x.pop('b')`)" in answer.text
    report = notebook.replace(cell_id, "del x['a']\nprint(x['a'])").text
    assert "'a' was removed by line 1 of cell 3" in report


def test_line_of_a_column_is_counted_with_blank_lines(project: Quick) -> None:  # noqa: F811
    cells = [code("x = {'a': 1, 'b': 2}", "a"), code("\n\nx.pop('b')", "b")]
    notebook = project.notebook("book.ipynb", cells)
    project.json("run", "book")
    cell_id, answer = notebook.insert("print(x['b'])", "b")
    assert "'b' was removed by line 3 of cell 2 (id b) (`x.pop('b')`)" in answer.text
    report = notebook.replace(cell_id, "\n\nx['c'] = 1\ndel x['a']\nx['a']").text
    assert "'a' was removed by line 4 of cell 3" in report
