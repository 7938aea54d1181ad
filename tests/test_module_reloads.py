"""Modules of the project that change after their import: reloaded before the next cell, and reported."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepper.common.errors import UsageError
from stepper.daemon import config
from stepper.kernels.in_kernel import cell_sources, module_reload
from stepper.kernels.in_kernel.import_time_dependencies import depends_at_import
from stepper.kernels.in_kernel.module_parsing import list_mentioned_modules
from stepper.kernels.in_kernel.undo import imported_modules
from stepper.policy.reloaded_modules import ModuleChanges
from tests.conftest import Project, make_env, reuse_project
from tests.environments import environment, old_python
from tests.test_kernel_helper import OLD as OLD_PACKAGES
from tests.test_kernel_helper import Lab
from tests.test_kernel_helper import text as printed

OLD = "RATE = 1\ndef add(x):\n    return x + 1\n"
NEW = "RATE = 2\ndef add(x):\n    return x + 2\n"


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def make_package(project: Project, name: str) -> Path:
    """Make a package next to the notebooks; `report` imports from `features`."""
    folder = project.folder / "notebooks" / name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "features.py").write_text(OLD)
    (folder / "report.py").write_text(
        "from .features import RATE, add\ndef show():\n    return RATE, add(1)\n"
    )
    return folder


def test_changed_module_is_reloaded_before_the_next_cell(project: Project) -> None:
    folder = make_package(project, "pack")
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


def test_edit_of_the_same_size_and_time_is_seen(project: Project) -> None:
    folder = make_package(project, "samesize")
    features = folder / "features.py"
    notebook = project.new()
    notebook.insert("from samesize.features import add\nadd(1)")
    stamp = features.stat().st_mtime_ns
    features.write_text(NEW)
    os.utime(features, ns=(stamp, stamp))
    _, answer = notebook.insert("add(1)")
    assert "Reloaded: samesize.features" in answer.text and "| 3" in answer.text


def test_failed_reload_is_reported_with_a_fix(project: Project) -> None:
    folder = make_package(project, "broken")
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
        "broken.features was not reloaded: notebooks/broken/features.py was deleted; "
        "the kernel still has the old code"
        in answer.text
        and "| 2" in answer.text
    )
    features.write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert "Reloaded: broken.features" in answer.text and "| 3" in answer.text


def test_existing_objects_get_the_new_methods(project: Project) -> None:
    path = project.folder / "notebooks" / "shapes.py"
    path.write_text(
        "class Box:\n    def __init__(self):\n        self.side = 1\n    def size(self):\n        return 1\n"
    )
    notebook = project.new()
    notebook.insert("from shapes import Box\nbox = Box()\nbox.size()")
    path.write_text(path.read_text().replace("return 1", "return self.side + 6"))
    _, answer = notebook.insert("(box.size(), Box().size(), isinstance(box, Box))")
    assert "existing objects keep their values." in answer.text
    assert "(7, 7, True)" in answer.text


def test_local_modules_warn_and_off(project: Project) -> None:
    folder = make_package(project, "warned")
    path = project.folder / ".stepper" / "config.yaml"
    path.write_text("local_modules: warn\n")
    notebook = project.new()
    notebook.insert("from warned.features import add\nadd(1)")
    (folder / "features.py").write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert (
        "Warning: warned.features has changed since it was imported" in answer.text
        and "| 2" in answer.text
    )
    (folder / "features.py").write_text("def add(x:\n")
    path.write_text("local_modules: reload\n")
    _, answer = notebook.insert("add(1)")
    assert "line 1: SyntaxError: '(' was never closed)" in answer.text
    path.write_text("local_modules: warn\n")
    (folder / "features.py").write_text(NEW)
    _, answer = notebook.insert("add(1)")
    assert "SyntaxError" not in answer.text
    assert "was not reloaded (`local_modules: warn`)" in answer.text
    path.write_text("local_modules: off\n")
    _, answer = notebook.insert("add(1)")
    assert "Warning" not in answer.text and "| 2" in answer.text


def test_user_autoreload_takes_precedence(project: Project) -> None:
    folder = make_package(project, "auto")
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


@pytest.mark.nightly
def test_verify_run_all_and_restore_name_a_changed_module(project: Project) -> None:
    folder = make_package(project, "replayed")
    notebook = project.new()
    notebook.insert("from replayed.features import add\nadd(1)")
    (folder / "features.py").write_text(NEW + "# a comment\n")
    name = notebook.path.name
    replayed = project.stepper("verify", name, check=None).stdout
    assert "module replayed.features has changed since the recorded run" in replayed
    changed = "Changed since the recorded runs: replayed.features. The outputs may differ for this reason."
    values = "cell 1: 1 line differs:\n| - 2\n| + 3\n"
    assert values + changed in project.stepper("restore", name).stdout
    assert changed not in project.stepper("run", name, "--all").stdout
    (folder / "features.py").write_text(OLD)
    assert changed in project.stepper("run", name, "--all").stdout


@pytest.mark.parametrize("value", ["reload", "warn", "off", "'off'"])
def test_local_modules_takes_three_values(value: str) -> None:
    assert config.parse(
        f"local_modules: {value}", "config.yaml"
    ).local_modules == value.strip("'")


@pytest.mark.parametrize("value", ["sometimes", "true", "1", "null"])
def test_invalid_value_of_local_modules_is_rejected(value: str) -> None:
    with pytest.raises(UsageError, match="must be `reload`, `warn` or `off`"):
        config.parse(f"local_modules: {value}", "config.yaml")


def test_cells_that_used_a_changed_module_are_stale(project: Project) -> None:
    folder = make_package(project, "used")
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
        (second, "stale: used `used.features`, which has changed since")
    ]
    assert project.json("run", name, "--stale")["ran"] == 1
    assert project.json("status", name)["stale"] == []


@pytest.mark.nightly
def test_reload_counts_toward_the_cell_timeout(project: Project) -> None:
    path = project.folder / "notebooks" / "slow.py"
    path.write_text("A = 1\n")
    notebook = project.new()
    notebook.insert("import slow\nran = 0")
    path.write_text("import time\ntime.sleep(3)\nA = 2\n")
    _, answer = notebook.insert("# stepper: timeout=1\nran = 1")
    assert (
        "Timeout" in answer.text
        and "its reload was interrupted: the cell did not run." in answer.text
    )
    assert "| 0 2" in notebook.insert("print(ran, slow.A)")[1].text


def make_modules(project: Project, name: str, **sources: str) -> Path:
    """Make a package next to the notebooks: a module for each source, `a__b` is `a/b`."""
    folder = project.folder / "notebooks" / name
    sources.setdefault("__init__", "")
    for module, source in sources.items():
        parts = [module] if module == "__init__" else module.split("__", 1)
        path = folder.joinpath(*parts).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return folder


@pytest.mark.nightly
def test_users_of_a_module_that_imports_the_changed_one_are_stale(
    project: Project,
) -> None:
    folder = make_package(project, "indirect")
    notebook = project.new()
    notebook.insert("import indirect.report as r")
    second, _ = notebook.insert("shown = r.show()\nshown")
    notebook.insert("other = 1")
    (folder / "features.py").write_text(NEW + "# longer\n")
    _, answer = notebook.insert("other")
    used = "used `indirect.features` (imported by `indirect.report`), which"
    assert f"Stale: cell 2 {used} changed after it ran." in answer.text
    name = notebook.path.name
    stale = project.json("status", name)["stale"]
    assert [(each["cell_id"], each["why"]) for each in stale] == [
        (second, f"stale: {used} has changed since")
    ]
    response = project.json("run", name, "--stale")
    assert [result["output"] for result in response["results"]] == ["(2, 3)"]
    assert project.json("status", name)["stale"] == []


@pytest.mark.nightly
def test_sibling_of_the_changed_module_makes_no_cell_stale(project: Project) -> None:
    folder = make_modules(project, "siblings", a="A = 1\n", b="B = 1\n")
    notebook = project.new()
    notebook.insert("from siblings import a, b\nfrom siblings.a import A")
    notebook.insert("(a.A, A)")
    third, _ = notebook.insert("b.B")
    (folder / "b.py").write_text("B = 22\n")
    _, answer = notebook.insert("1")
    assert "Stale: cell 3 used `siblings.b`, which changed" in answer.text
    stale = project.json("status", notebook.path.name)["stale"]
    assert [stale_cell["cell_id"] for stale_cell in stale] == [third]


def test_names_imported_from_a_changed_module_are_rebound_everywhere(
    project: Project,
) -> None:
    folder = make_modules(
        project,
        "wide",
        __init__="from .core import RATE as PUBLIC\n",
        core=OLD,
        sub____init__="from ..core import *\nfrom . import deep\n",
        sub__deep="from .. import core as c\nimport wide.core as whole\n"
        "from ..core import add as plus, RATE\nfrom wide.core import (\n    RATE as other,\n)\n"
        "def late():\n    from ..core import RATE\n    return RATE\n"
        "def show():\n    return c.RATE, whole.RATE, plus(1), RATE, other, late()\n",
    )
    notebook = project.new()
    notebook.insert(
        "import wide.sub.deep as s\nfrom wide import PUBLIC as p, core\n"
        "from wide.core import *\nfrom wide.sub import add as via_sub, deep\n"
        "held = [add]\n"
        "def shown(): return s.show(), p, core.RATE, RATE, add(1), via_sub(1), held[0](1)\n"
        "shown()"
    )
    (folder / "core.py").write_text(NEW)
    _, answer = notebook.insert("(shown(), deep is s)")
    assert "Reloaded: wide.core (changed since it was imported).\n" in answer.text
    assert "(((2, 2, 3, 2, 2, 2), 2, 2, 2, 3, 3, 3), True)" in answer.text
    assert "Also reloaded" not in answer.text


def test_imports_that_share_a_line_are_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(
        "import first; import second\nfrom third import value;import fourth as f\n"
    )
    mentioned = list_mentioned_modules("user", str(path))
    assert mentioned == {"first", "second", "third", "third.value", "fourth"}


def test_import_before_another_statement_is_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "user.py"
    path.write_text(
        "import first; RATE = 1\nimport second#, third\ntry: import fourth\n"
        "except ImportError: from fifth import *; print('no import')\n"
    )
    mentioned = list_mentioned_modules("user", str(path))
    assert mentioned == {"first", "second", "fourth", "fifth"}


def test_cell_with_invalid_syntax_has_no_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = types.SimpleNamespace(transform_cell=str, user_ns={})
    monkeypatch.setattr(module_reload, "shell", shell)
    lost: list[list[str]] = []
    module_reload.rebind_in_notebook("import (", {}, lost)
    assert lost == []


def test_star_import_binds_the_names_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"__all__": ["_rate", "missing"], "_rate": [1], "other": [2]}
    module = types.ModuleType("stars")
    vars(module).update(old, _rate=[3], other=[4])
    monkeypatch.setitem(sys.modules, "stars", module)
    namespace = {"_rate": old["_rate"], "other": old["other"]}
    tree = ast.parse("from stars import *")
    assert module_reload.rebind_names(namespace, tree, "", {"stars": old}, None)
    assert namespace == {"_rate": [3], "other": [2]}


class Lazy:
    """An object whose `__class__` cannot be read, such as some lazy objects."""

    @property
    def __class__(self) -> type:
        raise RuntimeError


def test_lazy_object_uses_no_module(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = types.SimpleNamespace(user_ns={"lazy": Lazy()})
    monkeypatch.setattr(module_reload, "shell", shell)
    assert not module_reload.is_used("rates", {"lazy"})
    assert not imported_modules.is_from_module(Lazy(), types)


def test_project_in_the_root_of_an_environment_is_not_installed() -> None:
    root = os.path.realpath(sys.prefix)
    assert not os.path.join(root, "src", "rates.py").startswith(cell_sources.INSTALLED)


@pytest.mark.parametrize(
    ("source", "depends"),
    [
        ("import pack.sub\nDOUBLE = pack.VALUE * 2\n", True),
        ("import pack.sub as sub\nDOUBLE = sub.VALUE * 2\n", False),
        ("import pack.sub\ndef double(): return pack.VALUE * 2\n", False),
        ("import pack.sub\nDOUBLE = [*map(lambda x: pack.VALUE * x, [2])]\n", True),
    ],
)
def test_import_of_a_submodule_binds_its_package(
    source: str, depends: bool, tmp_path: Path
) -> None:
    path = tmp_path / "double.py"
    path.write_text(source)
    assert list_mentioned_modules("double", str(path)) >= {"pack", "pack.sub"}
    assert depends_at_import("double", str(path), {"pack"}, {}) is depends


@pytest.mark.nightly
def test_module_that_computes_from_a_changed_one_is_reloaded_too(
    project: Project,
) -> None:
    folder = make_modules(
        project,
        "computed",
        __init__="from .rates import RATE, scale, Base\nfrom .other import THING\n",
        rates="RATE = 2\ndef scale(x): return x * 2\nclass Base:\n    SIZE = 2\n",
        other="THING = 1\n",
        double="from .rates import RATE as r\nDOUBLE = r * 2\n",
        table="from computed import scale\ndef make(): return [scale(1)]\nTABLE = make()\n",
        shape="from . import rates\nclass Shape(rates.Base):\n    pass\n",
        chained="from .double import DOUBLE\nCHAINED = DOUBLE + 1\n",
        unaffected="from computed import THING, RATE\nCOUNT = [THING]\n"
        "def f(): return RATE\nif __name__ == '__main__': f()\n",
    )
    notebook = project.new()
    notebook.insert(
        "from computed.double import DOUBLE\nfrom computed import table, shape, chained, unaffected\n"
        "from computed.rates import Base\ncount = unaffected.COUNT\n"
        "def show():\n"
        "    kinds = issubclass(shape.Shape, Base), unaffected.COUNT is count\n"
        "    return DOUBLE, table.TABLE, shape.Shape.SIZE, chained.CHAINED, unaffected.f(), kinds\n"
        "show()"
    )
    text = (folder / "rates.py").read_text()
    (folder / "rates.py").write_text(text.replace("2", "30"))
    _, answer = notebook.insert("show()")
    assert "(60, [30], 30, 61, 30, (True, True))" in answer.text
    also = "computed.double, computed.chained, computed.shape, computed.table"
    assert (
        f"Also reloaded: {also} (use a changed module when they are imported)."
        in answer.text
    )
    (folder / "rates.py").write_text(text.replace("RATE = 2", "RATE = 'two'\n1/0"))
    _, answer = notebook.insert("DOUBLE")
    assert "Warning: computed.rates changed and could not be reloaded" in answer.text
    assert "60" in answer.text
    (folder / "rates.py").write_text(text.replace("RATE = 2", "RATE = None"))
    _, answer = notebook.insert("DOUBLE")
    failed = "Warning: computed.double uses a changed module when it is imported, and could not be reloaded"
    assert failed in answer.text
    assert "notebooks/computed/double.py, line 2: TypeError" in answer.text
    _, answer = notebook.insert("2")
    assert failed not in answer.text
    (folder / "rates.py").write_text(text.replace("RATE = 2", "RATE = 4"))
    _, answer = notebook.insert("DOUBLE")
    assert "8" in answer.text and "Warning" not in answer.text


@pytest.mark.nightly
def test_modules_of_other_layouts(project: Project) -> None:
    """A package in `src/`, one without `__init__.py`, and a module that becomes a package."""
    source = project.folder / "src" / "shop" / "rates.py"
    source.parent.mkdir(parents=True)
    source.write_text(OLD)
    (source.parent / "__init__.py").write_text("from .rates import add\n")
    bare = project.folder / "notebooks" / "bare" / "inner" / "tools.py"
    bare.parent.mkdir(parents=True)
    bare.write_text(OLD)
    lone = project.folder / "notebooks" / "lone.py"
    lone.write_text(OLD)
    notebook = project.new()
    notebook.insert(
        "import sys\nsys.path.insert(0, '../src')\n"
        "import shop\nfrom bare.inner.tools import add as plus\nimport bare.inner.tools as t\n"
        "from lone import RATE\nimport lone"
    )
    notebook.insert("(shop.add(1), plus(1), t.RATE, RATE, lone.add(1))")
    source.write_text(NEW)
    bare.write_text(NEW)
    _, answer = notebook.insert("(shop.add(1), plus(1), t.RATE)")
    assert "Reloaded: bare.inner.tools, shop.rates (changed since" in answer.text
    assert "(3, 3, 2)" in answer.text
    both = "`bare.inner.tools` and `shop.rates`"
    assert f"Stale: cell 2 used {both}, which changed after it ran." in answer.text
    lone.unlink()
    (project.folder / "notebooks" / "lone").mkdir()
    (project.folder / "notebooks" / "lone" / "__init__.py").write_text(NEW)
    _, answer = notebook.insert("(RATE, lone.add(1), lone.__file__[-16:])")
    assert "Reloaded: lone (changed since it was imported)." in answer.text
    assert "(2, 3, 'lone/__init__.py')" in answer.text
    _, answer = notebook.insert("RATE")
    assert "Reloaded" not in answer.text and "Warning" not in answer.text


COMPILED = """#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "quick", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_quick(void) {
    PyObject *made = PyModule_Create(&module);
    PyModule_AddIntConstant(made, "RATE", RATE);
    return made;
}
"""


def compiled_module(folder: Path, rate: int) -> Path:
    """Compile a C module and return its file."""
    headers = Path(sysconfig.get_path("include"))
    if not shutil.which("cc") or not (headers / "Python.h").exists():
        pytest.skip("there is no C compiler, or Python's headers are missing")
    (folder / "quick.c").write_text(COMPILED)
    path = folder / f"quick{rate}.so"
    flags = ["-shared", "-fPIC", f"-DRATE={rate}", f"-I{headers}"]
    command = ["cc", *flags, str(folder / "quick.c"), "-o", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.mark.nightly
def test_compiled_module_is_reported_and_printed_command_loads_it(
    project: Project, tmp_path: Path
) -> None:
    path = project.folder / "notebooks" / "quick.so"
    compiled_module(tmp_path, 1).replace(path)
    notebook = project.new()
    notebook.insert("import quick\nquick.RATE")
    compiled_module(tmp_path, 22).replace(path)
    _, answer = notebook.insert("quick.RATE")
    assert (
        "Warning: quick has changed (notebooks/quick.so) and can't be reloaded, because"
        " it is a compiled module; the kernel still has the old code. To fix this, run: `"
        in answer.text
    )
    assert answer.text.endswith("| 1") and "Reloaded" not in answer.text
    (command,) = re.findall(r"To fix this, run: `stepper (.*)`", answer.text)
    response = project.json(*shlex.split(command))
    assert [result["output"] for result in response["results"]] == ["22", "22"]
    assert "can't be reloaded" not in notebook.insert("quick.RATE")[1].text


@pytest.fixture(
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)]
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A kernel of this Python, and one of Python 3.9 with the oldest IPython."""
    python = sys.executable
    if request.param == "Python 3.9":
        if not old_python():
            pytest.skip("there is no Python 3.9 on this machine")
        python = environment(old_python(), *OLD_PACKAGES)
    lab = Lab(python)
    yield lab
    lab.close()


