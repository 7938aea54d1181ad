"""The diagnosis of an error from the kernel's findings, other cells and project files."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stepper.common import dataclass_decode
from stepper.diagnosis import diagnoser, error_fact_types
from stepper.diagnosis.diagnoser import Diagnoser, format_findings
from stepper.diagnosis.error_fact_types import ErrorFacts, Finding, LostColumn
from stepper.diagnosis.in_kernel.close_matches import find_close_names, join_items
from stepper.diagnosis.ipython_syntax import get_transformer
from stepper.diagnosis.name_definitions import NotebookNames, list_python_changes
from stepper.diagnosis.not_found_suggestions import (
    MODULE_NAME,
    find_missing_folder,
    parse_import,
)
from stepper.diagnosis.project_facts import ProjectEnvironment
from stepper.policy import journal_events
from stepper.policy.changed_cells import hash_source
from stepper.policy.execution_result import Execution
from stepper.policy.model import Cell, Fault, Frame, Outcome, Verdict
from stepper.policy.namespace_model import (
    UNKNOWN_NAMESPACE,
    KernelEnvironment,
    Namespace,
    Variable,
)
from stepper.policy.notebook_state import State


@dataclasses.dataclass
class Project:
    """A project with fixed answers."""

    paths: Sequence[str] = ()
    modules: Sequence[tuple[str, str]] = ()
    defines: Sequence[tuple[str, int, str]] = ()

    def format_folder(self, folder: str) -> str:
        return "notebooks/"

    def find_similar_paths(self, path: str, cwd: str) -> list[str]:
        return list(self.paths)

    def find_local_modules(self, name: str, cwd: str) -> list[tuple[str, str]]:
        return list(self.modules)

    def find_definitions(self, names: Sequence[str]) -> list[tuple[str, int, str]]:
        return [row for row in self.defines if row[2] in names]

    def build_install_command(self, python: str, distribution: str) -> str:
        return f"uv add {distribution}"

    def can_import(self, name: str, path: Sequence[str], cwd: str) -> bool:
        return True

    def list_written_since(self, when_ns: int, leave_out: Any) -> list[tuple[str, int]]:
        return [("data/out.csv", 1200)]

    def get_relative_path(self, path: str) -> str:
        return path.removeprefix("/p/")

    def has_changed_since(self, when_ns: int, leave_out: Any, folders: Any) -> bool:
        raise OSError("gone")


BASES = {
    "ModuleNotFoundError": ("ModuleNotFoundError", "ImportError"),
    "IsADirectoryError": ("IsADirectoryError", "OSError"),
}
LASTING = KernelEnvironment("1", ("pandas",), ("../src",), False, (), (), (3, 11))


def make_diagnoser(project: Project) -> Diagnoser:
    return Diagnoser("n.ipynb", project, None, str)  # type: ignore[arg-type]  # no picture is saved


def suggest(
    ename: str,
    evalue: str,
    *findings: Any,
    project: Project | None = None,
    source: str = "",
    live: Any = None,
    cells: Sequence[Cell] = (),
    succeeded: Sequence[str] = (),
    helper_data: Any = None,
    **options: Any,
) -> str:
    """Return the suggestion for an error; `BASES` has the base classes."""
    fault = Fault(ename, evalue, mro=BASES.get(ename, (ename,)), **options)
    messages = [
        finding if isinstance(finding, dict) else {"text": finding}
        for finding in findings
    ]
    state = State("n.ipynb")
    sources = {cell.id: hash_source(cell.source) for cell in cells}
    state.succeeded_sources = {cell_id: sources[cell_id] for cell_id in succeeded}
    state.cells_by_execution_count = {4: "a"}
    variables = {name: Variable(kind) for name, kind in (live or {}).items()}
    namespace = Namespace(
        variables=variables, cwd="/project/notebooks", lasting=LASTING
    )
    cell = Cell("own", 9, 9, "code", source)
    helper_data = {"findings": messages, **(helper_data or {})}
    return (
        make_diagnoser(project or Project())
        .add_suggestion(
            fault,
            {"look": helper_data},
            cell,
            [*cells, cell],
            state,
            namespace,
            "python",
        )
        .suggestion
    )


ONE_FRAME, TWO_FRAMES = (
    Cell("a", 0, 1, "code", "raw = read()\nclean = 1"),
    Cell("b", 1, 2, "code", "del raw"),
)
TWICE = Cell("b", 1, 2, "code", "del raw\nraw = 2\ndel raw")
LOCAL = Cell(
    "c",
    2,
    3,
    "code",
    "rows = []\ndef fitted(xs):\n    fit = sum(xs)\n    return fit / 2",
)


@pytest.mark.parametrize(
    ("evalue", "values", "message"),
    [
        (
            "name 'raw' is not defined",
            {"cells": [ONE_FRAME, TWO_FRAMES], "succeeded": ["a", "b"]},
            r"`raw` was deleted by line 1 of cell 2",
        ),
        (
            "name 'raw' is not defined",
            {"cells": [ONE_FRAME, TWICE], "succeeded": ["a", "b"]},
            r"`raw` was deleted by line 3 of cell 2",
        ),
        (
            "name 'raw' is not defined",
            {"cells": [ONE_FRAME]},
            r"defined by line 1 of cell 1 .*`raw = read\(\)`\), which has not run",
        ),
        (
            "name 'tidy' is not defined",
            {"project": Project(defines=[("src/a.py", 3, "tidy")])},
            "line 3 of src/a.py defines `tidy`",
        ),
        (
            "name 'presure' is not defined",
            {"live": {"pressure": "float"}},
            r"closest names in the kernel: `pressure` \(float\)",
        ),
        (
            "name 'base' is not defined",
            {"helper_data": {"locals": ["basis"]}},
            "closest names in the kernel: `basis`",
        ),
        (
            "name 'fit' is not defined",
            {"cells": [LOCAL], "succeeded": ["c"]},
            r"^`fit` is local to `fitted` \(line 2 of cell 3",
        ),
        (
            "name 'polars' is not defined",
            {"cells": [Cell("a", 0, 1, "code", "# pl\nimport polars as pl")]},
            "line 2 of cell 1 .*imports `polars` as `pl`",
        ),
        (
            "name 'true' is not defined",
            {},
            "`true` is JSON or JavaScript; in Python, write `True`",
        ),
        (
            "name 'np' is not defined",
            {},
            "`np` is usually defined by `import numpy as np`",
        ),
        (
            "name 'zz' is not defined",
            {"live": {str(n): "int" for n in range(9)}},
            "the kernel has no similar name",
        ),
    ],
)
def test_undefined_name(evalue: str, values: dict[str, Any], message: str) -> None:
    assert re.search(message, suggest("NameError", evalue, **values))


def test_scope_explanation_replaces_similar_names() -> None:
    text = suggest(
        "NameError",
        "name 'base' is not defined",
        "line 2 binds `base` in the class body",
        live={"bases": "int"},
    )
    assert text == "line 2 binds `base` in the class body"


@pytest.mark.parametrize(
    ("source", "values", "untold"),
    [
        # a builtin that is only slightly similar; names that the line uses
        ("train_test_splitter", {"names": ["int", "slice"]}, "int|slice"),
        ("model.predict(X)", {"live": {"X": "T"}}, "`X`"),
        ("clean", {"project": Project(defines=[("src/a.py", 3, "other")])}, "a.py"),
    ],
)
def test_unrelated_names_are_not_suggested(
    source: str, values: dict[str, Any], untold: str
) -> None:
    values.pop("names", None)
    name = re.split(r"\W", source)[0]
    assert not re.search(
        untold,
        suggest("NameError", f"name {name!r} is not defined", source=source, **values),
    )


LOCAL = Project(modules=[("src/utils/plots.py", "../src")])


@pytest.mark.parametrize(
    ("ename", "evalue", "findings", "values", "message"),
    [
        (
            "ModuleNotFoundError",
            "No module named 'utils.plots'",
            ["`utils` is the file utils.py, not a package"],
            {"project": LOCAL},
            r"not a package; src/utils/plots.py .* is on sys.path",
        ),
        (
            "ModuleNotFoundError",
            "No module named 'a.old'",
            ["`a` has no module `old`; `K` is in a.new"],
            {},
            "`K` is in a.new",
        ),
        (
            "ModuleNotFoundError",
            "No module named 'prep'",
            [],
            {
                "project": Project(defines=[("src/features.py", 1, "encode")]),
                "source": "from prep import encode",
            },
            "features.py defines `encode`$",
        ),
        (
            "ModuleNotFoundError",
            "No module named 'cv2'",
            [],
            {},
            "needs the distribution opencv-python; to install it, run: uv add opencv-python$",
        ),
        (
            "ModuleNotFoundError",
            "No module named 'pandsa'",
            [],
            {},
            "closest modules that can be imported: pandas$",
        ),
        (
            "ModuleNotFoundError",
            "No module named 'qqq'",
            [],
            {},
            "knows no distribution",
        ),
        (
            "ImportError",
            "attempted relative import with no known parent package",
            [],
            {"project": LOCAL, "source": "from .readers import a"},
            "not part of a package: .*src/utils/plots.py",
        ),
        (
            "ImportError",
            "cannot import name 'X'",
            ["sklearn 1.5; `X` is in sklearn.metrics"],
            {},
            "is in sklearn.metrics",
        ),
    ],
)
def test_modules(
    ename: str, evalue: str, findings: list[str], values: dict[str, Any], message: str
) -> None:
    assert re.search(message, suggest(ename, evalue, *findings, **values))


def test_circular_import_names_files_in_order() -> None:
    frames = tuple(
        Frame(0, line, "<module>", file=file)
        for file, line in (("a.py", 2), ("b.py", 3))
    )
    text = suggest(
        "ImportError",
        "cannot import name 'X' from partially initialized module 'a'",
        "a",
        frames=frames,
    )
    assert "a.py line 2 → b.py line 3" in text


@pytest.mark.parametrize(
    ("ename", "path", "values", "message"),
    [
        ("FileNotFoundError", "~/a.json", {}, "expanduser"),
        (
            "FileNotFoundError",
            "/no-such/x/a.csv",
            {},
            r"the folder '/no-such' does not exist; the",
        ),
        (
            "FileNotFoundError",
            "/usr/no-such/a.csv",
            {},
            r"'/usr/no-such' does not exist \('/usr' exists\); the kernel's working directory is notebooks/$",
        ),
        (
            "FileNotFoundError",
            "a.csv",
            {"project": Project(paths=["../data/a.csv"])},
            "closest existing paths: '../data/a.csv'; the kernel's working directory is notebooks/",
        ),
        (
            "FileNotFoundError",
            "a.csv",
            {},
            "stepper found no similar path in the project",
        ),
        (
            "IsADirectoryError",
            str(Path(__file__).parent / "realclient"),
            {},
            "realclient' is a folder that contains .*[.]py",
        ),
    ],
)
def test_files(ename: str, path: str, values: dict[str, Any], message: str) -> None:
    assert re.search(
        message, suggest(ename, "…", attributes={"filename": path}, **values)
    )


def test_folder_that_cannot_be_read_is_not_called_empty(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    for folder, message in ((str(tmp_path), "an empty folder"), (missing, "a folder")):
        text = suggest("IsADirectoryError", "…", attributes={"filename": folder})
        assert text.startswith(f"{folder!r} is {message}")
        assert ("empty" in text) == (folder != missing)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("a_1.py", "a_1"),
        ("b.cpython-311-x86_64-linux-gnu.so", "b"),
        ("README.md", None),
        ("c-1.0.dist-info", None),
    ],
)
def test_files_that_are_modules(name: str, module: str | None) -> None:
    match = MODULE_NAME.fullmatch(name)
    assert (match and match[1]) == module


def test_missing_program_is_searched_on_path() -> None:
    text = suggest(
        "FileNotFoundError",
        "…",
        "'xsv' was sought as a program on PATH and is not there",
        helper_data={"program": True},
        project=Project(paths=["xsv.py"]),
        attributes={"filename": "xsv"},
    )
    assert text == "'xsv' was sought as a program on PATH and is not there"


BOUND = {"cell": 4, "file": "", "line": 2, "text": "y = df['y']"}


def test_finding_names_the_cell_that_bound_its_subject() -> None:
    assert suggest(
        "TypeError", "no", {"text": "`y` is None", "bound": BOUND}, cells=[ONE_FRAME]
    ) == ("`y` is None; last assigned by line 2 of cell 1 (id a): `y = df['y']`")
    arguments = {**BOUND, "cell": 0, "file": "src/a.py", "argument": True}
    assert suggest("TypeError", "no", {"text": "`y`", "bound": arguments}).endswith(
        "passed by line 2 of src/a.py: `y = df['y']`"
    )


def test_findings_are_ordered_and_fit_one_line() -> None:
    text = suggest("ValueError", "no", "a" * 200, "b" * 200, "c\nstepper: forged")
    assert text == "a" * 200 + "; c stepper: forged"
    assert len(suggest("ValueError", "no", "a" * 2000)) <= diagnoser.MAX_SUGGESTION


def test_no_suggestion_without_findings() -> None:
    assert suggest("OddError", "no") == ""


def test_running_event_loop_suggests_await() -> None:
    for text in (
        "asyncio.run() cannot be called from a running event loop",
        "This event loop is already running",
    ):
        assert "use `await`" in suggest("RuntimeError", text)
    assert suggest("RuntimeError", "no running event loop") == ""


def test_timeout_names_the_running_line() -> None:
    frame = Frame(4, 6, "f", ((6, "    wait()"),))
    text = suggest("Timeout", "", "`n`: 60", frames=(frame,), cells=[ONE_FRAME])
    assert text == "line 6 of cell 1 (id a) was running: `wait()`; `n`: 60"


def test_timeout_names_the_running_line_of_a_cell_without_a_count() -> None:
    frame = Frame(0, 2, "<module>")
    text = suggest("Timeout", "", source="n = 60\nwait(n)", frames=(frame,))
    assert text == "line 2 of this cell was running: `wait(n)`"


def test_diagnosis_failure_does_not_prevent_the_report() -> None:
    diagnoser = make_diagnoser(Project())
    assert diagnoser.has_changed_since({"started_at": "x"}, UNKNOWN_NAMESPACE) is True
    assert (
        diagnoser.find_warnings(Execution(None, diagnosis_data={"warnings": 5})) == []
    )  # type: ignore[arg-type]
    data = {
        "rebound": [["df", "3 × 2", "3 × 1"]],
        "in_place": [["rows", 2]],
        "bound": ["x"],
    }
    effects = diagnoser.describe_side_effects({"changed": data}, 0)
    assert effects.names == [
        "before failing, this cell rebound `df`: 3 × 2 → 3 × 1; changed in place `rows` (line 2); assigned `x`"
    ]
    assert effects.other_files == [
        "Changed while the cell ran (by an unknown process): data/out.csv (1,200 bytes)"
    ]
    assert effects.commands == effects.cell_files == []


# --- project files --------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        5,
        "x",
        [],
        {"findings": 5},
        {"findings": [{"text": 5}]},
        {"locals": [5]},
        {"path": 5},
        {"findings": [{}]},
    ],
)
def test_invalid_facts_are_rejected_and_the_error_is_kept(message: Any) -> None:
    with pytest.raises((KeyError, TypeError)):
        dataclass_decode.decode(error_fact_types.ErrorFacts, message)
    fault = Fault("KeyError", "'x'")
    assert (
        make_diagnoser(Project()).add_suggestion(
            fault,
            {"look": message},
            ONE_FRAME,
            [ONE_FRAME],
            State(),
            UNKNOWN_NAMESPACE,
            "python",
        )
        == fault
    )


def test_decoder_keeps_valid_items_and_skips_unknown_keys() -> None:
    data = {
        "findings": [{"text": "a"}, {"text": "b", "bound": BOUND, "new": 1}],
        "program": True,
    }
    read = dataclass_decode.decode(error_fact_types.ErrorFacts, data)
    assert read.findings == (
        error_fact_types.Finding("a"),
        error_fact_types.Finding(
            "b", error_fact_types.AssignmentLine(4, "", 2, "y = df['y']")
        ),
    )
    assert read.program and dataclass_decode.decode_valid_items(
        error_fact_types.Finding, [5, {"text": "a"}, {}]
    ) == [error_fact_types.Finding("a")]
    changed = dataclass_decode.decode(
        error_fact_types.NamespaceChanges,
        {"rebound": [["a", "b", "c"]], "in_place": [["x", 3]], "bound": ["y"]},
    )
    assert changed == error_fact_types.NamespaceChanges(
        (("a", "b", "c"),), ("y",), (("x", 3),)
    )


# --- sources and folders --------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "module", "results"),
    [
        ("import os, a.b as c", "a", ("a.b", [])),
        ("from a.b import (\n  c as d,  # why\n  e,\n)", "a", ("a.b", ["c", "e"])),
        ("  from . import x; y = 1", r"\.+", (".", ["x"])),
        ("from ..io.readers import a", r"\.+", ("..io.readers", ["a"])),
        ("from a import b, \\\n  c", "a", ("a", ["b", "c"])),
        ("from .", r"\.+", ("", [])),
        (
            "import os\nfrom google.cloud import bigquery",
            "google",
            ("google.cloud", ["bigquery"]),
        ),
        ("import googlemaps", r"google\b", ("", [])),
    ],
)
def test_parse_imports(
    source: str, module: str, results: tuple[str, list[str]]
) -> None:
    assert parse_import(source, rf"{module}[\w.]*") == results


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raw = 1\ndel raw", [1, 2]),
        ("for a in b:\n    try:\n        c()\n    except E as raw:\n        pass", [4]),
        ("def f():\n    raw = 2\n    del raw", []),
        ("import raw.x\nimport y as raw\nclass raw: pass", [1, 2, 3]),
        ("raw, x = 3\nprint(raw)", [1]),
        ("del raw.x, other", []),
        ("del (", []),
    ],
)
def test_lines_that_bind_and_unbind_a_name(source: str, lines: list[int]) -> None:
    assert [line for line, _ in list_python_changes(source, "raw")] == lines


def test_find_definitions_and_missing_folders(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n\n\nasync def load(path):\n    inner = 2\n")
    (tmp_path / "b.py").write_text("LIMIT: int = 3\nload == 4\n")
    around = ProjectEnvironment(str(tmp_path))
    assert around.find_definitions(["load", "LIMIT"]) == [
        ("a.py", 4, "load"),
        ("b.py", 1, "LIMIT"),
    ]
    assert around.find_definitions(["inner", "no name", "*"]) == []
    assert find_missing_folder("new/deep/x.md", str(tmp_path)) == Path("new")
    assert find_missing_folder(f"{tmp_path}/new/x", "/") == tmp_path / "new"
    assert find_missing_folder("x.md", str(tmp_path)) is None
    assert find_missing_folder("x/" * 9000, str(tmp_path)) is None


# --- similar names --------------------------------------------------------------------


def test_find_close_names() -> None:
    assert (
        find_close_names("temp_maximum", ["date", "temp_max", "temp_min"])[0]
        == "temp_max"
    )
    assert find_close_names("customerid", ["id", "Customer_ID"]) == ["Customer_ID"]
    assert find_close_names("valid_trips", ["trips", "trips_valid"])[0] == "trips_valid"
    assert find_close_names("x", ["y", "x"]) == []
    assert join_items(["aaaa", "bbbb", "cccc"], 10) == "aaaa, bbbb and 1 more"


# --- where a name is defined, by the state of its cell --------------------------------


def suggest_for_name(
    source: str,
    executed_source: str = "",
    ended: str = "",
    failed_at: int = 0,
    name: str = "raw",
) -> str:
    """Return the suggestion for a name of a cell.

    The cell's source is now `source`; `executed_source` ran, with outcome `ended`.
    """
    cell, failing = (
        Cell("a", 0, 1, "code", source),
        Cell("own", 1, 2, "code", f"print({name})"),
    )
    state = State("n.ipynb")
    if executed_source:
        state.cells_by_execution_count, state.last_sources = (
            {4: "a"},
            {"a": hash_source(executed_source)},
        )
        if ended == "ok":
            state.succeeded_sources = {"a": hash_source(executed_source)}
        else:
            fault = Fault("ValueError", "bad", line=failed_at)
            state.runs.append(
                journal_events.RunEnded(
                    started_at="2026-01-01T00:00:00.000+00:00",
                    run=1,
                    cell_id="a",
                    index=0,
                    step=None,
                    source_hash=hash_source(executed_source),
                    duration_s=1.0,
                    outcome=Outcome(ended),
                    verdict=Verdict.UNRECOVERABLE,
                    fault=fault,
                    key="a",
                )
            )
    namespace = Namespace(
        variables={"other": Variable("int")}, cwd="/project/notebooks", lasting=LASTING
    )
    fault = Fault("NameError", f"name '{name}' is not defined", mro=("NameError",))
    diagnoser = make_diagnoser(Project())
    diagnoser = dataclasses.replace(diagnoser, transform=get_transformer())
    return diagnoser.add_suggestion(
        fault, {"look": {}}, failing, [cell, failing], state, namespace, "python"
    ).suggestion


TWO_LINES = "import os\nraw = os.listdir()"


@pytest.mark.parametrize(
    ("source", "values", "message"),
    [
        (
            TWO_LINES,
            {},
            "line 2 of cell 1 (id a) (`raw = os.listdir()`), which has not run",
        ),
        (
            TWO_LINES,
            {"executed_source": TWO_LINES, "ended": "error", "failed_at": 1},
            "which failed at line 1, before that line",
        ),
        (
            TWO_LINES,
            {"executed_source": TWO_LINES, "ended": "error", "failed_at": 2},
            "which failed at line 2",
        ),
        (
            TWO_LINES,
            {"executed_source": "import os", "ended": "ok"},
            "line 2 of cell 1 (id a) (`raw = os.listdir()`), which has changed since",
        ),
        (
            TWO_LINES,
            {"executed_source": "import os", "ended": "error", "failed_at": 1},
            "which has changed since it ran",
        ),
        (
            TWO_LINES,
            {"executed_source": TWO_LINES, "ended": "cancelled"},
            "which was interrupted and left `raw` undefined",
        ),
        (
            TWO_LINES,
            {"executed_source": TWO_LINES, "ended": "timeout", "failed_at": 1},
            "which timed out at line 1, before that line",
        ),
        (
            "for one in []:\n    raw = one",
            {"executed_source": "for one in []:\n    raw = one", "ended": "ok"},
            "line 2 of cell 1 (id a) (`raw = one`), which ran successfully",
        ),
        (
            "%timeit raw = 1",
            {},
            "the kernel has no similar name",
        ),
        ("%%time\nimport os\nraw = 1", {}, "line 3 of cell 1 (id a) (`raw = 1`)"),
        ("\n\nraw = 1", {}, "line 3 of cell 1 (id a) (`raw = 1`)"),
        ("\n%%capture raw\nprint(1)", {}, "line 2 of cell 1 (id a) (`%%capture raw`)"),
        ("def make():\n    return raw", {}, "the kernel has no similar name"),
    ],
)
def test_definition_shows_the_status_of_its_cell(
    source: str, values: dict[str, Any], message: str
) -> None:
    text = suggest_for_name(source, **values)
    assert message in text and "no cell of the notebook defines" not in text, text


@pytest.mark.parametrize(
    ("ename", "evalue", "message"),
    [
        (
            "StdinNotImplementedError",
            "raw_input was called",
            'set the value in the cell, as in `name = "value"`',
        ),
        (
            "ValueError",
            "Mime type rendering requires nbformat>=4.2.0 but it is not installed",
            "uv add nbformat",
        ),
        (
            "RuntimeError",
            "'widget' is not a recognised GUI loop or backend name",
            "uv add ipympl",
        ),
    ],
)
def test_optional_dependency_is_named(ename: str, evalue: str, message: str) -> None:
    assert message in suggest(ename, evalue)


def test_in_place_change_is_reported() -> None:
    bound = {"cell": 4, "file": "", "line": 1, "text": "df = read()"}
    changed = {
        "changed_cell": 4,
        "changed_line": 2,
        "changed_text": "df.drop(columns='b', inplace=True)",
    }
    text = suggest(
        "AttributeError",
        "no",
        {"text": "`df`", "bound": {**bound, **changed}},
        cells=[ONE_FRAME],
    )
    assert text.startswith(
        "`df`; last assigned by line 1 of cell 1 (id a): `df = read()`, and changed in place by line 2"
    )


@pytest.mark.parametrize(
    ("lost", "counts", "message"),
    [
        (
            {"cell": 4},
            {4: "a"},
            "cell 1 (id a) changed `df`, which had the column 'Amount' before; now `df` has b",
        ),
        (
            {"cell": 4},
            {4: "own"},
            "an earlier run of this cell changed `df`, which had the column 'Amount' before",
        ),
        ({"cell": 5}, {}, "an earlier execution changed `df`"),
        ({"cell": 0}, {}, "an earlier execution changed `df`"),
        (
            {"now": True},
            {},
            "this run of the cell changed `df`, which had the column 'Amount' before",
        ),
    ],
)
def test_run_that_removed_a_column_is_named(
    lost: dict[str, Any], counts: dict[int, str], message: str
) -> None:
    state = State("n.ipynb")
    state.cells_by_execution_count = counts
    cell = Cell("own", 9, 9, "code", "df['Amount']")
    notebook = NotebookNames(cell, [ONE_FRAME, cell], state, Namespace(), str)
    finding = Finding("`df` has b", lost=LostColumn("df", "'Amount'", **lost))
    assert format_findings(ErrorFacts((finding,)), notebook)[0].startswith(message)


def test_ipython_names_are_not_suggested() -> None:
    assert "`In`" not in suggest_for_name("x = 1", name="Inn")
