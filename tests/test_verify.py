"""`stepper verify` with fake kernels by day, and with real kernels at night."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from examples import demo
from stepper.cli.rendering import RunProgress
from stepper.common import secure_files
from stepper.daemon.replay import replay_workspace as replays
from stepper.daemon.replay.replay_file_changes import FolderSnapshot
from stepper.install import trust
from stepper.kernels.backends.local.process_identity import MARKER
from stepper.session import progress_events, responses
from stepper.session.verification import verify
from tests.conftest import Notebook, Project, code, reuse_project, scratch
from tests.environments import environment
from tests.test_recovery import small_disk as small_disk  # noqa: PLC0414  (a fixture)
from tests.test_run_on_edit import wait_until
from tests.test_session import UNCLOSED, Quick
from tests.test_session import project as project  # noqa: PLC0414  (a fixture: without processes)

pytestmark = UNCLOSED


@pytest.fixture
def real(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)


def make_run_notebook(
    project: Project, *sources: str, name: str = "a.ipynb", **metadata: Any
) -> Notebook:
    """A notebook whose cells have run; their ids are a, b, c …"""
    cells = [code(source, chr(97 + index)) for index, source in enumerate(sources)]
    notebook = project.notebook(name, cells, **metadata)
    project.stepper("run", name, check=None)
    return notebook


def run_verify(
    project: Project, *options: str, name: str = "a", check: int | None = None
) -> Any:
    return project.json("verify", name, *options, check=check)


def format_verdicts(results: Any) -> str:
    return " ".join(f"{cell['cell_id']}:{cell['verdict']}" for cell in results["cells"])


def change(notebook: Notebook, change: Any) -> None:
    raw = notebook.raw
    change(raw["cells"])
    notebook.path.write_text(json.dumps(raw, indent=1))


def test_reproducible_notebook(project: Quick) -> None:
    notebook = make_run_notebook(project, "x = 1", "print(x)", "x + 1")
    before, journal = notebook.path.read_bytes(), project.json("history")
    result = run_verify(project, check=0)
    assert (
        result["reproduces"]
        and format_verdicts(result) == "a:same b:same c:same"
        and result["kernels"] == 1
    )
    keys = "notebook reproduces cells files duration_s kernels packages where failing open_steps warnings partial"
    assert " ".join(result) == keys
    assert [*result["cells"][0]] == [
        "cell_id",
        "number",
        "verdict",
        "difference",
        "lines",
        "duration_s",
    ]
    assert notebook.path.read_bytes() == before and project.json("history") == journal
    text = project.stepper("verify", "a").stdout
    assert text.startswith(
        "notebooks/a.ipynb: REPRODUCES · 3 of 3 cells as recorded · "
    )
    assert text.strip().endswith(
        " s in 1 fresh kernel; the live kernel was not touched"
    )
    assert [name for name in project.live_kernels if "verify" in name] == [], (
        "the fresh kernels are ended"
    )
    assert not os.listdir(project.paths.verify)


def test_notebook_that_does_not_reproduce(project: Quick) -> None:
    notebook = make_run_notebook(
        project,
        "import random",
        "print(random.random())",
        "df = 3",
        "print('a')",
        "print(df)",
        "1 + 1",
    )
    change(notebook, lambda cells: cells[3]["outputs"][0].update(text="b\nc\n"))
    change(notebook, lambda cells: cells.pop(2))
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:same b:unstable d:changed e:failed f:same"
    assert not result["reproduces"] and result["kernels"] == 2
    messages = [cell["difference"] for cell in result["cells"]]
    assert messages[1:3] == [
        "two fresh runs differ as well: the cell draws random numbers without a seed",
        "-2 +1",
    ]
    assert (
        messages[3]
        == "NameError: name 'df' is not defined (`df` was defined in cell 3, which was deleted)"
    )
    text = project.stepper("verify", "a", check=1).stdout
    assert (
        "DOES NOT REPRODUCE · 2 of 5 cells as recorded" in text
        and " in 2 fresh kernels" in text
    )
    assert (
        "  ✗ cell 3 (id d) changed: -2 +1\n      | - b\n      | - c\n      | + a\n"
        in text
    )
    single_run = run_verify(project, "--once", check=1)
    assert (
        format_verdicts(single_run) == "a:same b:changed d:changed e:failed f:same"
        and single_run["kernels"] == 1
    )


def test_missing_name_was_bound_by_a_changed_cell(project: Quick) -> None:
    notebook = make_run_notebook(project, "df = 1", "pass", "print(df)")
    change(notebook, lambda cells: cells[0].update(source="frame = 1"))
    project.stepper("run", "a")
    difference = run_verify(project, check=1)["cells"][2]["difference"]
    assert (
        difference
        == "NameError: name 'df' is not defined (`df` was defined in an earlier version of cell 1)"
    )


def test_live_kernel_counts_and_current_notebook_are_unchanged(
    project: Quick,
) -> None:
    other = make_run_notebook(project, "y = 1", name="other.ipynb")
    notebook = make_run_notebook(project, "x = 1\nprint(x)", "x += 1")
    project.stepper("use", "other")
    project.stepper("eval", "x = 7", "--notebook", "a")
    journal = Path(project.paths.journals, "a.jsonl")
    lines = journal.read_text().count('"event":"run"') if journal.exists() else -1
    about = notebook.path.stat()
    assert format_verdicts(run_verify(project)) == "a:same b:same"
    assert project.json("eval", "x", "--notebook", "a")["output"].strip() == "7"
    assert (
        project.json("status")["notebook"]
        == project.folder.joinpath(other.path).relative_to(project.folder).as_posix()
    )
    assert (notebook.path.stat().st_mtime_ns, notebook.path.stat().st_ino) == (
        about.st_mtime_ns,
        about.st_ino,
    )
    assert lines < 0 or journal.read_text().count('"event":"run"') == lines


@pytest.mark.nightly
def test_notebook_that_never_ran(project: Quick) -> None:
    project.notebook("a.ipynb", [code("print(1)", "a"), code("print(2)", "b")])
    result = run_verify(project, check=1)
    assert (
        format_verdicts(result) == "a:not_recorded b:not_recorded"
        and result["kernels"] == 1
    )
    text = project.stepper("verify", "a", check=1).stdout
    assert (
        "  ✗ cells 1, 2: no recorded outputs; no cell ran" in text
        and "`stepper run notebooks/a.ipynb`" in text
    )
    project.notebook("empty.ipynb", [])
    assert run_verify(project, name="empty", check=0)["kernels"] == 0


def test_cell_that_was_changed_and_not_run(project: Quick) -> None:
    notebook = make_run_notebook(project, "x = 1", "print(x)")
    change(
        notebook,
        lambda cells: cells[1].update(
            source="print(x + 1)", outputs=[], execution_count=None
        ),
    )
    assert format_verdicts(run_verify(project, check=1)) == "a:same b:not_recorded"


@pytest.mark.nightly
def test_failing_cells(project: Quick) -> None:
    """A cell with a recorded or an expected failure does not stop the replay."""
    notebook = project.notebook(
        "a.ipynb",
        [
            code("print('before')\n1 / 0", "a"),
            code("print(1)", "b"),
            code("int('x')", "c", tags=["raises-exception"]),
            code("print(3)", "d", tags=["skip-execution"]),
            code("print(2)", "e"),
        ],
    )
    project.stepper("run", "a", check=1)
    for _ in range(2):
        project.stepper("continue", check=None)
        change(
            notebook,
            lambda cells: cells[0]["metadata"].update(tags=["raises-exception"]),
        )
        project.stepper("run", "a", check=None)
    change(notebook, lambda cells: cells[0]["metadata"].pop("tags"))
    assert (
        format_verdicts(run_verify(project, check=0)) == "a:same b:same c:same e:same"
    )
    change(notebook, lambda cells: cells[1].update(source="raise ValueError(object())"))
    project.stepper("run", "a", check=1)
    text = "<object object at 0x7f0011223344>"  # the address in another process
    change(notebook, lambda cells: cells[1]["outputs"][-1].update(evalue=text))
    project.stepper("continue", check=None)
    assert (
        format_verdicts(run_verify(project, check=0)) == "a:same b:same c:same e:same"
    )
    change(notebook, lambda cells: cells[0]["outputs"][-1].update(evalue="another"))
    assert (
        format_verdicts(run_verify(project, check=1)) == "a:failed b:same c:same e:same"
    )


def test_cell_that_fails_as_recorded_is_reported(project: Quick) -> None:
    notebook = make_run_notebook(project, "1 / 0", "print(2)")
    change(
        notebook,
        lambda cells: cells[1].update(
            outputs=[{"output_type": "stream", "name": "stdout", "text": "2\n"}]
        ),
    )
    text = project.stepper("verify", "a", check=0).stdout
    assert (
        "2 of 2 cells" in text
        and "  · cell 1: fails, as recorded: ZeroDivisionError: division by zero"
        in text
    )


@pytest.mark.nightly
def test_cells_without_counts_and_outputs_may_have_run(
    project: Quick,
) -> None:
    notebook = make_run_notebook(project, "x = 1", "print(x)", "print(x + 1)")
    change(
        notebook, lambda cells: [cell.update(execution_count=None) for cell in cells]
    )
    assert format_verdicts(run_verify(project, check=0)) == "a:same b:same c:same"
    change(notebook, lambda cells: cells[2].update(outputs=[]))
    assert (
        format_verdicts(run_verify(project, check=1)) == "a:same b:same c:not_recorded"
    )


@pytest.mark.nightly
def test_outputs_of_another_source_are_reported(project: Quick) -> None:
    """An editor keeps the outputs; a program that runs the cell changes the count."""
    notebook = make_run_notebook(project, "x = 1", "print(x)")
    change(notebook, lambda cells: cells[1].update(source="print(x + 1)"))
    cell = run_verify(project, check=1)["cells"][1]
    assert (cell["verdict"], cell["difference"]) == (
        "changed",
        "-1 +1; the source was changed after the recorded run",
    )
    change(notebook, lambda cells: cells[1].update(execution_count=9))
    assert run_verify(project, check=1)["cells"][1]["difference"] == "-1 +1"


@pytest.mark.nightly
def test_timeouts_directives_and_kernel_death(project: Quick) -> None:
    notebook = make_run_notebook(project, "print(1)", "pass", "print(2)")
    change(
        notebook,
        lambda cells: cells[1].update(source="# stepper: timeout=1s\nwhile True: pass"),
    )
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:same b:not_judged c:not_run"
    assert result["cells"][1]["difference"] == "timed out after 1.00 s"
    project.config("verify_timeout: 1\n")
    change(
        notebook,
        lambda cells: cells[1].update(source="while True: pass", metadata={}),
    )
    result = run_verify(project, check=1)
    assert (
        result["cells"][1]["difference"]
        == "timed out after 1.00 s (for more time, add the first line `# stepper: timeout=1h`)"
    )
    assert result["cells"][2]["difference"] == "cell 2 was interrupted"
    text = project.stepper("verify", "a", check=1).stdout
    assert "  ? cell 2 (id b) not judged: timed out after 1.00 s" in text
    assert "  · cell 3: not run, because cell 2 was interrupted" in text
    change(notebook, lambda cells: cells[1].update(source="die('SIGSEGV')"))
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:same b:failed c:not_run"
    assert result["cells"][1]["difference"] == "KernelDied: kernel died (SIGSEGV)", (
        "there is nothing to restore"
    )


def make_recorded(source: str, cell_id: str, *outputs: Any, **metadata: Any) -> Any:
    """Return a cell with outputs that another program recorded."""
    cell = code(source, cell_id)
    cell["metadata"].update(metadata)
    return {**cell, "execution_count": 1, "outputs": [*outputs]}


def make_error(ename: str, evalue: str) -> dict[str, Any]:
    return {
        "output_type": "error",
        "ename": ename,
        "evalue": evalue,
        "traceback": [],
    }


@pytest.mark.parametrize(("seconds", "kernels"), [(600, 4), (0, 2)])
def test_drawn_values_without_time_for_all_replays(
    project: Quick, monkeypatch: pytest.MonkeyPatch, seconds: int, kernels: int
) -> None:
    monkeypatch.setattr(verify, "EXTRA_REPLAY_SECONDS", seconds)
    cell = make_recorded(
        "import random\nprint(random.random() < 2)",
        "a",
        {"output_type": "stream", "name": "stdout", "text": "False\n"},
    )
    project.notebook("a.ipynb", [cell])
    result = run_verify(project, check=1)
    assert result["kernels"] == kernels
    assert format_verdicts(result) == ("a:changed" if seconds else "a:unstable")
    if not seconds:
        assert "agree, perhaps by chance" in result["cells"][0]["difference"]


def test_differences_in_times_alone(project: Quick) -> None:
    """Two replays on the same day show the same date."""
    cells = [
        make_recorded(
            source,
            cell_id,
            {"output_type": "stream", "name": "stdout", "text": text},
        )
        for source, cell_id, text in (
            ("import datetime\nprint(datetime.date.today())", "a", "2020-01-02\n"),
            ("import time\nprint(f'{time.time() % 9:.1f} s')", "b", "17.5 s\n"),
            ("print(time.strftime('%Y-%m-%d'))", "c", "2020-01-02\n"),
            ("print(datetime.date.today(), 1)", "d", "2020-01-02 2\n"),
            ("print(int(time.time()) % 2 + 5)", "e", "1\n"),
        )
    ]
    project.notebook("a.ipynb", cells[:2])
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:unstable b:unstable"
    assert result["kernels"] == 1
    assert "only times or durations differ" in result["cells"][0]["difference"]
    project.notebook("a.ipynb", cells)
    result = run_verify(project, check=1)
    assert format_verdicts(result) == (
        "a:unstable b:unstable c:changed d:changed e:unstable"
    )
    text = result["cells"][4]["difference"]
    assert text == "only clock values or ids differ"


def test_change_beside_a_duration(project: Quick) -> None:
    cells = [
        make_recorded(
            "import time\nprint(f'{10 * 10} rows in {time.perf_counter() % 9:.6f} s')",
            cell_id,
            {"output_type": "stream", "name": "stdout", "text": text},
        )
        for cell_id, text in (
            ("a", "100 rows in 0.5 s\n"),
            ("b", "101 rows in 0.5 s\n"),
        )
    ]
    project.notebook("a.ipynb", cells)
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:unstable b:changed"
    assert result["cells"][1]["lines"][0] == "- 101 rows in 0.5 s"


def test_replay_goes_on_and_stops_where_the_recording_did(project: Quick) -> None:
    cells = [
        make_recorded("1 / 0", "a", make_error("ZeroDivisionError", "other text")),
        make_recorded("x = [][5]\ny = 3", "b"),
        make_recorded("y + 1", "c"),
        make_recorded("z = 1", "d"),
        make_recorded("int('x')", "e", make_error("ValueError", "it is no number")),
        code("print(1)", "f"),
    ]
    project.notebook("a.ipynb", cells)
    result = run_verify(project, check=1)
    assert (
        format_verdicts(result)
        == "a:failed b:failed c:failed d:same e:failed f:not_recorded"
    )
    messages = [cell["difference"] for cell in result["cells"]]
    assert (
        messages[0] == "ZeroDivisionError: division by zero"
        " (recorded: ZeroDivisionError: other text)"
    )
    assert messages[1] == "IndexError: list index out of range"
    assert (
        messages[2]
        == "NameError: name 'y' is not defined (`y` is defined in cell 2, which failed)"
    )
    assert result["kernels"] == 2, "the text of an error may be nondeterministic"
    drawn = make_error("ValueError", "drawn 7")
    source = "import random\nraise ValueError(f'drawn {random.random()}')"
    project.notebook("drawn.ipynb", [make_recorded(source, "a", drawn)])
    assert format_verdicts(run_verify(project, name="drawn", check=1)) == "a:unstable"


def test_deadlines_come_from_recorded_times(project: Quick) -> None:
    """The deadline for cells run here does not apply to a replay."""
    project.config("cell_timeout_seconds: 0.2\nverify_timeout: 2\n")
    times = {
        "iopub.execute_input": "2026-01-01T00:00:00.000Z",
        "shell.execute_reply": "2026-01-01T00:00:05.000Z",
    }
    waits = "import time\nfor _ in range(250): time.sleep(0.01)"
    cells = [
        make_recorded(waits, "a", execution=times),
        make_recorded("time.sleep(0.3)", "b"),
        make_recorded(waits.replace("250", "10_000"), "c"),
    ]
    project.notebook("a.ipynb", cells)
    result = run_verify(project, check=1)
    assert format_verdicts(result) == "a:same b:same c:not_judged"


@pytest.mark.nightly
def test_text_inside_output_widgets_is_compared(tmp_path: Path) -> None:
    python = environment(sys.executable, "ipywidgets")
    for new_project in scratch(tmp_path / "repo"):
        trust.save_record(new_project.paths, {"python": python})
        (new_project.folder / "notebooks" / "text").write_text("rain")
        source = "import ipywidgets\nout = ipywidgets.Output()\ndisplay(out)"
        make_run_notebook(
            new_project, source, "with out: print(open('text').read())", "1 + 1"
        )
        assert run_verify(new_project, check=0)["reproduces"]
        (new_project.folder / "notebooks" / "text").write_text("snow")
        result = run_verify(new_project, check=1)
        assert format_verdicts(result) == "a:changed b:same c:same"
        assert result["cells"][0]["lines"] == ["- rain", "+ snow"]


def test_new_warnings_are_in_the_headline(project: Quick) -> None:
    source = "import sys\nprint('a.py:1: UserWarning: careful', file=sys.stderr)"
    project.notebook("a.ipynb", [make_recorded(source, "a")])
    text = project.stepper("verify", "a", check=0).stdout
    assert "REPRODUCES; 1 cell prints new warnings · 1 of 1 cells" in text
    assert "  · cell 1: new on stderr: UserWarning: careful" in text


@pytest.mark.nightly
def test_errors_that_ipython_writes_to_stderr_are_recorded_errors(
    real: Project,
) -> None:
    message = "UsageError: {} `{}` not found.\n"

    def make_unknown_magic(source: str, kind: str, name: str) -> Any:
        text = message.format(kind, name)
        output = {"output_type": "stream", "name": "stderr", "text": text}
        return make_recorded(source, name.strip("%"), output)

    syntax_error = make_error("SyntaxError", "invalid syntax (3311942670.py, line 1)")
    cells = [
        make_unknown_magic("%notamagic", "Line magic function", "%notamagic"),
        make_unknown_magic("%%foo\nx", "Cell magic", "%%foo"),
        make_recorded("1 +", "syntax", syntax_error),
        make_recorded("%bar", "bar"),
    ]
    real.notebook("magic.ipynb", cells)
    result = run_verify(real, name="magic", check=1)
    assert format_verdicts(result) == "notamagic:same foo:same syntax:same bar:failed"


@pytest.mark.nightly
def test_late_outputs_and_updated_displays(project: Quick) -> None:
    shown = "display({'text/plain': 'one'}, raw=True, display_id='d')"
    make_run_notebook(
        project,
        "late('later')\nprint('now')",
        shown,
        "update_display({'text/plain': 'two'}, raw=True, display_id='d')",
    )
    wait_until(
        lambda: "later" in json.dumps(project.json("output", "1", "--notebook", "a"))
    )
    assert format_verdicts(run_verify(project, check=0)) == "a:same b:same c:same"


def test_files_written_by_cells_are_reported(project: Quick) -> None:
    folder = project.folder / "notebooks"
    (folder / "gone.csv").write_text("1")
    chdir = f"import os\nos.chdir({str(folder)!r})\n"
    write = (
        chdir
        + "for name, text in (('same.csv', 'a'), ('other.csv', 'b')): open(name, 'w').write(text)"
    )
    notebook = make_run_notebook(project, write)
    (folder / "other.csv").write_text("before")
    (folder / "kept.csv").write_text("kept")
    # A temporary file that exists when the replay begins and is deleted before its end.
    (folder / ".b.ipynb.71f45c4b.tmp").write_text("{}")
    cleanup = "\nfor name in ('gone.csv', '.b.ipynb.71f45c4b.tmp'):\n    if os.path.exists(name): os.remove(name)"
    cleanup += "\nopen('new.csv', 'w').write('x') and None"
    change(notebook, lambda cells: cells[0].update(source=write + cleanup))
    files = run_verify(project, "--once")["files"]
    assert {file["name"]: file["change"] for file in files} == {
        "same.csv": "same",
        "other.csv": "changed",
        "gone.csv": "deleted",
        "new.csv": "new",
    }
    assert (
        "  · file same.csv: rewritten with the same content"
        in project.stepper("verify", "a", check=None).stdout
    )


def test_replay_that_changes_its_inputs_says_so(project: Quick) -> None:
    folder = project.folder / "notebooks"
    path = str(folder / "count.txt")
    source = f"path = {path!r}\nimport os\nn = int(open('count.txt').read())"
    count = "open('count.txt', 'w').write(str(n + 1))\nprint(n)"
    chdir = f"import os\nos.chdir({str(folder)!r})"
    notebook = make_run_notebook_with_file(project, chdir, f"{source}\n{count}")
    text = notebook.project.stepper("verify", "a", check=1).stdout
    assert "cell 2 (id b) unstable: the replay changed count.txt" in text


def make_run_notebook_with_file(project: Project, *sources: str) -> Notebook:
    (project.folder / "notebooks" / "count.txt").write_text("0")
    return make_run_notebook(project, *sources)


@pytest.mark.nightly
def test_each_scratch_replay_has_the_original_files(real: Project) -> None:
    source = (
        "n = int(open('count.txt').read())\n"
        "open('count.txt', 'w').write(str(n + 1))\nprint(n, 'of 5')"
    )
    notebook = make_run_notebook_with_file(real, source)
    (real.folder / "notebooks" / "count.txt").write_text("0")
    assert run_verify(real, "--scratch", check=0)["reproduces"]
    change(notebook, lambda cells: cells[0]["outputs"][0].update(text="0 of 6\n"))
    result = run_verify(real, "--scratch", check=1)
    assert format_verdicts(result) == "a:changed" and result["kernels"] == 2
    assert result["files"][0]["change"] == "changed"
    assert (real.folder / "notebooks" / "count.txt").read_text() == "0"


@pytest.mark.nightly
def test_drawn_values_give_the_same_verdict_each_time(tmp_path: Path) -> None:
    """A replay seeds the generators; a draw of two values agrees often by chance."""
    python = environment(sys.executable, "numpy")
    sources = (
        "import random\nimport numpy as np",
        "print(random.choice('ab'), random.random() < 0.9)",
        "print(np.random.randint(2))",
        "rng = np.random.default_rng()\nprint(rng.integers(2))",
        "print(rng.normal(), np.random.rand(), random.random())",
        "np.random.seed(1)\nprint(np.random.rand())",
    )
    for new_project in scratch(tmp_path / "repo"):
        trust.save_record(new_project.paths, {"python": python})
        make_run_notebook(new_project, *sources)
        results = [run_verify(new_project) for _ in range(3)]
        verdicts = [format_verdicts(result) for result in results]
        assert len({*verdicts}) == 1
        assert verdicts[0].endswith("e:unstable f:same")
        texts = [
            [(cell["difference"], cell["lines"]) for cell in result["cells"]]
            for result in results
        ]
        assert texts[0] == texts[1] == texts[2]


def test_files_too_large_to_compare_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepper.daemon.replay.replay_file_changes.MAX_FILE_BYTES", 10)
    (tmp_path / "large").write_text("x" * 20)
    written = FolderSnapshot(str(tmp_path), str(tmp_path / "a.ipynb"))
    time.sleep(0.02)
    (tmp_path / "large").write_text("y" * 20)
    (tmp_path / "a.ipynb").write_text("{}")
    assert [(change.name, change.change) for change in written.list_changes()] == [
        ("large", "written")
    ]


def test_folder_too_large_to_scan_gives_no_false_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"{number}.csv").write_text("1")
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 10)
    written = FolderSnapshot(str(tmp_path), str(tmp_path / "a.ipynb"))
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 100)
    assert written.list_changes() == [], (
        "files that were not checked before do not count as new"
    )
    written = FolderSnapshot(str(tmp_path), str(tmp_path / "a.ipynb"))
    (tmp_path / "7.csv").unlink()
    monkeypatch.setattr("stepper.common.project_walk.ENTRIES", 10)
    assert [(change.name, change.change) for change in written.list_changes()] == [
        ("7.csv", "deleted")
    ]


def test_status_shows_the_last_verdict_and_marks_it_outdated(
    project: Quick,
) -> None:
    notebook = make_run_notebook(project, "print(1)", "print(2)")
    assert project.json("status", "a")["verified"] is None
    run_verify(project, check=0)
    last = project.json("status", "a")["verified"]
    assert (
        last["reproduces"]
        and last["holds"]
        and last["text"].endswith("reproduces (2 of 2 cells as recorded)")
    )
    project.kill_daemon()
    change(notebook, lambda cells: cells[0].update(source="print(3)"))
    assert "outdated: a cell has changed since" in project.stepper("status", "a").stdout
    assert (
        run_verify(project, check=1)
        and not project.json("status", "a")["verified"]["reproduces"]
    )


def test_verify_auto_runs_it_when_a_notebook_becomes_complete(project: Quick) -> None:
    project.config("verify: auto\n")
    notebook = project.new("One", "Two")
    assert "verify" not in notebook.insert("x = 1")[1].text
    assert (
        "stepper replays it in a new kernel now (verify: auto)"
        in notebook.insert("print(x)")[1].text
    )
    wait_until(lambda: project.json("status")["verified"])
    wait_until(lambda: project.json("status")["unheard"])
    prompt = notebook.payload(
        "UserPromptSubmit", "", {}, prompt="and what does it say?"
    )
    assert (
        "REPRODUCES · 2 of 2 cells as recorded"
        in project.hook("UserPromptSubmit", prompt).text
    )
    assert project.hook("UserPromptSubmit", prompt).text == "", "once"


@pytest.mark.nightly
@pytest.mark.parametrize("config", ["", "verify: auto\nverify_seconds: 0.0001\n"])
def test_verify_is_suggested_if_it_does_not_run_automatically(
    project: Quick, config: str
) -> None:
    project.config(config)
    text = project.new("One").insert("x = 1")[1].text
    assert (
        "`stepper verify notebooks/" in text and "To replay it in a new kernel" in text
    )
    time.sleep(1.5)
    assert project.json("status")["verified"] is None


@pytest.mark.nightly
def test_verify_auto_never_runs_a_cell_first(project: Quick) -> None:
    project.config("verify: auto\n")
    notebook = project.new("One")
    raw = notebook.raw
    raw["cells"].insert(0, code("open('never', 'w').close()", "theirs"))
    notebook.path.write_text(json.dumps(raw, indent=1))
    assert (
        "Outside the plan: cell 1 (id theirs) has not run"
        in notebook.insert("x = 1")[1].text
    )
    time.sleep(1)
    assert (
        project.json("status")["verified"] is None
        and not (notebook.path.parent / "never").exists()
    )


def test_usage_errors_are_reported(project: Quick) -> None:
    make_run_notebook(project, "print(1)")
    assert (
        "no kernel backend 'gpu'"
        in project.stepper("verify", "a", "--kernel", "gpu", check=2).stderr
    )
    assert (
        "there is no notebook" in project.stepper("verify", "nothing", check=2).stderr
    )
    project.notebook(
        "r.ipynb",
        [code("1", "a")],
        kernelspec={"name": "ir", "language": "R", "display_name": "R"},
    )
    assert (
        "is 'r', but the selected kernel runs Python"
        in project.stepper("verify", "r", check=1).stderr
    )
    project.notebook(
        "ir.ipynb", [code("x <- 1", "a")], kernelspec={"name": "ir", "display_name": ""}
    )
    refused = project.stepper("verify", "ir", check=1).stderr
    assert "is 'r', but the selected kernel runs Python" in refused
    assert "use notebooks/ir.ipynb --kernel ir  # first install" in refused
    assert "`kernels: {ir: {kernelspec: ir}}` to .stepper/config.yaml" in refused
    (project.folder / "notebooks" / "old.ipynb").write_text(
        '{"nbformat": 3, "worksheets": []}'
    )
    assert "nbformat 3" in project.stepper("verify", "old", check=1).stderr


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("minor", range(5))
def test_notebooks_without_cell_ids(project: Quick, minor: int) -> None:
    notebook = project.notebook("a.ipynb", [code("print(1)"), code("print(2)")], minor)
    project.stepper("run", "a")
    before = notebook.path.read_bytes()
    assert (
        format_verdicts(run_verify(project, check=0)) == "cell-0:same cell-1:same"
        and notebook.path.read_bytes() == before
    )


@pytest.mark.nightly
def test_concurrent_replays_run_sequentially(project: Quick) -> None:
    make_run_notebook(
        project,
        "import os, time\nassert not os.path.exists('busy')\nopen('busy', 'w').close()\ntime.sleep(1)\n"
        "os.remove('busy')\nprint(1)",
    )
    results = list[Any]()
    both = [
        threading.Thread(target=lambda: results.append(ask(project))) for _ in range(2)
    ]
    for item in both:
        item.start()
    for item in both:
        item.join()
    assert [result["reproduces"] for result in results] == [True, True]


@pytest.mark.nightly
def test_waiting_replay_compares_the_edited_notebook(
    project: Quick,
) -> None:
    make_run_notebook(
        project, "import time\ntime.sleep(2)\nprint(1)", name="slow.ipynb"
    )
    notebook = make_run_notebook(project, "print(1)", "print(2)")
    results = list[Any]()
    both = [
        threading.Thread(target=lambda name=name: results.append(ask(project, name)))
        for name in ("slow", "a")
    ]
    both[0].start()
    wait_until(
        lambda: os.path.isdir(project.paths.verify) and os.listdir(project.paths.verify)
    )
    both[1].start()
    time.sleep(0.5)
    change(notebook, lambda cells: cells.reverse())
    for item in both:
        item.join()
    assert [format_verdicts(result) for result in results] == [
        "a:same",
        "b:same a:same",
    ]


def ask(project: Project, name: str = "a") -> Any:
    from stepper.hook import daemon_client

    payload = json.dumps({"notebook": f"notebooks/{name}.ipynb"}).encode()
    return json.loads(
        daemon_client.send_request(project.paths, b"verify", payload) or b"null"
    )


def test_full_disk_is_reported_without_a_verdict(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run_notebook(project, "print(1)")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(replays.shutil, "copyfile", full)
    result = project.stepper("verify", "a", check=1)
    assert (
        "can't be replayed: No space left on device" in result.stderr
        and "df -h" in result.stderr
        and result.stdout == ""
    )
    assert project.json("status", "a")["verified"] is None


def test_unwritable_replay_outputs_give_no_verdict(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run_notebook(project, "print(1)")
    from stepper.notebooks.notebook_file import IpynbFile

    write_execution = IpynbFile.write_execution

    def full(file: IpynbFile, *values: Any) -> str:
        if "verify" in file.path:
            from stepper.common.errors import NotebookError

            raise NotebookError("it can't be written: No space left on device")
        return write_execution(file, *values)

    monkeypatch.setattr(IpynbFile, "write_execution", full)
    assert "the outputs of the replay could not be written" in (
        output := project.stepper("verify", "a", check=1).stderr
    )
    assert "{}" not in output


def test_nested_working_directory_is_copied(project: Quick) -> None:
    (project.folder / "notebooks" / "deep" / "er").mkdir(parents=True)
    (project.folder / "notebooks" / "data.csv").write_text("1")
    (project.folder / "notebooks" / "deep" / "sibling.csv").write_text("2")
    make_run_notebook(project, "print(1)", name="deep/er/a.ipynb")
    result = run_verify(project, "--scratch", name="deep/er/a")
    assert result["reproduces"]


def test_folder_copy_has_a_size_limit(
    project: Quick, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run_notebook(project, "print(1)")
    monkeypatch.setattr(replays, "MAX_SCRATCH_BYTES", 10)
    assert (
        "is larger than the maximum for --scratch, 0.0 GB"
        in project.stepper("verify", "a", "--scratch", check=2).stderr
    )


PLACES = """kernels:
  far: {ssh: {host: nowhere, python: /usr/bin/python3}}
  there: {jupyter: {url: "http://127.0.0.1:1", kernel_id: 0a0b0c0d-1111-2222-3333-444455556666}}
