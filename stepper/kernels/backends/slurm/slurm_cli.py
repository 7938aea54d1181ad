"""SLURM as one asks it: sbatch, squeue, scancel, sinfo, each with a limit of time. What it says, as values.

A controller that does not answer is no answer: `look` returns None then, and whoever asked knows no more than before.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from stepper.common.errors import KernelError
from stepper.common.socket_path import encode_path, fnv1a
from stepper.common.text import one_line

# of an environment
KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LD_LIBRARY_PATH",
    "LANG",
    "TZ",
    "SLURM_CONF",
)
SECONDS = 15.0  # for one command; squeue hangs where the controller is frozen
SLOW_SECONDS = 3.0  # a command that takes longer says that the controller is silent
# between two tries to end what could not be: the first, and at most
LATER_SECONDS = 5.0, 60.0
# that SLURM must have heard of it: what was submitted while it was silent it takes up
# only then
LATER_TIMES = 3
# job, name, state, reason, node, time left, expected start, partition
FIELDS = "%A|%j|%T|%r|%N|%L|%S|%P"
NO_ANSWER = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Could not establish a configuration source",
)
SILENT = "SLURM's controller does not answer"
COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")  # what asks the controller
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "SUSPENDED", "RESIZING", "STOPPED")
LIVING = ("RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING")
# SLURM does not know the job (any more); the job lives, its step does not
GONE, STEP_ENDED = "UNKNOWN", "ENDED"
# How a job ended → what that is in words; the class of fault beside `KernelDied`, where
# there is one.
ENDS = {
    "TIMEOUT": ("its walltime was over (TIMEOUT)", "WalltimeOver"),
    "OUT_OF_MEMORY": (
        "it took more memory than its job has (OUT_OF_MEMORY)",
        "OutOfMemory",
    ),
    "NODE_FAIL": ("its node failed (NODE_FAIL)", "EndedOutside"),
    "CANCELLED": ("its job was cancelled (CANCELLED)", "EndedOutside"),
    "PREEMPTED": ("its job was preempted (PREEMPTED)", "EndedOutside"),
    "DEADLINE": ("its job's deadline was over (DEADLINE)", "WalltimeOver"),
    "BOOT_FAIL": ("its node did not boot (BOOT_FAIL)", "EndedOutside"),
    "FAILED": ("its job failed (FAILED)", ""),
    "COMPLETED": ("its job ended (COMPLETED)", ""),
    "COMPLETING": ("its job is ending (COMPLETING)", ""),
    STEP_ENDED: ("its step ended, and the job goes on", ""),
    GONE: ("its job is gone, and SLURM does not know any more how it ended", ""),
}


# what ends jobs, by their names, once SLURM answers again
LATER: dict[str, asyncio.Task[None]] = {}


class Contact:
    """When SLURM's controller was asked and answered, by the clock of this machine."""

    def __init__(self) -> None:
        self.pending = dict[object, float]()  # commands that still run → their start
        self.answered = 0.0  # when it answered last
        self.failed = 0.0  # start of the first command since then without an answer

    def began(self) -> object:
        """Note that a command was started; return a key for it."""
        command = object()
        self.pending[command] = time.time()
        return command

    def ended(self, command: object, answered: bool | None) -> None:
        """Note how a command ended; None if nobody waited for it any more."""
        began = self.pending.pop(command)
        slow = time.time() > began + SLOW_SECONDS
        if answered:
            self.answered = time.time()
            self.failed = 0.0
        elif (answered is False or slow) and began >= self.answered:
            self.failed = self.failed or began

    def silent_since(self) -> float:
        """Return the time since which it gives no answer, 0 if it is not silent."""
        now = time.time()
        waited = [max(began, self.answered) for began in self.pending.values()]
        slow = [began for began in waited if now > began + SLOW_SECONDS]
        return min(filter(None, [self.failed, *slow]), default=0.0)


# SLURM's configuration file ('' for the default one) → its controller
CONTACTS: dict[str, Contact] = {}


class RefusedError(KernelError):
    """One of SLURM's commands did nothing: there is none, or it says why."""


