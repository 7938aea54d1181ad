"""The seven-step Seattle notebook in the real client, with a remote kernel.

On SLURM, the job waits in the queue, the daemon is killed, the walltime ends and a node
fails. On a Jupyter server, the websocket is cut twice. `stepper restore` rebuilds the
variables of a lost kernel. `docs/development/clusters.md` shows the reports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from examples import demo
from stepper.common.paths import Paths
from stepper.hook.daemon_client import send_request
from stepper.install import install_options, installer
from tests.conftest import make_env
from tests.environments import environment
from tests.jupyterserver import TOKEN, VARIABLE, ConnectionProxy, JupyterServer
from tests.slurm.lab import Lab
from tests.test_queued_kernel import QUEUED, WHY, Full

from .conftest import InteractiveFactory
from .model import Awaited, Block, Message, ScriptedModel, text
from .test_run_on_edit import (
    code,
    get_new_text,
    history,
    insert,
    read,
    replace,
    stepper,
    wait_until,
)

Model = Callable[..., ScriptedModel]
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(580)]

# Code that is prepended to a step to make it slow.
LOADS = """\
# stepper: wait=2s
import time
for part in range(1, 7):
    time.sleep(1)  # the file system is slow today
    print(f"part {part} of 6 is here", flush=True)
"""
LOOKS_UP = """\
# stepper: timeout=10m wait=2s
import time
for number, day in enumerate(raw["date"], 1):
    time.sleep(0.1)  # a look at each day in the station's own log
    if number % 100 == 0:
        print(f"{number} of {len(raw)} days", flush=True)
"""
RESAMPLES = """\
import time
means = []
for number in range(1, SAMPLES + 1):
    sample = weather.sample(frac=1, replace=True, random_state=number)
    means.append(sample.groupby(sample.index.month)["precipitation"].mean())
    time.sleep(0.2)
    if number % 10 == 0:
        print(f"{number} of {SAMPLES} samples", flush=True)
"""
ENDED = "what was handed on in"  # the start of the text that wakes the agent
FOR_LONG = "# stepper: timeout=10m wait=2s\nSAMPLES = 1000\n" + RESAMPLES
FOR_SHORT = "# stepper: wait=2s\nSAMPLES = 40\n" + RESAMPLES


@pytest.fixture
def project(claude_binary: Path, tmp_path: Path) -> Iterator[Path]:
    """An installed repository with the data."""
    folder = tmp_path / "a répo"
    folder.mkdir()
    make_env(Paths(str(folder)).env)
    installer.apply(
        install_options.parse_arguments([str(folder), "--python", python(), "--allow"])
    )
    demo.prepare(str(folder))
    try:
        yield folder
    finally:
        stepper(folder, "shutdown")
        Path(Paths(str(folder)).runtime).rmdir()  # empty now


def python() -> str:
    """Return an interpreter with the packages."""
    return environment(sys.executable, "ipykernel>=7", *demo.PACKAGES)


def configure_backend(project: Path, backend: dict[str, Any]) -> None:
    """Configure the backend for the notebooks' kernels."""
    # so that cells on a busy machine do not become background runs
    data = {
        "kernel": "there",
        "kernels": {"there": backend},
        "report_after_seconds": 120,
    }
    (project / ".stepper" / "config.yaml").write_text(json.dumps(data))
    stepper(project, "trust", "--yes")


def create_planned_notebook(project: Path) -> Path:
    steps = (argument for step in demo.STEPS for argument in ("--step", step.title))
    response: str = json.loads(stepper(project, "new", demo.PROBLEM, *steps, "--json"))[
        "notebook"
    ]
    return project / response


def write_step(notebook: Path, number: int, prefix: str = "") -> list[Block]:
    """Append a step's text and code to the notebook."""
    step, last = demo.STEPS[number - 1], 2 * number - 2
    return [
        insert(
            notebook,
            f"## {number}. {step.title}\n\n{step.markdown}",
            f"cell-{last}",
            "markdown",
        ),
        insert(
            notebook,
            prefix + step.code.removeprefix(step.forgotten),
            f"cell-{last + 1}",
        ),
    ]


def fix_step(notebook: Path, number: int) -> Callable[[list[Message]], list[Block]]:
    """Replace a step's cell with the correct code."""

    def turn(_: list[Message]) -> list[Block]:
        cells = json.loads(notebook.read_text())["cells"]
        return [replace(notebook, demo.STEPS[number - 1].code, cells[2 * number]["id"])]

    return turn


def get_status(notebook: Path) -> Any:
    return json.loads(
        stepper(notebook.parent.parent, "status", str(notebook), "--json")
    )