"""


def test_remote_backend_is_reported_before_waiting(project: Quick) -> None:
    make_run_notebook(project, "print(1)")
    project.config(PLACES)
    assert (
        "was not accepted by you"
        in project.stepper("verify", "a", "--kernel", "far", check=1).stderr
    )
    accepted = yaml.safe_load(PLACES)["kernels"]
    trust.save_record(
        project.paths, {"python": sys.executable, "kernels": [*accepted.values()]}
    )
    result = project.stepper("verify", "a", "--kernel", "far")
    assert "the replay uses a separate kernel on far (" in result.stderr
    assert (
        " in 1 fresh kernel (in far); the live kernel was not touched" in result.stdout
    )
    assert project.json("status", "a")["kernel"]["where"] == "", (
        "the notebook's own kernel stays where it is"
    )
    assert (
        "--scratch"
        in project.stepper(
            "verify", "a", "--kernel", "far", "--scratch", check=2
        ).stderr
    )
    project.notebook(
        "r.ipynb",
        [code("1 + 1", "a")],
        kernelspec={"name": "ir", "language": "R", "display_name": "R"},
    )
    assert (
        format_verdicts(run_verify(project, "--kernel", "far", name="r"))
        == "a:not_recorded"
    )
    refused = project.stepper("verify", "a", "--kernel", "there", check=1).stderr
    assert (
        "`kernels.there` is a single existing kernel, but a replay needs a new kernel"
        in refused
    )


def test_symlinked_replay_folder_is_refused(project: Quick, tmp_path: Path) -> None:
    make_run_notebook(project, "print(1)")
    other_folder = tmp_path / "others"
    (other_folder / "kept").mkdir(parents=True)
    os.symlink(other_folder, project.paths.verify)
    assert "can't be replayed" in project.stepper("verify", "a", check=1).stderr
    project.kill_daemon()
    assert secure_files.list_names(project.paths.verify) == [], (
        "the files belong to other users"
    )
    assert os.listdir(other_folder) == ["kept"]


def test_leftovers_of_a_killed_daemon_are_removed(
    project: Quick, tmp_path: Path
) -> None:
    secure_files.replace(
        os.path.join(project.paths.verify, "123-1", "0", "kernel.json"), b"{}"
    )
    secure_files.replace(
        os.path.join(project.paths.verify, "123-1", "scratch", "a.csv"), b"1"
    )
    result = asyncio.run(
        replays.remove_workspaces(
            project.paths, secure_files.list_names(project.paths.verify), dict
        )
    )
    assert result == []
    assert os.listdir(project.paths.verify) == []


def test_progress_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with RunProgress(quiet=False) as progress:
        for position, of in ((1, 3), (2, 3), (4, 6)):
            progress(
                responses.to_json(
                    progress_events.CellStarted(cell=position, position=position, of=of)
                )
            )
            (task,) = progress.bar.tasks
            assert (task.completed, task.total, task.description) == (
                position - 1,
                of,
                f"cell {position}",
            )


# --- with kernels that are processes --------------------------------------------------


def test_verify_with_real_kernels(real: Project) -> None:
    (real.folder / "data.txt").write_text("42")
    notebook = make_run_notebook(
        real,
        "import os\nprint(open('../data.txt').read())",
        "print({'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'})",
        "open('out.csv', 'w').write('1')\nos.getpid() and None",
        "print(object())",
    )
    pid, before = real.json("status", "a")["kernel"]["pid"], notebook.path.read_bytes()
    result = run_verify(real, check=1)
    assert (
        format_verdicts(result) == "a:same b:unstable c:same d:same"
        and result["kernels"] == 2
    )
    assert result["files"] == [
        {"name": "out.csv", "change": "same", "text": "rewritten with the same content"}
    ]
    os.remove(real.folder / "notebooks" / "out.csv")
    assert run_verify(real, "--scratch")["files"] == [
        {"name": "out.csv", "change": "new", "text": "new"}
    ]
    assert (
        not (real.folder / "notebooks" / "out.csv").exists()
        and (real.folder / "data.txt").read_text() == "42"
    )
    assert (
        real.json("status", "a")["kernel"]["pid"] == pid
        and notebook.path.read_bytes() == before
    )
    assert len(kernels(real)) == 1, "only the notebook's own kernel"


@pytest.mark.nightly
def test_third_kernel_runs_if_two_agree_by_chance(real: Project) -> None:
    # Two fresh runs agree on the first line only by chance.
    drawn = "import os\nprint(os.environ.get('PYTHONHASHSEED') in ('0', '1'))\nprint(os.getpid())"
    make_run_notebook(real, drawn, "print(2)", name="drawn.ipynb")
    found_of_it = run_verify(real, name="drawn", check=1)
    assert (
        format_verdicts(found_of_it) == "a:unstable b:same"
        and found_of_it["kernels"] == 3
    )
    assert run_verify(real, "--once", name="drawn", check=1)["kernels"] == 1


@pytest.mark.nightly
def test_third_kernel_runs_if_a_changed_cell_creates_a_set(real: Project) -> None:
    # Two fresh runs agree by chance, as on the first element of a small set.
    printed = "import os\nprint(os.environ.get('PYTHONHASHSEED') in ('0', '1'))"
    make_run_notebook(real, printed, f"{{'a', 'b'}}\n{printed}", name="sets.ipynb")
    result = run_verify(real, name="sets", check=1)
    assert format_verdicts(result) == "a:changed b:unstable"
    assert result["kernels"] == 3


def kernels(project: Project) -> list[int]:
    """The processes of kernels whose cells run in the project."""
    results = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if MARKER in process.environ() and process.cwd().startswith(
                str(project.folder)
            ):
                results.append(process.pid)
    return results


def start_replay(project: Project, name: str) -> subprocess.Popen[str]:
    """A replay under way, in its first cell, which waits for ever."""
    command = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        "verify",
        name,
    ]
    pipes: dict[str, Any] = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    (project.folder / "notebooks" / "waits").touch()
    doing = subprocess.Popen(command, cwd=project.folder, **pipes)
    wait_until((project.folder / "notebooks" / "begun").exists, 20)
    return doing


WAITS = "import os, time\nif os.path.exists('waits'):\n    open('begun', 'w').close()\n    time.sleep(25)\nprint(1)"


def test_ctrl_c_cancels_the_replay(real: Project) -> None:
    make_run_notebook(real, WAITS, name="ctrlit2.ipynb")
    doing = start_replay(real, "ctrlit2")
    doing.send_signal(signal.SIGINT)
    out, err = doing.communicate(timeout=120)
    assert doing.returncode == 130 and "the replay was interrupted" in err and out == ""
    wait_until(lambda: len(kernels(real)) == 1)
    assert real.json("status", "ctrlit2")["verified"] is None and not os.listdir(
        real.paths.verify
    )


@pytest.mark.nightly
def test_readme_notebook_reproduces(tmp_path: Path) -> None:
    python = environment(sys.executable, *demo.PACKAGES)
    data = json.loads(
        subprocess.run(
            [python, "-c", demo.PROBE], capture_output=True, text=True, check=True
        ).stdout
    )
    for new_project in scratch(tmp_path / "repo"):
        trust.save_record(new_project.paths, {"python": python})
        shutil.copyfile(data[1][0], new_project.folder / demo.DATA)
        make_run_notebook(new_project, *(step.code for step in demo.STEPS))
        out = new_project.stepper("verify", "a").stdout
        assert (
            "REPRODUCES · 7 of 7 cells as recorded · " in out
            and " in 1 fresh kernel; " in out
        )
        assert f"  · file {demo.RESULT}: rewritten with the same content" in out
        change(
            Notebook(new_project, new_project.folder / "notebooks" / "a.ipynb"),
            lambda cells: cells.pop(3),
        )
        out = new_project.stepper("verify", "a", check=1).stdout
        assert (
            "NameError: name 'weather' is not defined (`weather` was defined in cell 4, which was deleted)"
            in out
        )


@pytest.mark.nightly
def test_killed_client_cancels_the_replay(real: Project) -> None:
    make_run_notebook(real, WAITS, name="ait4.ipynb")
    doing = start_replay(real, "ait4")
    doing.kill()
    doing.communicate()
    wait_until(
        lambda: len(kernels(real)) == 1 and not os.listdir(real.paths.verify), 20
    )


@pytest.mark.nightly
def test_killed_daemon_leaves_nothing_behind(real: Project) -> None:
    make_run_notebook(real, WAITS, name="abeh5.ipynb")
    doing = start_replay(real, "abeh5")
    real.kill_daemon()
    out, err = doing.communicate(timeout=120)
    assert doing.returncode == 3 and "the stepper daemon exited" in err and out == ""
    wait_until(lambda: len(kernels(real)) == 1, 20)  # without any daemon
    assert real.json("status", "abeh5")["verified"] is None
    wait_until(lambda: not os.listdir(real.paths.verify), 20)


@pytest.mark.nightly
def test_shutdown_cancels_the_replay(real: Project) -> None:
    make_run_notebook(real, WAITS, name="shutdownit7.ipynb")
    doing = start_replay(real, "shutdownit7")
    real.stepper("shutdown")
    assert doing.wait(20) in (1, 3)
    assert kernels(real) == []


@pytest.mark.nightly
def test_unusual_cells(real: Project) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serves = f"import socket\nheld = socket.socket()\nheld.bind(('127.0.0.1', {port}))\nprint('ok')"
    for source, expected in (
        (serves, "OSError: [Errno 98] Address already in use"),
        ("input('name? ')", "EOFError|StdinNotImplementedError"),
        ("# stepper: timeout=1s\nwhile True: pass", "timed out after 1.00 s"),
        ("import os\nos.kill(os.getpid(), 9)", "KernelDied"),
    ):
        notebook = real.notebook(
            "odd.ipynb", [code(source, "a"), code("print(2)", "b")]
        )
        real.stepper("run", "odd", check=None)
        change(
            notebook,
            lambda cells: [
                cell.update(execution_count=1, outputs=[]) for cell in cells
            ],
        )
        result = run_verify(real, name="odd", check=1)
        verdicts = "a:failed b:not_run"
        if "Address" in expected or "EOF" in expected:
            verdicts = "a:failed b:changed"  # b was recorded without its output
        if "timed out" in expected:
            verdicts = "a:not_judged b:not_run"
        assert format_verdicts(result) == verdicts
        difference = result["cells"][0]["difference"]
        assert any(item in difference for item in expected.split("|")), result["cells"][
            0
        ]
        living = "(the notebook's own kernel may use the address; to shut down that kernel, run: stepper shutdown notebooks/odd.ipynb)"
        assert (
            difference.endswith(living) == (source is serves)
            and "restore" not in difference
        )
        real.stepper("shutdown", "odd")


@pytest.mark.nightly
def test_real_full_disk(real: Project, small_disk: Path) -> None:
    """The one on which the replay's copy lies, and what it showed."""
    make_run_notebook(
        real,
        "import os\nprint('x' * (600_000 if os.path.exists('more') else 1))",
        name="full.ipynb",
    )
    os.makedirs(real.paths.verify, 0o700, exist_ok=True)
    small_disk.chmod(0o700)
    subprocess.run(["mount", "--bind", str(small_disk), real.paths.verify], check=True)
    try:
        (small_disk / "fill").write_bytes(b"x" * 600_000)
        assert "REPRODUCES" in real.stepper("verify", "full").stdout
        (real.folder / "notebooks" / "more").touch()
        result = real.stepper("verify", "full", check=1)
        assert (
            "the outputs of the replay could not be written" in result.stderr
            and result.stdout == ""
        )
        with open(small_disk / "fill", "ab", 0) as stream, pytest.raises(OSError):
            while True:
                stream.write(b"x" * 4096)
        result = real.stepper("verify", "full", check=1)
        assert (
            "can't be replayed: No space left on device" in result.stderr
            and result.stdout == ""
        )
        assert os.listdir(small_disk) == ["fill"] and len(kernels(real)) == 1
        assert "verified" in real.stepper("status", "full").stdout, (
            "the last complete verdict"
        )
    finally:
        subprocess.run(["umount", "-l", real.paths.verify], check=True)