@dataclass(frozen=True)
class Job:
    """A job as squeue tells of it."""

    id: int
    name: str
    state: str
    reason: str = ""
    node: str = ""
    time: str = ""  # that is left of the walltime
    starts: str = ""  # when it is expected to, where SLURM tells
    partition: str = ""

    @property
    def waits(self) -> bool:
        """Whether it is still to start."""
        return self.state in WAITING

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self.state in LIVING

    @property
    def left(self) -> float | None:
        """The seconds that are left of its walltime, None where it has no end."""
        return _seconds(self.time)

    def standing(self, ahead: int, now: datetime) -> str:
        """Return how it waits: its state and why, how many are before it, when it is to start."""
        parts = [
            f"{self.state} ({self.reason})",
            f"{ahead} ahead",
            f"partition {self.partition}",
        ]
        day, _, clock = self.starts.partition("T")
        if clock:
            parts.append(
                f"estimated start {clock[:5] if day == now.date().isoformat() else f'{day} {clock[:5]}'}"
            )
        return ", ".join(parts)


def prefix(runtime: str) -> str:
    """Return what the names of a project's jobs begin with: this host's one, as another may have the same paths."""
    return f"stepper-{fnv1a(encode_path(socket.gethostname() + ':' + runtime))[:8]}-"