def get_kernel_trouble(notebook: Path) -> str:
    """Return the kernel's problem, requested in this process.

    A new process would be too slow: a connection is given up after ten seconds.
    """
    payload = json.dumps({"notebook": str(notebook)}).encode()
    status = json.loads(
        send_request(Paths(str(notebook.parent.parent)), b"status", payload) or b"{}"
    )
    return str(status["kernel"]["trouble"])


def list_runs(notebook: Path) -> list[tuple[int, str]]:
    """Return the step and outcome of each run."""
    return [(run["step"], run["outcome"]) for run in history(notebook)]


def expect_ok_runs(*steps: int) -> list[tuple[int, str]]:
    return [(step, "ok") for step in steps]


def assert_complete(notebook: Path, **prefixes: str) -> None:
    """Check that the notebook equals one without failures.

    Compares each step's code, the outputs, the figure and the results file.
    """
    demo.check(notebook, get_status(notebook)["state"])
    for number, (step, (source, printed)) in enumerate(
        zip(demo.STEPS, code(notebook), strict=True), 1
    ):
        assert source == prefixes.get(f"step{number}", "") + step.code
        if source.startswith(LOADS):
            parts = [f"part {part} of 6 is here" for part in range(1, 7)]
            assert printed.splitlines() == [*parts, "1,461 rows, 6 columns"]
        if source.startswith(FOR_SHORT):
            assert printed.splitlines() == [
                f"{number} of 40 samples" for number in (10, 20, 30, 40)
            ]
    assert len(notebook.with_name(demo.RESULT).read_text().splitlines()) == 13


def kernels_of(job: int) -> list[psutil.Process]:
    """Return the processes of a job's kernel, whether or not SLURM lists the job."""
    results = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("SLURM_JOB_ID") == str(
                job
            ) and "ipykernel" in " ".join(process.cmdline()):
                results.append(process)
    return results


def test_slurm_with_queue_killed_daemon_walltime_and_node_failure(
    cluster: Lab,
    project: Path,
    scripted_model: Model,
    interactive_claude: InteractiveFactory,
) -> None:
    options = {
        "partition": "batch",
        "time": "0:01:00",
        "mem": "600M",
        "queue_seconds": 2,
    }
    configure_backend(project, {"slurm": options})
    notebook, full = create_planned_notebook(project), Full(cluster)
    model = scripted_model(
        [read(notebook)],
        write_step(notebook, 1),
        [text("The kernel waits in the queue.")],
        write_step(notebook, 2, LOADS),
        [text("It loads.")],
        write_step(notebook, 3),
        write_step(notebook, 4, LOOKS_UP),
        [text("It looks up each day.")],
        [text("The job is over.")],
        [read(notebook)],
        fix_step(notebook, 4),
        write_step(notebook, 5),
        fix_step(notebook, 5),
        write_step(notebook, 6, FOR_LONG),
        [text("It draws samples.")],
        [text("The node is gone.")],
        [read(notebook)],
        fix_step(notebook, 6),
        write_step(notebook, 7),
        [text("That is the end.")],
    )
    client = interactive_claude(model, env={"SLURM_CONF": cluster.conf})
    client.send("Analyse the weather.")
    client.wait_for("The kernel waits in the queue.")
    assert (
        QUEUED in get_new_text(model, 2)
        and WHY in get_new_text(model, 2)
        and "You are notified" in get_new_text(model, 2)
    )
    assert (
        list_runs(notebook) == []
        and get_status(notebook)["kernel"]["state"] == "queued"
    )

    full.ends()
    client.wait_for("It loads.", 40)
    (first,) = cluster.jobs()
    assert "ran ok in" in get_new_text(
        model, 3
    ) and f"Kernel: job {first} on n" in get_new_text(model, 3)
    os.kill(get_status(notebook)["daemon"]["pid"], signal.SIGKILL)

    client.wait_for("It looks up each day.", 40)
    assert "continued after the daemon exited" in get_new_text(
        model, 5
    ) and "| part 1 of 6 is here\n| part 2" in get_new_text(model, 5)
    assert f"Kernel: job {first} on n" in get_new_text(model, 7)
    assert (
        f"the cell's deadline (10 min) is beyond the walltime of job {first}"
        in get_new_text(model, 7)
    )
    assert [*cluster.jobs()] == [first] and list_runs(notebook) == expect_ok_runs(
        1, 2, 3
    )

    screen = client.wait_for("The job is over.", 120)
    assert "it exceeded its walltime (TIMEOUT)" in get_new_text(
        model, 8
    ) and "| 100 of 1461 days" in get_new_text(model, 8)
    assert (
        "❌ Execution stopped at cell 4" in screen
        and "Suggestion: give the job more time" in screen
    )
    assert get_status(notebook)["state"] == "stopped" and list_runs(notebook) == [
        *expect_ok_runs(1, 2, 3),
        (4, "kernel_died"),
    ]
    # earlier output is kept
    assert code(notebook)[3][1].startswith("100 of 1461 days\n200 of")
    configure_backend(project, {"slurm": options | {"time": "0:20:00"}})
    stepper(project, "restore", str(notebook))

    client.send(
        "The job has more time now, and the steps before are restored. Go on, without the log."
    )
    client.wait_for("It draws samples.", 60)
    assert "NameError: name 'WET_DAY_MM' is not defined" in get_new_text(model, 12)
    (second,) = cluster.jobs()
    node = cluster.node_of(second)
    cluster.fail(node)
    screen = client.wait_for("The node is gone.", 120)
    message = get_new_text(model, 15)
    assert (
        "its node failed (NODE_FAIL)" in message
        and "Traceback" not in message
        and "| 10 of 1000 samples" in message
    )
    assert (
        "the cell did not cause the kernel's death: `stepper restore`" in screen
        and "nothing in its cell ended" in message
    )
    wait_until(lambda: not kernels_of(second))  # the node is fenced
    stepper(project, "restore", str(notebook))
    (third,) = cluster.jobs()
    assert {"n1", "n2"} == {node, cluster.node_of(third)}

    client.send("/fix take no samples")
    screen = client.wait_for("That is the end.", 60)
    cluster.repair(node)
    assert (
        model.unsaid == 0
        and "Nothing in it ended the kernel: replaced, if only by the same"
        in get_new_text(model, 16)
    )
    assert model.shown().count(ENDED) == 4  # each of the four was reported once
    assert_complete(notebook, step2=LOADS)
    before, later = (
        [*expect_ok_runs(1, 2, 3), (4, "kernel_died")],
        [*expect_ok_runs(4), (5, "error"), *expect_ok_runs(5), (6, "kernel_died")],
    )
    assert list_runs(notebook) == [
        *before,
        *expect_ok_runs(1, 2, 3),
        *later,
        *expect_ok_runs(1, 2, 3, 4, 5),
        *expect_ok_runs(6, 7),
    ]
    stepper(project, "shutdown")
    assert cluster.empty() and not kernels_of(third)