def test_reloads_in_each_version_of_python(lab: Lab) -> None:
    folder = lab.folder / "versions"
    folder.mkdir()
    (folder / "core.py").write_text(OLD + "class Box:\n    def size(self): return 1\n")
    (folder / "user.py").write_text("from .core import RATE, add\nDOUBLE = RATE * 2\n")
    lab.ok("from versions.user import DOUBLE, add\nfrom versions.core import Box as B")
    lab.ok("box = B()")
    text = NEW + "class Box:\n    def size(self): return 7\n"
    (folder / "core.py").write_text(text)
    result = lab.run("print(DOUBLE, add(1), box.size(), isinstance(box, B))")
    assert result.module_changes == ModuleChanges(
        ("versions.core",), ("versions.user",), classes=True
    )
    assert printed(result) == "4 3 7 True\n"
    assert result.namespace.lasting is not None
    assert result.namespace.lasting.local_imports == {
        "versions.user": ("versions.core",)
    }
    (folder / "core.py").write_text("def add(x:\n")
    (old,) = lab.run("add(1)").module_changes.old
    assert (old.name, old.file, old.why, old.line) == (
        "versions.core",
        "versions/core.py",
        "syntax",
        1,
    )
    (folder / "core.py").unlink()
    (old,) = lab.run("print(add(1))").module_changes.old
    assert old.why == "deleted"
    (folder / "core.py").write_text(text.replace("RATE = 2", "RATE = 5"))
    assert printed(lab.run("print(DOUBLE)")) == "10\n"


