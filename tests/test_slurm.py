"""Kernels as jobs of a real SLURM with two emulated nodes on loopback (`tests/slurm/`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepper.common.errors import KernelError
from stepper.kernels import backend_registry, sealed_kernel_records, zmq_channels
from stepper.kernels.backend_registry import check_backend, remove_orphans
from stepper.kernels.backends.slurm import node_launcher, slurm_cli, slurm_job
from stepper.kernels.backends.slurm import slurm_launcher as provider
from stepper.kernels.backends.slurm import slurm_process as jobs
from stepper.kernels.backends.slurm.slurm_backend import SlurmBackend
from stepper.kernels.notebook_launcher import NotebookLauncher
from stepper.policy import run_time_measurement
from stepper.policy.configuration import kernel_config
from stepper.policy.execution_result import Execution
from stepper.policy.model import Death, Limits, Outcome
from stepper.session.protocols import LaunchConfig
from tests import apt_packages, sshd
from tests.conftest import Notebook, Project, scratch
from tests.slurm.lab import Lab, start_cluster
from tests.test_run_on_edit import (
    make_waiting_cell,
    release_cell,
    wait_for_output,
    wait_until,
)

LIMITS = Limits(max_memory_percent=100)


def make_backend(**options: Any) -> kernel_config.BackendConfig:
    arguments = {
        "partition": "batch",
        "time": "10",
        "mem": "400M",
        "python": sys.executable,
        **options,
    }
    return backend_registry.parse_backends(
        {"gpu": {"slurm": {name: value for name, value in arguments.items() if value}}}
    )["gpu"]


def text(result: Execution) -> str:
    return "".join(
        out["text"] for out in result.outputs if out["output_type"] == "stream"
    )


def jobs_of(lab: Lab, runtime: str) -> dict[int, str]:
    """Return the state of each pending or running job of a project."""
    rows = (
        line.split() for line in lab.ask("squeue", "-h", "-o", "%i %T %j").splitlines()
    )
    return {
        int(job): state
        for job, state, name in rows
        if name.startswith(slurm_cli.build_name_prefix(runtime))
    }


class JobHarness:
    """A notebook's kernel on a cluster, and an event loop in place of the daemon."""

    def __init__(self, lab: Lab, at: kernel_config.BackendConfig | None = None) -> None:
        self.lab, self.folder = lab, Path(tempfile.mkdtemp(prefix="job"))
        self.record, self.environ = self.folder / "kernel.json", {**os.environ}
        self.loop = asyncio.new_event_loop()
        self.kernel: Any = None
        if at is not None:
            self.begin(at)

    def provider(self) -> NotebookLauncher:
        return NotebookLauncher(str(self.record), str(self.folder), {})

    def start(
        self, at: kernel_config.BackendConfig, provider: NotebookLauncher | None = None
    ) -> Any:
        return (provider or self.provider()).start(
            LaunchConfig("", str(self.folder), self.environ, backend=at)
        )

    def begin(self, at: kernel_config.BackendConfig) -> None:
        self.kernel = self.wait(self.start(at))

    def get_start_error(self, at: kernel_config.BackendConfig) -> str:
        with pytest.raises(KernelError) as failed:
            self.begin(at)
        assert not self.record.exists() and not [
            *(self.folder / "stepper-jobs").glob("*")
        ]
        return str(failed.value)

    def wait(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def run(self, code: str, timeout: float = 120) -> Execution:
        return self.wait(self.kernel.execute(code, timeout, LIMITS))

    def wait_until(self, results: Any, seconds: float = 120) -> Any:
        """Poll until a result is true, while the loop runs."""

        async def poll() -> Any:
            end = time.monotonic() + seconds
            while not (result := results()) and time.monotonic() < end:
                await asyncio.sleep(0.05)
            return result

        return self.wait(poll())

    def wait_for_death(self, seconds: float) -> Death | None:
        """Check the kernel each second, like an idle daemon."""

        async def poll() -> Death | None:
            end = time.monotonic() + seconds
            while (
                response := await self.kernel.check_death()
            ) is None and time.monotonic() < end:
                await asyncio.sleep(1)
            return response

        return self.wait(poll())

    def reattach(self) -> Any:
        """Attach like the next daemon."""
        if self.kernel is not None:
            self.kernel.detach()
        kernel = self.wait(self.provider().attach())
        self.kernel = None if isinstance(kernel, Death) else kernel
        return kernel

    @property
    def jobs(self) -> dict[int, str]:
        return jobs_of(self.lab, str(self.folder))

    def close(self) -> None:
        if self.kernel is not None:
            self.wait(self.kernel.shutdown())
        with contextlib.suppress(KernelError):
            self.wait(self.provider().cancel_request())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def harness(cluster: Lab) -> Iterator[JobHarness]:
    """One kernel for all tests; a test that ends it starts the next one."""
    harness = JobHarness(cluster, make_backend())
    yield harness
    harness.close()


@pytest.fixture(autouse=True)
def short_heartbeat_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Detect a missing heartbeat sooner."""
    monkeypatch.setattr(zmq_channels, "HEARTBEAT_TIMEOUT_SECONDS", 1.5)
    monkeypatch.setattr(jobs, "SILENT_POLL_SECONDS", 0.3)


@pytest.fixture
def second_harness(cluster: Lab) -> Iterator[JobHarness]:
    """The harness of another notebook, without a kernel."""
    harness = JobHarness(cluster)
    yield harness
    harness.close()


def test_parse_squeue_output() -> None:
    def parse_left_seconds(text: str) -> float | None:
        return slurm_job.Job(1, "", "RUNNING", remaining_time=text).left_seconds

    assert [
        parse_left_seconds(squeue_time)
        for squeue_time in ("9:57", "1:00:00", "2-03:00:01", "0:05")
    ] == [
        597,
        3600,
        183601,
        5,
    ]
    assert [
        parse_left_seconds(squeue_time)
        for squeue_time in ("UNLIMITED", "INVALID", "", "NOT_SET")
    ] == [None] * 4
    rows = "7|a|b|RUNNING|None|n1|1:00|N/A|gpu\nslurm_load_jobs error|\n"
    (named_job,) = slurm_job.parse_jobs(rows)
    assert (named_job.name, named_job.node, named_job.partition) == ("a|b", "n1", "gpu")
    job, state = (
        slurm_job.Job(
            1,
            "",
            "PENDING",
            "Priority",
            expected_start="2026-03-01T14:05:33",
            partition="gpu",
        ),
        datetime(2026, 3, 1),
    )
    message = "PENDING (Priority), 3 jobs ahead, partition gpu"
    assert job.format_waiting(3, state) == f"{message}, estimated start 14:05"
    assert (
        job.format_waiting(3, datetime(2026, 2, 28))
        == f"{message}, estimated start 2026-03-01 14:05"
    )
    assert replace(job, expected_start="N/A").format_waiting(3, state) == message


@pytest.mark.parametrize("submit_host", [None, ""])
def test_node_without_submit_host_uses_its_own_name(
    monkeypatch: pytest.MonkeyPatch, submit_host: str | None
) -> None:
    monkeypatch.delenv("SLURM_SUBMIT_HOST", raising=False)
    if submit_host is not None:
        monkeypatch.setenv("SLURM_SUBMIT_HOST", submit_host)
    monkeypatch.setattr(node_launcher.socket, "gethostname", lambda: "node.invalid")
    routes = []

    class Route(socket.socket):
        def connect(self, address: Any) -> None:
            routes.append(address)
            super().connect(("127.0.0.1", address[1]))

    monkeypatch.setattr(node_launcher.socket, "socket", Route)
    assert node_launcher.find_address("auto") == "127.0.0.1"
    assert routes == [("node.invalid", 9)]


def test_kernel_is_a_job_and_its_messages_are_encrypted(harness: JobHarness) -> None:
    result = harness.run(
        "import os\nx = 20\nprint(os.environ['SLURM_JOB_ID'], os.getcwd())"
    )
    assert result.outcome is Outcome.OK and result.namespace.variables["x"]
    job = harness.kernel.process.job_id
    assert text(result) == f"{job} {harness.folder}\n" and harness.jobs == {
        job: "RUNNING"
    }
    assert harness.kernel.channels.client.curve_publickey
    outcome = harness.run(
        "import os, shutil\nprint(shutil.which('python'), os.environ.get('VIRTUAL_ENV'))"
    )
    assert text(outcome) == f"{sys.executable} {sys.prefix}\n"
    failed = harness.run("print('before')\n1 / 0")
    assert (
        failed.outcome is Outcome.ERROR
        and failed.fault is not None
        and failed.fault.line == 2
    )
    about = harness.kernel.describe()
    assert (
        about.python == sys.executable
        and about.location == f"job {job} on {harness.lab.node_of(job)}"
    )
    assert (
        0 < about.walltime_left <= 600
        and about.problem == ""
        and "not encrypted" not in about.limitation
    )
    time.sleep(0.1)
    assert harness.kernel.describe().walltime_left < about.walltime_left
    for path in (harness.folder / "stepper-jobs").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.nightly
def test_timeout_interrupts(harness: JobHarness) -> None:
    result = harness.run("import time\nprint('begun')\ntime.sleep(60)", timeout=0.5)
    assert (
        result.outcome is Outcome.TIMEOUT
        and result.death is None
        and text(result) == "begun\n"
    )


def test_new_daemon_finds_job_and_variables(harness: JobHarness) -> None:
    harness.run("kept = 7")
    job = harness.kernel.process.job_id
    harness.reattach()
    assert harness.kernel.process.job_id == job
    assert (
        harness.wait(harness.kernel.take_over()) is None
        and text(harness.run("print(kept)")) == "7\n"
    )


@pytest.mark.nightly
def test_unresponsive_controller_cancels_nothing(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.1)
    monkeypatch.setattr(slurm_cli, "SLOW_SECONDS", 0.5)
    silent = r"SLURM's controller does not answer \(no answer since [\d:]{8}\)"
    monkeypatch.setattr(slurm_cli, "RETRY_SECONDS", (0.5, 0.5))
    with harness.lab.frozen():
        result = harness.run(
            "import time\nfor n in range(10): time.sleep(0.1)\nprint('went on')"
        )
        assert result.outcome is Outcome.OK and text(result) == "went on\n"
        unknown = f"{silent}: the job's state is not known"
        assert re.fullmatch(unknown, harness.kernel.describe().problem)
        assert harness.wait(harness.kernel.check_death()) is None
        job = harness.kernel.process.job_id
        harness.reattach()  # the next daemon does not wait for SLURM
        assert (
            harness.wait(harness.kernel.take_over()) is None
            and text(harness.run("print('there')")) == "there\n"
        )
        monkeypatch.setattr(slurm_cli, "COMMAND_SECONDS", 1)
        harness.wait(harness.kernel.shutdown())
        with pytest.raises(
            KernelError,
            match=f"{silent}, so it is not known whether the job was submitted",
        ):
            harness.begin(make_backend())
        # a job that may have been submitted is found by its name
        late = json.loads(harness.record.read_text())["job_name"]
    monkeypatch.setattr(slurm_cli, "COMMAND_SECONDS", 15)
    assert harness.wait_until(lambda: job not in harness.jobs)  # the kernel exited
    assert harness.wait_until(
        lambda: (
            f"{late} CANCELLED"
            in harness.lab.ask("squeue", "-h", "-t", "all", "-o", "%j %T")
        )
    )
    assert (
        harness.wait_until(lambda: not slurm_cli.PENDING_CANCELS) and not harness.jobs
    )
    harness.begin(make_backend())
    harness.wait_for_death(0.5)
    assert (
        harness.kernel.describe().problem == ""
        and text(harness.run("print(1)")) == "1\n"
    )


@pytest.mark.nightly
def test_queue_is_not_polled_while_the_heartbeat_works(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests, run = list[str](), slurm_cli.Slurm.run

    async def counted(
        self: slurm_cli.Slurm, *command: str, **values: Any
    ) -> str | None:
        requests.append(command[0])
        return await run(self, *command, **values)

    monkeypatch.setattr(slurm_cli.Slurm, "run", counted)
    assert harness.run("import time; time.sleep(2)").outcome is Outcome.OK
    # one poll per `POLL_SECONDS`
    assert harness.wait_for_death(3) is None and len(requests) <= 1
    monkeypatch.setattr(jobs, "POLL_SECONDS", 0.5)
    assert harness.wait_for_death(3) is None and 2 <= requests.count("squeue") <= 7


@pytest.mark.nightly
def test_scancel_during_a_cell_and_while_idle(
    harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:

    async def cancelled() -> Execution:
        running = asyncio.create_task(
            harness.kernel.execute("import time; time.sleep(60)", 90, LIMITS)
        )
        await asyncio.sleep(0.5)
        harness.lab.ask("scancel", str(harness.kernel.process.job_id))
        return await asyncio.wait_for(running, 10)

    result = harness.wait(cancelled())
    assert result.outcome is Outcome.KERNEL_DIED and result.death.reason.endswith(
        "the job was cancelled (CANCELLED)"
    )
    assert not harness.record.exists()
    harness.begin(make_backend())
    monkeypatch.undo()  # a user's job
    harness.lab.ask("scancel", str(harness.kernel.process.job_id))
    death = harness.wait_for_death(10)
    assert death is not None and "(CANCELLED)" in death.reason
    harness.wait(harness.kernel.shutdown())
    harness.begin(make_backend())


@pytest.mark.nightly
def test_failed_job_and_out_of_memory_job(second_harness: JobHarness) -> None:
    second_harness.begin(make_backend(mem="300M"))
    result = second_harness.run(
        "import os, sys\nos.write(2, b'last words\\n')\nos._exit(3)"
    )
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "(FAILED)" in result.death.reason
        and "last words" in result.death.stderr
    )
    second_harness.begin(make_backend(mem="300M"))
    result = second_harness.run(
        "import time\nheld = b'x' * 700_000_000\ntime.sleep(20)"
    )
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "(OUT_OF_MEMORY)" in result.death.reason
    )
    assert result.death.cause == "OutOfMemory" and "memory limit" in result.death.stderr


@pytest.mark.nightly
def test_pending_job_is_adopted_by_the_next_daemon(second_harness: JobHarness) -> None:
    at, launcher = (
        make_backend(extra=["--begin=now+1hour"], queue_seconds=3),
        second_harness.provider(),
    )
    ahead = second_harness.lab.ask(
        "sbatch", "--parsable", "--begin=now+1hour", "--wrap=true"
    ).strip()
    begun = second_harness.loop.create_task(second_harness.start(at, launcher))
    queued = second_harness.wait_until(lambda: launcher.queue_status)
    assert queued.text.startswith(
        "PENDING (BeginTime), 1 job ahead, partition batch, estimated start "
    )
    assert queued.wait_seconds == 3
    ((job, state),) = second_harness.jobs.items()
    assert (
        state == "PENDING"
        and json.loads(second_harness.record.read_text())["job"] == job
    )
    begun.cancel()  # the daemon exits
    with pytest.raises(asyncio.CancelledError):
        second_harness.wait(begun)
    assert second_harness.reattach() is None and list(second_harness.jobs) == [job]
    second_harness.lab.ask("scontrol", "update", f"jobid={job}", "StartTime=now")
    second_harness.begin(at)
    assert second_harness.kernel.process.job_id == job and launcher.queue_status is None
    second_harness.lab.ask("scancel", ahead)


@pytest.mark.nightly
def test_cancelled_start_cancels_the_job(second_harness: JobHarness) -> None:
    launcher = second_harness.provider()
    begun = second_harness.loop.create_task(
        second_harness.start(make_backend(extra=["--hold"]), launcher)
    )
    second_harness.wait_until(lambda: launcher.queue_status)
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        second_harness.wait(begun)
    second_harness.wait(second_harness.provider().cancel_request())
    assert (
        second_harness.jobs == {}
        and not second_harness.record.exists()
        and [*(second_harness.folder / "stepper-jobs").iterdir()] == []
    )
    begun = second_harness.loop.create_task(
        second_harness.start(make_backend(extra=["--hold"]))
    )
    (job,) = second_harness.wait_until(lambda: second_harness.jobs)
    second_harness.lab.ask("scancel", str(job))
    with pytest.raises(
        KernelError, match=rf"job {job} ended before the kernel started \(CANCELLED\)$"
    ):
        second_harness.wait(begun)
    assert not second_harness.record.exists()


@pytest.mark.nightly
def test_empty_queue_response_cancels_no_job(second_harness: JobHarness) -> None:
    launcher, script = second_harness.provider(), second_harness.folder / "squeue"
    script.write_text(
        "#!/bin/sh\necho 'slurm_load_jobs error: Unexpected message received' >&2\nexit 1\n"
    )
    script.chmod(0o755)
    second_harness.environ["PATH"] = (
        f"{second_harness.folder}:{second_harness.environ['PATH']}"
    )
    begun = second_harness.loop.create_task(
        second_harness.start(make_backend(extra=["--hold"]), launcher)
    )
    response = (
        second_harness.wait_until(lambda: launcher.queue_status or begun.done())
        and launcher.queue_status
    )
    ((job, _),) = second_harness.jobs.items()
    assert (
        response
        and response.text
        == f"squeue: slurm_load_jobs error: Unexpected message received: job {job} may be waiting"
    )
    script.unlink()
    assert second_harness.wait_until(
        lambda: launcher.queue_status.text.startswith("PENDING (JobHeldUser)")
    )
    second_harness.lab.ask("scontrol", "release", str(job))
    second_harness.kernel = second_harness.wait(begun)
    assert second_harness.kernel.process.job_id == job


def test_array_task_is_handled_like_a_job(second_harness: JobHarness) -> None:
    flags = (
        "--parsable",
        "--array=1-2",
        "--mem=20M",
        "--wrap=sleep 60",
        "--output=/dev/null",
        "--time=5",
    )
    first = int(second_harness.lab.ask("sbatch", *flags))
    try:
        client = slurm_cli.Slurm(os.environ)
        wait_until(
            lambda: (
                second_harness.lab.ask(
                    "squeue", "-h", "-j", str(first), "-o", "%T"
                ).split()
                == ["RUNNING"] * 2
            )
        )
        states = [
            second_harness.wait(client.find_job(job)).state
            for job in (first, first + 1)
        ]
        assert states == ["RUNNING", "RUNNING"]
    finally:
        second_harness.lab.ask("scancel", str(first))


def test_orphan_jobs_are_found_by_name(
    second_harness: JobHarness, harness: JobHarness
) -> None:
    second_harness.begin(make_backend())
    data = json.loads(second_harness.record.read_text())
    # killed between sbatch's response and the record
    del (
        data["job"],
        data["connection"],
    )
    sealed_kernel_records.write(str(second_harness.record), data)
    assert (
        second_harness.reattach() is None
        and not second_harness.record.exists()
        and second_harness.wait_until(lambda: not second_harness.jobs)
    )
    second_harness.begin(make_backend())
    second_harness.record.unlink()  # a job with a deleted record
    names = [f"stepper-{'0' * 8}-{'1' * 32}", "somebody"]
    foreign = [
        int(
            second_harness.lab.ask(
                "sbatch", "--parsable", f"--job-name={name}", "--wrap=sleep 60"
            )
        )
        for name in names
    ]
    (second_harness.folder / "odd.json").symlink_to("/dev/null")
    with pytest.raises(OSError):  # maybe only the record is missing
        second_harness.wait(
            SlurmBackend().remove_orphans(
                [make_backend()],
                str(second_harness.folder),
                lambda: second_harness.folder.rglob("*.json"),
                os.environ,
            )
        )
    (second_harness.folder / "odd.json").unlink()
    assert list(second_harness.jobs.values()) == ["RUNNING"]
    second_harness.wait(
        remove_orphans(
            [make_backend()],
            str(second_harness.folder),
            lambda: second_harness.folder.rglob("*.json"),
            os.environ,
        )
    )
    assert second_harness.wait_until(lambda: not second_harness.jobs)
    assert {*foreign, harness.kernel.process.job_id} <= {*second_harness.lab.jobs()}
    second_harness.lab.ask("scancel", *map(str, foreign))
    second_harness.kernel.detach()
    second_harness.begin(make_backend())
    second_harness.lab.ask("scancel", str(second_harness.kernel.process.job_id))
    second_harness.wait_until(lambda: not second_harness.jobs)
    data = json.loads(second_harness.record.read_text())
    # as if SLURM had forgotten it
    sealed_kernel_records.write(str(second_harness.record), {**data, "job": 999_999})
    death = second_harness.reattach()  # a record of a job that no longer exists
    assert (
        isinstance(death, Death)
        and "(CANCELLED)" in death.reason
        and not second_harness.record.exists()
    )


@pytest.mark.nightly
def test_dead_job_that_cannot_be_cancelled_is_reported_as_dead(
    second_harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_harness.begin(make_backend())
    second_harness.lab.ask("scancel", str(second_harness.kernel.process.job_id))
    assert second_harness.wait_until(lambda: not second_harness.jobs)

    async def find_job(process: jobs.SlurmProcess) -> slurm_job.Job:
        # A job in this state counts as running, although its kernel is dead.
        return slurm_job.Job(process.job_id, process.name, "COMPLETING")

    async def stop(process: jobs.SlurmProcess) -> bool:
        return False  # SLURM does not answer

    with monkeypatch.context() as patch:
        patch.setattr(jobs.SlurmProcess, "_find_job", find_job)
        patch.setattr(jobs.SlurmProcess, "_counts_as_ended", lambda process, job: True)
        patch.setattr(jobs.SlurmProcess, "_stop", stop)
        assert isinstance(second_harness.reattach(), Death)
    assert json.loads(second_harness.record.read_text())["ending"]
    assert second_harness.reattach() is None  # cancels the job
    assert not second_harness.record.exists()


@pytest.mark.nightly
def test_invalid_job_requests_are_reported(
    second_harness: JobHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "invalid partition" in second_harness.get_start_error(
        make_backend(partition="nope")
    )
    assert (
        "Memory specification can not be satisfied"
        in second_harness.get_start_error(make_backend(mem="900G"))
    )
    error_text = second_harness.get_start_error(make_backend(python="/no_such_python"))
    assert (
        "ended before the kernel started (FAILED)" in error_text
        and "/no_such_python" in error_text
    )
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    error_text = second_harness.get_start_error(make_backend(python=str(bare)))
    assert (
        f"{bare} does not have ipykernel" in error_text
        and f"{bare} -m pip install ipykernel" in error_text
    )
    # the node has its own folder at this path, so the kernel's files are not visible
    apart = tmp_path / "apart"
    folder = f"{second_harness.folder}/stepper-jobs"
    mount_command = f"cp -rp {folder} {tmp_path}/own && mount -t tmpfs none {folder} && cp -p {tmp_path}/own/* {folder}"
    first = f'[ -e {tmp_path}/own ] || exec unshare -m sh -c \'{mount_command} && exec {sys.executable} "$@"\' sh "$@"'
    apart.write_text(f'#!/bin/sh\n{first}\nexec {sys.executable} "$@"\n')
    apart.chmod(0o755)
    with monkeypatch.context() as patch:
        patch.setattr(provider, "START_SECONDS", 3)
        error_text = second_harness.get_start_error(make_backend(python=str(apart)))
    assert (
        "without writing the connection file" in error_text
        and f"{second_harness.folder} is not on a file system that n" in error_text
    )
    assert "has no IPv4 address on this node" in second_harness.get_start_error(
        make_backend(address="nosuch0")
    )
    second_harness.environ["PATH"] = "/nowhere"
    assert (
        "the command `sbatch` was not found on this machine"
        in second_harness.get_start_error(make_backend())
    )
    with pytest.raises(KernelError, match="the command `sinfo` was not found"):
        second_harness.wait(check_backend(make_backend(), second_harness.environ, ""))
    assert second_harness.jobs == {}
    assert any(
        "partition batch" in line
        for line in second_harness.wait(
            check_backend(make_backend(), os.environ, "")
        ).offers
    )
    for wrong, message in (
        ({"partition": "nosuch"}, "invalid partition"),
        ({"mem": "900G"}, "sbatch: "),
    ):
        with pytest.raises(KernelError, match=message):
            second_harness.wait(check_backend(make_backend(**wrong), os.environ, ""))
    assert second_harness.jobs == {}
    distant = make_backend(python="/usr/bin/python3.99").settings
    assert provider.list_unchecked(distant) == [
        "python /usr/bin/python3.99 on the compute node"
    ]


@pytest.mark.nightly
def test_kernels_command_marks_only_checked_backends(
    cluster: Lab, fresh_project: Project
) -> None:
    usual = {"partition": "batch", "python": sys.executable}
    rows = {
        "fine": usual,
        "nowhere": {**usual, "partition": "nosuch"},
        "large": {**usual, "mem": "900G"},
        "old": {**usual, "python": "/usr/bin/python3.99"},
        "held": {"jobid": 4711, "python": sys.executable},
    }
    kernels = {name: {"slurm": options} for name, options in rows.items()}
    fresh_project.config(f"kernels: {json.dumps(kernels)}\n")
    fresh_project.stepper("trust", "--yes")
    kernels_by_name = {row["name"]: row for row in fresh_project.json("kernels")}
    marks = {name: kernels_by_name[name]["reachable"] for name in rows}
    fine, wrong, unknown = True, False, None
    assert marks == {
        "fine": fine,
        "nowhere": wrong,
        "large": wrong,
        "old": unknown,
        "held": wrong,
    }
    text = fresh_project.stepper("kernels").stdout
    assert re.search(r"(?m)^✓ fine .*\n(?: .+\n)* +not checked: python /", text)
    assert re.search(r"(?m)^✗ nowhere .*\n +sbatch: .*invalid partition", text)
    assert re.search(r"(?m)^✗ large .*\n +sbatch: .*not available", text)
    absent = "/usr/bin/python3.99 cannot be executed on this machine; it may exist on the compute nodes"
    assert re.search(rf"(?m)^· old .*\n +{absent}$", text)
    assert re.search(r"(?m)^✗ held .*\n +SLURM does not know job 4711$", text)
    assert jobs_of(cluster, fresh_project.paths.runtime) == {}
    with cluster.frozen():
        text = fresh_project.stepper("kernels").stdout
    silent = r"SLURM's controller does not answer \(no answer since [\d:]{8}\)"
    assert re.search(rf"(?m)^✗ fine .*\n +{silent}$", text), text


@pytest.mark.nightly
def test_port_in_use_and_named_interface(second_harness: JobHarness) -> None:
    marker = second_harness.folder / "once"
    python = second_harness.folder / "python"
    fail_once = f"[ -e {marker} ] || {{ touch {marker}; echo 'zmq: Address already in use' >&2; exit 1; }}"
    python.write_text(f'#!/bin/sh\n{fail_once}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    # the partition's limit is below stepper's own
    second_harness.begin(make_backend(python=str(python), address="lo", time=""))
    assert 0 < second_harness.kernel.describe().walltime_left <= 3600
    assert (
        json.loads(second_harness.record.read_text())["connection"]["ip"] == "127.0.0.1"
        and len(second_harness.jobs) == 1
    )


@pytest.mark.nightly
def test_step_in_an_existing_allocation(second_harness: JobHarness) -> None:
    job = int(
        second_harness.lab.ask(
            "sbatch",
            "--parsable",
            "--mem=500",
            "--time=5",
            "--hold",
            "--wrap=sleep 300",
        )
    )
    at = backend_registry.parse_backends(
        {"mine": {"slurm": {"jobid": job, "python": sys.executable}}}
    )["mine"]
    try:
        launcher = second_harness.provider()
        begun = second_harness.loop.create_task(second_harness.start(at, launcher))
        assert second_harness.wait_until(lambda: launcher.queue_status).text.startswith(
            "PENDING (JobHeldUser), "
        )
        second_harness.lab.ask("scontrol", "release", str(job))
        second_harness.kernel = second_harness.wait(begun)
        assert (
            text(
                second_harness.run(
                    "import os\nkept = 4\nprint(os.environ['SLURM_JOB_ID'])"
                )
            )
            == f"{job}\n"
        )
        about = second_harness.kernel.describe()
        assert (
            about.location.startswith(f"a step of job {job} on n")
            and 0 < about.walltime_left <= 300
        )
        assert (
            second_harness.wait(check_backend(at, os.environ, ""))
            .offers[0]
            .startswith(f"job {job} (wrap): RUNNING, n")
        )
        second_harness.reattach()
        assert (
            second_harness.wait(second_harness.kernel.take_over()) is None
            and text(second_harness.run("print(kept)")) == "4\n"
        )
        step = second_harness.wait(
            slurm_cli.Slurm(os.environ).list_steps(
                job, second_harness.kernel.process.name
            )
        )[0]
        second_harness.lab.ask("scancel", step)
        death = second_harness.wait_for_death(15)
        assert (
            death is not None
            and "the kernel's step ended, but the job is still running" in death.reason
        )
        second_harness.wait(second_harness.kernel.shutdown())
        second_harness.begin(at)
        second_harness.wait(second_harness.kernel.shutdown())
        second_harness.kernel = None
        assert (
            second_harness.lab.jobs()[job] == "RUNNING"
            and not second_harness.record.exists()
        )
        assert second_harness.wait_until(
            lambda: (
                "stepper-"
                not in second_harness.lab.ask(
                    "squeue", "-h", "-s", "-j", str(job), "-o", "%j"
                )
            )
        )
        assert not [
            process
            for process in psutil.process_iter(["cmdline"])
            if f"--jobid={job}" in (process.info["cmdline"] or ())
        ]
        second_harness.begin(at)
        second_harness.lab.ask("scancel", str(job))
        death = second_harness.wait_for_death(15)
        assert (
            death is not None
            and f"job {job}: the job was cancelled (CANCELLED)" in death.reason
        )
    finally:
        second_harness.lab.ask("scancel", str(job), check=False)
    missing_job = backend_registry.parse_backends(
        {"mine": {"slurm": {"jobid": 987654, "python": sys.executable}}}
    )["mine"]
    assert "cannot start a kernel in job 987654" in second_harness.get_start_error(
        missing_job
    )


def test_shutdown_leaves_no_job(harness: JobHarness) -> None:
    harness.wait(harness.kernel.shutdown())
    harness.kernel = None
    assert harness.wait_until(lambda: not harness.jobs) and harness.reattach() is None
    assert [*(harness.folder / "stepper-jobs").iterdir()] == []


def project_on(folder: Path, **backends: Any) -> Iterator[Project]:
    """Yield a project with these backends, accepted."""
    for project in scratch(folder):
        project.config(f"kernels: {json.dumps(backends)}\n")
        project.stepper("trust", "--yes")
        yield project


def test_notebook_on_the_cluster(cluster: Lab, tmp_path: Path) -> None:
    for project in project_on(tmp_path / "repo", gpu=make_backend().definition):
        assert [backend["reachable"] for backend in project.json("kernels")] == [
            True,
            True,
        ]
        response = project.json("new", "Look there", "--kernel", "gpu")
        notebook = Notebook(project, project.folder / response["notebook"])
        cell, report = notebook.insert("x = 3\nx")
        assert "ran ok" in report.text and "| 3" in report.text, report.text
        project.kill_daemon()
        assert "| 4" in notebook.insert("print(x + 1)")[1].text
        kernel = project.json("status")["kernel"]
        assert (
            kernel["where"].startswith("job ")
            and 0 < kernel["left_seconds"] <= 600
            and kernel["trouble"] == ""
        )
        source = make_waiting_cell(notebook).replace("('over')", "('over', x)")
        payload = notebook.edited("insert", source, cell)
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        wait_for_output(project)
        project.kill_daemon()
        release_cell(notebook)
        running.join()
        text = project.json("report")["text"]
        assert (
            "| begun" in text and "| over 3" in text and "the daemon exited" in text
        ), text
        # the backend was removed from the configuration; its kernel keeps running
        project.config("kernel_cwd: notebook\n")
        assert "| 5" in notebook.insert("print(x + 2)")[1].text
        assert (
            "this kernel keeps running until you run `stepper shutdown`"
            in project.json("status")["kernel"]["trouble"]
        )
        cluster.ask("scancel", kernel["where"].split()[1])
        report = notebook.insert("x")[1]
        assert (
            "(CANCELLED)" in report.stop and "all variables are lost" in report.stop
        ), report.data
        assert "`stepper restore` re-creates them" in report.stop
        text = project.json("report")["text"]
        assert "slurmstepd" in text and "To connect another client" not in text, text


@pytest.mark.nightly
def test_daemon_start_adopts_and_cleans_up_jobs(cluster: Lab, tmp_path: Path) -> None:
    job = int(cluster.ask("sbatch", "--parsable", "--mem=500", "--wrap=sleep 300"))
    attached = {"slurm": {"jobid": job, "python": sys.executable}}
    for project in project_on(
        tmp_path / "repo", gpu=make_backend().definition, mine=attached
    ):
        running_kernel, lost = (
            Notebook(
                project,
                project.folder
                / project.json("new", "Look", "--kernel", name)["notebook"],
            )
            for name in ("mine", "gpu")
        )
        assert (
            "| 2" in running_kernel.insert("y = 1\ny + 1")[1].text
            and "| 2" in lost.insert("1 + 1")[1].text
        )
        assert [*jobs_of(cluster, project.paths.runtime).values()] == ["RUNNING"]
        project.kill_daemon()
        for record in Path(project.paths.kernels).rglob("*.json"):
            if json.loads(record.read_text())["name"] == "gpu":
                record.unlink()
        assert "| 3" in running_kernel.insert("print(y + 2)")[1].text
        end = time.monotonic() + 15
        while jobs_of(cluster, project.paths.runtime) and time.monotonic() < end:
            time.sleep(0.1)
        # only kernels without a record are ended
        assert jobs_of(cluster, project.paths.runtime) == {}
        assert "| 4" in running_kernel.insert("print(y + 3)")[1].text
        project.stepper("shutdown")
        assert cluster.jobs()[job] == "RUNNING"
        assert "stepper-" not in cluster.ask(
            "squeue", "-h", "-s", "-j", str(job), "-o", "%j"
        )
    cluster.ask("scancel", str(job))


@pytest.fixture(scope="module")
def ours_alone() -> Iterator[Lab]:
    lab = start_cluster()
    yield lab
    lab.stop()


@pytest.fixture
def failing_cluster(ours_alone: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A separate cluster whose nodes fail; independent of `cluster`."""
    monkeypatch.setenv("SLURM_CONF", ours_alone.conf)
    return ours_alone


@pytest.mark.nightly
def test_expired_walltime(failing_cluster: Lab) -> None:
    harness = JobHarness(failing_cluster, make_backend(time="1"))
    result = harness.run("import time\ntime.sleep(150)", 170)
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "it exceeded its walltime (TIMEOUT)" in result.death.reason
    )
    assert "DUE TO TIME LIMIT" in result.death.stderr
    harness.kernel = None
    harness.close()


