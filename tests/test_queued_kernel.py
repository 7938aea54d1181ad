"""A cell that waits for a queued kernel job: it runs and is reported when the job starts."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Project
from tests.slurm.lab import Lab
from tests.test_long_cells import STARTED, Edit, confirm_delivery
from tests.test_run_on_edit import wait_until
from tests.test_workflow import end_turn, say, start_session

CONFIG = """queue_seconds: 1
kernel: gpu
kernels:
  gpu: {slurm: {partition: batch, time: "0:30:00", mem: 300M, python: %s}}
"""
QUEUED = "queued: PENDING ("
WITHDRAWN = "the job request was withdrawn, and there is no kernel"
DID_NOT_RUN = f"the cell did not run: its kernel had not started yet; {WITHDRAWN}"
NO_ANSWER = re.compile(
    r"SLURM's controller does not answer \(no answer since \d\d:\d\d:\d\d\)"
)
WHY = "the cell has NOT run; it runs when the job starts"


class Full:
    """A job that occupies all nodes."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        flags = (
            "--parsable",
            "--exclusive",
            "-N2",
            "--job-name=other",
            "--output=/dev/null",
            "--time=20",
        )
        self.job = lab.ask("sbatch", *flags, "--wrap=sleep 900").strip()
        wait_until(lambda: lab.jobs().get(int(self.job)) == "RUNNING")

    def ends(self) -> None:
        self.lab.ask("scancel", self.job)

    def list_other_jobs(self) -> dict[int, str]:
        return {
            job: state for job, state in self.lab.jobs().items() if job != int(self.job)
        }


@pytest.fixture
def full_cluster(cluster: Lab) -> Iterator[Full]:
    full_cluster = Full(cluster)
    yield full_cluster
    full_cluster.ends()
    assert cluster.empty()


@pytest.fixture
def project(full_cluster: Full, fresh_project: Project) -> Iterator[Project]:
    fresh_project.config(CONFIG % sys.executable)
    fresh_project.stepper("trust", "--yes")
    yield fresh_project
    fresh_project.stepper("shutdown", check=None)
    while STARTED:
        with STARTED.pop() as process:
            process.kill()


def kernel(project: Project) -> Any:
    return project.json("status")["kernel"]


