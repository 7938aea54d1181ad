"""What SLURM offers of one kernel: a job, or a step in one, which ends for reasons that have names."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.common import private_files
from stepper.common.errors import KernelError
from stepper.kernels import kernel_records
from stepper.kernels.backend_protocols import Usage
from stepper.kernels.backends.slurm import batch_job, slurm_cli
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

POLL_SECONDS = 30.0  # between two looks at the queue, while the kernel's heart beats
SILENT_SECONDS = 2.0  # … while it does not
AT_ONCE_SECONDS = 0.2  # a look takes some 20 ms: so long is it waited for
FENCE_SECONDS = 2.0  # for a kernel that SLURM gave up to say that it ends
TAIL, STDERR_CHARACTERS = 8000, 2000
# What slurmstepd writes, before the controller says it and after that forgot:
# COMPLETING is no name for an end.
CANCELLED = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))? \*\*\*"
)
WHY = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}


class SlurmProcess:
    """A kernel that is a job; `told` is its record. A controller that does not answer ends nothing."""

    def __init__(
        self,
        told: Mapping[str, Any],
        record: str,
        asked: slurm_cli.Queue,
        seen: slurm_cli.Job | None,
        link: SshConnection | None,
    ) -> None:
        self.id, self.job, self.record, self.queue = (
            str(told["kernel"]),
            int(told["job"]),
            record,
            asked,
        )
        self.name, self.step, self.node = (
            str(told["job_name"]),
            bool(told["step"]),
            str(told["node"]),
        )
        self.file, self.python, self.link = (
            Path(told["file"]),
            str(told["python"]),
            link,
        )
        self.log, self.stack = (
            str(self.file.with_suffix(".out")),
            str(self.file.with_suffix(".stack")),
        )
        self.channels, self.encrypted = (
            Channels(told["connection"]),
            "curve_publickey" in told["connection"],
        )
        self.ended: Death | None = None
        self.told, self.left = told, False  # whether it may live on
        self.seen, self.trouble = seen, ""
        self.seen_at, self.asked_at = (
            time.monotonic(),
            time.monotonic() if seen else float("-inf"),
        )
        self.looking: asyncio.Task[None] | None = None

    @property
    def cuts(self) -> int:
        """How often the line to it was cut, and is back."""
        return self.link.cuts if self.link else 0

    @property
    def away(self) -> str:
        """Why nothing reaches it now; '' where it can be reached."""
        if not self.link or not self.link.ports or self.link.is_up:
            return ""
        down = f"the link to {self.node} is down"
        return "; ".join(filter(None, [down, self.link.outage_text]))

    def describe(self) -> KernelDescription:
        """Return what it is: its interpreter, with the job and its node."""
        where = f"{'a step of ' * self.step}job {self.job} on {self.node}"
        why = "in a SLURM job stepper watches no memory and sees no line that runs: the job's own limits hold"
        if not self.encrypted:
            why += "; its messages are signed, and not encrypted: ipykernel there does not know CurveZMQ"
        left, trouble, now = (
            self.seen.left if self.seen else None,
            self.trouble,
            time.monotonic(),
        )
        if self.seen is not None and self.seen.waits:
            trouble = f"its job is {self.seen.state}, {self.seen.reason}"
        trouble = self.away or trouble
        if (
            self.looking is not None
            and not self.looking.done()
            and now > self.asked_at + slurm_cli.SLOW_SECONDS
        ):
            trouble = f"{self.queue.no_answer}: the job's state is not known"
        return KernelDescription(
            self.python,
            limitation=why,
            location=where,
            problem=trouble,
            walltime_left=None
            if left is None
            else max(0.0, left - (now - self.seen_at)),
        )

    def begin(self) -> None:
        """Which processes there belong to which cell is not known here."""

    async def interrupt(self) -> None:
        """Interrupt it with what it started in its group: the kernel does that itself."""
        self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        """End its job, and the kernel itself where SLURM can't; raise KernelError where it may live on."""
        state = self.seen.state if self.seen else slurm_cli.WAITING[0]
        if state == "NODE_FAIL":
            await self._fence()
        going_on = state in (*slurm_cli.WAITING, *slurm_cli.LIVING)
        heard = not going_on or await self.queue.cancel(self.name, self.job * self.step)
        self.left = not (heard or await self._fence())
        self.ended = self.ended or Death(
            "its job was ended by stepper", self.last_words()
        )
        if self.link is not None:
            self.link.close()
        if self.left:
            self.queue.cancel_later(self.name, self.job * self.step)
            with contextlib.suppress(OSError):
                kernel_records.write(self.record, {**self.told, "ending": True})
            what = (
                f"step {self.name} of job {self.job}"
                if self.step
                else f"job {self.job}"
            )
            mend = (
                f"squeue --steps --jobs={self.job}"
                if self.step
                else f"scancel {self.job}"
            )
            raise KernelError(
                f"{self.queue.no_answer}: {what} was let go and may live on", mend
            )

    async def death(self, seconds: float = AT_ONCE_SECONDS) -> Death | None:
        """Return how it ended, or None while it lives, or nobody can know. SLURM's answer is waited for so long."""
        if self.link is not None:
            self.link.keep()
        beats = self.channels.is_open and self.channels.has_heartbeat()
        due = time.monotonic() > self.asked_at + (
            POLL_SECONDS if beats else SILENT_SECONDS
        )
        if self.ended is None and self.looking is None and due:
            self.looking = asyncio.create_task(self.look())
            await asyncio.wait({self.looking}, timeout=seconds)
        if self.looking is not None and self.looking.done():
            self.looking.result()
            self.looking = None
        return self.ended

    async def look(self) -> None:
        """Ask SLURM how the job stands."""
        self.asked_at = time.monotonic()
        try:
            seen = await (self.queue.look_in if self.step else self.queue.look)(
                self.job, self.name
            )
            silence = f"{self.queue.no_answer}: the job's state is not known"
            self.trouble = "" if seen else silence
        except (KernelError, OSError) as error:
            seen, self.trouble = (
                None,
                f"the job's state is not known: {getattr(error, 'message', error)}",
            )
        self.asked_at = time.monotonic()
        if seen is None:
            return
        beats = self.channels.is_open and self.channels.has_heartbeat()
        # the controller lost what it knew, or another one answers
        if seen.state == slurm_cli.GONE and beats:
            self.trouble = f"SLURM knows nothing of job {self.job}, whose kernel answers: its state is not known"
            return
        again = self.seen is not None and self.seen.state == seen.state
        ending = (
            seen.state == "COMPLETING"
            and not beats
            and (again or bool(CANCELLED.search(self.last_words())))
        )
        self.seen, self.seen_at = seen, self.asked_at
        if ending or not (seen.lives or seen.waits):
            self.ended = self._end(seen.state)

    async def _fence(self) -> bool:
        """End a kernel that SLURM does not end, and which may answer still; return whether it did."""
        channels = Channels(self.told["connection"])  # closed ones open no more
        channels.open()
        control = channels.client.control_channel
        channels.send_control("interrupt_request")
        channels.send_control("shutdown_request", {"restart": False})
        until, answers = time.monotonic() + FENCE_SECONDS, 0
        while time.monotonic() < until and answers < 2:
            await asyncio.sleep(0.05)
            if control.msg_ready():
                control.get_msg(timeout=0)
                answers += 1
        channels.close()
        return answers == 2

    def _end(self, state: str) -> Death:
        said = self.last_words()
        if state in ("COMPLETING", slurm_cli.GONE) and (
            written := CANCELLED.findall(said)
        ):
            state = WHY.get(written[-1], "CANCELLED")
        how, cause = slurm_cli.ENDS.get(state, (f"its job is gone ({state})", ""))
        # without cgroups SLURM names no reason
        if state in ("FAILED", slurm_cli.GONE) and "memory limit" in said:
            how, cause = slurm_cli.ENDS["OUT_OF_MEMORY"]
        # the person's own job: no `time:` of ours would have been longer
        if self.step and cause == "WalltimeOver":
            cause = "EndedOutside"
        return Death(f"job {self.job}: {how}", said, cause)

    async def sample(self) -> str:
        """Nothing is known of what runs there."""
        return ""

    def last_words(self) -> str:
        """Return the last lines of the job's output, without escapes and ipykernel's greeting."""
        said = batch_job.words(self.file, TAIL).rpartition(f"--existing {self.file}\n")[
            2
        ]
        return ESCAPES.sub("", said).strip()[-STDERR_CHARACTERS:]

    def suggest_fix(self, death: Death) -> str:
        """Return the command that adds ipykernel where it died for want of it, '' for none."""
        return lacks(self.python, death.stderr)

    def memory(self) -> int:
        """Nothing is measured there."""
        return 0

    def usage(self) -> Usage:
        """Nothing is measured there: the job's own limit holds."""
        return Usage(1, 0, f"job {self.job}")

    def rest(self) -> None:
        """Nothing is to be forgotten."""

    def trim(self) -> None:
        """What it writes is the job's output: SLURM keeps it open."""

    def forget(self) -> None:
        """Remove what is on record of it, and its files on the shared file system, once it is to end for certain."""
        if not self.left:
            private_files.remove(self.record)
            batch_job.remove(self.file)


def lacks(python: str, said: str) -> str:
    """Return the command that adds ipykernel where that is what a job died for, '' where it is not."""
    return (
        f"{python} -m pip install ipykernel"
        if "No module named" in said and "ipykernel" in said
        else ""
    )
