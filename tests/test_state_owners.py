"""Each part of a session's state is changed only by the class that owns it.

The test reads the source: outside its own module, no code of the session or the daemon
assigns to an attribute of an owner, or calls a method of a list, dict or set in it that
changes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import ROOT

OWNERS = ROOT / "stepper" / "session" / "session_state"
STATE = ROOT / "stepper" / "policy" / "notebook_state.py"
SCANNED = ("session", "daemon")
# Attributes that other objects of the session and the daemon have, too.
COMMON_NAMES = frozenset(
    {"limits", "notices", "journal", "caller", "report", "packages"}
)
CHANGING_METHODS = frozenset(
    {
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popleft",
        "remove",
        "setdefault",
        "update",
    }
)


def list_targets(statement: ast.AST) -> list[ast.expr]:
    """Return what a statement assigns to or deletes."""
    if isinstance(statement, ast.Assign | ast.Delete):
        return statement.targets
    if isinstance(statement, ast.AugAssign | ast.AnnAssign):
        return [statement.target]
    return []


def list_attributes(
    module: ast.Module, classes: frozenset[str] = frozenset()
) -> set[str]:
    """Return the attributes of the classes in a module, or of the named ones."""
    names = set[str]()
    for definition in module.body:
        if not isinstance(definition, ast.ClassDef):
            continue
        if classes and definition.name not in classes:
            continue
        for node in definition.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
        for node in ast.walk(definition):
            for target in list_targets(node):
                if isinstance(target, ast.Attribute) and is_self(target.value):
                    names.add(target.attr)
    return names


def is_self(expression: ast.expr) -> bool:
    return isinstance(expression, ast.Name) and expression.id == "self"


def strip_subscripts(expression: ast.expr) -> ast.expr:
    """Return `x.y` of `x.y[1][2]`."""
    while isinstance(expression, ast.Subscript):
        expression = expression.value
    return expression


def find_changes(module: ast.Module, owned: set[str]) -> Iterator[str]:
    """Yield the code in a module that changes an owned attribute of an object."""
    for node in ast.walk(module):
        changed = list_targets(node)
        is_method_call = isinstance(node, ast.Call) and isinstance(
            node.func, ast.Attribute
        )
        if is_method_call and node.func.attr in CHANGING_METHODS:
            changed = [node.func.value]
        for target in map(strip_subscripts, changed):
            if not isinstance(target, ast.Attribute) or target.attr not in owned:
                continue
            if not is_self(target.value):
                yield f"{node.lineno}: {ast.unparse(node)}"


@pytest.fixture(scope="module")
def owned_names() -> set[str]:
    names = list_attributes(ast.parse(STATE.read_text()), frozenset({"State"}))
    for path in OWNERS.glob("*.py"):
        names |= list_attributes(ast.parse(path.read_text()))
    # `session.background_calls.add(call)` is a method of the owner `BackgroundCalls`.
    return names - COMMON_NAMES - {"background_calls"}


def test_only_the_owner_changes_its_attributes(owned_names: set[str]) -> None:
    changes = []
    for package in SCANNED:
        folder = ROOT / "stepper" / package
        for path in sorted(folder.rglob("*.py")):
            if path.parent == OWNERS:
                continue
            for change in find_changes(ast.parse(path.read_text()), owned_names):
                changes.append(f"{path.relative_to(ROOT)}:{change}")
    assert changes == []


@pytest.mark.parametrize(
    "planted",
    [
        "session.state.lost_reason = ''",
        "state = session.state\nstate.stop = None",
        "session.requests.last_used += 1",
        "session.kernel_manager.kernel = None",
        "session.namespace_tracker.current = namespace",
        "session.outputs._failed_execution = None",
        "call.state = CallState.REPORTED",
        "del session.state.reports[1]",
        "session.state.progress[1] = Progress()",
        "session.state.undelivered.append(report)",
        "self.session.state.tool_use_ids.add('1')",
    ],
)
def test_change_by_another_class_is_detected(
    owned_names: set[str], planted: str
) -> None:
    assert list(find_changes(ast.parse(planted), owned_names))


@pytest.mark.parametrize(
    "permitted",
    [
        "session.notices.add('text')",
        "session.background_calls.add(call)",
        "session.journal.log(event)",
        "self.last_used = 1.0",
        "kernel = session.kernel_manager.kernel",
    ],
)
def test_methods_of_owners_and_own_attributes_are_permitted(
    owned_names: set[str], permitted: str
) -> None:
    assert not list(find_changes(ast.parse(permitted), owned_names))


def test_each_owner_has_one_documented_class() -> None:
    names = {path.stem for path in OWNERS.glob("*.py")} - {"__init__"}
    assert names >= {"notebook_journal", "request_queue", "kernel_manager", "notices"}
    # The state machine of a call has several small classes.
    for name in names - {"background_call_states"}:
        module = ast.parse((OWNERS / f"{name}.py").read_text())
        class_name = name.title().replace("_", "")
        owners = [
            node
            for node in module.body
            if isinstance(node, ast.ClassDef) and node.name == class_name
        ]
        assert len(owners) == 1, name
        assert ast.get_docstring(owners[0]), name
