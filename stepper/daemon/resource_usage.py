"""CPU, memory and GPU usage of a kernel and of this machine.

The functions can block for some seconds, so call them in a thread.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import NamedTuple

import psutil

from stepper.kernels.process_tree import TABLE
from stepper.session.mcp_responses import GpuUsage, Resources, ResourceUsage
from stepper.session.responses import KernelStatus

SAMPLE_SECONDS = 0.1  # the minimum time between two samples
RECENT_SECONDS = 10.0  # the maximum age of a sample to compare with
MAX_SAMPLES = 2  # of a kernel
GPU_SECONDS = 3.0  # the timeout of nvidia-smi, which hangs if the driver hangs
GPU_FIELDS = ("name", "utilization.gpu", "memory.used", "memory.total")
MIB = 1 << 20


class CpuUsage(NamedTuple):
    """The CPU usage of the machine and of a kernel, in percent of all cores.

    The kernel's usage is None if it is unknown.
    """

    machine_percent: float
    kernel_percent: float | None


class CpuSampler:
    """Measures the CPU usage of the machine and of a kernel between two samples.

    If there is a recent sample from an earlier request, the result is available
    immediately.
    """

    def __init__(self) -> None:
        self._samples: dict[int | None, list[Sample]] = {}

    def measure(self, pid: int | None) -> CpuUsage:
        """Return the CPU usage of the machine and of the kernel with a process ID.

        Block for SAMPLE_SECONDS if there is no earlier sample to compare with.
        """
        sample = Sample.take(pid)
        earlier = self._find_earlier(pid, sample.time)
        if earlier is None:
            earlier = sample
            time.sleep(SAMPLE_SECONDS)
            sample = Sample.take(pid)
        self._add(pid, earlier)
        self._add(pid, sample)
        machine_percent = sample.compute_machine_percent(earlier)
        kernel_percent = sample.compute_kernel_percent(earlier)
        return CpuUsage(machine_percent, kernel_percent)

    def _find_earlier(self, pid: int | None, now: float) -> Sample | None:
        """Return the latest sample to compare with, or None.

        The sample's age is between SAMPLE_SECONDS and RECENT_SECONDS.
        """
        for sample in reversed(self._samples.get(pid, [])):
            age = now - sample.time
            if SAMPLE_SECONDS <= age <= RECENT_SECONDS:
                return sample
        return None

    def _add(self, pid: int | None, sample: Sample) -> None:
        """Add a sample, and remove old samples of all kernels.

        A sample that follows the last one too quickly is not added.
        """
        samples = self._samples.setdefault(pid, [])
        if not samples or sample.time - samples[-1].time >= SAMPLE_SECONDS:
            samples.append(sample)
        for kernel_pid, kernel_samples in list(self._samples.items()):
            recent = [
                kernel_sample
                for kernel_sample in kernel_samples
                if sample.time - kernel_sample.time <= RECENT_SECONDS
            ]
            if recent:
                self._samples[kernel_pid] = recent[-MAX_SAMPLES:]
            else:
                # Another thread may have removed the entry.
                self._samples.pop(kernel_pid, None)


@dataclass(frozen=True)
class Sample:
    """Counters of the CPU time of the machine and of a kernel, in seconds."""

    time: float  # the time of the sample, by the monotonic clock
    busy: float
    total: float
    kernel: float | None  # None if there is no kernel

    @classmethod
    def take(cls, pid: int | None) -> Sample:
        """Return a sample for the machine and for the kernel with this process ID."""
        cpu_times = psutil.cpu_times()
        # Guest time is already a part of user time.
        guest = sum(getattr(cpu_times, name, 0.0) for name in ("guest", "guest_nice"))
        total = sum(cpu_times) - guest
        idle = cpu_times.idle + getattr(cpu_times, "iowait", 0.0)
        return cls(
            time=time.monotonic(),
            busy=total - idle,
            total=total,
            kernel=_sum_cpu_seconds(pid),
        )

    def compute_machine_percent(self, earlier: Sample) -> float:
        """Return the machine's CPU usage since an earlier sample, in % of all cores."""
        total = self.total - earlier.total
        if total <= 0:
            return 0.0
        share = (self.busy - earlier.busy) / total
        return round(100 * min(1.0, max(0.0, share)), 1)

    def compute_kernel_percent(self, earlier: Sample) -> float | None:
        """Return the kernel's CPU usage since an earlier sample, in % of all cores.

        Return None if a sample contains no kernel.
        """
        if self.kernel is None or earlier.kernel is None:
            return None
        cores = psutil.cpu_count() or 1
        share = (self.kernel - earlier.kernel) / (self.time - earlier.time) / cores
        return round(100 * max(0.0, share), 1)


SAMPLER = CpuSampler()


def measure_resources(kernel: KernelStatus) -> Resources:
    """Return the CPU and memory usage of a kernel and of this machine, and its GPUs."""
    cpu_usage = SAMPLER.measure(kernel.pid)
    memory = psutil.virtual_memory()
    used_bytes = memory.total - memory.available
    machine_load = ResourceUsage(cpu_usage.machine_percent, used_bytes, memory.total)
    kernel_load = None
    if kernel.pid is not None:
        kernel_load = ResourceUsage(cpu_usage.kernel_percent, kernel.rss_bytes)
    cores = psutil.cpu_count() or 1
    return Resources(kernel_load, machine_load, cores, list_gpus())


def _sum_cpu_seconds(pid: int | None) -> float | None:
    """Return the CPU seconds of a process and its descendants.

    Return None if `pid` is None or the process does not exist.
    """
    if pid is None or not psutil.pid_exists(pid):
        return None
    total = 0.0
    for member in TABLE.list_family(pid):
        with contextlib.suppress(psutil.Error):  # the process has exited
            cpu_times = psutil.Process(member).cpu_times()
            total += cpu_times.user + cpu_times.system
    return total


def list_gpus() -> list[GpuUsage]:
    """Return the machine's GPUs as listed by nvidia-smi.

    Return an empty list if nvidia-smi is not installed or fails.
    """
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = f"--query-gpu={','.join(GPU_FIELDS)}"
    try:
        process = subprocess.run(
            [program, query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=GPU_SECONDS,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return []
    # The name of a GPU, which is the first field, may contain commas.
    separator_count = len(GPU_FIELDS) - 1
    rows = [line.rsplit(",", separator_count) for line in process.stdout.splitlines()]
    return [_parse_gpu(*row) for row in rows if len(row) == len(GPU_FIELDS)]


def _parse_gpu(name: str, percent: str, used_mib: str, total_mib: str) -> GpuUsage:
    """Return the usage of a GPU from the fields of a line of nvidia-smi."""
    return GpuUsage(
        name.strip(),
        _parse_number(percent),
        _parse_mib(used_mib),
        _parse_mib(total_mib),
    )


def _parse_mib(text: str) -> int | None:
    """Return a number of MiB in bytes, or None if the text is not a number."""
    number = _parse_number(text)
    if number is None:
        return None
    return int(number * MIB)


def _parse_number(text: str) -> float | None:
    """Return the number in a text, or None if the text is not a number."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None  # nvidia-smi prints "[N/A]" for unknown values
