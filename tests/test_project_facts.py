"""Facts about the project's files and environments, also in hostile folders."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from stepper.common.project_walk import ENTRIES
from stepper.diagnosis import project_facts
from stepper.diagnosis.distribution_names import (
    CONDA_NAMES,
    DEFINITIONS,
    DISTRIBUTIONS,
    find_distribution,
    find_import_statement,
)
from stepper.diagnosis.project_facts import TICK, ProjectEnvironment
from tests.test_kernel_helper import environment

FileMaker = Callable[..., ProjectEnvironment]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "notebooks").mkdir(parents=True)
    return path


@pytest.fixture
def make_files(root: Path) -> FileMaker:
    """Creates files in the project, and folders for names that end with a slash."""

    def make(*names: str) -> ProjectEnvironment:
        for name in names:
            path = root / name
            (path if name.endswith("/") else path.parent).mkdir(
                parents=True, exist_ok=True
            )
            if not name.endswith("/"):
                path.touch()
        return ProjectEnvironment(str(root))

    return make


@pytest.fixture
def notebooks_folder(root: Path) -> str:
    """The working folder of kernels."""
    return str(root / "notebooks")


# --- the walk -------------------------------------------------------------------------


def test_walk_excludes_ignored_folders(make_files: FileMaker, root: Path) -> None:
    around = make_files(
        "a.csv",
        ".env",
        "src/m.py",
        ".git/config",
        ".stepper/journal.jsonl",
        ".ipynb_checkpoints/a.csv",
        "src/__pycache__/m.pyc",
        "web/node_modules/x/index.js",
        "lib/site-packages/pandas.py",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "anaconda/conda-meta/history",
        "anaconda/bin/x",
    )
    assert sorted(around.get_tree().files) == [".env", "a.csv", "src/m.py"]
    assert ProjectEnvironment(str(root / "absent")).get_tree().files == []


def test_walk_is_cached_for_a_second(
    make_files: FileMaker, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr(project_facts.time, "monotonic", lambda: now)
    around = make_files("a.csv")
    assert around.get_tree().files == ["a.csv"]
    make_files("b.csv")
    assert around.get_tree().files == ["a.csv"]
    # files written by a cell are checked again
    assert [path for path, _ in around.list_written_since(0, [])] != ["a.csv"]
    make_files("c.csv")
    now += 1.1
    assert len(around.get_tree().files) == 3


def test_hostile_tree(
    make_files: FileMaker,
    root: Path,
    notebooks_folder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    around = make_files("data/good.csv", "bad\nname\x1b[31m.csv", "locked/secret.csv")
    (root / "data" / "loop").symlink_to(root)
    (root / "self").symlink_to("self")
    (root / "out").symlink_to("/")
    (root / "dangling.csv").symlink_to("absent.csv")
    os.mkfifo(root / "pipe.csv")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(root)  # a socket's path is short
        listener.bind("s.csv")
    os.mkfifo(root / "pyproject.toml")
    (root / "uv.lock").mkdir()
    (root / "locked").chmod(0)
    try:
        files = around.get_tree().files
        assert {
            "data/good.csv",
            "bad\nname\x1b[31m.csv",
            "pipe.csv",
            "out",
            "self",
        } <= set(files)
        assert not [path for path in files if path.startswith(("out/", "data/loop/"))]
        assert around.find_similar_paths("god.csv", notebooks_folder) == [
            "../data/good.csv"
        ]
        assert (
            around.find_similar_paths("Pipe.csv", notebooks_folder)
            == around.find_similar_paths("Dangling.csv", notebooks_folder)
            == []
        )
        assert around.find_local_modules("m", notebooks_folder) == []
        assert around.list_written_since(0, ["self", "data/loop/x", "a\0b"])
        assert not around.has_changed_since(
            time.time_ns() + 10**12,
            [],
            ["", "self", str(root / "self"), "a\0b", "\ud800"],
        )
        assert around.build_install_command(
            str(root / "self" / "bin" / "python"), "six"
        ).endswith("pip install six")
        assert around.can_import("x", [str(root / "pipe.csv")], notebooks_folder)
    finally:
        (root / "locked").chmod(0o700)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folders(
    make_files: FileMaker, root: Path, notebooks_folder: str
) -> None:
    around = make_files("locked/x.py", "b.csv")
    (root / "locked").chmod(0)
    try:
        assert around.get_tree().files == ["b.csv"]
        # unknown, so perhaps
        assert around.can_import("x", [str(root / "locked")], notebooks_folder)
    finally:
        (root / "locked").chmod(0o700)


def test_undecodable_file_names(root: Path, notebooks_folder: str) -> None:
    name = os.fsdecode(b"caf\xe9.csv")
    try:
        (root / name).touch()
    except OSError:
        pytest.skip("this file system takes text only")
    around = ProjectEnvironment(str(root))
    assert around.get_tree().files == [name]
    assert (
        around.find_similar_paths("cafe.csv", notebooks_folder)
        == around.find_similar_paths("Caf\udce9.csv", notebooks_folder)
        == ["../caf\ufffd.csv"]
    )
    assert around.list_written_since(0, []) == [("caf\ufffd.csv", 0)]
    assert around.list_written_since(0, [name]) == []


@pytest.mark.parametrize(
    "query",
    [
        "",
        "\0",
        "x\0.csv",
        "x" * 5000,
        "a/" * 1500 + "b",
        "\ud800",
        "/",
        ".",
        "..",
        "~",
        "//",
    ],
)
def test_unusual_queries_return_lists(
    make_files: FileMaker, query: str, notebooks_folder: str
) -> None:
    around = make_files("data/x.csv", "m.py")
    assert isinstance(around.find_similar_paths(query, notebooks_folder), list)
    assert isinstance(around.find_similar_paths("x.csv", query), list)
    assert isinstance(around.find_local_modules(query, notebooks_folder), list)
    assert isinstance(around.can_import("nope", [query], notebooks_folder), bool)


@pytest.mark.nightly
def test_large_folder_does_not_hide_others(
    make_files: FileMaker, root: Path, notebooks_folder: str
) -> None:
    around = make_files("zoo/deep/down/animals.csv", "pictures/")
    for number in range(30_000):
        os.close(
            os.open(
                root / "pictures" / f"{number:05}_picture.png", os.O_CREAT | os.O_WRONLY
            )
        )
    assert len(around.get_tree().files) <= ENTRIES
    assert around.find_similar_paths("animals.csv", notebooks_folder) == [
        "../zoo/deep/down/animals.csv"
    ]
    assert len(around.find_similar_paths("1234_pictures.png", notebooks_folder)) == 3
    assert len(around.list_written_since(0, [])) == 20
    # A file that the walk did not reach may have changed.
    assert around.get_tree().truncated
    assert around.has_changed_since(time.time_ns() + 10**12, [], [])


def test_unchecked_files_may_have_changed(
    make_files: FileMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = make_files("a.csv")
    assert not around.has_changed_since(time.time_ns() + 10**12, [], [])
    monkeypatch.setattr(project_facts, "SECONDS", -1)
    assert around.has_changed_since(time.time_ns() + 10**12, [], [])
    assert around.list_written_since(0, []) == []


# --- paths ----------------------------------------------------------------------------


def test_similar_paths_keep_the_requested_form(
    make_files: FileMaker, root: Path, notebooks_folder: str
) -> None:
    around = make_files("data/x.csv", "notebooks/own.csv")
    assert around.find_similar_paths("data/x.csv", notebooks_folder) == [
        "../data/x.csv"
    ]
    assert around.find_similar_paths("./x.csv", str(root)) == ["data/x.csv"]
    assert around.find_similar_paths("/nowhere/x.csv", notebooks_folder) == [
        str(root / "data" / "x.csv")
    ]
    assert around.find_similar_paths("in/own.csv", notebooks_folder) == ["own.csv"]


def test_project_behind_a_symlink(
    make_files: FileMaker, root: Path, tmp_path: Path
) -> None:
    make_files("data/x.csv")
    (tmp_path / "link").symlink_to(root)
    around = ProjectEnvironment(str(tmp_path / "link"))
    assert around.find_similar_paths("x.csv", str(tmp_path / "link" / "notebooks")) == [
        "../data/x.csv"
    ]
    assert around.find_similar_paths(str(tmp_path / "link" / "x.csv"), "/") == [
        str(root / "data" / "x.csv")
    ]
    assert [
        path
        for path, _ in around.list_written_since(
            0, [str(tmp_path / "link" / "data" / "x.csv")]
        )
    ] == []


def test_same_name_ranks_first_and_nearest_before_others(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files(
        "data/x.csv",
        "old/very/far/x.csv",
        "notebooks/sub/x.csv",
        "data/x.parquet",
        "x1.csv",
    )
    assert around.find_similar_paths("x.csv", notebooks_folder) == [
        "sub/x.csv",
        "../data/x.csv",
        "../old/very/far/x.csv",
    ]
    # The requested folder at another path comes before other folders.
    assert around.find_similar_paths("very/far/x.csv", notebooks_folder)[:1] == [
        "../old/very/far/x.csv"
    ]
    assert around.find_similar_paths("data/x.csv", notebooks_folder) == [
        "../data/x.csv",
        "sub/x.csv",
        "../old/very/far/x.csv",
    ]


def test_other_spellings_rank_before_close_names(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files(
        "data/Sales.csv",
        "data/sales.parquet",
        "data/sales.csv.gz",
        "data/sale.csv",
        "data/resale.txt",
    )
    assert around.find_similar_paths("../data/sales.csv", notebooks_folder) == [
        "../data/Sales.csv",
        "../data/sales.csv.gz",
        "../data/sales.parquet",
    ]
    assert around.find_similar_paths("../data/sale", notebooks_folder)[:1] == [
        "../data/sale.csv"
    ]


def test_parent_decides_between_close_names(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files("data/train_1.csv", "data/train_2.txt", "other/train_3.csv")
    assert around.find_similar_paths("../data/train_9.csv", notebooks_folder) == [
        "../data/train_1.csv",
        "../data/train_2.txt",
        "../other/train_3.csv",
    ]


def test_common_extension_is_not_similarity(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files("a.csv", "zebra.csv", "report.txt", "notebooks/eda.ipynb")
    assert (
        around.find_similar_paths("x.csv", notebooks_folder)
        == around.find_similar_paths("../quarterly.csv", notebooks_folder)
        == []
    )


def test_unicode_normalization_forms_match(root: Path, notebooks_folder: str) -> None:
    name = unicodedata.normalize("NFD", "café.csv")
    (root / name).touch()
    similar_path = ProjectEnvironment(str(root)).find_similar_paths(
        "../" + unicodedata.normalize("NFC", "café.csv"), notebooks_folder
    )
    assert similar_path in (["../" + name], [])  # the same file on macOS


def test_similar_folders_and_misspelt_parents(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files("output/", "data/raw/x.csv")
    assert around.find_similar_paths("../ouput", notebooks_folder) == ["../output"]
    assert around.find_similar_paths("../ouput/new.parquet", notebooks_folder) == [
        "../output"
    ]
    assert around.find_similar_paths(
        "../dat/rew/deep/new.parquet", notebooks_folder
    ) == ["../data/raw"]
    # the folder exists and has no similar file
    assert around.find_similar_paths("../output/new.parquet", notebooks_folder) == []
    assert around.find_similar_paths("/srv/nowhere/new.parquet", notebooks_folder) == []


# --- local modules --------------------------------------------------------------------


def test_find_local_modules(
    make_files: FileMaker, root: Path, notebooks_folder: str
) -> None:
    around = make_files(
        "src/helpers.py",
        "src/pkg/__init__.py",
        "src/pkg/inner.py",
        "tools/loose/a.py",
        "docs/helpers.md",
        "top.py",
    )
    assert around.find_local_modules("helpers", notebooks_folder) == [
        ("src/helpers.py", "../src")
    ]
    assert around.find_local_modules("helpers", str(root / "src")) == [
        ("src/helpers.py", ".")
    ]
    assert around.find_local_modules("pkg", notebooks_folder) == [("src/pkg", "../src")]
    assert around.find_local_modules("pkg.inner", str(root)) == [
        ("src/pkg/inner.py", "src")
    ]
    assert around.find_local_modules("loose", notebooks_folder) == [
        ("tools/loose", "../tools")
    ]
    assert around.find_local_modules("top", notebooks_folder) == [("top.py", "..")]
    for name in ("helper", "elpers", "docs", "Helpers", "pkg.helpers", "", "..", "a/b"):
        assert around.find_local_modules(name, notebooks_folder) == []


def test_top_level_module_ranks_first(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files(
        "notebooks/pkg/__init__.py", "notebooks/pkg/util.py", "a/b/c/util.py"
    )
    assert around.find_local_modules("util", notebooks_folder) == [
        ("a/b/c/util.py", "../a/b/c"),
        ("notebooks/pkg/util.py", "pkg"),
    ]


# --- what was written -----------------------------------------------------------------


def test_list_written_files(make_files: FileMaker, root: Path) -> None:
    around = make_files(
        "old.csv",
        "out/new.csv",
        "out/newer.csv",
        "notebooks/n.ipynb",
        "m.pyc",
        ".n.ipynb.0a1b2c3d.tmp",
        "kept.tmp",
    )
    now = time.time_ns()
    (root / "out" / "newer.csv").write_text("12345")
    for number, name in enumerate(
        ["kept.tmp", "out/new.csv", "out/newer.csv", "notebooks/n.ipynb", "m.pyc"]
    ):
        os.utime(root / name, ns=(now, now + number))
    os.utime(root / "old.csv", ns=(now, now - 10**9))
    names = ["notebooks/n.ipynb"]
    assert around.list_written_since(now - 10**8, names) == [
        ("out/newer.csv", 5),
        ("out/new.csv", 0),
        ("kept.tmp", 0),
    ]
    assert around.list_written_since(
        now - 10**8, [str(root / "out" / "newer.csv"), *names]
    )[0] == ("out/new.csv", 0)
    assert ("old.csv", 0) in around.list_written_since(now - 2 * 10**9, names)


def test_future_mtime_is_not_always_recent(make_files: FileMaker, root: Path) -> None:
    around = make_files("a.csv")
    os.utime(root / "a.csv", (time.time() + 10**6,) * 2)
    assert around.list_written_since(time.time_ns() + 10**9, []) == []
    assert not around.has_changed_since(time.time_ns() + 10**9, [], [])


def test_clock_of_files_lags_behind(make_files: FileMaker, root: Path) -> None:
    around = make_files()
    for number in range(20):
        before = time.time_ns()
        (root / f"{number}.csv").touch()
        assert (f"{number}.csv", 0) in around.list_written_since(before - TICK, [])


def test_has_changed_since(make_files: FileMaker, root: Path, tmp_path: Path) -> None:
    packages, notebooks_folder = tmp_path / "packages", root / "notebooks"
    packages.mkdir()
    around = make_files(
        "notebooks/n.ipynb", "data/x.csv", ".venv/pyvenv.cfg", ".venv/lib/"
    )

    def changed(change: Callable[[], object], *folders: Path) -> bool:
        time.sleep(0.03)  # more than a tick
        when = time.time_ns() - 15_000_000
        change()
        return around.has_changed_since(
            when, ["notebooks/n.ipynb"], ["", "/absent", *map(str, folders)]
        )

    assert not changed(lambda: None, packages, notebooks_folder)
    assert changed(lambda: (root / "data" / "x.csv").write_text("new"))
    # This can fix a PermissionError.
    assert changed(lambda: (root / "data" / "x.csv").chmod(0o600))
    (tmp_path / "moved.csv").touch()
    assert changed(lambda: (tmp_path / "moved.csv").rename(root / "data" / "moved.csv"))
    assert not changed(
        lambda: (root / "notebooks" / "n.ipynb").write_text("{}"), notebooks_folder
    )
    # A notebook is replaced by a renamed file: this change of the folder is ignored.
    assert not changed(
        lambda: (root / "notebooks" / "n.ipynb").replace(
            root / "notebooks" / "n.ipynb"
        ),
        notebooks_folder,
    )
    assert changed((packages / "six.py").touch, packages)
    assert not changed((packages / "seven.py").touch)
    assert changed((root / ".venv" / "lib" / "six.py").touch, root / ".venv" / "lib")


# --- modules of the kernel ------------------------------------------------------------


def test_every_importable_module_is_findable(
    make_files: FileMaker, notebooks_folder: str
) -> None:
    around = make_files()
    code = "import json, pkgutil, sys; print(json.dumps([sys.path, [m.name for m in pkgutil.iter_modules()]]))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=notebooks_folder,
    )
    path, names = json.loads(result.stdout)
    names += sys.builtin_module_names
    assert len(names) > 300
    # CPython's own test
    assert [
        name for name in names if not around.can_import(name, path, notebooks_folder)
    ] in (
        [],
        ["xxsubtype"],
    )
    assert around.can_import("os.path", path, notebooks_folder) and around.can_import(
        "time", [], notebooks_folder
    )
    for name in ("no_such_module_at_all", "o", "Json"):
        assert not around.can_import(name, path, notebooks_folder)


def test_can_import(make_files: FileMaker, root: Path, notebooks_folder: str) -> None:
    around = make_files(
        "lib/flat.py",
        "lib/pkg/",
        "lib/fast.cpython-311-x86_64-linux-gnu.so",
        "notebooks/beside.py",
    )
    with zipfile.ZipFile(root / "all.zip", "w") as archive:
        archive.writestr("zipped.py", "")
    lib = [str(root / "lib")]
    for name in ("flat", "flat.sub", "pkg", "fast"):
        assert around.can_import(name, lib, notebooks_folder)
        assert not around.can_import(name, [""], notebooks_folder)
    assert around.can_import("beside", [""], notebooks_folder) and around.can_import(
        "beside", ["../notebooks"], notebooks_folder
    )
    assert not around.can_import(
        "fla", lib, notebooks_folder
    ) and not around.can_import("beside", lib, notebooks_folder)
    for archive_entry in ("all.zip", "all.zip/inner"):
        assert around.can_import(
            "zipped", [str(root / archive_entry)], notebooks_folder
        )
    assert not around.can_import("flat", [str(root / "absent")], notebooks_folder)


def test_new_module_is_found_immediately(
    make_files: FileMaker, root: Path, notebooks_folder: str
) -> None:
    around, lib = make_files("lib/a.py"), [str(root / "lib")]
    for name in ("late", "later", "latest"):  # within one tick of the clock
        assert not around.can_import(name, lib, notebooks_folder)
        (root / "lib" / f"{name}.py").touch()
        assert around.can_import(name, lib, notebooks_folder)


# --- how to install -------------------------------------------------------------------


@pytest.fixture
def shop(root: Path, tmp_path: Path) -> SimpleNamespace:
    """A project with pip in .venv; each test chooses the installers on the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def venv(prefix: Path, *, pip: bool = True, text: str = "home = /usr/bin\n") -> str:
        (prefix / "bin").mkdir(parents=True)
        (prefix / "pyvenv.cfg").write_text(text)
        (
            prefix / "lib" / "python3.12" / "site-packages" / ("pip" if pip else "six")
        ).mkdir(parents=True)
        return str(prefix / "bin" / "python")

    def offers(*commands: str) -> None:
        for command in commands:
            (folder / command).write_text("#!/bin/sh\n")
            (folder / command).chmod(0o755)

    around = ProjectEnvironment(str(root), str(folder))
    return SimpleNamespace(
        venv=venv, offers=offers, command=around.build_install_command
    )