def test_jupyter_server_with_websocket_cut_twice(
    project: Path, scripted_model: Model, interactive_claude: InteractiveFactory
) -> None:
    server = JupyterServer("server")
    server.kernelspec("house", python())
    spec = server.folder / "data" / "kernels" / "house" / "kernel.json"
    # else its kernels run in their own folder
    wrapper = [
        "sh",
        "-c",
        'cd "$0" && exec "$@"',
        str(project / "notebooks"),
    ]
    data = json.loads(spec.read_text())
    spec.write_text(json.dumps(data | {"argv": [*wrapper, *data["argv"]]}))
    proxy = ConnectionProxy(server.port)
    with (
        contextlib.closing(server),
        contextlib.closing(proxy),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv(VARIABLE, TOKEN)
        configure_backend(project, server.definition(proxy.url, kernel="house"))
        notebook = create_planned_notebook(project)
        model = scripted_model(
            [read(notebook)],
            write_step(notebook, 1),
            write_step(notebook, 2, LOADS),
            [text("It loads.")],
            Awaited(ENDED, 1, write_step(notebook, 3)),
            write_step(notebook, 4),
            write_step(notebook, 5),
            fix_step(notebook, 5),
            write_step(notebook, 6, FOR_SHORT),
            [text("It draws samples.")],
            Awaited(ENDED, 2, write_step(notebook, 7)),
            [text("That is the end.")],
        )
        client = interactive_claude(model, env={VARIABLE: TOKEN})
        client.send("Analyse the weather.")
        client.wait_for("It loads.", 40)
        kernels = server.kernels()
        assert proxy.cut()
        client.wait_for("It draws samples.", 40)
        proxy.down()
        wait_until(lambda: "the connection is down" in get_kernel_trouble(notebook))
        proxy.up()
        client.wait_for("That is the end.", 40)
        assert model.unsaid == 0 and server.kernels() == kernels
        assert model.shown().count(ENDED) == 2
        assert_complete(notebook, step2=LOADS, step6=FOR_SHORT)
        assert list_runs(notebook) == [
            *expect_ok_runs(1, 2, 3, 4),
            (5, "error"),
            *expect_ok_runs(5, 6, 7),
        ]
        assert TOKEN not in model.shown()
        stepper(project, "shutdown")
        assert server.kernels() == []