PEOPLE = """import datetime, logging, os, random, sys, tempfile, time, uuid, warnings
import ipywidgets, numpy as np, pandas as pd, plotly.graph_objects as go
from IPython.display import HTML, Javascript
from tqdm import tqdm
import matplotlib.pyplot as plt
%matplotlib inline
class A: pass
df = pd.DataFrame({'a': [1.5, np.nan, 1e-6], 'b': pd.date_range('2020', periods=3)})"""
SAME = (
    "np.random.default_rng(0).normal(size=3)",
    "{*'abc'}",
    "{'a': A(), 'b': [A()]}",
    "df",
    "df.info()",
    "plt.plot([1, 2, 3])",
    "plt.subplots(2)[1]",
    "df.groupby('a')",
    "(i for i in 'ab')",
    "lambda x: x",
    "A().__init__",
    "warnings.warn('careful')\nprint(1)",
    "for i in tqdm(range(5)): time.sleep(.01)",
    "for i in tqdm(range(5), file=sys.stdout): time.sleep(.01)",
    "%timeit -n 10 -r 2 sum(range(1000))",
    "%time sum(range(9))",
    "%%time\nsum(range(9))",
    "print('a   \\n\\n\\n', -0.0, float('inf'))",
    "HTML(go.Figure(go.Bar(x=['a'], y=[1])).to_html(include_plotlyjs=False))",
    "ipywidgets.IntSlider(value=7)",
    "uuid.uuid4()",
    "print(tempfile.mkdtemp())",
    "HTML(f'<div id=\"{uuid.uuid4().hex}\">hello</div>')",
    "HTML(f'<table id=\"T_{uuid.uuid4().hex[:5]}\"></table>')",
    "Javascript('console.log(1)')",
    "print('oops', time.time(), file=sys.stderr)",
    "!echo hi",
)
UNSTABLE = (
    "print('made at', datetime.datetime.now())",
    "random.random()",
    "print({*'abcdefgh'})",
    "for x in {*'abcdefgh'}: print(x)",
    "logging.basicConfig(stream=sys.stdout, format='%(asctime)s %(message)s')\nlogging.error('got %r', A())",
    "t = time.perf_counter()\ntime.sleep(.01)\nprint(f'took {time.perf_counter() - t:.6f} s')",
    "os.getpid()",
    "plt.scatter(np.random.rand(5), np.random.rand(5)); plt.show()",
    "df.assign(c=np.random.rand(3))",
)


