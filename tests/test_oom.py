"""Out of memory in a small cgroup: the cell is stopped or killed, and the daemon survives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepper.kernels.backends.local import process_identity
from stepper.kernels.backends.local.available_memory import CGROUPS, OOM_SCORE, OomKills
from stepper.messages import stop_suggestion
from stepper.policy import run_decisions
from stepper.policy.model import Death, Outcome, Verdict
from tests.conftest import Notebook, Project
from tests.test_kernel_helper import Lab

MB = 1 << 20
SMALL = 320 * MB
CLI = "from stepper.cli.main import main; main()"


class Group:
    """A memory cgroup for a test, with cgroup version 1 or 2."""

    daemon = 0

    def __init__(self, limit: int) -> None:
        v1 = CGROUPS / "memory"
        self.v2 = not (v1 / "memory.limit_in_bytes").exists()
        root = CGROUPS if self.v2 else v1
        self.folder = root / f"stepper-test-{os.getpid()}"
        try:
            self.folder.mkdir()
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        try:
            (
                self.folder / ("memory.max" if self.v2 else "memory.limit_in_bytes")
            ).write_text(str(limit))
            swap = self.folder / (
                "memory.swap.max" if self.v2 else "memory.memsw.limit_in_bytes"
            )
            if swap.exists():
                swap.write_text("0" if self.v2 else str(limit))
        except OSError as error:
            self.remove()
            pytest.skip(f"a cgroup here can't be given a limit: {error}")

    def wrap_command(self, *command: str) -> list[str]:
        """Return a command that runs another command inside the group."""
        return [
            "sh",
            "-c",
            'echo $$ > "$0" && exec "$@"',
            str(self.folder / "cgroup.procs"),
            *command,
        ]

    def kills(self) -> int:
        """Return how many processes of the group the OOM killer has killed."""
        text = (
            self.folder / ("memory.events" if self.v2 else "memory.oom_control")
        ).read_text()
        return int(dict(line.split() for line in text.splitlines())["oom_kill"])

    def remove(self) -> None:
        limit = time.monotonic() + 120
        while True:  # it still contains processes that have just exited
            try:
                self.folder.rmdir()
                return
            except OSError:
                assert time.monotonic() < limit, (
                    self.folder / "cgroup.procs"
                ).read_text()
                time.sleep(0.05)


def start_inside(project: Project, group: Group) -> int:
    """Start the project's daemon and its kernels in the group; return its pid."""
    subprocess.run(
        group.wrap_command(sys.executable, "-c", CLI, "status"),
        cwd=project.folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    daemon: int = project.json("status")["daemon"]["pid"]
    assert str(daemon) in (group.folder / "cgroup.procs").read_text().split()
    return daemon


@pytest.fixture
def small(project: Project) -> Iterator[Group]:
    """A small cgroup with the project's daemon, which must survive."""
    group = Group(SMALL)
    try:
        group.daemon = start_inside(project, group)
        yield group
        assert project.json("status")["daemon"]["pid"] == group.daemon, (
            "the daemon died"
        )
    finally:
        project.stepper("shutdown", check=None)
        group.remove()


SLOWLY = "import time\nheld = []\nfor _ in range(400):\n    held.append(bytearray(2_000_000))\n    time.sleep(0.04)"
IN_ONE_GO = "held = b'x' * 3_000_000_000"


@pytest.mark.nightly
def test_slow_allocation_is_stopped_by_the_guard(
    project: Project, small: Group
) -> None:
    notebook = project.new("One")
    notebook.insert("before = 41")
    pid = project.json("status")["kernel"]["pid"]
    _, response = notebook.insert(SLOWLY)
    assert (
        "Error Type: MemoryLimit" in response.stop
        and "memory use of the kernel's cgroup reached " in response.stop
    )
    assert "the kernel keeps its variables" in response.stop
    assert small.kills() == 0 and project.json("status")["kernel"]["pid"] == pid
    assert "42" in project.stepper("eval", "before + 1").stdout


def names_oom_kill(stop: str) -> bool:
    """Return whether the report names the OOM killer, or the guard if it was faster."""
    first = (
        "Error Type: MemoryLimit"
        if " reached 100 % (" in stop
        else "Error Type: KernelDied"
    )
    return (
        first in stop
        and "kernel died (killed by the system: out of memory (SIGKILL)): all variables are"
        in stop
    )


@pytest.mark.nightly
def test_sudden_allocation_kills_only_its_kernel(
    project: Project, small: Group
) -> None:
    project.config("max_memory_percent: 100")  # the guard cannot react in time
    notebook = project.new("One")
    notebook.insert("before = 41")
    pid = project.json("status")["kernel"]["pid"]
    _, response = notebook.insert(IN_ONE_GO)
    assert small.kills() == 1 and not psutil.pid_exists(pid)
    assert names_oom_kill(response.stop), response.stop
    assert "in smaller chunks" in response.stop.splitlines()[-1]
    fresh(project, notebook)
    # a user's kill is distinguished from the earlier kill by the system
    pid = project.json("status")["kernel"]["pid"]
    _, response = notebook.insert(f"import os; os.kill({pid}, 9)")
    assert (
        "kernel died (SIGKILL)" in response.stop
        and "out of memory" not in response.stop
    )


@pytest.mark.nightly
def test_adopted_kernel_killed_out_of_memory(project: Project, small: Group) -> None:
    """An adopted kernel is no child process; the cgroup's counter shows the cause."""
    project.config("max_memory_percent: 100")
    notebook = project.new("One")
    notebook.insert("before = 41")
    project.kill_daemon()
    small.daemon = start_inside(project, small)
    _, response = notebook.insert("assert before == 41\n" + IN_ONE_GO)
    assert small.kills() == 1 and names_oom_kill(response.stop), response.stop
    fresh(project, notebook)


@pytest.mark.nightly
def test_child_that_fills_the_cgroup_is_killed_alone(
    project: Project, small: Group
) -> None:
    project.config("max_memory_percent: 100")
    notebook = project.new("One")
    notebook.insert("before = 41")
    source = f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {IN_ONE_GO!r}]).returncode + before)"
    _, response = notebook.insert(source)
    assert small.kills() == 1 and "| 32" in response.text  # -9 + 41
    pid = project.json("status")["kernel"]["pid"]
    os.kill(pid, 9)
    assert (
        "out of memory"
        not in project.stepper("run", check=None).stdout + notebook.insert("1")[1].text
    )


