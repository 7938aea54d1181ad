"""Hook process, command line and daemon with each kernel backend.

test_kernel_contract.py tests the kernels of each backend. Tests of one backend are in
the backend's own module.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import backend_cases
from tests.backend_cases import Backend, Cells
from tests.conftest import (
    Answer,
    Notebook,
    Project,
    code,
    mark_nightly,
    scratch,
    text_of,
)
from tests.test_interrupted_children import CHILD
from tests.test_interrupted_children import START as START_CHILD
from tests.test_long_cells import AFTER_OUTPUT, STARTED, Edit, confirm_delivery
from tests.test_recovery import POINTS, start_dying_daemon, start_hook_thread
from tests.test_run_on_edit import wait_until

FOUR = ("slurm", "ssh", "jupyter", "r")
# other modules test the local kernel by day
processes_contract = functools.partial(backend_cases.contract, "processes", always=())


class BackendProject:
    """A project whose kernels run on a backend."""

    def __init__(self, project: Project, at: Backend) -> None:
        self.project, self.at, self.cells = project, at, at.cells
        self.config()
        if at.definition:
            project.stepper("trust", "--yes")

    def config(self, options: str = "") -> None:
        kernels = (
            {"kernels": {"there": self.at.definition}} if self.at.definition else {}
        )
        self.project.config(yaml(kernels) + options)

    def new(self, *steps: str) -> Notebook:
        requests = [
            "new",
            "A problem",
            *(part for step in steps for part in ("--step", step)),
        ]
        response = self.project.json(
            *requests, *(["--kernel", "there"] if self.at.definition else [])
        )
        return Notebook(self.project, self.project.folder / response["notebook"])

    def kill_daemon(self) -> None:
        """Kill the daemon.

        Without the helper, start the next daemon at once, which receives the messages.
        """
        self.project.kill_daemon()
        if "helper" in self.at.lacks:
            assert self.project.json("status")["kernel"]["state"] == "busy"

    def file(self, name: str) -> str:
        return str(self.project.folder / name)

    def times(self, name: str) -> int:
        path = self.project.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0


def yaml(results: dict[str, Any]) -> str:
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in results.items())


@pytest.fixture(scope="module")
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackendProject]:
    folder = tmp_path_factory.mktemp(request.param)
    with backend_cases.start_backend(request.param, folder) as at:
        for project in scratch(folder / "repo"):
            yield BackendProject(project, at)


@pytest.fixture
def prepared_backend(backend: BackendProject) -> Iterator[BackendProject]:
    for path in backend.project.folder.glob("ran*"):
        path.unlink()
    backend.config()
    yield backend
    while STARTED:
        with STARTED.pop() as process:
            process.kill()
    # or else each test leaves a kernel
    for record in Path(backend.project.paths.kernels).rglob("*.json"):
        backend.project.stepper("shutdown", record.stem, check=None)


@pytest.fixture
def cells(prepared_backend: BackendProject) -> Cells:
    return prepared_backend.cells


def number(response: Answer) -> int:
    return int(re.findall(r"^\| (\d+) *$", response.text, re.MULTILINE)[-1])


def is_dead(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


@pytest.mark.nightly_after(2)
@processes_contract(by_day=(*FOUR, "gateway"))
def test_cell_runs_once_when_daemon_is_killed_and_shutdown_cleans_up(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Load", "Go on")
    _, response = notebook.insert(f"{cells.assign}\n{cells.process}")
    assert "ran ok" in response.text and response.line.startswith("✓"), response.data
    process = number(response)
    source = (
        cells.marks(prepared_backend.file("ran"))
        + cells.waits(prepared_backend.file("ran-go"))
        + cells.say
    )
    edit = notebook.edited("insert", source, notebook.raw["cells"][-1]["id"])
    thread, responses = start_hook_thread(project, edit)
    wait_until(lambda: prepared_backend.times("ran") == 1)
    prepared_backend.kill_daemon()
    Path(prepared_backend.file("ran-go")).touch()
    thread.join(120)
    text = responses[0].text
    assert (
        "ran ok" in text
        and "continued after the daemon exited" in text
        and "| over\n| 20" in text
    ), text
    assert ("| begun" in text) == ("helper" not in prepared_backend.at.lacks), text
    assert prepared_backend.times("ran") == 1
    assert text_of(notebook.cell(edit["tool_response"]["cell_id"])).endswith(
        "over\n20\n"
    )
    assert [run["outcome"] for run in project.json("history")] == ["ok", "ok"]
    assert number(notebook.insert(cells.process)[1]) == process
    assert project.json("status")["kernel"]["state"] == "idle"
    project.stepper("shutdown", notebook.path.stem)
    wait_until(lambda: is_dead(process))
    assert not [*Path(project.paths.kernels).rglob("*.json")]


@processes_contract()
def test_replay_uses_its_own_kernel_and_shuts_it_down(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Count", "Say")
    _, response = notebook.insert(
        f"{cells.marks(prepared_backend.file('ran'))}{cells.process}"
    )
    notebook.insert(cells.say.replace("x", "1"))
    before, living = notebook.path.read_bytes(), number(response)
    result = project.stepper("verify", notebook.path.stem, "--once", check=1)
    at = prepared_backend.at.at
    assert ("the replay uses a separate kernel on there (" in result.stderr) == (
        at is not None and not at.description.is_local
    )
    assert (
        "DOES NOT REPRODUCE · 1 of 2 cells as recorded · " in result.stdout
        and prepared_backend.times("ran") == 2
    )
    assert f" in 1 fresh kernel{' (in there)' * (at is not None)}; " in result.stdout
    live_pid, replay_pid = (
        int(numbers)
        for numbers in re.findall(
            r"^      \| [-+] (\d+) *$", result.stdout, re.MULTILINE
        )
    )
    assert (live_pid, replay_pid != living, is_dead(living)) == (living, True, False)
    wait_until(lambda: is_dead(replay_pid))
    assert (
        not [*Path(project.paths.verify).rglob("*.json")]
        and notebook.path.read_bytes() == before
    )
    assert number(notebook.insert(cells.process)[1]) == living


@processes_contract("helper")
@pytest.mark.nightly
def test_next_daemon_removes_kernel_of_killed_replay(
    prepared_backend: BackendProject,
) -> None:
    project, notebook, go, pids = (
        prepared_backend.project,
        prepared_backend.new("Wait"),
        Path(prepared_backend.file("ran-go")),
        prepared_backend.file("ran"),
    )
    go.touch()
    wait = f"import os, time\nopen({pids!r}, 'a').write(f'{{os.getpid()}}\\n')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.02)"
    notebook.insert(wait)
    go.unlink()
    command = [
        sys.executable,
        "-c",
        "from stepper.cli.main import main; main()",
        "verify",
        notebook.path.stem,
    ]
    with subprocess.Popen(
        command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as doing:
        wait_until(lambda: prepared_backend.times("ran") == 2, 30)
        living, replay = map(int, Path(pids).read_text().split())
        project.kill_daemon()
        out, _ = doing.communicate(timeout=120)
    assert (doing.returncode, out) == (3, b"")
    assert project.json("status")["verified"] is None
    wait_until(lambda: is_dead(replay), 30)
    wait_until(lambda: not [*Path(project.paths.verify).rglob("*.json")], 30)
    assert not is_dead(living)


@pytest.mark.parametrize("point", POINTS)
@processes_contract()
@pytest.mark.nightly
def test_daemon_killed_at_any_point_of_a_run(
    prepared_backend: BackendProject, cells: Cells, point: str
) -> None:
    notebook = prepared_backend.new("Load", "Go on")
    notebook.insert(cells.assign)
    start_dying_daemon(prepared_backend.project, point)
    cell, response = notebook.insert(
        cells.marks(prepared_backend.file("ran")) + cells.say
    )
    # it is unknown whether the cell ran
    if "helper" in prepared_backend.at.lacks and response.stop:
        assert (
            "the outcome of the run is unknown" in response.stop
            and prepared_backend.times("ran") < 2
        ), response.stop
        return
    assert prepared_backend.times("ran") == 1  # the cell never runs twice
    assert [run["outcome"] for run in prepared_backend.project.json("history")] == [
        "ok",
        "ok",
    ]
    assert (
        text_of(notebook.cell(cell)) == "20\n"
        and "| 20" in notebook.insert(cells.say)[1].text
    )


@pytest.mark.nightly_after(1)
@processes_contract(by_day=("jupyter", "r"))
def test_attempts_survive_a_killed_daemon_and_stop_the_notebook(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Load", "Plot")
    notebook.insert(cells.assign)
    cell, response = notebook.insert(cells.fails(1))
    assert (
        "FAILED" in response.text
        and "| before" in response.text
        and "0 of 3 retries used, 3 left" in response.text
    )
    response = notebook.replace(cell, cells.fails(2))
    assert "1 of 3 retries used, 2 left" in response.text and not response.stop
    project.kill_daemon()
    assert "2 of 3 retries used, 1 left" in notebook.replace(cell, cells.fails(3)).text
    stop = notebook.replace(cell, cells.fails(4)).stop
    assert (
        stop.startswith("❌ Execution stopped at cell 2\nTODO: Plot\nError Type: ")
        and cells.error[1] in stop
    )
    denied = notebook.before("insert", cells.say, cell).denied
    assert "stopped" in denied and cells.error[0] in denied
    assert (
        "NOT run" in notebook.insert(cells.marks(prepared_backend.file("ran")))[1].text
        and prepared_backend.times("ran") == 0
    )
    # Earlier tests of the backend may have left stopped notebooks.
    project.stepper("fix", "--notebook", str(notebook.path))
    assert "| 20" in notebook.replace(cell, cells.say).text


@pytest.mark.nightly_after(1)
@processes_contract(by_day=("slurm", "jupyter"))
def test_agent_is_notified_of_background_run_after_daemon_was_killed(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = (
        prepared_backend.project,
        prepared_backend.new("Load", "Train", "Plot"),
    )
    notebook.insert(cells.assign)
    prepared_backend.config(AFTER_OUTPUT)
    edit = Edit(
        notebook,
        f"# stepper: timeout=2h\n{cells.marks(prepared_backend.file('ran'))}{cells.waits(prepared_backend.file('ran-go'))}",
    )
    message = edit.answer.text
    assert (
        "is still running after " in message
        and '(step 2 of 3 "Train", deadline 2 h)' in message
        and "| begun" in message
    )
    assert project.json("status")["running"]["handed_on"] is True
    prepared_backend.kill_daemon()
    Path(prepared_backend.file("ran-go")).touch()
    notification = edit.woken
    assert (
        "ran ok" in notification
        and "| over" in notification
        and 'Next: step 3 of 3 "Plot"' in notification
    ), (
        notification,
        prepared_backend.times("ran"),
        project.json("history"),
    )
    confirm_delivery(notebook, notification)
    assert prepared_backend.times("ran") == 1 and [
        run["outcome"] for run in project.json("history")
    ] == ["ok", "ok"]


@processes_contract()
def test_kernel_death_stops_the_notebook_and_is_restored(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = (
        prepared_backend.project,
        prepared_backend.new("Load", "Break", "Plot"),
    )
    notebook.insert(cells.marks(prepared_backend.file("ran")) + cells.assign)
    cell, response = notebook.insert(cells.dies)
    assert (
        "Error Type: KernelDied" in response.stop
        and "all variables are lost; they came from step 1" in response.stop
    )
    assert re.search(prepared_backend.at.died, response.stop), response.stop
    # nothing is replayed without a request
    assert (
        notebook.before("insert", cells.say, cell).denied
        and prepared_backend.times("ran") == 1
    )
    restored = project.json("restore")
    assert (
        restored["ok"]
        and restored["ran"] == restored["cells"] == 1
        and prepared_backend.times("ran") == 2
    )
    assert "| 20" in notebook.replace(cell, cells.say).text


@processes_contract()
def test_renamed_notebook_keeps_its_kernel_after_daemon_was_killed(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Load", "Plot")
    notebook.insert(cells.assign)
    path = notebook.path.with_name("renamed.ipynb")
    notebook.path.rename(path)
    moved = Notebook(project, path)
    assert "was renamed to" in project.json("status", "renamed")["renamed"]
    assert "| 20" in moved.insert(cells.say)[1].text
    project.kill_daemon()
    renamed = Notebook(project, path.with_name("again.ipynb"))
    path.rename(renamed.path)
    assert "| 20" in renamed.insert(cells.say)[1].text
    assert "kernel" in project.stepper("shutdown", "again").stdout
    renamed.path.unlink()


@processes_contract()
def test_cells_run_in_order_until_one_fails(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    notebook = prepared_backend.new()
    notebook.insert(cells.assign)
    metadata = notebook.raw["metadata"]
    last = cells.marks(prepared_backend.file("ran-last"))
    sources = [
        cells.assign,
        cells.waits(prepared_backend.file("ran-go")) + cells.say,
        cells.fails(1),
        last,
    ]
    Path(prepared_backend.file("ran-go")).touch()
    cells_to_write = [code(source, f"c{index}") for index, source in enumerate(sources)]
    response = notebook.write(cells_to_write, **metadata).text
    assert (
        "| over\n| 20" in response
        and "FAILED" in response
        and prepared_backend.times("ran-last") == 0
    ), response
    counts = [notebook.cell(f"c{position}")["execution_count"] for position in range(4)]
    assert counts[1:] == [counts[1], counts[1] + 1, None]


@processes_contract()
def test_edits_of_two_clients_run_sequentially(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    notebook = prepared_backend.new()
    notebook.insert(cells.assign)
    slow = notebook.edited(
        "insert",
        cells.waits(prepared_backend.file("ran-go")),
        notebook.raw["cells"][-1]["id"],
    )
    first, responses = start_hook_thread(prepared_backend.project, slow)
    wait_until(
        lambda: prepared_backend.project.json("status")["kernel"]["state"] == "busy"
    )
    quick = notebook.edited(
        "insert",
        cells.marks(prepared_backend.file("ran")),
        notebook.raw["cells"][-1]["id"],
    )
    second, second_answers = start_hook_thread(prepared_backend.project, quick)
    time.sleep(0.5)
    assert prepared_backend.times("ran") == 0
    Path(prepared_backend.file("ran-go")).touch()
    first.join(120)
    second.join(120)
    assert (
        "| over" in responses[0].text
        and "ran ok" in second_answers[0].text
        and prepared_backend.times("ran") == 1
    )
    runs = prepared_backend.project.json("history")
    assert [run["cell_id"] for run in runs[1:]] == [
        edit["tool_response"]["cell_id"] for edit in (slow, quick)
    ]


@processes_contract()
def test_timeout_and_user_interrupt_keep_the_state(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Load", "Wait")
    notebook.insert(cells.assign)
    cell, response = notebook.insert(f"# stepper: timeout=1\n{cells.endless}")
    assert "Timeout" in response.text.splitlines()[0] and "| begun" in response.text, (
        response.text
    )
    thread, responses = start_hook_thread(
        project,
        notebook.edited("replace", f"# stepper: timeout=60\n{cells.endless}", cell),
    )
    wait_until(lambda: project.json("status")["kernel"]["state"] == "busy")
    time.sleep(0.5)
    project.stepper("interrupt")
    thread.join(120)
    assert "CANCELLED" in responses[0].text, responses[0].text
    assert "| 20" in notebook.replace(cell, cells.say).text


@pytest.mark.nightly
@pytest.mark.parametrize(
    "backend",
    mark_nightly(("slurm", "ssh", "jupyter", "gateway"), "ssh"),
    indirect=True,
    scope="module",
)
def test_remote_interrupt_reaches_children_of_earlier_cells(
    prepared_backend: BackendProject,
) -> None:
    """As documented in docs/clusters.md; local kernels spare them."""
    notebook = prepared_backend.new("Start", "Wait")
    folder = prepared_backend.project.folder
    (folder / "child.py").write_text(CHILD)
    change = f"import os; os.chdir({str(folder)!r})"
    detached = """
