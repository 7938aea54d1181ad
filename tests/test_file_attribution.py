"""A report of a failed cell names exactly the files that its kernel opened for writing."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepper.diagnosis.in_kernel import file_writes
from stepper.policy.model import Outcome
from tests.conftest import Answer, Notebook, Project
from tests.environments import old_python
from tests.test_kernel_helper import OLD, Lab, environment, text

UNKNOWN = "Note: Changed while the cell ran (by an unknown process): "
BY_KERNEL = (
    "Note: Changed while the cell ran (opened for writing by this kernel, but perhaps"
    " not by this cell): "
)
CELL = "Note: This cell "
FAIL = "\nraise ValueError('stop')"
HOOKS = """
import gc as _gc
hooks = sum(
    one.__code__.co_filename == "<stepper audit hook>"
    for one in _gc.get_objects()
    if type(one) is type(lambda: None)
)
"""


@pytest.fixture(
    scope="module",
    params=["this Python", pytest.param("Python 3.9", marks=pytest.mark.nightly)],
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A kernel in its own folder, which is the project's folder."""
    if request.param == "Python 3.9":
        python = old_python()
        if not python:
            pytest.skip("there is no Python 3.9 on this machine")
        lab = Lab(environment(python, *OLD))
    else:
        lab = Lab(environment(sys.executable, "ipykernel>=7", "pandas>=2.2,<4"))
    lab.ok("import os, shutil, sqlite3, tempfile, threading\nfrom pathlib import Path")
    yield lab
    lab.close()


@pytest.fixture
def empty_folder_lab(lab: Lab) -> Lab:
    """The kernel in a new folder with two files, `a` and `b`."""
    lab.ok(
        "os.chdir(tempfile.mkdtemp(dir=HOME)) if 'HOME' in globals() else None\n"
        "HOME = globals().get('HOME', os.getcwd())\n"
        "os.chdir(tempfile.mkdtemp(dir=HOME, prefix='case'))\n"
        "for name in ('a', 'b'): Path(name).write_text('old ' + name)"
    )
    return lab


def run_and_get_files(lab: Lab, source: str) -> dict[str, Any]:
    """Run a cell that fails; return the file facts of the kernel's helper."""
    result = lab.run(source + FAIL)
    assert result.fault is not None
    assert result.fault.ename == "ValueError", result.fault
    assert result.fault.evalue == "stop", result.fault
    assert "swallowed" not in result.diagnosis_data, result.diagnosis_data
    facts: dict[str, Any] = result.diagnosis_data["files"]
    return facts


def changes(lab: Lab, source: str) -> dict[str, str]:
    """Run a cell that fails; return its file changes, by names in the case's folder.

    `~` marks changes that another cell may have made.
    """
    facts = run_and_get_files(lab, source)
    folder = str(Path(lab.value("os.getcwd()")).resolve())
    return {
        str(Path(change["path"]).relative_to(folder)): ("" if change["own"] else "~")
        + change["change"]
        for change in facts["changes"]
    }


# --- each way to change a file --------------------------------------------------------

