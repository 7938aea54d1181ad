"""Suggestions on names, modules, attributes, places and files: fault + facts → one line, or nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepper.diagnosis.around import Around
from stepper.diagnosis.definitions import defining, missing_folder
from stepper.diagnosis.imports import imports, of_module, relative
from stepper.diagnosis.suggest import hint
from stepper.diagnosis.unbound import unbound
from stepper.policy.model import Fault, Frame


def said(ename: str, evalue: str, look: dict[str, Any] | None = None, around: Around | None = None, **more: Any) -> str:
    """The suggestion, in the class's own order of bases as far as the rows need it."""
    bases = {"ModuleNotFoundError": ("ModuleNotFoundError", "ImportError")}
    fault = Fault(ename, evalue, mro=bases.get(ename, (ename,)), **more)
    return hint(fault, look or {}, around or Around())


LIVE = {"forest": "RandomForestRegressor", "X": "ndarray 60 × 3", "n": "int", "os": "the module os", "f": "a function"}
NONE = {"type": "None", "wanted": "group", "expression": "LINE.match(entry)", "names": []}
ARRAY = {"type": "numpy.ndarray", "wanted": "plot", "expression": "ax", "names": ["flat", "shape"]}
MODULE = {"module": "sklearn.preprocessing", "wanted": "Imputer", "names": ["Binarizer", "Normalizer"], "elsewhere": []}
INDEX = {"expression": "hit['people']", "type": "Series", "shape": [0], "asked": "0"}
UNMET = {"column": "pop['country']", "dtype": "str", "wanted": "'norway'", "values": ["'Norway'", "'Sweden'"]}
NEWER = {"path": "rules.py", "line": 5}

SAYS = [
    # name, evalue, look, around, what it says
    ("NameError", "name 'null' is not defined", {}, Around(), "Python writes `None`"),
    ("NameError", "name 'raw' is not defined", {}, Around(gone=["deleted by line 2 of cell 2: `del raw`"]), "was deleted by line 2"),
    ("NameError", "name 'model' is not defined", {}, Around(source="model.predict(X)", names=LIVE), "`forest` \\(RandomForestRegressor\\)$"),
    ("NameError", "name 'model' is not defined", {"fits": [["forest", "Forest"]]}, Around(), "with the attributes used: `forest`"),
    ("NameError", "name 'clean' is not defined", {}, Around(defined=[("src/a.py", 3, "clean")]), "line 3 of src/a.py defines `clean`"),
    ("NameError", "name 'base' is not defined", {"class_body": {"class": "W", "line": 2, "function": True}}, Around(), "`W.base`"),
    ("NameError", "name 'xrange' is not defined", {}, Around(names={"range": ""}), "closest live names: `range`"),
    ("ModuleNotFoundError", "No module named 'utils.plots'", {"parent": {"module": "utils", "wanted": "plots", "names": [], "file": "utils.py"}},
     Around(local=[("src/utils/plots.py", "../src")], on_path=True), "the file utils.py, no package; src/utils/plots.py .* is on sys.path"),
    ("ModuleNotFoundError", "No module named 'a.old'", {"parent": {"module": "a", "wanted": "old", "names": ["b"], "moved": [["K", "a.new"]]}},
     Around(), "`K` is in a.new"),
    ("ModuleNotFoundError", "No module named 'prep'", {}, Around(defined=[("src/pipe/features.py", 1, "encode")]), "features.py defines `encode`$"),
    ("ImportError", "cannot import name 'Imputer'", {"import": {**MODULE, "alike": [["SimpleImputer", "sklearn.impute"]]}}, Around(), "sklearn.impute.SimpleImputer"),
    ("ImportError", "cannot import name 'Imputer'", {"import": {**MODULE, "newer": NEWER}}, Around(), "line 5 of rules.py .* changed after"),
    ("ImportError", "attempted relative import with no known parent package", {}, Around(asked="readers.x", local=[("src/readers.py", "../src")]), "src/readers.py"),
    ("AttributeError", "…", {"attributes": {**NONE, "givens": [{"text": "entry", "type": "str", "value": "'WARN'"}]}}, Around(), "is None; with `entry`: 'WARN'"),
    ("AttributeError", "…", {"attributes": {**ARRAY, "item": "Axes", "holds": {"type": "ndarray", "shape": [3], "dtype": "object"}}},
     Around(), r"of shape \(3,\), object; its items \(Axes\) have `plot`"),
    ("AttributeError", "…", {"attributes": {**ARRAY, "type": "dict", "keys": ["plot"]}}, Around(), r"it is a key: `ax\['plot'\]`"),
    ("AttributeError", "…", {"attributes": {**ARRAY, "type": "p.Pipeline", "holder": [".steps[1][1]", "Ridge", "ridge"]}}, Around(), r"`ax.steps\[1\]\[1\]` \(Ridge, 'ridge'\) has `plot`"),
    ("AttributeError", "…", {"passed": {"wanted": "fig_size", "parameters": {"figsize": "figure"}}}, Around(), r"`figsize` \(of figure\)"),
    ("IndexError", "…", {"index": {**INDEX, "unmet": UNMET}}, Around(), "equals 'norway', closest: 'Norway'"),
    ("KeyError", "'Level g not found'", {"keys": {"expression": "s", "type": "DataFrame", "keys": ["a"], "levels": ["'group'"], "count": 1, "some": False}},
     Around(), "levels 'group'"),
    ("KeyError", "'lat'", {"keys": {"expression": "row", "type": "Series", "index": "RangeIndex", "dtype": "int64", "named": "'lat'", "keys": ["0"], "count": 1, "some": False}},
     Around(), r"Series 'lat' with a RangeIndex of int64"),
    ("FileNotFoundError", "…", {}, Around(asked="~/a.json"), "expanduser"),
    ("FileNotFoundError", "…", {}, Around(asked="/mnt/x/a.csv", lacks=("/mnt/x", "/mnt")), r"'/mnt/x' does not exist \('/mnt' does\)"),
    ("FileNotFoundError", "…", {"program": {"name": "xsv", "close": [], "script": False}}, Around(asked="xsv"), "as a program on PATH"),
    ("FileNotFoundError", "…", {"program": {"name": "ls -l", "close": [], "script": False}}, Around(), "blanks and all"),
]  # fmt: skip