def test_pip_is_the_default_installer(
    shop: SimpleNamespace, root: Path, tmp_path: Path
) -> None:
    python = shop.venv(root / ".venv")
    assert (
        shop.command(python, "scikit-learn")
        == ".venv/bin/python -m pip install scikit-learn"
    )
    assert (
        shop.command(".venv/bin/python", "six") == ".venv/bin/python -m pip install six"
    )
    shop.offers("uv", "poetry", "pdm", "conda")
    assert shop.command(python, "six") == ".venv/bin/python -m pip install six"
    assert shop.command("/opt/py thon/bin/python", "six").startswith(
        ("'/opt/py thon/bin/python' -m", "uv pip install")
    )
    outside_python = shop.venv(tmp_path / "my env")
    assert (
        shop.command(outside_python, "six") == f"'{outside_python}' -m pip install six"
    )


def test_conda_install_command(
    shop: SimpleNamespace, root: Path, tmp_path: Path
) -> None:
    shop.offers("uv", "conda")
    (root / "uv.lock").touch()
    (tmp_path / "conda" / "conda-meta").mkdir(parents=True)
    assert (
        shop.command(f"{tmp_path}/conda/bin/python", "PyYAML")
        == f"conda install --prefix {tmp_path}/conda pyyaml"
    )
    assert shop.command(f"{tmp_path}/conda/bin/python", "torch").endswith(" pytorch")
    assert not shop.command(f"{tmp_path}/conda/bin/python", "-r", "a.txt").startswith(
        "conda"
    )
    (root / "env" / "conda-meta").mkdir(parents=True)
    assert (
        shop.command(f"{root}/env/bin/python", "six")
        == "conda install --prefix env six"
    )


