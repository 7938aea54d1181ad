"""This repository uses its own hooks and ships its own notebook."""

from __future__ import annotations

import ast
import importlib
import json
import re

import nbformat
import pytest

from stepper.install import claude_settings
from tests.conftest import ROOT


def test_committed_hooks_match_the_installer() -> None:
    assert (ROOT / ".claude" / "hooks" / "stepper").read_bytes() == (
        ROOT / "hooks" / "stepper"
    ).read_bytes()
    data = json.loads((ROOT / ".claude" / "settings.json").read_text())
    assert claude_settings.list_missing_handlers(data) == []
    assert claude_settings.add_hooks(data) == data


def test_demo_notebook_is_complete() -> None:
    (path,) = (ROOT / "notebooks").glob("*.ipynb")
    notebook = nbformat.read(path, 4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) == len(notebook.metadata["stepper"]["steps"]) == 7
    assert all(cell.execution_count and "execution" in cell.metadata for cell in cells)
    assert any(
        "image/png" in out.get("data", {}) for cell in cells for out in cell.outputs
    )
    assert not [
        out for cell in cells for out in cell.outputs if out.output_type == "error"
    ]


def test_every_module_has_a_docstring() -> None:
    for path in sorted((ROOT / "stepper").rglob("*.py")):
        lines = path.read_text().splitlines()
        assert lines[0].startswith('"""'), path


def test_architecture_names_every_module() -> None:
    text = (ROOT / "docs" / "development" / "architecture.md").read_text()
    modules = [
        p.relative_to(ROOT / "stepper")
        for p in (ROOT / "stepper").rglob("*.py")
        if p.name != "__init__.py"
    ]
    for module in modules:
        assert module.name in text or re.search(rf"`{module.stem}`", text), module


def test_architecture_names_no_module_that_does_not_exist() -> None:
    text = (ROOT / "docs" / "development" / "architecture.md").read_text()
    packages = "|".join(
        path.parent.name for path in (ROOT / "stepper").glob("*/__init__.py")
    )
    named = set(re.findall(rf"`((?:{packages})/[\w./]+)`", text))
    assert len(named) > 80
    for path in named:
        parent = (ROOT / "stepper" / path).parent
        name = path.rstrip("/").split("/")[-1].split(".")[0]
        assert [*parent.glob(name), *parent.glob(f"{name}.*")], path


def test_only_two_modules_know_claude_codes_field_names() -> None:
    fields = (
        "tool_input",
        "tool_response",
        "additionalContext",
        "hookSpecificOutput",
        "stopReason",
        "session_id",
    )
    for path in (ROOT / "stepper").rglob("*.py"):
        # Jupyter has fields with these names, too
        if (
            path.name in ("claude_code_json.py", "hook_output.py")
            or path.parent.name == "jupyter"
        ):
            continue
        text = path.read_text()
        assert [name for name in fields if name in text] == [], path


def test_every_object_named_in_a_string_exists() -> None:
    """Modules that are imported late are named as `package.module:object`."""
    name = re.compile(r'"(stepper(?:\.\w+)+):(\w+)"')
    text = {
        match.groups()
        for path in (ROOT / "stepper").rglob("*.py")
        for match in name.finditer(path.read_text())
    }
    assert len(text) > 5
    for module, attribute in sorted(text):
        if module.startswith("stepper.mcp"):
            pytest.importorskip("mcp", reason="the extra `mcp` is not installed")
        assert hasattr(importlib.import_module(module), attribute), module


@pytest.mark.parametrize(
    ("pattern", "version"),
    [
        ("kernels/backends/slurm/node_launcher.py", (3, 8)),
        ("kernels/backends/ssh/remote_launcher.py", (3, 8)),
        ("kernels/in_kernel/**/*.py", (3, 9)),
        ("diagnosis/in_kernel/*.py", (3, 9)),
    ],
)
def test_code_for_other_interpreters_has_their_syntax(
    pattern: str, version: tuple[int, int]
) -> None:
    paths = [*(ROOT / "stepper").glob(pattern)]
    assert paths
    for path in paths:
        ast.parse(path.read_text(), path.name, feature_version=version)