@pytest.mark.nightly
def test_node_failure_leaves_no_second_kernel(failing_cluster: Lab) -> None:
    harness = JobHarness(failing_cluster, make_backend())
    old, node = harness.kernel, failing_cluster.node_of(harness.kernel.process.job_id)
    pid = int(text(harness.run("import os\nprint(os.getpid())")))
    failing_cluster.fail(node)
    assert text(
        harness.run("print('it answers')")
    ) == "it answers\n" and psutil.pid_exists(pid)
    result = harness.run("import time\nfor n in range(150): time.sleep(1)", 170)
    assert (
        result.outcome is Outcome.KERNEL_DIED
        and "its node failed (NODE_FAIL)" in result.death.reason
    )
    # output caused by the fence is not the reason of the end
    assert "Error" not in result.death.stderr, result.death.stderr
    assert not old.channels.is_open and harness.wait_until(
        lambda: not psutil.pid_exists(pid)
    )
    harness.begin(make_backend())
    assert failing_cluster.node_of(harness.kernel.process.job_id) != node
    harness.close()
    failing_cluster.repair(node)


@pytest.mark.nightly
def test_memory_limit_of_the_job_cgroup() -> None:
    if not os.path.ismount("/sys/fs/cgroup/memory"):
        pytest.skip("this machine has no cgroup v1 for memory")
    lab = start_cluster(CGROUP="1")
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SLURM_CONF", lab.conf)
            harness = JobHarness(lab, make_backend(mem="300M"))
            result = harness.run(
                "import time\nheld = b'x' * 700_000_000\ntime.sleep(20)"
            )
            assert (
                result.outcome is Outcome.KERNEL_DIED
                and "(OUT_OF_MEMORY)" in result.death.reason
            )
            assert (
                result.death.cause == "OutOfMemory"
                and "oom" in result.death.stderr.lower()
            )
            harness.kernel = None
            harness.close()
    finally:
        lab.stop()


