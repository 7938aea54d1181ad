"""What a kernel and this machine have of CPU, memory and GPU, looked at for a moment. Blocks: for a thread."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from dataclasses import dataclass

import psutil

from stepper.kernels.process_tree import TABLE
from stepper.session.cell_responses import Gpu, Load, Resources
from stepper.session.responses import KernelStatus

SAMPLE_SECONDS = 0.1  # between two samples, at least
RECENT_SECONDS = 10.0  # how long a sample is compared with
GPU_SECONDS = 3.0  # a driver that hangs is not waited for
ASKED = ("name", "utilization.gpu", "memory.used", "memory.total")
MIB = 1 << 20


class CpuSampler:
    """Measures the CPU use of the machine and of a kernel between two samples.

    An earlier request's sample is used where one is recent, so that only the first of several requests waits.
    """

    def __init__(self) -> None:
        self._samples: dict[int | None, list[Sample]] = {}

    def measure(self, pid: int | None) -> tuple[float, float | None]:
        """Return the machine's and a kernel's share of all cores, in percent; None for a kernel that is unknown."""
        sample = Sample.take(pid)
        earlier = self._earlier(pid, sample.at)
        if earlier is None:
            earlier = sample
            time.sleep(SAMPLE_SECONDS)
            sample = Sample.take(pid)
        self._keep(pid, earlier)
        self._keep(pid, sample)
        return sample.machine_percent(earlier), sample.kernel_percent(earlier)

    def _earlier(self, pid: int | None, now: float) -> Sample | None:
        """Return the latest sample that is neither too close to now nor too old."""
        for sample in reversed(self._samples.get(pid, [])):
            age = now - sample.at
            if SAMPLE_SECONDS <= age <= RECENT_SECONDS:
                return sample
        return None

    def _keep(self, pid: int | None, sample: Sample) -> None:
        """Keep a sample unless it is too close to the last one; forget old ones, of other kernels too."""
        mine = self._samples.setdefault(pid, [])
        if not mine or sample.at - mine[-1].at >= SAMPLE_SECONDS:
            mine.append(sample)
        for other, samples in list(self._samples.items()):
            recent = [each for each in samples if sample.at - each.at <= RECENT_SECONDS]
            self._samples[other] = recent[-2:]
            if not recent:
                self._samples.pop(other, None)


@dataclass(frozen=True)
class Sample:
    """CPU seconds counted at one moment."""

    at: float
    busy: float
    total: float
    kernel: float | None

    @classmethod
    def take(cls, pid: int | None) -> Sample:
        """Read the counters of the machine and of a kernel's processes."""
        times = psutil.cpu_times()
        # guest time is a part of user time, not an addition to it
        total = sum(times) - sum(
            getattr(times, name, 0.0) for name in ("guest", "guest_nice")
        )
        idle = times.idle + getattr(times, "iowait", 0.0)
        return cls(time.monotonic(), total - idle, total, _seconds(pid))

    def machine_percent(self, earlier: Sample) -> float:
        """Return the machine's share of all cores since an earlier sample."""
        total = self.total - earlier.total
        if total <= 0:
            return 0.0
        share = (self.busy - earlier.busy) / total
        return round(100 * min(1.0, max(0.0, share)), 1)

    def kernel_percent(self, earlier: Sample) -> float | None:
        """Return the kernel's share of all cores since an earlier sample, None where it is unknown."""
        if self.kernel is None or earlier.kernel is None:
            return None
        cores = psutil.cpu_count() or 1
        share = (self.kernel - earlier.kernel) / (self.at - earlier.at) / cores
        return round(100 * max(0.0, share), 1)


SAMPLER = CpuSampler()


def look(kernel: KernelStatus) -> Resources:
    """Return what there is and how much of it is used."""
    machine_percent, kernel_percent = SAMPLER.measure(kernel.pid)
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    machine = Load(machine_percent, used, memory.total)
    own = None
    if kernel.pid is not None:
        own = Load(kernel_percent, kernel.rss_bytes)
    return Resources(own, machine, psutil.cpu_count() or 1, gpus())


def _seconds(pid: int | None) -> float | None:
    """Return the CPU seconds that a process and its descendants have taken, None for a process that is gone."""
    if pid is None or not psutil.pid_exists(pid):
        return None
    total = 0.0
    for member in TABLE.family(pid):
        with contextlib.suppress(psutil.Error):  # it ended meanwhile
            times = psutil.Process(member).cpu_times()
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