@pytest.mark.nightly
def test_typical_notebook_contents(tmp_path: Path) -> None:
    python = environment(
        sys.executable, "pandas", "matplotlib", "plotly", "tqdm", "ipywidgets"
    )
    for new_project in scratch(tmp_path / "repo"):
        trust.save_record(new_project.paths, {"python": python})
        for name, text in (("title", "Rain"), ("colour", "navy"), ("bars", "3 4")):
            (new_project.folder / "notebooks" / name).write_text(text)
        figure = "plt.bar([1, 2], [int(n) for n in open('bars').read().split()], color=open('colour').read())\n"
        sources = (PEOPLE, *SAME, *UNSTABLE)
        new_project.notebook("a.ipynb", [code(source) for source in sources], minor=4)
        new_project.stepper("run", "a")
        verdicts = dict(
            zip(
                sources,
                (cell["verdict"] for cell in run_verify(new_project, check=1)["cells"]),
                strict=True,
            )
        )
        wrong = {
            source: verdict
            for source, verdict in verdicts.items()
            if (verdict == "unstable") != (source in UNSTABLE)
        }
        assert not wrong and {*verdicts.values()} == {"same", "unstable"}
        draw = f"import matplotlib.pyplot as plt\n{figure}plt.title(open('title').read())\nplt.show()"
        make_run_notebook(new_project, draw, name="figure.ipynb")
        for name, text, expected in (
            ("title", "Snow", 'figure 1: "Rain"'),
            ("colour", "green", "% of its pixels differ"),
            ("bars", "3 5", "y 0 to"),
        ):
            path = new_project.folder / "notebooks" / name
            before, _ = path.read_text(), path.write_text(text)
            (cell,) = run_verify(new_project, name="figure", check=1)["cells"]
            assert cell["verdict"] == "changed" and expected in cell["difference"], cell
            path.write_text(before)