@pytest.mark.parametrize(("ename", "evalue", "look", "around", "told"), SAYS)
def test_says(ename: str, evalue: str, look: dict[str, Any], around: Around, told: str) -> None:
    assert re.search(told, said(ename, evalue, look, around))


SILENT = [
    # a builtin that is only somewhat like it; what the line uses itself; a number for what has attributes
    ("NameError", "name 'train_test_splitter' is not defined", {}, Around(names={"int": "", "slice": ""}), "int|slice"),
    ("NameError", "name 'model' is not defined", {}, Around(source="model.predict(X)", names=LIVE), "`X`|`n`|`f`|`os`"),
    ("NameError", "name 'clean' is not defined", {}, Around(defined=[("src/a.py", 3, "other")]), "a.py"),
    # an exact finding leaves no room for what is merely spelt like it
    ("AttributeError", "…", {"attributes": {**ARRAY, "names": ["plots"], "item": "Axes"}}, Around(), "closest"),
    # it has the attribute: what it holds is the reason
    ("AttributeError", "…", {"attributes": {**ARRAY, "wanted": "str", "names": ["str", "std"]}}, Around(), "closest"),
    ("ImportError", "cannot import name 'Imputer'", {"import": {**MODULE, "elsewhere": ["sklearn.x"], "alike": [["KNNImputer", "y"]]}}, Around(), "KNNImputer"),
    ("ModuleNotFoundError", "No module named 'cv2'", {}, Around(install="uv add opencv-python", modules=["csv"]), "csv"),
    ("FileNotFoundError", "…", {}, Around(asked="../new/a.md", lacks=("../new", "..")), r"\('\.\.' does\)"),
]  # fmt: skip


@pytest.mark.parametrize(("ename", "evalue", "look", "around", "untold"), SILENT)
def test_does_not_say(ename: str, evalue: str, look: dict[str, Any], around: Around, untold: str) -> None:
    assert not re.search(untold, said(ename, evalue, look, around))


def test_a_circle_names_the_files_in_order() -> None:
    frames = tuple(Frame(0, line, "<module>", file=file) for file, line in (("a.py", 2), ("b.py", 3)))
    found = {"import": {**MODULE, "module": "a"}}
    told = said("ImportError", "cannot import name 'X' from partially initialized module 'a'", found, frames=frames)
    assert "a.py line 2 → b.py line 3" in told


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import a.b as c, d", [("a.b", []), ("d", [])]),
        ("from a.b import (\n  c as d,  # why\n  e,\n)", [("a.b", ["c", "e"])]),
        ("  from . import x; y = 1", [(".", ["x"])]),
        ("from .", []),
        ("print('from a import b')", []),
    ],
)
def test_imports(source: str, found: list[tuple[str, list[str]]]) -> None:
    assert imports(source) == found


def test_the_whole_module_behind_its_first_part() -> None:
    assert of_module("import os\nfrom google.cloud import bigquery", "google") == ("google.cloud", ["bigquery"])
    assert of_module("import googlemaps", "google") == ("google", [])
    assert relative("from ..io.readers import a") == ("io.readers", ["a"])


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("raw = 1\ndel raw", 2),
        ("for a in b:\n    try:\n        c()\n    except E as raw:\n        pass", 4),
        ("def f():\n    del raw", None),
        ("del raw.x, other", None),
        ("del (", None),
    ],
)
def test_unbound(source: str, line: int | None) -> None:
    found = unbound(source, "raw")
    assert (found and found[0]) == line


def test_defining_and_missing_folders(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n\n\nasync def load(path):\n    inner = 2\n")
    (tmp_path / "b.py").write_text("LIMIT: int = 3\nload == 4\n")
    files = ["a.py", "b.py", "gone.py", "c.txt"]
    assert defining(str(tmp_path), files, ["load", "LIMIT"]) == [("a.py", 4, "load"), ("b.py", 1, "LIMIT")]
    assert defining(str(tmp_path), files, ["inner", "no name", "*"]) == []
    assert missing_folder("new/deep/x.md", str(tmp_path)) == ("new", "")
    assert missing_folder(f"{tmp_path}/new/x", "/") == (f"{tmp_path}/new", str(tmp_path))
    assert missing_folder("a.py/deep/x", str(tmp_path)) == ("", "")  # a file stands in its place
    assert missing_folder("x.md", str(tmp_path)) == missing_folder("a\0/x", str(tmp_path)) == ("", "")
