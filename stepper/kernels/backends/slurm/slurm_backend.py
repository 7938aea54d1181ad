"""The kernel provider `slurm`: a kernel is a job, submitted once, on record before anybody waits for it.

A job that still waits is no failure: whoever asked waits on (`queued` tells how it stands), and another daemon for the
same one. With `jobid` it is a step of the job that the person holds, by an srun that nobody waits for.
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

from stepper.common import private_files
from stepper.common.errors import (
    IpykernelMissingError,
    KernelError,
    KernelStartError,
)
from stepper.kernels import kernel_records
from stepper.kernels.backends.slurm import batch_job, slurm_cli
from stepper.kernels.backends.slurm.node_launcher import CHANNELS
from stepper.kernels.backends.slurm.slurm_process import SlurmProcess, lacks
from stepper.kernels.backends.ssh.ssh_connection import SshConnection
from stepper.kernels.client import KernelClient
from stepper.policy import kernel_config
from stepper.policy.kernel_config import BackendConfig, SlurmSettings, SshSettings
from stepper.policy.model import Death
from stepper.session.protocols import LaunchConfig, QueueStatus

START_SECONDS = 60.0  # from the job's start
# between two looks at the connection file, at a job that is to start
FILE_SECONDS, LOOK_SECONDS = 0.1, 1.0
FILE_MOST, LOOK_MOST = 1.0, 30.0  # … once it waits for long
TAIL = 2000  # characters of what a job wrote
ANSWER_SECONDS = 8.0  # for SLURM to say what it offers
# between choosing a port and taking it somebody else took it
IN_USE = "Address already in use"


class SlurmKernels:
    """One notebook's kernel, kept in `record` for the next daemon; the sockets to it, if any, lie in `runtime`."""

    # only read
    def __init__(
        self, record: str, runtime: str, parts: Mapping[str, str] = {}
    ) -> None:
        self.record, self.runtime, self.parts, self.queue = (
            record,
            runtime,
            parts,
            slurm_cli.Queue(os.environ),
        )
        self.wait: QueueStatus | None = None  # as SLURM described it last
        # the start under way, until its job runs: its definition, when it began
        self.pending: tuple[SlurmSettings, float] | None = None

    @property
    def queue_status(self) -> QueueStatus | None:
        """What a start that is under way waits for, and whether SLURM answers."""
        silence = self.queue.silence
        if self.pending is None or not silence:
            return self.wait
        where, since = self.pending
        if self.wait is None:
            unknown = f"{silence}: nothing is known of the job yet"
            request = "" if where.jobid else "job request"
            return QueueStatus(unknown, since, where.queue_seconds, request=request)
        if slurm_cli.SILENT in self.wait.text:
            return self.wait
        return replace(self.wait, text=f"{silence}: {self.wait.text} before that")

    async def start(self, place: LaunchConfig) -> KernelClient:
        """Submit a job, or go on with the one that waits; return its kernel when it is ready. Raise KernelError."""
        assert place.backend is not None and isinstance(
            place.backend.settings, SlurmSettings
        )
        where = place.backend.settings
        self.pending = where, time.monotonic()
        told = self._recorded()
        if told and not await self._waits(told, place.backend):
            await self.cancel_request()
            told = {}
        self.queue = slurm_cli.Queue(place.environ)
        try:
            try:
                return await self._ready(
                    told or await self._submit(place, place.backend, where), where
                )
            except KernelStartError as error:
                if IN_USE not in error.message:
                    raise
                await self.cancel_request()
                return await self._ready(
                    await self._submit(place, place.backend, where), where
                )
        except asyncio.CancelledError:
            # the daemon ends: the next one goes on with what is on record
            raise
        except BaseException:
            # else the next start tries again, and is told
            with contextlib.suppress(KernelError):
                await self.cancel_request()
            raise
        finally:
            self.wait = self.pending = None

    async def _waits(self, told: Mapping[str, Any], at: BackendConfig) -> bool:
        """Whether what is on record is such a job, and still to become a kernel."""
        if (
            told.get("definition") != at.definition
            or not told.get("job")
            or told.get("ending")
            or told["step"]
        ):
            return False
        seen = await self.queue.look(told["job"], told["job_name"])
        return seen is None or seen.waits or seen.lives

    async def cancel_request(self) -> None:
        """End the job on record, whether it waits or runs; raise KernelError where nobody can know that it ended."""
        told = self._recorded()
        if told:
            name, step = told["job_name"], told["step"]
            if not await self.queue.cancel(name, step):
                self.queue.cancel_later(name, step)
                what = f"the step {name} of job {step}" if step else f"the job {name}"
                raise KernelError(
                    f"{self.queue.no_answer}: {what} may go on until it does;"
                    " stepper ends it then",
                    f"scancel {step or f'--me --name={name}'}",
                )
            if not told.get("job"):
                # sbatch got no answer: the controller may take the job up later
                self.queue.cancel_later(name)
            self._forget(told)

    def _recorded(self) -> dict[str, Any]:
        """Return the record of a job, {} where there is none: its files are where they were put, whatever it says."""
        try:
            told = json.loads(private_files.read(self.record))
            if told.get("kind") != "slurm" or not kernel_records.is_sealed(
                self.record, told
            ):
                return {}
            where = kernel_config.parse_backends({told["name"]: told["definition"]})[
                told["name"]
            ].settings
            assert isinstance(where, SlurmSettings)  # its definition names that kind
            kernel = told["kernel"] = uuid.UUID(told["kernel"]).hex
            # no other job is ended by it
            if not re.fullmatch(rf"stepper-[0-9a-f]{{8}}-{kernel}", told["job_name"]):
                return {}
            # the daemon's own knows no `module load`
            self.queue = slurm_cli.Queue(told["environ"])
            return {**told, "file": self._file(where, kernel), "step": where.jobid}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _file(self, where: SlurmSettings, kernel: str) -> str:
        """Return where a kernel's connection file is written: no record, those are what ends with .json."""
        return os.path.join(
            batch_job.folder(where, self.record), f"{kernel}.connection"
        )

    async def _submit(
        self, place: LaunchConfig, at: BackendConfig, where: SlurmSettings
    ) -> dict[str, Any]:
        kernel, python = uuid.uuid4().hex, where.python or place.python
        if not python:
            why = f"`kernels.{at.name}` names no `python`, and there is no interpreter of the project's"
            raise KernelError(why, "add `python:` to it in .stepper/config.yaml")
        if where.jobid:
            await self._held(where)
        name, file = (
            slurm_cli.prefix(self.runtime) + kernel,
            Path(self._file(where, kernel)),
        )
        told: dict[str, Any] = {
            "kind": "slurm",
            "name": at.name,
            "definition": dict(at.definition),
            "kernel": kernel,
            "job_name": name,
            "python": python,
            "file": str(file),
            "step": where.jobid,
            "job": where.jobid,
            "environ": self.queue.environ,
        }
        script = batch_job.script(where, python, file, place.cwd)
        batch_job.prepare(file, script)
        kernel_records.write(
            self.record, told
        )  # what was submitted is found by its name
        try:
            await self._hand_in(told, where, script, place)
        except slurm_cli.RefusedError:
            self._forget(told)
            raise
        return told

    async def _hand_in(
        self,
        told: dict[str, Any],
        where: SlurmSettings,
        script: str,
        place: LaunchConfig,
    ) -> None:
        name, file = told["job_name"], Path(told["file"])
        if where.jobid:
            await self.queue.told(
                *batch_job.step(where, name, file),
                environ=batch_job.outside(place.environ),
            )
        else:
            longest = None if where.time else await self.queue.longest(where.partition)
            flags = batch_job.flags(where, name, file, longest)
            told["job"] = await self.queue.submit(flags, script, place.environ)
            kernel_records.write(self.record, told)

    def _forget(self, told: Mapping[str, Any]) -> None:
        private_files.remove(self.record)
        batch_job.remove(Path(told["file"]))

    async def _held(self, where: SlurmSettings) -> None:
        """Return once the job that the person holds runs; raise KernelError where it is over."""
        since = time.monotonic()
        while (seen := await self.queue.look(where.jobid)) is None or seen.waits:
            if seen is None:
                raise KernelError(
                    f"{self.queue.no_answer}: nothing is known of job {where.jobid}",
                    "sinfo",
                )
            await self._tell(seen, where, since)
            await asyncio.sleep(_pause(since, LOOK_SECONDS, LOOK_MOST))
        if not seen.lives:
            raise KernelError(
                f"job {where.jobid} can hold no kernel: it is {seen.state}",
                "squeue --me",
            )

    async def _tell(
        self, seen: slurm_cli.Job, where: SlurmSettings, since: float, request: str = ""
    ) -> None:
        text = (
            seen.standing(await self.queue.ahead(seen), datetime.now())
            if seen.waits
            else ""
        )
        wait = QueueStatus(text, since, where.queue_seconds, request=request)
        self.wait = wait if text else None

    async def _ready(self, told: dict[str, Any], where: SlurmSettings) -> KernelClient:
        file = Path(told["file"])
        seen = await self._begun(told, where, file)
        self.wait = self.pending = None
        told["connection"] = connection = json.loads(private_files.read(str(file)))
        told["node"] = connection.pop("node")
        if where.via:
            told["ports"] = [connection[f"{channel}_port"] for channel in CHANNELS]
        kernel_records.write(self.record, told)
        process = self._process(told, where, seen if seen and seen.lives else None)
        kernel = KernelClient(process, self.parts, self.runtime)
        try:
            if process.link is not None:
                await process.link.open(told["ports"])
            await kernel.connect(START_SECONDS)
        except asyncio.CancelledError:
            kernel.detach()
            raise
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    async def _begun(
        self, told: Mapping[str, Any], where: SlurmSettings, file: Path
    ) -> slurm_cli.Job | None:
        """Wait until the connection file is there; return the job as it was seen last. Raise KernelError."""
        number, since, began, look_at = int(told["job"]), time.monotonic(), 0.0, 0.0
        seen: slurm_cli.Job | None = None
        request = "job step" if told["step"] else "job request"
        while not batch_job.there(file):
            if (now := time.monotonic()) > look_at:
                asked, silent = None, ""
                try:
                    if asked := await self.queue.look(
                        number, "" if told["step"] else told["job_name"]
                    ):
                        await self._tell(asked, where, since, request)
                except (
                    slurm_cli.RefusedError
                ) as error:  # no reason to end a job that waits
                    silent = error.message
                look_at = now + _pause(since, LOOK_SECONDS, LOOK_MOST)
                seen = asked or seen
                if asked is not None:
                    if asked.lives:
                        began = began or now
                        self.pending = None
                elif not began:  # it may wait for hours, for which nobody is to be held
                    was = (
                        f"job {number} was {seen.state}"
                        if seen
                        else f"job {number} may wait"
                    )
                    silent = silent or self.queue.no_answer
                    self.wait = QueueStatus(
                        f"{silent}: {was}", since, where.queue_seconds, request=request
                    )
                if batch_job.there(file):
                    break
                over = seen is not None and not (seen.waits or seen.lives)
                if over or batch_job.there(file.with_suffix(".out.ended")):
                    raise _failed(told, seen, file)
            if began and now > began + START_SECONDS:
                node = seen.node if seen else ""
                why = f"job {number} runs on {node} for {START_SECONDS:.0f} s, and wrote no connection file"
                raise KernelStartError(
                    f"{why}: either {_unshared(file, node)}, or its start takes so long"
                )
            await asyncio.sleep(_pause(since, FILE_SECONDS, FILE_MOST))
        return seen

    def _process(
        self, told: Mapping[str, Any], where: SlurmSettings, seen: slurm_cli.Job | None
    ) -> SlurmProcess:
        """Return the kernel on record; by way of ssh its ports are sockets here."""
        if not where.via:
            return SlurmProcess(told, self.record, self.queue, seen, None)
        node, sockets = (
            str(told["node"]),
            os.path.join(self.runtime, f"k{told['kernel'][:8]}"),
        )
        if not kernel_config.HOST.fullmatch(node):
            raise ValueError(f"{node!r:.100} is no host")
        ports = {
            f"{channel}_port": number for number, channel in enumerate(CHANNELS, 1)
        }
        connection = {**told["connection"], **ports, "transport": "ipc", "ip": sockets}
        link = SshConnection(SshSettings(node), f"{sockets}.ssh", sockets)
        return SlurmProcess(
            {**told, "connection": connection}, self.record, self.queue, seen, link
        )

    async def attach(self) -> KernelClient | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        told = self._recorded()
        if not told:
            return None
        try:
            if not told.get("job") or told.get("ending"):
                # whoever starts the next one tries again, and is told
                with contextlib.suppress(KernelError):
                    await self.cancel_request()
                return None
            if "connection" not in told:  # it waits: nothing has run in it
                return None
            where = kernel_config.parse_backends({told["name"]: told["definition"]})[
                told["name"]
            ].settings
            assert isinstance(where, SlurmSettings)  # its definition names that kind
            process = self._process(told, where, None)
            if process.link is not None:
                await process.link.resume([int(port) for port in told["ports"]])
        except (ValueError, KeyError, TypeError) as error:
            return Death(f"the record {self.record} can't be read: {error}")
        kernel = KernelClient(process, self.parts, self.runtime)
        death = await process.death(slurm_cli.SLOW_SECONDS)
        if death is not None:
            await kernel.shutdown()
        return death or kernel


