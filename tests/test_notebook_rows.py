"""`stepper list` reads only notebooks that may have changed, and lists processes once."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from stepper.daemon import resource_usage
from stepper.kernels import process_tree
from stepper.session.session import Session
from tests.conftest import code
from tests.test_session import Quick
from tests.test_session import project as without_processes

quick = without_processes
Rows = Callable[[], dict[str, Any]]


@pytest.fixture
def opened_sessions(quick: Quick, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notebooks for which a session was opened, in order."""
    names = list[str]()
    original = quick.daemon.workspace.peek_session

    def peek_session(path: str, **options: bool) -> Session:
        session = original(path, **options)
        names.append(session.name)
        return session

    monkeypatch.setattr(quick.daemon.workspace, "peek_session", peek_session)
    return names


def list_rows(project: Quick) -> dict[str, Any]:
    return {row["notebook"]: row for row in project.json("list")}


def test_unchanged_notebook_is_read_once(
    quick: Quick, opened_sessions: list[str]
) -> None:
    for name in "ab":
        quick.notebook(f"{name}.ipynb", [code("1", name)])
    first = list_rows(quick)
    assert sorted(opened_sessions) == ["notebooks/a.ipynb", "notebooks/b.ipynb"]
    opened_sessions.clear()
    second = list_rows(quick)
    assert opened_sessions == []
    for row in (*first.values(), *second.values()):
        assert row.pop("age_s") >= 0
    assert second == first


def test_each_change_is_visible(quick: Quick, opened_sessions: list[str]) -> None:
    name = "notebooks/a.ipynb"
    quick.notebook("a.ipynb", [code("1", "a")])
    quick.notebook("b.ipynb", [code("1", "b")])
    list_rows(quick)
    opened_sessions.clear()

    # the file, changed by another program with the same size and mtime
    path = quick.folder / name
    about = path.stat()
    text = path.read_text()
    path.write_text(text.replace('"nbformat": 4', '"nbformat": 7'))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
    assert list_rows(quick)[name]["state"] == "unreadable"
    path.write_text(text)
    assert list_rows(quick)[name]["state"] != "unreadable"
    assert opened_sessions == [name, name]

    # the current notebook, which is not in a file of the notebook
    quick.stepper("use", "a")
    assert list_rows(quick)[name]["current"]
    quick.stepper("use", "b")
    assert not list_rows(quick)[name]["current"]
    assert list_rows(quick)["notebooks/b.ipynb"]["current"]

    # a run
    quick.stepper("run", "a")
    assert list_rows(quick)[name]["progress"]["done"] == 1
    assert list_rows(quick)[name]["kernel"]["state"] == "idle"

    # the patterns in the configuration
    quick.notebook("c.ipynb", [code("1", "c")])
    assert "notebooks/c.ipynb" in list_rows(quick)
    quick.config("notebooks: ['a*']\n")
    assert "notebooks/c.ipynb" not in list_rows(quick)

    # deletion
    quick.config("")
    path.with_name("c.ipynb").unlink()
    assert "notebooks/c.ipynb" not in list_rows(quick)


def test_run_journaled_by_another_daemon_is_visible(
    quick: Quick, opened_sessions: list[str]
) -> None:
    notebook = quick.notebook("a.ipynb", [code("1", "a")])
    before = list_rows(quick)["notebooks/a.ipynb"]["progress"]
    assert before["done"] == 0
    quick.notebook("b.ipynb", [code("1", "b")])
    quick.stepper("run", "b")
    journals = quick.folder / ".stepper" / "journal"
    (journal,) = journals.glob("b.jsonl")
    run = journal.read_text().replace('"cell_id":"b"', '"cell_id":"a"')
    (journals / "a.jsonl").write_text(run)
    assert list_rows(quick)["notebooks/a.ipynb"]["progress"]["done"] == 1
    assert notebook.path.exists()


def test_processes_are_read_once_for_many_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = list[int]()
    original = psutil.process_iter

    def count_reads() -> Any:
        reads.append(1)
        return original()

    monkeypatch.setattr(psutil, "process_iter", count_reads)
    monkeypatch.setattr(process_tree, "TABLE_SECONDS", 60.0)
    command = [
        sys.executable,
        "-c",
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'])\n"
        "print(child.pid, flush=True)\n"
        "input()",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        table = process_tree.ProcessTable()
        assert table.list_family(parent.pid) == [parent.pid, child]
        assert table.list_family(child) == [child]
        assert parent.pid in table.list_family(os.getpid())
        assert child in table.list_family(os.getpid())
        assert len(reads) == 1
        parent.kill()
    psutil.Process(child).kill()


def test_only_the_first_cpu_measurement_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits = list[float]()
    clock = [100.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(resource_usage.time, "sleep", sleep)
    monkeypatch.setattr(resource_usage.time, "monotonic", lambda: clock[0])
    sampler = resource_usage.CpuSampler()
    for _ in range(20):
        sampler.measure(os.getpid())
        clock[0] += 0.05
    assert len(waits) == 1
    clock[0] += resource_usage.RECENT_SECONDS  # the last sample is too old
    machine, kernel = sampler.measure(os.getpid())
    assert len(waits) == 2
    assert 0 <= machine <= 100
    assert kernel is not None
    sampler.measure(None)
    assert len(waits) == 3  # samples of another kernel cannot be used