@pytest.mark.nightly
def test_on_a_network_file_system_files_are_opened(lab: Lab) -> None:
    """There, `stat` can be seconds old. The kernel is real, the list of mounts is not."""
    mounts = lab.folder / "mounts"
    mounts.write_text(
        "/dev/sda1 / ext4 rw 0 0\nhost:/x /home/a\\040b nfs4 rw 0 0\n"
        f"host:/y {lab.folder.parent} ext4 rw 0 0\nhost:/z {lab.folder} fuse.sshfs rw 0 0\n"
    )
    globals_of = "__import__('sys').modules['_stepper_helper'].tell.__globals__"
    lab.ok(f"_m = {globals_of}['module_reload']")
    requests = ["/home/a b/project", "/home/other", str(lab.folder), "/"]
    text = f"[_m.is_on_network(name, {str(mounts)!r}) for name in {requests!r}]"
    assert lab.value(text) == [True, False, True, False]
    module = lab.folder / "shared.py"
    module.write_text(OLD)
    lab.ok("import shared, sys\n_m.state['network'] = True\nopened = []")
    lab.ok(
        "_ = sys.addaudithook(lambda event, given: event == 'open' and opened.append(str(given[0])))"
    )
    assert lab.value(f"{str(module)!r} in opened")
    module.write_text(NEW)
    result = lab.run("print(shared.add(1))")
    assert result.module_changes.reloaded == ("shared",) and printed(result) == "3\n"
    module.chmod(0)
    module.unlink()
    assert lab.run("1").module_changes.old[0].why == "deleted"


