"""The notebook file is written like Jupyter writes it; other cells stay unchanged."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepper.common.errors import NotebookError
from stepper.notebooks import (
    background_io,
    new_notebook,
    notebook_document,
    notebook_json,
    widget_state,
)
from stepper.notebooks import notebook_file as notebook
from stepper.policy.execution_result import CellVersion, Execution, WidgetState
from stepper.policy.model import Cell, Outcome, Plan, Step
from tests.conftest import code
from tests.test_journal import unprivileged_folder

OUTPUT = {"output_type": "stream", "name": "stdout", "text": "a\nb\n"}


FLOATS = [1e-5, -1.5e-7, 1e16, 1e22, 12345678901234567.0, 0.00012345, 5e-324, -0.0]


def make_execution() -> Execution:
    return Execution(
        Outcome.OK,
        [nbformat.from_dict(OUTPUT)],
        7,
        {"shell.execute_reply": "2026-01-01T00:00:00Z"},
    )


def make(path: Path, cells: list[dict], **dump: object) -> notebook.IpynbFile:
    raw = {
        "cells": cells,
        "metadata": {"zeta": 1, "alpha": "é\u2028"},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_text(
        json.dumps(raw, ensure_ascii=False, **{"indent": 1, **dump}), encoding="utf-8"
    )
    return notebook.IpynbFile(str(path))


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(FLOATS),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@settings(deadline=None, max_examples=30)
@given(JSON)
@example(
    {"a": [1, {"b": [], "c": {}, "d": ["x\n  y", "\u0001", "null"]}], "é": "  \n z"}
)
def test_json_is_formatted_like_jupyter(document: object) -> None:
    text = json.dumps(document, indent=1, ensure_ascii=False, sort_keys=True)
    assert notebook_json.dump_json(document).decode() == text
    nested = json.dumps([[document]], indent=1, ensure_ascii=False, sort_keys=True)
    assert (
        notebook_json.dump_json(document, 2).decode()
        == nested[len("[\n [\n  ") : -len("\n ]\n]")]
    )


def test_only_lone_surrogates_are_escaped() -> None:
    assert (
        notebook_json.dump_json({"a": "é\ud800"}).decode() == '{\n "a": "é\\ud800"\n}'
    )


TEXTS = st.text("ab\n\r\u2028é", max_size=9)
SPLIT = TEXTS | st.lists(TEXTS, max_size=3)
BUNDLE = st.dictionaries(
    st.sampled_from(
        [
            "text/plain",
            "text/html",
            "image/png",
            "image/svg+xml",
            "application/json",
            "application/x+json",
        ]
    ),
    SPLIT
    | st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False), max_size=2),
    max_size=3,
)
OUTPUTS = st.one_of(
    st.fixed_dictionaries(
        {"output_type": st.just("stream"), "name": st.just("stdout"), "text": SPLIT}
    ),
    st.fixed_dictionaries(
        {
            "output_type": st.just("display_data"),
            "data": BUNDLE,
            "metadata": st.just({}),
        }
    ),
    st.fixed_dictionaries(
        {
            "output_type": st.just("error"),
            "ename": TEXTS,
            "evalue": TEXTS,
            "traceback": st.lists(TEXTS, max_size=2),
        }
    ),
)


@settings(deadline=None, max_examples=30)
@given(SPLIT, st.lists(OUTPUTS, max_size=3))
def test_cell_is_formatted_like_nbformat(source: object, outputs: list[dict]) -> None:
    cell = code("", "a", trusted=True, b=1) | {"source": source, "outputs": outputs}
    raw = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    written = nbformat.v4.writes(nbformat.v4.reads(json.dumps(raw)))
    cell = json.loads(json.dumps(cell))
    assert (
        notebook_json.dump_json(
            {**raw, "cells": [notebook_json.normalize_cell(cell)]}
        ).decode()
        == written
    )


@pytest.mark.parametrize("how", ["as Jupyter has it", "without ids", "with widgets"])
def test_notebook_saved_by_jupyter_keeps_its_format(tmp_path: Path, how: str) -> None:
    v4 = nbformat.v4
    cells = [
        v4.new_markdown_cell("# é\n\ntext"),
        v4.new_code_cell("x = 1\nx"),
        v4.new_code_cell("y", metadata={"b": 1}),
    ]
    document = v4.new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "P"}}
    )
    if how == "without ids":
        document.nbformat_minor = 4
        for cell in document.cells:
            del cell["id"]
    path = tmp_path / "n.ipynb"
    nbformat.write(document, path)
    file, execution = notebook.IpynbFile(str(path)), make_execution()
    execution.outputs += [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/plain": "a\nb",
                "application/json": {"z": 2**70, "a": [1e-5, 1.5e-7, 1e16, 0.1]},
                "image/svg+xml": "<a>\n</a>",
                "image/png": "x\n",
            },
        }
    ]
    if how == "with widgets":
        execution.widgets = WidgetState(
            {"m": {"model_name": "M", "state": {"b": 1, "a": 2**70}}}, 10**6
        )
    for cell in file.read().cells[1:]:
        assert file.write_execution(cell, execution, 3, keep_time=True) == ""
        second_path = tmp_path / "again.ipynb"
        nbformat.write(nbformat.read(path, nbformat.NO_CONVERT), second_path)
        assert path.read_bytes() == second_path.read_bytes()
    assert str(2**70) in path.read_text()
    before = path.read_bytes()
    file.write_execution(file.read().cells[1], execution, 3, keep_time=True)
    file.write_plan(Plan("p", (Step(1, "é"),)))
    file.add_tag(file.read().cells[2], "t")
    nbformat.write(nbformat.read(path, nbformat.NO_CONVERT), second_path)
    assert path.read_bytes() == second_path.read_bytes() != before


LAYOUTS: dict[str, dict] = {
    "one space": {"indent": 1},
    "two spaces": {"indent": 2},
    "four spaces": {"indent": 4},
    "tabs": {"indent": "\t"},
    "one line": {"indent": None},
    "one line without spaces": {"indent": None, "separators": (",", ":")},
    "escaped": {"indent": 2, "ensure_ascii": True},
    "carriage returns": {"indent": 2, "newline": "\r\n"},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_file_keeps_its_layout(tmp_path: Path, layout: str) -> None:
    options = {"ensure_ascii": False, "sort_keys": True, **LAYOUTS[layout]}
    newline = options.pop("newline", "\n")

    def laid_out(raw: object) -> bytes:
        return (json.dumps(raw, **options) + "\n").replace("\n", newline).encode()

    path = tmp_path / "n.ipynb"
    cells = [code("x = 'é'", "a"), code("y", "b"), code("z", "c")]
    raw = {
        "cells": [notebook_json.normalize_cell(cell) for cell in cells],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path.write_bytes(laid_out(raw))
    file = notebook.IpynbFile(str(path))
    execution = make_execution()
    execution.outputs += [
        {"output_type": "stream", "name": "stdout", "text": "é\n1e-5\n"}
    ]
    execution.outputs += [
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"application/json": [1e-5, {}, []]},
        }
    ]

    def check() -> None:
        assert path.read_bytes() == laid_out(json.loads(path.read_bytes()))

    file.write_execution(file.read().cells[0], execution, 3, keep_time=True)
    check()
    file.write_execution(file.read().cells[2], execution, None, keep_time=True)
    check()
    file.write_plan(Plan("p", (Step(1, "é"),)))
    check()
    new = Cell(id="", index=-1, number=0, type="code", source="n = 1", tags=())
    file.rearrange_cells(lambda cells: [cells[2], new, cells[0], cells[1]])
    check()
    file.rearrange_cells(lambda cells: [])
    file.rearrange_cells(lambda cells: [new])
    assert [cell.source for cell in file.read().cells] == ["n = 1"]


def test_untouched_parts_keep_their_bytes_in_any_layout(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n.ipynb"
    odd = '{"nbformat_minor":5, "cells" :[\t{"id":"a","cell_type":"code","metadata":{},"source":"x","outputs":[], "execution_count":null} ,\n{"id":"b","source" : ["y"],"outputs":[],"metadata":{"n":1.50e2,"big":%d},"execution_count":null,"cell_type":"code"}] ,\r\n "metadata":{"x": 1.0E5},"nbformat":4}'
    path.write_bytes(b"\xef\xbb\xbf" + (odd % 10**30).encode())
    file = notebook.IpynbFile(str(path))
    file.write_execution(file.read().cells[0], make_execution(), None, keep_time=True)
    after = path.read_bytes().decode("utf-8")
    first, last = odd.index('{"id":"a"'), odd.index(" ,\n")
    assert after.startswith("\ufeff" + odd[:first]) and after.endswith(
        (odd[last:] % 10**30) + "\n"
    )
    file.write_execution(file.read().cells[1], make_execution(), None, keep_time=True)
    assert f'"big": {10**30}' in path.read_text(
        "utf-8"
    ) and '"n": 150.0' in path.read_text("utf-8")
    file.write_plan(Plan("p", (Step(1, "a"),)))
    assert '"x": 100000.0' in path.read_text("utf-8") and path.read_bytes().startswith(
        b"\xef\xbb\xbf{"
    )


@pytest.mark.parametrize(
    "dump", [{"indent": 1}, {"indent": 2}, {"indent": None}, {"indent": "\t"}]
)
def test_outputs_are_written_to_one_cell_only(tmp_path: Path, dump: dict) -> None:
    tricky = code('s = """\n  {\n   "id": "b"\n  }"""', "a")
    file = make(tmp_path / "n.ipynb", [tricky, code("x", "b"), code("x", "c")], **dump)
    before = json.loads(Path(file.path).read_text())
    cell = file.read().cells[1]
    assert file.write_execution(cell, make_execution(), 3, keep_time=True) == ""
    after = json.loads(Path(file.path).read_text())
    changed = after["cells"][1]
    assert (changed["execution_count"], changed["outputs"][0]["text"]) == (
        7,
        ["a\n", "b\n"],
    )
    assert changed["metadata"]["stepper"] == {"step": 3}
    after["cells"][1] = before["cells"][1]
    assert after == before
    assert list(after["metadata"]) == ["zeta", "alpha"]
    if dump["indent"] == 1:
        nbformat.validate(nbformat.read(file.path, 4))


def test_splice_changes_no_byte_of_another_cell(tmp_path: Path) -> None:
    cells = [
        code("x = 1.0e5", "a"),
        code("y", "b"),
        code("z = 12345678901234567890123", "c", big=10**30),
    ]
    file = make(tmp_path / "n.ipynb", cells)
    before = Path(file.path).read_text().split("\n  {")
    file.write_execution(file.read().cells[1], make_execution(), None, keep_time=True)
    after = Path(file.path).read_text().split("\n  {")
    assert len(before) == 4 and before[2] != after[2]
    del before[2], after[2]
    assert "\n  {".join(before) + "\n" == "\n  {".join(after)


def test_two_cells_with_the_same_id_and_source(tmp_path: Path) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a"), code("x", "a")])
    assert (
        file.write_execution(
            file.read().cells[0], make_execution(), None, keep_time=True
        )
        == ""
    )
    outputs = [
        bool(cell["outputs"])
        for cell in json.loads(Path(file.path).read_text())["cells"]
    ]
    assert outputs == [True, False]


def test_concurrent_write_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a"), code("y", "b")])
    cell, times = file.read().cells[0], []
    dump = os.fsync

    def meanwhile(handle: int) -> None:
        dump(handle)
        if not times:  # the user saves an edit between stepper's read and rename
            times.append(1)
            make(tmp_path / "n.ipynb", [code("x", "a"), code("y = 'edited'", "b")])

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert file.write_execution(cell, make_execution(), None, keep_time=True) == ""
    cells = json.loads(Path(file.path).read_text())["cells"]
    assert cells[1]["source"] == "y = 'edited'" and cells[0]["execution_count"] == 7
    # Replaced files are deleted in the background.
    background_io.EXECUTOR.submit(bool).result()
    assert [path.name for path in tmp_path.iterdir()] == ["n.ipynb"]


@pytest.mark.skipif(
    sys.platform != "linux", reason="no other system exchanges two files"
)
@pytest.mark.parametrize("how", ["in place", "by renaming"])
def test_save_between_last_check_and_rename_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Jupyter truncates the file and writes a moment later; other programs rename."""
    file = make(tmp_path / "n.ipynb", [code("x", "a"), code("y", "b")])
    cell, swap, saves = file.read().cells[0], notebook.exchange_files, []
    text = Path(file.path).read_text().replace('"y"', '"edited"')

    def late(item: str, other: str, folder: int) -> bool:
        if not saves and how == "by renaming":
            (tmp_path / "new").write_text(text)
            os.replace(tmp_path / "new", file.path)
        elif not saves:
            stream = open(file.path, "w")  # noqa: SIM115
            threading.Timer(0.05, lambda: (stream.write(text), stream.close())).start()
        saves.append(how)
        return swap(item, other, folder)

    monkeypatch.setattr(notebook, "exchange_files", late)
    assert file.write_execution(cell, make_execution(), None, keep_time=True) == ""
    cells = json.loads(Path(file.path).read_text())["cells"]
    assert (cells[0]["execution_count"], cells[1]["source"]) == (7, "edited")
    # replaced files are deleted in the background
    background_io.EXECUTOR.submit(bool).result()
    assert [path.name for path in tmp_path.iterdir()] == ["n.ipynb"]


