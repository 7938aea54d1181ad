"""Which processes an interrupt reaches: the cell's own children, not those of earlier cells."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepper.kernels.backends.local.interrupt_targets import ProcessGroup
from stepper.kernels.backends.local.process_identity import Identity
from tests.conftest import Notebook, Project, mark_nightly, reuse_project
from tests.test_long_cells import STARTED, Edit
from tests.test_run_on_edit import wait_until
from tests.test_workflow import say

# A child process that writes a file when it is interrupted.
CHILD = """
import pathlib, signal, sys, time
name = sys.argv[1]
def stop(*_):
    pathlib.Path(name + ".interrupted").touch()
    sys.exit()
signal.signal(signal.SIGINT, stop)
pathlib.Path(name + ".ready").touch()
time.sleep(300)
"""
START = """
import pathlib, subprocess, sys, time
def start(name):
    child = subprocess.Popen([sys.executable, "child.py", name])
    while not pathlib.Path(name + ".ready").exists(): time.sleep(0.01)
    return child
"""
SERVER = """
import subprocess, sys
server = subprocess.Popen(
    [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


@pytest.fixture
def project(module_project: Project) -> Iterator[Project]:
    yield from reuse_project(module_project)
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


@pytest.fixture
def notebook(project: Project) -> Notebook:
    new_notebook = project.new()
    (new_notebook.path.parent / "child.py").write_text(CHILD)
    assert "ran ok" in new_notebook.insert(START)[1].text
    return new_notebook


def has(notebook: Notebook, name: str, suffix: str) -> bool:
    return (notebook.path.parent / f"{name}.{suffix}").exists()


def is_responding(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def interrupt_by_timeout(notebook: Notebook, source: str) -> None:
    text = notebook.insert(f"# stepper: timeout=3\n{source}")[1].text
    assert "its deadline" in text


def interrupt_by_command(notebook: Notebook, source: str) -> None:
    texts = list[str]()
    payload = notebook.edited("insert", source)

    def run() -> None:
        texts.append(notebook.project.hook("PostToolUse", payload).text)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: has(notebook, "own", "ready"))
    assert "interrupted cell" in notebook.project.stepper("interrupt").stdout
    thread.join(120)
    assert "CANCELLED" in texts[0]


def interrupt_by_escape(notebook: Notebook, source: str) -> None:
    edit = Edit(notebook, source)
    wait_until(lambda: has(notebook, "own", "ready"))
    edit.hook.terminate()
    wait_until(lambda: has(notebook, "own", "interrupted"))
    assert "was CANCELLED" in say(notebook, "What now?")


INTERRUPTS = [interrupt_by_timeout, interrupt_by_command, interrupt_by_escape]


@pytest.mark.nightly
@pytest.mark.parametrize("interrupt", mark_nightly(INTERRUPTS, interrupt_by_command))
def test_server_of_earlier_cell_keeps_running(
    notebook: Notebook, interrupt: Callable[[Notebook, str], None]
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    notebook.insert(SERVER.format(port=port) + "early = start('early')")
    wait_until(lambda: is_responding(port))
    # the next cell starts so soon that the clock can't separate the children
    notebook.insert("late = start('late')")
    interrupt(notebook, "own = start('own')\ntime.sleep(60)")
    wait_until(lambda: has(notebook, "own", "interrupted"))
    alive = "print(server.poll(), early.poll(), late.poll(), own.wait())"
    assert "| None None None 0" in notebook.insert(alive)[1].text
    assert is_responding(port)
    assert not has(notebook, "early", "interrupted")
    assert not has(notebook, "late", "interrupted")


CELLS = {
    "subprocess.run": "subprocess.run([sys.executable, 'child.py', 'own'])",
    "a shell": "subprocess.run('{ %s child.py own; }; true' % sys.executable, shell=True)",
    "!": "!{sys.executable} child.py own",
    "%%bash": "%%bash\n{python} child.py own",
    "multiprocessing": (
        "import multiprocessing, runpy\n"
        "def work():\n"
        "    sys.argv[1:] = ['own']\n"
        "    runpy.run_path('child.py', run_name='__main__')\n"
        "task = multiprocessing.get_context('fork').Process(target=work)\n"
        "task.start(); task.join()"
    ),
}


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("is_adjacent", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("kind", mark_nightly([*CELLS], "subprocess.run", "!"))
def test_child_of_the_interrupted_cell_is_interrupted(
    notebook: Notebook, kind: str, is_adjacent: bool
) -> None:
    if is_adjacent:
        notebook.insert("early = start('early')")
    source = CELLS[kind].replace("{python}", sys.executable)
    interrupt_by_command(notebook, source)
    wait_until(lambda: has(notebook, "own", "interrupted"))
    assert not has(notebook, "early", "interrupted")
    assert "| 42" in notebook.insert("print(6 * 7)")[1].text


@pytest.mark.nightly
def test_new_daemon_spares_children_of_earlier_cells(
    fresh_project: Project,
) -> None:
    notebook = fresh_project.new()
    (notebook.path.parent / "child.py").write_text(CHILD)
    notebook.insert(START + "early = start('early')")
    payload = notebook.edited("insert", "own = start('own')\ntime.sleep(60)")
    thread = threading.Thread(target=fresh_project.hook, args=("PostToolUse", payload))
    thread.start()
    wait_until(lambda: has(notebook, "own", "ready"))
    fresh_project.kill_daemon()
    wait_until(lambda: fresh_project.json("status")["running"])
    fresh_project.stepper("interrupt")
    thread.join(120)
    wait_until(lambda: has(notebook, "own", "interrupted"))
    assert not has(notebook, "early", "interrupted")
    assert "| None" in notebook.insert("print(early.poll())")[1].text


@pytest.mark.nightly
def test_descendants_of_earlier_processes_are_spared(tmp_path: Path) -> None:
    script = "import subprocess, sys, time\n" + (
        "for line in sys.stdin: subprocess.Popen(['sleep', '300'])"
    )

    def lead() -> None:
        # A shell without job control starts background processes with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.setpgrp()

    with subprocess.Popen(["sleep", "300"], preexec_fn=lead) as leader:  # noqa: PLW1509

        def start(
            *command: str, stdin: int = subprocess.DEVNULL
        ) -> subprocess.Popen[bytes]:
            def join() -> None:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.setpgid(0, leader.pid)

            return subprocess.Popen(command, stdin=stdin, preexec_fn=join)  # noqa: PLW1509

        file = tmp_path / "kernel.earlier"
        group = ProcessGroup(Identity.from_pid(leader.pid), file)
        group.record_earlier_processes()
        assert group.earlier == [] and not file.exists()
        forks = start(sys.executable, "-c", script, stdin=subprocess.PIPE)
        group.record_earlier_processes()
        assert [process.pid for process in group.earlier] == [forks.pid]
        assert forks.stdin is not None
        forks.stdin.write(b"\n")
        forks.stdin.flush()
        child = start("sleep", "300")
        wait_until(lambda: len(set(group._iterate_pids())) == 3)
        (forked,) = {*group._iterate_pids()} - {forks.pid, child.pid}
        restored_group = ProcessGroup(Identity.from_pid(leader.pid), file)
        assert restored_group.earlier == group.earlier
        asyncio.run(restored_group.interrupt())
        assert child.wait(120) == -signal.SIGINT
        assert leader.wait(120) == -signal.SIGINT
        assert forks.poll() is None
        os.kill(forked, 0)
        restored_group.record_earlier_processes()
        assert {process.pid for process in restored_group.earlier} == {
            forks.pid,
            forked,
        }
        os.kill(forked, signal.SIGKILL)
        forks.kill()
        forks.wait()
        forks.stdin.close()
        wait_until(lambda: not [*restored_group._iterate_pids()])
        restored_group.record_earlier_processes()
        assert restored_group.earlier == [] and not file.exists()


def measure(function: Callable[[], None]) -> float:
    """Return the median of the processor times of a function."""
    times = list[float]()
    for _ in range(50):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return statistics.median(times)


def test_listing_children_before_each_cell_is_cheap() -> None:
    group = ProcessGroup(Identity.from_pid(os.getpid()), Path("/none/there"))

    def read_all() -> None:
        """Read a file of each process of the system."""
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError):  # the process has exited
                Path("/proc", pid, "stat").read_bytes()

    # a sixteenth when this test was written
    assert measure(group.record_earlier_processes) < measure(read_all) / 3
