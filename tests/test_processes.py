"""A kernel shutdown kills all child processes; a reused pid is never signalled."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.cli.shutdown import kill_processes
from stepper.kernels.backends.local.process_identity import (
    MARKER,
    Identity,
    find_kernel_processes,
    kill_kernel_processes,
)
from stepper.kernels.kernel_process import describe_exit
from tests.conftest import Notebook, Project, mark_nightly

# Child processes in the cell's process group, in other groups and sessions, orphaned,
# without environment variables, and forking repeatedly.
CHILD_COUNT = 9
START_CHILDREN = """
import os, subprocess, sys, time
sleep = ["sleep", "{seconds}"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
subprocess.Popen(["setsid", *sleep])
subprocess.Popen(sleep, preexec_fn=os.setpgrp)
subprocess.Popen(["env", "-i", *sleep])
subprocess.Popen(["sh", "-c", "sleep {seconds}; true"])
daemon = "import os\\nif os.fork(): os._exit(0)\\nos.setsid()\\nif os.fork(): os._exit(0)\\nos.execvp('sleep', ['sleep', '{seconds}'])"
subprocess.run([sys.executable, "-c", daemon], check=True)
subprocess.Popen(["sh", "-c", "trap '' TERM INT HUP; for i in 1 2 3 4 5 6 7 8 9; do sleep 0.02; done; exec sleep {seconds}"])
os.system("sleep {seconds} &")
"""
FORKING = """
subprocess.Popen(["sh", "-c", "while :; do sleep {seconds} & sleep 0.1; done"], start_new_session=True)
"""


def wait_until_met(
    condition: Callable[[], Any], message: str, seconds: float = 120
) -> None:
    """Wait for a condition; the timeout only prevents a hang."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.05)


class Sleepers:
    """The processes `sleep SECONDS` of a test, with a unique number of seconds."""

    def __init__(self) -> None:
        self.seconds = f"{1000 + os.getpid() % 1000}.{time.monotonic_ns()}"

    def start(self, **options: Any) -> subprocess.Popen[bytes]:
        """Start such a process without stepper."""
        return subprocess.Popen(["sleep", self.seconds], **options)

    def find_all(self) -> list[psutil.Process]:
        """Return all that are running."""
        results = []
        for pid in psutil.pids():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if (
                    process.cmdline() == ["sleep", self.seconds]
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    results.append(process)
        return results


@pytest.fixture
def sleepers() -> Iterator[Sleepers]:
    sleepers = Sleepers()
    yield sleepers
    for process in sleepers.find_all():
        process.kill()


@pytest.fixture
def foreign() -> Iterator[subprocess.Popen[bytes]]:
    """A foreign process that leads its process group, like a kernel."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        yield process
        ended = process.poll()
        process.kill()
    assert ended is None, f"a foreign process was signalled: {ended}"


def find_record(project: Project) -> Path:
    (path,) = Path(project.paths.kernels).rglob("*.json")
    return path


def change_record(project: Project, **provisioner: Any) -> None:
    """Change values in the record of a kernel's process; None removes a value."""
    data = json.loads(find_record(project).read_text())
    settings = {
        name: value
        for name, value in data["provisioner"].items()
        if name not in provisioner
    }
    data["provisioner"] = {
        **settings,
        **{name: value for name, value in provisioner.items() if value is not None},
    }
    find_record(project).write_text(json.dumps(data))


def list_kernel_processes(kernel: str) -> list[int]:
    """Return the processes with that kernel's id in their environment."""
    results = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARKER}={kernel}".encode() in (folder / "environ").read_bytes().split(
                b"\0"
            ):
                results.append(int(folder.name))
    return results


def list_leftovers(project: Project) -> list[str]:
    """Return the files of ended kernels and daemons in stepper's folders."""
    folders = (Path(project.paths.runtime), Path(project.paths.kernels))
    names = [
        path.name
        for folder in folders
        for path in folder.rglob("*")
        if not path.is_dir()
    ]
    return [name for name in names if not name.endswith(".stderr")]


