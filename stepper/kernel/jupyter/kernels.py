"""The kernel provider `jupyter`: a server starts a kernel, or has one of the id that is named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from stepper.ground import private
from stepper.ground.errors import KernelError
from stepper.ground.text import one_line
from stepper.kernel.jupyter.kernel import JupyterProcess
from stepper.kernel.jupyter.server import GONE, Server
from stepper.kernel.live import LiveKernel
from stepper.policy import kernels
from stepper.policy.kernels import SPEC, Jupyter, Place
from stepper.policy.model import Death
from stepper.session.ports import KernelPlace, Queued

START_SECONDS = 120.0  # a gateway's cluster pulls images


class JupyterKernels:
    """One notebook's kernel, kept in `record` for the next daemon: its id, and no token."""

    queued: Queued | None = None  # it waits in no queue

    def __init__(self, record: str, runtime: str, parts: Mapping[str, str] = {}) -> None:  # only read
        self.record, self.parts = record, parts

    async def start(self, place: KernelPlace) -> LiveKernel:
        """Have a kernel started, or take the one that is named; return it when it is ready. Raise KernelError."""
        assert place.at is not None and isinstance(place.at.where, Jupyter)
        await self.withdraw()
        where, server = place.at.where, Server(place.at.where, place.environ)
        if where.kernel_id:
            answer = await server.request(f"/api/kernels/{where.kernel_id}")
            if answer.code in GONE:
                raise KernelError(f"{server.host} has no kernel {where.kernel_id}")
        else:
            asked: dict[str, Any] = {"name": where.kernel, **({"env": dict(where.env)} if where.env else {})}
            answer = await server.request("/api/kernels", "POST", asked)
        if answer.code >= 300 or not isinstance(answer.body, dict) or not SPEC.fullmatch(str(answer.body.get("id"))):
            raise KernelError(f"{server.host} starts no kernel {where.kernel!r} ({answer.code}): {answer.why}")
        told = {"kind": "jupyter", "name": place.at.name, "definition": dict(place.at.definition),
                "kernel": answer.body["id"]}  # fmt: skip
        try:
            private.replace(self.record, json.dumps(told).encode())
            kernel = LiveKernel(JupyterProcess(told, server, self.record), self.parts)
        except OSError as error:
            await JupyterProcess(told, server, self.record).kill()
            raise KernelError(f"the kernel's record can't be written: {error.strerror}") from error
        try:
            await kernel.connect(START_SECONDS)
        except BaseException:
            await kernel.shutdown()
            raise
        return kernel

    async def withdraw(self) -> None:
        """End the kernel on record, whose server could not be reached when it was to end; raise KernelError."""
        process = self._recorded()
        if process is not None:
            await process.kill()
            if process.left:
                raise KernelError(f"{process.server.host} does not end the kernel {process.id}")
            process.forget()

    def _recorded(self) -> JupyterProcess | None:
        try:
            told = json.loads(private.read(self.record))
            if told.get("kind") != "jupyter" or not SPEC.fullmatch(told["kernel"]):
                return None
            place = kernels.read({told["name"]: told["definition"]})[told["name"]]
            assert isinstance(place.where, Jupyter)  # its definition names that kind
            return JupyterProcess(told, Server(place.where, os.environ), self.record)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    async def attach(self) -> LiveKernel | Death | None:
        """Return the kernel that a former daemon left, or how it ended; None where there was none. Asks it nothing."""
        process = self._recorded()
        if process is None:
            return None
        kernel = LiveKernel(process, self.parts)
        death = await kernel.death()
        if death is not None:
            await kernel.shutdown()
        return death or kernel


async def look(place: Place, environ: Mapping[str, str]) -> list[str]:
    """Return the kernelspecs of a server; raise KernelError where it can't be reached."""
    assert isinstance(place.where, Jupyter)
    answer = await Server(place.where, environ).request("/api/kernelspecs")
    found = answer.body.get("kernelspecs") if isinstance(answer.body, dict) else None
    specs = [one_line(str(name), 100) for name in found] if isinstance(found, dict) else []
    return [f"kernelspecs: {', '.join(specs)}"] if specs else []
