"""Output after the end of a run is saved in the right cell, reported and never lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.conftest import Notebook, Project, mark_nightly, reuse_project, text_of

# Writes LATE until the file `stop` exists. An asyncio task writes for the cell that
# started it; a thread, timer or child that ipykernel can't assign writes for the
# running cell, else for the last one.
TASK = """
import asyncio, os

async def late():
    while not os.path.exists('stop'):
        {write}
        await asyncio.sleep(0.005)
    open('stopped', 'w').close()

task = asyncio.get_running_loop().create_task(late())
print('first')
"""
THREAD = """
import os, threading, time

def late():
    while not os.path.exists('stop'):
        {write}
        time.sleep(0.005)
    open('stopped', 'w').close()

thread = threading.Thread(target=late)
thread.start()
print('first')
"""
CHILD = """
import subprocess, sys, time
source = '''
import os, time
while not os.path.exists("stop"):
    os.write({number}, b"LATE\\\\n")
    time.sleep(0.005)
open("stopped", "w").close()
'''
child = subprocess.Popen([sys.executable, '-c', source])
print('first')
"""
FORK = """
import multiprocessing, os, time

def late():
    while not os.path.exists('stop'):
        print('LATE', flush=True)
        time.sleep(0.02)
    open('stopped', 'w').close()

child = multiprocessing.get_context('fork').Process(target=late)
child.start()
print('first')
"""
WAIT = "import asyncio\nfor i in range(50): print('mine', i); await asyncio.sleep(0.01)"
STOP = """
open('stop', 'w').close()
import os, time, asyncio
while not os.path.exists('stopped'): await asyncio.sleep(0.01)
print('third')
"""


WRITES = (
    "print('LATE')",
    "print('LATE', file=__import__('sys').stderr)",
    "display('LATE')",
)
UNTOLD = {
    "a thread": THREAD.format(write="print('LATE')"),
    "a thread that displays": THREAD.format(write="display('LATE')"),
    "a child": CHILD.format(number=1),
    "a child on stderr": CHILD.format(number=2),
    "a fork": FORK,
}


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    """One daemon for all tests of this module; each test has its own notebook."""
    yield from reuse_project(module_project)


@pytest.fixture
def notebook(project: Project) -> Notebook:
    return project.new()


def wait_until_true(check: Callable[[], Any], seconds: float = 120) -> Any:
    """Wait until a value is true and return it."""
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return value


def get_output_text(notebook: Notebook, cell_id: str) -> str:
    """Return the text of a cell's outputs."""
    data = [
        out["data"].get("text/plain", "")
        for out in notebook.cell(cell_id)["outputs"]
        if "data" in out
    ]
    return text_of(notebook.cell(cell_id)) + "".join(map("".join, data))


def run_background_writer(notebook: Notebook, first: str) -> tuple[list[str], str]:
    """Run a background writer and two cells; return their outputs and the reports."""
    for name in ("stop", "stopped"):  # from the previous test
        (notebook.path.parent / name).unlink(missing_ok=True)
    cells, texts = [], []
    for source in (first, WAIT, STOP):
        cell, response = notebook.insert(source)
        cells.append(cell)
        texts.append(response.text)
    notebook.insert("await asyncio.sleep(0.3)")
    notebook.project.stepper("shutdown")
    return [get_output_text(notebook, cell) for cell in cells], "\n".join(texts)


@pytest.mark.nightly
@pytest.mark.parametrize("write", mark_nightly(WRITES, "print('LATE')"))
def test_background_task_writes_to_its_own_cell(notebook: Notebook, write: str) -> None:
    (first, second, third), reports = run_background_writer(
        notebook, TASK.format(write=write)
    )
    assert "first" in first and first.count("LATE") > 20
    assert "LATE" not in second + third and second.count("mine") == 50
    assert (
        " arrived for cell 1 (id " in reports
        and "after its run; the notebook was updated" in reports
    )


@pytest.mark.nightly
@pytest.mark.parametrize("writer", mark_nightly(UNTOLD, "a thread", "a child"))
def test_unattributable_output_goes_to_the_running_cell(
    notebook: Notebook, writer: str
) -> None:
    (first, second, third), _ = run_background_writer(notebook, UNTOLD[writer])
    assert "first" in first and second.count("mine") == 50 and "third" in third
    assert "LATE" in first + second + third