def assert_kernel_lost(notebook: Notebook) -> None:
    """Assert that the next cell does not run because the kernel died; then continue."""
    answer = notebook.insert("1")[1].text
    assert (
        "NOT run" in answer
        and "KernelDied" in answer
        and "all variables are lost" in answer
    )
    notebook.project.stepper("continue")


def is_dead(pid: int) -> bool:
    return (
        not psutil.pid_exists(pid)
        or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    )


def kill_and_wait(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until_met(lambda: is_dead(pid), "still running after SIGKILL")


# --- ends of a kernel -----------------------------------------------------------------


def shutdown_kernel(project: Project, notebook: Notebook, pid: int) -> None:
    assert "1 kernel of" in project.stepper("shutdown").stdout


def restart_kernel(project: Project, notebook: Notebook, pid: int) -> None:
    project.stepper("restart")


def die_in_cell(project: Project, notebook: Notebook, pid: int) -> None:
    assert "exit code 1" in notebook.insert("import os; os._exit(1)")[1].stop


def exit_in_cell(project: Project, notebook: Notebook, pid: int) -> None:
    assert "KernelDied" in notebook.insert("exit()")[1].stop


def kill_in_cell(project: Project, notebook: Notebook, pid: int) -> None:
    assert (
        "(SIGKILL)"
        in notebook.insert(f"import os, time; os.kill({pid}, 9); time.sleep(30)")[
            1
        ].stop
    )


def kill_while_idle(project: Project, notebook: Notebook, pid: int) -> None:
    kill_and_wait(pid)
    assert "the kernel died (SIGKILL)" in notebook.insert("1")[1].text


def kill_found_by_status(project: Project, notebook: Notebook, pid: int) -> None:
    kill_and_wait(pid)
    assert project.json("status")["kernel"]["state"] == "dead"


def kill_without_daemon(project: Project, notebook: Notebook, pid: int) -> None:
    project.kill_daemon()
    kill_and_wait(pid)
    assert_kernel_lost(notebook)


def shutdown_without_daemon(project: Project, notebook: Notebook, pid: int) -> None:
    project.kill_daemon()
    assert "1 kernel of" in project.stepper("shutdown").stdout


def kill_by_force(project: Project, notebook: Notebook, pid: int) -> None:
    daemon = project.json("status")["daemon"]["pid"]
    os.kill(daemon, signal.SIGSTOP)
    assert kill_processes(project.paths) == 1
    assert is_dead(daemon) and list_leftovers(project) == []


BY_STEPPER = [shutdown_kernel, restart_kernel, shutdown_without_daemon, kill_by_force]
NOT_BY_STEPPER = [
    die_in_cell,
    exit_in_cell,
    kill_in_cell,
    kill_while_idle,
    kill_found_by_status,
    kill_without_daemon,
]


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    "end",
    mark_nightly(BY_STEPPER + NOT_BY_STEPPER, shutdown_kernel, kill_without_daemon),
)
def test_child_processes_are_killed_with_their_kernel(
    project: Project, sleepers: Sleepers, end: Callable[[Project, Notebook, int], None]
) -> None:
    project.daemons = False  # visible by its command line
    notebook = project.new()
    start = START_CHILDREN.format(seconds=sleepers.seconds)
    # A process without environment variables is only recognized by its parent.
    if end in NOT_BY_STEPPER:
        start = start.replace('["env", "-i", *sleep]', "sleep")
    assert "ran ok" in notebook.insert(start)[1].text
    wait_until_met(
        lambda: len(sleepers.find_all()) == CHILD_COUNT, "not all were started"
    )
    kernel = json.loads(find_record(project).read_text())["kernel"]
    pid = project.json("status")["kernel"]["pid"]
    assert (
        pid in list_kernel_processes(kernel)
        and len(list_kernel_processes(kernel)) > CHILD_COUNT - 1
    )
    # not a child process of the cell, but with the same command line
    other_process = sleepers.start(start_new_session=True)
    end(project, notebook, pid)
    assert [process.pid for process in sleepers.find_all()] == [other_process.pid]
    assert list_kernel_processes(kernel) == [] and is_dead(pid)
    project.stepper("shutdown")
    assert other_process.poll() is None and list_leftovers(project) == []
    other_process.kill()
    other_process.wait()


