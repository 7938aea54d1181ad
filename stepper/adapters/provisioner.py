"""A kernel provisioner whose kernel outlives its manager: it can watch and signal a process it did not start.

jupyter_client's LocalProvisioner holds a Popen; after `load_provisioner_info` that is None and every question is
answered with "no kernel is running". Here a re-attached kernel's `process` is a stand-in.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import asdict
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning import LocalProvisioner

from stepper.adapters import memory
from stepper.adapters.process import Identity

GONE = 1 << 16  # the exit code of a process that is not our child: no one can know it


class Attached:
    """The part of Popen that LocalProvisioner uses, for a process that is not our child."""

    stdin = stdout = stderr = None

    def __init__(self, identity: Identity) -> None:
        self.identity, self.pid = identity, identity.pid

    def poll(self) -> int | None:
        """Return None while it runs, else GONE."""
        return None if self.identity.alive() else GONE

    def wait(self) -> int:
        """Return at once: LocalProvisioner waits by polling."""
        return GONE

    def send_signal(self, number: int) -> None:
        """Signal that very process; do nothing where it is gone."""
        self.identity.send(number)


class SurvivingProvisioner(LocalProvisioner):
    """LocalProvisioner, able to take over a kernel that another process started."""

    identity: Identity

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start the kernel, the first to go where memory runs out."""
        connection = await super().launch_kernel(cmd, **kwargs)
        assert self.pid is not None
        memory.first_to_go(self.pid)
        self.identity = Identity.of(self.pid)
        return connection

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to take this kernel over."""
        return {**await super().get_provisioner_info(), **asdict(self.identity)}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take over the kernel that `get_provisioner_info` told of."""
        await super().load_provisioner_info(provisioner_info)
        self.identity = Identity.recorded(provisioner_info)
        # the stand-in has what LocalProvisioner uses of a Popen
        self.process = Attached(self.identity)  # type: ignore[assignment]

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel with its process group; never a pid or a group that others have taken."""
        if self.process is None or self.process.poll() is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            # The kernel leads a group of its own, which is there as long as the kernel is.
            if signum != signal.SIGKILL and os.getpgid(self.process.pid) == self.process.pid:
                os.killpg(self.process.pid, signum)
            else:
                self.process.send_signal(signum)
