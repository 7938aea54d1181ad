"""The marks of steps, cells, runs and notebooks come from one table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from stepper.messages import marks, status_text
from stepper.policy.comparison.output_comparison import ReplayVerdict
from stepper.policy.model import Outcome, StepStatus
from tests.conftest import ROOT

TABLE = ROOT / "stepper" / "messages" / "marks.py"
# The marks that have no other meaning in a text.
UNAMBIGUOUS = re.compile("[✓✗■▶⏵⧖❌]")
PAGE = ROOT / "stepper" / "web" / "page"


def list_strings(path: Path) -> Iterable[ast.Constant]:
    """Yield the strings of a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in docstrings:
            yield node


def find_marks(path: Path) -> list[str]:
    """Return the strings with a mark, as `line: string`."""
    return [
        f"{node.lineno}: {node.value}"
        for node in list_strings(path)
        if isinstance(node.value, str) and UNAMBIGUOUS.search(node.value)
    ]


def test_no_other_module_defines_marks() -> None:
    modules = {*(ROOT / "stepper").rglob("*.py")} - {TABLE}
    assert [(path, find_marks(path)) for path in modules if find_marks(path)] == []


def test_find_marks_in_a_module(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""✓"""\nMARKS = {"done": "✓"}\nline = f"✗ {MARKS}"\n')
    assert find_marks(module) == ["2: ✓", "3: ✗ "]


@pytest.mark.parametrize("name", ["view.js", "view.css", "view.html"])
def test_view_page_defines_no_marks(name: str) -> None:
    assert UNAMBIGUOUS.findall((PAGE / name).read_text()) == []


def test_each_status_has_a_mark() -> None:
    assert {status.value for status in StepStatus} <= set(marks.MARKS)
    states = {"stopped", "complete", "failing", "ready"}  # `State.status_name`
    assert states <= set(marks.MARKS)
    assert marks.get_mark("deleted") == marks.PENDING_MARK
    verdicts = {verdict.value for verdict in ReplayVerdict}
    assert set(marks.REPLAY_MARKS) <= verdicts


def test_each_outcome_of_a_failed_run_has_a_mark_and_a_name() -> None:
    for outcome in Outcome:
        assert marks.get_run_mark(outcome, is_fine=True) == marks.OK_MARK
        assert outcome is Outcome.OK or status_text.OUTCOME_NAMES[outcome]
    assert marks.get_run_mark(Outcome.ERROR, is_fine=False) == marks.FAILED_MARK
    assert (
        marks.get_run_mark(Outcome.CANCELLED, is_fine=False) == marks.INTERRUPTED_MARK
    )
