"""The launcher for kernels that are SLURM jobs, or steps in a job of the user.

A job is submitted once and recorded before it starts. Waiting in the queue is not a
failure: the client keeps waiting, `queue_status` describes the job's state, and the
next daemon can continue to wait for the same job.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from stepper.common import secure_files
from stepper.common.errors import (
    IpykernelMissingError,
    KernelError,
    KernelStartError,
)
from stepper.kernels import sealed_kernel_records
from stepper.kernels.backends.slurm import (
    batch_job,
    slurm_cli,
    slurm_job,
    slurm_settings,
)
from stepper.kernels.backends.slurm.node_launcher import CHANNELS
from stepper.kernels.backends.slurm.slurm_process import (
    SlurmProcess,
    suggest_ipykernel,
)
from stepper.kernels.backends.slurm.slurm_settings import KIND, SlurmSettings
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.backends.ssh.ssh_settings import HOST, SshSettings
from stepper.kernels.client import KernelClient
from stepper.policy.configuration.kernel_config import BackendConfig
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

START_SECONDS = 60.0  # from the start of the job
# Pauses between two checks of the connection file and of the job: at first, and after a
# long wait.
FILE_SECONDS = (0.1, 1.0)
JOB_SECONDS = (1.0, 30.0)
OUTPUT_SIZE = 2000  # bytes of a job's output in an error
CHECK_SECONDS = 8.0  # time limit of `check_cluster`
# In the output of a job, if another process took a port after it was selected.
ADDRESS_IN_USE = "Address already in use"


class SlurmLauncher:
    """Starts and finds the kernel of one notebook.

    `record` is the path of the kernel's record, and `runtime` the folder of sockets.
    `parts` maps each module that the helper in the kernel may load to its package.
    """

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str]) -> None:
        self.record = record
        self.runtime = runtime
        self.parts = parts
        self.slurm = slurm_cli.Slurm(os.environ)
        # The queue status that SLURM last reported.
        self.waiting_status: QueueStatus | None = None
        # The settings and the time of a start whose job is not running yet.
        self.pending: tuple[SlurmSettings, float] | None = None

    @property
    def queue_status(self) -> QueueStatus | None:
        """The queue status of the current start, or None if no job is waiting.

        If SLURM's controller does not answer, the status contains a message about this.
        """
        status = self.waiting_status
        silence = self.slurm.silence
        if self.pending is None or not silence:
            return status
        settings, since = self.pending
        if status is None:
            request = "" if settings.jobid else "job request"
            return QueueStatus(
                f"{silence}: the state of the job is not known",
                since,
                settings.queue_seconds,
                request=request,
            )
        if slurm_cli.SILENT in status.text:
            return status
        return replace(status, text=f"{silence}; last known state: {status.text}")

    async def start(self, config: LaunchConfig) -> KernelClient:
        """Start a kernel and return it when it is ready.

        If the record contains a waiting job with the same settings, that job is used.
        Raise KernelError if the kernel cannot be started.
        """
        backend = config.backend
        assert backend is not None
        settings = backend.settings
        assert isinstance(settings, SlurmSettings)
        self.pending = (settings, time.monotonic())
        data = self._read_record()
        if data and not await self._can_take_over(data, backend):
            await self.cancel_request()
            data = {}
        self.slurm = slurm_cli.Slurm(config.environ)
        try:
            return await self._submit_and_connect(config, backend, data)
        except asyncio.CancelledError:
            # The daemon exits, and the next daemon takes over the recorded job.
            raise
        except BaseException:
            # If the job cannot be cancelled, the next start cancels it or reports why.
            with contextlib.suppress(KernelError):
                await self.cancel_request()
            raise
        finally:
            self.waiting_status = None
            self.pending = None

    async def _submit_and_connect(
        self, config: LaunchConfig, backend: BackendConfig, data: dict[str, Any]
    ) -> KernelClient:
        """Return the kernel of the recorded job, or of a new job.

        `data` is the record of a job that can be used, or an empty dict. Raise
        KernelError if the kernel cannot be started.
        """
        settings = backend.settings
        data = data or await self._submit(config, backend, settings)
        try:
            return await self._connect(data, settings)
        except KernelStartError as error:
            if ADDRESS_IN_USE not in error.message:
                raise
        # A new job selects other ports.
        await self.cancel_request()
        data = await self._submit(config, backend, settings)
        return await self._connect(data, settings)

    async def _can_take_over(
        self, data: Mapping[str, Any], backend: BackendConfig
    ) -> bool:
        """Return whether the recorded job can be used for a kernel of a backend.

        A step in the user's job is never used. A job is used even if SLURM does not
        answer, because the job may still be waiting.
        """
        if data.get("definition") != backend.definition or data["step"]:
            return False
        if not data.get("job") or data.get("ending"):
            return False
        job = await self.slurm.find_job(data["job"], data["job_name"])
        return job is None or job.is_waiting or job.is_running

    async def cancel_request(self) -> None:
        """Cancel the recorded job, even if it is running, and remove the record.

        Raise KernelError if SLURM does not answer. In this case, the job may continue,
        and the record is kept.
        """
        data = self._read_record()
        if not data:
            return
        name = data["job_name"]
        step_job_id = data["step"]
        if not await self.slurm.cancel(name, step_job_id):
            self.slurm.cancel_later(name, step_job_id)
            target = f"the job {name}"
            command = f"scancel --me --name={name}"
            if step_job_id:
                target = f"the step {name} of job {step_job_id}"
                command = f"scancel {step_job_id}"
            raise KernelError(
                f"{self.slurm.no_answer}, so {target} may continue; stepper will cancel"
                " it when SLURM answers again",
                command,
            )
        if not data.get("job"):
            # The controller did not answer sbatch, and may accept the job later.
            self.slurm.cancel_later(name)
        self._remove_record(data)

    def _read_record(self) -> dict[str, Any]:
        """Return the content of the record, or an empty dict if it is not valid.

        The path of the job's files is computed and not taken from the record. From now
        on, SLURM's commands use the environment in the record.
        """
        try:
            data = json.loads(secure_files.read(self.record))
            if data.get("kind") != KIND:
                return {}
            if not sealed_kernel_records.is_sealed(self.record, data):
                return {}
            settings = _parse_settings(data)
            kernel_id = uuid.UUID(data["kernel"]).hex
            # Jobs with other names are not stepper's and must not be cancelled.
            pattern = rf"stepper-[0-9a-f]{{8}}-{kernel_id}"
            if not re.fullmatch(pattern, data["job_name"]):
                return {}
            # The daemon's own environment may have no `module load slurm`.
            self.slurm = slurm_cli.Slurm(data["environ"])
            return {
                **data,
                "kernel": kernel_id,
                "file": self._get_connection_file(settings, kernel_id),
                "step": settings.jobid,
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _get_connection_file(self, settings: SlurmSettings, kernel_id: str) -> str:
        """Return the path of a kernel's connection file.

        The suffix is not `.json`, which is used for records.
        """
        folder = batch_job.get_folder(settings, self.record)
        return os.path.join(folder, f"{kernel_id}.connection")

    async def _submit(
        self, config: LaunchConfig, backend: BackendConfig, settings: SlurmSettings
    ) -> dict[str, Any]:
        """Submit a job, or start a step in the user's job.

        Return the content of the kernel's record. Raise KernelError if SLURM does not
        answer or refuses the request.
        """
        python = settings.python or config.python
        if not python:
            raise KernelError(
                f"`kernels.{backend.name}` has no `python`, and the project has no"
                " interpreter",
                f"add `python:` to `kernels.{backend.name}` in .stepper/config.yaml",
            )
        if settings.jobid:
            await self._wait_for_user_job(settings)
        kernel_id = uuid.uuid4().hex
        file = Path(self._get_connection_file(settings, kernel_id))
        data: dict[str, Any] = {
            "kind": KIND,
            "name": backend.name,
            "definition": dict(backend.definition),
            "kernel": kernel_id,
            "job_name": slurm_cli.build_name_prefix(self.runtime) + kernel_id,
            "python": python,
            "file": str(file),
            "step": settings.jobid,
            "job": settings.jobid,
            "environ": self.slurm.environ,
        }
        script = batch_job.build_script(settings, python, file, config.cwd)
        batch_job.write_files(file, script)
        # If this daemon exits during the submission, the next daemon finds the job by
        # its name in the record.
        sealed_kernel_records.save(self.record, data)
        try:
            await self._run_submit_command(data, settings, script, config)
        except slurm_cli.RefusedError:
            self._remove_record(data)
            raise
        return data

    async def _run_submit_command(
        self,
        data: dict[str, Any],
        settings: SlurmSettings,
        script: str,
        config: LaunchConfig,
    ) -> None:
        """Submit a job or start a step, and add the job's id to the record.

        Raise KernelError if SLURM does not answer or refuses the request.
        """
        name = data["job_name"]
        file = Path(data["file"])
        if settings.jobid:
            await self.slurm.run(
                *batch_job.build_step_command(settings, name, file),
                environ=batch_job.remove_job_variables(config.environ),
            )
            return
        max_seconds = None
        if not settings.time:
            max_seconds = await self.slurm.get_time_limit(settings.partition)
        options = batch_job.build_options(settings, name, file, max_seconds)
        data["job"] = await self.slurm.submit(options, script, config.environ)
        sealed_kernel_records.save(self.record, data)

    def _remove_record(self, data: Mapping[str, Any]) -> None:
        """Remove the record and the job's files."""
        secure_files.remove(self.record)
        batch_job.remove_files(Path(data["file"]))

    async def _wait_for_user_job(self, settings: SlurmSettings) -> None:
        """Wait until the user's job is running.

        Raise KernelError if the job has ended or SLURM does not answer.
        """
        since = time.monotonic()
        while True:
            job = await self.slurm.find_job(settings.jobid)
            if job is None:
                raise KernelError(
                    f"{self.slurm.no_answer}, so the state of job {settings.jobid} is"
                    " not known",
                    "sinfo",
                )
            if not job.is_waiting:
                break
            await self._update_queue_status(job, settings, since)
            await asyncio.sleep(_compute_pause(since, JOB_SECONDS))
        if not job.is_running:
            raise KernelError(
                f"cannot start a kernel in job {settings.jobid}: the job's state is"
                f" {job.state}",
                "squeue --me",
            )

    async def _update_queue_status(
        self,
        job: slurm_job.Job,
        settings: SlurmSettings,
        since: float,
        request: str = "",
    ) -> None:
        """Update the queue status, or remove it if the job is not waiting.

        `since` is the start of the wait, taken from the monotonic clock. `request` is a
        name for the request that the user may cancel, for example "job request".
        """
        if not job.is_waiting:
            self.waiting_status = None
            return
        # Until the query has finished, `queue_status` returns the old status.
        ahead = await self.slurm.count_ahead(job)
        text = job.format_waiting(ahead, datetime.now())
        self.waiting_status = QueueStatus(
            text, since, settings.queue_seconds, request=request
        )

    async def _connect(
        self, data: dict[str, Any], settings: SlurmSettings
    ) -> KernelClient:
        """Wait for the kernel of a submitted job and return a client connected to it.

        Also add the node and the connection to the record. Raise KernelError if the
        kernel does not start.
        """
        file = Path(data["file"])
        job = await self._wait_for_connection_file(data, settings, file)
        self.waiting_status = None
        self.pending = None
        connection = json.loads(secure_files.read(str(file)))
        data["node"] = connection.pop("node")
        data["connection"] = connection
        if settings.via:
            data["ports"] = [connection[f"{channel}_port"] for channel in CHANNELS]
        sealed_kernel_records.save(self.record, data)
        running_job = job if job and job.is_running else None
        process = self._create_process(data, settings, running_job)
        kernel = KernelClient(process, self.parts, self.runtime)
        try:
            if process.link is not None:
                await process.link.open(data["ports"])
            await kernel.connect(START_SECONDS)
        except asyncio.CancelledError:
            kernel.detach()
            raise
        except BaseException:
            with contextlib.suppress(KernelError):  # report the first error
                await kernel.shutdown()
            raise
        return kernel

    async def _wait_for_connection_file(
        self, data: Mapping[str, Any], settings: SlurmSettings, file: Path
    ) -> slurm_job.Job | None:
        """Wait for the connection file, and return the job in its last known state.

        Return None if SLURM has not reported a state. Raise KernelError if the job has
        ended or does not write the file in time.
        """
        since = time.monotonic()
        running_since = 0.0
        next_query = 0.0
        job: slurm_job.Job | None = None
        # The file is checked more often than the job.
        while not batch_job.is_written(file):
            now = time.monotonic()
            if now > next_query:
                current_job = await self._query_starting_job(
                    data, settings, since, job, has_started=running_since > 0.0
                )
                next_query = now + _compute_pause(since, JOB_SECONDS)
                job = current_job or job
                if current_job is not None and current_job.is_running:
                    running_since = running_since or now
                    self.pending = None
                # The file may have been written during the query.
                if batch_job.is_written(file):
                    break
                if _has_ended(job, file):
                    raise _create_start_error(data, job, file)
            if running_since and now > running_since + START_SECONDS:
                raise _create_timeout_error(data, job, file)
            await asyncio.sleep(_compute_pause(since, FILE_SECONDS))
        return job

    async def _query_starting_job(
        self,
        data: Mapping[str, Any],
        settings: SlurmSettings,
        since: float,
        last_job: slurm_job.Job | None,
        *,
        has_started: bool,
    ) -> slurm_job.Job | None:
        """Return a starting job in its current state, or None if the state is unknown.

        Also update the queue status. `since` is the start of the wait, and `last_job`
        is the job in its last known state. `has_started` is true if an earlier query
        has returned a running job.
        """
        job_id = int(data["job"])
        is_step = bool(data["step"])
        request = "job step" if is_step else "job request"
        problem = ""
        job = None
        try:
            job_name = "" if is_step else data["job_name"]
            job = await self.slurm.find_job(job_id, job_name)
            if job:
                await self._update_queue_status(job, settings, since, request)
            else:
                problem = self.slurm.no_answer
        except slurm_cli.RefusedError as error:
            # A waiting job is not cancelled because of this error.
            problem = error.message
        # A job may wait for hours, so the status says that its state is unknown.
        if job is None and not has_started:
            state = f"job {job_id} may be waiting"
            if last_job:
                state = f"job {job_id} was {last_job.state}"
            self.waiting_status = QueueStatus(
                f"{problem}: {state}", since, settings.queue_seconds, request=request
            )
        return job

    def _create_process(
        self,
        data: Mapping[str, Any],
        settings: SlurmSettings,
        job: slurm_job.Job | None,
    ) -> SlurmProcess:
        """Return the process of the recorded kernel.

        With `via: ssh`, the process uses a connection that forwards the kernel's ports
        to local sockets. Raise ValueError if the node is not a valid host name.
        """
        if not settings.via:
            return SlurmProcess(data, self.record, self.slurm, job, None)
        node = str(data["node"])
        if not HOST.fullmatch(node):
            raise ValueError(f"{node!r:.100} is not a host name")
        sockets = os.path.join(self.runtime, f"k{data['kernel'][:8]}")
        ports = {
            f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)
        }
        connection = {**data["connection"], **ports, "transport": "ipc", "ip": sockets}
        link = SshConnection(SshSettings(node), f"{sockets}.ssh", sockets)
        local_data = {**data, "connection": connection}
        return SlurmProcess(local_data, self.record, self.slurm, job, link)

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that an earlier daemon started.

        Return how the kernel died if it is dead, a Death with the reason if the record
        contains wrong values, or None if no kernel was started. A job whose submission
        or cancellation was interrupted is cancelled. No request is sent to the kernel.
        """
        data = self._read_record()
        if not data:
            return None
        try:
            if not data.get("job") or data.get("ending"):
                # If the job cannot be cancelled, the next start tries again.
                with contextlib.suppress(KernelError):
                    await self.cancel_request()
                return None
            if "connection" not in data:
                return None  # the job is waiting, and no cell has run in it
            process = self._create_process(data, _parse_settings(data), None)
            if process.link is not None:
                await process.link.resume([int(port) for port in data["ports"]])
        except (ValueError, KeyError, TypeError) as error:
            return Death(f"the kernel record {self.record} is not valid: {error}")
        kernel = KernelClient(process, self.parts, self.runtime)
        death = await process.poll(slurm_cli.SLOW_SECONDS)
        if death is None:
            return kernel
        with contextlib.suppress(KernelError):
            await kernel.shutdown()
        return death


def _parse_settings(data: Mapping[str, Any]) -> SlurmSettings:
    """Return the settings in a record.

    Raise ValueError, KeyError or TypeError if they are not valid.
    """
    return slurm_settings.parse_settings(data["definition"][KIND], (KIND,))


async def cancel_orphaned_jobs(
    runtime: str,
    get_records: Callable[[], Iterable[Path]],
    environ: Mapping[str, str],
) -> int:
    """Cancel this project's jobs that have no record.

    Return the number of jobs that were cancelled. Raise KernelError if SLURM fails, or
    OSError if a record cannot be read.
    """
    slurm = slurm_cli.Slurm(environ)
    job_names = await slurm.list_own_jobs(slurm_cli.build_name_prefix(runtime))
    if not job_names:
        return 0
    records = b""
    for path in get_records():
        with contextlib.suppress(FileNotFoundError):
            records += secure_files.read(str(path))
    orphans = [name for name in job_names if name.encode() not in records]
    cancelled_count = 0
    for name in orphans:
        if await slurm.cancel(name):
            cancelled_count += 1
    return cancelled_count


async def check_cluster(
    settings: SlurmSettings, environ: Mapping[str, str]
) -> list[str]:
    """Check the settings with SLURM, and return the partitions or the user's job.

    Each item of the result describes a partition or the job. Raise KernelError if
    SLURM does not answer or refuses the settings.
    """
    slurm = slurm_cli.Slurm(environ)
    try:
        return await asyncio.wait_for(_describe_offer(slurm, settings), CHECK_SECONDS)
    except asyncio.TimeoutError:
        raise KernelError(slurm.no_answer, "sinfo") from None


async def _describe_offer(slurm: slurm_cli.Slurm, settings: SlurmSettings) -> list[str]:
    """Check the settings, and return descriptions of the partitions or the user's job.

    Raise KernelError if SLURM does not answer or refuses the settings.
    """
    if not settings.jobid:
        partitions = await slurm.describe_partitions()
        max_seconds = await slurm.get_time_limit(settings.partition)
        options = batch_job.build_options(
            settings, "stepper-test", Path("/dev/null"), max_seconds
        )
        await slurm.check_options(options)
        return partitions
    job = await slurm.find_job(settings.jobid)
    if job is None:
        raise KernelError(slurm.no_answer, "squeue --me")
    if job.state == slurm_job.UNKNOWN_JOB:
        raise KernelError(f"SLURM does not know job {settings.jobid}", "squeue --me")
    if not (job.is_running or job.is_waiting):
        raise KernelError(
            f"job {settings.jobid} cannot be used: its state is {job.state}",
            "squeue --me",
        )
    node_or_reason = job.node or job.reason
    return [
        f"job {job.id} ({job.name}): {job.state}, {node_or_reason},"
        f" {job.remaining_time} left"
    ]


def explain_uncertainty(settings: SlurmSettings) -> str:
    """Return a warning if the interpreter cannot be executed on this machine.

    Otherwise, return an empty string.
    """
    python = settings.python
    if not os.path.isabs(python) or os.access(python, os.X_OK):
        return ""
    return (
        f"{python} cannot be executed on this machine; it may exist on the compute"
        " nodes"
    )


def list_unchecked(settings: SlurmSettings) -> list[str]:
    """Return a list of items that can be checked only on a compute node."""
    items = "the project's interpreter"
    if settings.python:
        items = f"python {settings.python}"
    if settings.setup:
        items += " and `setup`"
    return [f"{items} on the compute node"]


def _compute_pause(since: float, limits: tuple[float, float]) -> float:
    """Return the seconds until the next check: a tenth of the time waited so far.

    `since` is the start of the wait, and `limits` are the shortest and longest pause.
    """
    shortest, longest = limits
    waited = time.monotonic() - since
    return min(longest, max(shortest, waited / 10))


def _has_ended(job: slurm_job.Job | None, file: Path) -> bool:
    """Return whether a starting job has ended, or the srun of a step has exited.

    `job` is the job in its last known state, and `file` the path of the connection
    file.
    """
    if job is not None and not (job.is_waiting or job.is_running):
        return True
    return batch_job.is_written(file.with_suffix(".out.ended"))


def _create_timeout_error(
    data: Mapping[str, Any], job: slurm_job.Job | None, file: Path
) -> KernelError:
    """Return the error for a running job that does not write the connection file."""
    node = job.node if job else ""
    return KernelStartError(
        f"job {data['job']} has run on {node} for {START_SECONDS:.0f} s without writing"
        " the connection file. Either the kernel is slow to start, or"
        f" {_describe_unshared(file, node)}"
    )


def _create_start_error(
    data: Mapping[str, Any], job: slurm_job.Job | None, file: Path
) -> KernelError:
    """Return the error for a job that ended before its kernel started."""
    job_id = data["job"]
    python = data["python"]
    output = batch_job.read_output(file, OUTPUT_SIZE).strip()
    fix = suggest_ipykernel(python, output)
    if fix:
        return IpykernelMissingError(
            f"in job {job_id}, {python} does not have ipykernel: {output}", fix
        )
    state = slurm_job.STEP_ENDED
    if job is not None and not job.is_running:
        state = job.state
    if not output and state in ("FAILED", slurm_job.STEP_ENDED):
        node = job.node if job else ""
        unshared = _describe_unshared(file, node)
        output = f"the job wrote no output, perhaps because {unshared}"
    target = f"the step in job {job_id}" if data["step"] else f"job {job_id}"
    message = f"{target} ended before the kernel started ({state})"
    if output:
        message += f": {output}"
    return KernelStartError(message)


def _describe_unshared(file: Path, node: str) -> str:
    """Return a description of a job folder that is not on a shared file system."""
    folder = file.parent.parent
    return (
        f"{folder} is not on a file system that {node or 'the node'} shares (to use"
        " another folder, set `folder:`)"
    )
