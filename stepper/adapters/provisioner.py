"""A kernel provisioner whose kernel outlives its manager: it can watch and signal a process it did not start.

jupyter_client's LocalProvisioner holds a Popen; after `load_provisioner_info` that is None and every question is
answered with "no kernel is running". Here a re-attached kernel's `process` is a psutil-backed stand-in.
"""

from __future__ import annotations

from typing import Any

import psutil
from jupyter_client.provisioning import LocalProvisioner

GONE = 1 << 16  # the exit code of a process that is not our child: no one can know it


def create_time(pid: int) -> float:
    """Return when the process began, or 0.0 where there is none (any more)."""
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:
        return 0.0


class Attached:
    """The part of Popen that LocalProvisioner uses, for a process that is not our child.

    The time of creation is checked each time: a reused pid is another process and is never signalled.
    """

    stdin = stdout = stderr = None

    def __init__(self, pid: int, created: float) -> None:
        self.pid, self.created = pid, created

    def alive(self) -> bool:
        """Whether that very process still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def poll(self) -> int | None:
        """Return None while it runs, else GONE."""
        return None if self.alive() else GONE

    def wait(self) -> int:
        """Return at once: LocalProvisioner waits by polling."""
        return GONE

    def send_signal(self, number: int) -> None:
        """Signal that very process; do nothing where it is gone."""
        if self.alive():
            psutil.Process(self.pid).send_signal(number)

    def kill(self) -> None:
        """Kill that very process."""
        self.send_signal(9)

    def terminate(self) -> None:
        """Ask that very process to end."""
        self.send_signal(15)


class SurvivingProvisioner(LocalProvisioner):
    """LocalProvisioner, able to take over a kernel that another process started."""

    async def get_provisioner_info(self) -> dict[str, Any]:
        """Return what another process needs to take this kernel over."""
        info = await super().get_provisioner_info()
        return {**info, "created": create_time(self.pid or 0)}

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Take over the kernel that `get_provisioner_info` told of."""
        await super().load_provisioner_info(provisioner_info)
        # the stand-in has what LocalProvisioner uses of a Popen
        self.process = Attached(provisioner_info["pid"], provisioner_info["created"])  # type: ignore[assignment]

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel's group, but never a group whose pid another process has taken."""
        if self.process is not None and self.process.poll() is None:
            await super().send_signal(signum)