@pytest.mark.nightly
def test_continuously_forking_tree_is_killed(
    project: Project, sleepers: Sleepers
) -> None:
    notebook = project.new()
    notebook.insert("import subprocess" + FORKING.format(seconds=sleepers.seconds))
    wait_until_met(lambda: len(sleepers.find_all()) > 3, "it does not fork")
    project.stepper("shutdown")
    assert sleepers.find_all() == []


@pytest.mark.nightly
def test_daemon_and_kernel_of_another_project_survive(
    project: Project, tmp_path: Path
) -> None:
    other_project = Project(tmp_path / "other")
    inner = other_project.new()
    other_project.stepper("shutdown")
    command = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        "run",
        str(inner.path),
    ]
    inner.path.write_text(json.dumps({**inner.raw, "cells": [cell("x = 5", "c")]}))
    try:
        notebook = project.new()
        source = f"import subprocess\nprint(subprocess.run({command!r}, cwd={str(other_project.folder)!r}).returncode)"
        assert "| 0" in notebook.insert(source)[1].text
        pid = other_project.json("status")["kernel"]["pid"]
        project.stepper("shutdown")
        assert not is_dead(pid)
        assert "| 5" in inner.insert("print(x)")[1].text
    finally:
        other_project.stepper("shutdown")
    assert is_dead(pid)


def cell(source: str, cell_id: str) -> dict[str, Any]:
    return {
        "id": cell_id,
        "cell_type": "code",
        "source": source,
        "metadata": {},
        "execution_count": None,
        "outputs": [],
    }


