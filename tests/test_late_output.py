"""Output that comes after its cell ended stays with its cell or is dropped with a note: never on another cell."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Notebook, Project, text_of

# What goes on writing LATE until there is a file `stop`.
LOOP = """
import os, threading, time

def late():
    while not os.path.exists('stop'):
        {write}
        time.sleep(0.005)
    open('stopped', 'w').close()
"""
THREAD = "\nthread = threading.Thread(target=late)\nthread.start()\nprint('first')"
TIMER = """
import os, threading

def late():
    print('LATE')
    threading.Timer(0.005, late).start() if not os.path.exists('stop') else open('stopped', 'w').close()

late()
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
WAIT = "import time\nfor i in range(50): print('mine', i); time.sleep(0.01)"
SECOND = "".join(f"mine {i}\n" for i in range(50))


@pytest.fixture
def notebook(project: Project, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # which turns off that ipykernel reads the descriptors
    return project.new()


@pytest.fixture(params=["ipykernel reads the descriptors", "it does not"])
def either(project: Project, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Notebook:
    if request.param != "it does not":
        monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)
    return project.new()


def check(notebook: Notebook, first: str) -> str:
    """Run what goes on writing, then another cell; return the note on what was dropped."""
    one, _ = notebook.insert(first)
    two, second = notebook.insert(WAIT)
    assert text_of(notebook.cell(two)) == SECOND
    assert "first" in text_of(notebook.cell(one))
    three, third = notebook.insert(
        "open('stop', 'w').close()\nimport os\nwhile not os.path.exists('stopped'): time.sleep(0.01)\nprint('third')"
    )
    assert text_of(notebook.cell(three)) == "third\n"
    notes = [line for line in (second.text + "\n" + third.text).splitlines() if "dropped: " in line]
    assert len(notes) <= 4
    return "\n".join(notes)


@pytest.mark.parametrize("write", ["print('LATE')", "print('LATE', file=__import__('sys').stderr)", "display('LATE')"])
def test_a_thread_that_goes_on(notebook: Notebook, write: str) -> None:
    note = check(notebook, LOOP.format(write=write) + THREAD)
    assert "execution [1] wrote after its end" in note


def test_a_timer_that_starts_itself_again(notebook: Notebook) -> None:
    assert "execution [1] wrote after its end" in check(notebook, TIMER)


@pytest.mark.parametrize("number", [1, 2])
def test_a_child_that_goes_on(either: Notebook, number: int) -> None:
    assert "execution [1] wrote after its end" in check(either, CHILD.format(number=number))


def test_a_fork_that_goes_on(notebook: Notebook) -> None:
    assert "wrote after its end" in check(notebook, FORK)


def test_what_is_in_time_is_all_there_and_in_order(either: Notebook) -> None:
    cell, answer = either.insert(
        "import threading\nprint('a')\nthread = threading.Thread(target=print, args=['b'])\nthread.start()\n"
        "thread.join()\nprint('c')"
    )
    assert text_of(either.cell(cell)) == "a\nb\nc\n" and "dropped" not in answer.text
    cell, answer = either.insert("import os, subprocess\nsubprocess.run(['echo', 'child'])\nos.write(1, b'direct\\n')")
    assert text_of(either.cell(cell)) == "child\ndirect\n" and "dropped" not in answer.text
    cell, answer = either.insert("subprocess.run(['head', '-c', '3000000', '/dev/zero'])\nprint('end')")
    text = text_of(either.cell(cell))
    assert text.startswith("\0\0") and "left out by stepper" in text and "dropped" not in answer.text
    (echoed,) = (either.project.folder / ".stepper" / "kernels").glob("*.stderr")
    either.insert("for i in range(4): subprocess.run(['head', '-c', '3000000', '/dev/zero'])")
    assert 0 < echoed.stat().st_size < 6_000_000
    cell, answer = either.insert("os.write(1, bytes(range(256)) * 1000)\nprint('end')")
    assert "\ufffd" in text_of(either.cell(cell)) and answer.text.startswith("stepper: ")
    json.loads(either.path.read_bytes().decode("utf-8"))


def test_the_threads_of_a_pool_work_for_the_cell_that_asks(notebook: Notebook) -> None:
    notebook.insert(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(2)\n"
        "print(list(pool.map(str, range(9))))"
    )
    cell, answer = notebook.insert("for one in pool.map(print, 'abc'): pass")
    assert sorted(text_of(notebook.cell(cell)).split()) == ["a", "b", "c"] and "dropped" not in answer.text


def test_descriptors_and_threads_do_not_grow(notebook: Notebook) -> None:
    count = "import os, threading\nlen(os.listdir('/proc/self/fd')) + threading.active_count()"
    counts = []
    for _ in range(10):
        cell, _ = notebook.insert(count)
        counts.append(int("".join(notebook.cell(cell)["outputs"][0]["data"]["text/plain"])))
    assert max(counts) <= counts[0] + 4, counts  # the last run's may not be closed yet


def test_a_cell_that_redirects_the_descriptors_itself(notebook: Notebook) -> None:
    notebook.insert("import os\nkept = os.dup(1)\nfile = open('own', 'wb', 0)\nos.dup2(file.fileno(), 1)")
    notebook.insert("os.write(1, b'own\\n')")
    assert (notebook.path.parent / "own").read_text() == "own\n"
    notebook.insert("os.dup2(kept, 1)")
    cell, _ = notebook.insert("os.write(1, b'mine again\\n')")
    assert text_of(notebook.cell(cell)) == "mine again\n"


def test_the_last_words_of_a_crash_are_told(either: Notebook) -> None:
    _, answer = either.insert("import ctypes\nctypes.string_at(0)")
    assert "SIGSEGV" in answer.stop, answer.stop
    (written,) = (either.project.folder / ".stepper" / "kernels").glob("*.stderr")
    assert "Segmentation fault" in written.read_text() and "string_at" in written.read_text()


def test_what_the_kernel_says_of_itself_is_of_no_cell(notebook: Notebook) -> None:
    """As debugpy's warning, which comes some time after the kernel's start."""
    says = "kernel.session.send(kernel.iopub_socket, 'stream', {'name': 'stderr', 'text': 'warning'}, parent={})"
    _, first = notebook.insert(f"kernel = get_ipython().kernel\n{says}")
    _, second = notebook.insert("1")
    assert "ran ok" in first.text and "ran ok" in second.text
    assert "dropped" not in first.text + second.text


def test_a_helper_of_another_version_takes_over(notebook: Notebook) -> None:
    notebook.insert("import os, subprocess, sys, threading\nsys.modules['_stepper_helper'].version = 'old'")
    notebook.project.kill_daemon()
    for _ in range(2):
        cell, answer = notebook.insert(
            "print('a')\nthread = threading.Thread(target=print, args=['b'])\nthread.start()\nthread.join()\n"
            "done = subprocess.run(['echo', 'c'])\nprint('\\ud800')"
        )
        assert sorted(text_of(notebook.cell(cell)).split()) == ["\\ud800", "a", "b", "c"], answer.text
    assert "dropped" not in answer.text
    check(notebook, CHILD.format(number=1).replace("import subprocess, sys, time", "import subprocess, sys, time, os"))
