"""SLURM's commands (sbatch, squeue, scancel, sinfo) and their parsed output.

Each command has a time limit. The result None means that SLURM's controller does not
answer, so the state of a job is unknown.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from enum import Enum
from typing import NamedTuple

from stepper.common.errors import KernelError
from stepper.common.hook_paths import encode_path, fnv1a
from stepper.common.text import one_line
from stepper.kernels.backends.slurm import slurm_job

# The environment variables that SLURM's commands get.
VARIABLES = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LD_LIBRARY_PATH",
    "LANG",
    "TZ",
    "SLURM_CONF",
)
# The time limit of a command: squeue hangs if the controller is frozen.
COMMAND_SECONDS = 15.0
SLOW_SECONDS = 3.0  # a slower command means that the controller does not answer
# The first pause and the longest pause between two attempts to cancel a job.
RETRY_SECONDS = (5.0, 60.0)
# How often a job is cancelled after the controller answers again. The controller may
# accept a job that was submitted earlier only after the first attempts.
CANCEL_COUNT = 3
NO_ANSWER_MESSAGES = (
    "Unable to contact slurm controller",
    "Socket timed out",
    "Could not establish a configuration source",
)
SILENT = "SLURM's controller does not answer"
# The commands that contact the controller.
CONTROLLER_COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
NO_GRES = ("", "(null)")
# Tasks that cancel jobs as soon as SLURM answers again, by job name.
PENDING_CANCELS: dict[str, asyncio.Task[None]] = {}


class Answer(Enum):
    """Whether SLURM's controller answered a command."""

    RECEIVED = "received"
    MISSING = "missing"
    # The command was cancelled, or it does not contact the controller.
    UNKNOWN = "unknown"


class Contact:
    """Records when SLURM's controller was contacted and when it answered.

    Times are seconds of `time.time`.
    """

    def __init__(self) -> None:
        self.pending: dict[object, float] = {}  # running commands → their start
        self.answered_at = 0.0  # the last answer
        # The start of the first command that got no answer, or 0.
        self.failed_at = 0.0

    def start_command(self) -> object:
        """Record the start of a command, and return a key for `finish_command`."""
        command = object()
        self.pending[command] = time.time()
        return command

    def finish_command(self, command: object, answer: Answer) -> None:
        """Record whether the controller answered a command.

        `command` is the key that `start_command` returned.
        """
        started_at = self.pending.pop(command)
        if answer is Answer.RECEIVED:
            self.answered_at = time.time()
            self.failed_at = 0.0
            return
        is_slow = time.time() > started_at + SLOW_SECONDS
        is_failure = answer is Answer.MISSING or is_slow
        if is_failure and started_at >= self.answered_at:
            self.failed_at = self.failed_at or started_at

    def get_silence_start(self) -> float:
        """Return the time since which the controller has not answered, or 0."""
        now = time.time()
        starts = [self.failed_at] if self.failed_at else []
        for started_at in self.pending.values():
            waiting_since = max(started_at, self.answered_at)
            if now > waiting_since + SLOW_SECONDS:
                starts.append(waiting_since)
        return min(starts, default=0.0)


# SLURM's configuration file ('' for the default one) → its controller.
CONTACTS: dict[str, Contact] = {}


class RefusedError(KernelError):
    """A SLURM command failed with an error message, or is not installed."""


class MissingCommandError(RefusedError):
    """A SLURM command is not installed."""


class _CommandResult(NamedTuple):
    """The output of a finished command, and whether it failed."""

    output: str
    errors: str
    failed: bool


def build_name_prefix(runtime: str) -> str:
    """Return the prefix of the names of a project's jobs.

    The prefix depends on the host, because another host may have a project at the same
    path. `runtime` is the project's folder of sockets.
    """
    name_hash = fnv1a(encode_path(f"{socket.gethostname()}:{runtime}"))
    return f"stepper-{name_hash[:8]}-"


