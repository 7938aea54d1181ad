"""The memory guard: cgroup files, its decisions, and a real kernel that allocates memory."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stepper.kernels.backends.local.available_memory import (
    get_memory_usage,
    list_cgroup_usages,
)
from stepper.kernels.memory_guard import MemoryGuard, MemoryUsage
from stepper.policy.execution_result import Execution
from stepper.policy.model import Outcome
from tests.conftest import Project, mark_nightly
from tests.test_kernel_helper import Lab

MB = 1 << 20


def group(
    folder: Path, maximum: str, current: int, inactive: int, v1: bool = False
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if v1
        else ("memory.max", "memory.current")
    )
    (folder / names[0]).write_text(maximum + "\n")
    (folder / names[1]).write_text(f"{current}\n")
    (folder / "memory.stat").write_text(
        f"anon 1\n{'total_' if v1 else ''}inactive_file {inactive}\n"
    )


def proc(tmp_path: Path, text: str) -> Path:
    folder = tmp_path / "proc" / "7"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(text)
    return tmp_path / "proc"


def test_cgroup_v2_counts_without_cache_and_sees_every_level(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    group(root / "a", str(1000 * MB), 500 * MB, 100 * MB)
    group(root / "a" / "b", "max", 300 * MB, 0)
    group(root / "a" / "b" / "c", str(400 * MB), 300 * MB, 50 * MB)
    cgroup_usages = list_cgroup_usages(7, root, proc(tmp_path, "0::/a/b/c\n"))
    assert {(result.total // MB, result.used // MB) for result in cgroup_usages} == {
        (400, 250),
        (1000, 400),
    }


def test_cgroup_v1(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    group(root / "memory" / "job", str(100 * MB), 90 * MB, 40 * MB, v1=True)
    group(root / "memory", str(0x7FFFFFFFFFFFF000), 1, 0, v1=True)
    cgroup_usages = list_cgroup_usages(
        7, root, proc(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n")
    )
    assert [(result.total // MB, result.used // MB) for result in cgroup_usages] == [
        (100, 50)
    ]


def test_hybrid_machine_and_a_container_whose_own_group_is_the_root(
    tmp_path: Path,
) -> None:
    root = tmp_path / "cg"
    # inside the container, /docker/1 is the root
    group(root / "memory", str(200 * MB), 90 * MB, 40 * MB, v1=True)
    lines = "12:name=systemd:/docker/1\n4:memory,hugetlb:/docker/1\n0::/docker/1\n"
    cgroup_usages = list_cgroup_usages(7, root, proc(tmp_path, lines))
    assert [(result.total // MB, result.used // MB) for result in cgroup_usages] == [
        (200, 50)
    ]


def test_path_that_leads_out_of_the_namespace_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    group(tmp_path / "other", str(100 * MB), 99 * MB, 0)
    group(root, str(200 * MB), 50 * MB, 0)
    cgroup_usages = list_cgroup_usages(7, root, proc(tmp_path, "0::/../other\n"))
    assert [(result.total // MB, result.used // MB) for result in cgroup_usages] == [
        (200, 50)
    ]


def test_cache_larger_than_usage_counts_as_zero(tmp_path: Path) -> None:
    group(tmp_path / "cg", str(100 * MB), 10 * MB, 20 * MB)
    assert [
        item.used
        for item in list_cgroup_usages(7, tmp_path / "cg", proc(tmp_path, "0::/\n"))
    ] == [0]


@pytest.mark.parametrize("name", ["memory.max", "memory.current", "memory.stat"])
@pytest.mark.parametrize("text", [None, "", "max\n", "a b c\ninactive_file x\n", "0\n"])
def test_invalid_cgroup_files_are_ignored(
    tmp_path: Path, name: str, text: str | None
) -> None:
    """The readers never raise, because an error would fail every cell."""
    group(tmp_path / "cg" / "a", str(100 * MB), 10 * MB, 0)
    path = tmp_path / "cg" / "a" / name
    path.unlink() if text is None else path.write_text(text)
    cgroup_usages = list_cgroup_usages(7, tmp_path / "cg", proc(tmp_path, "0::/a\n"))
    assert [result.total for result in cgroup_usages] in ([], [100 * MB])


@pytest.mark.parametrize(
    "text",
    ["", "0::/nowhere\n", "0::/../..\n", "no colons\n", "4:memory\n", "0::/\udcff\n"],
)
def test_cgroup_without_limit_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_bytes(
        text.encode("utf-8", "surrogateescape")
    )
    assert list_cgroup_usages(7, tmp_path / "cg", tmp_path / "proc") == []
    assert list_cgroup_usages(8, tmp_path / "cg", tmp_path / "proc") == []


def test_machine_memory_is_measured() -> None:
    memory_usage = get_memory_usage(os.getpid())
    assert 0 < memory_usage.used < memory_usage.total <= psutil.virtual_memory().total


def watch(percent: float, *observed: tuple[int, int]) -> MemoryGuard:
    """Return a guard with a sequence of (used, process tree) values, of 1,000 bytes."""
    usages, trees = iter(observed), {"now": 0}

    def read_usage() -> MemoryUsage:
        used, trees["now"] = next(usages)
        return MemoryUsage(1000, used, "the kernel's cgroup")

    return MemoryGuard(percent, read_usage, lambda: trees["now"])


@pytest.mark.parametrize(
    ("observed", "trips"),
    [
        ([(500, 0), (799, 500)], False),
        (
            [(500, 0), (800, 1)],
            True,
        ),  # the limit is reached, whichever process uses the memory
        ([(500, 0), (1000, 900)], True),
        (
            [(800, 100), (950, 100)],
            False,
        ),  # above the limit before the cell began: not caused by it
        ([(900, 100), (950, 140)], False),  # grown by 5 % of the limit, which is 40
        ([(900, 100), (950, 141)], True),
        ([(900, 500), (950, 100)], False),  # shrunk
        (
            [(900, 100), (799, 600)],
            False,
        ),  # below the limit: the growth does not matter
    ],
)
def test_guard_threshold(observed: list[tuple[int, int]], trips: bool) -> None:
    guard = watch(80, *observed)
    assert bool(guard.warning) == (observed[0][0] >= 800)
    assert bool(guard.describe_excess()) == trips


def test_cell_started_above_the_limit_is_stopped_only_on_growth() -> None:
    guard = watch(80, (900, 100), (700, 100), (900, 130), (900, 150))
    assert [bool(guard.describe_excess()) for _ in range(3)] == [False, False, True]


def test_guard_messages() -> None:
    million = 10**6
    usages = iter(
        [
            MemoryUsage(4000 * million, 3300 * million, "the kernel's cgroup"),
            MemoryUsage(4000 * million, 3600 * million, "the kernel's cgroup"),
        ]
    )
    trees = iter([1000 * million, 1500 * million])
    guard = MemoryGuard(80, lambda: next(usages), lambda: next(trees))
    assert (
        guard.warning
        == "memory use of the kernel's cgroup was at 82 % before the cell ran (the limit is 80 %)"
    )
    assert (
        guard.describe_excess()
        == "memory use of the kernel's cgroup reached 90 % (the limit is 80 %); this kernel uses 1,500 MB of 4,000 MB"
    )
    assert watch(80, (100, 0)).warning == ""


# a real kernel


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab(sys.executable)
    yield lab
    lab.close()


def parse_kernel_megabytes(result: Execution) -> int:
    """Return the kernel's memory in the message, in MB."""
    match = re.search(r"this kernel uses ([\d,]+) MB of [\d,]+ MB", result.memory)
    assert match, result.memory
    return int(match[1].replace(",", ""))