def fresh(project: Project, notebook: Notebook) -> None:
    project.stepper("continue")
    assert "| 42" in notebook.insert("print(6 * 7)")[1].text


# without a cgroup for the test


def test_kernel_is_killed_before_the_daemon(project: Project) -> None:
    notebook = project.new()
    notebook.insert("import subprocess; child = subprocess.Popen(['sleep', '1000'])")
    (record,) = Path(project.paths.kernels).rglob("*.json")
    kernel = json.loads(record.read_text())["kernel"]
    status = project.json("status")

    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    daemon = score(status["daemon"]["pid"])
    members = [item.pid for item in process_identity.find_kernel_processes(kernel)]
    assert status["kernel"]["pid"] in members and len(members) == 2
    assert {score(pid) for pid in members} == {min(1000, daemon + OOM_SCORE)}


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(sys.executable)
    yield lab
    lab.close()


@pytest.mark.nightly
def test_memory_error_is_an_ordinary_error(lab: Lab) -> None:
    """With a process limit, the system refuses memory instead of killing."""
    limited = "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 32, resource.RLIM_INFINITY))\nkept = 1\n"
    result = lab.run(limited + "held = bytearray(1 << 33)")
    assert result.outcome is Outcome.ERROR and result.death is None
    assert result.fault is not None and result.fault.ename == "MemoryError"
    assert lab.ok("assert kept == 1").outcome is Outcome.OK


@pytest.mark.nightly
def test_manual_kill_is_not_out_of_memory(lab: Lab) -> None:
    result = lab.run("import os; os.kill(os.getpid(), 9)")
    assert result.death is not None and result.death.reason == "SIGKILL"


def counters(tmp_path: Path, cgroup: str) -> tuple[Path, Path]:
    """A /sys/fs/cgroup and a /proc with process 7 in that cgroup."""
    (tmp_path / "cg").mkdir()
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(cgroup)
    (tmp_path / "proc" / "vmstat").write_text(
        "nr_free_pages 1\noom_kill 3\nballoon_inflate 0\n"
    )
    return tmp_path / "cg", tmp_path / "proc"


def test_oom_counter_of_cgroup_v2(tmp_path: Path) -> None:
    root, proc = counters(tmp_path, "0::/a/b\n")
    for folder, kills in ((root / "a", 5), (root / "a" / "b", 2)):
        folder.mkdir()
        (folder / "memory.events").write_text(
            f"low 0\nhigh 0\nmax 9\noom 4\noom_kill {kills}\noom_group_kill 0\n"
        )
    kills = OomKills(7, root, proc)
    assert not kills.has_increased()
    (root / "a" / "memory.events").write_text("oom_kill 6\n")  # another cgroup
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert not kills.has_increased()
    (proc / "7" / "cgroup").unlink()  # the process has exited
    (root / "a" / "b" / "memory.events").write_text("max 10\noom 5\noom_kill 3\n")
    assert kills.has_increased()
    kills.reset()
    assert not kills.has_increased()


def test_oom_counter_of_cgroup_v1(tmp_path: Path) -> None:
    root, proc = counters(tmp_path, "5:cpu:/job\n4:memory:/job\n0::/job\n")
    (root / "memory" / "job").mkdir(parents=True)
    file = root / "memory" / "job" / "memory.oom_control"
    file.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    kills = OomKills(7, root, proc)
    file.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    assert kills.has_increased()


@pytest.mark.parametrize(
    "text",
    [None, "", "oom_kill\n", "oom_kill x\n", "oom_kill_disable 0\nunder_oom 0\n"],
)
def test_machine_oom_counter_is_the_fallback(tmp_path: Path, text: str | None) -> None:
    root, proc = counters(tmp_path, "4:memory:/\n")
    if text is not None:
        (root / "memory").mkdir()
        (root / "memory" / "memory.oom_control").write_text(text)
    kills = OomKills(7, root, proc)
    assert not kills.has_increased()
    (proc / "vmstat").write_text("oom_kill 4\n")
    assert kills.has_increased()


def test_no_oom_kill_is_reported_without_a_counter(tmp_path: Path) -> None:
    kills = OomKills(7, tmp_path / "no", tmp_path / "none")
    kills.reset()
    assert not kills.has_increased()


def test_out_of_memory_messages() -> None:
    death = Death("killed by the system: out of memory (SIGKILL)", cause="OutOfMemory")
    fault, verdict = run_decisions.judge_run(Outcome.KERNEL_DIED, None, (), death)
    assert (
        fault is not None
        and verdict is Verdict.UNRECOVERABLE
        and fault.ename == "KernelDied"
    )
    assert "in smaller chunks" in stop_suggestion.suggest_action(
        Outcome.KERNEL_DIED, verdict, fault
    )
