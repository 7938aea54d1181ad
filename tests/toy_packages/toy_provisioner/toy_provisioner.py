"""Kernel provisioners of jupyter_client that know nothing of stepper."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode


class ForgetfulProvisioner(LocalProvisioner):
    """A local process, unknown to the provisioner that another process restores."""


class ToyProvisioner(LocalProvisioner):
    """A local process that a restored provisioner finds by its pid."""

    greeting = Unicode("", config=True)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        kwargs = await super().pre_launch(**kwargs)
        kwargs["env"]["TOY_GREETING"] = self.greeting
        await asyncio.sleep(float(kwargs["env"].get("TOY_SECONDS", "0")))
        return kwargs

    @property
    def has_process(self) -> bool:
        return self.pid is not None

    def _is_running(self) -> bool:
        try:
            return psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    async def poll(self) -> int | None:
        if self.process is not None:
            return self.process.poll()
        return None if self._is_running() else 0

    async def wait(self) -> int | None:
        while await self.poll() is None:
            await asyncio.sleep(0.05)
        self.pid = None
        return await super().wait()

    async def send_signal(self, signum: int) -> None:
        if self.pid is not None and self._is_running():
            os.killpg(self.pid, signum)

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)