def test_late_output_is_written_soon_and_reported_next(
    notebook: Notebook,
) -> None:
    cell, response = notebook.insert(
        "import os, threading, time\ndef late():\n"
        "    while not os.path.exists('reported'): time.sleep(0.01)\n"
        "    print('LATE')\nprint('in time')\nthreading.Thread(target=late).start()"
    )
    before = notebook.path.stat().st_mtime_ns
    (notebook.path.parent / "reported").touch()
    wait_until_true(lambda: "LATE" in text_of(notebook.cell(cell)))
    assert (
        text_of(notebook.cell(cell)) == "in time\nLATE\n"
        and len(notebook.cell(cell)["outputs"]) == 1
    )
    assert notebook.path.stat().st_mtime_ns == before, (
        "the client may be about to edit it"
    )
    assert "LATE" in notebook.project.stepper("output", cell).stdout
    _, response = notebook.insert("1")
    assert (
        f"Note: 5 characters arrived for cell 1 (id {cell}) after its run; the notebook was"
        " updated." in response.text
    )
    _, response = notebook.insert("2")
    assert "after its run" not in response.text, "it is reported once"
    journal = (
        notebook.project.folder / ".stepper" / "journal" / f"{notebook.path.stem}.jsonl"
    )
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    (late,) = [line for line in lines if line["event"] == "late"]
    assert (late["cell_id"], late["characters"], late["there"]) == (cell, 5, True)


@pytest.mark.nightly
def test_late_output_is_written_at_most_every_two_seconds(notebook: Notebook) -> None:
    notebook.insert(THREAD.format(write="print('LATE')"))
    files, end = set(), time.monotonic() + 6.5
    while time.monotonic() < end:
        files.add(notebook.path.stat().st_ino)
        time.sleep(0.02)
    assert 2 <= len(files) <= 5, files
    notebook.insert("open('stop', 'w').close()")


@pytest.mark.nightly
def test_concurrent_edit_keeps_late_output(
    notebook: Notebook,
) -> None:
    cell_id, _ = notebook.insert(
        "import threading\nthreading.Timer(1, print, ['late']).start()"
    )
    before = notebook.path.read_text()
    wait_until_true(lambda: get_output_text(notebook, cell_id) == "late\n")
    notebook.path.write_text(
        before.replace(
            '"cells": [',
            '"cells": [{"cell_type": "markdown", "id": "m", "metadata": {}, "source": "hi"},',
            1,
        )
    )
    wait_until_true(lambda: get_output_text(notebook, cell_id) == "late\n")
    assert notebook.raw["cells"][0]["source"] == "hi"


@pytest.mark.nightly
def test_late_output_counts_toward_the_limit_of_its_cell(project: Project) -> None:
    project.config("max_output_bytes: 2000")
    notebook = project.new()
    cell, _ = notebook.insert(
        "import threading, time\nprint('a' * 500)\ndef late():\n    for i in range(3):\n        time.sleep(0.7)\n"
        "        for n in range(1000): print(i, n)\nthreading.Thread(target=late).start()"
    )
    full_output = (
        "a" * 500 + "\n" + "".join(f"{i} {n}\n" for i in range(3) for n in range(1000))
    )
    wait_until_true(lambda: text_of(notebook.cell(cell)).endswith("2 999\n"))
    text = text_of(notebook.cell(cell))
    head, _, remainder = text.partition("\n… ")
    number, _, tail = remainder.partition(
        " characters left out by stepper (max_output_bytes) …\n"
    )
    assert (
        full_output.startswith(head) and full_output.endswith(tail) and len(text) < 2200
    )
    omitted = int(number.replace(",", ""))
    assert len(head) + len(tail) + omitted == len(full_output), (
        "what is said to be left out is"
    )
    _, response = notebook.insert("1")
    assert (
        f"in total, left out of the notebook: {omitted:,} characters" in response.text
    )


def test_late_output_of_changed_cell_is_reported_as_omitted(
    notebook: Notebook,
) -> None:
    cell, _ = notebook.insert(
        "import asyncio, os\nasync def late():\n    while not os.path.exists('edited'): await asyncio.sleep(0.01)\n"
        "    print('LATE')\ntask = asyncio.get_running_loop().create_task(late())"
    )
    notebook.edited("replace", "other = 1", cell)
    (notebook.path.parent / "edited").touch()
    texts: list[str] = []
    wait_until_true(
        lambda: (
            texts.append(notebook.insert("await asyncio.sleep(0.1)")[1].text)
            or "arrived for cell 1" in texts[-1]
        )
    )
    assert (
        "5 characters arrived for cell 1" in texts[-1]
        and "the notebook was not updated" in texts[-1]
    )
    assert "LATE" not in notebook.path.read_text()


