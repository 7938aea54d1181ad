"""The process of a kernel that is a SLURM job, or a step in a job of the user.

SLURM reports why a job ended. If the controller does not answer, the job may still be
running.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import KernelError
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.slurm import batch_job, slurm_cli, slurm_job
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.error_parsing import ESCAPES
from stepper.kernels.kernel_process import RemoteProcess
from stepper.kernels.zmq_channels import Channels
from stepper.policy.model import Death
from stepper.session.protocols import KernelDescription

POLL_SECONDS = 30.0  # between two queries while the kernel has a heartbeat
SILENT_POLL_SECONDS = 2.0  # without a heartbeat
QUERY_SECONDS = 0.2  # how long to wait for a query, which takes about 20 ms
SHUTDOWN_SECONDS = 2.0  # how long to wait for the replies to a shutdown request
OUTPUT_SIZE = 8000  # bytes of the job's output that are read
STDERR_CHARACTERS = 2000
# slurmstepd writes this message before the controller reports the reason, and also if
# the controller no longer knows the job.
CANCELLED_MESSAGE = re.compile(
    r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))? \*\*\*"
)
CANCEL_REASONS = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
}


class SlurmProcess(RemoteProcess):
    """A kernel that is a SLURM job or a job step.

    `data` is the content of the kernel's record, and `record` its path. `job` is the
    last known state of the job, or None. `link` forwards the kernel's ports if the
    settings require it.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        record: str,
        slurm: slurm_cli.Slurm,
        job: slurm_job.Job | None,
        link: SshConnection | None,
    ) -> None:
        self.id = str(data["kernel"])
        self.job_id = int(data["job"])
        self.machine_name = f"job {self.job_id}"
        self.data = data
        self.record = record
        self.slurm = slurm
        self.link = link
        self.name = str(data["job_name"])
        self.is_step = bool(data["step"])
        self.node = str(data["node"])
        self.file = Path(data["file"])
        self.python = str(data["python"])
        self.log_location = str(self.file.with_suffix(".out"))
        self.stack_path = str(self.file.with_suffix(".stack"))
        self.channels = Channels(data["connection"])
        self.is_encrypted = "curve_publickey" in data["connection"]
        self.death: Death | None = None
        self.may_be_running = False  # `kill` failed
        self.job = job
        self.problem = ""  # why the state of the job is unknown
        # The times of the last known state and of the last query (time.monotonic).
        self.job_known_at = time.monotonic()
        self.queried_at = self.job_known_at if job else float("-inf")
        self.query_task: asyncio.Task[None] | None = None

    @property
    def disconnect_count(self) -> int:
        """The number of times the connection was lost and restored."""
        if self.link:
            return self.link.disconnect_count
        return 0

    @property
    def unreachable_reason(self) -> str:
        """Why the kernel cannot be reached now, or an empty string if it can be."""
        if not self.link or not self.link.ports or self.link.is_up:
            return ""
        reason = f"the connection to {self.node} is down"
        if self.link.outage_text:
            reason += f"; {self.link.outage_text}"
        return reason

    @property
    def step_job_id(self) -> int:
        """The id of the user's job if the kernel is a step, otherwise 0."""
        return self.job_id if self.is_step else 0

    def describe(self) -> KernelDescription:
        """Return the kernel's interpreter, job, node and remaining walltime."""
        location = f"job {self.job_id} on {self.node}"
        if self.is_step:
            location = f"a step of {location}"
        limitation = (
            "in a SLURM job, stepper does not limit memory and cannot report the"
            " running line; the limits of the job apply"
        )
        if not self.is_encrypted:
            limitation += (
                "; the kernel's messages are signed but not encrypted, because its"
                " ipykernel does not support CurveZMQ"
            )
        left_seconds = None
        if self.job:
            left_seconds = self.job.left_seconds
        if left_seconds is not None:
            age = time.monotonic() - self.job_known_at
            left_seconds = max(0.0, left_seconds - age)
        return KernelDescription(
            self.python,
            limitation=limitation,
            location=location,
            problem=self._describe_problem(),
            walltime_left=left_seconds,
        )

    def _describe_problem(self) -> str:
        """Return why the job is not running normally, or an empty string."""
        is_querying = self.query_task is not None and not self.query_task.done()
        slow_at = self.queried_at + slurm_cli.SLOW_SECONDS
        if is_querying and time.monotonic() > slow_at:
            return f"{self.slurm.no_answer}: the job's state is not known"
        if self.unreachable_reason:
            return self.unreachable_reason
        if self.job is not None and self.job.is_waiting:
            return f"the job is {self.job.state} ({self.job.reason})"
        return self.problem

    async def interrupt(self) -> None:
        """Send an interrupt request. The kernel then interrupts its process group."""
        self.channels.send_control("interrupt_request")

    async def kill(self) -> None:
        """Cancel the job, or stop the kernel directly if SLURM cannot cancel the job.

        Raise KernelError if the kernel may still be running.
        """
        if self.job is not None and self.job.state == "NODE_FAIL":
            # The kernel may still be running on a node that SLURM cannot reach.
            await self._shut_down_directly()
        is_active = self.job is None or self.job.is_waiting or self.job.is_running
        self.may_be_running = False
        if is_active:
            self.may_be_running = not await self._stop()
        if self.death is None:
            self.death = Death(
                "stepper cancelled the kernel's job", self.read_log_tail()
            )
        if self.link is not None:
            self.link.close()
        if not self.may_be_running:
            return
        self.slurm.cancel_later(self.name, self.step_job_id)
        with contextlib.suppress(OSError):
            sealed_kernel_records.write(self.record, {**self.data, "ending": True})
        target = f"job {self.job_id}"
        command = f"scancel {self.job_id}"
        if self.is_step:
            target = f"step {self.name} of job {self.job_id}"
            command = f"squeue --steps --jobs={self.job_id}"
        raise KernelError(
            f"{self.slurm.no_answer}, so {target} was not cancelled and may still be"
            " running; stepper will cancel it when SLURM answers again",
            command,
        )

    async def _stop(self) -> bool:
        """Cancel the job, or else shut down the kernel.

        Return whether one of the two succeeded.
        """
        if await self.slurm.cancel(self.name, self.step_job_id):
            return True
        return await self._shut_down_directly()

    async def poll(self, seconds: float = QUERY_SECONDS) -> Death | None:
        """Return how the kernel died, or None if it is running or its state is unknown.

        Wait at most `seconds` for SLURM's answer.
        """
        if self.link is not None:
            self.link.restore_if_lost()
        interval = POLL_SECONDS if self._probe_heartbeat() else SILENT_POLL_SECONDS
        needs_query = time.monotonic() > self.queried_at + interval
        if self.death is None and self.query_task is None and needs_query:
            self.query_task = asyncio.create_task(self._update_state())
            await asyncio.wait({self.query_task}, timeout=seconds)
        if self.query_task is not None and self.query_task.done():
            self.query_task.result()
            self.query_task = None
        return self.death

    def _probe_heartbeat(self) -> bool:
        """Return whether the channels are open and the kernel's heartbeat responds."""
        return self.channels.is_open and self.channels.probe_heartbeat()

    async def _update_state(self) -> None:
        """Ask SLURM for the job, and record its state or the kernel's death."""
        # `describe` reports a query that takes too long, so the start is stored.
        self.queried_at = time.monotonic()
        job = await self._find_job()
        # The interval before the next query begins at the end of this one.
        self.queried_at = time.monotonic()
        if job is None:
            return
        has_heartbeat = self._probe_heartbeat()
        if job.state == slurm_job.UNKNOWN_JOB and has_heartbeat:
            # The controller lost its data, or another controller responded.
            self.problem = (
                f"the job's state is not known: SLURM does not know job {self.job_id},"
                " but its kernel responds"
            )
            return
        is_ending = not has_heartbeat and self._counts_as_ended(job)
        self.job = job
        self.job_known_at = self.queried_at
        if is_ending or not (job.is_running or job.is_waiting):
            self.death = self._create_death(job.state)

    async def _find_job(self) -> slurm_job.Job | None:
        """Return the job in its current state.

        If the state is unknown, set `problem` and return None.
        """
        try:
            if self.is_step:
                job = await self.slurm.find_step(self.job_id, self.name)
            else:
                job = await self.slurm.find_job(self.job_id, self.name)
        except KernelError as error:
            self.problem = f"the job's state is not known: {error.message}"
            return None
        except OSError as error:
            self.problem = f"the job's state is not known: {error}"
            return None
        self.problem = ""
        if job is None:
            self.problem = f"{self.slurm.no_answer}: the job's state is not known"
        return job

    def _counts_as_ended(self, job: slurm_job.Job) -> bool:
        """Return whether to treat a job in the state COMPLETING as ended.

        This is the case if the last known state was also COMPLETING, or if the job's
        output contains SLURM's message on the cancellation.
        """
        if job.state != "COMPLETING":
            return False
        # The state COMPLETING does not say why the job ends. The next query usually
        # returns the final state.
        is_repeated = self.job is not None and self.job.state == job.state
        return is_repeated or bool(CANCELLED_MESSAGE.search(self.read_log_tail()))

    async def _shut_down_directly(self) -> bool:
        """Interrupt the kernel and shut it down, without SLURM.

        Return whether the kernel replied to both requests.
        """
        # Closed channels cannot be opened again.
        channels = Channels(self.data["connection"])
        channels.open()
        control = channels.client.control_channel
        answer_count = 0
        try:
            channels.send_control("interrupt_request")
            channels.send_control("shutdown_request", {"restart": False})
            deadline = time.monotonic() + SHUTDOWN_SECONDS
            while time.monotonic() < deadline and answer_count < 2:
                await asyncio.sleep(0.05)
                if control.msg_ready():
                    control.get_msg(timeout=0)
                    answer_count += 1
        finally:
            channels.close()
        return answer_count == 2

    def _create_death(self, state: str) -> Death:
        """Return the death of a kernel whose job has ended in a state."""
        output = self.read_log_tail()
        reasons = CANCELLED_MESSAGE.findall(output)
        if state in ("COMPLETING", slurm_job.UNKNOWN_JOB) and reasons:
            state = CANCEL_REASONS.get(reasons[-1], "CANCELLED")
        unknown_state = slurm_job.EndState(f"the job ended ({state})", "")
        reason, cause = slurm_job.END_STATES.get(state, unknown_state)
        # SLURM reports an exceeded memory limit only if it uses cgroups.
        is_unexplained = state in ("FAILED", slurm_job.UNKNOWN_JOB)
        if is_unexplained and "memory limit" in output:
            reason, cause = slurm_job.END_STATES["OUT_OF_MEMORY"]
        # For a step, the walltime is that of the user's job, so `time:` has no effect.
        if self.is_step and cause == "WalltimeOver":
            cause = "EndedOutside"
        return Death(f"job {self.job_id}: {reason}", output, cause)

    def read_log_tail(self) -> str:
        """Return the last lines of the job's output, without escape sequences.

        The introduction that ipykernel prints is removed.
        """
        output = batch_job.read_output(self.file, OUTPUT_SIZE)
        output = output.rpartition(f"--existing {self.file}\n")[2]
        return ESCAPES.sub("", output).strip()[-STDERR_CHARACTERS:]

    def suggest_fix(self, death: Death) -> str:
        """Return the command that installs ipykernel, or an empty string.

        The command is returned if the job's output says that ipykernel is missing.
        """
        return suggest_ipykernel(self.python, death.stderr)

    def remove_record(self) -> None:
        """Remove the record and the job's files, unless the job may be running."""
        if not self.may_be_running:
            secure_files.remove(self.record)
            batch_job.remove_files(self.file)


def suggest_ipykernel(python: str, output: str) -> str:
    """Return the command that installs ipykernel if the job's output reports its lack.

    Otherwise, return an empty string.
    """
    if "No module named" in output and "ipykernel" in output:
        return f"{shlex.quote(python)} -m pip install ipykernel"
    return ""