@pytest.mark.nightly
def test_kernel_ports_are_tunneled_through_its_node(
    second_harness: JobHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sshd.run_sshd(tmp_path) as facts:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "ssh").write_text(
            f'#!/bin/sh\nexec {shutil.which("ssh")} -F {facts["config"]} "$@"\n'
        )
        (folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        second_harness.begin(make_backend(via="ssh"))
        data = json.loads(second_harness.record.read_text())
        assert data["connection"]["ip"] == "127.0.0.1" and data[
            "node"
        ] == second_harness.lab.node_of(data["job"])
        # sockets of the user, at the daemon's end
        assert second_harness.kernel.channels.client.transport == "ipc"
        assert text(second_harness.run("kept = 5\nprint(kept)")) == "5\n"

        async def cut() -> Execution:
            source = (
                "import time\nfor n in range(12):\n    print(n)\n    time.sleep(0.2)"
            )
            running = asyncio.create_task(
                second_harness.kernel.execute(source, 60, LIMITS)
            )
            await asyncio.sleep(1)
            second_harness.kernel.process.link.master.kill()
            return await running

        result = second_harness.wait(cut())
        assert result.outcome is Outcome.OK and text(result) == "".join(
            f"{n}\n" for n in range(12)
        )
        assert result.reconnected
        assert 2.4 <= run_time_measurement.measure_busy_seconds(result.timings, 60) < 4
        second_harness.reattach()
        assert (
            second_harness.wait(second_harness.kernel.take_over()) is None
            and text(second_harness.run("print(kept)")) == "5\n"
        )
        second_harness.wait(second_harness.kernel.shutdown())
        second_harness.kernel = None
        assert not [*second_harness.folder.glob("k*-*")] and second_harness.wait_until(
            lambda: not second_harness.jobs
        )


@pytest.mark.nightly
def test_job_that_cannot_be_cancelled_is_cancelled_by_the_next_daemon(
    second_harness: JobHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    second_harness.begin(make_backend())
    os.kill(
        int(text(second_harness.run("import os\nprint(os.getpid())"))), signal.SIGSTOP
    )
    monkeypatch.setattr(slurm_cli, "COMMAND_SECONDS", 1)
    with (
        second_harness.lab.frozen(),
        pytest.raises(
            KernelError, match="may still be running; stepper will cancel it"
        ),
    ):
        second_harness.wait(second_harness.kernel.shutdown())
    monkeypatch.setattr(slurm_cli, "COMMAND_SECONDS", 15)
    assert (
        list(second_harness.jobs.values()) == ["RUNNING"]
        and second_harness.record.exists()
    )
    assert (
        second_harness.reattach() is None
        and second_harness.wait_until(lambda: not second_harness.jobs)
        and not second_harness.record.exists()
    )


@pytest.mark.nightly
def test_preempted_job(cluster: Lab) -> None:
    harness = JobHarness(cluster, make_backend(extra=["--exclusive"]))
    urgent = cluster.ask(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "--wrap=sleep 100"
    ).strip()
    death = harness.wait_for_death(60)
    assert death is not None and "the job was preempted (PREEMPTED)" in death.reason, (
        death
    )
    cluster.ask("scancel", urgent)
    harness.close()


# Clocks of messages and cells, five hours slow.
CLOCK = """import datetime, time
clock = time.time
time.time = lambda: clock() - 5 * 3600
class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) - datetime.timedelta(hours=5)
datetime.datetime = Clock
"""


@pytest.mark.nightly
def test_node_clock_differs(cluster: Lab, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    setup = f"export PYTHONPATH={tmp_path}"
    for project in project_on(
        tmp_path / "repo", gpu=make_backend(setup=setup).definition
    ):
        response = project.json("new", "Look there", "--kernel", "gpu")
        notebook = Notebook(project, project.folder / response["notebook"])
        cell, report = notebook.insert("import time\nx = 3\nprint(time.time())")
        node_time = float(report.text.partition("| ")[2].split()[0])
        assert abs(time.time() - 5 * 3600 - node_time) < 600, report.text
        run = project.json("history")[-1]
        assert 0 <= run["duration_s"] < 60, run
        project.kill_daemon()
        payload = notebook.edited(
            "insert", "import time\ntime.sleep(3)\nprint('over', x)", cell
        )
        running = threading.Thread(target=project.hook, args=("PostToolUse", payload))
        running.start()
        time.sleep(1.5)
        project.kill_daemon()
        running.join()
        assert "| over 3" in project.json("report")["text"]
        assert project.json("report")["outcome"] == "ok"
        cell, report = notebook.insert("# stepper: timeout=1\ntime.sleep(30)")
        assert "Timeout" in report.text, report.data
        # the files of the kernel's machine are unknown, so the same cell runs again
        for _ in range(2):
            report = notebook.replace(
                cell, "y = 1\nopen('made.txt', 'w').write('x')\n1 / 0"
            )
            assert (
                "ZeroDivisionError" in report.text and "made.txt (" not in report.text
            ), report.text
        assert [run["outcome"] for run in project.json("history")][-2:] == [
            "error",
            "error",
        ]


@pytest.mark.nightly
def test_unencrypted_ipykernel_is_reported_once(cluster: Lab, tmp_path: Path) -> None:
    older = [
        "install",
        "--no-deps",
        "--target",
        str(tmp_path / "older"),
        "ipykernel==6.29.5",
    ]
    subprocess.run(
        [sys.executable, "-m", "pip", *older],
        check=True,
        capture_output=True,
        timeout=120,
    )
    harness = JobHarness(
        cluster, make_backend(setup=f"export PYTHONPATH={tmp_path}/older")
    )
    assert "are signed but not encrypted" in harness.kernel.describe().limitation
    assert (
        not harness.kernel.channels.client.curve_publickey
        and text(harness.run("print(1)")) == "1\n"
    )
    harness.close()


@pytest.mark.nightly
def test_setup_loads_modules(
    cluster: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apt_packages.find_or_unpack_program(
        "modulecmd", "environment-modules", file="/etc/profile.d/modules.sh"
    )
    (tmp_path / "pet").write_text("#%Module\nsetenv PET cat\n")
    harness = JobHarness(cluster)
    harness.environ = {
        name: value
        for name, value in harness.environ.items()
        if not name.startswith("BASH_FUNC_")
    }
    harness.begin(
        make_backend(
            setup=f"module use {tmp_path}\nmodule load pet\nsource <(echo export SEEN=1)"
        )
    )
    assert (
        text(harness.run("import os\nprint(os.environ['PET'], os.environ['SEEN'])"))
        == "cat 1\n"
    )
    harness.close()