@pytest.mark.nightly
def test_displays_are_updated_in_all_cells(notebook: Notebook) -> None:
    cell_id, _ = notebook.insert(
        "print('above')\nh = display('one', display_id=True)\nprint('below')"
    )
    _, response = notebook.insert("h.update('two')")
    assert get_output_text(notebook, cell_id) == "above\nbelow\n'two'"
    assert (
        f"1 display update arrived for cell 1 (id {cell_id}) after its run"
        in response.text
    )
    three, _ = notebook.insert("display('same', display_id='id');")
    four, _ = notebook.insert("display('again', display_id='id');\nh.update('three')")
    assert (get_output_text(notebook, three), get_output_text(notebook, four)) == (
        "'again'",
        "'again'",
    )
    notebook.project.kill_daemon()
    notebook.insert("h.update('four'); display('last', display_id='id');")
    assert get_output_text(notebook, cell_id).endswith("'four'")
    assert (get_output_text(notebook, three), get_output_text(notebook, four)) == (
        "'last'",
        "'last'",
    )
    notebook.project.stepper("restart")
    notebook.insert("display('anew', display_id='id');")
    assert get_output_text(notebook, three) == "'last'", "another kernel's"


@pytest.mark.nightly
def test_display_in_running_cell_is_updated_by_earlier_task(
    notebook: Notebook,
) -> None:
    notebook.insert(
        "import asyncio\nasync def late():\n    while 'h' not in globals(): await asyncio.sleep(0.01)\n    h.update('two')\n"
        "task = asyncio.get_running_loop().create_task(late())"
    )
    cell, _ = notebook.insert("h = display('one', display_id=True)\nawait task")
    assert get_output_text(notebook, cell) == "'two'"


@pytest.mark.nightly
def test_late_output_survives_a_killed_daemon(notebook: Notebook) -> None:
    cell, _ = notebook.insert(
        "import threading\nthreading.Timer(4, print, ['LATE']).start()"
    )
    notebook.project.kill_daemon()
    notebook.project.json("status")
    wait_until_true(lambda: "LATE" in text_of(notebook.cell(cell)))
    _, response = notebook.insert("1")
    assert "Note: 5 characters arrived" in response.text


@pytest.mark.nightly
def test_late_output_without_daemon_is_kept_by_the_kernel(
    notebook: Notebook,
) -> None:
    cell, _ = notebook.insert(
        "import threading\nfor n in range(40): threading.Timer(0.1 * n, print, [n]).start()"
    )
    wait_until_true(lambda: "10\n" in text_of(notebook.cell(cell)))
    notebook.project.kill_daemon()
    time.sleep(2.5)
    notebook.project.stepper("eval", "0")
    wait_until_true(lambda: "39\n" in text_of(notebook.cell(cell)))
    assert sorted(map(int, text_of(notebook.cell(cell)).split())) == [*range(40)], (
        "once each"
    )


@pytest.mark.nightly
def test_output_during_the_run_is_complete_and_ordered(notebook: Notebook) -> None:
    cell, response = notebook.insert(
        "import threading\nprint('a')\nthread = threading.Thread(target=print, args=['b'])\nthread.start()\n"
        "thread.join()\nprint('c')"
    )
    assert (
        text_of(notebook.cell(cell)) == "a\nb\nc\n"
        and "after its run" not in response.text
    )
    cell, response = notebook.insert(
        "import os, subprocess\nsubprocess.run(['echo', 'child'])\nos.write(1, b'direct\\n')"
    )
    assert (
        text_of(notebook.cell(cell)) == "child\ndirect\n"
        and "after its run" not in response.text
    )
    cell, response = notebook.insert(
        "subprocess.run(['head', '-c', '3000000', '/dev/zero'])\nprint('end')"
    )
    text = text_of(notebook.cell(cell))
    assert (
        text.startswith("\0\0")
        and "left out by stepper" in text
        and "after its run" not in response.text
    )
    echoed = (
        notebook.project.folder
        / ".stepper"
        / "kernels"
        / f"{notebook.path.stem}.stderr"
    )
    notebook.insert(
        "for i in range(4): subprocess.run(['head', '-c', '3000000', '/dev/zero'])"
    )
    assert echoed.stat().st_size < 6_000_000
    cell, response = notebook.insert(
        "os.write(1, bytes(range(256)) * 1000)\nprint('end')"
    )
    assert "\ufffd" in text_of(notebook.cell(cell)) and response.text.startswith(
        "stepper: "
    )
    json.loads(notebook.path.read_bytes().decode("utf-8"))


@pytest.mark.nightly
def test_thread_pool_output_goes_to_the_submitting_cell(notebook: Notebook) -> None:
    notebook.insert(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
        "print(list(pool.map(str, range(9))))"
    )
    cell, response = notebook.insert("for one in pool.map(print, 'abc'): pass")
    assert (
        sorted(text_of(notebook.cell(cell))) == [*"\n\n\nabc"]
        and "after its run" not in response.text
    )


@pytest.mark.nightly
def test_descriptors_and_threads_do_not_grow(notebook: Notebook) -> None:
    count = "import os, threading\nlen(os.listdir('/proc/self/fd')) + threading.active_count()"
    counts = []
    for _ in range(10):
        cell, _ = notebook.insert(count)
        counts.append(
            int("".join(notebook.cell(cell)["outputs"][0]["data"]["text/plain"]))
        )
    # the socket of the last run may still be open
    assert max(counts) <= counts[0] + 4, counts