async def reconcile(
    runtime: str, records: Callable[[], Iterable[Path]], environ: Mapping[str, str]
) -> None:
    """End this project's jobs of which no record tells; raise KernelError, OSError where a record can't be read."""
    asked = slurm_cli.Queue(environ)
    jobs = await asked.mine(slurm_cli.prefix(runtime))
    known = b""
    for path in records() if jobs else ():
        with contextlib.suppress(FileNotFoundError):
            known += private_files.read(str(path))
    for name in jobs:
        if name.encode() not in known:
            await asked.cancel(name)


async def look(where: SlurmSettings, environ: Mapping[str, str]) -> list[str]:
    """Return what SLURM offers: its partitions, or the job that the person holds; raise KernelError."""
    asked = slurm_cli.Queue(environ)
    try:
        return await asyncio.wait_for(_look(asked, where), ANSWER_SECONDS)
    except asyncio.TimeoutError:
        raise KernelError(asked.no_answer, "sinfo") from None


async def _look(asked: slurm_cli.Queue, where: SlurmSettings) -> list[str]:
    if not where.jobid:
        offers = await asked.partitions()
        await asked.test(
            batch_job.flags(
                where,
                "stepper-test",
                Path("/dev/null"),
                await asked.longest(where.partition),
            )
        )
        return offers
    seen = await asked.look(where.jobid)
    if seen is None:
        raise KernelError(asked.no_answer, "squeue --me")
    if seen.state == slurm_cli.GONE:
        raise KernelError(f"SLURM knows no job {where.jobid}", "squeue --me")
    if not (seen.lives or seen.waits):
        raise KernelError(f"job {where.jobid} is {seen.state}", "squeue --me")
    return [
        f"job {seen.id} ({seen.name}): {seen.state}, {seen.node or seen.reason}, {seen.time} left"
    ]