@pytest.mark.parametrize(
    ("files", "adds"),
    [
        ({"uv.lock": ""}, True),
        ({"pyproject.toml": '[project]\nname = "x"\n'}, False),
        ({}, False),
    ],
)
def test_uv_add_command(
    shop: SimpleNamespace, root: Path, tmp_path: Path, files: dict[str, str], adds: bool
) -> None:
    for name, text in files.items():
        (root / name).write_text(text)
    python, other = shop.venv(root / ".venv"), shop.venv(tmp_path / "other")
    assert shop.command(python, "six").endswith("-m pip install six")  # no uv here
    shop.offers("uv")
    assert shop.command(python, "six") == (
        "uv add six" if adds else ".venv/bin/python -m pip install six"
    )
    # uv would install into .venv
    assert shop.command(other, "six") == f"{other} -m pip install six"


def test_uv_pip_command_in_uv_environment(shop: SimpleNamespace, root: Path) -> None:
    uv = shutil.which(
        "uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    if not uv:
        pytest.skip("no uv here")
    for name in (".venv", "an env"):
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, str(root / name)],
            check=True,
            timeout=60,
        )
    shop.offers("uv")
    assert (
        shop.command(str(root / ".venv" / "bin" / "python"), "six")
        == "uv pip install --python .venv/bin/python six"
    )
    assert (
        shop.command(f"{root}/an env/bin/python", "six")
        == "uv pip install --python 'an env/bin/python' six"
    )


