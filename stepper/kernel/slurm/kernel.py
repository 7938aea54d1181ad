"""What SLURM offers of one kernel: a job, which ends for reasons that have names."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.ground import private
from stepper.ground.errors import KernelError
from stepper.kernel.channels import Channels
from stepper.kernel.faults import ESCAPES
from stepper.kernel.place import Usage
from stepper.kernel.slurm import queue
from stepper.policy.model import Death
from stepper.session.ports import About

POLL_SECONDS = 30.0  # between two looks at the queue, while the kernel's heart beats
SILENT_SECONDS = 2.0  # … while it does not
TAIL, STDERR_CHARACTERS = 8000, 2000
log = logging.getLogger("stepper")


class SlurmProcess:
    """A kernel that is a job; `told` is its record. A controller that does not answer ends nothing."""

    cuts, away = 0, ""

    def __init__(self, told: Mapping[str, Any], record: str, asked: queue.Queue) -> None:
        self.id, self.job, self.record, self.queue = str(told["kernel"]), int(told["job"]), record, asked
        self.name = queue.name(self.id)
        self.file, self.python = Path(told["file"]), str(told["python"])
        self.log, self.stack = str(self.file.with_suffix(".out")), str(self.file.with_suffix(".stack"))
        self.channels, self.encrypted = Channels(told["connection"]), "curve_publickey" in told["connection"]
        self.ended: Death | None = None
        self.told, self.left = told, False  # whether it may live on
        self.seen: queue.Job | None = None
        self.looked_at = 0.0

    def about(self) -> About:
        """Return what it is: its interpreter, with the job and its node."""
        where = f"job {self.job}" + (f" on {self.seen.node}, {self.seen.left} left" if self.seen else "")
        why = "in a SLURM job stepper watches no memory and sees no line that runs: the job's own limits hold"
        if not self.encrypted:
            why += "; its messages are signed, and not encrypted: ipykernel there does not know CurveZMQ"
        return About(f"{self.python} ({where})", without=why)

    async def interrupt(self) -> None:
        """Interrupt it with what it started in its group: the kernel does that itself."""
        self.channels.ask("interrupt_request")

    async def kill(self) -> None:
        """End its job; where the controller does not answer its record says that it is to end."""
        over = self.seen is not None and not (self.seen.lives or self.seen.waits)
        if not over and not await self.queue.cancel(self.name):
            log.warning("job %d may go on: SLURM's controller does not answer", self.job)
            private.replace(self.record, json.dumps({**self.told, "ending": True}).encode())
            self.left = True
        self.ended = self.ended or Death("its job was ended by stepper", self.last_words())

    async def death(self) -> Death | None:
        """Return how it ended, or None while it lives, or nobody can know."""
        now = time.monotonic()
        beats = self.channels.is_open and self.channels.beats()
        if self.ended is None and now > self.looked_at + (POLL_SECONDS if beats else SILENT_SECONDS):
            self.looked_at = now
            with contextlib.suppress(KernelError):
                self.seen = await self.queue.look(self.job, self.name) or self.seen
            if self.seen is not None and not (self.seen.lives or self.seen.waits):
                self.ended = self._end(self.seen)
        return self.ended

    def _end(self, job: queue.Job) -> Death:
        said = self.last_words()
        how, cause = queue.ENDS.get(job.state, (f"its job is gone ({job.state})", ""))
        if job.state == "FAILED" and "memory limit" in said:  # without cgroups SLURM names no reason
            how, cause = queue.ENDS["OUT_OF_MEMORY"]
        if job.state == "NODE_FAIL":  # it may answer still: it is to end, and nobody talks to it any more
            self.channels.ask("shutdown_request", {"restart": False})
            self.channels.close()
        return Death(f"job {job.id}: {how}", said, cause)

    async def sample(self) -> str:
        """Nothing is known of what runs there."""
        return ""

    def last_words(self) -> str:
        """Return the last lines of the job's output, without escapes."""
        try:
            text = self.file.with_suffix(".out").read_bytes()[-TAIL:].decode("utf-8", "replace")
        except OSError:
            return ""
        return ESCAPES.sub("", text).strip()[-STDERR_CHARACTERS:]

    def mends(self, death: Death) -> str:
        """Return the command that adds ipykernel where it died for want of it, '' for none."""
        lacks = "No module named" in death.stderr and "ipykernel" in death.stderr
        return f"{self.python} -m pip install ipykernel" if lacks else ""

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
        if self.left:
            return
        private.remove(self.record)
        for path in self.file.parent.glob(f"{self.file.stem}*"):
            path.unlink(missing_ok=True)