def present() -> MemoryUsage:
    return get_memory_usage(os.getpid())


STEADY = "import time\nheld = []\nfor _ in range(100):\n    held.append(bytearray(20_000_000))\n    {pause}\ntime.sleep(20)"
CODES = {
    "slowly": STEADY.format(pause="time.sleep(0.02)"),
    "fast": STEADY.format(pause="pass"),
    "in one go": "import time\nheld = b'x' * 1_500_000_000\ntime.sleep(20)",
    "in a child": "import subprocess, sys\n"
    "subprocess.run([sys.executable, '-c', \"held = b'x' * 1_500_000_000; import time; time.sleep(20)\"])",
}


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(code, id=how, marks=[pytest.mark.nightly] * (how != "fast"))
        for how, code in CODES.items()
    ],
)
def test_cell_that_reaches_the_limit_is_stopped(lab: Lab, code: str) -> None:
    lab.ok("before = 1")
    memory = present()
    percent_points = 100 * 600_000_000 / memory.total
    result = lab.run(code, max_memory_percent=memory.percent + percent_points)
    assert result.outcome is Outcome.MEMORY and result.memory.startswith(
        "memory use of "
    )
    assert 300 < parse_kernel_megabytes(result) < 2500
    if result.death is None:  # the interrupt worked, so the state is kept
        assert lab.ok("print(before)").outcome is Outcome.OK