def test_cell_that_redirects_file_descriptors(notebook: Notebook) -> None:
    notebook.insert(
        "import os\nkept = os.dup(1)\nfile = open('own', 'wb', 0)\nos.dup2(file.fileno(), 1)"
    )
    notebook.insert("os.write(1, b'own\\n')")
    assert (notebook.path.parent / "own").read_text() == "own\n"
    notebook.insert("os.dup2(kept, 1)")
    cell, _ = notebook.insert("os.write(1, b'mine again\\n')")
    assert text_of(notebook.cell(cell)) == "mine again\n"


@pytest.mark.nightly
def test_crash_output_is_reported(notebook: Notebook) -> None:
    _, response = notebook.insert("import ctypes\nctypes.string_at(0)")
    assert "SIGSEGV" in response.stop, response.stop
    log_file = (
        notebook.project.folder
        / ".stepper"
        / "kernels"
        / f"{notebook.path.stem}.stderr"
    )
    assert (
        "Segmentation fault" in log_file.read_text()
        and "string_at" in log_file.read_text()
    )


@pytest.mark.nightly
def test_kernel_messages_belong_to_no_cell(notebook: Notebook) -> None:
    """Simulates debugpy's warning, which arrives some time after the kernel's start."""
    send_warning = "kernel.session.send(kernel.iopub_socket, 'stream', {'name': 'stderr', 'text': 'warning'}, parent={})"
    _, first = notebook.insert(f"kernel = get_ipython().kernel\n{send_warning}")
    _, second = notebook.insert("1")
    assert "ran ok" in first.text and "ran ok" in second.text
    assert "after its run" not in first.text + second.text


@pytest.mark.nightly
def test_shell_magics_keep_all_output(notebook: Notebook) -> None:
    for number in range(4):
        for magic in ("%%bash", "%%sh", "%%script bash"):
            cell, response = notebook.insert(f"{magic}\necho said {number}")
            assert (
                text_of(notebook.cell(cell)) == f"said {number}\n"
                and f"| said {number}" in response.text
            )
    cell, response = notebook.insert("%%sh\necho before; exit 3")
    assert (
        text_of(notebook.cell(cell)) == "before\n"
        and "CalledProcessError" in response.text
    )


@pytest.mark.nightly
def test_helper_of_another_version_takes_over(notebook: Notebook) -> None:
    notebook.insert(
        "import os, subprocess, sys, threading\nsys.modules['_stepper_helper'].version = 'old'"
    )
    notebook.project.kill_daemon()
    for _ in range(2):
        cell, response = notebook.insert(
            "print('a')\nthread = threading.Thread(target=print, args=['b'])\nthread.start()\nthread.join()\n"
            "done = subprocess.run(['echo', 'c'])"
        )
        assert sorted(text_of(notebook.cell(cell)).split()) == ["a", "b", "c"], (
            response.text
        )


ODD = """
session, socket, parent = get_ipython().kernel.session, get_ipython().kernel.iopub_socket, {{"header": {{"msg_id": {parent}}}}}
for kind in ("stream", "display_data", "update_display_data", "error", "comm_open", "comm_msg", "clear_output"):
    for content in ({{}}, {{"data": 5}}, {{"name": [], "text": 5}}, {{"transient": []}}, {{"transient": {{"display_id": []}}}},
                    {{"comm_id": "c", "data": {{"state": {{"outputs": [5], "msg_id": []}}, "buffer_paths": 5}}}},
                    {{"comm_id": "c", "target_name": "jupyter.widget", "data": {{"state": {{"_model_name": "OutputModel",
                     "_model_module": "@jupyter-widgets/output"}}}}}}):
        session.send(socket, kind, content, parent=parent)
print("sent")
"""


@pytest.mark.nightly
@pytest.mark.parametrize("parent", mark_nightly(["'nobody'", "[]", "None", "5"], "[]"))
def test_invalid_messages_are_ignored(notebook: Notebook, parent: str) -> None:
    notebook.insert("x = 1")
    cell, response = notebook.insert(ODD.format(parent=parent))
    assert "ran ok" in response.text and "sent" in text_of(notebook.cell(cell))
    _, response = notebook.insert("x + 1")
    assert "ran ok" in response.text and "| 2" in response.text


@pytest.mark.nightly
def test_config_error_during_a_run_loses_no_output(
    notebook: Notebook,
) -> None:
    source = "import pathlib\npathlib.Path('../.stepper/config.yaml').write_text('wrong: key')\nprint('said')"
    cell, _ = notebook.insert(source)
    assert text_of(notebook.cell(cell)) == "said\n"
