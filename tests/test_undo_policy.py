"""Which runs and names are undone before a cell runs again."""

from __future__ import annotations

import ast
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from stepper.common.errors import UsageError
from stepper.daemon import config
from stepper.policy import undo
from stepper.policy.changed_cells import hash_source
from stepper.policy.dataflow.binding_table import BindingTable
from stepper.policy.dataflow.name_analysis import analyze_source
from stepper.policy.dataflow.run_history import History
from stepper.policy.journal_events import RunEnded, RunsUndone
from stepper.policy.model import Cell, Outcome, Verdict
from stepper.policy.notebook_state import State
from stepper.policy.undo import requested_undo, undone_runs
from stepper.policy.undo.recomputation import select_cells
from stepper.policy.undo_model import (
    CHANGED,
    NEW,
    REBOUND,
    MentionedNames,
    RestoreRequest,
    UndoImages,
)

KERNEL_PART = Path(undo.__file__).parents[2] / "kernels" / "in_kernel" / "undo"


def list_names(source: str) -> MentionedNames:
    usage = analyze_source(source)
    return undone_runs.list_mentioned_names(usage, BindingTable().resolve_usage(usage))


def make_cells(*sources: str, ids: str = "abcdef") -> list[Cell]:
    return [
        Cell(cell_id, index, index + 1, "code", source)
        for index, (cell_id, source) in enumerate(zip(ids, sources, strict=False))
    ]


def make_run(number: int, cell: Cell, ok: bool = True, **changes: str) -> RunEnded:
    return RunEnded(
        run=number,
        cell_id=cell.id,
        number=cell.number,
        index=cell.index,
        step=None,
        key=cell.id,
        source_hash=hash_source(cell.source),
        started_at="2026-01-01T00:00:00Z",
        duration_s=0.1,
        outcome=Outcome.OK if ok else Outcome.ERROR,
        verdict=Verdict.FINE if ok else Verdict.RECOVERABLE,
        kernel="k",
        changes=changes,
    )


def select(
    cells: list[Cell],
    cell: Cell,
    runs: list[RunEnded],
    keep: bool = False,
    undone: Collection[int] = (),
) -> RestoreRequest | None:
    sources = {hash_source(other.source): other.source for other in cells}
    sources |= {hash_source(source): source for source in ("old", "x = old")}
    kernel_runs = undone_runs.KernelRuns(runs, "k", undone)
    return undone_runs.select_restore(
        cells, cell, kernel_runs, sources, list_names, keep=keep
    )


@pytest.mark.parametrize(
    ("source", "part", "names"),
    [
        ("x = a + b", "reads", "a b"),
        ("x = a + b", "binds", "x"),
        ("a.append(1)", "changes", "a"),
        ("df.drop('x')", "calls", "df"),
        ("f(a, key=b.c[0])", "calls", "a b"),
        ("f(a, key=b.c[0])", "reads", "f"),
        ("del a", "binds", "a"),
        ("a[0] = b", "changes", "a"),
        ("def f(): return g(a)\nf()", "reads", "a g"),
    ],
)
def test_mentioned_names(source: str, part: str, names: str) -> None:
    mentioned = list_names(source)
    assert getattr(mentioned, part) >= set(names.split())


@pytest.mark.parametrize(
    ("source", "everything", "reads_everything"),
    [
        ("x = 1", False, False),
        ("exec('x = 1')", True, True),
        ("globals()['x'] = 1", True, True),
        ("from math import *", True, False),
        ("def f(): return eval('x')\nf()", True, True),
        ("x = (", True, True),
        ("df.eval('a + b')", False, False),
    ],
)
def test_code_that_may_use_any_name(
    source: str, everything: bool, reads_everything: bool
) -> None:
    names = list_names(source)
    assert names.everything is everything
    assert names.reads_everything is reads_everything


def test_first_run_undoes_nothing() -> None:
    cells = make_cells("x = 1", "y = x")
    assert select(cells, cells[1], [make_run(1, cells[0])]) is None