def test_partial_save_is_read_when_complete(tmp_path: Path) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a")])
    text = Path(file.path).read_text()
    Path(file.path).write_text(text[:50])
    writer = threading.Timer(0.05, Path(file.path).write_text, [text])
    writer.start()
    assert file.read().cells[0].source == "x"
    writer.join()


# The result of `write_execution` after another program changed the notebook:
# NotebookError if it can be written later, else the reason.


def delete_file(path: Path) -> None:
    path.unlink()


def write_invalid_json(path: Path) -> None:
    path.write_text("{")


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def read_only(path: Path) -> None:
    path.parent.chmod(0o500)


LATER = {
    delete_file: "n.ipynb no longer exists",
    write_invalid_json: "n.ipynb is not valid JSON",
    a_folder: "n.ipynb is a folder",
    a_pipe: "n.ipynb is a FIFO, not a regular file",
    read_only: "n.ipynb cannot be written: Permission denied",
}


@pytest.mark.parametrize("spoil", LATER, ids=lambda spoil: spoil.__name__)
def test_outputs_that_cannot_be_written_now_can_be_written_later(
    spoil: Callable[[Path], None],
) -> None:
    with unprivileged_folder() as folder:
        path = folder / "n.ipynb"
        file = make(path, [code("x", "a")])
        cell, old = file.read().cells[0], path.read_bytes()
        spoil(path)
        content = path.read_bytes() if path.is_file() else b""
        with pytest.raises(NotebookError, match=LATER[spoil]):
            file.write_execution(cell, make_execution(), None, keep_time=True)
        assert content == (path.read_bytes() if path.is_file() else b"")
        folder.chmod(0o700)
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.write_bytes(old)
        assert file.write_execution(cell, make_execution(), None, keep_time=True) == ""
        assert file.read_outputs(CellVersion.from_cell(cell))
        # replaced files are deleted in the background
        background_io.EXECUTOR.submit(bool).result()
        assert [path.name for path in folder.iterdir()] == ["n.ipynb"]


