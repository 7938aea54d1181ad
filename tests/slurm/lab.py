"""A real SLURM cluster on loopback that tests can query, break and stop.

The fixture `cluster` starts one per pytest process and sets SLURM_CONF, so that
SLURM's commands find it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import apt_packages
from tests.npm_packages import Unavailable, unavailable

UP = Path(__file__).with_name("slurm-up.sh")
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
}
DAEMONS = ("slurmctld", "slurmd", "slurmstepd", "munged")


class Lab:
    """A cluster with nodes n1, n2, … All its files are in `folder`."""

    def __init__(self, nodes: int = 2, **settings: str) -> None:
        """Start the cluster.

        The settings are those of `slurm-up.sh` (CGROUP="1"; CPUS and MEM in MiB per
        node).
        """
        self.folder = Path(tempfile.mkdtemp(prefix="slurm"))
        self.conf = str(self.folder / "slurm.conf")
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.environ = {**os.environ, "SLURM_CONF": self.conf}
        data = {"SLURM_LAB": str(self.folder), "SLURM_LAB_PORT": str(_ports(nodes + 1))}
        data |= {f"SLURM_LAB_{name}": value for name, value in settings.items()}
        result = subprocess.run(
            [UP, str(nodes)],
            env={**self.environ, **data},
            timeout=300,
            stdin=subprocess.DEVNULL,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        if result.returncode:
            self.stop()
            raise RuntimeError(f"SLURM did not start: {result.stdout[-3000:]}")

    def ask(self, *command: str, check: bool = True) -> str:
        """Run a SLURM command; return its output."""
        result = subprocess.run(
            ["timeout", "60", *command],
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert not check or result.returncode == 0, f"{command}: {result.stderr}"
        return result.stdout

    def jobs(self, *flags: str) -> dict[int, str]:
        """Return the states of pending and running jobs, or of all jobs (`-t all`)."""
        rows = (
            line.split()
            for line in self.ask("squeue", "-h", "-o", "%i %T", *flags).splitlines()
        )
        return {int(job): state for job, state in rows}

    def empty(self, seconds: float = 120) -> bool:
        """Wait until no job is pending or running; return whether that was reached."""
        deadline = time.monotonic() + seconds
        while (jobs := self.jobs()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return not jobs

    def node_of(self, job: int) -> str:
        """Return the node of a running job."""
        return self.ask("squeue", "-h", "-j", str(job), "-o", "%N").strip()

    def fail(self, node: str) -> None:
        """Kill a node's slurmd.

        After 20 s SLURM marks the node as down and its jobs as NODE_FAIL, but the jobs'
        processes continue.
        """
        os.kill(self._pid(f"slurmd-{node}"), signal.SIGKILL)

    def repair(self, node: str) -> None:
        """Restart a node's slurmd; wait until the node is available."""
        subprocess.run(
            ["/usr/sbin/slurmd", "-N", node, "-f", self.conf],
            env=self.environ,
            check=True,
            timeout=120,
        )
        deadline = time.monotonic() + 120
        while (
            self.ask("sinfo", "-h", "-n", node, "-o", "%t").strip()
            not in ("idle", "mix")
            and time.monotonic() < deadline
        ):
            time.sleep(0.2)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend the controller, so that it does not respond."""
        pid = self._pid("slurmctld")
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def _pid(self, daemon: str) -> int:
        return int((self.folder / "run" / f"{daemon}.pid").read_text())

    def stop(self) -> None:
        """Kill all jobs and daemons; remove the folder."""
        for _ in range(3):  # a daemon may be about to start a step
            results = [
                process
                for process in psutil.process_iter()
                if self._is_its_own(process)
            ]
            for result in results:
                with contextlib.suppress(psutil.NoSuchProcess):
                    result.kill()
            psutil.wait_procs(results, 5)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _is_its_own(self, process: psutil.Process) -> bool:
        try:
            environ = process.environ()
            its_own = environ.get("SLURM_CONF") == self.conf
            return its_own and (process.name() in DAEMONS or "SLURM_JOB_ID" in environ)
        except psutil.Error:
            return False


def _ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        with (
            contextlib.ExitStack() as stack,
            contextlib.suppress(OSError, OverflowError),
        ):
            first = 0
            for number in range(count):
                tried = stack.enter_context(socket.socket())
                tried.bind(("127.0.0.1", first and first + number))
                first = first or tried.getsockname()[1]
            return int(first)


def start_cluster(**options: Any) -> Lab:
    """Return a new cluster; raise Unavailable if it cannot be started."""
    if os.geteuid() != 0:
        raise Unavailable("only root starts SLURM")
    for program, package in PACKAGES.items():
        apt_packages.find_or_unpack_program(program, package)
    return Lab(**options)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Lab]:
    """The shared cluster: two nodes with 4 processors and 2 GiB each."""
    try:
        lab = start_cluster()
    except Unavailable as reason:
        unavailable(reason)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", lab.conf)
        yield lab
    lab.stop()