def test_install_command_without_pip(
    shop: SimpleNamespace, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = shop.venv(root / ".venv", pip=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "-m pip" not in shop.command(bare, "six").partition("ensurepip")[0]
    (tmp_path / "base" / "lib" / "python3.12" / "ensurepip").mkdir(parents=True)
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = {tmp_path}/base/bin\n")
    python = ".venv/bin/python"
    assert (
        shop.command(bare, "six")
        == f"{python} -m ensurepip && {python} -m pip install six"
    )
    (tmp_path / "base" / "lib" / "python3.12" / "ensurepip").rmdir()
    assert shop.command(bare, "six") == ""  # no known suggestion would work
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    user_uv = tmp_path / ".local" / "bin" / "uv"
    user_uv.write_text("#!/bin/sh\n")
    user_uv.chmod(0o755)
    assert shop.command(bare, "six") == f"{user_uv} pip install --python {python} six"
    (root / ".venv" / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    user_uv.unlink()
    assert shop.command(bare, "six") == f"{python} -m pip install six"
    shop.offers("uv")
    assert shop.command(bare, "six") == "uv pip install --python .venv/bin/python six"


@pytest.mark.parametrize("manager", ["poetry", "pdm"])
def test_poetry_and_pdm_commands(
    shop: SimpleNamespace, root: Path, tmp_path: Path, manager: str
) -> None:
    python, other = shop.venv(root / ".venv"), shop.venv(tmp_path / "other")
    shop.offers("uv", manager)
    assert shop.command(python, "six").endswith("-m pip install six")
    (root / f"{manager}.lock").touch()
    assert shop.command(python, "six") == f"{manager} add six"
    assert shop.command(python, "-r", "a.txt").endswith("-m pip install -r a.txt")
    # uv and poetry would install into the project's environment, not this one.
    assert shop.command(other, "six") == f"{other} -m pip install six"


# --- the tables -----------------------------------------------------------------------

DEFINE_NAMES = """
import importlib.metadata, importlib.util, json, sys, warnings
warnings.simplefilter("ignore")
found = {}
for name, statement in json.load(sys.stdin).items():
    space = {}
    if importlib.util.find_spec(statement.split()[1].split(".")[0]) is None:
        found[name] = "absent"
        continue
    try:
        exec(statement, space)
        found[name] = "made" if name in space else "not made"
    except Exception as error:
        found[name] = repr(error)
print(json.dumps([found, importlib.metadata.packages_distributions()]))
"""


@pytest.mark.nightly
# At the first time, pip downloads for a minute or two, uv for seconds.
@pytest.mark.timeout(600)
def test_names_and_distributions_in_a_real_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tables' statements define their names; modules are in their distributions."""
    monkeypatch.setenv(
        "PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    )
    # with pandas, scipy and matplotlib as dependencies
    python = environment(sys.executable, "scikit-learn>=1.4,<2", "seaborn>=0.13,<1")
    result = subprocess.run(
        [python, "-c", DEFINE_NAMES],
        input=json.dumps(DEFINITIONS),
        capture_output=True,
        text=True,
        check=True,
    )
    results, packages = json.loads(result.stdout.splitlines()[-1])
    count = {how: list(results.values()).count(how) for how in set(results.values())}
    assert set(count) == {"made", "absent"}, {
        name: how for name, how in results.items() if how not in ("made", "absent")
    }
    assert count["made"] >= 200 and count["absent"] <= 120, count
    distributions = {
        module: find_distribution(module)
        for module in packages
        if find_distribution(module)
    }
    # Python 3.10 finds only distributions with a top_level.txt.
    assert len(distributions) >= 5
    assert [
        module
        for module, name in distributions.items()
        if normalize_name(name) not in map(normalize_name, packages[module])
    ] == []


def normalize_name(name: str | None) -> str:
    return re.sub(r"[-_.]+", "-", name or "").lower()


def test_find_distribution() -> None:
    for name, expected in {
        "sklearn": "scikit-learn",
        "sklearn.cluster": "scikit-learn",
        "cv2": "opencv-python",
        "psycopg2": "psycopg2-binary",
        "sentence_transformers": "sentence-transformers",
        "google.cloud.storage": "google-cloud-storage",
        "google.cloud.bigquery_storage.x": "google-cloud-bigquery-storage",
        "google.cloud.bigquery": "google-cloud-bigquery",
        "azure.storage.blob": "azure-storage-blob",
        "pandas": "pandas",
        "xgboost.sklearn": "xgboost",
    }.items():
        assert find_distribution(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "google",
        "google.cloud",
        "google.cloud.nonsense",
        "azure",
        "azure.sklearn",
        "panda",
        "Pandas",
        "json",
        "x; rm -rf ~",
        "--index-url",
        "scikit-learn",
        "my.pandas",
    ],
)
def test_unknown_module_has_no_distribution(name: str) -> None:
    assert find_distribution(name) is None


def test_tables_are_well_formed() -> None:
    assert len(DISTRIBUTIONS) >= 270 and len(DEFINITIONS) >= 100
    names = {*DISTRIBUTIONS.values()}
    assert [
        name
        for name in {*names, *CONDA_NAMES.values()}
        if not re.fullmatch(r"[A-Za-z0-9]+([-_.][A-Za-z0-9]+)*", name)
    ] == []
    assert set(CONDA_NAMES) <= names
    assert [
        module
        for module in DISTRIBUTIONS
        if module.split(".")[0] in sys.stdlib_module_names
    ] == []
    foreign = {statement.split()[1] for statement in DEFINITIONS.values()}
    assert [
        m
        for m in foreign
        if m.split(".")[0] not in sys.stdlib_module_names and not find_distribution(m)
    ] == []


def test_find_import_statement() -> None:
    for name, expected in {
        "np": "import numpy as np",
        "plt": "import matplotlib.pyplot as plt",
        "nn": "from torch import nn",
        "Path": "from pathlib import Path",
        "datetime": "from datetime import datetime",
        "train_test_split": "from sklearn.model_selection import train_test_split",
        "pandas": "import pandas",
        "json": "import json",
        "tqdm": "from tqdm import tqdm",
    }.items():
        assert find_import_statement(name) == expected
    for name in ("", "st", "sp", "df", "F", "_thread", "queue", "date", "no_such_name"):
        assert find_import_statement(name) is None