@pytest.mark.parametrize(
    "cells",
    [[code("x = 2", "a")], [code("x", "b")], []],
    ids=["edited", "another", "none"],
)
def test_outputs_of_a_deleted_cell_are_never_written(
    tmp_path: Path, cells: list[dict]
) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a")])
    cell = file.read().cells[0]
    make(tmp_path / "n.ipynb", cells)
    content = Path(file.path).read_bytes()
    assert "changed or deleted while it ran" in file.write_execution(
        cell, make_execution(), None, keep_time=True
    )
    assert Path(file.path).read_bytes() == content


def test_write_to_constantly_changing_notebook_is_postponed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a")])
    cell, dump = file.read().cells[0], os.fsync
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: (dump(handle), make(Path(file.path), [code("x", "a")])),
    )
    with pytest.raises(NotebookError, match="another program keeps changing the file"):
        file.write_execution(cell, make_execution(), None, keep_time=True)


@pytest.mark.parametrize("alive", [True, False])
def test_mtime_increases_within_the_millisecond_if_a_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    (tmp_path / "work").mkdir()
    file = make(tmp_path / "work" / "n.ipynb", [code("x", "a")])
    with subprocess.Popen(["sleep", "60"]) as server:
        (tmp_path / "runtime").mkdir()
        record = tmp_path / "runtime" / f"jpserver-{server.pid}.json"
        record.write_text(json.dumps({"root_dir": str(tmp_path), "pid": server.pid}))
        monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
        if not alive:
            server.kill()
            server.wait()
        os.utime(file.path, ns=(10**18, 10**18))
        assert (
            file.write_execution(
                file.read().cells[0], make_execution(), None, keep_time=True
            )
            == ""
        )
        assert os.stat(file.path).st_mtime_ns == 10**18 + (2000 if alive else 0)
        server.kill()


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    """A limit of the file size simulates a full disk; unlike a mode, it applies to root."""
    file = make(tmp_path / "n.ipynb", [code("x", "a")])
    cell, old = file.read().cells[0], Path(file.path).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(NotebookError, match="cannot be written"):
            file.write_execution(cell, make_execution(), None, keep_time=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert Path(file.path).read_bytes() == old
    # replaced files are deleted in the background
    background_io.EXECUTOR.submit(bool).result()
    assert [path.name for path in tmp_path.iterdir()] == ["n.ipynb"]


def test_new_notebook_is_valid_and_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "new.ipynb"
    new_notebook.create_notebook(str(path), Plan("Pröblem", (Step(1, "one"),)))
    document = nbformat.read(path, 4)
    nbformat.validate(document)
    assert document.cells[0].source == "# Pröblem"
    assert document.metadata["kernelspec"]["name"] == "python3"
    assert document.metadata["stepper"]["steps"][0]["title"] == "one"
    assert document.nbformat_minor == 5
    with pytest.raises(FileExistsError):
        new_notebook.create_notebook(str(path), Plan("other"))


def test_new_notebook_with_a_lone_surrogate(tmp_path: Path) -> None:
    """A byte of the command line that is not UTF-8 becomes a lone surrogate."""
    path = tmp_path / "new.ipynb"
    new_notebook.create_notebook(str(path), Plan("a\udcff"))
    assert notebook.IpynbFile(str(path)).read().cells[0].source == "# a\udcff"


def test_new_notebook_that_cannot_be_written_is_removed(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            new_notebook.create_notebook(str(tmp_path / "new.ipynb"), Plan("p"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_second_of_two_equal_cells_gets_a_new_id(tmp_path: Path) -> None:
    file = make(tmp_path / "n.ipynb", [code("x", "a"), code("x", "a")])
    [(old_id, cell)] = file.replace_duplicate_ids()
    first, second = file.read().cells
    assert (old_id, first.id) == ("a", "a")
    assert cell == second
    assert second.id != "a"


@pytest.mark.parametrize(
    "value", ["NaN", '"\\ud800"', "123456789012345678901234567890"]
)
@pytest.mark.parametrize("indent", [1, 4])
@pytest.mark.parametrize("where", ["other", "same"])
def test_numbers_unsupported_by_orjson_are_unchanged(
    tmp_path: Path, value: str, indent: int, where: str
) -> None:
    """Also if the whole file is rewritten, because another program indented it."""
    cells = [
        code("x", "same", odd="ODD" if where == "same" else ""),
        code("y", "other", odd="ODD"),
    ]
    file = make(tmp_path / "n.ipynb", cells)
    text = json.dumps(json.loads(Path(file.path).read_text()), indent=indent).replace(
        '"ODD"', value
    )
    Path(file.path).write_text(text)
    assert (
        file.write_execution(
            file.read().cells[0], make_execution(), None, keep_time=True
        )
        == ""
    )
    assert Path(file.path).read_text().count(value) == text.count(value) > 0
    file.write_plan(Plan("p", (Step(1, "one"),)))
    assert Path(file.path).read_text().count(value) == text.count(value)


def test_long_digits_in_a_source_change_no_other_cell(tmp_path: Path) -> None:
    """A time in nanoseconds has as many digits as the numbers that orjson rounds."""
    file = make(
        tmp_path / "n.ipynb",
        [code("print('é–中')", "a"), code("f(x, 1700000000000000000)", "b")],
    )
    before = Path(file.path).read_bytes().split(b"},\n  {")[0]
    assert (
        file.write_execution(
            file.read().cells[1], make_execution(), None, keep_time=True
        )
        == ""
    )
    assert Path(file.path).read_bytes().split(b"},\n  {")[0] == before
    indented = json.dumps(
        json.loads(Path(file.path).read_text()), indent=4, ensure_ascii=False
    )
    Path(file.path).write_text(indented)
    assert (
        file.write_execution(
            file.read().cells[1], make_execution(), None, keep_time=True
        )
        == ""
    )
    assert "é–中" in Path(file.path).read_text()


@pytest.mark.parametrize(
    ("raw", "hint"),
    [
        ({"cells": []}, "Restore the notebook"),
        ({"nbformat": 3}, "jupyter nbconvert --to notebook --inplace '/n/a b.ipynb'"),
        ({"nbformat": 5}, "Save the notebook in nbformat 4"),
        ({"nbformat": 4, "cells": [{}]}, "Each cell must be a JSON object"),
    ],
)
def test_hint_for_an_invalid_notebook(raw: dict[str, object], hint: str) -> None:
    with pytest.raises(NotebookError) as caught:
        notebook_document.validate_notebook(raw, "/n/a b.ipynb")
    assert caught.value.hint.startswith(hint)


VIEW = "application/vnd.jupyter.widget-view+json"
STATE = "application/vnd.jupyter.widget-state+json"


def make_view(model_id: str) -> dict[str, Any]:
    return {"outputs": [{"data": {VIEW: {"model_id": model_id}}}]}


@pytest.mark.parametrize("order", [("large", "small"), ("small", "large")])
def test_widget_model_that_is_too_large_takes_no_room(order: tuple[str, str]) -> None:
    old_states = {"large": {"state": {"value": "x" * 2000}}, "small": {"state": {}}}
    metadata = {"widgets": {STATE: {"state": old_states}}}
    cells = list(map(make_view, order))
    models = WidgetState({"new": {"model_name": "A", "state": {}}}, limit=1000)
    result = widget_state.update_metadata(metadata, cells, models)
    assert set(result["widgets"][STATE]["state"]) == {"new", "small"}


@pytest.mark.parametrize(
    "widgets", [{STATE: None}, {STATE: {"state": []}}, [], {STATE: {"state": {"a": 1}}}]
)
def test_invalid_widget_state_in_a_notebook_is_ignored(widgets: Any) -> None:
    cells = [{"outputs": [1, {"data": [1]}, {"data": {VIEW: 1}}]}, {"outputs": True}]
    states = {"a": {"model_name": None, "state": {}}, "b": {"model_name": "B"}}
    result = widget_state.update_metadata(
        {"widgets": widgets}, cells, WidgetState(states, limit=1000)
    )
    assert set(result["widgets"][STATE]["state"]) == {"b"}


@pytest.mark.parametrize("outputs", [True, {"a": 1}, "text", None])
def test_cell_with_invalid_outputs_has_no_recorded_outputs(outputs: Any) -> None:
    raw = {"nbformat": 4, "cells": [{"cell_type": "code", "outputs": outputs}]}
    document = notebook_document.Document(b"", raw)
    assert document.get_recorded_outputs(document.cells[0]) is None
