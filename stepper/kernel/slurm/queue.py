"""SLURM as one asks it: sbatch, squeue, scancel, sinfo, each with a limit of time. What it says, as values.

A controller that does not answer is no answer: `look` returns None then, and whoever asked knows no more than before.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepper.ground.errors import KernelError
from stepper.ground.text import one_line

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "LANG", "SLURM_CONF")  # of an environment
SECONDS = 15.0  # for one command; squeue hangs where the controller is frozen
FIELDS = "%i|%j|%T|%r|%N|%L|%S"  # job, name, state, reason, node, time left, expected start
NO_ANSWER = ("Unable to contact slurm controller", "Socket timed out", "Could not establish a configuration source")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RESIZING", "STOPPED")
LIVING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING")
# How a job ended → what that is in words; the class of fault beside `KernelDied`, where there is one.
ENDS = {
    "TIMEOUT": ("its walltime was over (TIMEOUT)", ""),
    "OUT_OF_MEMORY": ("it took more memory than its job has (OUT_OF_MEMORY)", "OutOfMemory"),
    "NODE_FAIL": ("its node failed (NODE_FAIL)", ""),
    "CANCELLED": ("its job was cancelled (CANCELLED)", ""),
    "PREEMPTED": ("its job was preempted (PREEMPTED)", ""),
    "DEADLINE": ("its job's deadline was over (DEADLINE)", ""),
    "BOOT_FAIL": ("its node did not boot (BOOT_FAIL)", ""),
    "FAILED": ("its job failed (FAILED)", ""),
    "COMPLETED": ("its job ended (COMPLETED)", ""),
}


@dataclass(frozen=True)
class Job:
    """A job as squeue tells of it."""

    id: int
    name: str
    state: str
    reason: str
    node: str
    left: str  # of the walltime
    starts: str  # when it is expected to, where SLURM tells

    @property
    def waits(self) -> bool:
        """Whether it is still to start."""
        return self.state in WAITING

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self.state in LIVING


def name(kernel: str) -> str:
    """Return the name of the job that a kernel is: by it a job is found again, and no other is ended."""
    return f"stepper-{kernel}"


class Queue:
    """SLURM's commands, found and configured as in the environment of whoever asked for a kernel.

    A record tells of none: what a checkout holds is not to say which programs run.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = {name: told for name, told in environ.items() if name in KEPT}

    async def told(self, *command: str, given: bytes = b"", environ: Mapping[str, str] | None = None) -> str | None:
        """Return what a command prints, None where SLURM does not answer; raise KernelError in SLURM's own words."""
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=environ or self.environ,
            )  # fmt: skip
        except FileNotFoundError:
            why = f"there is no `{command[0]}` on this machine: it is not a SLURM login host"
            raise KernelError(why, "module load slurm  # or run stepper where SLURM's commands are") from None
        try:
            said, wrong = await asyncio.wait_for(process.communicate(given), SECONDS)
        except asyncio.TimeoutError:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if process.returncode:
            why = wrong.decode("utf-8", "replace")
            if any(words in why for words in NO_ANSWER):
                return None
            raise KernelError(f"{command[0]}: {one_line(why, 400)}")
        return said.decode("utf-8", "replace")

    async def submit(self, flags: Sequence[str], script: str, environ: Mapping[str, str]) -> int:
        """Submit a batch script; return the job's id. Raise KernelError in sbatch's own words."""
        said = await self.told("sbatch", "--parsable", *flags, given=script.encode(), environ=environ)
        number = (said or "").strip().partition(";")[0]
        if not number.isdecimal():
            raise KernelError(
                "SLURM's controller does not answer: nothing was submitted, as far as that is known", "sinfo"
            )
        return int(number)

    async def look(self, job: int, name: str) -> Job | None:
        """Return a job as it is now, None where the controller does not answer.

        One that it forgot, or whose number belongs to a job of another name, is `UNKNOWN`.
        """
        try:
            said = await self.told("squeue", "-h", "-t", "all", "-j", str(job), "-o", FIELDS)
        except KernelError as error:
            if "Invalid job id" not in error.message:
                raise
            said = ""
        found = [each for each in _jobs(said or "") if each.name == name]
        return None if said is None else next(iter(found), Job(job, name, "UNKNOWN", "", "", "", ""))

    async def cancel(self, name: str) -> bool:
        """End this user's jobs of that name, where there are any; return whether SLURM heard of it."""
        try:
            return await self.told("scancel", "--full", f"--jobname={name}") is not None
        except KernelError as error:
            return not error.hint  # it answered, if only that there is none; a hint says that there is no scancel

    async def ahead(self, job: int, partition: str) -> int:
        """Return how many jobs wait in the same partition before that one, as far as their priorities tell."""
        which = ("-p", partition) if partition else ()
        said = await self.told("squeue", "-h", "-t", "PENDING", *which, "--sort=-p,i", "-o", "%i") or ""
        waiting = said.split()
        return waiting.index(str(job)) if str(job) in waiting else 0

    async def partitions(self) -> list[str]:
        """Return the partitions with their free nodes, a line each; raise KernelError."""
        said = await self.told("sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%G")
        if said is None:
            raise KernelError("SLURM's controller does not answer", "sinfo")
        lines = []
        for row in said.splitlines():
            name, up, longest, nodes, state, gres = (row.split("|") + [""] * 6)[:6]
            more = f", {gres}" if gres not in ("", "(null)") else ""
            lines.append(f"partition {name.rstrip('*')} ({up}, at most {longest}{more}): {nodes} {state}")
        return lines


def _jobs(said: str) -> list[Job]:
    found = []
    for row in said.splitlines():
        parts = row.split("|")
        if len(parts) == 7 and parts[0].isdecimal():
            found.append(Job(int(parts[0]), *parts[1:]))
    return found
