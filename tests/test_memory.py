"""The memory guard: cgroup files as the kernel writes them, the guard's decisions, a real kernel that allocates."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from stepper.adapters.kernels import LocalKernel, LocalKernels
from stepper.adapters.memory import Guard, Usage, cgroups, usage
from stepper.core.model import Limits, Outcome
from stepper.ports import Execution, KernelPlace

MB = 1 << 20


def group(folder: Path, maximum: str, current: int, inactive: int, v1: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    (folder / names[0]).write_text(maximum + "\n")
    (folder / names[1]).write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{'total_' if v1 else ''}inactive_file {inactive}\n")


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
    found = cgroups(7, root, proc(tmp_path, "0::/a/b/c\n"))
    assert {(one.total // MB, one.used // MB) for one in found} == {(400, 250), (1000, 400)}


def test_cgroup_v1(tmp_path: Path) -> None:
    root = tmp_path / "cg"
    group(root / "memory" / "job", str(100 * MB), 90 * MB, 40 * MB, v1=True)
    group(root / "memory", str(0x7FFFFFFFFFFFF000), 1, 0, v1=True)
    found = cgroups(7, root, proc(tmp_path, "5:cpu,cpuacct:/job\n4:memory:/job\n"))
    assert [(one.total // MB, one.used // MB) for one in found] == [(100, 50)]


@pytest.mark.parametrize("text", ["", "0::/nowhere\n", "0::/../..\n"])
def test_no_limit_is_none(tmp_path: Path, text: str) -> None:
    assert cgroups(7, tmp_path / "cg", proc(tmp_path, text)) == []
    assert cgroups(8, tmp_path / "cg", tmp_path / "proc") == []


def test_the_machine_is_looked_at() -> None:
    found = usage(os.getpid())
    assert 0 < found.used < found.total <= psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("began", "later", "tree_began", "tree_later", "trips"),
    [
        (50, 79, 0, 500, False),
        (50, 80, 0, 1, True),  # the limit is reached, whoever took it
        (90, 95, 100, 100, False),  # it was above before the cell began: not its doing
        (90, 95, 100, 139, False),  # grown by less than 5 % of the limit (40 of 800)
        (90, 95, 100, 141, True),
    ],
)
def test_when_the_guard_trips(began: int, later: int, tree_began: int, tree_later: int, trips: bool) -> None:
    looks = iter([Usage(1000, began * 10, "the machine"), Usage(1000, later * 10, "the machine")])
    trees = iter([tree_began, tree_later] if began >= 80 else [tree_later])
    guard = Guard(80, lambda: next(looks), lambda: next(trees))
    assert bool(guard.warning) == (began >= 80)
    assert bool(guard.trip()) == trips


def run(tmp_path: Path, code: str, percent: float) -> list[Execution]:
    """Run the code in a real kernel under that limit, then ask whether the kernel kept its state."""

    async def play() -> list[Execution]:
        kernels = LocalKernels(str(tmp_path / "k.json"), str(tmp_path))
        kernel: LocalKernel = await kernels.start(KernelPlace(sys.executable, str(tmp_path), dict(os.environ)))
        try:
            ended = [await kernel.execute(code, 60, Limits(max_memory_percent=percent))]
            if ended[0].death is None:
                ended.append(await kernel.execute("print(before)", 60, Limits(max_memory_percent=99)))
            return ended
        finally:
            await kernel.shutdown()

    os.makedirs(tmp_path, exist_ok=True)
    return asyncio.run(play())


def short(tmp_path: Path) -> Path:
    """A folder whose socket paths are short enough."""
    folder = Path("/tmp") / f"stepper-mem-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


GROWING = "before = 1\nimport time\nheld = []\nfor _ in range(600):\n    held.append(bytearray(20_000_000)); {pause}"


@pytest.mark.parametrize("pause", ["time.sleep(0.02)", "pass"])
def test_a_cell_that_allocates_to_the_limit_is_stopped(tmp_path: Path, pause: str) -> None:
    room = 100 * 600_000_000 / psutil.virtual_memory().total
    ended = run(short(tmp_path), GROWING.format(pause=pause), usage(os.getpid()).percent + room)
    assert ended[0].outcome is Outcome.MEMORY
    assert "this kernel holds" in ended[0].memory and "the limit is" in ended[0].memory
    if ended[0].death is None:  # the interrupt worked: the state is kept
        assert ended[1].outcome is Outcome.OK


def test_above_the_limit_at_the_start_warns_and_lets_a_small_cell_run(tmp_path: Path) -> None:
    ended = run(short(tmp_path), "before = 1\nimport time; time.sleep(0.7)", max(1.0, usage(os.getpid()).percent / 2))
    assert ended[0].outcome is Outcome.OK
    assert "before the cell began" in ended[0].notes[0]