class Slurm:
    """SLURM's commands, run with PATH and configuration of a client's environment.

    The environment must not come from a file of the project, because it decides which
    programs are executed.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = {
            name: value for name, value in environ.items() if name in VARIABLES
        }
        configuration = self.environ.get("SLURM_CONF", "")
        self.contact = CONTACTS.setdefault(configuration, Contact())
        # The error of the last `cancel` if one of SLURM's commands does not exist.
        self.missing_command = ""

    @property
    def silence(self) -> str:
        """A message if the controller does not answer, otherwise an empty string."""
        start = self.contact.get_silence_start()
        if not start:
            return ""
        moment = datetime.fromtimestamp(start)
        is_today = moment.date() == datetime.now().date()
        time_format = "%H:%M:%S" if is_today else "%F %H:%M:%S"
        clock = moment.strftime(time_format)
        return f"{SILENT} (no answer since {clock})"

    @property
    def no_answer(self) -> str:
        """The reason why a command was not executed or got no answer, as a message."""
        return self.missing_command or self.silence or SILENT

    async def run(
        self,
        *command: str,
        stdin: bytes = b"",
        environ: Mapping[str, str] | None = None,
    ) -> str | None:
        """Return the output of a command, or None if the controller does not answer.

        Raise RefusedError with SLURM's message if the command fails.
        """
        key = self.contact.start_command()
        answer = Answer.UNKNOWN
        is_silent = False
        try:
            result = await self._execute(command, stdin, environ)
            if result.failed:
                is_silent = any(text in result.errors for text in NO_ANSWER_MESSAGES)
            if command[0] in CONTROLLER_COMMANDS:
                answer = Answer.MISSING if is_silent else Answer.RECEIVED
        except asyncio.TimeoutError:
            answer = Answer.MISSING
            return None
        finally:
            self.contact.finish_command(key, answer)
        if is_silent:
            return None
        if result.failed:
            # Most messages begin with the name of the command.
            message = one_line(result.errors, 400).removeprefix(f"{command[0]}: ")
            raise RefusedError(f"{command[0]}: {message}")
        return result.output

    async def _execute(
        self, command: Sequence[str], stdin: bytes, environ: Mapping[str, str] | None
    ) -> _CommandResult:
        """Execute a command and return its output.

        Raise TimeoutError after COMMAND_SECONDS, and MissingCommandError if the command
        does not exist.
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
            raise MissingCommandError(
                f"the command `{command[0]}` was not found on this machine, which is"
                " perhaps not a SLURM login host",
                "module load slurm  # or run stepper on a SLURM login host",
            ) from None
        try:
            output, errors = await asyncio.wait_for(
                process.communicate(stdin), COMMAND_SECONDS
            )
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        return _CommandResult(
            output.decode("utf-8", "replace"),
            errors.decode("utf-8", "replace"),
            bool(process.returncode),
        )

    async def submit(
        self, options: Sequence[str], script: str, environ: Mapping[str, str]
    ) -> int:
        """Submit a batch script and return the id of the job.

        Raise RefusedError if SLURM refuses the job, and KernelError if the controller
        does not answer.
        """
        output = await self.run(
            "sbatch", "--parsable", *options, stdin=script.encode(), environ=environ
        )
        number = (output or "").strip().partition(";")[0]
        if not number.isdecimal():
            raise KernelError(
                f"{self.no_answer}, so it is not known whether the job was submitted."
                " If SLURM accepts the job later, stepper will cancel it",
                "sinfo",
            )
        return int(number)

    async def check_options(self, options: Sequence[str]) -> None:
        """Let SLURM check the options of a job without submitting it.

        Raise RefusedError if SLURM refuses them, and KernelError if the controller does
        not answer.
        """
        checked_options = [
            option for option in options if not option.startswith("--output=")
        ]
        output = await self.run(
            "sbatch",
            "--test-only",
            "--output=/dev/null",
            *checked_options,
            stdin=b"#!/bin/sh\n",
        )
        if output is None:
            raise KernelError(self.no_answer, "sinfo")

    async def find_job(self, job_id: int, name: str = "") -> slurm_job.Job | None:
        """Return a job in its current state, or None if the controller does not answer.

        The state is UNKNOWN_JOB if SLURM does not know the job, or if the job with this
        id has a different name. Raise RefusedError if squeue fails for another reason.
        """
        try:
            output = await self.run(
                "squeue",
                "-h",
                "-t",
                "all",
                "-j",
                str(job_id),
                "-o",
                slurm_job.JOB_FORMAT,
            )
        except KernelError as error:
            if "Invalid job id" not in error.message:
                raise
            output = ""
        if output is None:
            return None
        for job in slurm_job.parse_jobs(output):
            if not name or job.name == name:
                return job
        return slurm_job.Job(job_id, name, slurm_job.UNKNOWN_JOB)

    async def find_step(self, job_id: int, name: str) -> slurm_job.Job | None:
        """Return the job of a step, or None if the controller does not answer.

        `job_id` is the id of the job, and `name` the name of the step. The state is
        STEP_ENDED if the job is running but has no step with this name.
        """
        job = await self.find_job(job_id)
        if job is None or not job.is_running:
            return job
        steps = await self.list_steps(job_id, name)
        if steps is None:
            return None
        if steps:
            return job
        return replace(job, state=slurm_job.STEP_ENDED)

    async def list_steps(self, job_id: int, name: str) -> list[str] | None:
        """Return the ids of a job's steps with a name.

        Return None if the controller does not answer.
        """
        output = await self.run("squeue", "-h", "-s", "-j", str(job_id), "-o", "%i|%j")
        if output is None:
            return None
        rows = [row.partition("|") for row in output.splitlines()]
        return [step_id for step_id, _, step_name in rows if step_name == name]

    async def cancel(self, name: str, job_id: int = 0) -> bool:
        """Cancel all jobs with a name, or the steps with this name in one job.

        `job_id` is the job of the steps, or 0. Return whether the controller answered.
        """
        self.missing_command = ""
        arguments = ["--full", f"--jobname={name}"]
        try:
            if job_id:
                steps = await self.list_steps(job_id, name)
                if steps is None:
                    return False
                if not steps:
                    return True  # the steps have ended
                arguments = steps
            return await self.run("scancel", *arguments) is not None
        except MissingCommandError as error:
            self.missing_command = error.message
            return False
        except RefusedError:
            return True  # an answer, for example that the job does not exist

    def cancel_later(self, name: str, job_id: int = 0) -> None:
        """Cancel jobs in the background as soon as the controller answers.

        For the parameters, see `cancel`. The attempts stop when the daemon exits. The
        next daemon finds the jobs by their names.
        """
        if name not in PENDING_CANCELS:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._retry_cancel(name, job_id))
            PENDING_CANCELS[name] = task
            task.add_done_callback(lambda _: PENDING_CANCELS.pop(name))

    async def _retry_cancel(self, name: str, job_id: int) -> None:
        """Try to cancel jobs until the controller has answered CANCEL_COUNT times."""
        first_pause, longest_pause = RETRY_SECONDS
        pause = first_pause
        answer_count = 0
        while answer_count < CANCEL_COUNT:
            await asyncio.sleep(pause)
            if await self.cancel(name, job_id):
                answer_count += 1
                pause = first_pause
            else:
                pause = min(2 * pause, longest_pause)

    async def count_ahead(self, job: slurm_job.Job) -> int:
        """Return the number of waiting jobs in the partition with a higher priority.

        Jobs that were submitted earlier precede jobs with the same priority. Return 0
        if the number is unknown.
        """
        output = await self.run(
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
        waiting_ids = (output or "").split()
        job_id = str(job.id)
        if job_id in waiting_ids:
            return waiting_ids.index(job_id)
        return 0

    async def list_own_jobs(self, prefix: str) -> list[str]:
        """Return the names of the user's jobs that start with a prefix.

        Return an empty list if the controller does not answer. Raise RefusedError if
        squeue fails.
        """
        output = await self.run("squeue", "-h", "--me", "-o", "%j") or ""
        return [name for name in output.splitlines() if name.startswith(prefix)]

    async def get_time_limit(self, partition: str) -> float | None:
        """Return the time limit of a partition in seconds.

        For several partitions, separated by commas, return the shortest limit. An empty
        string means the default partition. Return None if there is no limit, or if the
        limit is unknown, for example because the controller does not answer.
        """
        output = await self.run("sinfo", "-h", "-o", "%P|%l") or ""
        selected_partitions = set(partition.split(","))
        limits = []
        for row in output.splitlines():
            name, _, limit = row.partition("|")
            if partition:
                is_selected = not selected_partitions.isdisjoint(
                    {name, name.rstrip("*")}
                )
            else:
                is_selected = name.endswith("*")  # the default partition
            if is_selected:
                limits.append(slurm_job.parse_seconds(limit))
        return min((limit for limit in limits if limit), default=None)

    async def describe_partitions(self) -> list[str]:
        """Return a description of each partition and the nodes in it.

        Raise KernelError if the controller does not answer.
        """
        output = await self.run("sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%G")
        if output is None:
            raise KernelError(self.no_answer, "sinfo")
        lines = []
        for row in output.splitlines():
            fields = (row.split("|") + [""] * 6)[:6]
            name, availability, limit, node_count, state, gres = fields
            is_unlimited = limit == "infinite"
            time_limit = "no time limit" if is_unlimited else f"time limit {limit}"
            details = f"{availability}, {time_limit}"
            if gres not in NO_GRES:
                details += f", {gres}"
            name = name.rstrip("*")
            noun = "node" if node_count == "1" else "nodes"
            lines.append(f"partition {name} ({details}): {node_count} {noun} {state}")
        return lines