subprocess.Popen([sys.executable, "child.py", "ran-detached"], start_new_session=True)
while not pathlib.Path("ran-detached.ready").exists(): time.sleep(0.01)
early = start("ran-early")"""
    assert "ran ok" in notebook.insert(change + START_CHILD + detached)[1].text
    wait = "own = start('ran-own'); time.sleep(60)"
    assert "Timeout" in notebook.insert(f"# stepper: timeout=2\n{wait}")[1].text
    wait_until((folder / "ran-own.interrupted").exists)
    wait_until((folder / "ran-early.interrupted").exists)
    assert not (folder / "ran-detached.interrupted").exists()


@processes_contract("bounds")
def test_truncated_output_is_counted_in_file_and_journal(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    prepared_backend.config("max_output_bytes: 4000\n")
    notebook = prepared_backend.new("Print")
    cell, response = notebook.insert(cells.many_lines)
    assert "ran ok" in response.text
    saved_text = text_of(notebook.cell(cell))
    gap = re.search(
        r"\n… ([\d,]+) characters? left out by stepper \(max_output_bytes\) …\n",
        saved_text,
    )
    assert gap and len(saved_text) < 4000
    total = sum(len(f"line {n}\n") for n in range(1, 2001))
    omitted = int(gap[1].replace(",", ""))
    assert (
        len(saved_text) - len(gap[0]) + omitted == total
        and f"{omitted:,} characters" in response.text
    )


# The parts of a report that differ between backends.
VARIES = (
    (re.compile(r"\bid [0-9a-f]{8}\b"), "id …"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min)\b"), "… s"),
    (re.compile(r"ipykernel_\d+/\d+"), "…"),
)


def normalize_report(text: str) -> str:
    for pattern, instead in VARIES:
        text = pattern.sub(instead, text)
    return text


@pytest.mark.nightly_after(1)
@processes_contract("helper", lacks="watched", by_day=("slurm", "ssh", "jupyter"))
def test_reports_match_local_kernel_except_backend_notices(
    prepared_backend: BackendProject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    edits = [
        "import math\nrows = [{'a': 1}, {'a': 2}]\nlen(rows)",
        "def total(rows, key):\n    return sum(row[key] for row in rows)\ntotal(rows, 'b')",
        "total(rows, 'a')",
        "math.sqroot(4)",
        "import sys\nprint('x' * 50)\nprint('careful', file=sys.stderr)",
        "rows +* 2",
        "undefined_name + 1",
    ]

    def reports(notebook: Notebook) -> list[str]:
        messages, cell = [], None
        for source in edits:
            if cell is None:
                cell, response = notebook.insert(source)
            else:
                response = notebook.replace(cell, source)
            messages.append(
                normalize_report(
                    f"{response.text}\n{response.line}\n{response.stop}".replace(
                        cell, "…"
                    ).replace(notebook.path.stem, "…")
                )
            )
            cell = None if "ran ok" in response.text else cell
            if response.stop:
                notebook.project.stepper("continue")
        return messages

    remote_reports = reports(prepared_backend.new("Load", "Sum", "Root", "Print"))
    location = re.escape(prepared_backend.project.json("status")["kernel"]["where"])
    assert re.search(rf" · {location}", remote_reports[0])
    remote_reports = [
        re.sub(
            rf"^Kernel: .*\n| · {location}(, … s of its walltime left)?",
            "",
            remote_report,
            flags=re.M,
        )
        for remote_report in remote_reports
    ]
    for project in scratch(tmp_path_factory.mktemp("beside") / "repo"):
        backend_reports = reports(
            Notebook(
                project,
                project.new("Load", "Sum", "Root", "Print", problem="A problem").path,
            )
        )
    (memory_line,) = [
        line
        for line in remote_reports[0].splitlines()
        if line not in backend_reports[0].splitlines() and "memory" in line
    ]
    assert (
        "limit" in memory_line
        and sum(memory_line in report for report in remote_reports) == 1
    ), memory_line
    remote_reports[0] = "\n".join(
        line for line in remote_reports[0].splitlines() if line != memory_line
    )
    assert (
        remote_reports
        == ["\n".join(report.splitlines()) for report in backend_reports[:1]]
        + backend_reports[1:]
    )


@processes_contract()
def test_read_only_commands_work(
    prepared_backend: BackendProject, cells: Cells
) -> None:
    project, notebook = prepared_backend.project, prepared_backend.new("Load")
    cell, _ = notebook.insert(cells.assign + "\n" + cells.many_lines)
    assert project.stepper("eval", cells.say).stdout.splitlines()[-1] == "20"
    assert "line 500" in project.stepper("output", cell).stdout
    status = project.json("status")
    assert status["kernel"]["state"] == "idle" and status["kernel"]["python"]
    assert (project.json("context")["variables"] != {}) == (
        "helper" not in prepared_backend.at.lacks
    )
    project.stepper("restart")
    assert (
        "20" not in project.stepper("eval", cells.say, check=None).stdout.splitlines()
    )


class Listener:
    """A loopback port that counts connections and sends nothing."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.came = 0
        threading.Thread(target=self._count, daemon=True).start()

    def _count(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.socket.accept()[0].close()
                self.came += 1


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("kind", ["slurm", "ssh", "jupyter", "kernelspec"])
def test_unaccepted_backend_is_not_contacted(
    project: Project, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener, folder = Listener(), project.folder
    came = folder / "came"
    runs = ["/bin/sh", "-c", f"echo ran >> {came}; exit 1"]
    # any executed program leaves a trace
    for name in (
        "sbatch",
        "sinfo",
        "squeue",
        "srun",
        "salloc",
        "scancel",
        "ssh",
    ):
        (folder / "bin").mkdir(exist_ok=True)
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{runs[2]}\n")
        (folder / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:/usr/bin:/bin")
    spec = folder / "jupyter" / "kernels" / "theirs"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        json.dumps(
            {
                "argv": [*runs, "{connection_file}"],
                "display_name": "It",
                "language": "it",
            }
        )
    )
    monkeypatch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    definition: dict[str, Any] = {
        "slurm": {"partition": "batch", "setup": f"touch {came}"},
        "ssh": {"host": "127.0.0.1", "extra": ["-p", str(listener.port)]},
        "jupyter": {
            "url": f"http://127.0.0.1:{listener.port}/",
            "token_command": str(folder / "bin" / "sinfo"),
        },
        "kernelspec": "theirs",
    }
    project.config(
        yaml({"kernels": {"theirs": {kind: definition[kind]}}, "kernel": "theirs"})
    )
    result = project.stepper("new", "A stranger's", "--json", check=None)
    if result.returncode:  # the language is read from the kernelspec
        project.config(yaml({"kernels": {"theirs": {kind: definition[kind]}}}))
        result = project.stepper("new", "A stranger's", "--kernel", "theirs", "--json")
    notebook = Notebook(project, folder / json.loads(result.stdout)["notebook"])
    cell, response = notebook.insert("1")
    assert (
        "was not accepted by you" in response.text and "stepper trust" in response.text
    ), response.text
    project.json("kernels")
    project.json("status")
    project.stepper("restart", check=None)
    project.stepper("run", check=None)
    project.stepper("doctor", check=None)
    assert not came.exists() and not listener.came
    project.stepper("trust", "--yes")
    project.json("kernels")
    notebook.replace(cell, "2")
    assert came.exists() or listener.came  # proves that the test can detect it


@backend_cases.contract("helper", "processes", always=())
def test_module_changed_on_kernel_file_system_is_reloaded(
    prepared_backend: BackendProject,
) -> None:
    """Cells write the file, because the file system of the kernel counts."""
    project, notebook = prepared_backend.project, prepared_backend.new()
    write = "open('remote_rates.py', 'w').write({!r}) and None"
    notebook.insert(write.format("RATE = 1\n"))
    notebook.insert("import os, sys; sys.path.insert(0, os.getcwd())")
    _, report = notebook.insert("from remote_rates import RATE\nRATE")
    assert report.text.endswith("| 1")
    notebook.insert(write.format("RATE = 22\n"))
    _, report = notebook.insert("RATE")
    assert "Reloaded: remote_rates (changed since it was imported)." in report.text
    assert "\n| 22" in report.text
    notebook.insert(write.format("RATE = (\n"))
    _, report = notebook.insert("RATE")
    assert "remote_rates changed and could not be reloaded" in report.text
    assert "remote_rates.py, line 1: SyntaxError" in report.text
    notebook.insert(write.format("RATE = 22\n"))
    response = project.json("restore", notebook.path.name, check=None)
    assert response["changed_outputs"] == []
