"""Notebooks in several folders: `notebooks:`, uncovered notebooks, journal locations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Notebook, Project, code, scratch


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    yield from scratch(tmp_path_factory.mktemp("elsewhere") / "repo")


def make_notebook_at(project: Project, name: str) -> Notebook:
    project.notebook("../" + name, [code("", "first")])
    return Notebook(project, project.folder / name)


def test_uncovered_edits_are_reported_and_the_first_with_a_fix(
    shared: Project,
) -> None:
    shared.config("")
    first_notebook, other = (
        make_notebook_at(shared, "top.ipynb"),
        make_notebook_at(shared, "analysis/old.ipynb"),
    )
    first_answer = first_notebook.insert("open('ran', 'w')")[1]
    assert (
        first_answer.text.startswith("stepper: the cell was NOT run")
        and "outputs may be stale" in first_answer.text
    )
    assert (
        'To include the notebook, the user can set: notebooks: ["notebooks", "*.ipynb"]'
        in first_answer.text
    )
    assert (
        first_answer.line.startswith(
            "✗ cell not run: top.ipynb does not match `notebooks:`"
        )
        and "\n" not in first_answer.text
    )
    second_answer = first_notebook.insert("2")[1]
    assert (
        second_answer.text
        == "stepper: the cell was NOT run: top.ipynb does not match `notebooks:` in .stepper/config.yaml"
    )
    assert (
        second_answer.line.startswith("✗ the cell was NOT run: top.ipynb")
        and first_notebook.before("insert", "3").stdout == b""
    )
    assert 'notebooks: ["notebooks", "analysis"]' in other.insert("2")[1].line
    first_notebook.session = "another"
    assert "does not match `notebooks:`" in first_notebook.insert("4")[1].line
    for name in (".venv/share/x.ipynb", "../of-nobody.ipynb"):
        assert (
            make_notebook_at(shared, name)
            .insert("5")[1]
            .line.endswith("; no pattern can include a notebook in this folder")
        )
    assert not (shared.folder / "ran").exists()
    # The suggested line includes it from the next edit on: hooks have no folder.
    shared.config('notebooks: ["notebooks", "*.ipynb"]\n')
    assert "| 42" in first_notebook.insert("print(42)")[1].text
    assert (
        "does not match `notebooks:` (notebooks/, *.ipynb)"
        in shared.stepper("run", "analysis/old.ipynb", check=2).stderr
    )


@pytest.mark.nightly
def test_each_notebook_has_its_own_journal_and_kernel(shared: Project) -> None:
    """In the default folder, the names don't depend on the other patterns."""
    shared.config("notebooks: [analysis, '*.ipynb', 'labs/**']\n")
    names = ["book.ipynb", "analysis/book.ipynb", "labs/a/b/book.ipynb"]
    for name in names:
        assert (
            f"| {name}"
            in make_notebook_at(shared, name)
            .insert(f"mine = {name!r}\nprint(mine)")[1]
            .text
        )
    # the same patterns in another order
    shared.config("notebooks: [notebooks, analysis, '*.ipynb', 'labs/**']\n")
    names += ["notebooks/book.ipynb", "notebooks/analysis/book.ipynb"]
    for name in names[3:]:
        make_notebook_at(shared, name).insert(f"mine = {name!r}")
    shared.kill_daemon()
    for name in names:  # their kernels outlive the daemon
        assert shared.json("eval", "mine", "--notebook", name)["text"].endswith(
            f"| {name!r}"
        )
        assert len(shared.json("history", name)) == 1
    journals = shared.folder / ".stepper/journal"
    assert {
        str(path.relative_to(journals)) for path in journals.rglob("*book.jsonl")
    } == {
        *("book.jsonl", "analysis/book.jsonl"),
        *("@/book.jsonl", "@/analysis/book.jsonl", "@/labs/a/b/book.jsonl"),
    }
    assert shared.json("status", "labs/a/b/book")["notebook"] == "labs/a/b/book.ipynb"


def test_new_notebooks_go_into_the_first_folder(shared: Project) -> None:
    shared.config("notebooks: ['*.ipynb', 'deep/lab', analysis]\n")
    assert shared.new("One").path.parent == shared.folder / "deep/lab"
    shared.config("notebooks: ['*.ipynb']\n")
    assert shared.new("One").path.parent == shared.folder
    shared.config("notebooks: [a/b.ipynb]\n")
    assert (
        "contains no folder for new notebooks"
        in shared.stepper("new", "x", check=2).stderr
    )
