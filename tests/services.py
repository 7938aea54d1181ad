"""Services shared by all workers of a test run: a SLURM cluster, Jupyter servers, an sshd.

The first test that needs a service starts a separate process that keeps the service
running until pytest exits. A service is a context manager: it starts the service with
all its files in one folder, and yields the connection data as JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import sshd
from tests.jupyterserver import TOKEN, VARIABLE, JupyterServer
from tests.npm_packages import Unavailable
from tests.slurm.lab import start_cluster

START_SECONDS = 170  # includes downloads


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[dict[str, Any]]:
    """Start SLURM: two nodes with 4 processors and 2 GiB each, partition `batch`."""
    lab = start_cluster()
    try:
        yield {"conf": lab.conf}
    finally:
        lab.stop()


@contextlib.contextmanager
def jupyter(folder: Path, kind: str = "server") -> Iterator[dict[str, Any]]:
    """Start a Jupyter Server."""
    server = JupyterServer(kind)
    try:
        yield {
            "definition": server.definition(),
            "environ": {VARIABLE: TOKEN},
            "url": server.url,
        }
    finally:
        server.close()


SERVICES: dict[str, Callable[[Path], AbstractContextManager[dict[str, Any]]]] = {
    "slurm": slurm,
    "jupyter": jupyter,
    "gateway": functools.partial(jupyter, kind="gateway"),
    "ssh": sshd.run_sshd,
}


def service(name: str) -> dict[str, Any]:
    """Return the connection data of a running service.

    If it is not available, skip the test, or fail it if CI=true.
    """
    facts = shared(name)
    assert "failed" not in facts, facts["failed"]
    if "unavailable" in facts:
        fail = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        fail(facts["unavailable"])
    return facts


@functools.cache
def shared(name: str) -> dict[str, Any]:
    """Return the connection data of a service.

    The first worker of the run that needs it starts the process.
    """
    owner = psutil.Process(
        os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    )
    folder = (
        Path(tempfile.gettempdir())
        / f"stepper-run-{owner.pid}-{owner.create_time():.0f}"
    )
    folder.mkdir(mode=0o700, exist_ok=True)
    path, log = folder / f"{name}.json", folder / f"{name}.log"
    with (folder / f"{name}.lock").open("w") as lock:
        # released when the file is closed or the process dies
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            with log.open("w") as log_file:
                keeper = subprocess.Popen(
                    [
                        sys.executable,
                        "-m",
                        "tests.services",
                        name,
                        str(folder),
                        str(owner.pid),
                        str(owner.create_time()),
                    ],
                    cwd=Path(__file__).parent.parent,
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    start_new_session=True,
                )
            deadline = time.monotonic() + START_SECONDS
            while (
                not path.exists()
                and keeper.poll() is None
                and time.monotonic() < deadline
            ):
                time.sleep(0.05)
            keeper.returncode = 0  # it continues after this worker exits
            assert path.exists(), f"{name} did not start:\n{log.read_text()[-4000:]}"
    return json.loads(path.read_text())


def keep(name: str, folder: Path, owner: int, since: float) -> None:
    """Run a service until the pytest process that requested it exits."""
    service_folder = folder / name
    service_folder.mkdir(mode=0o755)
    try:
        with SERVICES[name](service_folder) as facts:
            write_facts(folder / f"{name}.json", facts)
            wait(owner, since)
    except Unavailable as reason:
        write_facts(folder / f"{name}.json", {"unavailable": str(reason)})
        wait(owner, since)
    except Exception:  # noqa: BLE001 - reported by the tests that wait for the service
        write_facts(folder / f"{name}.json", {"failed": traceback.format_exc()})
        wait(owner, since)
    shutil.rmtree(service_folder, ignore_errors=True)
    for ending in ("json", "log", "lock"):
        (folder / f"{name}.{ending}").unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()  # succeeds for the last service


def write_facts(path: Path, facts: dict[str, Any]) -> None:
    path.with_suffix(".new").write_text(json.dumps(facts))
    path.with_suffix(".new").rename(path)


def wait(owner: int, since: float) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(owner)
        while (
            process.create_time() == since and process.status() != psutil.STATUS_ZOMBIE
        ):
            time.sleep(0.3)
            process = psutil.Process(owner)


if __name__ == "__main__":
    keep(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