class Queue:
    """SLURM's commands, found and configured as in the environment of whoever asked for a kernel.

    A record tells of none: what a checkout holds is not to say which programs run.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = {name: told for name, told in environ.items() if name in KEPT}
        conf = self.environ.get("SLURM_CONF", "")
        self.contact = CONTACTS.setdefault(conf, Contact())

    @property
    def silence(self) -> str:
        """That the controller does not answer, and since when; '' if it does."""
        since = self.contact.silent_since()
        if not since:
            return ""
        then = datetime.fromtimestamp(since)
        clock = "%H:%M:%S" if then.date() == datetime.now().date() else "%F %H:%M:%S"
        return f"{SILENT} (no answer since {then.strftime(clock)})"

    @property
    def no_answer(self) -> str:
        """That the controller did not answer, and since when if that is known."""
        return self.silence or SILENT

    async def told(
        self,
        *command: str,
        given: bytes = b"",
        environ: Mapping[str, str] | None = None,
    ) -> str | None:
        """Return what a command prints, None where SLURM does not answer; raise RefusedError in SLURM's own words."""
        contact = self.contact.began()
        answered: bool | None = None
        silent = False
        try:
            said, wrong, failed = await self._run(command, given, environ)
            silent = failed and any(words in wrong for words in NO_ANSWER)
            if command[0] in COMMANDS:
                answered = not silent
        except asyncio.TimeoutError:
            answered = False
            return None
        finally:
            self.contact.ended(contact, answered)
        if silent:
            return None
        if failed:
            # which it names itself, as a rule
            said = one_line(wrong, 400).removeprefix(f"{command[0]}: ")
            raise RefusedError(f"{command[0]}: {said}")
        return said

    async def _run(
        self, command: Sequence[str], given: bytes, environ: Mapping[str, str] | None
    ) -> tuple[str, str, bool]:
        """Run a command; return stdout, stderr and whether it failed.

        Raise TimeoutError, and RefusedError if there is no such command.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environ or self.environ,
            )
        except FileNotFoundError:
            why = f"there is no `{command[0]}` on this machine: it is not a SLURM login host"
            raise RefusedError(
                why, "module load slurm  # or run stepper where SLURM's commands are"
            ) from None
        try:
            said, wrong = await asyncio.wait_for(process.communicate(given), SECONDS)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        texts = [part.decode("utf-8", "replace") for part in (said, wrong)]
        return texts[0], texts[1], bool(process.returncode)

    async def submit(
        self, flags: Sequence[str], script: str, environ: Mapping[str, str]
    ) -> int:
        """Submit a batch script; return the job's id. Raise RefusedError in sbatch's own words."""
        said = await self.told(
            "sbatch", "--parsable", *flags, given=script.encode(), environ=environ
        )
        number = (said or "").strip().partition(";")[0]
        if not number.isdecimal():
            why = f"{self.no_answer}: nothing was submitted, as far as that is known; a job that it takes up later is ended"
            raise KernelError(why, "sinfo")
        return int(number)

    async def test(self, flags: Sequence[str]) -> None:
        """Have SLURM check a job's flags without submitting it; raise RefusedError in sbatch's own words."""
        flags = [flag for flag in flags if not flag.startswith("--output=")]
        said = await self.told(
            "sbatch", "--test-only", "--output=/dev/null", *flags, given=b"#!/bin/sh\n"
        )
        if said is None:
            raise KernelError(self.no_answer, "sinfo")

    async def look(self, job: int, name: str = "") -> Job | None:
        """Return a job as it is now, None where the controller does not answer.

        One that it forgot, or whose number belongs to a job of another name, is `GONE`.
        """
        try:
            said = await self.told(
                "squeue", "-h", "-t", "all", "-j", str(job), "-o", FIELDS
            )
        except KernelError as error:
            if "Invalid job id" not in error.message:
                raise
            said = ""
        found = [each for each in _jobs(said or "") if each.name == name or not name]
        return None if said is None else next(iter(found), Job(job, name, GONE))

    async def look_in(self, job: int, name: str) -> Job | None:
        """Return a job as it is now, and `STEP_ENDED` where it lives without a step of that name."""
        seen = await self.look(job)
        if seen is None or not seen.lives:
            return seen
        steps = await self._steps(job, name)
        return (
            None
            if steps is None
            else seen
            if steps
            else replace(seen, state=STEP_ENDED)
        )

    async def _steps(self, job: int, name: str) -> list[str] | None:
        said = await self.told("squeue", "-h", "-s", "-j", str(job), "-o", "%i|%j")
        return (
            None
            if said is None
            else [
                row.partition("|")[0]
                for row in said.splitlines()
                if row.endswith(f"|{name}")
            ]
        )

    async def cancel(self, name: str, job: int = 0) -> bool:
        """End the jobs of that name, or that job's steps, where there are any; return whether SLURM heard of it."""
        try:
            which = (
                await self._steps(job, name) if job else ["--full", f"--jobname={name}"]
            )
            if not which:
                return which is not None
            return await self.told("scancel", *which) is not None
        except KernelError as error:
            # it answered, if only that there is none; a hint says that there is no
            # scancel
            return not error.hint

    def cancel_later(self, name: str, job: int = 0) -> None:
        """Have them ended once SLURM answers again, as long as this daemon lives: the next one finds them by itself."""
        if name not in LATER:
            LATER[name] = asyncio.get_running_loop().create_task(self._later(name, job))
            LATER[name].add_done_callback(lambda _: LATER.pop(name))

    async def _later(self, name: str, job: int) -> None:
        pause, heard = LATER_SECONDS[0], 0
        while heard < LATER_TIMES:
            await asyncio.sleep(pause)
            heard += (answers := await self.cancel(name, job))
            pause = LATER_SECONDS[0] if answers else min(2 * pause, LATER_SECONDS[1])

    async def ahead(self, job: Job) -> int:
        """Return how many jobs wait in the same partition before that one, as far as their priorities tell."""
        said = (
            await self.told(
                "squeue",
                "-h",
                "-t",
                "PENDING",
                "-p",
                job.partition,
                "--sort=-p,i",
                "-o",
                "%i",
            )
            or ""
        )
        waiting = said.split()
        return waiting.index(str(job.id)) if str(job.id) in waiting else 0

    async def mine(self, start: str) -> list[str]:
        """Return the names of this user's jobs that begin so; raise KernelError."""
        said = await self.told("squeue", "-h", "--me", "-o", "%j") or ""
        return [name for name in said.splitlines() if name.startswith(start)]

    async def longest(self, partition: str) -> float | None:
        """Return how many seconds a job may have in all of these partitions (',' between), '' for the default one."""
        rows = [
            row.partition("|")
            for row in (
                await self.told("sinfo", "-h", "-o", "%P|%l") or ""
            ).splitlines()
        ]
        named = (
            partition.split(",")
            if partition
            else [name for name, _, _ in rows if name.endswith("*")]
        )
        found = [
            _seconds(longest)
            for name, _, longest in rows
            if name in named or name.rstrip("*") in named
        ]
        return min(filter(None, found), default=None)

    async def partitions(self) -> list[str]:
        """Return the partitions with their free nodes, a line each; raise KernelError."""
        said = await self.told("sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%G")
        if said is None:
            raise KernelError(self.no_answer, "sinfo")
        lines = []
        for row in said.splitlines():
            name, up, longest, nodes, state, gres = (row.split("|") + [""] * 6)[:6]
            more = f", {gres}" if gres not in ("", "(null)") else ""
            lines.append(
                f"partition {name.rstrip('*')} ({up}, at most {longest}{more}): {nodes} {state}"
            )
        return lines


def _seconds(told: str) -> float | None:
    """Read [days-]hours:minutes:seconds; None where it says that there is no limit, or nothing."""
    days, _, rest = told.rpartition("-")
    parts = [days or "0", *["0", "0", *rest.split(":")][-3:]]
    if not all(part.isdecimal() for part in parts):
        return None
    return sum(
        int(part) * unit for part, unit in zip(parts, (86400, 3600, 60, 1), strict=True)
    )


def _jobs(said: str) -> list[Job]:
    found = []
    for row in said.splitlines():
        parts = row.split("|")
        if len(parts) == 8 and parts[0].isdecimal():
            found.append(Job(int(parts[0]), *parts[1:]))
    return found