def doubt(where: SlurmSettings) -> str:
    """Return that the interpreter is not on this machine, '' if it is or has no path."""
    python = where.python
    if not os.path.isabs(python) or os.access(python, os.X_OK):
        return ""
    return f"{python} is not on this machine; the compute nodes may have it"


def unchecked(where: SlurmSettings) -> list[str]:
    """Return what a look does not check: what only a compute node knows."""
    parts = [f"python {where.python}" if where.python else "the project's interpreter"]
    parts += ["`setup`"] if where.setup else []
    return [f"{' and '.join(parts)} on the compute node"]


def _pause(since: float, least: float, most: float) -> float:
    """Return for how long to wait for what was waited for since then: a tenth more each time."""
    return min(most, max(least, (time.monotonic() - since) / 10))


def _failed(
    told: Mapping[str, Any], seen: slurm_cli.Job | None, file: Path
) -> KernelError:
    said, number = batch_job.words(file, TAIL).strip(), told["job"]
    state = seen.state if seen is not None and not seen.lives else slurm_cli.STEP_ENDED
    if mend := lacks(told["python"], said):
        return IpykernelMissingError(
            f"{told['python']} lacks ipykernel, in job {number}: {said}", mend
        )
    what = f"the step in job {number}" if told["step"] else f"job {number}"
    if not said and state in ("FAILED", slurm_cli.STEP_ENDED):
        said = (
            f"it wrote nothing, as where {_unshared(file, seen.node if seen else '')}"
        )
    return KernelStartError(
        f"{what} ended before the kernel began ({state}){': ' * bool(said)}{said}"
    )


def _unshared(file: Path, node: str) -> str:
    return f"{file.parent.parent} is not on a file system that {node or 'the node'} shares (`folder:` names one)"