@pytest.mark.nightly
def test_modules_of_an_editable_installation(project: Project) -> None:
    """Setuptools uses the path for a package in `src/`, and a finder for other ones."""
    env = project.folder / "env"
    make_env(env)
    (project.folder / ".stepper" / "config.yaml").write_text("python: env/bin/python\n")
    project.stepper("trust", "--yes")
    for name, where in (("insource", "src"), ("attop", ".")):
        top = project.folder / f"lib-{name}"
        package_folder = top / where / name
        package_folder.mkdir(parents=True)
        (package_folder / "__init__.py").write_text("")
        (package_folder / "rates.py").write_text(OLD)
        (top / "pyproject.toml").write_text(
            f'[build-system]\nrequires = ["setuptools>=64"]\nbuild-backend = "setuptools.build_meta"\n'
            f'[project]\nname = "{name}"\nversion = "1"\n'
            f"[tool.setuptools.packages.find]\nwhere = [{json.dumps(where)}]\n"
        )
        uv = Path(sys.executable).with_name("uv")
        install = [str(uv), "pip", "install", "--no-deps", "-e", str(top)]
        subprocess.run([*install, "--python", str(env / "bin" / "python")], check=True)
    notebook = project.new()
    _, answer = notebook.insert(
        "from insource.rates import RATE, add\nfrom attop import rates\n"
        "import sys\n(RATE, add(1), rates.add(1), sys.prefix[-3:])"
    )
    assert "(1, 2, 2, 'env')" in answer.text
    for path in project.folder.glob("lib-*/**/rates.py"):
        path.write_text(NEW)
    _, answer = notebook.insert("(RATE, add(1), rates.add(1))")
    assert "Reloaded: attop.rates, insource.rates (changed since" in answer.text
    assert "(2, 3, 3)" in answer.text