FILE_CHANGES = {
    "a new file": ("open('new', 'w').write('x')", {"new": "written"}),
    "other content": ("open('a', 'w').write('new a')", {"a": "written"}),
    "other content of another length": ("open('a', 'w')", {"a": "written"}),
    "appended": ("open('a', 'a').write('x')", {"a": "written"}),
    "in place": ("f = open('a', 'r+b'); f.write(b'X'); f.close()", {"a": "written"}),
    "exclusively": ("open('new', 'x').close()", {"new": "written"}),
    "a descriptor": (
        "f = os.open(Path('new'), os.O_CREAT | os.O_WRONLY); os.close(f)",
        {"new": "written"},
    ),
    "bytes as a path": ("open(b'new', 'w').close()", {"new": "written"}),
    "a Path": ("Path('new').write_bytes(b'x')", {"new": "written"}),
    "a class of its own": (
        "class P(str):\n    def __str__(self): raise OSError\n"
        "open(P('new'), 'w').close()",
        {"new": "written"},
    ),
    "below": (
        "Path('s/t').mkdir(parents=True); open('s/t/f', 'w').close()",
        {"s": "new folder", "s/t": "new folder", "s/t/f": "written"},
    ),
    "after a chdir": (
        "os.mkdir('s'); os.chdir('s'); open('f', 'w').close(); os.chdir('..')",
        {"s": "new folder", "s/f": "written"},
    ),
    "through a link": (
        "os.symlink('.', 'loop'); open('loop/new', 'w').close(); os.remove('loop')",
        {"new": "written"},
    ),
    "a link itself": (
        "os.symlink('a', 'link'); open('link', 'w').close(); os.remove('link')",
        {"a": "written"},
    ),
    "renamed": ("os.rename('a', 'new')", {"a": "renamed", "new": "written"}),
    "moved by shutil": ("shutil.move('a', 'b')", {"a": "renamed", "b": "written"}),
    "replaced by a temporary file": (
        "open('tmp', 'w').write('x'); os.replace('tmp', 'a')",
        {"a": "written"},
    ),
    "copied": ("shutil.copy('a', 'new')", {"new": "written"}),
    "linked": ("os.link('a', 'new')", {"new": "written"}),
    "deleted": ("os.remove('a'); Path('b').unlink()", {"a": "deleted", "b": "deleted"}),
    "a folder deleted": (
        "os.mkdir('s'); open('s/f', 'w').close(); shutil.rmtree('s')",
        {},
    ),
    "cut": ("os.truncate('a', 1)", {"a": "written"}),
    "a new database": (
        "sqlite3.connect('new').execute('create table t(a)')",
        {"new": "written"},
    ),
    "two files in a thread": (
        "t = threading.Thread(target=lambda: [open(n, 'w') for n in ('a', 'new')])\n"
        "t.start(); t.join()",
        {"a": "written", "new": "written"},
    ),
    "tasks": (
        "import asyncio\nasync def w(n): open(n, 'w').close()\n"
        "await asyncio.gather(w('a'), w('new'))",
        {"a": "written", "new": "written"},
    ),
    "executed text": ('exec(\'open("new", "w")\')', {"new": "written"}),
    # not attributed to this cell
    "the same content": ("open('a', 'w').write('old a')", {"a": "same"}),
    "touched": ("Path('a').touch()", {"a": "same"}),
    "renamed there and back": ("os.rename('a', 'x'); os.rename('x', 'a')", {}),
    "written and deleted": ("open('new', 'w').close(); os.remove('new')", {}),
    "read": ("open('a').read(); os.stat('b'); os.listdir()", {}),
    "not permitted": (
        "try: open('a', 'x')\nexcept FileExistsError: pass",
        {},
    ),
    "opened but not changed": ("open('a', 'a').close()", {}),
    "a database that was read": ("sqlite3.connect('a')", {}),
    "outside of the project": ("tempfile.TemporaryFile(dir='/tmp').write(b'x')", {}),
    "in a hidden folder": ("os.mkdir('.h'); open('.h/f', 'w').close()", {".h": ""}),
}


@pytest.mark.parametrize("statement", FILE_CHANGES)
def test_file_changes_of_a_cell_are_recorded(
    empty_folder_lab: Lab, statement: str
) -> None:
    source, expected = FILE_CHANGES[statement]
    expected = {name: change for name, change in expected.items() if change}
    changed = changes(empty_folder_lab, source)
    changed.pop(".h", None)
    assert changed == expected


def test_file_too_large_to_hash_is_compared_by_mtime(empty_folder_lab: Lab) -> None:
    size = file_writes.MAX_HASHED_SIZE + 1
    empty_folder_lab.ok(f"Path('large').write_bytes(b'x' * {size})")
    rewrite = f"Path('large').write_bytes(b'x' * {size})"
    assert changes(empty_folder_lab, rewrite) == {"large": "written"}
    assert changes(empty_folder_lab, "open('large', 'ab').close()") == {}


def test_writes_of_earlier_threads_and_tasks_are_not_attributed(
    empty_folder_lab: Lab,
) -> None:
    empty_folder_lab.ok(
        "go, done = threading.Event(), threading.Event()\n"
        "def late():\n"
        "    go.wait(); open('by_thread', 'w').close(); done.set()\n"
        "threading.Thread(target=late, daemon=True).start()\n"
        "import asyncio\n"
        "woken, over = asyncio.Event(), asyncio.Event()\n"
        "async def later():\n"
        "    await woken.wait(); open('by_task', 'w').close(); over.set()\n"
        "task = asyncio.create_task(later())"
    )
    changed = changes(
        empty_folder_lab,
        "go.set(); done.wait(); woken.set(); await over.wait(); open('own', 'w')",
    )
    assert changed == {
        "by_thread": "~written",
        "by_task": "~written",
        "own": "written",
    }