@pytest.mark.nightly
@pytest.mark.parametrize(
    "action", mark_nightly(["a cell", "shutdown", "force"], "a cell")
)
def test_daemon_killed_during_kernel_start_leaves_no_process(
    project: Project, action: str
) -> None:
    """The kernel's process runs, but the daemon has not read its connection file."""
    python = project.folder / "python"
    python.write_text("#!/bin/sh\nexec sleep 1000\n")
    python.chmod(0o755)
    project.config("python: python")
    project.stepper("trust", "--yes")
    notebook = project.new()
    notebook.path.write_text(json.dumps({**notebook.raw, "cells": [cell("1", "c")]}))
    command = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        "run",
        str(notebook.path),
    ]
    with subprocess.Popen(
        command,
        cwd=project.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as client:
        wait_until_met(
            lambda: list(Path(project.paths.kernels).rglob("*.json")),
            "the kernel is not on record",
        )
        kernel = json.loads(find_record(project).read_text())["kernel"]
        wait_until_met(
            lambda: list_kernel_processes(kernel), "the kernel does not start"
        )
        client.send_signal(signal.SIGSTOP)  # or else it asks the next daemon
        project.config("")
        kill_and_wait(json.loads(Path(project.paths.daemon_json).read_text())["pid"])
        client.kill()
    assert list_kernel_processes(kernel)
    if action == "a cell":
        answer = notebook.insert("print(6 * 7)")[1]
        assert "| 42" in answer.text and "state lost" not in answer.text
    elif action == "shutdown":
        project.stepper("shutdown")
    else:
        assert kill_processes(project.paths) == 1
    assert list_kernel_processes(kernel) == []
    project.stepper("shutdown")
    assert list_leftovers(project) == []


# --- reused pids ----------------------------------------------------------------------

OTHER_BOOT = "11111111-2222-3333-4444-555555555555/4711"


@pytest.mark.parametrize(
    ("version", "action"),
    [
        pytest.param("another boot", "a cell", marks=pytest.mark.nightly),
        pytest.param("another boot", "force", marks=pytest.mark.nightly),
        ("later in this boot", "shutdown"),
        pytest.param("later in this boot", "force", marks=pytest.mark.nightly),
        pytest.param("an older stepper's", "a cell", marks=pytest.mark.nightly),
        ("an older stepper's", "force"),
    ],
)
def test_reused_kernel_pid_is_never_signalled(
    project: Project, foreign: subprocess.Popen[bytes], version: str, action: str
) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    pid, kernel = (
        project.json("status")["kernel"]["pid"],
        json.loads(find_record(project).read_text())["kernel"],
    )
    project.kill_daemon()
    kill_and_wait(pid)
    data: dict[str, Any] = {"pid": foreign.pid, "pgid": foreign.pid}
    if version == "another boot":  # the start times can be equal
        data |= {
            "born": OTHER_BOOT,
            "created": psutil.Process(foreign.pid).create_time(),
        }
    elif version == "an older stepper's":
        data |= {"born": None, "created": psutil.Process(foreign.pid).create_time() - 5}
    change_record(project, **data)
    assert json.loads(find_record(project).read_text())["kernel"] == kernel
    if action == "a cell":
        assert_kernel_lost(notebook)
        assert "| False" in notebook.insert("print('x' in globals())")[1].text
    elif action == "shutdown":
        project.stepper("shutdown")
    else:
        kill_processes(project.paths)
    project.stepper("shutdown")
    assert list_leftovers(project) == []


@pytest.mark.nightly
def test_machine_restart(project: Project, foreign: subprocess.Popen[bytes]) -> None:
    """All files remain as after a power failure; other processes have the pids."""
    notebook = project.new()
    notebook.insert("x = 1")
    pid = project.json("status")["kernel"]["pid"]
    project.kill_daemon()
    kill_and_wait(pid)
    change_record(project, pid=foreign.pid, pgid=foreign.pid, born=OTHER_BOOT)
    about = json.loads(Path(project.paths.daemon_json).read_text())
    Path(project.paths.daemon_json).write_text(
        json.dumps({**about, "pid": foreign.pid})
    )
    # the connection file of a kernel that was starting
    connection = Path(project.paths.runtime) / "k0123abcd.json"
    connection.write_text("{}")
    assert os.path.exists(project.paths.socket) and len(list_leftovers(project)) >= 4
    assert "socket" in project.stepper("doctor", check=None).stdout
    assert_kernel_lost(notebook)
    assert "| False" in notebook.insert("print('x' in globals())")[1].text
    project.stepper("shutdown")
    assert list_leftovers(project) == [connection.name]


def test_reused_daemon_pid_is_not_awaited(
    project: Project, foreign: subprocess.Popen[bytes]
) -> None:
    project.new()
    project.kill_daemon()
    Path(project.paths.daemon_json).write_text(
        json.dumps({"pid": foreign.pid, "version": "0", "socket": "x"})
    )
    began = time.monotonic()
    assert "Nothing to stop" in project.stepper("shutdown").stdout
    assert time.monotonic() - began < 8  # it waits 10 s for a running daemon
    assert kill_processes(project.paths) == 0


@pytest.mark.nightly
def test_invalid_socket_file(project: Project) -> None:
    notebook = project.new()
    project.stepper("shutdown")
    Path(project.paths.socket).write_text("in the way")
    assert "| 2" in notebook.insert("print(1 + 1)")[1].text


@pytest.mark.nightly
def test_records_of_older_versions_and_changed_clock(project: Project) -> None:
    notebook = project.new()
    notebook.insert("x = 1")
    pid = project.json("status")["kernel"]["pid"]
    project.kill_daemon()
    created = json.loads(find_record(project).read_text())["provisioner"]["created"]
    change_record(project, created=created - 3600)  # the clock was set since then
    assert "| 1" in notebook.insert("print(x)")[1].text
    project.kill_daemon()
    change_record(project, born=None, created=created)
    assert "| 1" in notebook.insert("print(x)")[1].text
    assert project.json("status")["kernel"]["pid"] == pid
    project.stepper("interrupt")
    assert "1 kernel of" in project.stepper("shutdown").stdout
    assert is_dead(pid)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "texts",
    mark_nightly(
        [("", '{"kernel": "*"}'), ("[]", '{"kernel": ""}', '{"connection": {}}')],
        ("", '{"kernel": "*"}'),
    ),
)
def test_invalid_records_kill_nothing(project: Project, texts: tuple[str, ...]) -> None:
    """A cell still runs, too."""
    notebook = project.new()
    notebook.insert("1")
    path, connection_file = (
        find_record(project),
        Path(project.paths.runtime) / "k0123abcd.json",
    )
    connection_file.write_text("{}")
    for text in texts:
        project.stepper("shutdown")
        path.write_text(text)
        assert "| 2" in notebook.insert("print(1 + 1)")[1].text
        assert len(json.loads(path.read_text())) > 3 and connection_file.exists()


