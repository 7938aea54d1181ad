"""The kernel provider `slurm`: a kernel is a job, submitted once, on record before anybody waits for it.

A job that still waits is no failure: whoever asks again, also another daemon, waits for the same one. Still to come:
that a cell which was held by it runs when the job starts, as one that was handed on (its call would await `start` in
place of a second edit); `jobid`, an `srun --overlap` that ends with the daemon; `via: ssh`, `ssh/link` to the node.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import time
import uuid
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import zmq

from stepper.ground import private
from stepper.ground.errors import KernelError, KernelStartFailedError
from stepper.kernel.live import LiveKernel
from stepper.kernel.slurm import queue
from stepper.kernel.slurm.kernel import SlurmProcess
from stepper.policy import kernels
from stepper.policy.kernels import Place, Slurm
from stepper.policy.model import Death
from stepper.session.ports import KernelPlace

START_SECONDS = 60.0  # from the job's start
LOOK_SECONDS, FILE_SECONDS = 1.0, 0.1  # between two looks at a job that is to start, at its connection file
TAIL = 2000  # characters of what a job wrote
DEFAULT_TIME = "8:00:00"  # no job is to outlive everybody that knows of it


# ipykernel's launcher, taken from the interpreter's own places and not from the folder in which cells run.
START = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); import runpy;"
    " runpy.run_module('ipykernel_launcher', run_name='__main__', alter_sys=True)"
)


class SlurmKernels:
    """One notebook's kernel, kept in `record` for the next daemon."""

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str] = {}) -> None:  # only read
        self.record, self.parts, self.queue = record, parts, queue.Queue(os.environ)

    async def start(self, place: KernelPlace) -> LiveKernel:
        """Submit a job, or go on with the one that waits; return its kernel when it is ready. Raise KernelError."""
        assert place.at is not None and isinstance(place.at.where, Slurm)
        self.queue = queue.Queue(place.environ)
        if place.at.where.jobid or place.at.where.via:
            which = "jobid" if place.at.where.jobid else "via"
            raise KernelError(f"this version of stepper does not do what `{which}:` in `kernels.{place.at.name}` says")
        told = self._recorded()
        if told and (told.get("definition") != place.at.definition or "job" not in told or told.get("ending")):
            await self.withdraw()
            told = {}
        told = told or await self._submit(place, place.at, place.at.where)
        try:
            return await self._ready(told, place.at.where)
        except _QueuedError:
            raise
        except BaseException:
            with contextlib.suppress(KernelError):  # else the next start tries again, and is told
                await self.withdraw()
            raise

    async def withdraw(self) -> None:
        """End the job on record, whether it waits or runs; raise KernelError where nobody can know that it ended."""
        told = self._recorded()
        if told:
            name = queue.name(told["kernel"])
            if not await self.queue.cancel(name):
                raise KernelError(f"SLURM does not answer: the job {name} may go on", f"scancel --me --name={name}")
            self._forget(told)

    def _recorded(self) -> dict[str, Any]:
        """Return the record of a job, {} where there is none: its files are where they were put, whatever it says."""
        try:
            told = json.loads(private.read(self.record))
            if told.get("kind") != "slurm":
                return {}
            place = kernels.read({told["name"]: told["definition"]})[told["name"]]
            assert isinstance(place.where, Slurm)  # its definition names that kind
            told["kernel"] = uuid.UUID(told["kernel"]).hex
            return {**told, "file": str(self._file(place.where, told["kernel"]))}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _file(self, where: Slurm, kernel: str) -> Path:
        """Return where a kernel's connection file is written: no record, those are what ends with .json."""
        shared = os.path.expanduser(where.folder) if where.folder else os.path.dirname(self.record)
        # In a folder that is made the user's alone, which the one that is named need not be.
        return Path(shared, "stepper-jobs", f"{kernel}.connection")

    async def _submit(self, place: KernelPlace, at: Place, where: Slurm) -> dict[str, Any]:
        name, python = uuid.uuid4().hex, where.python or place.python
        if not python:
            why = f"`kernels.{at.name}` names no `python`, and there is no interpreter of the project's"
            raise KernelError(why, "add `python:` to it in .stepper/config.yaml")
        file = self._file(where, name)
        public, secret = zmq.curve_keypair()
        keys = {"key": secrets.token_hex(32), "curve_publickey": public.decode(), "curve_secretkey": secret.decode()}
        node = files("stepper.kernel.slurm").joinpath("node.py").read_text("utf-8")
        told: dict[str, Any] = {
            "kind": "slurm", "name": at.name, "definition": dict(at.definition), "kernel": name, "python": python,
            "file": str(file),
        }  # fmt: skip
        try:
            private.made(str(file.parent))
            private.replace(f"{file}.key", json.dumps(keys).encode())
            private.replace(f"{file}.py", node.encode())
            for ending in (".out", ".stack"):  # whoever opens them later leaves them the user's alone
                os.close(private.opened(str(file.with_suffix(ending)), os.O_WRONLY | os.O_CREAT))
            private.replace(self.record, json.dumps(told).encode())  # what waits is found by the job's name
        except OSError as error:
            why = f"the kernel's files can't be written: {error.strerror}: {file.parent}"
            raise KernelError(why, "`folder:` names one on the shared file system") from error
        try:
            told["job"] = await self.queue.submit(
                _flags(where, name, file), _script(where, python, file, place), place.environ
            )
            private.replace(self.record, json.dumps(told).encode())
        except BaseException:
            with contextlib.suppress(KernelError):  # it may have been taken all the same
                await self.withdraw()
            raise
        return told

    async def _ready(self, told: dict[str, Any], where: Slurm) -> LiveKernel:
        file, job = Path(told["file"]), int(told["job"])
        until, began, looked = time.monotonic() + where.queue_seconds, 0.0, 0.0
        while not _there(file):
            if (now := time.monotonic()) > looked + LOOK_SECONDS:
                looked, seen = now, await self.queue.look(job, queue.name(told["kernel"]))
                if seen is not None and seen.waits and now > until:
                    raise _QueuedError(await self._queued(seen, where))
                if seen is not None and not seen.waits and not seen.lives:
                    said = file.with_suffix(".out").read_text("utf-8", "replace")[-TAIL:] or "it wrote nothing"
                    raise KernelStartFailedError(f"job {job} ended before the kernel began ({seen.state}): {said}")
                began = began or (now if seen is not None and seen.lives else 0.0)
            if began and now > began + START_SECONDS:
                raise KernelStartFailedError(f"the kernel of job {job} did not begin within {START_SECONDS:.0f} s")
            await asyncio.sleep(FILE_SECONDS)
        told["connection"] = json.loads(private.read(str(file)))
        private.replace(self.record, json.dumps(told).encode())
        kernel = LiveKernel(SlurmProcess(told, self.record, self.queue), self.parts)
        try:
            await kernel.connect(START_SECONDS)
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    async def _queued(self, job: queue.Job, where: Slurm) -> str:
        before = await self.queue.ahead(job.id, where.partition)
        parts = [f"queued: {job.state} ({job.reason})", f"{before} ahead"]
        parts += [f"partition {where.partition}"] if where.partition else []
        parts += [f"estimated start {job.starts[11:16]}"] if "T" in job.starts else []
        return ", ".join(parts) + f" (job {job.id}): the cell has NOT run; the job waits on, and the next run takes it"

    def _forget(self, told: Mapping[str, Any]) -> None:
        file = Path(told["file"])
        private.remove(self.record)
        for path in file.parent.glob(f"{file.stem}*"):
            path.unlink(missing_ok=True)

    async def attach(self) -> LiveKernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        told = self._recorded()
        if not told:
            return None
        try:
            if "job" not in told or told.get("ending"):
                with contextlib.suppress(KernelError):  # whoever starts the next one tries again, and is told
                    await self.withdraw()
                return None
            if "connection" not in told:  # it waits: nothing has run in it
                return None
            process = SlurmProcess(told, self.record, self.queue)
        except (ValueError, KeyError, TypeError) as error:
            return Death(f"the record {self.record} can't be read: {error}")
        kernel = LiveKernel(process, self.parts)
        death = await kernel.death()
        if death is not None:
            await kernel.shutdown()
        return death or kernel


class _QueuedError(KernelError):
    """The job waits: the cell has not run."""


def _there(file: Path) -> bool:
    """Whether the connection file is there: the folder is listed first, which NFS looks at anew."""
    with contextlib.suppress(OSError):
        return file.name in os.listdir(file.parent)
    return False


def _flags(where: Slurm, name: str, file: Path) -> list[str]:
    asked = {"partition": where.partition, "account": where.account, "mem": where.mem, "gres": where.gres,
             "cpus-per-task": where.cpus, "time": where.time or DEFAULT_TIME}  # fmt: skip
    return [
        f"--job-name={queue.name(name)}", f"--output={file.with_suffix('.out')}",
        "--no-requeue", "--ntasks=1", "--nodes=1",
        *(f"--{key}={value}" for key, value in asked.items() if value), *where.extra,
    ]  # fmt: skip


def _script(where: Slurm, python: str, file: Path, place: KernelPlace) -> str:
    kernel = [python, "-c", START, "--HistoryManager.hist_file=:memory:", "-f", str(file)]
    command = shlex.join([python, f"{file}.py", str(file), where.address, *kernel])
    return f"#!/bin/sh\n{where.setup}\ncd {shlex.quote(place.cwd)}\nexec {command}\n"