def test_write_through_a_link_is_attributed_to_the_cell(empty_folder_lab: Lab) -> None:
    """An earlier thread writes a file, and then the cell writes it through a link."""
    empty_folder_lab.ok(
        "os.symlink('a', 'link')\n"
        "go, done = threading.Event(), threading.Event()\n"
        "def late():\n"
        "    go.wait(); open('a', 'w').close(); done.set()\n"
        "threading.Thread(target=late, daemon=True).start()"
    )
    source = "go.set(); done.wait(); open('link', 'w').close(); os.remove('link')"
    assert changes(empty_folder_lab, source) == {"a": "written"}


def test_open_files_are_detected_without_audit_events(empty_folder_lab: Lab) -> None:
    """A library in C opens files without Python's knowledge."""
    empty_folder_lab.ok("held = open('held', 'w')")
    facts = run_and_get_files(
        empty_folder_lab,
        "import ctypes, subprocess, sys, time\n"
        "libc = ctypes.CDLL(None)\n"
        "libc.fopen.restype = ctypes.c_void_p\n"
        "stream = libc.fopen(b'in_c', b'w')\n"
        "command = 'exec 5> by_child; echo; exec sleep 60'\n"
        "child = subprocess.Popen(['sh', '-c', command], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()",
    )
    empty_folder_lab.ok("child.kill(); child.wait()")
    assert list_open_files(facts) == {"held": False, "in_c": False, "by_child": True}
    empty_folder_lab.ok("held.close(); libc.fclose(ctypes.c_void_p(stream))")


def list_open_files(facts: dict[str, Any]) -> dict[str, bool]:
    """Return the files open for writing, except the kernel's own log files."""
    names = {Path(path).name: is_own for path, is_own in facts["open"]}
    return {
        name: is_own for name, is_own in names.items() if not name.startswith("kernel.")
    }


def test_process_of_earlier_cell_is_not_attributed(empty_folder_lab: Lab) -> None:
    empty_folder_lab.ok(
        "import subprocess\n"
        "command = 'exec 5> by_child; echo; exec sleep 60'\n"
        "child = subprocess.Popen(['sh', '-c', command], stdout=subprocess.PIPE)\n"
        "child.stdout.readline()"
    )
    facts = run_and_get_files(empty_folder_lab, "subprocess.run(['true'])")
    empty_folder_lab.ok("child.kill(); child.wait()")
    assert list_open_files(facts) == {"by_child": False}


def test_file_of_previous_cell_is_not_an_external_change(
    empty_folder_lab: Lab,
) -> None:
    empty_folder_lab.ok("open('before', 'w').write('x')")
    facts = run_and_get_files(empty_folder_lab, "pass")
    assert [Path(path).name for path in facts["earlier"]][-1:] == ["before"]
    empty_folder_lab.ok("open('before', 'w').write('x')")
    facts = run_and_get_files(empty_folder_lab, "os.system('echo more >> before')")
    assert facts["earlier"] == []


# --- safety ---------------------------------------------------------------------------


def test_audit_hook_never_raises_or_calls_user_code(empty_folder_lab: Lab) -> None:
    result = empty_folder_lab.run(
        "import sys\n"
        "class N(int):\n"
        "    def __and__(self, other): raise SystemExit\n"
        "    __rand__ = __and__\n"
        "class P(str):\n"
        "    def __bad(self, *given): raise SystemExit\n"
        "    __str__ = __eq__ = __hash__ = rpartition = rstrip = __bad\n"
        "class F:\n"
        "    def __fspath__(self): raise SystemExit\n"
        "for event in ('open', 'os.rename', 'os.remove', 'sqlite3.connect', 'os.chdir'):\n"
        "    for given in ((), (1,), ('a', None, N(1)), (P('a'), 'w', 1), (F(), 'w', 1),\n"
        "                  ('a\\0', 'w', 1), ('a\\udcff', 'w', 1), (b'\\xff', 'w', 1),\n"
        "                  ('', 'w', 1), ('/', 'w', 1), (None, None, -1, -1)):\n"
        "        sys.audit(event, *given)\n"
        "print('done')"
    )
    assert result.outcome is Outcome.OK, result.fault
    assert text(result) == "done\n"