@pytest.mark.nightly
def test_cell_that_swallows_the_interrupt_is_killed(lab: Lab) -> None:
    memory = present()
    code = (
        "import time\nheld = []\n"
        "while True:\n    try:\n        while len(held) < 60: held.append(bytearray(20_000_000))\n        time.sleep(20)\n"
        "    except KeyboardInterrupt: pass"
    )
    result = lab.run(
        code, max_memory_percent=memory.percent + 100 * 600_000_000 / memory.total
    )
    assert result.outcome is Outcome.MEMORY and result.death is not None
    assert (
        "the interrupt had no effect" in result.death.reason
        and parse_kernel_megabytes(result) > 300
    )


@pytest.mark.nightly
def test_above_the_limit_at_the_start(lab: Lab) -> None:
    """It warns; only a cell that grows by more than 5 % of the limit is stopped."""
    memory = present()
    percent = min(4.0, 0.9 * memory.percent)
    allowed_growth = int(0.05 * memory.total * percent / 100)
    result = lab.run(
        f"import time\nheld = b'x' * {allowed_growth // 4}\ntime.sleep(0.7)",
        max_memory_percent=percent,
    )
    assert result.outcome is Outcome.OK
    assert [note.split(" at ")[0] for note in result.notes] == [
        "memory use of the machine was"
    ] and "before the cell ran" in result.notes[0]
    result = lab.run(
        f"more = b'x' * {2 * allowed_growth + 50_000_000}\ntime.sleep(20)",
        max_memory_percent=percent,
    )
    assert (
        result.outcome is Outcome.MEMORY
        and result.notes
        and parse_kernel_megabytes(result) > allowed_growth // 1_000_000
    )


@pytest.mark.nightly
def test_no_message_below_the_limit(lab: Lab) -> None:
    result = lab.run("import time; time.sleep(0.5)", max_memory_percent=100)
    assert (result.outcome, result.notes, result.memory) == (Outcome.OK, [], "")


GROWS = """import time
for _ in range(100):
    held.append(bytearray(20_000_000))
    time.sleep(0.02)
time.sleep(20)"""
SWALLOWS = """import time
while True:
    try:
        while len(held) < 60: held.append(bytearray(20_000_000)); time.sleep(0.01)
        time.sleep(20)
    except KeyboardInterrupt: pass"""


@pytest.mark.nightly
@pytest.mark.parametrize("dies", mark_nightly([False, True], False))
def test_largest_variables_are_from_the_stated_time(
    fresh_project: Project, dies: bool
) -> None:
    memory = present()
    percent = memory.percent + 100 * 500_000_000 / memory.total
    fresh_project.config(f"max_memory_percent: {percent:.3f}")
    notebook = fresh_project.new()
    notebook.insert("x = b'x' * 30_000_000; small = 1")
    source = f"held = []\n{SWALLOWS if dies else GROWS}"
    cell, response = notebook.insert(source)
    assert "Error Type: MemoryLimit" in response.stop
    before = "the largest variables as last seen before this run: x 30.0 MB;"
    if dies:
        assert before in response.stop and "held" not in response.stop
        return
    after = (
        r"the largest variables after this run: held [\d,]+\.\d MB \(new\), x 30.0 MB;"
    )
    assert re.search(after, response.stop), response.stop
    assert "before this run" not in response.stop
    # the earlier run of the cell bound the name, so it is not new
    fresh_project.stepper("fix")
    stop = notebook.replace(cell, GROWS).stop
    grown = r"after this run: held [\d,]+\.\d MB \([\d,]+\.\d MB before\), x 30.0 MB;"
    assert re.search(grown, stop), stop
