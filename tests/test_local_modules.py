"""Modules of the project that change after their import: reloaded before the next cell, and reported."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from stepper.common.errors import UsageError
from stepper.daemon import config
from tests.conftest import Project, reused

OLD = "RATE = 1\ndef add(x):\n    return x + 1\n"
NEW = "RATE = 2\ndef add(x):\n    return x + 2\n"


@pytest.fixture
def project(lasting: Project) -> Iterator[Project]:
    """One daemon for all tests of this module, a notebook of its own for each."""
    yield from reused(lasting)


def package(project: Project, name: str) -> object:
    """Make a package beside the notebooks, with a module that another one imports from."""
    folder = project.folder / "notebooks" / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "features.py").write_text(OLD)
    (folder / "report.py").write_text(
        "from .features import RATE, add\ndef show():\n    return RATE, add(1)\n"
    )
    return folder


def test_a_changed_module_is_reloaded_before_the_next_cell(project: Project) -> None:
    folder = package(project, "pack")
    notebook = project.new()
    _, answer = notebook.insert(
        "from pack.features import add, RATE as rate\nimport pack.report as r\n(add(1), rate, r.show())"
    )
    assert "(2, 1, (1, 2))" in answer.text and "Reloaded" not in answer.text
    (folder / "features.py").write_text(NEW)
    _, answer = notebook.insert("(add(1), rate, r.show())")
    assert "Reloaded: pack.features (changed since it was imported).\n" in answer.text
    assert "(3, 2, (2, 3))" in answer.text
    _, answer = notebook.insert("add(1)")
    assert "Reloaded" not in answer.text


def test_an_edit_of_the_same_size_and_time_is_seen(project: Project) -> None:
    folder = package(project, "samesize")
    features = folder / "features.py"
    notebook = project.new()
    notebook.insert("from samesize.features import add\nadd(1)")
    stamp = features.stat().st_mtime_ns
    features.write_text(NEW)
    os.utime(features, ns=(stamp, stamp))
    _, answer = notebook.insert("add(1)")
    assert "Reloaded: samesize.features" in answer.text and "| 3" in answer.text


def test_what_can_not_be_reloaded_is_named_with_the_way_out(project: Project) -> None:
    folder = package(project, "broken")
    features = folder / "features.py"
    notebook = project.new()
    notebook.insert("from broken.features import add\nadd(1)")
    features.write_text("def add(x:\n")
    _, answer = notebook.insert("add(1)")
    assert "Warning: broken.features changed and could not be reloaded" in answer.text
    assert "the kernel still has the old code" in answer.text and "| 2" in answer.text
    features.write_text(OLD + "raise ValueError('half')\n")
    _, answer = notebook.insert("add(1)")
    assert (
        "ValueError: half" in answer.text
        and "line 4" in answer.text
        and "| 2" in answer.text
    )
    features.unlink()
    _, answer = notebook.insert("add(1)")
    assert (
        "was deleted; the kernel still has the old code" in answer.text
        and "| 2" in answer.text
    )
    features.write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert "Reloaded: broken.features" in answer.text and "| 3" in answer.text


def test_objects_made_before_take_the_new_methods(project: Project) -> None:
    made = project.folder / "notebooks" / "shapes.py"
    made.write_text(
        "class Box:\n    def __init__(self):\n        self.side = 1\n    def size(self):\n        return 1\n"
    )
    notebook = project.new()
    notebook.insert("from shapes import Box\nbox = Box()\nbox.size()")
    made.write_text(made.read_text().replace("return 1", "return self.side + 6"))
    _, answer = notebook.insert("(box.size(), Box().size(), isinstance(box, Box))")
    assert "objects made before keep the values they were made with." in answer.text
    assert "(7, 7, True)" in answer.text


def test_warn_and_off(project: Project) -> None:
    folder = package(project, "warned")
    path = project.folder / ".stepper" / "config.yaml"
    path.write_text("local_modules: warn\n")
    notebook = project.new()
    notebook.insert("from warned.features import add\nadd(1)")
    (folder / "features.py").write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert (
        "Warning: warned.features changed since it was imported" in answer.text
        and "| 2" in answer.text
    )
    path.write_text("local_modules: off\n")
    _, answer = notebook.insert("add(1)")
    assert "Warning" not in answer.text and "| 2" in answer.text


def test_the_users_own_autoreload_is_left_to_it(project: Project) -> None:
    folder = package(project, "auto")
    notebook = project.new()
    notebook.insert(
        "%load_ext autoreload\n%autoreload 2\nfrom auto.features import add\nadd(1)"
    )
    (folder / "features.py").write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert (
        "| 3" in answer.text
        and "Reloaded" not in answer.text
        and "Warning" not in answer.text
    )


def test_verify_run_all_and_restore_name_a_changed_module(project: Project) -> None:
    folder = package(project, "replayed")
    notebook = project.new()
    notebook.insert("from replayed.features import add\nadd(1)")
    (folder / "features.py").write_text(NEW + "# a comment\n")
    name = notebook.path.name
    replayed = project.stepper("verify", name, check=None).stdout
    assert "module replayed.features changed since the recorded run" in replayed
    changed = "Changed since the recorded runs: replayed.features has another source now, so values may differ."
    assert changed in project.stepper("restore", name).stdout
    assert changed not in project.stepper("run", name, "--all").stdout
    (folder / "features.py").write_text(OLD)
    assert changed in project.stepper("run", name, "--all").stdout


@pytest.mark.parametrize("value", ["reload", "warn", "off", "'off'"])
def test_local_modules_takes_three_values(value: str) -> None:
    assert config.parse(
        f"local_modules: {value}", "config.yaml"
    ).local_modules == value.strip("'")


@pytest.mark.parametrize("value", ["sometimes", "true", "1", "null"])
def test_another_value_of_local_modules_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="must be `reload`, `warn` or `off`"):
        config.parse(f"local_modules: {value}", "config.yaml")


def test_cells_that_used_a_changed_module_are_stale(project: Project) -> None:
    folder = package(project, "used")
    notebook = project.new()
    notebook.insert("from used.features import add")
    second, _ = notebook.insert("a = add(1)\na")
    notebook.insert("other = 1")
    (folder / "features.py").write_text(NEW + "# longer\n")
    _, answer = notebook.insert("add(2)")
    assert (
        "Stale: cell 2 used `used.features`, which changed after it ran." in answer.text
    )
    name = notebook.path.name
    stale = project.json("status", name)["stale"]
    assert [(each["cell_id"], each["why"]) for each in stale] == [
        (second, "stale: used `used.features`, which changed since")
    ]
    assert project.json("run", name, "--stale")["ran"] == 1
    assert project.json("status", name)["stale"] == []


def test_a_reload_ends_with_the_cells_deadline(project: Project) -> None:
    made = project.folder / "notebooks" / "slow.py"
    made.write_text("A = 1\n")
    notebook = project.new()
    notebook.insert("import slow\nran = 0")
    made.write_text("import time\ntime.sleep(3)\nA = 2\n")
    _, answer = notebook.insert("# stepper: timeout=1\nran = 1")
    assert (
        "Timeout" in answer.text
        and "its reload was interrupted: the cell did not run." in answer.text
    )
    assert "| 0 2" in notebook.insert("print(ran, slow.A)")[1].text