def test_audit_hook_keeps_no_user_objects(empty_folder_lab: Lab) -> None:
    empty_folder_lab.ok(
        "import weakref\n"
        "class P(str): pass\n"
        "path = P('new'); seen = weakref.ref(path)\n"
        "open(path, 'w').close(); del path"
    )
    assert empty_folder_lab.value("seen() is None") is True


def test_recorded_changes_are_bounded(empty_folder_lab: Lab) -> None:
    facts = run_and_get_files(
        empty_folder_lab,
        "for n in range(2000): open(f'f{n}', 'w').close()\n"
        f"for n in range({file_writes.MAX_FOLDERS + 100}): os.mkdir(f'g{{n}}')\n",
    )
    assert len(facts["changes"]) <= 100
    code = "[f for f in _gc.get_objects() if type(f) is type(lambda: 0) and 'MAX_HASHED_SIZE' in f.__globals__]"
    empty_folder_lab.ok(f"import gc as _gc\nglobals_ = {code}[0].__globals__")
    assert (
        empty_folder_lab.value("len(globals_['records']) <= globals_['MAX_PATHS']")
        is True
    )
    empty_folder_lab.ok("shutil.rmtree(os.getcwd()); os.chdir(HOME); del globals_")


@pytest.mark.nightly
def test_interrupt_in_a_loop_of_audited_calls_stops_the_cell(
    empty_folder_lab: Lab,
) -> None:
    result = empty_folder_lab.run(
        "while True: open('new', 'w').close(); id(1)", timeout=1
    )
    assert result.outcome is Outcome.TIMEOUT
    assert result.fault is not None
    assert empty_folder_lab.value("os.path.exists('new')") is True  # the kernel lives


@pytest.mark.nightly
def test_interrupted_cell_changes_are_recorded(empty_folder_lab: Lab) -> None:
    result = empty_folder_lab.run(
        "open('new', 'w').close()\nimport time; time.sleep(60)", timeout=1
    )
    assert result.outcome is Outcome.TIMEOUT
    changed = [
        Path(change["path"]).name
        for change in result.diagnosis_data["files"]["changes"]
    ]
    assert changed == ["new"]


# --- the audit hook -------------------------------------------------------------------


def test_kernel_without_file_writes_has_no_audit_hook(fresh_project: Project) -> None:
    notebook = fresh_project.new("One", "Two", "Three")
    notebook.insert("import copy\nx = copy.deepcopy([1])\n" + HOOKS + "print(hooks)")
    second, _ = notebook.insert(HOOKS + "print(hooks)")
    assert run_and_read(notebook, second) == "0"
    third, _ = notebook.insert(HOOKS + "open('a.txt', 'w').close()\nprint(hooks)")
    assert run_and_read(notebook, third) == "1"


def run_and_read(notebook: Notebook, cell: str) -> str:
    return "".join(notebook.cell(cell)["outputs"][0]["text"]).strip()


def test_writes_by_project_modules_are_attributed(
    fresh_project: Project,
) -> None:
    (fresh_project.folder / "notebooks" / "steps.py").write_text(
        "def go():\n    with open('made.csv', 'w') as stream: stream.write('x')\n"
    )
    notebook = fresh_project.new("One")
    _, answer = notebook.insert("import steps\nsteps.go()\n1 / 0")
    assert f"{CELL}wrote notebooks/made.csv (1 byte)" in answer.text