# --- process identity -----------------------------------------------------------------


def test_identity_matches_one_process() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        identity = Identity.from_pid(process.pid)
        assert identity.is_running() and identity == Identity.from_pid(
            process.pid
        ) == Identity.from_record(identity.__dict__)
        boot, _, ticks = identity.born.partition("/")
        wrong_births = [f"{boot}/{int(ticks) - 1}", f"{OTHER_BOOT}", f"{ticks}", "gone"]
        for born in wrong_births:
            wrong_identity = Identity(process.pid, born, identity.created)
            assert not wrong_identity.is_running()
            wrong_identity.send_signal(signal.SIGKILL)
        assert Identity(process.pid, "", identity.created).is_running()
        assert not Identity(process.pid, "", identity.created - 2).is_running()
        assert process.poll() is None
        identity.send_signal(signal.SIGKILL)
        wait_until_met(
            lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE,
            "not killed",
        )
        assert (
            not identity.is_running()
            and not Identity(process.pid, "", identity.created).is_running()
        )
    assert not Identity.from_pid(process.pid).is_running()


@pytest.mark.parametrize("pid", [0, -1, 1 << 40])
@pytest.mark.parametrize("born", ["", OTHER_BOOT])
def test_special_pids_are_never_signalled(pid: int, born: str) -> None:
    """Signals to pid 0 or -1 reach a process group or all processes."""
    identity = Identity(pid, born, 0.0)
    assert not identity.is_running()
    identity.send_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
        # A real-time signal, for which Python has no name.
        ("import os; os.kill(os.getpid(), 40)", "signal 40"),
    ],
)
def test_exit_of_a_process_is_described(code: str, reason: str) -> None:
    process = subprocess.run([sys.executable, "-c", code], check=False)
    assert describe_exit(process.returncode) == reason


@pytest.mark.parametrize(
    "message", [{}, {"pid": "x", "created": 1}, {"pid": None, "created": 1}, {"pid": 1}]
)
def test_record_without_identity(message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Identity.from_record(message)


def test_process_tree_excludes_other_kernels() -> None:
    inner = f"import subprocess, os; subprocess.Popen(['sleep', '1000'], env={{**os.environ, {MARKER!r}: 'b'}}).wait()"
    with subprocess.Popen(
        [sys.executable, "-c", inner], env={**os.environ, MARKER: "a"}
    ) as process:
        wait_until_met(lambda: find_kernel_processes("b"), "it did not start")
        (inner_process,) = find_kernel_processes("b")
        assert [
            item.pid
            for item in find_kernel_processes("a", Identity.from_pid(process.pid))
        ] == [process.pid]
        assert (
            find_kernel_processes("")
            == []
            == find_kernel_processes("c", Identity(process.pid, OTHER_BOOT, 0.0))
        )
        assert kill_kernel_processes("a") == 1 and inner_process.is_running()
        assert kill_kernel_processes("b") == 1
        wait_until_met(
            lambda: (
                not inner_process.is_running()
                or inner_process.status() == psutil.STATUS_ZOMBIE
            ),
            "still running",
        )
