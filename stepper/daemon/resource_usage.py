"""What a kernel and this machine have of CPU, memory and GPU, looked at for a moment. Blocks: for a thread."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time

import psutil

from stepper.session.cell_responses import Gpu, Load, Resources
from stepper.session.responses import KernelStatus

SAMPLE_SECONDS = 0.2
GPU_SECONDS = 3.0  # a driver that hangs is not waited for
ASKED = ("name", "utilization.gpu", "memory.used", "memory.total")
MIB = 1 << 20


def look(kernel: KernelStatus) -> Resources:
    """Return what there is and how much of it is used."""
    cores, before, began = (
        psutil.cpu_count() or 1,
        _seconds(kernel.pid),
        time.monotonic(),
    )
    busy = psutil.cpu_percent(SAMPLE_SECONDS)
    after, took = _seconds(kernel.pid), time.monotonic() - began
    memory, own = psutil.virtual_memory(), None
    if kernel.pid is not None:
        share = (
            None
            if before is None or after is None
            else max(0.0, after - before) / took / cores
        )
        own = Load(None if share is None else round(100 * share, 1), kernel.rss_bytes)
    return Resources(
        own, Load(busy, memory.total - memory.available, memory.total), cores, gpus()
    )


def _seconds(pid: int | None) -> float | None:
    """Return the CPU seconds that a process and its children have taken."""
    try:
        root = psutil.Process(pid) if pid is not None else None
        found = [root, *root.children(recursive=True)] if root else []
    except psutil.Error:
        return None
    total = 0.0
    for process in found:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def gpus() -> list[Gpu]:
    """Return the machine's GPUs as nvidia-smi tells of them; none where it is not there or does not answer."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    asked = [command, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=GPU_SECONDS, check=True
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    return [
        _gpu(*parts)
        for line in done.stdout.splitlines()
        if len(parts := line.rsplit(",", 3)) == 4
    ]


def _gpu(name: str, used: str, memory: str, total: str) -> Gpu:
    numbers = [_number(text) for text in (used, memory, total)]
    held, whole = (
        None if number is None else int(number * MIB) for number in numbers[1:]
    )
    return Gpu(name.strip(), numbers[0], held, whole)


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        return float(text)
    return None  # "[N/A]"