def test_runs_below_and_of_deleted_cells_are_undone_but_not_runs_above() -> None:
    cells = make_cells("x = 1", "y = x", "z = y")
    deleted = Cell("gone", 1, 2, "code", "old")
    runs = [
        make_run(1, cells[0]),
        make_run(2, deleted),
        make_run(3, cells[1]),
        make_run(4, cells[2]),
        make_run(5, cells[0]),
        make_run(6, deleted),
        make_run(7, cells[1], ok=False),
    ]
    request = select(cells, cells[1], runs)
    assert request is not None
    assert request.runs == (7, 6, 4, 3)
    assert request.own_runs == (3, 7)
    assert request.names is not None
    assert request.names >= {"x", "y"}
    assert "z" not in request.names


def test_runs_below_since_the_first_run_are_undone_even_if_that_run_is_undone() -> None:
    cells = make_cells("x = 1", "y = x", "z = y")
    runs = [
        make_run(1, cells[0]),
        make_run(2, cells[1]),
        make_run(3, cells[2]),
        make_run(4, cells[1]),
    ]
    request = select(cells, cells[1], runs, undone={2})
    assert request is not None
    assert request.runs == (4, 3)
    assert request.own_runs == (4,)


def test_names_of_the_old_and_the_new_version_and_of_the_kernel_are_restored() -> None:
    cells = make_cells("new = 1")
    earlier = Cell("a", 0, 1, "code", "x = old")
    run = make_run(1, earlier, alias=CHANGED)
    request = select(cells, cells[0], [run])
    assert request is not None
    assert request.names == {"new", "x", "old", "alias"}


@pytest.mark.parametrize("source", ["exec('x')", "globals()"])
def test_names_that_a_cell_reads_dynamically_stay(source: str) -> None:
    """Otherwise, undo would remove what the cells below have computed."""
    cells = make_cells(source, "below = 1")
    runs = [make_run(1, cells[0], x=NEW), make_run(2, cells[1], below=NEW)]
    request = select(cells, cells[0], runs)
    assert request is not None
    assert request.names is not None
    assert "x" in request.names
    assert "below" not in request.names


def test_global_state_is_restored_if_the_source_may_use_it() -> None:
    cells = make_cells("import random\nrandom.random()")
    request = select(cells, cells[0], [make_run(1, cells[0])])
    assert request is not None
    assert request.names is not None
    assert "random numbers" in request.names
    assert "environment variables" not in request.names


def test_the_kernel_and_the_policy_know_the_same_global_states() -> None:
    names = set[str]()
    for path in KERNEL_PART.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(
                    func=ast.Name("GlobalState"), args=[ast.Constant(name), *_]
                ):
                    names.add(name)
    assert names == set(undone_runs.GLOBAL_STATES)


def test_keep_excludes_new_names_of_failed_versions() -> None:
    cells = make_cells("x")
    earlier = Cell("a", 0, 1, "code", "x = old")
    failed = make_run(1, earlier, ok=False, x=NEW, old=CHANGED)
    request = select(cells, cells[0], [failed], keep=True)
    assert request is not None
    assert request.names == {"old"}
    request = select(cells, cells[0], [replace(failed, verdict=Verdict.FINE)], True)
    assert request is not None
    assert request.names == {"old", "x"}


def test_cells_without_ids_are_found_by_their_source() -> None:
    cells = make_cells("x = 1", "y = 2", "z = 3")
    cells = [replace(cell, id=f"cell-{cell.index}") for cell in cells]
    moved = make_run(1, replace(cells[2], id="cell-1"))  # now at index 2
    replaced = make_run(2, Cell("cell-1", 1, 2, "code", "old"))
    positions = undone_runs.CellPositions(cells)
    assert positions.find_index(moved) == 2
    assert positions.find_index(replaced) == 1
    same = [replace(cell, source="n += 1") for cell in cells]
    assert undone_runs.CellPositions(same).find_index(make_run(1, same[1])) == 1


def test_deleted_cells() -> None:
    cells = make_cells("x = 1", "z = 3")
    deleted = Cell("gone", 1, 2, "code", "x = old")
    rewritten = Cell("other id", 0, 1, "code", "x = 1")  # the same source
    runs = [
        make_run(1, rewritten),
        make_run(2, deleted, deep=CHANGED),
        make_run(3, cells[1]),
    ]
    kernel_runs = undone_runs.KernelRuns(runs, "k", ())
    deleted = undone_runs.select_deleted_runs(cells, kernel_runs)
    assert deleted == {"gone": [runs[1]]}
    sources = {hash_source("x = old"): "x = old"}
    request = undone_runs.select_restore_after_deletion(
        cells, deleted["gone"], kernel_runs, sources, list_names
    )
    assert request == RestoreRequest((3, 2), frozenset({"x", "deep"}), (2,))