@pytest.mark.nightly
def test_new_helper_takes_over_the_audit_hook(
    fresh_project: Project,
) -> None:
    notebook = fresh_project.new("One", "Two", "Three")
    notebook.insert(
        "open('a.txt', 'w').close()\nimport sys\n"
        "helper = sys.modules['_stepper_helper']\n"
        "table, helper.version = helper.audit_handlers, 'an older one'"
    )
    fresh_project.kill_daemon()
    second, _ = notebook.insert(
        "helper_is_new = sys.modules['_stepper_helper'] is not helper\n"
        "print(helper_is_new, len(table))"
    )
    assert run_and_read(notebook, second) == "True 0"
    _, answer = notebook.insert(
        HOOKS + "open('b.txt', 'w').close()\n"
        "raise ValueError(hooks, sys.modules['_stepper_helper'].audit_handlers is table)"
    )
    assert "ValueError: (1, True)" in answer.text
    assert f"{CELL}wrote notebooks/b.txt (0 bytes)" in answer.text


# --- reports --------------------------------------------------------------------------


def notes(answer: Answer) -> list[str]:
    """Return the notes of a report, without those on the undo of the run."""
    lines = [line for line in answer.text.splitlines() if line.startswith("Note: ")]
    undo = ("Note: the next version starts", "Note: not restored")
    return [line for line in lines if not line.startswith(undo)]


def test_report_separates_cell_writes_from_other_changes(
    fresh_project: Project,
) -> None:
    folder = fresh_project.folder / "notebooks"
    for name in ("same.csv", "old.csv", "gone.csv"):
        (folder / name).write_text("x")
    notebook = fresh_project.new("One", "Two")
    notebook.insert("log = open('run.log', 'w')\nimport os, time, subprocess")
    by_test = threading.Thread(target=write_other_file, args=(folder,))
    by_test.start()
    _, answer = notebook.insert(
        "open('same.csv', 'w').write('x')\n"
        "open('out.csv', 'w').write('a,b')\n"
        "os.makedirs('plots'); os.rename('old.csv', 'new.csv'); os.remove('gone.csv')\n"
        "log.write('step 2\\n'); log.flush()\n"
        "subprocess.run('echo hi > shell.txt', shell=True)\n"
        "while not os.path.exists('other.csv'): time.sleep(0.01)\n"
        "time.sleep(0.1)\n"
        "1 / 0"
    )
    by_test.join()
    lines = notes(answer)
    assert lines[0] == (
        f"{CELL}wrote notebooks/out.csv (3 bytes); created the folder notebooks/plots;"
        " renamed notebooks/old.csv to notebooks/new.csv; deleted notebooks/gone.csv"
    )
    assert lines[1] == f"{BY_KERNEL}notebooks/run.log (7 bytes)"
    assert lines[2].startswith(UNKNOWN)
    assert set(lines[2].removeprefix(UNKNOWN).split(", ")) == {
        "notebooks/shell.txt (3 bytes)",
        "notebooks/other.csv (2 bytes)",
    }
    assert "same.csv" not in "".join(lines)


def write_other_file(folder: Path) -> None:
    deadline = time.monotonic() + 120
    while not (folder / "out.csv").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    (folder / "other.csv").write_text("xy")


def test_concurrent_notebooks_are_not_confused(
    fresh_project: Project,
) -> None:
    names = ("left", "right")
    notebooks = {name: fresh_project.new("One", problem=name) for name in names}
    answers: dict[str, Answer] = {}

    def play(name: str, other: str) -> None:
        source = (
            "import os, time\n"
            f"def wait(size):\n"
            f"    while not os.path.exists('{other}.csv') or os.path.getsize('{other}.csv') < size:\n"
            "        time.sleep(0.005)\n"
            f"open('{name}.csv', 'w').write('1')\n"
            "wait(1)\n"
            f"open('{name}.csv', 'w').write('22')\n"
            f"open('shared.csv', 'a').write('{name}')\n"
            "wait(2)\n"
            "time.sleep(0.1)\n"
            "1 / 0"
        )
        _, answers[name] = notebooks[name].insert(source)

    players = [
        threading.Thread(target=play, args=pair)
        for pair in (names, tuple(reversed(names)))
    ]
    for player in players:
        player.start()
    for player in players:
        player.join()
    for name, other in (names, tuple(reversed(names))):
        lines = notes(answers[name])
        assert len(lines) == 2, answers[name].text
        own_files = set(lines[0].removeprefix(f"{CELL}wrote ").split(", "))
        assert own_files == {
            f"notebooks/{name}.csv (2 bytes)",
            "notebooks/shared.csv (9 bytes)",
        }
        assert lines[1] == f"{UNKNOWN}notebooks/{other}.csv (2 bytes)"