def test_cell_moves_to_background_and_runs_when_the_job_starts(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count", "Show")
    edit = Edit(notebook, "print(6 * 7)")
    response = edit.answer
    assert (
        QUEUED in response.text
        and WHY in response.text
        and "partition batch" in response.text
        and " ahead" in response.text
    )
    assert "You are notified" in response.text and WHY in response.line
    assert kernel(project)["state"] == "queued" and kernel(project)["where"].startswith(
        "PENDING ("
    )
    assert "kernel: queued, PENDING (" in project.stepper("status").stdout
    assert end_turn(notebook) == {}
    resumed = start_session(notebook, "resume")
    assert "is queued (PENDING" in resumed and "It has NOT run; it runs when" in resumed
    refused = notebook.before("insert", "1 + 1", edit.cell_id).denied
    assert "waits for its kernel (PENDING" in refused and "NOT written" in refused
    assert WHY in Path(project.paths.running).read_text()
    (job,) = full_cluster.list_other_jobs()
    full_cluster.ends()
    notification = edit.woken
    assert (
        "ran ok" in notification
        and "| 42" in notification
        and 'Next: step 2 of 2 "Show"' in notification
    )
    assert (
        f"Kernel: job {job} on n" in notification
        and "of its walltime left" in notification
    )
    confirm_delivery(notebook, notification)
    assert f"job {job} on n" in project.stepper("status").stdout
    long = Edit(
        notebook, "# stepper: timeout=2h\nimport os; print(os.environ['SLURM_JOB_ID'])"
    )
    assert f"| {job}\n" in long.answer.text and f"· job {job} on n" in long.answer.line
    beyond = f"the cell's deadline (2 h) is beyond the walltime of job {job} on n"
    assert (
        beyond in long.answer.text
        and "(30 min left when the cell started)" in long.answer.text
    )


@pytest.mark.nightly
def test_killed_daemon_keeps_job_and_cell(full_cluster: Full, project: Project) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text
    before = full_cluster.list_other_jobs()
    project.kill_daemon()
    wait_until(
        lambda: (
            Path(project.paths.daemon_json).exists()
            and kernel(project)["state"] == "queued"
        )
    )
    assert full_cluster.list_other_jobs() == before
    full_cluster.ends()
    assert "| 42" in edit.woken
    assert len(project.json("history")) == 1


@pytest.mark.nightly
def test_job_without_waiting_cell_is_cancelled(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text and full_cluster.list_other_jobs()
    edit.waker.kill()
    project.kill_daemon()
    wait_until(lambda: project.json("status") and not full_cluster.list_other_jobs())
    assert "the daemon exited while the cell was queued" in start_session(
        notebook, "resume"
    )


@pytest.mark.nightly
@pytest.mark.parametrize("action", ["stop the cell", "interrupt", "shutdown"])
def test_interrupted_wait_cancels_the_job(
    full_cluster: Full, project: Project, action: str
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text and full_cluster.list_other_jobs()
    output = (
        say(notebook, action)
        if action == "stop the cell"
        else project.stepper(action).stdout
    )
    if action == "interrupt":
        assert DID_NOT_RUN in output
        assert kernel(project)["state"] == "none" and not full_cluster.list_other_jobs()
    woken = edit.woken
    assert f"interrupted while the kernel waited in a queue: {WITHDRAWN}" in (
        output if action == "stop the cell" else woken
    )
    wait_until(lambda: not full_cluster.list_other_jobs())
    assert action == "shutdown" or kernel(project)["state"] == "none"


@pytest.mark.nightly
def test_turn_waits_if_the_agent_cannot_be_notified(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)", CLAUDE_CODE_ENTRYPOINT="sdk-cli")
    wait_until(lambda: kernel(project)["state"] == "queued")
    full_cluster.ends()
    assert "| 42" in edit.answer.text and edit.woken == ""


def test_escape_during_the_wait_cancels_the_job(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    project.config((CONFIG % sys.executable).replace("mem:", "queue_seconds: 60, mem:"))
    project.stepper("trust", "--yes")
    edit = Edit(notebook, "print(6 * 7)")
    wait_until(lambda: kernel(project)["state"] == "queued")
    edit.hook.terminate()
    wait_until(lambda: not full_cluster.list_other_jobs())
    response = say(notebook, "What now?")
    assert f"interrupted while the kernel waited in a queue: {WITHDRAWN}" in response
    assert kernel(project)["state"] == "none"


@pytest.mark.nightly
def test_kernels_wait_returns_when_the_cell_starts(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(
        notebook,
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)\nprint(6 * 7)",
    )
    assert WHY in edit.answer.text
    threading.Timer(1, full_cluster.ends).start()
    assert (
        "the kernel is ready (busy, job " in project.stepper("kernels", "wait").stdout
    )
    (notebook.path.parent / "go").touch()
    assert "| 42" in edit.woken


@pytest.mark.nightly
def test_restart_reports_the_queue(full_cluster: Full, project: Project) -> None:
    project.new("Count")
    threading.Timer(4, full_cluster.ends).start()
    assert QUEUED in project.stepper("restart").stderr


@pytest.mark.nightly
def test_changed_backend_applies_to_the_next_kernel(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text
    name = str(notebook.path.relative_to(project.folder))
    assert project.json("use", name, "--kernel", "local")["elsewhere"] == "gpu"
    full_cluster.ends()
    assert "| 42" in edit.woken
    why = "the next kernel will run on this machine; this kernel keeps running until you run `stepper shutdown`"
    assert kernel(project)["trouble"] == why
    project.stepper("restart")
    assert kernel(project)["where"] == "" and not full_cluster.list_other_jobs()


@pytest.mark.nightly
def test_cell_interrupted_while_controller_is_unresponsive_does_not_run(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text
    with full_cluster.lab.frozen():
        wait_until(
            lambda: (
                NO_ANSWER.match(location := kernel(project)["where"])
                and "PENDING" in location
            ),
            40,
        )
        response = say(notebook, "stop the cell")
        notification = edit.woken
    assert (
        "that waits for its kernel will NOT run; its report follows" in response
        and "was interrupted" not in response
    )
    assert (
        "NOT run: interrupted while the kernel waited in a queue" in notification
        and "scancel --me --name=" in notification
    )
    full_cluster.ends()
    wait_until(lambda: not full_cluster.list_other_jobs(), 90)  # the daemon cancels it
    assert project.json("history") == [] and kernel(project)["state"] == "none"


@pytest.mark.nightly
def test_cell_interrupted_during_kernel_start_does_not_run(
    full_cluster: Full, project: Project
) -> None:
    full_cluster.ends()
    notebook = project.new("Count")
    with full_cluster.lab.frozen():
        edit = Edit(notebook, "print(6 * 7)")
        wait_until(lambda: kernel(project)["state"] == "starting")
        wait_until(lambda: kernel(project)["state"] == "queued")
        unknown = "the state of the job is not known"
        assert NO_ANSWER.match(kernel(project)["where"])
        assert unknown in project.stepper("status").stdout
        output = project.stepper("interrupt").stdout
        assert (
            "the cell will not run: it was interrupted before its kernel started"
            in output
        )
        assert "the request is being withdrawn" in output and NO_ANSWER.search(output)
        notification = edit.woken
    assert "NOT run: interrupted while the kernel waited in a queue" in notification
    assert NO_ANSWER.search(notification)
    assert "stepper will cancel it when SLURM answers again" in notification
    assert project.json("history") == []


@pytest.mark.nightly
def test_shutdown_responds_while_controller_is_unresponsive(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    edit = Edit(notebook, "print(6 * 7)")
    assert WHY in edit.answer.text
    with full_cluster.lab.frozen():
        project.kill_daemon()
        wait_until(
            lambda: (
                Path(project.paths.daemon_json).exists()
                and kernel(project)["state"] in ("starting", "queued")
            )
        )
        result = project.stepper("shutdown", check=None)
    assert "controller does not answer" in result.stderr
    edit.waker.kill()
    project.stepper("shutdown", check=None)
    wait_until(lambda: not full_cluster.list_other_jobs())


@pytest.mark.nightly
def test_kernels_wait_reports_the_queue_until_the_kernel_is_ready(
    full_cluster: Full, project: Project
) -> None:
    notebook = project.new("Count")
    threading.Timer(3, full_cluster.ends).start()
    result = project.stepper("kernels", "wait")
    assert (
        "the kernel is ready (idle, job " in result.stdout and QUEUED in result.stderr
    )
    assert notebook.insert("print(6 * 7)")[1].text


@pytest.mark.nightly
def test_mcp_interrupts_a_queued_kernel(full_cluster: Full, project: Project) -> None:
    pytest.importorskip("mcp_types", reason="the extra `mcp` is not installed")
    from mcp import Client

    from tests.test_mcp import create_notebook, run_scenario, text

    async def story(client: Client) -> None:
        async def ask(tool: str, **values: Any) -> str:
            return text(await client.call_tool(tool, values))

        name = await create_notebook(client)
        cells = [{"source": "print(6 * 7)"}]
        queued = await ask("add_cells", cells=cells, wait_seconds=2)
        assert "queued: PENDING" in queued and full_cluster.list_other_jobs()
        requested = f"The kernel of {name} was already requested (queued)."
        assert await ask("kernel", action="start") == requested
        assert await ask("kernel", action="start", place="local") == (
            f"{requested} The next kernel will run in local. To start it now, call"
            " `kernel` with `action: restart`: a cell that waits for the kernel will"
            " not run."
        )
        assert await ask("kernel", action="start", place="gpu") == requested
        interrupted = await ask("kernel", action="interrupt")
        assert f": {DID_NOT_RUN}." in interrupted and WITHDRAWN in interrupted
        assert not full_cluster.list_other_jobs()
        status = await ask("notebook_status")
        assert "kernel: none" in status
        assert "queued" not in status.replace("waited in a queue", "")
        await asyncio.to_thread(full_cluster.ends)
        report = await ask("run_notebook", which="pending", wait_seconds=30)
        assert "| 42" in report
        interrupt_report = await ask("kernel", action="interrupt")
        assert "no cell is running" in interrupt_report

    run_scenario(project, story)