@pytest.mark.parametrize(
    ("changes", "undone", "removed"),
    [
        ([{"x": NEW}], {1}, {"x": (1,)}),
        ([{"x": NEW}, {"x": REBOUND}], {1, 2}, {"x": (2, 1)}),
        ([{"x": NEW}, {"x": REBOUND}], {1}, {}),
        ([{"x": NEW}, {"x": REBOUND}], {2}, {}),
        ([{"x": NEW}, {}], {1}, {"x": (1,)}),
        ([{"other": NEW}], {1}, {}),
    ],
)
def test_names_that_the_kernel_will_remove(
    changes: list[dict[str, str]], undone: set[int], removed: dict[str, tuple[int, ...]]
) -> None:
    (cell,) = make_cells("x")
    runs = [
        make_run(number, cell, **names) for number, names in enumerate(changes, start=1)
    ]
    request = RestoreRequest(tuple(sorted(undone, reverse=True)), frozenset({"x"}))
    assert undone_runs.find_removed_names(request, runs) == removed


def test_change_that_is_undone_already_removes_no_name() -> None:
    first, second = make_cells("del x", "x = 2")
    runs = [make_run(3, second, x=NEW), make_run(4, first, other=NEW)]
    request = RestoreRequest((4, 3), frozenset({"x", "other"}))
    assert undone_runs.find_removed_names(request, runs) == {"x": (3,), "other": (4,)}
    earlier = [RunsUndone(runs=(2,), others=(3,), restored={"x": (3, 2)})]
    removed = undone_runs.find_removed_names(request, runs, earlier)
    assert removed == {"other": (4,)}


def test_recomputation_includes_cells_whose_changes_only_the_kernel_sees() -> None:
    cells = make_cells("count = make()\ngen = f()", "times = count()", "next(gen)")
    runs = [
        make_run(1, cells[0], count=NEW, gen=NEW),
        make_run(2, cells[1], times=NEW, count=CHANGED),
    ]
    bound = [{"count": "", "gen": ""}, {"times": ""}]
    runs = [
        replace(run, bound=names, undo_reach=1)
        for run, names in zip(runs, bound, strict=True)
    ]
    history = History(analyze_source)
    sources = {hash_source(cell.source): cell.source for cell in cells}
    history.catch_up(runs, sources)
    selected = select_cells(cells, cells[2], {"gen"}, history)
    assert selected == cells[:2]


@pytest.mark.parametrize(
    ("oldest", "unreachable"), [(1, []), (2, [1]), (3, [1, 2]), (0, [1, 2])]
)
def test_runs_without_an_image_are_unreachable(
    oldest: int, unreachable: list[int]
) -> None:
    cells = make_cells("x = 1", "y = x")
    runs = [
        replace(make_run(number, cell), undo_images=UndoImages(1, 10, 100))
        for number, cell in enumerate(cells, 1)
    ]
    state = State(runs=runs, undo_images=UndoImages(oldest, 10, 100))
    missing = requested_undo.list_unreachable_runs(runs, state)
    assert [run.run for run in missing] == unreachable
    kernel_runs = undone_runs.KernelRuns(runs, "k", ())
    reach = requested_undo.find_reach(cells, kernel_runs, state)
    topmost = {1: "a", 2: "b"}.get(oldest)
    assert (reach.cell_id if reach else None) == topmost


def test_undo_settings() -> None:
    assert config.parse("undo: off", "f").undo is False
    assert config.parse("undo: 'on'", "f").undo is True
    assert config.parse("undo_memory: 200 MB", "f").undo_memory == 200_000_000
    assert config.parse("undo_memory: 1.5GB", "f").undo_memory == 1_500_000_000
    assert config.parse("undo_memory: 4096", "f").undo_memory == 4096
    for text in ("undo: 5", "undo_memory: much", "undo_memory: -1"):
        with pytest.raises(UsageError):
            config.parse(text, "f")
