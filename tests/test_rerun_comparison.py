"""`run --all` and `restore` name outputs that differ from the recorded ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from stepper.kernels.outputs import image_diff
from stepper.messages import changed_outputs
from stepper.policy.comparison import clock_values, rerun_comparison
from stepper.policy.comparison.clock_values import RunTime
from stepper.policy.comparison.output_items import (
    CellOutputs,
)
from stepper.policy.comparison.rerun_comparison import ChangedOutput
from tests.conftest import Notebook, Project, reuse_project
from tests.verify.pairs import PAIRS, Pair, make_result, make_stream

# 2026-11-24 10:15:30 UTC; the cell ran for a second
BEGAN = datetime(2026, 11, 24, 10, 15, 30, tzinfo=timezone.utc).timestamp()
QUIET = RunTime(BEGAN, 1.0)
TIMED = RunTime(BEGAN, 1.0, reads_clock=True)


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


def is_different(recorded: str, fresh: str, run: RunTime = QUIET) -> bool:
    """Return whether texts differ, as printed output and as the value of a cell."""
    differences = {
        rerun_comparison.find_difference(
            CellOutputs(make(recorded)), CellOutputs(make(fresh)), run, lambda *_: None
        )
        is not None
        for make in (make_stream, make_result)
    }
    assert len(differences) == 1
    return differences.pop()


@pytest.mark.parametrize(
    ("recorded", "fresh"),
    [
        ("2026-11-23 08:00:00.123456", "2026-11-24 10:15:31.000000"),
        ("run at 2026-11-23T08:00:00+00:00, 3 rows", "run at 2026-11-24T11:15:30+01:00, 3 rows"),
        ("2026-11-23 08:00", "2026-11-24 15:45"),  # India: UTC+05:30
        ("report of 2026-11-20", "report of 2026-11-24"),
        ("run_20261123_080000.csv", "run_20261124_101530.csv"),
        ("Mon Nov 23 08:00:00 2026", "Tue Nov 24 10:15:30 2026"),
        ("datetime.datetime(2026, 11, 23, 8, 0, 0, 5)", "datetime.datetime(2026, 11, 24, 10, 15, 30, 7)"),
        ("08:00:00 INFO loaded", "10:15:31 INFO loaded"),
        ("1795420800.25", f"{BEGAN + 0.5}"),
        ("32/32 - 1s - loss: 0.5 - 20ms/step", "32/32 - 2s - loss: 0.5 - 35ms/step"),
        ("<object at 0x7f1234567890>", "<object at 0x7f0987654321>"),
        ("{'b', 'a'}", "{'a', 'b'}"),
        ("0.1000000001", "0.1"),
    ],
)  # fmt: skip
def test_always_different_output_is_not_reported(recorded: str, fresh: str) -> None:
    assert not is_different(recorded, fresh)


@pytest.mark.parametrize(
    ("recorded", "fresh"),
    [
        ("2026-11-23 08:00:00", "2026-11-22 08:00:00"),  # dates in the data
        ("last order 2024-03-31", "last order 2024-04-30"),
        ("2026-11-23 08:00:00 3 rows", "2026-11-24 10:15:30 4 rows"),
        ("08:00:00 INFO loaded", "10:22:31 INFO loaded"),
        ("1795420800", "1795420801"),
        ("mean delay 53 ms", "mean delay 61 ms"),
        ("loss: 0.5 - 20ms/step", "loss: 0.4 - 21ms/step"),
        ("b a", "a b"),
        ("3945429.87", "3652384.8"),
        ("took 1.5 s", "took 1.5 s\nmore"),
        ("1.5E+400", "2.5E+400"),  # of a Decimal
        (f"datetime.datetime(2026, 11, 24, 10, {10**20})", f"datetime.datetime(2026, 11, 24, 10, {10**21})"),
    ],
)  # fmt: skip
def test_different_values_are_reported(recorded: str, fresh: str) -> None:
    assert is_different(recorded, fresh)


def test_comment_with_a_question_opens_no_pager() -> None:
    fresh = CellOutputs([{"output_type": "display_data", "data": {"text/plain": "a"}}])
    for source in ("# why?\ndisplay(x)", "display(x)  # why?"):
        assert rerun_comparison.remove_pager_text(source, [], fresh) == fresh
    for source in ("x?", "a = 1\nx.y?  ", "?x", " %pinfo x"):
        assert rerun_comparison.remove_pager_text(source, [], fresh).outputs == []


def test_display_without_data_is_not_the_text_of_a_pager() -> None:
    fresh = CellOutputs([{"output_type": "display_data", "data": {"text/plain": "a"}}])
    recorded = [{"output_type": "display_data", "data": None}]
    assert rerun_comparison.remove_pager_text("a?", recorded, fresh).outputs == []


def test_timestamp_before_a_long_run_is_reported() -> None:
    run = RunTime(BEGAN, 100.0)
    assert not is_different("1795420800.25", f"{BEGAN + 60}", run)
    assert is_different("1795420800.25", f"{BEGAN - 60}", run)


def test_date_at_the_end_of_a_long_run_is_not_reported() -> None:
    run = RunTime(BEGAN, 5 * 86400.0)
    assert not is_different("report of 2026-11-10", "report of 2026-11-29", run)
    assert is_different("report of 2026-11-10", "report of 2026-12-03", run)
    assert is_different("report of 2026-11-10", "report of 2026-11-21", run)


@pytest.mark.parametrize(
    ("recorded", "fresh", "expected"),
    [
        ("took 1.52 s", "took 13.1 s", False),
        ("elapsed: 1.52", "elapsed: 2.61", False),
        ("1.52 seconds for 3 rows", "2.61 seconds for 3 rows", False),
        ("0:00:01.520000", "0:00:02.610000", False),
        ("1,200 rows/s", "1,900 rows/s", False),
        ("score 0.91, time 1.52", "score 0.91, time 2.61", False),
        ("score 0.91, time 1.52", "score 0.92, time 1.52", True),
        ("1.52 seconds for 3 rows", "2.61 seconds for 4 rows", True),
        ("0.91", "0.92", True),
    ],
)
def test_durations_of_a_cell_that_reads_the_clock(
    recorded: str, fresh: str, expected: bool
) -> None:
    assert is_different(recorded, fresh, TIMED) is expected
    assert is_different(recorded, fresh, QUIET)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
@pytest.mark.parametrize("reads_clock", [False, True])
def test_pairs_of_verify_without_a_second_fresh_run(
    pair: Pair, reads_clock: bool
) -> None:
    run = RunTime(time.time(), 1.0, reads_clock)
    difference = rerun_comparison.find_difference(
        CellOutputs(pair.recorded),
        CellOutputs(pair.fresh),
        run,
        image_diff.compare_pixels,
    )
    assert (difference is not None) is pair.real


def test_cells_that_read_the_clock() -> None:
    timer = "import time\ndef timed(f):\n    begin = time.perf_counter()\n"
    assert clock_values.reads_clock("print(datetime.now())", [])
    assert clock_values.reads_clock("timed(load)", [timer])
    assert not clock_values.reads_clock("load()", [timer])
    assert not clock_values.reads_clock("df['time'].mean()", ["x = 1"])


def test_report_lines_are_bounded() -> None:
    some = [ChangedOutput(n, f"c{n}", "1 line differs", ("- 1", "+ 2")) for n in range(1, 40)]  # fmt: skip
    lines = changed_outputs.format_changed_outputs(some)
    assert lines[:4] == [
        "The outputs of 39 cells differ from those recorded before:",
        "cell 1: 1 line differs:",
        "| - 1",
        "| + 2",
    ]
    assert len(lines) == 17
    assert lines[-1].startswith("and 34 more cells: 6, 7,")
    assert lines[-1].endswith("25, …")
    assert changed_outputs.format_changed_outputs([]) == []


def make_run_notebook(project: Project, *sources: str) -> Notebook:
    """Return a notebook whose cells ran."""
    notebook = project.new()
    for source in sources:
        notebook.insert(source)
    return notebook


def test_changed_file_shows_as_differing_outputs(project: Project) -> None:
    data = project.folder / "notebooks" / "sales.csv"
    data.write_text("10\n20\n")
    notebook = make_run_notebook(
        project,
        "values = [int(line) for line in open('sales.csv')]",
        "print('rows', len(values))\nsum(values)",
        "import time; time.strftime('%Y-%m-%d %H:%M:%S')",
        "object()",
        "print('the same')",
    )
    name = notebook.path.name
    for command in (("run", name, "--all"), ("restore", name)):
        text = project.stepper(*command).stdout
        assert "5 of 5 cells ran ok\n" in text and "differ" not in text
    assert project.json("restore", name)["changed_outputs"] == []
    data.write_text("10\n25\n")
    assert project.stepper("run", name, "--all").stdout.endswith(
        "5 of 5 cells ran ok\n"
        "The outputs of 1 cell differ from those recorded before:\n"
        "cell 2: 1 line differs:\n| - 30\n| + 35\n"
        "To check whether a new kernel reproduces the new outputs, run:"
        f" `stepper verify notebooks/{name}`\n"
    )
    assert "differ" not in project.stepper("run", name, "--all").stdout
    data.write_text("10\n26\n7\n")
    response = project.json("restore", name)
    (changed,) = response["changed_outputs"]
    assert response["ok"] and changed == {
        "cell": 2,
        "cell_id": notebook.raw["cells"][-4]["id"],
        "difference": "2 lines differ",
        "lines": ["- rows 2", "- 35", "+ rows 3", "+ 43"],
    }


@pytest.mark.nightly
def test_output_of_threads_and_later_cells_is_not_a_difference(
    project: Project,
) -> None:
    notebook = make_run_notebook(
        project,
        "import threading, time\n"
        "def late():\n    time.sleep(0.2)\n    print('later')\n"
        "threading.Thread(target=late).start()\nprint('now')",
        "handle = display('one', display_id=True)",
        "handle.update('two')",
    )
    deadline = time.monotonic() + 120
    while "later" not in notebook.path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert project.json("run", notebook.path.name, "--all")["changed_outputs"] == []


@pytest.mark.nightly
def test_outputs_of_another_source_are_not_compared(project: Project) -> None:
    notebook = make_run_notebook(project, "x = 1", "print(x)", "print('a')")
    raw = notebook.raw
    raw["cells"][-2]["source"] = "print(x + 1)"
    raw["cells"][-1]["outputs"] = []
    raw["cells"][-1]["execution_count"] = None
    notebook.path.write_text(json.dumps(raw))
    assert project.json("run", notebook.path.name, "--all")["changed_outputs"] == []


@pytest.mark.nightly
def test_nondeterministic_cell_is_not_reported(
    project: Project,
) -> None:
    notebook = make_run_notebook(
        project, "import random\nrandom.random()", "print('a')"
    )
    name = notebook.path.name
    changed = project.json("run", name, "--all")["changed_outputs"]
    assert [item["cell"] for item in changed] == [1]
    project.stepper("verify", name, check=1)
    assert project.json("run", name, "--all")["changed_outputs"] == []


@pytest.mark.nightly
def test_cells_before_a_failing_one_are_reported(project: Project) -> None:
    data = project.folder / "notebooks" / "n.txt"
    data.write_text("3")
    notebook = make_run_notebook(
        project, "n = int(open('n.txt').read())\nprint(n)", "print(6 / n)"
    )
    data.write_text("0")
    result = project.stepper("run", notebook.path.name, "--all", check=1)
    assert "cell 1: 1 line differs:\n| - 3\n| + 0\n" in result.stdout
    assert "cell 2: 1 line" not in result.stdout and "verify" not in result.stdout


@pytest.mark.nightly
def test_different_figure_is_reported(project: Project) -> None:
    source = (
        "import base64, zlib, struct\nfrom IPython.display import Image\n"
        "def png(value):\n"
        "    def part(kind, data):\n"
        "        crc = zlib.crc32(kind + data)\n"
        "        return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', crc)\n"
        "    head = struct.pack('>IIBBBBB', 2, 2, 8, 0, 0, 0, 0)\n"
        "    rows = zlib.compress(b''.join(b'\\0' + bytes([value, 0]) for _ in range(2)))\n"
        "    return b'\\x89PNG\\r\\n\\x1a\\n' + part(b'IHDR', head) + part(b'IDAT', rows) + part(b'IEND', b'')\n"
        "Image(png(int(open('grey.txt').read())))"
    )
    grey = project.folder / "notebooks" / "grey.txt"
    grey.write_text("10")
    notebook = make_run_notebook(project, source)
    assert "image/png" in notebook.path.read_text()
    assert project.json("run", notebook.path.name, "--all")["changed_outputs"] == []
    grey.write_text("200")
    text = project.stepper("run", notebook.path.name, "--all").stdout
    assert "cell 1: figure 1: 50 % of its pixels differ\nTo check" in text