@pytest.mark.nightly
def test_output_of_50_megabytes(real: Project) -> None:
    """Another program recorded the whole output; the replay accepts as much."""
    notebook = real.notebook(
        "large.ipynb",
        [
            code(
                "print('\\n'.join(f'{n:08} ' + 'x' * 60 for n in range(700_000)))", "a"
            ),
            code("print(2)", "b"),
        ],
    )

    def recorded(cells: Any) -> None:
        text = "".join(f"{n:08} {'x' * 60}\n" for n in range(700_000))
        cells[0].update(
            execution_count=1,
            outputs=[{"output_type": "stream", "name": "stdout", "text": text}],
        )
        cells[1].update(
            execution_count=2,
            outputs=[{"output_type": "stream", "name": "stdout", "text": "2\n"}],
        )

    change(notebook, recorded)
    assert format_verdicts(run_verify(real, name="large", check=0)) == "a:same b:same"
    change(
        notebook,
        lambda cells: cells[0]["outputs"][0].update(
            text=cells[0]["outputs"][0]["text"]
            .replace("7\n", "8\n")
            .replace("00007 x", "00008 x")
        ),
    )
    assert (
        format_verdicts(run_verify(real, name="large", check=1)) == "a:changed b:same"
    )


@pytest.mark.nightly
def test_pager_output_is_ignored(real: Project) -> None:
    notebook = make_run_notebook(real, "x = 1", "print(x)\nx?", name="pager.ipynb")
    assert format_verdicts(run_verify(real, name="pager", check=0)) == "a:same b:same"
    assert len(notebook.raw["cells"][1]["outputs"]) == 2
    change(notebook, lambda cells: cells[1]["outputs"].pop())
    assert format_verdicts(run_verify(real, name="pager", check=0)) == "a:same b:same"
    change(notebook, lambda cells: cells[1]["outputs"].pop())
    assert (
        format_verdicts(run_verify(real, name="pager", check=1)) == "a:same b:changed"
    )


@pytest.mark.nightly
def test_changed_environment_is_reported(real: Project, tmp_path: Path) -> None:
    # Outside the project: the version of a module of the project is a hash of its source.
    packages = tmp_path / "my-packages"
    add_to_path = f"import sys\nsys.path.append({str(packages)!r})\n"
    folder = packages / "rainy"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("__version__ = '3.1.0'\n")
    make_run_notebook(
        real, f"{add_to_path}import rainy\nprint(1)", name="changed.ipynb"
    )
    (folder / "__init__.py").write_text("__version__ = '3.1.1'\n")
    # Its mtime and size can equal those of the new source.
    shutil.rmtree(folder / "__pycache__")
    assert run_verify(real, name="changed", check=0)["packages"] == [
        {"name": "rainy", "then": "3.1.0", "now": "3.1.1"}
    ]
    assert (
        "  · package rainy: 3.1.0 then, 3.1.1 now"
        in real.stepper("verify", "changed").stdout
    )
    # A module without `__version__` has the version of its installed distribution.
    (packages / "Windy-2.0.dist-info").mkdir()
    (packages / "windy.py").touch()
    make_run_notebook(
        real, f"{add_to_path}import windy\nprint(1)", name="installed.ipynb"
    )
    (packages / "Windy-2.0.dist-info").rename(packages / "windy-2.1.dist-info")
    assert run_verify(real, name="installed", check=0)["packages"] == [
        {"name": "windy", "then": "2.0", "now": "2.1"}
    ]


@pytest.mark.nightly
def test_another_local_kernelspec(real: Project) -> None:
    real.config("kernels:\n  bash: {kernelspec: bash}\n")
    real.stepper("trust", "--yes", check=None)
    make_run_notebook(real, "print(1)", name="another.ipynb")
    result = run_verify(real, "--kernel", "local", name="another", check=0)
    assert result["where"] == "" and result["reproduces"]


def test_file_that_is_removed_while_the_working_directory_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stepper removes the temporary file of a write in the background."""
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_text("1")
    (tmp_path / "from" / "temporary").write_text("2")
    copy = shutil.copy2

    def remove_first(source: str, target: str) -> None:
        if source.endswith("temporary"):
            os.unlink(source)
        copy(source, target)

    monkeypatch.setattr(replays.shutil, "copy2", remove_first)
    shutil.copytree(
        tmp_path / "from",
        tmp_path / "to",
        copy_function=replays._copy_existing,
    )
    assert os.listdir(tmp_path / "to") == ["a"]


def test_error_of_a_copy_names_the_file() -> None:
    error = shutil.Error([("data.csv", "copy/data.csv", "Permission denied")])
    assert replays._explain(error) == "data.csv can't be copied: Permission denied"
